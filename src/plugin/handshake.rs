//! The handshake of go-plugin: cookie, protocol versions, and the line that a plugin prints.

use std::fmt;

use super::connection::Address;
use super::tls;

/// Environment variable that shows a plugin that a host started it.
pub const COOKIE_KEY: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
/// The value that Nomad's hosts set. Not a secret: it only detects a manual start.
pub const COOKIE_VALUE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";
/// The only app protocol version that Nomad supports.
pub const PROTOCOL_VERSION: u32 = 2;

const CORE_VERSION: u32 = 1;

/// Go hosts treat the field as a certificate only if it is longer than this many characters.
const NO_CERTIFICATE: usize = 50;

/// What a host and its plugins agree on in advance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protocol {
    /// Name of the environment variable by which a plugin detects that a host started it.
    pub cookie_key: String,
    /// Its value.
    pub cookie_value: String,
    /// The supported app protocol versions, at least one.
    pub versions: Vec<u32>,
}

impl Protocol {
    /// Nomad's protocol, which is also the default.
    #[must_use]
    pub fn nomad() -> Protocol {
        Protocol {
            cookie_key: COOKIE_KEY.to_owned(),
            cookie_value: COOKIE_VALUE.to_owned(),
            versions: vec![PROTOCOL_VERSION],
        }
    }

    /// The versions in the form in which a host offers them, and messages quote them.
    pub(super) fn offer(&self) -> String {
        self.versions.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }

    /// The version that a plugin chooses from an offer: the highest that both support, else its own lowest, which the host will
    /// refuse.
    pub(super) fn choose(&self, offer: &str) -> u32 {
        let offered: Vec<u32> = offer.split(',').filter_map(|version| version.trim().parse().ok()).collect();
        let both = self.versions.iter().copied().filter(|version| offered.contains(version)).max();
        both.or_else(|| self.versions.iter().copied().min()).unwrap_or_default()
    }
}

impl Default for Protocol {
    fn default() -> Protocol {
        Protocol::nomad()
    }
}

/// The line by which a plugin announces its address to its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handshake {
    /// App protocol version that the plugin chose.
    pub version: u32,
    /// The address on which it listens.
    pub address: Address,
    /// Its TLS certificate in DER; `None` when the host did not ask for TLS.
    pub certificate: Option<Vec<u8>>,
    /// Whether broker multiplexing is supported; `None` when the host did not ask.
    pub multiplex: Option<bool>,
}

/// Why a handshake line could not be parsed, or was not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Fewer than four fields.
    #[error("unrecognized plugin message {0:?}: expected core|version|network|address|protocol")]
    Unrecognized(String),
    /// Core protocol other than 1.
    #[error("plugin speaks core protocol {0:?}, this host speaks {CORE_VERSION}")]
    Core(String),
    /// App protocol that was not offered.
    #[error("plugin speaks app protocol {answered:?}, this host speaks {offered}")]
    Version {
        /// The plugin's.
        answered: String,
        /// The host's, separated by commas.
        offered: String,
    },
    /// Neither a unix socket nor a TCP port.
    #[error("plugin listens where this host cannot connect: {0}")]
    Network(String),
    /// Anything but gRPC.
    #[error("plugin speaks {0:?}, this host speaks grpc only")]
    Protocol(String),
    /// A certificate although none was asked for.
    #[error("plugin sent a TLS certificate although this host did not ask for TLS")]
    UnexpectedTls,
    /// No certificate although one was asked for.
    #[error("plugin sent no TLS certificate although this host asked for AutoMTLS: it does not support it")]
    NoTls,
    /// A certificate that cannot be read.
    #[error("plugin sent an unreadable TLS certificate: {0}")]
    Certificate(String),
}

impl fmt::Display for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certificate = self.certificate.as_deref().map(tls::encode_field).unwrap_or_default();
        let network = self.address.network();
        write!(f, "{CORE_VERSION}|{}|{network}|{}|grpc|{certificate}", self.version, self.address)?;
        match self.multiplex {
            Some(answer) => write!(f, "|{answer}"),
            None => Ok(()),
        }
    }
}

