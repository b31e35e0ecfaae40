//! The steps of a deployment: by the health of its allocations, by its deadlines, and by users' requests.

use crate::agent::model::{
    Allocation, Deployment, DeploymentGroup, DeploymentHealth, DeploymentStatus, DesiredStatus, JobVersion, Nanos,
    Stamp,
};
use crate::spec::Job;

use super::reconcile::running_text;
use super::reschedule::is_used_up;
use super::texts;
use super::versions::is_same_spec;

/// What a deployment's next step depends on.
pub struct DeploymentInput<'a> {
    /// The deployment as it is kept.
    pub deployment: &'a Deployment,
    /// The stored versions of its job; none if the job was purged.
    pub versions: &'a [JobVersion],
    /// Its allocations with their health: as set by the client, which knows `min_healthy_time` and `healthy_deadline`, or by a
    /// user.
    pub allocs: &'a [Allocation],
    /// Its version of the job, with the policies that replace what fails; `None` if that cannot be read.
    pub job: Option<&'a Job>,
    /// This moment.
    pub now: Nanos,
}

/// The next step of a deployment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeploymentStep {
    /// The deployment, where it changed.
    pub deployment: Option<Deployment>,
    /// Its changed allocations: failed ones may be replaced, promoted ones are no canaries any more.
    pub allocs: Vec<Allocation>,
    /// The job has to be evaluated (`deployment-watcher`).
    pub evaluate: bool,
    /// The job has to be reverted to this version.
    pub revert: Option<u64>,
    /// The time of the next check if nothing happens before.
    pub next: Option<Nanos>,
}

/// Computes the next step from the health of the allocations and the time.
#[must_use]
pub fn deployment_step(input: &DeploymentInput<'_>) -> DeploymentStep {
    let old = input.deployment;
    if old.status.is_terminal() {
        return DeploymentStep::default();
    }
    let mut deployment = counted(input);
    let mut step = DeploymentStep { evaluate: deployment.task_groups != old.task_groups, ..DeploymentStep::default() };
    if matches!(old.status, DeploymentStatus::Running) {
        if let Some((why, reverts)) = failure(input, &deployment) {
            return fail(input, deployment, why, reverts);
        }
        let replaced = input.allocs.iter().filter(|alloc| is_to_replace(alloc));
        step.allocs = replaced.cloned().collect();
        for alloc in &mut step.allocs {
            alloc.desired_transition.reschedule = Some(true);
        }
        step.evaluate |= !step.allocs.is_empty();
        if promotes_itself(input, &deployment) {
            promote_all(&mut deployment, input, &mut step);
        }
        step.next = deployment.task_groups.values().filter_map(deadline).min();
    }
    if deployment != *old {
        deployment.modify_time = input.now;
        step.deployment = Some(deployment);
    }
    step
}

/// The deployment with its allocations counted again.
fn counted(input: &DeploymentInput<'_>) -> Deployment {
    let mut deployment = input.deployment.clone();
    for (name, part) in &mut deployment.task_groups {
        let allocs = || of_group(input, name);
        let healthy = |wanted: bool| allocs().filter(|alloc| health(alloc) == Some(wanted)).count() as u32;
        (part.healthy_allocs, part.unhealthy_allocs) = (healthy(true), healthy(false));
        let since = allocs().filter(|alloc| health(alloc) == Some(true));
        let newest = since.filter_map(|alloc| alloc.deployment_status.as_ref()?.timestamp.0).max();
        // Each allocation that becomes healthy extends the progress deadline.
        if let Some(newest) = newest.filter(|_| part.progress_deadline.0 > 0) {
            let until = newest.plus(part.progress_deadline.duration());
            part.require_progress_by = Stamp(part.require_progress_by.0.max(Some(until)));
        }
    }
    deployment
}

