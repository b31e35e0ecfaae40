//! Reads the CPU, memory and pressure statistics of a task's cgroup.

use std::time::Instant;

use super::error::{Error, Result};
use super::fs::Figures;
use super::member::{Member, TaskCgroup};
use super::regime::Regime;
use super::task::value;
use crate::spec::{CpuField, CpuStats, MemoryField, MemoryStats, Pressure, Pressures, Stall, Usage};

/// Turns running totals of CPU time into percentages; one per task and reader.
#[derive(Debug, Clone)]
pub struct Sampler {
    core_mhz: f64,
    last: Option<(Instant, CpuTime)>,
}

/// CPU time since the creation of the cgroup, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct CpuTime {
    user: u64,
    system: u64,
    total: u64,
}

impl Sampler {
    /// `core_mhz` is the value of one core in Nomad's unit: the node's total compute divided by its cores.
    #[must_use]
    pub fn new(core_mhz: f64) -> Sampler {
        Sampler { core_mhz, last: None }
    }

    /// Percent of one core for user, system and total since the last sample; 0 for the first, never negative.
    ///
    /// v1 attributes user and system time by the state at each clock tick, but counts the total exactly (`cpuacct.c`): the total is
    /// split in the ratio of the two, as the kernel itself does for v2 and for processes (`cputime_adjust`).
    #[expect(clippy::cast_precision_loss, reason = "a percentage needs no 53 bits")]
    fn percent(&mut self, now: Instant, time: CpuTime) -> [f64; 3] {
        let last = self.last.replace((now, time));
        let Some((then, before)) = last else { return [0.0; 3] };
        let wall = now.saturating_duration_since(then).as_nanos() as f64;
        let since = |new: u64, old: u64| new.saturating_sub(old) as f64;
        let total = if wall > 0.0 { since(time.total, before.total) / wall * 100.0 } else { 0.0 };
        let (user, system) = (since(time.user, before.user), since(time.system, before.system));
        let part = |ticks: f64| if user + system > 0.0 { total * ticks / (user + system) } else { 0.0 };
        [part(user), part(system), total]
    }
}

impl TaskCgroup {
    /// The task's resource usage, child cgroups included. Reads at most nine files; nothing runs between two samples.
    ///
    /// A value whose controller is missing is 0 and not in the `measured` list.
    ///
    /// # Errors
    /// [`Error::Io`] (not found when the cgroup is gone), [`Error::Malformed`].
    pub fn stats(&self, sampler: &mut Sampler) -> Result<Usage> {
        match self.regime {
            Regime::V2 => {
                let figures = self.members.first().ok_or(Error::Off)?.figures()?;
                Ok(Usage { cpu: v2_cpu(&figures, sampler)?, memory: v2_memory(&figures)? })
            }
            Regime::V1 => {
                let cpu = v1_cpu(self.member("cpuacct"), self.member("cpu"), sampler)?;
                let memory = self.member("memory").map(|m| v1_memory(&m.figures()?)).transpose()?.unwrap_or_default();
                Ok(Usage { cpu, memory })
            }
            Regime::Off => Err(Error::Off),
        }
    }

    /// The most bytes of memory that may be charged to the task; 0 if there is no limit.
    ///
    /// # Errors
    /// As [`TaskCgroup::stats`].
    pub fn memory_limit(&self) -> Result<u64> {
        match (self.regime, self.member("memory")) {
            (Regime::V2, Some(member)) => v2_limit(&member.figures()?),
            (Regime::V1, Some(member)) => v1_limit(&member.figures()?),
            _ => Ok(0),
        }
    }
}

impl TaskCgroup {
    /// The task's pressure stall information, child cgroups included. Reads three files on v2; on v1 and on kernels without it
    /// nothing is measured.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn pressure(&self) -> Result<Pressures> {
        let Some(member) = self.members.first().filter(|_| self.regime == Regime::V2) else {
            return Ok(Pressures::default());
        };
        let figures = member.figures()?;
        let read = |name| match figures.text(name) {
            Ok(text) => Ok(text.and_then(|text| pressure(&text))),
            // The files of a kernel on which it is disabled.
            Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(e) => Err(e),
        };
        Ok(Pressures { cpu: read("cpu.pressure")?, memory: read("memory.pressure")?, io: read("io.pressure")? })
    }
}

