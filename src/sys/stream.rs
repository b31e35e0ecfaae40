//! Connections. Code for HTTP or gRPC is instantiated for each type of connection, 10 to 30 KiB each, so it is given a trait object
//! that can only be read and written.

use tokio::io::{AsyncRead, AsyncWrite};

/// What a connection can do.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection of any kind.
pub type Stream = Box<dyn Duplex>;

/// The connection without its type.
pub fn stream(connection: impl Duplex + 'static) -> Stream {
    Box::new(connection)
}
