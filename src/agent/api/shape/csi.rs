//! CSI volumes and plugins.

use serde_json::{Map, Value};

use super::{kept, lay, null_if_empty};
use crate::agent::model::{CsiClaim, CsiInfo, CsiVolume, JobVersion, Node};
use crate::csi::{Snapshot, VolumeEntry};
use crate::spec::REDACTED;
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;

/// What Nomad's API has of a controller, in its order.
const CONTROLLER: [&str; 12] = [
    "SupportsCreateDelete",
    "SupportsAttachDetach",
    "SupportsListVolumes",
    "SupportsGetCapacity",
    "SupportsCreateDeleteSnapshot",
    "SupportsListSnapshots",
    "SupportsClone",
    "SupportsReadOnlyAttach",
    "SupportsExpand",
    "SupportsListVolumesAttachedNodes",
    "SupportsCondition",
    "SupportsGet",
];
/// The same of a node service.
const NODE: [&str; 4] = ["RequiresNodeStageVolume", "SupportsStats", "SupportsExpand", "SupportsCondition"];

/// The services of plugins by the plugins' ids.
pub(in super::super) fn infos(all: &BTreeMap<String, CsiInfo>) -> Value {
    let info = |(plugin, info): (&String, &CsiInfo)| (plugin.clone(), info_of(plugin, info));
    Value::Object(all.iter().map(info).collect())
}

fn info_of(plugin: &str, of: &CsiInfo) -> Value {
    let mut value = kept(of);
    for own in ["Node", "Supports", "RequiresController"] {
        value.remove(own);
    }
    let supports = |names: &[&str]| {
        let one = |name: &&str| ((*name).to_owned(), Value::Bool(of.supports(name)));
        names.iter().map(one).collect::<Map<_, _>>()
    };
    lay(&mut value, json!({"PluginID": plugin, "RequiresControllerPlugin": of.requires_controller}));
    match &of.node {
        None => _ = value.insert("ControllerInfo".to_owned(), supports(&CONTROLLER).into()),
        Some(node) => {
            let mut info = supports(&NODE);
            let own = json!({"ID": node.id, "MaxVolumes": node.max_volumes, "AccessibleTopology": node.topology});
            lay(&mut info, own);
            value.insert("NodeInfo".to_owned(), info.into());
        }
    }
    value.into()
}

/// A plugin: its services on the node, and the jobs that run it.
#[derive(Debug, Default)]
pub(in super::super) struct Plugin {
    pub(in super::super) controller: Option<CsiInfo>,
    pub(in super::super) node: Option<CsiInfo>,
    /// Namespace, job, and how many there are to be.
    controller_jobs: Vec<(String, String, u64)>,
    node_jobs: Vec<(String, String, u64)>,
}

impl Plugin {
    /// All plugins that run on the node, or are to. `expected` says how many allocations of a group there are to be.
    pub(in super::super) fn all<E>(
        node: Option<Node>,
        jobs: impl Iterator<Item = Result<JobVersion, E>>,
        expected: &dyn Fn(&JobVersion, &Value) -> Result<u64, E>,
    ) -> Result<BTreeMap<String, Plugin>, E> {
        let mut all: BTreeMap<String, Plugin> = BTreeMap::new();
        if let Some(node) = node {
            for (id, info) in node.csi_controllers {
                all.entry(id).or_default().controller = Some(info);
            }
            for (id, info) in node.csi_nodes {
                all.entry(id).or_default().node = Some(info);
            }
        }
        for job in jobs {
            let job = job?;
            let groups = job.spec.get("TaskGroups").and_then(Value::as_array);
            for group in groups.into_iter().flatten().filter(|_| !job.stop) {
                for task in group["Tasks"].as_array().into_iter().flatten() {
                    let Some(id) = task["CSIPluginConfig"]["ID"].as_str() else { continue };
                    let one = (job.key.namespace.clone(), job.key.id.clone(), expected(&job, group)?);
                    let plugin = all.entry(id.to_owned()).or_default();
                    let kind = task["CSIPluginConfig"]["Type"].as_str().unwrap_or_default();
                    if kind != "node" {
                        plugin.controller_jobs.push(one.clone());
                    }
                    if kind != "controller" {
                        plugin.node_jobs.push(one);
                    }
                }
            }
        }
        Ok(all)
    }

    /// The allocations that run it.
    pub(in super::super) fn allocs(&self) -> Vec<&str> {
        let mut all: Vec<&str> =
            [&self.controller, &self.node].into_iter().flatten().map(|info| &*info.alloc_id).collect();
        all.dedup();
        all
    }

    fn first(&self) -> CsiInfo {
        self.controller.as_ref().or(self.node.as_ref()).cloned().unwrap_or_default()
    }

    /// The members that volumes have, too.
    fn counts(&self) -> Value {
        let healthy = |info: &Option<CsiInfo>| u8::from(info.as_ref().is_some_and(|info| info.healthy));
        let expected = |jobs: &[(String, String, u64)]| jobs.iter().map(|(.., count)| count).sum::<u64>();
        let first = self.first();
        json!({
            "Provider": first.provider,
            "ControllerRequired": first.requires_controller,
            "ControllersHealthy": healthy(&self.controller),
            "ControllersExpected": expected(&self.controller_jobs),
            "NodesHealthy": healthy(&self.node),
            "NodesExpected": expected(&self.node_jobs),
        })
    }

