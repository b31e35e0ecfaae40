//! A network namespace that lives as long as a file.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::lock::own_dir;
use super::{Error, users};
use crate::sys::process::{self, flags};

/// The file of an allocation's namespace.
pub(super) fn path(run_dir: &Path, id: &str) -> PathBuf {
    run_dir.join("netns").join(id)
}

/// Makes a namespace, with its loopback up, and mounts it at the file, which must not exist.
pub(super) fn make(path: &Path) -> Result<(), Error> {
    let dir = path.parent().unwrap_or(path);
    own_dir(dir).map_err(Error::system("make the directory", dir))?;
    let open = OpenOptions::new().write(true).create_new(true).mode(0o400).custom_flags(libc::O_NOFOLLOW).open(path);
    open.map_err(Error::system("make the file", path))?;
    let made = std::thread::scope(|scope| {
        // The namespace belongs to this thread only, and ends with it unless it is mounted.
        let make = || {
            process::unshare(flags::NEW_NET)?;
            crate::sys::net::loopback_up()?;
            rustix::mount::mount_bind("/proc/thread-self/ns/net", path)?;
            Ok::<(), io::Error>(())
        };
        scope.spawn(make).join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes it panicked")))
    });
    made.or_else(|error| remove(path).and(Err(error))).map_err(Error::system("make a network namespace at", path))
}

/// Whether a namespace is mounted at the file.
pub(super) fn is_there(path: &Path) -> bool {
    /// `NSFS_MAGIC` of `<linux/magic.h>`.
    const NSFS: rustix::fs::FsWord = 0x6e73_6673;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == NSFS)
}

/// A non-blocking TCP socket in the namespace at the file, to connect to listeners in it.
///
/// # Errors
/// What `setns(2)` and `socket(2)` say.
pub fn socket_in(path: &Path, family: AddressFamily) -> io::Result<OwnedFd> {
    if !rustix::process::geteuid().is_root() {
        return users::socket(path, family);
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    enter(&open(path)?, || Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?))
}

/// The namespace at the file.
pub(super) fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

/// Does `work` in a namespace, on a thread of its own.
pub(super) fn enter<T: Send>(namespace: &OwnedFd, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        // The thread stays in the namespace, so it is used for nothing else.
        let entered = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        };
        let thread = scope.spawn(entered).join();
        thread.unwrap_or_else(|_| Err(io::Error::other("the thread in the network namespace panicked")))
    })
}

/// Does `work` in a new namespace, which ends with it, on a thread of its own.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let apart = || {
            process::unshare(flags::NEW_NET)?;
            Ok(work())
        };
        let thread = scope.spawn(apart).join();
        thread.unwrap_or_else(|_| Err(io::Error::other("the thread in the network namespace panicked")))
    })
}

/// Unmounts the namespace and removes the file; a missing one counts as removed.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    loop {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // It is not mounted (any more).
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
