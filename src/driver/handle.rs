//! Common code of the drivers on an executor: start one executor per task, reattach to it, track it, end it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{broadcast, watch};

use super::failed;
use super::state::{GoDriverState, GoTaskConfig, OwnState};
use super::strays::{self, Note};
use super::streaming::{self, NotStarted};
use super::{DriverError, ExecTaskResult, TaskConfig, TaskEvent, TaskHandle, TaskState, TaskStatus};
use crate::cgroup::{CgroupFs, Regime, TaskCgroup};
use crate::executor::{
    self, ALREADY_LAUNCHED, Compute, ExecRequests, ExecResponses, Executor as _, ExecutorClient, ExecutorError,
    Isolation, NewLimits,
};
use crate::logs::notices::Notices;
use crate::plugin::{Client, HclogLine, HostError, Launch, Life, Program, Reattach, ReattachConfig, role_environment};
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::spec::{
    ExitResult, HostIds, LaunchSpec, Outlive, OutputHealth, ProcessId, ProcessState, Role, Signal, StreamHealth,
    TaskStats,
};
use crate::sys::lock::lock;
use crate::sys::{mutant, owned, processes};

/// Suffix of the log of a task's executor: `<task>-executor.out` in the allocation's directory.
pub const EXECUTOR_LOG: &str = "-executor.out";
/// Name of that log in the task's directory, where an agent expects it.
const AGENT_LOG: &str = "executor.out";
/// After this time without a call or a change, an executor is waited for without a connection to it.
const RESTS_AFTER: Duration = Duration::from_secs(10);
/// Pause before an executor that cannot be reached is called again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long the executor of an ended task may take to report the end.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);
/// How many executors are started for one that was killed, if each of them is killed before it has taken over.
const HEIRS: u32 = 5;
/// How long an executor may take to answer on reattach: long, as a machine may be busy while it boots, and without an answer
/// its task counts as lost.
const FOUND_PATIENCE: Duration = Duration::from_secs(10);
/// How long after the end of its connections an executor process may take to end.
const DEATH_PATIENCE: Duration = Duration::from_secs(3);
/// Timeout for killing the remaining processes of a lost executor.
const SWEEP_PATIENCE: Duration = Duration::from_secs(10);

/// Longest launch specification that is read, in bytes: more than any command line and environment may have.
const LONGEST_LAUNCH: u64 = 16 << 20;
/// Event for a signal without effect, after the signal's name.
const NO_HANDLER: &str = "has no effect: the command is pid 1 of its pid namespace, where the kernel drops a signal that it has no \
    handler for; init = true in the task's config starts it below an init that passes signals on";
/// Capacity of the event queue for a slow listener.
const EVENTS: usize = 64;
/// An agent keeps the last ten events of a task: output that alternates between dropped and written must not push out the
/// others.
const OUTAGES_APART: Duration = Duration::from_secs(10);

/// What the drivers need to know about this machine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The cgroup hierarchies.
    pub cgroups: CgroupFs,
    /// The node's compute.
    pub compute: Compute,
    /// Directory of the executors' sockets; only its owner may enter it. It outlives this process, because tasks are recovered
    /// through it.
    pub socket_dir: PathBuf,
    /// What the owner of the driver does itself.
    pub host: Host,
}

/// What the owner of a driver does itself, and what it leaves to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Host {
    /// It makes the tasks' cgroups, by the names of Nomad's agents. Otherwise it names one for each task, and the driver makes it.
    pub makes_cgroups: bool,
    /// It hands on the `logs` block of a task, so that there is none in the task's `config`.
    pub hands_on_logs: bool,
    /// It sends the tasks' output to log sinks.
    pub ships_output: bool,
    /// Its jobs come from others than its operator: only the plugin's configuration allows them things, and they may expect what
    /// Nomad's own drivers do.
    pub has_foreign_jobs: bool,
    /// It looks for the log of a task's executor in the task's directory.
    pub wants_log_in_task_dir: bool,
    /// It recovers tasks in later processes of the driver.
    pub recovers_tasks: bool,
    /// It leaves it to the driver which of its environment's variables tasks inherit.
    pub leaves_environment: bool,
    /// It says with whom a task shares its directories.
    pub names_neighbours: bool,
    /// It writes and removes the tasks' files as its own user, also while they run.
    pub owns_files: bool,
    /// It waits for a missing Docker Engine, which may only start later.
    pub waits_for_engine: bool,
    /// It removes the containers that interrupted starts leave.
    pub removes_containers: bool,
    /// It expects the default image of a group's network from the registry, as Nomad's own driver gets it.
    pub fetches_infra_image: bool,
}

impl Host {
    /// A Nomad agent, to which the driver is a plugin.
    pub const NOMAD: Host = Host {
        makes_cgroups: true,
        hands_on_logs: false,
        ships_output: false,
        has_foreign_jobs: true,
        wants_log_in_task_dir: true,
        recovers_tasks: true,
        leaves_environment: true,
        names_neighbours: false,
        owns_files: true,
        waits_for_engine: true,
        removes_containers: false,
        fetches_infra_image: true,
    };
    /// This program itself: a run, or its own agent.
    pub const OWN: Host = Host {
        makes_cgroups: false,
        hands_on_logs: true,
        ships_output: true,
        has_foreign_jobs: false,
        wants_log_in_task_dir: false,
        recovers_tasks: false,
        leaves_environment: false,
        names_neighbours: true,
        owns_files: false,
        waits_for_engine: false,
        removes_containers: true,
        fetches_infra_image: false,
    };
}

