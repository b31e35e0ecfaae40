//! The exec and `raw_exec` drivers through real executors, on the real kernel. This program embeds agentbin, so every
//! executor and shim below is this very file (A2).

#[path = "support/drivers.rs"]
mod drivers;
#[path = "support/harness.rs"]
mod harness;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agentbin::cgroup::Regime;
use agentbin::driver::{Driver, DriverError, ExecDriver, Host, Settings, TaskConfig, TaskHandle};
use agentbin::executor::Compute;
use agentbin::spec::{DriverConfig, MemoryLimits, Resources, Signal};
use drivers::{World, nap, output};
use harness::{block_on, eventually, is_alive, run, tests};
use serde_json::json;

fn main() -> ExitCode {
    agentbin::init();
    if !rustix::process::geteuid().is_root() {
        return harness::skip("driver", "needs root for cgroups, users and mounts");
    }
    run(tests![
        b2_exec_task_has_its_own_root_and_namespaces,
        b2_standard_mounts_devices_and_masks,
        b3_nobody_has_no_privilege,
        b3_added_capabilities_work_without_root,
        b3_dropped_capabilities_and_those_that_the_operator_withholds_are_gone,
        b3_root_task_cannot_make_device_nodes,
        b2_only_three_descriptors_and_the_given_environment,
        b2_host_folders_are_read_only_and_nothing_is_copied,
        b2_hostile_task_folder_on_the_second_start,
        b2_failing_steps_are_named,
        b2_only_the_devices_of_the_list_open,
        b2_a_device_of_the_task_is_used_as_permitted,
        b2_raw_exec_and_a_task_without_cgroup_have_no_device_rules,
        b1_exit_status_and_signal,
        b1_stop_sends_signal_then_kills,
        b1_many_waiters_get_the_same_result,
        b6_everything_a_task_started_dies,
        b7_stats_of_both_drivers,
        c2_limits_are_written_and_task_is_born_inside,
        c2_oom_is_told_from_a_plain_kill,
        c2_pids_limit_holds,
        d2_output_is_complete_and_rotated,
        n3_a_missing_command_and_a_bad_one,
        n3_what_is_not_made_executable_is_told_of,
        n2_sizes_that_nobody_goes_by_are_told_of,
        n5_killed_executor_takes_its_task_along,
        n5_an_executor_that_cannot_be_reached_has_not_ended,
        e_start_twice_and_unknown_ids_are_errors,
    ])
}

fn b2_exec_task_has_its_own_root_and_namespaces() {
    block_on(async {
        let world = World::new();
        let script = "for n in mnt pid ipc net uts user; do readlink /proc/self/ns/$n; done; echo pid $$; ls /; id";
        let task = world.script(script);
        let text = world.stdout(&world.exec, &task).await;
        let own = |name: &str| std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string();
        for name in ["mnt", "pid", "ipc", "uts"] {
            assert!(!text.contains(&own(name)), "{name} is shared with the host: {text}");
        }
        for name in ["net", "user"] {
            assert!(text.contains(&own(name)), "{name} is not the host's: {text}");
        }
        assert!(text.contains("pid 1\n"), "{text}");
        assert!(text.contains("\nlocal\n") && !text.contains("\nroot\n") && !text.contains("\nhome\n"), "{text}");
        assert!(text.contains("uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)"), "{text}");
    });
}

fn b2_standard_mounts_devices_and_masks() {
    block_on(async {
        let world = World::new();
        let task = world.script(
            "cat /proc/self/mounts; echo ---; cd /dev; stat -c '%n %t:%T %a %U' null zero full random urandom tty; \
            for f in /proc/kcore /proc/keys /proc/timer_list /proc/interrupts; do test ! -e $f || wc -c < $f; done; \
            ls -A /sys/firmware; cat /proc/self/oom_score_adj; umask; readlink /dev/ptmx /dev/fd; \
            touch /dev/shm/x /tmp/y && echo writable; cat /proc/sys/kernel/pid_max >/dev/null && echo readable; \
            (echo 1 > /proc/sys/vm/drop_caches) 2>&1; ls -l /proc/self/fd/0",
        );
        let text = world.stdout(&world.exec, &task).await;
        let (mounts, rest) = text.split_once("---\n").unwrap();
        let mount = |target: &str| {
            let line = mounts.lines().find(|l| l.split(' ').nth(1) == Some(target));
            line.unwrap_or_else(|| panic!("{target} is not mounted: {mounts}")).to_owned()
        };
        for (target, kind, options) in [
            ("/dev", "tmpfs", "nosuid"),
            ("/proc", "proc", "nosuid,nodev,noexec"),
            ("/dev/pts", "devpts", "gid=5,mode=620,ptmxmode=666"),
            ("/dev/shm", "tmpfs", "nosuid,nodev,noexec"),
            ("/dev/mqueue", "mqueue", "nosuid,nodev,noexec"),
            ("/sys", "sysfs", "ro,nosuid,nodev,noexec"),
            ("/proc/sys", "proc", "ro,"),
        ] {
            let line = mount(target);
            assert!(line.contains(&format!(" {kind} ")) && line.contains(options), "{target}: {line}");
        }
        assert!(mount("/").contains("nodev"), "{mounts}");
        for device in ["null 1:3", "zero 1:5", "full 1:7", "random 1:8", "urandom 1:9", "tty 5:0"] {
            assert!(rest.contains(&format!("{device} 666 root")), "{device}: {rest}");
        }
        assert!(rest.contains("0022") && rest.contains("pts/ptmx\n/proc/self/fd"), "{rest}");
        assert!(rest.contains("writable\nreadable\n") && rest.contains("Read-only file system"), "{rest}");
        assert!(rest.contains("-> /dev/null"), "{rest}");
        // Every masked file is empty, /sys/firmware too, and oom_score_adj is 0.
        let masked: Vec<&str> = rest.lines().skip(6).take_while(|l| *l != "0022").collect();
        assert!(masked.iter().all(|line| *line == "0"), "{masked:?}");
        assert!(!masked.is_empty());
    });
}

