//! The `docker` driver: runs a task as a container of a Docker Engine. A missing answer is never taken to mean that the engine
//! did nothing.
//!
//! The create request is built in `container`, `life` makes sure that it takes effect, `collect` copies the output.

pub mod logger;

mod collect;
mod config;
mod container;
mod cores;
mod cursor;
mod exec;
mod image;
mod life;
mod limits;
mod network;
mod on_demand;
mod pause;
mod reconcile;
mod slice;
mod state;
mod task;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, broadcast, watch};

use self::collect::{Collector, Target};
use self::config::Config;
use self::container::{Builder, Facts};
use self::cursor::Bookmark;
use self::image::{Images, Progressing, Reference, Wanted};
use self::life::Life;
use self::state::{Own, State};
use self::task::Task as Read;
use super::failed;
use super::handle::no_handler;
use super::left::LeftHelpers;
use super::on_executor::{NO_SIZES, Wanted as Reader_, agent_logs, wanted_fifo};
use super::policy::By;
use super::refused::Refused;
use super::{
    Attribute, Capabilities, Driver, DriverError, DriverNetwork, ExecStreaming, ExecTaskResult, Fingerprint,
    FsIsolation, Health, KeptOutput, NetworkIsolation, NetworkMode, NodeConfig, Reader, Settings, TaskConfig,
    TaskEvent, TaskHandle, TaskState, TaskStatus,
};
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{CgroupFs, Regime, Sampler, TaskCgroup};
use crate::docker::{Container, Endpoint, Engine, Info};
use crate::executor::{Compute, NewLimits};
use crate::logs::fifo::Writer;
use crate::logs::ship::Stream;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{DriverConfig, ExitResult, IntoMap as _, Signal, TaskStats};
use crate::sys::lock::lock;
use crate::sys::task::JoinHandle;
use crate::sys::{mutant, processes};
use crate::wire::hclspec::Spec;

const NAME: &str = "docker";
/// Nomad's label: the allocation of a container.
const LABEL_ALLOC: &str = "com.hashicorp.nomad.alloc_id";
/// agentbin's label: the node whose agent created the container. Containers of other nodes are never touched.
const LABEL_NODE: &str = "agentbin.node";
/// agentbin's label: the start that created the container.
const LABEL_START: &str = "agentbin.start";
/// agentbin's label: who removes the container when it is left over, [`RECONCILER`] or [`OWNER`]. A run in the data directory of an
/// agent has the agent's node, and an agent does not know the run's tasks.
const LABEL_REMOVED_BY: &str = "agentbin.removed-by";
/// The reconciler of the driver that an agent uses as a plugin.
const RECONCILER: &str = "reconciler";
/// The run, or the agent of ours, whose allocation the container belongs to.
const OWNER: &str = "owner";
/// agentbin's label: a digest of the requested configuration.
const LABEL_CONFIG: &str = "agentbin.config";
/// How long the last lines of a container that has ended are waited for.
const LAST_LINES: Duration = Duration::from_secs(20);
/// First and longest pause while waiting for a container of an engine that does not answer.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How often a container that disappeared before its start is created again.
const REMADE: u32 = 5;
/// Timeout for emptying a cgroup that still has processes.
const SWEEP_PATIENCE: Duration = Duration::from_secs(10);
/// Length of a container id, in hex digits.
const ID_LENGTH: usize = 64;
/// How long systemd may take to make a slice; without one the engine makes it.
const SLICE_PATIENCE: Duration = Duration::from_secs(5);
/// How long an engine may take to report the exit of a container that was killed without it.
const LAST_WORD: Duration = Duration::from_secs(5);
/// How long after the end of a killed container its engine may notice that the kernel did it for lack of memory.
const LATE_NOTICE: Duration = Duration::from_secs(1);
/// Exit status of a killed process.
const KILLED: i32 = 128 + libc::SIGKILL;
/// Capacity of the event queue for a slow listener.
const EVENTS: usize = 64;

/// How a task ended, or why that cannot be found out.
type End = Result<ExitResult, String>;

/// A task that this process knows.
#[derive(Debug)]
struct Task {
    id: String,
    name: String,
    container: String,
    own: Own,
    /// Its first process on the host; 0 where that is not known.
    pid: i32,
    /// The signal by which the engine stops it, if its name is known here.
    stop_signal: Option<Signal>,
    /// Its events, without message.
    event: TaskEvent,
    started_at: SystemTime,
    ended_at: Mutex<Option<SystemTime>>,
    end: watch::Receiver<Option<End>>,
    /// Set when its processes were killed without the engine.
    killed: watch::Sender<bool>,
    /// The engine was asked to stop it.
    is_stopped: AtomicBool,
    /// The engine did not answer the last query.
    lost: AtomicBool,
    network: Option<DriverNetwork>,
    sampler: Mutex<Sampler>,
    waiting: Mutex<Option<JoinHandle<()>>>,
    bookmark: PathBuf,
    /// The cgroup whose cores it shares, and the cores that its container has; `None` for a task with reserved cores.
    shared_cores: Mutex<Option<(PathBuf, String)>>,
}

impl Drop for Task {
    fn drop(&mut self) {
        lock(&self.waiting).take().iter().for_each(JoinHandle::abort);
    }
}

/// What identifies the containers of this agent.
#[derive(Debug, Clone, Default)]
struct Identity {
    /// Ids of its node, as given by its tasks.
    nodes: BTreeSet<String>,
    /// Parent directories of the allocations, which only this agent uses.
    dirs: BTreeSet<PathBuf>,
}

/// State that a driver shares with its background tasks.
#[derive(Debug)]
struct Shared {
    settings: Settings,
    config: Mutex<Arc<Config>>,
    refused: Refused,
    /// The node's compute, as reported by the agent.
    compute: Mutex<Compute>,
    life: Mutex<Option<(Endpoint, Life)>>,
    images: Images,
    tasks: Mutex<HashMap<String, Arc<Task>>>,
    /// Starts in progress, each with the sender that cancels it.
    starting: Mutex<BTreeMap<String, watch::Sender<bool>>>,
    left: LeftHelpers,
    sandboxes: Mutex<BTreeSet<String>>,
    identity: Mutex<Identity>,
    info: Mutex<Option<Info>>,
    events: broadcast::Sender<TaskEvent>,
    /// The engine has answered at least once.
    detected: AtomicBool,
    /// It answered the last query.
    healthy: AtomicBool,
    reconciling: OnceLock<()>,
    /// Cgroups whose cores are followed, each with the notifier that triggers a check.
    followed: Mutex<HashMap<PathBuf, Arc<Notify>>>,
    /// Read by starts while they make and use the slice of their task; written by what stops one that no task uses.
    slices: tokio::sync::RwLock<()>,
}

