//! Translates a task into the body of the engine's create call. Never calls the engine.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::config::Config;
use super::task::{Mount as MountConfig, Task};
use super::{LABEL_ALLOC, LABEL_CONFIG, LABEL_NODE, LABEL_REMOVED_BY, LABEL_START, NAME};
use crate::docker::models::{
    ContainerCreateBody, DeviceMapping, EndpointIpamConfig, EndpointSettings, HealthConfig, HostConfig,
    HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount, MountBindOptions, MountBindOptionsPropagationEnum,
    MountTmpfsOptions, MountType, MountVolumeOptions, MountVolumeOptionsDriverConfig, NetworkingConfig, PortBinding,
    ResourcesUlimits,
};
use crate::driver::failed;
use crate::driver::glob::matches;
use crate::driver::isolated::{profile, resolv_conf, write_beneath};
use crate::driver::policy::{Minimum, PIDS};
use crate::driver::{DriverError, NetworkMode, Reader, TaskConfig};
use crate::executor::Compute;
use crate::spec::collections::BTreeMap;
use crate::spec::json;
use crate::spec::{self, Device, IntoMap as _, MOST_CPU_SHARES, Propagation, env_name, scaled_cpu_shares};
use crate::sys::path::open_resolved;

const MIB: i64 = 1024 * 1024;
/// Option of an engine: no program gains privileges.
const NO_NEW_PRIVILEGES: &str = "no-new-privileges";
/// Capabilities that an engine grants to every container by default, and that no task may ask for when a minimum is set.
const WITHHELD: [&str; 4] = ["CAP_FSETID", "CAP_SETFCAP", "CAP_MKNOD", "CAP_NET_RAW"];
/// Variable in which a device plugin names the Nvidia GPUs of a task.
const NVIDIA_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The device that Nvidia's runtime adds to each container with a GPU.
const NVIDIA_CONTROL: &str = "/dev/nvidiactl";
/// Smallest number of CPU shares that the kernel accepts.
const LEAST_SHARES: u64 = 2;
/// CPU shares of a cgroup that nobody gives any.
const DEFAULT_SHARES: u64 = 1024;

/// What a container depends on besides the task and the configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// Runtimes that the engine has.
    pub(super) runtimes: Vec<String>,
    /// Cgroup parent of the container; empty leaves the choice to the engine.
    pub(super) cgroup_parent: String,
    /// The compute capacity of this machine.
    pub(super) compute: Compute,
    /// Whether the kernel has a swappiness per cgroup: cgroup v1 only.
    pub(super) swappiness: bool,
    /// The node of this driver: containers of other nodes are never touched.
    pub(super) node: String,
    /// Who removes the container when it is left over.
    pub(super) removed_by: &'static str,
}

/// CPU shares as the kernel takes them; its default for 0.
pub(super) fn shares(shares: u64, compute: Compute) -> i64 {
    let scaled = match shares {
        0 => DEFAULT_SHARES,
        _ => scaled_cpu_shares(shares, compute.total_mhz).clamp(LEAST_SHARES, MOST_CPU_SHARES),
    };
    i64::try_from(scaled).unwrap_or(i64::MAX)
}

/// The container name of a task, the same for every start of the task in its allocation.
pub(super) fn name(task: &TaskConfig) -> String {
    format!("{}-{}", safe_name(&task.name), task.alloc_id)
}

/// The name of a task in that of its container.
pub(super) fn safe_name(task: &str) -> String {
    task.replace('/', "_")
}

/// Whether a device plugin gives the task GPUs.
fn has_gpu(task: &TaskConfig) -> bool {
    task.device_env.contains_key(NVIDIA_DEVICES)
}

/// The devices of device plugins. Those of GPUs are only named in a variable, by which their runtime adds them; of these, one that
/// is always there stands for all.
pub(super) fn devices(task: &TaskConfig) -> Vec<Device> {
    let control = || Device {
        task_path: NVIDIA_CONTROL.to_owned(),
        host_path: NVIDIA_CONTROL.into(),
        cgroup_permissions: String::new(),
    };
    task.devices.iter().cloned().chain(has_gpu(task).then(control)).collect()
}

fn bad(text: String) -> DriverError {
    failed(text, false)
}

/// The path with `.` and `..` resolved lexically.
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

/// Whether `path` lies below `dir`, both lexically and with its symbolic links resolved.
fn is_below(dir: &Path, path: &Path) -> bool {
    let path = lexical(path);
    let Ok(relative) = path.strip_prefix(dir) else { return false };
    let root = match crate::sys::path::Root::open(dir) {
        Ok(root) => root,
        Err(error) => return error.kind() == std::io::ErrorKind::NotFound,
    };
    // The longest existing prefix must not lead out of `dir`; the engine creates the missing rest.
    let mut part = relative.to_owned();
    loop {
        if part.as_os_str().is_empty() {
            return true;
        }
        let (flags, mode) = (OFlags::PATH, Mode::empty());
        match root.open_beneath(&part, flags, mode) {
            Ok(_) => return true,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // A dangling link does not count as missing.
                if root.open_beneath(&part, flags | OFlags::NOFOLLOW, mode).is_ok() {
                    return false;
                }
                part.pop();
            }
            Err(_) => return false,
        }
    }
}

/// Splits `src:dst[:mode]` without checking the parts.
fn split_volume(volume: &str) -> Result<(&str, &str, &str), DriverError> {
    let mut parts = volume.splitn(3, ':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(source), Some(target), mode) => Ok((source, target, mode.unwrap_or_default())),
        _ => Err(bad(format!("invalid docker volume: {volume:?}: not <src>:<destination> format"))),
    }
}

