//! `agentbin network status`: the networks of allocations on this machine, of all data directories.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value as Json;

use super::output::indented;
use super::runs::table;
use super::{NetworkStatusArgs, print};
use crate::alloc::{chain, machine};
use crate::net::{self, Kind, MOST_ON_BRIDGE, Noted, Wish};
use crate::spec::escaped_lines;
use crate::spec::json::json;

pub(super) fn status(args: &NetworkStatusArgs) -> anyhow::Result<i32> {
    let networks = machine::networks(&machine::data_dir(None)?);
    let noted = net::noted(&networks.run_dir);
    let noted = noted.with_context(|| format!("cannot look for networks in {}", networks.run_dir.display()))?;
    let (id, record) = ("", PathBuf::new());
    let wish = Wish { id, kind: Kind::Bridge, driver: None, mappings: Vec::new(), args: Vec::new(), record };
    let lack = networks.plan(wish).err().map(|error| chain(&error));
    let used = noted.iter().filter(|one| one.is_on_bridge()).count();
    let text = if args.json {
        let all = noted.iter().map(to_json).collect::<std::io::Result<Vec<_>>>();
        let bridge = json!({ "lack": lack, "allocations": used, "most": MOST_ON_BRIDGE });
        indented(&json!({ "bridge": bridge, "networks": all.context("cannot determine whether they are in use")? }))
            + "\n"
    } else {
        let can = lack.map_or("ready".to_owned(), |lack| format!("not usable: {lack}; see agentbin doctor"));
        let head = if rustix::process::geteuid().is_root() {
            format!("bridge: {can}; {used} of {MOST_ON_BRIDGE} allocations\n\n")
        } else {
            format!("bridge: {can}; without root each allocation has a network of its own, connected by pasta\n\n")
        };
        let mut rows = vec![["ALLOCATION", "NETWORK", "ADDRESS", "PORTS", "STATE"].map(str::to_owned).to_vec()];
        for one in &noted {
            let v6 = one.address_ipv6().map(IpAddr::V6).filter(|ip| one.address() != Some(*ip));
            let addresses: Vec<String> = one.address().into_iter().chain(v6).map(|ip| ip.to_string()).collect();
            let address = addresses.join(",");
            let ports = one.mappings().iter().filter(|port| port.protocol == "tcp");
            let ports: Vec<String> = ports.map(|port| format!("{}->{}", port.host, port.inside)).collect();
            let state = state(one).context("cannot determine whether they are in use")?;
            rows.push([one.id(), one.name(), &address, &ports.join(","), state].map(str::to_owned).to_vec());
        }
        escaped_lines(&(head + &table(&rows))).into_owned()
    };
    print(text.as_bytes())
}

/// Whether a network is in use, or is removed by the next clean-up.
fn state(noted: &Noted) -> std::io::Result<&'static str> {
    Ok(if noted.is_abandoned()? { "abandoned" } else { "in use" })
}

fn to_json(noted: &Noted) -> std::io::Result<Json> {
    let port = |port: &net::Mapping| json!({ "ip": port.ip, "host": port.host, "inside": port.inside, "protocol": port.protocol });
    let dir = noted.record().parent().and_then(Path::parent);
    Ok(json!({
        "id": noted.id(),
        "network": noted.name(),
        "address": noted.address(),
        "address_ipv6": noted.address_ipv6(),
        "ports": noted.mappings().iter().map(port).collect::<Vec<_>>(),
        "data_dir": dir,
        "state": state(noted)?,
    }))
}
