//! Limits what tasks on the built-in bridge can send, whatever capabilities they have: by rules on the host's end of an
//! allocation's veth pair, which no process inside can change.
//!
//! Accepted are frames that come from the allocation's own MAC and carry its own addresses, as IPv4, IPv6 or sender of ARP, and
//! neighbour advertisements only for its own address. Router advertisements, redirects, multicast listener queries, other
//! protocols, tagged frames and packets for the host's loopback are dropped.
//!
//! The rules are a table of `nf_tables` per allocation, named after the data directory and the allocation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde_json::Value;
use sha2::Digest as _;

use super::rules::{Batch, Chain, Family, Hook, Rule, Verdict, What};
use super::{cni, lease, rules};

/// The chain in the table of an allocation, before those that others usually have.
const CHAIN: &str = "ingress";
const PRIORITY: i32 = -500;
/// Kinds of interfaces (`<linux/if_arp.h>`) and protocols (`<linux/if_ether.h>`, `<linux/in.h>`), as packets have them; that of the
/// interface has the machine's order.
const ETHERNET: u16 = libc::ARPHRD_ETHER;
const IP: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IP6: [u8; 2] = [0x86, 0xdd];
const ICMP6: [u8; 1] = [libc::IPPROTO_ICMPV6 as u8];
/// The header of ARP between addresses of Ethernet and of IPv4, up to what is asked.
const ARP_OF_IP: [u8; 6] = [0x00, 0x01, 0x08, 0x00, 6, 4];
/// Types of messages of `ICMPv6` (RFC 4861, RFC 2710, RFC 3810).
const LISTENER_QUERY: u8 = 130;
const LISTENER_REPORTS: [u8; 2] = [131, 143];
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOUR_SOLICITATION: u8 = 135;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Where fields are: in the header of the frame, of ARP, of IPv4, of IPv6, and of neighbour discovery.
const SENDER: What = What::Link(6);
const KIND: What = What::Link(12);
const ARP_SENDER: What = What::Network(8);
const IP_SOURCE: What = What::Network(12);
const IP_TARGET: What = What::Network(16);
const IP6_SOURCE: What = What::Network(8);
const ICMP_TYPE: What = What::Transport(0);
const NEIGHBOUR: What = What::Transport(8);
/// Longest name of an interface.
const LONGEST_LINK: usize = 15;

/// The two ends of an allocation's veth pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wire {
    /// The interface of the host's end.
    link: String,
    /// The MAC of the inner end.
    mac: [u8; 6],
    /// The addresses of the allocation.
    pub(super) addresses: Vec<IpAddr>,
}

impl Wire {
    /// Extracts it from the result of the bridge plugin.
    pub(super) fn of(result: &Value) -> Option<Wire> {
        let list = |key: &str| result.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let text = |value: &'_ Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (mut link, mut inside) = (None, None);
        for (number, interface) in list("interfaces").iter().enumerate() {
            let name = text(interface, "name");
            if !text(interface, "sandbox").is_empty() {
                inside = Some((number, mac(&text(interface, "mac"))?));
            } else if name != lease::NAME {
                link = Some(name);
            }
        }
        let (number, mac) = inside?;
        let own =
            list("ips").iter().filter(|ip| ip.get("interface").and_then(Value::as_u64) == u64::try_from(number).ok());
        let addresses =
            own.map(|ip| text(ip, "address").split('/').next()?.parse().ok()).collect::<Option<Vec<_>>>()?;
        let link = link.filter(|link| cni::is_name(link) && link.len() <= LONGEST_LINK)?;
        (!addresses.is_empty()).then_some(Wire { link, mac, addresses })
    }
}

fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok());
    let mut mac = [0; 6];
    for byte in &mut mac {
        *byte = bytes.next()??;
    }
    bytes.next().is_none().then_some(mac)
}

/// The link-local address that the kernel assigns to an interface.
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let word = |high, low| u16::from_be_bytes([high, low]);
    let own = [word(mac[0] ^ 2, mac[1]), word(mac[2], 0xff), word(0xfe, mac[3]), word(mac[4], mac[5])];
    Ipv6Addr::new(0xfe80, 0, 0, 0, own[0], own[1], own[2], own[3])
}

