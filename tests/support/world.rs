//! A place of its own for runs of the real binary, and the means to see that nothing is left of them.
#![allow(dead_code, reason = "every test program uses a part")]
#![expect(
    clippy::disallowed_methods,
    reason = "what is left of a run is looked for until a deadline; there is no event"
)]

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

#[path = "secrets.rs"]
pub mod secrets;

/// Leaves the test with a reason where it cannot run without root; on CI that is a failure.
#[allow(unused_macros, reason = "not every test program needs it")]
macro_rules! need_root {
    () => {
        if !rustix::process::geteuid().is_root() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI runs as root");
            println!("SKIP: {}: needs root", std::thread::current().name().unwrap_or("run"));
            return;
        }
    };
}
#[allow(unused_imports, reason = "not every test program needs it")]
pub(crate) use need_root;

/// A run that has ended.
#[derive(Debug)]
pub struct Out {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Out {
    fn from(out: Output) -> Out {
        Out {
            status: out.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&out.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&out.stderr).into_owned(),
        }
    }
}

/// A data dir and files of one test.
pub struct World {
    dir: TempDir,
    /// What was there before: somebody else's.
    before: Before,
    /// What is done to each program before it is started.
    prepare: Option<Prepare>,
}

type Prepare = Box<dyn Fn(&mut Command) + Send + Sync + RefUnwindSafe + UnwindSafe>;

struct Before {
    network_namespaces: BTreeSet<PathBuf>,
    parents: BTreeSet<PathBuf>,
    cgroups: BTreeSet<PathBuf>,
}

/// What a run could leave behind outside its data dir, and what only exists while it runs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Leftovers {
    mounts: Vec<String>,
    cgroups: BTreeSet<PathBuf>,
    processes: Vec<String>,
    sockets: Vec<String>,
    fifos: Vec<PathBuf>,
    network_namespaces: BTreeSet<PathBuf>,
    allocations: Vec<String>,
}

/// A plain user that no other test program on this machine uses, even one that runs beside this one; `number` (0 to 9)
/// tells the tests of this program apart.
pub fn plain_user(number: u32) -> u32 {
    100_000 + std::process::id() * 10 + number
}

/// How much slower than this machine the tests may be (`AGENTBIN_TEST_SLOWER`): bounds of time are stretched by it.
pub fn slower() -> u32 {
    std::env::var("AGENTBIN_TEST_SLOWER").ok().and_then(|f| f.parse().ok()).unwrap_or(1)
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds) * slower()
}

impl World {
    pub fn new() -> World {
        let dir = tempfile::Builder::new().prefix("agentbin-world-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let before = Before {
            network_namespaces: network_namespaces(),
            parents: parents(),
            cgroups: parents().iter().flat_map(|p| folders(p)).collect(),
        };
        World { dir, before, prepare: None }
    }

    /// Does this to each program before it is started, from now on.
    pub fn prepare(&mut self, how: impl Fn(&mut Command) + Send + Sync + RefUnwindSafe + UnwindSafe + 'static) {
        self.prepare = Some(Box::new(how));
    }

    fn prepared(&self, mut command: Command) -> Command {
        if let Some(prepare) = &self.prepare {
            prepare(&mut command);
        }
        command
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// `agentbin run --data-dir ... ARGS`.
    pub fn command(&self, args: &[&str]) -> Command {
        self.program(Path::new(env!("CARGO_BIN_EXE_agentbin")), args)
    }

    fn program(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("run").arg("--data-dir").arg(self.data_dir()).args(args).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path());
        self.prepared(command)
    }

    /// Another command on the same data dir.
    pub fn agentbin(&self, args: &[&str]) -> Out {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(args).stdin(Stdio::null());
        if args.first() == Some(&"gc") {
            command.arg("--data-dir").arg(self.data_dir());
        }
        self.prepared(command).output().unwrap().into()
    }