/// The tasks of one driver.
#[derive(Debug)]
pub(super) struct Tasks {
    starter: Arc<Starter>,
    tasks: Mutex<HashMap<String, Arc<Task>>>,
    /// Starts in progress.
    starting: Mutex<HashSet<String>>,
    events: broadcast::Sender<TaskEvent>,
    /// Whether a note is written for each executor, because its tasks outlive this process.
    notes: bool,
}

/// A start in progress; no other start of a task with this id can begin while this exists.
#[derive(Debug)]
pub(super) struct Starting<'a> {
    tasks: &'a Tasks,
    id: &'a str,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        lock(&self.tasks.starting).remove(self.id);
    }
}

/// Starts executors.
#[derive(Debug)]
struct Starter {
    isolation: Isolation,
    settings: Settings,
    /// Replaced by what the agent reports later.
    compute: Mutex<Compute>,
}

#[derive(Debug)]
struct Task {
    /// Its events, but for the time and the message.
    event: TaskEvent,
    pid: i32,
    started_at: SystemTime,
    /// `None` once the task is being destroyed.
    client: Mutex<Option<Client>>,
    /// Changes when another executor adopts the task.
    executor: watch::Sender<ExecutorClient>,
    cgroup: PathBuf,
    note: Option<Note>,
    /// For a task that outlives its executor: what is needed to adopt it.
    heir: Option<Heir>,
    end: watch::Receiver<Option<End>>,
}

/// State that belongs to a task besides its executor.
#[derive(Debug)]
struct Companions {
    note: Option<Note>,
    heir: Option<Heir>,
    /// Number of changes of the output's health that have been reported.
    known: u64,
}

/// What is needed to start another executor for a task that outlives its executor.
#[derive(Debug, Clone)]
struct Heir {
    log_file: PathBuf,
    record: PathBuf,
    /// Read from next to the record, where it is kept for a later process; here only if it could not be kept.
    spec: Option<Box<LaunchSpec>>,
    notices: Option<Notices>,
}

impl Heir {
    fn of(starter: &Starter, task: &TaskConfig, spec: &LaunchSpec) -> Option<Heir> {
        let outlive = spec.outlive.clone()?;
        let (log_file, record, notices) = (starter.log_file(task), outlive.record.clone(), task.notices.clone());
        let spec = LaunchSpec { outlive: Some(Outlive { adopt: true, ..outlive }), ..spec.clone() };
        Some(Heir { log_file, record, spec: Some(Box::new(spec)), notices })
    }

    /// As an earlier process kept it.
    fn kept(starter: &Starter, task: &TaskConfig, record: &Path) -> io::Result<Heir> {
        let (log_file, record, notices) = (starter.log_file(task), record.to_owned(), task.notices.clone());
        let heir = Heir { log_file, record, spec: None, notices };
        heir.spec()?;
        Ok(heir)
    }

    /// Keeps the launch specification for a later process, which an agent that was started anew does not tell the task's `config`.
    fn keep(&mut self) {
        let Some(spec) = self.spec.take() else { return };
        let path = launch_of(&self.record);
        if let Err(error) = strays::write(&path, &executor::launch_to_bytes(LaunchSpec::clone(&spec))) {
            tracing::warn!(%error, path = %path.display(), "a later driver could not start another executor for the task");
            self.spec = Some(spec);
        }
    }

    /// The launch specification for the executor that adopts the task.
    fn spec(&self) -> io::Result<LaunchSpec> {
        if let Some(spec) = &self.spec {
            return Ok(LaunchSpec::clone(spec));
        }
        let bytes = owned::read(&launch_of(&self.record), LONGEST_LAUNCH)?;
        let outlive = Some(Outlive { record: self.record.clone(), adopt: true });
        Ok(LaunchSpec { outlive, ..executor::launch_from(&bytes).map_err(io::Error::other)? })
    }

    fn remove_record(&self) {
        strays::remove(&self.record);
        strays::remove(&launch_of(&self.record));
    }
}

/// The launch specification of a task, next to its record.
fn launch_of(record: &Path) -> PathBuf {
    record.with_extension("launch")
}

impl Task {
    fn executor(&self) -> ExecutorClient {
        self.executor.borrow().clone()
    }

    /// Whether a call failed because the executor has ended: its connection breaks a moment before the process is gone.
    async fn lost_its_executor(&self) -> bool {
        let life = lock(&self.client).as_ref().map(Client::life);
        match life {
            Some(life) => dies(life).await,
            None => true,
        }
    }

