//! Commands for existing jobs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::register::{enforce, registered};
use super::{CommandError, Commands, Deregister, Dispatch, Dispatched, Evaluated, Registered, Scale, job};
use crate::agent::core::now;
use crate::agent::model::{
    ClientStatus, DesiredStatus, EvalStatus, Evaluation, JobKey, JobVersion, ScalingEvent, Trigger, VersionTag,
};
use crate::agent::schedule::dispatch;
use crate::agent::settings;
use crate::agent::versions::{Kept, keep, launch, may_revert, put_eval, revert, scale_group};

/// What is answered of an evaluation.
fn evaluated(index: u64, eval: Option<&Evaluation>, job: &JobVersion) -> Evaluated {
    Evaluated {
        eval_id: eval.map(|eval| eval.id.clone()).unwrap_or_default(),
        eval_create_index: eval.map_or(0, |eval| eval.create_index),
        job_modify_index: job.job_modify_index,
        index,
    }
}

impl Commands {
    /// Stops a job, and with `purge` forgets it.
    ///
    /// # Errors
    /// [`CommandError::NotFound`].
    pub async fn deregister(&self, key: &JobKey, how: Deregister) -> Result<Evaluated, CommandError> {
        let key = key.clone();
        let made = self.change(move |core, change| {
            let old = job(change, &key)?;
            let mut waiting = Vec::new();
            if how.no_shutdown_delay {
                for mut alloc in change.allocs_of_job(&key)? {
                    if !alloc.client_status.is_terminal() {
                        waiting.extend(alloc.is_ending().then(|| alloc.id.clone()));
                        alloc.desired_transition.no_shutdown_delay = Some(true);
                        change.put_alloc(alloc)?;
                    }
                }
            }
            let is_idle = old.is_template() && change.live_allocs_of_job(&key).next().is_none();
            let mut eval = core.evaluation_of(&old, Trigger::JobDeregister);
            let stopped = if how.purge {
                change.delete_job(&key)?;
                JobVersion { job_modify_index: change.next_index(), ..old }
            } else if old.stop {
                old
            } else {
                // Kept for users who start the job again from this version's text.
                let submission = change.submission(&key, old.version)?;
                change.put_job(JobVersion { stop: true, submit_time: now(), ..old }, submission)?
            };
            eval.job_modify_index = stopped.job_modify_index;
            if how.eval_priority > 0 {
                eval.priority = how.eval_priority;
            }
            let eval = if is_idle { None } else { Some(put_eval(change, eval)?) };
            Ok((stopped, eval, waiting))
        });
        let (index, (stopped, eval, waiting)) = made.await?;
        if let Some(eval) = &eval {
            self.decide(eval);
        }
        self.hurry(waiting).await;
        self.core.periodic.notify_one();
        Ok(evaluated(index, eval.as_ref(), &stopped))
    }

    /// Creates an evaluation of a job; with `force_reschedule`, failed allocations are replaced even if their policy does not
    /// allow it any more, or not yet. Groups that are never rescheduled stay as they are.
    ///
    /// # Errors
    /// [`CommandError`]: no such job, or one that does not run itself (a periodic or parameterized one).
    pub async fn evaluate(&self, key: &JobKey, force_reschedule: bool) -> Result<Evaluated, CommandError> {
        let key = key.clone();
        let made = self.change(move |core, change| {
            let job = job(change, &key)?;
            let read = core.jobs.of(&job).map_err(|why| CommandError::Invalid(why.join("\n")))?;
            if read.scheduling.periodic.is_some() {
                return Err(CommandError::Invalid("can't evaluate periodic job".to_owned()));
            }
            if read.scheduling.parameterized.is_some() && !job.dispatched {
                return Err(CommandError::Invalid("can't evaluate parameterized job".to_owned()));
            }
            if force_reschedule {
                for mut alloc in change.allocs_of_job(&key)? {
                    let group = read.groups.iter().find(|group| group.name == alloc.task_group);
                    let policy = group.and_then(|group| group.scheduling.reschedule.as_ref());
                    let may_be = policy.is_some_and(|policy| policy.unlimited || policy.attempts > 0);
                    let has_failed = may_be && alloc.client_status == ClientStatus::Failed;
                    if has_failed && alloc.desired_status == DesiredStatus::Run && alloc.next_allocation.is_empty() {
                        alloc.desired_transition.force_reschedule = Some(true);
                        change.put_alloc(alloc)?;
                    }
                }
            }
            let eval = put_eval(change, core.evaluation_of(&job, Trigger::JobRegister))?;
            Ok((job, eval))
        });
        let (index, (job, eval)) = made.await?;
        self.decide(&eval);
        Ok(evaluated(index, Some(&eval), &job))
    }