/// Parses `some avg10=0.12 avg60=0.05 avg300=0.01 total=4711`, and optionally a line `full`. Source: accounting/psi.rst.
fn pressure(text: &str) -> Option<Pressure> {
    let line = |kind: &str| {
        let fields = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '))?;
        let field = |key: &str| fields.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
        let percent = |key| field(key)?.parse().ok();
        Some(Stall {
            avg10: percent("avg10")?,
            avg60: percent("avg60")?,
            avg300: percent("avg300")?,
            total_us: field("total")?.parse().ok()?,
        })
    };
    Some(Pressure { some: line("some")?, full: line("full") })
}

/// With `None` for the time the percentages are not measured, with `None` for the throttling those two values.
fn cpu(time: Option<CpuTime>, throttled: Option<(u64, u64)>, sampler: &mut Sampler) -> CpuStats {
    let mut stats = CpuStats::default();
    if let Some(time) = time {
        [stats.user_mode, stats.system_mode, stats.percent] = sampler.percent(Instant::now(), time);
        stats.total_ticks = stats.percent / 100.0 * sampler.core_mhz;
        stats.measured = vec![CpuField::SystemMode, CpuField::UserMode];
    }
    if let Some((periods, nanoseconds)) = throttled {
        (stats.throttled_periods, stats.throttled_time_ns) = (periods, nanoseconds);
        stats.measured.extend([CpuField::ThrottledPeriods, CpuField::ThrottledTime]);
    }
    stats.measured.extend(time.map(|_| CpuField::Percent));
    stats
}

fn v2_cpu(figures: &Figures, sampler: &mut Sampler) -> Result<CpuStats> {
    let text = figures.always("cpu.stat")?;
    let nanoseconds = |key| value(&text, key).map(|us| us.saturating_mul(1000));
    let time = nanoseconds("usage_usec").map(|total| CpuTime {
        user: nanoseconds("user_usec").unwrap_or(0),
        system: nanoseconds("system_usec").unwrap_or(0),
        total,
    });
    let throttled = value(&text, "nr_throttled").zip(nanoseconds("throttled_usec"));
    Ok(cpu(time, throttled, sampler))
}

fn v2_memory(figures: &Figures) -> Result<MemoryStats> {
    let Some(usage) = figures.number("memory.current")? else { return Ok(MemoryStats::default()) };
    let text = figures.always("memory.stat")?;
    let figure = |key| value(&text, key).unwrap_or(0);
    Ok(MemoryStats {
        rss: figure("anon"),
        cache: figure("file"),
        max_usage: figures.number("memory.peak")?.unwrap_or(0),
        kernel_usage: figure("kernel"),
        kernel_max_usage: 0,
        usage,
        swap: figures.number("memory.swap.current")?.unwrap_or(0),
        limit: v2_limit(figures)?,
        // Nomad's list for v2, although newer kernels also report the peak.
        measured: vec![MemoryField::Rss, MemoryField::Cache, MemoryField::Swap, MemoryField::Usage],
    })
}

fn v1_cpu(cpuacct: Option<&Member>, cpu_member: Option<&Member>, sampler: &mut Sampler) -> Result<CpuStats> {
    let acct = cpuacct.map(Member::figures).transpose()?;
    let time = acct.as_ref().map(|figures| {
        let [user, system, total] =
            ["cpuacct.usage_user", "cpuacct.usage_sys", "cpuacct.usage"].map(|file| figures.number(file));
        Ok::<_, Error>(total?.map(|total| CpuTime {
            user: user.ok().flatten().unwrap_or(0),
            system: system.ok().flatten().unwrap_or(0),
            total,
        }))
    });
    let throttling = |figures: &Figures| figures.text("cpu.stat");
    // Most machines have both controllers in one hierarchy.
    let text = match (cpu_member, cpuacct, &acct) {
        (Some(cpu), Some(same), Some(figures)) if std::ptr::eq(cpu, same) => throttling(figures)?,
        (cpu, ..) => cpu.map(|cpu| throttling(&cpu.figures()?)).transpose()?.flatten(),
    };
    let throttled = text.and_then(|t| value(&t, "nr_throttled").zip(value(&t, "throttled_time")));
    Ok(cpu(time.transpose()?.flatten(), throttled, sampler))
}

