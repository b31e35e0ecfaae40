//! Group D: a root that an agent has filled with second names of the host's files.
//!
//! All of it lies on an overlay of the lab's own: whatever is written to, it is not the machine's.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags};
use serde_json::json;

use crate::framework::{Attack, Inside, Lab, Mutant, Verdict, hold, set_mode};

pub const ATTACKS: &[Attack] = &[Attack {
    id: "d42",
    run: d42,
    inside: Some(d42_inside),
    mutants: &[Mutant::new("d42"), Mutant::new("d42-links")],
    control: None,
}];

/// What an agent makes a second name of, and where: below a directory of the host's, and below the task's own.
const LINKED: [&str; 3] = ["bin/app", "local/tools/app", "tmp/app"];
/// Directories that it makes, for files that cannot have a second name.
const FILLED: [&str; 4] = ["", "bin", "etc", "usr/lib"];
const WRITABLE: [&str; 4] = ["alloc", "local", "secrets", "tmp"];

/// The allocation on an overlay, and a file system of the agent's in it.
struct Chroot {
    alloc: PathBuf,
    secrets: PathBuf,
}

impl Chroot {
    fn new(lab: &Lab) -> Chroot {
        let (alloc, over) = (lab.path("alloc"), lab.path("over"));
        std::fs::create_dir_all(&over).unwrap();
        let tmpfs =
            |place: &Path| nix::mount::mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), None::<&str>);
        tmpfs(&over).unwrap();
        for name in ["upper", "work"] {
            std::fs::create_dir(over.join(name)).unwrap();
        }
        let options = format!("lowerdir={},upperdir={o}/upper,workdir={o}/work", alloc.display(), o = over.display());
        let mounted = nix::mount::mount(Some("overlay"), &alloc, Some("overlay"), MsFlags::empty(), Some(&*options));
        // It keeps what it needs of it.
        nix::mount::umount2(&over, MntFlags::MNT_DETACH).unwrap();
        mounted.expect("an overlay");
        let secrets = lab.task_path("secrets");
        std::fs::create_dir_all(&secrets).unwrap();
        tmpfs(&secrets).unwrap();
        Chroot { alloc, secrets }
    }
}

impl Drop for Chroot {
    fn drop(&mut self) {
        nix::mount::umount2(&self.secrets, MntFlags::MNT_DETACH).unwrap();
        nix::mount::umount2(&self.alloc, MntFlags::MNT_DETACH).unwrap();
    }
}

/// `fs_isolation = "chroot"`: a root task changes no file that has a second name, and nothing that the agent has filled.
fn d42(lab: &mut Lab) -> Verdict {
    let _chroot = Chroot::new(lab);
    lab.close();
    for name in FILLED {
        std::fs::create_dir_all(lab.task_path(name)).unwrap();
        std::fs::write(lab.task_path(name).join("copied"), "the host's").unwrap();
    }
    let machine = lab.path("alloc/machine");
    std::fs::write(&machine, "the host's").unwrap();
    set_mode(&machine, 0o755);
    for name in LINKED {
        std::fs::create_dir_all(lab.task_path(name).parent().unwrap()).unwrap();
        std::fs::hard_link(&machine, lab.task_path(name)).unwrap();
    }
    // What the task has linked itself stays its own.
    std::fs::write(lab.task_path("local/own"), "").unwrap();
    std::fs::hard_link(lab.task_path("local/own"), lab.task_path("local/own-too")).unwrap();
    let before = (std::fs::read_to_string(&machine).unwrap(), machine.metadata().unwrap().permissions().mode());
    for user in ["root", "nobody"] {
        // More than once, as after a restart.
        for _ in 0..2 {
            let chroot = lab.task(&[]).user(user).plugin("fs_isolation", json!("chroot"));
            let report = chroot.run().unwrap();
            report.held()?;
            if user == "root" {
                assert_eq!(report.fact("writes"), "own alloc local secrets tmp", "{report:?}");
            }
        }
    }
    let after = (std::fs::read_to_string(&machine).unwrap(), machine.metadata().unwrap().permissions().mode());
    hold!(before == after, "the host's file is another one: {after:?}");
    Ok(())
}

fn d42_inside(_: &[String], inside: &Inside) {
    let append = |path: &Path| std::fs::OpenOptions::new().append(true).open(path);
    for path in LINKED.iter().map(|name| Path::new("/").join(name)) {
        let second = Path::new("/local/second");
        let tries: [(&str, std::io::Result<()>); 6] = [
            ("written to", append(&path).and_then(|mut file| file.write_all(b"x"))),
            ("cut off", std::fs::OpenOptions::new().write(true).truncate(true).open(&path).map(drop)),
            ("given another mode", std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777))),
            ("given away", std::os::unix::fs::chown(&path, Some(1), Some(1))),
            ("given a name that is writable", std::fs::hard_link(&path, second)),
            ("moved", std::fs::rename(&path, second)),
        ];
        for (what, done) in tries {
            if done.is_ok() {
                inside.breach(&format!("{} is {what}", path.display()));
            }
        }
        let _ = std::fs::remove_file(second);
    }
    for dir in FILLED.iter().map(|name| Path::new("/").join(name)) {
        if std::fs::write(dir.join("made"), "").is_ok() || std::fs::remove_file(dir.join("copied")).is_ok() {
            inside.breach(&format!("{} is written to", dir.display()));
        }
    }
    let mut writes = Vec::new();
    if append(Path::new("/local/own-too")).is_ok() {
        writes.push("own");
    }
    for name in WRITABLE {
        let made = Path::new("/").join(name).join("made");
        if std::fs::write(&made, "").is_ok() && std::fs::remove_file(&made).is_ok() {
            writes.push(name);
        }
    }
    inside.fact("writes", writes.join(" "));
}