fn b3_nobody_has_no_privilege() {
    block_on(async {
        let world = World::new();
        let text = world.stdout(&world.exec, &world.script("cat /proc/self/status")).await;
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(text.contains(&format!("{set}:\t0000000000000000")), "{set}: {text}");
        }
        assert!(text.contains("NoNewPrivs:\t1") && text.contains("Groups:\t65534 \n"), "{text}");
        for (signals, expected) in [("SigBlk", "0000000000000000"), ("SigIgn", "0000000000000000")] {
            assert!(text.contains(&format!("{signals}:\t{expected}")), "{signals}: {text}");
        }
    });
}

fn b3_added_capabilities_work_without_root() {
    block_on(async {
        let world = World::new();
        let mut task = world.script("cat /proc/self/status");
        task.config.values.insert("cap_add".into(), serde_json::json!(["net_bind_service"]));
        let text = world.stdout(&world.exec, &task).await;
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert!(text.contains(&format!("{set}:\t0000000000000400")), "{set}: {text}");
        }
    });
}

/// What root has at its start, without what the task drops, and within what the plugin allows; nothing of it is inheritable.
fn b3_dropped_capabilities_and_those_that_the_operator_withholds_are_gone() {
    block_on(async {
        let world = World::new();
        let effective = async |drop: &[&str]| {
            let mut task = world.script("cat /proc/self/status");
            task.user = "root".into();
            task.config.values.insert("cap_drop".into(), serde_json::json!(drop));
            let text = world.stdout(&world.exec, &task).await;
            let of = |set: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(":\t")).unwrap();
                u64::from_str_radix(line, 16).unwrap()
            };
            assert_eq!((of("CapInh"), of("CapAmb")), (0, 0), "{text}");
            assert_eq!((of("CapPrm"), of("CapBnd")), (of("CapEff"), of("CapEff")), "{text}");
            of("CapEff")
        };
        let (chown, kill, setuid) = (1, 1 << 5, 1 << 7);
        let all = effective(&[]).await;
        assert_eq!(all & (chown | kill | setuid), chown | kill | setuid);
        assert_eq!(effective(&["chown", "CAP_KILL"]).await, all & !chown & !kill);
        assert_eq!(effective(&["all"]).await, 0);
        let mut config = DriverConfig::default();
        config.values.insert("allow_caps".into(), serde_json::json!(["chown", "setuid"]));
        world.exec.set_config(&config, None).unwrap();
        assert_eq!(effective(&[]).await, chown | setuid);
        assert_eq!(effective(&["chown"]).await, setuid);
        let mut task = world.script("true");
        task.config.values.insert("cap_add".into(), serde_json::json!(["kill"]));
        let refused = world.exec.start_task(&task).await.unwrap_err().to_string();
        assert!(refused.contains("driver does not allow the following capabilities: kill"), "{refused}");
    });
}

fn b3_root_task_cannot_make_device_nodes() {
    block_on(async {
        let world = World::new();
        let mut task = world.script(
            "id -u; id -g; grep CapInh /proc/self/status; mknod /dev/x c 1 1 2>&1; mount -t tmpfs none /tmp 2>&1; true",
        );
        task.user = "root".into();
        let text = world.stdout(&world.exec, &task).await;
        assert!(text.starts_with("0\n0\nCapInh:\t0000000000000000\n"), "{text}");
        assert_eq!(
            text.to_lowercase().matches("not permitted").count() + text.matches("permission denied").count(),
            2,
            "{text}"
        );
    });
}

