//! Tasks of our own drivers in an allocation's directory. Their executors are this very program, which calls `agentbin::init()`
//! first.
#![allow(dead_code, reason = "every test program uses a part")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use agentbin::cgroup::{CgroupFs, Regime, TaskCgroup};
use agentbin::driver::{Driver, ExecDriver, Host, JavaDriver, RawExecDriver, Settings, TaskConfig};
use agentbin::executor::Compute;
use agentbin::spec::collections::BTreeMap;
use agentbin::spec::{DriverConfig, ExitResult, LogCollection, Mount};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::harness::{children, eventually};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Ends what a test that fails leaves behind: the next one would wait for its processes, and nobody ends a task that outlives
/// its executor.
pub struct Ends {
    cgroups: CgroupFs,
    /// Cgroups of tasks.
    made: Mutex<BTreeSet<PathBuf>>,
}

impl Drop for Ends {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // Executors first: they own the tasks. They, and whatever else this program has started, are its children until
        // somebody waits for them, so these numbers are nobody else's.
        for pid in children().into_iter().filter_map(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        for cgroup in &*self.made.lock().unwrap_or_else(PoisonError::into_inner) {
            if let Err(error) = TaskCgroup::destroy_at(&self.cgroups, cgroup, deadline) {
                eprintln!("a test that failed leaves {}: {error}", cgroup.display());
            }
        }
    }
}

/// An allocation in a temporary directory, with the drivers.
pub struct World {
    /// First, so that tasks end before their directory goes.
    ends: Ends,
    pub dir: TempDir,
    pub cgroups: CgroupFs,
    pub exec: ExecDriver,
    pub raw_exec: RawExecDriver,
    pub java: JavaDriver,
    apart: bool,
}

