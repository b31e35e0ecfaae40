//! Following: one stream's rotated files as one stream again.
//!
//! ```text
//!   read current file --data--> hand it out
//!        | end of file
//!        v
//!   a higher index exists? --no--> finishing? --yes--> end
//!        | yes                        | no: wait for a notice or the finish signal, read again
//!        v
//!   read current file once more (its writer left it before it made the next) --data--> hand it out
//!        | end of file
//!        v
//!   open the next one
//! ```
//!
//! Notices come from inotify, or from the writer itself ([`Notice`]). They are taken *before* the file is read, so that one that
//! arrives afterwards wakes us again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};

use super::notices::Notice;
use super::pack::{self, Packed};
use super::{dir, fifo};
use crate::sys::path::Root;

/// Bytes handed out at once, at most.
const CHUNK: usize = 64 * 1024;

/// How many indexes that were not listed are tried nevertheless, at a time.
const MOST_UNSEEN: usize = 100;

/// For how many files the final position is kept, in case later ones are deleted.
const MOST_LEFT: usize = 8;

/// How often to look if the kernel has no inotify instance left (there are few per user).
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Where to begin reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At the oldest byte that is there.
    Beginning,
    /// After the newest byte that is there.
    End,
    /// This many bytes after the oldest that is there, or at the end.
    Offset(u64),
    /// This many bytes before the end, or at the beginning.
    LastBytes(u64),
    /// This many lines before the end, or at the beginning. What follows the last line end counts as a line.
    LastLines(u64),
    /// At the position of an earlier follower. If that file is gone, at the next one, and the loss is reported.
    At(Cursor),
}

/// A position in a stream of rotated files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The `n` of `<base>.<n>`.
    pub index: u64,
    /// Used to detect whether it is still the same file.
    pub inode: u64,
    /// Bytes of it that were returned.
    pub offset: u64,
}

/// What a follower returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// The next bytes, never empty.
    Data(Vec<u8>),
    /// Files were deleted before they were read. Reported once, before the bytes that follow.
    Gap {
        /// How many; never 0.
        missing_files: u64,
    },
}

/// Reads one base name's files in order, across rotations, without loss or duplicates. Any number of followers may read the same
/// files.
#[derive(Debug)]
pub struct Follower {
    root: Root,
    base: String,
    current: Option<Current>,
    /// Without a current file: the lowest index that has not been read.
    expected: u64,
    watch: Option<Watch>,
    /// Names may have appeared since the directory was listed.
    look: bool,
    /// The lowest index at or below the current one that was created again.
    remade: Option<u64>,
    /// The final positions in the files that were read before the current one, the latest at the end.
    left: VecDeque<Cursor>,
    finish: Finisher,
}

#[derive(Debug)]
struct Current {
    file: Source,
    cursor: Cursor,
    watch: Option<i32>,
}

/// A file of the stream, plain or compressed.
#[derive(Debug)]
enum Source {
    Plain(File),
    Packed(Box<Packed>),
}

impl Source {
    /// The inode of the plain file, even if it is packed by now.
    fn inode(&self) -> io::Result<u64> {
        match self {
            Source::Plain(file) => Ok(file.metadata()?.ino()),
            Source::Packed(packed) => Ok(packed.facts.inode),
        }
    }

    fn size(&self) -> io::Result<u64> {
        match self {
            Source::Plain(file) => Ok(file.metadata()?.len()),
            Source::Packed(packed) => Ok(packed.facts.bytes),
        }
    }

    /// Whether the name by which it was found has been deleted; a packed file is complete in any case.
    fn is_deleted(&self) -> io::Result<bool> {
        match self {
            Source::Plain(file) => Ok(file.metadata()?.nlink() == 0),
            Source::Packed(_) => Ok(false),
        }
    }

    /// Reads what follows `offset`; a packed file is at that position already.
    fn read(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match self {
            Source::Plain(file) => Ok(rustix::io::retry_on_intr(|| rustix::io::pread(&*file, &mut *buffer, offset))?),
            Source::Packed(packed) => packed.read(buffer),
        }
    }
}

/// Tells a follower that the writer is done, or that there is something to read. Clones refer to the same follower.
#[derive(Debug, Clone, Default)]
pub struct Finisher(Arc<Finish>);

#[derive(Debug, Default)]
struct Finish {
    asked: AtomicBool,
    notify: Notify,
    /// How often somebody has asked for what is there.
    wanted: AtomicU64,
    /// The question that the follower has answered.
    seen: watch::Sender<u64>,
}

impl Finisher {
    /// From now on the follower ends at the end of the files. To be called when the last byte is written.
    pub fn finish(&self) {
        self.0.asked.store(true, Ordering::Release);
        self.0.notify.notify_one();
    }

