//! The built-in network where the CNI plugins for it are not installed: the same pair of interfaces, addresses and mapped ports, by
//! netlink and `nft(8)`.
//!
//! Addresses are taken from the directory of the plugin `host-local`, in its format, so that a bridge may have allocations that were
//! connected either way. All names are derived from the allocation's id: what was only partially made is removed without knowing
//! how far it got.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use sha2::Digest as _;

use super::link::Links;
use super::lock::{Locked, own_dir};
use super::{Error, Mapping, Subnet, bridge, cni, guard, namespace, program};
use crate::sys::owned;

/// The file that says which address was given last, as `host-local` names it.
const LAST: &str = "last_reserved_ip.0";
/// The family of the tables here.
const FAMILY: &str = "ip";
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
    pub(super) subnet: Subnet,
    /// Timeout of each program.
    pub(super) patience: Duration,
}

impl Member<'_> {
    /// Connects it, and returns the result that CNI plugins would give. What a failed call has made stays until
    /// [`Member::remove`].
    pub(super) fn add(&self, locked: &mut Locked, mappings: &[Mapping]) -> Result<Value, Error> {
        let here = Links::open().map_err(Error::system("reach the network interfaces for", self.namespace))?;
        let address = self.lease()?;
        let (prefix, gateway) = (self.subnet.prefix, self.subnet.gateway());
        let (link, mac) = (link_of(self.id), mac_of(address));
        let cannot = Error::system("connect the network namespace", self.namespace);
        let connected = namespace::open(self.namespace).and_then(|inside| {
            here.add_pair(&link, cni::INTERFACE, &inside, mac)?;
            here.join(&link, bridge::NAME)?;
            set_up_inside(&inside, address, prefix, gateway)
        });
        connected.map_err(cannot)?;
        if let Some(rules) = rules(self.table, address, mappings) {
            nft(locked, &rules, self.patience)?;
        }
        Ok(json!({
            "interfaces": [
                { "name": bridge::NAME },
                { "name": link },
                { "name": cni::INTERFACE, "mac": mac.map(|byte| format!("{byte:02x}")).join(":"), "sandbox": self.namespace },
            ],
            "ips": [{ "version": "4", "interface": 2, "address": format!("{address}/{prefix}"), "gateway": gateway }],
        }))
    }

    /// Disconnects it: the rules, the interfaces, the address. What does not exist counts as removed.
    pub(super) fn remove(&self, locked: &mut Locked) -> Result<(), Error> {
        let rules = nft(locked, &guard::gone(FAMILY, self.table), self.patience);
        let here = Links::open().map_err(Error::system("reach the network interfaces for", self.namespace))?;
        here.remove(&link_of(self.id)).map_err(Error::system("disconnect", self.namespace))?;
        rules?;
        self.give_back()
    }

    /// Takes the next free address after the one that was given last.
    fn lease(&self) -> Result<Ipv4Addr, Error> {
        self.give_back()?;
        let dir = bridge::leases(self.run_dir);
        own_dir(&dir).map_err(Error::system("make the directory", &dir))?;
        let last = dir.join(LAST);
        let given = owned::read(&last, LONGEST_LAST).ok();
        let given = given.and_then(|text| String::from_utf8_lossy(&text).trim().parse().ok());
        for address in self.subnet.after(given) {
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
        Err(Error::Full { most: self.subnet.room(), subnet: self.subnet })
    }

    /// Removes the files of its addresses.
    fn give_back(&self) -> Result<(), Error> {
        for address in bridge::leased(self.run_dir, self.id)? {
            let path = bridge::leases(self.run_dir).join(address.to_string());
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
pub(super) fn mac_of(address: Ipv4Addr) -> [u8; 6] {
    let [a, b, c, d] = address.octets();
    [0x0a, 0x58, a, b, c, d]
}

/// Gives the interface inside its address, and brings it up.
fn set_up_inside(inside: &OwnedFd, address: Ipv4Addr, prefix: u8, gateway: Ipv4Addr) -> io::Result<()> {
    namespace::enter(inside, move || {
        let links = Links::open()?;
        links.add_address(cni::INTERFACE, address, prefix)?;
        links.up(cni::INTERFACE)?;
        links.add_default_route(gateway)
    })
}

/// The rules that lead the ports of the host to the allocation; `None` if there are no ports.
fn rules(table: &str, address: Ipv4Addr, mappings: &[Mapping]) -> Option<String> {
    let mut lines = String::new();
    for Mapping { host, inside, protocol, ip } in mappings {
        let IpAddr::V4(ip) = ip else { continue };
        let protocol = if protocol == "udp" { "udp" } else { "tcp" };
        let to = if ip.is_unspecified() { "fib daddr type local".to_owned() } else { format!("ip daddr {ip}") };
        let rule = format!("{to} {protocol} dport {host} dnat to {address}:{inside}\n");
        lines.push_str(&rule);
    }
    let chain = |name: &str, hook: &str| {
        format!("chain {name} {{\ntype nat hook {hook} priority -101; policy accept;\n{lines}}}\n")
    };
    // What comes in, and what processes of the host send.
    let chains = chain("incoming", "prerouting") + &chain("local", "output");
    (!lines.is_empty()).then(|| format!("{}table ip {table} {{\n{chains}}}\n", guard::gone(FAMILY, table)))
}

/// The rules that all allocations on the bridge share: packets leave with the host's address, and do not reach the host's loopback.
/// What comes back to the bridge through a mapped port comes from the host, as the answer must pass it too.
pub(super) fn share(locked: &mut Locked, subnet: Subnet, patience: Duration) -> Result<(), Error> {
    let name = bridge::NAME;
    let script = format!(
        "{}table ip {name} {{\n\
         chain input {{\ntype filter hook input priority -1; policy accept;\n\
         iifname \"{name}\" ip daddr 127.0.0.0/8 ct state != {{ established, related }} drop\n}}\n\
         chain leave {{\ntype nat hook postrouting priority 99; policy accept;\n\
         ip saddr {subnet} ip daddr != 224.0.0.0/4 oifname != \"{name}\" masquerade\n\
         oifname \"{name}\" ct status dnat ip saddr {{ {subnet}, 127.0.0.0/8 }} masquerade\n}}\n}}\n",
        guard::gone(FAMILY, name)
    );
    nft(locked, &script, patience)
}

/// Removes them.
pub(super) fn unshare(locked: &mut Locked, patience: Duration) -> Result<(), Error> {
    nft(locked, &guard::gone(FAMILY, bridge::NAME), patience)
}

/// Makes the bridge, with the gateway's address.
pub(super) fn make_bridge(subnet: Subnet) -> Result<(), Error> {
    let gateway = subnet.gateway();
    let made = Links::open().and_then(|links| {
        links.add_bridge(bridge::NAME, mac_of(gateway))?;
        links.add_address(bridge::NAME, gateway, subnet.prefix)?;
        links.up(bridge::NAME)
    });
    made.map_err(Error::system("make the bridge", bridge::NAME))?;
    // A port that is mapped at the host's loopback leads out of it, to the bridge; `share` drops what would come back that way.
    let settings = [format!("conf/{}/route_localnet", bridge::NAME), "ip_forward".to_owned()];
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

fn nft(locked: &mut Locked, script: &str, patience: Duration) -> Result<(), Error> {
    check()?;
    let path = program::find(guard::PROGRAM).unwrap_or_default();
    let output = guard::call(locked, &path, &["-f", "-"], script, patience)?;
    if output.status.success() { Ok(()) } else { Err(guard::failed(&["-f", "-"], output.reason())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member<'a>(run_dir: &'a Path, id: &'a str) -> Member<'a> {
        let subnet = "10.0.0.0/29".parse().unwrap();
        Member { id, namespace: Path::new("/ns"), table: "t", run_dir, subnet, patience: Duration::from_secs(1) }
    }

    #[test]
    fn addresses_are_given_in_turn_and_given_back() {
        let dir = tempfile::tempdir().unwrap();
        let of = |id| member(dir.path(), id).lease().map(|ip| ip.octets()[3]);
        let ids = ["a", "b", "c", "d", "e"];
        assert_eq!(ids.map(|id| of(id).unwrap()), [2, 3, 4, 5, 6]);
        assert!(matches!(of("f"), Err(Error::Full { most: 5, .. })));
        member(dir.path(), "c").give_back().unwrap();
        assert_eq!(of("f").unwrap(), 4, "the only one that is free");
        member(dir.path(), "a").give_back().unwrap();
        member(dir.path(), "b").give_back().unwrap();
        assert_eq!(of("g").unwrap(), 2, "the next after the last one, from the beginning");
        assert_eq!(of("g").unwrap(), 3, "one allocation has one; its next one is the least recently used");
        let text = fs::read_to_string(bridge::leases(dir.path()).join("10.0.0.3")).unwrap();
        assert_eq!(text, "g\r\neth0", "as host-local writes it");
        // Killed between making the file and writing it.
        fs::write(bridge::leases(dir.path()).join("10.0.0.2"), "").unwrap();
        assert_eq!(of("h").unwrap(), 2);
    }

    #[test]
    fn ports_are_led_to_the_allocation() {
        let mapping = |ip: &str, protocol: &str| Mapping {
            host: 8080,
            inside: 80,
            protocol: protocol.to_owned(),
            ip: ip.parse().unwrap(),
        };
        let to = Ipv4Addr::new(10, 0, 0, 2);
        assert_eq!(rules("t", to, &[]), None);
        assert_eq!(rules("t", to, &[mapping("fd00::1", "tcp")]), None, "no way from IPv6 to IPv4");
        let all = [mapping("192.0.2.1", "tcp"), mapping("0.0.0.0", "udp"), mapping("192.0.2.1", "tcp dport 1 drop #")];
        let script = rules("t", to, &all).unwrap();
        for line in [
            "delete table ip t",
            "ip daddr 192.0.2.1 tcp dport 8080 dnat to 10.0.0.2:80",
            "fib daddr type local udp dport 8080 dnat to 10.0.0.2:80",
        ] {
            assert!(script.lines().any(|found| found == line), "{line}\n{script}");
        }
        assert!(!script.contains("drop"), "{script}");
    }

    #[test]
    fn the_link_of_an_allocation_has_a_name_that_the_kernel_takes() {
        let name = link_of("286d75a3-6361-46fc-bc09-bc778daacf13");
        assert!(name.len() == 15 && cni::is_name(&name), "{name}");
        assert_ne!(name, link_of("286d75a3-6361-46fc-bc09-bc778daacf14"));
    }
}
