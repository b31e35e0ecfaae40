//! Where clients come in: a unix socket that its mode guards, or TCP, with TLS or without.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use crate::sys::net::is_served;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 512;

/// Who is at the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, by the ids it had when it connected.
    Unix {
        /// Its user.
        uid: u32,
        /// Its group.
        gid: u32,
    },
    /// An address.
    Tcp {
        /// The peer's.
        address: SocketAddr,
        /// What it connected to.
        local: SocketAddr,
        /// Over TLS; with a client CA the peer has shown a certificate of it.
        tls: bool,
    },
}

/// A socket that listens.
pub enum Listener {
    /// A unix socket.
    Unix(UnixListener),
    /// TCP, perhaps with TLS.
    Tcp(TcpListener, Option<TlsAcceptor>),
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listener::Unix(socket) => socket.fmt(f),
            Listener::Tcp(socket, tls) => write!(f, "{socket:?}, tls: {}", tls.is_some()),
        }
    }
}

impl Listener {
    /// Listens on a unix socket that only its owner, and the members of `group`, can connect to. The file has its mode from its
    /// first moment. A file of a server that is gone is replaced; one that is served is left alone.
    ///
    /// # Errors
    /// `AddrInUse` when somebody serves it, else what the calls say, with the path.
    pub fn unix(path: &Path, group: Option<u32>) -> io::Result<Listener> {
        let about = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        unlink_dead(path).map_err(about)?;
        let fd = bind_unix(path, group).map_err(about)?;
        Listener::from_fd(fd, None).map_err(about)
    }

    /// Listens on a TCP address.
    ///
    /// # Errors
    /// What the calls say, with the address.
    pub fn tcp(address: SocketAddr, tls: Option<TlsAcceptor>) -> io::Result<Listener> {
        let socket =
            std::net::TcpListener::bind(address).map_err(|e| io::Error::new(e.kind(), format!("{address}: {e}")))?;
        Listener::from_fd(socket.into(), tls)
    }

    /// Goes on with a socket that listens already: of systemd, or of the process that was before this one.
    ///
    /// # Errors
    /// When it is of another kind.
    pub fn from_fd(fd: OwnedFd, tls: Option<TlsAcceptor>) -> io::Result<Listener> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        match rustix::net::sockopt::socket_domain(&fd)? {
            AddressFamily::UNIX => Ok(Listener::Unix(UnixListener::from_std(fd.into())?)),
            AddressFamily::INET | AddressFamily::INET6 => Ok(Listener::Tcp(TcpListener::from_std(fd.into())?, tls)),
            other => Err(io::Error::other(format!("a listener of address family {}", other.as_raw()))),
        }
    }

    /// Another descriptor of the same socket, to hand it on.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Unix(socket) => socket.as_fd().try_clone_to_owned(),
            Listener::Tcp(socket, _) => socket.as_fd().try_clone_to_owned(),
        }
    }

    /// Its address, for TCP.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Listener::Unix(_) => None,
            Listener::Tcp(socket, _) => socket.local_addr().ok(),
        }
    }
}

/// A socket that nobody accepts on any more is removed.
fn unlink_dead(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file of another kind"));
        }
        Ok(_) => {}
    }
    if is_served(path)? {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens there"));
    }
    std::fs::remove_file(path)
}

/// unix(7): the file gets the mode that the socket has when it is bound, so that it is never open to others, not even before the
/// first `listen(2)`.
fn bind_unix(path: &Path, group: Option<u32>) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    if let Some(gid) = group {
        rustix::fs::chownat(CWD, path, None, Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::chmodat(CWD, path, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP, AtFlags::empty())?;
    }
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}
