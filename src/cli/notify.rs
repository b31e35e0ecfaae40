//! The service manager, such as systemd, that has started this process: status messages to it, and sockets that it passes. See
//! `sd_notify(3)` and `sd_listen_fds(3)`; without a service manager there are no messages and no sockets.

use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Context as _;
pub(super) use sd_notify::NotifyState;

use crate::http::listener::Listener;
use crate::sys;

/// The interval of watchdog messages: half of the time after which the service manager would kill the agent.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

/// Sends a message to the service manager.
pub(super) fn tell(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        tracing::debug!(%error, "cannot tell the service manager {state}");
    }
}

/// The sockets on which the service manager has listened for this process, each as `made` returns it. To be called once.
///
/// # Errors
/// Variables that cannot be parsed, a descriptor that does not exist, what `made` says.
pub(super) fn sockets(made: impl Fn(OwnedFd) -> anyhow::Result<Listener>) -> anyhow::Result<Vec<Listener>> {
    let numbers = sd_notify::listen_fds().context("cannot use the sockets that LISTEN_FDS names")?;
    let listener = |number| {
        let fd = sys::process::inherited_fd(number).with_context(|| format!("there is no descriptor {number}"))?;
        made(fd)
    };
    numbers.map(|number| listener(number).with_context(|| format!("socket {number} of the service manager"))).collect()
}
