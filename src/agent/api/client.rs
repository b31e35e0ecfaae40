//! The client's side of allocations, and the machine.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal};
use super::call::uuid;
use super::nodes::require_own;
use crate::agent::engine::OrderError;
use crate::agent::model::{Allocation, Nanos};
use crate::alloc::control;
use crate::spec::json;
use crate::spec::json::json;
use crate::spec::{CpuField, MemoryField, Signal, TaskStats, Usage};

/// Time between the two samples from which CPU use is computed.
const SAMPLE: Duration = Duration::from_millis(100);

/// The allocation named in the path; all allocations belong to this node.
pub(super) fn known(call: &Call) -> Result<Allocation, Refusal> {
    let found = call.api.state.read()?.alloc(uuid(call.id(), "alloc")?)?;
    found.ok_or_else(|| Refusal::missing(format!("Unknown allocation {:?}", call.id())))
}

pub(super) async fn stats(call: Call) -> Result<Answer, Refusal> {
    let alloc = known(&call)?;
    let task = call.query.text("task");
    let samples = if alloc.client_status.is_terminal() {
        // An ended allocation uses nothing, which is not an error: the command line always asks.
        Vec::new()
    } else {
        call.api.engine.stats(call.id(), task).await.or_else(none_if_idle)?
    };
    let mut total = Usage::default();
    let mut tasks = Map::new();
    let mut latest = Nanos(0);
    for (name, sample) in &samples {
        add(&mut total, &sample.total);
        latest = latest.max(Nanos::of(sample.time));
        tasks.insert(name.clone(), task_stats(sample));
    }
    let usage = usage(&total, &json!([]));
    Ok(Answer::of(json!({"ResourceUsage": usage, "Tasks": tasks, "Timestamp": latest})))
}

/// An allocation without running tasks uses nothing.
fn none_if_idle(error: OrderError) -> Result<Vec<(String, TaskStats)>, Refusal> {
    use control::OrderError::{NotRunning, NothingRuns};
    match error {
        OrderError::Refused(NotRunning { .. } | NothingRuns(_)) => Ok(Vec::new()),
        error => Err(error.into()),
    }
}

fn add(total: &mut Usage, one: &Usage) {
    let (cpu, memory) = (&mut total.cpu, &mut total.memory);
    cpu.system_mode += one.cpu.system_mode;
    cpu.user_mode += one.cpu.user_mode;
    cpu.total_ticks += one.cpu.total_ticks;
    cpu.percent += one.cpu.percent;
    cpu.throttled_periods += one.cpu.throttled_periods;
    cpu.throttled_time_ns += one.cpu.throttled_time_ns;
    cpu.measured.clone_from(&one.cpu.measured);
    memory.rss += one.memory.rss;
    memory.cache += one.memory.cache;
    memory.swap += one.memory.swap;
    memory.usage += one.memory.usage;
    memory.max_usage += one.memory.max_usage;
    memory.kernel_usage += one.memory.kernel_usage;
    memory.kernel_max_usage += one.memory.kernel_max_usage;
    memory.measured.clone_from(&one.memory.measured);
}

fn task_stats(sample: &TaskStats) -> Value {
    let pids: Map<String, Value> =
        sample.by_pid.iter().map(|(pid, of)| (pid.to_string(), usage(of, &Value::Null))).collect();
    json!({
        "ResourceUsage": usage(&sample.total, &Value::Null),
        "Pids": pids,
        "Timestamp": Nanos::of(sample.time),
    })
}

fn usage(of: &Usage, devices: &Value) -> Value {
    let cpu_name = |field: &CpuField| match field {
        CpuField::SystemMode => "System Mode",
        CpuField::UserMode => "User Mode",
        CpuField::TotalTicks => "Total Ticks",
        CpuField::ThrottledPeriods => "Throttled Periods",
        CpuField::ThrottledTime => "Throttled Time",
        CpuField::Percent => "Percent",
    };
    let memory_name = |field: &MemoryField| match field {
        MemoryField::Rss => "RSS",
        MemoryField::Cache => "Cache",
        MemoryField::MaxUsage => "Max Usage",
        MemoryField::KernelUsage => "Kernel Usage",
        MemoryField::KernelMaxUsage => "Kernel Max Usage",
        MemoryField::Usage => "Usage",
        MemoryField::Swap => "Swap",
    };
    json!({
        "CpuStats": {
            "SystemMode": of.cpu.system_mode,
            "UserMode": of.cpu.user_mode,
            "TotalTicks": of.cpu.total_ticks,
            "ThrottledPeriods": of.cpu.throttled_periods,
            "ThrottledTime": of.cpu.throttled_time_ns,
            "Percent": of.cpu.percent,
            "Measured": of.cpu.measured.iter().map(cpu_name).collect::<Vec<_>>(),
        },
        "MemoryStats": {
            "RSS": of.memory.rss,
            "Cache": of.memory.cache,
            "Swap": of.memory.swap,
            "MappedFile": 0,
            "Usage": of.memory.usage,
            "MaxUsage": of.memory.max_usage,
            "KernelUsage": of.memory.kernel_usage,
            "KernelMaxUsage": of.memory.kernel_max_usage,
            "Measured": of.memory.measured.iter().map(memory_name).collect::<Vec<_>>(),
        },
        "DeviceStats": devices,
    })
}

/// The last result of each check, by id.
pub(super) async fn checks(call: Call) -> Result<Answer, Refusal> {
    known(&call)?;
    let checks = call.api.engine.checks(call.id()).unwrap_or_default();
    let value = json::to_value(&checks).map_err(|e| Refusal::failed(e.to_string()))?;
    Ok(Answer::of(value))
}

