//! A driver in an external plugin, which is restarted when it dies. The new plugin process recovers the tasks of the old one.
//! This module also does what an agent does for a task in addition to the plugin: it creates the cgroup and runs the logmon
//! that reads the task's output.
//!
//! ```text
//!   present ── its process ends ─▶ absent ── the catalog starts it again ─▶ its tasks are recovered ─▶ present
//! ```

use std::fmt;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::sync::{broadcast, watch};

use super::catalog::{Bond, CatalogError, Config, Found, Kept, Log};
use super::failed;
use super::{
    Capabilities, Driver, DriverClient, DriverError, ExecStreaming, ExecTaskResult, ExecTaskStreamingRaw, Fingerprint,
    FsIsolation, Health, NetworkIsolation, NodeConfig, Settings, TaskConfig, TaskEvent, TaskHandle, TaskStatus,
};
use crate::cgroup::{Regime, TaskCgroup};
use crate::executor::{ExecRequests, ExecResponses};
use crate::logs::{LogMonitor as _, StartConfig, client};
use crate::plugin::{self, Launch, Program, Reattach, role_environment};
use crate::spec::collections::BTreeMap;
use crate::spec::{DriverConfig, ExitResult, LogCollection, Resources, Role, Signal, TaskStats, json};
use crate::sys::lock::lock;
use crate::sys::task::JoinHandle;
use crate::sys::{self, processes};
use crate::wire::hclspec::Spec;

/// The port range that plugins get for helpers that listen on TCP: Nomad's.
pub const EXECUTOR_PORTS: (u32, u32) = (14000, 14512);
/// How long a call waits for the next process of a plugin that has ended.
const ABSENCE: Duration = Duration::from_mins(2);
/// Timeout for removing a task's cgroup that still has processes.
const REMOVAL: Duration = Duration::from_secs(10);
/// The parent cgroup in which Nomad's drivers look for a task's cgroup on v1.
const V1_PARENT: &str = "nomad";
/// Capacity of the event queue for a slow listener.
const EVENTS: usize = 256;
/// Where a task writes its output when it is not collected.
const NOWHERE: &str = "/dev/null";

/// A driver plugin with the interface of the internal drivers; see the module.
pub struct ExternalDriver {
    name: String,
    version: String,
    /// The first process of the plugin, for answers that do not differ between processes.
    first: Arc<DriverClient>,
    /// The plugin, once its tasks are recovered; `None` between two processes.
    present: watch::Receiver<Option<Arc<DriverClient>>>,
    tasks: Arc<Tasks>,
    settings: Settings,
    bond: Bond,
    kept: Mutex<Option<Kept>>,
    follower: JoinHandle<()>,
}

/// The plugin's tasks, by id.
struct Tasks {
    name: String,
    known: Mutex<BTreeMap<String, Known>>,
    events: broadcast::Sender<TaskEvent>,
}

struct Known {
    config: TaskConfig,
    /// The handle that the plugin returned for recovery.
    handle: Vec<u8>,
    /// Why a later process of the plugin could not recover it.
    lost: Option<String>,
    helpers: Helpers,
}

/// What was created for a task in addition to the plugin's part.
#[derive(Default)]
struct Helpers {
    cgroup: Option<TaskCgroup>,
    logmon: Option<plugin::Client>,
}

/// The state that an owner keeps who recovers the task later.
#[derive(Serialize, Deserialize)]
struct State {
    handle: Vec<u8>,
    logmon: Option<Reattach>,
}

impl fmt::Debug for ExternalDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalDriver").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for ExternalDriver {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

