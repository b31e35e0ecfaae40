//! Input and output of sessions, on the event loop.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::termios::{LocalModes, SpecialCodeIndex, Winsize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tonic::Status;

use super::ExecOutput;
use crate::sys;
use crate::wire::drivers::exec_task_streaming_request::TerminalSize;
use crate::wire::drivers::{ExecTaskStreamingIoOperation, ExecTaskStreamingResponse};

/// Most bytes of output in one response.
const CHUNK: usize = 16 * 1024;
/// Most bytes that a terminal can hold for its master, generously.
const TERMINAL_HOLDS: usize = 128 * 1024;
/// How long output is waited for that others than the ended process may still write to its pipes.
const STRAGGLERS: Duration = Duration::from_millis(250);
/// How much of a script's output is kept.
const TAIL: usize = 4096;

/// A descriptor on the event loop that is read or written without waiting.
pub(super) type Registered = Arc<AsyncFd<Arc<OwnedFd>>>;

pub(super) type Responses = mpsc::Sender<Result<ExecTaskStreamingResponse, Status>>;

/// Hands a descriptor of ours to the event loop. The other end, which the process has, keeps waiting as programs expect.
pub(super) fn register(fd: OwnedFd, interest: Interest) -> io::Result<Registered> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(Arc::new(sys::watch::register(Arc::new(fd), interest)?))
}

/// Where output goes.
#[derive(Debug)]
pub(super) enum Sink {
    Stdout(Responses),
    Stderr(Responses),
    /// The last bytes of a script's output.
    Tail(Vec<u8>),
}

impl Sink {
    /// Takes output as fast as the caller does; `false` when there is no caller any more.
    async fn take(&mut self, data: Vec<u8>) -> bool {
        match self {
            Sink::Tail(tail) => {
                tail.extend(data);
                tail.drain(..tail.len().saturating_sub(TAIL));
                true
            }
            Sink::Stdout(_) | Sink::Stderr(_) => self.send(ExecTaskStreamingIoOperation { data, close: false }).await,
        }
    }

    /// The stream has ended.
    async fn close(&mut self) {
        self.send(ExecTaskStreamingIoOperation { data: Vec::new(), close: true }).await;
    }

    async fn send(&self, operation: ExecTaskStreamingIoOperation) -> bool {
        let (responses, stdout, stderr) = match self {
            Sink::Stdout(responses) => (responses, Some(operation), None),
            Sink::Stderr(responses) => (responses, None, Some(operation)),
            Sink::Tail(_) => return true,
        };
        responses.send(Ok(ExecTaskStreamingResponse { stdout, stderr, ..Default::default() })).await.is_ok()
    }

    pub(super) fn into_output(self, exit_code: i32) -> ExecOutput {
        let output = if let Sink::Tail(output) = self { output } else { Vec::new() };
        ExecOutput { output, exit_code }
    }
}

/// Passes on what a process writes until the end of the stream, or until `ended` says that the process is gone: then what
/// it has written, and what comes within a moment from others that hold the same pipe. A terminal belongs to its session's
/// first process and ends with it, neither sooner nor later: before that an error is not its end, and others that hold it
/// are not waited for. The caller keeps a slave of it open.
pub(super) async fn pump(source: &Registered, terminal: bool, sink: &mut Sink, mut ended: watch::Receiver<bool>) {
    if copy(source, terminal, sink, &mut ended).await {
        sink.close().await;
    }
}

