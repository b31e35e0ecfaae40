//! Tasks that are CSI plugins: their directories, mounts and socket before the start, and their health afterwards. Never calls a
//! plugin for a volume.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::error::SetupError;
use super::hook::Hook;
use super::setup::Setup;
use super::shared::Shared;
use super::volumes::HostVolume;
use crate::csi::{Client, CsiError, Instance, Plugins};
use crate::spec::{CsiPlugin, EventKind, Mount, Propagation, Task};
use crate::sys::task::spawn_blocking;

/// Nomad's name of the socket in `mount_dir`.
const SOCKET: &str = "csi.sock";
/// Where the plugin is to listen, for the task.
const ENDPOINT: &str = "CSI_ENDPOINT";
/// The host's devices: what a plugin attaches appears there while it runs.
const DEVICES: &str = "/dev";
/// The drivers whose tasks keep a `/dev` of their own: their cgroup lets them at no other device.
const OWN_DEVICES: [&str; 2] = ["exec", "java"];
/// How long the plugin may take to answer a probe, and the pause before the next one until it is healthy.
const PROBE: Duration = Duration::from_secs(5);
/// The pause between two probes of a healthy plugin.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// Makes the directories of the plugin, and gives them to the task.
pub(super) struct CsiPluginHook;

#[tonic::async_trait]
impl Hook<Setup> for CsiPluginHook {
    fn name(&self) -> &'static str {
        "csi_plugin_supervisor"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        let Some(plugin) = setup.task.csi_plugin.clone() else { return Ok(()) };
        let plugins = Arc::clone(&setup.shared.plugins);
        let driver_mounts = setup.driver_mounts;
        let (owner, of) = (setup.shared.alloc.to_string(), plugin.clone());
        let made = spawn_blocking(move || make(&plugins, &of, &owner, driver_mounts)).await;
        let made = made.unwrap_or_else(|error| Err(error.to_string()));
        let failed =
            |problem: String| SetupError::CsiPlugin { pos: plugin.pos.clone(), id: plugin.id.clone(), problem };
        setup.mounts.extend(made.map_err(failed)?);
        if driver_mounts && !OWN_DEVICES.contains(&setup.task.driver.as_str()) {
            let (task_path, host_path) = (DEVICES.to_owned(), PathBuf::from(DEVICES));
            setup.mounts.push(Mount { task_path, host_path, ..Mount::default() });
        }
        if !setup.task.env.contains_key(ENDPOINT) {
            let dir = if driver_mounts { PathBuf::from(&plugin.mount_dir) } else { socket_dir(setup) };
            let endpoint = (ENDPOINT.to_owned(), format!("unix://{}", dir.join(SOCKET).display()));
            for env in [&mut setup.env, &mut setup.bare_env] {
                env.extend([endpoint.clone()]);
            }
        }
        Ok(())
    }

    /// The plugin listens already, or is started with the steps of a start.
    async fn restore(&self, setup: &mut Setup) -> Result<(), SetupError> {
        self.run(setup).await
    }
}

fn socket_dir(setup: &Setup) -> PathBuf {
    setup.shared.plugins.socket_dir(setup.shared.alloc.as_str())
}

/// The mounts of a plugin; none for a driver whose tasks see the host's files.
fn make(plugins: &Plugins, plugin: &CsiPlugin, owner: &str, mounts: bool) -> Result<Vec<Mount>, String> {
    let sockets = plugins.socket_dir(owner);
    Client::check_path(&sockets.join(SOCKET)).map_err(|error| format!("{error}; choose a shorter --data-dir"))?;
    let failed = |error: io::Error| format!("cannot make its directories: {error}");
    let root = plugins.make_dirs(&plugin.id, owner).map_err(failed)?;
    if !mounts {
        return Ok(Vec::new());
    }
    let mount = |task_path: &str, host_path: &Path| {
        let found = HostVolume::open_exactly(host_path, false, false);
        found.map_err(|error| format!("{}: {error}", host_path.display()))?.bind(task_path, Propagation::Bidirectional)
    };
    Ok(vec![mount(&plugin.mount_dir, &sockets)?, mount(&plugin.stage_publish_base_dir, &root)?])
}

