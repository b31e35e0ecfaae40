//! What holds whichever cgroups a machine has: how a task's end is told, what it is charged for and measured at, where it is
//! put, also by a plain user, and new limits while it runs (B1, B2). Real executors, the real binary, real load.
//! `AGENTBIN_FULL=1` runs the full counts.

#[path = "support/harness.rs"]
mod harness;
#[path = "support/task.rs"]
mod task;
#[path = "support/world.rs"]
mod world;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use agentbin::cgroup::{Regime, TaskCgroup};
use agentbin::executor::{CpuQuota, Executor as _, ExecutorError, NewLimits};
use agentbin::plugin::{Launch, Program, role_environment};
use agentbin::spec::{CpuField, ExitResult, LaunchSpec, MemoryField, MemoryLimits, Resources, TaskStats};
use harness::{block_on, eventually, is_alive, run, tests};
use rustix::process::Pid;
use task::{Task, cgroups, full, nap, slower};
use world::{World, batch, plain_user, wait_for_text};

const MIB: u64 = 1 << 20;
const BOTH: [bool; 2] = [false, true];

fn main() -> ExitCode {
    agentbin::init();
    if !rustix::process::geteuid().is_root() {
        // What is left without root, in a cgroup that was given to this user.
        return match given() {
            Some(base) => {
                println!("a plain user in a cgroup below {}", base.display());
                run(tests![c2_a_plain_user_has_limits_in_the_cgroup_that_he_was_given])
            }
            None => harness::skip("regime", "needs root, or a cgroup of one's own (scripts/guest --user tester)"),
        };
    }
    run(tests![
        c1_node_status_tells_the_regime,
        b7_figures_are_those_of_the_load,
        b7_pressure_is_told_where_it_is_measured,
        b1_a_core_file_is_told,
        b1_b2_limits_of_a_running_task_change,
        b1_b2_limits_that_cannot_be_are_refused_and_nothing_changes,
        b6_who_flees_by_forking_is_caught_without_a_cgroup,
        c2_memory_kills_and_plain_kills_are_told_apart,
        c2_a_task_of_8_mib_starts_and_pays_for_nothing_of_ours,
        c2_our_file_is_in_memory_before_a_task_could_be_charged_for_it,
        c2_shares_of_a_huge_node_are_in_proportion,
        c2_raw_exec_joins_the_cgroup_that_it_names,
        c2_tasks_are_below_the_cgroup_that_the_operator_names,
        c4_cores_are_those_of_the_cgroup_that_the_operator_names,
        c2_a_plain_user_has_limits_below_a_delegated_cgroup,
        n5_gc_leaves_a_look_alike_alone,
    ])
}

/// The directory of a cgroup in the tree of `controller`.
fn folder(cgroup: &Path, controller: &str) -> PathBuf {
    let cgroups = cgroups();
    let tree = cgroups.hierarchies().find(|h| cgroups.regime() == Regime::V2 || h.has(controller)).unwrap();
    tree.mount_point.join(cgroup)
}

fn shell(spec: &mut LaunchSpec, script: &str) {
    "/bin/sh".clone_into(&mut spec.command);
    spec.args = vec!["-c".to_owned(), script.replace("sleep 1000", &format!("sleep {}", nap()))];
}

/// C1, C4, N8: what an agent publishes is what is there, by Nomad's names.
fn c1_node_status_tells_the_regime() {
    let world = World::new();
    let data_dir = world.data_dir();
    let status = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(["node", "status", "--data-dir", data_dir.to_str().unwrap()]).args(args);
        let out = command.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let json: serde_json::Value = serde_json::from_str(&status(&["--json"])).unwrap();
    let attribute = |name: &str| json["Attributes"][name].as_str();
    let expected = match cgroups().regime() {
        Regime::V1 => [Some("1"), Some("v1")],
        Regime::V2 => [Some("2"), Some("v2")],
        Regime::Off => [None, None],
    };
    assert_eq!([attribute("os.cgroups.version"), attribute("unique.cgroups.version")], expected);
    let number = |name: &str| attribute(name).unwrap_or_else(|| panic!("no {name}: {json}")).parse::<u64>().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(number("cpu.numcores"), cores);
    // All, unless somebody has narrowed the cgroup above the tasks.
    assert!((1..=cores).contains(&number("cpu.reservablecores")));
    let listed = json["NodeResources"]["Cpu"]["ReservableCpuCores"].as_array().unwrap().len() as u64;
    assert_eq!(listed, number("cpu.reservablecores"));
    let meminfo = <procfs::Meminfo as procfs::Current>::current().unwrap();
    assert_eq!(number("memory.totalbytes"), meminfo.mem_total);
    let uname = rustix::system::uname();
    assert_eq!(attribute("kernel.name"), Some("linux"));
    assert_eq!(attribute("kernel.version"), Some(uname.release().to_str().unwrap()));
    assert_eq!(attribute("unique.hostname"), json["Name"].as_str());
    let data = rustix::fs::statvfs(&data_dir).unwrap();
    assert_eq!(number("unique.storage.bytestotal"), data.f_blocks * data.f_frsize);
    assert!(number("unique.storage.bytesfree") <= number("unique.storage.bytestotal"), "{json}");
    for name in ["nomad.version", "os.signals", "unique.storage.volume"] {
        assert!(attribute(name).is_some_and(|value| !value.is_empty()), "no {name}: {json}");
    }
    for driver in ["exec", "raw_exec"] {
        assert_eq!(attribute(&format!("driver.{driver}")), Some("1"), "{json}");
        assert_eq!(json["Drivers"][driver]["Healthy"], true, "{json}");
    }
    // A driver that is not there says so, and has no attribute.
    let java = json["Drivers"]["java"]["Detected"].as_bool().unwrap();
    assert_eq!(attribute("driver.java").is_some(), java, "{json}");
    let text = status(&[]);
    assert!(text.contains("os.cgroups.version") && text.contains(json["ID"].as_str().unwrap()), "{text}");
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [["Class", "<none>"], ["Region", "global"], ["kernel.name", "linux"]] {
        assert!(rows.iter().any(|found| *found == row), "{row:?}: {text}");
    }
    // And a job file can refer to it.
    let script = r#"["-c", "echo ${attr.os.cgroups.version} ${attr.cpu.reservablecores}"]"#;
    let out = world.run_text(&batch("raw_exec", "/bin/sh", script), &["--quiet"]);
    let expected =
        format!("{} {}\n", expected[0].unwrap_or("${attr.os.cgroups.version}"), number("cpu.reservablecores"));
    assert_eq!(out.stdout, expected, "{out:?}");
    world.assert_clean();
}

