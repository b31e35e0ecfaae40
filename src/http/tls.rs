//! TLS of a listener, from files in PEM.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio_rustls::TlsAcceptor;

/// Where certificates and keys lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's chain, its own certificate first.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Whoever connects must show a certificate of one of these; `None`: nobody is asked for one.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// Which file, and what is wrong with it.
    pub fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| about(&self.key, e))?;
        let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|e| about(path, e))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().map_err(|e| about(path, e))?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|e| about(&self.certificate, e))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let all = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all = all.map_err(|e| about(path, e))?;
    if all.is_empty() {
        return Err(about(path, "no certificate in it"));
    }
    Ok(all)
}

fn about(path: &Path, error: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}
