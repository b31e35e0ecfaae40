//! JSON lines in a file. Other processes may write to it as well, and others may rotate it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use rustix::event::Timespec;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::entry::Batch;
use super::{Labels, Stream};
use crate::spec::json::json;
use crate::sys::mutant;
use crate::sys::path::Root;

/// How long another writer may hold the lock, which is taken for one write or rename.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause between two attempts to take the lock.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// The file of a sink.
#[derive(Debug)]
pub(super) struct FileSink {
    path: PathBuf,
    max_bytes: Option<u64>,
    max_files: u32,
    /// The lock was not released the last time: do not wait for it again.
    is_held: AtomicBool,
}

/// The entries from `first` on as JSON, one to a line.
pub(super) fn encode(labels: &Labels, stream: Stream, batch: &Batch, first: usize) -> Vec<u8> {
    let time = humantime::format_rfc3339_micros(batch.time).to_string();
    let mut out = Vec::new();
    for entry in &batch.entries[first..] {
        let mut object = json!({
            "time": time,
            "job": labels.job,
            "group": labels.group,
            "task": labels.task,
            "alloc": labels.alloc,
            "stream": stream.name(),
            "file": entry.at.index,
            "offset": entry.at.offset,
        });
        let text = batch.text(entry);
        match std::str::from_utf8(text) {
            Ok(text) => object["line"] = text.into(),
            Err(_) => object["base64"] = base64::engine::general_purpose::STANDARD.encode(text).into(),
        }
        if entry.partial {
            object["partial"] = true.into();
        }
        // Writing to memory does not fail.
        let _ = serde_json::to_writer(&mut out, &object);
        out.push(b'\n');
    }
    out
}

impl FileSink {
    pub(super) fn new(path: &Path, max_bytes: Option<u64>, max_files: u32) -> FileSink {
        FileSink { path: path.to_owned(), max_bytes, max_files, is_held: AtomicBool::new(false) }
    }

    /// Appends whole lines, all of them or none. Blocks.
    pub(super) fn append(&self, lines: &[u8]) -> io::Result<()> {
        let (dir, name) = self.dir()?;
        loop {
            let file = self.open(&dir, &name)?;
            let alone = self.lock(&file)?;
            let itself = if mutant::on("d63") { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
            let (metadata, named) = (file.metadata()?, rustix::fs::statat(&dir, &name, itself));
            if named.is_ok_and(|named| (named.st_dev, named.st_ino) != (metadata.dev(), metadata.ino())) {
                // The file was rotated between opening and locking.
                continue;
            }
            let size = metadata.len();
            if alone && size > 0 && self.max_bytes.is_some_and(|max| size + lines.len() as u64 > max) {
                self.rotate(&dir, &name)?;
                continue;
            }
            return write(&file, size, lines).inspect_err(|_| {
                // What was written of it would be duplicated by a retry. Under the lock, no other process has appended to it.
                let _ = if alone { file.set_len(size) } else { Ok(()) };
            });
        }
    }

    /// Locks the file, or gives up: any user who can read the file can hold the lock for ever. Lines written without the lock are
    /// still written whole and at the end, because one call appends them; the file is not rotated meanwhile.
    fn lock(&self, file: &File) -> io::Result<bool> {
        if mutant::on("d77") {
            return Ok(rustix::fs::flock(file, FlockOperation::LockExclusive).map(|()| true)?);
        }
        let deadline = Instant::now() + if self.is_held.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
        loop {
            match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    // The kernel has no event for a released lock.
                    rustix::event::poll(&mut [], Some(&AGAIN))?;
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    self.is_held.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                locked => {
                    locked?;
                    self.is_held.store(false, Ordering::Relaxed);
                    return Ok(true);
                }
            }
        }
    }

