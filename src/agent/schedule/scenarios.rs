//! J6, J7: what a real agent (1.11.3) was seen to decide, step by step; where ours decides otherwise, the test says so.

use std::time::Duration;

use crate::agent::model::{
    ClientStatus, DeploymentStatus, DrainSpec, Eligibility, Nanos, RescheduleEvent, RescheduleTracker, Trigger,
};
use crate::spec::collections::BTreeMap;
use crate::spec::{DelayFunction, Job, JobType, Operator, Reschedule, Update};

use super::blocked::Change;
use super::deploy::{DeploymentInput, fail_deployment, health_step, pause_deployment, promote_deployment, set_health};
use super::drain::{drain_step, drain_strategy};
use super::fixture::{SECOND, changed, constraint, group, job, of_kind};
use super::reschedule::{Verdict, delay, tracker, verdict};
use super::simulation::{World, end};
use crate::agent::model::DesiredUpdates;

fn with_update(mut job: Job, change: impl FnOnce(&mut Update)) -> Job {
    change(job.groups[0].scheduling.update.as_mut().expect("a service"));
    job
}

fn versions(world: &World) -> Vec<crate::agent::model::JobVersion> {
    world.versions.iter().map(|(version, _)| version.clone()).collect()
}

fn promote(world: &mut World) {
    let versions = versions(world);
    let deployment = world.deployments.last().expect("there is one").clone();
    let input = DeploymentInput {
        deployment: &deployment,
        versions: &versions,
        allocs: &world.allocs,
        job: None,
        now: world.now,
    };
    let step = promote_deployment(&input, None).expect("its canaries are healthy");
    world.carry_out(step);
}

