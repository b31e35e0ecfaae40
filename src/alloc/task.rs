//! The life of one task: set up, start, wait, restart or not.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::artifact::{self, Copy, Owner};
use super::dir::AllocDir;
use super::env::{TaskEnv, TooLarge};
use super::error::{SetupError, chain};
use super::hook::{Hook, Stack};
use super::lifecycle::TaskState;
use super::node::compute;
use super::ports::AllocPort;
use super::process::Orphans;
use super::record::{Handle, Records};
use super::restart::{End, Tracker, Verdict, restarts_on_success};
use super::run::RemoveCgroup;
use super::template;
use super::text::go_duration;
use super::users::Runs;
use super::{AllocEvent, Stop};
use crate::cgroup::{self, Cores, Cpusets};
use crate::driver::{Driver, DriverError, TaskConfig, TaskHandle};
use crate::executor::Compute;
use crate::plugin::Reattach;
use crate::spec::{
    AllocId, CpuSet, EventKind, ExitResult, JobType, LogCollection, MemoryLimits, Neighbours, Pos, Resources, Signal,
    Task, TaskEvent, Template,
};

/// Waits between the tries to stop a task.
const STOP_TRIES: [Duration; 4] =
    [Duration::from_secs(5), Duration::from_secs(20), Duration::from_secs(80), Duration::from_mins(2)];

/// How long what a lost executor left may resist; the other tasks wait meanwhile.
const SWEEP_PATIENCE: Duration = Duration::from_secs(5);

/// How a task came to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It never ran.
    NotStarted,
    /// Its last process ended like this.
    Exited(ExitResult),
    /// It could not be set up, started or waited for.
    Error(TaskError),
}

/// Why a task could not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskError {
    /// What somebody may decide by.
    pub kind: TaskErrorKind,
    /// What was being done, to what, and the cause.
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

/// The end of one task.
#[derive(Debug)]
pub struct TaskResult {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The restart policy calls it a failure.
    pub failed: bool,
    /// It was told to end.
    pub killed: bool,
    /// When.
    pub ended: Instant,
    /// What could not be cleaned up.
    pub leftovers: Vec<String>,
}

/// What the tasks of an allocation have in common.
pub(super) struct Shared {
    pub(super) alloc: AllocId,
    pub(super) group: String,
    pub(super) index: u32,
    pub(super) kind: JobType,
    pub(super) dir: AllocDir,
    pub(super) records: Arc<Records>,
    pub(super) orphans: Arc<Orphans>,
    pub(super) cpusets: Option<Cpusets>,
    pub(super) remove_cgroup: Arc<RemoveCgroup>,
    pub(super) ports: Vec<AllocPort>,
    /// A driver of the group leads ports to those of a network inside.
    pub(super) maps_ports: bool,
    pub(super) events: mpsc::UnboundedSender<AllocEvent>,
}

impl Shared {
    pub(super) fn event(&self, task: &str, kind: EventKind, message: impl Into<String>, details: &[(&str, String)]) {
        let details = details.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect::<BTreeMap<_, _>>();
        let event =
            TaskEvent { kind, time: SystemTime::now(), task: task.to_owned(), message: message.into(), details };
        let (alloc, group, index) = (self.alloc.clone(), self.group.clone(), self.index);
        // Nobody may be listening any more; the task's life goes on.
        let _ = self.events.send(AllocEvent { alloc, group, index, event });
    }
}

/// What the steps before a start work on.
struct Setup {
    shared: Arc<Shared>,
    task: Task,
    env: TaskEnv,
    /// Whose way to his files goes through the allocation's folder.
    enters: Option<Owner>,
    cancel: Arc<AtomicBool>,
}

struct TaskDirHook;

#[tonic::async_trait]
impl Hook<Setup> for TaskDirHook {
    fn name(&self) -> &'static str {
        "task_dir"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        let name = &setup.task.name;
        setup.shared.event(name, EventKind::TaskSetup, "Building Task Directory", &[]);
        setup.shared.dir.build_task(name)
    }
}

struct ArtifactsHook;