impl World {
    /// Its tasks have one directory, one after the other.
    pub fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let cgroups = CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap();
        let compute = Compute { total_mhz: 2000, cores: 2 };
        let settings =
            Settings { cgroups: cgroups.clone(), compute, socket_dir: dir.path().to_owned(), host: Host::OWN };
        World {
            ends: Ends { cgroups: cgroups.clone(), made: Mutex::default() },
            exec: ExecDriver::new(settings.clone()),
            raw_exec: RawExecDriver::new(settings.clone()),
            java: JavaDriver::new(settings),
            cgroups,
            dir,
            apart: false,
        }
    }

    /// Its tasks have directories of their own and run beside each other, each with this program's directory at `/program`.
    pub fn apart() -> World {
        World { apart: true, ..World::new() }
    }

    pub fn alloc_dir(&self) -> PathBuf {
        // An agent names a task's cgroup after it.
        self.dir.path().join(format!("alloc-{}", std::process::id()))
    }

    /// The directory of tasks that are not apart.
    pub fn task_dir(&self) -> PathBuf {
        self.alloc_dir().join("task")
    }

    pub fn task(&self, command: &str, args: &[&str]) -> TaskConfig {
        self.task_with(command, args, &json!({}))
    }

    /// A shell script as task.
    pub fn script(&self, text: &str) -> TaskConfig {
        self.task("/bin/sh", &["-c", text])
    }

    /// A shell script as task, with these keys in its configuration.
    pub fn script_with(&self, text: &str, keys: &Value) -> TaskConfig {
        self.task_with("/bin/sh", &["-c", text], keys)
    }

    fn task_with(&self, command: &str, args: &[&str], keys: &Value) -> TaskConfig {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (alloc_dir, mut name, mut mounts) = (self.alloc_dir(), "task".to_owned(), Vec::new());
        if self.apart {
            name = format!("task{number}");
            mounts.push(Mount {
                task_path: "/program".into(),
                host_path: program().parent().unwrap().to_owned(),
                readonly: true,
                ..Mount::default()
            });
        }
        for folder in ["alloc/logs", "alloc/data", &format!("{name}/local"), &format!("{name}/tmp")] {
            std::fs::create_dir_all(alloc_dir.join(folder)).unwrap();
            std::fs::set_permissions(alloc_dir.join(folder), std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let args: Vec<String> = args.iter().map(|arg| arg.replace("sleep 1000", &format!("sleep {}", nap()))).collect();
        let mut values: Map<String, Value> = keys.as_object().unwrap().clone();
        values.insert("command".into(), command.into());
        values.insert("args".into(), args.into());
        let cgroup = format!("agentbin-test-{}-{number}", std::process::id());
        let cgroup = match self.cgroups.regime() {
            _ if !rustix::process::geteuid().is_root() => String::new(),
            Regime::V2 => format!("agentbin-test.slice/{cgroup}.scope"),
            Regime::V1 => format!("agentbin-test/{cgroup}"),
            Regime::Off => String::new(),
        };
        let ends = [PathBuf::from(&cgroup), self.agents_cgroup(&name)];
        self.ends.made.lock().unwrap().extend(ends.into_iter().filter(|path| !path.as_os_str().is_empty()));
        TaskConfig {
            id: format!("alloc-id/{name}/{number}"),
            alloc_id: "alloc-id".into(),
            config: DriverConfig { values, ..DriverConfig::default() },
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
            cgroup: cgroup.into(),
            mounts,
            logs: Some(LogCollection {
                dir: alloc_dir.join("alloc/logs"),
                stdout_file: format!("{number}.stdout"),
                stderr_file: format!("{number}.stderr"),
                max_files: 10,
                max_file_size_bytes: 1 << 20,
                ..LogCollection::default()
            }),
            alloc_dir,
            name,
            ..TaskConfig::default()
        }
    }

    /// Where a driver under an agent puts a task on v1.
    fn agents_cgroup(&self, task: &str) -> PathBuf {
        let root = rustix::process::geteuid().is_root();
        let alloc = self.alloc_dir().file_name().unwrap().to_string_lossy().into_owned();
        if root && self.cgroups.regime() == Regime::V1 {
            format!("nomad/{alloc}.{task}").into()
        } else {
            PathBuf::new()
        }
    }

    pub async fn run(&self, driver: &dyn Driver, task: &TaskConfig) -> (ExitResult, String, String) {
        driver.start_task(task).await.unwrap();
        let exit = driver.wait_task(&task.id).await.unwrap();
        let (stdout, stderr) = output(task);
        driver.destroy_task(&task.id, false).await.unwrap();
        self.assert_gone(task).await;
        (exit, stdout, stderr)
    }

    /// stdout of what must succeed.
    pub async fn stdout(&self, driver: &dyn Driver, task: &TaskConfig) -> String {
        let (exit, stdout, stderr) = self.run(driver, task).await;
        assert!(exit.successful(), "{exit:?}: {stdout}{stderr}");
        stdout
    }

    /// Nothing of the task is left; of tasks that are not apart no other's process and mount either.
    pub async fn assert_gone(&self, task: &TaskConfig) {
        for hierarchy in self.cgroups.hierarchies() {
            let path = hierarchy.mount_point.join(&task.cgroup);
            assert!(task.cgroup.as_os_str().is_empty() || !path.exists(), "{} is left", path.display());
        }
        if self.apart {
            return;
        }
        // A driver that was given up and one that recovered its tasks watch the same executor; either may reap it.
        eventually("no process is left", || children().is_empty()).await;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()), "mounts are left: {mounts}");
    }

    /// A file of the task's cgroup; `None` where the controller is not there.
    pub fn cgroup_file(&self, task: &TaskConfig, v1_controller: &str, v1: &str, v2: &str) -> Option<String> {
        let hierarchies: Vec<_> = self.cgroups.hierarchies().collect();
        let (hierarchy, file) = match self.cgroups.regime() {
            Regime::V2 => (hierarchies[0], v2),
            _ => (*hierarchies.iter().find(|h| h.has(v1_controller))?, v1),
        };
        let text = std::fs::read_to_string(hierarchy.mount_point.join(&task.cgroup).join(file)).ok()?;
        Some(text.trim().to_owned())
    }
}

/// What the task has written to stdout and stderr.
pub fn output(task: &TaskConfig) -> (String, String) {
    let logs = task.logs.as_ref().unwrap();
    let read = |name: &str| {
        let file = |n: u32| logs.dir.join(format!("{name}.{n}"));
        (0..logs.max_files).map_while(|n| std::fs::read(file(n)).ok()).flat_map(String::from_utf8).collect::<String>()
    };
    (read(&logs.stdout_file), read(&logs.stderr_file))
}

/// How long this program's tasks sleep: nobody else's do, so that they can be told apart.
pub fn nap() -> String {
    (1_000_000 + std::process::id()).to_string()
}

/// This very program.
pub fn program() -> PathBuf {
    std::fs::read_link("/proc/self/exe").unwrap()
}
