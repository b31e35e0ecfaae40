//! Which host ids belong to which allocation: one registry for the whole machine, shared by all data directories and drivers.
//!
//! A range has one file, named after its first id, that names its allocation. The file is written to disk before the first file is
//! chowned to one of these ids, and stays until the allocation's directory is known to be gone: files in there belong to these ids
//! as long as it exists. Ranges are never given back explicitly, so no crash can leak one or free it too early.
//!
//! A directory is identified by its path, its inode and its birth time. It is gone when the path does not exist, or is another
//! directory, on the same file system where it was. If that file system is not mounted at the moment, or is hidden by another
//! mount, the directory is not taken to be gone.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::spec::json;
use crate::spec::{HostIdSpace, HostIds};
use crate::sys::{mutant, time};

/// The registry of this machine.
const MACHINE: &str = "/var/lib/agentbin/host-ids";
/// Lock file, locked during changes; it contains the range that was assigned last.
const LOCK: &str = "lock";
/// The format of an entry.
const VERSION: u32 = 1;
/// Longest entry that is read, in bytes: a path and some numbers.
const MAX_ENTRY: u64 = 1 << 16;
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of `statfs(2)`: their content does not survive a reboot.
const VOLATILE: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// Assigns ranges of host ids to allocations.
#[derive(Debug, Clone)]
pub struct HostIdRegistry {
    dir: PathBuf,
    /// The ids are numbers in a user namespace that is made for them, not in that of this process.
    of_namespace: bool,
}

/// Why an allocation gets no host ids.
#[derive(Debug, thiserror::Error)]
pub enum HostIdsError {
    /// Each range belongs to an allocation whose directory exists.
    #[error(
        "all {ranges} ranges of 65536 host ids in {space} belong to allocations whose directories exist ({}): end some, \
         give more with host_id_range in the plugin's configuration, or do without with user_namespace = false",
        registry.display()
    )]
    Full {
        /// How many ranges there are.
        ranges: u32,
        /// The ids from which ranges are assigned.
        space: HostIdSpace,
        /// The directory of the registry.
        registry: PathBuf,
    },
    /// Another user could write to the registry and assign the same ids.
    #[error("{} is not root's alone (owner {owner}, mode {mode:04o}): chown root and chmod go-w it", path.display())]
    NotOurs {
        /// The registry, or its parent directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its mode.
        mode: u32,
    },
    /// The user namespace of this process does not map the ids that it is to assign.
    #[error(
        "this process runs in a user namespace that has no host ids {0}: map them there, give others with host_id_range in \
         the plugin's configuration, or do without with user_namespace = false"
    )]
    NotMapped(HostIds),
    /// The file system.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// How much of the registry is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostIdsUse {
    /// Ranges of allocations whose directories exist, or are not known to be gone.
    pub used: u32,
    /// Those among them whose entries cannot be read.
    pub unreadable: u32,
}

/// The allocation to which a range belongs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Entry {
    version: u32,
    /// The allocation's directory.
    path: PathBuf,
    identity: Identity,
    /// The files that it inherited from an earlier allocation were chowned to it.
    #[serde(default)]
    settled: bool,
}

/// Distinguishes a directory from all others that were, are, or will be at its path.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Identity {
    inode: u64,
    /// Its birth time, in seconds and nanoseconds; 0 where the file system does not record it.
    born: (i64, u32),
    /// `f_fsid` of `statfs(2)`.
    filesystem: u64,
    /// Set where `f_fsid` does not identify the file system.
    #[serde(default)]
    top: Option<Top>,
    /// The boot id at its creation, for file systems that do not survive a reboot.
    boot: Option<String>,
}

/// Identifies a file system whose `f_fsid` is 0 or is derived from its device number (XFS, F2FS, FAT), which may belong to another
/// file system after a reboot: the highest directory on it above the allocation's.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Top {
    inode: u64,
    /// As [`Identity::born`]. Where it is 0, device number and boot id are compared instead.
    born: (i64, u32),
    device: u64,
    boot: String,
}

