//! Files beside the database: the lock, and small files that are replaced in one step.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::StoreError;
use crate::sys::owned::OwnDir;

/// Bytes of a lock's file: a pid.
const PID: u64 = 16;

/// The directory, made (0700) where it is missing; nobody else may write to it.
pub(super) fn own_dir(path: &Path) -> Result<OwnDir, StoreError> {
    let doing = || format!("open the data directory {}", path.display());
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(StoreError::io(doing())(error.into())),
    }
    OwnDir::open(path).map_err(StoreError::io(doing()))
}

/// That this process has a directory for itself. The kernel gives it up with the process.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the lock of this name in the directory, and writes down who has it.
    ///
    /// # Errors
    /// [`StoreError::Held`]; what `open(2)`, `flock(2)` and `write(2)` say.
    pub fn take(dir: &OwnDir, name: &str) -> Result<DirLock, StoreError> {
        let path = dir.path().join(name);
        let failed = |error| StoreError::io(format!("lock {}", path.display()))(error);
        let mut file = dir.lock_file(name.as_ref()).map_err(failed)?;
        match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // Who is just writing it has not written it yet.
                let pid = file.take(PID).read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(StoreError::Held { path, pid });
            }
            Err(error) => return Err(failed(error.into())),
        }
        let pid = format!("{}\n", std::process::id());
        file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(pid.as_bytes())).map_err(failed)?;
        Ok(DirLock { _file: file })
    }
}

/// Writes a file of mode 0600 so that whoever reads it finds the old content or all of the new one, also after a loss of
/// power.
///
/// # Errors
/// What `open(2)`, `write(2)`, `fsync(2)` and `rename(2)` say.
pub fn write_atomically(dir: &OwnDir, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.{}.new", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(rustix::fs::renameat(dir, &temporary, dir, name)?));
    if written.is_err() {
        // What is left of it is of no use to anybody; the error before says more than one of this.
        let _ = rustix::fs::unlinkat(dir, &temporary, AtFlags::empty());
    }
    written?;
    sync(dir)
}

/// The content of a file that is this user's alone and not longer than `most`; where there is none, `make` is written to it.
///
/// # Errors
/// As [`write_atomically`] and [`OwnDir::read`].
pub fn read_or_make(dir: &OwnDir, name: &str, most: u64, make: impl FnOnce() -> Vec<u8>) -> io::Result<Vec<u8>> {
    match dir.read(name.as_ref(), most) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let content = make();
            write_atomically(dir, name, &content)?;
            Ok(content)
        }
        other => other,
    }
}

/// That the directory's entries are on the disk.
pub(super) fn sync(dir: &OwnDir) -> io::Result<()> {
    let itself = rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fsync(itself)?)
}