/// Probes the plugin of a task that has been started, and registers it while it runs, until the returned value is dropped.
pub(super) fn supervise(shared: &Arc<Shared>, number: usize, task: &Task, driver_mounts: bool) -> JoinSet<()> {
    let mut supervising = JoinSet::new();
    if let Some(plugin) = task.csi_plugin.clone() {
        let (shared, task) = (Arc::clone(shared), task.name.clone());
        let supervisor = Supervisor { shared, number, task, plugin, driver_mounts };
        supervising.spawn(crate::sys::task::boxed(async move { supervisor.run().await }));
    }
    supervising
}

/// The plugin has ended: it is registered no longer.
pub(super) fn ended(shared: &Shared, task: &Task) {
    let Some(plugin) = &task.csi_plugin else { return };
    if let Err(error) = shared.plugins.deregister(&plugin.id, shared.alloc.as_str()) {
        tracing::warn!(plugin = plugin.id, %error, "the registration of a plugin that has ended is not removed");
    }
    // What a killed plugin has left would refuse connections, and some plugins do not replace it.
    if let Err(error) = shared.plugins.remove_socket(shared.alloc.as_str(), SOCKET) {
        tracing::warn!(plugin = plugin.id, %error, "the socket of a plugin that has ended is not removed");
    }
}

struct Supervisor {
    shared: Arc<Shared>,
    number: usize,
    task: String,
    plugin: CsiPlugin,
    driver_mounts: bool,
}

impl Supervisor {
    async fn run(self) {
        if let Err(why) = self.begin().await {
            self.unhealthy(&why);
            let text = format!("CSI plugin did not become healthy before {:?}", self.plugin.health_timeout);
            self.shared.control.task(self.number).is_unhealthy(text);
            return;
        }
        self.healthy();
        let mut was_healthy = true;
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            match self.probe(PROBE).await {
                Ok(()) if !was_healthy => self.healthy(),
                Err(why) if was_healthy => self.unhealthy(&why),
                _ => continue,
            }
            was_healthy = !was_healthy;
        }
    }

    /// Waits until the plugin is healthy, and registers it.
    async fn begin(&self) -> Result<(), String> {
        let deadline = Instant::now() + self.plugin.health_timeout;
        loop {
            let probed = Instant::now();
            let left = deadline.saturating_duration_since(probed);
            match self.probe(left.min(PROBE)).await {
                Ok(()) => break,
                Err(why) if Instant::now() >= deadline => return Err(why),
                Err(_) => tokio::time::sleep_until((probed + PROBE).min(deadline)).await,
            }
        }
        let client = self.client().map_err(|error| error.to_string())?;
        let info = timeout(PROBE, client.info()).await;
        let info = info.map_err(|_| "no answer to GetPluginInfo".to_owned())?.map_err(|error| error.to_string())?;
        let host = self.shared.plugins.root(&self.plugin.id);
        let instance = Instance {
            id: self.plugin.id.clone(),
            kind: self.plugin.kind,
            owner: self.shared.alloc.to_string(),
            socket: client.socket().to_owned(),
            plugin: if self.driver_mounts { (&self.plugin.stage_publish_base_dir).into() } else { host.clone() },
            host,
            provider: info.provider,
            version: info.version,
            since: SystemTime::now(),
        };
        let plugins = Arc::clone(&self.shared.plugins);
        let registered = spawn_blocking(move || plugins.register(&instance)).await;
        let registered = registered.unwrap_or_else(|error| Err(io::Error::other(error)));
        registered.map_err(|error| format!("cannot register it: {error}"))
    }

    fn client(&self) -> Result<Client, CsiError> {
        Client::new(&self.shared.plugins.socket_dir(self.shared.alloc.as_str()).join(SOCKET))
    }

    /// A client waits for a socket that is not there yet, but no longer than `patience`.
    async fn probe(&self, patience: Duration) -> Result<(), String> {
        let client = self.client().map_err(|error| error.to_string())?;
        match timeout(patience, client.probe()).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err("the plugin says that it is not ready".to_owned()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer to Probe at {} within {patience:?}", client.socket().display())),
        }
    }

    fn healthy(&self) {
        let message = format!("plugin: {}", self.plugin.id);
        self.shared.event(&self.task, EventKind::PluginHealthy, message, &[]);
    }

    fn unhealthy(&self, why: &str) {
        self.shared.event(&self.task, EventKind::PluginUnhealthy, format!("Error: {why}"), &[]);
    }
}
