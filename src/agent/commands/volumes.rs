//! Commands for dynamic host volumes.

use super::nodes::evaluate;
use super::{CommandError, Commands};
use crate::agent::core::{key, new_id, now};
use crate::agent::model::{
    DynamicVolume, JobStatus, Node, VolumeCapability, VolumeClaim, VolumeConstraint, VolumeState,
};
use crate::agent::node;
use crate::agent::schedule::{self, unmet_on};
use crate::agent::state::{Change, View};
use crate::agent::volumes::{Busy, delete, lay, make};
use crate::alloc::{MKDIR, chain};
use crate::spec::collections::BTreeMap;
use crate::spec::{Constraint, ConstraintMistake, Operator, Pos};

/// What a capability may say.
const ATTACHMENT_MODES: [&str; 2] = ["file-system", "block-device"];
const ACCESS_MODES: [&str; 4] =
    ["single-node-reader-only", "single-node-writer", "single-node-single-writer", "single-node-multi-writer"];
/// Longest name, in bytes.
const LONGEST_NAME: usize = 128;

fn constraint(of: &VolumeConstraint) -> Result<Constraint, String> {
    let word = if of.operand.is_empty() { "=" } else { &of.operand };
    let operator = Operator::from_word(word).ok_or_else(|| format!("unknown operator {word:?}"))?;
    if operator.is_distinct() {
        return Err(format!("invalid constraint {word}: host volumes of the same name are always on distinct hosts"));
    }
    let made = Constraint { attribute: of.left.clone(), operator, value: of.right.clone(), pos: Pos::default() };
    match made.mistake() {
        None => Ok(made),
        Some(ConstraintMistake::Attribute(why) | ConstraintMistake::Value(why)) => {
            Err(format!("invalid constraint: {why}"))
        }
    }
}

/// What is wrong with a volume by itself.
fn mistakes(of: &DynamicVolume) -> Vec<String> {
    let mut wrong = Vec::new();
    if of.name.is_empty() {
        wrong.push("missing name".to_owned());
    } else if of.name.len() > LONGEST_NAME || of.name.contains(|c: char| c == '/' || c.is_control()) {
        wrong.push(format!("invalid name {:?}: at most {LONGEST_NAME} bytes without slashes", of.name));
    }
    let (least, most) = (of.requested_capacity_min_bytes, of.requested_capacity_max_bytes);
    if least < 0 || most < 0 {
        wrong.push(format!("capacity_min ({least}) and capacity_max ({most}) cannot be negative"));
    }
    if most < least {
        wrong.push(format!("capacity_max ({most}) must be larger than capacity_min ({least})"));
    }
    for capability in &of.requested_capabilities {
        let VolumeCapability { attachment_mode, access_mode } = capability;
        if !ATTACHMENT_MODES.contains(&&**attachment_mode) {
            wrong.push(format!("invalid attachment mode: {attachment_mode:?}; use {}", ATTACHMENT_MODES.join(" or ")));
        }
        if !ACCESS_MODES.contains(&&**access_mode) {
            wrong.push(format!("invalid access mode: {access_mode:?}; use {}", ACCESS_MODES.join(", ")));
        }
    }
    wrong.extend(of.constraints.iter().filter_map(|of| constraint(of).err()));
    wrong
}

/// Who uses a volume, by name; `None` for nobody.
fn users(view: &View, volume: &DynamicVolume) -> Result<Option<String>, CommandError> {
    let users = view.users_of_volume(volume)?;
    let named: Vec<String> = users.iter().map(|(alloc, _)| format!("{} ({})", alloc.id, alloc.name)).collect();
    Ok((!named.is_empty()).then(|| named.join(", ")))
}

/// The job whose sticky group comes back to a volume, with the claim; `None` where nobody does.
fn claimant(view: &View, volume: &DynamicVolume) -> Result<Option<VolumeClaim>, CommandError> {
    for claim in view.claims(Some(&volume.namespace)) {
        let claim = claim?;
        let job = view.job(&key(&claim.namespace, &claim.job_id))?;
        if claim.volume_id == volume.id && job.is_some_and(|job| !job.stop && job.status != JobStatus::Dead) {
            return Ok(Some(claim));
        }
    }
    Ok(None)
}

