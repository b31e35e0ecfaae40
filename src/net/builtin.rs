//! The built-in network where the CNI plugins for it are not installed: the same pair of interfaces, addresses and mapped ports, by
//! netlink.
//!
//! Addresses are taken from the directory of the plugin `host-local`, in its format, so that a bridge may have allocations that were
//! connected either way. All names are derived from the allocation's id: what was only partially made is removed without knowing
//! how far it got.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;
use sha2::Digest as _;

use super::link::Links;
use super::lock::own_dir;
use super::rules::{Batch, Chain, Family, Hook, Rule, Verdict, What};
use super::{Error, Mapping, Subnet, Subnets, cni, forward, guard, lease, namespace, rules};
use crate::spec::json::json;
use crate::sys::owned;

/// The file that says which address was given last, as `host-local` names it, without the number of the subnet.
const LAST: &str = "last_reserved_ip";
/// Where fields are: in the headers of IPv4, of IPv6, and of TCP or UDP.
const IP_SOURCE: What = What::Network(12);
const IP_TARGET: What = What::Network(16);
const IP6_SOURCE: What = What::Network(8);
const IP6_TARGET: What = What::Network(24);
const PORT: What = What::Transport(2);
/// Bits of a connection's state and status (`<linux/netfilter/nf_conntrack_common.h>`): it has packets of both directions, or belongs
/// to one that has; its target was changed.
const ESTABLISHED: u32 = 1 << 1;
const RELATED: u32 = 1 << 2;
const LED: u32 = 1 << 5;
/// The places of the chains: just before those of others.
const BEFORE_FILTERS: i32 = libc::NF_IP_PRI_FILTER - 1;
const BEFORE_SOURCES: i32 = libc::NF_IP_PRI_NAT_SRC - 1;
const BEFORE_TARGETS: i32 = libc::NF_IP_PRI_NAT_DST - 1;
/// Settings of IPv6 on the allocation's interface: it has the address that it is given, at once, and takes no other.
const INSIDE: [(&str, &str); 3] = [("disable_ipv6", "0"), ("accept_ra", "0"), ("accept_dad", "0")];
/// The same on the bridge.
const BRIDGE: [(&str, &str); 2] = [("disable_ipv6", "0"), ("accept_ra", "0")];
/// Longest file that says so, in bytes.
const LONGEST_LAST: u64 = 64;

/// An allocation that is to be connected, or was.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    /// Its id.
    pub(super) id: &'a str,
    /// The file of its namespace.
    pub(super) namespace: &'a Path,
    /// Name of its table of rules.
    pub(super) table: &'a str,
    pub(super) run_dir: &'a Path,
    pub(super) subnets: Subnets,
}

