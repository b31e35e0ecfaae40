//! The record of an allocation: written before anything is made, so that a clean-up after a crash knows what is ours.
//!
//! If the owner returns after it was killed, the record also says what is needed to go on with the allocation. The job, which
//! does not change, is in a file of its own next to the record, and exists as long as the record; so is what the owner itself
//! wants to find again.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use super::atomic::write_atomically;
use super::owner::Owner;
use super::ports::AllocPort;
use super::state::{Phase, State};
use crate::driver::{Dns, NetworkIsolation};
use crate::net::{Network, Status};
use crate::spec::collections::BTreeMap;
use crate::spec::json;
use crate::spec::{AllocId, Job, ProcessId};
use crate::sys::lock::lock;
use crate::sys::net::is_served;
use crate::sys::owned::{self, OwnDir};
use crate::sys::time;

/// The format versions that this program writes; a newer one is reported and left alone.
///
/// The second one has a network: a program that does not know it would remove the record, and leave the network without an
/// owner. The third one has an owner that returns: a program that does not know it would kill the tasks that the owner wants
/// back.
const VERSION: u32 = 1;
const VERSION_WITH_NETWORK: u32 = 2;
const VERSION_TO_RESTORE: u32 = 3;
/// The format version of the file with the job.
const JOB_VERSION: u32 = 1;
/// The extension of that file, which lies next to the record.
const JOB: &str = "job";
/// The extension of the file with what the allocation's owner keeps of it, which lies there, too.
const KEPT: &str = "kept";
/// Most bytes of a record: some hundreds for each of its tasks.
const LONGEST: u64 = 64 << 20;

/// What an allocation owns outside of its owner's memory.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    /// Format.
    pub version: u32,
    /// Allocation id; names the directory, too.
    pub alloc_id: String,
    /// Job id, for people.
    pub job: String,
    /// Group name, for people.
    pub group: String,
    /// The process that supervises the allocation.
    pub owner: ProcessId,
    /// The pid namespace (inode) in which these process ids are valid.
    pub pid_namespace: u64,
    /// Helper processes, such as executors.
    #[serde(default)]
    pub handles: Vec<Handle>,
    /// Cgroups of its tasks, relative to each hierarchy's root.
    #[serde(default)]
    pub cgroups: Vec<PathBuf>,
    /// The network that the group's tasks share, or what may exist of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// What its owner needs to take it over again; `None` for an owner that does not return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Restore>,
}

/// What is needed to go on with an allocation, besides its job.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Restore {
    /// The owner that returns for it.
    pub owner: Owner,
    /// Its index in the group, from 0.
    pub index: u32,
    /// Nomad's name of the allocation.
    pub name: String,
    /// When it was made.
    pub created: SystemTime,
    /// Its ports.
    pub ports: Vec<AllocPort>,
    /// Its owner chose the ports and manages them.
    pub ports_are_assigned: bool,
    /// The network that the group's tasks share, with its status.
    pub network: Option<(NetworkIsolation, Status)>,
    /// The name servers of its tasks.
    pub dns: Option<Dns>,
    /// Whether a stop was requested.
    pub stopping: bool,
    /// Whether all of its steps have been done; before that no task was started.
    pub is_set_up: bool,
    /// Its tasks, in the order of the job.
    pub(super) tasks: Vec<State>,
}

#[derive(serde::Serialize)]
struct JobToWrite<'a> {
    version: u32,
    job: &'a Job,
}

#[derive(serde::Deserialize)]
struct JobRead {
    version: u32,
    job: Job,
}

/// A helper process of a task.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handle {
    /// `<alloc id>/<task>/<8 hex digits>`.
    pub task_id: String,
    /// The process.
    pub process: ProcessId,
    /// The socket on which it listens, which a killed helper cannot remove; empty if it has none.
    #[serde(default)]
    pub socket: PathBuf,
}

/// The record of an allocation.
pub(super) fn record_path(data_dir: &Path, id: &str) -> PathBuf {
    data_dir.join("alloc").join(format!("{id}.json"))
}

