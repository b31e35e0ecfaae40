//! A task that outlives its executor: the record of it for the next executor, and how that one takes the task over.
//!
//! The record is written once the task runs, before the launch is answered to the host. The executor that owns the task holds a
//! lock on it: a second executor that is started for the same task finds it locked. An executor that is killed before it writes the
//! record leaves a task that is only known by its cgroup, through which the host ends it.
//!
//! The task also holds a read end of its output pipes, so that its writes wait for the next executor instead of failing with
//! SIGPIPE. The pipe has no name; it is found by its inode among the descriptors of the task's processes.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{ExecutorError, NewLimits};
use crate::container::{Ids, Namespace};
use crate::spec::json;
use crate::spec::{HostIds, ProcessId};
use crate::sys;
use crate::sys::process::WaitStatus;
use crate::sys::{mutant, owned};

const VERSION: u32 = 1;
/// Longest record, in bytes.
const LONGEST: u64 = 1 << 20;
/// How long to wait for the previous executor to end after it was killed.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often its lock is tried meanwhile; there is no event for that.
const AGAIN: Duration = Duration::from_millis(20);

/// The record of a running task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// Its main process.
    pub(super) process: ProcessId,
    /// The user that it became.
    pub(super) host_ids: Option<Ids>,
    /// The host ids of its user namespace.
    #[serde(default)]
    pub(super) id_range: Option<HostIds>,
    /// OOM kills counted in its cgroup that belong to an earlier run.
    pub(super) oom_baseline: u64,
    /// The inodes of its namespaces.
    pub(super) namespaces: Vec<(Namespace, u64)>,
    /// Inodes of the pipes that its executor collects from; `None` if another process collects the output.
    pub(super) pipes: Option<[u64; 2]>,
    /// What was changed of its limits since its launch.
    #[serde(default)]
    pub(super) limits: NewLimits,
}

/// A record whose lock this process holds as long as this value lives.
#[derive(Debug)]
pub(super) struct Held {
    path: PathBuf,
    _lock: File,
}

impl Held {
    /// Writes the record anew, with these limits.
    pub(super) fn add_limits(&mut self, new: &NewLimits) -> io::Result<()> {
        let mut record: Record = json::from_slice(&owned::bounded(owned::open(&self.path)?, LONGEST)?)?;
        record.limits = record.limits.and_then(new);
        *self = record.write(&self.path)?;
        Ok(())
    }

    /// Removes the record: no executor owns the task any more.
    pub(super) fn remove(self) {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, record = %self.path.display(), "cannot remove the record of a task");
            }
            _ => {}
        }
    }
}

impl Record {
    pub(super) fn new(pid: i32) -> io::Result<Record> {
        let process = sys::time::process_id(pid)?;
        let (host_ids, namespaces) = (None, Vec::new());
        Ok(Record {
            version: VERSION,
            process,
            host_ids,
            id_range: None,
            oom_baseline: 0,
            namespaces,
            pipes: None,
            limits: NewLimits::default(),
        })
    }

    /// Writes the record atomically, and holds its lock from the start.
    pub(super) fn write(&self, path: &Path) -> io::Result<Held> {
        let temporary = path.with_extension("new");
        let _of_one_that_was_killed = std::fs::remove_file(&temporary);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(&json::to_vec(self)?)?;
        std::fs::rename(&temporary, path)?;
        Ok(Held { path: path.to_owned(), _lock: file })
    }

    /// Reads and locks the record. Waits a few seconds for an executor that is about to end.
    pub(super) async fn take(path: &Path) -> Result<(Record, Held), ExecutorError> {
        let cannot =
            |problem: String| ExecutorError::System(format!("take over the task of {}: {problem}", path.display()));
        // Refuses links, FIFOs, which would block, and files of other users.
        let opened = if mutant::on("d67") { File::open(path) } else { owned::open(path) };
        let file = opened.map_err(|e| cannot(e.to_string()))?;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK || tokio::time::Instant::now() > deadline {
                return Err(cannot(format!("another executor has it ({error})")));
            }
            tokio::time::sleep(AGAIN).await;
        }
        let text = owned::bounded(file.try_clone().map_err(|e| cannot(e.to_string()))?, LONGEST);
        let text = text.map_err(|e| cannot(e.to_string()))?;
        let record: Record = json::from_slice(&text).map_err(|e| cannot(e.to_string()))?;
        if record.version != VERSION {
            return Err(cannot(format!("version {} of it is not known here", record.version)));
        }
        Ok((record, Held { path: path.to_owned(), _lock: file }))
    }
}

/// Opens exactly this process, if it is still running.
pub(super) fn open(process: &ProcessId) -> io::Result<OwnedFd> {
    let gone = || io::Error::new(io::ErrorKind::NotFound, format!("process {} has ended", process.pid));
    let pidfd = match sys::process::open_pidfd(process.pid) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Err(gone()),
        other => other?,
    };
    // The descriptor was opened first, so the pid cannot be reused by another process any more.
    if sys::time::is_alive(process)? { Ok(pidfd) } else { Err(gone()) }
}

