//! Settings of a process for itself, before it executes another program.

use std::io;

use rustix::process::Signal;

fn check(rc: libc::c_int) -> io::Result<()> {
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn check_syscall(rc: libc::c_long) -> io::Result<()> {
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Names this process in `ps` (at most 15 bytes are kept). `PR_SET_NAME`.
pub fn set_name(name: &str) {
    let bytes = name.as_bytes();
    let mut buffer = [0u8; 16];
    let len = bytes.len().min(15);
    buffer[..len].copy_from_slice(&bytes[..len]);
    // SAFETY: PR_SET_NAME reads at most 16 bytes from a NUL-terminated buffer, which this one is.
    unsafe { libc::prctl(libc::PR_SET_NAME, buffer.as_ptr()) };
}

/// Only root may attach to this process or read its memory and descriptors. `PR_SET_DUMPABLE 0`.
///
/// # Errors
/// None that the kernel documents.
pub fn set_undumpable() -> io::Result<()> {
    if super::mutant::on("a04") {
        return Ok(());
    }
    // SAFETY: takes no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) })
}

/// Makes the kernel send `signal` to this process when the *thread* that started it ends. `PR_SET_PDEATHSIG`.
///
/// Reset when the credentials change and when a set-user-ID program is executed, so it belongs directly before exec.
///
/// # Errors
/// EINVAL for a signal that does not exist.
pub fn set_parent_death_signal(signal: Signal) -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(signal))?)
}

/// Keeps this process running when its parent ends. `PR_SET_PDEATHSIG 0`.
///
/// # Errors
/// None that the kernel documents.
pub fn forget_parent_death_signal() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(None)?)
}

/// Keeps permitted capabilities across the change to another user. `PR_SET_KEEPCAPS`; reset at exec.
///
/// # Errors
/// EPERM when securebits forbid it.
pub fn keep_capabilities() -> io::Result<()> {
    Ok(rustix::thread::set_keep_capabilities(true)?)
}

/// Prevents programs that this process executes from gaining privileges. `PR_SET_NO_NEW_PRIVS`.
///
/// # Errors
/// None that the kernel documents.
pub fn set_no_new_privs() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Makes orphans below this process its children instead of init's. `PR_SET_CHILD_SUBREAPER`.
///
/// # Errors
/// None that the kernel documents.
pub fn become_subreaper() -> io::Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

/// Starts an empty session keyring, so that the parent's keys are out of reach. `keyctl(2)`.
///
/// # Errors
/// ENOSYS on a kernel without keys, EDQUOT when the user has too many.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: a null name asks for an anonymous keyring; no other pointer is passed.
    check_syscall(unsafe {
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    })
}

/// Resets every signal to its default action and unblocks all: the state in which a program expects to be started.
///
/// # Errors
/// What `sigprocmask(2)` says.
pub fn reset_signals() -> io::Result<()> {
    // The kernel's `struct sigaction`, all zero: SIG_DFL, no flags, no restorer, nothing blocked. libc's own wrappers refuse the
    // two real-time signals that libc reserves, which a parent may have left ignored.
    let default = [0usize; 4];
    for number in 1..=64 {
        // SAFETY: the kernel reads 32 bytes, which is what the array has; SIGKILL and SIGSTOP are answered with EINVAL.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                default.as_ptr(),
                std::ptr::null_mut::<usize>(),
                size_of::<u64>(),
            )
        };
    }
    let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the whole set that it is given.
    unsafe { libc::sigemptyset(none.as_mut_ptr()) };
    // SAFETY: the set was initialised above; the old mask is not asked for.
    check(unsafe { libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut()) })
}

/// Every signal, as the kernel's `sigset_t`; it leaves out SIGKILL and SIGSTOP by itself. The sets of libc lack the two real-time
/// signals that it reserves.
static ALL_SIGNALS: u64 = u64::MAX;

/// Blocks every signal, so that [`next_signal`](super::bare::next_signal) returns them one after the other. `rt_sigprocmask(2)`.
///
/// # Errors
/// What the system call says: EPERM by a filter that forbids it.
pub fn block_signals() -> io::Result<()> {
    let (how, none) = (libc::SIG_BLOCK, std::ptr::null_mut::<u64>());
    // SAFETY: the kernel reads 8 bytes, which is what the number has; the old mask is not asked for.
    check_syscall(unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const ALL_SIGNALS, none, size_of::<u64>())
    })
}

/// Ignores a signal in this process.
pub fn ignore_signal(signal: Signal) {
    // SAFETY: SIG_IGN installs no handler and the number comes from a type that holds only valid ones.
    unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
}
