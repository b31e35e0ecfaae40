//! What tasks cannot do to the machine (the isolation table, N9) and to each other (J01 to J11), with real tasks of our
//! drivers. This program embeds agentbin, and is what runs inside the tasks, too.

#[path = "support/drivers.rs"]
mod drivers;
#[path = "support/harness.rs"]
mod harness;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use agentbin::container::probe::{Host, ROWS, Report, score};
use agentbin::driver::{Driver, TaskConfig};
use agentbin::spec::{DriverConfig, ExitResult, MemoryLimits};
use agentbin::sys::features::may_raise_limits;
use drivers::{World, output, program};
use harness::{block_on, children, eventually, is_alive, run, tests};
use serde_json::json;

/// Rows that may be open to a user's task at each level; any other that is names itself. `default` shares the network, as Nomad does
/// when the job asks for none, and the user namespace; `nomad` is as open as Nomad's driver. Root is root.
const MAY_BE_OPEN: [(&str, &str, &[&str]); 5] = [
    ("nobody", "strict", &[]),
    ("nobody", "default", &["I15", "I17"]),
    ("root", "strict", &["I01", "I02", "I05", "I06", "I07", "I41", "I68", "I69"]),
    ("root", "default", &["I01", "I02", "I05", "I06", "I07", "I15", "I17", "I41", "I68", "I69"]),
    (
        "nobody",
        "nomad",
        &[
            "I04", "I05", "I06", "I07", "I08", "I09", "I10", "I14", "I15", "I16", "I17", "I21", "I22", "I23", "I27",
            "I29", "I41", "I44", "I45", "I49", "I50", "I51", "I54", "I55", "I62", "I65", "I67", "I68", "I69", "I70",
            "I72",
        ],
    ),
];

/// The argument by which this program is what runs inside a task.
const INSIDE: &str = "inside";

fn main() -> ExitCode {
    agentbin::init();
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|word| word == INSIDE) {
        inside::run(&args[2], &args[3..]);
        return ExitCode::SUCCESS;
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("isolation", "needs root for cgroups, users and mounts");
    }
    run(tests![
        n9_the_probe_of_each_level_holds_what_it_promises,
        n9_doctor_says_what_there_is,
        n9_doctor_names_what_is_missing,
        n9_a_doctor_leaves_nothing_behind,
        j01_a_task_cannot_touch_other_processes,
        j02_no_link_leads_to_another_tasks_secrets,
        j03_no_socket_of_the_host_can_be_connected_to,
        j04_limits_hold_and_the_neighbour_does_not_notice,
        j05_a_full_disk_of_a_task_is_its_own_trouble,
        j06_nothing_survives_a_stop,
        j07_an_exit_status_cannot_be_forged,
        j08_a_session_has_no_more_than_its_task,
        j09_no_way_out_without_pivot_root,
        j10_options_of_a_jvm_reach_nothing_outside,
        j11_raw_exec_is_what_it_says,
    ])
}

