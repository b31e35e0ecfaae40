//! Everything that decides, over a real state and an engine that runs nothing. (J6)

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::commands::{CommandError, Deregister, Dispatch, Drain, Register, Registered, Scale};
use super::engine::Engine;
use super::fake::FakeEngine;
use super::health::{Verdict, judge};
use super::model::{
    Allocation, ClientStatus, DeploymentStatus, DesiredStatus, DrainSpec, DrainStatus, DynamicVolume, Eligibility,
    EvalStatus, JobKey, JobStatus, LastDrain, Nanos, ServiceRegistration, Submission, Trigger, VolumeState,
};
use super::state::{State, View};
use super::{Agent, Working};
use crate::spec::Update;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

struct World {
    dir: tempfile::TempDir,
    engine: Arc<FakeEngine>,
    agent: Agent,
    working: Working,
}

impl World {
    async fn new() -> World {
        World::at(tempfile::tempdir().unwrap()).await
    }

    async fn at(dir: tempfile::TempDir) -> World {
        World::with_slow(dir, &[]).await
    }

    async fn with_slow(dir: tempfile::TempDir, drivers: &[&str]) -> World {
        let (engine, reports) = FakeEngine::with_slow(drivers);
        let state = State::open(&dir.path().join("server")).unwrap();
        let (agent, working) = Agent::start(state, Arc::clone(&engine) as Arc<dyn Engine>, reports).await.unwrap();
        World { dir, engine, agent, working }
    }

