//! The laboratory: tasks through the real roles, a canary that nobody may touch, and the judge.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use agentbin::cgroup::{CgroupFs, Regime};
use agentbin::driver::{IsolatedConfig, Reader, TaskConfig};
use agentbin::executor::{ExecRequests, Executor as _, ExecutorClient};
use agentbin::plugin::{Client, Launch, Program};
use agentbin::spec::collections::BTreeMap;
use agentbin::spec::{
    DriverConfig, ExitResult, LaunchSpec, LogCollection, MemoryLimits, Mount, Propagation, Resources,
};
use agentbin::wire::drivers::ExecTaskStreamingRequest;
use agentbin::wire::drivers::exec_task_streaming_request::Setup;
use serde_json::{Value, json};
use sha2::Digest as _;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;

/// How tightly the driver holds the task (`isolation` of its configuration).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Default,
    Nomad,
}

impl Level {
    pub fn name(self) -> &'static str {
        match self {
            Level::Default => "default",
            Level::Nomad => "nomad",
        }
    }
}

/// What `openat2(2)` answers our roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Openat2 {
    Free,
    Enosys,
    Eperm,
}

impl Openat2 {
    pub fn name(self) -> &'static str {
        match self {
            Openat2::Free => "openat2",
            Openat2::Enosys => "enosys",
            Openat2::Eperm => "eperm",
        }
    }
}

/// A door with its defence taken out: the name that `sys::mutant::on` knows, and where the attack gets through it.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    pub name: &'static str,
    pub level: Level,
    pub openat2: Openat2,
}

impl Mutant {
    /// At the default level, with `openat2(2)`.
    pub const fn new(name: &'static str) -> Mutant {
        Mutant { name, level: Level::Default, openat2: Openat2::Free }
    }

    pub const fn nomad(name: &'static str) -> Mutant {
        Mutant { name, level: Level::Nomad, openat2: Openat2::Free }
    }

    /// In the slow path, which a kernel without `openat2(2)` needs.
    #[allow(dead_code, reason = "for mutants of the slow path, of which there is none yet")]
    pub const fn slow(name: &'static str) -> Mutant {
        Mutant { name, level: Level::Default, openat2: Openat2::Enosys }
    }
}

/// One row of the table in README.md.
pub struct Attack {
    pub id: &'static str,
    /// Tries to break in; `Err` is a success of the attacker. Panics when it could not even try.
    pub run: fn(&mut Lab) -> Verdict,
    /// What the attacker runs inside a task.
    pub inside: Option<fn(&[String], &Inside)>,
    pub mutants: &'static [Mutant],
    /// A vulnerable runtime that is on many machines, as a second proof; `None` where this machine has another one.
    pub control: Option<fn(&mut Lab) -> Option<Verdict>>,
}

/// What the attacker got.
#[derive(Debug)]
pub struct Breach(pub String);

pub type Verdict = Result<(), Breach>;

/// Leaves an attack with a breach unless the condition holds.
macro_rules! hold {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::framework::Breach(format!($($why)+)));
        }
    };
}
pub(crate) use hold;

/// Where an attacker that runs inside a task tells what it found.
#[derive(Default)]
pub struct Inside {
    said: RefCell<u32>,
}

impl Inside {
    /// Got what it must not get. A flood helps nobody.
    pub fn breach(&self, text: &str) {
        *self.said.borrow_mut() += 1;
        if *self.said.borrow() < 20 {
            println!("BREACH {}", text.replace('\n', "\\n"));
        }
    }

    /// For the judge outside.
    #[expect(clippy::unused_self, reason = "who speaks is the attacker inside")]
    pub fn fact(&self, key: &str, value: impl std::fmt::Display) {
        println!("FACT {key} {}", value.to_string().replace('\n', "\\n"));
    }

    #[expect(clippy::unused_self, reason = "who speaks is the attacker inside")]
    pub fn end(&self) {
        println!("END");
    }
}

/// What an attacker inside a task said.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub text: String,
    pub exit: ExitResult,
}