/// Builds the description of a container.
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

    /// The whole body. `image` is the id of the image that the task names.
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
        // Two starts with the same configuration have the same digest, so that the second may adopt a running container. The
        // digest is of the id, as the name may be given to another image.
        let mark = mark(&body);
        body.labels.get_or_insert_default().insert(LABEL_CONFIG.to_owned(), mark);
        // The name is what engines show.
        body.image = Some(read.image.strip_prefix("https://").unwrap_or(&read.image).to_owned());
        Ok(body)
    }

    fn command(&self) -> Option<Vec<String>> {
        let read = self.read;
        let words: Vec<String> =
            (!read.command.is_empty()).then(|| read.command.clone()).into_iter().chain(read.args.clone()).collect();
        (!words.is_empty()).then_some(words)
    }

    /// The task's environment; a port that `port_map` maps has the container's port in it.
    fn environment(&self) -> Vec<String> {
        let mut env = self.task.env.clone();
        for (label, inside) in &self.read.port_map {
            env.insert(env_name(&format!("NOMAD_PORT_{label}")), inside.to_string());
        }
        env.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    fn labels(&self) -> HashMap<String, String> {
        let task = self.task;
        let mut labels: HashMap<String, String> = self.read.labels.clone().into_iter().collect();
        labels.insert(LABEL_ALLOC.to_owned(), task.alloc_id.clone());
        labels.insert(LABEL_NODE.to_owned(), self.facts.node.clone());
        labels.insert(LABEL_REMOVED_BY.to_owned(), self.facts.removed_by.to_owned());
        labels.insert(LABEL_START.to_owned(), task.id.clone());
        let extra = [
            ("job_name", &task.job_name),
            ("job_id", &task.job_id),
            ("parent_job_id", &task.parent_job_id),
            ("task_group_name", &task.group),
            ("task_name", &task.name),
            ("namespace", &task.namespace),
            ("node_name", &task.node_name),
            ("node_id", &task.node_id),
        ];
        for (name, value) in extra {
            let absent = name == "parent_job_id" && value.is_empty();
            if !absent && self.config.extra_labels.iter().any(|glob| matches(glob, name)) {
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
            // The job asks for no hard limit.
            (0, soft) => (0, soft),
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
            // No swap in addition to the memory limit.
            host.memory_swap = Some(hard);
            host.memory_swappiness = self.facts.swappiness.then_some(0);
        }
        if reservation > 0 {
            host.memory_reservation = Some(reservation);
        }
        if resources.cpu_shares > 0 {
            host.cpu_shares = Some(shares(resources.cpu_shares, self.facts.compute));
        }
        if read.cpu_hard_limit {
            let period = if read.cpu_cfs_period == 0 { 100_000 } else { read.cpu_cfs_period };
            #[expect(clippy::cast_precision_loss, reason = "a quota needs no 53 bits")]
            let quota = self.task.percent_ticks * period as f64 * f64::from(self.facts.compute.cores.max(1));
            host.cpu_period = Some(period);
            // The smallest quota that the kernel accepts; a task without a share has none.
            host.cpu_quota = (self.task.percent_ticks > 0.0).then_some((quota as i64).max(1000));
        }
        host.cpuset_cpus = some(&resources.cpuset_cpus);
        host.cgroup_parent = some(&self.facts.cgroup_parent);
        let most = self.config.pids_limit;
        if most > 0 && read.pids_limit > most {
            let text = format!("pids_limit cannot be greater than nomad plugin config pids_limit: {most}");
            return Err(bad(text));
        }
        let minimum = self.config.policy.minimum;
        host.pids_limit = Some(match (read.pids_limit, most) {
            (..=0, 1..) => most,
            (0, _) if minimum.is_some() => i64::try_from(PIDS).unwrap_or(i64::MAX),
            (0, _) => -1,
            (own, _) => own,
        });
        host.oom_score_adj = read.oom_score_adj.or(Some(self.config.oom_score_adj)).filter(|score| *score != 0);
        host.shm_size = Some(read.shm_size).filter(|size| *size > 0);
        let mut ulimits: Vec<_> =
            read.ulimit.iter().map(|(name, text)| ulimit(name, text)).collect::<Result<_, _>>()?;
        if minimum.is_some() {
            // A core limit of the job can only be the same.
            ulimits.retain(|limit| limit.name.as_deref().is_none_or(|name| !name.eq_ignore_ascii_case("core")));
            ulimits.push(ulimit("core", "0")?);
        }
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
        let (add, mut drop) = config.allow_caps.beside_docker(&Reader::any(NAME, &self.task.config))?;
        // At minimum `default`, drops what root does not start with at that level; drops nothing when the container uses the
        // host's user namespace.
        match config.policy.minimum {
            Some(Minimum::Default) => {
                let has = |name: &&str| !drop.iter().any(|other| other == "ALL" || other == *name);
                let more: Vec<String> = WITHHELD.iter().filter(|name| has(name)).map(|&name| name.to_owned()).collect();
                drop.extend(more);
            }
            Some(Minimum::Strict) => drop = vec!["ALL".to_owned()],
            None => {}
        }
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
            // The engine's default may have been changed to `host`. On cgroup v1 the engine may not support private cgroup
            // namespaces.
            "" if config.policy.minimum.is_some() && !self.facts.swappiness => {
                Some(HostConfigCgroupnsModeEnum::PRIVATE)
            }
            "" => None,
            "host" => Some(HostConfigCgroupnsModeEnum::HOST),
            "private" => Some(HostConfigCgroupnsModeEnum::PRIVATE),
            other => return Err(bad(format!("invalid cgroupns: {other:?}; it is \"host\" or \"private\""))),
        };
        host.group_add = (!read.group_add.is_empty()).then(|| read.group_add.clone());
        let mut options = read.security_opt.iter().map(|text| security_option(text)).collect::<Result<Vec<_>, _>>()?;
        if config.policy.minimum.is_some() {
            options.retain(|option| !option.starts_with(NO_NEW_PRIVILEGES));
            options.push(NO_NEW_PRIVILEGES.to_owned());
        }
        host.security_opt = (!options.is_empty()).then_some(options);
        let runtime = if has_gpu(self.task) {
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
        for (source, target, mode) in [
            (&shared, "/alloc", ""),
            (&own.join("local"), "/local", ""),
            (&own.join("secrets"), "/secrets", ""),
            (&shared.join("logs"), "/alloc/logs", "ro"),
        ] {
            // A task that had the parent directory as a volume may have put a link there, which the engine would follow.
            if !is_below(&task.alloc_dir, source) {
                let source = source.display();
                return Err(bad(format!("cannot mount \"{source}\" to {target}: it is a link; remove it")));
            }
            bind(source, target, mode);
        }
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
            } else if source.starts_with('/') {
                lexical(Path::new(source))
            } else {
                PathBuf::from(source)
            };
            bind(&source, target, mode);
        }
        host.volume_driver = some(&read.volume_driver);
        let mut mounts = read.mounts.iter().map(|mount| self.mount(mount)).collect::<Result<Vec<_>, _>>()?;
        for mount in &task.mounts {
            check_identity(mount)?;
            if !mount.selinux_label.is_empty() {
                binds.push(labelled(mount)?);
                continue;
            }
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
            write_beneath(&own, "hosts", &hosts_text(address, hostname, &read.extra_hosts)?)
                .map_err(|e| bad(format!("failed to write {}: {e}", path.display())))?;
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
        let of_host = self.config.volumes && self.config.policy.minimum.is_none();
        if of_host || is_below(&self.task.alloc_dir, path) {
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
        } else {
            // Options without a driver are for the engine's own one.
            (&logging.driver, &logging.options)
        };
        let config = Some(options.clone().into_iter().collect());
        host.log_config = Some(HostConfigLogConfig { typ: some(driver), config });
    }

    /// Host name and address for the hosts file of a group's network, if the container is in it and both are known.
    fn hosts(&self) -> Option<(&str, &str)> {
        let network = self.task.network.as_ref().filter(|_| self.read.network_mode.is_empty())?;
        let (hostname, address) = network.hosts.as_ref()?;
        (!hostname.is_empty() && !address.is_empty()).then_some((hostname, address))
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
            // At minimum `strict` a task has no network unless it asks for one.
            None if self.config.policy.minimum == Some(Minimum::Strict) => "none".to_owned(),
            None => "default".to_owned(),
        };
        host.network_mode = Some(mode.clone());
        let foreign = mode.starts_with("container:");
        if self.task.dns.is_none() && !foreign {
            let servers = read.dns_servers.iter().filter(|server| is_address(server)).cloned();
            host.dns = filled_list(&servers.collect::<Vec<_>>());
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
        // Beside `ports`, a `port_map` maps nothing.
        if foreign {
            if read.ports.is_empty() && !read.port_map.is_empty() {
                return Err(bad("'port_map' cannot map group network ports, use 'ports' instead".to_owned()));
            }
        } else if !read.ports.is_empty() {
            for label in &read.ports {
                let port = find(label)?;
                publish(if port.to == 0 { port.value } else { port.to }, port);
            }
        } else if self.task.task_ports.is_empty() {
            for (label, inside) in &read.port_map {
                publish(*inside, find(label)?);
            }
        } else {
            for port in &self.task.task_ports {
                publish(read.port_map.get(&port.label).copied().unwrap_or(port.value), port);
            }
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
        self.read.ports.iter().filter_map(ports).chain(self.read.port_map.clone()).into_map()
    }
}

/// A digest of the requested configuration, independent of the start.
fn mark(body: &ContainerCreateBody) -> String {
    use sha2::Digest as _;
    let mut value = json::to_value(body).unwrap_or_default();
    if let Some(labels) = value.get_mut("Labels").and_then(serde_json::Value::as_object_mut) {
        labels.remove(LABEL_START);
        // Containers of earlier versions have none.
        labels.remove(LABEL_REMOVED_BY);
    }
    sort(&mut value);
    hex(&sha2::Sha256::digest(value.to_string().as_bytes()))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
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

/// Sorts the keys, so that equal values have equal text forms.
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

/// Checks that the path still leads to the file that was found when it was resolved. The engine opens the path again, on its
/// own.
fn check_identity(mount: &spec::Mount) -> Result<(), DriverError> {
    let Some(identity) = mount.identity else { return Ok(()) };
    let found = || {
        let stat = rustix::fs::fstat(&open_resolved(&mount.host_path)?)?;
        Ok::<_, std::io::Error>((stat.st_dev, stat.st_ino))
    };
    let cannot =
        |why: &str| bad(format!("cannot mount \"{}\" to {}: {why}", mount.host_path.display(), mount.task_path));
    match found() {
        Ok(found) if found == identity => Ok(()),
        Ok(_) => Err(cannot("it is another one than was given: somebody has put it there")),
        Err(error) => Err(cannot(&error.to_string())),
    }
}

/// A bind in the string form, which can carry an `SELinux` label but no path with a colon.
fn labelled(mount: &spec::Mount) -> Result<String, DriverError> {
    let (source, target) = (mount.host_path.display().to_string(), &mount.task_path);
    if source.contains(':') || target.contains(':') {
        return Err(bad(format!("cannot mount \"{source}\" to {target}: with selinux_label no path may have a colon")));
    }
    let propagation = match mount.propagation {
        Propagation::Private => "rprivate",
        Propagation::HostToTask => "rslave",
        Propagation::Bidirectional => "rshared",
    };
    let mode = if mount.readonly { "ro," } else { "" };
    Ok(format!("{source}:{target}:{mode}{propagation},{}", mount.selinux_label))
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

/// `key=value`, `key:value` or `no-new-privileges`; a seccomp profile is read here and passed on as text.
fn security_option(text: &str) -> Result<String, DriverError> {
    let (key, value) = match text.split_once('=').or_else(|| text.split_once(':')) {
        Some(pair) => pair,
        None if text == NO_NEW_PRIVILEGES => return Ok(text.to_owned()),
        None => return Err(bad(format!("invalid security_opt: {text:?}"))),
    };
    if key != "seccomp" || ["unconfined", "builtin", "default"].contains(&value) {
        return Ok(format!("{key}={value}"));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(value, flags, Mode::empty()).map_err(std::io::Error::from);
    let text = file.and_then(profile).map_err(|e| bad(format!("opening seccomp profile ({value}) failed: {e}")))?;
    let profile: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| bad(format!("compacting json for seccomp profile ({value}) failed: {e}")))?;
    Ok(format!("seccomp={profile}"))
}

/// Whether the text is an IP address, as the engine and hosts files require.
pub(super) fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// The hosts file of a task in its group's network.
fn hosts_text(address: &str, hostname: &str, extra: &[String]) -> Result<String, DriverError> {
    let mut text = "127.0.0.1 localhost\n::1 localhost\n::1 ip6-localhost ip6-loopback\nfe00::0 ip6-localnet\n\
                    ff00::0 ip6-mcastprefix\nff02::1 ip6-allnodes\nff02::2 ip6-allrouters\nff02::3 ip6-allhosts\n"
        .to_owned();
    let _ = writeln!(text, "{address} {hostname}");
    for entry in extra {
        let cannot = |what: &str| bad(format!("failed to build mount for /etc/hosts: invalid {what} {entry:?}"));
        let pair = entry.split_once(':').filter(|(name, _)| !name.is_empty());
        let (name, ip) = pair.ok_or_else(|| cannot("hosts entry"))?;
        if !is_address(ip) {
            return Err(cannot("IP address"));
        }
        let _ = writeln!(text, "{ip} {name}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::driver::docker::task::KEYS;
    use crate::driver::policy::{By, Policy};
    use crate::driver::{Dns, NetworkIsolation, Port};
    use crate::spec::collections::BTreeSet;
    use crate::spec::{DriverConfig, MemoryLimits, Resources};

    fn object(value: &Value) -> DriverConfig {
        DriverConfig { values: value.as_object().unwrap().clone(), ..DriverConfig::default() }
    }

    fn task(config: &Value) -> TaskConfig {
        let mut values = json!({ "image": "i" });
        values.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        let port = |label: &str, value, to| Port { label: label.to_owned(), value, to, host_ip: None };
        TaskConfig {
            id: "a/web/1".to_owned(),
            name: "web".to_owned(),
            alloc_id: "a".to_owned(),
            alloc_dir: PathBuf::from("/data/a"),
            config: object(&values),
            percent_ticks: 0.5,
            ports: vec![port("http", 20_000, 80), port("raw", 20_001, 0)],
            resources: Resources {
                cpu_shares: 500,
                memory: MemoryLimits { hard_bytes: Some(256 << 20), soft_bytes: None },
                ..Resources::default()
            },
            ..TaskConfig::default()
        }
    }

    fn body_of(task: &TaskConfig, plugin: &Value) -> Result<Value, String> {
        body_from("sha256:1", task, plugin)
    }

    fn body_from(image: &str, task: &TaskConfig, plugin: &Value) -> Result<Value, String> {
        let read = Task::read(&task.config).map_err(|e| e.to_string())?;
        let config = Config::read(&object(plugin)).map_err(|e| e.to_string())?;
        let runtimes = vec!["nvidia".to_owned(), "runc".to_owned()];
        let compute = Compute { total_mhz: 8000, cores: 4 };
        let facts = Facts { runtimes, compute, swappiness: true, ..Facts::default() };
        let builder = Builder { task, read: &read, config: &config, facts: &facts };
        builder.body(image).map(|body| serde_json::to_value(body).unwrap()).map_err(|e| e.to_string())
    }

    fn body(config: &Value, plugin: &Value) -> Result<Value, String> {
        body_of(&task(config), plugin)
    }

    /// Fails for a key without a row in the table, and for a key without an effect.
    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn e1_every_key_of_a_task_reaches_the_engine() {
        let privileged = json!({ "allow_privileged": true, "volumes": { "enabled": true }, "allow_runtimes": ["kata"],
                                 "allow_caps": ["all"] });
        let rows = [
            ("image", json!({ "image": "https://r.io/a:1" }), "/Image", json!("r.io/a:1")),
            ("command", json!({ "command": "c" }), "/Cmd", json!(["c"])),
            ("args", json!({ "command": "c", "args": ["a", "b"] }), "/Cmd", json!(["c", "a", "b"])),
            ("args", json!({ "args": ["a"] }), "/Cmd", json!(["a"])),
            ("entrypoint", json!({ "entrypoint": ["e", "f"] }), "/Entrypoint", json!(["e", "f"])),
            ("work_dir", json!({ "work_dir": "/w" }), "/WorkingDir", json!("/w")),
            ("hostname", json!({ "hostname": "h" }), "/Hostname", json!("h")),
            ("labels", json!({ "labels": [{ "k": "v" }] }), "/Labels/k", json!("v")),
            ("network_mode", json!({ "network_mode": "host" }), "/HostConfig/NetworkMode", json!("host")),
            (
                "network_aliases",
                json!({ "network_mode": "n", "network_aliases": ["x"] }),
                "/NetworkingConfig/EndpointsConfig/n/Aliases/0",
                json!("x"),
            ),
            (
                "ipv4_address",
                json!({ "network_mode": "n", "ipv4_address": "10.0.0.9" }),
                "/NetworkingConfig/EndpointsConfig/n/IPAMConfig/IPv4Address",
                json!("10.0.0.9"),
            ),
            (
                "ipv6_address",
                json!({ "network_mode": "n", "ipv6_address": "fd00::9" }),
                "/NetworkingConfig/EndpointsConfig/n/IPAMConfig/IPv6Address",
                json!("fd00::9"),
            ),
            (
                "mac_address",
                json!({ "network_mode": "n", "mac_address": "02:00:00:00:00:01" }),
                "/NetworkingConfig/EndpointsConfig/n/MacAddress",
                json!("02:00:00:00:00:01"),
            ),
            ("ports", json!({ "ports": ["http"] }), "/HostConfig/PortBindings/80~1tcp/0/HostPort", json!("20000")),
            ("ports", json!({ "ports": ["http"] }), "/HostConfig/PortBindings/80~1udp/0/HostPort", json!("20000")),
            ("ports", json!({ "ports": ["raw"] }), "/HostConfig/PortBindings/20001~1tcp/0/HostPort", json!("20001")),
            (
                "port_map",
                json!({ "port_map": [{ "raw": 8080 }] }),
                "/HostConfig/PortBindings/8080~1tcp/0/HostPort",
                json!("20001"),
            ),
            (
                "dns_servers",
                json!({ "dns_servers": ["1.1.1.1", "dns.example", "::1"] }),
                "/HostConfig/Dns",
                json!(["1.1.1.1", "::1"]),
            ),
            ("dns_search_domains", json!({ "dns_search_domains": ["d"] }), "/HostConfig/DnsSearch", json!(["d"])),
            ("dns_options", json!({ "dns_options": ["rotate"] }), "/HostConfig/DnsOptions", json!(["rotate"])),
            ("extra_hosts", json!({ "extra_hosts": ["h:1.2.3.4"] }), "/HostConfig/ExtraHosts", json!(["h:1.2.3.4"])),
            (
                "cap_add",
                json!({ "cap_drop": ["all"], "cap_add": ["sys_time"] }),
                "/HostConfig/CapAdd",
                json!(["CAP_SYS_TIME"]),
            ),
            ("cap_drop", json!({ "cap_drop": ["all"] }), "/HostConfig/CapDrop", json!(["ALL"])),
            ("privileged", json!({ "privileged": true }), "/HostConfig/Privileged", json!(true)),
            ("security_opt", json!({ "security_opt": ["label:x"] }), "/HostConfig/SecurityOpt", json!(["label=x"])),
            (
                "security_opt",
                json!({ "security_opt": ["seccomp=unconfined"] }),
                "/HostConfig/SecurityOpt",
                json!(["seccomp=unconfined"]),
            ),
            ("readonly_rootfs", json!({ "readonly_rootfs": true }), "/HostConfig/ReadonlyRootfs", json!(true)),
            ("userns_mode", json!({ "userns_mode": "host" }), "/HostConfig/UsernsMode", json!("host")),
            ("pid_mode", json!({ "pid_mode": "host" }), "/HostConfig/PidMode", json!("host")),
            ("ipc_mode", json!({ "ipc_mode": "private" }), "/HostConfig/IpcMode", json!("private")),
            ("uts_mode", json!({ "uts_mode": "host" }), "/HostConfig/UTSMode", json!("host")),
            ("cgroupns", json!({ "cgroupns": "private" }), "/HostConfig/CgroupnsMode", json!("private")),
            ("group_add", json!({ "group_add": ["g"] }), "/HostConfig/GroupAdd", json!(["g"])),
            ("cpu_hard_limit", json!({ "cpu_hard_limit": true }), "/HostConfig/CpuQuota", json!(200_000)),
            (
                "cpu_cfs_period",
                json!({ "cpu_hard_limit": true, "cpu_cfs_period": 50_000 }),
                "/HostConfig/CpuQuota",
                json!(100_000),
            ),
            ("memory_hard_limit", json!({ "memory_hard_limit": 512 }), "/HostConfig/Memory", json!(512 << 20)),
            (
                "memory_hard_limit",
                json!({ "memory_hard_limit": 512 }),
                "/HostConfig/MemoryReservation",
                json!(256 << 20),
            ),
            ("oom_score_adj", json!({ "oom_score_adj": 7 }), "/HostConfig/OomScoreAdj", json!(7)),
            ("pids_limit", json!({ "pids_limit": 9 }), "/HostConfig/PidsLimit", json!(9)),
            ("shm_size", json!({ "shm_size": 99 }), "/HostConfig/ShmSize", json!(99)),
            ("ulimit", json!({ "ulimit": [{ "nofile": "1:2" }] }), "/HostConfig/Ulimits/0/Soft", json!(1)),
            ("ulimit", json!({ "ulimit": [{ "nproc": "3" }] }), "/HostConfig/Ulimits/0/Hard", json!(3)),
            ("sysctl", json!({ "sysctl": [{ "a.b": "1" }] }), "/HostConfig/Sysctls/a.b", json!("1")),
            ("storage_opt", json!({ "storage_opt": { "size": "1G" } }), "/HostConfig/StorageOpt/size", json!("1G")),
            (
                "devices",
                json!({ "devices": [{ "host_path": "/dev/x" }] }),
                "/HostConfig/Devices/0",
                json!({ "PathOnHost": "/dev/x", "PathInContainer": "/dev/x", "CgroupPermissions": "rwm" }),
            ),
            (
                "mount",
                json!({ "mount": [{ "type": "bind", "source": "local", "target": "/t", "readonly": true,
                                    "bind_options": [{ "propagation": "rslave" }] }] }),
                "/HostConfig/Mounts/0",
                json!({ "Type": "bind", "Source": "/data/a/web/local", "Target": "/t", "ReadOnly": true,
                        "BindOptions": { "Propagation": "rslave" } }),
            ),
            (
                "mounts",
                json!({ "mounts": [{ "source": "v", "target": "/t", "volume_options": [{ "no_copy": true,
                    "labels": [{ "k": "v" }], "driver_config": [{ "name": "d", "options": [{ "o": "p" }] }] }] }] }),
                "/HostConfig/Mounts/0/VolumeOptions",
                json!({ "NoCopy": true, "Labels": { "k": "v" }, "DriverConfig": { "Name": "d", "Options": { "o": "p" } } }),
            ),
            (
                "mount",
                json!({ "mount": [{ "type": "tmpfs", "target": "/t", "tmpfs_options": [{ "size": 5, "mode": 511 }] }] }),
                "/HostConfig/Mounts/0/TmpfsOptions",
                json!({ "SizeBytes": 5, "Mode": 511 }),
            ),
            (
                "volumes",
                json!({ "volumes": ["local/x:/x:ro"] }),
                "/HostConfig/Binds/4",
                json!("/data/a/web/local/x:/x:ro"),
            ),
            ("volumes", json!({ "volumes": ["/etc:/x"] }), "/HostConfig/Binds/4", json!("/etc:/x")),
            ("volume_driver", json!({ "volume_driver": "d" }), "/HostConfig/VolumeDriver", json!("d")),
            (
                "volume_driver",
                json!({ "volume_driver": "d", "volumes": ["name:/x"] }),
                "/HostConfig/Binds/4",
                json!("name:/x"),
            ),
            (
                "volume_driver",
                json!({ "volume_driver": "d", "volumes": ["/a/./b/../c:/x:ro"] }),
                "/HostConfig/Binds/4",
                json!("/a/c:/x:ro"),
            ),
            (
                "logging",
                json!({ "logging": [{ "driver": "local", "config": [{ "max-size": "1m" }] }] }),
                "/HostConfig/LogConfig",
                json!({ "Type": "local", "Config": { "max-size": "1m" } }),
            ),
            (
                "logging",
                json!({ "logging": [{ "config": [{ "max-size": "1m" }] }] }),
                "/HostConfig/LogConfig",
                json!({ "Config": { "max-size": "1m" } }),
            ),
            (
                "logging",
                json!({ "logging": [{ "type": "gelf", "driver": "local" }] }),
                "/HostConfig/LogConfig/Type",
                json!("gelf"),
            ),
            ("healthchecks", json!({ "healthchecks": [{ "disable": true }] }), "/Healthcheck/Test", json!(["NONE"])),
            ("init", json!({ "init": true }), "/HostConfig/Init", json!(true)),
            ("interactive", json!({ "interactive": true }), "/OpenStdin", json!(true)),
            ("tty", json!({ "tty": true }), "/Tty", json!(true)),
            ("runtime", json!({ "runtime": "kata" }), "/HostConfig/Runtime", json!("kata")),
        ];
        let mut seen = BTreeSet::new();
        for (key, config, pointer, expected) in rows {
            let built = body(&config, &privileged).unwrap();
            assert_eq!(built.pointer(pointer), Some(&expected), "{key}: {config}");
            seen.insert(key);
        }
        // Not part of the container: fetching its image, its name, agentbin's own log files; and two keys without an effect.
        seen.extend(["auth", "auth_soft_fail", "force_pull", "image_pull_timeout", "load", "logs"]);
        seen.extend(["container_exists_attempts", "advertise_ipv6_address", "isolation", "cpuset_cpus"]);
        assert_eq!(seen, KEYS.into_iter().collect());
    }

    /// D93: with a minimum set, a task without settings has no more capabilities than a task may ask for.
    #[test]
    fn d93_a_container_begins_with_what_it_may_ask_for() {
        let all = ["CAP_FSETID", "CAP_SETFCAP", "CAP_MKNOD", "CAP_NET_RAW"];
        for (plugin, config, dropped) in [
            (json!({}), json!({}), all.to_vec()),
            (json!({ "allow_caps": ["all"] }), json!({}), all.to_vec()),
            (json!({ "allow_caps": ["all"] }), json!({ "cap_drop": ["mknod", "chown"] }), all.to_vec()),
            (json!({}), json!({ "cap_drop": ["all"] }), vec!["ALL"]),
        ] {
            let mut plugin = plugin;
            plugin.as_object_mut().unwrap().insert("isolation_minimum".into(), "default".into());
            let built = body(&config, &plugin).unwrap();
            let drop = built["HostConfig"]["CapDrop"].as_array().unwrap();
            let has = |name: &&str| drop.iter().filter(|other| *other == name).count() == 1;
            assert!(dropped.iter().all(has), "{plugin} {config}: {drop:?}");
        }
    }

    /// A task whose device plugin gives it all GPUs: the plugin names them in a variable, and lists no device.
    fn with_gpus(config: &Value) -> TaskConfig {
        let variable = BTreeMap::from([(NVIDIA_DEVICES.to_owned(), "all".to_owned())]);
        TaskConfig { env: variable.clone(), device_env: variable, ..task(config) }
    }

    /// D94: only a device plugin selects the runtime for GPUs, and no variable that a job sets itself, whatever devices it has.
    #[test]
    fn d94_a_variable_of_the_job_chooses_no_runtime() {
        let path = "/dev/nvidia0";
        let device = Device { host_path: path.into(), task_path: path.to_owned(), cgroup_permissions: "rw".to_owned() };
        let of_plugin = with_gpus(&json!({}));
        let of_job = TaskConfig { env: of_plugin.env.clone(), devices: vec![device], ..task(&json!({})) };
        for plugin in [json!({}), json!({ "isolation_minimum": "default" })] {
            let runtime = |task: &TaskConfig| body_of(task, &plugin).unwrap()["HostConfig"]["Runtime"].clone();
            assert_eq!((runtime(&of_plugin), runtime(&of_job)), (json!("nvidia"), Value::Null), "{plugin}");
        }
        for (config, plugin, problem) in [
            (json!({}), json!({ "nvidia_runtime": "gpus" }), "requested docker runtime \"gpus\" was not found"),
            (json!({}), json!({ "allow_runtimes": ["runc"] }), "requested runtime \"nvidia\" is not allowed"),
            (
                json!({ "runtime": "runc" }),
                json!({}),
                "conflicting runtime requests: gpu runtime \"nvidia\" conflicts with task runtime \"runc\"",
            ),
        ] {
            assert_eq!(body_of(&with_gpus(&config), &plugin), Err(problem.to_owned()));
        }
    }

    /// D90: GPUs are devices of a device plugin, although it lists none.
    #[test]
    fn d90_gpus_are_given_where_the_operator_says_so() {
        let check = |allow: Option<&str>, config: &TaskConfig| {
            let allow_devices = allow.map(|glob| vec![glob.to_owned()]);
            let policy = Policy { minimum: Some(Minimum::Strict), allow_devices, ..Policy::default() };
            policy.check_devices(NAME, &devices(config), By::Plugin).is_ok()
        };
        let (gpus, none) = (with_gpus(&json!({})), task(&json!({})));
        assert!(!check(None, &gpus) && !check(Some("/dev/tty*"), &gpus) && check(Some("/dev/nvidia*"), &gpus));
        assert!(check(None, &none));
    }

    /// `TestDockerDriver_memoryLimits`: the job's hard and soft limits in MiB, the task's own limit; then the container's
    /// limits.
    #[test]
    fn e1_memory_is_limited_as_nomad_does() {
        for (hard, soft, own, expected) in [
            (Some(256), None, 0, Ok((Some(256), None))),
            (Some(256), None, 512, Ok((Some(512), Some(256)))),
            (Some(512), Some(256), 0, Ok((Some(512), Some(256)))),
            (Some(512), Some(256), 1024, Ok((Some(1024), Some(256)))),
            (Some(512), Some(256), 300, Ok((Some(512), Some(256)))),
            // memory_max = -1
            (None, Some(256), 0, Ok((None, Some(256)))),
            (None, Some(256), 512, Ok((None, Some(256)))),
            (Some(256), None, 128, Err("task memory requirements exceed driver hard limit of 128 MB")),
        ] {
            let mut task = task(&json!({ "memory_hard_limit": own }));
            let bytes = |mib: Option<u64>| mib.map(|mib| mib << 20);
            task.resources.memory = MemoryLimits { hard_bytes: bytes(hard), soft_bytes: bytes(soft) };
            let built = body_of(&task, &json!({}));
            let built = built.as_ref().map_err(String::as_str).map(|body| {
                let mib = |key: &str| body["HostConfig"][key].as_i64().map(|bytes| bytes >> 20);
                // Never swap beyond it.
                assert_eq!((mib("MemorySwap"), mib("MemorySwappiness")), (mib("Memory"), mib("Memory").map(|_| 0)));
                (mib("Memory"), mib("MemoryReservation"))
            });
            match expected {
                Ok(expected) => assert_eq!(built, Ok(expected), "{hard:?} {soft:?} {own}"),
                Err(text) => assert!(built.is_err_and(|e| e.contains(text)), "{hard:?} {soft:?} {own}"),
            }
        }
    }

    /// Keys of the plugin; those that are not part of a container have tests in `config` and on an engine.
    #[test]
    fn e1_what_the_plugin_decides_reaches_the_engine() {
        let labels = |key: &str| format!("/Labels/com.hashicorp.nomad.{key}");
        let mut asked = task(&json!({ "pid_mode": "host", "cap_add": ["net_raw"], "cap_drop": ["all"] }));
        let of_job =
            [&mut asked.job_name, &mut asked.job_id, &mut asked.parent_job_id, &mut asked.group, &mut asked.namespace];
        for (field, value) in of_job.into_iter().zip(["n", "n/1", "parent", "g", "default"]) {
            value.clone_into(field);
        }
        let base = json!({
            "allowed_modes": { "pid": ["h*"] }, "allow_caps": ["net_raw"], "extra_labels": ["*job*", "namespace"],
            "pids_limit": 77, "oom_score_adj": 3, "volumes": { "selinuxlabel": "z" },
            "logging": { "type": "journald", "config": { "tag": "t" } },
        });
        let built = body_of(&asked, &base).unwrap();
        for (pointer, expected) in [
            (labels("job_name"), json!("n")),
            (labels("job_id"), json!("n/1")),
            (labels("parent_job_id"), json!("parent")),
            (labels("namespace"), json!("default")),
            ("/HostConfig/PidMode".to_owned(), json!("host")),
            ("/HostConfig/CapAdd".to_owned(), json!(["CAP_NET_RAW"])),
            ("/HostConfig/PidsLimit".to_owned(), json!(77)),
            ("/HostConfig/OomScoreAdj".to_owned(), json!(3)),
            ("/HostConfig/LogConfig".to_owned(), json!({ "Type": "journald", "Config": { "tag": "t" } })),
            (
                "/HostConfig/Binds".to_owned(),
                json!([
                    "/data/a/alloc:/alloc:z",
                    "/data/a/web/local:/local:z",
                    "/data/a/web/secrets:/secrets:z",
                    "/data/a/alloc/logs:/alloc/logs:ro,z"
                ]),
            ),
            ("/HostConfig/CpuShares".to_owned(), json!(500)),
        ] {
            assert_eq!(built.pointer(&pointer), Some(&expected), "{pointer}");
        }
        assert_eq!(built.pointer(&labels("task_group_name")), None, "not asked for");
        // Each under Nomad's prefix and under no other; agentbin's own labels do not name the job.
        let names = built["Labels"].as_object().unwrap().keys().map(String::as_str);
        let mut rest: Vec<&str> = names.map(|name| name.strip_prefix("com.hashicorp.nomad.").unwrap_or(name)).collect();
        rest.sort_unstable();
        let ours = ["agentbin.config", "agentbin.node", "agentbin.removed-by", "agentbin.start"];
        let nomads = ["alloc_id", "job_id", "job_name", "namespace", "parent_job_id"];
        assert_eq!(rest, [&ours[..], &nomads].concat());
        // A job without a parent has no label for it.
        asked.parent_job_id.clear();
        assert_eq!(body_of(&asked, &base).unwrap().pointer(&labels("parent_job_id")), None);
        for (plugin, config, problem) in [
            (json!({ "pids_limit": 5 }), json!({ "pids_limit": 6 }), "nomad plugin config pids_limit: 5"),
            (json!({}), json!({ "uts_mode": "host" }), "cannot apply \"uts_mode\" configuration"),
            (
                json!({ "allowed_modes": { "ipc": ["host"] } }),
                json!({ "ipc_mode": "private" }),
                "cannot apply \"ipc_mode\"",
            ),
            (json!({ "allow_runtimes": ["runc"] }), json!({ "runtime": "nvidia" }), "requested runtime \"nvidia\""),
            (json!({}), json!({ "volume_driver": "d" }), "volumes are not enabled; cannot use volume driver"),
            (json!({}), json!({ "mount": [{ "source": "v", "target": "/t" }] }), "cannot mount volume: \"v\""),
            (json!({}), json!({ "port_map": [{ "none": 1 }] }), "Port \"none\" not found"),
            (
                json!({}),
                json!({ "network_mode": "container:x", "port_map": [{ "http": 1 }] }),
                "'port_map' cannot map group network ports, use 'ports' instead",
            ),
            (json!({}), json!({ "cgroupns": "own" }), "invalid cgroupns"),
            (json!({}), json!({ "security_opt": ["seccomp=/nonexistent"] }), "opening seccomp profile"),
        ] {
            let said = body(&config, &plugin).unwrap_err();
            assert!(said.contains(problem), "{said}");
        }
    }

    /// `TestDockerDriver_PidsLimit`, `TestDockerDriver_PluginConfig_PidsLimit`.
    #[test]
    fn e1_a_job_does_not_lift_the_limit_of_the_plugin() {
        for (own, most, expected) in [(-1, 77, 77), (0, 77, 77), (50, 77, 50), (50, 0, 50), (-1, 0, -1), (0, 0, -1)] {
            let built = body(&json!({ "pids_limit": own }), &json!({ "pids_limit": most })).unwrap();
            assert_eq!(built["HostConfig"]["PidsLimit"], json!(expected), "{own} {most}");
        }
    }

    /// A `port_map` that is left over beside `ports` maps nothing; the task has its variables.
    #[test]
    fn e1_a_port_map_beside_ports_maps_nothing() {
        for (mode, expected) in [("bridge", &["80/tcp", "80/udp"][..]), ("container:x", &[])] {
            let port_map = json!([{ "http": 1, "raw": 2, "none": 3 }]);
            let config = json!({ "network_mode": mode, "ports": ["http"], "port_map": port_map });
            let built = body(&config, &json!({})).unwrap();
            let bound = built["HostConfig"]["PortBindings"].as_object().into_iter().flatten();
            let mut ports: Vec<&str> = bound.map(|(port, _)| port.as_str()).collect();
            ports.sort_unstable();
            assert_eq!(ports, expected, "{mode}");
            assert!(built["Env"].as_array().unwrap().contains(&json!("NOMAD_PORT_http=1")), "{mode}");
        }
    }

    #[test]
    fn e1_a_hard_limit_of_no_share_is_no_quota() {
        let limited = task(&json!({ "cpu_hard_limit": true }));
        for (percent_ticks, quota) in [(0.5, json!(200_000)), (0.000_001, json!(1000)), (0.0, Value::Null)] {
            let built = body_of(&TaskConfig { percent_ticks, ..limited.clone() }, &json!({})).unwrap();
            let host = &built["HostConfig"];
            assert_eq!((&host["CpuQuota"], &host["CpuPeriod"]), (&quota, &json!(100_000)), "{percent_ticks}");
        }
    }

    #[test]
    fn e1_hosts_are_names_with_addresses() {
        let hosts = |extra: &str| hosts_text("10.0.0.2", "web", &[extra.to_owned()]).map_err(|e| e.to_string());
        assert!(hosts("db:::1").unwrap().ends_with("10.0.0.2 web\n::1 db\n"));
        for (extra, problem) in [
            ("db", "hosts entry \"db\""),
            (":1.2.3.4", "hosts entry \":1.2.3.4\""),
            ("db:", "IP address \"db:\""),
            ("db:host-gateway", "IP address \"db:host-gateway\""),
            ("db:1.2.3.4.5", "IP address \"db:1.2.3.4.5\""),
        ] {
            assert_eq!(hosts(extra), Err(format!("failed to build mount for /etc/hosts: invalid {problem}")));
        }
    }

    #[test]
    fn e1_what_the_agent_gives_reaches_the_engine() {
        let dir = tempfile::tempdir().unwrap();
        let mut given = task(&json!({ "ports": ["http"], "dns_servers": ["9.9.9.9"], "extra_hosts": ["h:1.2.3.4"] }));
        given.alloc_dir = dir.path().to_owned();
        std::fs::create_dir(dir.path().join("web")).unwrap();
        given.env = BTreeMap::from([("A".to_owned(), "b=c".to_owned())]);
        "1000:1000".clone_into(&mut given.user);
        "0-1".clone_into(&mut given.resources.cpuset_cpus);
        given.dns = Some(Dns { servers: vec!["1.1.1.1".to_owned()], ..Dns::default() });
        given.network = Some(NetworkIsolation {
            mode: NetworkMode::Group,
            path: PathBuf::from("/var/run/netns/x"),
            labels: BTreeMap::from([(crate::driver::docker::network::LABEL_SANDBOX.to_owned(), "pause".to_owned())]),
            hosts: Some(("name".to_owned(), "10.0.0.2".to_owned())),
        });
        let built = body_of(&given, &json!({})).unwrap();
        let host = &built["HostConfig"];
        assert_eq!(built["Env"], json!(["A=b=c"]));
        assert_eq!((&built["User"], &host["CpusetCpus"]), (&json!("1000:1000"), &json!("0-1")));
        assert_eq!(host["NetworkMode"], json!("container:pause"));
        // In another container's network namespace, host names and ports are that container's.
        assert!(["PortBindings", "Dns", "ExtraHosts"].iter().all(|key| host[key].is_null()), "{host}");
        let targets: Vec<&str> =
            host["Mounts"].as_array().unwrap().iter().map(|mount| mount["Target"].as_str().unwrap()).collect();
        assert_eq!(targets, ["/etc/resolv.conf", "/etc/hosts"]);
        let hosts = std::fs::read_to_string(dir.path().join("web/hosts")).unwrap();
        assert!(hosts.contains("10.0.0.2 name\n") && hosts.ends_with("1.2.3.4 h\n"), "{hosts}");
        // Without the address there is no hosts file.
        let nowhere = NetworkIsolation {
            hosts: Some(("name".to_owned(), String::new())),
            ..given.network.clone().unwrap_or_default()
        };
        let built = body_of(&TaskConfig { network: Some(nowhere), ..given.clone() }, &json!({})).unwrap();
        assert_eq!(built["HostConfig"]["Mounts"].as_array().unwrap().len(), 1, "/etc/resolv.conf");
        // Shares outside of the kernel's range.
        for (shares, expected) in [(1, 2), (300_000, 262_144)] {
            given.resources.cpu_shares = shares;
            assert_eq!(body_of(&given, &json!({})).unwrap()["HostConfig"]["CpuShares"], json!(expected));
        }
        // Equal configurations have the same digest, whichever start asks.
        let mark = |task: &TaskConfig| body_of(task, &json!({})).unwrap()["Labels"][LABEL_CONFIG].clone();
        let before = mark(&given);
        "a/web/2".clone_into(&mut given.id);
        assert_eq!(mark(&given), before);
        let other = body_from("sha256:2", &given, &json!({})).unwrap();
        assert_ne!(other["Labels"][LABEL_CONFIG], before, "another image of this name");
        given.env.clear();
        assert_ne!(mark(&given), before);
        // In a network of its own choice a container has the engine's hosts file.
        given.config.values.insert("network_mode".to_owned(), json!("bridge"));
        let built = body_of(&given, &json!({})).unwrap();
        let host = &built["HostConfig"];
        assert_eq!((&host["NetworkMode"], &host["ExtraHosts"]), (&json!("bridge"), &json!(["h:1.2.3.4"])));
        let mounts = host["Mounts"].as_array().unwrap();
        assert!(mounts.iter().all(|mount| mount["Target"] != json!("/etc/hosts")), "{mounts:?}");
    }
}
