//! Disks for tests: one in memory that fails on request, and that shows what it would contain after a loss of power.

use std::io;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use crate::sys::lock::lock;

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// An operation on a disk.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Write(u64, Vec<u8>),
    Length(u64),
    Sync,
}

/// The next failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// This write, counted from 0, fails with ENOSPC, and all after it until the fault is removed.
    Write(u64),
    /// This sync, and all after it.
    Sync(u64),
    /// This write is executed by half; those after it succeed.
    Once(u64),
    /// This sync; the data that it should write never reaches the disk, but is read as if it had. Later ones succeed.
    Lost(u64),
}

#[derive(Debug, Default)]
struct Inner {
    bytes: Vec<u8>,
    log: Option<Vec<Op>>,
    fault: Option<Fault>,
    writes: u64,
    syncs: u64,
    failed: u64,
    /// The content of the medium, where it differs from what is read, and the operations that the next sync applies to it.
    medium: Option<(Vec<u8>, Vec<Op>)>,
}

/// A disk in memory. Clones are the same disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<Inner>>);

impl Disk {
    /// A disk with this content.
    pub(crate) fn of(bytes: Vec<u8>) -> Disk {
        Disk(Arc::new(Mutex::new(Inner { bytes, ..Inner::default() })))
    }

    /// Starts a log of operations.
    pub(crate) fn record(&self) {
        lock(&self.0).log = Some(Vec::new());
    }

    /// Returns and ends the log.
    pub(crate) fn log(&self) -> Vec<Op> {
        lock(&self.0).log.take().unwrap_or_default()
    }

    /// Number of operations in the log.
    pub(crate) fn logged(&self) -> usize {
        lock(&self.0).log.as_ref().map_or(0, Vec::len)
    }

    /// Its content as it is read.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        lock(&self.0).bytes.clone()
    }

    /// Makes it fail, counted from now.
    pub(crate) fn fail(&self, fault: Option<Fault>) {
        let mut inner = lock(&self.0);
        (inner.writes, inner.syncs) = (0, 0);
        inner.fault = fault;
        if let Some(Fault::Lost(_)) = fault {
            inner.medium = Some((inner.bytes.clone(), Vec::new()));
        }
    }

    /// Its content after a loss of power.
    pub(crate) fn medium(&self) -> Vec<u8> {
        let inner = lock(&self.0);
        inner.medium.as_ref().map_or_else(|| inner.bytes.clone(), |(medium, _)| medium.clone())
    }

    /// How often it has failed.
    pub(crate) fn failed(&self) -> u64 {
        lock(&self.0).failed
    }
}

impl Inner {
    fn may_write(&mut self) -> io::Result<()> {
        self.writes += 1;
        let error = match self.fault {
            Some(Fault::Write(from)) if self.writes > from => libc::ENOSPC,
            Some(Fault::Once(at)) if self.writes == at + 1 => libc::EIO,
            _ => return Ok(()),
        };
        self.failed += 1;
        Err(io::Error::from_raw_os_error(error))
    }

    fn may_sync(&mut self) -> io::Result<()> {
        self.syncs += 1;
        match self.fault {
            Some(Fault::Sync(from)) if self.syncs > from => {}
            Some(Fault::Lost(at)) if self.syncs == at + 1 => {
                // The kernel drops dirty pages after a failed sync.
                self.medium.iter_mut().for_each(|(_, dirty)| dirty.clear());
            }
            _ => {
                if let Some((medium, dirty)) = &mut self.medium {
                    dirty.drain(..).for_each(|op| act(medium, &op));
                }
                return Ok(());
            }
        }
        self.failed += 1;
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    fn log(&mut self, op: impl Fn() -> Op) {
        if let Some(log) = &mut self.log {
            log.push(op());
        }
        if let Some((_, dirty)) = &mut self.medium {
            dirty.push(op());
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(lock(&self.0).bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = lock(&self.0);
        let from = offset as usize;
        let found = inner.bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut inner = lock(&self.0);
        inner.may_write()?;
        inner.log(|| Op::Length(len));
        inner.bytes.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = lock(&self.0);
        inner.may_sync()?;
        inner.log(|| Op::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = lock(&self.0);
        let may = inner.may_write();
        let done = match (&may, inner.fault) {
            (Ok(()), _) => data,
            (Err(_), Some(Fault::Once(_))) => &data[..data.len() / 2],
            (Err(_), _) => return may,
        };
        inner.log(|| Op::Write(offset, done.to_vec()));
        apply(&mut inner.bytes, offset, done);
        may
    }
}

fn apply(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let from = offset as usize;
    if bytes.len() < from + data.len() {
        bytes.resize(from + data.len(), 0);
    }
    bytes[from..from + data.len()].copy_from_slice(data);
}

/// A deterministic pseudo-random number generator.
#[derive(Debug, Clone)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// A number below `sides`.
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides.max(1)
    }
}

/// What happens to the writes after the last sync in a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// All of them reached the disk.
    Nothing,
    /// None of them did.
    Unsynced,
    /// Some did, some did not, some partially.
    Torn,
}

/// Iterates over the disks that result from a loss of power after each operation of a log.
pub(crate) struct Crashes<'a> {
    log: &'a [Op],
    /// The disk at the last sync.
    synced: Vec<u8>,
    /// The index of the first operation after that.
    since: usize,
    at: usize,
}

impl<'a> Crashes<'a> {
    pub(crate) fn new(start: Vec<u8>, log: &'a [Op]) -> Crashes<'a> {
        Crashes { log, synced: start, since: 0, at: 0 }
    }

    /// Advances to the time after this many operations.
    pub(crate) fn go(&mut self, to: usize) {
        for at in self.at..to {
            if matches!(self.log[at], Op::Sync) {
                for op in &self.log[self.since..at] {
                    act(&mut self.synced, op);
                }
                self.since = at + 1;
            }
        }
        self.at = to;
    }

    /// The disk's content if the power is lost now.
    pub(crate) fn image(&self, loss: Loss, dice: &mut Dice) -> Vec<u8> {
        let mut bytes = self.synced.clone();
        for op in &self.log[self.since..self.at] {
            match (loss, op) {
                (Loss::Nothing, op) => act(&mut bytes, op),
                (Loss::Unsynced, _) => {}
                (Loss::Torn, Op::Write(offset, data)) => {
                    for (at, sector) in data.chunks(SECTOR).enumerate() {
                        if dice.roll(2) == 0 {
                            apply(&mut bytes, offset + (at * SECTOR) as u64, sector);
                        }
                    }
                }
                // A file that grew may lack its new content, and a truncation may or may not have happened.
                (Loss::Torn, op) => {
                    if dice.roll(2) == 0 {
                        act(&mut bytes, op);
                    }
                }
            }
        }
        bytes
    }
}

fn act(bytes: &mut Vec<u8>, op: &Op) {
    match op {
        Op::Write(offset, data) => apply(bytes, *offset, data),
        Op::Length(length) => bytes.resize(*length as usize, 0),
        Op::Sync => {}
    }
}
