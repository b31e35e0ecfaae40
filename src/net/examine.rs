//! What the built-in network finds on this machine, for `agentbin doctor`. Never changes anything there: what has to be tried is tried
//! in a network namespace that nobody else sees.

use std::fs::File;
use std::io;

use super::bridge;
use super::lease::{self, By};
use super::link::Links;
use super::lock::nobodys;
use super::rules::{self, Found};
use super::{Error, Networks, PATIENCE, Subnet, Subnets, conntrack, forward, namespace};

/// A name that nothing else has in the namespace.
const LINK: &str = "agentbin-probe";

/// What was found.
#[derive(Debug)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How it is.
    pub value: String,
    /// What that means for allocations, and the fix; `None` if it is as it should be.
    pub problem: Option<(&'static str, String)>,
}

impl Networks {
    /// Looks at what the network of mode `bridge` needs besides the programs that [`Networks::plan`] checks.
    #[must_use]
    pub fn examine(&self) -> Vec<Finding> {
        let by = if bridge::has_plugins(&self.plugin_dirs) { By::Plugins } else { By::Builtin };
        let mut found = vec![self.connects(by), kernel(by, self.subnets.v4), remembers()];
        let rules = nobodys().and_then(|mut locked| {
            let chains = rules::chains()?;
            Ok([("forwarded packets", "ip"), ("forwarded packets (IPv6)", "ip6")].map(|(what, family)| {
                let iptables = bridge::forward_policy(&mut locked, family == "ip6", PATIENCE);
                forwarded(what, family, &chains, iptables)
            }))
        });
        match rules {
            Ok(rules) => found.extend(rules),
            Err(error) => tracing::debug!(%error, "cannot look at the rules for forwarded packets"),
        }
        let route = match forward::check() {
            Err(Error::WouldLoseRoute { interface }) => Some(interface),
            _ => None,
        };
        found.extend(route.map(|interface| Finding {
            what: "IPv6 on the bridge",
            value: format!("a router has announced the default route at {interface}, which forwarding would remove"),
            problem: Some((
                "allocations cannot have the IPv6 addresses of --bridge-network-subnet-ipv6",
                format!("sysctl -w net.ipv6.conf.{interface}.accept_ra=2"),
            )),
        }));
        found
    }

    /// Whether the CNI plugins connect allocations, or this program, and why.
    fn connects(&self, by: By) -> Finding {
        let dirs: Vec<_> = self.plugin_dirs.iter().map(|dir| dir.to_string_lossy()).collect();
        let dirs = dirs.join(":");
        let value = match by {
            By::Plugins => format!("by CNI plugins and iptables: bridge, host-local and portmap are in {dirs}"),
            By::Builtin => format!("by agentbin itself: not all of bridge, host-local and portmap are in {dirs}"),
        };
        Finding { what: "network mode bridge", value, problem: None }
    }
}

/// Makes what a bridge needs of the kernel.
fn kernel(by: By, subnet: Subnet) -> Finding {
    let tried = namespace::apart(|| {
        let option = |fix: &'static str| move |e: io::Error| (e.to_string(), fix);
        let links = Links::open().map_err(option("a kernel with CONFIG_NET"))?;
        links.add_bridge(lease::NAME, [2, 0, 0, 0, 0, 1]).map_err(option("the module bridge (CONFIG_BRIDGE)"))?;
        let veth = File::open("/proc/thread-self/ns/net")
            .and_then(|own| links.add_pair(LINK, "eth0", own, [2, 0, 0, 0, 0, 2]));
        veth.map_err(option("the module veth (CONFIG_VETH)"))?;
        let fix = match by {
            By::Plugins => {
                "a kernel with CONFIG_IP_NF_NAT, CONFIG_IP_NF_TARGET_MASQUERADE and CONFIG_NETFILTER_XT_MATCH_CONNTRACK, or CONFIG_NFT_COMPAT"
            }
            By::Builtin => "a kernel with CONFIG_NF_TABLES, CONFIG_NFT_NAT, CONFIG_NFT_MASQ and CONFIG_NFT_CT",
        };
        let locked = nobodys().map_err(Error::system("make", "a file in memory"));
        let rules = locked
            .and_then(|mut locked| bridge::try_rules(&mut locked, by, Subnets { v4: subnet, v6: None }, PATIENCE));
        rules.map_err(|error| (error.with_cause(), fix))
    });
    let (value, problem) = match tried {
        Ok(Ok(())) => ("yes".to_owned(), None),
        Ok(Err((why, fix))) => (why, Some(fix)),
        Err(error) => (error.to_string(), Some("a kernel with CONFIG_NET_NS")),
    };
    let cost = "groups with network mode bridge cannot be started";
    Finding { what: "bridge, veth and rules", value, problem: problem.map(|fix| (cost, fix.to_owned())) }
}

