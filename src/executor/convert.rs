//! Converts between the executor service's messages and plain values.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prost::Message as _;
use prost_types::Timestamp;
use tonic::Status;

use super::{CpuQuota, ExecutorError, NewLimits};
use crate::spec::{
    CpuField, CpuStats, Device, ExitResult, HostIds, IntoMap as _, IoLimit, LaunchSpec, LimitedResource, LogCollection,
    LogKeeping, Masks, MemoryField, MemoryLimits, MemoryStats, Mount, NamespaceMode, Neighbours, Outlive, OutputHealth,
    OwnNamespaces, Pressure, Pressures, ProcessState, Propagation, ResourceLimit, Resources, Seccomp, Stall,
    StreamCounts, StreamHealth, TaskOutput, TaskStats, Unveil, Usage,
};
use crate::wire::drivers::{self, cpu_usage, memory_usage};
use crate::wire::executor as wire;

/// Trailer that carries the kind of the error; other hosts only see the text.
const KIND_KEY: &str = "agentbin-error";

impl From<ExecutorError> for Status {
    /// Application errors travel as Unknown, as Go plugins send them; Unavailable or Canceled would look like a crash to a host.
    fn from(error: ExecutorError) -> Status {
        let kind = match &error {
            // A code that Go hosts know.
            ExecutorError::DeadlineExceeded => return Status::deadline_exceeded(error.to_string()),
            ExecutorError::CommandNotFound(_) => "command-not-found",
            ExecutorError::NotExecutable(_) => "not-executable",
            ExecutorError::Invalid(_) => "invalid",
            ExecutorError::System(_) | ExecutorError::PluginShutdown => "system",
        };
        let mut status = Status::unknown(error.to_string());
        status.metadata_mut().insert(KIND_KEY, tonic::metadata::MetadataValue::from_static(kind));
        status
    }
}

impl From<Status> for ExecutorError {
    fn from(status: Status) -> ExecutorError {
        let text = status.message().to_owned();
        match status.metadata().get(KIND_KEY).map(tonic::metadata::MetadataValue::as_bytes) {
            Some(b"command-not-found") => ExecutorError::CommandNotFound(text),
            Some(b"not-executable") => ExecutorError::NotExecutable(text),
            Some(b"invalid") => ExecutorError::Invalid(text),
            _ if status.code() == tonic::Code::DeadlineExceeded => ExecutorError::DeadlineExceeded,
            _ if matches!(status.code(), tonic::Code::Unavailable | tonic::Code::Cancelled) => {
                ExecutorError::PluginShutdown
            }
            _ => ExecutorError::System(text),
        }
    }
}

pub(super) fn launch_spec(request: wire::LaunchRequest) -> Result<LaunchSpec, ExecutorError> {
    let invalid = |what: &str, value: &str| ExecutorError::Invalid(format!("{what} {value:?} is not known"));
    let mode = |what: &str, name: &str| NamespaceMode::from_name(name).ok_or_else(|| invalid(what, name));
    let ours = request.agentbin.is_some();
    let extension = request.agentbin.unwrap_or_default();
    let resources = request.resources.unwrap_or_default();
    let cpuset_cgroup = resources.linux_resources.as_ref().map(|l| l.cpuset_cgroup.clone()).unwrap_or_default();
    let mut mounts = request.mounts.into_iter().map(spec_mount).collect::<Result<Vec<_>, _>>()?;
    for wire::ResolvedMount { number, device, inode } in &extension.resolved_mounts {
        let mount = usize::try_from(*number).ok().and_then(|number| mounts.get_mut(number));
        mount.ok_or_else(|| invalid("resolved mount", &number.to_string()))?.identity = Some((*device, *inode));
    }
    let devices = request.devices.into_iter().map(spec_device);
    let unveil = |text: &String| Unveil::parse(text).ok_or_else(|| invalid("unveil", text));
    let capabilities = if !ours && request.user == "root" { capabilities_of_root() } else { request.capabilities };
    Ok(LaunchSpec {
        command: request.cmd,
        args: request.args,
        env: request.env,
        user: request.user,
        task_dir: request.task_dir.into(),
        work_dir: request.work_dir,
        resources: Resources {
            pids_max: Some(extension.pids_limit).filter(|most| *most > 0),
            pids_max_is_a_wish: extension.pids_limit_is_a_wish,
            io: extension.io.into_iter().map(spec_io).collect(),
            ..spec_resources(resources)
        },
        // Other hosts set this flag only for tasks with a root, but expect limits for every task for which they name a cgroup.
        resource_limits: request.resource_limits || (!ours && !cpuset_cgroup.is_empty()),
        stdout_path: request.stdout_path,
        stderr_path: request.stderr_path,
        mounts,
        devices: devices.collect(),
        network_namespace: request.network_isolation.unwrap_or_default().path.into(),
        no_pivot_root: request.no_pivot_root,
        pid_mode: mode("pid_mode", &request.default_pid_mode)?,
        ipc_mode: mode("ipc_mode", &request.default_ipc_mode)?,
        capabilities,
        cgroup_v1_override: request.cgroup_v1_override.into_iter().into_map(),
        cgroup_v2_override: request.cgroup_v2_override,
        cgroup: extension.cgroup.into(),
        cpuset_cgroup: cpuset_cgroup.into(),
        oom_score_adj: request.oom_score_adj,
        no_new_privs: extension.no_new_privs,
        seccomp: match extension.seccomp.as_str() {
            "" => Seccomp::Unconfined,
            "default" => Seccomp::Default,
            _ => Seccomp::Profile(extension.seccomp),
        },
        limits: extension.limits.iter().map(spec_limit).collect::<Result<_, _>>()?,
        own: OwnNamespaces { uts: extension.own_uts, cgroup: extension.own_cgroup, network: extension.own_network },
        user_namespace: extension.user_namespace,
        host_ids: match extension.host_ids {
            0 => None,
            base => Some(HostIds::new(base).ok_or_else(|| invalid("host_ids", &base.to_string()))?),
        },
        unveil: extension.unveil.iter().map(unveil).collect::<Result<_, _>>()?,
        masks: if extension.nomad_masks { Masks::Nomad } else { Masks::All },
        outlive: (!extension.outlive_record.is_empty())
            .then(|| Outlive { record: extension.outlive_record.into(), adopt: extension.adopt }),
        neighbours: match extension.neighbours {
            0 => Neighbours::None,
            1 => Neighbours::Shared,
            _ => Neighbours::Everywhere,
        },
        // Other hosts do not know the rule, and give tasks directories that everybody enters: nothing is refused, and no owner or
        // mode of their directories changes.
        allow_writable_programs: !ours || extension.allow_writable_programs,
        host_mounts: extension.host_mounts,
        filled_root: extension.filled_root,
        init: extension.init,
        host_users: extension.host_users,
        logs: extension.logs.map(|l| LogCollection {
            dir: l.dir.into(),
            stdout_file: l.stdout_file,
            stderr_file: l.stderr_file,
            max_files: l.max_files,
            max_file_size_bytes: l.max_file_size_bytes,
            keeping: LogKeeping {
                compress: l.compress,
                max_age: (l.max_age_seconds > 0).then(|| Duration::from_secs(l.max_age_seconds)),
            },
        }),
    })
}

