//! The life of one task's processes, the same for both kinds of isolation.

use std::borrow::Cow;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::FileType;
use tokio::io::Interest;
use tokio::sync::watch;

use super::adopt::inode_of;
use super::running::{Isolation, KILL_PATIENCE, Output, Running};
use super::session::{self, Sessions};
use super::start::{
    alive, cgroup_error, chain, descendants, end_child, ended, open_null, open_to_task, plan, readable, start_error,
    start_shim, wait_for, watch,
};
use super::stats::{ProcessSampler, total};
use super::{
    ALREADY_LAUNCHED, ExecOutput, ExecRequests, ExecResponses, Executor, ExecutorError, NewLimits, adopt, isolated,
    universal,
};
use crate::cgroup::{self, CgroupFs, DeviceRule, Regime, Sampler, TaskCgroup};
use crate::container::{self, FailureKind, Namespaces, Prepare, Prepared};
use crate::logs::collector::{Collector, open_sink};
use crate::logs::notices::Notices;
use crate::logs::words_of_go;
use crate::net;
use crate::spec::{
    ExitResult, HostIds, IntoMap as _, LaunchSpec, NamespaceMode, Outlive, OutputHealth, OwnNamespaces, ProcessState,
    Resources, Signal, TaskStats, scaled_cpu_shares,
};
use crate::sys;
use crate::sys::process::{Child, WaitStatus};

/// How long a cgroup may stay busy after its last process has been killed.
const REMOVE_PATIENCE: Duration = Duration::from_secs(10);
/// How often a second launch looks whether the first one has ended; there is no event for that.
const AGAIN: Duration = Duration::from_millis(10);

/// The node's compute capacity, to report usage in Nomad's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compute {
    /// MHz of all cores together.
    pub total_mhz: u64,
    /// Number of cores.
    pub cores: u32,
}

impl Compute {
    fn core_mhz(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "MHz are far below 2^53")]
        let total = self.total_mhz as f64;
        total / f64::from(self.cores.max(1))
    }
}

/// The executor in this process. The process has one thread and serves one task.
#[derive(Debug)]
pub struct LocalExecutor {
    isolation: Isolation,
    compute: Compute,
    cgroups: CgroupFs,
    /// The plain user's network that this process has entered.
    network: OnceLock<PathBuf>,
    ahead: Mutex<Option<Ahead>>,
    phase: Mutex<Phase>,
    exit: watch::Sender<Option<ProcessState>>,
    sessions: Arc<Sessions>,
    /// Given of the output that is collected.
    notices: Option<Notices>,
}

/// Cgroup and shim that were made before the launch request.
#[derive(Debug)]
struct Ahead {
    /// As [`LaunchSpec::cgroup`].
    path: PathBuf,
    /// As [`LaunchSpec::cpuset_cgroup`].
    cpuset: PathBuf,
    cgroup: Option<TaskCgroup>,
    /// The device rules that were set on the cgroup.
    devices: Option<Vec<DeviceRule>>,
    shim: Prepared,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Launching,
    Running(Arc<Running>),
    /// It ends, and launches nothing any more.
    Retired,
}

/// The task's stdout and stderr (descriptors 1 and 2).
struct ChildEnds {
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl ChildEnds {
    /// A task that outlives its executor also gets a read end of its own pipes: a write then blocks instead of failing with
    /// SIGPIPE.
    fn outliving(self, spec: &LaunchSpec) -> Result<ChildEnds, ExecutorError> {
        if spec.outlive.is_none() {
            return Ok(self);
        }
        let both = |end: &OwnedFd| match FileType::from_raw_mode(rustix::fs::fstat(end)?.st_mode) {
            FileType::Fifo => adopt::both_ends(end),
            _ => end.try_clone(),
        };
        let ends = both(&self.stdout).and_then(|stdout| Ok(ChildEnds { stdout, stderr: both(&self.stderr)? }));
        ends.map_err(|e| ExecutorError::System(format!("open the task's output for both: {e}")))
    }
}

impl LocalExecutor {
    /// An executor without a task.
    #[must_use]
    pub fn new(isolation: Isolation, compute: Compute, cgroups: CgroupFs) -> LocalExecutor {
        LocalExecutor {
            isolation,
            compute,
            cgroups,
            network: OnceLock::new(),
            ahead: Mutex::new(None),
            phase: Mutex::new(Phase::Idle),
            exit: watch::Sender::new(None),
            sessions: Arc::default(),
            notices: None,
        }
    }

    /// The same, and followers of the task's output get `notices` of it while it is collected here.
    #[must_use]
    pub fn telling(self, notices: Option<Notices>) -> LocalExecutor {
        LocalExecutor { notices, ..self }
    }

