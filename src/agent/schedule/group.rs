//! What is wanted of a group of a service or batch job: how many, which go, which are replaced, and how fast.

use crate::agent::model::{Allocation, Deployment, DeploymentGroup, Nanos, Trigger};
use crate::jobspec::GroupChange;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Group, JobType, Update};
use crate::spec::{IntoSet as _, Order as _};

use super::decision::{Decision, Placement, Stop};
use super::names::Free;
use super::sorted::{Rollout, Rules, Sorted};
use super::texts;

/// What a decision about a group depends on.
pub(super) struct Facts<'a, 'b> {
    pub(super) kind: JobType,
    /// The newest version.
    pub(super) version: u64,
    pub(super) group: &'b Group,
    /// The group's allocations, of all versions.
    pub(super) allocs: &'b [&'a Allocation],
    pub(super) eval: &'b str,
    pub(super) why: Trigger,
    /// The evaluation has waited for space for this group.
    pub(super) has_waited: bool,
    pub(super) now: Nanos,
    /// The deployment of the newest version.
    pub(super) deployment: Option<&'b Deployment>,
    pub(super) rollout: Rollout,
    /// Whether an allocation is one of the newest version.
    pub(super) is_current: &'b dyn Fn(&Allocation) -> bool,
    /// What the newest version asks of an allocation.
    pub(super) change: &'b dyn Fn(&Allocation) -> GroupChange,
    /// A version that is still known.
    pub(super) is_known: &'b dyn Fn(u64) -> bool,
}

/// The group on its way to a decision.
struct Deciding<'a, 'b> {
    facts: &'b Facts<'a, 'b>,
    strategy: Option<&'b Update>,
    /// The group's part of the deployment: that there is, or that it would have.
    part: DeploymentGroup,
    has_part: bool,
    out: Decision<'a>,
}

pub(super) fn decide<'a>(facts: &Facts<'a, '_>) -> Decision<'a> {
    let strategy = facts.group.scheduling.update.as_ref().filter(|_| facts.kind == JobType::Service);
    let existing = facts.deployment.filter(|_| facts.rollout != Rollout::None);
    let existing = existing.and_then(|deployment| deployment.task_groups.get(&facts.group.name));
    let part = existing.cloned().unwrap_or_else(|| DeploymentGroup {
        auto_revert: strategy.is_some_and(|update| update.auto_revert),
        auto_promote: strategy.is_some_and(|update| update.auto_promote),
        progress_deadline: Nanos::long(strategy.map(|update| update.progress_deadline).unwrap_or_default()),
        desired_total: facts.group.count,
        ..DeploymentGroup::default()
    });
    Deciding { facts, strategy, part, has_part: existing.is_some(), out: Decision::default() }.run()
}

