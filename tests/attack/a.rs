//! Group A: the runtime's own binary, its descriptors and its environment.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Instant;

use sha2::Digest as _;

use agentbin::spec::Propagation;

use crate::framework::{
    Attack, Breach, Inside, Lab, Level, Mutant, Task, Verdict, command_line, full, hold, own_program, patience,
    processes,
};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack { id: "a01", run: a01, inside: Some(a01_inside), mutants: &[Mutant::new("a01")], control: None },
    Attack { id: "a02", run: a02, inside: Some(a02_inside), mutants: &[Mutant::new("a02")], control: None },
    Attack { id: "a03", run: a03, inside: Some(a03_inside), mutants: &[Mutant::new("a03")], control: None },
    Attack { id: "a04", run: a04, inside: Some(a04_inside), mutants: &[Mutant::new("a04")], control: None },
    Attack { id: "a05", run: a05, inside: None, mutants: &[Mutant::new("a05")], control: None },
    Attack { id: "a06", run: a06, inside: None, mutants: &[Mutant::new("a06")], control: None },
    Attack {
        id: "a07",
        run: a07,
        inside: Some(a07_inside),
        mutants: &[Mutant::new("a07"), Mutant::new("a07-role")],
        control: None,
    },
    Attack { id: "a08", run: a08, inside: Some(a08_inside), mutants: &[Mutant::new("a08")], control: None },
];

/// Which file the roles of a process are: device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Tells a watcher inside a task that it may stop.
fn stop_watching(lab: &Lab, task: Task) -> Verdict {
    std::fs::write(lab.shared("data/stop"), "").unwrap();
    task.finish().held()
}

/// Runs inside a task until it is told to stop.
fn watch(mut look: impl FnMut(i32)) {
    let own = i32::try_from(std::process::id()).unwrap();
    println!("WATCHING");
    let deadline = Instant::now() + patience();
    while !Path::new("/alloc/data/stop").exists() && Instant::now() < deadline {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            if let Some(pid) = number.filter(|pid| *pid != own) {
                look(pid);
            }
        }
    }
}

/// CVE-2019-5736: the task takes hold of the runtime's executable while the runtime is in its reach, to write to it later.
fn a01(lab: &mut Lab) -> Verdict {
    let program = lab.program();
    let state = |path: &Path| path.metadata().map(|m| (m.size(), m.mode(), m.mtime_nsec(), m.ctime_nsec())).unwrap();
    let before = state(&program);
    let (device, inode) = identity(&program).unwrap();
    // The first line makes whoever executes it execute the runtime, as the task.
    lab.plant_file("local/evil", b"#!/proc/self/exe\n", 0o755);
    let id = [device.to_string(), inode.to_string()];
    let task = lab
        .task(&["watch", &id[0], &id[1]])
        .user("root")
        .spec(|spec| spec.capabilities.push("CAP_SYS_PTRACE".to_owned()))
        .start()
        .unwrap();
    task.wait_for("WATCHING");
    // An executable that was never seen was not attacked: longer than asked for until it was.
    let deadline = Instant::now() + patience();
    let mut round = 0;
    while round < lab.rounds(500).min(if full() { 500 } else { 10 }) || !task.output().contains("HIT") {
        assert!(Instant::now() < deadline, "the runtime's executable was never caught: {:?}", task.output());
        round += 1;
        let command = if round % 2 == 0 { &["/bin/true"][..] } else { &["/local/evil"] };
        let _ = task.exec(command, round % 3 == 0);
    }
    stop_watching(lab, task)?;
    // The same as the command of a task, by its name and by the first line of a script.
    for command in ["/proc/self/exe", "/local/evil", "proc/1/exe"] {
        if let Ok(report) = lab.task(&[]).user("root").command(command, &["inside"]).run() {
            hold!(!report.text.contains("END"), "{command} is somebody else's program: {report:?}");
        }
    }
    hold!(before == state(&program), "the executable has changed");
    Ok(())
}

