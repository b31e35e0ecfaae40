//! What becomes of a task's output when readers are killed, disks are full and files disappear. `AGENTBIN_FULL=1` runs the full
//! counts.

#![expect(clippy::disallowed_methods, reason = "writers are paced: the pace is what they are for")]
#![expect(clippy::single_match_else, reason = "the acts read as a table")]

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agentbin::logs::client::Client;
use agentbin::logs::collector::{Collector, Sink, open_sink};
use agentbin::logs::follower::{Follower, Output, Start};
use agentbin::logs::logmon::LogMon;
use agentbin::logs::{LogMonitor as _, StartConfig};
use agentbin::plugin::{self, Launch, Program};
use agentbin::spec::LogCollection;
use nix::sys::resource::{UsageWho, getrusage};
use proptest::prelude::*;

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

/// A directory of logs, the FIFOs in it, and what a host asks a logmon for.
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

/// Lines that begin with their number, cheap enough to be made and checked by the million.
#[derive(Clone)]
struct Numbered {
    line: Vec<u8>,
    number: u64,
}

const DIGITS: usize = 12;

impl Numbered {
    fn new(rest: &str) -> Numbered {
        Numbered { line: format!("{:0DIGITS$}{rest}\n", 0).into_bytes(), number: 0 }
    }

    fn advance(&mut self) {
        self.number += 1;
        for digit in self.line[..DIGITS].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
    }

    /// Appends the next lines.
    fn append(&mut self, count: u64, out: &mut Vec<u8>) {
        for _ in 0..count {
            out.extend_from_slice(&self.line);
            self.advance();
        }
    }

    /// `data` must be the next lines and nothing else.
    fn check(&mut self, data: &[u8], place: &Path) {
        for line in data.chunks(self.line.len()) {
            let text = || String::from_utf8_lossy(line).into_owned();
            assert!(line == self.line, "instead of {} in {}: {:?}", self.number, place.display(), text());
            self.advance();
        }
    }
}

const SHORT_LINE: &str = " line";
/// Bytes of a [`long_lines`] line.
const LONG_LINE: usize = 100;

fn long_lines() -> Numbered {
    Numbered::new(&"x".repeat(LONG_LINE - DIGITS - 1))
}

/// How long writes took.
#[derive(Default)]
struct Stalls {
    longest: Duration,
    /// Those in which the writer had to wait, and not only for its turn on a core: how long, and when.
    blocked: Vec<(Duration, Instant)>,
    /// Writes by their tenths of a millisecond; what took longer than all of these is in the last.
    tenths: Vec<u64>,
}

impl Stalls {
    /// Writes, and notes how long that took.
    fn write(&mut self, out: &mut File, data: &[u8]) {
        let waits = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().voluntary_context_switches();
        let (before, began) = (waits(), Instant::now());
        out.write_all(data).expect("a task's write never fails");
        let took = began.elapsed();
        if waits() > before {
            self.blocked.push((took, began));
        }
        self.longest = self.longest.max(took);
        self.tenths.resize(2001, 0);
        self.tenths[usize::try_from(took.as_micros() / 100).unwrap().min(2000)] += 1;
    }

    fn merge(&mut self, other: &Stalls) {
        self.longest = self.longest.max(other.longest);
        self.blocked.extend(&other.blocked);
        self.tenths.resize(2001, 0);
        self.tenths.iter_mut().zip(&other.tenths).for_each(|(sum, n)| *sum += n);
    }

    /// What `share` of the writes stayed below.
    fn below(&self, share: f64) -> Duration {
        let all: u64 = self.tenths.iter().sum();
        let mut seen = 0;
        let at = self.tenths.iter().position(|n| {
            seen += n;
            seen as f64 >= all as f64 * share
        });
        Duration::from_micros(at.map_or(0, |at| (at as u64 + 1) * 100))
    }
}

/// Lines per second of each task.
const PACE: u64 = 10_000;
/// Lines of a write.
const AT_ONCE: u64 = 10;

