//! Asks the agent of this machine over its unix socket: one request, one answer.

use std::io::{self, BufRead as _, BufReader, Cursor, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::SocketArgs;
use crate::alloc::machine;

/// The agent's socket, in the directory of sockets.
pub(super) const SOCKET: &str = "agentbin.sock";
/// How long an answer may take: a new program is tried meanwhile.
const ANSWER: Duration = Duration::from_mins(3);
/// Most bytes of an answer.
const LONGEST: u64 = 16 << 20;
/// Most bytes of an answer's head.
const LONGEST_HEAD: usize = 64 << 10;
/// Bytes of a head that are read at once.
const PIECE: usize = 4096;
/// Bytes of a body that are read at once.
pub(super) const BODY_PIECE: usize = 64 << 10;
/// What is wrong when a body cannot be read.
pub(super) const BROKEN: &str = "the answer ended early";
/// Most bytes of the line before a chunk of a body.
const LONGEST_LINE: u64 = 256;
/// What a head ends with.
const END: &[u8] = b"\r\n\r\n";

/// The agent's socket: the given one, that of `NOMAD_ADDR`, or the usual one.
///
/// # Errors
/// Without root and without any of them.
pub(super) fn socket(args: &SocketArgs) -> anyhow::Result<PathBuf> {
    let of_nomad = || std::env::var("NOMAD_ADDR").ok()?.strip_prefix("unix://").map(PathBuf::from);
    if let Some(path) = args.socket.clone().or_else(of_nomad) {
        return Ok(path);
    }
    let data_dir = machine::existing_data_dir(None)?.unwrap_or_default();
    Ok(machine::socket_base(&data_dir).join(SOCKET))
}

/// What is asked of the agent.
pub(super) struct Request<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    /// The length of the body.
    pub(super) length: u64,
    pub(super) body: &'a mut dyn Read,
}

/// An answer that says yes, whose body comes as it is read.
pub(super) struct Answer {
    head: String,
    pub(super) body: Body,
}

/// The value of a header.
fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = head.lines().filter_map(|line| line.split_once(':'));
    pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

impl Answer {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Writes the body to standard output as it comes.
    pub(super) fn print(mut self) -> anyhow::Result<i32> {
        let mut piece = vec![0; BODY_PIECE];
        loop {
            match self.body.read(&mut piece).context(BROKEN)? {
                0 => return Ok(0),
                length => super::print(&piece[..length])?,
            };
        }
    }
}

/// How a body ends.
enum Framing {
    /// After so many bytes.
    Length(u64),
    /// After the chunk of no bytes; so many are left of this one, if it has begun.
    Chunks(Option<u64>),
    /// With its connection.
    Connection,
}

/// A body, which is an error where it ends too early.
pub(super) struct Body {
    from: BufReader<io::Chain<Cursor<Vec<u8>>, UnixStream>>,
    framing: Framing,
}

