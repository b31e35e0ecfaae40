//! The service manager, such as systemd, that has started this process: what it is told, and the sockets that it hands over.
//! See `sd_notify(3)` and `sd_listen_fds(3)`; where there is none, nothing is told and there are no sockets.

use std::time::Duration;

use anyhow::{Context as _, bail};
pub(super) use sd_notify::NotifyState;

use crate::http::listener::Listener;
use crate::sys;

/// How often it wants to hear that the agent lives: twice in the time after which it would end it.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

/// Tells it.
pub(super) fn tell(state: &NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(std::slice::from_ref(state)) {
        tracing::debug!(%error, "cannot tell the service manager {state}");
    }
}

/// The sockets that it has listened on for this process. Call it once.
///
/// # Errors
/// Variables that nobody can read, a descriptor that is no listening socket, TCP beyond this machine.
pub(super) fn sockets() -> anyhow::Result<Vec<Listener>> {
    let numbers = sd_notify::listen_fds().context("cannot use the sockets that LISTEN_FDS names")?;
    let listener = |number| {
        let fd = sys::process::inherited_fd(number).with_context(|| format!("there is no descriptor {number}"))?;
        let listener = Listener::from_fd(fd, None)?;
        match listener.address() {
            Some(address) if !address.ip().is_loopback() => {
                bail!(
                    "it listens on {address}: beyond this machine the API needs TLS; name a loopback address in the socket's unit"
                )
            }
            _ => Ok(listener),
        }
    };
    numbers.map(|number| listener(number).with_context(|| format!("socket {number} of the service manager"))).collect()
}
