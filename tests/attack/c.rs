//! Group C: identity, capabilities, and what of the kernel can be reached.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Instant;

use agentbin::executor::{ExecRequests, Executor as _};
use agentbin::wire::base::{self, base_plugin_client::BasePluginClient};
use agentbin::wire::cty::{self, Value};
use agentbin::wire::drivers::driver_client::DriverClient;
use agentbin::wire::drivers::exec_task_streaming_request::Setup;
use agentbin::wire::drivers::{self as wire, ExecTaskStreamingRequest};
use serde_json::json;
use tokio_stream::StreamExt as _;

use crate::framework::{
    Attack, Breach, Inside, Lab, Level, Mutant, Report, Verdict, hold, patience, processes, set_mode,
};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "c01",
        run: c01,
        inside: Some(c01_inside),
        mutants: &[Mutant::new("c01-bounding"), Mutant::new("c01-inheritable"), Mutant::new("c01-nnp")],
        control: None,
    },
    Attack { id: "c02", run: c02, inside: Some(c02_inside), mutants: &[Mutant::new("c02")], control: None },
    Attack { id: "c03", run: c03, inside: Some(c03_inside), mutants: &[Mutant::new("c03")], control: None },
    Attack { id: "c04", run: c04, inside: None, mutants: &[Mutant::new("c04"), Mutant::new("c04-off")], control: None },
    Attack { id: "c05", run: c05, inside: Some(c05_inside), mutants: &[Mutant::new("c05")], control: None },
    Attack { id: "c06", run: c06, inside: Some(c06_inside), mutants: &[Mutant::new("c06")], control: None },
    Attack { id: "c07", run: c07, inside: Some(c07_inside), mutants: &[Mutant::nomad("c07")], control: None },
    Attack { id: "c08", run: c08, inside: Some(c08_inside), mutants: &[Mutant::new("c08")], control: None },
    Attack { id: "c09", run: c09, inside: None, mutants: &[Mutant::new("c09")], control: None },
    Attack {
        id: "c10",
        run: c10,
        inside: Some(c10_inside),
        mutants: &[Mutant::new("c10-pid"), Mutant::new("c10-ipc")],
        control: None,
    },
    Attack {
        id: "c11",
        run: c11,
        inside: Some(c11_inside),
        mutants: &[Mutant::new("c11"), Mutant::new("c11-masks"), Mutant::new("c11-null")],
        control: None,
    },
    Attack {
        id: "c12",
        run: c12,
        inside: Some(c12_inside),
        mutants: &[Mutant::new("c12"), Mutant::new("c12-task")],
        control: None,
    },
    Attack { id: "c13", run: c13, inside: None, mutants: &[Mutant::new("c13")], control: None },
    Attack { id: "c14", run: c14, inside: None, mutants: &[Mutant::new("c14")], control: None },
];

/// Nomad's capabilities of every task that is not root.
const NOMAD: u64 = 0xa804_05fb;

/// The lines of a process that say what it may, as numbers.
fn powers(pid: &str) -> BTreeMap<String, u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let fields = status.lines().filter_map(|line| line.split_once(':'));
    let ours = fields.filter(|(key, _)| key.starts_with("Cap") || *key == "NoNewPrivs");
    ours.map(|(key, value)| (key.to_owned(), u64::from_str_radix(value.trim(), 16).unwrap())).collect()
}

