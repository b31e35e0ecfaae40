//! Ownership of the files in a task's directories, when its users have their own host ids.
//!
//! These files belong to the host's root, to the host id of the task's user, or to an allocation whose directory this one has
//! inherited. Afterwards they belong to the same user inside the namespace. Each file is changed separately through its descriptor:
//! a run that is killed has done a part of them, and the next one does the rest.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::config::Ids;
use crate::spec::{HostIdSpace, HostIds};
use crate::sys::mutant;
use crate::sys::path::Root;

/// The directories that belong to one task only.
const OWN: [&str; 3] = ["local", "tmp", "secrets"];
/// What an allocation may have inherited from an earlier one, besides its tasks' directories.
const INHERITED: &str = "alloc/data";
/// Deepest nesting of directories that is entered. Each level holds a descriptor.
const DEPTH: usize = 64;
/// Most entries that are checked before a start, in all directories of a task together.
const ENTRIES: u64 = 1_000_000;
/// Most entries that are checked while the task runs, where nothing depends on the result.
const LOOKED_AT: u64 = 10_000;
/// Most files that are reported by name.
const NAMED: usize = 8;

/// The new owners of files.
#[derive(Debug, Clone)]
pub struct Heir {
    /// The host's numbers of the task's users.
    pub ids: HostIds,
    /// The ranges of other allocations.
    pub space: HostIdSpace,
    /// The task's user; artifacts may have been chowned to its host id.
    pub user: Option<Ids>,
    /// Files that this process may not chown are skipped, such as those of a group that its user namespace does not map.
    pub passes_over: bool,
}

/// The result for a task's directories.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owned {
    /// Files and directories that were chowned.
    pub changed: u64,
    /// What was not chowned: deeper than 64 directories, more than a million entries, or skipped.
    pub left: u64,
    /// Regular files among those that others may not read, at most eight: paths in the task's directory.
    pub private: Vec<PathBuf>,
}

/// What a walk does with each file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Give,
    /// Chown only files of another allocation's users.
    Inherit,
    Look,
}

impl Heir {
    /// Chowns the task's directory, and all in `local`, `tmp` and `secrets`, to the task's users. A file with more than one hard
    /// link may belong to another user, and is skipped; so are devices, sockets, FIFOs and mount points.
    ///
    /// # Errors
    /// When a directory cannot be opened, or the file system cannot store these owners.
    pub fn give(&self, task_dir: &Path) -> io::Result<Owned> {
        let root = open(task_dir)?;
        let top = root.open_beneath(Path::new("."), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        let mut walk = Walk { heir: self, what: What::Give, owned: Owned::default(), entries: 0 };
        walk.entry(&top, Path::new("."))?;
        walk.all(&root)
    }

    /// Chowns the files in the shared `data` directory of an earlier allocation, whose directory this one has inherited, to the
    /// same users of this one. Files there of root and of users outside the ranges are skipped. Has the same safeguards as
    /// [`Heir::give`].
    ///
    /// # Errors
    /// As [`Heir::give`].
    pub fn inherit(&self, alloc_dir: &Path) -> io::Result<Owned> {
        let root = Root::open(alloc_dir)?;
        Walk { heir: self, what: What::Inherit, owned: Owned::default(), entries: 0 }.these(&root, &[INHERITED])
    }

    /// Finds files that the host's root has put there since the start and that the task's users cannot read, among the first ten
    /// thousand entries. Changes nothing.
    ///
    /// # Errors
    /// When a directory cannot be opened.
    pub fn look(&self, task_dir: &Path) -> io::Result<Owned> {
        let root = open(task_dir)?;
        Walk { heir: self, what: What::Look, owned: Owned::default(), entries: 0 }.all(&root)
    }

    /// The new owner for a file with this owner, if it has to change.
    fn heir_of(&self, what: What, owner: u32, of_user: impl Fn(&Ids, u32) -> bool) -> Option<u32> {
        if self.ids.contains(owner) {
            return None;
        }
        if self.space.range_of(owner).is_some() {
            return self.ids.outside(owner % HostIds::COUNT).filter(|_| what != What::Inherit || !mutant::on("d24"));
        }
        if what == What::Inherit {
            return None;
        }
        let is_users = self.user.as_ref().is_some_and(|user| of_user(user, owner));
        if owner == 0 || is_users { self.ids.outside(owner) } else { None }
    }
}

struct Walk<'a> {
    heir: &'a Heir,
    what: What,
    owned: Owned,
    entries: u64,
}