/// What Nomad's executor gives a task of the user with the name "root", whatever list the request has: the first 38 capabilities,
/// to `CAP_AUDIT_READ`, as far as this process can give them.
fn capabilities_of_root() -> Vec<String> {
    let bounding = caps::read(None, caps::CapSet::Bounding).unwrap_or_default();
    let last = caps::Capability::CAP_AUDIT_READ.index();
    bounding.iter().filter(|capability| capability.index() <= last).map(ToString::to_string).collect()
}

fn spec_limit(limit: &wire::ResourceLimit) -> Result<ResourceLimit, ExecutorError> {
    let parsed = LimitedResource::from_name(&limit.name).and_then(|r| ResourceLimit::parse(r, &limit.value));
    parsed.ok_or_else(|| ExecutorError::Invalid(format!("limit {:?} = {:?} is not known", limit.name, limit.value)))
}

fn wire_limit(limit: ResourceLimit) -> wire::ResourceLimit {
    wire::ResourceLimit { name: limit.resource.name().to_owned(), value: limit.to_string() }
}

fn spec_io(limit: wire::IoLimit) -> IoLimit {
    let some = |value: u64| (value > 0).then_some(value);
    IoLimit {
        device: limit.device.into(),
        read_bps: some(limit.read_bps),
        write_bps: some(limit.write_bps),
        read_iops: some(limit.read_iops),
        write_iops: some(limit.write_iops),
    }
}

fn wire_io(limit: &IoLimit) -> wire::IoLimit {
    let number = |value: Option<u64>| value.unwrap_or(0);
    wire::IoLimit {
        device: limit.device.to_string_lossy().into_owned(),
        read_bps: number(limit.read_bps),
        write_bps: number(limit.write_bps),
        read_iops: number(limit.read_iops),
        write_iops: number(limit.write_iops),
    }
}

/// A bind mount as the host sends it.
///
/// # Errors
/// [`ExecutorError::Invalid`] for an unknown `propagation_mode`.
pub fn spec_mount(mount: drivers::Mount) -> Result<Mount, ExecutorError> {
    let drivers::Mount { task_path, host_path, readonly, propagation_mode, selinux_label, .. } = mount;
    let propagation = Propagation::from_name(&propagation_mode)
        .ok_or_else(|| ExecutorError::Invalid(format!("propagation_mode {propagation_mode:?} is not known")))?;
    Ok(Mount { task_path, host_path: host_path.into(), readonly, propagation, selinux_label, identity: None })
}

/// A bind mount on the wire.
pub fn wire_mount(mount: Mount) -> drivers::Mount {
    drivers::Mount {
        task_path: mount.task_path,
        host_path: mount.host_path.to_string_lossy().into_owned(),
        readonly: mount.readonly,
        propagation_mode: mount.propagation.name().to_owned(),
        selinux_label: mount.selinux_label,
        ..Default::default()
    }
}

/// A device as the host sends it.
pub fn spec_device(device: drivers::Device) -> Device {
    let drivers::Device { task_path, host_path, cgroup_permissions } = device;
    Device { task_path, host_path: host_path.into(), cgroup_permissions }
}

