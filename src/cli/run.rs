//! `agentbin run`: a job in the foreground.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::machine::{self, Place};
use super::output::{Broken, Piece, Shape, Source, Stream, Style, Writer};
use super::signals::Signals;
use super::{CANNOT, RunArgs, complain, gc, networks, placement, policy};
use crate::alloc::{
    Alloc, AllocEvent, AllocResult, CleanupError, Failure, Machine, Outcome, Stop, TaskErrorKind, chain,
};
use crate::cgroup::Regime;
use crate::driver::{self, Reader};
use crate::jobspec;
use crate::logs::follower::{Finisher, Follower, Output, Start};
use crate::logs::keep::{self, Kept};
use crate::logs::ship::{self, Outlets, Report, Shipment, Sink};
use crate::spec::{Job, Signal};
use crate::sys::mutant;
use crate::sys::owned::{self, OwnDir};

/// Exit status when `--timeout` ran out.
const TIMED_OUT: i32 = 124;
const TIMEOUT_RAN_OUT: &str = "the job was stopped because --timeout ran out";
/// Stack of the threads beside the event loop: a job file's nesting is bounded, with room to spare.
const THREAD_STACK: usize = 8 << 20;
/// How long what is left of the job in the end may resist.
const LEFTOVERS_PATIENCE: Duration = Duration::from_secs(10);
/// How long log sinks may take for the rest when the job has ended.
pub(super) const SINKS_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes of a file with URLs of sinks, at most.
const LONGEST_SINKS: u64 = 64 << 10;
/// Bytes of a kept log file beyond its limit.
const KEPT_MORE: u64 = 1 << 20;
/// How long copies of logs may still take when nobody wants to wait any more: most are made by then.
const LAST_LOGS: Duration = Duration::from_millis(100);
/// What poststop tasks get after a time-out before everything is killed.
const LAST_WORDS: Duration = Duration::from_secs(30);

pub(super) fn run(args: &RunArgs) -> anyhow::Result<i32> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().thread_stack_size(THREAD_STACK).build().context("cannot start")?;
    let status = runtime.block_on(async {
        let signals = Signals::catch().context("cannot catch signals")?;
        let mut early = Early { signals, began: Instant::now(), timeout: args.timeout };
        let given = args.clone();
        let job = match early.wait_for(move || job(&given)).await? {
            Ok(job) => Arc::new(job?),
            Err(status) => return Ok(status),
        };
        let sinks = sinks(&args.log_sink)?;
        let data_dir = machine::data_dir(args.data_dir.as_deref())?;
        let sockets = machine::socket_dir(&data_dir)?;
        let place = Place::find(args.cgroup_parent.as_deref())?.enter()?;
        let mut machine = machine::machine(&data_dir, sockets.path(), &place)?;
        placement::ask_drivers(&job, &mut machine).await;
        machine.ports = machine.ports.with(networks::networks(&args.host_network)?, args.dynamic_ports.clone());
        let machine = Arc::new(machine);
        policy::demand(args, &job, &machine)?;
        let (one, other) = (Arc::clone(&job), Arc::clone(&machine));
        match early.wait_for(move || check(&one, &other)).await? {
            Ok(checked) => checked?,
            Err(status) => return Ok(status),
        }
        if !args.quiet && place.regime == Regime::Off {
            let why = if rustix::process::geteuid().is_root() { "no cgroups are mounted" } else { "you are not root" };
            complain(&format!("warning: {why}, so that memory and cpu limits of the tasks are not enforced"));
        }
        let swept = data_dir.clone();
        // Whoever leaves it in the middle leaves the rest to the next one, as one that is killed does.
        match early.wait_for(move || gc::sweep(&swept)).await? {
            Ok(swept) => swept?,
            Err(status) => return Ok(status),
        }

        let one_screen = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let writer = Writer::new(std::io::stdout(), std::io::stderr(), one_screen).context("cannot start")?;
        let style = Style::new(args.json, args.quiet);
        let orphans = Arc::clone(&machine.orphans);
        let kept_logs = args.keep_logs.then(|| machine::kept_logs(&data_dir));
        let outlets = outlets(args.quiet);
        let timeout = args.timeout.map(|timeout| timeout.saturating_sub(early.began.elapsed()));
        let run = Run { job, machine, style, timeout, kept_logs, sinks, outlets };
        let status = run.execute(writer, early.signals).await;
        match orphans.sweep(true, LEFTOVERS_PATIENCE) {
            Ok(()) => Ok(status),
            Err(error) => Err(error).context("cannot make sure in /proc that what the job started has ended"),
        }
    });
    // A write that nobody reads may still hold a thread; the process ends without it.
    runtime.shutdown_background();
    status
}

