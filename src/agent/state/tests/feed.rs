//! Waiting, and the feed of events.

use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;

use super::making::{alloc, eval, job};
use super::{empty, key};
use crate::agent::model::{ClientStatus, EvalStatus};
use crate::agent::state::{Behind, Object, Table, Topic};

const LONG: Duration = Duration::from_mins(1);

#[tokio::test]
async fn who_waits_for_a_table_is_woken_by_it_and_by_no_other() {
    let state = empty();
    let start = state.index();
    let until = Instant::now() + LONG;
    let mut of_jobs = pin!(state.wait(&[Table::Jobs], start, until));
    let mut of_two = pin!(state.wait(&[Table::Jobs, Table::Settings], start, until));
    let waits = tokio::select! {
        biased;
        _ = &mut of_jobs => false,
        _ = &mut of_two => false,
        () = std::future::ready(()) => true,
    };
    assert!(waits);
    let (index, ()) = state.change(|change| change.put_setting("a", &serde_json::json!(1))).await.unwrap();
    assert_eq!(index, start + 1);
    assert_eq!(of_two.await, index, "what is acknowledged wakes");
    let waits = tokio::select! {
        biased;
        _ = &mut of_jobs => false,
        () = std::future::ready(()) => true,
    };
    assert!(waits, "a setting is not a job");
    let (index, job) = state.change(|change| change.put_job(job("web", "service"), None)).await.unwrap();
    assert_eq!(of_jobs.await, index);
    assert_eq!((job.create_index, job.modify_index, job.job_modify_index), (index, index, index));
    assert_eq!(state.wait(&[Table::Jobs], index - 1, until).await, index, "what was before is not waited for");
    assert_eq!(state.wait(&[], index - 1, until).await, index);
    assert_eq!(state.wait(&[Table::Jobs], index, Instant::now()).await, index, "the deadline ends it");
    // One that changes nothing wakes nobody and takes no index.
    let (same, ()) = state.change(|_| Ok(())).await.unwrap();
    assert_eq!((same, state.index()), (index, index));
    assert!(
        state
            .change(|change| {
                change.put_setting("b", &serde_json::json!(2))?;
                change.set_stable(&key("none"), 0, true)
            })
            .await
            .is_err()
    );
    assert_eq!((state.index(), state.read().unwrap().setting("b").unwrap()), (index, None), "an error leaves nothing");
}

#[tokio::test]
async fn the_feed_tells_what_happened_in_nomad_s_types() {
    let state = empty();
    let mut events = state.events(0);
    let web = key("web");
    let of = web.clone();
    state
        .change(move |change| {
            change.put_job(job("web", "service"), None)?;
            change.put_eval(eval("e1", &of, EvalStatus::Pending))
        })
        .await
        .unwrap();
    let of = web.clone();
    state.change(move |change| change.put_alloc(alloc("a1", &of, 0, "e1"))).await.unwrap();
    let running = |change: &mut crate::agent::state::Change<'_>| {
        let mut alloc = change.alloc("a1")?.unwrap();
        alloc.client_status = ClientStatus::Running;
        change.put_alloc(alloc)
    };
    state.change_soon(running).await.unwrap();
    state.change(running).await.unwrap();
    state
        .change(|change| {
            let mut alloc = change.alloc("a1")?.unwrap();
            alloc.desired_transition.migrate = Some(true);
            change.put_alloc(alloc)
        })
        .await
        .unwrap();
    let of = web.clone();
    state.change(move |change| change.delete_job(&of)).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..5 {
        let batch = events.next().await.unwrap();
        for event in &batch.events {
            told.push((batch.index, event.topic.as_str(), event.kind, event.key.clone(), event.deleted));
        }
    }
    let told: Vec<_> = told.iter().map(|(i, t, k, key, deleted)| (*i, *t, *k, key.as_str(), *deleted)).collect();
    assert_eq!(
        told,
        [
            (2, "Job", "JobRegistered", "web", false),
            (2, "Evaluation", "JobRegistered", "e1", false),
            (3, "Allocation", "PlanResult", "a1", false),
            (3, "Job", "PlanResult", "web", false),
            (4, "Allocation", "AllocationUpdated", "a1", false),
            (5, "Allocation", "AllocationUpdateDesiredStatus", "a1", false),
            (6, "Job", "JobDeregistered", "web", true),
        ]
    );
    let batch = state.events(4).next().await.unwrap();
    assert_eq!(batch.index, 4);
    let object = batch.events[0].object().unwrap();
    assert!(matches!(object, Object::Allocation(alloc) if alloc.client_status == ClientStatus::Running));
    assert_eq!(batch.events[0].filter_keys, ["web", ""]);
    assert_eq!(batch.events[0].topic, Topic::Allocation);
}

#[tokio::test]
async fn who_is_too_slow_for_the_feed_is_told_and_holds_nothing_up() {
    let state = empty();
    let mut slow = state.events(0);
    for number in 0..150_u32 {
        state.change(move |change| change.put_job(job(&format!("job{number}"), "batch"), None)).await.unwrap();
    }
    assert_eq!(slow.next().await.unwrap_err(), Behind);
    let oldest = slow.next().await.unwrap().index;
    assert_eq!(oldest, state.index() - 99, "100 changes are kept");
    assert_eq!(state.events(0).next().await.unwrap().index, oldest);
}
