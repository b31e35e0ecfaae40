//! The life of one task: set up, start, wait, restart or not.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Stop;
use super::chain::chain;
use super::control::TaskControl;
use super::csi_plugin;
use super::env::{TaskEnv, TooLarge};
use super::error::SetupError;
use super::hook::Stack;
use super::lifecycle::TaskState;
use super::node::compute;
use super::place::keeper;
use super::ports::AllocPort;
use super::prestart;
use super::record::{Handle, RecordError};
use super::restart::{End, Tracker, Verdict, WITHIN_POLICY, restarts_on_success};
use super::service::Offered;
use super::setup::Setup;
use super::shared::{Shared, leaving, random, stop_at_least};
use super::state::{Counted, Phase, Rendered, Started, State, Why};
use super::text::go_duration;
use super::users::Runs;
use crate::cgroup::{self, Cores, Cpusets};
use crate::driver::{Driver, DriverError, DriverNetwork, TaskConfig, TaskHandle};
use crate::executor::Compute;
use crate::plugin::Reattach;
use crate::spec::{CpuSet, EventKind, ExitResult, LogCollection, MemoryLimits, Neighbours, Pos, Resources, Task};

/// How long killing the leftovers of a lost executor may take; the other tasks wait meanwhile.
pub(super) const SWEEP_PATIENCE: Duration = Duration::from_secs(5);

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It never ran.
    NotStarted,
    /// The exit of its last process.
    Exited(ExitResult),
    /// It could not be set up, started or waited for.
    Error(TaskError),
}

/// Why a task could not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    /// The class of the error, for decisions.
    pub kind: TaskErrorKind,
    /// The action that failed, its subject and the cause.
    pub message: String,
}

/// See [`TaskError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskErrorKind {
    /// The command does not exist (exit status 127 of `run`).
    CommandNotFound,
    /// The command cannot be executed (126).
    CommandNotExecutable,
    /// Everything else (125).
    Other,
}

/// The result of one task.
#[derive(Debug)]
pub struct TaskResult {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The restart policy counts it as a failure.
    pub failed: bool,
    /// Whether it was stopped.
    pub killed: bool,
    /// When it ended.
    pub ended: Instant,
    /// What could not be cleaned up.
    pub leftovers: Vec<String>,
}

/// Runs one task to its end.
pub(super) struct TaskRunner {
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) task: Arc<Task>,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) env: TaskEnv,
    /// The user that it runs as.
    pub(super) runs: Runs,
    /// The other tasks that write below the allocation's directory.
    pub(super) neighbours: Neighbours,
    pub(super) cgroup: PathBuf,
    /// Its reserved cores, once it has them.
    pub(super) cores: Option<CpuSet>,
    /// Its services, while they are registered.
    pub(super) offered: Offered,
    /// Opened when the group's order allows the task to start.
    pub(super) gate: watch::Receiver<bool>,
    pub(super) stop: watch::Receiver<Stop>,
    /// Becomes true when its owner exits and the task is left running.
    pub(super) leave: watch::Receiver<bool>,
    pub(super) states: mpsc::UnboundedSender<(usize, TaskState)>,
    /// The state in which an earlier process left it, until it is restored.
    pub(super) earlier: Option<Box<State>>,
}

/// Requests for a running task.
pub(super) struct Wishes {
    /// The reason, in Nomad's words.
    restarts: watch::Receiver<&'static str>,
    /// The reason.
    unhealthy: watch::Receiver<String>,
}

/// One start of a task that its driver knows.
pub(super) struct Instance {
    pub(super) id: String,
    /// Where the task's `config` is in its job file.
    pub(super) pos: Pos,
    /// Forwards its events.
    pub(super) _events: JoinSet<()>,
}

/// The result of one start.
pub(super) enum Attempt {
    /// A stop came before it was started.
    Abandoned,
    /// Its owner exits; the task goes on, or the next owner starts it.
    Left,
    Failed(TaskError, bool),
    /// An earlier process had started it, and its driver cannot find it again. Nothing of it runs.
    Lost,
    Ended {
        result: Result<ExitResult, TaskError>,
        why: Why,
        /// Its driver has destroyed it, so nothing of it runs.
        gone: bool,
    },
}

