//! The default filter: allows the calls of ordinary programs, allows calls that belong to a capability if the task has it, denies
//! what has no place in a task, and answers ENOSYS to calls that are not listed here.

use caps::Capability::{
    self, CAP_BPF, CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_NET_RAW, CAP_PERFMON, CAP_SYS_ADMIN, CAP_SYS_BOOT,
    CAP_SYS_CHROOT, CAP_SYS_MODULE, CAP_SYS_NICE, CAP_SYS_PACCT, CAP_SYS_PTRACE, CAP_SYS_RAWIO, CAP_SYS_TIME,
    CAP_SYS_TTY_CONFIG, CAP_SYSLOG,
};

use super::filter::{Action, Arch, Check, Decision, Policy, Rule, Test};
use super::{Machine, SetId};
use crate::sys::mutant;

/// The decision for a group of system calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    Allowed,
    /// Allowed to a task that holds one of these, else EPERM.
    With(&'static [Capability]),
    /// EPERM, whichever capabilities the task holds.
    Denied,
    /// ENOSYS: programs fall back, as they do on an older kernel.
    Absent,
    /// Allowed from this kernel version on; on older ones only with the capability.
    From((u32, u32), Capability),
    /// Allowed with a mode as this argument; set-id bits are refused to tasks that may not set them.
    Mode(u8),
    /// Makes a file with the mode of this argument, see [`SET_GID`].
    Made(u8),
    /// Opens a file with the flags of the first argument, or makes one with the mode of the second.
    Opened(u8, u8),
    /// Does so with a mode in memory, which no filter can read: programs fall back, as on an older kernel.
    OpenedUnseen,
    Clone,
    Personality,
    Socket,
    Ioctl,
}

