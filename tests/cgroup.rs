//! The module `cgroup` on the real kernel, whichever regime it has. Mission C1 C2 B6, attack ids R19 B12.
//!
//! Needs root and a cgroup tree. Without them a test says why it did not run, and fails where `CI` is `true`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::cgroup::{CgroupFs, DeviceAccess, DeviceKind, DeviceRule, Error, Regime, Sampler, TaskCgroup};
use agentbin::spec::{CpuField, MemoryField, MemoryLimits, Resources};
use rustix::process::Pid;

const ROOT: &str = "/sys/fs/cgroup";
const MIB: u64 = 1024 * 1024;

fn machine() -> Option<CgroupFs> {
    let why = if rustix::process::geteuid().is_root() {
        let fs = CgroupFs::detect(Path::new(ROOT)).unwrap();
        if fs.regime() != Regime::Off {
            return Some(fs);
        }
        "no cgroup tree"
    } else {
        "not root"
    };
    assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "cannot test: {why}");
    println!("SKIP: {}: {why}", std::thread::current().name().unwrap_or("cgroup"));
    None
}

/// A parent of our own per test, so that tests neither meet each other nor anything else.
struct Bench {
    fs: CgroupFs,
    parent: PathBuf,
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        Some(Bench { fs: machine()?, parent: format!("agentbin-test-{}-{test}", std::process::id()).into() })
    }

    fn path(&self, task: &str) -> PathBuf {
        self.parent.join(task)
    }

    fn create(&self, task: &str, resources: &Resources) -> TaskCgroup {
        TaskCgroup::create(&self.fs, &self.path(task), resources).unwrap()
    }

    /// The directory of `task` in the tree of `controller`.
    fn folder(&self, controller: &str, task: &str) -> PathBuf {
        let tree = self.fs.hierarchies().find(|h| self.fs.regime() == Regime::V2 || h.has(controller)).unwrap();
        tree.mount_point.join(self.path(task))
    }

    fn read(&self, controller: &str, task: &str, v1: &str, v2: &str) -> String {
        let name = if self.fs.regime() == Regime::V2 { v2 } else { v1 };
        std::fs::read_to_string(self.folder(controller, task).join(name)).unwrap().trim().to_owned()
    }

    fn nothing_left(&self) {
        for tree in self.fs.hierarchies() {
            let path = tree.mount_point.join(&self.parent);
            assert!(!path.exists(), "{} is left", path.display());
        }
    }
}

impl Drop for Bench {
    /// Leaves nothing behind after a failed test either.
    fn drop(&mut self) {
        if let Ok(all) = TaskCgroup::open(&self.fs, &self.parent) {
            let _ = all.kill_all(soon(30));
            let _ = all.remove(soon(30));
        }
    }
}

/// A deadline for what takes no time unless something is wrong, or others keep the machine busy.
fn soon(seconds: u64) -> Instant {
    Instant::now() + limit(seconds)
}

/// A process that ends with the test, whatever happens.
struct Process(Child);

