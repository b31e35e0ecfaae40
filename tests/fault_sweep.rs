//! Every system call of host, executor and shim is a moment at which it is killed, or the call fails: launch, sessions and
//! teardown of both executors (mission N5). After one reconciliation nothing is left; a failed call is got over or told by name.
//!
//! The default draws few of the points; `AGENTBIN_FULL=1` draws 2,500. `AGENTBIN_SEED` repeats a drawing, and
//! `AGENTBIN_POINTS=text` takes those points only whose line contains the text.

#![expect(clippy::disallowed_methods, reason = "a tracer polls, and the test looks for output until a deadline")]

#[path = "support/harness.rs"]
mod harness;
#[path = "support/random.rs"]
mod random;
#[path = "support/tracer.rs"]
mod tracer;
#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use agentbin::cgroup::{CgroupFs, Regime};
use agentbin::driver::{Driver, DriverError, ExecDriver, ExecStreaming, Host, RawExecDriver, Settings, TaskConfig};
use agentbin::executor::{Compute, ExecRequests};
use agentbin::spec::collections::BTreeMap;
use agentbin::spec::{DriverConfig, Signal};
use agentbin::wire::drivers::exec_task_streaming_request::Setup;
use agentbin::wire::drivers::{ExecTaskStreamingIoOperation, ExecTaskStreamingRequest};
use harness::{run, tests};
use random::Random;
use tokio_stream::StreamExt as _;
use tracer::{Fault, NEW_CALLS, Role, Traced, errnos, trace};
use world::{Out, World, slower};

/// What a task does that is stopped: it says how it ends, and leaves somebody behind.
const LONG: &str = "trap 'exit 9' INT TERM; echo hello; sleep 300 & wait";
/// Set for this program as a host of drivers: the directory of its world.
const HOST: &str = "AGENTBIN_TEST_HOST";
/// Set where it runs the tests, alone in a pid namespace.
const ALONE: &str = "AGENTBIN_TEST_ALONE";
/// What it does there: `life`, or `recover` after somebody was killed.
const DEED: &str = "AGENTBIN_TEST_DEED";
/// With which driver.
const DRIVER: &str = "AGENTBIN_TEST_DRIVER";

/// Points of the short form, and of the full one: killed, one call fails, many calls fail.
const SHORT: [usize; 3] = [75, 50, 25];
const FULL: [usize; 3] = [1000, 750, 750];

fn main() -> ExitCode {
    agentbin::init();
    if let Some(dir) = std::env::var_os(HOST) {
        return host(Path::new(&dir));
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("fault_sweep", "needs root for cgroups, users and mounts");
    }
    if std::env::var_os(ALONE).is_none() {
        return alone();
    }
    run(tests![r02_r03_whoever_is_killed_at_any_call_leaves_nothing, r11_r12_r31_calls_that_fail_are_got_over_or_told])
}

