//! Task drivers: turn a task into calls on an executor. Never touches the kernel.
//!
//! [`Driver`] is Nomad's driver interface. [`serve`] makes a Nomad plugin of one.

mod capabilities;
pub mod catalog;
mod client;
mod config;
mod convert;
pub mod docker;
mod exec;
mod external;
mod glob;
mod handle;
pub mod hclspec;
mod host_env;
mod host_ids;
mod ids;
mod isolated;
mod java;
mod kept_output;
mod left;
mod on_executor;
pub mod policy;
pub mod prelude;
mod raw_exec;
mod refused;
mod restrict;
mod service;
mod session;
mod shipping;
pub mod state;
mod strays;
mod streaming;
mod types;

pub use client::{Answers, DriverClient, PluginClient, PluginInfo, fingerprint_of, stats_of, wire_task};
pub use config::Reader;
pub use docker::DockerDriver;
pub use exec::ExecDriver;
pub use external::{EXECUTOR_PORTS, ExternalDriver};
pub use handle::{EXECUTOR_LOG, Host, Settings};
pub use host_env::DENIED as HOST_ENV_DENYLIST;
pub use host_ids::HostIdsConfig;
pub use isolated::IsolatedConfig;
pub use java::JavaDriver;
pub use kept_output::KeptOutput;
pub use on_executor::{Common, OnExecutor, Plan, log_sinks};
pub use raw_exec::RawExecDriver;
pub use service::{DriverService, serve};
pub use session::{ExecOptions, ExecStreaming, ExecTaskStreaming, ExecTaskStreamingRaw, TerminalSize};
pub use streaming::session;
pub use types::{
    Attribute, Capabilities, Dns, DriverNetwork, ExecTaskResult, FINGERPRINT_PERIOD, Fingerprint, FsIsolation, Health,
    NetworkIsolation, NetworkMode, NodeConfig, Port, TaskConfig, TaskEvent, TaskHandle, TaskState, TaskStatus,
};

use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::executor::NewLimits;
use crate::logs::ship::Stream;
use crate::spec::{DriverConfig, ExitResult, Signal, TaskStats};
use crate::wire::hclspec::Spec;

/// Why a driver could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The task's `config` block is wrong: which key, what and the fix.
    #[error("{0}")]
    Config(String),
    /// The task's command does not exist in its root (exit status 127 of `run`).
    #[error("{0}")]
    CommandNotFound(String),
    /// The command is there but cannot be executed (exit status 126 of `run`).
    #[error("{0}")]
    CommandNotExecutable(String),
    /// The machine or the caller's privileges do not allow it (exit status 125 of `run`).
    #[error("{0}")]
    Unsupported(String),
    /// The driver's process has ended or is ending: every call on a plugin reports this error.
    #[error("plugin is shut down")]
    PluginShutdown,
    /// The driver does not support this call.
    #[error("{0}")]
    NotSupported(String),
    /// There is no such task.
    #[error("task not found for given id")]
    TaskNotFound,
    /// Anything else; `recoverable` lets the restart policy try again.
    #[error("{message}")]
    Failed {
        /// What was being done, to what, and the cause.
        message: String,
        /// Whether another try may succeed.
        recoverable: bool,
    },
}

/// A failure whose cause is in the text.
fn failed(message: String, recoverable: bool) -> DriverError {
    DriverError::Failed { message, recoverable }
}

/// A task driver: Nomad's driver interface.
///
/// Only a name, a schema and the life cycle of a task have to be implemented; every other method has a default that reports the
/// feature as not supported. All calls may come concurrently and from any thread.
#[tonic::async_trait]
pub trait Driver: Send + Sync {
    /// Nomad's name of the driver.
    fn name(&self) -> &str;

    /// The driver's version, `major.minor.patch`.
    #[expect(clippy::unnecessary_literal_bound, reason = "another driver's version is not a literal")]
    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    /// Whether the users of a task with this configuration have host ids assigned to their allocation, and not the same ids as
    /// on the host. True also where it cannot be determined yet.
    fn has_own_ids(&self, _config: &DriverConfig) -> bool {
        false
    }

    /// Whether an external plugin does the work, which got its configuration when it was started.
    fn is_external(&self) -> bool {
        false
    }

    /// Whether its tasks can enter a network in the namespaces of a plain user ([`crate::net::join`]).
    fn enters_users_network(&self) -> bool {
        false
    }

    /// Whether followers of a task's log files may rely on [`TaskConfig::notices`].
    fn gives_notices(&self) -> bool {
        false
    }

    /// The cgroup, relative to each hierarchy's root, in which the driver puts a task of this name instead of the one it is
    /// given; `None` for a driver that does not choose.
    fn own_cgroup(&self, _alloc_id: &str, _task: &str) -> Option<PathBuf> {
        None
    }

    /// The schema of `config` in the agent's `plugin` block; `None` for a driver without configuration.
    fn config_schema(&self) -> Option<Spec> {
        None
    }

