//! The executor's side: clone the shim, tell it everything, hear how it went.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::config::{Config, Failure, FailureKind};
use crate::spec::{NamespaceMode, Role};
use crate::sys::process::{Child, Spawn, flags, spawn};

/// Numbers of the descriptors that the shim starts with, beside 0, 1 and 2.
pub(super) const CONFIG_FD: i32 = 3;
pub(super) const REPORT_FD: i32 = 4;
pub(super) const GO_FD: i32 = 5;

/// How to start a task.
#[derive(Debug)]
pub struct Start<'a> {
    /// What the shim is told.
    pub config: &'a Config,
    /// The task's stdin, stdout and stderr.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Directory of the v2 cgroup in which the task is born.
    pub cgroup: Option<BorrowedFd<'a>>,
    /// Pid namespace; ignored without a root of its own.
    pub pid_mode: NamespaceMode,
    /// IPC namespace; ignored without a root of its own.
    pub ipc_mode: NamespaceMode,
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

/// A shim on its way to becoming the task.
#[derive(Debug)]
#[must_use = "a shim that is not told to go waits for ever"]
pub struct Starting {
    /// The process; it becomes the task.
    pub child: Child,
    report: File,
    go: Option<File>,
}

/// Starts the shim. The calling process must be single-threaded.
///
/// # Errors
/// [`StartError`] with the step's name. Nothing runs then.
pub fn start(start: &Start<'_>) -> Result<Starting, StartError> {
    let at = |step| move |source: io::Error| StartError { step, source };
    let config = config_file(start.config).map_err(at("write the shim's configuration"))?;
    // Two pipes and no socket: a socket that is closed with a byte unread loses what was said before.
    let new_pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|e| at("create the shim's pipes")(e.into()));
    let (report, their_report) = new_pipe()?;
    let (their_go, go) = new_pipe()?;
    let exe = crate::sys::exe::own().map_err(at("open the own executable"))?;
    let argv = [CString::from(c"agentbin"), CString::new(Role::Shim.name()).expect("a role's name has no NUL")];
    let [stdin, stdout, stderr] = start.stdio;
    let writes = id_maps(start.config);
    let child = spawn(&Spawn {
        exe,
        argv: &argv,
        envp: &[],
        fds: &[stdin, stdout, stderr, config.as_fd(), their_report.as_fd(), their_go.as_fd()],
        flags: namespaces(start),
        cgroup: start.cgroup,
        writes: &writes,
        report: REPORT_FD as usize,
    })
    .map_err(at("clone the shim"))?;
    Ok(Starting { child, report: report.into(), go: Some(go.into()) })
}

fn config_file(config: &Config) -> io::Result<OwnedFd> {
    let bytes = serde_json::to_vec(config)?;
    let mut file = std::fs::File::from(rustix::fs::memfd_create("agentbin-config", MemfdFlags::CLOEXEC)?);
    file.write_all(&bytes)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}

fn namespaces(start: &Start<'_>) -> u64 {
    if start.config.root.is_none() {
        return 0;
    }
    let mut wanted = flags::NEW_MOUNT;
    if start.pid_mode == NamespaceMode::Private {
        wanted |= flags::NEW_PID;
    }
    if start.ipc_mode == NamespaceMode::Private {
        wanted |= flags::NEW_IPC;
    }
    if start.config.rootless.is_some() {
        wanted |= flags::NEW_USER;
    }
    wanted
}

/// Without root, the own ids become 0 of the new user namespace, before the exec that would lose the capabilities.
fn id_maps(config: &Config) -> Vec<(&'static std::ffi::CStr, Vec<u8>)> {
    match config.rootless {
        Some(own) if config.root.is_some() => vec![
            (c"/proc/self/setgroups", b"deny".to_vec()),
            (c"/proc/self/uid_map", format!("0 {} 1", own.uid).into_bytes()),
            (c"/proc/self/gid_map", format!("0 {} 1", own.gid).into_bytes()),
        ],
        _ => Vec::new(),
    }
}

impl Starting {
    /// Lets the shim go on to the task: its cgroups are joined.
    ///
    /// A shim that has failed by now does not listen any more; [`Starting::outcome`] tells why.
    pub fn go(&mut self) {
        if let Some(mut go) = self.go.take() {
            let _ = go.write_all(b"g");
        }
    }

    /// Readable when [`Starting::outcome`] will not wait.
    #[must_use]
    pub fn report(&self) -> BorrowedFd<'_> {
        self.report.as_fd()
    }

    /// The child when it has become the task, or the step at which it failed. Waits for one of the two.
    ///
    /// # Errors
    /// The shim's [`Failure`]; the child has ended then and is still to be reaped by the caller through
    /// [`Starting::child`].
    pub fn outcome(&mut self) -> Result<(), Failure> {
        let mut message = Vec::new();
        if let Err(error) = self.report.read_to_end(&mut message) {
            return Err(Failure::new("hear from the shim", error));
        }
        match message.as_slice() {
            [] => Ok(()),
            [0, rest @ ..] => {
                let errno = rest.try_into().map_or(0, i32::from_ne_bytes);
                Err(Failure::new("execute the shim", io::Error::from_raw_os_error(errno)))
            }
            json => Err(serde_json::from_slice(json).unwrap_or_else(|_| Failure {
                step: "hear from the shim".to_owned(),
                kind: FailureKind::System,
                message: String::from_utf8_lossy(json).into_owned(),
            })),
        }
    }
}
