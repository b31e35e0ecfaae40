//! What is wanted of a group of a system or sysbatch job: its count on each node, which of a system job is one at most.

use crate::agent::model::{Allocation, ClientStatus, DeploymentGroup, DesiredStatus, Nanos, Node, Trigger};
use crate::jobspec::GroupChange;
use crate::spec::Order as _;
use crate::spec::{Job, JobType};

use super::decision::{Decision, Placement, Stop};
use super::feasible;
use super::group::Facts;
use super::sorted::Rollout;
use super::texts;

/// What the node is to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It takes allocations.
    Open,
    /// It is being drained: the drain says what goes, and until then nothing changes.
    Drained,
    /// It takes nothing new: what runs goes on as long as the job stays as it is.
    Closed,
    /// It is none of those that the job asks for.
    Elsewhere,
}

impl Standing {
    pub(super) fn of(node: &Node, job: &Job) -> Standing {
        if node.drain_strategy.is_some() {
            Standing::Drained
        } else if feasible::elsewhere(node, job).is_some() {
            Standing::Elsewhere
        } else if feasible::closed(node).is_some() {
            Standing::Closed
        } else {
            Standing::Open
        }
    }
}

pub(super) fn decide<'a>(facts: &Facts<'a, '_>, node: &Node, standing: Standing) -> Decision<'a> {
    let mut out = Decision::default();
    // A system job is not queued for a node that takes nothing.
    let may_place = standing == Standing::Open;
    let (mut live, ended): (Vec<&Allocation>, Vec<&Allocation>) =
        facts.allocs.iter().copied().partition(|alloc| !alloc.is_terminal());
    live.order_by_key(|alloc| (!(facts.is_current)(alloc), std::cmp::Reverse(alloc.create_index)));
    let count = facts.group.count;
    let wanted = if facts.kind == JobType::Sysbatch { count } else { count.min(1) };
    let mut part = part(facts);
    for index in 0..wanted {
        // Of several with one number the newest goes on.
        let own = live.iter().position(|alloc| alloc.index() == index).map(|at| live.remove(at));
        match own {
            Some(alloc) if alloc.desired_transition.migrate == Some(true) => {
                let why = if node.drain_strategy.is_some() { texts::TAINTED } else { texts::MIGRATED };
                out.stops.push(Stop { alloc, why });
                out.desired.migrate += 1;
                if may_place {
                    out.placements.push(new(facts, index, Some(alloc)));
                }
            }
            Some(_) if standing == Standing::Drained => out.desired.ignore += 1,
            Some(alloc)
                if standing == Standing::Elsewhere || standing == Standing::Closed && !(facts.is_current)(alloc) =>
            {
                out.stops.push(Stop { alloc, why: texts::NOT_NEEDED });
                out.desired.stop += 1;
            }
            Some(alloc) => update(facts, alloc, part.as_mut(), &mut out),
            None => match last(&ended, index) {
                Some(alloc) if is_done(facts, alloc) => out.desired.ignore += 1,
                // What was done for another version is updated as if it ran.
                Some(alloc) if may_place && facts.kind == JobType::Sysbatch && !(facts.is_current)(alloc) => {
                    update(facts, alloc, None, &mut out);
                }
                previous if may_place => {
                    out.desired.place += 1;
                    out.placements.push(new(facts, index, previous));
                }
                _ => {}
            },
        }
    }
    for alloc in live {
        out.desired.stop += 1;
        out.stops.push(Stop { alloc, why: texts::NOT_NEEDED });
    }
    let is_idle = out.placements.is_empty() && out.in_place.is_empty();
    out.is_settled = match &part {
        Some(part) => {
            let is_tried = part.desired_canaries == 0 || part.promoted;
            is_idle && is_tried && part.healthy_allocs >= part.desired_total
        }
        None => true,
    };
    let is_begun = facts.rollout != Rollout::None;
    let is_new = facts.deployment.is_none() && !facts.allocs.iter().any(|alloc| (facts.is_current)(alloc));
    let begins = !is_idle && is_new;
    let has_update = out.placements.iter().any(|placement| placement.is_update) || !out.in_place.is_empty();
    out.rollout = part.filter(|_| is_begun || begins || has_update);
    if out.rollout.is_none() {
        out.is_settled = true;
    }
    out
}