fn descriptions(world: &World) -> Vec<&str> {
    let mut all: Vec<&str> = world
        .allocs
        .iter()
        .filter(|alloc| alloc.desired_status != crate::agent::model::DesiredStatus::Run)
        .map(|alloc| alloc.desired_description.as_str())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn a_service_is_placed_updated_one_by_one_and_stopped() {
    let mut world = World::new();
    let plan = world.register(&job(2));
    assert_eq!(plan.desired["g"], DesiredUpdates { place: 2, ..DesiredUpdates::default() });
    assert_eq!(plan.eval.queued_allocations, BTreeMap::from([("g".to_owned(), 0)]));
    assert_eq!(plan.eval.deployment_id, world.deployments[0].id);
    assert_eq!(world.shown(), ["web.g[0] v0", "web.g[1] v0"]);
    world.settle();
    assert_eq!(world.deployment(), ("successful".to_owned(), "Deployment completed successfully".to_owned()));
    assert!(world.versions[0].0.stable);

    let plan = world.register(&changed(&job(2), "1"));
    let expected = DesiredUpdates { ignore: 1, destructive_update: 1, ..DesiredUpdates::default() };
    assert_eq!(plan.desired["g"], expected);
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v0"]);
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v1"]);
    assert_eq!(descriptions(&world), ["alloc is being updated due to job update"]);
    let part = &world.deployments[1].task_groups["g"];
    assert_eq!((part.desired_total, part.placed_allocs, part.healthy_allocs), (2, 2, 2));

    let plan = world.stop();
    assert_eq!(plan.desired["g"], DesiredUpdates { stop: 2, ..DesiredUpdates::default() });
    assert!(world.live().is_empty());
    assert!(descriptions(&world).contains(&"alloc not needed due to job update"));
}

#[test]
fn what_needs_no_new_process_is_updated_in_place_and_scaling_takes_the_highest_numbers() {
    let mut world = World::new();
    world.register(&job(2));
    world.settle();
    let mut other = job(3);
    other.groups[0].tasks[0].kill_timeout = Duration::from_secs(9);
    let plan = world.register(&other);
    let expected = DesiredUpdates { in_place_update: 2, place: 1, ..DesiredUpdates::default() };
    assert_eq!(plan.desired["g"], expected);
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v1", "web.g[2] v1"]);
    let part = &world.deployments[1].task_groups["g"];
    assert_eq!((part.placed_allocs, part.healthy_allocs), (3, 3));
    let plan = world.register(&job(1));
    assert_eq!(plan.desired["g"], DesiredUpdates { in_place_update: 1, stop: 2, ..DesiredUpdates::default() });
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v2"]);
    world.register(&job(3));
    assert_eq!(world.shown(), ["web.g[0] v3", "web.g[1] v3", "web.g[2] v3"]);
}

#[test]
fn a_version_takes_the_place_of_one_that_is_not_through() {
    let mut world = World::new();
    world.register(&job(1));
    world.register(&changed(&job(1), "1"));
    let first = &world.deployments[0];
    assert_eq!(first.status_description, "Cancelled due to newer version of job");
    world.stop();
    assert_eq!(world.deployment(), ("cancelled".to_owned(), "Cancelled because job is stopped".to_owned()));
}

#[test]
fn canaries_are_tried_beside_the_old_ones_until_somebody_promotes_them() {
    let mut world = World::new();
    let base = with_update(job(2), |update| update.canary = 1);
    world.register(&base);
    world.settle();
    let plan = world.register(&changed(&base, "1"));
    assert_eq!(plan.desired["g"], DesiredUpdates { canary: 1, ignore: 2, ..DesiredUpdates::default() });
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v0", "web.g[0] v1", "web.g[1] v0"]);
    let expected = "Deployment is running but requires manual promotion".to_owned();
    assert_eq!(world.deployment(), ("running".to_owned(), expected));
    promote(&mut world);
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v1"]);
    assert_eq!(world.deployment().0, "successful");
    assert!(world.allocs.iter().all(|a| a.deployment_status.as_ref().is_none_or(|status| !status.canary)));
}

#[test]
fn what_follows_a_late_promotion_has_the_whole_progress_deadline() {
    let mut world = World::new();
    let base = with_update(job(2), |update| update.canary = 1);
    world.register(&base);
    world.settle();
    world.register(&changed(&base, "1"));
    world.settle();
    world.now = world.now.plus(Duration::from_secs(700));
    world.settle();
    assert_eq!(world.deployment().0, "running");
    promote(&mut world);
    let deadline = world.deployments[1].task_groups["g"].require_progress_by.0;
    assert_eq!(deadline, Some(world.now.plus(Duration::from_mins(10))));
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v1"]);
    assert_eq!(world.deployment().0, "successful");
}

#[test]
fn canaries_promote_themselves_where_the_job_says_so() {
    let mut world = World::new();
    let base = with_update(job(3), |update| (update.canary, update.auto_promote, update.max_parallel) = (2, true, 2));
    world.register(&base);
    world.settle();
    world.register(&changed(&base, "1"));
    assert_eq!(world.deployment().1, "Deployment is running pending automatic promotion");
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v1", "web.g[2] v1"]);
}

#[test]
fn a_deployment_without_progress_fails_and_brings_the_last_stable_version_back() {
    let mut world = World::new();
    let base = with_update(job(2), |update| (update.canary, update.auto_revert) = (1, true));
    world.register(&base);
    world.settle();
    world.broken.insert(1);
    world.register(&changed(&base, "bad"));
    world.settle();
    assert_eq!(world.deployment().0, "running");
    world.now = world.now.plus(Duration::from_secs(700));
    world.settle();
    let failed = &world.deployments[1];
    assert_eq!(failed.status_description, "Failed due to progress deadline - rolling back to job version 0");
    assert_eq!(world.shown(), ["web.g[0] v2", "web.g[1] v2"]);
    assert_eq!(world.deployment().0, "successful");
}

#[test]
fn a_deployment_does_not_wait_for_what_its_policy_does_not_replace_any_more() {
    let mut world = World::new();
    let mut base = with_update(job(1), |update| update.auto_revert = true);
    base.groups[0].scheduling.reschedule =
        Some(Reschedule { interval: Duration::from_hours(1), ..Reschedule::of(JobType::Batch).expect("it has one") });
    world.register(&base);
    world.settle();
    world.broken.insert(1);
    world.register(&changed(&base, "bad"));
    world.settle();
    assert_eq!(world.deployment().0, "running", "it is tried once more");
    world.now = world.now.plus(Duration::from_secs(5));
    world.settle();
    let expected = "Failed due to unhealthy allocations - rolling back to job version 0";
    assert_eq!(world.deployments[1].status_description, expected);
    assert_eq!(world.shown(), ["web.g[0] v2"]);
}

#[test]
fn without_a_stable_version_or_with_the_same_one_nothing_is_rolled_back() {
    let mut world = World::new();
    let base = with_update(job(1), |update| (update.auto_revert, update.progress_deadline) = (true, Duration::ZERO));
    world.broken.insert(0);
    world.register(&base);
    world.settle();
    let expected = "Failed due to unhealthy allocations - no stable job version to auto revert to";
    assert_eq!(world.deployment(), ("failed".to_owned(), expected.to_owned()));
    let mut world = World::new();
    world.register(&base);
    world.settle();
    world.broken.insert(1);
    world.register(&base);
    // In place: the same process goes on, and then fails.
    world.settle();
    let expected = "Failed due to unhealthy allocations - not rolling back to stable job version 0 as current job has \
                    same specification";
    assert_eq!(world.deployment(), ("failed".to_owned(), expected.to_owned()));
}

#[test]
fn deployments_are_paused_resumed_and_failed_by_somebody() {
    let mut world = World::new();
    world.register(&job(2));
    world.settle();
    world.register(&changed(&job(2), "1"));
    let versions = versions(&world);
    let step = |world: &World, f: &dyn Fn(&DeploymentInput<'_>) -> Result<super::DeploymentStep, String>| {
        let deployment = world.deployments.last().expect("there is one").clone();
        let (allocs, now) = (&world.allocs, world.now);
        f(&DeploymentInput { deployment: &deployment, versions: &versions, allocs, job: None, now })
    };
    let paused = step(&world, &|input| pause_deployment(input, true)).unwrap();
    world.carry_out(paused);
    world.settle();
    assert_eq!(world.deployment(), ("paused".to_owned(), "Deployment is paused".to_owned()));
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v0"]);
    let resumed = step(&world, &|input| pause_deployment(input, false)).unwrap();
    world.carry_out(resumed);
    let failed = step(&world, &fail_deployment).unwrap();
    world.carry_out(failed);
    assert_eq!(world.deployment(), ("failed".to_owned(), "Deployment marked as failed".to_owned()));
    world.settle();
    for (verb, refused) in [
        ("fail", step(&world, &fail_deployment)),
        ("pause", step(&world, &|input| pause_deployment(input, true))),
        ("resume", step(&world, &|input| pause_deployment(input, false))),
        ("promote", step(&world, &|input| promote_deployment(input, None))),
    ] {
        assert_eq!(refused.unwrap_err(), format!("can't {verb} terminal deployment"));
    }
}

#[test]
fn a_deployment_that_is_resumed_says_that_it_runs() {
    let mut world = World::new();
    let base = with_update(job(2), |update| update.canary = 1);
    world.register(&base);
    world.settle();
    world.register(&changed(&base, "1"));
    world.settle();
    for pause in [true, false] {
        let (versions, deployment) = (versions(&world), world.deployments[1].clone());
        let (allocs, now) = (&world.allocs, world.now);
        let input = DeploymentInput { deployment: &deployment, versions: &versions, allocs, job: None, now };
        let step = pause_deployment(&input, pause).expect("it goes on");
        world.carry_out(step);
        world.settle();
    }
    assert_eq!(world.deployment(), ("running".to_owned(), "Deployment is running".to_owned()));
}

#[test]
fn who_says_that_an_allocation_is_unhealthy_fails_its_deployment() {
    for (is_paused, reverts) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut world = World::new();
        let base = with_update(job(1), |update| update.auto_revert = reverts);
        world.register(&base);
        world.settle();
        world.is_manual = true;
        world.register(&changed(&base, "1"));
        world.settle();
        let (versions, mut deployment) = (versions(&world), world.deployments[1].clone());
        if is_paused {
            deployment.status = DeploymentStatus::Paused;
        }
        let (allocs, now, named) = (&world.allocs, world.now, [world.live()[0].id.clone()]);
        let input = DeploymentInput { deployment: &deployment, versions: &versions, allocs, job: None, now };
        let said = set_health(&input, &[], &named).expect("it is one of its allocations");
        let step = health_step(&DeploymentInput { allocs: &said, ..input }, &named);
        let failed = step.deployment.expect("it has changed");
        let back = if reverts { " - rolling back to job version 0" } else { "" };
        assert_eq!(failed.status_description, format!("Failed due to unhealthy allocations{back}"));
        assert_eq!((failed.status, failed.task_groups["g"].unhealthy_allocs), (DeploymentStatus::Failed, 1));
        assert_eq!((step.evaluate, step.revert), (true, reverts.then_some(0)));
        // What is healthy is said to the scheduler as well.
        let input = DeploymentInput { deployment: &deployment, versions: &versions, allocs, job: None, now };
        assert!(health_step(&input, &[]).evaluate);
    }
}

