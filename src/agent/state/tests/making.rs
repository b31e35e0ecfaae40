//! Jobs, allocations and so on for tests, and changes that look like what an agent does.

use serde_json::{Map, Value, json};

use super::key;
use crate::agent::model::{
    AllocMetric, AllocatedResources, Allocation, ClientStatus, Deployment, DeploymentGroup, DeploymentStatus,
    DesiredStatus, DesiredTransition, EvalStatus, Evaluation, JobKey, JobStatus, JobVersion, Nanos, Submission,
    TaskEvent, TaskState, Trigger,
};
use crate::agent::state::{Change, StateError};
use crate::spec::JobType;
use crate::spec::collections::BTreeMap;
use crate::store::testing::Dice;

/// A job of this kind with a group `g`.
pub(super) fn job(id: &str, kind: &str) -> JobVersion {
    let spec = json!({"ID": id, "Type": kind, "TaskGroups": [{"Name": "g", "Count": 2}]});
    let Value::Object(spec) = spec else { unreachable!("it is written as an object") };
    JobVersion {
        key: key(id),
        version: 77,
        spec,
        stop: false,
        stable: false,
        status: JobStatus::Dead,
        status_description: String::new(),
        parent_id: String::new(),
        dispatched: false,
        payload: String::new(),
        dispatch_idempotency_token: String::new(),
        submit_time: Nanos(1),
        version_tag: None,
        create_index: 0,
        modify_index: 0,
        job_modify_index: 0,
    }
}

/// An evaluation of a job.
pub(super) fn eval(id: &str, of: &JobKey, status: EvalStatus) -> Evaluation {
    Evaluation {
        id: id.to_owned(),
        namespace: of.namespace.clone(),
        priority: 50,
        kind: JobType::Service,
        triggered_by: Trigger::JobRegister,
        job_id: of.id.clone(),
        job_modify_index: 0,
        node_id: String::new(),
        deployment_id: String::new(),
        status,
        status_description: String::new(),
        wait: Nanos(0),
        wait_until_nanos: Nanos(0),
        next_eval: String::new(),
        previous_eval: String::new(),
        blocked_eval: String::new(),
        failed: BTreeMap::new(),
        plan_annotations: BTreeMap::new(),
        queued_allocations: BTreeMap::new(),
        snapshot_index: 0,
        create_index: 0,
        modify_index: 0,
        create_time: Nanos(1),
        modify_time: Nanos(1),
    }
}

/// An allocation of a job's version.
pub(super) fn alloc(id: &str, of: &JobKey, version: u64, eval: &str) -> Allocation {
    Allocation {
        id: id.to_owned(),
        namespace: of.namespace.clone(),
        eval_id: eval.to_owned(),
        name: format!("{}.g[0]", of.id),
        node_id: "node".to_owned(),
        node_name: "here".to_owned(),
        job_id: of.id.clone(),
        job_version: version,
        job_create_index: 0,
        task_group: "g".to_owned(),
        allocated_resources: AllocatedResources::default(),
        metrics: AllocMetric::default(),
        desired_status: DesiredStatus::Run,
        desired_description: String::new(),
        desired_transition: DesiredTransition::default(),
        client_status: ClientStatus::Pending,
        client_description: String::new(),
        task_states: BTreeMap::new(),
        deployment_id: String::new(),
        deployment_status: None,
        followup_eval_id: String::new(),
        previous_allocation: String::new(),
        next_allocation: String::new(),
        reschedule_tracker: None,
        network_status: None,
        create_index: 0,
        modify_index: 0,
        alloc_modify_index: 0,
        create_time: Nanos(1),
        modify_time: Nanos(1),
    }
}

/// What a real allocation says of its tasks: about as long as it gets.
pub(super) fn told(events: usize) -> BTreeMap<String, TaskState> {
    let event = |number: usize| TaskEvent {
        kind: "Restarting".to_owned(),
        time: Nanos(number as i64),
        display_message: "Task restarting in 15.3 s after it ended with exit code 1".to_owned(),
        details: BTreeMap::from([("exit_code".to_owned(), "1".to_owned())]),
    };
    let state = TaskState { events: (0..events).map(event).collect(), ..TaskState::default() };
    BTreeMap::from([("main".to_owned(), state.clone()), ("sidecar".to_owned(), state)])
}

/// A deployment of a job.
pub(super) fn deployment(id: &str, of: &JobKey, status: DeploymentStatus) -> Deployment {
    Deployment {
        id: id.to_owned(),
        namespace: of.namespace.clone(),
        job_id: of.id.clone(),
        job_version: 0,
        job_modify_index: 0,
        job_spec_modify_index: 0,
        job_create_index: 0,
        task_groups: BTreeMap::from([("g".to_owned(), DeploymentGroup::default())]),
        status,
        status_description: String::new(),
        eval_priority: 50,
        create_index: 0,
        modify_index: 0,
        create_time: Nanos(1),
        modify_time: Nanos(1),
    }
}

