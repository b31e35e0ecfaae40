//! The host's `/etc` as a task that is root sees it: what everybody may read, and nothing else.
//!
//! Such a task has the number of root, and capabilities, so modes keep nothing from it. It gets a copy of the mount in which
//! no file has an owner: neither is a file its own, nor does `CAP_DAC_OVERRIDE` reach one whose owner has no number there.
//! This holds for every name, whenever it appears, and after a rename, as it is the mount's and no file's.
//!
//! Where the kernel or the file system cannot do that (before Linux 5.12; overlayfs, NFS, and tmpfs before 6.3), directories
//! and files that are known to be nobody's business are covered. A cover over a single file goes when the host renames
//! another file over it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use caps::{Capability, CapsHashSet};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::config::{Bind, Config, Failure, Step as _};
use crate::spec::Masks;
use crate::sys::mount::{attach, clone_mount, clone_tree, map_ids, new_filesystem};
use crate::sys::path::Root;
use crate::sys::{mutant, process};

const ETC: &str = "/etc";

/// The one number in the maps, as a map must have one: that of no user and of no group. The last one means "nobody" to the
/// kernel, the one before it to NFS.
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
    /// All of it.
    Whole,
    /// The file system on which it lies, but not one that is mounted below it.
    Top,
    /// Not at all: what is known is covered.
    No,
}

/// Whether `/etc` must be closed for a task: it is root, or has what root has to read every file.
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

/// Whether this is the host's `/etc` that every task has; one that a job names, beside it, stays as it is.
pub(super) fn is_host_etc(bind: &Bind) -> bool {
    bind.readonly && bind.source == Path::new(ETC) && bind.target == Path::new(ETC)
}

/// Closes an unattached copy; `proc` is the `/proc` in which this process sees its children. Where [`Closed::Whole`] cannot
/// be, the caller attaches it and then calls [`cover`].
pub(super) fn close(tree: OwnedFd, proc: BorrowedFd<'_>) -> Result<(OwnedFd, Closed), Failure> {
    if mutant::on("d13") {
        return Ok((tree, Closed::Whole));
    }
    let step = || "make a namespace in which nobody owns /etc".to_owned();
    let namespace = match namespace_of_nobody(proc) {
        Ok(namespace) => namespace,
        // Whoever sets this limit is whoever is kept out.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
            return Err(Failure::new(step(), format!("{error} (pids_limit must leave room for two processes)")));
        }
        Err(_) => return Ok((tree, Closed::No)),
    };
    Ok(close_with(tree, namespace.as_fd()))
}

fn close_with(tree: OwnedFd, namespace: BorrowedFd<'_>) -> (OwnedFd, Closed) {
    if map_ids(tree.as_fd(), namespace, true).is_ok() {
        return (tree, Closed::Whole);
    }
    let closed = if map_ids(tree.as_fd(), namespace, false).is_ok() { Closed::Top } else { Closed::No };
    (tree, closed)
}

/// How far `/etc` of this machine can be closed, for whoever wants to know before a start.
///
/// # Errors
/// Without root, or when the mount cannot be copied.
pub fn closes() -> io::Result<Closed> {
    let tree = clone_tree(CWD, Path::new(ETC))?;
    let proc = Root::open(Path::new("/proc"))?;
    let Ok(namespace) = namespace_of_nobody(proc.as_fd()) else { return Ok(Closed::No) };
    Ok(close_with(tree, namespace.as_fd()).1)
}

/// A user namespace in which there is one number, and nobody has it.
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

/// Covers what is known in an attached `/etc` that could not be closed as a whole.
pub(super) fn cover(etc: OwnedFd, dev: &Root) -> Result<(), Failure> {
    if mutant::on("d14") {
        return Ok(());
    }
    let etc = Root::from_fd(etc);
    let null = dev.open_beneath(Path::new("null"), OFlags::PATH, Mode::empty()).step(|| "open /dev/null".to_owned())?;
    for name in DIRECTORIES.iter().chain(&FILES) {
        let step = || format!("cover /etc/{name}");
        let place = match etc.open_beneath(Path::new(name), OFlags::PATH, Mode::empty()) {
            Ok(place) => place,
            // It is not there; nobody gets there; it is a link, and what it names lies elsewhere.
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
            clone_mount(null.as_fd()).step(step)?
        };
        attach(cover.as_fd(), place.as_fd()).step(step)?;
    }
    Ok(())
}