fn b2_only_three_descriptors_and_the_given_environment() {
    block_on(async {
        let world = World::new();
        // A dirty caller: a directory of the host, inheritable.
        let leak = rustix::fs::open("/etc", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let mut task = world.script("tr '\\0' '\\n' < /proc/self/environ; echo; for f in /proc/self/fd/*; do readlink $f; done | grep -c '^/etc$'; exec ls /proc/self/fd");
            task.env.insert("GREETING".into(), "hello".into());
            let (_, text, _) = world.run(driver, &task).await;
            assert!(
                text.contains("GREETING=hello") && !text.contains("NOMAD_PLUGIN") && !text.contains("CARGO"),
                "{text}"
            );
            // ls itself has opened 3.
            assert!(text.ends_with("\n0\n0\n1\n2\n3\n"), "{}: {text}", driver.name());
            let user = if driver.name() == "exec" { "USER=nobody" } else { "PATH=" };
            assert!(text.contains(user), "{text}");
        }
        drop(leak);
    });
}

fn b2_host_folders_are_read_only_and_nothing_is_copied() {
    block_on(async {
        let world = World::new();
        let mut task = world
            .script("touch /usr/x /etc/y /alloc/logs/z 2>&1; echo data > /alloc/data/out && echo local > /local/out");
        task.user = "root".into();
        let (_, text, _) = world.run(&world.exec, &task).await;
        assert_eq!(text.matches("Read-only file system").count(), 3, "{text}");
        let data = world.alloc_dir().join("alloc/data/out");
        assert_eq!(std::fs::read_to_string(data).unwrap(), "data\n");
        // N3: what the root needs are empty directories, and not one byte.
        let mut todo = vec![world.task_dir()];
        let mut files = Vec::new();
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                if entry.metadata().unwrap().is_dir() { todo.push(entry.path()) } else { files.push(entry.path()) }
            }
        }
        assert_eq!(files, [world.task_dir().join("local/out")]);
    });
}

/// Every place that the start of a task goes through is planted with links by the first run, as in CVE-2026-41579 and
/// CVE-2025-31133: the second start is refused or right, and the canary is untouched.
fn b2_hostile_task_folder_on_the_second_start() {
    block_on(async {
        let world = World::new();
        let canary = tempfile::tempdir().unwrap();
        std::fs::write(canary.path().join("file"), "canary").unwrap();
        let snapshot = || {
            let mut names: Vec<_> =
                std::fs::read_dir(canary.path()).unwrap().flatten().map(|e| e.file_name()).collect();
            names.sort();
            let meta = canary.path().join("file").metadata().unwrap();
            (names, meta.mode(), meta.mtime_nsec(), std::fs::read(canary.path().join("file")).unwrap())
        };
        let before = snapshot();
        let depth = "/..".repeat(12);
        for place in ["dev", "proc", "sys", "alloc", "etc", "usr", "bin", "local"] {
            let world = World::new();
            let task = world.script("cat /alloc/data/none /proc/self/comm /local/file 2>&1; ls /dev/null");
            let planted = world.task_dir().join(place);
            if planted.is_dir() {
                std::fs::remove_dir_all(&planted).unwrap();
            }
            symlink(format!("{depth}{}", canary.path().display()), &planted).unwrap();
            match world.exec.start_task(&task).await {
                Ok(_) => {
                    world.exec.wait_task(&task.id).await.unwrap();
                    let (stdout, _) = output(&task);
                    assert!(!stdout.contains("canary"), "{place}: {stdout}");
                    world.exec.destroy_task(&task.id, true).await.unwrap();
                }
                Err(error) => assert!(error.to_string().contains(place), "{place}: {error}"),
            }
            world.assert_gone(&task).await;
            assert_eq!(snapshot(), before, "{place}");
        }
        // A command that is a link to a file of the host which is not executable.
        std::fs::set_permissions(canary.path().join("file"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let before = snapshot();
        let task = world.task("tool", &[]);
        symlink(canary.path().join("file"), world.task_dir().join("local/tool")).unwrap();
        symlink(format!("{depth}{}/file", canary.path().display()), world.task_dir().join("tool")).unwrap();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            assert!(
                matches!(driver.start_task(&task).await, Err(DriverError::CommandNotFound(_))),
                "{}",
                driver.name()
            );
        }
        assert_eq!(snapshot(), before);
    });
}

fn b2_failing_steps_are_named() {
    block_on(async {
        let world = World::new();
        let mut task = world.script("true");
        task.user = "alice-who-is-not-here".into();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let error = driver.start_task(&task).await.unwrap_err().to_string();
            assert!(error.contains("unknown user alice-who-is-not-here"), "{error}");
            world.assert_gone(&task).await;
        }
        let mut task = world.script("true");
        task.mounts.push(agentbin::spec::Mount {
            task_path: "/data".into(),
            host_path: "/no/such/folder".into(),
            readonly: false,
            ..Default::default()
        });
        let error = world.exec.start_task(&task).await.unwrap_err().to_string();
        assert!(error.contains("bind /no/such/folder to /data") && error.contains("No such file"), "{error}");
        world.assert_gone(&task).await;
    });
}