impl Process {
    /// Starts `command` inside `task`: it waits on stdin until it has been moved there.
    fn start(task: &TaskCgroup, program: &str, args: &[&str]) -> Process {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read go; exec \"$@\"", "sh", program]).args(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        task.join(Pid::from_child(&child)).unwrap();
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        Process(child)
    }

    fn id(&self) -> i32 {
        i32::try_from(self.0.id()).unwrap()
    }

    fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    /// Waits for a while only: one that a failed test left frozen cannot end.
    #[expect(clippy::disallowed_methods, reason = "a child without an event; there is a deadline")]
    fn drop(&mut self) {
        let _ = self.0.kill();
        let deadline = soon(5);
        while self.0.try_wait().is_ok_and(|s| s.is_none()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// A limit of time, stretched where processors are emulated (`scripts/guest`).
fn limit(seconds: u64) -> Duration {
    let factor = std::env::var("AGENTBIN_TEST_SLOWER").ok().and_then(|f| f.parse().ok()).unwrap_or(1);
    Duration::from_secs(seconds) * factor
}

#[expect(clippy::disallowed_methods, reason = "a cgroup file without an event; there is a deadline")]
fn eventually(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = soon(30);
    while !ready() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn c1_regime_is_what_is_mounted() {
    let Some(fs) = machine() else { return };
    let kind = Command::new("stat").args(["-f", "-c", "%T", ROOT]).output().unwrap();
    let kind = String::from_utf8(kind.stdout).unwrap();
    assert_eq!(fs.regime(), if kind.contains("cgroup2") { Regime::V2 } else { Regime::V1 }, "{kind}");
    let off = CgroupFs::detect(Path::new("/nowhere")).unwrap();
    assert_eq!(off.regime(), Regime::Off);
    assert!(matches!(TaskCgroup::create(&off, Path::new("a/b"), &Resources::default()), Err(Error::Off)));
}

#[test]
fn b12_a_path_never_leaves_its_tree() {
    let Some(fs) = machine() else { return };
    for bad in ["", "/", ".", "..", "a/../../b", "../a", "/etc/cgroup", "a/.."] {
        let made = TaskCgroup::create(&fs, Path::new(bad), &Resources::default());
        assert!(matches!(made, Err(Error::BadPath(_))), "{bad:?}");
        assert!(matches!(TaskCgroup::open(&fs, Path::new(bad)), Err(Error::BadPath(_))), "{bad:?}");
        assert!(matches!(fs.relative(Path::new(bad)), Err(Error::BadPath(_))), "{bad:?}");
    }
    let tree = fs.hierarchies().next().unwrap().mount_point.clone();
    assert!(matches!(fs.relative(&tree), Err(Error::BadPath(_))), "the root");
    assert_eq!(fs.relative(&tree.join("nomad/x.y")).unwrap(), Path::new("nomad/x.y"));
    let outside = PathBuf::from("/tmp/agentbin-evil");
    let resources = Resources {
        cgroup_v1_override: [("memory".to_owned(), outside.clone())].into(),
        cgroup_v2_override: Some(outside),
        ..Resources::default()
    };
    assert!(matches!(TaskCgroup::create(&fs, Path::new("a/b"), &resources), Err(Error::BadPath(_))));
}

#[test]
fn limits_are_written_and_lifted() {
    let Some(bench) = Bench::new("limits") else { return };
    let resources = Resources {
        cpu_shares: 500,
        cpu_quota_us: Some((50_000, 100_000)),
        memory: MemoryLimits { hard_bytes: Some(64 * MIB), soft_bytes: Some(32 * MIB) },
        pids_max: Some(77),
        cpuset_cpus: "0".to_owned(),
        ..Resources::default()
    };
    let task = bench.create("t", &resources);
    let v1 = bench.fs.regime() == Regime::V1;
    let check = |c: &str, f1: &str, f2: &str, w1: &str, w2: &str| {
        assert_eq!(bench.read(c, "t", f1, f2), if v1 { w1 } else { w2 }, "{f1} {f2}");
    };
    check("cpu", "cpu.shares", "cpu.weight", "500", "58");
    check("cpu", "cpu.cfs_quota_us", "cpu.max", "50000", "50000 100000");
    check("memory", "memory.limit_in_bytes", "memory.max", "67108864", "67108864");
    check("memory", "memory.soft_limit_in_bytes", "memory.low", "33554432", "33554432");
    check("pids", "pids.max", "pids.max", "77", "77");
    check("cpuset", "cpuset.cpus", "cpuset.cpus", "0", "0");
    for (file, want) in [("memory.memsw.limit_in_bytes", "67108864"), ("memory.swap.max", "0")] {
        let path = bench.folder("memory", "t").join(file);
        if path.exists() {
            assert_eq!(std::fs::read_to_string(path).unwrap().trim(), want, "{file}");
        }
    }
    // Raised, then lowered: memory alone may at no time exceed memory with swap.
    for mib in [256, 16] {
        let memory = MemoryLimits { hard_bytes: Some(mib * MIB), soft_bytes: None };
        task.set_limits(&Resources { memory, cpu_shares: 1, ..Resources::default() }).unwrap();
        let want = (mib * MIB).to_string();
        check("memory", "memory.limit_in_bytes", "memory.max", &want, &want);
        check("cpu", "cpu.shares", "cpu.weight", "2", "1");
        check("cpu", "cpu.cfs_quota_us", "cpu.max", "-1", "max 100000");
        check("pids", "pids.max", "pids.max", "max", "max");
    }
    task.set_limits(&Resources { cpu_shares: u64::MAX, ..Resources::default() }).unwrap();
    check("cpu", "cpu.shares", "cpu.weight", "262144", "10000");
    check("memory", "memory.limit_in_bytes", "memory.max", "9223372036854771712", "max");
    task.remove(soon(5)).unwrap();
    bench.nothing_left();
}

/// Nothing is there, and what is not there needs no removal: a directory cannot be below a file, as every cgroup has some.
#[test]
fn c2_a_path_through_a_file_of_the_kernels_is_refused_and_leaves_nothing() {
    let Some(bench) = Bench::new("through") else { return };
    let parent = bench.create("parent", &Resources::default());
    let path = bench.path("parent").join("cgroup.procs/jobs/t");
    let error = TaskCgroup::create(&bench.fs, &path, &Resources::default()).unwrap_err().to_string();
    assert!(error.contains("cgroup.procs"), "{error}");
    TaskCgroup::open(&bench.fs, &path).unwrap().destroy(soon(5)).unwrap();
    parent.remove(soon(5)).unwrap();
    bench.nothing_left();
}

/// The ends of what can be asked for, as this kernel keeps them. What is written where is a table in `src/cgroup/limits.rs`.
#[test]
fn c2_limits_at_their_ends_as_the_kernel_keeps_them() {
    let Some(bench) = Bench::new("ends") else { return };
    let v1 = bench.fs.regime() == Regime::V1;
    let default = Resources::default;
    let memory = |hard, soft| Resources { memory: MemoryLimits { hard_bytes: hard, soft_bytes: soft }, ..default() };
    let shares = |cpu_shares| Resources { cpu_shares, ..default() };
    let quota = |quota, period| Resources { cpu_quota_us: Some((quota, period)), ..default() };
    let pids = |most| Resources { pids_max: Some(most), ..default() };
    let cpus = |list: &str| Resources { cpuset_cpus: list.to_owned(), ..default() };
    let (limit, soft) = (["memory.limit_in_bytes", "memory.max"], ["memory.soft_limit_in_bytes", "memory.low"]);
    let (share, max) = (["cpu.shares", "cpu.weight"], ["cpu.cfs_quota_us", "cpu.max"]);
    let (most, none) = ("9223372036854771712", "max");
    let kept = [
        (shares(0), "cpu", share, ["1024", "100"]),
        (shares(1), "cpu", share, ["2", "1"]),
        (shares(2), "cpu", share, ["2", "1"]),
        (shares(262_144), "cpu", share, ["262144", "10000"]),
        (shares(u64::MAX), "cpu", share, ["262144", "10000"]),
        (default(), "cpu", max, ["-1", "max 100000"]),
        (quota(1000, 1000), "cpu", max, ["1000", "1000 1000"]),
        (quota(1000, 1_000_000), "cpu", max, ["1000", "1000 1000000"]),
        (quota(6_400_000, 100_000), "cpu", max, ["6400000", "6400000 100000"]),
        (default(), "memory", limit, [most, none]),
        // Whole pages.
        (memory(Some(1), None), "memory", limit, ["0", "0"]),
        (memory(Some(4097), None), "memory", limit, ["4096", "4096"]),
        (memory(Some(u64::MAX), None), "memory", limit, [most, none]),
        (memory(None, Some(4096)), "memory", limit, [most, none]),
        (memory(None, Some(4096)), "memory", soft, ["4096", "4096"]),
        (memory(Some(4096), Some(u64::MAX)), "memory", soft, [most, none]),
        (default(), "pids", ["pids.max"; 2], ["max"; 2]),
        (pids(0), "pids", ["pids.max"; 2], ["0"; 2]),
        (pids(1), "pids", ["pids.max"; 2], ["1"; 2]),
        (pids(4_194_304), "pids", ["pids.max"; 2], ["4194304"; 2]),
        (pids(4_194_305), "pids", ["pids.max"; 2], ["max"; 2]),
        (pids(u64::MAX), "pids", ["pids.max"; 2], ["max"; 2]),
        (cpus("0"), "cpuset", ["cpuset.cpus"; 2], ["0"; 2]),
        (cpus("0,0-0"), "cpuset", ["cpuset.cpus"; 2], ["0"; 2]),
    ];
    for (resources, controller, [f1, f2], [w1, w2]) in kept {
        // In a new cgroup, and in one that had others.
        let task = bench.create("t", &resources);
        let check = || {
            assert_eq!(bench.read(controller, "t", f1, f2), if v1 { w1 } else { w2 }, "{resources:?}");
        };
        check();
        let memory = MemoryLimits { hard_bytes: Some(64 * MIB), soft_bytes: Some(MIB) };
        let other = Resources {
            cpu_shares: 77,
            cpu_quota_us: Some((5000, 10_000)),
            memory,
            pids_max: Some(7),
            ..Resources::default()
        };
        task.set_limits(&other).unwrap();
        task.set_limits(&resources).unwrap();
        check();
        task.remove(soon(5)).unwrap();
    }
    // What the kernel does not take is told, by file, and leaves nothing.
    for (resources, file) in [
        (quota(1, 100_000), max),
        (quota(u64::MAX, 100_000), max),
        (quota(1000, 1_000_001), ["cpu.cfs_period_us", "cpu.max"]),
        (quota(1000, 0), ["cpu.cfs_period_us", "cpu.max"]),
        (cpus("9999"), ["cpuset.cpus"; 2]),
        (cpus("none"), ["cpuset.cpus"; 2]),
    ] {
        let error = TaskCgroup::create(&bench.fs, &bench.path("t"), &resources).unwrap_err().to_string();
        assert!(error.contains(file[usize::from(!v1)]), "{resources:?}: {error}");
        bench.nothing_left();
    }
}

#[test]
fn c2_a_process_joins_every_tree_and_is_listed() {
    let Some(bench) = Bench::new("join") else { return };
    let task = bench.create("a.scope", &Resources::default());
    assert!(task.exists());
    assert_eq!(task.dir_fd().unwrap().is_some(), bench.fs.regime() == Regime::V2);
    let process = Process::start(&task, "sleep", &["1000"]);
    assert_eq!(task.pids().unwrap(), [process.id()]);
    let lines = std::fs::read_to_string(format!("/proc/{}/cgroup", process.id())).unwrap();
    let want = format!(":/{}", bench.path("a.scope").display());
    for tree in bench.fs.hierarchies() {
        let controllers = tree.controllers.join(",");
        let mine = lines.lines().find(|l| l.split(':').nth(1) == Some(&controllers)).unwrap();
        assert!(mine.ends_with(&want), "{mine}");
    }
    task.kill_all(soon(5)).unwrap();
    assert!(task.pids().unwrap().is_empty());
    task.remove(soon(5)).unwrap();
    assert!(!task.exists());
    assert!(task.pids().unwrap().is_empty() && !task.oom_killed().unwrap());
    task.kill_all(soon(1)).unwrap();
    task.remove(soon(1)).unwrap();
    bench.nothing_left();
}

#[test]
fn b6_a_process_that_double_forked_away_is_killed() {
    let Some(bench) = Bench::new("fork") else { return };
    let task = bench.create("t", &Resources::default());
    let mut process = Process::start(&task, "sh", &["-c", "(setsid sleep 1000 & setsid sleep 1000 &) ; exit 0"]);
    eventually("the first process ends", || process.ended());
    eventually("two are left", || task.pids().unwrap().len() == 2);
    let pids = task.pids().unwrap();
    task.kill_all(soon(5)).unwrap();
    assert!(task.pids().unwrap().is_empty());
    for pid in pids {
        // A process leaves its cgroup a few steps before it is a zombie.
        eventually("it has ended", || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z") || state.contains(") X")
        });
    }
    task.remove(soon(5)).unwrap();
    bench.nothing_left();
}

#[test]
fn b6_a_fork_bomb_is_gone_within_a_second() {
    let Some(bench) = Bench::new("bomb") else { return };
    let task = bench.create("t", &Resources { pids_max: Some(256), ..Resources::default() });
    for _ in 0..3 {
        let _process = Process::start(&task, "perl", &["-e", "while (1) { fork }"]);
        eventually("it grows", || task.pids().unwrap().len() >= 250);
        let start = Instant::now();
        task.kill_all(soon(20)).unwrap();
        let took = start.elapsed();
        eprintln!("256 processes gone after {took:?}");
        assert!(task.pids().unwrap().is_empty());
        // A second is what is promised; others may have the machine.
        assert!(took < limit(5), "{took:?}");
    }
    let start = Instant::now();
    task.remove(soon(20)).unwrap();
    assert!(start.elapsed() < limit(5));
    bench.nothing_left();
}

#[test]
fn r19_a_task_frozen_in_its_own_child_cgroups_is_killed_and_removed() {
    let Some(bench) = Bench::new("frozen") else { return };
    for frozen in ["t", "t/a", "t/a/b"] {
        let task = bench.create("t", &Resources::default());
        let inner = TaskCgroup::create(&bench.fs, &bench.path("t/a/b"), &Resources::default()).unwrap();
        let _process = Process::start(&inner, "sleep", &["1000"]);
        let (file, value) =
            if bench.fs.regime() == Regime::V2 { ("cgroup.freeze", "1") } else { ("freezer.state", "FROZEN") };
        std::fs::write(bench.folder("freezer", frozen).join(file), value).unwrap();
        assert_eq!(task.pids().unwrap().len(), 1);
        task.kill_all(soon(5)).unwrap();
        assert!(task.pids().unwrap().is_empty(), "frozen at {frozen}");
        task.remove(soon(5)).unwrap();
        bench.nothing_left();
    }
}

#[test]
fn a_frozen_leftover_does_not_stop_the_next_task() {
    let Some(bench) = Bench::new("leftover") else { return };
    let task = bench.create("t", &Resources::default());
    let mut old = Process::start(&task, "sleep", &["1000"]);
    let (file, value) =
        if bench.fs.regime() == Regime::V2 { ("cgroup.freeze", "1") } else { ("freezer.state", "FROZEN") };
    std::fs::write(bench.folder("freezer", "t").join(file), value).unwrap();
    let again = bench.create("t", &Resources::default());
    eventually("the old process is gone", || old.ended());
    let mut new = Process::start(&again, "true", &[]);
    eventually("the new process runs", || new.ended());
    again.remove(soon(5)).unwrap();
    bench.nothing_left();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the length of the pause is what is tested")]
fn r19_remove_waits_for_the_last_process_and_reports_after_the_deadline() {
    let Some(bench) = Bench::new("busy") else { return };
    let task = bench.create("t", &Resources::default());
    let mut process = Process::start(&task, "sleep", &["1000"]);
    let start = Instant::now();
    let error = task.remove(Instant::now() + Duration::from_millis(100)).unwrap_err();
    assert!(start.elapsed() < limit(5));
    match &error {
        Error::Remove(failures) => assert_eq!(failures.len(), bench.fs.hierarchies().count(), "{error}"),
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("busy"), "{error}");
    let ender = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        process.0.kill().unwrap();
        process.0.wait().unwrap();
        Instant::now()
    });
    task.remove(soon(20)).unwrap();
    let removed = Instant::now();
    assert!(removed.duration_since(ender.join().unwrap()) < limit(5));
    bench.nothing_left();
}