impl Member<'_> {
    /// Connects it, without rules, and returns the result that CNI plugins would give. What a failed call has made stays until
    /// [`Member::remove`].
    pub(super) fn add(&self) -> Result<Value, Error> {
        let here = Links::open().map_err(Error::system("reach the network interfaces for", self.namespace))?;
        let addresses = self.lease()?;
        let (link, mac) =
            (link_of(self.id), mac_of(addresses.first().map_or(self.subnets.v4.gateway(), |(ip, _)| *ip)));
        let cannot = Error::system("connect the network namespace", self.namespace);
        let connected = namespace::open(self.namespace).and_then(|inside| {
            here.add_pair(&link, cni::INTERFACE, &inside, mac)?;
            here.join(&link, lease::NAME)?;
            set_up_inside(&inside, &addresses)
        });
        connected.map_err(cannot)?;
        let ip = |(address, subnet): &(IpAddr, Subnet)| {
            json!({
                "version": if address.is_ipv4() { "4" } else { "6" },
                "interface": 2,
                "address": format!("{address}/{}", subnet.prefix),
                "gateway": subnet.gateway(),
            })
        };
        Ok(json!({
            "interfaces": [
                { "name": lease::NAME },
                { "name": link },
                { "name": cni::INTERFACE, "mac": mac.map(|byte| format!("{byte:02x}")).join(":"), "sandbox": self.namespace },
            ],
            "ips": addresses.iter().map(ip).collect::<Vec<_>>(),
        }))
    }

    /// Makes all rules in one transaction: those that allocations share, those of the ports that are mapped here, and those of its
    /// wire. If the kernel does not take the last ones, the network works without them, and the reason is returned.
    pub(super) fn make_rules(&self, mappings: &[Mapping], wire: &guard::Wire) -> Result<Option<String>, Error> {
        let mut needed = shared(self.subnets);
        self.lead(&mut needed, &wire.addresses, mappings);
        let mut all = needed.clone();
        guard::make(&mut all, self.table, wire);
        let Err(error) = all.commit() else { return Ok(None) };
        needed.commit()?;
        Ok(Some(error.with_cause()))
    }

    /// The rules that lead the ports of the host to the allocation.
    fn lead(&self, batch: &mut Batch, addresses: &[IpAddr], mappings: &[Mapping]) {
        for to in addresses {
            let mappings = mappings.iter().filter(|one| one.ip.is_ipv4() == to.is_ipv4());
            let rules: Vec<Rule> = mappings.map(|mapping| leads(mapping, *to)).collect();
            if rules.is_empty() {
                continue;
            }
            let family = Family::of(*to);
            batch.replace(family, self.table);
            // What comes in, and what processes of the host send.
            for (name, hook) in [("incoming", Hook::Prerouting), ("local", Hook::Output)] {
                let chain = Chain { name, is_nat: true, hook, priority: BEFORE_TARGETS, policy: Verdict::Accept };
                batch.chain(family, self.table, &chain, &rules);
            }
        }
    }

    /// Disconnects it: the interfaces, the rules, the address. What does not exist counts as removed. Returns what
    /// [`Member::remove_rules`] does.
    pub(super) fn remove(&self) -> Result<bool, Error> {
        let here = Links::open().map_err(Error::system("reach the network interfaces for", self.namespace))?;
        let removed = here.remove(&link_of(self.id)).map_err(Error::system("disconnect", self.namespace));
        // Before somebody else has its address.
        let unshared = self.remove_rules()?;
        removed?;
        self.give_back()?;
        Ok(unshared)
    }

    /// Removes its rules, and with those of the last allocation the ones that allocations share, in one transaction. Returns whether
    /// these are gone.
    pub(super) fn remove_rules(&self) -> Result<bool, Error> {
        let taken = lease::taken(self.run_dir)?;
        let is_last = taken.iter().all(|(_, path)| lease::is_of(path, self.id));
        let families = || families(self.subnets.v6.is_some());
        let own = families().chain([Family::Netdev]).map(|family| (family, self.table));
        let shared = families().filter(|_| is_last).map(|family| (family, lease::NAME));
        rules::remove(&own.chain(shared).collect::<Vec<_>>())?;
        Ok(is_last)
    }

    /// Takes an address of each subnet: the next free one after the one that was given last.
    fn lease(&self) -> Result<Vec<(IpAddr, Subnet)>, Error> {
        self.give_back()?;
        let dir = lease::leases(self.run_dir);
        own_dir(&dir).map_err(Error::system("make the directory", &dir))?;
        let take = |(number, subnet)| Ok((self.take(&dir, number, subnet)?, subnet));
        self.subnets.all().enumerate().map(take).collect()
    }

    fn take(&self, dir: &Path, number: usize, subnet: Subnet) -> Result<IpAddr, Error> {
        let last = dir.join(format!("{LAST}.{number}"));
        let given = owned::read(&last, LONGEST_LAST).ok();
        let given = given.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok());
        for address in subnet.after(given) {
            let path = dir.join(address.to_string());
            let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let mut file = match open {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other.map_err(Error::system("take the address", &path))?,
            };
            let text = format!("{}\r\n{}", self.id, cni::INTERFACE);
            file.write_all(text.as_bytes()).map_err(Error::system("write", &path))?;
            fs::write(&last, address.to_string()).map_err(Error::system("write", &last))?;
            return Ok(address);
        }
        Err(Error::Full { most: self.subnets.room(), subnets: self.subnets })
    }

    /// Removes the files of its addresses.
    fn give_back(&self) -> Result<(), Error> {
        let taken = lease::taken(self.run_dir)?;
        for (_, path) in taken.into_iter().filter(|(_, path)| lease::is_of(path, self.id)) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::system("give back the address", path)(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Name of the host's end of an allocation's pair.
fn link_of(id: &str) -> String {
    let digest = sha2::Sha256::digest(id);
    let digest = digest.iter().take(6).fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
    format!("agb{digest:012x}")
}

/// The MAC of whoever has this address: others on the bridge do not have to learn a new one with its next owner.
pub(super) fn mac_of(address: IpAddr) -> [u8; 6] {
    let [.., a, b, c, d] = match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    [0x0a, 0x58, a, b, c, d]
}

fn families(with_ipv6: bool) -> impl Iterator<Item = Family> {
    [Family::V4].into_iter().chain(with_ipv6.then_some(Family::V6))
}

/// The rule that leads a port of the host to this address.
fn leads(mapping: &Mapping, to: IpAddr) -> Rule {
    let Mapping { host, inside, protocol, ip } = mapping;
    let protocol = if protocol == "udp" { libc::IPPROTO_UDP } else { libc::IPPROTO_TCP } as u8;
    let at = match ip {
        ip if ip.is_unspecified() => Rule::new().local(),
        IpAddr::V4(ip) => Rule::new().with(IP_TARGET, &ip.octets()),
        IpAddr::V6(ip) => Rule::new().with(IP6_TARGET, &ip.octets()),
    };
    at.with(What::Inner, &[protocol]).with(PORT, &host.to_be_bytes()).lead_to(SocketAddr::new(to, *inside))
}

/// Gives the interface inside its addresses, and brings it up.
fn set_up_inside(inside: &OwnedFd, addresses: &[(IpAddr, Subnet)]) -> io::Result<()> {
    namespace::enter(inside, || {
        let links = Links::open()?;
        if addresses.iter().any(|(ip, _)| ip.is_ipv6()) {
            // A driver's namespace may be without IPv6.
            forward::set("lo", &INSIDE[..1])?;
            forward::set(cni::INTERFACE, &INSIDE)?;
        }
        for (ip, subnet) in addresses {
            links.add_address(cni::INTERFACE, *ip, subnet.prefix)?;
        }
        links.up(cni::INTERFACE)?;
        addresses.iter().try_for_each(|(_, subnet)| links.add_default_route(subnet.gateway()))
    })
}

/// The rules that all allocations on the bridge share: packets leave with the host's address, and do not reach the host's loopback.
/// What comes back to the bridge through a mapped port comes from the host, as the answer must pass it too.
fn shared(subnets: Subnets) -> Batch {
    let name = lease::NAME;
    let mut batch = Batch::new();
    batch.replace(Family::V4, name);
    let loopback = IpAddr::from([127, 0, 0, 0]);
    let knocks = Rule::new().by(What::From, name).within(IP_TARGET, loopback, 8);
    let knocks = knocks.without_state(ESTABLISHED | RELATED).then(Verdict::Drop);
    let (hook, policy) = (Hook::Input, Verdict::Accept);
    let input = Chain { name: "input", is_nat: false, hook, priority: BEFORE_FILTERS, policy };
    batch.chain(Family::V4, name, &input, &[knocks]);
    let multicast = IpAddr::from([224, 0, 0, 0]);
    leave(&mut batch, subnets.v4, [IP_SOURCE, IP_TARGET], (multicast, 4), &[(loopback, 8)]);
    if let Some(v6) = subnets.v6 {
        batch.replace(Family::V6, name);
        // The kernel takes no packet for the loopback of IPv6 from another interface.
        let multicast = IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]);
        leave(&mut batch, v6, [IP6_SOURCE, IP6_TARGET], (multicast, 8), &[]);
    }
    batch
}

