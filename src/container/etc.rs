//! The host's `/etc` as a task that runs as root sees it: world-readable files only.
//!
//! Such a task runs as uid 0 with capabilities, so file modes do not restrict it. It gets an idmapped copy of the mount in which no
//! file has a mapped owner: the task owns none of the files, and `CAP_DAC_OVERRIDE` does not apply to a file whose owner is not
//! mapped. This holds for every name, also for one that appears later or is renamed, because it is a property of the mount and not
//! of a file.
//!
//! Where the kernel or the file system does not support that (before Linux 5.12; overlayfs, NFS, and tmpfs before 6.3), known
//! directories and files with secrets are covered by mounts. A mount over a single file disappears when the host renames another
//! file over it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use caps::{Capability, CapsHashSet};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::config::{Bind, Config, Failure, Step as _};
use crate::spec::Masks;
use crate::sys::mount::{attach, clone_mount, clone_tree, map_ids, new_filesystem, set_attributes};
use crate::sys::path::Root;
use crate::sys::{mutant, process};

const ETC: &str = "/etc";

/// The maps must have one entry, so they map one id that belongs to no user and no group. The last id means "nobody" to the kernel,
/// the one before it to NFS.
const NOBODYS: &str = "4294967293 4294967293 1\n";

/// Directories in `/etc` that hold secrets.
const DIRECTORIES: [&str; 16] = [
    "ssl/private",
    "pki/tls/private",
    "pki/CA/private",
    "pki/private",
    "ssh",
    "sudoers.d",
    "letsencrypt",
    "wireguard",
    "ipsec.d/private",
    "swanctl/private",
    "NetworkManager/system-connections",
    "openvpn",
    "kubernetes",
    "nomad.d",
    "consul.d",
    "vault.d",
];

/// Files in `/etc` that hold secrets.
const FILES: [&str; 9] = [
    "shadow",
    "shadow-",
    "gshadow",
    "gshadow-",
    "sudoers",
    "security/opasswd",
    "krb5.keytab",
    "ipsec.secrets",
    "ppp/chap-secrets",
];

/// How far a copy of `/etc` could be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// All of it, with the mounts below it.
    Whole,
    /// Its own file system, but not the ones that are mounted below it.
    Top,
    /// Not at all: known secrets are covered by mounts.
    No,
}

/// Whether `/etc` must be closed for a task: it is root, or has a capability with which it can read every file as root can.
pub(super) fn is_wanted(config: &Config, held: &CapsHashSet) -> bool {
    const AS_ROOT: [Capability; 5] = [
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_DAC_READ_SEARCH,
        Capability::CAP_SETUID,
        Capability::CAP_SETGID,
        Capability::CAP_SYS_ADMIN,
    ];
    let root = config.host_ids.as_ref().is_none_or(|ids| ids.uid == 0);
    let tight = config.root.as_ref().is_some_and(|root| root.masks == Masks::All);
    tight && config.rootless.is_none() && (root || AS_ROOT.iter().any(|capability| held.contains(capability)))
}

/// Which part of the host's `/etc` a bind shows.
enum Shown {
    /// This path below `/etc`; an empty path is all of it.
    Part(PathBuf),
    /// All of `/etc`, at this path below the bind's source.
    At(PathBuf),
}

impl Shown {
    /// Mounts that a job asks for are left as they are, whatever they show.
    fn of(bind: &Bind) -> io::Result<Option<Shown>> {
        let usual = bind.readonly && bind.source == Path::new(ETC) && bind.target == Path::new(ETC);
        if usual {
            return Ok(Some(Shown::Part(PathBuf::new())));
        }
        if !bind.of_host || mutant::on("d40") {
            return Ok(None);
        }
        let etc = match Path::new(ETC).canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let source = bind.source.canonicalize()?;
        // Compares device and inode instead of names: `/etc` may be mounted in another place, too.
        let identity = |path: &Path| rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino));
        let (of_etc, of_source) = (identity(&etc)?, identity(&source)?);
        let above = |path: &Path, wanted| {
            let mut all = path.ancestors();
            let found = all.find(|above| identity(above).is_ok_and(|one| one == wanted))?;
            path.strip_prefix(found).ok().map(Path::to_owned)
        };
        let part = above(&source, of_etc).map(Shown::Part);
        Ok(part.or_else(|| above(&etc, of_source).map(Shown::At)))
    }
}

