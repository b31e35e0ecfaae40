//! Parses the URL of a sink.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The destination of lines, given as a URL: `file:/path`, `journald:`, `syslog:unix:/dev/log`, `syslog:udp://host:514`,
/// `syslog:tcp://host:514` or `otlp:http://host:4318`.
///
/// The text between `//` and `@` is secret: neither `Debug` nor `Display` shows it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sink {
    text: String,
    target: Target,
}

/// Why a text is not a valid sink, with the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SinkError(String);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// JSON lines; rotated by us only if a size is given.
    File { path: PathBuf, max_bytes: Option<u64>, max_files: u32 },
    /// journald's socket.
    Journald(PathBuf),
    /// A syslog receiver.
    Syslog(Syslog),
    /// An OTLP/HTTP collector.
    Otlp(Otlp),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Syslog {
    Unix(PathBuf),
    /// `host:port`.
    Udp(String),
    /// `host:port`.
    Tcp(String),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Otlp {
    /// `host:port`.
    pub(super) address: String,
    pub(super) path: String,
    /// `user:password`.
    pub(super) credentials: Option<String>,
}

/// The kinds of sinks, by the first word of their URLs.
pub(super) const KINDS: [&str; 4] = ["file", "journald", "syslog", "otlp"];

impl Sink {
    /// The kinds of sinks, by the first word of their URLs.
    pub const KINDS: [&'static str; 4] = KINDS;

    /// One of [`Sink::KINDS`].
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self.target {
            Target::File { .. } => KINDS[0],
            Target::Journald(_) => KINDS[1],
            Target::Syslog(_) => KINDS[2],
            Target::Otlp(_) => KINDS[3],
        }
    }

    /// Whether its URL contains a secret.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        redacted(&self.text) != self.text
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// The URL with its secrets: for records that only this user can read.
    #[must_use]
    pub fn secret_text(&self) -> &str {
        &self.text
    }
}

/// `text` without what may be secret, whether or not it is a URL: everything up to the last `@` is removed, beginning at `//`, or
/// without that after the kind.
fn redacted(text: &str) -> String {
    let Some(at) = text.rfind('@') else { return text.to_owned() };
    let begin = text.find("//").map(|begin| begin + 2).filter(|begin| *begin <= at);
    // A file's name is not secret.
    let Some(begin) = begin.or_else(|| text.starts_with("otlp:").then_some(5)) else { return text.to_owned() };
    format!("{}***{}", &text[..begin], &text[at..])
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.text))
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink({self})")
    }
}

impl FromStr for Sink {
    type Err = SinkError;

    fn from_str(text: &str) -> Result<Sink, SinkError> {
        let wrong = |problem: &str| SinkError(format!("log sink {:?}: {problem}", redacted(text)));
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(wrong(&format!("write it as one of {}", KINDS.map(|kind| format!("{kind}:...")).join(", "))));
        };
        let target = match kind {
            "file" => file(rest).map_err(|e| wrong(&e))?,
            "journald" => Target::Journald(absolute(rest, "/run/systemd/journal/socket").map_err(|e| wrong(&e))?),
            "syslog" => Target::Syslog(syslog(rest).map_err(|e| wrong(&e))?),
            "otlp" => Target::Otlp(otlp(rest).map_err(|e| wrong(&e))?),
            // Not quoted: the text before the first colon may be anything.
            _ => return Err(wrong(&format!("unknown kind; known are {}", KINDS.join(", ")))),
        };
        Ok(Sink { text: text.to_owned(), target })
    }
}

fn absolute(path: &str, default: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(if path.is_empty() { default } else { path });
    if path.is_absolute() && !path.as_os_str().as_encoded_bytes().contains(&0) {
        Ok(path)
    } else {
        Err("the path must be absolute".to_owned())
    }
}

fn file(rest: &str) -> Result<Target, String> {
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (mut max_bytes, mut max_files) = (None, 5);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("max_size", value)) => {
                let mib: Option<u64> = value.parse().ok().filter(|mib| *mib > 0);
                max_bytes = Some(mib.ok_or("max_size is a number of MiB, at least 1")?.saturating_mul(1024 * 1024));
            }
            Some(("max_files", value)) => {
                let files = value.parse().ok().filter(|files| (1..=1000).contains(files));
                max_files = files.ok_or("max_files is a number from 1 to 1000")?;
            }
            _ => return Err("unknown option; known are max_size and max_files".to_owned()),
        }
    }
    let path = absolute(path, "")?;
    if path.file_name().is_none() {
        return Err("the path must be that of a file".to_owned());
    }
    Ok(Target::File { path, max_bytes, max_files })
}

fn syslog(rest: &str) -> Result<Syslog, String> {
    if let Some(path) = rest.strip_prefix("unix:") {
        return Ok(Syslog::Unix(absolute(path.strip_prefix("//").unwrap_or(path), "/dev/log")?));
    }
    if let Some(host) = rest.strip_prefix("udp://") {
        return Ok(Syslog::Udp(address(host, 514)?));
    }
    if let Some(host) = rest.strip_prefix("tcp://") {
        return Ok(Syslog::Tcp(address(host, 514)?));
    }
    Err("write it as syslog:unix:/path, syslog:udp://host:port or syslog:tcp://host:port".to_owned())
}

