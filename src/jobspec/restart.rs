//! The `restart` blocks of groups and tasks.

use std::time::Duration;

use super::diag::did_you_mean;
use super::schema::RESTART;
use super::section::Section;
use crate::spec::{JobType, Pos, RestartMode, RestartPolicy};

/// A restart interval is at least this long.
const MIN_RESTART_INTERVAL: Duration = Duration::from_secs(5);

/// The arguments of a `restart` block that were given.
#[derive(Debug, Clone, Default)]
pub(super) struct RestartFields {
    attempts: Option<u32>,
    interval: Option<Duration>,
    delay: Option<Duration>,
    mode: Option<RestartMode>,
    render_templates: Option<bool>,
    /// Where the innermost block stands.
    pos: Option<Pos>,
}

impl RestartFields {
    /// Reads the `restart` block of a group or task.
    pub fn of(owner: &Section<'_>) -> RestartFields {
        let Some(section) = owner.child("restart", &RESTART) else { return RestartFields::default() };
        let mode = section.string("mode").and_then(|mode| match mode.as_str() {
            "fail" => Some(RestartMode::Fail),
            "delay" => Some(RestartMode::Delay),
            other => {
                let message = format!(
                    "unknown restart mode \"{other}\"{}; use fail or delay",
                    did_you_mean(other, ["fail", "delay"])
                );
                section.error(section.pos_of("mode"), message);
                None
            }
        });
        RestartFields {
            attempts: section.int("attempts", 0),
            interval: section.duration("interval"),
            delay: section.duration("delay"),
            mode,
            render_templates: section.bool("render_templates"),
            pos: Some(section.pos.clone()),
        }
    }

    /// These fields where they are given, else the group's.
    pub fn over(self, group: &RestartFields) -> RestartFields {
        RestartFields {
            attempts: self.attempts.or(group.attempts),
            interval: self.interval.or(group.interval),
            delay: self.delay.or(group.delay),
            mode: self.mode.or(group.mode),
            render_templates: self.render_templates.or(group.render_templates),
            pos: self.pos.or_else(|| group.pos.clone()),
        }
    }

    /// The policy with the job type's defaults, after checking that it makes sense.
    pub fn policy(&self, kind: JobType, owner: &Section<'_>) -> RestartPolicy {
        let (attempts, interval) =
            if kind.runs_to_completion() { (3, Duration::from_hours(24)) } else { (2, Duration::from_mins(30)) };
        let policy = RestartPolicy {
            attempts: self.attempts.unwrap_or(attempts),
            interval: self.interval.unwrap_or(interval),
            delay: self.delay.unwrap_or(Duration::from_secs(15)),
            mode: self.mode.unwrap_or(RestartMode::Fail),
            render_templates: self.render_templates.unwrap_or(false),
        };
        let Some(pos) = &self.pos else { return policy };
        if policy.interval < MIN_RESTART_INTERVAL {
            owner.error(pos, format!("the restart interval must be at least 5s, not {:?}", policy.interval));
        } else if policy.attempts == 0 && policy.mode == RestartMode::Delay {
            owner.error(pos, "restart mode \"delay\" needs at least 1 attempt; use mode \"fail\" for no restarts");
        } else if policy.delay.saturating_mul(policy.attempts) > policy.interval {
            let message = format!(
                "{} restarts with a delay of {:?} do not fit into the restart interval of {:?}; make the interval longer",
                policy.attempts, policy.delay, policy.interval
            );
            owner.error(pos, message);
        }
        policy
    }
}