/// Runs this program again as the only one that it sees: a run looks at every process, and points are counted in calls.
fn alone() -> ExitCode {
    let mut command = std::process::Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--"]);
    // The shell waits for whoever loses his parent.
    command.args(["/bin/sh", "-c", "\"$@\"; exit $?", "sh"]).arg(std::env::current_exe().unwrap());
    command.args(std::env::args_os().skip(1)).env(ALONE, "1");
    let status = command.status().expect("unshare of util-linux");
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

// ---- scenarios ---------------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// `agentbin run` of a task that ends by itself.
    Ends,
    /// `agentbin run` of a task that is stopped.
    Stopped,
    /// A host as an agent's driver plugin is one: a task, sessions in it, its stop.
    Sessions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scenario {
    driver: &'static str,
    shape: Shape,
}

const SCENARIOS: [Scenario; 6] = [
    Scenario { driver: "exec", shape: Shape::Ends },
    Scenario { driver: "raw_exec", shape: Shape::Ends },
    Scenario { driver: "exec", shape: Shape::Stopped },
    Scenario { driver: "raw_exec", shape: Shape::Stopped },
    Scenario { driver: "exec", shape: Shape::Sessions },
    Scenario { driver: "raw_exec", shape: Shape::Sessions },
];

impl Scenario {
    fn command(self, world: &World) -> Command {
        if self.shape == Shape::Sessions {
            return self.host(world, "life");
        }
        let script = if self.shape == Shape::Ends { "echo hello; exit 7" } else { LONG };
        let job = format!(
            "job \"sweep\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n}}\n \
             task \"t\" {{\n driver = \"{}\"\n kill_timeout = \"20s\"\n env {{\n for = \"{}\"\n}}\n \
             config {{\n command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]\n}}\n}}\n}}\n}}\n",
            self.driver,
            world.mark()
        );
        let file = world.file("job.hcl", &job);
        world.command(&["--quiet", file.to_str().unwrap()])
    }

    fn host(self, world: &World, deed: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(HOST, world.path("")).env(DEED, deed).env(DRIVER, self.driver).env("RUST_BACKTRACE", "0");
        command
    }

    fn trace(self, world: &World, fault: Fault) -> (Traced, Out) {
        let (output, began) = (world.path(""), Instant::now());
        let notice = |root| {
            if self.shape != Shape::Stopped {
                return true;
            }
            let said = std::fs::read_to_string(output.join("stdout")).unwrap_or_default();
            // What it says may be what fails.
            let due = said.contains("hello") || began.elapsed() > Duration::from_secs(10) * slower();
            due && nix::sys::signal::kill(root, nix::sys::signal::Signal::SIGTERM).is_ok()
        };
        let traced = trace(&self.command(world), &output, fault, Duration::from_secs(40) * slower(), notice);
        let read = |name: &str| String::from_utf8_lossy(&std::fs::read(output.join(name)).unwrap()).into_owned();
        let out = Out { status: traced.status, stdout: read("stdout"), stderr: read("stderr") };
        (traced, out)
    }

    /// What whoever comes next does about what was left. Returns what it found.
    fn reconcile(self, world: &World) -> String {
        let out: Out = match self.shape {
            Shape::Sessions => self.host(world, "recover").output().unwrap().into(),
            Shape::Ends | Shape::Stopped => world.agentbin(&["gc"]),
        };
        assert!(out.status == 0 && out.stderr.is_empty(), "reconciliation: {out:?}");
        world.assert_clean();
        let left: Vec<_> =
            std::fs::read_dir(world.path("run")).into_iter().flatten().flatten().map(|e| e.path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        out.stdout
    }
}

// ---- the host of drivers -----------------------------------------------------------------------------------------

/// What cannot be printed is not told.
macro_rules! say {
    ($($argument:tt)*) => {{
        let text = format!("{}\n", format_args!($($argument)*));
        let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    }};
}

fn host(dir: &Path) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say!("error: make the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        let host = DriverHost::new(dir).map_err(|e| DriverError::Unsupported(format!("set up: {e:#}")))?;
        match std::env::var(DEED).as_deref() {
            Ok("recover") => host.recover().await,
            _ => host.life().await,
        }
    });
    match done {
        Ok(()) => {
            say!("done");
            ExitCode::SUCCESS
        }
        Err(error) => {
            say!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct DriverHost {
    driver: Box<dyn Driver>,
    task: TaskConfig,
    handle: PathBuf,
}

impl DriverHost {
    fn new(dir: &Path) -> anyhow::Result<DriverHost> {
        let cgroups = CgroupFs::detect(Path::new("/sys/fs/cgroup"))?;
        let run = dir.join("run");
        std::fs::create_dir_all(&run)?;
        std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o700))?;
        let mark = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let alloc_dir = dir.join("allocs").join(&mark);
        for folder in ["alloc/logs", "alloc/data", "t/local", "t/tmp", "t/secrets"] {
            std::fs::create_dir_all(alloc_dir.join(folder))?;
        }
        let scope = match cgroups.regime() {
            Regime::V2 => PathBuf::from(format!("/sys/fs/cgroup/nomad.slice/{mark}.t.scope")),
            Regime::V1 | Regime::Off => PathBuf::new(),
        };
        let settings =
            Settings { cgroups, compute: Compute { total_mhz: 2000, cores: 2 }, socket_dir: run, host: Host::NOMAD };
        let driver: Box<dyn Driver> = match std::env::var(DRIVER).as_deref() {
            Ok("exec") => Box::new(ExecDriver::new(settings)),
            _ => Box::new(RawExecDriver::new(settings)),
        };
        if driver.name() == "raw_exec" {
            let mut config = DriverConfig::default();
            config.values.insert("enabled".into(), true.into());
            driver.set_config(&config, None)?;
        }
        let task = TaskConfig {
            id: format!("{mark}/t/1"),
            name: "t".into(),
            alloc_id: mark.clone(),
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into()), ("FOR".into(), mark)]),
            cpuset_cgroup: scope,
            alloc_dir,
            ..TaskConfig::default()
        };
        Ok(DriverHost { driver, task, handle: dir.join("handle") })
    }

    async fn start(&self, script: &str) -> Result<(), DriverError> {
        let mut task = self.task.clone();
        task.config.values.insert("command".into(), "/bin/sh".into());
        task.config.values.insert("args".into(), vec!["-c", script].into());
        let handle = self.driver.start_task(&task).await?;
        // As an agent keeps it in its database.
        let new = self.handle.with_extension("new");
        let kept = std::fs::write(&new, handle.driver_state).and_then(|()| std::fs::rename(&new, &self.handle));
        if let Err(error) = kept {
            say!("error: keep the handle: {error}");
            return self.end().await;
        }
        Ok(())
    }

    async fn session(&self, script: &str, tty: bool, input: &str) -> Result<String, String> {
        let ExecStreaming::Raw(sessions) = self.driver.exec_streaming() else { unreachable!() };
        let command = vec!["/bin/sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let setup = Setup { command, tty, ..Setup::default() };
        let stdin = ExecTaskStreamingIoOperation { data: input.into(), close: true };
        let requests = [
            ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() },
            ExecTaskStreamingRequest { stdin: Some(stdin), ..Default::default() },
        ];
        let requests: ExecRequests = Box::pin(tokio_stream::iter(requests.map(Ok)).chain(tokio_stream::pending()));
        let mut responses =
            sessions.exec_task_streaming(&self.task.id, requests).await.map_err(|error| error.to_string())?;
        let mut said = Vec::new();
        while let Some(response) = responses.next().await {
            let response = response.map_err(|status| status.to_string())?;
            // A command that could not be started says so on the second stream.
            for output in response.stdout.into_iter().chain(response.stderr) {
                said.extend(output.data);
            }
            let said = String::from_utf8_lossy(&said).trim().to_owned();
            match response.result {
                Some(result) => return Ok(format!("{said} {}", result.exit_code)),
                // The caller goes in the middle of it.
                None if said.ends_with("go away") => return Ok(said),
                None => {}
            }
        }
        Err("the session ended without a status".to_owned())
    }

    async fn life(&self) -> Result<(), DriverError> {
        self.start(LONG).await?;
        for (script, tty, input) in [
            ("cat; exit 3", false, "ping\n"),
            ("tty >/dev/null && echo terminal; exit 4", true, ""),
            ("echo go away; exec sleep 300", false, ""),
        ] {
            match self.session(script, tty, input).await {
                Ok(said) => say!("session: {said}"),
                Err(error) => say!("error: {error}"),
            }
        }
        match self.driver.exec_task(&self.task.id, &["/bin/true".to_owned()], Duration::from_mins(1) * slower()).await {
            Ok(result) => say!("script: {}", result.exit.exit_code),
            Err(error) => say!("error: {error}"),
        }
        self.end().await
    }

    async fn end(&self) -> Result<(), DriverError> {
        if let Err(error) = self.driver.stop_task(&self.task.id, Duration::from_secs(5), Some(Signal::TERM)).await {
            say!("error: {error}");
        }
        match self.driver.wait_task(&self.task.id).await {
            Ok(exit) => say!("exit: {} {}", exit.exit_code, exit.signal),
            Err(error) => say!("error: {error}"),
        }
        self.driver.destroy_task(&self.task.id, true).await?;
        let forgotten = std::fs::remove_file(&self.handle);
        forgotten.map_err(|e| DriverError::Unsupported(format!("forget the handle: {e}")))
    }

    /// As an agent after a restart: the task is found again, or is lost and started anew; in the end it is stopped.
    async fn recover(&self) -> Result<(), DriverError> {
        let found = match std::fs::read(&self.handle) {
            Ok(state) => self.driver.recover_task(&self.task, &state).await.is_ok(),
            Err(_) => false,
        };
        say!("found: {found}");
        if !found {
            self.start(LONG).await?;
        }
        self.end().await
    }
}