impl Report {
    pub fn facts(&self) -> BTreeMap<String, String> {
        let lines = self.text.lines().filter_map(|line| line.trim_end().strip_prefix("FACT ")?.split_once(' '));
        lines.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    pub fn fact(&self, key: &str) -> String {
        self.facts().remove(key).unwrap_or_else(|| panic!("no fact {key} in {self:?}"))
    }

    /// The attacker ran to its end and found nothing.
    pub fn held(&self) -> Verdict {
        let breaches: Vec<&str> = self.text.lines().filter_map(|line| line.strip_prefix("BREACH ")).collect();
        hold!(breaches.is_empty(), "{}", breaches.join("; "));
        assert!(self.text.lines().any(|line| line.trim_end() == "END"), "the attacker did not finish: {self:?}");
        Ok(())
    }
}

/// How much slower than usual this machine may be (`AGENTBIN_TEST_SLOWER`).
pub fn patience() -> Duration {
    let slower = std::env::var("AGENTBIN_TEST_SLOWER").ok().and_then(|f| f.parse().ok()).unwrap_or(1);
    Duration::from_mins(1) * slower
}

/// Whether races are run as often as the table of the README says.
pub fn full() -> bool {
    std::env::var("AGENTBIN_FULL").is_ok_and(|value| value == "1")
}

/// The program under attack.
pub fn agentbin() -> PathBuf {
    env!("CARGO_BIN_EXE_agentbin").into()
}

/// The same with doors that can be taken out, if it was built.
pub fn mutant_program() -> Option<PathBuf> {
    std::env::var_os("AGENTBIN_MUTANT_PROGRAM").map(PathBuf::from)
}

/// This very program: attacker inside tasks, and the one that spoils what the executor is started with.
pub fn own_program() -> PathBuf {
    std::fs::read_link("/proc/self/exe").unwrap()
}

/// Everything that one attack has.
pub struct Lab {
    pub id: &'static str,
    pub level: Level,
    pub openat2: Openat2,
    pub mutant: Option<&'static str>,
    dir: TempDir,
    runtime: Rc<Runtime>,
    cgroup_parent: String,
    before: Snapshot,
    next: u32,
    /// Tasks that ran. An attack whose tasks were all refused has shown nothing.
    pub started: std::cell::Cell<u32>,
}

impl Lab {
    pub fn new(id: &'static str, level: Level, openat2: Openat2, mutant: Option<&'static str>) -> Lab {
        // Not in the directory for temporary files, whose sticky bit would protect from links.
        let dir = tempfile::Builder::new().prefix("agentbin-attack-").tempdir_in("/var/tmp").unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let name = dir.path().file_name().unwrap().to_str().unwrap();
        let cgroup_parent = match cgroups().regime() {
            Regime::V2 => format!("{name}.slice"),
            Regime::V1 => name.to_owned(),
            Regime::Off => String::new(),
        };
        let mut lab = Lab {
            id,
            level,
            openat2,
            mutant,
            runtime: Rc::new(runtime),
            cgroup_parent,
            before: Snapshot::default(),
            next: 0,
            started: std::cell::Cell::default(),
            dir,
        };
        set_mode(lab.dir.path(), 0o755);
        lab.make_folders();
        lab.make_canary();
        lab.before = lab.snapshot();
        lab
    }

    fn make_folders(&self) {
        // As an agent makes them.
        for (folder, mode) in [
            ("tmp", 0o700),
            ("sockets", 0o700),
            ("alloc", 0o755),
            ("alloc/alloc", 0o777),
            ("alloc/alloc/logs", 0o777),
            ("alloc/alloc/data", 0o777),
            ("alloc/t", 0o777),
            ("alloc/t/local", 0o777),
            ("alloc/t/secrets", 0o777),
            ("alloc/t/tmp", 0o777),
        ] {
            std::fs::create_dir(self.path(folder)).unwrap();
            set_mode(&self.path(folder), mode);
        }
    }

    /// Files of the host with content that nobody can know.
    fn make_canary(&self) {
        let canary = self.canary("");
        for folder in ["", "dir", "open"] {
            std::fs::create_dir(canary.join(folder)).unwrap();
        }
        for (name, mode) in [
            ("secret", 0o600),
            ("shadow", 0o640),
            ("public", 0o644),
            ("tool", 0o755),
            ("log", 0o666),
            ("dir/inner", 0o600),
            ("open/file", 0o666),
        ] {
            std::fs::write(canary.join(name), self.secret(name)).unwrap();
            set_mode(&canary.join(name), mode);
        }
        set_mode(&canary.join("open"), 0o777);
        set_mode(&canary, 0o755);
    }

