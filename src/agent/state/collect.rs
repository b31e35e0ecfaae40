//! Garbage collection: forgets what ended long ago, with Nomad's retention times.

use std::future::Future;
use std::time::Duration;

use serde_json::Value;

use super::State;
use super::change::Change;
use super::error::StateError;
use super::view::View;
use crate::agent::model::{Allocation, ClientStatus, DesiredStatus, Evaluation, JobKey, JobStatus, JobVersion, Nanos};
use crate::spec::JobType;
use crate::spec::collections::BTreeSet;

/// An evaluation with its allocations, and a deployment.
const EVALS: Duration = Duration::from_hours(1);
/// An evaluation of a batch job.
const BATCH_EVALS: Duration = Duration::from_hours(24);
/// A job with all its records.
const JOBS: Duration = Duration::from_hours(4);
/// Approximate number of records per change, so that other changes can be made in between.
const TOGETHER: usize = 200;

/// Records that are forgotten together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Garbage {
    /// A job with all its records.
    Job(JobKey),
    /// With the allocations that it placed.
    Eval(String),
    /// An allocation whose evaluation placed others that are still there, or was forgotten before.
    Alloc(String),
    /// A deployment.
    Deployment(String),
    /// The accessor of a token that has expired.
    Token(String),
}

/// The age from which records are forgotten.
#[derive(Debug, Clone, Copy)]
pub struct Age {
    /// This moment.
    pub now: Nanos,
    /// Everything that has ended (`system gc`).
    pub force: bool,
}

impl Age {
    fn over(self, time: Nanos, age: Duration) -> bool {
        self.force || time.plus(age) <= self.now
    }
}

impl State {
    /// Forgets what is old enough, in several changes. `remove` has to remove the remains of allocations from the machine
    /// before they are forgotten, so that they are found again after an interruption. Records that are in use again by then are
    /// kept. Returns what was forgotten.
    ///
    /// # Errors
    /// [`StateError`]; what was forgotten before the error stays forgotten.
    pub async fn collect<F: Future<Output = ()>>(
        &self,
        age: Age,
        remove: impl Fn(Vec<String>) -> F,
    ) -> Result<Vec<Garbage>, StateError> {
        let mut garbage = find(&self.read()?, age)?;
        let mut all = Vec::new();
        while !garbage.is_empty() {
            let some = garbage.split_off(garbage.len().saturating_sub(TOGETHER));
            let left = allocs(&self.read()?, &some)?;
            remove(left).await;
            let (_, gone) = self.change(move |change| forget(change, some, age)).await?;
            all.extend(gone);
        }
        Ok(all)
    }
}

/// The allocations that are forgotten with it.
fn allocs(view: &View, garbage: &[Garbage]) -> Result<Vec<String>, StateError> {
    let mut all = Vec::new();
    for one in garbage {
        let with = match one {
            Garbage::Job(key) => view.allocs_of_job(key)?,
            Garbage::Eval(id) => view.allocs_of_eval(id)?,
            Garbage::Alloc(id) => view.alloc(id)?.into_iter().collect(),
            Garbage::Deployment(_) | Garbage::Token(_) => Vec::new(),
        };
        all.extend(with.into_iter().filter(|alloc| alloc.client_status.is_terminal()).map(|alloc| alloc.id));
    }
    Ok(all)
}