/// The volume that a request changes, if it names one.
fn existing(change: &Change<'_>, given: &DynamicVolume) -> Result<Option<DynamicVolume>, CommandError> {
    let wrong = mistakes(given);
    if !wrong.is_empty() {
        return Err(CommandError::Invalid(format!("volume validation failed: {}", wrong.join("; "))));
    }
    let (namespace, id) = (&given.namespace, &given.id);
    if change.namespace(namespace)?.is_none() {
        return Err(CommandError::Invalid(format!("volume validation failed: no such namespace {namespace:?}")));
    }
    if id.is_empty() {
        return Ok(None);
    }
    let Some(old) = change.volume(id)?.filter(|old| old.namespace == *namespace) else {
        return Err(CommandError::Invalid(format!(
            "cannot update volume {id:?}: volume does not exist; without an id a new one is created"
        )));
    };
    let mut wrong = Vec::new();
    if let Some(users) = users(change, &old)? {
        wrong.push(format!("cannot update a volume in use: claimed by allocs {users}; stop their jobs first"));
    }
    if given.name != old.name {
        wrong.push(format!("its name {:?} cannot be updated", old.name));
    }
    if !given.node_id.is_empty() && given.node_id != old.node_id {
        wrong.push("node ID cannot be updated".to_owned());
    }
    if !given.plugin_id.is_empty() && given.plugin_id != old.plugin_id {
        wrong.push(format!("its plugin {:?} cannot be updated", old.plugin_id));
    }
    let (most, has) = (given.requested_capacity_max_bytes, old.capacity_bytes);
    if most > 0 && most < has {
        wrong.push(format!("capacity_max ({most}) cannot be less than existing provisioned capacity ({has})"));
    }
    if old.deleting {
        wrong.push("it is being deleted".to_owned());
    }
    if !wrong.is_empty() {
        return Err(CommandError::Conflict(format!("validating volume {id:?} update failed: {}", wrong.join("; "))));
    }
    Ok(Some(old))
}

/// Whether the volume can be on this node.
fn place(view: &View, of: &DynamicVolume, plugins: &BTreeMap<String, String>) -> Result<Node, CommandError> {
    let name = &of.name;
    let node = view.node()?.ok_or_else(|| CommandError::NotFound("node not found".to_owned()))?;
    let wrong =
        |why: String| Err(CommandError::Invalid(format!("validating volume {name:?} against state failed: {why}")));
    let (id, pool) = (&of.node_id, &of.node_pool);
    if !id.is_empty() && *id != node.id {
        return wrong(format!("node {id:?} does not exist"));
    }
    if !pool.is_empty() && *pool != node.node_pool {
        return wrong(format!("node pool {pool:?} is not that of the node, which is {:?}", node.node_pool));
    }
    let mut why = Vec::new();
    for other in view.volumes() {
        let other = other?;
        if other.name == *name && other.id != of.id {
            let DynamicVolume { id, namespace, .. } = other;
            why.push(format!("it has a volume of this name already, {id} of namespace {namespace:?}"));
        }
    }
    if node.host_volumes.contains_key(name) && !node.dynamic_volumes.contains_key(name) {
        why.push("a host_volume of this name is in the agent's configuration".to_owned());
    }
    if !of.registered && !plugins.contains_key(&of.plugin_id) {
        let known: Vec<&str> = plugins.keys().map(String::as_str).collect();
        why.push(format!("it has no host volume plugin {:?}; it has {}", of.plugin_id, known.join(", ")));
    }
    why.extend(of.constraints.iter().filter_map(|of| unmet_on(&node, &constraint(of).ok()?)));
    if why.is_empty() {
        return Ok(node);
    }
    Err(CommandError::Conflict(format!(
        "could not place volume {name:?}: no node meets constraints: {}",
        why.join("; ")
    )))
}