    /// What stands in a canary's file.
    pub fn secret(&self, name: &str) -> String {
        let random = self.dir.path().file_name().unwrap().to_str().unwrap();
        let digest = sha2::Sha256::digest(format!("{random}/{name}"));
        digest.iter().fold("canary-".to_owned(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Keeps strangers out of the allocation, as those of `agentbin run` do: a program in it would be refused otherwise.
    pub fn close(&self) {
        set_mode(&self.path("alloc"), 0o700);
    }

    /// The program that is attacked.
    pub fn program(&self) -> PathBuf {
        if self.mutant.is_some() { mutant_program().unwrap() } else { agentbin() }
    }

    /// A job of one task of this level; `env` are lines of its block of that name.
    pub fn job(&self, driver: &str, command: &str, args: &str, env: &str) -> String {
        let isolation = if driver == "exec" { format!("isolation = \"{}\"", self.level.name()) } else { String::new() };
        format!(
            "job \"attack\" {{\n  type = \"batch\"\n  group \"g\" {{\n    restart {{\n      attempts = 0\n      mode = \"fail\"\n    }}\n    \
             task \"t\" {{\n      driver = \"{driver}\"\n      kill_timeout = \"10ms\"\n      config {{\n        command = \"{command}\"\n        args = {args}\n        \
             {isolation}\n      }}\n      env {{\n{env}      }}\n    }}\n  }}\n}}\n"
        )
    }

    /// `agentbin run` of a job, with these variables in its environment.
    pub fn agentbin_run(&self, job: &str, env: &[(String, String)]) -> Run {
        self.agentbin_run_with(&[], job, env)
    }

    /// The same with these flags.
    pub fn agentbin_run_with(&self, flags: &[&str], job: &str, env: &[(String, String)]) -> Run {
        self.agentbin_run_in(&self.path("data"), flags, job, env)
    }

    /// The same with this data directory.
    pub fn agentbin_run_in(&self, data: &Path, flags: &[&str], job: &str, env: &[(String, String)]) -> Run {
        let name = data.file_name().unwrap().to_string_lossy();
        let file = self.path(&format!("{name}.nomad.hcl"));
        std::fs::write(&file, job).unwrap();
        self.agentbin_run_file(data, flags, &file, env)
    }

    /// `agentbin run` of a file with these flags.
    pub fn agentbin_run_file(&self, data: &Path, flags: &[&str], file: &Path, env: &[(String, String)]) -> Run {
        let mut command = self.spoiled(&[], &self.program());
        command.arg("run").args(flags).arg("--data-dir").arg(data).arg(file);
        command.env("XDG_RUNTIME_DIR", self.path("sockets"));
        command.envs(env.iter().map(|(key, value)| (key, value)));
        self.started.set(self.started.get() + 1);
        Run::of(command)
    }

    /// A file of the host that is none of the task's business.
    pub fn canary(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.path("canary") } else { self.path("canary").join(name) }
    }

    /// A place in the task's directory, which is its root.
    pub fn task_path(&self, name: &str) -> PathBuf {
        self.path("alloc/t").join(name)
    }

    /// The directory that the tasks of the allocation share, `/alloc` inside.
    pub fn shared(&self, name: &str) -> PathBuf {
        self.path("alloc/alloc").join(name)
    }

    /// What an earlier run of the task left in its directory: a symlink, its parents made, its place emptied.
    pub fn plant_link(&self, place: &str, target: impl AsRef<Path>) {
        let place = self.clear(place);
        std::os::unix::fs::symlink(target, place).unwrap();
    }

    /// As [`Lab::plant_link`], a file.
    pub fn plant_file(&self, place: &str, content: &[u8], mode: u32) {
        let place = self.clear(place);
        std::fs::write(&place, content).unwrap();
        set_mode(&place, mode);
    }

    /// As [`Lab::plant_link`], a directory.
    pub fn plant_dir(&self, place: &str) {
        let place = self.clear(place);
        std::fs::create_dir(&place).unwrap();
        set_mode(&place, 0o777);
    }

    /// As [`Lab::plant_link`], a FIFO.
    #[allow(dead_code, reason = "the rest of group B plants them")]
    pub fn plant_fifo(&self, place: &str) {
        let place = self.clear(place);
        nix::unistd::mkfifo(&place, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
    }

    fn clear(&self, place: &str) -> PathBuf {
        let place = self.task_path(place);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        match place.symlink_metadata() {
            Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(&place).unwrap(),
            Ok(_) => std::fs::remove_file(&place).unwrap(),
            Err(_) => {}
        }
        place
    }

    /// The task's directory as it was made.
    pub fn reset_task_folder(&self) {
        std::fs::remove_dir_all(self.path("alloc")).unwrap();
        for folder in ["tmp", "sockets"] {
            std::fs::remove_dir_all(self.path(folder)).unwrap();
        }
        self.make_folders();
    }

    /// How often something is tried: 20 times, `full` with `AGENTBIN_FULL=1`.
    #[expect(clippy::unused_self, reason = "how long an attack goes on is the lab's to say")]
    pub fn rounds(&self, full: u32) -> u32 {
        if self::full() { full } else { full.min(20) }
    }

    /// Tries something `short` times, or `full` times, while these swap names. A defence that only a race gets through
    /// (its mutant is called `…-race`) is tried until it was got through.
    pub fn race(
        &mut self,
        [short, full]: [u32; 2],
        swappers: &[Swapper],
        mut round: impl FnMut(&mut Lab, u32) -> Verdict,
    ) -> Verdict {
        let is_proof = self.mutant.is_some_and(|name| name.ends_with("-race"));
        let rounds = if is_proof { 300 } else { [short, full][usize::from(self::full())] };
        for number in 0..rounds {
            round(self, number)?;
            if is_proof {
                self.judge()?;
            }
        }
        hold!(swappers.iter().all(|swapper| swapper.swaps() > 0), "nothing was swapped");
        Ok(())
    }

    /// A task that runs this attack's `inside` with these words, unless it is told otherwise.
    pub fn task(&mut self, args: &[&str]) -> Plan<'_> {
        let mut all = vec!["inside".to_owned(), self.id.to_owned()];
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        let isolation = json!({ "isolation": self.level.name() });
        Plan {
            command: "/attack".to_owned(),
            args: all,
            user: String::new(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            config: isolation.as_object().unwrap().clone(),
            plugin: serde_json::Map::new(),
            mounts: Vec::new(),
            spec: Box::new(|_| {}),
            executor_env: Vec::new(),
            spoil: Vec::new(),
            isolated: true,
            lab: self,
        }
    }

    /// The attacked program, or the attack's own where it stands in for it, spoiled in these ways.
    pub fn spoiled(&self, how: &[&str], program: &Path) -> Command {
        let mut command = Command::new(own_program());
        command.arg("spoil").arg(self.openat2.name()).args(how).arg("--").arg(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("TMPDIR", self.path("tmp")).stdin(Stdio::null());
        if let Some(name) = self.mutant {
            command.env("AGENTBIN_MUTANT", name);
        }
        command
    }

    /// The attacked program as a plugin: a role with its arguments, spoiled in these ways, with these variables as well.
    pub fn role(&self, how: &[String], role: &[&str], env: Vec<(OsString, OsString)>) -> Client {
        let mut args: Vec<OsString> = vec!["spoil".into(), self.openat2.name().into()];
        args.extend(how.iter().map(OsString::from));
        args.extend(["--".into(), self.program().into()]);
        args.extend(role.iter().map(OsString::from));
        let mut all: Vec<(OsString, OsString)> = env;
        all.extend([("PATH".into(), "/usr/bin:/bin".into()), ("TMPDIR".into(), self.path("tmp").into())]);
        all.extend(self.mutant.map(|name| ("AGENTBIN_MUTANT".into(), name.into())));
        let (own, sockets) = (own_program(), self.path("sockets"));
        let launch = Launch {
            args: &args,
            env: all,
            new_session: true,
            socket_dir: Some(&sockets),
            ..Launch::new(Program::Path(&own))
        };
        self.block_on(&format!("start {}", role[0]), launch.start()).unwrap()
    }

    /// A driver of ours as an agent's plugin.
    pub fn plugin(&self, driver: &str) -> Client {
        self.started.set(self.started.get() + 1);
        self.role(&[], &["driver", driver], Vec::new())
    }

    /// What whoever started an executor does when that was killed: an empty cgroup and a dead socket are its to remove.
    pub fn reconcile(&self) {
        for cgroup in self.cgroup_folders().iter().rev() {
            let _ = std::fs::remove_dir(cgroup);
        }
        for socket in std::fs::read_dir(self.path("sockets")).unwrap().flatten() {
            std::fs::remove_file(socket.path()).unwrap();
        }
    }

    pub fn block_on<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            tokio::time::timeout(patience(), future).await.unwrap_or_else(|_| panic!("{what}: not in time"))
        })
    }

    /// Nothing outside the task has changed, and nothing of it is left.
    pub fn judge(&self) -> Verdict {
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut now = self.snapshot();
        // A killed process is still listed for a moment; so is its cgroup.
        while now.passing() != self.before.passing() && Instant::now() < deadline {
            pause();
            now = self.snapshot();
        }
        let difference = self.before.difference(&now);
        hold!(difference.is_empty(), "traces: {}", difference.join("; "));
        Ok(())
    }

    /// After the judge: what is left is no matter of the next attack.
    pub fn clean(&self) {
        for pid in processes() {
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while !processes().is_empty() && Instant::now() < deadline {
            while let Ok(Some(_)) = rustix::process::waitpid(None, rustix::process::WaitOptions::NOHANG) {}
            pause();
        }
        let before: BTreeSet<&String> = self.before.mounts.iter().collect();
        for line in mounts().iter().rev().filter(|line| !before.contains(line)) {
            let _ = nix::mount::umount2(Path::new(mount_point(line)), nix::mount::MntFlags::MNT_DETACH);
        }
        for cgroup in self.cgroup_folders().iter().rev() {
            let _ = std::fs::remove_dir(cgroup);
        }
        for (path, value) in &self.before.settings {
            if std::fs::read_to_string(path).is_ok_and(|now| now != *value) {
                let _ = std::fs::write(path, value);
            }
        }
    }

    fn cgroup_folders(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut todo: Vec<PathBuf> =
            cgroups().hierarchies().map(|h| h.mount_point.join(&self.cgroup_parent)).filter(|p| p.is_dir()).collect();
        while let Some(dir) = todo.pop() {
            let children = std::fs::read_dir(&dir).into_iter().flatten().flatten();
            todo.extend(children.map(|e| e.path()).filter(|p| p.is_dir()));
            found.insert(dir);
        }
        found
    }

    fn snapshot(&self) -> Snapshot {
        let mut files = BTreeMap::new();
        describe_tree(&self.canary(""), &mut files);
        for top in ["/", "/dev"] {
            for entry in std::fs::read_dir(top).unwrap().flatten() {
                files.insert(entry.path(), describe_place(&entry.path()));
            }
        }
        for folder in ["tmp", "sockets"] {
            describe_tree(&self.path(folder), &mut files);
            // Its own times change with what comes and goes.
            files.remove(&self.path(folder));
        }
        let ours = self.dir.path().to_str().unwrap();
        let sockets = std::fs::read("/proc/net/unix").unwrap();
        let sockets = String::from_utf8_lossy(&sockets);
        // Parents of a task's cgroup are kept for the next task.
        let parents: BTreeSet<PathBuf> =
            cgroups().hierarchies().map(|h| h.mount_point.join(&self.cgroup_parent)).collect();
        Snapshot {
            files,
            mounts: mounts(),
            cgroups: self.cgroup_folders().difference(&parents).cloned().collect(),
            settings: SETTINGS.iter().filter_map(|p| Some((*p, std::fs::read_to_string(p).ok()?))).collect(),
            sockets: sockets
                .lines()
                .filter_map(|line| line.split_whitespace().nth(7))
                .filter(|path| path.contains(ours))
                .map(str::to_owned)
                .collect(),
            processes: processes(),
        }
    }
}

pub fn cgroups() -> CgroupFs {
    CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap()
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "what is left is looked for until a deadline; there is no event")]
pub fn pause() {
    std::thread::sleep(Duration::from_millis(5));
}

/// Settings of the machine at which attacks aim.
const SETTINGS: [&str; 10] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/vm/stat_interval",
    "/proc/sys/vm/swappiness",
    "/proc/sys/fs/suid_dumpable",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/proc/irq/default_smp_affinity",
];

/// What must be the same before and after.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Snapshot {
    files: BTreeMap<PathBuf, String>,
    mounts: Vec<String>,
    cgroups: BTreeSet<PathBuf>,
    settings: BTreeMap<&'static str, String>,
    sockets: BTreeSet<String>,
    processes: BTreeSet<i32>,
}

