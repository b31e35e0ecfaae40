//! The directory of an allocation: built, mounted, unmounted, removed.
//!
//! ```text
//! <data>/alloc/<alloc id>/     0700, and x for the users of its tasks that see the host
//!   alloc/{data,logs,tmp}      0777   shared by the group's tasks
//!   <task>/                    0777
//!     local/                   0777   NOMAD_TASK_DIR
//!     tmp/                     01777
//!     secrets/ private/        tmpfs where the kernel lets us, NOMAD_SECRETS_DIR
//! ```

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::error::{CleanupError, SetupError};
use crate::artifact::Staging;
use crate::container::Subordinate;
use crate::spec::AllocId;
use crate::sys::acl::{Acl, EXECUTE, READ, WRITE, Who};
use crate::sys::lock::lock;
use crate::sys::mutant;
use crate::sys::path::Root;

/// The size of a tmpfs of which the job says nothing, in MiB: Nomad's.
const TMPFS_MIB: u32 = 1;

/// The uid and gid of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Where an allocation keeps its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocDir {
    path: PathBuf,
}

impl AllocDir {
    /// The directory of `id` below `data_dir`, which may not exist yet.
    #[must_use]
    pub fn new(data_dir: &Path, id: &AllocId) -> AllocDir {
        AllocDir { path: data_dir.join("alloc").join(id.as_str()) }
    }

