//! Times the launch of an isolated `/bin/true`, for `scripts/bench launch`. Prints one JSON line per figure:
//!
//! - `executor_launch`: Launch to exit in an executor that has run for 20 ms, held as the exec driver holds a task by default
//! - `new_executor`: a new executor process, its handshake, Launch to exit
//! - `bare`: as `executor_launch`, without what the executor of another host is not asked for; and then each of that alone:
//!   `seccomp`, `uts and cgroup`, `user namespace`, `network namespace`, `unveil`; `strict` is all but the last
//!
//! With `--exec` instead, in a task that runs:
//!
//! - `script`: Exec of `/bin/true`, to its status
//! - `session`: `ExecStreaming` of it with pipes, to the end of the stream
//! - `terminal`: the same with a terminal
//!
//! With `--idle` instead, what nothing costs: `--tasks N` tasks that sleep, for `--seconds S`. One line:
//! `{"tasks", "seconds", "cpu_ms", "wakeups", "worst_wakeups", "asked_ms", "cgroups", "read_ms", "read_cpu_ms"}`: what the kernel
//! gave all supervisors in that time, the figures of all tasks asked over gRPC (medians of five rounds), and those of 500
//! cgroups read by this process.
//!
//! `bench_launch [--exec|--idle] [--runs N] [--pause-ms MILLISECONDS] [--tasks N] [--seconds S]`, as root. Sizes are those of a Nomad task start: the exec driver's
//! mounts, memory, cpu and pids limits, log collection.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use agentbin::cgroup::{CgroupFs, Regime, Sampler, TaskCgroup};
use agentbin::executor::{Executor as _, ExecutorClient};
use agentbin::plugin::{Client, Launch, Program, role_environment};
use agentbin::spec::{
    LaunchSpec, LimitedResource, LogCollection, MemoryLimits, Mount, OwnNamespaces, Propagation, ResourceLimit,
    Resources, Role, Seccomp, Unveil,
};
use agentbin::wire::drivers::ExecTaskStreamingRequest;
use agentbin::wire::drivers::exec_task_streaming_request::Setup;
use tokio_stream::StreamExt as _;

/// How long an executor runs before its launch counts as one in a running executor.
const SETTLED: Duration = Duration::from_millis(20);

