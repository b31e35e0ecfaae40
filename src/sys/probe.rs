//! System calls that test whether they are allowed, without effect when they are: each is made in a form that the kernel refuses
//! for another reason (EINVAL, EFAULT, ENODEV), or whose effect ends with the calling process.
//!
//! EPERM, EACCES or ENOSYS mean that the caller has no permission, or that the kernel has no such call; any other result means that
//! the call was reached.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

use super::process::{exit_at_once, wait_for};

fn check(rc: libc::c_long) -> io::Result<libc::c_long> {
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

/// As `check`, for a call that makes a descriptor, which is closed again.
fn check_fd(rc: libc::c_long) -> io::Result<()> {
    let number = check(rc)?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows its number.
    drop(unsafe { OwnedFd::from_raw_fd(number as i32) });
    Ok(())
}

/// The output of a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastWords {
    /// The return value of its body; empty when it did not get that far.
    pub text: Vec<u8>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// Seconds after which a child that has not ended is killed.
const PATIENCE: u32 = 10;

/// Runs `body` in a child, so that its effects on the process end with it, and returns its result. `fork(2)`.
///
/// The caller must have no other thread: the child continues as a copy of it.
///
/// # Errors
/// What `pipe2(2)` and `fork(2)` say.
pub fn in_child(body: &mut dyn FnMut() -> Vec<u8>) -> io::Result<LastWords> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    #[expect(clippy::disallowed_methods, reason = "the caller has no other thread")]
    // SAFETY: no other thread exists, so no lock is held that the child would wait for; parent and child own a copy of the
    // memory each.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(reader);
        // SAFETY: takes a number; the signal's default action ends this child.
        unsafe { libc::alarm(PATIENCE) };
        let text = body();
        // The parent may have closed the pipe; then there is no reader.
        let _ = std::fs::File::from(writer).write_all(&text);
        exit_at_once(0);
    }
    drop(writer);
    check(pid.into())?;
    let mut text = Vec::new();
    let read = std::fs::File::from(reader).read_to_end(&mut text);
    let signal = wait_for(pid);
    read?;
    Ok(LastWords { text, signal })
}

/// Moves this process into new namespaces (`CLONE_NEW*`). `unshare(2)`. Belongs into [`in_child`].
///
/// # Errors
/// EPERM without the privilege, ENOSPC where a limit of namespaces is reached.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes namespace flags only, which leave memory and descriptors alone.
    check(unsafe { libc::unshare(flags) }.into()).map(drop)
}

/// `clone3(2)` without arguments.
///
/// # Errors
/// EINVAL where the call is there.
pub fn clone3_of_nothing() -> io::Result<()> {
    // SAFETY: a size of 0 is refused before the null pointer is looked at, so no process is made.
    check(unsafe { libc::syscall(libc::SYS_clone3, std::ptr::null::<libc::c_void>(), 0usize) }).map(drop)
}

/// `clone3(2)` into a cgroup that no descriptor names. Since Linux 5.7.
///
/// # Errors
/// EBADF where the kernel knows `CLONE_INTO_CGROUP`, E2BIG where it does not.
pub fn clone3_into_no_cgroup() -> io::Result<()> {
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    // `struct clone_args`: flags first, exit_signal fifth, cgroup last.
    let mut args = [0u64; 11];
    args[0] = INTO_CGROUP;
    args[4] = libc::SIGCHLD as u64;
    args[10] = i32::MAX as u64;
    // SAFETY: the kernel reads 88 bytes, which the array has; the descriptor is not open, so no process is made.
    check(unsafe { libc::syscall(libc::SYS_clone3, args.as_ptr(), size_of_val(&args)) }).map(drop)
}

