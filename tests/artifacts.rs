//! Artifacts that are fetched, by the real binary from real servers on loopback: http and https, redirects, checksums, archives
//! of the real programs and hostile ones, git, an S3-like server that checks signatures; and what ends in the middle.

#[path = "support/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sha2::Digest as _;
use world::{Out, World, batch, need_root, seconds, signal};

/// A request that the server got.
#[derive(Debug, Clone)]
struct Asked {
    target: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// The path that leads to a URL.
fn lead(url: &str) -> String {
    format!("to/{}", hex(url.as_bytes()))
}

/// A server with files of a directory and some places of its own.
struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// What a server shows of itself.
struct Tls {
    config: Arc<rustls::ServerConfig>,
    authority: String,
}

fn tls() -> Tls {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key.into()).unwrap();
    Tls { config: Arc::new(config), authority: pem(authority.der()) }
}

fn base64(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn pem(der: &[u8]) -> String {
    let text = base64(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

impl Server {
    /// Serves until the test program ends.
    fn new(files: &Path, tls: Option<&Tls>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (config, files, all) = (tls.map(|tls| Arc::clone(&tls.config)), files.to_owned(), Arc::clone(&asked));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, files, all) = (config.clone(), files.clone(), Arc::clone(&all));
                // A client that leaves in the middle is not a fault of the test.
                std::thread::spawn(move || drop(serve(stream, config, &files, &all)));
            }
        });
        Server { port, asked }
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    fn https(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}/{path}", self.port)
    }

    fn asked(&self, path: &str) -> Vec<Asked> {
        self.asked.lock().unwrap().iter().filter(|asked| asked.target.starts_with(path)).cloned().collect()
    }
}

fn serve(
    stream: TcpStream,
    config: Option<Arc<rustls::ServerConfig>>,
    files: &Path,
    all: &Mutex<Vec<Asked>>,
) -> std::io::Result<()> {
    let stream: Box<dyn Stream> = match config {
        Some(config) => {
            let connection = rustls::ServerConnection::new(config).map_err(std::io::Error::other)?;
            Box::new(rustls::StreamOwned::new(connection, stream))
        }
        None => Box::new(stream),
    };
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    if target.starts_with("/private/") {
        // Whoever asks waits for the answer meanwhile.
        let seen: Vec<i32> = processes_with("word-d7").iter().map(|process| process.pid).collect();
        headers.insert("seen-in".to_owned(), format!("{seen:?}"));
    }
    let asked = Asked { target: target.clone(), headers, body };
    let times = {
        let mut all = all.lock().unwrap();
        all.push(asked.clone());
        all.iter().filter(|other| other.target == target).count()
    };
    let out = stream.get_mut();
    answer(&method, &asked, times, files, out)?;
    out.flush()
}

