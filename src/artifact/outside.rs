//! The first process of the role: starts the second one in namespaces of its own, and waits for its end.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use super::{Inside, Setting};
use crate::spec::json;
use crate::spec::{Role, Signal};
use crate::sys::path::Root;
use crate::sys::process::{self, Child, Spawn, WaitStatus, flags};
use crate::sys::{self, mount, mutant, prctl, processes};

/// The descriptors that the inner process inherits.
pub(super) mod fds {
    pub(in super::super) const SOCKET: i32 = 0;
    /// Closed when the outer process ends.
    pub(in super::super) const LIFELINE: i32 = 3;
    pub(in super::super) const STAGING: i32 = 4;
    pub(in super::super) const SOURCE: i32 = 5;
    /// The staging directory as a mount, if there is a mount namespace.
    pub(in super::super) const MOUNT: i32 = 6;
}

/// How long killed processes may take to end.
const ENDS: Duration = Duration::from_secs(10);

/// Returns the exit status. Errors are written to stderr.
pub(super) fn run(setting: &Setting) -> i32 {
    prctl::set_name(Role::ArtifactFetcher.name());
    match work(setting) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
    }
}

fn work(setting: &Setting) -> io::Result<()> {
    prctl::set_undumpable()?;
    let deadline = Instant::now() + Duration::from_secs(setting.limits.seconds);
    let (lifeline, held) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let staging = Root::open(&setting.staging)?;
    let staging = staging.open_beneath(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    // Processes of the second process outlive it unless it is the first process of a pid namespace.
    prctl::become_subreaper()?;
    let child = start(setting, &lifeline, &staging)?;
    drop(lifeline);
    let status = watch(&child, deadline, setting.limits.seconds);
    drop(held);
    end_what_is_left()?;
    match status? {
        WaitStatus { signal: Some(signal), .. } => Err(io::Error::other(format!("it was killed by signal {signal}"))),
        _ => Ok(()),
    }
}

/// Kills all descendants of this process. Afterwards no process can change what was fetched.
fn end_what_is_left() -> io::Result<()> {
    let deadline = Instant::now() + ENDS;
    loop {
        let children = processes::own_children()?;
        if children.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(io::Error::other("processes that it has started cannot be ended"));
        }
        for pid in children {
            // The pid cannot be reused: only this thread reaps it.
            let Ok(pidfd) = process::open_pidfd(pid) else { continue };
            // It may have ended.
            let _ = process::send_signal(pidfd.as_fd(), Signal::KILL);
            process::wait(pidfd.as_fd())?;
        }
    }
}

/// Whether the error means that this process cannot create such namespaces on this machine; every other one is temporary, such
/// as a limit that is reached.
fn is_refused(error: &io::Error) -> bool {
    let refused = [libc::EPERM, libc::EACCES, libc::EINVAL, libc::ENOSYS, libc::ENOSPC, libc::EUSERS];
    error.raw_os_error().is_some_and(|number| refused.contains(&number))
}

/// Starts the inner process in namespaces of its own, as far as this machine permits.
fn start(setting: &Setting, lifeline: &OwnedFd, staging: &OwnedFd) -> io::Result<Child> {
    let mut wanted = flags::NEW_PID | flags::NEW_MOUNT | flags::NEW_IPC;
    if !setting.network {
        wanted |= flags::NEW_NET;
    }
    // Without root, a user namespace maps only the user's own ids, which is sufficient.
    let of_user = if rustix::process::geteuid().is_root() { 0 } else { flags::NEW_USER };
    // At least without a network, if it needs none.
    let fewer = if setting.network { None } else { Some(flags::NEW_NET | of_user) };
    for namespaces in [Some(wanted | of_user), fewer].into_iter().flatten() {
        match attempt(setting, lifeline, staging, namespaces) {
            Err(error) if is_refused(&error) => {}
            other => return other,
        }
    }
    attempt(setting, lifeline, staging, 0)
}

fn attempt(setting: &Setting, lifeline: &OwnedFd, staging: &OwnedFd, namespaces: u64) -> io::Result<Child> {
    let mounts = namespaces & flags::NEW_MOUNT != 0 && setting.becomes.is_some();
    let mounted = if mounts { Some(mount::clone_mount(staging.as_fd())?) } else { None };
    let inside = Setting { inside: Some(Inside { mounts }), ..setting.clone() };
    let text = CString::new(json::to_string(&inside)?)?;
    let argv = [CString::new(env!("CARGO_PKG_NAME"))?, CString::new(Role::ArtifactFetcher.name())?, text];
    let envp: Vec<CString> = mutant::environment().into_iter().map(CString::new).collect::<Result<_, _>>()?;
    let (mut report, theirs) = {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        (File::from(read), write)
    };
    let (stdin, stdout, stderr) = (rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr());
    let mut given: Vec<BorrowedFd<'_>> = vec![stdout, theirs.as_fd(), stderr, lifeline.as_fd(), staging.as_fd(), stdin];
    given.extend(mounted.as_ref().map(OwnedFd::as_fd));
    let own = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
    let maps = own.map(|id| format!("{id} {id} 1\n").into_bytes());
    let [uid_map, gid_map] = maps;
    let writes = [
        (c"/proc/self/setgroups", b"deny".to_vec()),
        (c"/proc/self/uid_map", uid_map),
        (c"/proc/self/gid_map", gid_map),
    ];
    let writes = if namespaces & flags::NEW_USER != 0 { &writes[..] } else { &[] };
    let plan = Spawn {
        exe: sys::exe::own()?,
        argv: &argv,
        envp: &envp,
        fds: &given,
        flags: namespaces,
        cgroup: None,
        writes,
        report: 1,
    };
    let child = process::spawn(&plan)?;
    drop(theirs);
    // The process has exec'ed, or ended: spawn waits for that. Only a failure writes a report.
    rustix::io::ioctl_fionbio(&report, true)?;
    let mut said = [0; 5];
    match report.read(&mut said) {
        Ok(5) => {
            process::wait(child.pidfd.as_fd())?;
            let errno = i32::from_ne_bytes([said[1], said[2], said[3], said[4]]);
            Err(io::Error::from_raw_os_error(errno))
        }
        _ => Ok(child),
    }
}

/// Waits for the end, and kills the process if the requesting process is gone or cancels, or the time limit is reached.
fn watch(child: &Child, deadline: Instant, seconds: u64) -> io::Result<WaitStatus> {
    let stdout = rustix::stdio::stdout();
    let late = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(&child.pidfd, PollFlags::IN), PollFd::from_borrowed_fd(stdout, PollFlags::RDHUP)];
        let found = match poll(&mut fds, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if fds[0].revents().is_empty() {
            // It may be ending already.
            let _ = process::send_signal(child.pidfd.as_fd(), Signal::KILL);
        }
        break found == 0;
    };
    // The first process of a pid namespace is reported as ended only after all others in it have ended.
    let status = loop {
        let mut fds = [PollFd::new(&child.pidfd, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => {
                if let Some(status) = process::try_wait(child.pidfd.as_fd())? {
                    break status;
                }
            }
        }
    };
    if late {
        return Err(io::Error::other(format!("it took longer than {seconds} s")));
    }
    Ok(status)
}

/// Whether the outer process lives.
pub(super) fn is_alive(lifeline: &OwnedFd) -> io::Result<bool> {
    let mut fds = [PollFd::new(lifeline, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(!fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}