impl TaskRunner {
    /// `None` if its owner exits before the task ends.
    pub(super) async fn run(mut self: Box<Self>) -> Option<TaskResult> {
        let mut result = TaskResult {
            name: self.task.name.clone(),
            outcome: Outcome::NotStarted,
            failed: false,
            killed: false,
            ended: Instant::now(),
            leftovers: Vec::new(),
        };
        let on_success = restarts_on_success(self.shared.kind, &self.task);
        let tracker = Tracker::new(self.task.restart, on_success, Instant::now());
        let has_begun = self.earlier.as_ref().is_some_and(|state| state.handle.is_some() || state.undecided.is_some());
        if self.earlier.is_none() {
            self.event(EventKind::Received, "Task received by client", &[]);
        }
        if has_begun || self.wait_for_gate().await {
            if self.earlier.is_none() {
                self.tell_of_ports();
            }
            if !self.starts(tracker, &mut result).await {
                return None;
            }
            self.give_back(&mut result.leftovers);
        } else if self.is_leaving() {
            return None;
        } else {
            result.killed = true;
        }
        result.ended = Instant::now();
        self.control().update(|state| state.killed = result.killed);
        self.state(TaskState::Dead { failed: result.failed });
        self.shared.save();
        Some(result)
    }

    /// Warns about a job that was written for a network of its own: it makes its program listen on `to`, where no client will
    /// connect.
    fn tell_of_ports(&self) {
        let own = |port: &&AllocPort| port.task.as_ref().is_none_or(|task| *task == self.task.name);
        for port in self.shared.ports.iter().filter(own).filter(|_| !self.shared.maps_ports) {
            let AllocPort { label, value, .. } = port;
            if let Some(to) = port.to.filter(|to| to != value) {
                let message = format!(
                    "Port {label:?} is {value} (NOMAD_HOST_PORT_{label}), and the task has to listen there: it uses the \
                     host's network, so that nothing leads to {to}, which `to` and NOMAD_PORT_{label} say"
                );
                let details = [("port", label.clone()), ("host_port", value.to_string()), ("to", to.to_string())];
                self.event(EventKind::Driver, message, &details);
            }
        }
    }

    /// Starts the task until the restart policy ends it; `false` if its owner exits before that.
    async fn starts(&mut self, mut tracker: Tracker, result: &mut TaskResult) -> bool {
        let mut setup = self.setup();
        let mut steps = prestart::steps();
        let mut earlier = self.earlier.take();
        if let Some(state) = &earlier {
            tracker.resume(state.counted, Instant::now(), SystemTime::now());
            self.cores.clone_from(&state.cores);
            self.take_up(state, &mut steps, &mut setup).await;
            if let Some(at) = state.restart_at.filter(|_| state.handle.is_none() && state.undecided.is_none()) {
                let delay = at.duration_since(SystemTime::now()).unwrap_or_default().min(tracker.longest_delay());
                if self.is_over_within(delay, result).await {
                    return !self.is_leaving();
                }
            }
        }
        loop {
            let begun = earlier.take().filter(|state| state.handle.is_some() || state.undecided.is_some());
            let attempt = if let Some(state) = begun {
                Box::pin(self.resume(&state, &mut setup, &mut result.leftovers)).await
            } else {
                self.control().update(|state| (state.phase, state.restart_at) = (Phase::Starting, None));
                self.attempt(&mut steps, &mut setup, &mut result.leftovers).await
            };
            let end = match attempt {
                Attempt::Left => return false,
                Attempt::Abandoned => End::Killed,
                // As with Nomad, it is started at once: the restart policy is not asked, and does not count it.
                Attempt::Lost => {
                    self.state(TaskState::Pending);
                    continue;
                }
                Attempt::Failed(error, recoverable) => {
                    result.outcome = Outcome::Error(error);
                    End::StartError { recoverable }
                }
                Attempt::Ended { result: ended, why, gone } => {
                    result.outcome = match ended.clone() {
                        Ok(exit) => Outcome::Exited(exit),
                        Err(error) => Outcome::Error(error),
                    };
                    match ended {
                        _ if why == Why::Stopped => End::Killed,
                        // It counts as a failure even if the task exited successfully.
                        _ if why == Why::Unhealthy => {
                            self.not_a_success(result, "is unhealthy");
                            End::StartError { recoverable: gone }
                        }
                        _ if why == Why::Failed => {
                            self.not_a_success(result, "was killed: it could not be told of a changed template");
                            End::Failed
                        }
                        // It may still run; a second instance would use the same ports and files.
                        Err(_) if why == Why::Restart && !gone => End::StartError { recoverable: false },
                        _ if why == Why::Restart => End::RestartRequested,
                        Ok(exit) => End::Exit(exit),
                        Err(_) => End::StartError { recoverable: true },
                    }
                }
            };
            self.refresh();
            tracker.follow(self.task.restart);
            let verdict = tracker.next(end, Instant::now(), random());
            let counted = tracker.counted(Instant::now(), SystemTime::now());
            if self.task.restart.render_templates {
                setup.files = Arc::default();
                steps.repeat_from("template");
                self.control().update(|state| state.done = steps.done());
            }
            if !self.follows(verdict, counted, result).await {
                return !self.is_leaving();
            }
        }
    }