#[tonic::async_trait]
impl Hook<Setup> for ArtifactsHook {
    fn name(&self) -> &'static str {
        "artifacts"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        let Setup { shared, task, env, cancel, .. } = setup;
        if !task.artifacts.is_empty() {
            shared.event(&task.name, EventKind::DownloadingArtifacts, "Client is downloading artifacts", &[]);
        }
        for artifact in &task.artifacts {
            let source_path = env.interpolate(&artifact.source);
            let error = |action: String, source: io::Error| SetupError::Artifact {
                pos: artifact.pos.clone(),
                source_path: source_path.clone(),
                action,
                source,
            };
            let user = env.interpolate(&task.user);
            let wanted = artifact.chown && !user.is_empty();
            let mut copy = Copy {
                base_dir: artifact.base_dir.clone(),
                source: source_path.clone().into(),
                stays_in_base_dir: artifact.stays_in_base_dir,
                dir: shared.dir.clone(),
                task: task.name.clone(),
                destination: env.interpolate(&artifact.destination),
                mode: artifact.mode,
                owner: None,
            };
            let cancel = Arc::clone(cancel);
            let copied = tokio::task::spawn_blocking(move || {
                let owner = wanted.then(|| artifact::owner(&user)).transpose();
                copy.owner = owner.map_err(|e| ("cannot be given to the task's user".to_owned(), e))?;
                copy.run(&cancel)
            });
            let copied = copied.await;
            copied.map_err(|e| error("copy".to_owned(), io::Error::other(e)))?.map_err(|(what, e)| error(what, e))?;
        }
        Ok(())
    }
}

struct TemplatesHook;

#[tonic::async_trait]
impl Hook<Setup> for TemplatesHook {
    fn name(&self) -> &'static str {
        "template"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        if setup.task.templates.is_empty() {
            return Ok(());
        }
        let broken = |pos: &Pos, source: io::Error| {
            let (pos, destination) = (pos.clone(), String::new());
            SetupError::TemplateFile { pos, destination, source }
        };
        let pos = setup.task.pos.clone();
        // The memory that rendering takes is limited for one template; so is how many are rendered at once.
        let turn = RENDERING.acquire().await.map_err(|e| broken(&pos, io::Error::other(e)))?;
        let (templates, env, dir) = (setup.task.templates.clone(), setup.env.clone(), setup.shared.dir.clone());
        let (task, cancel) = (setup.task.name.clone(), Arc::clone(&setup.cancel));
        let rendering = tokio::task::spawn_blocking(move || render(&templates, &env, &dir, &task, &cancel));
        let from_templates = rendering.await.map_err(|e| broken(&pos, io::Error::other(e)))??;
        drop(turn);
        setup.env.extend(from_templates);
        Ok(())
    }
}

/// Lets the task's user go to its files; the last step, as nobody needs to before.
struct AdmitHook;

#[tonic::async_trait]
impl Hook<Setup> for AdmitHook {
    fn name(&self) -> &'static str {
        "admit"
    }

    async fn run(&self, setup: &mut Setup) -> Result<(), SetupError> {
        setup.enters.map_or(Ok(()), |user| setup.shared.dir.admit(user))
    }
}

/// How many tasks render their templates at the same time.
static RENDERING: Semaphore = Semaphore::const_new(2);

/// Writes the templates of a task. Returns the variables of those that are environment.
fn render(
    templates: &[Template],
    env: &TaskEnv,
    dir: &AllocDir,
    task: &str,
    cancel: &AtomicBool,
) -> Result<Vec<(String, String)>, SetupError> {
    let mut from_templates = Vec::new();
    for template in templates {
        let destination = env.interpolate(&template.destination);
        let error =
            |source| SetupError::Template { pos: template.pos.clone(), destination: destination.clone(), source };
        let lookup = |key: &str| env.vars().get(key).cloned();
        let (left, right) = (&template.left_delimiter, &template.right_delimiter);
        let text = template::render(&template.data, left, right, &lookup, cancel).map_err(error)?;
        if template.env {
            template::check_env(&text, env.most()).map_err(error)?;
            from_templates.extend(template::parse_env(&text).map_err(error)?);
        }
        let write = || {
            let (top, below) = dir.locate(task, &destination)?;
            let (parent, name) = artifact::parent_of(&top, &below)?;
            artifact::create(&parent, &name, template.perms)?.write_all(text.as_bytes())
        };
        let (pos, destination) = (template.pos.clone(), destination.clone());
        write().map_err(|source| SetupError::TemplateFile { pos, destination, source })?;
    }
    Ok(from_templates)
}

