//! Files of tasks cannot give a process another identity: all allocations of a data directory lie on one bind mount of
//! `<data>/alloc` on itself, on which set-user-ID and set-group-ID bits, file capabilities and device nodes have no effect.
//!
//! A task that is root in its jail shares directories with tasks that see the host, and every user who may pass through the
//! allocation can execute what it writes there.
//!
//! The mount is made under a lock before the first allocation, and unmounted under the same lock by the process that removes the
//! last one. A process that works in an allocation holds a descriptor on the mount meanwhile: as long as there is one, the
//! kernel refuses to unmount. Never unmounted lazily: a detached mount can still be used by those who have it open.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, UnmountFlags};

use super::dir::{mounts_below, unescaped};
use super::error::{CleanupError, SetupError};
use crate::spec::AllocId;
use crate::sys::path::Root;
use crate::sys::{mount, mutant};

/// The options that disable set-id bits and device nodes.
const CLOSED: StatVfsMountFlags = StatVfsMountFlags::NOSUID.union(StatVfsMountFlags::NODEV);
/// Locked while the mount is made or unmounted; stays in the data directory.
const LOCK: &str = "alloc.lock";
/// How long other processes that only read a file may keep the mount busy.
const PATIENCE: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(10);

/// Keeps the mount of a data directory from being unmounted.
#[derive(Debug)]
pub struct Hold {
    _place: OwnedFd,
}

/// The state of the mount of a data directory after a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// There is no mount.
    Gone,
    /// It still has allocations.
    Needed,
    /// Another process works there and will unmount it later.
    Busy,
}

/// Makes the mount of `<data_dir>/alloc` if it does not exist, and holds it. `None` without root, and if the kernel refuses to
/// mount, because then no task is root in a jail.
///
/// # Errors
/// [`SetupError::Dir`]; also when something else is mounted there, which is never covered by our mount.
pub fn hold(data_dir: &Path) -> Result<Option<Hold>, SetupError> {
    let dir = data_dir.join("alloc");
    // What mutant `d62` moves by its name cannot leave a mount.
    if !rustix::process::geteuid().is_root() || mutant::on("d10") || mutant::on("d62") {
        return Ok(None);
    }
    let make = || {
        DirBuilder::new().recursive(true).mode(0o711).create(&dir)?;
        let dir = dir.canonicalize()?;
        let _lock = lock(data_dir)?;
        let place = open(&dir)?;
        if is_closed(&place)? {
            return Ok(Some(Hold { _place: place }));
        }
        if let Some(point) = mounts_below(&dir)?.last() {
            return Err(in_the_way(&dir, point));
        }
        match cover(&place) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS)) => return Ok(None),
            covered => covered?,
        }
        let place = open(&dir)?;
        if is_closed(&place)? {
            return Ok(Some(Hold { _place: place }));
        }
        Err(io::Error::other("somebody has mounted something else there"))
    };
    make().map_err(|source| SetupError::Dir { action: "mount nosuid,nodev at", path: dir.clone(), source })
}

fn in_the_way(dir: &Path, point: &Path) -> io::Error {
    let fix = if point == dir {
        "it is a mount of its own; mount it with the options nosuid,nodev".to_owned()
    } else {
        format!("{} is mounted below it; end the allocations there, and see agentbin gc", point.display())
    };
    io::Error::new(io::ErrorKind::ResourceBusy, fix)
}

/// Unmounts when no allocation remains on it.
///
/// # Errors
/// [`CleanupError`], but not when it is in use.
pub fn release(data_dir: &Path) -> Result<Release, CleanupError> {
    let dir = data_dir.join("alloc");
    let error = |source| CleanupError { action: "unmount", subject: dir.display().to_string(), source };
    if !rustix::process::geteuid().is_root() || mutant::on("d16") {
        return Ok(Release::Gone);
    }
    let take = || -> io::Result<Release> {
        let dir = dir.canonicalize()?;
        let _lock = lock(data_dir)?;
        if has_allocations(&dir)? {
            return Ok(Release::Needed);
        }
        if !is_ours(&std::fs::read("/proc/self/mountinfo")?, &dir) {
            return Ok(Release::Gone);
        }
        // By its path, which only root can change: a descriptor would keep the mount busy.
        match rustix::mount::unmount(&dir, UnmountFlags::NOFOLLOW) {
            Ok(()) => Ok(Release::Gone),
            Err(Errno::BUSY) => Ok(Release::Busy),
            Err(e) => Err(e.into()),
        }
    };
    match take() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Release::Gone),
        other => other.map_err(error),
    }
}

