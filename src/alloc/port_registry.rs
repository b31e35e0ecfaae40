//! The host ports of all processes of this machine: one directory, changed under one lock.
//!
//! Each process has a file, named after it, with its ports. The ports of a dead process are free: the next process that reads
//! the directory removes the file. `recent` holds when each port was last released, so that a port is reused as late as
//! possible: connections of its previous holder may still be under way.

use std::fs::{DirBuilder, File};
use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::event::Timespec;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::sockets::Owner;
use crate::spec::IntoMap as _;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::json;
use crate::sys::owned::{self, OwnDir};
use crate::sys::time;

/// Held while the registry is read and changed.
const LOCK: &str = "lock";
/// Eight bytes for each port: nanoseconds since 1970 when it was last released, 0 for never.
const RECENT: &str = "recent";
/// A file that is being written, before it is renamed.
const NEW: &str = "new";
/// How long other processes may hold the lock, and the pause between two attempts.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// The format version of a process's file.
const VERSION: u32 = 1;
/// Longest file of a process that is read, in bytes: all ports of a machine, with long names.
const LONGEST: u64 = 64 << 20;

/// An allocated port.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Held {
    /// The host's address.
    pub ip: IpAddr,
    /// The host's port.
    pub port: u16,
    /// Its label in the job file.
    pub label: String,
    /// The job's id.
    pub job: String,
    /// The group's name.
    pub group: String,
    /// The allocation's id.
    pub alloc: String,
}

/// The content of a process's file.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Holder {
    version: u32,
    pid: i32,
    ports: Vec<Held>,
}

/// The registry as one process sees it.
#[derive(Debug)]
pub(super) struct Registry {
    dir: OwnDir,
    pid: i32,
    /// The name of this process's file.
    name: String,
    /// That file, locked as long as this process lives: the only sign of life that is visible in another pid namespace.
    file: Option<File>,
}

impl Registry {
    /// Opens the registry in `dir`, which is created if it is missing, accessible to this user only.
    ///
    /// # Errors
    /// What the file system says, and when another user may write to `dir`; when `/proc` cannot be read.
    pub fn open(dir: &Path) -> io::Result<Registry> {
        /// One process may have several files.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{number}", Owner::this()?.name());
        Ok(Registry { dir: OwnDir::open(dir)?, pid: time::own()?.pid, name, file: None })
    }

    /// Locks the registry until the returned value is dropped; waits for other processes for a limited time.
    ///
    /// # Errors
    /// What the file system says, and that another process keeps the lock.
    pub fn lock(&mut self) -> io::Result<Locked<'_>> {
        let file = self.file(LOCK, OFlags::RDWR | OFlags::CREATE)?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    // The kernel has no event for a released lock.
                    rustix::io::retry_on_intr(|| rustix::event::poll(&mut [], Some(&AGAIN)))?;
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    let (path, seconds) = (self.dir.path().join(LOCK), PATIENCE.as_secs());
                    let text = format!(
                        "another process has held the lock {} for {seconds} seconds; end that process (fuser names it)",
                        path.display()
                    );
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                locked => {
                    locked?;
                    break;
                }
            }
        }
        Ok(Locked { registry: self, _lock: file })
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR)?);
        owned::check(&file, &self.dir.path().join(name))?;
        Ok(file)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The locked registry.
#[derive(Debug)]
pub(super) struct Locked<'r> {
    registry: &'r mut Registry,
    _lock: File,
}

impl Locked<'_> {
    /// The ports of all other living processes, each with a description of the holder. Files of dead processes are removed.
    ///
    /// # Errors
    /// What the file system says; when `/proc` cannot be read. An unreadable file is skipped: whether a process listens on a port
    /// is
    /// found out by binding it.
    pub fn others(&mut self) -> io::Result<Vec<(String, Held)>> {
        let pid_namespace = time::pid_namespace()?;
        let mut held = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.registry.dir)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let owner = name.split_once('.').and_then(|(owner, _)| Owner::parse(owner));
            let Some(owner) = owner.filter(|_| name != self.registry.name) else { continue };
            let holder = self.read(name);
            if owner.is_dead(pid_namespace)? || (!owner.is_of(pid_namespace) && self.is_left(name)) {
                if let Ok(holder) = &holder {
                    self.used(&holder.ports.iter().map(|held| held.port).collect())?;
                }
                self.registry.remove(name)?;
                continue;
            }
            match holder {
                Ok(Holder { pid, ports, .. }) => {
                    held.extend(ports.into_iter().map(|port| (format!("agentbin with pid {pid}"), port)));
                }
                Err(error) => tracing::debug!(name, %error, "cannot read who has which ports"),
            }
        }
        Ok(held)
    }

    /// Whether the process that wrote the file no longer has it open.
    fn is_left(&self, name: &str) -> bool {
        let file = self.registry.dir.file(name.as_ref());
        file.is_ok_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
    }

    fn read(&self, name: &str) -> io::Result<Holder> {
        let bytes = self.registry.dir.read(name.as_ref(), LONGEST)?;
        let holder: Holder = json::from_slice(&bytes)?;
        if holder.version != VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("version {}", holder.version)));
        }
        Ok(holder)
    }

    /// When each port of a range was last released; ports that never were are missing.
    ///
    /// # Errors
    /// What the file system says.
    pub fn last_use(&self, range: &RangeInclusive<u16>) -> io::Result<BTreeMap<u16, u64>> {
        let file = match self.registry.file(RECENT, OFlags::RDONLY) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            other => other?,
        };
        let mut bytes = vec![0; (usize::from(range.end() - range.start()) + 1) * 8];
        let mut read = 0;
        while read < bytes.len() {
            match file.read_at(&mut bytes[read..], u64::from(*range.start()) * 8 + read as u64)? {
                // Ports beyond the end of the file have never been used.
                0 => break,
                more => read += more,
            }
        }
        let times = bytes.chunks_exact(8).map(|chunk| chunk.try_into().map_or(0, u64::from_le_bytes));
        Ok(range.clone().zip(times).filter(|(_, time)| *time > 0).into_map())
    }

    /// Notes that these ports are released now.
    ///
    /// # Errors
    /// What the file system says.
    pub fn used(&self, ports: &BTreeSet<u16>) -> io::Result<()> {
        let file = self.registry.file(RECENT, OFlags::RDWR | OFlags::CREATE)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX).to_le_bytes();
        ports.iter().try_for_each(|port| file.write_all_at(&now, u64::from(*port) * 8))
    }

    /// Replaces this process's ports by these.
    ///
    /// # Errors
    /// What the file system says; the previous ports remain then.
    pub fn hold(&mut self, ports: &[Held]) -> io::Result<()> {
        let Registry { dir, pid, name, file } = &*self.registry;
        if ports.is_empty() {
            if file.is_some() {
                self.registry.remove(name)?;
                self.registry.file = None;
            }
            return Ok(());
        }
        let bytes = json::to_vec(&Holder { version: VERSION, pid: *pid, ports: ports.to_vec() })?;
        let file = self.registry.file(NEW, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all_at(&bytes, 0)?;
        rustix::fs::renameat(dir, NEW, dir, name.as_str())?;
        self.registry.file = Some(file);
        Ok(())
    }
}
