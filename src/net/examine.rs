//! What the built-in network finds on this machine, for `agentbin doctor`. Never changes anything there: what has to be tried is tried
//! in a network namespace that nobody else sees.

use std::fs::File;
use std::io;

use serde_json::Value;

use super::bridge;
use super::lease::{self, By};
use super::link::Links;
use super::lock::{Locked, nobodys};
use super::{Error, Networks, PATIENCE, Subnet, Subnets, conntrack, forward, guard, namespace, program};

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
        let rules = nobodys().map_err(Error::system("make", "a file in memory")).and_then(|mut locked| {
            let chains = chains(&mut locked)?;
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
            By::Builtin => format!("by agentbin and nft: not all of bridge, host-local and portmap are in {dirs}"),
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
        rules.map_err(|error| (reason(&error), fix))
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

fn reason(error: &Error) -> String {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}

/// All chains of nft, in its JSON.
fn chains(locked: &mut Locked) -> Result<Vec<Value>, Error> {
    let Some(path) = program::find(guard::PROGRAM) else { return Ok(Vec::new()) };
    let words = ["-j", "list", "chains"];
    let output = guard::call(locked, &path, &words, "", PATIENCE)?;
    if !output.status.success() {
        return Err(guard::failed(&words, output.reason()));
    }
    let all: Value = serde_json::from_slice(&output.stdout).map_err(|e| guard::failed(&words, e.to_string()))?;
    let all = all.get("nftables").and_then(Value::as_array).cloned().unwrap_or_default();
    Ok(all.into_iter().filter_map(|one| one.get("chain").cloned()).collect())
}

/// Who drops forwarded packets of a family: rules of iptables, before which there is one of ours, or a table of somebody's, which no
/// other table can overrule.
fn forwarded(what: &'static str, family: &str, chains: &[Value], iptables: Option<String>) -> Finding {
    let text = |chain: &Value, key: &str| chain.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let drops = chains.iter().find(|chain| {
        let of = text(chain, "family");
        let (table, is_meant) = (text(chain, "table"), of == family || of == "inet");
        // The program iptables has these two tables.
        let is_iptables = table == "filter" && of != "inet";
        let ends_in_reject = table == "firewalld";
        is_meant
            && !is_iptables
            && text(chain, "hook") == "forward"
            && (text(chain, "policy") == "drop" || ends_in_reject)
    });
    if let Some(chain) = drops {
        let [of, table, name] = ["family", "table", "name"].map(|key| text(chain, key));
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
    use serde_json::json;

    use super::*;

    #[test]
    fn a_chain_that_drops_is_named_with_the_fix_and_others_are_not() {
        let chain = |family: &str, table: &str, hook: &str, policy: &str| json!({ "family": family, "table": table, "name": "c", "hook": hook, "policy": policy });
        let of = |chains: &[Value]| forwarded("forwarded packets", "ip", chains, Some("DROP".to_owned()));
        for harmless in [
            chain("ip", "filter", "forward", "drop"),
            chain("inet", "own", "forward", "accept"),
            chain("inet", "own", "input", "drop"),
            chain("ip6", "own", "forward", "drop"),
            json!({ "family": "inet", "table": "own", "name": "no base chain" }),
        ] {
            let found = of(&[harmless]);
            assert!(found.problem.is_none() && found.value.starts_with("iptables has DROP"), "{found:?}");
        }
        for (table, policy, fix) in
            [("own", "drop", "nft insert rule inet own c"), ("firewalld", "accept", "firewall-cmd")]
        {
            let found = of(&[chain("inet", table, "forward", policy)]);
            assert!(found.problem.as_ref().is_some_and(|(_, found)| found.starts_with(fix)), "{found:?}");
        }
        assert_eq!(forwarded("forwarded packets", "ip", &[], None).value, "accepted");
    }
}
