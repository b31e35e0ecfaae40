//! `agentbin agent`: this machine's jobs, over Nomad's API.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::address::Address;
use super::ask::SOCKET;
use super::config::{Config, Operator};
use super::notify::{self, NotifyState};
use super::plugins::{self, Plugins, Wanted};
use super::signals::Signals;
use super::upgrade::{self, Program};
use super::{AgentArgs, complain, log, policy, token};
use crate::agent::api::{About, Allowed, Api, LogLine, Process, Security, Upgrade};
use crate::agent::model::{Nanos, Role};
use crate::agent::runner::{Advertised, Runner};
use crate::agent::state::State;
use crate::agent::{Agent, Working, secrets_of};
use crate::alloc::machine::{self, CgroupPlace, Drivers};
use crate::alloc::{self, DYNAMIC_PORTS, KeptSockets, Machine, Owner, OwnerLock, Tell, VolumePlugins, chain};
use crate::cgroup::Regime;
use crate::driver::Settings;
use crate::http::listener::Listener;
use crate::http::serve::{Limits, serve};
use crate::spec::IntoSet as _;
use crate::spec::collections::BTreeSet;
use crate::sys;
use crate::sys::task::{Boxed, boxed};

/// The directory of the state, in the data directory.
const STATE: &str = "server";
/// Stack of the threads besides the event loop.
const THREAD_STACK: usize = 8 << 20;
/// How long the API waits until the tasks of an earlier agent have been restored.
const TAKING_UP: Duration = Duration::from_secs(1);
/// How long stopping what runs may take before this process exits without waiting any longer.
const PATIENCE: Duration = Duration::from_mins(2);
/// The same before another program takes over: whoever connects waits meanwhile.
const HANDING_OVER: Duration = Duration::from_secs(5);
/// Threads for blocking calls that had nothing to do for this time end: before what a look needed is released, since their end
/// would need some of it again.
const THREADS_REST: Duration = Duration::from_secs(1);
/// How long open sessions have to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long signals that have come may take until they are read.
const HEARD: Duration = Duration::from_millis(1);
/// How often a copy of a state is made that another process writes to.
const COPIES: u32 = 3;

pub(super) fn run(args: &AgentArgs) -> anyhow::Result<i32> {
    if !args.check {
        sys::heap::keep_small();
    }
    let lines = log::start(args.log_level);
    let program = Program::own();
    let runtime = sys::pages::event_loop()
        .thread_stack_size(THREAD_STACK)
        .thread_keep_alive(THREADS_REST)
        .build()
        .context("cannot start")?;
    let ended: anyhow::Result<Option<Vec<OwnedFd>>> = crate::sys::task::block_on(&runtime, async {
        let mut signals = Signals::catch_with(&[libc::SIGUSR2]).context("cannot catch signals")?;
        // The memory of this process contains secrets of others, such as tokens: no debugger of another process may read them.
        sys::prctl::set_undumpable().context("cannot keep this process from dumping core")?;
        let operator = Operator::find(&args.config, &[], &[])?;
        log::set(args.log_level.or(operator.config.log_level).unwrap_or(log::Least::Info));
        let place = Place::find(args)?;
        if args.check {
            return check(args, &place, &operator.config).await.map(|()| None);
        }
        if args.inherit.is_some() {
            // The watchdog of the service manager goes on during a hand-over: each of its steps has the whole time.
            notify::tell(&NotifyState::Watchdog);
        }
        let mut serving = Serving::begin(args, &place, operator, lines).await?;
        notify::tell(&NotifyState::Ready);
        let ending = serving.until_end(args, &program, &mut signals).await;
        if ending == Ending::Replaced {
            notify::tell(&NotifyState::Reloading);
            notify::tell(&NotifyState::Watchdog);
        } else {
            notify::tell(&NotifyState::Stopping);
        }
        let sockets = serving.end(ending, args.dev, &mut signals).await;
        if sockets.is_none() {
            place.forget();
        }
        Ok(sockets)
    });
    runtime.shutdown_background();
    match ended? {
        None => Ok(0),
        Some(sockets) => Err(program.take_over(&sockets)),
    }
}

