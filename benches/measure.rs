//! The measuring core of `scripts/bench`: ours and its peers, interleaved in one run, as medians and ratios.
//!
//! Absolute times on a shared machine mean nothing, so every round measures each candidate once, and what is quoted
//! is a ratio. Warm figures (back to back) and idle figures (after a pause) are never mixed.
//!
//! The binary under test is named by `AGENTBIN`; peers are looked up in `PATH`. `BENCH_LAUNCH` may name a program
//! that measures from inside (`examples/bench_launch.rs`): called as `bench_launch --runs N --pause-ms MS`, it prints
//! lines like `{"what":"executor_launch","us":[910,874]}`, one per way of launching; with `--exec`, of executing in a
//! running task.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

#[path = "docker.rs"]
mod docker;
#[path = "../tests/support/engine.rs"]
mod engine;
#[path = "idle.rs"]
mod idle;
#[path = "isolation.rs"]
mod isolation;
#[path = "logs.rs"]
mod logs;
#[path = "network.rs"]
mod network;
#[path = "validate.rs"]
mod validate;

const USAGE: &str = "usage: measure launch|exec|memory|logs|isolation|idle|validate|network|docker|all [--json] [--runs N] [--tasks N] \
                     [--before DIR]";
const IDLE_PAUSE: Duration = Duration::from_millis(100);
const MEMORY_LIMIT: u64 = 64 << 20;
const CPU_SHARES: u64 = 100;
const PIDS_LIMIT: u64 = 64;

struct Options {
    what: String,
    json: bool,
    runs: usize,
    tasks: usize,
    /// The folder of an earlier release build, measured beside this one: `agentbin` and `examples/bench_launch`.
    before: Option<PathBuf>,
}

fn main() -> ExitCode {
    let done = match std::env::var(logs::WRITER) {
        Ok(load) => logs::write(&load).map(|()| true),
        Err(_) => run(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("measure: {error:#}");
            ExitCode::from(1)
        }
    }
}

/// `Ok(false)`: the peers were measured, ours could not be.
fn run() -> Result<bool> {
    let options = options()?;
    let agentbin = PathBuf::from(std::env::var_os("AGENTBIN").context("AGENTBIN is not set; use scripts/bench")?);
    let dir = tempfile::Builder::new().prefix("agentbin-bench-").tempdir().context("make a temporary folder")?;
    let mut report = serde_json::Map::new();
    let mut complete = true;
    if matches!(options.what.as_str(), "launch" | "all") {
        let launch = launch::measure(&options, &agentbin, dir.path())?;
        complete &= launch.ours_ran;
        if !options.json {
            println!("{}", launch.table());
        }
        report.insert("launch".to_owned(), launch.json());
    }
    if matches!(options.what.as_str(), "exec" | "all") {
        let exec = launch::measure_exec(&options, dir.path())?;
        complete &= exec.ours_ran;
        if !options.json {
            println!("{}", exec.table());
        }
        report.insert("exec".to_owned(), exec.json());
    }
    if matches!(options.what.as_str(), "memory" | "all") {
        match memory::measure(&options, &agentbin, dir.path()) {
            Ok(memory) => {
                if !options.json {
                    println!("{}", memory::table(&memory));
                }
                report.insert("memory".to_owned(), memory::json(&memory));
            }
            Err(error) => {
                complete = false;
                eprintln!("measure: memory: {error:#}");
                report.insert("memory".to_owned(), json!({ "error": format!("{error:#}") }));
            }
        }
    }
    if matches!(options.what.as_str(), "logs" | "all") {
        let logs = logs::measure(&options, &agentbin, dir.path())?;
        if !options.json {
            println!("{}", logs.table());
        }
        report.insert("logs".to_owned(), logs.json());
    }
    if matches!(options.what.as_str(), "idle" | "all") {
        match idle::measure() {
            Ok(idle) => {
                if !options.json {
                    println!("{}", idle.table());
                }
                report.insert("idle".to_owned(), idle.json());
            }
            Err(error) => {
                complete = false;
                eprintln!("measure: idle: {error:#}");
                report.insert("idle".to_owned(), json!({ "error": format!("{error:#}") }));
            }
        }
    }
    if options.what == "network" {
        let network = network::measure(&options, &agentbin, dir.path())?;
        complete &= network.ours_ran;
        if !options.json {
            println!("{}", network.table());
        }
        report.insert("network".to_owned(), network.json());
    }
    if matches!(options.what.as_str(), "validate" | "all") {
        let validate = validate::measure(&options, &agentbin, dir.path())?;
        if !options.json {
            println!("{}", validate.table());
        }
        report.insert("validate".to_owned(), validate.json());
    }
    if options.what == "docker" {
        let docker = docker::measure(&options, &agentbin, dir.path())?;
        if !options.json {
            println!("{}", docker.table());
        }
        report.insert("docker".to_owned(), docker.json());
    }
    if options.what == "isolation" {
        let isolation = isolation::measure(&agentbin, dir.path())?;
        complete &= isolation.ours_ran;
        if !options.json {
            println!("{}", isolation.table());
        }
        report.insert("isolation".to_owned(), isolation.json());
    }
    if options.json {
        println!("{}", Value::Object(report));
    }
    Ok(complete)
}