/// Runs one task to its end.
pub(super) struct TaskRunner {
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) task: Task,
    pub(super) driver: Arc<dyn Driver>,
    pub(super) env: TaskEnv,
    /// Who it runs as.
    pub(super) runs: Runs,
    /// Who else writes below the allocation's folder.
    pub(super) neighbours: Neighbours,
    pub(super) cgroup: PathBuf,
    /// Its own cores, once it has them.
    pub(super) cores: Option<CpuSet>,
    /// Opened when the group's order allows the task to start.
    pub(super) gate: watch::Receiver<bool>,
    pub(super) stop: watch::Receiver<Stop>,
    pub(super) states: mpsc::UnboundedSender<(usize, TaskState)>,
}

/// How one start went.
enum Attempt {
    /// Told to end before it was started.
    Abandoned,
    Failed(TaskError, bool),
    Ended {
        result: Result<ExitResult, TaskError>,
        killed: bool,
    },
}

impl TaskRunner {
    pub(super) async fn run(mut self) -> TaskResult {
        let mut result = TaskResult {
            name: self.task.name.clone(),
            outcome: Outcome::NotStarted,
            failed: false,
            killed: false,
            ended: Instant::now(),
            leftovers: Vec::new(),
        };
        self.event(EventKind::Received, "Task received by client", &[]);
        if self.wait_for_gate().await {
            self.tell_of_ports();
            self.starts(&mut result).await;
            self.give_back(&mut result.leftovers);
        } else {
            result.killed = true;
        }
        result.ended = Instant::now();
        self.state(TaskState::Dead { failed: result.failed });
        result
    }

    /// A job that was written for a network of its own tells its program to listen on `to`, where nobody will ask.
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

    /// Starts the task until the restart policy has had enough.
    async fn starts(&mut self, result: &mut TaskResult) {
        let mut setup = Setup {
            shared: Arc::clone(&self.shared),
            task: self.task.clone(),
            env: self.env.clone(),
            enters: self.runs.enters(),
            cancel: Arc::default(),
        };
        let hooks: Vec<Box<dyn Hook<Setup>>> =
            vec![Box::new(TaskDirHook), Box::new(ArtifactsHook), Box::new(TemplatesHook), Box::new(AdmitHook)];
        let mut steps = Stack::new(hooks);
        let mut tracker = Tracker::new(self.task.restart, restarts_on_success(self.shared.kind, &self.task));
        loop {
            let end = match self.attempt(&mut steps, &mut setup, &mut result.leftovers).await {
                Attempt::Abandoned => End::Killed,
                Attempt::Failed(error, recoverable) => {
                    result.outcome = Outcome::Error(error);
                    End::StartError { recoverable }
                }
                Attempt::Ended { result: ended, killed } => {
                    result.outcome = match ended.clone() {
                        Ok(exit) => Outcome::Exited(exit),
                        Err(error) => Outcome::Error(error),
                    };
                    match ended {
                        _ if killed => End::Killed,
                        Ok(exit) => End::Exit(exit),
                        Err(_) => End::StartError { recoverable: true },
                    }
                }
            };
            match tracker.next(end, Instant::now(), random()) {
                Verdict::Killed => {
                    result.killed = true;
                    return;
                }
                Verdict::Terminated { .. } => return,
                Verdict::NotRestarting { reason } => {
                    result.failed = true;
                    let details = [("restart_reason", reason.clone()), ("fails_task", "true".to_owned())];
                    self.event(EventKind::NotRestarting, reason, &details);
                    return;
                }
                Verdict::Restart { delay, reason } => {
                    let separator = if reason.is_empty() { "" } else { " - " };
                    let message = format!("{reason}{separator}Task restarting in {}", go_duration(delay));
                    let details = [("restart_reason", reason), ("start_delay", delay.as_nanos().to_string())];
                    self.event(EventKind::Restarting, message, &details);
                    self.state(TaskState::Pending);
                    if self.stopped_within(delay).await {
                        result.killed = true;
                        return;
                    }
                }
            }
        }
    }

