//! What a task may use, as the two regimes want it written.

use super::error::{Error, Result};
use super::fs::Dir;
use super::io;
use super::regime::Regime;
use super::task::TaskCgroup;
use crate::spec::{Resources, cpu_weight_from_shares};

/// What `cpu.shares` takes (sched/core.c, `MIN_SHARES` and `MAX_SHARES`).
const SHARES: (u64, u64) = (2, 1 << 18);

/// Writes the limits into the folders that are ours. `lift` also takes away what is not limited (any longer), which a
/// new cgroup does not need.
pub(super) fn write(task: &TaskCgroup, resources: &Resources, lift: bool) -> Result<()> {
    if task.is_host_given() {
        return Ok(());
    }
    match task.regime {
        Regime::V1 => v1(task, resources, lift),
        Regime::V2 => v2(&task.members[0].dir()?, resources, lift),
        Regime::Off => Err(Error::Off),
    }
}

fn v1(task: &TaskCgroup, resources: &Resources, lift: bool) -> Result<()> {
    let dir = |controller: &str| {
        let member = task.member(controller).ok_or_else(|| Error::NoController(controller.to_owned()))?;
        member.dir()
    };
    if resources.cpu_shares > 0 {
        dir("cpu")?.write("cpu.shares", &resources.cpu_shares.clamp(SHARES.0, SHARES.1).to_string())?;
    }
    if let Some((quota, period)) = resources.cpu_quota_us {
        let cpu = dir("cpu")?;
        require("cpu", cpu.write_if_there("cpu.cfs_period_us", &period.to_string())?)?;
        cpu.write("cpu.cfs_quota_us", &quota.to_string())?;
    } else if lift && task.member("cpu").is_some() {
        dir("cpu")?.write_if_there("cpu.cfs_quota_us", "-1")?;
    }
    let memory = resources.memory;
    if memory.hard_bytes.is_some() || memory.soft_bytes.is_some() || (lift && task.member("memory").is_some()) {
        v1_memory(&dir("memory")?, resources, lift)?;
    }
    if let Some(most) = resources.pids_max {
        if task.member("pids").is_some() || !resources.pids_max_is_a_wish {
            dir("pids")?.write("pids.max", &most.to_string())?;
        }
    } else if lift && task.member("pids").is_some() {
        dir("pids")?.write("pids.max", "max")?;
    }
    if !resources.io.is_empty() || (lift && task.member("blkio").is_some()) {
        io::v1(&dir("blkio")?, &resources.io, lift)?;
    }
    // One that the host gave has its cores since the cgroup was made.
    if !resources.cpuset_cpus.is_empty() && task.member("cpuset").is_none_or(|m| m.ours) {
        dir("cpuset")?.write("cpuset.cpus", &resources.cpuset_cpus)?;
    }
    Ok(())
}

fn v1_memory(dir: &Dir, resources: &Resources, lift: bool) -> Result<()> {
    const LIMIT: &str = "memory.limit_in_bytes";
    const WITH_SWAP: &str = "memory.memsw.limit_in_bytes";
    if let Some(bytes) = resources.memory.hard_bytes {
        let bytes = bytes.to_string();
        // Memory alone may never exceed memory with swap: which of the two goes first depends on what is there.
        match dir.write(LIMIT, &bytes) {
            Err(e) if e.errno() == Some(libc::EINVAL) => {
                dir.write_if_there(WITH_SWAP, &bytes)?;
                dir.write(LIMIT, &bytes)?;
            }
            result => {
                result?;
                dir.write_if_there(WITH_SWAP, &bytes)?;
            }
        }
        // Refused by some kernels, and needless where the swap limit above could be set.
        let _best_effort = dir.write("memory.swappiness", "0");
    } else if lift {
        dir.write_if_there(WITH_SWAP, "-1")?;
        dir.write(LIMIT, "-1")?;
    }
    match resources.memory.soft_bytes {
        Some(bytes) => reserve(dir, "memory.soft_limit_in_bytes", &bytes.to_string()),
        None if lift => reserve(dir, "memory.soft_limit_in_bytes", "-1"),
        None => Ok(()),
    }
}

/// A reservation is a wish: kernels built without it (`PREEMPT_RT`) run the task all the same.
fn reserve(dir: &Dir, name: &str, value: &str) -> Result<()> {
    match dir.write_if_there(name, value) {
        Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => Ok(()),
        result => result.map(drop),
    }
}

fn require(controller: &str, there: bool) -> Result<()> {
    if there { Ok(()) } else { Err(Error::NoController(controller.to_owned())) }
}

fn v2(dir: &Dir, resources: &Resources, lift: bool) -> Result<()> {
    let memory = resources.memory;
    if let Some(bytes) = memory.hard_bytes {
        require("memory", dir.write_if_there("memory.max", &bytes.to_string())?)?;
        dir.write_if_there("memory.swap.max", "0")?;
    } else if lift {
        dir.write_if_there("memory.max", "max")?;
        dir.write_if_there("memory.swap.max", "max")?;
    }
    if let Some(bytes) = memory.soft_bytes {
        require("memory", dir.write_if_there("memory.low", &bytes.to_string())?)?;
    } else if lift {
        dir.write_if_there("memory.low", "0")?;
    }
    if resources.cpu_shares > 0 {
        let weight = cpu_weight_from_shares(resources.cpu_shares.clamp(SHARES.0, SHARES.1));
        require("cpu", dir.write_if_there("cpu.weight", &weight.to_string())?)?;
    }
    if let Some((quota, period)) = resources.cpu_quota_us {
        require("cpu", dir.write_if_there("cpu.max", &format!("{quota} {period}"))?)?;
    } else if lift {
        dir.write_if_there("cpu.max", "max")?;
    }
    if let Some(most) = resources.pids_max {
        let there = dir.write_if_there("pids.max", &most.to_string())?;
        require("pids", there || resources.pids_max_is_a_wish)?;
    } else if lift {
        dir.write_if_there("pids.max", "max")?;
    }
    io::v2(dir, &resources.io, lift)?;
    if !resources.cpuset_cpus.is_empty() {
        require("cpuset", dir.write_if_there("cpuset.cpus", &resources.cpuset_cpus)?)?;
    }
    Ok(())
}