fn options() -> Result<Options> {
    let mut options = Options { what: String::new(), json: false, runs: 30, tasks: 100, before: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--before" {
            let folder = arguments.next().context("--before needs the folder of a release build")?;
            for file in ["agentbin", "examples/bench_launch"] {
                ensure!(
                    Path::new(&folder).join(file).is_file(),
                    "--before {folder}: there is no {file}: name the folder of a release build, such as target/release"
                );
            }
            options.before = Some(PathBuf::from(folder));
            continue;
        }
        let mut number = || -> Result<usize> {
            let text = arguments.next().with_context(|| format!("{argument} needs a number"))?;
            text.parse().with_context(|| format!("{argument} {text}"))
        };
        match argument.as_str() {
            "--bench" => {} // cargo's own
            "--json" => options.json = true,
            "--runs" => options.runs = number()?,
            "--tasks" => options.tasks = number()?,
            "launch" | "exec" | "memory" | "logs" | "isolation" | "idle" | "validate" | "network" | "docker"
            | "all" => {
                options.what = argument;
            }
            _ => bail!("unknown argument: {argument}\n{USAGE}"),
        }
    }
    ensure!(!options.what.is_empty(), "{USAGE}");
    ensure!(options.runs >= 1 && options.tasks >= 1, "a median needs at least one run");
    Ok(options)
}

fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn quantile(values: &[f64], q: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = q * (sorted.len() - 1) as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - at.floor())
}

fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "the machine must be idle for a while; there is no event")]
    std::thread::sleep(time);
}

fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|dir| dir.join(name))
        .find(|file| file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0))
}

/// Isolated `/bin/true`, launch to exit, with the same mounts, user and limits for everybody.
mod launch {
    use super::*;

    /// Host directories of which a task's root is assembled, bound read-only.
    const ROOT: &[&str] = &["bin", "etc", "lib", "lib32", "lib64", "libx32", "sbin", "usr"];

    /// Rounds are cut into so many blocks, in each of which everybody is measured back to back and then after pauses.
    const BLOCKS: usize = 9;
    /// Behind the name of a row of the build that `--before` names.
    const BEFORE: &str = ", before";

    pub struct Launch {
        what: &'static str,
        rows: Vec<Row>,
        notes: Vec<String>,
        pub ours_ran: bool,
        runs: usize,
    }

    struct Row {
        name: String,
        warm: Vec<f64>,
        idle: Vec<f64>,
        calls: Option<u64>,
    }

    /// Milliseconds back to back, and after a pause.
    type Times = (Vec<f64>, Vec<f64>);

    /// Something that launches `/bin/true` once.
    struct Candidate {
        name: String,
        make: Box<dyn Fn() -> Command>,
        warm: Vec<f64>,
        idle: Vec<f64>,
    }