fn otlp(rest: &str) -> Result<Otlp, String> {
    let Some(rest) = rest.strip_prefix("http://") else {
        return Err("write it as otlp:http://host:port; for TLS run a collector on this machine".to_owned());
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (credentials, host) = match authority.rsplit_once('@') {
        Some((credentials, host)) => (Some(credentials.to_owned()), host),
        None => (None, authority),
    };
    if path.bytes().any(|b| b <= b' ' || b >= 0x7f) {
        return Err("its path must be printable ASCII".to_owned());
    }
    let path = if matches!(path, "" | "/") { "/v1/logs" } else { path };
    Ok(Otlp { address: address(host, 4318)?, path: path.to_owned(), credentials })
}

/// `host:port` from `host` or `host:port`; also `[::1]` and `[::1]:514`.
fn address(text: &str, port: u16) -> Result<String, String> {
    let (host, given) = match text.rsplit_once(':') {
        Some((host, given)) if !text.ends_with(']') => (host, Some(given)),
        _ => (text, None),
    };
    let port = match given {
        None => port,
        Some(given) => given.parse().ok().filter(|port| *port != 0).ok_or("the port must be a number up to 65535")?,
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let bad = |host: &str| host.is_empty() || !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:%".contains(&b));
    if inner.is_none() && host.contains(':') || bad(inner.unwrap_or(host)) {
        return Err("write the address as host:port, an IPv6 one as [::1]:port".to_owned());
    }
    Ok(format!("{host}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Target {
        text.parse::<Sink>().unwrap_or_else(|e| panic!("{text}: {e}")).target
    }

    #[test]
    fn urls_are_read() {
        let file = |max_bytes, max_files| Target::File { path: "/var/log/t.json".into(), max_bytes, max_files };
        assert!(parse("file:/var/log/t.json") == file(None, 5));
        assert!(parse("file:/var/log/t.json?max_size=2&max_files=3") == file(Some(2 * 1024 * 1024), 3));
        assert!(parse("journald:") == Target::Journald("/run/systemd/journal/socket".into()));
        assert!(parse("syslog:unix:") == Target::Syslog(Syslog::Unix("/dev/log".into())));
        assert!(parse("syslog:unix:/x") == Target::Syslog(Syslog::Unix("/x".into())));
        assert!(parse("syslog:udp://[::1]") == Target::Syslog(Syslog::Udp("[::1]:514".into())));
        assert!(parse("syslog:tcp://logs.example:601") == Target::Syslog(Syslog::Tcp("logs.example:601".into())));
        let otlp = |credentials: Option<&str>, path: &str| {
            let credentials = credentials.map(str::to_owned);
            Target::Otlp(Otlp { address: "127.0.0.1:4318".into(), path: path.into(), credentials })
        };
        assert!(parse("otlp:http://127.0.0.1") == otlp(None, "/v1/logs"));
        assert!(parse("otlp:http://u:p@s@127.0.0.1:4318/x") == otlp(Some("u:p@s"), "/x"));
    }

    #[test]
    fn wrong_ones_are_refused_with_the_mend() {
        for (text, expected) in [
            ("", "write it as one of file:..."),
            ("kafka:x", "known are file, journald, syslog, otlp"),
            ("file:relative", "absolute"),
            ("file:", "absolute"),
            ("file:/", "that of a file"),
            ("file:/x?max_size=0", "max_size"),
            ("file:/x?size=1", "known are max_size and max_files"),
            ("journald:x", "absolute"),
            ("syslog:/dev/log", "write it as syslog:unix:"),
            ("syslog:tcp://", "host:port"),
            ("syslog:tcp://::1", "[::1]:port"),
            ("syslog:udp://h:99999", "65535"),
            ("otlp:https://h", "for TLS"),
            ("otlp:http://h\r\nX", "host:port"),
        ] {
            let error = text.parse::<Sink>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let sink: Sink = "otlp:http://user:hunter2@h/x".parse().unwrap();
        assert_eq!(
            (sink.to_string().as_str(), sink.kind()),
            ("otlp:http://***@h:4318/x".replace(":4318", "").as_str(), "otlp")
        );
        assert!(!format!("{sink:?}").contains("hunter2") && sink.has_secret());
        assert!(!"otlp:http://h/x".parse::<Sink>().unwrap().has_secret());
        // Invalid URLs do not show secrets either, even if a slash in the password makes them invalid.
        for wrong in [
            "otlp:https://user:hunter2@h",
            "otlp:http://user:hunter2/x@h",
            "otlp:http://user:x/hunter2@h",
            "otlp:http:/user:hunter2@h",
            "x//otlp:http://user:hunter2@h",
            "x//hunter2@h:1",
        ] {
            let error = wrong.parse::<Sink>().unwrap_err();
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{error}");
        }
    }
}
