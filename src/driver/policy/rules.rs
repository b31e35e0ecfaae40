//! The permitted values of each task key when a minimum is set: one table per driver.
//!
//! A new key needs a row: the tests iterate over the drivers' key tables. [`Rule::Harmless`] is for a key that can only make
//! the isolation tighter, or that does not affect it.

use std::path::{Component, Path};

use super::{Asked, LOOPBACK, Minimum, PIDS};
use crate::driver::DriverError;
use crate::driver::capabilities::bare;
use crate::driver::config::Reader;
use crate::driver::glob::matches;
use crate::logs::ship::{Sink, SinkError};
use crate::spec::{DriverConfig, LimitedResource, ResourceLimit};
use crate::sys::mutant;

/// The permitted values of a key.
pub(super) enum Rule {
    /// Any value.
    Harmless,
    /// Not set, or one of these texts or booleans.
    OneOf { default: &'static [&'static str], strict: &'static [&'static str] },
    /// The values that this function accepts.
    Check(fn(&Asked<'_>) -> Result<(), DriverError>),
}

/// The rule of one key.
pub(super) struct Row {
    pub(super) key: &'static str,
    pub(super) rule: Rule,
}

const fn harmless(key: &'static str) -> Row {
    Row { key, rule: Rule::Harmless }
}

const fn one_of(key: &'static str, values: &'static [&'static str]) -> Row {
    Row { key, rule: Rule::OneOf { default: values, strict: values } }
}

const fn check(key: &'static str, check: fn(&Asked<'_>) -> Result<(), DriverError>) -> Row {
    Row { key, rule: Rule::Check(check) }
}

/// Keys of all drivers whose tasks have an executor.
const ON_EXECUTOR: &[Row] = &[
    check("ulimit", ulimit),
    harmless("io"),
    harmless("logs"),
    check("log_sinks", sinks),
    harmless("on_executor_loss"),
];

/// Keys of the drivers that isolate.
const ISOLATED: &[Row] = &[
    check("isolation", level),
    check("pid_mode", mode),
    check("ipc_mode", mode),
    check("cap_add", capabilities),
    harmless("cap_drop"),
    harmless("work_dir"),
    check("seccomp", seccomp),
    Row { key: "user_namespace", rule: Rule::OneOf { default: &["true", "false"], strict: &["true"] } },
    harmless("unveil"),
    check("pids_limit", processes),
    one_of("no_new_privs", &["true"]),
    // It has the command's user and restrictions.
    harmless("init"),
];

/// Keys of `exec` alone.
const EXEC: &[Row] = &[harmless("command"), harmless("args")];

/// Keys of `java` alone. The JVM applies them inside the task.
const JAVA: &[Row] =
    &[harmless("class"), harmless("class_path"), harmless("jar_path"), harmless("jvm_options"), harmless("args")];

/// Keys of `raw_exec` alone, which runs only where it is named when a minimum is set. It does not isolate; its restrictions are
/// limits.
const RAW_EXEC: &[Row] = &[
    harmless("command"),
    harmless("args"),
    check("cgroup_v1_override", nothing),
    check("cgroup_v2_override", nothing),
    harmless("oom_score_adj"),
    harmless("work_dir"),
    harmless("denied_envvars"),
    harmless("pids_limit"),
    harmless("no_new_privs"),
];

/// Keys of `docker`.
const DOCKER: &[Row] = &[
    harmless("image"),
    harmless("command"),
    harmless("args"),
    harmless("entrypoint"),
    harmless("work_dir"),
    harmless("hostname"),
    harmless("labels"),
    harmless("advertise_ipv6_address"),
    check("network_mode", network),
    harmless("network_aliases"),
    harmless("ipv4_address"),
    harmless("ipv6_address"),
    harmless("mac_address"),
    harmless("ports"),
    harmless("port_map"),
    harmless("dns_servers"),
    harmless("dns_search_domains"),
    harmless("dns_options"),
    harmless("extra_hosts"),
    harmless("auth"),
    harmless("auth_soft_fail"),
    harmless("force_pull"),
    harmless("image_pull_timeout"),
    // An archive can give its images the names of images that other tasks use.
    check("load", nothing),
    check("cap_add", capabilities),
    harmless("cap_drop"),
    one_of("privileged", &["false"]),
    check("security_opt", security_options),
    harmless("readonly_rootfs"),
    check("userns_mode", mode),
    check("pid_mode", mode),
    check("ipc_mode", mode),
    check("uts_mode", mode),
    one_of("cgroupns", &["private"]),
    check("group_add", nothing),
    harmless("isolation"),
    harmless("cpu_hard_limit"),
    harmless("cpu_cfs_period"),
    harmless("cpuset_cpus"),
    harmless("memory_hard_limit"),
    check("oom_score_adj", oom_score),
    check("pids_limit", processes),
    harmless("shm_size"),
    check("ulimit", ulimit),
    check("sysctl", sysctl),
    harmless("storage_opt"),
    check("devices", nothing),
    check("mount", mounts),
    check("mounts", mounts),
    check("volumes", volumes),
    check("volume_driver", nothing),
    check("logging", logging),
    harmless("healthchecks"),
    harmless("init"),
    harmless("interactive"),
    harmless("tty"),
    one_of("runtime", &["runc", "crun", "runsc", "kata-runtime"]),
    harmless("container_exists_attempts"),
    harmless("logs"),
];

/// The tables of a driver; a foreign driver has those that it shares with agentbin's drivers.
fn tables(driver: &str) -> &'static [&'static [Row]] {
    match driver {
        "exec" => &[EXEC, ISOLATED, ON_EXECUTOR],
        "java" => &[JAVA, ISOLATED, ON_EXECUTOR],
        "raw_exec" => &[RAW_EXEC, ON_EXECUTOR],
        "docker" => &[DOCKER],
        _ => &[ISOLATED, ON_EXECUTOR],
    }
}

