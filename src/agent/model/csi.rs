//! CSI volumes, and CSI plugins as the node sees them.

use serde::{Deserialize, Serialize};

use super::{Nanos, Secret, Stamp, VolumeCapability};
use crate::spec::collections::BTreeMap;

/// A part of a storage provider's topology.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CsiTopology {
    /// Values by the provider's names, such as a zone's.
    pub segments: BTreeMap<String, String>,
}

impl CsiTopology {
    /// Whether all that another one says holds here.
    #[must_use]
    pub fn contains(&self, other: &CsiTopology) -> bool {
        other.segments.iter().all(|(name, value)| self.segments.get(name) == Some(value))
    }
}

/// The topologies that a volume was requested with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CsiTopologies {
    /// It has to be accessible from one of them.
    #[serde(default)]
    pub required: Vec<CsiTopology>,
    /// In this order, if possible.
    #[serde(default)]
    pub preferred: Vec<CsiTopology>,
}

/// The confidential part of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CsiHidden {
    /// For the plugin.
    pub secrets: BTreeMap<String, Secret>,
    /// Mount flags, which may contain passwords.
    pub mount_flags: Vec<Secret>,
}

/// A CSI volume that was created or registered over the API.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CsiVolume {
    /// Jobs of other namespaces cannot mount it.
    pub namespace: String,
    /// The name that groups use as their source; unique in the namespace.
    #[serde(rename = "ID")]
    pub id: String,
    /// For people.
    pub name: String,
    /// The plugin's id of it; empty where that is `id`.
    #[serde(rename = "ExternalID")]
    pub external_id: String,
    /// Its plugin.
    #[serde(rename = "PluginID")]
    pub plugin_id: String,
    /// What its author requested.
    #[serde(default)]
    pub requested_topologies: Option<CsiTopologies>,
    /// Where it is accessible; empty for everywhere.
    #[serde(default)]
    pub topologies: Vec<CsiTopology>,
    /// The file system's type; may be empty.
    pub fs_type: String,
    /// For the plugin, at its creation.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// What the plugin wants to be given with it.
    #[serde(default)]
    pub context: BTreeMap<String, String>,
    /// Bytes, as the plugin says.
    pub capacity: i64,
    /// Bytes; 0 is any.
    pub requested_capacity_min: i64,
    /// Bytes; 0 is any.
    pub requested_capacity_max: i64,
    /// How groups may use it.
    pub requested_capabilities: Vec<VolumeCapability>,
    /// The volume that it is a copy of.
    #[serde(rename = "CloneID")]
    pub clone_id: String,
    /// The snapshot that it began with.
    #[serde(rename = "SnapshotID")]
    pub snapshot_id: String,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// When it came to be.
    pub create_time: Nanos,
    /// When it changed last.
    pub modify_time: Nanos,
    /// Sealed in the database, and in no answer.
    #[serde(skip)]
    pub hidden: CsiHidden,
}

impl CsiVolume {
    /// The plugin's id of it.
    #[must_use]
    pub fn remote_id(&self) -> &str {
        if self.external_id.is_empty() { &self.id } else { &self.external_id }
    }

    /// Whether one of its capabilities allows writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.requested_capabilities.iter().any(|one| may_write(&one.access_mode))
    }
}

/// Whether users of an access mode may write, as far as Nomad places them.
#[must_use]
pub fn may_write(access_mode: &str) -> bool {
    !access_mode.is_empty() && !access_mode.ends_with("reader-only")
}

/// An allocation that uses a CSI volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CsiClaim {
    /// Its id.
    pub alloc_id: String,
    /// Its job, in the volume's namespace.
    pub job_id: String,
    /// Whether it writes.
    pub writes: bool,
    /// The access mode of its group's volume.
    pub access_mode: String,
    /// The attachment mode.
    pub attachment_mode: String,
}

/// A node service of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CsiNodeInfo {
    /// The plugin's id of the node.
    #[serde(rename = "ID")]
    pub id: String,
    /// How many volumes it can have.
    pub max_volumes: i64,
    /// Where the node is, in the provider's topology.
    #[serde(default)]
    pub topology: Option<CsiTopology>,
}

/// One of the two services of a CSI plugin, as it was seen last.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CsiInfo {
    /// The allocation that runs it; empty for one that the operator runs.
    #[serde(rename = "AllocID")]
    pub alloc_id: String,
    /// It answers.
    pub healthy: bool,
    /// Why not.
    pub health_description: String,
    /// Since when.
    pub update_time: Stamp,
    /// What it calls itself.
    pub provider: String,
    /// Its version.
    pub provider_version: String,
    /// Its volumes need a controller.
    pub requires_controller: bool,
    /// Its volumes are not accessible from everywhere.
    pub requires_topologies: bool,
    /// What the service can do, in the words of Nomad's API: `SupportsExpand` and the like.
    #[serde(default)]
    pub supports: Vec<String>,
    /// Of a node service.
    #[serde(default)]
    pub node: Option<CsiNodeInfo>,
}

impl CsiInfo {
    /// Whether it has a capability of Nomad's API.
    #[must_use]
    pub fn supports(&self, capability: &str) -> bool {
        self.supports.iter().any(|known| known == capability)
    }
}
