//! Output from a pipe into files: ours, with rotation and counters, beside `cat`, conmon and Docker with json-file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::logs::client::Client;
use agentbin::logs::{LogMonitor as _, StartConfig};
use agentbin::plugin::{self, Launch, Program};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Options, isolation, median, pause, program};

/// `<bytes of a write>,<bytes in all>[,<file>]`: this program is to write lines of 100 bytes to its stdout, and to say in the
/// file how many seconds that took.
pub const WRITER: &str = "AGENTBIN_BENCH_WRITER";

/// Bytes of a write, and bytes in all.
const LOADS: [(usize, usize); 2] = [(64 * 1024, 768 << 20), (100, 96 << 20)];
const ROUNDS: usize = 9;
/// Of what takes a minute.
const FEW: usize = 3;
const IDLE: Duration = Duration::from_secs(3);

/// One candidate's figures for one load.
#[derive(Debug, Clone, Default)]
struct Figures {
    mb_per_second: Vec<f64>,
    cpu_seconds_per_gb: Vec<f64>,
}

/// What was found out.
pub struct Logs {
    /// By load and candidate: `agentbin logmon`, `cat`, `conmon`, `docker`.
    loads: Vec<Vec<(&'static str, Figures)>>,
    /// Context switches of an idle logmon with a task, in [`IDLE`].
    idle_wakeups: u64,
    skipped: Vec<String>,
}

/// Writes what [`WRITER`] says.
pub fn write(load: &str) -> Result<()> {
    let mut words = load.splitn(3, ',');
    let mut number =
        || words.next().context("a load is two numbers")?.parse::<usize>().context("a load is two numbers");
    let (block, total) = (number()?, number()?);
    let mut data = vec![b'x'; block];
    data.chunks_mut(100).for_each(|line| line[line.len() - 1] = b'\n');
    // Not through a buffer: the size of the writes is what is measured.
    let mut out = File::options().write(true).open("/proc/self/fd/1").context("open stdout")?;
    let began = Instant::now();
    for _ in 0..total / block {
        out.write_all(&data).context("write")?;
    }
    match words.next() {
        Some(file) => fs::write(file, began.elapsed().as_secs_f64().to_string()).context("write the seconds"),
        None => Ok(()),
    }
}

fn writer(block: usize, total: usize) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(WRITER, format!("{block},{total}"));
    command
}

/// Seconds on a CPU of all threads of a process.
fn cpu_seconds(pid: u32) -> Option<f64> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let nanos = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    Some(nanos.sum::<f64>() / 1e9)
}

fn switches(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read /proc")?;
    let counts = status.lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok());
    Ok(counts.sum())
}

struct Logmon {
    host: plugin::Client,
    config: StartConfig,
}

impl Logmon {
    async fn start(agentbin: &Path, dir: &Path) -> Result<Logmon> {
        let args = [OsString::from("logmon")];
        let launch = Launch { args: &args, log: Box::new(|_| {}), ..Launch::new(Program::Path(agentbin)) };
        let host = launch.start().await.context("start a logmon")?;
        let config = StartConfig {
            log_dir: dir.to_owned(),
            stdout_file: "b.stdout".into(),
            stderr_file: "b.stderr".into(),
            max_files: 10,
            max_file_size_mb: 10,
            stdout_fifo: dir.join(".b.stdout.fifo"),
            stderr_fifo: dir.join(".b.stderr.fifo"),
        };
        Client::new(host.channel()).start(config.clone()).await.context("start collecting")?;
        Ok(Logmon { host, config })
    }

    fn pid(&self) -> u32 {
        self.host.process().pid.unsigned_abs()
    }

    async fn end(self) -> Result<()> {
        Client::new(self.host.channel()).stop().await.context("stop collecting")?;
        self.host.kill().await;
        Ok(())
    }
}

type Measured = (f64, f64);

/// Wall and CPU seconds.
async fn ours(agentbin: &Path, dir: &Path, block: usize, total: usize) -> Result<Measured> {
    let logmon = Logmon::start(agentbin, dir).await?;
    let pid = logmon.pid();
    let fifo = File::options().write(true).open(&logmon.config.stdout_fifo).context("open the FIFO")?;
    let before = cpu_seconds(pid).context("read /proc")?;
    let began = Instant::now();
    let status = tokio::task::spawn_blocking({
        let mut command = writer(block, total);
        move || command.stdout(fifo).status()
    });
    ensure!(status.await??.success(), "the writer failed");
    // Its answer comes when all is in files.
    Client::new(logmon.host.channel()).stop().await.context("stop collecting")?;
    let figures = (began.elapsed().as_secs_f64(), cpu_seconds(pid).context("read /proc")? - before);
    logmon.end().await?;
    Ok(figures)
}

