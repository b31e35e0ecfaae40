//! Group B: mounts. What is bound into a task's root, where, and what comes back out of it.

use std::ffi::CString;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use agentbin::spec::Propagation;
use nix::mount::{MntFlags, MsFlags};
use serde_json::json;

use crate::framework::{Attack, Breach, Inside, Lab, Mutant, Swapper, Task, Verdict, full, hold};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "b01",
        run: b01,
        inside: Some(b01_inside),
        mutants: &[Mutant::new("b01"), Mutant::new("b01-race")],
        control: None,
    },
    Attack { id: "b03", run: b03, inside: Some(b03_inside), mutants: &[Mutant::new("b03")], control: None },
    Attack {
        id: "b04",
        run: b04,
        inside: Some(b04_inside),
        mutants: &[Mutant::new("b04"), Mutant::new("b04-race")],
        control: None,
    },
    Attack {
        id: "b06",
        run: b06,
        inside: Some(b06_inside),
        mutants: &[Mutant::new("b06"), Mutant::new("b06-race")],
        control: None,
    },
    Attack { id: "b07", run: b07, inside: Some(b07_inside), mutants: &[Mutant::new("b07")], control: None },
    Attack { id: "b08", run: b08, inside: Some(b08_inside), mutants: &[Mutant::new("b08")], control: None },
    Attack { id: "d96", run: d96, inside: Some(b01_inside), mutants: &[Mutant::new("d96")], control: None },
    Attack { id: "d100", run: d100, inside: Some(d100_inside), mutants: &[Mutant::new("d100")], control: None },
    Attack { id: "b09", run: b09, inside: Some(b09_inside), mutants: &[Mutant::new("b09")], control: None },
];

const PRIVATE: Propagation = Propagation::Private;

/// A setting of the machine.
const AIM: &str = "/proc/sys/vm/stat_interval";
/// `f_type` of procfs.
const PROC: rustix::fs::FsWord = 0x9fa0;

/// A directory of the host that a job may mount.
fn volume(lab: &Lab) -> PathBuf {
    let volume = lab.path("vol");
    for folder in ["", "sub", "task", "host", "self"] {
        let _ = std::fs::create_dir(volume.join(folder));
        crate::framework::set_mode(&volume.join(folder), 0o777);
    }
    std::fs::write(volume.join("file"), "of the volume").unwrap();
    crate::framework::set_mode(&volume.join("file"), 0o666);
    volume
}

/// An empty file system, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(place: PathBuf) -> Mounted {
        nix::mount::mount(Some("attack"), &place, Some("tmpfs"), MsFlags::empty(), Some("mode=0777,size=1m")).unwrap();
        Mounted(place)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

fn is_mounted(place: &Path) -> bool {
    let place = place.to_str().unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == Some(place))
}

/// CVE-2021-30465, CVE-2017-1002101, CVE-2026-42306: what is mounted, or where, becomes a link that leads out.
fn b01(lab: &mut Lab) -> Verdict {
    let vol = volume(lab);
    let (source, place) = (lab.shared("data/source"), lab.shared("data/place"));
    let (other_source, other_place) = (lab.shared("data/other-source"), lab.shared("data/other-place"));
    let out = Path::new("/../../../../../../..").join(lab.canary("").strip_prefix("/").unwrap());
    for target in [lab.canary(""), out] {
        for link in [&source, &place] {
            let _ = std::fs::remove_file(link);
            std::os::unix::fs::symlink(&target, link).unwrap();
        }
        for (readonly, propagation) in [(false, PRIVATE), (true, PRIVATE), (false, Propagation::Bidirectional)] {
            lab.task(&[]).user("root").mount(&source, "/vol", readonly, propagation).must_hold()?;
            lab.task(&[]).user("root").mount(&source.join("open"), "/vol", readonly, propagation).must_hold()?;
            lab.task(&[]).user("root").mount(&vol, "/alloc/data/place", readonly, propagation).must_hold()?;
            lab.judge()?;
        }
    }
    for folder in [&other_source, &other_place] {
        std::fs::create_dir(folder).unwrap();
    }
    let swappers = [Swapper::new(source.clone(), other_source), Swapper::new(place, other_place)];
    lab.race([6, 500], &swappers, |lab, round| {
        let propagation = if round % 2 == 0 { PRIVATE } else { Propagation::Bidirectional };
        let task = lab.task(&[]).user("root");
        task.mount(&source, "/vol", false, propagation).mount(&vol, "/alloc/data/place", false, PRIVATE).must_hold()
    })?;
    drop(swappers);
    // What is not a link is mounted.
    let report = lab.task(&[]).mount(&vol, "/vol", false, PRIVATE).run();
    assert!(report.is_ok(), "{report:?}");
    Ok(())
}

