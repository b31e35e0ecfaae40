//! Asks the agent of this machine over its unix socket: one request, one answer.

use std::io::{Read as _, Write as _};
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

/// The answer's text.
///
/// # Errors
/// When there is no agent, and the text of an answer that says no.
pub(super) fn ask(socket: &Path, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
    let about = || format!("{}: no agent answers there; give its --socket", socket.display());
    let mut stream = UnixStream::connect(socket).with_context(about)?;
    stream.set_read_timeout(Some(ANSWER))?;
    // In this version of the protocol an answer ends with its connection, and comes in one piece.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: agent\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).with_context(about)?;
    let mut answer = Vec::new();
    stream
        .take(LONGEST)
        .read_to_end(&mut answer)
        .with_context(|| format!("{}: the answer broke off", socket.display()))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, text) =
        answer.split_once("\r\n\r\n").with_context(|| format!("{}: the answer broke off", socket.display()))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(text.to_owned()),
        status => bail!("the agent says {}: {}", status.unwrap_or_default(), text.trim()),
    }
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