    /// Waits for the end of the task, and reports changes of its output meanwhile; without a connection while there are none.
    async fn ended(&self, outages: &mut Outages) -> Result<ProcessState, ExecutorError> {
        let mut rests = true;
        let mut is_told = false;
        loop {
            // Boxed, so that it takes no memory between.
            match Box::pin(self.ended_or_quiet(outages, rests)).await {
                // It may be the connection that could not be made, for lack of descriptors.
                Some(Err(ExecutorError::PluginShutdown)) if !self.lost_its_executor().await => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(
                            pid = self.pid,
                            "the executor of a task runs and cannot be reached; trying again"
                        );
                    }
                    outages.are_over = false;
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
                Some(end) => return end,
                None => {}
            }
            let bell = lock(&self.client).as_ref().map(|client| client.bell(outages.known));
            let bell = match bell {
                Some(bell) => bell.await,
                None => None,
            };
            match bell {
                Some(bell) => bell.rung().await,
                None => rests = false,
            }
        }
    }

    /// `None` when nothing has changed for a while, if it `rests` then.
    async fn ended_or_quiet(&self, outages: &mut Outages, rests: bool) -> Option<Result<ProcessState, ExecutorError>> {
        let executor = self.executor();
        let mut end = executor.wait();
        loop {
            let are_over = outages.are_over;
            tokio::select! {
                biased;
                end = &mut end => return Some(end),
                () = outages.next(&self.event, &executor), if !are_over => {}
                () = tokio::time::sleep(RESTS_AFTER), if rests => return None,
            }
        }
    }

    /// Stores the client of a new executor, unless the task is being destroyed.
    async fn inherit(&self, client: Client) -> bool {
        let executor = ExecutorClient::new(client.channel());
        let unwanted = {
            let mut kept = lock(&self.client);
            match kept.as_mut() {
                Some(lost) => {
                    *lost = client;
                    None
                }
                None => Some(client),
            }
        };
        if let Some(client) = unwanted {
            client.kill().await;
            return false;
        }
        self.executor.send_replace(executor);
        true
    }
}

/// How a task ended, or why that cannot be found out.
type End = Result<ProcessState, String>;

/// The state of a task that outlives this process.
#[derive(Debug)]
struct Kept {
    reattach: Reattach,
    /// Its executor is one of ours.
    is_ours: bool,
    pid: i32,
    started_at: SystemTime,
    cgroup: PathBuf,
    /// See [`OwnState::record`].
    record: PathBuf,
}

impl Kept {
    /// Nomad's format with an agentbin part, so that Nomad's drivers can take over the task and agentbin's can take over
    /// theirs.
    fn to_bytes(&self, task: &TaskConfig) -> Result<Vec<u8>, DriverError> {
        let process = &self.reattach.process;
        let state = GoDriverState {
            agentbin: Some(OwnState {
                start_ticks: process.start_ticks,
                boot_id: process.boot_id.clone(),
                cgroup: self.cgroup.display().to_string(),
                record: self.record.display().to_string(),
            }),
            reattach_config: Some(ReattachConfig::from(&self.reattach)),
            task_config: Some(GoTaskConfig {
                id: task.id.clone(),
                name: task.name.clone(),
                alloc_id: task.alloc_id.clone(),
                alloc_dir: task.alloc_dir.display().to_string(),
                job_name: task.job_name.clone(),
                job_id: task.job_id.clone(),
                task_group_name: task.group.clone(),
                namespace: task.namespace.clone(),
                node_name: task.node_name.clone(),
                node_id: task.node_id.clone(),
                user: task.user.clone(),
                stdout_path: task.stdout_path.clone(),
                stderr_path: task.stderr_path.clone(),
                ..GoTaskConfig::default()
            }),
            pid: self.pid.into(),
            started_at: self.started_at.into(),
        };
        state.to_bytes().map_err(|e| failed(format!("failed to encode the task's state: {e}"), false))
    }

    /// Decodes the state and checks whether the executor is still the process that it names.
    async fn find(bytes: &[u8], cgroup: PathBuf) -> Result<Kept, DriverError> {
        let undecodable =
            |problem: String| failed(format!("failed to decode task state from handle: {problem}"), false);
        let state = GoDriverState::from_bytes(bytes).map_err(|e| undecodable(e.to_string()))?;
        let config = state.reattach_config.ok_or_else(|| undecodable("it names no executor".to_owned()))?;
        let is_ours = state.agentbin.is_some();
        let (reattach, cgroup, record) = match state.agentbin {
            Some(own) => {
                let OwnState { start_ticks, boot_id, cgroup, record } = own;
                let process = ProcessId { pid: config.pid, start_ticks, boot_id };
                (Reattach { process, socket: config.addr.into() }, cgroup.into(), record.into())
            }
            None => (config.adopt().await.map_err(|e| unreachable(&e.to_string()))?, cgroup, PathBuf::new()),
        };
        let pid = i32::try_from(state.pid).map_err(|_| undecodable(format!("pid {} is none", state.pid)))?;
        let started_at = state.started_at.to_system_time().unwrap_or(SystemTime::UNIX_EPOCH);
        Ok(Kept { reattach, is_ours, pid, started_at, cgroup, record })
    }

    /// Its executor, if that still runs.
    async fn client(&self) -> Result<Client, HostError> {
        if self.is_ours {
            Client::reattach_own(self.reattach.clone(), Some(RESTS_AFTER)).await
        } else {
            Client::reattach(self.reattach.clone()).await
        }
    }
}

/// Ends the executor of an interrupted start whose driver died. The agent never got a handle for it and starts the task again.
async fn end_stray(note: &Note) {
    let Some(reattach) = note.read() else { return };
    // Reattaches to exactly that process or to none.
    if let Ok(client) = Client::reattach_own(reattach, None).await {
        tracing::warn!(pid = client.process().pid, "ending an executor that an interrupted start left behind");
        if let Err(error) = ExecutorClient::new(client.channel()).shutdown("", Duration::ZERO).await {
            tracing::debug!(%error, "executor Shutdown");
        }
        client.kill().await;
    }
    note.remove();
}

fn unreachable(problem: &str) -> DriverError {
    failed(format!("failed to reattach to executor: {problem}"), false)
}

/// The environment that results for an executor if the driver's own environment is not separated from the task's.
fn given_environment(spec: &LaunchSpec) -> Vec<(OsString, OsString)> {
    let given = spec.env.iter().filter_map(|entry| entry.split_once('='));
    role_environment().into_iter().chain(given.map(|(key, value)| (key.into(), value.into()))).collect()
}

