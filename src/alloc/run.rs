//! One allocation: its steps, its tasks, and which of them are started or killed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};

use super::assignment::Assignment;
use super::chain::chain;
use super::control::{Control, Names, Told};
use super::csi::CsiHook;
use super::csi_volumes::CsiVolume;
use super::dir::{AllocDir, is_task_name};
use super::error::{CleanupError, SetupError};
use super::hook::{Hook, Stack};
use super::lifecycle::Stage;
use super::network::IsolationHook;
use super::node::Node;
use super::place::{Machine, Place};
use super::service::Offers;
use super::shared::Shared;
use super::state::{Phase, State};
use super::steps::{AllocDirHook, CgroupsHook, NetworkHook, NosuidHook, RecordHook, release};
use super::supervise::{AllocResult, Supervisor};
use super::volumes::{AllocVolumes, HostVolumes};
use super::{AllocEvent, Stop};
use crate::logs::notices::Notices;
use crate::spec::collections::BTreeMap;
use crate::spec::{AllocId, EventKind, Group, Job};

/// Pause between two writes of the record.
const SAVE_PAUSE: Duration = Duration::from_millis(100);

/// One allocation of one group.
#[derive(Debug)]
pub struct Alloc {
    pub(super) place: Place,
    steps: Steps,
}

struct Steps(Stack<Place>);

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Steps")
    }
}

impl Alloc {
    /// An allocation of `job` as it was assigned; nothing is made yet.
    #[must_use]
    pub fn new(machine: &Arc<Machine>, job: &Arc<Job>, assignment: Assignment) -> Alloc {
        Alloc::build(machine, job, assignment, SystemTime::now(), &[])
    }

    /// The same, with the states in which an earlier process left its tasks.
    pub(super) fn build(
        machine: &Arc<Machine>,
        job: &Arc<Job>,
        assignment: Assignment,
        created: SystemTime,
        earlier: &[State],
    ) -> Alloc {
        let Assignment { id, group, index, name, ports: assigned } = assignment;
        let dir = AllocDir::new(&machine.data_dir, &id);
        let (job, machine) = (Arc::clone(job), Arc::clone(machine));
        let names = Names {
            id: id.clone(),
            name: name.clone(),
            namespace: job.namespace.clone(),
            job: job.id.clone(),
            group: job.groups[group].name.clone(),
            index,
            dir: dir.path().to_owned(),
            logs: dir.logs(),
        };
        let tasks = job.groups[group].tasks.iter().enumerate().map(|(number, task)| Told {
            name: task.name.clone(),
            driver_name: task.driver.clone(),
            driver: machine.drivers.get(&task.driver).cloned(),
            is_late: matches!(Stage::of(task), Stage::PoststartOnce | Stage::PoststartSidecar | Stage::Poststop),
            state: earlier.get(number).cloned().unwrap_or_default(),
        });
        let control = Control::new(names, created, machine.owner.returns(), tasks);
        let control = Arc::new(control.with_services_of(&job.groups[group]));
        let place = Place {
            id,
            index,
            name,
            job,
            group,
            node: Arc::clone(&machine.node),
            machine,
            dir,
            assigned,
            ports: Vec::new(),
            network: None,
            dns: None,
            notices: BTreeMap::new(),
            given_csi: BTreeMap::new(),
            csi: HostVolumes::default(),
            processes_are_left: false,
            recorded_is_left: false,
            volumes_are_left: false,
            untold: Vec::new(),
            hold: None,
            payload: Arc::default(),
            parent: String::new(),
            previous: None,
            control,
            restored: None,
        };
        let hooks: Vec<Box<dyn Hook<Place>>> = vec![
            Box::new(NosuidHook),
            // Ports are released only when nothing of the allocation remains.
            Box::new(NetworkHook),
            Box::new(RecordHook),
            Box::new(AllocDirHook),
            // Released when no process of the allocation can use them any more.
            Box::new(CsiHook),
            Box::new(IsolationHook),
            Box::new(CgroupsHook),
        ];
        Alloc { place, steps: Steps(Stack::new(hooks)) }
    }

    /// The same, for a job that was dispatched with this payload.
    #[must_use]
    pub fn with_payload(mut self, payload: &[u8]) -> Alloc {
        self.place.payload = payload.into();
        self
    }

    /// The same, for a job that `parent` started, because it was dispatched or by its clock; empty for none.
    #[must_use]
    pub fn with_parent(mut self, parent: &str) -> Alloc {
        parent.clone_into(&mut self.place.parent);
        self
    }

    /// The same, with other attributes and metadata of the node than the machine was assembled with; used for tasks that start from
    /// now on.
    #[must_use]
    pub fn with_node(mut self, node: Arc<Node>) -> Alloc {
        self.place.node = node;
        self
    }

