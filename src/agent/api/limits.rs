//! What a role may submit.

use serde_json::{Map, Value};

use super::Call;
use super::answer::Refusal;
use super::auth::Allowed;
use crate::agent::model::{JobVersion, Role};
use crate::agent::settings;
use crate::http::StatusCode;

/// Keys of a driver's `config` that only select what is run. Any other key may weaken a task's isolation or bypass it.
const HARMLESS: &[&str] = &[
    "args",
    "class",
    "class_path",
    "command",
    "entrypoint",
    "hostname",
    "image",
    "jar_path",
    "jvm_options",
    "labels",
    "ports",
    "work_dir",
];

/// The key that sets the isolation level at which tasks of the role `submit` run, for drivers that have it.
const ISOLATION: &str = "isolation";
const STRICT: &str = "strict";
/// The drivers that have it.
const ISOLATING: [&str; 2] = ["exec", "java"];
/// Network modes that do not reach the operator's networks.
const NETWORKS: [&str; 4] = ["", "host", "bridge", "none"];

/// Returns the specification if its sender may submit it. `manage` is equal to root; `submit` runs isolated tasks only, at
/// `strict`.
pub(super) fn admit(call: &Call, mut spec: Map<String, Value>) -> Result<Map<String, Value>, Refusal> {
    if call.caller.role < Role::Manage {
        allow(call, &spec)?;
        hold(&mut spec);
    }
    Ok(spec)
}

/// Checks that the operator has not reserved registrations, dispatches and scaling for the role `manage`.
pub(super) fn may_register(call: &Call) -> Result<(), Refusal> {
    if call.caller.role < Role::Manage && settings::is_on(&call.api.state.read()?, settings::REJECT)? {
        let text = "Job registration, dispatch, and scale are disabled by the scheduler configuration";
        return Err(Refusal::new(StatusCode::FORBIDDEN, text));
    }
    Ok(())
}

/// Checks that the sender may start tasks of an existing job, whoever submitted it; a missing job is handled by the caller.
pub(super) fn admit_again(call: &Call, job: Option<&JobVersion>) -> Result<(), Refusal> {
    match job {
        Some(job) if call.caller.role < Role::Manage => allow(call, &job.spec),
        _ => Ok(()),
    }
}

fn allow(call: &Call, spec: &Map<String, Value>) -> Result<(), Refusal> {
    check(spec, &call.api.security.submit).map_err(|why| Refusal::new(StatusCode::FORBIDDEN, why))
}

/// Sets the isolation level of all tasks whose drivers have one.
fn hold(spec: &mut Map<String, Value>) {
    let groups = spec.get_mut("TaskGroups").and_then(Value::as_array_mut).into_iter().flatten();
    for task in groups.filter_map(|group| group.get_mut("Tasks")?.as_array_mut()).flatten() {
        if ISOLATING.iter().any(|driver| task["Driver"] == *driver) {
            if !task["Config"].is_object() {
                task["Config"] = Value::Object(Map::new());
            }
            task["Config"][ISOLATION] = STRICT.into();
        }
    }
}

fn check(spec: &Map<String, Value>, allowed: &Allowed) -> Result<(), String> {
    for group in objects(spec.get("TaskGroups")) {
        for network in objects(group.get("Networks")) {
            let mode = text(network, "Mode");
            if !NETWORKS.contains(&mode) {
                return Err(needs(&format!("the network mode {mode}")));
            }
        }
        let volumes = group.get("Volumes").and_then(Value::as_object).into_iter().flat_map(Map::values);
        for volume in volumes.filter_map(Value::as_object) {
            let source = text(volume, "Source");
            // A per-allocation volume has another name, with an index appended.
            let is_per_alloc = volume.get("PerAlloc").is_some_and(|own| *own == true);
            if is_per_alloc || !allowed.volumes.contains(source) {
                return Err(needs(&format!("the volume {source}")));
            }
            // What the operator lists is a host volume; another thing may have the same name.
            let kind = text(volume, "Type");
            if !matches!(kind, "" | "host") {
                return Err(needs(&format!("the volume {source} of type {kind}")));
            }
        }
        objects(group.get("Tasks")).try_for_each(|task| check_task(task, allowed))?;
    }
    Ok(())
}

fn check_task(task: &Map<String, Value>, allowed: &Allowed) -> Result<(), String> {
    let driver = text(task, "Driver");
    if !allowed.drivers.contains(driver) {
        return Err(needs(&format!("the driver {driver}")));
    }
    // A name may be a variable, an alias of root, or add a group of the host. An image has its own users.
    let user = text(task, "User");
    if driver != "docker" && !matches!(user, "" | "nobody") {
        return Err(needs(&format!("the user {user}")));
    }
    for (key, value) in task.get("Config").and_then(Value::as_object).into_iter().flatten() {
        let is_strict = key == ISOLATION && value == STRICT && ISOLATING.contains(&driver);
        if !is_strict && !HARMLESS.contains(&key.as_str()) {
            return Err(needs(&format!("{driver}'s config key {key}")));
        }
    }
    // It is mounted on the machine, and is told the secrets of the volumes of all jobs.
    if let Some(plugin) = task.get("CSIPluginConfig").and_then(Value::as_object) {
        return Err(needs(&format!("the CSI plugin {}", text(plugin, "ID"))));
    }
    for artifact in objects(task.get("Artifacts")) {
        let source = text(artifact, "GetterSource");
        if !is_remote(source) {
            return Err(needs(&format!("the artifact source {source} (one that begins with https:// does not)")));
        }
    }
    let is_bidirectional = |mount: &Map<String, Value>| text(mount, "PropagationMode") == "bidirectional";
    if objects(task.get("VolumeMounts")).any(is_bidirectional) {
        return Err(needs("a bidirectional mount"));
    }
    Ok(())
}

