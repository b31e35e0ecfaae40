//! New limits for a running container, set through the engine, which keeps them. Never writes into a cgroup.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Shared, Task, container, image};
use crate::cgroup::{Sampler, TaskCgroup};
use crate::driver::DriverError;
use crate::driver::failed;
use crate::executor::{Compute, CpuQuota, NewLimits};
use crate::spec::MemoryLimits;
use crate::spec::json::json;
use crate::sys::lock::lock;

/// The engine's "no limit".
const UNLIMITED: i64 = -1;
/// The same for memory, of which the engine refuses -1 and takes 0 as unchanged: the kernel has no higher limit.
const ALL_MEMORY: i64 = i64::MAX & !0xfff;
/// The smallest reservation that an engine accepts, in bytes.
const LEAST_RESERVATION: i64 = 6 << 20;

/// What the new limits depend on besides themselves.
struct Now {
    /// The container's reservation in bytes; 0 or less is none.
    reservation: i64,
    /// Whether the engine's cgroups are of version 2.
    v2: bool,
    compute: Compute,
}

/// The body of the engine's call.
fn body(new: &NewLimits, now: &Now) -> Value {
    let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    let mut body = Map::new();
    let mut set = |key: &str, value: Value| body.insert(key.to_owned(), value);
    if let Some(MemoryLimits { hard_bytes, soft_bytes }) = new.memory {
        set("Memory", json!(hard_bytes.map_or(ALL_MEMORY, signed)));
        // No swap in addition, as at the start. The engine refuses a memory limit above the one that includes swap.
        set("MemorySwap", json!(hard_bytes.map_or(ALL_MEMORY, signed)));
        match soft_bytes {
            Some(bytes) => _ = set("MemoryReservation", json!(signed(bytes))),
            // On v2 the engine writes "no limit" as a protection of everything.
            None if now.reservation > 0 && now.v2 => _ = set("MemoryReservation", json!(LEAST_RESERVATION)),
            None if now.reservation > 0 => _ = set("MemoryReservation", json!(UNLIMITED)),
            None => {}
        }
    }
    if let Some(shares) = new.cpu_shares {
        set("CpuShares", json!(container::shares(shares, now.compute)));
    }
    match new.cpu_quota {
        Some(CpuQuota::Unlimited) => _ = set("CpuQuota", json!(UNLIMITED)),
        Some(CpuQuota::Limited { quota_us, period_us }) => {
            set("CpuQuota", json!(signed(quota_us)));
            set("CpuPeriod", json!(signed(period_us)));
        }
        None => {}
    }
    if let Some(cores) = &new.cpuset_cpus {
        set("CpusetCpus", json!(cores));
    }
    if let Some(most) = new.pids_max {
        set("PidsLimit", json!(if most == 0 { UNLIMITED } else { signed(most) }));
    }
    Value::Object(body)
}

impl Shared {
    /// See [`Driver::update_task`](super::Driver::update_task).
    pub(super) async fn update(&self, id: &str, limits: NewLimits) -> Result<(), DriverError> {
        let refused = |why: String| Err(failed(format!("the limits of the task cannot be changed: {why}"), false));
        let (task, life, config) = (self.task(id)?, self.life()?, self.config());
        let new = limits.checked().map_err(|e| failed(e.to_string(), false))?;
        if task.end.borrow().is_some() {
            return refused("it has ended".to_owned());
        }
        if new.cpuset_cpus.is_some() && lock(&task.shared_cores).is_some() {
            return refused("it has no cores of its own; those that tasks share are the agent's".to_owned());
        }
        let most = u64::try_from(config.pids_limit).unwrap_or(0);
        if most > 0 && new.pids_max.is_some_and(|pids| pids == 0 || pids > most) {
            return refused(format!("the driver's pids_limit is {most}"));
        }
        if let Some(most) = new.memory.and_then(|memory| memory.hard_bytes) {
            let used = self.held_bytes(&task)?;
            if used > most {
                return refused(format!(
                    "it holds {used} bytes of memory, more than the {most} that it is to have at most"
                ));
            }
        }
        let seen = life.engine.inspect(&task.container).await.map_err(|e| image::unknown(&e))?;
        let Some(container) = seen.filter(|container| container.running) else {
            return refused("its container does not run".to_owned());
        };
        let now = Now {
            reservation: container.memory_reservation,
            v2: self.info(&life).await?.cgroup_version == "2",
            compute: *lock(&self.compute),
        };
        life.update(&task.container, &body(&new, &now)).await.map_err(|e| image::unknown(&e))?;
        tracing::info!(id = task.container, limits = ?new, "the container has new limits");
        Ok(())
    }