impl Walk<'_> {
    fn all(self, root: &Root) -> io::Result<Owned> {
        self.these(root, &OWN)
    }

    fn these(mut self, root: &Root, names: &[&str]) -> io::Result<Owned> {
        for name in names {
            // `secrets` may itself be a mount; below it no further mount is entered.
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            match root.open_beneath(Path::new(name), flags, Mode::empty()) {
                Ok(top) => self.tree(&top, Path::new(name))?,
                Err(error) if may_be_missing(&error) => {}
                Err(error) => return Err(at(Path::new(name), &error)),
            }
        }
        Ok(self.owned)
    }

    fn tree(&mut self, top: &OwnedFd, name: &Path) -> io::Result<()> {
        self.entry(top, name)?;
        let mut stack = vec![Open::new(top, name.to_owned())?];
        while let Some(open) = stack.last_mut() {
            let Some(entry) = open.dir.read() else {
                stack.pop();
                continue;
            };
            let entry = entry.map_err(|e| at(&open.name, &e.into()))?;
            let file = OsStr::from_bytes(entry.file_name().to_bytes());
            if file == "." || file == ".." {
                continue;
            }
            if self.entries >= if self.what == What::Look { LOOKED_AT } else { ENTRIES } {
                self.owned.left += 1;
                return Ok(());
            }
            self.entries += 1;
            let name = open.name.join(file);
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let found = match open.root.open_same_mount(Path::new(file), flags, Mode::empty()) {
                Ok(found) => found,
                Err(error) if may_be_missing(&error) => continue,
                Err(error) => return Err(at(&name, &error)),
            };
            if self.entry(&found, &name)? {
                if stack.len() < DEPTH {
                    stack.push(Open::new(&found, name)?);
                } else {
                    self.owned.left += 1;
                }
            }
        }
        Ok(())
    }

    /// Handles one entry. Returns whether it is a directory.
    fn entry(&mut self, file: &OwnedFd, name: &Path) -> io::Result<bool> {
        let stat = rustix::fs::fstat(file).map_err(|e| at(name, &e.into()))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_dir = kind == FileType::Directory;
        let is_plain = kind == FileType::RegularFile;
        if is_plain && stat.st_mode & 0o004 == 0 && self.owned.private.len() < NAMED && self.uid_for(&stat).is_some() {
            self.owned.private.push(name.to_owned());
        }
        let may_be_given =
            is_dir || (is_plain || kind == FileType::Symlink) && (stat.st_nlink == 1 || mutant::on("d22"));
        if self.what != What::Look && may_be_given {
            self.give(file, &stat).map_err(|e| at(name, &e))?;
        }
        Ok(is_dir)
    }

    fn uid_for(&self, stat: &Stat) -> Option<u32> {
        self.heir.heir_of(self.what, stat.st_uid, |user, uid| user.uid == uid)
    }

    fn give(&mut self, file: &OwnedFd, stat: &Stat) -> io::Result<()> {
        let uid = self.uid_for(stat);
        let gid = self.heir.heir_of(self.what, stat.st_gid, |user, gid| user.gid == gid || user.groups.contains(&gid));
        if uid.is_none() && gid.is_none() {
            return Ok(());
        }
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match rustix::fs::chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH) {
            Err(Errno::PERM | Errno::OVERFLOW) if self.heir.passes_over => self.owned.left += 1,
            other => {
                other?;
                self.owned.changed += 1;
            }
        }
        Ok(())
    }
}

/// A directory that is being read.
struct Open {
    root: Root,
    dir: Dir,
    name: PathBuf,
}

impl Open {
    /// Opens the directory of this descriptor for reading.
    fn new(dir: &OwnedFd, name: PathBuf) -> io::Result<Open> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = || {
            let root = rustix::fs::openat(dir, c".", flags, Mode::empty())?;
            Ok::<_, io::Error>((Dir::read_from(root.as_fd())?, Root::from_fd(root)))
        };
        let (dir, root) = open().map_err(|e| at(&name, &e))?;
        Ok(Open { root, dir, name })
    }
}

