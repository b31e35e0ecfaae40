//! New limits for a running task.

use super::running::Running;
use super::start::cgroup_error;
use super::{CpuQuota, ExecutorError, NewLimits};
use crate::cgroup::{Sampler, TaskCgroup};
use crate::spec::{CpuSet, MemoryLimits, Resources, scaled_cpu_shares};
use crate::sys::lock::lock;

/// Shortest and longest period of a CPU time limit, in microseconds; the shortest period is also the lowest quota (sched/core.c,
/// `min_cfs_quota_period` and `max_cfs_quota_period`).
const PERIOD_US: (u64, u64) = (1_000, 1_000_000);
/// The highest memory limit that is accepted, in MiB: more than the kernel can count pages of.
const MOST_MIB: i64 = 1 << 40;
/// Longest list of processors, in bytes.
const LONGEST_CPUS: usize = 4096;

impl NewLimits {
    /// The same, if all of it are limits.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`].
    pub fn checked(self) -> Result<NewLimits, ExecutorError> {
        let signed = |n: u64| i64::try_from(n).unwrap_or(-1);
        if let Some(CpuQuota::Limited { quota_us, period_us }) = self.cpu_quota {
            NewLimits::quota(signed(quota_us).max(0), signed(period_us))?;
        }
        if let Some(MemoryLimits { hard_bytes, soft_bytes }) = self.memory {
            let mib = |bytes: Option<u64>| bytes.map_or(0, |bytes| signed(bytes >> 20));
            NewLimits::memory(mib(soft_bytes), mib(hard_bytes))?;
        }
        let cpuset_cpus = self.cpuset_cpus.as_deref().map(NewLimits::cpus).transpose()?.flatten();
        Ok(NewLimits { cpuset_cpus, ..self })
    }

    /// Memory limits from Nomad's two numbers, in MiB.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`]: negative, too large, or a maximum below the reservation.
    pub fn memory(memory_mib: i64, memory_max_mib: i64) -> Result<MemoryLimits, ExecutorError> {
        let range = 0..=MOST_MIB;
        let is_max = memory_max_mib == -1 || range.contains(&memory_max_mib);
        if !range.contains(&memory_mib) || !is_max {
            let text = format!(
                "memory {memory_mib} MiB with a maximum of {memory_max_mib} MiB is not a limit; give 0 to {MOST_MIB}, and -1 as \
                 maximum for none"
            );
            return Err(ExecutorError::Invalid(text));
        }
        if memory_max_mib > 0 && memory_max_mib < memory_mib {
            let text = format!(
                "the maximum of {memory_max_mib} MiB of memory is below the {memory_mib} MiB that are reserved"
            );
            return Err(ExecutorError::Invalid(text));
        }
        Ok(MemoryLimits::from_mib(memory_mib, memory_max_mib))
    }

    /// CPU time limit from quota and period in microseconds. Without both it is not changed; a quota of -1 means no limit, as in
    /// the kernel's files.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for values that the kernel rejects.
    pub(super) fn quota(quota: i64, period: i64) -> Result<Option<CpuQuota>, ExecutorError> {
        match (quota, period) {
            (0, 0) => return Ok(None),
            (-1, _) => return Ok(Some(CpuQuota::Unlimited)),
            _ => {}
        }
        let (least, most) = PERIOD_US;
        match (u64::try_from(quota), u64::try_from(period)) {
            (Ok(quota_us), Ok(period_us)) if quota_us >= least && (least..=most).contains(&period_us) => {
                Ok(Some(CpuQuota::Limited { quota_us, period_us }))
            }
            _ => Err(ExecutorError::Invalid(format!(
                "{quota} of each {period} microseconds of processor time is not a limit; give at least {least} of {least} to {most}"
            ))),
        }
    }

    /// A list of processors, empty for no change.
    ///
    /// # Errors
    /// [`ExecutorError::Invalid`] for text that is not a list.
    pub(super) fn cpus(list: &str) -> Result<Option<String>, ExecutorError> {
        if list.is_empty() {
            return Ok(None);
        }
        let wrong = |why: &dyn std::fmt::Display| ExecutorError::Invalid(format!("the list of processors: {why}"));
        if list.len() > LONGEST_CPUS {
            return Err(wrong(&format!("it is longer than {LONGEST_CPUS} bytes")));
        }
        let cpus: CpuSet = list.parse().map_err(|e| wrong(&e))?;
        if cpus.is_empty() { Err(wrong(&"there is none in it")) } else { Ok(Some(cpus.to_string())) }
    }

    /// These limits, with the current values where they set nothing.
    pub(super) fn over(&self, now: &Resources, total_mhz: u64) -> Resources {
        Resources {
            cpu_shares: self.cpu_shares.map_or(now.cpu_shares, |shares| scaled_cpu_shares(shares, total_mhz)),
            cpu_quota_us: match self.cpu_quota {
                None => now.cpu_quota_us,
                Some(CpuQuota::Unlimited) => None,
                Some(CpuQuota::Limited { quota_us, period_us }) => Some((quota_us, period_us)),
            },
            memory: self.memory.unwrap_or(now.memory),
            cpuset_cpus: self.cpuset_cpus.clone().unwrap_or_else(|| now.cpuset_cpus.clone()),
            pids_max: self.pids_max.map_or(now.pids_max, |most| (most > 0).then_some(most)),
            // A limit that is asked for is not only wished for.
            pids_max_is_a_wish: now.pids_max_is_a_wish && self.pids_max.is_none(),
            ..now.clone()
        }
    }

