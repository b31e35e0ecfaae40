//! The restart policy: what happens after a task has ended.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::state::Counted;
use super::text::go_duration;
use crate::spec::{ExitResult, JobType, LifecycleHook, RestartMode, RestartPolicy, Task};

/// Nomad's reason for a usual restart, which its text does not say.
pub(super) const WITHIN_POLICY: &str = "Restart within policy";

/// How one start of a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The process ended by itself.
    Exit(ExitResult),
    /// The task could not be set up or started, or its executor was lost.
    StartError {
        /// Whether another attempt may succeed.
        recoverable: bool,
    },
    /// A restart was requested; it is not counted.
    RestartRequested,
    /// It was killed because of a failure that no restart mends.
    Failed,
    /// A stop was requested.
    Killed,
}

/// The decision of the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The task was killed: no restart, no failure.
    Killed,
    /// The task has completed.
    Terminated {
        /// For the event.
        reason: String,
    },
    /// The task was killed, which is a failure: the policy is not asked.
    Failed,
    /// The task is not restarted, which is a failure.
    NotRestarting {
        /// For the event.
        reason: String,
    },
    /// The task is restarted.
    Restart {
        /// Time to wait first.
        delay: Duration,
        /// For the event; empty if the event needs none.
        reason: String,
    },
}

/// Counts the restarts of one task.
#[derive(Debug)]
pub struct Tracker {
    policy: RestartPolicy,
    on_success: bool,
    count: u32,
    /// When the current interval began.
    window: Instant,
}

/// Whether a task is restarted after it succeeded: main tasks of service and system jobs, and sidecars.
#[must_use]
pub const fn restarts_on_success(kind: JobType, task: &Task) -> bool {
    match task.lifecycle {
        None => !kind.runs_to_completion(),
        Some(lifecycle) => match lifecycle.hook {
            LifecycleHook::Prestart | LifecycleHook::Poststart => lifecycle.sidecar,
            LifecycleHook::Poststop => false,
        },
    }
}

impl Tracker {
    /// A tracker that has counted no restart yet; its first interval begins now.
    #[must_use]
    pub const fn new(policy: RestartPolicy, on_success: bool, now: Instant) -> Tracker {
        Tracker { policy, on_success, count: 0, window: now }
    }

    /// Uses this policy from now on.
    pub(super) const fn follow(&mut self, policy: RestartPolicy) {
        self.policy = policy;
    }

    /// Continues with the counts of an earlier process.
    pub(super) fn resume(&mut self, counted: Counted, now: Instant, today: SystemTime) {
        let ago = counted.since.and_then(|since| today.duration_since(since).ok());
        self.count = counted.count;
        self.window = ago.and_then(|ago| now.checked_sub(ago)).unwrap_or(now);
    }

    /// The counts, for a later process.
    pub(super) fn counted(&self, now: Instant, today: SystemTime) -> Counted {
        Counted { count: self.count, since: today.checked_sub(now.saturating_duration_since(self.window)) }
    }

    /// The longest wait before a restart.
    pub(super) fn longest_delay(&self) -> Duration {
        self.policy.delay.mul_f64(1.25).max(self.policy.interval)
    }

