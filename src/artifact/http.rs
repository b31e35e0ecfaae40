//! Downloads over http and https.

use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request as HttpRequest, Response};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use url::Url;

use super::talk::{Talk, failed};
use super::{FetchError, Request};
use crate::names;
use crate::spec::collections::BTreeMap;
use crate::spec::percent_decoded;
use crate::sys;
use crate::sys::task::JoinHandle;

/// Most redirects that are followed, one after the other; as many as Go's client follows.
const MOST_REDIRECTS: usize = 10;
/// Timeout of connecting.
const CONNECTS: Duration = Duration::from_secs(30);
/// Timeout for the headers of an answer, and between two pieces of its body.
const SILENCE: Duration = Duration::from_mins(1);
/// Pauses before an interrupted download is restarted; after the last attempt it has failed.
const AGAIN: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(2)];
/// Headers of the job that are also sent to the target of a redirect; all others may be secrets of the first host.
const HARMLESS: [&str; 3] = ["accept", "accept-language", "user-agent"];

pub(super) struct Client {
    tls: Arc<ClientConfig>,
    insecure: bool,
    has_authorities: bool,
}

/// A client that accepts certificates of these authorities (PEM), or all certificates; also returns how many authorities it
/// knows.
///
/// # Errors
/// What rustls reports about this machine's cryptography.
pub fn tls_client(certificates: &str, insecure: bool) -> Result<(ClientConfig, usize), rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    let authorities = CertificateDer::pem_slice_iter(certificates.as_bytes()).filter_map(Result::ok);
    let (known, _) = roots.add_parsable_certificates(authorities);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let client = if insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Believes(provider))).with_no_client_auth()
    } else {
        builder.with_root_certificates(roots).with_no_client_auth()
    };
    Ok((client, known))
}

/// An answer, and the connection that it is read from.
struct Answer {
    response: Response<Incoming>,
    connection: JoinHandle<()>,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Client {
    pub(super) fn new(request: &Request) -> Result<Client, FetchError> {
        let wrong = |error: rustls::Error| FetchError::lasting(format!("prepare TLS: {error}"));
        let (mut tls, known) = tls_client(&request.certificates, request.insecure).map_err(wrong)?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Client { tls: Arc::new(tls), insecure: request.insecure, has_authorities: known > 0 })
    }

