//! Commands inside a running container. Where the engine runs on this machine, no command is left running after its caller has
//! disconnected.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::unistd::{Pid, getsid};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::DockerDriver;
use super::image::unknown;
use crate::cgroup::TaskCgroup;
use crate::docker::logs::{Channel, Frames};
use crate::docker::{Engine, ExecCommand};
use crate::driver::failed;
use crate::driver::streaming::{NOT_EXECUTABLE, NOT_FOUND, NotStarted};
use crate::driver::{DriverError, ExecOptions, ExecTaskResult, ExecTaskStreaming, TerminalSize};
use crate::spec::{ExitResult, Signal};
use crate::sys;

/// How much of a command's output is kept: the last bytes.
const KEPT: usize = 4096;
const BUFFER: usize = 16 * 1024;
/// The character that a terminal interprets as the end of its input (EOT).
const END_OF_TRANSMISSION: u8 = 4;
/// First and longest pause between checks whether a command has ended after its streams have.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// For how long an abandoned command is searched for, while the engine is slow to start it or to answer.
const ABANDONED: Duration = Duration::from_secs(30);
/// How often the remaining processes of its session are searched for: those that are being forked at the time appear in the
/// next round.
const ROUNDS: usize = 3;
/// How often a resize of the terminal that the engine refused is retried, each time after a longer pause: 2.75 s in total.
const RESIZE_TRIES: u32 = 10;
const RESIZE_WAIT: Duration = Duration::from_millis(50);
/// How long the input of a terminal waits for its caller to tell the size.
const SIZE_WAIT: Duration = Duration::from_millis(250);

/// First words of the message that the engine puts in place of output when a command could not be started.
const REFUSED: &[u8] = b"OCI runtime exec failed";

/// Detects the engine's message about a command that it could not start, which arrives as output.
#[derive(Default)]
struct Refusal {
    heard: bool,
    words: Option<Vec<u8>>,
}

impl Refusal {
    /// Consumes data that is not the command's output; `false` for the command's own output. Only the first data can be the
    /// engine's message. As a command may print the same words, the engine is asked.
    async fn takes(&mut self, engine: &Engine, id: &str, data: &[u8]) -> bool {
        let first = !data.is_empty() && !std::mem::replace(&mut self.heard, true);
        if first
            && (data.starts_with(REFUSED) || REFUSED.starts_with(data))
            && never_started(engine, id).await.is_some()
        {
            self.words = Some(Vec::new());
        }
        let Some(words) = &mut self.words else { return false };
        words.extend(data.iter().take(KEPT.saturating_sub(words.len())));
        true
    }
}

/// The exit code that the engine reports for a command that it could not start; `None` for one that was started.
async fn never_started(engine: &Engine, id: &str) -> Option<i32> {
    let state = engine.exec_inspect(id).await.ok()?;
    let refused = !state.running && state.pid == 0 && matches!(state.exit_code, NOT_FOUND | NOT_EXECUTABLE);
    refused.then_some(state.exit_code)
}

/// Older engines report the same exit code for both reasons; the text of the message distinguishes them.
fn reason(status: i32, words: &str) -> NotStarted {
    let words = words.to_lowercase();
    let names_a_program = words.contains("exec: \"") || words.contains("executable file");
    let missing = ["not found", "no such file or directory"].iter().any(|text| words.contains(text));
    if status == NOT_FOUND || (names_a_program && missing) { NotStarted::Missing } else { NotStarted::NotExecutable }
}

/// Checks the end of a stream of frames. A truncated last frame must not look like a command that wrote no more.
fn whole(frames: &Frames) -> Result<(), DriverError> {
    if frames.is_at_an_end() {
        return Ok(());
    }
    Err(failed("the engine's stream of a command's output ended in the middle of a frame".into(), true))
}

fn keep_last(kept: &mut Vec<u8>, more: &[u8]) {
    kept.extend_from_slice(more);
    let surplus = kept.len().saturating_sub(KEPT);
    kept.drain(..surplus);
}

/// A command inside a container. Its session is killed when this is dropped before the command has ended.
struct Command {
    engine: Engine,
    id: String,
    /// The container's own cgroup; `None` when the engine runs on another machine.
    cgroup: Option<TaskCgroup>,
    ended: bool,
}

impl Command {
    async fn create(
        engine: &Engine,
        container: &str,
        cgroup: Option<TaskCgroup>,
        command: &ExecCommand,
    ) -> Result<Command, DriverError> {
        let id = engine.exec_create(container, command).await.map_err(|e| unknown(&e))?;
        Ok(Command { engine: engine.clone(), id, cgroup, ended: false })
    }