#[test]
fn of_several_groups_that_fail_one_that_goes_back_is_enough() {
    for deadline in [Duration::ZERO, Duration::from_mins(10)] {
        let mut base = job(1);
        base.groups.push(group(JobType::Service, "h", 1));
        for group in &mut base.groups {
            group.scheduling.update.as_mut().expect("a service").progress_deadline = deadline;
        }
        base.groups[1].scheduling.update.as_mut().expect("a service").auto_revert = true;
        let mut world = World::new();
        world.register(&base);
        world.settle();
        world.broken.insert(1);
        let mut bad = base.clone();
        bad.groups.iter_mut().for_each(|group| _ = group.tasks[0].env.insert("X".to_owned(), "bad".to_owned()));
        world.register(&bad);
        world.settle();
        world.now = world.now.plus(Duration::from_secs(700));
        world.settle();
        let told = &world.deployments[1].status_description;
        assert!(told.ends_with(" - rolling back to job version 0"), "{told}");
    }
}

#[test]
fn what_failed_of_the_old_version_is_replaced_while_the_deployment_is_paused() {
    let mut world = World::new();
    let mut base = job(2);
    base.groups[0].scheduling.reschedule.as_mut().expect("a service").delay = Duration::ZERO;
    world.register(&base);
    world.settle();
    world.register(&changed(&base, "1"));
    let (versions, deployment) = (versions(&world), world.deployments[1].clone());
    let (allocs, now) = (&world.allocs, world.now);
    let input = DeploymentInput { deployment: &deployment, versions: &versions, allocs, job: None, now };
    let paused = pause_deployment(&input, true).expect("it runs");
    world.carry_out(paused);
    world.settle();
    let is_old = |alloc: &crate::agent::model::Allocation| alloc.job_version == 0 && !alloc.is_terminal();
    let at = world.allocs.iter().position(is_old).expect("one is left");
    end(&mut world.allocs[at], ClientStatus::Failed, now);
    world.evaluate(Trigger::AllocFailure);
    assert_eq!(world.shown(), ["web.g[0] v1", "web.g[1] v0"]);
    let new = world.allocs.last().expect("there is another one");
    assert_eq!((new.job_version, &new.id), (0, &world.allocs[at].next_allocation));
    world.settle();
    assert_eq!(world.deployment().0, "paused");
}

