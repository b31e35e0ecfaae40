//! The state that Nomad's own drivers on an executor (`exec`, `raw_exec`, `java`) keep of a task, so that agentbin can take
//! over a task that one of them started, and vice versa.
//!
//! The names are Go's. Empty values are written as nil, as Go writes unset ones.

use serde::{Deserialize, Serialize, Serializer};

use crate::plugin::ReattachConfig;
use crate::spec::collections::BTreeMap;
use crate::wire::msgpack::{self, GoTime};

/// The state in a task's handle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GoDriverState {
    /// Only in the state of agentbin's own drivers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agentbin: Option<OwnState>,
    /// Where the task's executor listens.
    pub reattach_config: Option<ReattachConfig>,
    /// The task.
    pub task_config: Option<GoTaskConfig>,
    /// Pid of the task's main process.
    pub pid: i64,
    /// When it was started.
    pub started_at: GoTime,
}

impl GoDriverState {
    /// Reads the state that a Go driver left in a task's handle.
    ///
    /// # Errors
    /// The bytes were not written by a Go driver on an executor.
    pub fn from_bytes(bytes: &[u8]) -> Result<GoDriverState, msgpack::Error> {
        msgpack::from_slice(bytes)
    }

    /// The bytes that a Go driver writes.
    ///
    /// # Errors
    /// The start time has a zone without a binary form.
    pub fn to_bytes(&self) -> Result<Vec<u8>, msgpack::Error> {
        msgpack::to_vec(self)
    }
}

/// agentbin's part, to identify the executor reliably and to clean up after it. Go's drivers ignore it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct OwnState {
    /// Start time of the executor, in clock ticks since boot.
    pub start_ticks: u64,
    /// The boot in which it was started.
    pub boot_id: String,
    /// The task's cgroup relative to each hierarchy's root; empty for none.
    pub cgroup: String,
    /// Path of the record by which the task is adopted when its executor was killed; empty for a task that is killed with it.
    pub record: String,
}

/// A task as Go's drivers store it: everything but its `config`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoTaskConfig {
    #[serde(rename = "ID")]
    pub id: String,
    pub job_name: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub task_group_name: String,
    #[serde(rename = "ParentJobID")]
    pub parent_job_id: String,
    pub name: String,
    pub namespace: String,
    pub node_name: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    #[serde(serialize_with = "map")]
    pub env: BTreeMap<String, String>,
    #[serde(serialize_with = "map")]
    pub device_env: BTreeMap<String, String>,
    pub resources: Option<GoResources>,
    #[serde(serialize_with = "list")]
    pub devices: Vec<GoDevice>,
    #[serde(serialize_with = "list")]
    pub mounts: Vec<GoMount>,
    pub user: String,
    pub alloc_dir: String,
    pub stdout_path: String,
    pub stderr_path: String,
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    pub network_isolation: Option<GoNetworkIsolation>,
    #[serde(rename = "DNS")]
    pub dns: Option<GoDns>,
}

/// What a task may use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GoResources {
    /// As the job asked for them.
    pub nomad_resources: Option<GoAllocatedResources>,
    /// As they are enforced.
    pub linux_resources: Option<GoLinuxResources>,
    /// Ports of the allocation.
    pub ports: Option<Vec<GoPortMapping>>,
}

/// Resources as the job asked for them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoAllocatedResources {
    pub cpu: GoCpu,
    pub memory: GoMemory,
    #[serde(serialize_with = "list")]
    pub networks: Vec<GoNetwork>,
    #[serde(serialize_with = "list")]
    pub devices: Vec<GoAllocatedDevice>,
}

/// Compute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct GoCpu {
    /// MHz.
    pub cpu_shares: i64,
    /// Cores for this task alone.
    #[serde(serialize_with = "list")]
    pub reserved_cores: Vec<u16>,
}

/// Memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GoMemory {
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// MiB; 0 is as `memory_mb`, -1 no limit.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
}

