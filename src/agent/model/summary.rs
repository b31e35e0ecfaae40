//! What a job's allocations and children do, counted.

use crate::spec::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The allocations of a group. Those that ended are counted also when they are no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub struct GroupSummary {
    pub queued: u32,
    pub complete: u32,
    pub failed: u32,
    pub running: u32,
    pub starting: u32,
    pub lost: u32,
    pub unknown: u32,
}

/// The jobs that a periodic or parameterized one made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub struct ChildrenSummary {
    pub pending: u64,
    pub running: u64,
    pub dead: u64,
}

/// A job's summary.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobSummary {
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Its namespace.
    pub namespace: String,
    /// By group.
    pub summary: BTreeMap<String, GroupSummary>,
    /// See [`ChildrenSummary`].
    pub children: ChildrenSummary,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
}
