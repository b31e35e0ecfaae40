//! Group D: what a task that is root in its jail leaves for those who are not in it, and what of `/etc` it reads.

use std::ffi::CString;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use agentbin::spec::Propagation;
use nix::mount::{MntFlags, MsFlags};
use serde_json::json;

use crate::framework::{
    Attack, Breach, Inside, Lab, Level, Mutant, Verdict, hold, own_program, patience, pause, set_mode,
};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack { id: "d10", run: d10, inside: None, mutants: &[Mutant::new("d10")], control: None },
    Attack {
        id: "d11",
        run: d11,
        inside: Some(d11_inside),
        mutants: &[Mutant::new("d11"), Mutant::new("d11-caps")],
        control: None,
    },
    Attack { id: "d12", run: d12, inside: Some(d12_inside), mutants: &[Mutant::new("d12")], control: None },
    Attack { id: "d13", run: d13, inside: Some(etc_inside), mutants: &[Mutant::new("d13")], control: None },
    Attack { id: "d14", run: d14, inside: Some(etc_inside), mutants: &[Mutant::new("d14")], control: None },
    Attack { id: "d15", run: d15, inside: None, mutants: &[Mutant::new("d15")], control: None },
    Attack { id: "d16", run: d16, inside: None, mutants: &[Mutant::new("d16")], control: None },
    Attack { id: "d40", run: d40, inside: Some(etc_inside), mutants: &[Mutant::new("d40")], control: None },
];

const SET_ID: u32 = 0o6000;
/// `CAP_FSETID` and `CAP_SETFCAP`.
const FILE_CAPABILITIES: u64 = 1 << 4 | 1 << 31;

/// A root in a jail, and a user outside of it who executes what the jail has written into the shared directory. The jail
/// holds all that a job can ask for, so that nothing but the mount is in the way.
fn siblings(level: Level) -> String {
    let (root, level) = (root(level), level.name());
    format!(
        r#"job "attack" {{
  type = "batch"
  group "g" {{
    restart {{
      attempts = 0
      mode = "fail"
    }}
    task "jail" {{
      driver = "exec"
      user = "{root}"
      kill_timeout = "10ms"
      config {{
        command = "/bin/sh"
        args = ["-c", "cp /usr/bin/id /alloc/data/new && chmod 4755 /alloc/data/new && mv /alloc/data/new /alloc/data/x && exec sleep 1000"]
        isolation = "{level}"
        seccomp = "unconfined"
        cap_add = ["fsetid", "setfcap"]
      }}
    }}
    task "outside" {{
      driver = "raw_exec"
      user = "nobody"
      kill_timeout = "10ms"
      config {{
        command = "/bin/sh"
        args = ["-c", "while ! test -u $NOMAD_ALLOC_DIR/data/x; do sleep 0.02; done; echo EUID $($NOMAD_ALLOC_DIR/data/x -u) END; exec sleep 1000"]
      }}
    }}
  }}
}}
"#
    )
}

/// Whoever is called root has all of Nomad's capabilities of root at that level, which not every machine gives.
fn root(level: Level) -> &'static str {
    if level == Level::Nomad { "abtoor" } else { "root" }
}

fn euid_of_sibling(said: &str) -> &str {
    said.split("EUID ").nth(1).and_then(|rest| rest.split(" END").next()).unwrap_or("nothing")
}

/// The mounts at this place in the lab's mount namespace.
fn mounted_at(place: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.split(' ').nth(4) == place.to_str()).count()
}

