//! Checks by the health service of gRPC (`grpc.health.v1`).

use tonic::transport::Endpoint;
use tonic_health::pb::health_check_response::ServingStatus;

use super::reach::Target;
use super::{Found, causes, failed, found, secured, tls};
use crate::spec::CheckStatus;
use crate::sys::stream::{Stream, stream};
use crate::wire::{Channel, Connector};

/// Longest response that is read, in bytes.
const LONGEST_ANSWER: usize = 64 << 10;

/// A request to the health service; all values are interpolated.
#[derive(Debug, Clone)]
pub(in crate::alloc) struct Grpc {
    /// The service to ask about; empty means the whole server.
    pub(in crate::alloc) service: String,
    pub(in crate::alloc) tls: bool,
    pub(in crate::alloc) skip_verify: bool,
    /// Empty means the address.
    pub(in crate::alloc) server_name: String,
}

impl Grpc {
    pub(super) async fn ask(&self, target: &Target) -> Found {
        let about = if self.service.is_empty() { String::new() } else { format!("/{}", self.service) };
        let shown = format!("gRPC check {target}{about}");
        let channel = match self.connect(target).await {
            Ok(channel) => channel,
            Err(why) => return failed(&format!("{shown}: {why}")),
        };
        match crate::wire::health(channel, &self.service, LONGEST_ANSWER).await {
            Ok(answer) => match answer.status() {
                ServingStatus::Serving => found(CheckStatus::Passing, format!("{shown}: success")),
                other => failed(&format!("{shown}: it says {}", other.as_str_name())),
            },
            Err(status) => failed(&format!("{shown}: {:?}: {}", status.code(), status.message())),
        }
    }

    async fn connect(&self, target: &Target) -> Result<Channel, String> {
        let told = |error: std::io::Error| causes(&error);
        let scheme = if self.tls { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{target}")).map_err(|error| causes(&error))?;
        let connected = target.connect().await.map_err(told)?;
        if self.tls {
            let tls = tls(self.skip_verify, b"h2").await.map_err(told)?;
            let name = if self.server_name.is_empty() { target.host() } else { &self.server_name };
            over(endpoint, stream(secured(connected, tls, name).await.map_err(told)?)).await
        } else {
            over(endpoint, stream(connected)).await
        }
    }
}

/// A channel on this one connection; it never reconnects.
async fn over(endpoint: Endpoint, stream: Stream) -> Result<Channel, String> {
    let mut only = Some(stream);
    let connector = Connector::new(move || {
        let next = only.take().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected));
        Box::pin(std::future::ready(next))
    });
    connector.connect(endpoint).await.map(Channel::from).map_err(|error| causes(&error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_stream::wrappers::TcpListenerStream;
    use tonic_health::ServingStatus;

    use super::super::{Inside, Probe, Way};
    use super::*;

    #[tokio::test]
    async fn j3_the_health_service_of_a_real_server_decides() {
        let (health, service) = tonic_health::server::health_reporter();
        health.set_service_status("web", ServingStatus::Serving).await;
        health.set_service_status("db", ServingStatus::NotServing).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target { address: listener.local_addr().unwrap().to_string(), way: Way::Host };
        let serving = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        let ask = async |service: &str| {
            let (tls, skip_verify, server_name) = (false, false, String::new());
            let grpc = Grpc { service: service.to_owned(), tls, skip_verify, server_name };
            let inside: Inside = Box::new(|| None);
            Probe::Grpc(target.clone(), grpc).try_once(Duration::from_secs(30), &inside).await
        };
        assert_eq!(ask("").await, (CheckStatus::Passing, format!("gRPC check {target}: success"), 0));
        assert_eq!(ask("web").await.0, CheckStatus::Passing);
        let (status, output, _) = ask("db").await;
        assert!(status == CheckStatus::Critical && output.contains("NOT_SERVING"), "{output}");
        let (status, output, _) = ask("other").await;
        assert!(status == CheckStatus::Critical && output.contains("NotFound"), "{output}");
        health.set_service_status("web", ServingStatus::NotServing).await;
        assert_eq!(ask("web").await.0, CheckStatus::Critical);
    }
}