/// Why the tasks of a driver with these capabilities cannot have here what a Nomad agent gives them.
fn unfit(capabilities: &Capabilities) -> Option<&'static str> {
    match capabilities.fs_isolation {
        FsIsolation::Chroot => Some(
            "it wants a copy of the host's programs in the directory of each task, which only a Nomad agent makes; use the driver \
             \"exec\" for tasks with a root of their own",
        ),
        FsIsolation::Unveil => Some(
            "its tasks see the host through a filter of paths, for which only a Nomad agent mounts their directories; use the \
             driver \"exec\" with its key unveil",
        ),
        FsIsolation::None | FsIsolation::Image if capabilities.dynamic_workload_users => Some(
            "it wants a user of its own for each task, which only a Nomad agent allocates; use the driver \"exec\"",
        ),
        FsIsolation::None | FsIsolation::Image => None,
    }
}

impl ExternalDriver {
    /// Starts a plugin whose configuration was checked. With `outlives` the readers of its tasks' output outlive this process,
    /// and the next process recovers the tasks; the plugin itself ends with this process in both cases.
    ///
    /// # Errors
    /// See [`CatalogError`]; the plugin is gone then.
    pub async fn start(
        found: Found,
        config: Config,
        settings: Settings,
        outlives: bool,
        log: Log,
    ) -> Result<ExternalDriver, CatalogError> {
        let sockets = Some(settings.socket_dir.clone());
        let found = found.bound(Bond { dies_with_us: true, sockets: sockets.clone() });
        let bond = Bond { dies_with_us: !outlives, sockets };
        let node = NodeConfig { compute: Some(settings.compute), ports: EXECUTOR_PORTS };
        let instance = found.start(&config, &node, &log).await?;
        let first = Arc::clone(instance.driver());
        let (name, version) = (first.name().to_owned(), first.version().to_owned());
        if let Some(reason) = unfit(&first.capabilities()) {
            instance.end().await;
            return Err(CatalogError::Unfit { name, reason: reason.to_owned() });
        }
        let kept = found.keep(instance, config, node, log);
        let (events, _) = broadcast::channel(EVENTS);
        let tasks = Arc::new(Tasks { name: name.clone(), known: Mutex::default(), events });
        let (ready, present) = watch::channel(Some(Arc::clone(&first)));
        let follower = crate::sys::task::spawn(follow(Arc::clone(&tasks), kept.driver(), ready));
        let kept = Mutex::new(Some(kept));
        Ok(ExternalDriver { name, version, first, present, tasks, settings, bond, kept, follower })
    }

    /// Ends the plugin with Shutdown. Its tasks continue to run.
    pub async fn end(&self) {
        let kept = lock(&self.kept).take();
        if let Some(kept) = kept {
            kept.end().await;
        }
    }

    fn gone(&self) -> DriverError {
        let name = &self.name;
        failed(format!("the driver plugin {name} has ended, and did not come back within {ABSENCE:?}"), true)
    }

    /// The plugin; waits for its restart if it has ended.
    async fn present(&self) -> Result<Arc<DriverClient>, DriverError> {
        let mut present = self.present.clone();
        let there = tokio::time::timeout(ABSENCE, present.wait_for(Option::is_some)).await;
        there.ok().and_then(Result::ok).and_then(|there| there.clone()).ok_or_else(|| self.gone())
    }

    /// Waits until this process of the plugin is known to have ended.
    async fn absent(&self, was: &Arc<DriverClient>) -> Result<(), DriverError> {
        let mut present = self.present.clone();
        let is_another = |now: &Option<Arc<DriverClient>>| now.as_ref().is_none_or(|now| !Arc::ptr_eq(now, was));
        let ended = tokio::time::timeout(ABSENCE, present.wait_for(is_another)).await;
        ended.ok().and_then(Result::ok).map(drop).ok_or_else(|| self.gone())
    }

    /// Calls the plugin about a task that it knows; retries if the plugin was killed during the call, so the call has to be
    /// idempotent.
    async fn call<T, F>(&self, id: &str, call: impl Fn(Arc<DriverClient>) -> F + Send + Sync) -> Result<T, DriverError>
    where
        F: Future<Output = Result<T, DriverError>> + Send,
    {
        loop {
            let driver = self.present().await?;
            self.tasks.check(id)?;
            match call(Arc::clone(&driver)).await {
                Err(DriverError::PluginShutdown) => self.absent(&driver).await?,
                answer => return answer,
            }
        }
    }