/// A root in a jail makes a set-uid file in the shared directory, a sibling without a jail executes it. On a shared and on a
/// private mount, and on a tmpfs.
fn d10(lab: &mut Lab) -> Verdict {
    let tmpfs = lab.path("tmpfs");
    std::fs::create_dir(&tmpfs).unwrap();
    set_mode(&tmpfs, 0o755);
    nix::mount::mount(Some("tmpfs"), &tmpfs, Some("tmpfs"), MsFlags::empty(), Some("mode=0755")).unwrap();
    nix::mount::mount(None::<&str>, &tmpfs, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    let verdict = [lab.path("data"), tmpfs.join("data")].iter().try_for_each(|data| {
        let mut run = lab.agentbin_run_in(data, &[], &siblings(lab.level), &[]);
        run.wait_for(" END");
        let (said, mounts) = (run.interrupt(), mounted_at(&data.join("alloc")));
        let euid = euid_of_sibling(&said);
        hold!(euid == "65534", "{}: who executes what the jail wrote is {euid}", data.display());
        hold!(mounts == 0, "{mounts} mounts are left at {}", data.display());
        Ok(())
    });
    let unmounted = nix::mount::umount2(&tmpfs, MntFlags::empty());
    verdict?;
    hold!(unmounted.is_ok(), "something is left on the tmpfs: {unmounted:?}");
    Ok(())
}

/// The life of the mount: one for each data directory, still there when `run` was killed, of use to the next run, gone with
/// the last allocation and not before.
fn d16(lab: &mut Lab) -> Verdict {
    let (one, other) = (lab.path("data"), lab.path("other"));
    let places = [one.join("alloc"), other.join("alloc")];
    let mounts = |expected: [usize; 2], when: &str| {
        let seen = places.each_ref().map(|place| mounted_at(place));
        hold!(seen == expected, "{when}: {seen:?} mounts, {expected:?} wanted");
        Ok(())
    };
    let mut first = lab.agentbin_run_in(&one, &[], &siblings(lab.level), &[]);
    first.wait_for(" END");
    let mut second = lab.agentbin_run_in(&other, &[], &siblings(lab.level), &[]);
    second.wait_for(" END");
    mounts([1, 1], "two data directories")?;
    let mut third = lab.agentbin_run_in(&one, &[], &siblings(lab.level), &[]);
    third.wait_for(" END");
    mounts([1, 1], "two runs in one of them")?;
    let said = [first.interrupt(), third.stdout()];
    mounts([1, 1], "one run of two has ended")?;
    // The killed run's tasks go on, and so does the mount.
    third.kill();
    second.kill();
    mounts([1, 1], "two runs were killed")?;
    // A mount that is there is used.
    let mut again = lab.agentbin_run_in(&one, &[], &siblings(lab.level), &[]);
    again.wait_for(" END");
    mounts([1, 1], "a run after a killed one")?;
    let said = [said.concat(), again.interrupt(), second.stdout()].concat();
    mounts([0, 1], "the last run of one of them has ended")?;
    let mut gc = lab.spoiled(&[], &lab.program());
    gc.args(["gc", "--data-dir"]).arg(&other).stdout(Stdio::null());
    assert!(gc.status().unwrap().success());
    mounts([0, 0], "agentbin gc")?;
    let roots = said.matches("EUID 0").count();
    hold!(roots == 0, "{roots} of those who executed what a jail wrote were root");
    // As after a restart of the machine: directories, and nothing mounted.
    let mut run = lab.agentbin_run_in(&other, &[], &siblings(lab.level), &[]);
    run.wait_for(" END");
    run.kill();
    let mut gc = lab.spoiled(&[], &lab.program());
    gc.args(["gc", "--dry-run", "--data-dir"]).arg(&other).stdout(Stdio::null());
    assert!(gc.status().unwrap().success());
    mounts([0, 1], "a look at what would be removed")?;
    let mut gc = lab.spoiled(&[], &lab.program());
    gc.args(["gc", "--data-dir"]).arg(&other).stdout(Stdio::null());
    assert!(gc.status().unwrap().success());
    // What is not ours is neither covered nor taken away: where it is open, nothing runs.
    nix::mount::mount(Some("tmpfs"), &places[1], Some("tmpfs"), MsFlags::empty(), Some("mode=0711")).unwrap();
    let mut refused = lab.agentbin_run_in(&other, &[], &siblings(lab.level), &[]);
    let deadline = Instant::now() + patience();
    while refused.is_running() && Instant::now() < deadline {
        pause();
    }
    let said = refused.interrupt();
    let seen = mounted_at(&places[1]);
    nix::mount::umount2(&places[1], MntFlags::empty()).unwrap();
    hold!(
        said.contains("mount it with the options nosuid,nodev") && seen == 1,
        "on an operator's mount ({seen}): {said}"
    );
    let closed = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    nix::mount::mount(Some("tmpfs"), &places[1], Some("tmpfs"), closed, Some("mode=0711")).unwrap();
    let mut run = lab.agentbin_run_in(&other, &[], &siblings(lab.level), &[]);
    run.wait_for(" END");
    let euid = euid_of_sibling(&run.interrupt()).to_owned();
    let seen = mounted_at(&places[1]);
    nix::mount::umount2(&places[1], MntFlags::empty()).unwrap();
    hold!((euid.as_str(), seen) == ("65534", 1), "on an operator's nosuid mount ({seen}): {euid}");
    Ok(())
}

/// The ways of a root in a jail to a file that gives its user to others: none at `default`, as far as the job asks for
/// nothing. What such a task needs its root for goes on.
fn d11(lab: &mut Lab) -> Verdict {
    if lab.level == Level::Nomad {
        // As with Nomad's drivers: set-id bits mean nothing on our own mount only.
        return lab.task(&["nothing"]).user("root").must_hold();
    }
    // By the driver of the attacked program: that of the other tasks is this test's.
    let script = "[\"-c\", \"grep Cap /proc/self/status; echo CAPS END; exec sleep 1000\"]";
    let job = lab.job("exec", "/bin/sh", script, "").replace("driver =", "user = \"root\"\n      driver =");
    let mut run = lab.agentbin_run(&job, &[]);
    run.wait_for("CAPS END");
    let said = run.interrupt();
    for line in said.lines().filter(|line| line.contains("Cap") && line.contains(':')) {
        let Ok(bits) = u64::from_str_radix(line.rsplit(['\t', ' ']).next().unwrap_or_default(), 16) else { continue };
        hold!(bits & FILE_CAPABILITIES == 0, "CAP_FSETID or CAP_SETFCAP: {line}");
    }
    assert_eq!(said.matches("Cap").count(), 5, "five sets: {said}");
    lab.task(&["all"]).user("root").must_hold()?;
    lab.task(&["all"]).user("root").config("isolation", json!("strict")).must_hold()?;
    let task = lab.task(&["nothing"]).user("root").command("/bin/sleep", &["1000"]).start().unwrap();
    let session = task.exec(&["/attack", "inside", "d11", "all"], false).map(|report| report.held());
    task.stop();
    session.unwrap()?;
    // Nor where the job adds what would be enough to act as root, or as another group, whoever the task's user is.
    for name in ["CAP_SETUID", "CAP_SETGID", "CAP_FOWNER", "CAP_SYS_ADMIN"] {
        for user in ["root", "nobody"] {
            let add = |spec: &mut agentbin::spec::LaunchSpec| {
                if !spec.capabilities.iter().any(|held| held == name) {
                    spec.capabilities.push(name.to_owned());
                }
            };
            let report = lab.task(&["held", name]).user(user).spec(add).run().unwrap();
            report.held().map_err(|Breach(why)| Breach(format!("{user} with {name}: {why}")))?;
            assert_eq!(report.fact("modes"), "tried", "{report:?}");
        }
    }
    // With the capability, which the operator allows by default, it is as it was.
    let report = lab.task(&["chmod"]).user("root").config("cap_add", json!(["fsetid"])).run().unwrap();
    assert_eq!(report.fact("chmod"), "0", "{report:?}");
    let asked = lab.shared("data/chmod");
    assert_eq!(asked.metadata().unwrap().mode() & 0o7777, 0o6755);
    std::fs::remove_file(&asked).unwrap();
    // A task of nobody, whose bits give nothing that anybody lacks.
    let report = lab.task(&["chmod"]).user("nobody").run().unwrap();
    assert_eq!(report.fact("chmod"), "0", "{report:?}");
    std::fs::remove_file(&asked).unwrap();
    for tool in ["rsync", "dpkg-deb"].iter().filter(|tool| !Path::new("/usr/bin").join(tool).exists()) {
        println!("SKIP: d11: {tool} is not installed (scripts/setup): whether it works as root in a task was not seen");
    }
    let report = lab.task(&[]).user("root").command("/bin/sh", &["-ec", TOOLS]).run().unwrap();
    assert!(report.text.contains("TOOLS-OK"), "{report:?}");
    let mut found = Vec::new();
    find_set_id(&lab.path("alloc"), &mut found);
    hold!(found.is_empty(), "files with content give their user away: {found:?}");
    Ok(())
}

/// What people run as root in a task, on files of many modes and owners.
const TOOLS: &str = r#"
mkdir -p /alloc/data/tools && cd /alloc/data/tools && umask 022
mkdir -p from/dir from/sticky from/closed
echo a > from/a; echo b > from/dir/b; ln from/a from/hard; ln -s a from/soft; mkfifo from/fifo
chmod 755 from/a; chmod 600 from/dir/b; chmod 1777 from/sticky; chmod 700 from/closed
chown 1234:4321 from/dir from/dir/b; touch -d 2001-02-03 from/dir/b
look() { (cd "$1" && find . -printf '%P %M %U %G %n %l\n' | sort); }
look from > want
same() { look "$1" | cmp - want; }
cp -a from copied && same copied
tar -C from -cf all.tar . && mkdir unpacked && tar -C unpacked -xpf all.tar && same unpacked
if command -v rsync > /dev/null; then rsync -aH from/ synced && same synced; fi
if command -v dpkg-deb > /dev/null; then
  mkdir -p package/DEBIAN package/usr/bin && echo x > package/usr/bin/x && chmod 755 package/usr/bin/x
  printf 'Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' > package/DEBIAN/control
  dpkg-deb --build package x.deb > /dev/null && dpkg -x x.deb deb && test -x deb/usr/bin/x
fi
# A file that would give root away is refused by name; the rest of its archive comes out.
cd /alloc/data/tools && mkdir suid && echo s > suid/s && echo t > suid/t
tar -C suid --mode=4755 -cf suid.tar s && tar -C suid --mode=0644 -rf suid.tar t && mkdir out
if tar -C out -xpf suid.tar 2> said; then exit 7; fi
grep -q 's: Cannot change mode' said && test -e out/t
test -z "$(find out -perm /6000)"
cd / && rm -rf /alloc/data/tools && echo TOOLS-OK
"#;

fn find_set_id(top: &Path, found: &mut Vec<PathBuf>) {
    let Ok(meta) = top.symlink_metadata() else { return };
    if meta.is_file() && meta.len() > 0 && meta.mode() & SET_ID != 0 {
        found.push(top.to_owned());
    }
    if meta.is_dir() {
        std::fs::read_dir(top).into_iter().flatten().flatten().for_each(|entry| find_set_id(&entry.path(), found));
    }
}

/// `fchmodat2(2)`.
const FCHMODAT2: libc::c_long = 452;

fn d11_inside(args: &[String], inside: &Inside) {
    rustix::process::umask(rustix::fs::Mode::empty());
    let place = |name: &str| Path::new("/alloc/data").join(name);
    match args[0].as_str() {
        "nothing" => return,
        "held" => {
            let wanted: caps::Capability = args[1].parse().unwrap();
            assert!(caps::has_cap(None, caps::CapSet::Effective, wanted).unwrap(), "{wanted} is not held");
            let path = place("of-held");
            change_modes(&path, inside);
            std::fs::remove_file(&path).unwrap();
            return inside.fact("modes", "tried");
        }
        "chmod" => {
            std::fs::write(place("chmod"), "x").unwrap();
            let path = c_path(&place("chmod"));
            let answer = kernel::raw(libc::SYS_fchmodat, [at_fdcwd(), path.as_ptr() as u64, 0o6755, 0, 0, 0]);
            return inside.fact("chmod", kernel::errno(&answer));
        }
        _ => {}
    }
    for name in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
        let bits = u64::from_str_radix(line.trim(), 16).unwrap();
        if bits & FILE_CAPABILITIES != 0 {
            inside.breach(&format!("CAP_FSETID or CAP_SETFCAP in {name}: {bits:x}"));
        }
    }
    let report = |what: &str, path: &Path| {
        if path.symlink_metadata().is_ok_and(|meta| meta.len() > 0 && meta.mode() & SET_ID != 0) {
            inside.breach(&format!("{what} leaves a set-id file with content"));
        }
    };
    change_modes(&place("changed"), inside);
    capability_of_file(&place("changed"), inside);
    for (what, make) in MAKERS {
        let path = place(what);
        make(&path);
        report(what, &path);
        let _ = std::fs::remove_file(&path);
    }
    let _ = std::fs::remove_file(place("changed"));
}

