//! A job with its groups and tasks: what a job file describes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::{
    Constraint, CsiPlugin, GroupScheduling, JobScheduling, JobType, LogKeeping, Pos, Service, Signal, Volume,
    VolumeMount,
};
use crate::spec::collections::BTreeMap;

/// A job: what a job file describes.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Job {
    /// Unique name.
    pub id: String,
    /// Display name; the id unless given.
    pub name: String,
    /// `service` unless given.
    pub kind: JobType,
    /// `global` unless given.
    pub region: String,
    /// `default` unless given.
    pub namespace: String,
    /// 1 to 100.
    pub priority: i64,
    /// Metadata, inherited by groups and tasks.
    pub meta: BTreeMap<String, String>,
    /// Where all of it may run.
    pub constraints: Vec<Constraint>,
    /// What it says to whoever schedules it.
    pub scheduling: JobScheduling,
    /// At least one.
    pub groups: Vec<Group>,
}

impl Job {
    /// The constraints of the job, its groups and its tasks that a machine does not meet, in this order: where each stands, and
    /// why. `lookup` knows `attr.*`, `meta.*` and `node.*` of the machine.
    pub fn unmet<'a>(&'a self, lookup: &'a dyn Fn(&str) -> Option<String>) -> impl Iterator<Item = (&'a Pos, String)> {
        let of_job = std::iter::once((format!("job \"{}\"", self.id), &self.constraints, self.instances()));
        let of_groups = self
            .groups
            .iter()
            .map(|group| (format!("group \"{}\"", group.name), &group.constraints, u64::from(group.count)));
        let of_tasks = self.groups.iter().flat_map(|group| {
            let of_task =
                move |task: &'a Task| (format!("task \"{}\"", task.name), &task.constraints, u64::from(group.count));
            group.tasks.iter().map(of_task)
        });
        // Where nothing runs, nothing has to be met.
        let all = of_job.chain(of_groups).chain(of_tasks).filter(|(_, _, instances)| *instances > 0);
        all.flat_map(move |(owner, constraints, instances)| {
            let unmet = constraints.iter().filter(move |constraint| !constraint.is_met(instances, lookup));
            unmet.map(move |constraint| {
                let why = constraint.explain(instances, lookup);
                (&constraint.pos, format!("constraint in {owner} is not met: {why}"))
            })
        })
    }

    /// Every constraint of the job, its groups and its tasks.
    pub fn all_constraints(&self) -> impl Iterator<Item = &Constraint> {
        let tasks = self.groups.iter().flat_map(|group| &group.tasks).flat_map(|task| &task.constraints);
        self.constraints.iter().chain(self.groups.iter().flat_map(|group| &group.constraints)).chain(tasks)
    }

    fn instances(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.count)).sum()
    }
}

/// Tasks that live together in one allocation.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Group {
    /// Name, unique in the job.
    pub name: String,
    /// How many allocations of it run.
    pub count: u32,
    /// Metadata over the job's.
    pub meta: BTreeMap<String, String>,
    /// Where it may run, beyond what the job says.
    pub constraints: Vec<Constraint>,
    /// Wait before the first task is killed.
    pub shutdown_delay: Duration,
    /// The group's network, if it has one.
    pub network: Option<Network>,
    /// Directories of the host that its tasks may mount.
    pub volumes: Vec<Volume>,
    /// What it says to whoever schedules its job.
    pub scheduling: GroupScheduling,
    /// What all its tasks together offer.
    pub services: Vec<Service>,
    /// At least one main task among them.
    pub tasks: Vec<Task>,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// Network mode of a group.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum NetworkMode {
    /// The host's network.
    #[default]
    Host,
    /// One namespace for the group's tasks, with loopback only.
    None,
    /// One on the built-in bridge.
    Bridge,
    /// One on the CNI network of this name.
    Cni(String),
}

/// As it stands in a job file.
impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NetworkMode::Host => f.write_str("host"),
            NetworkMode::None => f.write_str("none"),
            NetworkMode::Bridge => f.write_str("bridge"),
            NetworkMode::Cni(name) => write!(f, "cni/{name}"),
        }
    }
}

