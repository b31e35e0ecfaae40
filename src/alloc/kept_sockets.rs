//! The socket directory of an owner that returns after it was killed. Its executors listen there while it is dead, so the
//! directory is named after the owner and not after its process, and stays until nothing of the owner remains.
//!
//! A symlink in it names a file that exists as long as the owner may return; once that file is gone, the owner will not.

use std::fs::{DirBuilder, DirEntry};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use sha2::Digest as _;

use super::owner::{Owner, OwnerLock, RunId};
use super::text::hex;
use crate::spec::Order as _;
use crate::sys::net::is_served;
use crate::sys::owned::OwnDir;

/// The symlink to the owner's file.
const ANCHOR: &str = "owner";
/// How the names of these directories begin; the directories of processes begin with a number.
const RUN: &str = "run-";
const AGENT: &str = "agent-";
/// How long a directory may lack its symlink.
const LONGEST_START: Duration = Duration::from_mins(1);
/// How often removing a directory is retried if a helper that is just ending had created its socket in it.
const TRIES: u32 = 5;

/// The socket directory of an owner that returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptSockets {
    /// Where it is.
    pub path: PathBuf,
    /// The file that its symlink names; empty for a directory that has no symlink yet, or never will.
    anchor: PathBuf,
}

impl KeptSockets {
    /// The path of `owner`'s directory in `base`; `None` for an owner that does not return.
    #[must_use]
    pub fn path_of(base: &Path, data_dir: &Path, owner: &Owner) -> Option<PathBuf> {
        Some(base.join(match owner {
            Owner::Run { background: None } => return None,
            Owner::Run { background: Some(id) } => format!("{RUN}{}", id.as_str()),
            // Several data directories share one base.
            Owner::Agent => {
                let digest = sha2::Sha256::digest(data_dir.as_os_str().as_bytes());
                format!("{AGENT}{}", hex(&digest[..6]))
            }
        }))
    }

    /// Creates or finds the directory of an owner that returns; `base` is created if it is missing, accessible to this user only.
    ///
    /// # Errors
    /// What the file system says, and when another user may write to `base`.
    pub fn open(base: &Path, data_dir: &Path, owner: &Owner) -> io::Result<Option<KeptSockets>> {
        let path = KeptSockets::path_of(base, data_dir, owner);
        let (Some(path), Some(anchor)) = (path, owner.anchor(data_dir)) else { return Ok(None) };
        DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        let dir = OwnDir::open(base)?.make(path.file_name().unwrap_or_default(), 0o700)?;
        match rustix::fs::symlinkat(&anchor, &dir, ANCHOR) {
            Ok(()) | Err(Errno::EXIST) => Ok(Some(KeptSockets { path, anchor })),
            Err(e) => Err(e.into()),
        }
    }

    /// All of these directories in `base`; a missing `base` has none.
    ///
    /// # Errors
    /// What the file system says, and when another user may write to `base`.
    pub fn all(base: &Path) -> io::Result<Vec<KeptSockets>> {
        let own = match OwnDir::open(base) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(base)? {
            let name = entry?.file_name();
            if !name.to_str().is_some_and(|name| name.starts_with(RUN) || name.starts_with(AGENT)) {
                continue;
            }
            let Ok(dir) = own.enter(&name) else { continue };
            let anchor = match rustix::fs::readlinkat(&dir, ANCHOR, Vec::new()) {
                Ok(anchor) => PathBuf::from(std::ffi::OsStr::from_bytes(anchor.as_bytes())),
                Err(Errno::NOENT) => PathBuf::new(),
                Err(_) => continue,
            };
            found.push(KeptSockets { path: base.join(name), anchor });
        }
        found.order_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }

    /// The run that the directory belongs to, and the run's data directory.
    #[must_use]
    pub fn run(&self) -> Option<(PathBuf, RunId)> {
        let id = RunId::parse(self.path.file_name()?.to_str()?.strip_prefix(RUN)?)?;
        let data_dir = self.anchor.parent()?.parent()?.to_owned();
        let owner = Owner::Run { background: Some(id.clone()) };
        (owner.anchor(&data_dir)? == self.anchor).then_some((data_dir, id))
    }