fn main() -> anyhow::Result<()> {
    agentbin::init();
    let mut runs = 30;
    let mut pause = Duration::ZERO;
    let mut args = std::env::args().skip(1).peekable();
    let exec = args.next_if(|arg| arg == "--exec").is_some();
    let idle = args.next_if(|arg| arg == "--idle").is_some();
    let (mut tasks, mut seconds) = (200, 20);
    while let (Some(flag), Some(value)) = (args.next(), args.next()) {
        match flag.as_str() {
            "--runs" => runs = value.parse()?,
            "--pause-ms" => pause = Duration::from_millis(value.parse()?),
            "--tasks" => tasks = value.parse()?,
            "--seconds" => seconds = value.parse()?,
            other => anyhow::bail!("unknown flag {other}; known are --runs, --pause-ms, --tasks and --seconds"),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if idle {
        return runtime.block_on(measure_idle(tasks, Duration::from_secs(seconds)));
    }
    if exec { runtime.block_on(measure_exec(runs, pause)) } else { runtime.block_on(measure(runs, pause)) }
}

/// An isolated executor in `dir`, which goes ahead with this cgroup.
async fn start_executor(dir: &Path, log: &str, ahead: Option<&LaunchSpec>) -> anyhow::Result<Client> {
    let mut config = serde_json::json!({ "LogFile": dir.join(log), "LogLevel": "info", "FSIsolation": true });
    if let Some(spec) = ahead {
        config["Prepare"] = serde_json::json!({ "Cgroup": spec.cgroup, "CgroupNamespace": spec.own.cgroup });
    }
    let launch = Launch {
        args: &[OsString::from(config.to_string())],
        env: role_environment(),
        new_session: true,
        socket_dir: Some(dir),
        ..Launch::new(Program::Own(Role::Executor))
    };
    Ok(launch.start().await?)
}

async fn measure_exec(runs: usize, pause: Duration) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    for folder in ["alloc/logs", "task/local", "task/secrets", "task/tmp"] {
        std::fs::create_dir_all(dir.path().join(folder))?;
    }
    let regime = CgroupFs::detect(Path::new("/sys/fs/cgroup"))?.regime();
    let mut spec = spec(dir.path(), regime, 0);
    default(&mut spec);
    let client = start_executor(dir.path(), "executor.out", None).await?;
    let executor = ExecutorClient::new(client.channel());
    executor.launch(LaunchSpec { command: "/bin/sleep".to_owned(), args: vec!["100000".to_owned()], ..spec }).await?;
    let mut figures = [("script", Vec::new()), ("session", Vec::new()), ("terminal", Vec::new())];
    for run in 0..=runs {
        for (what, times) in &mut figures {
            tokio::time::sleep(pause).await;
            let begin = Instant::now();
            let status = match *what {
                "script" => {
                    executor.exec(SystemTime::now() + Duration::from_mins(1), "/bin/true", &[]).await?.exit_code
                }
                kind => session(&executor, kind == "terminal").await?,
            };
            anyhow::ensure!(status == 0, "/bin/true failed: {status}");
            // The first of all finds everything cold.
            if run > 0 {
                times.push(begin.elapsed().as_micros());
            }
        }
    }
    executor.shutdown("", Duration::ZERO).await?;
    client.kill().await;
    for (what, times) in figures {
        println!("{}", serde_json::json!({"what": what, "us": times}));
    }
    Ok(())
}

/// Cgroups that an agent with many tasks would read.
const SWEPT: usize = 500;
const ROUNDS: usize = 5;

async fn measure_idle(tasks: usize, time: Duration) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    for folder in ["alloc/logs", "task/local", "task/secrets", "task/tmp"] {
        std::fs::create_dir_all(dir.path().join(folder))?;
    }
    let cgroups = CgroupFs::detect(Path::new("/sys/fs/cgroup"))?;
    let mut running = Vec::with_capacity(tasks);
    for number in 0..tasks {
        let client = start_executor(dir.path(), &format!("executor-{number}.out"), None).await?;
        let executor = ExecutorClient::new(client.channel());
        let mut spec = spec(dir.path(), cgroups.regime(), number);
        default(&mut spec);
        if let Some(logs) = &mut spec.logs {
            logs.stdout_file = format!("task-{number}.stdout");
            logs.stderr_file = format!("task-{number}.stderr");
        }
        let cgroup = spec.cgroup.clone();
        executor
            .launch(LaunchSpec { command: "/bin/sleep".to_owned(), args: vec!["100000".to_owned()], ..spec })
            .await?;
        running.push((client, executor, cgroup));
    }
    let pids: Vec<i32> =
        running.iter().map(|(client, ..)| Ok(client.reattach_config()?.process.pid)).collect::<anyhow::Result<_>>()?;
    // What a start leaves to do is done.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = pids.iter().map(|pid| scheduled(*pid)).collect::<anyhow::Result<Vec<_>>>()?;
    tokio::time::sleep(time).await;
    let after = pids.iter().map(|pid| scheduled(*pid)).collect::<anyhow::Result<Vec<_>>>()?;
    let spent: Vec<(u64, u64)> = before.iter().zip(&after).map(|(b, a)| (a.0 - b.0, a.1 - b.1)).collect();

    let mut asked = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for (_, executor, _) in &running {
            executor.stats().await?;
        }
        asked.push(begin.elapsed());
    }
    let (read, read_cpu) = sweep(&cgroups, running.iter().map(|(_, _, cgroup)| cgroup))?;
    for (client, executor, _) in running {
        executor.shutdown("", Duration::ZERO).await?;
        client.kill().await;
    }
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!(
        "{}",
        serde_json::json!({
            "tasks": tasks,
            "seconds": time.as_secs_f64(),
            "cpu_ms": ms(Duration::from_nanos(spent.iter().map(|(cpu, _)| cpu).sum())),
            "wakeups": spent.iter().map(|(_, wakeups)| wakeups).sum::<u64>(),
            "worst_wakeups": spent.iter().map(|(_, wakeups)| *wakeups).max(),
            "asked_ms": ms(median(asked)),
            "cgroups": SWEPT,
            "read_ms": ms(read),
            "read_cpu_ms": ms(read_cpu),
        })
    );
    Ok(())
}