/// `mount_setattr(2)` without attributes. Since Linux 5.12.
///
/// # Errors
/// EINVAL where the call is there.
pub fn mount_setattr_of_nothing() -> io::Result<()> {
    // SAFETY: a size of 0 is refused before the null pointer is looked at; the path is a C string.
    check(unsafe {
        libc::syscall(libc::SYS_mount_setattr, -1, c"".as_ptr(), 0, std::ptr::null::<libc::c_void>(), 0usize)
    })
    .map(drop)
}

/// Marks no descriptor close-on-exec. `close_range(2)`, `CLOSE_RANGE_CLOEXEC` since Linux 5.11.
///
/// # Errors
/// ENOSYS before Linux 5.9, EINVAL before 5.11.
pub fn close_range_of_nothing() -> io::Result<()> {
    super::process::close_on_exec_from(libc::c_uint::MAX as usize)
}

/// The kernel's version of Landlock. `landlock_create_ruleset(2)` with its version flag.
///
/// # Errors
/// ENOSYS when it is not built in, EOPNOTSUPP when it was not enabled at boot.
pub fn landlock_version() -> io::Result<i32> {
    const CREATE_RULESET_VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel wants a null pointer and a size of 0, and makes nothing.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            CREATE_RULESET_VERSION,
        )
    };
    Ok(check(rc)? as i32)
}

/// Whether filters that return an errno can be installed. `seccomp(2)`, `SECCOMP_GET_ACTION_AVAIL`.
///
/// # Errors
/// ENOSYS without seccomp, EOPNOTSUPP without filters.
pub fn seccomp_filters() -> io::Result<()> {
    let action = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads one 32-bit number, which is alive.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, std::ptr::from_ref(&action)) })
        .map(drop)
}

/// The id of this process's session keyring. `keyctl(2)`.
///
/// # Errors
/// ENOKEY when there is none.
pub fn session_keyring() -> io::Result<()> {
    const GET_KEYRING_ID: libc::c_int = 0;
    const SESSION: libc::c_int = -3;
    // SAFETY: takes numbers only, and makes no keyring because the last one is 0.
    check(unsafe { libc::syscall(libc::SYS_keyctl, GET_KEYRING_ID, SESSION, 0) }).map(drop)
}

/// A key of no type. `add_key(2)`.
///
/// # Errors
/// EFAULT where the call is there.
pub fn add_no_key() -> io::Result<()> {
    const PROCESS: libc::c_int = -2;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: the kernel copies the type from a null pointer, which it answers with EFAULT.
    check(unsafe { libc::syscall(libc::SYS_add_key, null, null, null, 0usize, PROCESS) }).map(drop)
}

/// An array map of one number, closed at once. `bpf(2)`.
///
/// # Errors
/// EPERM without the privilege.
pub fn bpf_map() -> io::Result<()> {
    const MAP_CREATE: libc::c_int = 0;
    const ARRAY: u32 = 2;
    // `union bpf_attr` of this command: map_type, key_size, value_size, max_entries, map_flags.
    let attributes: [u32; 6] = [ARRAY, 4, 4, 1, 0, 0];
    // SAFETY: the kernel reads as many bytes as the array has.
    check_fd(unsafe { libc::syscall(libc::SYS_bpf, MAP_CREATE, attributes.as_ptr(), size_of_val(&attributes)) })
}

/// A counter of this process's own CPU time, kernel included, closed at once. `perf_event_open(2)`.
///
/// # Errors
/// EACCES or EPERM without the privilege.
pub fn perf_counter() -> io::Result<()> {
    const SOFTWARE: u64 = 1;
    const TASK_CLOCK: u64 = 1;
    const SIZE: u64 = 64;
    // `struct perf_event_attr`, first version: type and size, config, and nothing else set.
    let mut attributes = [0u64; 8];
    attributes[0] = SOFTWARE | SIZE << 32;
    attributes[1] = TASK_CLOCK;
    // SAFETY: the kernel reads the 64 bytes that the struct names as its size.
    check_fd(unsafe { libc::syscall(libc::SYS_perf_event_open, attributes.as_ptr(), 0, -1, -1, 0) })
}