    /// Deletes evaluations; either all of them, or none. Returns the index.
    ///
    /// # Errors
    /// [`CommandError`]: evaluations are being decided, there is no such one, or it is still needed.
    pub(crate) async fn delete_evals(&self, ids: Vec<String>) -> Result<u64, CommandError> {
        let made = self.change(move |_, change| {
            if !settings::is_on(change, settings::PAUSE)? {
                let why = "eval broker is enabled; eval broker must be paused to delete evals";
                return Err(CommandError::Conflict(why.to_owned()));
            }
            let mut gone = Vec::new();
            for id in &ids {
                let Some(eval) = change.eval(id)? else {
                    return Err(CommandError::NotFound("eval not found".to_owned()));
                };
                if !change.may_delete(&eval)? {
                    return Err(CommandError::Conflict(format!("eval {id} is not safe to delete")));
                }
                gone.push(Evaluation { status: EvalStatus::Canceled, ..eval });
            }
            for id in &ids {
                change.delete_eval(id)?;
            }
            Ok(gone)
        });
        let (index, gone) = made.await?;
        // Canceled: none of them waits any more.
        for eval in &gone {
            self.core.broker.put(eval);
        }
        Ok(index)
    }

    /// Makes an older version of a job its newest one. `enforce` is the version that the job must currently have.
    ///
    /// # Errors
    /// [`CommandError`]: no such job or version, or a job that has changed meanwhile.
    pub async fn revert(&self, key: &JobKey, version: u64, enforce: Option<u64>) -> Result<Registered, CommandError> {
        let key = key.clone();
        let made = self.change(move |core, change| {
            let current = job(change, &key)?;
            let to = change.version(&key, version)?;
            may_revert(&current, to.is_some(), version, enforce)?;
            revert(core, change, &key, version, Trigger::JobRegister)
        });
        let (index, kept) = made.await?;
        self.follow(&kept);
        Ok(registered(index, &kept, String::new()))
    }

    /// Sets whether a version is stable. Returns the index.
    ///
    /// # Errors
    /// [`CommandError::NotFound`].
    pub async fn stable(&self, key: &JobKey, version: u64, stable: bool) -> Result<u64, CommandError> {
        let key = key.clone();
        Ok(self.change(move |_, change| Ok(change.set_stable(&key, version, stable)?)).await?.0)
    }

    /// Sets or removes the tag of a version. Returns the index.
    ///
    /// # Errors
    /// [`CommandError`]: no such version, or another version has this tag.
    pub async fn tag(&self, key: &JobKey, version: u64, tag: Option<VersionTag>) -> Result<u64, CommandError> {
        let key = key.clone();
        Ok(self.change(move |_, change| Ok(change.set_tag(&key, version, tag)?)).await?.0)
    }

    /// Changes the count of a group, or only records a scaling event.
    ///
    /// # Errors
    /// [`CommandError`]: no such job or group, or an invalid count.
    pub async fn scale(&self, key: &JobKey, scale: Scale) -> Result<Registered, CommandError> {
        let key = key.clone();
        let made = self.change(move |core, change| {
            let old = job(change, &key)?;
            let name = &scale.group;
            // A stopped job stays stopped, as in Nomad.
            let mut new = JobVersion { submit_time: now(), ..old.clone() };
            let (previous_count, kept) = match scale.count {
                Some(_) if scale.error => {
                    let why = "scaling action should not contain count if error is true";
                    return Err(CommandError::Invalid(why.to_owned()));
                }
                Some(count) if count > 1 && old.spec.get("Type").is_some_and(|kind| kind == "system") => {
                    let why = "jobs of type \"system\" can only be scaled between 0 and 1";
                    return Err(CommandError::Invalid(why.to_owned()));
                }
                Some(count) => {
                    let before = scale_group(&mut new.spec, name, count)?;
                    let newest = change.deployments_of_job(&key)?.into_iter().next_back();
                    if newest.is_some_and(|deployment| !deployment.status.is_terminal()) {
                        return Err(CommandError::Invalid("job scaling blocked due to active deployment".to_owned()));
                    }
                    enforce(scale.enforce_index, Some(&old))?;
                    (before, keep(core, change, new, None, Trigger::JobScaling, 0)?)
                }
                None => {
                    let read = core.jobs.of(&old).map_err(|why| CommandError::Invalid(why.join("\n")))?;
                    let group = read.groups.iter().find(|group| group.name == *name).ok_or_else(|| {
                        let why = format!("task group {name:?} specified for scaling does not exist in job");
                        CommandError::Invalid(why)
                    })?;
                    (i64::from(group.count), Kept { job: old, eval: None })
                }
            };
            let event = ScalingEvent {
                time: now(),
                count: scale.count,
                previous_count,
                message: scale.message,
                error: scale.error,
                meta: (!scale.meta.is_empty()).then(|| scale.meta.into_iter().collect()),
                eval_id: kept.eval.as_ref().map(|eval| eval.id.clone()),
                create_index: 0,
            };
            change.put_scaling_event(&key, &scale.group, event)?;
            Ok(kept)
        });
        let (index, kept) = made.await?;
        self.follow(&kept);
        Ok(registered(index, &kept, String::new()))
    }