    /// Waits until something is so.
    async fn until<T>(&self, what: &str, mut is: impl FnMut(&View) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let index = self.agent.state.index();
            if let Some(found) = is(&self.agent.state.read().unwrap()) {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: {:#?} {:?}", self.allocs("web"), self.engine.log());
            self.agent.state.wait(&[], index, deadline).await;
        }
    }

    async fn register(&self, spec: Value) -> Registered {
        self.try_register(spec, None).await.unwrap()
    }

    async fn try_register(&self, spec: Value, enforce_index: Option<u64>) -> Result<Registered, CommandError> {
        let Value::Object(spec) = spec else { panic!() };
        self.agent.commands.register(Register { spec, enforce_index, ..Register::default() }).await
    }

    fn allocs(&self, job: &str) -> Vec<Allocation> {
        self.agent.state.read().unwrap().allocs_of_job(&key(job)).unwrap()
    }

    /// Waits until so many allocations of a version run, and none of another one.
    async fn running(&self, job: &str, version: u64, count: usize) -> Vec<Allocation> {
        self.until(&format!("{count} of {job} v{version} run"), |view| {
            let allocs = view.allocs_of_job(&key(job)).unwrap();
            let live: Vec<_> = allocs.into_iter().filter(|alloc| !alloc.is_terminal()).collect();
            let fits =
                |alloc: &Allocation| alloc.job_version == version && alloc.client_status == ClientStatus::Running;
            (live.len() == count && live.iter().all(fits)).then_some(live)
        })
        .await
    }

    async fn status(&self, job: &str, status: JobStatus) {
        self.until(&format!("{job} is {status:?}"), |view| {
            view.job(&key(job)).unwrap().filter(|job| job.status == status).map(drop)
        })
        .await;
    }
}

fn key(job: &str) -> JobKey {
    JobKey { namespace: "default".to_owned(), id: job.to_owned() }
}

/// A job of one group with one task; what is in `more` stands beside that.
fn job(kind: &str, count: u32, command: &str, group: Value) -> Value {
    let mut all = json!({
        "Name": "g", "Count": count,
        "Tasks": [{
            "Name": "t", "Driver": "raw_exec", "Config": { "command": command },
            "Resources": { "CPU": 10, "MemoryMB": 10 },
        }],
    });
    let Value::Object(group) = group else { panic!() };
    all.as_object_mut().unwrap().extend(group);
    json!({ "ID": "web", "Name": "web", "Type": kind, "Datacenters": ["dc1"], "TaskGroups": [all] })
}

fn quick_update() -> Value {
    json!({ "Update": { "MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 1_000_000,
        "HealthyDeadline": 60_000_000_000_i64, "ProgressDeadline": 120_000_000_000_i64 } })
}

#[tokio::test]
async fn a_service_runs_is_updated_one_by_one_scaled_and_stopped() {
    let world = World::new().await;
    let registered = world.register(job("service", 2, "/bin/one", quick_update())).await;
    assert!(!registered.eval_id.is_empty() && registered.eval_create_index == registered.index);
    let first = world.running("web", 0, 2).await;
    world.status("web", JobStatus::Running).await;
    world
        .until("the deployment is successful", |view| {
            let all = view.deployments_of_job(&key("web")).unwrap();
            all.last().filter(|last| last.status == DeploymentStatus::Successful).map(drop)
        })
        .await;
    assert!(world.agent.state.read().unwrap().job(&key("web")).unwrap().unwrap().stable);
    let eval = world.agent.state.read().unwrap().eval(&registered.eval_id).unwrap().unwrap();
    assert_eq!(eval.status, EvalStatus::Complete);

    // The same again is not a new version, and changes nothing.
    world.register(job("service", 2, "/bin/one", quick_update())).await;
    world.register(job("service", 2, "/bin/two", quick_update())).await;
    let second = world.running("web", 1, 2).await;
    assert!(second.iter().all(|new| first.iter().all(|old| old.id != new.id)));
    let log = world.engine.log();
    let at = |line: &str| log.iter().position(|have| have == line).unwrap_or_else(|| panic!("{line}: {log:?}"));
    assert!(at("start g[0] v1").max(at("start g[1] v1")) > at("stop g[0] v0").min(at("stop g[1] v0")), "{log:?}");

    let scale = Scale { group: "g".to_owned(), count: Some(3), message: "more".to_owned(), ..Scale::default() };
    world
        .until("no deployment is active", |view| {
            let all = view.deployments_of_job(&key("web")).unwrap();
            all.iter().all(|deployment| deployment.status.is_terminal()).then_some(())
        })
        .await;
    world.agent.commands.scale(&key("web"), scale).await.unwrap();
    world
        .until("three run", |view| {
            let all = view.allocs_of_job(&key("web")).unwrap();
            let runs = |alloc: &&Allocation| !alloc.is_terminal() && alloc.client_status == ClientStatus::Running;
            (all.iter().filter(runs).count() == 3).then_some(())
        })
        .await;
    world.agent.commands.deregister(&key("web"), Deregister::default()).await.unwrap();
    world.status("web", JobStatus::Dead).await;
    assert!(world.allocs("web").iter().all(|alloc| alloc.client_status == ClientStatus::Complete));
    world.agent.commands.gc().await.unwrap();
    assert!(world.agent.state.read().unwrap().job(&key("web")).unwrap().is_none());
    assert!(world.allocs("web").is_empty());
}

#[tokio::test]
async fn a_batch_job_completes_and_is_not_run_again() {
    let world = World::new().await;
    world.register(job("batch", 1, "/bin/one", json!({}))).await;
    let [alloc] = &world.running("web", 0, 1).await[..] else { panic!() };
    world.engine.end(&alloc.id, false).await;
    world.status("web", JobStatus::Dead).await;
    world.agent.commands.evaluate(&key("web"), false).await.unwrap();
    world
        .until("all is decided", |view| {
            let evals = view.evals_of_job(&key("web")).unwrap();
            (evals.len() == 2 && evals.iter().all(|eval| eval.status.is_terminal())).then_some(())
        })
        .await;
    assert_eq!(world.allocs("web").len(), 1);
}

#[tokio::test]
async fn what_fails_is_placed_again_after_its_delay_and_no_more_often_than_it_may() {
    let world = World::new().await;
    let policy = json!({ "ReschedulePolicy": { "Attempts": 1, "Interval": 3_600_000_000_000_i64,
        "Delay": 5_000_000_000_i64, "DelayFunction": "constant", "MaxDelay": 0, "Unlimited": false } });
    world.engine.fail("web", true);
    world.register(job("batch", 1, "/bin/false", policy)).await;
    let allocs = world
        .until("it was tried twice", |view| {
            let allocs = view.allocs_of_job(&key("web")).unwrap();
            let failed = allocs.iter().filter(|alloc| alloc.client_status == ClientStatus::Failed).count();
            (failed == 2).then_some(allocs)
        })
        .await;
    let second = allocs.iter().find(|alloc| !alloc.previous_allocation.is_empty()).unwrap();
    let first = allocs.iter().find(|alloc| alloc.id == second.previous_allocation).unwrap();
    assert_eq!(first.next_allocation, second.id);
    assert!(second.create_time >= first.create_time.plus(Duration::from_secs(5)), "the delay is kept");
    world.status("web", JobStatus::Dead).await;
    assert_eq!(world.allocs("web").len(), 2);
    // Nothing can come of the second failure.
    let evals = world.agent.state.read().unwrap().evals_of_job(&key("web")).unwrap();
    assert_eq!(evals.iter().filter(|eval| eval.triggered_by == Trigger::AllocFailure).count(), 1);
}

#[tokio::test]
async fn only_what_may_be_rescheduled_is_when_somebody_forces_it() {
    for (attempts, forced) in [(0, None), (1, Some(true))] {
        let world = World::new().await;
        let policy = json!({ "ReschedulePolicy": { "Attempts": attempts, "Interval": 3_600_000_000_000_i64,
            "Delay": 600_000_000_000_i64, "DelayFunction": "constant", "MaxDelay": 0, "Unlimited": false } });
        world.register(job("batch", 1, "/bin/one", policy)).await;
        let alloc = world.running("web", 0, 1).await.remove(0);
        world.engine.end(&alloc.id, true).await;
        let failed = |view: &View| {
            let alloc = view.alloc(&alloc.id).unwrap().unwrap();
            (alloc.client_status == ClientStatus::Failed).then_some(())
        };
        world.until("it has failed", failed).await;
        world.agent.commands.evaluate(&key("web"), true).await.unwrap();
        let found = world.allocs("web").into_iter().find(|known| known.id == alloc.id).unwrap();
        assert_eq!(found.desired_transition.force_reschedule, forced);
        if forced.is_some() {
            world.running("web", 0, 1).await;
        }
    }
}

#[tokio::test]
async fn metadata_outlives_the_agent_and_goes_before_what_is_configured() {
    let world = World::new().await;
    let text = str::to_owned;
    let changes = vec![(text("a"), Some(text("b"))), (text("none"), None)];
    let (_, node) = world.agent.commands.metadata(changes).await.unwrap();
    assert_eq!(node.dynamic_meta, [(text("a"), Some(text("b")))].into(), "what takes nothing away is not kept");
    let World { dir, agent, engine, working } = world;
    drop((agent, engine));
    working.end().await;
    let world = World::at(dir).await;
    let mut node = world.agent.state.read().unwrap().node().unwrap().unwrap();
    assert_eq!(node.meta, [(text("a"), text("b"))].into());
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    let alloc = world.running("web", 0, 1).await.remove(0);
    assert_eq!(world.engine.meta(&alloc.id), Some(node.meta.clone()));
    node.static_meta = [("a", "s"), ("rack", "r1")].map(|(k, v)| (text(k), text(v))).into();
    node.dynamic_meta.insert(text("rack"), None);
    node.lay_meta();
    assert_eq!(node.meta, [(text("a"), text("b"))].into());
    node.dynamic_meta.remove("a");
    node.lay_meta();
    assert_eq!(node.meta, [(text("a"), text("s"))].into());
}

#[tokio::test]
async fn memory_max_counts_unless_memory_oversubscription_is_off() {
    let world = World::new().await;
    let mut spec = job("service", 1, "/bin/one", json!({}));
    spec["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMaxMB"] = 20.into();
    assert!(!world.register(spec.clone()).await.warnings.contains("memory_max"));
    let alloc = world.running("web", 0, 1).await.remove(0);
    assert_eq!(world.engine.memory_max(&alloc.id), Some(20));

    let off = json!({ "MemoryOversubscriptionEnabled": false });
    world.agent.state.change(move |change| change.put_setting("scheduler", &off)).await.unwrap();
    spec["TaskGroups"][0]["Tasks"][0]["Config"]["command"] = "/bin/two".into();
    let warnings = world.register(spec).await.warnings;
    assert!(warnings.contains("memory_max of task \"t\" is ignored"), "{warnings}");
    let alloc = world.running("web", 1, 1).await.remove(0);
    assert_eq!(world.engine.memory_max(&alloc.id), Some(0));
    assert_eq!(alloc.allocated_resources.tasks["t"].memory_max_mb, 0);
}

#[tokio::test]
async fn a_port_is_waited_for_and_its_holder_is_named() {
    let world = World::new().await;
    let port = json!({ "Networks": [{ "ReservedPorts": [{ "Label": "http", "Value": 8080 }] }] });
    world.register(job("service", 1, "/bin/one", port.clone())).await;
    world.running("web", 0, 1).await;
    let mut other = job("service", 1, "/bin/two", port);
    (other["ID"], other["Name"]) = (json!("api"), json!("api"));
    world.register(other).await;
    let blocked = world
        .until("api is blocked", |view| {
            let evals = view.evals_of_job(&key("api")).unwrap();
            evals.into_iter().find(|eval| eval.status == EvalStatus::Blocked)
        })
        .await;
    let told = format!("{:?}", blocked.failed);
    assert!(told.contains("8080") && told.contains("web"), "{told}");
    world.agent.commands.deregister(&key("web"), Deregister::default()).await.unwrap();
    world.running("api", 0, 1).await;
}

#[tokio::test]
async fn an_allocation_that_is_stopped_by_hand_has_a_successor() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    let old = world.running("web", 0, 1).await.remove(0);
    world.agent.commands.alloc_stop(&old.id, false, false).await.unwrap();
    let new = world
        .until("there is another one", |view| {
            let allocs = view.allocs_of_job(&key("web")).unwrap();
            allocs.into_iter().find(|alloc| alloc.id != old.id && alloc.client_status == ClientStatus::Running)
        })
        .await;
    let old = world.agent.state.read().unwrap().alloc(&old.id).unwrap().unwrap();
    assert_eq!((old.desired_status, old.next_allocation.as_str()), (DesiredStatus::Stop, new.id.as_str()));
    let missing = world.agent.commands.alloc_stop("11111111-1111-1111-1111-111111111111", false, false).await;
    assert!(matches!(missing, Err(CommandError::NotFound(_))));
}