    /// The same, with CSI volumes of its owner's, by the names that its group uses as their sources.
    #[must_use]
    pub fn with_csi(mut self, volumes: BTreeMap<String, CsiVolume>) -> Alloc {
        self.place.given_csi = volumes;
        self
    }

    /// The same, replacing another allocation, which has ended: if its disk is sticky, it takes over the other one's data.
    #[must_use]
    pub fn after(mut self, previous: Option<AllocId>) -> Alloc {
        self.place.previous = previous;
        self
    }

    /// Its control, for requests from outside.
    #[must_use]
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.place.control)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &AllocId {
        &self.place.id
    }

    /// Nomad's name of it: `<job>.<group>[<index>]`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Its job.
    #[must_use]
    pub fn job(&self) -> &Arc<Job> {
        &self.place.job
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> &Group {
        self.place.group()
    }

    /// Its index in the group, from 0.
    #[must_use]
    pub const fn index(&self) -> u32 {
        self.place.index
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.place.dir.path()
    }

    /// Where the output of its tasks is collected: `<task>.stdout.N` and `<task>.stderr.N`.
    #[must_use]
    pub fn log_dir(&self) -> PathBuf {
        self.place.dir.logs()
    }

    /// The notices that a task's driver will give of its output, once the task is started by this process; `None` if it gives
    /// none, and then its files have to be watched.
    pub fn notices(&mut self, task: &str) -> Option<Notices> {
        let driver = &self.group().tasks.iter().find(|known| known.name == task)?.driver;
        if self.place.restored.is_some() || !self.place.machine.drivers.get(driver)?.gives_notices() {
            return None;
        }
        if let Some(notices) = self.place.notices.get(task) {
            return Some(notices.clone());
        }
        let notices = Notices::new().ok()?;
        self.place.notices.insert(task.to_owned(), notices.clone());
        Some(notices)
    }

    /// Runs the steps before the tasks. If one fails, the earlier ones are undone, and then nothing of the allocation remains. The
    /// setup is cancelled when a stop is requested through its [`Control`].
    ///
    /// For a restored allocation it restores the steps that are done. What cannot be restored stays as it is, for another attempt.
    ///
    /// # Errors
    /// The step that failed, and what could not be undone.
    pub async fn set_up(&mut self) -> Result<(), (SetupError, Vec<CleanupError>)> {
        let made = self.make().await;
        if let (Err((error, _)), None) = (&made, &self.place.restored) {
            if !matches!(error, SetupError::Stopped) {
                self.place.control.set_set_up_failed();
            }
            self.place.control.set_gone();
        }
        made
    }

    async fn make(&mut self) -> Result<(), (SetupError, Vec<CleanupError>)> {
        if self.place.control.is_stopping() && self.place.restored.is_none() {
            return Err((SetupError::Stopped, Vec::new()));
        }
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
        if self.place.restored.is_some() {
            self.steps.0.restore(&mut self.place, |_| true).await.map_err(|(_, error)| (error, Vec::new()))?;
        } else if let Err((_, error)) = self.steps.0.run(&mut self.place).await {
            return Err((error, self.steps.0.undo(&mut self.place).await));
        }
        let place = &mut self.place;
        let network = place.network.as_ref().map(|n| (n.isolation.clone(), n.status.clone()));
        let noted = place.machine.records.save(&place.id, |restore| {
            (restore.is_set_up, restore.network, restore.dns) = (true, network, place.dns.clone());
        });
        match noted {
            Ok(()) => Ok(()),
            Err(error) if place.restored.is_some() => Err((error.into(), Vec::new())),
            Err(error) => Err((error.into(), self.steps.0.undo(&mut self.place).await)),
        }
    }

    /// Runs the tasks to their ends. [`Alloc::set_up`] comes first. `stop` stops it, and so does its [`Control`].
    ///
    /// Its events go to `events` as well, if there is somebody.
    pub async fn run(
        &mut self,
        stop: watch::Receiver<Stop>,
        events: impl Into<Option<mpsc::UnboundedSender<AllocEvent>>>,
    ) -> AllocResult {
        self.run_told(stop, events.into()).await
    }

    async fn run_told(
        &mut self,
        stop: watch::Receiver<Stop>,
        events: Option<mpsc::UnboundedSender<AllocEvent>>,
    ) -> AllocResult {
        let control = Arc::clone(&self.place.control);
        control.stop(*stop.borrow());
        control.set_ports(&self.place.ports);
        self.take_over().await;
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
            volumes: AllocVolumes::new(&self.place),
            plugins: Arc::clone(&self.place.machine.csi.plugins),
            network: self.place.network.as_ref().map(|network| network.isolation.clone()),
            dns: self.place.dns.clone(),
            notices: self.place.notices.clone(),
            values: self.place.machine.values.of_group(&self.place.job, &self.place.parent, &self.group().name),
            payload: Arc::clone(&self.place.payload),
            offers: Offers::new(&self.place),
            events,
            control: Arc::clone(&control),
            returns: self.place.returns(),
            restored: self.place.restored.is_some(),
        });
        if self.place.restored.as_ref().is_some_and(|restored| restored.rebooted) {
            let begins_again = |state: &State| state.phase != Phase::Dead && state.undecided.is_none();
            for state in control.states().iter().filter(|state| begins_again(state)) {
                let message = "The machine was restarted: the task begins again, which is not counted as a restart";
                shared.event(&state.name, EventKind::Restored, message, &[]);
            }
        }
        self.tell_of_network(&shared);
        let saving = save_changes(Arc::clone(&shared));
        let services = Arc::clone(&shared);
        let offers = services.offers.follow_group(|error| services.event("", EventKind::Driver, error, &[]));
        let tasks = async {
            let mut anew = false;
            loop {
                let stop = control.stop.subscribe();
                let result = Supervisor::new(&self.place, Arc::clone(&shared), stop, anew).await.run().await;
                // Processes that may still run would use the same ports and files.
                anew = result.anew && result.tasks.iter().all(|task| task.leftovers.is_empty());
                if !anew {
                    break result;
                }
                control.begin_anew();
                shared.save();
            }
        };
        let result = tokio::select! {
            biased;
            never = control.follow(stop) => match never {},
            never = saving => match never {},
            never = offers => match never {},
            result = tasks => result,
        };
        // Also when the allocation is left running: without a supervising process its services are not kept registered. Its next
        // owner
        // registers them again.
        services.offers.withdraw_group().await;
        if result.left {
            // Saves what has not been saved yet, such as events.
            self.note();
        } else {
            control.set_ended();
        }
        result
    }

    /// Takes over the data of the allocation that this one replaces.
    async fn take_over(&self) {
        let Some(previous) = self.place.previous.clone().filter(|_| self.group().scheduling.disk.sticky) else {
            return;
        };
        let (data_dir, dir) = (self.place.machine.data_dir.clone(), self.place.dir.clone());
        let tasks: Vec<String> = self.group().tasks.iter().map(|task| task.name.clone()).collect();
        let taken =
            crate::sys::task::spawn_blocking(move || dir.take_over(&AllocDir::new(&data_dir, &previous), &tasks));
        if let Err(error) = taken.await.unwrap_or_else(|error| Err(std::io::Error::other(error))) {
            tracing::warn!(alloc = %self.place.id, %error, "cannot take over the disk of the allocation before");
        }
    }

    fn note(&self) {
        let place = &self.place;
        let noted = place.machine.records.save(&place.id, |restore| {
            (restore.tasks, restore.stopping) = (place.control.states(), place.control.is_stopping());
        });
        if let Err(error) = noted {
            tracing::warn!(error = chain(&error), alloc = %place.id, "the state of an allocation is not noted");
        }
    }

    /// Releases what its tasks needed besides their files, once they have ended: cgroups, the network, ports. Its directory and its
    /// record stay until [`Alloc::destroy`].
    pub async fn finish(&mut self) -> Vec<CleanupError> {
        let mut errors = self.steps.0.undo_after(AllocDirHook.name(), &mut self.place).await;
        if !self.place.is_anything_left() {
            errors.extend(release(&self.place).await);
        }
        errors
    }

    /// Whether an earlier process made it.
    #[must_use]
    pub(crate) const fn is_restored(&self) -> bool {
        self.place.restored.is_some()
    }

    /// To be called when what its record lists was removed, as it could not be restored. Unless something is left, its ports are
    /// released, too.
    pub(crate) async fn cleaned(&mut self, is_gone: bool) -> Vec<CleanupError> {
        (self.place.recorded_is_left, self.place.volumes_are_left) = (false, !is_gone);
        if is_gone { release(&self.place).await } else { Vec::new() }
    }

    /// Whether something could not be removed that only its record can identify.
    #[must_use]
    pub(crate) const fn is_anything_left(&self) -> bool {
        self.place.is_anything_left()
    }

    /// Whether not all of its CSI volumes could be released.
    #[must_use]
    pub(crate) const fn has_volumes_left(&self) -> bool {
        self.place.volumes_are_left
    }

    /// Retries the release of CSI volumes; what else depended on that follows. Returns what is still left.
    pub(crate) async fn release_again(&mut self) -> Vec<CleanupError> {
        let mut errors = super::csi::release(&mut self.place, Stop::Now).await;
        if !self.place.is_anything_left() {
            errors.extend(release(&self.place).await);
        }
        errors
    }

    /// [`Alloc::destroy`] although CSI volumes are left: their own records tell who settles them. They can still be released here.
    pub(crate) async fn leave_volumes(&mut self) -> Vec<CleanupError> {
        self.place.volumes_are_left = false;
        let mut errors = self.steps.0.undo(&mut self.place).await;
        // A set-up that failed was undone before, but for its record; one that was restored in part has tried its volumes just now.
        self.place.volumes_are_left = false;
        errors.extend(RecordHook.undo(&mut self.place).await);
        self.place.volumes_are_left = true;
        self.place.control.set_gone();
        errors
    }

    /// Its own network, once it is set up.
    #[must_use]
    pub fn network(&self) -> Option<&crate::net::Status> {
        self.place.network.as_ref().map(|network| &network.status)
    }

    /// Reports, once for each network that is made, what the network does not protect its tasks from.
    fn tell_of_network(&self, shared: &Shared) {
        let is_kept = self.place.restored.as_ref().is_some_and(|old| !old.rebooted && !old.is_unfinished);
        if let Some(why) = self.network().and_then(|status| status.unguarded.as_ref()).filter(|_| !is_kept) {
            let message = format!(
                "A task with CAP_NET_RAW or CAP_NET_ADMIN can send with the addresses of others on the bridge: {why}; agentbin doctor \
                 says how to close it"
            );
            shared.event("", EventKind::Driver, message, &[]);
        }
    }

    /// Undoes [`Alloc::set_up`]: if no error is returned, nothing of the allocation remains.
    pub async fn destroy(mut self) -> Vec<CleanupError> {
        let errors = self.steps.0.undo(&mut self.place).await;
        self.place.control.set_gone();
        errors
    }
}

