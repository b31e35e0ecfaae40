//! The owners of allocations: a run whose tasks end with it, or an owner that takes its allocations over again after it was
//! killed. An owner of the second kind holds a lock on a file as long as its process lives; the kernel releases it.
//!
//! ```text
//! <data>/agent.lock         the agent of this data directory
//! <data>/runs/<id>.lock     the supervisor of a run in the background
//! <data>/runs/<id>.json     what its next supervisor needs
//! ```

use std::fs::{DirBuilder, File};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::Timespec;
use rustix::fs::{AtFlags, FlockOperation};
use rustix::io::Errno;

use super::atomic::write_atomically;
use crate::spec::AllocId;
use crate::spec::Order as _;
use crate::spec::json;
use crate::sys::owned::{self, OwnDir};

/// The directory of background runs, below the data directory.
const RUNS: &str = "runs";
/// The agent's lock file, in the data directory.
const AGENT_LOCK: &str = "agent.lock";
/// The format version of a run's file.
const VERSION: u32 = 1;
/// Most bytes of a run's file.
const LONGEST: u64 = 64 << 20;
/// Most bytes of a lock file that are read: a process id.
const LONGEST_HOLDER: u64 = 32;
/// How long a lock is waited for: its previous holder may be just dying, or a child that it has forked may still be about to
/// exec.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts; the kernel has no event for a released lock.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// The id of a background run: 16 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RunId(String);

impl RunId {
    /// A new random id.
    #[must_use]
    pub fn random() -> RunId {
        RunId(crate::sys::random::uuid().simple().to_string()[..16].to_owned())
    }

    /// Parses an id.
    #[must_use]
    pub fn parse(text: &str) -> Option<RunId> {
        let is_digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        (text.len() == 16 && text.bytes().all(is_digit)).then(|| RunId(text.to_owned()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RunId {
    type Error = String;

    fn try_from(text: String) -> Result<RunId, String> {
        RunId::parse(&text).ok_or_else(|| format!("{text:?} is not an id of a run"))
    }
}

impl From<RunId> for String {
    fn from(id: RunId) -> String {
        id.0
    }
}

/// The owner of a process's allocations.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// `agentbin run`.
    Run {
        /// The id of a background run, whose next supervisor takes its allocations over. In the foreground, tasks end with their
        /// run.
        background: Option<RunId>,
    },
    /// The agent of the data directory.
    Agent,
}

impl Default for Owner {
    fn default() -> Owner {
        Owner::Run { background: None }
    }
}

impl Owner {
    /// Whether the owner takes its allocations over again after it was killed.
    #[must_use]
    pub const fn returns(&self) -> bool {
        !matches!(self, Owner::Run { background: None })
    }

    /// The directory and the name of its lock file.
    fn lock(&self, data_dir: &Path) -> Option<(PathBuf, String)> {
        match self {
            Owner::Run { background: None } => None,
            Owner::Run { background: Some(id) } => Some((data_dir.join(RUNS), format!("{}.lock", id.as_str()))),
            Owner::Agent => Some((data_dir.to_owned(), AGENT_LOCK.to_owned())),
        }
    }

    /// A file that exists as long as the owner may return: what it keeps outside of the data directory refers to this file.
    #[must_use]
    pub fn anchor(&self, data_dir: &Path) -> Option<PathBuf> {
        match self {
            Owner::Run { background: Some(id) } => Some(RunFile::path(data_dir, id)),
            _ => self.lock(data_dir).map(|(dir, name)| dir.join(name)),
        }
    }
}

/// Why ownership cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// Another process holds the lock.
    #[error("{} is held by process {holder}: end that process first", path.display())]
    Held {
        /// The lock.
        path: PathBuf,
        /// The holder's process, according to the lock file.
        holder: String,
    },
    /// The lock file cannot be used.
    #[error("cannot lock {}", path.display())]
    Io {
        /// The lock.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The lock of an owner, held until this value is dropped or its process ends.
#[derive(Debug)]
pub struct OwnerLock {
    dir: OwnDir,
    name: String,
    _file: File,
}

impl OwnerLock {
    /// Takes the lock of an owner that has one. Waits some seconds for a holder that is just dying.
    ///
    /// # Errors
    /// [`OwnerError`].
    pub fn take(data_dir: &Path, owner: &Owner) -> Result<Option<OwnerLock>, OwnerError> {
        OwnerLock::take_within(data_dir, owner, PATIENCE)
    }

    /// The same, with another timeout.
    fn take_within(data_dir: &Path, owner: &Owner, patience: Duration) -> Result<Option<OwnerLock>, OwnerError> {
        let Some((place, name)) = owner.lock(data_dir) else { return Ok(None) };
        let path = place.join(&name);
        let error = |source| OwnerError::Io { path: path.clone(), source };
        let dir = DirBuilder::new().recursive(true).mode(0o700).create(&place).and_then(|()| OwnDir::open(&place));
        let dir = dir.map_err(error)?;
        let deadline = Instant::now() + patience;
        loop {
            let mut file = dir.lock_file(name.as_ref()).map_err(error)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    rustix::io::retry_on_intr(|| rustix::event::poll(&mut [], Some(&AGAIN)))
                        .map_err(|e| error(e.into()))?;
                    continue;
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let mut holder = String::new();
                    let _unreadable = (&file).take(LONGEST_HOLDER).read_to_string(&mut holder);
                    return Err(OwnerError::Held { path, holder: holder.trim().to_owned() });
                }
                Err(e) => return Err(error(e.into())),
            }
            // Its previous holder may have removed the file meanwhile.
            let named = rustix::fs::statat(&dir, name.as_str(), AtFlags::SYMLINK_NOFOLLOW);
            if !named.is_ok_and(|named| file.metadata().is_ok_and(|own| own.ino() == named.st_ino)) {
                continue;
            }
            let written = file.set_len(0).and_then(|()| file.rewind());
            written.and_then(|()| writeln!(file, "{}", std::process::id())).map_err(error)?;
            return Ok(Some(OwnerLock { dir, name, _file: file }));
        }
    }

    /// Whether the owner lives, which is so if its lock is held.
    ///
    /// # Errors
    /// What the file system says; also when another user may write to the lock file.
    pub fn is_held(data_dir: &Path, owner: &Owner) -> io::Result<bool> {
        let Some((place, name)) = owner.lock(data_dir) else { return Ok(false) };
        let file = match OwnDir::open(&place).and_then(|dir| dir.file(name.as_ref())) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            other => other?,
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes the file, because the owner will not return.
    pub fn remove(self) {
        // A remaining file blocks no other process: the lock is released with the descriptor.
        let _ = rustix::fs::unlinkat(&self.dir, self.name.as_str(), AtFlags::empty());
    }
}

/// The data of a background run for its next supervisor. The file contains secrets from the run's command line.
#[derive(Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct RunFile {
    version: u32,
    /// Its id.
    pub id: RunId,
    /// Job id, for people.
    pub job: String,
    /// The ids of its allocations, in order.
    pub allocs: Vec<String>,
    /// Where its executors and its control socket listen.
    pub sockets: PathBuf,
    /// When it began.
    pub began_at: SystemTime,
    /// Whether its tasks have been started and this was reported to the caller: from then on the next supervisor takes the run over
    /// if this one is killed.
    pub announced: bool,
    /// Settings that only the command line interprets.
    pub settings: serde_json::Value,
}

impl std::fmt::Debug for RunFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunFile").field("id", &self.id).field("job", &self.job).finish_non_exhaustive()
    }
}