    pub fn measure(options: &Options, agentbin: &Path, dir: &Path) -> Result<Launch> {
        let mut notes = Vec::new();
        let mut candidates = Vec::new();
        let bundle = dir.join("bundle");
        write_bundle(&bundle)?;
        for peer in ["runc", "crun"] {
            let Some(path) = program(peer) else {
                notes.push(format!("{peer} is not installed (scripts/setup brings it)"));
                continue;
            };
            let (bundle, root) = (bundle.clone(), dir.join(format!("{peer}-state")));
            let name = format!("agentbin-bench-{peer}-{}", std::process::id());
            let make = Box::new(move || {
                let mut command = Command::new(&path);
                command.arg("--root").arg(&root).args(["run", "--bundle"]).arg(&bundle).arg(&name);
                command
            });
            consider(&mut candidates, &mut notes, peer, make);
        }
        let ours_ran = consider(&mut candidates, &mut notes, "agentbin run", ours_of(agentbin, dir)?);

        if let Some(before) = &options.before {
            let of_its_own = dir.join("before");
            fs::create_dir(&of_its_own).context("make a folder")?;
            let earlier = ours_of(&before.join("agentbin"), &of_its_own)?;
            consider(&mut candidates, &mut notes, &format!("agentbin run{BEFORE}"), earlier);
        }
        let inside = if ours_ran { programs_inside(options) } else { Vec::new() };
        let from_inside = take_turns(options, &mut candidates, &inside, &[])?;
        let mut rows: Vec<Row> = Vec::new();
        for candidate in candidates {
            let calls = system_calls(&candidate.make, dir);
            rows.push(Row { name: candidate.name, warm: candidate.warm, idle: candidate.idle, calls });
        }
        for (name, (warm, idle)) in from_inside {
            rows.push(Row { name, warm, idle, calls: None });
        }
        if inside.is_empty() {
            notes
                .push("executor_launch, new_executor, options: no examples/bench_launch.rs to measure them".to_owned());
        }
        if program("strace").is_none() {
            notes.push("no strace: system calls not counted".to_owned());
        }
        let what = "isolated /bin/true, launch to exit, same mounts and limits";
        Ok(Launch { what, rows, notes, ours_ran, runs: options.runs })
    }

    /// `/bin/true` in a container that runs, command to exit, beside peers that have the same container.
    pub fn measure_exec(options: &Options, dir: &Path) -> Result<Launch> {
        let mut notes = Vec::new();
        let mut candidates = Vec::new();
        let mut containers = Vec::new();
        for peer in ["runc", "crun"] {
            let Some(path) = program(peer) else {
                notes.push(format!("{peer} is not installed (scripts/setup brings it)"));
                continue;
            };
            let bundle = dir.join(format!("{peer}-exec-bundle"));
            write_bundle(&bundle)?;
            let file = bundle.join("config.json");
            let config =
                fs::read_to_string(&file)?.replace(r#""args":["/bin/true"]"#, r#""args":["/bin/sleep","100000"]"#);
            fs::write(&file, config.replace("/agentbin-bench-", &format!("/agentbin-bench-{peer}-")))?;
            let container = Container {
                peer: path,
                root: dir.join(format!("{peer}-state")),
                name: format!("agentbin-bench-exec-{peer}-{}", std::process::id()),
            };
            let started = container
                .command("run")
                .args(["--detach", "--bundle"])
                .arg(&bundle)
                .arg(&container.name)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()?;
            ensure!(started.success(), "{peer} does not start a container: {started}");
            let (peer_path, root, name) = (container.peer.clone(), container.root.clone(), container.name.clone());
            containers.push(container);
            let make = Box::new(move || {
                let mut command = Command::new(&peer_path);
                command.arg("--root").arg(&root).arg("exec").arg(&name).arg("/bin/true");
                command
            });
            consider(&mut candidates, &mut notes, peer, make);
        }
        let from_inside = take_turns(options, &mut candidates, &programs_inside(options), &["--exec"])?;
        let mut rows: Vec<Row> = Vec::new();
        for candidate in candidates {
            let calls = system_calls(&candidate.make, dir);
            rows.push(Row { name: candidate.name, warm: candidate.warm, idle: candidate.idle, calls });
        }
        let ours_ran = !from_inside.is_empty();
        for (name, (warm, idle)) in from_inside {
            rows.push(Row { name, warm, idle, calls: None });
        }
        if !ours_ran {
            notes.push("no examples/bench_launch.rs to measure ours".to_owned());
        }
        let what = "/bin/true inside a running container or task, asked for to exit, same mounts and limits";
        Ok(Launch { what, rows, notes, ours_ran, runs: options.runs })
    }

    /// What measures from inside, each with what is said behind the names of its rows.
    fn programs_inside(options: &Options) -> Vec<(PathBuf, &'static str)> {
        let now = std::env::var_os("BENCH_LAUNCH").map(|program| (PathBuf::from(program), ""));
        let earlier = options.before.as_ref().map(|before| (before.join("examples/bench_launch"), BEFORE));
        now.into_iter().chain(earlier).collect()
    }

    /// Everybody takes turns within a round, so that a busy moment of the machine hits all of them. Returns the times of what
    /// measures from inside, back to back and after a pause, by name.
    /// Whose turn it is in a round: nobody has always the same one before him, whose caches he would find.
    fn order(candidates: usize, round: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..candidates).collect();
        order.rotate_left(round / 2 % candidates.max(1));
        if round % 2 == 1 {
            order.reverse();
        }
        order
    }