/// Neither the tasks nor the checks of what goes on are new.
#[tokio::test]
async fn what_is_updated_in_place_is_healthy_no_sooner_than_what_is_new() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    let alloc = world.running("web", 0, 1).await.remove(0);
    let job = crate::alloc::fake::job(vec![crate::alloc::fake::task("t")]);
    let (update, begun) = (Update::default(), alloc.create_time.plus(Duration::from_hours(1)));
    let after = |time: Duration, checks| judge(&alloc, &job.groups[0], &update, checks, (begun, begun.plus(time)));
    let (least, passing) = (update.min_healthy_time, Some(Nanos(0)));
    assert_eq!(after(Duration::ZERO, passing), Verdict::NotYet(begun.plus(least)));
    assert_eq!(after(least, passing), Verdict::Healthy);
    assert_eq!(after(least, None), Verdict::NotYet(begun.plus(update.healthy_deadline)));
}

/// Its services have other tags from then on.
#[tokio::test]
async fn the_engine_is_told_of_a_promotion() {
    let world = World::new().await;
    let mut update = quick_update();
    (update["Update"]["Canary"], update["Update"]["AutoPromote"]) = (json!(1), json!(true));
    world.register(job("service", 1, "/bin/one", update.clone())).await;
    world.running("web", 0, 1).await;
    world.register(job("service", 1, "/bin/two", update)).await;
    let [canary] = &world.running("web", 1, 1).await[..] else { panic!() };
    let deployments = world.agent.state.read().unwrap().deployments_of_job(&key("web")).unwrap();
    assert!(deployments.last().unwrap().task_groups["g"].placed_canaries.contains(&canary.id));
    assert_eq!(world.engine.is_canary(&canary.id), Some(false));
}

/// Registers a first version that becomes stable; one that fails goes back to it. Returns what a next one is to be registered with.
async fn stable_and_reverting(world: &World) -> Value {
    let update = json!({ "Update": { "MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 1_000_000,
        "HealthyDeadline": 60_000_000_000_i64, "ProgressDeadline": 0, "AutoRevert": true },
        "ReschedulePolicy": { "Attempts": 0, "Unlimited": false } });
    world.register(job("service", 1, "/bin/one", update.clone())).await;
    world.until("the first version is stable", |view| view.job(&key("web")).unwrap().filter(|job| job.stable)).await;
    update
}

#[tokio::test]
async fn a_version_that_fails_goes_back_to_the_stable_one() {
    let world = World::new().await;
    let update = stable_and_reverting(&world).await;
    world.engine.fail("web", true);
    world.register(job("service", 1, "/bin/two", update)).await;
    world
        .until("the second version has failed", |view| {
            let all = view.deployments_of_job(&key("web")).unwrap();
            all.into_iter().find(|deployment| deployment.status == DeploymentStatus::Failed)
        })
        .await;
    world.engine.fail("web", false);
    let job = world
        .until("there is a third version", |view| view.job(&key("web")).unwrap().filter(|job| job.version == 2))
        .await;
    assert_eq!(job.spec["TaskGroups"][0]["Tasks"][0]["Config"]["command"], "/bin/one");
}

#[tokio::test]
async fn who_calls_an_allocation_unhealthy_fails_its_deployment() {
    let world = World::new().await;
    let mut update = quick_update();
    update["Update"]["HealthCheck"] = "manual".into();
    world.register(job("service", 1, "/bin/one", update)).await;
    let alloc = world.running("web", 0, 1).await.remove(0);
    let unknown = "11111111-1111-1111-1111-111111111111".to_owned();
    let of = |told: Vec<String>| world.agent.commands.alloc_health(&alloc.deployment_id, Vec::new(), told);
    let refused = of(vec![unknown.clone()]).await.unwrap_err();
    assert_eq!(refused.to_string(), format!("unknown alloc {unknown:?}"));
    let done = of(vec![alloc.id.clone()]).await.unwrap();
    assert!(!done.eval_id.is_empty() && done.reverted_job_version.is_none());
    let deployment = world.agent.state.read().unwrap().deployment(&alloc.deployment_id).unwrap().unwrap();
    let told = (deployment.status, deployment.status_description.as_str());
    assert_eq!(told, (DeploymentStatus::Failed, "Failed due to unhealthy allocations"));
}

