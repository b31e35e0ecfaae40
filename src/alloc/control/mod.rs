//! Requests that a running allocation accepts from outside, and the status that it reports.
//!
//! ```text
//! agentbin stop, exec, ... ──▶ client ──▶ <sockets>/control.sock ──▶ server ──▶ Served (a run) ──▶ Control (an allocation)
//! ```
//!
//! A [`Control`] is shared by the allocation, which writes its state there and obeys the requests, and by everything that makes
//! requests.

mod changes;
mod client;
mod server;
mod wire;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tokio::sync::watch;

use super::Stop;
use super::health::{Board, Health};
use super::ports::AllocPort;
use super::service_registry::{CheckReport, Registration};
use super::state::{Phase, State};
use crate::driver::{Driver, DriverError, KeptOutput};
use crate::executor::{ExecRequests, ExecResponses, NewLimits};
use crate::logs::ship::Stream;
use crate::spec::collections::BTreeMap;
use crate::spec::{AllocId, Group, Job, Signal, TaskEvent, TaskStats};
use crate::sys::lock::lock;

pub use changes::{Changes, TaskLife, TaskNow};
pub use client::{Answers, ClientError, Connection, Incoming, Reached, SessionInput, reach, sockets};
pub use server::{ServeError, Served, serve};
pub use wire::{
    AllocView, CheckView, EventView, PortView, ProcessUse, Request, RunView, ServiceView, StatsView, TaskView,
    seconds_since, timestamp,
};

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The allocation has no such task.
    #[error("allocation {alloc} has no task {task:?}; it has {known}")]
    UnknownTask {
        /// Its short id.
        alloc: String,
        /// What was asked for.
        task: String,
        /// Its tasks.
        known: String,
    },
    /// The request is for one task, and there are several.
    #[error("allocation {alloc} has the tasks {known}; name one with --task")]
    WhichTask {
        /// Its short id.
        alloc: String,
        /// Its tasks.
        known: String,
    },
    /// The request is for a running task.
    #[error("task {task:?} does not run: it is {state}")]
    NotRunning {
        /// The task.
        task: String,
        /// The task's state instead.
        state: &'static str,
    },
    /// The request is for running tasks, and none runs.
    #[error("no task of allocation {0} runs")]
    NothingRuns(String),
    /// The task ended instead of being restarted.
    #[error("task {0:?} has ended and was not started again")]
    NotRestarted(String),
    /// The driver failed.
    #[error("task {task:?}")]
    Driver {
        /// The task.
        task: String,
        /// Its error.
        source: DriverError,
    },
}

/// What is known of a task from the beginning.
pub(super) struct Told {
    pub(super) name: String,
    pub(super) driver_name: String,
    pub(super) driver: Option<Arc<dyn Driver>>,
    /// The task is not part of the group's start: it runs later.
    pub(super) is_late: bool,
    /// The state from its record, or the default.
    pub(super) state: State,
}

/// One task of an allocation.
pub(super) struct TaskControl {
    name: String,
    driver_name: String,
    driver: Option<Arc<dyn Driver>>,
    is_late: bool,
    state: watch::Sender<State>,
    /// Whose restart was requested last, in Nomad's words.
    restart: watch::Sender<&'static str>,
    /// The reason why its checks want it restarted.
    unhealthy: watch::Sender<String>,
    changes: watch::Sender<u64>,
}

impl TaskControl {
    pub(super) fn update(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
        self.changes.send_modify(|count| *count += 1);
    }

    pub(super) fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Becomes ready with each restart that is requested from now on.
    pub(super) fn restarts(&self) -> watch::Receiver<&'static str> {
        self.restart.subscribe()
    }

    /// A check wants the task restarted, for this reason.
    pub(super) fn is_unhealthy(&self, why: String) {
        self.unhealthy.send_replace(why);
    }

    /// Becomes ready with each restart that a check wants from now on.
    pub(super) fn unhealthy(&self) -> watch::Receiver<String> {
        self.unhealthy.subscribe()
    }

    /// The task's driver and the driver's id of the current start, while it runs.
    pub(super) fn runs(&self) -> Option<(Arc<dyn Driver>, String)> {
        self.driver.clone().zip(self.state.borrow().driver_id.clone())
    }

    /// How often the task was started, and when last.
    pub(super) fn starts(&self) -> (u64, Option<SystemTime>) {
        let state = self.state.borrow();
        (state.starts, state.started)
    }
}