impl Starter {
    fn log_file(&self, task: &TaskConfig) -> PathBuf {
        if self.settings.host.wants_log_in_task_dir {
            task.alloc_dir.join(&task.name).join(AGENT_LOG)
        } else {
            // Next to the task's directory and not in it: there the task could put a link in its place.
            task.alloc_dir.join(format!("{}{EXECUTOR_LOG}", task.name))
        }
    }

    /// Starts an executor, which prepares for the launch of `ahead` and gives `notices` of the output that it collects.
    async fn start(
        &self,
        log_file: &Path,
        network: &Path,
        notices: Option<&Notices>,
        ahead: Option<&LaunchSpec>,
    ) -> Result<Client, DriverError> {
        let compute = *lock(&self.compute);
        let mut config = crate::spec::json::json!({
            "LogFile": log_file,
            "LogLevel": "debug",
            "FSIsolation": self.isolation == Isolation::Isolated,
            "Compute": { "tc": compute.total_mhz, "nc": compute.cores },
        });
        if !network.as_os_str().is_empty() && !rustix::process::geteuid().is_root() {
            config["Network"] = crate::spec::json::json!(network);
        }
        if let Some(notices) = notices {
            config["Notices"] = crate::spec::json::json!(notices.numbers());
        }
        if let Some(spec) = ahead {
            let cores = &spec.resources.cpuset_cpus;
            config["Prepare"] = crate::spec::json::json!({
                "Cgroup": spec.cgroup,
                "Cpuset": spec.cpuset_cgroup,
                "Cores": cores,
                "CgroupNamespace": spec.own.cgroup,
                "HostIds": spec.host_ids.filter(|_| spec.user_namespace).map_or(0, HostIds::base),
            });
        }
        let given = ahead.filter(|_| mutant::on("a06"));
        let launch = Launch {
            args: &[OsString::from(config.to_string())],
            env: given.map_or_else(role_environment, given_environment),
            inherits: notices.iter().flat_map(|notices| notices.descriptors()).collect(),
            new_session: true,
            socket_dir: Some(&self.settings.socket_dir),
            rests_after: Some(RESTS_AFTER),
            log: Box::new(|line: HclogLine| tracing::debug!(message = %line.message, "executor")),
            ..Launch::new(Program::Own(Role::Executor))
        };
        // Meanwhile reads the executable into the page cache, so that its page faults are not charged to the task's cgroup,
        // where the shim runs first.
        let warm = async { crate::sys::exe::read_ahead() };
        let (started, warmed) = tokio::join!(launch.start(), warm);
        if let Err(error) = warmed {
            tracing::debug!(%error, "cannot have the own executable read ahead");
        }
        started.map_err(|error| executor_error(&error))
    }

    /// Gives a task whose executor was killed another one; `false` if it gets none.
    async fn replace(&self, task: &Task) -> bool {
        let Some(heir) = &task.heir else { return false };
        if !task.lost_its_executor().await || lock(&task.client).is_none() {
            return false;
        }
        match self.take_over(heir, task.note.as_ref()).await {
            Ok(client) => task.inherit(client).await,
            Err(error) => {
                tracing::error!(%error, pid = task.pid, "a task whose executor was killed cannot be taken over");
                false
            }
        }
    }

    /// Starts another executor for a task whose executor was killed, and writes the note for a later driver. One that is killed as
    /// well has successors.
    async fn take_over(&self, heir: &Heir, note: Option<&Note>) -> Result<Client, DriverError> {
        let spec = heir.spec().map_err(|error| {
            let path = launch_of(&heir.record);
            failed(format!("read how the task was launched, {}: {error}", path.display()), false)
        })?;
        let (mut left, network) = (HEIRS, &spec.network_namespace);
        loop {
            left -= 1;
            let (error, is_dead) = match self.start(&heir.log_file, network, heir.notices.as_ref(), None).await {
                Ok(client) => match adopt(&client, &spec, note).await {
                    Ok(()) => return Ok(client),
                    Err(error) => {
                        let is_dead = dies(client.life()).await;
                        client.kill().await;
                        (error, is_dead)
                    }
                },
                Err(error) => (error, true),
            };
            if !is_dead || left == 0 {
                return Err(error);
            }
            tracing::warn!(%error, "an executor that was to take over a task has ended, and another one is started");
        }
    }
}

/// Has an executor adopt the task, after its note for a later driver.
async fn adopt(client: &Client, spec: &LaunchSpec, note: Option<&Note>) -> Result<(), DriverError> {
    let noted = match (client.reattach_config(), note) {
        (Ok(reattach), Some(note)) => note.write(&reattach),
        _ => Ok(()),
    };
    if let Err(error) = noted {
        tracing::warn!(%error, "cannot note the executor of a task");
    }
    let launched = ExecutorClient::new(client.channel()).launch(spec.clone()).await;
    launched.map(drop).map_err(launch_error)
}

/// Whether an executor that does not answer as it should has ended, or ends now.
async fn dies(life: Life) -> bool {
    tokio::time::timeout(DEATH_PATIENCE, life.exited()).await.is_ok()
}

/// Whether this executor has certainly ended.
fn is_gone(executor: &Reattach) -> bool {
    crate::sys::time::is_alive(&executor.process).is_ok_and(|alive| !alive)
}

