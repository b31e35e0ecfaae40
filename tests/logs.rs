//! What becomes of a task's output when readers are killed, disks are full and files disappear. `AGENTBIN_FULL=1` runs the full
//! counts.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agentbin::logs::client::Client;
use agentbin::logs::collector::{Sink, open_sink};
use agentbin::logs::{LogMonitor as _, StartConfig};
use agentbin::plugin::{self, Launch, Program};

fn full() -> bool {
    std::env::var_os("AGENTBIN_FULL").is_some_and(|v| v == "1")
}

/// `short` in CI, `long` when the full counts are asked for.
fn count<T>(short: T, long: T) -> T {
    if full() { long } else { short }
}

fn slower() -> u32 {
    std::env::var("AGENTBIN_TEST_SLOWER").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// A folder of logs, the FIFOs in it, and what a host asks a logmon for.
struct Place {
    dir: tempfile::TempDir,
    config: StartConfig,
}

fn place(max_files: u32) -> Place {
    let dir = tempfile::tempdir().unwrap();
    let config = StartConfig {
        log_dir: dir.path().to_owned(),
        stdout_file: "web.stdout".into(),
        stderr_file: "web.stderr".into(),
        max_files,
        max_file_size_mb: 1,
        stdout_fifo: dir.path().join(".web.stdout.fifo"),
        stderr_fifo: dir.path().join(".web.stderr.fifo"),
    };
    for fifo in [&config.stdout_fifo, &config.stderr_fifo] {
        nix::unistd::mkfifo(fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    }
    Place { dir, config }
}

/// The files of a stream, oldest first.
fn files(dir: &Path, base: &str) -> Vec<PathBuf> {
    let index = |name: &str| name.strip_prefix(base)?.strip_prefix('.')?.parse::<u64>().ok();
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    let mut found: Vec<_> = entries.filter_map(|e| Some((index(e.file_name().to_str()?)?, e.path()))).collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// A logmon as a host has it: a process of its own.
async fn logmon(config: &StartConfig) -> plugin::Client {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_agentbin"));
    let args = [OsString::from("logmon")];
    let launch = Launch { args: &args, log: Box::new(|_| {}), ..Launch::new(Program::Path(&binary)) };
    let host = launch.start().await.unwrap();
    Client::new(host.channel()).start(config.clone()).await.unwrap();
    host
}

fn kill(host: &plugin::Client) {
    let pid = nix::unistd::Pid::from_raw(host.process().pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
}

/// Writes numbered lines until told to stop, ten at a time, at about 10,000 a second; gives their number and the longest
/// time that a write took.
fn write_lines(mut out: File, stop: &AtomicBool, written: &AtomicU64) -> (u64, Duration) {
    let (mut number, mut longest) = (0_u64, Duration::ZERO);
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let lines: String = (number..number + 10).map(|n| format!("{n:012} line\n")).collect();
        let before = Instant::now();
        out.write_all(lines.as_bytes()).expect("a task's write never fails");
        longest = longest.max(before.elapsed());
        number += 10;
        written.store(number, Ordering::Relaxed);
        let due = Duration::from_millis(number / 10);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    (number, longest)
}

/// Every line once, in order.
fn check_lines(dir: &Path, base: &str, count: u64) {
    let mut next = 0;
    for path in files(dir, base) {
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            assert_eq!(line, format!("{next:012} line"), "{} of {count}, in {}", next, path.display());
            next += 1;
        }
    }
    assert_eq!(next, count, "lines are missing at the end");
}

#[test]
fn d2_killed_readers_lose_and_double_nothing() {
    let (tasks, length, every) = count(
        (3, Duration::from_secs(6), Duration::from_millis(60)),
        (100, Duration::from_mins(5), Duration::from_secs(5)),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let places: Vec<Place> = (0..tasks).map(|_| place(100_000)).collect();
    let writers: Vec<_> = places
        .iter()
        .map(|place| {
            let Sink { child_end, keeper } = open_sink(&place.config.stdout_fifo).unwrap();
            let stop = Arc::clone(&stop);
            let thread = std::thread::spawn(move || write_lines(File::from(child_end), &stop, &AtomicU64::new(0)));
            (thread, keeper)
        })
        .collect();
    let kills: u64 = runtime.block_on(async {
        let deadline = tokio::time::Instant::now() + length;
        let mut running = tokio::task::JoinSet::new();
        for (n, place) in places.iter().enumerate() {
            let config = place.config.clone();
            running.spawn(async move {
                let mut kills = 0;
                let mut reader = logmon(&config).await;
                // Not all at once.
                tokio::time::sleep(every * u32::try_from(n).unwrap() / tasks).await;
                while tokio::time::Instant::now() + every < deadline {
                    tokio::time::sleep(every).await;
                    kill(&reader);
                    kills += 1;
                    reader = logmon(&config).await;
                }
                tokio::time::sleep_until(deadline).await;
                (kills, reader)
            });
        }
        let mut readers = Vec::new();
        let mut kills = 0;
        while let Some(one) = running.join_next().await {
            let (killed, reader) = one.unwrap();
            kills += killed;
            readers.push(reader);
        }
        stop.store(true, Ordering::Relaxed);
        let mut longest = Duration::ZERO;
        let mut counts = Vec::new();
        for (thread, keeper) in writers {
            let (count, stall) = tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
            drop(keeper);
            counts.push(count);
            longest = longest.max(stall);
        }
        for reader in readers {
            Client::new(reader.channel()).stop().await.unwrap();
            reader.kill().await;
        }
        for (place, count) in places.iter().zip(&counts) {
            check_lines(place.dir.path(), "web.stdout", *count);
        }
        let total: u64 = counts.iter().sum();
        println!("{tasks} tasks, {kills} kills of readers, {total} lines, longest write {longest:?}");
        if full() {
            assert!(longest < Duration::from_millis(100) * slower(), "a write took {longest:?}");
        }
        kills
    });
    assert!(kills > u64::from(tasks) * 3, "{kills} kills are too few to say anything");
}
