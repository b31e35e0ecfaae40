//! The executor's side: clones the shim, sends it the configuration and the stdio, and receives the result.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};

use super::config::{Became, Birth, Config, Failure, FailureKind, Ids, Namespace, Rootless, Step as _};
use super::namespaces::Namespaces;
use super::subordinate::map_shim;
use super::terminal::Terminal;
use crate::spec::json;
use crate::spec::{NamespaceMode, Role};
use crate::sys::process::{Child, Spawn, flags, spawn, spawn_held};
use crate::sys::{mount, mutant};

/// Numbers of the descriptors that the shim starts with, beside 0, 1 and 2.
pub(super) const CONTROL_FD: i32 = 3;
pub(super) const REPORT_FD: i32 = 4;

/// What must be known before a shim can be cloned; everything else can be sent later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepare {
    /// Modes of the pid and IPC namespaces of a task with its own root; `None` for a task on the host's files.
    pub isolation: Option<(NamespaceMode, NamespaceMode)>,
    /// A cgroup namespace for a task with its own root. On v1 its root is the root of each hierarchy, so that the task's cgroup
    /// path is the one that hosts and programs look for; on v2 it is the task's cgroup, into which the shim is cloned. v1: the
    /// `tasks` files of those roots, where the shim makes the namespace; v2: none.
    pub cgroup_namespace: Option<Vec<PathBuf>>,
    /// Set when the executor is not root.
    pub rootless: Option<Rootless>,
    /// v1: `tasks` files of the cgroups that the shim joins before anything else.
    pub join: Vec<PathBuf>,
    /// The executor has entered the user namespace of a plain user's network.
    pub is_nested: bool,
}

/// Most namespaces that a shim can be told to enter.
pub(super) const MAX_NAMESPACES: usize = 8;
/// Most descriptors in one message: the configuration and namespaces.
pub(super) const MAX_SENT: usize = 1 + MAX_NAMESPACES;
/// Most descriptors in the shim's last message: the pidfd of its sibling, both ends of a terminal, namespaces.
pub(super) const MAX_TOLD: usize = 3 + MAX_NAMESPACES;
/// Longest message that the shim sends before it executes the command, in bytes.
const MAX_BECAME: usize = 1 << 18;

/// A shim that is in its namespaces and cgroups, and waits for its configuration.
///
/// Dropping it ends the process, but the caller must still reap [`Prepared::child`].
#[derive(Debug)]
#[must_use = "a shim that is told nothing waits for ever"]
pub struct Prepared {
    /// The process; it becomes the task.
    pub child: Child,
    plan: Prepare,
    control: OwnedFd,
    report: File,
}

/// Why a shim could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{step}: {source}")]
pub struct StartError {
    /// What was being done.
    pub step: &'static str,
    /// What the system said.
    pub source: io::Error,
}

/// A shim that has its configuration, and goes as far as it can without the task's stdio.
///
/// Dropping it ends the process, but the caller must still reap [`Told::child`].
#[derive(Debug)]
#[must_use = "a shim that is not let go waits for ever"]
pub struct Told {
    /// The process; it becomes the task.
    pub child: Child,
    control: OwnedFd,
    report: File,
}

/// A shim on its way to becoming the task.
#[derive(Debug)]
#[must_use = "whether the task runs is only known from the outcome"]
pub struct Starting {
    /// The process; it becomes the task.
    pub child: Child,
    control: OwnedFd,
    report: File,
}

/// The result of a shim that executed the command.
#[derive(Debug, Default)]
pub struct Started {
    /// The user that it became; `None` keeps the executor's user.
    pub ids: Option<Ids>,
    /// The process that runs the command if that is not [`Starting::child`], which ends then. A child of this process.
    pub lead: Option<Child>,
    /// The terminal that was opened inside the task.
    pub terminal: Option<Terminal>,
    /// Namespaces that the shim made for the task, to be entered after those of [`Prepared::namespaces`].
    pub namespaces: Namespaces,
}

fn at(step: &'static str) -> impl Fn(io::Error) -> StartError {
    move |source| StartError { step, source }
}

