//! Answers that go on: what a task gives is sent as it comes, no faster than the client reads.

use std::future::Future;
use std::io;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{Body, Bytes};

/// Pieces that wait for a client, at most.
const QUEUE: usize = 16;

/// Where a stream's maker puts its pieces.
#[derive(Debug, Clone)]
pub struct Out(mpsc::Sender<io::Result<Bytes>>);

impl Out {
    /// Sends a piece; waits while the client is slow.
    ///
    /// # Errors
    /// The client has gone: the maker ends.
    pub async fn send(&self, piece: impl Into<Bytes>) -> Result<(), Gone> {
        self.0.send(Ok(piece.into())).await.map_err(|_| Gone)
    }

    /// Cuts the answer off, so that the client sees that it is not whole.
    pub async fn fail(&self, error: io::Error) {
        // The client may have gone, which is as good.
        let _ = self.0.send(Err(error)).await;
    }

    /// Ends when the client has gone.
    pub async fn gone(&self) {
        self.0.closed().await;
    }
}

/// The client of a stream has gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has gone")]
pub struct Gone;

/// A body that `make` fills. It runs as a task of its own and is dropped when the client goes, whatever it waits for.
pub fn stream<F, M>(make: F) -> Body
where
    F: FnOnce(Out) -> M,
    M: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(QUEUE);
    let out = Out(sender);
    let making = make(out.clone());
    crate::sys::task::spawn(async move {
        tokio::select! {
            () = making => {}
            () = out.gone() => {}
        }
    });
    Body::from_stream(ReceiverStream::new(receiver))
}