/// Why an agent ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// A signal asks for it.
    Asked,
    /// Another program goes on in this process.
    Replaced,
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
async fn check(args: &AgentArgs, place: &Place, config: &Config) -> anyhow::Result<()> {
    let mut seen = machine::peek(Some(&place.data_dir), None)?;
    let tls = config.tls.acceptor()?.is_some();
    group(config)?;
    for address in &args.listen {
        if let Address::Tcp(address) = address {
            reachable(*address, tls).context("--listen")?;
        }
    }
    let plugins = start_plugins(args, config, &seen.settings, &mut seen.drivers).await?;
    let configured = policy::configure(config, &seen.drivers, &plugins, true);
    plugins.end().await;
    configured?;
    let state = place.data_dir.join(STATE);
    let context = || format!("cannot use the state in {}", state.display());
    match &args.check_state {
        Some(copy) => drop(State::open(copy).with_context(context)?),
        None if !state.exists() => {}
        None if OwnerLock::is_held(&place.data_dir, &Owner::Agent)? => {
            check_beside(place, &state).with_context(context)?;
        }
        None => drop(State::open(&state).with_context(context)?),
    }
    place.forget();
    Ok(())
}

/// Opens a copy of a state that a running agent has open.
fn check_beside(place: &Place, state: &Path) -> anyhow::Result<()> {
    let copy = place.data_dir.join(format!("check-{}", std::process::id()));
    let mut left = COPIES;
    loop {
        left -= 1;
        let opened = State::copy_of(state, &copy).and_then(|()| State::open(&copy)).map(drop);
        upgrade::forget(&copy)?;
        // What the agent writes meanwhile may be in the copy in part.
        if opened.is_ok() || left == 0 {
            return Ok(opened?);
        }
    }
}

/// Makes the state know the allocations that an earlier agent left, with their jobs.
async fn adopt(state: &State, runner: &Arc<Runner>, node: Arc<alloc::Node>) -> anyhow::Result<()> {
    let found = runner.adoptable();
    let now = Nanos::of(std::time::SystemTime::now());
    let (_, done) = state.change(move |change| change.adopt_records(found, (&node.id, &node.name), now)).await?;
    for key in &done.jobs {
        tracing::info!(namespace = key.namespace, job = key.id, "a job was made again from its allocations");
    }
    for id in &done.left {
        tracing::warn!(alloc = id, "allocation ignored: its job's name is used by another job");
    }
    tracing::info!("allocations that were adopted: {}, that are known: {}", done.allocs.len(), done.known.len());
    Ok(())
}