impl World {
    /// This program inside an isolated task.
    fn inside(&self, mode: &str, args: &[String]) -> TaskConfig {
        self.task(&in_task(), &[&[INSIDE, mode], &args.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat())
    }

    async fn start_and_wait_for(&self, driver: &dyn Driver, task: &TaskConfig, word: &str) {
        driver.start_task(task).await.unwrap();
        eventually(word, || output(task).0.contains(word)).await;
    }

    async fn end(&self, driver: &dyn Driver, task: &TaskConfig) -> ExitResult {
        driver.stop_task(&task.id, Duration::ZERO, None).await.unwrap();
        let exit = driver.wait_task(&task.id).await.unwrap();
        driver.destroy_task(&task.id, false).await.unwrap();
        self.assert_gone(task).await;
        exit
    }
}

/// Where it is inside an isolated task.
fn in_task() -> String {
    format!("/program/{}", program().file_name().unwrap().to_str().unwrap())
}

async fn main_pid(driver: &dyn Driver, task: &TaskConfig) -> i32 {
    driver.inspect_task(&task.id).await.unwrap().attributes["pid"].parse().unwrap()
}

/// A word for the command line of what a test starts, by which it is found among all processes.
fn mark(name: &str) -> String {
    format!("agentbin-{name}-{}", std::process::id())
}

fn marked(mark: &str) -> Vec<i32> {
    let all = procfs::process::all_processes().unwrap().flatten();
    let ours = |p: &procfs::process::Process| p.cmdline().is_ok_and(|c| c.iter().any(|word| word == mark));
    let alive = |p: &procfs::process::Process| p.stat().is_ok_and(|s| s.state != 'Z');
    all.filter(|p| ours(p) && alive(p)).map(|p| p.pid).collect()
}

fn host() -> String {
    serde_json::to_string(&Host::here().unwrap()).unwrap()
}

/// The table of each level against the rows that are known to be open there.
fn n9_the_probe_of_each_level_holds_what_it_promises() {
    block_on(async {
        let world = World::apart();
        for (user, level, may_be_open) in MAY_BE_OPEN {
            let mut task = world.task(&in_task(), &["isolation-probe", &host()]);
            task.user = user.into();
            task.config.values.insert("isolation".into(), level.into());
            let report: Report = serde_json::from_str(&world.stdout(&world.exec, &task).await).unwrap();
            println!("{user}, level {level}: {} of {}", score(&report), ROWS.len());
            assert_eq!(report.len(), ROWS.len());
            let open = report.iter().filter(|(id, seen)| !seen.pass && !may_be_open.contains(&id.as_str()));
            let open: Vec<_> = open.map(|(id, seen)| format!("{id}: {}", seen.value)).collect();
            assert!(open.is_empty(), "open to {user} at level {level}: {open:?}");
        }
    });
}

/// `agentbin doctor`, as root or as somebody who is not, with a data directory of his own.
fn doctor(world: &World, user: Option<u32>, args: &[&str]) -> Command {
    let home = world.dir.path().join(format!("home-{}", user.unwrap_or(0)));
    std::fs::create_dir_all(&home).unwrap();
    std::os::unix::fs::chown(&home, user, user).unwrap();
    // The tree that holds the binary may be closed to others.
    let binary = world.dir.path().join("agentbin");
    if !binary.exists() {
        std::fs::copy(env!("CARGO_BIN_EXE_agentbin"), &binary).unwrap();
    }
    let mut command = Command::new(binary);
    command.arg("doctor").args(args).stdin(Stdio::null());
    if args.contains(&"--probe") {
        command.arg("--data-dir").arg(home.join("data"));
    }
    command.env("HOME", &home).env("XDG_RUNTIME_DIR", &home);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command
}

fn n9_doctor_says_what_there_is() {
    let world = World::apart();
    let stranger = 200_000 + std::process::id();
    for user in [None, Some(stranger)] {
        let out = doctor(&world, user, &["--json", "--probe", "--level", "default"]).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&said["can_isolate"], &said["root"]), (&json!(true), &json!(user.is_none())), "{said:#}");
        let checks = said["checks"].as_array().unwrap();
        for name in
            ["openat2", "clone3", "seccomp filters", "Landlock", "regime", "open files", "java", "network mode bridge"]
        {
            assert!(checks.iter().any(|check| check["name"] == name), "{name}: {said:#}");
        }
        for check in checks {
            let state = check["state"].as_str().unwrap();
            let explained = check["cost"] != "" && check["mend"] != "";
            assert!(["ok", "warn", "missing"].contains(&state) && explained == (state != "ok"), "{check:#}");
        }
        let levels = said["isolation"]["levels"].as_object().unwrap();
        assert_eq!(levels.keys().collect::<Vec<_>>(), ["default"]);
        let score = levels["default"]["score"].as_u64().unwrap();
        assert!(score >= 70 && levels["default"]["rows"].as_object().unwrap().len() == 72, "{score}");
    }
    let out = doctor(&world, None, &[]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(out.status.success() && text.contains("\nTasks can be isolated.\n") && !text.contains('\x1b'), "{text}");
}

fn n9_doctor_names_what_is_missing() {
    let world = World::apart();
    let doctor = doctor(&world, None, &["--json"]);
    let script = "echo 0 > /proc/sys/user/max_pid_namespaces && exec \"$0\" doctor --json";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script]).arg(doctor.get_program());
    let out = command.output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    let said: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let missing: Vec<_> = said["checks"].as_array().unwrap().iter().filter(|c| c["state"] == "missing").collect();
    assert_eq!(said["can_isolate"], false);
    assert_eq!(missing.iter().map(|c| &c["name"]).collect::<Vec<_>>(), [&json!("pid")], "{said:#}");
    assert_eq!(missing[0]["mend"], "sysctl -w user.max_pid_namespaces=1024");
}

