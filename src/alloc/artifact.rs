//! Copies of local files and directories into a task's directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::dir::{AllocDir, Owner};
use crate::artifact::give_destination;
use crate::container::{Ids, host_user};
use crate::spec::ArtifactMode;
use crate::sys::mutant;
use crate::sys::path::Root;

/// Bytes copied between two checks of the cancel flag.
const CHUNK_BYTES: u64 = 1024 * 1024;

/// What is copied from where to where; all values are interpolated.
#[derive(Debug)]
pub(super) struct Copy {
    /// The directory that a relative source is resolved against.
    pub(super) base_dir: PathBuf,
    pub(super) source: PathBuf,
    /// See [`Artifact`](crate::spec::Artifact).
    pub(super) stays_in_base_dir: bool,
    pub(super) dir: AllocDir,
    pub(super) task: String,
    pub(super) destination: String,
    pub(super) mode: ArtifactMode,
    pub(super) owner: Option<Owner>,
}

/// Why a copy failed: the action, and its cause.
type Failure = (String, io::Error);

impl Copy {
    /// Copies the source; setting `cancel` stops it with `Interrupted`.
    pub(super) fn run(&self, cancel: &AtomicBool) -> Result<(), Failure> {
        let reading = |e| ("cannot be read".to_owned(), e);
        // The file type is checked before the open: opening a device may have side effects.
        let stat = rustix::fs::fstat(&self.open(OFlags::PATH)?).map_err(|e| reading(e.into()))?;
        let source = self.base_dir.join(&self.source).canonicalize().map_err(reading)?;
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let located = self.dir.locate(&self.task, &self.destination);
        let (top, below) = located.map_err(|e| (escapes(&self.destination), e))?;
        match (self.mode, is_dir) {
            (ArtifactMode::File, true) => {
                Err(("mode \"file\" cannot take a directory".to_owned(), Errno::ISDIR.into()))
            }
            (ArtifactMode::Dir, false) => Err(("mode \"dir\" needs a directory".to_owned(), Errno::NOTDIR.into())),
            (_, true) => {
                self.copy_tree(&source, &top, &below, cancel)?;
                self.give_destination(&top, &below)
            }
            (mode, false) => {
                let name = source.file_name().unwrap_or_default();
                let is_in_dir = mode == ArtifactMode::Any;
                let target = if is_in_dir { below.join(name) } else { below.clone() };
                check_type(stat.st_mode, &source)?;
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                self.copy_file(File::from(self.open(flags)?), &source, &top, &target, cancel)?;
                if is_in_dir { self.give_destination(&top, &below) } else { Ok(()) }
            }
        }
    }