    /// Whether its owner will certainly not return, because nothing of it remains.
    ///
    /// # Errors
    /// What the file system says.
    pub fn is_abandoned(&self) -> io::Result<bool> {
        if self.anchor.as_os_str().is_empty() {
            // Its owner creates the symlink next, unless it was killed in between.
            let made = self.path.symlink_metadata().and_then(|made| made.modified())?;
            return Ok(made.elapsed().is_ok_and(|age| age > LONGEST_START));
        }
        if self.anchor.symlink_metadata().is_ok() {
            return Ok(false);
        }
        // Its data directory may be visible only in another mount namespace, where it lives.
        let serves = |entry: DirEntry| matches!(is_served(&entry.path()), Ok(true));
        if std::fs::read_dir(&self.path).into_iter().flatten().flatten().any(serves) {
            return Ok(false);
        }
        // The owner creates its lock before the directory, and its file after it.
        match self.run() {
            Some((data_dir, id)) => {
                let owner = Owner::Run { background: Some(id) };
                match OwnerLock::is_held(&data_dir, &owner) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
                    held => held.map(|held| !held),
                }
            }
            None => Ok(true),
        }
    }

    /// Removes the directory with the sockets in it; a missing directory is not an error.
    ///
    /// # Errors
    /// What the file system says; a directory that contains anything else stays.
    pub fn remove(&self) -> io::Result<()> {
        let gone = |e: &io::Error| e.kind() == io::ErrorKind::NotFound;
        let mut tries = TRIES;
        loop {
            let entries = match std::fs::read_dir(&self.path) {
                Err(e) if gone(&e) => return Ok(()),
                other => other?,
            };
            let dir = match OwnDir::open(&self.path) {
                Err(e) if gone(&e) => return Ok(()),
                other => other?,
            };
            for entry in entries {
                let entry = entry?;
                if entry.file_type().is_ok_and(|t| t.is_socket()) || entry.file_name() == ANCHOR {
                    match rustix::fs::unlinkat(&dir, entry.file_name(), AtFlags::empty()) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
            }
            match std::fs::remove_dir(&self.path) {
                Err(e) if gone(&e) => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty && tries > 0 => tries -= 1,
                other => return other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::alloc::owner::RunFile;

    #[test]
    fn a_directory_stays_as_long_as_its_owner_may_come_back() {
        let (base, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let base = base.path().join("sockets");
        assert_eq!(KeptSockets::all(&base).unwrap(), []);
        assert_eq!(KeptSockets::open(&base, data.path(), &Owner::default()).unwrap(), None);
        let id = RunId::random();
        let owner = Owner::Run { background: Some(id.clone()) };
        let lock = OwnerLock::take(data.path(), &owner).unwrap().unwrap();
        let sockets = KeptSockets::open(&base, data.path(), &owner).unwrap().unwrap();
        assert!(!sockets.is_abandoned().unwrap(), "its owner is just beginning");
        let file = RunFile::new(id.clone(), "job", &sockets.path, serde_json::Value::Null);
        file.write(data.path()).unwrap();
        drop(lock);
        assert_eq!(KeptSockets::all(&base).unwrap(), std::slice::from_ref(&sockets));
        assert_eq!(sockets.run(), Some((data.path().to_owned(), id.clone())));
        assert!(!sockets.is_abandoned().unwrap());
        drop(UnixListener::bind(sockets.path.join("x")).unwrap());
        RunFile::remove(data.path(), &id).unwrap();
        let served = UnixListener::bind(sockets.path.join("served")).unwrap();
        assert!(!sockets.is_abandoned().unwrap(), "it lives where its data directory is visible");
        drop(served);
        assert!(sockets.is_abandoned().unwrap());
        sockets.remove().unwrap();
        sockets.remove().unwrap();
        assert_eq!(KeptSockets::all(&base).unwrap(), []);

        let agent = KeptSockets::open(&base, data.path(), &Owner::Agent).unwrap().unwrap();
        assert_eq!(KeptSockets::open(&base, data.path(), &Owner::Agent).unwrap().unwrap(), agent);
        assert!(agent.run().is_none() && agent.is_abandoned().unwrap());
        drop(OwnerLock::take(data.path(), &Owner::Agent).unwrap());
        assert!(!agent.is_abandoned().unwrap(), "the agent of this data directory may come back");
    }
}