impl RunFile {
    /// A run whose start has not been reported yet.
    #[must_use]
    pub fn new(id: RunId, job: &str, sockets: &Path, settings: serde_json::Value) -> RunFile {
        let (job, sockets) = (job.to_owned(), sockets.to_owned());
        let (allocs, began_at) = (Vec::new(), SystemTime::now());
        RunFile { version: VERSION, id, job, allocs, sockets, began_at, announced: false, settings }
    }

    fn path(data_dir: &Path, id: &RunId) -> PathBuf {
        data_dir.join(RUNS).join(format!("{}.json", id.as_str()))
    }

    /// The owner that the file belongs to.
    #[must_use]
    pub fn owner(&self) -> Owner {
        Owner::Run { background: Some(self.id.clone()) }
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// What the file system says, and when another user may write to the directory.
    pub fn write(&self, data_dir: &Path) -> io::Result<()> {
        let dir = data_dir.join(RUNS);
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        OwnDir::open(&dir)?;
        write_atomically(&RunFile::path(data_dir, &self.id), &json::to_vec(self)?)
    }

    /// Reads the file of this run; `None` if it does not exist.
    ///
    /// # Errors
    /// What the file system says; when another user may have written the file; `InvalidData` for a file that this version does not
    /// understand.
    pub fn read(data_dir: &Path, id: &RunId) -> io::Result<Option<RunFile>> {
        let wrong = |why: String| {
            let path = RunFile::path(data_dir, id);
            io::Error::new(io::ErrorKind::InvalidData, format!("{} is not understood: {why}", path.display()))
        };
        let dir = OwnDir::open(&data_dir.join(RUNS));
        let bytes = match dir.and_then(|dir| dir.read(format!("{}.json", id.as_str()).as_ref(), LONGEST)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| wrong(e.to_string()))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            version => return Err(wrong(version.map_or("no version".to_owned(), |v| format!("version {v}")))),
        }
        let file: RunFile = json::from_value(&value).map_err(|e| wrong(e.to_string()))?;
        let known = file.allocs.iter().all(|id| AllocId::parse(id).is_some());
        if file.id == *id && known { Ok(Some(file)) } else { Err(wrong("it names another run".to_owned())) }
    }

