//! What the engine reports becomes the allocations' state, and what follows from it: evaluations of jobs whose allocations failed,
//! successors that may start, others that waited for what is free now.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::core::{Core, key, now};
use super::engine::Report;
use super::model::{Allocation, ClientStatus, DesiredStatus, Evaluation, JobKey, Trigger};
use super::schedule::{self, Verdict};
use super::state::{Change, StateError, View};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Group, JobType};
use crate::sys::lock::lock;

/// Allocations of one change.
const MOST: usize = 256;
/// How long news of tasks that are being prepared wait: mostly the next is that they run, which is kept at once.
const PREPARING: Duration = Duration::from_millis(25);
/// When a change is tried again that could not be kept.
const AGAIN: Duration = Duration::from_secs(5);

/// Takes reports until there is no engine any more.
pub(super) async fn run(core: Arc<Core>, mut reports: mpsc::Receiver<Report>) {
    let mut batch: BTreeMap<String, Report> = BTreeMap::new();
    while let Some(first) = reports.recv().await {
        let until = Instant::now() + PREPARING;
        let (mut next, mut is_urgent) = (Some(first), false);
        while let Some(report) = next {
            is_urgent |= report.client_status != ClientStatus::Pending;
            batch.insert(report.id.clone(), report);
            next = if batch.len() == MOST {
                None
            } else if is_urgent {
                // Those that came while the last ones were kept.
                reports.try_recv().ok()
            } else {
                timeout_at(until, reports.recv()).await.ok().flatten()
            };
        }
        // What cannot be kept now is not lost: the engine waits meanwhile.
        while let Err(error) = take(&core, batch.clone()).await {
            tracing::error!(error = crate::alloc::chain(&error), "cannot keep the state of allocations; trying again");
            tokio::time::sleep(AGAIN).await;
        }
        batch.clear();
    }
}

/// What follows from reports.
#[derive(Default)]
struct Followed {
    evals: Vec<Evaluation>,
    ended: Vec<Allocation>,
}

async fn take(core: &Arc<Core>, batch: BTreeMap<String, Report>) -> Result<(), StateError> {
    let shared = Arc::clone(core);
    let (index, followed) = core.state.change(move |change| keep(&shared, change, batch)).await?;
    for alloc in &followed.ended {
        lock(&core.ports).add(alloc);
        for successor in core.successors(&alloc.id) {
            core.engine.start(successor).await;
        }
    }
    for eval in &followed.evals {
        core.broker.put(eval);
    }
    if !followed.ended.is_empty() {
        core.broker.unblock(schedule::Change::AllocEnded, index);
        core.drain.notify_one();
    }
    core.deployments.notify_one();
    core.services.notify_one();
    Ok(())
}

/// Whether a decision about a failed allocation can come to anything: its policy may say that it is left as it is.
fn may_be_replaced(core: &Core, view: &View, alloc: &Allocation) -> Result<bool, StateError> {
    let job = view.version_of(alloc)?.and_then(|version| core.jobs.of(&version).ok());
    let Some(job) = job.filter(|job| matches!(job.kind, JobType::Service | JobType::Batch)) else { return Ok(true) };
    let group = job.groups.iter().find(|group| group.name == alloc.task_group);
    let verdict = |group: &Group| schedule::verdict(group.scheduling.reschedule.as_ref(), alloc, now());
    Ok(group.is_none_or(|group| verdict(group) != Verdict::Never))
}

fn keep(core: &Core, change: &mut Change<'_>, batch: BTreeMap<String, Report>) -> Result<Followed, StateError> {
    let mut followed = Followed::default();
    let mut failed: BTreeSet<JobKey> = BTreeSet::new();
    for report in batch.into_values() {
        // One that was forgotten meanwhile.
        let Some(mut alloc) = change.alloc(&report.id)? else { continue };
        if alloc.client_status.is_terminal() && !report.client_status.is_terminal() {
            continue;
        }
        let before = alloc.clone();
        let had_ended = before.client_status.is_terminal();
        (alloc.client_status, alloc.client_description) = (report.client_status, report.client_description);
        if !report.task_states.is_empty() {
            alloc.task_states = report.task_states;
        }
        alloc.network_status = report.network_status.or(alloc.network_status);
        if alloc == before {
            continue;
        }
        alloc.modify_time = now();
        let job = key(&alloc.namespace, &alloc.job_id);
        if alloc.client_status.is_terminal() && !had_ended {
            let has_failed = alloc.client_status == ClientStatus::Failed && alloc.desired_status == DesiredStatus::Run;
            if has_failed && may_be_replaced(core, change, &alloc)? {
                failed.insert(job);
            }
            followed.ended.push(alloc.clone());
        }
        change.put_alloc(alloc)?;
    }
    for key in failed {
        if let Some(job) = change.job(&key)?.filter(|job| !job.stop) {
            let eval = core.evaluation_of(&job, Trigger::AllocFailure);
            change.put_eval(eval.clone())?;
            followed.evals.push(eval);
        }
    }
    Ok(followed)
}
