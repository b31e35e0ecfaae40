//! A service as it is registered with the agent.

use serde::{Deserialize, Serialize};

/// One instance of a service.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ServiceRegistration {
    /// `_nomad-task-<alloc>-<task or group>-<service>-<port>`.
    #[serde(rename = "ID")]
    pub id: String,
    /// The service's name.
    pub service_name: String,
    /// The job's namespace.
    pub namespace: String,
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// Its data center.
    pub datacenter: String,
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// The allocation.
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    /// Labels.
    pub tags: Vec<String>,
    /// Where it is reached.
    pub address: String,
    /// Its port there.
    pub port: u16,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}
