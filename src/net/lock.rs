//! A lock, so that one process at a time changes a network; programs that it started keep holding the lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::fs::{FlockOperation, MemfdFlags};
use rustix::io::Errno;

use crate::sys::owned::OwnDir;

/// How long other processes may hold it (a few calls of plugins, each with its deadline), and the pause between two attempts.
const PATIENCE: Duration = Duration::from_mins(5);
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The network is locked until this is dropped and all programs have ended that have the file as their standard input.
#[derive(Debug)]
pub(super) struct Locked {
    file: File,
    cancel: Arc<AtomicBool>,
}

impl Locked {
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    /// Whether the current operation was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// For a program that changes nothing and so needs no lock.
pub(super) fn nobodys() -> io::Result<Locked> {
    let file = rustix::fs::memfd_create("agentbin", MemfdFlags::CLOEXEC)?;
    Ok(Locked { file: file.into(), cancel: Arc::default() })
}

/// The error of a cancelled operation.
pub(super) fn cancelled() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "it was given up because the allocation is to end")
}

/// Creates a directory that only this user may use, and its parents.
pub(super) fn own_dir(path: &Path) -> io::Result<OwnDir> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    OwnDir::open(path)
}

/// Locks the network of this name, waiting as long as it takes.
#[cfg(test)]
pub(super) fn lock(run_dir: &Path, network: &str) -> io::Result<Locked> {
    lock_unless(run_dir, network, &Arc::default())
}

/// Locks the network of this name, waiting until `cancel` is set, which also cancels what is then done with it.
pub(super) fn lock_unless(run_dir: &Path, network: &str, cancel: &Arc<AtomicBool>) -> io::Result<Locked> {
    let dir = own_dir(&run_dir.join("lock"))?;
    let file = dir.lock_file(network.as_ref())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) if cancel.load(Ordering::Relaxed) => return Err(cancelled()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                // The kernel has no event for a released lock.
                rustix::io::retry_on_intr(|| rustix::event::poll(&mut [], Some(&AGAIN)))?;
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {
                let (path, minutes) = (dir.path().join(network), PATIENCE.as_secs() / 60);
                let text = format!(
                    "somebody has held the lock {} for {minutes} minutes; end that process (fuser names it; it may be a program that a \
                     plugin has left running with the plugin's standard input)",
                    path.display()
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            locked => {
                locked?;
                return Ok(Locked { file, cancel: Arc::clone(cancel) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_waits_for_what_is_not_wanted_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let held = lock(dir.path(), "x").unwrap();
        let cancel = Arc::<AtomicBool>::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| lock_unless(dir.path(), "x", &cancel));
            cancel.store(true, Ordering::Relaxed);
            assert_eq!(waiting.join().unwrap().unwrap_err().kind(), io::ErrorKind::Interrupted);
        });
        drop(held);
    }
}