/// Burns one second of CPU, mostly its own, holding 50 MiB; then waits.
const LOAD: &str = r#"$| = 1; my $x = "x" x (50 << 20); my $y = 0;
    while ((times)[0] + (times)[1] < 1.0) { $y += $_ for 1 .. 10000 } print "done @{[(times)[0] + (times)[1]]}\n"; sleep NAP;"#;

fn b7_figures_are_those_of_the_load() {
    block_on(async {
        // With its cgroup's figures, with those of its processes in a cgroup, and with those of its descendants.
        for (isolated, limited) in [(true, true), (false, true), (false, false), (true, false)] {
            let task = Task::with(isolated, |spec| {
                "/usr/bin/perl".clone_into(&mut spec.command);
                spec.args = vec!["-e".to_owned(), LOAD.replace("NAP", &nap())];
                spec.resource_limits = limited;
                if !limited {
                    spec.cgroup = PathBuf::new();
                }
            })
            .await;
            let output = task.dir.path().join("alloc/logs/task.stdout.0");
            let earlier = cpu_seconds(task.pid);
            let first = task.executor.stats().await.unwrap();
            assert!(first.total.cpu.percent.abs() < f64::EPSILON, "the first sample: {:?}", first.total.cpu);
            // What it used before the first sample is not a part of the second. The sample lies between two looks.
            let begun = [earlier, cpu_seconds(task.pid)];
            eventually("the load", || std::fs::read_to_string(&output).is_ok_and(|t| t.starts_with("done"))).await;
            let second = task.executor.stats().await.unwrap();
            let [most, least] = begun.map(|begun| cpu_seconds(task.pid) - begun);
            let wall = second.time.duration_since(first.time).unwrap().as_secs_f64();
            let told = second.total.cpu.percent / 100.0 * wall;
            println!(
                "isolated {isolated}, limited {limited}: {told:.3} s told of {least:.3} to {most:.3} s in {wall:.2} s"
            );
            // Processes are counted in ticks of 10 ms, each of two times.
            assert!(told > least * 0.9 - 0.05 && told < most * 1.1 + 0.05, "told {told}, used {least} to {most}");
            let parts = second.total.cpu.user_mode + second.total.cpu.system_mode;
            assert!((parts - second.total.cpu.percent).abs() < 0.1, "{:?}", second.total.cpu);
            let memory = &second.total.memory;
            // Of a cgroup it is anonymous memory, of processes all that they have mapped.
            let status = procfs::process::Process::new(task.pid).and_then(|p| p.status()).unwrap();
            let kib = if isolated && limited { status.rssanon } else { status.vmrss };
            let resident = kib.unwrap() * 1024;
            println!("    memory: {} told of {resident}", memory.rss);
            assert!(memory.rss > 50 * MIB && memory.rss.abs_diff(resident) < MIB, "{memory:?}, {resident}");
            assert_eq!(memory.swap, 0);
            check_measured(&second, isolated && limited);
            // It rests: nothing is told any more.
            eventually("rest", || state(task.pid) == Some('S')).await;
            let _ = task.executor.stats().await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let rest = task.executor.stats().await.unwrap();
            assert!(rest.total.cpu.percent < 5.0, "{:?}", rest.total.cpu);
            task.end().await;
        }
    });
}

fn check_measured(stats: &TaskStats, by_cgroup: bool) {
    use CpuField::{Percent, SystemMode, ThrottledPeriods, ThrottledTime, UserMode};
    use MemoryField::{Cache, KernelMaxUsage, KernelUsage, MaxUsage, Rss, Swap, Usage};
    let (cpu, memory) = (&stats.total.cpu.measured, &stats.total.memory.measured);
    let has = |all: &[CpuField]| all.iter().all(|field| cpu.contains(field)) && cpu.len() == all.len();
    if !by_cgroup {
        assert!(has(&[SystemMode, UserMode, Percent]), "{cpu:?}");
        assert_eq!(*memory, [Rss, Swap]);
        return;
    }
    assert!(has(&[SystemMode, UserMode, ThrottledPeriods, ThrottledTime, Percent]), "{cpu:?}");
    let expected: &[MemoryField] = match cgroups().regime() {
        Regime::V2 => &[Rss, Cache, Swap, Usage],
        _ => &[Rss, Cache, Swap, Usage, MaxUsage, KernelUsage, KernelMaxUsage],
    };
    assert!(expected.iter().all(|field| memory.contains(field)), "{memory:?}");
}

#[expect(clippy::cast_precision_loss, reason = "some hundred ticks")]
fn cpu_seconds(pid: i32) -> f64 {
    let stat = procfs::process::Process::new(pid).and_then(|p| p.stat()).unwrap();
    (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64
}

fn state(pid: i32) -> Option<char> {
    procfs::process::Process::new(pid).and_then(|p| p.stat()).ok().map(|s| s.state)
}

/// PSI: a task that may have a twentieth of a core waits for it most of the time.
fn b7_pressure_is_told_where_it_is_measured() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::with(isolated, |spec| {
                shell(spec, "while :; do :; done");
                spec.resources.cpu_quota_us = Some((5_000, 100_000));
            })
            .await;
            let read = async || task.executor.stats().await.unwrap().pressure;
            if cgroups().regime() != Regime::V2 || !Path::new("/proc/pressure/cpu").exists() {
                println!("no pressure figures: {:?}", cgroups().regime());
                assert_eq!(read().await, agentbin::spec::Pressures::default());
                task.end().await;
                continue;
            }
            let deadline = Instant::now() + Duration::from_mins(1) * slower();
            loop {
                let pressure = read().await;
                let cpu = pressure.cpu.expect("pressure of cpu");
                let kernel = std::fs::read_to_string(folder(&task.cgroup, "").join("cpu.pressure")).unwrap();
                if cpu.some.total_us > 100_000 && cpu.some.avg10 > 1.0 {
                    println!("isolated {isolated}: {cpu:?}");
                    assert!(pressure.memory.is_some() && pressure.io.is_some(), "{pressure:?}");
                    // The kernel counts on: what was told before is not more than it says now.
                    let total = kernel.lines().next().unwrap().rsplit('=').next().unwrap().parse::<u64>().unwrap();
                    assert!(cpu.some.total_us <= total, "{cpu:?}: {kernel}");
                    break;
                }
                assert!(Instant::now() < deadline, "no pressure: {cpu:?}: {kernel}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            task.end().await;
        }
    });
}