    /// Decides after `end` at the time `now`; `jitter` in 0..=1 says how much of the extra quarter is added.
    pub fn next(&mut self, end: End, now: Instant, jitter: f64) -> Verdict {
        match end {
            End::Killed => return Verdict::Killed,
            End::Failed => return Verdict::Failed,
            End::RestartRequested => return Verdict::Restart { delay: Duration::ZERO, reason: String::new() },
            End::Exit(_) | End::StartError { .. } => {}
        }
        let done = matches!(end, End::Exit(exit) if exit.successful()) && !self.on_success;
        if self.policy.attempts == 0 {
            let reason = "Policy allows no restarts".to_owned();
            return if done { Verdict::Terminated { reason } } else { Verdict::NotRestarting { reason } };
        }

        if now > self.window + self.policy.interval {
            (self.count, self.window) = (0, now);
        }
        self.count += 1;

        if end == (End::StartError { recoverable: false }) {
            return Verdict::NotRestarting { reason: "Error was unrecoverable".to_owned() };
        }
        if done {
            let reason = "Restart unnecessary as task terminated successfully".to_owned();
            return Verdict::Terminated { reason };
        }
        if self.count <= self.policy.attempts {
            let delay = self.policy.delay + self.policy.delay.mul_f64(0.25 * jitter.clamp(0.0, 1.0));
            return Verdict::Restart { delay, reason: WITHIN_POLICY.to_owned() };
        }
        let RestartPolicy { attempts, interval, mode, .. } = self.policy;
        match mode {
            RestartMode::Fail => {
                let interval = go_duration(interval);
                let reason =
                    format!("Exceeded allowed attempts {attempts} in interval {interval} and mode is \"fail\"");
                Verdict::NotRestarting { reason }
            }
            RestartMode::Delay => {
                let delay = (self.window + interval).saturating_duration_since(now);
                Verdict::Restart { delay, reason: "Exceeded allowed attempts, applying a delay".to_owned() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::fake;
    use crate::spec::Lifecycle;

    const FAILED: End = End::Exit(ExitResult { exit_code: 127, signal: 0, oom_killed: false, core_dumped: false });
    const OK: End = End::Exit(ExitResult { exit_code: 0, signal: 0, oom_killed: false, core_dumped: false });

    fn policy(mode: RestartMode) -> RestartPolicy {
        let (interval, delay) = (Duration::from_secs(10), Duration::from_secs(1));
        RestartPolicy { attempts: 3, interval, delay, mode, render_templates: false }
    }

    fn restarted_within_policy(verdict: &Verdict, jitter: f64) {
        let Verdict::Restart { delay, reason } = verdict else { panic!("{verdict:?}") };
        assert_eq!(*delay, Duration::from_secs_f64(1.0 + 0.25 * jitter));
        assert_eq!(reason, WITHIN_POLICY);
    }

    fn reason(verdict: Verdict) -> String {
        let Verdict::NotRestarting { reason } = verdict else { panic!("{verdict:?}") };
        reason
    }

    #[test]
    fn mode_delay() {
        let start = Instant::now();
        let mut tracker = Tracker::new(policy(RestartMode::Delay), true, start);
        for jitter in [0.0, 0.5, 1.0] {
            restarted_within_policy(&tracker.next(FAILED, start + Duration::from_secs(3), jitter), jitter);
        }
        let Verdict::Restart { delay, reason } = tracker.next(FAILED, start + Duration::from_secs(4), 1.0) else {
            panic!()
        };
        assert_eq!(delay, Duration::from_secs(6), "it waits for the end of the interval, without jitter");
        assert_eq!(reason, "Exceeded allowed attempts, applying a delay");
        restarted_within_policy(&tracker.next(FAILED, start + Duration::from_millis(10_001), 0.0), 0.0);
    }

    #[test]
    fn the_interval_of_an_earlier_process_goes_on() {
        let (start, today) = (Instant::now(), SystemTime::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut tracker = Tracker::new(policy(RestartMode::Delay), true, start);
        restarted_within_policy(&tracker.next(FAILED, after(2), 0.0), 0.0);
        let counted = tracker.counted(after(2), today);
        assert_eq!((counted.count, counted.since), (1, today.checked_sub(Duration::from_secs(2))));
        let mut later = Tracker::new(policy(RestartMode::Delay), true, after(5));
        later.resume(counted, after(5), today + Duration::from_secs(3));
        assert_eq!(later.counted(after(5), today).since, today.checked_sub(Duration::from_secs(5)));
        later.resume(Counted::default(), after(6), today);
        assert_eq!(later.counted(after(6), today), Counted { count: 0, since: Some(today) });
    }

    #[test]
    fn mode_fail() {
        let start = Instant::now();
        let mut tracker = Tracker::new(policy(RestartMode::Fail), true, Instant::now());
        for _ in 0..3 {
            restarted_within_policy(&tracker.next(FAILED, start, 0.0), 0.0);
        }
        assert_eq!(
            reason(tracker.next(FAILED, start, 0.0)),
            "Exceeded allowed attempts 3 in interval 10s and mode is \"fail\""
        );
    }

    #[test]
    fn no_restart_on_success() {
        let mut tracker = Tracker::new(policy(RestartMode::Delay), false, Instant::now());
        assert!(matches!(tracker.next(OK, Instant::now(), 0.0), Verdict::Terminated { .. }));
    }

    #[test]
    fn zero_attempts() {
        let none = RestartPolicy { attempts: 0, ..policy(RestartMode::Fail) };
        for (on_success, exit, terminated) in [(true, FAILED, false), (true, OK, false), (false, OK, true)] {
            let verdict = Tracker::new(none, on_success, Instant::now()).next(exit, Instant::now(), 0.0);
            assert_eq!(matches!(verdict, Verdict::Terminated { .. }), terminated, "{verdict:?}");
            assert_eq!(matches!(verdict, Verdict::NotRestarting { .. }), !terminated, "{verdict:?}");
        }
    }

    #[test]
    fn task_killed() {
        let mut tracker = Tracker::new(policy(RestartMode::Fail), true, Instant::now());
        assert_eq!(tracker.next(End::Killed, Instant::now(), 0.0), Verdict::Killed);
        assert_eq!(tracker.next(End::Failed, Instant::now(), 0.0), Verdict::Failed);
    }

    #[test]
    fn restart_triggered() {
        let none = RestartPolicy { attempts: 0, ..policy(RestartMode::Fail) };
        let mut tracker = Tracker::new(none, false, Instant::now());
        let now = Verdict::Restart { delay: Duration::ZERO, reason: String::new() };
        assert_eq!(tracker.next(End::RestartRequested, Instant::now(), 1.0), now);
    }

    #[test]
    fn restart_triggered_failure() {
        let start = Instant::now();
        let mut tracker = Tracker::new(RestartPolicy { attempts: 1, ..policy(RestartMode::Fail) }, true, start);
        restarted_within_policy(&tracker.next(FAILED, start, 0.0), 0.0);
        let requested = tracker.next(End::RestartRequested, start, 0.0);
        assert!(
            matches!(requested, Verdict::Restart { delay: Duration::ZERO, .. }),
            "it is not counted: {requested:?}"
        );
        assert!(matches!(tracker.next(FAILED, start, 0.0), Verdict::NotRestarting { .. }));
    }

    #[test]
    fn start_error_recoverable_fail() {
        let start = Instant::now();
        let mut tracker = Tracker::new(policy(RestartMode::Fail), true, Instant::now());
        for _ in 0..3 {
            restarted_within_policy(&tracker.next(End::StartError { recoverable: true }, start, 0.0), 0.0);
        }
        assert!(reason(tracker.next(End::StartError { recoverable: true }, start, 0.0)).contains("Exceeded"));
        let mut tracker = Tracker::new(policy(RestartMode::Fail), true, Instant::now());
        let verdict = tracker.next(End::StartError { recoverable: false }, start, 0.0);
        assert_eq!(reason(verdict), "Error was unrecoverable");
    }

    #[test]
    fn start_error_recoverable_delay() {
        let start = Instant::now();
        let mut tracker = Tracker::new(policy(RestartMode::Delay), true, start);
        for _ in 0..3 {
            restarted_within_policy(&tracker.next(End::StartError { recoverable: true }, start, 0.0), 0.0);
        }
        let verdict = tracker.next(End::StartError { recoverable: true }, start, 0.0);
        let Verdict::Restart { delay, .. } = verdict else { panic!("{verdict:?}") };
        assert_eq!(delay, Duration::from_secs(10));
    }

    #[test]
    fn lifecycle() {
        use JobType::{Batch, Service, Sysbatch, System};
        use LifecycleHook::{Poststart, Poststop, Prestart};
        let cases = [
            (None, Service, true),
            (None, System, true),
            (None, Batch, false),
            (None, Sysbatch, false),
            (Some((Prestart, false)), Service, false),
            (Some((Prestart, true)), Service, true),
            (Some((Prestart, false)), Batch, false),
            (Some((Prestart, true)), Batch, true),
            (Some((Poststart, false)), Service, false),
            (Some((Poststart, true)), Service, true),
            (Some((Poststart, true)), Batch, true),
            (Some((Poststop, false)), Service, false),
            (Some((Poststop, true)), Service, false),
        ];
        for (lifecycle, kind, expected) in cases {
            let mut task = fake::task("t");
            task.lifecycle = lifecycle.map(|(hook, sidecar)| Lifecycle { hook, sidecar });
            assert_eq!(restarts_on_success(kind, &task), expected, "{lifecycle:?} {kind:?}");
        }
    }
}