    /// `<data>/alloc/<alloc id>`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the tasks' output is collected.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.path.join("alloc/logs")
    }

    /// Creates the shared directories. Isolated tasks get them as mounts and need no access to the path; the users of other tasks
    /// are let in by `AllocDir::admit`.
    ///
    /// # Errors
    /// [`SetupError::Dir`]; the directory must not exist.
    pub fn build(&self) -> Result<(), SetupError> {
        let error = |source| SetupError::Dir { action: "create", path: self.path.clone(), source };
        let create = || {
            std::fs::DirBuilder::new().recursive(true).mode(0o711).create(self.path.parent().unwrap_or(&self.path))?;
            std::fs::DirBuilder::new().mode(0o700).create(&self.path)
        };
        create().map_err(error)?;
        let fill = || {
            let root = Root::open(&self.path)?;
            let mode = if mutant::on("b14-dir") || mutant::on("d01") { 0o711 } else { 0o700 };
            let top = root.open_beneath(Path::new("."), OFlags::RDONLY, Mode::empty())?;
            // ACLs inherited from the data directory would let other users in, or keep the tasks' users out.
            Acl::clear(&top)?;
            set_mode(&top, mode)?;
            for name in ["alloc", "alloc/data", "alloc/logs", "alloc/tmp"] {
                make_dir(&root, Path::new(name), 0o777)?;
            }
            Ok(())
        };
        fill().map_err(|e| {
            // The first error is the one that is returned.
            drop(self.destroy());
            error(e)
        })
    }

    /// Lets the user of a task that sees the host pass through the directory: by an entry of its access control list, or, on a file
    /// system without ACLs, by its group, which then also lets the group's other members pass. No user gets permission to list it.
    ///
    /// # Errors
    /// [`SetupError::Dir`]; without access control lists also if the directory already has another group.
    pub(super) fn admit(&self, user: Owner) -> Result<(), SetupError> {
        static ADMITTING: Mutex<()> = Mutex::new(());
        let _alone = lock(&ADMITTING);
        if user.uid == 0 || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let work = || {
            let dir = Root::open(&self.path)?.open_beneath(Path::new("."), OFlags::RDONLY, Mode::empty())?;
            if mutant::on("d06") {
                return set_mode(&dir, 0o711);
            }
            let list = with_user(Acl::of(&dir)?, user.uid);
            match list.set(&dir) {
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => admit_group(&dir, user.gid),
                other => other,
            }
        };
        let action = "let the task's user into";
        work().map_err(|source| SetupError::Dir { action, path: self.path.clone(), source })
    }

    /// Creates a task's directory and its mounts.
    ///
    /// # Errors
    /// [`SetupError::Dir`].
    pub fn build_task(&self, task: &str) -> Result<(), SetupError> {
        self.build_task_with(task, TMPFS_MIB)
    }

    /// The same, with so much room for secrets; 0 is the default.
    pub(super) fn build_task_with(&self, task: &str, secrets_mib: u32) -> Result<(), SetupError> {
        let error = |source| SetupError::Dir { action: "create", path: self.path.join(task), source };
        let work = || {
            let root = Root::open(&self.path)?;
            make_dir(&root, Path::new(task), 0o777)?;
            let task_root = Root::from_fd(root.open_beneath(Path::new(task), OFlags::PATH, Mode::empty())?);
            make_dir(&task_root, Path::new("local"), 0o777)?;
            make_dir(&task_root, Path::new("tmp"), 0o1777)?;
            let is_root = rustix::process::geteuid().is_root();
            let secrets_mib = if secrets_mib == 0 { TMPFS_MIB } else { secrets_mib };
            for (name, mib) in [("secrets", secrets_mib), ("private", TMPFS_MIB)] {
                let dir = make_dir(&task_root, Path::new(name), 0o700)?;
                // A task of another user needs access to its secrets; without root, all tasks run as the user that owns the
                // directories.
                if is_root && !mount_tmpfs(&dir, mib)? && name == "secrets" {
                    set_mode(&dir, 0o777)?;
                }
            }
            Ok(())
        };
        work().map_err(error)
    }

    /// Moves the data of an ended allocation here: the shared data, and each task's own. What does not exist, or was moved before,
    /// is skipped; what already exists here is kept.
    ///
    /// # Errors
    /// The first error of the file system; everything else has been moved.
    pub(super) fn take_over(&self, from: &AllocDir, tasks: &[String]) -> io::Result<()> {
        let old = match Root::open(&from.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            old => old?,
        };
        let new = Root::open(&self.path)?;
        let mut result = move_dir(&old, &new, Path::new("alloc"), "data");
        for task in tasks {
            result = result.and(move_dir(&old, &new, Path::new(task), "local"));
        }
        result
    }

    /// Removes the staging directories of artifact fetchers, which must have ended. What cannot be removed is removed with the
    /// directory, which reports the error.
    pub(super) fn remove_staging(&self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = Root::open(&self.path).and_then(|root| root.open_beneath(Path::new("."), flags, Mode::empty()));
        let entries = opened.and_then(|top| Ok(rustix::fs::Dir::read_from(&top)?));
        for entry in entries.into_iter().flatten().flatten() {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            let id = name.to_str().and_then(|name| name.strip_prefix(Staging::PREFIX));
            if id.is_some_and(|id| uuid::Uuid::parse_str(id).is_ok()) {
                drop(remove_tree(&self.path.join(name)));
            }
        }
    }

    /// Unmounts everything below the directory, then removes it. What cannot be unmounted is not removed.
    pub fn destroy(&self) -> Vec<CleanupError> {
        let mut errors = if mutant::on("b15") { Vec::new() } else { unmount_below(&self.path) };
        if errors.is_empty() {
            errors = remove_tree(&self.path);
            if !errors.is_empty() && !rustix::process::geteuid().is_root() {
                errors = remove_as_mapped_root(&self.path, errors);
            }
        }
        errors
    }

    /// Resolves a job file's destination, which is relative to the task's directory, to a directory and a path below it: the
    /// shared directory, which is also `alloc` in the task's, or the task's own. Host paths in the allocation's directory are
    /// accepted, because `${NOMAD_SECRETS_DIR}/x` may be one.
    ///
    /// # Errors
    /// EXDEV when it ends in neither.
    pub fn locate(&self, task: &str, destination: &str) -> io::Result<(Root, PathBuf)> {
        let given = Path::new(destination);
        // A path below the allocation's directory. `..` is resolved here: the kernel would follow links before it.
        let (mut path, rest) = match given.strip_prefix(&self.path) {
            Ok(rest) => (PathBuf::new(), rest),
            Err(_) => (PathBuf::from(task), given),
        };
        for component in rest.components() {
            match component {
                Component::Normal(name) => path.push(name),
                Component::ParentDir if path.pop() => {}
                Component::ParentDir => return Err(Errno::XDEV.into()),
                Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            }
        }
        let shared = path.strip_prefix("alloc").or_else(|_| path.strip_prefix(Path::new(task).join("alloc")));
        let (top, below) = match (shared, path.strip_prefix(task)) {
            (Ok(below), _) => ("alloc", below),
            (_, Ok(below)) => (task, below),
            _ => return Err(Errno::XDEV.into()),
        };
        let alloc = Root::open(&self.path)?;
        let top = alloc.open_beneath(Path::new(top), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok((Root::from_fd(top), below.to_owned()))
    }
}