async fn ended(task: &Task) -> ExitResult {
    let wait = tokio::time::timeout(Duration::from_mins(2) * slower(), task.executor.wait());
    wait.await.expect("the end of the task in time").unwrap().exit.unwrap()
}

/// The flag is the kernel's: the same program, started by this test, is told to have dumped one or not.
fn b1_a_core_file_is_told() {
    block_on(async {
        for core in [true, false] {
            let script = format!("cd \"$1\"; ulimit -c {}; kill -SEGV $$", if core { "unlimited" } else { "0" });
            let dir = tempfile::tempdir().unwrap();
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
            let place = dir.path().to_str().unwrap();
            let oracle = Command::new("/bin/sh").args(["-c", &script, "sh", place]).status().unwrap();
            assert_eq!(oracle.signal(), Some(libc::SIGSEGV));
            let task = Task::with(false, |spec| {
                shell(spec, &script);
                spec.args.extend(["sh".to_owned(), place.to_owned()]);
                spec.user = String::new();
            })
            .await;
            let exit = ended(&task).await;
            assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (139, libc::SIGSEGV, false));
            assert_eq!(exit.core_dumped, oracle.core_dumped(), "core {core}");
            println!("core {core}: dumped {}", exit.core_dumped);
            task.end().await;
        }
    });
}

/// Processes that are another one whenever somebody looks: each forks and ends. In a cgroup they are frozen first.
fn b6_who_flees_by_forking_is_caught_without_a_cgroup() {
    block_on(async {
        let mark = format!("flees-{}", std::process::id());
        let fleeing = || {
            let all = procfs::process::all_processes().unwrap().flatten();
            all.filter(|p| p.cmdline().is_ok_and(|c| c.last() == Some(&mark))).map(|p| p.pid).collect::<Vec<_>>()
        };
        for (limited, many) in [(true, 4), (false, 1), (false, 4)] {
            let task = Task::with(false, |spec| {
                "/usr/bin/perl".clone_into(&mut spec.command);
                let script = format!(
                    "$| = 1; for (1 .. {many}) {{ if (!fork) {{ setpgrp; while (1) {{ exit if fork }} }} }} print \"ready\\n\"; sleep {}",
                    nap()
                );
                spec.args = vec!["-e".to_owned(), script, mark.clone()];
                spec.resource_limits = limited;
                if !limited {
                    spec.cgroup = PathBuf::new();
                }
            })
            .await;
            let output = task.dir.path().join("alloc/logs/task.stdout.0");
            eventually("ready", || std::fs::read_to_string(&output).is_ok_and(|t| t.contains("ready"))).await;
            let began = Instant::now();
            task.executor.shutdown("", Duration::ZERO).await.unwrap();
            println!("cgroup {limited}, {many} that flee: caught after {:?}", began.elapsed());
            assert_eq!(fleeing(), Vec::<i32>::new(), "cgroup {limited}, {many}");
            task.end().await;
        }
    });
}

/// How a task comes to its end, and whether the kernel killed for memory in it.
const ENDS: [(&str, &str, bool); 7] = [
    ("its main process is killed for memory", "exec tail /dev/zero", true),
    ("a process of it is", "(exec tail /dev/zero); exit 3", true),
    ("killed from outside", "echo ready; exec sleep 1000", false),
    (
        "killed from outside, its memory full of files",
        "head -c $SIZE /dev/zero > $PLACE; echo ready; exec sleep 1000",
        false,
    ),
    ("a process of it kills another", "sh -c 'kill -9 $$'; exit 137", false),
    ("it exits as if killed", "exit 137", false),
    ("a session of it is killed for memory, then it from outside", "echo ready; exec sleep 1000", false),
];

fn c2_memory_kills_and_plain_kills_are_told_apart() {
    // Of each sort.
    let full = full(1000);
    let each = full.unwrap_or(20 / slower().min(4) as usize);
    let (mut right, mut seen) = ([0u32; 2], [0u32; ENDS.len()]);
    let ends = |oom: bool| (0..ENDS.len()).filter(move |at| ENDS[*at].2 == oom);
    block_on(async {
        for number in 0..each {
            for oom in BOTH {
                let choice = ends(oom).cycle().nth(number).unwrap();
                let isolated = number / 3 % 2 == 0;
                let took = one_end(choice, isolated).await;
                if full.is_none() {
                    println!("{}, isolated {isolated}: {took:?}", ENDS[choice].0);
                }
                right[usize::from(oom)] += 1;
                seen[choice] += 1;
            }
            if full.is_some() && number % 50 == 49 {
                println!("{} of each told right", number + 1);
            }
        }
    });
    println!("told right: {} kills for memory, {} other ends; {seen:?}", right[1], right[0]);
}

