//! Group D: another user of the machine, who holds locks, says what is not true of processes, owns what a path leads through,
//! executes what was installed carelessly, and comes first to a name.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use agentbin::alloc::{AllocDir, Record, Records};
use agentbin::logs::client::Client as LogClient;
use agentbin::logs::{LogMonitor as _, StartConfig};
use agentbin::spec::AllocId;
use serde_json::json;

use crate::framework::{Attack, Inside, Lab, Mutant, Verdict, cgroups, hold, own_program, patience, pause, set_mode};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack { id: "d70", run: d70, inside: Some(stranger), mutants: &[Mutant::new("d70")], control: None },
    Attack {
        id: "d71",
        run: d71,
        inside: Some(stranger),
        mutants: &[Mutant::new("d71"), Mutant::new("d71-mark")],
        control: None,
    },
    Attack { id: "d72", run: d72, inside: Some(stranger), mutants: &[Mutant::new("d72")], control: None },
    Attack { id: "d73", run: d73, inside: None, mutants: &[Mutant::new("d73")], control: None },
    Attack { id: "d74", run: d74, inside: Some(stranger), mutants: &[Mutant::new("d74")], control: None },
    Attack { id: "d75", run: d75, inside: Some(stranger), mutants: &[Mutant::new("d75")], control: None },
    Attack {
        id: "d76",
        run: d76,
        inside: None,
        mutants: &[Mutant::new("d76"), Mutant::new("d76-fifo")],
        control: None,
    },
    Attack { id: "d77", run: d77, inside: Some(stranger), mutants: &[Mutant::new("d77")], control: None },
];

/// Another user of the machine, in no group but his own.
const STRANGER: u32 = 7009;
/// The user `abthree` of the lab.
const ABTHREE: u32 = 7001;
/// Memory of a process of ours that is to find no end, in bytes.
const MEMORY: u64 = 1 << 30;
/// How many processes of the stranger's run at a time.
const MANY: usize = 100;

/// Longest work that nobody may hold up, on a machine that has other work.
fn longest() -> Duration {
    patience() / 6
}

/// What the stranger does, as a process of that user.
fn stranger(args: &[String], inside: &Inside) {
    let (what, rest) = args.split_first().expect("what to do");
    match (what.as_str(), rest) {
        ("lock", places) => {
            let open = |place: &String| std::fs::File::open(place).ok();
            let files: Vec<_> = places.iter().filter_map(open).collect();
            let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            let held = files.iter().filter(|file| rustix::fs::flock(file, lock).is_ok()).count();
            inside.fact("held", held);
            forever();
        }
        ("endless", _) => {
            kernel::point_arguments_at(1 << 36).unwrap();
            inside.fact("pointed", true);
            forever();
        }
        ("mark", [id]) => {
            // Whoever kills one wakes the thread that starts the next, so that on a loaded machine there is always one, too.
            let (begun, begins) = std::sync::mpsc::channel();
            for _ in 0..MANY {
                let (id, begun) = (id.clone(), begun.clone());
                std::thread::spawn(move || {
                    loop {
                        // It ends when nobody holds the other end of its input any more.
                        let mut command = Command::new("/bin/cat");
                        let child = command.env_clear().env("NOMAD_ALLOC_ID", &id).stdin(Stdio::piped()).spawn();
                        let _ = begun.send(());
                        let _ = child.and_then(|mut child| {
                            let input = child.stdin.take();
                            let ended = child.wait();
                            drop(input);
                            ended
                        });
                    }
                });
            }
            begins.iter().take(MANY).for_each(drop);
            inside.fact("marking", true);
            forever();
        }
        ("exchange", [home]) => {
            // What lies in the directory that is his own is his to rename, whoever made it.
            let home = Path::new(home);
            std::fs::rename(home.join("data"), home.join("gone")).unwrap();
            let id = std::fs::read_to_string(home.join("id")).unwrap();
            let task = home.join("data/alloc").join(id).join("t/local");
            std::fs::create_dir_all(&task).unwrap();
            std::fs::write(task.join("app.sh"), "echo PLANTED as $(id -u)\n").unwrap();
        }
        ("read", [dir]) => {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                let top = entry.path();
                if !top.file_name().is_some_and(|name| name.to_string_lossy().starts_with("agentbin-plugin-")) {
                    continue;
                }
                inside.fact("found", true);
                let log = top.join("alloc/logs/t.stdout.0");
                if let Ok(text) = std::fs::read_to_string(&log) {
                    inside.breach(&format!("the output is {text:?}"));
                }
                if std::fs::write(top.join("t/local/new"), "x").is_ok() {
                    inside.breach("made a file in the task's directory");
                }
            }
        }
        ("listen", [socket]) => {
            let listener = UnixListener::bind(socket).unwrap();
            inside.fact("listening", true);
            let (mut connection, _) = listener.accept().unwrap();
            let mut words = [0; 64];
            let length = connection.read(&mut words).unwrap_or(0);
            if length > 0 {
                inside.breach(&format!("was told {:?}", String::from_utf8_lossy(&words[..length])));
            }
            inside.end();
            std::io::stdout().flush().unwrap();
            forever();
        }
        other => panic!("{other:?} is not known"),
    }
}

