//! `agentbin exec`: a command inside a running task, with this terminal if wanted.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use anyhow::{Context as _, bail};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

use super::ExecArgs;
use super::runs::{Purpose, World, socket, wait_for};
use super::signals::Signals;
use crate::alloc::control::{ClientError, Connection, Incoming, Request, SessionInput};
use crate::wire::drivers::ExecTaskStreamingResponse;

/// Most bytes of input in one message.
const CHUNK: usize = 32 << 10;
/// Number of pieces of input that may wait.
const QUEUE: usize = 4;

/// A terminal in raw mode; restored when this is dropped.
struct Raw(Termios);

impl Raw {
    /// `None` if standard input is not a terminal.
    fn enter() -> io::Result<Option<Raw>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(Some(Raw(before)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.0);
    }
}

pub(super) fn exec(args: &ExecArgs) -> anyhow::Result<i32> {
    wait_for(async {
        let world = World::look(args.data_dir.as_deref(), false).await?;
        let (found, task) = world.find_one(&args.target, Purpose::Order)?;
        let request = Request::Exec { alloc: found.view.id.clone(), task: args.task.clone().or(task) };
        let mut signals = Signals::catch().context("cannot catch signals")?;
        let connection = Connection::open(socket(found)?).await?;
        let (input, output) = connection.exec(&request, args.command.clone(), args.tty).await?;
        let raw = if args.tty && args.stdin { Raw::enter().context("cannot use the terminal")? } else { None };
        let status = tokio::select! {
            status = hold(input, output, args) => status,
            signal = signals.next() => Ok(128 + signal.number()),
        };
        drop(raw);
        status
    })
}

/// Runs the session to its end.
async fn hold(input: SessionInput, mut output: Incoming, args: &ExecArgs) -> anyhow::Result<i32> {
    let mut feeding = std::pin::pin!(feed(input, args));
    let mut fed = false;
    loop {
        let message = tokio::select! {
            message = output.next() => message,
            result = &mut feeding, if !fed => {
                fed = true;
                // A session that has ended takes no input; its last output is still to be read.
                result?;
                continue;
            }
        };
        let ExecTaskStreamingResponse { stdout, stderr, exited, result } = match message {
            Ok(message) => message,
            Err(ClientError::Ended) => bail!("the session ended, because its task or its run has ended"),
            Err(error) => return Err(error.into()),
        };
        if let Some(data) = stdout.map(|out| out.data).filter(|data| !data.is_empty()) {
            let mut out = io::stdout();
            out.write_all(&data).and_then(|()| out.flush()).context("cannot write to standard output")?;
        }
        if let Some(data) = stderr.map(|err| err.data).filter(|data| !data.is_empty()) {
            io::stderr().write_all(&data).context("cannot write to standard error")?;
        }
        if exited {
            let result = result.context("the run does not say how the command ended")?;
            return Ok(if result.signal == 0 { result.exit_code } else { 128 + result.signal });
        }
    }
}

/// Sends this terminal's size and the input, until either side ends.
async fn feed(mut input: SessionInput, args: &ExecArgs) -> anyhow::Result<()> {
    let mut resized = crate::sys::signals::Signals::catch(&[libc::SIGWINCH]).context("cannot catch signals")?;
    if args.tty {
        resize(&mut input).await;
    }
    if !args.stdin {
        // A session that has ended before takes no input.
        let _ = input.stdin(&[]).await;
    }
    let mut pieces = if args.stdin { Some(read_stdin()?) } else { None };
    loop {
        tokio::select! {
            _ = resized.next(), if args.tty => resize(&mut input).await,
            piece = next(&mut pieces) => {
                let piece = piece.context("cannot read from standard input")?;
                if input.stdin(&piece).await.is_err() || piece.is_empty() {
                    pieces = None;
                }
            }
        }
    }
}

/// The next piece of input; pending for ever if there will be none.
async fn next(pieces: &mut Option<mpsc::Receiver<io::Result<Vec<u8>>>>) -> io::Result<Vec<u8>> {
    match pieces {
        Some(pieces) => pieces.recv().await.unwrap_or_else(|| Ok(Vec::new())),
        None => std::future::pending().await,
    }
}

/// Standard input in pieces, on a thread of its own, because reading it blocks. The process exits without waiting for the
/// thread.
fn read_stdin() -> anyhow::Result<mpsc::Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let read = move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut piece = vec![0; CHUNK];
            let read = stdin.read(&mut piece).map(|count| {
                piece.truncate(count);
                piece
            });
            let last = read.as_ref().map_or(true, Vec::is_empty);
            if sender.blocking_send(read).is_err() || last {
                return;
            }
        }
    };
    std::thread::Builder::new().name("stdin".to_owned()).spawn(read).context("cannot start a thread")?;
    Ok(receiver)
}

/// If neither stdin nor stdout is a terminal, the command's terminal keeps its size.
async fn resize(input: &mut SessionInput) {
    let size = tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout()));
    if let Ok(size) = size {
        // A session that has ended needs no size.
        let _ = input.resize(size.ws_row, size.ws_col).await;
    }
}