/// A task of root that makes nodes, in `/dev` as nodes elsewhere are dead, and opens them.
fn device_task(world: &World, script: &str) -> TaskConfig {
    let mut task = world.script(&format!("o() {{ (exec 3<$1) 2>&1 && echo opens $1; }}; {script}"));
    task.user = "root".into();
    task.config.values.insert("cap_add".into(), serde_json::json!(["mknod"]));
    task
}

/// The devices list of the task on v1; v2 has none to look at.
fn devices_list(world: &World, task: &TaskConfig) -> Option<Vec<String>> {
    let list = || world.cgroup_file(task, "devices", "devices.list", "").unwrap();
    (world.cgroups.regime() == Regime::V1).then(|| list().lines().map(str::to_owned).collect())
}

const DEFAULT_DEVICES: [&str; 11] = [
    "c *:* m",
    "b *:* m",
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 136:* rwm",
    "c 5:2 rwm",
    "c 10:200 rwm",
];

fn b2_only_the_devices_of_the_list_open() {
    block_on(async {
        let world = World::new();
        let task = device_task(
            &world,
            "cd /dev; mknod disk b 7 0 && mknod fuse c 10 229 && mknod log c 1 11 && mknod mem c 1 1 && echo made; \
            mknod zero2 c 1 5; for d in disk fuse log mem; do o $d; done; \
            for d in null zero full random urandom pts/ptmx zero2; do o $d; done; echo x >null && echo wrote; \
            echo ready; sleep 1000",
        );
        // The rules of one task are not those of another, also when that ends.
        let sibling = world.script("true");
        world.stdout(&world.exec, &sibling).await;
        world.exec.start_task(&task).await.unwrap();
        eventually("ready", || output(&task).0.contains("ready")).await;
        let text = output(&task).0;
        assert!(text.starts_with("made\n"), "{text}");
        for device in ["disk", "fuse", "log", "mem"] {
            assert!(!text.contains(&format!("opens {device}\n")), "{text}");
        }
        assert_eq!(text.matches("Operation not permitted").count(), 4, "{text}");
        for device in ["null", "zero", "full", "random", "urandom", "pts/ptmx", "zero2"] {
            assert!(text.contains(&format!("opens {device}\n")), "{device}: {text}");
        }
        assert!(text.contains("wrote\n"), "{text}");
        if let Some(list) = devices_list(&world, &task) {
            assert_eq!(list, DEFAULT_DEVICES);
        }
        // A session is under the same rules.
        let command = ["/bin/sh", "-c", "exec 3</dev/null && exec 4<>/dev/ptmx && echo fine; exec 3</dev/log"];
        let command = command.map(str::to_owned);
        let executed = world.exec.exec_task(&task.id, &command, Duration::from_secs(100)).await.unwrap();
        let said = String::from_utf8_lossy(&executed.stdout).into_owned() + &String::from_utf8_lossy(&executed.stderr);
        assert!(said.contains("fine") && said.contains("Operation not permitted"), "{said}");
        assert!(!executed.exit.successful(), "{said}");
        world.exec.destroy_task(&task.id, true).await.unwrap();
        world.assert_gone(&task).await;
    });
}

fn b2_a_device_of_the_task_is_used_as_permitted() {
    block_on(async {
        let world = World::new();
        let mut config = DriverConfig::default();
        config.values.insert("allow_caps".into(), serde_json::json!(["all"]));
        world.exec.set_config(&config, None).unwrap();
        let script = "o /dev/mine; (exec 3>>/dev/mine) 2>&1 && echo writes; echo ready; sleep 1000";
        for (permissions, reads, writes, listed) in [
            ("r", true, false, "c 1:11 r"),
            ("w", false, true, "c 1:11 w"),
            ("rwm", true, true, "c 1:11 rwm"),
            ("", true, true, "c 1:11 rwm"),
        ] {
            let mut task = device_task(&world, script);
            // The right to read the kernel's messages, wherever not everybody has it.
            task.config.values.insert("cap_add".into(), serde_json::json!(["syslog"]));
            task.devices = vec![agentbin::spec::Device {
                task_path: "/dev/mine".into(),
                host_path: "/dev/kmsg".into(),
                cgroup_permissions: permissions.into(),
            }];
            world.exec.start_task(&task).await.unwrap();
            eventually("ready", || output(&task).0.contains("ready")).await;
            let text = output(&task).0;
            assert_eq!(text.contains("opens /dev/mine"), reads, "{permissions}: {text}");
            assert_eq!(text.contains("writes\n"), writes, "{permissions}: {text}");
            if let Some(list) = devices_list(&world, &task) {
                assert_eq!(list.last().map(String::as_str), Some(listed));
            }
            world.exec.destroy_task(&task.id, true).await.unwrap();
        }
        let mut task = world.script("true");
        for (host_path, cgroup_permissions, why) in [
            ("/no/such/device", "r", "failed to make device out for /no/such/device: No such file"),
            ("/dev/null", "rx", "permissions \"rx\""),
        ] {
            task.devices = vec![agentbin::spec::Device {
                task_path: "/dev/mine".into(),
                host_path: host_path.into(),
                cgroup_permissions: cgroup_permissions.into(),
            }];
            let error = world.exec.start_task(&task).await.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
            world.assert_gone(&task).await;
        }
    });
}