/// CVE-2022-29162, CVE-2022-24769, CVE-2022-27650, CVE-2019-12618, CVE-2025-27612: capabilities that nobody gave.
fn c01(lab: &mut Lab) -> Verdict {
    let id = std::fs::read("/usr/bin/id").unwrap();
    let default = lab.level == Level::Default;
    for (user, added, seccomp) in
        [("nobody", "", "unconfined"), ("nobody", "", ""), ("nobody", "chown", ""), ("root", "", "")]
    {
        lab.plant_file("local/id", &id, 0o4755);
        let given = Rc::new(Cell::new(0));
        let told = Rc::clone(&given);
        let mut plan = lab.task(&["wait"]).user(user);
        if !seccomp.is_empty() {
            plan = plan.config("seccomp", seccomp.into());
        }
        if !added.is_empty() {
            plan = plan.config("cap_add", json!([added]));
        }
        let plan =
            plan.spec(move |spec| {
                told.set(spec.capabilities.iter().fold(0, |mask, name| {
                    mask | name.to_ascii_uppercase().parse::<caps::Capability>().unwrap().bitmask()
                }));
            });
        let task = plan.start().unwrap();
        task.wait_for("END");
        let wanted = given.get();
        match (user, default) {
            ("nobody", true) => hold!(wanted == u64::from(!added.is_empty()), "the driver gives {wanted:x}"),
            ("nobody", false) => hold!(wanted & !NOMAD == 0, "the driver gives {wanted:x}"),
            _ => {}
        }
        let first = Report { text: task.output(), ..Report::default() };
        let mut reports = vec![first];
        for tty in [false, true] {
            reports.push(task.exec(&["/attack", "inside", "c01"], tty).unwrap());
        }
        task.stop();
        for report in reports {
            report.held()?;
            let facts = report.facts();
            let ambient = if user == "root" { 0 } else { wanted };
            for who in ["self", "1"] {
                for (set, expected) in [
                    ("CapPrm", wanted),
                    ("CapEff", wanted),
                    ("CapBnd", wanted),
                    ("CapInh", ambient),
                    ("CapAmb", ambient),
                    ("NoNewPrivs", u64::from(default)),
                ] {
                    let is = &facts[&format!("{who}.{set}")];
                    hold!(*is == format!("{expected:x}"), "{user} {added}: {set} of {who} is {is}, not {expected:x}");
                }
            }
            if default {
                let is = &facts["setuid"];
                hold!(user == "root" || is == "65534", "a setuid program of {user} runs as {is}");
            }
        }
    }
    Ok(())
}

fn c01_inside(args: &[String], inside: &Inside) {
    for who in ["self", "1"] {
        for (set, value) in powers(who) {
            inside.fact(&format!("{who}.{set}"), format!("{value:x}"));
        }
    }
    let out = Command::new("/local/id").arg("-u").output();
    inside.fact("setuid", out.map_or_else(|e| e.to_string(), |o| String::from_utf8_lossy(&o.stdout).trim().to_owned()));
    if args.first().is_some_and(|word| word == "wait") {
        inside.end();
        loop {
            std::thread::park();
        }
    }
}

/// CVE-2022-36109, CVE-2022-2989, CVE-2022-2990, CVE-2023-25173: groups of the agent, and groups that were left out.
fn c02(lab: &mut Lab) -> Verdict {
    for (name, mode, group) in [("of-root", 0o640, 0), ("not-for-them", 0o604, 7002)] {
        let path = lab.shared("data").join(name);
        std::fs::write(&path, "x").unwrap();
        std::os::unix::fs::chown(&path, Some(0), Some(group)).unwrap();
        set_mode(&path, mode);
    }
    for (user, uid, gid, groups) in
        [("nobody", 65534, 65534, "65534"), ("abthree", 7001, 7001, "7001,7002,7003"), ("daemon", 1, 1, "1")]
    {
        let expected = format!("{uid}:{gid}:{groups}");
        let task = lab.task(&["wait"]).user(user).spoil("groups=0,4,999").start().unwrap();
        task.wait_for("END");
        let mut reports = vec![Report { text: task.output(), ..Report::default() }];
        for tty in [false, true] {
            reports.push(task.exec(&["/attack", "inside", "c02"], tty).unwrap());
        }
        task.stop();
        for report in reports {
            report.held()?;
            hold!(report.fact("ids") == expected, "{user} is {}, not {expected}", report.fact("ids"));
            hold!(report.fact("of-root") == "no", "{user} reads what is root's");
            let denied = report.fact("not-for-them") == "no";
            hold!(denied == (user == "abthree"), "{user}: group 7002 is not as it should be");
        }
    }
    // What nobody knows is nobody.
    let unknown = lab.task(&[]).user("abunknown").run();
    hold!(unknown.is_err(), "an unknown user ran: {unknown:?}");
    Ok(())
}

