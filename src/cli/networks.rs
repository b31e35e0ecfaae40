//! Networks of the host, which a job file names and only the operator knows, and its range of dynamic ports.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use anyhow::{Context as _, bail};

use crate::alloc::{DYNAMIC_PORTS, HostNetworks};
use crate::jobspec::{Diagnostic, Parsed};
use crate::sys::interfaces;

/// A network of the command line: `NAME=ADDRESS`, where the address may be the name of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    name: String,
    place: String,
}

/// Reads `NAME=ADDRESS` or `NAME=INTERFACE`.
pub(super) fn given(text: &str) -> Result<Given, String> {
    match text.split_once('=') {
        Some((name, place)) if !name.is_empty() && !place.is_empty() => {
            Ok(Given { name: name.to_owned(), place: place.to_owned() })
        }
        _ => Err("write it as NAME=ADDRESS or NAME=INTERFACE".to_owned()),
    }
}

/// Reads `MIN-MAX`.
pub(super) fn range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let ends = text.split_once('-').and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    match ends {
        Some((min, max)) if 0 < min && min <= max => Ok(min..=max),
        _ => Err("write it as MIN-MAX, two port numbers from 1 to 65535".to_owned()),
    }
}

/// The range where none is given.
pub(super) fn default_range() -> String {
    format!("{}-{}", DYNAMIC_PORTS.start(), DYNAMIC_PORTS.end())
}

/// The networks that ports can be on here: the interfaces by their names, and those of the command line. Where the interfaces
/// cannot be listed, there are none.
pub(super) fn networks(given: &[Given]) -> anyhow::Result<HostNetworks> {
    let (mut interfaces, unlisted) = match interfaces::addresses() {
        Ok(interfaces) => (interfaces, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    // The first one that others can use; of IPv6 every interface has one that they cannot.
    interfaces.retain(|(_, ip)| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()));
    let of = |name: &str| interfaces.iter().find(|(interface, _)| interface == name).map(|(_, ip)| *ip);
    let mut networks = Vec::new();
    for Given { name, place } in given {
        let Some(ip) = place.parse().ok().or_else(|| of(place)) else {
            if let Some(error) = unlisted {
                return Err(error).with_context(|| {
                    format!("--host-network {name}={place}: cannot list the network interfaces; give an address")
                });
            }
            bail!("--host-network {name}={place}: {place} is neither an address nor an interface that has one");
        };
        networks.push((name.clone(), ip));
    }
    let named = interfaces.iter().rev().cloned();
    Ok(HostNetworks::new(named.chain(networks)))
}

/// What a job file says of networks that there are not here.
pub(super) fn check(parsed: &mut Parsed, networks: &HostNetworks) {
    let groups = parsed.job.groups.iter().filter_map(|group| group.network.as_ref());
    for port in groups.flat_map(|network| &network.ports) {
        let Some(network) = &port.host_network else { continue };
        // What refers to the node is found out when it runs; so is the node's own address.
        let own = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if let Err(unknown) = networks.address(&network.name, own)
            && !network.name.contains("${")
        {
            let message = format!("host_network in port \"{}\": {unknown}", port.label);
            parsed.refusals.push(Diagnostic { pos: network.pos.clone(), message });
        }
    }
    parsed.refusals.sort_by_key(|refusal| (refusal.pos.line, refusal.pos.column));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_interfaces_loopback_and_what_was_given() {
        let own: IpAddr = "192.0.2.7".parse().unwrap();
        let words = ["lan=192.0.2.9", "private=lo", "default=192.0.2.8"].map(|text| given(text).unwrap());
        let networks = networks(&words).unwrap();
        for (name, ip) in [
            ("lan", "192.0.2.9"),
            ("private", "127.0.0.1"),
            ("lo", "127.0.0.1"),
            ("loopback", "127.0.0.1"),
            ("default", "192.0.2.8"),
        ] {
            assert_eq!(networks.address(name, own).unwrap(), ip.parse::<IpAddr>().unwrap(), "{name}");
        }
        assert_eq!(super::networks(&[]).unwrap().address("default", own).unwrap(), own);
        let unknown = networks.address("tailscale", own).unwrap_err().to_string();
        assert!(unknown.contains("--host-network tailscale=ADDRESS"), "{unknown}");
        let wrong = super::networks(&[given("lan=nowhere0").unwrap()]).unwrap_err().to_string();
        assert!(wrong.contains("--host-network lan=nowhere0"), "{wrong}");
        for wrong in ["lan", "=192.0.2.9", "lan="] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_have_two_ends() {
        assert_eq!(range("20000-20000").unwrap(), 20_000..=20_000);
        for wrong in ["20000", "0-9", "9-8", "1-65536", "a-b", ""] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(range(&default_range()).unwrap(), DYNAMIC_PORTS);
    }
}
