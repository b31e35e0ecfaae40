//! N6: how a task is held, through real executors on the real kernel. This program embeds agentbin, so every executor and shim
//! below is this very file.

#[path = "support/drivers.rs"]
mod drivers;
#[path = "support/harness.rs"]
mod harness;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use agentbin::cgroup::{CgroupFs, Regime};
use agentbin::driver::{Driver, ExecDriver, Host, NetworkIsolation, NetworkMode, Settings, TaskConfig};
use agentbin::executor::Compute;
use agentbin::spec::DriverConfig;
use agentbin::spec::collections::BTreeMap;
use drivers::{World, output};
use harness::{block_on, children, eventually, is_alive, run, tests};
use serde_json::{Value, json};

/// Set for this program when it runs without the right to raise limits.
const BOUND: &str = "AGENTBIN_TEST_BOUND";
/// Set for this program when it runs as a plain user.
const PLAIN: &str = "AGENTBIN_TEST_PLAIN";
/// How long a command in a task may take; the emulated guest is slow.
const PATIENCE: Duration = Duration::from_mins(5);

fn main() -> ExitCode {
    agentbin::init();
    if std::env::var_os(PLAIN).is_some() {
        return run(tests![n6_without_root_each_level_holds, n6_without_root_disks_cannot_be_limited]);
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("hardening", "needs root for cgroups, users and mounts");
    }
    if std::env::var_os(BOUND).is_some() {
        return run(tests![n6_a_limit_is_not_raised_without_the_right_to]);
    }
    run(tests![
        n6_each_level_holds_task_and_sessions,
        n6_each_level_holds_a_task_that_is_root,
        n6_own_namespaces_are_the_sessions_too,
        n6_a_strict_network_has_only_lo,
        n6_a_network_that_is_given_is_joined,
        n6_a_user_namespace_has_host_ids_of_its_own,
        n6_tasks_with_and_without_host_ids_share_their_allocation,
        n6_files_of_the_host_are_given_to_the_task,
        n6_capabilities_hold_in_the_user_namespace_only,
        n6_masks_are_those_of_the_level,
        n6_limits_hold_in_task_and_sessions,
        n6_impossible_limits_are_named,
        n6_limits_need_the_right_to_raise_them,
        n6_what_is_not_unveiled_is_denied,
        n6_what_may_only_be_read_stays_as_it_is,
        n6_what_cannot_be_unveiled_is_an_error,
        n6_processes_are_limited_by_default,
        n6_disks_are_limited,
        n6_a_filter_holds_and_can_be_a_file,
        n6_raw_exec_has_what_needs_no_root,
        n6_a_plain_user_is_held_too,
        a_test_that_fails_leaves_nothing,
    ])
}

/// Its task outlives its executor, and nobody takes it over any more.
fn a_test_that_fails_leaves_nothing() {
    let ran = Mutex::new(Vec::new());
    let failed = std::panic::catch_unwind(AssertUnwindSafe(|| {
        block_on(async {
            let world = World::new();
            let socket_dir = world.dir.path().to_owned();
            let compute = Compute { total_mhz: 2000, cores: 2 };
            let settings = Settings { cgroups: world.cgroups.clone(), compute, socket_dir, host: Host::NOMAD };
            let driver = ExecDriver::new(settings);
            let mut task = world.staying("true", &json!({ "on_executor_loss": "adopt" }));
            if world.cgroups.regime() == Regime::V2 {
                let tree = world.cgroups.hierarchies().next().unwrap().mount_point.clone();
                task.cpuset_cgroup = tree.join(&task.cgroup);
            }
            driver.start_task(&task).await.unwrap();
            eventually("the task runs", || read(&task).ends_with("done\n")).await;
            let own = procfs::process::Process::myself().unwrap().pid;
            let all = procfs::process::all_processes().unwrap().flatten().filter_map(|p| p.stat().ok());
            let all: Vec<_> = all.map(|stat| (stat.pid, stat.ppid)).collect();
            let executors = all.iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| *pid);
            let tasks = executors.flat_map(|executor| all.iter().filter(move |(_, parent)| *parent == executor));
            ran.lock().unwrap().extend(tasks.map(|(pid, _)| *pid));
            // Without the noise of a failure.
            std::panic::resume_unwind(Box::new("this test fails"));
        });
    }));
    assert!(failed.is_err());
    let ran = ran.into_inner().unwrap();
    assert!(!ran.is_empty(), "there was a task");
    assert_eq!(children(), Vec::<i32>::new(), "executors are left");
    assert!(!ran.iter().any(|pid| is_alive(*pid)), "a task is left");
    for hierarchy in CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap().hierarchies() {
        let left = hierarchy.mount_point.join(format!("nomad/alloc-{}.task", std::process::id()));
        assert!(!left.exists(), "{} is left", left.display());
    }
}

impl World {
    /// Runs a script to its end; what it says.
    async fn says(&self, text: &str, keys: &Value) -> String {
        self.says_of(self.script_with(text, keys)).await
    }

    async fn says_of(&self, task: TaskConfig) -> String {
        self.exec.start_task(&task).await.unwrap();
        self.exec.wait_task(&task.id).await.unwrap();
        self.exec.destroy_task(&task.id, false).await.unwrap();
        self.assert_gone(&task).await;
        read(&task)
    }

    async fn refuses(&self, keys: &Value) -> String {
        let task = self.script_with("true", keys);
        let error = self.exec.start_task(&task).await.unwrap_err().to_string();
        self.assert_gone(&task).await;
        error
    }

