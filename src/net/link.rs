//! Interfaces, addresses and routes of one network namespace, by `rtnetlink(7)`.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _};

use netlink_packet_core::{DefaultNla, NLM_F_CREATE, NLM_F_EXCL};
use rustix::io::Errno;

use super::netlink::{NESTED, Socket, bytes, emit, nested, text, unless};

/// Lengths of the structures of `<linux/rtnetlink.h>` that precede the attributes.
const LINK: usize = 16;
const ADDRESS: usize = 8;
const ROUTE: usize = 12;
/// `<linux/if_bridge.h>`, `<linux/if_link.h>` and `<linux/veth.h>`: what libc has no names for.
const BRIDGE_PORT_HAIRPIN: u16 = 4;
const VETH_PEER: u16 = 1;

/// A connection to the part of the kernel that holds the interfaces of this thread's network namespace.
#[derive(Debug)]
pub(super) struct Links(Socket);

impl Links {
    /// Opens a connection to the network namespace that this thread is in.
    pub(super) fn open() -> io::Result<Links> {
        Socket::open(None).map(Links)
    }

    /// Makes a bridge; one of this name that exists counts as made.
    pub(super) fn add_bridge(&self, name: &str, mac: [u8; 6]) -> io::Result<()> {
        let kind = nested(libc::IFLA_LINKINFO, &[text(libc::IFLA_INFO_KIND, "bridge")]);
        let attributes = [text(libc::IFLA_IFNAME, name), bytes(libc::IFLA_ADDRESS, &mac), kind];
        unless(Errno::EXIST, self.create(libc::RTM_NEWLINK, &link(0, 0, false), &attributes))
    }

    /// Makes a pair of interfaces that are connected to each other: `name` here, `peer` with this MAC in the namespace.
    ///
    /// # Errors
    /// EEXIST if there is one of either name.
    pub(super) fn add_pair(&self, name: &str, peer: &str, namespace: impl AsFd, mac: [u8; 6]) -> io::Result<()> {
        let namespace = namespace.as_fd().as_raw_fd().to_ne_bytes();
        let there =
            [text(libc::IFLA_IFNAME, peer), bytes(libc::IFLA_ADDRESS, &mac), bytes(libc::IFLA_NET_NS_FD, &namespace)];
        let mut other_end = link(0, 0, false).to_vec();
        emit(&there, &mut other_end);
        let data = nested(libc::IFLA_INFO_DATA, &[DefaultNla::new(VETH_PEER | NESTED, other_end)]);
        let kind = nested(libc::IFLA_LINKINFO, &[text(libc::IFLA_INFO_KIND, "veth"), data]);
        self.create(libc::RTM_NEWLINK, &link(0, 0, false), &[text(libc::IFLA_IFNAME, name), kind])
    }

    /// Makes an interface a port of a bridge that also sends back through the port on which a frame came, and brings it up.
    pub(super) fn join(&self, name: &str, bridge: &str) -> io::Result<()> {
        let (port, bridge) = (self.number(name)?, self.number(bridge)?);
        let master = bytes(libc::IFLA_MASTER, &bridge.to_ne_bytes());
        self.0.ask(libc::RTM_NEWLINK, 0, &link(port, 0, false), &[master])?;
        let hairpin = nested(libc::IFLA_PROTINFO, &[bytes(BRIDGE_PORT_HAIRPIN, &[1])]);
        let family = u8::try_from(libc::AF_BRIDGE).unwrap_or_default();
        self.0.ask(libc::RTM_SETLINK, 0, &link(port, family, false), &[hairpin])?;
        self.up(name)
    }

    /// Brings an interface up.
    pub(super) fn up(&self, name: &str) -> io::Result<()> {
        self.0.ask(libc::RTM_NEWLINK, 0, &link(self.number(name)?, 0, true), &[])
    }

    /// Gives an interface an address, without asking whether others have it; one that it has counts as given.
    pub(super) fn add_address(&self, name: &str, ip: IpAddr, prefix: u8) -> io::Result<()> {
        let mut header = [0; ADDRESS];
        header[1] = prefix;
        header[4..].copy_from_slice(&self.number(name)?.to_ne_bytes());
        let attributes = match ip {
            IpAddr::V4(ip) => {
                header[0] = libc::AF_INET as u8;
                let broadcast = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or_default() | ip.to_bits();
                vec![
                    bytes(libc::IFA_LOCAL, &ip.octets()),
                    bytes(libc::IFA_ADDRESS, &ip.octets()),
                    bytes(libc::IFA_BROADCAST, &broadcast.to_be_bytes()),
                ]
            }
            IpAddr::V6(ip) => {
                header[0] = libc::AF_INET6 as u8;
                header[2] = libc::IFA_F_NODAD as u8;
                vec![bytes(libc::IFA_ADDRESS, &ip.octets())]
            }
        };
        unless(Errno::EXIST, self.create(libc::RTM_NEWADDR, &header, &attributes))
    }

    /// Sends what has no other route to this gateway.
    pub(super) fn add_default_route(&self, gateway: IpAddr) -> io::Result<()> {
        let mut header = [0; ROUTE];
        header[4] = libc::RT_TABLE_MAIN;
        header[5] = libc::RTPROT_BOOT;
        header[6] = libc::RT_SCOPE_UNIVERSE;
        header[7] = libc::RTN_UNICAST;
        let (family, gateway) = match gateway {
            IpAddr::V4(ip) => (libc::AF_INET, bytes(libc::RTA_GATEWAY, &ip.octets())),
            IpAddr::V6(ip) => (libc::AF_INET6, bytes(libc::RTA_GATEWAY, &ip.octets())),
        };
        header[0] = family as u8;
        unless(Errno::EXIST, self.create(libc::RTM_NEWROUTE, &header, &[gateway]))
    }

    /// Removes an interface, and with one end of a pair the other; one that does not exist counts as removed.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.0.ask(libc::RTM_DELLINK, 0, &link(0, 0, false), &[text(libc::IFLA_IFNAME, name)]);
        unless(Errno::NODEV, removed)
    }

    fn number(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.0, name)?)
    }

    fn create(&self, kind: u16, header: &[u8], attributes: &[DefaultNla]) -> io::Result<()> {
        self.0.ask(kind, NLM_F_CREATE | NLM_F_EXCL, header, attributes)
    }
}

/// `struct ifinfomsg`.
fn link(number: u32, family: u8, is_up: bool) -> [u8; LINK] {
    let mut header = [0; LINK];
    header[0] = family;
    header[4..8].copy_from_slice(&number.to_ne_bytes());
    if is_up {
        let up = (libc::IFF_UP as u32).to_ne_bytes();
        header[8..12].copy_from_slice(&up);
        header[12..].copy_from_slice(&up);
    }
    header
}
