//! Features of this kernel, and what it permits: each check is one call or one file.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::OpenTreeFlags;

use super::probe;

/// Whether the kernel has a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// It has the feature.
    Yes,
    /// It is too old, or was built without it.
    No,
    /// A seccomp filter denies the call.
    Refused,
}

/// `answer` is from a call that always fails; only these two errors mean that the call was not reached.
fn support<T, E: Into<io::Error>>(answer: Result<T, E>) -> Support {
    match answer.map_err(|e| e.into().raw_os_error()) {
        Err(Some(libc::ENOSYS)) => Support::No,
        Err(Some(libc::EPERM)) => Support::Refused,
        _ => Support::Yes,
    }
}

/// `openat2(2)`, Linux 5.6.
pub fn openat2() -> Support {
    support(rustix::fs::openat2(CWD, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH))
}

/// `open_tree(2)` and the calls that came with it, Linux 5.2.
pub fn mount_api() -> Support {
    // Without OPEN_TREE_CLONE it is an open(2) that needs no privilege.
    support(rustix::mount::open_tree(CWD, "/", OpenTreeFlags::OPEN_TREE_CLOEXEC))
}

/// `mount_setattr(2)`, Linux 5.12.
pub fn mount_setattr() -> Support {
    support(probe::mount_setattr_of_nothing())
}

/// `pidfd_open(2)`, Linux 5.3.
pub fn pidfd() -> Support {
    support(super::process::open_pidfd(rustix::process::getpid().as_raw_nonzero().get()))
}

/// `clone3(2)`, Linux 5.3.
pub fn clone3() -> Support {
    support(probe::clone3_of_nothing())
}

/// `CLONE_INTO_CGROUP`, Linux 5.7.
pub fn clone_into_cgroup() -> Support {
    match probe::clone3_into_no_cgroup() {
        Err(e) if e.raw_os_error() == Some(libc::E2BIG) => Support::No,
        answer => support(answer),
    }
}

/// `close_range(2)` with `CLOSE_RANGE_CLOEXEC`, Linux 5.11.
pub fn close_range() -> Support {
    match probe::close_range_of_nothing() {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Support::No,
        answer => support(answer),
    }
}

/// Filters of system calls.
pub fn seccomp() -> Support {
    match probe::seccomp_filters() {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Support::No,
        answer => support(answer),
    }
}

/// The version of Landlock.
///
/// # Errors
/// ENOSYS when it is not built in, EOPNOTSUPP when it was not switched on at boot.
pub fn landlock() -> io::Result<i32> {
    probe::landlock_version()
}

/// Whether an unprivileged user can make a user namespace. Tried in a child, so that this process does not change; the caller must
/// have no other thread.
///
/// # Errors
/// EPERM, ENOSPC: a setting forbids it; or no child can be created.
pub fn user_namespace_without_root() -> io::Result<()> {
    /// The id of `nobody` on every Linux.
    const NOBODY: u32 = 65534;
    let words = probe::in_child(&mut || {
        let done = if rustix::process::geteuid().is_root() { probe::become_user(NOBODY) } else { Ok(()) };
        let done = done.and_then(|()| probe::unshare(libc::CLONE_NEWUSER));
        done.err().and_then(|e| e.raw_os_error()).unwrap_or(0).to_ne_bytes().to_vec()
    })?;
    match <[u8; 4]>::try_from(words.text).map(i32::from_ne_bytes) {
        Ok(0) => Ok(()),
        Ok(number) => Err(io::Error::from_raw_os_error(number)),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EPERM)),
    }
}

/// Kinds of namespaces that the kernel has: `mnt`, `pid`, and so on.
pub fn namespaces() -> Vec<&'static str> {
    let kinds = ["mnt", "pid", "ipc", "uts", "net", "cgroup", "user"];
    kinds.into_iter().filter(|kind| Path::new("/proc/self/ns").join(kind).exists()).collect()
}

/// A setting of `/proc/sys`, such as `kernel/pid_max`; `None` where this kernel does not have it or it cannot be read.
pub fn setting(name: &str) -> Option<String> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?;
    Some(text.trim().to_owned())
}

/// Pressure stall information. Linux 4.20, and on some systems only when enabled at boot.
pub fn pressure() -> bool {
    // The file exists in any case; reading it fails with EOPNOTSUPP where the feature is disabled.
    std::fs::read_to_string("/proc/pressure/memory").is_ok()
}

/// Whether `/` is the initramfs, from which `pivot_root` does not work.
///
/// # Errors
/// When the file system of `/` cannot be determined.
pub fn root_is_initramfs() -> io::Result<bool> {
    const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let named = text.lines().any(|l| l.split(' ').nth(4) == Some("/") && l.contains(" - rootfs "));
    Ok(named || rustix::fs::statfs("/")?.f_type == RAMFS_MAGIC)
}

/// Soft and hard limit of open files; `None` is unlimited.
pub fn open_files() -> (Option<u64>, Option<u64>) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    (limit.current, limit.maximum)
}

/// Whether this process may raise its limits.
pub fn may_raise_limits() -> bool {
    caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_RESOURCE).unwrap_or(false)
}

/// The kernel's release, such as `6.1.0-56-cloud-amd64`.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
