//! One allocation: its steps, its tasks, and who of them must live or die.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::dir::{AllocDir, is_task_name};
use super::env::{Source, TaskEnv};
use super::error::{CleanupError, SetupError, chain};
use super::hook::{Hook, Stack};
use super::lifecycle::{Coordinator, Doom, Member, Stage, TaskState, doom, next_victims};
use super::node::Node;
use super::nosuid::{self, Hold};
use super::ports::{AllocPort, PortError, PortPool};
use super::process::Orphans;
use super::record::{Record, RecordError, Records};
use super::task::{Outcome, Shared, TaskError, TaskErrorKind, TaskResult, TaskRunner, keeper, stop_at_least};
use super::text::go_duration;
use super::users::Runs;
use super::{AllocEvent, Stop};
use crate::cgroup::Cpusets;
use crate::driver::Driver;
use crate::spec::{AllocId, EventKind, Group, Job, Neighbours, Task};

/// Names the cgroup of a task, relative to each hierarchy's root; empty where there is none.
pub type CgroupPath = dyn Fn(&AllocId, &str) -> PathBuf + Send + Sync;

/// Kills what is in a cgroup, relative to each hierarchy's root, and removes it; takes one that is not there for removed.
pub type RemoveCgroup = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

/// What the allocations of one process share.
pub struct Machine {
    /// Canonical, so that mount tables name it in the same way.
    pub data_dir: PathBuf,
    /// What job files may refer to.
    pub node: Arc<Node>,
    /// By name.
    pub drivers: BTreeMap<String, Arc<dyn Driver>>,
    /// The environment that tasks without isolation inherit.
    pub host_env: BTreeMap<String, String>,
    /// Where drivers note their helpers, too.
    pub records: Arc<Records>,
    /// Ports given away.
    pub ports: PortPool,
    /// See [`CgroupPath`].
    pub cgroup: Box<CgroupPath>,
    /// See [`RemoveCgroup`]: for those that an executor did not live, or was not able, to remove.
    pub remove_cgroup: Arc<RemoveCgroup>,
    /// The cores of tasks; `None` where they cannot be divided.
    pub cpusets: Option<Cpusets>,
    /// What killed executors leave to this process.
    pub orphans: Arc<Orphans>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drivers: Vec<_> = self.drivers.keys().collect();
        f.debug_struct("Machine").field("data_dir", &self.data_dir).field("drivers", &drivers).finish_non_exhaustive()
    }
}

/// The end of an allocation.
#[derive(Debug)]
pub struct AllocResult {
    /// Nomad's client status.
    pub status: AllocStatus,
    /// One for each task, in the order of the job file.
    pub tasks: Vec<TaskResult>,
    /// The failure that came first.
    pub first_failure: Option<Failure>,
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
    /// The status that tasks in these states make.
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

/// A task's end that makes the whole run a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The task.
    pub task: String,
    /// When; comparable between the allocations of one process.
    pub at: Instant,
    /// How.
    pub outcome: Outcome,
}

/// One allocation of one group.
#[derive(Debug)]
pub struct Alloc {
    place: Place,
    steps: Steps,
}

/// What the steps of an allocation work on.
#[derive(Debug)]
struct Place {
    id: AllocId,
    index: u32,
    job: Arc<Job>,
    group: usize,
    machine: Arc<Machine>,
    dir: AllocDir,
    ports: Vec<AllocPort>,
    /// Something that only the record tells of could not be removed.
    recorded_is_left: bool,
    /// Keeps the mount that its directory lies on.
    hold: Option<Hold>,
}

impl Place {
    fn group(&self) -> &Group {
        &self.job.groups[self.group]
    }

    /// Whether a driver of its tasks leads ports to those of a network inside.
    fn maps_ports(&self) -> bool {
        let drivers = self.group().tasks.iter().filter_map(|task| self.machine.drivers.get(&task.driver));
        drivers.into_iter().any(|driver| driver.capabilities().must_create_network)
    }

    /// The cgroups that its tasks may have.
    fn cgroups(&self) -> Vec<PathBuf> {
        let of = |task: &Task| {
            let own = (self.machine.cgroup)(&self.id, &task.name);
            let keeper = (task.resources.cores > 0).then(|| keeper(&own)).flatten();
            [own].into_iter().chain(keeper)
        };
        self.group().tasks.iter().flat_map(of).filter(|cgroup| !cgroup.as_os_str().is_empty()).collect()
    }
}

struct Steps(Stack<Place>);

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Steps")
    }
}

/// Before the first file is made, and after the last one is gone.
struct NosuidHook;

#[tonic::async_trait]
impl Hook<Place> for NosuidHook {
    fn name(&self) -> &'static str {
        "nosuid"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        let data_dir = place.machine.data_dir.clone();
        let held = tokio::task::spawn_blocking(move || nosuid::hold(&data_dir)).await;
        let error = |e| SetupError::Dir {
            action: "mount nosuid,nodev at",
            path: place.machine.data_dir.join("alloc"),
            source: io::Error::other(e),
        };
        place.hold = held.map_err(error)??;
        Ok(())
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        if place.hold.take().is_none() {
            return Vec::new();
        }
        nosuid::release_soon(&place.machine.data_dir).await.err().into_iter().collect()
    }
}

