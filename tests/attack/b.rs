//! Group B: mounts and paths. The task's directory is its root, and hostile from the second start on.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use crate::control;
use crate::framework::{Attack, Inside, Lab, Mutant, Swapper, Verdict, full};

pub const ATTACKS: &[Attack] = &[
    Attack {
        id: "b02",
        run: b02,
        inside: Some(b02_inside),
        mutants: &[Mutant::new("b02"), Mutant::new("b02-race")],
        control: Some(control::b02),
    },
    Attack {
        id: "b05",
        run: b05,
        inside: Some(b05_inside),
        mutants: &[Mutant::new("b05")],
        control: Some(control::b05),
    },
];

/// A setting of the machine that a careless mask would hand to the task.
const AIM: &str = "/proc/sys/vm/stat_interval";

/// CVE-2025-31133: `/dev/null` in the task's directory is a link to a setting of the machine, and is what hides files.
fn b02(lab: &mut Lab) -> Verdict {
    for user in ["root", "nobody"] {
        lab.plant_link("dev/null", AIM);
        lab.task(&[]).user(user).must_hold()?;
    }
    // The same while somebody who shares the directory swaps it.
    let (null, mode) = (rustix::fs::makedev(1, 3), nix::sys::stat::Mode::from_bits_truncate(0o666));
    nix::sys::stat::mknod(&lab.task_path("dev/other"), nix::sys::stat::SFlag::S_IFCHR, mode, null).unwrap();
    lab.plant_link("dev/null", AIM);
    let swapper = [Swapper::new(lab.task_path("dev/null"), lab.task_path("dev/other"))];
    lab.race([20, 200], &swapper, |lab, _| lab.task(&[]).user("root").must_hold())
}

fn b02_inside(_: &[String], inside: &Inside) {
    // Whatever hides a file is the null device; what only forbids writing is the file itself.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let (root, place) = (fields[3], fields[4]);
        let Ok(meta) = std::fs::metadata(place) else { continue };
        if meta.is_dir() || !(place.starts_with("/proc") || place.starts_with("/sys")) {
            continue;
        }
        let is_null = meta.file_type().is_char_device() && meta.rdev() == rustix::fs::makedev(1, 3);
        if !is_null && format!("/proc{root}") != place {
            inside.breach(&format!("{place} shows {root}"));
        }
        if is_null {
            let _ = std::fs::write(place, "7");
        }
    }
    for number in 0..10 {
        let link = format!("/proc/self/fd/{number}");
        if std::fs::read_link(&link).is_ok_and(|target| target.starts_with("/proc/sys")) {
            inside.breach(&format!("descriptor {number} is a setting of the machine"));
        }
    }
}

/// CVE-2026-41579, CVE-2026-47766: places of the root are links that lead out of it.
fn b05(lab: &mut Lab) -> Verdict {
    let out = |lab: &Lab| Path::new("/../../../../../../..").join(lab.canary("").strip_prefix("/").unwrap());
    for place in ["dev", "dev/pts", "dev/shm", "dev/mqueue", "proc", "sys", "tmp", "alloc", "local", "secrets", "etc"] {
        for (target, absolute) in [(out(lab), false), (lab.canary("open"), true)] {
            // In the short form one user each.
            for user in ["root", "nobody"].into_iter().filter(|user| full() || (*user == "root") != absolute) {
                lab.plant_link(place, &target);
                lab.task(&[]).user(user).must_hold()?;
                lab.judge()?;
                lab.reset_task_folder();
            }
        }
    }
    Ok(())
}

/// Started all the same: then the places are the task's own.
fn b05_inside(_: &[String], inside: &Inside) {
    for place in ["/dev", "/dev/pts", "/dev/shm", "/proc", "/sys", "/tmp", "/alloc", "/local", "/secrets", "/etc"] {
        for name in ["secret", "open", "tool"] {
            if Path::new(place).join(name).exists() {
                inside.breach(&format!("{place}/{name} of the host"));
            }
        }
        let _ = std::fs::write(Path::new(place).join("planted"), "x");
    }
}
