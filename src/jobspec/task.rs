//! Tasks.

use serde_json::{Map, Value as Json};

use super::base::Base;
use super::diag::did_you_mean;
use super::files;
use super::name::{LONGEST_NAME, check_name};
use super::network;
use super::placement;
use super::restart::RestartFields;
use super::scheduling;
use super::schema::{FREE, LIFECYCLE, LOGS, RESOURCES, TASK};
use super::section::{Expanded, Section, Sink, expand, signal};
use super::service;
use super::value::Value;
use super::volume;
use crate::spec::collections::BTreeSet;
use crate::spec::{DriverConfig, JobType, Lifecycle, LifecycleHook, LogConfig, LogKeeping, Task, TaskResources};

/// Least memory of a task in MiB.
const MIN_MEMORY_MIB: i128 = 10;

/// What tasks need to know of the job and group that they stand in.
pub(super) struct Surroundings<'a> {
    pub kind: JobType,
    pub restart: RestartFields,
    pub disk_mib: u64,
    /// Directory that relative artifact sources start from.
    pub base_dir: Base<'a>,
    /// Job and group, which begin the name of a service that has none.
    pub prefix: String,
}

/// Decodes one task; what is wrong has been reported to the sink.
pub(super) fn decode(block: &Expanded<'_>, around: &Surroundings<'_>, sink: &Sink) -> Task {
    let name = block.labels.first().cloned().unwrap_or_default();
    let task = Section::open(format!("task \"{name}\""), block, &TASK, sink);
    // It is a directory's name, beside `alloc`.
    if matches!(name.as_str(), "" | "." | ".." | "alloc") || name.contains(['/', '\\', '\0']) {
        let message = format!(
            "\"{name}\" cannot be a task's name; it must not be empty, \"alloc\", \".\", \"..\" or contain slashes"
        );
        task.error(block.pos, message);
    }
    check_name(&task, block.pos, "task", &name, LONGEST_NAME);
    let constraints = placement::task_constraints(&task);
    let driver = task.string("driver").unwrap_or_default();
    check_name(&task, task.pos_of("driver"), "driver", &driver, LONGEST_NAME);
    if driver.is_empty() {
        task.error(task.pos_of("driver"), format!("{} has no driver; add driver = \"exec\"", task.name));
    }
    scheduling::check_scaling(&task);
    let resources = task.child("resources", &RESOURCES);
    let services = service::services(&task, &format!("{}-{name}", around.prefix));
    let templates = files::templates(&task, &name);
    let artifacts = files::artifacts(&task, &name, around.base_dir);
    Task {
        name,
        driver,
        config: config(&task),
        env: task.strings("env"),
        user: task.string("user").unwrap_or_default(),
        resources: limits(resources.as_ref()),
        network: resources.as_ref().and_then(network::of_task),
        logs: logs(&task, around.disk_mib),
        kill_signal: task
            .string("kill_signal")
            .filter(|s| !s.is_empty())
            .and_then(|s| signal(&task, "kill_signal", &s)),
        kill_timeout: task.duration("kill_timeout").unwrap_or(std::time::Duration::from_secs(5)),
        shutdown_delay: task.duration("shutdown_delay").unwrap_or_default(),
        restart: RestartFields::of(&task).over(&around.restart).policy(around.kind, &task),
        lifecycle: lifecycle(&task),
        leader: task.bool("leader").unwrap_or(false),
        meta: task.strings("meta"),
        constraints,
        templates,
        artifacts,
        volume_mounts: volume::mounts(&task),
        dispatch_payload: scheduling::dispatch_payload(&task),
        csi_plugin: volume::plugin(&task),
        services,
        pos: block.pos.clone(),
    }
}

fn limits(section: Option<&Section<'_>>) -> TaskResources {
    let mut out = TaskResources { cpu_mhz: 100, cores: 0, memory_mib: 300, memory_max_mib: 0, secrets_mib: 0 };
    let Some(section) = section else { return out };
    out.cpu_mhz = section.int("cpu", 1).unwrap_or(out.cpu_mhz);
    out.cores = section.int("cores", 0).unwrap_or(0);
    if out.cores > 0 && section.attr("cpu").is_some() {
        let message = format!("{} can ask for cpu or for cores, not for both", section.name);
        section.error(section.pos_of("cores"), message);
    }
    out.memory_mib = section.int("memory", MIN_MEMORY_MIB).unwrap_or(out.memory_mib);
    out.memory_max_mib = section.int("memory_max", -1).unwrap_or(out.memory_max_mib);
    if out.memory_max_mib > 0 && out.memory_max_mib < out.memory_mib {
        let message = format!(
            "\"memory_max\" in {} must be at least memory ({} MiB), 0 for none or -1 for no limit",
            section.name, out.memory_mib
        );
        section.error(section.pos_of("memory_max"), message);
    }
    out.secrets_mib = section.int("secrets", 0).unwrap_or(0);
    if i64::from(out.secrets_mib) > out.memory_mib {
        let message = format!("\"secrets\" in {} must be at most memory ({} MiB)", section.name, out.memory_mib);
        section.error(section.pos_of("secrets"), message);
    }
    out
}