impl Snapshot {
    /// What goes away by itself, if only in a moment.
    fn passing(&self) -> (&BTreeSet<i32>, &BTreeSet<PathBuf>, &BTreeSet<String>, &Vec<String>) {
        (&self.processes, &self.cgroups, &self.sockets, &self.mounts)
    }

    fn difference(&self, after: &Snapshot) -> Vec<String> {
        let mut all = Vec::new();
        for (path, is) in &after.files {
            match self.files.get(path) {
                None => all.push(format!("new: {} {is}", path.display())),
                Some(was) if was != is => all.push(format!("changed: {} {was} -> {is}", path.display())),
                Some(_) => {}
            }
        }
        all.extend(
            self.files.keys().filter(|p| !after.files.contains_key(*p)).map(|p| format!("gone: {}", p.display())),
        );
        all.extend(after.mounts.iter().filter(|m| !self.mounts.contains(m)).map(|m| format!("new mount: {m}")));
        all.extend(self.mounts.iter().filter(|m| !after.mounts.contains(m)).map(|m| format!("mount gone: {m}")));
        all.extend(after.cgroups.difference(&self.cgroups).map(|c| format!("cgroup left: {}", c.display())));
        for (path, was) in &self.settings {
            let is = after.settings.get(path);
            if is != Some(was) {
                all.push(format!("{path}: {was:?} -> {is:?}"));
            }
        }
        all.extend(after.sockets.difference(&self.sockets).map(|s| format!("socket left: {s}")));
        all.extend(after.processes.iter().map(|pid| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            format!("process left: {} {}", stat.chars().take(40).collect::<String>(), command_line(*pid))
        }));
        all
    }
}

