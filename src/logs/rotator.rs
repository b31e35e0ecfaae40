//! Rotated files `<base>.<n>`: one stream's output on disk, written through, never read back.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, XattrFlags};

use super::dir;
use super::journal::{Journal, Ledger, Target};
use super::notices::Notice;
use super::pack::Packing;
use super::place::Place;
use crate::spec::{LogCollection, LogKeeping, StreamCounts};
use crate::sys::mutant;
use crate::sys::path::Root;

/// If a file has less space than this left after an unfinished line, that line goes to the next file, so that lines up to this
/// length stay whole however they arrive. Files smaller than this are filled up (Nomad's rule).
const LINE_RESERVE: u64 = 32 * 1024;

/// After an outage, at most this much of a line whose start was dropped is skipped to find the next line.
const MAX_SKIP: usize = 64 * 1024;

/// How many occupied names are tried one by one before the directory is listed to find a free one.
const MAX_OCCUPIED: u64 = 100;

/// Most files deleted after one rotation; planting more of them delays their deletion, not the output.
const MAX_PURGED: usize = 1000;

/// Extended attribute of a file that begins inside a line, which began in the previous file.
const CONTINUES: &str = "user.agentbin.continues";

/// Pause between attempts to write again during an outage.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Errors of a log file.
#[derive(Debug, thiserror::Error)]
pub enum RotatorError {
    /// The base name would leave the directory.
    #[error("{0:?} is not a file name")]
    InvalidName(String),
    /// The directory does not exist, is none, or is a symlink.
    #[error("cannot open log directory {path}")]
    OpenDir {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The directory cannot be read.
    #[error("cannot list log directory {path}")]
    List {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// No file can be opened for writing.
    #[error("cannot open log file {name}")]
    OpenFile {
        /// Name in the directory.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A write to the file failed.
    #[error("cannot write log file {name}")]
    Write {
        /// Name in the directory.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl RotatorError {
    /// Whether the only problem is that the disk, or this user's quota, is full.
    fn is_full(&self) -> bool {
        let (RotatorError::OpenFile { source, .. } | RotatorError::Write { source, .. }) = self else { return false };
        matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
    }
}

impl From<RotatorError> for io::Error {
    fn from(error: RotatorError) -> io::Error {
        use RotatorError as E;
        let kind = match &error {
            E::InvalidName(_) => io::ErrorKind::InvalidInput,
            E::OpenDir { source, .. }
            | E::List { source, .. }
            | E::OpenFile { source, .. }
            | E::Write { source, .. } => source.kind(),
        };
        io::Error::new(kind, error)
    }
}

/// When to start a new file, and how many to keep. Zeros count as 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files kept; the lowest indexes beyond it are deleted after a rotation.
    pub max_files: u32,
    /// Size in bytes that no file exceeds.
    pub max_file_size_bytes: u64,
    /// How full files are kept.
    pub keeping: LogKeeping,
}

impl From<&LogCollection> for Limits {
    fn from(logs: &LogCollection) -> Limits {
        Limits { max_files: logs.max_files, max_file_size_bytes: logs.max_file_size_bytes, keeping: logs.keeping }
    }
}

/// The counts of one stream so far.
pub type Counters = StreamCounts;

/// Counters that can be read while the stream runs.
#[derive(Debug, Clone, Default)]
pub struct LiveCounters(Arc<Cells>);

#[derive(Debug, Default)]
struct Cells {
    bytes: AtomicU64,
    lines: AtomicU64,
    dropped_bytes: AtomicU64,
    dropped_lines: AtomicU64,
    rotations: AtomicU64,
    split_lines: AtomicU64,
}

impl LiveCounters {
    /// The current counts.
    #[must_use]
    pub fn get(&self) -> Counters {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Counters {
            bytes: read(&self.0.bytes),
            lines: read(&self.0.lines),
            dropped_bytes: read(&self.0.dropped_bytes),
            dropped_lines: read(&self.0.dropped_lines),
            rotations: read(&self.0.rotations),
            split_lines: read(&self.0.split_lines),
        }
    }
}

fn add(cell: &AtomicU64, n: u64) {
    cell.fetch_add(n, Ordering::Relaxed);
}

/// Writing a stream stopped or resumed; reported once per change.
#[derive(Debug)]
pub enum Change {
    /// From here on bytes are dropped and counted.
    Failed(RotatorError),
    /// Bytes reach a file again.
    Healed {
        /// Dropped in this outage.
        dropped_bytes: u64,
        /// Lines of which something was dropped in this outage.
        dropped_lines: u64,
    },
}

/// Appends one stream to rotated files.
///
/// Lines stay whole if a file can hold them (see [`Rotator::write`]). Nothing is buffered: what `write` took is in the page
/// cache, and survives a kill of this process. Every name is opened beneath the directory without following symlinks, because
/// the task may write there too; a name taken by anything but a plain file with one link is skipped.
#[derive(Debug)]
pub struct Rotator {
    dir_path: PathBuf,
    /// `None` after the directory was found deleted; it is opened again at the next attempt.
    root: Option<Root>,
    base: String,
    max_files: usize,
    limit: u64,
    /// `None` after the file was found deleted.
    current: Option<Current>,
    /// Index to open when there is no current file.
    next: u64,
    /// Whether the files end inside a line.
    mid_line: bool,
    /// Whether that line has been counted as split.
    split: bool,
    outage: Option<Outage>,
    retry_after: Duration,
    counters: LiveCounters,
    /// The progress that a successor reads.
    ledger: Option<Ledger>,
    chores: Chores,
    /// Told of what is written.
    notice: Option<Notice>,
    /// The error of every write, for tests.
    #[cfg(test)]
    fault: Option<i32>,
}

/// Background work on full files while the stream is idle.
#[derive(Debug, Default)]
struct Chores {
    keeping: LogKeeping,
    /// Indexes of files that are to be packed.
    to_pack: VecDeque<u64>,
    packing: Option<Packing>,
    /// When the oldest file is old enough to be deleted.
    expires: Option<Instant>,
}

#[derive(Debug)]
struct Current {
    file: File,
    index: u64,
    inode: u64,
    size: u64,
}

/// The files cannot be written at the moment.
#[derive(Debug)]
struct Outage {
    retry_at: Instant,
    /// The disk was full; any other error may mean that the file system itself has failed.
    full: bool,
    /// The stream has meanwhile ended the line in which the files end: its newline is kept, not dropped, and is written first when
    /// writing works again, so that two lines are never joined.
    owed_newline: bool,
    /// The stream is inside a line of which something was dropped.
    in_dropped_line: bool,
    /// Bytes of that line that were skipped since writing became possible again.
    skipped: usize,
    dropped_bytes: u64,
    dropped_lines: u64,
}

struct Failure {
    stored: usize,
    error: RotatorError,
}

/// What to do with the next piece of data.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Write(usize),
    Rotate,
}

/// Decides how much of `data` goes into a file that holds `size` of `limit` bytes. `mid_line`: the file's last byte is
/// inside a line.
fn plan(size: u64, limit: u64, mid_line: bool, data: &[u8]) -> Step {
    if size >= limit {
        return Step::Rotate;
    }
    let free = limit - size;
    let len = data.len() as u64;
    let reserve = if limit < LINE_RESERVE { 0 } else { LINE_RESERVE };
    if len.saturating_add(reserve) <= free {
        return Step::Write(data.len());
    }
    let window = &data[..data.len().min(usize::try_from(free).unwrap_or(usize::MAX))];
    let whole_lines = memchr::memrchr(b'\n', window).map_or(0, |at| at + 1);
    if whole_lines > 0 {
        return Step::Write(whole_lines);
    }
    // The window holds a piece of one line. A new file helps only a line that would start in it.
    if mid_line || size == 0 {
        return Step::Write(window.len());
    }
    if len <= free {
        return if reserve == 0 { Step::Write(data.len()) } else { Step::Rotate };
    }
    let line = memchr::memchr(b'\n', data).map_or(len, |at| at as u64 + 1);
    if line > limit { Step::Write(window.len()) } else { Step::Rotate }
}

impl Rotator {
    /// Opens the file with the highest index in `dir`, or `<base>.0`.
    ///
    /// # Errors
    /// [`RotatorError::InvalidName`] for a base with a slash or NUL; otherwise `dir` must exist, be no symlink, and take
    /// a file.
    pub fn open(dir: &Path, base: &str, limits: Limits) -> Result<Rotator, RotatorError> {
        if base.is_empty() || base.contains(['/', '\0']) {
            return Err(RotatorError::InvalidName(base.to_owned()));
        }
        let open_failed = |source| RotatorError::OpenDir { path: dir.to_owned(), source };
        let root = dir::open_dir(dir).map_err(open_failed)?;
        let list_failed = |source| RotatorError::List { path: dir.to_owned(), source };
        let listing = dir::list(&root, base).map_err(list_failed)?;
        let usable = |index: &u64| *index < dir::START_LIMIT;
        let plain = listing.plain.iter().rev().filter(|e| e.regular).map(|e| e.index).find(usable);
        let packed = listing.packed.iter().rev().copied().find(usable).map(|index| index + 1);
        let mut rotator = Rotator {
            dir_path: dir.to_owned(),
            root: Some(root),
            base: base.to_owned(),
            max_files: limits.max_files.max(1) as usize,
            limit: limits.max_file_size_bytes.max(1),
            current: None,
            next: plain.max(packed).unwrap_or(0),
            mid_line: false,
            split: false,
            outage: None,
            retry_after: RETRY_AFTER,
            counters: LiveCounters::default(),
            ledger: None,
            chores: Chores { keeping: limits.keeping, ..Chores::default() },
            notice: None,
            #[cfg(test)]
            fault: None,
        };
        let current = rotator.open_from(rotator.next, true)?;
        rotator.mid_line = ends_mid_line(&current);
        let closed = listing.plain.iter().filter(|e| e.regular && e.index < current.index);
        rotator.chores.to_pack = closed.filter(|_| limits.keeping.compress).map(|e| e.index).collect();
        rotator.current = Some(current);
        if limits.keeping.max_age.is_some() {
            rotator.purge();
        }
        Ok(rotator)
    }

    /// The same, and `notice` is given whenever something was written.
    #[must_use]
    pub fn telling(mut self, notice: Option<Notice>) -> Rotator {
        self.notice = notice;
        self.notice.iter().for_each(Notice::tell_of_file);
        self
    }

    /// Writes what a killed reader had taken and not written, and records its own progress in that journal from now on.
    pub(super) fn take_over(&mut self, journal: &Journal) -> Option<Change> {
        self.ledger = Some(journal.ledger());
        let pending = journal.pending()?;
        let written = pending.piece.map_or(0, |(target, len)| self.written_of(target).map_or(len, |n| n.min(len)));
        self.write(journal.resume(&pending, written))
    }

    /// By how much a file has grown; `None` if it is a different file by now.
    fn written_of(&mut self, target: Target) -> Option<usize> {
        let name = dir::file_name(&self.base, target.index);
        let stat = rustix::fs::statat(self.root().ok()?, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let size = u64::try_from(stat.st_size).ok().filter(|_| stat.st_ino == target.inode)?;
        usize::try_from(size.checked_sub(target.size)?).ok()
    }

    /// Appends `data`, starting new files as they fill up.
    ///
    /// A line that arrives whole and fits into a file is never split; one that arrives in pieces is not split if it has at most
    /// 32 KiB. A longer one is. This never fails and never waits: while the files cannot be written (disk full, directory gone) the
    /// data is dropped and counted, whole lines at a time, and writing is tried again with later data. Returns a change once when
    /// either state begins.
    pub fn write(&mut self, data: &[u8]) -> Option<Change> {
        let Some(outage) = &self.outage else {
            self.look_at_file();
            return match self.store(data) {
                Ok(()) => None,
                Err(failure) => self.lost(data, failure, Instant::now()),
            };
        };
        let now = Instant::now();
        if now < outage.retry_at {
            self.drop_data(data);
            return None;
        }
        if outage.full {
            self.look_at_file();
        } else {
            self.open_again();
        }
        let rest = self.skip_dropped_line(data);
        if let Err(failure) = self.store_owed_newline() {
            return self.lost(rest, failure, now);
        }
        if rest.is_empty() {
            return None;
        }
        match self.store(rest) {
            Ok(()) => self
                .outage
                .take()
                .map(|o| Change::Healed { dropped_bytes: o.dropped_bytes, dropped_lines: o.dropped_lines }),
            Err(failure) => self.lost(rest, failure, now),
        }
    }

    /// The current counts.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// A handle on the counts.
    #[must_use]
    pub fn live_counters(&self) -> LiveCounters {
        self.counters.clone()
    }

    /// The position of the next byte; `None` while there is no file.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.current.as_ref().map(|current| Place { index: current.index, size: current.size })
    }

    /// The base name of the files.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    fn store(&mut self, data: &[u8]) -> Result<(), Failure> {
        let mut rest = data;
        while !rest.is_empty() {
            let stored = data.len() - rest.len();
            let size = self.ensure_current().map_err(|error| Failure { stored, error })?;
            match plan(size, self.limit, self.mid_line, rest) {
                Step::Rotate => self.rotate().map_err(|error| Failure { stored, error })?,
                Step::Write(n) => {
                    let (piece, later) = rest.split_at(n);
                    self.write_current(piece).map_err(|(n, error)| Failure { stored: stored + n, error })?;
                    rest = later;
                }
            }
        }
        Ok(())
    }

    /// Writes all of `data` to the current file, or returns how much of it was written.
    fn write_current(&mut self, data: &[u8]) -> Result<(), (usize, RotatorError)> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let mut done = 0;
        if let Some(ledger) = &self.ledger {
            let Current { index, inode, size, .. } = *current;
            ledger.begin(Target { index, inode, size }, data.len());
        }
        let result = loop {
            if done == data.len() {
                break Ok(());
            }
            #[cfg(test)]
            if let Some(errno) = self.fault {
                break Err(io::Error::from_raw_os_error(errno));
            }
            match current.file.write(&data[done..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        if let Some(ledger) = &self.ledger {
            ledger.advance(done);
        }
        let written = &data[..done];
        if let Some(&last) = written.last() {
            let lines = count_lines(written);
            self.mid_line = last != b'\n';
            self.split &= lines == 0;
            current.size += done as u64;
            add(&self.counters.0.bytes, done as u64);
            add(&self.counters.0.lines, lines);
            self.notice.iter().for_each(Notice::tell);
        }
        let index = current.index;
        result.map_err(|source| (done, RotatorError::Write { name: dir::file_name(&self.base, index), source }))
    }

    /// The size of the current file, opened again if it was found deleted.
    fn ensure_current(&mut self) -> Result<u64, RotatorError> {
        if let Some(current) = &self.current {
            return Ok(current.size);
        }
        let current = self.open_from(self.next, true)?;
        Ok(self.current.insert(current).size)
    }

    fn rotate(&mut self) -> Result<(), RotatorError> {
        let from = self.current.as_ref().map_or(self.next, |c| c.index + 1);
        let next = self.open_from(from, false)?;
        if self.mid_line && next.size == 0 {
            // A mark for people and tools; not every file system supports extended attributes.
            let _ = rustix::fs::fsetxattr(&next.file, CONTINUES, b"1", XattrFlags::empty());
            if !self.split {
                add(&self.counters.0.split_lines, 1);
                self.split = true;
            }
        }
        let full = self.current.replace(next);
        if self.chores.keeping.compress {
            self.chores.to_pack.extend(full.map(|file| file.index));
        }
        add(&self.counters.0.rotations, 1);
        self.purge();
        Ok(())
    }

    /// Opens the first usable file at `from` or above. `full_too`: a full file is usable, too.
    fn open_from(&mut self, from: u64, full_too: bool) -> Result<Current, RotatorError> {
        for index in from..from.saturating_add(MAX_OCCUPIED) {
            let name = dir::file_name(&self.base, index);
            let failed = |source| RotatorError::OpenFile { name: name.clone(), source };
            match self.open_name(&name).map_err(failed)? {
                Some((file, inode, size)) if full_too || size < self.limit => {
                    return Ok(Current { file, index, inode, size });
                }
                _ => {}
            }
        }
        let index = self.free_index(from.saturating_add(MAX_OCCUPIED));
        let name = dir::file_name(&self.base, index);
        let failed = |source| RotatorError::OpenFile { name: name.clone(), source };
        match self.open_name(&name).map_err(failed)? {
            Some((file, inode, size)) if !mutant::on("b18") => Ok(Current { file, index, inode, size }),
            _ => Err(failed(io::ErrorKind::AlreadyExists.into())),
        }
    }

    /// The first index at `from` or above that has no name in the directory.
    fn free_index(&self, from: u64) -> u64 {
        let entries = self.root.as_ref().and_then(|root| dir::entries(root, &self.base).ok()).unwrap_or_default();
        let taken = entries.iter().map(|entry| entry.index).filter(|index| *index >= from);
        taken.fold(from, |free, index| if index == free { free + 1 } else { free })
    }

    /// Opens or creates one name: the file, its inode and its size; `None` if the name is taken by something else.
    fn open_name(&mut self, name: &str) -> io::Result<Option<(File, u64, u64)>> {
        // O_NONBLOCK: a planted FIFO must not block us. Read access is for reading the last byte.
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        let mode = Mode::from_raw_mode(0o644);
        let had_root = self.root.is_some();
        let mut result = self.root()?.open_beneath(Path::new(name), flags, mode);
        if had_root && result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::ENOENT)) {
            // Nothing can be created in a deleted directory; there may be a new one of the same name.
            self.root = None;
            result = self.root()?.open_beneath(Path::new(name), flags, mode);
        }
        let seen = || rustix::fs::statat(self.root.as_ref()?, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let plain = || seen().is_some_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile);
        if mutant::on("b17") || mutant::on("b17-race") && plain() {
            mutant::linger();
            result = Ok(rustix::fs::openat(self.root()?, name, flags | OFlags::CLOEXEC, mode)?);
        }
        let file = match result {
            Ok(fd) => File::from(fd),
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ELOOP | libc::EISDIR | libc::ENXIO | libc::ENODEV | libc::ETXTBSY)
                ) =>
            {
                return Ok(None);
            }
            // Another user's file, on which that user may hold a lease for ever.
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) && !mutant::on("d83") => return Ok(None),
            Err(e) => return Err(e),
        };
        let meta = file.metadata()?;
        // A second name may be a host file that the task hard-linked here. Another user's file could be rewritten by that user, and
        // a file that only its owner may read was not made here; an empty one may be incomplete.
        let ours = dir::is_ours(self.root()?, meta.uid(), meta.mode(), meta.len() == 0);
        if !meta.is_file() || meta.nlink() != 1 || !ours {
            return Ok(None);
        }
        if meta.len() == 0 && meta.mode() & 0o7777 != 0o644 {
            rustix::fs::fchmod(&file, mode)?;
        }
        self.notice.iter().for_each(Notice::tell_of_file);
        Ok(Some((file, meta.ino(), meta.len())))
    }

    fn root(&mut self) -> io::Result<&Root> {
        match &mut self.root {
            Some(root) => Ok(root),
            missing => Ok(missing.insert(dir::open_dir(&self.dir_path)?)),
        }
    }

    /// Deletes the oldest files beyond the number to keep, and those that are too old. Best effort: what cannot be deleted is tried
    /// again at the next rotation.
    fn purge(&mut self) {
        self.chores.expires = None;
        let Some(current) = self.current.as_ref().map(|c| c.index) else { return };
        let Some(root) = &self.root else { return };
        let Ok(listing) = dir::list(root, &self.base) else { return };
        // Higher indexes than ours were planted, and must not cause our own files to be deleted.
        let mut ours = listing.indexes();
        ours.retain(|index| *index <= current);
        let mut kept = ours.split_off(ours.len().saturating_sub(self.max_files));
        kept.pop_if(|last| *last == current);
        if let Some(max_age) = self.chores.keeping.max_age {
            let now = SystemTime::now();
            for index in kept {
                // Files age in the order of their indexes.
                match now.duration_since(modified(root, &self.base, index).unwrap_or(now)) {
                    Ok(age) if age >= max_age => ours.push(index),
                    age => {
                        self.chores.expires =
                            Instant::now().checked_add(max_age.saturating_sub(age.unwrap_or_default()));
                        break;
                    }
                }
            }
        }
        for index in ours.iter().take(MAX_PURGED) {
            if listing.plain.iter().any(|e| e.regular && e.index == *index) {
                delete(root, &dir::file_name(&self.base, *index));
            }
            if listing.packed.contains(index) {
                delete(root, &dir::packed_name(&self.base, *index));
            }
        }
        if let Some(packing) = self.chores.packing.take_if(|packing| ours.contains(&packing.index())) {
            packing.abandon(root, &self.base);
        }
    }

    /// When background work is due; a time in the past if it already is.
    pub(super) fn chore_at(&self) -> Option<Instant> {
        if self.outage.is_some() {
            return None;
        }
        if self.chores.packing.is_some() || !self.chores.to_pack.is_empty() {
            return Some(Instant::now());
        }
        self.chores.expires
    }

    /// Does a part of the background work: about a millisecond's work.
    pub(super) fn do_chore(&mut self) {
        if self.chores.expires.is_some_and(|at| Instant::now() >= at) {
            self.purge();
        }
        let Some(root) = &self.root else {
            self.chores.to_pack.clear();
            return;
        };
        let result = match &mut self.chores.packing {
            Some(packing) => packing.step(root, &self.base),
            None => match self.chores.to_pack.pop_front().map(|index| Packing::begin(root, &self.base, index)) {
                Some(Ok(packing)) => {
                    self.chores.packing = packing;
                    Ok(false)
                }
                Some(Err(error)) => Err(error),
                None => Ok(false),
            },
        };
        match result {
            Ok(false) => {}
            Ok(true) => self.chores.packing = None,
            // Most likely the disk is full; the plain file stays, and the next start tries again.
            Err(error) => {
                tracing::debug!(%error, "cannot compress a log file");
                if let Some(packing) = self.chores.packing.take() {
                    packing.abandon(root, &self.base);
                }
            }
        }
    }

    /// The file may have been deleted or truncated by others.
    fn look_at_file(&mut self) {
        let Some(current) = &mut self.current else { return };
        let Ok(meta) = current.file.metadata() else { return };
        if meta.nlink() == 0 {
            self.next = current.index;
            self.current = None;
        } else if meta.len() != current.size {
            current.size = meta.len();
            self.mid_line = ends_mid_line(current);
        }
    }

    /// Opens the path again: a failed file system does not recover for processes that have its files open, and another one is
    /// mounted in its place.
    fn open_again(&mut self) {
        self.look_at_file();
        self.root = None;
        let Some(old) = &self.current else { return };
        let (index, identity) = (old.index, identity(&old.file));
        let Ok(found) = self.open_from(index, true) else { return };
        if identity.is_none() || identity != self::identity(&found.file) {
            self.mid_line = ends_mid_line(&found);
            self.split = false;
            // The line that the newline would have ended is not in this file.
            if let Some(outage) = &mut self.outage
                && std::mem::take(&mut outage.owed_newline)
            {
                outage.dropped_bytes += 1;
                add(&self.counters.0.dropped_bytes, 1);
            }
        }
        self.current = Some(found);
    }

    /// Drops what a failed store left of `data`, and reports the outage if it begins with this.
    fn lost(&mut self, data: &[u8], failure: Failure, now: Instant) -> Option<Change> {
        let retry_at = now + self.retry_after;
        let full = failure.error.is_full();
        let begins = match &mut self.outage {
            Some(outage) => {
                outage.retry_at = retry_at;
                outage.full = full;
                outage.skipped = 0;
                outage.in_dropped_line &= failure.stored == 0;
                false
            }
            none => {
                *none = Some(Outage {
                    retry_at,
                    full,
                    owed_newline: false,
                    in_dropped_line: false,
                    skipped: 0,
                    dropped_bytes: 0,
                    dropped_lines: 0,
                });
                true
            }
        };
        self.drop_data(&data[failure.stored..]);
        begins.then_some(Change::Failed(failure.error))
    }

    fn drop_data(&mut self, data: &[u8]) {
        if let Some(ledger) = &self.ledger {
            ledger.advance(data.len());
        }
        let Some(outage) = &mut self.outage else { return };
        let mut rest = data;
        let (mut bytes, mut lines) = (0, 0);
        if self.mid_line && !outage.owed_newline {
            // The tail of the line in which the files end.
            let end = memchr::memchr(b'\n', rest);
            let tail = end.unwrap_or(rest.len());
            bytes += tail;
            lines += u64::from(tail > 0 && !outage.in_dropped_line);
            outage.in_dropped_line |= tail > 0;
            rest = &rest[tail..];
            if end.is_some() {
                outage.owed_newline = true;
                outage.in_dropped_line = false;
                rest = &rest[1..];
            }
        }
        if let Some(&last) = rest.last() {
            bytes += rest.len();
            lines += count_lines(rest) + u64::from(last != b'\n') - u64::from(outage.in_dropped_line);
            outage.in_dropped_line = last != b'\n';
        }
        outage.dropped_bytes += bytes as u64;
        outage.dropped_lines += lines;
        add(&self.counters.0.dropped_bytes, bytes as u64);
        add(&self.counters.0.dropped_lines, lines);
    }

    /// Drops the rest of a line whose start was dropped; returns what follows it.
    fn skip_dropped_line<'a>(&mut self, data: &'a [u8]) -> &'a [u8] {
        let Some(outage) = &mut self.outage else { return data };
        if !outage.in_dropped_line || outage.skipped >= MAX_SKIP {
            return data;
        }
        let n = memchr::memchr(b'\n', data).map_or(data.len(), |at| at + 1);
        outage.skipped += n;
        self.drop_data(&data[..n]);
        &data[n..]
    }

    fn store_owed_newline(&mut self) -> Result<(), Failure> {
        if !self.outage.as_ref().is_some_and(|o| o.owed_newline) {
            return Ok(());
        }
        // This newline is not among the bytes that the ledger counts.
        let ledger = self.ledger.take();
        let stored = self.store(b"\n");
        self.ledger = ledger;
        stored?;
        if let Some(outage) = &mut self.outage {
            outage.owed_newline = false;
        }
        Ok(())
    }
}