/// The chain for what leaves the bridge, and for what was led to it from there or from these networks too.
fn leave(
    batch: &mut Batch,
    subnet: Subnet,
    [source, target]: [What; 2],
    multicast: (IpAddr, u8),
    more: &[(IpAddr, u8)],
) {
    let (name, family) = (lease::NAME, Family::of(subnet.base));
    let out = Rule::new().within(source, subnet.base, subnet.prefix).outside(target, multicast.0, multicast.1);
    let out = out.not_by(What::To, name).masquerade();
    let back = |(base, prefix): (IpAddr, u8)| {
        Rule::new().by(What::To, name).with_status(LED).within(source, base, prefix).masquerade()
    };
    let back = [(subnet.base, subnet.prefix)].into_iter().chain(more.iter().copied()).map(back);
    let (hook, policy) = (Hook::Postrouting, Verdict::Accept);
    let chain = Chain { name: "leave", is_nat: true, hook, priority: BEFORE_SOURCES, policy };
    batch.chain(family, name, &chain, &[out].into_iter().chain(back).collect::<Vec<_>>());
}

/// Makes them alone.
pub(super) fn share(subnets: Subnets) -> Result<(), Error> {
    shared(subnets).commit()
}

/// Removes them.
pub(super) fn unshare(with_ipv6: bool) -> Result<(), Error> {
    let tables: Vec<_> = families(with_ipv6).map(|family| (family, lease::NAME)).collect();
    rules::remove(&tables)
}

/// Makes the bridge, with the gateways' addresses.
pub(super) fn make_bridge(subnets: Subnets) -> Result<(), Error> {
    let made = Links::open().and_then(|links| {
        links.add_bridge(lease::NAME, mac_of(subnets.v4.gateway()))?;
        if subnets.v6.is_some() {
            forward::set(lease::NAME, &BRIDGE)?;
        }
        for subnet in subnets.all() {
            links.add_address(lease::NAME, subnet.gateway(), subnet.prefix)?;
        }
        links.up(lease::NAME)
    });
    made.map_err(Error::system("make the bridge", lease::NAME))?;
    // A port that is mapped at the host's loopback leads out of it, to the bridge; `share` drops what would come back that way.
    let settings = [format!("conf/{}/route_localnet", lease::NAME), "ip_forward".to_owned()];
    for path in settings.map(|setting| PathBuf::from("/proc/sys/net/ipv4").join(setting)) {
        if fs::read(&path).is_ok_and(|value| value.starts_with(b"1")) {
            continue;
        }
        fs::write(&path, "1").map_err(Error::system("write", &path))?;
    }
    Ok(())
}

