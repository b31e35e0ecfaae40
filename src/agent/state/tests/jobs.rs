//! Jobs: versions, statuses, summaries; namespaces, the node.

use super::making::{alloc, deployment, eval, job};
use super::{check, empty, key};
use crate::agent::model::{
    ChildrenSummary, ClientStatus, DeploymentStatus, EvalStatus, GroupSummary, JobKey, JobStatus, Nanos,
    ServiceRegistration, Submission, VersionTag,
};
use crate::agent::state::{State, StateError, table};
use crate::spec::collections::BTreeMap;

async fn put(state: &State, id: &str, kind: &'static str) -> u64 {
    let submission = Submission { source: format!("job {id}"), format: "hcl2".to_owned(), ..Submission::default() };
    let next = job(id, kind);
    state.change(move |change| change.put_job(next, Some(submission))).await.unwrap().1.version
}

#[tokio::test]
async fn six_versions_and_the_tagged_ones_are_kept_and_those_that_run() {
    let state = empty();
    let web = key("web");
    for version in 0..3 {
        assert_eq!(put(&state, "web", "service").await, version);
    }
    let of = web.clone();
    let tag =
        |name: &str| Some(VersionTag { name: name.to_owned(), description: String::new(), tagged_time: Nanos(1) });
    let golden = tag("golden");
    state
        .change(move |change| {
            change.put_alloc(alloc("old", &of, 0, "e"))?;
            change.set_stable(&of, 1, true)?;
            change.set_tag(&of, 1, golden)
        })
        .await
        .unwrap();
    for version in 3..10 {
        assert_eq!(put(&state, "web", "service").await, version);
    }
    let view = state.read().unwrap();
    let listed: Vec<u64> = view.versions(&web).unwrap().iter().map(|job| job.version).collect();
    assert_eq!(listed, [9, 8, 7, 6, 5, 4, 1]);
    let tagged = view.tagged(&web, "golden").unwrap().unwrap();
    assert!(tagged.stable && tagged.version == 1);
    assert!(view.version(&web, 2).unwrap().is_none() && view.submission(&web, 2).unwrap().is_none());
    assert_eq!(view.submission(&web, 4).unwrap().unwrap().source, "job web");
    let old = view.alloc("old").unwrap().unwrap();
    assert_eq!(view.version_of(&old).unwrap().unwrap().version, 0, "an allocation has its version");
    check(&view);
    let (of, again) = (web.clone(), tag("golden"));
    let error = state.change(move |change| change.set_tag(&of, 9, again)).await.unwrap_err();
    assert!(matches!(&error, StateError::Conflict(text) if text.contains("version 1")), "{error}");
    let of = web.clone();
    state
        .change(move |change| {
            change.set_tag(&of, 1, None)?;
            change.delete_alloc("old")
        })
        .await
        .unwrap();
    let view = state.read().unwrap();
    assert_eq!(view.versions(&web).unwrap().len(), 6);
    assert!(view.version_of(&old).unwrap().is_none());
    check(&view);
}

#[tokio::test]
async fn the_last_stable_version_is_one_of_the_six() {
    let state = empty();
    let web = key("web");
    for version in 0..10 {
        assert_eq!(put(&state, "web", "service").await, version);
        if version < 3 {
            let of = web.clone();
            state.change(move |change| change.set_stable(&of, version, version > 0)).await.unwrap();
        }
    }
    let view = state.read().unwrap();
    let listed: Vec<u64> = view.versions(&web).unwrap().iter().map(|job| job.version).collect();
    assert_eq!(listed, [9, 8, 7, 6, 5, 2]);
    assert!(view.version(&web, 1).unwrap().is_none() && view.version(&web, 2).unwrap().unwrap().stable);
    check(&view);
    state.change(|change| change.set_stable(&key("web"), 8, true)).await.unwrap();
    assert_eq!(put(&state, "web", "service").await, 10);
    let view = state.read().unwrap();
    let listed: Vec<u64> = view.versions(&web).unwrap().iter().map(|job| job.version).collect();
    assert_eq!(listed, [10, 9, 8, 7, 6, 5]);
    check(&view);
}

#[tokio::test]
async fn a_job_that_was_purged_is_known_to_its_allocations_and_another_one_may_have_its_id() {
    let state = empty();
    let web = key("web");
    put(&state, "web", "service").await;
    let of = web.clone();
    state
        .change(move |change| {
            change.put_alloc(alloc("a", &of, 0, "e"))?;
            change.put_deployment(deployment("d", &of, DeploymentStatus::Running))?;
            change.put_deployment(deployment("e", &key("other"), DeploymentStatus::Running))?;
            change.delete_job(&of)
        })
        .await
        .unwrap();
    let view = state.read().unwrap();
    assert!(view.job(&web).unwrap().is_none());
    assert!(view.deployment("d").unwrap().is_none() && view.deployment("e").unwrap().is_some());
    assert!(view.deployments_of_job(&web).unwrap().is_empty());
    let mut other = job("web", "service");
    other.spec.insert("Name".to_owned(), "other".into());
    state.change(move |change| change.put_job(other, None)).await.unwrap();
    let view = state.read().unwrap();
    let old = view.alloc("a").unwrap().unwrap();
    assert!(!view.version_of(&old).unwrap().unwrap().spec.contains_key("Name"));
    assert_eq!(view.job(&web).unwrap().unwrap().version, 0);
    assert_eq!(view.versions(&web).unwrap().len(), 1);
    check(&view);
    state.change(|change| change.delete_alloc("a")).await.unwrap();
    let view = state.read().unwrap();
    assert!(view.version_of(&old).unwrap().is_none());
    check(&view);
}

