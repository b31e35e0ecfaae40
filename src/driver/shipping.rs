//! Ships the output of a driver's tasks to log sinks under a Nomad agent.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::TaskConfig;
use crate::logs::ship::{self, Labels, Outlets, Report, Shipment, Sink};
use crate::sys::lock::lock;

/// How long the sinks of an ended task may take for the rest of its output.
const PATIENCE: Duration = Duration::from_mins(1);

/// Ships the output of a driver's tasks to sinks under an agent. Errors are logged in the agent's log and never fail the task.
#[derive(Debug)]
pub(super) struct Shipping {
    outlets: Outlets,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By the id of the task's start.
    running: HashMap<String, Shipped>,
    /// Of ended tasks, by the location of their files: the next start of the same task continues with them.
    ending: HashMap<Place, Ending>,
    ended: u64,
}

/// The allocation's directory and the task's name.
type Place = (PathBuf, String);

#[derive(Debug)]
struct Shipped {
    place: Place,
    shipment: Shipment,
}

#[derive(Debug)]
struct Ending {
    /// The sequence number of the task's end.
    number: u64,
    shipment: Shipment,
}

fn place(task: &TaskConfig) -> Place {
    (task.alloc_dir.clone(), task.name.clone())
}

fn labels(task: &TaskConfig) -> Labels {
    let job = if task.job_id.is_empty() { &task.job_name } else { &task.job_id };
    // The id may be missing; agents derive it from the directory.
    let folder = task.alloc_dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let alloc = if task.alloc_id.is_empty() { folder } else { task.alloc_id.clone() };
    Labels { job: job.clone(), group: task.group.clone(), task: task.name.clone(), alloc }
}

impl Shipping {
    pub(super) fn new() -> Arc<Shipping> {
        let report = |report: Report| {
            if matches!(report, Report::Up { .. }) {
                tracing::info!("{report}");
            } else {
                tracing::warn!("{report}");
            }
        };
        Arc::new(Shipping { outlets: Outlets::new(Arc::new(report)), state: Mutex::default() })
    }

    /// Ships the output of a task that has just started.
    pub(super) async fn start(&self, task: &TaskConfig, sinks: &[Sink]) {
        let earlier = lock(&self.state).ending.remove(&place(task));
        if let Some(earlier) = earlier {
            earlier.shipment.halt().await;
        }
        self.begin(task, sinks, false);
    }

    /// Ships the output of a task that an earlier process started.
    pub(super) fn recover(&self, task: &TaskConfig, sinks: &[Sink]) {
        if !lock(&self.state).running.contains_key(&task.id) {
            self.begin(task, sinks, true);
        }
    }

    fn begin(&self, task: &TaskConfig, sinks: &[Sink], recover: bool) {
        let (logs, records) = (task.alloc_dir.join("alloc/logs"), ship::records(&task.alloc_dir));
        let start = if recover { Shipment::recover } else { Shipment::start };
        match start(&self.outlets, sinks, &labels(task), &logs, &records) {
            Ok(shipment) => {
                let shipped = Shipped { place: place(task), shipment };
                lock(&self.state).running.insert(task.id.clone(), shipped);
            }
            Err(error) => tracing::warn!(task = task.name, %error, "the output of a task is not shipped"),
        }
    }

    /// Called when the task has ended and its output is in its files.
    pub(super) fn finish(self: &Arc<Self>, id: &str) {
        let mut state = lock(&self.state);
        let Some(Shipped { place, shipment }) = state.running.remove(id) else { return };
        shipment.finish();
        state.ended += 1;
        let number = state.ended;
        state.ending.insert(place.clone(), Ending { number, shipment });
        drop(state);
        crate::sys::task::spawn(Arc::clone(self).give_up(place, number));
    }

    /// Gives the sinks of an ended task time, then stops them unless the task was started again meanwhile.
    async fn give_up(self: Arc<Self>, place: Place, number: u64) {
        tokio::time::sleep(PATIENCE).await;
        let ending = {
            let mut state = lock(&self.state);
            let same = state.ending.get(&place).is_some_and(|ending| ending.number == number);
            if same { state.ending.remove(&place) } else { None }
        };
        if let Some(ending) = ending {
            ending.shipment.drain(Duration::ZERO).await;
        }
    }

    /// Stops all shipping at its current position; the next process continues from there.
    pub(super) async fn halt(&self) {
        let (running, ending) = {
            let mut state = lock(&self.state);
            (std::mem::take(&mut state.running), std::mem::take(&mut state.ending))
        };
        let running = running.into_values().map(|shipped| shipped.shipment);
        for shipment in running.chain(ending.into_values().map(|ending| ending.shipment)) {
            shipment.halt().await;
        }
    }
}
