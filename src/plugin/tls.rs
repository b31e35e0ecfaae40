//! Mutual TLS with certificates that are valid for one launch: go-plugin's `AutoMTLS`.
//!
//! Nothing here runs or allocates memory unless a host asks for it.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SerialNumber,
};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name in every certificate, and the one that clients request.
const NAME: &str = "localhost";
/// Both sides require HTTP/2.
const ALPN: &[u8] = b"h2";
/// A certificate is valid from a little before now, as clocks may differ.
const BEFORE: Duration = Duration::from_secs(30);
/// ... until this long after, which is 30 years: it never expires under a running plugin.
const AFTER: Duration = Duration::from_hours(262_980);

/// A key that never leaves this process, and its certificate, made for one launch.
pub(super) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl Identity {
    /// Makes a P-521 key and a certificate with the properties of go-plugin's. Takes some 25 ms the first time.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub(super) fn new() -> io::Result<Identity> {
        // Specified explicitly, not the process's default: that is ambiguous as soon as a second provider is linked.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).map_err(io::Error::other)?;
        let mut serial = [0; 16];
        provider.secure_random.fill(&mut serial).map_err(|_| io::Error::other("no random numbers"))?;
        let mut params = CertificateParams::new([NAME.to_owned()]).map_err(io::Error::other)?;
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Whole seconds: certificates have no finer resolution.
        let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(since_epoch.as_secs());
        (params.not_before, params.not_after) = (now - BEFORE, now + AFTER);
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "HashiCorp");
        params.distinguished_name.push(DnType::CommonName, NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
            KeyUsagePurpose::KeyAgreement,
            KeyUsagePurpose::KeyCertSign,
        ];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key).map_err(io::Error::other)?.der().clone();
        Ok(Identity { certificate, key: key.into(), provider })
    }

    /// The certificate for `PLUGIN_CLIENT_CERT`.
    pub(super) fn pem(&self) -> String {
        let text = STANDARD.encode(&self.certificate);
        let mut pem = String::with_capacity(text.len() + 80);
        pem.push_str("-----BEGIN CERTIFICATE-----\n");
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let (line, next) = rest.split_at(rest.len().min(64));
            let _ = writeln!(pem, "{line}");
            rest = next;
        }
        pem.push_str("-----END CERTIFICATE-----\n");
        pem
    }

    /// The certificate for the handshake line.
    pub(super) fn der(&self) -> Vec<u8> {
        self.certificate.to_vec()
    }

    /// The TLS settings of this side as client and as server, for a peer with one of the certificates `peers` only.
    ///
    /// # Errors
    /// What rustls says of our own certificate.
    pub(super) fn towards(self, peers: Vec<CertificateDer<'static>>) -> io::Result<Tls> {
        let pinned = Arc::new(Pinned { peers, provider: Arc::clone(&self.provider) });
        let chain = vec![self.certificate];
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::clone(&pinned) as Arc<dyn ClientCertVerifier>)
            .with_single_cert(chain.clone(), self.key.clone_key())
            .map_err(io::Error::other)?;
        server.alpn_protocols = vec![ALPN.to_vec()];
        // One connection lasts for the whole launch: there is nothing to resume.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(self.provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(pinned)
            .with_client_auth_cert(chain, self.key)
            .map_err(io::Error::other)?;
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = Resumption::disabled();
        Ok(Tls { acceptor: Arc::new(server).into(), connector: Arc::new(client).into() })
    }
}

/// The certificates in the text of `PLUGIN_CLIENT_CERT`; none when it cannot be parsed.
pub(super) fn certificates_in(pem: &str) -> Vec<CertificateDer<'static>> {
    let blocks = CertificateDer::pem_slice_iter(pem.as_bytes()).flatten();
    blocks.filter(|certificate| ParsedCertificate::try_from(certificate).is_ok()).collect()
}

/// A certificate's form in the handshake line: base64 without padding, which Go hosts require.
pub(super) fn encode_field(der: &[u8]) -> String {
    STANDARD_NO_PAD.encode(der)
}

/// Parses a certificate's form in the handshake line; the error names the mistake.
pub(super) fn decode_field(field: &str) -> Result<Vec<u8>, String> {
    let der = STANDARD_NO_PAD.decode(field).map_err(|error| format!("base64 without padding: {error}"))?;
    ParsedCertificate::try_from(&CertificateDer::from(der.as_slice())).map_err(|error| error.to_string())?;
    Ok(der)
}

/// One side of the connections between a host and its plugin; either may be the client, because of the broker.
#[derive(Clone)]
pub(super) struct Tls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Performs the handshake with a peer that connected to us.
    ///
    /// # Errors
    /// When the certificate is not the pinned one, or the peer does not negotiate HTTP/2.
    pub(super) async fn accept<S>(&self, socket: S) -> io::Result<tokio_rustls::server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = self.acceptor.accept(socket).await?;
        check_alpn(stream.get_ref().1.alpn_protocol())?;
        Ok(stream)
    }

    /// Performs the handshake with a peer to which we connected.
    ///
    /// # Errors
    /// When the certificate is not the pinned one, or the peer does not negotiate HTTP/2.
    pub(super) async fn connect<S>(&self, socket: S) -> io::Result<tokio_rustls::client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let stream = self.connector.connect(name, socket).await?;
        check_alpn(stream.get_ref().1.alpn_protocol())?;
        Ok(stream)
    }
}

