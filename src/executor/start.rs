//! Starts a shim, waits for it, and tells why a command could not be started: for the task and for sessions in it.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{ExecutorError, isolated};
use crate::cgroup::TaskCgroup;
use crate::container::{self, Failure, FailureKind, Prepare, Prepared, StartError};
use crate::logs::words_of_go;
use crate::spec::{HostIds, NamespaceMode, Signal};
use crate::sys;
use crate::sys::process::{Child, WaitStatus};

/// How long a tracer may delay the exit status of a process.
const TRACER_PATIENCE: Duration = Duration::from_secs(2);

/// All processes of a task without a cgroup: this process inherits orphans.
pub(super) fn descendants() -> std::io::Result<Vec<sys::processes::Stat>> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    sys::processes::all().map(|all| sys::processes::descendants(&all, own))
}

/// Waits for the end of a child and reaps it; `None` when its status is not available.
pub(super) async fn wait_for(pidfd: &AsyncFd<Arc<OwnedFd>>) -> Option<WaitStatus> {
    ended(pidfd, sys::process::try_wait).await
}

/// Waits until `ask` returns the exit status of a child; `None` when it is not available.
///
/// The end of a traced process is reported to its tracer first: its pidfd becomes readable then, and again when the tracer has
/// reaped it.
pub(super) async fn ended(
    pidfd: &AsyncFd<Arc<OwnedFd>>,
    ask: fn(BorrowedFd<'_>) -> std::io::Result<Option<WaitStatus>>,
) -> Option<WaitStatus> {
    let mut patience = None;
    loop {
        let readable = async {
            match patience {
                None => Some(pidfd.readable().await),
                Some(until) => tokio::time::timeout_at(until, pidfd.readable()).await.ok(),
            }
        };
        let mut ready = readable.await?.ok()?;
        match ask(pidfd.get_ref().as_fd()) {
            Ok(Some(status)) => return Some(status),
            Ok(None) => ready.clear_ready(),
            Err(_) => return None,
        }
        patience.get_or_insert_with(|| tokio::time::Instant::now() + TRACER_PATIENCE);
    }
}

/// Waits until a descriptor is readable; for a pidfd that is the end of its process.
pub(super) async fn readable(fd: BorrowedFd<'_>) -> Result<(), ExecutorError> {
    let failed = |e: std::io::Error| ExecutorError::System(format!("wait for the shim: {e}"));
    watch(fd).map_err(failed)?.readable().await.map(drop).map_err(failed)
}

pub(super) fn watch(fd: BorrowedFd<'_>) -> std::io::Result<AsyncFd<Arc<OwnedFd>>> {
    sys::watch::register(Arc::new(fd.try_clone_to_owned()?), Interest::READABLE)
}

/// The parameters with which the shim is cloned.
pub(super) fn plan(
    isolation: Option<(NamespaceMode, NamespaceMode)>,
    cgroup_namespace: bool,
    host_ids: Option<HostIds>,
    cgroup: Option<&TaskCgroup>,
) -> Result<Prepare, ExecutorError> {
    let join = cgroup.map(TaskCgroup::join_files).unwrap_or_default();
    let roots = || cgroup.map(TaskCgroup::root_files).unwrap_or_default();
    let cgroup_namespace = (cgroup_namespace && isolation.is_some()).then(roots);
    Ok(Prepare { isolation, cgroup_namespace, rootless: isolated::rootless(host_ids)?, join, is_nested: false })
}

pub(super) fn start_shim(plan: Prepare, cgroup: Option<&TaskCgroup>) -> Result<Prepared, ExecutorError> {
    // Where there are subordinate ids, making user namespaces has already worked.
    let hint = plan.isolation.is_some() && plan.rootless.is_some_and(|rootless| rootless.ids.is_none());
    let born_in = cgroup.map(TaskCgroup::dir_fd).transpose().map_err(cgroup_error)?.flatten();
    container::prepare(plan, born_in.as_ref().map(OwnedFd::as_fd))
        .map_err(|error| ExecutorError::System(unprivileged_hint(hint, error.to_string())))
}

/// The shim, if the message could be sent to it; otherwise ends it.
pub(super) async fn alive<T>(told: Result<T, (StartError, Child)>) -> Result<T, ExecutorError> {
    match told {
        Ok(told) => Ok(told),
        Err((error, child)) => {
            end_child(child).await;
            Err(ExecutorError::System(error.to_string()))
        }
    }
}

/// Kills and reaps a process that must not become the task.
pub(super) async fn end_child(child: Child) {
    // ESRCH: it has already ended.
    let _ = sys::process::send_signal(child.pidfd.as_fd(), Signal::KILL);
    if readable(child.pidfd.as_fd()).await.is_ok() {
        let _ = sys::process::try_wait(child.pidfd.as_fd());
    }
}

pub(super) fn open_null() -> Result<OwnedFd, ExecutorError> {
    use rustix::fs::{Mode, OFlags, open};
    open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| ExecutorError::System(format!("open /dev/null: {e}")))
}

/// Lets the task's user reopen one of our pipes by its name in `/proc`. Without root it cannot be chowned, and with subordinate ids
/// the task's user differs from ours: then it is opened to all users who can access a process that has it.
pub(super) fn open_to_task(end: BorrowedFd<'_>, config: &container::Config) {
    let Some(ids) = &config.host_ids else { return };
    // If this fails, reopening the pipe fails later.
    let _ = match config.rootless {
        None => rustix::fs::fchown(end, Some(rustix::process::Uid::from_raw(config.on_host(ids.uid))), None),
        Some(rootless) if rootless.ids.is_some() => rustix::fs::fchmod(end, rustix::fs::Mode::from_raw_mode(0o666)),
        Some(_) => Ok(()),
    };
}

#[expect(clippy::needless_pass_by_value, reason = "stands in map_err")]
pub(super) fn cgroup_error(error: crate::cgroup::Error) -> ExecutorError {
    // Where a directory is missing, hosts look for exactly this text.
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    let missing = cause.filter(|cause| cause.kind() == std::io::ErrorKind::NotFound);
    let lead = missing.map(|cause| format!("{}: ", words_of_go(cause))).unwrap_or_default();
    ExecutorError::System(format!("unable to configure cgroups: {lead}{}", chain(&error)))
}

/// An error with its causes: only the text is sent to the host.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The error that the caller gets for a command that could not be started.
pub(super) fn start_error(command: &str, rootless: bool, failure: &Failure) -> ExecutorError {
    match failure.kind {
        FailureKind::CommandNotFound => ExecutorError::CommandNotFound(failure.to_string()),
        FailureKind::NotExecutable => ExecutorError::NotExecutable(failure.to_string()),
        FailureKind::Invalid => ExecutorError::Invalid(failure.to_string()),
        FailureKind::CgroupGone | FailureKind::System => {
            let text = format!("failed to start command path={command:?}: {failure}");
            ExecutorError::System(unprivileged_hint(rootless, text))
        }
    }
}

/// Adds a hint on what an unprivileged user's failed start most likely lacks.
fn unprivileged_hint(rootless: bool, text: String) -> String {
    if !rootless {
        return text;
    }
    format!(
        "{text}: isolating a task without root needs user namespaces that this machine does not give to plain users; \
         set sysctl user.max_user_namespaces above 0 (and kernel.unprivileged_userns_clone=1 or \
         kernel.apparmor_restrict_unprivileged_userns=0 where they exist), run as root, or use the raw_exec driver"
    )
}