/// A handler of page faults of user mode, closed at once. `userfaultfd(2)`.
///
/// # Errors
/// EPERM without the privilege, EINVAL before Linux 5.11.
pub fn page_fault_handler() -> io::Result<()> {
    const USER_MODE_ONLY: libc::c_int = 1;
    // SAFETY: takes flags only.
    check_fd(unsafe { libc::syscall(libc::SYS_userfaultfd, USER_MODE_ONLY | libc::O_CLOEXEC) })
}

/// A ring without parameters. `io_uring_setup(2)`.
///
/// # Errors
/// EFAULT where the call is allowed.
pub fn no_io_uring() -> io::Result<()> {
    // SAFETY: the kernel copies the parameters from a null pointer, which it answers with EFAULT.
    check_fd(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, std::ptr::null::<libc::c_void>()) })
}

/// Opens a file by a handle that names none. `open_by_handle_at(2)`.
///
/// # Errors
/// EPERM without the privilege, ESTALE with it.
pub fn open_by_handle() -> io::Result<()> {
    // `struct file_handle`: 8 bytes follow, type 1 (inode and generation), both of them 0.
    let handle: [u32; 4] = [8, 1, 0, 0];
    // SAFETY: the kernel reads the 16 bytes that the struct's first field says it has.
    check_fd(unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, libc::AT_FDCWD, handle.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)
    })
}

/// Loads a kernel module of no bytes. `init_module(2)`.
///
/// # Errors
/// EPERM without the privilege, ENOEXEC or EFAULT with it.
pub fn load_no_module() -> io::Result<()> {
    // SAFETY: an image of 0 bytes is not a module; nothing is read through the null pointer.
    check(unsafe { libc::syscall(libc::SYS_init_module, std::ptr::null::<libc::c_void>(), 0usize, c"".as_ptr()) })
        .map(drop)
}

/// Prepares no other kernel. `kexec_load(2)`.
///
/// # Errors
/// EPERM without the privilege, EINVAL with it.
pub fn load_no_kernel() -> io::Result<()> {
    const NO_SUCH_FLAG: libc::c_ulong = 0x8000;
    const TOO_MANY: libc::c_ulong = 1 << 20;
    // SAFETY: the number of segments and the flag are both refused before anything is read or a prepared kernel let go.
    check(unsafe {
        libc::syscall(libc::SYS_kexec_load, 0usize, TOO_MANY, std::ptr::null::<libc::c_void>(), NO_SUCH_FLAG)
    })
    .map(drop)
}

/// A restart without its magic numbers. `reboot(2)`.
///
/// # Errors
/// EPERM without the privilege, EINVAL with it.
pub fn no_reboot() -> io::Result<()> {
    // SAFETY: the kernel does nothing for numbers that are not its magic ones.
    check(unsafe { libc::syscall(libc::SYS_reboot, 0, 0, 0, std::ptr::null::<libc::c_void>()) }).map(drop)
}

/// Sets neither time nor time zone. `settimeofday(2)`.
///
/// # Errors
/// EPERM without the privilege.
pub fn set_no_time() -> io::Result<()> {
    let null = std::ptr::null::<libc::c_void>();
    // SAFETY: null pointers mean that neither is to be set; the C library's wrapper would look at the first.
    check(unsafe { libc::syscall(libc::SYS_settimeofday, null, null) }).map(drop)
}

/// A host name of an impossible length. `sethostname(2)`.
///
/// # Errors
/// EPERM without the privilege, EINVAL with it.
pub fn set_no_hostname() -> io::Result<()> {
    // SAFETY: the length is refused before the null pointer is looked at.
    check(unsafe { libc::syscall(libc::SYS_sethostname, std::ptr::null::<libc::c_char>(), -1) }).map(drop)
}

