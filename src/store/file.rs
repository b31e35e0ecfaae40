//! Files next to the database: the lock, and small files that are replaced atomically.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::StoreError;
use crate::sys::owned::OwnDir;

/// Largest size of a lock file, which contains a pid, in bytes.
const PID: u64 = 16;

/// Opens the directory, which is created (0700) if it is missing; other users must not be able to write to it.
pub(super) fn own_dir(path: &Path) -> Result<OwnDir, StoreError> {
    let doing = || format!("open the data directory {}", path.display());
    match rustix::fs::mkdir(path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(StoreError::io(doing())(error.into())),
    }
    OwnDir::open(path).map_err(StoreError::io(doing()))
}

/// Exclusive use of a directory by this process. The kernel releases the lock when the process ends.
#[derive(Debug)]
pub struct DirLock {
    _file: File,
}

impl DirLock {
    /// Takes the lock of this name in the directory, and writes this process's pid to it.
    ///
    /// # Errors
    /// [`StoreError::Held`]; the errors of `open(2)`, `flock(2)` and `write(2)`.
    pub fn take(dir: &OwnDir, name: &str) -> Result<DirLock, StoreError> {
        let path = dir.path().join(name);
        let failed = |error| StoreError::io(format!("lock {}", path.display()))(error);
        let mut file = dir.lock_file(name.as_ref()).map_err(failed)?;
        match rustix::fs::flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The holder may not have written its pid yet.
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

/// What the names of files end with that [`write_atomically`] has not renamed yet, or never will.
pub(crate) const UNFINISHED: &str = ".new";

/// Writes a file of mode 0600 atomically: readers find either the old content or all of the new one, also after a loss of
/// power.
///
/// # Errors
/// The errors of `open(2)`, `write(2)`, `fsync(2)` and `rename(2)`.
pub fn write_atomically(dir: &OwnDir, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.{}{UNFINISHED}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir, &temporary, flags, Mode::RUSR | Mode::WUSR)?);
    let written = file
        .write_all(content)
        .and_then(|()| file.sync_all())
        .and_then(|()| Ok(rustix::fs::renameat(dir, &temporary, dir, name)?));
    if written.is_err() {
        // The temporary file is useless now; the earlier error is more informative than one of the removal.
        let _ = rustix::fs::unlinkat(dir, &temporary, AtFlags::empty());
    }
    written?;
    sync(dir)
}

/// The content of a file that belongs to this user alone and is not longer than `most`; if there is none, it is created with
/// `make`.
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

/// Syncs the directory's entries to the disk.
pub(super) fn sync(dir: &OwnDir) -> io::Result<()> {
    let itself = rustix::fs::openat(dir, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    Ok(rustix::fs::fsync(itself)?)
}
