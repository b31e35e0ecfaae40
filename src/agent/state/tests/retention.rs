//! What is forgotten, and what is made again from records. (N8)

use std::sync::Mutex;

use serde_json::json;

use super::making::{alloc, deployment, eval, job, long_spec};
use super::{check, empty, key};
use crate::agent::model::{
    Allocation, ClientStatus, DeploymentStatus, DesiredStatus, EvalStatus, Evaluation, JobStatus, JobVersion, Nanos,
    RescheduleEvent, RescheduleTracker,
};
use crate::agent::state::{Adoptable, Age, Garbage, State};
use crate::spec::JobType;

const HOUR: i64 = 3600 * 1_000_000_000;

/// A job with an evaluation, an allocation that ended and a deployment, all of the moment 1.
async fn ended(state: &State, id: &'static str, kind: &'static str, stop: bool, status: ClientStatus) {
    state
        .change(move |change| {
            let of = key(id);
            let mut new = job(id, kind);
            new.stop = stop;
            if status == ClientStatus::Failed {
                // It is replaced later, and the job is not dead until then.
                new.spec["TaskGroups"][0]["ReschedulePolicy"] = json!({"Unlimited": true});
                change.put_eval(eval(&format!("{id}-later"), &of, EvalStatus::Pending))?;
            }
            let new = change.put_job(new, None)?;
            let mut decided = eval(&format!("{id}-e"), &of, EvalStatus::Complete);
            if kind == "batch" {
                decided.kind = JobType::Batch;
            }
            change.put_eval(decided)?;
            let mut placed = alloc(&format!("{id}-a"), &of, new.version, &format!("{id}-e"));
            placed.client_status = status;
            placed.deployment_id = format!("{id}-d");
            change.put_alloc(placed)?;
            change.put_deployment(deployment(&format!("{id}-d"), &of, DeploymentStatus::Successful))
        })
        .await
        .unwrap();
}

/// What is forgotten, and what was to be removed from the machine before.
async fn collect(state: &State, now: i64, force: bool) -> Vec<String> {
    let removed = Mutex::new(Vec::new());
    let remove = |ids: Vec<String>| {
        let view = state.read().unwrap();
        assert!(ids.iter().all(|id| view.alloc(id).unwrap().is_some()), "they are known until nothing of them is left");
        removed.lock().unwrap().extend(ids);
        std::future::ready(())
    };
    let gone = state.collect(Age { now: Nanos(now), force }, remove).await.unwrap();
    let name = |one: Garbage| match one {
        Garbage::Job(key) => key.id,
        Garbage::Eval(id) | Garbage::Alloc(id) | Garbage::Deployment(id) | Garbage::Token(id) => id,
    };
    let mut all = removed.into_inner().unwrap();
    all.extend(gone.into_iter().map(name));
    all.sort();
    all.dedup();
    all
}

#[tokio::test]
async fn what_ended_is_forgotten_after_nomad_s_times_and_at_once_when_forced() {
    let state = empty();
    ended(&state, "live", "service", false, ClientStatus::Running).await;
    ended(&state, "failed", "service", false, ClientStatus::Failed).await;
    ended(&state, "gone", "service", true, ClientStatus::Complete).await;
    ended(&state, "batch", "batch", false, ClientStatus::Complete).await;
    assert_eq!(collect(&state, HOUR / 2, false).await, [""; 0]);
    // After an hour: deployments of what has ended, and the evaluation of the job that was stopped.
    let first = collect(&state, HOUR + 2, false).await;
    assert_eq!(first, ["batch-d", "failed-d", "gone-a", "gone-d", "gone-e"]);
    check(&state.read().unwrap());
    // After four: the jobs themselves. A batch job that ended is over; what failed and lives on has not been replaced.
    let second = collect(&state, 4 * HOUR + 2, false).await;
    assert_eq!(second, ["batch", "batch-a", "gone"]);
    check(&state.read().unwrap());
    assert_eq!(collect(&state, i64::MAX, false).await, [""; 0], "live ones stay for ever");
    let left: Vec<_> = state.read().unwrap().job_keys(None, "").all().unwrap();
    assert_eq!(left, [key("failed"), key("live")]);
    state
        .change(|change| {
            change.delete_eval("failed-later")?;
            let mut stopped = job("failed", "service");
            stopped.stop = true;
            change.put_job(stopped, None).map(drop)
        })
        .await
        .unwrap();
    let forced = collect(&state, 0, true).await;
    assert_eq!(forced, ["failed", "failed-a"]);
    let view = state.read().unwrap();
    assert_eq!(view.allocs("").all().unwrap().len(), 1);
    check(&view);
}

