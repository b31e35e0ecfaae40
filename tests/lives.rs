//! The lives of many tasks under one driver process, each with a fault at some step of it: nothing is left of any, and the
//! process that had them is as large as before. The default is the short form; `AGENTBIN_FULL=1` has ten thousand lives.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/random.rs"]
mod random;
#[path = "support/task.rs"]
mod task;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use agentbin::cgroup::{Regime, TaskCgroup};
use agentbin::driver::{self, Driver, ExecDriver, RawExecDriver, Settings, TaskConfig, TaskHandle};
use agentbin::executor::{Compute, NewLimits};
use agentbin::spec::collections::BTreeMap;
use agentbin::spec::{DriverConfig, LogCollection, MemoryLimits, Resources, Signal};
use harness::{block_on, children, eventually, run, tests};
use random::Random;
use rustix::process::Pid;
use task::{cgroups, descriptors, full, nap, sleepers, slower};
use tempfile::TempDir;

fn main() -> ExitCode {
    agentbin::init();
    if !rustix::process::geteuid().is_root() {
        return harness::skip("lives", "needs root for cgroups, users and mounts");
    }
    run(tests![
        n5_nothing_is_left_of_any_life,
        n5_a_task_outlives_its_executor,
        n5_who_dies_when_leaves_one_task_or_none
    ])
}

/// Lives that go on at the same time.
const ABREAST: usize = 8;

/// What goes wrong, in the order of a task's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Its cgroup is there already, with a process in it.
    CgroupTaken,
    /// Its cgroup cannot be made.
    CgroupRefused,
    /// Its output has no place.
    NoPlaceForOutput,
    NoSuchUser,
    NoSuchCommand,
    NotExecutable,
    /// The executor is killed while it starts.
    ExecutorKilledEarly,
    ExecutorKilled,
    MainKilled,
    OutOfMemory,
    /// The driver's process is replaced: another instance finds the task.
    DriverReplaced,
    /// Everything of it stands still when it is to end.
    Frozen,
    /// What it left runs in sessions of its own.
    Forked,
    Stubborn,
    /// It is removed while it runs, and a command runs in it.
    RemovedWhileBusy,
}

const FAULTS: [Fault; 16] = [
    Fault::None,
    Fault::CgroupTaken,
    Fault::CgroupRefused,
    Fault::NoPlaceForOutput,
    Fault::NoSuchUser,
    Fault::NoSuchCommand,
    Fault::NotExecutable,
    Fault::ExecutorKilledEarly,
    Fault::ExecutorKilled,
    Fault::MainKilled,
    Fault::OutOfMemory,
    Fault::DriverReplaced,
    Fault::Frozen,
    Fault::Forked,
    Fault::Stubborn,
    Fault::RemovedWhileBusy,
];

impl Fault {
    fn script(self) -> &'static str {
        match self {
            Fault::OutOfMemory => "echo ready; exec tail /dev/zero",
            Fault::Forked => "(setsid sleep 1000 &); (setsid sh -c 'sleep 1000 & sleep 1000 &' &); echo ready; exit 3",
            Fault::Stubborn => "trap '' INT TERM HUP; echo ready; while :; do sleep 0.05; done",
            Fault::None | Fault::CgroupTaken => "echo ready; exit 3",
            _ => "(setsid sleep 1000 &); echo ready; sleep 1000; sleep 1000",
        }
    }

    fn cannot_start(self) -> bool {
        use Fault::{CgroupRefused, NoPlaceForOutput, NoSuchCommand, NoSuchUser, NotExecutable};
        matches!(self, CgroupRefused | NoPlaceForOutput | NoSuchUser | NoSuchCommand | NotExecutable)
    }
}

/// The drivers of one host, and where its allocations are.
struct Host {
    dir: TempDir,
    settings: Settings,
    exec: ExecDriver,
    raw_exec: RawExecDriver,
}

/// One life.
struct Life {
    number: usize,
    fault: Fault,
    isolated: bool,
    moment: Duration,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::Builder::new().prefix("agentbin-lives-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let compute = Compute { total_mhz: 2000, cores: 2 };
        let settings =
            Settings { cgroups: cgroups(), compute, socket_dir: dir.path().to_owned(), host: driver::Host::OWN };
        Host { exec: ExecDriver::new(settings.clone()), raw_exec: RawExecDriver::new(settings.clone()), settings, dir }
    }

