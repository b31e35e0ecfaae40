//! Opening what lies below a folder that somebody else can write to.
//!
//! A task folder is hostile: the task may have planted symlinks, FIFOs or devices anywhere in it. Checking a path and
//! opening it afterwards is a race that the task wins now and then, so every name is resolved by the kernel in one
//! `openat2(2)` relative to a directory descriptor, and never leaves that directory.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};

/// A directory below which names are resolved without ever leaving it.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens a trusted path as the top of a tree.
    ///
    /// # Errors
    /// Whatever `open(2)` says; ENOTDIR when it is no directory.
    pub fn open(path: &Path) -> io::Result<Root> {
        let fd = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Root(fd))
    }

    /// Takes an open directory as the top of a tree.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Root {
        Root(fd)
    }

    /// Opens `relative` without following any symlink on the way or at its end.
    ///
    /// # Errors
    /// ELOOP for a symlink, EXDEV for a name that leaves the tree, else what `openat2(2)` says.
    pub fn open_beneath(&self, relative: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        retry_openat2(self.0.as_fd(), relative, flags, mode, resolve)
    }

    /// As [`Root::open_beneath`], and refuses to enter another mount.
    ///
    /// # Errors
    /// EXDEV at a mount point or for a name that leaves the tree, ELOOP for a symlink, else what `openat2(2)` says.
    pub fn open_same_mount(&self, relative: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        retry_openat2(self.0.as_fd(), relative, flags, mode, resolve)
    }

    /// Opens `path` as a process would whose root is this directory: symlinks are followed, but inside it, and an
    /// absolute path starts here.
    ///
    /// # Errors
    /// What `openat2(2)` says.
    pub fn open_in_root(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        retry_openat2(self.0.as_fd(), path, flags, mode, resolve)
    }

    /// Opens the directory `relative`, creating what is missing with `mode` (before the umask).
    ///
    /// # Errors
    /// ELOOP where a component is a symlink, ENOTDIR where one is a file, else what the calls say.
    pub fn create_dir_all(&self, relative: &Path, mode: Mode) -> io::Result<OwnedFd> {
        let mut dir = self.open_beneath(Path::new("."), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        for component in relative.components() {
            let name = match component {
                Component::Normal(name) => name,
                Component::CurDir | Component::RootDir => continue,
                Component::ParentDir | Component::Prefix(_) => return Err(io::Error::from_raw_os_error(libc::EXDEV)),
            };
            match rustix::fs::mkdirat(&dir, name, mode) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = rustix::fs::openat(&dir, name, flags, Mode::empty()).map_err(|e| symlink_as_eloop(&dir, name, e))?;
        }
        Ok(dir)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `O_DIRECTORY | O_NOFOLLOW` on a symlink says ENOTDIR; say ELOOP so that the cause is visible.
fn symlink_as_eloop(dir: &OwnedFd, name: &OsStr, error: rustix::io::Errno) -> io::Error {
    let is_link = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode) == rustix::fs::FileType::Symlink);
    if is_link { io::Error::from_raw_os_error(libc::ELOOP) } else { error.into() }
}

/// `openat2(2)` answers EAGAIN when a rename raced with a `..` it could not prove safe, and may be interrupted.
fn retry_openat2(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> io::Result<OwnedFd> {
    loop {
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            other => return other.map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: io::Result<OwnedFd>) -> Option<i32> {
        result.err().and_then(|e| e.raw_os_error())
    }

    #[test]
    fn names_never_leave_the_root() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::fs::write(dir.path().join("in/file"), "x").unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("abs")).unwrap();
        std::os::unix::fs::symlink("in", dir.path().join("rel")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let read = |p: &str| root.open_beneath(Path::new(p), OFlags::RDONLY, Mode::empty());
        assert!(read("in/file").is_ok());
        assert_eq!(errno(read("../x")), Some(libc::EXDEV));
        assert_eq!(errno(read("abs/passwd")), Some(libc::ELOOP));
        assert_eq!(errno(read("rel/file")), Some(libc::ELOOP));
        assert!(root.open_in_root(Path::new("rel/file"), OFlags::RDONLY, Mode::empty()).is_ok());
        assert_eq!(
            errno(root.open_in_root(Path::new("abs/passwd"), OFlags::RDONLY, Mode::empty())),
            Some(libc::ENOENT)
        );
        let mode = Mode::from_raw_mode(0o755);
        assert_eq!(errno(root.create_dir_all(Path::new("abs/planted"), mode)), Some(libc::ELOOP));
        assert_eq!(errno(root.create_dir_all(Path::new("a/../../b"), mode)), Some(libc::EXDEV));
        root.create_dir_all(Path::new("/a/b/c"), mode).unwrap();
        assert!(dir.path().join("a/b/c").is_dir());
    }
}
