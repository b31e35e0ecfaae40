//! Finds the process that listens on a port of this machine.

use std::net::{IpAddr, SocketAddr};

use procfs::net::TcpState;
use procfs::process::FDTarget;

/// Pid and name of a process that listens on the address and port, on TCP or UDP. `None` where that cannot be determined, as
/// without root for another user's process.
#[must_use]
pub fn on(ip: IpAddr, port: u16) -> Option<(i32, String)> {
    let is_there = |local: SocketAddr| local.port() == port && (local.ip() == ip || local.ip().is_unspecified());
    let tcp = [procfs::net::tcp(), procfs::net::tcp6()].into_iter().flatten().flatten();
    let tcp = tcp.filter(|socket| socket.state == TcpState::Listen && is_there(socket.local_address));
    let udp = [procfs::net::udp(), procfs::net::udp6()].into_iter().flatten().flatten();
    let udp = udp.filter(|socket| is_there(socket.local_address));
    let inodes: Vec<u64> = tcp.map(|socket| socket.inode).chain(udp.map(|socket| socket.inode)).collect();
    procfs::process::all_processes().ok()?.flatten().find_map(|process| {
        let mut open = process.fd().ok()?.flatten();
        let has = open.any(|fd| matches!(fd.target, FDTarget::Socket(inode) if inodes.contains(&inode)));
        has.then(|| Some((process.pid, process.stat().ok()?.comm))).flatten()
    })
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn whoever_listens_is_named() {
        let own = i32::try_from(std::process::id()).unwrap();
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        for port in [tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()] {
            let found = on(Ipv4Addr::LOCALHOST.into(), port);
            assert_eq!(found.map(|(pid, _)| pid), Some(own), "{port}");
        }
        let port = tcp.local_addr().unwrap().port();
        drop(tcp);
        assert_eq!(on(Ipv4Addr::LOCALHOST.into(), port), None);
    }
}
