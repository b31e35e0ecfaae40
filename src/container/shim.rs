//! The child side: a new, single-threaded process that turns itself into the task, step by step.

use std::ffi::CString;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Gid, Uid};

use super::config::{
    Became, Birth, Config, Failure, FailureKind, Guard, Ids, Namespace, RootConfig, Rootless, SessionConfig, Step as _,
};
use super::identity::{become_user, enter_user_namespace, lookup_user, make_user_namespace, parse_capabilities};
use super::lookup::{Lookup, Refusal, Trusted, executable_mode, leads_nowhere};
use super::namespaces::Namespaces;
use super::owners::Heir;
use super::parent::{CONTROL_FD, MAX_SENT, MAX_TOLD, REPORT_FD};
use super::seccomp::SetId;
use super::terminal::{self, Terminal};
use super::{etc, init, namespaces, rlimits, root, seccomp, unveil};
use crate::spec::json;
use crate::spec::{HostIdSpace, Masks, OwnNamespaces};
use crate::sys::path::Root;
use crate::sys::{mutant, prctl, process};

/// Runs the shim; `birth` is its argument, in JSON, with what it does before it receives its configuration. Returns only on
/// failure, after reporting to the executor; `None` when this process was not started by an executor.
#[must_use]
pub fn shim(birth: &str) -> Option<Failure> {
    let control = process::inherited_fd(CONTROL_FD)?;
    let report = File::from(process::inherited_fd(REPORT_FD)?);
    // Anything but a socket and a pipe at these numbers means that a shell started this process, not the executor.
    let is = |fd: BorrowedFd<'_>, kind| rustix::fs::fstat(fd).is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == kind);
    if !is(control.as_fd(), FileType::Socket) || !is(report.as_fd(), FileType::Fifo) {
        return None;
    }
    let failure = match become_task(birth, &control, &report) {
        Ok(never) => match never {},
        Err(failure) => failure,
    };
    report_failure(&report, &failure);
    Some(failure)
}

/// With one of these capabilities a task can create files of root, or of one of its groups, with any mode.
const AS_ROOT: [caps::Capability; 4] = [
    caps::Capability::CAP_SETUID,
    caps::Capability::CAP_SETGID,
    caps::Capability::CAP_FOWNER,
    caps::Capability::CAP_SYS_ADMIN,
];

fn gives_root(capability: caps::Capability, held: &caps::CapsHashSet) -> bool {
    held.contains(&capability) && !(capability == caps::Capability::CAP_SETGID && mutant::on("d80-group"))
}

enum Never {}