/// Whether there is a caller to whom the end can be told.
async fn copy(source: &Registered, terminal: bool, sink: &mut Sink, ended: &mut watch::Receiver<bool>) -> bool {
    loop {
        let data = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            data = next(source) => data,
        };
        let Some(data) = data else {
            if terminal {
                // Hung up by force, and somebody may open it anew. An error means that the process is no longer watched.
                let _ = ended.wait_for(|ended| *ended).await;
                break;
            }
            return true;
        };
        if !sink.take(data).await {
            return false;
        }
    }
    if terminal {
        return drain_terminal(source, sink).await;
    }
    // The kernel has it all, whether or not the event loop has heard of it. A flood of others is not waited for.
    let mut left = waiting_bytes(source);
    while left > 0 {
        match read(source) {
            Ok(data) if data.is_empty() => return true,
            Ok(data) => {
                left = left.saturating_sub(data.len());
                if !sink.take(data).await {
                    return false;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(_) => return true,
        }
    }
    let until = Instant::now() + STRAGGLERS;
    loop {
        let data = tokio::select! {
            biased;
            () = tokio::time::sleep_until(until) => return true,
            data = next(source) => data,
        };
        let Some(data) = data else { return true };
        if !sink.take(data).await {
            return false;
        }
    }
}

/// Passes on what an ended process has left in its terminal. Bytes on their way from slave to master are carried by a
/// worker of the kernel. A read that finds nothing waits for that worker and looks again, so an empty answer is the end;
/// but a worker that stops for want of room in the very moment in which a reader makes some starts itself anew, and is
/// waited for by the next read only. So it takes two empty answers. What others write meanwhile comes behind all this.
async fn drain_terminal(source: &Registered, sink: &mut Sink) -> bool {
    let (mut left, mut empty) = (TERMINAL_HOLDS, 0);
    while left > 0 && empty < 2 {
        match read(source) {
            Ok(data) if !data.is_empty() => {
                (left, empty) = (left.saturating_sub(data.len()), 0);
                if !sink.take(data).await {
                    return false;
                }
            }
            // WouldBlock, or EIO of a terminal that was hung up by force.
            Ok(_) | Err(_) => empty += 1,
        }
    }
    true
}

/// The next output; `None` at the end of the stream.
async fn next(source: &Registered) -> Option<Vec<u8>> {
    loop {
        let mut ready = source.readable().await.ok()?;
        match ready.try_io(|_| read(source)) {
            Ok(Ok(data)) if data.is_empty() => return None,
            Ok(Ok(data)) => return Some(data),
            Ok(Err(_)) => return None,
            Err(_would_block) => {}
        }
    }
}

/// The buffer lives no longer than the call, so that a silent session holds none.
fn read(source: &Registered) -> io::Result<Vec<u8>> {
    let mut buffer = [0; CHUNK];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(source.get_ref().as_fd(), &mut buffer))?;
    Ok(buffer[..length].to_vec())
}

fn waiting_bytes(source: &Registered) -> usize {
    let bytes = rustix::io::ioctl_fionread(source.get_ref().as_fd()).unwrap_or(0);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Where a caller's input goes.
#[derive(Debug)]
pub(super) enum Input {
    Pipe(Option<Registered>),
    Terminal(Registered),
}

impl Input {
    /// Writes as fast as the process reads. What a process does not want is dropped.
    pub(super) async fn write(&mut self, mut data: &[u8]) {
        let (Input::Pipe(Some(target)) | Input::Terminal(target)) = self else { return };
        while !data.is_empty() {
            let Ok(mut ready) = target.writable().await else { return };
            let written = ready
                .try_io(|target| Ok(rustix::io::retry_on_intr(|| rustix::io::write(target.get_ref().as_fd(), data))?));
            match written {
                Ok(Ok(length)) => data = &data[length..],
                Ok(Err(_)) => return self.abandon(),
                Err(_would_block) => {}
            }
        }
    }

    /// End of file. A terminal has no such thing but a character that says it, when its program reads lines.
    pub(super) async fn close(&mut self) {
        let Input::Terminal(master) = self else { return self.abandon() };
        let Ok(modes) = rustix::termios::tcgetattr(master.get_ref().as_fd()) else { return };
        if modes.local_modes.contains(LocalModes::ICANON) {
            self.write(&[modes.special_codes[SpecialCodeIndex::VEOF]]).await;
        }
    }

    fn abandon(&mut self) {
        if let Input::Pipe(pipe) = self {
            *pipe = None;
        }
    }

    /// Tells the terminal its size, and the kernel tells the program. Without a terminal there is nothing to resize.
    pub(super) fn resize(&self, size: TerminalSize) {
        let Input::Terminal(master) = self else { return };
        let (Ok(ws_row), Ok(ws_col)) = (u16::try_from(size.height), u16::try_from(size.width)) else { return };
        let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(master.get_ref().as_fd(), size) {
            tracing::debug!(%error, "could not resize a terminal");
        }
    }
}