/// What the tasks of a group ask for the addresses of names; an empty list is the host's.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// A group's network.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Network {
    /// Whose network it is.
    pub mode: NetworkMode,
    /// Named ports.
    pub ports: Vec<Port>,
    /// Host name of its tasks; empty is the driver's own choice.
    pub hostname: String,
    /// Where names are asked for.
    pub dns: Option<Dns>,
    /// What the plugins of a CNI network are told besides.
    pub cni_args: BTreeMap<String, String>,
    /// Where the mode stands in the job file, or the block.
    pub pos: Pos,
}

/// A named port of a group, or of a task that has a network of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Port {
    /// Name; `NOMAD_PORT_<label>`.
    pub label: String,
    /// Fixed host port; `None` is chosen from the range of dynamic ports.
    pub static_port: Option<u16>,
    /// The port inside the task's network, where that is not the host's; `None` is the same number as the host's port.
    pub to: Option<u16>,
    /// The host's network whose address has the port; `None` is the default one.
    pub host_network: Option<HostNetwork>,
    /// The fixed port may have other holders: its tasks share it with `SO_REUSEPORT`.
    pub ignore_collision: bool,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// A network of the host as a port names it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct HostNetwork {
    /// Its name, which may refer to the node's attributes.
    pub name: String,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// When in the life of a group a lifecycle task runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's hooks")]
pub enum LifecycleHook {
    Prestart,
    Poststart,
    Poststop,
}

/// The `lifecycle` block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Lifecycle {
    /// When it runs.
    pub hook: LifecycleHook,
    /// Runs beside the main tasks for their whole life instead of once.
    pub sidecar: bool,
}

/// One process with what belongs to it.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Task {
    /// Name, unique in the group.
    pub name: String,
    /// `exec`, `raw_exec`.
    pub driver: String,
    /// The driver's own configuration.
    pub config: DriverConfig,
    /// Environment, not yet interpolated.
    pub env: BTreeMap<String, String>,
    /// User to run as; empty is the driver's default.
    pub user: String,
    /// CPU and memory.
    pub resources: TaskResources,
    /// The network of the task's own, which jobs had before groups had networks; always the host's.
    pub network: Option<Network>,
    /// Log rotation.
    pub logs: LogConfig,
    /// Sent first when the task is killed; `None` is the driver's default (SIGINT).
    pub kill_signal: Option<Signal>,
    /// Time between that signal and SIGKILL.
    pub kill_timeout: Duration,
    /// Wait before the task is killed.
    pub shutdown_delay: Duration,
    /// Restart policy after merging group and task.
    pub restart: RestartPolicy,
    /// `None` for main tasks.
    pub lifecycle: Option<Lifecycle>,
    /// The group ends when this task ends.
    pub leader: bool,
    /// Metadata over the group's.
    pub meta: BTreeMap<String, String>,
    /// Where it may run, beyond what job and group say.
    pub constraints: Vec<Constraint>,
    /// Files rendered before the task starts.
    pub templates: Vec<Template>,
    /// Files fetched before the task starts.
    pub artifacts: Vec<Artifact>,
    /// Volumes of the group that it sees.
    pub volume_mounts: Vec<VolumeMount>,
    /// A file below its `local` directory that gets the payload of a dispatched job.
    pub dispatch_payload: Option<String>,
    /// Set if it is a CSI plugin.
    #[serde(default)]
    pub csi_plugin: Option<CsiPlugin>,
    /// What it offers to others.
    pub services: Vec<Service>,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// A driver's `config` block: any keys, checked by the driver.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct DriverConfig {
    /// Decoded values; a nested block is a list of objects.
    pub values: serde_json::Map<String, serde_json::Value>,
    /// Where each top-level key stands.
    pub positions: BTreeMap<String, Pos>,
    /// Where the block stands.
    pub pos: Pos,
}

