//! Dynamic host volumes, and the claims of groups on them.

use serde::{Deserialize, Serialize};

use super::Nanos;
use crate::spec::collections::BTreeMap;

/// Nomad's state of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeState {
    /// Its plugin has been asked to create it.
    #[default]
    Pending,
    /// Tasks can mount it.
    Ready,
    /// Its plugin could not restore it when the agent started, or is deleting it.
    Unavailable,
}

/// A way in which groups may use a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct VolumeCapability {
    /// `file-system` or `block-device`.
    pub attachment_mode: String,
    /// Such as `single-node-writer`.
    pub access_mode: String,
}

/// A condition on the node of a volume, as it was submitted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VolumeConstraint {
    /// The attribute.
    #[serde(rename = "LTarget")]
    pub left: String,
    /// The value.
    #[serde(rename = "RTarget")]
    pub right: String,
    /// How they are compared.
    #[serde(rename = "Operand")]
    pub operand: String,
}

/// A host volume that was created or registered over the API.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DynamicVolume {
    /// Jobs of other namespaces cannot mount it.
    pub namespace: String,
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// The name that groups use as their source; unique on the node.
    pub name: String,
    /// The plugin that creates and deletes it; empty for none.
    #[serde(rename = "PluginID")]
    pub plugin_id: String,
    /// The node's pool.
    pub node_pool: String,
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// Conditions on the node.
    #[serde(default)]
    pub constraints: Vec<VolumeConstraint>,
    /// Bytes; 0 is any.
    pub requested_capacity_min_bytes: i64,
    /// Bytes; 0 is any.
    pub requested_capacity_max_bytes: i64,
    /// Bytes, as the plugin says; 0 where it does not limit them.
    pub capacity_bytes: i64,
    /// How groups may use it.
    pub requested_capabilities: Vec<VolumeCapability>,
    /// For the plugin.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// The directory that tasks mount; empty before it was created.
    pub host_path: String,
    /// See [`VolumeState`].
    pub state: VolumeState,
    /// It is a directory that its plugin did not create for us.
    #[serde(default)]
    pub registered: bool,
    /// Its plugin has been asked to delete it: if this agent is killed meanwhile, the next one asks again.
    #[serde(default)]
    pub deleting: bool,
    /// Index at which it came to be.
    pub create_index: u64,
    /// When it came to be.
    pub create_time: Nanos,
    /// Index of its last change.
    pub modify_index: u64,
    /// When it changed last.
    pub modify_time: Nanos,
}

/// The claim of a group with a sticky volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct VolumeClaim {
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// The namespace of job and volume.
    pub namespace: String,
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Its group.
    pub task_group_name: String,
    /// The last allocation that was placed with it.
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    /// The volume.
    #[serde(rename = "VolumeID")]
    pub volume_id: String,
    /// Its name.
    pub volume_name: String,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}