fn answer(method: &str, asked: &Asked, times: usize, files: &Path, out: &mut dyn Stream) -> std::io::Result<()> {
    let (path, query) = asked.target.split_once('?').unwrap_or((&asked.target, ""));
    let whole = |out: &mut dyn Stream, status: &str, more: &str, body: &[u8]| {
        write!(out, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{more}Connection: close\r\n\r\n", body.len())?;
        out.write_all(body)
    };
    let parts: Vec<&str> = path.trim_start_matches('/').splitn(2, '/').collect();
    match parts.as_slice() {
        ["to", place] => {
            let digits: Vec<u8> =
                (0..place.len()).step_by(2).map(|at| u8::from_str_radix(&place[at..at + 2], 16).unwrap()).collect();
            let place = String::from_utf8(digits).unwrap();
            whole(out, "302 Found", &format!("Location: {place}\r\n"), b"")
        }
        ["count", number] => {
            let number: u32 = number.parse().unwrap();
            let place = if number == 0 { "/hello.txt".to_owned() } else { format!("/count/{}", number - 1) };
            whole(out, "302 Found", &format!("Location: {place}\r\n"), b"")
        }
        ["silent"] => {
            // Until the other side has gone.
            out.read(&mut [0]).map(drop)
        }
        ["endless"] => {
            write!(out, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
            let piece = [b"1000\r\n".as_slice(), &[b'x'; 0x1000], b"\r\n"].concat();
            loop {
                out.write_all(&piece)?;
            }
        }
        ["huge"] => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 100000000001\r\n\r\n"),
        ["torn"] if times < 3 => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf"),
        ["busy"] if times < 2 => whole(out, "503 Service Unavailable", "", b"later"),
        ["torn" | "busy"] => whole(out, "200 OK", "", b"whole\n"),
        ["always-torn"] => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf"),
        ["query"] => whole(out, "200 OK", "", query.as_bytes()),
        ["bucket", _] => match signature_of(method, asked, path, query) {
            Ok(()) => whole(out, "200 OK", "", b"from a bucket\n"),
            Err(wrong) => whole(out, "403 Forbidden", "", wrong.as_bytes()),
        },
        ["private", below] => match asked.headers.get("authorization").map(String::as_str) {
            Some(PRIVATE) => git_backend(method, asked, below, query, files, out),
            _ => whole(out, "401 Unauthorized", "WWW-Authenticate: Basic realm=\"x\"\r\n", b""),
        },
        ["git", below] => git_backend(method, asked, below, query, files, out),
        _ => match std::fs::read(files.join(path.trim_start_matches('/'))) {
            Ok(bytes) => whole(out, "200 OK", "", &bytes),
            Err(_) => whole(out, "404 Not Found", "", b""),
        },
    }
}

const SECRET: &str = "a secret of the bucket";

fn hmac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut block = if key.len() > 64 { sha2::Sha256::digest(key).to_vec() } else { key.to_vec() };
    block.resize(64, 0);
    let pad = |byte: u8| block.iter().map(|b| b ^ byte).collect::<Vec<u8>>();
    let inner = sha2::Sha256::digest([pad(0x36), text.to_vec()].concat());
    sha2::Sha256::digest([pad(0x5c), inner.to_vec()].concat()).to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Version 4 of Amazon's signatures, in the query, worked out anew.
fn signature_of(method: &str, asked: &Asked, path: &str, query: &str) -> Result<(), String> {
    let mut pairs: Vec<(&str, &str)> = query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    pairs.sort_unstable();
    let of = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| *value).unwrap_or_default();
    let given = of("X-Amz-Signature");
    let scope = of("X-Amz-Credential").replace("%2F", "/");
    let (id, scope) = scope.split_once('/').ok_or("no credential")?;
    let signed: Vec<String> = pairs
        .iter()
        .filter(|(key, _)| *key != "X-Amz-Signature")
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let canonical =
        format!("{method}\n{path}\n{}\nhost:{}\n\nhost\nUNSIGNED-PAYLOAD", signed.join("&"), asked.headers["host"]);
    let digest = hex(&sha2::Sha256::digest(&canonical));
    let text = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{digest}", of("X-Amz-Date"));
    let parts = scope.split('/').map(str::as_bytes);
    let key = parts.fold(format!("AWS4{SECRET}").into_bytes(), |key, part| hmac(&key, part));
    let expected = hex(&hmac(&key, text.as_bytes()));
    if id == "an-id" && scope.contains("/eu-test-1/s3/") && given == expected { Ok(()) } else { Err(canonical) }
}

/// What `/private` wants: user `me`, password `pass&word-d7`.
const PRIVATE: &str = "Basic bWU6cGFzcyZ3b3JkLWQ3";

/// Processes of this machine with a text on their command line, which everybody can read.
fn processes_with(text: &str) -> Vec<procfs::process::Process> {
    let has = |p: &procfs::process::Process| p.cmdline().is_ok_and(|words| words.join(" ").contains(text));
    procfs::process::all_processes().unwrap().flatten().filter(has).collect()
}

/// `git http-backend`, as a web server runs it.
fn git_backend(
    method: &str,
    asked: &Asked,
    below: &str,
    query: &str,
    files: &Path,
    out: &mut dyn Stream,
) -> std::io::Result<()> {
    let header = |name: &str| asked.headers.get(name).cloned().unwrap_or_default();
    let mut command = Command::new("git");
    command.arg("http-backend").env_clear().env("PATH", "/usr/bin:/bin").env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("GIT_PROJECT_ROOT", files).env("PATH_INFO", format!("/{below}")).env("QUERY_STRING", query);
    command.env("REQUEST_METHOD", method).env("CONTENT_TYPE", header("content-type")).env("REMOTE_ADDR", "127.0.0.1");
    command
        .env("CONTENT_LENGTH", asked.body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"));
    command.env("GIT_PROTOCOL", header("git-protocol")).env("GIT_CONFIG_COUNT", "1");
    command.env("GIT_CONFIG_KEY_0", "safe.directory").env("GIT_CONFIG_VALUE_0", "*");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    child.stdin.take().unwrap().write_all(&asked.body)?;
    let output = child.wait_with_output()?.stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").unwrap_or(output.len());
    let head = String::from_utf8_lossy(&output[..end]).into_owned();
    let status = head.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").to_owned();
    let body = output.get(end + 4..).unwrap_or_default();
    write!(out, "HTTP/1.1 {status}\r\n{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    out.write_all(body)
}

/// A world with a directory of files and their server.
struct Place {
    world: World,
    files: PathBuf,
    server: Server,
}

fn place() -> Place {
    place_with(None)
}

fn place_with(tls: Option<&Tls>) -> Place {
    let world = World::new();
    let files = world.path("files");
    std::fs::create_dir(&files).unwrap();
    std::fs::write(files.join("hello.txt"), "hello\n").unwrap();
    let server = Server::new(&files, tls);
    Place { world, files, server }
}

/// A job whose task has this artifact block and shows what is there.
fn job(artifact: &str, script: &str) -> String {
    let args = format!("[\"-c\", {script:?}]");
    batch("raw_exec", "/bin/sh", &args).replace("config {", &format!("artifact {{\n{artifact}\n}}\nconfig {{"))
}

impl Place {
    fn run(&self, artifact: &str, script: &str) -> Out {
        let out = self.world.run_text(&job(artifact, script), &[]);
        self.world.assert_clean();
        out
    }

    /// What the task says.
    fn shows(&self, artifact: &str, script: &str) -> String {
        let out = self.run(artifact, script);
        assert_eq!(out.status, 0, "{artifact}: {out:?}");
        out.stdout
            .lines()
            .map(|line| line.split_once("] ").map_or(line, |(_, text)| text))
            .collect::<Vec<_>>()
            .join("\n")
    }

    fn fails(&self, artifact: &str, expected: &str) {
        let out = self.run(artifact, "echo it started");
        assert!(out.status == 125 && !out.stdout.contains("it started"), "{artifact}: {out:?}");
        assert!(out.stderr.contains(expected), "{artifact}: {expected:?} is not in {out:?}");
    }

    fn sh(&self, script: &str) {
        let status = Command::new("bash").args(["-ec", script]).current_dir(&self.files).stdout(Stdio::null()).status();
        assert!(status.unwrap().success(), "{script}");
    }

    /// A gigabyte of room and nobody's name: for archives that this test writes itself.
    fn tar(&self, name: &str, entries: &[(tar::EntryType, &str, &str, u32)]) {
        let mut builder = tar::Builder::new(std::fs::File::create(self.files.join(name)).unwrap());
        for (kind, path, text, mode) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            let is_file = *kind == tar::EntryType::Regular;
            if !is_file {
                header.as_gnu_mut().unwrap().linkname[..text.len()].copy_from_slice(text.as_bytes());
            }
            header.set_size(if is_file { text.len() as u64 } else { 0 });
            header.set_cksum();
            builder.append(&header, if is_file { text.as_bytes() } else { b"" }).unwrap();
        }
        builder.finish().unwrap();
    }
}

#[test]
fn j5_files_arrive_over_http_under_their_names() {
    let place = place();
    let url = |path: &str| format!("source = \"{}\"", place.server.url(path));
    assert_eq!(place.shows(&url("hello.txt"), "cat local/hello.txt; stat -c %a local/hello.txt"), "hello\n644");
    let given = format!("{}\nmode = \"file\"\ndestination = \"local/a/b\"", url("hello.txt"));
    assert_eq!(place.shows(&given, "cat local/a/b"), "hello");
    let given = format!("{}\ndestination = \"secrets/x\"\noptions {{\nfilename = \"named\"\n}}", url("hello.txt"));
    assert_eq!(place.shows(&given, "cat secrets/x/named"), "hello");
    // What the getter does not take goes to the server, and what it takes does not.
    let given = format!(
        "{}\nmode = \"file\"\ndestination = \"local/q\"\noptions {{\nb = \"c d\"\n}}",
        url("query?a=1&archive=false")
    );
    assert_eq!(place.shows(&given, "cat local/q; echo"), "a=1&b=c+d");
    let given = format!("{}\nheaders {{\nX-Token = \"for ${{NOMAD_TASK_NAME}}\"\n}}", url("hello.txt?h"));
    place.shows(&given, "true");
    assert_eq!(place.server.asked("/hello.txt?h")[0].headers["x-token"], "for t");
    // A password may hold what separates parameters; a token may stand without a user.
    for (user, pair) in [("me:p&s%26s+x", "me:p&s&s+x"), (":tok", ":tok"), ("tok", "tok:")] {
        let source = place.server.url(&format!("hello.txt?{}", pair.len())).replace("://", &format!("://{user}@"));
        place.shows(&format!("source = \"{source}\""), "true");
        let asked = place.server.asked(&format!("/hello.txt?{}", pair.len())).pop().unwrap();
        assert_eq!(asked.headers["authorization"], format!("Basic {}", base64(pair)));
    }
    place.fails(&url("no-such-file"), "answers 404 Not Found");
    place.fails(&url("huge"), "more than 100000000000 bytes");
}

#[test]
fn j5_redirects_are_followed_within_bounds() {
    let (place, other) = (self::place(), self::place());
    let url = |path: &str| format!("source = \"{}\"", place.server.url(path));
    assert_eq!(
        place.shows(&format!("{}\ndestination = \"local/x\"\nmode = \"file\"", url("count/9")), "cat local/x"),
        "hello"
    );
    place.fails(&url("count/11"), "more than 10 redirects");
    place.fails(&url(&lead("file:///etc/passwd")), "neither http nor https");
    // What is secret for one host is not told to another.
    let elsewhere = lead(&other.server.url("hello.txt"));
    let given = format!(
        "{}\noptions {{\nfilename = \"hello.txt\"\n}}\nheaders {{\nX-Token = \"secret\"\nAccept = \"text/x\"\n}}",
        url(&elsewhere)
    );
    assert_eq!(place.shows(&given, "cat local/hello.txt"), "hello");
    let (first, second) = (place.server.asked(&format!("/{elsewhere}")), other.server.asked("/hello.txt"));
    assert_eq!(first[0].headers["x-token"], "secret");
    assert!(!second[0].headers.contains_key("x-token") && second[0].headers["accept"] == "text/x", "{second:?}");
}

#[test]
fn j5_https_believes_the_authorities_that_it_is_given() {
    let tls = tls();
    let (place, plain) = (place_with(Some(&tls)), self::place());
    let run = |artifact: &str, authorities: &str| -> Out {
        let file = place.world.file("job.nomad.hcl", &job(artifact, "cat local/hello.txt"));
        let mut command = place.world.command(&[file.to_str().unwrap()]);
        let file = place.world.file("authorities.pem", authorities);
        command.env("SSL_CERT_FILE", file).output().unwrap().into()
    };
    let given = format!("source = \"{}\"", place.server.https("hello.txt"));
    let out = run(&given, &tls.authority);
    assert!(out.status == 0 && out.stdout.contains("hello"), "{out:?}");
    let out = run(&given, &self::tls().authority);
    assert!(out.status == 125 && out.stderr.contains("SSL_CERT_FILE") && out.stderr.contains("insecure"), "{out:?}");
    let out = run(&format!("{given}\ninsecure = true"), &self::tls().authority);
    assert_eq!(out.status, 0, "{out:?}");
    let lead = format!(
        "source = \"{}\"\noptions {{\nfilename = \"hello.txt\"\n}}",
        place.server.https(&lead(&plain.server.url("hello.txt")))
    );
    let out = run(&lead, &tls.authority);
    assert!(out.status == 125 && out.stderr.contains("leads from https to http://"), "{out:?}");
    assert_eq!(run(&format!("{lead}\ninsecure = true"), &tls.authority).status, 0);
}

#[test]
fn j5_checksums_are_compared() {
    let place = place();
    let given =
        |sum: &str| format!("source = \"{}\"\noptions {{\nchecksum = \"{sum}\"\n}}", place.server.url("hello.txt"));
    let sha256 = hex(&sha2::Sha256::digest(b"hello\n"));
    for sum in [
        "md5:b1946ac92492d2347c6235b4d2611184",
        "sha1:f572d396fae9206628714fb2ce00f72e94f2258f",
        "f572d396fae9206628714fb2ce00f72e94f2258f",
        &format!("sha256:{sha256}"),
        &format!("sha512:{}", hex(&sha2::Sha512::digest(b"hello\n"))),
    ] {
        assert_eq!(place.shows(&given(sum), "cat local/hello.txt"), "hello");
    }
    let wrong = "0".repeat(64);
    let zero = given(&format!("sha256:{wrong}"));
    place.fails(&zero, &format!("found sha256:{sha256}, wanted sha256:{wrong}"));
    place.sh("sha256sum hello.txt > SUMS; echo '00000000000000000000000000000000  other' > NONE");
    assert_eq!(place.shows(&given(&format!("file:{}", place.server.url("SUMS"))), "cat local/hello.txt"), "hello");
    place.fails(&given(&format!("file:{}", place.server.url("NONE"))), "has none for hello.txt");
    let signed = format!("file:{}", place.server.url("NONE?sig=secret"));
    let out = place.run(&given(&signed), "true");
    assert!(out.stderr.contains("has none for hello.txt") && !out.stderr.contains("sig=secret"), "{out:?}");
    // Headers go to the list's host when it is the file's.
    let other = self::place();
    other.sh("echo 'f572d396fae9206628714fb2ce00f72e94f2258f  hello.txt' > SUMS");
    for (server, sent) in [(&place.server, true), (&other.server, false)] {
        let given =
            format!("{}\nheaders {{\nX-Token = \"t\"\n}}", given(&format!("file:{}", server.url("SUMS?headers"))));
        place.shows(&given, "true");
        assert_eq!(server.asked("/SUMS?headers")[0].headers.contains_key("x-token"), sent);
    }
    // A file of this machine as well, in a process without a network.
    let local = format!(
        "source = \"{}\"\noptions {{\nchecksum = \"sha256:{sha256}\"\n}}",
        place.files.join("hello.txt").display()
    );
    assert_eq!(place.shows(&local, "cat local/hello.txt"), "hello");
    place.fails(&local.replace(&sha256, &wrong), "wrong checksum");
}

#[test]
fn j5_archives_of_the_real_programs_are_unpacked() {
    let place = place();
    place.sh(
        "mkdir -p pkg/bin pkg/deep/er; printf '#!/bin/sh\\necho ran\\n' > pkg/bin/tool; chmod 755 pkg/bin/tool
         echo text > pkg/deep/er/text; ln -s bin/tool pkg/link; ln -s ../../bin pkg/deep/er/up; ln pkg/bin/tool pkg/second
         tar cf p.tar pkg; tar czf p.tar.gz pkg; tar cjf p.tar.bz2 pkg; tar cJf p.tar.xz pkg; zstd -q p.tar -o p.tar.zst
         cp p.tar.gz p.tgz; zip -qry p.zip pkg; cp p.tar.gz unnamed
         gzip -k hello.txt; bzip2 -k hello.txt; xz -k hello.txt; zstd -q hello.txt",
    );
    let look = "cd local; pkg/link; cat pkg/deep/er/text; pkg/deep/er/up/tool; pkg/second";
    for name in ["p.tar", "p.tar.gz", "p.tgz", "p.tar.bz2", "p.tar.xz", "p.tar.zst", "p.zip"] {
        let shown = place.shows(&format!("source = \"{}\"", place.server.url(name)), look);
        assert_eq!(shown, "ran\ntext\nran\nran", "{name}");
    }
    let local = format!("source = \"{}\"", place.files.join("p.tar.xz").display());
    assert_eq!(place.shows(&local, look), "ran\ntext\nran\nran");
    for name in ["hello.txt.gz", "hello.txt.bz2", "hello.txt.xz", "hello.txt.zst"] {
        let given = format!("source = \"{}\"\nmode = \"file\"\ndestination = \"local/x\"", place.server.url(name));
        assert_eq!(place.shows(&given, "cat local/x"), "hello", "{name}");
    }
    let of = |rest: &str| format!("source = \"{}{rest}", place.server.url(""));
    assert_eq!(place.shows(&of("p.tar.gz\"\noptions {\narchive = false\n}"), "ls local"), "p.tar.gz");
    assert_eq!(place.shows(&of("unnamed?archive=tar.gz\""), look), "ran\ntext\nran\nran");
    assert_eq!(place.shows(&of("p.tar.gz//p*/bin\""), "local/tool"), "ran");
    assert_eq!(
        place.shows(&of("p.zip//pkg/deep\"\nmode = \"file\"\ndestination = \"local/x\""), "cat local/x"),
        "text"
    );
    place.fails(&of("p.zip//none\""), "nothing in what was fetched fits");
    place.fails(&of("p.zip\"\nmode = \"file\"\ndestination = \"local/x\""), "several files");
    place.fails(&of("hello.txt.gz\""), "use mode = \"file\"");
    std::fs::write(place.files.join("broken.zip"), "PK no zip").unwrap();
    place.fails(&of("broken.zip\""), "unpack broken.zip");
    place.sh("head -c 60 p.tar.gz > cut.tar.gz");
    place.fails(&of("cut.tar.gz\""), "unpack cut.tar.gz");
}

/// As many directories side by side as an archive may hold, with few descriptors.
#[test]
fn j5_a_wide_tree_is_put_into_its_place_with_few_descriptors() {
    let place = place();
    place.sh("mkdir wide; cd wide; mkdir $(seq 3000); cd ..; tar cf wide.tar wide");
    let given = format!("source = \"{}\"", place.server.url("wide.tar"));
    let file = place.world.file("job.nomad.hcl", &job(&given, "ls local/wide | wc -l"));
    let command = place.world.command(&[file.to_str().unwrap()]);
    let mut limited = Command::new("bash");
    limited.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    limited.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?)))).stdin(Stdio::null());
    let out: Out = limited.output().unwrap().into();
    assert!(out.status == 0 && out.stdout.contains("3000"), "{out:?}");
    place.world.assert_clean();
}

