//! `agentbin agent`: this machine's jobs, over Nomad's API.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::config::{Config, Operator};
use super::notify::{self, NotifyState};
use super::plugins::{self, Plugins, Wanted};
use super::signals::Signals;
use super::{AgentArgs, complain, log, policy, token};
use crate::agent::api::{About, Allowed, Api, LogLine, Security};
use crate::agent::model::Role;
use crate::agent::runner::{Advertised, Runner};
use crate::agent::state::State;
use crate::agent::{Agent, Working};
use crate::alloc::machine::{self, CgroupPlace, Drivers};
use crate::alloc::{self, DYNAMIC_PORTS, KeptSockets, Machine, Owner, OwnerLock, Tell, chain};
use crate::cgroup::Regime;
use crate::driver::Settings;
use crate::http::listener::Listener;
use crate::http::serve::{Limits, serve};
use crate::sys;
use crate::sys::task::boxed;

/// The agent's socket, in the directory of sockets.
const SOCKET: &str = "agentbin.sock";
/// The directory of the state, in the data directory.
const STATE: &str = "server";
/// Stack of the threads besides the event loop.
const THREAD_STACK: usize = 8 << 20;
/// The memory that the start needed is released after this time.
const STARTED: Duration = Duration::from_secs(2);
/// How often unused memory is released afterwards.
const REST: Duration = Duration::from_mins(1);
/// How long the API waits until the tasks of an earlier agent have been restored.
const TAKING_UP: Duration = Duration::from_secs(1);
/// How long stopping what runs may take before this process exits without waiting any longer.
const PATIENCE: Duration = Duration::from_mins(2);

/// An address on which the agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Parses `unix:///PATH` or `tcp://ADDRESS:PORT`.
pub(super) fn address(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix://") {
        let path = PathBuf::from(path);
        return if path.is_absolute() { Ok(Address::Unix(path)) } else { Err("write it as unix:///PATH".to_owned()) };
    }
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    address.parse().map(Address::Tcp).map_err(|_| "write it as unix:///PATH or tcp://ADDRESS:PORT".to_owned())
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
            Address::Tcp(address) => write!(f, "http://{address}"),
        }
    }
}

pub(super) fn run(args: &AgentArgs) -> anyhow::Result<i32> {
    let lines = log::start(args.log_level);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().thread_stack_size(THREAD_STACK).build().context("cannot start")?;
    let status = runtime.block_on(async {
        let mut signals = Signals::catch().context("cannot catch signals")?;
        // The memory of this process contains secrets of others, such as tokens: no debugger of another process may read them.
        sys::prctl::set_undumpable().context("cannot keep this process from dumping core")?;
        let operator = Operator::find(&args.config, &[], &[])?;
        operator.config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        let place = Place::find(args)?;
        if args.check {
            return check(args, &place, &operator.config).await;
        }
        let serving = Serving::begin(args, &place, operator, lines).await?;
        notify::tell(&NotifyState::Ready);
        serving.until_end(args, &mut signals).await;
        notify::tell(&NotifyState::Stopping);
        serving.end(args.dev).await;
        place.forget();
        Ok(0)
    });
    runtime.shutdown_background();
    status
}

/// The directories of the agent.
struct Place {
    data_dir: PathBuf,
    /// The data directory is removed at the end.
    is_temporary: bool,
}

impl Place {
    fn find(args: &AgentArgs) -> anyhow::Result<Place> {
        if let (None, true) = (&args.data_dir, args.dev) {
            let dir = std::env::temp_dir().join(format!("agentbin-dev-{}", sys::random::uuid().simple()));
            std::fs::DirBuilder::new()
                .mode(0o711)
                .create(&dir)
                .with_context(|| format!("cannot make {}", dir.display()))?;
            return Ok(Place { data_dir: machine::data_dir(Some(&dir))?, is_temporary: true });
        }
        Ok(Place { data_dir: machine::data_dir(args.data_dir.as_deref())?, is_temporary: false })
    }

    fn forget(&self) {
        if self.is_temporary {
            for error in alloc::remove_tree(&self.data_dir) {
                complain(&chain(&error));
            }
        }
    }
}

/// Starts all plugins of the given directory.
async fn start_plugins(
    args: &AgentArgs,
    config: &Config,
    settings: &Settings,
    drivers: &mut Drivers,
) -> anyhow::Result<Plugins> {
    let dir = plugins::dir(args.plugin_dir.as_deref(), config);
    let given = plugins::Given { dir: dir.as_deref(), config, quiet: false, outlive: !args.dev };
    Plugins::start(&given, &Wanted::All, settings, drivers).await
}

