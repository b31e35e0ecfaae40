//! `agentbin run --detach`: the same run in a process of its own, its supervisor, which goes on after the caller got its id.
//!
//! ```text
//! agentbin run --detach FILE ─▶ agentbin run --detach --supervise FILE     in a session of its own
//!        ◀── its stdout: one line of JSON when the tasks have been started, or its end
//! ```

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustix::fs::{Mode, OFlags};

use super::background::Background;
use super::messages::MESSAGES;
use super::output::json_text;
use super::signals::Signals;
use super::{CANNOT, RunArgs, complain, print};
use crate::alloc::Messages;
use crate::alloc::control::{RunView, Served};
use crate::spec::collections::BTreeSet;
use crate::spec::json;
use crate::spec::json::json;
use crate::spec::{AllocId, escaped_lines};
use crate::sys;

/// Most bytes of the line that reports that the tasks have been started.
const LONGEST_LINE: u64 = 64 << 20;
/// How long the start of the tasks is waited for: a task may itself wait for something that its caller does only after this
/// command has returned.
const PATIENCE: Duration = Duration::from_mins(1);
/// After this time a supervisor only waits, and memory that it no longer needs is released.
const STARTED: Duration = Duration::from_secs(2);

/// Starts the supervisor and waits until it reports that the tasks have been started. Signals are forwarded to it, as to a run
/// in the foreground.
pub(super) fn start(args: &RunArgs) -> anyhow::Result<i32> {
    let exe = sys::exe::own().context("cannot find this program")?;
    let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
    let mut words = std::env::args_os().skip(1);
    command.arg0(env!("CARGO_PKG_NAME")).args(words.next()).arg("--supervise").args(words);
    command.stdout(Stdio::piped());
    // Descriptors that the caller left open, such as the pipe of a shell's command substitution, would stay open as long as the
    // job runs.
    sys::process::close_on_exec_from(3).context("cannot close what is not for the supervisor")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let status = crate::sys::task::block_on(&runtime, async {
        let mut signals = Signals::catch().context("cannot catch signals")?;
        let mut child = sys::process::spawn_in_session(&mut command).context("cannot start the supervisor")?;
        let pid = i32::try_from(child.id()).context("cannot start the supervisor")?;
        let pidfd = sys::process::open_pidfd(pid).context("cannot watch the supervisor")?;
        let stdout = child.stdout.take().context("the supervisor has no output")?;
        let mut line = crate::sys::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout.take(LONGEST_LINE)).read_line(&mut line).map(|_| line)
        });
        let line = loop {
            tokio::select! {
                line = &mut line => break line?.context("cannot read the supervisor's answer")?,
                signal = signals.next() => {
                    // A supervisor that has just ended needs no signal.
                    let _ = sys::process::send_signal(pidfd.as_fd(), signal);
                }
            }
        };
        if let Ok(view) = json::from_str::<RunView>(&line) {
            return announce(args, &view);
        }
        // It ended before its tasks had been started, and has reported why.
        let status =
            crate::sys::task::spawn_blocking(move || child.wait()).await?.context("cannot wait for the supervisor")?;
        Ok(status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(CANNOT))
    });
    runtime.shutdown_background();
    status
}

/// Prints what runs, and how to reach it.
fn announce(args: &RunArgs, view: &RunView) -> anyhow::Result<i32> {
    if args.json {
        return print((json_text(&json!(view)) + "\n").as_bytes());
    }
    let ids: String = view.allocs.iter().map(|alloc| alloc.id.clone() + "\n").collect();
    print(ids.as_bytes())?;
    if !args.quiet {
        let dir = args.data_dir.as_ref().map_or(String::new(), |dir| format!(" --data-dir {}", dir.display()));
        let (job, pid) = (&view.job, view.pid);
        let one = view.allocs.first().map_or("", |alloc| alloc.id.get(..8).unwrap_or(&alloc.id));
        let text = format!(
            "job {job} runs in the background (process {pid}):\n  agentbin status{dir} {job}\n  agentbin logs{dir} -f {one}\n  \
             agentbin stop{dir} {job}\n"
        );
        io::stderr().write_all(escaped_lines(&text).as_bytes()).context("cannot write to standard error")?;
    }
    Ok(0)
}

/// Waits until the tasks have been started, except those that run after the others, or have ended. Returns those that take
/// longer.
async fn settled(served: &Served) -> BTreeSet<String> {
    let allocs = served.allocs();
    let all = async {
        for control in &allocs {
            control.settled().await;
        }
    };
    match tokio::time::timeout(PATIENCE, all).await {
        Ok(()) => BTreeSet::new(),
        Err(_) => allocs.iter().flat_map(|control| control.unstarted()).collect(),
    }
}

/// Waits until the tasks of an earlier supervisor have been restored.
async fn taken_up(served: &Served) -> BTreeSet<String> {
    for control in served.allocs() {
        control.taken_up().await;
    }
    BTreeSet::new()
}

/// The file for further messages of this process.
fn messages(served: &Served, kept_logs: &Path, background: &Background) -> io::Result<&'static Messages> {
    let allocs = served.allocs();
    // The same file for each supervisor of the run.
    let first = background.file().allocs.first().and_then(|id| AllocId::parse(id)).ok_or(io::ErrorKind::NotFound)?;
    let made = Messages::new(kept_logs, &first)?;
    for control in &allocs {
        control.set_messages(&made.path());
    }
    Ok(MESSAGES.get_or_init(|| made))
}

/// The supervisor's side: reports that the tasks have been started, and detaches from the caller. If all of them have failed, it
/// reports nothing: its exit does.
pub(super) async fn report(
    served: Arc<Served>,
    kept_logs: &Path,
    background: &Background,
    is_restored: bool,
) -> anyhow::Result<()> {
    let waiting = if is_restored { taken_up(&served).await } else { settled(&served).await };
    if !waiting.is_empty() {
        let names = waiting.into_iter().collect::<Vec<_>>().join(", ");
        complain(&format!(
            "warning: after {PATIENCE:?} these tasks have not been started yet: {names}; agentbin status says what becomes of them"
        ));
    }
    let view = served.view();
    if !is_restored && view.allocs.iter().all(|alloc| alloc.status == "failed") {
        return Ok(());
    }
    // Recorded first: once the start has been reported, the run must survive the death of its supervisor.
    background.announce()?;
    let line = json_text(&json!(view)) + "\n";
    let mut out = io::stdout();
    let told = out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("the caller has gone");
    // A process that asked for another supervisor of an existing run need not wait for this line.
    told.or_else(|error| if is_restored { Ok(()) } else { Err(error) })?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let messages = messages(&served, kept_logs, background);
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    match messages {
        Ok(messages) => rustix::stdio::dup2_stderr(messages.file())?,
        Err(error) => {
            complain(&format!("later errors of this run cannot be written to a file: {error}"));
            rustix::stdio::dup2_stderr(&null)?;
        }
    }
    crate::sys::task::spawn(sys::pages::rest_after(STARTED));
    Ok(())
}