    /// Both updates, this one first.
    pub(super) fn and_then(self, later: &NewLimits) -> NewLimits {
        NewLimits {
            cpu_shares: later.cpu_shares.or(self.cpu_shares),
            cpu_quota: later.cpu_quota.or(self.cpu_quota),
            memory: later.memory.or(self.memory),
            cpuset_cpus: later.cpuset_cpus.clone().or(self.cpuset_cpus),
            pids_max: later.pids_max.or(self.pids_max),
        }
    }
}

impl Running {
    /// Changes the limits; see [`Executor::update_resources`](super::Executor::update_resources).
    pub(super) fn update(&self, new: &NewLimits, total_mhz: u64) -> Result<(), ExecutorError> {
        let refused =
            |why: &str| Err(ExecutorError::Invalid(format!("the limits of the task cannot be changed: {why}")));
        let Some(cgroup) = &self.cgroup else { return refused("it has no cgroup") };
        if cgroup.is_host_given() {
            return refused("whoever started it gave it a cgroup, where it is limited or not");
        }
        let mut now = lock(&self.limits);
        let wanted = new.over(&now, total_mhz);
        if let Some(most) = new.memory.and_then(|memory| memory.hard_bytes) {
            let used = held_bytes(cgroup)?;
            if used > most {
                return refused(&format!(
                    "it holds {used} bytes of memory, more than the {most} that it is to have at most"
                ));
            }
        }
        if let Err(error) = cgroup.set_limits(&wanted) {
            if let Err(error) = cgroup.set_limits(&now) {
                tracing::error!(%error, "the limits of the task are neither the old nor the new ones");
            }
            return Err(cgroup_error(error));
        }
        tracing::info!(pid = self.pid, limits = ?wanted, "the task has new limits");
        *now = wanted;
        self.record_limits(new);
        Ok(())
    }
}

/// Memory that the kernel cannot reclaim from the task: on v2 it kills processes instead.
fn held_bytes(cgroup: &TaskCgroup) -> Result<u64, ExecutorError> {
    // CPU percentages of this sampler are not used.
    Ok(cgroup.stats(&mut Sampler::new(0.0)).map_err(cgroup_error)?.memory.rss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_what_is_no_limit_is_refused() {
        for (memory, max) in [(-1, 0), (0, -2), (i64::MAX, 0), (64, 32), (64, i64::MAX), (i64::MIN, -1)] {
            assert!(NewLimits::memory(memory, max).is_err(), "{memory} {max}");
        }
        let mib = |n: u64| Some(n << 20);
        for (memory, max, hard, soft) in [(64, 0, mib(64), None), (64, 128, mib(128), mib(64)), (64, -1, None, mib(64))]
        {
            let limits = MemoryLimits { hard_bytes: hard, soft_bytes: soft };
            assert_eq!(NewLimits::memory(memory, max).unwrap(), limits);
        }
        for (quota, period) in
            [(-2, 100_000), (0, 100_000), (999, 100_000), (50_000, 0), (50_000, 999), (50_000, 1_000_001), (1_000, -1)]
        {
            assert!(NewLimits::quota(quota, period).is_err(), "{quota} {period}");
        }
        assert_eq!(NewLimits::quota(0, 0).unwrap(), None);
        assert_eq!(NewLimits::quota(-1, 0).unwrap(), Some(CpuQuota::Unlimited));
        let limited = CpuQuota::Limited { quota_us: 150_000, period_us: 100_000 };
        assert_eq!(NewLimits::quota(150_000, 100_000).unwrap(), Some(limited));
        for wrong in ["x", "1-", "0,,1", &"0,".repeat(4096)] {
            assert!(NewLimits::cpus(wrong).is_err(), "{wrong}");
        }
        assert_eq!(NewLimits::cpus("").unwrap(), None);
        assert_eq!(NewLimits::cpus("0,1,2").unwrap().as_deref(), Some("0-2"));
    }

    #[test]
    fn b1_what_is_not_said_stays() {
        let memory = MemoryLimits { hard_bytes: Some(1 << 20), soft_bytes: None };
        let now = Resources {
            cpu_shares: 100,
            cpu_quota_us: Some((1_000, 2_000)),
            memory,
            pids_max: Some(7),
            cpuset_cpus: "0".to_owned(),
            ..Resources::default()
        };
        assert_eq!(NewLimits::default().over(&now, 1000), now);
        let new = NewLimits { cpu_shares: Some(300), cpu_quota: Some(CpuQuota::Unlimited), ..NewLimits::default() };
        assert_eq!(new.over(&now, 1000), Resources { cpu_shares: 300, cpu_quota_us: None, ..now });
    }
}
