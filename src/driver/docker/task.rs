//! A task's configuration: Nomad's keys. Never reads the plugin's.

use std::time::Duration;

use super::NAME;
use super::config::duration;
use crate::driver::{DriverError, Reader};
use crate::spec::collections::BTreeMap;
use crate::spec::{DriverConfig, IntoMap as _, TryIntoMap as _};
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

pub(super) const KEYS: [&str; 59] = [
    "image",
    "command",
    "args",
    "entrypoint",
    "work_dir",
    "hostname",
    "labels",
    "advertise_ipv6_address",
    "network_mode",
    "network_aliases",
    "ipv4_address",
    "ipv6_address",
    "mac_address",
    "ports",
    "port_map",
    "dns_servers",
    "dns_search_domains",
    "dns_options",
    "extra_hosts",
    "auth",
    "auth_soft_fail",
    "force_pull",
    "image_pull_timeout",
    "load",
    "cap_add",
    "cap_drop",
    "privileged",
    "security_opt",
    "readonly_rootfs",
    "userns_mode",
    "pid_mode",
    "ipc_mode",
    "uts_mode",
    "cgroupns",
    "group_add",
    "isolation",
    "cpu_hard_limit",
    "cpu_cfs_period",
    "cpuset_cpus",
    "memory_hard_limit",
    "oom_score_adj",
    "pids_limit",
    "shm_size",
    "ulimit",
    "sysctl",
    "storage_opt",
    "devices",
    "mount",
    "mounts",
    "volumes",
    "volume_driver",
    "logging",
    "healthchecks",
    "init",
    "interactive",
    "tty",
    "runtime",
    "container_exists_attempts",
    "logs",
];

/// A device of the host that the container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) host_path: String,
    pub(super) container_path: String,
    pub(super) permissions: String,
}

/// A mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) kind: String,
    pub(super) target: String,
    pub(super) source: String,
    pub(super) readonly: bool,
    pub(super) propagation: String,
    pub(super) tmpfs_size: i64,
    pub(super) tmpfs_mode: i64,
    pub(super) no_copy: bool,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) driver: String,
    pub(super) driver_options: BTreeMap<String, String>,
}

/// Credentials for the registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Auth {
    pub(super) username: String,
    pub(super) password: String,
    pub(super) server_address: String,
}

/// How the engine keeps the output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Logging {
    pub(super) driver: String,
    pub(super) options: BTreeMap<String, String>,
}

/// A task's configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Task {
    pub(super) image: String,
    pub(super) command: String,
    pub(super) args: Vec<String>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) work_dir: String,
    pub(super) hostname: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) advertise_ipv6: bool,
    pub(super) network_mode: String,
    pub(super) network_aliases: Vec<String>,
    pub(super) ipv4_address: String,
    pub(super) ipv6_address: String,
    pub(super) mac_address: String,
    pub(super) ports: Vec<String>,
    pub(super) port_map: BTreeMap<String, u16>,
    pub(super) dns_servers: Vec<String>,
    pub(super) dns_search: Vec<String>,
    pub(super) dns_options: Vec<String>,
    pub(super) extra_hosts: Vec<String>,
    pub(super) auth: Auth,
    pub(super) auth_soft_fail: bool,
    pub(super) force_pull: bool,
    pub(super) image_pull_timeout: Option<Duration>,
    pub(super) load: String,
    pub(super) privileged: bool,
    pub(super) security_opt: Vec<String>,
    pub(super) readonly_rootfs: bool,
    pub(super) userns_mode: String,
    pub(super) pid_mode: String,
    pub(super) ipc_mode: String,
    pub(super) uts_mode: String,
    pub(super) cgroupns: String,
    pub(super) group_add: Vec<String>,
    pub(super) cpu_hard_limit: bool,
    pub(super) cpu_cfs_period: i64,
    pub(super) memory_hard_limit_mib: i64,
    pub(super) oom_score_adj: Option<i64>,
    pub(super) pids_limit: i64,
    pub(super) shm_size: i64,
    pub(super) ulimit: BTreeMap<String, String>,
    pub(super) sysctl: BTreeMap<String, String>,
    pub(super) storage_opt: BTreeMap<String, String>,
    pub(super) devices: Vec<Device>,
    pub(super) mounts: Vec<Mount>,
    pub(super) volumes: Vec<String>,
    pub(super) volume_driver: String,
    pub(super) logging: Logging,
    pub(super) no_healthchecks: bool,
    pub(super) init: bool,
    pub(super) interactive: bool,
    pub(super) tty: bool,
    pub(super) runtime: String,
    pub(super) container_exists_attempts: Option<u32>,
}