/// Whether a driver is one of agentbin's own, whose task keys all have a row.
#[must_use]
pub fn is_ours(driver: &str) -> bool {
    matches!(driver, "exec" | "java" | "raw_exec" | "docker")
}

/// The row of a key.
pub(super) fn find(driver: &str, key: &str) -> Option<&'static Row> {
    tables(driver).iter().copied().flatten().find(|row| row.key == key)
}

/// Accepts only an empty value.
fn nothing(asked: &Asked<'_>) -> Result<(), DriverError> {
    use serde_json::Value;
    let empty = match asked.reader.value(asked.key) {
        None => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.iter().all(|item| item.as_object().is_some_and(serde_json::Map::is_empty)),
        Some(Value::Object(object)) => object.is_empty(),
        Some(_) => false,
    };
    if empty { Ok(()) } else { Err(asked.loose(asked.shown(), "leave it out")) }
}

fn level(asked: &Asked<'_>) -> Result<(), DriverError> {
    let instead = match (asked.text()?.as_str(), asked.minimum) {
        ("" | "strict", _) | ("default", Minimum::Default) => return Ok(()),
        (_, Minimum::Default) => "write \"default\" or \"strict\", or leave it out".to_owned(),
        (_, Minimum::Strict) => format!("write \"strict\", or leave it out; {LOOPBACK}"),
    };
    Err(asked.loose(asked.shown(), &instead))
}

/// Namespaces selected by `pid_mode` and similar keys: private ones, and at `default` those that the operator lists.
fn mode(asked: &Asked<'_>) -> Result<(), DriverError> {
    let mode = asked.text()?;
    let own = match asked.key {
        "ipc_mode" => ["", "private", "none"].contains(&mode.as_str()),
        _ => ["", "private"].contains(&mode.as_str()),
    };
    let listed = || asked.policy.modes.get(asked.key).is_some_and(|list| list.iter().any(|glob| matches(glob, &mode)));
    if own || (!asked.is_strict() && listed()) {
        return Ok(());
    }
    Err(asked.loose(asked.shown(), "leave it out"))
}

/// The capabilities of root at `default`, without those that a job gets only on request.
const CAPABILITIES: [&str; 10] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "KILL",
    "NET_BIND_SERVICE",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// A container's capabilities apply to the host's user namespace, so at strict none may be added.
fn capabilities(asked: &Asked<'_>) -> Result<(), DriverError> {
    let none = asked.is_strict() && asked.reader.driver() == "docker";
    for name in asked.reader.strings(asked.key)? {
        let bare = bare(&name);
        if !bare.is_empty() && (none || !CAPABILITIES.contains(&bare.as_str())) {
            return Err(asked.loose(format!("[{name:?}]"), "leave it out"));
        }
    }
    Ok(())
}

