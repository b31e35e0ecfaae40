//! The client side: finds the runs of this user, and sends them requests.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;

use super::server::{may_order, setup};
use super::wire::{self, Answer, Kind, Request, RunView};
use crate::alloc::kept_sockets::KeptSockets;
use crate::alloc::owner::{Owner, OwnerLock, RunId};
use crate::alloc::sockets::{CONTROL, SocketDir};
use crate::spec::Order as _;
use crate::spec::json;
use crate::sys::{process, watch};
use crate::wire::drivers::{
    ExecTaskStreamingIoOperation, ExecTaskStreamingRequest, ExecTaskStreamingResponse, exec_task_streaming_request,
};

/// Pause before connecting again to a supervisor that does not listen yet, or no longer.
const AGAIN: Duration = Duration::from_millis(20);
/// How long a run may take to answer a status request.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a request to a run failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The socket cannot be used.
    #[error("cannot talk to the run at {}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The process that listens there belongs to another user.
    #[error("{} belongs to user {user}, who is not trusted", path.display())]
    Stranger {
        /// The socket.
        path: PathBuf,
        /// The uid of that process.
        user: u32,
    },
    /// The run has ended meanwhile.
    #[error("the run ended before it answered")]
    Ended,
    /// The error that the run answered.
    #[error("{0}")]
    Refused(String),
}

impl ClientError {
    /// Whether no process listens there.
    #[must_use]
    pub fn is_unheard(&self) -> bool {
        use io::ErrorKind::{ConnectionRefused, NotFound};
        matches!(self, ClientError::Io { source, .. } if matches!(source.kind(), NotFound | ConnectionRefused))
    }

    /// Whether no process listens there, or it ended before it answered.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, ClientError::Ended) || self.is_unheard()
    }
}

/// Whether a run in the background has a supervisor, which may not listen yet, or no longer.
fn is_beginning(kept: &KeptSockets) -> bool {
    let held = |(data_dir, id): (PathBuf, RunId)| {
        OwnerLock::is_held(&data_dir, &Owner::Run { background: Some(id) }).unwrap_or(false)
    };
    kept.run().is_some_and(held)
}

/// A run that answered.
#[derive(Debug, Clone)]
pub struct Reached {
    /// Its control socket.
    pub socket: PathBuf,
    /// Its status.
    pub run: RunView,
}

/// The answers of the runs.
#[derive(Debug, Default)]
pub struct Answers {
    /// The runs that answered.
    pub runs: Vec<Reached>,
    /// Why some of the others could not be asked.
    pub errors: Vec<ClientError>,
    /// Runs in the background whose supervisors had ended, with their data directories.
    pub unheard: Vec<(PathBuf, RunId)>,
}

/// Asks the runs whose socket directories are in `bases`.
///
/// # Errors
/// When one of `bases` cannot be read, or another user may write to it.
pub async fn reach(bases: &[PathBuf]) -> io::Result<Answers> {
    let mut answers = Answers::default();
    // All runs are asked at once, so that one that hangs does not delay the others.
    let mut asking = JoinSet::new();
    let ask = |dir: &Path, kept: Option<KeptSockets>| {
        let socket = dir.join(CONTROL);
        async move {
            let asked = async {
                loop {
                    let once = async { Connection::open(&socket).await?.ask::<RunView>(&Request::Status).await };
                    match once.await {
                        Err(error) if error.is_gone() && kept.as_ref().is_some_and(is_beginning) => {
                            // A supervisor that begins listens soon, one that was killed will have released its lock soon; the
                            // kernel has no event for either.
                            tokio::time::sleep(AGAIN).await;
                        }
                        answer => return answer,
                    }
                }
            };
            (tokio::time::timeout(STATUS_TIMEOUT, asked).await, socket, kept)
        }
    };
    for base in bases {
        for dir in SocketDir::live(base)? {
            asking.spawn(ask(&dir, None));
        }
        for kept in KeptSockets::all(base)? {
            asking.spawn(ask(&kept.path.clone(), Some(kept)));
        }
    }
    for (answer, socket, kept) in asking.join_all().await {
        match answer {
            Ok(Ok(run)) => answers.runs.push(Reached { socket, run }),
            Ok(Err(error)) if error.is_gone() => answers.unheard.extend(kept.and_then(|kept| kept.run())),
            Ok(Err(error)) => answers.errors.push(error),
            Err(_) => answers.errors.push(ClientError::Io { path: socket, source: io::ErrorKind::TimedOut.into() }),
        }
    }
    answers.runs.order_by(|one, other| one.run.began_at.cmp(&other.run.began_at));
    Ok(answers)
}

