//! What a plugin is and can: asked once, and afterwards only whether it is well.

use std::collections::BTreeMap;

use super::client::{Client, ask};
use super::error::CsiError;
use crate::wire::csi as wire;
use crate::wire::csi::controller_client::ControllerClient;
use crate::wire::csi::controller_service_capability::Type as ControllerType;
use crate::wire::csi::controller_service_capability::rpc::Type as ControllerRpc;
use crate::wire::csi::identity_client::IdentityClient;
use crate::wire::csi::node_client::NodeClient;
use crate::wire::csi::node_service_capability::Type as NodeType;
use crate::wire::csi::node_service_capability::rpc::Type as NodeRpc;
use crate::wire::csi::plugin_capability::Type as PluginType;
use crate::wire::csi::plugin_capability::service::Type as Service;

/// The most volumes of a node that says nothing of it.
const UNLIMITED: i64 = i64::MAX;

/// Who made a plugin, and which parts it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginInfo {
    /// The name that its maker gave it.
    pub provider: String,
    /// Its version; may be empty.
    pub version: String,
    /// It needs a controller.
    pub needs_controller: bool,
    /// Its volumes are not the same for all nodes.
    pub has_topology: bool,
}

/// What a controller can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerFlags {
    /// Make and delete volumes.
    pub create_delete: bool,
    /// Attach volumes to nodes, and it has to.
    pub attach_detach: bool,
    /// List its volumes.
    pub list: bool,
    /// Tell how much space is left.
    pub capacity: bool,
    /// Make and delete snapshots.
    pub create_delete_snapshot: bool,
    /// List its snapshots.
    pub list_snapshots: bool,
    /// Copy volumes.
    pub clone: bool,
    /// Attach volumes read-only.
    pub read_only_attach: bool,
    /// Make volumes larger.
    pub expand: bool,
    /// Tell in its list which nodes have which volumes.
    pub list_nodes: bool,
    /// Tell of one volume.
    pub get: bool,
    /// Tell writers of one node apart.
    pub multi_writer: bool,
}

/// What a node plugin can.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeFlags {
    /// Volumes are staged before they are published.
    pub stage: bool,
    /// Tell how full a volume is.
    pub stats: bool,
    /// Make file systems larger.
    pub expand: bool,
    /// Tell writers of one node apart.
    pub multi_writer: bool,
}

/// The node as a plugin calls it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The plugin's name of the node.
    pub id: String,
    /// How many volumes it can have.
    pub max_volumes: i64,
    /// Where it is, for volumes that are not the same everywhere.
    pub topology: BTreeMap<String, String>,
    /// What it can.
    pub flags: NodeFlags,
}

/// What is known of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Who made it.
    pub info: PluginInfo,
    /// Its controller, where one was asked.
    pub controller: Option<ControllerFlags>,
    /// Its node part, where it was asked.
    pub node: Option<NodeInfo>,
}

/// How a plugin is, over time. What it can is kept while it is unwell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// What it said last.
    pub last: Option<Fingerprint>,
    /// Whether it is well.
    pub is_healthy: bool,
    /// For people.
    pub description: String,
}

impl Default for Health {
    fn default() -> Health {
        Health { last: None, is_healthy: false, description: "initial fingerprint not completed".to_owned() }
    }
}

impl Health {
    /// With what a round of questions brought: the fingerprint and whether the plugin says that it is ready.
    #[must_use]
    pub fn after(self, round: Result<(Fingerprint, bool), &CsiError>) -> Health {
        match round {
            Ok((found, is_healthy)) => {
                let description = if is_healthy { "healthy" } else { "unhealthy" };
                Health { last: Some(found), is_healthy, description: description.to_owned() }
            }
            Err(error) => {
                let what = if self.last.is_none() {
                    "failed initial fingerprint with err"
                } else {
                    "failed fingerprinting with error"
                };
                Health { is_healthy: false, description: format!("{what}: {error}"), last: self.last }
            }
        }
    }
}

impl Client {
    /// Whether the plugin is ready. One that does not say is.
    ///
    /// # Errors
    /// See [`CsiError`]; the same holds for all other calls.
    pub async fn probe(&self) -> Result<bool, CsiError> {
        let answer = ask!(self, IdentityClient, probe, "Probe", &self.name(), wire::ProbeRequest {})?;
        Ok(answer.ready.unwrap_or(true))
    }