    fn take_turns(
        options: &Options,
        candidates: &mut [Candidate],
        inside: &[(PathBuf, &str)],
        flags: &[&str],
    ) -> Result<BTreeMap<String, Times>> {
        let mut from_inside: BTreeMap<String, Times> = BTreeMap::new();
        let blocks = options.runs.min(BLOCKS);
        for block in 0..blocks {
            let rounds = options.runs * (block + 1) / blocks - options.runs * block / blocks;
            for idle in [false, true] {
                for round in 0..rounds {
                    for number in order(candidates.len(), round) {
                        let candidate = &mut candidates[number];
                        if idle {
                            pause(IDLE_PAUSE);
                        }
                        let took = once(&candidate.make).with_context(|| candidate.name.clone())?;
                        if idle { &mut candidate.idle } else { &mut candidate.warm }.push(took);
                    }
                }
                // Whoever is first in one block is last in the next.
                let turns: Vec<_> =
                    if block % 2 == 0 { inside.iter().collect() } else { inside.iter().rev().collect() };
                for (program, suffix) in turns {
                    for (what, times) in ask_inside(program, flags, rounds, idle)? {
                        let entry = from_inside.entry(format!("{what}{suffix}")).or_default();
                        if idle { &mut entry.1 } else { &mut entry.0 }.extend(times);
                    }
                }
            }
        }
        Ok(from_inside)
    }

    /// A peer's container, removed when dropped.
    struct Container {
        peer: PathBuf,
        root: PathBuf,
        name: String,
    }

    impl Container {
        fn command(&self, verb: &str) -> Command {
            let mut command = Command::new(&self.peer);
            command.arg("--root").arg(&self.root).arg(verb);
            command
        }
    }

    impl Drop for Container {
        fn drop(&mut self) {
            let removed = self.command("delete").args(["--force", &self.name]).stderr(Stdio::null()).status();
            if !removed.is_ok_and(|status| status.success()) {
                eprintln!("measure: container {} is left; remove it with {}", self.name, self.peer.display());
            }
        }
    }

    /// Takes a candidate that works; says why not otherwise.
    fn consider(all: &mut Vec<Candidate>, notes: &mut Vec<String>, name: &str, make: Box<dyn Fn() -> Command>) -> bool {
        match make().stdin(Stdio::null()).output() {
            Ok(out) if out.status.success() => {
                all.push(Candidate { name: name.to_owned(), make, warm: Vec::new(), idle: Vec::new() });
                true
            }
            Ok(out) => {
                let text = String::from_utf8_lossy(&out.stderr).into_owned();
                notes.push(format!("{name} does not run here ({}): {}", out.status, text.trim()));
                false
            }
            Err(error) => {
                notes.push(format!("{name} does not start: {error}"));
                false
            }
        }
    }