/// A device on the wire.
pub fn wire_device(device: Device) -> drivers::Device {
    let Device { task_path, host_path, cgroup_permissions } = device;
    drivers::Device { task_path, host_path: host_path.to_string_lossy().into_owned(), cgroup_permissions }
}

/// Limits as the host sends them.
pub fn spec_resources(resources: drivers::Resources) -> Resources {
    let allocated = resources.allocated_resources.unwrap_or_default();
    let linux = resources.linux_resources.unwrap_or_default();
    let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
    let memory = allocated.memory.unwrap_or_default();
    let cpu = allocated.cpu.unwrap_or_default();
    let quota =
        (linux.cpu_quota > 0 && linux.cpu_period > 0).then(|| (unsigned(linux.cpu_quota), unsigned(linux.cpu_period)));
    Resources {
        cpu_shares: unsigned(cpu.cpu_shares),
        cpu_quota_us: quota,
        memory: MemoryLimits::from_mib(memory.memory_mb, memory.memory_max_mb),
        cpuset_cpus: linux.cpuset_cpus,
        ..Resources::default()
    }
}

/// New limits as the host sends them. Fields missing in the message are not changed.
///
/// # Errors
/// [`ExecutorError::Invalid`].
pub(super) fn new_limits(request: wire::UpdateResourcesRequest) -> Result<NewLimits, ExecutorError> {
    let Some(drivers::Resources { allocated_resources, linux_resources, .. }) = request.resources else {
        return Err(ExecutorError::Invalid("resources are required".to_owned()));
    };
    let allocated = allocated_resources.unwrap_or_default();
    let shares = allocated.cpu.map(|cpu| u64::try_from(cpu.cpu_shares));
    let shares = shares.transpose().map_err(|_| ExecutorError::Invalid("cpu shares are negative".to_owned()))?;
    let memory =
        allocated.memory.map(|memory| NewLimits::memory(memory.memory_mb, memory.memory_max_mb)).transpose()?;
    let pids_max = linux_resources.as_ref().and_then(|linux| linux.pids_max).map(u64::try_from).transpose();
    let pids_max = pids_max.map_err(|_| ExecutorError::Invalid("the limit of processes is negative".to_owned()))?;
    let (cpu_quota, cpuset_cpus) = match linux_resources {
        None => (None, None),
        Some(linux) => (NewLimits::quota(linux.cpu_quota, linux.cpu_period)?, NewLimits::cpus(&linux.cpuset_cpus)?),
    };
    Ok(NewLimits { cpu_shares: shares, cpu_quota, memory, cpuset_cpus, pids_max })
}