/// Whether the kernel can be told to forget connections.
fn remembers() -> Finding {
    let value = conntrack::lack().map_or_else(|| "yes".to_owned(), |error| error.to_string());
    let cost = "clients that keep sending datagrams to a mapped port reach a removed allocation";
    let problem = (value != "yes").then(|| (cost, "the module nf_conntrack_netlink (CONFIG_NF_CT_NETLINK)".to_owned()));
    Finding { what: "conntrack entries can be deleted", value, problem }
}

/// Who drops forwarded packets of a family: rules of iptables, before which there is one of ours, or a table of somebody's, which no
/// other table can overrule.
fn forwarded(what: &'static str, family: &str, chains: &[Found], iptables: Option<String>) -> Finding {
    let drops = chains.iter().find(|chain| {
        let of = chain.family_name();
        // The program iptables has these two tables.
        let is_iptables = chain.table == "filter" && of != "inet";
        let ends_in_reject = chain.table == "firewalld";
        (of == family || of == "inet") && !is_iptables && chain.is_for_forwarded && (chain.drops || ends_in_reject)
    });
    if let Some(chain) = drops {
        let Found { table, name, .. } = chain;
        let of = chain.family_name();
        let fix = if table == "firewalld" {
            "firewall-cmd --permanent --zone=trusted --add-interface=agentbin; firewall-cmd --reload".to_owned()
        } else {
            format!("nft insert rule {of} {table} {name} iifname agentbin accept, and the same with oifname")
        };
        let value = format!("dropped by chain {name} of nft's table {of} {table}, unless it accepts them");
        return Finding { what, value, problem: Some(("allocations on the bridge may have no connectivity", fix)) };
    }
    let value = match iptables {
        Some(policy) if policy != "ACCEPT" => {
            format!("iptables has {policy}; the chain AGENTBIN-FORWARD accepts the bridge's")
        }
        _ => "accepted".to_owned(),
    };
    Finding { what, value, problem: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_drops_is_named_with_the_fix_and_others_are_not() {
        let chain = |family: i32, table: &str, is_for_forwarded: bool, drops: bool| Found {
            family: family as u8,
            table: table.to_owned(),
            name: "c".to_owned(),
            is_for_forwarded,
            drops,
        };
        let of = |chains: &[Found]| forwarded("forwarded packets", "ip", chains, Some("DROP".to_owned()));
        for harmless in [
            chain(libc::NFPROTO_IPV4, "filter", true, true),
            chain(libc::NFPROTO_INET, "own", true, false),
            chain(libc::NFPROTO_INET, "own", false, true),
            chain(libc::NFPROTO_IPV6, "own", true, true),
        ] {
            let found = of(&[harmless]);
            assert!(found.problem.is_none() && found.value.starts_with("iptables has DROP"), "{found:?}");
        }
        for (table, drops, fix) in [("own", true, "nft insert rule inet own c"), ("firewalld", false, "firewall-cmd")] {
            let found = of(&[chain(libc::NFPROTO_INET, table, true, drops)]);
            assert!(found.problem.as_ref().is_some_and(|(_, found)| found.starts_with(fix)), "{found:?}");
        }
        assert_eq!(forwarded("forwarded packets", "ip", &[], None).value, "accepted");
    }
}