/// The group's part of a deployment, where its updates are followed.
fn part(facts: &Facts<'_, '_>) -> Option<DeploymentGroup> {
    let update = facts.group.scheduling.update.as_ref().filter(|_| facts.kind == JobType::System)?;
    let existing = facts.deployment.filter(|_| facts.rollout != Rollout::None);
    let existing = existing.and_then(|deployment| deployment.task_groups.get(&facts.group.name)).cloned();
    let new = || DeploymentGroup {
        auto_revert: update.auto_revert,
        auto_promote: update.auto_promote,
        progress_deadline: Nanos::long(update.progress_deadline),
        desired_total: 1,
        ..DeploymentGroup::default()
    };
    (facts.group.count > 0).then(|| existing.unwrap_or_else(new))
}

fn new<'a>(facts: &Facts<'a, '_>, index: u32, previous: Option<&'a Allocation>) -> Placement<'a> {
    Placement {
        index,
        previous,
        replaces: None,
        version: facts.version,
        is_canary: false,
        is_rescheduled: false,
        is_update: false,
        is_spare: false,
    }
}

fn update<'a>(
    facts: &Facts<'a, '_>,
    alloc: &'a Allocation,
    part: Option<&mut DeploymentGroup>,
    out: &mut Decision<'a>,
) {
    let change = if (facts.is_current)(alloc) { None } else { Some((facts.change)(alloc)) };
    match change {
        None => out.desired.ignore += 1,
        Some(GroupChange::None | GroupChange::InPlace) => {
            out.desired.in_place_update += 1;
            out.in_place.push(alloc);
        }
        Some(GroupChange::Destructive) if matches!(facts.rollout, Rollout::Paused | Rollout::Failed) => {
            out.desired.ignore += 1;
        }
        Some(GroupChange::Destructive) => {
            // The one node is all nodes that a canary could be tried on.
            let is_canary = facts.group.scheduling.update.as_ref().is_some_and(|update| update.canary > 0);
            let is_canary = is_canary
                && part.is_some_and(|part| {
                    part.desired_canaries = 1;
                    !part.promoted
                });
            out.desired.destructive_update += 1;
            // Nomad counts those of system jobs twice.
            out.desired.place += u64::from(facts.kind == JobType::System);
            // The old one goes also where the new one has no place: a system job is as its newest version says, or is not there.
            out.stops.push(Stop { alloc, why: texts::UPDATED });
            out.placements.push(Placement { is_canary, is_update: true, ..new(facts, alloc.index(), Some(alloc)) });
        }
    }
}

/// The newest of the allocations with a number that ended by themselves or were lost.
fn last<'a>(ended: &[&'a Allocation], index: u32) -> Option<&'a Allocation> {
    let by_itself = |alloc: &&&Allocation| {
        let is_left = alloc.desired_status == DesiredStatus::Run && alloc.next_allocation.is_empty();
        is_left && alloc.index() == index
    };
    ended.iter().filter(by_itself).max_by_key(|alloc| alloc.create_index).copied()
}

/// Whether one that ended is not replaced: what has done its work, and what failed by itself, until something else happens.
fn is_done(facts: &Facts<'_, '_>, alloc: &Allocation) -> bool {
    let is_by_itself = match facts.why {
        Trigger::AllocFailure | Trigger::DeploymentWatcher => true,
        Trigger::QueuedAllocs => !facts.has_waited,
        _ => false,
    };
    alloc.client_status != ClientStatus::Lost
        && (facts.is_current)(alloc)
        && (facts.kind == JobType::Sysbatch || is_by_itself)
}
