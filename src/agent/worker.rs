//! Decides evaluations, one after the other: what there is goes through `schedule`, what comes out is kept in one change, and the
//! engine carries it out.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, key, new_id, now};
use super::jobs::Jobs;
use super::model::{Allocation, DynamicVolume, EvalStatus, Evaluation, JobKey, JobVersion, Nanos};
use super::schedule::{self, Input, Plan};
use super::settings;
use super::state::{Change, StateError, View};
use crate::jobspec::{GroupChange, group_change};
use crate::spec::Job;
use crate::sys::lock::lock;

/// When a decision is tried again that could not be kept.
const AGAIN: Duration = Duration::from_secs(5);

/// Decides for ever.
pub(super) async fn run(core: Arc<Core>) {
    // Something was decided that the engine may not have heard of.
    let mut is_behind = false;
    loop {
        let id = core.broker.next().await;
        let mut done = process(&core, &id).await;
        if is_behind && done.is_ok() {
            done = core.catch_up().await;
        }
        is_behind = done.is_err();
        if let Err(error) = done {
            tracing::error!(
                eval = id,
                error = crate::alloc::chain(&error),
                "cannot decide an evaluation, or have it carried out; trying again"
            );
            core.broker.again(&id, now().plus(AGAIN));
        }
    }
}

/// What was decided, for those who act on it.
struct Decided {
    evals: Vec<Evaluation>,
    allocs: Vec<Allocation>,
}

/// Waits for the drivers of the evaluation's job.
async fn hear(core: &Core, id: &str) -> Result<(), StateError> {
    if core.late.borrow().is_empty() {
        return Ok(());
    }
    let view = core.state.read()?;
    let Some(eval) = view.eval(id)? else { return Ok(()) };
    let job = view.job(&key(&eval.namespace, &eval.job_id))?.and_then(|job| core.jobs.of(&job).ok());
    drop(view);
    let tasks = || job.iter().flat_map(|job| &job.groups).flat_map(|group| &group.tasks);
    core.hear(|driver| tasks().any(|task| task.driver == driver)).await;
    Ok(())
}

async fn process(core: &Arc<Core>, id: &str) -> Result<(), StateError> {
    hear(core, id).await?;
    let (shared, eval) = (Arc::clone(core), id.to_owned());
    let (_, decided) = core.state.change(move |change| decide(&shared, change, &eval)).await?;
    if let Some(Decided { evals, allocs }) = decided {
        for eval in &evals {
            core.broker.put(eval);
        }
        core.carry_out(allocs).await?;
        core.deployments.notify_one();
        core.drain.notify_one();
    }
    Ok(())
}

/// In the state's writer: nothing else changes meanwhile.
fn decide(core: &Core, change: &mut Change<'_>, id: &str) -> Result<Option<Decided>, StateError> {
    let Some(eval) = change.eval(id)?.filter(|eval| !eval.status.is_terminal()) else { return Ok(None) };
    let key = key(&eval.namespace, &eval.job_id);
    let job = change.job(&key)?;
    let read = job.as_ref().map(|job| core.jobs.of(job)).transpose();
    let read = match read {
        Ok(read) => read,
        Err(why) => {
            let eval = Evaluation {
                status: EvalStatus::Failed,
                status_description: format!("the job cannot be read: {}", why.join("; ")),
                modify_time: now(),
                ..eval
            };
            change.put_eval(eval.clone())?;
            return Ok(Some(Decided { evals: vec![eval], allocs: Vec::new() }));
        }
    };
    let plan = plan(core, change, &eval, job.as_ref().zip(read.as_ref()))?;
    keep(change, &key, job.as_ref(), plan).map(Some)
}