pub(super) async fn restart(mut call: Call) -> Result<Answer, Refusal> {
    known(&call)?;
    let input = call.optional_input().await?;
    let (task, all) = (input.text("TaskName")?, input.switch("AllTasks")?);
    if all && !task.is_empty() {
        return Err(Refusal::failed("task name cannot be set when restarting all tasks"));
    }
    call.api.engine.restart(call.id(), (!task.is_empty()).then_some(task.as_str()), all).await?;
    Ok(Answer::written(0, json!({})))
}

pub(super) async fn signal(mut call: Call) -> Result<Answer, Refusal> {
    known(&call)?;
    let input = call.optional_input().await?;
    let (task, name) = (input.text("Task")?, input.text("Signal")?);
    let named = if name.is_empty() { "SIGKILL" } else { &name };
    let signal = Signal::from_name(named).ok_or_else(|| Refusal::failed(format!("invalid signal {named}")))?;
    let done = call.api.engine.signal(call.id(), (!task.is_empty()).then_some(task.as_str()), signal).await;
    done.map_err(|error| match error {
        OrderError::Refused(control::OrderError::UnknownTask { .. }) => Refusal::failed("Task not found"),
        error => error.into(),
    })?;
    Ok(Answer::written(0, json!({})))
}

pub(super) async fn gc_alloc(call: Call) -> Result<Answer, Refusal> {
    known(&call)?;
    call.api.commands.gc_alloc(call.id()).await.map_err(|e| Refusal::failed(e.to_string()))?;
    Ok(Answer::of(json!({})))
}

/// Resource use of the machine. CPU use is that between two samples.
pub(super) async fn host_stats(call: Call) -> Result<Answer, Refusal> {
    let node = require_own(&call, call.query.get("node_id").unwrap_or_default())?;
    let before = ticks();
    tokio::time::sleep(SAMPLE).await;
    let after = ticks();
    let device = node.attributes.get("unique.storage.volume").cloned().unwrap_or_default();
    let (mhz, cores) = (node.resources.cpu_mhz, node.resources.cores.max(1));
    let speed = mhz as f64 / f64::from(cores);
    let cpu: Vec<Value> = before.iter().zip(&after).enumerate().map(|(n, (a, b))| processor(n, a, b, speed)).collect();
    let consumed: f64 = cpu.iter().filter_map(|cpu| cpu["TotalTicks"].as_f64()).sum();
    let memory = memory();
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime: f64 = uptime.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    Ok(Answer::of(json!({
        "AllocDirStats": disk(&call.api.about.data_dir, "", ""),
        // The disk with the allocations, by the name that the command line looks for.
        "DiskStats": [disk(&call.api.about.data_dir, &device, "")],
        "CPU": cpu,
        "CPUTicksConsumed": consumed,
        "DeviceStats": null,
        "Memory": memory,
        "Timestamp": Nanos::of(SystemTime::now()),
        "Uptime": uptime as u64,
    })))
}

/// Of each processor: user, system, idle, all, in ticks since the boot.
fn ticks() -> Vec<[f64; 4]> {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let of_one = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        if !name.starts_with("cpu") || name == "cpu" {
            return None;
        }
        let n: Vec<f64> = words.filter_map(|word| word.parse().ok()).collect();
        let get = |at: usize| n.get(at).copied().unwrap_or(0.0);
        let (user, system, idle) = (get(0) + get(1), get(2) + get(5) + get(6), get(3) + get(4));
        Some([user, system, idle, user + system + idle + get(7)])
    };
    stat.lines().filter_map(of_one).collect()
}

fn processor(number: usize, before: &[f64; 4], after: &[f64; 4], speed: f64) -> Value {
    let all = after[3] - before[3];
    let percent = |at: usize| if all > 0.0 { ((after[at] - before[at]) / all * 100.0).clamp(0.0, 100.0) } else { 0.0 };
    let idle = if all > 0.0 { percent(2) } else { 100.0 };
    json!({
        "CPU": format!("cpu{number}"), "User": percent(0), "System": percent(1), "Idle": idle,
        "TotalPercent": 100.0 - idle, "TotalTicks": (100.0 - idle) / 100.0 * speed,
    })
}

fn memory() -> Value {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
    };
    let (total, free, available) = (bytes("MemTotal"), bytes("MemFree"), bytes("MemAvailable"));
    json!({"Total": total, "Free": free, "Available": available, "Used": total.saturating_sub(available)})
}

fn disk(path: &std::path::Path, device: &str, mount: &str) -> Value {
    let Ok(stat) = rustix::fs::statvfs(path) else {
        return json!({"Device": device, "Mountpoint": mount, "Size": 0, "Used": 0, "Available": 0, "UsedPercent": 0.0, "InodesUsedPercent": 0.0});
    };
    let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
    let percent =
        |used: u64, free: u64| if used + free == 0 { 0.0 } else { used as f64 * 100.0 / (used + free) as f64 };
    json!({
        "Device": device,
        "Mountpoint": mount,
        "Size": stat.f_blocks * stat.f_frsize,
        "Used": used,
        "Available": stat.f_bavail * stat.f_frsize,
        "UsedPercent": percent(used, stat.f_bavail * stat.f_frsize),
        "InodesUsedPercent": percent(stat.f_files - stat.f_ffree, stat.f_ffree),
    })
}
