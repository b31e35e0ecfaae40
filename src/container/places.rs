//! The places in a task's directory at which its root is mounted, kept from others who can write to that directory.
//!
//! What is mounted in one mount namespace keeps nobody in another one from renaming the directory below it: the mount goes
//! along, and the name is free for a directory of somebody else's, in which the task finds its programs from then on. So
//! the task's directory gets the sticky bit, and what leads to a place belongs to root or the task's user, before anything
//! is mounted there: afterwards nobody else can rename it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Uid};

use super::config::{Failure, Step as _};
use super::lookup::Trusted;
use crate::sys::mutant;
use crate::sys::path::Root;

/// How often somebody may win the race for a name before the start is refused.
const ATTEMPTS: usize = 100;

/// Those of one task.
pub(super) struct Places(Option<Trusted>);

impl Places {
    /// Closes the task's directory, which others may write to as before, but where they rename and remove only what is theirs:
    /// nobody is kept from that in a directory that belongs to them, and an agent's belong to nobody (65534).
    pub(super) fn closed(root: &Root, trusted: Trusted) -> Result<Places, Failure> {
        if mutant::on("d81") {
            return Ok(Places::open());
        }
        let work = || -> io::Result<()> {
            let top = root.open_beneath(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
            let stat = rustix::fs::fstat(&top)?;
            if !trusted.has(stat.st_uid) {
                rustix::fs::fchown(&top, Some(Uid::from_raw(0)), None)?;
            }
            Ok(rustix::fs::fchmod(&top, sticky(&stat))?)
        };
        work().step(|| "set the sticky bit of the task's directory".to_owned())?;
        Ok(Places(Some(trusted)))
    }

    /// Whoever can write to the directory may do what he likes.
    pub(super) fn open() -> Places {
        Places(None)
    }

    /// Makes what leads to a place, and takes over directories of others on the way, as far as the task's directory itself goes:
    /// to a mount, a link of somebody who is trusted, a directory in which others may rename what they like.
    pub(super) fn secure(&self, root: &Root, target: &Path, is_dir: bool) -> Result<(), Failure> {
        let Some(trusted) = &self.0 else { return Ok(()) };
        let mut names: Vec<_> = target.components().filter(|c| !matches!(c, Component::RootDir)).collect();
        if !is_dir {
            names.pop();
        }
        let mut path = PathBuf::new();
        for name in names {
            // `..` leads where the kernel says, and that is where somebody has wanted the mount.
            let Component::Normal(name) = name else { return Ok(()) };
            path.push(name);
            let step = || format!("take over /{} in the task's directory", path.display());
            match hold(root, &path, trusted).step(step)? {
                Held::Closed => {}
                Held::End => return Ok(()),
                Held::Foreign(uid) => {
                    let text = format!(
                        "/{} in the task's directory is a link or file of uid {uid}, who could lead the task elsewhere: \
                         remove it",
                        path.display()
                    );
                    return Err(Failure::invalid(step(), text));
                }
            }
        }
        Ok(())
    }
}

/// One name after the other, until it is closed or nothing is to be done.
fn hold(root: &Root, path: &Path, trusted: &Trusted) -> io::Result<Held> {
    for _ in 0..ATTEMPTS {
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        let found = match root.open_same_mount(path, flags, Mode::empty()) {
            Ok(found) => found,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make(root, path)?;
                continue;
            }
            Err(e) if e.raw_os_error() == Some(libc::EXDEV) => return Ok(Held::End),
            Err(e) => return Err(e),
        };
        let stat = rustix::fs::fstat(&found)?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        match (trusted.has(stat.st_uid), is_dir) {
            (true, true) if is_shared(&stat) => return Ok(Held::End),
            (true, true) => return Ok(Held::Closed),
            (true, false) => return Ok(Held::End),
            (false, false) => return Ok(Held::Foreign(stat.st_uid)),
            // What has the name now may be another one: it is looked at once more.
            (false, true) => take(&found, &stat)?,
        }
    }
    Err(io::Error::other("somebody else makes it anew again and again"))
}

/// What was found at a name.
enum Held {
    /// A directory in which nobody else renames anything.
    Closed,
    /// Nothing is to be done from here on.
    End,
    /// Not a directory, and of this user.
    Foreign(u32),
}

/// Whether somebody else may rename what is in it.
fn is_shared(dir: &Stat) -> bool {
    dir.st_mode & 0o022 != 0 && dir.st_mode & 0o1000 == 0
}

fn make(root: &Root, path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let parent = root.open_same_mount(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Its mode, with the sticky bit where others may write.
fn sticky(dir: &Stat) -> Mode {
    let mode = dir.st_mode & 0o7777;
    Mode::from_raw_mode(if mode & 0o022 != 0 { mode | 0o1000 } else { mode })
}

/// The owner alone changes, for whoever could write to it still can; and the mode last: a directory of somebody else's may be
/// open to all until then.
fn take(dir: &OwnedFd, stat: &Stat) -> io::Result<()> {
    rustix::fs::chownat(dir, c"", Some(Uid::from_raw(0)), None, AtFlags::EMPTY_PATH)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&dir, sticky(stat))?)
}