/// A task's `resources`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TaskResources {
    /// CPU in MHz.
    pub cpu_mhz: u64,
    /// Cores that the task has for itself, which then say how much CPU that is; 0 shares the others' cores.
    pub cores: u32,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Memory that may be used when there is some, in MiB; 0 none, -1 unlimited.
    pub memory_max_mib: i64,
    /// The size of the file system for its secrets, in MiB, beside its memory; 0 is the default.
    #[serde(default)]
    pub secrets_mib: u32,
}

/// A task's `logs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LogConfig {
    /// Files kept per stream.
    pub max_files: u32,
    /// Size of one file in MiB.
    pub max_file_size_mib: u32,
    /// Collect nothing.
    pub disabled: bool,
    /// What becomes of rotated files: `compress` and `max_age`, which Nomad does not know.
    pub keeping: LogKeeping,
}

/// What happens when the attempts are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RestartMode {
    /// The task has failed.
    Fail,
    /// Wait for the end of the interval and go on.
    Delay,
}

/// A `restart` block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RestartPolicy {
    /// Restarts allowed in one interval.
    pub attempts: u32,
    /// Begins with the first restart.
    pub interval: Duration,
    /// Wait before a restart, lengthened by up to a quarter at random.
    pub delay: Duration,
    /// See [`RestartMode`].
    pub mode: RestartMode,
    /// Before a restart its templates are rendered as before the first start.
    #[serde(default)]
    pub render_templates: bool,
}

/// What a changed template does to its task.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's change modes")]
pub enum ChangeMode {
    Noop,
    Restart,
    Signal(Signal),
    Script(ChangeScript),
}

/// What `change_mode = "script"` runs inside the task.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChangeScript {
    /// The command, not yet interpolated.
    pub command: String,
    /// Its arguments, not yet interpolated.
    pub args: Vec<String>,
    /// How long it may take.
    pub timeout: Duration,
    /// Where it fails, the task ends with it.
    pub fail_on_error: bool,
    /// It also runs once after the task has started with what was rendered before.
    #[serde(default)]
    pub run_on_first_render: bool,
}

/// A `template` block.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Template {
    /// The text to write, unless `source` is given.
    pub data: String,
    /// A file below the task's directory that has the text, not yet interpolated.
    pub source: Option<String>,
    /// Path below the task's directory, not yet interpolated.
    pub destination: String,
    /// File mode.
    pub perms: u32,
    /// The file's `KEY=value` lines join the task's environment.
    pub env: bool,
    /// What is done when it renders to something else.
    pub change_mode: ChangeMode,
    /// It is rendered only until it is there.
    pub once: bool,
    /// Longest wait before that, taken at random.
    pub splay: Duration,
    /// Who the file is given to; `None` leaves it to us.
    pub uid: Option<u32>,
    /// Which group it is given to.
    pub gid: Option<u32>,
    /// `{{` unless given.
    pub left_delimiter: String,
    /// `}}` unless given.
    pub right_delimiter: String,
    /// A missing key is an error instead of `<no value>`.
    pub error_on_missing_key: bool,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// How an artifact's source is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's artifact modes")]
pub enum ArtifactMode {
    Any,
    File,
    Dir,
}

/// An `artifact` block.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Artifact {
    /// What [`Source::parse`](crate::spec::Source::parse) takes, not yet interpolated. A path is absolute, or relative to the
    /// job file's directory.
    pub source: String,
    /// Its parameters beside those that stand in it; the values not yet interpolated.
    pub options: BTreeMap<String, String>,
    /// What each request over http says; the values not yet interpolated.
    pub headers: BTreeMap<String, String>,
    /// Whoever answers is believed to be the one that was asked.
    pub insecure: bool,
    /// The directory that a relative source starts from.
    pub base_dir: PathBuf,
    /// A source outside of it, or behind a symbolic link, is refused.
    pub stays_in_base_dir: bool,
    /// Path below the task's directory, not yet interpolated.
    pub destination: String,
    /// See [`ArtifactMode`].
    pub mode: ArtifactMode,
    /// Give the files to the task's user.
    pub chown: bool,
    /// Where it stands in the job file.
    pub pos: Pos,
}