    async fn attempt(&mut self, steps: &mut Stack<Setup>, setup: &mut Setup, leftovers: &mut Vec<String>) -> Attempt {
        if let Err((name, error)) = self.set_up(steps, setup).await {
            if self.is_stopping() {
                return Attempt::Abandoned;
            }
            let message = chain(&error);
            let (kind, key) = match error {
                SetupError::Artifact { .. } => (EventKind::FailedArtifactDownload, "download_error"),
                _ => (EventKind::SetupFailure, "setup_error"),
            };
            self.event(kind, format!("{name}: {message}"), &[(key, message.clone())]);
            return Attempt::Failed(TaskError { kind: TaskErrorKind::Other, message }, false);
        }
        if self.is_stopping() {
            return Attempt::Abandoned;
        }
        let mut config = match self.config(&setup.env) {
            Ok(config) => config,
            Err(error) => {
                let message = format!("{}: task {:?}: {error}", self.task.config.pos, self.task.name);
                self.event(EventKind::SetupFailure, &message, &[("setup_error", message.clone())]);
                return Attempt::Failed(TaskError { kind: TaskErrorKind::Other, message }, false);
            }
        };
        let driver = Arc::clone(&self.driver);
        let _events = self.pass_on_events(&config.id);
        let placed = self.place(&mut config);
        let (started, given_up) = match placed {
            Ok(()) => self.start(&*driver, &config).await,
            Err(error) => (Err(error), false),
        };
        self.settle();
        let noted = match started {
            Ok(TaskHandle { executor: Some(Reattach { process, socket }), .. }) => {
                let handle = Handle { task_id: config.id.clone(), process, socket };
                self.shared.records.process_started(handle).map_err(|e| {
                    let message = format!("{}; the task was not kept", chain(&e));
                    DriverError::Failed { message, recoverable: true }
                })
            }
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            self.destroy(&config.id, leftovers).await;
            self.sweep_orphans(leftovers);
            if given_up {
                return Attempt::Abandoned;
            }
            // It is told also when the task is about to be stopped: by then it may have run.
            let recoverable = matches!(error, DriverError::Failed { recoverable: true, .. }) && !self.is_stopping();
            let error = self.task_error(&error, &config.config.pos);
            self.event(EventKind::DriverFailure, &error.message, &[("driver_error", error.message.clone())]);
            return Attempt::Failed(error, recoverable);
        }
        self.event(EventKind::Started, "Task started by client", &[]);
        self.state(TaskState::Running);

        let mut wait = driver.wait_task(&config.id);
        let stop_changed = async |stop: &mut watch::Receiver<Stop>| stop_at_least(stop, Stop::Gracefully).await;
        let (ended, killed) = tokio::select! {
            biased;
            ended = &mut wait => (ended, false),
            () = stop_changed(&mut self.stop) => (self.kill(&config.id, &mut wait).await, true),
        };
        drop(wait);
        let result = ended.map_err(|e| self.task_error(&e, &config.config.pos));
        match &result {
            Ok(exit) => self.terminated(*exit),
            Err(error) => {
                self.event(EventKind::DriverFailure, &error.message, &[("driver_error", error.message.clone())]);
            }
        }
        if killed {
            self.event(EventKind::Killed, "Task successfully killed", &[]);
        }
        self.destroy(&config.id, leftovers).await;
        if result.is_err() {
            self.sweep_orphans(leftovers);
        }
        Attempt::Ended { result, killed }
    }

    /// Starts the task. A stop makes the driver give up, as far as it can, and its answer is waited for: it may have made
    /// something by then. Returns also whether an error comes from that.
    async fn start(&self, driver: &dyn Driver, config: &TaskConfig) -> (Result<TaskHandle, DriverError>, bool) {
        let mut stop = self.stop.clone();
        let mut starting = driver.start_task(config);
        let given_up = tokio::select! {
            biased;
            started = &mut starting => return (started, false),
            () = stop_at_least(&mut stop, Stop::Gracefully) => driver.give_up_start(&config.id),
        };
        let started = starting.await;
        let given_up = given_up && started.is_err();
        (started, given_up)
    }