/// Name of an allocation's table, by the path of its record.
pub(super) fn table(record: &Path, id: &str) -> String {
    let dir = record.parent().unwrap_or(record).as_os_str().as_bytes();
    let digest = sha2::Sha256::digest(dir);
    let dir = digest.iter().take(4).fold(0_u32, |all, byte| all << 8 | u32::from(*byte));
    format!("agentbin-{dir:08x}-{id}")
}

/// Replaces the table. What no rule accepts is dropped.
pub(super) fn make(batch: &mut Batch, table: &str, wire: &Wire) {
    batch.replace(Family::Netdev, table);
    let hook = Hook::Ingress { link: &wire.link };
    let chain = Chain { name: CHAIN, is_nat: false, hook, priority: PRIORITY, policy: Verdict::Drop };
    batch.chain(Family::Netdev, table, &chain, &of(wire));
}

fn of(wire: &Wire) -> Vec<Rule> {
    let v4 = || wire.addresses.iter().filter_map(|ip| if let IpAddr::V4(ip) = ip { Some(*ip) } else { None });
    let v6 = wire.addresses.iter().filter_map(|ip| if let IpAddr::V6(ip) = ip { Some(*ip) } else { None });
    let v6: Vec<Ipv6Addr> = [link_local(wire.mac)].into_iter().chain(v6).collect();
    let frame = || Rule::new().with(What::LinkKind, &ETHERNET.to_ne_bytes());
    let icmp = |rule: Rule, kind| rule.with(What::Inner, &ICMP6).with(ICMP_TYPE, &[kind]);
    let six = || Rule::new().with(What::Protocol, &IP6);
    let no_address = || six().with(IP6_SOURCE, &Ipv6Addr::UNSPECIFIED.octets());
    let mut all = vec![frame().without(SENDER, &wire.mac).then(Verdict::Drop)];
    // Whoever asks whether somebody has an address has none yet.
    all.extend([Ipv4Addr::UNSPECIFIED].into_iter().chain(v4()).map(|ip| {
        let sender = [&wire.mac[..], &ip.octets()].concat();
        let arp = frame().with(KIND, &ARP).with(What::Network(0), &ARP_OF_IP);
        arp.with(ARP_SENDER, &sender).then(Verdict::Accept)
    }));
    let loopback = IpAddr::from([127, 0, 0, 0]);
    all.push(frame().with(KIND, &IP).within(IP_TARGET, loopback, 8).then(Verdict::Drop));
    all.extend(v4().map(|ip| frame().with(KIND, &IP).with(IP_SOURCE, &ip.octets()).then(Verdict::Accept)));
    all.push(frame().without(KIND, &IP6).then(Verdict::Drop));
    let of_routers = [ROUTER_ADVERTISEMENT, REDIRECT, LISTENER_QUERY];
    all.extend(of_routers.map(|kind| icmp(six(), kind).then(Verdict::Drop)));
    let others = icmp(six(), NEIGHBOUR_ADVERTISEMENT);
    all.push(v6.iter().fold(others, |rule, ip| rule.without(NEIGHBOUR, &ip.octets())).then(Verdict::Drop));
    all.extend(v6.iter().map(|ip| six().with(IP6_SOURCE, &ip.octets()).then(Verdict::Accept)));
    all.extend(
        v6.iter()
            .map(|ip| icmp(no_address(), NEIGHBOUR_SOLICITATION).with(NEIGHBOUR, &ip.octets()).then(Verdict::Accept)),
    );
    all.extend(LISTENER_REPORTS.map(|kind| icmp(no_address(), kind).then(Verdict::Accept)));
    all
}