fn cat(dir: &Path, block: usize, total: usize) -> Result<Measured> {
    let file = dir.join("cat");
    let began = Instant::now();
    let mut cat = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(File::create(&file).context("create a file")?)
        .spawn()
        .context("start cat")?;
    let pid = cat.id();
    let mut writer = writer(block, total);
    writer.stdout(cat.stdin.take().context("cat has no stdin")?);
    let mut writing = writer.spawn().context("start the writer")?;
    drop(writer);
    let mut cpu = 0.0;
    // Read until the last moment: with the process goes its account.
    while cat.try_wait()?.is_none() {
        cpu = cpu_seconds(pid).filter(|now| *now > cpu).unwrap_or(cpu);
        pause(Duration::from_millis(2));
    }
    ensure!(writing.wait()?.success(), "the writer failed");
    let wall = began.elapsed().as_secs_f64();
    ensure!(file.metadata()?.len() as usize == total / block * block, "cat lost some of it");
    fs::remove_file(file)?;
    Ok((wall, cpu))
}

/// With a runtime that starts the writer as the container's process and no more.
fn conmon(conmon: &Path, dir: &Path, block: usize, total: usize) -> Result<Measured> {
    let script = dir.join("runtime");
    let command = std::fs::read_link("/proc/self/exe").context("find this program")?;
    let text = format!(
        "#!/bin/sh\ncase \" $* \" in *' create '*)\n  while [ $# -gt 0 ]; do\n    [ \"$1\" = --pid-file ] && file=$2\n    shift\n  done\n  \
         {WRITER}={block},{total} '{}' &\n  echo $! > \"$file\";;\nesac\n",
        command.display()
    );
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let log = dir.join("conmon.log");
    let began = Instant::now();
    let mut child = Command::new(conmon)
        .args(["--sync", "--no-sync-log", "-c", "bench", "-u", "bench", "-n", "bench"])
        .arg("-b")
        .arg(dir)
        .arg("-r")
        .arg(&script)
        .arg("-l")
        .arg(format!("k8s-file:{}", log.display()))
        .arg("-p")
        .arg(dir.join("pid"))
        .arg("--exit-dir")
        .arg(dir)
        .arg("--socket-dir-path")
        .arg(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start conmon")?;
    // With `--sync` it is this process and none that it forks.
    let mut cpu = 0.0;
    while child.try_wait()?.is_none() {
        cpu = cpu_seconds(child.id()).unwrap_or(0.0).max(cpu);
        pause(Duration::from_millis(2));
    }
    let wall = began.elapsed().as_secs_f64();
    let lines = total / block * block / 100;
    let size = log.metadata().context("conmon wrote no log")?.len() as usize;
    ensure!(size > total / block * block, "conmon lost some of {lines} lines: {size} bytes");
    fs::remove_file(log)?;
    Ok((wall, cpu))
}

/// A daemon with an image that holds the writer.
struct Docker {
    daemon: isolation::Docker,
    dir: PathBuf,
}

impl Docker {
    fn start(dir: &Path) -> Result<Docker> {
        let (dir, root) = (dir.join("logs-docker"), dir.join("logs-docker-root"));
        for folder in ["dev", "etc", "proc", "sys", "out"] {
            fs::create_dir_all(root.join(folder))?;
        }
        fs::create_dir_all(&dir)?;
        fs::copy("/proc/self/exe", root.join("writer")).context("copy this program")?;
        Ok(Docker { daemon: isolation::Docker::start(&dir, &root)?, dir })
    }

    /// CPU seconds of what belongs to the daemon, by pid, beside what is known of those that have ended.
    fn cpu(&self, known: &mut BTreeMap<u32, f64>) -> Result<f64> {
        let ours = self.dir.to_string_lossy().into_owned();
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&ours)
                && let Some(seconds) = cpu_seconds(pid)
            {
                let most = known.entry(pid).or_default();
                *most = most.max(seconds);
            }
        }
        Ok(known.values().sum())
    }

    /// The wall time is the writer's: it goes no faster than its pipe is emptied, and a container's start is not in it.
    fn measure(&self, place: &Path, block: usize, total: usize) -> Result<Measured> {
        let (load, mount) = (format!("{WRITER}={block},{total},/out/seconds"), format!("{}:/out", place.display()));
        let create = ["create", "--log-driver", "json-file", "--network", "none", "-e", &load, "-v", &mount];
        let id = isolation::output(&self.daemon.words(&[&create[..], &[isolation::IMAGE, "/writer"]].concat()))?;
        let id = id.trim();
        isolation::output(&self.daemon.words(&["start", id]))?;
        let mut known = BTreeMap::new();
        let before = self.cpu(&mut known)?;
        while !place.join("seconds").exists() {
            pause(Duration::from_millis(10));
            self.cpu(&mut known)?;
        }
        isolation::output(&self.daemon.words(&["wait", id]))?;
        let cpu = self.cpu(&mut known)? - before;
        isolation::output(&self.daemon.words(&["rm", id]))?;
        Ok((fs::read_to_string(place.join("seconds"))?.parse().context("seconds of the writer")?, cpu))
    }
}

