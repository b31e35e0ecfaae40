//! What is wanted of a group, before it is known whether there is space for it.

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
    /// What it takes the place of.
    pub(super) previous: Option<&'a Allocation>,
    /// What is said of `previous`, which is stopped only where the new one has its place; `None` where it is stopped anyway.
    pub(super) replaces: Option<&'static str>,
    /// The version of the job.
    pub(super) version: u64,
    /// It is tried beside the old ones.
    pub(super) is_canary: bool,
    /// `previous` failed.
    pub(super) is_rescheduled: bool,
    /// It counts as a destructive update.
    pub(super) is_update: bool,
    /// It is placed only instead of one that has no place: what is full is updated all the same.
    pub(super) is_spare: bool,
}

/// What is wanted of a group.
#[derive(Debug, Default)]
pub(super) struct Decision<'a> {
    pub(super) stops: Vec<Stop<'a>>,
    pub(super) placements: Vec<Placement<'a>>,
    /// So many that are new or updated there may be at once, for spare ones.
    pub(super) limit: usize,
    pub(super) in_place: Vec<&'a Allocation>,
    /// Failed ones that are replaced at a later moment.
    pub(super) later: Vec<(&'a Allocation, Nanos)>,
    pub(super) desired: DesiredUpdates,
    /// Its part of the deployment, where there is one or has to be.
    pub(super) rollout: Option<DeploymentGroup>,
    /// Nothing is left to do for the deployment but to wait for health.
    pub(super) is_settled: bool,
}
