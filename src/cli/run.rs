//! `agentbin run`: a job in the foreground.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::background::{Background, Settings};
use super::config::Operator;
use super::dispatch::Dispatch;
use super::drivers::{self, check};
use super::level::Level;
use super::output::{Broken, Piece, Shape, Source, Stream, Style, Writer};
use super::plan::Plan;
use super::plugins::{self, Plugins, Wanted};
use super::revive::revive;
use super::shown::Texts;
use super::signals::Signals;
use super::{CANNOT, RunArgs, complain, detach, dry_run, messages, networks, placement, policy, tell, volumes};
use crate::alloc::control::{Control, Served, serve};
use crate::alloc::machine::{self, CgroupPlace};
use crate::alloc::{
    self, Alloc, AllocEvent, AllocResult, Assignment, CleanupError, Failure, Machine, Outcome, SINKS_TIMEOUT,
    SetupError, SocketDir, Stop, TaskErrorKind, ValuesFile, chain,
};
use crate::cgroup::Regime;
use crate::csi::Secrets;
use crate::jobspec;
use crate::logs::follower::{Finisher, Follower, Output, Start};
use crate::logs::ship::{Outlets, Report, Shipment, Sink};
use crate::spec::collections::BTreeSet;
use crate::spec::{EventKind, Group, Job, Signal};
use crate::sys::mutant;
use crate::sys::owned;
use crate::sys::task::boxed;

/// Exit status when `--timeout` expired.
const TIMED_OUT: i32 = 124;
const TIMEOUT_RAN_OUT: &str = "the job was stopped because --timeout ran out";
/// Stack of the threads besides the event loop: a job file's nesting is bounded, with space to spare.
const THREAD_STACK: usize = 8 << 20;
/// How long killing the leftovers of the job at the end may take.
pub(super) const LEFTOVERS_PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of a file with URLs of sinks.
const LONGEST_SINKS: u64 = 64 << 10;
/// How long poststop tasks may run after a timeout before everything is killed.
const LAST_WORDS: Duration = Duration::from_secs(30);