/// A directory that was there stays as it is, and no name in it is ours: others may be at work there.
#[test]
fn j5_what_is_shared_with_others_is_left_to_them() {
    use tar::EntryType::{Directory, Regular, Symlink};
    let place = place();
    let first = [(Directory, "cache", "", 0o700), (Directory, ".agentbin-artifact", "", 0o755)];
    place.tar("first.tar", &first);
    let second = [
        (Directory, "cache", "", 0o777),
        (Regular, "cache/f", "x", 0o640),
        (Directory, "new", "", 0o750),
        (Symlink, "l", "cache/f", 0o777),
        (Symlink, "cache/l", "f", 0o777),
    ];
    place.tar("second.tar", &second);
    for destination in ["local/x", "secrets/x"] {
        let block = |name: &str, more: &str| {
            format!("source = \"{}\"\ndestination = \"{destination}\"\n{more}", place.server.url(name))
        };
        let given = format!("{}\n}}\nartifact {{\n{}", block("first.tar", ""), block("second.tar", ""));
        let look = format!("cd {destination}; stat -c %a cache new cache/f; cat l; cat cache/l; ls -A cache");
        assert_eq!(place.shows(&given, &look), "700\n750\n640\nxxf\nl", "{destination}");
    }
    // A link belongs to whom the files belong.
    if nix::unistd::geteuid().is_root() {
        for destination in ["local/x", "secrets/x"] {
            let given = format!(
                "source = \"{}\"\nchown = true\ndestination = \"{destination}\"",
                place.server.url("second.tar")
            );
            let text = job(&given, "true").replace("driver = ", "user = \"nobody\"\n driver = ");
            let look = format!("stat -c %U {destination} {destination}/l {destination}/cache {destination}/cache/f");
            let out = place.world.run_text(&text.replace("\"true\"", &format!("{look:?}")), &[]);
            assert!(out.status == 0 && out.stdout.matches("nobody").count() == 4, "{out:?}");
            place.world.assert_clean();
        }
    }
}

