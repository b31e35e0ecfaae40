//! What tasks cost that do nothing, and what it costs to look at them, from inside (`examples/bench_launch.rs`).

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Supervisors that are watched, and for how long.
const TASKS: usize = 200;
const SECONDS: u64 = 20;

pub struct Idle(Value);

/// A row of the table: what, its figure, and the figure to reach.
type Row = (&'static str, f64, Option<f64>);

pub fn measure() -> Result<Idle> {
    let program = std::env::var_os("BENCH_LAUNCH").map(PathBuf::from).context("there is no bench_launch")?;
    let mut command = Command::new(&program);
    command.args(["--idle", "--tasks", &TASKS.to_string(), "--seconds", &SECONDS.to_string()]);
    let out = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("start bench_launch")?;
    ensure!(out.status.success(), "bench_launch: {}", out.status);
    Ok(Idle(serde_json::from_slice(&out.stdout).context("read what bench_launch says")?))
}

impl Idle {
    fn rows(&self) -> Vec<Row> {
        let get = |key: &str| self.0[key].as_f64().unwrap_or(f64::NAN);
        let (tasks, seconds) = (get("tasks"), get("seconds"));
        vec![
            ("CPU of all supervisors, % of a core", get("cpu_ms") / 10.0 / seconds, None),
            ("the same, for 500 tasks", get("cpu_ms") / 10.0 / seconds / tasks * 500.0, Some(1.0)),
            ("wakeups per second and supervisor", get("wakeups") / seconds / tasks, Some(0.0)),
            ("the same, the worst supervisor", get("worst_wakeups") / seconds, Some(0.0)),
            ("figures of 500 cgroups read, ms", get("read_ms"), Some(50.0)),
            ("CPU of that, ms", get("read_cpu_ms"), None),
            ("figures of all tasks asked over gRPC, ms", get("asked_ms"), None),
        ]
    }

    pub fn table(&self) -> String {
        let head = format!("idle: {TASKS} tasks that sleep, watched for {SECONDS} s\n");
        let row = |(what, figure, target): Row| {
            let target = target.map_or_else(String::new, |target| {
                let verdict = if figure <= target { "reached" } else { "missed" };
                format!("  to reach: {target}, {verdict}")
            });
            format!("  {what:<44} {figure:>9.3}{target}\n")
        };
        head + &self.rows().into_iter().map(row).collect::<String>()
    }

    pub fn json(&self) -> Value {
        let rows = self.rows().into_iter().map(|(what, figure, target)| {
            (
                what.to_owned(),
                json!({ "figure": figure, "target": target, "ratio": target.filter(|t| *t > 0.0).map(|t| figure / t) }),
            )
        });
        json!({ "rows": rows.collect::<serde_json::Map<_, Value>>(), "raw": self.0 })
    }
}
