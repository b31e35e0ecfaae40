//! Docker tasks: their start beside `docker run`, and what it costs to collect their output, beside a process of the host's
//! for each (`docker_logger` and `logmon`) and beside `docker logs -f`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::driver::{Driver as _, DriverClient, PluginClient, TaskConfig, catalog};
use agentbin::plugin::{self, Launch, Program};
use agentbin::spec::{DriverConfig, MemoryLimits, Resources};
use agentbin::wire::docker_logger;
use agentbin::wire::docker_logger::docker_logger_client::DockerLoggerClient;
use agentbin::wire::logmon;
use agentbin::wire::logmon::log_mon_client::LogMonClient;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::engine::{IMAGE, TestEngine};
use super::{Options, median};

/// Lines of the container that talks, and bytes of each.
const LINES: usize = 200_000;
const LINE: usize = 100;
/// How long idle containers are watched.
const IDLE: Duration = Duration::from_secs(20);
/// What follows a start has to be over by then.
const SETTLE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_mins(5);

/// What the processes of a candidate cost.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    cpu_seconds: f64,
    switches: f64,
    pss_kib: f64,
    processes: usize,
}

pub struct Docker {
    runs: usize,
    containers: usize,
    ours_ms: Vec<f64>,
    peer_ms: Vec<f64>,
    talking: Vec<(&'static str, Cost)>,
    idle: Vec<(&'static str, Cost)>,
}

fn of(pids: &[i32]) -> Result<Cost> {
    let mut cost = Cost { processes: pids.len(), ..Cost::default() };
    for pid in pids {
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            fs::read_to_string(&path).with_context(|| path.clone())
        };
        for thread in fs::read_dir(format!("/proc/{pid}/task")).context("read /proc")?.flatten() {
            let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            cost.cpu_seconds += text.split(' ').next().and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) / 1e9;
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            let switches =
                status.lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<f64>().ok());
            cost.switches += switches.sum::<f64>();
        }
        let rollup = read("smaps_rollup")?;
        let pss =
            rollup.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<f64>().ok());
        cost.pss_kib += pss.unwrap_or(0.0);
    }
    Ok(cost)
}

/// What happens between `before` and now; memory as it is now.
fn since(before: Cost, pids: &[i32]) -> Result<Cost> {
    let now = of(pids)?;
    Ok(Cost { cpu_seconds: now.cpu_seconds - before.cpu_seconds, switches: now.switches - before.switches, ..now })
}

struct Host {
    process: plugin::Client,
    driver: DriverClient,
    dir: tempfile::TempDir,
}

impl Host {
    /// The driver as an agent starts it, with all defaults.
    async fn start(agentbin: &Path, engine: &TestEngine) -> Result<Host> {
        let args = ["driver", "docker"].map(OsString::from);
        let env = [(OsString::from("DOCKER_HOST"), OsString::from(engine.endpoint()))];
        let launch =
            Launch { args: &args, env: env.into(), log: Box::new(|_| {}), ..Launch::new(Program::Path(agentbin)) };
        let process = launch.start().await.context("start the driver")?;
        let calls = PluginClient::new(process.channel(), process.life());
        let (_, _, version, schema) = catalog::ask("docker", &calls).await?;
        calls.set_config(catalog::encode(schema.as_ref(), None)?, None, &version).await?;
        let driver = DriverClient::connect(calls).await?;
        Ok(Host { process, driver, dir: tempfile::tempdir()? })
    }

    fn pid(&self) -> i32 {
        self.process.process().pid
    }

