//! Resource limits of a task, and the cgroups in which it is accounted.

use std::path::PathBuf;

use crate::spec::collections::BTreeMap;
use serde::{Deserialize, Serialize};

/// Where a task's processes are accounted and limited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CgroupPaths {
    /// Path relative to each hierarchy's root, e.g. `nomad/<alloc>-<task>` (v1) or `nomad.slice/<alloc>-<task>.scope`.
    pub relative: PathBuf,
}

/// Memory limits of a task in bytes, after Nomad's rule for `memory` and `memory_max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemoryLimits {
    /// Hard limit; `None` is unlimited.
    pub hard_bytes: Option<u64>,
    /// Reservation (soft limit); `None` is none.
    pub soft_bytes: Option<u64>,
}

impl MemoryLimits {
    /// Nomad's rule: `memory_max` of -1 lifts the hard limit and keeps `memory` as reservation; unset or 0 makes
    /// `memory` the hard limit; otherwise `memory_max` is hard and `memory` soft.
    #[must_use]
    pub fn from_mib(memory_mib: i64, memory_max_mib: i64) -> MemoryLimits {
        let bytes = |mib: i64| u64::try_from(mib).ok().filter(|m| *m > 0).map(|m| m.saturating_mul(1024 * 1024));
        match memory_max_mib {
            -1 => MemoryLimits { hard_bytes: None, soft_bytes: bytes(memory_mib) },
            max if max <= 0 => MemoryLimits { hard_bytes: bytes(memory_mib), soft_bytes: None },
            max => MemoryLimits { hard_bytes: bytes(max), soft_bytes: bytes(memory_mib) },
        }
    }
}

/// How fast a task may use one disk; `None` is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoLimit {
    /// The host's node of a whole disk.
    pub device: PathBuf,
    /// Bytes read per second.
    pub read_bps: Option<u64>,
    /// Bytes written per second.
    pub write_bps: Option<u64>,
    /// Reads per second.
    pub read_iops: Option<u64>,
    /// Writes per second.
    pub write_iops: Option<u64>,
}

/// Limits that a task's cgroup gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// CPU shares in Nomad's unit (MHz); clamped to what the kernel takes when written. 0 leaves the default.
    pub cpu_shares: u64,
    /// Hard CPU limit as (quota, period) in microseconds.
    pub cpu_quota_us: Option<(u64, u64)>,
    /// Memory limits.
    pub memory: MemoryLimits,
    /// Most processes and threads at once; `None` is unlimited.
    pub pids_max: Option<u64>,
    /// Where processes cannot be limited, `pids_max` is passed over.
    pub pids_max_is_a_wish: bool,
    /// Limits for disks.
    pub io: Vec<IoLimit>,
    /// Reserved cores as a kernel cpu list, empty for none.
    pub cpuset_cpus: String,
    /// Host-given v1 cgroups by controller; limits are not written there.
    pub cgroup_v1_override: BTreeMap<String, PathBuf>,
    /// Host-given v2 cgroup; limits are not written there.
    pub cgroup_v2_override: Option<PathBuf>,
}

/// The most that the kernel takes for CPU shares (sched/core.c, `MAX_SHARES`); the least is 2.
pub const MOST_CPU_SHARES: u64 = 1 << 18;

/// CPU shares of a task on a node with so much compute (MHz): as asked for, or, where all of the node's would be more than the
/// kernel takes, in proportion to what it does. What is asked for stays more than nothing.
#[must_use]
pub fn scaled_cpu_shares(shares: u64, node_mhz: u64) -> u64 {
    if shares == 0 || node_mhz < MOST_CPU_SHARES {
        return shares;
    }
    let scaled = u128::from(shares) * u128::from(MOST_CPU_SHARES) / u128::from(node_mhz);
    u64::try_from(scaled).unwrap_or(u64::MAX).max(2)
}

/// CPU shares (2 to 262144) as a v2 `cpu.weight` (1 to 10000).
///
/// The quadratic fit in the exponent maps the defaults onto each other (1024 -> 100), which the older linear formula did
/// not. 0 means "leave it alone" and gives 0. Source: opencontainers/cgroups as pinned by Nomad 2.0.
#[must_use]
pub fn cpu_weight_from_shares(shares: u64) -> u64 {
    match shares {
        0 => 0,
        1 | 2 => 1,
        s if s >= MOST_CPU_SHARES => 10_000,
        s => {
            #[expect(clippy::cast_precision_loss, reason = "shares are below 2^18 here")]
            let l = (s as f64).log2();
            let exponent = (l * l + 125.0 * l) / 612.0 - 7.0 / 34.0;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1.0 to 10000.0")]
            let weight = 10f64.powf(exponent).ceil() as u64;
            weight.clamp(1, 10_000)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MemoryLimits, cpu_weight_from_shares, scaled_cpu_shares};

    #[test]
    fn shares_become_weights_as_the_reference_samples_say() {
        let samples =
            [(0, 0), (1, 1), (2, 1), (100, 17), (500, 58), (1000, 99), (1024, 100), (2048, 174), (10_000, 627)];
        for (shares, weight) in samples.into_iter().chain([(65_536, 3023), (262_144, 10_000), (u64::MAX, 10_000)]) {
            assert_eq!(cpu_weight_from_shares(shares), weight, "shares {shares}");
        }
    }

    #[test]
    fn c2_shares_of_a_huge_node_are_in_proportion() {
        for (node, shares, expected) in [
            (0, 1000, 1000),
            (12_000, 1000, 1000),
            (12_000, 1, 1),
            (12_000, 262_144, 262_144),
            (262_143, 300_000, 300_000),
            (262_144, 1000, 1000),
            (262_145, 262_144, 262_143),
            (262_145, 1, 2),
            (262_145, 0, 0),
            (524_288, 1000, 500),
            (524_288, 262_144, 131_072),
            (524_288, 524_288, 262_144),
            (u64::MAX, 1, 2),
            (u64::MAX, u64::MAX, 262_144),
        ] {
            assert_eq!(scaled_cpu_shares(shares, node), expected, "{shares} of {node}");
        }
    }

    #[test]
    fn memory_limits_follow_memory_and_memory_max() {
        let mib = 1024 * 1024;
        let limits = |hard, soft| MemoryLimits { hard_bytes: hard, soft_bytes: soft };
        let most = u64::try_from(i64::MAX).unwrap().saturating_mul(mib);
        for (memory, memory_max, expected) in [
            (100, 0, limits(Some(100 * mib), None)),
            (100, 200, limits(Some(200 * mib), Some(100 * mib))),
            (100, 100, limits(Some(100 * mib), Some(100 * mib))),
            (100, -1, limits(None, Some(100 * mib))),
            (100, -2, limits(Some(100 * mib), None)),
            (0, 0, limits(None, None)),
            (0, -1, limits(None, None)),
            (0, 200, limits(Some(200 * mib), None)),
            (1, 2, limits(Some(2 * mib), Some(mib))),
            (-1, 0, limits(None, None)),
            (i64::MIN, i64::MIN, limits(None, None)),
            (i64::MAX, 0, limits(Some(most), None)),
            (1, i64::MAX, limits(Some(most), Some(mib))),
        ] {
            assert_eq!(MemoryLimits::from_mib(memory, memory_max), expected, "{memory}, {memory_max}");
        }
    }
}