/// As [`release`]; waits up to half a second for processes that only read a file there.
pub(super) async fn release_soon(data_dir: &Path) -> Result<Release, CleanupError> {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let data_dir = data_dir.to_owned();
        let released = crate::sys::task::spawn_blocking(move || release(&data_dir)).await;
        let released = released.unwrap_or_else(|e| {
            Err(CleanupError { action: "unmount", subject: "alloc".to_owned(), source: io::Error::other(e) })
        })?;
        if released != Release::Busy || tokio::time::Instant::now() > deadline {
            return Ok(released);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The directory is closed again on return: an open descriptor keeps the mount busy.
fn has_allocations(dir: &Path) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let entries = Root::open(dir)?.open_beneath(Path::new("."), flags, Mode::empty())?;
    for entry in rustix::fs::Dir::new(entries)? {
        if AllocId::parse(&entry?.file_name().to_string_lossy()).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Held while the mount is made or unmounted; other processes wait.
fn lock(data_dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK;
    let file = Root::open(data_dir)?.open_beneath(Path::new(LOCK), flags, Mode::from_raw_mode(0o600))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

fn open(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(rustix::fs::CWD, dir, flags, Mode::empty())?)
}

fn is_closed(place: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatvfs(place)?.f_flag.contains(CLOSED))
}

/// Bind-mounts the directory on itself. The copy is made private before it is attached: otherwise it would receive propagation
/// events of the mount that it was copied from, and get each of the tasks' file systems twice. When it is attached to a shared
/// mount, the kernel makes it shared again.
fn cover(place: &OwnedFd) -> io::Result<()> {
    let copy = mount::clone_mount(place.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount::set_attributes(copy.as_fd(), attributes, libc::MS_PRIVATE, false)?;
    mount::attach(copy.as_fd(), place.as_fd())
}

/// A line of the mount table, see `proc_pid_mountinfo(5)`.
struct Line<'a> {
    id: &'a [u8],
    parent: &'a [u8],
    device: &'a [u8],
    /// The root of this mount within its file system.
    root: PathBuf,
    point: PathBuf,
    options: &'a [u8],
}

impl<'a> Line<'a> {
    fn parse(line: &'a [u8]) -> Option<Line<'a>> {
        let mut fields = line.split(|b| *b == b' ');
        let [id, parent, device] = [fields.next()?, fields.next()?, fields.next()?];
        let (root, point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        Some(Line { id, parent, device, root, point, options: fields.next()? })
    }
}

/// Whether the mount at `dir` is `dir` itself with the options that we set: a file system that an operator mounted there is
/// left alone.
fn is_ours(table: &[u8], dir: &Path) -> bool {
    let lines: Vec<Line<'_>> = table.split(|b| *b == b'\n').filter_map(Line::parse).collect();
    let Some(top) = lines.iter().rfind(|line| line.point == dir) else { return false };
    let Some(below) = lines.iter().find(|line| line.id == top.parent) else { return false };
    let has = |option: &[u8]| top.options.split(|b| *b == b',').any(|o| o == option);
    let Ok(relative) = dir.strip_prefix(&below.point) else { return false };
    let same = top.root == below.root.join(relative);
    has(b"nosuid") && has(b"nodev") && top.device == below.device && same
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D16: only the bind mount of the directory on itself with our options is unmounted, nothing of an operator's.
    #[test]
    fn only_our_own_mount_is_ours() {
        let dir = Path::new("/var/lib/agent bin/alloc");
        let ours = "30 20 8:1 /data/agent\\040bin/alloc /var/lib/agent\\040bin/alloc rw,nosuid,nodev,relatime shared:9 - ext4 x rw";
        let below = "20 1 8:1 /data /var/lib rw,relatime shared:1 - ext4 x rw";
        let table = |lines: &[&str]| is_ours(lines.join("\n").as_bytes(), dir);
        assert!(table(&[below, ours]));
        for other in [
            ours.replace("nosuid,nodev", "nosuid"),
            ours.replace("8:1", "0:44"),
            ours.replace("/data/agent", "/other/agent"),
            ours.replace(" 20 ", " 19 "),
            ours.replace("/var/lib", "/var/run"),
        ] {
            assert!(!table(&[below, &other]), "{other}");
        }
        let on_top = "31 30 0:44 / /var/lib/agent\\040bin/alloc rw,nosuid,nodev - tmpfs tmpfs rw";
        assert!(!table(&[below, ours, on_top]), "an operator's file system on top of it");
        assert!(!is_ours(b"broken\n", dir));
    }

    /// D16: the mount is held by each process that works there, needed by each allocation, and gone after the last of both; an
    /// unused data directory has none.
    #[test]
    fn a_mount_lives_as_long_as_somebody_needs_it() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(release(data.path()).unwrap(), Release::Gone);
        let Some(first) = hold(data.path()).unwrap() else {
            assert!(!rustix::process::geteuid().is_root(), "root mounts");
            assert!(!data.path().join("alloc").exists(), "nothing is made without root");
            return;
        };
        let second = hold(data.path()).unwrap();
        let mounts = || mounts_below(&data.path().canonicalize().unwrap().join("alloc")).unwrap().len();
        assert_eq!((mounts(), release(data.path()).unwrap()), (1, Release::Busy));
        drop(first);
        assert_eq!(release(data.path()).unwrap(), Release::Busy);
        drop(second);
        let dir = data.path().join("alloc").join(uuid::Uuid::new_v4().to_string());
        std::fs::create_dir(&dir).unwrap();
        assert_eq!((release(data.path()).unwrap(), mounts()), (Release::Needed, 1));
        std::fs::remove_dir(&dir).unwrap();
        assert_eq!((release(data.path()).unwrap(), mounts()), (Release::Gone, 0));
    }
}
