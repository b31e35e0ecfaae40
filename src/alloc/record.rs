//! The record of an allocation: written before anything is made, so that whoever comes after a crash knows what is ours.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::FlockOperation;

use crate::spec::{AllocId, ProcessId};
use crate::sys::lock::lock;
use crate::sys::mutant;
use crate::sys::owned::{self, OwnDir};

/// The format that this program writes; a newer one is reported and left alone.
const VERSION: u32 = 1;
/// Bytes of a record, at most: some hundreds for each of its tasks.
const LONGEST: u64 = 64 << 20;

/// What an allocation owns outside its owner's memory.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    /// Format.
    pub version: u32,
    /// Allocation id; names the folder, too.
    pub alloc_id: String,
    /// Job id, for people.
    pub job: String,
    /// Group name, for people.
    pub group: String,
    /// The process that looks after the allocation.
    pub owner: ProcessId,
    /// The pid namespace (inode) in which these process ids mean something.
    pub pid_namespace: u64,
    /// Helper processes, such as executors.
    #[serde(default)]
    pub handles: Vec<Handle>,
    /// Cgroups of its tasks, relative to each hierarchy's root.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
}

/// A helper process of a task.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handle {
    /// `<alloc id>/<task>/<8 hex digits>`.
    pub task_id: String,
    /// The process.
    pub process: ProcessId,
    /// The socket that it listens on, which it cannot remove when it is killed; empty for none.
    #[serde(default)]
    pub socket: PathBuf,
}

/// Why a record cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file system.
    #[error("cannot write the allocation's record {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file system.
    #[error("cannot read the allocation's record {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Not a record, or of a newer program.
    #[error("{} is not a record that this version understands: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A task id whose allocation is not looked after by this process.
    #[error("no allocation of this process has the task {0:?}")]
    UnknownTask(String),
}

impl Record {
    /// A record owned by this process.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn new(id: &AllocId, job: &str, group: &str) -> io::Result<Record> {
        Ok(Record {
            version: VERSION,
            alloc_id: id.to_string(),
            job: job.to_owned(),
            group: group.to_owned(),
            owner: super::process::own()?,
            pid_namespace: super::process::pid_namespace()?,
            handles: Vec::new(),
            cgroups: Vec::new(),
        })
    }

    /// Reads a record and checks that it speaks of itself, and that nobody but this user, or root, can have written it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(path: &Path) -> Result<Record, RecordError> {
        let unreadable = |reason: String| RecordError::Unreadable { path: path.to_owned(), reason };
        let bytes = owned::read(path, LONGEST).map_err(|source| RecordError::Read { path: path.to_owned(), source })?;
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| unreadable(e.to_string()))?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if version != Some(u64::from(VERSION)) {
            return Err(unreadable(version.map_or("no version".to_owned(), |v| format!("version {v}"))));
        }
        let record: Record = serde_json::from_value(value).map_err(|e| unreadable(e.to_string()))?;
        if path.file_stem().and_then(|s| s.to_str()) != Some(&record.alloc_id) || record.id().is_none() {
            return Err(unreadable(format!("it speaks of allocation {:?}", record.alloc_id)));
        }
        let relative = |p: &PathBuf| p.is_relative() && p.components().all(|c| c.as_os_str() != "..");
        if let Some(bad) = record.cgroups.iter().find(|p| !relative(p) || p.as_os_str().is_empty()) {
            return Err(unreadable(format!("cgroup {:?}", bad.display())));
        }
        Ok(record)
    }

    /// The allocation's id, unless somebody has been at the file.
    #[must_use]
    pub fn id(&self) -> Option<AllocId> {
        AllocId::parse(&self.alloc_id)
    }
}

/// The records of the allocations of this process.
#[derive(Debug)]
pub struct Records {
    dir: PathBuf,
    own: Mutex<BTreeMap<String, Record>>,
}

impl Records {
    /// Records below `data_dir`.
    #[must_use]
    pub fn new(data_dir: &Path) -> Records {
        Records { dir: data_dir.join("alloc"), own: Mutex::default() }
    }

    /// Writes a new allocation's record.
    ///
    /// # Errors
    /// [`RecordError::Write`].
    pub fn create(&self, record: Record) -> Result<(), RecordError> {
        let mut own = lock(&self.own);
        self.write(&record)?;
        own.insert(record.alloc_id.clone(), record);
        Ok(())
    }

    /// Notes that a task has a helper. To be called as soon as there is one and before anybody relies on it.
    ///
    /// # Errors
    /// [`RecordError`]; the helper must be killed then.
    pub fn process_started(&self, handle: Handle) -> Result<(), RecordError> {
        self.change(&handle.task_id.clone(), |record| record.handles.push(handle))
    }

