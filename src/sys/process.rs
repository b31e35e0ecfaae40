//! Starts, identifies, signals and waits for processes by descriptor.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{PidfdFlags, WaitId, WaitIdOptions};

use crate::spec::Signal;

/// `CLONE_NEW*` and friends for [`Spawn::flags`].
pub mod flags {
    /// Own mount namespace.
    pub const NEW_MOUNT: u64 = 0x0002_0000;
    /// Own cgroup namespace.
    pub const NEW_CGROUP: u64 = 0x0200_0000;
    /// Own UTS namespace.
    pub const NEW_UTS: u64 = 0x0400_0000;
    /// Own IPC namespace.
    pub const NEW_IPC: u64 = 0x0800_0000;
    /// Own user namespace.
    pub const NEW_USER: u64 = 0x1000_0000;
    /// Own pid namespace; the child is its pid 1.
    pub const NEW_PID: u64 = 0x2000_0000;
    /// Own network namespace.
    pub const NEW_NET: u64 = 0x4000_0000;
    pub(super) const PIDFD: u64 = 0x0000_1000;
    /// The child shares its parent's memory, and the parent waits until the child executes or ends. `CLONE_VM`, `CLONE_VFORK`.
    pub(super) const VFORK: u64 = 0x0000_4100;
    pub(super) const INTO_CGROUP: u64 = 0x2_0000_0000;
}

/// `struct clone_args` of `clone3(2)`, version with the cgroup.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// A program to start from an open file, with exactly the descriptors and namespaces that are listed.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// The executable.
    pub exe: BorrowedFd<'a>,
    /// Arguments, the program's name first.
    pub argv: &'a [CString],
    /// Complete environment.
    pub envp: &'a [CString],
    /// The child's descriptor `i` is a copy of entry `i`; it has no others.
    pub fds: &'a [BorrowedFd<'a>],
    /// See [`flags`].
    pub flags: u64,
    /// Directory of the v2 cgroup in which the child is born.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Files that the child writes before it executes, each with one `write(2)` (the id maps of a user namespace, which must be
    /// written before the exec or the capabilities are lost).
    pub writes: &'a [(&'a CStr, Vec<u8>)],
    /// Index of the entry of `fds` to which a failure between clone and exec is reported: a zero byte, then errno as 4 bytes in
    /// native order.
    pub report: usize,
}

/// A child started by [`spawn`].
#[derive(Debug)]
#[must_use = "a child that nobody waits for stays a zombie"]
pub struct Child {
    /// Process id in the caller's pid namespace.
    pub pid: i32,
    /// Becomes readable when the child has ended.
    pub pidfd: OwnedFd,
}

/// Most descriptors that a child can be given.
const MAX_FDS: usize = 16;

/// Lowest number for descriptors that are moved away while they are sorted into place. Low, as `RLIMIT_NOFILE` may be.
const PARKING: RawFd = MAX_FDS as RawFd;

/// Starts a child with `clone3(2)`, on this process's memory until it executes: a copy of a large process's page tables would cost
/// more than everything else together, and on cgroup v2 it would be charged to the task's cgroup.
///
/// The caller must have no other thread: it is suspended until the child has executed or ended.
///
/// # Errors
/// What `clone3(2)` says. A failure in the child is sent to its report descriptor.
///
/// # Panics
/// When `report` is not an index of `fds`, or `fds` has more than 16 entries.
pub fn spawn(plan: &Spawn<'_>) -> io::Result<Child> {
    assert!(
        plan.report < plan.fds.len() && plan.fds.len() <= MAX_FDS,
        "report is an index, at most {MAX_FDS} descriptors"
    );
    let argv = pointers(plan.argv);
    let envp = pointers(plan.envp);
    let mut body = || child(plan, &argv, &envp);
    let mut stack = super::pages::Pages::map(CHILD_STACK)?;
    let mut pidfd: RawFd = -1;
    let args = CloneArgs {
        flags: plan.flags | flags::PIDFD | flags::VFORK | if plan.cgroup.is_some() { flags::INTO_CGROUP } else { 0 },
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.as_mut_ptr() as u64,
        stack_size: stack.len() as u64,
        cgroup: plan.cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
        ..CloneArgs::default()
    };
    // SAFETY: the stack is mapped, aligned at its end, and used by nobody else; all that `body` refers to lives until the
    // child executes or ends, as CLONE_VFORK returns only then; `body` never returns; without another thread nobody races.
    let pid = unsafe { clone_running(&args, &mut body) };
    if pid < 0 {
        return Err(io::Error::from_raw_os_error(i32::try_from(-pid).unwrap_or(libc::EIO)));
    }
    // SAFETY: CLONE_PIDFD made the kernel store a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid: pid as i32, pidfd })
}

