//! Interfaces, addresses and routes of one network namespace, by `rtnetlink(7)`.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use netlink_packet_core::{
    DefaultNla, Emitable as _, ErrorBuffer, ErrorMessage, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST,
    NetlinkBuffer, NetlinkHeader, Parseable as _,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socket_with};

/// Lengths of `struct nlmsghdr`, and of the structures of `<linux/rtnetlink.h>` that precede the attributes.
const HEADER: usize = 16;
const LINK: usize = 16;
const ADDRESS: usize = 8;
const ROUTE: usize = 12;
/// `<linux/if_bridge.h>`, `<linux/if_link.h>` and `<linux/veth.h>`: what libc has no names for.
const BRIDGE_PORT_HAIRPIN: u16 = 4;
const VETH_PEER: u16 = 1;
/// `NLMSG_ERROR` of `netlink(7)`, which is also how a success is acknowledged.
const ACKNOWLEDGED: u16 = 2;
/// Longest answer: an acknowledgement repeats the header of the request, or all of it after an error.
const LONGEST_ANSWER: usize = 8 << 10;

/// A connection to the part of the kernel that holds the interfaces of this thread's network namespace.
#[derive(Debug)]
pub(super) struct Links(OwnedFd);

impl Links {
    /// Opens a connection to the network namespace that this thread is in.
    pub(super) fn open() -> io::Result<Links> {
        let route = None; // NETLINK_ROUTE is 0, the protocol of a socket that names none.
        Ok(Links(socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, route)?))
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
        self.ask(libc::RTM_NEWLINK, 0, &link(port, 0, false), &[master])?;
        let hairpin = nested(libc::IFLA_PROTINFO, &[bytes(BRIDGE_PORT_HAIRPIN, &[1])]);
        let family = u8::try_from(libc::AF_BRIDGE).unwrap_or_default();
        self.ask(libc::RTM_SETLINK, 0, &link(port, family, false), &[hairpin])?;
        self.up(name)
    }

    /// Brings an interface up.
    pub(super) fn up(&self, name: &str) -> io::Result<()> {
        self.ask(libc::RTM_NEWLINK, 0, &link(self.number(name)?, 0, true), &[])
    }

    /// Gives an interface an address; one that it has counts as given.
    pub(super) fn add_address(&self, name: &str, ip: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut header = [0; ADDRESS];
        header[0] = libc::AF_INET as u8;
        header[1] = prefix;
        header[4..].copy_from_slice(&self.number(name)?.to_ne_bytes());
        let broadcast = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or_default() | ip.to_bits();
        let attributes = [
            bytes(libc::IFA_LOCAL, &ip.octets()),
            bytes(libc::IFA_ADDRESS, &ip.octets()),
            bytes(libc::IFA_BROADCAST, &broadcast.to_be_bytes()),
        ];
        unless(Errno::EXIST, self.create(libc::RTM_NEWADDR, &header, &attributes))
    }

    /// Sends what has no other route to this gateway.
    pub(super) fn add_default_route(&self, gateway: Ipv4Addr) -> io::Result<()> {
        let mut header = [0; ROUTE];
        header[0] = libc::AF_INET as u8;
        header[4] = libc::RT_TABLE_MAIN;
        header[5] = libc::RTPROT_BOOT;
        header[6] = libc::RT_SCOPE_UNIVERSE;
        header[7] = libc::RTN_UNICAST;
        let gateway = bytes(libc::RTA_GATEWAY, &gateway.octets());
        unless(Errno::EXIST, self.create(libc::RTM_NEWROUTE, &header, &[gateway]))
    }

    /// Removes an interface, and with one end of a pair the other; one that does not exist counts as removed.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        let removed = self.ask(libc::RTM_DELLINK, 0, &link(0, 0, false), &[text(libc::IFLA_IFNAME, name)]);
        unless(Errno::NODEV, removed)
    }

    fn number(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(&self.0, name)?)
    }

    fn create(&self, kind: u16, header: &[u8], attributes: &[DefaultNla]) -> io::Result<()> {
        self.ask(kind, NLM_F_CREATE | NLM_F_EXCL, header, attributes)
    }

    /// Sends one request, and reads whether the kernel has done it.
    fn ask(&self, kind: u16, flags: u16, header: &[u8], attributes: &[DefaultNla]) -> io::Result<()> {
        let mut message = vec![0; HEADER];
        message.extend_from_slice(header);
        emit(attributes, &mut message);
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut first = NetlinkHeader::default();
        (first.length, first.message_type, first.flags) = (length, kind, flags);
        first.emit(&mut message[..HEADER]);
        rustix::io::retry_on_intr(|| rustix::net::send(&self.0, &message, SendFlags::empty()))?;
        // The kernel answers before the call that sends returns.
        let mut answer = vec![0; LONGEST_ANSWER];
        let (length, _) = rustix::io::retry_on_intr(|| rustix::net::recv(&self.0, &mut *answer, RecvFlags::DONTWAIT))?;
        outcome(answer.get(..length).unwrap_or_default())
    }
}

/// What the kernel has answered to a request.
fn outcome(answer: &[u8]) -> io::Result<()> {
    let bad = |e: &dyn std::fmt::Display| io::Error::other(format!("the kernel's answer cannot be read: {e}"));
    let buffer = NetlinkBuffer::new_checked(answer).map_err(|e| bad(&e))?;
    if buffer.message_type() != ACKNOWLEDGED {
        return Err(bad(&format!("it is of type {}", buffer.message_type())));
    }
    let payload = buffer.payload();
    let error = ErrorBuffer::new_checked(&payload).and_then(|error| ErrorMessage::parse(&error));
    match error.map_err(|e| bad(&e))?.code {
        None => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.get().saturating_neg())),
    }
}

/// Whether an attribute contains attributes.
const NESTED: u16 = 1 << 15;

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

fn bytes(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

fn text(kind: u16, value: &str) -> DefaultNla {
    let mut value = value.as_bytes().to_vec();
    value.push(0);
    DefaultNla::new(kind, value)
}

fn nested(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    let mut value = Vec::new();
    emit(inner, &mut value);
    DefaultNla::new(kind | NESTED, value)
}

fn emit(attributes: &[DefaultNla], message: &mut Vec<u8>) {
    let start = message.len();
    message.resize(start + attributes.buffer_len(), 0);
    attributes.emit(&mut message[start..]);
}

/// An error that says that it is done already is none.
fn unless(done: Errno, outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.raw_os_error() == Some(done.raw_os_error()) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_success_an_errno_or_unreadable() {
        let answer = |kind: u16, code: i32| {
            let mut message = vec![0; HEADER];
            message.extend_from_slice(&code.to_ne_bytes());
            message.extend_from_slice(&[0; HEADER]);
            let length = u32::try_from(message.len()).unwrap();
            let mut header = NetlinkHeader::default();
            (header.length, header.message_type) = (length, kind);
            header.emit(&mut message[..HEADER]);
            message
        };
        outcome(&answer(ACKNOWLEDGED, 0)).unwrap();
        let error = outcome(&answer(ACKNOWLEDGED, -libc::EEXIST)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
        unless(Errno::EXIST, Err(error)).unwrap();
        for unreadable in [&answer(3, 0)[..], &answer(ACKNOWLEDGED, 0)[..10], &[], &[0; 64]] {
            let error = outcome(unreadable).unwrap_err();
            assert!(error.to_string().starts_with("the kernel's answer cannot be read"), "{error}");
        }
    }
}