fn c02_inside(args: &[String], inside: &Inside) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let numbers = |key: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().map(|number| number.parse().unwrap()).collect()
    };
    let (uids, gids, mut groups) = (numbers("Uid:"), numbers("Gid:"), numbers("Groups:"));
    if uids.iter().any(|uid| *uid != uids[0]) || gids.iter().any(|gid| *gid != gids[0]) {
        inside.breach(&format!("more than one identity: {uids:?} {gids:?}"));
    }
    groups.sort_unstable();
    let groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
    inside.fact("ids", format!("{}:{}:{}", uids[0], gids[0], groups.join(",")));
    // A capability that reads everything is not a group.
    let reads_all = powers("self")["CapEff"] & 0b110 != 0;
    for name in ["of-root", "not-for-them"] {
        let read = std::fs::read(Path::new("/alloc/data").join(name)).is_ok();
        let negative = name == "not-for-them" && groups.contains(&"7002".to_owned());
        let read = if reads_all { name == "not-for-them" && !negative } else { read };
        inside.fact(name, if read { "yes" } else { "no" });
    }
    if args.first().is_some_and(|word| word == "wait") {
        inside.end();
        loop {
            std::thread::park();
        }
    }
}

/// CVE-2016-3697, CVE-2024-40635, CVE-2026-46680, CVE-2026-30892, systemd#6237: a name that is taken for another user.
fn c03(lab: &mut Lab) -> Verdict {
    let passwd = "10:x:0:0::/:/bin/sh\n0day:x:0:0::/:/bin/sh\nroot2:x:0:0::/:/bin/sh\nplanted:x:4242:4242::/:/bin/sh\n\
        big:x:4294967296:4294967296::/:/bin/sh\nsame:x:4294967295:4294967295::/:/bin/sh\nminus:x:-1:-1::/:/bin/sh\n\
        staff:x:4242:0::/:/bin/sh\nroot:x:0:0::/:/bin/sh\n";
    let refused = [
        "1",
        "01",
        "+1",
        " 1",
        "1 ",
        "0",
        "00",
        "0x0",
        "-1",
        "4294967295",
        "4294967296",
        "99999999999",
        "10",
        "0day",
        "root2",
        "root\n",
        "root ",
        " root",
        "Root",
        "nobody:root",
        "nobody:0",
        "nobody ",
        "big",
        "same",
        "minus",
        "staff",
        "\u{661}",
        "..",
        "/",
        "\u{1b}",
        "x:0:0",
    ];
    let may = [("nobody", "65534"), ("", "65534"), ("planted", "4242"), ("daemon", "1")];
    let mut cases: Vec<(&str, Option<&str>)> = may.into_iter().map(|(user, uid)| (user, Some(uid))).collect();
    cases.extend(refused.map(|user| (user, None)));
    for (user, expected) in cases {
        lab.plant_file("etc/passwd", passwd.as_bytes(), 0o666);
        lab.plant_file("etc/group", b"root:x:0:planted2\n", 0o666);
        let plan = lab.task(&[]).user(user).spec(|spec| spec.mounts.retain(|mount| mount.task_path == "/attack"));
        match (plan.run(), expected) {
            (Ok(report), Some(uid)) => {
                report.held()?;
                hold!(report.fact("uid") == uid, "{user:?} is {}, not {uid}", report.fact("uid"));
            }
            (Ok(report), None) => hold!(false, "{user:?} ran as {}", report.fact("uid")),
            (Err(error), Some(_)) => panic!("{user:?}: {error}"),
            (Err(_), None) => {}
        }
    }
    Ok(())
}

fn c03_inside(_: &[String], inside: &Inside) {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if uid == 0 || gid == 0 {
        inside.breach(&format!("is {uid}:{gid}"));
    }
    inside.fact("uid", uid);
}

