//! Plain values that several modules use: jobs, tasks, resources, mounts, signals, exits, stats, ids and
//! role names. Never does I/O.

mod collect;
pub mod collections;
mod constraint;
mod cpuset;
mod env_name;
mod event;
mod exit;
mod getter;
mod host_ids;
mod ids;
mod interpolate;
mod job;
pub mod json;
mod launch;
mod pattern;
mod pos;
mod printable;
mod resources;
mod restrict;
mod role;
mod scheduling;
mod seccomp;
mod service;
mod signal;
mod stats;
mod version;
mod volume;

pub use collect::{IntoMap, IntoSet, Order, TryIntoMap};
pub use constraint::{Constraint, ConstraintMistake, Operator};
pub use cpuset::{CpuSet, CpuSetError};
pub use env_name::env_name;
pub use event::{EventKind, TaskEvent};
pub use exit::{ExitResult, ProcessState};
pub use getter::{ArchiveKind, Checksum, Digest, Getter, Source, shown as shown_source};
pub(crate) use getter::{percent_decoded, percent_encoded};
pub use host_ids::{HostIdSpace, HostIds};
pub use ids::{AllocId, ProcessId};
pub use interpolate::interpolate;
pub use job::{
    Artifact, ArtifactMode, ChangeMode, ChangeScript, Dns, DriverConfig, Group, HostNetwork, Job, Lifecycle,
    LifecycleHook, LogConfig, Network, NetworkMode, Port, RestartMode, RestartPolicy, Task, TaskResources, Template,
};
pub use launch::{
    Device, LaunchSpec, LogCollection, LogKeeping, Mount, NamespaceMode, Neighbours, Outlive, Propagation,
};
pub use pattern::{LONGEST_PATTERN, go_regex, regex};
pub use pos::Pos;
pub use printable::{LONGEST_MESSAGE, escaped, escaped_lines, is_unprintable, shortened};
pub use resources::{
    CgroupPaths, IoLimit, MOST_CPU_SHARES, MemoryLimits, Resources, cpu_weight_from_shares, scaled_cpu_shares,
};
pub use restrict::{LimitedResource, Masks, OwnNamespaces, ResourceLimit, Unveil};
pub use role::{PLUGIN_MARK, Role};
pub use scheduling::{
    DelayFunction, DispatchError, EphemeralDisk, GroupScheduling, HealthCheck, JobScheduling, JobType, LONGEST_PAYLOAD,
    Parameterized, PayloadRule, Periodic, Reschedule, Update,
};
pub use seccomp::Seccomp;
pub use service::{
    AddressMode, Check, CheckKind, CheckRestart, CheckStatus, GrpcCheck, HttpCheck, OnUpdate, ScriptCheck, Service,
    ServiceProvider,
};
pub use signal::Signal;
pub use stats::{
    CpuField, CpuStats, MemoryField, MemoryStats, OutputHealth, Pressure, Pressures, Stall, StreamCounts, StreamHealth,
    TaskOutput, TaskStats, Usage,
};
pub use version::{VersionDemand, VersionDemandError, VersionRules};
pub use volume::{
    CsiKind, CsiPlugin, CsiUse, MountOptions, Overlap, REDACTED, Volume, VolumeMount, names, no_destination, overlaps,
};
