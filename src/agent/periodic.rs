//! Starts the jobs that a clock starts.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, now};
use super::model::{Evaluation, JobKey, JobStatus, JobVersion, Nanos};
use super::schedule;
use super::state::{Change, StateError, View};
use super::versions;
use crate::spec::Periodic;

/// A launch that is this late was missed.
const LATE: Duration = Duration::from_mins(1);
/// When a launch is tried again that could not be made.
const AGAIN: Duration = Duration::from_secs(10);

/// Starts them for ever.
pub(super) async fn run(core: Arc<Core>) {
    loop {
        let next = step(&core).await.unwrap_or_else(|error| {
            tracing::error!(error = crate::alloc::chain(&error), "cannot start the jobs that a clock starts");
            Some(now().plus(AGAIN))
        });
        super::core::wait(&core.periodic, next).await;
    }
}

/// When a clock starts such a job next, after this moment.
pub(super) fn next(periodic: &Periodic, after: Nanos) -> Option<Nanos> {
    let next = |spec: &String| schedule::periodic::next(spec, &periodic.time_zone, after).ok().flatten();
    periodic.specs.iter().filter_map(next).min()
}

/// What the clock says of a job.
enum Launch {
    /// It is started, as of this moment.
    Start(Nanos),
    /// It is not, because one that it started still runs; the next one is looked for after this moment.
    Pass(Nanos),
    /// It is started then.
    Wait(Nanos),
    Never,
}

/// Starts what is due; answers when the next one is.
async fn step(core: &Arc<Core>) -> Result<Option<Nanos>, StateError> {
    let mut earliest: Option<Nanos> = None;
    let due = {
        let (view, mut due) = (core.state.read()?, Vec::new());
        for job in view.jobs(None, "") {
            let job = job?;
            match launch_of(core, &view, &job)? {
                Launch::Start(_) | Launch::Pass(_) => due.push(job.key),
                Launch::Wait(at) => earliest = Some(earliest.map_or(at, |known| known.min(at))),
                Launch::Never => {}
            }
        }
        due
    };
    for key in due {
        let shared = Arc::clone(core);
        let of = key.clone();
        let again = match core.state.change(move |change| start(&shared, change, &of)).await {
            Ok((_, eval)) => {
                if let Some(eval) = &eval {
                    core.broker.put(eval);
                }
                // The next one of the same job.
                now()
            }
            // The others go on.
            Err(error) => {
                tracing::error!(job = key.id, error = crate::alloc::chain(&error), "cannot start a job by its clock");
                now().plus(AGAIN)
            }
        };
        earliest = Some(earliest.map_or(again, |known| known.min(again)));
    }
    Ok(earliest)
}

/// What the clock says of a job now.
fn launch_of(core: &Core, view: &View, job: &JobVersion) -> Result<Launch, StateError> {
    if job.stop || job.spec.get("Periodic").is_none_or(serde_json::Value::is_null) {
        return Ok(Launch::Never);
    }
    let Ok(read) = core.jobs.of(job) else { return Ok(Launch::Never) };
    let Some(periodic) = read.scheduling.periodic.as_ref().filter(|periodic| periodic.enabled) else {
        return Ok(Launch::Never);
    };
    if read.scheduling.parameterized.is_some() && !job.dispatched {
        return Ok(Launch::Never);
    }
    let now = now();
    let submitted = if job.submit_time > now { Nanos(0) } else { job.submit_time };
    let last = view.last_launch(&job.key)?.unwrap_or_default().max(submitted);
    if last > now || last == Nanos(0) {
        // The clock was wrong, and is no more: it is not a reason to wait until then.
        return Ok(Launch::Pass(now));
    }
    let at = match next(periodic, last) {
        None => return Ok(Launch::Never),
        Some(at) if at > now => return Ok(Launch::Wait(at)),
        // What was missed while nobody looked happens once, now.
        Some(at) if now.duration().saturating_sub(at.duration()) > LATE => now,
        Some(at) => at,
    };
    let overlaps = periodic.prohibit_overlap && has_live_child(view, &job.key)?;
    Ok(if overlaps { Launch::Pass(at) } else { Launch::Start(at) })
}

fn start(core: &Core, change: &mut Change<'_>, key: &JobKey) -> Result<Option<Evaluation>, StateError> {
    let Some(job) = change.job(key)? else { return Ok(None) };
    match launch_of(core, change, &job)? {
        Launch::Start(at) => {
            let kept = versions::launch(core, change, &job, at);
            kept.map(|kept| kept.eval).map_err(|error| StateError::Invalid(error.to_string()))
        }
        Launch::Pass(at) => change.put_launch(key, at).map(|()| None),
        Launch::Wait(_) | Launch::Never => Ok(None),
    }
}

fn has_live_child(view: &View, key: &JobKey) -> Result<bool, StateError> {
    for child in view.children(key) {
        if view.job(&child?)?.is_some_and(|child| child.status != JobStatus::Dead) {
            return Ok(true);
        }
    }
    Ok(false)
}