struct RecordHook;

#[tonic::async_trait]
impl Hook<Place> for RecordHook {
    fn name(&self) -> &'static str {
        "record"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        let record = Record::new(&place.id, &place.job.id, &place.group().name);
        let path = place.dir.path().with_extension("json");
        let mut record = record.map_err(|source| RecordError::Write { path, source })?;
        record.cgroups = place.cgroups();
        Ok(place.machine.records.create(record)?)
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        // What is left is found by the record in the next clean-up.
        if place.recorded_is_left || place.dir.path().exists() {
            return Vec::new();
        }
        let error = |e: RecordError| CleanupError {
            action: "remove the record of",
            subject: place.id.to_string(),
            source: io::Error::other(chain(&e)),
        };
        place.machine.records.remove(&place.id).map_err(error).err().into_iter().collect()
    }
}

struct AllocDirHook;

#[tonic::async_trait]
impl Hook<Place> for AllocDirHook {
    fn name(&self) -> &'static str {
        "alloc_dir"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        place.dir.build()
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        let dir = place.dir.clone();
        let removed = tokio::task::spawn_blocking(move || dir.destroy()).await;
        removed.unwrap_or_else(|e| {
            let subject = place.dir.path().display().to_string();
            vec![CleanupError { action: "remove", subject, source: io::Error::other(e) }]
        })
    }
}

/// Executors make the cgroups of their tasks, and remove them; one that was lost, or failed at it, leaves them.
struct CgroupsHook;

#[tonic::async_trait]
impl Hook<Place> for CgroupsHook {
    fn name(&self) -> &'static str {
        "cgroups"
    }

    async fn run(&self, _place: &mut Place) -> Result<(), SetupError> {
        Ok(())
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        let (cgroups, machine) = (place.cgroups(), Arc::clone(&place.machine));
        let error = |subject, source| CleanupError { action: "remove cgroup", subject, source };
        let removed = tokio::task::spawn_blocking(move || {
            let remove =
                |path: &PathBuf| (machine.remove_cgroup)(path).err().map(|e| error(path.display().to_string(), e));
            let errors: Vec<_> = cgroups.iter().filter_map(remove).collect();
            if let Some(Err(e)) = machine.cpusets.as_ref().map(Cpusets::settle) {
                tracing::warn!(error = chain(&e), "cannot divide the cores among the tasks");
            }
            errors
        });
        let errors = removed.await.unwrap_or_else(|e| vec![error(place.id.to_string(), io::Error::other(e))]);
        place.recorded_is_left |= !errors.is_empty();
        errors
    }
}

struct NetworkHook;

#[tonic::async_trait]
impl Hook<Place> for NetworkHook {
    fn name(&self) -> &'static str {
        "network"
    }

    async fn run(&self, place: &mut Place) -> Result<(), SetupError> {
        let (machine, job, number, id) =
            (Arc::clone(&place.machine), Arc::clone(&place.job), place.group, place.id.clone());
        // It waits for other processes that choose.
        let chosen =
            tokio::task::spawn_blocking(move || machine.ports.allocate(&job, &job.groups[number], &id, &machine.node));
        place.ports = chosen.await.map_err(|e| PortError::Broken(io::Error::other(e)))??;
        Ok(())
    }

    async fn undo(&self, place: &mut Place) -> Vec<CleanupError> {
        place.ports.clear();
        let (machine, id) = (Arc::clone(&place.machine), place.id.clone());
        let released = tokio::task::spawn_blocking(move || machine.ports.release(&id)).await;
        let error = |source| CleanupError { action: "give back the ports of", subject: place.id.to_string(), source };
        released.unwrap_or_else(|e| Err(io::Error::other(e))).map_err(error).err().into_iter().collect()
    }
}

impl Alloc {
    /// Allocation number `index` of the group number `group` of `job`; nothing is done yet.
    #[must_use]
    pub fn new(machine: &Arc<Machine>, job: &Arc<Job>, group: usize, index: u32) -> Alloc {
        let id = AllocId::new(crate::sys::random::uuid());
        let dir = AllocDir::new(&machine.data_dir, &id);
        let (job, machine) = (Arc::clone(job), Arc::clone(machine));
        let place =
            Place { id, index, job, group, machine, dir, ports: Vec::new(), recorded_is_left: false, hold: None };
        let hooks: Vec<Box<dyn Hook<Place>>> = vec![
            Box::new(NosuidHook),
            // Free again only when nothing is left of the allocation.
            Box::new(NetworkHook),
            Box::new(RecordHook),
            Box::new(AllocDirHook),
            Box::new(CgroupsHook),
        ];
        Alloc { place, steps: Steps(Stack::new(hooks)) }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &AllocId {
        &self.place.id
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> &Group {
        self.place.group()
    }

    /// Its number among the group's, from 0.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.place.index
    }

    /// Its folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.place.dir.path()
    }

