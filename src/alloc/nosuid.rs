//! Files of tasks give nobody another identity: every allocation of a data directory lies on one mount, of `<data>/alloc` on
//! itself, on which set-user-ID and set-group-ID bits, file capabilities and device nodes mean nothing.
//!
//! A task that is root in its jail shares directories with tasks that see the host, and whoever may walk through the
//! allocation can execute what it writes there.
//!
//! The mount is made under a lock before the first allocation, and taken away under the same lock by whoever removed the
//! last one. Whoever works in an allocation holds a descriptor on the mount meanwhile: while there is one, the kernel
//! refuses to unmount. Never lazily: what is detached while it is in use can be used on.

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

/// What makes set-id bits and device nodes mean nothing.
const CLOSED: StatVfsMountFlags = StatVfsMountFlags::NOSUID.union(StatVfsMountFlags::NODEV);
/// Locked while the mount is made or taken away; stays in the data directory.
const LOCK: &str = "alloc.lock";
/// How long others, who only look into a file, may keep the mount busy.
const PATIENCE: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(10);

/// Keeps the mount of a data directory from being taken away.
#[derive(Debug)]
pub struct Hold {
    _place: OwnedFd,
}

/// What became of the mount of a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// There is none.
    Gone,
    /// There are allocations on it.
    Needed,
    /// Somebody works there, and takes it away later.
    Busy,
}

/// Makes the mount of `<data_dir>/alloc`, if it is not there, and holds it. `None` without root, and where the kernel lets
/// nobody mount, as then no task is root in a jail.
///
/// # Errors
/// [`SetupError::Dir`]; also when something else is mounted there, which is never covered.
pub fn hold(data_dir: &Path) -> Result<Option<Hold>, SetupError> {
    let dir = data_dir.join("alloc");
    // What `d62` moves by its name cannot leave a mount.
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

/// Takes the mount away when no allocation is left on it.
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
        // By its path, which nobody but root can change: a descriptor would keep it busy.
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

/// As [`release`]; whoever only looks at something there is waited for, half a second at most.
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

/// Closed again when it returns: what is open keeps the mount busy.
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

/// Held by whoever makes or takes away the mount; others wait.
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

/// Mounts the directory on itself. Made private before it is attached: a copy that heard of what happens on the mount that
/// it was made of would get each of the tasks' file systems twice. On a shared mount the kernel makes it shared anew.
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
    /// What of its file system is mounted.
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

/// Whether what is mounted at `dir` is `dir` itself with the options that we give: an operator's own file system stays.
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

    /// D16: what is unmounted is the directory on itself with our options, and nothing of an operator's.
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

    /// D16: held by whoever works there, needed by an allocation, and gone after the last of both; a data directory that was
    /// never used has none.
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
