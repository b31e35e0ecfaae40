//! What those are told who follow an allocation: that something has changed, and how it is now.

use std::time::SystemTime;

use tokio::sync::watch;

use super::Control;
use crate::alloc::state::{Phase, State};
use crate::spec::{ExitResult, TaskEvent};

/// Nomad's states of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskLife {
    /// It waits for its turn, for its start or for its next one.
    Pending,
    /// Its process runs.
    Running,
    /// It will not run again.
    Dead,
}

/// How a task is now.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskNow {
    /// Its name.
    pub name: String,
    /// See [`TaskLife`].
    pub state: TaskLife,
    /// It should have done better.
    pub failed: bool,
    /// How often it was started again.
    pub restarts: u64,
    /// When it was last started again.
    pub last_restart: Option<SystemTime>,
    /// When it was last started.
    pub started_at: Option<SystemTime>,
    /// When its process last ended.
    pub finished_at: Option<SystemTime>,
    /// How its process last ended, where that is known.
    pub exit: Option<ExitResult>,
    /// Its last ten events, the oldest one first.
    pub events: Vec<TaskEvent>,
}

impl From<State> for TaskNow {
    fn from(state: State) -> TaskNow {
        TaskNow {
            name: state.name,
            state: match state.phase {
                Phase::Running => TaskLife::Running,
                Phase::Dead => TaskLife::Dead,
                Phase::Waiting | Phase::Starting | Phase::Restarting => TaskLife::Pending,
            },
            failed: state.failed,
            restarts: state.restarts,
            last_restart: state.last_restart,
            started_at: state.started,
            finished_at: state.finished,
            exit: state.exit,
            events: state.events.into(),
        }
    }
}

/// Tells that something of an allocation has changed. Changes that come faster than they are looked at are told once.
#[derive(Debug, Clone)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Returns when something has changed since the last call, or since the subscription: `false` when nothing will any more.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Control {
    /// Follows it from now on: the states and events of its tasks, and its end.
    #[must_use]
    pub fn subscribe(&self) -> Changes {
        Changes(self.changes.subscribe())
    }

    /// Its tasks, in the order of the job file.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskNow> {
        self.states().into_iter().map(TaskNow::from).collect()
    }

    /// Its tasks have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Nothing is left of it.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }
}
