//! An evaluation: that something has to be decided of a job, why, and what came of it.

use serde::{Deserialize, Serialize};

use super::{AllocMetric, Nanos};
use crate::spec::JobType;
use crate::spec::collections::BTreeMap;

/// Nomad's status of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum EvalStatus {
    Blocked,
    Pending,
    Complete,
    Failed,
    Canceled,
}

impl EvalStatus {
    /// Nothing comes after it.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, EvalStatus::Complete | EvalStatus::Failed | EvalStatus::Canceled)
    }
}

/// Why there is an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum Trigger {
    JobRegister,
    JobDeregister,
    PeriodicJob,
    NodeDrain,
    NodeUpdate,
    AllocStop,
    Scheduled,
    RollingUpdate,
    DeploymentWatcher,
    FailedFollowUp,
    MaxPlanAttempts,
    #[serde(rename = "alloc-failure")]
    AllocFailure,
    AllocReschedule,
    QueuedAllocs,
    JobScaling,
    MaxDisconnectTimeout,
    Reconnect,
}

/// What is to become of a group, in the numbers that `job plan` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DesiredUpdates {
    /// Stay as they are.
    pub ignore: u64,
    /// Are new.
    pub place: u64,
    /// Are stopped here and placed anew, as somebody asked for.
    pub migrate: u64,
    /// Are stopped.
    pub stop: u64,
    /// Become the new version as they run.
    pub in_place_update: u64,
    /// Are replaced by the new version.
    pub destructive_update: u64,
    /// Are tried beside the old ones.
    pub canary: u64,
    /// Always 0: one node has nothing to preempt for.
    pub preemptions: u64,
    /// Always 0: the one node is not disconnected from itself.
    pub disconnect: u64,
    /// Always 0.
    pub reconnect: u64,
    /// Failed, and are replaced now.
    pub reschedule_now: u64,
    /// Failed, and are replaced later.
    pub reschedule_later: u64,
}

/// One evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Evaluation {
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// The job's namespace.
    pub namespace: String,
    /// The job's, unless asked for otherwise.
    pub priority: i64,
    /// The job's type.
    #[serde(rename = "Type", with = "super::job_type")]
    pub kind: JobType,
    /// Why.
    pub triggered_by: Trigger,
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Its specification's index.
    pub job_modify_index: u64,
    /// The node, where that is what changed.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// The deployment that it made or goes on with.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// See [`EvalStatus`].
    pub status: EvalStatus,
    /// Why that.
    pub status_description: String,
    /// Nothing is decided before this time has passed.
    pub wait: Nanos,
    /// Nothing is decided before this moment; 0 is at once.
    #[serde(default)]
    pub wait_until_nanos: Nanos,
    /// The one that follows.
    pub next_eval: String,
    /// The one that it follows.
    pub previous_eval: String,
    /// The one that waits for what was missing.
    pub blocked_eval: String,
    /// By group, what could not be placed and why.
    #[serde(rename = "FailedTGAllocs", default)]
    pub failed: BTreeMap<String, AllocMetric>,
    /// By group, what became of it; nothing before that was decided.
    #[serde(default)]
    pub plan_annotations: BTreeMap<String, DesiredUpdates>,
    /// By group, how many wait.
    pub queued_allocations: BTreeMap<String, u32>,
    /// The index of what it was decided on.
    pub snapshot_index: u64,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// When it came to be.
    pub create_time: Nanos,
    /// When it changed last.
    pub modify_time: Nanos,
}