    /// Downloads into the file, which is empty at first; an interrupted download is restarted, up to twice.
    pub(super) async fn download(
        &self,
        url: &Url,
        headers: &BTreeMap<String, String>,
        mut to: File,
        most: u64,
        talk: &mut Talk,
    ) -> Result<File, FetchError> {
        let mut waits = AGAIN.into_iter();
        loop {
            match self.try_download(url, headers, &mut to, most, talk).await {
                Ok(()) => return Ok(to),
                Err(error) if error.recoverable => match waits.next() {
                    Some(wait) => sleep(wait).await,
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
            to.set_len(0).and_then(|()| to.rewind()).map_err(failed("begin the download again"))?;
        }
    }

    async fn try_download(
        &self,
        url: &Url,
        headers: &BTreeMap<String, String>,
        to: &mut File,
        most: u64,
        talk: &mut Talk,
    ) -> Result<(), FetchError> {
        let mut answer = self.get(url, headers).await?;
        let length = answer.response.headers().get(CONTENT_LENGTH);
        let total: Option<u64> = length.and_then(|length| length.to_str().ok()?.parse().ok());
        let too_long =
            || FetchError::lasting(format!("{} sends more than {most} bytes, the limit of a download", bare(url)));
        if total.is_some_and(|total| total > most) {
            return Err(too_long());
        }
        let mut bytes: u64 = 0;
        let interrupted = |bytes: u64, why: &str| {
            let of = total.map(|total| format!(" of {total}")).unwrap_or_default();
            FetchError::passing(format!("{}: interrupted after {bytes}{of} bytes: {why}", bare(url)))
        };
        loop {
            let piece = match timeout(SILENCE, answer.response.body_mut().frame()).await {
                Err(_) => return Err(interrupted(bytes, "nothing came for 60 s")),
                Ok(None) => break,
                Ok(Some(Err(error))) => return Err(interrupted(bytes, &error.to_string())),
                Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_default(),
            };
            bytes += piece.len() as u64;
            if bytes > most {
                return Err(too_long());
            }
            to.write_all(&piece).map_err(failed("write the download"))?;
            talk.progress(bytes, total);
        }
        match total {
            Some(total) if total != bytes => Err(interrupted(bytes, "the server ended it")),
            _ => Ok(()),
        }
    }

    /// The answer with the file, after all redirects.
    async fn get(&self, url: &Url, headers: &BTreeMap<String, String>) -> Result<Answer, FetchError> {
        let mut here = url.clone();
        let mut followed = 0;
        loop {
            let at_home = is_home(url, &here);
            let answer = self.ask(&here, headers, at_home).await?;
            let status = answer.response.status();
            if status.is_success() {
                return Ok(answer);
            }
            if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
                let message = format!("{} answers {status}", bare(&here));
                let passes = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
                return Err(FetchError { message, recoverable: passes });
            }
            let place = answer.response.headers().get(LOCATION).and_then(|place| place.to_str().ok());
            let place = place
                .ok_or_else(|| FetchError::lasting(format!("{} answers {status} without a place", bare(&here))))?;
            let next = here
                .join(place)
                .map_err(|error| FetchError::lasting(format!("{} leads to what is not a URL: {error}", bare(&here))))?;
            if followed == MOST_REDIRECTS {
                return Err(FetchError::lasting(format!(
                    "{} leads to more than {MOST_REDIRECTS} redirects",
                    bare(url)
                )));
            }
            if !matches!(next.scheme(), "http" | "https") {
                let text = format!("{} leads to {}, which is neither http nor https", bare(&here), bare(&next));
                return Err(FetchError::lasting(text));
            }
            if here.scheme() == "https" && next.scheme() == "http" && !self.insecure {
                let text = format!(
                    "{} leads from https to {}, which anybody on the way can change; name a source that stays with https, or \
                     set insecure = true",
                    bare(&here),
                    bare(&next)
                );
                return Err(FetchError::lasting(text));
            }
            followed += 1;
            here = next;
        }
    }

    async fn ask(&self, url: &Url, headers: &BTreeMap<String, String>, at_home: bool) -> Result<Answer, FetchError> {
        let no_host = || FetchError::lasting(format!("{} has no host", bare(url)));
        let (host, port) = (url.host_str().ok_or_else(no_host)?, url.port_or_known_default().ok_or_else(no_host)?);
        let address = format!("{host}:{port}");
        let stream =
            timeout(CONNECTS, names::connect(&address)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = stream.map_err(|error| FetchError::passing(format!("connect to {host}:{port}: {error}")))?;
        let request = request(url, host, headers, at_home)?;
        if url.scheme() == "http" {
            return answer(url, request, sys::stream::stream(stream)).await;
        }
        if !self.has_authorities && !self.insecure {
            let text = "this machine knows no certificate of an authority, which https needs; install ca-certificates, or name a \
                        file of them with SSL_CERT_FILE";
            return Err(FetchError::lasting(text));
        }
        let bare_host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare_host)
            .map_err(|_| FetchError::lasting(format!("{host:?} is not a name for TLS")))?;
        let shaking = timeout(CONNECTS, TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream)).await;
        let stream = shaking.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| {
            let certificate = error.to_string().contains("certificate");
            let hint = "; name its authority with SSL_CERT_FILE, or set insecure = true";
            let text = format!("TLS with {host}:{port}: {error}{}", if certificate { hint } else { "" });
            FetchError { message: text, recoverable: !certificate }
        })?;
        answer(url, request, sys::stream::stream(stream)).await
    }
}