    /// The task was killed for a failure, which it did not notice itself.
    fn not_a_success(&self, result: &mut TaskResult, why: &str) {
        if matches!(&result.outcome, Outcome::Exited(exit) if exit.successful()) {
            let (kind, message) = (TaskErrorKind::Other, format!("task {:?} {why}", self.task.name));
            result.outcome = Outcome::Error(TaskError { kind, message });
        }
    }

    /// What the steps before a start work on.
    fn setup(&self) -> Setup {
        Setup {
            shared: Arc::clone(&self.shared),
            task: Arc::clone(&self.task),
            env: self.env.clone(),
            enters: self.runs.enters(),
            driver_mounts: !self.driver.capabilities().no_mounts,
            mounts: Vec::new(),
            cancel: Arc::default(),
            bare_env: self.env.clone(),
            fetched: Vec::new(),
            files: Arc::default(),
            rendered: Rendered::default(),
            pending: Vec::new(),
            is_first_render: false,
            services_return_by: None,
            stop: self.stop.clone(),
            leave: self.leave.clone(),
        }
    }

    /// Applies the decision of the restart policy; `true` if the task is to be started again now.
    async fn follows(&mut self, verdict: Verdict, counted: Counted, result: &mut TaskResult) -> bool {
        match verdict {
            Verdict::Killed => {
                result.killed = true;
                false
            }
            Verdict::Terminated { .. } => false,
            Verdict::Failed => {
                result.failed = true;
                false
            }
            Verdict::NotRestarting { reason } => {
                result.failed = true;
                let details = [("restart_reason", reason.clone()), ("fails_task", "true".to_owned())];
                self.event(EventKind::NotRestarting, reason, &details);
                false
            }
            Verdict::Restart { delay, reason } => {
                let message = match reason.as_str() {
                    "" | WITHIN_POLICY => format!("Task restarting in {}", go_duration(delay)),
                    why => format!("{why} - Task restarting in {}", go_duration(delay)),
                };
                let details = [("restart_reason", reason), ("start_delay", delay.as_nanos().to_string())];
                self.event(EventKind::Restarting, message, &details);
                self.control().update(|state| {
                    state.restarts += 1;
                    state.counted = counted;
                    state.last_restart = Some(SystemTime::now());
                    (state.undecided, state.restart_at) = (None, Some(SystemTime::now() + delay));
                });
                self.state(TaskState::Pending);
                self.shared.save();
                !self.is_over_within(delay, result).await
            }
        }
    }

    /// Waits before a start; `true` if the start is cancelled because of a stop, or because its owner exits.
    async fn is_over_within(&mut self, delay: Duration, result: &mut TaskResult) -> bool {
        tokio::select! {
            biased;
            () = leaving(&mut self.leave) => true,
            () = stop_at_least(&mut self.stop, Stop::Gracefully) => {
                result.killed = true;
                true
            }
            () = tokio::time::sleep(delay) => false,
        }
    }

    async fn attempt(&mut self, steps: &mut Stack<Setup>, setup: &mut Setup, leftovers: &mut Vec<String>) -> Attempt {
        // Boxed, so that what only a start needs takes no memory while the task runs.
        match Box::pin(self.begin(steps, setup, leftovers)).await {
            Ok((instance, wishes)) => self.follow(instance, setup, wishes, leftovers).await,
            Err(ended) => ended,
        }
    }

