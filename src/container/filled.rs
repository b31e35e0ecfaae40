//! A root that an agent has filled with the host's programs (`fs_isolation = "chroot"`), many of them as hard links to the host's
//! own files: writing to one changes the host's file.
//!
//! So the whole root is read-only except for the task's four directories, and in these every file that also has a name elsewhere is
//! read-only. This does not rely on `fs.protected_hardlinks`, which keeps users from making hard links to files of others.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::mount::MountAttrFlags;

use super::config::{Failure, Step as _};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::sys::mount::{attach, clone_mount, set_attributes};
use crate::sys::mutant;
use crate::sys::path::{Root, mount_of};

/// Directories of the root that stay writable.
const WRITABLE: [&str; 4] = ["alloc", "local", "secrets", "tmp"];
/// Those that an agent may have filled and that no other task shares.
const OWN: [&str; 3] = ["local", "secrets", "tmp"];

/// Deepest nesting of directories that is searched. Each level holds a descriptor.
const DEPTH: usize = 64;
/// Most entries that are searched before a start.
const ENTRIES: u64 = 1_000_000;
/// Most paths in a task's directories that become read-only.
const PLACES: usize = 1_000;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// Gives each directory that stays writable its own mount; `root` is attached, and nothing is attached in it yet.
pub(super) fn open_places(root: &Root) -> Result<(), Failure> {
    if mutant::on("d42") {
        return Ok(());
    }
    let of_root = mount_of(root.as_fd()).step(|| "look at the root".to_owned())?;
    for name in WRITABLE {
        let step = || format!("keep /{name} writable");
        let place = root.create_dir_all(Path::new(name), Mode::from_raw_mode(0o777)).step(step)?;
        // The agent may have mounted something there itself.
        if mount_of(place.as_fd()).step(step)? == of_root {
            attach(clone_mount(place.as_fd()).step(step)?.as_fd(), place.as_fd()).step(step)?;
        }
    }
    Ok(())
}

/// Makes the root read-only, and hard links to the host's files in the writable directories. Called when everything is attached.
pub(super) fn close(root: &Root) -> Result<(), Failure> {
    if mutant::on("d42") {
        return Ok(());
    }
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY;
    for place in hosts(root)? {
        let step = || format!("make /{} read-only", place.display());
        let found = root.open_beneath(&place, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).step(step)?;
        let copy = clone_mount(found.as_fd()).step(step)?;
        set_attributes(copy.as_fd(), read_only, 0, false).step(step)?;
        attach(copy.as_fd(), found.as_fd()).step(step)?;
    }
    set_attributes(root.as_fd(), read_only, 0, false).step(|| "make the root read-only".to_owned())
}

/// The entries of the task's own directories that are or contain a file that has another name elsewhere.
fn hosts(root: &Root) -> Result<BTreeSet<PathBuf>, Failure> {
    let mut links = Links::default();
    if mutant::on("d42-links") {
        return Ok(BTreeSet::new());
    }
    for name in OWN {
        let top = root.open_beneath(Path::new(name), DIRECTORY, Mode::empty());
        let top = top.step(|| format!("look into /{name}"))?;
        links.look(&Root::from_fd(top), Path::new(name), 1)?;
    }
    let places: BTreeSet<PathBuf> =
        links.files.into_values().filter(|file| file.found < file.names).flat_map(|file| file.places).collect();
    if places.len() > PLACES {
        return Err(too_many(&format!("files with names elsewhere in more than {PLACES} places")));
    }
    Ok(places)
}

fn too_many(what: &str) -> Failure {
    Failure::invalid(
        "look for files of the host in the task's directories",
        format!("/local, /secrets and /tmp hold {what}; fs_isolation = \"image\" of the plugin needs no such look"),
    )
}

/// The files with more than one hard link.
#[derive(Default)]
struct Links {
    files: BTreeMap<(u64, u64), Link>,
    entries: u64,
}

#[derive(Default)]
struct Link {
    /// Its link count.
    names: u64,
    /// Names of it that were found.
    found: u64,
    /// Where they were found: paths directly below one of the task's directories.
    places: BTreeSet<PathBuf>,
}

impl Links {
    /// Searches a directory with this name, at nesting depth `depth`.
    fn look(&mut self, dir: &Root, name: &Path, depth: usize) -> Result<(), Failure> {
        let step = || format!("look into /{}", name.display());
        if depth > DEPTH {
            return Err(too_many(&format!("directories nested more than {DEPTH} deep")));
        }
        let readable = dir.open_beneath(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        for entry in Dir::new(readable.step(step)?).step(step)? {
            let entry = entry.step(step)?;
            let file = OsStr::from_bytes(entry.file_name().to_bytes());
            if file == "." || file == ".." {
                continue;
            }
            self.entries += 1;
            if self.entries > ENTRIES {
                return Err(too_many(&format!("more than {ENTRIES} files")));
            }
            let found = match dir.open_same_mount(Path::new(file), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()) {
                Ok(found) => found,
                // It was removed meanwhile, is a link, or is a mount point.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP | libc::EXDEV)) => {
                    continue;
                }
                Err(error) => return Err(Failure::new(step(), error)),
            };
            let stat = rustix::fs::fstat(&found).step(step)?;
            let name = name.join(file);
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => self.look(&Root::from_fd(found), &name, depth + 1)?,
                FileType::RegularFile if stat.st_nlink > 1 => {
                    let link = self.files.entry((stat.st_dev, stat.st_ino)).or_default();
                    link.names = stat.st_nlink;
                    link.found += 1;
                    link.places.insert(name.components().take(2).collect());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