#[tokio::test]
async fn what_nomad_refuses_is_neither_valid_nor_planned_nor_registered() {
    let world = World::new().await;
    let Value::Object(spec) = job("batch", 1, "/bin/one", quick_update()) else { panic!() };
    let commands = &world.agent.commands;
    let errors = [
        commands.validate(spec.clone()).errors.concat(),
        commands.plan(spec.clone()).await.map(drop).unwrap_err().to_string(),
        world.try_register(Value::Object(spec), None).await.map(drop).unwrap_err().to_string(),
    ];
    let told = "Task group g validation failed: 1 error occurred:\n\t* Job type \"batch\" does not allow update block";
    assert!(errors.iter().all(|error| error.contains(told)), "{errors:?}");
    assert!(world.agent.state.read().unwrap().job(&key("web")).unwrap().is_none());
    // What keeps a job from being read does not hide the rest.
    let mut other = job("batch", 1, "/bin/one", quick_update());
    other["Priority"] = json!(101);
    let errors = commands.validate(other.as_object().unwrap().clone()).errors;
    assert!(errors[0].starts_with("\"priority\" in job \"web\"") && errors[1].contains(told), "{errors:?}");
    // A clock that says no time, or one of nowhere, starts nothing.
    for clock in [json!({}), json!({ "Spec": "@daily", "TimeZone": "X/Y" })] {
        let mut never = job("batch", 1, "/bin/one", json!({}));
        never["Periodic"] = clock;
        world.try_register(never, None).await.map(drop).unwrap_err();
    }
}

#[tokio::test]
async fn a_source_that_is_too_large_is_not_kept_and_that_is_told() {
    let world = World::new().await;
    let register = |length: usize| {
        let Value::Object(spec) = job("service", 1, "/bin/one", json!({})) else { panic!() };
        let submission = Some(Submission { source: "x".repeat(length), ..Submission::default() });
        world.agent.commands.register(Register { spec, submission, ..Register::default() })
    };
    let source = || world.agent.state.read().unwrap().submission(&key("web"), 0).unwrap();
    let told = register(1_500_001).await.unwrap().warnings;
    assert!(told.contains("job source size of 1.5 MB exceeds maximum of 1.0 MB and will be discarded"), "{told}");
    assert!(source().is_none());
    let purge = Deregister { purge: true, ..Deregister::default() };
    world.agent.commands.deregister(&key("web"), purge).await.unwrap();
    let told = register(1_000_000).await.unwrap().warnings;
    assert!(!told.contains("job source size") && source().is_some(), "{told}");
}

#[tokio::test]
async fn parameterized_jobs_run_when_they_are_dispatched_and_once_for_each_token() {
    let world = World::new().await;
    let mut parent = job("batch", 1, "/bin/one", json!({}));
    parent["ParameterizedJob"] = json!({ "Payload": "required", "MetaRequired": ["who"] });
    let registered = world.register(parent).await;
    assert_eq!(registered.eval_id, "");
    world.status("web", JobStatus::Running).await;
    let refused = world.agent.commands.dispatch(&key("web"), Dispatch::default()).await;
    assert!(matches!(refused, Err(CommandError::Invalid(_))));
    let given = Dispatch {
        meta: [("who".to_owned(), "me".to_owned())].into(),
        payload: "eA==".to_owned(),
        payload_bytes: 1,
        idempotency_token: "once".to_owned(),
        ..Dispatch::default()
    };
    let made = world.agent.commands.dispatch(&key("web"), given.clone()).await.unwrap();
    assert!(made.job_id.starts_with("web/dispatch-") && !made.eval_id.is_empty());
    world.running(&made.job_id, 0, 1).await;
    let again = world.agent.commands.dispatch(&key("web"), given).await.unwrap();
    assert_eq!(again.job_id, made.job_id);
}

#[tokio::test]
async fn a_clock_s_job_is_started_by_hand_and_by_its_clock() {
    let world = World::new().await;
    let mut parent = job("batch", 1, "/bin/one", json!({}));
    parent["Periodic"] =
        json!({ "Enabled": true, "Spec": "* * * * * * *", "SpecType": "cron", "ProhibitOverlap": true });
    world.register(parent).await;
    let child = world
        .until("the clock has started one", |view| view.children(&key("web")).next().map(|child| child.unwrap().id))
        .await;
    let [alloc] = &world.running(&child, 0, 1).await[..] else { panic!() };
    world.agent.commands.deregister(&key("web"), Deregister::default()).await.unwrap();
    world.engine.end(&alloc.id, false).await;
    world.status(&child, JobStatus::Dead).await;
    assert_eq!(world.agent.state.read().unwrap().children(&key("web")).count(), 1, "they do not overlap");
}

#[tokio::test]
async fn what_no_clock_starts_is_not_started_by_hand_either() {
    let world = World::new().await;
    let with = |enabled: bool| {
        let mut parent = job("batch", 1, "/bin/one", json!({}));
        parent["Periodic"] = json!({ "Enabled": enabled, "Spec": "0 0 1 1 *", "SpecType": "cron" });
        parent
    };
    let expected = "force launch for job \"web\" failed: can't force run non-tracked job \"web\" (default)";
    world.register(with(false)).await;
    let disabled = world.agent.commands.periodic_force(&key("web")).await.unwrap_err();
    assert_eq!(disabled.to_string(), expected);
    world.register(with(true)).await;
    world.agent.commands.periodic_force(&key("web")).await.unwrap();
    world.agent.commands.deregister(&key("web"), Deregister::default()).await.unwrap();
    let stopped = world.agent.commands.periodic_force(&key("web")).await.unwrap_err();
    assert_eq!(stopped.to_string(), expected);
}

#[tokio::test]
async fn a_drain_stops_everything_and_an_eligible_node_has_it_again() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    world.running("web", 0, 1).await;
    let drain = Drain { spec: Some(DrainSpec { deadline: Nanos(0), ignore_system_jobs: false }), ..Drain::default() };
    world.agent.commands.drain(drain).await.unwrap();
    world.until("the drain is over", |view| view.node().unwrap().filter(|node| node.drain_strategy.is_none())).await;
    assert!(world.allocs("web").iter().all(|alloc| alloc.client_status.is_terminal()));
    world.agent.commands.eligibility(Eligibility::Eligible).await.unwrap();
    world.running("web", 0, 1).await;
}

