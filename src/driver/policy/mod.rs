//! What an operator demands of every task of a driver: `isolation_minimum` and `allow_drivers`.
//!
//! A minimum takes precedence over everything else that the plugin's configuration allows to a job. The permitted values of
//! each task key are in one table per driver, in `rules`; a key without a row there is refused.

pub(super) mod devices;
mod rules;

use crate::spec::collections::BTreeMap;

use serde_json::Value;

pub use self::rules::is_ours;
use self::rules::{Row, Rule};
use super::config::Reader;
use super::{DriverError, Host};
use crate::spec::{DriverConfig, Mount, Propagation};
use crate::sys::mutant;
use crate::wire::hclspec::Spec;
use crate::wire::schema;

/// Plugin keys that every driver has.
pub(super) const KEYS: [&str; 2] = [MINIMUM, ALLOW_DRIVERS];
const MINIMUM: &str = "isolation_minimum";
const ALLOW_DRIVERS: &str = "allow_drivers";
/// Plugin keys with values that undo a level's restrictions for all of its tasks: together with a minimum they are an error.
const OVERRIDDEN: [(&str, &str); 5] = [
    ("isolation", "nomad"),
    ("seccomp", "unconfined"),
    ("allow_writable_programs", "true"),
    ("host_ids", "shared"),
    // With it the agent copies the host's /etc into the task's directory, including files that only root may read.
    ("fs_isolation", "chroot"),
];
/// Limit of processes and threads for a task that sets none; with a minimum set, the highest possible limit.
pub(super) const PIDS: u64 = 4096;
/// Longest part of a value shown in an error, in characters.
const SHOWN: usize = 120;
/// Added to every error that recommends `strict`.
const LOOPBACK: &str = "without a network of its group a strict task has loopback only";

/// Their schema.
pub(super) fn schema() -> [(&'static str, Spec); 2] {
    [
        (MINIMUM, schema::attr(MINIMUM, "string", false)),
        (ALLOW_DRIVERS, schema::attr(ALLOW_DRIVERS, "list(string)", false)),
    ]
}

/// The lowest isolation level that a task may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Minimum {
    /// As `isolation = "default"`.
    Default,
    /// As `isolation = "strict"`.
    Strict,
}

impl Minimum {
    /// `default` or `strict`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Minimum::Default => "default",
            Minimum::Strict => "strict",
        }
    }
}

/// Who sets the minimum, for error messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The configuration of the agent's plugin.
    Plugin,
    /// The command line of `agentbin run`.
    CommandLine,
}

impl By {
    pub(super) const fn of(host: Host) -> By {
        if host.has_foreign_jobs { By::Plugin } else { By::CommandLine }
    }
}

/// The operator's requirements.
#[derive(Debug, Clone, Default)]
pub(super) struct Policy {
    pub(super) minimum: Option<Minimum>,
    pub(super) allow_drivers: Vec<String>,
    /// For `pid_mode` and similar task keys: the values in the operator's lists, with `*` for any text.
    pub(super) modes: BTreeMap<&'static str, Vec<String>>,
    /// The plugin's `seccomp`.
    pub(super) seccomp: Option<String>,
    /// The plugin's `pids_limit`.
    pub(super) pids_max: Option<u64>,
    /// The plugin's `task_log_sinks`.
    pub(super) task_log_sinks: Vec<String>,
    /// The plugin's `allow_devices`.
    pub(super) allow_devices: Option<Vec<String>>,
}

/// Whether a driver runs tasks at this minimum only when the operator names the driver: it does not isolate a task as that
/// level requires, or how it does is not known.
fn needs_a_word(driver: &str, minimum: Minimum) -> bool {
    match driver {
        "exec" | "java" => false,
        // The user namespace and the seccomp filter are configured in the engine.
        "docker" => minimum == Minimum::Strict,
        _ => true,
    }
}

