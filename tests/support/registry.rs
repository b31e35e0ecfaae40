//! A registry of the test program's own, with one image, and certificates.
#![allow(dead_code, reason = "every test program uses a part")]

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sha2::Digest as _;

const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// How the layer comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    AtOnce,
    /// When [`Registry::go_on`] is called.
    Never,
    /// A tenth of it every so often.
    Tenths(Duration),
}

struct Shared {
    /// `user:password` that is asked for.
    user: Option<String>,
    config: Vec<u8>,
    layer: Vec<u8>,
    manifest: Vec<u8>,
    pace: Mutex<Pace>,
    goes_on: Condvar,
    ended: AtomicBool,
    manifests: AtomicU32,
    layers: AtomicU32,
    refused: AtomicU32,
}

/// Speaks as much of the registry's API (version 2) as an engine asks of it, over HTTP on the loopback.
pub struct Registry {
    address: String,
    shared: Arc<Shared>,
}

fn digest(bytes: &[u8]) -> String {
    sha2::Sha256::digest(bytes).iter().fold("sha256:".to_owned(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

impl Registry {
    /// The root of the image is the tar `layer`; its default command prints `mark`.
    pub fn start(layer: Vec<u8>, mark: &str, user: Option<&str>, pace: Pace) -> Registry {
        let config = serde_json::json!({
            "architecture": "amd64", "os": "linux", "config": { "Cmd": ["/bin/echo", mark] },
            "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] }, "history": [{ "created_by": "a test" }],
        });
        let config = config.to_string().into_bytes();
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": config.len(), "digest": digest(&config),
            },
            "layers": [{
                "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                "size": layer.len(), "digest": digest(&layer),
            }],
        });
        let shared = Arc::new(Shared {
            user: user.map(|user| base64::engine::general_purpose::STANDARD.encode(user)),
            config,
            layer,
            manifest: manifest.to_string().into_bytes(),
            pace: Mutex::new(pace),
            goes_on: Condvar::new(),
            ended: AtomicBool::new(false),
            manifests: AtomicU32::new(0),
            layers: AtomicU32::new(0),
            refused: AtomicU32::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let served = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if served.ended.load(Ordering::SeqCst) {
                    return;
                }
                let served = Arc::clone(&served);
                // A caller that has gone needs no answer.
                std::thread::spawn(move || drop(served.serve(client)));
            }
        });
        Registry { address, shared }
    }

    /// `host:port/name`.
    pub fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    pub fn host(&self) -> &str {
        &self.address
    }

    pub fn digest(&self) -> String {
        digest(&self.shared.manifest)
    }

    /// How often the manifest and the layer were fetched, and how often somebody was refused.
    pub fn counts(&self) -> (u32, u32, u32) {
        let shared = &self.shared;
        let get = |count: &AtomicU32| count.load(Ordering::SeqCst);
        (get(&shared.manifests), get(&shared.layers), get(&shared.refused))
    }

    pub fn go_on(&self) {
        *self.shared.pace.lock().unwrap() = Pace::AtOnce;
        self.shared.goes_on.notify_all();
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.go_on();
        let _ = TcpStream::connect(&self.address);
    }
}

impl Shared {
    fn serve(&self, client: TcpStream) -> std::io::Result<()> {
        client.set_read_timeout(Some(Duration::from_mins(5)))?;
        let mut reader = BufReader::new(client.try_clone()?);
        let mut client = client;
        loop {
            let mut lines = Vec::new();
            loop {
                let mut line = Vec::new();
                if reader.read_until(b'\n', &mut line)? == 0 {
                    return Ok(());
                }
                // Engines try TLS first.
                if lines.is_empty() && !line.is_ascii() || line.first() == Some(&22) {
                    return client.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
                }
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if line.is_empty() {
                    break;
                }
                lines.push(line);
            }
            let mut words = lines.first().map(String::as_str).unwrap_or_default().split(' ');
            let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let allowed = self.user.as_ref().is_none_or(|user| {
                let wanted = format!("authorization: basic {user}").to_lowercase();
                lines.iter().any(|line| line.to_lowercase() == wanted)
            });
            let (status, kind, body): (&str, &str, &[u8]) = if !allowed {
                self.refused.fetch_add(1, Ordering::SeqCst);
                ("401 Unauthorized", "application/json", b"{\"errors\":[{\"code\":\"UNAUTHORIZED\"}]}")
            } else if path == "/v2/" {
                ("200 OK", "application/json", b"{}")
            } else if path.contains("/manifests/") {
                if method == "GET" {
                    self.manifests.fetch_add(1, Ordering::SeqCst);
                }
                ("200 OK", MANIFEST, &self.manifest)
            } else if path.ends_with(&digest(&self.config)) {
                ("200 OK", "application/octet-stream", &self.config)
            } else if path.ends_with(&digest(&self.layer)) {
                self.layers.fetch_add(1, Ordering::SeqCst);
                ("200 OK", "application/octet-stream", &self.layer)
            } else {
                ("404 Not Found", "application/json", b"{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}")
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: {}\r\n\
                 Docker-Distribution-Api-Version: registry/2.0\r\nWww-Authenticate: Basic realm=\"tests\"\r\n\r\n",
                body.len(),
                digest(body)
            );
            client.write_all(head.as_bytes())?;
            if method == "HEAD" {
                continue;
            }
            if std::ptr::eq(body, self.layer.as_slice()) {
                self.send_layer(&mut client)?;
            } else {
                client.write_all(body)?;
            }
        }
    }

    fn send_layer(&self, client: &mut TcpStream) -> std::io::Result<()> {
        for part in self.layer.chunks(self.layer.len().div_ceil(10)) {
            let pace = self.pace.lock().unwrap();
            let wait = match *pace {
                Pace::AtOnce => Duration::ZERO,
                Pace::Never => Duration::from_mins(5),
                Pace::Tenths(pause) => pause,
            };
            let stays = *pace;
            drop(self.goes_on.wait_timeout_while(pace, wait, |pace| *pace == stays).unwrap());
            client.write_all(part)?;
        }
        Ok(())
    }
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}

/// An authority, and for each name a certificate and a key by it: `ca.pem`, `NAME.pem`, `NAME-key.pem`.
pub fn certificates(dir: &Path, names: &[&str]) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap();
    std::fs::write(dir.join("ca.pem"), pem("CERTIFICATE", authority.der())).unwrap();
    let issuer = Issuer::new(params, key);
    for name in names {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(dir.join(format!("{name}.pem")), pem("CERTIFICATE", certificate.der())).unwrap();
        std::fs::write(dir.join(format!("{name}-key.pem")), pem("PRIVATE KEY", &key.serialize_der())).unwrap();
    }
}