#[test]
fn what_failed_is_replaced_later_by_an_evaluation_of_its_own() {
    let mut world = World::new();
    let mut base = of_kind(JobType::Batch, 1);
    world.broken.insert(0);
    world.register(&base);
    world.settle();
    let followup = world.evals.iter().find(|eval| eval.triggered_by == Trigger::AllocReschedule).unwrap().clone();
    assert_eq!(followup.status_description, "created for delayed rescheduling");
    assert_eq!(followup.wait_until_nanos, world.now.plus(Duration::from_secs(5)));
    assert_eq!(world.allocs[0].followup_eval_id, followup.id);
    world.now = followup.wait_until_nanos;
    world.settle();
    assert_eq!(world.allocs.len(), 2);
    let (old, new) = (&world.allocs[0], &world.allocs[1]);
    assert_eq!((old.desired_description.as_str(), &old.next_allocation), ("", &new.id));
    let event = &new.reschedule_tracker.as_ref().unwrap().events[0];
    assert_eq!((&event.prev_alloc_id, event.delay), (&old.id, Nanos(5 * SECOND)));
    // The one attempt of a batch job is used up.
    world.now = world.now.plus(Duration::from_hours(1));
    world.settle();
    assert_eq!((world.allocs.len(), new_status(&world)), (2, ClientStatus::Failed));
    // A new version is a new run.
    base.groups[0].tasks[0].env.insert("X".to_owned(), "1".to_owned());
    world.register(&base);
    assert_eq!(world.shown(), ["web.g[0] v1"]);
}

#[test]
fn who_forces_a_reschedule_does_not_go_before_the_deployment() {
    let mut world = World::new();
    world.is_manual = true;
    world.register(&job(1));
    world.run_client();
    let now = world.now;
    end(&mut world.allocs[0], ClientStatus::Failed, now);
    world.allocs[0].desired_transition.force_reschedule = Some(true);
    world.evaluate(Trigger::JobRegister);
    assert_eq!(world.allocs.len(), 1);
    world.allocs[0].desired_transition.reschedule = Some(true);
    world.evaluate(Trigger::JobRegister);
    assert_eq!((world.allocs.len(), &world.allocs[0].next_allocation), (2, &world.allocs[1].id));
}