    /// What a script says as the task and, while the task runs, in a session.
    async fn both(&self, driver: &dyn Driver, text: &str, task: TaskConfig) -> (String, String) {
        driver.start_task(&task).await.unwrap();
        eventually("the task's last line", || read(&task).ends_with("done\n")).await;
        let command = ["/bin/sh", "-c", text].map(str::to_owned);
        let session = driver.exec_task(&task.id, &command, PATIENCE).await.unwrap();
        driver.destroy_task(&task.id, true).await.unwrap();
        self.assert_gone(&task).await;
        let task = read(&task).trim_end_matches("done\n").to_owned();
        (task, String::from_utf8(session.stdout).unwrap())
    }

    /// A task that runs a script and then stays.
    fn staying(&self, text: &str, keys: &Value) -> TaskConfig {
        self.script_with(&format!("{text}\necho done; exec sleep 1000000"), keys)
    }

    /// What task and session say alike.
    async fn alike(&self, text: &str, keys: &Value) -> String {
        let (task, session) = self.both(&self.exec, text, self.staying(text, keys)).await;
        assert_eq!(task, session, "task and session differ: {keys}");
        task
    }
}

fn read(task: &TaskConfig) -> String {
    let (stdout, stderr) = output(task);
    stderr + &stdout
}

/// Who and how held a process is, as the kernel says.
const STATUS: &str = "grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status";
const NAMESPACES: &str = "for n in cgroup ipc mnt net pid user uts; do echo $n $(readlink /proc/self/ns/$n); done";

fn has(text: &str, line: &str) {
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.lines().any(|l| squeezed(l) == line), "no line {line:?} in: {text}");
}

/// What the kernel says of a process of nobody at this level.
fn has_nobodys_status(text: &str, level: &str, seccomp: &str, no_new_privs: &str) {
    let caps = if level == "nomad" { "00000000a80405fb" } else { "0000000000000000" };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        has(text, &format!("{set}: {caps}"));
    }
    has(text, &format!("Seccomp: {seccomp}"));
    has(text, &format!("NoNewPrivs: {no_new_privs}"));
    has(text, "Uid: 65534 65534 65534 65534");
}

fn host_namespace(name: &str) -> String {
    std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap().display().to_string()
}

/// Seccomp and `NoNewPrivs` as `/proc/self/status` shows them, by level.
const LEVELS: [(&str, &str, &str); 3] = [("nomad", "0", "0"), ("default", "2", "1"), ("strict", "2", "1")];

/// The 38 capabilities that root has in a task of Nomad's own drivers.
const NOMAD_ROOT: u64 = 0x3f_ffff_ffff;

fn n6_each_level_holds_task_and_sessions() {
    block_on(async {
        let world = World::new();
        for (level, seccomp, no_new_privs) in LEVELS {
            let text = world.alike(STATUS, &json!({ "isolation": level })).await;
            has_nobodys_status(&text, level, seccomp, no_new_privs);
            has(&text, "Gid: 65534 65534 65534 65534");
            has(&text, "Groups: 65534");
        }
    });
}

fn n6_each_level_holds_a_task_that_is_root() {
    block_on(async {
        let world = World::new();
        let own = std::fs::read_to_string("/proc/self/status").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
        let own = u64::from_str_radix(own.trim(), 16).unwrap();
        for (level, seccomp, no_new_privs) in LEVELS {
            let mut task = world.staying(STATUS, &json!({ "isolation": level }));
            task.user = "root".into();
            if level == "nomad" && own & NOMAD_ROOT != NOMAD_ROOT {
                let error = world.exec.start_task(&task).await.unwrap_err().to_string();
                assert!(error.contains("set capabilities: the executor itself lacks CAP_"), "{error}");
                continue;
            }
            let (text, session) = world.both(&world.exec, STATUS, task).await;
            assert_eq!(text, session, "{level}");
            let caps = format!("{:016x}", if level == "nomad" { NOMAD_ROOT } else { 0x2004_05eb });
            for (set, expected) in [("CapInh", "0000000000000000"), ("CapEff", &caps), ("CapBnd", &caps)] {
                has(&text, &format!("{set}: {expected}"));
            }
            has(&text, &format!("Seccomp: {seccomp}"));
            has(&text, &format!("NoNewPrivs: {no_new_privs}"));
            has(&text, "Uid: 0 0 0 0");
        }
        // Without no_new_privs and CAP_SYS_ADMIN the filter has to be there before the capabilities go.
        for user in ["root", "nobody"] {
            let mut task = world.staying(STATUS, &json!({ "no_new_privs": false, "cap_add": ["kill"] }));
            task.user = user.into();
            let (text, session) = world.both(&world.exec, STATUS, task).await;
            assert_eq!(text, session, "{user}");
            has(&text, "Seccomp: 2");
            has(&text, "NoNewPrivs: 0");
            let caps = if user == "root" { "00000000200405eb" } else { "0000000000000020" };
            has(&text, &format!("CapEff: {caps}"));
        }
    });
}

