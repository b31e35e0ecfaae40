//! Checks over http and https.

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{HOST, HeaderName, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use tokio::task::JoinSet;

use super::reach::Target;
use super::{Found, causes, failed, found, secured, tls};
use crate::spec::CheckStatus;
use crate::sys::stream::{Stream, stream};
use crate::sys::task::boxed;

/// So much of an answer's body is read, in bytes: as much as Nomad reads.
const LONGEST_BODY: usize = 3 * 1024;

/// A request; all values are interpolated.
#[derive(Debug, Clone)]
pub(in crate::alloc) struct Http {
    pub(in crate::alloc) tls: bool,
    pub(in crate::alloc) skip_verify: bool,
    /// Empty means the address.
    pub(in crate::alloc) server_name: String,
    /// Path and query.
    pub(in crate::alloc) path: String,
    pub(in crate::alloc) method: String,
    /// A name may come several times.
    pub(in crate::alloc) headers: Vec<(String, String)>,
    pub(in crate::alloc) body: String,
}

impl Http {
    /// Sends the request once. A response of 2xx or 3xx passes, 429 is a warning; redirects are not followed.
    pub(super) async fn ask(&self, target: &Target) -> Found {
        let scheme = if self.tls { "https" } else { "http" };
        let url = format!("{} {scheme}://{target}{}", self.method, self.path);
        match self.answer(target).await {
            Ok((status, body)) => {
                let code = status.as_u16();
                let becomes = match code {
                    200..400 => CheckStatus::Passing,
                    429 => CheckStatus::Warning,
                    _ => CheckStatus::Critical,
                };
                // As with Nomad, the body of a usual answer is not shown: nobody is to rely on it.
                let output = match code {
                    200 => format!("nomad: http ok: {url}"),
                    _ => format!("HTTP {url}: {status} Output: {}", String::from_utf8_lossy(&body)),
                };
                let (becomes, output, _) = found(becomes, output);
                (becomes, output, code)
            }
            Err(why) => failed(&format!("HTTP {url}: {why}")),
        }
    }

    async fn answer(&self, target: &Target) -> Result<(hyper::StatusCode, Vec<u8>), String> {
        let request = self.request(target)?;
        let told = |error: std::io::Error| causes(&error);
        let connected = target.connect().await.map_err(told)?;
        if !self.tls {
            return exchange(request, stream(connected)).await;
        }
        let tls = tls(self.skip_verify, b"http/1.1").await.map_err(told)?;
        let name = if self.server_name.is_empty() { target.host() } else { &self.server_name };
        exchange(request, stream(secured(connected, tls, name).await.map_err(told)?)).await
    }

    fn request(&self, target: &Target) -> Result<Request<Full<Bytes>>, String> {
        let wrong = |what: &str| format!("{what:?} cannot be sent: it holds what no request may");
        let method = Method::from_bytes(self.method.as_bytes()).map_err(|_| wrong(&self.method))?;
        let path = if self.path.starts_with('/') { self.path.clone() } else { format!("/{}", self.path) };
        let mut request = Request::new(Full::new(Bytes::from(self.body.clone())));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| wrong(&self.path))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&target.address).map_err(|_| wrong(&target.address))?);
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("agentbin/", env!("CARGO_PKG_VERSION"))));
        let own = [HOST, USER_AGENT];
        for (name, value) in &self.headers {
            let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong(name))?;
            let value = HeaderValue::from_str(value).map_err(|_| wrong(name))?;
            if own.contains(&known) {
                headers.insert(known, value);
            } else {
                headers.append(known, value);
            }
        }
        Ok(request)
    }
}

