//! Sessions inside a task: what a driver may offer, and the frames that they are made of on the wire.

use std::pin::Pin;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::DriverError;
use super::handle::failed;
use crate::executor::{ExecRequests, ExecResponses};
use crate::spec::ExitResult;
use crate::wire::drivers::exec_task_streaming_request::Setup;
use crate::wire::drivers::{self as wire, ExecTaskStreamingIoOperation, ExecTaskStreamingRequest};

/// How many bytes travel in one frame.
const FRAME: usize = 4096;
/// What lies between a session's input and output and the program in between.
const PIPE: usize = 64 * 1024;

/// How a driver holds sessions inside a task.
pub enum ExecStreaming<'a> {
    /// Not at all.
    None,
    /// Over readers and writers: the one to choose.
    HighLevel(&'a dyn ExecTaskStreaming),
    /// Over the messages of the wire, for a driver that hands them on.
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
    /// It gets a terminal.
    pub tty: bool,
    /// Its input; ends when the caller has closed it.
    pub stdin: Pin<Box<dyn AsyncRead + Send>>,
    /// Its output; with a terminal also its errors.
    pub stdout: Pin<Box<dyn AsyncWrite + Send>>,
    /// Its errors.
    pub stderr: Pin<Box<dyn AsyncWrite + Send>>,
    /// The terminal's size, and every change of it; the first value is all zero.
    pub resize: watch::Receiver<TerminalSize>,
}

/// Sessions over readers and writers.
#[tonic::async_trait]
pub trait ExecTaskStreaming: Send + Sync {
    /// Runs the command to its end. It is to be killed when the returned future is dropped: the caller has gone.
    ///
    /// # Errors
    /// [`DriverError::TaskNotFound`], or `Failed` when it could not be started. A command that fails is no error.
    async fn exec_task_streaming(&self, id: &str, options: ExecOptions) -> Result<ExitResult, DriverError>;
}

/// Sessions over the messages of the wire.
#[tonic::async_trait]
pub trait ExecTaskStreamingRaw: Send + Sync {
    /// Runs a session; the first request is its setup.
    ///
    /// # Errors
    /// As [`ExecTaskStreaming::exec_task_streaming`].
    async fn exec_task_streaming(&self, id: &str, requests: ExecRequests) -> Result<ExecResponses, DriverError>;
}

/// The first request of a session, which has to be its setup, and the whole stream again.
pub(super) async fn take_setup(mut requests: ExecRequests) -> Result<(Setup, ExecRequests), Status> {
    let missing = || Status::unknown("first message should always be setup");
    let first = requests.next().await.ok_or_else(missing)??;
    let setup = first.setup.clone().ok_or_else(missing)?;
    Ok((setup, Box::pin(tokio_stream::once(Ok(first)).chain(requests))))
}

/// Translates the messages of a session for a driver that wants readers and writers. Returns when all has been sent.
pub(super) async fn hold(
    driver: &dyn ExecTaskStreaming,
    id: &str,
    setup: Setup,
    mut requests: ExecRequests,
    responses: mpsc::Sender<Result<wire::ExecTaskStreamingResponse, Status>>,
) -> Result<(), DriverError> {
    if setup.command.is_empty() {
        return Err(failed("error cmd must have at least one value".to_owned(), false));
    }
    let (mut to_stdin, stdin) = tokio::io::duplex(PIPE);
    let (stdout, from_stdout) = tokio::io::duplex(PIPE);
    let (stderr, from_stderr) = tokio::io::duplex(PIPE);
    let (sizes, resize) = watch::channel(TerminalSize::default());
    let options = ExecOptions {
        command: setup.command,
        tty: setup.tty,
        stdin: Box::pin(stdin),
        stdout: Box::pin(stdout),
        // With a terminal there are no errors apart.
        stderr: if setup.tty { Box::pin(tokio::io::sink()) } else { Box::pin(stderr) },
        resize,
    };
    // Input never ends the session: the caller may hang up its half and still listen.
    let input = async {
        let mut open = true;
        while let Some(Ok(request)) = requests.next().await {
            let ExecTaskStreamingRequest { stdin, tty_size, .. } = request;
            if let Some(stdin) = stdin.filter(|_| open) {
                if !stdin.data.is_empty() && to_stdin.write_all(&stdin.data).await.is_err() {
                    open = false;
                }
                if stdin.close {
                    let _closed_by_the_other_end = to_stdin.shutdown().await;
                    open = false;
                }
            } else if let Some(size) = tty_size {
                let side = |n: i32| u16::try_from(n).unwrap_or(0);
                sizes.send_replace(TerminalSize { height: side(size.height), width: side(size.width) });
            }
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    let session = async {
        let (exit, ..) =
            tokio::join!(driver.exec_task_streaming(id, options), send_output(from_stdout, &responses, false), async {
                if !setup.tty {
                    send_output(from_stderr, &responses, true).await;
                }
            });
        exit
    };
    let exit = tokio::select! {
        exit = session => exit?,
        never = input => match never {},
        // The caller has gone: what runs is dropped, and so killed.
        () = responses.closed() => return Ok(()),
    };
    let result = wire::ExitResult { exit_code: exit.exit_code, signal: exit.signal, oom_killed: exit.oom_killed };
    let last = wire::ExecTaskStreamingResponse { exited: true, result: Some(result), ..Default::default() };
    let _gone = responses.send(Ok(last)).await;
    Ok(())
}

/// Sends what there is to read, and at its end the frame that says so.
async fn send_output(
    mut from: impl AsyncRead + Unpin,
    responses: &mpsc::Sender<Result<wire::ExecTaskStreamingResponse, Status>>,
    is_stderr: bool,
) {
    let frame = |operation: ExecTaskStreamingIoOperation| {
        let mut response = wire::ExecTaskStreamingResponse::default();
        *(if is_stderr { &mut response.stderr } else { &mut response.stdout }) = Some(operation);
        Ok(response)
    };
    let mut buffer = vec![0; FRAME];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let data = buffer[..length].to_vec();
        if responses.send(frame(ExecTaskStreamingIoOperation { data, close: false })).await.is_err() {
            return;
        }
    }
    let _gone = responses.send(frame(ExecTaskStreamingIoOperation { data: Vec::new(), close: true })).await;
}

/// A session's answers as a stream.
pub(super) fn stream(receiver: mpsc::Receiver<Result<wire::ExecTaskStreamingResponse, Status>>) -> ExecResponses {
    Box::pin(ReceiverStream::new(receiver))
}
