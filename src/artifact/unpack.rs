//! Unpacks archives. The crates for the formats only read; every entry is written here, beneath one directory, and no write
//! follows a link.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Limits;
use crate::spec::ArchiveKind;
use crate::sys::path::Root;

/// Deepest directory.
const DEEPEST: usize = 64;
/// Longest target of a link, in bytes: `PATH_MAX`.
const LONGEST_LINK: u64 = 4096;
/// The zstd window as a power of two: what the zstd program accepts by default.
const ZSTD_WINDOW_LOG: u32 = 27;
/// Memory for the dictionary of xz, in KiB: what its highest level needs.
const XZ_MEMORY_KIB: u32 = 128 * 1024;
/// The name for the content of a compressed file that has no names.
const SINGLE: &str = "file";

/// The directory into which an archive is unpacked, and the counts so far.
#[derive(Debug)]
pub(super) struct Unpacked<'a> {
    root: &'a Root,
    limits: Limits,
    /// Size of the archive.
    packed: u64,
    bytes: u64,
    entries: u64,
    files: Vec<PathBuf>,
}

fn refuse(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

impl<'a> Unpacked<'a> {
    pub(super) fn new(root: &'a Root, limits: Limits, packed: u64) -> Unpacked<'a> {
        Unpacked { root, limits, packed, bytes: 0, entries: 0, files: Vec::new() }
    }

    /// The paths of all files.
    pub(super) fn into_files(self) -> Vec<PathBuf> {
        self.files
    }

    fn count_entry(&mut self) -> io::Result<()> {
        self.entries += 1;
        if self.entries > self.limits.files {
            return Err(refuse(format!("it holds more than {} files, the limit of an artifact", self.limits.files)));
        }
        Ok(())
    }

    fn count_bytes(&mut self, more: u64) -> io::Result<()> {
        self.bytes += more;
        if self.bytes > self.limits.bytes {
            return Err(refuse(format!("it holds more than {} bytes, the limit of an artifact", self.limits.bytes)));
        }
        if self.bytes > Limits::FREE_BYTES && self.bytes / self.packed.max(1) > self.limits.ratio {
            let ratio = self.limits.ratio;
            return Err(refuse(format!(
                "it becomes more than {ratio} times its size, as only what is made to fill disks does"
            )));
        }
        Ok(())
    }

    /// A name in the archive as a path below the directory.
    fn path(name: &[u8]) -> io::Result<PathBuf> {
        let shown = || String::from_utf8_lossy(name).into_owned();
        let mut clean = PathBuf::new();
        for component in Path::new(OsStr::from_bytes(name)).components() {
            match component {
                Component::Normal(part) => clean.push(part),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
                Component::ParentDir => {
                    return Err(refuse(format!("the entry {:?} leads out of the destination", shown())));
                }
            }
        }
        if clean.components().count() > DEEPEST {
            return Err(refuse(format!("an entry lies more than {DEEPEST} directories deep")));
        }
        if name.contains(&0) {
            return Err(refuse(format!("the entry {:?} holds a NUL byte", shown())));
        }
        Ok(clean)
    }

    /// The parent directory of an entry, created if it is missing, and the entry's name in it.
    fn parent(&self, path: &Path) -> io::Result<(Root, std::ffi::OsString)> {
        let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let above = path.parent().unwrap_or(Path::new(""));
        let made = self.root.create_dir_all(above, Mode::from_raw_mode(0o755));
        let parent = made.map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => refuse(format!("the entry {} would be written through a link", path.display())),
            _ => error,
        })?;
        Ok((Root::from_fd(parent), name))
    }

    fn directory(&mut self, path: &Path, mode: u32) -> io::Result<()> {
        self.count_entry()?;
        if path.as_os_str().is_empty() {
            return Ok(());
        }
        let (parent, name) = self.parent(path)?;
        let made = parent.create_dir_all(Path::new(&name), Mode::from_raw_mode(0o755));
        made.map_err(|error| refuse(format!("the directory {}: {error}", path.display())))?;
        let dir = parent.open_beneath(Path::new(&name), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        // Its files are yet to be written, so the owner keeps full access.
        Ok(rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode & 0o777 | 0o700))?)
    }

    fn file(&mut self, path: &Path, mode: u32, from: &mut dyn Read) -> io::Result<()> {
        self.count_entry()?;
        let (parent, name) = self.parent(path)?;
        let (flags, private) = (OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(0o600));
        let mut file = loop {
            match parent.open_beneath(Path::new(&name), flags, private) {
                // Of two entries with the same name, the later one wins.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    rustix::fs::unlinkat(&parent, &name, AtFlags::empty())?;
                }
                other => break File::from(other?),
            }
        };
        let mut buffer = vec![0; 128 * 1024];
        loop {
            let read = from.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            self.count_bytes(read as u64)?;
            file.write_all(&buffer[..read])?;
        }
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777 | 0o400))?;
        self.files.push(path.to_owned());
        Ok(())
    }

    fn symlink(&mut self, path: &Path, to: &[u8]) -> io::Result<()> {
        self.count_entry()?;
        let (parent, name) = self.parent(path)?;
        match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => Err(error.into()),
            _ => Ok(rustix::fs::symlinkat(OsStr::from_bytes(to), &parent, &name)?),
        }
    }

    /// A hard link to an earlier file.
    fn hard_link(&mut self, path: &Path, to: &Path) -> io::Result<()> {
        self.count_entry()?;
        let wrong = |what: &str| refuse(format!("the link {} leads to {}, which {what}", path.display(), to.display()));
        let (parent, name) = self.parent(path)?;
        let (above, last) = self.parent(to)?;
        let stat =
            rustix::fs::statat(&above, &last, AtFlags::SYMLINK_NOFOLLOW).map_err(|_| wrong("is not there yet"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(wrong("is not a file"));
        }
        match rustix::fs::unlinkat(&parent, &name, AtFlags::empty()) {
            Err(error) if error != Errno::NOENT => return Err(error.into()),
            _ => {}
        }
        rustix::fs::linkat(&above, &last, &parent, &name, AtFlags::empty())?;
        self.files.push(path.to_owned());
        Ok(())
    }
}