/// One that was interrupted, and one that was killed.
fn n9_a_doctor_leaves_nothing_behind() {
    block_on(async {
        let world = World::apart();
        let allocations = || -> Vec<PathBuf> {
            let entries = std::fs::read_dir(world.dir.path().join("home-0/data/alloc")).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let nothing_of_it_runs = || {
            let all = procfs::process::all_processes().unwrap().flatten();
            let ours = world.dir.path().to_str().unwrap();
            let alive = |p: &procfs::process::Process| p.stat().is_ok_and(|s| s.state != 'Z');
            all.filter(alive).filter_map(|p| p.cmdline().ok()).all(|c| !c.iter().any(|word| word.contains(ours)))
        };
        for name in ["SIGINT", "SIGKILL"] {
            // One that has ended before it was told to is not a test of it.
            for _ in 0..20 {
                let mut child =
                    doctor(&world, None, &["--probe"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
                let started = |path: &PathBuf| path.join("alloc/logs/isolation-probe.stdout.0").exists();
                eventually("a probe is started", || allocations().iter().any(started)).await;
                let pidfd = agentbin::sys::process::open_pidfd(i32::try_from(child.id()).unwrap()).unwrap();
                let signal = agentbin::spec::Signal::from_name(name).unwrap();
                agentbin::sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), signal).unwrap();
                if !child.wait().unwrap().success() {
                    break;
                }
            }
            if name == "SIGKILL" {
                let data = world.dir.path().join("home-0/data");
                let mut gc = Command::new(env!("CARGO_BIN_EXE_agentbin"));
                let gc = gc.arg("gc").arg("--data-dir").arg(data).output().unwrap();
                assert!(gc.status.success(), "{gc:?}");
            }
            assert_eq!(allocations(), Vec::<PathBuf>::new(), "after {name}");
            assert!(nothing_of_it_runs(), "after {name}");
        }
    });
}

fn j01_a_task_cannot_touch_other_processes() {
    block_on(async {
        let world = World::apart();
        let victim = world.script("echo ready; exec sleep 1000");
        world.start_and_wait_for(&world.exec, &victim, "ready").await;
        // The agent, the executor, the other task.
        let mut others = vec![i32::try_from(std::process::id()).unwrap(), main_pid(&world.exec, &victim).await];
        others.extend(children());
        assert!(others.len() >= 3, "{others:?}");
        let numbers: Vec<String> = others.iter().map(ToString::to_string).collect();
        for user in ["nobody", "root"] {
            let mut task = world.inside("touch", &numbers);
            task.user = user.into();
            let text = world.stdout(&world.exec, &task).await;
            assert_eq!(text, "itself: kill pidfd proc\n", "{user}");
        }
        // What the task tries does work on processes that it may touch.
        let task = world.task(
            program().to_str().unwrap(),
            &[&[INSIDE, "touch"], &numbers.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat(),
        );
        let text = world.stdout(&world.raw_exec, &task).await;
        assert!(text.contains(&format!("{}: kill pidfd read", others[1])), "{text}");
        assert!(others.iter().all(|pid| is_alive(*pid)));
        world.end(&world.exec, &victim).await;
    });
}

fn j02_no_link_leads_to_another_tasks_secrets() {
    const SECRET: &str = "the-token-of-another-task";
    block_on(async {
        let world = World::apart();
        let victim = world.script("echo ready; exec sleep 1000");
        let secrets = world.alloc_dir().join(&victim.name).join("secrets");
        std::fs::create_dir_all(&secrets).unwrap();
        std::fs::write(secrets.join("token"), SECRET).unwrap();
        world.start_and_wait_for(&world.exec, &victim, "ready").await;
        let (name, pid) = (&victim.name, main_pid(&world.exec, &victim).await);
        let (task_dir, alloc) = (world.alloc_dir().join(name), world.alloc_dir());
        let script = format!(
            "cd /alloc/data; ln -s ../../{name}/secrets/token a; ln -s {task}/secrets/token b; ln -s /proc/{pid}/root/secrets c
             ln -s /proc/{pid}/cwd d; ln -s /../../../../../{alloc}/{name}/secrets/token e; ln -s /proc/1/root/../../{name} f
             for path in a b c/token d/secrets/token e f/secrets/token /alloc/../{name}/secrets/token /{name}/secrets/token \\
                 /proc/1/root/../{name}/secrets/token /proc/self/cwd/../../{name}/secrets/token {task}/secrets/token \\
                 /local/../../{name}/secrets/token; do cat $path; done 2>&1; true",
            task = task_dir.display(),
            alloc = alloc.display(),
        );
        for user in ["nobody", "root"] {
            let mut task = world.script(&script.replace("ln -s", "ln -sf"));
            task.user = user.into();
            let (exit, stdout, stderr) = world.run(&world.exec, &task).await;
            assert!(exit.successful() && stdout.lines().count() >= 12, "{stdout}{stderr}");
            assert!(!stdout.contains(SECRET), "{user}: {stdout}");
        }
        world.end(&world.exec, &victim).await;
    });
}

fn j03_no_socket_of_the_host_can_be_connected_to() {
    block_on(async {
        let world = World::apart();
        let sleeper = world.script("echo ready; exec sleep 1000");
        world.start_and_wait_for(&world.exec, &sleeper, "ready").await;
        let paths = |text: &str| -> BTreeSet<String> {
            text.lines().filter_map(|line| line.split_whitespace().nth(7)).map(str::to_owned).collect()
        };
        let sockets = paths(&std::fs::read_to_string("/proc/net/unix").unwrap());
        let ours = world.dir.path().to_str().unwrap();
        assert!(sockets.iter().any(|path| path.contains(ours)), "the executor listens somewhere: {sockets:?}");
        // An abstract name is in the network namespace, which an exec task may share with the host.
        let abstract_ones = sockets.iter().filter(|path| path.starts_with('@') && path.contains("agentbin"));
        assert_eq!(abstract_ones.count(), 0, "{sockets:?}");
        let paths: Vec<String> = sockets.into_iter().filter(|path| path.starts_with('/')).collect();
        for user in ["nobody", "root"] {
            let mut task = world.inside("connect", &paths);
            task.user = user.into();
            assert_eq!(world.stdout(&world.exec, &task).await, "done\n", "{user}");
        }
        let args: Vec<&str> = [INSIDE, "connect"].into_iter().chain(paths.iter().map(String::as_str)).collect();
        let text = world.stdout(&world.raw_exec, &world.task(program().to_str().unwrap(), &args)).await;
        assert!(text.contains(ours), "the attempt works where nothing is hidden: {text}");
        world.end(&world.exec, &sleeper).await;
    });
}

fn j04_limits_hold_and_the_neighbour_does_not_notice() {
    block_on(async {
        let world = World::apart();
        let mut neighbour =
            world.script("while read line; do echo got $line; done < /alloc/data/fifo & echo ready; wait");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            {
                std::fs::create_dir_all(world.alloc_dir().join("alloc/data")).unwrap();
                world.alloc_dir().join("alloc/data/fifo")
            },
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        std::fs::set_permissions(world.alloc_dir().join("alloc/data/fifo"), std::fs::Permissions::from_mode(0o666))
            .unwrap();
        neighbour.resources.memory = MemoryLimits { hard_bytes: Some(64 << 20), soft_bytes: None };
        world.start_and_wait_for(&world.exec, &neighbour, "ready").await;
        let mut fifo =
            std::fs::File::options().write(true).read(true).open(world.alloc_dir().join("alloc/data/fifo")).unwrap();
        let mut asked = 0;
        let mut neighbour_answers = async || {
            asked += 1;
            std::io::Write::write_all(&mut fifo, format!("{asked}\n").as_bytes()).unwrap();
            eventually("an answer", || output(&neighbour).0.contains(&format!("got {asked}\n"))).await;
        };
        neighbour_answers().await;

        let mut memory = world.task("tail", &["/dev/zero"]);
        memory.resources.memory = MemoryLimits { hard_bytes: Some(16 << 20), soft_bytes: None };
        let (exit, ..) = world.run(&world.exec, &memory).await;
        assert!(exit.oom_killed && exit.exit_code == 137, "{exit:?}");
        neighbour_answers().await;

        // What is in /dev/shm is in the task's memory as well.
        let mut shm = world.script("cat /dev/zero > /dev/shm/x; echo $?; exec tail /dev/zero");
        shm.resources.memory = MemoryLimits { hard_bytes: Some(16 << 20), soft_bytes: None };
        let (exit, ..) = world.run(&world.exec, &shm).await;
        assert!(!exit.successful(), "{exit:?}");
        neighbour_answers().await;

        let mut processes = world.script("while sleep 1000 & do :; done; true");
        processes.config.values.insert("pids_limit".into(), 32.into());
        let (_, _, stderr) = world.run(&world.exec, &processes).await;
        assert!(stderr.to_lowercase().contains("fork"), "{stderr}");
        neighbour_answers().await;

        let files = world.inside("descriptors", &[]);
        let text = world.stdout(&world.exec, &files).await;
        assert!(text.starts_with("EMFILE after "), "{text}");
        neighbour_answers().await;
        world.end(&world.exec, &neighbour).await;
    });
}

/// There is no quota: who wants one gives allocations a file system of their own. Full, it is the task's trouble alone.
fn j05_a_full_disk_of_a_task_is_its_own_trouble() {
    use nix::mount::{MsFlags, mount, umount};
    block_on(async {
        let world = World::apart();
        let shared = world.alloc_dir().join("alloc");
        std::fs::create_dir_all(&shared).unwrap();
        let options = Some("size=256k,nr_inodes=64");
        mount(Some("agentbin-test"), &shared, Some("tmpfs"), MsFlags::empty(), options).unwrap();
        let task = world.script(
            "echo ready; i=0; while true > /alloc/data/file$i; do i=$((i+1)); done 2>/dev/null; rm -f /alloc/data/file0
             cat /dev/zero > /alloc/data/big 2>/dev/null; echo full > /local/full; exec sleep 1000",
        );
        world.exec.start_task(&task).await.unwrap();
        let full = world.alloc_dir().join(&task.name).join("local/full");
        eventually("the disk is full", || full.exists()).await;
        let free = rustix::fs::statvfs(&shared).unwrap();
        assert!(free.f_bfree == 0 || free.f_ffree == 0, "not full");
        // Its executor, whose logs lie there, and everybody else go on.
        assert!(world.exec.task_stats(&task.id).await.is_ok());
        let executed =
            world.exec.exec_task(&task.id, &["/bin/echo".into(), "alive".into()], Duration::from_mins(1)).await;
        assert_eq!(executed.unwrap().stdout, b"alive\n");
        assert_eq!(world.end(&world.exec, &task).await.signal, 9);
        umount(&shared).unwrap();
        let next = world.script("echo next");
        assert_eq!(world.stdout(&world.exec, &next).await, "next\n");
    });
}

/// Ten kinds of processes that a stop may miss.
fn j06_nothing_survives_a_stop() {
    block_on(async {
        let world = World::apart();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let mark = mark(driver.name());
            let path = if driver.name() == "exec" { in_task() } else { program().to_str().unwrap().to_owned() };
            let task = world.task(&path, &[INSIDE, "survivors", &mark]);
            world.start_and_wait_for(driver, &task, "ready").await;
            // One is another process by the time that it is looked at.
            eventually("all ten are there", || marked(&mark).len() >= 10).await;
            world.end(driver, &task).await;
            assert_eq!(marked(&mark), Vec::<i32>::new(), "{} left processes", driver.name());
        }
    });
}

fn j07_an_exit_status_cannot_be_forged() {
    block_on(async {
        let world = World::apart();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            for (script, code) in [
                // What looks like a kill or a lack of memory is an exit status.
                ("exit 137", 137),
                ("(exit 9) & wait; exit 0", 0),
                // Whatever is said on the task's own streams is output.
                ("printf '\\000\\377{\"exit\":0}\\n' > /dev/stdout; printf x > /dev/stderr; exit 5", 5),
            ] {
                let (exit, ..) = world.run(driver, &world.script(script)).await;
                assert_eq!(exit, ExitResult { exit_code: code, ..ExitResult::default() }, "{script}");
            }
        }
        for user in ["nobody", "root"] {
            // Everybody it can reach, its parent and its group; of itself it remains.
            let mut task = world.script("trap '' TERM; kill -9 -1; kill -9 $PPID; kill -9 0; kill -TERM 0; exit 3");
            task.user = user.into();
            let (exit, ..) = world.run(&world.exec, &task).await;
            assert_eq!(exit, ExitResult { exit_code: 3, ..ExitResult::default() }, "{user}");
        }
        // A child that is killed for its memory is told; one that kills itself is not taken for it.
        let (exit, ..) = world.run(&world.exec, &world.script("sh -c 'kill -9 $$'; exit 0")).await;
        assert!(exit.successful(), "{exit:?}");
    });
}

