//! A [`LogMonitor`] in another process.

use std::path::PathBuf;
use std::time::Duration;

use tonic::Request;

use super::{LogMonError, LogMonitor, StartConfig};
use crate::wire::Channel;
use crate::wire::logmon as wire;
use crate::wire::logmon::log_mon_client::LogMonClient;

/// Deadline of both calls, the same as Nomad's.
const DEADLINE: Duration = Duration::from_mins(1);

/// Calls a logmon at the other end of a channel.
#[derive(Debug, Clone)]
pub struct Client(LogMonClient<Channel>);

impl Client {
    /// Uses an open channel.
    #[must_use]
    pub fn new(channel: Channel) -> Client {
        Client(LogMonClient::new(channel))
    }
}

impl LogMonitor for Client {
    async fn start(&self, config: StartConfig) -> Result<(), LogMonError> {
        let request = request(wire::StartRequest::from(config));
        self.0.clone().start(request).await.map(drop).map_err(|status| LogMonError::Rpc(Box::new(status)))
    }

    async fn stop(&self) -> Result<(), LogMonError> {
        let request = request(wire::StopRequest {});
        self.0.clone().stop(request).await.map(drop).map_err(|status| LogMonError::Rpc(Box::new(status)))
    }
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

impl From<StartConfig> for wire::StartRequest {
    fn from(config: StartConfig) -> wire::StartRequest {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        wire::StartRequest {
            log_dir: text(config.log_dir),
            stdout_file_name: config.stdout_file,
            stderr_file_name: config.stderr_file,
            max_files: config.max_files,
            max_file_size_mb: config.max_file_size_mb,
            stdout_fifo: text(config.stdout_fifo),
            stderr_fifo: text(config.stderr_fifo),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{UnixListener, UnixStream};
    use tokio_stream::wrappers::UnixListenerStream;

    use super::super::service::Service;
    use super::*;
    use crate::wire::logmon::log_mon_server::LogMonServer;

    #[tokio::test]
    async fn d1_a_logmon_across_a_socket() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("socket");
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let service = LogMonServer::new(Service(super::super::logmon::LogMon::default()));
        let server = crate::sys::task::spawn(
            tonic::transport::Server::builder().add_service(service).serve_with_incoming(listener),
        );
        let connector = crate::wire::Connector::new(move || {
            let socket = socket.clone();
            Box::pin(async move { UnixStream::connect(socket).await.map(crate::sys::stream::stream) })
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://unix");
        let client = Client::new(connector.connect(endpoint).await.unwrap().into());
        let mut config = StartConfig {
            log_dir: dir.path().into(),
            stdout_file: "o".into(),
            stderr_file: "e".into(),
            max_files: 1,
            max_file_size_mb: 1,
            stdout_fifo: dir.path().join("o.fifo"),
            stderr_fifo: dir.path().join("e.fifo"),
        };
        client.start(config.clone()).await.unwrap();
        assert!(dir.path().join("e.0").exists());
        client.stop().await.unwrap();
        client.stop().await.unwrap();
        config.log_dir = "/nonexistent/logs".into();
        match client.start(config).await.unwrap_err() {
            LogMonError::Rpc(status) => {
                assert_eq!(status.code(), tonic::Code::Unknown);
                assert!(status.message().starts_with("failed to create stdout logfile"), "{status}");
            }
            other => panic!("{other}"),
        }
        server.abort();
    }
}
