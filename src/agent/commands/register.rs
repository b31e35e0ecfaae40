//! Submitted jobs: registered as a new version, planned, or validated.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::{CommandError, Commands, Planned, Register, Registered, Validated, rules};
use crate::agent::core::{Core, evaluation, new_id, now};
use crate::agent::jobs::{self, Read};
use crate::agent::model::{EvalStatus, Evaluation, JobKey, JobVersion, Submission, Trigger};
use crate::agent::periodic::next;
use crate::agent::schedule::is_same;
use crate::agent::settings;
use crate::agent::state::View;
use crate::agent::versions::{Kept, is_stopped, keep, mistakes, version};
use crate::agent::worker;
use crate::jobspec;
use crate::spec::Job;
use crate::spec::collections::BTreeMap;

/// Limits concurrent plans: each may take a second of CPU time, also when nobody waits for it any more.
static PLANS: Semaphore = Semaphore::const_new(2);

/// Bytes of the source of a job that are kept, its variables included.
const LARGEST_SOURCE: usize = 1_000_000;

/// A job that was parsed and can be stored.
struct Prepared {
    key: JobKey,
    spec: Map<String, Value>,
    job: Job,
    warnings: Vec<String>,
}

/// Parses a submitted specification.
fn prepare(core: &Core, given: Map<String, Value>) -> Result<Prepared, Vec<String>> {
    let spec = jobspec::canonicalize(&Value::Object(given), now().0);
    let mut spec = spec.map_err(|error| vec![error.to_string()])?;
    let groups = spec.get_mut("TaskGroups").and_then(Value::as_array_mut).into_iter().flatten();
    for policy in groups.filter_map(|group| group.get_mut("Scaling")).filter_map(Value::as_object_mut) {
        // It gets one of its own, which is not a change of the job when it comes back.
        policy.insert("ID".to_owned(), "".into());
    }
    let mut wrong = rules::check(&spec);
    // What keeps it from being read does not hide what is wrong besides. Without an ID it has no name to be read by.
    let has_id = spec.get("ID").and_then(Value::as_str).is_some_and(|id| !id.is_empty());
    let read = if has_id { jobs::read(&spec) } else { Err(Vec::new()) };
    let Read { job, mut warnings } = match read {
        Ok(read) if wrong.is_empty() => read,
        Ok(_) => return Err(wrong),
        Err(mut errors) => {
            errors.append(&mut wrong);
            return Err(errors);
        }
    };
    warnings.extend(rules::warnings(&spec));
    let key = JobKey { namespace: job.namespace.clone(), id: job.id.clone() };
    if core.state.read().and_then(|view| settings::is_on(&view, settings::MEMORY)).is_ok_and(|is_on| !is_on) {
        let tasks = job.groups.iter().flat_map(|group| &group.tasks);
        for task in tasks.filter(|task| task.resources.memory_max_mib != 0) {
            let why = "memory oversubscription is off in the scheduler configuration";
            warnings.push(format!("memory_max of task {:?} is ignored: {why}", task.name));
        }
    }
    Ok(Prepared { key, spec, job, warnings })
}

/// Whether the source of a job is small enough to be kept. The job is registered in any case.
fn is_kept(given: &Submission, warnings: &mut Vec<String>) -> bool {
    let flags: usize = given.variable_flags.iter().map(|(name, value)| name.len() + value.len()).sum();
    let size = given.source.len() + given.variables.len() + flags;
    if size > LARGEST_SOURCE {
        let [size, most] = [size, LARGEST_SOURCE].map(|bytes| bytes as f64 / 1e6);
        let why = "and will be discarded";
        warnings.push(format!("job source size of {size:.1} MB exceeds maximum of {most:.1} MB {why}"));
    }
    size <= LARGEST_SOURCE
}

/// The text of warnings, as Nomad's answers have it.
fn told(warnings: &[String]) -> String {
    match warnings {
        [] => String::new(),
        [one] => format!("1 warning:\n\n* {one}"),
        many => format!(
            "{} warnings:\n\n{}",
            many.len(),
            many.iter().map(|w| format!("* {w}")).collect::<Vec<_>>().join("\n")
        ),
    }
}

/// Checks that the namespace exists.
fn check_namespace(view: &View, key: &JobKey) -> Result<(), CommandError> {
    match view.namespace(&key.namespace)? {
        Some(_) => Ok(()),
        None if key.namespace == "default" => Ok(()),
        None => Err(mistakes(&[format!("job {:?} is in nonexistent namespace {:?}", key.id, key.namespace)])),
    }
}

/// Checks that the job still has the index that the client has seen.
pub(super) fn enforce(index: Option<u64>, old: Option<&JobVersion>) -> Result<(), CommandError> {
    let Some(index) = index else { return Ok(()) };
    let why = match old {
        None if index == 0 => return Ok(()),
        None => "job does not exist".to_owned(),
        Some(_) if index == 0 => "job already exists".to_owned(),
        Some(old) if old.job_modify_index == index => return Ok(()),
        Some(old) => format!("job exists with conflicting job modify index: {}", old.job_modify_index),
    };
    Err(CommandError::Conflict(format!("Enforcing job modify index {index}: {why}")))
}

/// The groups of a specification by their names.
fn groups(spec: &Map<String, Value>) -> impl Iterator<Item = (&str, &Value)> {
    let groups = spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten();
    groups.filter_map(|group| Some((group.get("Name")?.as_str()?, group)))
}

