//! The allocations of a group of a service or batch job, sorted by what has to become of them.

use crate::agent::model::{Allocation, ClientStatus, DesiredStatus, Nanos};
use crate::spec::{JobType, Reschedule};

use super::reschedule::{Verdict, verdict};

/// How far a deployment of the job's newest version has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rollout {
    /// There is none, or it was successful.
    None,
    Active,
    Paused,
    Failed,
}

/// What sorting depends on.
pub(super) struct Rules<'a> {
    pub(super) kind: JobType,
    pub(super) policy: Option<&'a Reschedule>,
    pub(super) eval: &'a str,
    pub(super) now: Nanos,
    /// The deployment of the newest version, and how far it has come.
    pub(super) deployment: Option<&'a str>,
    pub(super) rollout: Rollout,
    /// Whether an allocation is one of the newest version.
    pub(super) is_current: &'a dyn Fn(&Allocation) -> bool,
}

/// The allocations that count, by what has to become of them.
#[derive(Debug, Default)]
pub(super) struct Sorted<'a> {
    /// Run, wait to be replaced, or have done all they had to do.
    pub(super) kept: Vec<&'a Allocation>,
    /// Run, and are to be placed anew.
    pub(super) moved: Vec<&'a Allocation>,
    /// Failed, and are replaced now.
    pub(super) failed: Vec<&'a Allocation>,
    /// Are gone without having ended.
    pub(super) lost: Vec<&'a Allocation>,
    /// So many are of runs that are over.
    pub(super) past: u64,
    /// Some of `kept` that failed, and of `moved` that are only stopped now: they are replaced later.
    pub(super) later: Vec<(&'a Allocation, Nanos)>,
}

impl<'a> Sorted<'a> {
    pub(super) fn new(allocs: &[&'a Allocation], rules: &Rules<'_>) -> Sorted<'a> {
        let mut sorted = Sorted::default();
        for &alloc in allocs {
            sorted.add(alloc, rules);
        }
        sorted
    }

    fn add(&mut self, alloc: &'a Allocation, rules: &Rules<'_>) {
        let is_batch = rules.kind == JobType::Batch;
        if is_batch && alloc.is_terminal() && !(rules.is_current)(alloc) {
            // A new version is a new run.
            self.past += 1;
            return;
        }
        let is_replaced = !alloc.next_allocation.is_empty();
        // Somebody stopped it so that it is begun again.
        let begins_anew = is_batch && alloc.desired_transition.reschedule == Some(true);
        if alloc.desired_status != DesiredStatus::Run {
            let is_done = alloc.client_status == ClientStatus::Complete && !is_replaced && has_succeeded(alloc);
            if is_batch && is_done && !begins_anew {
                self.kept.push(alloc);
            }
            return;
        }
        match alloc.client_status {
            ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown => {
                // `reschedule` is about one that fails: what runs unhealthily is left running, as in Nomad.
                if alloc.desired_transition.migrate != Some(true) {
                    self.kept.push(alloc);
                    return;
                }
                self.moved.push(alloc);
                match verdict(rules.policy, alloc, rules.now) {
                    Verdict::Now if begins_anew => self.later.push((alloc, rules.now)),
                    Verdict::Later(due) if begins_anew => self.later.push((alloc, due)),
                    _ => {}
                }
            }
            ClientStatus::Lost if !is_replaced => self.lost.push(alloc),
            ClientStatus::Complete if is_batch => self.kept.push(alloc),
            ClientStatus::Failed if !is_replaced => self.add_failed(alloc, rules),
            ClientStatus::Lost | ClientStatus::Complete | ClientStatus::Failed => {}
        }
    }

    fn add_failed(&mut self, alloc: &'a Allocation, rules: &Rules<'_>) {
        let transition = alloc.desired_transition;
        let is_forced = transition.force_reschedule == Some(true);
        let is_of_deployment = rules.deployment.is_some_and(|id| id == alloc.deployment_id);
        let waits = match rules.rollout {
            // The deployment says when.
            Rollout::Active | Rollout::Paused => is_of_deployment && transition.reschedule != Some(true),
            Rollout::Failed => is_of_deployment,
            Rollout::None => false,
        };
        if waits {
            self.kept.push(alloc);
            return;
        }
        let has_followup = !alloc.followup_eval_id.is_empty();
        match verdict(rules.policy, alloc, rules.now) {
            _ if is_forced => self.failed.push(alloc),
            Verdict::Never => self.kept.push(alloc),
            Verdict::Now => self.failed.push(alloc),
            Verdict::Later(_) if alloc.followup_eval_id == rules.eval && has_followup => self.failed.push(alloc),
            Verdict::Later(due) => {
                if !has_followup {
                    self.later.push((alloc, due));
                }
                self.kept.push(alloc);
            }
        }
    }
}

fn has_succeeded(alloc: &Allocation) -> bool {
    !alloc.task_states.is_empty() && alloc.task_states.values().all(|task| !task.failed)
}
