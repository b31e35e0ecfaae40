//! Opens files below a directory that another user can write to.
//!
//! A task directory is hostile: the task may have planted symlinks, FIFOs or devices anywhere in it. Checking a path and opening it
//! afterwards is a race that the task can win, so every name is resolved by the kernel in one `openat2(2)` relative to a directory
//! descriptor, and never leaves that directory.
//!
//! Without `openat2(2)` (before Linux 5.6, or under a system call filter that does not know it) the same is done in steps: each
//! component is opened separately, never through a symlink, and links are resolved here. That is slower but equally safe, as no
//! step trusts a name that an earlier one has checked.

use std::ffi::{CStr, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::mutant;

/// A directory below which names are resolved without ever leaving it.
#[derive(Debug)]
pub struct Root(OwnedFd);

impl Root {
    /// Opens a trusted path as the root of a tree.
    ///
    /// # Errors
    /// Whatever `open(2)` says; ENOTDIR when it is not a directory.
    pub fn open(path: &Path) -> io::Result<Root> {
        let fd = rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Root(fd))
    }

    /// Uses an open directory as the root of a tree.
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
        open(self.0.as_fd(), relative, flags, mode, resolve)
    }

    /// As [`Root::open_beneath`], but does not enter another mount.
    ///
    /// # Errors
    /// EXDEV at a mount point or for a name that leaves the tree, ELOOP for a symlink, else what `openat2(2)` says.
    pub fn open_same_mount(&self, relative: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        open(self.0.as_fd(), relative, flags, mode, resolve)
    }

    /// Opens `path` as a process would whose root is this directory: symlinks are followed, but inside it, and an absolute path
    /// starts here.
    ///
    /// # Errors
    /// What `openat2(2)` says.
    pub fn open_in_root(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        open(self.0.as_fd(), path, flags, mode, resolve)
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

/// Opens (`O_PATH`) the file at an absolute path in which no component is a link.
///
/// # Errors
/// ELOOP for a symlink, else what `openat2(2)` says.
pub fn open_resolved(path: &Path) -> io::Result<OwnedFd> {
    let below = path.strip_prefix("/").map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    Root::open(Path::new("/"))?.open_beneath(below, OFlags::PATH, Mode::empty())
}

/// `O_DIRECTORY | O_NOFOLLOW` on a symlink fails with ENOTDIR; returns ELOOP instead, so that the cause is visible.
fn symlink_as_eloop(dir: &OwnedFd, name: &OsStr, error: rustix::io::Errno) -> io::Error {
    let is_link = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|s| rustix::fs::FileType::from_raw_mode(s.st_mode) == rustix::fs::FileType::Symlink);
    if is_link { io::Error::from_raw_os_error(libc::ELOOP) } else { error.into() }
}

/// Whether this process can use `openat2(2)`, as far as known.
static OPENAT2: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const THERE: u8 = 1;
const MISSING: u8 = 2;

fn open(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode, resolve: ResolveFlags) -> io::Result<OwnedFd> {
    if OPENAT2.load(Ordering::Relaxed) != MISSING {
        match retry_openat2(dir, path, flags, mode, resolve) {
            Err(Errno::NOSYS) => OPENAT2.store(MISSING, Ordering::Relaxed),
            // Constant renames by another process, or a file lease: the step-by-step walk can distinguish them.
            Err(Errno::AGAIN) => {}
            // A filter that denies the call, or a file that does not permit this use.
            Err(Errno::PERM) if !openat2_is_allowed() => {}
            other => return other.map_err(Into::into),
        }
    }
    Ok(open_in_steps(dir, path, flags | OFlags::CLOEXEC, mode, resolve)?)
}

fn openat2_is_allowed() -> bool {
    if OPENAT2.load(Ordering::Relaxed) == UNKNOWN {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let answer = retry_openat2(CWD, Path::new("/"), flags, Mode::empty(), ResolveFlags::empty());
        let known = if answer.is_ok() { THERE } else { MISSING };
        OPENAT2.store(known, Ordering::Relaxed);
    }
    OPENAT2.load(Ordering::Relaxed) == THERE
}

