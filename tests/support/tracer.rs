//! Stops a run at the n-th system call of one of its processes, to kill the process there or to let the call fail.
//!
//! ptrace(2) by the test itself: strace counts calls per process and cannot tell an executor from its shim.
#![cfg(target_arch = "x86_64")]

use std::collections::HashMap;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Whose system calls are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The traced command: `agentbin run`, or another host of drivers.
    Host,
    /// Executors, from their birth.
    Executor,
    /// Shims, of launch and sessions, from the clone to the exec of the command.
    Shim,
    /// What shims became.
    Task,
}

/// What is done at which call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: a run that is only counted.
    None,
    /// SIGKILL to the process before its n-th call (from 1) is done.
    Kill(Role, usize),
    /// The n-th call with this number, or the next one that can, is not done and fails, so or so (see [`errnos`]).
    Fail(Role, i64, usize, usize),
    /// As many calls of the role that make a descriptor, from the n-th call on, fail so.
    FailDescriptors(Role, usize, usize, i32),
    /// Every call with this number fails so, of a role.
    FailAll(Role, i64, i32),
}

impl Fault {
    fn role(self) -> Option<Role> {
        match self {
            Fault::None => None,
            Fault::Kill(role, _)
            | Fault::Fail(role, ..)
            | Fault::FailDescriptors(role, ..)
            | Fault::FailAll(role, ..) => Some(role),
        }
    }
}

/// What became of a traced run.
#[derive(Debug, Default)]
pub struct Traced {
    /// The command's exit status; 128 + the signal that ended it.
    pub status: i32,
    /// The call at which the fault was put in first: its number, the errno, and what its first argument is a descriptor of.
    pub struck: Option<(i64, i32, String)>,
    /// Numbers of the calls, in order, of the counted role (of all of them without a fault).
    pub calls: HashMap<Role, Vec<i64>>,
    /// Ends that a program of ours must never have, and panics that were seen to be written.
    pub crashes: Vec<String>,
    /// It was killed for not coming to an end.
    pub hung: bool,
}

#[derive(Debug, Clone)]
struct Tracee {
    role: Role,
    group: Pid,
    watched: bool,
    failing: Option<i32>,
}

struct Tracer {
    root: Pid,
    fault: Fault,
    tracees: HashMap<Pid, Tracee>,
    /// Stopped children whose parent has not yet told of them.
    unknown: Vec<Pid>,
    traced: Traced,
    failed: usize,
    excused: bool,
}

const OPTIONS: Options = Options::PTRACE_O_TRACESYSGOOD
    .union(Options::PTRACE_O_TRACEFORK)
    .union(Options::PTRACE_O_TRACEVFORK)
    .union(Options::PTRACE_O_TRACECLONE)
    .union(Options::PTRACE_O_TRACEEXEC);

/// Runs `command` under the fault until it ends. `notice` is called with the command's pid, on another thread, until it
/// says that it has done its part or the command has ended; a command that lives longer than `patience` is killed.
///
/// Everything that still lives when the command has ended is let go.
pub fn trace(
    command: &Command,
    output: &Path,
    fault: Fault,
    patience: Duration,
    notice: impl Fn(Pid) -> bool + Send,
) -> Traced {
    // A shell that waits to be traced, then becomes the command.
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "read go; exec \"$@\" </dev/null", "sh"]).arg(command.get_program()).args(command.get_args());
    shell.env_clear().envs(std::env::vars_os());
    for (key, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    let file = |name: &str| std::fs::File::create(output.join(name)).unwrap();
    shell.stdin(Stdio::piped()).stdout(file("stdout")).stderr(file("stderr")).process_group(0);
    #[expect(clippy::zombie_processes, reason = "the tracer waits for all that it traces")]
    let mut child = shell.spawn().unwrap();
    let root = Pid::from_raw(i32::try_from(child.id()).unwrap());
    ptrace::seize(root, OPTIONS).unwrap();
    std::io::Write::write_all(child.stdin.as_mut().unwrap(), b"go\n").unwrap();
    drop(child.stdin.take());

    let mut tracer = Tracer {
        root,
        fault,
        tracees: HashMap::from([(root, Tracee { role: Role::Task, group: root, watched: false, failing: None })]),
        unknown: Vec::new(),
        traced: Traced::default(),
        failed: 0,
        excused: false,
    };
    let (ended, end) = channel::<()>();
    let pidfd = agentbin::sys::process::open_pidfd(root.as_raw()).unwrap();
    std::thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let deadline = Instant::now() + patience;
            let mut noticed = false;
            loop {
                match end.recv_timeout(Duration::from_millis(2)) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return false,
                }
                noticed = noticed || notice(root);
                if Instant::now() > deadline {
                    let _ = agentbin::sys::process::send_signal(pidfd.as_fd(), agentbin::spec::Signal::KILL);
                    return true;
                }
            }
        });
        tracer.run();
        drop(ended);
        tracer.traced.hung = watcher.join().unwrap();
    });
    tracer.let_go();
    tracer.traced
}