// ---- points ------------------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
struct Point {
    scenario: Scenario,
    fault: Fault,
}

/// What a scenario is like when nothing is disturbed.
struct Quiet {
    scenario: Scenario,
    out: Out,
    calls: Vec<(Role, Vec<i64>)>,
}

const ROLES: [Role; 3] = [Role::Host, Role::Executor, Role::Shim];

fn quiet(scenario: Scenario) -> Quiet {
    let world = World::new();
    let (traced, out) = scenario.trace(&world, Fault::None);
    assert!(!traced.hung && traced.crashes.is_empty(), "{scenario:?}: {traced:?} {out:?}");
    scenario.reconcile(&world);
    let calls: Vec<_> = ROLES.iter().map(|role| (*role, traced.calls.get(role).cloned().unwrap_or_default())).collect();
    let counts: Vec<_> = calls.iter().map(|(role, calls)| format!("{role:?} {}", calls.len())).collect();
    println!("{} {:?}: calls: {}; {:?}", scenario.driver, scenario.shape, counts.join(", "), out);
    match scenario.shape {
        Shape::Ends => assert!(out.status == 7 && out.stdout == "hello\n", "{out:?}"),
        Shape::Stopped => assert!(out.status != 0 && out.stdout == "hello\n", "{out:?}"),
        Shape::Sessions => assert!(out.status == 0 && out.stdout.contains("ping 3"), "{out:?}"),
    }
    Quiet { scenario, out, calls }
}