/// Checks that the kernel has what the rules are made by.
pub(super) fn check() -> Result<(), Error> {
    if rules::are_there()? { Ok(()) } else { Err(Error::NoTables) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member<'a>(run_dir: &'a Path, id: &'a str) -> Member<'a> {
        let subnets = Subnets::parse("10.0.0.0/29 fd00::/64").unwrap();
        Member { id, namespace: Path::new("/ns"), table: "t", run_dir, subnets }
    }

    #[test]
    fn addresses_are_given_in_turn_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let of = |id| -> Result<(u8, u16), Error> {
            let addresses = member(dir.path(), id).lease()?;
            let [(IpAddr::V4(v4), _), (IpAddr::V6(v6), _)] = addresses[..] else { panic!("{addresses:?}") };
            assert_eq!(v6.segments()[..7], [0xfd00, 0, 0, 0, 0, 0, 0]);
            Ok((v4.octets()[3], v6.segments()[7]))
        };
        let ids = ["a", "b", "c", "d", "e"];
        assert_eq!(ids.map(|id| of(id).unwrap()), [(2, 2), (3, 3), (4, 4), (5, 5), (6, 6)]);
        assert!(matches!(of("f"), Err(Error::Full { most: 5, .. })));
        member(dir.path(), "c").give_back().unwrap();
        assert_eq!(of("f").unwrap(), (4, 7), "the only one that is free; the next one");
        member(dir.path(), "a").give_back().unwrap();
        member(dir.path(), "b").give_back().unwrap();
        assert_eq!(of("g").unwrap(), (2, 8), "the next after the last one, from the beginning");
        assert_eq!(of("g").unwrap(), (3, 9), "one allocation has one; its next one is the least recently used");
        for (name, text) in [("10.0.0.3", "g\r\neth0"), ("fd00::9", "g\r\neth0"), ("last_reserved_ip.1", "fd00::9")] {
            let path = lease::leases(dir.path()).join(name);
            assert_eq!(fs::read_to_string(path).unwrap(), text, "{name}: as host-local writes it");
        }
        // Killed between making the file and writing it.
        fs::write(lease::leases(dir.path()).join("10.0.0.2"), "").unwrap();
        assert_eq!(of("h").unwrap(), (2, 10));
    }

    #[test]
    fn ports_are_led_to_the_allocation() {
        let mapping = |ip: &str, protocol: &str| Mapping {
            host: 8080,
            inside: 80,
            protocol: protocol.to_owned(),
            ip: ip.parse().unwrap(),
        };
        let member = member(Path::new("/nonexistent"), "a");
        let led = |addresses: &[IpAddr], mappings: &[Mapping]| {
            let mut batch = Batch::new();
            member.lead(&mut batch, addresses, mappings);
            batch.lines()
        };
        let v4 = ["10.0.0.2".parse().unwrap()];
        let both = [v4[0], "fd00::2".parse().unwrap()];
        assert_eq!(led(&both, &[]), [""; 0]);
        assert_eq!(led(&v4, &[mapping("2001:db8::1", "tcp")]), [""; 0], "no way from IPv6 to IPv4");
        let all = [
            mapping("192.0.2.1", "tcp"),
            mapping("0.0.0.0", "udp"),
            mapping("2001:db8::1", "tcp"),
            mapping("::", "udp"),
            mapping("192.0.2.1", "sctp"),
        ];
        let table = |family: &str, rules: usize| {
            let chain = |name: &str| {
                let rules =
                    (1..=rules).map(move |n| format!("make rule {n} of the chain {name} of the table {family} t"));
                [format!("make the chain {name} of the table {family} t")].into_iter().chain(rules).collect::<Vec<_>>()
            };
            let gone = format!("remove the table {family} t");
            [vec![gone.clone(), gone, format!("make the table {family} t")], chain("incoming"), chain("local")].concat()
        };
        assert_eq!(led(&both, &all), [table("ip", 3), table("ip6", 2)].concat());
        assert_eq!(led(&both, &[mapping("192.0.2.1", "tcp")]), table("ip", 1));
    }

    #[test]
    fn the_link_of_an_allocation_has_a_name_that_the_kernel_takes() {
        let name = link_of("286d75a3-6361-46fc-bc09-bc778daacf13");
        assert!(name.len() == 15 && cni::is_name(&name), "{name}");
        assert_ne!(name, link_of("286d75a3-6361-46fc-bc09-bc778daacf14"));
    }
}
