//! Task drivers: turn a task into calls on an executor. Never touches the kernel.

mod capabilities;
mod config;
mod exec;
mod handle;
mod raw_exec;

pub use exec::ExecDriver;
pub use handle::{EXECUTOR_LOG, Settings};
pub use raw_exec::RawExecDriver;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plugin::Reattach;
use crate::spec::{Device, DriverConfig, ExitResult, LogCollection, Mount, Resources, TaskStats};

/// How a driver isolates the file system of a task; decides which paths the task's environment names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsIsolation {
    /// The task sees the host's files; `NOMAD_*_DIR` are host paths.
    None,
    /// The task has its own root; `NOMAD_*_DIR` are `/alloc`, `/local`, `/secrets`.
    Image,
}

/// A task as a driver gets it: everything interpolated, every path decided.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskConfig {
    /// `<alloc id>/<task>/<8 hex digits>`, new for each start.
    pub id: String,
    /// Task name.
    pub name: String,
    /// Allocation id.
    pub alloc_id: String,
    /// The driver's own configuration, interpolated.
    pub config: DriverConfig,
    /// Complete environment.
    pub env: BTreeMap<String, String>,
    /// User to run as; empty is the driver's default.
    pub user: String,
    /// Limits.
    pub resources: Resources,
    /// Cgroup of the task relative to each hierarchy's root; empty for none.
    pub cgroup: PathBuf,
    /// The allocation's folder: `<data>/alloc/<alloc id>`. The task's own folder is `<alloc_dir>/<name>`.
    pub alloc_dir: PathBuf,
    /// Extra bind mounts.
    pub mounts: Vec<Mount>,
    /// Extra devices.
    pub devices: Vec<Device>,
    /// Where the output is collected; `None` discards it.
    pub logs: Option<LogCollection>,
}

/// How to find a task again after this process has been replaced, or to clean up after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskHandle {
    /// The task's executor and where it listens.
    pub reattach: Reattach,
    /// The task's cgroup relative to each hierarchy's root; empty for none.
    pub cgroup: PathBuf,
}

/// Why a driver could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The task's `config` block is wrong: which key, what and the mend.
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

/// A task driver: Nomad's driver interface, as far as tasks of one machine need it.
#[tonic::async_trait]
pub trait Driver: Send + Sync {
    /// Nomad's name of the driver.
    fn name(&self) -> &'static str;

    /// See [`FsIsolation`].
    fn fs_isolation(&self) -> FsIsolation;

    /// Checks a task's `config` block without starting anything.
    ///
    /// # Errors
    /// [`DriverError::Config`], its text led by the position in the job file.
    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError>;

    /// Starts a task. Nothing is left behind when it fails.
    ///
    /// # Errors
    /// See [`DriverError`].
    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError>;

    /// Waits for the task's main process; any number of callers, before and after its end.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` when the executor is lost.
    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError>;

    /// Sends `signal` (the driver's default when `None`), waits up to `timeout`, then kills everything.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`] or `Failed`.
    async fn stop_task(
        &self,
        id: &str,
        timeout: Duration,
        signal: Option<crate::spec::Signal>,
    ) -> Result<(), DriverError>;

    /// Sends a signal to the task's main process.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`] or `Failed`.
    async fn signal_task(&self, id: &str, signal: crate::spec::Signal) -> Result<(), DriverError>;

    /// One sample of the task's resource use.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`] or `Failed`.
    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError>;

    /// Forgets an ended task and removes what it left; kills it first when `force`.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` when it still runs.
    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError>;
}