/// A running agent.
struct Serving {
    runner: Arc<Runner>,
    machine: Arc<Machine>,
    plugins: Plugins,
    working: Working,
    listening: JoinSet<()>,
    stop: watch::Sender<bool>,
    state: State,
    data_dir: PathBuf,
    /// The sockets once more, for the program that takes over.
    kept: Vec<OwnedFd>,
    /// The addresses that are not on the command line.
    passed: Vec<SocketAddr>,
    sessions: Arc<Semaphore>,
    replacing: mpsc::Receiver<Upgrade>,
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
        // First of all: whatever fails below must not leave them open for a helper.
        let inherited = args.inherit.as_deref();
        let (tls, group) = (operator.config.tls.acceptor()?, group(&operator.config)?);
        let made = |fd| listening(fd, tls.as_ref());
        let mut listeners = inherited.map_or_else(|| Ok(Vec::new()), |numbers| upgrade::inherited(numbers, made))?;
        let lock = OwnerLock::take(&place.data_dir, &owner)?;
        upgrade::forget_killed(&place.data_dir)?;
        let state = State::open(&place.data_dir.join(STATE)).context("cannot use the state of the data directory")?;
        let secrets = secrets_of(&state);
        let (swept, of_swept) = (place.data_dir.clone(), Arc::clone(&secrets));
        let tell: Tell = Arc::new(|what: &str| tracing::warn!("{what}"));
        crate::sys::task::spawn_blocking(move || alloc::sweep(&swept, &tell, &*of_swept))
            .await
            .context("the clean-up failed unexpectedly")??;
        let sockets =
            machine::kept_socket_dir(&place.data_dir, &owner)?.context("the agent has no directory of sockets")?;
        let config = operator.config.clone();
        let (mut machine, plugins) = assemble(args, place, operator, &sockets).await?;
        let mut addresses = Vec::new();
        if inherited.is_none() {
            listeners = notify::sockets(made)?;
            addresses.clone_from(&args.listen);
            if !listeners.is_empty() {
                tracing::info!("listening on sockets of the service manager: {}", listeners.len());
            } else if addresses.is_empty() {
                addresses.push(Address::Unix(machine::socket_base(&place.data_dir).join(SOCKET)));
            }
        }
        let passed: Vec<SocketAddr> = listeners.iter().filter_map(Listener::address).collect();
        machine.values = std::mem::take(&mut machine.values).with_variables(Arc::new(state.clone()));
        let machine = Arc::new(machine);
        for address in &addresses {
            listeners.push(listen(address, tls.as_ref(), group)?);
        }
        let tcp: Vec<SocketAddr> = listeners.iter().filter_map(Listener::address).collect();
        if !tcp.is_empty() {
            token::first(&state, &place.data_dir).await?;
        }
        let advertised = advertised(&config, &tcp, tls.is_some());
        let (volumes_dir, plugin_dir) = (config.volumes_dir.clone(), config.volume_plugin_dir.clone());
        let volumes = VolumePlugins::new(&place.data_dir, volumes_dir, plugin_dir, machine.volumes.clone());
        let (runner, reports) = Runner::new(Arc::clone(&machine), advertised, volumes, secrets)
            .context("cannot look for allocations of the last agent")?;
        alloc::control::serve(&sockets.path, runner.served())?;
        if args.adopt_records {
            adopt(&state, &runner, Arc::clone(&machine.node))
                .await
                .context("cannot adopt the allocations of the data directory")?;
        }
        let (agent, working) = Agent::start(state.clone(), Arc::new(Arc::clone(&runner)), reports).await?;
        runner.settled(TAKING_UP).await;
        let (view, mut ended) = (agent.state.read()?, BTreeSet::new());
        for id in runner.left() {
            match view.alloc(&id)? {
                // Its directory remains until it is garbage collected, and perhaps its CSI volumes.
                Some(alloc) if alloc.client_status.is_terminal() => _ = ended.insert(id),
                Some(_) => {}
                None => {
                    let fix = "if the state was lost, start the agent once with --adopt-records";
                    tracing::warn!(alloc = id, fix, "allocation ignored: it is not in the state");
                }
            }
        }
        drop(view);
        runner.release_ended(ended);
        let security = security(&config, &machine);
        let about = About {
            name: machine.node.name.clone(),
            region: machine.node.region.clone(),
            datacenter: machine.node.datacenter.clone(),
            nomad_version: machine.node.attributes.get("nomad.version").cloned().unwrap_or_default(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_dir: place.data_dir.clone(),
            config: crate::spec::json::json!({}),
            started: std::time::SystemTime::now(),
        };
        let (stop, stopped) = watch::channel(false);
        let (asked, replacing) = mpsc::channel(1);
        let sessions = Arc::new(Semaphore::new(Process::SESSIONS));
        let process = Process { ending: stopped.clone(), sessions: Arc::clone(&sessions), replacing: asked };
        let handler = Api::new(agent, about, security, lines, process);
        let kept =
            listeners.iter().map(Listener::duplicate).collect::<Result<_, _>>().context("cannot keep the sockets")?;
        let mut listening = JoinSet::new();
        for listener in listeners {
            listening.spawn(boxed(serve(listener, Arc::clone(&handler), Limits::default(), stopped.clone())));
        }
        for address in &addresses {
            tracing::info!("listening on {address}");
        }
        if inherited.is_some() {
            tracing::info!("agentbin {} has taken over", env!("CARGO_PKG_VERSION"));
        }
        Ok(Serving {
            runner,
            machine,
            plugins,
            working,
            listening,
            stop,
            state,
            data_dir: place.data_dir.clone(),
            kept,
            passed,
            sessions,
            replacing,
            _lock: lock,
            sockets,
        })
    }