    /// Sets where a task's output goes: to FIFOs that a logmon reads, unless the plugin collects it itself.
    async fn collect(&self, task: &mut TaskConfig, helpers: &mut Helpers) -> Result<(), DriverError> {
        let Some(logs) = task.logs.take() else {
            (task.stdout_path, task.stderr_path) = (NOWHERE.to_owned(), NOWHERE.to_owned());
            return Ok(());
        };
        let wanted = collection(&task.name, &logs);
        task.stdout_path = wanted.stdout_fifo.to_string_lossy().into_owned();
        task.stderr_path = wanted.stderr_fifo.to_string_lossy().into_owned();
        if self.first.capabilities().disable_log_collection {
            return Ok(());
        }
        let launch = Launch {
            env: role_environment().into_iter().chain(self.bond.mark()).collect(),
            new_session: true,
            dies_with_us: self.bond.dies_with_us,
            socket_dir: self.bond.sockets.as_deref(),
            ..Launch::new(Program::Own(Role::Logmon))
        };
        let logmon = launch.start().await.map_err(|e| failed(format!("start the task's logmon: {e}"), true))?;
        let started = client::Client::new(logmon.channel()).start(wanted).await;
        helpers.logmon = Some(logmon);
        started.map_err(|e| failed(e.to_string(), true))
    }

    /// The task's cgroup, relative to the root of each hierarchy; `None` for a task without one.
    fn cgroup_of(&self, task: &TaskConfig) -> Option<PathBuf> {
        if task.cgroup.as_os_str().is_empty() || self.settings.cgroups.regime() == Regime::Off {
            return None;
        }
        Some(self.own_cgroup(&task.alloc_id, &task.name).unwrap_or_else(|| task.cgroup.clone()))
    }

    /// Creates the cgroup that an agent would have created, and enters it into the task's configuration.
    async fn place(&self, task: &mut TaskConfig, helpers: &mut Helpers) -> Result<(), DriverError> {
        let Some(relative) = self.cgroup_of(task) else { return Ok(()) };
        let (cgroups, cores) = (self.settings.cgroups.clone(), task.resources.cpuset_cpus.clone());
        let path = relative.clone();
        let made = crate::sys::task::spawn_blocking(move || {
            TaskCgroup::create(&cgroups, &path, &Resources { cpuset_cpus: cores, ..Resources::default() })
        });
        let made = made.await.map_err(|e| failed(e.to_string(), true))?;
        helpers.cgroup = Some(made.map_err(|e| failed(format!("make the task's cgroup: {e}"), true))?);
        let is_shown = |tree: &&crate::cgroup::Hierarchy| tree.controllers.is_empty() || tree.has("cpuset");
        let shown = self.settings.cgroups.hierarchies().find(is_shown);
        task.cpuset_cgroup = shown.map(|tree| tree.mount_point.join(relative)).unwrap_or_default();
        Ok(())
    }

    /// Starts a task together with its helpers.
    async fn begin(&self, config: &mut TaskConfig, helpers: &mut Helpers) -> Result<TaskHandle, DriverError> {
        let driver = self.present().await?;
        self.place(config, helpers).await?;
        self.collect(config, helpers).await?;
        match driver.start_task(config).await {
            Err(DriverError::PluginShutdown) => {
                let name = &self.name;
                Err(failed(format!("the driver plugin {name} has ended while it started the task"), true))
            }
            started => started,
        }
    }
}

impl Tasks {
    /// Checks that the task is known and was not lost.
    fn check(&self, id: &str) -> Result<(), DriverError> {
        match lock(&self.known).get(id) {
            None => Err(DriverError::TaskNotFound),
            Some(Known { lost: Some(why), .. }) => Err(failed(
                format!("the driver plugin {} was started again and did not find the task: {why}", self.name),
                true,
            )),
            Some(_) => Ok(()),
        }
    }