#[tokio::test]
async fn a_driver_that_is_slow_to_say_what_it_is_keeps_only_its_own_jobs_waiting() {
    let world = World::with_slow(tempfile::tempdir().unwrap(), &["raw_exec"]).await;
    let driver = |view: &View| view.node().unwrap().unwrap().drivers.get("raw_exec").cloned();
    assert_eq!(driver(&world.agent.state.read().unwrap()), None, "the agent begins without it");
    let registered = world.register(job("service", 1, "/bin/one", json!({}))).await;
    let eval = |view: &View| view.eval(&registered.eval_id).unwrap().unwrap();
    assert_eq!(eval(&world.agent.state.read().unwrap()).status, EvalStatus::Pending);
    world.engine.answer();
    let alloc = world.running("web", 0, 1).await.remove(0);
    let evals = world.agent.state.read().unwrap().evals_of_job(&key("web")).unwrap();
    assert!(evals.iter().all(|eval| eval.status != EvalStatus::Blocked && eval.failed.is_empty()), "{evals:#?}");
    assert_eq!(world.engine.attributes(&alloc.id).unwrap()["driver.raw_exec"], "1");

    // What an earlier process knew of it stays meanwhile, so that nothing is placed anew.
    let World { dir, agent, working, .. } = world;
    working.end().await;
    drop(agent);
    let world = World::with_slow(dir, &["raw_exec"]).await;
    assert!(driver(&world.agent.state.read().unwrap()).is_some_and(|driver| driver.healthy));
    assert_eq!(world.running("web", 0, 1).await.remove(0).id, alloc.id);
    assert_eq!(world.engine.attributes(&alloc.id).unwrap()["driver.raw_exec"], "1");
    world.engine.answer();
}

#[tokio::test]
async fn a_driver_that_never_answers_blocks_its_jobs_by_name() {
    let world = World::with_slow(tempfile::tempdir().unwrap(), &["raw_exec"]).await;
    let registered = world.register(job("service", 1, "/bin/one", json!({}))).await;
    let eval = world
        .until("it is decided", |view| {
            view.eval(&registered.eval_id).unwrap().filter(|eval| eval.status == EvalStatus::Complete)
        })
        .await;
    assert!(eval.failed["g"].constraint_filtered.contains_key("missing drivers"), "{eval:#?}");
    world.engine.answer();
    world.running("web", 0, 1).await;
}

#[tokio::test]
async fn the_node_remembers_its_last_drain() {
    let world = World::new().await;
    // It runs until the deadline.
    world.register(job("batch", 1, "/bin/one", json!({}))).await;
    let alloc = world.running("web", 0, 1).await.remove(0);
    let drain = async |hours: i64, why: &str, accessor: &str| {
        let spec = DrainSpec { deadline: Nanos(hours * 3_600_000_000_000), ignore_system_jobs: false };
        let mut drain = Drain { spec: (hours > 0).then_some(spec), accessor: accessor.to_owned(), ..Drain::default() };
        if !why.is_empty() {
            drain.meta.insert("why".to_owned(), why.to_owned());
        }
        world.agent.commands.drain(drain).await.unwrap();
        let node = world.agent.state.read().unwrap().node().unwrap().unwrap();
        let told = node.events.last().unwrap().message.clone();
        (node.last_drain.unwrap(), node.drain_strategy.map(|drain| drain.started_at), told)
    };
    let (first, started_at, told) = drain(1, "disk", "token:a").await;
    assert_eq!((first.status, Some(first.started_at)), (DrainStatus::Draining, started_at));
    assert_eq!(
        (first.accessor_id.as_str(), first.meta["why"].as_str(), told.as_str()),
        ("token:a", "disk", "Node drain strategy set")
    );
    let (second, again, told) = drain(2, "", "").await;
    assert_eq!((again, told.as_str()), (started_at, "Node drain strategy updated"));
    assert_eq!(LastDrain { updated_at: first.updated_at, ..second.clone() }, first, "what was said stays");
    assert!(second.updated_at > first.updated_at);
    let (third, _, told) = drain(0, "", "token:b").await;
    assert_eq!((third.status, third.accessor_id.as_str()), (DrainStatus::Canceled, "token:b"));
    assert_eq!(told, "Node drain disabled");
    let (fourth, _, _) = drain(1, "", "").await;
    assert!(fourth.meta.is_empty() && fourth.started_at > first.started_at, "{fourth:?}");
    world.engine.end(&alloc.id, false).await;
    let node = world
        .until("the drain is over", |view| view.node().unwrap().filter(|node| node.drain_strategy.is_none()))
        .await;
    assert_eq!(node.last_drain.map(|last| last.status), Some(DrainStatus::Complete));
}

#[tokio::test]
async fn a_job_that_changed_meanwhile_is_not_overwritten() {
    let world = World::new().await;
    let one = world.try_register(job("service", 1, "/bin/one", json!({})), Some(0)).await.unwrap();
    let again = world.try_register(job("service", 1, "/bin/two", json!({})), Some(0)).await.unwrap_err();
    assert_eq!(again.to_string(), "Enforcing job modify index 0: job already exists");
    let index = one.job_modify_index;
    let wrong = world.try_register(job("service", 1, "/bin/two", json!({})), Some(index + 7)).await.unwrap_err();
    let text =
        format!("Enforcing job modify index {}: job exists with conflicting job modify index: {index}", index + 7);
    assert_eq!(wrong.to_string(), text);
    world.try_register(job("service", 1, "/bin/two", json!({})), Some(index)).await.unwrap();
}

#[tokio::test]
async fn a_job_is_registered_stopped_where_it_says_so() {
    let world = World::new().await;
    let with = |stop: bool| {
        let mut job = job("service", 1, "/bin/one", json!({}));
        job["Stop"] = stop.into();
        job
    };
    world.register(with(false)).await;
    world.running("web", 0, 1).await;
    let Value::Object(spec) = with(true) else { panic!() };
    assert_eq!(world.agent.commands.plan(spec).await.unwrap().desired["g"].stop, 1);
    let stopped = world.register(with(true)).await;
    world.status("web", JobStatus::Dead).await;
    let newest = || world.agent.state.read().unwrap().job(&key("web")).unwrap().unwrap();
    assert_eq!((newest().version, newest().stop), (1, true));
    assert_eq!(world.register(with(true)).await.job_modify_index, stopped.job_modify_index, "the same again");
    world.register(with(false)).await;
    world.running("web", 2, 1).await;
    world.agent.commands.revert(&key("web"), 1, None).await.unwrap();
    world.status("web", JobStatus::Dead).await;
    assert_eq!((newest().version, newest().stop), (3, true));
}