/// Returns how long it took.
async fn one_end(choice: usize, isolated: bool) -> Duration {
    let (what, script, oom) = ENDS[choice];
    let began = Instant::now();
    let task = Task::with(isolated, |spec| {
        shell(spec, script);
        spec.resources.memory = MemoryLimits { hard_bytes: Some(16 * MIB), soft_bytes: None };
        let place =
            if isolated { "/local/file".to_owned() } else { spec.task_dir.join("local/file").display().to_string() };
        // More than its limit, where the kernel can write it to a disk.
        let disk = rustix::fs::statfs(&spec.task_dir).unwrap().f_type;
        let in_memory = disk == libc::TMPFS_MAGIC || disk == 0x8584_58f6;
        spec.env.extend([format!("PLACE={place}"), format!("SIZE={}", if in_memory { 4_000_000 } else { 40_000_000 })]);
    })
    .await;
    if script.contains("ready") {
        let output = task.dir.path().join("alloc/logs/task.stdout.0");
        let is_ready = || std::fs::read_to_string(&output).is_ok_and(|t| t.contains("ready"));
        let in_time =
            tokio::time::timeout(Duration::from_secs(55) * slower(), eventually("ready", is_ready)).await.is_ok();
        assert!(in_time, "{what}, isolated {isolated}: never ready: {}", memory_of(&task));
        if what.contains("session") {
            let script = "echo 1000 > /proc/self/oom_score_adj; exec tail /dev/zero";
            assert_eq!(task.run(script, false).await.code, 137, "{what}");
            assert!(is_alive(task.pid), "{what}");
        }
        task.executor.signal(libc::SIGKILL).await.unwrap();
    }
    let exit = ended(&task).await;
    let expected = match choice {
        1 => (3, 0),
        4 | 5 => (137, 0),
        _ => (137, 9),
    };
    assert_eq!((exit.exit_code, exit.signal), expected, "{what}, isolated {isolated}: {exit:?}");
    assert_eq!(exit.oom_killed, oom, "{what}, isolated {isolated}: {exit:?}");
    task.end().await;
    began.elapsed()
}

/// What a task does and what the kernel says of its memory, for a message.
fn memory_of(task: &Task) -> String {
    let memory = folder(&task.cgroup, "memory");
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_else(|e| e.to_string());
    let names = ["memory.oom_control", "memory.failcnt", "memory.stat", "memory.events"];
    let accounts = names.map(|name| format!("{name}: {}", read(memory.join(name)).trim_end()));
    let processes = read(memory.join("cgroup.procs"));
    let process = |pid: &str| {
        let [stat, wchan, stack] = ["stat", "wchan", "stack"].map(|name| read(Path::new("/proc").join(pid).join(name)));
        format!("process {}, waits in {wchan}\n{stack}", stat.trim_end())
    };
    [accounts.join("\n"), processes.lines().map(process).collect()].join("\n")
}

/// What a cgroup is charged for, in bytes: anonymous memory, files.
fn charged(cgroup: &Path) -> [u64; 2] {
    let text = std::fs::read_to_string(folder(cgroup, "memory").join("memory.stat")).unwrap();
    let keys = if cgroups().regime() == Regime::V2 { ["anon", "file"] } else { ["rss", "cache"] };
    keys.map(|key| {
        let line = text.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')).unwrap();
        line.parse::<u64>().unwrap()
    })
}

