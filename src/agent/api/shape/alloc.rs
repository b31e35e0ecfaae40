//! Allocations.

use serde_json::{Map, Value};

use super::metric::{metric, resources};
use super::{kept, lay, moment, null_if_empty};
use crate::agent::model::{AllocatedPort, AllocatedTask, Allocation, JobVersion, TaskEvent, TaskState};
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;

/// An allocation with its job and all details. `version` is `None` when the job was forgotten: then a job is made up from the
/// allocation, because clients read members of the job without a check.
pub(in super::super) fn allocation(alloc: &Allocation, version: Option<&JobVersion>) -> Value {
    let mut all = common(alloc);
    // Nomad sends Go's zero time here, and null in lists.
    for (name, state) in &alloc.task_states {
        let times =
            json!({"LastRestart": state.last_restart, "StartedAt": state.started_at, "FinishedAt": state.finished_at});
        if let Some(Value::Object(shown)) = all.get_mut("TaskStates").and_then(|states| states.get_mut(name)) {
            lay(shown, times);
        }
    }
    let networks = Networks::of(alloc, version);
    let shared = resources(&AllocatedTask::default(), alloc.allocated_resources.shared.disk_mb, &networks.group);
    let tasks = &alloc.allocated_resources.tasks;
    let total = AllocatedTask {
        cpu_shares: tasks.values().map(|task| task.cpu_shares).sum(),
        memory_mb: tasks.values().map(|task| task.memory_mb).sum(),
        memory_max_mb: tasks.values().map(|task| task.memory_max_mb.max(task.memory_mb)).sum(),
        reserved_cores: tasks.values().flat_map(|task| task.reserved_cores.clone()).collect(),
        lifecycle: None,
    };
    let task_resources: Map<String, Value> =
        tasks.iter().map(|(name, task)| (name.clone(), resources(task, 0, networks.of_task(name)))).collect();
    let over = json!({
        "Job": version.map_or_else(|| stand_in(alloc), |version| super::job(version).into()),
        "AllocModifyIndex": alloc.alloc_modify_index,
        "AllocatedResources": allocated(alloc, version, &networks),
        "Resources": resources(&total, alloc.allocated_resources.shared.disk_mb, &networks.group),
        "SharedResources": shared,
        "TaskResources": task_resources,
        "Metrics": metric(&alloc.metrics, &alloc.node_id),
        "DeploymentID": alloc.deployment_id,
        "PreviousAllocation": alloc.previous_allocation,
        "NetworkStatus": alloc.network_status.as_ref().map_or_else(no_network, |status| {
            let mut status = kept(status);
            status.insert("DNS".to_owned(), Value::Null);
            Value::Object(status)
        }),
        "SigningKeyID": "",
    });
    lay(&mut all, over);
    Value::Object(all)
}

fn stand_in(alloc: &Allocation) -> Value {
    let tasks: Vec<Value> =
        alloc.allocated_resources.tasks.keys().map(|name| json!({"Name": name, "Driver": ""})).collect();
    json!({
        "ID": alloc.job_id,
        "Name": alloc.job_id,
        "Namespace": alloc.namespace,
        "Version": alloc.job_version,
        "Type": "service",
        "Status": "dead",
        "Stop": true,
        "Priority": 50,
        "Datacenters": ["*"],
        "SubmitTime": 0,
        "CreateIndex": alloc.job_create_index,
        "TaskGroups": [{"Name": alloc.task_group, "Count": 1, "Tasks": tasks, "Networks": null, "Volumes": null}],
    })
}

fn no_network() -> Value {
    json!({"InterfaceName": "", "Address": "", "AddressIPv6": "", "DNS": null})
}

/// An allocation in a list.
pub(in super::super) fn stub(alloc: &Allocation, version: Option<&JobVersion>, resources: bool, states: bool) -> Value {
    let mut stub = common(alloc);
    let over = json!({
        "JobType": version.and_then(|version| version.spec.get("Type")).cloned().unwrap_or_else(|| "service".into()),
        "JobVersion": alloc.job_version,
    });
    lay(&mut stub, over);
    if resources {
        stub.insert("AllocatedResources".to_owned(), allocated(alloc, version, &Networks::of(alloc, version)));
    }
    if !states {
        stub.insert("TaskStates".to_owned(), Value::Null);
    }
    Value::Object(stub)
}

