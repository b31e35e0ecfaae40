//! The address of a plugin, and one connection to it, with or without TLS.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, UnixListenerStream};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};

use super::bell::{Answered, Ringer};
use super::tls::Tls;
use crate::sys::mutant;
use crate::sys::stream::{Stream, stream};
use crate::wire::Connector;

/// A unix socket's path must fit into `sockaddr_un` with its NUL.
const MAX_SOCKET_PATH: usize = 107;
/// Most connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Time limit for the other side's TLS handshake.
const TLS_PATIENCE: Duration = Duration::from_secs(30);

/// The address on which a plugin listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A TCP port; plugins in some languages support nothing else.
    Tcp(SocketAddr),
}

impl Address {
    /// Parses go-plugin's two fields.
    ///
    /// # Errors
    /// The text names the mistake.
    pub(super) fn parse(network: &str, address: &str) -> Result<Address, String> {
        match network {
            "unix" => Ok(Address::Unix(PathBuf::from(address))),
            "tcp" => {
                address.parse().map(Address::Tcp).map_err(|_| format!("{address:?} is not an IP address with a port"))
            }
            _ => Err(format!("network {network:?}; known are unix and tcp")),
        }
    }

    /// go-plugin's name of the network.
    pub(super) const fn network(&self) -> &'static str {
        match self {
            Address::Unix(_) => "unix",
            Address::Tcp(_) => "tcp",
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => path.display().fmt(f),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Duplex for T {}

/// A connection, with or without TLS.
pub struct Connection(Pin<Box<dyn Duplex>>);

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection")
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_mut().poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.0.as_mut().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

async fn secure<S>(tls: Option<Tls>, socket: S) -> io::Result<Stream>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    match tls {
        Some(tls) => Ok(stream(tls.connect(socket).await?)),
        None => Ok(stream(socket)),
    }
}

/// Checks with the kernel that the listener on a socket runs as this user, as root, or as the user `plugin`. A plugin that ends
/// removes its socket, and in a directory such as `/tmp` any user can then listen there; a broken connection is made anew.
fn check_listener(socket: &UnixStream, path: &Path, plugin: Option<u32>) -> io::Result<()> {
    let found = socket.peer_cred()?.uid();
    if found == 0 || found == rustix::process::geteuid().as_raw() || Some(found) == plugin || mutant::on("d75") {
        return Ok(());
    }
    let text = format!("user {found} listens on {}, and the plugin is not that user's", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Connects to a plugin's socket; see [`dial`].
pub(super) async fn to(socket: &Path, plugin: Option<u32>) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket).await?;
    check_listener(&stream, socket, plugin)?;
    Ok(stream)
}

/// Dials a plugin, whose process runs as the user `plugin` if that is known.
///
/// # Errors
/// What connecting or the TLS handshake says; `TimedOut` after `patience`; `PermissionDenied` when another user listens there.
pub(super) async fn dial(
    address: &Address,
    tls: Option<Tls>,
    patience: Duration,
    plugin: Option<u32>,
) -> io::Result<Channel> {
    // The path is never used as the `:authority`; servers refuse one with slashes.
    let endpoint = Endpoint::from_static(if tls.is_some() { "https://localhost" } else { "http://localhost" });
    let address = address.clone();
    let connector = Connector::new(move || {
        let (address, tls) = (address.clone(), tls.clone());
        Box::pin(async move {
            match address {
                Address::Unix(path) => secure(tls, to(&path, plugin).await?).await,
                Address::Tcp(address) => secure(tls, TcpStream::connect(address).await?).await,
            }
        })
    });
    let connecting = connector.connect(endpoint);
    match tokio::time::timeout(patience, connecting).await {
        Ok(connected) => connected.map_err(|error| io::Error::other(root_cause(&error))),
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {patience:?}"))),
    }
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// How one side creates its sockets.
#[derive(Debug, Clone)]
pub(super) struct Sockets {
    /// Their directory.
    pub(super) dir: PathBuf,
    /// The group, by name or number, that may connect, besides their owner.
    pub(super) group: Option<String>,
}

impl Sockets {
    /// Binds a socket with a new name.
    ///
    /// # Errors
    /// What `bind(2)` and `chown(2)` say, `InvalidInput` for a directory whose path is too long, `NotFound` for no such group. No
    /// socket is left behind.
    pub(super) fn bind(&self) -> io::Result<(StdUnixListener, PathBuf)> {
        // Short, as socket paths are limited. It contains the pid, by which the host finds the sockets of a killed plugin.
        let name = format!(
            "{}{:08x}",
            prefix(rustix::process::getpid().as_raw_nonzero().get()),
            crate::sys::random::bits() as u32
        );
        let path = self.dir.join(name);
        if path.as_os_str().len() > MAX_SOCKET_PATH {
            let path = path.display();
            let text = format!("{path} is longer than {MAX_SOCKET_PATH} bytes; set TMPDIR to a shorter directory");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let group = self.group.as_deref().map(group_id).transpose()?;
        let listener = listen(&path)?;
        if let Some(group) = group
            && let Err(error) = open_to_group(&path, group)
        {
            // The first error is the one to report.
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
        Ok((listener, path))
    }
}

/// A process that can connect can start tasks: so only our own user may, whatever umask this process was started with.
fn listen(path: &Path) -> io::Result<StdUnixListener> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if !mutant::on("c09") {
        // Before the bind: `bind(2)` gives the file the socket's mode, less the umask.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Prefix of the sockets of one of our processes.
fn prefix(pid: i32) -> String {
    format!("plugin{pid:x}-")
}

/// The directory of the sockets of one of our processes that is about to start. Opened beforehand, as cleaning up after a failed
/// start may fail for lack of a descriptor.
#[derive(Debug)]
pub(super) struct SocketFolder(OwnedFd);

impl SocketFolder {
    /// # Errors
    /// What `open(2)` says.
    pub(super) fn open(path: &Path) -> io::Result<SocketFolder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(SocketFolder(rustix::fs::open(path, flags, Mode::empty())?))
    }

    /// Removes the sockets that the process left. Call it when the process has ended and before it is reaped, so that its pid is
    /// not reused.
    pub(super) fn remove_sockets(&self, pid: i32) {
        let prefix = prefix(pid);
        let mut buffer = Vec::with_capacity(4096);
        let mut entries = RawDir::new(&self.0, buffer.spare_capacity_mut());
        while let Some(Ok(entry)) = entries.next() {
            if entry.file_name().to_bytes().starts_with(prefix.as_bytes()) {
                // Already removed: nothing to do.
                let _ = rustix::fs::unlinkat(&self.0, entry.file_name(), AtFlags::empty());
            }
        }
    }
}

fn open_to_group(path: &Path, group: u32) -> io::Result<()> {
    chown(path, None, Some(group))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o660))
}

fn group_id(group: &str) -> io::Result<u32> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    let groups = std::fs::read_to_string("/etc/group")?;
    groups
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == group).then(|| fields.nth(1))?.and_then(|gid| gid.parse().ok())
        })
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no group {group:?} in /etc/group")))
}