/// The ids and names of an allocation, and its paths.
#[derive(Debug, Clone)]
pub(super) struct Names {
    pub(super) id: AllocId,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) job: String,
    pub(super) group: String,
    pub(super) index: u32,
    pub(super) dir: PathBuf,
    pub(super) logs: PathBuf,
}

/// A later version of an allocation's job, with the same tasks.
#[derive(Clone)]
pub(super) struct Updated {
    job: Arc<Job>,
    group: usize,
}

impl Updated {
    pub(super) fn group(&self) -> &Group {
        &self.job.groups[self.group]
    }
}

/// One allocation, for processes that query and control it.
pub struct Control {
    names: Names,
    created: SystemTime,
    tasks: Vec<TaskControl>,
    ports: Mutex<Vec<AllocPort>>,
    board: Board,
    messages: Mutex<Option<PathBuf>>,
    pub(super) stop: watch::Sender<Stop>,
    /// The stop does not wait for `shutdown_delay`.
    skips_delay: watch::Sender<bool>,
    /// The version of its job that the allocation was updated to; `None` while it has the version that it began with.
    update: watch::Sender<Option<Updated>>,
    /// Counts the requests to restart all of its tasks from the beginning.
    anew: watch::Sender<u64>,
    /// How many of them had been made when its tasks last began again.
    begun_anew: AtomicU64,
    /// See [`Control::set_canary`].
    is_canary: AtomicBool,
    /// Its current services have been registered.
    announced: AtomicBool,
    /// The allocation has begun to end.
    ending: watch::Sender<bool>,
    /// Its tasks have ended.
    ended: watch::Sender<bool>,
    /// Nothing of it remains.
    gone: watch::Sender<bool>,
    /// A step before its tasks failed: none of them was started.
    is_set_up_failed: AtomicBool,
    /// Its owner exits, and its tasks keep running.
    pub(super) leave: watch::Sender<bool>,
    /// Its owner will return for it, so it may be left running.
    returns: bool,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("alloc", &self.names.id).finish_non_exhaustive()
    }
}

impl Control {
    /// `created` is when the allocation was made; `returns` says whether its owner will return after it exits or is killed.
    pub(super) fn new(names: Names, created: SystemTime, returns: bool, tasks: impl Iterator<Item = Told>) -> Control {
        let changes = watch::Sender::default();
        let task = |Told { name, driver_name, driver, is_late, state }| TaskControl {
            state: watch::Sender::new(State { name: name.clone(), ..state }),
            name,
            driver_name,
            driver,
            is_late,
            restart: watch::Sender::default(),
            unhealthy: watch::Sender::default(),
            changes: watch::Sender::clone(&changes),
        };
        Control {
            names,
            created,
            tasks: tasks.map(task).collect(),
            ports: Mutex::default(),
            board: Board::default(),
            messages: Mutex::default(),
            stop: watch::Sender::new(Stop::No),
            skips_delay: watch::Sender::new(false),
            update: watch::Sender::default(),
            anew: watch::Sender::default(),
            begun_anew: AtomicU64::default(),
            is_canary: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            ending: watch::Sender::new(false),
            ended: watch::Sender::new(false),
            gone: watch::Sender::new(false),
            is_set_up_failed: AtomicBool::new(false),
            leave: watch::Sender::new(false),
            returns,
            changes,
        }
    }

    /// The same, with the services of this group.
    pub(super) fn with_services_of(self, group: &Group) -> Control {
        Control { board: Board::of_group(group), ..self }
    }

    /// Updates the allocation in place to this version of its job, which differs only in what does not concern running processes:
    /// services and their checks, restart policies, and how tasks are stopped. A version with other tasks is ignored.
    pub fn update(&self, job: &Arc<Job>) {
        let Some(group) = job.groups.iter().position(|group| group.name == self.names.group) else { return };
        if !job.groups[group].tasks.iter().map(|task| &task.name).eq(self.tasks.iter().map(|task| &task.name)) {
            return;
        }
        self.board.expect(&job.groups[group]);
        // One that ends registers nothing any more.
        self.announced.fetch_and(*self.ending.borrow(), Ordering::Relaxed);
        self.update.send_replace(Some(Updated { job: Arc::clone(job), group }));
    }