fn new_status(world: &World) -> ClientStatus {
    world.allocs.last().expect("there is one").client_status
}

#[test]
fn delays_grow_as_the_policy_says() {
    let mut world = World::new();
    for (function, expected) in [
        (DelayFunction::Constant, [10, 10, 10, 10, 10, 10]),
        (DelayFunction::Exponential, [10, 20, 40, 60, 60, 60]),
        (DelayFunction::Fibonacci, [10, 10, 20, 30, 50, 60]),
    ] {
        let mut base = job(1);
        base.groups[0].scheduling.reschedule = Some(Reschedule {
            attempts: 0,
            interval: Duration::ZERO,
            delay: Duration::from_secs(10),
            delay_function: function,
            max_delay: Duration::from_mins(1),
            unlimited: true,
        });
        world = World::new();
        world.register(&base);
        world.settle();
        world.broken.insert(0);
        let mut waits = Vec::new();
        for _ in expected {
            world.settle();
            let due = world.evals.iter().map(|eval| eval.wait_until_nanos).max().unwrap();
            waits.push((due.0 - world.now.0) / SECOND);
            world.now = due;
        }
        assert_eq!(waits, expected, "{function:?}");
    }
    world.settle();
    let tracker = world.allocs.last().unwrap().reschedule_tracker.clone().unwrap();
    assert_eq!(tracker.events.len(), 6, "the last five are remembered, and the newest one");
}

#[test]
fn what_is_due_within_a_second_is_replaced_now_and_remembers_what_is_an_interval_old() {
    let mut world = World::new();
    world.register(&job(1));
    let (mut alloc, failed) = (world.allocs.remove(0), world.now);
    let policy = Reschedule {
        attempts: 2,
        interval: Duration::from_mins(1),
        delay: Duration::from_secs(10),
        delay_function: DelayFunction::Constant,
        unlimited: false,
        ..Reschedule::of(JobType::Service).expect("it has one")
    };
    end(&mut alloc, ClientStatus::Failed, failed);
    let said = |seconds| verdict(Some(&policy), &alloc, failed.plus(Duration::from_secs(seconds)));
    assert_eq!((said(8), said(9)), (Verdict::Later(failed.plus(Duration::from_secs(10))), Verdict::Now));
    let mut next = alloc.clone();
    next.reschedule_tracker = Some(tracker(Some(&policy), &alloc, failed));
    for (seconds, expected) in [(60, 2), (61, 1)] {
        let kept = tracker(Some(&policy), &next, failed.plus(Duration::from_secs(seconds)));
        assert_eq!(kept.events.len(), expected, "{seconds}");
    }
}

#[test]
fn a_fibonacci_series_that_began_anew_grows_as_the_first_one() {
    let mut world = World::new();
    world.register(&job(1));
    let (mut alloc, reschedule_time) = (world.allocs.remove(0), world.now);
    let policy = Reschedule {
        delay: Duration::from_secs(10),
        delay_function: DelayFunction::Fibonacci,
        max_delay: Duration::from_mins(1),
        ..Reschedule::of(JobType::Service).expect("it has one")
    };
    for (waits, expected) in [(&[50, 60, 10][..], 10), (&[60, 10, 10], 20), (&[60, 60], 60)] {
        let event = |wait: &i64| RescheduleEvent {
            reschedule_time,
            prev_alloc_id: String::new(),
            prev_node_id: String::new(),
            delay: Nanos(wait * SECOND),
        };
        alloc.reschedule_tracker = Some(RescheduleTracker { events: waits.iter().map(event).collect() });
        assert_eq!(delay(&policy, &alloc), Duration::from_secs(expected), "{waits:?}");
    }
}

#[test]
fn batch_and_sysbatch_jobs_that_are_done_are_not_run_again() {
    for kind in [JobType::Batch, JobType::Sysbatch] {
        let mut world = World::new();
        world.register(&of_kind(kind, 1));
        world.settle();
        let now = world.now;
        end(&mut world.allocs[0], ClientStatus::Complete, now);
        let plan = world.evaluate(Trigger::JobRegister);
        assert_eq!(plan.desired["g"], DesiredUpdates { ignore: 1, ..DesiredUpdates::default() });
        assert_eq!(world.allocs.len(), 1);
    }
}