/// Takes as many points as are drawn, two at a time; then tells of all that failed.
fn sweep(
    name: &str,
    quiets: &[Quiet],
    points: Vec<Point>,
    kind: usize,
    judge: fn(&Quiet, Fault, &Traced, &Out) -> Result<(), String>,
) {
    let full = std::env::var_os("AGENTBIN_FULL").is_some_and(|v| v == "1");
    let seed = random::seed();
    let wanted = std::env::var("AGENTBIN_POINTS").ok();
    let all = points.len();
    let points = match &wanted {
        Some(text) => points.into_iter().filter(|point| format!("{point:?}").contains(text)).collect(),
        None => Random(seed).draw(points, if full { FULL[kind] } else { SHORT[kind] }),
    };
    println!("{name}: AGENTBIN_SEED={seed}: {} of {all} points", points.len());
    let began = Instant::now();
    let queue = Mutex::new(points.iter());
    let results = Mutex::new((0_usize, 0_usize, Vec::new(), BTreeMap::<String, usize>::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut world = World::new();
                while let Some(point) = { queue.lock().unwrap().next() } {
                    let quiet = quiets.iter().find(|q| q.scenario == point.scenario).unwrap();
                    let started = Instant::now();
                    let one = AssertUnwindSafe(|| {
                        let (traced, out) = point.scenario.trace(&world, point.fault);
                        let judged = if traced.hung {
                            Err("it did not come to an end".to_owned())
                        } else if !traced.crashes.is_empty() {
                            Err(traced.crashes.join("; "))
                        } else {
                            judge(quiet, point.fault, &traced, &out)
                        };
                        // Whatever it was: the next point begins in a clean place.
                        let found = catch_unwind(AssertUnwindSafe(|| point.scenario.reconcile(&world)));
                        let problem = judged.err().map(|e| format!("{e} (call {:?}, {out:?})", traced.struck));
                        let found = found.map_err(|panic| {
                            panic.downcast_ref::<String>().cloned().unwrap_or_default() + &format!(" (after {out:?})")
                        });
                        (traced.struck, problem, found, out)
                    });
                    let (struck, problem, found, out) = match catch_unwind(one) {
                        Ok(result) => result,
                        Err(panic) => {
                            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                            (
                                None,
                                Some(text),
                                Ok(String::new()),
                                Out { status: -1, stdout: String::new(), stderr: String::new() },
                            )
                        }
                    };
                    let dirty = problem.is_some() || found.is_err();
                    let mut results = results.lock().unwrap();
                    if wanted.is_some() {
                        println!("{point:?}: {struck:?} after {:?}: {out:?}", started.elapsed());
                    }
                    if struck.is_some() {
                        results.0 += 1;
                    } else {
                        results.1 += 1;
                    }
                    let done = results.0 + results.1;
                    if done.is_multiple_of(500) {
                        println!("{name}: {done} points after {:?}", began.elapsed());
                    }
                    for problem in problem.into_iter().chain(found.err()) {
                        println!("FAILED {point:?}: {problem}");
                        results.2.push(format!("{point:?}: {problem}"));
                    }
                    let told = if out.stderr.is_empty() { &out.stdout } else { &out.stderr };
                    let told: String = told.lines().take(2).collect::<Vec<_>>().join(" / ");
                    *results.3.entry(format!("{}: {}", out.status, told.replace(&world.mark(), "W"))).or_default() += 1;
                    drop(results);
                    if dirty {
                        world = World::new();
                    }
                }
            });
        }
    });
    let (struck, missed, failures, told) = results.into_inner().unwrap();
    if full || wanted.is_some() {
        for (text, count) in told {
            println!("{count:5} x {text}");
        }
    }
    println!("{name}: {struck} points struck, {missed} not reached, {} failed, {:?}", failures.len(), began.elapsed());
    assert!(failures.is_empty(), "{} of {} points: {failures:#?}", failures.len(), points.len());
    assert!(struck * 10 >= points.len() * 8, "most points are reached: {struck} of {}", points.len());
}

