//! Files and directories that only this process's user, or root, can have made or changed; and regular files of bounded length. All
//! checks are made on open descriptors, so that the checked file is the one that is used.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::acl::{Acl, WRITE, Who};
use super::mutant;

/// Why a file or directory is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Untrusted {
    path: PathBuf,
    /// The actual and the required owner.
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

/// Whether an error says that other users have access to a file or directory.
#[must_use]
pub fn is_untrusted(error: &io::Error) -> bool {
    error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Untrusted>)
}

/// Checks that an open file belongs to this user or root, and that no other user may write to it; `path` names it in the error.
///
/// # Errors
/// `PermissionDenied` with [`Untrusted`] in it; what `fstat(2)` says.
pub fn check(fd: impl AsFd, path: &Path) -> io::Result<()> {
    check_stat(&rustix::fs::fstat(fd)?, path)
}

/// As [`check`], for the file at this path, which need not be readable; a link at the end is not followed.
///
/// # Errors
/// As [`check`]; what `open(2)` says.
pub fn check_at(path: &Path) -> io::Result<()> {
    check(rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?, path)
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

/// A directory that only this user can change.
#[derive(Debug)]
pub struct OwnDir {
    fd: OwnedFd,
    path: PathBuf,
}

impl OwnDir {
    /// Opens it; a link at the end of the path is not followed. The caller has to check the directories above it.
    ///
    /// # Errors
    /// As [`check`]; what `open(2)` says.
    pub fn open(path: &Path) -> io::Result<OwnDir> {
        OwnDir::open_at(CWD, path, path.to_owned())
    }

    /// Opens a directory in which others may create entries, but not change existing ones: it belongs to root or this user and, if
    /// others may write to it, has the sticky bit, as `/tmp` does. Links on the way to it are followed.
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

    /// Opens a subdirectory.
    ///
    /// # Errors
    /// As [`check`]; what `openat(2)` says.
    pub fn enter(&self, name: &OsStr) -> io::Result<OwnDir> {
        OwnDir::open_at(self.fd.as_fd(), Path::new(name), self.path.join(name))
    }

    /// As [`OwnDir::enter`]; a missing directory is created with this mode, less the umask.
    ///
    /// # Errors
    /// As [`OwnDir::enter`]; what `mkdirat(2)` says.
    pub fn make(&self, name: &OsStr, mode: u32) -> io::Result<OwnDir> {
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a subdirectory.
    ///
    /// # Errors
    /// `AlreadyExists`; as [`OwnDir::make`].
    pub fn make_new(&self, name: &OsStr, mode: u32) -> io::Result<OwnDir> {
        rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode))?;
        self.enter(name)
    }

    fn open_at(dir: BorrowedFd<'_>, name: &Path, path: PathBuf) -> io::Result<OwnDir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Search permission alone is enough to access its entries.
        let fd = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
            Err(Errno::ACCESS) => rustix::fs::openat(dir, name, flags | OFlags::PATH, Mode::empty())?,
            other => other?,
        };
        check(&fd, &path)?;
        Ok(OwnDir { fd, path })
    }

    /// Opens the regular file in this directory, created where it is missing, that serves as a lock (`flock(2)`) for work there: no
    /// other user can open it, and so no other user can hold the lock.
    ///
    /// # Errors
    /// As [`OwnDir::file`].
    pub fn lock_file(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR)?;
        check(&fd, &self.path.join(name))?;
        Ok(fd.into())
    }

    /// Opens a regular file in this directory that only this user can change, for reading.
    ///
    /// # Errors
    /// As [`check`]; `InvalidInput` for anything but a regular file; what `openat(2)` says.
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

    /// Its path, for messages.
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

/// As many symbolic links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// The path with its links resolved, if only this user and root can replace what is found there: each directory on the way, also to
/// a link, belongs to one of them and is not writable for others, unless its sticky bit protects the entries of other owners, as in
/// `/tmp`; each link belongs to one of them, too. The owner of the final file is not checked.
///
/// # Errors
/// `PermissionDenied` with [`Untrusted`] in it, which names the directory or the link; what `openat(2)` says.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    Ok(walk(path)?.1)
}

/// As [`resolve`], for a directory in which something is to be created that no other user can replace.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_parent(path: &Path) -> io::Result<PathBuf> {
    let (dir, shown) = walk(path)?;
    check_stat(&without_what_is_safe(&dir)?, &shown)?;
    Ok(shown)
}