    /// Where the output of its tasks is collected: `<task>.stdout.N` and `<task>.stderr.N`.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.place.dir.logs()
    }

    /// Does what comes before the tasks. What it has done when a step fails is undone.
    ///
    /// # Errors
    /// The step that failed, and what could not be undone.
    pub async fn set_up(&mut self) -> Result<(), (SetupError, Vec<CleanupError>)> {
        for task in &self.group().tasks {
            if !is_task_name(&task.name) {
                return Err((SetupError::TaskName { name: task.name.clone(), pos: task.pos.clone() }, Vec::new()));
            }
            if !self.place.machine.drivers.contains_key(&task.driver) {
                let known = self.place.machine.drivers.keys().cloned().collect::<Vec<_>>().join(", ");
                let (driver, pos) = (task.driver.clone(), task.pos.clone());
                return Err((SetupError::UnknownDriver { driver, known, pos }, Vec::new()));
            }
        }
        match self.steps.0.run(&mut self.place).await {
            Ok(()) => Ok(()),
            Err((_, error)) => Err((error, self.steps.0.undo(&mut self.place).await)),
        }
    }

    /// Runs the tasks to their ends. [`Alloc::set_up`] comes before.
    pub async fn run(&mut self, stop: watch::Receiver<Stop>, events: mpsc::UnboundedSender<AllocEvent>) -> AllocResult {
        let shared = Arc::new(Shared {
            alloc: self.place.id.clone(),
            group: self.group().name.clone(),
            index: self.place.index,
            kind: self.place.job.kind,
            dir: self.place.dir.clone(),
            records: Arc::clone(&self.place.machine.records),
            orphans: Arc::clone(&self.place.machine.orphans),
            cpusets: self.place.machine.cpusets.clone(),
            remove_cgroup: Arc::clone(&self.place.machine.remove_cgroup),
            ports: self.place.ports.clone(),
            maps_ports: self.place.maps_ports(),
            events,
        });
        Supervisor::new(&self.place, shared, stop).await.run().await
    }

    /// Undoes [`Alloc::set_up`]: nothing of the allocation is left when no error is returned.
    pub async fn destroy(mut self) -> Vec<CleanupError> {
        self.steps.0.undo(&mut self.place).await
    }
}

/// Opens the gates of the tasks of one allocation and ends them in order.
struct Supervisor {
    shared: Arc<Shared>,
    names: Vec<String>,
    members: Vec<Member>,
    coordinator: Coordinator,
    gates: Vec<watch::Sender<bool>>,
    stops: Vec<watch::Sender<Stop>>,
    states: mpsc::UnboundedReceiver<(usize, TaskState)>,
    runners: JoinSet<(usize, TaskResult)>,
    numbers: BTreeMap<tokio::task::Id, usize>,
    results: Vec<Option<TaskResult>>,
    stop: watch::Receiver<Stop>,
    shutdown_delay: Duration,
    /// Since when the group is ending, and whether somebody wanted it.
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
    async fn new(place: &Place, shared: Arc<Shared>, stop: watch::Receiver<Stop>) -> Supervisor {
        let group = place.group();
        let (report, states) = mpsc::unbounded_channel();
        let stages: Vec<Stage> = group.tasks.iter().map(Stage::of).collect();
        let member = |(task, stage): (&crate::spec::Task, &Stage)| Member {
            stage: *stage,
            leader: task.leader,
            state: TaskState::Pending,
        };
        let mut supervisor = Supervisor {
            names: group.tasks.iter().map(|t| t.name.clone()).collect(),
            members: group.tasks.iter().zip(&stages).map(member).collect(),
            coordinator: Coordinator::new(stages),
            gates: Vec::new(),
            stops: Vec::new(),
            states,
            runners: JoinSet::new(),
            numbers: BTreeMap::new(),
            results: group.tasks.iter().map(|_| None).collect(),
            stop,
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
            let cgroup = (place.machine.cgroup)(&place.id, &task.name);
            let env = TaskEnv::build(&Source {
                job: &place.job,
                group,
                task,
                alloc: &place.id,
                index: place.index,
                alloc_dir: place.dir.path(),
                isolation: driver.capabilities().fs_isolation,
                cgroup_parent: cgroup.parent().unwrap_or(Path::new("")),
                ports: &place.ports,
                node: &place.machine.node,
                host: &place.machine.host_env,
            });
            runners.push(TaskRunner {
                number,
                shared: Arc::clone(&supervisor.shared),
                runs: Runs::find(driver, &task.config, env.interpolate(&task.user), supervisor.stop.clone()).await,
                neighbours: Neighbours::None,
                env,
                task: task.clone(),
                driver: Arc::clone(driver),
                cgroup,
                cores: None,
                gate: gate_seen,
                stop: stop_seen,
                states: report.clone(),
            });
        }
        let runs: Vec<(usize, Runs)> = runners.iter().map(|runner| (runner.number, runner.runs.clone())).collect();
        for mut runner in runners {
            let number = runner.number;
            let others = runs.iter().filter(|(other, _)| *other != number);
            runner.neighbours = runner.runs.neighbours(others.map(|(_, runs)| runs));
            let handle = supervisor.runners.spawn(async move { (number, runner.run().await) });
            supervisor.numbers.insert(handle.id(), number);
        }
        supervisor
    }

