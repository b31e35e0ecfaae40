//! The one node.

use serde::{Deserialize, Serialize};

use super::{CsiInfo, Nanos, Stamp};
use crate::spec::collections::BTreeMap;

/// Nomad's status of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum NodeStatus {
    Initializing,
    Ready,
    Down,
}

/// Whether anything may be placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum Eligibility {
    Eligible,
    Ineligible,
}

/// How a node is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DrainSpec {
    /// When what still runs is stopped anyway; 0 never, less than 0 at once.
    pub deadline: Nanos,
    /// Jobs of the system kinds stay.
    pub ignore_system_jobs: bool,
}

/// A drain that goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DrainStrategy {
    /// See [`DrainSpec`].
    pub spec: DrainSpec,
    /// When the deadline is over.
    pub force_deadline: Stamp,
    /// When it began.
    pub started_at: Stamp,
}

/// What became of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum DrainStatus {
    #[default]
    Draining,
    Complete,
    Canceled,
}

/// The newest drain, also when it is over.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct LastDrain {
    /// When it began.
    pub started_at: Stamp,
    /// When somebody changed it last, or it ended.
    pub updated_at: Stamp,
    /// See [`DrainStatus`].
    pub status: DrainStatus,
    /// Whose token asked for it last; empty for none.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    /// What was said with it.
    pub meta: BTreeMap<String, String>,
}

/// A driver as the node has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DriverInfo {
    /// What it says of itself.
    pub attributes: BTreeMap<String, String>,
    /// It is there.
    pub detected: bool,
    /// It works.
    pub healthy: bool,
    /// Why not.
    pub health_description: String,
    /// Since when.
    pub update_time: Stamp,
}

/// Something that happened to the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeEvent {
    /// What.
    pub message: String,
    /// `Cluster`, `Drain`, `Driver`, `Heartbeat`, `Storage`.
    pub subsystem: String,
    /// More of it.
    pub details: BTreeMap<String, String>,
    /// When.
    pub timestamp: Stamp,
    /// Index at which it came to be.
    pub create_index: u64,
}

/// What the machine has; an answer gives it Nomad's nesting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NodeResources {
    /// MHz of all cores.
    pub cpu_mhz: u64,
    /// Cores.
    pub cores: u32,
    /// Numbers of the cores that tasks may have alone.
    pub reservable_cores: Vec<u16>,
    /// MiB.
    pub memory_mb: i64,
    /// MiB.
    pub disk_mb: i64,
    /// What of that is kept from tasks: MHz.
    pub reserved_cpu_mhz: u64,
    /// MiB.
    pub reserved_memory_mb: i64,
    /// MiB.
    pub reserved_disk_mb: i64,
    /// The host's ports that are kept from tasks.
    pub reserved_ports: Vec<u16>,
    /// First port that is given away by itself.
    pub min_dynamic_port: u16,
    /// The last one.
    pub max_dynamic_port: u16,
}

/// The node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Node {
    /// UUID, kept in the data directory.
    #[serde(rename = "ID")]
    pub id: String,
    /// Its name.
    pub name: String,
    /// `dc1` unless configured.
    pub datacenter: String,
    /// May be empty.
    pub node_class: String,
    /// `default` unless configured.
    pub node_pool: String,
    /// Where its API is reached over TCP; empty for nowhere.
    #[serde(rename = "HTTPAddr")]
    pub http_addr: String,
    /// Over TLS.
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
    /// Nomad's names.
    pub attributes: BTreeMap<String, String>,
    /// The operator's: what the configuration says, with what was changed since laid over it.
    pub meta: BTreeMap<String, String>,
    /// What the configuration says.
    #[serde(default)]
    pub static_meta: BTreeMap<String, String>,
    /// What was changed since, over the API; `None` takes a key of the configuration away.
    #[serde(default)]
    pub dynamic_meta: BTreeMap<String, Option<String>>,
    /// See [`NodeResources`].
    pub resources: NodeResources,
    /// By name.
    pub drivers: BTreeMap<String, DriverInfo>,
    /// By name: path and whether it is read-only.
    pub host_volumes: BTreeMap<String, (String, bool)>,
    /// Which of them are dynamic: their ids by name.
    #[serde(default)]
    pub dynamic_volumes: BTreeMap<String, String>,
    /// Controllers of CSI plugins, by the plugins' ids.
    #[serde(default)]
    pub csi_controllers: BTreeMap<String, CsiInfo>,
    /// Node services of CSI plugins, likewise.
    #[serde(default)]
    pub csi_nodes: BTreeMap<String, CsiInfo>,
    /// Names of the host's networks, each with its address: those that are configured, and its interfaces.
    pub host_networks: BTreeMap<String, String>,
    /// Names of those that are configured.
    #[serde(default)]
    pub configured_networks: Vec<String>,
    /// Names of the CNI networks that there are, and whether `bridge` works.
    pub networks: Vec<String>,
    /// `None`: not drained.
    pub drain_strategy: Option<DrainStrategy>,
    /// See [`LastDrain`].
    #[serde(default)]
    pub last_drain: Option<LastDrain>,
    /// Whether anything may be placed.
    pub scheduling_eligibility: Eligibility,
    /// See [`NodeStatus`].
    pub status: NodeStatus,
    /// Why.
    pub status_description: String,
    /// Seconds since 1970.
    pub status_updated_at: i64,
    /// The last ten.
    pub events: Vec<NodeEvent>,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}

impl Node {
    /// Lays what was changed over what the configuration says.
    pub fn lay_meta(&mut self) {
        // What takes away nothing is nothing.
        self.dynamic_meta.retain(|key, value| value.is_some() || self.static_meta.contains_key(key));
        self.meta.clone_from(&self.static_meta);
        for (key, value) in &self.dynamic_meta {
            match value {
                Some(value) => _ = self.meta.insert(key.clone(), value.clone()),
                None => _ = self.meta.remove(key),
            }
        }
    }
}
