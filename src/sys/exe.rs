//! The own executable, opened once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{Access, AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags};

const PATH: &str = "/proc/self/exe";

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
    let fd = rustix::fs::openat(CWD, PATH, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ok(OWN.get_or_init(|| fd).as_fd())
}

/// Whether this process has the right to write to its own executable, which includes root's right to write to anything.
#[must_use]
pub fn is_writable() -> bool {
    !matches!(
        rustix::fs::accessat(CWD, PATH, Access::WRITE_OK, AtFlags::EACCESS),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::ROFS | rustix::io::Errno::PERM)
    )
}

/// A copy of the own executable in memory that nobody can change any more. See `memfd_create(2)`.
///
/// # Errors
/// Those of opening and reading the file; EACCES where `vm.memfd_noexec` forbids programs in memory.
pub fn sealed_copy() -> io::Result<OwnedFd> {
    let mut file = std::fs::File::open(PATH)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_EXEC is what makes it a program, on kernels that know the difference (6.3).
    let copy = rustix::fs::memfd_create(env!("CARGO_PKG_NAME"), flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(env!("CARGO_PKG_NAME"), flags))?;
    let mut copy = std::fs::File::from(copy);
    io::copy(&mut file, &mut copy)?;
    rustix::fs::fcntl_add_seals(&copy, SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE)?;
    Ok(copy.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// A1 of the attack list.
    #[test]
    fn a01_a_sealed_copy_is_the_program_and_cannot_be_changed() {
        let copy = sealed_copy().unwrap();
        let mut file = std::fs::File::from(copy.try_clone().unwrap());
        io::Seek::rewind(&mut file).unwrap();
        let (mut text, mut own) = (Vec::new(), Vec::new());
        file.read_to_end(&mut text).unwrap();
        std::fs::File::open(PATH).unwrap().read_to_end(&mut own).unwrap();
        assert!(text == own);
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&copy));
        let again = std::fs::File::options().write(true).open(path);
        assert!(again.is_err() || again.unwrap().write_all(b"x").is_err());
    }
}
