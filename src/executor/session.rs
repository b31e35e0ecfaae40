//! Further processes inside the task: check scripts, and interactive sessions.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use nix::unistd::{Pid, getsid};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::running::{Isolation, Running};
use super::start::{
    alive, descendants, end_child, open_null, open_to_task, plan, readable, start_error, start_shim, wait_for,
};
use super::streams::{Input, Registered, Responses, Sink, pump, register};
use super::{ExecOutput, ExecRequests, ExecResponses, ExecutorError, universal};
use crate::container::{Config, Guard, Ids, Namespaces, SessionConfig, Terminal, Trusted, open_terminal};
use crate::spec::{ExitResult, Signal};
use crate::sys;
use crate::sys::lock::lock;
use crate::sys::process::{Child, WaitStatus};
use crate::wire::drivers::{self, ExecTaskStreamingResponse};

/// How long the caller of a killed script waits for its remaining output.
const KILLED_WITHIN: Duration = Duration::from_secs(1);

/// Children of this process whose exit status belongs to a session.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    state: Mutex<State>,
    reaped: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Sessions whose process has no pid yet: any child may be it.
    starting: usize,
    leads: HashSet<i32>,
}

impl Sessions {
    pub(super) fn own(&self, pid: i32) -> bool {
        let state = lock(&self.state);
        state.starting > 0 || state.leads.contains(&pid)
    }

    pub(super) async fn reaped(&self) {
        self.reaped.notified().await;
    }

    pub(super) fn tell_reaped(&self) {
        self.reaped.notify_one();
    }

    fn forget(&self, pid: i32) {
        lock(&self.state).leads.remove(&pid);
        self.tell_reaped();
    }
}

/// Keeps every child from being reaped elsewhere while it lives.
struct StartingGuard(Arc<Sessions>);

impl StartingGuard {
    fn new(sessions: Arc<Sessions>) -> StartingGuard {
        lock(&sessions.state).starting += 1;
        StartingGuard(sessions)
    }
}

impl Drop for StartingGuard {
    fn drop(&mut self) {
        lock(&self.0.state).starting -= 1;
        self.0.tell_reaped();
    }
}

/// The first process of a session. If it is dropped before the process ends, the process is killed with its whole session.
struct Lead {
    pid: i32,
    pidfd: Registered,
    running: Arc<Running>,
    sessions: Arc<Sessions>,
    ended: bool,
    killed: bool,
}

impl Lead {
    /// Call it while a [`StartingGuard`] lives.
    fn new(child: Child, running: Arc<Running>, sessions: Arc<Sessions>) -> Result<Lead, (ExecutorError, Child)> {
        let watched =
            child.pidfd.try_clone().and_then(|pidfd| sys::watch::register(Arc::new(pidfd), Interest::READABLE));
        let pidfd = match watched {
            Ok(pidfd) => Arc::new(pidfd),
            Err(error) => return Err((system("watch the command")(error), child)),
        };
        let pid = child.pid;
        lock(&sessions.state).leads.insert(pid);
        Ok(Lead { pid, pidfd, running, sessions, ended: false, killed: false })
    }

    /// Waits for its exit status. The future may be dropped and the method called again.
    async fn ended(&mut self) -> ExitResult {
        let status = wait_for(&self.pidfd).await;
        self.ended = true;
        self.sessions.forget(self.pid);
        // It was reaped elsewhere: a lost process must not look successful.
        let status = status.unwrap_or(WaitStatus { code: Some(1), signal: None, dumped: false });
        let by_kernel = status.signal == Some(libc::SIGKILL) && !self.killed;
        if by_kernel {
            // Counts all of them: the kernel may have killed others of the session as well, and the task lives.
            self.running.session_oom_kills.fetch_add(self.running.unclaimed_oom_kills(), Ordering::Relaxed);
        }
        let exit = ExitResult::from_wait(status.code, status.signal);
        tracing::debug!(pid = self.pid, exit_code = exit.exit_code, "session ended");
        exit
    }