/// The `docker` driver.
#[derive(Debug, Clone)]
pub struct DockerDriver(Arc<Shared>);

impl DockerDriver {
    /// A driver without tasks; does not contact the engine.
    #[must_use]
    pub fn new(settings: Settings) -> DockerDriver {
        DockerDriver(Arc::new(Shared {
            compute: Mutex::new(settings.compute),
            settings,
            config: Mutex::new(Arc::new(Config::default())),
            refused: Refused::default(),
            life: Mutex::default(),
            images: Images::default(),
            tasks: Mutex::default(),
            starting: Mutex::default(),
            slices: tokio::sync::RwLock::default(),
            left: LeftHelpers::default(),
            sandboxes: Mutex::default(),
            identity: Mutex::default(),
            info: Mutex::default(),
            events: broadcast::channel(EVENTS).0,
            detected: AtomicBool::new(false),
            healthy: AtomicBool::new(false),
            reconciling: OnceLock::new(),
            followed: Mutex::default(),
        }))
    }

    /// Looks once, without waiting for the period, for containers of this agent that no task is known for. `grace` is the
    /// minimum age of such a container. Returns the ids of those that were removed.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn reconcile_now(&self, grace: Duration) -> Result<Vec<String>, DriverError> {
        let dangling = config::Dangling { creation_grace: grace, ..self.0.config().dangling };
        if !dangling.enabled {
            return Ok(Vec::new());
        }
        self.0.reconcile(dangling).await.map_err(|e| image::unknown(&e))
    }

    /// Whether the allocation with this directory may have containers.
    ///
    /// # Errors
    /// The error of reading the directory.
    pub fn may_have_containers(alloc_dir: &Path) -> std::io::Result<bool> {
        let is = |name: std::ffi::OsString| name.to_string_lossy().ends_with(state::BOOKMARK);
        match std::fs::read_dir(alloc_dir) {
            Ok(entries) => Ok(entries.flatten().any(|entry| is(entry.file_name()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the containers of an allocation that no longer has an owner.
    ///
    /// # Errors
    /// The engine does not answer, or fails to remove a container.
    pub async fn remove_allocation(&self, alloc_id: &str) -> Result<(), DriverError> {
        let life = self.0.life()?;
        let label = format!("{LABEL_ALLOC}={alloc_id}");
        let listed = life.engine.list(Some(&label), true).await.map_err(|e| image::unknown(&e))?;
        for container in listed.iter().filter(|container| container.labels.contains_key(LABEL_NODE)) {
            life.remove(&container.id).await.map_err(|e| image::unknown(&e))?;
        }
        Ok(())
    }
}

impl Shared {
    fn config(&self) -> Arc<Config> {
        Arc::clone(&lock(&self.config))
    }

    fn life(&self) -> Result<Life, DriverError> {
        let config = self.config();
        let mut life = lock(&self.life);
        if let Some((_, life)) = life.as_ref().filter(|(endpoint, _)| *endpoint == config.endpoint) {
            return Ok(life.clone());
        }
        let engine = Engine::new(&config.endpoint, config.deadlines)
            .map_err(|e| DriverError::Unsupported(format!("Failed to initialize docker client: {e}")))?;
        let new = Life::new(engine);
        *life = Some((config.endpoint.clone(), new.clone()));
        Ok(new)
    }

    fn task(&self, id: &str) -> Result<Arc<Task>, DriverError> {
        lock(&self.tasks).get(id).cloned().ok_or(DriverError::TaskNotFound)
    }

    fn know_sandbox(&self, id: &str) {
        lock(&self.sandboxes).insert(id.to_owned());
    }

    fn forget_sandbox(&self, id: &str) {
        lock(&self.sandboxes).remove(id);
    }

    fn tracked(&self) -> BTreeSet<String> {
        let tasks: Vec<String> = lock(&self.tasks).values().map(|task| task.container.clone()).collect();
        tasks.into_iter().chain(lock(&self.sandboxes).clone()).collect()
    }

    fn identity(&self) -> Identity {
        lock(&self.identity).clone()
    }

    /// The id of this node, as given by the last task.
    fn node(&self) -> String {
        lock(&self.identity).nodes.last().cloned().unwrap_or_default()
    }

    /// The value of [`LABEL_REMOVED_BY`].
    fn removed_by(&self) -> &'static str {
        if self.settings.host.removes_containers { OWNER } else { RECONCILER }
    }

    /// Learns the agent's identity, which every task carries.
    fn learn(&self, task: &TaskConfig) {
        let mut identity = lock(&self.identity);
        if !task.node_id.is_empty() {
            identity.nodes.insert(task.node_id.clone());
        }
        if let Some(dir) = task.alloc_dir.parent() {
            identity.dirs.insert(dir.to_owned());
        }
    }

    fn event(&self, task: &TaskConfig, message: &str, annotations: &[(&str, &str)]) {
        let annotations = annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).into_map();
        // There may be no subscriber.
        let _ = self.events.send(TaskEvent { annotations, ..TaskEvent::of(task, message) });
    }

    /// Reports a signal that the first process of the container will not notice.
    fn tell_of_dropped(&self, task: &Task, signal: Signal) {
        // Otherwise the engine's processes have other numbers here, or the container's first process has ended.
        let is_there = || processes::is_in_cgroup(task.pid, &task.container);
        if let Some(message) = no_handler(task.pid, signal).filter(|_| task.end.borrow().is_none() && is_there()) {
            // There may be no subscriber.
            let _ = self.events.send(TaskEvent { time: SystemTime::now(), message, ..task.event.clone() });
        }
    }

    async fn info(&self, life: &Life) -> Result<Info, DriverError> {
        let known = lock(&self.info).clone();
        if let Some(info) = known {
            return Ok(info);
        }
        let info = life.engine.info().await.map_err(|e| {
            let text = format!("Failed to connect to docker daemon: {e}");
            // An engine that has never answered is not available on this machine; one that has answered before may come back.
            let may_come = self.settings.host.waits_for_engine || self.detected.load(Ordering::Relaxed);
            if may_come { failed(text, true) } else { DriverError::Unsupported(text) }
        })?;
        *lock(&self.info) = Some(info.clone());
        Ok(info)
    }

    /// Where a container of this task is created. Processes are never moved later.
    fn place(&self, task: &TaskConfig, config: &Config, info: &Info) -> Place {
        if !config.cgroup_parent.is_empty() {
            return Place { parent: config.cgroup_parent.clone(), ..Place::default() };
        }
        let regime = self.settings.cgroups.regime();
        let same = match regime {
            Regime::V1 => info.cgroup_version != "2",
            Regime::V2 => info.cgroup_version == "2",
            Regime::Off => false,
        };
        if !same || !matches!(config.endpoint, Endpoint::Unix(_)) {
            return Place::default();
        }
        let path = |own: &Path| {
            if own.as_os_str().is_empty() { String::new() } else { format!("/{}", own.display()) }
        };
        if info.cgroup_driver == "systemd" {
            if regime == Regime::V1 {
                return Place::default();
            }
            // In the task's own cgroup there is no process then; it has the cores of the task, as that of any other driver.
            let own = if self.settings.host.makes_cgroups { String::new() } else { path(&task.cgroup) };
            let slice = slice::of(&task.alloc_id, &task.name);
            return if Systemd::of_system().is_offered() {
                Place { parent: slice.clone(), own, slice }
            } else {
                Place { parent: slice::SHARED.to_owned(), own, slice: String::new() }
            };
        }
        let own = if self.settings.host.makes_cgroups {
            match regime {
                Regime::V2 => self.settings.cgroups.relative(&task.cpuset_cgroup).unwrap_or_default(),
                _ => PathBuf::from(format!("nomad/{}.{}", task.alloc_id, task.name)),
            }
        } else {
            task.cgroup.clone()
        };
        Place { parent: path(&own), own: path(&own), slice: String::new() }
    }

    /// The path of the container's own cgroup.
    fn cgroup(parent: &str, info: &Info, id: &str) -> String {
        if info.cgroup_driver == "systemd" {
            let slice = if parent.is_empty() { "system.slice" } else { parent };
            return format!("{}/docker-{id}.scope", slice::path(slice));
        }
        let parent = parent.trim_matches('/');
        format!("{}/{id}", if parent.is_empty() { "docker" } else { parent })
    }

    /// The destination of the output, and writers that keep its readers waiting until there is output.
    async fn target(&self, task: &TaskConfig, config: &Config) -> Result<(Option<Target>, Vec<Writer>), DriverError> {
        if config.disable_log_collection {
            return Ok((None, Vec::new()));
        }
        if self.settings.host.hands_on_logs {
            if Reader::any(NAME, &task.config).has("logs") {
                let text = "logs belongs into the task, beside its config, and not into it";
                return Err(Reader::any(NAME, &task.config).error("logs", text));
            }
            return Ok((task.logs.clone().map(Target::Files), Vec::new()));
        }
        let wanted = [wanted_fifo(&task.stdout_path).await, wanted_fifo(&task.stderr_path).await];
        if wanted.iter().any(Reader_::is_wanted) {
            let fifos = wanted.iter().any(|wanted| matches!(wanted, Reader_::Fifo(_)));
            let held = wanted.into_iter().filter_map(|wanted| match wanted {
                Reader_::Fifo(writer) => Some(writer),
                _ => None,
            });
            let target = Target::Fifos(task.stdout_path.clone().into(), task.stderr_path.clone().into());
            return Ok((fifos.then_some(target), held.collect()));
        }
        if !config.collect_logs {
            return Ok((None, Vec::new()));
        }
        let logs = agent_logs(task, &Reader::any(NAME, &task.config))?;
        Ok((Some(Target::Files(logs)), Vec::new()))
    }

    /// The start can be cancelled as long as no container may exist.
    async fn start(
        self: &Arc<Self>,
        task: &TaskConfig,
        given_up: &mut watch::Receiver<bool>,
    ) -> Result<TaskHandle, DriverError> {
        self.refused.check()?;
        self.learn(task);
        let (config, read) = (self.config(), Read::read(&task.config)?);
        if !mutant::on("d33") {
            config.policy.check(NAME, &task.config, self.by())?;
        }
        config.policy.check_mounts(NAME, &task.mounts, self.by())?;
        config.policy.check_devices(NAME, &container::devices(task), self.by())?;
        let (target, held) = self.target(task, &config).await?;
        let life = self.life()?;
        let info = unless(given_up, self.info(&life)).await?;
        let place = self.place(task, &config, &info);
        let facts = Facts {
            runtimes: info.runtimes.clone(),
            cgroup_parent: place.parent.clone(),
            compute: *lock(&self.compute),
            swappiness: info.cgroup_version != "2",
            node: task.node_id.clone(),
            removed_by: self.removed_by(),
        };
        let mut task = task.clone();
        let leading = self.leading(&task, &Shared::cgroup(&place.parent, &info, ""));
        if let Some(cgroup) = leading.as_deref().filter(|_| self.settings.host.makes_cgroups) {
            task.resources.cpuset_cpus = cores::read(cgroup, self.settings.host);
        }
        let task = &task;
        let builder = Builder { task, read: &read, config: &config, facts: &facts };
        // Before anything is fetched: a configuration error does not depend on the image.
        builder.body("")?;
        let reference = Reference::parse(&read.image)?;
        for server in read.dns_servers.iter().filter(|server| !container::is_address(server)) {
            self.event(task, &format!("dns_servers: {server:?} is left out, as it is not an IP address"), &[]);
        }
        let sizes = Reader::any(NAME, &task.config).has("logs");
        if sizes && !matches!(target, Some(Target::Files(_))) {
            self.event(task, NO_SIZES, &[]);
        }
        let local = task.alloc_dir.join(&task.name).join("local");
        let wanted = Wanted {
            image: &reference,
            auth: &read.auth,
            auth_soft_fail: read.auth_soft_fail,
            force_pull: read.force_pull,
            timeout: read.image_pull_timeout.unwrap_or(config.image_pull_timeout),
            archive: (!read.load.is_empty()).then_some((local.as_path(), read.load.as_str())),
        };
        let tell = |text: &str| self.event(task, text, &[("image", &reference.name())]);
        let report = |pull: Progressing| match pull {
            Progressing::Begins => tell("Downloading image"),
            Progressing::Is(far) => tell(&format!("Docker image pull progress: {far}")),
        };
        let image = unless(given_up, self.images.get(&life.engine, &config, &wanted, &task.id, &report)).await?;
        // From here on a container may exist: after a crash this file shows that.
        let bookmark = state::bookmark(task);
        drop(Bookmark::open(Some(&bookmark), ""));
        let _used = self.slices.read().await;
        self.make(&place, task).await;
        let oom_kills = oom_kills(&self.settings.cgroups, &place);
        let started = self.start_container(&life, &config, &builder, &image).await;
        let container = match started {
            Ok(container) => container,
            Err(error) => {
                let _ = std::fs::remove_file(&bookmark);
                self.images.release(&life.engine, &config, &image, &task.id);
                self.sweep(&place).await;
                return Err(error);
            }
        };
        let network = network_of(&container, &read, &builder);
        let mut own = Own {
            name: container.name.clone(),
            tty: container.tty,
            image,
            cgroup: Shared::cgroup(&place.parent, &info, &container.id),
            cgroup_parent: place.own,
            slice: place.slice,
            oom_kills,
            ..Own::default()
        };
        own.set_target(target.as_ref());
        let kept = State {
            agentbin: Some(own.clone()),
            reattach_config: None,
            container: container.id.clone(),
            driver_network: network.as_ref().map(state::Network::from),
        };
        let driver_state = match kept.to_bytes() {
            Ok(bytes) => bytes,
            Err(error) => {
                // The error to return is the first one.
                let _retried_later = life.remove_surely(&container.name, &task.id).await;
                return Err(failed(format!("failed to encode the task's state: {error}"), false));
            }
        };
        self.keep(task, &life, &container, own, target, held, network.clone());
        if let Some(cgroup) = leading {
            self.follow_cores(task, cgroup, &task.resources.cpuset_cpus);
        }
        Ok(TaskHandle { driver_state, executor: None, network })
    }

    /// When this succeeds, the container runs or has run; otherwise there is none.
    async fn start_container(
        &self,
        life: &Life,
        config: &Config,
        builder: &Builder<'_>,
        image: &str,
    ) -> Result<Container, DriverError> {
        let (name, body) = (container::name(builder.task), builder.body(image)?);
        let start = &builder.task.id;
        let conflicts = builder.read.container_exists_attempts.unwrap_or(config.container_exists_attempts);
        let mut remade = 0;
        loop {
            let made = life.create(&name, &body, image, conflicts).await?;
            let error = match life.start(&made.id).await {
                Ok(container) => return Ok(container),
                Err(error) => error,
            };
            let removed = life.remove_surely(&name, start).await;
            if let Err(error) = &removed {
                tracing::warn!(%error, name, "a container that could not be started is removed later");
            }
            remade += 1;
            let again = matches!(error, DriverError::Failed { recoverable: true, .. }) && remade < REMADE;
            if removed.is_err() || !again {
                return Err(error);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a start and a recovery have found out")]
    fn keep(
        self: &Arc<Self>,
        task: &TaskConfig,
        life: &Life,
        container: &Container,
        own: Own,
        target: Option<Target>,
        held: Vec<Writer>,
        network: Option<DriverNetwork>,
    ) {
        let (sender, end) = watch::channel(None);
        let (killed, mut is_killed) = watch::channel(false);
        let compute = *lock(&self.compute);
        #[expect(clippy::cast_precision_loss, reason = "MHz")]
        let core_mhz = compute.total_mhz as f64 / f64::from(compute.cores.max(1));
        let mut sampler = Sampler::new(core_mhz);
        // Sampling starts here, so that the first answer to an agent has a CPU share. A read error is ignored here: it occurs
        // again, and is reported, at that answer.
        let _first = TaskCgroup::open(&self.settings.cgroups, Path::new(&own.cgroup))
            .and_then(|cgroup| cgroup.stats(&mut sampler));
        let bookmark = state::bookmark(task);
        let collector = target.map(|target| Collector {
            engine: life.engine.clone(),
            container: container.id.clone(),
            tty: own.tty,
            target,
            bookmark: Some(bookmark.clone()),
            held,
        });
        let kept = Arc::new(Task {
            id: task.id.clone(),
            name: task.name.clone(),
            container: container.id.clone(),
            own,
            pid: container.pid,
            stop_signal: container.stop_signal,
            event: TaskEvent::of(task, ""),
            started_at: container.started_at.unwrap_or_else(SystemTime::now),
            ended_at: Mutex::default(),
            end,
            killed,
            is_stopped: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            network,
            sampler: Mutex::new(sampler),
            waiting: Mutex::default(),
            bookmark,
            shared_cores: Mutex::default(),
        });
        let (life, weak, cgroups) = (life.clone(), Arc::downgrade(&kept), self.settings.cgroups.clone());
        let id = container.id.clone();
        let waiting = crate::sys::task::spawn(async move {
            let lost = |lost: bool| {
                if let Some(task) = weak.upgrade() {
                    task.lost.store(lost, Ordering::Relaxed);
                }
            };
            let mut collecting = collector.map(|collector| AbortOnDrop(crate::sys::task::spawn(collector.run())));
            let is_killed = async {
                let killed = is_killed.wait_for(|killed| *killed).await.is_ok();
                if !killed {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(LAST_WORD).await;
            };
            let (mut end, at, patience) = tokio::select! {
                (end, at) = wait_for_end(&life, &id, lost) => (end, at, LAST_LINES),
                // An engine that does not answer provides no last lines either.
                () = is_killed => {
                    let exit = ExitResult { exit_code: KILLED, ..ExitResult::default() };
                    (Ok(exit), SystemTime::now(), Duration::ZERO)
                }
            };
            if let Some(AbortOnDrop(collecting)) = &mut collecting {
                // The task ends after its last lines. If the reader of the output is away, this does not wait for it.
                let _late = tokio::time::timeout(patience, collecting).await;
            }
            let mut unexplained_since = None;
            if let Some(task) = weak.upgrade() {
                // The engine takes both times by its own clock, and for a short run may report the end before the start.
                *lock(&task.ended_at) = Some(at.max(task.started_at));
                // What the kernel counted holds also where the engine has not noticed it.
                if let Ok(exit) = &mut end {
                    exit.oom_killed |= oom_kills(&cgroups, &task.own.place()) > task.own.oom_kills;
                    let is_explained = exit.oom_killed || task.is_stopped.load(Ordering::Relaxed);
                    unexplained_since = (exit.exit_code == KILLED && !is_explained).then_some(task.started_at);
                }
            }
            if let (Ok(exit), Some(since)) = (&mut end, unexplained_since) {
                let noticed = life.engine.notices_oom(&id, since, at + LATE_NOTICE).await;
                exit.oom_killed = noticed.unwrap_or_else(|error| {
                    tracing::debug!(%error, id, "asking why a container was killed");
                    false
                });
            }
            sender.send_replace(Some(end));
            // A reader that opens the FIFO later still gets the rest.
            if let Some(AbortOnDrop(collecting)) = &mut collecting
                && !collecting.is_finished()
            {
                let _ended = collecting.await;
            }
        });
        *lock(&kept.waiting) = Some(waiting);
        lock(&self.tasks).insert(task.id.clone(), kept);
    }

    async fn recover(self: &Arc<Self>, task: &TaskConfig, driver_state: &[u8]) -> Result<(), DriverError> {
        self.learn(task);
        if lock(&self.tasks).contains_key(&task.id) {
            return Ok(());
        }
        let undecodable = |e: String| failed(format!("failed to decode task state from handle: {e}"), false);
        let state = State::from_bytes(driver_state).map_err(|e| undecodable(e.to_string()))?;
        if state.container.is_empty() {
            return Err(undecodable("it names no container".to_owned()));
        }
        let life = self.life()?;
        let gone = || failed(format!("failed to inspect container {}: it is gone", state.container), false);
        let container = match life.engine.inspect(&state.container).await {
            Ok(found) => found.ok_or_else(gone)?,
            // The container's state is unknown, which is not a reason to start another one.
            Err(error) if error.is_uncertain() => {
                tracing::warn!(%error, id = task.id, "the engine does not answer; the task's container is looked for later");
                Container { id: state.container.clone(), ..Container::default() }
            }
            Err(error) => {
                return Err(failed(format!("failed to inspect container {}: {error}", state.container), false));
            }
        };
        let own = match state.agentbin {
            Some(own) => own,
            // Nomad's own driver left a process that collects the output, and the cgroup to the engine.
            None => Own {
                name: container.name.clone(),
                tty: container.tty,
                image: container.image.clone(),
                cgroup: Shared::cgroup("", &self.info(&life).await.unwrap_or_default(), &container.id),
                ..Own::default()
            },
        };
        self.images.adopt(&self.config(), &own.image, &task.id);
        let (target, leading) = (own.target(), self.leading(task, &own.cgroup));
        self.keep(task, &life, &container, own, target, Vec::new(), state.driver_network.map(DriverNetwork::from));
        let config = self.config();
        if config.disable_log_collection || config.collect_logs {
            self.left.find(task).await;
        }
        if let Some(cgroup) = leading {
            // The cores that it had are not known; the next check sets them on the engine.
            self.follow_cores(task, cgroup, "");
        }
        Ok(())
    }

    /// The container's own cgroup, which contains no other processes, if the engine runs on this machine.
    fn own_cgroup(&self, task: &Task) -> Option<TaskCgroup> {
        let here = matches!(self.config().endpoint, Endpoint::Unix(_));
        // Engines name it after the container's id, which is unique.
        let name = Path::new(&task.own.cgroup).file_name()?.to_str()?;
        let own = task.container.len() == ID_LENGTH && name.contains(&task.container);
        (here && own).then(|| TaskCgroup::open(&self.settings.cgroups, Path::new(&task.own.cgroup)).ok()).flatten()
    }

    /// Last resort of a stop when the engine cannot do it: kills the processes in the container's own cgroup. True when none of
    /// them runs any more.
    async fn kill_without_engine(&self, task: &Task) -> bool {
        let Some(cgroup) = self.own_cgroup(task) else { return false };
        let deadline = Instant::now() + SWEEP_PATIENCE;
        let killing = crate::sys::task::spawn_blocking(move || {
            // If the cgroup is not where it was expected, its processes are not known to be dead.
            if !cgroup.exists() {
                return Ok(false);
            }
            cgroup.kill_all(deadline).map(|()| true)
        });
        match killing.await {
            Ok(Ok(true)) => {
                let (id, name) = (&task.container, &task.own.name);
                tracing::warn!(id, name, "the engine did not stop the container; its processes were killed");
                task.killed.send_replace(true);
                true
            }
            Ok(Ok(false)) | Err(_) => false,
            Ok(Err(error)) => {
                tracing::warn!(%error, id = task.container, "killing a container that its engine does not stop");
                false
            }
        }
    }

    /// Creates what a container is created in, if that is for it alone.
    async fn make(&self, place: &Place, task: &TaskConfig) {
        let (cgroups, own) = (self.settings.cgroups.clone(), place.own.trim_start_matches('/').to_owned());
        let slice = place.slice.clone();
        let what = format!("agentbin: container of task {} in allocation {}", task.name, task.alloc_id);
        let making = crate::sys::task::spawn_blocking(move || {
            if !own.is_empty() {
                TaskCgroup::make_for_engine(&cgroups, Path::new(&own)).map_err(std::io::Error::other)?;
            }
            if slice.is_empty() { Ok(()) } else { Systemd::of_system().make_slice(&slice, &what, SLICE_PATIENCE) }
        });
        // If this fails, the engine creates what is missing.
        if let Ok(Err(error)) = making.await {
            tracing::warn!(%error, ?place, "making the cgroup of a container");
        }
    }

    /// Removes what was created for one container.
    async fn sweep(&self, place: &Place) {
        let (cgroups, slice) = (self.settings.cgroups.clone(), place.slice.clone());
        if cgroups.regime() == Regime::Off {
            return;
        }
        let own = place.own.trim_start_matches('/').to_owned();
        let deadline = Instant::now() + SWEEP_PATIENCE;
        let removing = crate::sys::task::spawn_blocking(move || {
            let stopped =
                if slice.is_empty() { Ok(()) } else { Systemd::of_system().stop_slice(&slice, SWEEP_PATIENCE) };
            if own.is_empty() {
                return stopped;
            }
            stopped.and(TaskCgroup::destroy_at(&cgroups, Path::new(&own), deadline).map_err(std::io::Error::other))
        });
        if let Ok(Err(error)) = removing.await {
            tracing::warn!(%error, ?place, "removing the cgroup of a container");
        }
    }

    async fn destroy(&self, id: &str, force: bool) -> Result<(), DriverError> {
        let (task, life, config) = (self.task(id)?, self.life()?, self.config());
        let running = task.end.borrow().is_none();
        if running && !force {
            let found = life.engine.inspect(&task.container).await.map_err(|e| image::unknown(&e))?;
            if found.is_some_and(|container| container.running) {
                let text = "must call StopTask for the given task before Destroy or set force to true";
                return Err(failed(text.to_owned(), false));
            }
        }
        if config.gc_container {
            if let Err(error) = life.remove_surely(&task.container, id).await {
                // The container is removed once the engine answers; until then it must not continue to run.
                if running {
                    self.kill_without_engine(&task).await;
                }
                return Err(image::unknown(&error));
            }
        } else if running {
            life.stop(&task.container, Duration::ZERO, None).await.map_err(|e| image::unknown(&e))?;
        }
        lock(&self.tasks).remove(id);
        self.left.end(id).await;
        self.images.release(&life.engine, &config, &task.own.image, id);
        if config.gc_container {
            self.sweep(&task.own.place()).await;
        }
        self.unfollow_cores(&task);
        // The cursor is obsolete now; a missing file is fine.
        let _ = std::fs::remove_file(&task.bookmark);
        Ok(())
    }

    /// Who sets the limits on what tasks may ask for.
    fn by(&self) -> By {
        By::of(self.settings.host)
    }

    async fn fingerprint(self: &Arc<Self>) -> Fingerprint {
        if let Some(why) = self.refused.why().or_else(|| self.config().policy.closed(NAME, self.by())) {
            return Fingerprint::without(Health::Undetected, &why);
        }
        if !self.settings.host.removes_containers && self.reconciling.set(()).is_ok() {
            crate::sys::task::spawn(Arc::clone(self).reconcile_for_ever());
        }
        let found = match self.life() {
            Err(error) => return Fingerprint::without(Health::Undetected, &error.to_string()),
            Ok(life) => {
                life.engine.renegotiate();
                life.engine.info().await.map(|info| (life, info))
            }
        };
        let (life, info) = match found {
            Ok(found) => found,
            Err(error) => {
                if self.healthy.swap(false, Ordering::Relaxed) {
                    tracing::warn!(%error, "the engine does not answer");
                }
                let seen = self.detected.load(Ordering::Relaxed);
                let health = if seen { Health::Unhealthy } else { Health::Undetected };
                return Fingerprint::without(health, "Failed to connect to docker daemon");
            }
        };
        if !self.detected.swap(true, Ordering::Relaxed) {
            self.know_sandboxes(&life).await;
        }
        if !self.healthy.swap(true, Ordering::Relaxed) {
            tracing::info!(version = info.version, "the engine answers");
        }
        *lock(&self.info) = Some(info.clone());
        if info.os_type == "windows" {
            return Fingerprint::without(Health::Unhealthy, "the engine runs containers of Windows, and only those");
        }
        let config = self.config();
        let mut fingerprint = Fingerprint::healthy(NAME);
        let mut add = |key: &str, value| fingerprint.attributes.insert(format!("driver.docker.{key}"), value);
        add("version", Attribute::String(info.version.clone()));
        if config.allow_privileged {
            add("privileged.enabled", Attribute::Bool(true));
        }
        if config.pids_limit > 0 {
            add("pids.limit", Attribute::Int(config.pids_limit, String::new()));
        }
        if config.volumes {
            add("volumes.enabled", Attribute::Bool(true));
        }
        add("runtimes", Attribute::String(info.runtimes.join(",")));
        add("os_type", Attribute::String(info.os_type.clone()));
        if !rustix::process::geteuid().is_root() {
            add("cpuset_management.disabled", Attribute::Bool(true));
        }
        if let Ok(gateway) = life.engine.bridge_gateway().await
            && !gateway.is_empty()
        {
            add("bridge_ip", Attribute::String(gateway));
        }
        fingerprint
    }

    /// Registers the containers of groups' networks that an earlier process created.
    async fn know_sandboxes(&self, life: &Life) {
        match life.engine.list(Some(LABEL_ALLOC), false).await {
            Ok(listed) => {
                let is = |names: &[String]| names.iter().any(|name| name.starts_with(network::PREFIX));
                listed.iter().filter(|c| is(&c.names)).for_each(|container| self.know_sandbox(&container.id));
            }
            Err(error) => tracing::debug!(%error, "looking for the containers of groups' networks"),
        }
    }
}

/// Aborts an async task when its owner is dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn network_of(container: &Container, read: &Read, builder: &Builder<'_>) -> Option<DriverNetwork> {
    if container.networks.len() > 1 {
        tracing::warn!(
            name = container.name,
            "the container is in several networks; the first one's address is announced"
        );
    }
    let (network, v4, v6) = container.networks.first()?;
    let is_v6 = read.advertise_ipv6 && !v6.is_empty();
    let ip = if is_v6 { v6 } else { v4 };
    if ip.is_empty() {
        return None;
    }
    // The address in a default network is of use on this machine only, but for one of IPv6 that the job asks for.
    let auto_advertise = is_v6 || (network != "bridge" && network != "nat");
    Some(DriverNetwork { port_map: builder.port_map(), ip: ip.clone(), auto_advertise })
}

/// How and when the container ended. An engine that does not answer proves nothing.
async fn wait_for_end(life: &Life, id: &str, lost: impl Fn(bool)) -> (End, SystemTime) {
    let mut pause = FIRST_PAUSE;
    loop {
        let waited = life.engine.wait(id).await;
        match life.engine.inspect(id).await {
            Ok(None) => {
                let text = "the container was removed by somebody else, and how it ended is not known";
                return (Err(text.to_owned()), SystemTime::now());
            }
            Ok(Some(container)) if !container.running && container.was_started => {
                let exit = ExitResult {
                    exit_code: container.exit_code,
                    signal: 0,
                    oom_killed: container.oom_killed,
                    core_dumped: false,
                };
                return (Ok(exit), container.finished_at.unwrap_or_else(SystemTime::now));
            }
            Ok(Some(_)) => {
                lost(false);
                if waited.is_ok() {
                    // Restarted by the engine's restart policy, or about to be reported as ended.
                    pause = FIRST_PAUSE;
                }
            }
            Err(error) => {
                lost(true);
                tracing::debug!(%error, id, "waiting for a container");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Where a container is created.
#[derive(Debug, Default)]
struct Place {
    /// Its cgroup parent: a path relative to each hierarchy's root, or with systemd the name of a slice. Empty for the engine's.
    parent: String,
    /// Path of the cgroup that exists for this task alone; empty for none.
    own: String,
    /// The slice that exists for this task alone; empty for none.
    slice: String,
}

impl Own {
    fn place(&self) -> Place {
        Place { parent: String::new(), own: self.cgroup_parent.clone(), slice: self.slice.clone() }
    }
}

/// OOM kills counted in the cgroup above that of one container: on v2 also those in the container's own cgroup, which its engine has
/// removed when the end is known. 0 where nothing is counted.
fn oom_kills(cgroups: &CgroupFs, place: &Place) -> u64 {
    let parent = if place.slice.is_empty() { place.own.clone() } else { slice::path(&place.slice) };
    if parent.is_empty() {
        return 0;
    }
    let path = Path::new(parent.trim_start_matches('/'));
    TaskCgroup::open(cgroups, path).and_then(|cgroup| cgroup.oom_kills()).unwrap_or_else(|error| {
        tracing::debug!(%error, parent, "counting the OOM kills of a container");
        0
    })
}

/// Registers a start in progress in the map of those that can be cancelled.
struct Starting<'a> {
    starting: &'a Mutex<BTreeMap<String, watch::Sender<bool>>>,
    id: &'a str,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        lock(self.starting).remove(self.id);
    }
}

/// The engine's answer, unless the start is cancelled first: an engine may take any time to answer.
async fn unless<T>(
    given_up: &mut watch::Receiver<bool>,
    answer: impl Future<Output = Result<T, DriverError>>,
) -> Result<T, DriverError> {
    tokio::select! {
        biased;
        // The sender is dropped only when the start is over.
        Ok(_) = given_up.wait_for(|given_up| *given_up) => Err(failed("the start was given up".to_owned(), false)),
        answered = answer => answered,
    }
}

#[tonic::async_trait]
impl Driver for DockerDriver {
    fn name(&self) -> &str {
        NAME
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(config::schema())
    }

    fn set_config(&self, config: &DriverConfig, node: Option<&NodeConfig>) -> Result<(), DriverError> {
        let read = self.0.refused.note(Config::read(config))?;
        *lock(&self.0.config) = Arc::new(read);
        if let Some(compute) = node.and_then(|node| node.compute) {
            *lock(&self.0.compute) = compute;
        }
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        task::schema()
    }

    fn capabilities(&self) -> Capabilities {
        let config = self.0.config();
        Capabilities {
            send_signals: true,
            exec: true,
            fs_isolation: FsIsolation::Image,
            network_modes: vec![NetworkMode::Host, NetworkMode::Group, NetworkMode::Task],
            must_create_network: true,
            no_mounts: false,
            disable_log_collection: config.disable_log_collection || config.collect_logs,
            dynamic_workload_users: false,
        }
    }

    async fn fingerprint(&self) -> Fingerprint {
        self.0.fingerprint().await
    }

    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        let reader = Reader::any(NAME, config);
        if reader.has("logs") && self.0.settings.host.hands_on_logs {
            return Err(reader.error("logs", "logs belongs into the task, beside its config, and not into it"));
        }
        Read::read(config)?;
        self.0.config().policy.check(NAME, config, self.0.by())
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        let id = &task.id;
        let (give_up, mut given_up) = watch::channel(false);
        {
            let mut starting = lock(&self.0.starting);
            if starting.contains_key(id) {
                return Err(failed(format!("task with ID {id:?} already started"), false));
            }
            starting.insert(id.clone(), give_up);
        }
        // Deregistered also when the caller drops the call in the middle of it.
        let _under_way = Starting { starting: &self.0.starting, id };
        if lock(&self.0.tasks).contains_key(id) {
            return Err(failed(format!("task with ID {id:?} already started"), false));
        }
        self.0.start(task, &mut given_up).await
    }

    fn give_up_start(&self, id: &str) -> bool {
        lock(&self.0.starting).get(id).map(|give_up| give_up.send_replace(true)).is_some()
    }

    async fn recover_task(&self, task: &TaskConfig, driver_state: &[u8]) -> Result<(), DriverError> {
        self.0.recover(task, driver_state).await
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        let mut end = self.0.task(id)?.end.clone();
        match end.wait_for(Option::is_some).await.map(|end| end.clone()) {
            Ok(Some(Ok(exit))) => Ok(exit),
            Ok(Some(Err(text))) => Err(failed(text, false)),
            Ok(None) | Err(_) => Err(failed("the task was destroyed".to_owned(), false)),
        }
    }

    fn exit_message(&self, exit: &ExitResult) -> Option<String> {
        match exit.exit_code {
            _ if exit.oom_killed => Some("OOM Killed".to_owned()),
            0 => None,
            code => Some(format!("Docker container exited with non-zero exit code: {code}")),
        }
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        let (task, life) = (self.0.task(id)?, self.0.life()?);
        if task.end.borrow().is_some() {
            return Ok(());
        }
        if let Some(sent) = signal.or(task.stop_signal).filter(|_| !timeout.is_zero()) {
            self.0.tell_of_dropped(&task, sent);
        }
        task.is_stopped.store(true, Ordering::Relaxed);
        let stopping = async {
            let signal = signal.map(Signal::number);
            life.stop(&task.container, timeout, signal).await.map_err(|e| image::unknown(&e))
        };
        let mut stopping = std::pin::pin!(stopping);
        let patience = timeout.saturating_add(self.0.config().deadlines.change);
        match tokio::time::timeout(patience, &mut stopping).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) if self.0.kill_without_engine(&task).await => Ok(()),
            Ok(Err(error)) => Err(error),
            // The container may have ended meanwhile: the stop's answer is still awaited.
            Err(_) => stopping.await,
        }
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        self.0.destroy(id, force).await
    }

    async fn inspect_task(&self, id: &str) -> Result<TaskStatus, DriverError> {
        let task = self.0.task(id)?;
        let end = task.end.borrow().clone();
        let state = match &end {
            Some(Ok(_)) => TaskState::Exited,
            Some(Err(_)) => TaskState::Unknown,
            None if task.lost.load(Ordering::Relaxed) => TaskState::Unknown,
            None => TaskState::Running,
        };
        let completed_at = *lock(&task.ended_at);
        Ok(TaskStatus {
            id: task.id.clone(),
            name: task.name.clone(),
            state,
            started_at: Some(task.started_at),
            completed_at,
            exit: end.and_then(Result::ok),
            attributes: BTreeMap::from([("container_id".to_owned(), task.container.clone())]),
            network: task.network.clone(),
        })
    }

    /// Read from the files of the container's cgroup, without the engine.
    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        let task = self.0.task(id)?;
        let cgroup = TaskCgroup::open(&self.0.settings.cgroups, Path::new(&task.own.cgroup));
        let read = cgroup.and_then(|cgroup| Ok((cgroup.stats(&mut lock(&task.sampler))?, cgroup.pressure()?)));
        let (total, pressure) =
            read.map_err(|e| failed(format!("failed to read the container's cgroup: {e}"), true))?;
        Ok(TaskStats { time: SystemTime::now(), total, by_pid: BTreeMap::new(), pressure, output: None })
    }

    fn unknown_signal(&self, name: &str) -> Result<Signal, DriverError> {
        let known = Signal::names().collect::<Vec<_>>().join(", ");
        Err(failed(format!("no signal is named {name:?}; the names are {known}"), false))
    }

    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        let (task, life) = (self.0.task(id)?, self.0.life()?);
        self.0.tell_of_dropped(&task, signal);
        life.engine.kill(&task.container, signal.number()).await.map_err(|e| image::unknown(&e))
    }

    async fn update_task(&self, id: &str, limits: NewLimits) -> Result<(), DriverError> {
        self.0.update(id, limits).await
    }

    async fn exec_task(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecTaskResult, DriverError> {
        let (task, life) = (self.0.task(id)?, self.0.life()?);
        exec::run(&life.engine, &task.container, self.0.own_cgroup(&task), command, timeout).await
    }

    async fn kept_output(&self, id: &str, stream: Stream, follow: bool) -> Result<Option<KeptOutput>, DriverError> {
        self.0.kept_output(id, stream, follow).await.map(Some)
    }

    fn exec_streaming(&self) -> ExecStreaming<'_> {
        ExecStreaming::HighLevel(self)
    }

    fn task_events(&self) -> Option<broadcast::Receiver<TaskEvent>> {
        Some(self.0.events.subscribe())
    }

    async fn create_network(&self, alloc_id: &str, hostname: &str) -> Result<(NetworkIsolation, bool), DriverError> {
        self.0.create_network(alloc_id, hostname).await
    }

    async fn destroy_network(&self, alloc_id: &str, network: &NetworkIsolation) -> Result<(), DriverError> {
        self.0.destroy_network(alloc_id, network).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Host;

    /// C2: on v2 what is above a container's cgroup counts for it, also when that is gone.
    #[test]
    fn c2_oom_kills_are_those_of_the_parent() {
        let root = tempfile::tempdir().unwrap();
        let cgroups = CgroupFs::v2(root.path()).unwrap();
        let own =
            |own: &str, slice: &str| Own { cgroup_parent: own.to_owned(), slice: slice.to_owned(), ..Own::default() };
        let places = [own("", ""), own("/nomad/a.web", ""), own("/none", ""), own("/nomad/a.web", "a-b.slice")];
        let parents = ["nomad/a.web", "a.slice/a-b.slice"].map(|parent| root.path().join(parent));
        for parent in &parents {
            std::fs::create_dir_all(parent).unwrap();
        }
        let counted = || places.clone().map(|own| oom_kills(&cgroups, &own.place()));
        assert_eq!(counted(), [0; 4]);
        for (parent, count) in parents.iter().zip([3, 5]) {
            std::fs::write(parent.join("memory.events"), format!("low 0\nhigh 0\nmax 7\noom 4\noom_kill {count}\n"))
                .unwrap();
        }
        // With a slice the container is in it, and the other one holds its cores.
        assert_eq!(counted(), [0, 3, 0, 5]);
    }

    #[test]
    fn e1_the_address_of_a_container_is_announced_where_it_can_be_reached() {
        for (network, v6, asked, expected) in [
            ("bridge", "fd00::2", true, ("fd00::2", true)),
            ("bridge", "", true, ("10.0.0.2", false)),
            ("bridge", "fd00::2", false, ("10.0.0.2", false)),
            ("own", "", false, ("10.0.0.2", true)),
        ] {
            let networks = vec![(network.to_owned(), "10.0.0.2".to_owned(), v6.to_owned())];
            let container = Container { networks, ..Container::default() };
            let (task, read) = (TaskConfig::default(), Read { advertise_ipv6: asked, ..Read::default() });
            let builder = Builder { task: &task, read: &read, config: &Config::default(), facts: &Facts::default() };
            let seen = network_of(&container, &read, &builder).unwrap();
            assert_eq!((seen.ip.as_str(), seen.auto_advertise), expected, "{network} {v6} {asked}");
        }
    }

    /// A container of Nomad's own driver is looked for in the cgroup that its engine gave it.
    #[tokio::test]
    async fn e1_the_cgroup_of_a_container_of_nomads_driver_is_its_engines_choice() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        for (cgroup_driver, expected) in [("systemd", "system.slice/docker-0a.scope"), ("cgroupfs", "docker/0a")] {
            let dir = tempfile::tempdir().unwrap();
            let listener = tokio::net::UnixListener::bind(dir.path().join("sock")).unwrap();
            tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let mut request = vec![0; 16 * 1024];
                    let length = stream.read(&mut request).await.unwrap();
                    let body = if String::from_utf8_lossy(&request[..length]).contains("/info ") {
                        format!("{{\"CgroupDriver\":\"{cgroup_driver}\"}}")
                    } else {
                        r#"{"Id":"0a","State":{"Running":true,"StartedAt":"2026-11-25T10:00:00Z"}}"#.to_owned()
                    };
                    let length = body.len();
                    let head = format!("HTTP/1.1 200 OK\r\nApi-Version: 1.41\r\nContent-Length: {length}\r\n\r\n");
                    stream.write_all((head + &body).as_bytes()).await.unwrap();
                }
            });
            let driver = DockerDriver::new(Settings {
                cgroups: CgroupFs::v2(dir.path()).unwrap(),
                compute: Compute::default(),
                socket_dir: dir.path().to_owned(),
                host: Host::OWN,
            });
            let mut config = DriverConfig::default();
            config.values.insert("endpoint".into(), format!("unix://{}/sock", dir.path().display()).into());
            driver.set_config(&config, None).unwrap();
            let alloc_dir = dir.path().join("alloc");
            let task = TaskConfig { id: "a/web/1".to_owned(), alloc_dir, ..TaskConfig::default() };
            let state = State { container: "0a".to_owned(), ..State::default() };
            driver.recover_task(&task, &state.to_bytes().unwrap()).await.unwrap();
            assert_eq!(driver.0.task(&task.id).unwrap().own.cgroup, expected);
        }
    }

    /// Who starts before the engine may is told to try again; a run says at once that there is none.
    #[tokio::test]
    async fn e1_an_engine_that_is_not_there_is_waited_for_by_those_who_can() {
        let dir = tempfile::tempdir().unwrap();
        for waits_for_engine in [true, false] {
            let driver = DockerDriver::new(Settings {
                cgroups: crate::cgroup::CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap(),
                compute: Compute::default(),
                socket_dir: dir.path().to_owned(),
                host: Host { waits_for_engine, ..Host::OWN },
            });
            let mut config = DriverConfig::default();
            config.values.insert("endpoint".into(), format!("unix://{}/none", dir.path().display()).into());
            driver.set_config(&config, None).unwrap();
            let mut task = TaskConfig { alloc_dir: dir.path().join("alloc"), ..TaskConfig::default() };
            task.config.values.insert("image".into(), "busybox".into());
            let error = driver.start_task(&task).await.unwrap_err();
            assert!(error.to_string().contains("Failed to connect to docker daemon"), "{error}");
            let tries_again = matches!(error, DriverError::Failed { recoverable: true, .. });
            assert_eq!(tries_again, waits_for_engine, "{error:?}");
        }
    }
}