    /// Notes that the helpers of a task have ended and been waited for.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn process_ended(&self, task_id: &str) -> Result<(), RecordError> {
        self.change(task_id, |record| record.handles.retain(|h| h.task_id != task_id))
    }

    /// Forgets an allocation of which nothing is left.
    ///
    /// # Errors
    /// [`RecordError::Write`].
    pub fn remove(&self, id: &AllocId) -> Result<(), RecordError> {
        let mut own = lock(&self.own);
        own.remove(id.as_str());
        remove_record(&self.path(id.as_str()))
    }

    fn change(&self, task_id: &str, change: impl FnOnce(&mut Record)) -> Result<(), RecordError> {
        let mut own = lock(&self.own);
        let record = task_id.split('/').next().and_then(|id| own.get_mut(id));
        let record = record.ok_or_else(|| RecordError::UnknownTask(task_id.to_owned()))?;
        change(record);
        self.write(record)
    }

    fn write(&self, record: &Record) -> Result<(), RecordError> {
        let path = self.path(&record.alloc_id);
        let write = || {
            DirBuilder::new().recursive(true).mode(0o711).create(&self.dir)?;
            // What stands in a directory of somebody else's, nobody believes later.
            OwnDir::open(&self.dir)?;
            write_atomically(&path, &serde_json::to_vec_pretty(record)?)
        };
        write().map_err(|source| RecordError::Write { path: path.clone(), source })
    }

    fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

/// Removes a record; one that is gone is no error.
pub(super) fn remove_record(path: &Path) -> Result<(), RecordError> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(RecordError::Write { path: path.to_owned(), source: e }),
        _ => Ok(()),
    }
}

/// Replaces `path` as a whole: whoever is killed at whatever moment, it has the old content or the new one.
///
/// Not forced to the disk. What a record says is true of one boot only: after a power cut none of its processes, mounts
/// and cgroups exists any more, and waiting for the disk would cost each start more than everything else together.
///
/// The file that is renamed into place (`.<name>.tmp`) is locked while somebody writes it.
pub(super) fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let temporary = temporary(path);
    let mut file = open_locked(&temporary)?;
    file.set_len(0)?;
    file.write_all(content)?;
    std::fs::rename(&temporary, path)
}

/// The file that becomes `path`.
pub(super) fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.tmp"))
}

/// Opens a temporary file for itself alone. Another writer may have renamed it, or a clean-up removed it, while we waited
/// for the lock; then it is no longer the file of that name.
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

/// Removes the temporary file of a writer that died; `false` when somebody is writing it.
pub(super) fn remove_temporary(temporary: &Path) -> io::Result<bool> {
    let file = owned::open(temporary)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => std::fs::remove_file(temporary).map(|()| true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &AllocId) -> Record {
        Record { cgroups: vec![PathBuf::from("nomad.slice/x.scope")], ..Record::new(id, "job", "group").unwrap() }
    }

    #[test]
    fn a_record_follows_its_helpers_and_goes_in_the_end() {
        let data = tempfile::tempdir().unwrap();
        let id = AllocId::new(uuid::Uuid::new_v4());
        let records = Records::new(data.path());
        let task_id = format!("{id}/web/01234567");
        let helper = crate::alloc::process::own().unwrap();
        let handle = Handle { task_id: task_id.clone(), process: helper, socket: PathBuf::from("/run/x.sock") };
        assert!(matches!(records.process_started(handle.clone()), Err(RecordError::UnknownTask(_))));
        records.create(record(&id)).unwrap();
        records.process_started(handle.clone()).unwrap();
        let path = data.path().join("alloc").join(format!("{id}.json"));
        assert_eq!(Record::read(&path).unwrap().handles, [handle]);
        records.process_ended(&task_id).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record(&id));
        records.remove(&id).unwrap();
        records.remove(&id).unwrap();
        assert_eq!(std::fs::read_dir(data.path().join("alloc")).unwrap().count(), 0);
    }

    #[test]
    fn what_is_not_a_record_of_ours_is_said_to_be_unreadable() {
        let data = tempfile::tempdir().unwrap();
        let id = AllocId::new(uuid::Uuid::new_v4());
        let path = data.path().join(format!("{id}.json"));
        let good = serde_json::to_value(record(&id)).unwrap();
        let with = |key: &str, value: serde_json::Value| {
            let mut changed = good.clone();
            changed[key] = value;
            changed.to_string()
        };
        for text in [
            "{".to_owned(),
            "{}".to_owned(),
            with("version", 2.into()),
            with("alloc_id", "../../etc".into()),
            with("cgroups", serde_json::json!(["/nomad.slice"])),
            with("cgroups", serde_json::json!(["nomad/../.."])),
            with("cgroups", serde_json::json!([""])),
            with("owner", serde_json::json!(7)),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert!(matches!(Record::read(&path), Err(RecordError::Unreadable { .. })), "{text}");
        }
        std::fs::write(&path, with("future", 1.into())).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record(&id), "unknown fields of a known version are ignored");
    }
}