fn describe_place(path: &Path) -> String {
    let Ok(meta) = path.symlink_metadata() else { return "gone".to_owned() };
    format!("{:o} inode {} device {}", meta.mode(), meta.ino(), meta.rdev())
}

/// All that can be told of a file without touching it.
fn describe(path: &Path) -> String {
    let Ok(meta) = path.symlink_metadata() else { return "gone".to_owned() };
    let content = if meta.is_symlink() {
        format!("{:?}", std::fs::read_link(path))
    } else if meta.is_file() && meta.len() < 1 << 24 {
        sha2::Sha256::digest(std::fs::read(path).unwrap_or_default())[..8].iter().fold(String::new(), |mut hex, b| {
            write!(hex, "{b:02x}").unwrap();
            hex
        })
    } else {
        String::new()
    };
    let place = describe_place(path);
    let (links, uid, gid, size) = (meta.nlink(), meta.uid(), meta.gid(), meta.size());
    format!("{place} links {links} {uid}:{gid} {size} bytes, mtime {}.{} {content}", meta.mtime(), meta.mtime_nsec())
}

fn describe_tree(path: &Path, into: &mut BTreeMap<PathBuf, String>) {
    into.insert(path.to_owned(), describe(path));
    if path.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            describe_tree(&entry.path(), into);
        }
    }
}