    /// Starts the task, after the steps before it.
    async fn begin(
        &mut self,
        steps: &mut Stack<Setup>,
        setup: &mut Setup,
        leftovers: &mut Vec<String>,
    ) -> Result<(Instance, Wishes), Attempt> {
        // It begins with the files as they are now.
        setup.pending.clear();
        let made = self.set_up(steps, setup).await;
        self.control().update(|state| {
            state.done = steps.done();
            state.fetched_artifacts.clone_from(&setup.fetched);
            state.rendered.clone_from(&setup.rendered);
        });
        if self.is_leaving() {
            return Err(Attempt::Left);
        }
        if let Err((name, error)) = made {
            if self.is_stopping() {
                return Err(Attempt::Abandoned);
            }
            let message = chain(&error);
            // As with Nomad, whatever its reason is: the server may have another answer the next time.
            let recoverable = matches!(error, SetupError::Artifact { .. });
            if recoverable {
                self.event(EventKind::FailedArtifactDownload, &message, &[("download_error", message.clone())]);
            } else {
                let said = format!("{name}: {message}");
                self.event(EventKind::HookFailed, &said, &[("message", said.clone())]);
            }
            return Err(Attempt::Failed(TaskError { kind: TaskErrorKind::Other, message }, recoverable));
        }
        if self.is_stopping() {
            return Err(Attempt::Abandoned);
        }
        let mut config = match self.config(&setup.env) {
            Ok(config) => config,
            Err(error) => {
                let message = format!("{}: task {:?}: {error}", self.task.config.pos, self.task.name);
                self.event(EventKind::SetupFailure, &message, &[("setup_error", message.clone())]);
                return Err(Attempt::Failed(TaskError { kind: TaskErrorKind::Other, message }, false));
            }
        };
        config.mounts.clone_from(&setup.mounts);
        let driver = Arc::clone(&self.driver);
        let events = self.pass_on_events(&config.id);
        let placed = self.place(&mut config);
        // The whole machine where its compute is not known.
        config.percent_ticks = (config.resources.cpu_shares as f64 / compute().total_mhz as f64).min(1.0);
        let (started, given_up) = match placed {
            Ok(()) => self.start(&*driver, &config).await,
            Err(error) => (Err(error), false),
        };
        self.settle();
        let wishes = self.wishes();
        let noted = started.and_then(|handle| {
            self.note_start(&config.id, handle).map_err(|e| {
                let message = format!("{}; the task was not kept", chain(&e));
                DriverError::Failed { message, recoverable: true }
            })
        });
        if let Err(error) = noted {
            self.control().update(|state| state.handle = None);
            self.destroy(&config.id, leftovers).await;
            self.sweep_orphans(leftovers);
            if given_up {
                return Err(if self.is_leaving() { Attempt::Left } else { Attempt::Abandoned });
            }
            // Reported even if the task is about to be stopped: by then it may have run.
            let recoverable = matches!(error, DriverError::Failed { recoverable: true, .. }) && !self.is_stopping();
            let error = self.task_error(&error, &config.config.pos);
            self.event(EventKind::DriverFailure, &error.message, &[("driver_error", error.message.clone())]);
            return Err(Attempt::Failed(error, recoverable));
        }
        self.event(EventKind::Started, "Task started by client", &[]);
        self.state(TaskState::Running);
        Ok((Instance { id: config.id, pos: config.config.pos, _events: events }, wishes))
    }

    /// The requests from now on; subscribe before the task is visible as running.
    pub(super) fn wishes(&self) -> Wishes {
        Wishes { restarts: self.control().restarts(), unhealthy: self.control().unhealthy() }
    }

    /// Records that the task has been started, before anything depends on it.
    fn note_start(&self, id: &str, handle: TaskHandle) -> Result<(), RecordError> {
        let TaskHandle { driver_state, executor, network } = handle;
        let helper = executor.map(|Reattach { process, socket }| Handle { task_id: id.to_owned(), process, socket });
        self.control().update(|state| {
            state.handle = Some(Started { id: id.to_owned(), state: driver_state, network });
            (state.driver_id, state.started) = (Some(id.to_owned()), Some(SystemTime::now()));
            (state.phase, state.finished, state.exit) = (Phase::Running, None, None);
            (state.undecided, state.ordered) = (None, None);
            state.cores.clone_from(&self.cores);
            state.starts += 1;
        });
        if helper.is_none() && !self.shared.returns {
            return Ok(());
        }
        self.shared.records.task_started(id, helper, || self.shared.control.states())
    }