impl Top {
    fn of(dir: &OwnedFd) -> io::Result<Top> {
        let mut stat = rustix::fs::fstat(dir)?;
        let mut top = dir.try_clone()?;
        loop {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let above = rustix::fs::openat(&top, c"..", flags, Mode::empty())?;
            let found = rustix::fs::fstat(&above)?;
            if found.st_dev != stat.st_dev || found.st_ino == stat.st_ino {
                let (inode, born) = inode_and_birth(&top)?;
                return Ok(Top { inode, born, device: stat.st_dev, boot: time::boot_id()? });
            }
            (top, stat) = (above, found);
        }
    }

    fn is_same(&self, other: &Top) -> bool {
        let same = (self.inode, self.born) == (other.inode, other.born);
        same && (self.born != (0, 0) || (self.device, &self.boot) == (other.device, &other.boot))
    }
}

fn inode_and_birth(dir: &OwnedFd) -> io::Result<(u64, (i64, u32))> {
    let stat = rustix::fs::statx(dir, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let knows_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let born = if knows_birth { (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec) } else { (0, 0) };
    Ok((stat.stx_ino, born))
}

/// Whether `f_fsid` is only the device number, as the kernel's `huge_encode_dev` encodes it.
fn names_a_device(filesystem: u64, device: u64) -> bool {
    let (major, minor) = (u64::from(rustix::fs::major(device)), u64::from(rustix::fs::minor(device)));
    let number = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
    (filesystem == 0 || filesystem == number) && !mutant::on("d26")
}

impl Identity {
    fn of(dir: &OwnedFd) -> io::Result<Identity> {
        let (inode, born) = inode_and_birth(dir)?;
        let volatile = VOLATILE.contains(&rustix::fs::fstatfs(dir)?.f_type);
        let boot = if volatile { Some(time::boot_id()?) } else { None };
        let filesystem = filesystem(dir)?;
        let vague = names_a_device(filesystem, rustix::fs::fstat(dir)?.st_dev);
        let top = if vague { Some(Top::of(dir)?) } else { None };
        Ok(Identity { inode, born, filesystem, top, boot })
    }

    /// Whether a directory is on the same file system as this one was.
    fn is_on_same_filesystem(&self, dir: &OwnedFd) -> bool {
        match &self.top {
            Some(top) => Top::of(dir).is_ok_and(|found| top.is_same(&found)),
            None => filesystem(dir).is_ok_and(|found| found == self.filesystem),
        }
    }

    fn is_same_directory(&self, other: &Identity) -> bool {
        (self.inode, self.born) == (other.inode, other.born)
    }
}

fn filesystem(dir: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstatvfs(dir)?.f_fsid)
}

fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

impl Entry {
    fn of(path: &Path) -> io::Result<Entry> {
        let identity = Identity::of(&open_dir(path)?)?;
        Ok(Entry { version: VERSION, path: path.to_owned(), identity, settled: false })
    }

    fn read(path: &Path) -> io::Result<Entry> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let mut text = Vec::new();
        file.take(MAX_ENTRY).read_to_end(&mut text)?;
        let entry: Entry = json::from_slice(&text)?;
        if entry.version != VERSION {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("version {}", entry.version)));
        }
        Ok(entry)
    }

    /// Whether its directory certainly no longer exists.
    fn is_gone(&self) -> bool {
        if mutant::on("d21") {
            return true;
        }
        // On an in-memory file system, of an earlier boot.
        if let (Some(then), Ok(now)) = (&self.identity.boot, time::boot_id())
            && *then != now
        {
            return true;
        }
        let there = match open_dir(&self.path) {
            Ok(dir) => match Identity::of(&dir) {
                Ok(found) if found.is_same_directory(&self.identity) => return false,
                Ok(_) => Some(dir),
                Err(_) => None,
            },
            // The nearest ancestor that still exists shows whether the same file system is mounted there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                self.path.ancestors().skip(1).find_map(|dir| open_dir(dir).ok())
            }
            Err(_) => None,
        };
        there.is_some_and(|dir| self.identity.is_on_same_filesystem(&dir))
    }
}

impl HostIdRegistry {
    /// The registry of this machine, for all data directories and drivers of root. Does no I/O yet.
    #[must_use]
    pub fn machine() -> HostIdRegistry {
        HostIdRegistry::at(MACHINE)
    }