    /// Memory that the kernel cannot reclaim from the container: on v2 it kills processes instead.
    fn held_bytes(&self, task: &Task) -> Result<u64, DriverError> {
        // CPU percentages of this sampler are not used.
        let stats = TaskCgroup::open(&self.settings.cgroups, Path::new(&task.own.cgroup))
            .and_then(|cgroup| cgroup.stats(&mut Sampler::new(0.0)));
        stats
            .map(|usage| usage.memory.rss)
            .map_err(|e| failed(format!("failed to read the container's cgroup: {e}"), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_new_limits_as_the_engine_wants_them() {
        let compute = Compute { total_mhz: 4000, cores: 2 };
        let now = |reservation, v2| Now { reservation, v2, compute };
        let memory = |hard_bytes, soft_bytes| NewLimits {
            memory: Some(MemoryLimits { hard_bytes, soft_bytes }),
            ..NewLimits::default()
        };
        let mib = |n: u64| Some(n << 20);
        let quota = |cpu_quota| NewLimits { cpu_quota: Some(cpu_quota), ..NewLimits::default() };
        let limited = CpuQuota::Limited { quota_us: 50_000, period_us: 100_000 };
        let shares = |cpu_shares| NewLimits { cpu_shares: Some(cpu_shares), ..NewLimits::default() };
        let pids = |pids_max| NewLimits { pids_max: Some(pids_max), ..NewLimits::default() };
        let cores = NewLimits { cpuset_cpus: Some("0-1".to_owned()), ..NewLimits::default() };
        for (new, now, expected) in [
            (NewLimits::default(), now(1, true), json!({})),
            (memory(mib(8), None), now(0, false), json!({ "Memory": 8 << 20, "MemorySwap": 8 << 20 })),
            (
                memory(mib(8), mib(7)),
                now(0, true),
                json!({ "Memory": 8 << 20, "MemorySwap": 8 << 20, "MemoryReservation": 7 << 20 }),
            ),
            (
                memory(mib(8), None),
                now(1, false),
                json!({ "Memory": 8 << 20, "MemorySwap": 8 << 20, "MemoryReservation": -1 }),
            ),
            (
                memory(None, None),
                now(1, true),
                json!({ "Memory": ALL_MEMORY, "MemorySwap": ALL_MEMORY, "MemoryReservation": 6 << 20 }),
            ),
            (shares(0), now(0, false), json!({ "CpuShares": 1024 })),
            (shares(1), now(0, false), json!({ "CpuShares": 2 })),
            (shares(1000), now(0, false), json!({ "CpuShares": 1000 })),
            (shares(u64::MAX), now(0, false), json!({ "CpuShares": 262_144 })),
            (quota(CpuQuota::Unlimited), now(0, false), json!({ "CpuQuota": -1 })),
            (quota(limited), now(0, false), json!({ "CpuQuota": 50_000, "CpuPeriod": 100_000 })),
            (pids(0), now(0, false), json!({ "PidsLimit": -1 })),
            (pids(50), now(0, false), json!({ "PidsLimit": 50 })),
            (cores, now(0, false), json!({ "CpusetCpus": "0-1" })),
        ] {
            assert_eq!(body(&new, &now), expected, "{new:?}");
        }
    }
}