fn a01_inside(args: &[String], inside: &Inside) {
    let runtime: (u64, u64) = (args[1].parse().unwrap(), args[2].parse().unwrap());
    let mut hit = false;
    watch(|pid| {
        let Ok(file) = File::open(format!("/proc/{pid}/exe")) else { return };
        let meta = file.metadata().unwrap();
        let is_runtime = (meta.dev(), meta.ino()) == runtime;
        // A file that no name leads to is a copy that nobody starts again.
        if !is_runtime && meta.nlink() > 0 {
            return;
        }
        if !hit {
            println!("HIT");
            hit = true;
        }
        let flags = rustix::fs::fstatvfs(&file).unwrap().f_flag;
        if is_runtime && !flags.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
            inside.breach("the runtime's executable is not on a read-only mount");
        }
        // Opening alone changes nothing. While somebody runs it the kernel says ETXTBSY, which is not a defence, so the attacker
        // tries another change, too: of its mode, to the same.
        let held = format!("/proc/self/fd/{}", file.as_raw_fd());
        if File::options().write(true).open(&held).is_ok()
            || std::fs::set_permissions(&held, meta.permissions()).is_ok()
        {
            inside.breach("the runtime's executable can be written to");
        }
    });
}

/// CVE-2024-21626: the working directory is a descriptor that a role holds, and so a directory of the host.
fn a02(lab: &mut Lab) -> Verdict {
    let most = if full() { 63 } else { 12 };
    let numbers: Vec<i32> = (3..=most).chain(LEAKED).collect::<BTreeSet<_>>().into_iter().collect();
    let secret = lab.canary("secret").display().to_string();
    for number in &numbers {
        let target = format!("/proc/self/fd/{number}");
        lab.plant_link("local/work", &target);
        for work_dir in [target.as_str(), "/local/work"] {
            let plan = lab.task(&[&secret]).user("root").spoil("fds").config("work_dir", work_dir.into());
            plan.must_hold()?;
        }
    }
    // Sessions go to the same place when it has become another one.
    lab.plant_dir("local/work");
    let task = lab.task(&[]).user("root").spoil("fds").config("work_dir", "/local/work".into());
    let task = task.command("/bin/sleep", &["1000"]).start().unwrap();
    for number in &numbers {
        lab.plant_link("local/work", format!("/proc/self/fd/{number}"));
        if let Ok(report) = task.exec(&["/attack", "inside", "a02", &secret], false) {
            report.held()?;
        }
    }
    task.stop();
    Ok(())
}

fn a02_inside(args: &[String], inside: &Inside) {
    let root = identity(Path::new("/")).unwrap();
    let top = ["..", "../..", "../../../../../../../../../../.."];
    let here = std::env::current_dir();
    if here.as_ref().map_or(true, |path| !path.is_absolute()) {
        inside.breach(&format!("the working directory is nowhere: {here:?}"));
    }
    if identity(Path::new(top[2])) != Some(root) {
        inside.breach("the working directory lies outside the root");
    }
    for up in top.iter().chain(&["."]) {
        if std::fs::read(Path::new(up).join(args[0].trim_start_matches('/'))).is_ok() {
            inside.breach(&format!("a file of the host at {up}"));
        }
    }
}

/// Numbers that a careless parent leaves open.
const LEAKED: [i32; 6] = [3, 40, 41, 42, 43, 44];

/// The host's root, a secret and a socket, open across exec, as the parent of an executor.
pub fn leak_descriptors() {
    let root = File::open("/").unwrap();
    let shadow = File::open("/etc/shadow").unwrap();
    let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
    let fds = [root.as_raw_fd(), shadow.as_raw_fd(), socket.as_raw_fd()];
    // Above the numbers that are taken while they are made.
    for (number, fd) in LEAKED.into_iter().rev().zip(fds.into_iter().cycle()) {
        kernel::leak(fd, number).unwrap();
    }
}

/// CVE-2021-44717 and its like: descriptors of whoever started the executor reach the task.
fn a03(lab: &mut Lab) -> Verdict {
    for (spoiled, env) in [("fds", ""), ("closed", ""), ("fds", "3")] {
        for isolated in [true, false] {
            let mut plan = lab.task(&[]).spoil(spoiled).executor_env("LISTEN_FDS", env);
            if !isolated {
                plan = plan.not_isolated().command(own_program().to_str().unwrap(), &["inside", "a03"]);
            }
            let report = plan.run().unwrap();
            report.held()?;
            hold!(report.fact("open") == "0,1,2", "descriptors {}", report.fact("open"));
        }
    }
    let task = lab.task(&[]).spoil("fds").command("/bin/sleep", &["1000"]).start().unwrap();
    for tty in [false, true] {
        let report = task.exec(&["/attack", "inside", "a03"], tty).unwrap();
        report.held()?;
        hold!(report.fact("open") == "0,1,2", "descriptors of a session {}", report.fact("open"));
    }
    task.stop();
    Ok(())
}

