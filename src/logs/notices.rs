//! Notices from who collects a task's output to who follows it in another process: one counter for each stream.
//!
//! A follower that gets them needs no inotify, whose instances are few per user, and which the kernel closes only after a grace
//! period of up to 20 ms: a process that has one ends that much later.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// Added for each file that is opened. What a wake finds below it is the number of writes.
const OPENED: u64 = 1 << 32;

/// The counters of a task's streams. `eventfd(2)`. Clones refer to the same counters.
#[derive(Debug, Clone)]
pub struct Notices {
    /// Of stdout.
    pub stdout: Notice,
    /// Of stderr.
    pub stderr: Notice,
}

/// The counter of one stream.
#[derive(Debug, Clone)]
pub struct Notice(Arc<OwnedFd>);

impl PartialEq for Notices {
    /// Whether they refer to the same counters.
    fn eq(&self, other: &Notices) -> bool {
        Arc::ptr_eq(&self.stdout.0, &other.stdout.0) && Arc::ptr_eq(&self.stderr.0, &other.stderr.0)
    }
}

impl Notices {
    /// New counters.
    ///
    /// # Errors
    /// What `eventfd(2)` says.
    pub fn new() -> io::Result<Notices> {
        let counter =
            || Ok::<_, io::Error>(Notice(Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)));
        Ok(Notices { stdout: counter()?, stderr: counter()? })
    }

    /// Those that this process was started with, by their numbers; `None` if there is no such descriptor. Call it once.
    #[must_use]
    pub fn inherited(numbers: [RawFd; 2]) -> Option<Notices> {
        let [stdout, stderr] = numbers.map(|number| {
            let fd = (number > 2).then(|| crate::sys::process::inherited_fd(number)).flatten()?;
            // No program that this process starts gets it.
            rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC).ok()?;
            Some(Notice(Arc::new(fd)))
        });
        Some(Notices { stdout: stdout?, stderr: stderr? })
    }

    /// The numbers under which a child inherits them.
    #[must_use]
    pub fn numbers(&self) -> [RawFd; 2] {
        [self.stdout.0.as_raw_fd(), self.stderr.0.as_raw_fd()]
    }

    /// Both descriptors.
    #[must_use]
    pub fn descriptors(&self) -> [Arc<OwnedFd>; 2] {
        [Arc::clone(&self.stdout.0), Arc::clone(&self.stderr.0)]
    }
}

impl Notice {
    /// Something was written to the files.
    pub(super) fn tell(&self) {
        self.add(1);
    }

    /// There may be another file, or another of the same name.
    pub(super) fn tell_of_file(&self) {
        self.add(OPENED);
    }

    fn add(&self, count: u64) {
        // It fails only where the counter is full, and then the follower has been told often enough.
        let _ = rustix::io::write(&*self.0, &count.to_ne_bytes());
    }

    /// Takes the notices since the last call. Whether a file may have been added.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there was none.
    pub(super) fn take(counter: &OwnedFd) -> io::Result<bool> {
        let mut count = [0; 8];
        rustix::io::retry_on_intr(|| rustix::io::read(counter, &mut count))?;
        Ok(u64::from_ne_bytes(count) >= OPENED)
    }

    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.0)
    }
}