fn b2_raw_exec_and_a_task_without_cgroup_have_no_device_rules() {
    block_on(async {
        let world = World::new();
        let task = world.script("exec 3>>/dev/kmsg && echo open; echo ready; sleep 1000");
        world.raw_exec.start_task(&task).await.unwrap();
        eventually("ready", || output(&task).0.contains("ready")).await;
        assert!(output(&task).0.contains("open"), "{:?}", output(&task));
        if let Some(list) = devices_list(&world, &task) {
            assert_eq!(list, ["a *:* rwm"]);
        }
        world.raw_exec.destroy_task(&task.id, true).await.unwrap();
        let mut task = device_task(&world, "cd /dev; mknod log c 1 11; (exec 3>>log) && echo open");
        task.cgroup = PathBuf::new();
        world.exec.start_task(&task).await.unwrap();
        world.exec.wait_task(&task.id).await.unwrap();
        assert!(output(&task).0.contains("open"), "{:?}", output(&task));
        world.exec.destroy_task(&task.id, false).await.unwrap();
    });
}

fn b1_exit_status_and_signal() {
    block_on(async {
        let world = World::new();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let (exit, ..) = world.run(driver, &world.script("exit 3")).await;
            assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (3, 0, false), "{}", driver.name());
        }
        let (exit, ..) = world.run(&world.raw_exec, &world.script("kill -9 $$")).await;
        assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (137, 9, false));
    });
}

fn b1_stop_sends_signal_then_kills() {
    block_on(async {
        let world = World::new();
        let ready = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.05; done";
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let task = world.script(ready);
            driver.start_task(&task).await.unwrap();
            eventually("ready", || output(&task).0.contains("ready")).await;
            driver.stop_task(&task.id, Duration::from_mins(5), Some(Signal::TERM)).await.unwrap();
            let exit = driver.wait_task(&task.id).await.unwrap();
            assert_eq!(exit.exit_code, 5, "{}: {:?}", driver.name(), output(&task));
            assert!(output(&task).0.ends_with("got it\n"));
            driver.destroy_task(&task.id, false).await.unwrap();

            let stubborn = world.script("trap '' INT; echo ready; while :; do sleep 0.05; done");
            driver.start_task(&stubborn).await.unwrap();
            eventually("ready", || output(&stubborn).0.contains("ready")).await;
            assert!(matches!(driver.destroy_task(&stubborn.id, false).await, Err(DriverError::Failed { .. })));
            let before = Instant::now();
            driver.stop_task(&stubborn.id, Duration::from_millis(300), None).await.unwrap();
            assert!(before.elapsed() >= Duration::from_millis(300), "killed before the grace was over");
            assert_eq!(driver.wait_task(&stubborn.id).await.unwrap().signal, 9);
            driver.destroy_task(&stubborn.id, false).await.unwrap();
            world.assert_gone(&stubborn).await;

            let signalled = world.script("trap 'echo usr1' USR1; echo ready; while :; do sleep 0.05; done");
            driver.start_task(&signalled).await.unwrap();
            eventually("ready", || output(&signalled).0.contains("ready")).await;
            driver.signal_task(&signalled.id, Signal::from_name("USR1").unwrap()).await.unwrap();
            eventually("the signal", || output(&signalled).0.contains("usr1")).await;
            driver.destroy_task(&signalled.id, true).await.unwrap();
            world.assert_gone(&signalled).await;
        }
    });
}

fn b1_many_waiters_get_the_same_result() {
    block_on(async {
        let world = Arc::new(World::new());
        let task = world.script("sleep 0.2; exit 9");
        world.exec.start_task(&task).await.unwrap();
        let waiters: Vec<_> = (0..50)
            .map(|_| {
                let (world, id) = (Arc::clone(&world), task.id.clone());
                tokio::spawn(async move { world.exec.wait_task(&id).await.unwrap() })
            })
            .collect();
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().exit_code, 9);
        }
        // And after the end.
        assert_eq!(world.exec.wait_task(&task.id).await.unwrap().exit_code, 9);
        world.exec.destroy_task(&task.id, false).await.unwrap();
    });
}

