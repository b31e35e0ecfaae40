//! Resource usage of single processes, from procfs.

use std::collections::HashMap;
use std::time::Instant;

use crate::spec::collections::BTreeMap;
use crate::spec::{CpuField, CpuStats, MemoryField, MemoryStats, Usage};
use crate::sys::processes;

/// CPU time of one process at some moment.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    user_ticks: u64,
    system_ticks: u64,
}

/// Measures processes; percentages are since the previous call.
#[derive(Debug, Default)]
pub(super) struct ProcessSampler {
    marks: HashMap<(i32, u64), Mark>,
}

impl ProcessSampler {
    /// The usage of each of these processes; one that has ended meanwhile is left out.
    pub(super) fn sample(&mut self, pids: &[i32], core_mhz: f64) -> BTreeMap<i32, Usage> {
        let mut marks = HashMap::with_capacity(pids.len());
        let mut usages = BTreeMap::new();
        // The file with a process's swap usage is the longest of all, and swap is rarely in use.
        let system = rustix::system::sysinfo();
        let swapped = system.totalswap > system.freeswap;
        for pid in pids {
            let Ok(process) = procfs::process::Process::new(*pid) else { continue };
            let Ok(stat) = process.stat() else { continue };
            let key = (*pid, stat.starttime);
            let mark = Mark { at: Instant::now(), user_ticks: stat.utime, system_ticks: stat.stime };
            let cpu = cpu_usage(self.marks.get(&key), &mark, core_mhz);
            marks.insert(key, mark);
            let memory = MemoryStats {
                rss: stat.rss.saturating_mul(procfs::page_size()),
                swap: if swapped { swap_bytes(&process) } else { 0 },
                measured: vec![MemoryField::Rss, MemoryField::Swap],
                ..MemoryStats::default()
            };
            usages.insert(*pid, Usage { cpu, memory });
        }
        self.marks = marks;
        usages
    }
}

#[expect(clippy::cast_precision_loss, reason = "percentages need no 53 bits")]
fn cpu_usage(before: Option<&Mark>, now: &Mark, core_mhz: f64) -> CpuStats {
    let per_second = procfs::ticks_per_second() as f64;
    let percent =
        |later: u64, earlier: u64, wall: f64| later.saturating_sub(earlier) as f64 / per_second / wall * 100.0;
    let (user, system) = match before {
        Some(before) => {
            let wall = now.at.duration_since(before.at).as_secs_f64().max(0.001);
            (percent(now.user_ticks, before.user_ticks, wall), percent(now.system_ticks, before.system_ticks, wall))
        }
        None => (0.0, 0.0),
    };
    CpuStats {
        user_mode: user,
        system_mode: system,
        percent: user + system,
        total_ticks: (user + system) / 100.0 * core_mhz,
        measured: vec![CpuField::SystemMode, CpuField::UserMode, CpuField::Percent],
        ..CpuStats::default()
    }
}

fn swap_bytes(process: &procfs::process::Process) -> u64 {
    let said = process.open_relative("status").ok().and_then(|status| processes::said(status, "VmSwap"));
    let kib = said.and_then(|said| said.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

/// The sum over processes, as the universal executor reports it.
pub(super) fn total(usages: &BTreeMap<i32, Usage>) -> Usage {
    let mut sum = Usage::default();
    for usage in usages.values() {
        sum.cpu.user_mode += usage.cpu.user_mode;
        sum.cpu.system_mode += usage.cpu.system_mode;
        sum.cpu.percent += usage.cpu.percent;
        sum.cpu.total_ticks += usage.cpu.total_ticks;
        sum.memory.rss += usage.memory.rss;
        sum.memory.swap += usage.memory.swap;
    }
    sum.cpu.measured = vec![CpuField::SystemMode, CpuField::UserMode, CpuField::Percent];
    sum.memory.measured = vec![MemoryField::Rss, MemoryField::Swap];
    sum
}