fn become_task(birth: &str, control: &OwnedFd, report: &File) -> Result<Never, Failure> {
    // The task gets no descriptors but 0, 1 and 2, and no signals that a parent process ignored.
    process::close_on_exec_from(3).step(|| "close descriptors".to_owned())?;
    prctl::reset_signals().step(|| "reset signals".to_owned())?;
    die_with_parent(report)?;

    // Before anything that uses memory or CPU time: the task must never run outside its cgroups.
    let birth: Birth = json::from_str(birth).step(|| "read the arguments".to_owned())?;
    if let Some(roots) = &birth.cgroup_roots {
        make_cgroup_namespace(roots)?;
    }
    for tasks in &birth.join {
        join_cgroup(tasks)?;
    }
    // Files get exactly the modes that the code below names, regardless of the inherited umask.
    rustix::process::umask(Mode::empty());
    let parts = if birth.root { Some(root::Parts::make(birth.rootless)?) } else { None };

    let (config_file, sent) = receive_config(control)?;
    let config = read_config(config_file)?;
    let session = config.session.as_ref();

    set_oom_score(config.oom_score_adj)?;

    // Until exec, other processes of the task's user must not be able to access this one. With a single user, the id maps of the
    // first process are still to be written, which a process that is not dumpable may not do.
    if config.has_users() || session.is_some() {
        prctl::set_undumpable().step(|| "become undumpable".to_owned())?;
    }

    if let Some(path) = &config.network_namespace {
        join_network(path)?;
    }
    let mut made = Namespaces::default();
    if session.is_none() {
        let network = config.own.network && config.network_namespace.is_none();
        made = Namespaces::make(OwnNamespaces { network, ..config.own }, birth.cgroup_roots.is_some())?;
    }
    let mut user_namespace = enter_task(session, sent)?;
    let born_inside = session.is_some_and(|s| s.namespaces.contains(&Namespace::Pid));

    // Its own session when isolated or a further process of the task; else its own process group, which the executor signals to
    // kill it.
    if config.root.is_some() || session.is_some() {
        if !born_inside {
            rustix::process::setsid().step(|| "start a session".to_owned())?;
        }
    } else {
        rustix::process::setpgid(None, None).step(|| "start a process group".to_owned())?;
    }
    if config.root.is_some() {
        // A kernel without keyrings has no keys to leak.
        let _ = if mutant::on("c07") { Ok(()) } else { prctl::new_session_keyring() };
    }

    let capabilities = parse_capabilities(&config.capabilities)?;
    let close_etc = etc::is_wanted(&config, &capabilities);
    give_files(&config)?;
    if let (Some(root), Some(parts)) = (&config.root, parts) {
        let trusted = Trusted::of(config.host_ids.as_ref(), config.id_range);
        // Where no untrusted user can reach the directories, everything stays as the host made it.
        let others = config.guard.as_ref().is_some_and(Guard::lets_others_in);
        root::enter(root, trusted, config.rootless.is_some(), others, close_etc, parts)?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    if mutant::on("a05") {
        let _ = std::fs::read("/etc/nsswitch.conf");
    }

    let ids = resolve_user(&config)?;
    let is_root = config.rootless.is_none() && ids.as_ref().is_none_or(|ids| ids.uid == 0);
    check_root(&config, is_root, close_etc)?;
    // The executor has set the cgroup's limits by now.
    receive_stdio(control)?;
    let terminal = open_terminal(&config, ids.as_ref())?;
    enter_work_dir(&config)?;
    let command = match &config.root {
        Some(root) => find_in_root(&config, root, ids.as_ref())?,
        None => PathBuf::from(&config.command),
    };
    let (argv, envp) = strings(&config, ids.as_ref(), &command)?;
    let unchanged = why_unchanged(&command, config.root.is_some());

    // The following steps need names in the root, or privileges that are dropped later.
    let refuse = config.root.is_some()
        && config.rootless.is_none()
        && (is_root || AS_ROOT.iter().any(|capability| gives_root(*capability, &capabilities)))
        && !capabilities.contains(&caps::Capability::CAP_FSETID);
    let set_id = if refuse { SetId::Refused } else { SetId::Allowed };
    let unveiled = unveil::prepare(&config.unveil)?;
    let filter = match &unveiled {
        Some(unveiled) if !unveiled.changes_files => {
            Some(seccomp::without_metadata(&config.seccomp, &capabilities, set_id)?)
        }
        _ => seccomp::program(&config.seccomp, &capabilities, set_id)?,
    };
    if config.user_namespace && session.is_none() {
        user_namespace = Some(make_user_namespace(ids.as_ref(), config.id_range)?);
    }
    if !mutant::on("c12-task") {
        rlimits::apply(&config.limits)?;
    }

    let privileged = rustix::process::geteuid().is_root();
    enter_user_namespace(&config, ids.as_ref(), user_namespace.as_ref())?;
    if let Some(unveiled) = unveiled {
        unveil::restrict(unveiled)?;
    }
    // The filter is installed directly before the exec, where the kernel allows it then: it is made for the command and not for
    // this program.
    let late = config.no_new_privs || capabilities.contains(&caps::Capability::CAP_SYS_ADMIN);
    let (early, filter) = if late { (None, filter) } else { (filter, None) };
    let install_early = early.as_ref().map(|filter| || install(filter));
    let last = install_early.as_ref().map(|install| install as &dyn Fn() -> Result<(), Failure>);
    become_user(&config, ids.as_ref(), &capabilities, privileged, last)?;
    if let (Some(namespace), None) = (user_namespace, session) {
        made.push(Namespace::User, namespace);
    }
    if config.has_users() || session.is_some() {
        // A change of credentials may have undone it, see fs.suid_dumpable in proc_sys_fs(5).
        prctl::set_undumpable().step(|| "become undumpable".to_owned())?;
    }
    if config.no_new_privs && !mutant::on("c01-nnp") {
        prctl::set_no_new_privs().step(|| "set no_new_privs".to_owned())?;
    }

    let unveiled = !config.unveil.is_empty();
    let (filter, outlives) = (filter.as_deref(), config.outlives);
    let command = Command { argv: &argv, envp: &envp, filter, outlives, unveiled, unchanged };
    let mut became = Became { ids, pid: None, terminal: terminal.is_some(), namespaces: made.kinds() };
    if born_inside {
        let child = start_inside(session, report, &command)?;
        became.pid = Some(child.pid);
        let sent: Vec<_> = [child.pidfd.as_fd()].into_iter().chain(ends(terminal.as_ref())).collect();
        tell(control, &became, &sent)?;
        // The command runs in another process, and this one is done.
        process::exit_at_once(0)
    }
    if session.is_some_and(|s| s.tty) {
        rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).step(|| "take the terminal".to_owned())?;
    }
    let sent: Vec<_> = ends(terminal.as_ref()).chain(made.fds()).collect();
    tell(control, &became, &sent)?;
    drop((terminal, made));
    if !config.init || session.is_some() {
        return Err(execute(report, &command));
    }
    let child = start_below(report, &command)?;
    // Its memory stays as long as the task runs.
    drop((argv, envp, became, config));
    init::run(child.pid)
}