/// The anonymous memory that a process has mapped, in bytes.
fn anonymous(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn procs(cgroup: &Path, controller: &str) -> Vec<i32> {
    let text = std::fs::read_to_string(folder(cgroup, controller).join("cgroup.procs")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

fn command(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// A child that does not outlive its test.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// To the byte: what is charged to the cgroup of a task that has just begun is what the task has mapped. Nomad lets no job
/// ask for less than 10 MiB.
fn c2_a_task_of_8_mib_starts_and_pays_for_nothing_of_ours() {
    block_on(async {
        let mut tasks = Vec::new();
        // A start takes 1.3 MiB on v2, where the kernel charges in lots of 64 pages for each CPU.
        let small = if cgroups().regime() == Regime::V2 { 4 } else { 1 };
        for (isolated, mib) in [(false, 8), (true, 8), (false, small), (true, small)] {
            let limits = MemoryLimits { hard_bytes: Some(mib * MIB), soft_bytes: None };
            tasks.push((Task::with(isolated, |spec| spec.resources.memory = limits).await, mib));
        }
        for (task, mib) in &tasks {
            let isolated = task.isolated;
            eventually("sleep", || command(task.pid) == "sleep" && state(task.pid) == Some('S')).await;
            let v2 = cgroups().regime() == Regime::V2;
            let read = |name: &str| std::fs::read_to_string(folder(&task.cgroup, "memory").join(name));
            let limit = read(if v2 { "memory.max" } else { "memory.limit_in_bytes" }).unwrap();
            assert_eq!(limit.trim(), (mib * MIB).to_string());
            // The kernel settles its accounts every two seconds.
            eventually("the same account", || charged(&task.cgroup)[0] == anonymous(task.pid)).await;
            let peak = read(if v2 { "memory.peak" } else { "memory.max_usage_in_bytes" }).unwrap_or_default();
            let kernel = read(if v2 { "memory.stat" } else { "memory.kmem.usage_in_bytes" }).unwrap_or_default();
            let kernel = kernel.lines().find_map(|l| l.strip_prefix("kernel ")).unwrap_or(kernel.trim()).to_owned();
            let [anon, file] = charged(&task.cgroup);
            println!(
                "isolated {isolated}, {mib} MiB: {anon} anonymous, {file} of files, {kernel} of the kernel's, at most {}",
                peak.trim()
            );
            let executor = task.executor_pid();
            for hierarchy in cgroups().hierarchies() {
                let controller = hierarchy.controllers.first().map_or("", String::as_str);
                assert_eq!(procs(&task.cgroup, controller), [task.pid], "{hierarchy:?}");
            }
            let own = std::fs::read_to_string(format!("/proc/{executor}/cgroup")).unwrap();
            assert!(!own.contains(task.cgroup.to_str().unwrap()), "the executor is in the task's cgroup: {own}");
        }
        let (last, _) = tasks.pop().unwrap();
        for (mut task, _) in tasks {
            task.executor.shutdown("", Duration::ZERO).await.unwrap();
            task.client.take().unwrap().kill().await;
        }
        last.end().await;
    });
}

/// An executor has our file in memory before a shim of its can be the first to need a page of it, in a task's cgroup.
fn c2_our_file_is_in_memory_before_a_task_could_be_charged_for_it() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).unwrap(); // cargo makes it on the machine that builds
    let dir = tempfile::tempdir_in(folder).unwrap();
    let copy = dir.path().join("agentbin");
    std::fs::copy(env!("CARGO_BIN_EXE_agentbin"), &copy).unwrap();
    let file = std::fs::File::open(&copy).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let resident = || {
        let out =
            Command::new("fincore").args(["--bytes", "--noheadings", "--output", "RES"]).arg(&copy).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap().trim().parse::<u64>().unwrap()
    };
    let before = resident();
    if before > 0 {
        println!("SKIP: c2_our_file_is_in_memory_before_a_task_could_be_charged_for_it: files never leave memory here");
        return;
    }
    let config = serde_json::json!({ "LogFile": dir.path().join("executor.out"), "LogLevel": "debug" });
    block_on(async {
        let launch = Launch {
            args: &["executor".into(), config.to_string().into()],
            env: role_environment(),
            new_session: true,
            socket_dir: Some(dir.path()),
            ..Launch::new(Program::Path(&copy))
        };
        let client = launch.start().await.unwrap();
        let pid = client.process().pid;
        // Started by a descriptor or by a path, it is the same inode that is mapped.
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let of_it = maps.lines().filter(|line| line.ends_with(copy.to_str().unwrap()));
        let mapped: Vec<_> = of_it.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect();
        eventually("all of it in memory", || resident() >= loaded(&mapped)).await;
        println!("{} bytes of {} are in memory", resident(), loaded(&mapped));
        client.kill().await;
    });
}

/// Up to where the lines `from-to mode offset` have a file mapped.
fn loaded(lines: &[String]) -> u64 {
    let number = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let end = |line: &String| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        number(rest.rsplit(' ').next().unwrap()) + number(to) - number(from)
    };
    lines.iter().map(end).max().unwrap()
}

/// What the kernel takes for shares ends at 262144: on a node with more MHz, half of it is half of what the kernel takes.
fn c2_shares_of_a_huge_node_are_in_proportion() {
    block_on(async {
        for (isolated, mhz, shares) in [(true, 524_288, 131_072), (false, 524_288, 131_072), (true, 262_143, 262_144)] {
            let task = Task::on_node(isolated, mhz, |spec| spec.resources.cpu_shares = 262_144).await;
            let (file, expected) = match cgroups().regime() {
                Regime::V2 => ("cpu.weight", agentbin::spec::cpu_weight_from_shares(shares)),
                _ => ("cpu.shares", shares),
            };
            let written = std::fs::read_to_string(folder(&task.cgroup, "cpu").join(file)).unwrap();
            assert_eq!(written.trim(), expected.to_string(), "isolated {isolated}, {mhz} MHz");
            task.end().await;
        }
    });
}

/// Cgroups that a host gives: exactly these are joined, nothing is written there, what the task left is ended, they stay.
fn c2_raw_exec_joins_the_cgroup_that_it_names() {
    let world = World::new();
    let given = PathBuf::from(format!("agentbin-test-{}-given/host", std::process::id()));
    let host = TaskCgroup::create(&cgroups(), &given, &Resources::default()).unwrap();
    let v1 = cgroups().regime() == Regime::V1;
    let name = given.display();
    // Relative and absolute.
    let keys = if v1 {
        vec![format!(
            "cgroup_v1_override = [{{ pids = \"{name}\", memory = \"{}\" }}]",
            folder(&given, "memory").display()
        )]
    } else {
        vec![
            format!("cgroup_v2_override = \"{name}\""),
            format!("cgroup_v2_override = \"{}\"", folder(&given, "").display()),
        ]
    };
    let script = format!("cat /proc/self/cgroup; (setsid sleep {} &); exit 4", nap());
    for key in &keys {
        let job = batch("raw_exec", "/bin/sh", &format!("[\"-c\", \"{script}\"]\n        {key}"));
        let out = world.run_text(&job, &["--quiet"]);
        assert_eq!(out.status, 4, "{out:?}");
        let joined: Vec<&str> = out.stdout.lines().filter(|l| l.ends_with(&format!("/{name}"))).collect();
        assert_eq!(joined.len(), if v1 { 2 } else { 1 }, "{out:?}");
        assert!(!out.stdout.contains("/nomad"), "{out:?}");
        assert!(host.pids().unwrap().is_empty() && host.exists(), "{key}");
        let limit = if v1 { "memory.limit_in_bytes" } else { "memory.max" };
        let limit = std::fs::read_to_string(folder(&given, "memory").join(limit)).unwrap();
        assert_eq!(limit.trim(), if v1 { "9223372036854771712" } else { "max" });
    }
    host.remove(Instant::now() + Duration::from_secs(10)).unwrap();
    // They are not made, and a task does not run elsewhere instead. A v1 controller may be unknown.
    let unknown = v1.then(|| "cgroup_v1_override = [{ pid = \"custom/path\" }]".to_owned());
    for key in keys[..1].iter().chain(&unknown) {
        let job = batch("raw_exec", "/bin/true", &format!("[]\n        {key}"));
        let out = world.run_text(&job, &[]);
        assert!(
            out.status != 0 && out.stderr.contains("unable to configure cgroups: no such file or directory"),
            "{key}: {out:?}"
        );
    }
    world.assert_clean();
}

/// Runs with `--cgroup-parent`: the tasks of every driver, what they are told of it, and what is left.
fn c2_tasks_are_below_the_cgroup_that_the_operator_names() {
    let world = World::new();
    let parent = PathBuf::from(format!("agentbin-test-{}-top/jobs", std::process::id()));
    let script = format!("[\"-c\", \"echo parent $NOMAD_PARENT_CGROUP; echo ready; sleep {}\"]", nap());
    let absolute = folder(&parent, "memory");
    // As Nomad writes it, relative, and as a directory.
    let ways = [Path::new("/").join(&parent), parent.clone(), absolute];
    for (driver, way) in ["raw_exec", "exec", "exec"].into_iter().zip(&ways) {
        let file = world.file("job.nomad.hcl", &batch(driver, "/bin/sh", &script));
        let mut run = world.start(&["--cgroup-parent", way.to_str().unwrap(), file.to_str().unwrap()]);
        wait_for_text(&run.stdout, "ready");
        for hierarchy in cgroups().hierarchies() {
            let inside = hierarchy.mount_point.join(&parent);
            let tasks: Vec<_> = std::fs::read_dir(&inside).unwrap().flatten().map(|e| e.path()).collect();
            let tasks: Vec<_> = tasks.into_iter().filter(|path| path.is_dir()).collect();
            let [task] = &tasks[..] else { panic!("{driver}: {tasks:?} in {}", inside.display()) };
            assert_ne!(std::fs::read_to_string(task.join("cgroup.procs")).unwrap(), "", "{driver}: {}", task.display());
        }
        world::signal(&run.child, "TERM");
        let out = run.finish();
        assert!(out.stdout.contains(&format!("parent {}\n", parent.display())), "{driver}: {out:?}");
        // What was made for it is gone with it.
        for hierarchy in cgroups().hierarchies() {
            let top = hierarchy.mount_point.join(parent.parent().unwrap());
            assert!(!top.exists(), "{driver}: {} is left", top.display());
        }
    }
    for wrong in ["/", "a/../b", "/sys/fs/cgroup/../elsewhere", "/sys/fs/cgroup", "a/cgroup.procs"] {
        let out = world.run_text(&batch("raw_exec", "/bin/true", "[]"), &["--cgroup-parent", wrong]);
        let named = format!("--cgroup-parent {wrong}: ");
        assert!(out.status == 125 && out.stderr.contains(&named), "{wrong:?}: {out:?}");
    }
    world.assert_clean();
}

/// What can be reserved is what that cgroup has; what a killed run had reserved there goes back to those who share.
fn c4_cores_are_those_of_the_cgroup_that_the_operator_names() {
    let cores = std::thread::available_parallelism().unwrap().get();
    if cores < 2 || cgroups().missing_controllers().unwrap().contains(&"cpuset") {
        println!("SKIP: c4_cores_are_those_of_the_cgroup_that_the_operator_names: one core, or no cpuset");
        return;
    }
    let world = World::new();
    let parent = PathBuf::from(format!("agentbin-test-{}-cores", std::process::id()));
    let host = TaskCgroup::create(&cgroups(), &parent, &Resources::default()).unwrap();
    let v2 = cgroups().regime() == Regime::V2;
    let given = parent.to_str().unwrap();
    let cpus = folder(&parent, "cpuset").join("cpuset.cpus");
    let reservable = || {
        let data_dir = world.data_dir();
        let args = ["node", "status", "--json", "--data-dir", data_dir.to_str().unwrap(), "--cgroup-parent", given];
        let out = world.agentbin(&args);
        let json: serde_json::Value = serde_json::from_str(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
        json["Attributes"]["cpu.reservablecores"].as_str().unwrap().to_owned()
    };
    let all = reservable();
    std::fs::write(&cpus, "0").unwrap();
    assert_eq!(reservable(), "1");
    std::fs::write(&cpus, format!("0-{}", cores - 1)).unwrap();
    assert_eq!(reservable(), all);

    let script = format!("[\"-c\", \"echo ready; sleep {}\"]", nap());
    let start = |name: &str, resources: &str| {
        let job = batch("raw_exec", "/bin/sh", &script).replacen("config {", &format!("{resources}\nconfig {{"), 1);
        let file = world.file(name, &job);
        let run = world.start(&["--cgroup-parent", given, file.to_str().unwrap()]);
        wait_for_text(&run.stdout, "ready");
        run
    };
    let mut sharing = start("sharing.nomad.hcl", "");
    let mine = || {
        let tasks = std::fs::read_dir(folder(&parent, "cpuset")).unwrap().flatten().map(|e| e.path());
        let tasks = tasks.filter(|path| path.is_dir()).map(|path| {
            let file = if v2 { "cpuset.cpus.effective" } else { "cpuset.cpus" };
            let cores = std::fs::read_to_string(path.join(file)).unwrap();
            cores.parse::<agentbin::spec::CpuSet>().unwrap().len()
        });
        let mut all: Vec<usize> = tasks.collect();
        all.sort_unstable();
        all
    };
    assert_eq!(mine(), [cores]);
    let mut owning = start("owning.nomad.hcl", "resources {\n cores = 1\n }");
    let divided = mine();
    assert!(divided.contains(&1) && divided.iter().all(|some| *some < cores), "{divided:?}");
    world::signal(&owning.child, "KILL");
    owning.finish();
    let gc = world.agentbin(&["gc"]);
    assert_eq!(gc.status, 0, "{gc:?}");
    assert_eq!(mine(), [cores], "after {gc:?}");
    world::signal(&sharing.child, "TERM");
    sharing.finish();
    // It was there before.
    assert!(host.exists());
    host.remove(Instant::now() + Duration::from_secs(10)).unwrap();
    world.assert_clean();
}

/// The cgroup that was given to this user: above the one that he is in.
fn given() -> Option<PathBuf> {
    let cgroups = cgroups();
    agentbin::cgroup::Delegated::find(&cgroups).ok()??;
    let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = PathBuf::from(text.trim().strip_prefix("0::/")?);
    own.parent().map(Path::to_owned)
}

/// As root: a cgroup is given to a plain user, and a run of his is started in it, alone or beside.
fn c2_a_plain_user_has_limits_below_a_delegated_cgroup() {
    if cgroups().regime() != Regime::V2 {
        println!("v1: a cgroup cannot be delegated");
        return;
    }
    let world = World::new();
    let user = plain_user(5);
    for alone in BOTH {
        let base = PathBuf::from(format!("agentbin-test-{}-delegated", std::process::id()));
        // Its parents get the controllers that its own have.
        let inner = TaskCgroup::create(&cgroups(), &base.join("command"), &Resources::default()).unwrap();
        std::fs::write(folder(&base, "").join("cgroup.subtree_control"), "-cpu -memory -pids -cpuset -io").unwrap();
        for path in [folder(&base, ""), folder(&base.join("command"), "")] {
            for name in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
                std::os::unix::fs::chown(path.join(name), Some(user), Some(user)).unwrap();
            }
        }
        let start = folder(&if alone { base.clone() } else { base.join("command") }, "");
        // Emulated: each driver once.
        let drivers: &[&str] = match (slower() > 1, alone) {
            (false, _) => &["raw_exec", "exec"],
            (true, true) => &["exec"],
            (true, false) => &["raw_exec"],
        };
        for driver in drivers {
            plain_user_run(&base, driver, |file| {
                let plain = world.command_as(user, &["run"]);
                let script = format!(
                    "echo $$ > {}/cgroup.procs && exec setpriv --reuid={user} --regid={user} --clear-groups \"$@\"",
                    start.display()
                );
                let mut command = Command::new("/bin/sh");
                command.args(["-c", &script, "sh"]).arg(plain.get_program()).args(plain.get_args()).arg(file);
                command.stdin(Stdio::null()).env_clear();
                command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
                command
            });
        }
        let left: Vec<_> =
            std::fs::read_dir(folder(&base, "")).unwrap().flatten().filter(|e| e.path().is_dir()).collect();
        assert_eq!(left.len(), 1, "alone {alone}: {left:?}");
        inner.remove(Instant::now() + Duration::from_secs(20) * slower()).unwrap();
        let _ = std::fs::remove_dir(folder(&base, ""));
        assert!(!folder(&base, "").exists());
    }
    world.assert_clean();
}

/// As a plain user: in the cgroup that he is in.
fn c2_a_plain_user_has_limits_in_the_cgroup_that_he_was_given() {
    let base = given().unwrap();
    let data = tempfile::tempdir().unwrap();
    for driver in ["raw_exec", "exec"] {
        plain_user_run(&base, driver, |file| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
            command.args(["run", "--data-dir"]).arg(data.path()).arg(file).stdin(Stdio::null());
            command.env("XDG_RUNTIME_DIR", data.path());
            command
        });
    }
}

