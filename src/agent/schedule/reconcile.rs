//! One decision about one job: what there is against what is wanted.

use std::sync::Arc;

use crate::agent::model::{
    Allocation, ClientStatus, Deployment, DeploymentGroup, DeploymentStatus, DesiredStatus, DesiredUpdates, EvalStatus,
    Evaluation, Stamp, Trigger,
};
use crate::jobspec::GroupChange;
use crate::spec::collections::BTreeMap;
use crate::spec::{Job, JobType};

use super::decision::{Decision, Stop};
use super::group::{self, Facts};
use super::input::{Input, Plan};
use super::place::{Placing, following};
use super::sorted::Rollout;
use super::system::{self, Standing};
use super::{feasible, texts};

/// Decides about the job of an evaluation. Nothing is changed anywhere: applying the plan's allocations, deployments and
/// evaluations is the whole of the decision, and `job plan` is the same call with the result thrown away.
#[must_use]
pub fn reconcile(input: &Input<'_>) -> Plan {
    Reconciling::new(input).run()
}

struct Reconciling<'a> {
    input: &'a Input<'a>,
    placing: Placing<'a>,
    desired: BTreeMap<String, DesiredUpdates>,
    deployments: Vec<Deployment>,
    is_stable: bool,
}

impl<'a> Reconciling<'a> {
    fn new(input: &'a Input<'a>) -> Reconciling<'a> {
        Reconciling {
            input,
            placing: Placing::new(input),
            desired: BTreeMap::new(),
            deployments: Vec::new(),
            is_stable: false,
        }
    }

    fn run(mut self) -> Plan {
        match self.input.job {
            Some((version, job)) if !version.stop => self.groups(job),
            other => self.stop_all(other.map(|(_, job)| &**job)),
        }
        self.finish()
    }

    /// The deployment of the newest version, and what becomes of one of another version.
    fn deployment(&mut self) -> (Option<&'a Deployment>, Rollout) {
        let Some(deployment) = self.input.deployment else { return (None, Rollout::None) };
        let newest = self.input.job.map(|(version, _)| (version.version, version.create_index, version.stop));
        if newest == Some((deployment.job_version, deployment.job_create_index, false)) {
            let rollout = match deployment.status {
                DeploymentStatus::Successful | DeploymentStatus::Cancelled => Rollout::None,
                DeploymentStatus::Failed => Rollout::Failed,
                DeploymentStatus::Paused => Rollout::Paused,
                _ => Rollout::Active,
            };
            return (Some(deployment), rollout);
        }
        if !deployment.status.is_terminal() {
            let is_stopped = newest.is_none_or(|(_, _, stop)| stop);
            let why = if is_stopped { texts::STOPPED_JOB } else { texts::NEWER_JOB };
            self.end(deployment.clone(), DeploymentStatus::Cancelled, why);
        }
        (None, Rollout::None)
    }

    fn end(&mut self, mut deployment: Deployment, status: DeploymentStatus, why: &str) {
        deployment.status = status;
        why.clone_into(&mut deployment.status_description);
        deployment.modify_time = self.input.now;
        self.deployments.push(deployment);
    }

    /// Nothing of the job is wanted.
    fn stop_all(&mut self, job: Option<&Job>) {
        self.deployment();
        for group in job.map_or(&[][..], |job| &job.groups) {
            self.desired.insert(group.name.clone(), DesiredUpdates::default());
            self.placing.queued.insert(group.name.clone(), 0);
        }
        self.stop_where(&|_| true);
    }

    /// Stops whatever is still to run of some groups.
    fn stop_where(&mut self, is_one: &dyn Fn(&str) -> bool) {
        for alloc in self.input.allocs.iter().filter(|alloc| is_one(&alloc.task_group)) {
            let is_wanted = alloc.desired_status == DesiredStatus::Run && !has_ended(alloc);
            if is_wanted {
                let why = if alloc.client_status == ClientStatus::Lost { texts::LOST } else { texts::NOT_NEEDED };
                self.placing.stop(&Stop { alloc, why });
                self.desired.entry(alloc.task_group.clone()).or_default().stop += 1;
            }
        }
    }

    fn groups(&mut self, job: &'a Arc<Job>) {
        let input = self.input;
        let Some((newest, _)) = input.job else { return };
        let (deployment, rollout) = self.deployment();
        self.stop_where(&|name| !job.groups.iter().any(|group| group.name == name));
        let is_current =
            |alloc: &Allocation| alloc.job_version == newest.version && alloc.create_index >= newest.create_index;
        let specs = |version: u64| if version == newest.version { Some(job.clone()) } else { (input.version)(version) };
        let is_elsewhere = feasible::elsewhere(input.node, job).is_some();
        let mut decisions: Vec<Decision<'a>> = Vec::new();
        for group in &job.groups {
            let allocs: Vec<&Allocation> = input.allocs.iter().filter(|a| a.task_group == group.name).collect();
            let placing = &self.placing;
            let change = |alloc: &Allocation| {
                if alloc.create_index < newest.create_index || is_elsewhere {
                    return GroupChange::Destructive;
                }
                match (input.change)(alloc.job_version, &group.name) {
                    change if change < GroupChange::Destructive && !placing.stays_feasible(job, group, alloc) => {
                        GroupChange::Destructive
                    }
                    change => change,
                }
            };
            let facts = Facts {
                kind: job.kind,
                version: newest.version,
                group,
                allocs: &allocs,
                eval: &input.eval.id,
                why: input.eval.triggered_by,
                has_waited: input.eval.failed.contains_key(&group.name),
                now: input.now,
                deployment,
                rollout,
                is_current: &is_current,
                change: &change,
                is_known: &|version| specs(version).is_some(),
            };
            let decision = match job.kind {
                JobType::Service | JobType::Batch => group::decide(&facts),
                JobType::System | JobType::Sysbatch => {
                    system::decide(&facts, input.node, Standing::of(input.node, job))
                }
            };
            decision.stops.iter().for_each(|stop| self.placing.stop(stop));
            self.desired.insert(group.name.clone(), decision.desired);
            decisions.push(decision);
        }
        self.apply(job, &decisions, deployment, rollout, &specs);
    }

    fn apply(
        &mut self,
        job: &Job,
        decisions: &[Decision<'a>],
        existing: Option<&Deployment>,
        rollout: Rollout,
        specs: &dyn Fn(u64) -> Option<Arc<Job>>,
    ) {
        let goes_on = existing.filter(|_| rollout != Rollout::None);
        let is_wanted = decisions.iter().any(|decision| decision.rollout.is_some());
        let mut deployment = goes_on.cloned().or_else(|| is_wanted.then(|| self.new_deployment()));
        for (group, decision) in job.groups.iter().zip(decisions) {
            let mut part = decision.rollout.clone();
            let id = deployment.as_ref().filter(|_| part.is_some()).map(|deployment| deployment.id.clone());
            let before = part.as_ref().map_or(0, |part| part.placed_allocs);
            let version = self.input.job.map_or(0, |(newest, _)| newest.version);
            for alloc in &decision.in_place {
                self.placing.update_in_place(alloc, version, id.as_deref());
                if let Some(part) = &mut part {
                    part.placed_allocs += 1;
                }
            }
            self.placing.postpone(&decision.later);
            let spare = self.placing.place(decision, &group.name, specs, id.as_deref(), part.as_mut());
            let desired = self.desired.entry(group.name.clone()).or_default();
            desired.destructive_update += spare;
            desired.ignore -= spare;
            if let (Some(deployment), Some(mut part)) = (&mut deployment, part) {
                if !is_queued(job.kind) && self.placing.failed.contains_key(&group.name) {
                    // The deployment of a system job does not wait for a node that cannot have it.
                    part.desired_total = part.placed_allocs.min(part.desired_total);
                }
                if part.placed_allocs > before && part.require_progress_by.0.is_none() && part.progress_deadline.0 > 0 {
                    part.require_progress_by = Stamp(Some(self.input.now.plus(part.progress_deadline.duration())));
                }
                deployment.task_groups.insert(group.name.clone(), part);
            }
        }
        let Some(mut deployment) = deployment else { return };
        let is_empty = deployment.task_groups.values().all(|part| part.desired_total == 0);
        let is_done = decisions.iter().all(|decision| decision.is_settled) && rollout == Rollout::Active;
        if is_done || is_empty {
            self.is_stable = true;
            self.end(deployment, DeploymentStatus::Successful, texts::SUCCESSFUL);
            return;
        }
        // One of a service says what it said when it began, was resumed or promoted.
        let is_told = goes_on.is_some() && is_queued(job.kind);
        if matches!(rollout, Rollout::None | Rollout::Active) && !is_told {
            running_text(&deployment).clone_into(&mut deployment.status_description);
        }
        if existing != Some(&deployment) {
            deployment.modify_time = self.input.now;
            self.deployments.push(deployment);
        }
    }

    fn new_deployment(&self) -> Deployment {
        let Input { eval, now, .. } = self.input;
        let newest = self.input.job.map(|(version, _)| version);
        Deployment {
            id: (self.input.id)(),
            namespace: eval.namespace.clone(),
            job_id: eval.job_id.clone(),
            job_version: newest.map_or(0, |version| version.version),
            job_modify_index: newest.map_or(0, |version| version.job_modify_index),
            job_spec_modify_index: newest.map_or(0, |version| version.job_modify_index),
            job_create_index: newest.map_or(0, |version| version.create_index),
            task_groups: BTreeMap::<String, DeploymentGroup>::new(),
            status: DeploymentStatus::Running,
            status_description: texts::RUNNING.to_owned(),
            eval_priority: eval.priority,
            create_index: 0,
            modify_index: 0,
            create_time: *now,
            modify_time: *now,
        }
    }

    fn finish(self) -> Plan {
        let input = self.input;
        let Placing { mut changed, new, failed, queued, followups, .. } = self.placing;
        let mut eval = input.eval.clone();
        let mut evals = followups;
        eval.modify_time = input.now;
        eval.queued_allocations = queued;
        eval.failed = failed;
        eval.status_description = String::new();
        let deployment = self.deployments.last().or(input.deployment);
        eval.deployment_id = deployment.map(|deployment| deployment.id.clone()).unwrap_or_default();
        // A system job waits for space, and not for another node.
        let is_queued = input.job.is_none_or(|(_, job)| is_queued(job.kind));
        let waits = is_queued || eval.failed.values().any(|metric| metric.nodes_exhausted > 0);
        if eval.failed.is_empty() {
            eval.status = EvalStatus::Complete;
            let why = format!("evaluation \"{}\" successful", eval.id);
            evals.extend(cancelled(input, &why));
        } else if !waits {
            eval.status = EvalStatus::Complete;
            eval.queued_allocations.values_mut().for_each(|queued| *queued = 0);
        } else if eval.triggered_by == Trigger::QueuedAllocs {
            // The one that waited goes on waiting.
            eval.status = EvalStatus::Blocked;
            texts::BLOCKED.clone_into(&mut eval.status_description);
            evals.extend(cancelled(input, &doubled(&eval.job_id)));
        } else {
            eval.status = EvalStatus::Complete;
            let blocked = Evaluation {
                status: EvalStatus::Blocked,
                status_description: texts::BLOCKED.to_owned(),
                triggered_by: Trigger::QueuedAllocs,
                failed: eval.failed.clone(),
                queued_allocations: eval.queued_allocations.clone(),
                ..following(input)
            };
            eval.blocked_eval.clone_from(&blocked.id);
            evals.extend(cancelled(input, &doubled(&eval.job_id)));
            evals.push(blocked);
        }
        if eval.status == EvalStatus::Complete {
            eval.plan_annotations.clone_from(&self.desired);
        }
        let mut allocs: Vec<Allocation> = new.iter().filter_map(|id| changed.remove(id)).collect();
        allocs.extend(changed.into_values());
        Plan { eval, allocs, deployments: self.deployments, evals, desired: self.desired, stable: self.is_stable }
    }
}