    /// Brings this process, which must have no other thread, into a plain user's network, so that all that it starts is there: no
    /// process of a task may enter it. A network that it is in already is not an error.
    ///
    /// # Errors
    /// [`ExecutorError::System`] when the network is gone, or this process has entered another one.
    pub fn enter_network(&self, path: &Path) -> Result<(), ExecutorError> {
        let failed = |e: &dyn std::fmt::Display| {
            ExecutorError::System(format!("enter the network of the allocation, {}: {e}", path.display()))
        };
        if let Some(entered) = self.network.get() {
            return if entered == path { Ok(()) } else { Err(failed(&"it is another one than before")) };
        }
        net::join(path).map_err(|e| failed(&e))?;
        let _first = self.network.set(path.to_owned());
        // Of the capabilities in the user namespace, only those are used that write the id maps of shims.
        let kept = match self.isolation {
            Isolation::Isolated => [caps::Capability::CAP_SETUID, caps::Capability::CAP_SETGID].into(),
            Isolation::Universal => caps::CapsHashSet::new(),
        };
        for set in [caps::CapSet::Effective, caps::CapSet::Permitted] {
            caps::set(None, set, &kept).map_err(|e| failed(&e))?;
        }
        Ok(())
    }

    /// What is to be launched by this process: in a plain user's network, which it enters itself, no task has to.
    fn in_network<'a>(&self, spec: &'a LaunchSpec) -> Result<Cow<'a, LaunchSpec>, ExecutorError> {
        if spec.network_namespace.as_os_str().is_empty() || rustix::process::geteuid().is_root() {
            return Ok(Cow::Borrowed(spec));
        }
        self.enter_network(&spec.network_namespace)?;
        let own = OwnNamespaces { network: false, ..spec.own };
        Ok(Cow::Owned(LaunchSpec { network_namespace: PathBuf::new(), own, ..spec.clone() }))
    }

    /// Makes the task's cgroup (relative to each hierarchy's root, empty for none; on v1 with a cpuset that the host made, empty
    /// for its own, and with the cores reserved for it) and starts the process that will become the task, with a cgroup namespace
    /// or without, and without root with these subordinate ids, so that neither delays the launch. A launch with other settings
    /// discards both and starts anew.
    ///
    /// # Errors
    /// [`ExecutorError::System`]; the launch will fail the same way and report it.
    pub fn prepare(
        &self,
        path: &Path,
        cpuset: &Path,
        cores: &str,
        cgroup_namespace: bool,
        host_ids: Option<HostIds>,
    ) -> Result<(), ExecutorError> {
        let wanted = self.cgroups.regime() != Regime::Off && !path.as_os_str().is_empty();
        let given = (self.cgroups.regime() == Regime::V1 && !cpuset.as_os_str().is_empty()).then_some(cpuset);
        let cores = given.map(|_| cores.to_owned()).unwrap_or_default();
        let resources = Resources { cpuset_cpus: cores, ..Resources::default() };
        let make = || TaskCgroup::create_with_cpuset(&self.cgroups, path, given, &resources);
        let cgroup = wanted.then(make);
        let cgroup = cgroup.transpose().map_err(cgroup_error)?;
        let isolation = (self.isolation == Isolation::Isolated).then(Default::default);
        // The rules that most tasks have.
        let devices = isolation.map(|_| isolated::default_devices());
        let plan = self.plan(isolation, cgroup_namespace, host_ids, cgroup.as_ref());
        let shim = plan.and_then(|plan| start_confined_shim(devices.as_deref(), plan, cgroup.as_ref()));
        let shim = shim.inspect_err(|_| cgroup.iter().for_each(remove_cgroup))?;
        *lock(&self.ahead) = Some(Ahead { path: path.to_owned(), cpuset: cpuset.to_owned(), cgroup, devices, shim });
        Ok(())
    }

    fn plan(
        &self,
        isolation: Option<(NamespaceMode, NamespaceMode)>,
        cgroup_namespace: bool,
        host_ids: Option<HostIds>,
        cgroup: Option<&TaskCgroup>,
    ) -> Result<Prepare, ExecutorError> {
        let plan = plan(isolation, cgroup_namespace, host_ids, cgroup)?;
        Ok(Prepare { is_nested: self.network.get().is_some(), ..plan })
    }

    /// Refuses every launch from now on, unless there was one; returns whether it does.
    #[must_use]
    pub fn retire(&self) -> bool {
        let mut phase = self.phase();
        let is_idle = matches!(*phase, Phase::Idle);
        if is_idle {
            *phase = Phase::Retired;
        }
        is_idle
    }

    /// Returns the prepared cgroup and shim if they fit this launch; discards them otherwise.
    async fn take_ahead(&self, spec: &LaunchSpec, devices: Option<&[DeviceRule]>) -> Option<Ahead> {
        let ahead = lock(&self.ahead).take()?;
        let isolation = (self.isolation == Isolation::Isolated).then_some((spec.pid_mode, spec.ipc_mode));
        let limited = ahead.cgroup.is_some() == (spec.resource_limits && self.cgroups.regime() != Regime::Off);
        let overridden = !spec.cgroup_v1_override.is_empty() || !spec.cgroup_v2_override.is_empty();
        let fits = ahead.path == spec.cgroup
            && ahead.cpuset == spec.cpuset_cgroup
            && ahead.devices.as_deref() == devices
            && limited
            && !overridden;
        let plan = self.plan(isolation, spec.own.cgroup, ids_of(spec), ahead.cgroup.as_ref());
        if fits && plan.is_ok_and(|plan| ahead.shim.fits(&plan)) {
            return Some(ahead);
        }
        ahead.discard().await;
        None
    }

    /// Kills all that still runs; called when the executor's process ends.
    pub async fn close(&self) {
        let ahead = lock(&self.ahead).take();
        if let Some(ahead) = ahead {
            ahead.discard().await;
        }
        if let Err(error) = self.shutdown("", Duration::ZERO).await {
            tracing::error!(%error, "could not end the task");
        }
    }

    /// Whether this executor waits for the status of this child: the main process of the task, one of a session, or one that may be
    /// about to become either.
    #[must_use]
    pub fn owns(&self, pid: i32) -> bool {
        if self.sessions.own(pid) {
            return true;
        }
        match &*self.phase() {
            Phase::Idle | Phase::Retired => lock(&self.ahead).as_ref().is_some_and(|ahead| ahead.shim.child.pid == pid),
            Phase::Launching => true,
            Phase::Running(running) => running.pid == pid,
        }
    }

    /// Returns when [`Executor::wait`] or [`Executor::output_changed`] would, the latter with an answer; at once before a launch.
    pub async fn changed(&self, known: u64) {
        let output = async {
            if !matches!(self.output_changed(known).await, Ok(Some(_))) {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            _ = self.wait() => {}
            () = output => {}
        }
    }

    /// Waits until a child that this executor owned has been reaped: other children may have ended behind it.
    pub async fn reaped(&self) {
        self.sessions.reaped().await;
    }

    /// Whether the launch begins; not while there is another one.
    fn begin_launch(&self) -> Result<bool, ExecutorError> {
        let mut phase = self.phase();
        match *phase {
            Phase::Idle => {
                *phase = Phase::Launching;
                Ok(true)
            }
            Phase::Launching => Ok(false),
            Phase::Running(_) => Err(ExecutorError::Invalid(ALREADY_LAUNCHED.to_owned())),
            Phase::Retired => Err(ExecutorError::PluginShutdown),
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        lock(&self.phase)
    }

    fn running(&self) -> Option<Arc<Running>> {
        match &*self.phase() {
            Phase::Running(running) => Some(Arc::clone(running)),
            Phase::Idle | Phase::Launching | Phase::Retired => None,
        }
    }

    fn running_or_error(&self) -> Result<Arc<Running>, ExecutorError> {
        self.running().ok_or_else(|| ExecutorError::Invalid("Task not yet run".to_owned()))
    }

    /// The task, if its main process has not ended.
    fn live(&self) -> Result<Arc<Running>, ExecutorError> {
        let running = self.running_or_error()?;
        if self.exit.borrow().is_some() {
            return Err(ExecutorError::Invalid("the task has ended".to_owned()));
        }
        Ok(running)
    }

    /// The task, if commands can run in it. An isolated one ends with its main process, another one at its shutdown: until then
    /// also what its main process has left runs.
    fn open(&self) -> Result<Arc<Running>, ExecutorError> {
        match self.isolation {
            Isolation::Isolated => self.live(),
            Isolation::Universal => self.running_or_error().and_then(|running| running.check_open().map(|()| running)),
        }
    }

    /// Starts the task; retries once if its cgroup was removed meanwhile: a stale executor, left behind by a killed host, removes
    /// the cgroup of this name.
    async fn start(&self, spec: &LaunchSpec) -> Result<Arc<Running>, ExecutorError> {
        let spec = &*self.in_network(spec)?;
        if let Some(outlive) = spec.outlive.as_ref().filter(|outlive| outlive.adopt) {
            return self.take_over(spec, outlive).await;
        }
        let started = match self.try_start(spec).await {
            Err(NotStarted::CgroupGone(error)) => {
                tracing::debug!(%error, "starting once more");
                self.try_start(spec).await.map_err(NotStarted::into_error)
            }
            other => other.map_err(NotStarted::into_error),
        }?;
        if let Some(outlive) = &spec.outlive
            && let Err(error) = started.record_at(&outlive.record)
        {
            let _ = started.send(Signal::KILL);
            started.kill_leftovers().await;
            if readable(started.pidfd.as_fd()).await.is_ok() {
                let _ = sys::process::try_wait(started.pidfd.as_fd());
            }
            started.cgroup.iter().for_each(remove_cgroup);
            return Err(ExecutorError::System(format!("record the task in {}: {error}", outlive.record.display())));
        }
        Ok(started)
    }

    /// Takes over the task of a killed executor, as if this one had started it.
    async fn take_over(&self, spec: &LaunchSpec, outlive: &Outlive) -> Result<Arc<Running>, ExecutorError> {
        if let Some(ahead) = { lock(&self.ahead).take() } {
            ahead.discard().await;
        }
        let (record, held) = adopt::Record::take(&outlive.record).await?;
        let pid = record.process.pid;
        let system = |what: &str, e: &dyn std::error::Error| ExecutorError::System(format!("{what}: {}", chain(e)));
        let pidfd = adopt::open(&record.process).map_err(|e| system("find the task", &e))?;
        let (path, cpuset) = self.cgroup_path(spec)?;
        let cgroup = TaskCgroup::open_with_cpuset(&self.cgroups, &path, cpuset).map_err(cgroup_error)?;
        let cgroup = cgroup.with_oom_baseline(record.oom_baseline);
        let mut config = match self.isolation {
            Isolation::Isolated => isolated::config(spec)?,
            Isolation::Universal => universal::config_of(spec, None, Path::new(&spec.command)),
        };
        config.host_ids = record.host_ids;
        config.id_range = record.id_range;
        let output = match (record.pipes, &spec.logs) {
            (Some(pipes), Some(logs)) => {
                let pids: Vec<i32> = [pid].into_iter().chain(cgroup.pids().map_err(cgroup_error)?).collect();
                let pipes = pipes.map(|inode| adopt::find_pipe(&pids, inode));
                let collector = Collector::take_over(logs, pipes, self.notices.as_ref());
                Output::Collected(collector.map_err(|e| system("collect output", &e))?)
            }
            (Some(_), None) => {
                let text = "its executor collected the output of this task, and this one is not told where";
                return Err(ExecutorError::Invalid(text.to_owned()));
            }
            (None, _) => {
                let keeper = |path: &str| open_sink(Path::new(path)).map(|sink| sink.keeper);
                let keepers = [keeper(&spec.stdout_path), keeper(&spec.stderr_path)];
                let [stdout, stderr] = keepers.map(|keeper| {
                    keeper.unwrap_or_else(|error| {
                        // The reader still has it open, and the task has a read end of its own.
                        tracing::warn!(%error, "cannot open the output of a task that is taken over");
                        None
                    })
                });
                Output::Sunk { _keepers: [stdout, stderr] }
            }
        };
        // If the process has changed its namespaces, commands must not enter them.
        let namespaces = Namespaces::reopen(pid, &record.namespaces).ok().flatten();
        tracing::warn!(pid, sessions = namespaces.is_some(), "took over a task whose executor was killed");
        Ok(Arc::new(Running {
            pid,
            pidfd: Arc::new(pidfd),
            dies_as_one: self.isolation == Isolation::Isolated && spec.pid_mode == NamespaceMode::Private,
            isolation: self.isolation,
            cgroup: Some(cgroup),
            config,
            task_dir: spec.task_dir.clone(),
            outputs: record.pipes,
            namespaces: Mutex::new(namespaces),
            session_oom_kills: AtomicU64::new(0),
            output_health: output.health(),
            output: Mutex::new(Some(output)),
            record: Mutex::new(Some(held)),
            closed: AtomicBool::new(false),
            adopted: Some(record.process.start_ticks),
            status_lost: AtomicBool::new(false),
            samplers: Mutex::new((Sampler::new(self.compute.core_mhz()), ProcessSampler::default())),
            limits: Mutex::new(record.limits.over(&self.resources(spec), self.compute.total_mhz)),
        }))
    }

    async fn try_start(&self, spec: &LaunchSpec) -> Result<Arc<Running>, NotStarted> {
        let (config, devices) = match self.isolation {
            Isolation::Isolated => (isolated::config(spec)?, Some(isolated::devices(spec)?)),
            Isolation::Universal => (universal::config(spec)?, None),
        };
        let own_cgroup =
            spec.resource_limits && spec.cgroup_v1_override.is_empty() && spec.cgroup_v2_override.is_empty();
        if spec.outlive.is_some() && (self.cgroups.regime() == Regime::Off || !own_cgroup) {
            let text = "a task outlives its executor only in a cgroup of its own, by which it is ended then; \
                        use on_executor_loss = \"kill\"";
            return Err(ExecutorError::Invalid(text.to_owned()).into());
        }
        let ahead = self.take_ahead(spec, devices.as_deref()).await;
        let has_limits = ahead.is_none();
        let (cgroup, shim) = if let Some(ahead) = ahead {
            (ahead.cgroup, Ok(ahead.shim))
        } else {
            let cgroup = self.contain(spec)?;
            let isolation = (self.isolation == Isolation::Isolated).then_some((spec.pid_mode, spec.ipc_mode));
            let plan = self.plan(isolation, spec.own.cgroup, ids_of(spec), cgroup.as_ref());
            let shim = plan.and_then(|plan| start_confined_shim(devices.as_deref(), plan, cgroup.as_ref()));
            (cgroup, shim)
        };
        let launched = match shim {
            Ok(shim) => self.start_in(spec, &config, cgroup.as_ref(), has_limits, shim).await,
            Err(error) => Err(error.into()),
        };
        launched.inspect_err(|_| cgroup.iter().for_each(remove_cgroup))
    }

    async fn start_in(
        &self,
        spec: &LaunchSpec,
        config: &container::Config,
        cgroup: Option<&TaskCgroup>,
        has_limits: bool,
        shim: Prepared,
    ) -> Result<Arc<Running>, NotStarted> {
        // If this fails, the first session fails for lack of namespaces and reports it.
        let namespaces = shim.namespaces().ok();
        let told = alive(shim.tell(config, &Namespaces::default())).await?;
        // Meanwhile the shim assembles the root.
        let ready = can_limit(cgroup, spec).map_err(NotStarted::from).and_then(|()| {
            if let (Some(cgroup), false) = (cgroup, has_limits) {
                // The cgroup may be gone: a stale executor, left behind by a killed host, removes the cgroup of this name. Any
                // other cause occurs again on the retry, and is reported then.
                let limited = cgroup.set_limits(&self.resources(spec));
                limited.map_err(|error| NotStarted::CgroupGone(cgroup_error(error)))?;
            }
            Ok((open_output(spec, config, self.notices.as_ref())?, open_null()?))
        });
        let ((output, ends), null) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                end_child(told.child).await;
                return Err(error);
            }
        };
        let outputs = inode_of(&ends.stdout).and_then(|stdout| Ok([stdout, inode_of(&ends.stderr)?])).ok();
        let stdio = [null.as_fd(), ends.stdout.as_fd(), ends.stderr.as_fd()];
        let mut starting = alive(told.go(stdio)).await?;
        drop(ends);
        if let Err(error) = readable(starting.report()).await {
            // The shim may still become the task.
            end_child(starting.child).await;
            return Err(error.into());
        }
        let started = match starting.outcome() {
            Ok(Some(started)) => started,
            // Killed before its exec, perhaps for lack of memory: treated as an ordinary end of the task.
            Ok(None) if was_killed(&starting.child).await => container::Started::default(),
            Ok(None) => {
                end_child(starting.child).await;
                let text = format!("failed to start command path={:?}: the shim ended without a word", spec.command);
                return Err(ExecutorError::System(text).into());
            }
            Err(failure) => {
                end_child(starting.child).await;
                let gone = failure.kind == FailureKind::CgroupGone;
                let error = start_error(&spec.command, config.rootless.is_some(), &failure);
                return Err(if gone { NotStarted::CgroupGone(error) } else { error.into() });
            }
        };
        let namespaces = namespaces.map(|namespaces| namespaces.and(started.namespaces));
        let mut config = config.clone();
        config.host_ids = started.ids.or(config.host_ids);
        Ok(Arc::new(Running {
            pid: starting.child.pid,
            pidfd: Arc::new(starting.child.pidfd),
            dies_as_one: self.isolation == Isolation::Isolated && spec.pid_mode == NamespaceMode::Private,
            isolation: self.isolation,
            cgroup: cgroup.cloned(),
            config,
            task_dir: spec.task_dir.clone(),
            outputs,
            namespaces: Mutex::new(namespaces),
            session_oom_kills: AtomicU64::new(0),
            output_health: output.health(),
            output: Mutex::new(Some(output)),
            record: Mutex::default(),
            closed: AtomicBool::new(false),
            adopted: None,
            status_lost: AtomicBool::new(false),
            samplers: Mutex::new((Sampler::new(self.compute.core_mhz()), ProcessSampler::default())),
            limits: Mutex::new(self.resources(spec)),
        }))
    }

    /// Makes the task's cgroup with its limits. Without root there may be no cgroup.
    fn contain(&self, spec: &LaunchSpec) -> Result<Option<TaskCgroup>, ExecutorError> {
        let overridden = !spec.cgroup_v1_override.is_empty() || !spec.cgroup_v2_override.is_empty();
        if self.cgroups.regime() == Regime::Off || !(spec.resource_limits || overridden) {
            return Ok(None);
        }
        let mut resources = self.resources(spec);
        resources.cgroup_v1_override =
            spec.cgroup_v1_override.iter().map(|(k, v)| (k.clone(), PathBuf::from(v))).into_map();
        resources.cgroup_v2_override =
            (!spec.cgroup_v2_override.is_empty()).then(|| PathBuf::from(&spec.cgroup_v2_override));
        let created = self.task_cgroup(spec, &resources);
        match created {
            Ok(cgroup) => Ok(cgroup),
            Err(error) if rustix::process::geteuid().is_root() || overridden => Err(error),
            Err(error) => {
                tracing::warn!(%error, "running without cgroup: limits are not enforced");
                Ok(None)
            }
        }
    }

    /// The limits of the task on this node.
    fn resources(&self, spec: &LaunchSpec) -> Resources {
        let resources = spec.resources.clone();
        Resources { cpu_shares: scaled_cpu_shares(resources.cpu_shares, self.compute.total_mhz), ..resources }
    }

    fn task_cgroup(&self, spec: &LaunchSpec, resources: &Resources) -> Result<Option<TaskCgroup>, ExecutorError> {
        let (path, cpuset) = self.cgroup_path(spec)?;
        let created = TaskCgroup::create_with_cpuset(&self.cgroups, &path, cpuset, resources);
        created.map(Some).map_err(cgroup_error)
    }

    /// The task's cgroup, and on v1 the cpuset that the host made for it.
    fn cgroup_path<'a>(&self, spec: &'a LaunchSpec) -> Result<(PathBuf, Option<&'a Path>), ExecutorError> {
        let host_made = Some(spec.cpuset_cgroup.as_path()).filter(|path| !path.as_os_str().is_empty());
        Ok(match (spec.cgroup.as_os_str().is_empty(), self.cgroups.regime(), host_made) {
            (false, Regime::V1, cpuset) => (spec.cgroup.clone(), cpuset),
            (false, ..) => (spec.cgroup.clone(), None),
            (true, Regime::V2, Some(scope)) => (self.cgroups.relative(scope).map_err(cgroup_error)?, None),
            (true, Regime::V1, cpuset) => (nomad_v1_path(&spec.task_dir)?, cpuset),
            (true, ..) => {
                return Err(ExecutorError::Invalid("unable to configure cgroups: cgroup must be set".to_owned()));
            }
        })
    }

    /// Waits for the end of the main process, then notifies all waiters.
    fn watch_exit(&self, running: Arc<Running>) -> Result<(), ExecutorError> {
        let ended = sys::watch::register(Arc::clone(&running.pidfd), Interest::READABLE)
            .map_err(|e| ExecutorError::System(format!("watch the task: {e}")))?;
        let (isolation, exits, sessions) = (self.isolation, self.exit.clone(), Arc::clone(&self.sessions));
        crate::sys::task::spawn(async move {
            let status = match running.adopted {
                Some(start_ticks) => {
                    let readable = ended.readable().await.is_ok();
                    let status = readable.then(|| adopt::status_of(&running.pidfd, running.pid, start_ticks)).flatten();
                    running.status_lost.store(status.is_none(), Ordering::Relaxed);
                    status
                }
                None => wait_for(&ended).await,
            };
            sessions.tell_reaped();
            let namespaces = lock(&running.namespaces).take();
            let mut exit = match status {
                Some(status) => ExitResult::from_wait(status.code, status.signal),
                // It was reaped elsewhere: a lost process must not look successful.
                None => ExitResult { exit_code: 1, ..ExitResult::default() },
            };
            exit.core_dumped = status.is_some_and(|status| status.dumped);
            // Read while the cgroup still exists, after the wait that makes the count final.
            exit.oom_killed = running.unclaimed_oom_kills() > 0;
            if isolation == Isolation::Isolated {
                if !running.dies_as_one {
                    running.kill_leftovers().await;
                }
                running.close_output().await;
            } else {
                running.settle_output().await;
            }
            tracing::debug!(pid = running.pid, exit_code = exit.exit_code, signal = exit.signal, "task ended");
            let state = ProcessState { pid: running.pid, exit: Some(exit), time: SystemTime::now() };
            exits.send_replace(Some(state));
            // Waiters are notified before the kernel tears down the task's mounts, which happens when the last descriptor of them
            // is closed.
            tokio::task::yield_now().await;
            drop(namespaces);
        });
        Ok(())
    }

    async fn exited_within(&self, patience: Duration) -> bool {
        let mut exit = self.exit.subscribe();
        tokio::time::timeout(patience, exit.wait_for(Option::is_some)).await.is_ok()
    }
}