    fn task(&self, number: usize, command: &[&str]) -> Result<TaskConfig> {
        let alloc = format!("0a1b2c3d-0000-4000-8000-{number:012x}");
        let alloc_dir = self.dir.path().join(&alloc);
        for folder in ["alloc/logs", "t/local", "t/secrets", "t/tmp"] {
            fs::create_dir_all(alloc_dir.join(folder))?;
        }
        let fifo = |stream: &str| alloc_dir.join(format!("alloc/logs/.t.{stream}.fifo"));
        for stream in ["stdout", "stderr"] {
            if !fifo(stream).exists() {
                nix::unistd::mkfifo(&fifo(stream), nix::sys::stat::Mode::S_IRWXU)?;
            }
        }
        let config = json!({
            "image": IMAGE, "network_mode": "none", "command": command[0], "args": command[1..],
            // Enough that nothing is rotated away before it is read, by whomever.
            "logging": [{ "type": "json-file", "config": [{ "max-size": "1g" }] }],
        });
        let values = config.as_object().context("an object")?.clone();
        Ok(TaskConfig {
            id: format!("{alloc}/t/1"),
            name: "t".to_owned(),
            alloc_id: alloc,
            node_id: "bench".to_owned(),
            config: DriverConfig { values, ..DriverConfig::default() },
            resources: Resources {
                cpu_shares: 100,
                memory: MemoryLimits { hard_bytes: Some(64 << 20), soft_bytes: None },
                ..Resources::default()
            },
            stdout_path: fifo("stdout").display().to_string(),
            stderr_path: fifo("stderr").display().to_string(),
            alloc_dir,
            ..TaskConfig::default()
        })
    }

