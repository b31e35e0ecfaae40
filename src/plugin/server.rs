//! The plugin side: handshake, the common services, orderly shutdown.

use std::io::{self, Write as _};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use super::bell::Ringer;
use super::connection::{self, Address, Sockets};
use super::tls::{self, Identity, Tls};
use super::{Broker, Handshake, Protocol};
use crate::sys;
use crate::wire::goplugin::grpc_broker_server::{GrpcBroker, GrpcBrokerServer};
use crate::wire::goplugin::grpc_controller_server::{GrpcController, GrpcControllerServer};
use crate::wire::goplugin::grpc_stdio_server::{GrpcStdio, GrpcStdioServer};
use crate::wire::goplugin::{ConnInfo, Empty, StdioData};

/// Hosts wait 2 s for the exit after Shutdown; calls that are still running are aborted after this time.
const DRAIN: Duration = Duration::from_millis(200);

/// After this time a plugin's start, and that of its task, is over, and what only they needed is released.
const STARTED: Duration = Duration::from_secs(2);

/// Why a plugin could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cookie is missing: this program was started manually, not by a host.
    #[error("this program is a plugin: it is started by a go-plugin host, not by hand")]
    NotAPlugin,
    /// Our own certificate could not be made.
    #[error("cannot make a TLS certificate for this host: {0}")]
    Tls(#[source] io::Error),
    /// The socket could not be made.
    #[error("cannot listen on a socket in {dir}: {source}")]
    Listen {
        /// Its directory.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The handshake line could not be written.
    #[error("cannot tell the host where this plugin listens")]
    Handshake(#[source] io::Error),
    /// The gRPC server failed.
    #[error("plugin server failed")]
    Serve(#[source] tonic::transport::Error),
}

/// A plugin that listens, but does not serve yet.
#[derive(Debug)]
pub struct Server {
    listener: StdUnixListener,
    socket: PathBuf,
    handshake: Handshake,
    tls: Option<Tls>,
    broker: Arc<Broker>,
    stop: watch::Sender<bool>,
    announced: bool,
    host_is_unreadable: bool,
}

/// Ends a [`Server`] from other code, as the host's Shutdown call does.
#[derive(Debug, Clone)]
pub struct Stop(watch::Sender<bool>);

impl Stop {
    /// Asks the server to end.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl Server {
    /// Checks that a Nomad host (or one with the same protocol) started this process, and binds its socket.
    ///
    /// # Errors
    /// See [`Server::from_env_for`].
    pub fn from_env() -> Result<Server, ServeError> {
        Server::from_env_for(&Protocol::nomad())
    }

    /// Checks that a host with the protocol `protocol` started this process, and binds its socket.
    ///
    /// # Errors
    /// [`ServeError::NotAPlugin`] when the cookie is missing, [`ServeError::Listen`], [`ServeError::Tls`].
    pub fn from_env_for(protocol: &Protocol) -> Result<Server, ServeError> {
        let said = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        if said(&protocol.cookie_key).is_none_or(|value| value != *protocol.cookie_value) {
            return Err(ServeError::NotAPlugin);
        }
        let text = |name: &str| said(name).map(|value| value.to_string_lossy().into_owned());
        let dir = said("PLUGIN_UNIX_SOCKET_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let sockets = Sockets { dir, group: text("PLUGIN_UNIX_SOCKET_GROUP") };
        let mut certificate = None;
        let mut host_is_unreadable = false;
        let tls = match text("PLUGIN_CLIENT_CERT") {
            None => None,
            Some(pem) => {
                let hosts = tls::certificates_in(&pem);
                host_is_unreadable = hosts.is_empty();
                let identity = Identity::new().map_err(ServeError::Tls)?;
                certificate = Some(identity.der());
                Some(identity.towards(hosts).map_err(ServeError::Tls)?)
            }
        };
        let (listener, socket) =
            sockets.bind().map_err(|source| ServeError::Listen { dir: sockets.dir.clone(), source })?;
        let handshake = Handshake {
            version: protocol.choose(&text("PLUGIN_PROTOCOL_VERSIONS").unwrap_or_default()),
            address: Address::Unix(socket.clone()),
            certificate,
            // Answered only when the variable is set to a value: older hosts would append the answer to the certificate.
            multiplex: said("PLUGIN_MULTIPLEX_GRPC").map(|_| false),
        };
        Ok(Server {
            listener,
            socket,
            handshake,
            broker: Arc::new(Broker::new(sockets, tls.clone(), None)),
            tls,
            stop: watch::Sender::new(false),
            announced: false,
            host_is_unreadable,
        })
    }

    /// The broker of this connection.
    #[must_use]
    pub fn broker(&self) -> Arc<Broker> {
        Arc::clone(&self.broker)
    }

    /// A handle that ends the server.
    #[must_use]
    pub fn stop_handle(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Prints the handshake. The host may connect from here on; requests are answered once [`Server::serve`] runs, so that work in
    /// between overlaps with the host's.
    ///
    /// # Errors
    /// [`ServeError::Handshake`].
    pub fn announce(&mut self) -> Result<(), ServeError> {
        if self.announced {
            return Ok(());
        }
        // Ctrl-C on the host's terminal is meant for the host, which then ends its plugins. Done before the handshake, after which
        // the host relies on it.
        sys::prctl::ignore_signal(rustix::process::Signal::INT);
        if self.host_is_unreadable {
            tracing::error!("PLUGIN_CLIENT_CERT holds no certificate that can be read: nobody will be able to connect");
        }
        self.print_handshake().map_err(ServeError::Handshake)?;
        self.announced = true;
        Ok(())
    }

    /// Prints the handshake, unless that is done, and serves `services` and the common ones until the host or a [`Stop`] ends it.
    /// The socket is removed afterwards.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub async fn serve(mut self, services: Routes) -> Result<(), ServeError> {
        self.announce()?;
        self.serve_until_stopped(services, None).await
    }

    /// The same, and a client that has no call to wait with gets a [`super::Bell`], which `ringer` rings.
    pub(crate) async fn serve_ringing(mut self, services: Routes, ringer: Ringer) -> Result<(), ServeError> {
        self.announce()?;
        self.serve_until_stopped(services, Some(ringer)).await
    }

    async fn serve_until_stopped(&self, services: Routes, ringer: Option<Ringer>) -> Result<(), ServeError> {
        let listener = self
            .listener
            .set_nonblocking(true)
            .and_then(|()| self.listener.try_clone())
            .and_then(UnixListener::from_std)
            .map_err(|source| ServeError::Listen { dir: self.socket.clone(), source })?;
        let (health, health_service) = tonic_health::server::health_reporter();
        health.set_service_status("plugin", tonic_health::ServingStatus::Serving).await;
        let common = Common { broker: Arc::clone(&self.broker), stop: self.stop.clone() };
        let mut stopped = self.stop.subscribe();
        let serving = tonic::transport::Server::builder()
            .add_routes(services)
            .add_service(health_service)
            .add_service(GrpcControllerServer::new(common.clone()))
            .add_service(GrpcStdioServer::new(common.clone()))
            .add_service(GrpcBrokerServer::new(common))
            .serve_with_incoming_shutdown(connection::connections(listener, self.tls.clone(), ringer), {
                let mut stopped = stopped.clone();
                async move {
                    let _ = stopped.wait_for(|stop| *stop).await;
                }
            });
        tokio::select! {
            result = serving => result.map_err(ServeError::Serve),
            () = async {
                let _ = stopped.wait_for(|stop| *stop).await;
                tokio::time::sleep(DRAIN).await;
            } => Ok(()),
            never = sys::pages::rest_after(STARTED) => match never {},
        }
    }

    fn print_handshake(&self) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        stdout.write_all(format!("{}\n", self.handshake).as_bytes())?;
        stdout.flush()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already removed if another process cleaned the directory: nothing to do.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The services of every plugin.
#[derive(Debug, Clone)]
struct Common {
    broker: Arc<Broker>,
    stop: watch::Sender<bool>,
}

type Boxed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Common {
    /// A stream to the host that ends with the server, so that an orderly shutdown need not wait for it.
    fn open_stream<T: Send + 'static>(&self) -> (mpsc::UnboundedSender<T>, Boxed<T>) {
        let (outside, mut items) = mpsc::unbounded_channel();
        let (inside, stream) = mpsc::unbounded_channel();
        let mut stopped = self.stop.subscribe();
        crate::sys::task::spawn(async move {
            loop {
                tokio::select! {
                    _ = stopped.wait_for(|stop| *stop) => break,
                    () = inside.closed() => break,
                    // Without a sender there is nothing more to send; the stream stays open and idle.
                    Some(item) = items.recv() => {
                        let _ = inside.send(Ok(item));
                    }
                }
            }
        });
        (outside, Box::pin(UnboundedReceiverStream::new(stream)))
    }
}

#[tonic::async_trait]
impl GrpcController for Common {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.stop.send_replace(true);
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcStdio for Common {
    type StreamStdioStream = Boxed<StdioData>;

    /// Roles print nothing after the handshake, so there is never anything to send.
    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        Ok(Response::new(self.open_stream().1))
    }
}

#[tonic::async_trait]
impl GrpcBroker for Common {
    type StartStreamStream = Boxed<ConnInfo>;

    async fn start_stream(
        &self,
        request: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<Self::StartStreamStream>, Status> {
        let (sender, stream) = self.open_stream();
        self.broker.set_peer(sender);
        let broker = Arc::clone(&self.broker);
        let mut incoming = request.into_inner();
        let mut stopped = self.stop.subscribe();
        crate::sys::task::spawn(async move {
            // A request stream that is still open would delay the end of the connection, and with it an orderly shutdown.
            loop {
                tokio::select! {
                    _ = stopped.wait_for(|stop| *stop) => break,
                    item = incoming.next() => match item {
                        Some(Ok(info)) => broker.received(info),
                        Some(Err(_)) | None => break,
                    },
                }
            }
        });
        Ok(Response::new(stream))
    }
}
