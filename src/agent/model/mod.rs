//! What the agent keeps, in the names and the JSON of Nomad's API: what is written into the database is what is answered,
//! less what an answer adds (an allocation's job) or a reader may not see.

mod alloc;
mod csi;
mod deployment;
mod evaluation;
mod job;
mod namespace;
mod node;
mod service;
mod summary;
mod time;
mod token;
mod variable;
mod volume;

pub use alloc::{
    AllocMetric, AllocatedPort, AllocatedResources, AllocatedShared, AllocatedTask, Allocation, ClientStatus,
    DeploymentHealth, DesiredStatus, DesiredTransition, NetworkStatus, RescheduleEvent, RescheduleTracker, Scores,
    TaskEvent, TaskState, TaskStateName,
};
pub use csi::{CsiClaim, CsiHidden, CsiInfo, CsiNodeInfo, CsiTopologies, CsiTopology, CsiVolume, may_write};
pub use deployment::{Deployment, DeploymentGroup, DeploymentStatus};
pub use evaluation::{DesiredUpdates, EvalStatus, Evaluation, Trigger};
pub use job::{JobStatus, JobVersion, ScalingEvent, Submission, VersionTag};
pub use namespace::Namespace;
pub use node::{
    DrainSpec, DrainStatus, DrainStrategy, DriverInfo, Eligibility, LastDrain, Node, NodeEvent, NodeResources,
    NodeStatus,
};
pub use service::ServiceRegistration;
pub use summary::{ChildrenSummary, GroupSummary, JobSummary};
pub use time::{Nanos, Stamp};
pub use token::{Role, Token};
pub use variable::{Secret, Variable, VariableLock, VariableMeta};
pub use volume::{DynamicVolume, VolumeCapability, VolumeClaim, VolumeConstraint, VolumeState};

/// A namespace and an id in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct JobKey {
    /// The namespace; `default` unless given.
    pub namespace: String,
    /// The job's id.
    pub id: String,
}

/// A job's type in Nomad's word.
mod job_type {
    use serde::{Deserialize as _, Deserializer, Serializer};

    use crate::spec::JobType;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's shape")]
    pub(super) fn serialize<S: Serializer>(kind: &JobType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.as_str())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<JobType, D::Error> {
        let text = String::deserialize(deserializer)?;
        let all = [JobType::Service, JobType::Batch, JobType::System, JobType::Sysbatch];
        let found = all.into_iter().find(|kind| kind.as_str() == text);
        found.ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a type of a job")))
    }
}