/// Until it is killed.
fn forever() {
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// A process of the stranger's, ended when dropped.
struct Stranger {
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Stranger {
    fn new(lab: &Lab, args: &[&str]) -> Stranger {
        let program = lab.path("stranger");
        if !program.exists() {
            std::fs::copy(own_program(), &program).unwrap();
            set_mode(&program, 0o755);
        }
        let mut command = Command::new(&program);
        command.args(["inside", lab.id]).args(args).uid(STRANGER).gid(STRANGER);
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(process.stdout.take().unwrap());
        Stranger { process, said }
    }

    /// Waits for a line that begins so.
    fn line(&mut self, begin: &str) -> String {
        let mut line = String::new();
        while !line.starts_with(begin) {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the stranger did not say {begin:?}");
        }
        line
    }

    /// All that it says, to its end.
    fn finish(mut self) -> String {
        let mut text = String::new();
        self.said.read_to_string(&mut text).unwrap();
        assert!(text.contains("END"), "{text}");
        text
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program to its end, or to the time when it has been held up: its status and what it said.
fn ended(lab: &Lab, mut command: Command) -> Option<(i32, String)> {
    lab.started.set(lab.started.get() + 1);
    let out = lab.path("said");
    let file = std::fs::File::create(&out).unwrap();
    command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
    let mut child = command.spawn().unwrap();
    let deadline = Instant::now() + longest();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status.code().unwrap_or(-1));
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        pause();
    };
    let said = std::fs::read_to_string(&out).unwrap();
    std::fs::remove_file(&out).unwrap();
    status.map(|status| (status, said))
}

/// A lock that anybody can hold keeps root's tasks from their cores.
fn d70(lab: &mut Lab) -> Verdict {
    let roots: Vec<String> = cgroups().hierarchies().map(|tree| tree.mount_point.display().to_string()).collect();
    let run = ["/run/agentbin", "/run/agentbin/cpuset.lock"].map(str::to_owned);
    let mut args: Vec<&str> = vec!["lock"];
    args.extend(roots.iter().chain(&run).map(String::as_str));
    // So that there is something to lock for whoever comes second.
    for _ in 0..2 {
        let mut holder = Stranger::new(lab, &args);
        let held = holder.line("FACT held ");
        assert_eq!(held.trim(), format!("FACT held {}", roots.len()), "the trees' roots, and nothing of ours");
        let job = lab.job("raw_exec", "/bin/echo", "[\"of-the-task\"]", "");
        let job = job.replace("kill_timeout", "resources {\n        cores = 1\n      }\n      kill_timeout");
        let file = lab.path("job.nomad.hcl");
        std::fs::write(&file, job).unwrap();
        let mut command = lab.spoiled(&[], &lab.program());
        command.arg("run").arg("--data-dir").arg(lab.path("data")).arg(&file);
        let result = ended(lab, command);
        let Some((status, said)) = result else {
            return Err(crate::framework::Breach("a stranger's lock holds up a task with cores of its own".to_owned()));
        };
        // The only core there is stays for the others.
        hold!(said.contains("of-the-task") || said.contains("cannot reserve"), "ended with {status}: {said}");
        std::fs::remove_dir_all(lab.path("data")).unwrap();
    }
    std::fs::remove_file(lab.path("stranger")).unwrap();
    Ok(())
}

/// What a stranger's processes say of themselves: arguments without end, and an allocation in the environment of ever new ones.
fn d71(lab: &mut Lab) -> Verdict {
    for what in ["endless", "mark"] {
        let data = lab.path("data");
        let id = AllocId::new(uuid::Uuid::new_v4());
        let mut record = Record::new(&id, "job", "group").unwrap();
        // Its owner is dead, and so is its only task.
        record.owner.start_ticks += 1;
        record.cgroups.push(PathBuf::from(format!("agentbin-attack-none/{id}-t")));
        std::fs::create_dir(&data).unwrap();
        set_mode(&data, 0o711);
        Records::new(&data).create(record).unwrap();
        let alloc = AllocDir::new(&data, &id);
        alloc.build().unwrap();
        let mut strangers: Vec<Stranger> = (0..3).map(|_| Stranger::new(lab, &[what, id.as_str()])).collect();
        for stranger in &mut strangers {
            stranger.line("FACT ");
        }
        let mut command = lab.spoiled(&[], Path::new("/usr/bin/prlimit"));
        command.arg(format!("--as={MEMORY}")).arg(lab.program()).arg("gc").arg("--data-dir").arg(&data);
        let result = ended(lab, command);
        drop(strangers);
        let Some((status, said)) = result else {
            return Err(crate::framework::Breach(format!("{what}: gc is held up")));
        };
        hold!(status == 0 && !alloc.path().exists(), "{what}: gc ended with {status}: {said}");
        std::fs::remove_dir_all(&data).unwrap();
    }
    std::fs::remove_file(lab.path("stranger")).unwrap();
    Ok(())
}

/// The data directory lies in one of the stranger's, who puts another one in its place.
fn d72(lab: &mut Lab) -> Verdict {
    let home = lab.path("home");
    for (mode, owner, safe) in
        [(0o755, STRANGER, false), (0o777, 0, false), (0o1777, 0, true), (0o1777, STRANGER, false)]
    {
        std::fs::create_dir(&home).unwrap();
        std::os::unix::fs::chown(&home, Some(owner), Some(owner)).unwrap();
        set_mode(&home, mode);
        let go = lab.path("go");
        let template =
            "      template {\n        data = \"echo REAL\"\n        destination = \"local/app.sh\"\n      }\n";
        let script =
            format!("echo READY; while ! test -e {}; do sleep 0.05; done; sh $NOMAD_TASK_DIR/app.sh", go.display());
        let job = lab.job("raw_exec", "/bin/sh", &format!("[\"-c\", \"{script}\"]"), "");
        let job = job.replace("      kill_timeout", &format!("{template}      kill_timeout"));
        let mut run = lab.agentbin_run_in(&home.join("data"), &[], &job, &[]);
        let deadline = Instant::now() + patience();
        while run.is_running() && !run.stdout().contains("READY") {
            assert!(Instant::now() < deadline, "neither refused nor started: {}", run.said());
            pause();
        }
        if run.is_running() && !safe {
            let allocs = std::fs::read_dir(home.join("data/alloc")).unwrap().flatten();
            let alloc = allocs.map(|entry| entry.path()).find(|path| path.is_dir()).unwrap();
            std::fs::write(home.join("id"), alloc.file_name().unwrap().to_str().unwrap()).unwrap();
            set_mode(&home.join("id"), 0o644);
            Stranger::new(lab, &["exchange", home.to_str().unwrap()]).finish();
        }
        std::fs::write(&go, "").unwrap();
        run.wait();
        let said = run.interrupt();
        hold!(!said.contains("PLANTED"), "{mode:o} of {owner}: the stranger is root now: {said}");
        if safe {
            hold!(said.contains("REAL"), "{mode:o} of {owner}: refused: {said}");
        } else {
            let named = said.contains(&format!("{} ", home.canonicalize().unwrap().display()));
            hold!(named && !said.contains("READY"), "{mode:o} of {owner}: not refused by name: {said}");
            hold!(!home.join("data").exists(), "{mode:o} of {owner}: something is made there: {said}");
        }
        std::fs::remove_file(&go).unwrap();
        std::fs::remove_dir_all(&home).unwrap();
    }
    by_a_link(lab)
}

/// As [`d72`], with a link in a directory that everybody may write to: it leads to a directory of root's.
fn by_a_link(lab: &Lab) -> Verdict {
    let (tmp, target) = (lab.path("sticky"), lab.path("of-root"));
    for dir in [&tmp, &target] {
        std::fs::create_dir(dir).unwrap();
    }
    set_mode(&tmp, 0o1777);
    let link = tmp.join("data");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(STRANGER), None).unwrap();
    for given in [link.clone(), link.join("below")] {
        let job = lab.job("raw_exec", "/bin/echo", "[\"of-the-task\"]", "");
        let mut run = lab.agentbin_run_in(&given, &[], &job, &[]);
        run.wait();
        let said = run.interrupt();
        let left = std::fs::read_dir(&target).unwrap().count();
        hold!(left == 0, "{}: something is made where the link leads: {said}", given.display());
        let named = said.contains(&format!("belongs to user {STRANGER}"));
        hold!(named, "{}: the link is not named: {said}", given.display());
    }
    for dir in [&tmp, &target] {
        std::fs::remove_dir_all(dir).unwrap();
    }
    Ok(())
}

/// The program was installed with a set-id bit: whoever executes it has the rights of its owner.
fn d73(lab: &mut Lab) -> Verdict {
    let program = lab.path("agentbin");
    std::fs::copy(lab.program(), &program).unwrap();
    let flags = rustix::fs::statvfs(&program).unwrap().f_flag;
    assert!(!flags.contains(rustix::fs::StatVfsMountFlags::NOSUID), "such bits mean nothing here");
    let home = lab.path("home");
    std::fs::create_dir(&home).unwrap();
    set_mode(&home, 0o1777);
    let file = lab.path("job.nomad.hcl");
    std::fs::write(&file, lab.job("raw_exec", "/usr/bin/id", "[]", "")).unwrap();
    for mode in [0o4755, 0o2755, 0o6755] {
        set_mode(&program, mode);
        for args in [&["run", "--quiet"][..], &["executor", "{}"], &["gc"], &["driver", "raw_exec"]] {
            let mut command = Command::new(&program);
            command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("TMPDIR", &home).env("HOME", &home);
            if args[0] == "run" {
                command.arg("--data-dir").arg(home.join("data")).arg(&file);
            }
            lab.mutant.into_iter().for_each(|name| _ = command.env("AGENTBIN_MUTANT", name));
            command.uid(STRANGER).gid(STRANGER);
            let result = ended(lab, command);
            let Some((status, said)) = result else { panic!("{mode:o} {args:?}: not in time") };
            hold!(!said.contains("euid=0") && !said.contains("egid=0"), "{mode:o}: the stranger is root: {said}");
            let told = said.contains("with the rights of another user or group");
            hold!(status == 125 && told, "{mode:o} {args:?} ended with {status}: {said}");
        }
    }
    std::fs::remove_dir_all(&home).unwrap();
    std::fs::remove_file(&program).unwrap();
    Ok(())
}

/// The directories of a task that `plugin launch` starts, below one that everybody can list.
fn d74(lab: &mut Lab) -> Verdict {
    let tmp = lab.path("sticky");
    std::fs::create_dir(&tmp).unwrap();
    set_mode(&tmp, 0o1777);
    let (task, config) = (lab.path("task.hcl"), lab.path("config.hcl"));
    std::fs::write(&config, "enabled = true\n").unwrap();
    for (umask, user, uid) in [("umask=022", "", 0), ("umask=0", "", 0), ("umask=022", "abthree", ABTHREE)] {
        let script = "cd $PWD && pwd; id -u; exec sleep 1000";
        std::fs::write(
            &task,
            format!("name = \"t\"\nuser = \"{user}\"\nid = \"x\"\nenv {{\n  PATH = \"/usr/bin:/bin\"\n}}\nconfig {{\n  command = \"/bin/sh\"\n  args = [\"-c\", \"{script}\"]\n}}\n"),
        )
        .unwrap();
        let mut command = lab.spoiled(&[umask], &lab.program());
        command.args(["plugin", "launch"]).arg(lab.program()).args(["driver", "raw_exec", "--config"]).arg(&config);
        command.env("TMPDIR", &tmp).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        lab.started.set(lab.started.get() + 1);
        let mut launcher = command.spawn().unwrap();
        let mut stdin = launcher.stdin.take().unwrap();
        writeln!(stdin, "start {}", task.display()).unwrap();
        let mut answer = String::new();
        BufReader::new(launcher.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
        let started: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
        let output = PathBuf::from(started["stdout_path"].as_str().unwrap_or_default());
        let deadline = Instant::now() + longest();
        let end = format!("\n{uid}\n");
        while !std::fs::read_to_string(&output).unwrap_or_default().ends_with(&end) && Instant::now() < deadline {
            pause();
        }
        let printed = std::fs::read_to_string(&output).unwrap_or_default();
        let said = Stranger::new(lab, &["read", tmp.to_str().unwrap()]).finish();
        drop(stdin);
        launcher.wait().unwrap();
        assert!(
            printed.contains("/t\n") && printed.ends_with(&end),
            "{user}: the task does not run: {answer} {printed}"
        );
        assert!(said.contains("FACT found"), "{said}");
        hold!(!said.contains("BREACH"), "{umask} {user}: {said}");
    }
    for name in ["task.hcl", "config.hcl", "stranger"] {
        std::fs::remove_file(lab.path(name)).unwrap();
    }
    std::fs::remove_dir_all(&tmp).unwrap();
    Ok(())
}

/// Where a plugin says that it listens, another user does: the plugin has ended, or its name was free for a moment.
fn d75(lab: &mut Lab) -> Verdict {
    let tmp = lab.path("sticky");
    std::fs::create_dir(&tmp).unwrap();
    set_mode(&tmp, 0o1777);
    let socket = tmp.join("plugin1");
    let mut listener = Stranger::new(lab, &["listen", socket.to_str().unwrap()]);
    listener.line("FACT listening");
    let plugin = lab.path("plugin");
    std::fs::write(&plugin, format!("#!/bin/sh\necho '1|2|unix|{}|grpc|'\nexec sleep 1000\n", socket.display()))
        .unwrap();
    set_mode(&plugin, 0o755);
    let mut command = lab.spoiled(&[], &lab.program());
    command.args(["plugin", "launch"]).arg(&plugin);
    let result = ended(lab, command);
    let told = listener.line("END");
    assert_eq!(told.trim(), "END");
    drop(listener);
    let Some((status, said)) = result else {
        return Err(crate::framework::Breach("the stranger is taken for the plugin".to_owned()));
    };
    let named = said.contains(&format!("user {STRANGER} listens on"));
    hold!(status == 125 && named, "ended with {status}: {said}");
    for name in ["plugin", "stranger"] {
        std::fs::remove_file(lab.path(name)).unwrap();
    }
    std::fs::remove_dir_all(&tmp).unwrap();
    Ok(())
}

/// The file of a log sink can be read by everybody, and is locked by somebody for as long as he likes.
fn d77(lab: &mut Lab) -> Verdict {
    let log = lab.path("sink.log");
    std::fs::write(&log, "").unwrap();
    set_mode(&log, 0o644);
    let mut holder = Stranger::new(lab, &["lock", log.to_str().unwrap()]);
    assert_eq!(holder.line("FACT held ").trim(), "FACT held 1");
    let file = lab.path("job.nomad.hcl");
    std::fs::write(&file, lab.job("raw_exec", "/bin/echo", "[\"of-the-task\"]", "")).unwrap();
    let mut command = lab.spoiled(&[], &lab.program());
    command.arg("run").arg("--data-dir").arg(lab.path("data")).arg("--log-sink").arg(format!("file:{}", log.display()));
    command.arg(&file);
    let result = ended(lab, command);
    let shipped = std::fs::read_to_string(&log).unwrap();
    hold!(result.is_some(), "a stranger's lock holds up the run");
    hold!(shipped.contains("of-the-task"), "a stranger's lock keeps the output from the sink: {result:?}");
    drop(holder);
    std::fs::remove_dir_all(lab.path("data")).unwrap();
    for name in ["sink.log", "stranger"] {
        std::fs::remove_file(lab.path(name)).unwrap();
    }
    Ok(())
}

/// A stranger makes the executor's log first, or the FIFO through which output goes, in directories as an agent makes them.
fn d76(lab: &mut Lab) -> Verdict {
    let log = lab.task_path("executor.out");
    std::fs::write(&log, "").unwrap();
    set_mode(&log, 0o666);
    std::os::unix::fs::chown(&log, Some(STRANGER), None).unwrap();
    let mut kept = std::fs::File::open(&log).unwrap();
    let settings = json!({ "LogFile": log, "LogLevel": "trace", "FSIsolation": false });
    lab.started.set(lab.started.get() + 1);
    let executor = lab.role(&[], &["executor", &settings.to_string()], Vec::new());
    lab.block_on("end the executor", executor.kill());
    let meta = log.symlink_metadata().unwrap();
    let mut text = String::new();
    kept.read_to_string(&mut text).unwrap();
    hold!(text.is_empty(), "the stranger reads the executor's log: {text}");
    hold!(meta.uid() == 0 && meta.mode() & 0o777 == 0o600, "the log is of {} and {:o}", meta.uid(), meta.mode());
    std::fs::remove_file(&log).unwrap();

    let fifo = lab.shared("logs/.t.stdout.fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    set_mode(&fifo, 0o666);
    std::os::unix::fs::chown(&fifo, Some(STRANGER), None).unwrap();
    let mut options = std::fs::File::options();
    let mut reader = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
    let task = lab.task(&[]).not_isolated().command("/bin/echo", &["of-the-task"]).spec(|spec| {
        spec.logs = None;
        fifo.to_str().unwrap().clone_into(&mut spec.stdout_path);
    });
    let result = task.run();
    let mut got = [0; 64];
    let length = reader.read(&mut got).unwrap_or(0);
    hold!(length == 0, "the stranger reads the output: {}", String::from_utf8_lossy(&got[..length]));
    let refused = result.err().unwrap_or_default();
    hold!(refused.contains(&format!("belongs to user {STRANGER}")), "refused with {refused:?}");

    // What the stranger writes there is no output of a task.
    reader.write_all(b"forged\n").unwrap();
    let logs = lab.shared("logs");
    let client = lab.role(&[], &["logmon"], Vec::new());
    let logmon = LogClient::new(client.channel());
    let config = StartConfig {
        log_dir: logs.clone(),
        stdout_file: "t.stdout".to_owned(),
        stderr_file: "t.stderr".to_owned(),
        max_files: 2,
        max_file_size_mb: 1,
        stdout_fifo: fifo.clone(),
        stderr_fifo: logs.join(".t.stderr.fifo"),
    };
    let started = lab.block_on("start collecting", logmon.start(config));
    if started.is_ok() {
        let _ = lab.block_on("stop collecting", logmon.stop());
    }
    lab.block_on("end the logmon", client.kill());
    let collected = std::fs::read_to_string(logs.join("t.stdout.0")).unwrap_or_default();
    hold!(!collected.contains("forged"), "what a stranger wrote is in the log");
    let told = started.err().map(|error| format!("{error:?}")).unwrap_or_default();
    hold!(told.contains(&STRANGER.to_string()), "the owner is not told: {told:?}");
    for entry in std::fs::read_dir(&logs).unwrap().flatten() {
        std::fs::remove_file(entry.path()).unwrap();
    }
    Ok(())
}