#[test]
fn r19_destroy_also_gets_what_comes_in_late() {
    let Some(bench) = Bench::new("late") else { return };
    // The late one has to come while the children are removed; on a busy machine it may wake too late for that.
    let came = (0..20).any(|_| comes_in_late(&bench));
    assert!(came, "nobody came in while the cgroup was removed");
}

/// Whether a process got in while the cgroup was destroyed; one that did is dead.
#[expect(clippy::disallowed_methods, reason = "the removal of a cgroup has no event; the loop ends with it")]
fn comes_in_late(bench: &Bench) -> bool {
    let task = bench.create("t", &Resources::default());
    // So many children that their removal lasts long enough for a process to come in.
    let many = 1000 / limit(1).as_secs();
    let children: Vec<PathBuf> = (0..many).map(|n| task.path().join(n.to_string())).collect();
    for child in &children {
        std::fs::create_dir(child).unwrap();
    }
    let (late, warm) = (task.clone(), Process::start(&task, "sleep", &["300"]));
    let joiner = std::thread::spawn(move || {
        let sleeper = Process(Command::new("sleep").arg("300").spawn().unwrap());
        while children.iter().rev().take(5).all(|c| c.exists()) && children.iter().take(5).all(|c| c.exists()) {
            std::thread::sleep(Duration::from_micros(100));
        }
        let joined = std::fs::write(late.path().join("cgroup.procs"), sleeper.0.id().to_string());
        (joined.is_ok(), sleeper)
    });
    task.destroy(Instant::now() + limit(10)).unwrap();
    let (joined, mut sleeper) = joiner.join().unwrap();
    if joined {
        // It leaves its cgroup a few steps before its end can be seen.
        eventually("it was killed", || sleeper.ended());
    }
    drop(warm);
    bench.nothing_left();
    joined
}