pub(super) fn schema() -> Spec {
    let attr = |name: &str, kind: &str| schema::attr(name, kind, false);
    let pairs = |name: &str| attr(name, "list(map(string))");
    let named = |names: &[&str], kind: &str| -> Vec<(String, Spec)> {
        names.iter().map(|name| ((*name).to_owned(), attr(name, kind))).collect()
    };
    let options =
        schema::object([("name".to_owned(), attr("name", "string")), ("options".to_owned(), pairs("options"))]);
    let mount = schema::object([
        ("type", schema::with_default(attr("type", "string"), Literal::string("volume"))),
        ("target", attr("target", "string")),
        ("source", attr("source", "string")),
        ("readonly", attr("readonly", "bool")),
        ("bind_options", schema::block("bind_options", false, schema::object(named(&["propagation"], "string")))),
        ("tmpfs_options", schema::block("tmpfs_options", false, schema::object(named(&["size", "mode"], "number")))),
        (
            "volume_options",
            schema::block(
                "volume_options",
                false,
                schema::object([
                    ("no_copy", attr("no_copy", "bool")),
                    ("labels", pairs("labels")),
                    ("driver_config", schema::block("driver_config", false, options)),
                ]),
            ),
        ),
    ]);
    let logging = [("type", attr("type", "string")), ("driver", attr("driver", "string")), ("config", pairs("config"))];
    let strings = [
        "command",
        "work_dir",
        "hostname",
        "network_mode",
        "ipv4_address",
        "ipv6_address",
        "mac_address",
        "load",
        "userns_mode",
        "pid_mode",
        "ipc_mode",
        "uts_mode",
        "cgroupns",
        "isolation",
        "cpuset_cpus",
        "volume_driver",
        "runtime",
    ];
    let lists = [
        "args",
        "entrypoint",
        "network_aliases",
        "ports",
        "dns_servers",
        "dns_search_domains",
        "dns_options",
        "extra_hosts",
        "cap_add",
        "cap_drop",
        "security_opt",
        "group_add",
        "volumes",
    ];
    let flags = [
        "advertise_ipv6_address",
        "auth_soft_fail",
        "force_pull",
        "privileged",
        "readonly_rootfs",
        "cpu_hard_limit",
        "init",
        "interactive",
        "tty",
    ];
    let numbers = ["memory_hard_limit", "oom_score_adj", "pids_limit", "shm_size", "container_exists_attempts"];
    let mut attributes = named(&strings, "string");
    attributes.extend(named(&lists, "list(string)"));
    attributes.extend(named(&flags, "bool"));
    attributes.extend(named(&numbers, "number"));
    let auth = named(&["username", "password", "email", "server_address"], "string");
    let device = named(&["host_path", "container_path", "cgroup_permissions"], "string");
    let mut logs = named(&["max_files", "max_file_size"], "number");
    logs.extend([("compress".to_owned(), attr("compress", "bool")), ("max_age".to_owned(), attr("max_age", "string"))]);
    let period = schema::with_default(attr("cpu_cfs_period", "number"), Literal::number(100_000));
    let others = [
        ("image", schema::attr("image", "string", true)),
        ("labels", pairs("labels")),
        ("port_map", attr("port_map", "list(map(number))")),
        ("auth", schema::block("auth", false, schema::object(auth))),
        ("image_pull_timeout", attr("image_pull_timeout", "string")),
        ("cpu_cfs_period", period),
        ("ulimit", pairs("ulimit")),
        ("sysctl", pairs("sysctl")),
        ("storage_opt", schema::block_attrs("storage_opt", "string", false)),
        ("devices", schema::block_list("devices", 0, 0, schema::object(device))),
        ("mount", schema::block_list("mount", 0, 0, mount.clone())),
        ("mounts", schema::block_list("mounts", 0, 0, mount)),
        ("logging", schema::block("logging", false, schema::object(logging))),
        ("healthchecks", schema::block("healthchecks", false, schema::object([("disable", attr("disable", "bool"))]))),
        ("logs", schema::block("logs", false, schema::object(logs))),
    ];
    schema::object(attributes.into_iter().chain(others.into_iter().map(|(name, spec)| (name.to_owned(), spec))))
}

fn text(reader: &Reader<'_>, key: &str) -> Result<String, DriverError> {
    reader.string(key).map(Option::unwrap_or_default)
}

fn flag(reader: &Reader<'_>, key: &str) -> Result<bool, DriverError> {
    reader.flag(key).map(|flag| flag.unwrap_or(false))
}