/// Why a record cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file cannot be written.
    #[error("cannot write the allocation's record {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read the allocation's record {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is not a record, or a newer program wrote it.
    #[error("{} is not a record that this version understands: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The id of a task whose allocation is not supervised by this process.
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
            owner: time::own()?,
            pid_namespace: time::pid_namespace()?,
            handles: Vec::new(),
            cgroups: Vec::new(),
            network: None,
            restore: None,
        })
    }

    /// The same for an owner that returns.
    #[must_use]
    pub fn restorable(self, restore: Restore) -> Record {
        Record { version: VERSION_TO_RESTORE, restore: Some(restore), ..self }
    }

    /// The owner of the allocation.
    #[must_use]
    pub fn owned_by(&self) -> Owner {
        self.restore.as_ref().map(|restore| restore.owner.clone()).unwrap_or_default()
    }

    /// Whether its processes run in another pid namespace, so that they can neither be found nor killed from here: a namespace that
    /// certainly exists, or one in which an executor still serves its socket.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn is_elsewhere(&self) -> io::Result<bool> {
        if self.owner.boot_id != time::boot_id()? || self.pid_namespace == time::pid_namespace()? {
            return Ok(false);
        }
        let serves = |handle: &Handle| matches!(is_served(&handle.socket), Ok(true));
        Ok(time::is_namespace_seen(self.pid_namespace)? || self.handles.iter().any(serves))
    }

    /// Reads a record. Checks that its content matches its file name, and that only this user or root can have written it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(path: &Path) -> Result<Record, RecordError> {
        let unreadable = |reason: String| RecordError::Unreadable { path: path.to_owned(), reason };
        let bytes = owned::read(path, LONGEST).map_err(|source| RecordError::Read { path: path.to_owned(), source })?;
        let value: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| unreadable(e.to_string()))?;
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        let known = [VERSION, VERSION_WITH_NETWORK, VERSION_TO_RESTORE];
        if !known.into_iter().any(|known| version == Some(u64::from(known))) {
            return Err(unreadable(version.map_or("no version".to_owned(), |v| format!("version {v}"))));
        }
        let record: Record = json::from_value(&value).map_err(|e| unreadable(e.to_string()))?;
        if path.file_stem().and_then(|s| s.to_str()) != Some(&record.alloc_id) || record.id().is_none() {
            return Err(unreadable(format!("it names allocation {:?}", record.alloc_id)));
        }
        let relative = |p: &PathBuf| p.is_relative() && p.components().all(|c| c.as_os_str() != "..");
        if let Some(bad) = record.cgroups.iter().find(|p| !relative(p) || p.as_os_str().is_empty()) {
            return Err(unreadable(format!("cgroup {:?}", bad.display())));
        }
        if record.network.as_ref().is_some_and(|network| !network.is_of(&record.alloc_id)) {
            return Err(unreadable("its network is another allocation's".to_owned()));
        }
        Ok(record)
    }

    /// Reads the job of the allocation with this record, below `data_dir`.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn job(&self, data_dir: &Path) -> Result<Job, RecordError> {
        Record::read_job(data_dir, &self.alloc_id)
    }

    /// Reads the job that an allocation was started with; `None` where it was not kept, as its owner does not return.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn job_of(data_dir: &Path, alloc: &AllocId) -> Result<Option<Job>, RecordError> {
        match Record::read_job(data_dir, alloc.as_str()) {
            Err(RecordError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn read_job(data_dir: &Path, alloc: &str) -> Result<Job, RecordError> {
        let path = data_dir.join("alloc").join(alloc).with_extension(JOB);
        let unreadable = |reason: String| RecordError::Unreadable { path: path.clone(), reason };
        let bytes = owned::read(&path, LONGEST).map_err(|source| RecordError::Read { path: path.clone(), source })?;
        let read: JobRead = json::from_slice(&bytes).map_err(|e| unreadable(e.to_string()))?;
        if read.version != JOB_VERSION {
            return Err(unreadable(format!("version {}", read.version)));
        }
        Ok(read.job)
    }

    /// Whether a stop of the allocation was requested.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.restore.as_ref().is_some_and(|restore| restore.stopping)
    }

    /// Whether its tasks have ended, and none is to run again: an agent keeps such an allocation until it is collected.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let Some(Restore { tasks, .. }) = &self.restore else { return false };
        !tasks.is_empty() && tasks.iter().all(|task| task.phase == Phase::Dead && !task.anew)
    }

    /// The allocation's id; `None` if the file was tampered with.
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

    /// The same, with the job, for an owner that returns. A process that is killed before the job is written has started no task.
    ///
    /// # Errors
    /// [`RecordError::Write`].
    pub fn create_with_job(&self, record: Record, job: &Job) -> Result<(), RecordError> {
        let path = self.path(&record.alloc_id).with_extension(JOB);
        self.create(record)?;
        let bytes = json::to_vec(&JobToWrite { version: JOB_VERSION, job });
        let written = bytes.map_err(io::Error::from).and_then(|bytes| write_atomically(&path, &bytes));
        written.map_err(|source| RecordError::Write { path, source })
    }

    /// Keeps bytes of the owner of an allocation next to its record, with which they are removed. Not synced to disk either.
    ///
    /// # Errors
    /// [`RecordError::Write`].
    pub fn keep(&self, id: &AllocId, bytes: &[u8]) -> Result<(), RecordError> {
        self.replace(&self.path(id.as_str()).with_extension(KEPT), bytes)
    }

    /// What the owner of an allocation keeps of it; `None` if that is nothing.
    ///
    /// # Errors
    /// [`RecordError::Read`], also if another user than this one or root can have written it.
    pub fn kept(&self, id: &AllocId) -> Result<Option<Vec<u8>>, RecordError> {
        let path = self.path(id.as_str()).with_extension(KEPT);
        match owned::read(&path, LONGEST) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(RecordError::Read { path, source }),
        }
    }

    /// Takes over the record of an allocation that another process has made.
    ///
    /// # Errors
    /// [`RecordError::Write`].
    pub fn adopt(&self, mut record: Record) -> Result<(), RecordError> {
        let own = || io::Result::Ok((time::own()?, time::pid_namespace()?));
        let error = |source| RecordError::Write { path: self.path(&record.alloc_id), source };
        (record.owner, record.pid_namespace) = own().map_err(error)?;
        self.create(record)
    }

    /// The records below this data directory that belong to the agent, and those that are not understood.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn owned_by_agent(&self) -> io::Result<Vec<Result<Record, RecordError>>> {
        self.owned_by(&Owner::Agent)
    }

    /// The records below this data directory that belong to an owner, and those that are not understood.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn owned_by(&self, owner: &Owner) -> io::Result<Vec<Result<Record, RecordError>>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let is_record = path.extension().is_some_and(|end| end == "json")
                && path.file_stem().and_then(|name| name.to_str()).and_then(AllocId::parse).is_some();
            paths.extend(is_record.then_some(path));
        }
        paths.sort();
        let read = paths.iter().map(|path| Record::read(path));
        Ok(read.filter(|record| record.as_ref().map_or(true, |record| record.owned_by() == *owner)).collect())
    }

    /// Reads the record of an allocation; `None` if there is none.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn read(&self, id: &str) -> Result<Option<Record>, RecordError> {
        match Record::read(&self.path(id)) {
            Err(RecordError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Saves what its owner needs to take it over again; nothing is written if nothing has changed.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn save(&self, id: &AllocId, change: impl FnOnce(&mut Restore)) -> Result<(), RecordError> {
        self.change(id.as_str(), |record| {
            if let Some(restore) = &mut record.restore {
                change(restore);
            }
        })
    }

    /// Records that a task has been started, perhaps with a helper, and what an owner that returns needs. To be called right after
    /// the start, and before anything depends on it.
    ///
    /// # Errors
    /// [`RecordError`]; the caller must then kill what was started.
    pub(super) fn task_started(
        &self,
        task_id: &str,
        helper: Option<Handle>,
        tasks: impl FnOnce() -> Vec<State>,
    ) -> Result<(), RecordError> {
        self.change(task_id, |record| {
            record.handles.extend(helper);
            if let Some(restore) = &mut record.restore {
                restore.tasks = tasks();
            }
        })
    }

    /// Records that the helpers of a task have ended and been reaped, and what an owner that returns needs.
    ///
    /// # Errors
    /// [`RecordError`].
    pub(super) fn task_ended(&self, task_id: &str, tasks: impl FnOnce() -> Vec<State>) -> Result<(), RecordError> {
        self.change(task_id, |record| {
            record.handles.retain(|h| h.task_id != task_id);
            if let Some(restore) = &mut record.restore {
                restore.tasks = tasks();
            }
        })
    }

    /// The recorded helpers of an allocation.
    pub(super) fn helpers(&self, id: &AllocId) -> Vec<Handle> {
        lock(&self.own).get(id.as_str()).map(|record| record.handles.clone()).unwrap_or_default()
    }

    /// Records that a task has a helper, for an owner that does not return. To be called right after the helper is started, and
    /// before anything depends on it.
    ///
    /// # Errors
    /// [`RecordError`]; the caller must then kill the helper.
    pub fn process_started(&self, handle: Handle) -> Result<(), RecordError> {
        self.task_started(&handle.task_id.clone(), Some(handle), Vec::new)
    }

    /// Records the network of an allocation. To be called before anything of it is made, and when more is known of it.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn network_made(&self, id: &AllocId, network: Network) -> Result<(), RecordError> {
        self.change(id.as_str(), |record| {
            (record.version, record.network) = (record.version.max(VERSION_WITH_NETWORK), Some(network));
        })
    }

    /// Removes the record of an allocation of which nothing remains.
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
        let before = record.clone();
        change(record);
        if *record == before { Ok(()) } else { self.write(record) }
    }

    fn write(&self, record: &Record) -> Result<(), RecordError> {
        let path = self.path(&record.alloc_id);
        // Records of owners that return are long and are written often.
        let to_bytes = if record.restore.is_some() { json::to_vec } else { json::to_vec_pretty };
        let bytes =
            to_bytes(record).map_err(|error| RecordError::Write { path: path.clone(), source: error.into() })?;
        self.replace(&path, &bytes)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
        let write = || {
            DirBuilder::new().recursive(true).mode(0o711).create(&self.dir)?;
            // A record in a directory of another user would not be trusted later, so it is not written there.
            OwnDir::open(&self.dir)?;
            write_atomically(path, bytes)
        };
        write().map_err(|source| RecordError::Write { path: path.to_owned(), source })
    }

    /// The file of an allocation's record.
    pub(super) fn path(&self, id: &str) -> PathBuf {
        self.dir.join(format!("{id}.json"))
    }
}