fn at_fdcwd() -> u64 {
    libc::AT_FDCWD as u64
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

fn change_modes(path: &Path, inside: &Inside) {
    std::fs::write(path, "x").unwrap();
    let (name, file) = (c_path(path), std::fs::File::open(path).unwrap());
    let (name, fd) = (name.as_ptr() as u64, file.as_raw_fd() as u64);
    for mode in [0o4755, 0o2755, 0o6755, 0o6000, 0o104_755, 0x1_0000_09ed, u64::from(u32::MAX)] {
        let calls: [(&str, libc::c_long, [u64; 6]); 5] = [
            #[cfg(target_arch = "x86_64")]
            ("chmod", libc::SYS_chmod, [name, mode, 0, 0, 0, 0]),
            #[cfg(not(target_arch = "x86_64"))]
            ("fchmod", libc::SYS_fchmod, [fd, mode, 0, 0, 0, 0]),
            ("fchmod", libc::SYS_fchmod, [fd, mode, 0, 0, 0, 0]),
            ("fchmodat", libc::SYS_fchmodat, [at_fdcwd(), name, mode, 0, 0, 0]),
            ("fchmodat2", FCHMODAT2, [at_fdcwd(), name, mode, 0, 0, 0]),
            ("fchmodat2 of a descriptor", FCHMODAT2, [fd, c"".as_ptr() as u64, mode, 0x1000, 0, 0]),
        ];
        for (what, number, args) in calls {
            let answer = kernel::raw(number, args);
            let bits = path.metadata().unwrap().mode() & SET_ID;
            if answer.is_ok() || bits != 0 {
                inside.breach(&format!("{what} to {mode:o}: {answer:?}, bits {bits:o}"));
                set_mode(path, 0o755);
            }
        }
    }
    // Other modes are the task's.
    set_mode(path, 0o1751);
    if path.metadata().unwrap().mode() & 0o7777 != 0o1751 {
        inside.breach("an ordinary mode is not set");
    }
}

/// `cap_setuid=ep`, as `setcap(8)` writes it.
fn capability_of_file(path: &Path, inside: &Inside) {
    let value: [u32; 5] = [0x0200_0001, 1 << 7, 0, 0, 0];
    let (name, key) = (c_path(path), c"security.capability");
    let args = [name.as_ptr() as u64, key.as_ptr() as u64, value.as_ptr() as u64, size_of_val(&value) as u64, 0, 0];
    if kernel::raw(libc::SYS_setxattr, args).is_ok() {
        inside.breach("a file has capabilities");
    }
}

type Maker = (&'static str, fn(&Path));

/// Files that have the bits from their first moment on, and how they get content. Most answers do not matter.
const MAKERS: &[Maker] = &[
    ("open", |path| {
        let _ = new(path).write_all(b"x");
    }),
    ("ftruncate", |path| {
        let _ = new(path).set_len(1);
    }),
    ("mmap", |path| {
        let file = new(path);
        let _ = file.set_len(4096);
        map_and_write(&file);
    }),
    ("fallocate", |path| {
        let file = new(path);
        let _ = kernel::raw(libc::SYS_fallocate, [file.as_raw_fd() as u64, 0, 0, 4096, 0, 0]);
        map_and_write(&file);
    }),
    ("tmpfile", |path| {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).mode(0o4755).custom_flags(libc::O_TMPFILE);
        let Ok(mut file) = options.open(path.parent().unwrap()) else { return };
        let _ = file.write_all(b"x");
        let (from, to) = (CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap(), c_path(path));
        let flags = libc::AT_SYMLINK_FOLLOW as u64;
        let args = [at_fdcwd(), from.as_ptr() as u64, at_fdcwd(), to.as_ptr() as u64, flags, 0];
        let _ = kernel::raw(libc::SYS_linkat, args);
    }),
    ("mknod", |path| {
        let name = c_path(path);
        let mode = u64::from(libc::S_IFREG | 0o4755);
        let _ = kernel::raw(libc::SYS_mknodat, [at_fdcwd(), name.as_ptr() as u64, mode, 0, 0, 0]);
        let _ = std::fs::OpenOptions::new().append(true).open(path).map(|mut file| file.write_all(b"x"));
    }),
    ("openat2", |path| {
        let (name, how) = (c_path(path), [(libc::O_CREAT | libc::O_RDWR) as u64, 0o6755, 0]);
        let args = [at_fdcwd(), name.as_ptr() as u64, how.as_ptr() as u64, size_of_val(&how) as u64, 0, 0];
        let _ = kernel::raw(libc::SYS_openat2, args);
        let _ = std::fs::OpenOptions::new().write(true).open(path).map(|mut file| file.write_all(b"x"));
    }),
    ("copy_file_range", |path| {
        let (from, to) = (std::fs::File::open("/attack").unwrap(), new(path));
        let args = [from.as_raw_fd() as u64, 0, to.as_raw_fd() as u64, 0, 64, 0];
        if kernel::raw(libc::SYS_copy_file_range, args).is_err() {
            let _ = kernel::raw(libc::SYS_sendfile, [args[2], args[0], 0, 64, 0, 0]);
        }
    }),
    ("aio", |path| {
        let file = new(path);
        let bytes = b"x".as_ptr() as u64;
        let _ = kernel::raw(libc::SYS_pwrite64, [file.as_raw_fd() as u64, bytes, 1, 0, 0, 0]);
        let vector = [bytes, 1];
        let _ = kernel::raw(libc::SYS_pwritev2, [file.as_raw_fd() as u64, vector.as_ptr() as u64, 1, 1, 0, 0]);
    }),
];

/// The second bit is one that no such task makes a file with, see D80.
fn new(path: &Path) -> std::fs::File {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).create_new(true);
    options.mode(0o6755).open(path).or_else(|_| options.mode(0o4755).open(path)).unwrap()
}

