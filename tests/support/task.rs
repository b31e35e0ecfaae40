//! A task on a real executor, of this very program, and sessions in it. The program calls `agentbin::init()` first.
#![allow(dead_code, reason = "every test program uses a part")]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use agentbin::cgroup::{CgroupFs, Regime};
use agentbin::executor::{ExecRequests, ExecResponses, Executor as _, ExecutorClient, ExecutorError};
use agentbin::plugin::{Client, Launch, Program, role_environment};
use agentbin::spec::{LaunchSpec, LogCollection, MemoryLimits, Mount, Resources, Role};
use agentbin::wire::drivers::exec_task_streaming_request::{Setup, TerminalSize};
use agentbin::wire::drivers::{ExecTaskStreamingIoOperation, ExecTaskStreamingRequest};
use procfs::process::MMapPath;
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::harness::{children, eventually};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A running task.
pub struct Task {
    pub dir: TempDir,
    pub client: Option<Client>,
    pub executor: ExecutorClient,
    pub isolated: bool,
    pub cgroup: PathBuf,
    pub pid: i32,
}

pub fn cgroups() -> CgroupFs {
    CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap()
}

/// The emulated guest is many times slower and says so.
pub fn slower() -> u32 {
    std::env::var("AGENTBIN_TEST_SLOWER").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// The full count (`AGENTBIN_FULL=1`) or the one that is asked for instead (`AGENTBIN_FULL=250`); `None` is the short form.
pub fn full(count: usize) -> Option<usize> {
    match std::env::var("AGENTBIN_FULL").ok()?.parse() {
        Ok(0) | Err(_) => None,
        Ok(1) => Some(count),
        Ok(other) => Some(other),
    }
}

/// Seconds to sleep by which the sleepers of this very program are told from others.
pub fn nap() -> String {
    (2_000_000 + std::process::id()).to_string()
}

impl Task {
    pub async fn new(isolated: bool) -> Task {
        Task::with(isolated, |_| {}).await
    }

    pub async fn with(isolated: bool, change: impl FnOnce(&mut LaunchSpec)) -> Task {
        Task::on_node(isolated, 0, change).await
    }

    /// On a node that computes with so many MHz; 0 is not known.
    pub async fn on_node(isolated: bool, mhz: u64, change: impl FnOnce(&mut LaunchSpec)) -> Task {
        let mut task = Task::idle_on_node(isolated, mhz).await;
        let mut spec = task.spec();
        change(&mut spec);
        task.pid = task.executor.launch(spec).await.unwrap().pid;
        task
    }

    /// An executor without a task.
    pub async fn idle(isolated: bool) -> Task {
        Task::idle_on_node(isolated, 0).await
    }

    async fn idle_on_node(isolated: bool, mhz: u64) -> Task {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for folder in ["alloc/logs", "task/local", "task/tmp"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
            std::fs::set_permissions(dir.path().join(folder), std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        let name = format!("agentbin-exec-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let cgroup = match cgroups().regime() {
            Regime::V2 => format!("agentbin-test.slice/{name}.scope"),
            Regime::V1 => format!("agentbin-test/{name}"),
            Regime::Off => String::new(),
        };
        let config = serde_json::json!({
            "LogFile": dir.path().join("executor.out"), "LogLevel": "debug", "FSIsolation": isolated,
            "Compute": { "tc": mhz, "nc": 2 },
        });
        let launch = Launch {
            args: &[OsString::from(config.to_string())],
            env: role_environment(),
            new_session: true,
            socket_dir: Some(dir.path()),
            log: Box::new(|_| {}),
            ..Launch::new(Program::Own(Role::Executor))
        };
        let client = launch.start().await.unwrap();
        let executor = ExecutorClient::new(client.channel());
        Task { dir, client: Some(client), executor, isolated, cgroup: cgroup.into(), pid: 0 }
    }

    pub fn spec(&self) -> LaunchSpec {
        let mount = |path: &str| Mount {
            task_path: path.to_owned(),
            host_path: path.into(),
            readonly: true,
            ..Mount::default()
        };
        let folders = ["/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr"].into_iter();
        let mounts: Vec<Mount> = folders.filter(|path| Path::new(path).is_dir()).map(mount).collect();
        let root = rustix::process::geteuid().is_root();
        LaunchSpec {
            command: "/bin/sleep".to_owned(),
            args: vec![nap()],
            env: vec!["PATH=/usr/bin:/bin".to_owned(), "GREETING=hello".to_owned()],
            user: if self.isolated || root { "nobody".to_owned() } else { String::new() },
            task_dir: self.dir.path().join("task"),
            work_dir: if self.isolated { "/local".to_owned() } else { String::new() },
            mounts: if self.isolated { mounts } else { Vec::new() },
            resources: Resources {
                memory: MemoryLimits { hard_bytes: Some(256 << 20), soft_bytes: None },
                ..Resources::default()
            },
            resource_limits: true,
            cgroup: self.cgroup.clone(),
            no_new_privs: true,
            logs: Some(LogCollection {
                dir: self.dir.path().join("alloc/logs"),
                stdout_file: "task.stdout".to_owned(),
                stderr_file: "task.stderr".to_owned(),
                max_files: 2,
                max_file_size_bytes: 1 << 20,
                ..LogCollection::default()
            }),
            ..LaunchSpec::default()
        }
    }

    pub async fn open(&self, command: &[&str], tty: bool) -> Result<Session, ExecutorError> {
        let (to, requests) = mpsc::channel(16);
        let command = command.iter().map(|&part| part.to_owned()).collect();
        let setup = Setup { command, tty, ..Setup::default() };
        to.send(Ok(ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() })).await.unwrap();
        let requests: ExecRequests = Box::pin(ReceiverStream::new(requests));
        let from = self.executor.exec_streaming(requests).await?;
        Ok(Session { to: Some(to), from, done: Done::default(), closed: [0, 0], code: None })
    }

    pub async fn shell(&self, script: &str, tty: bool) -> Session {
        self.open(&["/bin/sh", "-c", &script.replace("sleep 1000", &format!("sleep {}", nap()))], tty).await.unwrap()
    }

    /// A whole session with nothing to say.
    pub async fn run(&self, script: &str, tty: bool) -> Done {
        self.shell(script, tty).await.finish().await
    }

    pub async fn output(&self, script: &str) -> String {
        let done = self.run(script, false).await;
        assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{script}: {done:?}");
        done.stdout
    }

    pub fn executor_pid(&self) -> i32 {
        self.client.as_ref().unwrap().reattach_config().unwrap().process.pid
    }

    pub async fn end(mut self) {
        self.executor.shutdown("", Duration::ZERO).await.unwrap();
        self.client.take().unwrap().kill().await;
        // Whoever watches the executor, a client that was given up included, reaps it when its runtime comes to that.
        eventually("no process is left", || children().is_empty()).await;
        assert_eq!(sleepers(), Vec::<i32>::new(), "sleepers are left");
        for hierarchy in cgroups().hierarchies().filter(|_| !self.cgroup.as_os_str().is_empty()) {
            let path = hierarchy.mount_point.join(&self.cgroup);
            assert!(!path.exists(), "{} is left", path.display());
        }
    }
}

impl Drop for Task {
    /// Of a test that failed: the next one is to begin without leftovers.
    fn drop(&mut self) {
        let Some(client) = &self.client else { return };
        let pid = rustix::process::Pid::from_raw(client.reattach_config().unwrap().process.pid).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    }
}

/// A session from its caller's side.
pub struct Session {
    pub to: Option<mpsc::Sender<Result<ExecTaskStreamingRequest, tonic::Status>>>,
    pub from: ExecResponses,
    pub done: Done,
    pub closed: [u32; 2],
    pub code: Option<i32>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Done {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

pub fn stdin(data: &str) -> ExecTaskStreamingRequest {
    let stdin = ExecTaskStreamingIoOperation { data: data.into(), close: false };
    ExecTaskStreamingRequest { stdin: Some(stdin), ..Default::default() }
}

pub fn stdin_close() -> ExecTaskStreamingRequest {
    let stdin = ExecTaskStreamingIoOperation { data: Vec::new(), close: true };
    ExecTaskStreamingRequest { stdin: Some(stdin), ..Default::default() }
}

pub fn size(height: i32, width: i32) -> ExecTaskStreamingRequest {
    ExecTaskStreamingRequest { tty_size: Some(TerminalSize { height, width }), ..Default::default() }
}

impl Session {
    pub async fn say(&self, request: ExecTaskStreamingRequest) {
        self.to.as_ref().unwrap().send(Ok(request)).await.unwrap();
    }

    /// Takes one response; `false` at the end. Holds the executor to the order that hosts rely on.
    pub async fn hear(&mut self) -> bool {
        let patience = Duration::from_mins(1) * slower();
        let Some(response) = tokio::time::timeout(patience, self.from.next()).await.expect("an answer in time") else {
            return false;
        };
        let response = response.unwrap();
        assert!(self.code.is_none(), "something after the status: {response:?}");
        for (at, operation) in [response.stdout, response.stderr].into_iter().enumerate() {
            let Some(operation) = operation else { continue };
            assert_eq!(self.closed[at], 0, "output after its end: {operation:?}");
            assert!(operation.close == operation.data.is_empty(), "either data or the end: {operation:?}");
            self.closed[at] += u32::from(operation.close);
            let text = [&mut self.done.stdout, &mut self.done.stderr].into_iter().nth(at).unwrap();
            text.push_str(&String::from_utf8_lossy(&operation.data));
        }
        assert_eq!(response.exited, response.result.is_some(), "status and its announcement come together");
        if let Some(result) = response.result {
            assert_eq!((result.signal, result.oom_killed), (0, false));
            self.code = Some(result.exit_code);
        }
        true
    }

    /// Hears until stdout has this text.
    pub async fn hear_until(&mut self, text: &str) {
        while !self.done.stdout.contains(text) {
            assert!(self.hear().await, "ended before {text:?}: {:?}", self.done);
        }
    }

    pub async fn finish(mut self) -> Done {
        while self.hear().await {}
        self.done.code = self.code.expect("a status");
        self.done
    }

    pub async fn finish_with_ends(mut self, ends: [u32; 2]) -> Done {
        while self.hear().await {}
        assert_eq!(self.closed, ends, "ends of stdout and stderr");
        self.done.code = self.code.expect("a status");
        self.done
    }
}

pub fn sleepers() -> Vec<i32> {
    let nap = nap();
    let is_ours = |p: &procfs::process::Process| p.cmdline().is_ok_and(|c| c.len() == 2 && c[1] == nap);
    let alive = |p: &procfs::process::Process| p.stat().is_ok_and(|s| s.state != 'Z');
    let all = procfs::process::all_processes().unwrap().flatten();
    all.filter(|p| is_ours(p) && alive(p)).map(|p| p.pid).collect()
}

pub fn in_seconds(seconds: u64) -> SystemTime {
    SystemTime::now() + Duration::from_secs(seconds) * slower()
}

pub fn args(parts: &[&str]) -> Vec<String> {
    parts.iter().map(|&part| part.to_owned()).collect()
}

/// The task's living processes, as the executor's host sees them.
pub fn processes_of(task: &Task) -> Vec<i32> {
    let executor = task.executor_pid();
    let all = procfs::process::all_processes().unwrap().flatten().filter_map(|p| p.stat().ok());
    let all: Vec<_> = all.filter(|s| s.state != 'Z').collect();
    let mut found = vec![executor];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(all.iter().filter(|s| s.ppid == parent).map(|s| s.pid));
        at += 1;
    }
    found.remove(0);
    found.sort_unstable();
    found
}

/// What a process holds itself. Pages of its files come and go with the machine's need of memory, and the executor lets go of
/// them; where a program lies in a file system that is in memory, as in a guest, the kernel counts them as shared memory.
pub fn resident_kib(pid: i32) -> u64 {
    let process = procfs::process::Process::new(pid).unwrap();
    let (program, maps) = (process.exe().unwrap(), process.smaps().unwrap());
    let held = maps.iter().map(|map| {
        let is_file = matches!(&map.pathname, MMapPath::Path(path) if *path == program || path.exists());
        let counted = if is_file { "Anonymous" } else { "Rss" };
        map.extension.map.get(counted).copied().unwrap_or_default()
    });
    held.sum::<u64>() / 1024
}

pub fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