fn a03_inside(_: &[String], inside: &Inside) {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let number: i32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let Ok(target) = std::fs::read_link(entry.path()) else { continue };
        // The one that lists them.
        if target.starts_with("/proc") && target.ends_with("fd") {
            continue;
        }
        open.push(number);
        let Ok(meta) = std::fs::metadata(entry.path()) else { continue };
        let kind = meta.file_type();
        if number > 2 || kind.is_dir() || kind.is_socket() || kind.is_file() {
            inside.breach(&format!("descriptor {number} is {}", target.display()));
        }
    }
    open.sort_unstable();
    let open: Vec<String> = open.iter().map(ToString::to_string).collect();
    inside.fact("open", open.join(","));
}

/// CVE-2016-9962: the task reaches into a process that is about to enter it, while that still holds what is the host's.
fn a04(lab: &mut Lab) -> Verdict {
    let (device, inode) = identity(&lab.program()).unwrap();
    let id = [device.to_string(), inode.to_string()];
    // Where a task has the capability for it, attaching is its right: but then there must be nothing to be found.
    for may_trace in [false, true] {
        let _ = std::fs::remove_file(lab.shared("data/stop"));
        let mode = if may_trace { "look" } else { "attach" };
        let plan = lab.task(&[mode, &id[0], &id[1]]).user("root");
        let level = plan.level();
        let task = plan
            .spec(move |spec| {
                spec.capabilities.retain(|name| !name.contains("SYS_PTRACE"));
                if may_trace {
                    spec.capabilities.push("CAP_SYS_PTRACE".to_owned());
                }
                if level == Level::Nomad {
                    // What root has there beside it is as good.
                    spec.capabilities.retain(|name| !name.contains("SYS_ADMIN"));
                }
            })
            .start()
            .unwrap();
        task.wait_for("WATCHING");
        let rounds = if lab.mutant.is_some() { 2000 } else { lab.rounds(1000) };
        let deadline = Instant::now() + patience();
        for round in 0..rounds {
            let _ = task.exec(&["/bin/true"], round % 2 == 0);
            if task.output().contains("BREACH") || Instant::now() > deadline {
                break;
            }
        }
        stop_watching(lab, task)?;
    }
    Ok(())
}

fn a04_inside(args: &[String], inside: &Inside) {
    let runtime: (u64, u64) = (args[1].parse().unwrap(), args[2].parse().unwrap());
    let is_runtime = |pid: i32| identity(Path::new(&format!("/proc/{pid}/exe"))) == Some(runtime);
    let root = identity(Path::new("/")).unwrap();
    let own_caps = capabilities("self");
    watch(|pid| {
        if args[0] == "attach" {
            // Whoever may attach may see which program it runs; the thread's end detaches.
            if is_runtime(pid) {
                let seize = [u64::from(libc::PTRACE_SEIZE), pid as u64, 0, 0, 0, 0];
                let attached = std::thread::spawn(move || kernel::raw(libc::SYS_ptrace, seize)).join().unwrap();
                inside.breach(&format!("a process of the runtime can be looked into; attached: {attached:?}"));
            }
            return;
        }
        for link in ["cwd", "root"] {
            if identity(Path::new(&format!("/proc/{pid}/{link}/../../../../../.."))).is_some_and(|id| id != root) {
                inside.breach(&format!("{link} of {pid} leads out"));
            }
        }
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
            if std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_dir()) {
                let target = std::fs::read_link(entry.path());
                if target.is_ok_and(|target| !target.starts_with("/proc")) {
                    inside.breach(&format!("{} is a folder", entry.path().display()));
                }
            }
        }
        if capabilities(&pid.to_string()) & !own_caps != 0 {
            inside.breach(&format!("{pid} has more than the task"));
        }
    });
}