fn map_and_write(file: &std::fs::File) {
    let (access, shared) = ((libc::PROT_READ | libc::PROT_WRITE) as u64, libc::MAP_SHARED as u64);
    let Ok(address) = kernel::raw(libc::SYS_mmap, [0, 4096, access, shared, file.as_raw_fd() as u64, 0]) else {
        return;
    };
    // Written to by the kernel, so that no pointer is made of the number.
    let mut source = std::fs::File::open("/attack").unwrap();
    let args = [source.as_raw_fd() as u64, address as u64, 64, 0, 0, 0];
    let _ = kernel::raw(libc::SYS_read, args);
    let _ = std::io::Read::read(&mut source, &mut [0; 1]);
    let _ = kernel::raw(libc::SYS_munmap, [address as u64, 4096, 0, 0, 0, 0]);
}

/// Under an agent, whose directories we mount nothing over: a set-uid file that is there means nothing in a jail.
fn d12(lab: &mut Lab) -> Verdict {
    if lab.level == Level::Nomad {
        return lab.task(&["euid"]).user("root").run().map(drop).map_err(Breach);
    }
    lab.close();
    for (host, inside) in [(lab.shared("data/suid"), "/alloc/data/suid"), (lab.task_path("local/suid"), "/local/suid")]
    {
        std::fs::copy(own_program(), &host).unwrap();
        set_mode(&host, 0o4755);
        let words = ["inside", "d12", "euid"];
        let report = lab.task(&[]).command(inside, &words).config("no_new_privs", json!(false)).run().unwrap();
        report.held()?;
        std::fs::remove_file(&host).unwrap();
    }
    Ok(())
}

