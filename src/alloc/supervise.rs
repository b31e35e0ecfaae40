//! The tasks of one allocation: which may start, which are killed, and their results.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Stop;
use super::env::{Source, TaskEnv};
use super::lifecycle::{Coordinator, Doom, Member, Stage, TaskState, doom, next_victims};
use super::place::Place;
use super::service::Offered;
use super::shared::{Shared, leaving, stop_at_least};
use super::state::{Phase, State};
use super::task::{Outcome, TaskError, TaskErrorKind, TaskResult, TaskRunner};
use super::text::go_duration;
use super::users::Runs;
use crate::spec::collections::BTreeMap;
use crate::spec::{EventKind, Neighbours};
use crate::sys::task::boxed;

/// The result of an allocation.
#[derive(Debug)]
pub struct AllocResult {
    /// Nomad's client status.
    pub status: AllocStatus,
    /// One for each task, in the order of the job file.
    pub tasks: Vec<TaskResult>,
    /// The earliest failure.
    pub first_failure: Option<Failure>,
    /// Its owner has exited and it goes on: this is its state at that time.
    pub left: bool,
    /// All of its tasks were stopped to be restarted.
    pub(crate) anew: bool,
}

/// Nomad's status of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum AllocStatus {
    Pending,
    Running,
    Complete,
    Failed,
}

impl AllocStatus {
    /// The status that follows from these task states.
    fn of(states: &[TaskState]) -> AllocStatus {
        if states.contains(&TaskState::Dead { failed: true }) {
            AllocStatus::Failed
        } else if states.contains(&TaskState::Running) {
            AllocStatus::Running
        } else if states.contains(&TaskState::Pending) {
            AllocStatus::Pending
        } else {
            AllocStatus::Complete
        }
    }
}

/// A task's end that makes the whole run fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The task.
    pub task: String,
    /// When; comparable across the allocations of one process.
    pub at: Instant,
    /// How.
    pub outcome: Outcome,
}

/// Opens the gates of one allocation's tasks, and stops them in order.
pub(super) struct Supervisor {
    shared: Arc<Shared>,
    names: Vec<String>,
    members: Vec<Member>,
    coordinator: Coordinator,
    gates: Vec<watch::Sender<bool>>,
    stops: Vec<watch::Sender<Stop>>,
    states: mpsc::UnboundedReceiver<(usize, TaskState)>,
    runners: JoinSet<(usize, Option<TaskResult>)>,
    numbers: BTreeMap<tokio::task::Id, usize>,
    results: Vec<Option<TaskResult>>,
    stop: watch::Receiver<Stop>,
    leave: watch::Receiver<bool>,
    /// Counts the requests to restart all tasks.
    orders: watch::Receiver<u64>,
    /// Such a request has arrived: all tasks are being stopped for it.
    anew: bool,
    shutdown_delay: Duration,
    /// Since when the group is ending, and whether that was requested.
    ending: Option<Ending>,
}

#[derive(Debug, Clone, Copy)]
struct Ending {
    kill_at: Instant,
    wanted: bool,
    /// The shutdown delay is over.
    killing: bool,
}