    /// Reports to the caller that the engine could not start the command; `status` is the engine's exit code.
    async fn refused(
        &mut self,
        status: i32,
        words: &str,
        program: &str,
        tty: bool,
        to_caller: &mut (impl AsyncWrite + Unpin),
    ) -> ExitResult {
        self.ended = true;
        let why = reason(status, words);
        // The code that drives the session notices a caller that has stopped reading.
        let _gone = to_caller.write_all(why.line(program, words, tty).as_bytes()).await;
        ExitResult { exit_code: why.status(), ..ExitResult::default() }
    }

    /// The exit status; has to be called after the streams have ended.
    async fn status(&mut self) -> Result<ExitResult, DriverError> {
        let mut pause = FIRST_PAUSE;
        loop {
            let state = self.engine.exec_inspect(&self.id).await.map_err(|e| unknown(&e))?;
            if !state.running {
                self.ended = true;
                return Ok(ExitResult { exit_code: state.exit_code, ..ExitResult::default() });
            }
            // The command may have closed its output and still run; the caller decides how long to wait.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        let Some(cgroup) = self.cgroup.take().filter(|_| !self.ended) else { return };
        let (engine, id) = (self.engine.clone(), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                match tokio::time::timeout(ABANDONED, kill(&engine, &id, &cgroup)).await {
                    Ok(Ok(())) => tracing::debug!(id, "a command whose caller has gone has ended"),
                    Ok(Err(error)) => tracing::warn!(%error, id, "killing a command whose caller has gone"),
                    Err(_) => tracing::warn!(id, "a command whose caller has gone was not found"),
                }
            });
        }
    }
}

