//! The desired state of a group, before it is known whether the node has space for it.

use crate::agent::model::{Allocation, DeploymentGroup, DesiredUpdates, Nanos};

/// An allocation that is stopped.
#[derive(Debug, Clone)]
pub(super) struct Stop<'a> {
    pub(super) alloc: &'a Allocation,
    pub(super) why: &'static str,
}

/// A new allocation.
#[derive(Debug, Clone)]
pub(super) struct Placement<'a> {
    /// Its number in the group.
    pub(super) index: u32,
    /// The allocation that it replaces.
    pub(super) previous: Option<&'a Allocation>,
    /// Description for `previous`, which is stopped only if the new one can be placed; `None` if it is stopped anyway.
    pub(super) replaces: Option<&'static str>,
    /// The version of the job.
    pub(super) version: u64,
    /// It is a canary.
    pub(super) is_canary: bool,
    /// `previous` failed.
    pub(super) is_rescheduled: bool,
    /// It counts as a destructive update.
    pub(super) is_update: bool,
    /// It is placed only instead of one that cannot be placed, so that a full node is updated all the same.
    pub(super) is_spare: bool,
}

/// The desired state of a group.
#[derive(Debug, Default)]
pub(super) struct Decision<'a> {
    pub(super) stops: Vec<Stop<'a>>,
    pub(super) placements: Vec<Placement<'a>>,
    /// Limit of new or updated allocations at the same time, for spare ones.
    pub(super) limit: usize,
    pub(super) in_place: Vec<&'a Allocation>,
    /// Failed ones that are replaced at a later time.
    pub(super) later: Vec<(&'a Allocation, Nanos)>,
    pub(super) desired: DesiredUpdates,
    /// Its part of the deployment, where there is one or has to be.
    pub(super) rollout: Option<DeploymentGroup>,
    /// The deployment only waits for the health of its allocations.
    pub(super) is_settled: bool,
}