/// Why a driver runs no tasks at this minimum unless `allow_drivers` names it; `None` if it does.
#[must_use]
fn closed(driver: &str, needs_a_word: bool, minimum: Minimum, allowed: &[String], by: By) -> Option<String> {
    if !needs_a_word || allowed.iter().any(|name| name == driver) || mutant::on("d32") {
        return None;
    }
    let (demand, instead) = match by {
        By::Plugin => {
            let demand = format!("{MINIMUM} = {:?} of plugin {driver:?}", minimum.name());
            (demand, format!("{ALLOW_DRIVERS} = [{driver:?}] of that plugin allows it"))
        }
        By::CommandLine => {
            let demand = format!("--isolation-minimum {}", minimum.name());
            (demand, format!("--allow-driver {driver} allows it"))
        }
    };
    Some(format!("driver {driver:?} does not isolate as {demand} demands; use the driver \"exec\", or {instead}"))
}

/// The same check for the drivers of `agentbin run`: why a driver that is not agentbin's own runs no tasks at this minimum. An
/// external plugin is not agentbin's own, whatever its name.
///
/// # Errors
/// The text for the user who runs the job.
pub fn admit(driver: &str, is_ours: bool, minimum: Minimum, allowed: &[String]) -> Result<(), String> {
    let needs_a_word = !is_ours || needs_a_word(driver, minimum);
    closed(driver, needs_a_word, minimum, allowed, By::CommandLine).map_or(Ok(()), Err)
}

impl Policy {
    /// Reads the keys that every driver has.
    pub(super) fn read(reader: &Reader<'_>) -> Result<Policy, DriverError> {
        let minimum = match reader.string(MINIMUM)?.as_deref() {
            None | Some("") => None,
            Some("default") => Some(Minimum::Default),
            Some("strict") => Some(Minimum::Strict),
            Some(other) => {
                let text = format!("{MINIMUM} must be \"default\" or \"strict\", got {other:?}");
                return Err(reader.error(MINIMUM, &text));
            }
        };
        for (key, value) in OVERRIDDEN.iter().filter(|_| minimum.is_some()) {
            if reader.string(key)?.as_deref() == Some(value) {
                let text = format!("{key} = {value:?} is overridden by {MINIMUM}; remove one of the two");
                return Err(reader.error(key, &text));
            }
        }
        Ok(Policy { minimum, allow_drivers: reader.strings(ALLOW_DRIVERS)?, ..Policy::default() })
    }

    /// Why this driver runs no tasks.
    pub(super) fn closed(&self, driver: &str, by: By) -> Option<String> {
        let minimum = self.minimum?;
        closed(driver, needs_a_word(driver, minimum), minimum, &self.allow_drivers, by)
    }

    /// Refuses a task that asks for less than the minimum.
    ///
    /// # Errors
    /// [`DriverError::Config`], with the task's key, its value, the operator's key, and what to write instead.
    pub(super) fn check(&self, driver: &'static str, task: &DriverConfig, by: By) -> Result<(), DriverError> {
        let Some(minimum) = self.minimum.filter(|_| !mutant::on("d31")) else { return Ok(()) };
        let reader = Reader::any(driver, task);
        if let Some(why) = self.closed(driver, by) {
            return Err(reader.error("", &why));
        }
        for key in task.values.keys().filter(|key| reader.has(key)) {
            let asked = Asked { reader, key, minimum, policy: self, by };
            match rules::find(driver, key) {
                Some(Row { rule: Rule::Harmless, .. }) => {}
                Some(Row { rule: Rule::OneOf { default, strict }, .. }) => {
                    asked.one_of(if minimum == Minimum::Strict { strict } else { default })?;
                }
                Some(Row { rule: Rule::Check(check), .. }) => check(&asked)?,
                // Nothing is known about the keys of a foreign driver that the operator has named.
                None if rules::is_ours(driver) => return Err(asked.loose(asked.shown(), "leave it out")),
                None => {}
            }
        }
        Ok(())
    }

    /// The same for the volumes that an agent passes outside of the configuration.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub(super) fn check_mounts(&self, driver: &'static str, mounts: &[Mount], by: By) -> Result<(), DriverError> {
        let Some(minimum) = self.minimum else { return Ok(()) };
        mounts.iter().try_for_each(|mount| check_mount(driver, minimum, mount, by)).map_err(DriverError::Config)
    }
}

/// The same for one volume of `agentbin run`, before anything starts.
///
/// # Errors
/// The setting that is looser than `--isolation-minimum` allows, and the fix.
pub fn admit_mount(driver: &str, minimum: Minimum, mount: &Mount) -> Result<(), String> {
    if is_ours(driver) { check_mount(driver, minimum, mount, By::CommandLine) } else { Ok(()) }
}

