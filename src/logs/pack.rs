//! Full files, compressed while their stream is idle, and decompressed for reading.
//!
//! A packed file can be read by every zstd tool. It begins with a skippable frame that describes the plain file, so that a
//! position in the plain file can be found in the packed one:
//!
//! ```text
//!   5a 2a 4d 18 | 24, 4 bytes | inode, 8 bytes | bytes, 8 bytes | lines, 8 bytes | the compressed file
//! ```
//!
//! (little endian). It is written under a temporary name, and renamed when it is complete; the plain file is removed last.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{FileExt as _, MetadataExt};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags};
use zstd::stream::raw::{Encoder, InBuffer, Operation as _, OutBuffer};

use super::dir;
use crate::sys::path::Root;

/// Bytes read at once: about a millisecond of work.
const SLICE: usize = 128 * 1024;

/// Fast; higher levels compress log lines only little better.
const LEVEL: i32 = 3;

/// The window, as a power of two: with it an encoder needs about 1 MiB.
const WINDOW_LOG: u32 = 18;

const MAGIC: u32 = 0x184D_2A5A;
const HEAD: usize = 32;

/// The description of the plain file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Facts {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    pub(super) lines: u64,
}

impl Facts {
    fn encode(self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&MAGIC.to_le_bytes());
        head[4..8].copy_from_slice(&(HEAD as u32 - 8).to_le_bytes());
        for (at, number) in [(8, self.inode), (16, self.bytes), (24, self.lines)] {
            head[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        head
    }

    fn decode(head: &[u8; HEAD]) -> Option<Facts> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| head[at + n]));
        let ours = head[..8] == Facts::default().encode()[..8];
        ours.then(|| Facts { inode: number(8), bytes: number(16), lines: number(24) })
    }
}

fn part_name(base: &str, index: u64) -> String {
    format!("{}.part", dir::packed_name(base, index))
}

/// A file that is being packed, slice by slice.
pub(super) struct Packing {
    index: u64,
    plain: File,
    part: File,
    encoder: Encoder<'static>,
    facts: Facts,
    slice: Vec<u8>,
    packed: Vec<u8>,
}

impl std::fmt::Debug for Packing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packing").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Packing {
    /// Begins to pack `<base>.<index>`; `None` if that is not a file of ours.
    pub(super) fn begin(root: &Root, base: &str, index: u64) -> io::Result<Option<Packing>> {
        let Some(plain) = open_plain(root, base, index)? else { return Ok(None) };
        let name = part_name(base, index);
        // A leftover of a killed predecessor, or another user's file, under that name.
        let _ = rustix::fs::unlinkat(root, &name, AtFlags::empty());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let part = File::from(root.open_beneath(Path::new(&name), flags, Mode::from_raw_mode(0o644))?);
        rustix::fs::fchmod(&part, Mode::from_raw_mode(0o644))?;
        let mut encoder = Encoder::new(LEVEL)?;
        encoder.set_parameter(zstd::zstd_safe::CParameter::WindowLog(WINDOW_LOG))?;
        encoder.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))?;
        let facts = Facts { inode: plain.metadata()?.ino(), ..Facts::default() };
        let mut packing = Packing {
            index,
            plain,
            part,
            encoder,
            facts,
            slice: vec![0; SLICE],
            packed: vec![0; zstd::zstd_safe::CCtx::out_size()],
        };
        packing.part.write_all(&packing.facts.encode())?;
        Ok(Some(packing))
    }

    /// The index of the file.
    pub(super) fn index(&self) -> u64 {
        self.index
    }

    /// Packs one more slice; `true` when the packed file has replaced the plain one.
    pub(super) fn step(&mut self, root: &Root, base: &str) -> io::Result<bool> {
        let n = self.plain.read_at(&mut self.slice, self.facts.bytes)?;
        if n == 0 {
            self.finish(root, base)?;
            return Ok(true);
        }
        self.facts.bytes += n as u64;
        self.facts.lines += memchr::memchr_iter(b'\n', &self.slice[..n]).count() as u64;
        let mut input = InBuffer::around(&self.slice[..n]);
        while input.pos() < n {
            let mut output = OutBuffer::around(&mut self.packed[..]);
            self.encoder.run(&mut input, &mut output)?;
            self.part.write_all(output.as_slice())?;
        }
        Ok(false)
    }

    fn finish(&mut self, root: &Root, base: &str) -> io::Result<()> {
        loop {
            let mut output = OutBuffer::around(&mut self.packed[..]);
            let left = self.encoder.finish(&mut output, true)?;
            self.part.write_all(output.as_slice())?;
            if left == 0 {
                break;
            }
        }
        self.part.write_all_at(&self.facts.encode(), 0)?;
        // Its age counts from its last line.
        let modified = self.plain.metadata()?.modified()?;
        self.part.set_modified(modified)?;
        let (part, packed) = (part_name(base, self.index), dir::packed_name(base, self.index));
        rustix::fs::renameat(root, &part, root, &packed)?;
        rustix::fs::unlinkat(root, dir::file_name(base, self.index), AtFlags::empty())?;
        Ok(())
    }

    /// Gives up.
    pub(super) fn abandon(self, root: &Root, base: &str) {
        let _ = rustix::fs::unlinkat(root, part_name(base, self.index), AtFlags::empty());
    }
}