pub(super) fn update_request(limits: NewLimits) -> wire::UpdateResourcesRequest {
    let NewLimits { cpu_shares, cpu_quota, memory, cpuset_cpus, pids_max } = limits;
    let allocated_resources = (cpu_shares.is_some() || memory.is_some()).then(|| drivers::AllocatedTaskResources {
        cpu: cpu_shares.map(|shares| drivers::AllocatedCpuResources { cpu_shares: signed(shares) }),
        memory: memory.map(wire_memory),
        networks: Vec::new(),
    });
    let linux_resources = (cpu_quota.is_some() || cpuset_cpus.is_some() || pids_max.is_some()).then(|| {
        let (cpu_quota, cpu_period) = match cpu_quota {
            None => (0, 0),
            Some(CpuQuota::Unlimited) => (-1, 0),
            Some(CpuQuota::Limited { quota_us, period_us }) => (signed(quota_us), signed(period_us)),
        };
        let cpuset_cpus = cpuset_cpus.unwrap_or_default();
        let pids_max = pids_max.map(signed);
        drivers::LinuxResources { cpu_quota, cpu_period, cpuset_cpus, pids_max, ..Default::default() }
    });
    let resources = drivers::Resources { allocated_resources, linux_resources, ports: Vec::new() };
    wire::UpdateResourcesRequest { resources: Some(resources) }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn wire_memory(memory: MemoryLimits) -> drivers::AllocatedMemoryResources {
    let mib = |bytes: Option<u64>| bytes.map_or(0, |b| signed(b / (1024 * 1024)));
    let (memory_mb, memory_max_mb) = match (memory.hard_bytes, memory.soft_bytes) {
        (hard, None) => (mib(hard), 0),
        (None, soft) => (mib(soft), -1),
        (hard, soft) => (mib(soft), mib(hard)),
    };
    drivers::AllocatedMemoryResources { memory_mb, memory_max_mb }
}

/// A launch specification as bytes, which later releases read.
#[must_use]
pub fn launch_to_bytes(spec: LaunchSpec) -> Vec<u8> {
    launch_request(spec).encode_to_vec()
}

/// Reads what [`launch_to_bytes`] wrote.
///
/// # Errors
/// [`ExecutorError::Invalid`] for bytes of something else.
pub fn launch_from(bytes: &[u8]) -> Result<LaunchSpec, ExecutorError> {
    let request = wire::LaunchRequest::decode(bytes);
    launch_spec(request.map_err(|error| ExecutorError::Invalid(format!("no launch specification: {error}")))?)
}

pub(super) fn launch_request(spec: LaunchSpec) -> wire::LaunchRequest {
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    let quota = spec.resources.cpu_quota_us;
    let network_isolation = (!spec.network_namespace.as_os_str().is_empty())
        .then(|| drivers::NetworkIsolationSpec { path: path(spec.network_namespace), ..Default::default() });
    let resolved = |(mount, number): (&Mount, u32)| {
        mount.identity.map(|(device, inode)| wire::ResolvedMount { number, device, inode })
    };
    let resolved_mounts = spec.mounts.iter().zip(0u32..).filter_map(resolved).collect();
    wire::LaunchRequest {
        cmd: spec.command,
        args: spec.args,
        env: spec.env,
        user: spec.user,
        task_dir: path(spec.task_dir),
        work_dir: spec.work_dir,
        resources: Some(drivers::Resources {
            allocated_resources: Some(drivers::AllocatedTaskResources {
                cpu: Some(drivers::AllocatedCpuResources { cpu_shares: signed(spec.resources.cpu_shares) }),
                memory: Some(wire_memory(spec.resources.memory)),
                networks: Vec::new(),
            }),
            linux_resources: Some(drivers::LinuxResources {
                cpu_quota: quota.map_or(0, |(quota, _)| signed(quota)),
                cpu_period: quota.map_or(0, |(_, period)| signed(period)),
                cpuset_cpus: spec.resources.cpuset_cpus,
                cpuset_cgroup: path(spec.cpuset_cgroup),
                ..Default::default()
            }),
            ports: Vec::new(),
        }),
        resource_limits: spec.resource_limits,
        stdout_path: spec.stdout_path,
        stderr_path: spec.stderr_path,
        mounts: spec.mounts.into_iter().map(wire_mount).collect(),
        devices: spec.devices.into_iter().map(wire_device).collect(),
        network_isolation,
        no_pivot_root: spec.no_pivot_root,
        default_pid_mode: spec.pid_mode.name().to_owned(),
        default_ipc_mode: spec.ipc_mode.name().to_owned(),
        capabilities: spec.capabilities,
        cgroup_v1_override: spec.cgroup_v1_override.into_iter().collect(),
        cgroup_v2_override: spec.cgroup_v2_override,
        oom_score_adj: spec.oom_score_adj,
        agentbin: Some(wire::Extension {
            logs: spec.logs.map(|l| wire::LogCollection {
                dir: path(l.dir),
                stdout_file: l.stdout_file,
                stderr_file: l.stderr_file,
                max_files: l.max_files,
                max_file_size_bytes: l.max_file_size_bytes,
                compress: l.keeping.compress,
                max_age_seconds: l.keeping.max_age.map_or(0, |age| age.as_secs().max(1)),
            }),
            cgroup: path(spec.cgroup),
            pids_limit: spec.resources.pids_max.unwrap_or(0),
            no_new_privs: spec.no_new_privs,
            pids_limit_is_a_wish: spec.resources.pids_max_is_a_wish,
            seccomp: match spec.seccomp {
                Seccomp::Unconfined => String::new(),
                Seccomp::Default => "default".to_owned(),
                Seccomp::Profile(text) => text,
            },
            limits: spec.limits.into_iter().map(wire_limit).collect(),
            io: spec.resources.io.iter().map(wire_io).collect(),
            user_namespace: spec.user_namespace,
            host_ids: spec.host_ids.map_or(0, HostIds::base),
            own_uts: spec.own.uts,
            own_cgroup: spec.own.cgroup,
            own_network: spec.own.network,
            unveil: spec.unveil.iter().map(ToString::to_string).collect(),
            nomad_masks: spec.masks == Masks::Nomad,
            neighbours: match spec.neighbours {
                Neighbours::None => 0,
                Neighbours::Shared => 1,
                Neighbours::Everywhere => 2,
            },
            allow_writable_programs: spec.allow_writable_programs,
            host_mounts: spec.host_mounts,
            resolved_mounts,
            filled_root: spec.filled_root,
            init: spec.init,
            host_users: spec.host_users,
            adopt: spec.outlive.as_ref().is_some_and(|outlive| outlive.adopt),
            outlive_record: spec.outlive.map(|outlive| path(outlive.record)).unwrap_or_default(),
        }),
        ..Default::default()
    }
}

/// A running process has exit code -1 in the message.
pub(super) fn wire_state(state: &ProcessState) -> wire::ProcessState {
    let exit = state.exit.unwrap_or(ExitResult { exit_code: -1, ..ExitResult::default() });
    wire::ProcessState {
        pid: state.pid,
        exit_code: exit.exit_code,
        signal: exit.signal,
        time: Some(timestamp(state.time)),
        oom_killed: exit.oom_killed,
        core_dumped: exit.core_dumped,
    }
}

pub(super) fn spec_state(state: wire::ProcessState, running: bool) -> ProcessState {
    let exit = ExitResult {
        exit_code: state.exit_code,
        signal: state.signal,
        oom_killed: state.oom_killed,
        core_dumped: state.core_dumped,
    };
    ProcessState {
        pid: state.pid,
        exit: (!running).then_some(exit),
        time: state.time.as_ref().map_or_else(SystemTime::now, system_time),
    }
}

/// A moment on the wire; one before 1970 is 1970.
pub fn timestamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or(0),
    }
}

/// A moment from the wire.
pub fn system_time(time: &Timestamp) -> SystemTime {
    let seconds = u64::try_from(time.seconds).unwrap_or(0);
    UNIX_EPOCH + Duration::new(seconds, u32::try_from(time.nanos).unwrap_or(0))
}