/// Background children, double forks and new sessions: with cgroup and without.
fn b6_everything_a_task_started_dies() {
    block_on(async {
        let world = World::new();
        let script = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000 &' &) ; sleep 0.3; \
            echo started; test \"$1\" = stay && sleep 1000; exit 0";
        for (driver, cgroup) in [
            (&world.exec as &dyn Driver, true),
            (&world.raw_exec, true),
            (&world.raw_exec, false),
            (&world.exec, false),
        ] {
            for stay in ["stay", "go"] {
                let mut task = world.task("/bin/sh", &["-c", script, "sh", stay]);
                if !cgroup {
                    task.cgroup = PathBuf::new();
                }
                let before = sleepers();
                driver.start_task(&task).await.unwrap();
                eventually("started", || output(&task).0.contains("started")).await;
                if stay == "go" {
                    driver.wait_task(&task.id).await.unwrap();
                } else {
                    eventually("a sleeper", || sleepers().len() > before.len()).await;
                }
                driver.destroy_task(&task.id, true).await.unwrap();
                assert_eq!(sleepers(), before, "{} cgroup={cgroup} {stay}", driver.name());
            }
        }
    });
}

fn sleepers() -> Vec<i32> {
    let all = procfs::process::all_processes().unwrap().flatten();
    let nap = nap();
    let is_ours = |p: &procfs::process::Process| p.cmdline().is_ok_and(|c| c == ["sleep", &nap]);
    let alive = |p: &procfs::process::Process| p.stat().is_ok_and(|s| s.state != 'Z');
    let mut pids: Vec<i32> = all.filter(|p| is_ours(p) && alive(p)).map(|p| p.pid).collect();
    pids.sort_unstable();
    pids
}

fn b7_stats_of_both_drivers() {
    block_on(async {
        let world = World::new();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let task = world.script("echo ready; while :; do :; done");
            driver.start_task(&task).await.unwrap();
            eventually("ready", || output(&task).0.contains("ready")).await;
            // On a busy machine its share may be small for a while, and the kernel adds memory up now and then only.
            let deadline = Instant::now() + Duration::from_mins(2);
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                let stats = driver.task_stats(&task.id).await.unwrap();
                assert!(!stats.total.memory.measured.is_empty(), "{stats:?}");
                assert_eq!(stats.by_pid.len(), 1, "{stats:?}");
                assert!(stats.output.is_some_and(|output| output.stdout.dropped_bytes == 0), "{stats:?}");
                if stats.total.cpu.percent > 10.0 && stats.total.memory.rss > 0 {
                    break;
                }
                assert!(Instant::now() < deadline, "{}: {stats:?}", driver.name());
            }
            driver.destroy_task(&task.id, true).await.unwrap();
        }
    });
}

fn c2_limits_are_written_and_task_is_born_inside() {
    block_on(async {
        let world = World::new();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let mut task = world.script("cat /proc/self/cgroup; echo ready; sleep 1000");
            let bytes = 64 * 1024 * 1024;
            task.resources = Resources {
                cpu_shares: 500,
                memory: MemoryLimits { hard_bytes: Some(bytes), soft_bytes: None },
                ..Resources::default()
            };
            task.config.values.insert("pids_limit".into(), 77.into());
            if driver.name() == "exec" && world.cgroups.regime() == Regime::V2 {
                // Without a cgroup namespace it sees where it is.
                task.config.values.insert("isolation".into(), "nomad".into());
            }
            driver.start_task(&task).await.unwrap();
            eventually("ready", || output(&task).0.contains("ready")).await;
            let file = |controller: &str, v1: &str, v2: &str| world.cgroup_file(&task, controller, v1, v2).unwrap();
            assert_eq!(file("memory", "memory.limit_in_bytes", "memory.max"), bytes.to_string());
            assert_eq!(file("pids", "pids.max", "pids.max"), "77");
            let shares = if world.cgroups.regime() == Regime::V2 { "58" } else { "500" };
            assert_eq!(file("cpu", "cpu.shares", "cpu.weight"), shares);
            // Exactly the task and its sleep; no helper of ours.
            let processes = || file("memory", "cgroup.procs", "cgroup.procs").lines().count();
            eventually("the shell's sleep", || processes() >= 2).await;
            assert_eq!(processes(), 2, "{}", driver.name());
            let text = output(&task).0;
            let relative = format!("/{}", task.cgroup.display());
            for line in text.lines().filter(|l| l.contains(':') && !l.starts_with("0::/\n")) {
                let unified_of_hybrid = world.cgroups.regime() == Regime::V1 && line.starts_with("0::");
                assert!(line.ends_with(&relative) || unified_of_hybrid, "{line}");
            }
            driver.destroy_task(&task.id, true).await.unwrap();
            world.assert_gone(&task).await;
        }
    });
}

