//! Protects the places in a task's directory at which its root is mounted from other users who can write to that directory.
//!
//! A mount in one mount namespace does not keep a process in another one from renaming the directory below it: the mount moves
//! along, and another user can put a directory under the free name, in which the task then finds its programs. So before anything
//! is mounted, the task's directory gets the sticky bit, and the directories that lead to a place are chowned to root unless a
//! trusted user owns them: afterwards nobody else can rename them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Uid};

use super::config::{Failure, Step as _};
use super::lookup::Trusted;
use crate::sys::mutant;
use crate::sys::path::Root;

/// How often another user may win the race for a name before the start is refused.
const ATTEMPTS: usize = 100;

/// The places of one task.
pub(super) struct Places(Option<Trusted>);

impl Places {
    /// Sets the sticky bit of the task's directory: others may write to it as before, but rename and remove only their own files.
    /// An owner that is not trusted is replaced by root, as the sticky bit does not restrict a directory's owner, and an agent's
    /// directories belong to nobody (65534).
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

    /// Does not protect the places.
    pub(super) fn open() -> Places {
        Places(None)
    }

    /// Creates the directories that lead to a place, and takes over those of other users on the way. Stops where the task's
    /// directory ends: at a mount, at a link of a trusted user, at a directory in which others may rename anything.
    pub(super) fn secure(&self, root: &Root, target: &Path, is_dir: bool) -> Result<(), Failure> {
        let Some(trusted) = &self.0 else { return Ok(()) };
        let mut names: Vec<_> = target.components().filter(|c| !matches!(c, Component::RootDir)).collect();
        if !is_dir {
            names.pop();
        }
        let mut path = PathBuf::new();
        for name in names {
            // `..` is left to the kernel's resolution: the configuration asked for the mount there.
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

/// Handles one name, until its directory is closed or there is nothing to do.
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
            // Another file may have the name by now, so it is checked once more.
            (false, true) => take(&found, &stat)?,
        }
    }
    Err(io::Error::other("somebody else makes it anew again and again"))
}

/// The result for one name.
enum Held {
    /// A directory in which no other user can rename anything.
    Closed,
    /// There is nothing to do from here on.
    End,
    /// Not a directory, and owned by this user.
    Foreign(u32),
}

/// Whether other users may rename its entries.
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

/// Its mode, with the sticky bit if others may write.
fn sticky(dir: &Stat) -> Mode {
    let mode = dir.st_mode & 0o7777;
    Mode::from_raw_mode(if mode & 0o022 != 0 { mode | 0o1000 } else { mode })
}

/// Changes the owner only, so that users who can write to the directory by its group or mode still can. The mode comes last, as the
/// former owner could open the directory to all until the chown.
fn take(dir: &OwnedFd, stat: &Stat) -> io::Result<()> {
    rustix::fs::chownat(dir, c"", Some(Uid::from_raw(0)), None, AtFlags::EMPTY_PATH)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
    Ok(rustix::fs::fchmod(&dir, sticky(stat))?)
}