fn map(reader: &Reader<'_>, key: &str) -> Result<BTreeMap<String, String>, DriverError> {
    reader.pairs(key).map(|pairs| pairs.into_iter().into_map())
}

impl Device {
    fn read(config: &DriverConfig) -> Result<Device, DriverError> {
        let reader = Reader::new(NAME, config, &["host_path", "container_path", "cgroup_permissions"])?;
        let host_path = text(&reader, "host_path")?;
        if host_path.is_empty() {
            return Err(reader.error("host_path", "host path must be set in configuration for devices"));
        }
        let permissions = text(&reader, "cgroup_permissions")?;
        if !permissions.chars().all(|letter| "rwm".contains(letter)) {
            let problem = format!("invalid cgroup permission string: {permissions:?}");
            return Err(reader.error("cgroup_permissions", &problem));
        }
        let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
        Ok(Device {
            container_path: or(text(&reader, "container_path")?, &host_path),
            permissions: or(permissions, "rwm"),
            host_path,
        })
    }
}

impl Mount {
    fn read(config: &DriverConfig) -> Result<Mount, DriverError> {
        let keys = ["type", "target", "source", "readonly", "bind_options", "tmpfs_options", "volume_options"];
        let reader = Reader::new(NAME, config, &keys)?;
        let (bind, tmpfs) = (reader.block("bind_options")?, reader.block("tmpfs_options")?);
        let volume = reader.block("volume_options")?;
        let bind = Reader::new(NAME, &bind, &["propagation"])?;
        let tmpfs = Reader::new(NAME, &tmpfs, &["size", "mode"])?;
        let volume = Reader::new(NAME, &volume, &["no_copy", "labels", "driver_config"])?;
        let driver = volume.block("driver_config")?;
        let driver = Reader::new(NAME, &driver, &["name", "options"])?;
        let kind = reader.string("type")?.filter(|kind| !kind.is_empty()).unwrap_or_else(|| "volume".to_owned());
        let mount = Mount {
            kind,
            target: text(&reader, "target")?,
            source: text(&reader, "source")?,
            readonly: flag(&reader, "readonly")?,
            propagation: text(&bind, "propagation")?,
            tmpfs_size: tmpfs.integer("size")?.unwrap_or(0),
            tmpfs_mode: tmpfs.integer("mode")?.unwrap_or(0),
            no_copy: flag(&volume, "no_copy")?,
            labels: map(&volume, "labels")?,
            driver: text(&driver, "name")?,
            driver_options: map(&driver, "options")?,
        };
        match mount.kind.as_str() {
            "bind" | "volume" => Ok(mount),
            "tmpfs" if mount.source.is_empty() => Ok(mount),
            "tmpfs" => Err(reader.error("source", "invalid source, must be \"\" for tmpfs")),
            other => {
                let problem = format!("invalid mount type, must be \"bind\", \"volume\", \"tmpfs\": {other:?}");
                Err(reader.error("type", &problem))
            }
        }
    }
}