    fn once(make: &dyn Fn() -> Command) -> Result<f64> {
        let mut command = make();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = Instant::now();
        let status = command.spawn()?.wait()?;
        let took = started.elapsed();
        ensure!(status.success(), "ended with {status}");
        Ok(took.as_secs_f64() * 1e3)
    }

    fn ours_of(agentbin: &Path, dir: &Path) -> Result<Box<dyn Fn() -> Command>> {
        let job = |command: &str| {
            format!(
                r#"job "bench" {{
  type = "batch"
  group "bench" {{
    task "bench" {{
      driver = "exec"
      config {{ command = "{command}" }}
      resources {{
        cpu    = {CPU_SHARES}
        memory = {}
      }}
      restart {{ attempts = 0 }}
    }}
  }}
}}
"#,
                MEMORY_LIMIT >> 20
            )
        };
        let (file, data) = (dir.join("true.nomad.hcl"), dir.join("data"));
        fs::write(&file, job("/bin/true")).context("write the job file")?;
        let failing = dir.join("false.nomad.hcl");
        fs::write(&failing, job("/bin/false")).context("write the job file")?;
        let agentbin = agentbin.to_path_buf();
        let make = move |file: &Path| {
            let mut command = Command::new(&agentbin);
            command.arg("run").arg(file).arg("--data-dir").arg(&data).arg("--quiet");
            command
        };
        // A program that does nothing is fast: it must tell /bin/false from /bin/true before it is measured.
        let honest = make(&failing).stdin(Stdio::null()).output().is_ok_and(|out| out.status.code() == Some(1));
        Ok(if honest {
            Box::new(move || make(&file))
        } else {
            Box::new(|| {
                let mut refuse = Command::new("/bin/sh");
                refuse.args(["-c", "echo 'a task that runs /bin/false did not end with status 1' >&2; exit 1"]);
                refuse
            })
        })
    }

    fn ask_inside(program: &Path, flags: &[&str], runs: usize, idle: bool) -> Result<Vec<(String, Vec<f64>)>> {
        let pause = if idle { IDLE_PAUSE.as_millis() } else { 0 };
        let out = Command::new(program)
            .args(flags)
            .args(["--runs", &runs.to_string(), "--pause-ms", &pause.to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| program.display().to_string())?;
        ensure!(out.status.success(), "{} ended with {}", program.display(), out.status);
        let mut found = Vec::new();
        for line in String::from_utf8_lossy(&out.stdout).lines().filter(|l| l.starts_with('{')) {
            let value: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
            let what = value["what"].as_str().context("a line without \"what\"")?;
            let times = value["us"].as_array().context("a line without \"us\"")?;
            let times = times.iter().filter_map(Value::as_f64).map(|us| us / 1e3).collect();
            found.push((what.to_owned(), times));
        }
        Ok(found)
    }

    /// System calls of one whole run, all its processes included: a figure that no machine changes.
    fn system_calls(make: &dyn Fn() -> Command, dir: &Path) -> Option<u64> {
        let strace = program("strace")?;
        let log = dir.join("strace.log");
        let traced = make();
        let status = Command::new(strace)
            .args(["-f", "-c", "-o"])
            .arg(&log)
            .arg(traced.get_program())
            .args(traced.get_args())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .ok()?;
        status.success().then_some(())?;
        // "100.00    0.011111          11       944        83 total": the errors column may be empty.
        let text = fs::read_to_string(log).ok()?;
        let total = text.lines().find(|line| line.ends_with(" total"))?;
        total.split_whitespace().nth(3)?.parse().ok()
    }

    /// An OCI bundle with the mounts, devices and masks of Nomad's isolated executor.
    fn write_bundle(bundle: &Path) -> Result<()> {
        let root = bundle.join("rootfs");
        for dir in ["dev", "proc", "sys", "tmp"] {
            fs::create_dir_all(root.join(dir)).context("make the root")?;
        }
        let options = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut mounts = Vec::new();
        for name in ROOT {
            let host = Path::new("/").join(name);
            let Ok(meta) = host.symlink_metadata() else { continue };
            if meta.is_symlink() {
                symlink(fs::read_link(&host)?, root.join(name)).context("copy a link of the root")?;
            } else {
                fs::create_dir_all(root.join(name)).context("make the root")?;
                mounts.push(json!({
                    "destination": host, "source": host, "type": "bind", "options": options("rbind,ro,rprivate"),
                }));
            }
        }
        let kernel = [
            ("/proc", "proc", "proc", "noexec,nosuid,nodev"),
            ("/dev", "tmpfs", "tmpfs", "nosuid,strictatime,mode=755"),
            ("/dev/pts", "devpts", "devpts", "nosuid,noexec,newinstance,ptmxmode=0666,mode=0620,gid=5"),
            ("/dev/shm", "tmpfs", "shm", "noexec,nosuid,nodev,mode=1777,size=65536k"),
            ("/dev/mqueue", "mqueue", "mqueue", "noexec,nosuid,nodev"),
            ("/sys", "sysfs", "sysfs", "noexec,nosuid,nodev,ro"),
        ];
        for (to, kind, source, text) in kernel {
            mounts.push(json!({ "destination": to, "type": kind, "source": source, "options": options(text) }));
        }
        let none: [&str; 0] = [];
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": { "uid": 65534, "gid": 65534 },
                "args": ["/bin/true"],
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "cwd": "/",
                "capabilities": {
                    "bounding": none, "effective": none, "permitted": none, "inheritable": none, "ambient": none,
                },
            },
            "root": { "path": "rootfs", "readonly": false },
            "mounts": mounts,
            "linux": {
                "namespaces": [{ "type": "mount" }, { "type": "pid" }, { "type": "ipc" }],
                "cgroupsPath": format!("/agentbin-bench-{}", std::process::id()),
                "resources": {
                    "devices": [{ "allow": false, "access": "rwm" }],
                    "memory": { "limit": MEMORY_LIMIT },
                    "cpu": { "shares": CPU_SHARES },
                    "pids": { "limit": PIDS_LIMIT },
                },
                "maskedPaths": ["/proc/kcore", "/sys/firmware"],
                "readonlyPaths": ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"],
            },
        });
        fs::write(bundle.join("config.json"), config.to_string()).context("write the bundle")
    }

    impl Launch {
        fn base(&self, name: &str) -> Option<&Row> {
            self.rows.iter().find(|row| row.name == name)
        }

        /// The ratio of a row's median to that of the build before, if there is one.
        fn to_before(&self, row: &Row, pick: fn(&Row) -> &[f64]) -> Option<f64> {
            let before = self.base(&format!("{}{BEFORE}", row.name))?;
            Some(median(pick(row)) / median(pick(before)))
        }

        pub fn table(&self) -> String {
            let mut out = format!("{}; median (90th percentile) of {} runs each\n", self.what, self.runs);
            let _ = writeln!(
                out,
                "{:<22} {:>18} {:>8} {:>8} {:>20} {:>8} {:>8} {:>9}",
                "", "warm ms", "/ runc", "/ crun", "after 100 ms idle ms", "/ runc", "/ crun", "syscalls"
            );
            for row in &self.rows {
                let cell = |values: &[f64]| format!("{:.2} ({:.2})", median(values), quantile(values, 0.9));
                let ratio = |peer: &str, pick: fn(&Row) -> &[f64]| {
                    self.base(peer).map_or("-".to_owned(), |p| format!("{:.2}", median(pick(row)) / median(pick(p))))
                };
                let _ = writeln!(
                    out,
                    "{:<22} {:>18} {:>8} {:>8} {:>20} {:>8} {:>8} {:>9}",
                    row.name,
                    cell(&row.warm),
                    ratio("runc", |r| &r.warm),
                    ratio("crun", |r| &r.warm),
                    cell(&row.idle),
                    ratio("runc", |r| &r.idle),
                    ratio("crun", |r| &r.idle),
                    row.calls.map_or("-".to_owned(), |n| n.to_string()),
                );
            }
            for row in &self.rows {
                if let (Some(warm), Some(idle)) = (self.to_before(row, |r| &r.warm), self.to_before(row, |r| &r.idle)) {
                    let _ = writeln!(out, "{} / before: {warm:.3} warm, {idle:.3} idle", row.name);
                }
            }
            for note in &self.notes {
                let _ = writeln!(out, "note: {note}");
            }
            out
        }

        pub fn json(&self) -> Value {
            let ratio = |row: &Row, peer: &str, pick: fn(&Row) -> &[f64]| {
                self.base(peer).map(|p| median(pick(row)) / median(pick(p)))
            };
            let rows: Vec<Value> = self
                .rows
                .iter()
                .map(|row| {
                    json!({
                        "what": row.name,
                        "warm_ms": median(&row.warm), "warm_p90_ms": quantile(&row.warm, 0.9),
                        "idle_ms": median(&row.idle), "idle_p90_ms": quantile(&row.idle, 0.9),
                        "warm_ratio_runc": ratio(row, "runc", |r| &r.warm),
                        "warm_ratio_crun": ratio(row, "crun", |r| &r.warm),
                        "idle_ratio_runc": ratio(row, "runc", |r| &r.idle),
                        "idle_ratio_crun": ratio(row, "crun", |r| &r.idle),
                        "warm_ratio_before": self.to_before(row, |r| &r.warm),
                        "idle_ratio_before": self.to_before(row, |r| &r.idle),
                        "syscalls": row.calls,
                    })
                })
                .collect();
            json!({ "runs": self.runs, "rows": rows, "notes": self.notes })
        }
    }
}