/// Starts a shim, in the v2 cgroup `cgroup` when one is given. The calling process must be single-threaded.
///
/// # Errors
/// [`StartError`] with the step's name. Nothing runs then.
pub fn prepare(plan: Prepare, cgroup: Option<BorrowedFd<'_>>) -> Result<Prepared, StartError> {
    let (control, their_control) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(|e| at("create the shim's socket")(e.into()))?;
    // A separate pipe for the report: a socket that is closed with unread data loses what was sent before.
    let (report, their_report) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| at("create the shim's pipe")(e.into()))?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| at("open /dev/null")(e.into()))?;
    let exe = shielded_exe().map_err(at("open the own executable"))?;
    let birth = Birth {
        // On v2 the clone has made it already.
        cgroup_roots: plan.cgroup_namespace.clone().filter(|_| !cloned_with_cgroup(&plan)),
        join: plan.join.clone(),
        root: plan.isolation.is_some(),
        rootless: plan.rootless.is_some(),
    };
    let birth = json::to_string(&birth).map_err(|e| at("write the shim's arguments")(e.into()))?;
    let c_string = |text: &str| CString::new(text).map_err(|e| at("write the shim's arguments")(e.into()));
    let argv = [c_string(env!("CARGO_PKG_NAME"))?, c_string(Role::Shim.name())?, c_string(&birth)?];
    // Empty except in tests that disable safeguards.
    let envp = mutant::environment().iter().map(|entry| c_string(entry)).collect::<Result<Vec<_>, _>>()?;
    let plan_of_child = Spawn {
        exe,
        argv: &argv,
        envp: &envp,
        fds: &[null.as_fd(), null.as_fd(), null.as_fd(), their_control.as_fd(), their_report.as_fd()],
        flags: namespaces(&plan),
        cgroup,
        writes: &id_maps(&plan),
        report: REPORT_FD as usize,
    };
    let child = match plan.rootless.and_then(|rootless| Some((rootless, rootless.ids?))) {
        Some((rootless, ids)) if plan.isolation.is_some() => {
            let map = |pid| map_shim(pid, rootless, ids, plan.is_nested);
            spawn_mapped(&plan_of_child, map)?
        }
        _ => spawn(&plan_of_child).map_err(at("clone the shim"))?,
    };
    // A process that cannot be signalled is not started. The shim ends when its socket is closed.
    crate::sys::process::check_signal(child.pidfd.as_fd()).map_err(at("signal a process by its descriptor"))?;
    Ok(Prepared { child, plan, control, report: report.into() })
}

/// A child in a user namespace with subordinate ids. Their maps must be written before it executes, or its capabilities are lost,
/// and only a process outside may write them.
fn spawn_mapped(plan: &Spawn<'_>, map: impl FnOnce(i32) -> io::Result<()>) -> Result<Child, StartError> {
    let (child, gate) = spawn_held(plan).map_err(at("clone the shim"))?;
    let let_go = |()| rustix::io::write(&gate, &[0]).map_err(io::Error::from);
    match map(child.pid).and_then(let_go) {
        Ok(_) => Ok(child),
        Err(source) => {
            // The child ends when its gate is closed.
            drop(gate);
            let _ = crate::sys::process::wait(child.pidfd.as_fd());
            Err(StartError { step: "map the user's subordinate ids", source })
        }
    }
}

/// The executable of this process on its own read-only mount: a task that reaches the file through `/proc/<pid>/exe` cannot write
/// to it. Without the right to mount, a sealed copy in memory; or the file as it is, if no user that runs it could write to it.
fn shielded_exe() -> io::Result<BorrowedFd<'static>> {
    if mutant::on("a01") {
        return crate::sys::exe::own();
    }
    static SHIELDED: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(fd) = SHIELDED.get() {
        return Ok(fd.as_fd());
    }
    let own = crate::sys::exe::own()?;
    let read_only = |tree: OwnedFd| {
        mount::set_attributes(tree.as_fd(), MountAttrFlags::MOUNT_ATTR_RDONLY, libc::MS_PRIVATE, false).map(|()| tree)
    };
    let shielded = match mount::clone_tree(own, Path::new("")).and_then(read_only) {
        Ok(tree) => tree,
        Err(_) if crate::sys::exe::is_writable() => crate::sys::exe::sealed_copy()?,
        Err(_) => return Ok(own),
    };
    Ok(SHIELDED.get_or_init(|| shielded).as_fd())
}

fn namespaces(plan: &Prepare) -> u64 {
    let Some((pid_mode, ipc_mode)) = plan.isolation else { return 0 };
    let mut wanted = flags::NEW_MOUNT;
    if pid_mode == NamespaceMode::Private && !mutant::on("c10-pid") {
        wanted |= flags::NEW_PID;
    }
    if ipc_mode == NamespaceMode::Private && !mutant::on("c10-ipc") {
        wanted |= flags::NEW_IPC;
    }
    if cloned_with_cgroup(plan) {
        wanted |= flags::NEW_CGROUP;
    }
    if plan.rootless.is_some() {
        wanted |= flags::NEW_USER;
    }
    wanted
}

/// On v1 the shim makes that namespace when it joins its cgroups, and sends it with the other namespaces that it makes.
fn cloned_with_cgroup(plan: &Prepare) -> bool {
    plan.cgroup_namespace.is_some() && plan.join.is_empty()
}

/// Without root, the executor's own ids become 0 of the new user namespace. The maps are written before the exec, which would lose
/// the capabilities otherwise. Maps with subordinate ids are written by programs of the host.
fn id_maps(plan: &Prepare) -> Vec<(&'static std::ffi::CStr, Vec<u8>)> {
    match plan.rootless {
        Some(own @ Rootless { ids: None, .. }) if plan.isolation.is_some() => vec![
            (c"/proc/self/setgroups", b"deny".to_vec()),
            (c"/proc/self/uid_map", format!("0 {} 1", own.uid).into_bytes()),
            (c"/proc/self/gid_map", format!("0 {} 1", own.gid).into_bytes()),
        ],
        _ => Vec::new(),
    }
}