/// The sinks of the command line. A password stands in a file, `@FILE`: everybody on the machine can read the words of a
/// command line.
fn sinks(given: &[String]) -> anyhow::Result<Vec<Sink>> {
    let mut sinks = Vec::new();
    for word in given {
        let Some(path) = word.strip_prefix('@') else {
            let sink: Sink = word.parse()?;
            if sink.has_secret() && !mutant::on("d64") {
                bail!(
                    "--log-sink {sink}: whoever lists processes can read its password; write the URL into a file that only \
                     you can read, and give --log-sink @FILE"
                );
            }
            sinks.push(sink);
            continue;
        };
        let read = || {
            let file = owned::open(Path::new(path))?;
            let others = file.metadata()?.mode() & 0o077 != 0;
            Ok::<_, std::io::Error>((others, owned::bounded(file, LONGEST_SINKS)?))
        };
        let (others, bytes) = read().with_context(|| format!("--log-sink @{path}: cannot read the file"))?;
        let text = String::from_utf8(bytes).with_context(|| format!("--log-sink @{path}: the file is not text"))?;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let sink: Sink = line.parse().with_context(|| format!("--log-sink @{path}"))?;
            if sink.has_secret() && others {
                bail!("--log-sink @{path}: others can read the file and the password in it; chmod 600 it");
            }
            sinks.push(sink);
        }
    }
    Ok(sinks)
}

/// What may end a run before it has anything to end.
struct Early {
    signals: Signals,
    began: Instant,
    timeout: Option<Duration>,
}

impl Early {
    /// Does work that takes its time on a thread that can be left alone: the process ends without it. The exit status when
    /// a signal or the timeout comes first.
    async fn wait_for<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<Result<T, i32>> {
        let due = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout.saturating_sub(self.began.elapsed())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            signal = self.signals.next() => Ok(Err(128 + signal.number())),
            () = due => {
                complain(TIMEOUT_RAN_OUT);
                Ok(Err(TIMED_OUT))
            }
            done = tokio::task::spawn_blocking(work) => Ok(Ok(done.context("setting the job up broke down")?)),
        }
    }
}

/// The sinks of this process, which say on stderr what goes wrong with them.
pub(super) fn outlets(quiet: bool) -> Outlets {
    Outlets::new(Arc::new(move |report: Report| {
        if !quiet || !matches!(report, Report::Up { .. }) {
            complain(&report.to_string());
        }
    }))
}

fn job(args: &RunArgs) -> anyhow::Result<Job> {
    let mut parsed = parsed(&args.file, &args.var, &args.var_file, args.isolation_minimum.is_some())?;
    networks::check(&mut parsed, &networks::networks(&args.host_network)?);
    placement::check(&mut parsed, args.data_dir.as_deref(), args.cgroup_parent.as_deref())?;
    if !parsed.refusals.is_empty() {
        let refusals = parsed.refusals.iter().map(ToString::to_string).collect::<Vec<_>>();
        bail!("{}", refusals.join("\n"));
    }
    if !args.quiet {
        parsed.warnings.iter().for_each(|w| complain(&format!("warning: {w}")));
    }
    Ok(parsed.job)
}

/// Reads a job file with the values of its variables. A job that `stays_in_dir` reads no files outside of its file's directory.
pub(super) fn parsed(
    file: &Path,
    var: &[String],
    var_file: &[PathBuf],
    stays_in_dir: bool,
) -> anyhow::Result<jobspec::Parsed> {
    let (file, text, base_dir) = if file == Path::new("-") {
        let mut text = String::new();
        let most = jobspec::LARGEST_FILE as u64;
        let read = std::io::stdin().take(most + 1).read_to_string(&mut text);
        let read = read.context("cannot read the job from standard input")?;
        if read as u64 > most {
            bail!("the job on standard input has more than {} MiB", most >> 20);
        }
        (PathBuf::from("<stdin>"), text, PathBuf::from("."))
    } else {
        (file.to_owned(), read(file)?, file.parent().unwrap_or(Path::new("")).join("."))
    };
    let base_dir = base_dir.canonicalize().with_context(|| format!("cannot find {}", base_dir.display()))?;
    let vars = var.iter().map(|given| {
        let pair = given.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        pair.with_context(|| format!("--var {given}: write it as NAME=VALUE"))
    });
    let vars = vars.collect::<anyhow::Result<Vec<_>>>()?;
    let var_files = var_file.iter().map(|path| Ok((path.clone(), read(path)?)));
    let var_files = var_files.collect::<anyhow::Result<Vec<_>>>()?;
    let env = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    let env: Vec<(String, String)> = env.collect();
    let input = jobspec::Input {
        file: &file,
        text: &text,
        vars: &vars,
        var_files: &var_files,
        env: &env,
        base_dir: &base_dir,
        stays_in_base_dir: stays_in_dir,
    };
    Ok(jobspec::parse(&input)?)
}