/// Everything needed to execute the command.
struct Command<'a> {
    argv: &'a [CString],
    envp: &'a [CString],
    /// Installed directly before the exec.
    filter: Option<&'a [libc::sock_filter]>,
    /// The command keeps running when the executor is killed.
    outlives: bool,
    /// Landlock rules limit which files it can access.
    unveiled: bool,
    /// Why the program may lack execute permission.
    unchanged: Option<String>,
}

/// Why a program was not made executable, although Nomad's drivers would have changed its mode.
fn why_unchanged(program: &Path, isolated: bool) -> Option<String> {
    let stat = rustix::fs::stat(program).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_mode & 0o555 == 0o555 {
        return None;
    }
    if stat.st_nlink > 1 {
        return Some("it has a second name, a hard link, so it may be somebody else's file".to_owned());
    }
    if isolated {
        let (mode, owner) = (stat.st_mode & 0o7777, stat.st_uid);
        return Some(format!("its mode is {mode:04o} and its owner user {owner}, so it is not for everybody"));
    }
    let mut begin = Vec::new();
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(program, flags, Mode::empty()).ok()?;
    File::from(file).take(4).read_to_end(&mut begin).ok()?;
    let like_a_program = begin.starts_with(b"#!") || begin == b"\x7fELF";
    (!like_a_program).then(|| "it begins neither with #! nor as an ELF file, so it may be no program".to_owned())
}

/// Starts the command as a process that never has more privileges than it may have: it is born in the task's pid namespace after
/// privileges are dropped, and does only what no other process can do for it before it executes the command.
fn start_inside(
    session: Option<&SessionConfig>,
    report: &File,
    command: &Command<'_>,
) -> Result<process::Child, Failure> {
    let mut body = || {
        let lead = || -> Result<(), Failure> {
            rustix::process::setsid().step(|| "start a session".to_owned())?;
            if session.is_some_and(|s| s.tty) {
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).step(|| "take the terminal".to_owned())?;
            }
            Ok(())
        };
        report_failure(report, &lead().map_or_else(|failure| failure, |()| execute(report, command)));
    };
    process::spawn_sibling(&mut body).map_err(|error| {
        let step = "start a process in the task's pid namespace";
        match error.raw_os_error() {
            // The kernel's error when the first process of a pid namespace has ended.
            Some(libc::ENOMEM) => Failure::invalid(step, "the task has ended"),
            _ => Failure::new(step, error),
        }
    })
}