fn j08_a_session_has_no_more_than_its_task() {
    const FACTS: &str = "for n in mnt pid ipc uts net cgroup user; do readlink /proc/self/ns/$n; done; cat /proc/self/cgroup; \
        cat /proc/self/limits; grep -E '^(Uid|Gid|Groups|Cap|NoNew|Seccomp|Sig(Blk|Ign|Cgt))' /proc/self/status; umask; \
        cat /proc/self/oom_score_adj; readlink /proc/self/root";
    block_on(async {
        let world = World::apart();
        for (user, level) in users_and_levels() {
            let probe = |file: &str| {
                format!(
                    "{} isolation-probe '{}' > /local/{file}.json; ({FACTS}) > /local/{file}.txt",
                    in_task(),
                    host()
                )
            };
            let mut task = world.script(&format!("{}; echo ready; exec sleep 1000", probe("task")));
            task.user = user.into();
            task.config.values.insert("isolation".into(), level.into());
            world.start_and_wait_for(&world.exec, &task, "ready").await;
            let session = ["/bin/sh".to_owned(), "-c".to_owned(), probe("session")];
            let executed = world.exec.exec_task(&task.id, &session, Duration::from_secs(100)).await.unwrap();
            assert!(executed.exit.successful(), "{}", String::from_utf8_lossy(&executed.stdout));
            let read = |file: &str| {
                let path = world.alloc_dir().join(&task.name).join("local").join(file);
                std::fs::read_to_string(&path).unwrap()
            };
            let report = |file| serde_json::from_str::<Report>(&read(file)).unwrap();
            let (of_task, of_session) = (report("task.json"), report("session.json"));
            assert_eq!(of_task, of_session, "{user} at level {level}");
            assert_eq!(read("task.txt"), read("session.txt"), "{user} at level {level}");
            assert!(score(&of_task) > 0);
            world.end(&world.exec, &task).await;
        }
    });
}

