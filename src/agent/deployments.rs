//! Watches deployments: determines the health of their allocations, and applies the steps that `schedule` decides.

use std::sync::Arc;
use std::time::Duration;

use super::commands::CommandError;
use super::core::{Core, key, now};
use super::health::{Verdict, judge};
use super::model::{
    Allocation, Deployment, DeploymentHealth, DesiredStatus, Evaluation, JobVersion, Nanos, Stamp, TaskEvent, Trigger,
};
use super::schedule::{DeploymentInput, DeploymentStep, deployment_step};
use super::state::{Change, StateError, View};
use super::versions::{self, put_eval};
use crate::spec::collections::BTreeMap;

/// Delay before a failed step is retried.
const AGAIN: Duration = Duration::from_secs(10);

/// Runs forever.
pub(super) async fn run(core: Arc<Core>) {
    loop {
        let next = look(&core).await.unwrap_or_else(|error| {
            tracing::error!(error = crate::alloc::chain(&error), "cannot go on with the deployments");
            Some(now().plus(AGAIN))
        });
        super::core::wait(&core.deployments, next).await;
    }
}

fn earlier(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    one.into_iter().chain(other).min()
}

/// Advances all deployments; returns the time of the next check.
async fn look(core: &Arc<Core>) -> Result<Option<Nanos>, StateError> {
    let (mut next, mut due) = (None, Vec::new());
    {
        let view = core.state.read()?;
        for deployment in view.deployments("") {
            let deployment = deployment?;
            if deployment.status.is_terminal() {
                continue;
            }
            let mut said = Vec::new();
            for alloc in view.allocs_of_deployment(&deployment.id)? {
                match verdict(core, &view, &deployment, &alloc)? {
                    Some(Verdict::Healthy) => said.push((alloc.id, None)),
                    Some(Verdict::Unhealthy(why)) => said.push((alloc.id, Some(why))),
                    Some(Verdict::NotYet(when)) => next = earlier(next, Some(when)),
                    Some(Verdict::Manual) | None => {}
                }
            }
            let step = with_input(core, &view, &deployment, deployment_step)?;
            let changes = step.deployment.is_some() || !step.allocs.is_empty() || step.evaluate;
            next = earlier(next, step.next);
            if changes || !said.is_empty() {
                due.push((deployment.id, said));
            }
        }
    }
    for (id, said) in due {
        let shared = Arc::clone(core);
        let of = id.clone();
        let again = match core.state.change(move |change| step(&shared, change, &of, said)).await {
            Ok((_, (evals, again, allocs))) => {
                let told = core.carry_out(allocs).await;
                for eval in &evals {
                    core.broker.put(eval);
                }
                told?;
                again
            }
            // The other deployments continue.
            Err(error) => {
                tracing::error!(deployment = id, error = crate::alloc::chain(&error), "cannot go on with a deployment");
                Some(now().plus(AGAIN))
            }
        };
        next = earlier(next, again);
    }
    Ok(next)
}

/// The health verdict on an allocation; `None` if it is already recorded.
fn verdict(
    core: &Core,
    view: &View,
    deployment: &Deployment,
    alloc: &Allocation,
) -> Result<Option<Verdict>, StateError> {
    if alloc.deployment_status.as_ref().is_some_and(|health| health.healthy.is_some())
        || alloc.desired_status != DesiredStatus::Run
    {
        return Ok(None);
    }
    let job = view.version_of(alloc)?.and_then(|version| core.jobs.of(&version).ok());
    let group = job.as_ref().and_then(|job| job.groups.iter().find(|group| group.name == alloc.task_group));
    let Some((group, update)) = group.and_then(|group| Some((group, group.scheduling.update.as_ref()?))) else {
        return Ok(None);
    };
    // For an allocation that was updated in place, the time counts from the update.
    let begun = alloc.create_time.max(deployment.create_time);
    Ok(Some(judge(alloc, group, update, core.engine.checks_pass_since(&alloc.id), (begun, now()))))
}