/// Kills a command that the engine started, and the rest of its session. Only processes in the container's cgroup are
/// signalled.
async fn kill(engine: &Engine, id: &str, cgroup: &TaskCgroup) -> std::io::Result<()> {
    let mut pause = FIRST_PAUSE;
    let (lead, pidfd) = loop {
        let asked = async || engine.exec_inspect(id).await.map_err(std::io::Error::other);
        let state = asked().await?;
        if !state.running && state.exit_code >= 0 {
            return Ok(());
        }
        if state.running && state.pid > 1 {
            let pidfd = match sys::process::open_pidfd(state.pid) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                pidfd => pidfd?,
            };
            // The pid may have been reused before the pidfd was opened.
            let again = asked().await?;
            let inside = cgroup.pids().map_err(std::io::Error::other)?.contains(&state.pid);
            if inside && again.running && again.pid == state.pid {
                break (state.pid, pidfd);
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    sys::process::send_signal(pidfd.as_fd(), Signal::KILL)?;
    let belongs = |pid: i32| getsid(Some(Pid::from_raw(pid))) == Ok(Pid::from_raw(lead));
    for _ in 0..ROUNDS {
        let pids = cgroup.pids().map_err(std::io::Error::other)?;
        let members: Vec<i32> = pids.into_iter().filter(|pid| *pid > 1 && *pid != lead && belongs(*pid)).collect();
        for pid in &members {
            let Ok(pidfd) = sys::process::open_pidfd(*pid) else { continue };
            if belongs(*pid) {
                // ESRCH: the process has already ended.
                let _ = sys::process::send_signal(pidfd.as_fd(), Signal::KILL);
            }
        }
        if members.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Runs a command to its end and keeps the last part of its output.
pub(super) async fn run(
    engine: &Engine,
    container: &str,
    cgroup: Option<TaskCgroup>,
    command: &[String],
    timeout: Duration,
) -> Result<ExecTaskResult, DriverError> {
    if command.is_empty() {
        return Err(failed("cmd is required, but was empty".to_owned(), false));
    }
    let running = async {
        let command = ExecCommand { command: command.to_vec(), tty: false, stdin: false };
        let mut command = Command::create(engine, container, cgroup, &command).await?;
        let mut streams = engine.exec_start(&command.id, false).await.map_err(|e| unknown(&e))?;
        let (mut frames, mut buffer) = (Frames::default(), vec![0; BUFFER]);
        let mut result = ExecTaskResult::default();
        loop {
            let length = streams.read(&mut buffer).await.map_err(|e| failed(e.to_string(), true))?;
            if length == 0 {
                break;
            }
            frames.push(&buffer[..length]);
            while let Some((channel, data)) = frames.next_frame().map_err(|e| failed(e.to_string(), false))? {
                match channel {
                    Channel::Stdout => keep_last(&mut result.stdout, data),
                    Channel::Stderr => keep_last(&mut result.stderr, data),
                }
            }
        }
        whole(&frames)?;
        result.exit = command.status().await?;
        if result.stdout.starts_with(REFUSED)
            && let Some(status) = never_started(engine, &command.id).await
        {
            result.exit.exit_code = reason(status, &String::from_utf8_lossy(&result.stdout)).status();
        }
        Ok(result)
    };
    tokio::time::timeout(timeout, running)
        .await
        .unwrap_or_else(|_| Err(failed(format!("the command did not end within {timeout:?}"), false)))
}

#[tonic::async_trait]
impl ExecTaskStreaming for DockerDriver {
    async fn exec_task_streaming(&self, id: &str, mut options: ExecOptions) -> Result<ExitResult, DriverError> {
        let (task, life) = (self.0.task(id)?, self.0.life()?);
        let engine = &life.engine;
        let tty = options.tty;
        let program = options.command.first().cloned().unwrap_or_default();
        let command = ExecCommand { command: options.command, tty, stdin: true };
        let mut command = Command::create(engine, &task.container, self.0.own_cgroup(&task), &command).await?;
        let id = command.id.clone();
        let to_caller = if tty { &mut options.stdout } else { &mut options.stderr };
        let streams = match engine.exec_start(&id, tty).await {
            Ok(streams) => streams,
            Err(error) => {
                let answered = if error.is_answer() { never_started(engine, &id).await } else { None };
                let Some(status) = answered else { return Err(unknown(&error)) };
                return Ok(command.refused(status, &error.to_string(), &program, tty, to_caller).await);
            }
        };
        let (mut from, mut to) = tokio::io::split(streams);
        let mut told = options.resize.clone();
        let (tell_sized, sized) = tokio::sync::oneshot::channel();
        let input = async {
            // A command that was typed ahead may look at the terminal's size, which an engine takes only when the process exists.
            let is_told = told.wait_for(|size| *size != TerminalSize::default());
            if tty && tokio::time::timeout(SIZE_WAIT, is_told).await.is_ok_and(|told| told.is_ok()) {
                let _set_or_refused = sized.await;
            }
            // The command may end before its input does.
            let _closed = tokio::io::copy(&mut options.stdin, &mut to).await;
            if tty {
                // Closing the connection would end a command that still runs; a terminal signals the end of input with a
                // character.
                let _gone = to.write_all(&[END_OF_TRANSMISSION]).await;
            } else {
                let _closed = to.shutdown().await;
            }
            std::future::pending::<std::convert::Infallible>().await
        };
        let sizes = async {
            let (mut tries, mut tell_sized) = (0, Some(tell_sized));
            loop {
                let size = *options.resize.borrow_and_update();
                if size != TerminalSize::default() {
                    match engine.exec_resize(&id, size.height, size.width).await {
                        Ok(()) => {}
                        // An engine answers a start before the process exists, and refuses a resize until then.
                        Err(error) if tries < RESIZE_TRIES => {
                            tracing::debug!(%error, "setting the size of a terminal");
                            tries += 1;
                            tokio::time::sleep(RESIZE_WAIT * tries).await;
                            continue;
                        }
                        Err(error) => tracing::warn!(%error, "the size of a terminal cannot be set"),
                    }
                    // The input may have ended.
                    let _gone = tell_sized.take().map(|tell| tell.send(()));
                }
                if options.resize.changed().await.is_err() {
                    break std::future::pending::<std::convert::Infallible>().await;
                }
                tries = 0;
            }
        };
        let output = async {
            let (mut frames, mut buffer, mut refusal) = (Frames::default(), vec![0; BUFFER], Refusal::default());
            loop {
                let length = match from.read(&mut buffer).await {
                    Ok(0) => break,
                    Ok(length) => length,
                    // An engine also closes the connection this way when there is input left that the command did not read.
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                    Err(error) => return Err(failed(format!("read the output of a command: {error}"), true)),
                };
                if tty {
                    if !refusal.takes(engine, &id, &buffer[..length]).await {
                        // The code that drives the session notices a caller that has stopped reading.
                        let _gone = options.stdout.write_all(&buffer[..length]).await;
                    }
                    continue;
                }
                frames.push(&buffer[..length]);
                while let Some((channel, data)) = frames.next_frame().map_err(|e| failed(e.to_string(), false))? {
                    if refusal.takes(engine, &id, data).await {
                        continue;
                    }
                    let _gone = match channel {
                        Channel::Stdout => options.stdout.write_all(data).await,
                        Channel::Stderr => options.stderr.write_all(data).await,
                    };
                }
            }
            whole(&frames)?;
            Ok::<Refusal, DriverError>(refusal)
        };
        let refusal = tokio::select! {
            output = output => output?,
            never = input => match never {},
            never = sizes => match never {},
        };
        if let Some(words) = refusal.words
            && let Some(status) = never_started(engine, &id).await
        {
            let to_caller = if tty { &mut options.stdout } else { &mut options.stderr };
            return Ok(command.refused(status, &String::from_utf8_lossy(&words), &program, tty, to_caller).await);
        }
        let _closed = options.stdout.shutdown().await;
        let _closed = options.stderr.shutdown().await;
        command.status().await
    }
}