pub(super) fn run(args: &RunArgs) -> anyhow::Result<i32> {
    if args.detach && !args.supervise && !args.dry_run {
        return detach::start(args);
    }
    let runtime = crate::sys::pages::event_loop().thread_stack_size(THREAD_STACK).build().context("cannot start")?;
    let status = crate::sys::task::block_on(&runtime, async {
        let signals = Signals::catch().context("cannot catch signals")?;
        let mut early = Early { signals, began: Instant::now(), timeout: args.timeout };
        let given = args.clone();
        let Prepared { args, job, payload, operator, texts } = match early.wait_for(move || prepare(given)).await? {
            Ok(prepared) => prepared?,
            Err(status) => return Ok(status),
        };
        let (args, job) = (&args, Arc::new(job));
        if args.dry_run {
            let plan = match early.during(plan(args, &job)).await {
                Ok(plan) => plan?,
                Err(status) => return Ok(status),
            };
            let (args, job) = (args.clone(), Arc::clone(&job));
            let with_payload = !payload.is_empty();
            let show = move || dry_run::run(&args, &job, with_payload, &operator, &texts, plan.as_ref());
            return early.wait_for(show).await?.unwrap_or_else(Ok);
        }
        let sinks = sinks(&args.log_sink)?;
        let data_dir = machine::data_dir(args.data_dir.as_deref())?;
        // Comes first, so that their allocations are not taken for leftovers.
        if let Err(status) = early.during(revive(Some(&data_dir), true)).await {
            return Ok(status);
        }
        let background = args.supervise.then(|| Background::begin(&data_dir, &job.id)).transpose()?;
        let own = if background.is_some() { None } else { Some(machine::socket_dir(&data_dir)?) };
        let sockets = background.as_ref().map(Background::sockets).or(own.as_ref().map(SocketDir::path));
        let sockets = sockets.context("there is no directory of sockets")?.to_owned();
        let place = CgroupPlace::find(args.cgroup_parent.as_deref())?.enter()?;
        let owner = background.as_ref().map(Background::owner).unwrap_or_default();
        let mut machine = machine::machine_of(owner, &data_dir, &sockets, &place)?;
        Arc::make_mut(&mut machine.node).meta.extend(operator.config.meta.clone());
        args.csi.apply(&mut machine.csi)?;
        let plugin_dir = plugins::dir(args.plugin_dir.as_deref(), &operator.config);
        let plugins_given = plugins::Given {
            dir: plugin_dir.as_deref(),
            config: &operator.config,
            quiet: args.quiet,
            outlive: machine.owner.returns(),
        };
        let (wanted, of_plugins) = (Wanted::These(drivers::drivers(&job)), machine::settings(&place.cgroups, &sockets));
        let starting = Plugins::start(&plugins_given, &wanted, &of_plugins, &mut machine.drivers);
        let plugins = match early.during(starting).await {
            Ok(plugins) => plugins?,
            Err(status) => return Ok(status),
        };
        let orphans = Arc::clone(&machine.orphans);
        // However this ends, plugins are stopped before it returns.
        let done = async {
            let asking = placement::ask_drivers(&job, &machine);
            let told = match early.during(asking).await {
                Ok(told) => told,
                Err(status) => return Ok((status, false)),
            };
            Arc::make_mut(&mut machine.node).add_drivers(&told);
            if let Some(file) = &args.kv {
                let values = ValuesFile::open(file).map_err(anyhow::Error::msg)?;
                machine.values = values.with_services(&machine.services);
            }
            machine.ports = machine.ports.with(operator.networks, args.dynamic_ports.clone());
            machine.volumes = operator.volumes;
            if let Some(denylist) = &operator.config.env_denylist {
                machine.env_denylist.clone_from(denylist);
            }
            machine.networks = networks::settings(operator.config.networks(machine.networks), args);
            let machine = Arc::new(machine);
            let configs = policy::demand(args, &operator.config, &job, &machine.drivers, &plugins)?;
            let settings = || {
                let blocks = plugins.blocks(&plugins_given)?;
                let (given, meta) = (&operator.given, &operator.config.meta);
                let settings = Settings::of(args, &machine, given, meta, configs, &sinks, blocks)?;
                Ok::<_, anyhow::Error>(settings.with_payload(&payload))
            };
            let settings = background.is_some().then(settings).transpose()?;
            let (one, other) = (Arc::clone(&job), Arc::clone(&machine));
            let checking = move || {
                check(&one, &other.drivers, &texts).and_then(|()| networks::plan(&one, &other.networks, &texts))
            };
            match early.wait_for(checking).await? {
                Ok(checked) => checked?,
                Err(status) => return Ok((status, false)),
            }
            if !args.quiet && place.regime == Regime::Off {
                let why = place.why_off();
                complain(&format!("warning: {why}, so that memory and cpu limits of the tasks are not enforced"));
            }
            let swept = data_dir.clone();
            // If this is abandoned midway, the rest is left to the next run, as after a kill.
            match early.wait_for(move || alloc::sweep(&swept, &tell(), &|_, _| Secrets::default())).await? {
                Ok(swept) => swept?,
                Err(status) => return Ok((status, false)),
            }

            let one_screen = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
            let writer = Writer::new(std::io::stdout(), std::io::stderr(), one_screen).context("cannot start")?;
            let style = if args.supervise { Style::new(false, true) } else { Style::new(args.json, args.quiet) };
            let kept_logs = (args.keep_logs || args.supervise).then(|| machine::kept_logs(&data_dir));
            let outlets = outlets(args.quiet);
            let timeout = args.timeout.map(|timeout| timeout.saturating_sub(early.began.elapsed()));
            let (socket_dir, supervised) = (Some(sockets), args.supervise);
            let run = Run {
                job,
                payload,
                machine,
                style,
                timeout,
                kept_logs,
                sinks,
                outlets,
                socket_dir,
                supervised,
                background,
                settings,
                restored: None,
            };
            Ok((Box::pin(run.execute(writer, early.signals)).await, true))
        };
        let done: anyhow::Result<_> = done.await;
        plugins.end().await;
        let (status, has_run) = done?;
        if !has_run {
            return Ok(status);
        }
        match orphans.sweep(true, LEFTOVERS_PATIENCE) {
            Ok(()) => {
                messages::tidy();
                Ok(status)
            }
            Err(error) => Err(error).context("cannot make sure in /proc that what the job started has ended"),
        }
    });
    // A write that no process reads may still block a thread; the process exits without it.
    runtime.shutdown_background();
    status
}

/// The difference to what runs, where it is asked for.
async fn plan(args: &RunArgs, job: &Job) -> anyhow::Result<Option<Plan>> {
    if args.plan { Plan::of(args.data_dir.as_deref(), job).await.map(Some) } else { Ok(None) }
}

/// The sinks of the command line. A URL with a password belongs in a file, `@FILE`: every user of the machine can read command
/// lines.
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