/// R02, R03: nobody who is left behind by a killed host, executor or shim, and no file, mount, cgroup or socket of theirs,
/// survives one reconciliation.
fn r02_r03_whoever_is_killed_at_any_call_leaves_nothing() {
    let quiets: Vec<Quiet> = SCENARIOS.into_iter().map(quiet).collect();
    let points = quiets.iter().flat_map(|quiet| {
        quiet.calls.iter().flat_map(|(role, calls)| {
            let scenario = quiet.scenario;
            (1..=calls.len()).map(move |at| Point { scenario, fault: Fault::Kill(*role, at) })
        })
    });
    sweep("kill -9", &quiets, points.collect(), 0, |quiet, fault, _, out| {
        let Fault::Kill(role, _) = fault else { unreachable!() };
        match role {
            Role::Host => Ok(()),
            _ if out.stderr.contains("cannot be cleaned up") => Err("it was not cleaned up".to_owned()),
            // The end was reached all the same, or the loss is told.
            _ if out.status == quiet.out.status && out.stderr == quiet.out.stderr => Ok(()),
            _ if is_told(out) || [137, -1].contains(&out.status) => Ok(()),
            _ => Err("neither right nor told".to_owned()),
        }
    });
}

fn is_told(out: &Out) -> bool {
    let text = if out.stderr.is_empty() { &out.stdout } else { &out.stderr };
    text.lines().any(|line| line.contains(": ") && line.len() > 20)
}

/// R11, R12, R31: descriptors, memory and space run out, calls are interrupted or unknown to the kernel.
fn r11_r12_r31_calls_that_fail_are_got_over_or_told() {
    let quiets: Vec<Quiet> = SCENARIOS.into_iter().map(quiet).collect();
    let (mut single, mut lasting) = (Vec::new(), Vec::new());
    for quiet in &quiets {
        let scenario = quiet.scenario;
        for (role, calls) in &quiet.calls {
            let mut counts = BTreeMap::<i64, usize>::new();
            for number in calls {
                let nth = counts.entry(*number).or_default();
                *nth += 1;
                for choice in 0..errnos(*number).len() {
                    single.push(Point { scenario, fault: Fault::Fail(*role, *number, *nth, choice) });
                }
            }
            // Five descriptors in a row that cannot be had.
            for at in (1..=calls.len()).step_by(10) {
                lasting.push(Point { scenario, fault: Fault::FailDescriptors(*role, at, 5, libc::EMFILE) });
            }
            for (number, _) in NEW_CALLS.iter().filter(|(number, _)| calls.contains(number)) {
                for errno in [libc::ENOSYS, libc::EPERM] {
                    // Threads of the C library start by clone3, and by another call only where that is unknown.
                    if (*number, errno) == (libc::SYS_clone3, libc::EPERM) && *role == Role::Host {
                        continue;
                    }
                    lasting.push(Point { scenario, fault: Fault::FailAll(*role, *number, errno) });
                }
            }
        }
    }
    let judge = |quiet: &Quiet, _: Fault, traced: &Traced, out: &Out| {
        let right = out.status == quiet.out.status && out.stdout == quiet.out.stdout;
        // A task lives on when its output cannot be kept; its executor's log tells of it.
        let struck = |place: &str| traced.struck.as_ref().is_some_and(|(_, _, target)| target.contains(place));
        // The host of drivers is this program, and does not tell what it cannot print.
        let unsaid = quiet.scenario.shape == Shape::Sessions && struck("/stdout");
        if right || is_told(out) || ((struck("/alloc/logs/") || unsaid) && out.status == quiet.out.status) {
            Ok(())
        } else {
            Err("neither right nor told".to_owned())
        }
    };
    sweep("errno, once", &quiets, single, 1, judge);
    sweep("errno, lasting", &quiets, lasting, 2, judge);
}