/// The classic way out of a changed root: another one below it, and a directory outside of that kept open.
fn j09_no_way_out_without_pivot_root() {
    block_on(async {
        let world = World::apart();
        let canary = tempfile::tempdir().unwrap();
        std::fs::set_permissions(canary.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(canary.path().join("canary"), "canary").unwrap();
        let mut config = DriverConfig::default();
        config.values.insert("no_pivot_root".into(), true.into());
        let path = canary.path().join("canary").to_str().unwrap().to_owned();
        for no_pivot_root in [true, false] {
            if no_pivot_root {
                world.exec.set_config(&config, None).unwrap();
            } else {
                world.exec.set_config(&DriverConfig::default(), None).unwrap();
            }
            for (user, level) in users_and_levels() {
                let mut task = world.inside("breakout", std::slice::from_ref(&path));
                task.user = user.into();
                task.config.values.insert("isolation".into(), level.into());
                let text = world.stdout(&world.exec, &task).await;
                assert!(text.ends_with("no canary\n"), "no_pivot_root = {no_pivot_root}, {user} at {level}: {text}");
                let may_change_root = user == "root" || level == "nomad";
                assert_eq!(text.contains("changed root"), may_change_root, "{user} at {level}: {text}");
            }
        }
        // The same program, where it is not in a root of its own, finds it.
        let task = world.task(program().to_str().unwrap(), &[INSIDE, "breakout", &path]);
        assert!(world.stdout(&world.raw_exec, &task).await.ends_with("found the canary\n"));
    });
}

fn j10_options_of_a_jvm_reach_nothing_outside() {
    block_on(async {
        let world = World::apart();
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|dir| dir.join("java").exists()) {
            println!("SKIP: j10_options_of_a_jvm_reach_nothing_outside: no java");
            return;
        }
        let canary = tempfile::tempdir().unwrap();
        std::fs::set_permissions(canary.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(canary.path().join("arguments"), "-Dcanary=read\n-XshowSettings:properties\n").unwrap();
        let at = canary.path().to_str().unwrap();
        let run = async |options: Vec<String>| {
            let mut task = world.task("", &[]);
            task.config.values.remove("command");
            task.config.values.insert("class".into(), "NoSuchClass".into());
            task.config.values.insert("jvm_options".into(), json!([&options[..], &["-version".to_owned()]].concat()));
            let (exit, stdout, stderr) = world.run(&world.java, &task).await;
            let written = std::fs::read_dir(world.alloc_dir().join(&task.name).join("local")).unwrap().count();
            (exit, written, format!("{stdout}{stderr}"))
        };
        let options = |folder: &str| {
            [
                vec![format!("-Xlog:all=info:file={folder}/log")],
                vec![
                    "-XX:+UnlockDiagnosticVMOptions".into(),
                    "-XX:+LogVMOutput".into(),
                    format!("-XX:LogFile={folder}/vm"),
                ],
                vec![
                    "-Xmx8m".into(),
                    "-XX:+HeapDumpOnOutOfMemoryError".into(),
                    format!("-XX:HeapDumpPath={folder}/heap"),
                ],
                vec![format!("-XX:OnError=touch {folder}/error"), format!("-XX:ErrorFile={folder}/crash")],
                vec![format!("@{folder}/arguments")],
                vec![format!("-XX:VMOptionsFile={folder}/arguments")],
            ]
        };
        for options in options(at) {
            let (_, _, text) = run(options.clone()).await;
            assert!(!text.contains("canary = read"), "{options:?}: {text}");
            let names: Vec<_> = std::fs::read_dir(canary.path()).unwrap().flatten().map(|e| e.file_name()).collect();
            assert_eq!(names, ["arguments"], "{options:?}");
        }
        // Inside its own directory the first of them does write.
        let (exit, written, text) = run(options("/local")[0].clone()).await;
        assert!(exit.successful() && written == 1, "{exit:?} {written} {text}");
    });
}

/// It isolates nothing, and says so; what it promises all the same.
fn j11_raw_exec_is_what_it_says() {
    block_on(async {
        let world = World::apart();
        let leak = rustix::fs::open("/etc", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let probe = program().display().to_string();
        let task = world.script(&format!(
            "{probe} isolation-probe '{}' && tr '\\0' '\\n' < /proc/self/environ && echo && cut -d' ' -f6 /proc/$$/stat && cat /proc/self/cgroup",
            host()
        ));
        let text = world.stdout(&world.raw_exec, &task).await;
        let (report, rest) = text.split_once('\n').unwrap();
        let report: Report = serde_json::from_str(report).unwrap();
        println!("raw_exec: {} of {}", score(&report), ROWS.len());
        assert!(report["I18"].pass && !report["I11"].pass && !report["I19"].pass, "{report:#?}");
        assert!(score(&report) < 30, "it isolates, then: {report:#?}");
        let (environment, rest) = rest.split_once("\n\n").unwrap();
        let names: BTreeSet<&str> = environment.lines().filter_map(|line| line.split('=').next()).collect();
        // What the shell adds to it, and nothing of ours.
        assert!(names.iter().all(|name| ["PATH", "PWD", "OLDPWD", "SHLVL", "_"].contains(name)), "{environment}");
        let (session, cgroups) = rest.split_once('\n').unwrap();
        // 0 where it began outside our pid namespace, which rustix cannot say.
        let ours = nix::unistd::getsid(None).unwrap().to_string();
        assert_ne!(session, ours, "signals of our terminal reach it");
        assert!(cgroups.contains(task.cgroup.to_str().unwrap()), "{cgroups}");
        drop(leak);
    });
}

/// Users and levels that can be had here: root at level nomad gets capabilities that whoever runs the tests may lack.
fn users_and_levels() -> impl Iterator<Item = (&'static str, &'static str)> {
    // Where processors are emulated each start takes seconds, and the machine beside it runs them all.
    const FEW: [(&str, &str); 3] = [("nobody", "strict"), ("nobody", "default"), ("root", "nomad")];
    let slow = std::env::var_os("AGENTBIN_TEST_SLOWER").is_some();
    let all = ["nobody", "root"].into_iter().flat_map(|user| ["strict", "default", "nomad"].map(|level| (user, level)));
    let all = all.filter(move |both| !slow || FEW.contains(both));
    all.filter(|both| *both != ("root", "nomad") || may_raise_limits())
}

/// What runs inside the tasks.
mod inside {
    #![expect(clippy::disallowed_methods, reason = "a hostile program does what ours must not")]

    use std::ffi::CString;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::FileTypeExt as _;
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};

    use nix::sys::signal::{SigHandler, Signal, kill, raise, signal};
    use nix::unistd::Pid;

    pub fn run(mode: &str, args: &[String]) {
        match mode {
            "touch" => touch(args),
            "connect" => connect(args),
            "descriptors" => descriptors(),
            "survivors" => survivors(),
            "breakout" => breakout(&args[0]),
            other => panic!("no mode {other}"),
        }
    }

    /// Which of the processes with these numbers can be signalled, named, read, traced.
    fn touch(numbers: &[String]) {
        let act = |pid: i32| {
            let mut done = Vec::new();
            if kill(Pid::from_raw(pid), None).is_ok() {
                done.push("kill");
            }
            if agentbin::sys::process::open_pidfd(pid).is_ok() {
                done.push("pidfd");
            }
            let read = ["environ", "mem", "root/etc/passwd", "fd/0", "maps"];
            if pid != own() && read.iter().any(|name| std::fs::File::open(format!("/proc/{pid}/{name}")).is_ok()) {
                done.push("read");
            }
            // SAFETY: names a process and nothing of this one's memory.
            if pid != own() && unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) } == 0 {
                done.push("trace");
            }
            if Path::new("/proc").join(pid.to_string()).exists() {
                done.push("proc");
            }
            done.join(" ")
        };
        println!("itself: {}", act(own()));
        for number in numbers {
            let done = act(number.parse().unwrap());
            if !done.is_empty() {
                println!("{number}: {done}");
            }
        }
    }

    fn own() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    /// Sockets that are found, and those that can be connected to.
    fn connect(paths: &[String]) {
        for path in paths {
            if UnixStream::connect(path).is_ok() {
                println!("connects: {path}");
            }
        }
        let mut todo = if own() == 1 { vec![PathBuf::from("/")] } else { Vec::new() };
        while let Some(folder) = todo.pop() {
            // Links of processes lead everywhere, and programs and libraries are no places for sockets.
            if [Path::new("/proc"), Path::new("/sys"), Path::new("/usr"), Path::new("/program")].contains(&&*folder) {
                continue;
            }
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => todo.push(entry.path()),
                    Ok(kind) if kind.is_socket() => println!("sees: {}", entry.path().display()),
                    _ => {}
                }
            }
        }
        println!("done");
    }

    fn descriptors() {
        let mut open = Vec::new();
        loop {
            match rustix::io::dup(rustix::stdio::stdin()) {
                Ok(fd) => open.push(fd),
                Err(error) => {
                    drop(open.pop());
                    let name = if error == rustix::io::Errno::MFILE { "EMFILE" } else { "another error" };
                    println!("{name} after {}", open.len());
                    return;
                }
            }
            if open.len() > 10_000_000 {
                println!("no end");
                return;
            }
        }
    }

    fn fork() -> bool {
        // SAFETY: there is no other thread.
        unsafe { libc::fork() == 0 }
    }

    fn pause() -> ! {
        loop {
            nix::unistd::pause();
        }
    }

    fn leave() -> ! {
        agentbin::sys::process::exit_at_once(0)
    }

    fn new_session() {
        nix::unistd::setsid().unwrap();
    }

    /// Ten ways to be overlooked.
    fn survivors() {
        let kinds: [fn(); 10] = [
            // A session of its own.
            || new_session(),
            // A daemon: its parent is gone.
            || {
                new_session();
                if !fork() {
                    leave();
                }
            },
            // Stopped.
            || raise(Signal::SIGSTOP).unwrap(),
            // Deaf.
            || {
                for number in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE] {
                    // SAFETY: no handler is installed.
                    unsafe { signal(number, SigHandler::SigIgn) }.unwrap();
                }
            },
            // Stopped by a tracer that never lets it go on.
            || {
                // SAFETY: concerns this process only.
                unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
                raise(Signal::SIGSTOP).unwrap();
            },
            // Blocked until its child executes something, which that never does.
            || {
                // SAFETY: without CLONE_VM the child has its own copy of everything.
                unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0) };
            },
            // First process of a pid namespace, where it is allowed.
            || {
                let flags = libc::CLONE_NEWPID | if nix::unistd::geteuid().is_root() { 0 } else { libc::CLONE_NEWUSER };
                if agentbin::sys::probe::unshare(flags).is_ok() {
                    fork();
                }
            },
            // Nothing open, another group.
            || {
                // SAFETY: this process uses none of them afterwards.
                unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
                nix::unistd::setpgid(Pid::from_raw(0), Pid::from_raw(0)).unwrap();
            },
            // Its first thread has ended.
            || {
                std::thread::spawn(|| pause());
                // SAFETY: ends this thread alone; nothing on its stack is used by the other one.
                unsafe { libc::syscall(libc::SYS_exit, 0) };
            },
            // Never the same process for long.
            || {
                loop {
                    if fork() {
                        new_session();
                    } else {
                        std::thread::yield_now();
                        leave();
                    }
                }
            },
        ];
        for kind in kinds {
            if fork() {
                kind();
                pause();
            }
        }
        println!("ready");
        pause();
    }

    fn breakout(canary: &str) {
        let folder = if own() == 1 { "/tmp/below".to_owned() } else { format!("{canary}-below") };
        std::fs::create_dir_all(&folder).unwrap();
        let top = std::fs::File::open("/").unwrap();
        let below = CString::new(folder.clone()).unwrap();
        if nix::unistd::chroot(below.as_c_str()).is_ok() {
            println!("changed root");
            rustix::process::fchdir(&top).unwrap();
            for _ in 0..64 {
                rustix::process::chdir("..").unwrap();
            }
            let _ = nix::unistd::chroot(".");
        }
        let relative = canary.trim_start_matches('/');
        let up = "../".repeat(64);
        let ways = [
            canary.to_owned(),
            format!("{up}{relative}"),
            format!("/proc/1/root/{relative}"),
            format!("/proc/self/fd/{}/{up}{relative}", top.as_raw_fd()),
            format!("/proc/1/cwd/{up}{relative}"),
        ];
        let found = ways.iter().any(|way| std::fs::read_to_string(way).is_ok_and(|text| text == "canary"));
        println!("{}", if found { "found the canary" } else { "no canary" });
        let _ = std::fs::remove_dir(&folder);
    }
}