/// What can be forgotten; the last item is forgotten first.
fn find(view: &View, age: Age) -> Result<Vec<Garbage>, StateError> {
    let mut garbage = Vec::new();
    for token in view.tokens() {
        let token = token?;
        if token.is_expired(age.now) {
            garbage.push(Garbage::Token(token.accessor_id));
        }
    }
    let mut jobs = Vec::new();
    for job in view.jobs(None, "") {
        let job = job?;
        if is_over(view, &job, age)? {
            jobs.push(job.key);
        }
    }
    let gone: BTreeSet<&JobKey> = jobs.iter().collect();
    for deployment in view.deployments("") {
        let deployment = deployment?;
        let owner = JobKey { namespace: deployment.namespace.clone(), id: deployment.job_id.clone() };
        let old = deployment.status.is_terminal() && age.over(deployment.modify_time, EVALS);
        if old && !gone.contains(&owner) && !is_deployment_used(view, &deployment.id)? {
            garbage.push(Garbage::Deployment(deployment.id));
        }
    }
    let mut decided = BTreeSet::new();
    for eval in view.evals("") {
        let eval = eval?;
        let owner = JobKey { namespace: eval.namespace.clone(), id: eval.job_id.clone() };
        if !gone.contains(&owner) && is_decided(view, &eval, age)? {
            decided.insert(eval.id.clone());
            garbage.push(Garbage::Eval(eval.id));
        }
    }
    for alloc in view.allocs("") {
        let alloc = alloc?;
        let owner = JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() };
        if !gone.contains(&owner) && !decided.contains(&alloc.eval_id) && is_left(view, &alloc, age)? {
            garbage.push(Garbage::Alloc(alloc.id));
        }
    }
    garbage.extend(jobs.into_iter().map(Garbage::Job));
    Ok(garbage)
}

fn forget(change: &mut Change<'_>, garbage: Vec<Garbage>, age: Age) -> Result<Vec<Garbage>, StateError> {
    let mut gone = Vec::new();
    for one in garbage {
        let is_over = match &one {
            Garbage::Job(key) => change.job(key)?.map_or(Ok(false), |job| is_over(change, &job, age))?,
            Garbage::Eval(id) => change.eval(id)?.map_or(Ok(false), |eval| is_decided(change, &eval, age))?,
            Garbage::Alloc(id) => change.alloc(id)?.map_or(Ok(false), |alloc| is_left(change, &alloc, age))?,
            Garbage::Deployment(id) => change.deployment(id)?.is_some() && !is_deployment_used(change, id)?,
            Garbage::Token(accessor) => change.token(accessor)?.is_some_and(|token| token.is_expired(age.now)),
        };
        if !is_over {
            continue;
        }
        for id in allocs(change, std::slice::from_ref(&one))? {
            change.delete_alloc(&id)?;
        }
        match &one {
            Garbage::Job(key) => {
                for eval in change.evals_of_job(key)? {
                    change.delete_eval(&eval.id)?;
                }
                change.delete_job(key)?;
            }
            Garbage::Eval(id) => change.delete_eval(id)?,
            Garbage::Deployment(id) => change.delete_deployment(id)?,
            Garbage::Token(accessor) => _ = change.delete_token(accessor)?,
            Garbage::Alloc(_) => {}
        }
        gone.push(one);
    }
    Ok(gone)
}

fn is_batch(job: &JobVersion) -> bool {
    job.spec.get("Type").and_then(|kind| kind.as_str()).is_some_and(|kind| kind.ends_with("batch"))
}

/// Whether a job has ended with everything that belongs to it: it was stopped, or ran to its end. A job with a tagged version
/// is kept.
fn is_over(view: &View, job: &JobVersion, age: Age) -> Result<bool, StateError> {
    let ends = is_batch(job) && !job.is_template();
    let over = job.status == JobStatus::Dead && (job.stop || ends) && age.over(job.submit_time, JOBS);
    if !over || view.versions(&job.key)?.iter().any(|version| version.version_tag.is_some()) {
        return Ok(false);
    }
    let evals = view.evals_of_job(&job.key)?;
    if !evals.iter().all(|eval| eval.status.is_terminal() && age.over(eval.modify_time, JOBS)) {
        return Ok(false);
    }
    let allocs = view.allocs_of_job(&job.key)?;
    Ok(allocs.iter().all(|alloc| alloc.client_status.is_terminal() && age.over(alloc.modify_time, JOBS)))
}

/// How long an evaluation and what it placed are kept.
fn threshold(eval: &Evaluation) -> Duration {
    if matches!(eval.kind, JobType::Batch | JobType::Sysbatch) { BATCH_EVALS } else { EVALS }
}

fn is_old(eval: &Evaluation, age: Age) -> bool {
    eval.status.is_terminal() && age.over(eval.modify_time, threshold(eval))
}