/// What both forms have.
fn common(alloc: &Allocation) -> Map<String, Value> {
    let states: Map<String, Value> = alloc.task_states.iter().map(|(name, s)| (name.clone(), task_state(s))).collect();
    let wanted = alloc.desired_transition;
    let value = json!({
        "ID": alloc.id,
        "EvalID": alloc.eval_id,
        "Name": alloc.name,
        "Namespace": alloc.namespace,
        "NodeID": alloc.node_id,
        "NodeName": alloc.node_name,
        "JobID": alloc.job_id,
        "TaskGroup": alloc.task_group,
        "DesiredStatus": alloc.desired_status,
        "DesiredDescription": alloc.desired_description,
        "DesiredTransition": {
            "Migrate": wanted.migrate,
            "Reschedule": wanted.reschedule,
            "ForceReschedule": wanted.force_reschedule,
            "NoShutdownDelay": wanted.no_shutdown_delay,
            "MigrateDisablePlacement": wanted.migrate_disable_placement,
        },
        "ClientStatus": alloc.client_status,
        "ClientDescription": alloc.client_description,
        "TaskStates": null_if_empty(states.into()),
        "DeploymentStatus": alloc.deployment_status,
        "FollowupEvalID": alloc.followup_eval_id,
        "NextAllocation": alloc.next_allocation,
        "RescheduleTracker": alloc.reschedule_tracker.as_ref().map(|tracker| {
            let mut tracker = kept(tracker);
            tracker.insert("LastReschedule".to_owned(), "ok".into());
            tracker
        }),
        "PreemptedAllocations": null,
        "PreemptedByAllocation": "",
        "CreateIndex": alloc.create_index,
        "ModifyIndex": alloc.modify_index,
        "CreateTime": alloc.create_time,
        "ModifyTime": alloc.modify_time,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn task_state(state: &TaskState) -> Value {
    json!({
        "State": state.state,
        "Failed": state.failed,
        "Restarts": state.restarts,
        "LastRestart": moment(state.last_restart),
        "StartedAt": moment(state.started_at),
        "FinishedAt": moment(state.finished_at),
        "Events": state.events.iter().map(event).collect::<Vec<_>>(),
        "Paused": "",
    })
}

/// An event with the members that older clients read, which are also in its details.
fn event(event: &TaskEvent) -> Value {
    let text = |key: &str| event.details.get(key).cloned().unwrap_or_default();
    let number = |key: &str| event.details.get(key).and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
    // In the details, a duration is written in Go's format.
    let nanos = |key: &str| {
        let text = event.details.get(key);
        text.and_then(|text| crate::http::query::duration(text)).map_or(0, |d| d.as_nanos() as i64)
    };
    json!({
        "Type": event.kind,
        "Time": event.time,
        "DisplayMessage": event.display_message,
        "Details": event.details,
        "Message": text("message"),
        "FailsTask": event.details.get("fails_task").is_some_and(|text| text == "true"),
        "RestartReason": text("restart_reason"),
        "SetupError": text("setup_error"),
        "DriverError": text("driver_error"),
        "DriverMessage": text("driver_message"),
        "ExitCode": number("exit_code"),
        "Signal": number("signal"),
        "KillReason": text("kill_reason"),
        "KillTimeout": nanos("kill_timeout"),
        "KillError": text("kill_error"),
        "StartDelay": nanos("start_delay").max(number("start_delay")),
        "DownloadError": text("download_error"),
        "ValidationError": text("validation_error"),
        "DiskLimit": number("disk_limit"),
        "FailedSibling": text("failed_sibling"),
        "VaultError": text("vault_renewal_error"),
        "TaskSignal": text("task_signal"),
        "TaskSignalReason": text("task_signal_reason"),
        "GenericSource": text("generic_source"),
    })
}

/// The allocated resources in Nomad's nesting.
fn allocated(alloc: &Allocation, version: Option<&JobVersion>, networks: &Networks) -> Value {
    let has = &alloc.allocated_resources;
    let tasks: BTreeMap<&str, Value> = has
        .tasks
        .iter()
        .map(|(name, task)| {
            let value = json!({
                "Cpu": {"CpuShares": task.cpu_shares, "ReservedCores": null_if_empty(task.reserved_cores.clone().into())},
                "Memory": {"MemoryMB": task.memory_mb, "MemoryMaxMB": task.memory_max_mb},
                "Networks": networks.of_task(name),
                "Devices": null,
            });
            (name.as_str(), value)
        })
        .collect();
    let group = version.and_then(|version| group(version, &alloc.task_group));
    let lifecycles: Map<String, Value> = group
        .and_then(|group| group.get("Tasks")?.as_array())
        .into_iter()
        .flatten()
        .filter_map(|task| {
            Some((task.get("Name")?.as_str()?.to_owned(), task.get("Lifecycle").cloned().unwrap_or_default()))
        })
        .collect();
    let ports: Vec<Value> = has.shared.ports.iter().take(networks.ports).map(port).collect();
    json!({
        "Tasks": tasks,
        "TaskLifecycles": lifecycles,
        "Shared": {"DiskMB": has.shared.disk_mb, "Networks": networks.group, "Ports": null_if_empty(ports.into())},
    })
}

fn port(port: &AllocatedPort) -> Value {
    let mut value = json!({"Label": port.label, "Value": port.value, "HostIP": port.host_ip});
    if port.to != 0 {
        value["To"] = port.to.into();
    }
    value
}

/// A group of a job's specification.
fn group<'a>(version: &'a JobVersion, name: &str) -> Option<&'a Value> {
    let groups = version.spec.get("TaskGroups")?.as_array()?;
    groups.iter().find(|group| group.get("Name").and_then(Value::as_str) == Some(name))
}

/// The networks of an allocation with the ports that it got.
struct Networks {
    /// Of the group.
    group: Value,
    /// Of its tasks, by their names, where they have some of their own.
    tasks: BTreeMap<String, Value>,
    /// How many of the ports are the group's: they stand before those of its tasks.
    ports: usize,
}

impl Networks {
    fn of(alloc: &Allocation, version: Option<&JobVersion>) -> Networks {
        let mut left: Vec<&AllocatedPort> = alloc.allocated_resources.shared.ports.iter().collect();
        let mut all = Networks { group: Value::Null, tasks: BTreeMap::new(), ports: left.len() };
        let Some(group) = version.and_then(|version| group(version, &alloc.task_group)) else { return all };
        all.group = with_ports(&group["Networks"], &mut left);
        for task in group["Tasks"].as_array().into_iter().flatten() {
            let before = left.len();
            let own = with_ports(&task["Resources"]["Networks"], &mut left);
            all.ports -= before - left.len();
            all.tasks.insert(task["Name"].as_str().unwrap_or_default().to_owned(), own);
        }
        all
    }

    fn of_task(&self, name: &str) -> &Value {
        self.tasks.get(name).unwrap_or(&Value::Null)
    }
}

/// Networks of a specification with the ports that they got, which are `left` for nobody else.
fn with_ports(networks: &Value, left: &mut Vec<&AllocatedPort>) -> Value {
    let mut networks = networks.as_array().cloned().unwrap_or_default();
    for network in &mut networks {
        let mut address = None;
        for kind in ["DynamicPorts", "ReservedPorts"] {
            for wanted in network.get_mut(kind).and_then(Value::as_array_mut).into_iter().flatten() {
                let Some(at) = left.iter().position(|port| wanted["Label"] == port.label) else { continue };
                let port = left.remove(at);
                wanted["Value"] = port.value.into();
                if port.to != 0 {
                    wanted["To"] = port.to.into();
                }
                address.get_or_insert(&port.host_ip);
            }
        }
        if let Some(address) = address {
            network["IP"] = address.as_str().into();
        }
    }
    null_if_empty(networks.into())
}