/// Saves changes: the first one at once, and those that follow soon together. Changes on which a process depends are saved
/// where they are made.
async fn save_changes(shared: Arc<Shared>) -> std::convert::Infallible {
    if !shared.returns {
        return std::future::pending().await;
    }
    let mut changes = shared.control.subscribe();
    while changes.next().await {
        let noted = shared.records.save(&shared.alloc, |restore| {
            (restore.tasks, restore.stopping) = (shared.control.states(), shared.control.is_stopping());
        });
        if let Err(error) = noted {
            tracing::warn!(error = chain(&error), alloc = %shared.alloc, "the state of an allocation is not noted");
        }
        tokio::time::sleep(SAVE_PAUSE).await;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::time::Instant;

    use super::*;
    use crate::alloc::control::OrderError;
    use crate::alloc::fake::{self, Act, FakeDriver, lifecycle_task, task};
    use crate::alloc::gc;
    use crate::alloc::owner::Owner;
    use crate::alloc::ports::{HostNetworks, PortError, PortPool};
    use crate::alloc::supervise::AllocStatus;
    use crate::alloc::task::{Outcome, TaskErrorKind};
    use crate::alloc::values::{ValuesFile, Variables};
    use crate::driver::DriverError;
    use crate::spec::{
        Artifact, ArtifactMode, ChangeMode, ChangeScript, EventKind, ExitResult, JobType, LifecycleHook, Network, Port,
        Pos, RestartMode, RestartPolicy, Signal, Task, Template,
    };

    const SECOND: Duration = Duration::from_secs(1);

    struct World {
        data: tempfile::TempDir,
        driver: Arc<FakeDriver>,
        cgroups: Arc<FakeCgroups>,
        machine: Arc<Machine>,
        stop: watch::Sender<Stop>,
    }

    /// The removed cgroups, by their names without the allocation's id.
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
            cgroup: Box::new(|id, task| PathBuf::from(format!("nomad.slice/{id}-{task}.scope"))),
            remove_cgroup: Arc::new(move |path| remove.remove(path)),
            ..fake::machine(&path, &driver, Owner::default())
        });
        World { data, driver, cgroups, machine, stop: watch::Sender::new(Stop::No) }
    }

    fn alloc(machine: &Arc<Machine>, job: Job) -> Alloc {
        let assignment = Assignment::new(&job, 0, 0);
        Alloc::new(machine, &Arc::new(job), assignment)
    }

    impl World {
        /// Runs the job's first group and checks that nothing remains. Returns the result and the events, as `task: Type`.
        async fn run(&self, job: Job) -> (AllocResult, Vec<String>) {
            let (sender, mut receiver) = mpsc::unbounded_channel();
            let mut alloc = alloc(&self.machine, job);
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
            crate::sys::task::spawn(async move {
                tokio::time::sleep(delay).await;
                stop.send_replace(urgency);
            });
        }

        /// The driver's log, without entries that do not matter for the order.
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
    async fn e1_a_driver_knows_the_share_of_the_machine_and_whose_task_it_is() {
        let world = world(&[("web", &[Act::Exit(SECOND, 0)])]);
        let (result, _) = world.run(fake::job(vec![task("web")])).await;
        assert_eq!(result.status, AllocStatus::Complete);
        let config = world.driver.configs().remove(0);
        let share = (100.0 / crate::alloc::compute().total_mhz as f64).min(1.0);
        assert!((config.percent_ticks / share - 1.0).abs() < 0.1, "{} {share}", config.percent_ticks);
        assert_eq!((config.node_id, config.node_name), (world.machine.node.id.clone(), "here".to_owned()));
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
        let (interval, delay, mode) = (60 * SECOND, 10 * SECOND, RestartMode::Fail);
        Task { restart: RestartPolicy { attempts, interval, delay, mode, render_templates: false }, ..task(name) }
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
        let ids: crate::spec::collections::BTreeSet<_> = world.driver.configs().into_iter().map(|c| c.id).collect();
        assert_eq!(ids.len(), 3, "each start has its own id");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_that_works_is_no_failure() {
        let world = world(&[("web", &[Act::Lost(SECOND), Act::Exit(SECOND, 1), Act::Exit(SECOND, 0)])]);
        let mut alloc = alloc(&world.machine, fake::job(vec![restarting(3, "web")]));
        alloc.set_up().await.unwrap();
        let (sender, _events) = mpsc::unbounded_channel();
        let result = alloc.run(world.stop.subscribe(), sender).await;
        assert_eq!((result.status, failure(&result)), (AllocStatus::Complete, None));
        assert!(has_event(&alloc.control(), EventKind::Restarting, "Task restarting in 1"));
        assert_eq!(alloc.destroy().await.len(), 0);
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
    async fn what_cannot_be_ended_is_not_started_a_second_time() {
        let world = world(&[("web", &[Act::Unstoppable, Act::UntilStopped(0)])]);
        let mut alloc = alloc(&world.machine, fake::job(vec![restarting(3, "web")]));
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let orders = async {
            control.settled().await;
            assert!(matches!(control.restart(None).await, Err(OrderError::NotRestarted(_))));
        };
        let (result, ()) = tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
        assert!(result.tasks[0].failed && !result.tasks[0].leftovers.is_empty(), "{result:?}");
        assert_eq!(world.log().iter().filter(|line| *line == "start web").count(), 1, "{:?}", world.log());
        alloc.destroy().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_is_settled_when_its_main_tasks_have_been_started() {
        let world = world(&[
            ("init", &[Act::Exit(20 * SECOND, 0)]),
            (
                "web",
                &[
                    Act::NoStart(|| DriverError::Failed { message: "x".to_owned(), recoverable: true }),
                    Act::UntilStopped(0),
                ],
            ),
            ("bye", &[Act::Exit(SECOND, 0)]),
        ]);
        let job = fake::job(vec![
            lifecycle_task("init", LifecycleHook::Prestart, false),
            restarting(3, "web"),
            lifecycle_task("bye", LifecycleHook::Poststop, false),
        ]);
        let mut alloc = alloc(&world.machine, job);
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let orders = async {
            assert_eq!(control.unstarted(), ["init", "web"]);
            control.settled().await;
            assert_eq!(world.log(), ["start init", "exit init 0", "no start web", "start web"]);
            assert_eq!(control.unstarted(), [""; 0]);
            control.stop(Stop::Gracefully);
        };
        let (result, ()) = tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
        assert_eq!(failure(&result), None);
        assert_eq!(alloc.destroy().await.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_that_was_asked_for_is_not_counted_and_a_stop_of_one_allocation_is_its_own() {
        let world = world(&[("web", &[Act::UntilStopped(3)]), ("side", &[Act::UntilStopped(0)])]);
        let mut alloc = alloc(&world.machine, fake::job(vec![task("web"), task("side")]));
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let orders = async {
            control.settled().await;
            assert_eq!(control.restart(Some("web")).await.unwrap(), ["web"], "although its policy has no attempts");
            assert_eq!(control.restart(None).await.unwrap(), ["web", "side"]);
            assert!(matches!(control.restart(Some("db")).await, Err(OrderError::UnknownTask { .. })));
            assert_eq!(control.signal(Some("web"), Signal::TERM).await.unwrap(), ["web"]);
            let view = control.view();
            assert_eq!(view.tasks.iter().map(|t| t.restarts).collect::<Vec<_>>(), [2, 1]);
            control.stop(Stop::Gracefully);
        };
        let (result, ()) = tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
        assert_eq!(failure(&result), Some(("web", exit(3))));
        assert_eq!(*world.stop.borrow(), Stop::No, "the others of the run go on");
        assert!(matches!(control.signal(None, Signal::TERM).await, Err(OrderError::NothingRuns(_))));
        assert_eq!(alloc.destroy().await.len(), 0);
        control.gone().await;
        assert_eq!(world.log().iter().filter(|line| *line == "start web").count(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_of_all_tasks_is_not_lost_before_they_run() {
        let world = world(&[("web", &[Act::UntilStopped(0)]), ("side", &[Act::UntilStopped(0)])]);
        let mut alloc = alloc(&world.machine, fake::job(vec![task("web"), task("side")]));
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let order = async {
            control.restart_all().await.unwrap();
            control.stop(Stop::Gracefully);
        };
        // The order comes first.
        let ((), result) = tokio::join!(biased; order, alloc.run(world.stop.subscribe(), sender));
        assert_eq!(failure(&result), None);
        let restarts: Vec<u64> = control.view().tasks.iter().map(|task| task.restarts).collect();
        assert_eq!(restarts, [1, 1]);
        assert_eq!(alloc.destroy().await.len(), 0);
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
        let last = ["Killing", "Waiting for shutdown delay", "Terminated", "Killed"].map(str::to_owned);
        assert!(events_of(&events, "web").ends_with(&last), "{events:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_is_no_kill_and_a_delay_that_has_begun_can_be_skipped() {
        let world = world(&[("web", &[Act::UntilStopped(0)])]);
        let web = Task { shutdown_delay: 60 * SECOND, ..task("web") };
        let mut alloc = alloc(&world.machine, fake::job(vec![web]));
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, mut heard) = mpsc::unbounded_channel::<AllocEvent>();
        let orders = async {
            control.settled().await;
            let began = Instant::now();
            control.restart(None).await.unwrap();
            control.restart_all().await.unwrap();
            assert!(began.elapsed() < SECOND, "without the delay");
            control.stop(Stop::Gracefully);
            until(|| has_event(&control, EventKind::WaitingForShutdownDelay, "")).await;
            let skipped = Instant::now();
            control.stop_without_delay();
            skipped
        };
        let (result, skipped) = tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
        assert!(failure(&result).is_none() && skipped.elapsed() < SECOND, "{result:?}");
        assert_eq!(alloc.destroy().await.len(), 0);
        let mut told = Vec::new();
        while let Ok(AllocEvent { event, .. }) = heard.try_recv() {
            if [EventKind::RestartSignaled, EventKind::Killing, EventKind::Killed].contains(&event.kind) {
                told.push(event.message);
            }
        }
        let expected = [
            "User requested running tasks to restart",
            "User requested all tasks to restart",
            "Sent interrupt. Waiting 5s before force killing",
            "Task successfully killed",
        ];
        assert_eq!(told, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_can_skip_the_delays_of_group_and_task() {
        let world = world(&[("web", &[Act::UntilStopped(0)])]);
        let mut job = fake::job(vec![Task { shutdown_delay: 60 * SECOND, ..task("web") }]);
        job.groups[0].shutdown_delay = 60 * SECOND;
        let mut alloc = alloc(&world.machine, job);
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let orders = async {
            control.settled().await;
            control.stop_without_delay();
            Instant::now()
        };
        let (_, stopped) = tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
        assert!(stopped.elapsed() < SECOND);
        let text = "Skipping shutdown_delay of 1m0s before killing the task.";
        assert!(has_event(&control, EventKind::SkippingShutdownDelay, text));
        assert_eq!(alloc.destroy().await.len(), 0);
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
            source: None,
            change_mode: ChangeMode::Noop,
            once: false,
            splay: Duration::ZERO,
            uid: None,
            gid: None,
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
            options: BTreeMap::new(),
            headers: BTreeMap::new(),
            insecure: false,
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
        let mut alloc = alloc(&world.machine, job);
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

    /// The variable `v` of an agent.
    #[derive(Debug)]
    struct Stored {
        v: Mutex<String>,
        changes: watch::Sender<u64>,
    }

    impl Variables for Stored {
        fn read(&self, _: &str, _: &[String]) -> Result<serde_json::Map<String, serde_json::Value>, String> {
            let v = self.v.lock().unwrap().clone();
            Ok([("v".to_owned(), v.into())].into_iter().collect())
        }

        fn changes(&self) -> watch::Receiver<u64> {
            self.changes.subscribe()
        }
    }

    impl Stored {
        /// Gives the machine of this world a variable.
        fn of(world: &mut World) -> Arc<Stored> {
            let stored = Arc::new(Stored { v: Mutex::new("one".to_owned()), changes: watch::Sender::default() });
            let values = ValuesFile::default().with_variables(Arc::clone(&stored) as Arc<dyn Variables>);
            Arc::get_mut(&mut world.machine).unwrap().values = values;
            stored
        }

        fn set(&self, v: &str) {
            v.clone_into(&mut self.v.lock().unwrap());
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// A task whose templates show the variable, and do this when it changes.
    fn following(task: Task, modes: &[ChangeMode]) -> Task {
        let one = |(number, mode): (usize, &ChangeMode)| Template {
            change_mode: mode.clone(),
            ..template("{{ key \"v\" }}", &format!("local/x{number}"), false)
        };
        Task { templates: modes.iter().enumerate().map(one).collect(), ..task }
    }

    fn script(command: &str) -> ChangeMode {
        let (command, timeout) = (command.to_owned(), 30 * SECOND);
        ChangeMode::Script(ChangeScript {
            command,
            args: vec!["-x".to_owned()],
            timeout,
            fail_on_error: true,
            run_on_first_render: false,
        })
    }

    /// Waits until this is so; for ten minutes.
    async fn until(is_so: impl Fn() -> bool) {
        let waiting = async {
            while !is_so() {
                tokio::time::sleep(SECOND / 100).await;
            }
        };
        tokio::time::timeout(600 * SECOND, waiting).await.expect("it is so in the end");
    }

    fn has_event(control: &Control, kind: EventKind, text: &str) -> bool {
        control.tasks()[0].events.iter().any(|event| event.kind == kind && event.message.starts_with(text))
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_changed_template_asks_for_is_done_although_the_job_is_updated_meanwhile() {
        let mut world = world(&[("web", &[Act::UntilStopped(0)])]);
        let stored = Stored::of(&mut world);
        let job = fake::job(vec![following(task("web"), &[script("slow")])]);
        let mut alloc = alloc(&world.machine, job.clone());
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let runs = || world.log().iter().filter(|line| *line == "exec web slow -x").count();
        let orders = async {
            control.settled().await;
            stored.set("two");
            until(|| runs() == 1).await;
            control.update(&Arc::new(job));
            let told = "Template successfully ran script slow with arguments: [-x]. Exit code: 0";
            until(|| has_event(&control, EventKind::HookMessage, told)).await;
            control.stop(Stop::Gracefully);
        };
        let (result, ()) = tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
        assert_eq!((failure(&result), runs()), (None, 2));
        assert_eq!(alloc.destroy().await.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn templates_that_change_together_send_a_signal_once_and_before_scripts() {
        let mut world = world(&[("web", &[Act::UntilStopped(0)])]);
        let stored = Stored::of(&mut world);
        let (term, stop) = (ChangeMode::Signal(Signal::TERM), world.stop.clone());
        let modes = [script("good"), term.clone(), ChangeMode::Noop, term];
        let mut alloc = alloc(&world.machine, fake::job(vec![following(task("web"), &modes)]));
        alloc.set_up().await.unwrap();
        let control = alloc.control();
        let (sender, _events) = mpsc::unbounded_channel();
        let orders = async {
            control.settled().await;
            stored.set("two");
            until(|| has_event(&control, EventKind::HookMessage, "")).await;
            stop.send_replace(Stop::Gracefully);
        };
        tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
        assert_eq!(world.log()[1..3], ["signal web SIGTERM", "exec web good -x"].map(str::to_owned));
        assert_eq!(alloc.destroy().await.len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_cannot_be_told_of_a_changed_template_fails_for_good() {
        for (mode, text) in [
            (script("bad"), "Template script failed, task is being killed"),
            (ChangeMode::Signal(Signal::STOP), "Template failed to send signals [SIGSTOP]: not this one"),
        ] {
            let mut world = world(&[("web", &[Act::UntilStopped(0)])]);
            let stored = Stored::of(&mut world);
            let mut alloc = alloc(&world.machine, fake::job(vec![following(restarting(3, "web"), &[mode])]));
            alloc.set_up().await.unwrap();
            let control = alloc.control();
            let (sender, _events) = mpsc::unbounded_channel();
            let orders = async {
                control.settled().await;
                stored.set("two");
            };
            let (result, ()) = tokio::join!(alloc.run(world.stop.subscribe(), sender), orders);
            let Some(("web", Outcome::Error(error))) = failure(&result) else { panic!("{result:?}") };
            assert!(error.message.contains("changed template"), "{}", error.message);
            assert_eq!(world.log().iter().filter(|line| *line == "start web").count(), 1, "{:?}", world.log());
            assert!(has_event(&control, EventKind::Killing, text) && has_event(&control, EventKind::Killed, ""));
            assert_eq!(alloc.destroy().await.len(), 0);
        }
    }

    #[tokio::test]
    async fn a_template_that_escapes_or_calls_what_is_not_there_fails_the_task_and_names_itself() {
        for (data, destination, expected) in [
            (
                "x",
                "local/../../etc/x",
                "job.hcl:12: template \"local/../../etc/x\" cannot be written: template destination path escapes alloc directory",
            ),
            (
                "\n{{ kez \"x\" }}",
                "local/x",
                "job.hcl:12: template \"local/x\": line 2: there is no function \"kez\" (did you mean key?)",
            ),
        ] {
            let world = world(&[]);
            let web = Task { templates: vec![template(data, destination, false)], ..task("web") };
            let (result, events) = world.run(fake::job(vec![web])).await;
            let Some((_, Outcome::Error(error))) = failure(&result) else { panic!("{result:?}") };
            assert!(error.message.starts_with(expected), "{}", error.message);
            assert!(events.contains(&"web: Task hook failed".to_owned()));
            assert_eq!(world.log(), [""; 0]);
        }
    }

    #[tokio::test]
    async fn the_payload_of_a_dispatched_job_may_be_a_program() {
        use std::os::unix::fs::PermissionsExt as _;
        let world = world(&[("web", &[Act::Exit(Duration::ZERO, 0)])]);
        let web = Task { dispatch_payload: Some("in".to_owned()), ..task("web") };
        let mut alloc = alloc(&world.machine, fake::job(vec![web])).with_payload(b"#!/bin/sh\n");
        alloc.set_up().await.unwrap();
        let (sender, _events) = mpsc::unbounded_channel();
        alloc.run(world.stop.subscribe(), sender).await;
        let file = alloc.dir().join("web/local/in");
        assert_eq!(std::fs::read(&file).unwrap(), b"#!/bin/sh\n");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o755);
        assert_eq!(alloc.destroy().await.len(), 0);
    }

    #[test]
    fn what_is_known_of_the_node_at_the_moment_is_the_allocation_s_own() {
        let world = world(&[]);
        let alloc = alloc(&world.machine, fake::job(vec![task("web")]));
        let meta = BTreeMap::from([("rack".to_owned(), "r2".to_owned())]);
        let alloc = alloc.with_node(Arc::new(Node { meta, ..Node::clone(&world.machine.node) }));
        assert_eq!(alloc.place.node.lookup("meta.rack"), Some("r2"));
        assert_eq!(world.machine.node.lookup("meta.rack"), None);
    }

    #[tokio::test]
    async fn a_failed_set_up_is_undone() {
        let world = world(&[]);
        let listener = std::net::TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let taken = Some(listener.local_addr().unwrap().port());
        let mut job = fake::job(vec![task("web")]);
        let port = Port { label: "http".to_owned(), static_port: taken, ..Port::default() };
        job.groups[0].network = Some(Network { ports: vec![port], ..Network::default() });
        let mut alloc = alloc(&world.machine, job);
        let (error, leftovers) = alloc.set_up().await.unwrap_err();
        assert!(matches!(error, SetupError::Port(_)), "{error}");
        assert_eq!(leftovers.len(), 0);
        assert_eq!(alloc.control().view().status, "failed");
        world.nothing_left();
    }

    #[tokio::test(start_paused = true)]
    async fn a_cgroup_that_stays_keeps_the_record() {
        let mut world = world(&[("web", &[Act::Lost(SECOND)]), ("side", &[Act::Exit(SECOND, 0)])]);
        world.cgroups.busy.store(true, Ordering::Relaxed);
        let port = std::net::TcpListener::bind(("0.0.0.0", 0)).unwrap().local_addr().unwrap().port();
        let ports = PortPool::default().with(HostNetworks::default(), port..=port);
        Arc::get_mut(&mut world.machine).unwrap().ports = ports;
        let (sender, _receiver) = mpsc::unbounded_channel();
        let mut job = fake::job(vec![task("web"), task("side")]);
        let asked = Port { label: "http".to_owned(), ..Port::default() };
        job.groups[0].network = Some(Network { ports: vec![asked], ..Network::default() });
        let (again, Machine { ports, node, networks, .. }) = (job.clone(), &*world.machine);
        let mut alloc = alloc(&world.machine, job);
        alloc.set_up().await.unwrap();
        alloc.run(world.stop.subscribe(), sender).await;
        assert_eq!(alloc.destroy().await.iter().map(|e| e.action).collect::<Vec<_>>(), ["remove cgroup"; 2]);
        let next = AllocId::new(uuid::Uuid::new_v4());
        let taken = ports.allocate(&again, 0, &next, node, networks);
        assert!(matches!(taken, Err(PortError::Exhausted { .. })), "what is left may have its port: {taken:?}");
        let Some(gc::Finding::InUse(record)) = gc::scan(world.data.path()).unwrap().pop() else { panic!() };
        world.cgroups.busy.store(false, Ordering::Relaxed);
        let remove_cgroup = &*world.machine.remove_cgroup;
        let means =
            gc::Means { remove_containers: &|| Ok(()), remove_cgroup, release_volumes: &|| Ok(()), rescue: &|_| {} };
        assert_eq!(gc::clean(world.data.path(), &record, &means).len(), 0);
        world.nothing_left();
        assert_eq!(*world.cgroups.removed.lock().unwrap(), ["web.scope", "side.scope"]);
    }

    #[tokio::test]
    async fn names_that_cannot_be_folders_and_unknown_drivers_are_refused() {
        let world = world(&[]);
        let refused = async |task: Task| {
            let mut alloc = alloc(&world.machine, fake::job(vec![task]));
            chain(&alloc.set_up().await.unwrap_err().0)
        };
        assert!(refused(task("../x")).await.starts_with("job.hcl:7: \"../x\" cannot name a task"));
        let driver = Task { driver: "podman".to_owned(), ..task("web") };
        assert_eq!(refused(driver).await, "job.hcl:7: unknown driver \"podman\"; known are fake");
        world.nothing_left();
    }
}
