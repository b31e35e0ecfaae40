//! `agentbin node status`: this machine as an agent would publish it, under Nomad's names.

use std::fmt::Write as _;

use anyhow::Context as _;
use serde_json::Value as Json;

use super::output::indented;
use super::{NodeStatusArgs, print};
use crate::alloc::Node;
use crate::alloc::machine::{self, CgroupPlace};
use crate::driver::{Fingerprint, Health};
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;
use crate::spec::{CpuSet, escaped_lines};

pub(super) fn status(args: &NodeStatusArgs) -> anyhow::Result<i32> {
    let data_dir = machine::data_dir(args.data_dir.as_deref())?;
    let place = CgroupPlace::find(args.cgroup_parent.as_deref())?;
    let machine = machine::machine(&data_dir, &machine::socket_base(&data_dir), &place)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let all = machine.drivers.keys().cloned().collect();
    let drivers = crate::sys::task::block_on(&runtime, machine::fingerprints(&machine.drivers, &all, None));
    let mut node = Node::clone(&machine.node);
    node.add_drivers(&drivers);
    let reservable = machine.cpusets.as_ref().and_then(|cpusets| cpusets.reservable().ok());
    let text = if args.json {
        indented(&to_json(&node, &drivers, reservable.as_ref())) + "\n"
    } else {
        escaped_lines(&to_text(&node, &drivers)).into_owned()
    };
    print(text.as_bytes())
}

/// A node in the format of Nomad's API.
fn to_json(node: &Node, drivers: &BTreeMap<String, Fingerprint>, reservable: Option<&CpuSet>) -> Json {
    let attributes = &node.attributes;
    let number = |key: &str| attributes.get(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let cores = reservable.map_or_else(Vec::new, |cores| cores.iter().collect::<Vec<_>>());
    let driver = |fingerprint: &Fingerprint| {
        let attributes = fingerprint.attributes.iter().map(|(key, value)| (key.clone(), value.to_string().into()));
        json!({
            "Attributes": attributes.collect::<serde_json::Map<_, Json>>(),
            "Detected": fingerprint.health != Health::Undetected,
            "Healthy": fingerprint.health == Health::Healthy,
            "HealthDescription": fingerprint.description,
        })
    };
    json!({
        "ID": node.id,
        "Name": node.name,
        "Datacenter": node.datacenter,
        "NodeClass": node.class,
        "NodePool": node.pool,
        "Attributes": attributes,
        "Meta": node.meta,
        "Drivers": drivers.iter().map(|(name, f)| (name.clone(), driver(f))).collect::<serde_json::Map<_, Json>>(),
        "NodeResources": {
            "Cpu": {
                "CpuShares": number("cpu.totalcompute"),
                "TotalCpuCores": number("cpu.numcores"),
                "ReservableCpuCores": cores,
            },
            "Memory": { "MemoryMB": number("memory.totalbytes") >> 20 },
        },
    })
}

fn to_text(node: &Node, drivers: &BTreeMap<String, Fingerprint>) -> String {
    let mut rows: Vec<(&str, Vec<(&str, &str)>)> = vec![(
        "node",
        vec![
            ("ID", node.id.as_str()),
            ("Name", &node.name),
            ("Class", if node.class.is_empty() { "<none>" } else { &node.class }),
            ("Datacenter", &node.datacenter),
            ("Region", &node.region),
            ("Node Pool", &node.pool),
        ],
    )];
    let state = |fingerprint: &Fingerprint| match fingerprint.health {
        Health::Healthy => "healthy",
        Health::Unhealthy => "unhealthy",
        Health::Undetected => "not detected",
    };
    let described: Vec<(&str, String)> = drivers
        .iter()
        .map(|(name, f)| {
            let why = if f.description.is_empty() || f.health == Health::Healthy { "" } else { ": " };
            let description = if why.is_empty() { "" } else { &f.description };
            (name.as_str(), format!("{}{why}{description}", state(f)))
        })
        .collect();
    rows.push(("drivers", described.iter().map(|(name, state)| (*name, state.as_str())).collect()));
    rows.push(("attributes", node.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()));
    let width = rows.iter().flat_map(|(_, rows)| rows).map(|(key, _)| key.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (title, rows) in rows {
        let _ = writeln!(out, "{}{title}", if out.is_empty() { "" } else { "\n" });
        for (key, value) in rows {
            let _ = writeln!(out, "  {key:width$}  {value}");
        }
    }
    out
}
