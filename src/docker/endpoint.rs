//! The engine's address, and connections to it. Connections are not kept: each request has its own.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Collected, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, Uri, header};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;

use super::EngineError;
use super::ask::{Ask, Payload, nothing};
use super::meter::{Allowance, MAX_ERROR, MAX_HEAD, Metered};
use crate::sys::lock::lock;

/// The newest API version that is used; an older engine is asked in its own version.
const NEWEST: (u16, u16) = (1, 44);
/// The oldest API version with all calls that are used.
const OLDEST: (u16, u16) = (1, 41);
/// The default address of an engine.
const SOCKET: &str = "/var/run/docker.sock";
/// Timeout for a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Files of a client's TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tls {
    /// The client's certificate (PEM).
    pub cert: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// The CA of the engine's certificate (PEM).
    pub ca: PathBuf,
}

/// The address of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A socket of this machine.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String, Option<Tls>),
}

impl Default for Endpoint {
    fn default() -> Endpoint {
        Endpoint::Unix(PathBuf::from(SOCKET))
    }
}

impl Endpoint {
    /// Reads `unix:///run/docker.sock`, `tcp://host:port` or `https://host:port`.
    ///
    /// # Errors
    /// [`EngineError::Endpoint`].
    pub fn parse(text: &str, tls: Option<Tls>) -> Result<Endpoint, EngineError> {
        if let Some(path) = text.strip_prefix("unix://") {
            return Ok(Endpoint::Unix(PathBuf::from(path)));
        }
        let host = ["tcp://", "http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        let host = host.map(|host| host.trim_end_matches('/')).filter(|host| host.contains(':'));
        match host {
            Some(host) => Ok(Endpoint::Tcp(host.to_owned(), tls)),
            None => Err(EngineError::Endpoint(format!(
                "the endpoint {text:?} cannot be used: give unix:///path or tcp://host:port"
            ))),
        }
    }

    /// The address in the variables `DOCKER_HOST`, `DOCKER_TLS_VERIFY` and `DOCKER_CERT_PATH`; else the default socket.
    ///
    /// # Errors
    /// [`EngineError::Endpoint`].
    pub fn from_env(var: impl Fn(&str) -> Option<String>) -> Result<Endpoint, EngineError> {
        let Some(host) = var("DOCKER_HOST").filter(|host| !host.is_empty()) else { return Ok(Endpoint::default()) };
        let folder = var("DOCKER_CERT_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
        let verify = var("DOCKER_TLS_VERIFY").is_some_and(|flag| !flag.is_empty());
        let tls = folder.filter(|_| verify).map(|folder| Tls {
            cert: folder.join("cert.pem"),
            key: folder.join("key.pem"),
            ca: folder.join("ca.pem"),
        });
        Endpoint::parse(&host, tls)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Unix(path) => write!(f, "unix://{}", path.display()),
            Endpoint::Tcp(host, _) => write!(f, "tcp://{host}"),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Makes connections and keeps the negotiated API version.
pub(super) struct Connector {
    endpoint: Endpoint,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    version: Mutex<Option<(u16, u16)>>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

fn broken(what: &'static str, error: &dyn std::error::Error) -> EngineError {
    EngineError::Broken { what, problem: super::error::chain(error) }
}

impl Connector {
    pub(super) fn new(endpoint: &Endpoint) -> Result<Connector, EngineError> {
        let tls = match endpoint {
            Endpoint::Tcp(host, Some(tls)) => Some(connector(host, tls)?),
            _ => None,
        };
        Ok(Connector { endpoint: endpoint.clone(), tls, version: Mutex::default() })
    }

    /// The answer to a call unless it is an error.
    pub(super) async fn answer(
        &self,
        what: &'static str,
        ask: Ask,
        allowance: Allowance,
    ) -> Result<Incoming, EngineError> {
        let uri = self.versioned(&ask.target).await?;
        let response = self.send_for(ask.into_request(uri), Some(allowance)).await?;
        Ok(Connector::checked(what, response).await?.into_body())
    }

    pub(super) fn forget_version(&self) {
        *lock(&self.version) = None;
    }

    /// `path` prefixed with the API version that both sides support.
    pub(super) async fn versioned(&self, path: &str) -> Result<Uri, EngineError> {
        let known = *lock(&self.version);
        let (major, minor) = match known {
            Some(version) => version,
            None => self.negotiate().await?,
        };
        let uri = format!("/v{major}.{minor}{path}");
        uri.parse().map_err(|e| EngineError::Endpoint(format!("the engine cannot be asked for {uri:?}: {e}")))
    }

    async fn negotiate(&self) -> Result<(u16, u16), EngineError> {
        const WHAT: &str = "ask the engine for its version";
        let request = Request::get("/_ping").header(header::HOST, "docker").body(nothing());
        let allowance = Some(Allowance::new(MAX_ERROR));
        let response = self.send_for(request.map_err(|e| broken(WHAT, &e))?, allowance).await?;
        let said = response.headers().get("api-version").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let number = said.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let Some(theirs) = number else {
            let status = response.status().as_u16();
            let message = format!("it names no API version (status {status})");
            return Err(EngineError::Broken { what: WHAT, problem: message });
        };
        if theirs < OLDEST {
            let (major, minor) = OLDEST;
            let text = format!("the engine speaks API {said}; at least {major}.{minor} is needed: update the engine");
            return Err(EngineError::Endpoint(text));
        }
        let version = theirs.min(NEWEST);
        *lock(&self.version) = Some(version);
        Ok(version)
    }

    async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match &self.endpoint {
            Endpoint::Unix(path) => Box::new(UnixStream::connect(path).await?),
            Endpoint::Tcp(host, _) => {
                let stream = crate::names::connect(host).await?;
                stream.set_nodelay(true)?;
                match &self.tls {
                    Some((connector, name)) => Box::new(connector.connect(name.clone(), stream).await?),
                    None => Box::new(stream),
                }
            }
        })
    }

    /// One request on a separate connection, whose answer is a stream that is read in pieces: only its head and its pieces are bounded.
    pub(super) async fn send(&self, request: Request<Payload>) -> Result<Response<Incoming>, EngineError> {
        self.send_for(request, None).await
    }

    /// One request on a separate connection, with a bounded answer.
    async fn send_for(
        &self,
        request: Request<Payload>,
        allowance: Option<Allowance>,
    ) -> Result<Response<Incoming>, EngineError> {
        let what = "connect to the engine";
        let connecting = tokio::time::timeout(CONNECT, self.connect()).await;
        let stream = connecting
            .map_err(|_| EngineError::NoConnection {
                what,
                problem: format!("{}: no answer within {CONNECT:?}", self.endpoint),
            })?
            .map_err(|e| EngineError::NoConnection { what, problem: format!("{}: {e}", self.endpoint) })?;
        let head = Allowance::new(MAX_HEAD);
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .handshake(TokioIo::new(Metered::new(stream, head.clone(), allowance)))
            .await
            .map_err(|e| broken(what, &e))?;
        // Ends with the answer, or when the caller drops it.
        crate::sys::task::spawn(async move {
            let _said_to_the_caller = connection.with_upgrades().await;
        });
        let response = sender.send_request(request).await.map_err(|e| broken("speak with the engine", &e))?;
        head.lift();
        Ok(response)
    }

    /// Returns the answer, or the error that it contains.
    pub(super) async fn checked(
        what: &'static str,
        response: Response<Incoming>,
    ) -> Result<Response<Incoming>, EngineError> {
        let status = response.status();
        if status.is_success() || status == hyper::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let body = Limited::new(response.into_body(), MAX_ERROR);
        let body = match body.collect().await.map(Collected::to_bytes) {
            Ok(body) => body,
            // The status is known.
            Err(e) => Bytes::from(format!("the reason cannot be read: {e}")),
        };
        let said: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        let message = said.and_then(|value| value.get("message")?.as_str().map(str::to_owned));
        let message = message.unwrap_or_else(|| String::from_utf8_lossy(&body).trim().to_owned());
        Err(EngineError::Answer { what, status: status.as_u16(), message })
    }
}

fn connector(host: &str, tls: &Tls) -> Result<(TlsConnector, ServerName<'static>), EngineError> {
    let bad = |what: &str, error: String| EngineError::Endpoint(format!("{what}: {error}"));
    let read = |path: &PathBuf| std::fs::read(path).map_err(|e| bad(&path.display().to_string(), e.to_string()));
    let mut roots = rustls::RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(&read(&tls.ca)?) {
        let cert = cert.map_err(|e| bad("the engine's ca", e.to_string()))?;
        roots.add(cert).map_err(|e| bad("the engine's ca", e.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| bad("TLS", e.to_string()))?
        .with_root_certificates(roots);
    let config = if tls.cert.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(&tls.cert)?).collect();
        let chain = chain.map_err(|e| bad("the client's cert", e.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_slice(&read(&tls.key)?).map_err(|e| bad("the client's key", e.to_string()))?;
        builder.with_client_auth_cert(chain, key).map_err(|e| bad("the client's cert", e.to_string()))?
    };
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name).trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(name).map_err(|e| bad("the engine's name", e.to_string()))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e1_endpoints_are_read() {
        let read = |text: &str| Endpoint::parse(text, None).map(|e| e.to_string());
        assert_eq!(read("unix:///run/d.sock"), Ok("unix:///run/d.sock".to_owned()));
        assert_eq!(read("tcp://127.0.0.1:2375/"), Ok("tcp://127.0.0.1:2375".to_owned()));
        assert!(read("ssh://host").is_err() && read("tcp://host").is_err() && read("").is_err());
        assert_eq!(Endpoint::from_env(|_| None), Ok(Endpoint::default()));
        let env = |name: &str| match name {
            "DOCKER_HOST" => Some("tcp://h:2376".to_owned()),
            "DOCKER_TLS_VERIFY" => Some("1".to_owned()),
            "DOCKER_CERT_PATH" => Some("/certs".to_owned()),
            _ => None,
        };
        let Ok(Endpoint::Tcp(host, Some(tls))) = Endpoint::from_env(env) else { panic!("no TLS") };
        assert_eq!((host.as_str(), tls.ca), ("h:2376", PathBuf::from("/certs/ca.pem")));
    }
}