/// What the supervisors of running tasks cost.
mod memory {
    use super::*;

    const START_LIMIT: Duration = Duration::from_mins(2);

    pub struct Sample {
        tasks: usize,
        supervisors: usize,
        threads: usize,
        helpers: usize,
        /// Sums over the supervisors, KiB.
        pss: u64,
        rss: u64,
        private: u64,
        /// The `run` process itself, PSS in KiB.
        run_pss: u64,
    }

    pub fn measure(options: &Options, agentbin: &Path, dir: &Path) -> Result<Vec<Sample>> {
        let mut samples = Vec::new();
        for tasks in BTreeSet::from([1, options.tasks]) {
            samples.push(sample(tasks, agentbin, dir).with_context(|| format!("{tasks} tasks"))?);
        }
        Ok(samples)
    }

    /// Stops the job also when measuring fails half-way.
    struct Job(Child);

    impl Drop for Job {
        fn drop(&mut self) {
            if let Ok(None) = self.0.try_wait() {
                let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
                // Our own child, not yet waited for: the number cannot be somebody else's.
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT);
            }
            let _ = self.0.wait();
        }
    }

    fn sample(tasks: usize, agentbin: &Path, dir: &Path) -> Result<Sample> {
        let file = dir.join(format!("sleep-{tasks}.nomad.hcl"));
        // Each task says that it runs: that line is the event to wait for.
        let job = format!(
            r#"job "bench" {{
  type = "batch"
  group "bench" {{
    count = {tasks}
    task "bench" {{
      driver = "exec"
      config {{
        command = "/bin/sh"
        args    = ["-c", "echo up; exec sleep 100000"]
      }}
      resources {{
        cpu    = 20
        memory = 16
      }}
      logs {{
        max_files     = 1
        max_file_size = 1
      }}
    }}
  }}
}}
"#
        );
        fs::write(&file, job).context("write the job file")?;
        let child = Command::new(agentbin)
            .arg("run")
            .arg(&file)
            .arg("--data-dir")
            .arg(dir.join("data"))
            .arg("--quiet")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| agentbin.display().to_string())?;
        let mut job = Job(child);
        let stdout = job.0.stdout.take().context("stdout is a pipe")?;
        let (send, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(io::Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let deadline = Instant::now() + START_LIMIT;
        for up in 0..tasks {
            lines
                .recv_timeout(deadline.saturating_duration_since(Instant::now()))
                .with_context(|| format!("only {up} of {tasks} tasks came up"))?;
        }
        pause(Duration::from_secs(2));
        look(tasks, job.0.id())
    }

    fn look(tasks: usize, run: u32) -> Result<Sample> {
        let own = fs::read_link(format!("/proc/{run}/exe")).context("read the executable of run")?;
        let mut sample = Sample {
            tasks,
            supervisors: 0,
            threads: 0,
            helpers: 0,
            pss: 0,
            rss: 0,
            private: 0,
            run_pss: rollup(run)?.get("Pss").copied().unwrap_or(0),
        };
        for pid in descendants(run)? {
            let exe = fs::read_link(format!("/proc/{pid}/exe"));
            let Ok(arguments) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
            if exe.is_ok_and(|exe| exe != own) {
                continue; // the task itself
            }
            let arguments: Vec<&[u8]> = arguments.split(|b| *b == 0).collect();
            if arguments.iter().take(2).any(|a| *a == b"executor" || a.ends_with(b"/executor")) {
                sample.supervisors += 1;
            } else {
                sample.helpers += 1;
            }
            sample.threads += fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            let fields = rollup(pid)?;
            let field = |name: &str| fields.get(name).copied().unwrap_or(0);
            sample.pss += field("Pss");
            sample.rss += field("Rss");
            sample.private += field("Private_Clean") + field("Private_Dirty");
        }
        ensure!(sample.supervisors > 0, "found no executor among the children of run");
        Ok(sample)
    }

    fn rollup(pid: u32) -> Result<BTreeMap<String, u64>> {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        Ok(text
            .lines()
            .filter_map(|line| {
                let (name, rest) = line.split_once(':')?;
                Some((name.to_owned(), rest.split_whitespace().next()?.parse().ok()?))
            })
            .collect())
    }

    fn descendants(of: u32) -> Result<Vec<u32>> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for entry in fs::read_dir("/proc").context("read /proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
            // The name in parentheses may hold anything; the parent is the second field after it.
            let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
            if let Some(parent) = parent {
                children.entry(parent).or_default().push(pid);
            }
        }
        let (mut found, mut todo) = (Vec::new(), vec![of]);
        while let Some(pid) = todo.pop() {
            for child in children.remove(&pid).unwrap_or_default() {
                found.push(child);
                todo.push(child);
            }
        }
        Ok(found)
    }

    pub fn table(samples: &[Sample]) -> String {
        let mut out =
            "memory of our processes beside each running task (executor with log collection), KiB\n".to_owned();
        let _ = writeln!(
            out,
            "{:>6} {:>10} {:>10} {:>13} {:>12} {:>13} {:>8} {:>9}",
            "tasks", "PSS each", "RSS each", "private each", "PSS of all", "PSS of run", "threads", "helpers"
        );
        for s in samples {
            let n = s.tasks as u64;
            let _ = writeln!(
                out,
                "{:>6} {:>10} {:>10} {:>13} {:>12} {:>13} {:>8} {:>9}",
                s.tasks,
                s.pss / n,
                s.rss / n,
                s.private / n,
                s.pss,
                s.run_pss,
                s.threads,
                s.helpers
            );
        }
        out
    }

    pub fn json(samples: &[Sample]) -> Value {
        samples
            .iter()
            .map(|s| {
                json!({
                    "tasks": s.tasks, "supervisors": s.supervisors, "helpers": s.helpers, "threads": s.threads,
                    "pss_kib": s.pss, "rss_kib": s.rss, "private_kib": s.private, "run_pss_kib": s.run_pss,
                    "pss_each_kib": s.pss as f64 / s.tasks as f64,
                })
            })
            .collect()
    }
}
