//! The directory of rotated files: opening it, and listing its `<base>.<n>`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags};

use crate::spec::Order as _;
use crate::sys::mutant;
use crate::sys::path::Root;

/// Indexes from here on are ignored: a file planted at the end of the number range must not end rotation.
const INDEX_LIMIT: u64 = 1_000_000_000;

/// No collector continues at an index from here on: a file planted there would leave too few indexes for the future.
pub(super) const START_LIMIT: u64 = INDEX_LIMIT / 10 * 9;

/// One name of a base found in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// The `n` of `<base>.<n>`.
    pub(super) index: u64,
    /// A regular file that a collector made; anything else occupies the name but is not ours.
    pub(super) regular: bool,
}

/// The files of a base in a directory, each list by rising index.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// `<base>.<n>`.
    pub(super) plain: Vec<Entry>,
    /// Regular files `<base>-<n>.zst`.
    pub(super) packed: Vec<u64>,
}

impl Listing {
    /// The indexes of regular files, plain or packed, by rising index.
    pub(super) fn indexes(&self) -> Vec<u64> {
        let plain = self.plain.iter().filter(|e| e.regular).map(|e| e.index);
        let mut all: Vec<_> = plain.chain(self.packed.iter().copied()).collect();
        all.order_by(Ord::cmp);
        all.dedup();
        all
    }
}

/// Opens a directory to resolve names beneath it. The last component is not followed if it is a symlink: the log directory lies
/// in a directory in which the task may rename entries (CVE-2026-6959), the path above it does not.
pub(super) fn open_dir(path: &Path) -> io::Result<Root> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Root::open(path) };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    Root::open(parent)?.open_beneath(Path::new(name), flags, Mode::empty()).map(Root::from_fd)
}

/// Opens the directory that holds `path` and splits the name off.
pub(super) fn open_parent(path: &Path) -> io::Result<(Root, OsString)> {
    let name = path.file_name().ok_or_else(|| io::Error::from_raw_os_error(libc::EISDIR))?;
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok((open_dir(parent)?, name.to_owned()))
}

/// `<base>.<index>`.
pub(super) fn file_name(base: &str, index: u64) -> String {
    format!("{base}.{index}")
}

/// `<base>-<index>.zst`. It must not begin with `<base>.`: Nomad's readers parse what follows that as a number.
pub(super) fn packed_name(base: &str, index: u64) -> String {
    format!("{base}-{index}.zst")
}

/// The index in `<base>.<index>`; `None` for every other name, and for leading zeros.
pub(super) fn parse_index(base: &str, name: &[u8]) -> Option<u64> {
    parse_digits(name.strip_prefix(base.as_bytes())?.strip_prefix(b".")?)
}

/// The index in `<base>-<index>.zst`.
pub(super) fn parse_packed(base: &str, name: &[u8]) -> Option<u64> {
    parse_digits(name.strip_prefix(base.as_bytes())?.strip_prefix(b"-")?.strip_suffix(b".zst")?)
}

fn parse_digits(digits: &[u8]) -> Option<u64> {
    let canonical = matches!(digits, [b'0'] | [b'1'..=b'9', ..]) && digits.iter().all(u8::is_ascii_digit);
    let index = std::str::from_utf8(digits).ok().filter(|_| canonical)?.parse().ok()?;
    (index < INDEX_LIMIT).then_some(index)
}

/// All names `<base>.<n>`, by rising index.
pub(super) fn entries(root: &Root, base: &str) -> io::Result<Vec<Entry>> {
    Ok(list(root, base)?.plain)
}

/// All names of `base`.
pub(super) fn list(root: &Root, base: &str) -> io::Result<Listing> {
    let fd = root.open_beneath(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let mut found = Listing::default();
    for entry in Dir::new(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let (plain, packed) = (parse_index(base, name), parse_packed(base, name));
        if plain.or(packed).is_none() {
            continue;
        }
        let may_be = matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown);
        let regular = may_be && is_regular(root, OsStr::from_bytes(name));
        found.plain.extend(plain.map(|index| Entry { index, regular }));
        found.packed.extend(packed.filter(|_| regular));
    }
    found.plain.order_by_key(|e| e.index);
    found.packed.order_by(Ord::cmp);
    Ok(found)
}

/// The names in a directory, which must not be a symlink.
pub(super) fn names(path: &Path) -> io::Result<Vec<OsString>> {
    let fd = open_dir(path)?.open_beneath(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    let name = |entry: rustix::fs::DirEntry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
    Dir::new(fd)?.map(|entry| Ok(name(entry?))).collect()
}

fn is_regular(root: &Root, name: &OsStr) -> bool {
    rustix::fs::statat(root, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|s| {
        FileType::from_raw_mode(s.st_mode) == FileType::RegularFile
            && is_ours(root, s.st_uid, s.st_mode, s.st_size == 0)
    })
}

/// Whether a file with this owner and mode may be a collector's. Collectors make files that every user may read. A user who can
/// write to the directory may have put an own file there, to be taken for a task's output, or moved a file there that only root
/// can read, to have its content exposed. In a directory to which no other user can write, as that of kept logs, files may be
/// readable by their owner only; and an `empty` file may be one that is just being created by a process whose umask clears that
/// bit until it is set.
pub(super) fn is_ours(dir: &Root, uid: u32, mode: u32, empty: bool) -> bool {
    mutant::on("d83") || is_own(uid) && (empty || mode & 0o004 != 0 || is_private(dir))
}

/// Whether only root and this user can write to a directory. With an access control list, the group bits are the maximum that
/// it grants.
fn is_private(dir: &Root) -> bool {
    rustix::fs::fstat(dir).is_ok_and(|stat| is_own(stat.st_uid) && stat.st_mode & 0o022 == 0)
}

/// Whether root or this user made it.
pub(super) fn is_own(uid: u32) -> bool {
    mutant::on("d83") || uid == 0 || uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_numbers_are_indexes() {
        let index = |name: &str| parse_index("redis.stdout", name.as_bytes());
        assert_eq!(index("redis.stdout.0"), Some(0));
        assert_eq!(index("redis.stdout.120"), Some(120));
        for other in ["redis.stdout", "redis.stdout.", "redis.stdout.01", "redis.stdout.-1", "redis.stdout.1x"] {
            assert_eq!(index(other), None, "{other}");
        }
        assert_eq!(index("redis.stdout.9223372036854775807"), None);
        assert_eq!(index("redis.stderr.1"), None);
        let packed = |name: &str| parse_packed("redis.stdout", name.as_bytes());
        assert_eq!(packed(&packed_name("redis.stdout", 12)), Some(12));
        for other in ["redis.stdout-1.zst.part", "redis.stdout-01.zst", "redis.stdout.1.zst", "redis.stdout-.zst"] {
            assert_eq!(packed(other), None, "{other}");
        }
    }

    #[test]
    fn a_log_directory_replaced_by_a_symlink_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("logs")).unwrap();
        assert!(open_dir(&dir.path().join("real")).is_ok());
        assert_eq!(open_dir(&dir.path().join("logs")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
    }
}