    /// The registry in `dir`, which may not exist yet.
    #[must_use]
    pub fn at(dir: impl Into<PathBuf>) -> HostIdRegistry {
        HostIdRegistry { dir: dir.into(), of_namespace: false }
    }

    /// A registry of ids that are mapped into a user namespace when it is made.
    pub(super) fn of_namespace(dir: impl Into<PathBuf>) -> HostIdRegistry {
        HostIdRegistry { of_namespace: true, ..HostIdRegistry::at(dir) }
    }

    /// The directory of the registry.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The range of the allocation with this directory: the one that it already has, or a free one of `space`. When this returns,
    /// the entry is on disk.
    ///
    /// # Errors
    /// [`HostIdsError`].
    pub fn take(&self, alloc_dir: &Path, space: HostIdSpace) -> Result<HostIds, HostIdsError> {
        let mut lock = self.lock()?;
        let wanted = Entry::of(alloc_dir).map_err(|e| io_error("look at", alloc_dir, e))?;
        let entries = self.entries()?;
        if let Some((ids, _)) =
            entries.iter().find(|(_, entry)| entry.as_ref().is_ok_and(|entry| is_of(entry, &wanted)))
        {
            return Ok(*ids);
        }
        let mut last = String::new();
        // Only a starting point for the search: the content need not be correct.
        let _ = (&mut lock).take(16).read_to_string(&mut last);
        let last = last.trim().parse().ok().and_then(HostIds::new);
        // An entry that cannot be read may belong to an allocation that exists.
        let is_taken = |ids: &HostIds| {
            let entry = entries.iter().find(|(taken, _)| taken == ids);
            entry.is_some_and(|(_, entry)| !entry.as_ref().is_ok_and(Entry::is_gone))
        };
        let Some(ids) = space.after(last).find(|ids| !is_taken(ids)) else {
            return Err(HostIdsError::Full { ranges: space.ranges(), space, registry: self.dir.clone() });
        };
        if !self.of_namespace && !["/proc/self/uid_map", "/proc/self/gid_map"].iter().all(|map| is_mapped(map, ids)) {
            return Err(HostIdsError::NotMapped(ids));
        }
        if !mutant::on("d25") {
            self.write(ids, &wanted)?;
        }
        let _ =
            lock.set_len(0).and_then(|()| io::Seek::rewind(&mut lock)).and_then(|()| write!(lock, "{}", ids.base()));
        // Removal of the other stale entries is best effort: a later call tries again.
        let gone = entries.iter().filter(|(other, entry)| *other != ids && entry.as_ref().is_ok_and(Entry::is_gone));
        gone.for_each(|(other, _)| drop(std::fs::remove_file(self.dir.join(other.base().to_string()))));
        Ok(ids)
    }

    /// Whether [`HostIdRegistry::settle`] was called for the allocation that has this range.
    #[must_use]
    pub fn is_settled(&self, ids: HostIds) -> bool {
        Entry::read(&self.dir.join(ids.base().to_string())).is_ok_and(|entry| entry.settled)
    }

    /// Notes that the files which the allocation with this directory and this range inherited were chowned to it, so that later
    /// starts do not search for them.
    ///
    /// # Errors
    /// [`HostIdsError`].
    pub fn settle(&self, alloc_dir: &Path, ids: HostIds) -> Result<(), HostIdsError> {
        let _lock = self.lock()?;
        let path = self.dir.join(ids.base().to_string());
        let wanted = Entry::of(alloc_dir).map_err(|e| io_error("look at", alloc_dir, e))?;
        let entry = Entry::read(&path).map_err(|e| io_error("read", &path, e))?;
        if is_of(&entry, &wanted) { self.write(ids, &Entry { settled: true, ..entry }) } else { Ok(()) }
    }