/// A run of a plain user in `base`: its task has its limits, is killed as one with what it left, and for memory.
fn plain_user_run(base: &Path, driver: &str, start: impl Fn(&Path) -> Command) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let job = |script: &str| {
        let file = dir.path().join("job.nomad.hcl");
        let text = batch(driver, "/bin/sh", &format!("[\"-c\", {script:?}]"));
        let limits = "resources {\n cpu = 200\n memory = 32\n }\n      config {";
        std::fs::write(&file, text.replacen("config {", limits, 1)).unwrap();
        file
    };
    let scopes = || -> Vec<PathBuf> {
        let tasks = std::fs::read_dir(folder(&base.join("nomad.slice"), "")).into_iter().flatten().flatten();
        tasks.map(|e| e.path()).filter(|p| p.is_dir()).collect()
    };

    let mut run = World::start_command(start(&job(&format!("(setsid sleep {0} &); echo ready; sleep {0}", nap()))));
    wait_for_text(&run.stdout, "ready");
    let stderr = String::from_utf8_lossy(&run.stderr.lock().unwrap()).into_owned();
    assert!(!stderr.contains("warning"), "{driver}: {stderr}");
    let [scope] = &scopes()[..] else { panic!("{driver}: {:?} in {}", scopes(), base.display()) };
    let read = |name: &str| std::fs::read_to_string(scope.join(name)).unwrap().trim().to_owned();
    assert_eq!(read("memory.max"), (32 * MIB).to_string());
    assert_eq!(read("cpu.weight"), agentbin::spec::cpu_weight_from_shares(200).to_string());
    let pids: Vec<i32> = read("cgroup.procs").lines().map(|l| l.parse().unwrap()).collect();
    assert!(pids.len() >= 2, "{driver}: {pids:?}");
    world::signal(&run.child, "TERM");
    let out = run.finish();
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{driver}: {out:?}");
    assert!(scopes().is_empty(), "{driver}: {:?}: {out:?}", scopes());

    let out = World::start_command(start(&job("exec tail /dev/zero"))).finish();
    assert!(out.status == 137 && out.stderr.contains("OOM Killed"), "{driver}: {out:?}");
    assert!(scopes().is_empty(), "{driver}: {:?}", scopes());
    println!("{driver} in {}: limits, kill and out of memory", base.display());
}