/// Whether an agent could start here with the existing configuration and state; nothing is changed.
async fn check(args: &AgentArgs, place: &Place, config: &Config) -> anyhow::Result<i32> {
    let mut seen = machine::peek(Some(&place.data_dir), None)?;
    let plugins = start_plugins(args, config, &seen.settings, &mut seen.drivers).await?;
    let configured = policy::configure(config, &seen.drivers, &plugins, true);
    plugins.end().await;
    configured?;
    let state = place.data_dir.join(STATE);
    if state.exists() {
        State::open(&state).with_context(|| format!("cannot use the state in {}", state.display()))?;
    }
    place.forget();
    Ok(0)
}

/// A running agent.
struct Serving {
    runner: Arc<Runner>,
    machine: Arc<Machine>,
    plugins: Plugins,
    working: Working,
    listening: JoinSet<()>,
    stop: watch::Sender<bool>,
    /// Held until the end.
    _lock: Option<OwnerLock>,
    sockets: KeptSockets,
}

impl Serving {
    async fn begin(
        args: &AgentArgs,
        place: &Place,
        operator: Operator,
        lines: broadcast::Sender<LogLine>,
    ) -> anyhow::Result<Serving> {
        let owner = Owner::Agent;
        let lock = OwnerLock::take(&place.data_dir, &owner)?;
        let swept = place.data_dir.clone();
        let tell: Tell = Arc::new(|what: &str| tracing::warn!("{what}"));
        crate::sys::task::spawn_blocking(move || alloc::sweep(&swept, &tell))
            .await
            .context("the clean-up broke down")??;
        let sockets =
            machine::kept_socket_dir(&place.data_dir, &owner)?.context("the agent has no directory of sockets")?;
        let (mut machine, plugins) = assemble(args, place, operator, &sockets).await?;
        let mut listeners = notify::sockets()?;
        if !listeners.is_empty() {
            tracing::info!("listening on sockets of the service manager: {}", listeners.len());
        }
        let addresses = if args.listen.is_empty() && listeners.is_empty() {
            vec![Address::Unix(machine::socket_base(&place.data_dir).join(SOCKET))]
        } else {
            args.listen.clone()
        };
        let state = State::open(&place.data_dir.join(STATE)).context("cannot use the state of the data directory")?;
        machine.values = std::mem::take(&mut machine.values).with_variables(Arc::new(state.clone()));
        let machine = Arc::new(machine);
        for address in &addresses {
            listeners.push(listen(address)?);
        }
        let tcp: Vec<SocketAddr> = listeners.iter().filter_map(Listener::address).collect();
        if !tcp.is_empty() {
            token::first(&state, &place.data_dir).await?;
        }
        let http_addr = tcp.first().map(SocketAddr::to_string).unwrap_or_default();
        let advertised = Advertised { http_addr, tls_enabled: false };
        let (runner, reports) =
            Runner::new(Arc::clone(&machine), advertised).context("cannot look for allocations of the last agent")?;
        let (agent, working) = Agent::start(state, Arc::new(Arc::clone(&runner)), reports).await?;
        runner.settled(TAKING_UP).await;
        let view = agent.state.read()?;
        for id in runner.left() {
            // Of an allocation that has ended, only the directory remains until it is garbage collected.
            if view.alloc(&id)?.is_none() {
                tracing::warn!(alloc = id, "an allocation is left alone that the state does not know");
            }
        }
        drop(view);
        let security = Security {
            own_uid: rustix::process::geteuid().as_raw(),
            socket_role: Role::Submit,
            submit: Allowed::default(),
            names: [machine.node.name.clone()].into(),
        };
        let about = About {
            name: machine.node.name.clone(),
            region: machine.node.region.clone(),
            datacenter: machine.node.datacenter.clone(),
            nomad_version: machine.node.attributes.get("nomad.version").cloned().unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_dir: place.data_dir.clone(),
            config: serde_json::json!({}),
            started: std::time::SystemTime::now(),
        };
        let handler = Api::new(agent, about, security, lines);
        let (stop, stopped) = watch::channel(false);
        let mut listening = JoinSet::new();
        for listener in listeners {
            listening.spawn(boxed(serve(listener, Arc::clone(&handler), Limits::default(), stopped.clone())));
        }
        for address in &addresses {
            tracing::info!("listening on {address}");
        }
        Ok(Serving { runner, machine, plugins, working, listening, stop, _lock: lock, sockets })
    }

