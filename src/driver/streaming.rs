//! Interactive sessions inside a task: from the frames on the wire to the interfaces for drivers, and back.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::failed;
use super::session::{ExecOptions, ExecStreaming, ExecTaskStreaming, TerminalSize};
use super::{Driver, DriverError};
use crate::executor::{ExecRequests, ExecResponses, ExecutorError};
use crate::spec::ExitResult;
use crate::wire::drivers::exec_task_streaming_request::Setup;
use crate::wire::drivers::{self as wire, ExecTaskStreamingIoOperation, ExecTaskStreamingRequest};

/// Size of one frame, in bytes.
const FRAME: usize = 4096;
/// Capacity of the queue of a session's answers.
const QUEUE: usize = 1;
/// Size of the pipes between a session's streams and the command.
const PIPE: usize = 64 * 1024;

/// Exit status of a command that does not exist, as in shells and engines.
pub(super) const NOT_FOUND: i32 = 127;
/// Exit status of a command that exists but cannot be executed.
pub(super) const NOT_EXECUTABLE: i32 = 126;
/// Longest command and longest reason, in characters, in the message to a session's caller.
const LONGEST: usize = 1024;

/// Why a session's command never ran. The caller gets this as the command's output and exit status: an error of the whole call
/// would reach the user behind an agent as a broken connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotStarted {
    /// It does not exist.
    Missing,
    /// It exists but cannot be executed.
    NotExecutable,
}

impl NotStarted {
    /// Derives it from an executor's error; `None` for an error that has another cause.
    pub(super) fn of(error: &ExecutorError) -> Option<NotStarted> {
        match error {
            ExecutorError::CommandNotFound(_) => Some(NotStarted::Missing),
            ExecutorError::NotExecutable(_) => Some(NotStarted::NotExecutable),
            _ => None,
        }
    }

    /// The exit status that stands for it.
    pub(super) fn status(self) -> i32 {
        match self {
            NotStarted::Missing => NOT_FOUND,
            NotStarted::NotExecutable => NOT_EXECUTABLE,
        }
    }

    /// One line for the caller, without control characters. With a terminal, it ends with CR LF.
    pub(super) fn line(self, command: &str, reason: &str, tty: bool) -> String {
        let what = match self {
            NotStarted::Missing => "command not found",
            NotStarted::NotExecutable => "cannot be executed",
        };
        let end = if tty { "\r\n" } else { "\n" };
        format!("\"{}\": {what} ({}){end}", printable(command), printable(reason.trim()))
    }

    /// A complete session that reports it.
    pub(super) fn session(self, setup: &Setup, reason: &str) -> ExecResponses {
        let command = setup.command.first().map_or("", String::as_str);
        let data = self.line(command, reason, setup.tty).into_bytes();
        let frame = |is_stderr, operation| {
            let mut response = wire::ExecTaskStreamingResponse::default();
            *(if is_stderr { &mut response.stderr } else { &mut response.stdout }) = Some(operation);
            response
        };
        let close = || ExecTaskStreamingIoOperation { data: Vec::new(), close: true };
        let mut frames =
            vec![frame(!setup.tty, ExecTaskStreamingIoOperation { data, close: false }), frame(false, close())];
        if !setup.tty {
            frames.push(frame(true, close()));
        }
        let result = Some(super::convert::wire_exit(ExitResult { exit_code: self.status(), ..ExitResult::default() }));
        frames.push(wire::ExecTaskStreamingResponse { exited: true, result, ..Default::default() });
        Box::pin(tokio_stream::iter(frames.into_iter().map(Ok)))
    }
}

fn printable(text: &str) -> String {
    let shown: String = text
        .chars()
        .take(LONGEST)
        .flat_map(|c| {
            let escaped = c.is_control().then(|| c.escape_default());
            escaped.is_none().then_some(c).into_iter().chain(escaped.into_iter().flatten())
        })
        .collect();
    if text.chars().nth(LONGEST).is_some() { shown + "..." } else { shown }
}

/// Reads the first request of a session, which has to be its setup, and returns it with the complete stream.
pub(super) async fn take_setup(mut requests: ExecRequests) -> Result<(Setup, ExecRequests), Status> {
    let missing = || Status::unknown("first message should always be setup");
    let first = requests.next().await.ok_or_else(missing)??;
    let setup = first.setup.clone().ok_or_else(missing)?;
    Ok((setup, Box::pin(tokio_stream::once(Ok(first)).chain(requests))))
}

