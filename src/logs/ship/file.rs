//! JSON lines in a file. Other processes may write to it as well, and others may rotate it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use rustix::fs::FlockOperation;
use serde_json::json;

use super::entry::Batch;
use super::{Labels, Stream};

/// The file of a sink.
#[derive(Debug)]
pub(super) struct FileSink {
    path: PathBuf,
    max_bytes: Option<u64>,
    max_files: u32,
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
        FileSink { path: path.to_owned(), max_bytes, max_files }
    }

    /// Appends whole lines, all of them or none. Blocks.
    pub(super) fn append(&self, lines: &[u8]) -> io::Result<()> {
        loop {
            let file = self.open()?;
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            let (metadata, named) = (file.metadata()?, std::fs::metadata(&self.path));
            if named.is_ok_and(|named| (named.dev(), named.ino()) != (metadata.dev(), metadata.ino())) {
                // Rotated between opening and locking.
                continue;
            }
            let size = metadata.len();
            if size > 0 && self.max_bytes.is_some_and(|max| size + lines.len() as u64 > max) {
                self.rotate()?;
                continue;
            }
            return write(&file, size, lines).inspect_err(|_| {
                // What is there of it would come twice. Under the lock nobody has written behind it.
                let _ = file.set_len(size);
            });
        }
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // A FIFO without a reader must not hold us.
        options.read(true).append(true).create(true).mode(0o640).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(&self.path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        Ok(file)
    }

    /// `<path>` becomes `<path>.1`, that one `<path>.2`, up to the number of files.
    fn rotate(&self) -> io::Result<()> {
        let name = |n: u32| {
            let mut name = self.path.clone().into_os_string();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..self.max_files.saturating_sub(1)).rev() {
            match std::fs::rename(name(n), name(n + 1)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        if self.max_files > 1 { std::fs::rename(&self.path, name(1)) } else { std::fs::remove_file(&self.path) }
    }
}

fn write(mut file: &File, size: u64, lines: &[u8]) -> io::Result<()> {
    let mut last = [b'\n'];
    if size > 0 {
        file.read_exact_at(&mut last, size - 1)?;
    }
    if last != [b'\n'] {
        // Whoever wrote there was killed.
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
}