/// How often a race is retried.
const RACES: usize = 64;

/// `openat2(2)` fails with EAGAIN when a rename raced with a `..` that it could not prove safe, and may be interrupted. With
/// `O_NONBLOCK` it also fails with EAGAIN for a file under a lease, for as long as the holder keeps the lease: so the number of
/// retries is limited.
fn retry_openat2(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut races = 0;
    loop {
        match rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Err(Errno::AGAIN) if races < RACES || mutant::on("d83-spin") => races += 1,
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// As many symlinks as the kernel follows in one path.
const MAX_LINKS: usize = 40;
/// The magic links of `/proc` lead out of every root, and their text is not their target.
const PROC_SUPER_MAGIC: u64 = 0x9fa0;

/// Does what `openat2(2)` would do, one component after the other.
fn open_in_steps(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    // A path that ends in a slash creates no file.
    let no_file = flags.contains(OFlags::CREATE) && path.as_os_str().as_bytes().ends_with(b"/");
    let follow = !resolve.contains(ResolveFlags::NO_SYMLINKS);
    let mount = resolve.contains(ResolveFlags::NO_XDEV).then(|| mount_of(root)).transpose()?;
    let same_mount = |fd: BorrowedFd<'_>| match mount {
        Some(mount) if mount_of(fd)? != mount => Err(Errno::XDEV),
        _ => Ok(()),
    };
    let mut walk = Walk { root, stack: Vec::new(), pending: Vec::new(), resolve };
    walk.resolve(path)?;
    let mut links = 0;
    while let Some(name) = walk.pending.pop() {
        if name == "." {
            continue;
        }
        if name == ".." {
            walk.up()?;
            continue;
        }
        if no_file && walk.pending.len() == 1 {
            return Err(Errno::ISDIR);
        }
        let last = walk.pending.is_empty();
        let found = match rustix::fs::openat(walk.here(), &name, LOOK, Mode::empty()) {
            Err(Errno::NOENT) if last && flags.contains(OFlags::CREATE) => None,
            other => Some(other?),
        };
        if let Some(found) = found {
            let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
            if kind == FileType::Symlink {
                let itself = last && flags.contains(OFlags::NOFOLLOW);
                if itself && flags.contains(OFlags::PATH) && !flags.contains(OFlags::DIRECTORY) {
                    return Ok(found);
                }
                if last && flags.contains(OFlags::CREATE | OFlags::EXCL) {
                    return Err(Errno::EXIST);
                }
                links += 1;
                if !follow || itself || links > MAX_LINKS {
                    return Err(Errno::LOOP);
                }
                walk.resolve(&read_link(&found)?)?;
                continue;
            }
            same_mount(found.as_fd())?;
            if !last {
                if kind != FileType::Directory {
                    return Err(Errno::NOTDIR);
                }
                walk.stack.push(found);
                continue;
            }
            if flags.contains(OFlags::PATH) {
                // Returns the inspected file itself, not what has the name now: with these flags even a link would be opened.
                let wrong = flags.contains(OFlags::DIRECTORY) && kind != FileType::Directory;
                return if wrong { Err(Errno::NOTDIR) } else { Ok(found) };
            }
        }
        // Opens whatever has the name now, except a link, and only in this directory.
        match rustix::fs::openat(walk.here(), &name, flags | OFlags::NOFOLLOW, mode) {
            // It has become a link since it was checked.
            Err(Errno::LOOP) if links < MAX_LINKS => {
                links += 1;
                walk.pending.push(name);
            }
            opened => return opened.and_then(|fd| same_mount(fd.as_fd()).map(|()| fd)),
        }
    }
    rustix::fs::openat(walk.here(), c".", flags, mode)
}

/// Inspects a name without opening the file for use.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The state of a path walk.
struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// The directories below the root, each inside the previous one when it was entered; `..` goes back along them, and so never to
    /// a place to which one of them was moved in the meantime.
    stack: Vec<OwnedFd>,
    /// Components still to be walked, the next one last.
    pending: Vec<OsString>,
    resolve: ResolveFlags,
}