/// What would be decided of this evaluation now.
pub(super) fn plan(
    core: &Core,
    view: &View,
    eval: &Evaluation,
    job: Option<(&JobVersion, &Arc<Job>)>,
) -> Result<Plan, StateError> {
    let key = key(&eval.namespace, &eval.job_id);
    let Some(node) = view.node()? else {
        return Err(StateError::Invalid("the node has not been described yet".to_owned()));
    };
    let allocs = view.allocs_of_job(&key)?;
    let mut others = Vec::new();
    for alloc in view.live_allocs() {
        let alloc = alloc?;
        if alloc.job_id != key.id || alloc.namespace != key.namespace {
            others.push(alloc);
        }
    }
    let deployments = view.deployments_of_job(&key)?;
    let blocked: Vec<Evaluation> = {
        let evals = view.evals_of_job(&key)?;
        evals.into_iter().filter(|other| other.status == EvalStatus::Blocked).collect()
    };
    let version = |version| version_of(&core.jobs, view, &key, version);
    let known: RefCell<HashMap<(u64, String), GroupChange>> = RefCell::default();
    let changed = |old: u64, group: &str| {
        *known.borrow_mut().entry((old, group.to_owned())).or_insert_with(|| match (view.version(&key, old), job) {
            (Ok(Some(old)), Some((new, _))) => group_change(&old.spec, &new.spec, group),
            _ => GroupChange::Destructive,
        })
    };
    let volumes = view.volumes().all()?;
    let csi = super::csi::used(view, &key.namespace, job.map(|(_, job)| &**job))?;
    let writers = |volume: &DynamicVolume| match view.users_of_volume(volume) {
        Ok(users) => users.into_iter().filter(|(_, how)| how.writes).map(|(alloc, _)| (alloc.id, alloc.name)).collect(),
        // Somebody may.
        Err(error) => vec![(String::new(), crate::alloc::chain(&error))],
    };
    let mut plan = schedule::reconcile(&Input {
        eval,
        job,
        version: &version,
        change: &changed,
        allocs: &allocs,
        others: &others,
        deployment: deployments.last(),
        blocked: &blocked,
        node: &node,
        volumes: &volumes,
        csi: &csi,
        writers: &writers,
        holder: &|port| core.engine.port_holder(port),
        last_used: &|port| lock(&core.ports).last(port),
        now: now(),
        id: &new_id,
    });
    if !settings::is_on(view, settings::MEMORY)? {
        for alloc in plan.allocs.iter_mut().filter(|alloc| alloc.create_index == 0) {
            alloc.allocated_resources.tasks.values_mut().for_each(|task| task.memory_max_mb = 0);
        }
    }
    Ok(plan)
}

fn version_of(jobs: &Jobs, view: &View, key: &JobKey, version: u64) -> Option<Arc<Job>> {
    let version = view.version(key, version).ok()??;
    jobs.of(&version).ok()
}

/// Whether an evaluation waits for the same as before: that is looked at again and again, and is not news.
fn goes_on_waiting(view: &View, eval: &Evaluation) -> Result<bool, StateError> {
    let known = if eval.status == EvalStatus::Blocked { view.eval(&eval.id)? } else { None };
    Ok(known.is_some_and(|known| {
        let (modify_index, modify_time) = (known.modify_index, known.modify_time);
        known == Evaluation { modify_index, modify_time, ..eval.clone() }
    }))
}

/// Writes a plan down.
fn keep(change: &mut Change<'_>, key: &JobKey, job: Option<&JobVersion>, plan: Plan) -> Result<Decided, StateError> {
    let Plan { eval, allocs, deployments, evals, stable, .. } = plan;
    let mut decided = Decided { evals: Vec::new(), allocs: Vec::new() };
    for deployment in deployments {
        change.put_deployment(deployment)?;
    }
    for alloc in allocs {
        let id = alloc.id.clone();
        change.put_alloc(alloc)?;
        change.claim_volumes(&id)?;
        // As it is kept.
        decided.allocs.extend(change.alloc(&id)?);
    }
    for eval in evals.into_iter().chain([eval]) {
        if goes_on_waiting(change, &eval)? {
            // It has seen everything that there is.
            decided.evals.push(Evaluation { modify_index: change.next_index() - 1, ..eval });
            continue;
        }
        let eval = Evaluation { modify_time: now(), modify_index: change.next_index(), ..eval };
        let eval =
            Evaluation { create_time: if eval.create_time == Nanos(0) { now() } else { eval.create_time }, ..eval };
        change.put_eval(eval.clone())?;
        decided.evals.push(eval);
    }
    if let Some(job) = job.filter(|job| stable && !job.stable) {
        change.set_stable(key, job.version, true)?;
    }
    Ok(decided)
}

#[cfg(test)]
mod tests {
    use super::super::core::evaluation;
    use super::super::model::Trigger;
    use super::super::state::State;
    use super::*;
    use crate::spec::JobType;
    use crate::spec::collections::BTreeMap;

    #[tokio::test]
    async fn who_goes_on_waiting_for_the_same_is_no_news() {
        let dir = tempfile::tempdir().unwrap();
        let state = State::open(dir.path()).unwrap();
        let waits = Evaluation {
            status: EvalStatus::Blocked,
            ..evaluation("e".to_owned(), ("default", "web"), JobType::Service, Trigger::QueuedAllocs)
        };
        let waits = Evaluation { create_time: Nanos(1), ..waits };
        let decide = |eval: Evaluation| {
            state.change(move |change| {
                let plan = Plan {
                    eval,
                    allocs: Vec::new(),
                    deployments: Vec::new(),
                    evals: Vec::new(),
                    desired: BTreeMap::new(),
                    stable: false,
                };
                keep(change, &key("default", "web"), None, plan)
            })
        };
        let (first, _) = decide(waits.clone()).await.unwrap();
        let waits = state.read().unwrap().eval("e").unwrap().unwrap();
        let (second, again) = decide(Evaluation { modify_time: Nanos(7), ..waits.clone() }).await.unwrap();
        assert_eq!((second, again.evals[0].modify_index), (first, first), "nothing was written, and all was seen");
        let (third, _) = decide(Evaluation { status_description: "else".to_owned(), ..waits }).await.unwrap();
        assert_eq!(third, first + 1);
    }
}