fn d12_inside(_: &[String], inside: &Inside) {
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    if real != effective {
        inside.breach(&format!("uid {real} has become {effective}"));
    }
}

/// An `/etc` of the lab's own, with what nobody but root may read, and what everybody may.
struct Etc(PathBuf);

const CLOSED: [(&str, u32, u32); 9] = [
    ("shadow", 0o640, 0),
    ("gshadow", 0o640, 0),
    ("sudoers", 0o440, 0),
    ("sudoers.d/10-x", 0o440, 0),
    ("ssl/private/key.pem", 0o640, 0),
    ("ssh/ssh_host_ed25519_key", 0o600, 0),
    ("odd/name of nobody's list", 0o600, 0),
    ("odd/of-another-user", 0o600, 1234),
    ("odd/closed-to-all", 0o000, 0),
];
const KNOWN: usize = 6;
const OPEN: [&str; 4] = ["passwd", "group", "public", "dir/public"];

impl Etc {
    /// On the file system of the lab where that can be closed, else on an ext4 of its own, where one can be made.
    fn closable(lab: &Lab) -> Option<Etc> {
        let closes = || agentbin::container::closes_etc().unwrap() == agentbin::container::Closed::Whole;
        let etc = Etc::new(lab, None);
        if closes() {
            return Some(etc);
        }
        drop(etc);
        let image = lab.path("etc.image");
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("mkfs.ext4").arg("-q").arg(&image).status();
        let etc = made.is_ok_and(|status| status.success()).then(|| Etc::new(lab, Some("ext4")))?;
        assert!(closes(), "ext4 has id-mapped mounts since Linux 5.12");
        Some(etc)
    }