/// As [`spawn`], but on a copy of this process's memory, and the child executes nothing before a byte is written to the returned
/// descriptor: until then another process can write the id maps of its user namespace. When the descriptor is closed without that,
/// also by the death of this process, the child ends; it must still be reaped, see [`wait`].
///
/// The caller must have no other thread.
///
/// # Errors
/// What `pipe2(2)` and `clone3(2)` say. A failure in the child is sent to its report descriptor.
///
/// # Panics
/// As [`spawn`].
pub fn spawn_held(plan: &Spawn<'_>) -> io::Result<(Child, OwnedFd)> {
    assert!(
        plan.report < plan.fds.len() && plan.fds.len() <= MAX_FDS,
        "report is an index, at most {MAX_FDS} descriptors"
    );
    let argv = pointers(plan.argv);
    let envp = pointers(plan.envp);
    let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    spawn_copy(plan.flags, plan.cgroup, ours, || {
        match rustix::io::retry_on_intr(|| rustix::io::read(&theirs, &mut [0; 1])) {
            Ok(1) => released(plan, &argv, &envp),
            _ => exit_at_once(127),
        }
    })
}

fn released(plan: &Spawn<'_>, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> ! {
    match child(plan, argv, envp) {}
}

/// `clone3(2)` with a separate stack for the child, on which it calls `body`, which must not return. Returns what the kernel
/// returns: a pid, or a negative errno.
///
/// # Safety
/// `args` asks for `CLONE_VM` and `CLONE_VFORK` and names a stack that nobody else uses, whose end is aligned to 16 bytes.
unsafe fn clone_running<B: FnMut() -> Never>(args: &CloneArgs, body: &mut B) -> isize {
    extern "C" fn run<B: FnMut() -> Never>(body: *mut B) -> ! {
        // SAFETY: the pointer is that of `body`, whose frame waits until this child executes or ends.
        let body = unsafe { &mut *body };
        match body() {}
    }
    let answer: isize;
    // SAFETY: the parent sees what a system call changes and no more; the child goes on at `call` on its own stack, with the
    // registers of its parent, and never comes back. What is needed there are registers that the kernel leaves alone.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => answer,
            in("rdi") std::ptr::from_ref(args),
            in("rsi") size_of::<CloneArgs>(),
            in("r12") run::<B> as extern "C" fn(*mut B) -> !,
            in("r13") std::ptr::from_mut(body),
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "brk #1",
            "2:",
            inlateout("x0") std::ptr::from_ref(args) => answer,
            in("x1") size_of::<CloneArgs>(),
            in("x8") libc::SYS_clone3,
            in("x20") run::<B> as extern "C" fn(*mut B) -> !,
            in("x21") std::ptr::from_mut(body),
        );
    }
    answer
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect()
}

/// The child between clone and exec. Allocates nothing and takes no lock.
fn child(plan: &Spawn<'_>, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> Never {
    let report = plan.fds[plan.report].as_raw_fd();
    let report = park(report).unwrap_or(report);
    let error = match prepare_and_exec(plan, argv, envp) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let mut message = [0u8; 5];
    message[1..].copy_from_slice(&error.to_ne_bytes());
    // SAFETY: writes 5 bytes of a live array; a failure cannot be told to anybody.
    unsafe { libc::write(report, message.as_ptr().cast(), message.len()) };
    // SAFETY: ends the process at once, without running destructors that belong to the parent.
    unsafe { libc::_exit(127) }
}

enum Never {}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn park(fd: RawFd) -> Result<RawFd, i32> {
    // SAFETY: duplicates a descriptor number; a bad one is answered with EBADF.
    let parked = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, PARKING) };
    if parked < 0 { Err(errno()) } else { Ok(parked) }
}