/// Something that an agent might do, drawn by the dice; `step` makes ids that nobody has yet.
pub(super) fn anything(change: &mut Change<'_>, dice: &mut Dice, step: u64) -> Result<(), StateError> {
    if dice.roll(4) == 0 {
        super::others::anything_else(change, dice, step)?;
        return change.put_setting("step", &json!(step));
    }
    let namespace = if dice.roll(5) == 0 { "other" } else { "default" };
    let of = JobKey { namespace: namespace.to_owned(), id: format!("job{}", dice.roll(4)) };
    let statuses = [
        ClientStatus::Pending,
        ClientStatus::Running,
        ClientStatus::Running,
        ClientStatus::Complete,
        ClientStatus::Failed,
        ClientStatus::Lost,
    ];
    let current = change.job(&of)?;
    match dice.roll(14) {
        0 | 1 => {
            let mut next = job(&of.id, ["service", "batch", "system"][dice.roll(3) as usize]);
            next.stop = dice.roll(4) == 0;
            let source = format!("job {:?} # {step}", of.id);
            change.put_job(next, Some(Submission { source, format: "hcl2".to_owned(), ..Submission::default() }))?;
            change.put_eval(eval(&format!("eval-{step}"), &of, EvalStatus::Pending))?;
        }
        2 => change.delete_job(&of)?,
        3 => {
            let mut child = job(&format!("{}/dispatch-{step}", of.id), "batch");
            child.parent_id.clone_from(&of.id);
            child.dispatched = true;
            if current.is_some() {
                change.put_job(child, None)?;
            }
        }
        4..=6 => {
            if let Some(current) = current {
                let by = format!("eval-{step}");
                change.put_eval(eval(&by, &of, EvalStatus::Complete))?;
                for number in 0..=dice.roll(3) {
                    let mut new = alloc(&format!("alloc-{step}-{number}"), &of, current.version, &by);
                    new.task_states = told(dice.roll(3) as usize);
                    if dice.roll(2) == 0 {
                        new.deployment_id = format!("deployment-{}", dice.roll(3));
                    }
                    change.put_alloc(new)?;
                }
            }
        }
        7..=9 => {
            let all = change.allocs("").all()?;
            if !all.is_empty() {
                let mut one = all[dice.roll(all.len() as u64) as usize].clone();
                one.client_status = statuses[dice.roll(6) as usize];
                if dice.roll(3) == 0 {
                    one.desired_status = DesiredStatus::Stop;
                }
                if dice.roll(5) == 0
                    && let Some(now) =
                        change.job(&JobKey { namespace: one.namespace.clone(), id: one.job_id.clone() })?
                    && now.create_index == one.job_create_index
                {
                    // Updated in place.
                    one.job_version = now.version;
                }
                change.put_alloc(one)?;
            }
        }
        10 => {
            let all = change.allocs("").all()?;
            let ended = all.iter().find(|alloc| alloc.client_status.is_terminal());
            if let Some(ended) = ended {
                change.delete_alloc(&ended.id)?;
            }
        }
        11 => {
            let all = change.evals("").all()?;
            if !all.is_empty() {
                let mut one = all[dice.roll(all.len() as u64) as usize].clone();
                one.status = EvalStatus::Complete;
                one.queued_allocations = BTreeMap::from([("g".to_owned(), dice.roll(3) as u32)]);
                change.put_eval(one)?;
            }
        }
        12 => {
            let all = change.evals("").all()?;
            if let Some(one) = all.iter().find(|eval| eval.status.is_terminal()) {
                change.delete_eval(&one.id)?;
            }
        }
        _ => {
            let id = format!("deployment-{}", dice.roll(3));
            if dice.roll(3) == 0 {
                change.delete_deployment(&id)?;
            } else if change.deployment(&id)?.is_none() {
                change.put_deployment(deployment(&id, &of, DeploymentStatus::Running))?;
            }
        }
    }
    change.put_setting("step", &json!(step))
}

/// The specification of a job that is about as long as real ones.
pub(super) fn long_spec(id: &str) -> Map<String, Value> {
    let task = json!({"Name": "main", "Driver": "exec", "Config": {"command": "/bin/sleep", "args": ["1000"]},
        "Env": {"A": "a".repeat(100), "B": "b".repeat(100)}, "Resources": {"CPU": 100, "MemoryMB": 64},
        "Templates": [{"EmbeddedTmpl": "x".repeat(1500), "DestPath": "local/x"}]});
    let mut long = job(id, "service").spec;
    long["TaskGroups"][0]["Tasks"] = json!([task]);
    long
}