/// The control sockets of the runs whose socket directories are in `bases`, whether or not somebody listens there.
///
/// # Errors
/// As [`reach`].
pub fn sockets(bases: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for base in bases {
        let kept = KeptSockets::all(base)?.into_iter().map(|kept| kept.path);
        found.extend(SocketDir::live(base)?.into_iter().chain(kept).map(|dir| dir.join(CONTROL)));
    }
    Ok(found)
}

/// How long a run's process may take to exit after it has closed its sockets.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// A connection to a run, for one request.
#[derive(Debug)]
pub struct Connection {
    path: PathBuf,
    stream: UnixStream,
    /// A pidfd of the run's process, where one can be opened.
    process: Option<OwnedFd>,
}

impl Connection {
    /// Connects, and checks which user listens.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn open(path: &Path) -> Result<Connection, ClientError> {
        let error = |source| ClientError::Io { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).await.map_err(error)?;
        let peer = stream.peer_cred().map_err(error)?;
        if !may_order(peer.uid()) {
            return Err(ClientError::Stranger { path: path.to_owned(), user: peer.uid() });
        }
        let process = peer.pid().and_then(|pid| process::open_pidfd(pid).ok());
        Ok(Connection { path: path.to_owned(), stream, process })
    }

    fn error(&self, source: io::Error) -> ClientError {
        match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
                ClientError::Ended
            }
            _ => ClientError::Io { path: self.path.clone(), source },
        }
    }

    async fn send(&mut self, request: &Request) -> Result<(), ClientError> {
        let sent = match json::to_vec(request) {
            Ok(bytes) => wire::write(&mut self.stream, Kind::Json, &bytes).await,
            Err(error) => Err(error.into()),
        };
        sent.map_err(|e| self.error(e))
    }

    /// Sends a request and reads the answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T, ClientError> {
        self.send(request).await?;
        let answer = wire::read(&mut self.stream, wire::LONGEST).await.map_err(|e| self.error(e))?;
        let (_, bytes) = answer.ok_or(ClientError::Ended)?;
        let answer: Answer = json::from_slice(&bytes).map_err(|e| self.error(e.into()))?;
        match answer {
            Answer::Ok(value) => json::from_value(&value).map_err(|e| self.error(e.into())),
            Answer::Error(message) => Err(ClientError::Refused(message)),
        }
    }

    /// Sends a request without waiting for an answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn tell(&mut self, request: &Request) -> Result<(), ClientError> {
        self.send(request).await
    }

    /// Returns when the run's process has ended.
    pub async fn ended(&mut self) {
        // Nothing more is sent on this connection, so any read result means that the other side is exiting.
        let _ = self.stream.read_u8().await;
        // The run closes its sockets shortly before its process exits.
        let process = self.process.take().map(|process| watch::register(Arc::new(process), Interest::READABLE));
        if let Some(Ok(process)) = process {
            let _ = tokio::time::timeout(LAST_MOMENT, process.readable()).await;
        }
    }

    /// Begins a session; both halves have to be used at the same time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn exec(
        mut self,
        request: &Request,
        command: Vec<String>,
        tty: bool,
    ) -> Result<(SessionInput, Incoming), ClientError> {
        self.send(request).await?;
        let (reader, writer) = self.stream.into_split();
        let mut input = SessionInput(writer);
        match input.send(&setup(command, tty)).await {
            // The run has refused the session; its reason can be read.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {}
            Err(source) => return Err(ClientError::Io { path: self.path.clone(), source }),
            Ok(()) => {}
        }
        Ok((input, Incoming { path: self.path, reader }))
    }
}