fn walk(path: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let look = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut stack = vec![(rustix::fs::openat(CWD, "/", look, Mode::empty())?, PathBuf::from("/"))];
    let mut pending = names(&std::path::absolute(path)?);
    let mut links = 0;
    while let Some(name) = pending.pop() {
        let Some((here, shown)) = stack.last() else { return Err(io::ErrorKind::NotFound.into()) };
        if name == ".." {
            stack.truncate((stack.len() - 1).max(1));
            continue;
        }
        check_stat(&without_what_is_safe(here)?, shown)?;
        let shown = shown.join(&name);
        let found = rustix::fs::openat(here, &name, look, Mode::empty())?;
        let mut stat = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            stack.push((found, shown));
            continue;
        }
        // The mode of a link has no meaning.
        stat.st_mode &= !0o022;
        check_stat(&known_owner(stat), &shown)?;
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let target = PathBuf::from(OsString::from_vec(rustix::fs::readlinkat(&found, c"", Vec::new())?.into_bytes()));
        if target.has_root() {
            stack.truncate(1);
        }
        pending.extend(names(&target));
    }
    stack.pop().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The components of a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(name).collect()
}

/// The `fstat(2)` result for a directory on the way, without those owners and write permissions that let no other user replace its
/// entries.
fn without_what_is_safe(dir: &OwnedFd) -> io::Result<Stat> {
    let mut stat = rustix::fs::fstat(dir)?;
    let groups = [0, rustix::process::getegid().as_raw()];
    if stat.st_mode & 0o1000 != 0 {
        stat.st_mode &= !0o022;
    } else if stat.st_mode & 0o020 != 0 && groups.contains(&stat.st_gid) && !is_listed(dir) {
        stat.st_mode &= !0o020;
    }
    Ok(known_owner(stat))
}

/// In a user namespace the host's root is not mapped, so the owner of the host's directories is unknown; they count as root's.
fn known_owner(mut stat: Stat) -> Stat {
    if stat.st_uid == overflow_uid() && has_unmapped_users() {
        stat.st_uid = 0;
    }
    stat
}

/// Whether an access control list lets another user write, or cannot be read.
fn is_listed(dir: &OwnedFd) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let list = rustix::fs::openat(dir, ".", flags, Mode::empty()).map_err(io::Error::from).and_then(Acl::of);
    let writes = |(who, may): &(Who, u16)| matches!(who, Who::User(_) | Who::Group(_)) && may & WRITE != 0;
    list.map_or(true, |list| list.is_some_and(|Acl(entries)| entries.iter().any(writes)))
}

/// The user id that the kernel shows for unmapped ones.
fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default();
    text.trim().parse().unwrap_or(65534)
}

fn has_unmapped_users() -> bool {
    // A kernel without user namespaces has no such file.
    let Ok(map) = std::fs::read_to_string("/proc/self/uid_map") else { return false };
    map.split_ascii_whitespace().ne(["0", "0", "4294967295"])
}

/// Opens a regular file that only this user can change, for reading, without blocking; a link at the end is not followed.
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
    // Opening a FIFO does not block, and a terminal does not become our controlling terminal.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let text = format!("{} is not a plain file: remove it", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    check_stat(&stat, path)?;
    Ok(fd.into())
}

/// The whole content of a file that is not longer than this.
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

    /// D72: a user who can replace a directory of the path decides what is found behind it.
    #[test]
    fn a_path_is_as_safe_as_what_leads_to_it() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let (way, data) = (top.join("way"), top.join("way/data"));
        std::fs::create_dir_all(&data).unwrap();
        for (mode, safe) in [(0o755, true), (0o711, true), (0o777, false), (0o1777, true), (0o775, true)] {
            set_mode(&way, mode);
            let checked = resolve(&data);
            assert_eq!(checked.is_ok(), safe, "{mode:o}: {checked:?}");
            assert!(safe || checked.unwrap_err().to_string().contains("way"));
            assert_eq!(resolve_parent(&way).is_ok(), safe, "{mode:o}");
        }
        // The final directory itself is not checked.
        set_mode(&data, 0o777);
        resolve(&data).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&way, Some(0), Some(12345)).unwrap();
            assert!(is_untrusted(&resolve(&data).unwrap_err()), "another group may write");
            std::os::unix::fs::chown(&way, Some(12345), Some(0)).unwrap();
            set_mode(&way, 0o1755);
            assert!(is_untrusted(&resolve(&data).unwrap_err()), "its owner may do anything");
            std::os::unix::fs::chown(&way, Some(0), Some(0)).unwrap();
        }
        // Links are followed, and their owners are checked, too.
        set_mode(&way, 0o1777);
        for (name, target) in
            [("way/link", data.clone()), ("again", PathBuf::from("./way/../way/link")), ("loop", "loop".into())]
        {
            std::os::unix::fs::symlink(target, top.join(name)).unwrap();
        }
        assert_eq!(resolve(&top.join("again")).unwrap(), data);
        assert_eq!(resolve(&top.join("loop")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(resolve(&top.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(way.join("link"), Some(12345), None).unwrap();
            let error = resolve(&top.join("again")).unwrap_err();
            assert!(is_untrusted(&error) && error.to_string().contains("way/link belongs to user 12345"), "{error}");
        }
        let own = OwnDir::open(&top).unwrap();
        own.lock_file(OsStr::new("lock")).unwrap();
        assert_eq!(top.join("lock").metadata().unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink("lock", top.join("link")).unwrap();
        assert!(own.lock_file(OsStr::new("link")).is_err());
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