fn read(path: &Path) -> anyhow::Result<String> {
    jobspec::read_file(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Everything that can be found wrong before anything starts.
fn check(job: &Job, machine: &Machine) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for task in job.groups.iter().flat_map(|g| &g.tasks) {
        match machine.drivers.get(&task.driver) {
            None => {
                let known = machine.drivers.keys().cloned().collect::<Vec<_>>().join(", ");
                problems.push(format!("{}: unknown driver {:?}; known are {known}", task.pos, task.driver));
            }
            Some(driver) => problems.extend(driver.validate(&task.config).err().map(|e| chain(&e))),
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(())
}

/// A job that is about to run.
struct Run {
    job: Arc<Job>,
    machine: Arc<Machine>,
    style: Style,
    timeout: Option<Duration>,
    /// Where logs go when their allocation is removed.
    kept_logs: Option<PathBuf>,
    /// Where the output of all tasks goes besides.
    sinks: Vec<Sink>,
    outlets: Outlets,
}

/// What ended a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Cause {
    timed_out: bool,
    signal: Option<Signal>,
}

/// Where the parts of a run hear of its end.
#[derive(Debug, Clone)]
struct Ends {
    stop: watch::Sender<Stop>,
    /// Output that is not written yet is given up.
    abandon: watch::Sender<bool>,
}

/// Why a job is not set up.
enum NotSetUp {
    Failed(anyhow::Error),
    /// Somebody, or the time, wanted the end.
    Stopped,
}

/// Removes allocations that have not run.
async fn undo(started: Vec<Started>) -> Vec<CleanupError> {
    let mut leftovers = Vec::new();
    for Started { alloc, readers, shipments } in started.into_iter().rev() {
        // What they have open keeps the mount of the allocations busy.
        drop((readers, shipments));
        leftovers.extend(alloc.destroy().await);
    }
    leftovers
}

/// An allocation that has been set up, and whoever reads its output.
struct Started {
    alloc: Alloc,
    readers: Vec<(Follower, Shape, Source)>,
    shipments: Vec<Shipment>,
}

impl Run {
    async fn execute(self, writer: Writer, signals: Signals) -> i32 {
        let ends = Ends { stop: watch::Sender::new(Stop::No), abandon: watch::Sender::new(false) };
        let (causes, cause) = watch::channel(Cause::default());
        let broken = writer.broken();
        let control = tokio::spawn(control(ends.clone(), causes, signals, self.deadlines(), broken.clone()));

        let (mut status, mut complaints) = match self.set_up(&ends.stop).await {
            Ok(started) => self.run(started, &ends, &writer, &cause).await,
            Err((why, leftovers)) => {
                let (status, first) = match why {
                    NotSetUp::Failed(error) => (CANNOT, Some(chain(error.as_ref()))),
                    NotSetUp::Stopped => (cause.borrow().signal.map_or(CANNOT, |s| 128 + s.number()), None),
                };
                (status, first.into_iter().chain(leftovers.iter().map(|e| chain(e))).collect())
            }
        };
        let mut abandoned = ends.abandon.subscribe();
        tokio::select! {
            biased;
            () = writer.finish() => {}
            _ = abandoned.wait_for(|a| *a) => {}
        }
        control.abort();
        if cause.borrow().timed_out {
            complaints.push(TIMEOUT_RAN_OUT.to_owned());
            status = TIMED_OUT;
        }
        if let Some(why) = broken.borrow().as_ref().filter(|why| !why.is_empty()) {
            complaints.push(format!("the job was stopped because its output cannot be written to stdout: {why}"));
        }
        for complaint in &complaints {
            complain(complaint);
        }
        status
    }

    /// The time-out, and how long after it everything is killed.
    fn deadlines(&self) -> Option<(Duration, Duration)> {
        let patience = self.job.groups.iter().map(|group| {
            let longest = group.tasks.iter().map(|t| t.shutdown_delay + t.kill_timeout).max().unwrap_or_default();
            // Leader, other tasks and sidecars end one after the other.
            group.shutdown_delay + longest * 3 + LAST_WORDS
        });
        let patience = patience.max().unwrap_or(LAST_WORDS);
        self.timeout.map(|timeout| (timeout, patience))
    }

    /// Sets all allocations up, or none.
    async fn set_up(&self, stop: &watch::Sender<Stop>) -> Result<Vec<Started>, (NotSetUp, Vec<CleanupError>)> {
        let labels = Labels::new(&self.job);
        let mut started: Vec<Started> = Vec::new();
        for (number, group) in self.job.groups.iter().enumerate() {
            for index in 0..group.count {
                // Making one is a moment; between two of them whoever hears signals and the time gets a turn.
                tokio::task::yield_now().await;
                if *stop.borrow() > Stop::No {
                    return Err((NotSetUp::Stopped, undo(started).await));
                }
                let mut alloc = Alloc::new(&self.machine, &self.job, number, index);
                let result = match alloc.set_up().await {
                    Ok(()) => match self.readers(&alloc, &labels).and_then(|r| Ok((r, self.shipments(&alloc)?))) {
                        Ok((readers, shipments)) => {
                            started.push(Started { alloc, readers, shipments });
                            continue;
                        }
                        Err(error) => (error, alloc.destroy().await),
                    },
                    Err((error, leftovers)) => (anyhow::Error::new(error), leftovers),
                };
                let (error, mut leftovers) = result;
                leftovers.extend(undo(started).await);
                return Err((NotSetUp::Failed(error), leftovers));
            }
        }
        Ok(started)
    }

    fn readers(&self, alloc: &Alloc, labels: &Labels) -> anyhow::Result<Vec<(Follower, Shape, Source)>> {
        let mut readers = Vec::new();
        for task in alloc.group().tasks.iter().filter(|t| !t.logs.disabled) {
            for stream in [Stream::Stdout, Stream::Stderr] {
                let base = format!("{}.{}", task.name, stream.name());
                let follower = Follower::open(&alloc.log_dir(), &base, Start::Beginning)
                    .with_context(|| format!("cannot read along in {}", alloc.log_dir().display()))?;
                let source = Source {
                    task: task.name.clone(),
                    group: alloc.group().name.clone(),
                    alloc: alloc.id().to_string(),
                    index: alloc.index(),
                    stream,
                };
                let shape = if self.style.json {
                    Shape::Json { source: source.clone(), pending: Vec::new() }
                } else if labels.single {
                    Shape::Raw(stream)
                } else {
                    let prefix = format!("{} | ", labels.of(&source.group, source.index, &task.name));
                    Shape::Prefixed { stream, prefix, pending: Vec::new() }
                };
                readers.push((follower, shape, source));
            }
        }
        Ok(readers)
    }

    fn shipments(&self, alloc: &Alloc) -> anyhow::Result<Vec<Shipment>> {
        let mut shipments = Vec::new();
        for task in alloc.group().tasks.iter().filter(|t| !t.logs.disabled) {
            let mut sinks = driver::log_sinks(&Reader::any("", &task.config))?;
            sinks.extend_from_slice(&self.sinks);
            let labels = ship::Labels {
                job: self.job.id.clone(),
                group: alloc.group().name.clone(),
                task: task.name.clone(),
                alloc: alloc.id().to_string(),
            };
            let records = ship::records(alloc.dir());
            let shipment = Shipment::start(&self.outlets, &sinks, &labels, &alloc.log_dir(), &records);
            shipments.push(shipment.context("cannot ship the output")?);
        }
        Ok(shipments)
    }

    /// Runs what has been set up to its end; the exit status, and what people must be told after the output.
    async fn run(
        &self,
        started: Vec<Started>,
        ends: &Ends,
        writer: &Writer,
        cause: &watch::Receiver<Cause>,
    ) -> (i32, Vec<String>) {
        let labels = Arc::new(Labels::new(&self.job));
        let (events, heard) = mpsc::unbounded_channel();
        let reporting = tokio::spawn(report(heard, writer.queue(), self.style, Arc::clone(&labels)));
        let mut running = JoinSet::new();
        for one in started {
            let (ends, events, queue) = (ends.clone(), events.clone(), writer.queue());
            let kept = self.kept_logs.clone();
            running.spawn(allocation(one, ends, events, queue, self.style, Arc::clone(&labels), kept));
        }
        drop(events);
        let (mut results, mut broken) = (Vec::new(), Vec::new());
        while let Some(joined) = running.join_next().await {
            match joined {
                Ok((result, leftovers)) => {
                    broken.extend(leftovers.iter().map(|e| chain(e)));
                    broken.extend(result.tasks.iter().flat_map(|t| t.leftovers.iter().cloned()));
                    results.push(result);
                }
                Err(error) => broken.push(format!("an allocation broke down, run agentbin gc: {error}")),
            }
        }
        let mut abandoned = ends.abandon.subscribe();
        tokio::select! {
            biased;
            _ = reporting => {}
            _ = abandoned.wait_for(|a| *a) => {}
        }

        let first = results.iter().filter_map(|r| r.first_failure.as_ref()).min_by_key(|f| f.at);
        let status = match exit_status(&results, cause.borrow().signal) {
            0 if !broken.is_empty() => CANNOT,
            status => status,
        };
        if let Some(Failure { outcome: Outcome::Error(error), .. }) = first {
            broken.insert(0, error.message.clone());
        }
        (status, broken)
    }
}

/// The status of a job whose allocations have all ended: that of the first failure; that of the signal when it came
/// before there was anything to fail.
fn exit_status(results: &[AllocResult], signal: Option<Signal>) -> i32 {
    let first = results.iter().filter_map(|r| r.first_failure.as_ref()).min_by_key(|f| f.at);
    let unstarted = || results.iter().flat_map(|r| &r.tasks).any(|t| t.outcome == Outcome::NotStarted);
    match (first.map(|f| &f.outcome), signal) {
        (Some(Outcome::Exited(exit)), _) if exit.signal != 0 => 128 + exit.signal,
        // The kernel killed a part of it for memory, and the rest did not notice.
        (Some(Outcome::Exited(exit)), _) if exit.oom_killed && exit.exit_code == 0 => 128 + Signal::KILL.number(),
        (Some(Outcome::Exited(exit)), _) => exit.exit_code,
        (Some(Outcome::Error(error)), _) => match error.kind {
            TaskErrorKind::CommandNotFound => 127,
            TaskErrorKind::CommandNotExecutable => 126,
            TaskErrorKind::Other => CANNOT,
        },
        (_, Some(signal)) if unstarted() => 128 + signal.number(),
        _ => 0,
    }
}

/// Turns signals, the time-out and a reader that is gone into the end of the run.
async fn control(
    ends: Ends,
    causes: watch::Sender<Cause>,
    mut signals: Signals,
    deadlines: Option<(Duration, Duration)>,
    mut broken: Broken,
) {
    let began = tokio::time::Instant::now();
    let mut broken_heard = false;
    loop {
        let urgency = *ends.stop.borrow();
        let Cause { timed_out, .. } = *causes.borrow();
        let deadline = match deadlines {
            Some((timeout, patience)) if timed_out => Some(began + timeout + patience),
            Some((timeout, _)) => Some(began + timeout),
            None => None,
        };
        let due = async {
            match deadline.filter(|_| urgency < Stop::Now) {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            signal = signals.next() => {
                causes.send_modify(|c| c.signal = c.signal.or(Some(signal)));
                if urgency == Stop::No && signal.number() != libc::SIGQUIT {
                    ends.stop.send_replace(Stop::Gracefully);
                } else {
                    ends.stop.send_replace(Stop::Now);
                    ends.abandon.send_replace(true);
                }
            }
            () = due => {
                causes.send_modify(|c| c.timed_out = true);
                ends.stop.send_replace(if timed_out { Stop::Now } else { urgency.max(Stop::Gracefully) });
                ends.abandon.send_replace(timed_out);
            }
            told = broken.wait_for(Option::is_some), if !broken_heard => {
                broken_heard = true;
                if told.is_ok() {
                    ends.stop.send_replace(urgency.max(Stop::Gracefully));
                }
            }
        }
    }
}

/// Runs an allocation, waits until its output is with the writer, and removes it.
async fn allocation(
    started: Started,
    ends: Ends,
    events: mpsc::UnboundedSender<AllocEvent>,
    queue: mpsc::Sender<Piece>,
    style: Style,
    labels: Arc<Labels>,
    kept_logs: Option<PathBuf>,
) -> (AllocResult, Vec<CleanupError>) {
    let Started { mut alloc, readers, shipments } = started;
    let mut reading = JoinSet::new();
    let mut finishers: Vec<Finisher> = Vec::new();
    for (follower, shape, source) in readers {
        finishers.push(follower.finisher());
        reading.spawn(copy(follower, shape, source, queue.clone(), style, Arc::clone(&labels)));
    }
    let result = alloc.run(ends.stop.subscribe(), events).await;
    finishers.iter().for_each(Finisher::finish);
    shipments.iter().for_each(Shipment::finish);
    let mut shipping = JoinSet::new();
    for shipment in shipments {
        shipping.spawn(shipment.drain(SINKS_PATIENCE));
    }
    let mut abandoned = ends.abandon.subscribe();
    let drained = async {
        while reading.join_next().await.is_some() {}
        while shipping.join_next().await.is_some() {}
    };
    tokio::select! {
        biased;
        () = drained => {}
        _ = abandoned.wait_for(|a| *a) => {}
    }
    drop((reading, shipping));
    if let Some(dir) = kept_logs {
        let (id, logs, streams) = (alloc.id().to_string(), alloc.log_dir(), kept_streams(&alloc));
        let place = dir.clone();
        let cancel = Arc::new(AtomicBool::new(false));
        let given_up = Arc::clone(&cancel);
        let kept = move || {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&place)?;
            if mutant::on("d62") {
                return std::fs::rename(logs, place.join(id)).map(|()| Vec::new());
            }
            keep::keep(&logs, &streams, &OwnDir::open(&place)?.make_new(id.as_ref(), 0o700)?, &given_up)
        };
        let mut copying = tokio::task::spawn_blocking(kept);
        // It is waited for in any case: what it reads is about to be removed.
        let in_time = async {
            // Nobody may be left who could give it up.
            if abandoned.wait_for(|a| *a).await.is_err() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(LAST_LOGS).await;
        };
        let copied = tokio::select! {
            biased;
            copied = &mut copying => Some(copied),
            () = in_time => None,
        };
        let copied = if let Some(copied) = copied {
            copied
        } else {
            cancel.store(true, Ordering::Relaxed);
            copying.await
        };
        let errors = match copied {
            Ok(Ok(errors)) => errors.iter().map(ToString::to_string).collect(),
            Ok(Err(error)) => vec![error.to_string()],
            Err(error) => vec![error.to_string()],
        };
        for error in errors {
            complain(&format!("cannot keep the logs of allocation {} in {}: {error}", alloc.id(), dir.display()));
        }
    }
    (result, alloc.destroy().await)
}

/// The streams of an allocation whose files are kept.
fn kept_streams(alloc: &Alloc) -> Vec<Kept> {
    let tasks = alloc.group().tasks.iter().filter(|task| !task.logs.disabled);
    tasks
        .flat_map(|task| {
            [Stream::Stdout, Stream::Stderr].map(|stream| Kept {
                base: format!("{}.{}", task.name, stream.name()),
                max_files: task.logs.max_files,
                // A line is not cut for the sake of a limit.
                max_bytes: (u64::from(task.logs.max_file_size_mib) << 20) + KEPT_MORE,
            })
        })
        .collect()
}

/// Hands one stream of one task to the writer.
async fn copy(
    mut follower: Follower,
    mut shape: Shape,
    source: Source,
    queue: mpsc::Sender<Piece>,
    style: Style,
    labels: Arc<Labels>,
) {
    loop {
        let piece = match follower.next().await {
            Ok(Some(Output::Data(bytes))) => shape.feed(bytes),
            Ok(Some(Output::Gap { missing_files })) => {
                Some(style.gap(&labels.of(&source.group, source.index, &source.task), &source, missing_files))
            }
            Ok(None) => break,
            Err(error) => {
                complain(&format!("cannot read the output of task {:?}: {error}", source.task));
                break;
            }
        };
        if let Some(piece) = piece {
            // The writer ends after everybody who has something for it.
            let _ = queue.send(piece).await;
        }
    }
    if let Some(piece) = shape.end() {
        let _ = queue.send(piece).await;
    }
}

/// Hands events to the writer.
async fn report(
    mut heard: mpsc::UnboundedReceiver<AllocEvent>,
    queue: mpsc::Sender<Piece>,
    style: Style,
    labels: Arc<Labels>,
) {
    while let Some(event) = heard.recv().await {
        let label = labels.of(&event.group, event.index, &event.event.task);
        if let Some(piece) = style.event(&label, &event) {
            let _ = queue.send(piece).await;
        }
    }
}

/// What tasks are called.
#[derive(Debug)]
struct Labels {
    /// The job has one task, once.
    single: bool,
    /// A task's name alone could mean several.
    ambiguous: bool,
}

impl Labels {
    fn new(job: &Job) -> Labels {
        let mut names = BTreeSet::new();
        let mut count = 0;
        let mut ambiguous = false;
        for group in &job.groups {
            for task in &group.tasks {
                count += u64::from(group.count);
                ambiguous |= group.count > 1 || !names.insert(&task.name);
            }
        }
        Labels { single: count <= 1, ambiguous }
    }

    /// `task`, or `group[0].task` where that is not clear; an allocation's own events carry its group's name.
    fn of(&self, group: &str, index: u32, task: &str) -> String {
        match (self.ambiguous, task) {
            (false, "") => group.to_owned(),
            (false, task) => task.to_owned(),
            (true, "") => format!("{group}[{index}]"),
            (true, task) => format!("{group}[{index}].{task}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Write;
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;
    use crate::alloc::fake::{self, Act, FakeDriver, task};
    use crate::alloc::{AllocStatus, Orphans, PortPool, Records, TaskError, TaskResult, scan};
    use crate::driver::DriverError;
    use crate::spec::{ExitResult, Task};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    struct Ended {
        status: i32,
        stdout: String,
        stderr: String,
    }

    async fn execute(job: Job, scripts: &[(&str, &[Act])], style: Style, timeout: Option<Duration>) -> Ended {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().canonicalize().unwrap();
        let driver: Arc<dyn crate::driver::Driver> = FakeDriver::new(scripts);
        let machine = Machine {
            node: fake::node(),
            drivers: BTreeMap::from([("fake".to_owned(), driver)]),
            host_env: BTreeMap::new(),
            records: Arc::new(Records::new(&path)),
            ports: PortPool::default(),
            cgroup: Box::new(|_, _| PathBuf::new()),
            remove_cgroup: Arc::new(|_| Ok(())),
            cpusets: None,
            orphans: Arc::new(Orphans::ignore()),
            data_dir: path.clone(),
        };
        let (job, machine) = (Arc::new(job), Arc::new(machine));
        let (sinks, outlets) = (Vec::new(), outlets(false));
        let run = Run { job, machine, style, timeout, kept_logs: None, sinks, outlets };
        let (stdout, stderr) = (Shared::default(), Shared::default());
        let writer = Writer::new(stdout.clone(), stderr.clone(), false).unwrap();
        let status = run.execute(writer, Signals::catch().unwrap()).await;
        assert!(scan(&path).unwrap().is_empty(), "nothing is left behind");
        Ended { status, stdout: stdout.text(), stderr: stderr.text() }
    }

    const PLAIN: Style = Style { json: false, quiet: false, colour: false };

    #[tokio::test]
    async fn one_task_prints_byte_for_byte() {
        let ended = execute(fake::job(vec![task("web")]), &[("web", &[Act::Print(b"a\nb")])], PLAIN, None).await;
        assert_eq!((ended.status, ended.stdout.as_str()), (0, "a\nb"));
        assert!(ended.stderr.contains("==> web: Terminated: Exit Code: 0\n"), "{}", ended.stderr);
        let quiet = Style { quiet: true, ..PLAIN };
        let ended = execute(fake::job(vec![task("web")]), &[("web", &[Act::Print(b"x")])], quiet, None).await;
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("x", ""));
    }

    #[tokio::test]
    async fn several_tasks_print_with_prefixes() {
        let scripts: &[(&str, &[Act])] = &[("a", &[Act::Print(b"1\n2")]), ("b", &[Act::Print(b"3\n")])];
        let ended = execute(fake::job(vec![task("a"), task("b")]), scripts, PLAIN, None).await;
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["a | 1", "a | 2", "b | 3"]);

        let mut job = fake::job(vec![task("a")]);
        job.groups[0].count = 2;
        let ended = execute(job, &[("a", &[Act::Print(b"x\n")])], PLAIN, None).await;
        let mut lines: Vec<&str> = ended.stdout.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["group[0].a | x", "group[1].a | x"]);
    }

    #[tokio::test]
    async fn json_is_one_object_per_line() {
        let json = Style { json: true, ..PLAIN };
        let ended = execute(fake::job(vec![task("web")]), &[("web", &[Act::Print(b"x\n")])], json, None).await;
        let objects: Vec<serde_json::Value> = ended.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert!(objects.iter().any(|o| o["type"] == "Output" && o["data"] == "x\n" && o["stream"] == "stdout"));
        assert!(objects.iter().any(|o| o["type"] == "Terminated" && o["details"]["exit_code"] == "0"));
        assert_eq!(ended.stderr, "");
    }

    #[tokio::test]
    async fn a_time_out_stops_the_job() {
        let began = Instant::now();
        let scripts: &[(&str, &[Act])] = &[("web", &[Act::UntilStopped(0)])];
        let timeout = Some(Duration::from_millis(50));
        let ended = execute(fake::job(vec![task("web")]), scripts, PLAIN, timeout).await;
        assert_eq!(ended.status, 124);
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[tokio::test]
    async fn work_that_does_not_end_is_left_when_the_time_is_up() {
        let timeout = Some(Duration::from_millis(20));
        let mut early = Early { signals: Signals::catch().unwrap(), began: std::time::Instant::now(), timeout };
        let (held, wait) = std::sync::mpsc::channel::<()>();
        assert_eq!(early.wait_for(move || wait.recv()).await.unwrap().err(), Some(TIMED_OUT));
        drop(held);
        early.timeout = None;
        assert_eq!(early.wait_for(|| 7).await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn failures_become_exit_statuses() {
        let status =
            async |act: Act| execute(fake::job(vec![task("web")]), &[("web", &[act])], PLAIN, None).await.status;
        assert_eq!(status(Act::Exit(Duration::ZERO, 3)).await, 3);
        assert_eq!(status(Act::NoStart(|| DriverError::CommandNotFound("x".to_owned()))).await, 127);
        assert_eq!(status(Act::NoStart(|| DriverError::CommandNotExecutable("x".to_owned()))).await, 126);
        assert_eq!(status(Act::NoStart(|| DriverError::Unsupported("x".to_owned()))).await, 125);
    }

    fn result(outcome: Outcome, failed: bool, at: Instant) -> AllocResult {
        let first_failure = failed.then(|| Failure { task: "t".to_owned(), at, outcome: outcome.clone() });
        let name = "t".to_owned();
        let task = TaskResult { name, outcome, failed, killed: false, ended: at, leftovers: Vec::new() };
        AllocResult { status: AllocStatus::Complete, tasks: vec![task], first_failure }
    }

    #[test]
    fn the_first_failure_of_all_allocations_decides() {
        let now = Instant::now();
        let exited = |exit_code, signal| Outcome::Exited(ExitResult { exit_code, signal, ..ExitResult::default() });
        let later = now + Duration::from_secs(1);
        let results =
            [result(exited(3, 0), true, later), result(exited(137, 9), true, now), result(exited(0, 0), false, now)];
        assert_eq!(exit_status(&results, None), 137);
        assert_eq!(exit_status(&results[..1], Some(Signal::INT)), 3);
        assert_eq!(exit_status(&results[2..], Some(Signal::INT)), 0, "it answered Ctrl-C by a good end");
        assert_eq!(exit_status(&[result(Outcome::NotStarted, false, now)], Some(Signal::TERM)), 143);
        assert_eq!(exit_status(&[result(Outcome::NotStarted, false, now)], None), 0);
        let other = TaskError { kind: TaskErrorKind::Other, message: String::new() };
        assert_eq!(exit_status(&[result(Outcome::Error(other), true, now)], None), 125);
    }

    #[test]
    fn problems_are_found_before_anything_starts() {
        let path = PathBuf::from("/nonexistent");
        let driver: Arc<dyn crate::driver::Driver> = FakeDriver::new(&[]);
        let machine = Machine {
            node: fake::node(),
            drivers: BTreeMap::from([("fake".to_owned(), driver)]),
            host_env: BTreeMap::new(),
            records: Arc::new(Records::new(&path)),
            ports: PortPool::default(),
            cgroup: Box::new(|_, _| PathBuf::new()),
            remove_cgroup: Arc::new(|_| Ok(())),
            cpusets: None,
            orphans: Arc::new(Orphans::ignore()),
            data_dir: path,
        };
        let mut bad = task("b");
        bad.config.values.insert("bad".to_owned(), true.into());
        bad.config.pos = task("b").pos;
        let job = fake::job(vec![Task { driver: "podman".to_owned(), ..task("a") }, bad]);
        assert_eq!(
            check(&job, &machine).unwrap_err().to_string(),
            "job.hcl:7: unknown driver \"podman\"; known are fake\njob.hcl:7: bad is not wanted"
        );
        assert!(check(&fake::job(vec![task("a")]), &machine).is_ok());
    }
}