#[test]
fn deep_and_wide_children_are_removed() {
    let Some(bench) = Bench::new("deep") else { return };
    let task = bench.create("t", &Resources::default());
    let top = bench.folder("memory", "t");
    let mut deep = top.clone();
    for _ in 0..60 {
        deep.push("d");
        std::fs::create_dir(&deep).unwrap();
    }
    for n in 0..40 {
        std::fs::create_dir(top.join(format!("w{n}"))).unwrap();
    }
    task.kill_all(soon(5)).unwrap();
    task.remove(soon(20)).unwrap();
    bench.nothing_left();
}

#[test]
fn only_parents_that_we_made_are_removed() {
    let Some(bench) = Bench::new("parents") else { return };
    let foreign: Vec<PathBuf> = bench.fs.hierarchies().map(|h| h.mount_point.join(&bench.parent)).collect();
    for path in &foreign {
        std::fs::create_dir(path).unwrap();
    }
    let one = bench.create("made/one", &Resources::default());
    let two = bench.create("made/two", &Resources::default());
    one.remove(soon(5)).unwrap();
    assert!(two.exists(), "a parent with another task stays");
    two.remove(soon(5)).unwrap();
    for path in &foreign {
        assert!(path.exists() && !path.join("made").exists(), "{}", path.display());
        std::fs::remove_dir(path).unwrap();
    }
}