    /// Returns when the agent is to end.
    async fn until_end(&mut self, args: &AgentArgs, program: &Program, signals: &mut Signals) -> Ending {
        let watchdog = notify::watchdog();
        // What else happens does not delay the next message.
        let mut alive_at = Instant::now();
        let mut trial: Option<Boxed<anyhow::Result<()>>> = None;
        let mut asker: Option<Upgrade> = None;
        loop {
            let is_trying = trial.is_some();
            let tried = async {
                match &mut trial {
                    Some(trial) => trial.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                signal = signals.next() => match signal.number() {
                    libc::SIGHUP => {
                        notify::tell(&NotifyState::Reloading);
                        self.reload(args);
                        notify::tell(&NotifyState::Ready);
                    }
                    libc::SIGUSR2 if is_trying => tracing::warn!("another upgrade is in progress"),
                    libc::SIGUSR2 => trial = Some(self.trial(args, program)),
                    _ => {
                        tracing::info!("ending, as {signal} asks for");
                        return Ending::Asked;
                    }
                },
                Some(asks) = self.replacing.recv(), if !is_trying => {
                    (trial, asker) = (Some(self.trial(args, program)), Some(asks));
                }
                tried = tried => {
                    trial = None;
                    // Before the answer: whoever connects from then on is answered by the new program.
                    let answer = match tried {
                        Ok(()) => {
                            self.stop.send_replace(true);
                            tracing::info!("another program takes over");
                            Ok(())
                        }
                        Err(error) => {
                            tracing::error!("not upgraded: {error:#}");
                            Err(format!("{error:#}"))
                        }
                    };
                    let is_done = answer.is_ok();
                    // Whoever asked may have gone.
                    let _ = asker.take().map(|asker| asker.send(answer));
                    if is_done {
                        return Ending::Replaced;
                    }
                }
                () = tokio::time::sleep_until(alive_at), if watchdog.is_some() => {
                    notify::tell(&NotifyState::Watchdog);
                    alive_at = Instant::now() + watchdog.unwrap_or_default();
                }
            }
        }
    }

    /// Tries the program that is to take over.
    fn trial(&self, args: &AgentArgs, program: &Program) -> Boxed<anyhow::Result<()>> {
        if args.dev {
            return boxed(async { bail!("an agent with --dev ends with its jobs: start it again") });
        }
        tracing::info!("trying the program that is to take over");
        boxed(program.clone().try_new(self.data_dir.clone(), self.state.clone(), self.passed.clone()))
    }

    /// Reloads the configuration. A configuration with mistakes changes nothing.
    fn reload(&self, args: &AgentArgs) {
        let reloaded = super::config::read(&args.config).and_then(|config| {
            policy::configure(&config, &self.machine.drivers, &self.plugins, args.dev)?;
            log::set(args.log_level.or(config.log_level).unwrap_or(log::Least::Info));
            Ok(())
        });
        match reloaded {
            Ok(()) => tracing::info!(
                "the configuration of drivers and log_level were read again; the rest needs an upgrade or a restart"
            ),
            Err(error) => tracing::error!("the configuration is not changed: {error:#}"),
        }
    }

    /// Ends the agent: tasks go on, unless `takes_all` is set, which stops them. Returns the sockets for the program that takes
    /// over, unless a signal has asked for the end meanwhile.
    async fn end(mut self, ending: Ending, takes_all: bool, signals: &mut Signals) -> Option<Vec<OwnedFd>> {
        self.stop.send_replace(true);
        while self.listening.join_next().await.is_some() {}
        // A client that does not listen is cut off.
        let _ = tokio::time::timeout(GOODBYE, self.sessions.acquire_many(Process::SESSIONS as u32)).await;
        // Nothing is scheduled any more, and no reports are received.
        self.working.end().await;
        let is_idle = self.runner.is_idle();
        let is_replaced = ending == Ending::Replaced;
        let leaving = async {
            if takes_all {
                self.runner.end().await;
            } else {
                self.runner.leave().await;
            }
        };
        let patience = if is_replaced { HANDING_OVER } else { PATIENCE };
        if tokio::time::timeout(patience, leaving).await.is_err() {
            tracing::error!("some allocations have not ended within {patience:?}");
        }
        self.plugins.end().await;
        let is_replaced = is_replaced && !is_end_asked(signals).await;
        // Processes of an allocation that was removed just before its end may have kept the mount busy then.
        if !is_replaced && let Err(error) = alloc::release(&self.data_dir) {
            tracing::warn!("{}", chain(&error));
        }
        if (takes_all || is_idle && !is_replaced)
            && let Err(error) = self.sockets.remove()
        {
            tracing::warn!("cannot remove the directory of sockets: {error}");
        }
        is_replaced.then_some(self.kept)
    }
}

/// Whether one of the signals that have come asks for the end.
async fn is_end_asked(signals: &mut Signals) -> bool {
    while let Ok(signal) = tokio::time::timeout(HEARD, signals.next()).await {
        if !matches!(signal.number(), libc::SIGHUP | libc::SIGUSR2) {
            tracing::info!("ending, as {signal} asks for");
            return true;
        }
    }
    false
}

/// The API's rules as the operator has written them.
fn security(config: &Config, machine: &Machine) -> Security {
    let access = &config.api;
    let usual = Allowed::default();
    let advertised = config.advertise.as_ref().map(|address| host(address).to_owned());
    Security {
        own_uid: rustix::process::geteuid().as_raw(),
        socket_role: access.socket_role.unwrap_or(Role::Submit),
        submit: Allowed {
            drivers: access.submit_drivers.clone().map_or(usual.drivers, |names| names.into_iter().into_set()),
            volumes: access.submit_volumes.clone().map_or(usual.volumes, |names| names.into_iter().into_set()),
        },
        names: [machine.node.name.clone()].into_iter().chain(advertised).into_set(),
    }
}

/// The host of `host:port`, `[host]:port` or `host`.
fn host(address: &str) -> &str {
    match address.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => address.split(':').next().unwrap_or_default(),
    }
}

