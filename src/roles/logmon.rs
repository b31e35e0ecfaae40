//! The role `logmon`: collects a task's FIFOs for a host.

use std::ffi::OsString;
use std::path::PathBuf;

use tonic::service::Routes;

use crate::logs::logmon::LogMon;
use crate::logs::service::Service;
use crate::plugin::{Level, Server, start_logging};
use crate::spec::Role;
use crate::sys;
use crate::wire::logmon::log_mon_server::LogMonServer;

/// Collects a task's FIFOs for a host. Logs everything from trace level on to stderr: the host filters.
pub(super) fn run(args: &[OsString]) -> i32 {
    if !args.is_empty() {
        return super::explain(Role::Logmon, "expected no arguments");
    }
    let server = match Server::from_env() {
        Ok(server) => server,
        Err(error) => return super::explain(Role::Logmon, &error.to_string()),
    };
    start_logging("logmon", Level::Trace, std::io::stderr());
    sys::prctl::set_name(Role::Logmon.name());
    let served = super::runtime().map_err(anyhow::Error::from).and_then(|runtime| {
        let routes = Routes::new(LogMonServer::new(Service(journals().map_or_else(LogMon::default, LogMon::new))));
        crate::sys::task::block_on(&runtime, server.serve(routes)).map_err(anyhow::Error::from)
    });
    match served {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(%error, "logmon ends");
            1
        }
    }
}

/// The directory of the journals: in memory on most machines, and lost at the next boot.
fn journals() -> Option<PathBuf> {
    let base = if rustix::process::geteuid().is_root() {
        PathBuf::from("/run")
    } else {
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute() && dir.is_dir())?
    };
    Some(base.join("agentbin/logmon"))
}