type Group = (Verdict, &'static [u16]);

macro_rules! table {
    ($name:ident, $arch:ident, $($verdict:ident $(($($of:tt)*))? => $($call:ident)*;)*) => {
        const $name: &[Group] = &[$((
            Verdict::$verdict $(($($of)*))?,
            &[$(syscalls::$arch::Sysno::$call as u16),*],
        )),*];
    };
}

/// Calls of both architectures.
macro_rules! common {
    ($name:ident, $arch:ident) => { table! { $name, $arch,

        // Files, by path and by descriptor. The kernel checks permissions as usual.
        Allowed => close close_range read write pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2
            lseek dup dup3 fcntl flock pipe2 truncate ftruncate fallocate fadvise64 readahead copy_file_range sendfile splice
            tee vmsplice sync syncfs fsync fdatasync sync_file_range cachestat
            fstat statx statfs fstatfs faccessat faccessat2 getdents64 getcwd chdir fchdir umask
            mkdirat unlinkat renameat renameat2 linkat symlinkat readlinkat
            fchown fchownat utimensat name_to_handle_at
            getxattr lgetxattr fgetxattr getxattrat setxattr lsetxattr fsetxattr setxattrat listxattr llistxattr flistxattr
            listxattrat removexattr lremovexattr fremovexattr removexattrat file_getattr file_setattr
            inotify_init1 inotify_add_watch inotify_rm_watch fanotify_mark;

        // Existing files get no set-id bits, except from tasks that may give them. On a new file, the set-user-ID bit is lost with
        // the first byte written, as no task that is refused here has CAP_FSETID.
        Mode(1) => fchmod;
        Mode(2) => fchmodat fchmodat2;
        Made(2) => mknodat;
        Opened(2, 3) => openat;
        OpenedUnseen => openat2;

        // Waiting for events, timers, and the older way to read and write without waiting.
        Allowed => epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 ppoll pselect6 eventfd2 signalfd4
            timerfd_create timerfd_gettime timerfd_settime timer_create timer_delete timer_getoverrun timer_gettime
            timer_settime getitimer setitimer nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday
            io_setup io_submit io_cancel io_destroy io_getevents io_pgetevents;

        // Reading the clock's state; the kernel itself lets only CAP_SYS_TIME change it.
        Allowed => adjtimex clock_adjtime;

        // Memory.
        Allowed => brk mmap munmap mremap remap_file_pages mprotect madvise mincore msync mlock mlock2 mlockall munlock
            munlockall mseal map_shadow_stack memfd_create memfd_secret membarrier pkey_alloc pkey_free pkey_mprotect;

        // Processes and threads, and their properties.
        Allowed => execve execveat exit exit_group wait4 waitid kill tkill tgkill pidfd_open pidfd_send_signal
            process_mrelease restart_syscall set_tid_address set_robust_list get_robust_list rseq
            futex futex_wait futex_wake futex_requeue futex_waitv
            rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_tgsigqueueinfo rt_sigreturn rt_sigsuspend
            rt_sigtimedwait sigaltstack
            getpid getppid gettid getpgid setpgid getsid setsid getuid geteuid getgid getegid getresuid getresgid getgroups
            setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset prctl
            getrlimit setrlimit prlimit64 getrusage times getpriority setpriority ioprio_get ioprio_set
            sched_yield sched_getaffinity sched_setaffinity sched_getattr sched_setattr sched_getparam sched_setparam
            sched_getscheduler sched_setscheduler sched_get_priority_max sched_get_priority_min sched_rr_get_interval
            getcpu getrandom sysinfo uname;

        // Sockets; the verdict on `socket` decides which families.
        Allowed => bind listen accept accept4 connect shutdown getsockname getpeername getsockopt setsockopt
            sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg;

        // IPC: of the task's own namespace.
        Allowed => shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl
            mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr;

        // Calls that only restrict the caller: further filters, Landlock. And calls that describe the task's own mounts.
        Allowed => seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
            lsm_get_self_attr lsm_list_modules statmount listmount;

        // Until 4.8 a traced process could change the number of a call after the filter had seen it.
        From((4, 8), CAP_SYS_PTRACE) => ptrace process_vm_readv process_vm_writev;

        // Allowed by argument.
        Clone => clone;
        Personality => personality;
        Socket => socket socketpair;
        Ioctl => ioctl;

        // Its flags are in memory, where no filter can read them; libc falls back to clone.
        Absent => clone3;

        // Namespaces and mounts: used to assemble a root file system, and to break out of one.
        With(&[CAP_SYS_ADMIN]) => unshare setns mount umount2 pivot_root fsopen fsconfig fsmount fspick move_mount open_tree
            open_tree_attr mount_setattr sethostname setdomainname quotactl quotactl_fd fanotify_init;
        With(&[CAP_SYS_CHROOT]) => chroot;
        // Opens files without regard to mounts.
        With(&[CAP_DAC_READ_SEARCH]) => open_by_handle_at;

        // Programs inside the kernel, and inspection of the kernel.
        With(&[CAP_BPF, CAP_SYS_ADMIN]) => bpf;
        With(&[CAP_PERFMON, CAP_SYS_ADMIN]) => perf_event_open;
        With(&[CAP_SYSLOG, CAP_SYS_ADMIN]) => syslog;

        // Other processes' descriptors and memory.
        With(&[CAP_SYS_PTRACE]) => kcmp pidfd_getfd process_madvise;

        // The machine as a whole: its clock, its modules, its power, its accounting, where memory lies.
        With(&[CAP_SYS_TIME]) => settimeofday clock_settime;
        With(&[CAP_SYS_MODULE]) => init_module finit_module delete_module;
        With(&[CAP_SYS_BOOT]) => reboot;
        With(&[CAP_SYS_PACCT]) => acct;
        With(&[CAP_SYS_TTY_CONFIG]) => vhangup;
        With(&[CAP_SYS_NICE]) => mbind get_mempolicy set_mempolicy set_mempolicy_home_node migrate_pages move_pages;
        Denied => kexec_load kexec_file_load swapon swapoff;

        // Large parts of the kernel that a task hardly needs and that had many vulnerabilities. Keys, moreover, belong to no
        // namespace: a task could request keys of the same user on the host.
        Denied => io_uring_setup io_uring_enter io_uring_register userfaultfd add_key keyctl request_key;
        Denied => lsm_set_self_attr;

        // Gone from the kernel.
        Absent => nfsservctl lookup_dcookie;
    } };
}

common!(X86_64, x86_64);
common!(AARCH64, aarch64);

table! { X86_64_ONLY, x86_64,
    // Older forms of what is allowed above.
    Allowed => stat lstat newfstatat access getdents mkdir rmdir link unlink rename symlink readlink
        chown lchown utime utimes futimesat dup2 pipe fork vfork alarm pause time getpgrp
        epoll_create epoll_wait poll select eventfd signalfd inotify_init;

    Mode(1) => chmod;
    Made(1) => creat mknod;
    Opened(1, 2) => open;

    // The thread's own registers.
    Allowed => arch_prctl;

    // Called by code that a tracer has inserted, and without effect elsewhere; if denied, the traced program dies.
    Allowed => uretprobe uprobe;

    With(&[CAP_SYS_RAWIO]) => iopl ioperm;

    // Segments of 16 and 32 bits, for code that cannot make system calls here anyway.
    Denied => modify_ldt;

    // Gone from the kernel, never there, or obsolete for decades.
    Absent => uselib ustat sysfs _sysctl create_module get_kernel_syms query_module getpmsg putpmsg afs_syscall tuxcall
        security vserver epoll_ctl_old epoll_wait_old set_thread_area get_thread_area;
}

table! { AARCH64_ONLY, aarch64,
    Allowed => fstatat;

    // Of 32-bit processes.
    Absent => clock_adjtime64 clock_getres_time64 clock_gettime64 clock_nanosleep_time64 clock_settime64 futex_time64
        io_pgetevents_time64 mq_timedreceive_time64 mq_timedsend_time64 ppoll_time64 pselect6_time64 recvmmsg_time64
        rt_sigtimedwait_time64 sched_rr_get_interval_time64 semtimedop_time64 timer_gettime64 timer_settime64
        timerfd_gettime64 timerfd_settime64 utimensat_time64;
}

/// All groups of an architecture.
pub(super) fn groups(arch: Arch) -> impl Iterator<Item = &'static Group> {
    let (common, own) = match arch {
        Arch::X86_64 => (X86_64, X86_64_ONLY),
        Arch::Aarch64 => (AARCH64, AARCH64_ONLY),
    };
    common.iter().chain(own)
}