    /// Dispatches a parameterized job with these parameters.
    ///
    /// # Errors
    /// [`CommandError`]: no such job, or parameters that it does not accept.
    pub async fn dispatch(&self, key: &JobKey, given: Dispatch) -> Result<Dispatched, CommandError> {
        let key = key.clone();
        let made = self.change(move |core, change| {
            let parent = job(change, &key)?;
            let read = core.jobs.of(&parent).map_err(|why| CommandError::Invalid(why.join("\n")))?;
            if parent.stop {
                return Err(CommandError::Invalid(format!("Specified job {:?} is stopped", key.id)));
            }
            if !given.idempotency_token.is_empty() {
                for child in change.children(&key) {
                    let child = change.job(&child?)?;
                    let is_same = |child: &JobVersion| child.dispatch_idempotency_token == given.idempotency_token;
                    if let Some(job) = child.filter(is_same) {
                        return Ok(Kept { job, eval: None });
                    }
                }
            }
            let payload = STANDARD.decode(&given.payload);
            let payload = payload.map_err(|_| CommandError::Invalid("Payload must be base64".to_owned()))?;
            let parameters = dispatch::Parameters {
                payload: &payload,
                meta: &given.meta,
                id_prefix: &given.id_prefix,
                priority: given.priority.unwrap_or(0),
                idempotency_token: &given.idempotency_token,
            };
            // The low bits of a random number are random, too.
            let random = crate::sys::random::bits() as u32;
            let child = dispatch::child(&parent, &read, &parameters, now(), random).map_err(CommandError::Invalid)?;
            keep(core, change, child, None, Trigger::JobRegister, 0)
        });
        let (index, kept) = made.await?;
        self.follow(&kept);
        Ok(Dispatched {
            job_id: kept.job.key.id.clone(),
            job_create_index: kept.job.create_index,
            eval_id: kept.eval.as_ref().map(|eval| eval.id.clone()).unwrap_or_default(),
            eval_create_index: kept.eval.as_ref().map_or(0, |eval| eval.create_index),
            index,
        })
    }

    /// Launches a periodic job now.
    ///
    /// # Errors
    /// [`CommandError`]: no such job, or one that no clock starts: it is not periodic, is disabled or stopped, or waits for a
    /// dispatch.
    pub async fn periodic_force(&self, key: &JobKey) -> Result<Evaluated, CommandError> {
        let key = key.clone();
        let made = self.change(move |core, change| {
            let parent = job(change, &key)?;
            let read = core.jobs.of(&parent).map_err(|why| CommandError::Invalid(why.join("\n")))?;
            let Some(clock) = &read.scheduling.periodic else {
                return Err(CommandError::Invalid("can't force launch non-periodic job".to_owned()));
            };
            let is_parameterized = read.scheduling.parameterized.is_some() && !parent.dispatched;
            if parent.stop || !clock.enabled || is_parameterized {
                let (JobKey { namespace, id }, what) = (&key, "can't force run non-tracked job");
                let why = format!("force launch for job {id:?} failed: {what} {id:?} ({namespace})");
                return Err(CommandError::Invalid(why));
            }
            launch(core, change, &parent, now())
        });
        let (index, kept) = made.await?;
        self.follow(&kept);
        Ok(evaluated(index, kept.eval.as_ref(), &kept.job))
    }
}
