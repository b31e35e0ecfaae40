//! Conversion between the driver service's messages and this crate's types.

use std::time::{Duration, SystemTime};

use prost::Message as _;
use prost_types::{Any, Timestamp};
use tonic::{Code, Status};

use super::failed;
use super::{
    Attribute, Capabilities, Dns, DriverError, DriverNetwork, Fingerprint, FsIsolation, Health, NetworkIsolation,
    NetworkMode, NodeConfig, Port, TaskConfig, TaskEvent, TaskState, TaskStatus,
};
use crate::executor::{
    Compute, spec_device, spec_mount, spec_resources, system_time, timestamp, wire_device, wire_mount,
};
use crate::spec::{DriverConfig, ExitResult, IntoMap as _, Neighbours};
use crate::wire::drivers as wire;
use crate::wire::drivers::driver_capabilities::{FsIsolation as WireFs, MountConfigs};
use crate::wire::drivers::network_isolation_spec::NetworkIsolationMode;
use crate::wire::structs::{self, RecoverableError, attribute};
use crate::wire::{base, cty};

/// The message of a status without details that means `TaskNotFound`.
const NOT_FOUND: &str = "task not found for given id";
/// Type URL of the error detail that says whether the error is recoverable.
const RECOVERABLE_TYPE: &str = "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError";
/// Seconds of 0001-01-01, Go's zero time, which means "not set".
const NOT_YET: i64 = -62_135_596_800;

/// `google.rpc.Status`, which carries the details of an error.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

impl From<DriverError> for Status {
    /// Application errors are sent with code Unknown, as Go does: a host would take Unavailable or Canceled for a crash of the
    /// plugin. A recoverable error says so in its details.
    fn from(error: DriverError) -> Status {
        match error {
            DriverError::NotSupported(text) => Status::unimplemented(text),
            DriverError::Failed { message, recoverable: true } => recoverable_status(&message),
            other => Status::unknown(other.to_string()),
        }
    }
}

fn recoverable_status(message: &str) -> Status {
    let value = RecoverableError { recoverable: true }.encode_to_vec();
    let details = vec![Any { type_url: RECOVERABLE_TYPE.to_owned(), value }];
    let code = Code::FailedPrecondition;
    let status = RpcStatus { code: code as i32, message: message.to_owned(), details };
    Status::with_details(code, message, status.encode_to_vec().into())
}

impl DriverError {
    /// The error for a plugin's status. The status does not say whether the plugin's process is alive.
    pub(super) fn from_status(status: &Status) -> DriverError {
        let detail = RpcStatus::decode(status.details()).ok().and_then(|s| s.details.into_iter().next());
        let recoverable = detail.filter(|d| d.type_url == RECOVERABLE_TYPE);
        if let Some(flag) = recoverable.and_then(|d| RecoverableError::decode(d.value.as_slice()).ok()) {
            return failed(status.message().to_owned(), flag.recoverable);
        }
        match status.code() {
            Code::Unimplemented => DriverError::NotSupported(status.message().to_owned()),
            Code::Unknown if status.message() == NOT_FOUND => DriverError::TaskNotFound,
            _ => failed(status.message().to_owned(), false),
        }
    }
}

/// Decodes a configuration in the cty dialect of msgpack; no bytes mean no configuration.
pub(super) fn config(bytes: &[u8]) -> Result<DriverConfig, DriverError> {
    let value = cty::decode(bytes).map_err(|e| DriverError::Config(format!("failed to decode driver config: {e}")))?;
    match value {
        serde_json::Value::Null => Ok(DriverConfig::default()),
        serde_json::Value::Object(mut values) => {
            // Go hosts of version 1.x that encode the java driver's struct know this field by this name only.
            if let Some(work_dir) = values.remove("WorkDir") {
                values.entry("work_dir").or_insert(work_dir);
            }
            Ok(DriverConfig { values, ..DriverConfig::default() })
        }
        _ => Err(DriverError::Config("failed to decode driver config: it is not an object".to_owned())),
    }
}