/// The exit status of a process that is not our child: from `/proc` as long as its parent has not reaped it, and afterwards through
/// its pidfd, where the kernel keeps it.
pub(super) fn status_of(pidfd: &OwnedFd, pid: i32, start_ticks: u64) -> Option<WaitStatus> {
    // The kernel also shows 0 to processes without permission to read the value.
    let believable = |raw: &i32| *raw != 0 || rustix::process::geteuid().is_root();
    let unreaped = sys::processes::raw_status_of_ended(pid, start_ticks).ok().flatten();
    let unreaped = unreaped.filter(believable).map(WaitStatus::from_raw);
    unreaped.or_else(|| sys::process::status_of_reaped(pidfd.as_fd()))
}

/// Opens the pipe that `end` writes to for reading and writing.
pub(super) fn both_ends(end: &OwnedFd) -> io::Result<OwnedFd> {
    let name = format!("/proc/self/fd/{}", end.as_raw_fd());
    Ok(rustix::fs::open(name, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// A read end of the pipe with this inode, opened through one of these processes; `None` when none of them has it open.
pub(super) fn find_pipe(pids: &[i32], inode: u64) -> Option<OwnedFd> {
    let wanted = PathBuf::from(format!("pipe:[{inode}]"));
    let of = |pid: &i32| {
        let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let path = entries.map(|e| e.path()).find(|p| std::fs::read_link(p).is_ok_and(|to| to == wanted))?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        // The process may have closed and reused this descriptor meanwhile.
        (inode_of(&pipe).ok()? == inode).then_some(pipe)
    };
    pids.iter().find_map(of)
}

pub(super) fn inode_of(fd: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(fd)?.st_ino)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[tokio::test]
    async fn n5_a_record_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("task");
        assert!(Record::take(&path).await.is_err());
        let own = i32::try_from(std::process::id()).unwrap();
        let record = Record { oom_baseline: 3, pipes: Some([1, 2]), ..Record::new(own).unwrap() };
        let held = record.write(&path).unwrap();
        tokio::time::pause();
        let refused = Record::take(&path).await.unwrap_err().to_string();
        assert!(refused.contains("another executor has it"), "{refused}");
        tokio::time::resume();
        drop(held);
        let (read, mut held) = Record::take(&path).await.unwrap();
        assert_eq!(read, record);
        // Limits that change are added to it, and its holder stays.
        for (cpu_shares, pids_max) in [(Some(1), None), (Some(2), Some(3))] {
            held.add_limits(&NewLimits { cpu_shares, pids_max, ..NewLimits::default() }).unwrap();
        }
        tokio::time::pause();
        assert!(Record::take(&path).await.is_err());
        tokio::time::resume();
        drop(held);
        let (read, held) = Record::take(&path).await.unwrap();
        let limits = NewLimits { cpu_shares: Some(2), pids_max: Some(3), ..NewLimits::default() };
        assert_eq!(read, Record { limits, ..record.clone() });
        held.remove();
        assert!(!path.exists());
        std::fs::write(&path, serde_json::to_vec(&Record { version: 2, ..record }).unwrap()).unwrap();
        assert!(Record::take(&path).await.unwrap_err().to_string().contains("version 2"));
    }

    #[test]
    fn n5_a_pipe_is_found_by_its_inode_and_outlives_its_reader() {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let inode = inode_of(&read).unwrap();
        let both = both_ends(&write).unwrap();
        drop(write);
        let script = "read go; echo alive; read go";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(both).spawn().unwrap();
        drop(read);
        let pid = i32::try_from(child.id()).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        // Not `inode + 1`, which may be the inode of its stdin.
        assert!(find_pipe(&[pid], u64::MAX).is_none());
        let found = find_pipe(&[i32::MAX, pid], inode).unwrap();
        let mut line = [0; 6];
        rustix::event::poll(&mut [rustix::event::PollFd::new(&found, rustix::event::PollFlags::IN)], None).unwrap();
        File::from(found).read_exact(&mut line).unwrap();
        assert_eq!(&line, b"alive\n");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn n5_a_process_with_another_start_is_not_opened() {
        let own = sys::time::process_id(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(open(&own).is_ok());
        assert!(open(&ProcessId { start_ticks: own.start_ticks + 1, ..own.clone() }).is_err());
        assert!(open(&ProcessId { boot_id: "another".to_owned(), ..own }).is_err());
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let process = sys::time::process_id(i32::try_from(child.id()).unwrap()).unwrap();
        let pidfd = sys::process::open_pidfd(process.pid).unwrap();
        rustix::event::poll(&mut [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)], None).unwrap();
        assert!(open(&process).is_err());
        let told = status_of(&pidfd, process.pid, process.start_ticks).unwrap();
        assert_eq!((told.code, told.signal), (Some(7), None));
        assert!(status_of(&pidfd, process.pid, process.start_ticks + 1).is_none());
        child.wait().unwrap();
        // Only newer kernels keep the status.
        let told = status_of(&pidfd, process.pid, process.start_ticks);
        assert!(told.is_none_or(|told| told.code == Some(7)), "{told:?}");
    }
}
