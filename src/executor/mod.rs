//! Owns one task's processes: starts them, waits, signals, measures, kills every last one. Never knows allocations.

mod adopt;
mod client;
mod convert;
pub(crate) mod held;
mod isolated;
mod running;
mod service;
mod session;
mod start;
mod stats;
mod streams;
mod supervisor;
mod sweep;
mod universal;
mod update;

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio_stream::Stream;

pub use client::ExecutorClient;
pub use convert::{
    launch_from, launch_to_bytes, spec_device, spec_mount, spec_resources, spec_stats, system_time, timestamp,
    wire_device, wire_mount, wire_stats,
};
pub use running::Isolation;
pub use service::ExecutorService;
pub use supervisor::{Compute, LocalExecutor};

use crate::spec::{LaunchSpec, MemoryLimits, OutputHealth, ProcessState, TaskStats};
use crate::wire::drivers::{ExecTaskStreamingRequest, ExecTaskStreamingResponse};

/// The requests of a session's caller, as they are on the wire.
pub type ExecRequests = Pin<Box<dyn Stream<Item = Result<ExecTaskStreamingRequest, tonic::Status>> + Send>>;
/// The responses to a session's caller, as they are on the wire.
pub type ExecResponses = Pin<Box<dyn Stream<Item = Result<ExecTaskStreamingResponse, tonic::Status>> + Send>>;

/// What the executor service answers to Version.
pub const VERSION: &str = "2.0.0";

/// The executor's error for a second launch.
pub const ALREADY_LAUNCHED: &str = "this executor has launched its task already";

/// Why an executor could not serve a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// The command does not exist.
    #[error("{0}")]
    CommandNotFound(String),
    /// The command exists but cannot be executed.
    #[error("{0}")]
    NotExecutable(String),
    /// The request is invalid: no such user, signal or path, or a second launch.
    #[error("{0}")]
    Invalid(String),
    /// The kernel or the privileges do not allow it.
    #[error("{0}")]
    System(String),
    /// The caller's deadline has passed.
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    /// The executor's process has ended.
    #[error("plugin is shut down")]
    PluginShutdown,
}

/// The result of a command inside the task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOutput {
    /// The last 4096 bytes of stdout and stderr, mixed as they were written.
    pub output: Vec<u8>,
    /// Its exit status; `128 + N` when signal N ended it; -1 when it was killed at the deadline.
    pub exit_code: i32,
}

/// A new limit of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuQuota {
    /// Removes the limit.
    Unlimited,
    /// This much of each period, in microseconds; the period is 1000 to 1000000, and the quota at least 1000.
    Limited {
        /// CPU time of all cores together.
        quota_us: u64,
        /// The period in which it may be used.
        period_us: u64,
    },
}

/// Limits for a running task; a limit that is `None` is not changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NewLimits {
    /// CPU shares in Nomad's unit (MHz); 0 is the kernel's default.
    pub cpu_shares: Option<u64>,
    /// CPU time.
    pub cpu_quota: Option<CpuQuota>,
    /// Memory.
    pub memory: Option<MemoryLimits>,
    /// Cores as a kernel cpu list. If the host made a cpuset for the task, only the host changes its cores.
    pub cpuset_cpus: Option<String>,
    /// Processes and threads at once; 0 is not a limit.
    pub pids_max: Option<u64>,
}

/// Owns one task: Nomad's executor interface.
#[tonic::async_trait]
pub trait Executor: Send + Sync {
    /// Starts the task. Once per executor.
    ///
    /// # Errors
    /// See [`ExecutorError`]. No process or file of the task remains.
    async fn launch(&self, spec: LaunchSpec) -> Result<ProcessState, ExecutorError>;

    /// Waits for the end of the task's main process; any number of callers, before and after its end.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch.
    async fn wait(&self) -> Result<ProcessState, ExecutorError>;

    /// Ends the task: `signal` (SIGINT when empty) to the main process, SIGKILL after `grace` (at once when zero), then SIGKILL to
    /// everything that it started. Succeeds when nothing was launched.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for an unknown signal with a grace period (the task is killed nevertheless),
    /// [`ExecutorError::System`] when a process does not die.
    async fn shutdown(&self, signal: &str, grace: Duration) -> Result<(), ExecutorError>;

    /// Sends a signal, by number, to the main process.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch or for a number that is not a signal, [`ExecutorError::System`] when
    /// the process has ended.
    async fn signal(&self, number: i32) -> Result<(), ExecutorError>;

    /// Changes the limits of the running task at once. Idempotent; when it fails, the limits are as before.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] when no task runs, when it has no cgroup or one that the host limits, and when it uses more
    /// memory than the new limit; [`ExecutorError::System`] for values that the kernel rejects.
    async fn update_resources(&self, limits: NewLimits) -> Result<(), ExecutorError>;

    /// One sample of the task's resource usage.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch, [`ExecutorError::System`].
    async fn stats(&self) -> Result<TaskStats, ExecutorError>;

    /// Waits until the state of the output changes, from the one with number `known`: to dropped, or to written again. `None` when
    /// nothing can change any more, or another process collects the output.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch; [`ExecutorError::System`] from an executor that is not ours.
    async fn output_changed(&self, known: u64) -> Result<Option<OutputHealth>, ExecutorError>;

    /// Runs a command inside the task, as the task's user, until `deadline`; other statuses than 0 are no error.
    ///
    /// At the deadline the command is killed: without isolation the output so far comes with status -1.
    ///
    /// # Errors
    /// [`ExecutorError::DeadlineExceeded`] at the deadline, for an isolated task; [`ExecutorError::Invalid`] when no task
    /// runs; else why the command could not be started.
    async fn exec(&self, deadline: SystemTime, command: &str, args: &[String]) -> Result<ExecOutput, ExecutorError>;

    /// Runs a command inside the task with its input and output, optionally on a terminal. The first request says which.
    ///
    /// The end of `requests` does not end the session; an error in them, or dropping the responses, kills the command. The
    /// command's exit is the last response.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for a wrong first request or when no task runs; else why the command could not be started.
    async fn exec_streaming(&self, requests: ExecRequests) -> Result<ExecResponses, ExecutorError>;
}
