//! Limits how much of an engine's answer is read. An answer that does not end is an error and does not fill the memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Limit of an answer that is a single value, in bytes: the list of all containers is the longest.
pub(super) const MAX_ANSWER: usize = 32 << 20;
/// Limit of data without a parsable message in a stream of progress, in bytes.
pub(super) const MAX_RIDDLE: usize = 1 << 20;
/// Limit of what comes before a body, in bytes: an engine may send any number of informational answers before the answer.
pub(super) const MAX_HEAD: usize = 1 << 20;
/// Limit of an error answer, in bytes.
pub(super) const MAX_ERROR: usize = 64 << 10;

/// The number of bytes that an engine may still send.
#[derive(Debug, Clone)]
pub(super) struct Allowance {
    most: usize,
    left: Arc<AtomicUsize>,
}

impl Allowance {
    /// An allowance of this many bytes.
    pub(super) fn new(most: usize) -> Allowance {
        Allowance { most, left: Arc::new(AtomicUsize::new(most)) }
    }

    /// Resets the allowance to its full size.
    pub(super) fn renew(&self) {
        self.left.store(self.most, Ordering::Relaxed);
    }

    /// Ends the limit.
    pub(super) fn lift(&self) {
        self.left.store(usize::MAX, Ordering::Relaxed);
    }

    fn spend(&self, bytes: usize) -> io::Result<()> {
        let spend = |left: usize| left.checked_sub(bytes);
        let spent = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
        spent.map(drop).map_err(|_| {
            let text = format!("the engine's answer does not end: more than {} bytes", self.most);
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }
}

/// A connection that is read only up to its allowances: the first one holds until the answer's head is there, the second one, if
/// there is one, for all of the answer.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    head: Allowance,
    whole: Option<Allowance>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, head: Allowance, whole: Option<Allowance>) -> Metered<S> {
        Metered { stream, head, whole }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        self.head.spend(read)?;
        Poll::Ready(self.whole.as_ref().map_or(Ok(()), |whole| whole.spend(read)))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
