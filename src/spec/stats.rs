//! CPU and memory statistics of tasks and processes, and which fields of them were measured.

use std::time::SystemTime;

use crate::spec::collections::BTreeMap;

/// A CPU figure that was measured, as Nomad names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the figures of CpuStats")]
pub enum CpuField {
    SystemMode,
    UserMode,
    TotalTicks,
    ThrottledPeriods,
    ThrottledTime,
    Percent,
}

/// A memory figure that was measured, as Nomad names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the figures of MemoryStats")]
pub enum MemoryField {
    Rss,
    Cache,
    MaxUsage,
    KernelUsage,
    KernelMaxUsage,
    Usage,
    Swap,
}

/// CPU use since the previous sample.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CpuStats {
    /// Kernel share, percent of one core.
    pub system_mode: f64,
    /// User share, percent of one core.
    pub user_mode: f64,
    /// Use in MHz.
    pub total_ticks: f64,
    /// Periods in which the task was throttled, since its start.
    pub throttled_periods: u64,
    /// Nanoseconds for which it was throttled, since its start.
    pub throttled_time_ns: u64,
    /// Total use, percent of one core.
    pub percent: f64,
    /// Which of the figures were measured.
    pub measured: Vec<CpuField>,
}

/// Memory use, in bytes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MemoryStats {
    /// Anonymous memory.
    pub rss: u64,
    /// Page cache.
    pub cache: u64,
    /// Highest use so far.
    pub max_usage: u64,
    /// Kernel memory.
    pub kernel_usage: u64,
    /// Highest kernel memory so far.
    pub kernel_max_usage: u64,
    /// All memory charged.
    pub usage: u64,
    /// Swap.
    pub swap: u64,
    /// The most that may be charged; 0 if there is no limit, or none is known.
    pub limit: u64,
    /// Which of the figures were measured.
    pub measured: Vec<MemoryField>,
}

/// CPU and memory of a task or of one process.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Usage {
    /// CPU use.
    pub cpu: CpuStats,
    /// Memory use.
    pub memory: MemoryStats,
}

/// One sample of a task's resource use.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskStats {
    /// When it was taken.
    pub time: SystemTime,
    /// The whole task.
    pub total: Usage,
    /// By process id.
    pub by_pid: BTreeMap<i32, Usage>,
    /// What the task waited for.
    pub pressure: Pressures,
    /// What became of its output; `None` when its executor does not collect it.
    pub output: Option<TaskOutput>,
}

/// What became of a task's output since its executor collects it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskOutput {
    /// Of stdout.
    pub stdout: StreamCounts,
    /// Of stderr.
    pub stderr: StreamCounts,
}

/// Whether a task's output reaches its files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutputHealth {
    /// How often that has changed.
    pub changes: u64,
    /// Of stdout.
    pub stdout: StreamHealth,
    /// Of stderr.
    pub stderr: StreamHealth,
}

/// Whether one stream reaches its files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StreamHealth {
    /// Why it is being dropped, if it is.
    pub failing: Option<String>,
    /// What it came to so far.
    pub counts: StreamCounts,
}

/// What one stream came to so far. Every byte of it is in `bytes` or in `dropped_bytes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamCounts {
    /// Bytes in files.
    pub bytes: u64,
    /// Line ends in files.
    pub lines: u64,
    /// Bytes that no file would take.
    pub dropped_bytes: u64,
    /// Lines of which at least one byte was dropped.
    pub dropped_lines: u64,
    /// Times that a further file was begun.
    pub rotations: u64,
    /// Lines longer than a file has room for, so that a part of them stands in the next one.
    pub split_lines: u64,
}

/// How much of the time work had to wait for want of CPU, memory or disk; `None` where the kernel does not measure it
/// (cgroup v1, no cgroup, `psi=0`).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressures {
    /// For a core.
    pub cpu: Option<Pressure>,
    /// For memory: reclaim, swap, refaults.
    pub memory: Option<Pressure>,
    /// For disks.
    pub io: Option<Pressure>,
}

/// Pressure by one resource.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    /// At least one process waited.
    pub some: Stall,
    /// All of them did; kernels before 5.13 do not say it of CPU.
    pub full: Option<Stall>,
}

/// Time spent waiting.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Stall {
    /// Percent of the last 10 seconds.
    pub avg10: f64,
    /// Percent of the last 60 seconds.
    pub avg60: f64,
    /// Percent of the last 300 seconds.
    pub avg300: f64,
    /// Microseconds since the task's cgroup exists.
    pub total_us: u64,
}