    /// Another command about the runs here, of whom no other directory is looked into.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.arg(args[0]).arg("--data-dir").arg(self.data_dir()).args(&args[1..]).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.path(""));
        self.prepared(command)
    }

    /// What such a command says.
    pub fn ask(&self, args: &[&str]) -> Out {
        self.client(args).output().unwrap().into()
    }

    /// The output of one that has to work.
    pub fn done(&self, args: &[&str]) -> String {
        let out = self.ask(args);
        assert_eq!(out.status, 0, "{args:?}: {out:?}");
        out.stdout
    }

    pub fn run(&self, args: &[&str]) -> Out {
        self.command(args).output().unwrap().into()
    }

    pub fn run_raw(&self, job: &str, args: &[&str]) -> Output {
        let file = self.file("job.nomad.hcl", job);
        self.command(args).arg(file).output().unwrap()
    }

    pub fn run_text(&self, job: &str, args: &[&str]) -> Out {
        self.run_raw(job, args).into()
    }

    /// As a plain user with directories of its own.
    pub fn run_as(&self, uid: u32, job: &str, args: &[&str]) -> Out {
        let file = self.file("job.nomad.hcl", job);
        self.command_as(uid, &["run"]).args(args).arg(file).output().unwrap().into()
    }

    /// Any command line as a plain user with directories of its own.
    pub fn command_as(&self, uid: u32, args: &[&str]) -> Command {
        let home = self.path("home");
        std::fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(uid), Some(uid)).unwrap();
        // The tree that holds the binary may be closed to others.
        let binary = self.path("agentbin-of-all");
        if !binary.exists() {
            copy_program(Path::new(env!("CARGO_BIN_EXE_agentbin")), &binary);
        }
        let mut command = Command::new(binary);
        command.args(args).stdin(Stdio::null()).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", &home).env("XDG_RUNTIME_DIR", &home);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        std::os::unix::process::CommandExt::gid(&mut command, uid);
        command
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running::new(self.command(args))
    }

    pub fn start_program(&self, program: &Path, args: &[&str]) -> Running {
        Running::new(self.program(program, args))
    }

    pub fn start_command(command: Command) -> Running {
        Running::new(command)
    }

    pub fn start_text(&self, job: &str) -> Running {
        let file = self.file("job.nomad.hcl", job);
        self.start(&[file.to_str().unwrap()])
    }

    /// Allocation directories and records in the data dir.
    pub fn allocations(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(self.data_dir().join("alloc")) else { return 0 };
        entries.flatten().filter(|e| e.path().is_dir()).count()
    }

    fn leftovers(&self) -> Leftovers {
        let ours = self.dir.path().to_str().unwrap().to_owned();
        let about_us = |path: &str| -> Vec<String> {
            let text = std::fs::read(path).unwrap();
            String::from_utf8_lossy(&text).lines().filter(|l| l.contains(&ours)).map(str::to_owned).collect()
        };
        let mut sockets = about_us("/proc/net/unix");
        sockets.extend(self.sockets());
        Leftovers {
            mounts: about_us("/proc/self/mountinfo"),
            cgroups: self.cgroups(),
            processes: self.processes(&ours),
            sockets,
            fifos: fifos(self.dir.path()),
            network_namespaces: network_namespaces().difference(&self.before.network_namespaces).cloned().collect(),
            allocations: self.seen(),
        }
    }

    /// Executors, shims and tasks of this world that run now.
    pub fn task_processes(&self) -> Vec<String> {
        self.processes(self.dir.path().to_str().unwrap())
    }

    /// The executors of this world, each with the task whose log it writes.
    pub fn executors(&self) -> Vec<(String, i32)> {
        let alloc = self.data_dir().join("alloc");
        let mut found = Vec::new();
        for process in procfs::process::all_processes().unwrap().flatten() {
            let Ok(words) = process.cmdline() else { continue };
            let [_, role, config] = &words[..] else { continue };
            let config = (role == "executor").then(|| serde_json::from_str::<serde_json::Value>(config).ok()).flatten();
            let Some(log) = config.and_then(|config| Some(PathBuf::from(config["LogFile"].as_str()?))) else {
                continue;
            };
            if log.starts_with(&alloc) {
                let name = log.file_name().unwrap().to_str().unwrap().strip_suffix("-executor.out").unwrap();
                found.push((name.to_owned(), process.pid));
            }
        }
        found
    }

    /// Whose arguments or environment name a file of this world: executors, shims, tasks and what those started, unless
    /// it has hidden itself well (then the test gives it a name of its own).
    fn processes(&self, ours: &str) -> Vec<String> {
        self.running(ours).into_iter().map(|(pid, words)| format!("{pid} {words}")).collect()
    }

    /// The same: their numbers, and their arguments.
    fn running(&self, ours: &str) -> Vec<(i32, String)> {
        let own = i32::try_from(std::process::id()).unwrap();
        let mut found = Vec::new();
        for process in procfs::process::all_processes().unwrap().flatten() {
            if process.pid == own || !process.stat().is_ok_and(|s| s.state != 'Z') {
                continue;
            }
            let read = |name: &str| std::fs::read(format!("/proc/{}/{name}", process.pid)).unwrap_or_default();
            let text = String::from_utf8_lossy(&[read("cmdline"), read("environ")].concat()).replace('\0', " ");
            if text.contains(ours) || text.contains(&self.mark()) {
                found.push((process.pid, process.cmdline().unwrap_or_default().join(" ")));
            }
        }
        found
    }

    /// A word that nothing else on this machine contains, for the arguments of processes without environment.
    pub fn mark(&self) -> String {
        self.dir.path().file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// Directories of sockets whose owner is dead, in the places where runs of this world put them.
    fn sockets(&self) -> Vec<String> {
        let bases = [
            PathBuf::from("/run/agentbin"),
            self.path("agentbin"),
            self.path("home/agentbin"),
            self.data_dir().join("run"),
        ];
        let dirs = bases.iter().flat_map(|b| folders(b));
        let own_namespace = std::fs::metadata("/proc/self/ns/pid").unwrap().ino().cast_signed();
        let owner_lives = |dir: &PathBuf| {
            let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
            let numbers: Vec<i64> = name.split('-').filter_map(|n| i64::from_str_radix(n, 16).ok()).collect();
            // Another name is another program's, and another pid namespace has other numbers.
            let [pid, start, pid_namespace] = numbers[..] else { return true };
            if pid_namespace != own_namespace {
                return true;
            }
            let stat = procfs::process::Process::new(i32::try_from(pid).unwrap()).and_then(|p| p.stat());
            stat.is_ok_and(|s| s.starttime == u64::try_from(start).unwrap() && s.state != 'Z')
        };
        let dirs: Vec<PathBuf> = dirs.collect();
        let left = dirs.iter().filter(|d| !owner_lives(d) && d.exists() || self.is_of_a_run(d));
        left.map(|d| d.display().to_string()).collect()
    }

    /// Whether a directory of sockets belongs to a run in the background of this world.
    fn is_of_a_run(&self, dir: &Path) -> bool {
        std::fs::read_link(dir.join("owner")).is_ok_and(|owner| owner.starts_with(self.dir.path()))
    }

    /// The directories of sockets of this world's runs in the background.
    pub fn kept_sockets(&self) -> Vec<PathBuf> {
        let bases = [PathBuf::from("/run/agentbin"), self.path("home/agentbin")];
        bases.iter().flat_map(|base| folders(base)).filter(|dir| self.is_of_a_run(dir)).collect()
    }

    /// Task cgroups, and parents that are empty, that were not there before and belong to nobody else.
    fn cgroups(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for parent in parents() {
            let children = folders(&parent);
            if children.is_empty() && !self.before.parents.contains(&parent) && parent.exists() {
                found.insert(parent);
            }
            found.extend(
                children.into_iter().filter(|c| !self.before.cgroups.contains(c) && !self.is_somebody_elses(c)),
            );
        }
        found
    }

    /// Whether an allocation of another data dir has this cgroup: there is its record, or a process that speaks of it.
    fn is_somebody_elses(&self, cgroup: &Path) -> bool {
        let name = cgroup.file_name().unwrap().to_str().unwrap();
        let id = name.strip_prefix("kept-").unwrap_or(name).get(..36).unwrap_or_default().to_owned();
        let ours = self.path("data/alloc").join(format!("{id}.json"));
        let worlds = folders(self.dir.path().parent().unwrap()).into_iter().map(|w| w.join("data"));
        let mut records = worlds.chain(["/var/lib/agentbin".into()]).map(|d| d.join(format!("alloc/{id}.json")));
        let speaks = |p: &procfs::process::Process| {
            p.cmdline()
                .is_ok_and(|c| c.iter().any(|a| a.contains(&id) && !a.contains(self.dir.path().to_str().unwrap())))
        };
        records.any(|r| r != ours && r.exists())
            || procfs::process::all_processes().unwrap().flatten().any(|p| speaks(&p))
    }

    /// What is in the directory of allocations now.
    fn seen(&self) -> Vec<String> {
        let mut found = Vec::new();
        let kept = ["alloc", "runs"].map(|name| self.data_dir().join(name));
        let users = ["alloc", "runs"].map(|name| self.path("home/.local/state/agentbin").join(name));
        for alloc in kept.into_iter().chain(users) {
            let entries = std::fs::read_dir(alloc).into_iter().flatten().flatten();
            found.extend(entries.map(|e| e.file_name().to_string_lossy().into_owned()));
        }
        found
    }

    /// Nothing of any run is left: allocation, process, mount, cgroup, FIFO, network namespace, socket. At once, except
    /// where the kernel takes its time: for a moment a killed process is still listed.
    pub fn assert_clean(&self) {
        let deadline = Instant::now() + seconds(20);
        loop {
            let left = self.leftovers();
            if left == Leftovers::default() {
                return;
            }
            assert!(Instant::now() < deadline, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for World {
    /// Of a test that failed: what it has started in the background does not go on beside the next tests.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let ours = self.dir.path().to_string_lossy().into_owned();
        let kill = |is_meant: &dyn Fn(&str) -> bool| {
            for (pid, words) in self.running(&ours) {
                let pidfd = agentbin::sys::process::open_pidfd(pid);
                let Ok(pidfd) = pidfd else { continue };
                // Its number may be another one's by now.
                if is_meant(&words) && self.running(&ours).contains(&(pid, words)) {
                    let killed = std::os::fd::AsFd::as_fd(&pidfd);
                    let _gone_already = agentbin::sys::process::send_signal(killed, agentbin::spec::Signal::KILL);
                    // What it held is free when it has gone.
                    let gone = rustix::event::PollFlags::IN;
                    let patience = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
                    let _too_late =
                        rustix::event::poll(&mut [rustix::event::PollFd::new(&pidfd, gone)], Some(&patience));
                }
            }
        };
        // First those who start others.
        kill(&|words| words.contains("supervise"));
        let _what_it_can = Command::new(env!("CARGO_BIN_EXE_agentbin"))
            .args(["gc", "--abandoned", "--data-dir"])
            .arg(self.data_dir())
            .env("XDG_RUNTIME_DIR", self.dir.path())
            .output();
        kill(&|_| true);
    }
}

fn folders(dir: &Path) -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

fn network_namespaces() -> BTreeSet<PathBuf> {
    let dirs = ["/run/netns", "/var/run/netns", "/run/docker/netns"];
    dirs.iter().flat_map(|d| std::fs::read_dir(d).into_iter().flatten().flatten()).map(|e| e.path()).collect()
}

/// Every cgroup named `nomad` or `nomad.slice`, at the top of a hierarchy.
fn parents() -> BTreeSet<PathBuf> {
    let tops = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|e| e.path());
    let tops = tops.filter(|p| !p.is_symlink()).chain([PathBuf::from("/sys/fs/cgroup")]);
    tops.flat_map(|t| ["nomad", "nomad.slice"].map(|n| t.join(n))).filter(|p| p.is_dir()).collect()
}

fn fifos(below: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::FileTypeExt as _;
    let (mut found, mut todo) = (Vec::new(), vec![below.to_owned()]);
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => todo.push(entry.path()),
                Ok(kind) if kind.is_fifo() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Copies a program that is to be executed. Not by this process: what another thread starts meanwhile would hold the copy open
/// for writing for a moment, and nobody can execute it then.
pub fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success(), "cp {}", to.display());
}

/// A run that goes on, with what it has written so far.
pub struct Running {
    pub child: Child,
    pub stdout: Text,
    pub stderr: Text,
    readers: Vec<JoinHandle<()>>,
}

pub type Text = Arc<Mutex<Vec<u8>>>;

impl Running {
    fn new(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (Text::default(), Text::default());
        let readers = vec![
            collect(child.stdout.take().unwrap(), Arc::clone(&stdout)),
            collect(child.stderr.take().unwrap(), Arc::clone(&stderr)),
        ];
        Running { child, stdout, stderr, readers }
    }

    pub fn finish(&mut self) -> Out {
        wait_within(&mut self.child, seconds(60));
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let text = |text: &Text| String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
        let status = self.child.wait().unwrap().code().unwrap_or(-1);
        Out { status, stdout: text(&self.stdout), stderr: text(&self.stderr) }
    }
}

impl Drop for Running {
    /// Of a test that failed: the run ends its tasks before it goes.
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            signal(&self.child, "SIGTERM");
            let deadline = Instant::now() + seconds(30);
            while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = self.child.kill();
        }
    }
}

