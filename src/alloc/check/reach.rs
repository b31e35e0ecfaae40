//! Connections of checks: from the host, or from within an allocation's network namespace.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::net::AddressFamily;
use tokio::net::{TcpSocket, TcpStream};

use crate::{names, net};

/// Where a connection begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::alloc) enum Way {
    /// On the host.
    Host,
    /// In the network namespace at this file.
    Within(PathBuf),
}

/// The address that a check connects to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::alloc) struct Target {
    /// `host:port`.
    pub(in crate::alloc) address: String,
    /// See [`Way`].
    pub(in crate::alloc) way: Way,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

impl Target {
    /// Connects; the caller sets the timeout.
    pub(super) async fn connect(&self) -> io::Result<TcpStream> {
        let Way::Within(namespace) = &self.way else { return names::connect(&self.address).await };
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, format!("{:?} is not an address", self.address));
        let address: SocketAddr = self.address.parse().map_err(wrong)?;
        let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
        let namespace = namespace.clone();
        let made = crate::sys::task::spawn_blocking(move || net::socket_in(&namespace, family));
        let socket = made.await.map_err(io::Error::other)??;
        TcpSocket::from_std_stream(socket.into()).connect(address).await
    }

    /// The host's name or address, for TLS.
    pub(super) fn host(&self) -> &str {
        self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host)
    }
}