/// Reads the figures of [`SWEPT`] cgroups, those of the tasks among them: time and CPU of one round, medians.
fn sweep<'a>(cgroups: &CgroupFs, tasks: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<(Duration, Duration)> {
    let mut swept = tasks.take(SWEPT).map(|path| TaskCgroup::open(cgroups, path)).collect::<Result<Vec<_>, _>>()?;
    let busy = swept.len();
    let own = PathBuf::from(format!("agentbin-bench-sweep-{}", std::process::id()));
    for number in busy..SWEPT {
        swept.push(TaskCgroup::create(cgroups, &own.join(number.to_string()), &Resources::default())?);
    }
    let mut samplers = vec![Sampler::new(1000.0); SWEPT];
    let own_pid = std::process::id().cast_signed();
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (begin, used) = (Instant::now(), scheduled(own_pid)?.0);
        for (cgroup, sampler) in swept.iter().zip(&mut samplers) {
            cgroup.stats(sampler)?;
            cgroup.pressure()?;
        }
        wall.push(begin.elapsed());
        cpu.push(Duration::from_nanos(scheduled(own_pid)?.0 - used));
    }
    for cgroup in &swept[busy..] {
        cgroup.remove(Instant::now() + Duration::from_secs(5))?;
    }
    Ok((median(wall), median(cpu)))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// CPU time in nanoseconds, and how often it was put on a CPU, since its start.
fn scheduled(pid: i32) -> anyhow::Result<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let mut fields = text.split_whitespace().map(str::parse::<u64>);
    match (fields.next(), fields.nth(1)) {
        (Some(Ok(time)), Some(Ok(slices))) => Ok((time, slices)),
        _ => anyhow::bail!("/proc/{pid}/schedstat reads {text:?}"),
    }
}

async fn session(executor: &ExecutorClient, tty: bool) -> anyhow::Result<i32> {
    let setup = Setup { command: vec!["/bin/true".to_owned()], tty, ..Setup::default() };
    let first = ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() };
    let mut responses = executor.exec_streaming(Box::pin(tokio_stream::once(Ok(first)))).await?;
    let mut status = -1;
    while let Some(response) = responses.next().await {
        status = response?.result.map_or(status, |result| result.exit_code);
    }
    Ok(status)
}

async fn measure(runs: usize, pause: Duration) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    for folder in ["alloc/logs", "task/local", "task/secrets", "task/tmp"] {
        std::fs::create_dir_all(dir.path().join(folder))?;
    }
    let regime = CgroupFs::detect(Path::new("/sys/fs/cgroup"))?.regime();
    let mut figures: Vec<(&str, Hold, Vec<u128>)> =
        HOLDS.into_iter().map(|(what, hold)| (what, hold, Vec::with_capacity(runs))).collect();
    let mut missing = Vec::new();
    for run in 0..runs {
        figures.retain(|(what, ..)| !missing.contains(what));
        for (what, hold, times) in &mut figures {
            let launch_at_once = *what == "new_executor";
            tokio::time::sleep(pause).await;
            let mut spec = spec(dir.path(), regime, run);
            hold(&mut spec);
            let begin = Instant::now();
            let client = start_executor(dir.path(), "executor.out", Some(&spec)).await?;
            let executor = ExecutorClient::new(client.channel());
            if !launch_at_once {
                tokio::time::sleep(pause.max(SETTLED)).await;
            }
            let asked = Instant::now();
            if let Err(error) = executor.launch(spec).await {
                // What this machine has not is left out, and what every task has is not.
                anyhow::ensure!(run == 0 && !ALWAYS.contains(what), "{what}: {error}");
                eprintln!("bench_launch: {what} is left out: {error}");
                missing.push(*what);
                client.kill().await;
                continue;
            }
            let exit = executor.wait().await?.exit;
            let (launch, start) = (asked.elapsed(), begin.elapsed());
            anyhow::ensure!(exit.is_some_and(|exit| exit.successful()), "{what}: /bin/true failed: {exit:?}");
            times.push(if launch_at_once { start } else { launch }.as_micros());
            executor.shutdown("", Duration::ZERO).await?;
            client.kill().await;
        }
    }
    for (what, _, times) in figures {
        println!("{}", serde_json::json!({"what": what, "us": times}));
    }
    Ok(())
}