/// Opens the directory with this name in its allocation's directory; follows no link there.
fn open(task_dir: &Path) -> io::Result<Root> {
    let (Some(alloc_dir), Some(name)) = (task_dir.parent(), task_dir.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = Root::open(alloc_dir)?.open_beneath(Path::new(name), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    Ok(Root::from_fd(dir))
}

/// It was removed meanwhile, is of another type, or is a mount point.
fn may_be_missing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EXDEV))
}

fn at(name: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", name.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    const BASE: u32 = 1_879_048_192;

    fn heir() -> Heir {
        let user = Ids { uid: 33, gid: 34, groups: vec![34, 7], home: String::new() };
        Heir { ids: HostIds::new(BASE).unwrap(), space: HostIdSpace::DEFAULT, user: Some(user), passes_over: false }
    }

    fn owner(path: &Path) -> (u32, u32) {
        let meta = path.symlink_metadata().unwrap();
        (meta.uid(), meta.gid())
    }

    fn task() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["alloc/data", "task/local/deep/er", "task/tmp", "task/secrets", "task/private", "host"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        dir
    }

    fn skipped() -> bool {
        let plain = !rustix::process::geteuid().is_root();
        if plain {
            println!("SKIP: needs root to give files away");
        }
        plain
    }

    #[test]
    fn files_keep_their_user_inside() {
        if skipped() {
            return;
        }
        let dir = task();
        let at = |name: &str| dir.path().join(name);
        let other = BASE + 5 * 65_536;
        for (name, before) in [
            ("task/local/root", (0, 0)),
            ("task/local/users", (33, 7)),
            ("task/local/deep/er/inherited", (other, other + 100)),
            ("task/secrets/own", (BASE + 3, BASE + 4)),
            ("task/local/strangers", (1000, 1000)),
            ("task/private/agents", (0, 0)),
            ("alloc/data/shared", (0, 0)),
        ] {
            fs::write(at(name), name).unwrap();
            chown(at(name), Some(before.0), Some(before.1)).unwrap();
        }
        symlink("/etc/passwd", at("task/local/link")).unwrap();
        lchown(at("task/local/link"), Some(0), Some(0)).unwrap();
        fs::set_permissions(at("task/local/root"), fs::Permissions::from_mode(0o4600)).unwrap();
        assert_eq!(heir().look(&at("task")).unwrap().private, [PathBuf::from("local/root")]);
        assert_eq!(owner(&at("task/local/root")), (0, 0), "looked at only");
        let given = heir().give(&at("task")).unwrap();
        // The task's directory, its three, two more, three files, the link.
        assert_eq!((given.changed, given.left, given.private), (10, 0, vec![PathBuf::from("local/root")]));
        for (name, after) in [
            ("task", (BASE, BASE)),
            ("task/local/deep/er", (BASE, BASE)),
            ("task/local/root", (BASE, BASE)),
            ("task/local/link", (BASE, BASE)),
            ("task/local/users", (BASE + 33, BASE + 7)),
            ("task/local/deep/er/inherited", (BASE, BASE + 100)),
            ("task/secrets/own", (BASE + 3, BASE + 4)),
            ("task/local/strangers", (1000, 1000)),
            ("task/private/agents", (0, 0)),
            ("alloc/data/shared", (0, 0)),
        ] {
            assert_eq!(owner(&at(name)), after, "{name}");
        }
        assert_eq!(fs::metadata("/etc/passwd").unwrap().uid(), 0);
        assert_eq!(
            fs::metadata(at("task/local/root")).unwrap().mode() & 0o7777,
            0o600,
            "set-user-id does not move along"
        );
        assert_eq!(heir().give(&at("task")).unwrap(), Owned::default(), "the second time there is nothing to do");
        assert_eq!(heir().look(&at("task")).unwrap(), Owned::default());
    }

    /// What a Nomad agent moves to a later allocation: files with the earlier one's ids get this one's, and no other file is
    /// chowned; a killed run has done a part.
    #[test]
    fn shared_data_of_an_earlier_allocation_is_inherited() {
        if skipped() {
            return;
        }
        let dir = task();
        let at = |name: &str| dir.path().join(name);
        let other = BASE + 5 * 65_536;
        fs::create_dir(at("alloc/data/deep")).unwrap();
        fs::write(at("host/file"), "").unwrap();
        fs::hard_link(at("host/file"), at("alloc/data/second-name")).unwrap();
        symlink(at("host"), at("alloc/data/way-out")).unwrap();
        for (name, before, after) in [
            ("alloc/data/deep", (other, other), (BASE, BASE)),
            ("alloc/data/deep/nobodys", (other + 65_534, other + 65_534), (BASE + 65_534, BASE + 65_534)),
            ("alloc/data/deep/half", (BASE + 3, other + 3), (BASE + 3, BASE + 3)),
            ("alloc/data/roots", (0, 0), (0, 0)),
            ("alloc/data/users", (33, 34), (33, 34)),
            ("alloc/data/second-name", (other, other), (other, other)),
            ("alloc/outside", (other, other), (other, other)),
        ] {
            if !at(name).exists() {
                fs::write(at(name), "").unwrap();
            }
            chown(at(name), Some(before.0), Some(before.1)).unwrap();
            heir().inherit(dir.path()).unwrap();
            assert_eq!(owner(&at(name)), after, "{name}");
        }
        assert_eq!(owner(&at("host")), (0, 0));
        assert_eq!(heir().inherit(dir.path()).unwrap(), Owned::default(), "the second time there is nothing to do");
        fs::remove_dir_all(at("alloc/data")).unwrap();
        symlink(at("host"), at("alloc/data")).unwrap();
        chown(at("host/file"), Some(other), None).unwrap();
        assert_eq!(heir().inherit(dir.path()).unwrap(), Owned::default(), "no link is followed");
    }

    /// A killed run has done a part: the next one does the rest.
    #[test]
    fn what_was_begun_is_finished() {
        if skipped() {
            return;
        }
        let dir = task();
        let local = dir.path().join("task/local");
        for number in 0..100 {
            fs::write(local.join(number.to_string()), "").unwrap();
        }
        for number in 0..50 {
            chown(local.join((number * 2).to_string()), Some(BASE), Some(BASE)).unwrap();
        }
        // The earlier run was killed between the uid and the gid of a file.
        chown(local.join("1"), Some(BASE), None).unwrap();
        heir().give(&dir.path().join("task")).unwrap();
        for entry in fs::read_dir(&local).unwrap().flatten() {
            assert_eq!(owner(&entry.path()), (BASE, BASE), "{entry:?}");
        }
    }

    /// Traps that a task that ran here before, or another user who shares the allocation, has put there to get at files of the
    /// host.
    #[test]
    fn nothing_of_the_host_changes_hands() {
        if skipped() {
            return;
        }
        let dir = task();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("host/shadow"), "secret").unwrap();
        fs::create_dir(at("host/sub")).unwrap();
        fs::write(at("host/sub/file"), "secret").unwrap();
        fs::hard_link(at("host/shadow"), at("task/local/second-name")).unwrap();
        symlink(at("host"), at("task/local/way-out")).unwrap();
        symlink("../../host/shadow", at("task/secrets/file")).unwrap();
        fs::remove_dir(at("task/tmp")).unwrap();
        symlink(at("host"), at("task/tmp")).unwrap();
        let mode = Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at("task/local/fifo"), FileType::Fifo, mode, 0).unwrap();
        heir().give(&at("task")).unwrap();
        for name in ["host", "host/shadow", "host/sub", "host/sub/file", "task/local/second-name", "task/local/fifo"] {
            assert_eq!(owner(&at(name)), (0, 0), "{name}");
        }
    }

    #[test]
    fn a_deep_tree_costs_no_more_descriptors() {
        if skipped() {
            return;
        }
        let dir = task();
        let mut here = Root::open(&dir.path().join("task/local")).unwrap();
        for _ in 0..3000 {
            here = Root::from_fd(here.create_dir_all(Path::new("d"), Mode::from_raw_mode(0o777)).unwrap());
        }
        let given = heir().give(&dir.path().join("task")).unwrap();
        assert_eq!(given.left, 1, "{given:?}");
        assert!(given.changed > 60);
        drop(here);
        // Too deep for a path; the usual removal does not reach it.
        let removed = std::process::Command::new("rm").arg("-rf").arg(dir.path().join("task/local")).status().unwrap();
        assert!(removed.success());
    }
}