fn n6_own_namespaces_are_the_sessions_too() {
    block_on(async {
        let world = World::new();
        for (level, own) in [
            ("nomad", &["mnt", "pid", "ipc"][..]),
            ("default", &["mnt", "pid", "ipc", "uts", "cgroup"]),
            ("strict", &["mnt", "pid", "ipc", "uts", "cgroup", "net", "user"]),
        ] {
            let text = world.alike(NAMESPACES, &json!({ "isolation": level })).await;
            for name in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
                let host = text.contains(&host_namespace(name));
                assert_eq!(host, !own.contains(&name), "{level} {name}: {text}");
            }
            let cgroup = world.alike("cat /proc/self/cgroup", &json!({ "isolation": level })).await;
            // On v1 also in a namespace of its own: programs look for its name there.
            if own.contains(&"cgroup") && world.cgroups.regime() == Regime::V2 {
                assert_eq!(cgroup, "0::/\n", "{level}");
            } else {
                assert!(cgroup.contains("agentbin-test"), "{level}: {cgroup}");
            }
        }
    });
}

fn n6_a_strict_network_has_only_lo() {
    block_on(async {
        let world = World::new();
        let text =
            world.alike("ls /sys/class/net; cat /sys/class/net/lo/flags", &json!({ "isolation": "strict" })).await;
        assert_eq!(text, "lo\n0x9\n", "nothing but lo, and it is up");
        let text = world.says("ls /sys/class/net", &json!({})).await;
        let host = std::fs::read_dir("/sys/class/net").unwrap().count();
        assert_eq!(text.lines().count(), host, "the host's network: {text}");
    });
}

/// A network namespace with a name, held by a process of ours.
fn n6_a_network_that_is_given_is_joined() {
    let mut holder =
        Command::new("unshare").args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let holder = holder.as_mut().unwrap();
    // What comes back from it comes after it has moved.
    std::io::Write::write_all(holder.stdin.as_mut().unwrap(), b"x").unwrap();
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let path = PathBuf::from(format!("/proc/{}/ns/net", holder.id()));
    let given = std::fs::read_link(&path).unwrap().display().to_string();
    assert_ne!(given, host_namespace("net"));
    let texts = block_on(async {
        let world = World::new();
        let mut texts = Vec::new();
        for level in ["nomad", "default", "strict"] {
            let mut task = world.script_with("readlink /proc/self/ns/net", &json!({ "isolation": level }));
            task.network = Some(NetworkIsolation {
                mode: NetworkMode::Group,
                path: path.clone(),
                labels: BTreeMap::new(),
                hosts: None,
            });
            world.exec.start_task(&task).await.unwrap();
            world.exec.wait_task(&task.id).await.unwrap();
            world.exec.destroy_task(&task.id, false).await.unwrap();
            texts.push((level, read(&task)));
        }
        texts
    });
    holder.kill().unwrap();
    holder.wait().unwrap();
    for (level, text) in texts {
        assert_eq!(text.trim(), given, "{level}");
    }
}

/// A host whose `/etc` says what a test wants.
fn etc_with_groups(dir: &Path) -> PathBuf {
    let etc = dir.join("etc");
    std::fs::create_dir_all(&etc).unwrap();
    std::fs::write(etc.join("passwd"), "root:x:0:0::/:/bin/sh\nweb:x:1234:4321::/:/bin/sh\n").unwrap();
    std::fs::write(etc.join("group"), "root:x:0:\nweb:x:4321:\nlog:x:77:web\nadm:x:78:other,web\n").unwrap();
    etc
}

fn n6_a_user_namespace_has_host_ids_of_its_own() {
    block_on(async {
        let world = World::new();
        let etc = etc_with_groups(world.dir.path());
        let mut folders: serde_json::Map<String, Value> = ["/bin", "/lib", "/lib64", "/usr", "/sbin"]
            .into_iter()
            .filter(|path| Path::new(path).exists())
            .map(|path| (path.to_owned(), path.into()))
            .collect();
        folders.insert(etc.to_str().unwrap().to_owned(), "/etc".into());
        for host_ids in ["shared", "own"] {
            let values = json!({ "chroot_env": folders, "host_ids": host_ids }).as_object().unwrap().clone();
            world.exec.set_config(&DriverConfig { values, ..DriverConfig::default() }, None).unwrap();
            for (user, uid, groups) in [("web", 1234, &[77, 78, 4321][..]), ("root", 0, &[0])] {
                has_users_ids(&world, host_ids == "own", user, uid, groups).await;
            }
        }
        let error = {
            let mut task = world.script_with("true", &json!({ "user_namespace": true, "pids_limit": 1 }));
            task.user = "web".into();
            world.exec.start_task(&task).await.unwrap_err().to_string()
        };
        assert!(error.contains("pids_limit must leave room for two"), "{error}");
        // A number that 16 bits cannot hold.
        std::fs::write(etc.join("passwd"), "far:x:100000:100000::/:/bin/sh\n").unwrap();
        let mut task = world.script_with("true", &json!({ "user_namespace": true }));
        task.user = "far".into();
        let error = world.exec.start_task(&task).await.unwrap_err().to_string();
        assert!(error.contains("has the uid 100000") && error.contains("host_ids = \"shared\""), "{error}");
    });
}

