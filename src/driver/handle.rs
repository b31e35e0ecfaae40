//! What the drivers on an executor share: start one per task, keep track of them, end them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{DriverError, TaskConfig, TaskHandle};
use crate::cgroup::{CgroupFs, Regime, TaskCgroup};
use crate::executor::{Compute, Executor as _, ExecutorClient, ExecutorError, Isolation};
use crate::plugin::{Client, HclogLine, HostError, Launch, Program, role_environment};
use crate::spec::{ExitResult, LaunchSpec, Role, Signal, TaskStats};
use crate::sys::lock::lock;

/// How the log of a task's executor ends: `<task>-executor.out` in the allocation's folder.
pub const EXECUTOR_LOG: &str = "-executor.out";
/// How long the executor of an ended task may take to say so.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How long the leftovers of a lost executor may resist.
const SWEEP_PATIENCE: Duration = Duration::from_secs(10);

/// What the drivers need to know of this machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The cgroup hierarchies.
    pub cgroups: CgroupFs,
    /// The node's compute.
    pub compute: Compute,
    /// Folder of the executors' sockets; only its owner may enter it.
    pub socket_dir: PathBuf,
}

/// The tasks of one driver.
#[derive(Debug)]
pub(super) struct Tasks {
    isolation: Isolation,
    settings: Settings,
    tasks: Mutex<HashMap<String, Arc<Task>>>,
}

#[derive(Debug)]
struct Task {
    client: Mutex<Option<Client>>,
    executor: ExecutorClient,
    cgroup: PathBuf,
}

impl Tasks {
    pub(super) fn new(isolation: Isolation, settings: Settings) -> Tasks {
        Tasks { isolation, settings, tasks: Mutex::new(HashMap::new()) }
    }

    /// Whether tasks can be limited here; without root only where somebody delegated a cgroup.
    pub(super) fn has_cgroups(&self) -> bool {
        self.settings.cgroups.regime() != Regime::Off
    }

    /// Starts an executor and through it the task. The executor is gone when this fails.
    pub(super) async fn start(&self, task: &TaskConfig, spec: LaunchSpec) -> Result<TaskHandle, DriverError> {
        if lock(&self.tasks).contains_key(&task.id) {
            return Err(failed(format!("task with ID {:?} already started", task.id), false));
        }
        let started = self.start_executor(task).await;
        // An executor that was killed before it launched may have made the cgroup already.
        let client = started.inspect_err(|_| self.sweep_after_failure(&task.cgroup))?;
        let executor = ExecutorClient::new(client.channel());
        let launched = match client.reattach_config() {
            Ok(reattach) => executor.launch(spec).await.map(|_| reattach).map_err(launch_error),
            Err(error) => Err(executor_error(&error)),
        };
        let reattach = match launched {
            Ok(reattach) => reattach,
            Err(error) => {
                client.kill().await;
                self.sweep_after_failure(&task.cgroup);
                return Err(error);
            }
        };
        let handle = TaskHandle { reattach, cgroup: task.cgroup.clone() };
        let started = Task { client: Mutex::new(Some(client)), executor, cgroup: task.cgroup.clone() };
        lock(&self.tasks).insert(task.id.clone(), Arc::new(started));
        Ok(handle)
    }

    async fn start_executor(&self, task: &TaskConfig) -> Result<Client, DriverError> {
        // Beside the task's folder and not in it: the task cannot put a link in its place.
        let log_file = task.alloc_dir.join(format!("{}{EXECUTOR_LOG}", task.name));
        let config = serde_json::json!({
            "LogFile": log_file,
            "LogLevel": "debug",
            "FSIsolation": self.isolation == Isolation::Isolated,
            "Compute": { "tc": self.settings.compute.total_mhz, "nc": self.settings.compute.cores },
            "Prepare": { "Cgroup": task.cgroup },
        });
        let launch = Launch {
            args: &[OsString::from(config.to_string())],
            env: role_environment(),
            new_session: true,
            socket_dir: Some(&self.settings.socket_dir),
            log: Box::new(|line: HclogLine| tracing::debug!(message = %line.message, "executor")),
            ..Launch::new(Program::Own(Role::Executor))
        };
        launch.start().await.map_err(|error| executor_error(&error))
    }