/// What may end a run before its allocations exist.
struct Early {
    signals: Signals,
    began: Instant,
    timeout: Option<Duration>,
}

impl Early {
    /// Runs slow work on a thread that can be abandoned: the process exits without it. Returns an exit status if a signal or the
    /// timeout comes first.
    async fn wait_for<T: Send + 'static>(
        &mut self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<Result<T, i32>> {
        match self.during(crate::sys::task::spawn_blocking(work)).await {
            Ok(done) => Ok(Ok(done.context("setting the job up failed unexpectedly")?)),
            Err(status) => Ok(Err(status)),
        }
    }

    /// Awaits something that may be cancelled midway. Returns an exit status if a signal or the timeout comes first.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> Result<T, i32> {
        let due = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout.saturating_sub(self.began.elapsed())).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            signal = self.signals.next() => Err(128 + signal.number()),
            () = due => {
                complain(TIMEOUT_RAN_OUT);
                Err(TIMED_OUT)
            }
            done = work => Ok(done),
        }
    }
}

/// The sinks of this process, which report their problems on stderr.
pub(super) fn outlets(quiet: bool) -> Outlets {
    Outlets::new(Arc::new(move |report: Report| {
        if !quiet || !matches!(report, Report::Up { .. }) {
            complain(&report.to_string());
        }
    }))
}

/// The inputs of a run.
pub(super) struct Prepared {
    /// With the operator's settings.
    args: RunArgs,
    pub(super) job: Job,
    /// The payload for its `dispatch_payload`.
    payload: Vec<u8>,
    /// The operator's configuration of the machine.
    operator: Operator,
    texts: Texts,
}

pub(super) fn prepare(mut args: RunArgs) -> anyhow::Result<Prepared> {
    let operator = Operator::find(&args.config, &args.volume, &args.host_network)?;
    args.isolation_minimum = Level::stricter(args.isolation_minimum, operator.config.isolation_minimum);
    if args.isolation_minimum.is_some() && args.allow_writable_programs {
        bail!(
            "--allow-writable-programs cannot be used with isolation_minimum of the configuration; remove one of the two"
        );
    }
    let mut texts = Texts::default();
    let dispatch = Dispatch::of(&args)?;
    let job = job(&args, &operator, &dispatch, &mut texts)?;
    Ok(Prepared { args, job, payload: dispatch.payload, operator, texts })
}

fn job(args: &RunArgs, operator: &Operator, dispatch: &Dispatch, texts: &mut Texts) -> anyhow::Result<Job> {
    let parsed = parsed(&args.file, &args.var, &args.var_file, args.isolation_minimum.is_some(), texts, jobspec::parse);
    let mut parsed = parsed.map_err(|error| texts.explain(error))?;
    dispatch.give(&mut parsed)?;
    networks::check(&mut parsed, &operator.networks);
    let csi = volumes::csi_volumes(args.data_dir.as_deref(), &args.csi);
    volumes::check(&mut parsed, &operator.volumes, (&args.csi, &csi), args.isolation_minimum);
    let plugin_dir = plugins::dir(args.plugin_dir.as_deref(), &operator.config);
    let given = plugins::Given { dir: plugin_dir.as_deref(), config: &operator.config, quiet: true, outlive: false };
    placement::check(&mut parsed, args.data_dir.as_deref(), args.cgroup_parent.as_deref(), &given)?;
    if !parsed.refusals.is_empty() {
        bail!("{}", texts.show_all(&parsed.refusals));
    }
    let warnings = &parsed.warnings;
    if args.strict && !warnings.is_empty() {
        bail!("{}\nthe job is not started: --strict treats warnings as errors", warnings.join("\n"));
    }
    if !args.quiet {
        for warning in warnings {
            complain(&format!("warning: {warning}"));
        }
    }
    Ok(parsed.job)
}