#[test]
fn a_node_that_becomes_eligible_gets_system_jobs_and_sysbatch_jobs_only_when_they_are_registered() {
    for (kind, expected) in [(JobType::System, 1), (JobType::Sysbatch, 0)] {
        let mut world = World::new();
        world.node.scheduling_eligibility = Eligibility::Ineligible;
        world.register(&of_kind(kind, 1));
        assert!(world.allocs.is_empty());
        world.node.scheduling_eligibility = Eligibility::Eligible;
        world.wake(Change::NodeEligible);
        world.wake(Change::NodeChanged);
        assert_eq!(world.allocs.len(), expected, "{kind:?}");
        world.evaluate(Trigger::JobRegister);
        assert_eq!(world.allocs.len(), 1, "{kind:?}");
    }
}

#[test]
fn somebody_stops_an_allocation_and_it_is_placed_anew() {
    let mut world = World::new();
    world.register(&job(2));
    world.settle();
    world.allocs[0].desired_transition.migrate = Some(true);
    let plan = world.evaluate(Trigger::AllocStop);
    assert_eq!(plan.desired["g"], DesiredUpdates { ignore: 1, migrate: 1, ..DesiredUpdates::default() });
    assert_eq!(world.allocs[0].desired_description, "alloc is being migrated");
    assert_eq!(world.allocs[2].previous_allocation, world.allocs[0].id);
    assert_eq!(world.allocs[2].name, "web.g[0]");
}

#[test]
fn what_is_lost_is_replaced() {
    let mut world = World::new();
    world.register(&job(1));
    world.settle();
    let now = world.now;
    end(&mut world.allocs[0], ClientStatus::Lost, now);
    world.evaluate(Trigger::NodeUpdate);
    assert_eq!(world.allocs[0].desired_description, "alloc is lost since its node is down");
    assert_eq!(world.shown(), ["web.g[0] v0"]);
    world.check_idempotent();
}

#[test]
fn a_drain_takes_services_at_once_batch_jobs_at_the_deadline_and_system_jobs_last() {
    let now = Nanos(1_000 * SECOND);
    let mut world = World::new();
    world.register(&job(2));
    world.settle();
    let minute = Nanos(60 * SECOND);
    let spec = |deadline, ignore_system_jobs| DrainSpec { deadline, ignore_system_jobs };
    let strategy = drain_strategy(spec(minute, false), now);
    let allocs = world.allocs.clone();
    let kinds = |one, other| [(&allocs[0], one), (&allocs[1], other)];
    let ids = |indexes: &[usize]| indexes.iter().map(|at| allocs[*at].id.clone()).collect::<Vec<_>>();
    let step = drain_step(&strategy, kinds(JobType::Service, JobType::Batch), now);
    assert_eq!((step.migrate, step.is_done, step.next), (ids(&[0]), false, Some(now.plus(Duration::from_mins(1)))));
    let later = now.plus(Duration::from_mins(1));
    let step = drain_step(&strategy, kinds(JobType::Service, JobType::Batch), later);
    assert_eq!((step.migrate, step.next), (ids(&[0, 1]), None));
    let step = drain_step(&strategy, kinds(JobType::Batch, JobType::System), now);
    assert_eq!(step.migrate, ids(&[]));
    let step = drain_step(&strategy, kinds(JobType::System, JobType::System), now);
    assert_eq!(step.migrate, ids(&[0, 1]));
    let step = drain_step(&strategy, kinds(JobType::System, JobType::Sysbatch), now);
    assert_eq!(step.migrate, ids(&[]), "a sysbatch job may run to its end");
    assert_eq!(drain_step(&strategy, kinds(JobType::System, JobType::Sysbatch), later).migrate, ids(&[0, 1]));
    let ignoring = drain_strategy(spec(minute, true), now);
    assert!(drain_step(&ignoring, kinds(JobType::System, JobType::System), now).is_done);
    assert!(!drain_step(&ignoring, kinds(JobType::System, JobType::Sysbatch), now).is_done);
    let forced = drain_strategy(spec(Nanos(-1), false), now);
    assert_eq!(drain_step(&forced, kinds(JobType::Batch, JobType::System), now).migrate, ids(&[0, 1]));
    let endless = drain_strategy(spec(Nanos(0), false), now);
    assert_eq!(drain_step(&endless, kinds(JobType::Batch, JobType::Batch), later), super::DrainStep::default());

    world.node.drain_strategy = Some(strategy);
    world.node.scheduling_eligibility = Eligibility::Ineligible;
    world.allocs.iter_mut().for_each(|alloc| alloc.desired_transition.migrate = Some(true));
    let plan = world.evaluate(Trigger::NodeDrain);
    assert_eq!(plan.eval.queued_allocations["g"], 2);
    assert_eq!(plan.eval.failed["g"].reasons, ["the node is being drained"]);
    world.settle();
    assert!(world.live().is_empty());
    world.node.drain_strategy = None;
    world.node.scheduling_eligibility = Eligibility::Eligible;
    world.wake(Change::NodeEligible);
    assert_eq!(world.shown(), ["web.g[0] v0", "web.g[1] v0"]);
}