    /// Who made the plugin, and which parts it has.
    ///
    /// # Errors
    /// Also when it has no name.
    pub async fn info(&self) -> Result<PluginInfo, CsiError> {
        let name = &self.name();
        let request = wire::GetPluginInfoRequest {};
        let info = ask!(self, IdentityClient, get_plugin_info, "GetPluginInfo", name, request)?;
        if info.name.is_empty() {
            return Err(CsiError::invalid(format!(
                "{name}: the plugin has no name; use one that answers GetPluginInfo"
            )));
        }
        let request = wire::GetPluginCapabilitiesRequest {};
        let said = ask!(self, IdentityClient, get_plugin_capabilities, "GetPluginCapabilities", name, request)?;
        let has = |service| {
            said.capabilities
                .iter()
                .any(|one| matches!(&one.r#type, Some(PluginType::Service(s)) if s.r#type() == service))
        };
        Ok(PluginInfo {
            provider: info.name,
            version: info.vendor_version,
            needs_controller: has(Service::ControllerService),
            has_topology: has(Service::VolumeAccessibilityConstraints),
        })
    }

    /// What the controller can.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn controller_flags(&self) -> Result<ControllerFlags, CsiError> {
        let (name, request) = (&self.name(), wire::ControllerGetCapabilitiesRequest {});
        let said =
            ask!(self, ControllerClient, controller_get_capabilities, "ControllerGetCapabilities", name, request)?;
        let has = |kind| {
            said.capabilities
                .iter()
                .any(|one| matches!(&one.r#type, Some(ControllerType::Rpc(rpc)) if rpc.r#type() == kind))
        };
        Ok(ControllerFlags {
            create_delete: has(ControllerRpc::CreateDeleteVolume),
            attach_detach: has(ControllerRpc::PublishUnpublishVolume),
            list: has(ControllerRpc::ListVolumes),
            capacity: has(ControllerRpc::GetCapacity),
            create_delete_snapshot: has(ControllerRpc::CreateDeleteSnapshot),
            list_snapshots: has(ControllerRpc::ListSnapshots),
            clone: has(ControllerRpc::CloneVolume),
            read_only_attach: has(ControllerRpc::PublishReadonly),
            expand: has(ControllerRpc::ExpandVolume),
            list_nodes: has(ControllerRpc::ListVolumesPublishedNodes),
            get: has(ControllerRpc::GetVolume),
            multi_writer: has(ControllerRpc::SingleNodeMultiWriter),
        })
    }

    /// What the plugin calls this node, and what its node part can.
    ///
    /// # Errors
    /// Also when the node has no id.
    pub async fn node_info(&self) -> Result<NodeInfo, CsiError> {
        let name = &self.name();
        let info = ask!(self, NodeClient, node_get_info, "NodeGetInfo", name, wire::NodeGetInfoRequest {})?;
        if info.node_id.is_empty() {
            return Err(CsiError::invalid(format!(
                "{name}: plugin failed to return nodeid; give the plugin an id of its node"
            )));
        }
        let request = wire::NodeGetCapabilitiesRequest {};
        let said = ask!(self, NodeClient, node_get_capabilities, "NodeGetCapabilities", name, request)?;
        let has = |kind| {
            said.capabilities.iter().any(|one| matches!(&one.r#type, Some(NodeType::Rpc(rpc)) if rpc.r#type() == kind))
        };
        let flags = NodeFlags {
            stage: has(NodeRpc::StageUnstageVolume),
            stats: has(NodeRpc::GetVolumeStats),
            expand: has(NodeRpc::ExpandVolume),
            multi_writer: has(NodeRpc::SingleNodeMultiWriter),
        };
        let max_volumes = if info.max_volumes_per_node == 0 { UNLIMITED } else { info.max_volumes_per_node };
        let topology = info.accessible_topology.unwrap_or_default().segments.into_iter().collect();
        Ok(NodeInfo { id: info.node_id, max_volumes, topology, flags })
    }

    /// All that is to be known of a plugin, its node part and its controller asked as `node` and `controller` say.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn fingerprint(&self, node: bool, controller: bool) -> Result<(Fingerprint, bool), CsiError> {
        let info = self.info().await?;
        let node = if node { Some(self.node_info().await?) } else { None };
        let controller = if controller && info.needs_controller { Some(self.controller_flags().await?) } else { None };
        Ok((Fingerprint { info, controller, node }, self.probe().await?))
    }

    fn name(&self) -> String {
        self.socket().display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f5_what_a_plugin_can_is_kept_while_it_is_unwell() {
        let error = CsiError::invalid("no".to_owned());
        let health = Health::default().after(Err(&error));
        assert_eq!((health.is_healthy, &*health.description), (false, "failed initial fingerprint with err: no"));
        let found = Fingerprint {
            node: Some(NodeInfo { id: "n".to_owned(), ..NodeInfo::default() }),
            ..Fingerprint::default()
        };
        let health = health.after(Ok((found.clone(), true)));
        assert_eq!((health.is_healthy, &*health.description, &health.last), (true, "healthy", &Some(found.clone())));
        let health = health.after(Err(&error));
        assert_eq!(
            (&*health.description, &health.last),
            ("failed fingerprinting with error: no", &Some(found.clone()))
        );
        let health = health.after(Ok((found, false)));
        assert_eq!((health.is_healthy, &*health.description), (false, "unhealthy"));
    }
}
