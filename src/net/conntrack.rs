//! What the kernel remembers of connections (`conntrack`), by `<linux/netfilter/nfnetlink_conntrack.h>`. Never forgets a connection
//! of which neither an address nor a mapped port is ours.
//!
//! The kernel asks the rules of mapped ports once per connection, and for datagrams once per pair of sender and receiver. It goes on
//! as it has decided then, as long as packets come: also when the allocation is gone, or its address is another's. Therefore what it
//! remembers of an address is deleted when the address changes its owner.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netlink_packet_core::DefaultNla;
use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;

use super::Mapping;
use super::netlink::{NESTED, Socket, attribute, bytes, unless};
use crate::sys::interfaces;

/// Messages of the subsystem `NFNL_SUBSYS_CTNETLINK`.
const GET: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | 1;
const DELETE: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | 2;
/// Length of `struct nfgenmsg`, which begins with the family.
const HEADER: usize = 4;
/// Attributes of an entry: its two tuples, its number and its zone.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Attributes of a tuple.
const IP: u16 = 1;
const PROTOCOL: u16 = 2;
/// Attributes of `IP`: of IPv4, and of IPv6.
const V4: [u16; 2] = [1, 2];
const V6: [u16; 2] = [3, 4];
/// Attributes of `PROTOCOL`.
const NUMBER: u16 = 1;
const TARGET_PORT: u16 = 3;

/// One direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tuple {
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    /// The port of the target; 0 where the protocol has none.
    port: u16,
}

impl Tuple {
    fn of(entry: &[u8], kind: u16) -> Option<Tuple> {
        let tuple = attribute(entry, kind)?;
        let (ip, protocol) = (attribute(tuple, IP)?, attribute(tuple, PROTOCOL)?);
        let address = |at: usize| {
            let v4 = || Some(Ipv4Addr::from(*attribute(ip, V4[at])?.first_chunk()?).into());
            v4().or_else(|| Some(Ipv6Addr::from(*attribute(ip, V6[at])?.first_chunk::<16>()?).into()))
        };
        let port = attribute(protocol, TARGET_PORT).and_then(<[u8]>::first_chunk);
        let protocol = *attribute(protocol, NUMBER)?.first()?;
        Some(Tuple {
            source: address(0)?,
            target: address(1)?,
            protocol,
            port: port.map_or(0, |port| u16::from_be_bytes(*port)),
        })
    }
}

/// What is to be forgotten.
#[derive(Debug, Default)]
struct Stale<'a> {
    addresses: &'a [IpAddr],
    /// Addresses and ports of the host.
    mapped: Vec<(IpAddr, u16)>,
}

impl Stale<'_> {
    /// Datagrams to a mapped port, too, that came before it was mapped: nobody got them, and nobody would get the next ones. With TCP
    /// the next attempt has another port of the sender.
    fn new<'a>(addresses: &'a [IpAddr], mappings: &[Mapping]) -> io::Result<Stale<'a>> {
        let udp = || mappings.iter().filter(|mapping| mapping.protocol == "udp");
        let own = if udp().any(|mapping| mapping.ip.is_unspecified()) { interfaces::addresses()? } else { Vec::new() };
        let mut mapped = Vec::new();
        for Mapping { host, ip, .. } in udp() {
            if ip.is_unspecified() {
                let own = own.iter().filter(|(_, own)| own.is_ipv4() == ip.is_ipv4());
                mapped.extend(own.map(|(_, own)| (*own, *host)));
            } else {
                mapped.push((*ip, *host));
            }
        }
        Ok(Stale { addresses, mapped })
    }

    fn has(&self, original: Tuple, reply: Tuple) -> bool {
        let ends = [original.source, original.target, reply.source, reply.target];
        ends.iter().any(|ip| self.addresses.contains(ip))
            || i32::from(original.protocol) == libc::IPPROTO_UDP
                && self.mapped.contains(&(original.target, original.port))
    }
}

/// Makes the kernel forget the connections from and to these addresses, and datagrams that have come to these ports. A kernel that
/// remembers none, or has no calls for it, is left as it is.
pub(super) fn forget(addresses: &[IpAddr], mappings: &[Mapping], patience: Duration) -> io::Result<()> {
    // The list takes the kernel 10 ms on a usual machine, however short it is. Packets that are just under way count as well; where
    // nothing is remembered, the file is absent.
    if std::fs::read("/proc/sys/net/netfilter/nf_conntrack_count").is_ok_and(|count| count.trim_ascii() == b"0") {
        return Ok(());
    }
    let stale = Stale::new(addresses, mappings)?;
    let is_in = |is: fn(&IpAddr) -> bool| stale.addresses.iter().chain(stale.mapped.iter().map(|(ip, _)| ip)).any(is);
    let deadline = Instant::now() + patience;
    for (family, is_meant) in [(libc::AF_INET, is_in(IpAddr::is_ipv4)), (libc::AF_INET6, is_in(IpAddr::is_ipv6))] {
        if !is_meant {
            continue;
        }
        match forget_of(family, &stale, deadline).map_err(|error| (Errno::from_io_error(&error), error)) {
            // No such protocol; no such subsystem of it.
            Err((Some(Errno::PROTONOSUPPORT | Errno::INVAL | Errno::OPNOTSUPP), _)) | Ok(()) => {}
            Err((_, error)) => return Err(error),
        }
    }
    Ok(())
}

/// Why the kernel cannot be asked; nothing is forgotten.
pub(super) fn lack() -> Option<io::Error> {
    let mut header = [0; HEADER];
    header[0] = libc::AF_INET as u8;
    let listed = Socket::open(Some(NETFILTER)).and_then(|socket| socket.list(GET, &header, &mut |_| Ok(())));
    listed.err()
}

