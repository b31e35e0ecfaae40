//! Owns one task's processes: starts them, waits, signals, measures, kills every last one. Never knows allocations.

mod client;
mod convert;
mod isolated;
mod service;
mod stats;
mod supervisor;
mod universal;

use std::time::Duration;

pub use client::ExecutorClient;
pub use service::ExecutorService;
pub use supervisor::{Compute, Isolation, LocalExecutor};

use crate::spec::{LaunchSpec, ProcessState, TaskStats};

/// What the executor service answers to Version.
pub const VERSION: &str = "2.0.0";

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
    /// The executor's process is gone.
    #[error("plugin is shut down")]
    PluginShutdown,
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

    /// One sample of what the task uses.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] before a launch, [`ExecutorError::System`].
    async fn stats(&self) -> Result<TaskStats, ExecutorError>;
}
