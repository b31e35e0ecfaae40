//! Group D: what another task of the allocation, or what is left of one, does to a task.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::framework::{Attack, Inside, Lab, Level, Mutant, Verdict, hold, pause, set_mode};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "d80",
        run: d80,
        inside: Some(d80_inside),
        mutants: &[Mutant::new("d80"), Mutant::new("d80-group")],
        control: None,
    },
    Attack { id: "d81", run: d81, inside: Some(nothing), mutants: &[Mutant::new("d81")], control: None },
    Attack { id: "d82", run: d82, inside: Some(nothing), mutants: &[Mutant::new("d82")], control: None },
    Attack {
        id: "d83",
        run: d83,
        inside: None,
        mutants: &[Mutant::new("d83"), Mutant::new("d83-spin")],
        control: None,
    },
];

/// `fcntl(2)`: which signal tells that a lease is asked for.
const F_SETSIG: i32 = 10;
const NOBODY: u32 = 65534;
/// A group of some other user's.
const GROUP: u32 = 4242;

fn nothing(_: &[String], _: &Inside) {}

/// Runs a program as a sibling without a jail does, which is nobody.
fn as_nobody(program: &str, args: &[&Path]) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program]).args(args);
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
}

/// A file that gives its group to who executes it, by an access control list: made without the group's right to execute it, the
/// bit means nothing and survives what is written; the list then gives that right. And who may only change its groups.
fn d80(lab: &mut Lab) -> Verdict {
    if lab.level == Level::Nomad {
        // As with Nomad's drivers.
        return lab.task(&["nothing"]).user("root").must_hold();
    }
    lab.task(&["lists"]).user("root").must_hold()?;
    lab.task(&["lists"]).user("root").config("isolation", json!("strict")).must_hold()?;
    lab.task(&["lists", "group"]).user("nobody").config("cap_add", json!(["setgid"])).must_hold()
}

/// How a file is made with the set-group-ID bit, under a umask that leaves it whole and under one that takes its group's
/// rights away.
type Maker = (&'static str, fn(&Path) -> Option<std::fs::File>);

const MAKERS: &[Maker] = &[
    ("open", |path| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o2705).open(path).ok()
    }),
    ("umask", |path| {
        let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o010));
        let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).mode(0o2755).open(path);
        rustix::process::umask(umask);
        file.ok()
    }),
    ("creat", |path| {
        #[cfg(target_arch = "x86_64")]
        let _ = kernel::raw(libc::SYS_creat, [c_path(path).as_ptr() as u64, 0o2705, 0, 0, 0, 0]);
        std::fs::OpenOptions::new().write(true).open(path).ok()
    }),
    ("mknod", |path| {
        let (name, mode) = (c_path(path), u64::from(libc::S_IFREG | 0o2705));
        let _ = kernel::raw(libc::SYS_mknodat, [libc::AT_FDCWD as u64, name.as_ptr() as u64, mode, 0, 0, 0]);
        std::fs::OpenOptions::new().write(true).open(path).ok()
    }),
    ("openat2", |path| {
        let (name, how) = (c_path(path), [(libc::O_CREAT | libc::O_RDWR) as u64, 0o2705, 0]);
        let args = [libc::AT_FDCWD as u64, name.as_ptr() as u64, how.as_ptr() as u64, size_of_val(&how) as u64, 0, 0];
        let _ = kernel::raw(libc::SYS_openat2, args);
        std::fs::OpenOptions::new().write(true).open(path).ok()
    }),
    ("tmpfile", |path| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).mode(0o2705).custom_flags(libc::O_TMPFILE);
        let file = options.open(path.parent().unwrap()).ok()?;
        let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let (at, flags) = (libc::AT_FDCWD as u64, libc::AT_SYMLINK_FOLLOW as u64);
        let to = c_path(path);
        let args = [at, from.as_ptr() as u64, at, to.as_ptr() as u64, flags, 0];
        kernel::raw(libc::SYS_linkat, args).ok().map(|_| file)
    }),
    ("chmod", |path| {
        let file = std::fs::File::create_new(path).ok()?;
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o2705));
        Some(file)
    }),
];

fn c_path(path: &Path) -> std::ffi::CString {
    std::ffi::CString::new(path.to_str().unwrap()).unwrap()
}

/// Everybody may read and execute it: as `setfacl -m u::rwx,g::r-x,o::r-x` says it to the kernel.
fn open_by_list(path: &Path) -> std::io::Result<()> {
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (who, may) in [(1_u16, 7_u16), (4, 5), (0x20, 5)] {
        list.extend([who.to_le_bytes(), may.to_le_bytes()].concat());
        list.extend(u32::MAX.to_le_bytes());
    }
    let (name, key) = (c_path(path), c"system.posix_acl_access");
    let args = [name.as_ptr() as u64, key.as_ptr() as u64, list.as_ptr() as u64, list.len() as u64, 0, 0];
    kernel::raw(libc::SYS_setxattr, args).map(drop)
}