fn prepare_and_exec(
    plan: &Spawn<'_>,
    argv: &[*const libc::c_char],
    envp: &[*const libc::c_char],
) -> Result<Never, i32> {
    for (path, bytes) in plan.writes {
        // SAFETY: a NUL-terminated path; the result is checked.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(errno());
        }
        // SAFETY: the buffer is live and its length is passed with it.
        if unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) } < 0 {
            return Err(errno());
        }
        // SAFETY: closes the descriptor opened above, once.
        unsafe { libc::close(fd) };
    }
    let exe = park(plan.exe.as_raw_fd())?;
    let mut parked = [-1; MAX_FDS];
    for (slot, fd) in parked.iter_mut().zip(plan.fds) {
        *slot = park(fd.as_raw_fd())?;
    }
    for (target, fd) in parked.iter().enumerate().take(plan.fds.len()) {
        // SAFETY: both numbers are this process's own; dup2 closes whatever was at the target.
        #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below 16")]
        if unsafe { libc::dup2(*fd, target as RawFd) } < 0 {
            return Err(errno());
        }
    }
    close_on_exec_from(plan.fds.len()).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))?;
    // SAFETY: argv and envp are null-terminated arrays of pointers to C strings that live in `plan`; the path is empty
    // and AT_EMPTY_PATH makes the descriptor itself the program.
    unsafe { libc::syscall(libc::SYS_execveat, exe, c"".as_ptr(), argv.as_ptr(), envp.as_ptr(), libc::AT_EMPTY_PATH) };
    Err(errno())
}

/// Stack size for what a child on this process's memory calls before it executes.
const CHILD_STACK: usize = 256 * 1024;

/// Starts a sibling of this process, a child of its parent, that runs `body`, which should execute a program; if `body` returns,
/// the child ends with status 127. This process waits until the child executes or ends. `clone(2)` with `CLONE_PARENT`, `CLONE_VM`
/// and `CLONE_VFORK`.
///
/// The caller must have no other thread: `body` runs in this process's memory.
///
/// # Errors
/// What `clone(2)` says; ENOMEM for a pid namespace whose first process has ended.
pub fn spawn_sibling(body: &mut dyn FnMut()) -> io::Result<Child> {
    spawn_on_this_memory(libc::CLONE_PARENT, body)
}

/// As [`spawn_sibling`], but the child is one of this process.
///
/// # Errors
/// What `clone(2)` says.
pub fn spawn_below(body: &mut dyn FnMut()) -> io::Result<Child> {
    spawn_on_this_memory(0, body)
}

fn spawn_on_this_memory(parent: libc::c_int, mut body: &mut dyn FnMut()) -> io::Result<Child> {
    extern "C" fn run(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is that of `body` below, whose frame waits until this child executes or ends.
        let body = unsafe { &mut *body.cast::<&mut dyn FnMut()>() };
        body();
        127
    }
    let mut stack = super::pages::Pages::map(CHILD_STACK)?;
    let mut pidfd: RawFd = -1;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | parent | libc::CLONE_PIDFD | libc::SIGCHLD;
    let top = stack.as_mut_ptr_range().end;
    // SAFETY: the stack is mapped, page-aligned at its end, used by nobody else, and outlives the child's use of it because
    // CLONE_VFORK returns only then; `body` and `pidfd` are alive as long; without another thread nobody races.
    let pid = unsafe {
        libc::clone(run, top.cast(), flags, std::ptr::from_mut(&mut body).cast(), std::ptr::from_mut(&mut pidfd))
    };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: CLONE_PIDFD made the kernel store a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid, pidfd })
}

/// Writes a file of `/proc/PID` with one `write(2)`, such as `uid_map` or `setgroups`; see `user_namespaces(7)`.
///
/// # Errors
/// What `open(2)` and `write(2)` say: EPERM for ids that this process may not map.
pub fn write_proc_file(pid: i32, name: &str, text: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/{pid}/{name}"), text)
}

