//! Values of the driver interface: capabilities, fingerprint, task configuration, handle, status, events.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::executor::Compute;
use crate::logs::notices::Notices;
use crate::plugin::Reattach;
use crate::spec::collections::BTreeMap;
use crate::spec::{Device, DriverConfig, ExitResult, LogCollection, Mount, Neighbours, Resources};

/// How a driver isolates the file system of a task; decides which paths the task's environment names and what the agent
/// puts into the task's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsIsolation {
    /// The task sees the host's files; `NOMAD_*_DIR` are host paths.
    #[default]
    None,
    /// The agent fills the task's directory with a copy of the host's programs and libraries; `NOMAD_*_DIR` are `/alloc`,
    /// `/local`, `/secrets`.
    Chroot,
    /// The driver provides the root; paths as for `Chroot`, nothing is copied.
    Image,
    /// The task sees the host's files through a path filter; `NOMAD_*_DIR` are host paths.
    Unveil,
}

/// Whose network a task uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum NetworkMode {
    /// The host's.
    #[default]
    Host,
    /// One namespace for all tasks of the group.
    Group,
    /// One namespace for the task alone.
    Task,
    /// A namespace with nothing but loopback.
    None,
}

/// What a driver can do: Nomad's driver capabilities, every field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// [`Driver::signal_task`](super::Driver::signal_task) works.
    pub send_signals: bool,
    /// Commands can be run inside a task.
    pub exec: bool,
    /// See [`FsIsolation`].
    pub fs_isolation: FsIsolation,
    /// Networks that a task can be put into; an empty list means the host's only.
    pub network_modes: Vec<NetworkMode>,
    /// The agent asks the driver to make the group's network.
    pub must_create_network: bool,
    /// Host paths cannot be mounted into a task.
    pub no_mounts: bool,
    /// The driver collects the tasks' output itself; the agent starts no logmon.
    pub disable_log_collection: bool,
    /// Whether a task can run as a dynamic user that the agent allocates.
    pub dynamic_workload_users: bool,
}

/// An attribute of a driver, as the agent publishes it for the node.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    /// Text.
    String(String),
    /// A boolean.
    Bool(bool),
    /// An integer and its unit (may be empty).
    Int(i64, String),
    /// A number and its unit (may be empty).
    Float(f64, String),
}

impl fmt::Display for Attribute {
    /// In the form in which agents publish node attributes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::String(text) => f.write_str(text),
            Attribute::Bool(value) => write!(f, "{value}"),
            Attribute::Int(value, unit) => write!(f, "{value}{unit}"),
            Attribute::Float(value, unit) => write!(f, "{value}{unit}"),
        }
    }
}

/// Whether tasks can be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Health {
    /// Not available on this machine.
    #[default]
    Undetected,
    /// Available but not working.
    Unhealthy,
    /// Ready.
    Healthy,
}

/// A driver's fingerprint.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fingerprint {
    /// Published as node attributes, such as `driver.exec`.
    pub attributes: BTreeMap<String, Attribute>,
    /// See [`Health`].
    pub health: Health,
    /// The reason, for users.
    pub description: String,
    /// The fingerprint itself failed; the driver counts as unhealthy.
    pub error: String,
}

impl Fingerprint {
    /// The driver works; sets the attribute `driver.<name>`.
    #[must_use]
    pub fn healthy(name: &str) -> Fingerprint {
        let attributes = BTreeMap::from([(format!("driver.{name}"), Attribute::Bool(true))]);
        Fingerprint { attributes, health: Health::Healthy, description: "Healthy".to_owned(), error: String::new() }
    }

    /// The driver is not available or does not work, and why.
    #[must_use]
    pub fn without(health: Health, description: &str) -> Fingerprint {
        Fingerprint { health, description: description.to_owned(), ..Fingerprint::default() }
    }
}

/// The node's configuration for a driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeConfig {
    /// The node's compute; `None` when the agent does not report it.
    pub compute: Option<Compute>,
    /// Range of ports for helpers that listen on TCP.
    pub ports: (u32, u32),
}

/// The network that a task is put into.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct NetworkIsolation {
    /// Whose network.
    pub mode: NetworkMode,
    /// Namespace to join; empty is the host's.
    pub path: PathBuf,
    /// Values that the creator of the network needs to remove it.
    pub labels: BTreeMap<String, String>,
    /// Host name and address for the task's hosts file.
    pub hosts: Option<(String, String)>,
}

/// A task's `dns` block.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Dns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Resolver options.
    pub options: Vec<String>,
}

/// A port of the allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Its label in the job file.
    pub label: String,
    /// The host's port.
    pub value: u16,
    /// The port inside the network namespace; 0 means the same.
    pub to: u16,
    /// The host's address.
    pub host_ip: Option<IpAddr>,
}