#[tokio::test]
async fn a_job_stays_of_its_kind() {
    let world = World::new().await;
    let with = |id: &str, field: &str, value: Value| {
        let mut job = job("batch", 1, "/bin/one", json!({}));
        (job["ID"], job["Name"], job[field]) = (json!(id), json!(id), value);
        job
    };
    let clock = || json!({ "Enabled": true, "Spec": "0 0 1 1 *", "SpecType": "cron" });
    world.register(with("web", "Priority", json!(50))).await;
    world.register(with("clock", "Periodic", clock())).await;
    world.register(with("form", "ParameterizedJob", json!({}))).await;
    for (id, field, value, why) in [
        ("web", "Type", json!("service"), "cannot update job from type \"batch\" to \"service\""),
        ("web", "Periodic", clock(), "cannot update non-periodic job to being periodic"),
        ("web", "ParameterizedJob", json!({}), "cannot update non-parameterized job to being parameterized"),
        ("clock", "Priority", json!(50), "cannot update periodic job to being non-periodic"),
        ("form", "Priority", json!(50), "cannot update parameterized job to being non-parameterized"),
    ] {
        let refused = world.try_register(with(id, field, value), None).await.unwrap_err();
        assert_eq!(refused.to_string(), why);
    }
    world.register(with("form", "ParameterizedJob", json!({ "Payload": "required" }))).await;
    // Also one that is stopped, until it is purged.
    let service = || with("web", "Type", json!("service"));
    world.agent.commands.deregister(&key("web"), Deregister::default()).await.unwrap();
    world.try_register(service(), None).await.unwrap_err();
    let purge = Deregister { purge: true, ..Deregister::default() };
    world.agent.commands.deregister(&key("web"), purge).await.unwrap();
    world.register(service()).await;
}

#[tokio::test]
async fn what_a_job_ran_before_it_was_periodic_is_stopped_with_it() {
    let world = World::new().await;
    world.register(job("batch", 1, "/bin/one", json!({}))).await;
    world.running("web", 0, 1).await;
    // A version of an older agent, which did not refuse it.
    let put = world.agent.state.change(|change| {
        let mut web = change.job(&key("web"))?.unwrap();
        web.spec.insert("Periodic".to_owned(), json!({ "Enabled": true, "Spec": "0 0 1 1 *", "SpecType": "cron" }));
        change.put_job(web, None)
    });
    put.await.unwrap();
    let purge = Deregister { purge: true, ..Deregister::default() };
    let stopped = world.agent.commands.deregister(&key("web"), purge).await.unwrap();
    assert!(!stopped.eval_id.is_empty());
    world.until("nothing runs", |view| view.live_allocs().next().is_none().then_some(())).await;
}

#[tokio::test]
async fn a_plan_says_what_then_happens_and_does_nothing() {
    let world = World::new().await;
    let spec =
        |command: &str| -> Map<String, Value> { job("service", 2, command, json!({})).as_object().unwrap().clone() };
    let plan = world.agent.commands.plan(spec("/bin/one")).await.unwrap();
    assert_eq!((plan.desired["g"].place, plan.job_modify_index), (2, 0));
    assert!(world.agent.state.read().unwrap().job(&key("web")).unwrap().is_none() && world.engine.log().is_empty());
    world.register(Value::Object(spec("/bin/one"))).await;
    world.running("web", 0, 2).await;
    let plan = world.agent.commands.plan(spec("/bin/two")).await.unwrap();
    assert_eq!(plan.desired["g"].destructive_update, 1, "one at a time");
}

#[tokio::test]
async fn another_agent_on_the_same_state_goes_on() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    let old = world.running("web", 0, 1).await.remove(0);
    let World { dir, agent, engine, working } = world;
    drop((agent, engine));
    working.end().await;
    let world = World::at(dir).await;
    let again = world.running("web", 0, 1).await.remove(0);
    assert_eq!(again.id, old.id);
    assert_eq!(world.engine.log(), ["start g[0] v0"], "the engine is asked to go on with it");
    let evals = world.agent.state.read().unwrap().evals_of_job(&key("web")).unwrap();
    assert!(evals.iter().all(|eval| eval.triggered_by == Trigger::JobRegister || eval.status.is_terminal()));
    assert!(world.dir.path().exists());
}

#[tokio::test]
async fn a_successor_waits_also_for_the_one_before_a_predecessor_that_never_ran() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    let first = world.running("web", 0, 1).await.remove(0);
    world.engine.stop_slowly();
    world.register(job("service", 1, "/bin/two", json!({}))).await;
    let of = |view: &View, version| {
        let allocs = view.allocs_of_job(&key("web")).unwrap();
        allocs.into_iter().find(|alloc| alloc.job_version == version)
    };
    world.until("the second is placed", |view| of(view, 1)).await;
    world.register(job("service", 1, "/bin/three", json!({}))).await;
    let ended = |alloc: &Allocation| alloc.client_status == ClientStatus::Complete;
    world.until("the second is given up", |view| of(view, 1).filter(ended)).await;
    assert_eq!(world.engine.log(), ["start g[0] v0"], "the first one still runs");
    world.engine.end(&first.id, false).await;
    world.running("web", 2, 1).await;
    assert_eq!(world.engine.log(), ["start g[0] v0", "start g[0] v2"]);
}

#[tokio::test]
async fn what_was_freed_before_a_start_is_seen_by_those_who_wait() {
    let world = World::new().await;
    let with = |id: &str, memory: u32| {
        let mut job = job("service", 1, "/bin/one", json!({}));
        (job["ID"], job["Name"]) = (json!(id), json!(id));
        job["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = json!(memory);
        job
    };
    world.register(with("web", 60_000)).await;
    let old = world.running("web", 0, 1).await.remove(0);
    world.register(with("api", 60_000)).await;
    world
        .until("api is blocked", |view| {
            let evals = view.evals_of_job(&key("api")).unwrap();
            evals.into_iter().find(|eval| eval.status == EvalStatus::Blocked)
        })
        .await;
    let World { dir, agent, working, engine } = world;
    drop((agent, engine));
    working.end().await;
    // The agent was killed when this was on the disk, and nobody had been told.
    let state = State::open(&dir.path().join("server")).unwrap();
    let ended = state.change(move |change| {
        let web = change.job(&key("web"))?.unwrap();
        change.put_job(super::model::JobVersion { stop: true, ..web }, None)?;
        let (desired_status, client_status) = (DesiredStatus::Stop, ClientStatus::Complete);
        change.put_alloc(Allocation { desired_status, client_status, ..old })
    });
    ended.await.unwrap();
    drop(state);
    World::at(dir).await.running("api", 0, 1).await;
}

#[tokio::test]
async fn after_a_snapshot_was_put_back_what_it_does_not_know_is_stopped() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    let first = world.running("web", 0, 1).await.remove(0);
    let saved = world.agent.state.save_snapshot(world.dir.path()).unwrap();
    let saved_index = world.agent.state.index();
    world.register(job("service", 1, "/bin/two", json!({}))).await;
    let second = world.running("web", 1, 1).await.remove(0);
    let mut later = job("service", 1, "/bin/later", json!({}));
    (later["ID"], later["Name"]) = (json!("later"), json!("later"));
    world.register(later).await;
    let unknown = world.running("later", 0, 1).await.remove(0);

    let index = world.agent.commands.restore_snapshot(saved.file).await.unwrap();
    assert!(index > saved_index + 2, "the index goes on");
    let view = world.agent.state.read().unwrap();
    assert!(view.job(&key("later")).unwrap().is_none() && view.alloc(&second.id).unwrap().is_none());
    // What ended meanwhile is not run again as if it had not.
    assert!(view.alloc(&first.id).unwrap().unwrap().client_status.is_terminal());
    for id in [&unknown.id, &second.id] {
        let deadline = Instant::now() + PATIENCE;
        while world.engine.runs(id) {
            assert!(Instant::now() < deadline, "{:?}", world.engine.log());
            tokio::task::yield_now().await;
        }
    }
    // Another second version than the one that nobody knows any more.
    world.register(job("service", 1, "/bin/other", json!({}))).await;
    let new = world.running("web", 1, 1).await.remove(0);
    assert_eq!(world.engine.command(&new.id).as_deref(), Some("/bin/other"));
}