    /// Lets a new process of the plugin recover the tasks; `false` when that process has ended, too.
    async fn recover(&self, driver: &DriverClient) -> bool {
        let known: Vec<_> = {
            let known = lock(&self.known);
            known.iter().map(|(id, task)| (id.clone(), task.config.clone(), task.handle.clone())).collect()
        };
        for (id, config, handle) in known {
            let recovered = driver.recover_task(&config, &handle).await;
            if matches!(recovered, Err(DriverError::PluginShutdown)) {
                return false;
            }
            let lost = recovered.err().map(|error| error.to_string());
            let message = match &lost {
                None => format!("The driver plugin {} was started again and has found the task", self.name),
                Some(why) => {
                    format!("The driver plugin {} was started again and did not find the task: {why}", self.name)
                }
            };
            if let Some(task) = lock(&self.known).get_mut(&id) {
                task.lost = lost;
            }
            self.tell(&config, message);
        }
        true
    }

    fn tell_all(&self, message: &str) {
        let known: Vec<TaskConfig> = lock(&self.known).values().map(|task| task.config.clone()).collect();
        for config in known {
            self.tell(&config, message.to_owned());
        }
    }

    fn tell(&self, config: &TaskConfig, message: String) {
        // There may be no subscriber if the task has just ended.
        let _ = self.events.send(TaskEvent::of(config, message));
    }
}

impl Helpers {
    /// Ends the helpers: the rest of the FIFOs is read, the processes still in the cgroup are killed.
    async fn end(self) -> Result<(), DriverError> {
        let mut left = Ok(());
        if let Some(cgroup) = self.cgroup {
            let destroyed = crate::sys::task::spawn_blocking(move || cgroup.destroy(Instant::now() + REMOVAL)).await;
            left = match destroyed {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(failed(format!("remove the task's cgroup: {error}"), false)),
                Err(error) => Err(failed(error.to_string(), false)),
            };
        }
        if let Some(logmon) = self.logmon {
            if let Err(error) = client::Client::new(logmon.channel()).stop().await {
                tracing::debug!(%error, "a logmon is ended before its time");
            }
            logmon.kill().await;
        }
        left
    }
}

/// The logmon configuration of a task: what to collect and from where.
fn collection(task: &str, logs: &LogCollection) -> StartConfig {
    let fifo = |stream: &str| logs.dir.join(format!(".{task}.{stream}.fifo"));
    StartConfig {
        log_dir: logs.dir.clone(),
        stdout_file: logs.stdout_file.clone(),
        stderr_file: logs.stderr_file.clone(),
        max_files: logs.max_files,
        max_file_size_mb: u32::try_from(logs.max_file_size_bytes >> 20).unwrap_or(u32::MAX).max(1),
        stdout_fifo: fifo("stdout"),
        stderr_fifo: fifo("stderr"),
    }
}

/// Reaps the helpers of a plugin that was killed, which are children of this process where it is a subreaper. Otherwise the
/// next plugin process would take the zombie of a helper for a running process.
fn wait_for_helpers() {
    let children = processes::own_children().unwrap_or_default();
    for pid in children.into_iter().filter(|pid| !sys::children::is_own(*pid)) {
        // A process that is gone by now needs no reaping.
        let Ok(pidfd) = sys::process::open_pidfd(pid) else { continue };
        let Ok(ended) = sys::watch::register(Arc::new(pidfd), Interest::READABLE) else { continue };
        sys::task::spawn(async move {
            let _ended = ended.readable().await;
            // Another watcher may have reaped it already.
            let _reaped = sys::process::try_wait(ended.get_ref().as_fd());
        });
    }
}

