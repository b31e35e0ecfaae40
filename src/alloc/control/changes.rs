//! What subscribers of an allocation get: a notification that something has changed, and the current state.

use std::time::SystemTime;

use tokio::sync::watch;

use super::Control;
use crate::alloc::state::{Phase, State};
use crate::spec::{ExitResult, TaskEvent};

/// Nomad's states of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskLife {
    /// It waits for its turn in the group, for its start or for a restart.
    Pending,
    /// Its process runs.
    Running,
    /// It will not run again.
    Dead,
}

/// The current state of a task.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskNow {
    /// Its name.
    pub name: String,
    /// See [`TaskLife`].
    pub state: TaskLife,
    /// It failed.
    pub failed: bool,
    /// How often it was restarted.
    pub restarts: u64,
    /// When it was last restarted.
    pub last_restart: Option<SystemTime>,
    /// When it was last started.
    pub started_at: Option<SystemTime>,
    /// When its last process ended, if it will not run again.
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
            // As with Nomad, a task that waits for a restart has not finished.
            finished_at: state.finished.filter(|_| state.phase == Phase::Dead),
            exit: state.exit,
            events: state.events.into(),
        }
    }
}

/// Notifies about changes of an allocation. Several changes between two calls are reported once.
#[derive(Debug, Clone)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Returns when something has changed since the last call, or since the subscription; `false` when nothing will change any
    /// more.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Control {
    /// Subscribes to changes from now on: the states and events of its tasks, and its end.
    #[must_use]
    pub fn subscribe(&self) -> Changes {
        Changes(self.changes.subscribe())
    }

    /// Its tasks, in the order of the job file.
    #[must_use]
    pub fn tasks(&self) -> Vec<TaskNow> {
        self.states().into_iter().map(TaskNow::from).collect()
    }

    /// Whether its tasks have ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Whether nothing of it remains.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        *self.gone.borrow()
    }
}
