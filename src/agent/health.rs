//! Whether an allocation of a deployment is healthy: by its tasks' states and its checks, over the time that the job requires.

use super::model::{Allocation, ClientStatus, Nanos, TaskState, TaskStateName};
use crate::spec::{Group, HealthCheck, Lifecycle, LifecycleHook, Task, Update};

/// The verdict on an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Healthy,
    Unhealthy(&'static str),
    /// Check again at this time if there is no report before.
    NotYet(Nanos),
    /// Health is set by an API call only.
    Manual,
}

/// The state of a task.
enum Standing {
    /// Running since this time.
    Running(Nanos),
    /// It need not be waited for any more.
    Done,
    Waiting,
    Failed,
}

fn standing(task: &Task, state: Option<&TaskState>) -> Standing {
    if matches!(task.lifecycle, Some(Lifecycle { hook: LifecycleHook::Poststop, .. })) {
        return Standing::Done;
    }
    let Some(state) = state else { return Standing::Waiting };
    let ends_well = matches!(
        task.lifecycle,
        Some(Lifecycle { hook: LifecycleHook::Prestart | LifecycleHook::Poststart, sidecar: false })
    );
    match state.state {
        TaskStateName::Dead if ends_well && !state.failed => Standing::Done,
        TaskStateName::Dead => Standing::Failed,
        TaskStateName::Running => state.started_at.0.map_or(Standing::Waiting, Standing::Running),
        TaskStateName::Pending => Standing::Waiting,
    }
}

/// The current verdict on an allocation. `begun` is when it was placed, or updated in place: all times count from then.
/// `checks_pass_since` is the time since when all checks have passed without interruption; `None` while one fails.
pub(super) fn judge(
    alloc: &Allocation,
    group: &Group,
    update: &Update,
    checks_pass_since: Option<Nanos>,
    (begun, now): (Nanos, Nanos),
) -> Verdict {
    if update.health_check == HealthCheck::Manual {
        return Verdict::Manual;
    }
    if alloc.client_status.is_terminal() && alloc.client_status != ClientStatus::Complete {
        return Verdict::Unhealthy("Unhealthy because of failed task");
    }
    let mut since = Some(begun);
    for task in &group.tasks {
        match standing(task, alloc.task_states.get(&task.name)) {
            Standing::Failed => return Verdict::Unhealthy("Unhealthy because of failed task"),
            Standing::Waiting => since = None,
            Standing::Done => {}
            Standing::Running(from) => since = since.map(|since| since.max(from)),
        }
    }
    if update.health_check == HealthCheck::Checks {
        since = since.zip(checks_pass_since).map(|(tasks, checks)| tasks.max(checks));
    }
    let deadline = begun.plus(update.healthy_deadline);
    let healthy = since.map(|since| since.plus(update.min_healthy_time));
    match healthy {
        Some(at) if at <= now => Verdict::Healthy,
        _ if deadline <= now => {
            Verdict::Unhealthy("Unhealthy because it did not become healthy before its healthy_deadline")
        }
        Some(at) => Verdict::NotYet(at.min(deadline)),
        None => Verdict::NotYet(deadline),
    }
}