    /// Waits until whoever calls [`Follower::next`] has taken everything that is written now, and calls it again; or until the
    /// follower is dropped.
    pub async fn caught_up(&self) {
        let wanted = self.0.wanted.fetch_add(1, Ordering::AcqRel) + 1;
        self.0.notify.notify_one();
        let mut seen = self.0.seen.subscribe();
        let _sender_is_ours = seen.wait_for(|seen| *seen >= wanted).await.map(drop);
    }

    fn asked(&self) -> bool {
        self.0.asked.load(Ordering::Acquire)
    }
}

/// What wakes one follower.
#[derive(Debug)]
enum Watch {
    /// The kernel.
    Inotify(Inotify),
    /// Who writes the files.
    Writer(AsyncFd<Arc<OwnedFd>>),
}

/// The inotify watches of one follower.
#[derive(Debug)]
struct Inotify {
    /// `None` only while it is dropped.
    fd: Option<AsyncFd<Arc<OwnedFd>>>,
    dir: i32,
}

impl Watch {
    fn fd(&self) -> &AsyncFd<Arc<OwnedFd>> {
        match self {
            Watch::Inotify(inotify) => inotify.fd(),
            Watch::Writer(counter) => counter,
        }
    }

    fn inotify(&self) -> Option<&Inotify> {
        match self {
            Watch::Inotify(inotify) => Some(inotify),
            Watch::Writer(_) => None,
        }
    }

    /// Takes all notices and calls `made` for each name that appeared, with `None` when any may have, or when a file's name may be
    /// gone.
    fn take(&self, mut made: impl FnMut(Option<&[u8]>)) -> io::Result<()> {
        let taken = match self {
            Watch::Inotify(inotify) => inotify.take(made),
            Watch::Writer(counter) => {
                counter.try_io(Interest::READABLE, |counter| Notice::take(counter)).map(|is_added| {
                    if is_added {
                        made(None);
                    }
                })
            }
        };
        match taken {
            Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
            _ => Ok(()),
        }
    }
}

impl Inotify {
    fn new(root: &Root) -> io::Result<Inotify> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let node = root.open_beneath(Path::new("."), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let flags = WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        let dir = inotify::add_watch(&fd, fifo::proc_path(&node), flags)?;
        Ok(Inotify { fd: Some(crate::sys::watch::register(Arc::new(fd), Interest::READABLE)?), dir })
    }

    fn fd(&self) -> &AsyncFd<Arc<OwnedFd>> {
        self.fd.as_ref().expect("there until it is dropped")
    }

    fn add_file(&self, file: &File) -> Option<i32> {
        inotify::add_watch(self.fd().get_ref(), fifo::proc_path(file), WatchFlags::MODIFY | WatchFlags::ATTRIB).ok()
    }

    fn remove(&self, watch: i32) {
        // The watch is gone already if the file was deleted.
        let _ = inotify::remove_watch(self.fd().get_ref(), watch);
    }

    /// As [`Watch::take`], until there are no more.
    fn take(&self, mut made: impl FnMut(Option<&[u8]>)) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); 4096];
        self.fd().try_io(Interest::READABLE, |fd| {
            let mut events = inotify::Reader::new(fd, &mut space);
            loop {
                let event = match events.next() {
                    Err(Errno::INTR) => continue,
                    other => other?,
                };
                if event.events().intersects(ReadFlags::QUEUE_OVERFLOW | ReadFlags::ATTRIB) {
                    made(None);
                } else if event.wd() == self.dir
                    && let Some(name) = event.file_name()
                {
                    made(Some(name.to_bytes()));
                }
            }
        })
    }
}

impl Drop for Inotify {
    /// Closing an inotify instance waits for a grace period of the kernel, up to 20 ms on an idle machine, so it is not done on the
    /// event loop.
    fn drop(&mut self) {
        let Some(fd) = self.fd.take().map(AsyncFd::into_inner) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(fd));
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.finish.0.seen.send_replace(u64::MAX);
    }
}