/// Lets jobs see the volumes as they are now.
fn offer(change: &mut Change<'_>) -> Result<(), CommandError> {
    if let Some(mut node) = change.node()? {
        lay(&mut node, &change.volumes().all()?);
        change.put_node(node)?;
    }
    Ok(())
}

impl Commands {
    fn busy(&self, name: &str) -> Result<Busy, CommandError> {
        let busy = || CommandError::Conflict(format!("the volume {name:?} is being created or deleted; try again"));
        Busy::new(&self.core, name).ok_or_else(busy)
    }

    /// Has the plugin of a volume create it, or with the id of an existing one change it. Returns the index and the volume.
    ///
    /// # Errors
    /// [`CommandError`]: what is wrong with it; why it cannot be here; why the plugin failed.
    pub async fn create_volume(&self, given: DynamicVolume) -> Result<(u64, DynamicVolume), CommandError> {
        let _busy = self.busy(&given.name)?;
        let plugins = self.core.engine.volume_plugins();
        let known = plugins.versions().await;
        let (_, (volume, is_new)) = self
            .change(move |_, change| {
                let old = existing(change, &given)?;
                let (volume, is_new) = (completed(given, old.as_ref(), false), old.is_none());
                let node = place(change, &volume, &known)?;
                let volume = DynamicVolume { node_id: node.id, node_pool: node.node_pool, ..volume };
                Ok((if is_new { change.put_volume(volume)? } else { volume }, is_new))
            })
            .await?;
        match make(&plugins, &volume).await {
            Ok(made) => self.keep_volume(made).await,
            Err(error) => {
                if is_new {
                    // What it may have left. It has failed already, and says so.
                    if let Err(error) = delete(&plugins, &volume).await {
                        tracing::debug!(volume = volume.id, error = chain(&error), "a failed volume is not cleaned up");
                    }
                    let id = volume.id.clone();
                    self.change(move |_, change| Ok(change.delete_volume(&id)?)).await?;
                }
                Err(CommandError::failed(&format!("could not create volume {:?}", volume.name), error))
            }
        }
    }

    /// Makes a directory that is there already a volume. Returns the index and the volume.
    ///
    /// # Errors
    /// [`CommandError`]: what is wrong with it; why it cannot be here.
    pub async fn register_volume(&self, given: DynamicVolume) -> Result<(u64, DynamicVolume), CommandError> {
        let missing = |what: &str| CommandError::Invalid(format!("cannot register volume: {what} is required"));
        if given.node_id.is_empty() {
            return Err(missing("node ID"));
        }
        if given.host_path.is_empty() {
            return Err(missing("host path"));
        }
        let _busy = self.busy(&given.name)?;
        let (_, volume) = self
            .change(move |_, change| {
                let old = existing(change, &given)?;
                if old.as_ref().is_some_and(|old| !old.registered) {
                    let why = "it was created by its plugin; use volume create to update it";
                    return Err(CommandError::Conflict(format!("cannot register volume {:?}: {why}", given.id)));
                }
                let volume = completed(given, old.as_ref(), true);
                let node = place(change, &volume, &BTreeMap::new())?;
                Ok(DynamicVolume { node_id: node.id, node_pool: node.node_pool, ..volume })
            })
            .await?;
        match make(&self.core.engine.volume_plugins(), &volume).await {
            Ok(made) => self.keep_volume(made).await,
            Err(error) => Err(CommandError::failed(&format!("could not register volume {:?}", volume.name), error)),
        }
    }

    async fn keep_volume(&self, volume: DynamicVolume) -> Result<(u64, DynamicVolume), CommandError> {
        let made = self.change(move |core, change| {
            let volume = change.put_volume(volume)?;
            offer(change)?;
            // Jobs that run wherever they may, may run here now.
            Ok((volume, evaluate(core, change, false)?))
        });
        let (index, (volume, evals)) = made.await?;
        for eval in &evals {
            self.decide(eval);
        }
        self.core.broker.unblock(schedule::Change::NodeChanged, index);
        Ok((index, volume))
    }