    /// Sets the configuration. An agent calls it several times, also on plugins that it starts only to query, and then without
    /// `node`: nothing long-lived may be started here.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    fn set_config(&self, _config: &DriverConfig, _node: Option<&NodeConfig>) -> Result<(), DriverError> {
        Ok(())
    }

    /// The schema of a task's `config` block.
    fn task_config_schema(&self) -> Spec {
        crate::wire::schema::object::<String>([])
    }

    /// See [`Capabilities`].
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Whether tasks can be started now, and attributes for the node. An agent gets it when it connects and every 30 s.
    async fn fingerprint(&self) -> Fingerprint {
        Fingerprint::healthy(self.name())
    }

    /// Called once, after the configuration was set or after a new agent process has reattached to this plugin.
    ///
    /// # Errors
    /// Any error that prevents the driver from working; the plugin is then ended.
    async fn init(&self) -> Result<(), DriverError> {
        Ok(())
    }

    /// Called before an agent ends the plugin. Tasks continue to run.
    async fn shutdown(&self) {}

    /// Checks a task's `config` block without starting anything.
    ///
    /// # Errors
    /// [`DriverError::Config`], its text prefixed with the position in the job file.
    fn validate(&self, _config: &DriverConfig) -> Result<(), DriverError> {
        Ok(())
    }

    /// Starts a task. When it fails, everything that it created has been removed.
    ///
    /// # Errors
    /// See [`DriverError`].
    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError>;

    /// Cancels a start of this task that is in progress: as long as nothing has been created, [`Driver::start_task`] returns
    /// soon with an error. Returns whether it will: a driver whose starts are quick need not support this, and an error of its
    /// start is then not a cancellation.
    fn give_up_start(&self, _id: &str) -> bool {
        false
    }

    /// Recovers a task that an earlier process of this driver started; succeeds when the task is already known. Never starts
    /// the task again. `task` is what the agent kept: without `config`.
    ///
    /// # Errors
    /// The task is gone (a process that reuses its pid must not be signalled), or the state cannot be decoded.
    async fn recover_task(&self, task: &TaskConfig, driver_state: &[u8]) -> Result<(), DriverError>;

    /// Waits for the task's main process; any number of callers, before and after its end.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` when the executor is lost.
    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError>;

    /// What the driver says about such an end, beside its numbers.
    fn exit_message(&self, _exit: &ExitResult) -> Option<String> {
        None
    }

    /// Sends `signal` (the driver's default when `None`), waits up to `timeout`, then kills everything.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`] or `Failed`.
    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError>;

    /// Forgets an ended task and removes its resources; with `force`, kills it first.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` when it still runs.
    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError>;

    /// The status of a task.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`].
    async fn inspect_task(&self, id: &str) -> Result<TaskStatus, DriverError>;

    /// One sample of the task's resource use.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`] or `Failed`.
    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError>;

    /// The signal to send for a name that no signal has: SIGINT, as Nomad's executors do.
    ///
    /// # Errors
    /// The driver refuses such a name.
    fn unknown_signal(&self, name: &str) -> Result<Signal, DriverError> {
        tracing::warn!(signal = name, "unknown signal to send to task, using SIGINT instead");
        Ok(Signal::INT)
    }

    /// Sends a signal to the task's main process.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`] or `Failed`.
    async fn signal_task(&self, _id: &str, _signal: Signal) -> Result<(), DriverError> {
        Err(DriverError::NotSupported("driver does not support signals".to_owned()))
    }

    /// Changes the limits of the running task at once; those of its next start are the job's again. When it fails, they are as
    /// before.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` for what is not a limit, or for less memory than the task holds.
    async fn update_task(&self, _id: &str, _limits: NewLimits) -> Result<(), DriverError> {
        Err(DriverError::NotSupported("driver does not support new limits for a running task".to_owned()))
    }

    /// Runs a command inside the task and waits for it; past `timeout` it is killed.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` when it could not be started. A command that fails is not an error.
    async fn exec_task(
        &self,
        _id: &str,
        _command: &[String],
        _timeout: Duration,
    ) -> Result<ExecTaskResult, DriverError> {
        Err(DriverError::NotSupported("driver does not support exec".to_owned()))
    }

    /// What the driver itself keeps of a task's output, for a task whose output nobody collects: from its beginning up to now, with
    /// `follow` until the task ends. `None` where it keeps nothing.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` for what is kept and cannot be read.
    async fn kept_output(&self, _id: &str, _stream: Stream, _follow: bool) -> Result<Option<KeptOutput>, DriverError> {
        Ok(None)
    }

    /// How the driver supports interactive sessions inside a task, if it does.
    fn exec_streaming(&self) -> ExecStreaming<'_> {
        ExecStreaming::None
    }

    /// Events of tasks from now on; `None` for a driver without events.
    fn task_events(&self) -> Option<broadcast::Receiver<TaskEvent>> {
        None
    }

    /// Creates the network of an allocation; the flag says whether it is new. Called only with
    /// [`Capabilities::must_create_network`].
    ///
    /// # Errors
    /// See [`DriverError`].
    async fn create_network(&self, _alloc_id: &str, _hostname: &str) -> Result<(NetworkIsolation, bool), DriverError> {
        Err(DriverError::NotSupported("CreateNetwork RPC not supported by driver".to_owned()))
    }

    /// Removes such a network; succeeds if it does not exist.
    ///
    /// # Errors
    /// See [`DriverError`].
    async fn destroy_network(&self, _alloc_id: &str, _network: &NetworkIsolation) -> Result<(), DriverError> {
        Err(DriverError::NotSupported("DestroyNetwork RPC not supported by driver".to_owned()))
    }
}