    async fn run(mut self) -> AllocResult {
        loop {
            self.decide();
            if self.runners.is_empty() {
                return self.result();
            }
            let kill_at = self.ending.filter(|e| !e.killing).map(|e| e.kill_at);
            let delay_over = async {
                match kill_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let urgency = if self.ending.is_some_and(|e| e.wanted) { Stop::Now } else { Stop::Gracefully };
            let heard = *self.stop.borrow() == Stop::Now && self.stops.iter().all(|s| *s.borrow() == Stop::Now);
            tokio::select! {
                biased;
                Some((number, state)) = self.states.recv() => self.members[number].state = state,
                Some(joined) = self.runners.join_next_with_id() => self.joined(joined),
                () = stop_at_least(&mut self.stop, urgency), if !heard => {}
                () = delay_over => {}
            }
        }
    }

    /// Everything that follows from the states as they are now.
    fn decide(&mut self) {
        let wanted = *self.stop.borrow();
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
            && ending.kill_at <= Instant::now()
        {
            ending.killing = true;
            for victim in next_victims(&self.members) {
                self.stops[victim].send_if_modified(|s| std::mem::replace(s, Stop::Gracefully) == Stop::No);
            }
        }
    }

    fn end(&mut self, wanted: bool) {
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

    fn joined(&mut self, joined: Result<(tokio::task::Id, (usize, TaskResult)), tokio::task::JoinError>) {
        let (number, result) = match joined {
            Ok((_, ended)) => ended,
            Err(error) => {
                let Some(number) = self.numbers.get(&error.id()).copied() else { return };
                let message = format!("the runner of task {:?} broke down: {error}", self.names[number]);
                let outcome = Outcome::Error(TaskError { kind: TaskErrorKind::Other, message: message.clone() });
                let (name, ended) = (self.names[number].clone(), Instant::now());
                let leftovers = vec![message];
                (number, TaskResult { name, outcome, failed: true, killed: false, ended, leftovers })
            }
        };
        self.members[number].state = TaskState::Dead { failed: result.failed };
        self.results[number] = Some(result);
    }

    fn result(self) -> AllocResult {
        let wanted = self.ending.is_some_and(|e| e.wanted);
        let states: Vec<TaskState> = self.members.iter().map(|m| m.state).collect();
        let tasks: Vec<TaskResult> = self.results.into_iter().flatten().collect();
        let counts = |task: &&TaskResult| {
            // Killed because a sibling failed or the group's work is done: no failure. Killed because somebody wanted the
            // end: the process's own answer to that is the answer, and one that nobody has heard is no good one.
            let answer = match &task.outcome {
                Outcome::Exited(exit) => !exit.successful(),
                Outcome::Error(_) => true,
                Outcome::NotStarted => false,
            };
            task.failed || task.killed && wanted && answer
        };
        let first = tasks.iter().filter(counts).min_by_key(|t| t.ended);
        let failure = |t: &TaskResult| Failure { task: t.name.clone(), at: t.ended, outcome: t.outcome.clone() };
        AllocResult { status: AllocStatus::of(&states), first_failure: first.map(failure), tasks }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::alloc::fake::{self, Act, FakeDriver, lifecycle_task, task};
    use crate::alloc::gc;
    use crate::driver::DriverError;
    use crate::spec::{
        Artifact, ArtifactMode, ChangeMode, ExitResult, JobType, LifecycleHook, Network, Port, Pos, RestartMode,
        RestartPolicy, Signal, Template,
    };

    const SECOND: Duration = Duration::from_secs(1);

    struct World {
        data: tempfile::TempDir,
        driver: Arc<FakeDriver>,
        cgroups: Arc<FakeCgroups>,
        machine: Arc<Machine>,
        stop: watch::Sender<Stop>,
    }

    /// Those that were removed, by their names without the allocation's id.
    #[derive(Default)]
    struct FakeCgroups {
        removed: Mutex<Vec<String>>,
        busy: AtomicBool,
    }

    impl FakeCgroups {
        fn remove(&self, path: &Path) -> io::Result<()> {
            if self.busy.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::ResourceBusy.into());
            }
            let name = path.file_name().unwrap().to_str().unwrap();
            self.removed.lock().unwrap().push(name[37..].to_owned());
            Ok(())
        }
    }

    fn world(scripts: &[(&str, &[Act])]) -> World {
        let data = tempfile::tempdir().unwrap();
        let driver = FakeDriver::new(scripts);
        let cgroups = Arc::<FakeCgroups>::default();
        let remove = Arc::clone(&cgroups);
        let path = data.path().canonicalize().unwrap();
        let machine = Arc::new(Machine {
            node: fake::node(),
            drivers: BTreeMap::from([("fake".to_owned(), Arc::clone(&driver) as Arc<dyn Driver>)]),
            host_env: BTreeMap::new(),
            records: Arc::new(Records::new(&path)),
            ports: PortPool::default(),
            cgroup: Box::new(|id, task| PathBuf::from(format!("nomad.slice/{id}-{task}.scope"))),
            remove_cgroup: Arc::new(move |path| remove.remove(path)),
            cpusets: None,
            orphans: Arc::new(Orphans::ignore()),
            data_dir: path,
        });
        World { data, driver, cgroups, machine, stop: watch::Sender::new(Stop::No) }
    }

    impl World {
        /// Runs the job's first group and checks that nothing is left. Returns the result and the events, as
        /// `task: Type`.
        async fn run(&self, job: Job) -> (AllocResult, Vec<String>) {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            let mut alloc = Alloc::new(&self.machine, &Arc::new(job), 0, 0);
            alloc.set_up().await.unwrap();
            let result = alloc.run(self.stop.subscribe(), sender).await;
            assert_eq!(alloc.destroy().await.len(), 0);
            self.nothing_left();
            let mut events = Vec::new();
            while let Some(AllocEvent { event, .. }) = receiver.recv().await {
                events.push(format!("{}: {}", event.task, event.kind.as_str()));
            }
            (result, events)
        }

        fn nothing_left(&self) {
            assert!(gc::scan(self.data.path()).unwrap().is_empty());
            assert!(self.machine.drivers.len() == 1);
        }

        fn stop_after(&self, delay: Duration, urgency: Stop) {
            let stop = self.stop.clone();
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                stop.send_replace(urgency);
            });
        }