fn v2_limit(figures: &Figures) -> Result<u64> {
    // "max" without a limit.
    Ok(figures.text("memory.max")?.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
}

/// Without a limit, v1 reports the largest number of pages that it can count: for pages of 64 KiB this, for smaller ones more.
const UNLIMITED: u64 = i64::MAX.unsigned_abs() - 0xffff;

fn v1_limit(figures: &Figures) -> Result<u64> {
    Ok(figures.number("memory.limit_in_bytes")?.filter(|limit| *limit < UNLIMITED).unwrap_or(0))
}

fn v1_memory(figures: &Figures) -> Result<MemoryStats> {
    use MemoryField::{Cache, KernelMaxUsage, KernelUsage, MaxUsage, Rss, Swap, Usage};
    let text = figures.always("memory.stat")?;
    // The values without the `total_` prefix leave child cgroups out.
    let figure = |total: &str, own: &str| value(&text, total).or_else(|| value(&text, own)).unwrap_or(0);
    let kernel = figures.number("memory.kmem.usage_in_bytes")?;
    let kernel_max = figures.number("memory.kmem.max_usage_in_bytes")?;
    let mut measured = vec![Rss, Cache, Swap, Usage, MaxUsage];
    measured.extend(kernel.map(|_| KernelUsage));
    measured.extend(kernel_max.map(|_| KernelMaxUsage));
    Ok(MemoryStats {
        rss: figure("total_rss", "rss"),
        cache: figure("total_cache", "cache"),
        max_usage: figures.number("memory.max_usage_in_bytes")?.unwrap_or(0),
        kernel_usage: kernel.unwrap_or(0),
        kernel_max_usage: kernel_max.unwrap_or(0),
        usage: figures.number("memory.usage_in_bytes")?.unwrap_or(0),
        swap: figure("total_swap", "swap"),
        limit: v1_limit(figures)?,
        measured,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn b7_pressure_is_read_as_the_kernel_writes_it() {
        let stall = |avg10, avg60, avg300, total_us| Stall { avg10, avg60, avg300, total_us };
        let both =
            "some avg10=1.53 avg60=0.40 avg300=0.09 total=58761459\nfull avg10=0.00 avg60=0.13 avg300=0.02 total=7\n";
        let expected = Pressure { some: stall(1.53, 0.40, 0.09, 58_761_459), full: Some(stall(0.0, 0.13, 0.02, 7)) };
        assert_eq!(pressure(both), Some(expected));
        let some = both.lines().next().unwrap();
        assert_eq!(pressure(some), Some(Pressure { full: None, ..expected }));
        for broken in ["", "some", "some avg10=1 avg60=2 avg300=3", "full avg10=0 avg60=0 avg300=0 total=0"] {
            assert_eq!(pressure(broken), None, "{broken}");
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "a zero that is set, not computed")]
    fn percent_is_of_the_time_between_two_samples() {
        let mut sampler = Sampler::new(2500.0);
        let start = Instant::now();
        let time = |ms: u64| CpuTime { user: ms * 600_000, system: ms * 400_000, total: ms * 1_000_000 };
        assert_eq!(sampler.percent(start, time(5000)), [0.0; 3]);
        let [user, system, total] = sampler.percent(start + Duration::from_secs(2), time(6000));
        assert!((user - 30.0).abs() < 1e-6 && (system - 20.0).abs() < 1e-6 && (total - 50.0).abs() < 1e-6);
        let ticks = CpuTime { user: 9_000_000_000, system: 3_400_000_000, total: 6_500_000_000 };
        let [user, system, total] = sampler.percent(start + Duration::from_secs(3), ticks);
        assert!((user - 42.1875).abs() < 1e-3 && (system - 7.8125).abs() < 1e-3 && (total - 50.0).abs() < 1e-6);
        assert_eq!(sampler.percent(start + Duration::from_secs(3), time(1000)), [0.0; 3], "never negative");
        assert_eq!(sampler.percent(start + Duration::from_secs(3), time(2000)), [0.0; 3], "no time has passed");
    }
}