    fn new(lab: &Lab, file_system: Option<&str>) -> Etc {
        let own = lab.path("etc");
        let _ = std::fs::remove_dir_all(&own);
        std::fs::create_dir(&own).unwrap();
        set_mode(&own, 0o755);
        let files: Vec<(String, String)> = ["passwd", "group"]
            .map(|name| (name.to_owned(), std::fs::read_to_string(Path::new("/etc").join(name)).unwrap()))
            .into_iter()
            .collect();
        match file_system {
            Some("ext4") => {
                let mut command = Command::new("mount");
                command.args(["-o", "loop", "-t", "ext4"]).arg(lab.path("etc.image")).arg("/etc");
                assert!(command.status().unwrap().success(), "mount an ext4 at /etc");
                set_mode(Path::new("/etc"), 0o755);
            }
            Some(kind) => {
                nix::mount::mount(Some(kind), "/etc", Some(kind), MsFlags::empty(), None::<&str>).unwrap();
                set_mode(Path::new("/etc"), 0o755);
            }
            None => nix::mount::mount(Some(&own), "/etc", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap(),
        }
        let etc = Etc(PathBuf::from("/etc"));
        for (name, text) in files {
            etc.write(&name, &text, 0o644, 0);
        }
        for (name, mode, owner) in CLOSED {
            etc.write(name, "secret", mode, owner);
        }
        set_mode(&etc.0.join("ssl/private"), 0o710);
        for name in &OPEN[2..] {
            etc.write(name, "public", 0o644, 0);
        }
        std::os::unix::fs::symlink("shadow", etc.0.join("link")).unwrap();
        etc
    }

    fn write(&self, name: &str, text: &str, mode: u32, owner: u32) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let temporary = path.with_extension("new");
        std::fs::write(&temporary, text).unwrap();
        std::os::unix::fs::chown(&temporary, Some(owner), Some(owner)).unwrap();
        set_mode(&temporary, mode);
        std::fs::rename(&temporary, &path).unwrap();
    }
}

impl Drop for Etc {
    fn drop(&mut self) {
        nix::mount::umount2("/etc", MntFlags::MNT_DETACH).unwrap();
    }
}