impl Tasks {
    pub(super) fn new(isolation: Isolation, settings: Settings) -> Tasks {
        let compute = Mutex::new(settings.compute);
        let starter = Arc::new(Starter { isolation, settings, compute });
        let notes = starter.settings.host.recovers_tasks;
        let (tasks, starting, events) = (Mutex::default(), Mutex::default(), broadcast::channel(EVENTS).0);
        Tasks { starter, tasks, starting, events, notes }
    }

    /// Writes notes of executors also where the host does not recover tasks.
    pub(super) fn note_all(&mut self, all: bool) {
        self.notes = all || self.starter.settings.host.recovers_tasks;
    }

    pub(super) fn events(&self) -> broadcast::Receiver<TaskEvent> {
        self.events.subscribe()
    }

    /// The event for a signal that the task will not notice, as the kernel drops it.
    fn tell_of_dropped(&self, task: &Task, signal: Signal) {
        if let Some(message) = no_handler(task.pid, signal).filter(|_| task.end.borrow().is_none()) {
            // There may be no subscriber.
            let _ = self.events.send(TaskEvent { time: SystemTime::now(), message, ..task.event.clone() });
        }
    }

    /// Adds an event to the task's history.
    pub(super) fn tell(&self, task: &TaskConfig, message: impl Into<String>) {
        // There may be no subscriber.
        let _ = self.events.send(TaskEvent::of(task, message));
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.starter.settings
    }

    pub(super) fn set_compute(&self, compute: Compute) {
        *lock(&self.starter.compute) = compute;
    }

    /// The cgroup that the agent created for `task`, relative to each hierarchy's root; empty for none.
    pub(super) fn agents_cgroup(&self, task: &TaskConfig) -> PathBuf {
        let cgroups = &self.starter.settings.cgroups;
        match cgroups.regime() {
            // Derived from the directory, as agents and executors do: the allocation's id may be missing.
            Regime::V1 => match task.alloc_dir.file_name() {
                Some(alloc) => PathBuf::from(format!("nomad/{}.{}", alloc.to_string_lossy(), task.name)),
                None => PathBuf::new(),
            },
            Regime::V2 => cgroups.relative(&task.cpuset_cgroup).unwrap_or_default(),
            Regime::Off => PathBuf::new(),
        }
    }

    /// Path of the record that is needed to adopt the task, named like its note.
    pub(super) fn record_of(&self, task: &TaskConfig) -> PathBuf {
        self.place_of_note(task).record()
    }

    /// Next to the executor's log, so that a leftover note is removed with its allocation; if that log is where the task can write,
    /// next to the sockets.
    fn place_of_note(&self, task: &TaskConfig) -> Note {
        let settings = &self.starter.settings;
        if settings.host.wants_log_in_task_dir {
            Note::of(&settings.socket_dir, task)
        } else {
            Note::beside(&self.starter.log_file(task))
        }
    }

    /// Claims the id for a start; fails if the task exists or is being started.
    pub(super) fn claim<'a>(&'a self, id: &'a str) -> Result<Starting<'a>, DriverError> {
        let mut starting = lock(&self.starting);
        if lock(&self.tasks).contains_key(id) || (starting.contains(id) && !mutant::on("d98")) {
            return Err(failed(format!("task with ID {id:?} already started"), false));
        }
        starting.insert(id.to_owned());
        Ok(Starting { tasks: self, id })
    }

    /// Starts an executor and then the task, whose id must be claimed. When this fails the executor has been ended.
    pub(super) async fn start(&self, task: &TaskConfig, spec: LaunchSpec) -> Result<TaskHandle, DriverError> {
        let note = self.note(task);
        if let Some(note) = &note {
            end_stray(note).await;
        }
        let cgroup = spec.cgroup.clone();
        let mut heir = Heir::of(&self.starter, task, &spec);
        let record = heir.as_ref().map(|heir| heir.record.clone()).unwrap_or_default();
        let (log_file, network) = (self.starter.log_file(task), &spec.network_namespace);
        let started = self.starter.start(&log_file, network, task.notices.as_ref(), Some(&spec)).await;
        // An executor that was killed before the launch may have created the cgroup already.
        let client = match started {
            Ok(client) => client,
            Err(error) => {
                self.sweep_after_failure(cgroup).await;
                return Err(error);
            }
        };
        let executor = ExecutorClient::new(client.channel());
        let launched = match client.reattach_config() {
            Ok(reattach) => {
                if let Some(Err(error)) = note.as_ref().map(|note| note.write(&reattach)) {
                    tracing::warn!(%error, "cannot note the executor of a task");
                }
                heir.iter_mut().for_each(Heir::keep);
                let launched = executor.launch(spec).await.map_err(launch_error);
                launched.and_then(|state| {
                    let started_at = to_milliseconds(state.time);
                    let kept =
                        Kept { reattach, is_ours: true, pid: state.pid, started_at, cgroup: cgroup.clone(), record };
                    kept.to_bytes(task).map(|driver_state| (kept, driver_state))
                })
            }
            Err(error) => Err(executor_error(&error)),
        };
        let (kept, driver_state) = match launched {
            Ok(launched) => launched,
            Err(error) => {
                client.kill().await;
                note.iter().for_each(Note::remove);
                self.sweep_after_failure(cgroup).await;
                heir.iter().for_each(Heir::remove_record);
                return Err(error);
            }
        };
        let handle = TaskHandle { driver_state, executor: Some(kept.reattach.clone()), network: None };
        self.keep(task, client, executor, kept, Companions { note, heir, known: 0 });
        Ok(handle)
    }

