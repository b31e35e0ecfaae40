//! Network interfaces.

use std::io;
use std::os::fd::AsRawFd as _;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Brings the interface `lo` of this process's network namespace up; the kernel gives it its addresses. `SIOCSIFFLAGS` of
/// `netdevice(7)`.
///
/// # Errors
/// EPERM without `CAP_NET_ADMIN` in the namespace, EAFNOSUPPORT on a kernel without IPv4.
pub fn loopback_up() -> io::Result<()> {
    set_flags("lo", libc::IFF_UP | libc::IFF_RUNNING)
}

/// Brings an interface down. `SIOCSIFFLAGS` of `netdevice(7)`.
///
/// # Errors
/// ENODEV where there is none of this name; as [`loopback_up`].
pub fn down(interface: &str) -> io::Result<()> {
    set_flags(interface, 0)
}

/// Removes a bridge that is down, even if it has interfaces. `SIOCBRDELBR` of `<linux/sockios.h>`.
///
/// # Errors
/// ENXIO where there is none of this name, EPERM for an interface that is not a bridge, EBUSY for one that is up.
pub fn remove_bridge(interface: &str) -> io::Result<()> {
    const SIOCBRDELBR: libc::Ioctl = 0x89a1;
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let name = request_for(interface).ifr_name;
    // SAFETY: reads the sixteen bytes of a live, NUL-terminated name; the descriptor is an open socket.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCBRDELBR, name.as_ptr()) };
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A request about an interface; a name that is too long is truncated, and matches no interface.
fn request_for(interface: &str) -> libc::ifreq {
    // SAFETY: an ifreq of zeroes is an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (to, from) in request.ifr_name[..room].iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request
}

fn set_flags(interface: &str, flags: libc::c_int) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut request = request_for(interface);
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: reads a live ifreq with a NUL-terminated name; the descriptor is an open socket.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, std::ptr::from_ref(&request)) };
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes that were written to a connected TCP socket and that the peer's kernel has not acknowledged; also valid after the
/// connection has broken. `SIOCOUTQ` of `tcp(7)`.
///
/// # Errors
/// What `ioctl(2)` says of a descriptor that is not such a socket.
pub fn unacknowledged(socket: &impl std::os::fd::AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: writes one int, which lives; the descriptor is open.
    let rc = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, std::ptr::from_mut(&mut bytes)) };
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(u64::try_from(bytes).unwrap_or(0)) }
}

/// Whether a process accepts connections on the unix socket at `path`, in whatever namespace it runs. Does not wait for one that is
/// too busy to accept now.
///
/// # Errors
/// What `connect(2)` says where that cannot be determined: ENOENT, EACCES.
pub fn is_served(path: &std::path::Path) -> io::Result<bool> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(path)?) {
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(true),
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