impl Drop for Rotator {
    fn drop(&mut self) {
        // A newline that was kept for a file that never became writable again.
        if self.outage.as_ref().is_some_and(|o| o.owed_newline) {
            add(&self.counters.0.dropped_bytes, 1);
        }
    }
}

fn delete(root: &Root, name: &str) {
    if let Err(error) = rustix::fs::unlinkat(root, name, AtFlags::empty()) {
        tracing::debug!(name, %error, "cannot delete an old log file");
    }
}

/// When a closed file was last written.
fn modified(root: &Root, base: &str, index: u64) -> Option<SystemTime> {
    let stat = |name: String| rustix::fs::statat(root, &name, AtFlags::SYMLINK_NOFOLLOW).ok();
    let stat = stat(dir::file_name(base, index)).or_else(|| stat(dir::packed_name(base, index)))?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(stat.st_mtime).ok()?))
}

/// Device and inode.
fn identity(file: &File) -> Option<(u64, u64)> {
    file.metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Whether the file ends inside a line; an empty or unreadable file counts as a line start.
fn ends_mid_line(current: &Current) -> bool {
    let mut last = [b'\n'];
    let _ = current.size.checked_sub(1).map(|at| current.file.read_exact_at(&mut last, at));
    last != *b"\n"
}

fn count_lines(data: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', data).count() as u64
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;
    use crate::spec::collections::BTreeMap;

    const BASE: &str = "redis.stdout";

    fn limits(max_files: u32, max_file_size_bytes: u64) -> Limits {
        Limits { max_files, max_file_size_bytes, keeping: LogKeeping::default() }
    }

    fn open(dir: &TempDir, max_files: u32, size: u64) -> Rotator {
        Rotator::open(dir.path(), BASE, limits(max_files, size)).unwrap()
    }

    fn contents(dir: &Path) -> BTreeMap<u64, String> {
        let read = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
        read.filter(|e| e.file_type().unwrap().is_file())
            .filter_map(|e| {
                let index = dir::parse_index(BASE, e.file_name().as_encoded_bytes())?;
                Some((index, String::from_utf8_lossy(&std::fs::read(e.path()).unwrap()).into_owned()))
            })
            .collect()
    }

    fn files(dir: &TempDir) -> Vec<String> {
        contents(dir.path()).into_values().collect()
    }

    // The table of upstream's rotator tests (D2).

    #[test]
    fn d2_create_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let _rotator = open(&dir, 10, 10);
        let meta = std::fs::metadata(dir.path().join("redis.stdout.0")).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o7777), (0, 0o644));
    }

    #[test]
    fn d2_open_last_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("redis.stdout.0"), "").unwrap();
        std::fs::write(dir.path().join("redis.stdout.2"), "").unwrap();
        assert!(open(&dir, 10, 10).write(b"x").is_none());
        assert_eq!(contents(dir.path()), BTreeMap::from([(0, String::new()), (2, "x".into())]));
    }

    #[test]
    fn d2_write_to_current_file() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("redis.stdout.0"), "").unwrap();
        assert!(open(&dir, 10, 5).write(b"abcde").is_none());
        assert_eq!(files(&dir), ["abcde"]);
    }

    #[test]
    fn d2_rotate_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 10, 5);
        assert!(rotator.write(b"abcdefgh").is_none());
        assert_eq!(files(&dir), ["abcde", "fgh"]);
        assert_eq!(rotator.counters(), Counters { bytes: 8, rotations: 1, split_lines: 1, ..Counters::default() });
    }

    #[test]
    fn d2_rotate_files_boundary() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 10, 5);
        for line in ["ab\ncdef\n", "1234567890", "\n"] {
            assert!(rotator.write(line.as_bytes()).is_none());
        }
        assert_eq!(files(&dir), ["ab\n", "cdef\n", "12345", "67890", "\n"]);
        assert_eq!((rotator.counters().lines, rotator.counters().split_lines), (3, 1));
    }

    #[test]
    fn d2_write_remaining() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("redis.stdout.0"), "").unwrap();
        let mut rotator = open(&dir, 10, 5);
        rotator.write(b"abcd");
        assert_eq!(files(&dir), ["abcd"], "nothing is buffered");
        rotator.write(b"efghijkl");
        assert_eq!(files(&dir), ["abcde", "fghij", "kl"]);
    }

    #[test]
    fn d2_purge_old_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 2, 2);
        for piece in ["abcd", "efgh", "ij", "kl", "m"] {
            rotator.write(piece.as_bytes());
        }
        assert_eq!(contents(dir.path()), BTreeMap::from([(5, "kl".into()), (6, "m".into())]));
    }

    #[test]
    fn d2_incorrect_path() {
        let error = Rotator::open(Path::new("/nonexistent/foo"), BASE, limits(10, 10)).unwrap_err();
        assert!(matches!(error, RotatorError::OpenDir { .. }), "{error}");
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Rotator::open(dir.path(), "../x", limits(1, 1)).unwrap_err(), RotatorError::InvalidName(_)));
    }

    #[test]
    fn d2_sizes_are_counted_exactly() {
        // Upstream adds the running total for each piece of a write and rotates early (D10 of the defect list).
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 10, 100);
        let lines = "0123456789012345678\n".repeat(5);
        rotator.write(lines.as_bytes());
        assert_eq!(files(&dir), std::slice::from_ref(&lines));
        rotator.write(b"x\n");
        assert_eq!(files(&dir), [lines, "x\n".into()]);
    }

    #[test]
    fn d2_an_unfinished_line_near_the_end_starts_the_next_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 10, 64 * 1024);
        let head = format!("{}\n", "h".repeat(40 * 1024));
        rotator.write(head.as_bytes());
        rotator.write(b"part one, ");
        rotator.write(format!("{}\n", "t".repeat(30 * 1024)).as_bytes());
        let found = files(&dir);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], head);
        assert!(found[1].starts_with("part one, ttt") && found[1].ends_with("t\n"));
    }

    #[test]
    fn d2_a_whole_line_moves_even_when_it_is_long() {
        let data = format!("ab\n{}\n", "x".repeat(90));
        assert_eq!(plan(0, 93, false, data.as_bytes()), Step::Write(3));
        assert_eq!(plan(3, 93, false, &data.as_bytes()[3..]), Step::Rotate);
        assert_eq!(plan(3, 90, false, &data.as_bytes()[3..]), Step::Write(87), "split anyway: fill the file");
        assert_eq!(plan(3, 93, true, &data.as_bytes()[3..]), Step::Write(90), "began here: a new file would not help");
        assert_eq!(plan(93, 93, true, b"x"), Step::Rotate);
    }

    #[test]
    fn d2_occupied_names_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let canary = dir.path().join("canary");
        std::fs::write(&canary, "host").unwrap();
        let path = |n: u32| dir.path().join(format!("{BASE}.{n}"));
        std::os::unix::fs::symlink(&canary, path(1)).unwrap();
        std::fs::create_dir(path(2)).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path(3), rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o666), 0)
            .unwrap();
        std::fs::hard_link(&canary, path(4)).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path(5)).unwrap();
        std::os::unix::fs::symlink("dangling", path(6)).unwrap();
        // .4 is the highest plain file, but it is the canary's second name.
        let mut rotator = open(&dir, 2, 4);
        for line in ["abc\n", "def\n", "ghi\n"] {
            assert!(rotator.write(line.as_bytes()).is_none());
        }
        assert_eq!(std::fs::read_to_string(&canary).unwrap(), "host");
        assert!(!dir.path().join("dangling").exists());
        assert_eq!(std::fs::read_to_string(path(8)).unwrap(), "def\n");
        assert_eq!(std::fs::read_to_string(path(9)).unwrap(), "ghi\n");
    }

    #[test]
    fn d2_a_planted_first_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let canary = dir.path().join("canary");
        std::fs::write(&canary, "host").unwrap();
        std::os::unix::fs::symlink(&canary, dir.path().join("redis.stdout.0")).unwrap();
        open(&dir, 10, 10).write(b"x");
        assert_eq!(std::fs::read_to_string(canary).unwrap(), "host");
        assert_eq!(contents(dir.path()), BTreeMap::from([(1, "x".into())]));
    }

    #[test]
    fn d2_a_planted_high_index_does_not_purge_ours() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 1, 2);
        std::fs::write(dir.path().join("redis.stdout.777"), "bait").unwrap();
        rotator.write(b"abcd");
        assert_eq!(contents(dir.path()), BTreeMap::from([(1, "cd".into()), (777, "bait".into())]));
    }

    #[test]
    fn d2_a_restart_goes_on_where_the_last_left() {
        let dir = tempfile::tempdir().unwrap();
        open(&dir, 10, 6).write(b"abc\nde");
        open(&dir, 10, 6).write(b"f\ng\n");
        assert_eq!(files(&dir), ["abc\nde", "f\ng\n"]);
    }

    // Full files.

    fn kept(dir: &TempDir, max_files: u32, keeping: LogKeeping) -> Rotator {
        Rotator::open(dir.path(), BASE, Limits { max_files, max_file_size_bytes: 4, keeping }).unwrap()
    }

    fn names(dir: &TempDir) -> Vec<String> {
        let names = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    fn do_chores(rotator: &mut Rotator) {
        while rotator.chore_at().is_some_and(|at| at <= Instant::now()) {
            rotator.do_chore();
        }
    }

    #[test]
    fn d2_full_files_are_packed_counted_and_gone_on_from() {
        let dir = tempfile::tempdir().unwrap();
        let keeping = LogKeeping { compress: true, max_age: None };
        let mut rotator = kept(&dir, 3, keeping);
        for line in ["000\n", "111\n", "222\n", "333\n"] {
            rotator.write(line.as_bytes());
            do_chores(&mut rotator);
        }
        assert_eq!(names(&dir), ["redis.stdout-1.zst", "redis.stdout-2.zst", "redis.stdout.3"]);
        // A partial result of a killed process, and a file that was not packed.
        rotator.write(b"444\n");
        drop(rotator);
        std::fs::write(dir.path().join("redis.stdout-3.zst.part"), "half").unwrap();
        let mut rotator = kept(&dir, 3, keeping);
        do_chores(&mut rotator);
        assert_eq!(names(&dir), ["redis.stdout-2.zst", "redis.stdout-3.zst", "redis.stdout.4"]);
        drop(rotator);
        std::fs::remove_file(dir.path().join("redis.stdout.4")).unwrap();
        kept(&dir, 3, keeping).write(b"new\n");
        assert!(names(&dir).contains(&"redis.stdout.4".to_owned()), "{:?}", names(&dir));
    }

    #[test]
    fn d2_old_files_go_when_their_time_comes() {
        let dir = tempfile::tempdir().unwrap();
        let keeping = LogKeeping { compress: false, max_age: Some(Duration::from_hours(1)) };
        let mut rotator = kept(&dir, 10, keeping);
        rotator.write(b"000\n111\n222\n");
        let due = rotator.chore_at().unwrap() - Instant::now();
        assert!(due > Duration::from_mins(58) && due <= Duration::from_hours(1), "{due:?}");
        let aged = File::options().write(true).open(dir.path().join("redis.stdout.0")).unwrap();
        aged.set_modified(SystemTime::now() - Duration::from_hours(2)).unwrap();
        rotator.chores.expires = Some(Instant::now());
        do_chores(&mut rotator);
        assert_eq!(names(&dir), ["redis.stdout.1", "redis.stdout.2"]);
        // The file that is being written stays, however old it is.
        for n in [1, 2] {
            let aged = File::options().write(true).open(dir.path().join(format!("redis.stdout.{n}"))).unwrap();
            aged.set_modified(SystemTime::now() - Duration::from_hours(2)).unwrap();
        }
        drop(rotator);
        kept(&dir, 10, keeping);
        assert_eq!(names(&dir), ["redis.stdout.2"]);
    }

    #[test]
    fn d2_what_others_do_to_the_file_is_seen_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 10, 8);
        rotator.write(b"one\ntw");
        let path = dir.path().join("redis.stdout.0");
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        rotator.write(b"one\nfour");
        assert_eq!(files(&dir), ["one\nfour"], "its size is what it has now");
        std::fs::remove_file(&path).unwrap();
        rotator.write(b"five\n");
        assert_eq!(files(&dir), ["five\n"]);
    }

    // Outages (R09).

    /// A rotator whose writes fail, and are retried each time.
    fn broken(dir: &TempDir, size: u64) -> Rotator {
        let mut rotator = open(dir, 10, size);
        rotator.retry_after = Duration::ZERO;
        rotator.fault = Some(libc::EIO);
        rotator
    }

    #[test]
    fn d2_an_outage_is_said_once_and_counted_exactly() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = broken(&dir, 1000);
        assert!(matches!(rotator.write(b"one\ntwo\nthr"), Some(Change::Failed(RotatorError::Write { .. }))));
        assert!(rotator.write(b"ee\nfour\nfi").is_none());
        rotator.fault = None;
        let change = rotator.write(b"ve\nsix\n");
        assert!(matches!(change, Some(Change::Healed { dropped_bytes: 24, dropped_lines: 5 })), "{change:?}");
        assert!(rotator.write(b"seven\n").is_none());
        assert_eq!(files(&dir), ["six\nseven\n"], "a line is dropped as a whole");
        let expected = Counters { bytes: 10, lines: 2, dropped_bytes: 24, dropped_lines: 5, ..Counters::default() };
        assert_eq!(rotator.counters(), expected);
    }

    #[test]
    fn d2_a_cut_line_keeps_its_own_newline() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = open(&dir, 10, 1000);
        rotator.retry_after = Duration::ZERO;
        rotator.write(b"begin");
        rotator.fault = Some(libc::EIO);
        assert!(matches!(rotator.write(b"-lost\nlost\n"), Some(Change::Failed(_))));
        rotator.fault = None;
        assert!(matches!(rotator.write(b"next\n"), Some(Change::Healed { dropped_bytes: 10, dropped_lines: 2 })));
        assert_eq!(files(&dir), ["begin\nnext\n"]);
        let counters = rotator.counters();
        assert_eq!(counters.bytes + counters.dropped_bytes, 21);
    }

    #[test]
    fn d2_a_deleted_directory_is_reported_and_a_new_one_used() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        let mut rotator = Rotator::open(&logs, BASE, limits(10, 1000)).unwrap();
        rotator.retry_after = Duration::ZERO;
        rotator.write(b"a\n");
        std::fs::remove_dir_all(&logs).unwrap();
        assert!(matches!(rotator.write(b"b\n"), Some(Change::Failed(RotatorError::OpenFile { .. }))));
        assert!(rotator.write(b"c\n").is_none());
        std::fs::create_dir(&logs).unwrap();
        assert!(matches!(rotator.write(b"d\n"), Some(Change::Healed { dropped_bytes: 4, dropped_lines: 2 })));
        assert_eq!(contents(&logs), BTreeMap::from([(0, "d\n".into())]));
    }

    #[test]
    fn d2_retries_are_spaced() {
        let dir = tempfile::tempdir().unwrap();
        let mut rotator = broken(&dir, 1000);
        rotator.retry_after = Duration::from_hours(1);
        assert!(rotator.write(b"a\n").is_some());
        rotator.fault = None;
        assert!(rotator.write(b"b\n").is_none());
        assert_eq!(rotator.counters().dropped_bytes, 4);
    }

    #[test]
    fn d2_whatever_the_file_system_answers_is_counted_and_mended() {
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EIO, libc::EROFS, libc::ESTALE, libc::EFBIG] {
            let dir = tempfile::tempdir().unwrap();
            let mut rotator = open(&dir, 10, 1000);
            rotator.retry_after = Duration::ZERO;
            rotator.write(b"one\ntw");
            rotator.fault = Some(errno);
            let Some(Change::Failed(error)) = rotator.write(b"o\nthree\n") else { panic!("{errno}: not noticed") };
            assert_eq!(io::Error::from(error).kind(), io::Error::from_raw_os_error(errno).kind());
            assert!(rotator.write(b"four\nfi").is_none());
            rotator.fault = None;
            let change = rotator.write(b"ve\nsix\n");
            let Some(Change::Healed { dropped_bytes: 17, dropped_lines: 4 }) = change else {
                panic!("{errno}: {change:?}")
            };
            assert_eq!(files(&dir), ["one\ntw\nsix\n"]);
            assert_eq!(rotator.counters().bytes, 11);
        }
    }

    #[test]
    fn d2_another_file_system_in_the_place_of_a_failed_one_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let (logs, old) = (dir.path().join("logs"), dir.path().join("old"));
        std::fs::create_dir(&logs).unwrap();
        let mut rotator = Rotator::open(&logs, BASE, limits(10, 1000)).unwrap();
        rotator.retry_after = Duration::ZERO;
        rotator.write(b"one\ntw");
        rotator.fault = Some(libc::EIO);
        assert!(rotator.write(b"o\nthree\n").is_some());
        // Open files stay open, as after a lazy umount.
        std::fs::rename(&logs, &old).unwrap();
        assert!(rotator.write(b"four\n").is_none());
        std::fs::create_dir(&logs).unwrap();
        rotator.fault = None;
        let change = rotator.write(b"five\n");
        assert!(matches!(change, Some(Change::Healed { dropped_bytes: 13, dropped_lines: 3 })), "{change:?}");
        assert_eq!(contents(&old), BTreeMap::from([(0, "one\ntw".into())]));
        assert_eq!(contents(&logs), BTreeMap::from([(0, "five\n".into())]));
        let counters = rotator.counters();
        assert_eq!((counters.bytes, counters.bytes + counters.dropped_bytes), (11, 24));
    }

    /// One action of a writer.
    #[derive(Debug, Clone)]
    enum Act {
        Write(Vec<u8>),
        Restart,
    }

    fn act() -> impl Strategy<Value = Act> {
        let text = proptest::collection::vec(prop_oneof![6 => Just(b'a'), 2 => Just(b'\n'), 1 => Just(b'b')], 0..60);
        let lines = proptest::collection::vec(0_usize..24, 0..8)
            .prop_map(|lens| lens.into_iter().flat_map(|n| [vec![b'l'; n], vec![b'\n']].concat()).collect());
        prop_oneof![3 => text.prop_map(Act::Write), 3 => lines.prop_map(Act::Write), 1 => Just(Act::Restart)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn d2_files_in_order_are_the_stream(acts in proptest::collection::vec(act(), 0..40), limit in 1_u64..50) {
            let dir = tempfile::tempdir().unwrap();
            let mut rotator = open(&dir, 100_000, limit);
            let (mut input, mut rotations) = (Vec::new(), 0);
            for act in &acts {
                match act {
                    Act::Write(data) => {
                        prop_assert!(rotator.write(data).is_none());
                        input.extend_from_slice(data);
                    }
                    Act::Restart => {
                        rotations += rotator.counters().rotations;
                        rotator = open(&dir, 100_000, limit);
                    }
                }
            }
            rotations += rotator.counters().rotations;
            let files = files(&dir);
            prop_assert_eq!(files.concat().into_bytes(), input);
            prop_assert_eq!(files.len() as u64, rotations + 1);
            prop_assert!(files.iter().all(|f| f.len() as u64 <= limit));
        }

        #[test]
        fn d2_lines_that_fit_stay_whole(lens in proptest::collection::vec(0_usize..30, 1..80), cut in 1_usize..12) {
            let dir = tempfile::tempdir().unwrap();
            let mut rotator = open(&dir, 100_000, 30);
            let lines: Vec<Vec<u8>> = lens.iter().map(|&n| [vec![b'x'; n], vec![b'\n']].concat()).collect();
            for chunk in lines.chunks(cut) {
                rotator.write(&chunk.concat());
            }
            prop_assert!(files(&dir).iter().all(|f| f.is_empty() || f.ends_with('\n')));
        }

        /// Every byte is either in a file or counted as dropped, and the files consist of the stream's lines.
        #[test]
        fn d2_outages_account_for_every_byte(
            acts in proptest::collection::vec((act(), proptest::bool::weighted(0.3)), 0..40),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut rotator = open(&dir, 100_000, 40);
            rotator.retry_after = Duration::ZERO;
            let mut input = 0;
            for (act, toggle) in &acts {
                if *toggle {
                    rotator.fault = rotator.fault.xor(Some(libc::EIO));
                }
                if let Act::Write(data) = act {
                    rotator.write(data);
                    input += data.len() as u64;
                }
            }
            let live = rotator.live_counters();
            drop(rotator);
            let (written, counters) = (files(&dir).concat(), live.get());
            prop_assert_eq!(counters.bytes + counters.dropped_bytes, input);
            prop_assert_eq!(written.len() as u64, counters.bytes);
            prop_assert_eq!(memchr::memchr_iter(b'\n', written.as_bytes()).count() as u64, counters.lines);
        }
    }
}