/// rustls accepts a peer that does not use ALPN.
fn check_alpn(protocol: Option<&[u8]>) -> io::Result<()> {
    if protocol == Some(ALPN) { Ok(()) } else { Err(io::Error::other("the peer did not choose HTTP/2 by ALPN")) }
}

/// Accepts exactly these certificates, byte for byte, and then requires proof of the key.
///
/// Chains, names and usages are not checked: the certificate came through the pipe or the environment of this launch, and is its
/// own root. Dates are not checked either: the peer has just made it, and a clock change must not cut a running plugin off. The
/// usual verifier would refuse it, because it is marked as a CA.
#[derive(Debug)]
struct Pinned {
    peers: Vec<CertificateDer<'static>>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        if self.peers.iter().any(|peer| peer == shown) {
            return Ok(());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn tls12(&self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Signature {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn tls13(&self, message: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Signature {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

type Signature = Result<HandshakeSignatureValid, Error>;

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(&self, text: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Signature {
        self.tls12(text, cert, dss)
    }

    fn verify_tls13_signature(&self, text: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Signature {
        self.tls13(text, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(&self, text: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Signature {
        self.tls12(text, cert, dss)
    }

    fn verify_tls13_signature(&self, text: &[u8], cert: &CertificateDer<'_>, dss: &DigitallySignedStruct) -> Signature {
        self.tls13(text, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Tls, Tls) {
        let (host, plugin) = (Identity::new().unwrap(), Identity::new().unwrap());
        let (host_pem, plugin_der) = (host.pem(), plugin.der());
        (host.towards(vec![plugin_der.into()]).unwrap(), plugin.towards(certificates_in(&host_pem)).unwrap())
    }

    async fn meet(client: &Tls, server: &Tls) -> (io::Result<()>, io::Result<()>) {
        let (near, far) = tokio::io::duplex(16 * 1024);
        // A TLS 1.3 client sees the server's refusal only in its first read.
        let connect = async {
            let mut stream = client.connect(near).await?;
            tokio::io::AsyncReadExt::read_u8(&mut stream).await.map(drop)
        };
        let accept = async {
            let mut stream = server.accept(far).await?;
            tokio::io::AsyncWriteExt::write_u8(&mut stream, 1).await?;
            tokio::io::AsyncWriteExt::flush(&mut stream).await
        };
        tokio::join!(connect, accept)
    }

    /// A3: either side may be the client; no other peer is accepted, on either side.
    #[tokio::test]
    async fn only_the_pinned_peer_is_let_in() {
        let (host, plugin) = pair();
        for (client, server) in [(&host, &plugin), (&plugin, &host)] {
            let (connected, accepted) = meet(client, server).await;
            connected.unwrap();
            accepted.unwrap();
        }
        let (stranger, _) = pair();
        let (connected, accepted) = meet(&stranger, &plugin).await;
        assert!(connected.is_err() && accepted.is_err());
        let nobody = Identity::new().unwrap().towards(Vec::new()).unwrap();
        let (connected, accepted) = meet(&host, &nobody).await;
        assert!(connected.is_err() && accepted.is_err());
        // The server's certificate is right, the client's is not.
        let plugin = Identity::new().unwrap();
        let seen = plugin.der();
        let plugin = plugin.towards(certificates_in(&Identity::new().unwrap().pem())).unwrap();
        let wrong = Identity::new().unwrap().towards(vec![seen.into()]).unwrap();
        let (connected, accepted) = meet(&wrong, &plugin).await;
        assert!(connected.is_err() && accepted.is_err());
    }

    /// A3: without ALPN there is no connection, as with Go peers.
    #[tokio::test]
    async fn peers_without_http2_are_refused() {
        let (host, plugin) = pair();
        let mut silent = ClientConfig::clone(host.connector.config());
        silent.alpn_protocols.clear();
        let silent = TlsConnector::from(Arc::new(silent));
        let (near, far) = tokio::io::duplex(16 * 1024);
        // Kept, so that the server is the one that closes the connection.
        let (_client, accepted) = tokio::join!(silent.connect(NAME.try_into().unwrap(), near), plugin.accept(far));
        assert!(accepted.unwrap_err().to_string().contains("ALPN"));
        let mut silent = ServerConfig::clone(plugin.acceptor.config());
        silent.alpn_protocols.clear();
        let silent = Tls { acceptor: Arc::new(silent).into(), ..plugin };
        let (connected, _) = meet(&host, &silent).await;
        assert!(connected.unwrap_err().to_string().contains("ALPN"));
    }

    #[test]
    fn certificates_travel_as_pem_and_as_a_field() {
        let identity = Identity::new().unwrap();
        let pem = identity.pem();
        assert!(pem.lines().all(|line| line.len() <= 64), "{pem}");
        assert_eq!(certificates_in(&pem), [identity.der().into()]);
        let field = encode_field(&identity.der());
        assert!(!field.contains(['=', '|', '\n']));
        assert_eq!(decode_field(&field).unwrap(), identity.der());
        let mut padded = STANDARD.encode(&identity.der()[..identity.der().len() - 1]);
        padded.push('=');
        assert!(decode_field(&padded).unwrap_err().contains("padding"));
        assert!(decode_field(&encode_field(b"no certificate")).is_err());
        for unreadable in ["", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            assert!(certificates_in(unreadable).is_empty(), "{unreadable:?}");
        }
    }
}