impl Supervisor {
    /// `anew`: its tasks have been stopped to be restarted.
    pub(super) async fn new(place: &Place, shared: Arc<Shared>, stop: watch::Receiver<Stop>, anew: bool) -> Supervisor {
        let has_earlier = shared.restored || anew;
        let group = place.group();
        let (report, states) = mpsc::unbounded_channel();
        let stages: Vec<Stage> = group.tasks.iter().map(Stage::of).collect();
        // The states in which an earlier process left them; only their names are set if there was none.
        let earlier = shared.control.states();
        let member = |((task, stage), state): ((&crate::spec::Task, &Stage), &State)| Member {
            stage: *stage,
            leader: task.leader,
            state: match state.phase {
                Phase::Dead => TaskState::Dead { failed: state.failed },
                Phase::Running => TaskState::Running,
                Phase::Waiting | Phase::Starting | Phase::Restarting => TaskState::Pending,
            },
        };
        let coordinator = Coordinator::new(stages.clone());
        let mut supervisor = Supervisor {
            names: group.tasks.iter().map(|t| t.name.clone()).collect(),
            members: group.tasks.iter().zip(&stages).zip(&earlier).map(member).collect(),
            coordinator: if has_earlier { coordinator.restored() } else { coordinator },
            gates: Vec::new(),
            stops: Vec::new(),
            states,
            runners: JoinSet::new(),
            numbers: BTreeMap::new(),
            results: earlier.iter().map(ended_earlier).collect(),
            stop,
            leave: shared.control.leave.subscribe(),
            orders: shared.control.orders_anew(),
            // The request may come from an earlier process, which did not complete it.
            anew: earlier.iter().any(|state| state.anew),
            shutdown_delay: group.shutdown_delay,
            ending: None,
            shared,
        };
        let mut runners = Vec::new();
        for (number, task) in group.tasks.iter().enumerate() {
            let Some(driver) = place.machine.drivers.get(&task.driver) else { continue };
            let (gate, gate_seen) = watch::channel(false);
            let (stop, stop_seen) = watch::channel(Stop::No);
            supervisor.gates.push(gate);
            supervisor.stops.push(stop);
            if supervisor.results[number].is_some() {
                continue;
            }
            let cgroup = (place.machine.cgroup)(&place.id, &task.name);
            let env = TaskEnv::build(&Source {
                job: &place.job,
                group,
                parent: &place.parent,
                task,
                alloc: &place.id,
                index: place.index,
                alloc_dir: place.dir.path(),
                isolation: driver.capabilities().fs_isolation,
                cgroup_parent: cgroup.parent().unwrap_or(Path::new("")),
                ports: &place.ports,
                network: place.network.as_ref().map(|network| &network.status),
                node: &place.node,
                host: &place.machine.host_env,
                denied: &place.machine.env_denylist,
            });
            runners.push(TaskRunner {
                number,
                shared: Arc::clone(&supervisor.shared),
                runs: Runs::find(driver, &task.config, env.interpolate(&task.user), supervisor.stop.clone()).await,
                neighbours: Neighbours::None,
                env,
                task: Arc::new(task.clone()),
                driver: Arc::clone(driver),
                cgroup,
                cores: None,
                offered: Offered::default(),
                gate: gate_seen,
                stop: stop_seen,
                leave: supervisor.leave.clone(),
                states: report.clone(),
                earlier: has_earlier.then(|| Box::new(earlier[number].clone())),
            });
        }
        let runs: Vec<(usize, Runs)> = runners.iter().map(|runner| (runner.number, runner.runs.clone())).collect();
        for mut runner in runners {
            let number = runner.number;
            let others = runs.iter().filter(|(other, _)| *other != number);
            runner.neighbours = runner.runs.neighbours(others.map(|(_, runs)| runs));
            let runner = Box::new(runner);
            let handle = supervisor.runners.spawn(boxed(async move { (number, runner.run().await) }));
            supervisor.numbers.insert(handle.id(), number);
        }
        supervisor
    }

    pub(super) async fn run(mut self) -> AllocResult {
        loop {
            if *self.leave.borrow() {
                return self.left().await;
            }
            self.decide();
            if self.runners.is_empty() {
                return self.result(false);
            }
            let kill_at = self.ending.filter(|e| !e.killing).map(|e| e.kill_at);
            let shared = Arc::clone(&self.shared);
            let delay_over = async {
                match kill_at {
                    Some(at) => tokio::select! {
                        biased;
                        () = shared.control.delay_skipped() => {}
                        () = tokio::time::sleep_until(at) => {}
                    },
                    None => std::future::pending().await,
                }
                shared.offers.withdrawn().await;
            };
            let urgency = if self.ending.is_some_and(|e| e.wanted) { Stop::Now } else { Stop::Gracefully };
            let heard = *self.stop.borrow() == Stop::Now && self.stops.iter().all(|s| *s.borrow() == Stop::Now);
            tokio::select! {
                biased;
                Some((number, state)) = self.states.recv() => self.members[number].state = state,
                Some(joined) = self.runners.join_next_with_id() => self.joined(joined),
                () = leaving(&mut self.leave) => {}
                () = stop_at_least(&mut self.stop, urgency), if !heard => {}
                // The sender lives in the allocation's control.
                _ = self.orders.changed(), if !self.anew && self.ending.is_none() => self.order_all(),
                () = delay_over => {}
            }
        }
    }

    /// Waits until no step is half done; no further task is stopped.
    async fn left(mut self) -> AllocResult {
        while let Some(joined) = self.runners.join_next_with_id().await {
            self.joined(joined);
        }
        while let Ok((number, state)) = self.states.try_recv() {
            self.members[number].state = state;
        }
        self.result(true)
    }

    /// Applies everything that follows from the current states.
    fn decide(&mut self) {
        let wanted = *self.stop.borrow();
        self.anew &= wanted == Stop::No;
        if self.anew {
            return self.end_all();
        }
        match (self.ending, doom(&self.members)) {
            (None, None) if wanted == Stop::No => {}
            (None, Some(doom)) if wanted == Stop::No => {
                self.announce(doom);
                self.end(false);
            }
            (None, _) => self.end(true),
            (Some(ending), _) => {
                self.ending = Some(Ending { wanted: ending.wanted || wanted > Stop::No, ..ending });
            }
        }

        let states: Vec<TaskState> = self.members.iter().map(|m| m.state).collect();
        self.coordinator.update(&states);
        for (number, gate) in self.gates.iter().enumerate() {
            let may = self.ending.is_none() || self.members[number].stage == Stage::Poststop;
            if may && self.coordinator.allows(number) {
                gate.send_replace(true);
            }
        }

        if wanted == Stop::Now {
            for stop in &self.stops {
                stop.send_replace(Stop::Now);
            }
        } else if let Some(ending) = &mut self.ending
            && (ending.kill_at <= Instant::now() || self.shared.control.skips_delay())
            && self.shared.offers.is_withdrawn()
        {
            ending.killing = true;
            for victim in next_victims(&self.members) {
                self.stops[victim].send_if_modified(|s| std::mem::replace(s, Stop::Gracefully) == Stop::No);
            }
        }
    }