/// Unpacks everything that remains to be read.
///
/// # Errors
/// Entries that are refused, and errors in the archive; the cause comes from the system or the format.
pub(super) fn unpack(kind: ArchiveKind, from: BufReader<File>, into: &mut Unpacked<'_>) -> io::Result<()> {
    match kind {
        ArchiveKind::Tar => tar(&mut { from }, into),
        ArchiveKind::TarGz => tar(&mut flate2::bufread::MultiGzDecoder::new(from), into),
        ArchiveKind::TarBz2 => tar(&mut bzip2::bufread::MultiBzDecoder::new(from), into),
        ArchiveKind::TarXz => tar(&mut lzma_rust2::XzReader::new_mem_limit(from, true, XZ_MEMORY_KIB), into),
        ArchiveKind::TarZst => tar(&mut zst(from)?, into),
        ArchiveKind::Zip => zip(from, into),
        ArchiveKind::Gz => single(&mut flate2::bufread::MultiGzDecoder::new(from), into),
        ArchiveKind::Bz2 => single(&mut bzip2::bufread::MultiBzDecoder::new(from), into),
        ArchiveKind::Xz => single(&mut lzma_rust2::XzReader::new_mem_limit(from, true, XZ_MEMORY_KIB), into),
        ArchiveKind::Zst => single(&mut zst(from)?, into),
    }
}

fn zst(from: BufReader<File>) -> io::Result<zstd::stream::read::Decoder<'static, BufReader<File>>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(from)?;
    decoder.window_log_max(ZSTD_WINDOW_LOG)?;
    Ok(decoder)
}

fn single(from: &mut dyn Read, into: &mut Unpacked<'_>) -> io::Result<()> {
    into.file(Path::new(SINGLE), 0o644, from)
}

/// Limits also what is read of a tar besides the content of its files (headers, names, padding, and what is not counted as an
/// entry).
struct Bounded<'r> {
    from: &'r mut dyn Read,
    left: u64,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        let left = self.left.checked_sub(read as u64);
        self.left = left.ok_or_else(|| refuse("it is longer than the limit of an artifact"))?;
        Ok(read)
    }
}

fn tar(from: &mut dyn Read, into: &mut Unpacked<'_>) -> io::Result<()> {
    // For each entry: a header, its long names and padding.
    let headers = into.limits.files.saturating_mul(64 * 1024);
    let from = Bounded { from, left: into.limits.bytes.saturating_add(headers) };
    let mut archive = tar::Archive::new(from);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        if kind.is_pax_global_extensions() {
            into.count_entry()?;
            continue;
        }
        let path = Unpacked::path(&entry.path_bytes())?;
        let mode = entry.header().mode().unwrap_or(0o644);
        let target = || entry.link_name_bytes().map(std::borrow::Cow::into_owned).unwrap_or_default();
        match kind {
            tar::EntryType::Directory => into.directory(&path, mode)?,
            tar::EntryType::Symlink => into.symlink(&path, &target())?,
            tar::EntryType::Link => into.hard_link(&path, &Unpacked::path(&target())?)?,
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                into.file(&path, mode, &mut entry)?;
            }
            _ => {
                let what = match kind {
                    tar::EntryType::Char | tar::EntryType::Block => "a device",
                    tar::EntryType::Fifo => "a FIFO",
                    _ => "neither file, directory nor link",
                };
                return Err(refuse(format!("the entry {} is {what}, which no artifact may hold", path.display())));
            }
        }
    }
    Ok(())
}

fn zip(from: BufReader<File>, into: &mut Unpacked<'_>) -> io::Result<()> {
    let mut archive = zip::ZipArchive::new(from).map_err(|error| refuse(error.to_string()))?;
    if archive.len() as u64 > into.limits.files {
        return Err(refuse(format!("it holds more than {} files, the limit of an artifact", into.limits.files)));
    }
    for number in 0..archive.len() {
        let mut entry = archive.by_index(number).map_err(|error| refuse(error.to_string()))?;
        // The raw name: the reader's interpretation of it may differ.
        let name = entry.name_raw().to_vec();
        let path = Unpacked::path(&name)?;
        let mode = entry.unix_mode();
        let kind = mode.map(FileType::from_raw_mode);
        match kind {
            _ if entry.is_dir() => into.directory(&path, mode.unwrap_or(0o755))?,
            Some(FileType::Symlink) => {
                let mut target = Vec::new();
                (&mut entry).take(LONGEST_LINK).read_to_end(&mut target)?;
                into.symlink(&path, &std::ffi::OsString::from_vec(target).into_vec())?;
            }
            Some(FileType::RegularFile | FileType::Unknown) | None => {
                into.file(&path, mode.unwrap_or(0o644), &mut entry)?;
            }
            Some(_) => {
                let text = format!("the entry {} is a device or FIFO, which no artifact may hold", path.display());
                return Err(refuse(text));
            }
        }
    }
    Ok(())
}