/// Namespaces that `clone` makes. `CLONE_NEWTIME` is not among its flags: it overlaps the bits of the signal.
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u64;

/// Bits of a file's mode that give its user or group to the process that executes it. The kernel reads 16 bits of the argument.
const SET_ID: u64 = 0o6000;

/// The set-id bit that a file can be created with and keep: without the group's execute permission it has no meaning to the kernel,
/// and stays when the file is written to; if an access control list then grants that permission, the bit takes effect again. A
/// umask or a default list may remove the permission at first, so the bit itself is refused.
const SET_GID: u64 = 0o2000;

/// `O_CREAT` and `O_TMPFILE` without `O_DIRECTORY`: only with them does the kernel look at the mode.
const MAKES_FILE: [u64; 2] = [0o100, 0o20_000_000];

/// `PER_LINUX`, `PER_LINUX32`, both with `UNAME26`, and the query of the current value. Others disable protections, address space
/// randomization above all.
const PERSONALITIES: &[u32] = &[0, 0x8, 0x2_0000, 0x2_0008, u32::MAX];

/// Insert characters into a terminal as if a user had typed them.
const TYPES_FOR_OTHERS: &[u32] = &[libc::TIOCSTI as u32, libc::TIOCLINUX as u32];

/// The policy of this module for a machine and the task's capabilities.
pub(super) fn policy(machine: &Machine<'_>) -> Policy {
    let mut policy = Policy::new(machine.arch.end(), Action::ENOSYS, Action::ENOSYS);
    for (verdict, calls) in groups(machine.arch) {
        let decision = policy.intern(decision(*verdict, machine));
        for call in *calls {
            policy.decide(usize::from(*call), decision);
        }
    }
    policy
}