fn b01_inside(_: &[String], inside: &Inside) {
    for place in ["/vol", "/alloc/data/place"] {
        for name in ["secret", "shadow", "public", "open/file", "dir/inner"] {
            if Path::new(place).join(name).exists() {
                inside.breach(&format!("{place}/{name} of the host"));
            }
        }
        let _ = std::fs::write(Path::new(place).join("planted"), "x");
    }
}

/// CVE-2025-52565: what the terminal of a session is made of has been swapped by the task.
fn b03(lab: &mut Lab) -> Verdict {
    for place in ["dev/pts/0", "dev/console", "dev/ptmx"] {
        lab.plant_link(place, AIM);
    }
    let script = "rm -f /dev/ptmx /dev/console; ln -s /vol/ptmx /dev/ptmx; ln -s /proc/sys/vm/stat_interval /dev/console; \
                  echo PLANTED; exec sleep 1000";
    for command in ["echo PLANTED; exec sleep 1000", script] {
        let task = lab.task(&[]).command("/bin/sh", &["-c", command]).user("root");
        // Terminals of somebody else, which the task may use, but which are no place for a session of ours.
        let task = task.mount(Path::new("/dev/pts"), "/vol", false, PRIVATE).start().unwrap();
        task.wait_for("PLANTED");
        for _ in 0..if full() { 100 } else { 3 } {
            if let Ok(report) = task.exec(&["/attack", "inside", "b03"], true) {
                report.held()?;
            }
        }
        task.stop();
    }
    Ok(())
}

fn b03_inside(_: &[String], inside: &Inside) {
    let terminals = std::fs::metadata("/dev/pts").unwrap().dev();
    for number in 0..3 {
        let link = format!("/proc/self/fd/{number}");
        let target = std::fs::read_link(&link).unwrap();
        let meta = std::fs::metadata(&link).unwrap();
        let is_terminal = meta.file_type().is_char_device() && rustix::fs::major(meta.rdev()) == 136;
        if !is_terminal || meta.dev() != terminals {
            inside.breach(&format!("descriptor {number} is not a terminal of the task: {}", target.display()));
        }
    }
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with("/proc/sys")) {
            inside.breach("a descriptor is a setting of the machine");
        }
    }
}