/// Whether what has no place waits for one.
const fn is_queued(kind: JobType) -> bool {
    matches!(kind, JobType::Service | JobType::Batch)
}

fn has_ended(alloc: &Allocation) -> bool {
    matches!(alloc.client_status, ClientStatus::Complete | ClientStatus::Failed)
}

fn doubled(job: &str) -> String {
    format!("existing blocked evaluation exists for job \"{job}\"")
}

/// The job's blocked evaluations, which are not needed any more.
fn cancelled(input: &Input<'_>, why: &str) -> Vec<Evaluation> {
    let others = input.blocked.iter().filter(|eval| eval.id != input.eval.id && eval.status == EvalStatus::Blocked);
    let cancel = |eval: &Evaluation| Evaluation {
        status: EvalStatus::Canceled,
        status_description: why.to_owned(),
        modify_time: input.now,
        ..eval.clone()
    };
    others.map(cancel).collect()
}

/// What is said of a deployment that goes on.
#[must_use]
pub fn running_text(deployment: &Deployment) -> &'static str {
    let mut waiting = deployment.task_groups.values().filter(|part| part.desired_canaries > 0 && !part.promoted);
    match waiting.next() {
        None => texts::RUNNING,
        Some(first) if first.auto_promote && waiting.all(|part| part.auto_promote) => texts::AUTO_PROMOTION,
        Some(_) => texts::NEEDS_PROMOTION,
    }
}
