//! Opens and enters the namespaces of a running task.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::config::{Failure, Namespace, Step as _};
use crate::spec::OwnNamespaces;
use crate::sys;
use crate::sys::process::{self, flags};

/// The namespaces of a task as they were made, even if its processes move to others later.
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

    /// Opens the namespaces of the process `pid`, if they are still the ones that [`Namespaces::identities`] returned earlier;
    /// `None` if the process has moved.
    ///
    /// # Errors
    /// What `open(2)` of the files in `/proc/<pid>/ns` says.
    pub fn reopen(pid: i32, told: &[(Namespace, u64)]) -> io::Result<Option<Namespaces>> {
        let kinds: Vec<Namespace> = told.iter().map(|(kind, _)| *kind).collect();
        let namespaces = Namespaces::open(pid, &kinds)?;
        Ok(Some(namespaces.identities()?).filter(|found| found == told).map(|_| namespaces))
    }

    /// The inode of each, which identifies it until the next reboot.
    ///
    /// # Errors
    /// What `fstat(2)` says.
    pub fn identities(&self) -> io::Result<Vec<(Namespace, u64)>> {
        self.0.iter().map(|(kind, fd)| Ok((*kind, rustix::fs::fstat(fd)?.st_ino))).collect()
    }

    /// Their kinds, in the order of [`Namespaces::fds`].
    #[must_use]
    pub fn kinds(&self) -> Vec<Namespace> {
        self.0.iter().map(|(kind, _)| *kind).collect()
    }

    /// Their descriptors.
    #[must_use]
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().map(|(_, fd)| fd.as_fd()).collect()
    }

    /// A copy with duplicated descriptors.
    ///
    /// # Errors
    /// What `dup(2)` says.
    pub fn try_clone(&self) -> io::Result<Namespaces> {
        self.0.iter().map(|(kind, fd)| Ok((*kind, fd.try_clone()?))).collect::<io::Result<_>>().map(Namespaces)
    }

    /// Makes namespaces for this process, and opens them before another process can enter them. The cgroup namespace was made
    /// earlier; `cgroup` says whether this process made it.
    pub(super) fn make(own: OwnNamespaces, cgroup: bool) -> Result<Namespaces, Failure> {
        let asked = [(own.uts, Namespace::Uts, flags::NEW_UTS), (own.network, Namespace::Network, flags::NEW_NET)];
        let mut made = Vec::new();
        if cgroup {
            let fd =
                open_file(Path::new("/proc/self/ns/cgroup")).step(|| "open the new cgroup namespace".to_owned())?;
            made.push((Namespace::Cgroup, fd));
        }
        for (_, kind, flag) in asked.iter().filter(|(asked, ..)| *asked) {
            let (name, _) = names(*kind);
            process::unshare(*flag)
                .step(|| format!("make a {name} namespace (isolation = \"nomad\" does without one)"))?;
            let path = Path::new("/proc/self/ns").join(name);
            made.push((*kind, open_file(&path).step(|| format!("open the new {name} namespace"))?));
        }
        if own.network {
            sys::net::loopback_up().step(|| "bring the task's interface lo up".to_owned())?;
        }
        Ok(Namespaces(made))
    }

    /// Appends a namespace, which is entered after all others.
    pub(super) fn push(&mut self, kind: Namespace, fd: OwnedFd) {
        self.0.push((kind, fd));
    }

    /// Appends the namespaces of `others`.
    #[must_use]
    pub fn and(mut self, others: Namespaces) -> Namespaces {
        self.0.extend(others.0);
        self
    }

    /// A copy, with the user namespace in which the process `pid` runs now.
    ///
    /// # Errors
    /// What `open(2)` and `dup(2)` say.
    pub fn with_user_of(&self, pid: i32) -> io::Result<Namespaces> {
        let mut all = self.try_clone()?;
        all.0.push((Namespace::User, open(pid, Namespace::User)?));
        Ok(all)
    }
}

/// Its file name in `/proc/<pid>/ns`, and its type for `setns(2)`.
const fn names(kind: Namespace) -> (&'static str, LinkNameSpaceType) {
    match kind {
        Namespace::Owner | Namespace::User => ("user", LinkNameSpaceType::User),
        Namespace::Ipc => ("ipc", LinkNameSpaceType::InterProcessCommunication),
        Namespace::Pid => ("pid", LinkNameSpaceType::ProcessID),
        Namespace::Mount => ("mnt", LinkNameSpaceType::Mount),
        Namespace::Uts => ("uts", LinkNameSpaceType::HostNameAndNISDomainName),
        Namespace::Cgroup => ("cgroup", LinkNameSpaceType::ControlGroup),
        Namespace::Network => ("net", LinkNameSpaceType::Network),
    }
}

fn open_file(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

pub(super) fn open(pid: i32, kind: Namespace) -> io::Result<OwnedFd> {
    open_file(&Path::new("/proc").join(pid.to_string()).join("ns").join(names(kind).0))
}

/// Moves this process, or for [`Namespace::Pid`] its children, into a namespace of the task with `setns(2)`.
pub(super) fn enter(kind: Namespace, fd: &OwnedFd) -> Result<(), Failure> {
    let (name, link) = names(kind);
    move_into_link_name_space(fd.as_fd(), Some(link)).step(|| format!("enter the task's {name} namespace"))
}