/// Runs a session inside a task by the messages of the wire, with the interface that the driver offers; the first request is
/// its setup. The session ends when the answers are dropped.
///
/// # Errors
/// As [`ExecTaskStreaming::exec_task_streaming`]; `Failed` if the driver does not support sessions.
pub async fn session(
    driver: Arc<dyn Driver>,
    id: String,
    requests: ExecRequests,
) -> Result<ExecResponses, DriverError> {
    match driver.exec_streaming() {
        ExecStreaming::None => Err(failed("driver does not support exec".to_owned(), false)),
        ExecStreaming::Raw(raw) => raw.exec_task_streaming(&id, requests).await,
        ExecStreaming::HighLevel(_) => {
            let first = take_setup(requests).await;
            let (setup, requests) = first.map_err(|e| failed(e.message().to_owned(), false))?;
            let (sender, receiver) = mpsc::channel(QUEUE);
            let holder = Arc::clone(&driver);
            crate::sys::task::spawn(async move {
                // Borrowed from the driver that this async task keeps alive.
                let ExecStreaming::HighLevel(high) = holder.exec_streaming() else { return };
                if let Err(error) = hold(high, &id, setup, requests, sender.clone()).await {
                    let _gone = sender.send(Err(error.into())).await;
                }
            });
            Ok(stream(receiver))
        }
    }
}

/// Translates a session's messages for a driver with readers and writers. Returns when everything has been sent.
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
        // A terminal has no separate stderr.
        stderr: if setup.tty { Box::pin(tokio::io::sink()) } else { Box::pin(stderr) },
        resize,
    };
    // The end of the input never ends the session: the caller may close its sending half and still receive.
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
        // The caller has disconnected: the command's future is dropped, which kills the command.
        () = responses.closed() => return Ok(()),
    };
    let result = super::convert::wire_exit(exit);
    let last = wire::ExecTaskStreamingResponse { exited: true, result: Some(result), ..Default::default() };
    let _gone = responses.send(Ok(last)).await;
    Ok(())
}