/// A sample on the wire.
pub fn wire_stats(stats: &TaskStats) -> drivers::TaskStats {
    drivers::TaskStats {
        id: String::new(),
        timestamp: Some(timestamp(stats.time)),
        agg_resource_usage: Some(wire_usage(&stats.total)),
        resource_usage_by_pid: stats.by_pid.iter().map(|(pid, usage)| (pid.to_string(), wire_usage(usage))).collect(),
        pressure: (stats.pressure != Pressures::default()).then(|| drivers::Pressures {
            cpu: stats.pressure.cpu.map(wire_pressure),
            memory: stats.pressure.memory.map(wire_pressure),
            io: stats.pressure.io.map(wire_pressure),
        }),
        output: stats.output.map(|output| drivers::TaskOutput {
            stdout: Some(wire_counts(output.stdout)),
            stderr: Some(wire_counts(output.stderr)),
        }),
    }
}

pub(super) fn wire_health(health: OutputHealth) -> wire::OutputChangedResponse {
    let stream = |stream: StreamHealth| wire::StreamHealth {
        failing: stream.failing.unwrap_or_default(),
        counts: Some(wire_counts(stream.counts)),
    };
    wire::OutputChangedResponse {
        changes: health.changes,
        stdout: Some(stream(health.stdout)),
        stderr: Some(stream(health.stderr)),
    }
}

pub(super) fn spec_health(health: wire::OutputChangedResponse) -> Option<OutputHealth> {
    let stream = |stream: wire::StreamHealth| StreamHealth {
        failing: Some(stream.failing).filter(|text| !text.is_empty()),
        counts: stream.counts.map(spec_counts).unwrap_or_default(),
    };
    let wire::OutputChangedResponse { changes, stdout, stderr } = health;
    Some(OutputHealth { changes, stdout: stream(stdout?), stderr: stream(stderr?) })
}

fn wire_counts(counts: StreamCounts) -> drivers::StreamCounts {
    let StreamCounts { bytes, lines, dropped_bytes, dropped_lines, rotations, split_lines } = counts;
    drivers::StreamCounts { bytes, lines, dropped_bytes, dropped_lines, rotations, split_lines }
}

fn spec_counts(counts: drivers::StreamCounts) -> StreamCounts {
    let drivers::StreamCounts { bytes, lines, dropped_bytes, dropped_lines, rotations, split_lines } = counts;
    StreamCounts { bytes, lines, dropped_bytes, dropped_lines, rotations, split_lines }
}

fn wire_pressure(pressure: Pressure) -> drivers::Pressure {
    let stall = |stall: Stall| drivers::Stall {
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
        total_us: stall.total_us,
    };
    drivers::Pressure { some: Some(stall(pressure.some)), full: pressure.full.map(stall) }
}

fn spec_pressure(pressure: drivers::Pressure) -> Pressure {
    let stall = |stall: drivers::Stall| Stall {
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
        total_us: stall.total_us,
    };
    Pressure { some: pressure.some.map(stall).unwrap_or_default(), full: pressure.full.map(stall) }
}

/// A sample from the wire.
pub fn spec_stats(stats: drivers::TaskStats) -> TaskStats {
    TaskStats {
        time: stats.timestamp.as_ref().map_or_else(SystemTime::now, system_time),
        total: stats.agg_resource_usage.map(spec_usage).unwrap_or_default(),
        by_pid: stats
            .resource_usage_by_pid
            .into_iter()
            .filter_map(|(pid, usage)| Some((pid.parse().ok()?, spec_usage(usage))))
            .into_map(),
        pressure: stats.pressure.map_or_else(Pressures::default, |pressure| Pressures {
            cpu: pressure.cpu.map(spec_pressure),
            memory: pressure.memory.map(spec_pressure),
            io: pressure.io.map(spec_pressure),
        }),
        output: stats.output.map(|output| TaskOutput {
            stdout: output.stdout.map(spec_counts).unwrap_or_default(),
            stderr: output.stderr.map(spec_counts).unwrap_or_default(),
        }),
    }
}

const CPU_FIELDS: [(CpuField, cpu_usage::Fields); 6] = [
    (CpuField::SystemMode, cpu_usage::Fields::SystemMode),
    (CpuField::UserMode, cpu_usage::Fields::UserMode),
    (CpuField::TotalTicks, cpu_usage::Fields::TotalTicks),
    (CpuField::ThrottledPeriods, cpu_usage::Fields::ThrottledPeriods),
    (CpuField::ThrottledTime, cpu_usage::Fields::ThrottledTime),
    (CpuField::Percent, cpu_usage::Fields::Percent),
];

const MEMORY_FIELDS: [(MemoryField, memory_usage::Fields); 7] = [
    (MemoryField::Rss, memory_usage::Fields::Rss),
    (MemoryField::Cache, memory_usage::Fields::Cache),
    (MemoryField::MaxUsage, memory_usage::Fields::MaxUsage),
    (MemoryField::KernelUsage, memory_usage::Fields::KernelUsage),
    (MemoryField::KernelMaxUsage, memory_usage::Fields::KernelMaxUsage),
    (MemoryField::Usage, memory_usage::Fields::Usage),
    (MemoryField::Swap, memory_usage::Fields::Swap),
];