/// Writes numbered lines to each of `outs` until told to stop, ten at a time, at [`PACE`] or as fast as the machine can;
/// gives how many went to each, and how long the writes took.
fn write_lines(mut outs: Vec<File>, stop: &AtomicBool) -> (Vec<u64>, Stalls) {
    let mut lines = vec![Numbered::new(SHORT_LINE); outs.len()];
    let (mut stalls, mut batch) = (Stalls::default(), Vec::new());
    let began = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let due = u64::try_from(began.elapsed().as_millis()).unwrap() * PACE / 1000;
        for (out, lines) in outs.iter_mut().zip(&mut lines) {
            // Who fell behind lets the others have their turn.
            let turn = (due.saturating_sub(lines.number) / AT_ONCE).min(100);
            for _ in 0..turn {
                batch.clear();
                lines.append(AT_ONCE, &mut batch);
                stalls.write(out, &batch);
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (lines.iter().map(|lines| lines.number).collect(), stalls)
}

/// Every line once, in order.
fn check_lines(dir: &Path, base: &str, count: u64) {
    let mut expected = Numbered::new(SHORT_LINE);
    for path in files(dir, base) {
        expected.check(&std::fs::read(&path).unwrap(), &path);
    }
    assert_eq!(expected.number, count, "lines are missing at the end");
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
    let (mut ends, mut keepers) = (Vec::new(), Vec::new());
    for place in &places {
        let Sink { child_end, keeper } = open_sink(&place.config.stdout_fifo).unwrap();
        ends.push(File::from(child_end));
        keepers.push(keeper);
    }
    let kills: u64 = runtime.block_on(async {
        // As in life: a task starts when its output is collected.
        let mut readers = Vec::new();
        for place in &places {
            readers.push(logmon(&place.config).await);
        }
        let began = Instant::now();
        let mut writers = Vec::new();
        while !ends.is_empty() {
            let outs = ends.split_off(ends.len().saturating_sub(10));
            let stop = Arc::clone(&stop);
            writers.push(std::thread::spawn(move || write_lines(outs, &stop)));
        }
        let deadline = tokio::time::Instant::now() + length;
        let mut running = tokio::task::JoinSet::new();
        for (n, (place, mut reader)) in places.iter().zip(readers).enumerate() {
            let config = place.config.clone();
            running.spawn(async move {
                let mut kills = 0;
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
        let (mut counts, mut stalls) = (Vec::new(), Stalls::default());
        // The last tasks have the first writer.
        for writer in writers.into_iter().rev() {
            let (written, took) = tokio::task::spawn_blocking(move || writer.join().unwrap()).await.unwrap();
            counts.extend(written);
            stalls.merge(&took);
        }
        let seconds = began.elapsed().as_secs_f64();
        drop(keepers);
        for reader in readers {
            Client::new(reader.channel()).stop().await.unwrap();
            reader.kill().await;
        }
        for (place, count) in places.iter().zip(&counts) {
            check_lines(place.dir.path(), "web.stdout", *count);
        }
        let total: u64 = counts.iter().sum();
        stalls.blocked.sort_unstable_by(|a, b| b.cmp(a));
        let worst = stalls.blocked.iter().take(10).map(|(took, when)| format!("{took:?} at {:?}", *when - began));
        println!(
            "{tasks} tasks, {kills} kills of readers, {total} lines ({:.0} a second; {PACE} by each task are {}), \
             longest write {:?}, 99.9 % of the writes below {:?}; {} had to wait: {:?}",
            total as f64 / seconds,
            PACE * u64::from(tasks),
            stalls.longest,
            stalls.below(0.999),
            stalls.blocked.len(),
            worst.collect::<Vec<_>>()
        );
        if let (true, Some(&(longest, _))) = (full(), stalls.blocked.first()) {
            assert!(longest < Duration::from_millis(100) * slower(), "a write was held up for {longest:?}");
        }
        kills
    });
    assert!(kills > u64::from(tasks) * 3, "{kills} kills are too few to say anything");
}

/// A thread that writes numbered lines at about 20 MB/s until told to stop: how many bytes, and how long writes took.
fn flood(mut out: File, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<(u64, Stalls)> {
    std::thread::spawn(move || {
        let (mut lines, mut batch) = (long_lines(), Vec::new());
        let (mut bytes, mut stalls) = (0, Stalls::default());
        while !stop.load(Ordering::Relaxed) {
            batch.clear();
            lines.append(20, &mut batch);
            stalls.write(&mut out, &batch);
            bytes += batch.len() as u64;
            std::thread::sleep(Duration::from_micros(100));
        }
        (bytes, stalls)
    })
}

/// Runs in a private mount namespace, started by `d2_a_full_disk_drops_and_counts`.
#[test]
#[ignore = "run by d2_a_full_disk_drops_and_counts"]
fn full_disk_inside() {
    let dir = PathBuf::from(std::env::var_os("AGENTBIN_TEST_TMPFS").expect("set by its parent"));
    let (full_for, rounds) = count((Duration::from_millis(700), 2), (Duration::from_secs(30), 1));
    let ballast = dir.join("ballast");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let logs = LogCollection {
            dir: dir.clone(),
            stdout_file: "t.stdout".into(),
            stderr_file: "t.stderr".into(),
            // All that the directory has room for.
            max_files: 1_000_000,
            max_file_size_bytes: 256 * 1024,
            ..LogCollection::default()
        };
        let (collector, ends) = Collector::new(&logs, None).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let writers = [ends.stdout, ends.stderr].map(|end| flood(File::from(end), Arc::clone(&stop)));
        let mut removed = [0, 0];
        for _ in 0..rounds {
            std::fs::write(&ballast, vec![b'b'; 4 << 20]).unwrap();
            let before = collector.counters();
            until("both streams drop", || {
                let now = collector.counters();
                now.stdout.dropped_bytes > before.stdout.dropped_bytes
                    && now.stderr.dropped_bytes > before.stderr.dropped_bytes
            })
            .await;
            tokio::time::sleep(full_for).await;
            // Room again: for the ballast, and for all files but the current ones.
            std::fs::remove_file(&ballast).unwrap();
            for (base, removed) in ["t.stdout", "t.stderr"].iter().zip(&mut removed) {
                let files = files(&dir, base);
                for path in &files[..files.len() - 1] {
                    *removed += std::fs::metadata(path).unwrap().len();
                    std::fs::remove_file(path).unwrap();
                }
            }
            let before = collector.counters();
            until("both streams are written again", || {
                let now = collector.counters();
                now.stdout.lines > before.stdout.lines && now.stderr.lines > before.stderr.lines
            })
            .await;
        }
        stop.store(true, Ordering::Relaxed);
        let mut written = Vec::new();
        for writer in writers {
            written.push(tokio::task::spawn_blocking(move || writer.join().unwrap()).await.unwrap());
        }
        let collected = collector.finish(Duration::from_mins(1)).await;
        let streams = [("t.stdout", collected.stdout), ("t.stderr", collected.stderr)];
        for (((base, finished), (bytes, stalls)), removed) in streams.into_iter().zip(written).zip(removed) {
            let counts = finished.counters;
            println!("{base}: {counts:?}, longest write {:?}, 99.9 % below {:?}", stalls.longest, stalls.below(0.999));
            assert_eq!(counts.bytes + counts.dropped_bytes, bytes, "every byte is accounted for");
            let mut here = 0;
            let mut broken = 0;
            for path in files(&dir, base) {
                let text = std::fs::read_to_string(path).unwrap();
                here += text.len() as u64;
                broken += text.lines().filter(|line| line.len() != LONG_LINE - 1).count();
            }
            assert_eq!(here + removed, counts.bytes, "what is said to be in files is there");
            // The disk may fill up inside of a line.
            assert!(broken <= rounds, "{broken} broken lines");
        }
        println!("full disk: seen");
    });
}

async fn until(what: &str, mut ready: impl FnMut() -> bool) {
    let wait = async {
        while !ready() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1) * slower(), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[test]
fn d2_a_full_disk_drops_and_counts() {
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=8m,mode=755 none \"$AGENTBIN_TEST_TMPFS\" || exit 77; exec \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(std::fs::read_link("/proc/self/exe").unwrap())
        .args(["--exact", "full_disk_inside", "--ignored", "--nocapture"])
        .env("AGENTBIN_TEST_TMPFS", dir.path())
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if matches!(output.status.code(), Some(77 | 1)) && !text.contains("running 1 test") {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI must be able to mount: {text}");
        println!("SKIP: d2_a_full_disk_drops_and_counts: needs root to mount a tmpfs: {}", text.trim());
        return;
    }
    print!("{text}");
    assert!(output.status.success() && text.contains("full disk: seen"), "{text}");
}

/// Runs in a private mount namespace, started by `d2_a_file_system_that_turns_read_only_is_got_over`, on a file system of its
/// own.
#[test]
#[ignore = "run by d2_a_file_system_that_turns_read_only_is_got_over"]
fn read_only_inside() {
    let dir = PathBuf::from(std::env::var_os("AGENTBIN_TEST_MOUNT").expect("set by its parent"));
    let device = std::env::var("AGENTBIN_TEST_DEVICE").expect("set by its parent");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let logs = LogCollection {
            dir: dir.clone(),
            stdout_file: "t.stdout".into(),
            stderr_file: "t.stderr".into(),
            max_files: 100,
            max_file_size_bytes: 1 << 20,
            ..LogCollection::default()
        };
        let (collector, ends) = Collector::new(&logs, None).unwrap();
        drop(ends.stderr);
        let stop = Arc::new(AtomicBool::new(false));
        let writer = flood(File::from(ends.stdout), Arc::clone(&stop));
        let mut health = collector.health();
        let lines = |collector: &Collector| collector.counters().stdout.lines;
        until("lines are written", || lines(&collector) > 100).await;
        // As after an error of the device: what is open stays open, and takes nothing any more.
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "a test").unwrap();
        let failed = health.changed(0).await.unwrap();
        let reason = failed.stdout.failing.unwrap_or_default();
        assert!(reason.contains("read-only file system"), "{reason}");
        let lost = dir_bytes(&dir, "t.stdout");
        // Mended as people do: another in its place.
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "none"]).arg(&dir).status();
        assert!(mounted.unwrap().success());
        let healed = health.changed(1).await.unwrap();
        assert!(healed.changes == 2 && healed.stdout.failing.is_none(), "{healed:?}");
        let before = lines(&collector);
        until("lines are written again", || lines(&collector) > before + 100).await;
        stop.store(true, Ordering::Relaxed);
        let (bytes, stalls) = tokio::task::spawn_blocking(move || writer.join().unwrap()).await.unwrap();
        let counts = collector.finish(Duration::from_mins(1)).await.stdout.counters;
        println!("{counts:?}, longest write {:?}", stalls.longest);
        assert_eq!(counts.bytes + counts.dropped_bytes, bytes, "every byte is accounted for");
        assert_eq!(lost + dir_bytes(&dir, "t.stdout"), counts.bytes);
        for path in files(&dir, "t.stdout") {
            assert!(std::fs::read_to_string(path).unwrap().lines().all(|line| line.len() == LONG_LINE - 1));
        }
        println!("read-only: seen");
    });
}