/// What another program made under the names that ours have is not touched: there is no record of it.
fn n5_gc_leaves_a_look_alike_alone() {
    let world = World::new();
    let parent = if cgroups().regime() == Regime::V2 { "nomad.slice" } else { "nomad" };
    let unit = if cgroups().regime() == Regime::V2 { ".scope" } else { "" };
    let stranger = uuid::Uuid::new_v4();
    let names = [format!("{stranger}-web{unit}"), format!("{stranger}.web{unit}")];
    let make =
        |name: &String| TaskCgroup::create(&cgroups(), &Path::new(parent).join(name), &Resources::default()).unwrap();
    let strange: Vec<TaskCgroup> = names.iter().map(make).collect();
    let mut inside: Vec<Owned> = Vec::new();
    for cgroup in &strange {
        let child = Owned(Command::new("/bin/sleep").arg(nap()).stdin(Stdio::null()).spawn().unwrap());
        cgroup.join(Pid::from_child(&child.0)).unwrap();
        inside.push(child);
    }
    for driver in ["exec", "raw_exec"] {
        let script = format!(r#"["-c", "echo ready; (setsid sleep {0} &) ; sleep {0}"]"#, nap());
        let mut run = world.start_text(&batch(driver, "/bin/sh", &script));
        wait_for_text(&run.stdout, "ready");
        let folders = || -> Vec<String> {
            let all = std::fs::read_dir(folder(Path::new(parent), "memory")).unwrap().flatten();
            all.filter(|e| e.path().is_dir()).map(|e| e.file_name().to_string_lossy().into_owned()).collect()
        };
        let records: Vec<String> = std::fs::read_dir(world.data_dir().join("alloc"))
            .unwrap()
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
            .collect();
        let ours: Vec<String> = folders().into_iter().filter(|f| records.iter().any(|id| f.starts_with(id))).collect();
        assert_eq!((records.len(), ours.len()), (1, 1), "{records:?} {:?}", folders());
        world::signal(&run.child, "KILL");
        run.finish();
        let shown = world.agentbin(&["gc", "--dry-run"]);
        assert!(shown.stdout.contains("would remove") && shown.stdout.contains("cgroups 1"), "{shown:?}");
        assert!(shown.stdout.contains(&records[0]) && !shown.stdout.contains(&stranger.to_string()), "{shown:?}");
        let gc = world.agentbin(&["gc"]);
        assert_eq!(gc.status, 0, "{gc:?}");
        assert!(!folders().contains(&ours[0]), "{driver}: {:?}", folders());
        for (cgroup, process) in strange.iter().zip(&mut inside) {
            assert!(cgroup.exists() && process.0.try_wait().unwrap().is_none(), "{driver}: a stranger was touched");
            assert_eq!(cgroup.pids().unwrap(), [i32::try_from(process.0.id()).unwrap()]);
        }
    }
    drop(inside);
    for cgroup in &strange {
        cgroup.remove(Instant::now() + Duration::from_secs(10)).unwrap();
    }
    world.assert_clean();
}

/// What the task's cgroup says: shares or weight, memory, reservation, cores; `None` where there is no such controller.
fn limits(task: &Task) -> [Option<String>; 4] {
    let files = match cgroups().regime() {
        Regime::V2 => ["cpu.weight", "memory.max", "memory.low", "cpuset.cpus"],
        _ => ["cpu.shares", "memory.limit_in_bytes", "memory.soft_limit_in_bytes", "cpuset.cpus"],
    };
    let read = |file: &str| {
        let controller = file.split('.').next().unwrap();
        let text = std::fs::read_to_string(folder(&task.cgroup, controller).join(file)).ok()?;
        Some(text.trim().to_owned())
    };
    files.map(read)
}

/// `UpdateResources`, also twice, and what it does not say.
fn b1_b2_limits_of_a_running_task_change() {
    block_on(async {
        for isolated in BOTH {
            let task = Task::with(isolated, |spec| {
                spec.resources.cpu_shares = 100;
                spec.resources.pids_max = Some(77);
            })
            .await;
            let v2 = cgroups().regime() == Regime::V2;
            let weight = |v1: &str, weight: &str| Some(if v2 { weight } else { v1 }.to_owned());
            let bytes = |mib: u64| Some((mib * MIB).to_string());
            let [shares, memory, low, cores] = limits(&task);
            assert_eq!((shares, memory), (weight("100", "17"), bytes(256)));
            let pids = || std::fs::read_to_string(folder(&task.cgroup, "pids").join("pids.max")).unwrap();
            assert_eq!(pids().trim(), "77");

            let new = NewLimits {
                cpu_shares: Some(1000),
                memory: Some(MemoryLimits { hard_bytes: Some(512 * MIB), soft_bytes: Some(64 * MIB) }),
                cpuset_cpus: Some("0".to_owned()),
                ..NewLimits::default()
            };
            for _ in 0..2 {
                task.executor.update_resources(new.clone()).await.unwrap();
                assert_eq!(limits(&task), [weight("1000", "99"), bytes(512), bytes(64), Some("0".to_owned())]);
            }
            // Down again, one thing at a time; the rest stays.
            let less = MemoryLimits { hard_bytes: Some(128 * MIB), soft_bytes: None };
            let less = NewLimits { memory: Some(less), ..NewLimits::default() };
            task.executor.update_resources(less).await.unwrap();
            let now = limits(&task);
            assert_eq!((&now[0], &now[1], &now[2]), (&weight("1000", "99"), &bytes(128), &low));
            assert_eq!(now[3].as_deref(), Some("0"), "{cores:?}");
            let quota = NewLimits {
                cpu_quota: Some(CpuQuota::Limited { quota_us: 50_000, period_us: 100_000 }),
                ..NewLimits::default()
            };
            task.executor.update_resources(quota).await.unwrap();
            let file = if v2 { "cpu.max" } else { "cpu.cfs_quota_us" };
            let quota = || std::fs::read_to_string(folder(&task.cgroup, "cpu").join(file)).unwrap();
            assert_eq!(quota().trim(), if v2 { "50000 100000" } else { "50000" });
            task.executor
                .update_resources(NewLimits { cpu_quota: Some(CpuQuota::Unlimited), ..NewLimits::default() })
                .await
                .unwrap();
            assert_eq!(quota().trim(), if v2 { "max 100000" } else { "-1" });
            assert_eq!(pids().trim(), "77", "nobody spoke of it");
            for (most, now) in [(99, "99"), (0, "max")] {
                let limits = NewLimits { pids_max: Some(most), ..NewLimits::default() };
                task.executor.update_resources(limits).await.unwrap();
                assert_eq!(pids().trim(), now);
            }
            task.end().await;
        }
    });
}

fn b1_b2_limits_that_cannot_be_are_refused_and_nothing_changes() {
    block_on(async {
        for isolated in BOTH {
            // It fills 64 MiB that nobody can take from it.
            let task = Task::with(isolated, |spec| {
                "/usr/bin/perl".clone_into(&mut spec.command);
                let fill = format!("$| = 1; $x = 'x' x {}; print 'full'; sleep {}", 64 * MIB, nap());
                spec.args = vec!["-e".to_owned(), fill];
            })
            .await;
            let log = task.dir.path().join("alloc/logs/task.stdout.0");
            eventually("the task is full", || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("full")))
                .await;
            let before = limits(&task);
            let hard = |mib: u64| Some(MemoryLimits { hard_bytes: Some(mib * MIB), soft_bytes: None });
            for (new, why) in [
                (NewLimits { cpu_shares: Some(7), memory: hard(16), ..NewLimits::default() }, "it holds"),
                (
                    NewLimits { cpu_shares: Some(7), cpuset_cpus: Some("4095".to_owned()), ..NewLimits::default() },
                    "cpuset",
                ),
            ] {
                let error = task.executor.update_resources(new).await.unwrap_err();
                assert!(error.to_string().contains(why), "{error}");
                assert_eq!(limits(&task), before, "{error}");
            }
            task.end().await;
        }
        let bare = Task::with(false, |spec| spec.resource_limits = false).await;
        let shares = || NewLimits { cpu_shares: Some(7), ..NewLimits::default() };
        let error = bare.executor.update_resources(shares()).await.unwrap_err();
        assert!(matches!(&error, ExecutorError::Invalid(text) if text.contains("it has no cgroup")), "{error}");
        bare.end().await;
        let idle = Task::idle(true).await;
        let error = idle.executor.update_resources(shares()).await.unwrap_err();
        assert!(matches!(&error, ExecutorError::Invalid(text) if text.contains("Task not yet run")), "{error}");
        idle.end().await;
    });
}
