//! A [`LogMonitor`] as a gRPC service.

use tonic::{Request, Response, Status};

use super::{LogMonError, LogMonitor, StartConfig};
use crate::wire::logmon as wire;
use crate::wire::logmon::log_mon_server::LogMon;

/// Serves a log monitor; wrap it in `crate::wire::logmon::log_mon_server::LogMonServer`.
#[derive(Debug, Default)]
pub struct Service<M>(pub M);

#[tonic::async_trait]
impl<M: LogMonitor> LogMon for Service<M> {
    async fn start(&self, request: Request<wire::StartRequest>) -> Result<Response<wire::StartResponse>, Status> {
        self.0.start(request.into_inner().into()).await.map_err(status)?;
        Ok(Response::new(wire::StartResponse {}))
    }

    async fn stop(&self, _: Request<wire::StopRequest>) -> Result<Response<wire::StopResponse>, Status> {
        self.0.stop().await.map_err(status)?;
        Ok(Response::new(wire::StopResponse {}))
    }
}

/// A Go client expects an ordinary error as code `Unknown` with its text.
fn status(error: LogMonError) -> Status {
    match error {
        LogMonError::Rpc(status) => *status,
        other => Status::unknown(other.to_string()),
    }
}

impl From<wire::StartRequest> for StartConfig {
    fn from(request: wire::StartRequest) -> StartConfig {
        StartConfig {
            log_dir: request.log_dir.into(),
            stdout_file: request.stdout_file_name,
            stderr_file: request.stderr_file_name,
            max_files: request.max_files,
            max_file_size_mb: request.max_file_size_mb,
            stdout_fifo: request.stdout_fifo.into(),
            stderr_fifo: request.stderr_fifo.into(),
        }
    }
}