#[tokio::test]
async fn of_a_batch_job_that_goes_on_what_older_versions_did_is_forgotten() {
    let state = empty();
    ended(&state, "batch", "batch", false, ClientStatus::Complete).await;
    state
        .change(|change| {
            let of = key("batch");
            let new = change.put_job(job("batch", "batch"), None)?;
            for id in ["new-e", "idle-e"] {
                change.put_eval(Evaluation { kind: JobType::Batch, ..eval(id, &of, EvalStatus::Complete) })?;
            }
            for (id, client_status) in [("done", ClientStatus::Complete), ("runs", ClientStatus::Running)] {
                change.put_alloc(Allocation { client_status, ..alloc(id, &of, new.version, "new-e") })?;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(collect(&state, 23 * HOUR, false).await, ["batch-d"]);
    assert_eq!(collect(&state, 24 * HOUR + 2, false).await, ["batch-a", "batch-e", "idle-e"]);
    check(&state.read().unwrap());
    assert_eq!(collect(&state, i64::MAX, true).await, [""; 0], "it would be run again");
}

#[tokio::test]
async fn what_ended_beside_what_goes_on_is_forgotten_unless_it_may_be_replaced() {
    let state = empty();
    let event = RescheduleEvent {
        reschedule_time: Nanos(1),
        prev_alloc_id: String::new(),
        prev_node_id: String::new(),
        delay: Nanos(0),
    };
    let tracker = RescheduleTracker { events: vec![event] };
    state
        .change(|change| {
            let of = key("web");
            let mut new = job("web", "service");
            new.spec["TaskGroups"][0]["ReschedulePolicy"] =
                json!({"Attempts": 1, "Interval": HOUR, "Unlimited": false});
            let new = change.put_job(new, None)?;
            change.put_eval(eval("e", &of, EvalStatus::Complete))?;
            let placed = |id: &str, client_status| Allocation { client_status, ..alloc(id, &of, new.version, "e") };
            let failed = |id: &str| placed(id, ClientStatus::Failed);
            for alloc in [
                placed("runs", ClientStatus::Running),
                placed("complete", ClientStatus::Complete),
                placed("lost", ClientStatus::Lost),
                failed("waits"),
                Allocation { desired_status: DesiredStatus::Stop, ..failed("stopped") },
                Allocation { next_allocation: "runs".to_owned(), ..failed("replaced") },
                Allocation { reschedule_tracker: Some(tracker), ..failed("long-ago") },
            ] {
                change.put_alloc(alloc)?;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(collect(&state, HOUR / 2, false).await, [""; 0]);
    let gone = collect(&state, HOUR + 2, false).await;
    assert_eq!(gone, ["complete", "long-ago", "lost", "replaced", "stopped"]);
    check(&state.read().unwrap());
    assert_eq!(collect(&state, HOUR + 2, true).await, [""; 0]);
}

#[tokio::test]
async fn a_great_deal_is_forgotten_in_several_changes() {
    let state = empty();
    let start = state.index();
    state
        .change(|change| {
            for number in 0..700 {
                change.put_eval(eval(&format!("e{number:03}"), &key("none"), EvalStatus::Complete))?;
            }
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(collect(&state, 0, true).await.len(), 700);
    assert!(state.index() >= start + 4, "others come in between");
    assert!(state.read().unwrap().evals("").next().is_none());
}

#[tokio::test]
async fn jobs_and_allocations_are_made_again_from_their_records() {
    let state = empty();
    let found = |id: &str, version: u64, incarnation: u64| {
        let of = JobVersion { version, create_index: incarnation, spec: long_spec("web"), ..job("web", "service") };
        let alloc = Allocation {
            name: "web.g[3]".to_owned(),
            client_status: ClientStatus::Pending,
            task_states: super::making::told(2),
            deployment_id: "lost".to_owned(),
            ..alloc(id, &of.key, version, "lost")
        };
        Adoptable { alloc, job: of, is_stopped: false }
    };
    let mut records = vec![found("a", 4, 70), found("b", 2, 70), found("c", 4, 70), found("d", 9, 60)];
    records[2].alloc.previous_allocation = "b".to_owned();
    records[1].is_stopped = true;
    let mut stopped = found("s", 1, 80);
    stopped.is_stopped = true;
    stopped.job.key = key("stopped");
    stopped.alloc.job_id = "stopped".to_owned();
    records.push(stopped);
    let again = records.clone();
    let node = ("node", "here");
    let (_, adoption) = state.change(move |change| change.adopt_records(records, node, Nanos(10))).await.unwrap();
    assert_eq!(adoption.jobs, [key("stopped"), key("web")]);
    assert_eq!(adoption.allocs, ["s", "a", "b", "c"]);
    assert_eq!(adoption.left, ["d"], "another job that had the name");
    let view = state.read().unwrap();
    let web = view.job(&key("web")).unwrap().unwrap();
    assert_eq!((web.version, web.status, web.stop), (4, JobStatus::Running, false));
    assert!(view.job(&key("stopped")).unwrap().unwrap().stop);
    assert_eq!(view.versions(&key("web")).unwrap().iter().map(|job| job.version).collect::<Vec<_>>(), [4, 2]);
    let alloc = |id: &str| view.alloc(id).unwrap().unwrap();
    let first = alloc("a");
    assert_eq!((first.name.as_str(), first.client_status, first.index()), ("web.g[3]", ClientStatus::Pending, 3));
    assert_eq!((first.deployment_id.as_str(), first.task_states.len()), ("", 0));
    assert_eq!((alloc("b").next_allocation.as_str(), alloc("b").desired_status), ("c", DesiredStatus::Stop));
    assert_eq!(view.summary(&key("web")).unwrap().unwrap().summary["g"].starting, 3);
    assert!(view.eval(&first.eval_id).unwrap().unwrap().status.is_terminal());
    check(&view);
    let (_, adoption) = state.change(move |change| change.adopt_records(again, node, Nanos(11))).await.unwrap();
    assert_eq!(adoption.known, ["a", "b", "c", "s"]);
    assert!(adoption.jobs.is_empty() && adoption.allocs.is_empty());
    assert_eq!(adoption.left, ["d"], "its name is still another job's");
    let next = state.change(|change| change.put_job(job("web", "service"), None)).await.unwrap().1;
    assert_eq!(next.version, 5, "its versions go on");
    check(&state.read().unwrap());
}