fn wire_usage(usage: &Usage) -> drivers::TaskResourceUsage {
    let measured = |field: &CpuField| CPU_FIELDS.iter().find(|(f, _)| f == field).map(|(_, w)| i32::from(*w));
    let cpu = drivers::CpuUsage {
        system_mode: usage.cpu.system_mode,
        user_mode: usage.cpu.user_mode,
        total_ticks: usage.cpu.total_ticks,
        throttled_periods: usage.cpu.throttled_periods,
        throttled_time: usage.cpu.throttled_time_ns,
        percent: usage.cpu.percent,
        measured_fields: usage.cpu.measured.iter().filter_map(measured).collect(),
    };
    let measured = |field: &MemoryField| MEMORY_FIELDS.iter().find(|(f, _)| f == field).map(|(_, w)| i32::from(*w));
    let memory = drivers::MemoryUsage {
        rss: usage.memory.rss,
        cache: usage.memory.cache,
        max_usage: usage.memory.max_usage,
        kernel_usage: usage.memory.kernel_usage,
        kernel_max_usage: usage.memory.kernel_max_usage,
        usage: usage.memory.usage,
        swap: usage.memory.swap,
        limit: usage.memory.limit,
        measured_fields: usage.memory.measured.iter().filter_map(measured).collect(),
    };
    drivers::TaskResourceUsage { cpu: Some(cpu), memory: Some(memory) }
}

