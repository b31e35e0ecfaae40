//! The built-in network where the CNI plugins for it are not installed: the same pair of interfaces, addresses and mapped ports, by
//! netlink and `nft(8)`.
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
use std::time::Duration;

use serde_json::Value;
use sha2::Digest as _;

use super::link::Links;
use super::lock::{Locked, own_dir};
use super::{Error, Mapping, Subnet, Subnets, cni, forward, guard, lease, namespace, program};
use crate::spec::json::json;
use crate::sys::owned;

/// The file that says which address was given last, as `host-local` names it, without the number of the subnet.
const LAST: &str = "last_reserved_ip";
/// The families of the tables here.
const V4: &str = "ip";
const V6: &str = "ip6";
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
    /// Timeout of each program.
    pub(super) patience: Duration,
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
    pub(super) fn make_rules(
        &self,
        locked: &mut Locked,
        mappings: &[Mapping],
        wire: &guard::Wire,
    ) -> Result<Option<String>, Error> {
        let needed = shared(self.subnets) + &self.rules(&wire.addresses, mappings);
        let all = needed.clone() + &guard::script(self.table, wire);
        let output = call_nft(locked, &all, self.patience)?;
        if output.status.success() {
            return Ok(None);
        }
        nft(locked, &needed, self.patience)?;
        Ok(Some(format!("{}: {}", guard::PROGRAM, output.reason())))
    }

    /// The rules that lead the ports of the host to the allocation.
    fn rules(&self, addresses: &[IpAddr], mappings: &[Mapping]) -> String {
        let mut script = String::new();
        for to in addresses {
            let mut lines = String::new();
            for Mapping { host, inside, protocol, ip } in mappings.iter().filter(|one| one.ip.is_ipv4() == to.is_ipv4())
            {
                let protocol = if protocol == "udp" { "udp" } else { "tcp" };
                let at = if ip.is_unspecified() {
                    "fib daddr type local".to_owned()
                } else {
                    format!("{} daddr {ip}", family(*to))
                };
                let to = SocketAddr::new(*to, *inside);
                let rule = format!("{at} {protocol} dport {host} dnat to {to}\n");
                lines.push_str(&rule);
            }
            if lines.is_empty() {
                continue;
            }
            let chain = |name: &str, hook: &str| {
                format!("chain {name} {{\ntype nat hook {hook} priority -101; policy accept;\n{lines}}}\n")
            };
            // What comes in, and what processes of the host send.
            let chains = chain("incoming", "prerouting") + &chain("local", "output");
            let (family, table) = (family(*to), self.table);
            let replaced = guard::gone(family, table) + &format!("table {family} {table} {{\n{chains}}}\n");
            script.push_str(&replaced);
        }
        script
    }

    /// Disconnects it: the interfaces, the rules, the address. What does not exist counts as removed. Returns what
    /// [`Member::remove_rules`] does.
    pub(super) fn remove(&self, locked: &mut Locked) -> Result<bool, Error> {
        check()?;
        let here = Links::open().map_err(Error::system("reach the network interfaces for", self.namespace))?;
        let removed = here.remove(&link_of(self.id)).map_err(Error::system("disconnect", self.namespace));
        // Before somebody else has its address.
        let unshared = self.remove_rules(locked)?;
        removed?;
        self.give_back()?;
        Ok(unshared)
    }

    /// Removes its rules, and with those of the last allocation the ones that allocations share, in one transaction. Returns whether
    /// these are gone.
    pub(super) fn remove_rules(&self, locked: &mut Locked) -> Result<bool, Error> {
        if check().is_err() {
            return Ok(false);
        }
        let taken = lease::taken(self.run_dir)?;
        let is_last = taken.iter().all(|(_, path)| lease::is_of(path, self.id));
        let families = || families(self.subnets.v6.is_some());
        let own = families().chain([guard::FAMILY]).map(|family| (family, self.table));
        let shared = families().filter(|_| is_last).map(|family| (family, lease::NAME));
        guard::remove(locked, &own.chain(shared).collect::<Vec<_>>(), self.patience)?;
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

/// The family of the table for this address.
const fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { V4 } else { V6 }
}