fn install(filter: &[libc::sock_filter]) -> Result<(), Failure> {
    if mutant::on("c05") {
        return Ok(());
    }
    crate::sys::seccomp::install(filter).map_err(|error| {
        let why = match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS) => ": this kernel has none; seccomp = \"unconfined\" does without",
            Some(libc::EACCES) => ": without no_new_privs it needs CAP_SYS_ADMIN",
            _ => "",
        };
        Failure::new("install the filter on system calls", format!("{error}{why}"))
    })
}

/// Executes the command. Returns the reason if that fails.
fn execute(report: &File, command: &Command<'_>) -> Failure {
    match last_steps(report, command) {
        Ok(()) => replace(command),
        Err(failure) => failure,
    }
}

/// What is done directly before the command runs. A child inherits all but the bond to the life of the parent.
fn last_steps(report: &File, command: &Command<'_>) -> Result<(), Failure> {
    die_with_parent(report)?;
    if command.outlives {
        outlive_parent()?;
    }
    command.filter.map_or(Ok(()), install)
}

/// Starts the command as a child of this process, which is pid 1. Both have the same restrictions: the command may trace its parent.
fn start_below(report: &File, command: &Command<'_>) -> Result<process::Child, Failure> {
    last_steps(report, command)?;
    // None may be lost between the child's start and the first wait.
    prctl::block_signals().step(|| "block signals".to_owned())?;
    let mut failed = false;
    let mut body = || {
        let lead = || -> Result<(), Failure> {
            prctl::reset_signals().step(|| "reset signals".to_owned())?;
            rustix::process::setsid().step(|| "start a session".to_owned()).map(drop)
        };
        report_failure(report, &lead().map_or_else(|failure| failure, |()| replace(command)));
        failed = true;
    };
    let child = process::spawn_below(&mut body).step(|| "start the command below its init".to_owned())?;
    if failed {
        // The child has reported why.
        process::exit_at_once(1);
    }
    Ok(child)
}

/// Replaces this process by the command. Returns the reason if that fails.
fn replace(command: &Command<'_>) -> Failure {
    let Command { argv, envp, unveiled, unchanged, .. } = command;
    let error = process::execute(&argv[0], argv, envp);
    let kind = match error.raw_os_error() {
        Some(libc::ENOENT) => FailureKind::CommandNotFound,
        Some(libc::EACCES | libc::ENOEXEC | libc::EISDIR | libc::EPERM) => FailureKind::NotExecutable,
        _ => FailureKind::System,
    };
    let step = format!("execute {}", argv[0].to_string_lossy());
    let message = match kind {
        FailureKind::CommandNotFound => format!("{step}: {error} (is its interpreter in the root?)"),
        FailureKind::NotExecutable if *unveiled => {
            format!("{error} (unveil must have it and its libraries with the letters r and x)")
        }
        FailureKind::NotExecutable if error.raw_os_error() == Some(libc::ENOEXEC) => {
            format!("{error} (a script begins with a line such as #!/bin/sh)")
        }
        FailureKind::NotExecutable => match unchanged {
            Some(why) => format!(
                "{error} ({why}, and it is not made executable here, as it is by Nomad's drivers: chmod +x it, or name a copy)"
            ),
            None => error.to_string(),
        },
        _ => error.to_string(),
    };
    Failure { step, kind, message }
}

fn report_failure(mut report: &File, failure: &Failure) {
    // If the executor has closed the pipe, there is no reader for the report.
    let _ = json::to_vec(failure).map(|bytes| report.write_all(&bytes));
}

fn read_config(mut file: File) -> Result<Config, Failure> {
    let step = || "read the configuration".to_owned();
    let mut text = Vec::new();
    file.read_to_end(&mut text).step(step)?;
    json::from_slice(&text).step(step)
}

/// Enters the namespaces of a running task, except for the inner user namespace, which comes last and is returned.
fn enter_task(session: Option<&SessionConfig>, sent: Vec<OwnedFd>) -> Result<Option<OwnedFd>, Failure> {
    let kinds = session.map_or(&[][..], |s| &s.namespaces);
    if kinds.len() != sent.len() {
        return Err(Failure::new("enter the task's namespaces", "not all of them were sent"));
    }
    let mut last = None;
    for (kind, fd) in kinds.iter().zip(sent) {
        if *kind == Namespace::User {
            last = Some(fd);
        } else {
            namespaces::enter(*kind, &fd)?;
        }
    }
    Ok(last)
}