#[test]
fn many_tasks_come_and_go_at_once() {
    let Some(bench) = Bench::new("race") else { return };
    let bench = &bench;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for _ in 0..25 {
                    let task = bench.create(&format!("deep/{thread}.scope"), &Resources::default());
                    task.remove(soon(10)).unwrap();
                }
            });
        }
    });
    bench.nothing_left();
}

#[test]
fn host_given_cgroups_are_joined_and_nothing_else() {
    let Some(bench) = Bench::new("given") else { return };
    let host = bench.create("host", &Resources::default());
    let v1 = bench.fs.regime() == Regime::V1;
    let resources = Resources {
        memory: MemoryLimits { hard_bytes: Some(64 * MIB), soft_bytes: None },
        cgroup_v1_override: [
            ("memory".to_owned(), bench.path("host")),
            ("pids".to_owned(), bench.folder("pids", "host")),
        ]
        .into(),
        cgroup_v2_override: Some(bench.folder("memory", "host")),
        ..Resources::default()
    };
    let given = TaskCgroup::create(&bench.fs, &bench.path("task"), &resources).unwrap();
    assert!(given.is_host_given());
    let mut process = Process::start(&given, "sleep", &["1000"]);
    assert_eq!(given.pids().unwrap(), [process.id()]);
    let freezer = std::fs::read_to_string(bench.folder("freezer", "host").join("cgroup.procs")).unwrap();
    assert_eq!(freezer.is_empty(), v1, "exactly the given ones");
    let limit = bench.read("memory", "host", "memory.limit_in_bytes", "memory.max");
    assert_eq!(limit, if v1 { "9223372036854771712" } else { "max" });
    assert!(matches!(given.kill_all(soon(1)), Err(Error::HostGiven(_))));
    given.remove(soon(1)).unwrap();
    assert!(!process.ended() && host.exists() && !bench.folder("memory", "task").exists());
    drop(process);
    host.remove(soon(5)).unwrap();
    let missing = TaskCgroup::create(&bench.fs, &bench.path("task"), &resources);
    assert!(matches!(missing, Err(Error::Io { .. })), "host folders are not made");
    bench.nothing_left();
}

#[test]
fn a_shared_cpuset_of_the_host_stays() {
    let Some(bench) = Bench::new("share") else { return };
    let share = bench.create("share", &Resources::default());
    let cpuset = bench.folder("cpuset", "share");
    let task =
        TaskCgroup::create_with_cpuset(&bench.fs, &bench.path("t"), Some(&cpuset), &Resources::default()).unwrap();
    let process = Process::start(&task, "sleep", &["1000"]);
    if bench.fs.regime() == Regime::V1 {
        let members = std::fs::read_to_string(cpuset.join("cgroup.procs")).unwrap();
        assert_eq!(members.trim(), process.id().to_string());
        assert!(!bench.folder("cpuset", "t").exists());
    }
    // Whoever opens it later puts processes where the first ones are.
    let again = TaskCgroup::open_with_cpuset(&bench.fs, &bench.path("t"), Some(&cpuset)).unwrap();
    let another = Process::start(&again, "sleep", &["1000"]);
    if bench.fs.regime() == Regime::V1 {
        let members = std::fs::read_to_string(cpuset.join("cgroup.procs")).unwrap();
        assert!(members.lines().any(|pid| pid == another.id().to_string()), "{members}");
    }
    task.kill_all(soon(5)).unwrap();
    task.remove(soon(5)).unwrap();
    assert!(cpuset.exists());
    if bench.fs.regime() == Regime::V1 {
        assert_ne!(std::fs::read_to_string(cpuset.join("cpuset.cpus")).unwrap().trim(), "", "others share these cores");
    }
    share.remove(soon(5)).unwrap();
    bench.nothing_left();
}

/// An agent makes the directory of a task with reserved cores and leaves it empty; the one that all others share is empty as
/// long as nobody has set up partitions.
#[test]
fn c3_an_empty_cpuset_of_the_host_gets_the_reserved_cores_or_is_passed_over() {
    let Some(bench) = Bench::new("given") else { return };
    if bench.fs.regime() != Regime::V1 || !bench.fs.hierarchies().any(|h| h.has("cpuset")) {
        println!("only v1 has cpusets that are empty");
        return;
    }
    let above = bench.create("reserve", &Resources::default());
    let given = bench.folder("cpuset", "reserve").join("t");
    std::fs::create_dir(&given).unwrap();
    let read = |name: &str| std::fs::read_to_string(given.join(name)).unwrap().trim().to_owned();
    for (cores, members, own) in [("", 0, true), ("0", 1, false)] {
        let resources = Resources { cpuset_cpus: cores.to_owned(), ..Resources::default() };
        let create = || TaskCgroup::create_with_cpuset(&bench.fs, &bench.path("t"), Some(&given), &resources);
        let task = create().unwrap();
        let process = Process::start(&task, "sleep", &["1000"]);
        assert_eq!((read("cpuset.cpus").as_str(), read("cgroup.procs").lines().count()), (cores, members));
        assert_eq!((task.pids().unwrap(), bench.folder("cpuset", "t").exists()), (vec![process.id()], own));
        task.kill_all(soon(5)).unwrap();
        drop(process);
        task.remove(soon(5)).unwrap();
        assert_eq!(read("cpuset.cpus"), "");
        // What an agent writes before it removes the directory.
        let above = given.parent().unwrap().join("cpuset.cpus");
        let cores = std::fs::read_to_string(&above).unwrap();
        std::fs::write(&above, " ").unwrap();
        std::fs::write(&above, cores).unwrap();
    }
    // Cores that were there before stay.
    std::fs::write(given.join("cpuset.cpus"), "0").unwrap();
    let resources = Resources { cpuset_cpus: "0".to_owned(), ..Resources::default() };
    let task = TaskCgroup::create_with_cpuset(&bench.fs, &bench.path("t"), Some(&given), &resources).unwrap();
    task.remove(soon(5)).unwrap();
    assert_eq!(read("cpuset.cpus"), "0");
    std::fs::remove_dir(&given).unwrap();
    let missing = TaskCgroup::create_with_cpuset(&bench.fs, &bench.path("t"), Some(&given), &Resources::default());
    missing.unwrap().remove(soon(5)).unwrap();
    above.remove(soon(5)).unwrap();
    bench.nothing_left();
}

