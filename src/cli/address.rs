//! An address on which the agent listens.

use std::net::SocketAddr;
use std::path::PathBuf;

/// An address on which the agent listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// Parses `unix:///PATH` or `tcp://ADDRESS:PORT`.
pub(super) fn address(text: &str) -> Result<Address, String> {
    if let Some(path) = text.strip_prefix("unix://") {
        let path = PathBuf::from(path);
        return if path.is_absolute() { Ok(Address::Unix(path)) } else { Err("write it as unix:///PATH".to_owned()) };
    }
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    address.parse().map(Address::Tcp).map_err(|_| "write it as unix:///PATH or tcp://ADDRESS:PORT".to_owned())
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
            Address::Tcp(address) => write!(f, "http://{address}"),
        }
    }
}