/// Inside they are the same with host ids of the allocation's own and without.
async fn has_users_ids(world: &World, own: bool, user: &str, uid: u32, groups: &[u32]) {
    let script = "cat /proc/self/uid_map; echo; cat /proc/self/gid_map; echo; grep -E '^(Uid|Gid|Groups)' \
        /proc/self/status; : > /local/made-$$; stat -c '%u %g' /local/made-*";
    let mut task = world.staying(script, &json!({ "user_namespace": true, "cap_drop": ["all"] }));
    task.user = user.into();
    let (text, session) = world.both(&world.exec, script, task).await;
    let (uid_map, rest) = text.split_once("\n\n").unwrap();
    let (gid_map, rest) = rest.split_once("\n\n").unwrap();
    let numbers = |map: &str| map.split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<u32>>();
    let base = if own {
        let [0, base, 65_536] = numbers(uid_map)[..] else { panic!("{text}") };
        assert_eq!(numbers(gid_map), [0, base, 65_536], "{text}");
        assert!((1_879_048_192..=2_147_287_040).contains(&base) && base.is_multiple_of(65_536), "{text}");
        base
    } else {
        assert_eq!(numbers(uid_map), [uid, uid, 1], "{text}");
        assert_eq!(numbers(gid_map), groups.iter().flat_map(|group| [*group, *group, 1]).collect::<Vec<_>>(), "{text}");
        0
    };
    has(rest, &format!("Uid: {uid} {uid} {uid} {uid}"));
    let gid = groups.last().unwrap();
    has(rest, &format!("Gid: {gid} {gid} {gid} {gid}"));
    let listed = rest.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
    let mut listed: Vec<u32> = listed.split_whitespace().map(|group| group.parse().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, groups, "{text}");
    has(rest, &format!("{uid} {gid}"));
    assert!(session.starts_with(&format!("{uid_map}\n\n{gid_map}\n")), "{session}");
    for entry in std::fs::read_dir(world.task_dir().join("local")).unwrap().flatten() {
        let metadata = entry.metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (base + uid, base + gid), "{entry:?}");
        std::fs::remove_file(entry.path()).unwrap();
    }
}