/// CVE-2025-52881, CVE-2019-16884, CVE-2023-28642: the task, and who sets it up, is given a `/proc` that lies.
fn b04(lab: &mut Lab) -> Verdict {
    let vol = volume(lab);
    std::fs::write(vol.join("self/uid_map"), "").unwrap();
    let refused = |result: Result<Task, String>, what: &str| -> Verdict {
        match result {
            Err(error) if error.contains("is the kernel's") || error.contains("mount /proc: ") => Ok(()),
            // It was mounted, and came to light when something was not found there.
            Err(error) => Err(Breach(format!("{what}: {error}"))),
            Ok(task) => {
                task.stop();
                Err(Breach(format!("{what}: started")))
            }
        }
    };
    lab.plant_link("proc", lab.canary(""));
    refused(lab.task(&[]).start(), "/proc of the folder is a link")?;
    lab.reset_task_folder();
    lab.plant_link("p", "/proc");
    lab.plant_link("s", "sys");
    let places = ["/proc", "/proc/self", "/proc/1", "/proc/sys", "/proc/sys/kernel", "/proc/tty", "/sys", "/p", "/s"];
    for place in places.into_iter().chain(["/p/self", "/local/../proc", "proc/self/attr"]) {
        let task = lab.task(&[]).config("user_namespace", json!(true));
        refused(task.mount(&vol, place, false, PRIVATE).start(), place)?;
    }
    for place in ["/proc/self/status", "/proc/self/uid_map", "/proc/1/oom_score_adj", "/proc/sys/kernel/hostname"] {
        refused(lab.task(&[]).mount(&vol.join("file"), place, false, PRIVATE).start(), place)?;
    }
    // Figures of a smaller machine are no lie about the task.
    let figures = ["cpuinfo", "meminfo", "stat", "uptime", "loadavg", "diskstats", "swaps"];
    let mut task = lab.task(&["figures"]);
    for name in figures {
        task = task.mount(&vol.join("file"), &format!("/proc/{name}"), true, PRIVATE);
    }
    let report = task.mount(&vol, "/sys/fs/cgroup", false, PRIVATE).run().unwrap();
    report.held()?;
    assert_eq!(report.fact("cpuinfo"), "of the volume");
    // Files of the directory with the names of those of procfs; then the directory is swapped for a link.
    let files = ["oom_score_adj", "attr/exec", "uid_map", "gid_map", "setgroups"];
    for file in files {
        lab.plant_file(&format!("proc/self/{file}"), b"0", 0o666);
    }
    lab.task(&[]).config("user_namespace", json!(true)).run().unwrap().held()?;
    let fake = |name: &str| std::fs::read(lab.task_path("proc/self").join(name)).unwrap();
    hold!(files.iter().all(|name| fake(name) == b"0"), "a file of the folder was written");
    lab.plant_link("other", "/proc/../proc");
    let swappers = [
        Swapper::new(lab.task_path("proc"), lab.task_path("other")),
        Swapper::new(lab.task_path("dev"), lab.task_path("other-dev")),
    ];
    lab.plant_dir("other-dev");
    lab.race([6, 200], &swappers[..1], |lab, round| {
        let task = lab.task(&["race"]).user(if round % 2 == 0 { "root" } else { "nobody" });
        task.config("user_namespace", json!(true)).must_hold()
    })
}

fn b04_inside(args: &[String], inside: &Inside) {
    if args.first().is_some_and(|arg| arg == "race") {
        return b04_race_inside(inside);
    }
    for place in ["/proc", "/proc/self/status", "/proc/self/attr", "/proc/sys/kernel/hostname"] {
        if rustix::fs::statfs(place).is_ok_and(|stat| stat.f_type != PROC) {
            inside.breach(&format!("{place} is not the kernel's"));
        }
    }
    let own = std::fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok());
    if own != Some(std::process::id()) {
        inside.breach("/proc does not know the task");
    }
    inside.fact("cpuinfo", std::fs::read_to_string("/proc/cpuinfo").unwrap().lines().next().unwrap_or_default());
}

/// Wherever the swapped names have led to: what the kernel's files must not give is not given.
fn b04_race_inside(inside: &Inside) {
    let mounts =
        std::fs::read_to_string("/proc/self/mountinfo").or_else(|_| std::fs::read_to_string("/other/self/mountinfo"));
    let mounts = mounts.unwrap_or_default();
    let kernels = mounts.lines().filter(|line| line.contains(" - proc ")).filter_map(|line| line.split(' ').nth(4));
    let places = kernels.map(str::to_owned).chain(["/proc".to_owned(), "/other".to_owned()]);
    for place in places {
        for name in ["sysrq-trigger", "sys/vm/stat_interval", "sys/kernel/core_pattern", "irq/default_smp_affinity"] {
            let path = Path::new(&place).join(name);
            if rustix::fs::statfs(&path).is_ok_and(|stat| stat.f_type == PROC)
                && std::fs::File::options().write(true).open(&path).is_ok()
            {
                inside.breach(&format!("{} can be written", path.display()));
            }
        }
    }
}