impl Walk<'_> {
    fn here(&self) -> BorrowedFd<'_> {
        self.stack.last().map_or(self.root, AsFd::as_fd)
    }

    fn up(&mut self) -> Result<(), Errno> {
        match self.stack.pop() {
            None if self.resolve.contains(ResolveFlags::BENEATH) => Err(Errno::XDEV),
            _ => Ok(()),
        }
    }

    /// Puts the components of `path` before the pending ones.
    fn resolve(&mut self, path: &Path) -> Result<(), Errno> {
        if path.has_root() {
            if self.resolve.contains(ResolveFlags::BENEATH) {
                return Err(Errno::XDEV);
            }
            self.stack.clear();
        }
        let bytes = path.as_os_str().as_bytes();
        // A path that ends in a slash must lead to a directory.
        let end = if bytes.ends_with(b"/") { Some(OsString::from(".")) } else { None };
        let names = bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let names: Vec<_> = names.map(|name| OsString::from_vec(name.to_vec())).chain(end).collect();
        self.pending.extend(names.into_iter().rev());
        Ok(())
    }
}

/// The text of a symlink that was itself opened; an error for a magic link.
fn read_link(link: &OwnedFd) -> Result<std::path::PathBuf, Errno> {
    let text = rustix::fs::readlinkat(link, c"", Vec::new())?;
    let kind = rustix::fs::fstatfs(link)?.f_type;
    let magic = text.to_bytes().starts_with(b"/") || text.to_bytes().contains(&b':');
    if u64::try_from(kind).is_ok_and(|kind| kind == PROC_SUPER_MAGIC) && magic {
        return Err(Errno::LOOP);
    }
    Ok(OsString::from_vec(text.into_bytes()).into())
}