#[test]
fn what_a_drain_ends_of_a_batch_job_is_not_begun_again() {
    let mut world = World::new();
    world.register(&of_kind(JobType::Batch, 1));
    world.settle();
    world.node.drain_strategy = Some(drain_strategy(DrainSpec::default(), world.now));
    world.node.scheduling_eligibility = Eligibility::Ineligible;
    let transition = &mut world.allocs[0].desired_transition;
    (transition.migrate, transition.migrate_disable_placement) = (Some(true), Some(true));
    let plan = world.evaluate(Trigger::NodeDrain);
    assert_eq!(plan.desired["g"], DesiredUpdates { migrate: 1, ..DesiredUpdates::default() });
    assert!(plan.eval.failed.is_empty() && plan.eval.blocked_eval.is_empty());
    world.settle();
    world.node.drain_strategy = None;
    world.node.scheduling_eligibility = Eligibility::Eligible;
    world.wake(Change::NodeEligible);
    assert_eq!((world.live().len(), world.allocs.len()), (0, 1));
}

#[test]
fn what_somebody_stops_of_a_batch_job_is_begun_again_as_its_policy_says() {
    for (attempts, expected) in [(0, 1), (1, 2)] {
        let mut world = World::new();
        let mut base = of_kind(JobType::Batch, 1);
        base.groups[0].scheduling.reschedule.as_mut().expect("a batch job").attempts = attempts;
        world.register(&base);
        world.settle();
        let transition = &mut world.allocs[0].desired_transition;
        (transition.migrate, transition.reschedule) = (Some(true), Some(true));
        let plan = world.evaluate(Trigger::AllocStop);
        let reschedule_later = u64::from(attempts);
        assert_eq!(plan.desired["g"], DesiredUpdates { migrate: 1, reschedule_later, ..DesiredUpdates::default() });
        world.settle();
        assert!(world.live().is_empty());
        world.now = world.now.plus(Duration::from_secs(5));
        world.settle();
        assert_eq!((world.allocs.len(), world.live().len()), (expected, expected - 1));
    }
}

#[test]
fn a_system_job_has_one_allocation_and_waits_for_no_other_node() {
    let mut world = World::new();
    let base = of_kind(JobType::System, 1);
    let plan = world.register(&base);
    assert_eq!(plan.desired["g"], DesiredUpdates { place: 1, ..DesiredUpdates::default() });
    world.settle();
    assert_eq!(world.deployment().0, "successful");
    let plan = world.register(&changed(&base, "1"));
    assert_eq!(plan.desired["g"], DesiredUpdates { place: 1, destructive_update: 1, ..DesiredUpdates::default() });
    world.settle();
    assert_eq!((world.shown(), world.deployment().0.as_str()), (vec!["web.g[0] v1".to_owned()], "successful"));
    let now = world.now;
    let last = world.allocs.len() - 1;
    end(&mut world.allocs[last], ClientStatus::Failed, now);
    world.evaluate(Trigger::JobRegister);
    assert_eq!(world.shown(), ["web.g[0] v1"]);
    assert_eq!(world.allocs[last].next_allocation, world.allocs[last + 1].id);

    let mut elsewhere = base.clone();
    elsewhere.constraints.push(constraint("${attr.kernel.name}", Operator::Equal, "plan9"));
    let mut world = World::new();
    let plan = world.register(&elsewhere);
    assert!(plan.eval.blocked_eval.is_empty() && plan.eval.failed["g"].nodes_filtered == 1);
    assert_eq!((plan.eval.queued_allocations["g"], world.deployment().0.as_str()), (0, "successful"));
    let mut large = base;
    large.groups[0].tasks[0].resources.memory_mib = 100_000;
    let plan = World::new().register(&large);
    assert!(!plan.eval.blocked_eval.is_empty());
    assert_eq!(plan.eval.queued_allocations["g"], 1);
}

