//! Data that was read from a FIFO and is not in a log file yet, kept where the successor of a killed reader finds it.
//!
//! Reading a pipe and writing a file are two steps, and what a reader holds in its own memory between them is lost with it. So
//! the data is read straight into the mapped memory of a small file, and progress is recorded in the same file by plain stores:
//! what
//! a process has stored is in the file whenever it is killed, and costs no system call.
//!
//! ```text
//!   [empty] --note length, put a guard where the last bytes will be--> [reading] --read(2)--> [held] --write(2)...--> all done
//! ```
//!
//! If the reader is killed in `reading`, the guard tells whether the read happened: either the guard is still there, or the data
//! is. The guard is random; if it is shorter than its full length, so that it could equal the data by accident, the data is
//! peeked at first (`tee(2)`) and its complement is used. If the reader is killed in `held`, the size of the log file tells how
//! much of the current piece was written.
//!
//! This is for a FIFO, which other processes keep alive. An executor's pipe dies with it, so it has no journal.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, StatxFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};
use sha2::Digest as _;
use tokio::time::Instant;

use super::buffer::PIPE_SIZE;
use crate::sys;
use crate::sys::owned::{self, OwnDir};
use crate::sys::pages::{Pages, Words};

/// Bytes read at once. Each stream has its own buffer, for as long as its reader lives, so it is small.
pub(super) const SIZE: usize = 64 * 1024;
/// Bytes read at once from a fast stream: a whole pipe. A third of the cost of reading is then waiting for a writer that holds
/// the pipe's lock, and fewer reads mean less of that.
const FAST_SIZE: usize = PIPE_SIZE;
/// This many full reads in a row make a stream a fast one: a larger buffer costs little compared to 4 MiB of output.
const FULL_READS: u32 = 64;

const GUARD: usize = 16;
const MAGIC: u64 = u64::from_be_bytes(*b"agblog\x00\x01");

/// Where the FIFO's name is in the file, as text, and where the data begins.
const NAME_AT: u64 = 512;
const NAME_MAX: usize = 3072;
const DATA_AT: u64 = 4096;

/// The previous reader may still be dying.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_AGAIN: Duration = Duration::from_millis(2);

const EMPTY: u64 = 0;
const READING: u64 = 1;
const HELD: u64 = 2;

/// The numbers at the start of the file.
#[derive(Debug, Clone, Copy)]
#[repr(usize)]
enum Word {
    Magic,
    State,
    Len,
    Guard,
    /// The second half of the guard.
    GuardMore,
    /// Bytes of the data that have been written or dropped.
    Done,
    /// The length of the piece that is being written; 0 if there is none.
    PieceLen,
    /// Its position in the data.
    PieceAt,
    /// The file that it goes to, and that file's size before the write.
    FileIndex,
    FileInode,
    FileSize,
    NameLen,
    Count,
}

/// The recorded progress. Shared with the rotator, which records there how far it has written.
#[derive(Debug, Clone)]
pub(super) struct Ledger(Arc<Words>);

/// A log file that is being written, as far as a successor needs to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) index: u64,
    pub(super) inode: u64,
    pub(super) size: u64,
}

impl Ledger {
    fn word(&self, word: Word) -> &AtomicU64 {
        &self.0[word as usize]
    }

    fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::SeqCst)
    }

    fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::SeqCst);
    }

    /// The next `len` bytes are about to be written.
    pub(super) fn begin(&self, target: Target, len: usize) {
        self.set(Word::PieceAt, self.get(Word::Done));
        self.set(Word::FileIndex, target.index);
        self.set(Word::FileInode, target.inode);
        self.set(Word::FileSize, target.size);
        self.set(Word::PieceLen, len as u64);
    }

    /// `len` further bytes have been written, or dropped.
    pub(super) fn advance(&self, len: usize) {
        // In this order: while a piece is being written, `Done` is ignored.
        let piece = self.get(Word::PieceLen) > 0;
        let from = self.get(if piece { Word::PieceAt } else { Word::Done });
        self.set(Word::Done, from + len as u64);
        self.set(Word::PieceLen, 0);
    }
}

/// One stream's journal, held by one reader.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Keeps the lock.
    file: File,
    ledger: Ledger,
    /// [`SIZE`] bytes, or [`FAST_SIZE`] while the stream is fast.
    data: Pages,
    /// How many of the last reads filled the buffer.
    full_reads: u32,
    /// A pipe for peeking at data without consuming it; created on demand.
    scratch: Option<[OwnedFd; 2]>,
}