    /// Sets whether it is a canary, whose services are registered with their `canary_tags`, from the next update on.
    pub fn set_canary(&self, is_canary: bool) {
        self.is_canary.store(is_canary, Ordering::Relaxed);
    }

    pub(super) fn is_canary(&self) -> bool {
        self.is_canary.load(Ordering::Relaxed)
    }

    /// The version that it was updated to last, and each later one.
    pub(super) fn updates(&self) -> watch::Receiver<Option<Updated>> {
        self.update.subscribe()
    }

    /// The version that it was updated to last.
    pub(super) fn updated(&self) -> Option<Updated> {
        self.update.borrow().clone()
    }

    pub(super) fn set_announced(&self) {
        self.announced.store(true, Ordering::Relaxed);
        self.changed();
    }

    /// Whether all of its current services are registered; also true in a process that restored the allocation.
    #[must_use]
    pub fn has_announced(&self) -> bool {
        self.announced.load(Ordering::Relaxed)
    }

    /// Its services, with what their checks found last.
    #[must_use]
    pub fn services(&self) -> Vec<Registration> {
        self.board.services()
    }

    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// The health of the allocation by the checks of its services, from now on: how many pass, and since when all of them do.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Health> {
        self.board.health()
    }

    /// Becomes true when the allocation begins to end.
    pub(super) fn ending(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &AllocId {
        &self.names.id
    }

    /// Nomad's name of it: `<job>.<group>[<index>]`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.names.name
    }

    /// When it was made.
    #[must_use]
    pub const fn created(&self) -> SystemTime {
        self.created
    }

    /// The task with this number, in the order of the job file.
    pub(super) fn task(&self, number: usize) -> &TaskControl {
        &self.tasks[number]
    }

    pub(super) fn set_ports(&self, ports: &[AllocPort]) {
        *lock(&self.ports) = ports.to_vec();
    }

    /// Sets the file in which its run reports messages for people from now on.
    pub fn set_messages(&self, path: &Path) {
        *lock(&self.messages) = Some(path.to_owned());
    }

    /// Adds an event to the task of this name; an allocation's own events have no task.
    pub(super) fn note(&self, event: &TaskEvent) {
        for task in self.tasks.iter().filter(|task| task.name == event.task) {
            task.update(|state| state.note(event));
        }
    }

    /// The states of its tasks, as its record keeps them.
    pub(super) fn states(&self) -> Vec<State> {
        self.tasks.iter().map(TaskControl::state).collect()
    }

    pub(super) fn set_ending(&self) {
        self.ending.send_replace(true);
        self.changed();
    }

    pub(super) fn set_ended(&self) {
        self.ended.send_replace(true);
        self.changed();
    }

    pub(super) fn set_set_up_failed(&self) {
        self.is_set_up_failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_gone(&self) {
        self.ended.send_replace(true);
        self.gone.send_replace(true);
        self.changed();
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Its owner exits: running tasks go on, the record stays, and [`Alloc::run`](super::Alloc::run) returns as soon as no step is
    /// half done. Its services are withdrawn, because no process updates them until the next owner registers them again. Returns
    /// whether the allocation can be left running, which is so only if its owner returns.
    pub fn leave(&self) -> bool {
        if self.returns {
            self.leave.send_replace(true);
        }
        self.returns
    }

    /// Whether its owner is exiting, see [`Control::leave`].
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        *self.leave.borrow()
    }

    /// Stops its tasks: with their kill signals and timeouts, or at once.
    pub fn stop(&self, urgency: Stop) {
        self.stop.send_if_modified(|stop| {
            let more = urgency > *stop;
            *stop = urgency.max(*stop);
            more
        });
        self.changed();
    }

    /// The same, with the tasks' kill signals, but without the `shutdown_delay` of the group and of its tasks; a delay that has
    /// begun ends.
    pub fn stop_without_delay(&self) {
        self.skips_delay.send_replace(true);
        self.stop(Stop::Gracefully);
    }

    /// See [`Control::stop_without_delay`].
    pub(super) fn skips_delay(&self) -> bool {
        *self.skips_delay.borrow()
    }

    /// Returns when a stop is not to wait for `shutdown_delay`.
    pub(super) async fn delay_skipped(&self) {
        // The sender lives as long as this value.
        let _ = self.skips_delay.subscribe().wait_for(|skips| *skips).await;
    }

    /// Forwards the urgency of `stop` to the allocation, now and whenever it changes.
    pub async fn follow(&self, mut stop: watch::Receiver<Stop>) -> Infallible {
        self.stop(*stop.borrow_and_update());
        while stop.changed().await.is_ok() {
            self.stop(*stop.borrow_and_update());
        }
        std::future::pending().await
    }

    /// Whether a stop was requested.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        *self.stop.borrow() > Stop::No
    }

    /// Returns when nothing of it remains.
    pub async fn gone(&self) {
        // The sender lives as long as this value.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// The tasks of the group's start that have neither been started yet nor ended.
    #[must_use]
    pub fn unstarted(&self) -> Vec<String> {
        let is_unstarted = |task: &&TaskControl| {
            let state = task.state.borrow();
            !task.is_late && state.starts == 0 && state.phase != Phase::Dead
        };
        self.tasks.iter().filter(is_unstarted).map(|task| task.name.clone()).collect()
    }

    /// Returns when each task of a restored allocation that was running before has been found again, or is known to have ended.
    pub async fn taken_up(&self) {
        let mut changes = self.subscribe();
        let is_open =
            |state: &State| state.phase == Phase::Running && state.driver_id.is_none() && state.finished.is_none();
        while !*self.ended.borrow() && self.tasks.iter().any(|task| is_open(&task.state.borrow())) {
            if !changes.next().await {
                return;
            }
        }
    }

    /// Returns when its tasks have been started, except those that run after the others, or when all have ended.
    pub async fn settled(&self) {
        let mut ended = self.ended.subscribe();
        let mut ending = self.ending.subscribe();
        let mut states: Vec<_> = self.tasks.iter().map(|task| task.state.subscribe()).collect();
        loop {
            if *ended.borrow_and_update() {
                return;
            }
            // A failed task ends the group; its result must be known before this returns.
            let mut failed = false;
            for state in &mut states {
                failed |= state.borrow_and_update().failed;
            }
            if self.unstarted().is_empty() && !failed && !*ending.borrow_and_update() {
                return;
            }
            let changes = states.iter_mut().map(|state| Box::pin(state.changed()));
            let any = futures_any(changes.collect());
            tokio::select! {
                () = any => {}
                _ = ended.changed() => {}
                _ = ending.changed() => {}
            }
        }
    }

    /// Finds the task of this name, or the only one.
    fn find(&self, task: Option<&str>) -> Result<&TaskControl, OrderError> {
        let known = || self.tasks.iter().map(|task| task.name.as_str()).collect::<Vec<_>>().join(", ");
        let alloc = || self.names.id.short().to_owned();
        match (task, self.tasks.as_slice()) {
            (Some(name), tasks) => tasks.iter().find(|task| task.name == name).ok_or_else(|| OrderError::UnknownTask {
                alloc: alloc(),
                task: name.to_owned(),
                known: known(),
            }),
            (None, [only]) => Ok(only),
            (None, _) => Err(OrderError::WhichTask { alloc: alloc(), known: known() }),
        }
    }

    /// The driver of a running task, and the driver's task id.
    fn running(task: &TaskControl) -> Result<(Arc<dyn Driver>, String), OrderError> {
        let state = task.state.borrow();
        match (&task.driver, &state.driver_id) {
            (Some(driver), Some(id)) => Ok((Arc::clone(driver), id.clone())),
            _ => Err(OrderError::NotRunning { task: task.name.clone(), state: state.phase.word() }),
        }
    }

    /// The task of this name, or all running tasks.
    fn targets(&self, task: Option<&str>) -> Result<Vec<&TaskControl>, OrderError> {
        if task.is_some() {
            let task = self.find(task)?;
            Control::running(task)?;
            return Ok(vec![task]);
        }
        let running: Vec<_> = self.tasks.iter().filter(|task| task.state.borrow().driver_id.is_some()).collect();
        if running.is_empty() {
            return Err(OrderError::NothingRuns(self.names.id.short().to_owned()));
        }
        Ok(running)
    }

    /// Stops the task, or all running ones, as a stop would, and starts them again; the restart policy does not count it. Returns
    /// their names once they run again.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn restart(&self, task: Option<&str>) -> Result<Vec<String>, OrderError> {
        let targets = self.targets(task)?;
        let watched: Vec<_> = targets.iter().map(|task| (*task, task.state.borrow().starts)).collect();
        let reason =
            if task.is_some() { "User requested task to restart" } else { "User requested running tasks to restart" };
        for task in &targets {
            task.restart.send_replace(reason);
        }
        for (task, before) in watched {
            let mut states = task.state.subscribe();
            let settled = states.wait_for(|state| state.starts > before || state.phase == Phase::Dead).await;
            if !settled.is_ok_and(|state| state.starts > before) {
                return Err(OrderError::NotRestarted(task.name.clone()));
            }
        }
        Ok(targets.iter().map(|task| task.name.clone()).collect())
    }

    /// Stops all tasks as a stop would and starts all of them again from the first one on, including those that have ended;
    /// restart policies do not count it. Returns when the group has started.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn restart_all(&self) -> Result<(), OrderError> {
        let over = || OrderError::NothingRuns(self.names.id.short().to_owned());
        if self.is_stopping() || *self.ending.borrow() || self.has_ended() {
            return Err(over());
        }
        let mut changes = self.subscribe();
        let restarts = || self.tasks.iter().map(|task| task.state.borrow().restarts).collect::<Vec<_>>();
        let before = restarts();
        self.anew.send_modify(|count| *count += 1);
        loop {
            if *self.ending.borrow() || self.has_ended() || self.is_leaving() {
                return Err(over());
            }
            if restarts().iter().zip(&before).all(|(now, before)| now > before) && self.unstarted().is_empty() {
                return Ok(());
            }
            if !changes.next().await {
                return Err(over());
            }
        }
    }

    /// Becomes ready with each request to restart all tasks, also with one that was made before its tasks were looked after:
    /// while it was restored, for example.
    pub(super) fn orders_anew(&self) -> watch::Receiver<u64> {
        let mut orders = self.anew.subscribe();
        if *orders.borrow() > self.begun_anew.load(Ordering::Relaxed) {
            orders.mark_changed();
        }
        orders
    }

    /// All of its tasks have ended and start again from the beginning.
    pub(super) fn begin_anew(&self) {
        // Whoever asks from here on waits for the next time.
        self.begun_anew.store(*self.anew.borrow(), Ordering::Relaxed);
        self.tasks.iter().for_each(|task| task.update(State::begin_anew));
    }

    /// Sends a signal to the main process of the task, or of all running tasks. Returns their names.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn signal(&self, task: Option<&str>, signal: Signal) -> Result<Vec<String>, OrderError> {
        let mut names = Vec::new();
        for task in self.targets(task)? {
            let (driver, id) = Control::running(task)?;
            let sent = driver.signal_task(&id, signal).await;
            sent.map_err(|source| OrderError::Driver { task: task.name.clone(), source })?;
            names.push(task.name.clone());
        }
        Ok(names)
    }

    /// Changes the limits of the task, or of all running tasks, until they start again. Returns their names.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn limit(&self, task: Option<&str>, limits: &NewLimits) -> Result<Vec<String>, OrderError> {
        let mut names = Vec::new();
        for task in self.targets(task)? {
            let (driver, id) = Control::running(task)?;
            let changed = driver.update_task(&id, limits.clone()).await;
            changed.map_err(|source| OrderError::Driver { task: task.name.clone(), source })?;
            names.push(task.name.clone());
        }
        Ok(names)
    }

    /// One sample of the resource usage of the task, or of all running tasks, each with the task's name.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn stats(&self, task: Option<&str>) -> Result<Vec<(String, TaskStats)>, OrderError> {
        let mut samples = Vec::new();
        for task in self.targets(task)? {
            let (driver, id) = Control::running(task)?;
            let sample = driver.task_stats(&id).await;
            let sample = sample.map_err(|source| OrderError::Driver { task: task.name.clone(), source })?;
            samples.push((task.name.clone(), sample));
        }
        Ok(samples)
    }

    /// What the driver of a running task keeps of its output, see [`Driver::kept_output`].
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn kept_output(
        &self,
        task: &str,
        stream: Stream,
        follow: bool,
    ) -> Result<Option<KeptOutput>, OrderError> {
        let task = self.find(Some(task))?;
        let (driver, id) = Control::running(task)?;
        let kept = driver.kept_output(&id, stream, follow).await;
        kept.map_err(|source| OrderError::Driver { task: task.name.clone(), source })
    }

    /// Runs a session inside a task; the first request is its setup, whose task id is ignored. The session ends when the answers
    /// are dropped.
    ///
    /// # Errors
    /// [`OrderError`].
    pub async fn exec(&self, task: Option<&str>, requests: ExecRequests) -> Result<ExecResponses, OrderError> {
        let task = self.find(task)?;
        let (driver, id) = Control::running(task)?;
        let session = crate::driver::session(driver, id, requests).await;
        session.map_err(|source| OrderError::Driver { task: task.name.clone(), source })
    }

    /// The status of the allocation, for people and for `--json`.
    #[must_use]
    pub fn view(&self) -> AllocView {
        let task = |task: &TaskControl| {
            let state = task.state.borrow();
            let event = |event: &TaskEvent| EventView {
                kind: event.kind.as_str().to_owned(),
                time: timestamp(event.time),
                message: event.message.clone(),
                details: event.details.clone(),
            };
            TaskView {
                name: task.name.clone(),
                driver: task.driver_name.clone(),
                state: match state.phase {
                    Phase::Running => "running",
                    Phase::Dead => "dead",
                    Phase::Waiting | Phase::Starting | Phase::Restarting => "pending",
                }
                .to_owned(),
                failed: state.failed,
                restarts: state.restarts,
                last_restart: state.last_restart.map(timestamp),
                started_at: state.started.map(timestamp),
                finished_at: state.finished.map(timestamp),
                exit_code: state.exit.map(|exit| exit.exit_code),
                signal: state.exit.map(|exit| exit.signal),
                oom_killed: state.exit.is_some_and(|exit| exit.oom_killed),
                events: state.events.iter().map(event).collect(),
            }
        };
        let tasks: Vec<TaskView> = self.tasks.iter().map(task).collect();
        let is = |state: &str| tasks.iter().any(|task| task.state == state);
        let status = if self.is_set_up_failed.load(Ordering::Relaxed) || tasks.iter().any(|task| task.failed) {
            "failed"
        } else if is("running") {
            "running"
        } else if is("pending") && !*self.ended.borrow() {
            "pending"
        } else {
            "complete"
        };
        let port = |port: &AllocPort| PortView {
            label: port.label.clone(),
            host_ip: port.ip.to_string(),
            value: port.value,
            to: port.to.unwrap_or(0),
        };
        let Names { id, name, namespace, job, group, index, dir, logs } = self.names.clone();
        AllocView {
            id: id.to_string(),
            name,
            namespace,
            job,
            group,
            index,
            status: status.to_owned(),
            stopping: *self.ending.borrow() && !*self.ended.borrow(),
            created_at: timestamp(self.created),
            dir,
            logs,
            ports: lock(&self.ports).iter().map(port).collect(),
            services: self.board.services().into_iter().map(service_view).collect(),
            tasks,
            run: None,
            messages: lock(&self.messages).clone(),
            other: BTreeMap::new(),
        }
    }
}

fn service_view(service: Registration) -> ServiceView {
    let check = |check: CheckReport| CheckView {
        id: check.id,
        name: check.name,
        kind: check.kind,
        on_update: check.on_update,
        status: check.status.as_str().to_owned(),
        output: check.output,
        time: Some(check.timestamp).filter(|time| !time.is_empty()),
    };
    ServiceView {
        id: service.id,
        name: service.service_name,
        task: service.task_name,
        provider: service.provider,
        address: service.address,
        port: service.port,
        tags: service.tags,
        status: service.status.as_str().to_owned(),
        checks: service.checks.into_iter().map(check).collect(),
    }
}

/// Ready when one of the futures is.
async fn futures_any<F: Future + Unpin>(mut futures: Vec<F>) {
    std::future::poll_fn(|context| {
        let ready = futures.iter_mut().any(|future| std::pin::Pin::new(future).poll(context).is_ready());
        if ready { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