    /// Kills the process and the other members of its session. Its pid cannot be reused, as it is not reaped yet.
    fn kill(&mut self) {
        self.killed = true;
        // ESRCH: it has already ended.
        let _ = sys::process::send_signal(self.pidfd.get_ref().as_fd(), Signal::KILL);
        let _ = sys::process::signal_group(self.pid, Signal::KILL);
        let lead = Pid::from_raw(self.pid);
        let belongs = |pid: i32| getsid(Some(Pid::from_raw(pid))) == Ok(lead);
        // Processes that were just being forked appear in the next listing.
        for _ in 0..3 {
            let pids = match &self.running.cgroup {
                Some(cgroup) => cgroup.pids().unwrap_or_default(),
                None => descendants().unwrap_or_default().iter().map(|stat| stat.pid).collect(),
            };
            let members: Vec<i32> =
                pids.into_iter().filter(|pid| *pid > 1 && *pid != self.pid && belongs(*pid)).collect();
            for pid in &members {
                let Ok(pidfd) = sys::process::open_pidfd(*pid) else { continue };
                // The pid may have been reused between listing and opening.
                if belongs(*pid) {
                    let _ = sys::process::send_signal(pidfd.as_fd(), Signal::KILL);
                }
            }
            if members.is_empty() {
                return;
            }
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.ended || sys::mutant::on("c13") {
            return;
        }
        self.kill();
        let (pid, pidfd, sessions) = (self.pid, Arc::clone(&self.pidfd), Arc::clone(&self.sessions));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(crate::sys::task::boxed(async move {
                wait_for(&pidfd).await;
                sessions.forget(pid);
            }))),
            // This process is about to end.
            Err(_) => sessions.forget(pid),
        }
    }
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> ExecutorError {
    move |error| ExecutorError::System(format!("{what}: {}", error.into()))
}