/// What every machine can measure that can run an isolated task.
const ALWAYS: [&str; 3] = ["executor_launch", "new_executor", "bare"];

/// How a task is held.
type Hold = fn(&mut LaunchSpec);

const HOLDS: [(&str, Hold); 9] = [
    ("executor_launch", default),
    ("new_executor", default),
    ("bare", |_| ()),
    ("seccomp", |spec| spec.seccomp = Seccomp::Default),
    ("uts and cgroup", |spec| spec.own = OwnNamespaces { uts: true, cgroup: true, network: false }),
    ("user namespace", |spec| spec.user_namespace = true),
    ("network namespace", |spec| spec.own.network = true),
    ("unveil", |spec| {
        spec.unveil = ["rx:/bin", "rx:/lib", "rx:/lib64", "rx:/usr", "r:/etc"].iter().filter_map(unveiled).collect();
    }),
    ("strict", |spec| {
        default(spec);
        spec.own.network = true;
        spec.user_namespace = true;
    }),
];

/// What the exec driver asks for by default.
fn default(spec: &mut LaunchSpec) {
    spec.seccomp = Seccomp::Default;
    spec.own = OwnNamespaces { uts: true, cgroup: true, network: false };
    spec.limits = vec![ResourceLimit { resource: LimitedResource::Core, soft: Some(0), hard: Some(0) }];
}

/// Of the directories that the task has.
fn unveiled(rule: &&str) -> Option<Unveil> {
    Unveil::parse(rule).filter(|unveil| unveil.path.is_dir())
}

fn spec(dir: &Path, regime: Regime, run: usize) -> LaunchSpec {
    let mount = |path: &str| Mount {
        task_path: path.to_owned(),
        host_path: PathBuf::from(path),
        readonly: true,
        propagation: Propagation::Private,
        ..Mount::default()
    };
    let folders =
        ["/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr"].into_iter().filter(|path| Path::new(path).is_dir());
    let name = format!("agentbin-bench-{}-{run}", std::process::id());
    LaunchSpec {
        command: "/bin/true".to_owned(),
        user: "nobody".to_owned(),
        task_dir: dir.join("task"),
        mounts: folders
            .map(mount)
            .chain([Mount { task_path: "/alloc".to_owned(), host_path: dir.join("alloc"), ..mount("/") }])
            .collect(),
        resources: Resources {
            cpu_shares: 100,
            memory: MemoryLimits { hard_bytes: Some(64 << 20), soft_bytes: None },
            pids_max: Some(64),
            ..Resources::default()
        },
        resource_limits: true,
        cgroup: match regime {
            Regime::V2 => format!("agentbin-bench.slice/{name}.scope").into(),
            Regime::V1 => format!("agentbin-bench/{name}").into(),
            Regime::Off => PathBuf::new(),
        },
        no_new_privs: true,
        logs: Some(LogCollection {
            dir: dir.join("alloc/logs"),
            stdout_file: "task.stdout".to_owned(),
            stderr_file: "task.stderr".to_owned(),
            max_files: 2,
            max_file_size_bytes: 1 << 20,
            ..LogCollection::default()
        }),
        ..LaunchSpec::default()
    }
}