#[test]
#[expect(clippy::disallowed_methods, reason = "this program starts itself; it is not a role")]
fn d28_our_own_process_is_never_killed() {
    let Some(bench) = Bench::new("own") else { return };
    let helper = Command::new("timeout")
        .args(["-s", "KILL", "60"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "helper_kills_the_cgroup_it_is_in", "--ignored", "--nocapture"])
        .env("AGENTBIN_TEST_CGROUP", bench.path("t"))
        .output()
        .unwrap();
    assert!(helper.status.success(), "{}", String::from_utf8_lossy(&helper.stdout));
    assert!(String::from_utf8_lossy(&helper.stdout).contains("refused"));
    TaskCgroup::open(&bench.fs, &bench.path("t")).unwrap().remove(soon(5)).unwrap();
    bench.nothing_left();
}

#[test]
#[ignore = "run by d28_our_own_process_is_never_killed"]
fn helper_kills_the_cgroup_it_is_in() {
    let (Some(fs), Some(path)) = (machine(), std::env::var_os("AGENTBIN_TEST_CGROUP")) else { return };
    let task = TaskCgroup::create(&fs, Path::new(&path), &Resources::default()).unwrap();
    task.join_self().unwrap();
    assert!(matches!(task.kill_all(soon(1)), Err(Error::Protected { .. })));
    assert!(matches!(TaskCgroup::create(&fs, Path::new(&path), &Resources::default()), Err(Error::Protected { .. })));
    println!("refused");
}

#[test]
fn an_out_of_memory_kill_is_seen_and_belongs_to_its_run() {
    let Some(bench) = Bench::new("oom") else { return };
    let resources =
        Resources { memory: MemoryLimits { hard_bytes: Some(16 * MIB), soft_bytes: None }, ..Resources::default() };
    let task = bench.create("t", &resources);
    assert!(!task.oom_killed().unwrap());
    let mut process = Process::start(&task, "tail", &["/dev/zero"]);
    let status = process.0.wait().unwrap();
    assert!(!status.success());
    assert!(task.oom_killed().unwrap(), "{status}");
    assert_eq!(task.oom_baseline(), 0);
    // Restarted in place.
    let again = bench.create("t", &resources);
    assert!(!again.oom_killed().unwrap() && again.oom_kills().unwrap() > 0);
    let recovered = TaskCgroup::open(&bench.fs, &bench.path("t")).unwrap().with_oom_baseline(again.oom_baseline());
    assert!(!recovered.oom_killed().unwrap());
    task.remove(soon(5)).unwrap();
    bench.nothing_left();
}

#[test]
fn stats_tell_what_the_task_uses() {
    let Some(bench) = Bench::new("stats") else { return };
    let task = bench.create("t", &Resources { cpu_quota_us: Some((20_000, 100_000)), ..Resources::default() });
    let _process = Process::start(&task, "perl", &["-e", "my $x = 'x' x (8 << 20); while (1) { $y++ }"]);
    let mut sampler = Sampler::new(1000.0);
    let first = task.stats(&mut sampler).unwrap();
    assert!(first.cpu.percent.abs() < f64::EPSILON);
    eventually("it was throttled and has its memory", || {
        let usage = task.stats(&mut Sampler::new(1.0)).unwrap();
        usage.cpu.throttled_periods > 3 && usage.memory.rss > 8 * MIB
    });
    let usage = task.stats(&mut sampler).unwrap();
    let cpu = &usage.cpu;
    assert!(cpu.percent > 1.0 && cpu.percent < 60.0, "{cpu:?}");
    assert!((cpu.total_ticks - cpu.percent * 10.0).abs() < 0.01, "{cpu:?}");
    assert!(cpu.throttled_time_ns > 0, "{cpu:?}");
    assert!((cpu.user_mode + cpu.system_mode - cpu.percent).abs() < 1.0, "{cpu:?}");
    use CpuField::{Percent, SystemMode, ThrottledPeriods, ThrottledTime, UserMode};
    assert_eq!(cpu.measured, [SystemMode, UserMode, ThrottledPeriods, ThrottledTime, Percent]);
    let memory = &usage.memory;
    assert!(memory.usage >= memory.rss && memory.rss < 200 * MIB, "{memory:?}");
    use MemoryField::{Cache, KernelMaxUsage, KernelUsage, MaxUsage, Rss, Swap, Usage};
    if bench.fs.regime() == Regime::V2 {
        assert_eq!(memory.measured, [Rss, Cache, Swap, Usage]);
    } else {
        assert_eq!(memory.measured, [Rss, Cache, Swap, Usage, MaxUsage, KernelUsage, KernelMaxUsage]);
        assert!(memory.max_usage >= memory.rss);
    }
    assert_eq!(memory.limit, 0, "it has none");
    let limits = MemoryLimits { hard_bytes: Some(64 * MIB), ..MemoryLimits::default() };
    let limited = bench.create("limited", &Resources { memory: limits, ..Resources::default() });
    assert_eq!(limited.stats(&mut sampler).unwrap().memory.limit, 64 * MIB);
    assert_eq!((limited.memory_limit().unwrap(), task.memory_limit().unwrap()), (64 * MIB, 0));
    limited.remove(soon(5)).unwrap();
    task.kill_all(soon(5)).unwrap();
    task.remove(soon(5)).unwrap();
    assert!(task.stats(&mut sampler).is_err());
    bench.nothing_left();
}

