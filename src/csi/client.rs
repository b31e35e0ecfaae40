//! One plugin's socket: calls with deadlines, which are retried as the specification says. The connection is made at the first
//! call, and again after it broke.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use prost::bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags};
use tokio::net::UnixStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::calls::Call;
use super::error::CsiError;
use super::retry::{TRY, Tries};
use crate::sys::stream::{Stream, stream};
use crate::wire::{Answering, Channel, Connector};

/// A unix socket's path must fit into `sockaddr_un` with its NUL.
const MAX_SOCKET_PATH: usize = 107;
/// Timeout for a connection.
const CONNECT: Duration = Duration::from_secs(5);

type Answer = Answering<Bytes>;

/// The calls of a plugin. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    socket: Arc<Path>,
    channel: Channel,
    each_try: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Client {
    /// A client for the plugin that listens, or will listen, on this socket. Has to be called in a tokio runtime.
    ///
    /// # Errors
    /// The path is too long for a socket.
    pub fn new(socket: &Path) -> Result<Client, CsiError> {
        Client::check_path(socket)?;
        let path = socket.to_owned();
        let connector = Connector::new(move || {
            let connecting = connect(path.clone());
            Box::pin(async move {
                tokio::time::timeout(CONNECT, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            })
        });
        // The path must not become the `:authority`; servers refuse one with slashes.
        let channel = connector.lazy(Endpoint::from_static("http://localhost")).into();
        Ok(Client { socket: socket.into(), channel, each_try: TRY })
    }

    /// Checks that a path can be that of a socket.
    ///
    /// # Errors
    /// The path is too long, or not absolute.
    pub fn check_path(socket: &Path) -> Result<(), CsiError> {
        let length = socket.as_os_str().len();
        if socket.is_absolute() && length <= MAX_SOCKET_PATH {
            return Ok(());
        }
        Err(CsiError::invalid(format!(
            "{}: a plugin's socket needs an absolute path of at most {MAX_SOCKET_PATH} bytes, and this one has {length}; put it \
             into a directory with a shorter path",
            socket.display()
        )))
    }

    /// The same with another deadline for each try.
    #[must_use]
    pub fn with_deadline(mut self, each_try: Duration) -> Client {
        self.each_try = each_try;
        self
    }

    /// Where the plugin listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Makes a call, and retries it where the answer allows it. `subject` is the object named in errors.
    pub(super) async fn ask<R: Call>(&self, subject: &str, request: R) -> Result<R::Answer, CsiError> {
        let answer = self.ask_bytes(R::NAME, subject, R::PATH, request.encode_to_vec().into()).await?;
        R::Answer::decode(&answer[..]).map_err(|error| undecoded(R::NAME, subject, &error))
    }

    /// The same for all types of messages.
    fn ask_bytes<'a>(
        &'a self,
        call: &'static str,
        subject: &'a str,
        path: &'static str,
        request: Bytes,
    ) -> Pin<Box<dyn Future<Output = Result<Bytes, CsiError>> + Send + 'a>> {
        Box::pin(async move {
            self.retried(call, subject, &|| crate::wire::call(self.channel.clone(), path, request.clone())).await
        })
    }

    async fn retried(
        &self,
        call: &'static str,
        subject: &str,
        ask: &(dyn Fn() -> Answer + Send + Sync),
    ) -> Result<Bytes, CsiError> {
        let mut tries = Tries::default();
        loop {
            let answer = tokio::time::timeout(self.each_try, ask()).await;
            let status = match answer {
                Ok(Ok(answer)) => return Ok(answer.into_inner()),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded(format!("no answer within {:?}", self.each_try)),
            };
            let status = reached(status);
            // For list calls, Aborted means that the token is invalid, which a retry does not change.
            let is_final = call.starts_with("List") && status.code() == Code::Aborted;
            let Some(wait) = tries.after(status.code()).filter(|_| !is_final) else {
                return Err(CsiError::answer(call, subject, &status));
            };
            tokio::time::sleep(wait).await;
        }
    }
}

fn undecoded(call: &'static str, subject: &str, error: &prost::DecodeError) -> CsiError {
    CsiError::answer(call, subject, &Status::internal(format!("its answer cannot be read: {error}")))
}

/// An answer of the plugin has no source error on this side. Everything else is a connection that broke or could not be made.
fn reached(status: Status) -> Status {
    match status.source() {
        Some(cause) => Status::unavailable(format!("{}: {}", status.message(), root_cause(cause))),
        None => status,
    }
}

fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Connects, and checks that the listener runs as root or as this user, because calls contain secrets. A link at the end of the path
/// is not followed: a plugin that runs as a task may write to the directory of its socket.
async fn connect(path: PathBuf) -> io::Result<Stream> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::open(&path, flags, Mode::empty())?;
    if FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode) != FileType::Socket {
        let text = format!("{} is not a socket", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let socket = UnixStream::connect(format!("/proc/self/fd/{}", found.as_raw_fd())).await?;
    let found = socket.peer_cred()?.uid();
    if found == 0 || found == rustix::process::geteuid().as_raw() {
        return Ok(stream(socket));
    }
    let text = format!("user {found} listens on {}, who is neither root nor the user of this process", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn f7_a_call_is_made_again_where_it_helps() {
        let client = Client::new(Path::new("/no/such/socket")).unwrap().with_deadline(Duration::from_secs(3));
        let asked = AtomicU32::new(0);
        let asked = &asked;
        let failing = |status: Status, until: u32| {
            move || -> Answer {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                let bytes = Bytes::from(number.to_string());
                let answer = if number < until { Err(status.clone()) } else { Ok(tonic::Response::new(bytes)) };
                Box::pin(std::future::ready(answer))
            }
        };
        assert_eq!(client.retried("Probe", "p", &failing(Status::unavailable("x"), 4)).await.unwrap(), "4");
        asked.store(0, Ordering::Relaxed);
        let error = client.retried("Probe", "p", &failing(Status::internal("broken"), 1)).await.unwrap_err();
        assert!(error.to_string().contains("Probe of p") && error.to_string().contains("broken"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        asked.store(0, Ordering::Relaxed);
        let error = client.retried("ListVolumes", "p", &failing(Status::aborted("token"), 1)).await.unwrap_err();
        assert!(error.to_string().contains("starting token is invalid"), "{error}");
        // A plugin that does not answer is tried three times.
        asked.store(0, Ordering::Relaxed);
        let silent = || -> Answer {
            asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::pending())
        };
        let error = client.retried("Probe", "p", &silent).await.unwrap_err();
        assert!(error.to_string().contains("no answer within 3s"), "{error}");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn f7_a_plugin_that_is_not_there_is_waited_for() {
        let client = Client::new(Path::new("/no/such/socket")).unwrap();
        let error = client.probe().await.unwrap_err().to_string();
        assert!(error.contains("the plugin is not reached") && error.contains("No such file"), "{error}");
    }

    #[tokio::test]
    async fn f7_a_socket_has_a_path_that_fits() {
        let error = Client::new(&Path::new("/").join("x".repeat(107))).unwrap_err().to_string();
        assert!(error.contains("at most 107 bytes, and this one has 108"), "{error}");
        assert!(Client::new(Path::new("csi.sock")).is_err());
        assert!(Client::new(&Path::new("/").join("x".repeat(106))).is_ok());
    }
}