/// The id of the group whose members may connect to the unix sockets.
///
/// # Errors
/// A name that is not in `/etc/group`.
fn group(config: &Config) -> anyhow::Result<Option<u32>> {
    let Some(name) = &config.api.socket_group else { return Ok(None) };
    if let Ok(id) = name.parse() {
        return Ok(Some(id));
    }
    let all = std::fs::read_to_string("/etc/group").context("cannot read /etc/group")?;
    let found = all.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    found
        .map(Some)
        .with_context(|| format!("socket_group: there is no group {name:?} in /etc/group; make it, or write its id"))
}

/// What others reach the API by, if they do. An address that stands for all of them says nothing.
fn advertised(config: &Config, tcp: &[SocketAddr], tls_enabled: bool) -> Advertised {
    let first = tcp.first().filter(|address| !address.ip().is_unspecified());
    let http_addr = match (&config.advertise, tcp.first()) {
        (Some(address), Some(tcp))
            if host(address).len() + usize::from(address.starts_with('[')) * 2 == address.len() =>
        {
            format!("{address}:{}", tcp.port())
        }
        (Some(address), Some(_)) => address.clone(),
        _ => first.map(SocketAddr::to_string).unwrap_or_default(),
    };
    Advertised { http_addr, tls_enabled: tls_enabled && !tcp.is_empty() }
}

