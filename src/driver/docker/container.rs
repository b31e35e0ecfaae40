//! From a task to the body of the engine's create call. Never calls the engine.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use super::config::Config;
use super::task::{Mount as MountConfig, Task};
use super::{LABEL_ALLOC, LABEL_CONFIG, LABEL_NODE, LABEL_START, NAME};
use crate::docker::models::{
    ContainerCreateBody, DeviceMapping, EndpointIpamConfig, EndpointSettings, HealthConfig, HostConfig,
    HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountBindOptions, MountBindOptionsPropagationEnum,
    MountTmpfsOptions, MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig, NetworkingConfig, PortBinding,
    ResourcesUlimits,
};
use crate::driver::handle::failed;
use crate::driver::isolated::resolv_conf;
use crate::driver::raw_exec::matches;
use crate::driver::{DriverError, NetworkMode, Reader, TaskConfig};
use crate::spec::Propagation;

const MIB: i64 = 1024 * 1024;
/// Least shares that the kernel takes.
const LEAST_SHARES: i64 = 2;
/// Most shares that the kernel takes.
const MOST_SHARES: i64 = 262_144;

/// What a container depends on besides task and configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Runtimes that the engine has.
    pub(super) runtimes: Vec<String>,
    /// Where the container goes in the tree of cgroups; empty leaves it to the engine.
    pub(super) cgroup_parent: String,
    /// Cores of the machine.
    pub(super) cores: u32,
    /// Whether the kernel has a swappiness per cgroup: only v1.
    pub(super) swappiness: bool,
    /// Who this driver is: containers of another are never touched.
    pub(super) node: String,
}

/// The one name that a task of an allocation has on an engine.
pub(super) fn name(task: &TaskConfig) -> String {
    format!("{}-{}", task.name.replace('/', "_"), task.alloc_id)
}

fn bad(text: String) -> DriverError {
    failed(text, false)
}

/// A path without `.` and `..`, by name only.
fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// Whether `path` lies below `dir`, by its name and by what links in it lead to.
fn is_below(dir: &Path, path: &Path) -> bool {
    let path = lexical(path);
    let Ok(relative) = path.strip_prefix(dir) else { return false };
    crate::sys::path::Root::open(dir).is_ok_and(|root| {
        // The longest part that is there must not lead out; what is missing the engine makes.
        let mut part = relative.to_owned();
        loop {
            if part.as_os_str().is_empty() {
                return true;
            }
            let (flags, mode) = (rustix::fs::OFlags::PATH, rustix::fs::Mode::empty());
            match root.open_beneath(&part, flags, mode) {
                Ok(_) => return true,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    // A link to nowhere is not what is missing.
                    let nofollow = flags | rustix::fs::OFlags::NOFOLLOW;
                    if root.open_beneath(&part, nofollow, mode).is_ok() {
                        return false;
                    }
                    part.pop();
                }
                Err(_) => return false,
            }
        }
    })
}

/// `src:dst[:mode]`: split, and nothing else.
fn split_volume(volume: &str) -> Result<(&str, &str, &str), DriverError> {
    let mut parts = volume.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(source), Some(target), mode) => Ok((source, target, mode.unwrap_or_default())),
        _ => Err(bad(format!("invalid docker volume: {volume:?}: not <src>:<destination> format"))),
    }
}

/// Builds a container's description.
pub(super) struct Builder<'a> {
    pub(super) task: &'a TaskConfig,
    pub(super) read: &'a Task,
    pub(super) config: &'a Config,
    pub(super) facts: &'a Facts,
}

