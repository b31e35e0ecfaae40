//! Owns one task's processes: starts them, waits, signals, measures, kills every last one. Never knows allocations.

mod adopt;
mod client;
mod convert;
mod isolated;
mod service;
mod session;
mod stats;
mod streams;
mod supervisor;
mod sweep;
mod universal;
mod update;

use std::pin::Pin;
use std::time::{Duration, SystemTime};

use tokio_stream::Stream;

pub use client::ExecutorClient;
pub use convert::{
    spec_device, spec_mount, spec_resources, spec_stats, system_time, timestamp, wire_device, wire_mount, wire_stats,
};
pub use service::ExecutorService;
pub use supervisor::{Compute, Isolation, LocalExecutor};

use crate::spec::{LaunchSpec, MemoryLimits, OutputHealth, ProcessState, TaskStats};
use crate::wire::drivers::{ExecTaskStreamingRequest, ExecTaskStreamingResponse};

/// What the caller of a session says, as it is on the wire.
pub type ExecRequests = Pin<Box<dyn Stream<Item = Result<ExecTaskStreamingRequest, tonic::Status>> + Send>>;
/// What the caller of a session hears, as it is on the wire.
pub type ExecResponses = Pin<Box<dyn Stream<Item = Result<ExecTaskStreamingResponse, tonic::Status>> + Send>>;

/// What the executor service answers to Version.
pub const VERSION: &str = "2.0.0";

/// What an executor says to a second launch.
pub const ALREADY_LAUNCHED: &str = "this executor has launched its task already";

/// Why an executor could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecutorError {
    /// The command is not there.
    #[error("{0}")]
    CommandNotFound(String),
    /// The command is there but cannot be executed.
    #[error("{0}")]
    NotExecutable(String),
    /// What was asked makes no sense: no such user, signal or path, or a second launch.
    #[error("{0}")]
    Invalid(String),
    /// The kernel or the privileges do not allow it.
    #[error("{0}")]
    System(String),
    /// The caller's deadline has passed.
    #[error("context deadline exceeded")]
    DeadlineExceeded,
    /// The executor's process is gone.
    #[error("plugin is shut down")]
    PluginShutdown,
}

/// What a command inside the task left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecOutput {
    /// The last 4096 bytes of stdout and stderr, mixed as they were written.
    pub output: Vec<u8>,
    /// Its exit status; `128 + N` when signal N ended it; -1 when it was killed at the deadline.
    pub exit_code: i32,
}

/// A new limit of processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuQuota {
    /// None any more.
    Unlimited,
    /// So much of each period, in microseconds; 1000 to 1000000 as period, and at least 1000 of it.
    Limited {
        /// Processor time of all cores together.
        quota_us: u64,
        /// In which it may be used.
        period_us: u64,
    },
}

/// Limits for a task that runs; what is `None` stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NewLimits {
    /// CPU shares in Nomad's unit (MHz); 0 is the kernel's default.
    pub cpu_shares: Option<u64>,
    /// Processor time.
    pub cpu_quota: Option<CpuQuota>,
    /// Memory.
    pub memory: Option<MemoryLimits>,
    /// Cores as a kernel cpu list. Those of a cpuset that the host made for the task are the host's to change.
    pub cpuset_cpus: Option<String>,
}

/// Owns one task: Nomad's executor interface.
#[tonic::async_trait]
pub trait Executor: Send + Sync {
    /// Starts the task. Once per executor.
    ///
    /// # Errors
    /// See [`ExecutorError`]. Nothing is left running or lying about.
    async fn launch(&self, spec: LaunchSpec) -> Result<ProcessState, ExecutorError>;

    /// Waits for the end of the task's main process; any number of callers, before and after its end.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch.
    async fn wait(&self) -> Result<ProcessState, ExecutorError>;

    /// Ends the task: `signal` (SIGINT when empty) to the main process, SIGKILL after `grace` (at once when zero), then
    /// SIGKILL to everything that it started. Succeeds when nothing was launched.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for an unknown signal (the task is killed all the same), [`ExecutorError::System`]
    /// when something does not die.
    async fn shutdown(&self, signal: &str, grace: Duration) -> Result<(), ExecutorError>;

    /// Sends a signal, by number, to the main process.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch or for a number that is no signal, [`ExecutorError::System`] when
    /// the process has ended.
    async fn signal(&self, number: i32) -> Result<(), ExecutorError>;

    /// Changes the limits of the running task, at once. Asked for the same again it changes nothing; when it fails they are as they
    /// were.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] when no task runs, when it has no cgroup or one that the host limits, and when it holds more
    /// memory than it is to have; [`ExecutorError::System`] for what the kernel does not take.
    async fn update_resources(&self, limits: NewLimits) -> Result<(), ExecutorError>;

    /// One sample of what the task uses.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch, [`ExecutorError::System`].
    async fn stats(&self) -> Result<TaskStats, ExecutorError>;

    /// Waits until there is something to tell whoever knows of `known` changes of where the output goes: that it is being
    /// dropped, or written again. `None` when nothing can change any more, or somebody else collects it.
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

    /// Runs a command inside the task with its input and output, perhaps on a terminal. The first request says which.
    ///
    /// The end of `requests` ends nothing; an error in them and the drop of the responses kill the command. A command that
    /// has ended is the last response.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for another first request or when no task runs; else why the command could not be
    /// started.
    async fn exec_streaming(&self, requests: ExecRequests) -> Result<ExecResponses, ExecutorError>;
}