/// Recovers the tasks in each new process of the plugin before that process is published, and forwards its events.
async fn follow(
    tasks: Arc<Tasks>,
    mut latest: watch::Receiver<Option<Arc<DriverClient>>>,
    ready: watch::Sender<Option<Arc<DriverClient>>>,
) {
    let mut is_first = true;
    loop {
        let Some(driver) = latest.borrow_and_update().clone() else {
            ready.send_replace(None);
            wait_for_helpers();
            tasks.tell_all(&format!(
                "The driver plugin {} has ended; the task is looked for when it runs again",
                tasks.name
            ));
            if latest.changed().await.is_err() {
                return;
            }
            continue;
        };
        let events = driver.task_events();
        if is_first || tasks.recover(&driver).await {
            ready.send_replace(Some(driver));
        }
        is_first = false;
        let passing = async {
            let Some(mut events) = events else { return std::future::pending().await };
            loop {
                match events.recv().await {
                    // There may be no subscriber if the task has just ended.
                    Ok(event) => _ = tasks.events.send(event),
                    Err(broadcast::error::RecvError::Lagged(_)) => {}
                    Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
                }
            }
        };
        tokio::select! {
            changed = latest.changed() => if changed.is_err() { return },
            () = passing => {}
        }
    }
}

#[tonic::async_trait]
impl Driver for ExternalDriver {
    fn name(&self) -> &str {
        &self.name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn is_external(&self) -> bool {
        true
    }

    /// The name that an agent of version 1.7 and later gives it: on v1 the drivers look for it there.
    fn own_cgroup(&self, alloc_id: &str, task: &str) -> Option<PathBuf> {
        let is_v1 = self.settings.cgroups.regime() == Regime::V1;
        is_v1.then(|| Path::new(V1_PARENT).join(format!("{alloc_id}.{task}")))
    }

    fn config_schema(&self) -> Option<Spec> {
        self.first.config_schema()
    }

    /// A plugin is configured when it is started.
    fn set_config(&self, config: &DriverConfig, node: Option<&NodeConfig>) -> Result<(), DriverError> {
        self.first.set_config(config, node)
    }

    fn task_config_schema(&self) -> Spec {
        self.first.task_config_schema()
    }

    fn capabilities(&self) -> Capabilities {
        self.first.capabilities()
    }

    async fn fingerprint(&self) -> Fingerprint {
        let present = self.present.borrow().clone();
        match present {
            Some(driver) => driver.fingerprint().await,
            None => Fingerprint::without(Health::Unhealthy, &DriverError::PluginShutdown.to_string()),
        }
    }

    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        self.first.validate(config)
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        let (mut config, mut helpers) = (task.clone(), Helpers::default());
        let TaskHandle { driver_state: handle, network, .. } = match self.begin(&mut config, &mut helpers).await {
            Ok(started) => started,
            Err(error) => {
                if let Err(error) = helpers.end().await {
                    tracing::warn!(%error, task = task.name, "what was made for a task that did not start");
                }
                return Err(error);
            }
        };
        let logmon = helpers.logmon.as_ref().and_then(|logmon| logmon.reattach_config().ok());
        let state = State { handle: handle.clone(), logmon: logmon.clone() };
        let driver_state = crate::spec::json::json!(state).to_string().into_bytes();
        lock(&self.tasks.known).insert(task.id.clone(), Known { config, handle, lost: None, helpers });
        Ok(TaskHandle { driver_state, executor: logmon, network })
    }