/// The mounts of this program's own mount namespace, which sees what the roles do to theirs.
fn mounts() -> Vec<String> {
    static INHERITED: OnceLock<BTreeSet<String>> = OnceLock::new();
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    // Copies of what others had mounted when the lab was made go when they remove the directory.
    let inherited = INHERITED.get_or_init(|| {
        let of_others = |line: &&str| !["/proc", "/sys", "/dev"].iter().any(|top| mount_point(line).starts_with(top));
        text.lines().filter(of_others).map(str::to_owned).collect()
    });
    text.lines().filter(|line| !inherited.contains(*line)).map(str::to_owned).collect()
}

fn mount_point(line: &str) -> &str {
    line.split(' ').nth(4).unwrap_or("/")
}

/// Every process of this program's pid namespace but itself and the first one.
pub fn processes() -> BTreeSet<i32> {
    let own = i32::try_from(std::process::id()).unwrap();
    let all = procfs::process::all_processes().unwrap().flatten();
    all.map(|p| p.pid).filter(|pid| *pid != 1 && *pid != own).collect()
}

pub fn command_line(pid: i32) -> String {
    let text = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&text).replace('\0', " ")
}

fn has_capability(name: &str) -> bool {
    let capability = name.to_ascii_uppercase().parse::<caps::Capability>();
    capability.is_ok_and(|capability| caps::has_cap(None, caps::CapSet::Permitted, capability).unwrap())
}

/// A task before its start.
pub struct Plan<'a> {
    lab: &'a mut Lab,
    command: String,
    args: Vec<String>,
    user: String,
    env: BTreeMap<String, String>,
    config: serde_json::Map<String, Value>,
    plugin: serde_json::Map<String, Value>,
    mounts: Vec<Mount>,
    spec: Box<dyn FnOnce(&mut LaunchSpec) + 'a>,
    executor_env: Vec<(OsString, OsString)>,
    spoil: Vec<String>,
    isolated: bool,
}

impl<'a> Plan<'a> {
    pub fn command(mut self, command: &str, args: &[&str]) -> Self {
        command.clone_into(&mut self.command);
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    pub fn level(&self) -> Level {
        self.lab.level
    }

    pub fn user(mut self, user: &str) -> Self {
        user.clone_into(&mut self.user);
        self
    }

    pub fn env(mut self, key: &str, value: &str) -> Self {
        self.env.insert(key.to_owned(), value.to_owned());
        self
    }

    /// A key of the task's `config`.
    pub fn config(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.to_owned(), value);
        self
    }

    /// A key of the operator's, in the configuration of the driver's plugin.
    pub fn plugin(mut self, key: &str, value: Value) -> Self {
        self.plugin.insert(key.to_owned(), value);
        self
    }

    pub fn mount(mut self, host: &Path, inside: &str, readonly: bool, propagation: Propagation) -> Self {
        let (task_path, host_path) = (inside.to_owned(), host.to_owned());
        let mount = Mount { task_path, host_path, readonly, propagation, ..Mount::default() };
        self.mounts.push(mount);
        self
    }

    /// What no job can ask for, but whoever speaks to an executor.
    pub fn spec(mut self, change: impl FnOnce(&mut LaunchSpec) + 'a) -> Self {
        self.spec = Box::new(change);
        self
    }

    pub fn executor_env(mut self, key: &str, value: &str) -> Self {
        self.executor_env.push((key.into(), value.into()));
        self
    }

