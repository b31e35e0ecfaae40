//! A driver with one executor per task: the common part of `exec`, `raw_exec` and `java`.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::broadcast;

use super::config::Reader;
use super::handle::{Host, Settings, Tasks};
use super::host_env::HostEnv;
use super::host_ids::Owners;
use super::left::LeftHelpers;
use super::policy::{self, By, Policy};
use super::refused::Refused;
use super::restrict::{self, Restrictions};
use super::shipping::Shipping;
use super::{
    Capabilities, Driver, DriverError, ExecStreaming, ExecTaskResult, ExecTaskStreamingRaw, Fingerprint, Health,
    NodeConfig, TaskConfig, TaskEvent, TaskHandle, TaskStatus,
};
use crate::cgroup::Regime;
use crate::executor::{ExecRequests, ExecResponses, Isolation, NewLimits};
use crate::logs::fifo::{self, FifoError, Writer};
use crate::logs::ship::{Sink, SinkError};
use crate::spec::{
    DriverConfig, ExitResult, HostIdSpace, LaunchSpec, LogCollection, LogKeeping, Masks, Neighbours, Outlive, Signal,
    TaskStats,
};
use crate::sys::lock::lock;
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

/// The part of a driver on executors that differs between drivers.
#[tonic::async_trait]
pub trait Plan: Send + Sync + Sized + 'static {
    /// Nomad's name of the driver.
    const NAME: &'static str;
    /// The isolation of its tasks' executor.
    const ISOLATION: Isolation;
    /// The plugin's configuration; the default is that of `agentbin run`, which has no plugin block.
    type Config: Default + Send + Sync + 'static;

    /// The schema of the plugin's configuration.
    fn config_schema() -> Spec;

    /// Reads the plugin's configuration.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    fn read_config(config: &DriverConfig) -> Result<Self::Config, DriverError>;

    /// The part of it that all drivers have.
    fn common(config: &Self::Config) -> &Common;

    /// The range of host ids for allocations whose tasks are in a user namespace; `None` to assign no ids.
    fn host_ids(_config: &Self::Config) -> Option<HostIdSpace> {
        None
    }

    /// Whether the users of a task have host ids assigned to their allocation.
    fn has_own_ids(_config: &Self::Config, _task: &DriverConfig) -> bool {
        false
    }

    /// The schema of a task's configuration.
    fn task_config_schema() -> Spec;

    /// What tasks under an agent inherit from the environment of this process; `None` where the agent passes on its own, as it
    /// does for drivers without image isolation.
    fn host_env(_config: &Self::Config) -> Option<&HostEnv> {
        None
    }

    /// The driver's capabilities.
    fn capabilities(config: &Self::Config) -> Capabilities;

    /// Whether tasks can be started. `agents` is the cgroup regime of the agent if this is an agent's plugin.
    async fn fingerprint(config: &Self::Config, agents: Option<Regime>) -> Fingerprint;

    /// Checks the parts of a task's configuration that do not depend on the task.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    fn validate(config: &Self::Config, task: &DriverConfig) -> Result<(), DriverError>;

    /// Fills in the command and the driver's own settings. Environment, user, directory, limits and output are already set in
    /// `spec`.
    ///
    /// # Errors
    /// See [`DriverError`].
    fn plan(config: &Self::Config, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError>;
}

/// Plugin configuration that all drivers have.
#[derive(Debug, Clone, Default)]
pub struct Common {
    /// The executor collects the output, instead of the agent's logmon.
    collect_logs: bool,
    /// The output is not collected at all.
    disable_log_collection: bool,
    /// Additional destinations for the output of all tasks.
    log_sinks: Vec<Sink>,
    /// The kinds of sinks that a task may name itself.
    task_log_sinks: Vec<String>,
    /// The default for tasks that do not set it themselves.
    on_executor_loss: OnExecutorLoss,
    /// What tasks must not ask for.
    pub(super) policy: Policy,
    /// Whether programs are executed that other users may write to.
    allow_writable_programs: bool,
}

/// What happens to a task when its executor is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnExecutorLoss {
    /// The kernel kills the task too.
    #[default]
    Kill,
    /// The task continues to run, and another executor adopts it.
    Adopt,
}

/// Name of the key, in plugin and task configuration.
const ON_EXECUTOR_LOSS: &str = "on_executor_loss";
/// Name of the plugin's key.
const ALLOW_WRITABLE_PROGRAMS: &str = "allow_writable_programs";