#[tonic::async_trait]
impl Executor for LocalExecutor {
    async fn launch(&self, spec: LaunchSpec) -> Result<ProcessState, ExecutorError> {
        // A host that has ended may have asked for the same: that is waited for.
        while !self.begin_launch()? {
            tokio::time::sleep(AGAIN).await;
        }
        let running = self.start(&spec).await.inspect_err(|error| {
            tracing::error!(%error, command = %spec.command, "launch failed");
            *self.phase() = Phase::Idle;
        })?;
        tracing::info!(pid = running.pid, command = %spec.command, "launched");
        *self.phase() = Phase::Running(Arc::clone(&running));
        self.sessions.tell_reaped();
        let pid = running.pid;
        if let Err(error) = self.watch_exit(Arc::clone(&running)) {
            // Without the watch the task's end would go unnoticed, so the task is killed.
            let _ = running.send(Signal::KILL);
            running.kill_leftovers().await;
            running.cgroup.iter().for_each(remove_cgroup);
            *self.phase() = Phase::Idle;
            self.sessions.tell_reaped();
            return Err(error);
        }
        Ok(ProcessState { pid, exit: None, time: SystemTime::now() })
    }

    async fn wait(&self) -> Result<ProcessState, ExecutorError> {
        let running = self.running_or_error()?;
        let mut exit = self.exit.subscribe();
        let state = exit.wait_for(Option::is_some).await.map(|state| *state);
        if running.status_lost.load(Ordering::Relaxed) {
            let text = "the task has ended, but its exit status is not known: the executor that started it was killed, and only \
                        Linux 6.15 and later tell it to another one";
            return Err(ExecutorError::System(text.to_owned()));
        }
        state.ok().flatten().ok_or(ExecutorError::PluginShutdown)
    }