fn dir_bytes(dir: &Path, base: &str) -> u64 {
    files(dir, base).iter().map(|path| std::fs::metadata(path).unwrap().len()).sum()
}

#[test]
fn d2_a_file_system_that_turns_read_only_is_got_over() {
    let dir = tempfile::tempdir().unwrap();
    let mount = dir.path().join("mount");
    std::fs::create_dir(&mount).unwrap();
    let script = "cd \"$AGENTBIN_TEST_MOUNT/..\" && truncate -s 16m image && mkfs.ext4 -q -F image || exit 77
        device=$(losetup --find --show image) || exit 77
        trap 'umount -R -l mount 2>/dev/null; losetup -d $device' EXIT
        mount -o errors=remount-ro $device mount && [ -e /sys/fs/ext4/${device#/dev/}/trigger_fs_error ] || exit 77
        AGENTBIN_TEST_DEVICE=${device#/dev/} \"$@\"";
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(std::fs::read_link("/proc/self/exe").unwrap())
        .args(["--exact", "read_only_inside", "--ignored", "--nocapture"])
        .env("AGENTBIN_TEST_MOUNT", &mount)
        .output()
        .unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if matches!(output.status.code(), Some(77 | 1 | 127)) && !text.contains("running 1 test") {
        // Root is not enough: ext4 and loop devices are the kernel's to have.
        println!(
            "SKIP: d2_a_file_system_that_turns_read_only_is_got_over: needs ext4 on a loop device: {}",
            text.trim()
        );
        return;
    }
    print!("{text}");
    assert!(output.status.success() && text.contains("read-only: seen"), "{text}");
}

/// Threads and descriptors of a process.
fn size(pid: i32) -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("task"), count("fd"))
}

#[test]
fn d1_restarts_in_place_leave_nothing_and_split_nothing() {
    let restarts: u64 = count(150, 10_000);
    let place = place(1000);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let host = logmon(&place.config).await;
        let client = Client::new(host.channel());
        let open = |path: &Path| File::options().write(true).open(path).unwrap();
        let mut early = None;
        let mut number = 0;
        for restart in 0..restarts {
            let (mut out, err) = (open(&place.config.stdout_fifo), open(&place.config.stderr_fifo));
            // Some of it comes before the `Start` of a restarted task, and some after.
            for _ in 0..=restart % 3 {
                out.write_all(format!("{number:012} line\n").as_bytes()).unwrap();
                number += 1;
            }
            client.start(place.config.clone()).await.unwrap();
            out.write_all(format!("{number:012} line\n").as_bytes()).unwrap();
            number += 1;
            drop((out, err));
            if restart == 20 {
                early = Some(size(host.process().pid));
            }
        }
        client.start(place.config.clone()).await.unwrap();
        client.stop().await.unwrap();
        check_lines(place.dir.path(), "web.stdout", number);
        let late = size(host.process().pid);
        println!("{restarts} restarts: (threads, descriptors) {early:?} then {late:?}");
        let early = early.unwrap();
        assert!(late.0 <= early.0 && late.1 <= early.1, "{early:?} then {late:?}");
        host.kill().await;
    });
}