    async fn recover_task(&self, task: &TaskConfig, driver_state: &[u8]) -> Result<(), DriverError> {
        if lock(&self.tasks.known).contains_key(&task.id) {
            return Ok(());
        }
        let unread = |e: &dyn fmt::Display| failed(format!("the task's record: {e}"), false);
        let text = std::str::from_utf8(driver_state).map_err(|e| unread(&e))?;
        let State { handle, logmon } = json::from_str(text).map_err(|e| unread(&e))?;
        let mut config = task.clone();
        let cgroup = self.cgroup_of(task).and_then(|path| TaskCgroup::open(&self.settings.cgroups, &path).ok());
        let mut helpers = Helpers { cgroup, logmon: None };
        match logmon {
            Some(kept) if let Ok(logmon) = plugin::Client::reattach(kept.clone()).await => {
                helpers.logmon = Some(logmon);
            }
            _ => self.collect(&mut config, &mut helpers).await?,
        }
        loop {
            let driver = self.present().await?;
            match driver.recover_task(&config, &handle).await {
                // It was killed meanwhile: the next one is asked.
                Err(DriverError::PluginShutdown) => self.absent(&driver).await?,
                recovered => break recovered?,
            }
        }
        lock(&self.tasks.known).insert(task.id.clone(), Known { config, handle, lost: None, helpers });
        Ok(())
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        self.call(id, |driver| async move { driver.wait_task(id).await }).await
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        self.call(id, |driver| async move { driver.stop_task(id, timeout, signal).await }).await
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        if !lock(&self.tasks.known).contains_key(id) {
            return Err(DriverError::TaskNotFound);
        }
        let destroyed = self.call(id, |driver| async move { driver.destroy_task(id, force).await }).await;
        // The cgroup of a task that the plugin no longer knows is emptied by killing its processes.
        let is_lost = self.tasks.check(id).is_err() || self.present.borrow().is_none();
        if let Err(error) = destroyed
            && !matches!(error, DriverError::TaskNotFound)
            && !is_lost
        {
            return Err(error);
        }
        let Some(known) = lock(&self.tasks.known).remove(id) else { return Ok(()) };
        let held = known.helpers.cgroup.is_some();
        known.helpers.end().await?;
        if is_lost && !held {
            let name = &self.name;
            return Err(failed(
                format!("the driver plugin {name} does not know the task any more, which may still run"),
                false,
            ));
        }
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<TaskStatus, DriverError> {
        self.call(id, |driver| async move { driver.inspect_task(id).await }).await
    }

    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        self.call(id, |driver| async move { driver.task_stats(id).await }).await
    }

    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        self.present().await?.signal_task(id, signal).await
    }

    async fn exec_task(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecTaskResult, DriverError> {
        self.present().await?.exec_task(id, command, timeout).await
    }

    fn exec_streaming(&self) -> ExecStreaming<'_> {
        if self.capabilities().exec { ExecStreaming::Raw(self) } else { ExecStreaming::None }
    }

    fn task_events(&self) -> Option<broadcast::Receiver<TaskEvent>> {
        Some(self.tasks.events.subscribe())
    }

    async fn create_network(&self, alloc_id: &str, hostname: &str) -> Result<(NetworkIsolation, bool), DriverError> {
        self.present().await?.create_network(alloc_id, hostname).await
    }

    async fn destroy_network(&self, alloc_id: &str, network: &NetworkIsolation) -> Result<(), DriverError> {
        self.present().await?.destroy_network(alloc_id, network).await
    }
}

#[tonic::async_trait]
impl ExecTaskStreamingRaw for ExternalDriver {
    async fn exec_task_streaming(&self, id: &str, requests: ExecRequests) -> Result<ExecResponses, DriverError> {
        self.present().await?.exec_task_streaming(id, requests).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_that_need_a_nomad_agent_are_refused() {
        let why = |fs_isolation, dynamic_workload_users| {
            unfit(&Capabilities { fs_isolation, dynamic_workload_users, ..Capabilities::default() })
        };
        assert_eq!((why(FsIsolation::None, false), why(FsIsolation::Image, false)), (None, None));
        for (isolation, has_users) in [
            (FsIsolation::None, true),
            (FsIsolation::Image, true),
            (FsIsolation::Unveil, false),
            (FsIsolation::Chroot, false),
        ] {
            assert!(why(isolation, has_users).is_some_and(|why| why.contains("only a Nomad agent")), "{isolation:?}");
        }
    }
}