fn of_group<'a>(input: &DeploymentInput<'a>, group: &str) -> impl Iterator<Item = &'a Allocation> {
    let id = &input.deployment.id;
    input.allocs.iter().filter(move |alloc| alloc.task_group == group && alloc.deployment_id == *id)
}

fn health(alloc: &Allocation) -> Option<bool> {
    alloc.deployment_status.as_ref().and_then(|status| status.healthy)
}

/// Live canaries of a group that are healthy.
fn healthy_canaries(input: &DeploymentInput<'_>, name: &str, part: &DeploymentGroup) -> u32 {
    let is_one = |alloc: &&Allocation| {
        part.placed_canaries.contains(&alloc.id) && !alloc.is_terminal() && health(alloc) == Some(true)
    };
    of_group(input, name).filter(is_one).count() as u32
}

const fn waits_for_promotion(part: &DeploymentGroup) -> bool {
    part.desired_canaries > 0 && !part.promoted
}

/// All that a group waits for is healthy.
const fn is_complete(part: &DeploymentGroup) -> bool {
    part.healthy_allocs >= part.desired_total
        || (waits_for_promotion(part) && part.healthy_allocs >= part.desired_canaries)
}

/// Until when the next allocation of a group has to be healthy.
fn deadline(part: &DeploymentGroup) -> Option<Nanos> {
    part.require_progress_by.0.filter(|_| !is_complete(part) && part.progress_deadline.0 > 0)
}

/// Why the deployment fails, and whether one of the groups that it fails by goes back.
fn failure(input: &DeploymentInput<'_>, deployment: &Deployment) -> Option<(&'static str, bool)> {
    let groups = || deployment.task_groups.iter();
    let is_unhealthy = |alloc: &Allocation| health(alloc) == Some(false) && alloc.desired_status == DesiredStatus::Run;
    let has_failed = |name: &str, part: &DeploymentGroup| {
        let is_final = |alloc: &Allocation| part.progress_deadline.0 == 0 || !may_be_replaced(input, alloc);
        of_group(input, name).any(|alloc| is_unhealthy(alloc) && is_final(alloc))
    };
    let mut failed = groups().filter(|(name, part)| has_failed(name, part)).peekable();
    if failed.peek().is_some() {
        return Some((texts::FAILED_ALLOCS, failed.any(|(_, part)| part.auto_revert)));
    }
    if !groups().any(|(_, part)| deadline(part).is_some_and(|until| until <= input.now)) {
        return None;
    }
    // The deployment is given up as a whole: whoever waits for progress counts, whether its time has come or not.
    Some((texts::NO_PROGRESS, groups().any(|(_, part)| !is_complete(part) && part.auto_revert)))
}

/// Whether the policy of its group replaces an allocation that fails now.
fn may_be_replaced(input: &DeploymentInput<'_>, alloc: &Allocation) -> bool {
    let Some(job) = input.job else { return true };
    let group = job.groups.iter().find(|group| group.name == alloc.task_group);
    let policy = group.and_then(|group| group.scheduling.reschedule.as_ref());
    policy.is_some_and(|policy| !is_used_up(policy, alloc, input.now))
}

/// One that is unhealthy: if it fails, or has failed, its policy may replace it while the deployment waits for progress.
fn is_to_replace(alloc: &Allocation) -> bool {
    alloc.desired_status == DesiredStatus::Run
        && alloc.next_allocation.is_empty()
        && health(alloc) == Some(false)
        && alloc.desired_transition.reschedule != Some(true)
}

fn promotes_itself(input: &DeploymentInput<'_>, deployment: &Deployment) -> bool {
    let mut waiting = deployment.task_groups.iter().filter(|(_, part)| waits_for_promotion(part)).peekable();
    waiting.peek().is_some()
        && waiting.all(|(name, part)| part.auto_promote && healthy_canaries(input, name, part) >= part.desired_canaries)
}