fn c2_oom_is_told_from_a_plain_kill() {
    block_on(async {
        let world = World::new();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let mut task = world.task("tail", &["/dev/zero"]);
            task.resources.memory = MemoryLimits { hard_bytes: Some(16 * 1024 * 1024), soft_bytes: None };
            let (exit, ..) = world.run(driver, &task).await;
            assert!(exit.oom_killed && exit.exit_code == 137, "{}: {exit:?}", driver.name());
            let mut task = world.script("echo ready; sleep 1000");
            task.resources.memory = MemoryLimits { hard_bytes: Some(16 * 1024 * 1024), soft_bytes: None };
            driver.start_task(&task).await.unwrap();
            eventually("ready", || output(&task).0.contains("ready")).await;
            driver.stop_task(&task.id, Duration::ZERO, None).await.unwrap();
            let exit = driver.wait_task(&task.id).await.unwrap();
            assert_eq!((exit.signal, exit.oom_killed), (9, false), "{}", driver.name());
            driver.destroy_task(&task.id, false).await.unwrap();
        }
    });
}

fn c2_pids_limit_holds() {
    block_on(async {
        let world = World::new();
        let mut task = world.script("for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & done; wait");
        task.config.values.insert("pids_limit".into(), 4.into());
        let (exit, _, stderr) = world.run(&world.exec, &task).await;
        assert!(!exit.successful() && stderr.to_lowercase().contains("fork"), "{exit:?} {stderr}");
    });
}

fn d2_output_is_complete_and_rotated() {
    block_on(async {
        let world = World::new();
        let mut task = world.script(
            "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; echo err >&2; printf end > /dev/stdout",
        );
        let logs = task.logs.as_mut().unwrap();
        logs.max_file_size_bytes = 50_000;
        let (_, stdout, stderr) = world.run(&world.exec, &task).await;
        let expected: String = (0..20000).map(|i| format!("line {i}\n")).chain(["end".to_owned()]).collect();
        assert!(stdout == expected, "{} of {} bytes", stdout.len(), expected.len());
        assert_eq!(stderr, "err\n");
        let logs = task.logs.as_ref().unwrap();
        assert!(logs.dir.join(format!("{}.2", logs.stdout_file)).exists());
        assert!(logs.dir.join(format!("{}.0", logs.stdout_file)).metadata().unwrap().len() <= 50_000);
    });
}

fn n3_a_missing_command_and_a_bad_one() {
    block_on(async {
        let world = World::new();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            for command in ["no-such-command", "/no/such/command"] {
                let task = world.task(command, &[]);
                let result = driver.start_task(&task).await;
                let Err(DriverError::CommandNotFound(text)) = &result else { panic!("{command}: {result:?}") };
                if driver.name() == "exec" {
                    let bare = text.ends_with(&format!("file {command} not found under path"));
                    assert_eq!(bare, !command.contains('/'), "{text}");
                }
                world.assert_gone(&task).await;
            }
            let mode = || std::fs::metadata("/etc/passwd").unwrap().mode();
            let before = mode();
            let task = world.task("/etc/passwd", &[]);
            let result = driver.start_task(&task).await;
            assert!(matches!(result, Err(DriverError::CommandNotExecutable(_))), "{result:?}");
            assert_eq!(mode(), before, "naming a file of the host changes nothing");
            world.assert_gone(&task).await;
        }
    });
}