/// Whether an artifact is fetched over http whatever its variables contain: never a file of this machine, and never with its
/// keys.
fn is_remote(source: &str) -> bool {
    let address = source.split_once("::").filter(|(getter, _)| matches!(*getter, "git" | "s3" | "http" | "https"));
    let address = address.map_or(source, |(_, address)| address);
    ["https://", "http://"].iter().any(|scheme| address.starts_with(scheme))
}

fn needs(what: &str) -> String {
    format!("Permission denied: {what} needs the role manage")
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn objects(list: Option<&Value>) -> impl Iterator<Item = &Map<String, Value>> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(task: &Value, mut group: Value) -> Map<String, Value> {
        group["Tasks"] = json!([task]);
        json!({"TaskGroups": [group]}).as_object().unwrap().clone()
    }

    #[test]
    fn submit_runs_isolated_tasks_and_nothing_that_reaches_past_them() {
        let plain = json!({"Driver": "exec", "Config": {"command": "/bin/true"}});
        assert_eq!(check(&job(&plain, json!({})), &Allowed::default()), Ok(()));
        let refused = [
            (json!({"Driver": "raw_exec"}), json!({}), "driver raw_exec"),
            (json!({"Driver": "docker"}), json!({}), "driver docker"),
            (json!({"Driver": "exec", "User": "root"}), json!({}), "user root"),
            (json!({"Driver": "exec", "Config": {"pid_mode": "host"}}), json!({}), "pid_mode"),
            (
                json!({"Driver": "exec", "VolumeMounts": [{"PropagationMode": "bidirectional"}]}),
                json!({}),
                "bidirectional",
            ),
            (plain.clone(), json!({"Volumes": {"v": {"Source": "data"}}}), "volume data"),
            // A plugin is mounted on the machine, and is told the secrets of volumes of all jobs.
            (
                json!({"Driver": "exec", "CSIPluginConfig": {"ID": "disk", "Type": "monolith"}}),
                json!({}),
                "the CSI plugin disk",
            ),
            (plain.clone(), json!({"Networks": [{"Mode": "cni/x"}]}), "cni/x"),
            (plain.clone(), json!({"Networks": [{"Mode": "container:x"}]}), "container:x"),
            // In any spelling: a variable of the job, root's uid, a group of the host.
            (json!({"Driver": "exec", "User": "${NOMAD_META_who}"}), json!({}), "user ${NOMAD_META_who}"),
            (json!({"Driver": "exec", "User": "00"}), json!({}), "user 00"),
            (json!({"Driver": "exec", "User": "nobody:shadow"}), json!({}), "user nobody:shadow"),
            (json!({"Driver": "exec", "Config": {"isolation": "default"}}), json!({}), "isolation"),
        ];
        for (task, group, why) in refused {
            let error = check(&job(&task, group), &Allowed::default()).unwrap_err();
            assert!(error.contains("Permission denied") && error.contains(why), "{error}");
        }
        let sources = [
            "/etc/shadow",
            "file:///etc/shadow",
            "file::/etc/shadow",
            "etc/shadow",
            "${NOMAD_META_x}",
            "git::/srv/git",
        ];
        for source in sources.into_iter().chain(["git@host:key", "github.com/..", "x::https://h/f", ""]) {
            let task = json!({"Driver": "exec", "Artifacts": [{"GetterSource": source}]});
            let error = check(&job(&task, json!({})), &Allowed::default()).unwrap_err();
            assert!(error.contains("the artifact source"), "{source}: {error}");
        }
        for source in ["https://h/${NOMAD_META_x}", "http://h/f", "git::https://h/r", "s3::https://h/b/k"] {
            let task = json!({"Driver": "exec", "Artifacts": [{"GetterSource": source}]});
            assert_eq!(check(&job(&task, json!({})), &Allowed::default()), Ok(()), "{source}");
        }
        let with_volume = Allowed { volumes: ["data".to_owned()].into(), ..Allowed::default() };
        assert_eq!(check(&job(&plain, json!({"Volumes": {"v": {"Source": "data"}}})), &with_volume), Ok(()));
        let per_alloc = job(&plain, json!({"Volumes": {"v": {"Source": "data", "PerAlloc": true}}}));
        assert!(check(&per_alloc, &with_volume).is_err());
        // What the operator lists is a host volume: another thing may have the same name.
        let of = |kind: &str| job(&plain, json!({"Volumes": {"v": {"Source": "data", "Type": kind}}}));
        assert_eq!(check(&of("host"), &with_volume), Ok(()));
        assert!(check(&of("csi"), &with_volume).unwrap_err().contains("the volume data of type csi"));
    }

    #[test]
    fn submitted_tasks_are_held_at_strict() {
        for config in [json!(null), json!({}), json!({"command": "x"}), json!({"isolation": "strict"})] {
            let mut spec = job(&json!({"Driver": "exec", "Config": config}), json!({}));
            hold(&mut spec);
            assert_eq!(spec["TaskGroups"][0]["Tasks"][0]["Config"]["isolation"], "strict");
            assert_eq!(check(&spec, &Allowed::default()), Ok(()));
        }
        let mut docker = job(&json!({"Driver": "docker", "Config": {"image": "x"}}), json!({}));
        hold(&mut docker);
        assert_eq!(docker["TaskGroups"][0]["Tasks"][0]["Config"], json!({"image": "x"}));
    }
}