/// CVE-2024-45310, CVE-2026-41568: directories for mounts are made where a link of the task leads.
fn b06(lab: &mut Lab) -> Verdict {
    let vol = volume(lab);
    let start = |lab: &mut Lab| {
        let mut task = lab.task(&[]).user("root");
        for number in 0..20 {
            task = task.mount(&vol, &format!("/a/b/c/{number}"), true, PRIVATE);
        }
        task.mount(&vol.join("file"), "/a/files/file", true, PRIVATE).must_hold()
    };
    let out = Path::new("/../../../../../../..").join(lab.canary("open").strip_prefix("/").unwrap());
    for target in [lab.canary("open"), out] {
        for place in ["a", "a/b", "a/b/c"] {
            let _ = std::fs::remove_file(lab.task_path("a"));
            lab.plant_link(place, &target);
            start(lab)?;
            lab.judge()?;
            lab.reset_task_folder();
        }
    }
    lab.plant_dir("a");
    lab.plant_link("other", lab.canary("open"));
    let swapper = [Swapper::new(lab.task_path("a"), lab.task_path("other"))];
    lab.race([6, 500], &swapper, |lab, _| start(lab))?;
    drop(swapper);
    lab.reset_task_folder();
    start(lab)
}

fn b06_inside(_: &[String], inside: &Inside) {
    for place in ["/a", "/a/b", "/a/b/c", "/a/files"] {
        if Path::new(place).join("secret").exists() {
            inside.breach(&format!("{place} is a folder of the host"));
        }
    }
}

/// Read-only that is not: a mount below the one that was asked for, or one that the task mounts anew.
fn b07(lab: &mut Lab) -> Verdict {
    let vol = volume(lab);
    let below = Mounted::new(vol.join("sub"));
    std::fs::write(vol.join("sub/file"), "of the volume").unwrap();
    crate::framework::set_mode(&vol.join("sub/file"), 0o666);
    for user in ["root", "nobody"] {
        let task = lab.task(&[]).user(user).mount(&vol, "/vol", true, PRIVATE);
        let report = task.mount(&vol.join("sub"), "/vol2", true, Propagation::HostToTask).run().unwrap();
        report.held()?;
        assert_eq!(report.fact("mounts"), "3");
    }
    for file in ["file", "sub/file"] {
        hold!(std::fs::read(vol.join(file)).unwrap() == b"of the volume", "{file} has changed");
    }
    drop(below);
    Ok(())
}

/// What mountinfo says of each mount: its place and its options.
fn own_mounts() -> Vec<(String, String)> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fields = |line: &str| {
        let mut fields = line.split(' ').skip(4).map(str::to_owned);
        Some((fields.next()?, fields.next()?))
    };
    text.lines().filter_map(fields).collect()
}

fn b07_inside(_: &[String], inside: &Inside) {
    let mounts = own_mounts();
    let readonly = ["/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr", "/alloc/logs", "/attack", "/sys", "/vol"];
    let mut found = 0;
    for (place, options) in &mounts {
        let asked = readonly.iter().any(|top| place == top || place.starts_with(&format!("{top}/")));
        if (asked || place == "/vol2") && !options.split(',').any(|option| option == "ro") {
            inside.breach(&format!("{place} is {options}"));
        }
        found += u32::from(place.starts_with("/vol"));
    }
    inside.fact("mounts", found);
    for folder in ["/vol", "/vol/sub", "/vol2"] {
        try_to_change(Path::new(folder), inside);
        // Who may mount, as root of the level `nomad` may, is not kept from it by how something was mounted.
        if !caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_ADMIN).unwrap() {
            remount(folder);
            try_to_change(Path::new(folder), inside);
        }
    }
}

/// Mounts it anew with fewer restrictions, in the old way and the new.
fn remount(place: &str) {
    let path = CString::new(place).unwrap();
    let flags = libc::MS_REMOUNT | libc::MS_BIND;
    let _ = kernel::raw(libc::SYS_mount, [0, path.as_ptr() as u64, 0, flags, 0, 0]);
    let attributes = [0u64, libc::MOUNT_ATTR_RDONLY, 0, 0];
    let (words, size) = (attributes.as_ptr() as u64, size_of_val(&attributes) as u64);
    let _ = kernel::raw(libc::SYS_mount_setattr, [libc::AT_FDCWD as u64, path.as_ptr() as u64, 0, words, size, 0]);
}

