//! Group D: what belongs to somebody else. Name services, records, kept logs, sinks, passwords, directories that another user
//! made first, processes and files that hold us up.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agentbin::alloc::{AllocDir, Handle, Record, Records};
use agentbin::plugin::Protocol;
use agentbin::spec::{AllocId, Outlive};

use crate::framework::{
    Attack, Lab, Mutant, Verdict, command_line, hold, own_program, patience, pause, processes, set_mode,
};

pub const ATTACKS: &[Attack] = &[
    Attack { id: "d60", run: d60, inside: None, mutants: &[Mutant::new("d60")], control: None },
    Attack { id: "d61", run: d61, inside: None, mutants: &[Mutant::new("d61")], control: None },
    Attack {
        id: "d62",
        run: d62,
        inside: None,
        mutants: &[Mutant::new("d62"), Mutant::new("d62-mode")],
        control: None,
    },
    Attack { id: "d63", run: d63, inside: None, mutants: &[Mutant::new("d63")], control: None },
    Attack { id: "d64", run: d64, inside: None, mutants: &[Mutant::new("d64")], control: None },
    Attack { id: "d65", run: d65, inside: None, mutants: &[Mutant::new("d65")], control: None },
    Attack { id: "d66", run: d66, inside: None, mutants: &[Mutant::new("d66")], control: None },
    Attack { id: "d67", run: d67, inside: None, mutants: &[Mutant::new("d67")], control: None },
    Attack { id: "d68", run: d68, inside: None, mutants: &[Mutant::new("d68")], control: None },
];

/// Two users of the host who have nothing to do with any task.
const STRANGER: u32 = 12345;
const ATTACKER: u32 = 12346;

/// Longest refusal, on a machine that has other work.
fn longest() -> Duration {
    patience() / 6
}

/// A run of the attacked program to its end: its status and both of its streams.
fn ran(lab: &Lab, how: &[&str], args: &[&std::ffi::OsStr]) -> (i32, String) {
    let mut command = lab.spoiled(how, &lab.program());
    command.args(args).env("XDG_RUNTIME_DIR", lab.path("sockets"));
    lab.started.set(lab.started.get() + 1);
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code().unwrap_or(-1), said)
}

/// `agentbin run` of a job of one `raw_exec` task, with these flags.
fn run_job(lab: &Lab, how: &[&str], script: &str, flags: &[&str]) -> (i32, String) {
    let file = lab.path("job.nomad.hcl");
    std::fs::write(&file, lab.job("raw_exec", "/bin/sh", &format!("[\"-c\", {script:?}]"), "")).unwrap();
    let data = lab.path("data");
    let mut args: Vec<&std::ffi::OsStr> = vec!["run".as_ref(), "--data-dir".as_ref(), data.as_ref()];
    args.extend(flags.iter().map(|flag| -> &std::ffi::OsStr { flag.as_ref() }));
    args.push(file.as_ref());
    ran(lab, how, &args)
}

/// An /etc of the lab's own with these files changed, in this mount namespace only, until it is dropped.
struct OwnEtc;

impl OwnEtc {
    fn new(lab: &Lab, changes: &[(&str, &str)]) -> OwnEtc {
        let etc = lab.path("etc");
        std::fs::create_dir(&etc).unwrap();
        assert!(Command::new("cp").args(["-a", "/etc/."]).arg(&etc).status().unwrap().success());
        for (name, text) in changes {
            // It may be a link to a file of the machine's.
            let _ = std::fs::remove_file(etc.join(name));
            std::fs::write(etc.join(name), text).unwrap();
        }
        let flags = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(Some(&etc), "/etc", None::<&str>, flags, None::<&str>).unwrap();
        OwnEtc
    }
}

impl Drop for OwnEtc {
    fn drop(&mut self) {
        nix::mount::umount2("/etc", nix::mount::MntFlags::MNT_DETACH).unwrap();
    }
}

/// A name server that knows the addresses of `dns.test`, as long as it lives.
struct NameServer {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl NameServer {
    fn new(address: &str) -> NameServer {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut query = [0; 1500];
            while !stopped.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut query) {
                    socket.send_to(&answer(&query[..length]), from).unwrap();
                }
            }
        });
        NameServer { stop, thread: Some(thread) }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// RFC 1035: the question again, and for `dns.test` and A the address 127.0.0.1.
