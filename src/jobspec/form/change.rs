//! What becomes of the running allocations of a group when its job gets another version.

use serde_json::{Map, Value as Json};

type Object = Map<String, Json>;

/// What a new version of a job does to the allocations of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupChange {
    /// Nothing: the version is the same.
    None,
    /// They go on, and belong to the new version.
    InPlace,
    /// They are stopped, and others take their place.
    Destructive,
}

/// What a server sets in a job, which is not a change of it.
const SERVER: [&str; 12] = [
    "CreateIndex",
    "DispatchIdempotencyToken",
    "JobModifyIndex",
    "ModifyIndex",
    "NomadTokenID",
    "Stable",
    "Status",
    "StatusDescription",
    "Stop",
    "SubmitTime",
    "Version",
    "VersionTag",
];

/// Members of a group that its allocations cannot take over while they run.
const OF_GROUP: [&str; 2] = ["EphemeralDisk", "Volumes"];
/// Members of a network; of its ports also those of `OF_PORT`.
const OF_NETWORK: [&str; 5] = ["Mode", "MBits", "Hostname", "DNS", "CNI"];
/// Members of a port.
const OF_PORT: [&str; 4] = ["Label", "Value", "To", "HostNetwork"];
/// Members of a task.
const OF_TASK: [&str; 12] = [
    "Artifacts",
    "CSIPluginConfig",
    "Config",
    "Driver",
    "Env",
    "Identities",
    "Identity",
    "Secrets",
    "Templates",
    "User",
    "Vault",
    "VolumeMounts",
];
/// Members of a task's resources beside its networks.
const OF_RESOURCES: [&str; 7] = ["CPU", "Cores", "Devices", "MemoryMB", "MemoryMaxMB", "NUMA", "SecretsMB"];

/// Whether a job that was submitted is another one than the one that is there, so that it becomes a new version.
#[must_use]
pub fn is_changed(old: &Object, new: &Object) -> bool {
    let of = |job: &Object| -> Object {
        job.iter().filter(|(name, _)| !SERVER.contains(&name.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    of(old) != of(new)
}

/// What the new version of a job does to the allocations of a group. Both are as [`canonicalize`](super::canonicalize) makes them.
/// Whether there is still a place for them is the scheduler's question; a group that is on one side only is `Destructive`.
#[must_use]
pub fn group_change(old: &Object, new: &Object, group: &str) -> GroupChange {
    if !is_changed(old, new) {
        return GroupChange::None;
    }
    let (Some(was), Some(is)) = (named(old.get("TaskGroups"), group), named(new.get("TaskGroups"), group)) else {
        return GroupChange::Destructive;
    };
    let same = same(&OF_GROUP, was, is)
        && networks(was.get("Networks")) == networks(is.get("Networks"))
        && mesh(was) == mesh(is)
        && renders(was) == renders(is)
        && same_tasks(old, new, was, is);
    if same { GroupChange::InPlace } else { GroupChange::Destructive }
}

fn same_tasks(old: &Object, new: &Object, was: &Object, is: &Object) -> bool {
    let (before, after) = (tasks(was), tasks(is));
    before.len() == after.len()
        && before.iter().all(|task| {
            let name = task.get("Name").and_then(Json::as_str).unwrap_or_default();
            named(is.get("Tasks"), name)
                .is_some_and(|other| same_task(task, other) && meta([old, was, task]) == meta([new, is, other]))
        })
}

fn same_task(was: &Object, is: &Object) -> bool {
    let part = |task: &Object, name: &str| task.get(name).and_then(Json::as_object).cloned().unwrap_or_default();
    let (resources, others) = (part(was, "Resources"), part(is, "Resources"));
    same(&OF_TASK, was, is)
        && same(&OF_RESOURCES, &resources, &others)
        && networks(resources.get("Networks")) == networks(others.get("Networks"))
        && same(&["Disabled"], &part(was, "LogConfig"), &part(is, "LogConfig"))
        && renders(was) == renders(is)
}

/// Whether the restart policy of a group or a task renders templates anew; it is the only member of it that is not taken over.
fn renders(owner: &Object) -> bool {
    owner.get("RestartPolicy").is_some_and(|policy| policy["RenderTemplates"] == true)
}

/// The metadata that a task sees.
fn meta(owners: [&Object; 3]) -> Object {
    let all = owners.iter().filter_map(|owner| owner.get("Meta").and_then(Json::as_object)).flatten();
    let mut out: Object = all.map(|(key, value)| (key.clone(), value.clone())).collect();
    out.sort_keys();
    out
}

/// What of networks their allocations cannot take over: ports in no order.
fn networks(list: Option<&Json>) -> Vec<(Vec<Json>, Vec<String>)> {
    let pick = |object: &Json, names: &[&str]| -> Vec<Json> {
        names.iter().map(|name| object.get(*name).cloned().unwrap_or(Json::Null)).collect()
    };
    let ports = |network: &Json| {
        let lists = ["ReservedPorts", "DynamicPorts"].into_iter().filter_map(|name| network[name].as_array());
        let mut ports: Vec<String> = lists.flatten().map(|port| Json::from(pick(port, &OF_PORT)).to_string()).collect();
        ports.sort();
        ports
    };
    let list = list.and_then(Json::as_array).into_iter().flatten();
    list.map(|network| (pick(network, &OF_NETWORK), ports(network))).collect()
}

/// What services say of a service mesh, which is made of tasks.
fn mesh(owner: &Object) -> Vec<&Json> {
    let services = owner.get("Services").and_then(Json::as_array).into_iter().flatten();
    services.filter_map(|s| s.get("Connect")).filter(|connect| !connect.is_null()).collect()
}

fn same(names: &[&str], was: &Object, is: &Object) -> bool {
    let value = |object: &Object, name: &str| object.get(name).cloned().unwrap_or(Json::Null);
    names.iter().all(|name| value(was, name) == value(is, name))
}

fn tasks(group: &Object) -> Vec<&Object> {
    group.get("Tasks").and_then(Json::as_array).into_iter().flatten().filter_map(Json::as_object).collect()
}

fn named<'j>(list: Option<&'j Json>, name: &str) -> Option<&'j Object> {
    let items = list.and_then(Json::as_array)?.iter().filter_map(Json::as_object);
    items.into_iter().find(|o| o.get("Name").and_then(Json::as_str) == Some(name))
}
