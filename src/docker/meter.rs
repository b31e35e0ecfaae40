//! How much of an engine's answer is taken. An answer that does not end is an error, not memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes of an answer that is one value: the list of all containers is the longest of them.
pub(super) const MAX_ANSWER: usize = 32 << 20;
/// Most bytes in which an engine that tells of progress says nothing that can be understood.
pub(super) const MAX_RIDDLE: usize = 1 << 20;
/// Most bytes of an error.
pub(super) const MAX_ERROR: usize = 64 << 10;

/// How many bytes an engine may send.
#[derive(Debug, Clone)]
pub(super) struct Allowance {
    most: usize,
    left: Arc<AtomicUsize>,
}

impl Allowance {
    /// So many.
    pub(super) fn new(most: usize) -> Allowance {
        Allowance { most, left: Arc::new(AtomicUsize::new(most)) }
    }

    /// As many again from here on.
    pub(super) fn renew(&self) {
        self.left.store(self.most, Ordering::Relaxed);
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

/// A connection from which no more is read than is allowed; without an allowance as much as its reader takes.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    allowance: Option<Allowance>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, allowance: Option<Allowance>) -> Metered<S> {
        Metered { stream, allowance }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        std::task::ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        Poll::Ready(self.allowance.as_ref().map_or(Ok(()), |allowance| allowance.spend(read)))
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