/// Nomad's drivers make executable whatever a job names: where ours do not, the error says why.
fn n3_what_is_not_made_executable_is_told_of() {
    block_on(async {
        let world = World::new();
        let plain = |path: &Path, text: &str, mode| {
            std::fs::write(path, text).unwrap();
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let says = async |driver: &dyn Driver, command: &str| {
            let task = world.task(command, &[]);
            let result = driver.start_task(&task).await;
            world.assert_gone(&task).await;
            match result {
                Err(DriverError::CommandNotExecutable(text)) => text,
                other => panic!("{command}: {other:?}"),
            }
        };
        drop(world.script("true"));
        std::fs::set_permissions(world.alloc_dir(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let (tool, text) = (world.task_dir().join("local/tool"), world.task_dir().join("local/text"));
        let outside = world.dir.path().join("text");
        plain(&tool, "#!/bin/sh\n", 0o600);
        std::fs::hard_link(&tool, world.dir.path().join("second")).unwrap();
        plain(&text, "echo\n", 0o755);
        plain(&outside, "echo\n", 0o600);
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let said = says(driver, "local/tool").await;
            assert!(said.contains("a second name") && said.contains("chmod +x"), "{}: {said}", driver.name());
            let said = says(driver, "local/text").await;
            assert!(said.contains("#!/bin/sh"), "{}: {said}", driver.name());
        }
        // Whoever may not read it gets no right to execute it either.
        let private = world.task_dir().join("local/private");
        plain(&private, "#!/bin/sh\n", 0o700);
        let said = says(&world.exec, "local/private").await;
        assert!(said.contains("its mode is 0700 and its owner user 0") && said.contains("chmod +x"), "{said}");
        let said = says(&world.raw_exec, outside.to_str().unwrap()).await;
        assert!(said.contains("begins neither with #!"), "{said}");
        for file in [tool, outside] {
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
        }
    });
}

/// Whoever writes a task's logs goes by other sizes than those of its `config`, and an event says so.
fn n2_sizes_that_nobody_goes_by_are_told_of() {
    block_on(async {
        let world = World::new();
        let compute = Compute { total_mhz: 2000, cores: 2 };
        let socket_dir = world.dir.path().to_owned();
        let driver =
            ExecDriver::new(Settings { cgroups: world.cgroups.clone(), compute, socket_dir, host: Host::NOMAD });
        for (collect, told) in [(false, true), (true, false)] {
            let values = json!({ "collect_logs": collect }).as_object().unwrap().clone();
            driver.set_config(&DriverConfig { values, ..DriverConfig::default() }, None).unwrap();
            let mut events = driver.task_events().unwrap();
            let mut task = world.script_with("true", &json!({ "logs": { "max_files": 3 } }));
            // An agent does not say how it would collect.
            task.logs = None;
            if world.cgroups.regime() == Regime::V2 {
                let tree = world.cgroups.hierarchies().next().unwrap().mount_point.clone();
                task.cpuset_cgroup = tree.join(&task.cgroup);
            }
            driver.start_task(&task).await.unwrap();
            driver.wait_task(&task.id).await.unwrap();
            driver.destroy_task(&task.id, true).await.unwrap();
            let message = events.try_recv().map(|event| event.message);
            let of_logs = message.as_ref().is_ok_and(|text| text.contains("logs block in this task's config"));
            assert_eq!(of_logs, told, "{message:?}");
        }
    });
}

fn n5_killed_executor_takes_its_task_along() {
    block_on(async {
        let world = World::new();
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let task = world.script("echo ready; (setsid sleep 1000 &); exec sleep 1000");
            let before = sleepers();
            let TaskHandle { executor, .. } = driver.start_task(&task).await.unwrap();
            let reattach = executor.unwrap();
            eventually("both sleeps", || sleepers().len() == before.len() + 2).await;
            let pid = rustix::process::Pid::from_raw(reattach.process.pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            let error = driver.wait_task(&task.id).await.unwrap_err();
            assert!(error.to_string().contains("error waiting on process"), "{error}");
            driver.destroy_task(&task.id, true).await.unwrap();
            assert_eq!(sleepers(), before, "{}", driver.name());
            eventually("the executor reaped", || !is_alive(reattach.process.pid)).await;
            world.assert_gone(&task).await;
            assert!(!reattach.socket.exists());
        }
    });
}

/// No call can be made to it for a while, as when there are no descriptors for a connection: neither is its task taken for one that
/// has ended, nor a stop for done.
fn n5_an_executor_that_cannot_be_reached_has_not_ended() {
    block_on(async {
        let world = World::new();
        let driver = &world.raw_exec;
        let task = world.script("until [ -e end ]; do sleep 0.1; done; exit 7");
        let TaskHandle { executor, .. } = driver.start_task(&task).await.unwrap();
        let reattach = executor.unwrap();
        let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", reattach.process.pid)).unwrap().count();
        until_quiet(&descriptors).await;
        let away = reattach.socket.with_extension("away");
        std::fs::rename(&reattach.socket, &away).unwrap();

        let stopped = driver.stop_task(&task.id, Duration::from_secs(1), None).await.unwrap_err();
        assert!(matches!(&stopped, DriverError::Failed { recoverable: true, .. }), "{stopped}");
        std::fs::write(world.task_dir().join("end"), "").unwrap();
        let mut ended = std::pin::pin!(driver.wait_task(&task.id));
        // Longer than the end of a process is waited for.
        assert!(tokio::time::timeout(Duration::from_secs(6), &mut ended).await.is_err());
        std::fs::rename(&away, &reattach.socket).unwrap();
        assert_eq!(ended.await.unwrap().exit_code, 7);
        driver.destroy_task(&task.id, false).await.unwrap();
        world.assert_gone(&task).await;
    });
}

/// Waits until a driver waits for the end of a task without a connection to its executor.
async fn until_quiet(descriptors: &dyn Fn() -> usize) {
    // Until all of the start is over.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let busy = descriptors();
    eventually("the bell", || descriptors() == busy + 1).await;
    eventually("the end of the connection", || descriptors() == busy).await;
}

fn e_start_twice_and_unknown_ids_are_errors() {
    block_on(async {
        let world = World::new();
        let task = world.script("sleep 1000");
        world.exec.start_task(&task).await.unwrap();
        let error = world.exec.start_task(&task).await.unwrap_err().to_string();
        assert!(error.contains("already started"), "{error}");
        world.exec.destroy_task(&task.id, true).await.unwrap();
        for result in [
            world.exec.wait_task(&task.id).await.map(drop),
            world.exec.stop_task("x", Duration::ZERO, None).await,
            world.exec.signal_task("x", Signal::TERM).await,
            world.exec.destroy_task("x", true).await,
        ] {
            assert!(matches!(result, Err(DriverError::TaskNotFound)), "{result:?}");
        }
    });
}
