//! Sets the resource limits of a process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::config::{Failure, Step as _};
use crate::spec::{LimitedResource, ResourceLimit};

/// Limits this process and the command that it becomes. Call it while the process still has the right to raise limits.
pub(super) fn apply(limits: &[ResourceLimit]) -> Result<(), Failure> {
    limits.iter().try_for_each(set)
}

fn set(limit: &ResourceLimit) -> Result<(), Failure> {
    let name = limit.resource.name();
    let step = || format!("set ulimit {name} to {limit}");
    let resource = resource(limit.resource);
    match setrlimit(resource, Rlimit { current: limit.soft, maximum: limit.hard }) {
        Err(rustix::io::Errno::PERM) => {
            let allowed = getrlimit(resource).maximum;
            // The maximum that the kernel allows for any process.
            let most = || std::fs::read_to_string("/proc/sys/fs/nr_open").ok()?.trim().parse::<u64>().ok();
            let most = if limit.resource == LimitedResource::Nofile { most() } else { None };
            let why = match most.filter(|most| limit.hard.is_none_or(|hard| hard > *most)) {
                Some(most) => format!("this machine allows {most} at most (sysctl fs.nr_open)"),
                None => format!(
                    "the executor may not raise it above {} (it lacks CAP_SYS_RESOURCE)",
                    allowed.map_or_else(|| "unlimited".to_owned(), |allowed| allowed.to_string())
                ),
            };
            Err(Failure::invalid(step(), format!("{}: {why}", step())))
        }
        result => result.step(step),
    }
}

fn resource(resource: LimitedResource) -> Resource {
    match resource {
        LimitedResource::As => Resource::As,
        LimitedResource::Core => Resource::Core,
        LimitedResource::Cpu => Resource::Cpu,
        LimitedResource::Data => Resource::Data,
        LimitedResource::Fsize => Resource::Fsize,
        LimitedResource::Locks => Resource::Locks,
        LimitedResource::Memlock => Resource::Memlock,
        LimitedResource::Msgqueue => Resource::Msgqueue,
        LimitedResource::Nice => Resource::Nice,
        LimitedResource::Nofile => Resource::Nofile,
        LimitedResource::Nproc => Resource::Nproc,
        LimitedResource::Rss => Resource::Rss,
        LimitedResource::Rtprio => Resource::Rtprio,
        LimitedResource::Rttime => Resource::Rttime,
        LimitedResource::Sigpending => Resource::Sigpending,
        LimitedResource::Stack => Resource::Stack,
    }
}
