//! Group B: values of a job that say more than they should, cgroups, devices, and databases of users that never end.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentbin::cgroup::Regime;
use agentbin::spec::Propagation;

use crate::framework::{Attack, Inside, Lab, Level, Mutant, Verdict, cgroups, full, hold, patience, pause};
use crate::kernel;

pub const ATTACKS: &[Attack] = &[
    Attack { id: "b11", run: b11, inside: Some(b11_inside), mutants: &[Mutant::new("b11")], control: None },
    Attack { id: "b12", run: b12, inside: Some(b12_inside), mutants: &[Mutant::new("b12")], control: None },
    Attack { id: "b13", run: b13, inside: Some(b13_inside), mutants: &[Mutant::nomad("b13")], control: None },
    Attack { id: "b22", run: b22, inside: None, mutants: &[Mutant::new("b22")], control: None },
];

/// What ends a field somewhere.
const ODD: [&str; 14] = [
    "a,ro",
    "a:rw",
    "a+b=1",
    "a b",
    "a\tb",
    "a\\040b",
    "a%n%s",
    "a\n0 0 0:1 x rw - proc p rw",
    "a#b",
    "a'b\"",
    "a;b",
    "a$(b)",
    "a*?[",
    "a\u{7f}\u{1}",
];

/// CVE-2022-0811 and its like: a value with a separator in it becomes two values.
fn b11(lab: &mut Lab) -> Verdict {
    let vol = lab.path("vol");
    std::fs::create_dir(&vol).unwrap();
    let mut args: Vec<String> = ODD.iter().map(|odd| format!("/mounts/{odd}")).collect();
    args.extend(ODD.iter().map(|odd| (*odd).to_owned()));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut task = lab.task(&args);
    for (number, odd) in ODD.iter().enumerate() {
        task =
            task.mount(&vol, &format!("/mounts/{odd}"), true, Propagation::Private).env(&format!("ODD{number}"), odd);
    }
    task.run().unwrap().held()?;
    let refused = |result: Result<crate::framework::Task, String>, what: &str| -> Verdict {
        if let Ok(task) = result {
            task.stop();
            hold!(false, "{what:?} was taken");
        }
        Ok(())
    };
    for nul in ["/mounts/a\0b", "/mounts/a\0", "\0"] {
        refused(lab.task(&[]).mount(&vol, nul, true, Propagation::Private).start(), nul)?;
    }
    let users =
        ["nobody:x", "nobody:x:65534", "nobody,root", "nobody\nroot", "root:x:0:0", "+0", "#0", "root\0", " root"];
    for user in users.into_iter().chain(["root ", "*", "nobody:", "..", "/root"]) {
        refused(lab.task(&[]).user(user).start(), user)?;
    }
    if cgroups().regime() != Regime::Off {
        for odd in ODD {
            // Made as it is, or refused; the judge looks for what is left.
            let plan = lab.task(&["0"]).command("/bin/true", &[]);
            let _ = plan.spec(|spec| spec.cgroup = spec.cgroup.join(odd)).run();
            lab.judge()?;
        }
    }
    task_names(lab)
}

/// A task's name is the name of a directory.
fn task_names(lab: &Lab) -> Verdict {
    let long = "a".repeat(300);
    for name in ["alloc", "..", ".", "", "a/b", "../../canary/open", "/etc", "a\\u0000b", &long] {
        let job = lab.job("raw_exec", "/bin/echo", "[\"RAN\"]", "").replace("task \"t\"", &format!("task \"{name}\""));
        let mut run = lab.agentbin_run(&job, &[]);
        let deadline = Instant::now() + patience();
        while run.is_running() {
            assert!(Instant::now() < deadline, "{name:?}: neither refused nor run: {}", run.said());
            pause();
        }
        let said = run.interrupt();
        hold!(!said.contains("RAN\n"), "a task of the name {name:?} ran: {said}");
    }
    Ok(())
}

fn b11_inside(args: &[String], inside: &Inside) {
    let (places, values) = args.split_at(args.len() / 2);
    let places: BTreeSet<&str> = places.iter().map(String::as_str).collect();
    let seen: Vec<String> = std::fs::read_dir("/mounts")
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .collect();
    if seen.iter().map(String::as_str).collect::<BTreeSet<_>>() != places {
        inside.breach(&format!("mounts {seen:?}"));
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours = mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|place| place.starts_with("/mounts/"));
    if ours.count() != places.len() {
        inside.breach("another number of mounts");
    }
    for (number, value) in values.iter().enumerate() {
        if std::env::var(format!("ODD{number}")).as_deref() != Ok(value) {
            inside.breach(&format!("ODD{number} is another value"));
        }
    }
    let known = ["PATH", "USER", "LOGNAME", "HOME"];
    let names: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
    for name in names.iter().filter(|name| !known.contains(&name.as_str()) && !name.starts_with("ODD")) {
        inside.breach(&format!("a variable {name}"));
    }
}