fn promote_all(deployment: &mut Deployment, input: &DeploymentInput<'_>, step: &mut DeploymentStep) {
    let waiting: Vec<String> = deployment
        .task_groups
        .iter()
        .filter(|(_, part)| waits_for_promotion(part))
        .map(|(name, _)| name.clone())
        .collect();
    promote_groups(deployment, input, &waiting, step);
}

fn promote_groups(
    deployment: &mut Deployment,
    input: &DeploymentInput<'_>,
    groups: &[String],
    step: &mut DeploymentStep,
) {
    for name in groups {
        let Some(part) = deployment.task_groups.get_mut(name) else { continue };
        part.promoted = true;
        // Nobody waited for progress before the promotion.
        if part.progress_deadline.0 > 0 && part.require_progress_by.0.is_some() {
            part.require_progress_by = Stamp(Some(input.now.plus(part.progress_deadline.duration())));
        }
        for alloc in of_group(input, name).filter(|alloc| part.placed_canaries.contains(&alloc.id)) {
            let known = step.allocs.iter().position(|changed| changed.id == alloc.id);
            let at = known.unwrap_or_else(|| {
                step.allocs.push(alloc.clone());
                step.allocs.len() - 1
            });
            if let Some(status) = &mut step.allocs[at].deployment_status {
                status.canary = false;
            }
        }
    }
    if deployment.status == DeploymentStatus::Running {
        running_text(deployment).clone_into(&mut deployment.status_description);
    }
    step.evaluate = true;
}

/// The failed deployment, and the version to revert to.
fn fail(input: &DeploymentInput<'_>, mut deployment: Deployment, why: &str, reverts: bool) -> DeploymentStep {
    deployment.status = DeploymentStatus::Failed;
    deployment.modify_time = input.now;
    let (text, revert) = if reverts { rollback(input, why) } else { (why.to_owned(), None) };
    deployment.status_description = text;
    DeploymentStep { deployment: Some(deployment), evaluate: true, revert, ..DeploymentStep::default() }
}

/// The last stable version before the deployment's, and the description of the rollback.
fn rollback(input: &DeploymentInput<'_>, why: &str) -> (String, Option<u64>) {
    let own = input.deployment.job_version;
    let stable = input.versions.iter().filter(|version| version.stable && version.version < own);
    let Some(stable) = stable.max_by_key(|version| version.version) else {
        return (format!("{why} - no stable job version to auto revert to"), None);
    };
    let number = stable.version;
    let is_same =
        input.versions.iter().find(|version| version.version == own).is_some_and(|own| is_same_spec(own, stable));
    if is_same {
        let text =
            format!("{why} - not rolling back to stable job version {number} as current job has same specification");
        return (text, None);
    }
    (format!("{why} - rolling back to job version {number}"), Some(number))
}

/// Marks a deployment as failed, on request.
///
/// # Errors
/// The deployment has ended.
pub fn fail_deployment(input: &DeploymentInput<'_>) -> Result<DeploymentStep, String> {
    live(input, "fail")?;
    let reverts = input.deployment.task_groups.values().any(|part| part.auto_revert);
    Ok(fail(input, input.deployment.clone(), texts::FAILED_BY_USER, reverts))
}

/// Pauses or resumes a deployment, on request.
///
/// # Errors
/// The deployment has ended.
pub fn pause_deployment(input: &DeploymentInput<'_>, pause: bool) -> Result<DeploymentStep, String> {
    live(input, if pause { "pause" } else { "resume" })?;
    let mut deployment = input.deployment.clone();
    deployment.modify_time = input.now;
    if pause {
        deployment.status = DeploymentStatus::Paused;
        texts::PAUSED.clone_into(&mut deployment.status_description);
    } else {
        deployment.status = DeploymentStatus::Running;
        texts::RUNNING.clone_into(&mut deployment.status_description);
        // The time of the pause does not count against the progress deadline.
        for part in deployment.task_groups.values_mut().filter(|part| part.require_progress_by.0.is_some()) {
            part.require_progress_by = Stamp(Some(input.now.plus(part.progress_deadline.duration())));
        }
    }
    Ok(DeploymentStep { deployment: Some(deployment), evaluate: !pause, ..DeploymentStep::default() })
}