/// The input side of a session.
#[derive(Debug)]
pub struct SessionInput(OwnedWriteHalf);

impl SessionInput {
    async fn send(&mut self, message: &ExecTaskStreamingRequest) -> io::Result<()> {
        wire::write(&mut self.0, Kind::Exec, &message.encode_to_vec()).await
    }

    /// Sends input for the command; empty `data` closes its stdin.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn stdin(&mut self, data: &[u8]) -> io::Result<()> {
        let stdin = ExecTaskStreamingIoOperation { data: data.to_vec(), close: data.is_empty() };
        self.send(&ExecTaskStreamingRequest { stdin: Some(stdin), ..ExecTaskStreamingRequest::default() }).await
    }

    /// Sets the terminal's size, in rows and columns.
    ///
    /// # Errors
    /// When the session has ended.
    pub async fn resize(&mut self, rows: u16, columns: u16) -> io::Result<()> {
        let size = exec_task_streaming_request::TerminalSize { height: rows.into(), width: columns.into() };
        self.send(&ExecTaskStreamingRequest { tty_size: Some(size), ..ExecTaskStreamingRequest::default() }).await
    }
}

/// The output side of a session.
#[derive(Debug)]
pub struct Incoming {
    path: PathBuf,
    reader: OwnedReadHalf,
}

impl Incoming {
    /// The next message.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Ended`] when there is no further message. A session ends in the ordinary way only after the
    /// message with the command's exit.
    pub async fn next(&mut self) -> Result<ExecTaskStreamingResponse, ClientError> {
        let error = |source: io::Error| match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => ClientError::Ended,
            _ => ClientError::Io { path: self.path.clone(), source },
        };
        match wire::read(&mut self.reader, wire::LONGEST).await.map_err(error)? {
            Some((Kind::Exec, bytes)) => {
                ExecTaskStreamingResponse::decode(&bytes[..]).map_err(|e| error(io::Error::other(e)))
            }
            Some((Kind::Json, bytes)) => match json::from_slice(&bytes) {
                Ok(Answer::Error(message)) => Err(ClientError::Refused(message)),
                _ => Err(error(io::ErrorKind::InvalidData.into())),
            },
            None => Err(ClientError::Ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tokio::net::UnixListener;

    use super::*;
    use crate::alloc::Stop;
    use crate::alloc::control::{Served, serve};
    use crate::sys::task;

    /// A killed supervisor's sockets are closed before its lock is released.
    #[tokio::test]
    async fn a_run_whose_supervisor_dies_while_it_is_asked_is_asked_again() {
        let (base, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let id = RunId::random();
        let owner = Owner::Run { background: Some(id.clone()) };
        let lock = OwnerLock::take(data.path(), &owner).unwrap().unwrap();
        let kept = KeptSockets::open(base.path(), data.path(), &owner).unwrap().unwrap();
        let ask = || {
            let bases = [base.path().to_owned()];
            task::spawn(async move { reach(&bases).await })
        };
        let dying = || UnixListener::bind(kept.path.join(CONTROL)).unwrap();

        let listener = dying();
        let asking = ask();
        drop(listener.accept().await.unwrap());
        drop(listener);
        let stop = tokio::sync::watch::Sender::new(Stop::No);
        let served = Served::new("job", data.path(), true, SystemTime::now(), stop);
        // The lock stands for that of the next supervisor.
        serve(&kept.path, &served).unwrap();
        let answers = asking.await.unwrap().unwrap();
        assert_eq!((answers.runs.len(), answers.unheard.len()), (1, 0), "{answers:?}");

        std::fs::remove_file(kept.path.join(CONTROL)).unwrap();
        let listener = dying();
        let asking = ask();
        drop(listener.accept().await.unwrap());
        drop((listener, lock));
        let answers = asking.await.unwrap().unwrap();
        assert_eq!((answers.runs.len(), answers.unheard), (0, vec![(data.path().to_owned(), id)]));
        assert!(answers.errors.is_empty(), "{:?}", answers.errors);
    }
}