fn d80_inside(args: &[String], inside: &Inside) {
    use std::io::Write as _;
    if args[0] == "nothing" {
        return;
    }
    if args.iter().any(|arg| arg == "group") {
        let group = u64::from(GROUP);
        kernel::raw(libc::SYS_setresgid, [group, group, group, 0, 0, 0]).unwrap();
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    for (what, make) in MAKERS {
        let path = PathBuf::from("/alloc/data").join(what);
        if let Some(mut file) = make(&path) {
            let _ = file.write_all(b"x");
        }
        let _ = open_by_list(&path);
        let gives = |meta: &std::fs::Metadata| meta.len() > 0 && meta.mode() & 0o2010 == 0o2010;
        if path.symlink_metadata().is_ok_and(|meta| gives(&meta)) {
            inside.breach(&format!("{what} and a list leave a set-group-ID program"));
        }
        let _ = std::fs::remove_file(&path);
    }
    // What has the bit and loses it is made as ever, and so are directories.
    let path = Path::new("/alloc/data/directory");
    std::fs::create_dir(path).unwrap();
    std::fs::remove_dir(path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o4755).open("/alloc/data/plain");
    assert!(file.unwrap().write_all(b"x").is_ok());
    std::fs::remove_file("/alloc/data/plain").unwrap();
}

/// Who can write to the task's directory renames what the host's programs are mounted on, before or after that, and puts a
/// directory of his own there, from which root in its jail would execute.
fn d81(lab: &mut Lab) -> Verdict {
    if lab.level == Level::Nomad {
        // As with Nomad's drivers.
        return lab.task(&[]).user("root").must_hold();
    }
    // The directory is his, as an agent's are nobody's, and he was there first, with directories that are his.
    std::os::unix::fs::chown(lab.path("alloc/t"), Some(NOBODY), Some(NOBODY)).unwrap();
    let planted = ["usr", "etc", "dev", "proc", "sys", "alloc"];
    for name in planted {
        lab.plant_dir(name);
        std::os::unix::fs::chown(lab.task_path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let task = lab.task(&[]).user("root").command("/bin/sleep", &["1000"]).start().unwrap();
    let top = lab.path("alloc/t");
    let moved: Vec<PathBuf> = std::fs::read_dir(&top)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| as_nobody("mv", &[path, &top.join("away")]) && as_nobody("mv", &[&top.join("away"), path]))
        .collect();
    // What is his own there stays his own.
    let own = top.join("own");
    let usual = as_nobody("mkdir", &[&own]) && as_nobody("mv", &[&own, &top.join("other")]);
    let usual = usual && as_nobody("rmdir", &[&top.join("other")]);
    task.stop();
    assert!(usual, "a task's user makes, renames and removes nothing in the task's directory");
    hold!(moved.is_empty(), "a sibling moves what leads to the task's programs: {moved:?}");
    // A link of his that leads elsewhere is followed nowhere.
    lab.plant_dir("local/his");
    lab.plant_link("usr", "local/his");
    std::os::unix::fs::lchown(lab.task_path("usr"), Some(NOBODY), Some(NOBODY)).unwrap();
    if let Ok(task) = lab.task(&[]).user("root").command("/bin/sleep", &["1000"]).start() {
        let moved = as_nobody("mv", &[&lab.task_path("usr"), &top.join("away")]);
        task.stop();
        hold!(!moved, "a sibling moves the link that leads to the task's programs");
    }
    Ok(())
}

/// A file that only root may read, moved into a task's directory by who can write there, under the name of the task's program:
/// a start, or a session, makes it executable.
fn d82(lab: &mut Lab) -> Verdict {
    let name = "local/program";
    lab.close();
    for isolated in [true, false] {
        for mode in [0o600, 0o640] {
            lab.plant_file(name, b"#!/bin/sh\nexit 0\n", mode);
            let inside = if isolated { "/local/program" } else { "program" };
            let plan = lab.task(&[]).user("nobody").command(inside, &[]);
            let started = if isolated { plan.start() } else { plan.not_isolated().start() };
            drop(started);
            let mode_now = lab.task_path(name).metadata().unwrap().mode() & 0o7777;
            hold!(mode_now & 0o044 == mode & 0o044, "root's file with mode {mode:o} has {mode_now:o} by a start");
        }
    }
    let task = lab.task(&[]).user("nobody").command("/bin/sleep", &["1000"]).start().unwrap();
    lab.plant_file(name, b"#!/bin/sh\nexit 0\n", 0o600);
    let _ = task.exec(&["/local/program"], false);
    task.stop();
    let mode = lab.task_path(name).metadata().unwrap().mode() & 0o7777;
    hold!(mode & 0o044 == 0, "root's file has the mode {mode:o} by a session");
    // The task's own, and what everybody may read, become executable as ever.
    for (mode, owner) in [(0o600, NOBODY), (0o644, 0)] {
        lab.plant_file(name, b"#!/bin/sh\necho RAN\n", mode);
        std::os::unix::fs::chown(lab.task_path(name), Some(owner), None).unwrap();
        let report = lab.task(&[]).user("nobody").command("/local/program", &[]).run().unwrap();
        assert!(report.text.contains("RAN"), "{mode:o} of {owner}: {report:?}");
    }
    set_mode(&lab.task_path(name), 0o644);
    Ok(())
}

/// A root in a jail that speaks, and nobody beside it who sees the host and works on its log files.
fn talkers(level: Level) -> String {
    let user = if level == Level::Nomad { "abtoor" } else { "root" };
    let (jail, outside) = (
        "umask 077; echo ROOT-PRIVATE > /local/private; echo BEFORE; until test -e /alloc/data/go; do sleep 0.02; done; \
         sleep 0.2; echo AFTER; exec sleep 1000",
        "until test -s $NOMAD_ALLOC_DIR/logs/jail.stdout.0; do sleep 0.02; done; cd $NOMAD_ALLOC_DIR/logs; \
         echo FORGED > jail.stdout.1; mv ../../jail/local/private outside.stdout.3; touch ../data/go; echo MOVED; exec sleep 1000",
    );
    let task = |name: &str, driver: &str, user: &str, script: &str, more: &str| {
        format!(
            "    task \"{name}\" {{\n      driver = \"{driver}\"\n      user = \"{user}\"\n      kill_timeout = \"10ms\"\n      config {{\n        \
             command = \"/bin/sh\"\n        args = [\"-c\", \"{script}\"]\n{more}      }}\n    }}\n"
        )
    };
    let isolation = format!("        isolation = \"{}\"\n", level.name());
    format!(
        "job \"attack\" {{\n  type = \"batch\"\n  group \"g\" {{\n    restart {{\n      attempts = 0\n      mode = \"fail\"\n    }}\n{}{}  }}\n}}\n",
        task("jail", "exec", user, jail, &isolation),
        task("outside", "raw_exec", "nobody", outside, "")
    )
}

/// Who can write to the directory of the logs puts a file of his own after a sibling's, which is read in its place from then
/// on; moves what only root may read to where his own output is read; and holds the sibling's next file by a lease, so
/// that neither it nor the sibling goes on.
fn d83(lab: &mut Lab) -> Verdict {
    let mut run = lab.agentbin_run(&talkers(lab.level), &[]);
    // What it says, or what is read in its place.
    run.wait_for("outside | ");
    let deadline = Instant::now() + Duration::from_secs(5);
    while !run.stdout().contains("jail | AFTER") && Instant::now() < deadline {
        pause();
    }
    let said = run.interrupt();
    hold!(!said.contains("FORGED"), "a sibling's file is taken for the task's output: {said}");
    hold!(!said.contains("ROOT-PRIVATE"), "root's file is read as a sibling's output: {said}");
    hold!(said.contains("jail | AFTER"), "the task's output is not read any more: {said}");

    let next = lab.shared("logs/t.stdout.1");
    let held = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&next).unwrap();
    let control = |command: i32, value: i32| {
        kernel::raw(libc::SYS_fcntl, [held.as_raw_fd() as u64, command as u64, value as u64, 0, 0, 0]).unwrap();
    };
    // Another signal than the one that ends who does not expect it.
    control(F_SETSIG, libc::SIGURG);
    control(libc::F_SETLEASE, libc::F_WRLCK);
    let script =
        "i=0; while test $i -lt 300; do echo 0123456789012345678901234567890123456789; i=$((i+1)); done; echo LAST";
    let small = |spec: &mut agentbin::spec::LaunchSpec| {
        let logs = spec.logs.as_mut().expect("a task whose output is collected");
        logs.max_file_size_bytes = 4096;
        logs.max_files = 20;
    };
    let task = lab.task(&[]).command("/bin/sh", &["-c", script]).spec(small).start().unwrap();
    // Who opens the file that is held waits.
    let read =
        |number: u32| std::fs::read_to_string(lab.shared(&format!("logs/t.stdout.{number}"))).unwrap_or_default();
    let ended = || (2..20).any(|number| read(number).ends_with("LAST\n"));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !ended() && Instant::now() < deadline {
        pause();
    }
    let (done, taken) = (ended(), held.metadata().unwrap().len());
    drop(held);
    task.stop();
    std::fs::remove_file(next).unwrap();
    hold!(done && taken == 0, "who holds a log file by a lease holds up the task: done {done}, {taken} bytes in it");
    Ok(())
}