impl Body {
    fn new(head: &str, read: Vec<u8>, stream: UnixStream) -> io::Result<Body> {
        let framing = match header(head, "content-length") {
            Some(length) => Framing::Length(length.parse().map_err(|_| io::ErrorKind::InvalidData)?),
            None if header(head, "transfer-encoding").is_some() => Framing::Chunks(None),
            None => Framing::Connection,
        };
        Ok(Body { from: BufReader::new(Cursor::new(read).chain(stream)), framing })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.from).take(LONGEST_LINE).read_line(&mut line)?;
        if line.ends_with('\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Goes to the next chunk at the end of one; the one of no bytes is the end.
    fn next_chunk(&mut self) -> io::Result<()> {
        match self.framing {
            Framing::Chunks(None) => {}
            Framing::Chunks(Some(0)) => drop(self.line()?),
            _ => return Ok(()),
        }
        let line = self.line()?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let length = u64::from_str_radix(digits, 16).map_err(|_| io::ErrorKind::InvalidData)?;
        self.framing = if length == 0 { Framing::Length(0) } else { Framing::Chunks(Some(length)) };
        Ok(())
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.next_chunk()?;
        let (Framing::Length(left) | Framing::Chunks(Some(left))) = &mut self.framing else {
            return self.from.read(buffer);
        };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let length = self.from.read(&mut buffer[..most])?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *left -= length as u64;
        Ok(length)
    }
}

/// Sends a request.
///
/// # Errors
/// When there is no agent, and the text of an answer that says no.
pub(super) fn open(socket: &Path, request: Request<'_>) -> anyhow::Result<Answer> {
    let Request { method, path, length, body } = request;
    let about = || format!("{}: no agent answers there; give its --socket", socket.display());
    let broken = || format!("{}: the answer ended early", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(about)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).with_context(about)?;
    // An agent that refuses may not read all of it, and says why.
    let sent = std::io::copy(body, &mut stream);
    let mut answer = Vec::new();
    let read = loop {
        let mut piece = [0; PIECE];
        let read = stream.read(&mut piece).with_context(broken)?;
        let from = answer.len().saturating_sub(END.len());
        answer.extend_from_slice(&piece[..read]);
        if let Some(at) = answer[from..].windows(END.len()).position(|part| part == END) {
            break answer.split_off(from + at + END.len());
        }
        if read == 0 || answer.len() > LONGEST_HEAD {
            sent.with_context(about)?;
            bail!(broken());
        }
    };
    let head = String::from_utf8_lossy(&answer).into_owned();
    let body = Body::new(&head, read, stream).with_context(broken)?;
    match head.split(' ').nth(1) {
        Some("200" | "204") => Ok(Answer { head, body }),
        status => {
            let mut text = Vec::new();
            body.take(LONGEST).read_to_end(&mut text).with_context(broken)?;
            bail!("the agent says {}: {}", status.unwrap_or_default(), String::from_utf8_lossy(&text).trim())
        }
    }
}

/// The answer's text.
///
/// # Errors
/// As [`open`].
pub(super) fn ask(socket: &Path, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let request = Request { method, path, length: body.len() as u64, body: &mut body.as_bytes() };
    let answer = open(socket, request)?;
    answer
        .body
        .take(LONGEST)
        .read_to_end(&mut text)
        .with_context(|| format!("{}: the answer ended early", socket.display()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `agentbin agent upgrade`: returns when the new program answers.
pub(super) fn upgrade(args: &SocketArgs) -> anyhow::Result<i32> {
    let socket = socket(args)?;
    ask(&socket, "PUT", "/v1/agentbin/upgrade", "").context("not upgraded")?;
    // Waits in the socket's queue until the new program listens.
    let answer =
        ask(&socket, "GET", "/v1/agent/self", "").context("the new program has taken over, and does not answer")?;
    let answer: serde_json::Value = serde_json::from_str(&answer).context("cannot read the new program's answer")?;
    let version = answer["config"]["Version"]["Revision"].as_str().unwrap_or_default();
    super::print(format!("upgraded to agentbin {version}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// What is read of an answer that comes in these pieces, and what is wrong with it.
    fn asked(pieces: &[&str]) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, _) = listener.accept().unwrap();
                // The whole request, as whoever closes a socket with unread bytes resets it.
                let mut request = Vec::new();
                while !request.ends_with(END) {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                for piece in pieces {
                    stream.write_all(piece.as_bytes()).unwrap();
                }
            });
            ask(&path, "GET", "/", "").map_err(|error| format!("{error:#}"))
        })
    }

    #[test]
    fn p1_an_answer_that_breaks_off_is_an_error() {
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let counted = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        let closed = "HTTP/1.1 200 OK\r\n\r\n";
        for (pieces, text) in [
            (&[chunked, "3\r\nabc\r\n", "0a;x=y\r\n0123456789\r\n0\r\n\r\n"][..], "abc0123456789"),
            (&[chunked, "1", "\r\n", "a", "\r", "\n0\r\n"], "a"),
            (&[chunked, "0\r\n\r\n"], ""),
            (&[counted, "he", "llo"], "hello"),
            (&[counted, "hello and more"], "hello"),
            (&[closed, "all"], "all"),
        ] {
            assert_eq!(asked(pieces).as_deref(), Ok(text), "{pieces:?}");
        }
        let endless = "1".repeat(10_000);
        for pieces in [
            &[chunked][..],
            &[chunked, "3\r\nab"],
            &[chunked, "3\r\nabc"],
            &[chunked, "3\r\nabc\r\n"],
            &[chunked, "3\r\nabc\r\n0"],
            &[chunked, "x\r\nabc\r\n0\r\n"],
            &[chunked, &endless],
            &[counted, "hell"],
            &["HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"],
            &["HTTP/1.1 200 OK\r\n"],
        ] {
            let error = asked(pieces).unwrap_err();
            assert!(error.contains("the answer ended early"), "{pieces:?}: {error}");
        }
        let refused = ["HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\n", "gone"];
        assert_eq!(asked(&refused), Err("the agent says 404: gone".to_owned()));
    }
}
