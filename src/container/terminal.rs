use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::Uid;
use rustix::pty::OpenptFlags;

use super::config::{Failure, Step as _};
use crate::sys::mutant;
use crate::sys::path::Root;

/// `DEVPTS_SUPER_MAGIC` of `statfs(2)`.
const DEVPTS: rustix::fs::FsWord = 0x1cd1;

/// Both ends of a new terminal.
#[derive(Debug)]
pub struct Terminal {
    /// What is written to it is the input of the session; what is read from it is its output.
    pub master: OwnedFd,
    /// stdin, stdout and stderr of the session. Whoever reads the master keeps it open until the session's process has
    /// ended: without any slave, a read of the master says EIO also between a process's last write and the moment when
    /// the kernel's worker has carried that to the master, and for as long as nobody opens `/dev/tty` again.
    pub slave: OwnedFd,
}

/// A terminal of the host that belongs to a user, by the host's number.
///
/// # Errors
/// What `/dev/ptmx` and its `ioctl(2)` calls say.
pub fn open_terminal(owner: Option<u32>) -> io::Result<Terminal> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    finish(master, owner)
}

/// A terminal of the task in whose mount namespace this process is.
pub(super) fn open_in_task(owner: Option<u32>) -> Result<Terminal, Failure> {
    let step = || "open a terminal in the task's /dev/pts".to_owned();
    let root = Root::open(Path::new("/")).step(step)?;
    // By its real name and without links: the task may have put something else in the place of /dev/ptmx.
    let flags = OFlags::RDWR | OFlags::NOCTTY;
    let master = if mutant::on("b03") {
        root.open_in_root(Path::new("dev/ptmx"), flags, Mode::empty()).step(step)?
    } else {
        root.open_beneath(Path::new("dev/pts/ptmx"), flags, Mode::empty()).step(step)?
    };
    let stat = rustix::fs::fstat(&master).step(step)?;
    let is_ptmx = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == rustix::fs::makedev(5, 2)
        && rustix::fs::fstatfs(&master).step(step)?.f_type == DEVPTS;
    if !is_ptmx {
        return Err(Failure::new(step(), "/dev/pts/ptmx is no master of terminals"));
    }
    finish(master, owner).step(step)
}

/// The slave comes from the master itself: no name of it could be somebody else's.
fn finish(master: OwnedFd, owner: Option<u32>) -> io::Result<Terminal> {
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    if let Some(owner) = owner {
        match rustix::fs::fchown(slave.as_fd(), Some(Uid::from_raw(owner)), None) {
            // Without root it belongs to the only user there is.
            Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            result => result?,
        }
    }
    Ok(Terminal { master, slave })
}