/// What a killed reader held.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pending {
    /// The part that is not in any file yet, except for what `written` finds.
    pub(super) from: usize,
    pub(super) to: usize,
    /// The piece that was being written, and its length.
    pub(super) piece: Option<(Target, usize)>,
}

impl Journal {
    /// Opens or creates the journal of a FIFO in `dir`, which is created for its owner only, and waits briefly for the previous
    /// reader to exit.
    ///
    /// # Errors
    /// `WouldBlock` while another reader holds it; else what the system says, or why `dir` is not acceptable.
    ///
    /// # Panics
    /// Outside a tokio runtime with time enabled.
    pub async fn open(dir: &Path, fifo: &OwnedFd, name: &Path) -> io::Result<Journal> {
        own_dir(dir)?;
        let path = dir.join(key(fifo, name)?);
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match Journal::open_now(&path, name) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                    tokio::time::sleep(LOCK_AGAIN).await;
                }
                other => return other,
            }
        }
    }

    fn open_now(path: &Path, name: &Path) -> io::Result<Journal> {
        let name = name.as_os_str().as_bytes();
        if name.len() > NAME_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags);
        let file = options.open(path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let meta = file.metadata()?;
        if !meta.is_file() || meta.nlink() != 1 {
            // Its previous owner removed it at this very moment.
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // The reader of a fast stream was killed.
        let room = if meta.len() >= DATA_AT + FAST_SIZE as u64 { FAST_SIZE } else { SIZE };
        let data = map_data(&file, room)?;
        let ledger = Ledger(Arc::new(Words::map_file(&file, Word::Count as usize)?));
        if ledger.get(Word::Magic) != MAGIC {
            ledger.set(Word::State, EMPTY);
            file.write_all_at(name, NAME_AT)?;
            ledger.set(Word::NameLen, name.len() as u64);
            ledger.set(Word::Magic, MAGIC);
        }
        Ok(Journal { path: path.to_owned(), file, ledger, data, full_reads: 0, scratch: None })
    }

    /// The ledger, for the rotator.
    pub(super) fn ledger(&self) -> Ledger {
        self.ledger.clone()
    }

    /// What the previous reader had taken and not written.
    pub(super) fn pending(&self) -> Option<Pending> {
        let get = |word| self.ledger.get(word);
        let small = |word| usize::try_from(get(word)).ok();
        let len = small(Word::Len).filter(|len| *len <= self.data.len())?;
        match get(Word::State) {
            READING if self.guard_stands(len) => None,
            READING => Some(Pending { from: 0, to: len, piece: None }),
            HELD => {
                let piece_len = small(Word::PieceLen).filter(|n| *n > 0);
                let from = small(if piece_len.is_some() { Word::PieceAt } else { Word::Done })?;
                let target =
                    Target { index: get(Word::FileIndex), inode: get(Word::FileInode), size: get(Word::FileSize) };
                let piece = piece_len.filter(|n| from.checked_add(*n).is_some_and(|to| to <= len)).map(|n| (target, n));
                (from < len).then_some(Pending { from, to: len, piece })
            }
            _ => None,
        }
    }

    fn guard(&self) -> [u8; GUARD] {
        let mut guard = [0; GUARD];
        guard[..8].copy_from_slice(&self.ledger.get(Word::Guard).to_ne_bytes());
        guard[8..].copy_from_slice(&self.ledger.get(Word::GuardMore).to_ne_bytes());
        guard
    }

    fn guard_stands(&self, len: usize) -> bool {
        let n = len.min(GUARD);
        self.data[len - n..len] == self.guard()[..n]
    }

    /// Records that the remaining data begins at `done`, for a rotator that continues with it.
    pub(super) fn resume(&self, pending: &Pending, written: usize) -> &[u8] {
        let from = (pending.from + written).min(pending.to);
        self.ledger.set(Word::Done, from as u64);
        self.ledger.set(Word::PieceLen, 0);
        self.ledger.set(Word::State, HELD);
        &self.data[from..pending.to]
    }

    /// Takes what the pipe holds, at most [`SIZE`] bytes, of a fast stream [`FAST_SIZE`]; 0 when the last writer has closed and
    /// everything is taken.
    ///
    /// `last`: a FIFO that no process has open for writing counts as ended, even if there never was a writer.
    ///
    /// # Errors
    /// `WouldBlock` when there is no data; else what `read(2)` says.
    pub(super) fn take(&mut self, source: &OwnedFd, last: bool) -> io::Result<usize> {
        let ready = loop {
            let ready = rustix::io::ioctl_fionread(source)?;
            if ready > 0 {
                let ready = usize::try_from(ready).unwrap_or(usize::MAX);
                break ready.min(self.room_for(ready));
            }
            if self.ended(source, last)? {
                return Ok(0);
            }
        };
        let guard = self.new_guard(source, ready)?;
        self.ledger.set(Word::State, EMPTY);
        self.ledger.set(Word::Done, 0);
        self.ledger.set(Word::PieceLen, 0);
        self.ledger.set(Word::Len, ready as u64);
        let half = |at: usize| u64::from_ne_bytes(std::array::from_fn(|n| guard[at + n]));
        self.ledger.set(Word::Guard, half(0));
        self.ledger.set(Word::GuardMore, half(8));
        let n = ready.min(GUARD);
        self.data[ready - n..ready].copy_from_slice(&guard[..n]);
        self.ledger.set(Word::State, READING);
        // We are the only reader, so these bytes are there and one call returns them.
        let got = rustix::io::retry_on_intr(|| rustix::io::read(source, &mut self.data[..ready]))?;
        self.ledger.set(Word::Len, got as u64);
        self.ledger.set(Word::State, HELD);
        Ok(got)
    }

    /// How much is read at once. Earlier data has been written, so the buffer may be replaced.
    fn room_for(&mut self, ready: usize) -> usize {
        self.full_reads = if ready >= self.data.len() { self.full_reads.saturating_add(1) } else { 0 };
        if self.full_reads > FULL_READS && self.data.len() == SIZE {
            self.full_reads = 0;
            // If there is no space for a larger one, the buffer stays as it is.
            if let Ok(data) = map_data(&self.file, FAST_SIZE) {
                self.data = data;
            }
        }
        self.data.len()
    }

    /// The data that was taken last.
    pub(super) fn data(&self, len: usize) -> &[u8] {
        &self.data[..len]
    }

    /// For an empty pipe: whether it has ended; `WouldBlock` if it has not.
    fn ended(&mut self, source: &OwnedFd, last: bool) -> io::Result<bool> {
        if last {
            // The only call that answers like `read(2)` for a FIFO that was never written to.
            return match self.look(source, &mut [0; 1])? {
                Some(0) => Ok(true),
                Some(_) => Ok(false),
                None => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let mut fds = [PollFd::new(source, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
        match fds[0].revents() {
            revents if revents.contains(PollFlags::IN) => Ok(false),
            revents if revents.contains(PollFlags::HUP) => Ok(true),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn new_guard(&mut self, source: &OwnedFd, ready: usize) -> io::Result<[u8; GUARD]> {
        if ready >= GUARD {
            return Ok(sys::random::bits().to_ne_bytes());
        }
        let mut guard = [0; GUARD];
        self.look(source, &mut guard[..ready])?;
        for byte in &mut guard {
            *byte = !*byte;
        }
        Ok(guard)
    }

    /// Copies the next data without consuming it; `None` if there is none yet.
    fn look(&mut self, source: &OwnedFd, out: &mut [u8]) -> io::Result<Option<usize>> {
        let [read, write] = if let Some(scratch) = &self.scratch {
            scratch
        } else {
            let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            self.scratch.insert([read, write])
        };
        match rustix::pipe::tee(source, write, out.len(), SpliceFlags::NONBLOCK) {
            Ok(0) => Ok(Some(0)),
            Ok(n) => Ok(Some(rustix::io::read(read, &mut out[..n])?)),
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The stream is idle: releases what is not needed for waiting.
    pub(super) fn rest(&mut self) {
        self.scratch = None;
        self.full_reads = 0;
        if self.data.len() > SIZE
            && self.pending().is_none()
            && let Ok(data) = map_data(&self.file, SIZE)
        {
            self.data = data;
            // The part that is cut off is not mapped any more.
            let _ = self.file.set_len(DATA_AT + SIZE as u64);
        }
    }
}

/// Maps the first `len` bytes of the data. They are allocated in the file first, so that a full file system never makes a memory
/// access fail.
fn map_data(file: &File, len: usize) -> io::Result<Pages> {
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, DATA_AT + len as u64)?;
    Pages::map_file(file, DATA_AT, len)
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.pending().is_none() {
            // We hold the lock, so no other process depends on it; one that stays is found by `sweep`.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Creates the directory, for its owner only; a directory of another user is refused.
fn own_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    OwnDir::open(dir).map(drop)
}

/// A unique name per FIFO: inode numbers are reused after a deletion, birth times are not.
fn key(fifo: &OwnedFd, name: &Path) -> io::Result<String> {
    let stat = rustix::fs::statx(fifo, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let mut hash = sha2::Sha256::new();
    hash.update(name.as_os_str().as_bytes());
    for number in [
        u64::from(stat.stx_dev_major),
        u64::from(stat.stx_dev_minor),
        stat.stx_ino,
        stat.stx_btime.tv_sec.cast_unsigned(),
        u64::from(stat.stx_btime.tv_nsec),
    ] {
        hash.update(number.to_be_bytes());
    }
    Ok(hash.finalize()[..16].iter().fold(String::with_capacity(32), |mut text, byte| {
        text.extend([byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')));
        text
    }))
}

/// Removes the journals of FIFOs that no longer exist. Those in use are left alone.
pub fn sweep(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(file) = owned::open(&path) else { continue };
        let mut len = [0; 8];
        let mut name = [0; NAME_MAX];
        // A journal that is just being created has no name yet.
        let at = Word::NameLen as u64 * 8;
        let Some(name) = file.read_exact_at(&mut len, at).ok().and_then(|()| {
            let len = usize::try_from(u64::from_ne_bytes(len)).ok().filter(|len| (1..=NAME_MAX).contains(len))?;
            file.read_exact_at(&mut name[..len], NAME_AT).ok().map(|()| &name[..len])
        }) else {
            continue;
        };
        let fifo = Path::new(std::ffi::OsStr::from_bytes(name));
        let lives = std::fs::symlink_metadata(fifo).is_ok_and(|meta| meta.file_type().is_fifo());
        if !lives && rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    struct Stand {
        dir: tempfile::TempDir,
        read: OwnedFd,
        write: Option<File>,
    }

    fn stand() -> Stand {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        Stand { dir: tempfile::tempdir().unwrap(), read, write: Some(File::from(write)) }
    }

    impl Stand {
        async fn open(&self) -> io::Result<Journal> {
            Journal::open(&self.dir.path().join("journals"), &self.read, Path::new("/no/such/fifo")).await
        }

        fn write(&mut self, data: &[u8]) {
            self.write.as_mut().unwrap().write_all(data).unwrap();
        }

        fn files(&self) -> usize {
            std::fs::read_dir(self.dir.path().join("journals")).unwrap().count()
        }
    }

    #[tokio::test]
    async fn d2_what_was_taken_is_found_by_the_next() {
        // A journal that is dropped with pending data is like one whose reader was killed.
        let mut stand = stand();
        stand.write(b"some lines, longer than a guard\n");
        let mut first = stand.open().await.unwrap();
        assert_eq!(first.take(&stand.read, false).unwrap(), 32);
        drop(first);
        let second = stand.open().await.unwrap();
        let pending = second.pending().unwrap();
        assert_eq!(pending, Pending { from: 0, to: 32, piece: None });
        assert_eq!(second.resume(&pending, 0), b"some lines, longer than a guard\n");
        let target = Target { index: 3, inode: 5, size: 7 };
        second.ledger().begin(target, 11);
        drop(second);
        let third = stand.open().await.unwrap();
        let pending = third.pending().unwrap();
        assert_eq!(pending, Pending { from: 0, to: 32, piece: Some((target, 11)) });
        assert_eq!(third.resume(&pending, 11), b" longer than a guard\n");
        third.ledger().advance(21);
        assert_eq!(third.pending(), None);
        drop(third);
        assert_eq!(stand.files(), 0);
    }

    #[tokio::test]
    async fn d2_a_read_that_was_not_made_is_known_by_its_guard() {
        for data in [&b"x"[..], b"fifteen bytes..", b"sixteen bytes...", &[b'y'; 5000]] {
            let mut stand = stand();
            stand.write(data);
            let mut journal = stand.open().await.unwrap();
            // The state in which `take` leaves it when killed before `read(2)`.
            let guard = journal.new_guard(&stand.read, data.len()).unwrap();
            let n = data.len().min(GUARD);
            journal.data[data.len() - n..data.len()].copy_from_slice(&guard[..n]);
            journal.ledger.set(Word::Len, data.len() as u64);
            journal.ledger.set(Word::Guard, u64::from_ne_bytes(std::array::from_fn(|n| guard[n])));
            journal.ledger.set(Word::GuardMore, u64::from_ne_bytes(std::array::from_fn(|n| guard[n + 8])));
            journal.ledger.set(Word::State, READING);
            assert_eq!(journal.pending(), None);
            // And after `read(2)`.
            let len = rustix::io::read(&stand.read, &mut journal.data[..data.len()]).unwrap();
            assert_eq!(journal.pending(), Some(Pending { from: 0, to: len, piece: None }));
        }
    }

    /// A stream that fills its buffer gets a larger one, also from the successor of a killed reader, until it is idle.
    #[tokio::test]
    async fn d2_a_fast_stream_has_more_room_until_it_rests() {
        let mut stand = stand();
        rustix::pipe::fcntl_setpipe_size(&stand.read, FAST_SIZE).unwrap();
        let data: Vec<u8> = (0..FAST_SIZE).map(|n| n as u8 ^ (n >> 8) as u8).collect();
        let mut journal = stand.open().await.unwrap();
        let size = |journal: &Journal| journal.file.metadata().unwrap().len();
        let mut reads = 0;
        while journal.data.len() == SIZE {
            stand.write(&data[..SIZE]);
            assert_eq!(journal.take(&stand.read, false).unwrap(), SIZE);
            assert_eq!(journal.data(SIZE), &data[..SIZE]);
            journal.ledger().advance(SIZE);
            reads += 1;
        }
        assert_eq!(reads, FULL_READS + 1);
        stand.write(&data);
        assert_eq!(journal.take(&stand.read, false).unwrap(), FAST_SIZE);
        drop(journal);
        let mut journal = stand.open().await.unwrap();
        let pending = journal.pending().unwrap();
        assert_eq!(journal.resume(&pending, 0), data);
        // Not while it holds data.
        journal.rest();
        assert_eq!(size(&journal), DATA_AT + FAST_SIZE as u64);
        journal.ledger().advance(FAST_SIZE);
        journal.rest();
        assert_eq!((journal.data.len(), size(&journal)), (SIZE, DATA_AT + SIZE as u64));
        // A read that is not full interrupts the row.
        for n in 0..2 * FULL_READS as usize {
            let len = SIZE - usize::from(n % FULL_READS as usize == 0);
            stand.write(&data[..len]);
            assert_eq!(journal.take(&stand.read, false).unwrap(), len);
            journal.ledger().advance(len);
        }
        assert_eq!(journal.data.len(), SIZE);
    }

    #[tokio::test]
    async fn d2_the_end_and_nothing_are_told_apart() {
        let mut stand = stand();
        let mut journal = stand.open().await.unwrap();
        for last in [false, true] {
            assert_eq!(journal.take(&stand.read, last).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        }
        stand.write(b"abc");
        drop(stand.write.take());
        assert_eq!(journal.take(&stand.read, false).unwrap(), 3);
        assert_eq!(journal.data(3), b"abc");
        for last in [false, true] {
            assert_eq!(journal.take(&stand.read, last).unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn d2_two_readers_do_not_share_a_journal() {
        let stand = stand();
        let first = stand.open().await.unwrap();
        assert_eq!(stand.open().await.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        stand.open().await.unwrap();
    }

    #[tokio::test]
    async fn d2_a_journal_whose_fifo_is_gone_is_swept() {
        let mut stand = stand();
        stand.write(b"data\n");
        let mut journal = stand.open().await.unwrap();
        journal.take(&stand.read, false).unwrap();
        let dir = stand.dir.path().join("journals");
        sweep(&dir);
        assert_eq!(stand.files(), 1, "it is in use");
        drop(journal);
        assert_eq!(stand.files(), 1, "something is pending");
        sweep(&dir);
        assert_eq!(stand.files(), 0);
    }

    /// D68: neither a sweep nor a reader waits for a writer that never comes.
    #[tokio::test]
    async fn d2_what_is_no_journal_holds_nobody_up() {
        let stand = stand();
        let journal = stand.open().await.unwrap();
        let path = journal.path.clone();
        drop(journal);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(stand.open().await.is_err());
        sweep(path.parent().unwrap());
        assert_eq!(stand.files(), 1, "what is not a journal is not ours to remove");
    }

    #[tokio::test]
    async fn d2_a_folder_that_others_can_write_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let stand = stand();
        let dir = stand.dir.path().join("journals");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(stand.open().await.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