/// A profile of the job may allow anything; only the operator's is accepted.
fn seccomp(asked: &Asked<'_>) -> Result<(), DriverError> {
    asked.one_of(&[asked.policy.seccomp.as_deref().unwrap_or("default")])
}

fn processes(asked: &Asked<'_>) -> Result<(), DriverError> {
    let most = i64::try_from(asked.policy.pids_max.unwrap_or(PIDS)).unwrap_or(i64::MAX);
    match asked.reader.integer(asked.key)? {
        None => Ok(()),
        // For Docker, 0 means not set.
        Some(0) if asked.reader.driver() == "docker" => Ok(()),
        Some(limit) if (1..=most).contains(&limit) => Ok(()),
        Some(limit) => Err(asked.loose(limit.to_string(), &format!("write 1 to {most}, or leave it out"))),
    }
}

/// Only resources whose use the task's cgroup accounts for. Core dumps, and priority over the host's own processes, are not
/// accounted for.
fn ulimit(asked: &Asked<'_>) -> Result<(), DriverError> {
    use LimitedResource as R;
    for (name, value) in asked.reader.pairs(asked.key)? {
        // An unknown limit is refused, or left to an engine that may know it.
        let known = R::from_name(&name);
        let counted = known.is_some_and(|resource| !matches!(resource, R::Core | R::Nice | R::Rtprio));
        let zero = |resource| {
            ResourceLimit::parse(resource, &value).is_some_and(|limit| (limit.soft, limit.hard) == (Some(0), Some(0)))
        };
        if !counted && !known.is_some_and(zero) {
            return Err(asked.loose(format!("{{ {name} = {value:?} }}"), "write 0, or leave it out"));
        }
    }
    Ok(())
}

/// A sink is written to as the driver's user, which can reach files and sockets of the host.
fn sinks(asked: &Asked<'_>) -> Result<(), DriverError> {
    for text in asked.reader.strings(asked.key)? {
        let sink: Sink = text.parse().map_err(|e: SinkError| asked.reader.error(asked.key, &e.to_string()))?;
        if !asked.policy.task_log_sinks.iter().any(|kind| kind == sink.kind()) && !mutant::on("d34") {
            return Err(asked.loose(format!("[\"{sink}\"]"), "leave it out"));
        }
    }
    Ok(())
}

/// The task's own network, or one of the engine's networks.
fn network(asked: &Asked<'_>) -> Result<(), DriverError> {
    let mode = asked.text()?;
    let kind = mode.split(':').next().unwrap_or_default().to_ascii_lowercase();
    if !mode.contains(':') && kind != "host" {
        return Ok(());
    }
    Err(asked.loose(asked.shown(), "write \"none\" or \"bridge\", or leave it out"))
}

fn security_options(asked: &Asked<'_>) -> Result<(), DriverError> {
    for option in asked.reader.strings(asked.key)? {
        let tightens = match option.split_once('=').or_else(|| option.split_once(':')) {
            None => option == "no-new-privileges",
            Some(("no-new-privileges", value)) => value == "true",
            Some(("seccomp", value)) => ["default", "builtin"].contains(&value),
            Some(("apparmor", value)) => value == "docker-default",
            Some(_) => false,
        };
        if !tightens {
            return Err(asked.loose(format!("[{option:?}]"), "leave it out"));
        }
    }
    Ok(())
}

fn oom_score(asked: &Asked<'_>) -> Result<(), DriverError> {
    match asked.reader.integer(asked.key)? {
        Some(score) if score < 0 => Err(asked.loose(score.to_string(), "write 0 or more, or leave it out")),
        _ => Ok(()),
    }
}

/// Sysctls that each network or ipc namespace has separately.
fn sysctl(asked: &Asked<'_>) -> Result<(), DriverError> {
    const OWN: [&str; 8] = [
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
        "kernel.sem",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
    ];
    for (name, value) in asked.reader.pairs(asked.key)? {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) && !name.contains("..");
        let own = name.starts_with("net.") || name.starts_with("fs.mqueue.") || OWN.contains(&name.as_str());
        if !(plain && own) {
            return Err(asked.loose(format!("{{ {name:?} = {value:?} }}"), "leave it out"));
        }
    }
    Ok(())
}