fn logs(task: &Section<'_>, disk_mib: u64) -> LogConfig {
    let mut out = LogConfig { max_files: 10, max_file_size_mib: 10, disabled: false, keeping: LogKeeping::default() };
    let section = task.child("logs", &LOGS);
    if let Some(section) = &section {
        out.max_files = section.int("max_files", 1).unwrap_or(out.max_files);
        out.max_file_size_mib = section.int("max_file_size", 1).unwrap_or(out.max_file_size_mib);
        let (disabled, enabled) = (section.bool("disabled"), section.bool("enabled"));
        if let (Some(disabled), Some(enabled)) = (disabled, enabled)
            && disabled == enabled
        {
            section.error(section.pos_of("enabled"), "\"enabled\" contradicts \"disabled\"; keep disabled");
        } else if let Some(attr) = section.attr("enabled") {
            section.sink.warn(&attr.pos, "enabled is deprecated; use disabled");
        }
        out.disabled = disabled.unwrap_or(enabled == Some(false));
        out.keeping.compress = section.bool("compress").unwrap_or(false);
        out.keeping.max_age = section.duration("max_age").filter(|age| !age.is_zero());
    }
    let size = u64::from(out.max_files) * u64::from(out.max_file_size_mib);
    if size >= disk_mib {
        let pos = section.as_ref().map_or(task.pos, |s| s.pos);
        let message = format!(
            "the logs of {} may grow to {size} MiB, which must be less than the ephemeral disk of {disk_mib} MiB; \
             keep fewer or smaller files, or raise ephemeral_disk size",
            task.name
        );
        task.error(pos, message);
    }
    out
}

fn lifecycle(task: &Section<'_>) -> Option<Lifecycle> {
    let section = task.child("lifecycle", &LIFECYCLE)?;
    let sidecar = section.bool("sidecar").unwrap_or(false);
    let hook = match section.string("hook").unwrap_or_default().as_str() {
        "prestart" => LifecycleHook::Prestart,
        "poststart" => LifecycleHook::Poststart,
        "poststop" => LifecycleHook::Poststop,
        "" => {
            let message = format!("{} has no hook; use prestart, poststart or poststop", section.name);
            section.error(section.pos_of("hook"), message);
            LifecycleHook::Prestart
        }
        other => {
            let message = {
                let hint = did_you_mean(other, ["prestart", "poststart", "poststop"]);
                format!("unknown lifecycle hook \"{other}\"{hint}; use prestart, poststart or poststop")
            };
            section.error(section.pos_of("hook"), message);
            LifecycleHook::Prestart
        }
    };
    Some(Lifecycle { hook, sidecar })
}

fn config(task: &Section<'_>) -> DriverConfig {
    let Some(section) = task.child("config", &FREE) else {
        return DriverConfig { pos: task.pos.clone(), ..DriverConfig::default() };
    };
    let mut out = DriverConfig { pos: section.pos.clone(), ..DriverConfig::default() };
    let mut arguments = BTreeSet::new();
    for attr in section.attrs() {
        arguments.insert(attr.name.as_str());
        // Null is not there, as with Nomad.
        if let Some(value) = section.eval(&attr.value).filter(|value| *value != Value::Null) {
            out.values.insert(attr.name.clone(), wrapped(&value));
            out.positions.insert(attr.name.clone(), attr.pos.clone());
        }
    }
    for block in section.blocks() {
        if arguments.contains(block.kind) {
            let message = format!("\"{}\" is both an argument and a block of the config; keep one", block.kind);
            section.error(block.pos, message);
            continue;
        }
        let inner = nested_block(block, section.sink);
        append(&mut out.values, block.kind, inner);
        out.positions.entry(block.kind.to_owned()).or_insert_with(|| block.pos.clone());
    }
    out.values.sort_keys();
    out
}

/// A block becomes a list of objects, with one object around it per label.
fn nested_block(block: &Expanded<'_>, sink: &Sink) -> Json {
    let mut values = Map::new();
    for attr in &block.body.attrs {
        if let Some(value) = sink.ok(block.scope.eval(&attr.value)).filter(|value| *value != Value::Null) {
            values.insert(attr.name.clone(), wrapped(&value));
        }
    }
    for inner in expand(block.body, &block.scope, sink) {
        append(&mut values, inner.kind, nested_block(&inner, sink));
    }
    values.sort_keys();
    block.labels.iter().rev().fold(Json::Object(values), |inner, label| {
        Json::Object(Map::from_iter([(label.clone(), Json::Array(vec![inner]))]))
    })
}

fn append(values: &mut Map<String, Json>, key: &str, item: Json) {
    match values.get_mut(key) {
        Some(Json::Array(items)) => items.push(item),
        _ => {
            values.insert(key.to_owned(), Json::Array(vec![item]));
        }
    }
}

/// An object that an argument has reads like the block of that name, so that drivers know one form.
fn wrapped(value: &Value) -> Json {
    match value {
        Value::Object(_) => Json::Array(vec![members(value)]),
        Value::List(items) | Value::Set(items) => Json::Array(items.iter().map(members).collect()),
        other => other.to_json(),
    }
}

fn members(value: &Value) -> Json {
    match value {
        Value::Object(map) => Json::Object(map.iter().map(|(k, v)| (k.clone(), wrapped(v))).collect()),
        other => wrapped(other),
    }
}