/// The id of the mount through which a file was opened.
///
/// # Errors
/// What `statx(2)` says, or before Linux 5.8 the open of its entry in `/proc/self/fdinfo`.
pub fn mount_of(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    const NOTHING: &CStr = c"";
    if let Ok(stat) = rustix::fs::statx(fd, NOTHING, AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)
        && stat.stx_mask & StatxFlags::MNT_ID.bits() != 0
    {
        return Ok(stat.stx_mnt_id);
    }
    // Before Linux 5.8.
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()));
    let info = info.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok()).ok_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BENEATH: ResolveFlags =
        ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
    const SAME_MOUNT: ResolveFlags = BENEATH.union(ResolveFlags::NO_XDEV);
    const IN_ROOT: ResolveFlags = ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS);

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

    /// A directory with everything that a task could plant.
    fn hostile() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("d/e/f")).unwrap();
        std::fs::write(at("file"), "top").unwrap();
        std::fs::write(at("d/file"), "below").unwrap();
        for (name, target) in [
            ("abs", "/"),
            ("absd", "/d"),
            ("out", ".."),
            ("far", "../../../../etc"),
            ("d/up", "../file"),
            ("d/e/top", "/d/up"),
            ("loop", "loop"),
            ("l1", "l2"),
            ("l2", "l1"),
            ("gone", "nowhere"),
            ("d/dot", "."),
            ("slash", "file/"),
            ("chain", "d/e/top"),
        ] {
            std::os::unix::fs::symlink(target, at(name)).unwrap();
        }
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        dir
    }

    fn names() -> impl Strategy<Value = String> {
        let name = prop::sample::select(vec![
            "d", "e", "f", "file", "abs", "absd", "out", "far", "up", "top", "loop", "l1", "gone", "dot", "slash",
            "chain", "fifo", "..", ".", "", "new",
        ]);
        (any::<bool>(), prop::collection::vec(name, 1..6))
            .prop_map(|(rooted, names)| format!("{}{}", if rooted { "/" } else { "" }, names.join("/")))
    }

    fn uses() -> impl Strategy<Value = OFlags> {
        prop::sample::select(vec![
            OFlags::PATH,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::PATH | OFlags::DIRECTORY,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::NONBLOCK,
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::DIRECTORY,
            OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CREATE,
            OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CREATE | OFlags::EXCL,
        ])
    }

    /// The file's place in its directory, or whether it was missing; callers distinguish no other error.
    fn place(dir: &Path, opened: &Result<OwnedFd, Errno>) -> Result<String, bool> {
        let fd = opened.as_ref().map_err(|e| *e == Errno::NOENT)?;
        let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
        Ok(path.strip_prefix(dir.canonicalize().unwrap()).unwrap().to_str().unwrap().to_owned())
    }

    /// Fewer on emulated processors.
    fn cases() -> u32 {
        if std::env::var_os("AGENTBIN_TEST_SLOWER").is_some() { 50 } else { 1000 }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

        /// R31: the same file, or the same error.
        #[test]
        fn r31_steps_lead_where_the_kernel_leads(
            path in names(), flags in uses(), resolve in prop::sample::select(vec![BENEATH, SAME_MOUNT, IN_ROOT])
        ) {
            let mode = if flags.contains(OFlags::CREATE) { Mode::from_raw_mode(0o600) } else { Mode::empty() };
            let [one, other] = [hostile(), hostile()];
            let root = Root::open(one.path()).unwrap();
            let by_kernel = retry_openat2(root.as_fd(), Path::new(&path), flags, mode, resolve);
            let root = Root::open(other.path()).unwrap();
            let in_steps = open_in_steps(root.as_fd(), Path::new(&path), flags | OFlags::CLOEXEC, mode, resolve);
            prop_assert_eq!(place(other.path(), &in_steps), place(one.path(), &by_kernel), "{}", path);
        }
    }

    #[test]
    fn r31_steps_follow_no_magic_link_and_enter_no_other_mount() {
        let proc = Root::open(Path::new("/proc")).unwrap();
        let open = |path: &str, resolve| {
            open_in_steps(proc.as_fd(), Path::new(path), OFlags::PATH, Mode::empty(), resolve).map(drop)
        };
        assert_eq!(open("self/root/etc", IN_ROOT), Err(Errno::LOOP));
        assert_eq!(open("self/exe", IN_ROOT), Err(Errno::LOOP));
        assert_eq!(open("self/fd/0", IN_ROOT), Err(Errno::LOOP));
        assert_eq!(open("self/status", IN_ROOT), Ok(()));
        let slash = Root::open(Path::new("/")).unwrap();
        let open = |resolve| {
            let path = Path::new("proc/version");
            open_in_steps(slash.as_fd(), path, OFlags::PATH, Mode::empty(), resolve).map(drop)
        };
        assert_eq!(open(BENEATH), Ok(()));
        assert_eq!(open(SAME_MOUNT), Err(Errno::XDEV));
    }

    /// R31, B01: no matter what has the name during the walk, a link is never opened.
    #[test]
    fn r31_a_link_that_comes_and_goes_is_never_opened() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let flags = rustix::fs::RenameFlags::EXCHANGE;
                    rustix::fs::renameat_with(&root, "folder", &root, "link", flags).unwrap();
                }
            });
            let mut wrong = Vec::new();
            for round in 0..20_000 {
                let flags = [OFlags::PATH, OFlags::PATH | OFlags::DIRECTORY, OFlags::RDONLY][round % 3];
                match open_in_steps(root.as_fd(), Path::new("folder"), flags, Mode::empty(), BENEATH) {
                    Ok(fd)
                        if FileType::from_raw_mode(rustix::fs::fstat(&fd).unwrap().st_mode) == FileType::Directory => {}
                    Err(Errno::LOOP | Errno::NOTDIR) => {}
                    other => wrong.push((flags, other)),
                }
            }
            done.store(true, Ordering::Relaxed);
            assert!(wrong.is_empty(), "{wrong:?}");
        });
    }
}