    /// Passes on what the driver says of this start of the task, until what is returned is dropped.
    fn pass_on_events(&self, id: &str) -> JoinSet<()> {
        let mut passing = JoinSet::new();
        let Some(mut events) = self.driver.task_events() else { return passing };
        let (shared, name, id) = (Arc::clone(&self.shared), self.task.name.clone(), id.to_owned());
        passing.spawn(async move {
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
        });
        passing
    }

    /// The task's cores: its own, which it keeps from its first start to its last end, or those that nobody has for himself.
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

    /// Cores were taken or given back, and somebody else may have done so at the same time.
    fn settle(&self) {
        if let Some(Err(error)) = self.shared.cpusets.as_ref().map(Cpusets::settle) {
            tracing::warn!(error = chain(&error), "cannot divide the cores among the tasks");
        }
    }

    /// Lets the driver forget a task that ended or did not start, with its helper.
    async fn destroy(&self, id: &str, leftovers: &mut Vec<String>) {
        let destroyed = match self.driver.destroy_task(id, false).await {
            Err(DriverError::Failed { .. }) => self.driver.destroy_task(id, true).await,
            other => other,
        };
        self.settle();
        let name = &self.task.name;
        match destroyed {
            Ok(()) => {
                if let Err(error) = self.shared.records.process_ended(id) {
                    leftovers.push(format!("task {name:?}: {}", chain(&error)));
                }
            }
            Err(DriverError::TaskNotFound) => {}
            Err(error) => leftovers.push(format!("task {name:?} cannot be cleaned up: {}", chain(&error))),
        }
    }

    /// A lost executor leaves what its task started to this process.
    fn sweep_orphans(&self, leftovers: &mut Vec<String>) {
        if let Err(error) = self.shared.orphans.sweep(false, SWEEP_PATIENCE) {
            leftovers.push(format!("task {:?} cannot be cleaned up: {error}", self.task.name));
        }
    }

    /// Runs the steps; a stop makes them give up, but they are waited for, as they write into the task's folder.
    async fn set_up(&self, steps: &mut Stack<Setup>, setup: &mut Setup) -> Result<(), (&'static str, SetupError)> {
        let cancel = Arc::clone(&setup.cancel);
        let mut stop = self.stop.clone();
        let mut running = std::pin::pin!(steps.run(setup));
        tokio::select! {
            biased;
            result = &mut running => return result,
            () = stop_at_least(&mut stop, Stop::Gracefully) => cancel.store(true, Ordering::Relaxed),
        }
        running.await
    }

    fn config(&self, env: &TaskEnv) -> Result<TaskConfig, TooLarge> {
        let Task { name, logs, resources, .. } = &self.task;
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
        Ok(TaskConfig {
            id: format!("{}/{name}/{}", self.shared.alloc, &unique[..8]),
            name: name.clone(),
            group: self.shared.group.clone(),
            job_id: variable("NOMAD_JOB_ID"),
            job_name: variable("NOMAD_JOB_NAME"),
            namespace: variable("NOMAD_NAMESPACE"),
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
            ..TaskConfig::default()
        })
    }