/// Whether a reader takes whole pipes at once: its journal has room for that.
fn is_fast(reader: &plugin::Client) -> bool {
    let open = std::fs::read_dir(format!("/proc/{}/fd", reader.process().pid)).unwrap().flatten();
    open.filter_map(|fd| std::fs::metadata(fd.path()).ok()).any(|meta| meta.is_file() && meta.len() == (1 << 20) + 4096)
}

#[test]
fn d2_rotations_and_restarts_split_lose_and_double_no_line() {
    // 10.5 GB in files of 10 MiB are 1,000 rotations.
    let (lines, restarts, file_size): (u64, u64, u32) = count((4_000_000, 20, 1), (105_000_000, 100, 10));
    let mut place = place(60);
    place.config.max_file_size_mb = file_size;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let follower = Follower::open(place.dir.path(), "web.stdout", Start::Beginning).unwrap();
        let finisher = follower.finisher();
        let seen = Arc::new(AtomicU64::new(0));
        // Checks every line while the files come and go.
        let reading = tokio::spawn(check_stream(follower, Arc::clone(&seen)));
        let written = Arc::new(AtomicU64::new(0));
        let mut reader = logmon(&place.config).await;
        let Sink { child_end, keeper } = open_sink(&place.config.stdout_fifo).unwrap();
        let writing = std::thread::spawn({
            let (written, seen) = (Arc::clone(&written), Arc::clone(&seen));
            move || {
                let mut out = File::from(child_end);
                let (mut numbered, mut batch) = (long_lines(), Vec::new());
                while numbered.number < lines {
                    batch.clear();
                    numbered.append((lines - numbered.number).min(600), &mut batch);
                    out.write_all(&batch).unwrap();
                    written.store(numbered.number, Ordering::Relaxed);
                    // Not so far ahead that files are gone before they are read.
                    while numbered.number > seen.load(Ordering::Relaxed) + u64::from(file_size) * 200_000 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        });
        let mut fast = 0;
        for restart in 1..=restarts {
            let mark = lines * restart / (restarts + 1);
            while written.load(Ordering::Relaxed) < mark {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            fast += u64::from(is_fast(&reader));
            kill(&reader);
            reader = logmon(&place.config).await;
        }
        tokio::task::spawn_blocking(move || writing.join().unwrap()).await.unwrap();
        drop(keeper);
        Client::new(reader.channel()).stop().await.unwrap();
        reader.kill().await;
        finisher.finish();
        assert_eq!(reading.await.unwrap(), lines);
        let last = files(place.dir.path(), "web.stdout").pop().unwrap();
        let rotations: u64 = last.extension().unwrap().to_str().unwrap().parse().unwrap();
        println!(
            "{lines} lines of {LONG_LINE} bytes, {rotations} rotations, {restarts} restarts, {fast} of them of a fast reader"
        );
        assert!(rotations >= count(300, 1000));
        // On a machine that is busy with other things, pipes are seldom full.
        assert!(!full() || fast * 4 >= restarts, "{fast} of {restarts} readers were fast when they were killed");
        for path in files(place.dir.path(), "web.stdout") {
            let text = std::fs::read(&path).unwrap();
            assert!(text.ends_with(b"\n") && text.len() as u64 <= u64::from(file_size) << 20, "{}", path.display());
        }
    });
}

async fn check_stream(mut follower: Follower, seen: Arc<AtomicU64>) -> u64 {
    let (mut expected, mut rest) = (long_lines(), Vec::new());
    while let Some(output) = follower.next().await.unwrap() {
        let Output::Data(data) = output else { panic!("files were gone before they were read") };
        rest.extend_from_slice(&data);
        let whole = rest.len() / LONG_LINE * LONG_LINE;
        expected.check(&rest[..whole], Path::new("the stream"));
        rest.drain(..whole);
        seen.store(expected.number, Ordering::Relaxed);
    }
    assert!(rest.is_empty());
    expected.number
}

/// What may happen to a stream and its files.
#[derive(Debug, Clone)]
enum Act {
    /// Lines of these lengths.
    Write(Vec<usize>),
    /// The reader ends without being told; in this process that is as near to a kill as one gets.
    Lose,
    TruncateCurrent,
    DeleteCurrent,
    DeleteOldest,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => proptest::collection::vec(0_usize..3000, 1..40).prop_map(Act::Write),
        1 => Just(Act::Lose),
        1 => Just(Act::TruncateCurrent),
        1 => Just(Act::DeleteCurrent),
        1 => Just(Act::DeleteOldest),
    ]
}