pub(super) fn node_config(config: base::NomadConfig) -> NodeConfig {
    let Some(driver) = config.driver else { return NodeConfig::default() };
    let compute = driver.topology.as_ref().filter(|t| !t.cores.is_empty()).map(|topology| {
        let speed = |core: &base::ClientTopologyCore| {
            [core.base_speed, core.max_speed, core.guess_speed].into_iter().find(|mhz| *mhz > 0).unwrap_or(0)
        };
        let total = topology.cores.iter().filter(|core| !core.disable).map(speed).sum();
        let total_mhz = if topology.override_total_compute > 0 { topology.override_total_compute } else { total };
        Compute { total_mhz, cores: u32::try_from(topology.cores.len()).unwrap_or(u32::MAX) }
    });
    NodeConfig { compute, ports: (driver.client_min_port, driver.client_max_port) }
}

pub(super) fn wire_node_config(config: &NodeConfig) -> base::NomadConfig {
    let topology = config.compute.map(|compute| {
        let speed = compute.total_mhz / u64::from(compute.cores.max(1));
        let core = |id| base::ClientTopologyCore { core_id: id, base_speed: speed, ..Default::default() };
        base::ClientTopology {
            node_ids: vec![0],
            // The distance of a NUMA node to itself is 10; Go plugins index the table without checking its size.
            distances: Some(base::ClientTopologySlit { dimension: 1, values: vec![10] }),
            cores: (0..compute.cores).map(core).collect(),
            override_total_compute: compute.total_mhz,
            ..Default::default()
        }
    });
    let (client_min_port, client_max_port) = config.ports;
    base::NomadConfig { driver: Some(base::NomadDriverConfig { client_max_port, client_min_port, topology }) }
}

pub(super) fn wire_capabilities(capabilities: &Capabilities) -> wire::DriverCapabilities {
    let fs = match capabilities.fs_isolation {
        FsIsolation::None => WireFs::None,
        FsIsolation::Chroot => WireFs::Chroot,
        FsIsolation::Image => WireFs::Image,
        FsIsolation::Unveil => WireFs::Unveil,
    };
    let mounts = if capabilities.no_mounts { MountConfigs::NoMounts } else { MountConfigs::UnknownMounts };
    wire::DriverCapabilities {
        send_signals: capabilities.send_signals,
        exec: capabilities.exec,
        fs_isolation: fs.into(),
        network_isolation_modes: capabilities.network_modes.iter().map(|m| wire_mode(*m).into()).collect(),
        must_create_network: capabilities.must_create_network,
        mount_configs: mounts.into(),
        disable_log_collection: capabilities.disable_log_collection,
        dynamic_workload_users: capabilities.dynamic_workload_users,
    }
}

pub(super) fn capabilities(wire: &wire::DriverCapabilities) -> Capabilities {
    Capabilities {
        send_signals: wire.send_signals,
        exec: wire.exec,
        fs_isolation: match wire.fs_isolation() {
            WireFs::None => FsIsolation::None,
            WireFs::Chroot => FsIsolation::Chroot,
            WireFs::Image => FsIsolation::Image,
            WireFs::Unveil => FsIsolation::Unveil,
        },
        network_modes: wire.network_isolation_modes().map(network_mode).collect(),
        must_create_network: wire.must_create_network,
        no_mounts: wire.mount_configs() == MountConfigs::NoMounts,
        disable_log_collection: wire.disable_log_collection,
        dynamic_workload_users: wire.dynamic_workload_users,
    }
}

fn wire_mode(mode: NetworkMode) -> NetworkIsolationMode {
    match mode {
        NetworkMode::Host => NetworkIsolationMode::Host,
        NetworkMode::Group => NetworkIsolationMode::Group,
        NetworkMode::Task => NetworkIsolationMode::Task,
        NetworkMode::None => NetworkIsolationMode::None,
    }
}

fn network_mode(wire: NetworkIsolationMode) -> NetworkMode {
    match wire {
        NetworkIsolationMode::Host => NetworkMode::Host,
        NetworkIsolationMode::Group => NetworkMode::Group,
        NetworkIsolationMode::Task => NetworkMode::Task,
        NetworkIsolationMode::None => NetworkMode::None,
    }
}

pub(super) fn wire_network(network: NetworkIsolation) -> wire::NetworkIsolationSpec {
    wire::NetworkIsolationSpec {
        mode: wire_mode(network.mode).into(),
        path: network.path.to_string_lossy().into_owned(),
        labels: network.labels.into_iter().collect(),
        hosts_config: network.hosts.map(|(hostname, address)| wire::HostsConfig { hostname, address }),
    }
}