    fn driver(&self, isolated: bool) -> &dyn Driver {
        if isolated { &self.exec } else { &self.raw_exec }
    }

    fn task(&self, life: &Life) -> TaskConfig {
        let Life { number, fault, .. } = life;
        let alloc_dir = self.dir.path().join(format!("alloc-{number}"));
        for folder in ["alloc/logs", "alloc/data", "task/local", "task/tmp"] {
            std::fs::create_dir_all(alloc_dir.join(folder)).unwrap();
            std::fs::set_permissions(alloc_dir.join(folder), std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let command = match fault {
            Fault::NoSuchCommand => "/no/such/command",
            Fault::NotExecutable => "/etc/hostname",
            _ => "/bin/sh",
        };
        let script = fault.script().replace("sleep 1000", &format!("sleep {}", nap()));
        let mut config = DriverConfig::default();
        config.values.insert("command".into(), command.into());
        config.values.insert("args".into(), vec!["-c".to_owned(), script].into());
        let cgroup = if *fault == Fault::CgroupRefused { "..".into() } else { self.cgroup(*number) };
        let logs = if *fault == Fault::NoPlaceForOutput { "nowhere" } else { "alloc/logs" };
        TaskConfig {
            id: format!("alloc-{number}/task"),
            name: "task".into(),
            alloc_id: format!("alloc-{number}"),
            config,
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
            user: if *fault == Fault::NoSuchUser { "no-such-user".into() } else { String::new() },
            resources: Resources {
                memory: MemoryLimits { hard_bytes: Some(16 << 20), soft_bytes: None },
                ..Resources::default()
            },
            cgroup,
            logs: Some(LogCollection {
                dir: alloc_dir.join(logs),
                stdout_file: "task.stdout".to_owned(),
                stderr_file: "task.stderr".to_owned(),
                max_files: 1,
                max_file_size_bytes: 1 << 20,
                ..LogCollection::default()
            }),
            alloc_dir,
            ..TaskConfig::default()
        }
    }

    fn parent(&self) -> PathBuf {
        let unit = if self.settings.cgroups.regime() == Regime::V2 { ".slice" } else { "" };
        format!("agentbin-lives-{}{unit}", std::process::id()).into()
    }

    fn cgroup(&self, number: usize) -> PathBuf {
        self.parent().join(number.to_string())
    }

    async fn live(&self, life: Life) {
        let task = self.task(&life);
        let what = format!("life {}: {:?}, isolated {}", life.number, life.fault, life.isolated);
        let stray = (life.fault == Fault::CgroupTaken).then(|| Stray::new(&task.cgroup));
        let driver = self.driver(life.isolated);
        let killer = async {
            if life.fault == Fault::ExecutorKilledEarly {
                kill_executor(&task.alloc_dir, life.moment).await;
            }
        };
        let (started, ()) = tokio::join!(driver.start_task(&task), killer);
        match started {
            Ok(handle) => {
                assert!(!life.fault.cannot_start(), "{what}: it started");
                self.end(&life, &task, &handle, driver).await;
            }
            Err(error) => {
                let expected = life.fault.cannot_start() || life.fault == Fault::ExecutorKilledEarly;
                assert!(expected, "{what}: {error}");
                assert!(driver.inspect_task(&task.id).await.is_err(), "{what}: known, though it did not start");
            }
        }
        drop(stray);
        for hierarchy in self.settings.cgroups.hierarchies() {
            let path = hierarchy.mount_point.join(&task.cgroup);
            assert!(life.fault == Fault::CgroupRefused || !path.exists(), "{what}: {} is left", path.display());
        }
        std::fs::remove_dir_all(&task.alloc_dir).unwrap_or_else(|e| panic!("{what}: {e}"));
    }

    async fn end(&self, life: &Life, task: &TaskConfig, handle: &TaskHandle, driver: &dyn Driver) {
        let (id, what) = (task.id.as_str(), format!("{:?}, isolated {}", life.fault, life.isolated));
        let waits = async || {
            let wait = tokio::time::timeout(Duration::from_mins(2) * slower(), driver.wait_task(id));
            wait.await.unwrap_or_else(|_| panic!("{what}: no end in time"))
        };
        let executor = Pid::from_raw(handle.executor.as_ref().unwrap().process.pid).unwrap();
        if !matches!(life.fault, Fault::None | Fault::ExecutorKilledEarly | Fault::OutOfMemory) {
            let output = task.logs.as_ref().unwrap().dir.join("task.stdout.0");
            eventually("ready", || std::fs::read_to_string(&output).is_ok_and(|t| t.contains("ready"))).await;
        }
        match life.fault {
            Fault::ExecutorKilledEarly => drop(waits().await),
            Fault::ExecutorKilled => {
                tokio::time::sleep(life.moment).await;
                rustix::process::kill_process(executor, rustix::process::Signal::KILL).unwrap();
                waits().await.unwrap_err();
            }
            Fault::MainKilled => {
                driver.signal_task(id, Signal::KILL).await.unwrap();
                let exit = waits().await.unwrap();
                assert_eq!((exit.signal, exit.oom_killed), (9, false), "{what}");
            }
            Fault::OutOfMemory => assert!(waits().await.unwrap().oom_killed, "{what}"),
            Fault::DriverReplaced => {
                let other: Box<dyn Driver> = if life.isolated {
                    Box::new(ExecDriver::new(self.settings.clone()))
                } else {
                    Box::new(RawExecDriver::new(self.settings.clone()))
                };
                // An executor that does not answer in a second counts as busy, and this machine may be.
                let deadline = Instant::now() + Duration::from_mins(1) * slower();
                while let Err(error) = other.recover_task(task, &handle.driver_state).await {
                    let busy = error.to_string().contains("no answer within") && Instant::now() < deadline;
                    assert!(busy, "{what}: {error}");
                }
                other.stop_task(id, Duration::from_millis(1), None).await.unwrap();
                other.wait_task(id).await.unwrap();
                other.destroy_task(id, false).await.unwrap();
            }
            Fault::Frozen => freeze(&task.cgroup),
            Fault::Stubborn => driver.stop_task(id, life.moment, Some(Signal::TERM)).await.unwrap(),
            Fault::RemovedWhileBusy => {
                let args = ["/bin/sleep".to_owned(), nap()];
                let busy = driver.exec_task(id, &args, Duration::from_mins(10));
                let remove = async {
                    tokio::time::sleep(life.moment).await;
                    driver.destroy_task(id, true).await.unwrap();
                };
                let (_ended, ()) = tokio::join!(busy, remove);
                return;
            }
            _ => {
                let exit = waits().await.unwrap();
                assert_eq!((exit.exit_code, exit.signal), (3, 0), "{what}");
            }
        }
        driver.destroy_task(id, true).await.unwrap_or_else(|e| panic!("{what}: {e}"));
    }
}

/// Waits until the executor of this allocation is there, and kills it a moment later.
async fn kill_executor(alloc_dir: &Path, moment: Duration) {
    let named = alloc_dir.to_str().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5) * slower();
    while Instant::now() < deadline {
        let is = |pid: &i32| {
            let line = procfs::process::Process::new(*pid).and_then(|p| p.cmdline()).unwrap_or_default();
            line.get(1).is_some_and(|role| role == "executor") && line.iter().any(|arg| arg.contains(named))
        };
        if let Some(pid) = children().into_iter().find(is) {
            tokio::time::sleep(moment).await;
            // A child of ours that nobody has waited for keeps its number; one that has ended is not killed.
            if children().contains(&pid) && is(&pid) {
                let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL);
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn freeze(cgroup: &Path) {
    let cgroups = cgroups();
    for hierarchy in cgroups.hierarchies() {
        let folder = hierarchy.mount_point.join(cgroup);
        match cgroups.regime() {
            Regime::V2 => std::fs::write(folder.join("cgroup.freeze"), "1").unwrap(),
            _ if hierarchy.has("freezer") => std::fs::write(folder.join("freezer.state"), "FROZEN").unwrap(),
            _ => {}
        }
    }
}

/// A process of an earlier owner in the cgroup that a task is to have.
struct Stray(Child);

impl Stray {
    fn new(cgroup: &Path) -> Stray {
        let cgroup = TaskCgroup::create(&cgroups(), cgroup, &Resources::default()).unwrap();
        let stray = Stray(Command::new("/bin/sleep").arg(nap()).stdin(Stdio::null()).spawn().unwrap());
        cgroup.join(Pid::from_child(&stray.0)).unwrap();
        stray
    }
}

impl Drop for Stray {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What this process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    descriptors: usize,
    threads: i64,
    /// Its own; pages of files come and go as the machine likes.
    anonymous_kib: u64,
}

fn size() -> Size {
    let process = procfs::process::Process::myself().unwrap();
    let threads = process.stat().unwrap().num_threads;
    let anonymous_kib = process.status().unwrap().rssanon.unwrap();
    Size { descriptors: descriptors(process.pid), threads, anonymous_kib }
}

/// Mounts in the host's directory, beside which others come and go.
fn mounts(dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    text.lines().filter(|line| line.contains(dir.to_str().unwrap())).map(str::to_owned).collect()
}

fn n5_nothing_is_left_of_any_life() {
    let full = full(10_000);
    let lives = full.unwrap_or(2 * FAULTS.len() * 3 / slower().min(3) as usize);
    let mut random = Random::new("n5_nothing_is_left_of_any_life");
    block_on(async {
        let host = Host::new();
        let (mut done, mut base) = (0, None);
        let began = Instant::now();
        while done < lives {
            let batch: Vec<Life> = (done..lives.min(done + ABREAST))
                .map(|number| Life {
                    number,
                    fault: FAULTS[number % FAULTS.len()],
                    isolated: (number / FAULTS.len()).is_multiple_of(2),
                    moment: Duration::from_micros(random.below(20_000)),
                })
                .collect();
            done += batch.len();
            let mut batch: Vec<_> = batch.into_iter().map(|life| Box::pin(host.live(life))).collect();
            std::future::poll_fn(|context| {
                batch.retain_mut(|life| life.as_mut().poll(context).is_pending());
                if batch.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
            eventually("no process is left", || children().is_empty()).await;
            assert_eq!(sleepers(), Vec::<i32>::new(), "after {done} lives");
            // Warm: every kind has been.
            let warm = (lives / 5).max(2 * FAULTS.len()).min(lives - 1);
            if base.is_none() && done >= warm {
                base = Some(size());
            }
            if full.is_some() && done % 500 < ABREAST {
                println!("{done} lives, {:?}: {:?}", began.elapsed(), size());
            }
        }
        let (base, end) = (base.unwrap(), size());
        println!("{lives} lives in {:?}: from {base:?} to {end:?}", began.elapsed());
        assert_eq!(end.descriptors, base.descriptors);
        // Each life has one call at most that blocks.
        assert!(end.threads <= i64::try_from(1 + ABREAST).unwrap(), "{end:?}");
        // Less than 50 bytes a life; a short run has not met every size of buffer yet.
        let slack = if full.is_some() { 400 } else { 4096 };
        assert!(end.anonymous_kib <= base.anonymous_kib + slack, "grew from {base:?} to {end:?}");
        assert_eq!(mounts(host.dir.path()), Vec::<String>::new(), "mounts");
        for hierarchy in host.settings.cgroups.hierarchies() {
            let path = hierarchy.mount_point.join(host.parent());
            assert!(!path.exists(), "{} is left", path.display());
        }
        let left: Vec<_> = std::fs::read_dir(host.dir.path()).unwrap().flatten().map(|e| e.path()).collect();
        assert!(left.is_empty(), "left in the host's folder: {left:?}");
    });
}

/// An agent's driver whose tasks outlive their executors, in a runtime that can be dropped as if its process had died.
struct Agent {
    runtime: tokio::runtime::Runtime,
    exec: ExecDriver,
    raw_exec: RawExecDriver,
}

impl Agent {
    fn new(dir: &Path) -> Agent {
        let compute = Compute { total_mhz: 2000, cores: 2 };
        let settings = Settings { cgroups: cgroups(), compute, socket_dir: dir.to_owned(), host: driver::Host::NOMAD };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let agent = Agent { runtime, exec: ExecDriver::new(settings.clone()), raw_exec: RawExecDriver::new(settings) };
        let mut config = DriverConfig::default();
        config.values.insert("on_executor_loss".into(), "adopt".into());
        agent.exec.set_config(&config, None).unwrap();
        config.values.insert("enabled".into(), true.into());
        agent.raw_exec.set_config(&config, None).unwrap();
        agent
    }

    fn driver(&self, isolated: bool) -> &dyn Driver {
        if isolated { &self.exec } else { &self.raw_exec }
    }
}

/// Counts aloud until it is told to end; what it leaves sleeps.
const COUNTS: &str = "trap 'echo term; exit 7' TERM; (setsid sleep 1000 &); echo ready; n=0; \
                      while :; do n=$((n+1)); echo line $n; sleep 0.02; done";

fn agents_task(dir: &Path, number: usize) -> TaskConfig {
    let alloc_dir = dir.join(format!("adopt-{}-{number}", std::process::id()));
    for folder in ["alloc/logs", "alloc/data", "task/local", "task/tmp"] {
        std::fs::create_dir_all(alloc_dir.join(folder)).unwrap();
        std::fs::set_permissions(alloc_dir.join(folder), std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let mut config = DriverConfig::default();
    config.values.insert("command".into(), "/bin/sh".into());
    let script = COUNTS.replace("sleep 1000", &format!("sleep {}", nap()));
    config.values.insert("args".into(), vec!["-c".to_owned(), script].into());
    let scope = Path::new("/sys/fs/cgroup").join(agents_cgroup(number));
    TaskConfig {
        id: format!("adopt-{number}/task"),
        name: "task".into(),
        alloc_id: format!("adopt-{number}"),
        config,
        env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
        cpuset_cgroup: if cgroups().regime() == Regime::V2 { scope } else { PathBuf::new() },
        alloc_dir,
        ..TaskConfig::default()
    }
}

/// The cpuset that an agent on cgroup v1 has all tasks without reserved cores share.
struct Share(PathBuf);

impl Share {
    fn new() -> Option<Share> {
        let cgroups = cgroups();
        let tree = cgroups.hierarchies().find(|h| cgroups.regime() == Regime::V1 && h.has("cpuset"))?;
        let share = Share(tree.mount_point.join(format!("adopt-{}-share", std::process::id())));
        std::fs::create_dir(&share.0).unwrap();
        for name in ["cpuset.cpus", "cpuset.mems"] {
            std::fs::copy(tree.mount_point.join(name), share.0.join(name)).unwrap();
        }
        Some(share)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let _has_processes_after_a_failure = std::fs::remove_dir(&self.0);
    }
}

/// As an agent names it.
fn agents_cgroup(number: usize) -> PathBuf {
    let name = format!("adopt-{}-{number}.task", std::process::id());
    if cgroups().regime() == Regime::V2 {
        format!("nomad.slice/{name}.scope").into()
    } else {
        format!("nomad/{name}").into()
    }
}

/// The executors of an allocation, dead ones left out. A child that is about to execute a shim, and then the task, still has its
/// executor's command line.
fn executors(alloc_dir: &Path) -> Vec<i32> {
    let named = alloc_dir.to_str().unwrap();
    let is = |p: &procfs::process::Process| {
        let line = p.cmdline().unwrap_or_default();
        line.get(1).is_some_and(|role| role == "executor") && line.iter().any(|arg| arg.contains(named))
    };
    let alike: Vec<_> = procfs::process::all_processes().unwrap().flatten().filter(is).collect();
    let pids: Vec<i32> = alike.iter().map(|p| p.pid).collect();
    let is_child = |p: &procfs::process::Process| p.stat().map_or(true, |stat| pids.contains(&stat.ppid));
    alike.iter().filter(|p| !is_child(p)).map(|p| p.pid).collect()
}

fn kill(pid: i32) {
    // It may just have ended by itself.
    let _ = rustix::process::kill_process(Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL);
}

/// Kills the executor and reaps it where no runtime is there that would.
fn kill_and_reap(pid: i32) {
    kill(pid);
    let _ = rustix::process::waitpid(Pid::from_raw(pid), rustix::process::WaitOptions::empty());
}

fn lines(task: &TaskConfig) -> Vec<u64> {
    let text = std::fs::read_to_string(task.alloc_dir.join("alloc/logs/task.stdout.0")).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("line ")?.parse().ok()).collect()
}

fn assert_nothing_left(dir: &Path, task: &TaskConfig, number: usize) {
    assert_eq!(executors(&task.alloc_dir), Vec::<i32>::new(), "executors");
    assert_eq!(sleepers(), Vec::<i32>::new(), "sleepers");
    for hierarchy in cgroups().hierarchies() {
        let path = hierarchy.mount_point.join(agents_cgroup(number));
        assert!(!path.exists(), "{} is left", path.display());
    }
    let notes: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().filter(|e| e.path().is_file()).collect();
    assert!(notes.is_empty(), "{notes:?}");
    std::fs::remove_dir_all(&task.alloc_dir).unwrap();
}

/// The driver lives, and gives it another executor; twice. Then both die at once, and another driver recovers it.
fn n5_a_task_outlives_its_executor() {
    let dir = tempfile::Builder::new().prefix("agentbin-adopt-").tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let share = Share::new();
    for (number, isolated) in [(0, false), (1, true)] {
        let mut task = agents_task(dir.path(), number);
        if let Some(Share(path)) = &share {
            task.cpuset_cgroup.clone_from(path);
        }
        let id = task.id.as_str();
        let agent = Agent::new(dir.path());
        let handle = agent.runtime.block_on(async {
            let driver = agent.driver(isolated);
            let handle = driver.start_task(&task).await.unwrap();
            let pid = driver.inspect_task(id).await.unwrap().attributes["pid"].clone();
            let (cgroups, own) = (cgroups(), agents_cgroup(number));
            let mut files = cgroups.hierarchies().map(|h| h.mount_point.join(&own).join("pids.max"));
            let pids_max = files.find(|file| file.exists()).unwrap();
            let pids_max = || std::fs::read_to_string(&pids_max).unwrap();
            for round in 0..2 {
                let pids = 400 + round;
                let limits = NewLimits { pids_max: Some(pids), ..NewLimits::default() };
                driver.update_task(id, limits).await.unwrap();
                let before = lines(&task).len();
                eventually("output", || lines(&task).len() > before + 3).await;
                let [executor] = executors(&task.alloc_dir)[..] else { panic!("{:?}", executors(&task.alloc_dir)) };
                if (round, isolated) == (1, false) {
                    // Its driver comes to wait without a call, on another connection; then it closes the first one.
                    let busy = descriptors(executor);
                    eventually("the bell", || descriptors(executor) == busy + 1).await;
                    eventually("the end of the connection", || descriptors(executor) == busy).await;
                }
                kill(executor);
                let deadline = Instant::now() + Duration::from_mins(1) * slower();
                while let Err(error) = driver.task_stats(id).await {
                    assert!(Instant::now() < deadline, "not taken over: {error}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                assert_ne!(executors(&task.alloc_dir), [executor]);
                // B1: the next executor knows the limits that were changed, and keeps them when others change.
                let limits = NewLimits { cpu_shares: Some(500), ..NewLimits::default() };
                driver.update_task(id, limits).await.unwrap();
                assert_eq!(pids_max().trim(), pids.to_string());
            }
            assert_eq!(driver.inspect_task(id).await.unwrap().attributes["pid"], pid);
            let echo = ["/bin/echo".to_owned(), "in it".to_owned()];
            let out = driver.exec_task(id, &echo, Duration::from_mins(1) * slower()).await;
            assert_eq!(String::from_utf8(out.unwrap().stdout).unwrap(), "in it\n");
            handle
        });
        drop(agent);
        let [executor] = executors(&task.alloc_dir)[..] else { panic!("{:?}", executors(&task.alloc_dir)) };
        kill_and_reap(executor);

        let agent = Agent::new(dir.path());
        agent.runtime.block_on(async {
            let driver = agent.driver(isolated);
            // What an agent that was started anew still knows of a task.
            let known = TaskConfig { config: DriverConfig::default(), ..task.clone() };
            driver.recover_task(&known, &handle.driver_state).await.unwrap();
            let echo = ["/bin/echo".to_owned(), "still".to_owned()];
            let out = driver.exec_task(id, &echo, Duration::from_mins(1) * slower()).await;
            assert_eq!(String::from_utf8(out.unwrap().stdout).unwrap(), "still\n");
            let before = lines(&task).len();
            eventually("output again", || lines(&task).len() > before + 3).await;
            driver.stop_task(id, Duration::from_mins(1) * slower(), Some(Signal::TERM)).await.unwrap();
            match driver.wait_task(id).await {
                Ok(exit) => assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (7, 0, false)),
                Err(error) => assert!(error.to_string().contains("its exit status is not known"), "{error}"),
            }
            driver.destroy_task(id, false).await.unwrap();
        });
        let counted = lines(&task);
        let lost = counted.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
        println!("isolated {isolated}: {} lines, {lost} gaps", counted.len());
        assert!(lost <= 3, "what an executor has in hand when it is killed is lost, and no more: {counted:?}");
        drop(agent);
        assert_nothing_left(dir.path(), &task, number);
    }

    // A record that names somebody else: nobody is touched, and nothing is left.
    let task = agents_task(dir.path(), 2);
    let agent = Agent::new(dir.path());
    let handle = agent.runtime.block_on(agent.raw_exec.start_task(&task)).unwrap();
    // A process is known by its number and the tick of the clock at which it began: two of those later it is another one.
    agent.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(30)).await });
    drop(agent);
    let mut bystander = Command::new("/bin/cat").stdin(Stdio::piped()).spawn().unwrap();
    let mut files = std::fs::read_dir(dir.path()).unwrap().flatten().map(|e| e.path());
    let record = files.find(|p| p.extension().is_some_and(|e| e == "task")).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    json["process"]["pid"] = bystander.id().into();
    std::fs::write(&record, json.to_string()).unwrap();
    kill_and_reap(executors(&task.alloc_dir)[0]);
    let agent = Agent::new(dir.path());
    let refused = agent.runtime.block_on(agent.raw_exec.recover_task(&task, &handle.driver_state)).unwrap_err();
    assert!(refused.to_string().contains("has ended"), "{refused}");
    assert!(bystander.try_wait().unwrap().is_none(), "it only has the number");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    agent.runtime.block_on(eventually("the executor that came for nothing", || executors(&task.alloc_dir).is_empty()));
    drop(agent);
    std::fs::remove_file(dir.path().join(record.with_extension("json").file_name().unwrap())).unwrap();
    assert_nothing_left(dir.path(), &task, 2);
}

/// The executor, or it and the driver, killed at any moment of the start and after it: one reconcile later there is one task, and
/// when that is removed there is nothing.
fn n5_who_dies_when_leaves_one_task_or_none() {
    let rounds = full(1000).unwrap_or(16 / slower().min(4) as usize);
    let mut random = Random::new("n5_who_dies_when_leaves_one_task_or_none");
    let dir = tempfile::Builder::new().prefix("agentbin-adopt-").tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut seen = BTreeMap::<String, u32>::new();
    for number in 0..rounds {
        let (isolated, both) = (number % 2 == 0, number / 2 % 2 == 0);
        let task = agents_task(dir.path(), number);
        let id = task.id.as_str();
        // Until a little after a start, which takes some ms here.
        let moment = Duration::from_micros(random.below(120_000)) * slower();
        let agent = Agent::new(dir.path());
        let started = agent.runtime.block_on(async {
            let driver = agent.driver(isolated);
            let killer = async {
                tokio::time::sleep(moment).await;
                if !both {
                    executors(&task.alloc_dir).into_iter().for_each(kill);
                }
            };
            if both {
                // Given up in the middle, as by a process that dies.
                tokio::time::timeout(moment, driver.start_task(&task)).await.ok().and_then(Result::ok)
            } else {
                tokio::join!(driver.start_task(&task), killer).0.ok()
            }
        });
        let what = format!("isolated {isolated}, both {both}, started {}", started.is_some());
        let agent = if both {
            drop(agent);
            // Executors all of them, those included that nobody waits for any more.
            executors(&task.alloc_dir).into_iter().chain(children()).for_each(kill_and_reap);
            Agent::new(dir.path())
        } else {
            agent
        };
        agent.runtime.block_on(async {
            let driver = agent.driver(isolated);
            match &started {
                Some(handle) => {
                    driver.recover_task(&task, &handle.driver_state).await.unwrap_or_else(|e| panic!("{what}: {e}"));
                }
                None => drop(driver.start_task(&task).await.unwrap_or_else(|e| panic!("{what}: {e}"))),
            }
            let before = lines(&task).len();
            let deadline = Instant::now() + Duration::from_mins(1) * slower();
            while lines(&task).len() <= before {
                let log = std::fs::read_to_string(task.alloc_dir.join("task/executor.out")).unwrap_or_default();
                let status = driver.inspect_task(id).await;
                assert!(Instant::now() < deadline, "{what}, after {moment:?}: no output: {status:?}: {log}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            eventually("one task", || sleepers().len() == 1).await;
            driver.destroy_task(id, true).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            eventually("no process is left", || children().is_empty()).await;
        });
        drop(agent);
        assert_nothing_left(dir.path(), &task, number);
        *seen.entry(what).or_default() += 1;
    }
    println!("{seen:?}");
}