/// CVE-2019-15928: a driver that is off starts a task all the same; a user who is not allowed comes by another name.
fn c04(lab: &mut Lab) -> Verdict {
    let string = |text: &str| Value::String(text.to_owned());
    let bytes = |pairs: &[(&str, Value)]| {
        cty::encode(&Value::Map(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()))
    };
    let id = uuid::Uuid::new_v4().to_string();
    for (driver, config, user) in [
        ("raw_exec", vec![], "root"),
        ("raw_exec", vec![("enabled", Value::Bool(false))], "nobody"),
        ("raw_exec", vec![("enabled", Value::Bool(true)), ("denied_host_uids", string("0"))], "abtoor"),
        ("raw_exec", vec![("enabled", Value::Bool(true)), ("denied_host_uids", string("0-10"))], ""),
        ("exec", vec![("denied_host_uids", string("0"))], "root"),
        ("exec", vec![("denied_host_uids", string("0"))], "abtoor"),
        ("exec", vec![("denied_host_uids", string("0"))], "0"),
        ("exec", vec![("denied_host_gids", string("5,7002-7003"))], "abthree"),
        ("exec", vec![("denied_host_uids", string("0-4294967295"))], "nobody"),
    ] {
        let client = lab.plugin(driver);
        let task = wire::TaskConfig {
            id: format!("{id}/t/{:08x}", 1),
            name: "t".to_owned(),
            user: user.to_owned(),
            alloc_id: id.clone(),
            alloc_dir: lab.path("alloc").display().to_string(),
            msgpack_driver_config: bytes(&[
                ("command", string("/bin/sh")),
                ("args", Value::List(["-c", "touch /tmp/ran; sleep 1000"].map(string).to_vec())),
            ]),
            resources: Some(wire::Resources::default()),
            ..Default::default()
        };
        let started = lab.block_on("start a task", async {
            let request = base::SetConfigRequest {
                msgpack_config: bytes(&config),
                nomad_config: Some(base::NomadConfig { driver: Some(base::NomadDriverConfig::default()) }),
                plugin_api_version: "v0.1.0".into(),
            };
            BasePluginClient::new(client.channel()).set_config(request).await.unwrap();
            let mut driver = DriverClient::new(client.channel());
            let started = driver.start_task(wire::StartTaskRequest { task: Some(task.clone()) }).await;
            if started.is_ok() {
                let task_id = task.id.clone();
                let _ = driver.destroy_task(wire::DestroyTaskRequest { task_id, force: true }).await;
            }
            started
        });
        lab.block_on("end a driver", client.kill());
        hold!(started.is_err(), "{driver} with {config:?} started a task of {user:?}");
    }
    // A driver that refuses everything would pass.
    lab.task(&[]).user("nobody").command("/bin/true", &[]).run().unwrap();
    Ok(())
}

/// System calls that a filter forbids, with arguments that the kernel itself would answer otherwise.
fn forbidden() -> Vec<(&'static str, libc::c_long, [u64; 6])> {
    let none = [0; 6];
    let newuser = [u64::try_from(libc::CLONE_NEWUSER).unwrap(), 0, 0, 0, 0, 0];
    let socket = |family: i32| [family as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0];
    vec![
        ("io_uring_setup", libc::SYS_io_uring_setup, none),
        ("io_uring_enter", libc::SYS_io_uring_enter, none),
        ("userfaultfd", libc::SYS_userfaultfd, [1, 0, 0, 0, 0, 0]),
        ("bpf", libc::SYS_bpf, none),
        ("perf_event_open", libc::SYS_perf_event_open, none),
        ("keyctl", libc::SYS_keyctl, none),
        ("add_key", libc::SYS_add_key, none),
        ("request_key", libc::SYS_request_key, none),
        ("unshare(NEWUSER)", libc::SYS_unshare, newuser),
        ("clone3", libc::SYS_clone3, none),
        ("mount", libc::SYS_mount, none),
        ("fsopen", libc::SYS_fsopen, none),
        ("open_tree", libc::SYS_open_tree, none),
        ("setns", libc::SYS_setns, [u64::MAX, 0, 0, 0, 0, 0]),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, none),
        ("init_module", libc::SYS_init_module, none),
        ("kexec_load", libc::SYS_kexec_load, none),
        ("quotactl", libc::SYS_quotactl, none),
        ("AF_ALG", libc::SYS_socket, socket(libc::AF_ALG)),
        ("AF_VSOCK", libc::SYS_socket, socket(libc::AF_VSOCK)),
        ("a call of the future", 0x3ff, none),
    ]
}