    /// Opens the source if it is a file; `None` for a directory.
    pub(super) fn open_file(&self) -> Result<Option<File>, Failure> {
        let stat = rustix::fs::fstat(&self.open(OFlags::PATH)?);
        let stat = stat.map_err(|error| ("cannot be read".to_owned(), error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return Ok(None);
        }
        check_type(stat.st_mode, &self.source)?;
        let file = File::from(self.open(OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?);
        // The file may have been replaced between the check and the open, so it is checked again.
        let stat = rustix::fs::fstat(&file).map_err(|error| ("cannot be read".to_owned(), error.into()))?;
        check_type(stat.st_mode, &self.source)?;
        Ok(Some(file))
    }

    /// Opens the source. If it has to stay in the base directory, its path is resolved beneath an open descriptor of that
    /// directory,
    /// so that replacing a path component during the walk cannot redirect it.
    fn open(&self, flags: OFlags) -> Result<OwnedFd, Failure> {
        if !self.stays_in_base_dir || mutant::on("d91-artifact") {
            let path = self.base_dir.join(&self.source);
            let opened = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
            return opened.map_err(|e| ("cannot be read".to_owned(), e.into()));
        }
        let below = self.source.strip_prefix(&self.base_dir).unwrap_or(&self.source);
        let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let opened = Root::open(&self.base_dir).and_then(|base| base.open_beneath(below, flags, Mode::empty()));
        opened.map_err(|error| {
            let what = match error.raw_os_error() {
                Some(libc::EXDEV) => {
                    "lies outside of the job file's directory, which --isolation-minimum does not allow"
                }
                Some(libc::ELOOP) => "is behind a symbolic link, which --isolation-minimum does not allow",
                _ => "cannot be read",
            };
            (what.to_owned(), error)
        })
    }

    fn copy_tree(&self, source: &Path, top: &Root, below: &Path, cancel: &AtomicBool) -> Result<(), Failure> {
        let data = self.dir.path().canonicalize().map_err(|e| ("cannot find the task's directory".to_owned(), e))?;
        if data.starts_with(source) {
            let text = "contains the data directory and would be copied into itself; give another --data-dir";
            return Err((text.to_owned(), Errno::LOOP.into()));
        }
        let from = Root::from_fd(self.open(OFlags::PATH | OFlags::DIRECTORY)?);
        let mut folders = vec![(PathBuf::new(), below.to_owned())];
        while let Some((folder, to)) = folders.pop() {
            let reading = |e: io::Error| (format!("cannot read {}", source.join(&folder).display()), e);
            let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder.as_path() };
            let open = from.open_beneath(here, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).map_err(reading)?;
            let mode = rustix::fs::fstat(&open).map_err(|e| reading(e.into()))?.st_mode;
            self.make_folder(mode, top, &to).map_err(|e| (format!("cannot create {}", to.display()), e))?;
            for entry in Dir::read_from(&open).map_err(|e| reading(e.into()))? {
                go_on(cancel).map_err(reading)?;
                let entry = entry.map_err(|e| reading(e.into()))?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if name == "." || name == ".." {
                    continue;
                }
                let stat = rustix::fs::statat(&open, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| reading(e.into()))?;
                let (path, target) = (source.join(&folder).join(name), to.join(name));
                let failed = |e: io::Error| (format!("cannot copy {}", path.display()), e);
                match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => folders.push((folder.join(name), target)),
                    FileType::Symlink => {
                        let text = rustix::fs::readlinkat(&open, name, Vec::new()).map_err(|e| failed(e.into()))?;
                        let made = parent_of(top, &target).and_then(|(parent, last)| {
                            link(Path::new(OsStr::from_bytes(text.to_bytes())), &parent, &last)
                        });
                        made.map_err(failed)?;
                    }
                    _ => {
                        check_type(stat.st_mode, &path)?;
                        // The file may have been replaced since `stat`: do not follow a symbolic link, and do not block on a FIFO.
                        let flags =
                            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                        let file =
                            rustix::fs::openat(&open, name, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
                        self.copy_file(File::from(file), &path, top, &target, cancel)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates a directory. An existing one keeps its mode and owner: another user may own it.
    fn make_folder(&self, mode: u32, top: &Root, to: &Path) -> io::Result<()> {
        let here = if to.as_os_str().is_empty() { Path::new(".") } else { to };
        let is_there = top.open_beneath(here, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).is_ok();
        top.create_dir_all(to, Mode::from_raw_mode(0o755))?;
        if is_there {
            return Ok(());
        }
        let dir = top.open_beneath(to, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(mode & 0o777 | 0o700))?;
        self.give_away(&dir)
    }

    fn copy_file(
        &self,
        mut from: File,
        source: &Path,
        top: &Root,
        target: &Path,
        cancel: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut copying = || {
            let metadata = from.metadata()?;
            if !metadata.is_file() {
                return Err(Errno::INVAL.into());
            }
            let (parent, name) = parent_of(top, target)?;
            let mut to = create(&parent, &name, metadata.mode() & 0o777)?;
            loop {
                go_on(cancel)?;
                if io::copy(&mut (&mut from).take(CHUNK_BYTES), &mut to)? == 0 {
                    return self.give_away(&to);
                }
            }
        };
        copying().map_err(|e| (format!("cannot copy {}", source.display()), e))
    }

    /// With an owner of its own, the directory that is the destination belongs to that one, too.
    fn give_destination(&self, top: &Root, below: &Path) -> Result<(), Failure> {
        let Some(Owner { uid, gid }) = self.owner else { return Ok(()) };
        let given = give_destination(top, below, (uid, gid));
        given.map_err(|e| (format!("cannot give {} to the task's user", below.display()), e))
    }

    fn give_away(&self, file: &impl std::os::fd::AsFd) -> io::Result<()> {
        let Some(Owner { uid, gid }) = self.owner else { return Ok(()) };
        Ok(rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?)
    }
}

/// What is said of a destination that cannot be reached below the allocation's directory.
pub(super) fn escapes(destination: &str) -> String {
    format!("destination {destination:?} escapes alloc directory: it is neither in the task's directory nor in alloc/")
}

/// Refuses everything but regular files; called before the open.
fn check_type(mode: u32, path: &Path) -> Result<(), Failure> {
    if FileType::from_raw_mode(mode) == FileType::RegularFile {
        return Ok(());
    }
    Err((format!("{} is neither file, directory nor symlink", path.display()), Errno::INVAL.into()))
}

/// Fails with `Interrupted` once the task is to be stopped.
fn go_on(cancel: &AtomicBool) -> io::Result<()> {
    if cancel.load(Ordering::Relaxed) { Err(Errno::INTR.into()) } else { Ok(()) }
}

/// Opens the parent directory of `target`, creating it if it is missing.
pub(super) fn parent_of(top: &Root, target: &Path) -> io::Result<(Root, std::ffi::OsString)> {
    let name = target.file_name().ok_or(Errno::ISDIR)?;
    if mutant::on("d07") {
        let above = target.parent().unwrap_or(Path::new(""));
        let by_name = Path::new("/proc/self/fd").join(top.as_fd().as_raw_fd().to_string()).join(above);
        return Ok((Root::open(&by_name)?, name.to_owned()));
    }
    let parent = top.create_dir_all(target.parent().unwrap_or(Path::new("")), Mode::from_raw_mode(0o755))?;
    Ok((Root::from_fd(parent), name.to_owned()))
}

/// Replaces whatever has this name by a new file, so that nothing is written into a file that a task has put there. A job
/// cannot create set-user-ID or set-group-ID files: these bits of `mode` are dropped.
pub(super) fn create(parent: &Root, name: &std::ffi::OsStr, mode: u32) -> io::Result<File> {
    let mode = if mutant::on("d15") { mode } else { mode & 0o1777 };
    loop {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        match parent.open_beneath(Path::new(name), flags, Mode::from_raw_mode(mode & 0o700)) {
            Ok(fd) => {
                rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
                return Ok(File::from(fd));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => remove(parent, name)?,
            Err(e) => return Err(e),
        }
    }
}

fn link(to: &Path, parent: &Root, name: &std::ffi::OsStr) -> io::Result<()> {
    loop {
        match rustix::fs::symlinkat(to, parent, name) {
            Err(Errno::EXIST) => remove(parent, name)?,
            other => return Ok(other?),
        }
    }
}

fn remove(parent: &Root, name: &std::ffi::OsStr) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Err(e) if e != Errno::NOENT => Err(e.into()),
        _ => Ok(()),
    }
}

/// The uid and gid of a user of this machine. A name is also looked up in the host's other user databases, which can be slow; a
/// number has to be in `/etc/passwd`.
pub(super) fn owner(user: &str) -> io::Result<Owner> {
    if let Some(Ids { uid, gid, .. }) = host_user(user) {
        return Ok(Owner { uid, gid });
    }
    let table = std::fs::read_to_string("/etc/passwd")?;
    let fields = table.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = fields.filter(|f| f.len() > 3).find(|f| f[2] == user);
    let numbers = found.and_then(|f| Some(Owner { uid: f[2].parse().ok()?, gid: f[3].parse().ok()? }));
    numbers.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("this machine knows no user {user:?}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::spec::AllocId;

    struct Place {
        _data: tempfile::TempDir,
        source: tempfile::TempDir,
        dir: AllocDir,
    }

    impl Drop for Place {
        fn drop(&mut self) {
            assert_eq!(self.dir.destroy().len(), 0);
        }
    }

    fn place() -> Place {
        let (data, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dir = AllocDir::new(data.path(), &AllocId::new(uuid::Uuid::new_v4()));
        dir.build().unwrap();
        dir.build_task("web").unwrap();
        std::fs::create_dir(source.path().join("sub")).unwrap();
        std::fs::write(source.path().join("sub/tool"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(source.path().join("sub/tool"), PermissionsExt::from_mode(0o4751)).unwrap();
        symlink("tool", source.path().join("sub/link")).unwrap();
        Place { _data: data, source, dir }
    }

    impl Place {
        fn copy(&self, source: &str, destination: &str, mode: ArtifactMode) -> Result<(), Failure> {
            let copy = Copy {
                base_dir: self.source.path().to_owned(),
                source: source.into(),
                stays_in_base_dir: false,
                dir: self.dir.clone(),
                task: "web".to_owned(),
                destination: destination.to_owned(),
                mode,
                owner: None,
            };
            copy.run(&AtomicBool::new(false))
        }

        fn there(&self, path: &str) -> PathBuf {
            self.dir.path().join("web").join(path)
        }
    }

    #[test]
    fn files_and_folders_arrive_with_their_modes() {
        let place = place();
        place.copy("sub/tool", "local/", ArtifactMode::Any).unwrap();
        place.copy("sub/tool", "local/bin/renamed", ArtifactMode::File).unwrap();
        place.copy(".", "local/tree", ArtifactMode::Dir).unwrap();
        place.copy(".", "local/tree", ArtifactMode::Any).unwrap();
        for file in ["local/tool", "local/bin/renamed", "local/tree/sub/tool"] {
            let mode = std::fs::metadata(place.there(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o751, "{file}: kept but for setuid");
        }
        assert_eq!(std::fs::read_link(place.there("local/tree/sub/link")).unwrap(), Path::new("tool"));
    }

    /// The directory that is the destination belongs to the task's user as well, but not one that another user has made.
    #[test]
    fn a_destination_is_given_to_the_user_of_its_files() {
        use std::os::unix::fs::chown;
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = place();
        let copy = |source: &str, destination: &str, mode| {
            let copy = Copy {
                base_dir: place.source.path().to_owned(),
                source: source.into(),
                stays_in_base_dir: false,
                dir: place.dir.clone(),
                task: "web".to_owned(),
                destination: destination.to_owned(),
                mode,
                owner: Some(Owner { uid: 7001, gid: 7002 }),
            };
            copy.run(&AtomicBool::new(false)).unwrap();
        };
        let owner = |path: &str| {
            let metadata = std::fs::metadata(place.there(path)).unwrap();
            (metadata.uid(), metadata.gid())
        };
        copy("sub/tool", "local/above/file", ArtifactMode::Any);
        copy("sub/tool", "local/alone/renamed", ArtifactMode::File);
        copy("sub", "secrets", ArtifactMode::Any);
        std::fs::create_dir(place.there("local/others")).unwrap();
        chown(place.there("local/others"), Some(7003), Some(7003)).unwrap();
        copy("sub", "local/others", ArtifactMode::Any);
        copy("sub/tool", "", ArtifactMode::Any);
        for path in ["local/above/file", "local/above/file/tool", "local/alone/renamed", "secrets", "tool"] {
            assert_eq!(owner(path), (7001, 7002), "{path}");
        }
        for path in ["local", "local/above", "local/alone", "."] {
            assert_eq!(owner(path), (0, 0), "{path}");
        }
        assert_eq!(owner("local/others"), (7003, 7003));
    }

    #[test]
    fn nothing_is_written_outside_the_folder() {
        let place = place();
        let outside = place.source.path().join("outside");
        std::fs::write(&outside, "keep").unwrap();
        symlink(&outside, place.there("local/renamed")).unwrap();
        symlink(place.source.path(), place.there("local/dir")).unwrap();
        place.copy("sub/tool", "local/renamed", ArtifactMode::File).unwrap();
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "keep", "the symlink was replaced, not followed");
        let errno = |destination: &str| {
            place.copy("sub/tool", destination, ArtifactMode::File).unwrap_err().1.raw_os_error().unwrap()
        };
        assert_eq!(errno("../../x"), libc::EXDEV);
        assert_eq!(errno("local/dir/planted"), libc::ELOOP);
        assert_eq!(errno("local"), libc::EISDIR);
    }

    /// D15: a file that a job writes never runs with its owner's identity.
    #[test]
    fn set_id_bits_are_left_out() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        for (given, expected) in [(0o6755, 0o755), (0o4711, 0o711), (0o2640, 0o640), (0o1600, 0o1600)] {
            let file = create(&root, std::ffi::OsStr::new("x"), given).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, expected, "{given:o}");
        }
    }

    #[test]
    fn what_cannot_be_copied_is_named() {
        let place = place();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            place.source.path().join("fifo"),
            rustix::fs::FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let failure = |source: &str, mode| place.copy(source, "local", mode).unwrap_err().0;
        assert!(failure(".", ArtifactMode::Any).contains("fifo"));
        assert!(failure("none", ArtifactMode::Any).contains("read"));
        assert!(failure(".", ArtifactMode::File).contains("directory"));
        assert!(failure("sub/tool", ArtifactMode::Dir).contains("directory"));
        assert_eq!(owner("root").unwrap(), Owner { uid: 0, gid: 0 });
        assert!(owner("no such user").is_err());
    }
}