fn collect(mut from: impl std::io::Read + Send + 'static, into: Text) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.by_ref().read(&mut buffer) {
            into.lock().unwrap().extend_from_slice(&buffer[..read]);
        }
    })
}

pub fn wait_for_text(text: &Text, wanted: &str) {
    wait_for_times(text, wanted, 1);
}

pub fn wait_for_times(text: &Text, wanted: &str, times: usize) {
    let deadline = Instant::now() + seconds(60);
    loop {
        let have = String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
        if have.matches(wanted).count() >= times {
            return;
        }
        assert!(Instant::now() < deadline, "{wanted:?} did not come {times} times: {have:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn wait_within(child: &mut Child, patience: Duration) {
    let deadline = Instant::now() + patience;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("the run did not end within {patience:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn signal(child: &Child, name: &str) {
    let signal = agentbin::spec::Signal::from_name(name).unwrap();
    let pidfd = agentbin::sys::process::open_pidfd(i32::try_from(child.id()).unwrap()).unwrap();
    agentbin::sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), signal).unwrap();
}

pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{name}.nomad.hcl"))
}

/// A batch job of one task that is never restarted.
pub fn batch(driver: &str, command: &str, args: &str) -> String {
    format!(
        "job \"test\" {{\n  type = \"batch\"\n  group \"g\" {{\n    restart {{\n      attempts = 0\n      mode     = \"fail\"\n    }}\n    \
         task \"t\" {{\n      driver = \"{driver}\"\n      config {{\n        command = \"{command}\"\n        args    = {args}\n      }}\n    }}\n  }}\n}}\n"
    )
}