impl Follower {
    /// Begins to follow `<base>.<n>` in `dir`, which must exist and not be a symlink; the files need not exist yet.
    ///
    /// # Errors
    /// When the directory or a file in it cannot be opened.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn open(dir: &Path, base: &str, start: Start) -> io::Result<Follower> {
        let root = dir::open_dir(dir)?;
        let watch = Inotify::new(&root).ok().map(Watch::Inotify);
        Follower::watching(root, watch, base, start)
    }

    /// The same where whoever writes the files gives `notice` of it. The files of other writers are not waited for. A notice has one
    /// follower at a time.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Panics
    /// As [`open`](Self::open).
    pub fn told(dir: &Path, base: &str, start: Start, notice: &Notice) -> io::Result<Follower> {
        let watch = Watch::Writer(crate::sys::watch::register(notice.descriptor(), Interest::READABLE)?);
        Follower::watching(dir::open_dir(dir)?, Some(watch), base, start)
    }

    fn watching(root: Root, watch: Option<Watch>, base: &str, start: Start) -> io::Result<Follower> {
        let mut follower = Follower {
            watch,
            root,
            base: base.to_owned(),
            current: None,
            expected: 0,
            look: true,
            remade: None,
            left: VecDeque::new(),
            finish: Finisher::default(),
        };
        follower.go_to(start)?;
        Ok(follower)
    }

    /// Whether a file was there to begin with.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.current.is_some()
    }

    fn go_to(&mut self, start: Start) -> io::Result<()> {
        if let Start::At(cursor) = start {
            self.expected = cursor.index;
            if let Some(file) = self.open_index(cursor.index)?
                && file.inode()? == cursor.inode
            {
                self.read_from(file, cursor.index, cursor.offset)?;
            }
            return Ok(());
        }
        // Files may be purged between listing and opening: then list again.
        loop {
            let indexes = dir::list(&self.root, &self.base)?.indexes();
            if self.find(start, &indexes)? {
                return Ok(());
            }
            let Some(first) = indexes.first() else { return Ok(()) };
            if dir::list(&self.root, &self.base)?.indexes().contains(first) {
                // The files exist, but are not ours.
                return Ok(());
            }
        }
    }

    /// Moves to the start position among these files; `false` if none of them can be read.
    fn find(&mut self, start: Start, indexes: &[u64]) -> io::Result<bool> {
        let backwards = !matches!(start, Start::Beginning | Start::Offset(_));
        let mut order = indexes.to_vec();
        if backwards {
            order.reverse();
        }
        let mut left = match start {
            Start::Offset(n) | Start::LastBytes(n) | Start::LastLines(n) => n,
            _ => 0,
        };
        let mut newest = true;
        let mut reached = None;
        for index in order {
            let Some(mut file) = self.open_index(index)? else { continue };
            let size = file.size()?;
            let found = match start {
                Start::LastLines(0) | Start::End => Some(size),
                Start::LastLines(_) => line_start(&mut file, &mut left, newest)?,
                Start::LastBytes(_) => {
                    let at = size.checked_sub(left);
                    left = left.saturating_sub(size);
                    at
                }
                _ => {
                    let at = (left <= size).then_some(left);
                    left = left.saturating_sub(size);
                    at
                }
            };
            newest = false;
            reached = Some((index, if backwards { 0 } else { size }));
            if let Some(offset) = found {
                reached = Some((index, offset));
                break;
            }
        }
        let Some((index, offset)) = reached else { return Ok(false) };
        // Opened again: a packed file can only be read forwards.
        let Some(file) = self.open_index(index)? else { return Ok(false) };
        self.read_from(file, index, offset)?;
        Ok(true)
    }

    /// A handle that ends this follower.
    #[must_use]
    pub fn finisher(&self) -> Finisher {
        self.finish.clone()
    }

    /// The position of the follower; `None` before the first file.
    #[must_use]
    pub fn cursor(&self) -> Option<Cursor> {
        self.current.as_ref().map(|c| c.cursor)
    }

    /// The next bytes (64 KiB at most), waiting for them; `None` after [`Finisher::finish`] when everything is read.
    ///
    /// A file that was truncated below the read position is read from its start. Dropping the future loses nothing.
    ///
    /// # Errors
    /// What reading a file or the directory says. The next call tries again.
    pub async fn next(&mut self) -> io::Result<Option<Output>> {
        loop {
            tokio::task::coop::consume_budget().await;
            let finishing = self.finish.asked();
            let wanted = self.finish.0.wanted.load(Ordering::Acquire);
            self.take_notices()?;
            if let Some(data) = self.read()? {
                return Ok(Some(Output::Data(data)));
            }
            // Whoever asks does not wait until a notice has come.
            let is_asked = *self.finish.0.seen.borrow() < wanted;
            if self.look || finishing || is_asked || self.watch.is_none() {
                self.look = false;
                match self.step()? {
                    Step::Nothing => {}
                    Step::Again => {
                        self.look = true;
                        continue;
                    }
                    Step::Out(output) => {
                        self.look = true;
                        return Ok(Some(output));
                    }
                }
            }
            if finishing {
                return Ok(None);
            }
            self.finish.0.seen.send_replace(wanted);
            self.wait().await?;
        }
    }

    async fn wait(&self) -> io::Result<()> {
        let notice = async {
            if let Some(watch) = &self.watch {
                watch.fd().readable().await.map(|mut guard| guard.retain_ready())
            } else {
                tokio::time::sleep(LOOK_EVERY).await;
                Ok(())
            }
        };
        tokio::select! {
            result = notice => result,
            () = self.finish.0.notify.notified() => Ok(()),
        }
    }

    fn take_notices(&mut self) -> io::Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let (base, look, remade) = (self.base.as_str(), &mut self.look, &mut self.remade);
        let at = self.current.as_ref().map(|c| c.cursor.index);
        watch.take(|name| {
            let index = name.and_then(|name| dir::parse_index(base, name));
            *look |= index.is_some() || name.is_none();
            if let (Some(index), Some(at)) = (index, at)
                && index <= at
            {
                *remade = Some(remade.map_or(index, |lowest| lowest.min(index)));
            }
        })
    }

    /// The next bytes of the current file.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(Current { file, cursor, .. }) = &mut self.current else { return Ok(None) };
        let mut data = Vec::new();
        loop {
            // Allocated only if there is something to read: most calls find nothing.
            let size = file.size()?;
            if size < cursor.offset {
                cursor.offset = 0;
            }
            if size == cursor.offset {
                return Ok(None);
            }
            data.resize(CHUNK.min(usize::try_from(size - cursor.offset).unwrap_or(CHUNK)), 0);
            match file.read(&mut data, cursor.offset) {
                // The rest of it cannot be read.
                Ok(0) if matches!(file, Source::Packed(_)) => {
                    cursor.offset = size;
                    let text = "the compressed log file ends early";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                Err(error) => {
                    if matches!(file, Source::Packed(_)) {
                        cursor.offset = size;
                    }
                    return Err(error);
                }
                Ok(0) => {}
                Ok(n) => {
                    data.truncate(n);
                    cursor.offset += n as u64;
                    return Ok(Some(data));
                }
            }
        }
    }

    /// At the end of the current file: moves on to the next, if there is one.
    fn step(&mut self) -> io::Result<Step> {
        let named = self.remade.take();
        let (from, remade) = match &self.current {
            None => (self.expected, false),
            // The file that we read was deleted, and the writer began again at its index or a lower one.
            Some(current) if current.file.is_deleted()? => {
                match named.map_or_else(|| self.made_anew(), |n| Ok(Some(n)))? {
                    Some(index) => (index, true),
                    None => (current.cursor.index + 1, false),
                }
            }
            Some(current) => (current.cursor.index + 1, false),
        };
        let listing = dir::list(&self.root, &self.base)?;
        if !remade && self.step_back(listing.indexes().last().copied())? {
            return Ok(Step::Again);
        }
        let mut named: Vec<_> = listing.plain.iter().map(|e| e.index).chain(listing.packed.iter().copied()).collect();
        named.retain(|index| *index >= from);
        named.sort_unstable();
        named.dedup();
        let mut missing = 0;
        let mut expected = from;
        for index in named {
            // A file that was packed during the listing may have been listed under neither name.
            for unseen in (expected..index).take(MOST_UNSEEN) {
                if let Some(file) = self.open_index(unseen)? {
                    return self.go_on(file, unseen, unseen - expected + missing, remade);
                }
            }
            missing += index - expected;
            expected = index + 1;
            match self.open_index(index)? {
                Some(file) => return self.go_on(file, index, missing, remade),
                // Purged since it was listed, and then there is a later one; or not ours.
                None if self.is_gone(index)? => return Ok(Step::Again),
                None => {}
            }
        }
        Ok(Step::Nothing)
    }

    /// The lowest index at or below that of the current file, which is deleted, at which there is another file now. Inotify names
    /// it; without, it is looked for.
    fn made_anew(&self) -> io::Result<Option<u64>> {
        let (Some(current), None) = (&self.current, self.watch.as_ref().and_then(Watch::inotify)) else {
            return Ok(None);
        };
        let mut lowest = None;
        for read in self.left.iter().chain([&current.cursor]).filter(|read| read.index <= current.cursor.index) {
            let is_another = match self.open_index(read.index)? {
                // The inode of the file that is open cannot be in use again.
                Some(Source::Plain(file)) => file.metadata()?.ino() != read.inode,
                _ => false,
            };
            if is_another && lowest.is_none_or(|lowest| read.index < lowest) {
                lowest = Some(read.index);
            }
        }
        Ok(lowest)
    }

    /// If the newest file was deleted, a writer that is restarted continues with the previous one.
    fn step_back(&mut self, newest: Option<u64>) -> io::Result<bool> {
        let (Some(newest), Some(current)) = (newest, &self.current) else { return Ok(false) };
        if newest >= current.cursor.index || !current.file.is_deleted()? {
            return Ok(false);
        }
        let Some(left) = self.left.iter().rev().copied().find(|left| left.index == newest) else { return Ok(false) };
        match self.open_index(newest)? {
            Some(file) if file.inode()? == left.inode => self.read_from(file, newest, left.offset).map(|()| true),
            _ => Ok(false),
        }
    }

    fn go_on(&mut self, file: Source, index: u64, missing_files: u64, remade: bool) -> io::Result<Step> {
        // The writer had finished the current file before it created this one, so its content is complete now.
        if !remade && let Some(data) = self.read()? {
            return Ok(Step::Out(Output::Data(data)));
        }
        self.read_from(file, index, 0)?;
        Ok(if missing_files > 0 { Step::Out(Output::Gap { missing_files }) } else { Step::Again })
    }

    fn is_gone(&self, index: u64) -> io::Result<bool> {
        let listing = dir::list(&self.root, &self.base)?;
        Ok(listing.plain.iter().all(|e| e.index != index) && !listing.packed.contains(&index))
    }

    /// Opens a file of ours, plain or packed; `None` for anything else.
    fn open_index(&self, index: u64) -> io::Result<Option<Source>> {
        // When a file is packed, the plain one is removed last.
        if let Some(file) = pack::open_plain(&self.root, &self.base, index)? {
            return Ok(Some(Source::Plain(file)));
        }
        Ok(Packed::open(&self.root, &self.base, index)?.map(Box::new).map(Source::Packed))
    }

    fn read_from(&mut self, mut file: Source, index: u64, offset: u64) -> io::Result<()> {
        let cursor = Cursor { index, inode: file.inode()?, offset };
        self.look = true;
        let inotify = self.watch.as_ref().and_then(Watch::inotify);
        let added = match &mut file {
            Source::Plain(file) => inotify.map(|inotify| inotify.add_file(file)),
            Source::Packed(packed) => {
                packed.skip(offset)?;
                Some(None)
            }
        };
        if added == Some(None) && matches!(file, Source::Plain(_)) {
            // No inotify watches left: look from time to time instead.
            self.watch = None;
        }
        let Some(old) = self.current.replace(Current { file, cursor, watch: added.flatten() }) else { return Ok(()) };
        self.left.push_back(old.cursor);
        if self.left.len() > MOST_LEFT {
            self.left.pop_front();
        }
        if let (Some(inotify), Some(old)) = (self.watch.as_ref().and_then(Watch::inotify), old.watch) {
            inotify.remove(old);
        }
        Ok(())
    }
}