/// The session's terminal, made inside the task: its slave becomes stdin, stdout and stderr.
fn open_terminal(config: &Config, ids: Option<&Ids>) -> Result<Option<Terminal>, Failure> {
    if config.root.is_none() || !config.session.as_ref().is_some_and(|s| s.tty) {
        return Ok(None);
    }
    let step = || "take the terminal".to_owned();
    // With a single user, this process already runs as the task's user.
    let owner = ids.filter(|_| config.has_users()).map(|ids| config.on_host(ids.uid));
    let terminal = terminal::open_in_task(owner)?;
    rustix::stdio::dup2_stdin(&terminal.slave).step(step)?;
    rustix::stdio::dup2_stdout(&terminal.slave).step(step)?;
    rustix::stdio::dup2_stderr(&terminal.slave).step(step)?;
    Ok(Some(terminal))
}

/// The descriptors of a terminal that are sent to the executor: [`Terminal::slave`] says why it needs both.
fn ends(terminal: Option<&Terminal>) -> impl Iterator<Item = BorrowedFd<'_>> {
    terminal.into_iter().flat_map(|terminal| [terminal.master.as_fd(), terminal.slave.as_fd()])
}

/// Reports what this process is about to become. This is valid once the report pipe is closed without a failure.
fn tell(control: &OwnedFd, became: &Became, fds: &[BorrowedFd<'_>]) -> Result<(), Failure> {
    let step = || "answer the executor".to_owned();
    let text = json::to_vec(became).step(step)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_TOLD))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(control, &[IoSlice::new(&text)], &mut ancillary, SendFlags::NOSIGNAL).step(step).map(drop)
}

/// Waits for the configuration and the namespaces to enter.
fn receive_config(control: &OwnedFd) -> Result<(File, Vec<OwnedFd>), Failure> {
    let mut fds = receive(control)?.into_iter();
    let config = fds.next().ok_or_else(executor_has_ended)?;
    Ok((config.into(), fds.collect()))
}

/// Waits for stdin, stdout and stderr, the signal to go on.
fn receive_stdio(control: &OwnedFd) -> Result<(), Failure> {
    let step = || HEAR.to_owned();
    let [stdin, stdout, stderr] = <[OwnedFd; 3]>::try_from(receive(control)?).map_err(|_| executor_has_ended())?;
    rustix::stdio::dup2_stdin(stdin).step(step)?;
    rustix::stdio::dup2_stdout(stdout).step(step)?;
    rustix::stdio::dup2_stderr(stderr).step(step)
}

const HEAR: &str = "hear from the executor";

fn executor_has_ended() -> Failure {
    Failure::new(HEAR, "it has ended")
}

/// The descriptors of one message.
fn receive(control: &OwnedFd) -> Result<Vec<OwnedFd>, Failure> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let buffer = &mut [IoSliceMut::new(&mut byte)];
    let received = || recvmsg(control, buffer, &mut ancillary, RecvFlags::CMSG_CLOEXEC);
    rustix::io::retry_on_intr(received).step(|| HEAR.to_owned())?;
    let fds = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    Ok(fds.collect())
}

/// The kernel refuses any file that is not a network namespace.
fn join_network(path: &Path) -> Result<(), Failure> {
    let step = || format!("join the network namespace {}", path.display());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty()).step(step)?;
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(fd.as_fd(), Some(kind)).step(step)
}

fn join_cgroup(tasks: &Path) -> Result<(), Failure> {
    std::fs::write(tasks, "0").map_err(|error| {
        let gone = error.raw_os_error() == Some(libc::ENOENT);
        let kind = if gone { FailureKind::CgroupGone } else { FailureKind::System };
        Failure { kind, ..Failure::new(format!("join cgroup {}", tasks.display()), error) }
    })
}