pub(super) fn network(wire: wire::NetworkIsolationSpec) -> NetworkIsolation {
    NetworkIsolation {
        mode: network_mode(wire.mode()),
        path: wire.path.into(),
        labels: wire.labels.into_iter().into_map(),
        hosts: wire.hosts_config.map(|hosts| (hosts.hostname, hosts.address)),
    }
}

pub(super) fn wire_fingerprint(fingerprint: Fingerprint) -> wire::FingerprintResponse {
    use wire::fingerprint_response::HealthState;
    let attribute = |attribute| {
        let (value, unit) = match attribute {
            Attribute::String(text) => (attribute::Value::StringVal(text), String::new()),
            Attribute::Bool(flag) => (attribute::Value::BoolVal(flag), String::new()),
            Attribute::Int(number, unit) => (attribute::Value::IntVal(number), unit),
            Attribute::Float(number, unit) => (attribute::Value::FloatVal(number), unit),
        };
        structs::Attribute { value: Some(value), unit }
    };
    let health = match fingerprint.health {
        Health::Undetected => HealthState::Undetected,
        Health::Unhealthy => HealthState::Unhealthy,
        Health::Healthy => HealthState::Healthy,
    };
    wire::FingerprintResponse {
        attributes: fingerprint.attributes.into_iter().map(|(name, value)| (name, attribute(value))).collect(),
        health: health.into(),
        health_description: fingerprint.description,
        err: fingerprint.error,
    }
}

pub(super) fn fingerprint(wire: wire::FingerprintResponse) -> Fingerprint {
    use wire::fingerprint_response::HealthState;
    let health = match wire.health() {
        HealthState::Undetected => Health::Undetected,
        HealthState::Unhealthy => Health::Unhealthy,
        HealthState::Healthy => Health::Healthy,
    };
    let attribute = |attribute: structs::Attribute| match attribute.value? {
        attribute::Value::StringVal(text) => Some(Attribute::String(text)),
        attribute::Value::BoolVal(flag) => Some(Attribute::Bool(flag)),
        attribute::Value::IntVal(number) => Some(Attribute::Int(number, attribute.unit)),
        attribute::Value::FloatVal(number) => Some(Attribute::Float(number, attribute.unit)),
    };
    let attributes = wire.attributes.into_iter().filter_map(|(name, value)| Some((name, attribute(value)?)));
    Fingerprint { attributes: attributes.into_map(), health, description: wire.health_description, error: wire.err }
}

/// A task as a host sends it. Fields that only the host needs stay in the message, which is returned with the handle.
pub(super) fn task_config(task: wire::TaskConfig) -> Result<TaskConfig, DriverError> {
    let resources = task.resources.unwrap_or_default();
    let linux = resources.linux_resources.clone().unwrap_or_default();
    let port = |n: i32| u16::try_from(n).unwrap_or(0);
    let ports = resources.ports.iter().map(|p| Port {
        label: p.label.clone(),
        value: port(p.value),
        to: port(p.to),
        host_ip: p.host_ip.parse().ok(),
    });
    let own_network = resources.allocated_resources.iter().filter_map(|r| r.networks.first());
    let task_ports = own_network.flat_map(|network| {
        network.reserved_ports.iter().chain(&network.dynamic_ports).map(|p| Port {
            label: p.label.clone(),
            value: port(p.value),
            to: 0,
            host_ip: network.ip.parse().ok(),
        })
    });
    let mount = |m| spec_mount(m).map_err(|error| failed(error.to_string(), false));
    let mut env = task.env;
    env.extend(task.device_env.clone());
    Ok(TaskConfig {
        config: config(&task.msgpack_driver_config)?,
        id: task.id,
        name: task.name,
        group: task.task_group_name,
        job_id: task.job_id,
        job_name: task.job_name,
        parent_job_id: task.parent_job_id,
        namespace: task.namespace,
        node_name: task.node_name,
        node_id: task.node_id,
        alloc_id: task.alloc_id,
        env: env.into_iter().into_map(),
        device_env: task.device_env.into_iter().into_map(),
        user: task.user,
        percent_ticks: linux.percent_ticks,
        ports: ports.collect(),
        task_ports: task_ports.collect(),
        cgroup: std::path::PathBuf::new(),
        cpuset_cgroup: linux.cpuset_cgroup.into(),
        resources: spec_resources(resources),
        alloc_dir: task.alloc_dir.into(),
        // The messages have no such field.
        neighbours: Neighbours::default(),
        mounts: task.mounts.into_iter().map(mount).collect::<Result<_, DriverError>>()?,
        devices: task.devices.into_iter().map(spec_device).collect(),
        logs: None,
        notices: None,
        stdout_path: task.stdout_path,
        stderr_path: task.stderr_path,
        network: task.network_isolation_spec.map(network),
        dns: task.dns.map(|d| Dns { servers: d.servers, searches: d.searches, options: d.options }),
    })
}