#[tokio::test]
async fn a_clock_that_was_wrong_does_not_stop_periodic_jobs() {
    let world = World::new().await;
    let mut parent = job("batch", 1, "/bin/one", json!({}));
    parent["Periodic"] = json!({ "Enabled": true, "Spec": "* * * * * * *", "SpecType": "cron" });
    world.register(parent.clone()).await;
    let until = super::core::now().plus(Duration::from_hours(24 * 365));
    let put = world.agent.state.change(move |change| {
        change.put_launch(&key("web"), until)?;
        Ok(change.children(&key("web")).count())
    });
    let before = put.await.unwrap().1;
    world.until("it is started again", |view| (view.children(&key("web")).count() > before + 1).then_some(())).await;
}

#[tokio::test]
async fn a_periodic_job_that_cannot_be_started_does_not_stop_the_others() {
    let world = World::new().await;
    let mut parent = job("batch", 1, "/bin/one", json!({}));
    parent["Periodic"] = json!({ "Enabled": true, "Spec": "* * * * * * *", "SpecType": "cron" });
    // What it starts would have a name that is too long.
    let name = "a".repeat(240);
    let mut bad = parent.clone();
    (bad["ID"], bad["Name"]) = (json!(name), json!(name));
    world.register(bad).await;
    world.register(parent).await;
    world.until("the other one is started", |view| view.children(&key("web")).next().map(drop)).await;
}

#[tokio::test]
async fn a_lock_whose_holder_fell_silent_is_taken() {
    let world = World::new().await;
    let long_ago = Instant::now() - Duration::from_mins(1);
    let held = world.agent.state.change(move |change| {
        let times = (long_ago, super::core::now());
        change.acquire_lock("default", "a/b", None, Nanos(10_000_000_000), Nanos(1), None, times)
    });
    held.await.unwrap();
    world
        .until("the lock is free", |view| view.variable("default", "a/b").unwrap().filter(|var| var.lock.is_none()))
        .await;
}

#[tokio::test]
async fn a_tag_stays_with_its_version_and_stable_with_the_job() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", quick_update())).await;
    world.until("it is stable", |view| view.job(&key("web")).unwrap().filter(|job| job.stable)).await;
    let tag = super::model::VersionTag { name: "good".to_owned(), description: String::new(), tagged_time: Nanos(1) };
    world.agent.commands.tag(&key("web"), 0, Some(tag)).await.unwrap();
    world.agent.commands.deregister(&key("web"), Deregister::default()).await.unwrap();
    let versions = world.agent.state.read().unwrap().versions(&key("web")).unwrap();
    let seen: Vec<_> = versions.iter().map(|job| (job.version, job.stable, job.version_tag.is_some())).collect();
    assert_eq!(seen, [(1, true, false), (0, true, true)]);
    assert!(versions[0].submit_time > versions[1].submit_time);
    // As a real agent has it: who is scaled does not start for that.
    world.status("web", JobStatus::Dead).await;
    let scale = Scale { group: "g".to_owned(), count: Some(3), ..Scale::default() };
    world.agent.commands.scale(&key("web"), scale).await.unwrap();
    let web = world.agent.state.read().unwrap().job(&key("web")).unwrap().unwrap();
    assert_eq!((web.version, web.stop, &web.spec["TaskGroups"][0]["Count"]), (2, true, &json!(3)));
}

/// J2: the rule is the one of `jobspec::group_change`, which is compared with a real agent.
#[tokio::test]
async fn a_plan_knows_what_changes_in_place() {
    let world = World::new().await;
    world.register(job("service", 1, "/bin/one", json!({}))).await;
    world.running("web", 0, 1).await;
    for (name, value, expected) in [
        ("LogConfig", json!({ "MaxFiles": 3, "MaxFileSizeMB": 10 }), (1, 0)),
        ("Leader", json!(true), (1, 0)),
        ("User", json!("nobody"), (0, 1)),
    ] {
        let mut new = job("service", 1, "/bin/one", json!({}));
        new["TaskGroups"][0]["Tasks"][0][name] = value;
        let Value::Object(spec) = new else { panic!() };
        let desired = world.agent.commands.plan(spec).await.unwrap().desired["g"];
        assert_eq!((desired.in_place_update, desired.destructive_update), expected, "{name}");
    }
}

#[tokio::test]
async fn a_job_that_does_not_run_itself_is_planned_as_a_launch_of_it() {
    let world = World::new().await;
    let clock = json!({ "Enabled": true, "Spec": "0 0 1 1 *", "SpecType": "cron" });
    for (block, value) in [("Periodic", clock), ("ParameterizedJob", json!({}))] {
        let mut new = job("batch", 2, "/bin/one", json!({}));
        new[block] = value;
        let Value::Object(spec) = new else { panic!() };
        let planned = world.agent.commands.plan(spec).await.unwrap();
        assert_eq!(planned.desired["g"].place, 2, "{block}");
        assert_eq!(planned.next_periodic_launch.is_some(), block == "Periodic");
    }
}