/// The promise is 50 ms, held by a release build (`scripts/bench idle`).
#[test]
fn b7_the_figures_of_500_tasks_are_read_in_no_time() {
    let Some(bench) = Bench::new("sweep") else { return };
    let tasks: Vec<TaskCgroup> =
        (0..500).map(|number| bench.create(&number.to_string(), &Resources::default())).collect();
    let _process = Process::start(&tasks[77], "perl", &["-e", "my $x = 'x' x (8 << 20); while (1) { $y++ }"]);
    let mut samplers = vec![Sampler::new(1000.0); tasks.len()];
    // Others may have the machine: what counts is the CPU time of this thread.
    let spent = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
    };
    let mut sweep = || {
        let begin = spent();
        let read = |(task, sampler): (&TaskCgroup, &mut Sampler)| {
            task.pressure().unwrap();
            task.stats(sampler).unwrap()
        };
        let usages: Vec<_> = tasks.iter().zip(&mut samplers).map(read).collect();
        (spent().saturating_sub(begin), usages)
    };
    let mut best = Duration::MAX;
    eventually("the one that works is seen to", || {
        let (took, usages) = sweep();
        best = best.min(took);
        usages[77].cpu.percent > 1.0 && usages[77].memory.rss > 8 * MIB && usages[76].memory.rss < MIB
    });
    println!("500 cgroups read in {best:?} of CPU");
    assert!(best < limit(1), "{best:?}");
    for task in &tasks {
        task.kill_all(soon(5)).unwrap();
        task.remove(soon(5)).unwrap();
    }
    bench.nothing_left();
}

/// ENOSPC of v1: somebody made the directory above and gave it no core; a process could join nothing below.
#[test]
fn c2_an_empty_cpuset_above_is_filled() {
    let Some(bench) = Bench::new("empty") else { return };
    if bench.fs.regime() != Regime::V1 || !bench.fs.hierarchies().any(|h| h.has("cpuset")) {
        println!("only v1 has cpusets that are empty");
        return;
    }
    let above = bench.folder("cpuset", "");
    std::fs::create_dir(&above).unwrap();
    // It has some where cgroup.clone_children is set.
    std::fs::write(above.join("cpuset.cpus"), "\n").unwrap();
    let cpus = || std::fs::read_to_string(above.join("cpuset.cpus")).unwrap();
    assert_eq!(cpus().trim(), "");
    let task = bench.create("t", &Resources::default());
    let process = Process::start(&task, "sleep", &["1000"]);
    assert!(!cpus().trim().is_empty() && task.pids().unwrap() == [process.id()]);
    task.kill_all(soon(5)).unwrap();
    task.remove(soon(5)).unwrap();
    // The others are gone; this one is not ours.
    std::fs::remove_dir(&above).unwrap();
    bench.nothing_left();
}

/// A unified tree: the root, or what a hybrid machine has beside its v1 hierarchies.
#[test]
fn c2_a_full_tree_is_told_and_nothing_is_left() {
    if machine().is_none() {
        return;
    }
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let Some(root) = roots.into_iter().find(|r| r.join("cgroup.controllers").exists()) else {
        println!("no unified tree");
        return;
    };
    let fs = CgroupFs::v2(root).unwrap();
    let parent = PathBuf::from(format!("agentbin-test-{}-full", std::process::id()));
    let create = |name: &str| TaskCgroup::create(&fs, &parent.join(name), &Resources::default());
    let first = create("a").unwrap();
    std::fs::write(root.join(&parent).join("cgroup.max.descendants"), "1").unwrap();
    let error = create("b/c").unwrap_err();
    assert!(error.to_string().contains("cannot create"), "{error}");
    assert!(!root.join(&parent).join("b").exists() && first.exists());
    std::fs::write(root.join(&parent).join("cgroup.max.descendants"), "max").unwrap();
    let second = create("b/c").unwrap();
    second.remove(soon(5)).unwrap();
    first.remove(soon(5)).unwrap();
    assert!(!root.join(&parent).exists());
}

#[test]
#[ignore = "a measurement: cargo test --test cgroup -- --ignored --nocapture how_long"]
fn how_long_a_task_cgroup_takes() {
    let Some(bench) = Bench::new("time") else { return };
    let other = bench.create("other", &Resources::default());
    let resources = Resources {
        cpu_shares: 500,
        memory: MemoryLimits { hard_bytes: Some(64 * MIB), soft_bytes: None },
        ..Resources::default()
    };
    let (mut create, mut kill, mut remove) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..200 {
        let start = Instant::now();
        let task = bench.create("t", &resources);
        create.push(start.elapsed());
        let start = Instant::now();
        task.kill_all(soon(5)).unwrap();
        kill.push(start.elapsed());
        let start = Instant::now();
        task.remove(soon(5)).unwrap();
        remove.push(start.elapsed());
    }
    for (what, mut times) in [("create", create), ("kill of nothing", kill), ("remove", remove)] {
        times.sort_unstable();
        eprintln!("{what}: median {:?}, 90th percentile {:?}", times[100], times[180]);
    }
    other.remove(soon(5)).unwrap();
}