    /// Waits for the end of a start, with its services registered; handles requests meanwhile, and cleans up after it.
    pub(super) async fn follow(
        &mut self,
        instance: Instance,
        setup: &mut Setup,
        wishes: Wishes,
        leftovers: &mut Vec<String>,
    ) -> Attempt {
        let driver = Arc::clone(&self.driver);
        let Wishes { mut restarts, mut unhealthy } = wishes;
        let network = self.control().state().handle.and_then(|started| started.network);
        let mut updates = self.shared.control.updates();
        self.offer(setup, network.as_ref()).await;
        let plugin = csi_plugin::supervise(&self.shared, self.number, &self.task, setup.driver_mounts);
        let mut wait = driver.wait_task(&instance.id);
        let mut stop = self.stop.clone();
        let stop_changed = async |stop: &mut watch::Receiver<Stop>| stop_at_least(stop, Stop::Gracefully).await;
        let mut leave = self.leave.clone();
        let ordered = self.control().state().ordered;
        let ending = async {
            let next = async {
                loop {
                    tokio::select! {
                        biased;
                        ended = &mut wait => return Err(ended),
                        () = stop_changed(&mut stop) => return Ok(Why::Stopped),
                        // The sender lives in the allocation's control.
                        _ = updates.changed() => self.offer(setup, network.as_ref()).await,
                        // The sender lives in the allocation's control.
                        _ = restarts.changed() => {
                            let reason = *restarts.borrow();
                            let details = [("restart_reason", reason.to_owned())];
                            self.event(EventKind::RestartSignaled, reason, &details);
                            return Ok(Why::Restart);
                        }
                        _ = unhealthy.changed() => {
                            let reason = unhealthy.borrow().clone();
                            self.event(EventKind::RestartSignaled, &reason, &[("restart_reason", reason.clone())]);
                            return Ok(Why::Unhealthy);
                        }
                        failed = self.follow_templates(&instance.id, setup) => {
                            if let Some(reason) = failed {
                                self.event(EventKind::Killing, reason, &[("fails_task", "true".to_owned())]);
                                return Ok(Why::Failed);
                            }
                            self.event(EventKind::RestartSignaled, "Template with change_mode restart re-rendered", &[]);
                            return Ok(Why::Restart);
                        }
                    }
                }
            };
            let why = match ordered {
                Some(why) => {
                    drop(next);
                    why
                }
                None => match next.await {
                    Ok(why) => why,
                    Err(ended) => return (ended, Why::Itself),
                },
            };
            // Recorded first, so that a later owner goes on with the stop, and does not take its result for the task's own end.
            if why != Why::Stopped && ordered.is_none() {
                self.control().update(|state| state.ordered = Some(why));
                self.shared.save();
            }
            let ended = self.kill(&instance.id, why, &mut wait).await;
            (ended, if self.is_stopping() && why != Why::Failed { Why::Stopped } else { why })
        };
        let ended = tokio::select! {
            biased;
            () = leaving(&mut leave) => None,
            ended = ending => Some(ended),
        };
        drop(wait);
        // Also when the task is left running: without a supervising process its services are not kept registered. Its next owner
        // registers them again.
        self.shared.offers.withdraw(&mut self.offered).await;
        drop(plugin);
        let Some((ended, why)) = ended else { return Attempt::Left };
        csi_plugin::ended(&self.shared, &self.task);
        let exit = ended.as_ref().ok().copied();
        // Recorded before its executor is destroyed, which is the only other process that knows the exit status.
        self.control().update(|state| {
            (state.driver_id, state.finished, state.exit) = (None, Some(SystemTime::now()), exit);
            (state.undecided, state.ordered) = (Some(why), None);
        });
        self.shared.save();
        let result = ended.map_err(|e| self.task_error(&e, &instance.pos));
        match &result {
            Ok(exit) => self.terminated(*exit, driver.exit_message(exit)),
            Err(error) => {
                self.event(EventKind::DriverFailure, &error.message, &[("driver_error", error.message.clone())]);
            }
        }
        if matches!(why, Why::Stopped | Why::Failed) && !self.is_for_restart(why) {
            self.event(EventKind::Killed, "Task successfully killed", &[]);
        }
        let gone = self.destroy(&instance.id, leftovers).await;
        if result.is_err() {
            self.sweep_orphans(leftovers);
        }
        Attempt::Ended { result, why, gone }
    }