impl Prepared {
    /// Whether this shim was cloned as `plan` says.
    #[must_use]
    pub fn fits(&self, plan: &Prepare) -> bool {
        self.plan == *plan
    }

    /// The task's namespaces that exist from the clone on.
    ///
    /// # Errors
    /// What `open(2)` says.
    pub fn namespaces(&self) -> io::Result<Namespaces> {
        let mut wanted = Vec::with_capacity(MAX_NAMESPACES);
        if let Some((pid_mode, ipc_mode)) = self.plan.isolation {
            wanted.extend(self.plan.rootless.map(|_| Namespace::Owner));
            wanted.extend((ipc_mode == NamespaceMode::Private).then_some(Namespace::Ipc));
            wanted.extend((pid_mode == NamespaceMode::Private).then_some(Namespace::Pid));
            wanted.extend(cloned_with_cgroup(&self.plan).then_some(Namespace::Cgroup));
            wanted.push(Namespace::Mount);
        }
        Namespaces::open(self.child.pid, &wanted)
    }

    /// Sends the shim its configuration; `namespaces` are those that the configuration's [`SessionConfig`](super::SessionConfig)
    /// names. The shim executes nothing before [`Told::go`].
    ///
    /// # Errors
    /// [`StartError`]; the shim ends then, and its report is lost.
    pub fn tell(self, config: &Config, namespaces: &Namespaces) -> Result<Told, (StartError, Child)> {
        let Prepared { child, control, report, .. } = self;
        let told = config_file(config).map_err(at("write the shim's configuration")).and_then(|config| {
            let fds: Vec<BorrowedFd<'_>> = [config.as_fd()].into_iter().chain(namespaces.fds()).collect();
            send(&control, &fds).map_err(at("send the shim its configuration"))
        });
        match told {
            Ok(()) => Ok(Told { child, control, report }),
            Err(error) => Err((error, child)),
        }
    }
}

impl Told {
    /// Lets the shim execute the command, with this stdin, stdout and stderr.
    ///
    /// # Errors
    /// As [`Prepared::tell`].
    pub fn go(self, stdio: [BorrowedFd<'_>; 3]) -> Result<Starting, (StartError, Child)> {
        let Told { child, control, report } = self;
        match send(&control, &stdio) {
            Ok(()) => Ok(Starting { child, control, report }),
            Err(error) => Err((at("send the shim its stdin, stdout and stderr")(error), child)),
        }
    }
}

/// Sends one message with descriptors only. Ignores that the shim has already failed: its report says why.
fn send(control: &OwnedFd, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SENT))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(fds));
    match sendmsg(control, &[IoSlice::new(b"f")], &mut ancillary, SendFlags::NOSIGNAL) {
        Ok(_) | Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn config_file(config: &Config) -> io::Result<OwnedFd> {
    let bytes = json::to_vec(config)?;
    let mut file = File::from(rustix::fs::memfd_create("agentbin-config", MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

impl Starting {
    /// Readable when [`Starting::outcome`] will not block.
    #[must_use]
    pub fn report(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// What the child has become, or the step at which it failed. Blocks until one of the two is known. `None` for a shim that was
    /// killed before its exec.
    ///
    /// # Errors
    /// The shim's [`Failure`]; the child has ended then and the caller must still reap it through [`Starting::child`].
    pub fn outcome(&mut self) -> Result<Option<Started>, Failure> {
        let mut message = Vec::new();
        if let Err(error) = self.report.read_to_end(&mut message) {
            return Err(Failure::new("hear from the shim", error));
        }
        match message.as_slice() {
            [] => self.became().step(|| "hear from the shim".to_owned()),
            [0, rest @ ..] => {
                let errno = rest.try_into().map_or(0, i32::from_ne_bytes);
                Err(Failure::new("execute the shim", io::Error::from_raw_os_error(errno)))
            }
            json => Err(json::from_slice(json).unwrap_or_else(|_| Failure {
                step: "hear from the shim".to_owned(),
                kind: FailureKind::System,
                message: String::from_utf8_lossy(json).into_owned(),
            })),
        }
    }

    /// The shim's last message, sent before it executed the command.
    fn became(&self) -> io::Result<Option<Started>> {
        let mut bytes = vec![0; MAX_BECAME];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_TOLD))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(&self.control, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags);
        let length = match received {
            Ok(message) if message.bytes > 0 => message.bytes,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let became: Became = json::from_slice(&bytes[..length])?;
        let mut fds = ancillary.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let mut next = || fds.next().ok_or(io::ErrorKind::UnexpectedEof);
        let lead = became.pid.map(|pid| next().map(|pidfd| Child { pid, pidfd })).transpose()?;
        let terminal = if became.terminal { Some(Terminal { master: next()?, slave: next()? }) } else { None };
        let mut namespaces = Namespaces::default();
        for kind in became.namespaces {
            namespaces.push(kind, next()?);
        }
        Ok(Some(Started { ids: became.ids, lead, terminal, namespaces }))
    }
}
