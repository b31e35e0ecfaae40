//! A connection to a service that is made when a call needs it, and given up when none has needed it for a while: HTTP/2 keeps some
//! 60 KiB of buffers and state for each, which is much for a service that is asked once in an hour.

use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::sync::Mutex;
use tonic::ConnectError;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{self, Endpoint};

use crate::sys::stream::Stream;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type AnyError = Box<dyn Error + Send + Sync>;
/// A stream to a service.
type Connecting = Boxed<Result<Stream, std::io::Error>>;

/// What connects: one type for all, as HTTP/2 is instantiated for each. `Endpoint::connect_with_connector` is not used, because it has
/// a second one for connections with a time limit.
pub(crate) struct Connector(Box<dyn FnMut() -> Connecting + Send>);

impl Connector {
    /// Connects by `connect`, again and again if it has to.
    pub(crate) fn new(connect: impl FnMut() -> Connecting + Send + 'static) -> Connector {
        Connector(Box::new(connect))
    }

    /// Connects now.
    ///
    /// # Errors
    /// What connecting and the handshake of HTTP/2 say.
    pub(crate) async fn connect(self, endpoint: Endpoint) -> Result<transport::Channel, transport::Error> {
        transport::Channel::connect(self, endpoint).await
    }

    /// Connects when a call needs it.
    pub(crate) fn lazy(self, endpoint: Endpoint) -> transport::Channel {
        transport::Channel::new(self, endpoint)
    }
}

impl Service<http::Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = ConnectError;
    type Future = Boxed<Result<TokioIo<Stream>, ConnectError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let connecting = (self.0)();
        Box::pin(async move { connecting.await.map(TokioIo::new).map_err(|error| ConnectError(error.into())) })
    }
}

/// Makes a new connection.
pub(crate) type Dial = Box<dyn Fn() -> Boxed<Result<transport::Channel, AnyError>> + Send + Sync>;

/// A connection to a service, for the generated clients. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Channel(Arc<Line>);

struct Line {
    open: Mutex<Option<transport::Channel>>,
    /// `None` for a connection that is kept.
    resting: Option<Resting>,
    /// Calls that have begun, and those of them that have no answer yet.
    calls: AtomicU64,
    unanswered: AtomicUsize,
}

struct Resting {
    after: Duration,
    dial: Dial,
}

/// A call without an answer.
struct Call(Arc<Line>);

impl Call {
    fn new(line: Arc<Line>) -> Call {
        line.unanswered.fetch_add(1, Ordering::SeqCst);
        line.calls.fetch_add(1, Ordering::SeqCst);
        Call(line)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.unanswered.fetch_sub(1, Ordering::SeqCst);
    }
}

impl From<transport::Channel> for Channel {
    /// A connection that is kept.
    fn from(open: transport::Channel) -> Channel {
        Channel::of(Some(open), None)
    }
}

impl Channel {
    fn of(open: Option<transport::Channel>, resting: Option<Resting>) -> Channel {
        let open = Mutex::new(open);
        Channel(Arc::new(Line { open, resting, calls: AtomicU64::new(0), unanswered: AtomicUsize::new(0) }))
    }

    /// A connection that is closed when no call has begun for this long and none waits for its answer, and made again by `dial`.
    /// Messages that are still streamed then arrive nevertheless.
    pub(crate) fn resting(open: transport::Channel, after: Duration, dial: Dial) -> Channel {
        let channel = Channel::of(Some(open), Some(Resting { after, dial }));
        crate::sys::task::spawn(rest(Arc::downgrade(&channel.0), after));
        channel
    }
}

impl Line {
    async fn opened(self: &Arc<Self>) -> Result<transport::Channel, AnyError> {
        let mut open = self.open.lock().await;
        if let Some(open) = &*open {
            return Ok(open.clone());
        }
        let Some(resting) = &self.resting else { return Err("the connection is closed".into()) };
        let made = (resting.dial)().await?;
        *open = Some(made.clone());
        crate::sys::task::spawn(rest(Arc::downgrade(self), resting.after));
        Ok(made)
    }
}

/// Closes the connection when it is not used.
async fn rest(line: Weak<Line>, after: Duration) {
    let mut before = None;
    loop {
        tokio::time::sleep(after).await;
        let Some(line) = line.upgrade() else { return };
        let calls = line.calls.load(Ordering::SeqCst);
        if before == Some(calls) && line.unanswered.load(Ordering::SeqCst) == 0 {
            *line.open.lock().await = None;
            return;
        }
        before = Some(calls);
    }
}

impl Service<http::Request<Body>> for Channel {
    type Response = http::Response<Body>;
    type Error = AnyError;
    type Future = Boxed<Result<http::Response<Body>, AnyError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), AnyError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let call = Call::new(Arc::clone(&self.0));
        Box::pin(async move {
            let mut open = call.0.opened().await?;
            poll_fn(|context| open.poll_ready(context)).await?;
            Ok(open.call(request).await?)
        })
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Channel")
    }
}