    /// A run in the foreground keeps its own records and does not recover tasks.
    fn note(&self, task: &TaskConfig) -> Option<Note> {
        self.notes.then(|| self.place_of_note(task))
    }

    /// Reattaches to the executor of a task that an earlier process started. If it was killed and the task outlived it, starts
    /// another executor with `spec`.
    pub(super) async fn recover(
        &self,
        task: &TaskConfig,
        driver_state: &[u8],
        spec: impl FnOnce() -> Result<LaunchSpec, DriverError>,
    ) -> Result<(), DriverError> {
        if lock(&self.tasks).contains_key(&task.id) {
            return Ok(());
        }
        let mut kept = Kept::find(driver_state, self.agents_cgroup(task)).await?;
        let note = self.note(task);
        let heir = if kept.record.as_os_str().is_empty() { None } else { self.heir(task, &kept, spec) };
        let mut client = match kept.client().await {
            Ok(client) => client,
            Err(error) => {
                let Some(heir) = heir.as_ref().filter(|_| is_gone(&kept.reattach)) else {
                    return Err(unreachable(&error.to_string()));
                };
                let client = self.inherited(&kept, note.as_ref(), heir).await?;
                kept.reattach = client.reattach_config().map_err(|e| executor_error(&e))?;
                client
            }
        };
        let mut left = HEIRS;
        let executor = loop {
            left -= 1;
            let executor = ExecutorClient::new(client.channel());
            let problem = match tokio::time::timeout(FOUND_PATIENCE, executor.version()).await {
                Ok(Ok(_)) => break executor,
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no answer within {FOUND_PATIENCE:?}"),
            };
            // It may have been killed since it was found.
            let Some(heir) = heir.as_ref().filter(|_| left > 0) else { return Err(unreachable(&problem)) };
            if !dies(client.life()).await {
                return Err(unreachable(&problem));
            }
            client = self.inherited(&kept, note.as_ref(), heir).await?;
            kept.reattach = client.reattach_config().map_err(|e| executor_error(&e))?;
        };
        self.keep(task, client, executor, kept, Companions { note, heir, known: ANY_NUMBER });
        Ok(())
    }

    /// What is needed to adopt a task whose record was kept.
    fn heir(
        &self,
        task: &TaskConfig,
        kept: &Kept,
        spec: impl FnOnce() -> Result<LaunchSpec, DriverError>,
    ) -> Option<Heir> {
        if let Ok(heir) = Heir::kept(&self.starter, task, &kept.record) {
            return Some(heir);
        }
        // A release that did not keep its specification has started it.
        match spec() {
            Ok(spec) => {
                let outlive = Some(Outlive { record: kept.record.clone(), adopt: true });
                Heir::of(&self.starter, task, &LaunchSpec { cgroup: kept.cgroup.clone(), outlive, ..spec })
            }
            // It continues as long as its executor does.
            Err(error) => {
                tracing::warn!(%error, task = task.id, "should its executor end, nobody can take the task over");
                None
            }
        }
    }

    /// The executor that adopted the task under an earlier driver, or a new one that adopts it now.
    async fn inherited(&self, kept: &Kept, note: Option<&Note>, heir: &Heir) -> Result<Client, DriverError> {
        if let Some(noted) = note.and_then(Note::read).filter(|noted| *noted != kept.reattach)
            && let Ok(client) = Client::reattach_own(noted, Some(RESTS_AFTER)).await
        {
            // Its driver may have died before it sent the launch specification.
            let launched = match heir.spec() {
                Ok(spec) => ExecutorClient::new(client.channel()).launch(spec).await,
                Err(error) => Err(ExecutorError::System(error.to_string())),
            };
            match launched {
                Err(ExecutorError::Invalid(text)) if text == ALREADY_LAUNCHED => return Ok(client),
                Ok(_) => return Ok(client),
                Err(error) => tracing::warn!(%error, "the executor that was to take over a task"),
            }
            client.kill().await;
        }
        match self.starter.take_over(heir, note).await {
            Ok(client) => Ok(client),
            Err(error) => {
                // A task that cannot be adopted is killed.
                self.sweep_after_failure(kept.cgroup.clone()).await;
                heir.remove_record();
                Err(error)
            }
        }
    }

    fn keep(&self, task: &TaskConfig, client: Client, executor: ExecutorClient, kept: Kept, companions: Companions) {
        let Companions { note, heir, known } = companions;
        let event = TaskEvent { time: kept.started_at, ..TaskEvent::of(task, "") };
        let (sender, end) = watch::channel(None);
        let kept = Arc::new(Task {
            event,
            pid: kept.pid,
            started_at: kept.started_at,
            client: Mutex::new(Some(client)),
            executor: watch::Sender::new(executor),
            cgroup: kept.cgroup,
            note,
            heir,
            end,
        });
        let (waiting, starter, events) = (Arc::clone(&kept), Arc::clone(&self.starter), self.events.clone());
        crate::sys::task::spawn(async move {
            let mut outages = Outages::new(known, events);
            let mut end = waiting.ended(&mut outages).await;
            while end.is_err() && Box::pin(starter.replace(&waiting)).await {
                outages = Outages::new(0, outages.events);
                end = waiting.ended(&mut outages).await;
            }
            sender.send_replace(Some(end.map_err(|error| error.to_string())));
            let executor = waiting.executor();
            while !outages.are_over {
                outages.next(&waiting.event, &executor).await;
            }
        });
        lock(&self.tasks).insert(task.id.clone(), kept);
    }