impl Builder<'_> {
    fn task_dir(&self) -> PathBuf {
        self.task.alloc_dir.join(&self.task.name)
    }

    /// The whole body. `image` is an id.
    pub(super) fn body(&self, image: &str) -> Result<ContainerCreateBody, DriverError> {
        let read = self.read;
        let mut host = HostConfig::default();
        self.limits(&mut host)?;
        self.rights(&mut host)?;
        self.files(&mut host)?;
        self.output(&mut host);
        let (networking, exposed) = self.network(&mut host)?;
        let mut body = ContainerCreateBody {
            image: Some(image.to_owned()),
            env: Some(self.environment()),
            user: some(&self.task.user),
            working_dir: some(&read.work_dir),
            entrypoint: read.entrypoint.clone().filter(|words| !words.is_empty()),
            cmd: self.command(),
            tty: Some(read.tty),
            open_stdin: Some(read.interactive),
            hostname: some(&read.hostname),
            labels: Some(self.labels()),
            exposed_ports: (!exposed.is_empty()).then_some(exposed),
            healthcheck: read
                .no_healthchecks
                .then(|| HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
            host_config: Some(host),
            networking_config: networking,
            ..ContainerCreateBody::default()
        };
        // Two starts of one configuration have the same mark: that one that runs may be adopted.
        let mark = mark(&body);
        body.labels.get_or_insert_default().insert(LABEL_CONFIG.to_owned(), mark);
        Ok(body)
    }

    fn command(&self) -> Option<Vec<String>> {
        let read = self.read;
        let words: Vec<String> =
            (!read.command.is_empty()).then(|| read.command.clone()).into_iter().chain(read.args.clone()).collect();
        (!words.is_empty()).then_some(words)
    }

    /// The task's, where a port that `port_map` moves is the one inside.
    fn environment(&self) -> Vec<String> {
        let mut env = self.task.env.clone();
        for (label, inside) in &self.read.port_map {
            let name: String = label.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
            env.insert(format!("NOMAD_PORT_{name}"), inside.to_string());
        }
        env.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    fn labels(&self) -> HashMap<String, String> {
        let task = self.task;
        let mut labels: HashMap<String, String> = self.read.labels.clone().into_iter().collect();
        labels.insert(LABEL_ALLOC.to_owned(), task.alloc_id.clone());
        labels.insert(LABEL_NODE.to_owned(), self.facts.node.clone());
        labels.insert(LABEL_START.to_owned(), task.id.clone());
        let extra = [
            ("job_name", &task.job_name),
            ("job_id", &task.job_id),
            ("task_group_name", &task.group),
            ("task_name", &task.name),
            ("namespace", &task.namespace),
            ("node_name", &task.node_name),
            ("node_id", &task.node_id),
        ];
        for (name, value) in extra {
            if self.config.extra_labels.iter().any(|glob| matches(glob, name)) {
                labels.insert(format!("com.hashicorp.nomad.{name}"), value.clone());
            }
        }
        labels
    }

    fn limits(&self, host: &mut HostConfig) -> Result<(), DriverError> {
        let (read, resources) = (self.read, &self.task.resources);
        let bytes = |n: Option<u64>| i64::try_from(n.unwrap_or(0)).unwrap_or(i64::MAX);
        let (hard, soft) = (bytes(resources.memory.hard_bytes), bytes(resources.memory.soft_bytes));
        let own = read.memory_hard_limit_mib.saturating_mul(MIB);
        let (hard, reservation) = match (hard, soft) {
            // No hard limit by the job.
            (0, soft) => (own, soft),
            (memory, 0) if own > 0 => (own, memory),
            (memory, 0) => (memory, 0),
            (most, memory) => (most.max(own), memory),
        };
        if hard > 0 && reservation > hard {
            let mib = hard / MIB;
            return Err(bad(format!("task memory requirements exceed driver hard limit of {mib} MB")));
        }
        if hard > 0 {
            host.memory = Some(hard);
            // No swap beyond it.
            host.memory_swap = Some(hard);
            host.memory_swappiness = self.facts.swappiness.then_some(0);
        }
        if reservation > 0 {
            host.memory_reservation = Some(reservation);
        }
        let shares = i64::try_from(resources.cpu_shares).unwrap_or(i64::MAX);
        if shares > 0 {
            host.cpu_shares = Some(shares.clamp(LEAST_SHARES, MOST_SHARES));
        }
        if read.cpu_hard_limit {
            let period = if read.cpu_cfs_period == 0 { 100_000 } else { read.cpu_cfs_period };
            #[expect(clippy::cast_precision_loss, reason = "a quota needs no 53 bits")]
            let quota = self.task.percent_ticks * period as f64 * f64::from(self.facts.cores.max(1));
            host.cpu_period = Some(period);
            host.cpu_quota = Some((quota as i64).max(1000));
        }
        host.cpuset_cpus = some(&resources.cpuset_cpus);
        host.cgroup_parent = some(&self.facts.cgroup_parent);
        let most = self.config.pids_limit;
        if most > 0 && read.pids_limit > most {
            let text = format!("pids_limit cannot be greater than nomad plugin config pids_limit: {most}");
            return Err(bad(text));
        }
        host.pids_limit = Some(match (read.pids_limit, most) {
            (0, 0) => -1,
            (0, most) => most,
            (own, _) => own,
        });
        host.oom_score_adj = read.oom_score_adj.or(Some(self.config.oom_score_adj)).filter(|score| *score != 0);
        host.shm_size = Some(read.shm_size).filter(|size| *size > 0);
        let ulimits: Vec<_> = read.ulimit.iter().map(|(name, text)| ulimit(name, text)).collect::<Result<_, _>>()?;
        host.ulimits = (!ulimits.is_empty()).then_some(ulimits);
        host.sysctls = filled(&read.sysctl);
        host.storage_opt = filled(&read.storage_opt);
        Ok(())
    }

    fn rights(&self, host: &mut HostConfig) -> Result<(), DriverError> {
        let (read, config) = (self.read, self.config);
        if read.privileged && !config.allow_privileged {
            return Err(bad("Docker privileged mode is disabled on this Nomad agent".to_owned()));
        }
        host.privileged = Some(read.privileged);
        host.init = read.init.then_some(true);
        host.readonly_rootfs = Some(read.readonly_rootfs);
        let (add, drop) = config.allow_caps.beside_docker(&Reader::any(NAME, &self.task.config))?;
        host.cap_add = filled_list(&add);
        host.cap_drop = filled_list(&drop);
        let modes = [
            ("pid_mode", &read.pid_mode, &config.allowed_modes.pid),
            ("ipc_mode", &read.ipc_mode, &config.allowed_modes.ipc),
            ("userns_mode", &read.userns_mode, &config.allowed_modes.userns),
            ("uts_mode", &read.uts_mode, &config.allowed_modes.uts),
        ];
        for (key, mode, allowed) in modes {
            let may = config.allow_privileged || allowed.iter().any(|glob| matches(glob, mode));
            if !mode.is_empty() && !may {
                return Err(bad(format!("cannot apply {key:?} configuration: {mode:?} is not allowed by the agent")));
            }
        }
        (host.pid_mode, host.ipc_mode) = (some(&read.pid_mode), some(&read.ipc_mode));
        (host.userns_mode, host.uts_mode) = (some(&read.userns_mode), some(&read.uts_mode));
        host.cgroupns_mode = match read.cgroupns.as_str() {
            "" => None,
            "host" => Some(HostConfigCgroupnsModeEnum::HOST),
            "private" => Some(HostConfigCgroupnsModeEnum::PRIVATE),
            other => return Err(bad(format!("invalid cgroupns: {other:?}; it is \"host\" or \"private\""))),
        };
        host.group_add = (!read.group_add.is_empty()).then(|| read.group_add.clone());
        let options = read.security_opt.iter().map(|text| security_option(text)).collect::<Result<Vec<_>, _>>()?;
        host.security_opt = (!options.is_empty()).then_some(options);
        let gpu = self.task.env.contains_key("NVIDIA_VISIBLE_DEVICES") && !self.task.devices.is_empty();
        let runtime = if gpu {
            let nvidia = &config.nvidia_runtime;
            if !self.facts.runtimes.contains(nvidia) {
                return Err(bad(format!("requested docker runtime {nvidia:?} was not found")));
            }
            if !read.runtime.is_empty() && read.runtime != *nvidia {
                return Err(bad(format!(
                    "conflicting runtime requests: gpu runtime {nvidia:?} conflicts with task runtime {:?}",
                    read.runtime
                )));
            }
            nvidia
        } else {
            &read.runtime
        };
        if !runtime.is_empty() && !config.allow_runtimes.contains(runtime) {
            return Err(bad(format!("requested runtime {runtime:?} is not allowed")));
        }
        host.runtime = some(runtime);
        Ok(())
    }

    fn files(&self, host: &mut HostConfig) -> Result<(), DriverError> {
        let (task, read) = (self.task, self.read);
        let mut binds = Vec::new();
        let mut bind = |source: &Path, target: &str, mode: &str| {
            let modes: Vec<&str> = [mode, &self.config.selinux_label].into_iter().filter(|m| !m.is_empty()).collect();
            let mode = if modes.is_empty() { String::new() } else { format!(":{}", modes.join(",")) };
            binds.push(format!("{}:{target}{mode}", source.display()));
        };
        let (shared, own) = (task.alloc_dir.join("alloc"), self.task_dir());
        bind(&shared, "/alloc", "");
        bind(&own.join("local"), "/local", "");
        bind(&own.join("secrets"), "/secrets", "");
        bind(&shared.join("logs"), "/alloc/logs", "ro");
        if !read.volume_driver.is_empty() && !self.config.volumes {
            let driver = &read.volume_driver;
            return Err(bad(format!("volumes are not enabled; cannot use volume driver {driver:?}")));
        }
        for volume in &read.volumes {
            let (source, target, mode) = split_volume(volume)?;
            let source = if read.volume_driver.is_empty() {
                let path = lexical(&own.join(source));
                self.check_source(&path)?;
                path
            } else {
                PathBuf::from(source)
            };
            bind(&source, target, mode);
        }
        host.volume_driver = some(&read.volume_driver);
        let mut mounts = read.mounts.iter().map(|mount| self.mount(mount)).collect::<Result<Vec<_>, _>>()?;
        for mount in &task.mounts {
            mounts.push(Mount {
                target: Some(mount.task_path.clone()),
                source: Some(mount.host_path.display().to_string()),
                typ: Some(MountType::BIND),
                read_only: Some(mount.readonly),
                bind_options: Some(MountBindOptions {
                    propagation: Some(match mount.propagation {
                        Propagation::Private => MountBindOptionsPropagationEnum::RPRIVATE,
                        Propagation::HostToTask => MountBindOptionsPropagationEnum::RSLAVE,
                        Propagation::Bidirectional => MountBindOptionsPropagationEnum::RSHARED,
                    }),
                    ..MountBindOptions::default()
                }),
                ..Mount::default()
            });
        }
        if let Some(dns) = &task.dns {
            let file = resolv_conf(dns, &own)?;
            mounts.push(file_mount(&file.host_path, "/etc/resolv.conf"));
        }
        if let Some((hostname, address)) = self.hosts() {
            let path = own.join("hosts");
            write_hosts(&own, &hosts_text(address, hostname, &read.extra_hosts)?)?;
            mounts.push(file_mount(&path, "/etc/hosts"));
        }
        host.binds = Some(binds);
        host.mounts = (!mounts.is_empty()).then_some(mounts);
        let given = task.devices.iter().map(|device| DeviceMapping {
            path_on_host: Some(device.host_path.display().to_string()),
            path_in_container: Some(device.task_path.clone()),
            cgroup_permissions: Some(device.cgroup_permissions.clone()),
        });
        let asked = read.devices.iter().map(|device| DeviceMapping {
            path_on_host: Some(device.host_path.clone()),
            path_in_container: Some(device.container_path.clone()),
            cgroup_permissions: Some(device.permissions.clone()),
        });
        let devices: Vec<_> = asked.chain(given).collect();
        host.devices = (!devices.is_empty()).then_some(devices);
        Ok(())
    }

    fn check_source(&self, path: &Path) -> Result<(), DriverError> {
        if self.config.volumes || is_below(&self.task.alloc_dir, path) {
            return Ok(());
        }
        Err(bad(format!("volumes are not enabled; cannot mount host path: \"{}\"", path.display())))
    }

    fn mount(&self, mount: &MountConfig) -> Result<Mount, DriverError> {
        let mut built = Mount {
            target: Some(mount.target.clone()),
            source: some(&mount.source),
            read_only: Some(mount.readonly),
            ..Mount::default()
        };
        match mount.kind.as_str() {
            "bind" => {
                let path = lexical(&self.task_dir().join(&mount.source));
                self.check_source(&path)?;
                built.typ = Some(MountType::BIND);
                built.source = Some(path.display().to_string());
                if !mount.propagation.is_empty() {
                    let propagation = propagation(&mount.propagation)?;
                    built.bind_options =
                        Some(MountBindOptions { propagation: Some(propagation), ..MountBindOptions::default() });
                }
            }
            "tmpfs" => {
                built.typ = Some(MountType::TMPFS);
                built.tmpfs_options = Some(MountTmpfsOptions {
                    size_bytes: Some(mount.tmpfs_size).filter(|size| *size > 0),
                    mode: Some(mount.tmpfs_mode).filter(|mode| *mode > 0),
                    ..MountTmpfsOptions::default()
                });
            }
            _ => {
                if !self.config.volumes {
                    return Err(bad(format!("volumes are not enabled; cannot mount volume: {:?}", mount.source)));
                }
                built.typ = Some(MountType::VOLUME);
                let driver = (!mount.driver.is_empty()).then(|| MountVolumeOptionsDriverConfig {
                    name: Some(mount.driver.clone()),
                    options: filled(&mount.driver_options),
                });
                built.volume_options = Some(MountVolumeOptions {
                    no_copy: Some(mount.no_copy),
                    labels: filled(&mount.labels),
                    driver_config: driver,
                    ..MountVolumeOptions::default()
                });
            }
        }
        Ok(built)
    }

    fn output(&self, host: &mut HostConfig) {
        let logging = &self.read.logging;
        let (driver, options) = if logging.driver.is_empty() && logging.options.is_empty() {
            (&self.config.log_driver, &self.config.log_options)
        } else if logging.driver.is_empty() {
            (&self.config.log_driver, &logging.options)
        } else {
            (&logging.driver, &logging.options)
        };
        let config = Some(options.clone().into_iter().collect());
        host.log_config = Some(HostConfigLogConfig { typ: Some(driver.clone()), config });
    }

    /// Name and address for the hosts file of a group's network.
    fn hosts(&self) -> Option<(&str, &str)> {
        let network = self.task.network.as_ref()?;
        let (hostname, address) = network.hosts.as_ref()?;
        (!hostname.is_empty()).then_some((hostname, address))
    }

    /// The container that holds the group's network, if there is one.
    fn sandbox(&self) -> Option<&String> {
        let network = self.task.network.as_ref().filter(|network| network.mode == NetworkMode::Group)?;
        network.labels.get(super::network::LABEL_SANDBOX)
    }

    fn network(&self, host: &mut HostConfig) -> Result<(Option<NetworkingConfig>, Vec<String>), DriverError> {
        let read = self.read;
        let mode = match self.sandbox() {
            _ if !read.network_mode.is_empty() => read.network_mode.clone(),
            Some(id) => format!("container:{id}"),
            None => "default".to_owned(),
        };
        host.network_mode = Some(mode.clone());
        let foreign = mode.starts_with("container:");
        if self.task.dns.is_none() && !foreign {
            host.dns = filled_list(&read.dns_servers);
            host.dns_search = filled_list(&read.dns_search);
            host.dns_options = filled_list(&read.dns_options);
        }
        if self.hosts().is_none() && !foreign {
            host.extra_hosts = filled_list(&read.extra_hosts);
        }
        let mut bindings: HashMap<String, Option<Vec<PortBinding>>> = HashMap::new();
        let mut publish = |inside: u16, at: &crate::driver::Port| {
            for protocol in ["tcp", "udp"] {
                let binding = PortBinding {
                    host_ip: Some(at.host_ip.map(|ip| ip.to_string()).unwrap_or_default()),
                    host_port: Some(at.value.to_string()),
                };
                bindings.entry(format!("{inside}/{protocol}")).or_default().get_or_insert_default().push(binding);
            }
        };
        let missing = |label: &str| bad(format!("Port {label:?} not found, check network block"));
        let find = |label: &str| self.task.ports.iter().find(|port| port.label == label).ok_or_else(|| missing(label));
        if !foreign && read.ports.is_empty() && !self.task.task_ports.is_empty() {
            for port in &self.task.task_ports {
                publish(read.port_map.get(&port.label).copied().unwrap_or(port.value), port);
            }
        } else if !foreign {
            for label in &read.ports {
                let port = find(label)?;
                publish(if port.to == 0 { port.value } else { port.to }, port);
            }
            for (label, inside) in &read.port_map {
                if read.ports.contains(label) {
                    return Err(bad("'port_map' cannot map group network ports, use 'ports' instead".to_owned()));
                }
                publish(*inside, find(label)?);
            }
        } else if !read.port_map.is_empty() {
            return Err(bad("'port_map' cannot map group network ports, use 'ports' instead".to_owned()));
        }
        let exposed: Vec<String> = bindings.keys().cloned().collect();
        host.port_bindings = (!bindings.is_empty()).then_some(bindings);
        let special = ["default", "bridge", "host", "none"].contains(&mode.as_str()) || foreign;
        let wanted = !read.network_aliases.is_empty()
            || [&read.ipv4_address, &read.ipv6_address, &read.mac_address].iter().any(|text| !text.is_empty());
        let networking = (wanted && !foreign).then(|| {
            let addresses = EndpointIpamConfig {
                ipv4_address: some(&read.ipv4_address),
                ipv6_address: some(&read.ipv6_address),
                ..EndpointIpamConfig::default()
            };
            let settings = EndpointSettings {
                ipam_config: Some(addresses),
                aliases: if special { None } else { filled_list(&read.network_aliases) },
                mac_address: some(&read.mac_address),
                ..EndpointSettings::default()
            };
            NetworkingConfig { endpoints_config: Some(HashMap::from([(mode.clone(), settings)])) }
        });
        Ok((networking, exposed))
    }

    /// Host ports by label, for what agents announce.
    pub(super) fn port_map(&self) -> BTreeMap<String, u16> {
        let ports = |label: &String| {
            let port = self.task.ports.iter().find(|port| port.label == *label)?;
            Some((label.clone(), if port.to == 0 { port.value } else { port.to }))
        };
        self.read.ports.iter().filter_map(ports).chain(self.read.port_map.clone()).collect()
    }
}

/// A digest of what is asked for, whichever start asks.
fn mark(body: &ContainerCreateBody) -> String {
    use sha2::Digest as _;
    let mut value = serde_json::to_value(body).unwrap_or_default();
    if let Some(labels) = value.get_mut("Labels").and_then(serde_json::Value::as_object_mut) {
        labels.remove(LABEL_START);
    }
    sort(&mut value);
    let digest = sha2::Sha256::digest(value.to_string().as_bytes());
    digest.iter().fold(String::new(), |mut text, byte| {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn filled(map: &BTreeMap<String, String>) -> Option<HashMap<String, String>> {
    (!map.is_empty()).then(|| map.clone().into_iter().collect())
}

fn filled_list(list: &[String]) -> Option<Vec<String>> {
    (!list.is_empty()).then(|| list.to_vec())
}

/// Keys in order, so that equal values have equal texts.
fn sort(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(object) => {
            object.values_mut().for_each(sort);
            object.sort_keys();
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(sort),
        _ => {}
    }
}

fn file_mount(host_path: &Path, target: &str) -> Mount {
    Mount {
        target: Some(target.to_owned()),
        source: Some(host_path.display().to_string()),
        typ: Some(MountType::BIND),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

fn propagation(text: &str) -> Result<MountBindOptionsPropagationEnum, DriverError> {
    use MountBindOptionsPropagationEnum as P;
    let known = [
        ("private", P::PRIVATE),
        ("rprivate", P::RPRIVATE),
        ("shared", P::SHARED),
        ("rshared", P::RSHARED),
        ("slave", P::SLAVE),
        ("rslave", P::RSLAVE),
    ];
    let found = known.into_iter().find(|(name, _)| *name == text).map(|(_, value)| value);
    found.ok_or_else(|| {
        bad(format!("invalid propagation: {text:?}; it is one of private, rprivate, shared, rshared, slave, rslave"))
    })
}

/// `soft[:hard]`.
fn ulimit(name: &str, text: &str) -> Result<ResourcesUlimits, DriverError> {
    if text.is_empty() {
        return Err(bad(format!("Malformed ulimit specification {name}: {text:?}, cannot be empty")));
    }
    let (whole, (soft, hard)) = (text, text.split_once(':').unwrap_or((text, text)));
    let number = |what: &str, text: &str| {
        text.parse::<i64>().map_err(|_| bad(format!("Malformed {what} ulimit {name}: {whole}, must be a number")))
    };
    let (soft, hard) = (number("soft", soft)?, number("hard", hard)?);
    Ok(ResourcesUlimits { name: Some(name.to_owned()), soft: Some(soft), hard: Some(hard) })
}

/// `key=value`, `key:value` or `no-new-privileges`; a seccomp profile is read here and handed over whole.
fn security_option(text: &str) -> Result<String, DriverError> {
    let (key, value) = match text.split_once('=').or_else(|| text.split_once(':')) {
        Some(pair) => pair,
        None if text == "no-new-privileges" => return Ok(text.to_owned()),
        None => return Err(bad(format!("invalid security_opt: {text:?}"))),
    };
    if key != "seccomp" || ["unconfined", "builtin", "default"].contains(&value) {
        return Ok(format!("{key}={value}"));
    }
    let read = std::fs::read(value).map_err(|e| bad(format!("opening seccomp profile ({value}) failed: {e}")))?;
    let profile: serde_json::Value = serde_json::from_slice(&read)
        .map_err(|e| bad(format!("compacting json for seccomp profile ({value}) failed: {e}")))?;
    Ok(format!("seccomp={profile}"))
}

/// The hosts file of a task in its group's network.
pub(super) fn hosts_text(address: &str, hostname: &str, extra: &[String]) -> Result<String, DriverError> {
    let mut text = "127.0.0.1 localhost\n::1 localhost\n::1 ip6-localhost ip6-loopback\nfe00::0 ip6-localnet\n\
                    ff00::0 ip6-mcastprefix\nff02::1 ip6-allnodes\nff02::2 ip6-allrouters\nff02::3 ip6-allhosts\n"
        .to_owned();
    if !address.is_empty() {
        let _ = writeln!(text, "{address} {hostname}");
    }
    for entry in extra {
        let pair = entry.split_once(':').filter(|(name, ip)| !name.is_empty() && !ip.is_empty());
        let (name, ip) = pair.ok_or_else(|| bad(format!("invalid hosts entry {entry:?}; write host:ip")))?;
        let _ = writeln!(text, "{ip} {name}");
    }
    Ok(text)
}

fn write_hosts(dir: &Path, text: &str) -> Result<(), DriverError> {
    use std::io::Write as _;
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE | rustix::fs::OFlags::TRUNC;
    let write = || {
        let root = crate::sys::path::Root::open(dir)?;
        let flags = flags | rustix::fs::OFlags::NOFOLLOW;
        let file = root.open_beneath(Path::new("hosts"), flags, rustix::fs::Mode::from_raw_mode(0o644))?;
        std::fs::File::from(file).write_all(text.as_bytes())
    };
    write().map_err(|e| bad(format!("write the task's hosts file in {}: {e}", dir.display())))
}
