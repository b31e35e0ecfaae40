//! Notes of executors that were started but whose handle was not returned yet. A driver that dies during a start leaves such an
//! executor behind; the next start of the same task finds it by its note.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::TaskConfig;
use crate::plugin::Reattach;
use crate::spec::json;
use crate::sys::owned;

/// Largest size of a note, in bytes.
const LONGEST: u64 = 1 << 20;

/// The note of one task, in the directory of the executors' sockets.
#[derive(Debug, Clone)]
pub(super) struct Note(PathBuf);

impl Note {
    pub(super) fn of(dir: &Path, task: &TaskConfig) -> Note {
        // Named after its directory, as its cgroup is: not every host sends the allocation's id.
        let alloc = task.alloc_dir.file_name().unwrap_or_default().to_string_lossy();
        Note(dir.join(format!("{alloc}.{}.json", task.name).replace('/', "_")))
    }

    /// Beside the log of the task's executor.
    pub(super) fn beside(log_file: &Path) -> Note {
        Note(log_file.with_extension("json"))
    }

    /// Path of the record that the task's executor writes next to the note.
    pub(super) fn record(&self) -> PathBuf {
        self.0.with_extension("task")
    }

    /// There is only one writer of a note: an agent runs one start of a task at a time.
    pub(super) fn write(&self, executor: &Reattach) -> io::Result<()> {
        write(&self.0, &json::to_vec(executor)?)
    }

    /// The executor that was noted last; `None` for a note that cannot be read, because its write was never completed.
    pub(super) fn read(&self) -> Option<Reattach> {
        json::from_slice(&owned::read(&self.0, LONGEST).ok()?).ok()
    }

    pub(super) fn remove(&self) {
        remove(&self.0);
    }
}

/// Replaces a note, or a file next to it, which only this user can read.
pub(super) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("tmp");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let mut file: File = options.open(&temporary)?;
    file.write_all(bytes)?;
    std::fs::rename(temporary, path)
}

/// Removes a note, or the record next to it, which may be gone already.
pub(super) fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, note = %path.display(), "cannot remove what is noted of a task");
        }
        _ => {}
    }
}