/// A device of a device plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoAllocatedDevice {
    pub vendor: String,
    pub r#type: String,
    pub name: String,
    #[serde(rename = "DeviceIDs", serialize_with = "list")]
    pub device_ids: Vec<String>,
}

/// A network of the job. What is empty is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoNetwork {
    #[serde(skip_serializing_if = "is_default")]
    pub mode: String,
    #[serde(skip_serializing_if = "is_default")]
    pub device: String,
    #[serde(rename = "CIDR", skip_serializing_if = "is_default")]
    pub cidr: String,
    #[serde(rename = "IP", skip_serializing_if = "is_default")]
    pub ip: String,
    #[serde(skip_serializing_if = "is_default")]
    pub hostname: String,
    #[serde(rename = "MBits", skip_serializing_if = "is_default")]
    pub mbits: i64,
    #[serde(rename = "DNS", skip_serializing_if = "is_default")]
    pub dns: Option<GoDns>,
    #[serde(skip_serializing_if = "is_default")]
    pub reserved_ports: Vec<GoPort>,
    #[serde(skip_serializing_if = "is_default")]
    pub dynamic_ports: Vec<GoPort>,
}

/// A port of a network. What is empty is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoPort {
    #[serde(skip_serializing_if = "is_default")]
    pub label: String,
    #[serde(skip_serializing_if = "is_default")]
    pub value: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub to: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub host_network: String,
    #[serde(skip_serializing_if = "is_default")]
    pub ignore_collision: bool,
}

/// A port of the allocation. What is empty is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoPortMapping {
    #[serde(skip_serializing_if = "is_default")]
    pub label: String,
    #[serde(skip_serializing_if = "is_default")]
    pub value: i64,
    #[serde(skip_serializing_if = "is_default")]
    pub to: i64,
    #[serde(rename = "HostIP", skip_serializing_if = "is_default")]
    pub host_ip: String,
    #[serde(skip_serializing_if = "is_default")]
    pub ignore_collision: bool,
}

/// Resources as they are enforced.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoLinuxResources {
    #[serde(rename = "CPUPeriod")]
    pub cpu_period: i64,
    #[serde(rename = "CPUQuota")]
    pub cpu_quota: i64,
    #[serde(rename = "CPUShares")]
    pub cpu_shares: i64,
    pub memory_limit_bytes: i64,
    #[serde(rename = "OOMScoreAdj")]
    pub oom_score_adj: i64,
    pub cpuset_cpus: String,
    pub cpuset_cgroup_path: String,
    pub percent_ticks: f64,
}

/// A device node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoDevice {
    pub task_path: String,
    pub host_path: String,
    pub permissions: String,
}

/// A bind mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoMount {
    pub request_name: String,
    pub task_path: String,
    pub host_path: String,
    pub readonly: bool,
    pub propagation_mode: String,
    #[serde(rename = "SELinuxLabel")]
    pub selinux_label: String,
}

/// The network that the task is put into.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoNetworkIsolation {
    /// `host`, `group`, `task` or `none`.
    pub mode: String,
    pub path: String,
    #[serde(serialize_with = "map")]
    pub labels: BTreeMap<String, String>,
    pub hosts_config: Option<GoHosts>,
}

/// An entry of the task's hosts file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoHosts {
    pub hostname: String,
    pub address: String,
}

/// A `dns` block.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the fields of Nomad's task, by its names")]
pub struct GoDns {
    #[serde(serialize_with = "list")]
    pub servers: Vec<String>,
    #[serde(serialize_with = "list")]
    pub searches: Vec<String>,
    #[serde(serialize_with = "list")]
    pub options: Vec<String>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn list<S: Serializer, T: Serialize>(items: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    Some(items).filter(|items| !items.is_empty()).serialize(serializer)
}

fn map<S: Serializer>(map: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    Some(map).filter(|map| !map.is_empty()).serialize(serializer)
}
