//! The interfaces with which a driver runs interactive sessions inside a task.

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use super::DriverError;
use crate::executor::{ExecRequests, ExecResponses};
use crate::spec::ExitResult;

/// How a driver supports sessions inside a task.
pub enum ExecStreaming<'a> {
    /// Not supported.
    None,
    /// With readers and writers: the recommended interface.
    HighLevel(&'a dyn ExecTaskStreaming),
    /// With the messages of the wire, for a driver that forwards them.
    Raw(&'a dyn ExecTaskStreamingRaw),
}

/// Size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TerminalSize {
    /// Rows.
    pub height: u16,
    /// Columns.
    pub width: u16,
}

/// A command to be run inside a task, and its streams.
pub struct ExecOptions {
    /// Program and arguments; never empty.
    pub command: Vec<String>,
    /// Whether it gets a terminal.
    pub tty: bool,
    /// Its stdin; ends when the caller has closed it.
    pub stdin: Pin<Box<dyn AsyncRead + Send>>,
    /// Its stdout; with a terminal also its stderr.
    pub stdout: Pin<Box<dyn AsyncWrite + Send>>,
    /// Its stderr.
    pub stderr: Pin<Box<dyn AsyncWrite + Send>>,
    /// The terminal's size, and every change of it; the first value is all zero.
    pub resize: watch::Receiver<TerminalSize>,
}

/// Sessions with readers and writers.
#[tonic::async_trait]
pub trait ExecTaskStreaming: Send + Sync {
    /// Runs the command to its end. When the returned future is dropped, the caller has disconnected and the command has to be
    /// killed.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` when it could not be started. A command that fails is not an error.
    async fn exec_task_streaming(&self, id: &str, options: ExecOptions) -> Result<ExitResult, DriverError>;
}

/// Sessions with the messages of the wire.
#[tonic::async_trait]
pub trait ExecTaskStreamingRaw: Send + Sync {
    /// Runs a session; the first request is its setup.
    ///
    /// # Errors
    /// As [`ExecTaskStreaming::exec_task_streaming`].
    async fn exec_task_streaming(&self, id: &str, requests: ExecRequests) -> Result<ExecResponses, DriverError>;
}