#[tokio::test]
async fn a_job_s_status_and_summary_follow_what_its_allocations_do() {
    let state = empty();
    let web = key("web");
    let look = |state: &State| {
        let view = state.read().unwrap();
        (view.job(&web).unwrap().unwrap().status, view.summary(&web).unwrap().unwrap().summary["g"])
    };
    put(&state, "web", "service").await;
    assert_eq!(look(&state), (JobStatus::Pending, GroupSummary::default()));
    let of = web.clone();
    state
        .change(move |change| {
            let mut waiting = eval("e1", &of, EvalStatus::Pending);
            waiting.queued_allocations = BTreeMap::from([("g".to_owned(), 2)]);
            change.put_eval(waiting)
        })
        .await
        .unwrap();
    assert_eq!(look(&state), (JobStatus::Pending, GroupSummary { queued: 2, ..GroupSummary::default() }));
    let of = web.clone();
    state
        .change(move |change| {
            change.put_alloc(alloc("a1", &of, 0, "e1"))?;
            change.put_alloc(alloc("a2", &of, 0, "e1"))?;
            change.put_eval(eval("e1", &of, EvalStatus::Complete))
        })
        .await
        .unwrap();
    assert_eq!(look(&state), (JobStatus::Running, GroupSummary { starting: 2, ..GroupSummary::default() }));
    let set = |id: &'static str, status: ClientStatus| {
        state.change(move |change| {
            let mut alloc = change.alloc(id)?.unwrap();
            alloc.client_status = status;
            change.put_alloc(alloc)
        })
    };
    let (index, ()) = set("a1", ClientStatus::Running).await.unwrap();
    let a1 = state.read().unwrap().alloc("a1").unwrap().unwrap();
    assert_eq!((a1.modify_index, a1.alloc_modify_index), (index, index - 1), "what is wanted has not changed");
    set("a2", ClientStatus::Failed).await.unwrap();
    let counted = GroupSummary { running: 1, failed: 1, ..GroupSummary::default() };
    assert_eq!(look(&state), (JobStatus::Running, counted));
    set("a1", ClientStatus::Complete).await.unwrap();
    let counted = GroupSummary { complete: 1, failed: 1, ..GroupSummary::default() };
    assert_eq!(look(&state), (JobStatus::Dead, counted));
    for id in ["a1", "a2"] {
        state.change(move |change| change.delete_alloc(id)).await.unwrap();
    }
    assert_eq!(look(&state), (JobStatus::Dead, counted), "those that ended stay counted");
    state.change(|change| change.delete_eval("e1")).await.unwrap();
    assert_eq!(look(&state).0, JobStatus::Dead);
    state
        .change(|change| {
            change.reconcile_summaries()?;
            Ok(())
        })
        .await
        .unwrap();
    assert_eq!(look(&state).1, GroupSummary::default());
}

#[tokio::test]
async fn a_job_that_makes_others_runs_until_it_is_stopped_and_counts_them() {
    let state = empty();
    let mut parent = job("batch", "batch");
    parent.spec.insert("ParameterizedJob".to_owned(), serde_json::json!({"Payload": "optional"}));
    let again = parent.clone();
    state.change(move |change| change.put_job(parent, None)).await.unwrap();
    let children = |state: &State| state.read().unwrap().summary(&key("batch")).unwrap().unwrap().children;
    let status = |state: &State, id: &str| state.read().unwrap().job(&key(id)).unwrap().unwrap().status;
    assert_eq!(status(&state, "batch"), JobStatus::Running);
    let mut child = again.clone();
    child.key = key("batch/dispatch-1");
    child.parent_id = "batch".to_owned();
    child.dispatched = true;
    state.change(move |change| change.put_job(child, None)).await.unwrap();
    assert_eq!(children(&state), ChildrenSummary { pending: 1, ..ChildrenSummary::default() });
    let of = key("batch/dispatch-1");
    state.change(move |change| change.put_alloc(alloc("a", &of, 0, "e"))).await.unwrap();
    assert_eq!(children(&state), ChildrenSummary { running: 1, ..ChildrenSummary::default() });
    state
        .change(|change| {
            let mut alloc = change.alloc("a")?.unwrap();
            alloc.client_status = ClientStatus::Complete;
            change.put_alloc(alloc)
        })
        .await
        .unwrap();
    let dead = ChildrenSummary { dead: 1, ..ChildrenSummary::default() };
    assert_eq!((children(&state), status(&state, "batch/dispatch-1")), (dead, JobStatus::Dead));
    assert_eq!(state.read().unwrap().children(&key("batch")).all().unwrap(), [key("batch/dispatch-1")]);
    state.change(|change| change.delete_job(&key("batch/dispatch-1"))).await.unwrap();
    assert_eq!(children(&state), dead, "what ended stays counted");
    let stopped = crate::agent::model::JobVersion { stop: true, ..again };
    state.change(move |change| change.put_job(stopped, None)).await.unwrap();
    assert_eq!(status(&state, "batch"), JobStatus::Dead);
}