    /// The range that the allocation with this directory has.
    ///
    /// # Errors
    /// [`HostIdsError`].
    pub fn find(&self, alloc_dir: &Path) -> Result<Option<HostIds>, HostIdsError> {
        if self.dir.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(None);
        }
        self.check()?;
        let wanted = Entry::of(alloc_dir).map_err(|e| io_error("look at", alloc_dir, e))?;
        let found =
            self.entries()?.into_iter().find(|(_, entry)| entry.as_ref().is_ok_and(|entry| is_of(entry, &wanted)));
        Ok(found.map(|(ids, _)| ids))
    }

    /// How many ranges are in use. Creates nothing.
    ///
    /// # Errors
    /// [`HostIdsError`].
    pub fn usage(&self) -> Result<HostIdsUse, HostIdsError> {
        if self.dir.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(HostIdsUse::default());
        }
        self.check()?;
        let mut usage = HostIdsUse::default();
        for (_, entry) in self.entries()? {
            match entry {
                Ok(entry) if entry.is_gone() => {}
                Ok(_) => usage.used += 1,
                Err(_) => (usage.used, usage.unreadable) = (usage.used + 1, usage.unreadable + 1),
            }
        }
        Ok(usage)
    }

    /// A user who can write here could have the same ids assigned to two allocations.
    fn check(&self) -> Result<(), HostIdsError> {
        let own = rustix::process::geteuid().as_raw();
        for path in [self.dir.parent().unwrap_or(Path::new("/")), &self.dir] {
            let stat = path.symlink_metadata().map_err(|e| io_error("look at", path, e))?;
            let mode = stat.mode() & 0o7777;
            if !stat.is_dir() || (stat.uid() != 0 && stat.uid() != own) || mode & 0o022 != 0 {
                return Err(HostIdsError::NotOurs { path: path.to_owned(), owner: stat.uid(), mode });
            }
        }
        Ok(())
    }

    /// Creates the registry where it is missing, and locks it exclusively.
    fn lock(&self) -> Result<File, HostIdsError> {
        let make = || {
            if let Some(above) = self.dir.parent() {
                DirBuilder::new().recursive(true).mode(0o711).create(above)?;
            }
            match DirBuilder::new().mode(0o700).create(&self.dir) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
                _ => Ok(()),
            }
        };
        make().map_err(|e| io_error("make", &self.dir, e))?;
        self.check()?;
        let path = self.dir.join(LOCK);
        let open = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = options.custom_flags(libc::O_NOFOLLOW).open(&path)?;
            rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
            Ok(file)
        };
        open().map_err(|e| io_error("lock", &path, e))
    }

    /// Every range that has an entry. Files with other names are skipped, such as one that a killed writer left behind.
    fn entries(&self) -> Result<Vec<(HostIds, io::Result<Entry>)>, HostIdsError> {
        let failed = |e| io_error("read", &self.dir, e);
        let mut entries = Vec::new();
        for file in std::fs::read_dir(&self.dir).map_err(failed)? {
            let file = file.map_err(failed)?;
            let ids = file.file_name().to_str().and_then(|name| HostIds::new(name.parse().ok()?));
            entries.extend(ids.map(|ids| (ids, Entry::read(&file.path()))));
        }
        Ok(entries)
    }

    /// Replaces an entry atomically. Unlike a task's record it must survive a power failure, as the directories do.
    fn write(&self, ids: HostIds, entry: &Entry) -> Result<(), HostIdsError> {
        let (path, temporary) = (self.dir.join(ids.base().to_string()), self.dir.join("new"));
        let write = || {
            let mut options = OpenOptions::new();
            // Only the holder of the lock uses this file: one that exists was left behind by a killed writer.
            options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            let mut file = options.open(&temporary)?;
            file.write_all(&json::to_vec(entry)?)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|e| io_error("write", &path, e))
    }
}

fn is_of(entry: &Entry, wanted: &Entry) -> bool {
    entry.path == wanted.path && entry.identity.is_same_directory(&wanted.identity)
}

