//! Errors of cgroup operations.

use std::io;
use std::path::{Path, PathBuf};

/// An error of a cgroup operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no cgroup tree for tasks.
    #[error("cgroups are off: nothing usable is mounted at the cgroup root")]
    Off,
    /// A path that does not name a cgroup below a root: empty, the root itself, leaving it, or absolute elsewhere.
    #[error("{} does not name a cgroup below its root", .0.display())]
    BadPath(PathBuf),
    /// A limit whose controller is not mounted (v1) or not enabled (v2).
    #[error("the {0} controller is not available for tasks")]
    NoController(String),
    /// The kernel accepts no device program: it does not support them, or this process lacks the privilege.
    #[error("the kernel takes no rules for devices (it needs CONFIG_CGROUP_BPF, and this process root)")]
    NoDeviceRules(#[source] io::Error),
    /// The requested cores are reserved, do not exist, or are the last ones for tasks without a reservation.
    #[error("cannot reserve {wanted}: {free} of the cores {} can be reserved, as one stays for tasks without cores of \
             their own", if .all.is_empty() { "of this machine".to_owned() } else { .all.to_string() })]
    Cores {
        /// The requested cores.
        wanted: String,
        /// How many are still free.
        free: usize,
        /// All cores that tasks may use.
        all: crate::spec::CpuSet,
    },
    /// The device is not a disk whose use can be limited.
    #[error("cannot limit the use of {}: {problem}", path.display())]
    Disk {
        /// The device.
        path: PathBuf,
        /// The cause.
        problem: String,
    },
    /// A call on a file or directory failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was being done, as a verb.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused a value.
    #[error("cannot write {value:?} to {}", path.display())]
    Write {
        /// The value.
        value: String,
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file does not have the documented format.
    #[error("{} does not read as expected: {text:?}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its text, or the line that was not understood.
        text: String,
    },
    /// The cgroup was given by the host and may hold other processes: they must not be killed.
    #[error("cgroup {} was given by the host, its processes are not ours", .0.display())]
    HostGiven(PathBuf),
    /// The cgroup holds process 1 or this process, which a kill would end.
    #[error("cgroup {} holds process {pid}, which must not be killed", path.display())]
    Protected {
        /// The cgroup.
        path: PathBuf,
        /// The process.
        pid: i32,
    },
    /// Processes that had not ended by the deadline; 0 is one outside our pid namespace.
    #[error("processes {pids:?} in cgroup {} did not end before the deadline", path.display())]
    Survivors {
        /// The cgroup.
        path: PathBuf,
        /// The processes.
        pids: Vec<i32>,
    },
    /// Some directories of the cgroup could not be removed; every failure is listed.
    #[error("cannot remove the cgroup: {}", list(.0))]
    Remove(Vec<Error>),
}

/// Result of this module's functions.
pub type Result<T> = std::result::Result<T, Error>;

fn list(errors: &[Error]) -> String {
    let one = |e: &Error| match std::error::Error::source(e) {
        Some(cause) => format!("{e}: {cause}"),
        None => e.to_string(),
    };
    errors.iter().map(one).collect::<Vec<_>>().join("; ")
}

impl Error {
    pub(super) fn io(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> Error {
        Error::Io { doing, path: path.to_owned(), source: source.into() }
    }

    pub(super) fn errno(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } | Error::Write { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// Descriptors or memory are exhausted, so a retry may succeed.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self.errno(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
    }

    /// The file or the whole cgroup does not exist; an open file of a removed cgroup returns ENODEV, and a path through a kernel
    /// file such as `tasks` ENOTDIR.
    pub(super) fn is_gone(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ENODEV | libc::ENOTDIR))
    }

    /// An error that occurs when another process creates or removes the same directories at the same time.
    pub(super) fn is_race(&self) -> bool {
        self.is_gone() || matches!(self.errno(), Some(libc::EEXIST | libc::EBUSY | libc::EAGAIN | libc::EINTR))
    }
}
