//! Limits what tasks on the built-in bridge can send, whatever capabilities they have: by rules on the host's end of an
//! allocation's veth pair, which no process inside can change.
//!
//! Accepted are frames that come from the allocation's own MAC and carry its own addresses, as IPv4, IPv6 or sender of ARP, and
//! neighbour advertisements only for its own address. Router advertisements, redirects, multicast listener queries, other
//! protocols, tagged frames and packets for the host's loopback are dropped.
//!
//! The rules are an `nft(8)` table per allocation, named after the data directory and the allocation, and created in one
//! transaction. They are passed as a script and not as JSON: every version of nft reads scripts, and only numbers, addresses and
//! names from the kernel are inserted into it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use sha2::Digest as _;

use super::lock::{Locked, nobodys};
use super::{Error, cni, lease, program};

/// The program that makes the rules, and the package that contains it.
pub(super) const PROGRAM: &str = "nft";
pub(super) const PACKAGE: &str = "nftables";
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
pub(super) fn script(table: &str, wire: &Wire) -> String {
    let mac = wire.mac.map(|byte| format!("{byte:02x}")).join(":");
    let (mut senders, mut v4, mut v6) =
        (Ipv4Addr::UNSPECIFIED.to_string(), String::new(), link_local(wire.mac).to_string());
    let mut targets = format!("{:#034x}", link_local(wire.mac).to_bits());
    for address in &wire.addresses {
        match address {
            IpAddr::V4(ip) => {
                let ip = ip.to_string();
                senders.extend([", ", &ip]);
                v4.extend([if v4.is_empty() { "" } else { ", " }, &ip]);
            }
            IpAddr::V6(ip) => {
                v6.extend([", ", &ip.to_string()]);
                targets.extend([", ", &format!("{:#034x}", ip.to_bits())]);
            }
        }
    }
    let v4 = if v4.is_empty() { String::new() } else { format!("ether type ip ip saddr {{ {v4} }} accept\n") };
    // The target of neighbour discovery is the 128 bits after the first 64 of its header.
    format!(
        "{}table netdev {table} {{\nchain ingress {{\ntype filter hook ingress device \"{}\" priority -500; policy drop;\n\
         ether saddr != {mac} drop\n\
         ether type arp arp htype 1 arp ptype 0x0800 arp hlen 6 arp plen 4 arp saddr ether {mac} arp saddr ip {{ {senders} }} accept\n\
         ether type ip ip daddr 127.0.0.0/8 drop\n\
         {v4}ether type != ip6 drop\n\
         icmpv6 type {{ nd-router-advert, nd-redirect, mld-listener-query }} drop\n\
         icmpv6 type nd-neighbor-advert @th,64,128 != {{ {targets} }} drop\n\
         ip6 saddr {{ {v6} }} accept\n\
         ip6 saddr :: icmpv6 type nd-neighbor-solicit @th,64,128 {{ {targets} }} accept\n\
         ip6 saddr :: icmpv6 type {{ mld-listener-report, mld2-listener-report }} accept\n\
         }}\n}}\n",
        gone(FAMILY, table),
        wire.link,
    )
}

/// The family of the tables here.
pub(super) const FAMILY: &str = "netdev";

/// Deletes a table; succeeds also if it does not exist.
pub(super) fn gone(family: &str, table: &str) -> String {
    format!("add table {family} {table}\ndelete table {family} {table}\n")
}

/// Removes tables, each a family and a name. One that does not exist, or cannot on this kernel, counts as removed; so do all where the
/// program is not installed.
pub(super) fn remove(locked: &mut Locked, tables: &[(&str, &str)], patience: Duration) -> Result<(), Error> {
    let Some(path) = program::find(PROGRAM) else { return Ok(()) };
    let all: String = tables.iter().map(|(family, table)| gone(family, table)).collect();
    if call(locked, &path, &["-f", "-"], &all, patience)?.status.success() {
        return Ok(());
    }
    // A kernel that does not know a family takes no script that names it.
    for (family, table) in tables {
        let output = call(locked, &path, &["-f", "-"], &gone(family, table), patience)?;
        let list = ["list", "table", family, table];
        let is_gone = output.status.success() || {
            let listed = call(locked, &path, &list, "", patience)?;
            // One that was killed has said nothing.
            listed.status.code().is_some_and(|status| status != 0)
        };
        if !is_gone {
            return Err(failed(&["delete", "table", family, table], output.reason()));
        }
    }
    Ok(())
}

/// Why no such rules can be made here; nothing is made.
pub(super) fn lack(patience: Duration) -> Option<(String, &'static str)> {
    let Some(path) = program::find(PROGRAM) else { return Some((format!("no {PROGRAM}"), "install nftables")) };
    let wire = Wire { link: "lo".to_owned(), mac: [2, 0, 0, 0, 0, 0], addresses: vec![Ipv4Addr::LOCALHOST.into()] };
    let tried = nobodys().map_err(Error::system("make", "a file in memory"));
    let script = script("agentbin-doctor", &wire);
    let tried = tried.and_then(|mut locked| call(&mut locked, &path, &["-c", "-f", "-"], &script, patience));
    let reason = match tried {
        Ok(output) if output.status.success() => return None,
        Ok(output) => output.reason(),
        Err(error) => error.to_string(),
    };
    Some((reason, "a kernel with CONFIG_NF_TABLES_NETDEV and CONFIG_NETFILTER_INGRESS"))
}

pub(super) fn call(
    locked: &mut Locked,
    path: &Path,
    words: &[&str],
    input: &str,
    patience: Duration,
) -> Result<program::Output, Error> {
    let all: Vec<&str> = [PROGRAM].into_iter().chain(words.iter().copied()).collect();
    program::run(locked, path, &all, &[], input.as_bytes(), patience).map_err(|e| failed(words, e.to_string()))
}

pub(super) fn failed(words: &[&str], reason: String) -> Error {
    Error::Failed { program: PROGRAM.to_owned(), of: format!(" {}", words.join(" ")), reason }
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
        let ips = json!([{ "interface": 2, "address": "10.126.64.2/20" }, { "interface": 2, "address": "fd00::2/64" }]);
        let script = script("t", &Wire::of(&result(&ips)).unwrap());
        for line in [
            "add table netdev t",
            "delete table netdev t",
            "type filter hook ingress device \"veth0123abcd\" priority -500; policy drop;",
            "ether saddr != 0a:58:0a:7e:40:02 drop",
            "ether type arp arp htype 1 arp ptype 0x0800 arp hlen 6 arp plen 4 arp saddr ether 0a:58:0a:7e:40:02 \
             arp saddr ip { 0.0.0.0, 10.126.64.2 } accept",
            "ether type ip ip saddr { 10.126.64.2 } accept",
            "ip6 saddr { fe80::858:aff:fe7e:4002, fd00::2 } accept",
            "icmpv6 type nd-neighbor-advert @th,64,128 != { 0xfe8000000000000008580afffe7e4002, \
             0xfd000000000000000000000000000002 } drop",
        ] {
            assert!(script.lines().any(|found| found == line), "{line}\n{script}");
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
