//! A place of its own for runs of the real binary, and the means to see that nothing is left of them.
#![allow(dead_code, reason = "every test program uses a part")]
#![expect(
    clippy::disallowed_methods,
    reason = "what is left of a run is looked for until a deadline; there is no event"
)]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Leaves the test with a reason where it cannot run without root; on CI that is a failure.
macro_rules! need_root {
    () => {
        if !rustix::process::geteuid().is_root() {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "CI runs as root");
            println!("SKIP: {}: needs root", std::thread::current().name().unwrap_or("run"));
            return;
        }
    };
}
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
}

/// What a run could leave behind outside its data dir.
#[derive(Debug, PartialEq, Eq)]
struct Leftovers {
    mounts: Vec<String>,
    cgroups: BTreeSet<PathBuf>,
    processes: Vec<String>,
    sockets: Vec<String>,
}

impl World {
    pub fn new() -> World {
        let dir = tempfile::Builder::new().prefix("agentbin-world-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        World { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn data_dir(&self) -> PathBuf {
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
        command
    }

    /// Another command on the same data dir.
    pub fn agentbin(&self, args: &[&str]) -> Out {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(args).stdin(Stdio::null());
        if args.first() == Some(&"gc") {
            command.arg("--data-dir").arg(self.data_dir());
        }
        command.output().unwrap().into()
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

    /// As a plain user with folders of its own.
    pub fn run_as(&self, uid: u32, job: &str) -> Out {
        let home = self.path("home");
        std::fs::create_dir_all(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(uid), Some(uid)).unwrap();
        // The tree that holds the binary may be closed to others.
        let binary = self.path("agentbin");
        if !binary.exists() {
            std::fs::copy(env!("CARGO_BIN_EXE_agentbin"), &binary).unwrap();
        }
        let file = self.file("job.nomad.hcl", job);
        let mut command = Command::new(binary);
        command.arg("run").arg("--quiet").arg(file).stdin(Stdio::null()).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", &home).env("XDG_RUNTIME_DIR", &home);
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        std::os::unix::process::CommandExt::gid(&mut command, uid);
        command.output().unwrap().into()
    }

    pub fn start(&self, args: &[&str]) -> Running {
        Running::new(self.command(args))
    }

    pub fn start_program(&self, program: &Path, args: &[&str]) -> Running {
        Running::new(self.program(program, args))
    }

    pub fn start_text(&self, job: &str) -> Running {
        let file = self.file("job.nomad.hcl", job);
        self.start(&[file.to_str().unwrap()])
    }

    /// Allocation folders and records in the data dir.
    pub fn allocations(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(self.data_dir().join("alloc")) else { return 0 };
        entries.flatten().filter(|e| e.path().is_dir()).count()
    }

    fn leftovers(&self) -> Leftovers {
        let ours = self.dir.path().to_str().unwrap().to_owned();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let processes = procfs::process::all_processes().unwrap().flatten();
        let own = i32::try_from(std::process::id()).unwrap();
        let names_us = |p: &procfs::process::Process| {
            p.pid != own
                && p.stat().is_ok_and(|s| s.state != 'Z')
                && p.cmdline().is_ok_and(|c| c.join(" ").contains(&ours))
        };
        let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
        Leftovers {
            mounts: mounts.lines().filter(|l| l.contains(&ours)).map(str::to_owned).collect(),
            cgroups: self.cgroups(),
            processes: processes.filter(names_us).map(|p| p.cmdline().unwrap_or_default().join(" ")).collect(),
            sockets: sockets.lines().filter(|l| l.contains(&ours)).map(str::to_owned).collect(),
        }
    }

    /// Task cgroups whose allocation is or was in this data dir: all that name an allocation nobody else's folder has.
    fn cgroups(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut todo = vec![PathBuf::from("/sys/fs/cgroup")];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
                let path = entry.path();
                if !path.is_dir() || path.is_symlink() {
                    continue;
                }
                let name = entry.file_name().to_string_lossy().into_owned();
                let parent = dir.file_name().is_some_and(|n| n == "nomad" || n == "nomad.slice");
                if parent && self.seen().iter().any(|id| name.starts_with(id.as_str())) {
                    found.insert(path.clone());
                }
                todo.push(path);
            }
        }
        found
    }

    /// Ids of the allocations that are in the data dir now.
    fn seen(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.data_dir().join("alloc")).into_iter().flatten().flatten();
        entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect()
    }

    /// Nothing of any run is left: allocation folder, process, mount, cgroup, FIFO, socket.
    pub fn assert_clean(&self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.leftovers();
            let clean = left.mounts.is_empty()
                && left.cgroups.is_empty()
                && left.processes.is_empty()
                && left.sockets.is_empty()
                && self.seen().is_empty();
            if clean {
                break;
            }
            assert!(Instant::now() < deadline, "left behind: {left:#?}, allocations {:?}", self.seen());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
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
        wait_within(&mut self.child, Duration::from_mins(1));
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        let text = |text: &Text| String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
        let status = self.child.wait().unwrap().code().unwrap_or(-1);
        Out { status, stdout: text(&self.stdout), stderr: text(&self.stderr) }
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
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let have = String::from_utf8_lossy(&text.lock().unwrap()).into_owned();
        if have.contains(wanted) {
            return;
        }
        assert!(Instant::now() < deadline, "{wanted:?} did not come: {have:?}");
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
