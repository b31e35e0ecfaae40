//! Files that are replaced as a whole.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::sys::{mutant, owned};

/// Replaces `path` atomically: if a process is killed at any point, the file has either its old content or the new one.
///
/// Not synced to disk. A record is valid for one boot only: after a power failure none of the processes, mounts and cgroups in
/// it exists any more, and fsync would cost each start more than everything else together.
///
/// The file that is renamed into place (`.<name>.tmp`) is locked while a process writes it.
pub(super) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    let mut file = open_locked(&temporary)?;
    file.set_len(0)?;
    file.write_all(content)?;
    std::fs::rename(&temporary, path)
}

/// The temporary file that is renamed to `path`.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Opens a temporary file with an exclusive lock. While waiting for the lock, another writer may have renamed the file or a
/// clean-up may have removed it; then the descriptor no longer belongs to the file of that name.
fn open_locked(temporary: &Path) -> io::Result<File> {
    loop {
        let mode = if mutant::on("b14") { 0o666 } else { 0o600 };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(mode).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = options.open(temporary)?;
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        match std::fs::metadata(temporary) {
            Ok(named) if named.ino() == file.metadata()?.ino() => return Ok(file),
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
}

/// Removes the temporary file of a writer that died; `false` when a process is writing it.
pub(super) fn remove_temporary(temporary: &Path) -> io::Result<bool> {
    let file = owned::open(temporary)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => std::fs::remove_file(temporary).map(|()| true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}
