//! Descriptors registered with the event loop.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the running tokio reactor.
///
/// # Errors
/// What `epoll_ctl(2)` says; EPERM for a descriptor that cannot be polled (a regular file).
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn register(fd: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<Arc<OwnedFd>>> {
    // SAFETY: the descriptor stays open and keeps its number for as long as the returned value holds its Arc: an
    // OwnedFd closes only when the last owner drops it, and nothing else may close it.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(Into::into)
}