fn capabilities(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapPrm:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

/// What a program that is not alone loads or asks on its way.
const BAIT: [&str; 24] = [
    "bin/mount",
    "bin/nsenter",
    "bin/sh",
    "bin/tar",
    "bin/umount",
    "etc/host.conf",
    "etc/ld.so.cache",
    "etc/ld.so.preload",
    "etc/localtime",
    "etc/login.defs",
    "etc/nsswitch.conf",
    "etc/resolv.conf",
    "etc/shadow",
    "etc/ssl/openssl.cnf",
    "lib/x86_64-linux-gnu/libnss_files.so.2",
    "lib64/ld-linux-x86-64.so.2",
    "usr/bin/agentbin",
    "usr/bin/unpigz",
    "usr/bin/xz",
    "usr/lib/locale/locale-archive",
    "usr/lib/x86_64-linux-gnu/gconv/gconv-modules",
    "usr/lib/x86_64-linux-gnu/libnss_files.so.2",
    "usr/share/locale/locale.alias",
    "usr/share/zoneinfo/UTC",
];

/// CVE-2019-14271, CVE-2026-41567: a helper with all its privileges loads what the task put into its own root.
fn a05(lab: &mut Lab) -> Verdict {
    let elf = std::fs::read(lab.program()).unwrap();
    hold!(!has_interpreter(&elf), "the program loads libraries");
    for bait in BAIT {
        lab.plant_file(bait, b"#!/bin/false\n", 0o755);
    }
    let inotify = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).unwrap();
    for bait in BAIT {
        let events = rustix::fs::inotify::WatchFlags::OPEN | rustix::fs::inotify::WatchFlags::ACCESS;
        rustix::fs::inotify::add_watch(&inotify, lab.task_path(bait), events).unwrap();
    }
    // The watcher and the sleeper is the attacker, which is static as well and asks nobody.
    let plan = lab.task(&[]).user("root").command("/attack", &["idle"]);
    let task = plan.spec(|spec| spec.mounts.retain(|mount| mount.task_path == "/attack")).start().unwrap();
    for tty in [false, true] {
        let report = task.exec(&["/attack", "version"], tty).unwrap();
        assert_eq!(report.exit.exit_code, 0, "{report:?}");
    }
    // A name without a slash is looked for; nobody asks a shell, nor PATH.
    assert!(task.exec(&["no-such-program"], false).is_err());
    task.stop();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = rustix::fs::inotify::Reader::new(&inotify, &mut buffer);
    match events.next() {
        Ok(event) => Err(Breach(format!("{} was opened", BAIT[usize::try_from(event.wd() - 1).unwrap()]))),
        Err(_nothing) => Ok(()),
    }
}

/// Whether an ELF file names a loader (`PT_INTERP`).
fn has_interpreter(elf: &[u8]) -> bool {
    let number = |at: usize, len: usize| {
        elf[at..at + len].iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte)) as usize
    };
    assert_eq!(&elf[..5], b"\x7fELF\x02", "a 64-bit program");
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    (0..count).any(|entry| number(table + entry * size, 4) == 3)
}

/// Variables that change what a program does that has them.
const LOADED: [&str; 12] = [
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "RUST_LOG",
    "RUST_BACKTRACE",
    "MALLOC_CHECK_",
    "GCONV_PATH",
    "GLIBC_TUNABLES",
    "BASH_ENV",
    "ENV",
    "TMPDIR",
    "LOCPATH",
];

/// CVE-2025-23266: the task's environment reaches a process of the runtime.
fn a06(lab: &mut Lab) -> Verdict {
    let env = LOADED.map(|key| format!("        {key} = \"a06-loaded\"\n")).concat();
    let job = lab.job("exec", "/bin/sh", "[\"-c\", \"echo up; sleep 1000\"]", &env);
    let mut run = lab.agentbin_run(&job, &[]);
    let deadline = Instant::now() + patience();
    let mut seen = BTreeSet::new();
    loop {
        // One look more when the task is there: its executor is, too.
        let up = run.stdout().contains("up");
        for pid in processes() {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let words = command_line(pid);
            let role = ["executor", "libcontainer-shim", "logmon"].into_iter().find(|role| words.contains(role));
            // The shim that has become the task has its environment rightly.
            let Some(role) = role.filter(|_| command_line(pid) == words) else { continue };
            seen.insert(role);
            if String::from_utf8_lossy(&environ).contains("a06-loaded") {
                run.kill();
                return Err(Breach(format!("{role} has variables of the task")));
            }
        }
        if up {
            break;
        }
        assert!(Instant::now() < deadline && run.is_running(), "the task did not come up: {}", run.said());
    }
    assert!(seen.contains("executor"), "no role was seen: {seen:?}");
    run.interrupt();
    Ok(())
}

/// What an agent may have in its environment.
fn secrets() -> Vec<(String, String)> {
    let names = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AZURE_CLIENT_SECRET",
        "CONSUL_HTTP_AUTH",
        "CONSUL_HTTP_TOKEN",
        "CONSUL_TOKEN",
        "DATABASE_URL",
        "DOCKER_AUTH_CONFIG",
        "GITHUB_TOKEN",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_CREDENTIALS",
        "NOMAD_ENCRYPT",
        "NOMAD_LICENSE",
        "NOMAD_TOKEN",
        "SSH_AUTH_SOCK",
        "VAULT_TOKEN",
        "VAULT_WRAP",
    ];
    let more = (names.len()..40).map(|n| format!("SECRET_NUMBER_{n}"));
    let all = names.into_iter().map(str::to_owned).chain(more);
    all.enumerate().map(|(n, name)| (name, format!("a07-secret-{n}"))).collect()
}

