//! Input and output of sessions on the event loop.

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
/// An upper bound for the bytes that a terminal can hold for its master.
const TERMINAL_HOLDS: usize = 128 * 1024;
/// How long to wait for output that processes other than the ended one may still write to its pipes.
const STRAGGLERS: Duration = Duration::from_millis(250);
/// How much of a script's output is kept.
const TAIL: usize = 4096;

/// A non-blocking descriptor on the event loop.
pub(super) type Registered = Arc<AsyncFd<Arc<OwnedFd>>>;

pub(super) type Responses = mpsc::Sender<Result<ExecTaskStreamingResponse, Status>>;

/// Registers our end with the event loop. The other end, which the process has, stays blocking as programs expect.
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
    /// Accepts output as fast as the caller reads; `false` when the caller is gone.
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

/// Forwards the process's output until the end of the stream, or until `ended` says that the process has ended: then all that it
/// has written, and what other processes with the same pipe write within a moment. A terminal belongs to its session's first
/// process and ends exactly when that does: an error before that is not its end, and other processes that have it open are not
/// waited for. The caller keeps a slave of it open.
pub(super) async fn pump(source: &Registered, terminal: bool, sink: &mut Sink, mut ended: watch::Receiver<bool>) {
    if copy(source, terminal, sink, &mut ended).await {
        sink.close().await;
    }
}

/// Whether there is still a caller to which the end can be sent.
async fn copy(source: &Registered, terminal: bool, sink: &mut Sink, ended: &mut watch::Receiver<bool>) -> bool {
    loop {
        let data = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => break,
            data = next(source) => data,
        };
        let Some(data) = data else {
            if terminal {
                // The terminal was hung up, and a process may reopen it. An error means that the process is no longer watched.
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
    // All of it is in the kernel's buffer, even if the event loop has not seen it yet. Further output of other processes is not
    // waited for.
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

/// Forwards what an ended process has left in its terminal. A kernel worker carries bytes from the slave to the master. A read that
/// finds nothing waits for that worker and checks again, so an empty result is the end; but a worker that stops for lack of buffer
/// space at the very moment when a reader frees some is queued anew, and only the next read waits for it. So two empty results are
/// needed. What other processes write meanwhile comes after all this.
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
            // WouldBlock, or EIO of a terminal that was hung up.
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

/// The buffer lives only during the call, so that an idle session uses no memory for it.
fn read(source: &Registered) -> io::Result<Vec<u8>> {
    let mut buffer = [0; CHUNK];
    let length = rustix::io::retry_on_intr(|| rustix::io::read(source.get_ref().as_fd(), &mut buffer))?;
    Ok(buffer[..length].to_vec())
}

fn waiting_bytes(source: &Registered) -> usize {
    let bytes = rustix::io::ioctl_fionread(source.get_ref().as_fd()).unwrap_or(0);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Destination of the caller's input.
#[derive(Debug)]
pub(super) enum Input {
    Pipe(Option<Registered>),
    Terminal(Registered),
}

impl Input {
    /// Writes as fast as the process reads. Input that the process does not accept is dropped.
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

    /// End of file. For a terminal it is sent as a control character, and only if its program reads lines.
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

    /// Sets the size of the terminal; the kernel signals it to the program. Without a terminal there is nothing to resize.
    pub(super) fn resize(&self, size: TerminalSize) {
        let Input::Terminal(master) = self else { return };
        let (Ok(ws_row), Ok(ws_col)) = (u16::try_from(size.height), u16::try_from(size.width)) else { return };
        let size = Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(master.get_ref().as_fd(), size) {
            tracing::debug!(%error, "could not resize a terminal");
        }
    }
}