/// stdin, stdout and stderr (descriptors 0, 1 and 2) of a session's process.
struct Stdio {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Starts `command` inside the task. Also returns the terminal that was opened there.
async fn start(
    running: Arc<Running>,
    sessions: Arc<Sessions>,
    command: String,
    args: Vec<String>,
    tty: bool,
    stdio: Stdio,
) -> Result<(Lead, Option<Terminal>), ExecutorError> {
    let isolated = running.isolation == Isolation::Isolated;
    let namespaces = if isolated { task_namespaces(&running)? } else { Namespaces::default() };
    let program = if isolated {
        command.clone()
    } else {
        let (ids, neighbours) = (running.config.host_ids.as_ref(), running.config.neighbours);
        let writers = universal::Writers::of(&running.task_dir, ids, neighbours);
        let found = universal::find_program(&command, &running.task_dir, None, writers.as_ref())?;
        found.to_string_lossy().into_owned()
    };
    // Who can reach the directories may have changed since the task was started.
    let id_range = running.config.id_range.filter(|_| running.config.rootless.is_none());
    let trusted = Trusted::of(running.config.host_ids.as_ref(), id_range);
    let look = |neighbours| Guard::look(&running.task_dir, &trusted, neighbours);
    let guard = if isolated { running.config.neighbours.map(look) } else { None };
    let session = Some(SessionConfig { tty, namespaces: namespaces.kinds() });
    let config = Config { command: program, args, session, guard, outlives: false, ..running.config.clone() };

    let guard = StartingGuard::new(Arc::clone(&sessions));
    // Since the request, the task may have been shut down.
    running.check_open()?;
    let shim = start_shim(plan(None, false, None, running.cgroup.as_ref())?, running.cgroup.as_ref())?;
    let fds = [stdio.stdin.as_fd(), stdio.stdout.as_fd(), stdio.stderr.as_fd()];
    let mut starting = alive(shim.tell(&config, &namespaces).and_then(|told| told.go(fds))).await?;
    drop(stdio);
    if let Err(error) = readable(starting.report()).await {
        // The shim may still become the command.
        end_child(starting.child).await;
        return Err(error);
    }
    let outcome = starting.outcome();
    let started = match outcome {
        Ok(Some(started)) => started,
        Ok(None) => {
            end_child(starting.child).await;
            return Err(ExecutorError::System(format!("failed to start command path={command:?}: it was killed")));
        }
        Err(failure) => {
            end_child(starting.child).await;
            return Err(start_error(&command, false, &failure));
        }
    };
    let child = match started.lead {
        Some(lead) => {
            // The shim has started the command in a sibling and is about to end.
            if readable(starting.child.pidfd.as_fd()).await.is_ok() {
                let _ = sys::process::try_wait(starting.child.pidfd.as_fd());
            }
            lead
        }
        None => starting.child,
    };
    let lead = match Lead::new(child, running, sessions) {
        Ok(lead) => lead,
        Err((error, child)) => {
            end_child(child).await;
            return Err(error);
        }
    };
    drop(guard);
    tracing::debug!(pid = lead.pid, %command, tty, "session started");
    Ok((lead, started.terminal))
}

/// The namespaces that a further process of the task enters.
fn task_namespaces(running: &Running) -> Result<Namespaces, ExecutorError> {
    let namespaces = lock(&running.namespaces);
    let Some(namespaces) = &*namespaces else {
        return Err(ExecutorError::Invalid("the task has ended".to_owned()));
    };
    let nested = !running.config.has_users() && running.config.host_ids.as_ref().is_some_and(|ids| ids.uid != 0);
    let opened = if nested { namespaces.with_user_of(running.pid) } else { namespaces.try_clone() };
    opened.map_err(system("open the task's namespaces"))
}

/// The user to which the host's terminals are chowned, so that the command can reopen them by name.
fn owner(running: &Running) -> Option<&Ids> {
    running.config.host_ids.as_ref().filter(|_| running.config.rootless.is_none())
}

/// A pipe whose other end is given to the command.
fn pipe_for(
    running: &Running,
    theirs: impl Fn(&(OwnedFd, OwnedFd)) -> BorrowedFd<'_>,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let ends = pipe_with(PipeFlags::CLOEXEC)?;
    open_to_task(theirs(&ends), &running.config);
    Ok(ends)
}

/// A session's process, and its input and output.
struct Opened {
    lead: Lead,
    input: Input,
    stdout: Registered,
    /// `None` with a terminal, which has only one output.
    stderr: Option<Registered>,
    /// Held until all output is sent: while it is open a terminal does not reach its end before its session does, see
    /// [`Terminal::slave`].
    _slave: Option<OwnedFd>,
}

async fn open(
    running: Arc<Running>,
    sessions: Arc<Sessions>,
    mut command: Vec<String>,
    tty: bool,
) -> Result<Opened, ExecutorError> {
    let args = command.split_off(1);
    let command = command.remove(0);
    if tty {
        let failed = system("failed to open a tty");
        let (stdio, ours) = if running.isolation == Isolation::Isolated {
            let null = || open_null();
            (Stdio { stdin: null()?, stdout: null()?, stderr: null()? }, None)
        } else {
            let owner = owner(&running).map(|ids| running.config.on_host(ids.uid));
            let terminal = open_terminal(owner).map_err(&failed)?;
            let copy = || terminal.slave.try_clone().map_err(&failed);
            (Stdio { stdin: copy()?, stdout: copy()?, stderr: copy()? }, Some(terminal))
        };
        let (lead, theirs) = start(running, sessions, command, args, tty, stdio).await?;
        let terminal = theirs.or(ours).ok_or_else(|| ExecutorError::System("failed to get pty".to_owned()))?;
        let master = register(terminal.master, Interest::READABLE | Interest::WRITABLE).map_err(&failed)?;
        let input = Input::Terminal(Arc::clone(&master));
        return Ok(Opened { lead, input, stdout: master, stderr: None, _slave: Some(terminal.slave) });
    }
    let failed = system("create the pipes of a session");
    let (stdin, to_stdin) = pipe_for(&running, |ends| ends.0.as_fd()).map_err(&failed)?;
    let (from_stdout, stdout) = pipe_for(&running, |ends| ends.1.as_fd()).map_err(&failed)?;
    let (from_stderr, stderr) = pipe_for(&running, |ends| ends.1.as_fd()).map_err(&failed)?;
    let (lead, _) = start(running, sessions, command, args, tty, Stdio { stdin, stdout, stderr }).await?;
    Ok(Opened {
        lead,
        input: Input::Pipe(Some(register(to_stdin, Interest::WRITABLE).map_err(&failed)?)),
        stdout: register(from_stdout, Interest::READABLE).map_err(&failed)?,
        stderr: Some(register(from_stderr, Interest::READABLE).map_err(&failed)?),
        _slave: None,
    })
}

/// Serves one session. Its process has started when this returns.
pub(super) async fn stream(
    running: Arc<Running>,
    sessions: Arc<Sessions>,
    mut requests: ExecRequests,
) -> Result<ExecResponses, ExecutorError> {
    let first = requests.next().await.transpose()?;
    let Some(setup) = first.and_then(|request| request.setup) else {
        return Err(ExecutorError::Invalid("first message should always be setup".to_owned()));
    };
    if setup.command.first().is_none_or(String::is_empty) {
        return Err(ExecutorError::Invalid("command is required".to_owned()));
    }
    // Spawned as a separate tokio task: if the caller disconnects half-way, the start must not stop half-way.
    let opened = crate::sys::task::spawn(open(running, sessions, setup.command, setup.tty)).await;
    let opened = opened.map_err(|e| ExecutorError::System(e.to_string()))??;
    let (responses, receiver) = mpsc::channel(1);
    crate::sys::task::spawn(serve(opened, requests, responses));
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// Runs until the process has ended and all output is sent, or until the caller is gone; then the process is killed.
async fn serve(opened: Opened, requests: ExecRequests, responses: Responses) {
    let Opened { mut lead, input, stdout, stderr, _slave } = opened;
    let terminal = stderr.is_none();
    let (tell_ended, ended) = watch::channel(false);
    let output = async {
        let mut to_stdout = Sink::Stdout(responses.clone());
        let out = pump(&stdout, terminal, &mut to_stdout, ended.clone());
        let mut to_stderr = Sink::Stderr(responses.clone());
        let err = async {
            if let Some(stderr) = &stderr {
                pump(stderr, false, &mut to_stderr, ended.clone()).await;
            }
        };
        tokio::join!(out, err);
    };
    let input = feed(requests, input);
    tokio::pin!(output, input);
    let (mut output_done, mut input_done) = (false, false);
    let mut exit = None;
    while exit.is_none() || !output_done {
        tokio::select! {
            status = lead.ended(), if exit.is_none() => {
                exit = Some(status);
                tell_ended.send_replace(true);
            }
            () = &mut output, if !output_done => output_done = true,
            broken = &mut input, if !input_done => {
                input_done = true;
                if let Err(status) = broken {
                    tracing::debug!(%status, "the caller of a session is gone");
                    return;
                }
            }
            () = responses.closed() => return,
        }
    }
    let exit_code = exit.map_or(-1, |exit| exit.exit_code);
    let result = Some(drivers::ExitResult { exit_code, ..Default::default() });
    // An error means that the caller is gone.
    let _ = responses.send(Ok(ExecTaskStreamingResponse { exited: true, result, ..Default::default() })).await;
}

/// Passes the caller's requests on until they end, which does not end the session.
async fn feed(mut requests: ExecRequests, mut input: Input) -> Result<(), tonic::Status> {
    while let Some(request) = requests.next().await {
        let request = request?;
        if let Some(stdin) = request.stdin {
            input.write(&stdin.data).await;
            if stdin.close {
                input.close().await;
            }
        } else if let Some(size) = request.tty_size {
            input.resize(size);
        }
    }
    // The write end of the process's stdin must stay open for as long as the process lives.
    std::future::pending().await
}

/// Runs a script until it ends or `deadline` has passed.
pub(super) async fn run_script(
    running: Arc<Running>,
    sessions: Arc<Sessions>,
    deadline: SystemTime,
    command: &str,
    args: &[String],
) -> Result<ExecOutput, ExecutorError> {
    if command.is_empty() {
        return Err(ExecutorError::Invalid("command is required".to_owned()));
    }
    let isolated = running.isolation == Isolation::Isolated;
    let left = deadline.duration_since(SystemTime::now()).unwrap_or_default();
    let late = Instant::now().checked_add(left);
    let expired = async {
        match late {
            Some(late) => tokio::time::sleep_until(late).await,
            // Beyond the range of the clock.
            None => std::future::pending().await,
        }
    };
    tokio::pin!(expired);
    let mut tail = Sink::Tail(Vec::new());
    let too_late = |tail: Sink| if isolated { Err(ExecutorError::DeadlineExceeded) } else { Ok(tail.into_output(-1)) };
    if left.is_zero() {
        // Not started, as a short script could end before it is killed.
        return too_late(tail);
    }

    let failed = system("create the pipe of a script");
    let (from_script, stdout) = pipe_for(&running, |ends| ends.1.as_fd()).map_err(&failed)?;
    let stdio = Stdio { stdin: open_null()?, stderr: stdout.try_clone().map_err(&failed)?, stdout };
    let source = register(from_script, Interest::READABLE).map_err(&failed)?;
    let starting = crate::sys::task::spawn(start(running, sessions, command.to_owned(), args.to_vec(), false, stdio));
    let (mut lead, _) = tokio::select! {
        started = starting => started.map_err(|e| ExecutorError::System(e.to_string()))??,
        () = &mut expired => return too_late(tail),
    };

    let (tell_ended, ended) = watch::channel(false);
    let mut exit = None;
    {
        let output = pump(&source, false, &mut tail, ended);
        tokio::pin!(output);
        let mut output_done = false;
        while exit.is_none() || !output_done {
            tokio::select! {
                status = lead.ended(), if exit.is_none() => {
                    exit = Some(status);
                    tell_ended.send_replace(true);
                }
                () = &mut output, if !output_done => output_done = true,
                () = &mut expired, if exit.is_none() => {
                    lead.kill();
                    // Does not wait for a process that cannot die now, for instance in a frozen cgroup.
                    if !isolated && tokio::time::timeout(KILLED_WITHIN, lead.ended()).await.is_ok() {
                        tell_ended.send_replace(true);
                        output.await;
                    }
                    break;
                }
            }
        }
    }
    match exit {
        Some(exit) => Ok(tail.into_output(exit.exit_code)),
        None => too_late(tail),
    }
}