/// CVE-2026-31431 and many more: parts of the kernel that hardly any program needs.
fn c05(lab: &mut Lab) -> Verdict {
    for user in ["nobody", "root"] {
        let task = lab.task(&["wait"]).user(user).config("seccomp", "default".into()).start().unwrap();
        task.wait_for("END");
        let first = Report { text: task.output(), ..Report::default() };
        let session = task.exec(&["/attack", "inside", "c05"], false).unwrap();
        task.stop();
        first.held()?;
        session.held()?;
    }
    Ok(())
}

fn c05_inside(args: &[String], inside: &Inside) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if !status.contains("Seccomp:\t2") {
        inside.breach("there is no filter");
    }
    let admin = powers("self")["CapEff"] & 1 << 21 != 0;
    for (name, number, words) in forbidden().into_iter().filter(|_| !admin) {
        let answer = kernel::raw(number, words);
        if !matches!(kernel::errno(&answer), libc::EPERM | libc::ENOSYS) {
            inside.breach(&format!("{name}: {answer:?}"));
        }
    }
    if args.first().is_some_and(|word| word == "wait") {
        inside.end();
        loop {
            std::thread::park();
        }
    }
}

/// Numbers of another architecture go past a filter that only knows its own.
fn c06(lab: &mut Lab) -> Verdict {
    for user in ["nobody", "root"] {
        lab.task(&[]).user(user).config("seccomp", "default".into()).run().unwrap().held()?;
    }
    Ok(())
}

fn c06_inside(args: &[String], inside: &Inside) {
    if let Some(what) = args.first() {
        // Its number 20 is getpid.
        let answer = if what == "i386" {
            kernel::raw_i386(20)
        } else {
            kernel::raw(libc::SYS_getpid | 0x4000_0000, [0; 6])
                .unwrap_or_else(|e| -i64::from(e.raw_os_error().unwrap()))
        };
        inside.fact("answer", answer);
        return;
    }
    for what in ["i386", "x32"] {
        let out = Command::new("/attack").args(["inside", "c06", what]).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        let refused = said.contains(&format!("FACT answer {}", -libc::ENOSYS))
            || matches!(out.status.signal(), Some(libc::SIGSYS | libc::SIGSEGV));
        if !refused {
            inside.breach(&format!("{what}: {said} {:?}", out.status));
        }
    }
}

/// The agent's keys: in a keyring that whoever it starts inherits.
fn c07(lab: &mut Lab) -> Verdict {
    for user in ["root", "nobody"] {
        let plan = lab.task(&[]).user(user).spoil("key").config("seccomp", "unconfined".into());
        plan.run().unwrap().held()?;
    }
    Ok(())
}

/// What the key is called. The agent has it in its session.
pub const KEY: &std::ffi::CStr = c"agentbin-attack-c07";

fn c07_inside(_: &[String], inside: &Inside) {
    if let Ok(id) = kernel::find_key(KEY) {
        inside.breach(&format!("found the agent's key {id}"));
    }
    let keys = std::fs::read_to_string("/proc/keys").unwrap_or_default();
    for line in keys.lines().filter(|line| line.contains(KEY.to_str().unwrap())) {
        let id = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        if kernel::read_key(id).is_ok() {
            inside.breach(&format!("read the agent's key: {line}"));
        }
    }
}

/// CVE-2017-5226, CVE-2019-10063, CVE-2019-7303: the task types into a terminal, for whoever reads it next.
fn c08(lab: &mut Lab) -> Verdict {
    let task = lab.task(&["wait"]).config("seccomp", "default".into()).start().unwrap();
    task.wait_for("END");
    let mut reports = vec![Report { text: task.output(), ..Report::default() }];
    for tty in [true, false] {
        reports.push(task.exec(&["/attack", "inside", "c08"], tty).unwrap());
    }
    task.stop();
    reports.iter().try_for_each(Report::held)
}

fn c08_inside(args: &[String], inside: &Inside) {
    let tty = std::fs::File::options().read(true).write(true).open("/dev/tty");
    let fds = [0, 1, 2].into_iter().chain(tty.as_ref().map(AsRawFd::as_raw_fd));
    for fd in fds {
        for (name, request) in [("TIOCSTI", libc::TIOCSTI), ("TIOCLINUX", libc::TIOCLINUX)] {
            for high in [0, 1 << 32, 0xffff_ffff_0000_0000] {
                let answer = kernel::ioctl_byte(fd, request | high, b'#');
                if kernel::errno(&answer) != libc::EPERM {
                    inside.breach(&format!("{name} with {high:x} on {fd}: {answer:?}"));
                }
            }
        }
    }
    if args.first().is_some_and(|word| word == "wait") {
        inside.end();
        loop {
            std::thread::park();
        }
    }
}