#[tokio::test]
async fn a_deployment_fails_also_where_nobody_can_go_back() {
    let world = World::new().await;
    let update = stable_and_reverting(&world).await;
    // A version of an older agent that this one cannot read.
    let odd = world.agent.state.change(|change| {
        let mut web = change.job(&key("web"))?.unwrap();
        web.spec.insert("TaskGroups".to_owned(), json!([{ "Name": "g", "Count": "many" }]));
        let web = change.put_job(web, None)?;
        change.set_stable(&web.key, web.version, true)
    });
    odd.await.unwrap();
    world.engine.fail("web", true);
    world.register(job("service", 1, "/bin/two", update)).await;
    world
        .until("the deployment has failed", |view| {
            let all = view.deployments_of_job(&key("web")).unwrap();
            all.into_iter().find(|deployment| deployment.status == DeploymentStatus::Failed)
        })
        .await;
    assert_eq!(world.agent.state.read().unwrap().job(&key("web")).unwrap().unwrap().version, 2);
}

/// What is registered is kept, what is not there any more is forgotten, and nothing is written where all is as it was. Of an
/// allocation that was only just found again, services stay until it says what it offers.
#[tokio::test]
async fn services_follow_what_is_registered() {
    let world = World::new().await;
    world.register(job("batch", 1, "sleep", json!({}))).await;
    let alloc = world.running("web", 0, 1).await.remove(0);
    let service = |name: &str, tag: &str| ServiceRegistration {
        id: format!("_nomad-task-{}-group-g-{name}-http", alloc.id),
        service_name: name.to_owned(),
        namespace: "default".to_owned(),
        job_id: "web".to_owned(),
        alloc_id: alloc.id.clone(),
        tags: vec![tag.to_owned()],
        ..ServiceRegistration::default()
    };
    let tags = |view: &View, expected: &[(&str, &str)]| {
        let all = view.services(None, "").all().unwrap();
        let found: Vec<_> = all.iter().map(|service| (&*service.service_name, &*service.tags[0])).collect();
        (found == expected).then_some(())
    };
    world.engine.register(vec![service("a", "1"), service("b", "1")], &[]);
    world.until("both are kept", |view| tags(view, &[("a", "1"), ("b", "1")])).await;
    let before = world.agent.state.index();
    // Nothing new; one that is not said to be gone; and then a change, behind which the others have been looked at.
    world.engine.register(vec![service("a", "1")], &[]);
    world.engine.register(Vec::new(), &[]);
    world.engine.register(vec![service("a", "2")], &[]);
    world.until("the change is kept, and no more", |view| tags(view, &[("a", "2"), ("b", "1")])).await;
    assert_eq!(world.agent.state.index(), before + 1);
    world.engine.register(vec![service("a", "2")], &[&alloc.id]);
    world.until("what is gone is forgotten", |view| tags(view, &[("a", "2")])).await;
    world.engine.register(Vec::new(), &[]);
    world.engine.end(&alloc.id, false).await;
    world.until("what has ended offers nothing", |view| tags(view, &[])).await;
}

/// The agent was killed after the plugin had been asked, and before its answer was stored.
#[tokio::test]
async fn f1_what_a_killed_agent_had_asked_of_a_plugin_is_done() {
    let world = World::new().await;
    let volume = |id: &str, name: &str| DynamicVolume {
        namespace: "default".to_owned(),
        id: id.to_owned(),
        name: name.to_owned(),
        plugin_id: "mkdir".to_owned(),
        ..DynamicVolume::default()
    };
    let (created, deleted, lost) = (
        volume("11111111-0000-4000-8000-000000000001", "created"),
        DynamicVolume { deleting: true, ..volume("11111111-0000-4000-8000-000000000002", "deleted") },
        DynamicVolume {
            plugin_id: "gone".to_owned(),
            state: VolumeState::Ready,
            ..volume("11111111-0000-4000-8000-000000000003", "lost")
        },
    );
    let all = [created.clone(), deleted.clone(), lost.clone()];
    let put = move |change: &mut super::state::Change<'_>| {
        all.into_iter().try_for_each(|volume| change.put_volume(volume).map(drop))
    };
    world.agent.state.change(put).await.unwrap();
    let root = world.engine.dir.path().join("host_volumes");
    for id in [&created.id, &deleted.id] {
        std::fs::create_dir_all(root.join(id)).unwrap();
        std::fs::write(root.join(id).join("kept"), "kept").unwrap();
    }
    let World { dir, engine, agent, working } = world;
    working.end().await;
    drop(agent);
    let (reports, state) = (tokio::sync::mpsc::channel(1).1, State::open(&dir.path().join("server")).unwrap());
    let (agent, _working) = Agent::start(state, Arc::clone(&engine) as Arc<dyn Engine>, reports).await.unwrap();
    let view = agent.state.read().unwrap();
    let found = view.volume(&created.id).unwrap().unwrap();
    let path = engine.dir.path().canonicalize().unwrap().join("host_volumes").join(&created.id);
    assert_eq!((found.state, &*found.host_path), (VolumeState::Ready, path.to_str().unwrap()));
    assert_eq!(std::fs::read_to_string(path.join("kept")).unwrap(), "kept");
    assert_eq!(view.volume(&deleted.id).unwrap(), None);
    assert!(!root.join(&deleted.id).exists());
    assert_eq!(view.volume(&lost.id).unwrap().unwrap().state, VolumeState::Unavailable);
    let node = view.node().unwrap().unwrap();
    assert_eq!(node.dynamic_volumes.into_keys().collect::<Vec<_>>(), ["created"]);
}

/// A job that waits for a volume runs as soon as there is one.
#[tokio::test]
async fn f1_a_job_waits_for_its_volume() {
    let world = World::new().await;
    let volumes = json!({ "Volumes": { "v": { "Name": "v", "Type": "host", "Source": "data" } } });
    let registered = world.register(job("service", 1, "/bin/one", volumes)).await;
    world
        .until("it waits", |view| {
            let eval = view.eval(&registered.eval_id).unwrap()?;
            let reasons = &eval.failed.get("g")?.reasons;
            (*reasons == ["the host volume data is not configured on this node"]).then_some(())
        })
        .await;
    let volume = DynamicVolume { namespace: "default".to_owned(), name: "data".to_owned(), ..DynamicVolume::default() };
    let (_, volume) = world.agent.commands.create_volume(volume).await.unwrap();
    assert_eq!(volume.plugin_id, "mkdir");
    world.running("web", 0, 1).await;
    let error = world.agent.commands.delete_volume("default", &volume.id, false).await.unwrap_err();
    assert!(error.to_string().contains("in use by allocations"), "{error}");
    world.agent.commands.deregister(&key("web"), Deregister::default()).await.unwrap();
    world.until("nobody uses it", |view| view.users_of_volume(&volume).unwrap().is_empty().then_some(())).await;
    world.agent.commands.delete_volume("default", &volume.id, false).await.unwrap();
}