    /// The directory and the name of the file. No component of the path may be a symlink: the file may lie where a task can write,
    /// and the task could point a symlink anywhere.
    fn dir(&self) -> io::Result<(Root, OsString)> {
        let name = self.path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = self.path.parent().and_then(|parent| parent.strip_prefix("/").ok()).unwrap_or(Path::new("."));
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        if mutant::on("d63") {
            return Ok((Root::open(&Path::new("/").join(parent))?, name.to_owned()));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let dir = Root::open(Path::new("/"))?.open_beneath(parent, flags, Mode::empty()).map_err(|e| self.named(e))?;
        Ok((Root::from_fd(dir), name.to_owned()))
    }

    fn named(&self, error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::ELOOP) => {
                let text = format!(
                    "{} is a link, or is reached through one: write the path that it leads to",
                    self.path.display()
                );
                io::Error::new(io::ErrorKind::InvalidInput, text)
            }
            _ => error,
        }
    }

    fn open(&self, dir: &Root, name: &OsStr) -> io::Result<File> {
        // A FIFO without a reader must not block us.
        let mut flags =
            OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        if !mutant::on("d63") {
            flags |= OFlags::NOFOLLOW;
        }
        let opened = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o640));
        let file: File = opened.map_err(|error| self.named(error.into()))?.into();
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        if metadata.nlink() > 1 {
            let text = "the file has a second name, and may be somebody else's: remove it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(file)
    }

    /// `<path>` becomes `<path>.1`, that one `<path>.2`, up to the number of files.
    fn rotate(&self, dir: &Root, own: &OsStr) -> io::Result<()> {
        let name = |n: u32| {
            let mut name = own.to_owned();
            name.push(format!(".{n}"));
            name
        };
        for n in (1..self.max_files.saturating_sub(1)).rev() {
            match rustix::fs::renameat(dir, name(n), dir, name(n + 1)) {
                Err(Errno::NOENT) | Ok(()) => {}
                Err(e) => return Err(e.into()),
            }
        }
        if self.max_files > 1 {
            rustix::fs::renameat(dir, own, dir, name(1))?;
        } else {
            rustix::fs::unlinkat(dir, own, AtFlags::empty())?;
        }
        Ok(())
    }
}

fn write(mut file: &File, size: u64, lines: &[u8]) -> io::Result<()> {
    let mut last = [b'\n'];
    if size > 0 {
        file.read_exact_at(&mut last, size - 1)?;
    }
    if last != [b'\n'] {
        // A process was killed while it wrote there.
        file.write_all(b"\n")?;
    }
    file.write_all(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_files_are_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.json");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
        std::fs::write(&path, "half").unwrap();
        FileSink::new(&path, None, 5).append(b"one\n").unwrap();
        assert_eq!(read("out.json"), "half\none\n");
        let small = FileSink::new(&path, Some(10), 3);
        for n in 0..5 {
            small.append(format!("line {n}\n").as_bytes()).unwrap();
        }
        assert_eq!((read("out.json.2"), read("out.json.1")), ("line 2\n".into(), "line 3\n".into()));
        assert_eq!((read("out.json"), read("out.json.3")), ("line 4\n".into(), String::new()));
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        small.append(b"anew\n").unwrap();
        assert_eq!(read("out.json"), "anew\n");
        assert!(FileSink::new(dir.path(), None, 1).append(b"x\n").is_err());
    }

    /// D63
    #[test]
    fn no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("there")).unwrap();
        std::fs::write(at("there/file"), "untouched").unwrap();
        std::os::unix::fs::symlink("there/file", at("link")).unwrap();
        std::os::unix::fs::symlink("there/new", at("dangling")).unwrap();
        std::os::unix::fs::symlink("there", at("way")).unwrap();
        std::fs::hard_link(at("there/file"), at("second")).unwrap();
        for (name, why) in
            [("link", "is a link"), ("dangling", "is a link"), ("way/new", "link"), ("second", "second name")]
        {
            let error = FileSink::new(&at(name), Some(1), 3).append(b"x\n").unwrap_err().to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
        assert!(std::fs::read_to_string(at("there/file")).unwrap() == "untouched" && !at("there/new").exists());
    }
}