    /// Bytes of the files that the driver writes.
    fn written(task: &TaskConfig) -> u64 {
        let files = fs::read_dir(task.alloc_dir.join("alloc/logs")).into_iter().flatten().flatten();
        let regular = files.filter_map(|file| file.metadata().ok()).filter(std::fs::Metadata::is_file);
        regular.map(|file| file.len()).sum()
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        ensure!(Instant::now() < deadline, "{what}: not in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A process of the host's that follows a container, and another that writes what it says into files.
struct Followers(Vec<plugin::Client>);

impl Followers {
    async fn start(agentbin: &Path, endpoint: &str, container: &str, dir: &Path) -> Result<Followers> {
        fs::create_dir_all(dir)?;
        let launch = async |role: &str| {
            let args = [OsString::from(role)];
            Launch { args: &args, log: Box::new(|_| {}), ..Launch::new(Program::Path(agentbin)) }.start().await
        };
        let (writes, follows) = (launch("logmon").await?, launch("docker_logger").await?);
        let path = |name: &str| dir.join(name).display().to_string();
        let request = logmon::StartRequest {
            log_dir: dir.display().to_string(),
            stdout_file_name: "t.stdout".to_owned(),
            stderr_file_name: "t.stderr".to_owned(),
            max_files: 10,
            max_file_size_mb: 10,
            stdout_fifo: path(".t.stdout.fifo"),
            stderr_fifo: path(".t.stderr.fifo"),
        };
        LogMonClient::new(writes.channel()).start(request).await?;
        let request = docker_logger::StartRequest {
            endpoint: endpoint.to_owned(),
            container_id: container.to_owned(),
            stdout_fifo: path(".t.stdout.fifo"),
            stderr_fifo: path(".t.stderr.fifo"),
            ..docker_logger::StartRequest::default()
        };
        DockerLoggerClient::new(follows.channel()).start(request).await?;
        Ok(Followers(vec![writes, follows]))
    }

    fn pids(&self) -> impl Iterator<Item = i32> {
        self.0.iter().map(|client| client.process().pid)
    }

    async fn end(self) {
        for client in self.0 {
            client.kill().await;
        }
    }
}

fn docker_logs(engine: &TestEngine, container: &str, file: &Path) -> Result<Killed> {
    let (out, errors) = (fs::File::create(file)?, fs::File::create(file.with_extension("errors"))?);
    let mut command = Command::new("docker");
    command.args(["-H", &engine.endpoint(), "logs", "-f", container]);
    Ok(Killed(command.stdin(Stdio::null()).stdout(out).stderr(errors).spawn().context("start docker logs")?))
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn measure(options: &Options, agentbin: &Path, dir: &Path) -> Result<Docker> {
    let engine = TestEngine::start().map_err(anyhow::Error::msg)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(all(options, agentbin, dir, &engine))
}

async fn all(options: &Options, agentbin: &Path, dir: &Path, engine: &TestEngine) -> Result<Docker> {
    let host = Host::start(agentbin, engine).await?;
    let (ours_ms, peer_ms) = starts(options.runs, &host, engine).await?;
    let talking = talking(agentbin, dir, &host, engine).await?;
    let idle = idle(options.tasks, agentbin, dir, &host, engine).await?;
    host.process.kill().await;
    Ok(Docker { runs: options.runs, containers: options.tasks, ours_ms, peer_ms, talking, idle })
}

/// From the call to the answer that it runs, in milliseconds, with the image there and no network.
async fn starts(runs: usize, host: &Host, engine: &TestEngine) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut ours, mut peer) = (Vec::new(), Vec::new());
    for run in 0..=runs {
        let task = host.task(run, &["sleep", "1000"])?;
        let began = Instant::now();
        host.driver.start_task(&task).await?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        host.driver.destroy_task(&task.id, true).await?;
        let began = Instant::now();
        let id = engine.docker(&["run", "-d", "--network", "none", "--memory", "64m", IMAGE, "sleep", "1000"]);
        let theirs = began.elapsed().as_secs_f64() * 1e3;
        engine.docker(&["rm", "-f", &id]);
        // The first of all finds everything cold.
        if run > 0 {
            ours.push(took);
            peer.push(theirs);
        }
    }
    Ok((ours, peer))
}

/// One container that writes as fast as it is read.
async fn talking(agentbin: &Path, dir: &Path, host: &Host, engine: &TestEngine) -> Result<Vec<(&'static str, Cost)>> {
    let bytes = (LINES * LINE) as u64;
    let line = "x".repeat(LINE - 1);
    let script = format!("yes {line} | head -n {LINES}; sleep 1000");
    let mut costs = Vec::new();
    let task = host.task(1_000_000, &["sh", "-c", &script])?;
    let before = of(&[host.pid()])?;
    host.driver.start_task(&task).await?;
    until("the driver collects", || Host::written(&task) >= bytes).await?;
    costs.push(("in the driver", since(before, &[host.pid()])?));
    host.driver.destroy_task(&task.id, true).await?;
    let run = || {
        let options = ["run", "-d", "--network", "none", "--log-opt", "max-size=1g", IMAGE, "sh", "-c", &script];
        engine.docker(&options)
    };
    let id = run();
    let logs = dir.join("followed");
    let followers = Followers::start(agentbin, &engine.endpoint(), &id, &logs).await?;
    let pids: Vec<i32> = followers.pids().collect();
    let written = || {
        let files = fs::read_dir(&logs).into_iter().flatten().flatten();
        let of_stdout = files.filter(|file| file.file_name().to_string_lossy().starts_with("t.stdout."));
        of_stdout.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum::<u64>()
    };
    until("logmon writes", || written() >= bytes).await?;
    costs.push(("a docker_logger and a logmon", of(&pids)?));
    followers.end().await;
    engine.docker(&["rm", "-f", &id]);
    let id = run();
    let file = dir.join("docker-logs");
    let follows = docker_logs(engine, &id, &file)?;
    until("docker logs writes", || file.metadata().is_ok_and(|file| file.len() >= bytes)).await?;
    costs.push(("docker logs -f", of(&[follows.0.id().cast_signed()])?));
    drop(follows);
    engine.docker(&["rm", "-f", &id]);
    Ok(costs)
}

/// Containers that sleep, followed by each candidate in turn.
async fn idle(
    containers: usize,
    agentbin: &Path,
    dir: &Path,
    host: &Host,
    engine: &TestEngine,
) -> Result<Vec<(&'static str, Cost)>> {
    let mut tasks = Vec::new();
    for number in 0..containers {
        let task = host.task(2_000_000 + number, &["sleep", "100000"])?;
        host.driver.start_task(&task).await?;
        tasks.push(task);
    }
    let mut costs = Vec::new();
    let watch = async |pids: &[i32]| {
        tokio::time::sleep(SETTLE).await;
        let before = of(pids)?;
        tokio::time::sleep(IDLE).await;
        since(before, pids)
    };
    costs.push(("in the driver", watch(&[host.pid()]).await?));
    let ids: Vec<String> = tasks.iter().map(|task| format!("{}-{}", task.name, task.alloc_id)).collect();
    let mut followers = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        followers.push(Followers::start(agentbin, &engine.endpoint(), id, &dir.join(format!("idle-{number}"))).await?);
    }
    let pids: Vec<i32> = followers.iter().flat_map(Followers::pids).collect();
    costs.push(("a docker_logger and a logmon each", watch(&pids).await?));
    for follower in followers {
        follower.end().await;
    }
    let follows: Result<Vec<Killed>> = ids.iter().map(|id| docker_logs(engine, id, &dir.join(id))).collect();
    let follows = follows?;
    let pids: Vec<i32> = follows.iter().map(|child| child.0.id().cast_signed()).collect();
    costs.push(("docker logs -f each", watch(&pids).await?));
    drop(follows);
    for task in &tasks {
        host.driver.destroy_task(&task.id, true).await?;
    }
    Ok(costs)
}

impl Docker {
    pub fn table(&self) -> String {
        let mut text = format!("docker: start to running, image present, no network, {} runs\n", self.runs);
        let (ours, peer) = (median(&self.ours_ms), median(&self.peer_ms));
        let _ = writeln!(text, "  {:<36} {ours:>9.1} ms", "our driver");
        let _ = writeln!(text, "  {:<36} {peer:>9.1} ms   ours / it {:.2}", "docker run -d", ours / peer);
        let _ = writeln!(text, "output of one container, {LINES} lines of {LINE} bytes");
        let gb = (LINES * LINE) as f64 / 1e9;
        for (name, cost) in &self.talking {
            let (per_gb, per_line) = (cost.cpu_seconds / gb, cost.cpu_seconds / LINES as f64 * 1e6);
            let ratio = self.talking[0].1.cpu_seconds / cost.cpu_seconds;
            let _ = writeln!(
                text,
                "  {name:<36} {per_gb:>7.1} CPU s/GB {per_line:>6.2} us/line, PSS {:>5.1} MiB   ours / it {ratio:.2}",
                cost.pss_kib / 1024.0
            );
        }
        let seconds = IDLE.as_secs_f64();
        let _ = writeln!(text, "{} containers that say nothing, {seconds} s", self.containers);
        for (name, cost) in &self.idle {
            let ratio = self.idle[0].1.pss_kib / cost.pss_kib;
            let _ = writeln!(
                text,
                "  {name:<36} {:>4} processes, PSS {:>7.1} MiB, {:>6.3}% of a core, {:>7.2} wakeups/s   memory: ours / it {ratio:.3}",
                cost.processes,
                cost.pss_kib / 1024.0,
                cost.cpu_seconds / seconds * 100.0,
                cost.switches / seconds,
            );
        }
        text
    }

    pub fn json(&self) -> Value {
        let costs = |costs: &[(&'static str, Cost)]| {
            let entry = |(name, cost): &(&'static str, Cost)| {
                let cost = json!({
                    "cpu_seconds": cost.cpu_seconds, "switches": cost.switches, "pss_kib": cost.pss_kib,
                    "processes": cost.processes,
                });
                ((*name).to_owned(), cost)
            };
            Value::Object(costs.iter().map(entry).collect())
        };
        json!({
            "start_ms": { "ours": median(&self.ours_ms), "docker run -d": median(&self.peer_ms) },
            "start_ratio": median(&self.ours_ms) / median(&self.peer_ms),
            "lines": LINES, "bytes_per_line": LINE, "talking": costs(&self.talking),
            "containers": self.containers, "seconds": IDLE.as_secs(), "idle": costs(&self.idle),
        })
    }
}