fn families(with_ipv6: bool) -> impl Iterator<Item = &'static str> {
    [V4].into_iter().chain(with_ipv6.then_some(V6))
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
fn shared(subnets: Subnets) -> String {
    let (name, v4) = (lease::NAME, subnets.v4);
    let leave = "chain leave {\ntype nat hook postrouting priority 99; policy accept;\n";
    let mut script = format!(
        "{}table {V4} {name} {{\n\
         chain input {{\ntype filter hook input priority -1; policy accept;\n\
         iifname \"{name}\" ip daddr 127.0.0.0/8 ct state != {{ established, related }} drop\n}}\n\
         {leave}\
         ip saddr {v4} ip daddr != 224.0.0.0/4 oifname != \"{name}\" masquerade\n\
         oifname \"{name}\" ct status dnat ip saddr {{ {v4}, 127.0.0.0/8 }} masquerade\n}}\n}}\n",
        guard::gone(V4, name)
    );
    if let Some(v6) = subnets.v6 {
        // The kernel takes no packet for the loopback of IPv6 from another interface.
        let v6 = format!(
            "{}table {V6} {name} {{\n\
             {leave}\
             ip6 saddr {v6} ip6 daddr != ff00::/8 oifname != \"{name}\" masquerade\n\
             oifname \"{name}\" ct status dnat ip6 saddr {v6} masquerade\n}}\n}}\n",
            guard::gone(V6, name)
        );
        script.push_str(&v6);
    }
    script
}

/// Makes them alone.
pub(super) fn share(locked: &mut Locked, subnets: Subnets, patience: Duration) -> Result<(), Error> {
    nft(locked, &shared(subnets), patience)
}

/// Removes them.
pub(super) fn unshare(locked: &mut Locked, with_ipv6: bool, patience: Duration) -> Result<(), Error> {
    check()?;
    let tables: Vec<_> = families(with_ipv6).map(|family| (family, lease::NAME)).collect();
    guard::remove(locked, &tables, patience)
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

/// Checks that the program exists that makes the rules.
pub(super) fn check() -> Result<(), Error> {
    match program::find(guard::PROGRAM) {
        Some(_) => Ok(()),
        None => Err(Error::NoProgram { program: guard::PROGRAM, package: guard::PACKAGE }),
    }
}

/// What `nft` reads a script from.
const FROM_STDIN: [&str; 2] = ["-f", "-"];

fn nft(locked: &mut Locked, script: &str, patience: Duration) -> Result<(), Error> {
    let output = call_nft(locked, script, patience)?;
    if output.status.success() { Ok(()) } else { Err(guard::failed(&FROM_STDIN, output.reason())) }
}

/// The same, without looking at its status.
fn call_nft(locked: &mut Locked, script: &str, patience: Duration) -> Result<program::Output, Error> {
    check()?;
    let path = program::find(guard::PROGRAM).unwrap_or_default();
    guard::call(locked, &path, &FROM_STDIN, script, patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member<'a>(run_dir: &'a Path, id: &'a str) -> Member<'a> {
        let subnets = Subnets::parse("10.0.0.0/29 fd00::/64").unwrap();
        Member { id, namespace: Path::new("/ns"), table: "t", run_dir, subnets, patience: Duration::from_secs(1) }
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
        let v4 = ["10.0.0.2".parse().unwrap()];
        let both = [v4[0], "fd00::2".parse().unwrap()];
        assert_eq!(member.rules(&both, &[]), "");
        assert_eq!(member.rules(&v4, &[mapping("2001:db8::1", "tcp")]), "", "no way from IPv6 to IPv4");
        let all = [
            mapping("192.0.2.1", "tcp"),
            mapping("0.0.0.0", "udp"),
            mapping("2001:db8::1", "tcp"),
            mapping("::", "udp"),
            mapping("192.0.2.1", "tcp dport 1 drop #"),
        ];
        let script = member.rules(&both, &all);
        for line in [
            "delete table ip t",
            "ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.0.0.2:80",
            "fib daddr type local udp dport 8080 dnat to 10.0.0.2:80",
            "delete table ip6 t",
            "ip6 daddr 2001:db8::1 tcp dport 8080 dnat to [fd00::2]:80",
            "fib daddr type local udp dport 8080 dnat to [fd00::2]:80",
        ] {
            assert!(script.lines().any(|found| found == line), "{line}\n{script}");
        }
        assert!(!script.contains("drop"), "{script}");
        let script = member.rules(&both, &[mapping("192.0.2.1", "tcp")]);
        assert!(!script.contains("ip6"), "{script}");
    }

    #[test]
    fn the_link_of_an_allocation_has_a_name_that_the_kernel_takes() {
        let name = link_of("286d75a3-6361-46fc-bc09-bc778daacf13");
        assert!(name.len() == 15 && cni::is_name(&name), "{name}");
        assert_ne!(name, link_of("286d75a3-6361-46fc-bc09-bc778daacf14"));
    }
}
