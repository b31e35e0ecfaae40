//! Versions of jobs: how one is kept and decided, how an older one comes back, and how a clock makes a job of another.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::commands::CommandError;
use super::core::{Core, now};
use super::model::{Evaluation, JobKey, JobStatus, JobVersion, Nanos, Submission, Trigger};
use super::schedule::is_same;
use super::schedule::periodic::launch_id;
use super::state::{Change, StateError};
use crate::spec::Job;

/// What was kept of a job, with the evaluation that follows, if one does.
pub(super) struct Kept {
    pub(super) job: JobVersion,
    pub(super) eval: Option<Evaluation>,
}

/// Several mistakes as the clients of Nomad's API know them.
pub(super) fn mistakes(errors: &[String]) -> CommandError {
    let count = errors.len();
    let mut listed = String::new();
    for error in errors {
        let _ = writeln!(listed, "\t* {error}");
    }
    let noun = if count == 1 { "error" } else { "errors" };
    CommandError::Invalid(format!("{count} {noun} occurred:\n{listed}\n"))
}

/// Whether a job runs by itself: not one that a clock starts, or somebody by name, unless it was.
fn runs_itself(job: &Job, dispatched: bool) -> bool {
    job.scheduling.periodic.is_none() && (dispatched || job.scheduling.parameterized.is_none())
}

/// Whether a specification is that of a job that is to stop.
pub(super) fn is_stopped(spec: &Map<String, Value>) -> bool {
    spec.get("Stop").is_some_and(|stop| *stop == true)
}

/// A version of a job that has not been kept yet.
pub(super) fn version(key: JobKey, mut spec: Map<String, Value>) -> JobVersion {
    // It stands beside the specification, as for a job that is stopped later.
    let stop = is_stopped(&spec);
    spec.insert("Stop".to_owned(), false.into());
    JobVersion {
        key,
        version: 0,
        spec,
        stop,
        stable: false,
        status: JobStatus::Pending,
        status_description: String::new(),
        parent_id: String::new(),
        dispatched: false,
        payload: String::new(),
        dispatch_idempotency_token: String::new(),
        submit_time: now(),
        version_tag: None,
        create_index: 0,
        modify_index: 0,
        job_modify_index: 0,
    }
}

/// Keeps a new evaluation.
pub(super) fn put_eval(change: &mut Change<'_>, mut eval: Evaluation) -> Result<Evaluation, StateError> {
    (eval.create_index, eval.modify_index) = (change.next_index(), change.next_index());
    change.put_eval(eval.clone())?;
    Ok(eval)
}