/// Where the last `left` lines of a file begin; `None` if it has fewer, which are then subtracted from `left`. `newest`: a line
/// end at the very end of the file ends a line and begins none.
fn line_start(file: &mut Source, left: &mut u64, newest: bool) -> io::Result<Option<u64>> {
    let size = file.size()?;
    if let Source::Packed(packed) = file
        && !newest
        && packed.facts.lines < *left
    {
        *left -= packed.facts.lines;
        return Ok(None);
    }
    // Scans for line ends from the front and keeps the last ones: a packed file cannot be read backwards.
    let keep = usize::try_from(*left).unwrap_or(usize::MAX).saturating_add(1);
    let mut starts: VecDeque<u64> = VecDeque::new();
    let (mut at, mut buffer) = (0, vec![0; CHUNK]);
    while at < size {
        let most = buffer.len().min(usize::try_from(size - at).unwrap_or(usize::MAX));
        let n = file.read(&mut buffer[..most], at)?;
        if n == 0 {
            break;
        }
        for end in memchr::memchr_iter(b'\n', &buffer[..n]) {
            starts.push_back(at + end as u64 + 1);
            if starts.len() > keep {
                starts.pop_front();
            }
        }
        at += n as u64;
    }
    if newest && starts.back() == Some(&at) {
        starts.pop_back();
    }
    // A file begins with a new line only if the previous file ended with a line end; that is decided there.
    let have = starts.len() as u64;
    if have >= *left {
        return Ok(starts.get(starts.len() - usize::try_from(*left).unwrap_or(0)).copied());
    }
    *left -= have;
    Ok(None)
}

