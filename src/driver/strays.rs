//! Notes of executors that were started and not yet handed over: a driver that dies in the middle of a start leaves one
//! behind that nobody knows of, and that the next start of the same task finds by its note.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::TaskConfig;
use crate::plugin::Reattach;
use crate::spec::json;
use crate::sys::owned;

/// Bytes of a note, at most.
const LONGEST: u64 = 1 << 20;

/// The note of one task, in the directory of the executors' sockets.
#[derive(Debug, Clone)]
pub(super) struct Note(PathBuf);

impl Note {
    pub(super) fn of(dir: &Path, task: &TaskConfig) -> Note {
        // By its directory, as its cgroup: not every host says the allocation's id.
        let alloc = task.alloc_dir.file_name().unwrap_or_default().to_string_lossy();
        Note(dir.join(format!("{alloc}.{}.json", task.name).replace('/', "_")))
    }

    /// Beside the log of the task's executor.
    pub(super) fn beside(log_file: &Path) -> Note {
        Note(log_file.with_extension("json"))
    }

    /// The name of what the task's executor writes beside it.
    pub(super) fn record(&self) -> PathBuf {
        self.0.with_extension("task")
    }

    /// Another writer of the same note does not exist: an agent starts a task once at a time.
    pub(super) fn write(&self, executor: &Reattach) -> io::Result<()> {
        let temporary = self.0.with_extension("tmp");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let mut file: File = options.open(&temporary)?;
        file.write_all(&json::to_vec(executor)?)?;
        std::fs::rename(temporary, &self.0)
    }

    /// The executor that was noted last; one that cannot be read was never finished.
    pub(super) fn read(&self) -> Option<Reattach> {
        json::from_slice(&owned::read(&self.0, LONGEST).ok()?).ok()
    }

    pub(super) fn remove(&self) {
        remove(&self.0);
    }
}

/// Removes a note, or the record beside it, that may be gone already.
pub(super) fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, note = %path.display(), "cannot remove what is noted of a task");
        }
        _ => {}
    }
}