/// v1. The root of a cgroup namespace is the cgroup of the process that makes it: it must be the root of each hierarchy, or paths
/// in the namespace would begin with `..`.
fn make_cgroup_namespace(roots: &[PathBuf]) -> Result<(), Failure> {
    let own = std::fs::read_to_string("/proc/self/cgroup").step(|| "read the own cgroups".to_owned())?;
    if !own.lines().all(|line| line.starts_with("0::") || line.ends_with(":/")) {
        for tasks in roots {
            join_cgroup(tasks)?;
        }
    }
    process::unshare(process::flags::NEW_CGROUP)
        .step(|| "make a cgroup namespace (isolation = \"nomad\" does without one)".to_owned())
}

/// Without root, this process has to chown the task's files: the executor is an ordinary user and cannot.
fn give_files(config: &Config) -> Result<(), Failure> {
    let (Some(Rootless { ids: Some(_), .. }), Some(ids), Some(root), None) =
        (config.rootless, config.id_range, &config.root, &config.session)
    else {
        return Ok(());
    };
    // Ids of other users are not mapped here.
    let heir = Heir { ids, space: HostIdSpace::only(ids), user: None, passes_over: true };
    heir.give(&root.task_dir).step(|| format!("give {} to the task's users", root.task_dir.display())).map(drop)
}

fn set_oom_score(wanted: i32) -> Result<(), Failure> {
    let file = "/proc/self/oom_score_adj";
    let current = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    if current == Some(wanted) {
        return Ok(());
    }
    match std::fs::write(file, wanted.to_string()) {
        // 0 only resets the agent's value; the shim may lack the right to go below the value that it was started with.
        Err(_) if wanted == 0 => Ok(()),
        result => result.step(|| format!("set oom_score_adj to {wanted}")),
    }
}

/// Resolves the user's name. A passwd file that the task could have written is not trusted if the host knows the user.
fn resolve_user(config: &Config) -> Result<Option<Ids>, Failure> {
    if config.session.is_some() {
        return Ok(config.host_ids.clone());
    }
    if config.user.is_empty() {
        return Ok(None);
    }
    // The task must run as the user that was checked against the operator's deny list.
    let only_host = config.host_users && !mutant::on("d92");
    let in_root = (config.root.is_some() && !only_host).then(|| lookup_in_root(&config.user)).flatten();
    let ids = match (in_root, &config.host_ids) {
        (Some((ids, true)), _) => Some(ids),
        (_, Some(ids)) => Some(ids.clone()),
        // A file that the task may have written can name neither root nor root's group.
        (Some((ids, false)), None) if mutant::on("c03") || (ids.uid != 0 && !ids.groups.contains(&0)) => Some(ids),
        _ => None,
    };
    ids.map(Some).ok_or_else(|| {
        Failure::invalid("find the user", format!("failed to identify user {0}: unknown user {0}", config.user))
    })
}

/// A user that is root by the job's own passwd file, but another user on the host, would find the host's `/etc` unclosed.
fn check_root(config: &Config, root: bool, closed: bool) -> Result<(), Failure> {
    let tight = config.root.as_ref().is_some_and(|root| root.masks == Masks::All);
    if !root || closed || !tight || config.session.is_some() {
        return Ok(());
    }
    let message = format!("user {0} is root in the task's /etc/passwd and another user on the host", config.user);
    Err(Failure::invalid("find the user", message))
}

/// Longest passwd or group file of a root that is read, in bytes.
const MAX_DATABASE: u64 = 8 << 20;

