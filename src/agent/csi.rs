//! CSI volumes: what the engine is given of them, and what their plugins are asked for.

use std::sync::Arc;

use super::model::{Allocation, CsiVolume, Secret};
use super::schedule::CsiState;
use super::state::{State, StateError, View};
use crate::alloc::{self, Registered, chain};
use crate::csi::{Capability, CsiError, Secrets, SecretsOf, VolumeId};
use crate::spec::collections::BTreeMap;
use crate::spec::{IntoMap as _, Job, MountOptions};

/// The volumes of an allocation, by the names that its group uses as their sources.
pub(super) fn given(view: &View, job: &Job, of: &Allocation) -> Result<BTreeMap<String, alloc::CsiVolume>, StateError> {
    let mut all = BTreeMap::new();
    let group = job.groups.iter().find(|group| group.name == of.task_group);
    for volume in group.into_iter().flat_map(|group| &group.volumes).filter(|volume| volume.csi.is_some()) {
        let source = volume.source_of(of.index());
        let Some(known) = view.csi_volume(&of.namespace, &source)? else { continue };
        let registered = Registered {
            namespace: known.namespace.clone(),
            context: known.context.clone(),
            secrets: secrets(&known, &BTreeMap::new()),
            options: options(&known),
        };
        let (plugin, id) = (known.plugin_id.clone(), known.remote_id().to_owned());
        all.insert(source, alloc::CsiVolume { plugin, id, read_only: false, registered: Some(registered) });
    }
    Ok(all)
}

/// The id of a volume for its plugin.
pub(super) fn remote(volume: &CsiVolume) -> VolumeId {
    VolumeId { namespace: volume.namespace.clone(), id: volume.remote_id().to_owned() }
}

/// The secrets of a volume, with others laid over them.
pub(super) fn secrets(volume: &CsiVolume, over: &BTreeMap<String, Secret>) -> Secrets {
    let all = volume.hidden.secrets.iter().chain(over.iter());
    Secrets(all.map(|(key, value)| (key.clone(), value.expose().to_owned())).into_map())
}

/// The secrets of the volumes in a state, for what is undone without their users.
pub fn secrets_of(state: &State) -> Arc<SecretsOf<'static>> {
    let state = state.clone();
    Arc::new(move |plugin: &str, id: &VolumeId| {
        find_secrets(&state, plugin, id).unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), volume = id.id, "the secrets of a volume cannot be read");
            Secrets::default()
        })
    })
}

fn find_secrets(state: &State, plugin: &str, id: &VolumeId) -> Result<Secrets, StateError> {
    for volume in state.read()?.csi_volumes(Some(&id.namespace), "") {
        let volume = volume?;
        if volume.plugin_id == plugin && remote(&volume) == *id {
            return Ok(secrets(&volume, &BTreeMap::new()));
        }
    }
    Ok(Secrets::default())
}

/// Its mount options.
pub(super) fn options(volume: &CsiVolume) -> MountOptions {
    let flags = volume.hidden.mount_flags.iter().map(|flag| flag.expose().to_owned()).collect();
    MountOptions { fs_type: volume.fs_type.clone(), flags }
}

/// Its capabilities, in the form for its plugin.
pub(super) fn capabilities(volume: &CsiVolume) -> Result<Vec<Capability>, CsiError> {
    let one = |of: &super::model::VolumeCapability| {
        let options = if of.attachment_mode == "file-system" { options(volume) } else { MountOptions::default() };
        Capability::from_words(&of.access_mode, &of.attachment_mode, options)
    };
    volume.requested_capabilities.iter().map(one).collect()
}

/// The volumes of a namespace and their users, for the scheduler; empty where the job has none.
pub(super) fn used(view: &View, namespace: &str, job: Option<&Job>) -> Result<CsiState, StateError> {
    let mut all = CsiState::default();
    let volumes = job.into_iter().flat_map(|job| &job.groups).flat_map(|group| &group.volumes);
    if !volumes.into_iter().any(|volume| volume.csi.is_some()) {
        return Ok(all);
    }
    let mut claims = view.csi_claims()?;
    for volume in view.csi_volumes(None, "") {
        let volume = volume?;
        let users = claims.remove(&(volume.namespace.clone(), volume.id.clone())).unwrap_or_default();
        if !users.is_empty() {
            *all.by_plugin.entry(volume.plugin_id.clone()).or_default() += 1;
        }
        if volume.namespace == namespace {
            all.volumes.insert(volume.id.clone(), (volume, users));
        }
    }
    Ok(all)
}