/// Whether `name` can be one directory in an allocation's, next to the shared one.
#[must_use]
pub fn is_task_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let plain = matches!((components.next(), components.next()), (Some(Component::Normal(c)), None) if c == name);
    plain && name != "alloc" && !name.contains('\0')
}

/// This access control list, or that of a directory with mode 0700, with one more user who may pass through.
fn with_user(list: Option<Acl>, uid: u32) -> Acl {
    let owner = READ | WRITE | EXECUTE;
    let Acl(mut entries) = list.unwrap_or_else(|| {
        Acl(vec![(Who::Owner, owner), (Who::OwningGroup, 0), (Who::Mask, EXECUTE), (Who::Others, 0)])
    });
    entries.retain(|(who, _)| *who != Who::User(uid));
    entries.push((Who::User(uid), EXECUTE));
    Acl(entries)
}

fn admit_group(dir: &OwnedFd, gid: u32) -> io::Result<()> {
    let stat = rustix::fs::fstat(dir)?;
    if stat.st_gid != gid {
        if stat.st_mode & 0o070 != 0 {
            let text = "the file system has no access control lists, and tasks of another group are let in already: mount it \
                        with them, or give another --data-dir";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        rustix::fs::fchown(dir, None, Some(Gid::from_raw(gid)))?;
    }
    set_mode(dir, 0o710)
}

fn set_mode(dir: &OwnedFd, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::fchmod(dir, Mode::from_raw_mode(mode))?)
}