/// Calls `body` in a process of its own that shares this one's memory and descriptors, and waits for its end: namespaces that it
/// enters end with it, and descriptors that it opens stay. `clone(2)` with `CLONE_VM`, `CLONE_VFORK` and `CLONE_FILES`, without a
/// signal to this process.
///
/// This process may have other threads. `body` must only make system calls: no allocation, no lock, no panic.
///
/// # Errors
/// What `clone(2)` says.
pub fn apart(mut body: &mut dyn FnMut()) -> io::Result<()> {
    extern "C" fn run(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is that of `body` below, whose frame waits until this process has ended.
        let body = unsafe { &mut *body.cast::<&mut dyn FnMut()>() };
        body();
        0
    }
    let mut stack = super::pages::Pages::map(CHILD_STACK)?;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    let top = stack.as_mut_ptr_range().end;
    // SAFETY: the stack is mapped, page-aligned at its end, used by nobody else, and outlives the process because CLONE_VFORK
    // returns only at its end; `body` is alive as long. The calling thread is suspended, and other threads are not disturbed by
    // system calls.
    let pid = unsafe { libc::clone(run, top.cast(), flags, std::ptr::from_mut(&mut body).cast()) };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    // Without a signal to its parent it is seen by nobody who waits for any child.
    use nix::sys::wait::{WaitPidFlag, waitpid};
    while waitpid(nix::unistd::Pid::from_raw(pid), Some(WaitPidFlag::__WALL)) == Err(nix::errno::Errno::EINTR) {}
    Ok(())
}

/// Starts a child in a new user namespace that only waits until the returned descriptor is closed, also by the death of this
/// process. It must still be reaped, see [`wait`].
///
/// The caller must have no other thread.
///
/// # Errors
/// What `pipe2(2)` and `clone3(2)` say.
pub fn spawn_in_user_namespace() -> io::Result<(Child, OwnedFd)> {
    let (theirs, ours) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    spawn_copy(flags::NEW_USER, None, ours, || {
        // End of file, or an error: the other end is closed in any case.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&theirs, &mut [0; 1]));
    })
}

/// Starts a child, in new namespaces named by [`flags`] and in this v2 cgroup, that runs `body` on a copy of this process's memory
/// and then ends with status 0. `ours`, this process's end of a channel to it, is closed in the child and returned here. The child
/// must be reaped, see [`wait`].
///
/// The caller must have no other thread.
///
/// # Errors
/// What `clone3(2)` says.
pub fn spawn_copy(
    namespaces: u64,
    cgroup: Option<BorrowedFd<'_>>,
    ours: OwnedFd,
    body: impl FnOnce(),
) -> io::Result<(Child, OwnedFd)> {
    let mut pidfd: RawFd = -1;
    let args = CloneArgs {
        flags: namespaces | flags::PIDFD | if cgroup.is_some() { flags::INTO_CGROUP } else { 0 },
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        cgroup: cgroup.map_or(0, |fd| fd.as_raw_fd() as u64),
        ..CloneArgs::default()
    };
    // SAFETY: without CLONE_VM the child has its own copy of this memory; the struct is laid out as clone3(2) documents and
    // `pidfd` outlives the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, std::ptr::from_ref(&args), size_of::<CloneArgs>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            body();
            exit_at_once(0)
        }
        pid => {
            // SAFETY: CLONE_PIDFD made the kernel store a new descriptor that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok((Child { pid: pid as i32, pidfd }, ours))
        }
    }
}

