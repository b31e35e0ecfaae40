//! Properties and capabilities of a plugin: queried once, afterwards only its health.

use super::client::Client;
use super::error::CsiError;
use crate::spec::collections::BTreeMap;
use crate::wire::csi as wire;
use crate::wire::csi::controller_service_capability::Type as ControllerType;
use crate::wire::csi::controller_service_capability::rpc::Type as ControllerRpc;
use crate::wire::csi::node_service_capability::Type as NodeType;
use crate::wire::csi::node_service_capability::rpc::Type as NodeRpc;
use crate::wire::csi::plugin_capability::Type as PluginType;
use crate::wire::csi::plugin_capability::service::Type as Service;

/// The volume limit of a node that reports none.
const UNLIMITED: i64 = i64::MAX;

/// Name, version and services of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PluginInfo {
    /// The plugin's name.
    pub provider: String,
    /// Its version; may be empty.
    pub version: String,
    /// Whether it needs a controller.
    pub needs_controller: bool,
    /// Whether its volumes are not accessible from all nodes.
    pub has_topology: bool,
}

/// Capabilities of a controller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ControllerFlags {
    /// Creates and deletes volumes.
    pub create_delete: bool,
    /// Attaches volumes to nodes, which is then required.
    pub attach_detach: bool,
    /// Lists its volumes.
    pub list: bool,
    /// Reports the available capacity.
    pub capacity: bool,
    /// Creates and deletes snapshots.
    pub create_delete_snapshot: bool,
    /// Lists its snapshots.
    pub list_snapshots: bool,
    /// Copies volumes.
    pub clone: bool,
    /// Attaches volumes read-only.
    pub read_only_attach: bool,
    /// Expands volumes.
    pub expand: bool,
    /// Reports in its list the nodes that volumes are attached to.
    pub list_nodes: bool,
    /// Returns a single volume.
    pub get: bool,
    /// Distinguishes several writers on one node.
    pub multi_writer: bool,
}

/// Capabilities of a node service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeFlags {
    /// Volumes are staged before they are published.
    pub stage: bool,
    /// Reports the usage of a volume.
    pub stats: bool,
    /// Expands file systems.
    pub expand: bool,
    /// Distinguishes several writers on one node.
    pub multi_writer: bool,
}

/// The node in a plugin's view.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The plugin's id of the node.
    pub id: String,
    /// How many volumes it can have.
    pub max_volumes: i64,
    /// Its location, for volumes that are not accessible from all nodes.
    pub topology: BTreeMap<String, String>,
    /// Its capabilities.
    pub flags: NodeFlags,
}

/// The result of querying a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Name, version and services.
    pub info: PluginInfo,
    /// Its controller, if that was queried.
    pub controller: Option<ControllerFlags>,
    /// Its node service, if that was queried.
    pub node: Option<NodeInfo>,
}

/// The health of a plugin over time. The last fingerprint is kept while it is unhealthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The last fingerprint.
    pub last: Option<Fingerprint>,
    /// Whether it is healthy.
    pub is_healthy: bool,
    /// The reason, for users.
    pub description: String,
}

impl Default for Health {
    fn default() -> Health {
        Health { last: None, is_healthy: false, description: "initial fingerprint not completed".to_owned() }
    }
}

impl Health {
    /// Updates it with the result of a query: the fingerprint, and whether the plugin reports that it is ready.
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
    /// Whether the plugin is ready; a plugin that does not report it counts as ready.
    ///
    /// # Errors
    /// See [`CsiError`]; the same holds for all other calls.
    pub async fn probe(&self) -> Result<bool, CsiError> {
        let answer = self.ask(&self.name(), wire::ProbeRequest {}).await?;
        Ok(answer.ready.unwrap_or(true))
    }

    /// Name, version and services of the plugin.
    ///
    /// # Errors
    /// Also fails when it has no name.
    pub async fn info(&self) -> Result<PluginInfo, CsiError> {
        let name = &self.name();
        let request = wire::GetPluginInfoRequest {};
        let info = self.ask(name, request).await?;
        if info.name.is_empty() {
            return Err(CsiError::invalid(format!(
                "{name}: the plugin has no name; use one that answers GetPluginInfo"
            )));
        }
        let request = wire::GetPluginCapabilitiesRequest {};
        let said = self.ask(name, request).await?;
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

    /// The controller's capabilities.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn controller_flags(&self) -> Result<ControllerFlags, CsiError> {
        let (name, request) = (&self.name(), wire::ControllerGetCapabilitiesRequest {});
        let said = self.ask(name, request).await?;
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

    /// The plugin's id of this node, and the capabilities of its node service.
    ///
    /// # Errors
    /// Also fails when the node has no id.
    pub async fn node_info(&self) -> Result<NodeInfo, CsiError> {
        let name = &self.name();
        let info = self.ask(name, wire::NodeGetInfoRequest {}).await?;
        if info.node_id.is_empty() {
            return Err(CsiError::invalid(format!(
                "{name}: plugin failed to return nodeid; give the plugin an id of its node"
            )));
        }
        let request = wire::NodeGetCapabilitiesRequest {};
        let said = self.ask(name, request).await?;
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

    /// Queries a plugin, including its node service and controller according to `node` and `controller`.
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