#[test]
fn a_sysbatch_job_has_its_count_on_the_node_and_each_is_done_once() {
    let mut world = World::new();
    let plan = world.register(&of_kind(JobType::Sysbatch, 3));
    assert_eq!(plan.desired["g"], DesiredUpdates { place: 3, ..DesiredUpdates::default() });
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v0", "web.g[1] v0", "web.g[2] v0"]);
    let now = world.now;
    end(&mut world.allocs[1], ClientStatus::Complete, now);
    let plan = world.evaluate(Trigger::JobRegister);
    assert_eq!(plan.desired["g"], DesiredUpdates { ignore: 3, ..DesiredUpdates::default() });
    let plan = world.register(&of_kind(JobType::Sysbatch, 1));
    assert_eq!(plan.desired["g"], DesiredUpdates { in_place_update: 1, stop: 1, ..DesiredUpdates::default() });
    world.settle();
    assert_eq!(world.shown(), ["web.g[0] v1"]);
    world.check_idempotent();
}

#[test]
fn a_system_job_is_as_its_newest_version_says_or_is_not_there() {
    let base = of_kind(JobType::System, 1);
    let running = || {
        let mut world = World::new();
        world.register(&base);
        world.settle();
        world
    };
    let mut world = running();
    let mut large = base.clone();
    large.groups[0].tasks[0].resources.memory_mib = 100_000;
    let plan = world.register(&large);
    assert!(world.live().is_empty() && !plan.eval.blocked_eval.is_empty());
    assert_eq!(descriptions(&world), ["alloc is being updated due to job update"]);
    assert_eq!(world.deployment().0, "successful");
    world.check_idempotent();

    let mut world = running();
    world.node.scheduling_eligibility = Eligibility::Ineligible;
    let plan = world.evaluate(Trigger::JobRegister);
    assert_eq!(plan.desired["g"], DesiredUpdates { ignore: 1, ..DesiredUpdates::default() });
    let plan = world.register(&changed(&base, "1"));
    assert_eq!(plan.desired["g"], DesiredUpdates { stop: 1, ..DesiredUpdates::default() });
    assert_eq!(descriptions(&world), ["alloc not needed due to job update"]);
    world.settle();
    world.node.scheduling_eligibility = Eligibility::Eligible;
    world.wake(Change::NodeEligible);
    assert_eq!(world.shown(), ["web.g[0] v1"]);

    // A drain that leaves it where it is.
    let mut world = running();
    let spec = DrainSpec { deadline: Nanos(0), ignore_system_jobs: true };
    world.node.drain_strategy = Some(drain_strategy(spec, world.now));
    world.node.scheduling_eligibility = Eligibility::Ineligible;
    let plan = world.register(&changed(&base, "1"));
    assert_eq!(plan.desired["g"], DesiredUpdates { ignore: 1, ..DesiredUpdates::default() });
    assert_eq!(world.shown(), ["web.g[0] v0"]);
}

#[test]
fn what_the_newest_version_wants_elsewhere_does_not_go_on_here() {
    let moves: [fn(&mut Job); 2] =
        [|job| job.scheduling.datacenters = vec!["dc2".to_owned()], |job| job.scheduling.node_pool = "gpu".to_owned()];
    for elsewhere in moves {
        for kind in [JobType::Service, JobType::System] {
            let mut world = World::new();
            let mut job = of_kind(kind, 1);
            world.register(&job);
            world.settle();
            elsewhere(&mut job);
            let plan = world.register(&job);
            if kind == JobType::System {
                assert_eq!(plan.desired["g"], DesiredUpdates { stop: 1, ..DesiredUpdates::default() });
                assert!(world.live().is_empty());
                continue;
            }
            // As one that has to be placed anew, and has no place.
            let expected = DesiredUpdates { destructive_update: 1, ..DesiredUpdates::default() };
            assert_eq!(plan.desired["g"], expected);
            assert!(!plan.eval.blocked_eval.is_empty() && plan.eval.failed["g"].nodes_evaluated == 0);
            assert_eq!(world.shown(), ["web.g[0] v0"]);
        }
    }
}

#[test]
fn a_group_that_is_gone_is_stopped_and_another_one_is_placed() {
    let mut world = World::new();
    world.register(&job(1));
    world.settle();
    let mut other = job(1);
    other.groups = vec![group(JobType::Service, "h", 1)];
    let plan = world.register(&other);
    assert_eq!(plan.desired["g"].stop, 1);
    assert_eq!(world.shown(), ["web.h[0] v1"]);
    world.is_purged = true;
    world.evaluate(Trigger::JobDeregister);
    assert!(world.live().is_empty());
}