/// CVE-2020-15257: sockets without a file, or with one that others may write to.
fn c09(lab: &mut Lab) -> Verdict {
    set_mode(&lab.path("sockets"), 0o755);
    let task = lab.task(&[]).spoil("umask=0").command("/bin/sleep", &["1000"]).start().unwrap();
    let fds: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", task.executor_pid))
        .unwrap()
        .flatten()
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned()))
        .collect();
    let table = std::fs::read("/proc/net/unix").unwrap();
    for line in String::from_utf8_lossy(&table).lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (Some(inode), Some(name)) = (fields.get(6), fields.get(7)) else { continue };
        let ours = fds.contains(&format!("socket:[{inode}]"));
        hold!(!(ours && name.starts_with('@')), "the executor listens at {name}");
    }
    let sockets: Vec<_> = std::fs::read_dir(lab.path("sockets")).unwrap().flatten().map(|e| e.path()).collect();
    assert!(sockets.iter().any(|path| path.metadata().unwrap().file_type().is_socket()), "no socket in {sockets:?}");
    for path in sockets {
        // A thread of its own, as another user of the host.
        let mode = path.metadata().unwrap().mode();
        let connected = std::thread::spawn(move || {
            let other = rustix::process::Uid::from_raw(12345);
            rustix::thread::set_thread_res_uid(other, other, other).unwrap();
            std::os::unix::net::UnixStream::connect(path).is_ok()
        });
        hold!(!connected.join().unwrap(), "another user connects to the executor, mode {mode:o}");
    }
    task.stop();
    Ok(())
}

/// CVE-2021-3283, CVE-2021-32575: processes, memory and raw sockets of the host.
fn c10(lab: &mut Lab) -> Verdict {
    const PRIVATE_KEY: u64 = 0xab_c010;
    let size = 4096;
    let segment =
        kernel::raw(libc::SYS_shmget, [PRIVATE_KEY, size, u64::from(libc::IPC_CREAT as u32) | 0o666, 0, 0, 0]);
    let segment = segment.unwrap();
    let verdict = ["nobody", "root"].into_iter().try_for_each(|user| {
        // Somebody else's process, of the task's user.
        let uid = if user == "root" { 0 } else { 65534 };
        let mut bystander = Command::new("/bin/sleep");
        std::os::unix::process::CommandExt::uid(&mut bystander, uid);
        let mut bystander = bystander.arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pid = bystander.id().to_string();
        let report = lab.task(&[&pid, &PRIVATE_KEY.to_string()]).user(user).run();
        let alive = bystander.try_wait().unwrap().is_none();
        bystander.kill().unwrap();
        bystander.wait().unwrap();
        report.unwrap().held()?;
        hold!(alive, "the bystander was killed");
        Ok(())
    });
    kernel::raw(libc::SYS_shmctl, [segment as u64, libc::IPC_RMID as u64, 0, 0, 0, 0]).unwrap();
    verdict
}

