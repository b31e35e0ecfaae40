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
    while let Some(first) = reports.recv().await {
        let batch = together(first, &mut reports).await;
        // What cannot be kept now is not lost: the engine waits meanwhile.
        while let Err(error) = take(&core, batch.clone()).await {
            tracing::error!(error = crate::alloc::chain(&error), "cannot keep the state of allocations; trying again");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Reports that are kept in one change, by allocation; of each, the last one counts.
async fn together(first: Report, reports: &mut mpsc::Receiver<Report>) -> BTreeMap<String, Report> {
    let mut batch = BTreeMap::new();
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
    batch
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(id: &str, client_status: ClientStatus) -> Report {
        Report {
            id: id.to_owned(),
            client_status,
            client_description: String::new(),
            task_states: BTreeMap::default(),
            network_status: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn that_a_task_runs_is_kept_at_once_and_that_it_is_prepared_is_kept_with_what_comes_next() {
        let (say, mut reports) = mpsc::channel(MOST * 2);
        let began = Instant::now();
        let batch = together(report("a", ClientStatus::Running), &mut reports).await;
        assert_eq!((began.elapsed(), batch.len()), (Duration::ZERO, 1));

        let began = Instant::now();
        let later = say.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            later.send(report("a", ClientStatus::Running)).await.unwrap();
            later.send(report("b", ClientStatus::Pending)).await.unwrap();
        });
        let batch = together(report("a", ClientStatus::Pending), &mut reports).await;
        assert_eq!(began.elapsed(), Duration::from_millis(10), "no longer than until it runs");
        assert_eq!(batch["a"].client_status, ClientStatus::Running);
        assert_eq!(batch.len(), 2, "what is there already is kept too");

        let began = Instant::now();
        let batch = together(report("a", ClientStatus::Pending), &mut reports).await;
        assert_eq!((began.elapsed(), batch.len()), (PREPARING, 1), "others do not wait for it without end");
    }

    #[tokio::test(start_paused = true)]
    async fn one_change_has_a_limit() {
        let (say, mut reports) = mpsc::channel(MOST * 2);
        for number in 0..=MOST {
            say.send(report(&number.to_string(), ClientStatus::Running)).await.unwrap();
        }
        let first = reports.recv().await.unwrap();
        assert_eq!(together(first, &mut reports).await.len(), MOST);
        assert_eq!(reports.len(), 1);
    }
}