    /// Registers its services, in the current version of its job.
    async fn offer(&mut self, setup: &Setup, network: Option<&DriverNetwork>) {
        let offers = &self.shared.offers;
        for error in offers.offer_task(self.number, &setup.env, network, &mut self.offered).await {
            self.event(EventKind::Driver, error, &[]);
        }
    }

    /// Adopts the current version of its job: how it is stopped and restarted.
    pub(super) fn refresh(&mut self) {
        if let Some(updated) = self.shared.control.updated() {
            let Task { restart, kill_timeout, kill_signal, shutdown_delay, .. } = &updated.group().tasks[self.number];
            let task = Arc::make_mut(&mut self.task);
            (task.restart, task.kill_timeout) = (*restart, *kill_timeout);
            (task.kill_signal, task.shutdown_delay) = (*kill_signal, *shutdown_delay);
        }
    }

    /// Starts the task. A stop makes the driver cancel the start if it can; its answer is waited for in any case, because the task
    /// may have been created by then. Also returns whether an error is due to the cancellation.
    async fn start(&self, driver: &dyn Driver, config: &TaskConfig) -> (Result<TaskHandle, DriverError>, bool) {
        let (mut stop, mut leave) = (self.stop.clone(), self.leave.clone());
        let mut starting = driver.start_task(config);
        let given_up = tokio::select! {
            biased;
            started = &mut starting => return (started, false),
            () = stop_at_least(&mut stop, Stop::Gracefully) => driver.give_up_start(&config.id),
            () = leaving(&mut leave) => driver.give_up_start(&config.id),
        };
        let started = starting.await;
        let given_up = given_up && started.is_err();
        (started, given_up)
    }