impl Handshake {
    /// Parses a plugin's first line, for a host that offered these versions and asked for TLS or did not.
    ///
    /// # Errors
    /// See [`HandshakeError`].
    pub fn parse(line: &str, versions: &[u32], asked_tls: bool) -> Result<Handshake, HandshakeError> {
        let line = line.trim();
        let fields: Vec<&str> = line.split('|').collect();
        let [core, version, network, address, rest @ ..] = fields.as_slice() else {
            return Err(HandshakeError::Unrecognized(line.chars().take(200).collect()));
        };
        if core.parse() != Ok(CORE_VERSION) {
            return Err(HandshakeError::Core((*core).to_owned()));
        }
        let Some(version) = version.parse().ok().filter(|version| versions.contains(version)) else {
            let offered = versions.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            return Err(HandshakeError::Version { answered: (*version).to_owned(), offered });
        };
        let address = Address::parse(network, address).map_err(HandshakeError::Network)?;
        // A line without the field is from a net/rpc plugin.
        let protocol = rest.first().copied().unwrap_or("netrpc");
        if protocol != "grpc" {
            return Err(HandshakeError::Protocol(protocol.to_owned()));
        }
        let certificate = match rest.get(1).filter(|field| field.len() > NO_CERTIFICATE) {
            Some(_) if !asked_tls => return Err(HandshakeError::UnexpectedTls),
            Some(field) => Some(tls::decode_field(field).map_err(HandshakeError::Certificate)?),
            None if asked_tls => return Err(HandshakeError::NoTls),
            None => None,
        };
        let multiplex = rest.get(2).and_then(|text| text.parse().ok());
        Ok(Handshake { version, address, certificate, multiplex })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Handshake, HandshakeError> {
        Handshake::parse(line, &[2], false)
    }

    /// A3: the exact lines that were observed from go-plugin 1.8.
    #[test]
    fn line_is_what_go_plugin_prints() {
        let address = Address::Unix("/tmp/plugin1226541826".into());
        let mut handshake = Handshake { version: 2, address, certificate: None, multiplex: None };
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
        let version = HandshakeError::Version { answered: "9".into(), offered: "2".into() };
        assert_eq!(parse("1|9|unix|/s|grpc|"), Err(version));
        assert!(matches!(parse("1|2|udp|127.0.0.1:1|grpc|"), Err(HandshakeError::Network(_))));
        assert!(matches!(parse("1|2|tcp|nowhere|grpc|"), Err(HandshakeError::Network(_))));
        assert_eq!(parse("1|2|unix|/s"), Err(HandshakeError::Protocol("netrpc".into())));
        assert_eq!(parse(&format!("1|2|unix|/s|grpc|{}", "A".repeat(51))), Err(HandshakeError::UnexpectedTls));
        assert!(parse(&format!("1|2|unix|/s|grpc|{}", "A".repeat(50))).is_ok());
    }

    #[test]
    fn a_certificate_is_there_exactly_when_it_was_asked_for() {
        let identity = tls::Identity::new().unwrap();
        let address = Address::Tcp("127.0.0.1:1234".parse().unwrap());
        let handshake = Handshake { version: 7, address, certificate: Some(identity.der()), multiplex: Some(false) };
        let line = handshake.to_string();
        assert_eq!(Handshake::parse(&line, &[5, 7], true), Ok(handshake));
        assert_eq!(Handshake::parse(&line, &[5, 7], false), Err(HandshakeError::UnexpectedTls));
        assert_eq!(Handshake::parse("1|7|unix|/s|grpc|", &[7], true), Err(HandshakeError::NoTls));
        let garbled = format!("1|7|unix|/s|grpc|{}", "A".repeat(60));
        assert!(matches!(Handshake::parse(&garbled, &[7], true), Err(HandshakeError::Certificate(_))));
    }

    /// A3: the highest common version, in any order; our own lowest when there is none.
    #[test]
    fn versions_are_negotiated() {
        let plugin = Protocol { versions: vec![3, 5, 4], ..Protocol::nomad() };
        for (offer, chosen) in [("4,5,9", 5), ("9,4", 4), ("3", 3), ("x, 4", 4), ("7,8", 3), ("", 3)] {
            assert_eq!(plugin.choose(offer), chosen, "{offer:?}");
        }
        assert_eq!(plugin.offer(), "3,5,4");
        assert_eq!(Protocol::nomad().choose("5,7"), 2);
    }
}