    async fn shutdown(&self, signal: &str, grace: Duration) -> Result<(), ExecutorError> {
        let Some(running) = self.running() else { return Ok(()) };
        let asked = if signal.is_empty() { Some(Signal::INT) } else { Signal::from_name(signal) };
        let ended = self.exit.borrow().is_some();
        if !ended {
            // The only possible error is that it has just ended.
            if let (false, Some(asked)) = (grace.is_zero(), asked)
                && running.send(asked).is_ok()
                && !self.exited_within(grace).await
            {
                tracing::info!(pid = running.pid, signal = %asked, "the task did not end in time; killing it");
            }
            let _ = running.send(Signal::KILL);
        }
        running.closed.store(true, Ordering::Relaxed);
        running.kill_leftovers().await;
        if !self.exited_within(KILL_PATIENCE).await {
            return Err(ExecutorError::System("process did not exit after 15 seconds".to_owned()));
        }
        running.close_output().await;
        if let Some(cgroup) = &running.cgroup {
            remove_cgroup(cgroup);
        }
        let record = lock(&running.record).take();
        if let Some(record) = record {
            record.remove();
        }
        // Without a grace period no signal is sent but SIGKILL.
        if asked.is_none() && !grace.is_zero() {
            return Err(ExecutorError::Invalid(format!("error unknown signal given for shutdown: {signal}")));
        }
        Ok(())
    }