/// The user as the new root knows it, and whether the files are read-only for the task.
fn lookup_in_root(user: &str) -> Option<(Ids, bool)> {
    let root = Root::open(Path::new("/")).ok()?;
    let read = |path: &str| {
        let fd = root.open_in_root(Path::new(path), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&fd).ok()?;
        let size = u64::try_from(stat.st_size).ok()?;
        let believable = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && size <= MAX_DATABASE;
        if !believable && !mutant::on("b22") {
            return None;
        }
        let readonly =
            rustix::fs::fstatvfs(&fd).is_ok_and(|s| s.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
        let mut text = String::new();
        // Bounds the read in case the file grows; a truncated file must not be used.
        let most = if mutant::on("b22") { u64::MAX } else { MAX_DATABASE + 1 };
        std::fs::File::from(fd).take(most).read_to_string(&mut text).ok()?;
        if text.len() as u64 > MAX_DATABASE {
            return None;
        }
        Some((text, readonly))
    };
    let (passwd, passwd_readonly) = read("etc/passwd")?;
    let (group, group_readonly) = read("etc/group").unwrap_or((String::new(), true));
    Some((lookup_user(&passwd, &group, user)?, passwd_readonly && group_readonly))
}

fn enter_work_dir(config: &Config) -> Result<(), Failure> {
    let step = || format!("enter the working directory {}", config.work_dir.display());
    if config.root.is_none() || mutant::on("a02") {
        return rustix::process::chdir(&config.work_dir).step(step);
    }
    let root = Root::open(Path::new("/")).step(step)?;
    let relative = config.work_dir.strip_prefix("/").unwrap_or(&config.work_dir);
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    let dir = match root.open_in_root(relative, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let made = root.create_dir_all(relative, Mode::from_raw_mode(0o755)).step(step)?;
            if let Some(ids) = config.id_range {
                // With the same owner as everything in the task's own directories.
                let (uid, gid) = (Uid::from_raw(ids.base()), Gid::from_raw(ids.base()));
                rustix::fs::chownat(&made, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).step(step)?;
            }
            made
        }
        other => other.step(step)?,
    };
    rustix::process::fchdir(&dir).step(step)?;
    let here = rustix::process::getcwd(Vec::new()).step(step)?;
    if here.as_bytes().starts_with(b"(unreachable)") {
        return Err(Failure::invalid(step(), "the working directory lies outside the task's root"));
    }
    Ok(())
}

/// Searches in Nomad's order: the task's directories, the path itself, then the usual directories for a bare name. An absolute path
/// is tried as it is first.
fn find_in_root(config: &Config, root_config: &RootConfig, ids: Option<&Ids>) -> Result<PathBuf, Failure> {
    let command = &config.command;
    let step = || "find the command".to_owned();
    let root = Root::open(Path::new("/")).step(|| "open the root".to_owned())?;
    // Even where no guard is set, a program that others can write to is not made executable.
    let open = Guard::open();
    let guard = config.guard.as_ref().unwrap_or(&open);
    let lookup = Lookup::in_root(guard, Trusted::of(ids, config.id_range), &root, root_config);
    let bare = command.trim_start_matches('/');
    let mut candidates = vec![Path::new("local").join(bare), PathBuf::from(bare)];
    if command.starts_with('/') && !mutant::on("d02") {
        candidates.reverse();
    }
    if !command.contains('/') {
        candidates.extend(["usr/local/bin", "usr/bin", "bin"].map(|dir| Path::new(dir).join(bare)));
    }
    let mut other = None;
    for candidate in candidates {
        let path = Path::new("/").join(&candidate);
        let opening = || format!("open {}", path.display());
        let fd = match root.open_in_root(&candidate, OFlags::PATH, Mode::empty()) {
            Ok(fd) => fd,
            Err(error) if leads_nowhere(&error) => continue,
            // Does not fall back to the next candidate.
            Err(error) => return Err(error).step(opening),
        };
        let stat = rustix::fs::fstat(&fd).step(opening)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            other.get_or_insert(candidate);
            continue;
        }
        match config.guard.as_ref().map(|_| lookup.check(&path, &fd)) {
            Some(Err(Refusal::Elsewhere)) => continue,
            Some(Err(refusal)) => {
                let message = format!("{}: {refusal}", path.display());
                return Err(Failure { step: step(), kind: FailureKind::NotExecutable, message });
            }
            Some(Ok(_)) | None => {}
        }
        if stat.st_mode & 0o555 != 0o555 {
            // A program that does not belong to the task stays as it is; if it is not executable for the user, exec reports that.
            let guarded = config.guard.is_some() && !mutant::on("d82");
            let user = ids.filter(|_| guarded).map(|ids| config.on_host(ids.uid));
            let _ = make_executable(&root, &path, &fd, &lookup, user);
        }
        return Ok(path);
    }
    if let Some(there) = other {
        let message = format!("/{} is there, but is not a file that could be executed", there.display());
        return Err(Failure { step: "find the command".to_owned(), kind: FailureKind::NotExecutable, message });
    }
    // Nomad names the directory only for a command that is a path.
    let below = if command.contains('/') { format!(" {}", root_config.task_dir.display()) } else { String::new() };
    Err(Failure {
        step: step(),
        kind: FailureKind::CommandNotFound,
        message: format!("file {command} not found under path{below}"),
    })
}