    /// Ends a running task: shutdown delay, kill signal, kill timeout; at once when the stop says so.
    async fn kill(&mut self, id: &str, wait: &mut Wait<'_>) -> Result<ExitResult, DriverError> {
        let delay = self.task.shutdown_delay;
        if !delay.is_zero() && *self.stop.borrow() < Stop::Now {
            let message = format!("Waiting for shutdown_delay of {} before killing the task.", go_duration(delay));
            self.event(EventKind::WaitingForShutdownDelay, message, &[]);
            tokio::select! {
                biased;
                ended = &mut *wait => return ended,
                () = tokio::time::sleep(delay) => {}
                () = stop_at_least(&mut self.stop, Stop::Now) => {}
            }
        }
        let timeout = self.task.kill_timeout;
        let forced = *self.stop.borrow() == Stop::Now;
        let details = [("kill_timeout", go_duration(timeout))];
        let message = if forced {
            "Sent SIGKILL".to_owned()
        } else {
            format!("Sent interrupt. Waiting {} before force killing", go_duration(timeout))
        };
        self.event(EventKind::Killing, message, &details);

        let driver = Arc::clone(&self.driver);
        let mut stopping: Stopping<'_> = if forced {
            Box::pin(stop_task(&*driver, id, Duration::ZERO, Some(Signal::KILL)))
        } else {
            Box::pin(stop_task(&*driver, id, timeout, self.task.kill_signal))
        };
        let (mut stopped, mut forced) = (false, forced);
        loop {
            tokio::select! {
                biased;
                ended = &mut *wait => return ended,
                () = stop_at_least(&mut self.stop, Stop::Now), if !forced => {
                    (forced, stopped) = (true, false);
                    stopping = Box::pin(stop_task(&*driver, id, Duration::ZERO, Some(Signal::KILL)));
                }
                result = &mut stopping, if !stopped => match result {
                    Ok(()) | Err(DriverError::TaskNotFound) => stopped = true,
                    Err(error) => return Err(error),
                },
            }
        }
    }

    fn terminated(&self, exit: ExitResult) {
        let mut message = format!("Exit Code: {}", exit.exit_code);
        if exit.signal != 0 {
            let _ = write!(message, ", Signal: {}", exit.signal);
        }
        if exit.core_dumped {
            message.push_str(" (core dumped)");
        }
        if exit.oom_killed {
            message.push_str(", Exit Message: \"OOM Killed\"");
        }
        let mut details = vec![
            ("exit_code", exit.exit_code.to_string()),
            ("signal", exit.signal.to_string()),
            ("oom_killed", exit.oom_killed.to_string()),
        ];
        if exit.core_dumped {
            details.push(("core_dumped", "true".to_owned()));
        }
        self.event(EventKind::Terminated, message, &details);
    }

    /// Says where the task stands in the job file, unless the driver has said it.
    fn task_error(&self, error: &DriverError, config: &Pos) -> TaskError {
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
            () = stop_at_least(&mut self.stop, Stop::Gracefully) => false,
            opened = self.gate.wait_for(|open| *open) => opened.is_ok(),
        }
    }

    async fn stopped_within(&mut self, delay: Duration) -> bool {
        tokio::select! {
            biased;
            () = stop_at_least(&mut self.stop, Stop::Gracefully) => true,
            () = tokio::time::sleep(delay) => false,
        }
    }

    fn is_stopping(&self) -> bool {
        *self.stop.borrow() > Stop::No
    }

    fn event(&self, kind: EventKind, message: impl Into<String>, details: &[(&str, String)]) {
        self.shared.event(&self.task.name, kind, message, details);
    }

    fn state(&self, state: TaskState) {
        // The allocation outlives its tasks; without it there is nobody to tell.
        let _ = self.states.send((self.number, state));
    }
}

/// Where the cores of a task with this cgroup stay its own between two runs.
pub(super) fn keeper(cgroup: &Path) -> Option<PathBuf> {
    let name = cgroup.file_name().and_then(OsStr::to_str)?;
    Some(cgroup.with_file_name(Cpusets::keeper(name)))
}

type Wait<'a> = Pin<Box<dyn Future<Output = Result<ExitResult, DriverError>> + Send + 'a>>;
type Stopping<'a> = Pin<Box<dyn Future<Output = Result<(), DriverError>> + Send + 'a>>;

/// Asks a driver to stop a task, several times if need be.
async fn stop_task(
    driver: &dyn Driver,
    id: &str,
    timeout: Duration,
    signal: Option<Signal>,
) -> Result<(), DriverError> {
    for pause in STOP_TRIES {
        match driver.stop_task(id, timeout, signal).await {
            Err(DriverError::Failed { .. }) => tokio::time::sleep(pause).await,
            other => return other,
        }
    }
    driver.stop_task(id, timeout, signal).await
}

/// Waits for a stop of at least this urgency; for ever when nobody can ask for one any more.
pub(super) async fn stop_at_least(stop: &mut watch::Receiver<Stop>, urgency: Stop) {
    if stop.wait_for(|s| *s >= urgency).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Evenly between 0 and 1.
fn random() -> f64 {
    let bytes = crate::sys::random::uuid().into_bytes();
    f64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])) / f64::from(u32::MAX)
}