/// Whether the user namespace of this process maps all of these ids.
fn is_mapped(map: &str, ids: HostIds) -> bool {
    // A kernel without user namespaces has no such file and does not restrict ids.
    let Ok(text) = std::fs::read_to_string(map) else { return true };
    text.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        let (base, end) = (u64::from(ids.base()), u64::from(ids.base()) + u64::from(HostIds::COUNT));
        first <= base && end <= first + count
    })
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> HostIdsError {
    HostIdsError::Io { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Place {
        dir: tempfile::TempDir,
        registry: HostIdRegistry,
    }

    impl Place {
        fn new() -> Place {
            let dir = tempfile::tempdir().unwrap();
            let registry = HostIdRegistry::at(dir.path().join("lib/host-ids"));
            Place { dir, registry }
        }

        fn alloc(&self, name: &str) -> PathBuf {
            let path = self.dir.path().join(name);
            std::fs::create_dir_all(&path).unwrap();
            path
        }

        fn take(&self, path: &Path) -> u32 {
            self.registry.take(path, two()).unwrap().base()
        }
    }

    fn two() -> HostIdSpace {
        HostIdSpace::parse("1879048192-1879179263").unwrap()
    }

    #[test]
    fn a_range_is_one_allocations_until_its_directory_is_gone() {
        let place = Place::new();
        let (one, other) = (place.alloc("data1/a"), place.alloc("data2/a"));
        assert_eq!((place.take(&one), place.take(&other)), (1_879_048_192, 1_879_113_728));
        assert_eq!((place.take(&one), place.take(&other)), (1_879_048_192, 1_879_113_728), "again, after any crash");
        let ids = place.registry.find(&other).unwrap().unwrap();
        assert_eq!(Some(ids), HostIds::new(1_879_113_728));
        place.registry.settle(&one, ids).unwrap();
        assert!(!place.registry.is_settled(ids), "it is the other's");
        place.registry.settle(&other, ids).unwrap();
        assert!(place.registry.is_settled(ids) && place.take(&other) == ids.base());
        let third = place.alloc("data1/b");
        let error = place.registry.take(&third, two()).unwrap_err();
        assert!(error.to_string().starts_with("all 2 ranges of 65536 host ids in 1879048192-1879179263"), "{error}");
        assert_eq!(place.registry.find(&third).unwrap(), None);
        assert_eq!(place.registry.usage().unwrap(), HostIdsUse { used: 2, unreadable: 0 });
        std::fs::remove_dir(&other).unwrap();
        assert_eq!(place.registry.usage().unwrap().used, 1);
        assert_eq!(place.take(&third), 1_879_113_728);
        assert!(!place.registry.is_settled(ids), "another allocation has inherited nothing yet");
        // Together with its parent directories.
        std::fs::remove_dir_all(place.dir.path().join("data1")).unwrap();
        assert_eq!(place.take(&place.alloc("data3/x/y/c")), 1_879_048_192);
    }

    #[test]
    fn a_directory_that_is_made_anew_is_another_one() {
        let place = Place::new();
        let path = place.alloc("a");
        assert_eq!(place.take(&path), 1_879_048_192);
        // Keeps the inode in use, so that it is not reused at once.
        std::fs::rename(&path, place.dir.path().join("moved")).unwrap();
        place.alloc("a");
        assert_eq!(place.take(&path), 1_879_113_728);
        std::os::unix::fs::symlink(place.dir.path().join("moved"), place.dir.path().join("link")).unwrap();
        assert!(place.registry.take(&place.dir.path().join("link"), two()).is_err(), "a link is not a directory");
    }

    /// A directory that is not visible at the moment is not gone.
    #[test]
    fn a_directory_on_another_file_system_than_then_is_not_gone() {
        let place = Place::new();
        let path = place.alloc("a");
        place.take(&path);
        let file = place.registry.path().join("1879048192");
        let change = |change: &dyn Fn(&mut Entry)| {
            let mut entry = Entry::read(&file).unwrap();
            change(&mut entry);
            std::fs::write(&file, serde_json::to_vec(&entry).unwrap()).unwrap();
            Entry::read(&file).unwrap().is_gone()
        };
        assert!(!change(&|_| {}));
        std::fs::remove_dir(&path).unwrap();
        assert!(change(&|_| {}));
        assert!(!change(&|entry| entry.identity.filesystem ^= 1), "not mounted");
        assert!(change(&|entry| entry.identity.boot = Some("an earlier one".to_owned())), "in memory, before a boot");
        std::fs::write(&file, "{").unwrap();
        assert_eq!(place.registry.usage().unwrap(), HostIdsUse { used: 1, unreadable: 1 });
        assert_eq!(place.take(&place.alloc("b")), 1_879_113_728, "an entry that cannot be read is somebody's");
        assert!(matches!(place.registry.take(&place.alloc("c"), two()), Err(HostIdsError::Full { .. })));
    }

    /// XFS: after a reboot the disk may have another device number, and its number may belong to another disk.
    #[test]
    fn a_file_system_is_not_known_by_the_number_of_its_device() {
        for (filesystem, device, is) in [
            (0x0811, rustix::fs::makedev(8, 17), true),
            (0x0810_0803, rustix::fs::makedev(8, 0x8103), true),
            (0xfd02, rustix::fs::makedev(253, 2), true),
            (0xfd02, rustix::fs::makedev(253, 3), false),
            (0, rustix::fs::makedev(0, 44), true),
            (0x1122_3344_5566_7788, rustix::fs::makedev(8, 17), false),
        ] {
            assert_eq!(names_a_device(filesystem, device), is, "{filesystem:x}");
        }
        let place = Place::new();
        let path = place.alloc("a");
        place.take(&path);
        let mut entry = Entry::read(&place.registry.path().join("1879048192")).unwrap();
        let top = Top::of(&open_dir(&path).unwrap()).unwrap();
        assert!(top.is_same(&Top::of(&open_dir(place.dir.path()).unwrap()).unwrap()), "wherever one begins");
        std::fs::remove_dir(&path).unwrap();
        let mut is_gone = |filesystem: u64, top: Top| {
            (entry.identity.filesystem, entry.identity.top) = (filesystem, Some(top));
            entry.identity.boot = None;
            entry.is_gone()
        };
        let (own, born) = (filesystem(&open_dir(place.dir.path()).unwrap()).unwrap(), (1, 1));
        assert!(is_gone(own ^ 1, top.clone()), "the same one with another number");
        assert!(!is_gone(own, Top { born, ..top.clone() }), "another one with the same number");
        assert!(!is_gone(own, Top { born: (0, 0), boot: "an earlier one".to_owned(), ..top.clone() }), "nobody knows");
    }

    #[test]
    fn a_registry_that_others_can_write_to_is_not_believed() {
        let place = Place::new();
        place.take(&place.alloc("a"));
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let above = place.registry.path().parent().unwrap();
        for (path, usual) in [(place.registry.path(), 0o700), (above, 0o711)] {
            mode(path, 0o777);
            let error = place.registry.take(&place.alloc("a"), two()).unwrap_err().to_string();
            assert!(error.contains("is not root's alone") && error.contains("0777"), "{error}");
            assert!(place.registry.usage().is_err());
            mode(path, usual);
        }
        place.take(&place.alloc("a"));
        let lock = place.registry.path().join(LOCK);
        std::fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(place.dir.path().join("elsewhere"), &lock).unwrap();
        assert!(place.registry.take(&place.alloc("a"), two()).is_err());
    }

    #[test]
    fn whoever_takes_at_the_same_time_takes_another_one() {
        let place = Place::new();
        let allocs: Vec<PathBuf> = (0..16).map(|n| place.alloc(&n.to_string())).collect();
        let taken: crate::spec::collections::BTreeSet<u32> = std::thread::scope(|scope| {
            let take = |alloc| place.registry.take(alloc, HostIdSpace::DEFAULT).unwrap().base();
            let threads: Vec<_> = allocs.iter().map(|alloc| scope.spawn(move || take(alloc))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.len(), 16);
        // A writer killed before the rename leaves a half-written file that belongs to no range.
        std::fs::write(place.registry.path().join("new"), "{\"vers").unwrap();
        place.registry.take(&place.alloc("another"), HostIdSpace::DEFAULT).unwrap();
    }

    #[test]
    fn ids_that_this_process_has_not_got_are_not_given() {
        let dir = tempfile::tempdir().unwrap();
        let map = dir.path().join("uid_map");
        let ids = HostIds::new(1_879_048_192).unwrap();
        for (text, is) in [
            ("         0          0 4294967295\n", true),
            ("         0       1000          1\n         1     100000      65536\n", false),
            ("0 0 1879113728\n", true),
            ("0 0 1879113727\n", false),
            ("1879048192 5 65536\n", true),
        ] {
            std::fs::write(&map, text).unwrap();
            assert_eq!(is_mapped(map.to_str().unwrap(), ids), is, "{text}");
        }
    }
}