/// B19: nothing is written outside, no link leads out, no set-id bit and no device arrives.
#[test]
fn b19_hostile_archives_write_nothing_outside() {
    use tar::EntryType::{Block, Char, Fifo, Link, Regular, Symlink};
    let place = place();
    let outside = place.world.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::set_permissions(&outside, PermissionsExt::from_mode(0o777)).unwrap();
    let to = outside.to_str().unwrap();
    type Entry<'a> = (tar::EntryType, &'a str, &'a str, u32);
    let evil = format!("{to}/evil");
    let hostile: Vec<(&str, Vec<Entry<'_>>, &str)> = vec![
        ("up", vec![(Regular, "../evil", "x", 0o644)], "leads out of the destination"),
        ("deep-up", vec![(Regular, "a/../../evil", "x", 0o644)], "leads out of the destination"),
        ("through", vec![(Symlink, "l", to, 0o777), (Regular, "l/evil", "x", 0o644)], "through a link"),
        ("link-out", vec![(Symlink, "l", to, 0o777)], "may lie outside"),
        ("link-up", vec![(Symlink, "a/l", "../../x", 0o777)], "may lie outside"),
        ("link-chain", vec![(Symlink, "p/s", "..", 0o777), (Symlink, "p/l", "s/../../x", 0o777)], "may lie outside"),
        ("hard-out", vec![(Link, "h", "../../../../../../etc/passwd", 0o644)], "leads out of the destination"),
        ("hard-abs", vec![(Link, "h", "/etc/passwd", 0o644)], "which is not there yet"),
        ("hard-link", vec![(Symlink, "l", "/etc/passwd", 0o777), (Link, "h", "l", 0o644)], "which is not a file"),
        ("device", vec![(Char, "d", "", 0o666)], "is a device"),
        ("block", vec![(Block, "d", "", 0o666)], "is a device"),
        ("fifo", vec![(Fifo, "f", "", 0o666)], "is a FIFO"),
    ];
    for (name, entries, expected) in &hostile {
        place.tar(&format!("{name}.tar"), entries);
        place.fails(&format!("source = \"{}\"", place.server.url(&format!("{name}.tar"))), expected);
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
    // These are taken, without what is wrong with them.
    place.tar(
        "set-id.tar",
        &[(Regular, "s", "x", 0o6755), (Regular, evil.as_str(), "in", 0o7644), (Regular, "s", "y", 0o4711)],
    );
    let given = format!("source = \"{}\"", place.server.url("set-id.tar"));
    let look = format!("cat local/s; echo; cat local{evil}; echo; find local -perm /7000; stat -c %a local/s");
    assert_eq!(place.shows(&given, &look), "y\nin\n711");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn b19_bombs_end_at_their_limits() {
    let place = place();
    place.sh(
        "truncate -s 300M zero; zstd -q -19 --long=27 zero; gzip -9k zero; tar cf - zero | xz -0 > zero.tar.xz
         mkdir many; (cd many; seq 5000 | xargs touch); tar czf many.tar.gz many; (cd many; zip -q -r ../many.zip .); rm zero",
    );
    let given =
        |name: &str| format!("source = \"{}\"\nmode = \"file\"\ndestination = \"local/x\"", place.server.url(name));
    place.fails(&given("zero.zst"), "more than 1000 times its size");
    place.fails(&given("zero.gz"), "more than 1000 times its size");
    place.fails(&given("zero.tar.xz"), "more than 1000 times its size");
    place.fails(&format!("source = \"{}\"", place.server.url("many.tar.gz")), "more than 4096 files");
    place.fails(&format!("source = \"{}\"", place.server.url("many.zip")), "more than 4096 files");
}

#[test]
fn j5_interrupted_downloads_are_begun_again() {
    let place = place();
    let given =
        |name: &str| format!("source = \"{}\"\nmode = \"file\"\ndestination = \"local/x\"", place.server.url(name));
    assert_eq!(place.shows(&given("torn"), "cat local/x"), "whole");
    assert_eq!(place.server.asked("/torn").len(), 3);
    assert_eq!(place.shows(&given("busy"), "cat local/x"), "whole");
    place.fails(&given("always-torn"), "interrupted after 4 of 1000 bytes");
    // Whatever the reason is, the restart policy decides, as with Nomad.
    let restarts = |artifact: &str| {
        let text = job(artifact, "true").replace("attempts = 0", "attempts = 1\ndelay = \"1s\"");
        let out = place.world.run_text(&text, &[]);
        place.world.assert_clean();
        assert_eq!(out.status, 125, "{out:?}");
        out.stderr.matches("Task restarting in").count()
    };
    assert_eq!((restarts(&given("always-torn")), restarts(&given("no-such"))), (1, 1));
    // Those before and behind the one that fails are fetched, and not fetched again.
    let whole = |name: &str| format!("source = \"{}\"", place.server.url(name));
    let (first, last) = (whole("hello.txt?once"), whole("hello.txt?last"));
    let three = [first, given("always-torn"), last].join("\n}\nartifact {\n");
    assert_eq!(restarts(&three), 1);
    for name in ["/hello.txt?once", "/hello.txt?last"] {
        assert_eq!(place.server.asked(name).len(), 1, "{name}");
    }
}

#[test]
fn j5_repositories_are_fetched_by_git() {
    let tls = tls();
    let place = place_with(Some(&tls));
    place.sh(
        "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
         git init -q -b main work; cd work; mkdir sub; echo one > sub/f; git add .; git commit -qm one; git tag v1
         echo two > sub/f; git commit -qam two; git checkout -qb side; echo side > sub/f; git commit -qam side; git checkout -q main
         cd ..; git clone -q --bare work repo.git; git -C repo.git config uploadpack.allowAnySHA1InWant true",
    );
    let commit =
        Command::new("git").args(["-C", "work", "rev-parse", "v1"]).current_dir(&place.files).output().unwrap();
    let commit = String::from_utf8(commit.stdout).unwrap();
    let authorities = place.world.file("authorities.pem", &tls.authority);
    let home = place.world.path("home");
    std::fs::create_dir(&home).unwrap();
    // Somebody's configuration that would send every request elsewhere, and one that runs a program.
    let config = "[url \"https://127.0.0.1:1/\"]\ninsteadOf = https://127.0.0.1\n[core]\nfsmonitor = touch /evil\n";
    std::fs::write(home.join(".gitconfig"), config).unwrap();
    let run = |rest: &str, script: &str| -> Out {
        let source = format!("source = \"git::{}{rest}", place.server.https("git/repo.git"));
        let file = place.world.file("job.nomad.hcl", &job(&source, script));
        let mut command = place.world.command(&[file.to_str().unwrap()]);
        command.env("SSL_CERT_FILE", &authorities).env("HOME", &home);
        let out = command.output().unwrap().into();
        place.world.assert_clean();
        out
    };
    for (rest, script, expected) in [
        ("\"".to_owned(), "cat local/sub/f", "two"),
        ("?ref=v1\"".to_owned(), "cat local/sub/f", "one"),
        (
            "\"\noptions {\nref = \"side\"\ndepth = 1\n}".to_owned(),
            "cat local/sub/f; test -s local/.git/shallow",
            "side",
        ),
        (format!("?ref={}&depth=1\"", commit.trim()), "cat local/sub/f", "one"),
        ("//sub\"".to_owned(), "cat local/f", "two"),
    ] {
        let out = run(&rest, script);
        assert!(out.status == 0 && out.stdout.contains(expected), "{rest}: {out:?}");
    }
    let out = run("?ref=none\"", "true");
    assert!(out.status == 125 && out.stderr.contains("invalid reference: none"), "{out:?}");
    // A link that leads out of what was fetched arrives by no way.
    place.sh(
        "export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; cd work
         ln -s /etc/passwd l; git add .; git commit -qm l; git push -q ../repo.git main",
    );
    let out = run("\"", "true");
    assert!(out.status == 125 && out.stderr.contains("may lie outside"), "{out:?}");
}

/// The shared directory stands beside the task's, and jobs name it that way, too; another task's directory is its own.
#[test]
fn j4_j5_files_arrive_in_the_shared_directory_by_any_of_its_names() {
    let place = place();
    let source = place.files.join("hello.txt");
    let blocks = |to: &str| {
        format!(
            "source = \"{}\"\ndestination = \"{to}/data/fetched\"\nmode = \"file\"\n}}\ntemplate {{\ndata = \"made\"\n\
             destination = \"{to}/data/made\"",
            source.display()
        )
    };
    let script = "cd $NOMAD_ALLOC_DIR/data && cat fetched made";
    for to in ["alloc", "/alloc", "../alloc", "local/../../alloc", "${NOMAD_ALLOC_DIR}", "local/..//../alloc/tmp/.."] {
        assert_eq!(place.shows(&blocks(to), script), "hello\nmade", "{to}");
    }
    for to in ["..", "../other", "../../alloc", "${NOMAD_ALLOC_DIR}/../..", "local/../../.."] {
        let out = place.run(&blocks(to), "echo it started");
        assert!(out.status == 125 && !out.stdout.contains("it started"), "{to}: {out:?}");
        assert!(!place.world.path("data/data").exists(), "{to}");
    }
}

/// Users, passwords and tokens of a URL are on no command line, in no file that arrives, and in no message.
#[test]
fn j5_nobody_reads_the_password_of_a_repository() {
    let tls = tls();
    let place = place_with(Some(&tls));
    place.sh(
        "export HOME=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
         git init -q -b main work; cd work; echo one > f; git add .; git commit -qm one; cd ..; git clone -q --bare work repo.git
         git -C repo.git config uploadpack.allowAnySHA1InWant true; git -C work rev-parse HEAD > commit",
    );
    let commit = std::fs::read_to_string(place.files.join("commit")).unwrap();
    let authorities = place.world.file("authorities.pem", &tls.authority);
    let run = |user: &str, rest: &str| -> Out {
        let url = place.server.https(&format!("private/repo.git{rest}")).replace("://", &format!("://{user}"));
        let script = "cat local/f; grep -r word-d7 local && exit 9; exit 0";
        let file = place.world.file("job.nomad.hcl", &job(&format!("source = \"git::{url}\""), script));
        let mut command = place.world.command(&["--json", file.to_str().unwrap()]);
        let out: Out = command.env("SSL_CERT_FILE", &authorities).output().unwrap().into();
        place.world.assert_clean();
        assert!(!format!("{out:?}").contains("word-d7"), "{out:?}");
        out
    };
    for rest in [String::new(), format!("?ref={}&depth=1", commit.trim())] {
        let out = run("me:pass%26word-d7@", &rest);
        assert!(out.status == 0 && out.stdout.contains("one"), "{out:?}");
    }
    let refused = "the server refuses the user, password or token";
    for (user, why) in [
        ("word-d7@", refused),
        ("me:word-d7@", refused),
        (":word-d7@", refused),
        ("", "put a token into the URL (https://USER:TOKEN@HOST/PATH)"),
    ] {
        let out = run(user, "");
        assert!(out.status == 125 && out.stderr.contains(why), "{user}: {out:?}");
    }
    let asked = place.server.asked("/private/");
    assert!(asked.iter().any(|asked| asked.headers.get("authorization").is_some_and(|value| value == PRIVATE)));
    let seen: Vec<_> = asked.iter().map(|asked| &asked.headers["seen-in"]).filter(|seen| *seen != "[]").collect();
    assert!(seen.is_empty(), "{seen:?}");
}

#[test]
fn j5_objects_of_a_bucket_are_asked_for_with_a_signature() {
    let place = place();
    let given = |secret: &str| {
        format!(
            "source = \"s3::{}\"\noptions {{\naws_access_key_id = \"an-id\"\naws_access_key_secret = \"{secret}\"\nregion = \"eu-test-1\"\n}}",
            place.server.url("bucket/a/key with space.txt")
        )
    };
    assert_eq!(place.shows(&given(SECRET), "cat \"local/key with space.txt\""), "from a bucket");
    let out = place.run(&given("a wrong one"), "true");
    assert!(out.status == 125 && out.stderr.contains("403 Forbidden") && !out.stderr.contains("wrong one"), "{out:?}");
    let unsigned = format!("source = \"s3::{}\"", place.server.url("bucket/key"));
    place.fails(&unsigned, "403 Forbidden");
    assert!(!place.server.asked("/bucket/key").is_empty());
}

#[test]
fn j5_what_is_not_fetched_is_a_warning_of_validate_and_a_refusal_of_run() {
    let place = place();
    let file = place.world.file("j.hcl", &job("source = \"hg::https://h/x\"", "true"));
    let file = file.to_str().unwrap();
    let out = place.world.agentbin(&["validate", file]);
    assert!(out.status == 0 && out.stderr.contains("warning") && out.stderr.contains("Mercurial"), "{out:?}");
    let out = place.world.run(&[file]);
    assert!(out.status == 125 && out.stderr.contains("j.hcl:") && out.stderr.contains("Mercurial"), "{out:?}");
    place.world.assert_clean();
}

fn fetchers() -> Vec<procfs::process::Process> {
    let name = |p: &procfs::process::Process| {
        p.cmdline().is_ok_and(|words| words.iter().any(|word| word == "artifact-fetcher"))
    };
    procfs::process::all_processes().unwrap().flatten().filter(name).collect()
}

/// Those that belong to this world, once both processes of one are there and the server was asked so many times.
fn both(place: &Place, before: usize) -> Vec<procfs::process::Process> {
    let deadline = Instant::now() + seconds(20);
    let mark = place.world.mark();
    loop {
        let found: Vec<_> =
            fetchers().into_iter().filter(|p| p.cmdline().is_ok_and(|words| words.join(" ").contains(&mark))).collect();
        if found.len() == 2 && place.server.asked("/").len() >= before {
            return found;
        }
        assert!(Instant::now() < deadline, "{found:?}");
        std::thread::yield_now();
    }
}

/// The fetcher has a user, a pid namespace and limits of its own, no capability, a filter, and nobody can look into it.
#[test]
fn j5_the_fetcher_is_confined() {
    need_root!();
    let place = place();
    let mut running = place.world.start_text(&job(&format!("source = \"{}\"", place.server.url("silent")), "true"));
    let found = both(&place, 1);
    let namespace = |p: &procfs::process::Process, kind: &str| {
        let link = std::fs::read_link(format!("/proc/{}/ns/{kind}", p.pid)).unwrap();
        (link != std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap(), link)
    };
    let inside = found.iter().find(|p| namespace(p, "pid").0).expect("one is in a pid namespace");
    for (kind, own) in [("mnt", true), ("ipc", true), ("net", false), ("user", false)] {
        assert_eq!(namespace(inside, kind).0, own, "{kind}");
    }
    let status = inside.status().unwrap();
    assert!(status.ruid > 65_535 && status.euid == status.ruid && status.rgid > 65_535, "{}", status.ruid);
    let none = [status.capprm, status.capeff, status.capbnd.unwrap(), status.capinh, status.capamb.unwrap()];
    assert_eq!(none, [0; 5]);
    assert_eq!((status.nonewprivs, status.seccomp), (Some(1), Some(2)));
    assert!(status.groups.is_empty(), "{:?}", status.groups);
    let limits = inside.limits().unwrap();
    assert!(matches!(limits.max_core_file_size.soft_limit, procfs::process::LimitValue::Value(0)), "{limits:?}");
    assert!(matches!(limits.max_data_size.soft_limit, procfs::process::LimitValue::Value(_)), "{limits:?}");
    let other = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{}/maps", inside.pid)).unwrap());
    assert_eq!(other, 0, "not dumpable: its files in /proc are root's");
    signal(&running.child, "SIGINT");
    assert_eq!(running.finish().status, 130);
    place.world.assert_clean();
    // What needs no network has none; nothing but zeros is compared with its checksum for minutes.
    place.sh("truncate -s 90G big");
    let big = place.files.join("big");
    let sum = "0".repeat(128);
    let text = format!("source = \"{}\"\noptions {{\nchecksum = \"sha512:{sum}\"\n}}", big.display());
    let mut running = place.world.start_text(&job(&text, "true"));
    let found = both(&place, 0);
    assert!(found.iter().any(|p| namespace(p, "net").0 && namespace(p, "pid").0 && namespace(p, "mnt").0));
    signal(&running.child, "SIGINT");
    assert_eq!(running.finish().status, 130);
    place.world.assert_clean();
}

const CHILD: &str = "AGENTBIN_TEST_CONFINED";

/// What a confined process may open: Landlock holds where modes would not.
#[test]
fn j5_a_confined_process_reaches_its_directory_only() {
    if agentbin::sys::features::landlock().is_err() {
        return println!("SKIP: j5_a_confined_process_reaches_its_directory_only: no Landlock here");
    }
    let Some(dir) = std::env::var_os(CHILD) else {
        let world = World::new();
        for name in ["own", "other"] {
            std::fs::create_dir(world.path(name)).unwrap();
        }
        std::fs::write(world.path("other/secret"), "").unwrap();
        let name = "j5_a_confined_process_reaches_its_directory_only";
        let mut command = Command::new(std::env::args_os().next().unwrap());
        let out = command.args(["--exact", name, "--nocapture"]).env(CHILD, world.path("")).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        return;
    };
    // Another process, as limits hold for all of it; the rest is this thread's.
    let dir = PathBuf::from(dir);
    let own = std::fs::File::open(dir.join("own")).unwrap();
    let confinement = agentbin::container::Confinement {
        becomes: None,
        writable: std::os::fd::AsFd::as_fd(&own),
        readable: &[Path::new("/usr")],
        devices: &[Path::new("/dev/null")],
        file_bytes: 1 << 20,
        memory_bytes: 1 << 30,
    };
    agentbin::container::confine(&confinement).unwrap();
    let refused = |result: std::io::Result<()>, what: &str| {
        assert_eq!(result.map_err(|error| error.kind()), Err(std::io::ErrorKind::PermissionDenied), "{what}");
    };
    for path in [dir.join("other/secret"), "/proc/self/status".into(), dir.join("other"), "/dev/zero".into()] {
        refused(std::fs::File::open(&path).map(drop), &path.display().to_string());
    }
    refused(std::fs::create_dir(dir.join("other/new")), "make a directory");
    refused(std::fs::write(dir.join("other/secret"), "x"), "write a file");
    refused(std::fs::rename(dir.join("other/secret"), dir.join("own/secret")), "take a file");
    refused(std::fs::write("/usr/agentbin-test", "x"), "write to what is read");
    std::fs::read_dir("/usr").unwrap();
    std::fs::write(dir.join("own/new"), "x").unwrap();
    std::fs::write("/dev/null", "x").unwrap();
    // A file that grows too long is an error, not the end.
    let error = std::fs::write(dir.join("own/long"), vec![0; (1 << 20) + 1]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFBIG));
    println!("confined");
}

/// In the middle of a download: a signal, the timeout, and the sudden death of the run. No process stays.
#[test]
fn j5_a_download_is_left_within_200_ms() {
    let place = place();
    for path in ["silent", "endless"] {
        let text = job(&format!("source = \"{}\"", place.server.url(path)), "echo it started");
        let mut times = Vec::new();
        for _ in 0..5 {
            let before = place.server.asked("/").len();
            let mut running = place.world.start_text(&text);
            both(&place, before + 1);
            let began = Instant::now();
            signal(&running.child, "SIGINT");
            let out = running.finish();
            times.push(began.elapsed());
            assert!(out.status == 130 && !out.stdout.contains("it started"), "{out:?}");
            place.world.assert_clean();
        }
        times.sort_unstable();
        println!("{path}: left after {times:?}");
        assert!(times[2] < Duration::from_millis(200) * world::slower(), "{path}: {times:?}");
        let out = place.world.run_text(&text, &["--timeout", "1s"]);
        assert!(out.status == 124, "{out:?}");
        place.world.assert_clean();
        let before = place.server.asked("/").len();
        let mut running = place.world.start_text(&text);
        both(&place, before + 1);
        running.child.kill().unwrap();
        running.finish();
        let deadline = Instant::now() + seconds(5);
        let left = || {
            fetchers()
                .into_iter()
                .filter(|p| p.cmdline().is_ok_and(|w| w.join(" ").contains(&place.world.mark())))
                .count()
        };
        while left() > 0 {
            assert!(Instant::now() < deadline, "a fetcher outlives its run");
            std::thread::yield_now();
        }
        place.world.agentbin(&["gc"]);
        place.world.assert_clean();
    }
}

/// Where the machine allows no namespaces, what the fetcher has started ends before it does, all the same. In a thread of its own,
/// whose mount namespace nobody shares: there, git is a program that leaves another one behind.
#[test]
fn j5_nothing_of_a_fetcher_without_namespaces_outlives_it() {
    use nix::mount::{MsFlags, mount};
    need_root!();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none).unwrap();
    let place = place();
    let script =
        "#!/bin/sh\nsetsid sh -c 'sleep 1000; : left-behind' 2>&- &\nmkdir repository; echo text > repository/f\n";
    let git = place.world.file("git", script);
    std::fs::set_permissions(&git, PermissionsExt::from_mode(0o755)).unwrap();
    mount(Some(&git), "/usr/bin/git", none, MsFlags::MS_BIND, none).unwrap();
    // What the task sees when what was fetched has its place.
    let look = "cat local/f; ps ax -o args | grep '[l]eft-behind'; readlink /proc/self/ns/user";
    let file = place.world.file("job.nomad.hcl", &job("source = \"git::https://127.0.0.1:1/r.git\"", look));
    let command = place.world.command_as(world::plain_user(2), &["run", file.to_str().unwrap()]);
    let user = world::plain_user(2).to_string();
    let mut less = Command::new("setpriv");
    less.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    // In a user namespace that can have no others below it.
    let alone = "echo 0 > /proc/sys/user/max_user_namespaces
        exec setpriv --ambient-caps -all --inh-caps -all -- \"$0\" \"$@\"";
    less.args(["unshare", "-U", "--map-current-user", "--keep-caps", "sh", "-ec", alone]);
    less.arg(command.get_program()).args(command.get_args()).env_clear();
    less.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    let out: Out = less.output().unwrap().into();
    let user = std::fs::read_link("/proc/self/ns/user").unwrap();
    assert!(out.status == 0 && out.stdout.starts_with("text\nuser:"), "{out:?}");
    assert!(!out.stdout.contains(user.to_str().unwrap()), "{out:?}");
    place.world.assert_clean();
}