#[tokio::test]
async fn lists_are_sorted_and_found_by_the_beginning_of_their_ids() {
    let state = empty();
    for id in ["web", "we", "a/b", "web-2"] {
        put(&state, id, "batch").await;
    }
    let other = JobKey { namespace: "prod".to_owned(), id: "web".to_owned() };
    let mut there = job("web", "batch");
    there.key = other.clone();
    state.change(move |change| change.put_job(there, None)).await.unwrap();
    let view = state.read().unwrap();
    let ids = |namespace, prefix| {
        let keys = view.job_keys(namespace, prefix).all().unwrap();
        keys.into_iter().map(|key| format!("{} {}", key.namespace, key.id)).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, ""), ["default a/b", "default we", "default web", "default web-2", "prod web"]);
    assert_eq!(ids(Some("default"), "web"), ["default web", "default web-2"]);
    assert_eq!(ids(None, "web"), ["default web", "default web-2", "prod web"]);
    assert_eq!(ids(Some("pro"), ""), [""; 0]);
    assert_eq!(view.jobs(Some("prod"), "").all().unwrap()[0].key, other);
    let bad = JobKey { namespace: "default".to_owned(), id: "a\0b".to_owned() };
    let bad = crate::agent::model::JobVersion { key: bad, ..job("x", "batch") };
    assert!(matches!(state.change(move |change| change.put_job(bad, None)).await, Err(StateError::Invalid(_))));
    assert_eq!(table::key(&["a", "b"]), b"a\0b");
}

#[tokio::test]
async fn services_and_namespaces_are_kept() {
    let state = empty();
    let service = |id: &str, name: &str| ServiceRegistration {
        id: id.to_owned(),
        service_name: name.to_owned(),
        namespace: "default".to_owned(),
        port: 80,
        ..ServiceRegistration::default()
    };
    let all = [service("1", "web"), service("2", "web-api"), service("3", "web")];
    state.change(move |change| all.into_iter().try_for_each(|service| change.put_service(service))).await.unwrap();
    let view = state.read().unwrap();
    let named = |name: &str| view.service_named("default", name).unwrap().into_iter().map(|s| s.id).collect::<Vec<_>>();
    assert_eq!((named("web"), named("web-api"), named("we")), (vec!["1".into(), "3".into()], vec!["2".into()], vec![]));
    assert_eq!(view.services(None, "web-").all().unwrap().len(), 1);
    assert_eq!(view.services(Some("default"), "").all().unwrap().len(), 3);
    let moved = service("3", "db");
    state
        .change(move |change| {
            change.put_service(moved)?;
            assert!(change.delete_service("1")? && !change.delete_service("1")?);
            change.put_namespace(crate::agent::model::Namespace { name: "prod".to_owned(), ..Default::default() })
        })
        .await
        .unwrap();
    let view = state.read().unwrap();
    assert!(view.service_named("default", "web").unwrap().is_empty());
    assert_eq!(view.service_named("default", "db").unwrap().len(), 1);
    let names: Vec<_> = view.namespaces("").all().unwrap().into_iter().map(|namespace| namespace.name).collect();
    assert_eq!(names, ["default", "prod"]);
    let mut there = job("web", "service");
    there.key.namespace = "prod".to_owned();
    state.change(move |change| change.put_job(there, None)).await.unwrap();
    for (name, text) in [("default", "cannot be deleted"), ("prod", "has the job \"web\""), ("none", "not found")] {
        let error = state.change(move |change| change.delete_namespace(name)).await.unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let of = JobKey { namespace: "prod".to_owned(), id: "web".to_owned() };
    state
        .change(move |change| {
            change.delete_job(&of)?;
            change.delete_namespace("prod")
        })
        .await
        .unwrap();
    assert!(state.read().unwrap().namespace("prod").unwrap().is_none());
    let bad = crate::agent::model::Namespace { name: "a b".to_owned(), ..Default::default() };
    assert!(matches!(state.change(move |change| change.put_namespace(bad)).await, Err(StateError::Invalid(_))));
}