/// CVE-2021-21334 and its like: secrets of the agent, or of another task, reach a task.
fn a07(lab: &mut Lab) -> Verdict {
    // By the executor, whose own environment holds them.
    let mut plan = lab.task(&[]).env("OWN", "of-the-first");
    for (key, value) in secrets() {
        plan = plan.executor_env(&key, &value);
    }
    let first = plan.command("/attack", &["inside", "a07", "wait"]).start().unwrap();
    first.wait_for("WATCHING");
    for tty in [false, true] {
        first.exec(&["/attack", "inside", "a07"], tty).unwrap().held()?;
    }
    let log = std::fs::read_to_string(lab.path("executor.log")).unwrap_or_default();
    hold!(!log.contains("a07-secret"), "secrets are in the executor's log");
    stop_watching(lab, first)?;
    // By the agent, which hands its roles what they need.
    let job = lab.job("exec", "/bin/sh", "[\"-c\", \"env; tr '\\\\0' '\\\\n' < /proc/1/environ; sleep 1000\"]", "");
    let mut run = lab.agentbin_run(&job, &secrets());
    run.wait_for("NOMAD_TASK_NAME");
    let executors: Vec<i32> = processes().into_iter().filter(|pid| command_line(*pid).contains("executor")).collect();
    assert!(!executors.is_empty(), "no executor runs");
    let leaked = executors.into_iter().find(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        String::from_utf8_lossy(&environ).contains("a07-secret")
    });
    let said = run.interrupt();
    hold!(leaked.is_none(), "the executor has secrets of the agent");
    hold!(!said.contains("a07-secret"), "the task, or what was said of it, has secrets of the agent");
    Ok(())
}

fn a07_inside(args: &[String], inside: &Inside) {
    let look = |pid: i32| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let environ = String::from_utf8_lossy(&environ).into_owned();
        if environ.contains("a07-secret") {
            inside.breach(&format!("{pid} has a secret of the agent"));
        }
    };
    look(1);
    look(i32::try_from(std::process::id()).unwrap());
    for (key, value) in std::env::vars() {
        if value.contains("a07-secret") {
            inside.breach(&format!("{key} of the agent"));
        }
    }
    if args.first().is_some_and(|word| word == "wait") {
        watch(look);
    }
}

/// CVE-2021-43784: what is handed over is cut where its length does not fit.
fn a08(lab: &mut Lab) -> Verdict {
    let long = "0123456789".repeat(7_000);
    let words: Vec<String> = (0..10).map(|n| n.to_string().repeat(100_000)).collect();
    let many = if full() { 5_000 } else { 200 };
    let expected = (hash(&[&long]), hash(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    let open = lab.canary("public");
    let args: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut plan = lab.task(&args).env("LONG", &long);
    for n in 0..many {
        plan = plan.mount(&open, &format!("/many/{n}"), true, Propagation::Private);
    }
    let task = plan.command("/bin/sleep", &["1000"]).start();
    if let Ok(task) = task {
        let report = task.exec(&["/bin/ls", "/many"], false).unwrap();
        hold!(report.text.lines().count() == many, "{} of {many} mounts", report.text.lines().count());
        let mut command = vec!["/attack", "inside", "a08"];
        command.extend(&args);
        if let Ok(report) = task.exec(&command, false) {
            report.held()?;
            hold!((report.fact("env"), report.fact("argv")) == expected, "a session got something else");
        }
        task.stop();
    }
    let report = lab.task(&args).env("LONG", &long).run().unwrap();
    report.held()?;
    hold!((report.fact("env"), report.fact("argv")) == expected, "the task got something else");
    // More than the kernel takes in one word: refused, with its name for it.
    let error = lab.task(&[]).env("LONG", &"x".repeat(200_000)).run().unwrap_err();
    hold!(error.contains("long") || error.contains("E2BIG"), "refused with {error:?}");
    Ok(())
}

fn a08_inside(args: &[String], inside: &Inside) {
    inside.fact("env", hash(&[&std::env::var("LONG").unwrap_or_default()]));
    inside.fact("argv", hash(&args.iter().map(String::as_str).collect::<Vec<_>>()));
}

fn hash(texts: &[&str]) -> String {
    let digest = texts.iter().fold(sha2::Sha256::new(), |hash, text| hash.chain_update(text).chain_update([0]));
    format!("{:x?}", digest.finalize().as_slice())
}