/// Whether a path, lexically, is below the task's own directory or is the allocation's shared directory. Symbolic links are
/// checked when it is mounted; a path below the shared directory is refused because another task could put a link there later.
fn is_own(source: &str) -> bool {
    let mut parts = vec!["."];
    for part in Path::new(source).components() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) => match name.to_str() {
                Some(name) => parts.push(name),
                None => return false,
            },
            // Above the allocation's directory.
            Component::ParentDir => {
                if parts.pop().is_none() {
                    return false;
                }
            }
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    parts.first() == Some(&".") || parts == ["alloc"]
}

const OWN_PATHS: &str = "write a relative path below the task's directory, or ../alloc";

/// `src:dst[:mode]`.
fn volumes(asked: &Asked<'_>) -> Result<(), DriverError> {
    const MODES: [&str; 10] = ["", "ro", "rw", "z", "Z", "nocopy", "private", "rprivate", "slave", "rslave"];
    for volume in asked.reader.strings(asked.key)? {
        let mut parts = volume.splitn(3, ':');
        let (source, mode) = (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default());
        if !is_own(source) {
            return Err(asked.loose(format!("[{volume:?}]"), OWN_PATHS));
        }
        if !mode.split(',').all(|mode| MODES.contains(&mode)) {
            return Err(asked.loose(format!("[{volume:?}]"), "write ro or rw as its mode"));
        }
    }
    Ok(())
}

fn mounts(asked: &Asked<'_>) -> Result<(), DriverError> {
    asked.reader.blocks(asked.key)?.iter().try_for_each(|block| mount(asked, block))
}

/// A named volume is shared with every task that knows its name, and its options may turn it into a bind mount of the host.
fn mount(asked: &Asked<'_>, block: &DriverConfig) -> Result<(), DriverError> {
    let reader = Reader::any(asked.reader.driver(), block);
    let text = |reader: &Reader<'_>, key: &str| reader.string(key).map(Option::unwrap_or_default);
    let (kind, source) = (text(&reader, "type")?, text(&reader, "source")?);
    let bind = reader.block("bind_options")?;
    let propagation = text(&Reader::any(asked.reader.driver(), &bind), "propagation")?;
    if propagation.contains("shared") {
        let instead = "write \"private\" as its propagation, or leave that out";
        return Err(asked.loose(format!("{{ propagation = {propagation:?} }}"), instead));
    }
    let options = reader.block("volume_options")?;
    let driver = Reader::any(asked.reader.driver(), &options).block("driver_config")?;
    let named = driver.values.values().any(|value| !value.is_null() && value.as_str() != Some(""));
    match kind.as_str() {
        "tmpfs" => Ok(()),
        "bind" if is_own(&source) => Ok(()),
        "bind" => Err(asked.loose(format!("{{ type = {kind:?}, source = {source:?} }}"), OWN_PATHS)),
        // The options are not shown because they may contain secrets.
        _ if named => Err(asked.loose("{ driver_config }", "leave it out")),
        _ if source.is_empty() => Ok(()),
        _ => Err(asked.loose(format!("{{ type = {kind:?}, source = {source:?} }}"), "leave the source out")),
    }
}

/// Log drivers that stay on this machine and write where the engine decides: the others connect, as root, to any address that a
/// job names.
fn logging(asked: &Asked<'_>) -> Result<(), DriverError> {
    let block = asked.reader.block(asked.key)?;
    let reader = Reader::any(asked.reader.driver(), &block);
    let mut unnamed = true;
    for key in ["type", "driver"] {
        let kind = reader.string(key)?.unwrap_or_default();
        unnamed &= kind.is_empty();
        if !["", "json-file", "local", "journald", "none"].contains(&kind.as_str()) {
            let instead = "write \"json-file\", \"local\", \"journald\" or \"none\", or leave it out";
            return Err(asked.loose(format!("{{ {key} = {kind:?} }}"), instead));
        }
    }
    // Without a type, the options apply to the engine's own log driver, which may be one that connects.
    if unnamed && !reader.pairs("config")?.is_empty() {
        return Err(asked.loose("{ config }", "write type = \"json-file\" beside it, or leave it out"));
    }
    Ok(())
}

/// All keys that have a row.
#[cfg(test)]
pub(super) fn keys(driver: &str) -> impl Iterator<Item = &'static str> {
    tables(driver).iter().copied().flatten().map(|row| row.key)
}