/// Whoever cannot have a directory for a fetcher leaves none. In a mount namespace of this thread's own.
#[test]
fn j5_a_fetcher_without_a_user_leaves_no_directory() {
    use nix::mount::{MsFlags, mount};
    need_root!();
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_PRIVATE | MsFlags::MS_REC, none).unwrap();
    let world = World::new();
    // The registry of users would lie where everybody may write.
    mount(Some("test"), "/var/lib", Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
    std::fs::create_dir_all("/var/lib/agentbin/host-ids").unwrap();
    for dir in ["/var/lib/agentbin", "/var/lib/agentbin/host-ids"] {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
    }
    let dir = world.path("alloc");
    std::fs::create_dir(&dir).unwrap();
    let (action, _) = agentbin::artifact::Staging::new(&dir).unwrap_err();
    assert_eq!(action, "no user for the fetcher");
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

/// A plain user's fetcher is that user, in namespaces as far as the machine gives him some.
#[test]
fn j5_a_plain_user_fetches_too() {
    need_root!();
    let place = place();
    place.sh("mkdir p; echo text > p/f; tar czf p.tar.gz p");
    let text = job(&format!("source = \"{}\"", place.server.url("p.tar.gz")), "cat local/p/f");
    let file = place.world.file("job.nomad.hcl", &text);
    let out: Out = loop {
        match place.world.command_as(world::plain_user(1), &["run", file.to_str().unwrap()]).output() {
            // Another test's child has the copy of the program open for writing, until it executes.
            Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
            other => break other.unwrap().into(),
        }
    };
    assert!(out.status == 0 && out.stdout.contains("text"), "{out:?}");
    place.world.assert_clean();
}