enum Step {
    /// The current file is the last.
    Nothing,
    /// Something changed; read again.
    Again,
    /// Return this.
    Out(Output),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::super::notices::Notices;
    use super::super::rotator::{Limits, Rotator};
    use super::*;
    use crate::spec::LogKeeping;

    const BASE: &str = "t.stdout";

    fn rotator(dir: &TempDir, max_files: u32, size: u64) -> Rotator {
        Rotator::open(dir.path(), BASE, Limits { max_files, max_file_size_bytes: size, keeping: LogKeeping::default() })
            .unwrap()
    }

    fn follow(dir: &TempDir, start: Start) -> Follower {
        Follower::open(dir.path(), BASE, start).unwrap()
    }

    async fn next(follower: &mut Follower) -> Option<Output> {
        tokio::time::timeout(Duration::from_secs(10), follower.next()).await.expect("a lost wakeup").unwrap()
    }

    fn data(text: &str) -> Output {
        Output::Data(text.into())
    }

    async fn rest(mut follower: Follower) -> (Vec<u8>, u64) {
        let (mut all, mut missing) = (Vec::new(), 0);
        loop {
            match next(&mut follower).await {
                Some(Output::Data(data)) => all.extend(data),
                Some(Output::Gap { missing_files }) => missing += missing_files,
                None => return (all, missing),
            }
        }
    }

