//! The node.

use serde_json::{Map, Value};

use super::{kept, lay, moment, null_if_empty};
use crate::agent::model::{Node, NodeEvent};
use crate::spec::json::json;

/// The node with all that is known of it.
pub(in super::super) fn node(node: &Node) -> Value {
    let mut all = common(node);
    let over = json!({
        // "Not advertised": clients continue to use the address that they have, which may be a socket. Otherwise the command
        // line would ask for files and logs over TCP, where it may have no token.
        "HTTPAddr": "",
        "TLSEnabled": node.tls_enabled,
        "Attributes": node.attributes,
        "Meta": node.meta,
        "Links": {},
        "NodeResources": node_resources(node),
        "ReservedResources": reserved(node),
        // The same as the two members before, for clients before 0.9.
        "Resources": null,
        "Reserved": null,
        "DrainStrategy": node.drain_strategy.as_ref().map(|drain| json!({
            // Go embeds the specification, so its members are inlined.
            "Deadline": drain.spec.deadline,
            "IgnoreSystemJobs": drain.spec.ignore_system_jobs,
            "ForceDeadline": drain.force_deadline,
            "StartedAt": drain.started_at,
        })),
        "StatusUpdatedAt": node.status_updated_at,
        "Events": node.events.iter().map(event).collect::<Vec<_>>(),
        "HostNetworks": host_networks(node),
        "CSIControllerPlugins": super::csi::infos(&node.csi_controllers),
        "CSINodePlugins": super::csi::infos(&node.csi_nodes),
        "CgroupParent": "agentbin",
        "ComputedClass": "",
        "GCVolumesOnNodeGC": false,
        "IdentitySigningKeyID": "",
        "LastAllocUpdateIndex": node.modify_index,
        "LastMissedHeartbeatIndex": 0,
        "NodeMaxAllocs": 0,
        "SecretID": "",
    });
    lay(&mut all, over);
    Value::Object(all)
}

/// The node in a list.
pub(in super::super) fn stub(node: &Node, os: bool, resources: bool) -> Value {
    let mut stub = common(node);
    let version = node.attributes.get("nomad.version").cloned().unwrap_or_default();
    lay(&mut stub, json!({"Address": own_address(node), "Version": version}));
    if os {
        let name = node.attributes.get("os.name").cloned().unwrap_or_default();
        lay(&mut stub, json!({"Attributes": {"os.name": name}}));
    }
    if resources {
        lay(&mut stub, json!({"NodeResources": node_resources(node), "ReservedResources": reserved(node)}));
    }
    Value::Object(stub)
}

fn common(node: &Node) -> Map<String, Value> {
    let volumes: Map<String, Value> = node
        .host_volumes
        .iter()
        .map(|(name, (path, read_only))| {
            let id = node.dynamic_volumes.get(name).map_or("", String::as_str);
            (name.clone(), json!({"Path": path, "ReadOnly": read_only, "ID": id, "Name": name}))
        })
        .collect();
    let value = json!({
        "ID": node.id,
        "Name": node.name,
        "Datacenter": node.datacenter,
        "NodeClass": node.node_class,
        "NodePool": node.node_pool,
        "Drain": node.drain_strategy.is_some(),
        "SchedulingEligibility": node.scheduling_eligibility,
        "Status": node.status,
        "StatusDescription": node.status_description,
        "Drivers": node.drivers,
        "HostVolumes": volumes,
        "LastDrain": node.last_drain.as_ref().map(|last| {
            let mut shown = kept(last);
            shown.insert("Meta".to_owned(), null_if_empty(json!(last.meta)));
            shown
        }),
        "CreateIndex": node.create_index,
        "ModifyIndex": node.modify_index,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn event(event: &NodeEvent) -> Value {
    json!({
        "Message": event.message,
        "Subsystem": event.subsystem,
        "Details": null_if_empty(json!(event.details)),
        "Timestamp": moment(event.timestamp),
        "CreateIndex": event.create_index,
    })
}

fn own_address(node: &Node) -> String {
    let known = node.attributes.get("unique.network.ip-address").or_else(|| node.host_networks.get("default"));
    known.cloned().unwrap_or_default()
}

fn networks(node: &Node) -> Value {
    let address = own_address(node);
    let bits = if address.contains(':') { 128 } else { 32 };
    let mut all =
        vec![json!({"Mode": "host", "Device": "", "IP": address, "CIDR": format!("{address}/{bits}"), "MBits": 1000})];
    all.extend(node.networks.iter().map(|name| {
        let mode = if name == "bridge" { name.clone() } else { format!("cni/{name}") };
        json!({"Mode": mode})
    }));
    all.into()
}

fn node_networks(node: &Node) -> Value {
    let network = |(name, address): (&String, &String)| {
        let family = if address.contains(':') { "ipv6" } else { "ipv4" };
        json!({
            "Mode": "host", "Device": "", "MacAddress": "", "Speed": 1000,
            "Addresses": [{"Address": address, "Alias": name, "Family": family, "Gateway": "", "ReservedPorts": ""}],
        })
    };
    let (address, default) = (own_address(node), "default".to_owned());
    let own = (!node.host_networks.contains_key(&default)).then(|| network((&default, &address)));
    own.into_iter().chain(node.host_networks.iter().map(network)).collect::<Vec<_>>().into()
}

fn host_networks(node: &Node) -> Value {
    let all: Map<String, Value> = node
        .host_networks
        .iter()
        .filter(|(name, _)| node.configured_networks.contains(name))
        .map(|(name, address)| {
            (name.clone(), json!({"Name": name, "CIDR": address, "Interface": "", "ReservedPorts": ""}))
        })
        .collect();
    null_if_empty(all.into())
}

/// What the machine has, in Nomad's nesting.
fn node_resources(node: &Node) -> Value {
    let has = &node.resources;
    let speed = has.cpu_mhz.checked_div(u64::from(has.cores)).unwrap_or(0);
    let core = |id: u32| {
        json!({
            "ID": id, "NodeID": 0, "SocketID": 0, "Grade": true, "Disable": false, "BaseSpeed": speed, "GuessSpeed": 0, "MaxSpeed": 0,
        })
    };
    json!({
        "Cpu": {
            "CpuShares": has.cpu_mhz,
            "TotalCpuCores": has.cores,
            "ReservableCpuCores": null_if_empty(json!(has.reservable_cores)),
        },
        "Memory": {"MemoryMB": has.memory_mb},
        "Disk": {"DiskMB": has.disk_mb},
        "Networks": networks(node),
        "NodeNetworks": node_networks(node),
        "Devices": null,
        "MinDynamicPort": has.min_dynamic_port,
        "MaxDynamicPort": has.max_dynamic_port,
        "Processors": {"Topology": {
            "Nodes": [0],
            "Distances": null,
            "Cores": (0..has.cores).map(core).collect::<Vec<_>>(),
            "OverrideTotalCompute": 0,
            "OverrideWitholdCompute": 0,
        }},
    })
}

/// The part of it that is reserved for the host.
fn reserved(node: &Node) -> Value {
    let has = &node.resources;
    let ports: Vec<String> = has.reserved_ports.iter().map(u16::to_string).collect();
    json!({
        "Cpu": {"CpuShares": has.reserved_cpu_mhz, "ReservedCpuCores": null},
        "Memory": {"MemoryMB": has.reserved_memory_mb},
        "Disk": {"DiskMB": has.reserved_disk_mb},
        "Networks": {"ReservedHostPorts": ports.join(",")},
    })
}