/// Everything that would change a directory, or what lies in it.
fn try_to_change(folder: &Path, inside: &Inside) {
    let breach = |what: &str| inside.breach(&format!("{what} in {}", folder.display()));
    if std::fs::write(folder.join("planted"), "x").is_ok() {
        breach("a new file");
    }
    if std::fs::create_dir(folder.join("planted-folder")).is_ok() {
        breach("a new folder");
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // Opening for writing is what a shared mapping needs, too.
        for options in [std::fs::File::options().append(true), std::fs::File::options().write(true)] {
            if options.open(&path).is_ok() {
                breach("a file opened for writing");
            }
        }
        if std::fs::File::options().write(true).truncate(true).open(&path).is_ok() {
            breach("a file cut off");
        }
        if std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).is_ok() {
            breach("another mode");
        }
        if std::os::unix::fs::chown(&path, Some(12345), Some(12345)).is_ok() {
            breach("another owner");
        }
        let times = rustix::fs::Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
            last_modification: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
        };
        if rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).is_ok() {
            breach("other times");
        }
        for place in ["/local/link", "/tmp/link", "/alloc/data/link"] {
            if std::fs::hard_link(&path, place).is_ok() {
                breach("a second name");
            }
        }
        if std::fs::rename(&path, folder.join("renamed")).is_ok() {
            breach("another name");
        }
        if std::fs::remove_file(&path).is_ok() {
            breach("a file removed");
        }
    }
}

/// Mounts go where they must not, or stay.
fn b08(lab: &mut Lab) -> Verdict {
    let vol = volume(lab);
    let bidirectional = Propagation::Bidirectional;
    if let Ok(task) = lab.task(&["wait"]).mount(&vol, "/vol", true, bidirectional).start() {
        task.stop();
        hold!(false, "a read-only volume was mounted bidirectional");
    }
    for round in 0..if full() { 34 } else { 1 } {
        for mode in [PRIVATE, Propagation::HostToTask, bidirectional] {
            let task = lab.task(&["wait"]).user("root").mount(&vol, "/vol", false, mode);
            let task = task.spec(|spec| spec.capabilities.push("CAP_SYS_ADMIN".to_owned())).start().unwrap();
            task.wait_for("MOUNTED");
            let from_task = is_mounted(&vol.join("task"));
            hold!(from_task == (mode == bidirectional), "{mode:?}: a mount of the task is seen outside: {from_task}");
            let here = Mounted::new(vol.join("host"));
            std::fs::write(vol.join("host/seen"), "").unwrap();
            let seen = task.exec(&["/bin/ls", "/vol/host"], false).unwrap().text.contains("seen");
            hold!(seen == (mode != PRIVATE), "{mode:?}: a new mount of the host is seen inside: {seen}");
            drop(here);
            if round % 2 == 0 {
                let pid = rustix::process::Pid::from_raw(task.pid).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                task.finish();
            } else {
                task.stop();
            }
            // What a task has mounted for others, as plugins for storage do, is for them to take off.
            if mode == bidirectional {
                nix::mount::umount2(&vol.join("task"), MntFlags::empty()).unwrap();
            }
            lab.judge()?;
        }
    }
    Ok(())
}