fn spec_usage(usage: drivers::TaskResourceUsage) -> Usage {
    let cpu = usage.cpu.unwrap_or_default();
    let memory = usage.memory.unwrap_or_default();
    let cpu_measured = CPU_FIELDS.iter().filter(|(_, w)| cpu.measured_fields.contains(&i32::from(*w)));
    let memory_measured = MEMORY_FIELDS.iter().filter(|(_, w)| memory.measured_fields.contains(&i32::from(*w)));
    Usage {
        cpu: CpuStats {
            system_mode: cpu.system_mode,
            user_mode: cpu.user_mode,
            total_ticks: cpu.total_ticks,
            throttled_periods: cpu.throttled_periods,
            throttled_time_ns: cpu.throttled_time,
            percent: cpu.percent,
            measured: cpu_measured.map(|(f, _)| *f).collect(),
        },
        memory: MemoryStats {
            rss: memory.rss,
            cache: memory.cache,
            max_usage: memory.max_usage,
            kernel_usage: memory.kernel_usage,
            kernel_max_usage: memory.kernel_max_usage,
            usage: memory.usage,
            swap: memory.swap,
            limit: memory.limit,
            measured: memory_measured.map(|(f, _)| *f).collect(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::{isolated, universal};
    use super::*;
    use crate::spec::collections::BTreeMap;

    /// What a host sends, at the limits of its numbers. A table in `src/cgroup/limits.rs` has the values that are written for them.
    #[test]
    fn c2_limits_at_their_ends_as_hosts_send_them() {
        let sent = |cpu_shares, [memory_mb, memory_max_mb]: [i64; 2], [cpu_quota, cpu_period]: [i64; 2]| {
            spec_resources(drivers::Resources {
                allocated_resources: Some(drivers::AllocatedTaskResources {
                    cpu: Some(drivers::AllocatedCpuResources { cpu_shares }),
                    memory: Some(drivers::AllocatedMemoryResources { memory_mb, memory_max_mb }),
                    networks: Vec::new(),
                }),
                linux_resources: Some(drivers::LinuxResources { cpu_quota, cpu_period, ..Default::default() }),
                ports: Vec::new(),
            })
        };
        let (mib, none, most) = (1 << 20, MemoryLimits::default(), i64::MAX.unsigned_abs());
        let memory = |hard_bytes, soft_bytes| MemoryLimits { hard_bytes, soft_bytes };
        for (given, expected) in [
            ((0, [0, 0], [0, 0]), (0, none, None)),
            ((1, [1, 0], [1, 1]), (1, memory(Some(mib), None), Some((1, 1)))),
            ((2, [1, 2], [50_000, 100_000]), (2, memory(Some(2 * mib), Some(mib)), Some((50_000, 100_000)))),
            // No limit is -1 for the kernel's quota, and for a job's memory_max.
            ((-1, [-1, 0], [-1, 100_000]), (0, none, None)),
            ((i64::MIN, [1, -1], [1000, 0]), (0, memory(None, Some(mib)), None)),
            ((5, [0, -1], [0, 100_000]), (5, none, None)),
            ((i64::MAX, [i64::MAX, 0], [i64::MAX, i64::MAX]), (most, memory(Some(u64::MAX), None), Some((most, most)))),
            ((5, [1, i64::MAX], [i64::MIN, i64::MIN]), (5, memory(Some(u64::MAX), Some(mib)), None)),
        ] {
            let resources = sent(given.0, given.1, given.2);
            let told = (resources.cpu_shares, resources.memory, resources.cpu_quota_us);
            assert_eq!(told, expected, "{given:?}");
        }
        assert_eq!(spec_resources(drivers::Resources::default()), Resources::default());
    }

    /// Other hosts set the flag for limits only for isolated tasks, and name a cgroup for all; our host's flag is taken as it is.
    #[test]
    fn a_named_cgroup_is_meant() {
        let request = |cgroup: &str, agentbin| wire::LaunchRequest {
            resources: Some(drivers::Resources {
                linux_resources: Some(drivers::LinuxResources { cpuset_cgroup: cgroup.into(), ..Default::default() }),
                ..Default::default()
            }),
            default_pid_mode: "private".into(),
            default_ipc_mode: "private".into(),
            agentbin,
            ..Default::default()
        };
        let limits = |request| launch_spec(request).unwrap().resource_limits;
        assert!(limits(request("/sys/fs/cgroup/cpuset/nomad/share", None)));
        assert!(!limits(request("", None)));
        assert!(!limits(request("/sys/fs/cgroup/cpuset/nomad/share", Some(wire::Extension::default()))));
    }

    /// N6: a host that does not know our fields gets the behaviour that it always had.
    #[test]
    fn n6_other_hosts_ask_for_nothing_of_ours() {
        let request =
            wire::LaunchRequest { cmd: "c".into(), capabilities: vec!["CAP_KILL".into()], ..Default::default() };
        let expected =
            LaunchSpec { command: "c".into(), capabilities: vec!["CAP_KILL".into()], ..LaunchSpec::default() };
        // Except for the rule about other tasks and users, which it does not know.
        let expected = LaunchSpec { allow_writable_programs: true, ..expected };
        assert_eq!(launch_spec(request), Ok(expected.clone()));
        assert_eq!((expected.seccomp, expected.no_new_privs, expected.masks), (Seccomp::Unconfined, false, Masks::All));
        assert_eq!((expected.own, expected.user_namespace), (OwnNamespaces::default(), false));
        assert_eq!((expected.limits, expected.unveil, expected.resources), (vec![], vec![], Resources::default()));
    }

    /// The task's directory stays as another host made it, and its programs are executed, whoever can enter it. Our own drivers
    /// keep the rule unless they turn it off.
    #[test]
    fn other_hosts_get_no_rule_about_programs() {
        let guarded = |agentbin| {
            let task_dir = "/tmp/alloc/task".into();
            let spec = launch_spec(wire::LaunchRequest { task_dir, agentbin, ..Default::default() }).unwrap();
            let writers = universal::Writers::of(&spec.task_dir, None, universal::neighbours(&spec));
            [isolated::config(&spec).unwrap().guard.is_some(), writers.is_some()]
        };
        assert_eq!(guarded(None), [false, false]);
        assert_eq!(guarded(Some(wire::Extension::default())), [true, true]);
        let allowed = wire::Extension { allow_writable_programs: true, ..Default::default() };
        assert_eq!(guarded(Some(allowed)), [false, false]);
    }

    /// B3: only hosts without our extension expect that root has more than the list.
    #[test]
    fn root_of_other_hosts_has_nomads_capabilities() {
        let sorted = |user: &str, agentbin| {
            let (user, capabilities) = (user.into(), vec!["CAP_KILL".into()]);
            let request = wire::LaunchRequest { user, capabilities, agentbin, ..Default::default() };
            let mut names = launch_spec(request).unwrap().capabilities;
            names.sort();
            names
        };
        let bounding = caps::read(None, caps::CapSet::Bounding).unwrap();
        let newer = ["CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE"];
        let mut wanted: Vec<String> = bounding.iter().map(ToString::to_string).collect();
        wanted.retain(|name| !newer.contains(&name.as_str()));
        wanted.sort();
        assert_eq!(sorted("root", None), wanted);
        for (user, agentbin) in [("root", Some(wire::Extension::default())), ("nobody", None), ("", None)] {
            assert_eq!(sorted(user, agentbin), ["CAP_KILL"], "{user}");
        }
    }

    /// Sets every field and compares after a round trip: a field added to the command but forgotten in one converter would be lost.
    #[test]
    fn launch_survives_the_wire() {
        let mib = 1024 * 1024;
        let spec = LaunchSpec {
            command: "c".into(),
            args: vec!["a".into()],
            env: vec!["K=v".into()],
            user: "nobody".into(),
            task_dir: "/t".into(),
            work_dir: "/w".into(),
            resources: Resources {
                cpu_shares: 500,
                cpu_quota_us: Some((50_000, 100_000)),
                memory: MemoryLimits { hard_bytes: Some(64 * mib), soft_bytes: Some(32 * mib) },
                pids_max: Some(9),
                pids_max_is_a_wish: true,
                io: vec![
                    IoLimit { device: "/dev/a".into(), read_bps: Some(1), write_iops: Some(4), ..IoLimit::default() },
                    IoLimit { device: "/dev/b".into(), write_bps: Some(2), read_iops: Some(3), ..IoLimit::default() },
                ],
                cpuset_cpus: "0-1".into(),
                cgroup_v1_override: BTreeMap::new(),
                cgroup_v2_override: None,
            },
            resource_limits: true,
            stdout_path: "/o".into(),
            stderr_path: "/e".into(),
            mounts: vec![Mount {
                task_path: "/m".into(),
                host_path: "/h".into(),
                readonly: true,
                propagation: Propagation::HostToTask,
                selinux_label: "Z".into(),
                identity: Some((7, u64::MAX)),
            }],
            devices: vec![Device {
                task_path: "/d".into(),
                host_path: "/dev/null".into(),
                cgroup_permissions: "rw".into(),
            }],
            network_namespace: "/run/netns/x".into(),
            no_pivot_root: true,
            pid_mode: NamespaceMode::Host,
            ipc_mode: NamespaceMode::Host,
            capabilities: vec!["CAP_KILL".into()],
            cgroup_v1_override: BTreeMap::from([("pids".into(), "/p".into())]),
            cgroup_v2_override: "/x".into(),
            cgroup: "nomad/a-b".into(),
            cpuset_cgroup: "/sys/fs/cgroup/cpuset/nomad/share".into(),
            oom_score_adj: 7,
            no_new_privs: true,
            seccomp: Seccomp::Default,
            limits: vec![
                ResourceLimit { resource: LimitedResource::Core, soft: Some(0), hard: None },
                ResourceLimit { resource: LimitedResource::Nofile, soft: Some(7), hard: Some(8) },
            ],
            own: OwnNamespaces { uts: true, cgroup: true, network: true },
            user_namespace: true,
            host_ids: HostIds::new(1 << 16),
            unveil: vec![Unveil { path: "/u:v".into(), read: true, create: true, ..Unveil::default() }],
            neighbours: Neighbours::Everywhere,
            allow_writable_programs: true,
            host_mounts: 1,
            filled_root: true,
            init: true,
            host_users: true,
            masks: Masks::Nomad,
            outlive: Some(Outlive { record: "/r".into(), adopt: true }),
            logs: Some(LogCollection {
                dir: "/l".into(),
                stdout_file: "t.stdout".into(),
                stderr_file: "t.stderr".into(),
                max_files: 3,
                max_file_size_bytes: 4,
                keeping: LogKeeping { compress: true, max_age: Some(Duration::from_secs(5)) },
            }),
        };
        assert_eq!(launch_spec(launch_request(spec.clone())), Ok(spec.clone()));
        for limits in [
            MemoryLimits { hard_bytes: Some(5 * mib), soft_bytes: None },
            MemoryLimits { hard_bytes: None, soft_bytes: Some(5 * mib) },
            MemoryLimits::default(),
        ] {
            let mut spec = spec.clone();
            spec.resources.memory = limits;
            assert_eq!(launch_spec(launch_request(spec)).unwrap().resources.memory, limits);
        }
        for seccomp in [Seccomp::Unconfined, Seccomp::Profile("{}".into())] {
            let spec = LaunchSpec { seccomp, ..spec.clone() };
            assert_eq!(launch_spec(launch_request(spec.clone())), Ok(spec));
        }
        for (uts, cgroup, network) in [(true, false, false), (false, true, false), (false, false, true)] {
            let spec = LaunchSpec { own: OwnNamespaces { uts, cgroup, network }, ..spec.clone() };
            assert_eq!(launch_spec(launch_request(spec.clone())), Ok(spec));
        }
    }

    /// B7: every measured value and its place in the list of measured fields.
    #[test]
    fn stats_survive_the_wire() {
        let usage = Usage {
            cpu: CpuStats {
                system_mode: 1.0,
                user_mode: 2.0,
                total_ticks: 3.0,
                throttled_periods: 4,
                throttled_time_ns: 5,
                percent: 6.0,
                measured: CPU_FIELDS.map(|(f, _)| f).to_vec(),
            },
            memory: MemoryStats {
                rss: 1,
                cache: 2,
                max_usage: 3,
                kernel_usage: 4,
                kernel_max_usage: 5,
                usage: 6,
                swap: 7,
                limit: 8,
                measured: MEMORY_FIELDS.map(|(f, _)| f).to_vec(),
            },
        };
        let stats = TaskStats {
            time: UNIX_EPOCH + Duration::from_millis(1500),
            total: usage.clone(),
            by_pid: BTreeMap::from([(7, usage)]),
            pressure: Pressures::default(),
            output: Some(TaskOutput {
                stdout: StreamCounts { bytes: 1, lines: 2, rotations: 5, split_lines: 6, ..StreamCounts::default() },
                stderr: StreamCounts { dropped_bytes: 3, dropped_lines: 4, ..StreamCounts::default() },
            }),
        };
        assert_eq!(spec_stats(wire_stats(&stats)), stats);
        let stall = |n| Stall { avg10: n, avg60: n + 0.25, avg300: n + 0.5, total_us: 7 };
        let pressure = Pressures {
            cpu: Some(Pressure { some: stall(1.0), full: None }),
            memory: Some(Pressure { some: stall(2.0), full: Some(stall(3.0)) }),
            io: None,
        };
        let stats = TaskStats { pressure, ..stats };
        assert_eq!(spec_stats(wire_stats(&stats)), stats);
    }

    #[test]
    fn errors_keep_their_kind_across_the_wire() {
        for error in [
            ExecutorError::CommandNotFound("a".into()),
            ExecutorError::NotExecutable("b".into()),
            ExecutorError::Invalid("c".into()),
            ExecutorError::System("d".into()),
            ExecutorError::DeadlineExceeded,
        ] {
            assert_eq!(ExecutorError::from(Status::from(error.clone())), error);
        }
        assert_eq!(ExecutorError::from(Status::unavailable("x")), ExecutorError::PluginShutdown);
    }
}