/// Checks that a job stays of its kind: a version of another one would not know what this one runs.
///
/// # Errors
/// Nomad's words of why not.
fn check_kind(old: &JobVersion, new: &Map<String, Value>) -> Result<(), CommandError> {
    let refuse = |what: String| Err(CommandError::Invalid(format!("cannot update {what}")));
    let kind = |spec: &Map<String, Value>| spec.get("Type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let (was, is) = (kind(&old.spec), kind(new));
    if was != is {
        return refuse(format!("job from type {was:?} to {is:?}"));
    }
    for (key, word) in [("Periodic", "periodic"), ("ParameterizedJob", "parameterized")] {
        let has = |spec: &Map<String, Value>| spec.get(key).is_some_and(|value| !value.is_null());
        match (has(&old.spec), has(new)) {
            // What a dispatch started is not parameterized itself.
            _ if old.dispatched && key == "ParameterizedJob" => {}
            (true, false) => return refuse(format!("{word} job to being non-{word}")),
            (false, true) => return refuse(format!("non-{word} job to being {word}")),
            _ => {}
        }
    }
    Ok(())
}

/// Keeps a version of a job, where it asks for something else than the one before, and has it decided. A priority of 0 is the job's.
pub(super) fn keep(
    core: &Core,
    change: &mut Change<'_>,
    new: JobVersion,
    submission: Option<Submission>,
    why: Trigger,
    priority: i64,
) -> Result<Kept, CommandError> {
    let old = change.job(&new.key)?;
    if let Some(old) = &old {
        check_kind(old, &new.spec)?;
    }
    let job = match old {
        Some(old) if old.stop == new.stop && is_same(&old.spec, &new.spec) => old,
        _ => change.put_job(new, submission)?,
    };
    let read = core.jobs.of(&job).map_err(|errors| mistakes(&errors))?;
    if !runs_itself(&read, job.dispatched) {
        return Ok(Kept { job, eval: None });
    }
    let mut eval = core.evaluation_of(&job, why);
    if priority > 0 {
        eval.priority = priority;
    }
    let eval = put_eval(change, eval)?;
    Ok(Kept { job, eval: Some(eval) })
}

/// Whether a job may go back to a version, which there is or is not; `enforced` is the version that it must have.
///
/// # Errors
/// Nomad's words of why not.
pub(super) fn may_revert(
    newest: &JobVersion,
    is_there: bool,
    version: u64,
    enforced: Option<u64>,
) -> Result<(), CommandError> {
    let has = newest.version;
    if let Some(expected) = enforced.filter(|expected| *expected != has) {
        return Err(CommandError::Invalid(format!("Current job has version {has}; enforcing version {expected}")));
    }
    if has == version {
        return Err(CommandError::Invalid("can't revert to current version".to_owned()));
    }
    if is_there { Ok(()) } else { Err(no_version(&newest.key, version)) }
}

fn no_version(JobKey { namespace, id }: &JobKey, version: u64) -> CommandError {
    CommandError::NotFound(format!("job {id:?} in namespace {namespace:?} at version {version} not found"))
}

/// Gives a group of a specification another count; the count before.
///
/// # Errors
/// Nomad's words of why not: no such group, less than none, outside of its `scaling` block.
pub(super) fn scale_group(spec: &mut Map<String, Value>, group: &str, count: i64) -> Result<i64, CommandError> {
    let refuse = |why: String| Err(CommandError::Invalid(why));
    let groups = spec.get_mut("TaskGroups").and_then(Value::as_array_mut);
    let found = groups.into_iter().flatten().find(|value| value["Name"] == group);
    let Some(found) = found.and_then(Value::as_object_mut) else {
        return refuse(format!("task group {group:?} specified for scaling does not exist in job"));
    };
    if count < 0 {
        return refuse("scaling action count can't be negative".to_owned());
    }
    let policy = found.get("Scaling");
    let limit = |key: &str| policy.and_then(|policy| policy.get(key)).and_then(Value::as_i64);
    if let Some(min) = limit("Min").filter(|min| count < *min) {
        return refuse(format!("group count was less than scaling policy minimum: {count} < {min}"));
    }
    if let Some(max) = limit("Max").filter(|max| count > *max) {
        return refuse(format!("group count was greater than scaling policy maximum: {count} > {max}"));
    }
    let before = found.insert("Count".to_owned(), Value::from(count));
    Ok(before.and_then(|before| before.as_i64()).unwrap_or(1))
}

/// An older version becomes the newest one. One that was stopped stays so, as in Nomad; a deployment goes back to what ran.
pub(super) fn revert(
    core: &Core,
    change: &mut Change<'_>,
    key: &JobKey,
    version: u64,
    why: Trigger,
) -> Result<Kept, CommandError> {
    let old = change.version(key, version)?.ok_or_else(|| no_version(key, version))?;
    // Before anything is written.
    core.jobs.of(&old).map_err(|errors| mistakes(&errors))?;
    let submission = change.submission(key, version)?;
    let stop = old.stop && why != Trigger::DeploymentWatcher;
    let new = JobVersion { stop, stable: false, version_tag: None, submit_time: now(), ..old };
    keep(core, change, new, submission, why, 0)
}

/// Starts a job that a clock starts, as of this moment: a job of its own, whose parent it is.
pub(super) fn launch(
    core: &Core,
    change: &mut Change<'_>,
    parent: &JobVersion,
    at: Nanos,
) -> Result<Kept, CommandError> {
    let id = launch_id(&parent.key.id, at);
    let mut spec = parent.spec.clone();
    for key in ["ID", "Name"] {
        spec.insert(key.to_owned(), Value::from(id.as_str()));
    }
    spec.insert("Periodic".to_owned(), Value::Null);
    let key = JobKey { namespace: parent.key.namespace.clone(), id };
    // Written down with it: a launch happens once.
    change.put_launch(&parent.key, at)?;
    let (parent_id, payload) = (parent.key.id.clone(), parent.payload.clone());
    let child = JobVersion { parent_id, payload, dispatched: parent.dispatched, ..version(key, spec) };
    keep(core, change, child, None, Trigger::PeriodicJob, 0)
}