/// Sends the output, and at its end the frame that says so.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::drivers::exec_task_streaming_request::TerminalSize as WireSize;

    /// Echoes its input in upper case, prints the terminal's size on stderr, and exits with status 3.
    struct Shouter;

    #[tonic::async_trait]
    impl ExecTaskStreaming for Shouter {
        async fn exec_task_streaming(&self, id: &str, mut options: ExecOptions) -> Result<ExitResult, DriverError> {
            if id != "task" {
                return Err(DriverError::TaskNotFound);
            }
            let mut input = String::new();
            options.stdin.read_to_string(&mut input).await.unwrap();
            let size = *options.resize.wait_for(|size| *size != TerminalSize::default()).await.unwrap();
            options.stdout.write_all(input.to_uppercase().as_bytes()).await.unwrap();
            options.stderr.write_all(format!("{}x{}", size.height, size.width).as_bytes()).await.unwrap();
            Ok(ExitResult { exit_code: 3, ..ExitResult::default() })
        }
    }

    fn setup(tty: bool) -> ExecTaskStreamingRequest {
        let setup = Setup { task_id: "task".into(), command: vec!["shout".into()], tty };
        ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() }
    }

    fn stdin(data: &str, close: bool) -> ExecTaskStreamingRequest {
        let stdin = Some(ExecTaskStreamingIoOperation { data: data.into(), close });
        ExecTaskStreamingRequest { stdin, ..Default::default() }
    }

    fn size() -> ExecTaskStreamingRequest {
        let tty_size = Some(WireSize { height: 24, width: 80 });
        ExecTaskStreamingRequest { tty_size, ..Default::default() }
    }

    /// A whole session with a caller that never closes its sending half.
    async fn session(
        id: &str,
        messages: Vec<ExecTaskStreamingRequest>,
    ) -> Result<Vec<wire::ExecTaskStreamingResponse>, DriverError> {
        let messages = tokio_stream::iter(messages.into_iter().map(Ok)).chain(tokio_stream::pending());
        let (setup, requests) = take_setup(Box::pin(messages)).await.unwrap();
        let (sender, receiver) = mpsc::channel(1);
        let (end, answers) = tokio::join!(
            hold(&Shouter, id, setup, requests, sender),
            stream(receiver).map(Result::unwrap).collect::<Vec<_>>()
        );
        end.map(|()| answers)
    }

    /// H1: readers and writers become frames: all output, then the ends of the streams, then the status.
    #[tokio::test]
    async fn h1_a_driver_with_readers_and_writers_holds_sessions() {
        // An empty message is a heartbeat.
        let heartbeat = ExecTaskStreamingRequest::default();
        let messages = vec![setup(false), heartbeat, stdin("he", false), stdin("llo", false), size(), stdin("", true)];
        let mut answers = session("task", messages.clone()).await.unwrap();
        let last = answers.pop().unwrap();
        assert!(last.exited && last.result.unwrap().exit_code == 3);
        let of = |operations: Vec<ExecTaskStreamingIoOperation>| {
            let (data, closes): (Vec<_>, Vec<_>) = operations.into_iter().partition(|o| !o.close);
            (String::from_utf8(data.into_iter().flat_map(|o| o.data).collect()).unwrap(), closes.len())
        };
        assert_eq!(of(answers.iter().filter_map(|a| a.stdout.clone()).collect()), ("HELLO".to_owned(), 1));
        assert_eq!(of(answers.iter().filter_map(|a| a.stderr.clone()).collect()), ("24x80".to_owned(), 1));
        assert!(answers.iter().all(|a| !a.exited && a.result.is_none()));

        // With a terminal there is one stream only.
        let terminal = [vec![setup(true)], messages[1..].to_vec()].concat();
        let answers = session("task", terminal).await.unwrap();
        assert!(answers.iter().all(|a| a.stderr.is_none()), "{answers:?}");
    }

    /// Writes more than the pipe holds, and ends.
    struct Talker;

    #[tonic::async_trait]
    impl ExecTaskStreaming for Talker {
        async fn exec_task_streaming(&self, _: &str, mut options: ExecOptions) -> Result<ExitResult, DriverError> {
            options.stdout.write_all(&[b'o'; 3 * PIPE + 1]).await.unwrap();
            options.stderr.write_all(&[b'e'; PIPE]).await.unwrap();
            Ok(ExitResult { exit_code: 9, ..ExitResult::default() })
        }
    }

    /// All output comes before the status, and the status is the last message.
    #[tokio::test]
    async fn h1_all_output_comes_before_the_status() {
        let (sender, receiver) = mpsc::channel(1);
        let requests = Box::pin(tokio_stream::pending());
        let Setup { task_id, .. } = setup(false).setup.unwrap();
        let wanted = Setup { task_id, command: vec!["talk".into()], tty: false };
        let (end, answers) = tokio::join!(
            hold(&Talker, "task", wanted, requests, sender),
            stream(receiver).map(Result::unwrap).collect::<Vec<_>>()
        );
        end.unwrap();
        let (last, before) = answers.split_last().unwrap();
        assert!(last.exited && before.iter().all(|answer| !answer.exited));
        let length = |pick: fn(&wire::ExecTaskStreamingResponse) -> Option<&ExecTaskStreamingIoOperation>| {
            before.iter().filter_map(pick).map(|operation| operation.data.len()).sum::<usize>()
        };
        assert_eq!((length(|a| a.stdout.as_ref()), length(|a| a.stderr.as_ref())), (3 * PIPE + 1, PIPE));
    }

    /// The message for a command that did not start: one line, bounded, without control characters, then the status.
    #[tokio::test]
    async fn h1_a_command_that_cannot_start_has_a_status() {
        for (reason, tty, status) in [
            (NotStarted::Missing, false, 127),
            (NotStarted::Missing, true, 127),
            (NotStarted::NotExecutable, false, 126),
            (NotStarted::NotExecutable, true, 126),
        ] {
            let setup = Setup { command: vec!["evil\u{1b}[2J\n".repeat(1000)], tty, ..Setup::default() };
            let long = "why\r\n\u{9b}".repeat(100_000);
            let mut frames: Vec<_> = reason.session(&setup, &long).map(Result::unwrap).collect().await;
            let last = frames.pop().unwrap();
            assert!(last.exited && last.result.unwrap().exit_code == status);
            let (out, err): (Vec<_>, Vec<_>) = frames.into_iter().map(|f| (f.stdout, f.stderr)).unzip();
            let of = |stream: Vec<Option<ExecTaskStreamingIoOperation>>| {
                let operations: Vec<_> = stream.into_iter().flatten().collect();
                let closes = operations.iter().filter(|o| o.close).count();
                assert!(operations.last().is_none_or(|o| o.close), "{operations:?}");
                (String::from_utf8(operations.into_iter().flat_map(|o| o.data).collect()).unwrap(), closes)
            };
            let (out, err) = (of(out), of(err));
            let (told, nothing) = if tty { (out, err) } else { (err, out) };
            assert_eq!((nothing.0.as_str(), nothing.1, told.1), ("", usize::from(!tty), 1));
            let line = told.0.strip_suffix(if tty { "\r\n" } else { "\n" }).unwrap();
            assert!(!line.contains(char::is_control) && line.len() < 20_000, "{line}");
            assert!(line.starts_with("\"evil\\u{1b}[2J\\n"), "{line}");
        }
    }

    #[tokio::test]
    async fn h1_sessions_that_cannot_be_held() {
        assert!(matches!(session("other", vec![setup(false)]).await, Err(DriverError::TaskNotFound)));
        let mut empty = setup(false);
        empty.setup.as_mut().unwrap().command.clear();
        let error = session("task", vec![empty]).await.unwrap_err();
        assert_eq!(error.to_string(), "error cmd must have at least one value");
        for messages in [vec![], vec![Ok(stdin("x", false))]] {
            let missing = take_setup(Box::pin(tokio_stream::iter(messages))).await.err().unwrap();
            assert_eq!(missing.message(), "first message should always be setup");
        }
    }
}