/// The response's status and the beginning of its body.
async fn exchange(request: Request<Full<Bytes>>, stream: Stream) -> Result<(hyper::StatusCode, Vec<u8>), String> {
    let told = |error: hyper::Error| causes(&error);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(told)?;
    // The connection ends with this try.
    let mut connections = JoinSet::new();
    connections.spawn(boxed(async move { drop(connection.await) }));
    let mut response: Response<Incoming> = sender.send_request(request).await.map_err(told)?;
    let mut body = Vec::new();
    while response.status() != hyper::StatusCode::OK && body.len() < LONGEST_BODY {
        let Some(frame) = response.body_mut().frame().await else { break };
        // A body that breaks off does not change the status.
        let Ok(frame) = frame else { break };
        body.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    body.truncate(LONGEST_BODY);
    Ok((response.status(), body))
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::super::{Probe, Way};
    use super::*;

    pub(in super::super) fn get(path: &str) -> Http {
        Http {
            tls: false,
            skip_verify: false,
            server_name: String::new(),
            path: path.to_owned(),
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: String::new(),
        }
    }

    /// Answers each connection with the next text. Returns where, and the requests so far.
    async fn server(answers: Vec<Vec<u8>>) -> (Target, Arc<Mutex<Vec<String>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target { address: listener.local_addr().unwrap().to_string(), way: Way::Host };
        let heard = Arc::<Mutex<Vec<String>>>::default();
        let requests = Arc::clone(&heard);
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.unwrap();
                requests.lock().unwrap().push(String::from_utf8_lossy(&request[..read]).into_owned());
                let _ = stream.write_all(&answer).await;
            }
        });
        (target, heard)
    }

    async fn ask(target: &Target, http: Http) -> Found {
        let inside: super::super::Inside = Box::new(|| None);
        Probe::Http(target.clone(), http).try_once(Duration::from_secs(30), &inside).await
    }

    #[tokio::test]
    async fn j3_the_status_of_an_answer_decides() {
        let answer = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nbody").into_bytes();
        let statuses = ["200 OK", "204 No Content", "302 Found", "404 Not Found", "429 Too Many Requests", "503 x"];
        let (target, heard) = server(statuses.map(answer).to_vec()).await;
        let mut results = Vec::new();
        for _ in statuses {
            let (status, output, code) = ask(&target, get("/health?x=1")).await;
            results.push((status.as_str(), code));
            let url = format!("GET http://{target}/health?x=1");
            let other = format!("HTTP {url}: {code} ");
            assert!(if code == 200 { output.ends_with(&url) } else { output.starts_with(&other) }, "{output}");
        }
        let expected = [
            ("passing", 200),
            ("passing", 204),
            ("passing", 302),
            ("critical", 404),
            ("warning", 429),
            ("critical", 503),
        ];
        assert_eq!(results, expected);
        let request = heard.lock().unwrap()[0].to_lowercase();
        assert!(request.starts_with("get /health?x=1 http/1.1\r\n"), "{request}");
        assert!(request.contains(&format!("host: {target}\r\n")) && !request.contains("connection:"), "{request}");
    }

    #[tokio::test]
    async fn j3_method_headers_and_body_are_sent_and_the_output_is_bounded() {
        let long = [b"HTTP/1.1 203 OK\r\n\r\n".to_vec(), vec![b'x'; 100_000]].concat();
        let (target, heard) = server(vec![long, b"nonsense\r\n\r\n".to_vec()]).await;
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let http = Http {
            method: "POST".to_owned(),
            headers: vec![header("Host", "own.example"), header("X-A", "1"), header("X-A", "2")],
            body: "hello".to_owned(),
            ..get("ping")
        };
        let (status, output, _) = ask(&target, http).await;
        let shown = output.trim_start_matches(|c| c != 'x').len();
        assert_eq!((status, shown), (CheckStatus::Passing, LONGEST_BODY));
        let request = heard.lock().unwrap()[0].clone();
        assert!(request.starts_with("POST /ping HTTP/1.1\r\n") && request.ends_with("\r\n\r\nhello"), "{request}");
        let lines: Vec<String> = request.lines().map(str::to_lowercase).collect();
        for line in ["host: own.example", "x-a: 1", "x-a: 2", "content-length: 5"] {
            assert_eq!(lines.iter().filter(|l| *l == line).count(), 1, "{line}: {request}");
        }
        let (status, output, _) = ask(&target, get("/")).await;
        assert!(status == CheckStatus::Critical && output.starts_with("HTTP GET http://"), "{output}");
        let odd = Http { headers: vec![header("a b", "1")], ..get("/") };
        assert!(ask(&target, odd).await.1.contains("\"a b\" cannot be sent"));
    }

    #[tokio::test]
    async fn j3_https_believes_nobody_unless_told_to() {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target { address: listener.local_addr().unwrap().to_string(), way: Way::Host };
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                let _ = stream.shutdown().await;
            }
        });
        let https = |skip_verify| Http { tls: true, skip_verify, ..get("/") };
        let (status, output, _) = ask(&target, https(true)).await;
        assert_eq!(status, CheckStatus::Passing, "{output}");
        let (status, output, _) = ask(&target, https(false)).await;
        assert!(status == CheckStatus::Critical && output.contains("certificate"), "{output}");
    }
}