/// Removes a record, and what lies next to it; a missing record is not an error.
pub(super) fn remove_record(path: &Path) -> Result<(), RecordError> {
    for path in [path.with_extension(JOB), path.with_extension(KEPT), path.to_owned()] {
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(RecordError::Write { path, source }),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
impl Restore {
    /// Of an agent's allocation that is set up.
    pub(super) fn of_agent(tasks: Vec<State>) -> Restore {
        Restore {
            owner: Owner::Agent,
            index: 0,
            name: String::new(),
            created: SystemTime::now(),
            ports: Vec::new(),
            ports_are_assigned: false,
            network: None,
            dns: None,
            stopping: false,
            is_set_up: true,
            tasks,
        }
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
        let helper = time::own().unwrap();
        let handle = Handle { task_id: task_id.clone(), process: helper, socket: PathBuf::from("/run/x.sock") };
        let started = |handle: &Handle| records.process_started(handle.clone());
        assert!(matches!(started(&handle), Err(RecordError::UnknownTask(_))));
        records.create(record(&id)).unwrap();
        started(&handle).unwrap();
        let path = data.path().join("alloc").join(format!("{id}.json"));
        assert_eq!(Record::read(&path).unwrap().handles, [handle]);
        records.task_ended(&task_id, Vec::new).unwrap();
        assert_eq!(Record::read(&path).unwrap(), record(&id));
        assert_eq!(records.kept(&id).unwrap(), None);
        records.keep(&id, b"decided").unwrap();
        assert_eq!(records.kept(&id).unwrap().as_deref(), Some(&b"decided"[..]));
        records.remove(&id).unwrap();
        records.remove(&id).unwrap();
        assert_eq!(std::fs::read_dir(data.path().join("alloc")).unwrap().count(), 0);
    }

    #[test]
    fn an_allocation_has_ended_when_none_of_its_tasks_runs_again() {
        let with = |tasks: Vec<State>| record(&AllocId::new(uuid::Uuid::new_v4())).restorable(Restore::of_agent(tasks));
        let of = |phase: Phase, anew: bool| State { phase, anew, ..State::default() };
        let dead = of(Phase::Dead, false);
        assert!(with(vec![dead.clone(), dead.clone()]).has_ended());
        for other in [of(Phase::Running, false), of(Phase::Waiting, false), of(Phase::Dead, true)] {
            assert!(!with(vec![dead.clone(), other.clone()]).has_ended(), "{other:?}");
        }
        assert!(!with(Vec::new()).has_ended(), "they are not known yet");
        assert!(!record(&AllocId::new(uuid::Uuid::new_v4())).has_ended());
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
            with("version", 4.into()),
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
