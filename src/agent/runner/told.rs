//! Reports about an allocation.

use std::time::SystemTime;

use crate::agent::engine::Report;
use crate::agent::model::{Allocation, ClientStatus, Nanos, NetworkStatus, Stamp, TaskEvent, TaskState, TaskStateName};
use crate::alloc::control::{Control, TaskLife, TaskNow};
use crate::net::Status;
use crate::spec::IntoMap as _;
use crate::spec::{self, EventKind, Job};

/// Nomad's description of a client status.
const fn described(status: ClientStatus) -> &'static str {
    match status {
        ClientStatus::Failed => "Failed tasks",
        ClientStatus::Running => "Tasks are running",
        ClientStatus::Complete => "All tasks have completed",
        _ => "No tasks have started",
    }
}

/// The current state.
pub(super) fn of(control: &Control, network: Option<&Status>) -> Report {
    let tasks = control.tasks();
    let is = |state: TaskLife| tasks.iter().any(|task| task.state == state);
    // Until all tasks have ended, a failed task only makes the others end.
    let client_status = match control.has_ended() {
        true if tasks.iter().any(|task| task.failed) => ClientStatus::Failed,
        true => ClientStatus::Complete,
        false if is(TaskLife::Running) || !is(TaskLife::Pending) => ClientStatus::Running,
        false => ClientStatus::Pending,
    };
    Report {
        id: control.id().to_string(),
        client_status,
        client_description: described(client_status).to_owned(),
        task_states: tasks.into_iter().map(|now| (now.name.clone(), task(now))).into_map(),
        network_status: network.map(|status| NetworkStatus {
            interface_name: status.interface.clone(),
            address: status.address.map(|ip| ip.to_string()).unwrap_or_default(),
            address_ipv6: status.address_ipv6.map(|ip| ip.to_string()).unwrap_or_default(),
        }),
    }
}

/// An allocation whose tasks have ended; it has failed if it was stopped because of its run time limit.
pub(super) fn ended(control: &Control, network: Option<&Status>, limit: Option<SystemTime>) -> Report {
    let report = of(control, network);
    let last = control.tasks().into_iter().filter_map(|task| task.finished_at).max();
    match (limit, last) {
        (Some(limit), Some(last)) if last >= limit => Report {
            client_status: ClientStatus::Failed,
            client_description: "Allocation ran for its max_run_duration and was ended".to_owned(),
            ..report
        },
        _ => report,
    }
}

/// An allocation whose tasks were not started: its setup failed, or it was stopped before.
pub(super) fn unstarted(control: &Control, why: Option<&str>) -> Report {
    let mut report = of(control, None);
    let mut ended = true;
    for state in report.task_states.values_mut().filter(|state| state.state != TaskStateName::Dead) {
        end(state, why);
        ended = false;
    }
    // An allocation that had ended under an earlier process does not need what could not be recovered.
    let failed = report.task_states.values().any(|state| state.failed) || why.is_some() && !ended;
    let client_status = if failed { ClientStatus::Failed } else { ClientStatus::Complete };
    Report { client_status, client_description: described(client_status).to_owned(), ..report }
}

/// An allocation that the engine cannot create at all.
pub(super) fn refused(alloc: &Allocation, job: &Job, why: &str) -> Report {
    let group = job.groups.iter().find(|group| group.name == alloc.task_group);
    let tasks = group.into_iter().flat_map(|group| &group.tasks);
    let mut task_states = tasks.map(|task| (task.name.clone(), TaskState::default())).into_map();
    for state in task_states.values_mut() {
        end(state, Some(why));
    }
    Report {
        id: alloc.id.clone(),
        client_status: ClientStatus::Failed,
        client_description: why.to_owned(),
        task_states,
        network_status: None,
    }
}

fn end(state: &mut TaskState, why: Option<&str>) {
    let now = Nanos::of(SystemTime::now());
    (state.state, state.failed, state.finished_at) = (TaskStateName::Dead, why.is_some(), Stamp(Some(now)));
    if let Some(why) = why {
        state.events.push(TaskEvent {
            kind: EventKind::SetupFailure.as_str().to_owned(),
            time: now,
            display_message: why.to_owned(),
            details: [("setup_error", why), ("fails_task", "true")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        });
    }
}

fn task(now: TaskNow) -> TaskState {
    let stamp = |time: Option<SystemTime>| Stamp(time.map(Nanos::of));
    TaskState {
        state: match now.state {
            TaskLife::Running => TaskStateName::Running,
            TaskLife::Dead => TaskStateName::Dead,
            TaskLife::Pending => TaskStateName::Pending,
        },
        failed: now.failed,
        restarts: now.restarts,
        last_restart: stamp(now.last_restart),
        started_at: stamp(now.started_at),
        finished_at: stamp(now.finished_at),
        events: now.events.into_iter().map(event).collect(),
    }
}

fn event(event: spec::TaskEvent) -> TaskEvent {
    let mut details = event.details;
    if event.kind == EventKind::TaskSetup {
        details.insert("message".to_owned(), event.message.clone());
    }
    TaskEvent {
        kind: event.kind.as_str().to_owned(),
        time: Nanos::of(event.time),
        display_message: event.message,
        details,
    }
}
