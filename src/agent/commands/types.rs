//! Parameters and results of commands: the content of Nomad's answers, without their format.

use serde_json::{Map, Value};

use crate::agent::model::{AllocMetric, DesiredUpdates, DrainSpec, Evaluation, JobVersion, Nanos, Submission};
use crate::spec::collections::BTreeMap;

/// A submitted job.
#[derive(Debug, Clone, Default)]
pub struct Register {
    /// The specification in API form.
    pub spec: Map<String, Value>,
    /// The job file that it was made from.
    pub submission: Option<Submission>,
    /// The job's modify index must equal this; 0 means that the job must not exist.
    pub enforce_index: Option<u64>,
    /// Keep the groups' current counts.
    pub preserve_counts: bool,
    /// Keep the tasks' current resources.
    pub preserve_resources: bool,
    /// Priority of the evaluation; 0 uses the job's.
    pub eval_priority: i64,
}

/// The result of changing a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registered {
    /// Empty for a job that does not run itself (a periodic or parameterized one).
    pub eval_id: String,
    /// Create index of the evaluation.
    pub eval_create_index: u64,
    /// The specification's index.
    pub job_modify_index: u64,
    /// Warnings about the job, for users; one per line.
    pub warnings: String,
    /// The index of the change.
    pub index: u64,
}

/// How a job is stopped.
#[derive(Debug, Clone, Copy, Default)]
pub struct Deregister {
    /// Also forget the job.
    pub purge: bool,
    /// Priority of the evaluation; 0 uses the job's.
    pub eval_priority: i64,
    /// Stop its tasks without waiting for their `shutdown_delay`.
    pub no_shutdown_delay: bool,
}

/// An evaluation that a command created.
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

/// The result of a plan, which changes nothing.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The current version of the job, if there is one.
    pub old: Option<JobVersion>,
    /// The specification as it would be stored.
    pub new: Map<String, Value>,
    /// The actions, by group.
    pub desired: BTreeMap<String, DesiredUpdates>,
    /// The allocations that could not be placed, by group.
    pub failed: BTreeMap<String, AllocMetric>,
    /// Evaluations that would be created.
    pub created: Vec<Evaluation>,
    /// The next launch of a periodic job.
    pub next_periodic_launch: Option<Nanos>,
    /// Warnings about the job; one per line.
    pub warnings: String,
    /// The specification's current index; 0 for a new job.
    pub job_modify_index: u64,
    /// The index of the state that the plan is based on.
    pub index: u64,
}

/// The result of validating a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Validated {
    /// One for each mistake.
    pub errors: Vec<String>,
    /// What is odd; lines.
    pub warnings: String,
}

/// Parameters of a dispatch.
#[derive(Debug, Clone, Default)]
pub struct Dispatch {
    /// Content of the payload file, base64.
    pub payload: String,
    /// Decoded size of the payload, in bytes.
    pub payload_bytes: usize,
    /// Metadata that is merged over the job's.
    pub meta: BTreeMap<String, String>,
    /// Part of the new job's id.
    pub id_prefix: String,
    /// Priority that replaces the job's.
    pub priority: Option<i64>,
    /// Dispatches with the same token create one job only.
    pub idempotency_token: String,
}

/// A job that was dispatched.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dispatched {
    /// The job that this dispatch, or an earlier one with its token, created.
    pub job_id: String,
    /// Index at which it came to be.
    pub job_create_index: u64,
    /// Its evaluation; empty for a periodic one.
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
    /// `None` only records the event.
    pub count: Option<i64>,
    /// Why, for people.
    pub message: String,
    /// The event reports an error; then there is no count.
    pub error: bool,
    /// Further details.
    pub meta: BTreeMap<String, Value>,
    /// The job's modify index must equal this, where there is a count.
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
    /// The version that the job was reverted to.
    pub reverted_job_version: Option<u64>,
    /// The index of the change.
    pub index: u64,
}

/// Parameters of a drain.
#[derive(Debug, Clone, Default)]
pub struct Drain {
    /// `None` ends the current drain.
    pub spec: Option<DrainSpec>,
    /// Without `spec`: also make the node eligible.
    pub mark_eligible: bool,
    /// For people.
    pub meta: BTreeMap<String, String>,
    /// Whose token asks for it, as `token:ACCESSOR`; empty for none.
    pub accessor: String,
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