type Connections = Pin<Box<dyn tokio_stream::Stream<Item = io::Result<Connection>> + Send>>;

/// The connections to a listener, each after its TLS handshake if there is one. Without TLS, those that ask for a bell are not among
/// them if there is a `ringer`.
pub(super) fn connections(listener: UnixListener, tls: Option<Tls>, ringer: Option<Ringer>) -> Connections {
    let Some(tls) = tls else {
        let plain = UnixListenerStream::new(listener);
        return Box::pin(plain.map(move |socket| match &ringer {
            Some(ringer) => Ok(Connection(Box::pin(Answered::new(socket?, Arc::clone(ringer))))),
            None => Ok(Connection(Box::pin(socket?))),
        }));
    };
    let (sender, receiver) = mpsc::channel(1);
    crate::sys::task::spawn(async move {
        loop {
            let accepted = tokio::select! {
                () = sender.closed() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                // Each in a separate task, so that a client that connects and sends nothing blocks no other.
                Ok((socket, _)) => drop(crate::sys::task::spawn(greet(tls.clone(), socket, sender.clone()))),
                Err(error) => drop(sender.send(Err(error)).await),
            }
        }
    });
    Box::pin(ReceiverStream::new(receiver))
}

async fn greet(tls: Tls, socket: UnixStream, sender: mpsc::Sender<io::Result<Connection>>) {
    let greeted = tokio::select! {
        () = sender.closed() => return,
        greeted = tokio::time::timeout(TLS_PATIENCE, tls.accept(socket)) => greeted,
    };
    match greeted {
        Ok(Ok(stream)) => drop(sender.send(Ok(Connection(Box::pin(stream)))).await),
        Ok(Err(error)) => tracing::debug!(%error, "refused a connection"),
        Err(_) => tracing::debug!("refused a connection that said nothing"),
    }
}

/// The listener of one broker id: a stream of connections, for `serve_with_incoming`. Dropping it removes its socket.
pub struct Incoming {
    connections: Connections,
    socket: PathBuf,
}

impl Incoming {
    /// Binds a socket.
    ///
    /// # Errors
    /// See [`Sockets::bind`].
    pub(super) fn bind(sockets: &Sockets, tls: Option<Tls>) -> io::Result<Incoming> {
        let (listener, socket) = sockets.bind()?;
        // Owned from here on, so that a failure below also removes the socket.
        let mut incoming = Incoming { connections: Box::pin(tokio_stream::empty()), socket };
        listener.set_nonblocking(true)?;
        incoming.connections = connections(UnixListener::from_std(listener)?, tls, None);
        Ok(incoming)
    }

    /// The socket on which it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl tokio_stream::Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.connections.as_mut().poll_next(cx)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Already removed if another process cleaned the directory: nothing to do.
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed() {
        let read = |network, address| Address::parse(network, address);
        assert_eq!(read("unix", "/tmp/plugin1").unwrap().to_string(), "/tmp/plugin1");
        assert_eq!(read("tcp", "127.0.0.1:1234").unwrap().to_string(), "127.0.0.1:1234");
        assert!(read("tcp", "somewhere").unwrap_err().contains("somewhere"));
        assert!(read("udp", "127.0.0.1:1").unwrap_err().contains("udp"));
    }

    #[test]
    fn sockets_of_unknown_groups_are_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let sockets = Sockets { dir: dir.path().to_owned(), group: Some("no-such-group".to_owned()) };
        assert_eq!(sockets.bind().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let gid = rustix::process::getgid().as_raw();
        let (_listener, path) = Sockets { group: Some(gid.to_string()), ..sockets }.bind().unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o660);
    }
}