fn answer(query: &[u8]) -> Vec<u8> {
    let name_end = 12 + query[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
    let question = &query[12..name_end + 4];
    let known = question.starts_with(b"\x03dns\x04test\0");
    let answers = u8::from(known && question.ends_with(&[0, 1, 0, 1]));
    let mut out = query[..2].to_vec();
    out.extend([0x81, if known { 0x80 } else { 0x83 }, 0, 1, 0, answers, 0, 0, 0, 0]);
    out.extend(question);
    if answers > 0 {
        out.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 1]);
    }
    out
}

/// `nsswitch.conf` names modules that are made for another C library: none is loaded, and names are found all the same.
fn d60(lab: &mut Lab) -> Verdict {
    let receivers = [UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap()];
    let server = NameServer::new("127.0.77.53:53");
    let etc = OwnEtc::new(
        lab,
        &[
            (
                "nsswitch.conf",
                "passwd: sss files systemd\ngroup: sss files systemd\nhosts: resolve myhostname mdns4_minimal files dns\n",
            ),
            ("hosts", "127.0.0.1 localhost\n127.0.0.1 hosts.test\n"),
            ("resolv.conf", "nameserver 127.0.77.53\n"),
        ],
    );
    // Where a static program would look for them first.
    let modules = lab.path("modules");
    std::fs::create_dir(&modules).unwrap();
    let inotify = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::NONBLOCK).unwrap();
    for module in ["resolve", "myhostname", "mdns4_minimal", "sss", "systemd", "files", "dns"] {
        let file = modules.join(format!("libnss_{module}.so.2"));
        std::fs::write(&file, "no module").unwrap();
        let events = rustix::fs::inotify::WatchFlags::OPEN | rustix::fs::inotify::WatchFlags::ACCESS;
        rustix::fs::inotify::add_watch(&inotify, &file, events).unwrap();
    }
    let file = lab.path("job.nomad.hcl");
    std::fs::write(&file, lab.job("raw_exec", "/bin/echo", "[\"of-the-task\"]", "")).unwrap();
    let mut command = lab.spoiled(&[], &lab.program());
    command.arg("run").arg("--data-dir").arg(lab.path("data")).env("LD_LIBRARY_PATH", &modules);
    for (name, receiver) in ["hosts.test", "dns.test"].iter().zip(&receivers) {
        receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let port = receiver.local_addr().unwrap().port();
        command.arg("--log-sink").arg(format!("syslog:udp://{name}:{port}"));
    }
    command.args(["--log-sink", "otlp:http://nobody-knows.test:9"]).arg(&file);
    command.env("XDG_RUNTIME_DIR", lab.path("sockets"));
    lab.started.set(lab.started.get() + 1);
    let out = command.output().unwrap();
    drop((etc, server));
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let opened = rustix::fs::inotify::Reader::new(&inotify, &mut buffer).next().is_ok();
    hold!(!opened, "a module of the host was opened: {said}");
    hold!(out.status.success(), "the run ended with {:?}: {said}", out.status);
    let mut message = [0; 2048];
    for (name, receiver) in ["hosts.test", "dns.test"].iter().zip(&receivers) {
        let got = receiver.recv(&mut message).map(|length| message[..length].ends_with(b"of-the-task"));
        hold!(matches!(got, Ok(true)), "{name} is not found: {got:?} {said}");
    }
    hold!(said.contains("nobody-knows.test"), "a name that nobody knows is not told: {said}");
    beyond_the_files(lab)
}

/// A user who stands in no file is the host's `getent`'s to know.
fn beyond_the_files(lab: &Lab) -> Verdict {
    let getent = lab.path("getent");
    std::fs::write(
        &getent,
        "#!/bin/sh\ncase \"$1 $3\" in\n'passwd beyond') echo beyond:x:7654:7655::/:/bin/sh;;\n\
         'initgroups beyond') echo beyond 7655 7656;;\n*) exit 2;;\nesac\n",
    )
    .unwrap();
    set_mode(&getent, 0o755);
    let host = Path::new("/usr/bin/getent").canonicalize().unwrap();
    let flags = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(&getent), &host, None::<&str>, flags, None::<&str>).unwrap();
    let job =
        lab.job("raw_exec", "/bin/sh", "[\"-c\", \"id -u; id -G; touch $NOMAD_TASK_DIR/own && echo let in\"]", "");
    let job = job.replace("driver = \"raw_exec\"", "driver = \"raw_exec\"\n      user = \"beyond\"");
    let (file, data) = (lab.path("job.nomad.hcl"), lab.path("data"));
    std::fs::write(&file, job).unwrap();
    let (_, said) = ran(lab, &[], &["run".as_ref(), "--data-dir".as_ref(), data.as_ref(), file.as_ref()]);
    nix::mount::umount2(&host, nix::mount::MntFlags::MNT_DETACH).unwrap();
    hold!(said.contains("7654\n7655 7656\n"), "the user is not found: {said}");
    hold!(said.contains("let in\n"), "the user is not let into the allocation: {said}");
    Ok(())
}