    async fn signal(&self, number: i32) -> Result<(), ExecutorError> {
        let signal = Signal::from_number(number)
            .ok_or_else(|| ExecutorError::Invalid(format!("{number} is not a signal (1 to 64)")))?;
        self.running_or_error()?.send(signal)
    }

    async fn update_resources(&self, limits: NewLimits) -> Result<(), ExecutorError> {
        self.live()?.update(&limits, self.compute.total_mhz)
    }

    async fn stats(&self) -> Result<TaskStats, ExecutorError> {
        let running = self.running_or_error()?;
        let mut samplers = lock(&running.samplers);
        let (cgroup_sampler, process_sampler) = &mut *samplers;
        let core_mhz = self.compute.core_mhz();
        let pids = match &running.cgroup {
            Some(cgroup) => cgroup.pids().map_err(cgroup_error)?,
            None => descendants()
                .map_err(|e| ExecutorError::System(format!("list processes: {e}")))?
                .iter()
                .map(|s| s.pid)
                .collect(),
        };
        let by_pid = process_sampler.sample(&pids, core_mhz);
        let total = match (&running.cgroup, self.isolation) {
            (Some(cgroup), Isolation::Isolated) => cgroup.stats(cgroup_sampler).map_err(cgroup_error)?,
            (Some(cgroup), _) => {
                let mut sum = total(&by_pid);
                sum.memory.limit = cgroup.memory_limit().map_err(cgroup_error)?;
                sum
            }
            (None, _) => total(&by_pid),
        };
        let pressure = running.cgroup.as_ref().map(TaskCgroup::pressure).transpose().map_err(cgroup_error)?;
        let output = match &*lock(&running.output) {
            Some(Output::Collected(collector)) => Some(collector.counters()),
            _ => None,
        };
        Ok(TaskStats { time: SystemTime::now(), total, by_pid, pressure: pressure.unwrap_or_default(), output })
    }

