//! The machine as a node.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::engine::Described;
use crate::agent::model::{
    CsiInfo, CsiNodeInfo, CsiTopology, DriverInfo, Eligibility, Node, NodeResources, NodeStatus, Stamp,
};
use crate::alloc::{Machine, VolumePlugins, machine};
use crate::driver::{Fingerprint, Health};
use crate::net::{Kind, Wish};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{IntoMap as _, IntoSet as _};

/// Where the node's own API can be reached over TCP, if anywhere.
#[derive(Debug, Clone, Default)]
pub struct Advertised {
    /// `host:port`; empty for nowhere.
    pub http_addr: String,
    /// Over TLS.
    pub tls_enabled: bool,
}

/// As it is now, without the drivers that do not answer within the patience.
pub(super) async fn machine(
    machine: &Arc<Machine>,
    advertised: &Advertised,
    plugins: &Arc<VolumePlugins>,
    patience: Option<Duration>,
) -> Described {
    let mut late: BTreeSet<String> = machine.drivers.keys().cloned().into_set();
    let drivers = machine::fingerprints(&machine.drivers, &late, patience).await;
    late.retain(|name| !drivers.contains_key(name));
    Described { node: node(machine, advertised, plugins, &drivers).await, late }
}

async fn node(
    machine: &Arc<Machine>,
    advertised: &Advertised,
    plugins: &Arc<VolumePlugins>,
    drivers: &BTreeMap<String, Fingerprint>,
) -> Node {
    let mut seen = crate::alloc::Node::clone(&machine.node);
    seen.add_drivers(drivers);
    for (name, version) in plugins.versions().await {
        seen.attributes.insert(format!("plugins.host_volume.{name}.version"), version);
    }
    let looked = Arc::clone(machine);
    // Files and programs of the host, which may be slow.
    let networks = crate::sys::task::spawn_blocking(move || networks(&looked)).await.unwrap_or_default();
    let resources = resources(machine, &seen.attributes);
    let (csi_controllers, csi_nodes) = csi(machine).await;
    let volume = |(name, volume): (&str, &crate::alloc::HostVolume)| {
        (name.to_owned(), (volume.path().display().to_string(), volume.is_read_only()))
    };
    Node {
        id: seen.id,
        name: seen.name,
        datacenter: seen.datacenter,
        node_class: seen.class,
        node_pool: seen.pool,
        http_addr: advertised.http_addr.clone(),
        tls_enabled: advertised.tls_enabled,
        attributes: seen.attributes,
        meta: seen.meta.clone(),
        static_meta: seen.meta,
        dynamic_meta: BTreeMap::new(),
        resources,
        drivers: drivers.iter().map(|(name, told)| (name.clone(), driver(told))).into_map(),
        host_volumes: machine.volumes.iter().map(volume).into_map(),
        // The state knows them.
        dynamic_volumes: BTreeMap::new(),
        csi_controllers,
        csi_nodes,
        host_networks: machine.ports.networks().map(|(name, ip)| (name.to_owned(), ip.to_string())).into_map(),
        configured_networks: machine.ports.configured().to_vec(),
        networks,
        drain_strategy: None,
        last_drain: None,
        scheduling_eligibility: Eligibility::Eligible,
        status: NodeStatus::Ready,
        status_description: String::new(),
        status_updated_at: 0,
        events: Vec::new(),
        create_index: 0,
        modify_index: 0,
    }
}