    /// Records that all tasks are to be restarted.
    fn order_all(&mut self) {
        self.anew = true;
        for (number, (name, member)) in self.names.iter().zip(&self.members).enumerate() {
            self.shared.control.task(number).update(|state| state.anew = true);
            if member.state != TaskState::Pending {
                let reason = "User requested all tasks to restart";
                let details = [("restart_reason", reason.to_owned())];
                self.shared.event(name, EventKind::RestartSignaled, reason, &details);
            }
        }
        self.shared.save();
    }

    /// Stops all tasks in their order, and releases those that wait for the end of the others: all will be restarted.
    fn end_all(&mut self) {
        let mut victims = next_victims(&self.members);
        if victims.is_empty() {
            victims = (0..self.members.len()).collect();
        }
        for victim in victims {
            self.stops[victim].send_if_modified(|s| std::mem::replace(s, Stop::Gracefully) == Stop::No);
        }
    }

    fn end(&mut self, wanted: bool) {
        self.shared.control.set_ending();
        if let Some(updated) = self.shared.control.updated() {
            self.shutdown_delay = updated.group().shutdown_delay;
        }
        if self.shared.control.skips_delay() {
            self.shutdown_delay = Duration::ZERO;
        }
        self.ending = Some(Ending { kill_at: Instant::now() + self.shutdown_delay, wanted, killing: false });
        if !self.shutdown_delay.is_zero() {
            let delay = go_duration(self.shutdown_delay);
            let message = format!("Waiting for the group's shutdown_delay of {delay} before killing its tasks.");
            self.shared.event("", EventKind::WaitingForShutdownDelay, message, &[]);
        }
    }

    fn announce(&self, doom: Doom) {
        let (kind, message, details) = match doom {
            Doom::SiblingFailed(index) => {
                let sibling = &self.names[index];
                let message = format!("Task's sibling {sibling:?} failed");
                (EventKind::SiblingTaskFailed, message, vec![("failed_sibling", sibling.clone())])
            }
            Doom::LeaderDead(_) => (EventKind::LeaderTaskDead, "Leader Task in Group dead".to_owned(), Vec::new()),
            Doom::MainTasksDead => (EventKind::MainTasksDead, "Main tasks in the group died".to_owned(), Vec::new()),
        };
        for (name, member) in self.names.iter().zip(&self.members) {
            if !member.state.is_dead() && member.stage != Stage::Poststop {
                self.shared.event(name, kind, message.clone(), &details);
            }
        }
    }

    fn joined(&mut self, joined: Result<(tokio::task::Id, (usize, Option<TaskResult>)), tokio::task::JoinError>) {
        let (number, result) = match joined {
            Ok((_, (number, Some(result)))) => (number, result),
            // It goes on without this process.
            Ok((_, (_, None))) => return,
            Err(error) => {
                let Some(number) = self.numbers.get(&error.id()).copied() else { return };
                let message = format!("the runner of task {:?} failed unexpectedly: {error}", self.names[number]);
                let outcome = Outcome::Error(TaskError { kind: TaskErrorKind::Other, message: message.clone() });
                let (name, ended) = (self.names[number].clone(), Instant::now());
                let leftovers = vec![message];
                (number, TaskResult { name, outcome, failed: true, killed: false, ended, leftovers })
            }
        };
        self.members[number].state = TaskState::Dead { failed: result.failed };
        self.results[number] = Some(result);
    }

    fn result(self, left: bool) -> AllocResult {
        let wanted = self.ending.is_some_and(|e| e.wanted);
        let states: Vec<TaskState> = self.members.iter().map(|m| m.state).collect();
        let tasks: Vec<TaskResult> = self.results.into_iter().flatten().collect();
        let counts = |task: &&TaskResult| {
            // Killed because a sibling failed or the group's work is done: no failure. Killed because a stop was requested: the
            // exit status
            // of the process decides, and an unknown one counts as a failure.
            let answer = match &task.outcome {
                Outcome::Exited(exit) => !exit.successful(),
                Outcome::Error(_) => true,
                Outcome::NotStarted => false,
            };
            task.failed || task.killed && wanted && answer
        };
        let first = tasks.iter().filter(counts).min_by_key(|t| t.ended);
        let failure = |t: &TaskResult| Failure { task: t.name.clone(), at: t.ended, outcome: t.outcome.clone() };
        AllocResult {
            status: AllocStatus::of(&states),
            first_failure: first.map(failure),
            tasks,
            left,
            anew: self.anew && !left,
        }
    }
}

/// The end of a task, as an earlier process recorded it.
fn ended_earlier(state: &State) -> Option<TaskResult> {
    (state.phase == Phase::Dead).then(|| TaskResult {
        name: state.name.clone(),
        outcome: state.exit.map_or(Outcome::NotStarted, Outcome::Exited),
        failed: state.failed,
        killed: state.killed,
        ended: Instant::now(),
        leftovers: Vec::new(),
    })
}