/// A task of root, and one that has what root has, read what everybody may read, and nothing else: also what comes later
/// and what is renamed over something, and beside a mount that cannot be closed.
fn d13(lab: &mut Lab) -> Verdict {
    let Some(etc) = Etc::closable(lab) else {
        println!(
            "SKIP: d13: no file system here can be closed, and no ext4 be made: what is known is covered, as in d14"
        );
        let _etc = Etc::new(lab, None);
        return lab.task(&[if lab.level == Level::Nomad { "open" } else { "closed" }]).user("root").must_hold();
    };
    if lab.level == Level::Nomad {
        return lab.task(&["open"]).user("root").must_hold();
    }
    let verdict = look_while_it_changes(lab, &etc, &["closed", "odd"], |task| task.user("root"));
    let more = |spec: &mut agentbin::spec::LaunchSpec| spec.capabilities.push("CAP_DAC_READ_SEARCH".to_owned());
    verdict?;
    lab.task(&["closed", "odd"]).user("root").spec(more).must_hold()?;
    lab.task(&["closed", "odd"]).user("nobody").config("cap_add", json!(["dac_override"])).must_hold()?;
    lab.task(&["closed", "odd"]).user("abtoor").must_hold()?;
    lab.task(&["closed", "odd"]).user("root").config("isolation", json!("strict")).must_hold()?;
    lab.task(&["closed", "odd"]).user("nobody").config("cap_add", json!(["setuid"])).must_hold()?;
    // What a job names it has.
    let named = lab.task(&["named"]).user("root");
    let named = named.mount(Path::new("/etc/shadow"), "/etc/shadow", true, Propagation::Private);
    let named = named.mount(Path::new("/etc/ssl/private"), "/etc/ssl/private", true, Propagation::Private);
    let report = named.run().unwrap();
    assert_eq!((report.fact("shadow"), report.fact("key")), ("true".to_owned(), "true".to_owned()), "{report:?}");
    // Something is mounted in there whose owners cannot be taken away.
    let below = Path::new("/etc/below");
    std::fs::create_dir(below).unwrap();
    nix::mount::mount(Some("ramfs"), below, Some("ramfs"), MsFlags::empty(), None::<&str>).unwrap();
    let verdict = lab.task(&["closed", "odd"]).user("root").must_hold();
    nix::mount::umount2(below, MntFlags::MNT_DETACH).unwrap();
    verdict?;
    // Without room for another process there is no way to close it, and nothing is started open.
    let single = lab.task(&["closed", "odd"]).user("root").config("pids_limit", json!(1));
    single.must_hold()
}

/// The same on a file system that cannot do it: what is known is covered, directories also after a rename.
fn d14(lab: &mut Lab) -> Verdict {
    let etc = Etc::new(lab, Some("ramfs"));
    if lab.level == Level::Nomad {
        return lab.task(&["open"]).user("root").must_hold();
    }
    lab.task(&["closed"]).user("root").must_hold()?;
    etc.write("ssl/private/key.pem", "secret", 0o600, 0);
    lab.task(&["closed"]).user("root").must_hold()
}

/// The operator's `chroot_env` names parts of `/etc`, puts it elsewhere, or names a directory above it: a root task reads no more
/// of it than of the whole.
fn d40(lab: &mut Lab) -> Verdict {
    let parts = ["passwd", "group", "public", "dir", "ssl", "sudoers", "sudoers.d", "ssh", "odd", "shadow", "gshadow"];
    let parts: serde_json::Map<_, _> =
        parts.into_iter().map(|name| format!("/etc/{name}")).map(|path| (path.clone(), json!(path))).collect();
    let chroots = [
        (json!(parts), "/etc"),
        (json!({ "/etc": "/elsewhere" }), "/elsewhere"),
        (json!({ "/": "/host" }), "/host/etc"),
    ];
    let first = if lab.level == Level::Nomad { "open" } else { "closed" };
    let whole = Etc::closable(lab);
    let closable = whole.is_some();
    if !closable {
        println!("note: d40: no file system here can be closed: what is known is covered");
    }
    let etc = whole.unwrap_or_else(|| Etc::new(lab, None));
    for (chroot, place) in &chroots {
        let words: &[&str] = if closable { &[first, "odd", place] } else { &[first, place] };
        lab.task(words).user("root").plugin("chroot_env", chroot.clone()).must_hold()?;
        if lab.level != Level::Nomad {
            let able = lab.task(words).user("nobody").config("cap_add", json!(["dac_override"]));
            able.plugin("chroot_env", chroot.clone()).must_hold()?;
        }
    }
    // What a job names it has, in a part that is closed.
    let named = lab.task(&["named"]).user("root").plugin("chroot_env", chroots[0].0.clone());
    let named = named.mount(Path::new("/etc/shadow"), "/etc/shadow", true, Propagation::Private);
    let named = named.mount(Path::new("/etc/ssl/private"), "/etc/ssl/private", true, Propagation::Private);
    let report = named.run().unwrap();
    assert_eq!((report.fact("shadow"), report.fact("key")), ("true".to_owned(), "true".to_owned()), "{report:?}");
    drop(etc);
    // The same where it cannot be closed.
    let _etc = Etc::new(lab, Some("ramfs"));
    for (chroot, place) in &chroots {
        lab.task(&[first, place]).user("root").plugin("chroot_env", chroot.clone()).must_hold()?;
    }
    Ok(())
}

