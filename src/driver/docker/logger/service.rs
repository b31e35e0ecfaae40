//! A [`DockerLogger`] as gRPC service.

use tonic::{Request, Response, Status};

use super::{DockerLogger, StartConfig};
use crate::docker::Tls;
use crate::wire::docker_logger as wire;

/// Serves a docker_logger; wrap it in `crate::wire::docker_logger::docker_logger_server::DockerLoggerServer`.
#[derive(Debug, Default)]
pub struct Service(DockerLogger);

#[tonic::async_trait]
impl wire::docker_logger_server::DockerLogger for Service {
    async fn start(&self, request: Request<wire::StartRequest>) -> Result<Response<wire::StartResponse>, Status> {
        // A Go host expects an ordinary error as code Unknown with its text.
        self.0.start(request.into_inner().into()).map_err(|e| Status::unknown(e.to_string()))?;
        Ok(Response::new(wire::StartResponse {}))
    }

    async fn stop(&self, _: Request<wire::StopRequest>) -> Result<Response<wire::StopResponse>, Status> {
        self.0.stop().await;
        Ok(Response::new(wire::StopResponse {}))
    }
}

impl From<wire::StartRequest> for StartConfig {
    fn from(request: wire::StartRequest) -> StartConfig {
        StartConfig {
            endpoint: request.endpoint,
            container_id: request.container_id,
            stdout_fifo: request.stdout_fifo.into(),
            stderr_fifo: request.stderr_fifo.into(),
            tls: Tls { cert: request.tls_cert.into(), key: request.tls_key.into(), ca: request.tls_ca.into() },
            tty: request.tty,
            cursor: request.cursor.into(),
        }
    }
}