fn check_mount(driver: &str, minimum: Minimum, mount: &Mount, by: By) -> Result<(), String> {
    let (what, instead) = if mount.propagation == Propagation::Bidirectional {
        ("propagation_mode = \"bidirectional\"", "propagation_mode = \"private\"")
    } else if minimum == Minimum::Strict && !mount.readonly {
        ("read_only = false", "read_only = true")
    } else {
        return Ok(());
    };
    let (place, demand) = (shorten(&format!("{:?}", mount.task_path)), demand(minimum, driver, by));
    Err(format!(
        "task of driver {driver}: volume_mount {place}: {what} is looser than {demand} allows; write {instead}"
    ))
}

/// The operator's key with its value.
fn demand(minimum: Minimum, driver: &str, by: By) -> String {
    match by {
        By::Plugin => format!("{MINIMUM} = {:?} of plugin {driver:?}", minimum.name()),
        By::CommandLine => format!("--isolation-minimum {}", minimum.name()),
    }
}

/// A job's text for use in an error line: of bounded length, and without control characters.
fn shorten(text: &str) -> String {
    let mut shown = String::new();
    for (number, letter) in text.chars().enumerate() {
        if number == SHOWN {
            shown.push('…');
            break;
        }
        if letter.is_control() { shown.extend(letter.escape_unicode()) } else { shown.push(letter) }
    }
    shown
}

/// One key of a task that is being checked, and the context.
struct Asked<'a> {
    reader: Reader<'a>,
    key: &'a str,
    minimum: Minimum,
    policy: &'a Policy,
    by: By,
}