    /// Returns when the agent is to end.
    async fn until_end(&self, args: &AgentArgs, signals: &mut Signals) {
        let watchdog = notify::watchdog();
        let mut rest_at = Instant::now() + STARTED;
        loop {
            let alive = async {
                match watchdog {
                    Some(every) => tokio::time::sleep(every).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                signal = signals.next() => {
                    if signal.number() != libc::SIGHUP {
                        return tracing::info!("ending, as {signal} asks for");
                    }
                    notify::tell(&NotifyState::Reloading);
                    self.reload(args);
                    notify::tell(&NotifyState::Ready);
                }
                () = alive => notify::tell(&NotifyState::Watchdog),
                () = tokio::time::sleep_until(rest_at) => {
                    if let Err(error) = sys::pages::rest() {
                        tracing::debug!("cannot give memory back: {error}");
                    }
                    rest_at = Instant::now() + REST;
                }
            }
        }
    }

    /// Reloads the configuration. A configuration with mistakes changes nothing.
    fn reload(&self, args: &AgentArgs) {
        let reloaded = super::config::read(&args.config)
            .and_then(|config| policy::configure(&config, &self.machine.drivers, &self.plugins, args.dev));
        match reloaded {
            Ok(()) => tracing::info!("the configuration of drivers was read again; that of client takes a new start"),
            Err(error) => tracing::error!("the configuration is not changed: {error:#}"),
        }
    }

    /// Ends the agent: tasks go on, unless `takes_all` is set, which stops them.
    async fn end(mut self, takes_all: bool) {
        self.stop.send_replace(true);
        while self.listening.join_next().await.is_some() {}
        // Nothing is scheduled any more, and no reports are received.
        self.working.end().await;
        let is_idle = self.runner.is_idle();
        let ending = async {
            if takes_all {
                self.runner.end().await;
            } else {
                self.runner.leave().await;
            }
        };
        if tokio::time::timeout(PATIENCE, ending).await.is_err() {
            tracing::error!("some allocations have not ended within {PATIENCE:?}");
        }
        self.plugins.end().await;
        if (takes_all || is_idle)
            && let Err(error) = self.sockets.remove()
        {
            tracing::warn!("cannot remove the directory of sockets: {error}");
        }
    }
}

/// The machine as the operator has configured it.
async fn assemble(
    args: &AgentArgs,
    place: &Place,
    operator: Operator,
    sockets: &KeptSockets,
) -> anyhow::Result<(Machine, Plugins)> {
    let cgroups = CgroupPlace::find(args.cgroup_parent.as_deref())?.enter()?;
    let mut machine = machine::machine_of(Owner::Agent, &place.data_dir, &sockets.path, &cgroups)?;
    let settings = machine::settings(&cgroups.cgroups, &sockets.path);
    let plugins = start_plugins(args, &operator.config, &settings, &mut machine.drivers).await?;
    policy::configure(&operator.config, &machine.drivers, &plugins, args.dev)?;
    let all = machine.drivers.keys().cloned().collect();
    let told = machine::fingerprints(&machine.drivers, &all).await;
    let node = Arc::make_mut(&mut machine.node);
    node.meta.extend(operator.config.meta);
    node.add_drivers(&told);
    machine.ports = machine.ports.with(operator.networks, DYNAMIC_PORTS);
    machine.volumes = operator.volumes;
    if cgroups.regime == Regime::Off {
        let why = cgroups.why_off();
        tracing::warn!("{why}, so that memory and cpu limits of tasks are not enforced");
    }
    Ok((machine, plugins))
}

fn listen(address: &Address) -> anyhow::Result<Listener> {
    let listener = match address {
        Address::Unix(path) => {
            if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
                make_private(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            }
            Listener::unix(path, None)
        }
        Address::Tcp(address) if !address.ip().is_loopback() => {
            bail!("--listen {address}: beyond this machine the API needs TLS; listen on a loopback address")
        }
        Address::Tcp(address) => Listener::tcp(*address, None),
    };
    listener.with_context(|| format!("cannot listen on {address}; give another --listen"))
}

fn make_private(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_sockets_or_tcp() {
        assert_eq!(address("unix:///run/a.sock"), Ok(Address::Unix("/run/a.sock".into())));
        assert_eq!(address("tcp://127.0.0.1:4646"), Ok(Address::Tcp("127.0.0.1:4646".parse().unwrap())));
        assert_eq!(address("[::1]:1").unwrap().to_string(), "http://[::1]:1");
        for wrong in ["unix://run/a.sock", "localhost:4646", "", "tcp://127.0.0.1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        let refused = listen(&Address::Tcp("0.0.0.0:0".parse().unwrap())).unwrap_err().to_string();
        assert!(refused.contains("needs TLS"), "{refused}");
    }
}
