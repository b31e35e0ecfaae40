//! The own executable, opened once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{CWD, Mode, OFlags};

static OWN: OnceLock<OwnedFd> = OnceLock::new();

/// A descriptor of the file that this process was started from.
///
/// The first call opens it (roles do that before anything else), so that a later replacement or removal of the file
/// changes nothing: every role that this process starts is this very program.
///
/// # Errors
/// Whatever `open(2)` of `/proc/self/exe` says: most likely that `/proc` is not mounted.
pub fn own() -> io::Result<BorrowedFd<'static>> {
    if let Some(fd) = OWN.get() {
        return Ok(fd.as_fd());
    }
    let fd = rustix::fs::openat(CWD, "/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(OWN.get_or_init(|| fd).as_fd())
}