        /// The driver's log without what does not matter for order.
        fn log(&self) -> Vec<String> {
            self.driver.log()
        }
    }

    fn exit(code: i32) -> Outcome {
        Outcome::Exited(ExitResult { exit_code: code, ..ExitResult::default() })
    }

    fn killed_by(signal: Signal) -> Outcome {
        Outcome::Exited(ExitResult::from_wait(None, Some(signal.number())))
    }

    fn failure(result: &AllocResult) -> Option<(&str, Outcome)> {
        result.first_failure.as_ref().map(|f| (f.task.as_str(), f.outcome.clone()))
    }

    fn events_of(events: &[String], task: &str) -> Vec<String> {
        events.iter().filter_map(|e| e.strip_prefix(&format!("{task}: "))).map(str::to_owned).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_batch_task_runs_once() {
        let world = world(&[("web", &[Act::Exit(SECOND, 0)])]);
        let (result, events) = world.run(fake::job(vec![task("web")])).await;
        assert_eq!((result.status, failure(&result)), (AllocStatus::Complete, None));
        assert_eq!(world.log(), ["start web", "exit web 0"]);
        assert_eq!(*world.cgroups.removed.lock().unwrap(), ["web.scope"]);
        assert_eq!(events, ["web: Received", "web: Task Setup", "web: Started", "web: Terminated"]);
        let config = &world.driver.configs()[0];
        assert_eq!(config.cgroup, PathBuf::from(format!("nomad.slice/{}-web.scope", config.alloc_id)));
        assert!(config.id.starts_with(&format!("{}/web/", config.alloc_id)), "{}", config.id);
        assert_eq!(config.logs.as_ref().unwrap().stdout_file, "web.stdout");
    }

    #[tokio::test(start_paused = true)]
    async fn lifecycle_tasks_run_in_nomads_order() {
        use LifecycleHook::{Poststart, Poststop, Prestart};
        let world = world(&[
            ("init", &[Act::Exit(SECOND, 0)]),
            ("side", &[Act::UntilStopped(0)]),
            ("main", &[Act::Exit(5 * SECOND, 0)]),
            ("post", &[Act::Exit(SECOND, 0)]),
            ("bye", &[Act::Exit(SECOND, 0)]),
        ]);
        let job = fake::job(vec![
            lifecycle_task("bye", Poststop, false),
            task("main"),
            lifecycle_task("post", Poststart, false),
            lifecycle_task("side", Prestart, true),
            lifecycle_task("init", Prestart, false),
        ]);
        let (result, events) = world.run(job).await;
        assert_eq!((result.status, failure(&result)), (AllocStatus::Complete, None));
        let mut log = world.log();
        log[..2].sort();
        assert_eq!(
            log,
            [
                "start init",
                "start side",
                "exit init 0",
                "start main",
                "start post",
                "exit post 0",
                "exit main 0",
                "stop side SIGINT 5s",
                "exit side 0",
                "start bye",
                "exit bye 0"
            ]
        );
        assert!(events.contains(&"side: Main Tasks Dead".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_failure_decides_and_kills_the_siblings() {
        let world =
            world(&[("a", &[Act::UntilStopped(3)]), ("b", &[Act::Exit(SECOND, 7)]), ("bye", &[Act::Exit(SECOND, 9)])]);
        let tasks = vec![task("a"), task("b"), lifecycle_task("bye", LifecycleHook::Poststop, false)];
        let (result, events) = world.run(fake::job(tasks)).await;
        assert_eq!((result.status, failure(&result)), (AllocStatus::Failed, Some(("b", exit(7)))));
        assert_eq!(
            world.log()[2..],
            ["exit b 7", "stop a SIGINT 5s", "exit a 3", "start bye", "exit bye 9"].map(str::to_owned)
        );
        assert_eq!(
            events_of(&events, "a")[2..],
            ["Started", "Sibling Task Failed", "Killing", "Terminated", "Killed"].map(str::to_owned)
        );
        assert_eq!(events_of(&events, "b").last().unwrap(), "Not Restarting");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_init_task_keeps_main_from_running_but_not_poststop() {
        let world = world(&[("init", &[Act::Exit(SECOND, 1)]), ("bye", &[Act::Exit(SECOND, 0)])]);
        let tasks = vec![
            task("main"),
            lifecycle_task("init", LifecycleHook::Prestart, false),
            lifecycle_task("bye", LifecycleHook::Poststop, false),
        ];
        let (result, _) = world.run(fake::job(tasks)).await;
        assert_eq!(failure(&result), Some(("init", exit(1))));
        assert_eq!(world.log(), ["start init", "exit init 1", "start bye", "exit bye 0"]);
        assert_eq!(result.tasks[0].outcome, Outcome::NotStarted);
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_dies_first_sidecars_last_and_poststop_runs() {
        let world = world(&[
            ("helper", &[Act::UntilStopped(0)]),
            ("boss", &[Act::UntilStopped(0)]),
            ("side", &[Act::UntilStopped(0)]),
            ("bye", &[Act::Exit(SECOND, 0)]),
        ]);
        let tasks = vec![
            task("helper"),
            Task { leader: true, ..task("boss") },
            lifecycle_task("side", LifecycleHook::Poststart, true),
            lifecycle_task("bye", LifecycleHook::Poststop, false),
        ];
        world.stop_after(SECOND, Stop::Gracefully);
        let (result, _) = world.run(fake::job(tasks)).await;
        assert_eq!(failure(&result), None, "each answered the signal well");
        assert_eq!(
            world.log()[3..],
            [
                "stop boss SIGINT 5s",
                "exit boss 0",
                "stop helper SIGINT 5s",
                "exit helper 0",
                "stop side SIGINT 5s",
                "exit side 0",
                "start bye",
                "exit bye 0"
            ]
            .map(str::to_owned)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_leader_takes_the_group_along_without_making_it_a_failure() {
        let world = world(&[("boss", &[Act::Exit(SECOND, 0)]), ("helper", &[Act::UntilStopped(4)])]);
        let (result, events) = world.run(fake::job(vec![Task { leader: true, ..task("boss") }, task("helper")])).await;
        assert_eq!((result.status, failure(&result)), (AllocStatus::Complete, None));
        assert!(events.contains(&"helper: Leader Task Dead".to_owned()));
    }

    fn restarting(attempts: u32, name: &str) -> Task {
        let policy = RestartPolicy { attempts, interval: 60 * SECOND, delay: 10 * SECOND, mode: RestartMode::Fail };
        Task { restart: policy, ..task(name) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_task_is_restarted_as_often_as_the_policy_says() {
        let world = world(&[("web", &[Act::Exit(SECOND, 1)])]);
        let started = Instant::now();
        let (result, events) = world.run(fake::job(vec![restarting(2, "web")])).await;
        assert_eq!(failure(&result), Some(("web", exit(1))));
        assert_eq!(events_of(&events, "web").iter().filter(|e| *e == "Restarting").count(), 2);
        let took = started.elapsed();
        assert!(took >= 23 * SECOND && took <= 28 * SECOND + SECOND / 10, "{took:?}");
        let ids: std::collections::BTreeSet<_> = world.driver.configs().into_iter().map(|c| c.id).collect();
        assert_eq!(ids.len(), 3, "each start has its own id");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_that_works_is_no_failure() {
        let world = world(&[("web", &[Act::Lost(SECOND), Act::Exit(SECOND, 1), Act::Exit(SECOND, 0)])]);
        let (result, _) = world.run(fake::job(vec![restarting(3, "web")])).await;
        assert_eq!((result.status, failure(&result)), (AllocStatus::Complete, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_succeeds_is_started_again() {
        let world = world(&[("web", &[Act::Exit(SECOND, 0), Act::UntilStopped(0)])]);
        world.stop_after(30 * SECOND, Stop::Gracefully);
        let job = Job { kind: JobType::Service, ..fake::job(vec![restarting(2, "web")]) };
        world.run(job).await;
        assert_eq!(world.log(), ["start web", "exit web 0", "start web", "stop web SIGINT 5s", "exit web 0"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_interrupts_the_wait_for_a_restart() {
        let world = world(&[("web", &[Act::Exit(SECOND, 5)])]);
        world.stop_after(3 * SECOND, Stop::Gracefully);
        let started = Instant::now();
        let (result, _) = world.run(fake::job(vec![restarting(2, "web")])).await;
        assert_eq!(started.elapsed(), 3 * SECOND);
        assert_eq!(failure(&result), Some(("web", exit(5))));
    }

    #[tokio::test(start_paused = true)]
    async fn start_errors_are_told_apart() {
        let not_found: Act = Act::NoStart(|| DriverError::CommandNotFound("nope: not found".to_owned()));
        let world = world(&[("web", &[not_found])]);
        let (result, events) = world.run(fake::job(vec![restarting(2, "web")])).await;
        let Some((_, Outcome::Error(error))) = failure(&result) else { panic!("{result:?}") };
        assert_eq!(error.kind, TaskErrorKind::CommandNotFound);
        assert_eq!(error.message, "job.hcl:7: task \"web\": nope: not found");
        assert_eq!(events_of(&events, "web")[2..], ["Driver Failure", "Not Restarting"].map(str::to_owned));
    }

    #[tokio::test(start_paused = true)]
    async fn recoverable_start_errors_are_tried_again() {
        let busy: Act = Act::NoStart(|| DriverError::Failed { message: "busy".to_owned(), recoverable: true });
        let world = world(&[("web", &[busy, Act::Exit(SECOND, 0)])]);
        let (result, _) = world.run(fake::job(vec![restarting(2, "web")])).await;
        assert_eq!(failure(&result), None);
        assert_eq!(world.log(), ["no start web", "start web", "exit web 0"]);
    }

    #[tokio::test(start_paused = true)]
    async fn kill_signal_timeout_and_delays_are_kept() {
        let world = world(&[("web", &[Act::Stubborn])]);
        let web = Task {
            kill_signal: Some(Signal::TERM),
            kill_timeout: 7 * SECOND,
            shutdown_delay: 2 * SECOND,
            ..task("web")
        };
        let mut job = fake::job(vec![web]);
        job.groups[0].shutdown_delay = 3 * SECOND;
        world.stop_after(SECOND, Stop::Gracefully);
        let started = Instant::now();
        let (result, events) = world.run(job).await;
        assert_eq!(started.elapsed(), (1 + 3 + 2 + 7) * SECOND);
        assert_eq!(failure(&result), Some(("web", killed_by(Signal::KILL))));
        assert_eq!(world.log()[1], "stop web SIGTERM 7s");
        assert!(events.contains(&"web: Waiting for shutdown delay".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_stop_kills_at_once_and_poststop_does_not_run() {
        let world = world(&[("web", &[Act::Stubborn])]);
        world.stop_after(SECOND, Stop::Gracefully);
        world.stop_after(2 * SECOND, Stop::Now);
        let started = Instant::now();
        let tasks = vec![task("web"), lifecycle_task("bye", LifecycleHook::Poststop, false)];
        let (result, _) = world.run(fake::job(tasks)).await;
        assert_eq!(started.elapsed(), 2 * SECOND);
        assert_eq!(world.log()[1..3], ["stop web SIGINT 5s", "stop web SIGKILL 0ns"].map(str::to_owned));
        assert_eq!(failure(&result), Some(("web", killed_by(Signal::KILL))));
        assert!(!world.log().contains(&"start bye".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_before_the_start_starts_nothing() {
        let world = world(&[]);
        world.stop.send_replace(Stop::Gracefully);
        let (result, events) = world.run(fake::job(vec![task("web")])).await;
        assert_eq!(world.log(), [""; 0]);
        assert_eq!((result.status, failure(&result)), (AllocStatus::Complete, None));
        assert_eq!(events, ["web: Received"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_executor_is_an_error_with_a_text() {
        let world = world(&[("web", &[Act::Lost(SECOND)])]);
        let (result, _) = world.run(fake::job(vec![task("web")])).await;
        let Some((_, Outcome::Error(error))) = failure(&result) else { panic!("{result:?}") };
        assert!(error.message.ends_with("executor lost"), "{}", error.message);
    }

    fn template(data: &str, destination: &str, env: bool) -> Template {
        Template {
            data: data.to_owned(),
            destination: destination.to_owned(),
            perms: 0o640,
            env,
            change_mode: ChangeMode::Noop,
            left_delimiter: "{{".to_owned(),
            right_delimiter: "}}".to_owned(),
            error_on_missing_key: false,
            pos: Pos { file: "job.hcl".into(), line: 12, column: 5 },
        }
    }

    #[tokio::test]
    async fn artifacts_and_templates_are_there_when_the_task_starts() {
        let source = tempfile::tempdir().unwrap();
        std::fs::write(source.path().join("tool"), "x").unwrap();
        let mut web = task("web");
        web.templates = vec![
            template("port={{ env \"NOMAD_PORT_http\" }}", "${NOMAD_SECRETS_DIR}/conf", false),
            template("FROM_TEMPLATE={{ env \"NOMAD_TASK_NAME\" }}", "local/env", true),
        ];
        web.artifacts = vec![Artifact {
            source: "./tool".to_owned(),
            base_dir: source.path().to_owned(),
            stays_in_base_dir: false,
            destination: "local/${NOMAD_TASK_NAME}".to_owned(),
            mode: ArtifactMode::Any,
            chown: false,
            pos: Pos::default(),
        }];
        let mut job = fake::job(vec![web]);
        let port = Port { label: "http".to_owned(), ..Port::default() };
        job.groups[0].network = Some(Network { ports: vec![port], ..Network::default() });

        let world = world(&[("web", &[Act::UntilStopped(0)])]);
        let mut alloc = Alloc::new(&world.machine, &Arc::new(job), 0, 0);
        alloc.set_up().await.unwrap();
        let task_dir = alloc.log_dir().join("../../web");
        let (events, mut heard) = mpsc::unbounded_channel::<AllocEvent>();
        let stop = world.stop.clone();
        let look = async {
            while heard.recv().await.unwrap().event.kind != EventKind::Started {}
            let config = world.driver.configs().remove(0);
            let conf = std::fs::read_to_string(task_dir.join("secrets/conf")).unwrap();
            assert_eq!(conf, format!("port={}", config.env["NOMAD_PORT_http"]));
            assert_eq!(config.env["FROM_TEMPLATE"], "web");
            assert!(task_dir.join("local/web/tool").is_file());
            stop.send_replace(Stop::Gracefully);
        };
        tokio::join!(alloc.run(world.stop.subscribe(), events), look);
        assert_eq!(alloc.destroy().await.len(), 0);
        world.nothing_left();
    }

    #[tokio::test]
    async fn a_template_that_escapes_or_needs_a_server_fails_the_task_and_names_itself() {
        for (data, destination, expected) in [
            ("x", "local/../../etc/x", "job.hcl:12: template \"local/../../etc/x\" cannot be written"),
            ("\n{{ key \"x\" }}", "local/x", "job.hcl:12: template \"local/x\": line 2: function \"key\""),
        ] {
            let world = world(&[]);
            let web = Task { templates: vec![template(data, destination, false)], ..task("web") };
            let (result, events) = world.run(fake::job(vec![web])).await;
            let Some((_, Outcome::Error(error))) = failure(&result) else { panic!("{result:?}") };
            assert!(error.message.starts_with(expected), "{}", error.message);
            assert!(events.contains(&"web: Setup Failure".to_owned()));
            assert_eq!(world.log(), [""; 0]);
        }
    }

    #[tokio::test]
    async fn a_failed_set_up_is_undone() {
        let world = world(&[]);
        let listener = std::net::TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let taken = Some(listener.local_addr().unwrap().port());
        let mut job = fake::job(vec![task("web")]);
        let port = Port { label: "http".to_owned(), static_port: taken, ..Port::default() };
        job.groups[0].network = Some(Network { ports: vec![port], ..Network::default() });
        let mut alloc = Alloc::new(&world.machine, &Arc::new(job), 0, 0);
        let (error, leftovers) = alloc.set_up().await.unwrap_err();
        assert!(matches!(error, SetupError::Port(_)), "{error}");
        assert_eq!(leftovers.len(), 0);
        world.nothing_left();
    }

    #[tokio::test(start_paused = true)]
    async fn a_cgroup_that_stays_keeps_the_record() {
        let world = world(&[("web", &[Act::Lost(SECOND)]), ("side", &[Act::Exit(SECOND, 0)])]);
        world.cgroups.busy.store(true, Ordering::Relaxed);
        let (sender, _receiver) = mpsc::unbounded_channel();
        let job = fake::job(vec![task("web"), task("side")]);
        let mut alloc = Alloc::new(&world.machine, &Arc::new(job), 0, 0);
        alloc.set_up().await.unwrap();
        alloc.run(world.stop.subscribe(), sender).await;
        assert_eq!(alloc.destroy().await.iter().map(|e| e.action).collect::<Vec<_>>(), ["remove cgroup"; 2]);
        let Some(gc::Finding::InUse(record)) = gc::scan(world.data.path()).unwrap().pop() else { panic!() };
        world.cgroups.busy.store(false, Ordering::Relaxed);
        assert_eq!(gc::clean(world.data.path(), &record, &*world.machine.remove_cgroup, &|_| {}).len(), 0);
        world.nothing_left();
        assert_eq!(*world.cgroups.removed.lock().unwrap(), ["web.scope", "side.scope"]);
    }

    #[tokio::test]
    async fn names_that_cannot_be_folders_and_unknown_drivers_are_refused() {
        let world = world(&[]);
        let refused = async |task: Task| {
            let mut alloc = Alloc::new(&world.machine, &Arc::new(fake::job(vec![task])), 0, 0);
            chain(&alloc.set_up().await.unwrap_err().0)
        };
        assert!(refused(task("../x")).await.starts_with("job.hcl:7: \"../x\" cannot name a task"));
        let driver = Task { driver: "podman".to_owned(), ..task("web") };
        assert_eq!(refused(driver).await, "job.hcl:7: unknown driver \"podman\"; known are fake");
        world.nothing_left();
    }
}