/// Makes a file executable that is in the allocation's directories and belongs to the task ([`Lookup::is_tasks`]). Works by its
/// descriptor: a name in `/proc` is only safe as long as nobody moves that mount. A file with a second hard link may also belong to
/// another user, and stays as it is. `user` is the host id of the task's user, see [`executable_mode`]; `None` makes the file
/// executable for everybody, as Nomad does.
fn make_executable(
    root: &Root,
    path: &Path,
    found: &OwnedFd,
    lookup: &Lookup<'_>,
    user: Option<u32>,
) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let relative = path.strip_prefix("/").unwrap_or(path);
    let file = if mutant::on("d05") {
        root.open_in_root(relative, flags, Mode::empty())?
    } else if lookup.is_tasks(path, found) {
        root.open_beneath(relative, flags, Mode::empty())?
    } else {
        return Ok(());
    };
    let (stat, looked_at) = (rustix::fs::fstat(&file)?, rustix::fs::fstat(found)?);
    let same = (stat.st_dev, stat.st_ino) == (looked_at.st_dev, looked_at.st_ino) || mutant::on("d05");
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if same && plain && (stat.st_nlink == 1 || mutant::on("b16")) {
        let mode = user.map_or(stat.st_mode | 0o555, |user| executable_mode(&stat, user));
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// Arguments and environment as C strings; USER, LOGNAME and HOME of the user replace those of the configuration.
fn strings(config: &Config, ids: Option<&Ids>, command: &Path) -> Result<(Vec<CString>, Vec<CString>), Failure> {
    let c_string = |bytes: &[u8]| {
        CString::new(bytes).map_err(|_| Failure::invalid("build arguments", "a NUL byte in command, args or env"))
    };
    let mut argv = vec![c_string(command.as_os_str().as_bytes())?];
    for arg in &config.args {
        argv.push(c_string(arg.as_bytes())?);
    }
    let user_env: Vec<(&str, String)> = match ids {
        Some(ids) => {
            let home = if ids.home.is_empty() { "/" } else { &ids.home };
            vec![("USER", config.user.clone()), ("LOGNAME", config.user.clone()), ("HOME", home.to_owned())]
        }
        None => Vec::new(),
    };
    let mut envp = Vec::with_capacity(config.env.len() + user_env.len());
    if mutant::on("a07") {
        envp.extend(mutant::environment().iter().filter_map(|entry| c_string(entry.as_bytes()).ok()));
    }
    for entry in &config.env {
        let key = entry.split('=').next().unwrap_or(entry);
        if !user_env.iter().any(|(user_key, _)| *user_key == key) {
            let length = if mutant::on("a08") { entry.len() & 0xffff } else { entry.len() };
            envp.push(c_string(&entry.as_bytes()[..length])?);
        }
    }
    for (key, value) in &user_env {
        envp.push(c_string(format!("{key}={value}").as_bytes())?);
    }
    Ok((argv, envp))
}

/// From here on the task survives its executor, and has to be ended through its cgroup.
fn outlive_parent() -> Result<(), Failure> {
    prctl::forget_parent_death_signal().step(|| "part from the executor's life".to_owned())
}

/// The task dies with its executor, also if the executor ended before this call.
fn die_with_parent(report: &File) -> Result<(), Failure> {
    prctl::set_parent_death_signal(rustix::process::Signal::KILL).step(|| "bind to the executor's life".to_owned())?;
    let mut fds = [PollFd::from_borrowed_fd(report.as_fd(), PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).step(|| "look for the executor".to_owned())?;
    if fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return Err(Failure::new("look for the executor", "it has ended"));
    }
    Ok(())
}