/// A task as a plugin gets it: output goes to the given paths; an empty path discards it.
pub(super) fn wire_task_config(task: &TaskConfig, msgpack_driver_config: Vec<u8>) -> wire::TaskConfig {
    let path = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let mib = |bytes: Option<u64>| bytes.map_or(0, |b| signed(b / (1024 * 1024)));
    let memory = task.resources.memory;
    let (memory_mb, memory_max_mb) = match (memory.hard_bytes, memory.soft_bytes) {
        (hard, None) => (mib(hard), 0),
        (None, soft) => (mib(soft), -1),
        (hard, soft) => (mib(soft), mib(hard)),
    };
    let quota = task.resources.cpu_quota_us;
    let resources = wire::Resources {
        allocated_resources: Some(wire::AllocatedTaskResources {
            cpu: Some(wire::AllocatedCpuResources { cpu_shares: signed(task.resources.cpu_shares) }),
            memory: Some(wire::AllocatedMemoryResources { memory_mb, memory_max_mb }),
            networks: Vec::new(),
        }),
        linux_resources: Some(wire::LinuxResources {
            cpu_shares: signed(task.resources.cpu_shares),
            memory_limit_bytes: memory.hard_bytes.or(memory.soft_bytes).map_or(0, signed),
            cpu_quota: quota.map_or(0, |(quota, _)| signed(quota)),
            cpu_period: quota.map_or(0, |(_, period)| signed(period)),
            cpuset_cpus: task.resources.cpuset_cpus.clone(),
            cpuset_cgroup: path(&task.cpuset_cgroup),
            percent_ticks: task.percent_ticks,
            ..Default::default()
        }),
        ports: task
            .ports
            .iter()
            .map(|p| wire::PortMapping {
                label: p.label.clone(),
                value: p.value.into(),
                to: p.to.into(),
                host_ip: p.host_ip.map(|ip| ip.to_string()).unwrap_or_default(),
            })
            .collect(),
    };
    let output = |path: &str| if path.is_empty() { "/dev/null".to_owned() } else { path.to_owned() };
    wire::TaskConfig {
        id: task.id.clone(),
        name: task.name.clone(),
        msgpack_driver_config,
        env: task.env.clone().into_iter().collect(),
        device_env: task.device_env.clone().into_iter().collect(),
        resources: Some(resources),
        mounts: task.mounts.iter().cloned().map(wire_mount).collect(),
        devices: task.devices.iter().cloned().map(wire_device).collect(),
        user: task.user.clone(),
        alloc_dir: path(&task.alloc_dir),
        stdout_path: output(&task.stdout_path),
        stderr_path: output(&task.stderr_path),
        task_group_name: task.group.clone(),
        job_name: task.job_name.clone(),
        parent_job_id: task.parent_job_id.clone(),
        job_id: task.job_id.clone(),
        namespace: task.namespace.clone(),
        node_name: task.node_name.clone(),
        node_id: task.node_id.clone(),
        alloc_id: task.alloc_id.clone(),
        network_isolation_spec: task.network.clone().map(wire_network),
        dns: task.dns.clone().map(|d| wire::DnsConfig { servers: d.servers, searches: d.searches, options: d.options }),
    }
}

pub(super) fn wire_override(network: DriverNetwork) -> wire::NetworkOverride {
    let ports = network.port_map.into_iter().map(|(label, port)| (label, i32::from(port)));
    wire::NetworkOverride { port_map: ports.collect(), addr: network.ip, auto_advertise: network.auto_advertise }
}