/// The lines in the files, oldest first.
fn lines_of(paths: &[PathBuf]) -> Vec<String> {
    let text: String = paths.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    text.split_inclusive('\n').map(str::to_owned).collect()
}

async fn live(acts: &[Act]) {
    let place = place(1000);
    let journals = place.dir.path().join("journals");
    let config = place.config.clone();
    let start = async |config: &StartConfig| {
        let logmon = LogMon::new(journals.clone());
        logmon.start(config.clone()).await.unwrap();
        logmon
    };
    let Sink { child_end, keeper } = open_sink(&config.stdout_fifo).unwrap();
    let mut task = File::from(child_end);
    let mut logmon = start(&config).await;
    let mut follower = Follower::open(place.dir.path(), "web.stdout", Start::Beginning).unwrap();
    let (mut expected, mut all, mut read, mut number) = (Vec::new(), String::new(), Vec::new(), 0);
    for act in acts {
        let Act::Write(lens) = act else {
            match act {
                Act::Lose => {
                    drop(logmon);
                    logmon = start(&config).await;
                }
                _ => {
                    let files = files(place.dir.path(), "web.stdout");
                    if files.is_empty() {
                        continue;
                    }
                    let victim = if matches!(act, Act::DeleteOldest) { 0 } else { files.len() - 1 };
                    // The one that is being written is another case.
                    if matches!(act, Act::DeleteOldest) && files.len() == 1 {
                        continue;
                    }
                    let lost = lines_of(&files[victim..=victim]).len();
                    let before = lines_of(&files[..victim]).len();
                    expected.drain(before..before + lost);
                    if matches!(act, Act::TruncateCurrent) {
                        File::options().write(true).open(&files[victim]).unwrap().set_len(0).unwrap();
                        // A file that grew back unseen cannot be told from one that only grew.
                        let nothing = tokio::time::timeout(Duration::from_millis(20), follower.next()).await;
                        assert!(nothing.is_err(), "{nothing:?}");
                    } else {
                        std::fs::remove_file(&files[victim]).unwrap();
                    }
                }
            }
            continue;
        };
        let lines: Vec<String> = lens
            .iter()
            .map(|len| {
                number += 1;
                format!("{number:08} {}\n", "m".repeat(*len))
            })
            .collect();
        let text = lines.concat();
        task.write_all(text.as_bytes()).unwrap();
        all.push_str(&text);
        expected.extend(lines);
        // Read before anything else happens: what is deleted unread is lost to every follower.
        while read.len() < all.len() {
            let next = tokio::time::timeout(Duration::from_mins(1), follower.next()).await.expect("a lost wakeup");
            match next.unwrap().unwrap() {
                Output::Data(data) => read.extend(data),
                Output::Gap { missing_files } => panic!("{missing_files} files were not seen"),
            }
        }
        assert_eq!(read.len(), all.len());
    }
    drop((task, keeper));
    logmon.stop().await.unwrap();
    follower.finisher().finish();
    while let Some(Output::Data(data)) = follower.next().await.unwrap() {
        read.extend(data);
    }
    assert!(read == all.as_bytes(), "the follower read {} of {} bytes", read.len(), all.len());
    let found = lines_of(&files(place.dir.path(), "web.stdout"));
    assert!(found == expected, "{} lines in files, of {}", found.len(), expected.len());
    assert_eq!(std::fs::read_dir(&journals).unwrap().count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if full() { 500 } else { 20 }, failure_persistence: None, max_shrink_iters: 60, ..ProptestConfig::default()
    })]

    /// Pump, files and follower against a list of lines.
    #[test]
    fn d2_whatever_happens_the_lines_are_those_of_the_model(
        acts in proptest::collection::vec(act(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live(&acts));
    }
}