    async fn output_changed(&self, known: u64) -> Result<Option<OutputHealth>, ExecutorError> {
        let health = self.running_or_error()?.output_health.clone();
        match health {
            Some(mut health) => Ok(health.changed(known).await),
            None => Ok(None),
        }
    }

    async fn exec(&self, deadline: SystemTime, command: &str, args: &[String]) -> Result<ExecOutput, ExecutorError> {
        let running = self.open()?;
        session::run_script(running, Arc::clone(&self.sessions), deadline, command, args).await
    }

    async fn exec_streaming(&self, requests: ExecRequests) -> Result<ExecResponses, ExecutorError> {
        let running = self.open()?;
        session::stream(running, Arc::clone(&self.sessions), requests).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The range of a task in a user namespace.
fn ids_of(spec: &LaunchSpec) -> Option<HostIds> {
    spec.host_ids.filter(|_| spec.user_namespace)
}

/// Starts a shim in a cgroup whose only permitted devices are `devices`. On v1 setting the rules first removes all of them, so a
/// shim that makes device nodes must not exist at that time.
fn start_confined_shim(
    devices: Option<&[DeviceRule]>,
    plan: Prepare,
    cgroup: Option<&TaskCgroup>,
) -> Result<Prepared, ExecutorError> {
    forbid_devices(cgroup, devices)?;
    start_shim(plan, cgroup)
}

/// Whether a shim that ended without a report was killed.
async fn was_killed(child: &Child) -> bool {
    let Ok(pidfd) = watch(child.pidfd.as_fd()) else { return false };
    matches!(ended(&pidfd, sys::process::peek).await, Some(WaitStatus { signal: Some(_), .. }))
}

impl Ahead {
    async fn discard(self) {
        end_child(self.shim.child).await;
        self.cgroup.iter().for_each(remove_cgroup);
    }
}

/// Only the job can ask for I/O limits, and only the task's own cgroup can enforce them.
fn can_limit(cgroup: Option<&TaskCgroup>, spec: &LaunchSpec) -> Result<(), ExecutorError> {
    if spec.resources.io.is_empty() || cgroup.is_some_and(|cgroup| !cgroup.is_host_given()) {
        return Ok(());
    }
    let text = "io needs a cgroup of the task's own, and it has none; run it as root, with cgroups, or without io";
    Err(ExecutorError::Invalid(text.to_owned()))
}

/// Forbids every device except those of `rules`. If the kernel does not support it, the task runs without the restriction, with a
/// warning in the log.
fn forbid_devices(cgroup: Option<&TaskCgroup>, rules: Option<&[DeviceRule]>) -> Result<(), ExecutorError> {
    let (Some(cgroup), Some(rules)) = (cgroup, rules) else { return Ok(()) };
    match cgroup.set_devices(rules) {
        Err(error @ (cgroup::Error::NoController(_) | cgroup::Error::NoDeviceRules(_))) => {
            tracing::warn!(error = %chain(&error), "rules for devices are not enforced");
            Ok(())
        }
        result => result.map_err(cgroup_error),
    }
}

fn open_output(
    spec: &LaunchSpec,
    config: &container::Config,
    notices: Option<&Notices>,
) -> Result<(Output, ChildEnds), ExecutorError> {
    if let Some(logs) = &spec.logs {
        let (collector, ends) = Collector::new(logs, notices)
            .map_err(|e| ExecutorError::System(format!("collect output in {}: {}", logs.dir.display(), chain(&e))))?;
        // The pipes belong to the executor; the task may want to reopen /dev/stdout.
        for end in [&ends.stdout, &ends.stderr] {
            open_to_task(end.as_fd(), config);
        }
        let ends = ChildEnds { stdout: ends.stdout, stderr: ends.stderr };
        return Ok((Output::Collected(collector), ends.outliving(spec)?));
    }
    let open = |what: &str, path: &str| {
        open_sink(Path::new(path))
            .map_err(|e| ExecutorError::System(format!("failed to create {what}: {path}: {}", words_of_go(&e))))
    };
    let stdout = open("stdout", &spec.stdout_path)?;
    let stderr = open("stderr", &spec.stderr_path)?;
    let ends = ChildEnds { stdout: stdout.child_end, stderr: stderr.child_end };
    Ok((Output::Sunk { _keepers: [stdout.keeper, stderr.keeper] }, ends.outliving(spec)?))
}

fn remove_cgroup(cgroup: &TaskCgroup) {
    if let Err(error) = cgroup.remove(Instant::now() + REMOVE_PATIENCE) {
        tracing::error!(%error, "could not remove the task's cgroup");
    }
}

/// Nomad names v1 task cgroups after the directories of allocation and task.
fn nomad_v1_path(task_dir: &Path) -> Result<PathBuf, ExecutorError> {
    let name = |path: Option<&Path>| path.and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned());
    match (name(task_dir.parent()), name(Some(task_dir))) {
        (Some(alloc), Some(task)) => Ok(Path::new("nomad").join(format!("{alloc}.{task}"))),
        _ => Err(ExecutorError::Invalid(format!("task directory {} names no task", task_dir.display()))),
    }
}

/// Why a start failed.
enum NotStarted {
    /// The cgroup was removed during the start.
    CgroupGone(ExecutorError),
    /// Anything else.
    Failed(ExecutorError),
}

impl NotStarted {
    fn into_error(self) -> ExecutorError {
        let (NotStarted::CgroupGone(error) | NotStarted::Failed(error)) = self;
        error
    }
}

impl From<ExecutorError> for NotStarted {
    fn from(error: ExecutorError) -> NotStarted {
        NotStarted::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn executor() -> LocalExecutor {
        let cgroups = CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap();
        LocalExecutor::new(Isolation::Universal, Compute::default(), cgroups)
    }

    #[tokio::test]
    async fn n5_an_executor_without_a_host_launches_nothing_any_more() {
        let executor = executor();
        assert!(executor.retire());
        let late = executor.launch(LaunchSpec::default()).await;
        assert!(matches!(late, Err(ExecutorError::PluginShutdown)), "{late:?}");
        assert!(!executor.retire(), "it is already");
    }

    #[tokio::test]
    async fn n5_a_second_launch_waits_for_the_first() {
        let executor = executor();
        *executor.phase() = Phase::Launching;
        assert!(!executor.retire(), "the launch may be about to take a task over");
        let mut second = std::pin::pin!(executor.launch(LaunchSpec::default()));
        tokio::time::timeout(AGAIN * 5, &mut second).await.unwrap_err();
        // The first one failed: there is no task yet.
        *executor.phase() = Phase::Idle;
        let error = second.await.unwrap_err().to_string();
        assert_ne!(error, ALREADY_LAUNCHED);
    }
}