async fn answer(
    url: &Url,
    request: HttpRequest<Full<Bytes>>,
    stream: sys::stream::Stream,
) -> Result<Answer, FetchError> {
    let broken = |error: &dyn std::fmt::Display| FetchError::passing(format!("{}: {error}", bare(url)));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| broken(&e))?;
    // Errors are reported by the answer or its body.
    let connection = crate::sys::task::spawn(async move { drop(connection.await) });
    let sent = timeout(SILENCE, sender.send_request(request)).await;
    match sent {
        Ok(Ok(response)) => Ok(Answer { response, connection }),
        other => {
            connection.abort();
            Err(match other {
                Ok(Err(error)) => broken(&error),
                _ => broken(&"no answer within 60 s"),
            })
        }
    }
}

fn request(
    url: &Url,
    host: &str,
    headers: &BTreeMap<String, String>,
    at_home: bool,
) -> Result<HttpRequest<Full<Bytes>>, FetchError> {
    let target = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    let mut request =
        HttpRequest::get(target).body(Full::default()).map_err(|error| FetchError::lasting(error.to_string()))?;
    let host = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
    let wrong =
        |name: &str| FetchError::lasting(format!("header {name:?} cannot be sent; it holds what no header may"));
    let own = request.headers_mut();
    own.insert(HOST, HeaderValue::from_str(&host).map_err(|_| wrong("Host"))?);
    own.insert(USER_AGENT, HeaderValue::from_static(concat!("agentbin/", env!("CARGO_PKG_VERSION"))));
    if !url.username().is_empty() || url.password().is_some() {
        let decoded = |text: &str| percent_decoded(text).unwrap_or_else(|| text.to_owned());
        let pair = format!("{}:{}", decoded(url.username()), decoded(url.password().unwrap_or_default()));
        let value = format!("Basic {}", STANDARD.encode(pair));
        own.insert(AUTHORIZATION, HeaderValue::from_str(&value).map_err(|_| wrong("Authorization"))?);
    }
    for (name, value) in headers {
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong(name))?;
        if at_home || HARMLESS.contains(&known.as_str()) {
            own.insert(known, HeaderValue::from_str(value).map_err(|_| wrong(name))?);
        }
    }
    Ok(request)
}

/// Whether secrets for the host of `source` may be sent to that of `here`: the same host, also after an upgrade to https on the
/// usual ports.
pub(super) fn is_home(source: &Url, here: &Url) -> bool {
    let upgraded = || {
        let ports = (source.port_or_known_default(), here.port_or_known_default());
        (source.scheme(), here.scheme(), ports) == ("http", "https", (Some(80), Some(443)))
            && source.host_str() == here.host_str()
    };
    source.origin() == here.origin() || upgraded()
}

/// A URL without the parts that may be secret.
pub(super) fn bare(url: &Url) -> String {
    format!("{}{}", url.origin().ascii_serialization(), url.path())
}

/// Accepts every certificate, as `insecure = true` asks for.
#[derive(Debug)]
struct Believes(Arc<CryptoProvider>);

impl ServerCertVerifier for Believes {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_go_to_the_same_host_and_never_from_https_to_http() {
        for (source, here, home) in [
            ("http://h/x", "http://h/y", true),
            ("http://h/x", "https://h/x", true),
            ("http://h:80/x", "https://h:443/x", true),
            ("https://h/x", "http://h/x", false),
            ("http://h:8080/x", "https://h/x", false),
            ("http://h/x", "https://h:8443/x", false),
            ("http://h/x", "https://i/x", false),
            ("http://h/x", "http://h:81/x", false),
        ] {
            let parsed = |text: &str| Url::parse(text).unwrap();
            assert_eq!(is_home(&parsed(source), &parsed(here)), home, "{source} {here}");
        }
    }
}
