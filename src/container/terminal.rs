//! Makes pseudo-terminals, on the host and in a task's root.

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
    /// stdin, stdout and stderr of the session. The reader of the master keeps it open until the session's process has ended:
    /// without any open slave, a read of the master returns EIO also between a process's last write and the moment when the
    /// kernel's worker has carried that to the master, and until a process opens `/dev/tty` again.
    pub slave: OwnedFd,
}

/// A terminal of the host, owned by this user, a host id.
///
/// # Errors
/// What `/dev/ptmx` and its `ioctl(2)` calls say.
pub fn open_terminal(owner: Option<u32>) -> io::Result<Terminal> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    finish(master, owner)
}

/// A terminal of the task whose mount namespace this process is in.
pub(super) fn open_in_task(owner: Option<u32>) -> Result<Terminal, Failure> {
    let step = || "open a terminal in the task's /dev/pts".to_owned();
    let root = Root::open(Path::new("/")).step(step)?;
    // Opened by its real name and without following links: the task may have replaced /dev/ptmx.
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

/// The slave is opened through the master, not by a name that the task could have replaced.
fn finish(master: OwnedFd, owner: Option<u32>) -> io::Result<Terminal> {
    rustix::pty::unlockpt(&master)?;
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    if let Some(owner) = owner {
        match rustix::fs::fchown(slave.as_fd(), Some(Uid::from_raw(owner)), None) {
            // Without root, the only mapped user owns it already.
            Err(rustix::io::Errno::PERM) if !rustix::process::geteuid().is_root() => {}
            result => result?,
        }
    }
    Ok(Terminal { master, slave })
}