    /// In a list.
    pub(in super::super) fn stub(&self, id: &str, index: u64) -> Value {
        let mut all = Map::new();
        lay(&mut all, self.counts());
        lay(&mut all, json!({"ID": id, "CreateIndex": index, "ModifyIndex": index}));
        all.into()
    }

    /// All of it.
    pub(in super::super) fn whole(&self, id: &str, node: &str, index: u64, allocs: Vec<Value>) -> Value {
        let mut all = Map::new();
        lay(&mut all, self.stub(id, index));
        let services = |info: &Option<CsiInfo>| {
            Value::Object(info.iter().map(|info| (node.to_owned(), info_of(id, info))).collect())
        };
        let jobs = |jobs: &[(String, String, u64)]| {
            let mut all = Map::new();
            for (namespace, job, expected) in jobs {
                let one = json!({"Namespace": namespace, "ID": job, "Expected": expected});
                let own = all.entry(namespace.clone()).or_insert_with(|| json!({}));
                own[job] = one;
            }
            Value::Object(all)
        };
        let since = self.first().update_time.0.unwrap_or_default();
        lay(
            &mut all,
            json!({
                "Version": self.first().provider_version,
                "Controllers": services(&self.controller),
                "Nodes": services(&self.node),
                "ControllerJobs": jobs(&self.controller_jobs),
                "NodeJobs": jobs(&self.node_jobs),
                "Allocations": null_if_empty(allocs.into()),
                "CreateTime": since,
                "ModifyTime": since,
            }),
        );
        all.into()
    }
}

/// What both forms of a volume have: its plugin's state, and how it is used.
fn common(volume: &CsiVolume, plugin: Option<&Plugin>, users: &[CsiClaim]) -> Map<String, Value> {
    let mut value = Map::new();
    let none = Plugin::default();
    let plugin = plugin.unwrap_or(&none);
    let works = |info: &Option<CsiInfo>| info.as_ref().is_some_and(|info| info.healthy);
    let is_schedulable = works(&plugin.node) && (!plugin.first().requires_controller || works(&plugin.controller));
    let first = users.first();
    lay(&mut value, plugin.counts());
    lay(
        &mut value,
        json!({
            "AccessMode": first.map_or("", |first| &*first.access_mode),
            "AttachmentMode": first.map_or("", |first| &*first.attachment_mode),
            "Schedulable": is_schedulable,
            "ResourceExhausted": null,
            "Topologies": volume.topologies,
        }),
    );
    value
}

/// A volume in a list.
pub(in super::super) fn volume_stub(volume: &CsiVolume, plugin: Option<&Plugin>, users: &[CsiClaim]) -> Value {
    let mut value = common(volume, plugin, users);
    let writers = users.iter().filter(|user| user.writes).count();
    let all = kept(volume);
    for key in
        ["ID", "Namespace", "Name", "ExternalID", "PluginID", "CreateIndex", "ModifyIndex", "CreateTime", "ModifyTime"]
    {
        value.insert(key.to_owned(), all.get(key).cloned().unwrap_or_default());
    }
    lay(&mut value, json!({"CurrentReaders": users.len() - writers, "CurrentWriters": writers}));
    value.into()
}

/// A volume with all that may be shown of it.
pub(in super::super) fn volume(
    volume: &CsiVolume,
    plugin: Option<&Plugin>,
    users: &[CsiClaim],
    allocs: &[Value],
) -> Value {
    let mut value = kept(volume);
    value.remove("FsType");
    lay(&mut value, common(volume, plugin, users).into());
    let of = |writes: bool| {
        let ids = users.iter().filter(|user| user.writes == writes).map(|user| (user.alloc_id.clone(), Value::Null));
        Value::Object(ids.collect())
    };
    let has_flags = !volume.hidden.mount_flags.is_empty();
    lay(
        &mut value,
        json!({
            "Allocations": allocs,
            "ReadAllocs": of(false),
            "WriteAllocs": of(true),
            "ProviderVersion": plugin.map(|plugin| plugin.first().provider_version).unwrap_or_default(),
            "Secrets": null,
            "MountOptions": {"FSType": volume.fs_type, "MountFlags": has_flags.then_some([REDACTED])},
        }),
    );
    value.into()
}

/// A snapshot, as a plugin describes it.
pub(in super::super) fn snapshot(of: &Snapshot) -> Value {
    let since = of.made.and_then(|made| made.duration_since(std::time::UNIX_EPOCH).ok());
    json!({
        "ID": of.id, "ExternalSourceVolumeID": of.volume, "SizeBytes": of.size, "IsReady": of.is_ready,
        "CreateTime": since.map_or(0, |since| since.as_secs()),
        "SourceVolumeID": "", "PluginID": "", "Name": "", "Secrets": null, "Parameters": null,
    })
}

/// A volume that a plugin has, registered or not.
pub(in super::super) fn external(of: &VolumeEntry) -> Value {
    json!({
        "ExternalID": of.volume.id, "CapacityBytes": of.volume.capacity,
        "VolumeContext": null_if_empty(json!(of.volume.context)), "CloneID": "", "SnapshotID": "",
        "PublishedExternalNodeIDs": null_if_empty(json!(of.nodes)), "IsAbnormal": false, "Status": "",
    })
}
