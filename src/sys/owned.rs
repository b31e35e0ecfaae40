//! Files and directories that nobody but this process's user, or root, can have made or changed; and plain files of bounded
//! length. All of it is asked of open descriptors, so that what was checked is what is used.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::mutant;

/// Why a file or directory is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untrusted {
    path: PathBuf,
    /// Whose it is, and whose it had to be.
    owner: Option<(u32, u32)>,
    mode: u32,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.owner {
            Some((owner, wanted)) => write!(
                f,
                "{path} belongs to user {owner}, and is believed only when it belongs to user {wanted} or root: \
                 remove it, or chown it"
            ),
            None => write!(f, "others may write to {path} (mode {:o}): chmod go-w it when they have not", self.mode),
        }
    }
}

impl std::error::Error for Untrusted {}

/// Whether an error says that something is not this user's alone.
#[must_use]
pub fn is_untrusted(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Untrusted>)
}

/// That what is open belongs to this user or root, and that nobody else may write to it; `path` names it in the error.
///
/// # Errors
/// `PermissionDenied` with [`Untrusted`] in it; what `fstat(2)` says.
pub fn check(fd: impl AsFd, path: &Path) -> io::Result<()> {
    check_stat(&rustix::fs::fstat(fd)?, path)
}

fn check_stat(stat: &Stat, path: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let mode = stat.st_mode & 0o7777;
    let owner = (stat.st_uid != own && stat.st_uid != 0).then_some((stat.st_uid, own));
    if (owner.is_some() || mode & 0o022 != 0) && !mutant::on("d61") {
        let untrusted = Untrusted { path: path.to_owned(), owner, mode };
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, untrusted));
    }
    Ok(())
}

/// A directory that is this user's alone.
#[derive(Debug)]
pub struct OwnDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl OwnDir {
    /// Opens it; a link at the end of the path is not followed. Where it lies is the caller's business.
    ///
    /// # Errors
    /// As [`check`]; what `open(2)` says.
    pub fn open(path: &Path) -> io::Result<OwnDir> {
        OwnDir::open_at(CWD, path, path.to_owned())
    }

    /// Opens a directory in which others may make things, but not touch what is there: one of root or this user that has
    /// the sticky bit where others may write to it, as `/tmp` has. Links on the way to it are followed.
    ///
    /// # Errors
    /// As [`check`]; what `open(2)` says.
    pub fn open_shared(path: &Path) -> io::Result<OwnDir> {
        let fd = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut stat = rustix::fs::fstat(&fd)?;
        if stat.st_mode & 0o1000 != 0 {
            stat.st_mode &= !0o022;
        }
        check_stat(&stat, path)?;
        Ok(OwnDir { fd, path: path.to_owned() })
    }

    /// Opens a directory in this one.
    ///
    /// # Errors
    /// As [`check`]; what `openat(2)` says.
    pub fn enter(&self, name: &OsStr) -> io::Result<OwnDir> {
        OwnDir::open_at(self.fd.as_fd(), Path::new(name), self.path.join(name))
    }

    /// As [`OwnDir::enter`]; a directory that is not there is made with this mode, less the umask.
    ///
    /// # Errors
    /// As [`OwnDir::enter`]; what `mkdirat(2)` says.
    pub fn make(&self, name: &OsStr, mode: u32) -> io::Result<OwnDir> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name),
            Err(error) => Err(error.into()),
        }
    }

    /// A new directory in this one.
    ///
    /// # Errors
    /// `AlreadyExists`; as [`OwnDir::make`].
    pub fn make_new(&self, name: &OsStr, mode: u32) -> io::Result<OwnDir> {
        rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode))?;
        self.enter(name)
    }

    fn open_at(dir: BorrowedFd<'_>, name: &Path, path: PathBuf) -> io::Result<OwnDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What may only be walked through is enough to look at what is in it.
        let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => rustix::fs::openat(dir, name, flags | OFlags::PATH, Mode::empty())?,
            other => other?,
        };
        check(&fd, &path)?;
        Ok(OwnDir { fd, path })
    }

    /// Opens a plain file in this directory that is this user's alone, for reading.
    ///
    /// # Errors
    /// As [`check`]; `InvalidInput` for what is no plain file; what `openat(2)` says.
    pub fn file(&self, name: &OsStr) -> io::Result<File> {
        own_file(self.fd.as_fd(), Path::new(name), &self.path.join(name))
    }

    /// Reads such a file of at most `most` bytes.
    ///
    /// # Errors
    /// As [`OwnDir::file`]; `InvalidData` for a longer one.
    pub fn read(&self, name: &OsStr, most: u64) -> io::Result<Vec<u8>> {
        bounded(self.file(name)?, most)
    }

    /// Its name, for people.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for OwnDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens a plain file that is this user's alone, for reading, and waits for nobody; a link at the end is not followed.
///
/// # Errors
/// As [`OwnDir::file`].
pub fn open(path: &Path) -> io::Result<File> {
    own_file(CWD, path, path)
}

/// Reads such a file of at most `most` bytes.
///
/// # Errors
/// As [`OwnDir::read`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    bounded(open(path)?, most)
}

fn own_file(dir: BorrowedFd<'_>, name: &Path, path: &Path) -> io::Result<File> {
    // A FIFO holds nobody up, a terminal does not become ours.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let text = format!("{} is no plain file: remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    check_stat(&stat, path)?;
    Ok(fd.into())
}

/// All of a file that is not longer than this.
///
/// # Errors
/// `InvalidData` for a longer one; what `read(2)` says.
pub fn bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {most} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_others_may_have_written_is_named_and_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("record");
        std::fs::write(&file, "12345").unwrap();
        let name = OsStr::new("record");
        let own = OwnDir::open(dir.path()).unwrap();
        assert_eq!(own.read(name, 5).unwrap(), b"12345");
        assert_eq!(own.read(name, 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        for mode in [0o602, 0o620, 0o666] {
            set_mode(&file, mode);
            let error = own.read(name, 5).unwrap_err();
            let said = error.to_string();
            assert!(is_untrusted(&error) && said.contains("record") && said.contains(&format!("{mode:o}")), "{said}");
        }
        set_mode(&file, 0o600);
        set_mode(dir.path(), 0o777);
        assert!(is_untrusted(&OwnDir::open(dir.path()).unwrap_err()));
        set_mode(dir.path(), 0o700);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
            let error = own.read(name, 5).unwrap_err();
            assert!(is_untrusted(&error) && error.to_string().contains("belongs to user 12345"), "{error}");
        }
    }

    #[test]
    fn what_is_no_plain_file_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("dir", at("way")).unwrap();
        let own = OwnDir::open(dir.path()).unwrap();
        for name in ["fifo", "dir", "link", "none"] {
            assert!(own.file(OsStr::new(name)).is_err() && read(&at(name), 9).is_err(), "{name}");
        }
        assert!(read(Path::new("/dev/zero"), 9).is_err());
        assert!(own.enter(OsStr::new("way")).is_err() && own.make(OsStr::new("way"), 0o700).is_err());
        assert!(own.make_new(OsStr::new("dir"), 0o700).is_err());
        own.make(OsStr::new("dir"), 0o700).unwrap();
        own.make(OsStr::new("new"), 0o700).unwrap();
    }
}
