//! When an allocation that failed is replaced.

use std::time::Duration;

use crate::agent::model::{Allocation, Nanos, RescheduleEvent, RescheduleTracker};
use crate::spec::{DelayFunction, Reschedule};

/// Replacements that are remembered beside the newest one where there is no limit of them.
const REMEMBERED: usize = 5;
/// What is due this soon is not worth an evaluation of its own.
const SOON: Duration = Duration::from_secs(1);

/// What becomes of an allocation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is replaced.
    Now,
    /// It is replaced at this moment.
    Later(Nanos),
    /// It stays as it is.
    Never,
}

/// What becomes of a failed allocation by the policy of its group.
#[must_use]
pub fn verdict(policy: Option<&Reschedule>, alloc: &Allocation, now: Nanos) -> Verdict {
    let failed = failed_at(alloc);
    let Some(policy) = policy.filter(|policy| !is_used_up(policy, alloc, failed)) else { return Verdict::Never };
    let due = failed.plus(delay(policy, alloc));
    if due <= now.plus(SOON) { Verdict::Now } else { Verdict::Later(due) }
}

/// Whether the policy does not replace an allocation that fails at this moment.
pub(super) fn is_used_up(policy: &Reschedule, alloc: &Allocation, failed: Nanos) -> bool {
    let since = Nanos(failed.0.saturating_sub(Nanos::long(policy.interval).0));
    let tries = || events(alloc).iter().filter(|event| event.reschedule_time > since).count();
    !policy.unlimited && tries() >= policy.attempts as usize
}

/// When an allocation failed: when the last of its tasks ended, or when that was told.
#[must_use]
pub fn failed_at(alloc: &Allocation) -> Nanos {
    alloc.task_states.values().filter_map(|task| task.finished_at.0).max().unwrap_or(alloc.modify_time)
}

/// The wait before an allocation is replaced.
#[must_use]
pub fn delay(policy: &Reschedule, alloc: &Allocation) -> Duration {
    let events = events(alloc);
    let Some(last) = events.last() else { return policy.delay };
    let before = || events.len().checked_sub(2).map_or(Duration::ZERO, |at| events[at].delay.duration());
    let next = match policy.delay_function {
        DelayFunction::Constant => return policy.delay,
        DelayFunction::Exponential => last.delay.duration().saturating_mul(2),
        // The first two waits are the same, also of those that began anew.
        DelayFunction::Fibonacci
            if events.len() == 1 || (before() == policy.max_delay && last.delay.duration() == policy.delay) =>
        {
            policy.delay
        }
        DelayFunction::Fibonacci => last.delay.duration().saturating_add(before()),
    };
    if policy.max_delay.is_zero() || next <= policy.max_delay {
        return next;
    }
    // One that ran longer than the longest wait begins anew.
    let ran = Nanos(failed_at(alloc).0.saturating_sub(last.reschedule_time.0)).duration();
    if ran > policy.max_delay { policy.delay } else { policy.max_delay }
}

/// What the replacement of an allocation remembers.
#[must_use]
pub fn tracker(policy: Option<&Reschedule>, previous: &Allocation, now: Nanos) -> RescheduleTracker {
    let mut kept = events(previous).to_vec();
    match policy {
        Some(policy) if !policy.unlimited => {
            let since = Nanos(now.0.saturating_sub(Nanos::long(policy.interval).0));
            kept.retain(|event| event.reschedule_time >= since);
        }
        _ => {
            let superfluous = kept.len().saturating_sub(REMEMBERED);
            kept.drain(..superfluous);
        }
    }
    kept.push(RescheduleEvent {
        reschedule_time: now,
        prev_alloc_id: previous.id.clone(),
        prev_node_id: previous.node_id.clone(),
        delay: Nanos::long(policy.map_or(Duration::ZERO, |policy| delay(policy, previous))),
    });
    RescheduleTracker { events: kept }
}

fn events(alloc: &Allocation) -> &[RescheduleEvent] {
    alloc.reschedule_tracker.as_ref().map_or(&[], |tracker| &tracker.events)
}