fn c10_inside(args: &[String], inside: &Inside) {
    let own = i32::try_from(std::process::id()).unwrap();
    let seen = std::fs::read_dir("/proc").unwrap().flatten();
    let seen: Vec<i32> = seen.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    if seen != [own] {
        inside.breach(&format!("sees processes {seen:?}"));
    }
    let bystander: u64 = args[0].parse().unwrap();
    if kernel::raw(libc::SYS_kill, [bystander, 0, 0, 0, 0, 0]).is_ok() {
        inside.breach("may signal somebody else's process");
    }
    if kernel::raw(libc::SYS_pidfd_open, [bystander, 0, 0, 0, 0, 0]).is_ok() {
        inside.breach("may open somebody else's process");
    }
    if kernel::raw(libc::SYS_shmget, [args[1].parse().unwrap(), 0, 0, 0, 0, 0]).is_ok() {
        inside.breach("found shared memory of the host");
    }
    if powers("self")["CapEff"] & 1 << 13 == 0 {
        for (name, family, kind, protocol) in [
            ("raw IP", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
            ("packet", libc::AF_PACKET, libc::SOCK_RAW, 0x0300),
        ] {
            if kernel::raw(libc::SYS_socket, [family as u64, kind as u64, protocol as u64, 0, 0, 0]).is_ok() {
                inside.breach(&format!("a {name} socket"));
            }
        }
    }
}

/// What the host's `/proc` and `/sys` tell of everybody; the third field: hidden by Nomad as well.
const TELLING: [(&str, bool); 12] = [
    ("/proc/kcore", true),
    ("/proc/keys", false),
    ("/proc/latency_stats", false),
    ("/proc/timer_list", false),
    ("/proc/timer_stats", false),
    ("/proc/sched_debug", false),
    ("/proc/interrupts", false),
    ("/proc/acpi", false),
    ("/proc/scsi", false),
    ("/proc/asound", false),
    ("/sys/firmware", true),
    ("/sys/devices/virtual/powercap", false),
];

/// GHSA-jq35, GHSA-6fw5 and their like: files of the kernel that tell of others, or change what is everybody's.
fn c11(lab: &mut Lab) -> Verdict {
    let level = lab.level.name();
    for user in ["nobody", "root"] {
        lab.task(&[level]).user(user).run().unwrap().held()?;
    }
    Ok(())
}

fn c11_inside(args: &[String], inside: &Inside) {
    let nomad = args[0] == "nomad";
    let admin = powers("self")["CapEff"] & 1 << 21 != 0;
    for (path, _) in TELLING.into_iter().filter(|(_, hidden)| *hidden || !nomad) {
        let tells = |path: &Path| {
            if path.is_dir() {
                return path.read_dir().is_ok_and(|mut entries| entries.next().is_some());
            }
            let mut byte = [0];
            std::fs::File::open(path).is_ok_and(|mut file| file.read(&mut byte).is_ok_and(|read| read > 0))
        };
        if tells(Path::new(path)) {
            inside.breach(&format!("{path} can be read"));
        }
        let away = format!("{path}.away");
        let moved = std::fs::rename(path, away).is_ok() || std::fs::remove_file(path).is_ok();
        let c_path = std::ffi::CString::new(path).unwrap();
        let detach = [c_path.as_ptr() as u64, libc::MNT_DETACH as u64, 0, 0, 0, 0];
        if moved || (!admin && kernel::raw(libc::SYS_umount2, detach).is_ok()) {
            inside.breach(&format!("{path} can be taken away"));
        }
        // What covers it is the null device that everybody here has, with the mode that it has.
        if std::fs::metadata(path).is_ok_and(|is| is.file_type().is_char_device())
            && std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).is_ok()
        {
            inside.breach(&format!("the mode of what covers {path} can be changed"));
        }
    }
    let mut shared = vec![
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/swappiness",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/fs/suid_dumpable",
        "/proc/irq/default_smp_affinity",
        "/proc/bus/pci/devices",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/power/state",
    ];
    if !nomad {
        shared.push("/proc/sysrq-trigger");
    }
    for path in shared {
        if std::fs::File::options().write(true).open(path).is_ok() {
            inside.breach(&format!("{path} can be written to"));
        }
    }
}

/// CVE-2025-4598 and its like: a crash leaves memory where others read it.
fn c12(lab: &mut Lab) -> Verdict {
    if lab.level == Level::Default {
        let report = lab.task(&[]).spoil("core").run().unwrap();
        report.held()?;
        hold!(report.fact("core") == "0 0", "the task may leave cores of {}", report.fact("core"));
    }
    let task = lab.task(&[]).spoil("core").command("/bin/sleep", &["1000"]).start().unwrap();
    let executor = rustix::process::Pid::from_raw(task.executor_pid).unwrap();
    // As after a failed assertion in C; for a bad address there is a handler first.
    rustix::process::kill_process(executor, rustix::process::Signal::ABORT).unwrap();
    let deadline = Instant::now() + patience();
    while !processes().is_empty() && Instant::now() < deadline {
        task.let_events_come();
    }
    task.stop();
    // Killed as it was, it left its cgroup and its socket to whoever started it; a core lies where it ran.
    lab.reconcile();
    Ok(())
}

