//! The folder in which the helpers of one owner listen. A killed helper cannot remove its socket, and one that was killed
//! early has told nobody its name; so the whole folder goes with its owner, who is alive as long as he holds its lock.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// Socket paths are short (108 bytes), so the name is, too.
const PREFIX: &str = "run-";

/// A locked folder for sockets; removed when dropped.
#[derive(Debug)]
pub struct SocketDir {
    path: PathBuf,
    _lock: File,
}

impl SocketDir {
    /// Makes a folder with a fresh name in `base`, which is made where it is missing, for its owner only.
    ///
    /// # Errors
    /// What the file system says.
    pub fn create(base: &Path) -> io::Result<SocketDir> {
        DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        loop {
            let name = uuid::Uuid::new_v4().simple().to_string();
            let path = base.join(format!("{PREFIX}{}", &name[..8]));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            }
            // Until it is locked a clean-up may take it for abandoned: then it is gone when its lock is free.
            if let Some(lock) = lock(&path, FlockOperation::LockExclusive)? {
                return Ok(SocketDir { path, _lock: lock });
            }
        }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folders in `base` whose owners are dead, taken over.
    ///
    /// # Errors
    /// What the file system says; a `base` that does not exist has none.
    pub fn abandoned(base: &Path) -> io::Result<Vec<AbandonedSockets>> {
        let entries = match std::fs::read_dir(base) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) && entry.file_type()?.is_dir() {
                let path = entry.path();
                found.extend(
                    lock(&path, FlockOperation::NonBlockingLockExclusive)?
                        .map(|lock| AbandonedSockets { path, _lock: lock }),
                );
            }
        }
        Ok(found)
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        // What stays is found by the next clean-up.
        let _ = remove(&self.path);
    }
}

/// A folder of sockets whose owner is dead.
#[derive(Debug)]
pub struct AbandonedSockets {
    path: PathBuf,
    _lock: File,
}

impl AbandonedSockets {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the sockets and the folder.
    ///
    /// # Errors
    /// What the file system says; a folder in which something else lies stays.
    pub fn remove(self) -> io::Result<()> {
        remove(&self.path)
    }
}

fn remove(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            match std::fs::remove_file(entry.path()) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
    }
    std::fs::remove_dir(path)
}

/// Locks the folder of this name; `None` when somebody else has it or it is gone.
fn lock(path: &Path, how: FlockOperation) -> io::Result<Option<File>> {
    let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
    let file = match File::open(path) {
        Err(e) if gone(&e) => return Ok(None),
        other => other?,
    };
    match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, how)) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        other => other?,
    }
    match std::fs::metadata(path) {
        Ok(named) if named.ino() == file.metadata()?.ino() => Ok(Some(file)),
        Err(e) if !gone(&e) => Err(e),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_folder_goes_with_its_owner_or_after_him() {
        let base = tempfile::tempdir().unwrap();
        let below = base.path().join("agentbin");
        let (ours, other) = (SocketDir::create(&below).unwrap(), SocketDir::create(&below).unwrap());
        drop(UnixListener::bind(ours.path().join("x")).unwrap());
        assert_eq!(SocketDir::abandoned(&below).unwrap().len(), 0);
        let path = ours.path().to_owned();
        drop(ours);
        assert!(!path.exists() && other.path().exists());

        let dead = below.join("run-01234567");
        std::fs::create_dir(&dead).unwrap();
        drop(UnixListener::bind(dead.join("x")).unwrap());
        std::fs::create_dir(below.join("strange")).unwrap();
        let found = SocketDir::abandoned(&below).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(SocketDir::abandoned(&below).unwrap().len(), 0, "taken over");
        for f in found {
            f.remove().unwrap();
        }
        assert!(!dead.exists() && below.join("strange").exists() && other.path().exists());
        assert_eq!(SocketDir::abandoned(&base.path().join("none")).unwrap().len(), 0);
    }
}
