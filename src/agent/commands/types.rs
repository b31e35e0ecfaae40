//! What commands are given, and what they answer: what an answer of Nomad's needs, in no form yet.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::agent::model::{AllocMetric, DesiredUpdates, DrainSpec, Evaluation, JobVersion, Nanos, Submission};

/// A job that somebody submits.
#[derive(Debug, Clone, Default)]
pub struct Register {
    /// The specification in API form.
    pub spec: Map<String, Value>,
    /// The text that it was made from.
    pub submission: Option<Submission>,
    /// The job's modify index must be this one; 0 is that there is no such job.
    pub enforce_index: Option<u64>,
    /// The counts of groups stay as they are.
    pub preserve_counts: bool,
    /// The resources of tasks stay as they are.
    pub preserve_resources: bool,
    /// Of the evaluation; 0 is the job's.
    pub eval_priority: i64,
}

/// What became of a job that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registered {
    /// Empty for a job that does not run itself.
    pub eval_id: String,
    /// Index at which the evaluation came to be.
    pub eval_create_index: u64,
    /// The specification's index.
    pub job_modify_index: u64,
    /// What is odd about the job, for people; lines.
    pub warnings: String,
    /// The index of the change.
    pub index: u64,
}

/// How a job is stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deregister {
    /// It is forgotten, too.
    pub purge: bool,
    /// Of the evaluation; 0 is the job's.
    pub eval_priority: i64,
    /// Its tasks do not wait for their `shutdown_delay`.
    pub no_shutdown_delay: bool,
}

/// An evaluation that a command made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Evaluated {
    /// Empty for none.
    pub eval_id: String,
    /// Index at which it came to be.
    pub eval_create_index: u64,
    /// Of the job.
    pub job_modify_index: u64,
    /// The index of the change.
    pub index: u64,
}

/// What is looked at without being done.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The job as it is, if it is.
    pub old: Option<JobVersion>,
    /// The specification as it would be kept.
    pub new: Map<String, Value>,
    /// What would be done, by group.
    pub desired: BTreeMap<String, DesiredUpdates>,
    /// What could not be placed, by group.
    pub failed: BTreeMap<String, AllocMetric>,
    /// Evaluations that would follow.
    pub created: Vec<Evaluation>,
    /// When a clock would start it next.
    pub next_periodic_launch: Option<Nanos>,
    /// What is odd about the job; lines.
    pub warnings: String,
    /// The specification's index as it is; 0 for a new job.
    pub job_modify_index: u64,
    /// What it was looked at.
    pub index: u64,
}

/// What was found wrong with a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Validated {
    /// One for each mistake.
    pub errors: Vec<String>,
    /// What is odd; lines.
    pub warnings: String,
}

/// A parameterized job is to run with this.
#[derive(Debug, Clone, Default)]
pub struct Dispatch {
    /// What its task finds in a file, base64.
    pub payload: String,
    /// Bytes of that.
    pub payload_bytes: usize,
    /// Over the job's.
    pub meta: BTreeMap<String, String>,
    /// Stands in the name of the job that is made.
    pub id_prefix: String,
    /// Another priority than the job's.
    pub priority: Option<i64>,
    /// The same one makes one job only.
    pub idempotency_token: String,
}

/// A job that was dispatched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dispatched {
    /// The job that was made, or had been.
    pub job_id: String,
    /// Index at which it came to be.
    pub job_create_index: u64,
    /// Its evaluation; empty for a parameterized one that a clock starts.
    pub eval_id: String,
    /// Index at which that came to be.
    pub eval_create_index: u64,
    /// The index of the change.
    pub index: u64,
}

/// How a group is scaled.
#[derive(Debug, Clone, Default)]
pub struct Scale {
    /// The group.
    pub group: String,
    /// `None` only notes the event.
    pub count: Option<i64>,
    /// Why, for people.
    pub message: String,
    /// It tells of something that went wrong; there is no count then.
    pub error: bool,
    /// More of it.
    pub meta: BTreeMap<String, Value>,
    /// The job's modify index must be this one.
    pub enforce_index: Option<u64>,
}

/// A deployment that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeploymentChanged {
    /// Empty for none.
    pub eval_id: String,
    /// Index at which the evaluation came to be.
    pub eval_create_index: u64,
    /// The deployment's index.
    pub deployment_modify_index: u64,
    /// The version that comes back.
    pub reverted_job_version: Option<u64>,
    /// The index of the change.
    pub index: u64,
}

/// A drain that is asked for.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    /// `None` ends the one that goes on.
    pub spec: Option<DrainSpec>,
    /// Without `spec`: the node is eligible again.
    pub mark_eligible: bool,
    /// For people.
    pub meta: BTreeMap<String, String>,
}

/// A node that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeChanged {
    /// Evaluations of jobs that it concerns.
    pub eval_ids: Vec<String>,
    /// Index at which they came to be.
    pub eval_create_index: u64,
    /// The node's index.
    pub node_modify_index: u64,
    /// The index of the change.
    pub index: u64,
}
