//! Mounts by descriptor: the new mount API (`open_tree`, `fsopen`, `mount_setattr`, `move_mount`).

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags};

/// `struct mount_attr` of `mount_setattr(2)`; libc has no definition for every target.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets attributes (`MOUNT_ATTR_*`) and optionally the propagation (`MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`) of a
/// mount, and of every mount below it when `recursive`.
///
/// # Errors
/// What `mount_setattr(2)` says; ENOSYS before Linux 5.12.
pub fn set_attributes(
    mount: BorrowedFd<'_>,
    set: MountAttrFlags,
    propagation: libc::c_ulong,
    recursive: bool,
) -> io::Result<()> {
    change(mount, &MountAttr { attr_set: u64::from(set.bits()), propagation, ..MountAttr::default() }, recursive)
}

/// Maps the owners of the files on an unattached mount (with `recursive` also on every mount below it): the inside ids in the maps
/// of `namespace`, a user namespace, are the ids on disk, and files of unmapped ids have no owner that any process has or can
/// become. `CAP_DAC_OVERRIDE` and similar capabilities do not apply to a file without a mapped owner.
///
/// # Errors
/// What `mount_setattr(2)` says; EINVAL where a file system does not support it, or a map is empty.
pub fn map_ids(mount: BorrowedFd<'_>, namespace: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    let userns_fd = u64::try_from(namespace.as_raw_fd()).map_err(io::Error::other)?;
    change(mount, &MountAttr { attr_set: libc::MOUNT_ATTR_IDMAP, userns_fd, ..MountAttr::default() }, recursive)
}

fn change(mount: BorrowedFd<'_>, attr: &MountAttr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the descriptor is open for the call, the path is a static empty C string, and the kernel reads exactly
    // `size_of::<MountAttr>()` bytes of a struct laid out as mount_setattr(2) documents.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            std::ptr::from_ref(attr),
            size_of::<MountAttr>(),
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A private, unattached copy of the mount at `place`, with `place` as its root, without the mounts below it.
///
/// # Errors
/// What `open_tree(2)` says.
pub fn clone_mount(place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(rustix::mount::open_tree(place, "", flags)?)
}

/// A private, unattached copy of the mount at `path` below `dir` with everything mounted below it.
///
/// Symlinks are followed; give an `O_PATH` descriptor and an empty path where that must not happen.
///
/// # Errors
/// What `open_tree(2)` says.
pub fn clone_tree(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    Ok(rustix::mount::open_tree(dir, path, flags)?)
}

/// A new, unattached file system of this type; its options are set one by one (an option without value is a flag).
///
/// # Errors
/// What `fsopen(2)`, `fsconfig(2)` and `fsmount(2)` say.
pub fn new_filesystem(
    fs_type: &CStr,
    options: &[(&str, Option<&str>)],
    attributes: MountAttrFlags,
) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen(fs_type, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        match value {
            Some(value) => rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?,
            None => rustix::mount::fsconfig_set_flag(context.as_fd(), *key)?,
        }
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

/// Attaches an unattached mount at the directory or file `target`.
///
/// # Errors
/// What `move_mount(2)` says; ENOTDIR when one is a directory and the other is not.
pub fn attach(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, "", target, "", flags)?)
}
