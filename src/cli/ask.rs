//! Asks the agent of this machine over its unix socket: one request, one answer.

use std::io::{Read, Write as _};
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
pub(super) const BROKEN: &str = "the answer broke off";
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
    pub(super) body: Box<dyn Read>,
}

impl Answer {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(':'));
        pairs.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
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

/// Sends a request.
///
/// # Errors
/// When there is no agent, and the text of an answer that says no.
pub(super) fn open(socket: &Path, request: Request<'_>) -> anyhow::Result<Answer> {
    let Request { method, path, length, body } = request;
    let about = || format!("{}: no agent answers there; give its --socket", socket.display());
    let broken = || format!("{}: the answer broke off", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(about)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    // In this version of the protocol an answer ends with its connection, and comes in one piece.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: agent\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).with_context(about)?;
    // An agent that refuses may not read all of it, and says why.
    let sent = std::io::copy(body, &mut stream);
    let mut answer = Vec::new();
    let mut left = loop {
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
    match head.split(' ').nth(1) {
        Some("200") => Ok(Answer { head, body: Box::new(std::io::Cursor::new(left).chain(stream)) }),
        status => {
            stream.take(LONGEST).read_to_end(&mut left).with_context(broken)?;
            bail!("the agent says {}: {}", status.unwrap_or_default(), String::from_utf8_lossy(&left).trim())
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
        .with_context(|| format!("{}: the answer broke off", socket.display()))?;
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