/// Opens a plain file that has no other name (a hard link may lead to a host file); `None` for anything else.
pub(super) fn open_plain(root: &Root, base: &str, index: u64) -> io::Result<Option<File>> {
    open_own(root, &dir::file_name(base, index))
}

fn open_own(root: &Root, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    match root.open_beneath(Path::new(name), flags, Mode::empty()) {
        Ok(fd) => {
            let file = File::from(fd);
            let meta = file.metadata()?;
            let ours = dir::is_ours(root, meta.uid(), meta.mode(), meta.len() == 0);
            Ok(Some(file).filter(|_| meta.is_file() && meta.nlink() <= 1 && ours))
        }
        // EAGAIN: its owner holds a lease on it, so it is not ours.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOENT | libc::ELOOP | libc::ENXIO | libc::ENODEV | libc::EAGAIN)
            ) =>
        {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// A packed file that is being read.
pub(super) struct Packed {
    decoder: zstd::stream::read::Decoder<'static, BufReader<File>>,
    pub(super) facts: Facts,
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packed").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Packed {
    /// Opens `<base>-<index>.zst`; `None` if that is not a file of ours.
    pub(super) fn open(root: &Root, base: &str, index: u64) -> io::Result<Option<Packed>> {
        let Some(file) = open_own(root, &dir::packed_name(base, index))? else { return Ok(None) };
        let mut head = [0; HEAD];
        let facts = match file.read_exact_at(&mut head, 0) {
            Ok(()) => Facts::decode(&head),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            Err(e) => return Err(e),
        };
        let Some(facts) = facts else { return Ok(None) };
        let mut decoder = zstd::stream::read::Decoder::new(file)?;
        // A file that another user put here must not make us use more memory than our own files do.
        decoder.window_log_max(WINDOW_LOG.max(21))?;
        Ok(Some(Packed { decoder, facts }))
    }

    /// Skips the next bytes.
    pub(super) fn skip(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut self.decoder.by_ref().take(bytes), &mut io::sink()).map(drop)
    }
}

impl Read for Packed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decoder.read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pack(dir: &Path, text: &[u8]) -> Root {
        std::fs::write(dir.join("t.3"), text).unwrap();
        let root = dir::open_dir(dir).unwrap();
        let mut packing = Packing::begin(&root, "t", 3).unwrap().unwrap();
        while !packing.step(&root, "t").unwrap() {}
        root
    }

    #[test]
    fn d2_what_is_packed_comes_out_again() {
        let dir = tempfile::tempdir().unwrap();
        for text in [Vec::new(), b"one\ntwo\n".to_vec(), b"0123456789 some line\n".repeat(50_000)] {
            let root = pack(dir.path(), &text);
            let mut packed = Packed::open(&root, "t", 3).unwrap().unwrap();
            let lines = memchr::memchr_iter(b'\n', &text).count() as u64;
            assert_eq!((packed.facts.bytes, packed.facts.lines), (text.len() as u64, lines));
            let (mut all, from) = (Vec::new(), text.len() / 3);
            packed.skip(from as u64).unwrap();
            packed.read_to_end(&mut all).unwrap();
            assert!(all == text[from..]);
            let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, ["t-3.zst"]);
        }
    }

    #[test]
    fn d2_what_is_no_packed_file_of_ours_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir::open_dir(dir.path()).unwrap();
        std::fs::write(dir.path().join("t-0.zst"), "short").unwrap();
        std::fs::write(dir.path().join("t-1.zst"), zstd::encode_all(&[b'x'; 1000][..], 1).unwrap()).unwrap();
        std::os::unix::fs::symlink("t-1.zst", dir.path().join("t-2.zst")).unwrap();
        for index in 0..4 {
            assert!(Packed::open(&root, "t", index).unwrap().is_none(), "{index}");
        }
        let mut broken = Facts { inode: 1, bytes: 10, lines: 0 }.encode().to_vec();
        broken.extend([0xff; 40]);
        std::fs::write(dir.path().join("t-3.zst"), broken).unwrap();
        assert!(Packed::open(&root, "t", 3).unwrap().unwrap().read_to_end(&mut Vec::new()).is_err());
    }

    #[test]
    fn d2_packing_writes_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let canary = dir.path().join("canary");
        std::fs::write(&canary, "host").unwrap();
        for plant in [true, false] {
            let part = dir.path().join("t-3.zst.part");
            if plant {
                std::fs::hard_link(&canary, part).unwrap();
            } else {
                std::os::unix::fs::symlink(&canary, part).unwrap();
            }
            pack(dir.path(), b"text\n");
            assert_eq!(std::fs::read_to_string(&canary).unwrap(), "host");
        }
    }
}