fn wait(flags: WaitPidFlag) -> Result<WaitStatus, Errno> {
    // Only of this thread: others trace runs of their own.
    waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD | flags))
}

impl Tracer {
    fn run(&mut self) {
        loop {
            let status = match wait(WaitPidFlag::empty()) {
                Err(Errno::EINTR) => continue,
                status => status.unwrap(),
            };
            match status {
                WaitStatus::Exited(pid, code) => {
                    self.ended(pid, code, None);
                    if pid == self.root {
                        self.traced.status = code;
                        return;
                    }
                }
                WaitStatus::Signaled(pid, signal, _) => {
                    self.ended(pid, 0, Some(signal));
                    if pid == self.root {
                        self.traced.status = 128 + signal as i32;
                        return;
                    }
                }
                WaitStatus::PtraceEvent(pid, signal, event) => self.event(pid, signal, event),
                WaitStatus::PtraceSyscall(pid) => self.call(pid),
                WaitStatus::Stopped(pid, signal) => self.resume(pid, Some(signal)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn ended(&mut self, pid: Pid, code: i32, signal: Option<Signal>) {
        self.unknown.retain(|p| *p != pid);
        let Some(tracee) = self.tracees.remove(&pid) else { return };
        let crashed = code == 101
            || matches!(
                signal,
                Some(Signal::SIGABRT | Signal::SIGSEGV | Signal::SIGBUS | Signal::SIGILL | Signal::SIGSYS)
            );
        if crashed && tracee.role != Role::Task && !self.excused {
            self.traced.crashes.push(format!("{:?} ended with {code} {signal:?}", tracee.role));
        }
    }

    fn event(&mut self, pid: Pid, signal: Signal, event: i32) {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                // The parent may have been killed in between.
                if let Ok(child) = ptrace::getevent(pid) {
                    self.born(pid, Pid::from_raw(i32::try_from(child).unwrap()));
                }
                self.resume(pid, None);
            }
            libc::PTRACE_EVENT_EXEC => {
                self.executed(pid);
                self.resume(pid, None);
            }
            libc::PTRACE_EVENT_STOP if signal != Signal::SIGTRAP => {
                // It is stopped by a signal and is to stay so.
                self.tracees.remove(&pid);
                let _ = ptrace::detach(pid, None);
            }
            _ if self.tracees.contains_key(&pid) => self.resume(pid, None),
            _ => self.unknown.push(pid),
        }
    }

    fn born(&mut self, parent: Pid, child: Pid) {
        let Some(of) = self.tracees.get(&parent).cloned() else { return };
        let group =
            procfs::process::Process::new(child.as_raw()).and_then(|p| p.status()).map(|s| Pid::from_raw(s.tgid));
        let group = group.unwrap_or(child);
        let role = match of.role {
            role if group == of.group => role,
            Role::Host => Role::Executor,
            Role::Executor | Role::Shim => Role::Shim,
            Role::Task => Role::Task,
        };
        self.tracees.insert(child, Tracee { role, group, watched: self.watches(role), failing: None });
        if let Some(at) = self.unknown.iter().position(|p| *p == child) {
            self.unknown.remove(at);
            self.resume(child, None);
        }
    }

    fn executed(&mut self, pid: Pid) {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let second = arguments.split(|b| *b == 0).nth(1).unwrap_or_default().to_vec();
        let Some(tracee) = self.tracees.get(&pid) else { return };
        let role = match second.as_slice() {
            _ if pid == self.root => Role::Host,
            b"executor" => Role::Executor,
            b"libcontainer-shim" => Role::Shim,
            _ => Role::Task,
        };
        let _ = tracee;
        let watched = self.watches(role);
        self.tracees.insert(pid, Tracee { role, group: pid, watched, failing: None });
    }

    fn watches(&self, role: Role) -> bool {
        match self.fault.role() {
            None => role != Role::Task,
            Some(Role::Task) => false,
            // After a kill there is nothing more to be seen.
            Some(wanted) => wanted == role && !(matches!(self.fault, Fault::Kill(..)) && self.traced.struck.is_some()),
        }
    }

    fn resume(&self, pid: Pid, signal: Option<Signal>) {
        let watched = self.tracees.get(&pid).is_some_and(|t| t.watched);
        // ESRCH: it was killed while it was stopped.
        let _ = if watched { ptrace::syscall(pid, signal) } else { ptrace::cont(pid, signal) };
    }

    fn call(&mut self, pid: Pid) {
        let (Ok(info), Ok(mut registers)) = (ptrace::syscall_info(pid), ptrace::getregs(pid)) else { return };
        let Some(tracee) = self.tracees.get_mut(&pid) else { return };
        if info.op == libc::PTRACE_SYSCALL_INFO_EXIT {
            if let Some(errno) = tracee.failing.take() {
                registers.rax = i64::from(-errno).cast_unsigned();
                let _ = ptrace::setregs(pid, registers);
            }
            return self.resume(pid, None);
        }
        let number = registers.orig_rax.cast_signed();
        let (role, group) = (tracee.role, tracee.group);
        let calls = self.traced.calls.entry(role).or_default();
        calls.push(number);
        let (count, of_this) = (calls.len(), calls.iter().filter(|call| **call == number).count());
        if number == libc::SYS_write && registers.rdi == 2 {
            self.look_for_panic(pid, role, registers.rsi, registers.rdx);
        }
        let fails = match self.fault {
            Fault::Kill(_, at) if count == at => {
                self.traced.struck = Some((number, 0, target(pid, registers.rdi)));
                for tracee in self.tracees.values_mut() {
                    tracee.watched = false;
                }
                let _ = kill(group, Signal::SIGKILL);
                None
            }
            Fault::Fail(_, which, at, choice) if number == which && of_this >= at && self.failed == 0 => {
                let errnos = possible(pid, number, registers.rdi, registers.rdx);
                (!errnos.is_empty()).then(|| errnos[choice % errnos.len()])
            }
            Fault::FailDescriptors(_, at, calls, errno)
                if count >= at && self.failed < calls && makes_descriptor(number, registers.rsi) =>
            {
                Some(errno)
            }
            Fault::FailAll(_, which, errno) if number == which => Some(errno),
            _ => None,
        };
        if let Some(errno) = fails {
            self.failed += 1;
            self.traced.struck.get_or_insert((number, errno, target(pid, registers.rdi)));
            registers.orig_rax = u64::MAX;
            if ptrace::setregs(pid, registers).is_ok()
                && let Some(tracee) = self.tracees.get_mut(&pid)
            {
                tracee.failing = Some(errno);
            }
        }
        self.resume(pid, None);
    }

    fn look_for_panic(&mut self, pid: Pid, role: Role, address: u64, length: u64) {
        let mut buffer = vec![0; usize::try_from(length.min(4096)).unwrap()];
        let Ok(memory) = std::fs::File::open(format!("/proc/{pid}/mem")) else { return };
        let Ok(read) = memory.read_at(&mut buffer, address) else { return };
        let text = String::from_utf8_lossy(&buffer[..read]);
        // Not ours: tokio asserts these, and its stable interface has no form of either call that returns an error. The first
        // is the pair of sockets for signal handlers, made by the runtime's builder; the second is the first thread of
        // its pool for blocking work. The process ends with this text on its stderr, which its host quotes.
        let excused = ["failed to create UnixStream", "OS can't spawn worker thread"];
        if self.excused || excused.iter().any(|excuse| text.contains(excuse)) {
            self.excused = true;
        } else if text.contains("panicked at") || text.contains("memory allocation of") {
            self.traced.crashes.push(format!("{role:?}: {text}"));
        }
    }

    /// What goes on after the command is no longer traced.
    fn let_go(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        for pid in self.tracees.keys() {
            let _ = ptrace::interrupt(*pid);
        }
        for pid in self.unknown.drain(..) {
            let _ = ptrace::detach(pid, None);
        }
        loop {
            match wait(WaitPidFlag::WNOHANG) {
                Err(Errno::ECHILD) => return,
                Ok(WaitStatus::StillAlive) => {
                    assert!(Instant::now() < deadline, "cannot let go of {:?}", self.tracees);
                    std::thread::sleep(Duration::from_micros(500));
                }
                Ok(WaitStatus::Exited(pid, code)) => self.ended(pid, code, None),
                Ok(WaitStatus::Signaled(pid, signal, _)) => self.ended(pid, 0, Some(signal)),
                Ok(WaitStatus::Stopped(pid, signal)) => self.detach(pid, Some(signal)),
                Ok(WaitStatus::PtraceEvent(pid, ..) | WaitStatus::PtraceSyscall(pid)) => self.detach(pid, None),
                Err(Errno::EINTR) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn detach(&mut self, pid: Pid, signal: Option<Signal>) {
        // A call that was taken out of its registers has to be answered.
        if self.tracees.get_mut(&pid).is_some_and(|t| t.failing.is_some())
            && let Ok(mut registers) = ptrace::getregs(pid)
        {
            registers.rax = i64::from(-libc::EIO).cast_unsigned();
            let _ = ptrace::setregs(pid, registers);
        }
        let _ = ptrace::detach(pid, signal);
    }
}

/// What this very call may fail with: not everything that can be read or written knows every error.
fn possible(pid: Pid, number: i64, descriptor: u64, length: u64) -> Vec<i32> {
    let mut errnos = errnos(number).to_vec();
    let reads = [libc::SYS_read, libc::SYS_pread64, libc::SYS_readv, libc::SYS_recvmsg, libc::SYS_recvfrom];
    let writes = [libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev, libc::SYS_sendmsg, libc::SYS_sendto];
    if !reads.contains(&number) && !writes.contains(&number) {
        return errnos;
    }
    let target = target(pid, descriptor);
    let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap_or("0").trim().to_owned();
    let waits = i32::from_str_radix(&flags, 8).unwrap_or(0) & libc::O_NONBLOCK == 0;
    if target.starts_with("anon_inode:") || target.starts_with("/dev/") && !target.starts_with("/dev/pts") {
        return Vec::new();
    }
    // A runtime that tells itself of a signal: the signal would be lost, as it would be without memory.
    if target.starts_with("socket:") && number == libc::SYS_sendto && length == 1 {
        return Vec::new();
    }
    if target.starts_with("socket:") || target.starts_with("pipe:") {
        errnos = if reads.contains(&number) { Vec::new() } else { vec![libc::ENOMEM] };
        if waits {
            errnos.push(libc::EINTR);
        }
    }
    errnos
}

fn target(pid: Pid, descriptor: u64) -> String {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{}", descriptor & 0xffff_ffff));
    link.map(|target| target.display().to_string()).unwrap_or_default()
}

fn makes_descriptor(number: i64, argument: u64) -> bool {
    match number {
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_open
        | libc::SYS_socket
        | libc::SYS_socketpair
        | libc::SYS_pipe2
        | libc::SYS_memfd_create
        | libc::SYS_epoll_create1
        | libc::SYS_eventfd2
        | libc::SYS_pidfd_open
        | libc::SYS_accept4
        | libc::SYS_open_tree
        | libc::SYS_fsopen
        | libc::SYS_fsmount
        | libc::SYS_dup => true,
        libc::SYS_fcntl => argument == libc::F_DUPFD_CLOEXEC as u64,
        _ => false,
    }
}

/// What a call with this number may fail with, in this sweep; nothing where a failure cannot happen or means nothing.
pub fn errnos(number: i64) -> &'static [i32] {
    use libc::{EAGAIN, EINTR, EIO, EMFILE, ENOMEM, ENOSPC};
    match number {
        libc::SYS_openat | libc::SYS_openat2 | libc::SYS_open => &[ENOMEM, EMFILE, EIO, ENOSPC, EINTR],
        libc::SYS_socket
        | libc::SYS_socketpair
        | libc::SYS_pipe2
        | libc::SYS_memfd_create
        | libc::SYS_epoll_create1
        | libc::SYS_eventfd2
        | libc::SYS_pidfd_open
        | libc::SYS_open_tree
        | libc::SYS_fsopen
        | libc::SYS_fsmount
        | libc::SYS_accept4
        | libc::SYS_dup
        | libc::SYS_fcntl => &[EMFILE, ENOMEM],
        libc::SYS_clone3 | libc::SYS_clone | libc::SYS_vfork | libc::SYS_fork => &[ENOMEM, EAGAIN],
        libc::SYS_mkdir | libc::SYS_mkdirat | libc::SYS_mknodat | libc::SYS_symlinkat => &[ENOSPC, ENOMEM, EIO],
        libc::SYS_mount
        | libc::SYS_move_mount
        | libc::SYS_mount_setattr
        | libc::SYS_fsconfig
        | libc::SYS_pivot_root => &[ENOMEM],
        libc::SYS_umount2 | libc::SYS_setns | libc::SYS_unshare | libc::SYS_chdir | libc::SYS_fchdir => &[ENOMEM],
        libc::SYS_read | libc::SYS_pread64 | libc::SYS_recvmsg | libc::SYS_recvfrom | libc::SYS_readv => {
            &[EINTR, EIO, ENOMEM]
        }
        libc::SYS_write | libc::SYS_pwrite64 | libc::SYS_sendmsg | libc::SYS_sendto | libc::SYS_writev => {
            &[EINTR, EIO, ENOSPC]
        }
        libc::SYS_poll | libc::SYS_ppoll | libc::SYS_epoll_wait | libc::SYS_epoll_pwait => &[EINTR],
        libc::SYS_waitid | libc::SYS_wait4 => &[EINTR],
        libc::SYS_epoll_ctl => &[ENOMEM, ENOSPC],
        libc::SYS_fstat | libc::SYS_newfstatat | libc::SYS_statx | libc::SYS_readlink | libc::SYS_readlinkat => {
            &[ENOMEM, EIO]
        }
        libc::SYS_getdents64 => &[EIO, ENOMEM],
        libc::SYS_unlink
        | libc::SYS_unlinkat
        | libc::SYS_rename
        | libc::SYS_renameat
        | libc::SYS_rmdir
        | libc::SYS_ftruncate
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_chmod
        | libc::SYS_fchmodat
        | libc::SYS_fchmod
        | libc::SYS_fchown
        | libc::SYS_fchownat
        | libc::SYS_chown => &[EIO, ENOSPC],
        libc::SYS_execve | libc::SYS_execveat => &[ENOMEM, EIO],
        libc::SYS_bind | libc::SYS_listen | libc::SYS_connect => &[ENOMEM],
        libc::SYS_setgroups | libc::SYS_setresuid | libc::SYS_setresgid | libc::SYS_capset => &[ENOMEM],
        _ => &[],
    }
}

/// Calls that an old kernel, or a filter around us, does not know, and the names to speak of them.
pub const NEW_CALLS: &[(i64, &str)] = &[
    (libc::SYS_openat2, "openat2"),
    (libc::SYS_close_range, "close_range"),
    (libc::SYS_clone3, "clone3"),
    (libc::SYS_pidfd_open, "pidfd_open"),
    (libc::SYS_pidfd_send_signal, "pidfd_send_signal"),
    (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_fsconfig, "fsconfig"),
    (libc::SYS_fsmount, "fsmount"),
    (libc::SYS_memfd_create, "memfd_create"),
    (libc::SYS_statx, "statx"),
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_seccomp, "seccomp"),
    (libc::SYS_landlock_create_ruleset, "landlock_create_ruleset"),
];