/// A bind that shows something of `/etc`, closed as far as possible.
pub(super) struct Part {
    /// Its index among the binds.
    pub(super) bind: usize,
    shown: Shown,
    /// A closed copy of `/etc`, to be attached where the bind shows an open one.
    over: Option<OwnedFd>,
    closed: Closed,
}

/// Closes the unattached copies in `trees` that show something of the host's `/etc`; `proc` is the `/proc` in which this process
/// sees its children. Call [`Part::finish`] on each [`Part`] when its bind is attached.
pub(super) fn close(binds: &[Bind], trees: &[OwnedFd], proc: BorrowedFd<'_>) -> Result<Vec<Part>, Failure> {
    let mut namespace = None;
    let mut parts = Vec::new();
    for (bind, tree) in trees.iter().enumerate() {
        let source = &binds[bind].source;
        let shown = Shown::of(&binds[bind]).step(|| format!("look whether {} lies in /etc", source.display()))?;
        let Some(shown) = shown else { continue };
        let over = match shown {
            Shown::Part(_) => None,
            Shown::At(_) => Some(copy().step(|| "copy /etc".to_owned())?),
        };
        let closed = if mutant::on("d13") {
            Closed::Whole
        } else {
            if namespace.is_none() {
                namespace = Some(nobodys(proc)?);
            }
            let namespace = namespace.as_ref().and_then(Option::as_ref);
            namespace.map_or(Closed::No, |namespace| close_with(over.as_ref().unwrap_or(tree), namespace.as_fd()))
        };
        parts.push(Part { bind, shown, over, closed });
    }
    Ok(parts)
}

/// An unattached copy of all of `/etc`, as every task has it.
fn copy() -> io::Result<OwnedFd> {
    let tree = clone_tree(CWD, Path::new(ETC))?;
    set_attributes(tree.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, libc::MS_PRIVATE, true)?;
    Ok(tree)
}

/// `None` where such a namespace cannot be made.
fn nobodys(proc: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Failure> {
    match namespace_of_nobody(proc) {
        Ok(namespace) => Ok(Some(namespace)),
        // The job sets this limit itself: without the error, a low limit would get it an `/etc` that is not closed as a whole.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
            let message = format!("{error} (pids_limit must leave room for two processes)");
            Err(Failure::new("make a namespace in which nobody owns /etc", message))
        }
        Err(_) => Ok(None),
    }
}

impl Part {
    /// Finishes the bind once it is attached, before anything else is mounted below it: `tree` is its root.
    pub(super) fn finish(self, tree: &OwnedFd, dev: &Root) -> Result<(), Failure> {
        let step = || "open /etc".to_owned();
        let tree = tree.try_clone().step(step)?;
        let (etc, part) = match (self.shown, self.over) {
            (Shown::At(place), Some(over)) => {
                let place = Root::from_fd(tree).open_beneath(&place, OFlags::PATH, Mode::empty()).step(step)?;
                attach(over.as_fd(), place.as_fd()).step(|| "mount a closed /etc".to_owned())?;
                (over, PathBuf::new())
            }
            (Shown::Part(part) | Shown::At(part), _) => (tree, part),
        };
        if self.closed == Closed::Whole { Ok(()) } else { cover(etc, &part, dev) }
    }
}

fn close_with(tree: &OwnedFd, namespace: BorrowedFd<'_>) -> Closed {
    if map_ids(tree.as_fd(), namespace, true).is_ok() {
        return Closed::Whole;
    }
    if map_ids(tree.as_fd(), namespace, false).is_ok() { Closed::Top } else { Closed::No }
}

/// How far `/etc` of this machine can be closed, for checks before a start.
///
/// # Errors
/// Without root, or when the mount cannot be copied.
pub fn closes() -> io::Result<Closed> {
    let tree = clone_tree(CWD, Path::new(ETC))?;
    let proc = Root::open(Path::new("/proc"))?;
    let Ok(namespace) = namespace_of_nobody(proc.as_fd()) else { return Ok(Closed::No) };
    Ok(close_with(&tree, namespace.as_fd()))
}