    #[tokio::test]
    async fn d2_follows_from_the_beginning_and_across_rotations() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = rotator(&dir, 10, 4);
        writer.write(b"one\ntwo\n");
        let mut follower = follow(&dir, Start::Beginning);
        assert_eq!(next(&mut follower).await, Some(data("one\n")));
        assert_eq!(next(&mut follower).await, Some(data("two\n")));
        let (read, ()) = tokio::join!(next(&mut follower), async {
            writer.write(b"six\n");
        });
        assert_eq!(read, Some(data("six\n")));
        let finisher = follower.finisher();
        let (read, ()) = tokio::join!(next(&mut follower), async { finisher.finish() });
        assert_eq!(read, None);
    }

    #[tokio::test]
    async fn d2_follows_from_the_end_and_before_the_first_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut early = follow(&dir, Start::Beginning);
        let mut writer = rotator(&dir, 10, 100);
        writer.write(b"old\n");
        assert_eq!(next(&mut early).await, Some(data("old\n")));
        let mut follower = follow(&dir, Start::End);
        writer.write(b"new\n");
        assert_eq!(next(&mut follower).await, Some(data("new\n")));
    }

    #[tokio::test]
    async fn d2_a_cursor_goes_on_where_another_stood() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = rotator(&dir, 2, 8);
        writer.write(b"one\n");
        let mut first = follow(&dir, Start::Beginning);
        assert_eq!(next(&mut first).await, Some(data("one\n")));
        let cursor = first.cursor().unwrap();
        drop(first);
        writer.write(b"two\n");
        let mut second = follow(&dir, Start::At(cursor));
        assert_eq!(next(&mut second).await, Some(data("two\n")));
        for _ in 0..3 {
            writer.write(b"another\n");
        }
        let third = follow(&dir, Start::At(cursor));
        third.finisher().finish();
        assert_eq!(rest(third).await, (b"another\nanother\n".to_vec(), 2));
    }

    #[tokio::test]
    async fn d2_a_gap_is_said_once_and_the_open_file_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = rotator(&dir, 2, 4);
        writer.write(b"000\n");
        let mut follower = follow(&dir, Start::Beginning);
        for n in 1..=5 {
            writer.write(format!("{n}{n}{n}\n").as_bytes());
        }
        assert_eq!(next(&mut follower).await, Some(data("000\n")));
        assert_eq!(next(&mut follower).await, Some(Output::Gap { missing_files: 3 }));
        assert_eq!(next(&mut follower).await, Some(data("444\n")));
        follower.finisher().finish();
        assert_eq!(rest(follower).await, (b"555\n".to_vec(), 0));
    }

    #[tokio::test]
    async fn d2_names_that_are_not_ours_are_neither_read_nor_a_gap() {
        let dir = tempfile::tempdir().unwrap();
        let path = |n: u32| dir.path().join(format!("{BASE}.{n}"));
        std::fs::write(dir.path().join("secret"), "of the host").unwrap();
        std::os::unix::fs::symlink("secret", path(1)).unwrap();
        std::fs::hard_link(dir.path().join("secret"), path(2)).unwrap();
        std::fs::create_dir(path(3)).unwrap();
        std::fs::write(path(0), "zero ").unwrap();
        std::fs::write(path(4), "four").unwrap();
        let follower = follow(&dir, Start::Beginning);
        follower.finisher().finish();
        assert_eq!(rest(follower).await, (b"zero four".to_vec(), 0));
    }

    /// What wakes the followers of a test.
    enum By {
        Inotify,
        Writer(Notice),
        Time,
    }

    impl By {
        fn follow(&self, dir: &TempDir, start: Start) -> Follower {
            match self {
                By::Inotify => follow(dir, start),
                By::Writer(notice) => Follower::told(dir.path(), BASE, start, notice).unwrap(),
                By::Time => {
                    let mut follower = follow(dir, start);
                    follower.watch = None;
                    follower
                }
            }
        }

        fn each() -> [By; 3] {
            [By::Inotify, By::Writer(Notices::new().unwrap().stdout), By::Time]
        }

        fn write(&self, path: &Path, text: &str) {
            let is_new = !path.exists();
            std::fs::write(path, text).unwrap();
            match self {
                By::Writer(notice) if is_new => notice.tell_of_file(),
                By::Writer(notice) => notice.tell(),
                _ => {}
            }
        }
    }

    #[tokio::test]
    async fn d2_truncation_and_deletion_are_survived() {
        for by in By::each() {
            let dir = tempfile::tempdir().unwrap();
            let path = |n: u32| dir.path().join(format!("{BASE}.{n}"));
            by.write(&path(0), "long line\n");
            let mut follower = by.follow(&dir, Start::Beginning);
            assert_eq!(next(&mut follower).await, Some(data("long line\n")));
            by.write(&path(0), "short\n");
            assert_eq!(next(&mut follower).await, Some(data("short\n")));
            std::fs::remove_file(path(0)).unwrap();
            by.write(&path(0), "anew\n");
            assert_eq!(next(&mut follower).await, Some(data("anew\n")));
            by.write(&path(1), "next\n");
            assert_eq!(next(&mut follower).await, Some(data("next\n")));
            // The writer of everything anew begins with the lowest index. An inode that is in use is not given again.
            let _in_use = std::fs::File::open(path(0)).unwrap();
            std::fs::remove_file(path(0)).unwrap();
            std::fs::remove_file(path(1)).unwrap();
            by.write(&path(0), "from the start\n");
            assert_eq!(next(&mut follower).await, Some(data("from the start\n")));
        }
    }

    #[tokio::test]
    async fn d2_who_is_told_by_the_writer_sees_all_and_sleeps_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let notice = Notices::new().unwrap().stdout;
        let mut follower = Follower::told(dir.path(), BASE, Start::Beginning, &notice).unwrap();
        let mut writer = rotator(&dir, 10, 8).telling(Some(notice));
        for n in 0..100 {
            let line = format!("{n:03}\n");
            let (read, ()) = tokio::join!(next(&mut follower), async {
                tokio::task::yield_now().await;
                writer.write(line.as_bytes());
            });
            assert_eq!(read, Some(data(&line)));
        }
        // The directory is listed after a new file only.
        for (line, is_first) in [("100\n", true), ("101\n", false)] {
            assert!(tokio::time::timeout(Duration::from_millis(1), follower.next()).await.is_err());
            assert!(!follower.look);
            writer.write(line.as_bytes());
            follower.wait().await.unwrap();
            follower.take_notices().unwrap();
            assert_eq!(follower.look, is_first);
            assert_eq!(next(&mut follower).await, Some(data(line)));
        }
        // Somebody else's writing is not waited for.
        std::fs::write(dir.path().join("other.stdout.0"), "x").unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(1), follower.next()).await.is_err());
        let finisher = follower.finisher();
        let (read, ()) = tokio::join!(next(&mut follower), async { finisher.finish() });
        assert_eq!(read, None);
    }

    #[tokio::test]
    async fn d2_a_waiting_follower_can_be_dropped_and_asked_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = rotator(&dir, 10, 100);
        let mut follower = follow(&dir, Start::Beginning);
        for n in 0..20 {
            assert!(tokio::time::timeout(Duration::from_millis(1), follower.next()).await.is_err());
            writer.write(format!("{n}\n").as_bytes());
            assert_eq!(next(&mut follower).await, Some(data(&format!("{n}\n"))));
        }
    }

    #[tokio::test]
    async fn d2_a_follower_that_is_asked_has_taken_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = rotator(&dir, 10, 1000);
        let mut follower = Follower::open(dir.path(), BASE, Start::Beginning).unwrap();
        let (finisher, taken) = (follower.finisher(), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&taken);
        let reading = tokio::spawn(async move {
            while let Some(Output::Data(bytes)) = follower.next().await.unwrap() {
                tokio::task::yield_now().await;
                counter.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
        });
        for n in 1..200 {
            writer.write(b"12345678\n");
            finisher.caught_up().await;
            assert_eq!(taken.load(Ordering::Relaxed), n * 9);
        }
        finisher.finish();
        reading.await.unwrap();
        // Nobody reads any more.
        finisher.caught_up().await;
    }

    #[tokio::test]
    async fn d2_without_inotify_it_looks() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = rotator(&dir, 10, 4);
        let mut follower = By::Time.follow(&dir, Start::Beginning);
        writer.write(b"one\ntwo\n");
        assert_eq!(next(&mut follower).await, Some(data("one\n")));
        assert_eq!(next(&mut follower).await, Some(data("two\n")));
        let (read, ()) = tokio::join!(next(&mut follower), async {
            tokio::task::yield_now().await;
            writer.write(b"six\n");
        });
        assert_eq!(read, Some(data("six\n")));
    }

    /// A stream of `text` in files of `size` bytes, all but the last of them packed.
    fn packed(dir: &TempDir, text: &str, size: u64) -> Rotator {
        let keeping = LogKeeping { compress: true, max_age: None };
        let limits = Limits { max_files: 1000, max_file_size_bytes: size, keeping };
        let mut writer = Rotator::open(dir.path(), BASE, limits).unwrap();
        writer.write(text.as_bytes());
        while writer.chore_at().is_some() {
            writer.do_chore();
        }
        writer
    }

    async fn text_from(dir: &TempDir, start: Start) -> String {
        let follower = follow(dir, start);
        follower.finisher().finish();
        String::from_utf8(rest(follower).await.0).unwrap()
    }

    #[tokio::test]
    async fn d5_packed_files_are_read_like_others() {
        let dir = tempfile::tempdir().unwrap();
        let text = (0..40).map(|n| format!("line {n}\n")).collect::<Vec<_>>().concat();
        let mut writer = rotator(&dir, 1000, 60);
        writer.write(&text.as_bytes()[..30]);
        let mut early = follow(&dir, Start::Beginning);
        let mut read = Vec::new();
        while read.len() < 30 {
            let Some(Output::Data(data)) = next(&mut early).await else { panic!("ends early") };
            read.extend(data);
        }
        let cursor = early.cursor().unwrap();
        drop(writer);
        let _writer = packed(&dir, &text[30..], 60);
        let plain = std::fs::read_dir(dir.path())
            .unwrap()
            .filter(|e| dir::parse_index(BASE, e.as_ref().unwrap().file_name().as_encoded_bytes()).is_some());
        assert_eq!(plain.count(), 1);
        assert_eq!(text_from(&dir, Start::Beginning).await, text);
        // The file of which it had read a part is packed meanwhile.
        assert_eq!(text_from(&dir, Start::At(cursor)).await, &text[30..]);
        early.finisher().finish();
        assert_eq!(rest(early).await, (text.as_bytes()[30..].to_vec(), 0));
        let bytes = text.len() as u64;
        for n in [0, 1, 59, 60, 61, 200, bytes - 1, bytes, bytes + 1] {
            let at = usize::try_from(n.min(bytes)).unwrap();
            assert_eq!(text_from(&dir, Start::Offset(n)).await, &text[at..], "offset {n}");
            assert_eq!(text_from(&dir, Start::LastBytes(n)).await, &text[text.len() - at..], "last {n}");
        }
        for n in [0, 1, 2, 7, 8, 39, 40, 41] {
            let lines: Vec<_> = text.split_inclusive('\n').collect();
            let expected = lines[lines.len().saturating_sub(n)..].concat();
            assert_eq!(text_from(&dir, Start::LastLines(n as u64)).await, expected, "last {n} lines");
        }
    }

    #[tokio::test]
    async fn d5_an_unfinished_line_is_a_line() {
        let dir = tempfile::tempdir().unwrap();
        rotator(&dir, 10, 6).write(b"one\ntwo\nthr");
        assert_eq!(text_from(&dir, Start::LastLines(1)).await, "thr");
        assert_eq!(text_from(&dir, Start::LastLines(2)).await, "two\nthr");
        assert_eq!(text_from(&dir, Start::LastLines(9)).await, "one\ntwo\nthr");
    }

    #[tokio::test]
    async fn d5_a_broken_packed_file_is_an_error_and_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = packed(&dir, "one\ntwo\n", 4);
        writer.write(b"end\n");
        let path = dir.path().join(dir::packed_name(BASE, 0));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 8]).unwrap();
        let mut follower = follow(&dir, Start::Beginning);
        follower.finisher().finish();
        let mut errors = 0;
        let mut all = Vec::new();
        loop {
            match follower.next().await {
                Ok(Some(Output::Data(data))) => all.extend(data),
                Ok(Some(Output::Gap { .. })) => {}
                Ok(None) => break,
                Err(_) => errors += 1,
            }
        }
        assert!(errors == 1 && all.ends_with(b"two\nend\n"), "{errors} {all:?}");
    }

    /// A writer thread against `readers` followers, with a rotation every few lines.
    fn race(pieces: &[Vec<u8>], limit: u64, readers: usize) {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            // The last of them is told by the writer.
            let notice = Notices::new().unwrap().stdout;
            let watching = (1..readers).map(|_| follow(&dir, Start::Beginning));
            let told = Follower::told(dir.path(), BASE, Start::Beginning, &notice).unwrap();
            let followers: Vec<_> = watching.chain([told]).collect();
            let finishers: Vec<_> = followers.iter().map(Follower::finisher).collect();
            let mut writer = rotator(&dir, 1_000_000, limit).telling(Some(notice));
            let (pieces, expected) = (pieces.to_vec(), pieces.concat());
            let thread = std::thread::spawn(move || {
                for piece in pieces {
                    assert!(writer.write(&piece).is_none());
                }
                finishers.iter().for_each(Finisher::finish);
            });
            let tasks: Vec<_> = followers.into_iter().map(|f| crate::sys::task::spawn(rest(f))).collect();
            for task in tasks {
                let (read, missing) = task.await.unwrap();
                assert!(missing == 0 && read == expected, "{} of {} bytes", read.len(), expected.len());
            }
            thread.join().unwrap();
        });
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn d2_bytes_out_are_bytes_in(
            pieces in proptest::collection::vec(proptest::collection::vec(97_u8..105, 0..300), 1..120),
            limit in 20_u64..2000,
        ) {
            race(&pieces, limit, 2);
        }
    }

    #[test]
    fn d2_bytes_out_are_bytes_in_over_a_thousand_rotations() {
        let pieces: Vec<_> = (0..1200).map(|n| format!("{n:0width$}\n", width = n % 50 + 5).into_bytes()).collect();
        race(&pieces, 60, 3);
    }
}