/// Calls `decide` with the input for a deployment.
pub(super) fn with_input<T>(
    core: &Core,
    view: &View,
    deployment: &Deployment,
    decide: impl FnOnce(&DeploymentInput<'_>) -> T,
) -> Result<T, StateError> {
    let versions: Vec<JobVersion> = view.versions(&key(&deployment.namespace, &deployment.job_id))?;
    let allocs = view.allocs_of_deployment(&deployment.id)?;
    let own = versions.iter().find(|version| version.version == deployment.job_version);
    let job = own.and_then(|version| core.jobs.of(version).ok());
    Ok(decide(&DeploymentInput { deployment, versions: &versions, allocs: &allocs, job: job.as_deref(), now: now() }))
}

/// What a step of a deployment has led to: evaluations, a further value, and the changed allocations.
pub(super) type Followed<T> = (Vec<Evaluation>, Option<T>, Vec<Allocation>);

/// Records the verdicts and applies the resulting step; returns also the allocations that it has changed.
fn step(
    core: &Core,
    change: &mut Change<'_>,
    id: &str,
    said: Vec<(String, Option<&'static str>)>,
) -> Result<Followed<Nanos>, StateError> {
    for (id, unhealthy) in said {
        let Some(mut alloc) = change.alloc(&id)? else { continue };
        let canary = alloc.deployment_status.as_ref().is_some_and(|health| health.canary);
        let timestamp = Stamp(Some(now()));
        alloc.deployment_status =
            Some(DeploymentHealth { healthy: Some(unhealthy.is_none()), timestamp, canary, modify_index: 0 });
        if let Some(why) = unhealthy {
            explain(&mut alloc, why);
        }
        alloc.modify_time = now();
        change.put_alloc(alloc)?;
    }
    let Some(deployment) = change.deployment(id)? else { return Ok((Vec::new(), None, Vec::new())) };
    let step = with_input(core, change, &deployment, deployment_step)?;
    let next = step.next;
    let (evals, _, allocs) = keep(core, change, &deployment, step)?;
    Ok((evals, next, allocs))
}

/// Adds the reason to the events of its tasks.
fn explain(alloc: &mut Allocation, why: &str) {
    for state in alloc.task_states.values_mut() {
        state.events.push(TaskEvent {
            kind: "Alloc Unhealthy".to_owned(),
            time: now(),
            display_message: why.to_owned(),
            details: BTreeMap::new(),
        });
    }
}

/// Stores the changes to a deployment; returns the follow-up evaluations, the version that was restored, and the changed
/// allocations: the services of promoted ones have other tags.
pub(super) fn keep(
    core: &Core,
    change: &mut Change<'_>,
    deployment: &Deployment,
    step: DeploymentStep,
) -> Result<Followed<u64>, StateError> {
    let DeploymentStep { deployment: changed, allocs, evaluate, revert, .. } = step;
    if let Some(changed) = changed {
        change.put_deployment(changed)?;
    }
    for alloc in &allocs {
        change.put_alloc(alloc.clone())?;
    }
    let of = key(&deployment.namespace, &deployment.job_id);
    if let Some(version) = revert {
        match versions::revert(core, change, &of, version, Trigger::DeploymentWatcher) {
            Ok(kept) => return Ok((kept.eval.into_iter().collect(), Some(version), allocs)),
            Err(error @ CommandError::Failed { .. }) => return Err(StateError::Invalid(crate::alloc::chain(&error))),
            // An older agent accepted that version, and this one does not: the deployment has failed all the same.
            Err(error) => tracing::error!(job = of.id, version, %error, "cannot go back to a version"),
        }
    }
    let job = if evaluate { change.job(&of)? } else { None };
    let Some(job) = job else { return Ok((Vec::new(), None, allocs)) };
    let eval =
        Evaluation { deployment_id: deployment.id.clone(), ..core.evaluation_of(&job, Trigger::DeploymentWatcher) };
    Ok((vec![put_eval(change, eval)?], None, allocs))
}