/// A user namespace that maps one id, which belongs to no user.
fn namespace_of_nobody(proc: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (child, end) = process::spawn_in_user_namespace()?;
    let open = |name: &str, flags| {
        let path = Path::new(&child.pid.to_string()).join(name);
        rustix::fs::openat(proc, path, flags | OFlags::CLOEXEC, Mode::empty())
    };
    let map = |name: &str| {
        let file = open(name, OFlags::WRONLY)?;
        let written = rustix::io::write(file, NOBODYS.as_bytes())?;
        if written == NOBODYS.len() { Ok(()) } else { Err(Errno::IO) }
    };
    let made = map("gid_map").and_then(|()| map("uid_map")).and_then(|()| open("ns/user", OFlags::RDONLY));
    drop(end);
    process::wait(child.pidfd.as_fd())?;
    Ok(made?)
}

/// Where in an attached `part` of `/etc` the known secret `name` lies: an empty path if the part is the secret itself or lies
/// within one.
fn place_in<'a>(part: &Path, name: &'a Path) -> Option<&'a Path> {
    if part.starts_with(name) { Some(Path::new("")) } else { name.strip_prefix(part).ok() }
}

/// Covers the known secrets in an attached `part` of `/etc` that could not be closed as a whole.
fn cover(etc: OwnedFd, part: &Path, dev: &Root) -> Result<(), Failure> {
    if mutant::on("d14") {
        return Ok(());
    }
    let etc = Root::from_fd(etc);
    let null = dev.open_beneath(Path::new("null"), OFlags::PATH, Mode::empty()).step(|| "open /dev/null".to_owned())?;
    for name in DIRECTORIES.iter().chain(&FILES) {
        let step = || format!("cover /etc/{name}");
        let Some(place) = place_in(part, Path::new(name)) else { continue };
        let place = if place.as_os_str().is_empty() {
            etc.as_fd().try_clone_to_owned()
        } else {
            etc.open_beneath(place, OFlags::PATH, Mode::empty())
        };
        let place = match place {
            Ok(place) => place,
            // It does not exist, cannot be reached, or is a link to a place elsewhere.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP | libc::EXDEV)
                ) =>
            {
                continue;
            }
            Err(error) => return Err(Failure::new(step(), error)),
        };
        let stat = rustix::fs::fstat(&place).step(step)?;
        let cover = if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
                | MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NODEV
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            new_filesystem(c"tmpfs", &[("size", Some("4k")), ("mode", Some("755"))], attributes).step(step)?
        } else {
            mask(null.as_fd()).step(step)?
        };
        attach(cover.as_fd(), place.as_fd()).step(step)?;
    }
    Ok(())
}

/// The null device of the task, as a mount that is to cover a file: read-only, as whoever may change the mode of what is at that place
/// would change it for everybody who uses the device.
pub(super) fn mask(null: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let copy = clone_mount(null)?;
    let attributes = if mutant::on("c11-null") { MountAttrFlags::empty() } else { MountAttrFlags::MOUNT_ATTR_RDONLY };
    set_attributes(copy.as_fd(), attributes, 0, false)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known secrets of `/etc` are found in binds that show only a part of it.
    #[test]
    fn d40_parts_of_etc_are_covered_where_they_are_shown() {
        for (part, name, place) in [
            ("", "ssl/private", Some("ssl/private")),
            ("ssl", "ssl/private", Some("private")),
            ("ssl/private", "ssl/private", Some("")),
            ("ssl/private/key.pem", "ssl/private", Some("")),
            ("shadow", "shadow", Some("")),
            ("shadow-", "shadow", None),
            ("ssl", "shadow", None),
        ] {
            assert_eq!(place_in(Path::new(part), Path::new(name)), place.map(Path::new), "{part} {name}");
        }
    }

    #[test]
    fn d40_a_bind_shows_etc_whole_in_part_or_below() {
        let shown = |source: &str, target: &str, of_host| {
            let bind = Bind {
                source: source.into(),
                target: target.into(),
                readonly: true,
                propagation: crate::spec::Propagation::Private,
                of_host,
                identity: None,
            };
            Shown::of(&bind).unwrap().map(|shown| match shown {
                Shown::Part(path) => format!("part {}", path.display()),
                Shown::At(path) => format!("at {}", path.display()),
            })
        };
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(shown("/etc", "/etc", false), is("part "));
        assert_eq!(shown("/etc", "/host", true), is("part "));
        assert_eq!(shown("/etc/passwd", "/etc/passwd", true), is("part passwd"));
        assert_eq!(shown("/usr/../etc/passwd", "/p", true), is("part passwd"));
        assert_eq!(shown("/", "/host", true), is("at etc"));
        assert_eq!(shown("/usr", "/usr", true), None);
        assert_eq!(shown("/etc/passwd", "/etc/passwd", false), None, "what a job names");
    }
}