/// Whether a call of the 32-bit interface works: `getpid` by `int 0x80`, number 20. Elsewhere there is no such interface.
///
/// # Errors
/// What a filter answers; one that kills, and a kernel without the interface, end this process, so it belongs into
/// [`in_child`].
#[cfg(target_arch = "x86_64")]
pub fn i386_getpid() -> io::Result<i64> {
    let mut answer: i64 = 20;
    // SAFETY: the call takes no argument and touches no memory; the registers that the entry may change are named.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") answer, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    let answer = i64::from(answer as i32);
    if answer < 0 { Err(io::Error::from_raw_os_error(-answer as i32)) } else { Ok(answer) }
}

/// Whether a call of the 32-bit interface works: there is no such interface.
///
/// # Errors
/// ENOSYS.
#[cfg(not(target_arch = "x86_64"))]
pub fn i386_getpid() -> io::Result<i64> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Becomes this user. `setuid(2)`. Belongs into [`in_child`].
///
/// # Errors
/// EPERM without the privilege.
pub fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: takes a number; without another thread there is nobody who would keep the old one.
    check(unsafe { libc::syscall(libc::SYS_setuid, uid) }).map(drop)
}

/// Gives up all supplementary groups. `setgroups(2)`. Belongs into [`in_child`].
///
/// # Errors
/// EPERM without the privilege.
pub fn drop_groups() -> io::Result<()> {
    // SAFETY: for 0 groups nothing is read through the null pointer.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) }).map(drop)
}

/// Switches address space randomisation off. `personality(2)`. Belongs into [`in_child`].
///
/// # Errors
/// What a filter answers.
pub fn odd_personality() -> io::Result<()> {
    const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x0004_0000;
    // SAFETY: changes flags of this process that only its next program will notice.
    check(unsafe { libc::syscall(libc::SYS_personality, ADDR_NO_RANDOMIZE) }).map(drop)
}

/// Reads nothing of the kernel's log. `syslog(2)`, `SYSLOG_ACTION_READ_ALL`.
///
/// # Errors
/// EPERM without the privilege.
pub fn read_kernel_log() -> io::Result<()> {
    const READ_ALL: libc::c_int = 3;
    let mut buffer = [0u8; 1];
    // SAFETY: the kernel writes at most 0 bytes into a buffer of 1.
    check(unsafe { libc::syscall(libc::SYS_syslog, READ_ALL, buffer.as_mut_ptr(), 0) }).map(drop)
}

/// The quota format of no device. `quotactl(2)`.
///
/// # Errors
/// ENODEV where the call is there.
pub fn quota_of_nothing() -> io::Result<()> {
    const GET_FORMAT_OF_USERS: libc::c_int = 0x0080_0004 << 8;
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: without a device the kernel has nothing to ask and writes nothing.
    check(unsafe { libc::syscall(libc::SYS_quotactl, GET_FORMAT_OF_USERS, null, 0, null) }).map(drop)
}

/// `no_new_privs` of this process. `prctl(2)`.
#[must_use]
pub fn has_no_new_privs() -> bool {
    // SAFETY: takes no pointer.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// Numbers of the descriptors from `first` on that stay open at exec: those that a program was started with, as opposed to those
/// that it has opened itself.
#[must_use]
pub fn lasting_descriptors(first: i32, end: i32) -> Vec<i32> {
    let lasts = |fd: &i32| {
        // SAFETY: F_GETFD reads a flag of a number; EBADF says that there is no such descriptor.
        let flags = unsafe { libc::fcntl(*fd, libc::F_GETFD) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    (first..end).filter(lasts).collect()
}

/// Enters the namespace that this process is already in, by its file. `setns(2)`.
///
/// # Errors
/// EPERM without the privilege.
pub fn enter_again(namespace: &OwnedFd) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call; 0 allows a namespace of any kind.
    check(unsafe { libc::setns(namespace.as_fd().as_raw_fd(), 0) }.into()).map(drop)
}
