//! One read buffer for all pumps, that exists only while data flows.
//!
//! An executor is idle most of its life; 256 KiB kept per stream would be most of its memory. A pump leases the buffer when its
//! pipe becomes readable and releases it when the pipe is drained; with the last lease the pages are returned to the kernel.

use std::sync::{Mutex, MutexGuard};

use crate::sys::lock::lock;
use crate::sys::pages::Pages;

/// Bytes read from a pipe in one system call, at most.
pub(super) const SIZE: usize = 256 * 1024;

/// The requested capacity of a task's pipe: enough for a writer of 1 GB/s during one pause.
pub(super) const PIPE_SIZE: usize = 1024 * 1024;

struct Shared {
    pages: Option<Pages>,
    leases: usize,
}

static SHARED: Mutex<Shared> = Mutex::new(Shared { pages: None, leases: 0 });

fn shared() -> MutexGuard<'static, Shared> {
    // The buffer's content is undefined anyway, so a panic while it was locked does no harm.
    lock(&SHARED)
}

/// Keeps the buffer alive between two reads.
pub(super) struct Lease(());

impl Lease {
    pub(super) fn new() -> Lease {
        shared().leases += 1;
        Lease(())
    }

    /// Lends the buffer to `f`. Its content is undefined; the threads of a process that has several take turns.
    #[expect(clippy::unused_self, reason = "the lease is the permission")]
    pub(super) fn with<T>(&mut self, f: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut shared = shared();
        if shared.pages.is_none() {
            shared.pages = Pages::map(SIZE).ok();
        }
        match &mut shared.pages {
            Some(pages) => f(pages),
            // Out of memory: slow, but the task's output is not lost.
            None => f(&mut [0; 4096]),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut shared = shared();
        shared.leases -= 1;
        if shared.leases == 0 {
            shared.pages = None;
        }
    }
}