/// Whether an evaluation and everything that it placed have ended.
fn is_decided(view: &View, eval: &Evaluation, age: Age) -> Result<bool, StateError> {
    if !is_old(eval, age) {
        return Ok(false);
    }
    let owner = JobKey { namespace: eval.namespace.clone(), id: eval.job_id.clone() };
    let job = view.job(&owner)?;
    Ok(view.allocs_of_eval(&eval.id)?.iter().all(|alloc| is_ended(job.as_ref(), alloc, threshold(eval), age)))
}

/// Whether an allocation is not needed any more, whatever else its evaluation placed.
fn is_left(view: &View, alloc: &Allocation, age: Age) -> Result<bool, StateError> {
    if !alloc.client_status.is_terminal() {
        return Ok(false);
    }
    let eval = view.eval(&alloc.eval_id)?;
    if eval.as_ref().is_some_and(|eval| !is_old(eval, age)) {
        return Ok(false);
    }
    let owner = JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() };
    Ok(is_ended(view.job(&owner)?.as_ref(), alloc, eval.as_ref().map_or(EVALS, threshold), age))
}

/// Whether an allocation is not needed any more. What a batch job did in its newest version shows that it need not be run again. One
/// that failed is kept while its policy may ask for its history.
fn is_ended(job: Option<&JobVersion>, alloc: &Allocation, threshold: Duration, age: Age) -> bool {
    if !alloc.client_status.is_terminal() || !age.over(alloc.modify_time, threshold) {
        return false;
    }
    let Some(job) = job.filter(|job| job.create_index == alloc.job_create_index) else { return true };
    let is_dead = job.status == JobStatus::Dead;
    if is_batch(job) {
        return job.stop && is_dead || alloc.job_version < job.version;
    }
    let is_wanted = alloc.client_status == ClientStatus::Failed && alloc.desired_status == DesiredStatus::Run;
    if job.stop || is_dead || !is_wanted || !alloc.next_allocation.is_empty() {
        return true;
    }
    let Some(policy) = policy(job, &alloc.task_group) else { return true };
    let number = |key: &str| policy.get(key).and_then(Value::as_i64).unwrap_or(0);
    if policy.get("Unlimited").is_some_and(|unlimited| *unlimited == true) {
        return false;
    }
    let last = alloc.reschedule_tracker.as_ref().and_then(|tracker| tracker.events.last());
    let is_over = |last: Nanos| last.plus(Nanos(number("Interval")).duration()) < age.now;
    number("Attempts") == 0 || last.is_some_and(|last| is_over(last.reschedule_time))
}

impl View {
    /// Whether somebody may delete an evaluation: what it placed does not run, and is not needed to be replaced.
    ///
    /// # Errors
    /// [`StateError`].
    pub(crate) fn may_delete(&self, eval: &Evaluation) -> Result<bool, StateError> {
        let owner = JobKey { namespace: eval.namespace.clone(), id: eval.job_id.clone() };
        let job = self.job(&owner)?.filter(|job| !job.stop && job.status != JobStatus::Dead);
        let Some(job) = job else { return Ok(true) };
        let is_needed = |alloc: &Allocation| match alloc.client_status {
            ClientStatus::Running | ClientStatus::Unknown => true,
            ClientStatus::Failed => policy(&job, &alloc.task_group).is_some_and(|policy| {
                let is_unlimited = policy["Unlimited"] == true;
                let is_known = alloc.reschedule_tracker.as_ref().is_some_and(|tracker| !tracker.events.is_empty());
                let is_limited = policy["Attempts"].as_i64().is_some_and(|attempts| attempts > 0);
                is_unlimited || is_limited && (alloc.next_allocation.is_empty() || !is_known)
            }),
            _ => false,
        };
        Ok(!self.allocs_of_eval(&eval.id)?.iter().any(is_needed))
    }
}

/// How a group's failed allocations are replaced, if they are.
fn policy<'a>(job: &'a JobVersion, group: &str) -> Option<&'a Value> {
    let groups = job.spec.get("TaskGroups")?.as_array()?;
    let group = groups.iter().find(|known| known.get("Name").is_some_and(|name| name == group))?;
    group.get("ReschedulePolicy").filter(|policy| !policy.is_null())
}

fn is_deployment_used(view: &View, id: &str) -> Result<bool, StateError> {
    Ok(view.allocs_of_deployment(id)?.iter().any(|alloc| !alloc.client_status.is_terminal()))
}