/// Creates one directory with exactly this mode, independent of the umask.
fn make_dir(root: &Root, name: &Path, mode: u32) -> io::Result<OwnedFd> {
    root.create_dir_all(name, Mode::from_raw_mode(mode))?;
    let dir = root.open_beneath(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    set_mode(&dir, mode)?;
    Ok(dir)
}

/// Moves a directory with its content, unless its destination exists.
fn move_dir(old: &Root, new: &Root, parent: &Path, name: &str) -> io::Result<()> {
    let from = match old.open_beneath(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        from => from?,
    };
    let to = make_dir(new, parent, 0o777)?;
    match rustix::fs::renameat(&from, name, &to, name) {
        Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Mounts on the open directory, so that it cannot be replaced by a symlink in between. `false` if the kernel does not let this
/// process mount; `noswap` requires Linux 6.4.
fn mount_tmpfs(dir: &OwnedFd, mib: u32) -> io::Result<bool> {
    // An older kernel writes a line into its log each time that it is asked.
    static IS_UNKNOWN: AtomicBool = AtomicBool::new(false);
    let target = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let flags = MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV;
    let mount = |more: &str| {
        let options = CString::new(format!("size={mib}m,mode=0777{more}")).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount("tmpfs", &target, "tmpfs", flags, options.as_c_str())
    };
    let mut mounted = if IS_UNKNOWN.load(Ordering::Relaxed) { Err(Errno::INVAL) } else { mount(",noswap") };
    if mounted == Err(Errno::INVAL) {
        mounted = mount("");
        IS_UNKNOWN.store(mounted.is_ok(), Ordering::Relaxed);
    }
    match mounted {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::ACCESS | Errno::NODEV) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Every mount point at or below `dir`, the last one mounted first.
pub(super) fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut found = mount_points(&table);
    found.retain(|point| point.starts_with(dir));
    found.reverse();
    Ok(found)
}

/// The fifth field of each line (`proc_pid_mountinfo(5)`).
fn mount_points(table: &[u8]) -> Vec<PathBuf> {
    let field = |line: &[u8]| Some(unescaped(line.split(|b| *b == b' ').nth(4)?));
    table.split(|b| *b == b'\n').filter_map(field).collect()
}

/// A path of a mount table with its octal escapes undone.
pub(super) fn unescaped(raw: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((first, after)) = rest.split_first() {
        let escape = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = escape.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn unmount_below(dir: &Path) -> Vec<CleanupError> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let error = |action, path: &Path, source| CleanupError { action, subject: path.display().to_string(), source };
    let points = match mounts_below(&dir) {
        Ok(points) => points,
        Err(e) => return vec![error("read the mounts below", &dir, e)],
    };
    let root = match Root::open(&dir) {
        Ok(root) => root,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => return vec![error("open", &dir, e)],
    };
    let unmount = |point: &PathBuf| unmount_at(&root, &dir, point).err().map(|e| error("unmount", point, e));
    points.iter().filter_map(unmount).collect()
}

/// Unmounts `point`. The path is resolved beneath `root`, so that a parent directory replaced by a symlink is not followed.
fn unmount_at(root: &Root, dir: &Path, point: &Path) -> io::Result<()> {
    let below = point.strip_prefix(dir).unwrap_or(point);
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let place = root.open_beneath(below, OFlags::PATH, Mode::empty())?;
    // Unmounted through its descriptor, which itself keeps the mount busy, hence lazily: other users keep the mount until they
    // close it.
    let name = format!("/proc/self/fd/{}", place.as_raw_fd());
    Ok(rustix::mount::unmount(name, UnmountFlags::DETACH)?)
}

/// Files made by the users of a rootless task belong to the subordinate ids of the user who runs agentbin, and can be removed
/// only with these ids. Without such ids the earlier errors are returned, perhaps with a note that subordinate ids are missing.
fn remove_as_mapped_root(path: &Path, mut errors: Vec<CleanupError>) -> Vec<CleanupError> {
    let subordinate = match Subordinate::of_this_user() {
        Ok(subordinate) => subordinate,
        Err(why) => {
            if errors.iter().any(|error| error.source.kind() == io::ErrorKind::PermissionDenied) {
                let (subject, source) = (path.display().to_string(), io::Error::other(why));
                errors.push(CleanupError { action: "use subordinate ids, if files of them are in", subject, source });
            }
            return errors;
        }
    };
    let error = |text| vec![CleanupError { action: "remove", subject: path.display().to_string(), source: text }];
    match subordinate.remove(path) {
        Ok(left) if left.is_empty() => Vec::new(),
        Ok(left) => error(io::Error::other(left.join("; "))),
        Err(source) => error(source),
    }
}

/// Removes a directory with its content, without following symlinks or entering mounts.
///
/// A task may have nested directories deeper than a path, a stack or a descriptor table allows: directories found two levels
/// down are moved up, so that the walk never goes deeper.
pub fn remove_tree(path: &Path) -> Vec<CleanupError> {
    let error =
        |source: io::Error| vec![CleanupError { action: "remove", subject: path.display().to_string(), source }];
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return error(Errno::INVAL.into());
    };
    let opened = Root::open(parent).and_then(|root| open_dir(root.as_fd(), name));
    let top = match opened {
        Ok(top) => top,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(e) => return error(e),
    };
    let mut moved = 0u64;
    loop {
        let mut round = Round { top: &top, moved: &mut moved, progress: false, left: false, errors: Vec::new() };
        round.clear(&top, Path::new(""), true);
        let Round { progress, left, errors, .. } = round;
        if !left {
            break;
        }
        if !progress {
            let place = |e: CleanupError| CleanupError { subject: path.join(e.subject).display().to_string(), ..e };
            return errors.into_iter().map(place).collect();
        }
    }
    std::fs::remove_dir(path).map_or_else(error, |()| Vec::new())
}

struct Round<'a> {
    top: &'a OwnedFd,
    moved: &'a mut u64,
    progress: bool,
    /// An entry was found, so another round is needed to verify that the directory is empty.
    left: bool,
    errors: Vec<CleanupError>,
}

impl Round<'_> {
    fn clear(&mut self, dir: &OwnedFd, shown: &Path, is_top: bool) {
        let entries = match rustix::fs::Dir::read_from(dir) {
            Ok(entries) => entries,
            Err(e) => return self.fail("list", shown, e),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) => return self.fail("list", shown, e),
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            self.left = true;
            let child = shown.join(name);
            let flags = if entry.file_type() == FileType::Directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            match rustix::fs::unlinkat(dir, name, flags) {
                Ok(()) => self.progress = true,
                Err(Errno::BUSY) if mutant::on("b15") => self.clear_child(dir, name, &child),
                Err(Errno::NOTEMPTY) if mutant::on("b15-race") => self.clear_child(dir, name, &child),
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) if is_top => self.clear_child(dir, name, &child),
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::ISDIR) => self.move_up(dir, name, &child),
                Err(e) => self.fail("remove", &child, e),
            }
        }
    }

    fn clear_child(&mut self, dir: &OwnedFd, name: &OsStr, shown: &Path) {
        match open_dir(dir.as_fd(), name) {
            Ok(child) => self.clear(&child, shown, false),
            Err(e) => {
                self.errors.push(CleanupError { action: "open", subject: shown.display().to_string(), source: e });
            }
        }
    }

    fn move_up(&mut self, dir: &OwnedFd, name: &OsStr, shown: &Path) {
        *self.moved += 1;
        // Moving a directory rewrites its `..`, for which an ordinary user needs write permission on it.
        let moved = make_accessible(dir.as_fd(), name)
            .and_then(|()| Ok(rustix::fs::renameat(dir, name, self.top, format!(".removing-{}", self.moved))?));
        match moved {
            Ok(()) => self.progress = true,
            Err(source) => {
                self.errors.push(CleanupError { action: "move", subject: shown.display().to_string(), source });
            }
        }
    }

    fn fail(&mut self, action: &'static str, shown: &Path, error: Errno) {
        self.errors.push(CleanupError { action, subject: shown.display().to_string(), source: error.into() });
    }
}