    fn task(&self, id: &str) -> Result<Arc<Task>, DriverError> {
        lock(&self.tasks).get(id).cloned().ok_or(DriverError::TaskNotFound)
    }

    pub(super) async fn wait(&self, id: &str) -> Result<ExitResult, DriverError> {
        let mut end = self.task(id)?.end.clone();
        // The sender is dropped without a value only when the async runtime shuts down.
        let end = end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        match end {
            Some(Ok(state)) => Ok(state.exit.unwrap_or(ExitResult { exit_code: -1, ..ExitResult::default() })),
            Some(Err(error)) => Err(failed(format!("executor: error waiting on process: {error}"), true)),
            None => Err(DriverError::PluginShutdown),
        }
    }

    pub(super) async fn stop(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        let task = self.task(id)?;
        if !timeout.is_zero() {
            self.tell_of_dropped(&task, signal.unwrap_or(Signal::INT));
        }
        let signal = signal.map(|signal| signal.to_string()).unwrap_or_default();
        let (mut owner, mut end) = (task.executor.subscribe(), task.end.clone());
        loop {
            let executor = owner.borrow_and_update().clone();
            match executor.shutdown(&signal, timeout).await {
                Ok(()) => return Ok(()),
                Err(_) if task.heir.is_some() && task.lost_its_executor().await => {
                    // A new executor gets the call again; if there is none, the task has ended.
                    let taken_over = tokio::select! {
                        _ = end.wait_for(Option::is_some) => false,
                        _ = owner.changed() => true,
                    };
                    if !taken_over {
                        return self.sweep(task.cgroup.clone()).await;
                    }
                }
                // An executor that has ended took its task with it.
                Err(ExecutorError::PluginShutdown) if task.lost_its_executor().await => return Ok(()),
                Err(error) => return Err(failed(format!("executor Shutdown failed: {error}"), true)),
            }
        }
    }

    pub(super) async fn signal(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        let task = self.task(id)?;
        self.tell_of_dropped(&task, signal);
        let result = task.executor().signal(signal.number()).await;
        result.map_err(|error| failed(error.to_string(), false))
    }

    pub(super) async fn update(&self, id: &str, limits: NewLimits) -> Result<(), DriverError> {
        let result = self.task(id)?.executor().update_resources(limits.checked().map_err(launch_error)?).await;
        result.map_err(|error| failed(error.to_string(), false))
    }

    pub(super) async fn stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        self.task(id)?.executor().stats().await.map_err(|error| failed(error.to_string(), true))
    }

    pub(super) fn inspect(&self, id: &str) -> Result<TaskStatus, DriverError> {
        let task = self.task(id)?;
        let end = task.end.borrow().clone();
        let (state, ended) = match end {
            None => (TaskState::Running, None),
            Some(Ok(state)) => (TaskState::Exited, Some(state)),
            Some(Err(_)) => (TaskState::Unknown, None),
        };
        Ok(TaskStatus {
            id: id.to_owned(),
            name: task.event.task_name.clone(),
            state,
            started_at: Some(task.started_at),
            completed_at: ended.map(|state| state.time),
            exit: ended.and_then(|state| state.exit),
            attributes: BTreeMap::from([("pid".to_owned(), task.pid.to_string())]),
            network: None,
        })
    }

    pub(super) async fn exec(
        &self,
        id: &str,
        command: &[String],
        timeout: Duration,
    ) -> Result<ExecTaskResult, DriverError> {
        let Some((program, args)) = command.split_first() else {
            return Err(failed("error cmd must have at least one value".to_owned(), false));
        };
        let deadline = SystemTime::now() + timeout;
        let result = self.task(id)?.executor().exec(deadline, program, args).await;
        let output = result.map_err(|error| failed(error.to_string(), false))?;
        let exit = ExitResult { exit_code: output.exit_code, ..ExitResult::default() };
        Ok(ExecTaskResult { stdout: output.output, stderr: Vec::new(), exit })
    }

    pub(super) async fn exec_streaming(&self, id: &str, requests: ExecRequests) -> Result<ExecResponses, DriverError> {
        let executor = self.task(id)?.executor();
        let (setup, requests) =
            streaming::take_setup(requests).await.map_err(|e| failed(e.message().to_owned(), false))?;
        let result = executor.exec_streaming(requests).await;
        result.or_else(|error| match NotStarted::of(&error) {
            Some(why) => Ok(why.session(&setup, &error.to_string())),
            None => Err(failed(error.to_string(), false)),
        })
    }

    pub(super) async fn destroy(&self, id: &str, force: bool) -> Result<(), DriverError> {
        let task = self.task(id)?;
        let ended = async { task.end.clone().wait_for(Option::is_some).await.is_ok() };
        if !force && tokio::time::timeout(ANSWER_PATIENCE, ended).await.is_err() {
            return Err(failed("cannot destroy running task".to_owned(), false));
        }
        // From here on no other executor adopts it.
        let client = lock(&task.client).take();
        // The executor kills the remaining processes and removes the cgroup; if it has ended, that is done below.
        if let Err(error) = task.executor().shutdown("", Duration::ZERO).await {
            tracing::debug!(%error, id, "executor Shutdown");
        }
        if let Some(client) = client {
            client.kill().await;
        }
        task.note.iter().for_each(Note::remove);
        lock(&self.tasks).remove(id);
        let swept = self.sweep(task.cgroup.clone()).await;
        task.heir.iter().for_each(Heir::remove_record);
        swept
    }

    /// The error to return is that of the start.
    async fn sweep_after_failure(&self, cgroup: PathBuf) {
        if let Err(error) = self.sweep(cgroup).await {
            tracing::warn!(%error, "cleaning up after a failed start");
        }
    }

    /// Does nothing after a clean end.
    async fn sweep(&self, cgroup: PathBuf) -> Result<(), DriverError> {
        let cgroups = self.starter.settings.cgroups.clone();
        if cgroup.as_os_str().is_empty() || cgroups.regime() == Regime::Off {
            return Ok(());
        }
        let deadline = Instant::now() + SWEEP_PATIENCE;
        let path = cgroup.clone();
        // On a separate thread: a process that cannot be killed at once must not delay the other tasks.
        let swept = crate::sys::task::spawn_blocking(move || {
            TaskCgroup::open(&cgroups, &path).and_then(|cgroup| cgroup.destroy(deadline))
        });
        let swept = swept.await.map_err(|e| failed(format!("remove cgroup {}: {e}", cgroup.display()), true))?;
        swept.map_err(|error| failed(format!("remove cgroup {}: {error}", cgroup.display()), true))
    }
}