    /// The ids of all runs that have files, including those whose supervisors died when they had created only a lock.
    ///
    /// # Errors
    /// What the file system says, and when another user may write to the directory.
    pub fn all(data_dir: &Path) -> io::Result<Vec<RunId>> {
        let dir = data_dir.join(RUNS);
        match OwnDir::open(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(&dir)? {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.trim_start_matches('.').split('.').next());
            ids.extend(id.and_then(RunId::parse));
        }
        ids.order_by(Ord::cmp);
        ids.dedup();
        Ok(ids)
    }

    /// Removes the file and the lock of a run that has ended. Returns whether they were removed: not while a process holds the
    /// lock.
    ///
    /// # Errors
    /// What the file system says.
    pub fn remove_ended(data_dir: &Path, id: &RunId) -> io::Result<bool> {
        // Held until the end, because the run may be just beginning.
        match OwnerLock::take_within(data_dir, &Owner::Run { background: Some(id.clone()) }, Duration::ZERO) {
            Ok(lock) => {
                RunFile::remove(data_dir, id).map(|()| lock.into_iter().for_each(OwnerLock::remove)).map(|()| true)
            }
            Err(OwnerError::Held { .. }) => Ok(false),
            Err(OwnerError::Io { source, .. }) => Err(source),
        }
    }

    /// Removes the file; the caller holds the run's lock. A missing file is not an error.
    ///
    /// # Errors
    /// What the file system says.
    pub fn remove(data_dir: &Path, id: &RunId) -> io::Result<()> {
        let dir = match OwnDir::open(&data_dir.join(RUNS)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for name in [format!("{}.json", id.as_str()), format!(".{}.json.tmp", id.as_str())] {
            match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Whether a run without a living supervisor is to be taken over by a next one.
    ///
    /// # Errors
    /// As [`RunFile::read`].
    pub fn is_wanted(data_dir: &Path, id: &RunId) -> io::Result<bool> {
        match RunFile::read(data_dir, id) {
            // The file of a newer version is for that version to take over.
            Err(e) if e.kind() == io::ErrorKind::InvalidData || owned::is_untrusted(&e) => Ok(true),
            found => Ok(found?.is_some_and(|file| file.announced)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_and_is_free_when_it_is_dropped() {
        let data = tempfile::tempdir().unwrap();
        for owner in [Owner::Agent, Owner::Run { background: Some(RunId::random()) }] {
            assert!(!OwnerLock::is_held(data.path(), &owner).unwrap());
            let held = OwnerLock::take(data.path(), &owner).unwrap().unwrap();
            assert!(OwnerLock::is_held(data.path(), &owner).unwrap());
            let refused = OwnerLock::take(data.path(), &owner).unwrap_err().to_string();
            assert!(refused.contains(&format!("process {}", std::process::id())), "{refused}");
            drop(held);
            assert!(!OwnerLock::is_held(data.path(), &owner).unwrap());
            let held = OwnerLock::take(data.path(), &owner).unwrap().unwrap();
            held.remove();
            assert!(!owner.lock(data.path()).map(|(dir, name)| dir.join(name)).unwrap().exists());
        }
        assert!(OwnerLock::take(data.path(), &Owner::default()).unwrap().is_none());
    }

    #[test]
    fn a_runs_file_is_found_by_its_id_and_only_an_announced_one_is_wanted() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(RunFile::all(data.path()).unwrap(), []);
        let id = RunId::random();
        assert!(!RunFile::is_wanted(data.path(), &id).unwrap());
        let mut file = RunFile::new(id.clone(), "job", Path::new("/run/x"), serde_json::json!({ "a": 1 }));
        file.write(data.path()).unwrap();
        assert!(!RunFile::is_wanted(data.path(), &id).unwrap());
        file.announced = true;
        file.write(data.path()).unwrap();
        assert!(RunFile::is_wanted(data.path(), &id).unwrap());
        assert_eq!(RunFile::read(data.path(), &id).unwrap(), Some(file.clone()));
        assert_eq!(RunFile::all(data.path()).unwrap(), std::slice::from_ref(&id));
        let mode = RunFile::path(data.path(), &id).metadata().unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);

        let newer = RunFile { version: VERSION + 1, ..file };
        newer.write(data.path()).unwrap();
        assert!(RunFile::read(data.path(), &id).is_err());
        assert!(RunFile::is_wanted(data.path(), &id).unwrap(), "it is for a newer version to take it back");
        // The holder of the lock still needs both files.
        let lock = OwnerLock::take(data.path(), &newer.owner()).unwrap();
        assert!(!RunFile::remove_ended(data.path(), &id).unwrap());
        assert!(RunFile::path(data.path(), &id).exists() && OwnerLock::is_held(data.path(), &newer.owner()).unwrap());
        drop(lock);
        assert!(RunFile::remove_ended(data.path(), &id).unwrap());
        assert_eq!(RunFile::all(data.path()).unwrap(), [], "nor a lock");
        RunFile::remove(data.path(), &id).unwrap();
        assert_eq!(RunFile::read(data.path(), &id).unwrap(), None);
        for wrong in ["", "0123", "../../../../etc", "0123456789abcdeg"] {
            assert_eq!(RunId::parse(wrong), None, "{wrong}");
        }
    }
}
