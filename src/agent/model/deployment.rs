//! A deployment: a new version of a service taking the place of the old one.

use serde::{Deserialize, Serialize};

use super::{Nanos, Stamp};
use crate::spec::collections::BTreeMap;

/// Nomad's status of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum DeploymentStatus {
    Initializing,
    Running,
    Paused,
    Failed,
    Successful,
    Cancelled,
    Pending,
    Blocked,
    Unblocking,
}

impl DeploymentStatus {
    /// Nothing comes after it.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, DeploymentStatus::Failed | DeploymentStatus::Successful | DeploymentStatus::Cancelled)
    }
}

/// A group of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DeploymentGroup {
    /// The last stable version comes back when it fails.
    pub auto_revert: bool,
    /// Canaries are promoted by themselves.
    pub auto_promote: bool,
    /// From the job.
    pub progress_deadline: Nanos,
    /// When the next allocation must be healthy.
    pub require_progress_by: Stamp,
    /// The canaries became the real ones.
    pub promoted: bool,
    /// Ids of canaries.
    pub placed_canaries: Vec<String>,
    /// How many there are to be.
    pub desired_canaries: u32,
    /// How many allocations there are to be.
    pub desired_total: u32,
    /// How many there are of the new version.
    pub placed_allocs: u32,
    /// How many of them are healthy.
    pub healthy_allocs: u32,
    /// How many are not, and will not be.
    pub unhealthy_allocs: u32,
}

/// One deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Deployment {
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// The job's namespace.
    pub namespace: String,
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Its version.
    pub job_version: u64,
    /// That version's index.
    pub job_modify_index: u64,
    /// That version's specification's index.
    pub job_spec_modify_index: u64,
    /// The job's index.
    pub job_create_index: u64,
    /// By group.
    pub task_groups: BTreeMap<String, DeploymentGroup>,
    /// See [`DeploymentStatus`].
    pub status: DeploymentStatus,
    /// Why.
    pub status_description: String,
    /// The evaluation's priority.
    #[serde(default)]
    pub eval_priority: i64,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// When it came to be.
    pub create_time: Nanos,
    /// When it changed last.
    pub modify_time: Nanos,
}