/// Promotes the canaries of some groups, or of all, on request.
///
/// # Errors
/// The deployment has ended, has nothing to promote, or a group's canaries are not healthy.
pub fn promote_deployment(input: &DeploymentInput<'_>, groups: Option<&[String]>) -> Result<DeploymentStep, String> {
    live(input, "promote")?;
    let is_asked = |name: &String| groups.is_none_or(|groups| groups.contains(name));
    let waiting =
        || input.deployment.task_groups.iter().filter(|(name, part)| is_asked(name) && waits_for_promotion(part));
    if waiting().next().is_none() {
        return Err("no canaries to promote".to_owned());
    }
    let mut problems = Vec::new();
    for (name, part) in waiting() {
        let healthy = healthy_canaries(input, name, part);
        if healthy < part.desired_canaries {
            problems.push(format!("Task group \"{name}\" has {healthy}/{} healthy allocations", part.desired_canaries));
        }
    }
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    let names: Vec<String> = waiting().map(|(name, _)| name.clone()).collect();
    let mut deployment = counted(input);
    let mut step = DeploymentStep::default();
    promote_groups(&mut deployment, input, &names, &mut step);
    deployment.modify_time = input.now;
    step.deployment = Some(deployment);
    Ok(step)
}

/// Sets the health of allocations, on request; returns the changed allocations, as input for [`deployment_step`].
///
/// # Errors
/// The deployment has ended, or an allocation does not belong to it.
pub fn set_health(
    input: &DeploymentInput<'_>,
    healthy: &[String],
    unhealthy: &[String],
) -> Result<Vec<Allocation>, String> {
    if input.deployment.status.is_terminal() {
        return Err("can't set health of allocations for a terminal deployment".to_owned());
    }
    let said = healthy.iter().map(|id| (id, true)).chain(unhealthy.iter().map(|id| (id, false)));
    let set = |(id, is_healthy): (&String, bool)| {
        let own = input.allocs.iter().find(|alloc| alloc.id == *id && alloc.deployment_id == input.deployment.id);
        let mut alloc =
            own.cloned().ok_or_else(|| format!("alloc {id:?} is not part of deployment {:?}", input.deployment.id))?;
        let canary = alloc.deployment_status.as_ref().is_some_and(|status| status.canary);
        let timestamp = Stamp(Some(input.now));
        alloc.deployment_status =
            Some(DeploymentHealth { healthy: Some(is_healthy), timestamp, canary, modify_index: 0 });
        alloc.modify_time = input.now;
        Ok(alloc)
    };
    said.map(set).collect()
}

/// The step after [`set_health`], whose result is among the input. What a user says is unhealthy fails the deployment at once, also
/// a paused one, whatever its policy would replace.
#[must_use]
pub fn health_step(input: &DeploymentInput<'_>, unhealthy: &[String]) -> DeploymentStep {
    if unhealthy.is_empty() {
        return DeploymentStep { evaluate: true, ..deployment_step(input) };
    }
    let deployment = counted(input);
    let named = input.allocs.iter().filter(|alloc| unhealthy.contains(&alloc.id));
    let mut parts = named.filter_map(|alloc| deployment.task_groups.get(&alloc.task_group));
    let own = input.deployment.job_version;
    // Without a stable version nothing is said of it, as in Nomad.
    let is_stable = |version: &JobVersion| version.stable && version.version < own;
    let reverts = parts.any(|part| part.auto_revert) && input.versions.iter().any(is_stable);
    fail(input, deployment, texts::FAILED_ALLOCS, reverts)
}

fn live(input: &DeploymentInput<'_>, verb: &str) -> Result<(), String> {
    if input.deployment.status.is_terminal() {
        return Err(format!("can't {verb} terminal deployment"));
    }
    Ok(())
}