    /// Forwards the driver's events of this start, until the returned value is dropped.
    pub(super) fn pass_on_events(&self, id: &str) -> JoinSet<()> {
        let mut passing = JoinSet::new();
        let Some(mut events) = self.driver.task_events() else { return passing };
        let (shared, name, id) = (Arc::clone(&self.shared), self.task.name.clone(), id.to_owned());
        passing.spawn(crate::sys::task::boxed(async move {
            loop {
                match events.recv().await {
                    Ok(event) if event.task_id == id => {
                        let details: Vec<_> = event.annotations.iter().map(|(k, v)| (k.as_str(), v.clone())).collect();
                        shared.event(&name, EventKind::Driver, event.message, &details);
                    }
                    Ok(_) | Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        }));
        passing
    }

    /// Sets the task's cores: its reserved ones, which it keeps from its first start to its last end, or those that no task has
    /// reserved.
    fn place(&mut self, config: &mut TaskConfig) -> Result<(), DriverError> {
        let cores = self.task.resources.cores;
        let name = config.cgroup.file_name().and_then(OsStr::to_str);
        let (Some(cpusets), Some(name)) = (&self.shared.cpusets, name) else {
            let message = "cores cannot be reserved here: there is no cpuset controller for tasks, or agentbin does not \
                           run as root; ask for cpu instead";
            let error = DriverError::Failed { message: message.to_owned(), recoverable: false };
            return if cores == 0 { Ok(()) } else { Err(error) };
        };
        let failed = |error: cgroup::Error| DriverError::Failed { message: chain(&error), recoverable: true };
        if cores == 0 {
            if let Some(shared) = cpusets.restricted().map_err(failed)? {
                config.resources.cpuset_cpus = shared.to_string();
            }
            return Ok(());
        }
        let own = match self.cores.clone() {
            Some(own) => own,
            None => cpusets.reserve(&Cpusets::keeper(name), &Cores::Any(cores)).map_err(failed)?,
        };
        self.cores = Some(own.clone());
        let own = cpusets.reserve(name, &Cores::Exactly(own)).map_err(failed)?.to_string();
        let Compute { total_mhz, cores: all } = compute();
        let mhz = u64::from(cores) * (total_mhz / u64::from(all.max(1)));
        config.resources.cpu_shares = mhz;
        config.env.insert("NOMAD_CPU_LIMIT".to_owned(), mhz.to_string());
        config.env.insert("NOMAD_CPU_CORES".to_owned(), own.clone());
        config.resources.cpuset_cpus = own;
        Ok(())
    }

    /// Ends the reservation; the cgroup of the last run is gone.
    fn give_back(&mut self, leftovers: &mut Vec<String>) {
        if self.cores.take().is_none() {
            return;
        }
        if let Some(keeper) = keeper(&self.cgroup)
            && let Err(error) = (self.shared.remove_cgroup)(&keeper)
        {
            leftovers.push(format!("task {:?} keeps its cores: {error}", self.task.name));
        }
        self.settle();
    }

    /// Cores were reserved or released, perhaps by another process at the same time.
    fn settle(&self) {
        if let Some(Err(error)) = self.shared.cpusets.as_ref().map(Cpusets::settle) {
            tracing::warn!(error = chain(&error), "cannot divide the cores among the tasks");
        }
    }

    /// Lets the driver destroy a task that ended or did not start, with its helper. Returns whether that succeeded.
    pub(super) async fn destroy(&self, id: &str, leftovers: &mut Vec<String>) -> bool {
        let destroyed = match self.driver.destroy_task(id, false).await {
            Err(DriverError::Failed { .. }) => self.driver.destroy_task(id, true).await,
            other => other,
        };
        self.settle();
        let name = &self.task.name;
        match destroyed {
            Ok(()) => {
                self.control().update(|state| state.handle = None);
                if let Err(error) = self.shared.records.task_ended(id, || self.shared.control.states()) {
                    leftovers.push(format!("task {name:?}: {}", chain(&error)));
                }
            }
            Err(DriverError::TaskNotFound) => {}
            Err(error) => {
                leftovers.push(format!("task {name:?} cannot be cleaned up: {}", chain(&error)));
                return false;
            }
        }
        true
    }

    /// The orphans of a lost executor become children of this process.
    pub(super) fn sweep_orphans(&self, leftovers: &mut Vec<String>) {
        if let Err(error) = self.shared.orphans.sweep(false, SWEEP_PATIENCE) {
            leftovers.push(format!("task {:?} cannot be cleaned up: {error}", self.task.name));
        }
    }

    /// Runs the steps; a stop cancels them, but they are waited for, because they write into the task's directory.
    async fn set_up(&self, steps: &mut Stack<Setup>, setup: &mut Setup) -> Result<(), (&'static str, SetupError)> {
        let cancel = Arc::clone(&setup.cancel);
        let (mut stop, mut leave) = (self.stop.clone(), self.leave.clone());
        let mut running = std::pin::pin!(steps.run(setup));
        tokio::select! {
            biased;
            result = &mut running => return result,
            () = stop_at_least(&mut stop, Stop::Gracefully) => cancel.store(true, Ordering::Relaxed),
            () = leaving(&mut leave) => cancel.store(true, Ordering::Relaxed),
        }
        running.await
    }

    pub(super) fn config(&self, env: &TaskEnv) -> Result<TaskConfig, TooLarge> {
        let Task { name, logs, resources, .. } = &*self.task;
        let unique = crate::sys::random::uuid().simple().to_string();
        let collection = (!logs.disabled).then(|| LogCollection {
            dir: self.shared.dir.logs(),
            stdout_file: format!("{name}.stdout"),
            stderr_file: format!("{name}.stderr"),
            max_files: logs.max_files,
            max_file_size_bytes: u64::from(logs.max_file_size_mib) * 1024 * 1024,
            keeping: logs.keeping,
        });
        let variable = |name: &str| env.vars().get(name).cloned().unwrap_or_default();
        let (ports, own) = (&self.shared.ports, Some(name));
        let of_task = ports.iter().filter(|port| port.task.as_ref() == own);
        let node = env.node();
        // All runs of this machine have the same id. A plugin, which each run has for itself, would take it for its own and remove
        // the containers of the other runs.
        let node_id = if self.driver.is_external() { String::new() } else { node.id.clone() };
        Ok(TaskConfig {
            id: format!("{}/{name}/{}", self.shared.alloc, &unique[..8]),
            name: name.clone(),
            group: self.shared.group.clone(),
            parent_job_id: variable("NOMAD_JOB_PARENT_ID"),
            job_id: variable("NOMAD_JOB_ID"),
            job_name: variable("NOMAD_JOB_NAME"),
            namespace: variable("NOMAD_NAMESPACE"),
            node_name: node.name.clone(),
            node_id,
            alloc_id: self.shared.alloc.to_string(),
            config: env.interpolate_config(&self.task.config)?,
            env: env.vars().clone(),
            user: env.interpolate(&self.task.user),
            resources: Resources {
                cpu_shares: resources.cpu_mhz,
                memory: MemoryLimits::from_mib(resources.memory_mib, resources.memory_max_mib),
                ..Resources::default()
            },
            ports: ports.iter().map(AllocPort::of_driver).collect(),
            task_ports: of_task.map(AllocPort::of_driver).collect(),
            cgroup: self.cgroup.clone(),
            alloc_dir: self.shared.dir.path().to_owned(),
            neighbours: self.neighbours,
            logs: collection,
            notices: self.shared.notices.get(name).cloned(),
            network: self.shared.network.clone(),
            dns: self.shared.dns.clone(),
            ..TaskConfig::default()
        })
    }

    pub(super) fn terminated(&self, exit: ExitResult, said: Option<String>) {
        let mut message = format!("Exit Code: {}", exit.exit_code);
        if exit.signal != 0 {
            let _ = write!(message, ", Signal: {}", exit.signal);
        }
        if exit.core_dumped {
            message.push_str(" (core dumped)");
        }
        let said = said.or_else(|| exit.oom_killed.then(|| "OOM Killed".to_owned()));
        if let Some(said) = &said {
            let _ = write!(message, ", Exit Message: {said:?}");
        }
        let mut details = vec![
            ("exit_code", exit.exit_code.to_string()),
            ("signal", exit.signal.to_string()),
            ("oom_killed", exit.oom_killed.to_string()),
        ];
        if exit.core_dumped {
            details.push(("core_dumped", "true".to_owned()));
        }
        details.extend(said.map(|said| ("exit_message", said)));
        self.event(EventKind::Terminated, message, &details);
    }

    /// Adds the task's position in the job file, unless the driver's error has one.
    pub(super) fn task_error(&self, error: &DriverError, config: &Pos) -> TaskError {
        let kind = match error {
            DriverError::CommandNotFound(_) => TaskErrorKind::CommandNotFound,
            DriverError::CommandNotExecutable(_) => TaskErrorKind::CommandNotExecutable,
            _ => TaskErrorKind::Other,
        };
        let (text, pos) = (chain(error), if config.line > 0 { config } else { &self.task.pos });
        let placed = pos.line == 0 || text.starts_with(&*pos.file);
        TaskError { kind, message: if placed { text } else { format!("{pos}: task {:?}: {text}", self.task.name) } }
    }

    async fn wait_for_gate(&mut self) -> bool {
        tokio::select! {
            biased;
            () = leaving(&mut self.leave) => false,
            () = stop_at_least(&mut self.stop, Stop::Gracefully) => false,
            opened = self.gate.wait_for(|open| *open) => opened.is_ok(),
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        *self.stop.borrow() > Stop::No
    }

    fn is_leaving(&self) -> bool {
        *self.leave.borrow()
    }

    pub(super) fn event(&self, kind: EventKind, message: impl Into<String>, details: &[(&str, String)]) {
        self.shared.event(&self.task.name, kind, message, details);
    }

    pub(super) fn control(&self) -> &TaskControl {
        self.shared.control.task(self.number)
    }

    pub(super) fn state(&self, state: TaskState) {
        let (phase, failed) = match state {
            TaskState::Pending => (Phase::Restarting, false),
            TaskState::Running => (Phase::Running, false),
            TaskState::Dead { failed } => (Phase::Dead, failed),
        };
        self.control().update(|known| {
            (known.phase, known.failed) = (phase, failed);
            if phase != Phase::Running {
                known.undecided = None;
            }
        });
        // The allocation outlives its tasks; if it is gone, there is no receiver.
        let _ = self.states.send((self.number, state));
    }
}
