use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::config::{Failure, Namespace, Step as _};

/// The namespaces of a task as they were made, whatever the task does later.
#[derive(Debug, Default)]
pub struct Namespaces(Vec<(Namespace, OwnedFd)>);

impl Namespaces {
    /// Opens these namespaces of the process `pid`.
    ///
    /// # Errors
    /// What `open(2)` of the files in `/proc/<pid>/ns` says.
    pub(super) fn open(pid: i32, wanted: &[Namespace]) -> io::Result<Namespaces> {
        wanted.iter().map(|kind| Ok((*kind, open(pid, *kind)?))).collect::<io::Result<_>>().map(Namespaces)
    }

    /// Which they are, in the order of [`Namespaces::fds`].
    #[must_use]
    pub fn kinds(&self) -> Vec<Namespace> {
        self.0.iter().map(|(kind, _)| *kind).collect()
    }

    /// Their descriptors.
    #[must_use]
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|(_, fd)| fd.as_fd()).collect()
    }

    /// The same by descriptors of their own.
    ///
    /// # Errors
    /// What `dup(2)` says.
    pub fn try_clone(&self) -> io::Result<Namespaces> {
        self.0.iter().map(|(kind, fd)| Ok((*kind, fd.try_clone()?))).collect::<io::Result<_>>().map(Namespaces)
    }

    /// The same, and the user namespace in which the process `pid` runs now.
    ///
    /// # Errors
    /// What `open(2)` and `dup(2)` say.
    pub fn with_user_of(&self, pid: i32) -> io::Result<Namespaces> {
        let mut all = self.try_clone()?;
        all.0.push((Namespace::User, open(pid, Namespace::User)?));
        Ok(all)
    }
}

fn open(pid: i32, kind: Namespace) -> io::Result<OwnedFd> {
    let name = match kind {
        Namespace::Owner | Namespace::User => "user",
        Namespace::Ipc => "ipc",
        Namespace::Pid => "pid",
        Namespace::Mount => "mnt",
    };
    let path = Path::new("/proc").join(pid.to_string()).join("ns").join(name);
    Ok(rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Moves this process, or for [`Namespace::Pid`] its children, into a namespace of the task. `setns(2)`.
pub(super) fn enter(kind: Namespace, fd: &OwnedFd) -> Result<(), Failure> {
    let (what, link) = match kind {
        Namespace::Owner | Namespace::User => ("user", LinkNameSpaceType::User),
        Namespace::Ipc => ("IPC", LinkNameSpaceType::InterProcessCommunication),
        Namespace::Pid => ("pid", LinkNameSpaceType::ProcessID),
        Namespace::Mount => ("mount", LinkNameSpaceType::Mount),
    };
    move_into_link_name_space(fd.as_fd(), Some(link)).step(|| format!("enter the task's {what} namespace"))
}
