//! The state of a task: what status requests and subscribers get, and what its record keeps to restore it.

use std::collections::VecDeque;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::driver::DriverNetwork;
use crate::spec::collections::BTreeMap;
use crate::spec::{CpuSet, ExitResult, TaskEvent};

/// How many events of a task are kept, as many as Nomad keeps.
pub(super) const EVENTS: usize = 10;

/// The phase of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Phase {
    /// It waits for its turn in the group.
    #[default]
    Waiting,
    /// It is being set up and started.
    Starting,
    /// Its process runs.
    Running,
    /// It waits for the next start.
    Restarting,
    /// It will not run again.
    Dead,
}

impl Phase {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting for its turn",
            Phase::Starting => "starting",
            Phase::Running => "running",
            Phase::Restarting => "waiting for a restart",
            Phase::Dead => "dead",
        }
    }
}

/// Why a start of a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Why {
    Itself,
    Stopped,
    /// A restart was requested.
    Restart,
    /// A check requested a restart, which counts.
    Unhealthy,
    /// What a change of its templates asks for could not be done: it fails, whatever its restart policy says.
    Failed,
}

/// The current state of a task.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct State {
    pub(super) name: String,
    pub(super) phase: Phase,
    pub(super) failed: bool,
    /// Whether it was stopped.
    pub(super) killed: bool,
    /// The driver's id of the running start.
    pub(super) driver_id: Option<String>,
    pub(super) starts: u64,
    pub(super) restarts: u64,
    pub(super) last_restart: Option<SystemTime>,
    pub(super) started: Option<SystemTime>,
    pub(super) finished: Option<SystemTime>,
    pub(super) exit: Option<ExitResult>,
    /// The last events.
    pub(super) events: VecDeque<TaskEvent>,
    /// How its driver finds the current start again, which runs, or has ended and is not destroyed yet.
    pub(super) handle: Option<Started>,
    /// Why the last start ended, until the restart policy has been applied. `exit` has its exit status, if it is known.
    pub(super) undecided: Option<Why>,
    /// Why the running start is being stopped, unless the whole allocation is.
    pub(super) ordered: Option<Why>,
    /// When the restart that it waits for is due.
    pub(super) restart_at: Option<SystemTime>,
    /// The counts of the restart policy.
    pub(super) counted: Counted,
    /// The names of the steps before a start that are done.
    pub(super) done: Vec<String>,
    /// The numbers of its artifacts that are fetched.
    pub(super) fetched_artifacts: Vec<usize>,
    /// The rendered templates.
    pub(super) rendered: Rendered,
    /// Its reserved cores.
    pub(super) cores: Option<CpuSet>,
    /// It is being stopped to be restarted with all tasks of its group.
    pub(super) anew: bool,
}

impl State {
    /// Adds an event, and drops the oldest one if there are too many.
    pub(super) fn note(&mut self, event: &TaskEvent) {
        if self.events.len() >= EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event.clone());
    }

    /// It has ended, and begins again like a task that was never started; its restart policy does not count that.
    pub(super) fn begin_anew(&mut self) {
        let State { name, events, done, restarts, .. } = std::mem::take(self);
        *self = State {
            name,
            events,
            // Its directory exists.
            done: done.into_iter().take(1).collect(),
            restarts: restarts + 1,
            last_restart: Some(SystemTime::now()),
            ..State::default()
        };
    }

    /// The machine was rebooted: only a task's files remain, and the result if it had ended.
    pub(super) fn forget_boot(&mut self) {
        self.handle = None;
        self.driver_id = None;
        self.cores = None;
        if self.phase != Phase::Dead && self.undecided.is_none() {
            (self.phase, self.restart_at, self.ordered) = (Phase::Waiting, None, None);
            // The group's start begins again, and so do the tasks that wait for it.
            self.starts = 0;
            self.done.clear();
            self.fetched_artifacts.clear();
            self.rendered = Rendered::default();
        }
    }
}

/// What a driver needs to find a start again.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Started {
    /// The driver's id.
    pub(super) id: String,
    /// The driver's own state, which only it can read.
    #[serde(with = "base64_text")]
    pub(super) state: Vec<u8>,
    /// The network that the driver made for the task.
    #[serde(default)]
    pub(super) network: Option<DriverNetwork>,
}

/// The counts of the restart policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Counted {
    pub(super) count: u32,
    /// When the current interval began.
    pub(super) since: Option<SystemTime>,
}

/// The rendered templates of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Rendered {
    /// Digest of the values with which they were rendered.
    pub(super) values: String,
    /// Digests of the rendered files, by the indexes of their templates.
    pub(super) files: BTreeMap<usize, String>,
    /// Digests of what the templates asked for, by their indexes.
    pub(super) asked: BTreeMap<usize, String>,
}

/// Bytes as text in JSON.
mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        STANDARD.decode(String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::EventKind;

    #[test]
    fn a_state_is_the_same_when_it_is_read_again() {
        let mut state = State {
            name: "web".to_owned(),
            phase: Phase::Running,
            starts: 3,
            restarts: 2,
            exit: Some(ExitResult { exit_code: 7, ..ExitResult::default() }),
            handle: Some(Started { id: "a/web/0".to_owned(), state: vec![0, 255, 128], network: None }),
            counted: Counted { count: 2, since: Some(SystemTime::now()) },
            done: vec!["task_dir".to_owned()],
            cores: "1-2,7".parse().ok(),
            ..State::default()
        };
        for number in 0..2 * EVENTS {
            let (kind, time, task) = (EventKind::Driver, SystemTime::now(), "web".to_owned());
            state.note(&TaskEvent { kind, time, task, message: number.to_string(), details: BTreeMap::new() });
        }
        assert_eq!((state.events.len(), &*state.events[0].message), (EVENTS, "10"));
        let text = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<State>(&text).unwrap(), state);
        assert!(text.contains("\"AP+A\""), "{text}");
    }

    #[test]
    fn a_restart_of_the_machine_leaves_files_counts_and_ends() {
        let running = State {
            phase: Phase::Running,
            starts: 3,
            restarts: 2,
            driver_id: Some("x".to_owned()),
            handle: Some(Started::default()),
            done: vec!["task_dir".to_owned()],
            fetched_artifacts: vec![1],
            ..State::default()
        };
        let mut state = running.clone();
        state.forget_boot();
        assert_eq!(state, State { restarts: 2, ..State::default() });
        let dead = State { phase: Phase::Dead, failed: true, done: running.done.clone(), ..State::default() };
        let mut state = dead.clone();
        state.forget_boot();
        assert_eq!(state, dead);
        let mut undecided = State { undecided: Some(Why::Itself), ..running };
        undecided.forget_boot();
        assert!(undecided.undecided.is_some() && undecided.phase == Phase::Running && undecided.handle.is_none());
    }
}