fn decision(verdict: Verdict, machine: &Machine<'_>) -> Decision {
    let allowed_if = |condition| Decision::always(if condition { Action::ALLOW } else { Action::EPERM });
    let held = |capability: &Capability| machine.held.contains(capability);
    // The kernel takes all of these arguments as `int` or `unsigned int`, and never reads the upper half of the register.
    let each = |argument: u8, values: &[u32], action: Action| -> Vec<Rule> {
        values.iter().map(|value| Rule { checks: vec![Check::low(argument, *value)], action }).collect()
    };
    let has = |argument: u8, bit: u64| Check { argument, test: Test::Masked { mask: bit, value: bit }, not: false };
    match verdict {
        Verdict::Allowed => Decision::always(Action::ALLOW),
        Verdict::Denied => Decision::always(Action::EPERM),
        Verdict::Absent => Decision::always(Action::ENOSYS),
        Verdict::With(any) => allowed_if(any.iter().any(held)),
        Verdict::From(version, capability) => allowed_if(machine.kernel >= version || held(&capability)),
        Verdict::Mode(_) if machine.set_id == SetId::Allowed || mutant::on("d11") => Decision::always(Action::ALLOW),
        Verdict::Mode(argument) => {
            let none = Check { argument, test: Test::Masked { mask: SET_ID, value: 0 }, not: false };
            Decision::of(vec![Rule { checks: vec![none], action: Action::ALLOW }], Action::EPERM)
        }
        Verdict::Made(_) | Verdict::Opened(..) | Verdict::OpenedUnseen
            if machine.set_id == SetId::Allowed || mutant::on("d80") =>
        {
            Decision::always(Action::ALLOW)
        }
        Verdict::OpenedUnseen => Decision::always(Action::ENOSYS),
        Verdict::Made(mode) => {
            Decision::of(vec![Rule { checks: vec![has(mode, SET_GID)], action: Action::EPERM }], Action::ALLOW)
        }
        Verdict::Opened(flags, mode) => {
            let rule = |flag| Rule { checks: vec![has(flags, flag), has(mode, SET_GID)], action: Action::EPERM };
            Decision::of(MAKES_FILE.map(rule).to_vec(), Action::ALLOW)
        }
        Verdict::Clone if held(&CAP_SYS_ADMIN) => Decision::always(Action::ALLOW),
        Verdict::Clone => {
            let none = Check { argument: 0, test: Test::Masked { mask: NEW_NAMESPACES, value: 0 }, not: false };
            Decision::of(vec![Rule { checks: vec![none], action: Action::ALLOW }], Action::EPERM)
        }
        Verdict::Personality => Decision::of(each(0, PERSONALITIES, Action::ALLOW), Action::EPERM),
        Verdict::Ioctl => Decision::of(each(1, TYPES_FOR_OTHERS, Action::EPERM), Action::ALLOW),
        Verdict::Socket => {
            // The kernel's crypto interface and the channel to the hypervisor exist on most hosts, without any access control.
            let mut rules = each(0, &[libc::AF_ALG as u32, libc::AF_VSOCK as u32], Action::EPERM);
            let ordinary = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX, libc::AF_NETLINK].map(|family| family as u32);
            rules.extend(each(0, &ordinary, Action::ALLOW));
            if held(&CAP_NET_RAW) {
                rules.extend(each(0, &[libc::AF_PACKET as u32, libc::AF_XDP as u32], Action::ALLOW));
            }
            if held(&CAP_NET_ADMIN) {
                rules.extend(each(0, &[libc::AF_KEY as u32], Action::ALLOW));
            }
            // Other families, as on a kernel that was built without them.
            Decision::of(rules, Action::error(libc::EAFNOSUPPORT as u16))
        }
    }
}
