//! The role `docker_logger`: copies a container's output into a task's FIFOs.

use std::ffi::OsString;

use tokio::runtime::Builder;
use tonic::service::Routes;
use tracing_subscriber::layer::SubscriberExt as _;

use crate::driver::docker::logger::service::Service;
use crate::plugin::{HclogLayer, Level, Server};
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
    let layer = HclogLayer::new(Role::DockerLogger.name(), Level::Trace, std::io::stderr());
    // Fails only if a subscriber was set before, and no code runs before a role.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer));
    sys::prctl::set_name(Role::DockerLogger.name());
    let served = Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from).and_then(|runtime| {
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