    /// What the executor is started with, see `main.rs`: `fds`, `closed`, `groups=0,4`, `umask=0`.
    pub fn spoil(mut self, how: &str) -> Self {
        self.spoil.push(how.to_owned());
        self
    }

    /// As `raw_exec`: on the host's files.
    pub fn not_isolated(mut self) -> Self {
        self.isolated = false;
        self
    }

    /// Starts it. `Err` is what the executor, or the driver before it, said to refuse.
    pub fn start(self) -> Result<Task, String> {
        let Plan { lab, command, args, user, env, config, plugin, mounts, spec: change, .. } = self;
        let (executor_env, spoil, isolated) = (self.executor_env, self.spoil, self.isolated);
        let number = lab.next;
        lab.next += 1;
        let cgroup = match cgroups().regime() {
            Regime::V2 => format!("{}/t{number}.scope", lab.cgroup_parent),
            Regime::V1 => format!("{}/t{number}", lab.cgroup_parent),
            Regime::Off => String::new(),
        };
        let logs = lab.shared("logs");
        // What the task before it wrote is not what this one writes.
        for name in ["t.stdout.0", "t.stderr.0"] {
            let file = logs.join(name);
            if file.symlink_metadata().is_ok_and(|m| m.is_file()) {
                std::fs::remove_file(file).unwrap();
            }
        }
        let config = DriverConfig { values: config, ..DriverConfig::default() };
        let attacker =
            Mount { task_path: "/attack".to_owned(), host_path: own_program(), readonly: true, ..Mount::default() };
        let task = TaskConfig {
            name: "t".to_owned(),
            alloc_dir: lab.path("alloc"),
            user: user.clone(),
            mounts: std::iter::once(attacker).chain(mounts).collect(),
            config,
            ..TaskConfig::default()
        };
        let mut spec = LaunchSpec {
            command,
            args,
            env: env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            user,
            task_dir: lab.path("alloc/t"),
            resources: Resources {
                memory: MemoryLimits { hard_bytes: Some(512 << 20), soft_bytes: None },
                ..Resources::default()
            },
            resource_limits: !cgroup.is_empty(),
            cgroup: cgroup.clone().into(),
            logs: Some(LogCollection {
                dir: logs.clone(),
                stdout_file: "t.stdout".to_owned(),
                stderr_file: "t.stderr".to_owned(),
                max_files: 3,
                max_file_size_bytes: 16 << 20,
                ..LogCollection::default()
            }),
            ..LaunchSpec::default()
        };
        if isolated {
            let reader = Reader::any("exec", &task.config);
            let plugin = DriverConfig { values: plugin, ..DriverConfig::default() };
            let driver = IsolatedConfig::read(&Reader::any("exec", &plugin)).unwrap();
            driver.plan(&reader, &task, &mut spec).map_err(|error| error.to_string())?;
        }
        // A machine that withholds a capability from root withholds it from tasks.
        spec.capabilities.retain(|name| has_capability(name));
        change(&mut spec);

        let settings = json!({
            "LogFile": lab.path("executor.log"), "LogLevel": "debug", "FSIsolation": isolated,
        });
        let client = lab.role(&spoil, &["executor", &settings.to_string()], executor_env);
        let executor = ExecutorClient::new(client.channel());
        let mut task = Task {
            runtime: Rc::clone(&lab.runtime),
            executor_pid: client.process().pid,
            client: Some(client),
            executor,
            cgroup: cgroup.into(),
            logs,
            pid: 0,
        };
        let launched = task.block_on("launch", task.executor.launch(spec));
        match launched {
            Ok(state) => {
                lab.started.set(lab.started.get() + 1);
                task.pid = state.pid;
                Ok(task)
            }
            Err(error) => {
                task.end();
                Err(error.to_string())
            }
        }
    }

    /// Starts it and waits for its end.
    pub fn run(self) -> Result<Report, String> {
        self.start().map(Task::finish)
    }

    /// Runs an attacker that must find nothing, or not even be started.
    pub fn must_hold(self) -> Verdict {
        match self.run() {
            Ok(report) => report.held(),
            Err(_) => Ok(()),
        }
    }
}

/// A running `agentbin run`, with what it has said so far.
pub struct Run {
    child: std::process::Child,
    stdout: Arc<Mutex<Vec<u8>>>,
    stderr: Arc<Mutex<Vec<u8>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Run {
    /// A command that is one.
    pub fn of(mut command: Command) -> Run {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let readers = vec![
            collect(child.stdout.take().unwrap(), Arc::clone(&stdout)),
            collect(child.stderr.take().unwrap(), Arc::clone(&stderr)),
        ];
        Run { child, stdout, stderr, readers }
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.lock().unwrap()).into_owned()
    }