    fn task(&self, id: &str) -> Result<Arc<Task>, DriverError> {
        lock(&self.tasks).get(id).cloned().ok_or(DriverError::TaskNotFound)
    }

    pub(super) async fn wait(&self, id: &str) -> Result<ExitResult, DriverError> {
        let state = self.task(id)?.executor.wait().await;
        match state {
            Ok(state) => Ok(state.exit.unwrap_or(ExitResult { exit_code: -1, ..ExitResult::default() })),
            Err(error) => Err(failed(format!("executor: error waiting on process: {error}"), true)),
        }
    }

    pub(super) async fn stop(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        let task = self.task(id)?;
        let signal = signal.map(|signal| signal.to_string()).unwrap_or_default();
        match task.executor.shutdown(&signal, timeout).await {
            // An executor that has gone has taken its task along.
            Ok(()) | Err(ExecutorError::PluginShutdown) => Ok(()),
            Err(error) => Err(failed(format!("executor Shutdown failed: {error}"), true)),
        }
    }

    pub(super) async fn signal(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        let result = self.task(id)?.executor.signal(signal.number()).await;
        result.map_err(|error| failed(error.to_string(), false))
    }

    pub(super) async fn stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        self.task(id)?.executor.stats().await.map_err(|error| failed(error.to_string(), true))
    }

    pub(super) async fn destroy(&self, id: &str, force: bool) -> Result<(), DriverError> {
        let task = self.task(id)?;
        let running = !force && tokio::time::timeout(ANSWER_PATIENCE, task.executor.wait()).await.is_err();
        if running {
            return Err(failed("cannot destroy running task".to_owned(), false));
        }
        // The executor kills what is left and removes the cgroup; when it is gone that falls to us below.
        if let Err(error) = task.executor.shutdown("", Duration::ZERO).await {
            tracing::debug!(%error, id, "executor Shutdown");
        }
        let client = lock(&task.client).take();
        if let Some(client) = client {
            client.kill().await;
        }
        lock(&self.tasks).remove(id);
        self.sweep(&task.cgroup)
    }

    /// The start's own error is the one to tell.
    fn sweep_after_failure(&self, cgroup: &Path) {
        if let Err(error) = self.sweep(cgroup) {
            tracing::warn!(%error, "cleaning up after a failed start");
        }
    }

    /// Nothing to do after an orderly end.
    fn sweep(&self, cgroup: &Path) -> Result<(), DriverError> {
        if cgroup.as_os_str().is_empty() || !self.has_cgroups() {
            return Ok(());
        }
        let deadline = Instant::now() + SWEEP_PATIENCE;
        let swept = TaskCgroup::open(&self.settings.cgroups, cgroup).and_then(|cgroup| cgroup.destroy(deadline));
        swept.map_err(|error| failed(format!("remove cgroup {}: {error}", cgroup.display()), true))
    }
}

fn failed(message: String, recoverable: bool) -> DriverError {
    DriverError::Failed { message, recoverable }
}

fn executor_error(error: &HostError) -> DriverError {
    failed(format!("failed to create executor: {error}"), true)
}

fn launch_error(error: ExecutorError) -> DriverError {
    match error {
        ExecutorError::CommandNotFound(text) => DriverError::CommandNotFound(text),
        ExecutorError::NotExecutable(text) => DriverError::CommandNotExecutable(text),
        ExecutorError::Invalid(text) => failed(text, false),
        ExecutorError::System(text) => DriverError::Unsupported(text),
        ExecutorError::PluginShutdown => failed("the executor ended while it launched the task".to_owned(), true),
    }
}

/// The launch that exec and `raw_exec` have in common.
pub(super) fn launch_spec(task: &TaskConfig, command: String, args: Vec<String>) -> LaunchSpec {
    LaunchSpec {
        command,
        args,
        env: task.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
        task_dir: task.alloc_dir.join(&task.name),
        resources: task.resources.clone(),
        resource_limits: !task.cgroup.as_os_str().is_empty(),
        cgroup: task.cgroup.clone(),
        logs: task.logs.clone(),
        ..LaunchSpec::default()
    }
}