/// A process and a socket that a record of somebody else's names.
struct Victim {
    process: Child,
    socket: PathBuf,
}

impl Victim {
    fn new(lab: &Lab) -> Victim {
        let process = Command::new(own_program()).arg("idle").stdout(Stdio::null()).spawn().unwrap();
        let socket = lab.path("victim.sock");
        drop(UnixListener::bind(&socket).unwrap());
        Victim { process, socket }
    }

    fn is_well(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none() && self.socket.exists()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Somebody else's record says which processes to kill and what to remove.
fn d61(lab: &mut Lab) -> Verdict {
    for (what, owner, mode) in [
        ("nothing", None, None),
        ("record", Some(STRANGER), None),
        ("record", None, Some(0o666)),
        ("record", None, Some(0o620)),
        ("data", Some(STRANGER), None),
        ("data", None, Some(0o777)),
        ("alloc", Some(STRANGER), None),
        ("alloc", None, Some(0o1777)),
        ("directory", Some(STRANGER), None),
        ("directory", None, Some(0o777)),
    ] {
        let data = lab.path("data");
        let id = AllocId::new(uuid::Uuid::new_v4());
        let mut victim = Victim::new(lab);
        let mut record = Record::new(&id, "job", "group").unwrap();
        // Its owner is dead.
        record.owner.start_ticks += 1;
        let pid = i32::try_from(victim.process.id()).unwrap();
        record.handles.push(Handle {
            task_id: format!("{id}/t/01234567"),
            process: agentbin::sys::time::process_id(pid).unwrap(),
            socket: victim.socket.clone(),
        });
        std::fs::create_dir(&data).unwrap();
        set_mode(&data, 0o711);
        Records::new(&data).create(record).unwrap();
        let alloc = AllocDir::new(&data, &id);
        alloc.build().unwrap();
        let place = match what {
            "record" => alloc.path().with_extension("json"),
            "alloc" => data.join("alloc"),
            "directory" => alloc.path().to_owned(),
            _ => data.clone(),
        };
        let before = place.symlink_metadata().unwrap();
        std::os::unix::fs::chown(&place, owner, None).unwrap();
        if let Some(mode) = mode {
            set_mode(&place, mode);
        }
        let args: [&std::ffi::OsStr; 3] = ["gc".as_ref(), "--data-dir".as_ref(), data.as_ref()];
        let (status, said) = ran(lab, &[], &args);
        if what == "nothing" {
            assert!(!victim.is_well() && !alloc.path().exists(), "gc does nothing: {status} {said}");
        } else {
            hold!(victim.is_well(), "{what} {owner:?} {mode:?}: gc killed and removed what it names: {said}");
            hold!(alloc.path().exists(), "{what} {owner:?} {mode:?}: gc removed the directory: {said}");
            let named = said.contains(place.canonicalize().unwrap().to_str().unwrap());
            hold!(named, "{what} {owner:?} {mode:?}: it is not named: {said}");
            // As it was, everything goes.
            std::os::unix::fs::chown(&place, Some(before.uid()), None).unwrap();
            set_mode(&place, before.mode() & 0o7777);
            assert_eq!(ran(lab, &[], &args).0, 0);
            assert!(!alloc.path().exists());
        }
        std::fs::remove_dir_all(&data).unwrap();
    }
    Ok(())
}

/// What a task puts beside its logs is kept with them.
fn d62(lab: &mut Lab) -> Verdict {
    let secret = lab.secret("secret");
    for umask in ["umask=0", "umask=077"] {
        let canary = lab.canary("secret");
        let script = format!(
            "cd $NOMAD_ALLOC_DIR/logs && ln -s {canary} t.stdout.7 && ln -s {canary} t.stderr.3 && mkfifo t.stderr.8 && \
             cp /bin/true t.stderr.5 && chmod 6755 t.stderr.5 && chmod 777 . && mkdir t.stdout.9 && touch evil evil.stdout.0 && \
             echo of-the-task",
            canary = canary.display()
        );
        let (status, said) = run_job(lab, &[umask], &script, &["--keep-logs"]);
        assert_eq!(status, 0, "{said}");
        let kept = lab.path("data/logs");
        let allocs: Vec<PathBuf> = std::fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(allocs.len(), 1, "{said}");
        let mut found = Vec::new();
        for dir in [&kept, &allocs[0]] {
            let meta = dir.symlink_metadata().unwrap();
            hold!(meta.mode() & 0o7777 == 0o700 && meta.uid() == 0, "{}: {:o}", dir.display(), meta.mode());
        }
        for entry in std::fs::read_dir(&allocs[0]).unwrap().flatten() {
            let (meta, name) = (entry.path().symlink_metadata().unwrap(), entry.file_name());
            hold!(meta.is_file() && meta.mode() & 0o7777 == 0o600, "{name:?} is kept with {:o}", meta.mode());
            let text = std::fs::read(entry.path()).unwrap();
            hold!(!String::from_utf8_lossy(&text).contains(&secret), "{name:?} is a file of the host");
            found.push(name);
            if text == b"of-the-task\n" {
                found.push(OsString::from("output"));
            }
        }
        found.sort();
        let expected: Vec<OsString> = ["output", "t.stderr.0", "t.stderr.5", "t.stdout.0"].map(OsString::from).to_vec();
        hold!(found == expected, "kept is {found:?}");
        std::fs::remove_dir_all(lab.path("data")).unwrap();
    }
    Ok(())
}

/// A sink's file is where a task can write, and is, or is reached through, a link.
fn d63(lab: &mut Lab) -> Verdict {
    let shared = lab.shared("data");
    std::os::unix::fs::symlink(lab.canary("log"), shared.join("link")).unwrap();
    std::os::unix::fs::symlink(lab.canary("open/new"), shared.join("dangling")).unwrap();
    std::os::unix::fs::symlink(lab.canary("open"), shared.join("way")).unwrap();
    for (name, rotated) in [("link", ""), ("dangling", ""), ("way/new", ""), ("way/file", "?max_size=1&max_files=1")] {
        let sink = format!("file:{}{rotated}", shared.join(name).display());
        let (status, said) = run_job(lab, &[], "echo of-the-task", &["--log-sink", &sink]);
        assert_eq!(status, 0, "{said}");
        lab.judge()?;
        hold!(said.contains("takes nothing") && said.contains("link"), "{name}: it is not told: {said}");
    }
    let plain = shared.join("plain");
    let sink = format!("file:{}", plain.display());
    let (_, said) = run_job(lab, &[], "echo of-the-task", &["--log-sink", &sink]);
    assert!(std::fs::read_to_string(plain).is_ok_and(|text| text.contains("of-the-task")), "{said}");
    Ok(())
}

/// The words of all processes.
fn all_words() -> String {
    processes().into_iter().map(|pid| command_line(pid) + "\n").collect()
}

/// A sink's password in the words of a process, which everybody can read.
fn d64(lab: &mut Lab) -> Verdict {
    let url = "otlp:http://user:d64-hunter2@127.0.0.1:9";
    let file = lab.path("sinks");
    std::fs::write(&file, format!("# where lines go\n\n{url}\n")).unwrap();
    set_mode(&file, 0o600);
    let job = lab.path("job.nomad.hcl");
    std::fs::write(&job, lab.job("raw_exec", "/bin/sh", r#"["-c", "echo READY; exec sleep 1000"]"#, "")).unwrap();
    let at_file = format!("@{}", file.display());
    for sink in [url, &at_file] {
        let mut command = lab.spoiled(&[], &lab.program());
        command.arg("run").arg("--data-dir").arg(lab.path("data")).args(["--log-sink", sink]).arg(&job);
        command.env("XDG_RUNTIME_DIR", lab.path("sockets")).stdout(Stdio::piped()).stderr(Stdio::null());
        lab.started.set(lab.started.get() + 1);
        let mut run = command.spawn().unwrap();
        let mut line = String::new();
        let ready = BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap() > 0;
        let seen = all_words();
        if ready {
            rustix::process::kill_process(rustix::process::Pid::from_child(&run), rustix::process::Signal::INT)
                .unwrap();
        }
        let status = run.wait().unwrap();
        hold!(!seen.contains("d64-hunter2"), "the password is seen: {seen}");
        assert_eq!(ready, sink != url, "{status}");
        assert!(ready || status.code() == Some(125), "{status}");
    }
    let (_, said) = run_job(lab, &[], "echo of-the-task", &["--log-sink", url]);
    hold!(said.contains("--log-sink @FILE") && !said.contains("hunter2"), "the refusal: {said}");
    set_mode(&file, 0o644);
    let (status, said) = run_job(lab, &[], "echo of-the-task", &["--log-sink", &at_file]);
    hold!(status == 125 && said.contains("chmod 600") && !said.contains("hunter2"), "a file for everybody: {said}");
    Ok(())
}

/// Another user makes the directory first in which a plain user's drivers keep their sockets.
fn d65(lab: &mut Lab) -> Verdict {
    let program = lab.path("agentbin");
    std::fs::copy(lab.program(), &program).unwrap();
    set_mode(&program, 0o755);
    let own = format!("agentbin-{STRANGER}");
    for attacked in [false, true] {
        let tmp = lab.path("sticky");
        std::fs::create_dir(&tmp).unwrap();
        set_mode(&tmp, 0o1777);
        if attacked {
            std::fs::create_dir(tmp.join(&own)).unwrap();
            set_mode(&tmp.join(&own), 0o777);
            std::os::unix::fs::chown(tmp.join(&own), Some(ATTACKER), Some(ATTACKER)).unwrap();
        }
        let protocol = Protocol::nomad();
        let mut command = Command::new(&program);
        command.args(["driver", "raw_exec"]).env_clear().env("TMPDIR", &tmp).env("PATH", "/usr/bin:/bin");
        command.env(&protocol.cookie_key, &protocol.cookie_value).env("PLUGIN_PROTOCOL_VERSIONS", "1,2");
        lab.mutant.into_iter().for_each(|name| _ = command.env("AGENTBIN_MUTANT", name));
        command.uid(STRANGER).gid(STRANGER).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        lab.started.set(lab.started.get() + 1);
        let mut plugin = command.spawn().unwrap();
        let place = tmp.join(&own).join("agentbin/driver");
        // It ends, or goes on with its directory made.
        let deadline = Instant::now() + patience();
        while plugin.try_wait().unwrap().is_none() && !place.exists() {
            assert!(Instant::now() < deadline, "the driver neither ends nor makes its directory");
            pause();
        }
        let made = place.exists() || tmp.join(&own).join("agentbin").exists();
        let _ = plugin.kill();
        plugin.wait().unwrap();
        let mut said = String::new();
        plugin.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        hold!(made != attacked, "attacked {attacked}: made {made}: {said}");
        if attacked {
            let told = said.contains(&own) && said.contains(&format!("belongs to user {ATTACKER}"));
            hold!(told, "the refusal does not name it: {said}");
        } else {
            assert_eq!(place.metadata().unwrap().mode() & 0o777, 0o700);
        }
        std::fs::remove_dir_all(&tmp).unwrap();
    }
    std::fs::remove_file(&program).unwrap();
    Ok(())
}

/// A killed `plugin launch` leaves its plugin.
fn d66(lab: &mut Lab) -> Verdict {
    let mut command = lab.spoiled(&[], &lab.program());
    command.args(["plugin", "launch"]).arg(lab.program()).args(["driver", "raw_exec"]);
    command.env("XDG_RUNTIME_DIR", lab.path("sockets")).stdin(Stdio::piped());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    lab.started.set(lab.started.get() + 1);
    let mut launcher = command.spawn().unwrap();
    let mut said = BufReader::new(launcher.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("help lists the commands") {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
    }
    let parent = i32::try_from(launcher.id()).unwrap();
    let stat = |pid: i32| procfs::process::Process::new(pid).and_then(|process| process.stat()).ok();
    let plugins: Vec<i32> =
        processes().into_iter().filter(|pid| stat(*pid).is_some_and(|stat| stat.ppid == parent)).collect();
    assert_eq!(plugins.len(), 1);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    let deadline = Instant::now() + longest();
    let lives = || stat(plugins[0]).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'));
    while lives() && Instant::now() < deadline {
        pause();
    }
    hold!(!lives(), "the plugin is left: {}", command_line(plugins[0]));
    // Neither of the killed could remove its socket.
    for entry in std::fs::read_dir(lab.path("tmp")).unwrap().flatten() {
        std::fs::remove_file(entry.path()).unwrap();
    }
    Ok(())
}

/// Whoever waits for a writer of this FIFO gets one in the end, as long as this lives.
struct Rescue {
    done: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Rescue {
    fn new(fifo: &Path) -> Rescue {
        let (done, fifo, begun) = (Arc::new(AtomicBool::new(false)), fifo.to_owned(), Instant::now());
        let stop = Arc::clone(&done);
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                if begun.elapsed() > longest() {
                    let _ = std::fs::File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
                }
                pause();
            }
        });
        Rescue { done, thread: Some(thread) }
    }
}

impl Drop for Rescue {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// What is noted of an allocation's sinks is a FIFO, or somebody else's, who names a file of the host.
fn d68(lab: &mut Lab) -> Verdict {
    for what in ["fifo", "foreign record", "foreign directory"] {
        let data = lab.path("data");
        let id = AllocId::new(uuid::Uuid::new_v4());
        let mut record = Record::new(&id, "job", "group").unwrap();
        record.owner.start_ticks += 1;
        std::fs::create_dir(&data).unwrap();
        set_mode(&data, 0o711);
        Records::new(&data).create(record).unwrap();
        let alloc = AllocDir::new(&data, &id);
        alloc.build().unwrap();
        std::fs::write(alloc.logs().join("t.stdout.0"), "of-the-task\n").unwrap();
        let notes = alloc.path().join(".agentbin-ship");
        std::fs::create_dir(&notes).unwrap();
        set_mode(&notes, 0o700);
        let note = notes.join("t.stdout.00000000.json");
        if what == "fifo" {
            nix::unistd::mkfifo(&note, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        } else {
            let text = serde_json::json!({
                "version": 1,
                "sink": format!("file:{}", lab.canary("log").display()),
                "labels": { "job": "j", "group": "g", "task": "t", "alloc": id.as_str() },
                "stream": "stdout",
            });
            std::fs::write(&note, text.to_string()).unwrap();
            set_mode(&note, 0o600);
            let theirs = if what == "foreign record" { &note } else { &notes };
            std::os::unix::fs::chown(theirs, Some(STRANGER), None).unwrap();
        }
        let begun = Instant::now();
        let rescue = Rescue::new(&note);
        let args: [&std::ffi::OsStr; 3] = ["gc".as_ref(), "--data-dir".as_ref(), data.as_ref()];
        let (_, said) = ran(lab, &[], &args);
        drop(rescue);
        hold!(begun.elapsed() < longest(), "{what}: gc was held up for {:?}", begun.elapsed());
        lab.judge()?;
        let why = if what == "fifo" { "plain file" } else { "belongs to user 12345" };
        hold!(said.contains(why), "{what} is not refused for what it is: {said}");
        assert!(!alloc.path().exists(), "{what}: the allocation is left: {said}");
        std::fs::remove_dir_all(&data).unwrap();
    }
    Ok(())
}

/// The record of a task that is to be taken over is a FIFO, or somebody else's.
fn d67(lab: &mut Lab) -> Verdict {
    let at = |name: &str| lab.path(name);
    let (fifo, link, foreign) = (at("record.fifo"), at("record.link"), at("record.foreign"));
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    std::os::unix::fs::symlink(lab.canary("public"), &link).unwrap();
    std::fs::write(&foreign, "{}").unwrap();
    std::os::unix::fs::chown(&foreign, Some(STRANGER), None).unwrap();
    for (record, why) in [(&fifo, "plain file"), (&link, "symbolic links"), (&foreign, "belongs to user 12345")] {
        let begun = Instant::now();
        let rescue = Rescue::new(&fifo);
        lab.started.set(lab.started.get() + 1);
        let outlive = Outlive { record: record.clone(), adopt: true };
        let plan = lab.task(&[]).command("/bin/true", &[]).not_isolated();
        let result = plan.spec(|spec| spec.outlive = Some(outlive)).run();
        let took = begun.elapsed();
        drop(rescue);
        let said = result.err().unwrap_or_default();
        hold!(took < longest(), "{}: the executor was held up for {took:?}", record.display());
        hold!(said.contains(why), "{} is not refused for what it is: {said:?}", record.display());
    }
    for path in [&fifo, &link, &foreign] {
        std::fs::remove_file(path).unwrap();
    }
    Ok(())
}
