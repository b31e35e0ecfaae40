//! Moves an artifact from the staging directory into the task's, on the requesting side. The files were made by a process that
//! parsed untrusted data, so each one is checked again by its descriptor.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::{FetchError, Fetched};
use crate::spec::ArtifactMode;
use crate::sys::path::Root;
use crate::sys::random;

/// Deepest directory that is entered.
const DEEPEST: usize = 128;
/// Most entries of a repository, for which there is no other limit; the limit for archives was enforced before.
const MOST_ENTRIES: u64 = 1_000_000;
/// Bytes copied between two checks of the cancel flag.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// The destination of an artifact.
#[derive(Debug)]
pub struct Target {
    /// The task's directory, or the one that the allocation's tasks share.
    pub top: Root,
    /// The destination below it.
    pub below: PathBuf,
    /// The mode: with [`ArtifactMode::File`] the destination is the file, else the directory that it goes to.
    pub mode: ArtifactMode,
    /// The user and group that get the files; `None` means those of this process.
    pub owner: Option<(u32, u32)>,
}

impl Fetched<'_> {
    /// Moves what was fetched to its destination. An existing file of the same name is replaced; directories are merged.
    ///
    /// Setting `cancel` stops it at the next name, or within a mebibyte of a file that has to be copied.
    ///
    /// # Errors
    /// What cannot be moved, or must not be: links that lead out of the artifact, anything but files, directories and links, or
    /// files of a user other than the fetcher's; `Ok(false)` when it was cancelled.
    pub fn place(&self, target: &Target, cancel: &AtomicBool) -> Result<bool, FetchError> {
        match self.try_place(target, cancel) {
            Err(_) if cancel.load(Ordering::Relaxed) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn try_place(&self, target: &Target, cancel: &AtomicBool) -> Result<(), FetchError> {
        let mut moving = Moving { fetched: self, target, cancel, entries: 0, bytes: 0 };
        let from = self.staging.root();
        let (above, name) = split(&self.done.path).map_err(|error| moving.failed(&self.done.path, &error))?;
        let failed = |error: io::Error| FetchError::lasting(format!("cannot take over what was fetched: {error}"));
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let above = from.open_beneath(above, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(failed)?;
        let above = Root::from_fd(above);
        if let Some(file) = &self.done.file {
            let to = match target.mode {
                ArtifactMode::File => target.below.clone(),
                // A URL without a path has no file name: the destination is the name.
                _ if file.is_empty() => target.below.clone(),
                _ if Path::new(file).components().eq([Component::Normal(OsStr::new(file))]) => target.below.join(file),
                _ => {
                    let text = format!("{file:?} is not a name for a file; give another with filename");
                    return Err(FetchError::lasting(text));
                }
            };
            moving.file(&above, name, &to).map_err(|error| moving.failed(&to, &error))?;
            // Then it is the directory of the file.
            return if to == target.below { Ok(()) } else { moving.give_destination() };
        }
        moving.tree(&above, name)?;
        moving.give_destination()
    }
}

/// Gives the directory `below`, a destination, to a user, also if it was there before, unless another user owns it: as with Nomad,
/// the user may write where its artifact is.
///
/// # Errors
/// What the calls say; ELOOP for a symlink.
pub(crate) fn give_destination(top: &Root, below: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    // The task's directory itself, and the shared one, stay as they are.
    if below.as_os_str().is_empty() {
        return Ok(());
    }
    let dir = top.open_beneath(below, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    if rustix::fs::fstat(&dir)?.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(());
    }
    Ok(rustix::fs::fchown(&dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    Ok((path.parent().unwrap_or(Path::new("")), name))
}

struct Moving<'a> {
    fetched: &'a Fetched<'a>,
    target: &'a Target,
    cancel: &'a AtomicBool,
    entries: u64,
    bytes: u64,
}

impl Moving<'_> {
    fn failed(&self, path: &Path, error: &io::Error) -> FetchError {
        let _ = self;
        FetchError::lasting(format!("cannot put {} into its place: {error}", path.display()))
    }

    fn give_destination(&self) -> Result<(), FetchError> {
        let Target { top, below, owner: Some(owner), .. } = self.target else { return Ok(()) };
        give_destination(top, below, *owner).map_err(|error| self.failed(below, &error))
    }

    fn tree(&mut self, above: &Root, name: &OsStr) -> Result<(), FetchError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let failed = |path: &Path, error: &io::Error| self.failed(path, error);
        let top = above.open_beneath(Path::new(name), flags, Mode::empty());
        let top = Root::from_fd(top.map_err(|error| failed(Path::new(name), &error))?);
        // Paths instead of descriptors, of which a process has few: no other process moves anything here any more.
        let mut left = vec![PathBuf::new()];
        while let Some(path) = left.pop() {
            let here = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
            let dir = top.open_beneath(here, flags, Mode::empty());
            let dir = dir.map_err(|error| self.failed(&path, &error))?;
            self.directory(&path, &dir, &mut left).map_err(|(path, error)| self.failed(&path, &error))?;
        }
        Ok(())
    }

    /// One directory: creates it at its destination and moves its content, except directories, which are added to `left`.
    fn directory(&mut self, path: &Path, dir: &OwnedFd, left: &mut Vec<PathBuf>) -> Result<(), (PathBuf, io::Error)> {
        let here = |error: io::Error| (path.to_owned(), error);
        let to = self.target.below.join(path);
        self.made(dir, &to, path.as_os_str().is_empty()).map_err(here)?;
        let from = Root::from_fd(dir.try_clone().map_err(here)?);
        let mut names: Vec<OsString> = Vec::new();
        for entry in Dir::read_from(dir).map_err(|error| here(error.into()))? {
            let entry = entry.map_err(|error| here(error.into()))?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            if name != "." && name != ".." {
                self.count(0).map_err(here)?;
                names.push(name);
            }
        }
        for name in names {
            let below = path.join(&name);
            let failed = |error: io::Error| (below.clone(), error);
            go_on(self.cancel).map_err(failed)?;
            let stat =
                rustix::fs::statat(&from, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failed(error.into()))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    if path.components().count() >= DEEPEST {
                        return Err(failed(io::Error::other("it lies too deep")));
                    }
                    left.push(below);
                }
                FileType::Symlink => self.link(&from, &name, path, &to.join(&name)).map_err(failed)?,
                _ => self.file(&from, &name, &to.join(&name)).map_err(failed)?,
            }
        }
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> io::Result<()> {
        let limits = self.fetched.limits;
        self.entries += u64::from(bytes == 0);
        self.bytes += bytes;
        if self.entries > MOST_ENTRIES || self.bytes > limits.bytes.saturating_mul(2) {
            return Err(io::Error::other("there is more than an artifact may hold"));
        }
        Ok(())
    }

    /// The destination directory. An existing one keeps its owner and mode: another user may own it.
    fn made(&self, from: &OwnedFd, to: &Path, is_top: bool) -> io::Result<()> {
        let top = &self.target.top;
        let there = top.open_beneath(
            if to.as_os_str().is_empty() { Path::new(".") } else { to },
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        );
        let new = there.is_err();
        drop(there);
        top.create_dir_all(to, Mode::from_raw_mode(0o755))?;
        if to.as_os_str().is_empty() || !new {
            return Ok(());
        }
        let dir = top.open_beneath(to, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mode = if is_top { 0o755 } else { rustix::fs::fstat(from)?.st_mode & 0o777 | 0o700 };
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode))?;
        self.give(&dir)
    }

    /// The new owner of the files; `None` if they already have it.
    fn owner(&self) -> Option<(u32, u32)> {
        let own = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        self.target.owner.or_else(|| rustix::process::geteuid().is_root().then(own))
    }

    fn give(&self, file: &impl AsFd) -> io::Result<()> {
        let Some((uid, gid)) = self.owner() else { return Ok(()) };
        Ok(rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
    }

    /// One file: its owner and mode are changed while no other user can reach it, and then it is moved, or copied if the
    /// destination
    /// is on another file system.
    fn file(&mut self, from: &Root, name: &OsStr, to: &Path) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(from.open_beneath(Path::new(name), flags, Mode::empty())?);
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is neither file, directory nor link, and no artifact may hold it"));
        }
        // It may be a hard link to another user's file, if the kernel permits such links.
        let fetcher = self.fetched.staging.user();
        if stat.st_uid != fetcher {
            return Err(io::Error::other(format!("it belongs to user {}, and the fetcher is {fetcher}", stat.st_uid)));
        }
        self.count(u64::try_from(stat.st_size).unwrap_or(0).max(1))?;
        let (parent, last) = parent_of(&self.target.top, to)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o777 | 0o400);
        // A change would affect its other names, too.
        let copy = if stat.st_nlink == 1 { None } else { Some(self.copied(&file, from)?) };
        let source = copy.as_ref().map_or(name, |copy| &copy.name);
        let file = copy.as_ref().map_or(&file, |copy| &copy.file);
        // The owner first: changing the owner clears set-id bits, and the mode that is set afterwards is the final one.
        self.give(file)?;
        rustix::fs::fchmod(file, mode)?;
        match rustix::fs::renameat(from, source, &parent, &last) {
            Err(Errno::XDEV) => {
                let moved = self.copied(file, &parent)?;
                let finish = || {
                    self.give(&moved.file)?;
                    rustix::fs::fchmod(&moved.file, mode)?;
                    Ok(rustix::fs::renameat(&parent, &moved.name, &parent, &last)?)
                };
                finish().inspect_err(|_: &io::Error| moved.remove(&parent))
            }
            other => Ok(other?),
        }
    }

    /// A copy in this directory, under a unique name.
    fn copied(&self, mut file: &File, dir: &Root) -> io::Result<Copied> {
        let name = OsString::from(format!(".agentbin-{}", random::uuid().simple()));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let opened = dir.open_beneath(Path::new(&name), flags, Mode::from_raw_mode(0o600))?;
        let mut copied = Copied { file: File::from(opened), name };
        let mut work = || {
            file.rewind()?;
            loop {
                go_on(self.cancel)?;
                if io::copy(&mut file.take(CHUNK_BYTES), &mut copied.file)? == 0 {
                    return Ok(());
                }
            }
        };
        work().inspect_err(|_: &io::Error| copied.remove(dir))?;
        Ok(copied)
    }

    /// A symlink, if it leads to something within the artifact: `..` only at its beginning, and not beyond the artifact's own
    /// directory. The following components are names in the artifact, whose links obey the same rule.
    fn link(&self, from: &Root, name: &OsStr, dir: &Path, to: &Path) -> io::Result<()> {
        let text = rustix::fs::readlinkat(from, name, Vec::new())?;
        let target = Path::new(OsStr::from_bytes(text.to_bytes()));
        let depth = dir.components().count();
        let mut up = 0;
        let mut down = false;
        for component in target.components() {
            match component {
                Component::ParentDir if !down && up < depth => up += 1,
                Component::Normal(_) => down = true,
                Component::CurDir => {}
                _ => {
                    let text = format!("the link leads to {}, which may lie outside of the artifact", target.display());
                    return Err(io::Error::other(text));
                }
            }
        }
        // No other user can reach it here, before it is moved.
        if let Some((uid, gid)) = self.owner() {
            let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            rustix::fs::chownat(from, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        let (parent, last) = parent_of(&self.target.top, to)?;
        match rustix::fs::renameat(from, name, &parent, &last) {
            Err(Errno::XDEV) => self.link_anew(target, &parent, &last),
            other => Ok(other?),
        }
    }

    /// Creates a symlink on a file system other than that of the staging directory.
    fn link_anew(&self, target: &Path, parent: &Root, last: &OsStr) -> io::Result<()> {
        let new = format!(".agentbin-{}", random::uuid().simple());
        rustix::fs::symlinkat(target, parent, &new)?;
        let finish = || {
            if let Some((uid, gid)) = self.owner() {
                // By descriptor: a user who may write here may have replaced it.
                let link = parent.open_beneath(Path::new(&new), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty())?;
                if FileType::from_raw_mode(rustix::fs::fstat(&link)?.st_mode) != FileType::Symlink {
                    return Err(io::Error::other("somebody has put something else into its place"));
                }
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(&link, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
            Ok(rustix::fs::renameat(parent, &new, parent, last)?)
        };
        finish().inspect_err(|_| {
            // What cannot be removed is removed with the allocation's directory.
            let _ = rustix::fs::unlinkat(parent, &new, AtFlags::empty());
        })
    }
}

/// A copy that has not been moved to its destination yet.
struct Copied {
    file: File,
    name: OsString,
}

impl Copied {
    fn remove(&self, dir: &Root) {
        // What cannot be removed is removed with the allocation's directory.
        let _ = rustix::fs::unlinkat(dir, &self.name, AtFlags::empty());
    }
}

/// Fails once the artifact is not wanted any more.
fn go_on(cancel: &AtomicBool) -> io::Result<()> {
    if cancel.load(Ordering::Relaxed) { Err(Errno::INTR.into()) } else { Ok(()) }
}

/// The parent directory of a destination, created if it is missing.
fn parent_of(top: &Root, to: &Path) -> io::Result<(Root, OsString)> {
    let name = to.file_name().ok_or(Errno::ISDIR)?;
    let parent = top.create_dir_all(to.parent().unwrap_or(Path::new("")), Mode::from_raw_mode(0o755))?;
    Ok((Root::from_fd(parent), name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifact::{Done, Limits, Staging};

    #[test]
    fn j5_what_is_not_wanted_any_more_is_not_put_into_its_place() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("task")).unwrap();
        let staging = Staging::new(dir.path()).unwrap();
        for name in ["tree", "tree/sub"] {
            std::fs::create_dir(staging.path().join(name)).unwrap();
        }
        let file = staging.path().join("tree/f");
        std::fs::write(&file, "x").unwrap();
        // A file with two names has to be copied.
        std::fs::hard_link(&file, staging.path().join("tree/g")).unwrap();
        std::os::unix::fs::chown(&file, Some(staging.user()), None).unwrap();
        let done = Done { path: "tree".into(), file: None };
        let fetched = Fetched { staging: &staging, done, limits: Limits::DEFAULT };
        let target = Target {
            top: Root::open(&dir.path().join("task")).unwrap(),
            below: "local".into(),
            mode: ArtifactMode::Any,
            owner: None,
        };
        let cancel = AtomicBool::new(true);
        assert_eq!(fetched.place(&target, &cancel), Ok(false));
        assert!(!dir.path().join("task/local/f").exists() && !dir.path().join("task/local/g").exists());
        let moving = Moving { fetched: &fetched, target: &target, cancel: &cancel, entries: 0, bytes: 0 };
        let top = Root::open(dir.path()).unwrap();
        let copied = moving.copied(&File::open(&file).unwrap(), &top);
        assert_eq!(copied.map(drop).map_err(|error| error.raw_os_error()), Err(Some(libc::EINTR)));
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| name.to_string_lossy().starts_with(".agentbin-")).count(), 0);
        assert_eq!(fetched.place(&target, &AtomicBool::new(false)), Ok(true));
        for name in ["f", "g"] {
            assert_eq!(std::fs::read_to_string(dir.path().join("task/local").join(name)).unwrap(), "x");
        }
    }
}