fn look_while_it_changes(
    lab: &mut Lab,
    etc: &Etc,
    words: &[&str],
    plan: impl FnOnce(crate::framework::Plan<'_>) -> crate::framework::Plan<'_>,
) -> Verdict {
    let go = lab.shared("data/go");
    let words: Vec<&str> = words.iter().copied().chain(["wait"]).collect();
    let task = plan(lab.task(&words)).start().unwrap();
    task.wait_for("FACT looked");
    for (name, mode, owner) in CLOSED {
        etc.write(name, "secret", mode, owner);
    }
    etc.write("later", "secret", 0o600, 0);
    etc.write("later-dir/later", "secret", 0o600, 0);
    set_mode(Path::new("/etc/later-dir"), 0o700);
    std::fs::write(&go, "").unwrap();
    let report = task.finish();
    std::fs::remove_file(&go).unwrap();
    report.held()
}

/// `closed`: what is known is not read; `odd`: nor what is not; `named`: what the job named is; `wait`: and then again. A path is
/// where `/etc` is.
fn etc_inside(args: &[String], inside: &Inside) {
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let etc = args.iter().find(|arg| arg.starts_with('/')).map_or("/etc", String::as_str);
    let read = |name: &str| std::fs::read_to_string(Path::new(etc).join(name));
    if has("named") {
        inside.fact("shadow", read("shadow").is_ok_and(|text| text == "secret"));
        return inside.fact("key", read("ssl/private/key.pem").is_ok_and(|text| text == "secret"));
    }
    let look = || {
        for name in OPEN {
            if read(name).is_err() {
                inside.breach(&format!("/etc/{name} is not readable any more: {:?}", read(name)));
            }
        }
        let names = CLOSED.iter().map(|(name, ..)| *name).take(if has("odd") { CLOSED.len() } else { KNOWN });
        for name in names.chain(["link", "later", "later-dir/later"]) {
            if has("closed") && read(name).is_ok_and(|text| text.contains("secret")) {
                inside.breach(&format!("/etc/{name} is read"));
            }
        }
        // Neither by changing who it is, nor whose the file is.
        for id in [1234, 0] {
            let _ = kernel::raw(libc::SYS_setresuid, [id, id, id, 0, 0, 0]);
            if has("closed") && has("odd") && read("odd/of-another-user").is_ok() {
                inside.breach(&format!("/etc/odd/of-another-user is read as {id}"));
            }
        }
        let path = c_path(&Path::new(etc).join("shadow"));
        for answer in [
            kernel::raw(libc::SYS_fchmodat, [at_fdcwd(), path.as_ptr() as u64, 0o666, 0, 0, 0]),
            kernel::raw(libc::SYS_fchownat, [at_fdcwd(), path.as_ptr() as u64, 65534, 65534, 0, 0]),
        ] {
            if has("closed") && answer.is_ok() {
                inside.breach("/etc/shadow is changed");
            }
        }
    };
    look();
    if has("wait") {
        inside.fact("looked", true);
        let deadline = Instant::now() + patience();
        while !Path::new("/alloc/data/go").exists() && Instant::now() < deadline {
            pause();
        }
        look();
    }
}

/// What a job writes through a template has no set-id bits.
fn d15(lab: &mut Lab) -> Verdict {
    let (root, level) = (root(lab.level), lab.level.name());
    let job = format!(
        r#"job "attack" {{
  type = "batch"
  group "g" {{
    task "t" {{
      driver = "exec"
      user = "{root}"
      template {{
        data = "x"
        destination = "local/x"
        perms = "6755"
      }}
      config {{
        command = "/bin/sh"
        args = ["-c", "echo MODE $(stat -c %a /local/x) END; exec sleep 1000"]
        isolation = "{level}"
      }}
    }}
  }}
}}
"#
    );
    let mut run = lab.agentbin_run(&job, &[]);
    run.wait_for(" END");
    let said = run.interrupt();
    hold!(said.contains("MODE 755 END"), "{said}");
    Ok(())
}