/// Copies the counts and resources of the current version that have to be preserved.
fn preserve(spec: &mut Map<String, Value>, old: &JobVersion, counts: bool, resources: bool) {
    let new = spec.get_mut("TaskGroups").and_then(Value::as_array_mut);
    for group in new.into_iter().flatten() {
        let name = group.get("Name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some((_, was)) = groups(&old.spec).find(|(other, _)| *other == name) else { continue };
        if counts && let Some(count) = was.get("Count") {
            group["Count"] = count.clone();
        }
        if !resources {
            continue;
        }
        let before = was.get("Tasks").and_then(Value::as_array);
        for task in group.get_mut("Tasks").and_then(Value::as_array_mut).into_iter().flatten() {
            let is_same = |other: &&Value| other.get("Name") == task.get("Name");
            let kept = before.into_iter().flatten().find(is_same).and_then(|other| other.get("Resources"));
            if let Some(kept) = kept.cloned() {
                task["Resources"] = kept;
            }
        }
    }
}

/// The answer to a registration.
pub(super) fn registered(index: u64, kept: &Kept, warnings: String) -> Registered {
    Registered {
        eval_id: kept.eval.as_ref().map(|eval| eval.id.clone()).unwrap_or_default(),
        eval_create_index: kept.eval.as_ref().map_or(0, |eval| eval.create_index),
        job_modify_index: kept.job.job_modify_index,
        warnings,
        index,
    }
}

impl Commands {
    /// Stores a job, new or as its next version, and queues its evaluation.
    ///
    /// # Errors
    /// [`CommandError`]: the errors in the job; a job that has changed meanwhile, or is of another kind.
    pub async fn register(&self, given: Register) -> Result<Registered, CommandError> {
        let Register { spec, submission, enforce_index, preserve_counts, preserve_resources, eval_priority } = given;
        let Prepared { key, spec, mut warnings, .. } = prepare(&self.core, spec).map_err(|errors| mistakes(&errors))?;
        let submission = submission.filter(|given| is_kept(given, &mut warnings));
        let made = self.change(move |core, change| {
            check_namespace(change, &key)?;
            let old = change.job(&key)?;
            enforce(enforce_index, old.as_ref())?;
            let mut spec = spec;
            if let Some(old) = &old {
                preserve(&mut spec, old, preserve_counts, preserve_resources);
            }
            let mut new = version(key, spec);
            if let Some(old) = old {
                (new.parent_id, new.dispatched, new.payload) = (old.parent_id, old.dispatched, old.payload);
            }
            keep(core, change, new, submission, Trigger::JobRegister, eval_priority)
        });
        let (index, kept) = made.await?;
        self.follow(&kept);
        Ok(registered(index, &kept, told(&warnings)))
    }

    /// Triggers the follow-up work for a stored version.
    pub(super) fn follow(&self, kept: &Kept) {
        if let Some(eval) = &kept.eval {
            self.decide(eval);
        }
        if kept.job.is_template() {
            self.core.periodic.notify_one();
        }
    }

    /// Computes the job and the actions that registering it would lead to, without doing anything.
    ///
    /// # Errors
    /// As [`Commands::register`].
    pub async fn plan(&self, given: Map<String, Value>) -> Result<Planned, CommandError> {
        self.core.hear(|_| true).await;
        let core = Arc::clone(&self.core);
        let place = PLANS.acquire().await.map_err(|error| CommandError::failed("cannot plan the job", error))?;
        let planned = crate::sys::task::spawn_blocking(move || {
            let _place = place;
            plan(&core, given)
        })
        .await;
        planned.map_err(|error| CommandError::failed("cannot plan the job", error))?
    }

    /// The errors and warnings for a job.
    pub fn validate(&self, given: Map<String, Value>) -> Validated {
        match prepare(&self.core, given) {
            Ok(Prepared { job, warnings, .. }) => {
                Validated { errors: self.core.engine.validate(&job), warnings: told(&warnings) }
            }
            Err(errors) => Validated { errors, warnings: String::new() },
        }
    }
}

fn plan(core: &Core, given: Map<String, Value>) -> Result<Planned, CommandError> {
    let Prepared { key, spec, job, warnings } = prepare(core, given).map_err(|errors| mistakes(&errors))?;
    let view = core.state.read()?;
    check_namespace(&view, &key)?;
    let index = view.index()?.max(1);
    let old = view.job(&key)?;
    let mut planned = Planned {
        job_modify_index: old.as_ref().map_or(0, |old| old.job_modify_index),
        old,
        new: spec,
        desired: BTreeMap::new(),
        failed: BTreeMap::new(),
        created: Vec::new(),
        next_periodic_launch: job.scheduling.periodic.as_ref().and_then(|periodic| next(periodic, now())),
        warnings: told(&warnings),
        index,
    };
    // Also of a job that does not run itself: it is planned as what a launch of it would be, as in Nomad.
    let stop = is_stopped(&planned.new);
    let next = match &planned.old {
        Some(old) if old.stop == stop && is_same(&old.spec, &planned.new) => old.clone(),
        Some(old) => JobVersion {
            spec: planned.new.clone(),
            version: old.version + 1,
            stop,
            stable: false,
            modify_index: index + 1,
            job_modify_index: index + 1,
            ..old.clone()
        },
        None => JobVersion { create_index: index + 1, ..version(key.clone(), planned.new.clone()) },
    };
    let eval = Evaluation {
        priority: job.priority,
        status: EvalStatus::Pending,
        ..evaluation(new_id(), (&key.namespace, &key.id), job.kind, Trigger::JobRegister)
    };
    let plan = worker::plan(core, &view, &eval, Some((&next, &Arc::new(job))))?;
    (planned.desired, planned.failed, planned.created) = (plan.desired, plan.eval.failed, plan.evals);
    Ok(planned)
}
