//! The role `docker_logger`: copies a container's output into a task's FIFOs.

use std::ffi::OsString;

use tonic::service::Routes;

use crate::driver::docker::logger::service::Service;
use crate::plugin::{Level, Server, start_logging};
use crate::spec::Role;
use crate::sys;
use crate::wire::docker_logger::docker_logger_server::DockerLoggerServer;

/// Copies a container's output into a task's FIFOs for a host. Logs everything from trace level on to stderr: the host filters.
pub(super) fn run(args: &[OsString]) -> i32 {
    if !args.is_empty() {
        return super::explain(Role::DockerLogger, "expected no arguments");
    }
    let server = match Server::from_env() {
        Ok(server) => server,
        Err(error) => return super::explain(Role::DockerLogger, &error.to_string()),
    };
    start_logging(Role::DockerLogger.name(), Level::Trace, std::io::stderr());
    sys::prctl::set_name(Role::DockerLogger.name());
    let served = super::runtime().map_err(anyhow::Error::from).and_then(|runtime| {
        let routes = Routes::new(DockerLoggerServer::new(Service::default()));
        crate::sys::task::block_on(&runtime, server.serve(routes)).map_err(anyhow::Error::from)
    });
    match served {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(%error, "docker_logger ends");
            1
        }
    }
}
