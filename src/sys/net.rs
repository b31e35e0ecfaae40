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
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: an ifreq of zeroes is an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: reads a live ifreq with a NUL-terminated name; the descriptor is an open socket.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, std::ptr::from_ref(&request)) };
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Bytes that a connected TCP socket has been given and the other side's kernel has not acknowledged; after the connection has
/// broken, too. `SIOCOUTQ` of `tcp(7)`.
///
/// # Errors
/// What `ioctl(2)` says of a descriptor that is no such socket.
pub fn unacknowledged(socket: &impl std::os::fd::AsFd) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: writes one int, which lives; the descriptor is open.
    let rc = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, std::ptr::from_mut(&mut bytes)) };
    if rc == -1 { Err(io::Error::last_os_error()) } else { Ok(u64::try_from(bytes).unwrap_or(0)) }
}
