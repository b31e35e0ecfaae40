//! What a decision is made from, and what it is made of.

use std::sync::Arc;

use crate::agent::model::{
    Allocation, CsiClaim, CsiVolume, Deployment, DesiredUpdates, DynamicVolume, Evaluation, JobVersion, Nanos, Node,
};
use crate::jobspec::GroupChange;
use crate::spec;
use crate::spec::collections::BTreeMap;

/// Everything that a decision depends on.
pub struct Input<'a> {
    /// Why something is to be decided; its namespace and job are what is decided about.
    pub eval: &'a Evaluation,
    /// The newest version of the job; `None` where it was purged.
    pub job: Option<(&'a JobVersion, &'a Arc<spec::Job>)>,
    /// A version of the job, as far as it is kept.
    pub version: &'a dyn Fn(u64) -> Option<Arc<spec::Job>>,
    /// What the newest version does to the allocations that a group has of this one: [`crate::jobspec::group_change`].
    pub change: &'a dyn Fn(u64, &str) -> GroupChange,
    /// All allocations of the job that are kept, of all versions.
    pub allocs: &'a [Allocation],
    /// Those of other jobs whose processes may still be there.
    pub others: &'a [Allocation],
    /// The job's newest deployment.
    pub deployment: Option<&'a Deployment>,
    /// The job's evaluations that are blocked.
    pub blocked: &'a [Evaluation],
    /// The node.
    pub node: &'a Node,
    /// The dynamic volumes of all namespaces.
    pub volumes: &'a [DynamicVolume],
    /// The CSI volumes of the job's namespace; empty where the job has none.
    pub csi: &'a CsiState,
    /// The ids and names of allocations that may still write to a volume.
    pub writers: &'a dyn Fn(&DynamicVolume) -> Vec<(String, String)>,
    /// Who, that is not an allocation of the agent, has this port of the host.
    pub holder: &'a dyn Fn(u16) -> Option<String>,
    /// When an allocation had this port last; 0 is never. [`super::PortHistory::last`].
    pub last_used: &'a dyn Fn(u16) -> Nanos,
    /// This moment.
    pub now: Nanos,
    /// A new id.
    pub id: &'a dyn Fn() -> String,
}

/// CSI volumes, and their users.
#[derive(Debug, Clone, Default)]
pub struct CsiState {
    /// The volumes of a namespace by their ids, each with its users, the oldest one first.
    pub volumes: BTreeMap<String, (CsiVolume, Vec<CsiClaim>)>,
    /// How many volumes of a plugin, in all namespaces, have users.
    pub by_plugin: BTreeMap<String, i64>,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The evaluation as it ends.
    pub eval: Evaluation,
    /// New allocations, and old ones with what is wanted of them changed; each id once.
    pub allocs: Vec<Allocation>,
    /// Deployments that came to be or changed.
    pub deployments: Vec<Deployment>,
    /// Evaluations that follow, that wait, and blocked ones that are not needed any more.
    pub evals: Vec<Evaluation>,
    /// By group.
    pub desired: BTreeMap<String, DesiredUpdates>,
    /// The job's newest version is stable from now on.
    pub stable: bool,
}

impl Plan {
    /// Nothing but the evaluation changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allocs.is_empty() && self.deployments.is_empty() && self.evals.is_empty()
    }
}