    /// Both streams.
    pub fn said(&self) -> String {
        self.stdout() + &String::from_utf8_lossy(&self.stderr.lock().unwrap())
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the task has said this.
    pub fn wait_for(&mut self, text: &str) {
        let deadline = Instant::now() + patience();
        while !self.stdout().contains(text) {
            assert!(Instant::now() < deadline && self.is_running(), "{text:?} did not come: {}", self.said());
            pause();
        }
    }

    /// Waits for its end.
    pub fn wait(&mut self) {
        let deadline = Instant::now() + patience();
        while self.is_running() {
            assert!(Instant::now() < deadline, "the run did not end: {}", self.said());
            pause();
        }
    }

    /// Stops the job, as Ctrl-C does; all that was said.
    pub fn interrupt(mut self) -> String {
        if self.is_running() {
            let pid = rustix::process::Pid::from_child(&self.child);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        }
        let deadline = Instant::now() + patience();
        while self.is_running() {
            // Its task does not end by itself at the first.
            if Instant::now() > deadline {
                self.kill();
                panic!("the run did not end: {}", self.said());
            }
            pause();
        }
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        self.said()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut from: impl std::io::Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            into.lock().unwrap().extend_from_slice(&buffer[..read]);
        }
    })
}

/// A running task and its executor. Ended when dropped.
pub struct Task {
    runtime: Rc<Runtime>,
    client: Option<Client>,
    pub executor: ExecutorClient,
    pub executor_pid: i32,
    /// The task's first process, as this program sees it.
    pub pid: i32,
    #[allow(dead_code, reason = "the rest of group B looks into it")]
    pub cgroup: PathBuf,
    logs: PathBuf,
}

impl Task {
    pub fn block_on<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(async {
            tokio::time::timeout(patience(), future).await.unwrap_or_else(|_| panic!("{what}: not in time"))
        })
    }

    /// Lets the connection hear of what has happened.
    pub fn let_events_come(&self) {
        self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(5)).await });
    }

    /// Waits for the end of the task, ends its executor.
    pub fn finish(mut self) -> Report {
        let state = self.block_on("wait for the task", self.executor.wait()).unwrap();
        self.end();
        Report { text: self.output(), exit: state.exit.unwrap_or_default() }
    }

    /// Kills it.
    pub fn stop(mut self) {
        self.end();
    }

    /// What it has written to stdout and stderr so far.
    pub fn output(&self) -> String {
        let read = |name: &str| std::fs::read(self.logs.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&[read("t.stdout.0"), read("t.stderr.0")].concat()).into_owned()
    }

    /// Waits until it has written this.
    pub fn wait_for(&self, text: &str) {
        let deadline = Instant::now() + patience();
        while !self.output().contains(text) {
            assert!(Instant::now() < deadline, "{text:?} did not come: {:?}", self.output());
            pause();
        }
    }

    /// A whole session inside the task. `Err` is why it could not be started.
    pub fn exec(&self, command: &[&str], tty: bool) -> Result<Report, String> {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let setup = Setup { command, tty, ..Setup::default() };
        let request = ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() };
        let requests: ExecRequests = Box::pin(tokio_stream::iter([Ok(request)]).chain(tokio_stream::pending()));
        self.block_on("a session", async {
            let mut responses = self.executor.exec_streaming(requests).await.map_err(|e| e.to_string())?;
            let (mut bytes, mut exit) = (Vec::new(), ExitResult::default());
            while let Some(response) = responses.next().await {
                let response = response.map_err(|e| e.to_string())?;
                for operation in [response.stdout, response.stderr].into_iter().flatten() {
                    bytes.extend(operation.data);
                }
                if let Some(result) = response.result {
                    exit.exit_code = result.exit_code;
                }
            }
            Ok(Report { text: String::from_utf8_lossy(&bytes).into_owned(), exit })
        })
    }

    fn end(&mut self) {
        let Some(client) = self.client.take() else { return };
        let _ = self.block_on("shut down", self.executor.shutdown("", Duration::ZERO));
        self.block_on("end the executor", client.kill());
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// Swaps two names as fast as it can, until it is dropped.
pub struct Swapper {
    stop: Arc<AtomicBool>,
    swaps: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Swapper {
    pub fn new(one: PathBuf, other: PathBuf) -> Swapper {
        let (stop, swaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&swaps));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                if rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &other, flags).is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Swapper { stop, swaps, thread: Some(thread) }
    }

    /// How often it has swapped; a race that never ran proves nothing.
    pub fn swaps(&self) -> u64 {
        self.swaps.load(Ordering::Relaxed)
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
