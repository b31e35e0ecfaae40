//! A drain: which allocations are asked to go, when it is over, and when to look again.

use crate::agent::model::{Allocation, DrainSpec, DrainStrategy, Nanos, Stamp};
use crate::spec::JobType;

/// What a drain has to do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DrainStep {
    /// Ids of allocations that are to be marked with `migrate`; their jobs are to be evaluated (`node-drain`).
    pub migrate: Vec<String>,
    /// All is gone: the strategy is removed, and the node stays ineligible.
    pub is_done: bool,
    /// When to look again, although nothing happens until then.
    pub next: Option<Nanos>,
}

/// The strategy of a drain that begins.
#[must_use]
pub fn drain_strategy(spec: DrainSpec, now: Nanos) -> DrainStrategy {
    let deadline = (spec.deadline.0 > 0).then(|| now.plus(spec.deadline.duration()));
    DrainStrategy { spec, force_deadline: Stamp(deadline), started_at: Stamp(Some(now)) }
}

/// What a drain does now. Services go at once: there is no other node whose allocations would have to be healthy first. Batch and
/// sysbatch jobs run to their end, until the deadline; system jobs go last, or stay.
#[must_use]
pub fn drain_step<'a>(
    strategy: &DrainStrategy,
    allocs: impl IntoIterator<Item = (&'a Allocation, JobType)>,
    now: Nanos,
) -> DrainStep {
    let spec = strategy.spec;
    let is_forced = spec.deadline.0 < 0 || strategy.force_deadline.0.is_some_and(|until| until <= now);
    let is_system = |kind: JobType| kind == JobType::System;
    let live: Vec<(&Allocation, JobType)> = allocs
        .into_iter()
        .filter(|(alloc, kind)| !(alloc.client_status.is_terminal() || spec.ignore_system_jobs && is_system(*kind)))
        .collect();
    let others_are_gone = live.iter().all(|(_, kind)| is_system(*kind));
    let goes = |alloc: &Allocation, kind: JobType| {
        let is_asked = alloc.is_terminal() || alloc.desired_transition.migrate == Some(true);
        let is_due = match kind {
            JobType::Service => true,
            JobType::Batch | JobType::Sysbatch => is_forced,
            JobType::System => is_forced || others_are_gone,
        };
        is_due && !is_asked
    };
    let migrate = live.iter().filter(|(alloc, kind)| goes(alloc, *kind)).map(|(alloc, _)| alloc.id.clone()).collect();
    let next = strategy.force_deadline.0.filter(|until| !live.is_empty() && *until > now);
    DrainStep { migrate, is_done: live.is_empty(), next }
}
