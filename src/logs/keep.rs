//! Copies of a task's rotated files in another directory. A task may have put anything into the directory of its logs, so only
//! plain files are copied, checked by their descriptors, under names that a collector uses, and not more of each than a collector
//! writes.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags};

use super::dir;
use crate::spec::collections::BTreeSet;
use crate::sys::mutant;
use crate::sys::owned::OwnDir;
use crate::sys::path::Root;

/// Bytes copied between two checks of the cancel flag.
const CHUNK_BYTES: u64 = 1 << 20;

/// One stream whose files are copied.
#[derive(Debug, Clone)]
pub struct Kept {
    /// The base name of its files, `<task>.stdout`.
    pub base: String,
    /// Files that a collector keeps: at most this many, the newest, are copied.
    pub max_files: u32,
    /// Bytes of a file that a collector fills.
    pub max_bytes: u64,
}

/// A file that could not be copied; the others were copied.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {source}")]
pub struct KeepError {
    /// The file.
    name: String,
    /// Why not.
    source: io::Error,
}

/// Copies the files of these streams from `logs` into `into`, as new files that only this user can read (0600).
///
/// # Errors
/// When `logs` cannot be listed or is a symlink; `Interrupted` when `cancel` has become true, and what is copied by then stays.
pub fn keep(logs: &Path, streams: &[Kept], into: &OwnDir, cancel: &AtomicBool) -> io::Result<Vec<KeepError>> {
    let from = dir::open_dir(logs)?;
    let mut errors = Vec::new();
    for stream in streams {
        let found = dir::list(&from, &stream.base)?;
        let indexes = found.indexes();
        let first = indexes.len().saturating_sub(stream.max_files.max(1) as usize);
        let wanted: BTreeSet<u64> = indexes[first..].iter().copied().collect();
        let plain = found.plain.iter().filter(|entry| entry.regular).map(|entry| (entry.index, false));
        for (index, packed) in plain.chain(found.packed.iter().map(|index| (*index, true))) {
            if !wanted.contains(&index) {
                continue;
            }
            let name = if packed { dir::packed_name(&stream.base, index) } else { dir::file_name(&stream.base, index) };
            match copy(&from, &name, stream.max_bytes, into, cancel) {
                Ok(()) => {}
                Err(source) if source.kind() == io::ErrorKind::Interrupted => return Err(source),
                Err(source) => errors.push(KeepError { name, source }),
            }
        }
    }
    Ok(errors)
}

fn copy(from: &Root, name: &str, most: u64, into: &OwnDir, cancel: &AtomicBool) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let source: File = from.open_beneath(Path::new(name), flags, Mode::empty())?.into();
    let meta = source.metadata()?;
    // Another hard link may name a file that does not belong to the task.
    if !meta.is_file() || meta.nlink() != 1 || !dir::is_ours(from, meta.uid(), meta.mode(), meta.len() == 0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no plain file with one name that a collector made"));
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = if mutant::on("d62-mode") { 0o644 } else { 0o600 };
    let mut copy: File = rustix::fs::openat(into, name, flags, Mode::from_raw_mode(mode))?.into();
    let (mut source, mut copied) = (source.take(most), 0);
    loop {
        if cancel.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "it was given up"));
        }
        match io::copy(&mut (&mut source).take(CHUNK_BYTES), &mut copy)? {
            0 => break,
            more => copied += more,
        }
    }
    if meta.len() > copied {
        let text =
            format!("kept are the first {copied} of its {} bytes, which is all that a log file holds", meta.len());
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_what_a_collector_writes_is_copied() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        for name in ["logs", "kept"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::fs::set_permissions(at("kept"), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(at("secret"), "of the host").unwrap();
        let log = |name: &str| at("logs").join(name);
        for (name, text) in [("t.stdout.4", "four"), ("t.stdout.5", "five"), ("t.stdout-3.zst", "packed")] {
            std::fs::write(log(name), text).unwrap();
        }
        std::fs::set_permissions(log("t.stdout.5"), std::fs::Permissions::from_mode(0o4777)).unwrap();
        std::fs::write(log("t.stdout.0"), "too old").unwrap();
        std::fs::write(log("evil\x1b[2J.stdout.0"), "x").unwrap();
        std::os::unix::fs::symlink(at("secret"), log("t.stderr.0")).unwrap();
        std::fs::hard_link(at("secret"), log("t.stderr.1")).unwrap();
        File::create(log("t.stderr.2")).unwrap().set_len(1 << 40).unwrap();
        let kept = |name: &str| Kept { base: name.to_owned(), max_files: 3, max_bytes: 6 };
        let into = OwnDir::open(&at("kept")).unwrap();
        let wanted = AtomicBool::new(false);
        let errors = keep(&at("logs"), &[kept("t.stdout"), kept("t.stderr")], &into, &wanted).unwrap();
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(said.len() == 2 && said[0].contains("one name") && said[1].contains("first 6 of its"), "{said:?}");
        let mut found: Vec<(String, u32, String)> = std::fs::read_dir(at("kept"))
            .unwrap()
            .map(|entry| {
                let (name, path) = {
                    let e = entry.unwrap();
                    (e.file_name().into_string().unwrap(), e.path())
                };
                let mode = path.symlink_metadata().unwrap().permissions().mode();
                (name, mode & 0o7777, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        found.sort();
        let expected = [
            ("t.stderr.2", "\0\0\0\0\0\0"),
            ("t.stdout-3.zst", "packed"),
            ("t.stdout.4", "four"),
            ("t.stdout.5", "five"),
        ];
        assert_eq!(found, expected.map(|(name, text)| (name.to_owned(), 0o600, text.to_owned())));
        // Existing files are not overwritten.
        let again = keep(&at("logs"), &[kept("t.stdout")], &into, &wanted).unwrap();
        assert!(again.len() == 3 && again.iter().all(|e| e.source.kind() == io::ErrorKind::AlreadyExists), "{again:?}");
        std::os::unix::fs::symlink(at("logs"), at("link")).unwrap();
        assert!(keep(&at("link"), &[kept("t.stdout")], &into, &wanted).is_err());
        wanted.store(true, Ordering::Relaxed);
        let into = into.make_new("given-up".as_ref(), 0o700).unwrap();
        let given_up = keep(&at("logs"), &[kept("t.stdout")], &into, &wanted).unwrap_err();
        assert_eq!(given_up.kind(), io::ErrorKind::Interrupted);
    }
}