/// Reads a job file with the values of its variables, and keeps the text of the files in `texts`. A job that `stays_in_dir` reads
/// no files outside of its file's directory.
pub(super) fn parsed<T>(
    file: &Path,
    var: &[String],
    var_file: &[PathBuf],
    stays_in_dir: bool,
    texts: &mut Texts,
    parse: impl FnOnce(&jobspec::Input<'_>) -> Result<T, jobspec::Error>,
) -> anyhow::Result<T> {
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
    texts.add(&file, &text);
    for (file, text) in &var_files {
        texts.add(file, text);
    }
    let input = jobspec::Input {
        file: &file,
        text: &text,
        vars: &vars,
        var_files: &var_files,
        env: &env,
        base_dir: &base_dir,
        stays_in_base_dir: stays_in_dir,
    };
    Ok(parse(&input)?)
}

fn read(path: &Path) -> anyhow::Result<String> {
    jobspec::read_file(path).with_context(|| format!("cannot read {}", path.display()))
}

/// How long the tasks of a job may take to end.
pub(super) fn patience(job: &Job) -> Duration {
    let patience = job.groups.iter().map(|group| {
        let longest = group.tasks.iter().map(|t| t.shutdown_delay + t.kill_timeout).max().unwrap_or_default();
        // The leader, the other tasks and the sidecars end one after the other.
        group.shutdown_delay + longest * 3 + LAST_WORDS
    });
    patience.max().unwrap_or(LAST_WORDS)
}

/// A job that is about to run.
pub(super) struct Run {
    pub(super) job: Arc<Job>,
    /// The payload for its `dispatch_payload`; may be empty.
    pub(super) payload: Vec<u8>,
    pub(super) machine: Arc<Machine>,
    pub(super) style: Style,
    pub(super) timeout: Option<Duration>,
    /// The directory for logs when their allocation is removed.
    pub(super) kept_logs: Option<PathBuf>,
    /// Additional destinations of all tasks' output.
    pub(super) sinks: Vec<Sink>,
    pub(super) outlets: Outlets,
    /// The directory of its control socket.
    pub(super) socket_dir: Option<PathBuf>,
    /// It runs in the background: no process reads its output, and its result is kept.
    pub(super) supervised: bool,
    /// The state that it keeps then.
    pub(super) background: Option<Background>,
    /// The settings for its next supervisor; `None` if this process is such a next one.
    pub(super) settings: Option<Settings>,
    /// The allocations that an earlier supervisor left.
    pub(super) restored: Option<Restored>,
}

/// The allocations of an earlier supervisor.
pub(super) struct Restored {
    pub(super) allocs: Vec<Alloc>,
    /// Whether these are all allocations that it left.
    pub(super) is_all: bool,
}

/// What ended a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Cause {
    timed_out: bool,
    signal: Option<Signal>,
}

/// How the parts of a run are notified of its end.
#[derive(Debug, Clone)]
struct Ends {
    stop: watch::Sender<Stop>,
    /// Output that is not written yet is discarded.
    abandon: watch::Sender<bool>,
}

/// Why a job is not set up.
enum NotSetUp {
    Failed(anyhow::Error),
    /// A stop was requested, or the timeout expired.
    Stopped,
}

/// Removes allocations that have not run.
async fn undo(started: Vec<Started>, stop: &watch::Sender<Stop>) -> Vec<CleanupError> {
    let mut leftovers = Vec::new();
    for Started { alloc, readers, shipments } in started.into_iter().rev() {
        // Their open files keep the mount of the allocations busy.
        drop((readers, shipments));
        leftovers.extend(hearing(&alloc.control(), stop, alloc.destroy()).await);
    }
    leftovers
}

/// Does something with an allocation, while the run's stop is forwarded to it.
async fn hearing<T>(control: &Control, stop: &watch::Sender<Stop>, work: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        never = control.follow(stop.subscribe()) => match never {},
        done = work => done,
    }
}

/// An allocation that has been set up, and the readers of its output.
struct Started {
    alloc: Alloc,
    readers: Vec<(Follower, Shape, Source)>,
    shipments: Vec<Shipment>,
}