/// CVE-2022-0492, CVE-2023-25809: a task changes cgroups, or its cgroup is somebody else's.
fn b12(lab: &mut Lab) -> Verdict {
    for user in ["root", "nobody"] {
        // Root of the level `nomad` has the cgroups that a user namespace shows, as on Nomad.
        let compatible = user == "root" && lab.level == Level::Nomad;
        for how in ["plain", "namespaces"].into_iter().take(if compatible { 1 } else { 2 }) {
            // Root of the level `nomad` may mount what it likes, as on Nomad; what it is kept from else is the same.
            let task = lab.task(&[how]).user(user);
            let task = task.spec(|spec| spec.capabilities.retain(|name| !name.to_uppercase().ends_with("SYS_ADMIN")));
            task.run().unwrap().held()?;
            lab.judge()?;
        }
    }
    if cgroups().regime() == Regime::Off {
        println!("note: b12: there are no cgroups");
        return Ok(());
    }
    let name = format!("agentbin-escape-{}", std::process::id());
    let outside = |lab: &Lab| -> Vec<PathBuf> {
        let roots = cgroups().hierarchies().map(|h| h.mount_point.clone()).collect::<Vec<_>>();
        let places = roots.iter().flat_map(|root| [root.join(&name), root.parent().unwrap().join(&name)]);
        places.chain([Path::new("/").join(&name), lab.canary(&name)]).filter(|path| path.exists()).collect()
    };
    let canary = lab.canary("open").to_str().unwrap().to_owned();
    for path in
        ["../NAME", "a/../../NAME", "/NAME", "../../../../NAME", "./../NAME", "a\0b/NAME", "..", "/", "a/..", &canary]
    {
        let path = path.replace("NAME", &name);
        let started = lab.task(&[]).command("/bin/true", &[]).spec(|spec| spec.cgroup = path.clone().into()).run();
        let made = outside(lab);
        for path in &made {
            let _ = std::fs::remove_dir(path);
        }
        hold!(started.is_err() && made.is_empty(), "cgroup {path:?} was taken: {made:?}");
    }
    for path in ["../..", "/../../canary", "/etc", &canary, "..\n"] {
        let started = lab.task(&[]).command("/bin/true", &[]).spec(|spec| {
            spec.cgroup_v1_override = [("memory".to_owned(), path.to_owned())].into();
            path.clone_into(&mut spec.cgroup_v2_override);
        });
        hold!(started.run().is_err(), "the host's cgroup {path:?} was taken");
    }
    Ok(())
}

fn b12_inside(args: &[String], inside: &Inside) {
    if args[0] == "namespaces" {
        let uid = rustix::process::geteuid().as_raw();
        let flags = (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP) as u64;
        let made = kernel::raw(libc::SYS_unshare, [flags, 0, 0, 0, 0, 0]);
        inside.fact("unshare", kernel::errno(&made));
        let _ = std::fs::write("/proc/self/setgroups", "deny");
        let _ = std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"));
    }
    let mut tops = vec![PathBuf::from("/sys/fs/cgroup"), PathBuf::from("/tmp/cgroup")];
    let _ = std::fs::create_dir("/tmp/cgroup");
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let mut kinds: Vec<(&str, String)> = own
        .lines()
        .filter_map(|line| line.split(':').nth(1))
        .filter(|names| !names.is_empty())
        .map(|names| ("cgroup", names.to_owned()))
        .collect();
    kinds.push(("cgroup2", String::new()));
    kinds.push(("cgroup", "none,name=attack".to_owned()));
    for (kind, options) in kinds {
        let [source, target] = ["attack", "/tmp/cgroup"].map(|text| CString::new(text).unwrap());
        let (kind, options) = (CString::new(kind).unwrap(), CString::new(options).unwrap());
        let texts = [source.as_ptr(), target.as_ptr(), kind.as_ptr()].map(|pointer| pointer as u64);
        let mounted = kernel::raw(libc::SYS_mount, [texts[0], texts[1], texts[2], 0, options.as_ptr() as u64, 0]);
        if mounted.is_ok() {
            change_cgroups(Path::new("/tmp/cgroup"), inside);
            let _ = kernel::raw(libc::SYS_umount2, [texts[1], libc::MNT_DETACH as u64, 0, 0, 0, 0]);
        }
    }
    tops.drain(..).for_each(|top| change_cgroups(&top, inside));
}

/// Opening for writing, and making a directory that is removed at once, change nothing that stays.
fn change_cgroups(top: &Path, inside: &Inside) {
    let mut todo = vec![top.to_owned()];
    let mut looked = 0;
    while let Some(folder) = todo.pop().filter(|_| looked < 300) {
        looked += 1;
        let is_cgroup = ["cgroup.procs", "tasks"].iter().any(|name| folder.join(name).exists());
        let child = folder.join("attack");
        if is_cgroup && std::fs::create_dir(&child).is_ok() {
            let _ = std::fs::remove_dir(&child);
            return inside.breach(&format!("a new cgroup in {}", folder.display()));
        }
        for name in ["release_agent", "notify_on_release", "cgroup.procs", "tasks", "devices.allow", "memory.max"] {
            if std::fs::File::options().write(true).open(folder.join(name)).is_ok() {
                return inside.breach(&format!("{} can be written in {}", name, folder.display()));
            }
        }
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        todo.extend(entries.filter(|e| e.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()));
    }
}