fn open_dir(parent: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> io::Result<OwnedFd> {
    make_accessible(parent, name)?;
    let seen = || rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
    let plain = || seen().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    if mutant::on("b15") || mutant::on("b15-race") && plain() {
        mutant::linger();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        return Ok(rustix::fs::openat(parent, name, flags, Mode::empty())?);
    }
    let root = Root::from_fd(parent.try_clone_to_owned()?);
    root.open_same_mount(Path::new(name), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

/// An unprivileged user's own directory may have a mode that denies access even to that user.
fn make_accessible(parent: std::os::fd::BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let root = Root::from_fd(parent.try_clone_to_owned()?);
    let dir = root.open_same_mount(Path::new(name), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    Ok(rustix::fs::chmod(path, Mode::from_raw_mode(0o700))?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn built() -> (tempfile::TempDir, AllocDir) {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().canonicalize().unwrap();
        let dir = AllocDir::new(&path, &AllocId::new(uuid::Uuid::new_v4()));
        dir.build().unwrap();
        dir.build_task("web").unwrap();
        (data, dir)
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    /// The data moves to the next allocation once, and overwrites nothing; a symlink in the place of a directory is not followed.
    #[test]
    fn the_data_of_an_allocation_that_has_ended_is_taken_over() {
        let (_old_data, old) = built();
        let (_new_data, new) = built();
        let write = |dir: &AllocDir, name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write(&old, "alloc/data/shared", "1");
        write(&old, "web/local/own", "2");
        write(&old, "alloc/tmp/not", "3");
        let tasks = ["web".to_owned(), "new".to_owned()];
        new.take_over(&old, &tasks).unwrap();
        let read = |name: &str| std::fs::read_to_string(new.path().join(name)).ok();
        assert_eq!((read("alloc/data/shared").as_deref(), read("web/local/own").as_deref()), (Some("1"), Some("2")));
        assert!(read("alloc/tmp/not").is_none() && !old.path().join("alloc/data").exists());
        new.build_task("new").unwrap();
        new.take_over(&old, &tasks).unwrap();
        std::fs::create_dir(old.path().join("alloc/data")).unwrap();
        write(&old, "alloc/data/shared", "later");
        new.take_over(&old, &tasks).unwrap();
        assert_eq!(read("alloc/data/shared").as_deref(), Some("1"), "what is there stays");

        let (_data, third) = built();
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::create_dir(elsewhere.path().join("local")).unwrap();
        std::fs::rename(new.path().join("new"), new.path().join("moved")).unwrap();
        symlink(elsewhere.path(), new.path().join("new")).unwrap();
        assert!(third.take_over(&new, &tasks).is_err());
        assert!(elsewhere.path().join("local").exists() && third.path().join("alloc/data/shared").exists());
        let gone = AllocDir::new(old.path(), &AllocId::new(uuid::Uuid::new_v4()));
        third.take_over(&gone, &tasks).unwrap();
        for dir in [old, new, third] {
            assert_eq!(dir.destroy().len(), 0);
        }
    }

    #[test]
    fn the_layout_has_nomads_modes_whatever_the_umask() {
        let (_data, dir) = built();
        for (name, expected) in [
            (".", 0o700),
            ("alloc", 0o777),
            ("alloc/data", 0o777),
            ("alloc/logs", 0o777),
            ("alloc/tmp", 0o777),
            ("web", 0o777),
            ("web/local", 0o777),
            ("web/tmp", 0o1777),
        ] {
            assert_eq!(mode(&dir.path().join(name)), expected, "{name}");
        }
        if rustix::process::geteuid().is_root() {
            assert_eq!(mode(&dir.path().join("web/secrets")), 0o777);
            assert_eq!(mounts_below(dir.path()).unwrap().len(), 2, "secrets and private are their own file systems");
        } else {
            assert_eq!(mode(&dir.path().join("web/secrets")), 0o700);
        }
        assert!(dir.build().is_err(), "an allocation's directory is never taken over");
        assert_eq!(dir.destroy().len(), 0);
        assert!(!dir.path().exists());
        assert_eq!(mounts_below(dir.path()).unwrap(), Vec::<PathBuf>::new());
        assert_eq!(dir.destroy().len(), 0, "removing twice is not an error");
    }

    #[test]
    fn secrets_have_the_room_that_is_asked_for() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_data, dir) = built();
        dir.build_task_with("large", 3).unwrap();
        dir.build_task_with("usual", 0).unwrap();
        let mib = |name: &str| {
            let room = rustix::fs::statvfs(dir.path().join(name)).unwrap();
            (room.f_blocks * room.f_frsize) >> 20
        };
        let found = ["web/secrets", "usual/secrets", "large/secrets", "large/private"].map(mib);
        assert_eq!(found, [1, 1, 3, 1]);
        assert_eq!(dir.destroy().len(), 0);
    }

    #[test]
    fn users_are_let_in_one_by_one() {
        let (_data, dir) = built();
        if !rustix::process::geteuid().is_root() {
            dir.admit(Owner { uid: 7001, gid: 7001 }).unwrap();
            assert_eq!(mode(dir.path()), 0o700, "an ordinary user's tasks are himself");
            return;
        }
        dir.admit(Owner { uid: 0, gid: 0 }).unwrap();
        assert_eq!(mode(dir.path()), 0o700, "root needs no entry");
        let open = || std::fs::File::open(dir.path()).unwrap();
        dir.admit(Owner { uid: 7001, gid: 7001 }).unwrap();
        match Acl::of(open()).unwrap() {
            Some(Acl(first)) => {
                assert!(first.contains(&(Who::User(7001), EXECUTE)) && first.contains(&(Who::Others, 0)), "{first:?}");
                for _ in 0..2 {
                    dir.admit(Owner { uid: 7002, gid: 7002 }).unwrap();
                }
                let Acl(both) = Acl::of(open()).unwrap().unwrap();
                let added: Vec<_> = both.iter().filter(|entry| !first.contains(entry)).collect();
                assert_eq!(added, [&(Who::User(7002), EXECUTE)]);
            }
            None => assert_eq!(mode(dir.path()), 0o710, "no lists here: by the group"),
        }
        assert_eq!(mode(dir.path()) & 0o007, 0);
        dir.destroy();
    }

    /// On a file system without access control lists.
    #[test]
    fn without_lists_one_group_is_let_in() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (_data, dir) = built();
        let open = OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
        for _ in 0..2 {
            admit_group(&open, 7001).unwrap();
            assert_eq!(mode(dir.path()), 0o710);
        }
        assert!(admit_group(&open, 7002).unwrap_err().to_string().contains("access control lists"));
        assert_eq!(mode(dir.path()), 0o710);
        dir.destroy();
    }

    #[test]
    fn removal_leaves_alone_what_symlinks_name() {
        let (data, dir) = built();
        let outside = data.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("keep"), "x").unwrap();
        symlink(&outside, dir.path().join("web/local/link")).unwrap();
        symlink(&outside, dir.path().join("link")).unwrap();
        assert_eq!(dir.destroy().len(), 0);
        assert!(outside.join("keep").exists());
    }

    #[test]
    fn removal_copes_with_closed_and_very_deep_folders() {
        let (_data, dir) = built();
        let closed = dir.path().join("web/local/closed/in");
        std::fs::create_dir_all(&closed).unwrap();
        std::fs::write(closed.join("f"), "x").unwrap();
        std::fs::set_permissions(closed.parent().unwrap(), std::fs::Permissions::from_mode(0o0)).unwrap();
        let top = Root::open(&dir.path().join("web/local")).unwrap();
        let mut fd = top.open_beneath(Path::new("."), OFlags::PATH, Mode::empty()).unwrap();
        for _ in 0..3000 {
            fd = Root::from_fd(fd).create_dir_all(Path::new("deeper"), Mode::from_raw_mode(0o755)).unwrap();
        }
        drop(fd);
        let errors = dir.destroy();
        assert!(errors.is_empty(), "{errors:?}");
        assert!(!dir.path().exists());
    }

    #[test]
    fn mount_tables_are_read_with_their_escapes() {
        let table = b"22 1 0:2 / / rw - ext4 x rw\n23 22 0:3 / /a\\040b/c\\134d rw shared:1 - tmpfs t rw\nbroken\n";
        assert_eq!(mount_points(table), [PathBuf::from("/"), PathBuf::from("/a b/c\\d")]);
    }

    #[test]
    fn destinations_stay_in_the_task_or_the_shared_folder() {
        let (_data, dir) = built();
        let host = |below: &str| dir.path().join(below).to_string_lossy().into_owned();
        for (destination, relative) in [
            ("local/x".to_owned(), "local/x"),
            ("/secrets/x".to_owned(), "secrets/x"),
            ("local/../local/./x".to_owned(), "local/x"),
            (host("web/secrets/x"), "secrets/x"),
            ("/alloc/data/x".to_owned(), "data/x"),
            (host("alloc/data/x"), "data/x"),
            // As Nomad, which looks only whether the path ends in the allocation's directory.
            ("../alloc/data/x".to_owned(), "data/x"),
            ("local/../../alloc/./data/../x".to_owned(), "x"),
            ("/../alloc/x".to_owned(), "x"),
            ("alloc/../local/x".to_owned(), "local/x"),
            ("../web/local/x".to_owned(), "local/x"),
            (host("alloc/../web/local/x"), "local/x"),
        ] {
            let (top, below) = dir.locate("web", &destination).unwrap();
            assert_eq!(below, Path::new(relative), "{destination}");
            let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).unwrap().st_ino;
            let is_shared = !["local", "secrets"].iter().any(|own| relative.starts_with(own));
            let wanted = File::open(host(if is_shared { "alloc" } else { "web" })).unwrap();
            assert_eq!(inode(top.as_fd()), inode(wanted.as_fd()), "{destination}");
        }
        let beside = host("../x");
        for destination in [
            "../x",
            "..",
            "local/../../x",
            "alloc/../../x",
            "../other/local/x",
            "../alloc/../x",
            "../../alloc/x",
            "local/../../../x",
            &beside,
        ] {
            let error = dir.locate("web", destination).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{destination}");
        }
        assert!(is_task_name("web app"));
        for name in ["", ".", "..", "a/b", "/a", "a/", "alloc", "a\0b"] {
            assert!(!is_task_name(name), "{name:?}");
        }
        dir.destroy();
    }
}