/// Marks every descriptor from `first` on close-on-exec. `close_range(2)`.
///
/// # Errors
/// ENOSYS or EINVAL before Linux 5.11.
pub fn close_on_exec_from(first: usize) -> io::Result<()> {
    if super::mutant::on("a03") || super::mutant::on("a02") {
        return Ok(());
    }
    // SAFETY: takes numbers only; closes nothing, so no owner of a descriptor is surprised.
    let rc = unsafe {
        libc::syscall(libc::SYS_close_range, first as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Closes every descriptor of a process that opens none afterwards and never returns to their owners. `close_range(2)`.
///
/// # Errors
/// ENOSYS before Linux 5.9.
pub fn close_all() -> io::Result<()> {
    // SAFETY: takes numbers only. Owners of descriptors exist, but the caller never gets back to them, so none is used or closed
    // again.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Replaces the arguments that `/proc/PID/cmdline` shows of this process by one word, or by nothing where it is longer than they
/// are. The process must not read its arguments again, and have no other thread.
pub fn hide_arguments(name: &str) {
    unsafe extern "C" {
        // glibc's, see program_invocation_name(3): what argv[0] points to.
        static program_invocation_name: *mut libc::c_char;
    }
    let length: usize = std::env::args_os().map(|argument| argument.len() + 1).sum();
    // SAFETY: set before main, and changed by nobody.
    let start = unsafe { program_invocation_name };
    if start.is_null() || length == 0 {
        return;
    }
    // SAFETY: execve(2) puts the arguments one behind the other, each with its NUL, so `length` writable bytes begin at the first
    // of them; nobody has a reference to them, as std copies them out.
    unsafe { std::ptr::write_bytes(start, 0, length) };
    if name.len() < length {
        // SAFETY: as above, and a NUL follows.
        unsafe { std::ptr::copy_nonoverlapping(name.as_ptr().cast(), start, name.len()) };
    }
}

/// Takes over a descriptor that this process was started with.
///
/// Call it once per number, at the start of a role, for numbers that the role's starter promised.
#[must_use]
pub fn inherited_fd(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD reads a flag of a number; EBADF says that there is no such descriptor.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: the descriptor exists, the role's starter left it to this process, and each role takes it once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Executes a program in place of this process. Returns only when that failed. `execve(2)`.
#[must_use]
pub fn execute(path: &CStr, argv: &[CString], envp: &[CString]) -> io::Error {
    let argv = pointers(argv);
    let envp = pointers(envp);
    // SAFETY: three C strings or null-terminated arrays of them, all alive during the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Ends this process without running destructors that belong to the process from which it was cloned. `_exit(2)`.
pub fn exit_at_once(status: i32) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(status) }
}

/// Opens a descriptor for a child or any process. `pidfd_open(2)`.
///
/// # Errors
/// ESRCH when there is no such process: the number is unused, or belongs to a thread that is not a group leader.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::NotFound)?;
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        // The error for a thread, and on older kernels for a process that is just being reaped.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Err(rustix::io::Errno::SRCH.into()),
        other => Ok(other?),
    }
}

/// Sends a signal to the process of this descriptor, never to a later one with the same pid.
///
/// # Errors
/// ESRCH when it has ended.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    // SAFETY: passes two numbers and a null siginfo, which means "as kill(2) would".
    let rc = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal.number(),
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether [`send_signal`] works for this process; sends nothing.
///
/// # Errors
/// ENOSYS or EPERM where the kernel does not have it, or a filter denies it; ESRCH when the process has ended.
pub fn check_signal(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: passes numbers and a null siginfo; signal 0 is none.
    let rc = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, std::ptr::null::<libc::siginfo_t>(), 0)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends a signal to every process of a group. `kill(2)` with a negative pid.
///
/// # Errors
/// ESRCH when the group is empty.
pub fn signal_group(leader: i32, signal: Signal) -> io::Result<()> {
    if leader <= 1 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: takes numbers only; the guard above keeps 0, -1 and init out.
    let rc = unsafe { libc::kill(-leader, signal.number()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How a child ended: an exit status or a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitStatus {
    /// Exit status, when it exited.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// A core file was written, or passed to the program that handles them.
    pub dumped: bool,
}

impl From<rustix::process::WaitIdStatus> for WaitStatus {
    fn from(status: rustix::process::WaitIdStatus) -> WaitStatus {
        WaitStatus { code: status.exit_status(), signal: status.terminating_signal(), dumped: status.dumped() }
    }
}

impl WaitStatus {
    /// From the number that `wait4(2)` gives.
    #[must_use]
    pub fn from_raw(raw: i32) -> WaitStatus {
        let status = <std::process::ExitStatus as std::os::unix::process::ExitStatusExt>::from_raw(raw);
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        WaitStatus { code: status.code(), signal, dumped: std::os::unix::process::ExitStatusExt::core_dumped(&status) }
    }
}

/// `struct pidfd_info` of `<linux/pidfd.h>` in its first form: the mask first, the exit code in the last four of its bytes.
type PidfdInfo = [u64; 8];

/// The exit status of a reaped process that need not be a child of this one; `None` before it is reaped, and on kernels before
/// 6.15, which do not provide it. `ioctl_pidfd(2)`, `PIDFD_GET_INFO`.
#[must_use]
pub fn status_of_reaped(pidfd: BorrowedFd<'_>) -> Option<WaitStatus> {
    const INFO_EXIT: u64 = 1 << 3;
    nix::ioctl_readwrite!(pidfd_get_info, 0xff, 11, PidfdInfo);
    let mut info: PidfdInfo = [INFO_EXIT, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: these 64 bytes have the size of the kernel's first form of the struct, which is part of the request; they are
    // alive during the call, which writes no more than that.
    unsafe { pidfd_get_info(pidfd.as_raw_fd(), &raw mut info) }.ok()?;
    let [.., a, b, c, d] = info[7].to_ne_bytes();
    (info[0] & INFO_EXIT != 0).then(|| WaitStatus::from_raw(i32::from_ne_bytes([a, b, c, d])))
}

/// Reaps a child that has ended; `None` while it runs. `waitid(P_PIDFD)`.
///
/// # Errors
/// ECHILD when it is not a child of this process or was reaped before.
pub fn try_wait(pidfd: BorrowedFd<'_>) -> io::Result<Option<WaitStatus>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let status = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(pidfd), options))?;
    Ok(status.map(WaitStatus::from))
}

/// Waits for the end of a child and reaps it. `waitid(P_PIDFD)`.
///
/// # Errors
/// ECHILD when it is not a child of this process or was reaped before.
pub fn wait(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(pidfd), WaitIdOptions::EXITED))?;
    Ok(())
}

/// The exit status of a child, without reaping it; `None` while it runs. `waitid(P_PIDFD, WNOWAIT)`.
///
/// # Errors
/// As [`try_wait`].
pub fn peek(pidfd: BorrowedFd<'_>) -> io::Result<Option<WaitStatus>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(pidfd), options))?;
    Ok(status.map(WaitStatus::from))
}

/// Starts a command as leader of a new session, so that signals of our terminal do not reach it. `setsid(2)`.
///
/// # Errors
/// What starting a process says.
pub fn spawn_in_session(command: &mut Command) -> io::Result<std::process::Child> {
    // SAFETY: the closure runs between fork and exec and makes one async-signal-safe call.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    command.spawn()
}

/// Leaves descriptors open in the command, under their numbers; in this process they stay close-on-exec.
pub fn leave_open(command: &mut Command, descriptors: &[std::sync::Arc<OwnedFd>]) {
    let descriptors = descriptors.to_vec();
    // SAFETY: the closure runs between fork and exec and makes async-signal-safe calls only.
    unsafe {
        command.pre_exec(move || {
            for descriptor in &descriptors {
                rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

/// Makes the kernel kill the command when the thread that starts it ends, for whatever reason. Not effective for a command that
/// gains privileges at exec: the kernel lets it continue. `prctl(PR_SET_PDEATHSIG)`.
pub fn die_with_parent(command: &mut Command) {
    let parent = rustix::process::getpid();
    // SAFETY: the closure runs between fork and exec and makes two async-signal-safe calls.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have ended before that; then no signal would be sent.
            if rustix::process::getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
        });
    }
}

/// Moves this process into new namespaces, named by [`flags`]. `unshare(2)`.
///
/// # Errors
/// EPERM without `CAP_SYS_ADMIN` or where the kernel forbids user namespaces, EINVAL for one that the kernel lacks and, with
/// [`flags::NEW_USER`], in a process with threads.
pub fn unshare(namespaces: u64) -> io::Result<()> {
    // SAFETY: takes flags only; those of namespaces leave memory and descriptors alone.
    let rc = unsafe { libc::unshare(namespaces as libc::c_int) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The pid of any child that has ended and was not reaped yet. `waitid(P_ALL, WNOWAIT)`.
#[must_use]
pub fn peek_ended_child() -> Option<i32> {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    // ECHILD: there is no child at all.
    waitid(Id::All, flags).ok()?.pid().map(nix::unistd::Pid::as_raw)
}

/// Reaps this child if it has ended. `waitpid(2)`.
pub fn reap(pid: i32) {
    // ECHILD: it was reaped before.
    let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(pid), Some(nix::sys::wait::WaitPidFlag::WNOHANG));
}

/// Waits for this child to end and reaps it; returns the signal that ended it. `waitpid(2)`.
#[must_use]
pub fn wait_for(pid: i32) -> Option<i32> {
    use nix::sys::wait::{WaitStatus as Status, waitpid};
    loop {
        match waitpid(nix::unistd::Pid::from_raw(pid), None) {
            Err(nix::errno::Errno::EINTR) => {}
            Ok(Status::Signaled(_, signal, _)) => return Some(signal as i32),
            // ECHILD: it was reaped before.
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_apart_opens_stays_open() {
        let (mut opened, mut pid) = (Err(rustix::io::Errno::CHILD), None);
        apart(&mut || {
            pid = Some(rustix::process::getpid());
            opened = rustix::fs::open("/dev/null", rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty());
        })
        .unwrap();
        assert!(pid.is_some_and(|pid| pid != rustix::process::getpid()));
        assert_eq!(rustix::io::read(opened.unwrap(), &mut [0; 1]), Ok(0));
    }
}