/// Disks, memory, and what drivers offer: nodes of them open nothing, also after somebody else's task has ended.
fn b13(lab: &mut Lab) -> Verdict {
    if cgroups().regime() == Regime::Off {
        println!("note: b13: there are no cgroups");
    }
    for user in ["root", "nobody"] {
        let task = lab.task(&[]).user(user).command("/bin/sleep", &["1000"]).start().unwrap();
        task.exec(&["/attack", "inside", "b13"], false).unwrap().held()?;
        lab.task(&[]).user(user).run().unwrap().held()?;
        task.exec(&["/attack", "inside", "b13"], false).unwrap().held()?;
        task.stop();
    }
    Ok(())
}

fn b13_inside(_: &[String], inside: &Inside) {
    use rustix::fs::{CWD, FileType, Mode, OFlags};
    let (disk, stream) = (FileType::BlockDevice, FileType::CharacterDevice);
    let devices = [(disk, 8, 0), (disk, 254, 0), (disk, 7, 0), (stream, 1, 1), (stream, 1, 2), (stream, 10, 232)];
    for (kind, major, minor) in devices.into_iter().chain([(stream, 10, 229), (stream, 1, 11), (stream, 10, 237)]) {
        for folder in ["/dev", "/dev/shm", "/tmp", "/local", "/alloc/data"] {
            let path = Path::new(folder).join("attack-node");
            let mode = Mode::from_raw_mode(0o666);
            if rustix::fs::mknodat(CWD, &path, kind, mode, rustix::fs::makedev(major, minor)).is_err() {
                continue;
            }
            // Anything but a refusal means that only the device was not there.
            for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
                let opened = rustix::fs::open(&path, flags | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty());
                match opened.map(drop) {
                    Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS) => {}
                    other => inside.breach(&format!("{kind:?} {major}:{minor} in {folder}: {other:?}")),
                }
            }
            let _ = std::fs::remove_file(&path);
        }
    }
}

/// Most memory of a start, whatever lies in the task's directory.
const MOST_MEMORY: u64 = 96 << 20;
/// Longest start, on a machine that has other work.
const LONGEST: Duration = Duration::from_secs(10);

/// CVE-2026-47262: `passwd` and `group` of the task's root are too long, or have no end.
fn b22(lab: &mut Lab) -> Verdict {
    for name in ["passwd", "group"] {
        for what in ["sparse", "fifo", "zero", "folder", "long", "loop"] {
            lab.reset_task_folder();
            for other in ["passwd", "group"] {
                std::fs::create_dir_all(lab.task_path("etc")).unwrap();
                std::fs::copy(Path::new("/etc").join(other), lab.task_path("etc").join(other)).unwrap();
            }
            plant_database(lab, &format!("etc/{name}"), what);
            // As where an agent makes the root: what lies in it is all there is.
            let start = Instant::now();
            let task = lab.task(&[]).user("nobody").command("/bin/sleep", &["1000"]);
            let started = task.spec(|spec| spec.mounts.retain(|mount| mount.task_path != "/etc")).start();
            let took = start.elapsed();
            let task = match started {
                Ok(task) => task,
                Err(error) => {
                    hold!(false, "{what} as {name}: {error}");
                    continue;
                }
            };
            let peak = peak_memory(&task.cgroup);
            task.stop();
            hold!(took < LONGEST, "{what} as {name}: {took:?}");
            hold!(peak.is_none_or(|bytes| bytes < MOST_MEMORY), "{what} as {name}: {peak:?} bytes");
        }
    }
    Ok(())
}

fn plant_database(lab: &Lab, place: &str, what: &str) {
    match what {
        "sparse" => {
            lab.plant_file(place, b"", 0o644);
            let file = std::fs::File::options().write(true).open(lab.task_path(place)).unwrap();
            file.set_len(5 << 30).unwrap();
        }
        "fifo" => lab.plant_fifo(place),
        "zero" => lab.plant_link(place, "/dev/zero"),
        "folder" => lab.plant_dir(place),
        "loop" => lab.plant_link(place, Path::new("/").join(place)),
        _ => {
            let lines = if full() { 1_000_000 } else { 200_000 };
            let text = (0..lines).map(|number| format!("g{number}:x:{number}:nobody")).collect::<Vec<_>>().join("\n");
            lab.plant_file(place, text.as_bytes(), 0o644);
        }
    }
}

/// Most bytes that a cgroup had at once, where the kernel tells.
fn peak_memory(cgroup: &Path) -> Option<u64> {
    let cgroups = cgroups();
    let files = cgroups.hierarchies().flat_map(|h| {
        let folder = h.mount_point.join(cgroup);
        [folder.join("memory.max_usage_in_bytes"), folder.join("memory.peak")]
    });
    files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok()).max()
}