impl<'a> Deciding<'a, '_> {
    fn run(mut self) -> Decision<'a> {
        let facts = self.facts;
        let rules = Rules {
            kind: facts.kind,
            policy: facts.group.scheduling.reschedule.as_ref(),
            eval: facts.eval,
            now: facts.now,
            deployment: facts.deployment.map(|deployment| deployment.id.as_str()),
            rollout: facts.rollout,
            is_current: facts.is_current,
        };
        let mut sorted = Sorted::new(facts.allocs, &rules);
        self.stop_left_canaries(&mut sorted);
        let canaries = self.take_canaries(&mut sorted);
        self.stop_doubles(&mut sorted);
        self.stop_excess(&mut sorted);

        let (destructive, in_place) = self.outdated(&sorted.kept);
        self.place_canaries(&canaries, &destructive, &sorted);
        let is_trying = self.part.desired_canaries > 0 && !self.part.promoted;
        let is_open = !is_trying && matches!(facts.rollout, Rollout::None | Rollout::Active);
        let limit = self.limit(is_trying, sorted.kept.iter().chain(&canaries.kept).copied());

        self.replace(&sorted, is_open);
        self.replace(&canaries, is_open);
        let new = if is_open { self.fill(&sorted) } else { 0 };
        let updated = if is_open { destructive.len().min(limit.saturating_sub(new)) } else { 0 };
        self.update(if is_open && limit > 0 { &destructive } else { &[] }, updated);
        self.out.limit = limit;
        self.out.desired.in_place_update = in_place.len() as u64;
        let stays: BTreeSet<&str> = sorted.kept.iter().chain(&canaries.kept).map(|alloc| alloc.id.as_str()).into_set();
        let gone: BTreeSet<&str> = destructive[..updated].iter().map(|alloc| alloc.id.as_str()).into_set();
        let waits = |alloc: &Allocation| {
            let is_kept = stays.contains(alloc.id.as_str()) && !gone.contains(alloc.id.as_str());
            is_kept || sorted.moved.iter().any(|moved| moved.id == alloc.id)
        };
        self.out.later = sorted.later.iter().filter(|(alloc, _)| waits(alloc)).copied().collect();
        self.out.desired.reschedule_later = self.out.later.len() as u64;
        let kept = stays.len() as u64;
        self.out.desired.ignore = sorted.past + kept - in_place.len() as u64 - updated as u64;
        self.out.in_place = in_place;
        self.settle(!destructive.is_empty());
        self.out
    }

    fn stop(&mut self, alloc: &'a Allocation, why: &'static str) {
        self.out.desired.stop += 1;
        self.out.stops.push(Stop { alloc, why });
    }

    /// Canaries of a deployment that failed or was given up.
    fn stop_left_canaries(&mut self, sorted: &mut Sorted<'a>) {
        let tries = matches!(self.facts.rollout, Rollout::Active | Rollout::Paused);
        let current: Vec<String> = if tries { self.part.placed_canaries.clone() } else { Vec::new() };
        let is_left = |alloc: &&Allocation| {
            alloc.deployment_status.as_ref().is_some_and(|status| status.canary) && !current.contains(&alloc.id)
        };
        for list in [&mut sorted.kept, &mut sorted.moved, &mut sorted.failed, &mut sorted.lost] {
            let (left, stays): (Vec<_>, Vec<_>) = list.iter().copied().partition(is_left);
            *list = stays;
            for alloc in left {
                self.stop(alloc, texts::NOT_NEEDED);
            }
        }
    }

    /// The canaries that are being tried, which count apart from the others.
    fn take_canaries(&self, sorted: &mut Sorted<'a>) -> Sorted<'a> {
        let mut canaries = Sorted::default();
        if self.part.promoted {
            return canaries;
        }
        let is_canary = |alloc: &&Allocation| self.part.placed_canaries.contains(&alloc.id);
        for (list, taken) in [
            (&mut sorted.kept, &mut canaries.kept),
            (&mut sorted.moved, &mut canaries.moved),
            (&mut sorted.failed, &mut canaries.failed),
            (&mut sorted.lost, &mut canaries.lost),
        ] {
            (*taken, *list) = std::mem::take(list).into_iter().partition(is_canary);
        }
        canaries
    }

    /// Of two with the same number the newer version stays: the other one was there until its canary was promoted.
    fn stop_doubles(&mut self, sorted: &mut Sorted<'a>) {
        let mut best: BTreeMap<u32, &'a Allocation> = BTreeMap::new();
        let rank = |alloc: &Allocation| {
            ((self.facts.is_current)(alloc), !alloc.client_status.is_terminal(), alloc.create_index)
        };
        let mut doubles = Vec::new();
        for &alloc in &sorted.kept {
            match best.get(&alloc.index()) {
                Some(other) if rank(other) >= rank(alloc) => doubles.push(alloc),
                Some(other) => {
                    doubles.push(*other);
                    best.insert(alloc.index(), alloc);
                }
                None => {
                    best.insert(alloc.index(), alloc);
                }
            }
        }
        for list in [&mut sorted.moved, &mut sorted.failed, &mut sorted.lost] {
            let (has_successor, stays): (Vec<_>, Vec<_>) =
                list.iter().partition(|alloc| best.contains_key(&alloc.index()));
            *list = stays;
            doubles.extend(has_successor);
        }
        sorted.kept = best.into_values().collect();
        for alloc in doubles {
            self.stop(alloc, texts::NOT_NEEDED);
        }
    }

    /// What is more than the count: what would have to be replaced goes first, then the highest numbers.
    fn stop_excess(&mut self, sorted: &mut Sorted<'a>) {
        let all = sorted.kept.len() + sorted.moved.len() + sorted.failed.len() + sorted.lost.len();
        let mut excess = all.saturating_sub(self.facts.group.count as usize);
        for (list, why) in [
            (&mut sorted.lost, texts::LOST),
            (&mut sorted.failed, texts::NOT_NEEDED),
            (&mut sorted.moved, texts::NOT_NEEDED),
            (&mut sorted.kept, texts::NOT_NEEDED),
        ] {
            list.order_by_key(|alloc| alloc.index());
            while excess > 0
                && let Some(alloc) = list.pop()
            {
                excess -= 1;
                self.stop(alloc, why);
            }
        }
    }

    /// Those that the newest version replaces, and those that go on as one of it.
    fn outdated(&self, kept: &[&'a Allocation]) -> (Vec<&'a Allocation>, Vec<&'a Allocation>) {
        let (mut destructive, mut in_place) = (Vec::new(), Vec::new());
        for &alloc in kept.iter().filter(|alloc| !(self.facts.is_current)(alloc)) {
            let has_ended = alloc.client_status.is_terminal();
            match (self.facts.change)(alloc) {
                // One that failed for good is tried again, and one that waits for that is when its time has come.
                GroupChange::None | GroupChange::InPlace if has_ended => {
                    if alloc.followup_eval_id.is_empty() {
                        destructive.push(alloc);
                    }
                }
                GroupChange::None | GroupChange::InPlace => in_place.push(alloc),
                GroupChange::Destructive => destructive.push(alloc),
            }
        }
        (destructive, in_place)
    }

    /// Canaries take the names of those that they would replace.
    fn place_canaries(&mut self, canaries: &Sorted<'a>, destructive: &[&'a Allocation], sorted: &Sorted<'a>) {
        let canaries: Vec<&Allocation> = [&canaries.kept, &canaries.moved, &canaries.failed, &canaries.lost]
            .into_iter()
            .flatten()
            .copied()
            .collect();
        let wanted = self.strategy.map_or(0, |update| update.canary) as usize;
        let is_open = matches!(self.facts.rollout, Rollout::None | Rollout::Active);
        if destructive.is_empty() || canaries.len() >= wanted || self.part.promoted || !is_open {
            return;
        }
        self.part.desired_canaries = wanted as u32;
        let named: BTreeSet<u32> = canaries.iter().map(|alloc| alloc.index()).into_set();
        let mut indexes: Vec<u32> =
            destructive.iter().map(|alloc| alloc.index()).filter(|index| !named.contains(index)).collect();
        let mut free = Free::new(sorted.kept.iter().chain(&canaries).map(|alloc| alloc.index()));
        let missing = wanted - canaries.len();
        indexes.truncate(missing);
        while indexes.len() < missing {
            indexes.push(free.take());
        }
        self.out.desired.canary += indexes.len() as u64;
        let version = self.facts.version;
        let new = |index| Placement {
            index,
            previous: None,
            replaces: None,
            version,
            is_canary: true,
            is_rescheduled: false,
            is_update: false,
            is_spare: false,
        };
        self.out.placements.extend(indexes.into_iter().map(new));
    }

    /// So many may be taken down for the newest version now.
    fn limit(&self, is_trying: bool, live: impl Iterator<Item = &'a Allocation>) -> usize {
        let Some(update) = self.strategy else { return usize::MAX };
        let deployment = match self.facts.rollout {
            Rollout::Paused | Rollout::Failed => return 0,
            _ if is_trying => return 0,
            Rollout::None => return update.max_parallel as usize,
            Rollout::Active => self.facts.deployment.map(|deployment| deployment.id.as_str()),
        };
        let mut limit = update.max_parallel as usize;
        for alloc in live.filter(|alloc| deployment == Some(alloc.deployment_id.as_str())) {
            match alloc.deployment_status.as_ref().and_then(|status| status.healthy) {
                Some(true) => {}
                Some(false) => return 0,
                None => limit = limit.saturating_sub(1),
            }
        }
        limit
    }

    /// What is moved, lost or failed gets a successor of the same name; of its own version while the newest is only tried.
    fn replace(&mut self, sorted: &Sorted<'a>, is_open: bool) {
        let facts = self.facts;
        let version = |alloc: &Allocation| {
            let is_own = !is_open && !(facts.is_current)(alloc) && (facts.is_known)(alloc.job_version);
            if is_own { alloc.job_version } else { facts.version }
        };
        let canary = |alloc: &Allocation| !self.part.promoted && self.part.placed_canaries.contains(&alloc.id);
        let new = |alloc: &'a Allocation, replaces, is_rescheduled| Placement {
            index: alloc.index(),
            previous: Some(alloc),
            replaces,
            version: version(alloc),
            is_canary: canary(alloc),
            is_rescheduled,
            is_update: false,
            is_spare: false,
        };
        // A batch job that a drain ended is only stopped, and one that its policy begins again is placed when that says.
        let is_placed = |alloc: &&'a Allocation| {
            let wanted = alloc.desired_transition;
            facts.kind != JobType::Batch
                || wanted.migrate_disable_placement != Some(true) && wanted.reschedule != Some(true)
        };
        let moved = sorted.moved.iter().copied().filter(is_placed).map(|alloc| new(alloc, None, false));
        let lost = sorted.lost.iter().map(|alloc| new(alloc, None, false));
        let failed = sorted.failed.iter().map(|alloc| new(alloc, Some(texts::RESCHEDULED), true));
        self.out.placements.extend(moved.chain(lost).chain(failed));
        let stopped = sorted.moved.iter().map(|alloc| Stop { alloc, why: texts::MIGRATED });
        self.out.stops.extend(stopped.chain(sorted.lost.iter().map(|alloc| Stop { alloc, why: texts::LOST })));
        self.out.desired.migrate += sorted.moved.len() as u64;
        self.out.desired.stop += (sorted.lost.len() + sorted.failed.len()) as u64;
        self.out.desired.place += (sorted.lost.len() + sorted.failed.len()) as u64;
    }

    /// What is less than the count.
    fn fill(&mut self, sorted: &Sorted<'a>) -> usize {
        let there = || sorted.kept.iter().chain(&sorted.moved).chain(&sorted.failed).chain(&sorted.lost);
        let missing = (self.facts.group.count as usize).saturating_sub(there().count());
        let mut free = Free::new(there().map(|alloc| alloc.index()));
        let version = self.facts.version;
        let new = |()| Placement {
            index: free.take(),
            previous: None,
            replaces: None,
            version,
            is_canary: false,
            is_rescheduled: false,
            is_update: false,
            is_spare: false,
        };
        self.out.placements.extend(std::iter::repeat_n((), missing).map(new));
        self.out.desired.place += missing as u64;
        missing
    }

    /// The first `certain` are replaced, the others only instead of those that find no place.
    fn update(&mut self, destructive: &[&'a Allocation], certain: usize) {
        self.out.desired.destructive_update = certain as u64;
        let version = self.facts.version;
        self.out.placements.extend(destructive.iter().enumerate().map(|(at, &alloc)| Placement {
            index: alloc.index(),
            previous: Some(alloc),
            replaces: Some(texts::UPDATED),
            version,
            is_canary: false,
            is_rescheduled: false,
            is_update: true,
            is_spare: at >= certain,
        }));
    }

    /// Whether there is a deployment, has to be one, and whether it has done all there is to do.
    fn settle(&mut self, has_destructive: bool) {
        let facts = self.facts;
        let is_idle = self.out.placements.is_empty() && self.out.in_place.is_empty() && !has_destructive;
        if self.has_part {
            let is_tried = self.part.desired_canaries == 0 || self.part.promoted;
            let wanted = self.part.desired_total.max(self.part.desired_canaries);
            self.out.is_settled = is_idle && is_tried && self.part.healthy_allocs >= wanted;
            self.out.rollout = Some(self.part.clone());
            return;
        }
        self.out.is_settled = true;
        let is_new = facts.deployment.is_none() && !facts.allocs.iter().any(|alloc| (facts.is_current)(alloc));
        let is_updating = has_destructive || !self.out.in_place.is_empty();
        let may_begin = matches!(facts.rollout, Rollout::None | Rollout::Active);
        if self.strategy.is_some() && facts.group.count > 0 && may_begin && (is_new || is_updating) {
            self.out.is_settled = false;
            self.out.rollout = Some(self.part.clone());
        }
    }
}
