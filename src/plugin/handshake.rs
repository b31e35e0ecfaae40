use std::fmt;
use std::path::{Path, PathBuf};

/// Environment variable that tells a plugin it was started by a host.
pub const COOKIE_KEY: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
/// The value that Nomad's hosts give it. Not a secret: it only catches a start by hand.
pub const COOKIE_VALUE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";
/// The one app protocol version that Nomad speaks.
pub const PROTOCOL_VERSION: u32 = 2;

const CORE_VERSION: u32 = 1;

/// The line with which a plugin tells its host where it listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// App protocol version that the plugin chose.
    pub version: u32,
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Whether broker multiplexing is supported; `None` when the host did not ask.
    pub multiplex: Option<bool>,
}

/// Why a handshake line was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Fewer than four fields.
    #[error("unrecognized plugin message {0:?}: expected core|version|network|address|protocol")]
    Unrecognized(String),
    /// Core protocol other than 1.
    #[error("plugin speaks core protocol {0:?}, this host speaks {CORE_VERSION}")]
    Core(String),
    /// App protocol that was not offered.
    #[error("plugin speaks app protocol {0:?}, this host speaks {PROTOCOL_VERSION}")]
    Version(String),
    /// Anything but a unix socket.
    #[error("plugin listens on network {0:?}, this host dials unix sockets only")]
    Network(String),
    /// Anything but gRPC.
    #[error("plugin speaks {0:?}, this host speaks grpc only")]
    Protocol(String),
    /// A certificate although none was asked for.
    #[error("plugin sent a TLS certificate although this host did not ask for TLS")]
    UnexpectedTls,
}

impl fmt::Display for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{CORE_VERSION}|{}|unix|{}|grpc|", self.version, self.socket.display())?;
        match self.multiplex {
            Some(answer) => write!(f, "|{answer}"),
            None => Ok(()),
        }
    }
}

impl Handshake {
    /// Reads a plugin's first line.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub fn parse(line: &str) -> Result<Handshake, HandshakeError> {
        let line = line.trim();
        let fields: Vec<&str> = line.split('|').collect();
        let [core, version, network, address, rest @ ..] = fields.as_slice() else {
            return Err(HandshakeError::Unrecognized(line.chars().take(200).collect()));
        };
        if core.parse() != Ok(CORE_VERSION) {
            return Err(HandshakeError::Core((*core).to_owned()));
        }
        if version.parse() != Ok(PROTOCOL_VERSION) {
            return Err(HandshakeError::Version((*version).to_owned()));
        }
        if *network != "unix" {
            return Err(HandshakeError::Network((*network).to_owned()));
        }
        // A line without the field comes from a net/rpc plugin.
        let protocol = rest.first().copied().unwrap_or("netrpc");
        if protocol != "grpc" {
            return Err(HandshakeError::Protocol(protocol.to_owned()));
        }
        // Go hosts take the field for a certificate only when it is longer than 50 characters.
        if rest.get(1).is_some_and(|cert| cert.len() > 50) {
            return Err(HandshakeError::UnexpectedTls);
        }
        let multiplex = rest.get(2).and_then(|text| text.parse().ok());
        Ok(Handshake { version: PROTOCOL_VERSION, socket: Path::new(address).to_owned(), multiplex })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Handshake, HandshakeError> {
        Handshake::parse(line)
    }

    /// A3: the exact lines that were observed from go-plugin 1.8.
    #[test]
    fn line_is_what_go_plugin_prints() {
        let mut handshake = Handshake { version: 2, socket: "/tmp/plugin1226541826".into(), multiplex: None };
        assert_eq!(handshake.to_string(), "1|2|unix|/tmp/plugin1226541826|grpc|");
        assert_eq!(parse("1|2|unix|/tmp/plugin1226541826|grpc|\n"), Ok(handshake.clone()));
        handshake.multiplex = Some(false);
        assert_eq!(handshake.to_string(), "1|2|unix|/tmp/plugin1226541826|grpc||false");
        assert_eq!(parse(&handshake.to_string()), Ok(handshake));
    }

    #[test]
    fn foreign_lines_are_refused_with_their_reason() {
        assert!(matches!(parse("hello"), Err(HandshakeError::Unrecognized(_))));
        assert!(matches!(parse(""), Err(HandshakeError::Unrecognized(_))));
        assert_eq!(parse("2|2|unix|/s|grpc|"), Err(HandshakeError::Core("2".into())));
        assert_eq!(parse("1|9|unix|/s|grpc|"), Err(HandshakeError::Version("9".into())));
        assert_eq!(parse("1|2|tcp|127.0.0.1:1|grpc|"), Err(HandshakeError::Network("tcp".into())));
        assert_eq!(parse("1|2|unix|/s"), Err(HandshakeError::Protocol("netrpc".into())));
        assert_eq!(parse(&format!("1|2|unix|/s|grpc|{}", "A".repeat(51))), Err(HandshakeError::UnexpectedTls));
        assert!(parse(&format!("1|2|unix|/s|grpc|{}", "A".repeat(50))).is_ok());
    }
}