/// The controllers and node services of CSI plugins; of several instances the newest one.
async fn csi(machine: &Machine) -> (BTreeMap<String, CsiInfo>, BTreeMap<String, CsiInfo>) {
    let (mut controllers, mut nodes) = (BTreeMap::new(), BTreeMap::new());
    let seen = machine.csi.plugins.look().await.unwrap_or_else(|error| {
        tracing::error!(%error, "the CSI plugins are not known");
        Vec::new()
    });
    for (one, health) in seen {
        // One that has never answered is none yet.
        let Some(last) = health.last else { continue };
        let info = CsiInfo {
            alloc_id: one.owner,
            healthy: health.is_healthy,
            health_description: health.description,
            update_time: Stamp(None),
            provider: last.info.provider,
            provider_version: last.info.version,
            requires_controller: last.info.needs_controller,
            requires_topologies: last.info.has_topology,
            ..CsiInfo::default()
        };
        let supports = |all: &[(&str, bool)]| {
            all.iter().filter(|(_, has)| *has).map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>()
        };
        if let Some(has) = last.controller
            && !controllers.contains_key(&one.id)
        {
            let supports = supports(&[
                ("SupportsCreateDelete", has.create_delete),
                ("SupportsAttachDetach", has.attach_detach),
                ("SupportsListVolumes", has.list),
                ("SupportsGetCapacity", has.capacity),
                ("SupportsCreateDeleteSnapshot", has.create_delete_snapshot),
                ("SupportsListSnapshots", has.list_snapshots),
                ("SupportsClone", has.clone),
                ("SupportsReadOnlyAttach", has.read_only_attach),
                ("SupportsExpand", has.expand),
                ("SupportsListVolumesAttachedNodes", has.list_nodes),
                ("SupportsGet", has.get),
            ]);
            controllers.insert(one.id.clone(), CsiInfo { supports, ..info.clone() });
        }
        if let Some(node) = last.node
            && !nodes.contains_key(&one.id)
        {
            let supports = supports(&[
                ("RequiresNodeStageVolume", node.flags.stage),
                ("SupportsStats", node.flags.stats),
                ("SupportsExpand", node.flags.expand),
            ]);
            let topology = (!node.topology.is_empty()).then_some(CsiTopology { segments: node.topology });
            let node = CsiNodeInfo { id: node.id, max_volumes: node.max_volumes, topology };
            nodes.insert(one.id, CsiInfo { supports, node: Some(node), ..info });
        }
    }
    (controllers, nodes)
}

fn driver(told: &Fingerprint) -> DriverInfo {
    DriverInfo {
        attributes: told.attributes.iter().map(|(key, value)| (key.clone(), value.to_string())).into_map(),
        detected: told.health != Health::Undetected,
        healthy: told.health == Health::Healthy,
        health_description: told.description.clone(),
        update_time: Stamp(None),
    }
}

fn resources(machine: &Machine, attributes: &BTreeMap<String, String>) -> NodeResources {
    let number = |key: &str| attributes.get(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    let mib = |key: &str| i64::try_from(number(key) >> 20).unwrap_or(i64::MAX);
    let cores = machine.cpusets.as_ref().and_then(|cpusets| cpusets.reservable().ok());
    let dynamic = machine.ports.dynamic();
    NodeResources {
        cpu_mhz: number("cpu.totalcompute"),
        cores: u32::try_from(number("cpu.numcores")).unwrap_or(u32::MAX),
        reservable_cores: cores
            .as_ref()
            .into_iter()
            .flat_map(crate::spec::CpuSet::iter)
            .filter_map(|core| core.try_into().ok())
            .collect(),
        memory_mb: mib("memory.totalbytes"),
        disk_mb: mib("unique.storage.bytestotal"),
        min_dynamic_port: *dynamic.start(),
        max_dynamic_port: *dynamic.end(),
        ..NodeResources::default()
    }
}

/// What connects groups here, by the names that job files have for it.
fn networks(machine: &Machine) -> Vec<String> {
    let works = |kind: Kind<'_>| {
        let wish = Wish { id: "", kind, driver: None, mappings: Vec::new(), args: Vec::new(), record: PathBuf::new() };
        machine.networks.plan(wish).is_ok()
    };
    let bridge = works(Kind::Bridge).then(|| "bridge".to_owned());
    let named = machine.networks.names();
    bridge.into_iter().chain(named.into_iter().filter(|name| works(Kind::Cni(name)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::Owner;
    use crate::alloc::fake::{self, FakeDriver};

    #[test]
    fn the_capacity_of_the_disk_is_its_size_not_what_was_free_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let machine = fake::machine(dir.path(), &FakeDriver::new(&[]), Owner::Agent);
        let storage = [("bytestotal", 9_u64 << 30), ("bytesfree", 5 << 30)];
        let attributes = storage.map(|(name, bytes)| (format!("unique.storage.{name}"), bytes.to_string()));
        assert_eq!(resources(&machine, &attributes.into()).disk_mb, 9 << 10);
    }
}