/// A task as a driver gets it: everything interpolated, all paths final.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskConfig {
    /// `<alloc id>/<task>/<8 hex digits>`, new for each start.
    pub id: String,
    /// Task name.
    pub name: String,
    /// Task group.
    pub group: String,
    /// Job id.
    pub job_id: String,
    /// Id of the periodic or parameterized job that this one is an instance of.
    pub parent_job_id: String,
    /// Job name.
    pub job_name: String,
    /// Job's namespace.
    pub namespace: String,
    /// Name of the node.
    pub node_name: String,
    /// Id of the node.
    pub node_id: String,
    /// Allocation id.
    pub alloc_id: String,
    /// The driver's own configuration, interpolated.
    pub config: DriverConfig,
    /// Complete environment.
    pub env: BTreeMap<String, String>,
    /// The variables in it that are of the agent's device plugins. A job cannot set these.
    pub device_env: BTreeMap<String, String>,
    /// User to run as; empty is the driver's default.
    pub user: String,
    /// Limits.
    pub resources: Resources,
    /// Share of the node's compute that the task asked for, 0 to 1.
    pub percent_ticks: f64,
    /// Ports of the allocation.
    pub ports: Vec<Port>,
    /// Ports of the task's own network, which jobs used before groups had networks.
    pub task_ports: Vec<Port>,
    /// Cgroup of the task relative to each hierarchy's root; empty for none.
    pub cgroup: PathBuf,
    /// The cgroup that an agent made for the task: v2 its scope, v1 the cpuset that it shares. Absolute; empty for none.
    pub cpuset_cgroup: PathBuf,
    /// The allocation's directory: `<data>/alloc/<alloc id>`. The task's own directory is `<alloc_dir>/<name>`.
    pub alloc_dir: PathBuf,
    /// Who else writes below the allocation's directory.
    pub neighbours: Neighbours,
    /// Extra bind mounts.
    pub mounts: Vec<Mount>,
    /// Extra devices.
    pub devices: Vec<Device>,
    /// Where the driver collects the output; `None` leaves it to the paths below.
    pub logs: Option<LogCollection>,
    /// Given of what is written to those files, by a driver that does so ([`Driver::gives_notices`](super::Driver::gives_notices)).
    pub notices: Option<Notices>,
    /// Where stdout goes when the driver does not collect it: a FIFO or a file; empty discards it.
    pub stdout_path: String,
    /// The same for stderr.
    pub stderr_path: String,
    /// `None` is the host's network.
    pub network: Option<NetworkIsolation>,
    /// `None` is the host's resolver.
    pub dns: Option<Dns>,
}

/// The network of a task as its driver sees it, if it differs from the allocation's.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct DriverNetwork {
    /// Host ports by label.
    pub port_map: BTreeMap<String, u16>,
    /// The task's address.
    pub ip: String,
    /// Services of the task are announced at this address.
    pub auto_advertise: bool,
}

/// A started task, and how to recover it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskHandle {
    /// What [`Driver::recover_task`](super::Driver::recover_task) needs; only its driver can read it.
    pub driver_state: Vec<u8>,
    /// The task's executor and its address, for cleaning up after this process; `None` if there is none.
    pub executor: Option<Reattach>,
    /// See [`DriverNetwork`].
    pub network: Option<DriverNetwork>,
}

/// The life cycle state of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TaskState {
    /// Its executor is lost.
    #[default]
    Unknown,
    /// Its main process runs.
    Running,
    /// Its main process has ended.
    Exited,
}

/// What a driver knows about a task.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskStatus {
    /// Task id.
    pub id: String,
    /// Task name.
    pub name: String,
    /// See [`TaskState`].
    pub state: TaskState,
    /// When it was started.
    pub started_at: Option<SystemTime>,
    /// When it ended; `None` while it runs.
    pub completed_at: Option<SystemTime>,
    /// How it ended; `None` while it runs.
    pub exit: Option<ExitResult>,
    /// Further details, such as its `pid`.
    pub attributes: BTreeMap<String, String>,
    /// See [`DriverNetwork`].
    pub network: Option<DriverNetwork>,
}

/// An event of a task for its owner.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskEvent {
    /// Task id.
    pub task_id: String,
    /// Allocation id.
    pub alloc_id: String,
    /// Task name.
    pub task_name: String,
    /// When it happened.
    pub time: SystemTime,
    /// The message, for users.
    pub message: String,
    /// Details.
    pub annotations: BTreeMap<String, String>,
}

impl TaskEvent {
    /// An event of now, without details.
    #[must_use]
    pub fn of(task: &TaskConfig, message: impl Into<String>) -> TaskEvent {
        TaskEvent {
            task_id: task.id.clone(),
            alloc_id: task.alloc_id.clone(),
            task_name: task.name.clone(),
            time: SystemTime::now(),
            message: message.into(),
            annotations: BTreeMap::new(),
        }
    }
}

/// The output of a command that ran inside a task, and how it ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecTaskResult {
    /// Its stdout; the executors mix both streams here and keep the last 4096 bytes.
    pub stdout: Vec<u8>,
    /// Its stderr, where the driver keeps them apart.
    pub stderr: Vec<u8>,
    /// How it ended.
    pub exit: ExitResult,
}

/// Interval at which an agent gets a driver's fingerprint when nothing changes (Nomad's drivers: 30 s).
pub const FINGERPRINT_PERIOD: Duration = Duration::from_secs(30);