impl Run {
    pub(super) async fn execute(mut self, writer: Writer, signals: Signals) -> i32 {
        let ends = Ends { stop: watch::Sender::new(Stop::No), abandon: watch::Sender::new(false) };
        let (causes, cause) = watch::channel(Cause::default());
        let broken = writer.broken();
        let control = control(ends.clone(), causes, signals, self.deadlines(), broken.clone(), self.supervised);
        let control = crate::sys::task::spawn(control);

        let began = self.background.as_ref().map_or_else(SystemTime::now, |background| background.file().began_at);
        let served = Served::new(&self.job.id, &self.machine.data_dir, self.supervised, began, ends.stop.clone());
        let restored = self.restored.take();
        let is_restored = restored.is_some();
        let (allocs, is_all) = restored.map_or_else(|| (self.allocs(), true), |r| (r.allocs, r.is_all));
        // Published before they are made, which may take long, so that they can be seen and stopped.
        for alloc in &allocs {
            served.add(alloc.control());
        }
        let ids = || allocs.iter().map(|alloc| alloc.id().to_string()).collect();
        if let (Some(background), Some(settings)) = (&self.background, &self.settings)
            && let Err(error) = background.keep(settings, ids())
        {
            complain(&format!("{error:#}"));
            return CANNOT;
        }
        if let Some(Err(error)) = self.socket_dir.as_deref().map(|dir| serve(dir, &served)) {
            complain(&chain(&error));
            return CANNOT;
        }
        let set_up = async {
            if is_restored {
                Ok((self.take_up(allocs, is_all, &served, &ends.stop).await, Vec::new()))
            } else {
                Box::pin(self.set_up(allocs, &ends.stop)).await
            }
        };
        let (mut status, mut complaints) = match set_up.await {
            Ok((started, leftovers)) => {
                let reporting = async {
                    if let (Some(kept_logs), Some(background)) = (self.kept_logs.as_deref(), &self.background)
                        && let Err(error) =
                            detach::report(Arc::clone(&served), kept_logs, background, is_restored).await
                    {
                        complain(&format!("{error:#}"));
                        ends.stop.send_modify(|stop| *stop = Stop::Gracefully.max(*stop));
                    }
                    std::future::pending::<Infallible>().await
                };
                tokio::select! {
                    biased;
                    never = reporting => match never {},
                    ended = self.run(started, leftovers, &ends, &writer, &cause) => ended,
                }
            }
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

    /// The timeout, and how long after it everything is killed.
    fn deadlines(&self) -> Option<(Duration, Duration)> {
        self.timeout.map(|timeout| (timeout, patience(&self.job)))
    }

    /// All allocations of the job; nothing of them is made yet.
    fn allocs(&self) -> Vec<Alloc> {
        let of_group = |(number, group): (usize, &Group)| {
            let assignments = (0..group.count).map(move |index| Assignment::new(&self.job, number, index));
            let alloc = |assignment| Alloc::new(&self.machine, &self.job, assignment).with_payload(&self.payload);
            assignments.map(alloc).collect::<Vec<_>>()
        };
        self.job.groups.iter().enumerate().flat_map(of_group).collect()
    }

    /// Sets up all allocations, or none; one that is stopped individually meanwhile is left out. Also returns what could not be
    /// cleaned up of those.
    async fn set_up(
        &self,
        allocs: Vec<Alloc>,
        stop: &watch::Sender<Stop>,
    ) -> Result<(Vec<Started>, Vec<CleanupError>), (NotSetUp, Vec<CleanupError>)> {
        let labels = Labels::new(&self.job);
        let (mut started, mut left): (Vec<Started>, Vec<CleanupError>) = (Vec::new(), Vec::new());
        for mut alloc in allocs {
            // Yields between two allocations, so that signals and the timeout are handled even if each setup is fast.
            tokio::task::yield_now().await;
            let control = alloc.control();
            let why = match hearing(&control, stop, alloc.set_up()).await {
                Ok(()) => match self
                    .readers(&mut alloc, &labels)
                    .and_then(|r| Ok((r, alloc.shipments(&self.sinks, &self.outlets)?)))
                {
                    Ok((readers, shipments)) => {
                        started.push(Started { alloc, readers, shipments });
                        continue;
                    }
                    Err(error) => {
                        left.extend(hearing(&control, stop, alloc.destroy()).await);
                        NotSetUp::Failed(error)
                    }
                },
                Err((SetupError::Stopped, leftovers)) => {
                    left.extend(leftovers);
                    if *stop.borrow() == Stop::No {
                        continue;
                    }
                    NotSetUp::Stopped
                }
                Err((error, leftovers)) => {
                    left.extend(leftovers);
                    NotSetUp::Failed(error.into())
                }
            };
            left.extend(undo(started, stop).await);
            return Err((why, left));
        }
        Ok((started, left))
    }

    /// Restores the allocations that an earlier supervisor left. One that cannot be restored is reported, and left for the next
    /// attempt.
    async fn take_up(
        &self,
        allocs: Vec<Alloc>,
        mut is_all: bool,
        served: &Served,
        stop: &watch::Sender<Stop>,
    ) -> Vec<Started> {
        let mut started = Vec::new();
        for mut alloc in allocs {
            tokio::task::yield_now().await;
            let control = alloc.control();
            if let Err((error, _)) = hearing(&control, stop, alloc.set_up()).await {
                complain(&format!("allocation {} cannot be recovered: {}", alloc.id(), chain(&error)));
                served.remove(alloc.id());
                is_all = false;
                continue;
            }
            let shipments = alloc.shipments(&self.sinks, &self.outlets).unwrap_or_else(|error| {
                complain(&format!("the output of allocation {} goes to no sink: {}", alloc.id(), chain(&error)));
                Vec::new()
            });
            started.push(Started { alloc, readers: Vec::new(), shipments });
        }
        if let Some(background) = &self.background {
            background.stays(!is_all);
        }
        started
    }

    fn readers(&self, alloc: &mut Alloc, labels: &Labels) -> anyhow::Result<Vec<(Follower, Shape, Source)>> {
        let mut readers = Vec::new();
        if self.supervised {
            return Ok(readers);
        }
        let followed = alloc.group().tasks.iter().filter(|t| !t.logs.disabled).map(|t| t.name.clone());
        for task in followed.collect::<Vec<_>>() {
            let notices = alloc.notices(&task);
            for stream in [Stream::Stdout, Stream::Stderr] {
                let (logs, base) = (alloc.log_dir(), format!("{task}.{}", stream.name()));
                let notice = notices.as_ref().map(|notices| match stream {
                    Stream::Stdout => &notices.stdout,
                    Stream::Stderr => &notices.stderr,
                });
                let follower = match notice {
                    Some(notice) => Follower::told(&logs, &base, Start::Beginning, notice),
                    None => Follower::open(&logs, &base, Start::Beginning),
                };
                let follower = follower.with_context(|| format!("cannot follow the logs in {}", logs.display()))?;
                let source = Source {
                    task: task.clone(),
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
                    let prefix = format!("{} | ", labels.of(&source.group, source.index, &task));
                    Shape::Prefixed { stream, prefix, pending: Vec::new() }
                };
                readers.push((follower, shape, source));
            }
        }
        Ok(readers)
    }

    /// Runs the allocations to their end; returns the exit status, and messages to print after the output.
    async fn run(
        &self,
        started: Vec<Started>,
        leftovers: Vec<CleanupError>,
        ends: &Ends,
        writer: &Writer,
        cause: &watch::Receiver<Cause>,
    ) -> (i32, Vec<String>) {
        let labels = Arc::new(Labels::new(&self.job));
        let (events, heard) = mpsc::unbounded_channel();
        let reporting = crate::sys::task::spawn(report(heard, writer.queue(), self.style, Arc::clone(&labels)));
        let mut running = JoinSet::new();
        for one in started {
            let (ends, events, queue) = (ends.clone(), events.clone(), writer.queue());
            let kept = self.kept_logs.clone();
            let kept = kept.map(|dir| (dir, self.supervised));
            running.spawn(boxed(allocation(one, ends, events, queue, self.style, Arc::clone(&labels), kept)));
        }
        drop(events);
        let mut results = Vec::new();
        let mut broken: Vec<String> = leftovers.iter().map(|e| chain(e)).collect();
        while let Some(joined) = running.join_next().await {
            match joined {
                Ok((result, leftovers)) => {
                    broken.extend(leftovers.iter().map(|e| chain(e)));
                    broken.extend(result.tasks.iter().flat_map(|t| t.leftovers.iter().cloned()));
                    results.push(result);
                }
                Err(error) => broken.push(format!("an allocation failed unexpectedly; run agentbin gc: {error}")),
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

/// The status of a job whose allocations have all ended: that of the first failure, else that of the signal that stopped it.
fn exit_status(results: &[AllocResult], signal: Option<Signal>) -> i32 {
    let first = results.iter().filter_map(|r| r.first_failure.as_ref()).min_by_key(|f| f.at);
    match (first.map(|f| &f.outcome), signal) {
        (Some(Outcome::Exited(exit)), _) if exit.signal != 0 => 128 + exit.signal,
        // The kernel killed a process of it because of memory, and the others did not notice.
        (Some(Outcome::Exited(exit)), _) if exit.oom_killed && exit.exit_code == 0 => 128 + Signal::KILL.number(),
        (Some(Outcome::Exited(exit)), _) => exit.exit_code,
        (Some(Outcome::Error(error)), _) => match error.kind {
            TaskErrorKind::CommandNotFound => 127,
            TaskErrorKind::CommandNotExecutable => 126,
            TaskErrorKind::Other => CANNOT,
        },
        (_, Some(signal)) => 128 + signal.number(),
        _ => 0,
    }
}

/// Turns signals, the timeout and a closed stdout into the end of the run.
async fn control(
    ends: Ends,
    causes: watch::Sender<Cause>,
    mut signals: Signals,
    deadlines: Option<(Duration, Duration)>,
    mut broken: Broken,
    supervised: bool,
) {
    let began = tokio::time::Instant::now();
    let mut broken_heard = false;
    let mut orders = ends.stop.subscribe();
    let raise = |urgency: Stop| ends.stop.send_modify(|stop| *stop = urgency.max(*stop));
    loop {
        let urgency = *orders.borrow_and_update();
        let Cause { timed_out, signal } = *causes.borrow();
        if urgency > Stop::No && signal.is_none() && !timed_out && !broken_heard {
            // The stop came over the control socket; it counts like the usual signal.
            causes.send_modify(|c| c.signal = Some(Signal::TERM));
        }
        if urgency == Stop::Now && !supervised {
            // The remaining output may have no reader.
            ends.abandon.send_replace(true);
        }
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
                if *ends.stop.borrow() == Stop::No && signal.number() != libc::SIGQUIT {
                    raise(Stop::Gracefully);
                } else {
                    raise(Stop::Now);
                    ends.abandon.send_replace(true);
                }
            }
            () = due => {
                causes.send_modify(|c| c.timed_out = true);
                raise(if timed_out { Stop::Now } else { Stop::Gracefully });
                ends.abandon.send_modify(|abandon| *abandon |= timed_out);
            }
            told = broken.wait_for(Option::is_some), if !broken_heard => {
                broken_heard = true;
                if told.is_ok() {
                    raise(Stop::Gracefully);
                }
            }
            // The new value is in `ends`, too.
            _ = orders.changed() => {}
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
    kept_logs: Option<(PathBuf, bool)>,
) -> (AllocResult, Vec<CleanupError>) {
    let Started { mut alloc, readers, shipments } = started;
    let mut reading = JoinSet::new();
    let (mut followed, mut finishers) = (Vec::new(), Vec::new());
    for (follower, shape, source) in readers {
        let (finisher, (told, runs)) = (follower.finisher(), watch::channel(false));
        finishers.push(finisher.clone());
        followed.push(Followed { task: source.task.clone(), finisher, runs: told });
        reading.spawn(boxed(copy(follower, shape, source, runs, queue.clone(), style, Arc::clone(&labels))));
    }
    let (told, heard) = mpsc::unbounded_channel();
    let passing = crate::sys::task::spawn(boxed(pass(heard, followed, events)));
    let result = alloc.run(ends.stop.subscribe(), told).await;
    finishers.iter().for_each(Finisher::finish);
    shipments.iter().for_each(Shipment::finish);
    let mut shipping = JoinSet::new();
    for shipment in shipments {
        shipping.spawn(boxed(shipment.drain(SINKS_TIMEOUT)));
    }
    let mut abandoned = ends.abandon.subscribe();
    let drained = async {
        let _never_fails = passing.await;
        while reading.join_next().await.is_some() {}
        while shipping.join_next().await.is_some() {}
    };
    tokio::select! {
        biased;
        () = drained => {}
        _ = abandoned.wait_for(|a| *a) => {}
    }
    drop((reading, shipping));
    if let Some((dir, and_view)) = kept_logs {
        let given_up = async {
            // The sender may be gone; then it is never given up.
            if abandoned.wait_for(|a| *a).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let mut errors = alloc.keep_logs(&dir, given_up).await;
        if and_view {
            errors.extend(alloc.keep_view(&dir).err().map(|e| e.to_string()));
        }
        for error in errors {
            complain(&format!("cannot keep the logs of allocation {} in {}: {error}", alloc.id(), dir.display()));
        }
    }
    let control = alloc.control();
    (result, hearing(&control, &ends.stop, alloc.destroy()).await)
}

/// Output of a task that is read before its start has been told waits for that, up to this many pieces (of 64 KiB at most).
const MOST_EARLY: usize = 16;

/// One stream of a task, as far as events concern its reader.
struct Followed {
    task: String,
    finisher: Finisher,
    /// The task has started, and that has been told.
    runs: watch::Sender<bool>,
}

/// Passes the events of an allocation on. The start of a task comes before what it writes, and its end behind that.
async fn pass(
    mut heard: mpsc::UnboundedReceiver<AllocEvent>,
    followed: Vec<Followed>,
    events: mpsc::UnboundedSender<AllocEvent>,
) {
    while let Some(event) = heard.recv().await {
        let kind = event.event.kind;
        let concerned: Vec<&Followed> = followed.iter().filter(|one| one.task == event.event.task).collect();
        if kind == EventKind::Terminated {
            for one in &concerned {
                one.runs.send_replace(true);
                one.finisher.caught_up().await;
                one.runs.send_replace(false);
            }
        }
        let _ = events.send(event);
        if kind == EventKind::Started {
            for one in concerned {
                one.runs.send_replace(true);
            }
        }
    }
}

/// Passes one stream of one task to the writer, while the task `runs` and when no more is told.
async fn copy(
    mut follower: Follower,
    mut shape: Shape,
    source: Source,
    mut runs: watch::Receiver<bool>,
    queue: mpsc::Sender<Piece>,
    style: Style,
    labels: Arc<Labels>,
) {
    let (mut early, mut all_told) = (Vec::new(), false);
    loop {
        let waits = !all_told && !*runs.borrow();
        if !waits || early.len() >= MOST_EARLY {
            for piece in early.drain(..) {
                // The writer ends after all senders.
                let _ = queue.send(piece).await;
            }
        }
        let read = tokio::select! {
            biased;
            told = runs.wait_for(|runs| *runs), if waits => {
                all_told |= told.is_err();
                continue;
            }
            read = follower.next() => read,
        };
        match read {
            Ok(Some(Output::Data(bytes))) => early.extend(shape.feed(bytes)),
            Ok(Some(Output::Gap { missing_files })) => {
                let label = labels.of(&source.group, source.index, &source.task);
                early.push(style.gap(&label, &source, missing_files));
            }
            Ok(None) => break,
            Err(error) => {
                complain(&format!("cannot read the output of task {:?}: {error}", source.task));
                break;
            }
        }
    }
    for piece in early.into_iter().chain(shape.end()) {
        let _ = queue.send(piece).await;
    }
}

/// Passes events to the writer.
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

/// The labels of tasks.
#[derive(Debug)]
struct Labels {
    /// The job has one task in one allocation.
    single: bool,
    /// A task's name alone is ambiguous.
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

    /// `task`, or `group[0].task` if that is ambiguous; an allocation's own events have its group's name.
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
    use std::io::Write;
    use std::sync::Mutex;

    use tokio::time::Instant;

    use super::*;
    use crate::alloc::Owner;
    use crate::alloc::fake::{self, Act, FakeDriver, task};
    use crate::alloc::{AllocStatus, TaskError, TaskResult, scan};
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
        let driver = FakeDriver::new(scripts);
        let machine = fake::machine(&path, &driver, Owner::default());
        let (job, machine) = (Arc::new(job), Arc::new(machine));
        let (sinks, outlets) = (Vec::new(), outlets(false));
        let run = Run {
            payload: Vec::new(),
            job,
            machine,
            style,
            timeout,
            kept_logs: None,
            sinks,
            outlets,
            socket_dir: None,
            supervised: false,
            background: None,
            settings: None,
            restored: None,
        };
        let (stdout, stderr) = (Shared::default(), Shared::default());
        let writer = Writer::new(stdout.clone(), stderr.clone(), false).unwrap();
        let status = Box::pin(run.execute(writer, Signals::catch().unwrap())).await;
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
        AllocResult { status: AllocStatus::Complete, tasks: vec![task], first_failure, left: false, anew: false }
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
        assert_eq!(
            exit_status(&results[2..], Some(Signal::INT)),
            130,
            "whoever asked knows that it did not end by itself"
        );
        assert_eq!(exit_status(&results[2..], None), 0);
        assert_eq!(exit_status(&[result(Outcome::NotStarted, false, now)], Some(Signal::TERM)), 143);
        assert_eq!(exit_status(&[result(Outcome::NotStarted, false, now)], None), 0);
        let other = TaskError { kind: TaskErrorKind::Other, message: String::new() };
        assert_eq!(exit_status(&[result(Outcome::Error(other), true, now)], None), 125);
    }

    #[test]
    fn problems_are_found_before_anything_starts() {
        let path = PathBuf::from("/nonexistent");
        let driver = FakeDriver::new(&[]);
        let machine = fake::machine(&path, &driver, Owner::default());
        let mut bad = task("b");
        bad.config.values.insert("bad".to_owned(), true.into());
        bad.config.pos = task("b").pos;
        let job = fake::job(vec![Task { driver: "podman".to_owned(), ..task("a") }, bad]);
        assert_eq!(
            check(&job, &machine.drivers, &Texts::default()).unwrap_err().to_string(),
            "job.hcl:7: unknown driver \"podman\"; known are fake\njob.hcl:7: bad is not wanted"
        );
        assert!(check(&fake::job(vec![task("a")]), &machine.drivers, &Texts::default()).is_ok());
    }
}