/// Why no such rules can be made here; nothing is made.
pub(super) fn lack() -> Option<(String, &'static str)> {
    let wire = Wire { link: "lo".to_owned(), mac: [2, 0, 0, 0, 0, 0], addresses: vec![Ipv4Addr::LOCALHOST.into()] };
    let mut batch = Batch::new();
    make(&mut batch, "agentbin-doctor", &wire);
    let error = batch.check().err()?;
    let fix = if rules::are_there().is_ok_and(|are_there| !are_there) {
        "the module nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_NETDEV and CONFIG_NETFILTER_INGRESS)"
    } else {
        "a kernel with CONFIG_NF_TABLES_NETDEV and CONFIG_NETFILTER_INGRESS"
    };
    Some((error.with_cause(), fix))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(ips: &Value) -> Value {
        json!({
            "interfaces": [
                { "name": "agentbin", "mac": "82:5c:90:cc:a1:8e" },
                { "name": "veth0123abcd", "mac": "82:5c:90:cc:a1:8f" },
                { "name": "eth0", "mac": "0a:58:0A:7e:40:02", "sandbox": "/run/agentbin/network/netns/x" },
            ],
            "ips": ips,
        })
    }

    #[test]
    fn the_wire_is_what_the_plugin_tells_of_it_or_unknown() {
        let ips = json!([
            { "version": "4", "interface": 2, "address": "10.126.64.2/20" },
            { "version": "4", "interface": 0, "address": "10.126.64.1/20" },
        ]);
        let wire = Wire {
            link: "veth0123abcd".to_owned(),
            mac: [0x0a, 0x58, 0x0a, 0x7e, 0x40, 2],
            addresses: vec!["10.126.64.2".parse().unwrap()],
        };
        assert_eq!(Wire::of(&result(&ips)), Some(wire));
        assert_eq!(Wire::of(&result(&json!([]))), None, "no address");
        assert_eq!(Wire::of(&result(&json!([{ "interface": 2, "address": "x" }]))), None);
        for (number, key, bad) in [
            (1, "name", "veth\"; }"),
            (1, "name", "a-name-that-is-too-long"),
            (1, "name", ""),
            (2, "mac", "0a:58:0a:7e:40"),
            (2, "mac", "0a:58:0a:7e:40:02:03"),
            (2, "mac", "0a:58:0a:7e:40:xx"),
            (2, "sandbox", ""),
        ] {
            let mut result = result(&ips);
            result["interfaces"][number][key] = bad.into();
            assert_eq!(Wire::of(&result), None, "{key} {bad}");
        }
    }

    #[test]
    fn rules_name_the_own_addresses_and_nothing_else() {
        let ips = json!([{ "interface": 2, "address": "10.126.9.8/20" }, { "interface": 2, "address": "fd00::2/64" }]);
        let wire = Wire::of(&result(&ips)).unwrap();
        let all = of(&wire);
        // A sender, two of ARP, loopback, IPv4, no other protocol, three of routers, neighbours, two sources, two questions, two reports.
        assert_eq!(all.len(), 16);
        let link_local = link_local(wire.mac).octets();
        assert_eq!(link_local, "fe80::858:aff:fe7e:4002".parse::<Ipv6Addr>().unwrap().octets());
        let naming = |value: &[u8]| {
            let all = all.iter().map(|rule| format!("{rule:?}"));
            let value = value.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
            all.filter(|rule| rule.contains(&value)).count()
        };
        assert_eq!(naming(&wire.mac), 3);
        assert_eq!(naming(&[10, 126, 9, 8]), 2, "of ARP, and of IPv4");
        for own in [link_local, "fd00::2".parse::<Ipv6Addr>().unwrap().octets()] {
            assert_eq!(naming(&own), 3, "{own:?}");
        }
    }

    #[test]
    fn a_table_is_named_by_data_directory_and_allocation() {
        let of = |dir: &str, id: &str| table(&Path::new(dir).join(format!("{id}.json")), id);
        let name = of("/var/lib/agentbin/alloc", "x");
        assert!(
            name.starts_with("agentbin-") && name.ends_with("-x") && name.len() == "agentbin-".len() + 10,
            "{name}"
        );
        assert_ne!(name, of("/var/lib/agentbin/alloc", "y"));
        assert_ne!(name, of("/var/lib/other/alloc", "x"));
    }
}