fn c12_inside(_: &[String], inside: &Inside) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
    let text = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    inside.fact("core", format!("{} {}", text(limit.current), text(limit.maximum)));
}

/// CVE-2022-1708, CVE-2022-31030, CVE-2022-23471, CVE-2025-64329: sessions that nobody reads, and that are given up.
fn c13(lab: &mut Lab) -> Verdict {
    let task = lab.task(&[]).command("/bin/sleep", &["1000"]).start().unwrap();
    let state = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", task.executor_pid)).unwrap();
        let number = |key: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let fds = std::fs::read_dir(format!("/proc/{}/fd", task.executor_pid)).unwrap().count() as u64;
        (number("VmRSS:") / 1024, number("Threads:"), fds, processes().len() as u64)
    };
    let open = |command: &[&str], tty: bool| {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let request =
            ExecTaskStreamingRequest { setup: Some(Setup { command, tty, ..Setup::default() }), ..Default::default() };
        let requests: ExecRequests = Box::pin(tokio_stream::iter([Ok(request)]).chain(tokio_stream::pending()));
        task.block_on("open a session", task.executor.exec_streaming(requests)).unwrap()
    };
    task.exec(&["/bin/true"], false).unwrap();
    let before = state();
    let mut abandoned = Vec::new();
    for round in 0..lab.rounds(2000) {
        let mut session =
            open(if round % 3 == 0 { &["/bin/sleep", "1000"] } else { &["/usr/bin/yes"] }, round % 2 == 0);
        if round % 3 == 1 {
            task.block_on("hear of it", session.next()).unwrap().unwrap();
        }
        // Some at once, some after others have been opened.
        abandoned.push(session);
        if round % 4 == 3 {
            abandoned.clear();
        }
        let (rss, ..) = state();
        hold!(rss <= before.0 + 16, "{rss} MiB with sessions that nobody reads, {} before", before.0);
    }
    drop(abandoned);
    // What is gone for good does not come back.
    let deadline = Instant::now() + if lab.mutant.is_some() { patience() / 20 } else { patience() / 2 };
    loop {
        let after = state();
        if after.1 <= before.1 + 2 && after.2 <= before.2 + 2 && after.3 <= before.3 {
            break;
        }
        if Instant::now() > deadline {
            return Err(Breach(format!("threads, descriptors, processes {before:?} before, {after:?} after")));
        }
        task.let_events_come();
    }
    task.stop();
    Ok(())
}

/// RUSTSEC-2025-0055 and its like: what a job says forges lines of a log, or moves the cursor of who reads it.
fn c14(lab: &mut Lab) -> Verdict {
    let forged = "x\u{1b}[31m\r\n{\"@level\":\"error\",\"@message\":\"forged\"}\n\u{7}\u{9b}2J";
    let long = "y".repeat(100_000);
    let mut refusals = Vec::new();
    for (command, user) in [(forged, ""), ("/bin/true", forged), (long.as_str(), "")] {
        let plan = lab.task(&[]).user(user).env("FORGED", forged).command(command, &[forged]);
        refusals.push(plan.run().err());
    }
    assert!(refusals.iter().all(Option::is_some), "there is no such command or user: {refusals:?}");
    let task = lab.task(&[]).env("FORGED", forged).command("/bin/sleep", &["1000"]).start().unwrap();
    let _ = task.exec(&[forged, forged], false);
    let _ = task.exec(&["/bin/true", forged], false);
    task.stop();
    let log = std::fs::read(lab.path("executor.log")).unwrap();
    let control = log.iter().position(|byte| *byte != b'\n' && (*byte < 0x20 || *byte == 0x7f));
    hold!(control.is_none(), "a control character in the log: {:?}", String::from_utf8_lossy(&log[control.unwrap()..]));
    for line in String::from_utf8_lossy(&log).lines() {
        let fields: Option<serde_json::Value> = serde_json::from_str(line).ok();
        hold!(fields.is_some_and(|f| f["@message"] != "forged" && f["@timestamp"].is_string()), "a line {line:?}");
    }
    assert!(log.windows(9).any(|window| window == b"\\u001b[31"), "the log does not speak of it");
    Ok(())
}