impl Asked<'_> {
    /// Its value, as in the job.
    fn shown(&self) -> String {
        self.reader.value(self.key).map_or_else(String::new, Value::to_string)
    }

    fn text(&self) -> Result<String, DriverError> {
        self.reader.string(self.key).map(Option::unwrap_or_default)
    }

    fn is_strict(&self) -> bool {
        self.minimum == Minimum::Strict
    }

    /// An error that refuses `value`, which is the key's value or a part of it.
    fn loose(&self, value: impl AsRef<str>, instead: &str) -> DriverError {
        let (key, value) = (self.key, shorten(value.as_ref()));
        let demand = demand(self.minimum, self.reader.driver(), self.by);
        let text = format!("{} = {value} is looser than {demand} allows; {instead}", shorten(key));
        self.reader.error(key, &text)
    }

    fn one_of(&self, values: &[&str]) -> Result<(), DriverError> {
        let value = self.text()?;
        if value.is_empty() || values.contains(&value.as_str()) {
            return Ok(());
        }
        let known: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
        let instead = format!("write {}, or leave it out", known.join(" or "));
        Err(self.loose(self.shown(), &instead))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::driver::{DockerDriver, Driver, ExecDriver, JavaDriver, RawExecDriver, Settings};
    use crate::spec::collections::BTreeSet;
    use crate::wire::hclspec::spec::Block;

    fn drivers() -> [Box<dyn Driver>; 4] {
        let settings = Settings {
            cgroups: crate::cgroup::CgroupFs::detect(std::path::Path::new("/sys/fs/cgroup")).unwrap(),
            compute: crate::executor::Compute::default(),
            socket_dir: "/nonexistent".into(),
            host: Host::NOMAD,
        };
        [
            Box::new(ExecDriver::new(settings.clone())),
            Box::new(JavaDriver::new(settings.clone())),
            Box::new(RawExecDriver::new(settings.clone())),
            Box::new(DockerDriver::new(settings)),
        ]
    }

    /// All keys of a schema; keys of nested blocks are prefixed with the blocks' names.
    fn paths(spec: &Spec, above: &str, into: &mut BTreeSet<String>) {
        match spec.block.as_ref() {
            Some(Block::Object(object)) => {
                for (name, nested) in &object.attributes {
                    let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
                    into.insert(path.clone());
                    paths(nested, &path, into);
                }
            }
            Some(Block::BlockValue(block)) => paths(block.nested.as_ref().unwrap(), above, into),
            Some(Block::BlockList(block)) => paths(block.nested.as_ref().unwrap(), above, into),
            Some(Block::Default(default)) => paths(default.primary.as_ref().unwrap(), above, into),
            _ => {}
        }
    }

    fn config(values: &Value) -> DriverConfig {
        DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() }
    }

    /// A policy that names every driver, so that each refusal is due to a key.
    fn policy(minimum: Minimum) -> Policy {
        Policy {
            minimum: Some(minimum),
            allow_drivers: ["raw_exec", "docker"].map(str::to_owned).to_vec(),
            ..Policy::default()
        }
    }

    fn refusal(policy: &Policy, driver: &'static str, values: &Value) -> String {
        let checked = policy.check(driver, &config(values), By::Plugin);
        checked.err().map(|error| error.to_string()).unwrap_or_default()
    }

    /// For each key with a rule: the values refused at `default` (and so at `strict`), and the values allowed at both.
    fn loose(driver: &str, key: &str) -> (Vec<Value>, Vec<Value>) {
        let text = |texts: &[&str]| texts.iter().map(|text| json!(text)).collect::<Vec<_>>();
        let lists = |texts: &[&str]| texts.iter().map(|text| json!([text])).collect::<Vec<_>>();
        let bind = |source: &str| json!([{ "type": "bind", "source": source, "target": "/x" }]);
        match key {
            "isolation" => (text(&["nomad", "none", "Strict"]), text(&["strict", ""])),
            "pid_mode" => (text(&["host", "container:x", "HOST"]), text(&["", "private"])),
            "ipc_mode" => (text(&["host", "container:x", "shareable"]), text(&["", "private"])),
            "userns_mode" | "uts_mode" => (text(&["host", "keep-id"]), text(&[""])),
            "cgroupns" => (text(&["host", "Host"]), text(&["private"])),
            "privileged" => (vec![json!(true), json!("true")], vec![json!(false)]),
            "cap_add" => (
                lists(&["net_admin", "CAP_SYS_ADMIN", "all", "mknod", "fsetid", "setfcap", "net_raw", "cap_cap_chown"]),
                vec![json!([]), json!([""])],
            ),
            "seccomp" => (text(&["unconfined", "/etc/p.json", "local/p.json"]), text(&["default", ""])),
            "no_new_privs" => (vec![json!(false), json!("false")], vec![json!(true)]),
            "pids_limit" if driver == "docker" => (vec![json!(-1), json!(4097)], vec![json!(0), json!(4096)]),
            "pids_limit" => (vec![json!(0), json!(4097)], vec![json!(1), json!(4096)]),
            "ulimit" => (
                vec![
                    json!([{ "core": "1" }]),
                    json!([{ "nofile": "9", "CORE": "unlimited" }]),
                    json!([{ "rlimit_core": "0:1" }]),
                    json!([{ "rtprio": "50" }]),
                    json!([{ "nice": "40" }]),
                    json!([{ "new": "1" }]),
                ],
                vec![json!([{ "nofile": "9:10", "core": "0", "memlock": "-1" }])],
            ),
            "log_sinks" => {
                (lists(&["file:/etc/cron.d/x", "syslog:unix:/run/docker.sock", "journald:"]), vec![json!([])])
            }
            "cgroup_v1_override" => (vec![json!([{ "pids": "/" }])], vec![json!([])]),
            "cgroup_v2_override" => (text(&["/"]), text(&[""])),
            "network_mode" => (
                text(&["host", "Host", "container:x", "ns:/proc/1/ns/net"]),
                text(&["", "none", "bridge", "default", "web"]),
            ),
            "load" => (text(&["image.tar"]), text(&[""])),
            "security_opt" => (
                lists(&[
                    "seccomp=unconfined",
                    "seccomp:unconfined",
                    "seccomp=/etc/p.json",
                    "apparmor=unconfined",
                    "apparmor:mine",
                    "label=disable",
                    "label:disable",
                    "systempaths=unconfined",
                    "no-new-privileges=false",
                    "no-new-privileges:false",
                    "writable-cgroups=true",
                ]),
                lists(&["no-new-privileges", "no-new-privileges:true", "seccomp=builtin", "apparmor=docker-default"]),
            ),
            "group_add" => (lists(&["0", "docker"]), vec![json!([])]),
            "oom_score_adj" => (vec![json!(-1), json!("-1000")], vec![json!(0), json!(500)]),
            "sysctl" => (
                vec![
                    json!([{ "kernel.core_pattern": "|/x" }]),
                    json!([{ "vm.overcommit_memory": "1" }]),
                    json!([{ "net.core.somaxconn": "1", "kernel.panic": "1" }]),
                    json!([{ "net.../kernel": "1" }]),
                ],
                vec![json!([{ "net.core.somaxconn": "1", "kernel.sem": "1", "fs.mqueue.msg_max": "1" }])],
            ),
            "devices" => (vec![json!([{ "host_path": "/dev/sda" }])], vec![json!([])]),
            "mount" | "mounts" => (
                vec![
                    bind("/etc"),
                    bind("../.."),
                    bind("../other/secrets"),
                    bind("../alloc/data"),
                    bind("local/../../../x"),
                    json!([{ "type": "tmpfs" }, { "type": "volume", "source": "of-others" }]),
                    json!({ "source": "of-others" }),
                    json!([{ "volume_options": [{ "driver_config": [{ "name": "local" }] }] }]),
                    json!([{ "volume_options": { "driver_config": { "options": [{ "device": "/" }] } } }]),
                    json!([{ "type": "bind", "source": "local", "bind_options": [{ "propagation": "rshared" }] }]),
                ],
                vec![
                    bind("local"),
                    bind("./local/../secrets/x"),
                    bind("../alloc"),
                    json!([{ "type": "tmpfs", "target": "/x" }, { "type": "volume", "target": "/y" }]),
                ],
            ),
            "volumes" => (
                lists(&[
                    "/etc:/x",
                    "/:/x:ro",
                    "..:/x",
                    "../other/secrets:/x",
                    "../../x:/x",
                    "local:/x:rshared",
                    "local:/x:ro,shared",
                ]),
                lists(&["local:/x", "local/deep:/x:ro", "../alloc:/x", ".:/x:rw,rslave"]),
            ),
            "volume_driver" => (text(&["local"]), text(&[""])),
            "logging" => (
                vec![
                    json!([{ "type": "syslog" }]),
                    json!({ "driver": "fluentd", "config": [{ "x": "y" }] }),
                    json!({ "type": "", "config": [{ "syslog-address": "unix:///x" }] }),
                ],
                vec![json!([{ "type": "json-file", "config": [{ "max-size": "1m" }] }]), json!({})],
            ),
            "runtime" => (text(&["nvidia", "/bin/sh", "io.containerd.mine"]), text(&["runc", "runsc"])),
            // Only its `false` is looser, and only at strict.
            "user_namespace" => (vec![], vec![json!(true)]),
            _ => panic!("{driver}: {key} has a rule; say here what it refuses, and what it lets through"),
        }
    }

    /// Point 4 of issue 14: every key has a rule, every rule has a key, and each rule refuses what it is meant to refuse.
    #[test]
    fn d36_every_key_of_every_driver_has_a_rule_that_holds() {
        for driver in drivers() {
            let name: &'static str =
                ["exec", "java", "raw_exec", "docker"].into_iter().find(|n| *n == driver.name()).unwrap();
            let mut keys = BTreeSet::new();
            paths(&driver.task_config_schema(), "", &mut keys);
            keys.retain(|key| !key.contains('.'));
            assert!(keys.len() > 10, "{name}: {keys:?}");
            let ruled: Vec<&str> = rules::keys(name).collect();
            let unique: BTreeSet<String> = ruled.iter().map(|key| (*key).to_owned()).collect();
            assert_eq!(unique.len(), ruled.len(), "{name}: a key has two rows");
            assert_eq!(unique, keys, "{name}: each key of a task needs a row in driver/policy/rules.rs, and no other");
            for key in &keys {
                if matches!(rules::find(name, key), Some(Row { rule: Rule::Harmless, .. })) {
                    continue;
                }
                let (refused, taken) = loose(name, key);
                for minimum in [Minimum::Default, Minimum::Strict] {
                    for value in &refused {
                        let text = refusal(&policy(minimum), name, &json!({ key: value }));
                        let demand = format!("isolation_minimum = {:?} of plugin {name:?} allows", minimum.name());
                        let begins = format!("config of driver {name}: {key} = ");
                        let instead = ["write ", "leave "].iter().any(|word| text.contains(word));
                        assert!(text.starts_with(&begins) && text.contains(&demand) && instead, "{value}: {text}");
                    }
                    for value in &taken {
                        let text = refusal(&policy(minimum), name, &json!({ key: value }));
                        assert_eq!(text, "", "{name} {minimum:?}: {key} = {value}");
                    }
                }
                for value in refused.iter().filter(|_| *key != "log_sinks") {
                    assert_eq!(refusal(&Policy::default(), name, &json!({ key: value })), "", "without a minimum");
                }
            }
        }
    }

    /// Keys within a block are checked by the rule of the block: a new one has to be handled there first.
    #[test]
    fn d36_no_key_of_a_block_is_unthought_of() {
        let mut nested = BTreeSet::new();
        for driver in drivers() {
            let mut keys = BTreeSet::new();
            paths(&driver.task_config_schema(), "", &mut keys);
            nested.extend(keys.into_iter().filter(|key| key.contains('.')));
        }
        let mount = [
            "type",
            "target",
            "source",
            "readonly",
            "bind_options",
            "bind_options.propagation",
            "tmpfs_options",
            "tmpfs_options.size",
            "tmpfs_options.mode",
            "volume_options",
            "volume_options.no_copy",
            "volume_options.labels",
            "volume_options.driver_config",
            "volume_options.driver_config.name",
            "volume_options.driver_config.options",
        ];
        let mut known: BTreeSet<String> =
            ["mount", "mounts"].iter().flat_map(|block| mount.map(|key| format!("{block}.{key}"))).collect();
        known.extend(
            [
                ("auth", &["username", "password", "email", "server_address"][..]),
                ("devices", &["host_path", "container_path", "cgroup_permissions"]),
                ("healthchecks", &["disable"]),
                ("io", &["device", "read_bps", "write_bps", "read_iops", "write_iops"]),
                ("logging", &["type", "driver", "config"]),
                ("logs", &["max_files", "max_file_size", "compress", "max_age"]),
            ]
            .iter()
            .flat_map(|(block, keys)| keys.iter().map(move |key| format!("{block}.{key}"))),
        );
        assert_eq!(nested, known, "think of the block's rule in driver/policy/rules.rs, then add the key here");
    }

    #[test]
    fn d36_what_only_strict_refuses() {
        for (driver, values, at_strict) in [
            (
                "exec",
                json!({ "isolation": "default" }),
                "write \"strict\", or leave it out; without a network of its group",
            ),
            ("java", json!({ "user_namespace": false }), "user_namespace = false is looser"),
            ("docker", json!({ "cap_add": ["chown"] }), "cap_add = [\"chown\"] is looser"),
            ("exec", json!({ "cap_add": ["chown", "CAP_KILL"] }), ""),
        ] {
            assert_eq!(refusal(&policy(Minimum::Default), driver, &values), "", "{values}");
            let text = refusal(&policy(Minimum::Strict), driver, &values);
            assert!(text.contains(at_strict) && text.is_empty() == at_strict.is_empty(), "{values}: {text}");
        }
        // Values that the operator lists may be asked for at default, but never at strict.
        for (driver, key, value) in [("exec", "pid_mode", "host"), ("docker", "ipc_mode", "container:x")] {
            let listing = |minimum| Policy {
                modes: [(key, vec!["host".to_owned(), "container:*".to_owned()])].into(),
                ..policy(minimum)
            };
            assert_eq!(refusal(&listing(Minimum::Default), driver, &json!({ key: value })), "");
            assert!(refusal(&listing(Minimum::Strict), driver, &json!({ key: value })).contains("is looser"));
        }
        // The operator's own filter and limit apply.
        let own = Policy { seccomp: Some("/p.json".to_owned()), pids_max: Some(9), ..policy(Minimum::Default) };
        assert!(refusal(&own, "exec", &json!({ "seccomp": "default" })).contains("write \"/p.json\""));
        assert_eq!(refusal(&own, "exec", &json!({ "seccomp": "/p.json", "pids_limit": 9 })), "");
        assert!(refusal(&own, "exec", &json!({ "pids_limit": 10 })).contains("pids_limit = 10 is looser"));
        let sinks = Policy { task_log_sinks: vec!["journald".to_owned()], ..policy(Minimum::Strict) };
        assert_eq!(refusal(&sinks, "exec", &json!({ "log_sinks": ["journald:"] })), "");
    }

    /// A key without a row is refused, whatever it is; a foreign driver may use only the keys that it shares with agentbin's
    /// drivers.
    #[test]
    fn d36_what_has_no_rule_is_refused() {
        assert!(refusal(&policy(Minimum::Default), "exec", &json!({ "new_key": 1 })).contains("new_key = 1 is looser"));
        let named = Policy { allow_drivers: vec!["theirs".to_owned()], ..policy(Minimum::Strict) };
        assert_eq!(refusal(&named, "theirs", &json!({ "new_key": 1 })), "");
        assert!(refusal(&named, "theirs", &json!({ "log_sinks": ["file:/x"] })).contains("is looser"));
        assert!(refusal(&named, "theirs", &json!({ "isolation": "nomad" })).contains("is looser"));
        let text = refusal(
            &policy(Minimum::Default),
            "exec",
            &json!({ "isolation": format!("\u{1b}[2J\u{9b}{}", "x".repeat(999)) }),
        );
        assert!(text.len() < 500 && !text.chars().any(char::is_control), "{text}");
    }

    /// Drivers without isolation, and unknown ones, run only where the operator names them.
    #[test]
    fn d32_drivers_run_where_they_are_named() {
        for (driver, at_default, at_strict) in [
            ("exec", true, true),
            ("java", true, true),
            ("docker", true, false),
            ("raw_exec", false, false),
            ("theirs", false, false),
        ] {
            for (minimum, runs) in [(Minimum::Default, at_default), (Minimum::Strict, at_strict)] {
                let policy =
                    Policy { minimum: Some(minimum), allow_drivers: vec!["Raw_exec".to_owned()], ..Policy::default() };
                assert_eq!(refusal(&policy, driver, &json!({})).is_empty(), runs, "{driver} at {minimum:?}");
                assert_eq!(admit(driver, true, minimum, &[]).is_ok(), runs);
                assert!(
                    admit(driver, false, minimum, &[]).is_err()
                        && admit(driver, false, minimum, &[driver.to_owned()]).is_ok()
                );
                let named = Policy { allow_drivers: vec![driver.to_owned()], ..policy };
                assert_eq!(refusal(&named, driver, &json!({})), "", "{driver} at {minimum:?}");
            }
        }
        let policy = Policy { minimum: Some(Minimum::Strict), ..Policy::default() };
        let text = refusal(&policy, "raw_exec", &json!({}));
        assert!(text.contains("isolation_minimum = \"strict\" of plugin \"raw_exec\" demands"), "{text}");
        assert!(text.contains("allow_drivers = [\"raw_exec\"] of that plugin"), "{text}");
        let text = admit("raw_exec", true, Minimum::Default, &[]).unwrap_err();
        assert!(text.contains("--isolation-minimum default") && text.contains("--allow-driver raw_exec"), "{text}");
    }

    #[test]
    fn d37_volumes_of_the_agent_are_no_way_out() {
        let mount = |readonly, propagation| Mount {
            task_path: "/v".to_owned(),
            host_path: "/srv".into(),
            readonly,
            propagation,
            ..Mount::default()
        };
        for (mount, at_default, at_strict) in [
            (mount(true, Propagation::Private), "", ""),
            (mount(true, Propagation::HostToTask), "", ""),
            (mount(false, Propagation::Private), "", "read_only = false is looser"),
            (mount(false, Propagation::Bidirectional), "\"bidirectional\" is looser", "\"bidirectional\" is looser"),
        ] {
            for (minimum, expected) in [(Minimum::Default, at_default), (Minimum::Strict, at_strict)] {
                let checked = policy(minimum).check_mounts("exec", std::slice::from_ref(&mount), By::Plugin);
                let text = checked.err().map(|error| error.to_string()).unwrap_or_default();
                assert!(text.contains(expected) && text.is_empty() == expected.is_empty(), "{mount:?}: {text}");
            }
            assert!(Policy::default().check_mounts("exec", &[mount], By::Plugin).is_ok());
        }
    }
}
