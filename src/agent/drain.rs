//! Drains the node, as `schedule` says.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, key, now};
use super::model::{DrainStatus, Evaluation, JobKey, Nanos, Trigger};
use super::node::{event, note_drain};
use super::schedule::{DrainStep, drain_step};
use super::state::{Change, StateError};
use super::versions::put_eval;
use crate::spec::JobType;

/// Delay before a failed step is retried.
const AGAIN: Duration = Duration::from_secs(5);

/// Runs forever and drains the node on request.
pub(super) async fn run(core: Arc<Core>) {
    loop {
        let next = step(&core).await.unwrap_or_else(|error| {
            tracing::error!(error = crate::alloc::chain(&error), "cannot drain the node; trying again");
            Some(now().plus(AGAIN))
        });
        super::core::wait(&core.drain, next).await;
    }
}

/// Does what is due; returns the time of the next step.
async fn step(core: &Arc<Core>) -> Result<Option<Nanos>, StateError> {
    let DrainStep { migrate, is_done, next } = {
        let view = core.state.read()?;
        let Some(drain) = view.node()?.and_then(|node| node.drain_strategy) else { return Ok(None) };
        let (mut live, mut plugins) = (Vec::new(), Vec::new());
        for alloc in view.live_allocs() {
            let alloc = alloc?;
            let version = view.version_of(&alloc)?;
            let job = version.and_then(|version| core.jobs.of(&version).ok());
            let kind = job.as_ref().map_or(JobType::Service, |job| job.kind);
            let group = job.as_ref().and_then(|job| job.groups.iter().find(|group| group.name == alloc.task_group));
            let is_plugin = group.is_some_and(|group| group.tasks.iter().any(|task| task.csi_plugin.is_some()));
            if is_plugin { &mut plugins } else { &mut live }.push((alloc, kind));
        }
        // CSI plugins go last: they unmount the volumes of the others.
        let step = drain_step(&drain, live.iter().map(|(alloc, kind)| (alloc, *kind)), now());
        if step.is_done {
            drain_step(&drain, live.iter().chain(&plugins).map(|(alloc, kind)| (alloc, *kind)), now())
        } else {
            step
        }
    };
    if is_done {
        core.state.change(finish).await?;
    } else if !migrate.is_empty() {
        let shared = Arc::clone(core);
        let (_, evals) = core.state.change(move |change| stop(&shared, change, &migrate)).await?;
        for eval in &evals {
            core.broker.put(eval);
        }
    }
    Ok(next)
}

fn stop(core: &Core, change: &mut Change<'_>, ids: &[String]) -> Result<Vec<Evaluation>, StateError> {
    let mut jobs = crate::spec::collections::BTreeSet::<JobKey>::new();
    for id in ids {
        let Some(mut alloc) = change.alloc(id)?.filter(|alloc| !alloc.is_terminal()) else { continue };
        alloc.desired_transition.migrate = Some(true);
        let job = change.version_of(&alloc)?.and_then(|version| core.jobs.of(&version).ok());
        if job.is_some_and(|job| job.kind == JobType::Batch) {
            // Only the deadline gets here. What it ended is not begun again when the node is eligible.
            alloc.desired_transition.migrate_disable_placement = Some(true);
        }
        jobs.insert(key(&alloc.namespace, &alloc.job_id));
        change.put_alloc(alloc)?;
    }
    let mut evals = Vec::new();
    for key in jobs {
        let Some(job) = change.job(&key)? else { continue };
        evals.push(put_eval(change, core.evaluation_of(&job, Trigger::NodeDrain))?);
    }
    Ok(evals)
}

fn finish(change: &mut Change<'_>) -> Result<(), StateError> {
    let Some(mut node) = change.node()?.filter(|node| node.drain_strategy.is_some()) else { return Ok(()) };
    let nothing = crate::spec::collections::BTreeMap::new();
    if let Some(drain) = node.drain_strategy.take() {
        note_drain(&mut node, drain.started_at, DrainStatus::Complete, &nothing, "");
    }
    event(&mut node, "Drain", "Node drain complete", nothing);
    change.put_node(node)
}