pub(super) fn wire_exit(exit: ExitResult) -> wire::ExitResult {
    wire::ExitResult {
        exit_code: exit.exit_code,
        signal: exit.signal,
        oom_killed: exit.oom_killed,
        core_dumped: exit.core_dumped,
    }
}

pub(super) fn exit(wire: wire::ExitResult) -> ExitResult {
    ExitResult {
        exit_code: wire.exit_code,
        signal: wire.signal,
        oom_killed: wire.oom_killed,
        core_dumped: wire.core_dumped,
    }
}

/// An unset time becomes Go's zero time, because a host refuses an answer without a time.
fn wire_time(time: Option<SystemTime>) -> Timestamp {
    time.map_or(Timestamp { seconds: NOT_YET, nanos: 0 }, timestamp)
}

/// Sets every nested message, empty or not, because a Go host dereferences them without a check.
pub(super) fn wire_status(status: TaskStatus) -> wire::InspectTaskResponse {
    let state = match status.state {
        TaskState::Unknown => wire::TaskState::Unknown,
        TaskState::Running => wire::TaskState::Running,
        TaskState::Exited => wire::TaskState::Exited,
    };
    wire::InspectTaskResponse {
        task: Some(wire::TaskStatus {
            id: status.id,
            name: status.name,
            state: state.into(),
            started_at: Some(wire_time(status.started_at)),
            completed_at: Some(wire_time(status.completed_at)),
            result: Some(wire_exit(status.exit.unwrap_or_default())),
        }),
        driver: Some(wire::TaskDriverStatus { attributes: status.attributes.into_iter().collect() }),
        network_override: status.network.map(wire_override),
    }
}

pub(super) fn status(wire: wire::InspectTaskResponse) -> TaskStatus {
    let task = wire.task.unwrap_or_default();
    let state = match task.state() {
        wire::TaskState::Unknown => TaskState::Unknown,
        wire::TaskState::Running => TaskState::Running,
        wire::TaskState::Exited => TaskState::Exited,
    };
    let time = |time: &Option<Timestamp>| time.as_ref().filter(|t| t.seconds > NOT_YET).map(system_time);
    TaskStatus {
        state,
        started_at: time(&task.started_at),
        completed_at: time(&task.completed_at),
        exit: task.result.filter(|_| state == TaskState::Exited).map(exit),
        id: task.id,
        name: task.name,
        attributes: wire.driver.unwrap_or_default().attributes.into_iter().into_map(),
        network: wire.network_override.map(driver_network),
    }
}

pub(super) fn driver_network(wire: wire::NetworkOverride) -> DriverNetwork {
    let ports = wire.port_map.into_iter().map(|(label, port)| (label, u16::try_from(port).unwrap_or(0)));
    DriverNetwork { port_map: ports.into_map(), ip: wire.addr, auto_advertise: wire.auto_advertise }
}

pub(super) fn wire_event(event: TaskEvent) -> wire::DriverTaskEvent {
    wire::DriverTaskEvent {
        task_id: event.task_id,
        alloc_id: event.alloc_id,
        task_name: event.task_name,
        timestamp: Some(timestamp(event.time)),
        message: event.message,
        annotations: event.annotations.into_iter().collect(),
    }
}

/// A duration that the host is required to send.
pub(super) fn duration(wire: Option<prost_types::Duration>) -> Result<Duration, Status> {
    let wire = wire.ok_or_else(|| Status::unknown("nil Duration"))?;
    // A negative duration counts as zero.
    Ok(Duration::try_from(wire).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables of device plugins are in the task's environment, where they replace its own, and are known as theirs.
    #[test]
    fn e1_variables_of_device_plugins_are_told_from_those_of_the_job() {
        let variable = |value: &str| [("GPU".to_owned(), value.to_owned())].into_iter().collect();
        let (env, device_env) = (variable("of the job"), variable("of the plugin"));
        let task = task_config(wire::TaskConfig { env, device_env, ..Default::default() }).unwrap();
        assert_eq!((task.env["GPU"].as_str(), task.device_env["GPU"].as_str()), ("of the plugin", "of the plugin"));
        assert_eq!(wire_task_config(&task, Vec::new()).device_env["GPU"], "of the plugin");
        let task = task_config(wire::TaskConfig { env: variable("of the job"), ..Default::default() }).unwrap();
        assert_eq!((task.env["GPU"].as_str(), task.device_env.len()), ("of the job", 0));
    }
}
