//! What the parts of a fetch share: its directory, the connection with the requesting process, and how their errors are told.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{FetchError, Message, Request};
use crate::spec::json;
use crate::sys::path::Root;

/// Longest request, in bytes: most of it are certificates.
const LONGEST_REQUEST: u64 = 16 << 20;
/// Time between two progress messages.
const EACH: Duration = Duration::from_millis(500);

/// The directory in which a fetch works.
pub(super) struct Place {
    /// The staging directory.
    pub(super) root: Root,
    /// Its path as this process sees it.
    pub(super) path: PathBuf,
}

/// The connection with the requesting process.
pub(super) struct Talk {
    pub(super) socket: UnixStream,
    pub(super) last: Option<Instant>,
}

impl Talk {
    pub(super) fn hear(&mut self) -> io::Result<Request> {
        let mut length = [0; 8];
        self.socket.read_exact(&mut length)?;
        let length = u64::from_ne_bytes(length);
        if length > LONGEST_REQUEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut text = Vec::new();
        (&mut self.socket).take(length).read_to_end(&mut text)?;
        Ok(json::from_slice(&text)?)
    }

    pub(super) fn say(&mut self, message: &Message) -> io::Result<()> {
        let mut line = json::to_vec(message)?;
        line.push(b'\n');
        self.socket.write_all(&line)
    }

    /// Sends progress messages, at most once per `EACH`.
    pub(super) fn progress(&mut self, bytes: u64, total: Option<u64>) {
        if self.last.is_none_or(|last| last.elapsed() >= EACH) {
            self.last = Some(Instant::now());
            // The receiver may be gone: then this process is killed from outside.
            let _ = self.say(&Message::Progress { bytes, total });
        }
    }
}

/// Maps an error of a step here.
pub(super) fn failed(what: &str) -> impl FnOnce(io::Error) -> FetchError + '_ {
    move |error| {
        let hint = match error.raw_os_error() {
            Some(libc::EFBIG) => "; that is more than a download may have",
            Some(libc::ENOSPC | libc::EDQUOT) => "; free some space, or give another --data-dir",
            _ => "",
        };
        FetchError::lasting(format!("{what}: {error}{hint}"))
    }
}