/// Of one allocation, one task in a user namespace and one without: what one puts into `/alloc` the other finds there.
fn n6_tasks_with_and_without_host_ids_share_their_allocation() {
    block_on(async {
        let world = World::new();
        let at = |name: &str| world.dir.path().join(name);
        let strict = json!({ "isolation": "strict" });
        for (first, second, user) in
            [(&strict, &json!({}), "nobody"), (&json!({}), &strict, "root"), (&strict, &strict, "root")]
        {
            let put =
                "umask 022; mkdir -p /alloc/data/dir; chmod 777 /alloc/data/dir; echo hello > /alloc/data/dir/file";
            let mut task = world.script_with(put, first);
            task.user = user.into();
            let (alloc_dir, said) = (task.alloc_dir.clone(), world.says_of(task).await);
            assert_eq!(said, "", "{first}");
            let get = "cat /alloc/data/dir/file; rm /alloc/data/dir/file && echo mine > /alloc/data/dir/file; cat /alloc/data/dir/file";
            let mut task = world.script_with(get, second);
            task.user = user.into();
            assert_eq!(world.says_of(task).await, "hello\nmine\n", "{second}");
            std::fs::remove_dir_all(alloc_dir.join("alloc/data/dir")).unwrap();
        }
        // Files of the host that nobody is to read, or to change, stay the host's; those that everybody may read can be.
        std::fs::write(at("closed"), "closed").unwrap();
        std::fs::set_permissions(at("closed"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let values = json!({ "chroot_env": { "/bin": "/bin", "/lib": "/lib", "/lib64": "/lib64", "/usr": "/usr", "/etc": "/etc",
            world.dir.path().to_str().unwrap(): "/host" } });
        let values = values.as_object().unwrap().clone();
        world.exec.set_config(&DriverConfig { values, ..DriverConfig::default() }, None).unwrap();
        let mut task = world.script_with("cat /host/closed /etc/shadow; grep -c root: /etc/passwd; id -u", &strict);
        task.user = "root".into();
        let said = world.says_of(task).await;
        assert!(said.contains("/host/closed: Permission denied"), "{said}");
        // Closed, or covered where its file system cannot be closed; of neither is there a line.
        assert!(!said.contains("root:"), "{said}");
        assert!(said.ends_with("1\n0\n"), "{said}");
    });
}

/// What whoever starts a task has put into its directories is the task's; what an agent writes later is not, and is told of.
fn n6_files_of_the_host_are_given_to_the_task() {
    block_on(async {
        let world = World::new();
        let compute = Compute { total_mhz: 2000, cores: 2 };
        let socket_dir = world.dir.path().to_owned();
        let settings = Settings { cgroups: world.cgroups.clone(), compute, socket_dir, host: Host::NOMAD };
        let driver = ExecDriver::new(settings.clone());
        let mut events = driver.task_events().unwrap();
        let mut task =
            world.script_with("cat /local/conf; echo done; exec sleep 1000000", &json!({ "isolation": "strict" }));
        task.user = "root".into();
        if world.cgroups.regime() == Regime::V2 {
            let tree = world.cgroups.hierarchies().next().unwrap().mount_point.clone();
            task.cpuset_cgroup = tree.join(&task.cgroup);
        }
        task.config.values.insert("on_executor_loss".into(), "adopt".into());
        let conf = world.task_dir().join("local/conf");
        let write = |mode| {
            let _ = std::fs::remove_file(&conf);
            std::fs::write(&conf, "secret\n").unwrap();
            std::fs::set_permissions(&conf, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write(0o600);
        let logs = task.logs.clone().unwrap();
        task.stdout_path = logs.dir.join(format!("{}.0", logs.stdout_file)).display().to_string();
        std::fs::write(&task.stdout_path, "").unwrap();
        let handle = driver.start_task(&task).await.unwrap();
        eventually("the file was read", || output(&task).0.ends_with("secret\ndone\n")).await;
        let owner = conf.metadata().unwrap().uid();
        assert!(owner >= 1_879_048_192, "{owner}");
        // What every task of root is told comes first.
        let first = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap().message;
        assert!(first.contains("set-id bits"), "{first}");
        let mut next = async || tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap().message;
        let told = next().await;
        assert!(told.contains("\"local/conf\" any more once the agent writes it anew"), "{told}");
        // Written anew: readable, which nobody is told of, and not.
        for mode in [0o644, 0o600, 0o600] {
            write(mode);
            driver.signal_task(&task.id, agentbin::spec::Signal::from_number(18).unwrap()).await.unwrap();
            assert_eq!(conf.metadata().unwrap().uid(), 0);
        }
        let told = next().await;
        assert!(told.contains("cannot read \"local/conf\"") && told.contains("perms = \"0644\""), "{told}");
        assert!(events.try_recv().is_err(), "told once");
        // The executor that takes the task over knows whose ids they are.
        let killed = handle.executor.as_ref().unwrap().process.pid;
        let killed = rustix::process::Pid::from_raw(killed).unwrap();
        rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
        let script = "cat /proc/self/uid_map; stat -Lc '%u %g' /proc/self; echo again > /dev/stdout";
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let said = loop {
            match driver.exec_task(&task.id, &command, PATIENCE).await {
                Ok(said) => break String::from_utf8(said.stdout).unwrap(),
                Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(said.split_whitespace().collect::<Vec<_>>().join(" "), format!("0 {owner} 65536 0 0 again"));
        // A driver that was started anew knows as much.
        let next = ExecDriver::new(settings);
        let mut events = next.task_events().unwrap();
        next.recover_task(&task, &handle.driver_state).await.unwrap();
        next.signal_task(&task.id, agentbin::spec::Signal::from_number(18).unwrap()).await.unwrap();
        let told = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap().message;
        assert!(told.contains("cannot read \"local/conf\""), "{told}");
        next.destroy_task(&task.id, true).await.unwrap();
    });
}

fn n6_capabilities_hold_in_the_user_namespace_only() {
    block_on(async {
        let world = World::new();
        let script = "grep CapEff /proc/self/status; cat /alloc/data/roots 2>&1; kill -0 $$ && echo signalled";
        for (user_namespace, readable) in [(false, true), (true, false)] {
            let keys = json!({ "user_namespace": user_namespace, "cap_add": ["dac_override"] });
            let task = world.staying(script, &keys);
            let secret = world.alloc_dir().join("alloc/data/roots");
            std::fs::write(&secret, "secret").unwrap();
            std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
            let (text, session) = world.both(&world.exec, script, task).await;
            assert_eq!(text, session);
            has(&text, "CapEff: 0000000000000002");
            assert_eq!(text.contains("secret"), readable, "{text}");
            assert_eq!(text.contains("ermission denied"), !readable, "{text}");
        }
    });
}

fn n6_masks_are_those_of_the_level() {
    block_on(async {
        let world = World::new();
        // Mounts below /proc and /sys, each with its options.
        let script = "while read -r _ _ _ _ target options _; do case $target in /proc/*|/sys/*) echo $target;; esac; done \
            < /proc/self/mountinfo";
        let there = |paths: &[&str]| -> Vec<String> {
            paths.iter().filter(|path| Path::new(path).exists()).map(|path| (*path).to_owned()).collect()
        };
        let nomad =
            there(&["/proc/kcore", "/sys/firmware", "/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"]);
        let mut all = nomad.clone();
        all.extend(there(&[
            "/proc/keys",
            "/proc/latency_stats",
            "/proc/timer_list",
            "/proc/timer_stats",
            "/proc/sched_debug",
            "/proc/interrupts",
            "/proc/acpi",
            "/proc/scsi",
            "/proc/asound",
            "/proc/fs",
            "/sys/devices/virtual/powercap",
        ]));
        for entry in std::fs::read_dir("/sys/devices/system/cpu").unwrap().flatten() {
            let path = entry.path().join("thermal_throttle");
            if path.exists() {
                all.push(path.display().to_string());
            }
        }
        for (level, mut expected) in [("nomad", nomad), ("default", all.clone()), ("strict", all)] {
            let text = world.alike(script, &json!({ "isolation": level })).await;
            let mut found: Vec<&str> = text.lines().collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{level}");
        }
    });
}

const LIMITS: &str = "grep -E '^Max (open files|core file size|processes|file locks)' /proc/self/limits";

fn n6_limits_hold_in_task_and_sessions() {
    block_on(async {
        let world = World::new();
        let keys = json!({ "ulimit": [{ "nofile": "100:200", "nproc": "1000:2000", "locks": 7 }] });
        let text = world.alike(LIMITS, &keys).await;
        has(&text, "Max open files 100 200 files");
        has(&text, "Max processes 1000 2000 processes");
        has(&text, "Max file locks 7 7 locks");
        has(&text, "Max core file size 0 0 bytes");
        let own = std::fs::read_to_string("/proc/self/limits").unwrap();
        let core = own.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let core = core.split_whitespace().collect::<Vec<_>>().join(" ");
        has(&world.alike(LIMITS, &json!({ "isolation": "nomad" })).await, &core);
        let text = world.alike(LIMITS, &json!({ "ulimit": { "core": "1024:-1" } })).await;
        has(&text, "Max core file size 1024 unlimited bytes");
    });
}

fn n6_impossible_limits_are_named() {
    block_on(async {
        let world = World::new();
        let error = world.refuses(&json!({ "ulimit": { "nofile": "unlimited" } })).await;
        let most = std::fs::read_to_string("/proc/sys/fs/nr_open").unwrap();
        let expected = format!(
            "set ulimit nofile to unlimited:unlimited: this machine allows {} at most (sysctl fs.nr_open)",
            most.trim()
        );
        assert!(error.contains(&expected), "{error}");
    });
}

/// This very program once more, without `CAP_SYS_RESOURCE` for itself and all that it starts.
fn n6_limits_need_the_right_to_raise_them() {
    let mut command = Command::new("/proc/self/exe");
    command.env(BOUND, "1").env("RUST_BACKTRACE", "0");
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(|| {
            let limit = rustix::process::Rlimit { current: Some(512), maximum: Some(1024) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
            rustix::thread::remove_capability_from_bounding_set(rustix::thread::CapabilitySet::SYS_RESOURCE)?;
            Ok(())
        })
    };
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

fn n6_a_limit_is_not_raised_without_the_right_to() {
    block_on(async {
        let world = World::new();
        let error = world.refuses(&json!({ "ulimit": { "nofile": "100:2000" } })).await;
        let expected = "set ulimit nofile to 100:2000: the executor may not raise it above 1024 (it lacks \
            CAP_SYS_RESOURCE)";
        assert!(error.contains(expected), "{error}");
        let text = world.alike(LIMITS, &json!({ "ulimit": { "nofile": "100:1000" } })).await;
        has(&text, "Max open files 100 1000 files");
    });
}

/// What a shell needs to run.
const SHELL: [&str; 5] = ["rx:/bin", "rx:/usr", "rx:/lib", "rx:/lib64", "r:/etc"];

fn unveiling(more: &[&str]) -> Value {
    let shell = SHELL.iter().filter(|rule| Path::new(rule.split_once(':').unwrap().1).is_dir());
    json!({ "unveil": shell.chain(more).collect::<Vec<_>>() })
}

/// Whether this kernel can do it; if not, a task that asks for it does not start.
async fn can_unveil(world: &World) -> bool {
    let task = world.script_with("true", &unveiling(&["r:/local"]));
    match world.exec.start_task(&task).await {
        Ok(_) => {
            world.exec.wait_task(&task.id).await.unwrap();
            world.exec.destroy_task(&task.id, false).await.unwrap();
            true
        }
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("unveil needs Linux 6.2 or newer with Landlock"), "{text}");
            world.assert_gone(&task).await;
            false
        }
    }
}

fn n6_what_is_not_unveiled_is_denied() {
    block_on(async {
        let world = World::new();
        if !can_unveil(&world).await {
            return println!("SKIP: n6_what_is_not_unveiled_is_denied: no Landlock here; that it is refused was seen");
        }
        let script = "try() { if (eval \"$1\") 2>/dev/null; then echo \"yes $1\"; else echo \"no $1\"; fi; }; \
            try 'echo x > /local/new'; try 'cat /local/in'; try 'mkdir /local/dir && rmdir /local/dir'; rm -f /local/new; \
            try 'cat /alloc/data/in'; try 'ls /'; try ': > /tmp/new'; try 'cat /ro/in'; try ': > /ro/in'; \
            try ': >> /ro/in'; try 'cp /bin/true /local/t && /local/t'; rm -f /local/t; try ': > /dev/null'; try 'cat /proc/version'";
        for level in ["default", "strict", "nomad"] {
            let mut keys = unveiling(&["rwc:/local", "r:/ro", "rw:/dev/null"]);
            keys["isolation"] = level.into();
            let task = world.staying(script, &keys);
            let ro = world.task_dir().join("ro");
            std::fs::create_dir_all(&ro).unwrap();
            for file in [world.task_dir().join("local/in"), ro.join("in"), world.alloc_dir().join("alloc/data/in")] {
                std::fs::write(&file, "in\n").unwrap();
                std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
            }
            let (text, session) = world.both(&world.exec, script, task).await;
            assert_eq!(text, session, "{level}");
            for (what, allowed) in [
                ("echo x > /local/new", true),
                ("cat /local/in", true),
                ("mkdir /local/dir && rmdir /local/dir", true),
                ("cat /alloc/data/in", false),
                ("ls /", false),
                (": > /tmp/new", false),
                ("cat /ro/in", true),
                (": > /ro/in", false),
                (": >> /ro/in", false),
                ("cp /bin/true /local/t && /local/t", false),
                (": > /dev/null", true),
                ("cat /proc/version", false),
            ] {
                has(&text, &format!("{} {what}", if allowed { "yes" } else { "no" }));
            }
        }
    });
}

/// Landlock holds nobody back from a file's mode, owner, times and attributes.
fn n6_what_may_only_be_read_stays_as_it_is() {
    block_on(async {
        let world = World::new();
        if !can_unveil(&world).await {
            return println!(
                "SKIP: n6_what_may_only_be_read_stays_as_it_is: no Landlock here; that it is refused was seen"
            );
        }
        let script = "for file in /local/in /alloc/data/in; do chattr +d $file; chmod 644 $file; touch -d @0 $file; chgrp 0 $file; \
                      done 2>/dev/null; cat /local/in";
        let files = [world.task_dir().join("local/in"), world.alloc_dir().join("alloc/data/in")];
        for (rule, seccomp, changed) in
            [("r:/local", "default", false), ("r:/local", "unconfined", false), ("rw:/local", "default", true)]
        {
            for file in &files {
                std::fs::write(file, "in").unwrap();
                std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
                std::os::unix::fs::chown(file, Some(65534), None).unwrap();
            }
            let seen = || {
                files.clone().map(|file| {
                    let meta = file.metadata().unwrap();
                    (meta.mode(), meta.gid(), meta.mtime(), meta.ctime(), meta.ctime_nsec())
                })
            };
            let before = seen();
            let mut keys = unveiling(&[rule, "rw:/dev/null"]);
            keys["seccomp"] = seccomp.into();
            let text = world.alike(script, &keys).await;
            has(&text, "in");
            assert_eq!(before != seen(), changed, "{rule} {seccomp}: {before:?} and {:?}", seen());
        }
    });
}

fn n6_what_cannot_be_unveiled_is_an_error() {
    block_on(async {
        let world = World::new();
        if !can_unveil(&world).await {
            return println!(
                "SKIP: n6_what_cannot_be_unveiled_is_an_error: no Landlock here; that it is refused was seen"
            );
        }
        drop(world.script_with("true", &json!({})));
        std::os::unix::fs::symlink("/", world.task_dir().join("local/all")).unwrap();
        std::fs::write(world.task_dir().join("local/file"), "").unwrap();
        for (rule, why) in [
            ("r:/no/such/place", "unveil r:/no/such/place: No such file"),
            ("rwxc:/local/all", "name the place to which the link leads"),
            ("r:/../etc", "ross-device"),
            ("c:/local/file", "of these only directories have something"),
        ] {
            let error = world.refuses(&unveiling(&[rule])).await;
            assert!(error.contains(why) && error.contains(rule), "{error}");
        }
        let error = world.refuses(&json!({ "unveil": ["r:/local"] })).await;
        assert!(error.contains("execute /bin/sh") && error.contains("unveil"), "{error}");
    });
}

fn n6_processes_are_limited_by_default() {
    block_on(async {
        let world = World::new();
        let max = async |keys: &Value| {
            let task = world.staying("", keys);
            world.exec.start_task(&task).await.unwrap();
            let max = world.cgroup_file(&task, "pids", "pids.max", "pids.max");
            world.exec.destroy_task(&task.id, true).await.unwrap();
            max.unwrap()
        };
        for (keys, expected) in [
            (json!({}), "4096"),
            (json!({ "isolation": "strict" }), "4096"),
            (json!({ "isolation": "nomad" }), "max"),
            (json!({ "pids_limit": 0 }), "max"),
            (json!({ "pids_limit": 9, "isolation": "nomad" }), "9"),
        ] {
            assert_eq!(max(&keys).await, expected, "{keys}");
        }
        let values = json!({ "pids_limit": 123, "isolation": "nomad" }).as_object().unwrap().clone();
        world.exec.set_config(&DriverConfig { values, ..DriverConfig::default() }, None).unwrap();
        assert_eq!(max(&json!({})).await, "123", "the plugin's");
        assert_eq!(max(&json!({ "pids_limit": 7 })).await, "7", "the task's");
    });
}

/// A whole disk with a node, as the kernel names it.
fn a_disk() -> Option<(PathBuf, String)> {
    let disks = std::fs::read_dir("/sys/block").ok()?.flatten();
    disks
        .filter_map(|disk| {
            let number = std::fs::read_to_string(disk.path().join("dev")).ok()?.trim().to_owned();
            let node = Path::new("/dev").join(disk.file_name());
            node.exists().then_some((node, number))
        })
        .min()
}

fn n6_disks_are_limited() {
    block_on(async {
        let world = World::new();
        for (device, why) in [("/dev/null", "it is not a block device"), ("/dev/no-disk", "No such file")] {
            let error = world.refuses(&json!({ "io": [{ "device": device, "read_bps": 1000 }] })).await;
            assert!(error.contains(why) || error.contains("controller is not available"), "{error}");
        }
        // A machine without disks may have the module for those in files; one that is not set up will do.
        let made =
            || Command::new("modprobe").arg("loop").status().ok().filter(ExitStatus::success).and_then(|_| a_disk());
        let Some((node, number)) = a_disk().or_else(made) else {
            return println!("SKIP: n6_disks_are_limited: no disk here");
        };
        let keys = json!({ "io": [{ "device": node, "read_bps": 1_048_576, "write_iops": 50 }] });
        for driver in [&world.exec as &dyn Driver, &world.raw_exec] {
            let task = world.staying("", &keys);
            if let Err(error) = driver.start_task(&task).await {
                let text = error.to_string();
                assert!(text.contains("the blkio controller") || text.contains("the io controller"), "{text}");
                return println!("SKIP: n6_disks_are_limited: no controller for disks; that it is refused was seen");
            }
            let file = |v1: &str| world.cgroup_file(&task, "blkio", v1, "io.max").unwrap();
            if world.cgroups.regime() == Regime::V2 {
                assert_eq!(file(""), format!("{number} rbps=1048576 wbps=max riops=max wiops=50"));
            } else {
                assert_eq!(file("blkio.throttle.read_bps_device"), format!("{number} 1048576"));
                assert_eq!(file("blkio.throttle.write_iops_device"), format!("{number} 50"));
                assert_eq!(file("blkio.throttle.write_bps_device"), "");
            }
            driver.destroy_task(&task.id, true).await.unwrap();
            world.assert_gone(&task).await;
        }
    });
}

fn n6_a_filter_holds_and_can_be_a_file() {
    block_on(async {
        let world = World::new();
        let script = "mkdir /local/dir 2>&1; rmdir /local/dir 2>/dev/null; grep Seccomp: /proc/self/status";
        let text = world.alike(script, &json!({})).await;
        assert_eq!(text.split_whitespace().collect::<Vec<_>>(), ["Seccomp:", "2"], "mkdir works by default");
        let profile = json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{ "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
        });
        let text = profile.to_string();
        let absolute = world.dir.path().join("profile.json");
        std::fs::write(&absolute, &text).unwrap();
        drop(world.script_with("true", &json!({})));
        std::fs::write(world.task_dir().join("local/profile.json"), &text).unwrap();
        for path in ["local/profile.json", absolute.to_str().unwrap()] {
            for no_new_privs in [true, false] {
                let text = world.alike(script, &json!({ "seccomp": path, "no_new_privs": no_new_privs })).await;
                assert!(text.contains("not permitted") && text.contains("Seccomp:\t2"), "{path}: {text}");
            }
        }
        let text = world.alike(script, &json!({ "seccomp": "unconfined" })).await;
        assert!(text.contains("Seccomp:\t0"), "{text}");
        std::fs::write(world.task_dir().join("local/bad.json"), "{ \"secret\": 1").unwrap();
        let error = world.refuses(&json!({ "seccomp": "local/bad.json" })).await;
        assert!(error.contains("seccomp") && !error.contains("secret"), "{error}");
        // Read by root, and told to whoever wrote the job.
        let error = world.refuses(&json!({ "seccomp": "/etc/shadow" })).await;
        assert!(error.contains("seccomp") && !error.contains("root"), "{error}");
        let error = world.refuses(&json!({ "seccomp": "local/none.json" })).await;
        assert!(error.contains("local/none.json: No such file"), "{error}");
    });
}

fn n6_raw_exec_has_what_needs_no_root() {
    block_on(async {
        let world = World::new();
        let script = "grep -E '^(NoNewPrivs|Seccomp:)' /proc/self/status; grep 'open files' /proc/self/limits";
        let keys = json!({ "no_new_privs": true, "ulimit": { "nofile": "50:60" }, "pids_limit": 20 });
        let (text, session) = world.both(&world.raw_exec, script, world.staying(script, &keys)).await;
        assert_eq!(text, session);
        has(&text, "NoNewPrivs: 1");
        has(&text, "Max open files 50 60 files");
        let (text, _) = world.both(&world.raw_exec, script, world.staying(script, &json!({}))).await;
        has(&text, "NoNewPrivs: 0");
        has(&text, "Seccomp: 0");
        for key in ["seccomp", "unveil", "user_namespace", "isolation"] {
            let mut keys = json!({});
            keys[key] = "x".into();
            let error = world.raw_exec.start_task(&world.script_with("true", &keys)).await.unwrap_err().to_string();
            assert!(error.contains(&format!("unsupported key {key:?}")), "{error}");
        }
    });
}

/// This very program once more, as a plain user without a cgroup.
fn n6_a_plain_user_is_held_too() {
    let user = 100_000 + std::process::id() * 10 + 1;
    let status = Command::new("/proc/self/exe")
        .env(PLAIN, "1")
        .env("XDG_RUNTIME_DIR", "/tmp")
        .current_dir("/")
        .uid(user)
        .gid(user)
        .status()
        .unwrap();
    assert!(status.success(), "as a plain user: {status}");
}

fn n6_without_root_each_level_holds() {
    block_on(async {
        let world = World::new();
        let script = format!("{STATUS}; {NAMESPACES}; cat /proc/self/uid_map; {LIMITS}");
        for (level, seccomp, no_new_privs) in LEVELS {
            let text = world.alike(&script, &json!({ "isolation": level, "ulimit": { "nofile": "50:60" } })).await;
            has_nobodys_status(&text, level, seccomp, no_new_privs);
            has(&text, "65534 0 1");
            has(&text, "Max open files 50 60 files");
            for (name, own) in [
                ("user", true),
                ("uts", level != "nomad"),
                ("cgroup", level != "nomad"),
                ("net", level == "strict"),
                ("mnt", true),
            ] {
                assert_eq!(text.contains(&host_namespace(name)), !own, "{level} {name}: {text}");
            }
        }
        let script = "grep -c : /proc/net/dev; grep -c lo: /proc/net/dev";
        assert_eq!(world.alike(script, &json!({ "isolation": "strict" })).await, "1\n1\n", "nothing but lo");
        if can_unveil(&world).await {
            let keys = unveiling(&["rwc:/local"]);
            let text = world.alike("cat /proc/version 2>&1; echo x > /local/x && cat /local/x", &keys).await;
            assert!(text.contains("ermission denied") && text.ends_with("x\n"), "{text}");
        }
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap();
        let error = world.refuses(&json!({ "ulimit": { "nofile": format!("60:{}", most + 1) } })).await;
        assert!(error.contains("the executor may not raise it above"), "{error}");
    });
}

fn n6_without_root_disks_cannot_be_limited() {
    block_on(async {
        let world = World::new();
        let error = world.refuses(&json!({ "io": [{ "device": "/dev/null", "read_bps": 1000 }] })).await;
        assert!(error.contains("io needs a cgroup of the task's own"), "{error}");
    });
}