/// Which of two devices a process in the cgroup can open, how.
fn openable(task: &TaskCgroup) -> String {
    let script = "read go; for d in null kmsg; do (: < /dev/$d) && echo r $d; (: >> /dev/$d) && echo w $d; done";
    let mut shell = Command::new("sh");
    let child = shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = child.spawn().unwrap();
    task.join(Pid::from_child(&child)).unwrap();
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().replace('\n', ", ")
}

fn device_rules(bench: &Bench) {
    let char = |major, minor, access| DeviceRule { kind: DeviceKind::Char, major: Some(major), minor, access };
    let task = bench.create("task", &Resources::default());
    let everything = "r null, w null, r kmsg, w kmsg";
    assert_eq!(openable(&task), everything, "without rules");
    task.set_devices(&[char(1, Some(3), DeviceAccess::ALL)]).unwrap();
    assert_eq!(openable(&task), "r null, w null", "one rule");
    task.set_devices(&[char(1, Some(11), DeviceAccess::READ), char(1, Some(3), DeviceAccess::WRITE)]).unwrap();
    assert_eq!(openable(&task), "w null, r kmsg", "other rules in their place");
    task.set_devices(&[char(1, None, DeviceAccess::READ)]).unwrap();
    assert_eq!(openable(&task), "r null, r kmsg", "any minor number");
    task.set_devices(&[]).unwrap();
    assert_eq!(openable(&task), "", "no rule at all");
    for _ in 0..100 {
        task.set_devices(&[char(1, Some(3), DeviceAccess::ALL)]).unwrap();
    }
    // A task that comes into what a killed executor left has no rules of the earlier one.
    assert_eq!(openable(&bench.create("task", &Resources::default())), everything, "taken over");
    task.remove(soon(5)).unwrap();
}

#[test]
fn b2_device_rules_hold_and_are_replaced() {
    let Some(bench) = Bench::new("devices") else { return };
    device_rules(&bench);
    bench.nothing_left();
    // A hybrid machine can show the other regime as well.
    let unified = Path::new(ROOT).join("unified");
    if bench.fs.regime() == Regime::V1 && unified.join("cgroup.procs").exists() {
        let both = Bench { fs: CgroupFs::v2(&unified).unwrap(), parent: bench.path("unified") };
        device_rules(&both);
        both.nothing_left();
    }
}

/// The kernel is asked by a thread that may not: on v2 that is told apart from a failure, so that a task can run without.
#[test]
fn b2_device_programs_need_a_privilege() {
    let Some(bench) = Bench::new("devices-no-privilege") else { return };
    let unified = Path::new(ROOT).join("unified");
    let fs = match bench.fs.regime() {
        Regime::V2 => bench.fs.clone(),
        _ if unified.join("cgroup.procs").exists() => CgroupFs::v2(&unified).unwrap(),
        _ => return println!("SKIP: b2_device_programs_need_a_privilege: no unified tree"),
    };
    let task = TaskCgroup::create(&fs, &bench.path("task"), &Resources::default()).unwrap();
    let powerless = || {
        caps::clear(None, caps::CapSet::Effective).unwrap();
        task.set_devices(&[])
    };
    let refused = std::thread::scope(|scope| scope.spawn(powerless).join().unwrap());
    assert!(matches!(refused, Err(Error::NoDeviceRules(_))), "{refused:?}");
    task.set_devices(&[]).unwrap();
    task.remove(soon(5)).unwrap();
}

#[test]
fn b2_devices_of_a_given_folder_are_left_alone() {
    let Some(bench) = Bench::new("devices-given") else { return };
    let host = bench.create("host", &Resources::default());
    let mut resources = Resources::default();
    if bench.fs.regime() == Regime::V2 {
        resources.cgroup_v2_override = Some(bench.path("host"));
    } else {
        resources.cgroup_v1_override = [("devices".to_owned(), bench.path("host"))].into();
    }
    let given = bench.create("task", &resources);
    given.set_devices(&[]).unwrap();
    assert!(openable(&host).contains("r kmsg"));
    host.remove(soon(5)).unwrap();
    bench.nothing_left();
}

/// C1: what a container engine makes below goes with its parents, also in a unified tree beside those of v1; a parent that was there
/// before stays.
#[test]
fn c1_parents_of_an_engines_cgroup_are_removed() {
    let Some(bench) = Bench::new("engine") else { return };
    let path = bench.path("task");
    let unified = bench.fs.unified_beside().unwrap();
    let trees = || bench.fs.hierarchies().chain(unified.iter().flat_map(CgroupFs::hierarchies));
    let tops: Vec<PathBuf> = trees().map(|tree| tree.mount_point.join(&bench.parent)).collect();
    let destroy = || TaskCgroup::destroy_at(&bench.fs, &path, Instant::now() + Duration::from_secs(10)).unwrap();
    let engine = || {
        for tree in trees() {
            std::fs::create_dir(tree.mount_point.join(&path).join("container")).unwrap();
        }
    };

    TaskCgroup::make_for_engine(&bench.fs, &path).unwrap();
    // Nothing new for the second one.
    TaskCgroup::make_for_engine(&bench.fs, &path).unwrap();
    engine();
    destroy();
    assert!(tops.iter().all(|top| !top.exists()), "{tops:?}");

    for top in &tops {
        std::fs::create_dir(top).unwrap();
    }
    TaskCgroup::make_for_engine(&bench.fs, &path).unwrap();
    engine();
    destroy();
    assert!(trees().all(|tree| !tree.mount_point.join(&path).exists()));
    for top in &tops {
        std::fs::remove_dir(top).unwrap();
    }
}