/// A volume lies in another one, whose task puts a link, or another directory, in its place.
fn d96(lab: &mut Lab) -> Verdict {
    let outer = lab.path("outer");
    let (inner, gone, link) = (outer.join("inner"), outer.join("gone"), outer.join("link"));
    std::fs::create_dir_all(&inner).unwrap();
    crate::framework::set_mode(&inner, 0o777);
    let metadata = inner.metadata().unwrap();
    let identity = Some((metadata.dev(), metadata.ino()));
    let canary = lab.canary("");
    let mounted = |lab: &mut Lab| {
        let task = lab.task(&[]).user("root").mount(&inner, "/vol", false, PRIVATE);
        let resolved = inner.clone();
        task.spec(move |spec| {
            for mount in spec.mounts.iter_mut().filter(|mount| mount.host_path == resolved) {
                mount.identity = identity;
            }
        })
        .must_hold()
    };
    // What was not exchanged is mounted.
    mounted(lab)?;
    std::fs::rename(&inner, &gone).unwrap();
    std::os::unix::fs::symlink(&canary, &inner).unwrap();
    mounted(lab)?;
    std::fs::remove_file(&inner).unwrap();
    std::fs::rename(&gone, &inner).unwrap();
    std::os::unix::fs::symlink(&canary, &link).unwrap();
    let swappers = [Swapper::new(inner.clone(), link)];
    lab.race([6, 500], &swappers, |lab, _| mounted(lab))?;
    drop(swappers);
    // Whatever is where now, the next round begins anew.
    std::fs::remove_dir_all(&outer).unwrap();
    Ok(())
}

/// A second mount leads into a bidirectional volume, by `..` or by a link, and so to the host.
fn d100(lab: &mut Lab) -> Verdict {
    let vol = volume(lab);
    let bidirectional = Propagation::Bidirectional;
    // Beside it there may be others.
    let task = lab.task(&["wait"]).user("root").mount(&vol, "/vol", false, bidirectional);
    task.mount(&vol.join("sub"), "/elsewhere", true, PRIVATE).start().unwrap().stop();
    for (source, place) in [
        ("sub", "/tmp/../vol/task"),
        ("sub", "/lead/task"),
        ("file", "/lead/file"),
        ("sub", "/lead/new/deep"),
        ("file", "/vol/new"),
    ] {
        lab.reset_task_folder();
        lab.plant_link("lead", "/vol");
        let task = lab.task(&["wait"]).user("root").mount(&vol, "/vol", false, bidirectional);
        let started = task.mount(&vol.join(source), place, true, PRIVATE).start();
        let leaked: Vec<_> = ["task", "file", "new/deep", "new"].map(|name| vol.join(name)).into_iter().collect();
        let mounted = leaked.iter().filter(|place| is_mounted(place)).count();
        let made = vol.join("new").exists();
        if let Ok(task) = started {
            task.stop();
        }
        for place in leaked.iter().filter(|place| is_mounted(place)) {
            nix::mount::umount2(place, MntFlags::MNT_DETACH).unwrap();
        }
        hold!(mounted == 0, "what was mounted at {place} is mounted on the host");
        hold!(!made, "{place} was made on the host");
        lab.judge()?;
    }
    Ok(())
}

fn d100_inside(_: &[String], _: &Inside) {
    loop {
        std::thread::park();
    }
}

fn b08_inside(_: &[String], _: &Inside) {
    let flags = MsFlags::empty();
    nix::mount::mount(Some("attack"), "/vol/task", Some("tmpfs"), flags, Some("size=1m")).unwrap();
    println!("MOUNTED");
    loop {
        std::thread::park();
    }
}

/// Files of the host that a task sees are the host's own inodes: it must not change them, whoever it is.
fn b09(lab: &mut Lab) -> Verdict {
    lab.close();
    let canary = lab.canary("");
    for user in ["nobody", "root"] {
        for all in [false, true] {
            let task = lab.task(&[]).user(user).mount(&canary, "/host", true, PRIVATE);
            let task = task.mount(&canary.join("tool"), "/tool", true, PRIVATE);
            let compatible = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP", "SETGID", "SETUID"];
            let capabilities = compatible.iter().map(|name| format!("CAP_{name}"));
            let change = move |spec: &mut agentbin::spec::LaunchSpec| {
                if all {
                    spec.capabilities.extend(capabilities);
                }
            };
            task.spec(change).run().unwrap().held()?;
            lab.judge()?;
        }
    }
    Ok(())
}

fn b09_inside(_: &[String], inside: &Inside) {
    for folder in ["/host", "/host/dir", "/host/open"] {
        try_to_change(Path::new(folder), inside);
    }
    if std::fs::File::options().write(true).open("/tool").is_ok() {
        inside.breach("a file of the host opened for writing");
    }
}