impl Task {
    pub(super) fn read(config: &DriverConfig) -> Result<Task, DriverError> {
        let reader = Reader::new(NAME, config, &KEYS)?;
        let image = text(&reader, "image")?;
        if image.is_empty() {
            return Err(reader.error("image", "image name required: it says what the container is made of"));
        }
        if !text(&reader, "isolation")?.is_empty() {
            return Err(reader.error("isolation", "isolation is for Windows; remove it"));
        }
        let command = text(&reader, "command")?;
        if !command.is_empty() && command.trim().is_empty() {
            return Err(reader.error("command", "command empty"));
        }
        if command.trim() != command {
            return Err(reader.error("command", "command contains extra white space"));
        }
        let auth = reader.block("auth")?;
        let auth = Reader::new(NAME, &auth, &["username", "password", "email", "server_address"])?;
        let logging = reader.block("logging")?;
        let logging = Reader::new(NAME, &logging, &["type", "driver", "config"])?;
        let log_driver = match text(&logging, "type")? {
            kind if kind.is_empty() => text(&logging, "driver")?,
            kind => kind,
        };
        let checks = reader.block("healthchecks")?;
        let checks = Reader::new(NAME, &checks, &["disable"])?;
        let cpu_cfs_period = reader.integer("cpu_cfs_period")?.unwrap_or(100_000);
        if !(0..=1_000_000).contains(&cpu_cfs_period) {
            return Err(reader.error("cpu_cfs_period", "cpu_cfs_period must be from 0 to 1000000"));
        }
        let port = |(label, port): (String, String)| {
            port.parse().map(|port| (label, port)).map_err(|_| reader.error("port_map", "port_map needs port numbers"))
        };
        let attempts = reader.integer("container_exists_attempts")?.map(|n| u32::try_from(n).unwrap_or(1).max(1));
        let devices = reader.blocks("devices")?.iter().map(Device::read).collect::<Result<_, _>>()?;
        let mounts = [reader.blocks("mount")?, reader.blocks("mounts")?].concat();
        let timeout = reader.has("image_pull_timeout") && !text(&reader, "image_pull_timeout")?.is_empty();
        if reader.has("cpuset_cpus") && !text(&reader, "cpuset_cpus")?.is_empty() {
            tracing::warn!("cpuset_cpus has no effect; ask for cores in the task's resources");
        }
        Ok(Task {
            image,
            command,
            args: reader.strings("args")?,
            entrypoint: reader.has("entrypoint").then(|| reader.strings("entrypoint")).transpose()?,
            work_dir: text(&reader, "work_dir")?,
            hostname: text(&reader, "hostname")?,
            labels: map(&reader, "labels")?,
            advertise_ipv6: flag(&reader, "advertise_ipv6_address")?,
            network_mode: text(&reader, "network_mode")?,
            network_aliases: reader.strings("network_aliases")?,
            ipv4_address: text(&reader, "ipv4_address")?,
            ipv6_address: text(&reader, "ipv6_address")?,
            mac_address: text(&reader, "mac_address")?,
            ports: reader.strings("ports")?,
            port_map: reader.pairs("port_map")?.into_iter().map(port).try_into_map()?,
            dns_servers: reader.strings("dns_servers")?,
            dns_search: reader.strings("dns_search_domains")?,
            dns_options: reader.strings("dns_options")?,
            extra_hosts: reader.strings("extra_hosts")?,
            auth: Auth {
                username: text(&auth, "username")?,
                password: text(&auth, "password")?,
                server_address: text(&auth, "server_address")?,
            },
            auth_soft_fail: flag(&reader, "auth_soft_fail")?,
            force_pull: flag(&reader, "force_pull")?,
            image_pull_timeout: timeout.then(|| duration(&reader, "image_pull_timeout", Duration::ZERO)).transpose()?,
            load: text(&reader, "load")?,
            privileged: flag(&reader, "privileged")?,
            security_opt: reader.strings("security_opt")?,
            readonly_rootfs: flag(&reader, "readonly_rootfs")?,
            userns_mode: text(&reader, "userns_mode")?,
            pid_mode: text(&reader, "pid_mode")?,
            ipc_mode: text(&reader, "ipc_mode")?,
            uts_mode: text(&reader, "uts_mode")?,
            cgroupns: text(&reader, "cgroupns")?,
            group_add: reader.strings("group_add")?,
            cpu_hard_limit: flag(&reader, "cpu_hard_limit")?,
            cpu_cfs_period,
            memory_hard_limit_mib: reader.integer("memory_hard_limit")?.unwrap_or(0),
            oom_score_adj: reader.integer("oom_score_adj")?,
            pids_limit: reader.integer("pids_limit")?.unwrap_or(0),
            shm_size: reader.integer("shm_size")?.unwrap_or(0),
            ulimit: map(&reader, "ulimit")?,
            sysctl: map(&reader, "sysctl")?,
            storage_opt: map(&reader, "storage_opt")?,
            devices,
            mounts: mounts.iter().map(Mount::read).collect::<Result<_, _>>()?,
            volumes: reader.strings("volumes")?,
            volume_driver: text(&reader, "volume_driver")?,
            logging: Logging { driver: log_driver, options: map(&logging, "config")? },
            no_healthchecks: flag(&checks, "disable")?,
            init: flag(&reader, "init")?,
            interactive: flag(&reader, "interactive")?,
            tty: flag(&reader, "tty")?,
            runtime: text(&reader, "runtime")?,
            container_exists_attempts: attempts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys in the schema are exactly the keys that are read.
    #[test]
    fn e1_the_schema_has_the_keys_that_are_read() {
        use crate::wire::hclspec::spec::Block;
        let Some(Block::Object(object)) = schema().block else { panic!("no object") };
        let told: crate::spec::collections::BTreeSet<&str> = object.attributes.keys().map(String::as_str).collect();
        assert_eq!(told, KEYS.into_iter().collect());
        // A default here would be in the place of the plugin's value.
        assert!(matches!(object.attributes["container_exists_attempts"].block, Some(Block::Attr(_))));
    }
}