async fn idle_wakeups(agentbin: &Path, dir: &Path) -> Result<u64> {
    let logmon = Logmon::start(agentbin, dir).await?;
    let mut task = File::options().write(true).open(&logmon.config.stdout_fifo).context("open the FIFO")?;
    task.write_all(b"a line\n")?;
    pause(Duration::from_millis(500));
    let before = switches(logmon.pid())?;
    pause(IDLE);
    let woken = switches(logmon.pid())? - before;
    drop(task);
    logmon.end().await?;
    Ok(woken)
}

/// Measures all candidates in turn.
pub fn measure(_options: &Options, agentbin: &Path, dir: &Path) -> Result<Logs> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = program("conmon");
    let mut skipped = Vec::new();
    if found.is_none() {
        skipped.push("conmon is not installed (scripts/setup --bench brings it)".to_owned());
    }
    let docker = Docker::start(dir).map_err(|error| skipped.push(format!("docker: {error:#}"))).ok();
    let mut loads = Vec::new();
    for (block, total) in LOADS {
        let mut rows = vec![("agentbin logmon", Figures::default()), ("cat", Figures::default())];
        rows.extend(found.as_ref().map(|_| ("conmon", Figures::default())));
        rows.extend(docker.as_ref().map(|_| ("docker", Figures::default())));
        for round in 0..ROUNDS {
            for (name, figures) in rows.iter_mut().filter(|(name, _)| *name != "docker" || round < FEW) {
                let place = dir.join(format!("logs-{block}-{round}-{}", name.replace(' ', "-")));
                fs::create_dir(&place)?;
                // Slow enough that less says as much.
                let total = if *name == "docker" { total / 16 } else { total };
                let measured = match (*name, &found, &docker) {
                    ("cat", ..) => cat(&place, block, total),
                    ("conmon", Some(path), _) => conmon(path, &place, block, total),
                    ("docker", _, Some(docker)) => docker.measure(&place, block, total),
                    _ => runtime.block_on(ours(agentbin, &place, block, total)),
                };
                fs::remove_dir_all(&place)?;
                match measured {
                    Ok((wall, cpu)) => {
                        let gb = total as f64 / 1e9;
                        figures.mb_per_second.push(gb * 1e3 / wall);
                        figures.cpu_seconds_per_gb.push(cpu / gb);
                    }
                    Err(error) if matches!(*name, "conmon" | "docker") => skipped.push(format!("{name}: {error:#}")),
                    Err(error) => return Err(error.context(name.to_string())),
                }
            }
        }
        rows.retain(|(_, figures)| !figures.mb_per_second.is_empty());
        loads.push(rows);
    }
    let place: PathBuf = dir.join("logs-idle");
    fs::create_dir(&place)?;
    let idle_wakeups = runtime.block_on(idle_wakeups(agentbin, &place))?;
    Ok(Logs { loads, idle_wakeups, skipped })
}

impl Logs {
    /// Ratios to ours.
    pub fn table(&self) -> String {
        let mut text =
            String::from("logs: a pipe into files; ours rotates (10 x 10 MiB), keeps lines whole and counts\n");
        for ((block, _), rows) in LOADS.iter().zip(&self.loads) {
            let _ = writeln!(text, "\n{block}-byte writes          MB/s   ours is      CPU s/GB   ours takes");
            let Some((_, ours)) = rows.first() else { continue };
            for (name, figures) in rows {
                let (speed, cpu) = (median(&figures.mb_per_second), median(&figures.cpu_seconds_per_gb));
                let (faster, share) = (median(&ours.mb_per_second) / speed, median(&ours.cpu_seconds_per_gb) / cpu);
                let _ = writeln!(text, "  {name:<18} {speed:9.0}   {faster:5.2} x     {cpu:9.2}   {share:5.2} x");
            }
        }
        let _ = writeln!(text, "\nidle, with a task: {} wakeups in {} s", self.idle_wakeups, IDLE.as_secs());
        for reason in &self.skipped {
            let _ = writeln!(text, "skipped: {reason}");
        }
        text
    }

    /// All figures.
    pub fn json(&self) -> Value {
        let loads = LOADS.iter().zip(&self.loads).map(|((block, total), rows)| {
            let rows: serde_json::Map<_, _> = rows
                .iter()
                .map(|(name, figures)| {
                    let value = json!({
                        "mb_per_second": figures.mb_per_second,
                        "cpu_seconds_per_gb": figures.cpu_seconds_per_gb,
                    });
                    ((*name).to_owned(), value)
                })
                .collect();
            json!({ "write_bytes": block, "total_bytes": total, "rows": rows })
        });
        json!({
            "loads": loads.collect::<Vec<_>>(),
            "idle_wakeups": self.idle_wakeups,
            "idle_seconds": IDLE.as_secs(),
            "skipped": self.skipped,
        })
    }
}
