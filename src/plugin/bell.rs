//! A connection to a plugin of ours without gRPC, on which the plugin says once that there is something to ask for. It costs both
//! sides a socket, where a call that waits costs them a connection with all its buffers.
//!
//! It is made on the plugin's own socket: the client's first byte tells it from HTTP/2, whose first word is `PRI`.
//!
//! ```text
//! client: bell 7\n      rings when something differs from the state that the client counts as 7
//! plugin: .             understood
//! plugin: !             rings, and closes the connection; its end means the same
//! ```

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::RecvFlags;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::io::{Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::sys::pages::rest_after;
use crate::sys::task::Boxed;

/// Time limit for the other side's part of the greeting.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest request, in bytes: the word and a number of 64 bits.
const LONGEST: u64 = 32;
/// After this time with a bell and without anything else, what only calls need is released.
const SETTLED: Duration = Duration::from_secs(1);

/// Waits until something differs from the state with this number.
pub(crate) type Ringer = Arc<dyn Fn(u64) -> Boxed<()> + Send + Sync>;

/// A bell that has not been heard yet.
#[derive(Debug)]
pub struct Bell(UnixStream);

impl Bell {
    /// A bell on a new connection, for a client that knows the state `known`.
    ///
    /// # Errors
    /// What writing and reading say; `TimedOut`, or `Unsupported` for a plugin that has none.
    pub(super) async fn on(mut stream: UnixStream, known: u64) -> io::Result<Bell> {
        let made = timeout(PATIENCE, async {
            stream.write_all(format!("bell {known}\n").as_bytes()).await?;
            let mut answer = [0];
            match stream.read(&mut answer).await {
                Ok(1) if answer == *b"." => Ok(Bell(stream)),
                // An HTTP/2 server has sent its settings, or has closed the connection.
                Ok(_) => Err(io::ErrorKind::Unsupported.into()),
                Err(error) => Err(error),
            }
        });
        made.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Waits until it rings. It also does when the plugin has ended.
    pub async fn rung(mut self) {
        // Whatever is read, and any error: the plugin is to be asked.
        let _ = self.0.read(&mut [0]).await;
    }
}

/// A connection to a plugin that has bells: HTTP/2, or a request for one, which is then taken over.
pub(super) struct Answered {
    /// `None` once it was taken over.
    socket: Option<UnixStream>,
    /// `None` once it is HTTP/2.
    ringer: Option<Ringer>,
}

impl fmt::Debug for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answered").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Answered {
    pub(super) fn new(socket: UnixStream, ringer: Ringer) -> Answered {
        Answered { socket: Some(socket), ringer: Some(ringer) }
    }

    /// The connection once its first byte has said that it is HTTP/2. A server speaks first, and a client of a bell must not
    /// hear that.
    fn poll_socket(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut UnixStream>>> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        while self.ringer.is_some() {
            let socket = self.socket.as_ref().ok_or_else(gone)?;
            ready!(socket.poll_read_ready(context))?;
            let mut first = [0];
            let peek = || Ok(rustix::net::recv(socket, &mut first, RecvFlags::PEEK)?.0);
            match socket.try_io(Interest::READABLE, peek) {
                Ok(1..) if first == *b"b" => {
                    let (socket, ringer) = (self.socket.take().ok_or_else(gone)?, self.ringer.take().ok_or_else(gone)?);
                    drop(crate::sys::task::spawn(ring(socket, ringer)));
                }
                Ok(_) => self.ringer = None,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(self.socket.as_mut().map(Pin::new).ok_or_else(gone))
    }
}

/// Answers a request for a bell, and rings it, unless the client goes before.
async fn ring(mut socket: UnixStream, ringer: Ringer) {
    let (reading, mut writing) = socket.split();
    let mut reading = BufReader::with_capacity(LONGEST as usize, reading).take(LONGEST);
    let mut request = String::new();
    if !matches!(timeout(PATIENCE, reading.read_line(&mut request)).await, Ok(Ok(1..))) {
        return;
    }
    let Some(Ok(known)) = request.strip_prefix("bell ").map(|number| number.trim_end().parse()) else { return };
    if writing.write_all(b".").await.is_err() {
        return;
    }
    tokio::select! {
        () = ringer(known) => drop(writing.write_all(b"!").await),
        // It has nothing more to say: this is its end.
        _ = reading.read_u8() => {}
        never = rest_after(SETTLED) => match never {},
    }
}

impl AsyncRead for Answered {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_socket(cx))?.poll_read(cx, buf)
    }
}

impl AsyncWrite for Answered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_socket(cx))?.poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_socket(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_socket(cx))?.poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_socket(cx))?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
