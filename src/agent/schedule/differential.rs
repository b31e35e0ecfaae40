//! J6: the scenarios of `tests/nomad/testdata/schedule.json`: what is done to a job, and what there is when nothing happens any more.
//! `tests/nomad/schedule_test.go` does the same to a real agent.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::agent::model::Trigger;
use crate::spec::json::json;
use crate::spec::{Constraint, Job, JobType, Operator, Pos};

use super::deploy::{DeploymentInput, promote_deployment};
use super::fixture::{group, of_kind};
use super::input::Plan;
use super::simulation::World;

#[derive(Deserialize)]
struct Scenario {
    name: String,
    steps: Vec<Step>,
}

/// One of these is done.
#[derive(Deserialize)]
struct Step {
    register: Option<Wanted>,
    /// The name of an allocation that somebody stops.
    stop_alloc: Option<String>,
    #[serde(default)]
    promote: bool,
    #[serde(default)]
    stop: bool,
    #[serde(default)]
    evaluate: bool,
    shows: Value,
}

/// A job in few words.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    #[serde(rename = "type")]
    kind: String,
    /// By group.
    counts: crate::spec::collections::BTreeMap<String, u32>,
    /// An environment, which takes new processes.
    #[serde(default)]
    value: String,
    /// Seconds, which take none.
    #[serde(default)]
    kill_timeout: u64,
    /// What its tasks do: `sleep`, `end` or `fail`.
    #[serde(default)]
    task: String,
    #[serde(default)]
    canary: u32,
    #[serde(default)]
    max_parallel: u32,
    #[serde(default)]
    auto_promote: bool,
    #[serde(default)]
    auto_revert: bool,
    /// Nobody says that it is healthy.
    #[serde(default)]
    manual: bool,
    /// A kernel that it wants.
    #[serde(default)]
    kernel: String,
}

impl Wanted {
    fn job(&self) -> Job {
        let kind = match self.kind.as_str() {
            "batch" => JobType::Batch,
            "system" => JobType::System,
            "sysbatch" => JobType::Sysbatch,
            _ => JobType::Service,
        };
        let mut job = of_kind(kind, 0);
        job.groups = self.counts.iter().map(|(name, count)| group(kind, name, *count)).collect();
        for group in &mut job.groups {
            let task = &mut group.tasks[0];
            task.env.insert("X".to_owned(), self.value.clone());
            task.env.insert("TASK".to_owned(), self.task.clone());
            task.kill_timeout = Duration::from_secs(self.kill_timeout);
            if let Some(reschedule) = &mut group.scheduling.reschedule {
                (reschedule.unlimited, reschedule.attempts) = (false, 0);
            }
            if let Some(update) = &mut group.scheduling.update {
                update.progress_deadline = Duration::ZERO;
                update.canary = self.canary;
                update.max_parallel = self.max_parallel.max(1);
                (update.auto_promote, update.auto_revert) = (self.auto_promote, self.auto_revert);
            }
        }
        if !self.kernel.is_empty() {
            job.constraints.push(Constraint {
                attribute: "${attr.kernel.name}".to_owned(),
                operator: Operator::Equal,
                value: self.kernel.clone(),
                pos: Pos::default(),
            });
        }
        job
    }
}

fn register(world: &mut World, wanted: &Wanted) -> Plan {
    let job = wanted.job();
    world.is_manual = wanted.manual;
    let is_same = world.newest().is_some_and(|(version, known)| !version.stop && **known == job);
    if is_same {
        return world.evaluate(Trigger::JobRegister);
    }
    let number = world.versions.len() as u64;
    match wanted.task.as_str() {
        "fail" => world.broken.insert(number),
        "end" => world.ending.insert(number),
        _ => false,
    };
    world.register(&job)
}

fn act(world: &mut World, step: &Step) -> Option<Plan> {
    if let Some(wanted) = &step.register {
        return Some(register(world, wanted));
    }
    if let Some(name) = &step.stop_alloc {
        let alloc = world.allocs.iter_mut().find(|alloc| alloc.name == *name && !alloc.is_terminal());
        alloc.expect("it runs").desired_transition.migrate = Some(true);
        return Some(world.evaluate(Trigger::AllocStop));
    }
    if step.stop {
        return Some(world.stop());
    }
    if step.promote {
        let versions: Vec<_> = world.versions.iter().map(|(version, _)| version.clone()).collect();
        let deployment = world.deployments.last().expect("there is one").clone();
        let (allocs, now) = (&world.allocs, world.now);
        let input = DeploymentInput { deployment: &deployment, versions: &versions, allocs, job: None, now };
        let done = promote_deployment(&input, None).expect("its canaries are healthy");
        world.carry_out(done);
        return None;
    }
    step.evaluate.then(|| world.evaluate(Trigger::JobRegister))
}

/// What there is, in few words: the numbers of the decision that a step made, allocations, deployments, versions.
fn shown(world: &World, plan: Option<&Plan>) -> Value {
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let mut allocs: Vec<String> = world
        .allocs
        .iter()
        .map(|alloc| {
            let desired = word(json!(alloc.desired_status));
            let client = word(json!(alloc.client_status));
            let (name, version, why) = (&alloc.name, alloc.job_version, &alloc.desired_description);
            format!("{name} v{version} {desired} {client} {why}").trim_end().to_owned()
        })
        .collect();
    allocs.sort();
    let mut deployments: Vec<String> = world
        .deployments
        .iter()
        .map(|d| format!("v{} {}: {}", d.job_version, word(json!(d.status)), d.status_description))
        .collect();
    deployments.sort();
    let versions: Vec<bool> = world.versions.iter().map(|(version, _)| version.stable).collect();
    let mut shown = json!({"allocs": allocs, "deployments": deployments, "stable": versions});
    if let Some(plan) = plan {
        let mut desired = json!(plan.desired);
        for numbers in desired.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut) {
            numbers.as_object_mut().expect("numbers").retain(|_, number| *number != json!(0));
        }
        shown["desired"] = desired;
        shown["queued"] = json!(plan.eval.queued_allocations);
        shown["blocked"] = json!(!plan.eval.blocked_eval.is_empty());
    }
    shown
}

#[test]
fn what_is_decided_is_what_a_real_agent_decides() {
    let scenarios: Vec<Scenario> =
        serde_json::from_str(include_str!("../../../tests/nomad/testdata/schedule.json")).unwrap();
    assert!(scenarios.len() >= 30);
    let mut wrong = Vec::new();
    for Scenario { name, steps } in &scenarios {
        let mut world = World::new();
        for (number, step) in steps.iter().enumerate() {
            let plan = act(&mut world, step);
            world.settle();
            let found = shown(&world, plan.as_ref());
            if found != step.shows {
                wrong.push(format!("{name}, step {}:\n{found:#}\nnot\n{:#}", number + 1, step.shows));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