/// Refuses an address that others than this machine can reach without TLS.
fn reachable(address: SocketAddr, tls: bool) -> anyhow::Result<()> {
    if tls || address.ip().is_loopback() {
        return Ok(());
    }
    bail!(
        "{address}: beyond this machine the API needs TLS; write tls {{ http = true ... }} into the configuration, or listen on a \
         loopback address"
    )
}

/// A socket that listens already.
fn listening(fd: OwnedFd, tls: Option<&TlsAcceptor>) -> anyhow::Result<Listener> {
    let listener = Listener::from_fd(fd, tls.cloned())?;
    match listener.address() {
        Some(address) => reachable(address, tls.is_some()).map(|()| listener),
        None => Ok(listener),
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
    machine.networks = operator.config.networks(machine.networks);
    machine.env_denylist = operator.config.env_denylist.unwrap_or(machine.env_denylist);
    let node = Arc::make_mut(&mut machine.node);
    node.meta.extend(operator.config.meta);
    machine.ports = machine.ports.with(operator.networks, DYNAMIC_PORTS);
    machine.volumes = operator.volumes;
    if cgroups.regime == Regime::Off {
        let why = cgroups.why_off();
        tracing::warn!("{why}, so that memory and cpu limits of tasks are not enforced");
    }
    Ok((machine, plugins))
}

fn listen(address: &Address, tls: Option<&TlsAcceptor>, group: Option<u32>) -> anyhow::Result<Listener> {
    let listener = match address {
        Address::Unix(path) => {
            if let Some(dir) = path.parent().filter(|dir| !dir.exists()) {
                make_private(dir).with_context(|| format!("cannot make {}", dir.display()))?;
            }
            if let Some(group) = group {
                admit(path, group)?;
            }
            Listener::unix(path, group)
        }
        Address::Tcp(address) => {
            reachable(*address, tls.is_some()).context("--listen")?;
            Listener::tcp(*address, tls.cloned())
        }
    };
    listener.with_context(|| format!("cannot listen on {address}; give another --listen"))
}

/// Lets the members of a group through the directory of the socket, if it is one of this user that lets nobody through. They
/// cannot list it.
fn admit(socket: &Path, group: u32) -> anyhow::Result<()> {
    let Some(dir) = socket.parent() else { return Ok(()) };
    let let_through = || {
        let found = std::fs::metadata(dir)?;
        if found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o70 == 0 {
            std::os::unix::fs::chown(dir, None, Some(group))?;
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode((found.mode() & 0o7777) | 0o10))?;
        }
        std::io::Result::Ok(())
    };
    let_through().with_context(|| format!("cannot let the group {group} through {}", dir.display()))
}

fn make_private(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use super::super::address::address;
    use super::*;

    #[test]
    fn addresses_are_sockets_or_tcp() {
        assert_eq!(address("unix:///run/a.sock"), Ok(Address::Unix("/run/a.sock".into())));
        assert_eq!(address("tcp://127.0.0.1:4646"), Ok(Address::Tcp("127.0.0.1:4646".parse().unwrap())));
        assert_eq!(address("[::1]:1").unwrap().to_string(), "http://[::1]:1");
        for wrong in ["unix://run/a.sock", "localhost:4646", "", "tcp://127.0.0.1"] {
            assert!(address(wrong).is_err(), "{wrong}");
        }
        let refused = listen(&Address::Tcp("0.0.0.0:0".parse().unwrap()), None, None).unwrap_err();
        let refused = format!("{refused:#}");
        assert!(refused.contains("needs TLS"), "{refused}");
    }
}
