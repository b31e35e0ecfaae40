//! Host networks, which a job file names and only the operator can configure, and the range of dynamic ports.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::RunArgs;
use super::given_networks::Given;
use super::shown::Texts;
use crate::alloc::{HostNetworks, chain};
use crate::jobspec::{Diagnostic, Parsed};
use crate::net::{Kind, Networks, Subnets, Wish};
use crate::spec::{Job, NetworkMode, Order as _};
use crate::sys::interfaces;

/// The settings for networks of groups: the command line overrides the usual ones.
pub(super) fn settings(usual: Networks, args: &RunArgs) -> Networks {
    let subnets = Subnets {
        v4: args.bridge_network_subnet.unwrap_or(usual.subnets.v4),
        v6: args.bridge_network_subnet_ipv6.or(usual.subnets.v6),
    };
    Networks {
        config_dir: args.cni_config_dir.clone().unwrap_or(usual.config_dir),
        plugin_dirs: args.cni_path.clone().map_or(usual.plugin_dirs, Into::into),
        subnets,
        ..usual
    }
}

/// Checks whether the networks of all groups can be made; nothing is made.
///
/// # Errors
/// All that cannot, with their positions in the job file.
pub(super) fn plan(job: &Job, networks: &Networks, texts: &Texts) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for network in job.groups.iter().filter_map(|group| group.network.as_ref()) {
        let kind = match &network.mode {
            NetworkMode::Host => continue,
            NetworkMode::None => Kind::None,
            NetworkMode::Bridge => Kind::Bridge,
            NetworkMode::Cni(name) => Kind::Cni(name),
        };
        let wish = Wish { id: "", kind, driver: None, mappings: Vec::new(), args: Vec::new(), record: PathBuf::new() };
        if let Err(error) = networks.plan(wish) {
            problems.push(format!("{}: network mode {:?}: {}", network.pos, network.mode.to_string(), chain(&error)));
        }
    }
    if !problems.is_empty() {
        bail!("{}", texts.explain_lines(&problems.join("\n")));
    }
    Ok(())
}

/// The host networks that ports can be on here: the interfaces by name, and those of the command line. If the interfaces cannot
/// be listed, they are left out.
pub(super) fn networks(given: &[Given]) -> anyhow::Result<HostNetworks> {
    let (mut interfaces, unlisted) = match interfaces::addresses() {
        Ok(interfaces) => (interfaces, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    // Link-local IPv6 addresses, which every interface has, are skipped: other machines cannot use them.
    interfaces.retain(|(_, ip)| !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local()));
    let mut networks = Vec::new();
    for one in given {
        let Given { name, place, within } = one;
        let Some(ip) = place.parse().ok().filter(|_| within.is_none()).or_else(|| one.among(&interfaces)) else {
            if let Some((first, length)) = within {
                bail!("host_network {name:?}: no interface {place} has an address in {first}/{length}");
            }
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
    let configured = given.iter().map(|one| one.name.clone()).collect();
    Ok(HostNetworks::new(named.chain(networks)).with_configured(configured))
}

/// Refuses host networks of a job file that do not exist here.
pub(super) fn check(parsed: &mut Parsed, networks: &HostNetworks) {
    let groups = parsed.job.groups.iter().filter_map(|group| group.network.as_ref());
    for port in groups.flat_map(|network| &network.ports) {
        let Some(network) = &port.host_network else { continue };
        // References to the node are checked when the job runs; so is the node's own address.
        let own = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
        if let Err(unknown) = networks.address(&network.name, own)
            && !network.name.contains("${")
        {
            let message = format!("host_network in port \"{}\": {unknown}", port.label);
            parsed.refusals.push(Diagnostic { pos: network.pos.clone(), message });
        }
    }
    parsed.refusals.order_by_key(|refusal| (refusal.pos.line, refusal.pos.column));
}

#[cfg(test)]
mod tests {
    use super::super::given_networks::given;
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
        let pool = crate::alloc::PortPool::default().with(networks.clone(), 1..=2);
        assert_eq!(pool.configured(), ["lan", "private", "default"]);
        let unknown = networks.address("tailscale", own).unwrap_err().to_string();
        assert!(unknown.contains("--host-network tailscale=ADDRESS"), "{unknown}");
        let wrong = super::networks(&[given("lan=nowhere0").unwrap()]).unwrap_err().to_string();
        assert!(wrong.contains("--host-network lan=nowhere0"), "{wrong}");
        for wrong in ["lan", "=192.0.2.9", "lan="] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_configured_network_is_an_interface_or_an_address_that_one_has() {
        let of = |interface: Option<&str>, cidr: Option<&str>| {
            Given::configured("n", interface.map(str::to_owned), cidr.map(str::to_owned))
        };
        let interfaces: Vec<(String, IpAddr)> = [("a", "192.0.2.7"), ("b", "198.51.100.9"), ("b", "2001:db8::9")]
            .map(|(name, ip)| (name.to_owned(), ip.parse().unwrap()))
            .to_vec();
        for (interface, cidr, expected) in [
            (Some("b"), None, Some("198.51.100.9")),
            (None, Some("198.51.100.0/24"), Some("198.51.100.9")),
            (None, Some("2001:db8::/32"), Some("2001:db8::9")),
            (Some("b"), Some("::/0"), Some("2001:db8::9")),
            (None, Some("0.0.0.0/0"), Some("192.0.2.7")),
            (None, Some("192.0.2.7/32"), Some("192.0.2.7")),
            (Some("a"), Some("198.51.100.0/24"), None),
        ] {
            let found = of(interface, cidr).unwrap().among(&interfaces);
            assert_eq!(found, expected.map(|ip| ip.parse().unwrap()), "{interface:?} {cidr:?}");
        }
        for (interface, cidr) in [(None, None), (None, Some("10.0.0.0")), (None, Some("10.0.0.0/33"))] {
            assert!(of(interface, cidr).is_err(), "{cidr:?}");
        }
        let nowhere = of(None, Some("203.0.113.0/24")).unwrap();
        assert!(networks(&[nowhere]).unwrap_err().to_string().contains("has an address in 203.0.113.0/24"));
    }
}