/// A number of changes that never occurs, so that an executor answers at once.
const ANY_NUMBER: u64 = u64::MAX;

/// Reports the start and end of outages of a task's output as events. Outages that were reported before this process began are not
/// reported again.
struct Outages {
    /// Number of changes that are known.
    known: u64,
    told: Option<OutputHealth>,
    /// The executor has ended, has no more changes to report, or does not know this call.
    are_over: bool,
    /// The next change is not asked for before.
    not_before: tokio::time::Instant,
    events: broadcast::Sender<TaskEvent>,
}

impl Outages {
    fn new(known: u64, events: broadcast::Sender<TaskEvent>) -> Outages {
        let told = (known == 0).then(OutputHealth::default);
        Outages { known, told, are_over: false, not_before: tokio::time::Instant::now(), events }
    }

    /// Waits for one change and reports it as an event of the task with this `event`.
    async fn next(&mut self, event: &TaskEvent, executor: &ExecutorClient) {
        tokio::time::sleep_until(self.not_before).await;
        let Ok(Some(now)) = executor.output_changed(self.known).await else {
            self.are_over = true;
            return;
        };
        self.known = now.changes;
        let failing = |health: &OutputHealth| health.stdout.failing.is_some() || health.stderr.failing.is_some();
        if let Some(before) = &self.told {
            let streams = [("stdout", &before.stdout, &now.stdout), ("stderr", &before.stderr, &now.stderr)];
            for (stream, before, now) in streams {
                if let Some(message) = outage(stream, before, now) {
                    let annotations = annotations(stream, now);
                    let time = SystemTime::now();
                    // There may be no subscriber.
                    let _ = self.events.send(TaskEvent { time, message, annotations, ..event.clone() });
                }
            }
        }
        if !failing(&now) && self.known > 0 {
            self.not_before = tokio::time::Instant::now() + OUTAGES_APART;
        }
        self.told = Some(now);
    }
}

/// The event text for a stream whose previous health was `before`.
fn outage(stream: &str, before: &StreamHealth, now: &StreamHealth) -> Option<String> {
    match (&before.failing, &now.failing) {
        (None, Some(reason)) => Some(format!("Output is being dropped: {stream}: {reason}")),
        (Some(_), Some(_)) => None,
        (None, None) if now.counts.dropped_bytes == before.counts.dropped_bytes => None,
        (_, None) => {
            let StreamHealth { counts, .. } = now;
            let (lines, bytes) = (counts.dropped_lines, counts.dropped_bytes);
            Some(format!("Output is written again: {stream}: {lines} lines ({bytes} bytes) were dropped"))
        }
    }
}

fn annotations(stream: &str, health: &StreamHealth) -> BTreeMap<String, String> {
    let counts = health.counts;
    let numbers = [
        ("lines", counts.lines),
        ("bytes", counts.bytes),
        ("dropped_lines", counts.dropped_lines),
        ("dropped_bytes", counts.dropped_bytes),
        ("rotations", counts.rotations),
    ];
    let numbers = numbers.map(|(key, number)| (key.to_owned(), number.to_string()));
    numbers.into_iter().chain([("stream".to_owned(), stream.to_owned())]).into_map()
}

/// Rounds to milliseconds as the stored time is, so that a later process reports the same time as this one.
fn to_milliseconds(time: SystemTime) -> SystemTime {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::new(since.as_secs(), since.subsec_millis() * 1_000_000)
}

/// The event for a signal that this process will drop as pid 1 of its pid namespace.
pub(super) fn no_handler(pid: i32, signal: Signal) -> Option<String> {
    (processes::drops_as_pid_1(pid, signal.number()) == Some(true)).then(|| format!("{signal} {NO_HANDLER}"))
}

fn executor_error(error: &HostError) -> DriverError {
    failed(format!("failed to create executor: {error}"), true)
}

fn launch_error(error: ExecutorError) -> DriverError {
    match error {
        ExecutorError::CommandNotFound(text) => DriverError::CommandNotFound(text),
        ExecutorError::NotExecutable(text) => DriverError::CommandNotExecutable(text),
        ExecutorError::Invalid(text) => failed(text, false),
        ExecutorError::System(text) => DriverError::Unsupported(text),
        ExecutorError::DeadlineExceeded => failed(error.to_string(), true),
        ExecutorError::PluginShutdown => failed("the executor ended while it launched the task".to_owned(), true),
    }
}