impl OnExecutorLoss {
    fn read(reader: &Reader<'_>) -> Result<Option<OnExecutorLoss>, DriverError> {
        match reader.string(ON_EXECUTOR_LOSS)?.as_deref() {
            None | Some("") => Ok(None),
            Some("kill") => Ok(Some(OnExecutorLoss::Kill)),
            Some("adopt") => Ok(Some(OnExecutorLoss::Adopt)),
            Some(other) => {
                let text = format!("on_executor_loss must be \"kill\" or \"adopt\", got {other:?}");
                Err(reader.error(ON_EXECUTOR_LOSS, &text))
            }
        }
    }
}

impl Common {
    /// The keys that it reads.
    pub const KEYS: [&'static str; 8] = [
        "collect_logs",
        "disable_log_collection",
        "log_sinks",
        "task_log_sinks",
        ON_EXECUTOR_LOSS,
        policy::KEYS[0],
        policy::KEYS[1],
        ALLOW_WRITABLE_PROGRAMS,
    ];

    /// Their schema.
    pub fn schema() -> [(&'static str, Spec); 8] {
        let [minimum, allow_drivers] = policy::schema();
        let list = |name| (name, schema::attr(name, "list(string)", false));
        let flag =
            |name, default| (name, schema::with_default(schema::attr(name, "bool", false), Literal::bool(default)));
        [
            flag("collect_logs", true),
            flag("disable_log_collection", false),
            list("log_sinks"),
            list("task_log_sinks"),
            (
                ON_EXECUTOR_LOSS,
                schema::with_default(schema::attr(ON_EXECUTOR_LOSS, "string", false), Literal::string("kill")),
            ),
            minimum,
            allow_drivers,
            flag(ALLOW_WRITABLE_PROGRAMS, false),
        ]
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn read(reader: &Reader<'_>) -> Result<Common, DriverError> {
        let task_log_sinks = reader.strings("task_log_sinks")?;
        if let Some(kind) = task_log_sinks.iter().find(|kind| !Sink::KINDS.contains(&kind.as_str())) {
            let text = format!("task_log_sinks lists kinds of sinks, {}; got {kind:?}", Sink::KINDS.join(", "));
            return Err(reader.error("task_log_sinks", &text));
        }
        let collect_logs = reader.flag("collect_logs")?.unwrap_or(true);
        let disable_log_collection = reader.flag("disable_log_collection")?.unwrap_or(false);
        let on_executor_loss = OnExecutorLoss::read(reader)?.unwrap_or_default();
        let log_sinks = log_sinks(reader)?;
        let policy = Policy { task_log_sinks: task_log_sinks.clone(), ..Policy::read(reader)? };
        let allow_writable_programs = reader.flag(ALLOW_WRITABLE_PROGRAMS)?.unwrap_or(false);
        Ok(Common {
            collect_logs,
            disable_log_collection,
            log_sinks,
            task_log_sinks,
            on_executor_loss,
            policy,
            allow_writable_programs,
        })
    }

    /// Additional destinations for the output of the task with this configuration. Under an agent, the author of a job is not
    /// the operator of the machine, and a sink is written to as the agent's user: a task may name only the kinds that it is
    /// allowed.
    fn sinks_of(&self, reader: &Reader<'_>) -> Result<Vec<Sink>, DriverError> {
        let mut sinks = self.log_sinks.clone();
        for sink in log_sinks(reader)? {
            if !self.task_log_sinks.iter().any(|kind| kind == sink.kind()) {
                let kind = sink.kind();
                let text = format!("log sink {sink} is not allowed: the plugin's task_log_sinks lists no {kind:?}");
                return Err(reader.error("log_sinks", &text));
            }
            sinks.push(sink);
        }
        Ok(sinks)
    }

    /// For the driver's [`Capabilities::disable_log_collection`]: the agent need not collect logs.
    #[must_use]
    pub fn needs_no_logmon(&self) -> bool {
        self.collect_logs || self.disable_log_collection
    }
}

/// The sinks in `log_sinks` of a plugin's or a task's configuration.
///
/// # Errors
/// [`DriverError::Config`], whose text contains none of the secrets in them.
pub fn log_sinks(reader: &Reader<'_>) -> Result<Vec<Sink>, DriverError> {
    let sink = |text: &String| text.parse().map_err(|e: SinkError| reader.error("log_sinks", &e.to_string()));
    reader.strings("log_sinks")?.iter().map(sink).collect()
}

/// Keys of a task's configuration that all drivers have.
pub(super) const TASK_KEYS: [&str; 7] = [
    restrict::TASK_KEYS[0],
    restrict::TASK_KEYS[1],
    restrict::TASK_KEYS[2],
    restrict::TASK_KEYS[3],
    "logs",
    "log_sinks",
    ON_EXECUTOR_LOSS,
];

/// Their schema.
pub(super) fn task_schema() -> Vec<(&'static str, Spec)> {
    let number = |name: &str| schema::attr(name, "number", false);
    let logs = schema::object([
        ("max_files", number("max_files")),
        ("max_file_size", number("max_file_size")),
        ("compress", schema::attr("compress", "bool", false)),
        ("max_age", schema::attr("max_age", "string", false)),
    ]);
    let logs = ("logs", schema::block("logs", false, logs));
    let sinks = ("log_sinks", schema::attr("log_sinks", "list(string)", false));
    let loss = (ON_EXECUTOR_LOSS, schema::attr(ON_EXECUTOR_LOSS, "string", false));
    restrict::task_schema().into_iter().chain([logs, sinks, loss]).collect()
}

/// Nomad's defaults for a task's `logs` block.
const LOG_FILES: u32 = 10;
const LOG_FILE_MIB: u64 = 10;

/// How a task's output is collected under an agent, which does not pass on the task's `logs` block.
pub(super) fn agent_logs(task: &TaskConfig, reader: &Reader<'_>) -> Result<LogCollection, DriverError> {
    let logs = reader.block("logs")?;
    let logs = Reader::new(reader.driver(), &logs, &["max_files", "max_file_size", "compress", "max_age"])?;
    let max_files = logs.limit("max_files")?.map_or(Ok(LOG_FILES), u32::try_from);
    let max_files = max_files.map_err(|_| logs.error("max_files", "max_files is too large"))?;
    let mib = logs.limit("max_file_size")?.unwrap_or(LOG_FILE_MIB);
    let max_age = logs.string("max_age")?.filter(|text| !text.is_empty()).map(|text| {
        humantime::parse_duration(&text).map_err(|e| logs.error("max_age", &format!("{text:?} is not a duration: {e}")))
    });
    Ok(LogCollection {
        dir: task.alloc_dir.join("alloc/logs"),
        stdout_file: format!("{}.stdout", task.name),
        stderr_file: format!("{}.stderr", task.name),
        max_files,
        max_file_size_bytes: mib.saturating_mul(1024 * 1024),
        keeping: LogKeeping { compress: logs.flag("compress")?.unwrap_or(false), max_age: max_age.transpose()? },
    })
}

/// Whether a task's output has a reader.
pub(super) enum Wanted {
    No,
    /// A file, or /dev/null for a job that disables its `logs`.
    File,
    /// A FIFO with a reader.
    Fifo(Writer),
}

impl Wanted {
    pub(super) fn is_wanted(&self) -> bool {
        !matches!(self, Wanted::No)
    }
}

pub(super) async fn wanted_fifo(path: &str) -> Wanted {
    if path.is_empty() {
        return Wanted::No;
    }
    match tokio::time::timeout(Duration::ZERO, fifo::open_writer(Path::new(path))).await {
        Ok(Ok(writer)) => Wanted::Fifo(writer),
        Ok(Err(FifoError::NotAFifo(_))) => Wanted::File,
        // It does not exist, or has no reader.
        Ok(Err(_)) | Err(_) => Wanted::No,
    }
}

/// Event for a strict task that has ports.
const UNREACHABLE: &str = "Nobody reaches the ports of this task: isolation \"strict\" has loopback only; give its group network mode \"bridge\"";

/// Event for a task whose own log sizes have no effect.
pub(super) const NO_SIZES: &str = "The logs block in this task's config has no effect: its log files are not written by agentbin, but by \
    the agent (collect_logs = false of the plugin, or an agent before 1.6), which goes by the logs block beside config, or by nobody \
    (disable_log_collection of the plugin, or disabled = true in that block)";

/// A driver with one executor per task.
#[derive(Debug)]
pub struct OnExecutor<P: Plan> {
    tasks: Tasks,
    shipping: Arc<Shipping>,
    owners: Owners,
    left: LeftHelpers,
    config: Mutex<Arc<P::Config>>,
    refused: Refused,
    /// Whether the owner of the driver is not an agent and recovers its tasks later.
    outlive: bool,
}

impl<P: Plan> OnExecutor<P> {
    /// A driver without tasks.
    #[must_use]
    pub fn new(settings: Settings) -> OnExecutor<P> {
        let tasks = Tasks::new(P::ISOLATION, settings);
        OnExecutor {
            tasks,
            shipping: Shipping::new(),
            owners: Owners::default(),
            left: LeftHelpers::default(),
            config: Mutex::default(),
            refused: Refused::default(),
            outlive: false,
        }
    }

    /// Sets the configuration that holds until the first one is read.
    #[must_use]
    pub(super) fn with_config(self, config: P::Config) -> OnExecutor<P> {
        *lock(&self.config) = Arc::new(config);
        self
    }

    /// Sets whether the owner of the driver recovers its tasks later. Tasks with their own cgroup then also outlive their
    /// executors, unless their configuration says otherwise.
    #[must_use]
    pub fn tasks_outlive(mut self, outlive: bool) -> OnExecutor<P> {
        self.outlive = outlive;
        self.tasks.note_all(outlive);
        self
    }

    fn config(&self) -> Arc<P::Config> {
        Arc::clone(&lock(&self.config))
    }

    fn host(&self) -> Host {
        self.tasks.settings().host
    }

    /// Who sets the limits on what tasks may ask for.
    fn by(&self) -> By {
        By::of(self.host())
    }

    /// Called on signals and scripts, which agents send after they have rewritten a template: now it can be checked whether the
    /// task can read it.
    async fn tell_of_unreadable(&self, id: &str) {
        if self.host().owns_files
            && let Some((task, message)) = self.owners.unreadable(id).await
        {
            self.tasks.tell(&task, message);
        }
    }

    /// Where the task's own `logs` block is available, it is the only one that is accepted.
    fn check_logs(&self, reader: &Reader<'_>) -> Result<(), DriverError> {
        if reader.has("logs") && self.host().hands_on_logs {
            return Err(reader.error("logs", "logs belongs into the task, beside its config, and not into it"));
        }
        Ok(())
    }

    /// The author of a job who is also the operator may name any sink.
    fn sinks(&self, config: &P::Config, task: &DriverConfig) -> Result<Vec<Sink>, DriverError> {
        let reader = Reader::any(P::NAME, task);
        if self.host().has_foreign_jobs { P::common(config).sinks_of(&reader) } else { log_sinks(&reader) }
    }

    /// Whether the task continues to run when its executor is killed.
    fn outlives(&self, config: &P::Config, reader: &Reader<'_>, cgroup: &Path) -> Result<bool, DriverError> {
        let asked = OnExecutorLoss::read(reader)?;
        let settings = self.tasks.settings();
        if asked == Some(OnExecutorLoss::Adopt) && !settings.host.recovers_tasks && !self.outlive {
            let text = "on_executor_loss = \"adopt\" needs an agent, or run --detach: a run in the foreground ends with its tasks";
            return Err(reader.error(ON_EXECUTOR_LOSS, text));
        }
        let has_cgroup = !cgroup.as_os_str().is_empty() && settings.cgroups.regime() != Regime::Off;
        let usual = match P::common(config).on_executor_loss {
            OnExecutorLoss::Kill if self.outlive && has_cgroup => OnExecutorLoss::Adopt,
            said => said,
        };
        Ok(asked.unwrap_or(usual) == OnExecutorLoss::Adopt)
    }

    fn launch_spec(&self, task: &TaskConfig, config: &P::Config, fifos: bool) -> Result<LaunchSpec, DriverError> {
        let reader = Reader::any(P::NAME, &task.config);
        let host = self.host();
        self.check_logs(&reader)?;
        let cgroup = if host.makes_cgroups { self.tasks.agents_cgroup(task) } else { task.cgroup.clone() };
        let common = P::common(config);
        let disabled = common.disable_log_collection;
        let logs = match !host.hands_on_logs && common.collect_logs && !fifos {
            _ if disabled => None,
            true => Some(agent_logs(task, &reader)?),
            false => task.logs.clone(),
        };
        let output = |path: &str| if disabled { "/dev/null".to_owned() } else { path.to_owned() };
        let inherited = P::host_env(config).filter(|_| host.leaves_environment);
        let env = inherited.map_or_else(|| task.env.clone(), |host| host.below(std::env::vars_os(), &task.env));
        let outlives = self.outlives(config, &reader, &cgroup)?;
        let mut spec = LaunchSpec {
            env: env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            user: task.user.clone(),
            task_dir: task.alloc_dir.join(&task.name),
            resources: task.resources.clone(),
            resource_limits: !cgroup.as_os_str().is_empty(),
            cgroup,
            cpuset_cgroup: task.cpuset_cgroup.clone(),
            stdout_path: output(&task.stdout_path),
            stderr_path: output(&task.stderr_path),
            logs,
            outlive: outlives.then(|| Outlive { record: self.tasks.record_of(task), adopt: false }),
            // Tasks that are not named may at least use the shared directory.
            neighbours: if host.names_neighbours { task.neighbours } else { task.neighbours.max(Neighbours::Shared) },
            allow_writable_programs: common.allow_writable_programs,
            network_namespace: task.network.as_ref().map(|network| network.path.clone()).unwrap_or_default(),
            ..LaunchSpec::default()
        };
        Restrictions::read(&reader)?.apply(&mut spec);
        P::plan(config, task, &mut spec)?;
        Ok(spec)
    }
}

#[tonic::async_trait]
impl<P: Plan> Driver for OnExecutor<P> {
    fn name(&self) -> &str {
        P::NAME
    }

    fn has_own_ids(&self, config: &DriverConfig) -> bool {
        P::has_own_ids(&self.config(), config)
    }

    fn enters_users_network(&self) -> bool {
        true
    }

    fn gives_notices(&self) -> bool {
        true
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(P::config_schema())
    }

    fn set_config(&self, config: &DriverConfig, node: Option<&NodeConfig>) -> Result<(), DriverError> {
        let read = self.refused.note(P::read_config(config))?;
        *lock(&self.config) = Arc::new(read);
        if let Some(compute) = node.and_then(|node| node.compute) {
            self.tasks.set_compute(compute);
        }
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        P::task_config_schema()
    }

    fn capabilities(&self) -> Capabilities {
        P::capabilities(&self.config())
    }

    async fn fingerprint(&self) -> Fingerprint {
        let config = self.config();
        let closed = self.refused.why().or_else(|| P::common(&config).policy.closed(P::NAME, self.by()));
        if let Some(why) = closed {
            return Fingerprint::without(Health::Undetected, &why);
        }
        let settings = self.tasks.settings();
        P::fingerprint(&config, settings.host.makes_cgroups.then(|| settings.cgroups.regime())).await
    }

    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        let reader = Reader::any(P::NAME, config);
        self.check_logs(&reader)?;
        Restrictions::read(&reader)?;
        self.outlives(&self.config(), &reader, Path::new(""))?;
        self.sinks(&self.config(), config)?;
        P::validate(&self.config(), config)?;
        P::common(&self.config()).policy.check(P::NAME, config, self.by())
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        self.refused.check()?;
        // Claims the id until this task is in the table.
        let _starting = self.tasks.claim(&task.id)?;
        // An agent sets FIFO paths whatever a driver reports, and agents before 1.6 also read from them. They are kept open
        // until the executor has opened them: a reader that sees its last writer close would end.
        let fifos = [wanted_fifo(&task.stdout_path).await, wanted_fifo(&task.stderr_path).await];
        let config = self.config();
        // Checked first, and not on recovery: running tasks continue when the operator raises the minimum.
        let policy = &P::common(&config).policy;
        policy.check(P::NAME, &task.config, self.by())?;
        policy.check_mounts(P::NAME, &task.mounts, self.by())?;
        if P::ISOLATION == Isolation::Isolated {
            policy.check_devices(P::NAME, &task.devices, self.by())?;
        }
        let mut spec = self.launch_spec(task, &config, fifos.iter().any(Wanted::is_wanted))?;
        let sinks = self.sinks(&config, &task.config)?;
        // A job that disables its logs has /dev/null for both, and no files.
        let collected = spec.logs.is_some() || fifos.iter().any(|wanted| matches!(wanted, Wanted::Fifo(_)));
        let cut_off = spec.own.network && spec.network_namespace.as_os_str().is_empty();
        let told = (P::ISOLATION == Isolation::Isolated).then(|| told_of_root(&spec)).flatten();
        let host = self.host();
        let (owner, of_ids) = Owners::prepare(P::host_ids(&config), task, &mut spec, host.owns_files).await?;
        let unused = !host.hands_on_logs && spec.logs.is_none() && Reader::any(P::NAME, &task.config).has("logs");
        let handle = self.tasks.start(task, spec).await?;
        if unused {
            self.tasks.tell(task, NO_SIZES);
        }
        if let Some(message) = told.filter(|_| host.has_foreign_jobs) {
            self.tasks.tell(task, message);
        }
        if let Some(message) = of_ids {
            self.tasks.tell(task, message);
        }
        if let Some(owner) = owner {
            owner.told(host.owns_files).for_each(|message| self.tasks.tell(task, message));
            self.owners.keep(task, owner);
        }
        if cut_off && task.env.keys().any(|name| name.starts_with("NOMAD_PORT_")) {
            self.tasks.tell(task, UNREACHABLE);
        }
        if !host.ships_output && collected {
            self.shipping.start(task, &sinks).await;
        }
        Ok(handle)
    }

    async fn recover_task(&self, task: &TaskConfig, driver_state: &[u8]) -> Result<(), DriverError> {
        // As for a start, except for log collection, which was decided then.
        let spec = || self.launch_spec(task, &self.config(), false);
        self.tasks.recover(task, driver_state, spec).await?;
        self.owners.recover(P::host_ids(&self.config()), task).await;
        if !self.host().ships_output {
            self.shipping.recover(task, &P::common(&self.config()).log_sinks);
        }
        if P::common(&self.config()).needs_no_logmon() {
            self.left.find(task).await;
        }
        Ok(())
    }

    async fn shutdown(&self) {
        self.shipping.halt().await;
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        self.tasks.wait(id).await
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        self.tasks.stop(id, timeout, signal).await
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        self.tasks.destroy(id, force).await?;
        self.left.end(id).await;
        self.owners.forget(id);
        self.shipping.finish(id);
        Ok(())
    }

    async fn inspect_task(&self, id: &str) -> Result<TaskStatus, DriverError> {
        self.tasks.inspect(id)
    }

    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        self.tasks.stats(id).await
    }

    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        self.tell_of_unreadable(id).await;
        self.tasks.signal(id, signal).await
    }

    async fn update_task(&self, id: &str, limits: NewLimits) -> Result<(), DriverError> {
        self.tasks.update(id, limits).await
    }

    async fn exec_task(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecTaskResult, DriverError> {
        self.tell_of_unreadable(id).await;
        self.tasks.exec(id, command, timeout).await
    }

    fn exec_streaming(&self) -> ExecStreaming<'_> {
        ExecStreaming::Raw(self)
    }

    fn task_events(&self) -> Option<broadcast::Receiver<TaskEvent>> {
        Some(self.tasks.events())
    }
}

#[tonic::async_trait]
impl<P: Plan> ExecTaskStreamingRaw for OnExecutor<P> {
    async fn exec_task_streaming(&self, id: &str, requests: ExecRequests) -> Result<ExecResponses, DriverError> {
        self.tasks.exec_streaming(id, requests).await
    }
}

/// The event that tells a job with a root task about its restrictions.
fn told_of_root(spec: &LaunchSpec) -> Option<&'static str> {
    let tight = spec.masks == Masks::All && spec.user == "root";
    tight.then_some(
        "A root task gives no file set-id bits or capabilities (cap_add = [\"fsetid\", \"setfcap\"] does), and reads in the \
         host's /etc what everybody may read; isolation = \"nomad\" brings stock behaviour back",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D11, D13: a root task gets an event about its restrictions, except where there are none that it could notice.
    #[test]
    fn a_root_task_is_told_what_it_may_not() {
        for (user, masks, told) in
            [("root", Masks::All, true), ("nobody", Masks::All, false), ("root", Masks::Nomad, false)]
        {
            let spec = LaunchSpec { user: user.to_owned(), masks, ..LaunchSpec::default() };
            assert_eq!(told_of_root(&spec).is_some(), told, "{user} {masks:?}");
        }
    }
}
