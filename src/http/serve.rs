//! Connections of a listener: how many, how long, and how they end.

use crate::sys;
use crate::sys::lock::lock;
use crate::sys::task::boxed;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;

use super::listener::{Listener, Peer};
use super::{Body, Incoming, Request, Response};

/// How long the first request of a connection is waited for once the end was asked for.
const FIRST_REQUEST: Duration = Duration::from_millis(500);

/// What every connection of a listener is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// Connections at once of one address or user, less than all of them: a further one is closed. Not for root and this user.
    pub per_peer: usize,
    /// Bytes of a request's line and headers.
    pub header_bytes: usize,
    /// How long a client may take for them, also for those of the next request of a connection that is kept open.
    pub header_time: Duration,
    /// How long a TLS handshake may take.
    pub handshake: Duration,
    /// How long requests may go on after the end was asked for.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 512,
            per_peer: 100,
            header_bytes: 64 * 1024,
            header_time: Duration::from_secs(30),
            handshake: Duration::from_secs(10),
            end: Duration::from_secs(5),
        }
    }
}

/// An answer that is being made.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// What answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request of a peer. The future is dropped when the client has gone.
    fn answer(&self, request: Request<Incoming>, peer: Peer) -> Answering;
}

/// Serves until `stop` is true: then nothing is accepted any more, requests end within [`Limits::end`], and what still is there is
/// cut. An accept that fails for want of descriptors or memory is tried again when a connection has ended, or after a second.
pub async fn serve(listener: Listener, handler: Arc<dyn Handler>, limits: Limits, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let peers = Peers::default();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = asked(&mut stop) => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, place)) => {
                let Some(counted) = peers.count(stream.peer(), limits.per_peer) else {
                    tracing::debug!("{:?}: it has too many connections", stream.peer());
                    continue;
                };
                let connection = connection(stream, handler.clone(), limits, stop.clone());
                connections.spawn(boxed(async move {
                    connection.await;
                    drop((counted, place));
                }));
            }
            Err(e) => {
                tracing::debug!("a connection was not accepted: {e}");
                if !of_one_connection(&e) {
                    let _ = tokio::time::timeout(Duration::from_secs(1), connections.join_next()).await;
                }
            }
        }
    }
    drop(listener);
    let _ = tokio::time::timeout(limits.end, async { while connections.join_next().await.is_some() {} }).await;
    connections.shutdown().await;
}

/// Ends when the end is asked for, or nobody can ask for it any more.
async fn asked(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// The next one may well be accepted at once.
fn of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted | NotConnected)
}

enum Stream {
    Unix(tokio::net::UnixStream, Peer),
    Tcp(tokio::net::TcpStream, Option<tokio_rustls::TlsAcceptor>, Peer),
}

impl Stream {
    const fn peer(&self) -> Peer {
        match self {
            Stream::Unix(_, peer) | Stream::Tcp(_, _, peer) => *peer,
        }
    }
}

/// Whose connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// An address; of IPv6 the network, which one machine may have all of.
    Address(IpAddr),
    User(u32),
}

impl Who {
    /// `None` for those without a limit.
    fn of(peer: Peer) -> Option<Who> {
        match peer {
            Peer::Unix { uid, .. } => {
                let is_own = uid == 0 || uid == rustix::process::geteuid().as_raw();
                (!is_own).then_some(Who::User(uid))
            }
            Peer::Tcp { address, .. } => Some(Who::Address(match address.ip().to_canonical() {
                IpAddr::V6(ip) => Ipv6Addr::from_bits((ip.to_bits() >> 64) << 64).into(),
                ip @ IpAddr::V4(_) => ip,
            })),
        }
    }
}

/// Those who are connected, once for each connection.
#[derive(Debug, Default, Clone)]
struct Peers(Arc<Mutex<Vec<Who>>>);

/// A connection that is counted.
#[derive(Debug)]
struct Counted(Peers, Option<Who>);

impl Peers {
    /// Counts one more, if it may be.
    fn count(&self, peer: Peer, most: usize) -> Option<Counted> {
        let who = Who::of(peer);
        if let Some(who) = who {
            let mut all = lock(&self.0);
            if all.iter().filter(|one| **one == who).count() >= most {
                return None;
            }
            all.push(who);
        }
        Some(Counted(self.clone(), who))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut all = lock(&self.0.0);
        if let Some(at) = all.iter().position(|one| Some(*one) == self.1) {
            all.swap_remove(at);
        }
    }
}

type Place = tokio::sync::OwnedSemaphorePermit;

async fn accept(listener: &Listener, places: &Arc<Semaphore>) -> io::Result<(Stream, Place)> {
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let stream = match listener {
        Listener::Unix(socket) => {
            let (stream, _) = socket.accept().await?;
            let who = stream.peer_cred()?;
            Stream::Unix(stream, Peer::Unix { uid: who.uid(), gid: who.gid() })
        }
        Listener::Tcp(socket, tls) => {
            let (stream, address) = socket.accept().await?;
            stream.set_nodelay(true)?;
            let peer = Peer::Tcp { address, local: stream.local_addr()?, tls: tls.is_some() };
            Stream::Tcp(stream, tls.clone(), peer)
        }
    };
    Ok((stream, place))
}

async fn connection(stream: Stream, handler: Arc<dyn Handler>, limits: Limits, stop: watch::Receiver<bool>) {
    match stream {
        Stream::Unix(stream, peer) => talk(sys::stream::stream(stream), peer, handler, limits, stop).await,
        Stream::Tcp(stream, None, peer) => talk(sys::stream::stream(stream), peer, handler, limits, stop).await,
        Stream::Tcp(stream, Some(tls), peer) => {
            match tokio::time::timeout(limits.handshake, tls.accept(stream)).await {
                Ok(Ok(stream)) => talk(sys::stream::stream(stream), peer, handler, limits, stop).await,
                Ok(Err(e)) => tracing::debug!("{peer:?}: TLS: {e}"),
                Err(_) => tracing::debug!("{peer:?}: TLS: the handshake took too long"),
            }
        }
    }
}

async fn talk(
    stream: sys::stream::Stream,
    peer: Peer,
    handler: Arc<dyn Handler>,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let begun = Arc::new(Notify::new());
    let begins = Arc::clone(&begun);
    let service = service_fn(move |request| {
        begins.notify_one();
        let answering = handler.answer(request, peer);
        async move { Ok::<_, std::convert::Infallible>(answering.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        // hyper looks at this before a read, which may bring as much again.
        .max_buf_size((limits.header_bytes / 2).max(8192))
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = asked(&mut stop) => tokio::select! {
            biased;
            ended = &mut connection => ended,
            // Who has just connected is answered: its request is on its way.
            _ = tokio::time::timeout(FIRST_REQUEST, begun.notified()) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(e) = ended {
        tracing::debug!("{peer:?}: {e}");
    }
}
