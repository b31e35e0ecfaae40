//! Dynamic host volumes: what their plugins are asked for, and which of them the node offers.
//!
//! A volume is stored before its plugin is asked to create or delete it, and again when the plugin has answered. If the agent was
//! killed in between, the next one asks again: plugins return the same result then.

use std::path::PathBuf;
use std::sync::Arc;

use super::core::{Core, now};
use super::model::{DynamicVolume, Node, VolumeState};
use super::state::StateError;
use crate::alloc::{Provision, VolumeError, VolumePlugins, chain};
use crate::sys::lock::lock;

/// Held while a plugin works at the volume of a name.
pub(super) struct Busy {
    core: Arc<Core>,
    name: String,
}

impl Busy {
    /// `None` while another one is held.
    pub(super) fn new(core: &Arc<Core>, name: &str) -> Option<Busy> {
        let is_free = lock(&core.volumes).insert(name.to_owned());
        is_free.then(|| Busy { core: Arc::clone(core), name: name.to_owned() })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.core.volumes).remove(&self.name);
    }
}

/// The volume in the form for its plugin.
pub(super) fn provision(of: &DynamicVolume) -> Provision {
    Provision {
        id: of.id.clone(),
        name: of.name.clone(),
        namespace: of.namespace.clone(),
        plugin: of.plugin_id.clone(),
        node_id: of.node_id.clone(),
        node_pool: of.node_pool.clone(),
        capacity: (of.requested_capacity_min_bytes, of.requested_capacity_max_bytes),
        parameters: of.parameters.clone(),
        path: PathBuf::from(&of.host_path),
    }
}

/// Has a volume created, or its directory opened if it was registered, and returns it as it is then.
pub(super) async fn make(plugins: &Arc<VolumePlugins>, volume: &DynamicVolume) -> Result<DynamicVolume, VolumeError> {
    let mut made = DynamicVolume { state: VolumeState::Ready, ..volume.clone() };
    if volume.registered {
        plugins.register(volume.name.clone(), PathBuf::from(&volume.host_path)).await?;
    } else {
        let provided = plugins.create(provision(volume)).await?;
        made.host_path = provided.path.to_string_lossy().into_owned();
        made.capacity_bytes = provided.bytes;
    }
    Ok(made)
}

/// Has a volume deleted. A directory without a plugin stays.
pub(super) async fn delete(plugins: &Arc<VolumePlugins>, volume: &DynamicVolume) -> Result<(), VolumeError> {
    if volume.plugin_id.is_empty() {
        plugins.withdraw(&volume.name);
        return Ok(());
    }
    plugins.delete(provision(volume)).await
}

/// Lays the volumes that are ready over the node's own. A dynamic volume takes precedence over a configured one.
pub(super) fn lay(node: &mut Node, volumes: &[DynamicVolume]) {
    for name in std::mem::take(&mut node.dynamic_volumes).into_keys() {
        node.host_volumes.remove(&name);
    }
    for volume in volumes.iter().filter(|volume| volume.state == VolumeState::Ready && !volume.deleting) {
        node.host_volumes.insert(volume.name.clone(), (volume.host_path.clone(), false));
        node.dynamic_volumes.insert(volume.name.clone(), volume.id.clone());
    }
}

/// Makes all volumes usable again when the agent starts, and completes what an earlier agent was killed at.
pub(super) async fn restore(core: &Arc<Core>) -> Result<(), StateError> {
    let all = core.state.read()?.volumes().all()?;
    let mut working = Vec::new();
    for volume in all {
        let plugins = core.engine.volume_plugins();
        let id = volume.id.clone();
        working.push((id, crate::sys::task::spawn(async move { settle(&plugins, volume).await })));
    }
    let mut settled = Vec::new();
    for (id, work) in working {
        match work.await {
            Ok(volume) => settled.push((id, volume)),
            Err(error) => tracing::error!(volume = id, %error, "restoring a volume failed unexpectedly"),
        }
    }
    let keep = move |change: &mut super::state::Change<'_>| {
        for (id, volume) in settled {
            match volume {
                Some(volume) => _ = change.put_volume(volume)?,
                None => change.delete_volume(&id)?,
            }
        }
        Ok(())
    };
    core.state.change(keep).await.map(drop)
}

/// The volume as it is now; `None` when it is deleted.
async fn settle(plugins: &Arc<VolumePlugins>, volume: DynamicVolume) -> Option<DynamicVolume> {
    let error = if volume.deleting {
        delete(plugins, &volume).await.err()?
    } else {
        match make(plugins, &volume).await {
            Ok(made) if made == volume => return Some(made),
            Ok(made) => return Some(DynamicVolume { modify_time: now(), ..made }),
            Err(error) => error,
        }
    };
    tracing::error!(volume = volume.id, name = volume.name, error = chain(&error), "a volume is not available");
    Some(DynamicVolume { state: VolumeState::Unavailable, ..volume })
}