fn forget_of(family: i32, stale: &Stale<'_>, deadline: Instant) -> io::Result<()> {
    // The list is not interrupted by other answers.
    let (list, change) = (Socket::open(Some(NETFILTER))?, Socket::open(Some(NETFILTER))?);
    let mut header = [0; HEADER];
    header[0] = family as u8;
    let forgotten = list.list(GET, &header, &mut |message| {
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel's list of connections does not end"));
        }
        let entry = message.get(HEADER..).unwrap_or_default();
        let (Some(original), Some(reply)) = (Tuple::of(entry, ORIGINAL), Tuple::of(entry, REPLY)) else {
            return Ok(());
        };
        let Some(tuple) = attribute(entry, ORIGINAL).filter(|_| stale.has(original, reply)) else { return Ok(()) };
        // A request without a tuple would delete all entries.
        let rest = [ID, ZONE].into_iter().filter_map(|kind| Some(bytes(kind, attribute(entry, kind)?)));
        let named: Vec<DefaultNla> = [bytes(ORIGINAL | NESTED, tuple)].into_iter().chain(rest).collect();
        // It may have ended meanwhile.
        unless(Errno::NOENT, change.ask(DELETE, 0, &header, &named))
    });
    list.close_later();
    change.close_later();
    forgotten
}

#[cfg(test)]
mod tests {
    use super::super::netlink::{emit, nested};
    use super::*;

    fn entry(ips: &[(u16, &[u8])], protocol: u8, port: Option<u16>) -> Vec<u8> {
        let ips: Vec<DefaultNla> = ips.iter().map(|(kind, ip)| bytes(*kind, ip)).collect();
        let port = port.map(|port| bytes(TARGET_PORT, &port.to_be_bytes()));
        let protocol: Vec<DefaultNla> = [bytes(NUMBER, &[protocol])].into_iter().chain(port).collect();
        let mut entry = Vec::new();
        emit(&[nested(ORIGINAL, &[nested(IP, &ips), nested(PROTOCOL, &protocol)])], &mut entry);
        entry
    }

    #[test]
    fn a_tuple_has_two_addresses_of_either_family() {
        let tuple = |source: &str, target: &str, protocol, port| {
            Some(Tuple { source: source.parse().unwrap(), target: target.parse().unwrap(), protocol, port })
        };
        let v4 = entry(&[(1, &[10, 0, 0, 1]), (2, &[10, 0, 0, 2])], 17, Some(53));
        assert_eq!(Tuple::of(&v4, ORIGINAL), tuple("10.0.0.1", "10.0.0.2", 17, 53));
        let v6 = entry(&[(3, &[1; 16]), (4, &[2; 16])], 58, None);
        assert_eq!(
            Tuple::of(&v6, ORIGINAL),
            tuple("101:101:101:101:101:101:101:101", "202:202:202:202:202:202:202:202", 58, 0)
        );
        assert_eq!(Tuple::of(&v4, REPLY), None);
        assert_eq!(Tuple::of(&entry(&[(1, &[10, 0, 0, 1])], 17, Some(53)), ORIGINAL), None);
        assert_eq!(Tuple::of(&entry(&[(1, &[10, 0]), (2, &[10, 0, 0, 2])], 17, None), ORIGINAL), None);
    }

    #[test]
    fn only_what_is_ours_is_stale() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mapping =
            |protocol: &str, host| Mapping { host, inside: 1, protocol: protocol.to_owned(), ip: ip("192.0.2.7") };
        let own = [ip("10.0.0.2")];
        let stale = Stale::new(&own, &[mapping("udp", 53), mapping("tcp", 80)]).unwrap();
        let of = |source: &str, target: &str, protocol, port| Tuple {
            source: ip(source),
            target: ip(target),
            protocol,
            port,
        };
        let (client, host, other) = ("198.51.100.9", "192.0.2.7", "10.0.0.3");
        for (original, reply, expected) in [
            // From it, to it, and through a mapped port.
            (of("10.0.0.2", client, 6, 80), of(client, host, 6, 4000), true),
            (of(other, "10.0.0.2", 6, 80), of("10.0.0.2", other, 6, 4000), true),
            (of(client, host, 17, 7), of("10.0.0.2", client, 17, 4000), true),
            (of(client, host, 6, 7), of("10.0.0.2", client, 6, 4000), true),
            // To the port, which nobody had.
            (of(client, host, 17, 53), of(host, client, 17, 4000), true),
            (of(client, host, 6, 80), of(host, client, 6, 4000), false),
            // Another port, another address of the host, an answer of somebody else's.
            (of(client, host, 17, 54), of(host, client, 17, 4000), false),
            (of(client, "192.0.2.8", 17, 53), of("192.0.2.8", client, 17, 4000), false),
            (of(host, client, 17, 53), of(client, host, 17, 4000), false),
            (of(client, host, 6, 8080), of(other, client, 6, 4000), false),
        ] {
            assert_eq!(stale.has(original, reply), expected, "{original:?} {reply:?}");
        }
        // A port of all addresses is one of this machine's.
        let all = Mapping { ip: ip("0.0.0.0"), ..mapping("udp", 53) };
        let stale = Stale::new(&[], &[all]).unwrap();
        assert!(stale.has(of(client, "127.0.0.1", 17, 53), of("127.0.0.1", client, 17, 4000)));
        assert!(!stale.has(of(client, "203.0.113.1", 17, 53), of("203.0.113.1", client, 17, 4000)));
    }
}