    /// Has the plugin of a volume delete it. With `force` it is forgotten even if the plugin fails.
    ///
    /// # Errors
    /// [`CommandError`]: it is not there, or somebody uses it; why the plugin failed.
    pub async fn delete_volume(&self, namespace: &str, id: &str, force: bool) -> Result<u64, CommandError> {
        let missing = || CommandError::NotFound(format!("no such volume: {id}"));
        let is_it = |volume: &DynamicVolume| volume.namespace == namespace;
        let known = self.core.state.read()?.volume(id)?.filter(is_it).ok_or_else(missing)?;
        let _busy = self.busy(&known.name)?;
        let (namespace, of) = (namespace.to_owned(), id.to_owned());
        let (_, volume) = self
            .change(move |_, change| {
                let missing = || CommandError::NotFound(format!("no such volume: {of}"));
                let volume = change.volume(&of)?.filter(|volume| volume.namespace == namespace).ok_or_else(missing)?;
                if let Some(users) = users(change, &volume)? {
                    let why = format!("volume {of} in use by allocations: {users}; stop their jobs first");
                    return Err(CommandError::Conflict(why));
                }
                if let Some(VolumeClaim { id, job_id, task_group_name, .. }) = claimant(change, &volume)? {
                    return Err(CommandError::Conflict(format!(
                        "volume {of} is claimed by the group {task_group_name:?} of job {job_id:?}, which is sticky; stop the job \
                         first, or delete the claim {id}"
                    )));
                }
                change.put_volume(DynamicVolume { deleting: true, ..volume.clone() })?;
                offer(change)?;
                Ok(volume)
            })
            .await?;
        let plugins = self.core.engine.volume_plugins();
        if let Err(error) = delete(&plugins, &volume).await {
            if !force {
                let text = format!("could not delete volume {id}");
                // As before: whether tasks can mount it is seen when it is opened again.
                let back = match plugins.register(volume.name.clone(), volume.host_path.clone().into()).await {
                    Ok(()) => volume,
                    Err(_) => DynamicVolume { state: VolumeState::Unavailable, ..volume },
                };
                self.keep_volume(DynamicVolume { deleting: false, ..back }).await?;
                return Err(CommandError::failed(&text, error));
            }
            tracing::warn!(volume = id, error = chain(&error), "a volume is forgotten that was not deleted");
        }
        let of = id.to_owned();
        let (index, ()) = self.change(move |_, change| Ok(change.delete_volume(&of)?)).await?;
        // A configured volume may have its name.
        node::look(&self.core, None).await?;
        Ok(index)
    }

    /// Deletes the claim of a group on a volume.
    ///
    /// # Errors
    /// [`CommandError::NotFound`].
    pub async fn delete_claim(&self, id: &str) -> Result<u64, CommandError> {
        let id = id.to_owned();
        let (index, ()) = self.change(move |_, change| Ok(change.delete_claim(&id)?)).await?;
        Ok(index)
    }
}

/// A volume with all that its author did not say.
fn completed(given: DynamicVolume, old: Option<&DynamicVolume>, registered: bool) -> DynamicVolume {
    let mut volume =
        DynamicVolume { registered, deleting: false, state: VolumeState::Pending, modify_time: now(), ..given };
    if volume.requested_capabilities.is_empty() {
        let usual = VolumeCapability {
            attachment_mode: "file-system".to_owned(),
            access_mode: "single-node-writer".to_owned(),
        };
        volume.requested_capabilities = old.map_or_else(|| vec![usual], |old| old.requested_capabilities.clone());
    }
    match old {
        None => {
            volume.id = new_id();
            volume.create_time = volume.modify_time;
        }
        Some(old) => {
            volume.plugin_id.clone_from(&old.plugin_id);
            volume.constraints.clone_from(&old.constraints);
            volume.create_time = old.create_time;
        }
    }
    if !registered {
        if volume.plugin_id.is_empty() {
            MKDIR.clone_into(&mut volume.plugin_id);
        }
        // The plugin says it.
        volume.host_path = old.map(|old| old.host_path.clone()).unwrap_or_default();
        volume.capacity_bytes = old.map_or(0, |old| old.capacity_bytes);
    }
    volume
}
