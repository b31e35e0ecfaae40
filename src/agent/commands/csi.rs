//! Commands for CSI volumes and their snapshots.

use super::error::listed;
use super::{CommandError, Commands};
use crate::agent::core::now;
use crate::agent::csi::{capabilities, options, remote, secrets};
use crate::agent::model::{CsiInfo, CsiVolume, Secret};
use crate::agent::schedule;
use crate::agent::state::{Change, View};
use crate::agent::volumes::Busy;
use crate::alloc::chain;
use crate::csi::{Client, CsiError, NewVolume, Page, Segments, Snapshot, VolumeEntry};
use crate::spec::collections::BTreeMap;

/// A request for a snapshot.
#[derive(Debug, Clone, Default)]
pub struct NewSnapshot {
    /// The registered volume.
    pub volume: String,
    /// The plugin; empty for the volume's.
    pub plugin: String,
    /// The snapshot's name.
    pub name: String,
    /// Secrets, over those of the volume.
    pub secrets: BTreeMap<String, Secret>,
    /// For the plugin.
    pub parameters: BTreeMap<String, String>,
}

/// A plugin as the node has it.
struct Plugin {
    controller: Option<CsiInfo>,
    needs_controller: bool,
}

fn invalid(why: impl Into<String>) -> CommandError {
    CommandError::Invalid(why.into())
}

fn failed(error: &CsiError) -> CommandError {
    invalid(chain(error))
}

fn find(view: &View, namespace: &str, id: &str) -> Result<CsiVolume, CommandError> {
    view.csi_volume(namespace, id)?.ok_or_else(|| CommandError::NotFound(format!("volume not found: {id}")))
}

/// The plugin of a volume, if it can be asked now.
fn plugin(view: &View, id: &str) -> Result<Plugin, CommandError> {
    let node = view.node()?;
    let services = node.map(|mut node| (node.csi_controllers.remove(id), node.csi_nodes.remove(id)));
    let Some((controller, node)) = services.filter(|(controller, node)| controller.is_some() || node.is_some()) else {
        return Err(invalid(format!("no CSI plugin named: {id} could be found")));
    };
    let needs_controller = controller.as_ref().or(node.as_ref()).is_some_and(|info| info.requires_controller);
    if needs_controller && !controller.as_ref().is_some_and(|controller| controller.healthy) {
        return Err(invalid(format!("no healthy controllers for CSI plugin: {id}")));
    }
    Ok(Plugin { controller, needs_controller })
}

impl Plugin {
    fn supports(&self, what: &str) -> bool {
        self.controller.as_ref().is_some_and(|controller| controller.supports(what))
    }
}

/// What is wrong with a volume by itself.
fn mistakes(of: &CsiVolume) -> Vec<String> {
    let mut wrong = Vec::new();
    for (value, what) in [(&of.id, "volume id"), (&of.plugin_id, "plugin id"), (&of.namespace, "namespace")] {
        if value.is_empty() {
            wrong.push(format!("missing {what}"));
        } else if value.contains(char::is_control) {
            wrong.push(format!("{what} {value:?} has control characters"));
        }
    }
    if !of.snapshot_id.is_empty() && !of.clone_id.is_empty() {
        wrong.push("only one of snapshot_id and clone_id is allowed".to_owned());
    }
    if of.requested_capabilities.is_empty() {
        wrong.push("must include at least one capability block".to_owned());
    } else if let Err(error) = capabilities(of) {
        wrong.push(error.to_string());
    }
    let wanted = of.requested_topologies.clone().unwrap_or_default();
    for (what, all) in [("required", wanted.required), ("preferred", wanted.preferred)] {
        if all.iter().any(|one| one.segments.is_empty()) {
            wrong.push(format!("{what} topology is missing segments field"));
        }
    }
    wrong
}

/// Lays what may be changed of a volume over it. A refused change changes nothing.
fn merge(old: &mut CsiVolume, new: &CsiVolume, in_use: Option<(&str, &str)>) -> Result<(), String> {
    let mut wrong = Vec::new();
    let fixed = |old: &str, new: &str| !new.is_empty() && old != new;
    for (what, old, new) in [
        ("name", &old.name, &new.name),
        ("external ID", &old.external_id, &new.external_id),
        ("plugin ID", &old.plugin_id, &new.plugin_id),
        ("clone ID", &old.clone_id, &new.clone_id),
        ("snapshot ID", &old.snapshot_id, &new.snapshot_id),
    ] {
        if fixed(old, new) {
            wrong.push(format!("volume {what} cannot be updated"));
        }
    }
    let fits = |(access, attachment): (&str, &str)| {
        new.requested_capabilities.iter().any(|one| one.access_mode == access && one.attachment_mode == attachment)
    };
    if in_use.is_some_and(|mode| !fits(mode)) {
        let text = "volume requested capabilities update was not compatible with existing capability in use";
        wrong.push(text.to_owned());
    }
    if !old.topologies.is_empty() && old.requested_topologies != new.requested_topologies {
        wrong.push("volume topology request update was not compatible with existing topology".to_owned());
    }
    let is_mounted_so = (&old.fs_type, &old.hidden.mount_flags) == (&new.fs_type, &new.hidden.mount_flags);
    if in_use.is_some() && !is_mounted_so {
        wrong.push("can not update mount options while volume is in use".to_owned());
    }
    if !new.parameters.is_empty() && old.parameters != new.parameters {
        wrong.push("volume parameters cannot be updated".to_owned());
    }
    if !wrong.is_empty() {
        return Err(listed(&wrong));
    }
    if !new.context.is_empty() {
        old.context.clone_from(&new.context);
    }
    old.requested_capabilities.clone_from(&new.requested_capabilities);
    old.fs_type.clone_from(&new.fs_type);
    old.hidden.clone_from(&new.hidden);
    Ok(())
}

fn segments(all: &[crate::agent::model::CsiTopology]) -> Vec<Segments> {
    all.iter().map(|one| one.segments.clone()).collect()
}

impl Commands {
    fn working_at(&self, volume: &CsiVolume) -> Result<Busy, CommandError> {
        let busy = || CommandError::Conflict(format!("another command works at volume {}; try again", volume.id));
        Busy::new(&self.core, &format!("csi {} {}", volume.namespace, volume.id)).ok_or_else(busy)
    }

    /// Registers volumes; with `create` the plugin creates those that are not registered yet. A registered one is changed.
    ///
    /// # Errors
    /// [`CommandError`]: what is wrong with one of them, or why its plugin failed. Volumes before it are registered.
    pub async fn put_csi_volumes(
        &self,
        given: Vec<CsiVolume>,
        create: bool,
    ) -> Result<(u64, Vec<CsiVolume>), CommandError> {
        if given.is_empty() {
            return Err(invalid("missing volume definition"));
        }
        for volume in &given {
            let wrong = mistakes(volume);
            if !wrong.is_empty() {
                return Err(invalid(format!("validation: {}", wrong.join(", "))));
            }
        }
        let (mut last, mut stored) = (0, Vec::new());
        for volume in given {
            let _busy = self.working_at(&volume)?;
            let plugin = {
                let view = self.core.state.read()?;
                plugin(&view, &volume.plugin_id)?
            };
            if create && !plugin.needs_controller {
                return Err(invalid("plugin has no controller"));
            }
            if create && !plugin.supports("SupportsCreateDelete") {
                return Err(invalid("plugin does not support creating volumes"));
            }
            // As Nomad has it, which goes on with other volumes.
            let listed = |error: CommandError| if create { invalid(listed(&[chain(&error)])) } else { error };
            let made = self.made(Box::new(volume), create, plugin.needs_controller).await.map_err(listed)?;
            let (index, volume) = self.change(move |_, change| keep(change, made)).await.map_err(listed)?;
            self.core.broker.unblock(schedule::Change::NodeChanged, index);
            last = index;
            stored.push(volume);
        }
        Ok((last, stored))
    }

    /// The volume as its plugin has it, or will have it.
    async fn made(
        &self,
        mut volume: Box<CsiVolume>,
        create: bool,
        controlled: bool,
    ) -> Result<Box<CsiVolume>, CommandError> {
        let (old, claims) = {
            let view = self.core.state.read()?;
            let key = (volume.namespace.clone(), volume.id.clone());
            let claims = view.csi_claims()?.remove(&key).unwrap_or_default();
            (view.csi_volume(&volume.namespace, &volume.id)?.map(Box::new), claims)
        };
        match old {
            Some(mut old) => {
                let mode = claims.first().map(|first| (&*first.access_mode, &*first.attachment_mode));
                let refused = |why: CommandError| {
                    if create {
                        why
                    } else {
                        CommandError::Conflict(format!("unable to update volume: {}", chain(&why)))
                    }
                };
                merge(&mut old, &volume, mode).map_err(|why| refused(CommandError::Conflict(why)))?;
                let capacity = (volume.requested_capacity_min, volume.requested_capacity_max);
                self.expand(&mut old, capacity).await.map_err(refused)?;
                volume = old;
            }
            None if create => {
                // Before the plugin makes what could not be registered.
                in_namespace(&self.core.state.read()?, &volume)?;
                self.create(&mut volume).await?;
            }
            None if volume.topologies.is_empty() => {
                volume.topologies = volume.requested_topologies.clone().unwrap_or_default().required;
            }
            None => {}
        }
        if !create && controlled {
            let controller = self.client(&volume.plugin_id).await?;
            let wanted = capabilities(&volume).map_err(|error| failed(&error))?;
            let given = secrets(&volume, &BTreeMap::new());
            controller.validate(volume.remote_id(), &wanted, &given).await.map_err(|error| failed(&error))?;
        }
        Ok(volume)
    }

    async fn create(&self, volume: &mut CsiVolume) -> Result<(), CommandError> {
        let controller = self.client(&volume.plugin_id).await?;
        let wanted = volume.requested_topologies.clone().unwrap_or_default();
        let new = NewVolume {
            name: volume.name.clone(),
            capacity: (volume.requested_capacity_min, volume.requested_capacity_max),
            capabilities: capabilities(volume).map_err(|error| failed(&error))?,
            parameters: volume.parameters.clone(),
            secrets: secrets(volume, &BTreeMap::new()),
            snapshot: volume.snapshot_id.clone(),
            clone: volume.clone_id.clone(),
            topology: (segments(&wanted.required), segments(&wanted.preferred)),
        };
        let created = controller.create_volume(&new).await.map_err(|error| failed(&error))?;
        let topology = |segments| crate::agent::model::CsiTopology { segments };
        volume.external_id = created.id;
        volume.capacity = created.capacity;
        volume.context = created.context;
        volume.topologies = created.topology.into_iter().map(topology).collect();
        Ok(())
    }

    /// Gives the volume a larger capacity, if one is requested.
    async fn expand(&self, volume: &mut CsiVolume, (least, most): (i64, i64)) -> Result<(), CommandError> {
        let is_same = (least, most) == (volume.requested_capacity_min, volume.requested_capacity_max);
        if (least, most) == (0, 0) || is_same {
            return Ok(());
        }
        let has = volume.capacity;
        for (what, bytes) in [("min", least), ("current", has)] {
            if most > 0 && most < bytes {
                let (most, bytes) = (size(most), size(bytes));
                return Err(invalid(format!("max requested capacity ({most}) less than or equal to {what} ({bytes})")));
            }
        }
        volume.requested_capacity_min = least;
        volume.requested_capacity_max = most;
        if least > has {
            let plugins = self.core.engine.csi_plugins();
            let (id, given) = (remote(volume), secrets(volume, &BTreeMap::new()));
            let done = plugins.expand(&volume.plugin_id, &id, (least, most), &options(volume), &given).await;
            volume.capacity = done.map_err(|error| invalid(format!("unable to expand volume: {}", chain(&error))))?;
        }
        Ok(())
    }

    /// Forgets a volume that is not in use; with `force` also one that is still mounted for allocations that have ended.
    ///
    /// # Errors
    /// [`CommandError::NotFound`]; [`CommandError::Conflict`] while it is in use.
    pub async fn deregister_csi_volume(&self, namespace: &str, id: &str, force: bool) -> Result<u64, CommandError> {
        let volume = find(&self.core.state.read()?, namespace, id)?;
        let _busy = self.working_at(&volume)?;
        if !force {
            self.unmounted(&volume)?;
        }
        let (index, ()) = self.change(move |_, change| forget(change, &volume)).await?;
        Ok(index)
    }

    /// Refuses a volume that the node still has for somebody.
    fn unmounted(&self, volume: &CsiVolume) -> Result<(), CommandError> {
        let users = self.core.engine.csi_plugins().users(&volume.plugin_id, &remote(volume));
        let users = users.map_err(|error| CommandError::failed("cannot read who uses the volume", error))?;
        if users.is_empty() { Ok(()) } else { Err(CommandError::Conflict(format!("volume in use: {}", volume.id))) }
    }

    /// Has the plugin delete a volume, and forgets it.
    ///
    /// # Errors
    /// As [`Commands::deregister_csi_volume`], and why the plugin failed.
    pub async fn delete_csi_volume(
        &self,
        namespace: &str,
        id: &str,
        over: &BTreeMap<String, Secret>,
    ) -> Result<u64, CommandError> {
        let volume = {
            let view = self.core.state.read()?;
            let volume = find(&view, namespace, id)?;
            in_use(&view, &volume)?;
            plugin(&view, &volume.plugin_id)?;
            volume
        };
        let _busy = self.working_at(&volume)?;
        self.unmounted(&volume)?;
        let controller = self.client(&volume.plugin_id).await?;
        let deleted = controller.delete_volume(volume.remote_id(), &secrets(&volume, over)).await;
        deleted.map_err(|error| failed(&error))?;
        let (index, ()) = self.change(move |_, change| forget(change, &volume)).await?;
        Ok(index)
    }

    /// Undoes what allocations that have ended have left of a volume on the node.
    ///
    /// # Errors
    /// [`CommandError::NotFound`]; what the plugin could not undo.
    pub async fn detach_csi_volume(&self, namespace: &str, id: &str, node: &str) -> Result<u64, CommandError> {
        let (volume, index, live) = {
            let view = self.core.state.read()?;
            let Some(volume) = view.csi_volume(namespace, id)? else {
                return Err(CommandError::NotFound("no such volume".to_owned()));
            };
            // What another node has of it is not known here, and is gone with that node.
            let is_here = view.node()?.is_some_and(|known| known.id == node);
            let live = view.live_allocs().all()?;
            (volume, view.index()?, live.into_iter().filter(|_| is_here).map(|alloc| alloc.id).collect::<Vec<_>>())
        };
        let engine = &self.core.engine;
        let plugins = engine.csi_plugins();
        let is_live = |user: &str| live.iter().any(|id| id == user) || engine.runs(user);
        let given = secrets(&volume, &BTreeMap::new());
        let errors = plugins.detach(&volume.plugin_id, &remote(&volume), &given, &is_live).await;
        errors.map_err(|error| invalid(format!("could not detach from node: {}", chain(&error))))?;
        Ok(index)
    }

    /// Has a plugin take snapshots of volumes.
    ///
    /// # Errors
    /// Those of all that failed.
    pub async fn create_csi_snapshots(
        &self,
        namespace: &str,
        wanted: Vec<NewSnapshot>,
    ) -> Result<Vec<Snapshot>, CommandError> {
        let (mut taken, mut wrong) = (Vec::new(), Vec::new());
        for one in wanted {
            match self.create_csi_snapshot(namespace, &one).await {
                Ok(snapshot) => taken.push(snapshot),
                Err(error) => wrong.push(chain(&error)),
            }
        }
        if wrong.is_empty() { Ok(taken) } else { Err(invalid(listed(&wrong))) }
    }

    async fn create_csi_snapshot(&self, namespace: &str, wanted: &NewSnapshot) -> Result<Snapshot, CommandError> {
        let source = &wanted.volume;
        let volume = self.core.state.read()?.csi_volume(namespace, source)?;
        let volume = volume.ok_or_else(|| invalid(format!("no such volume {source:?}")))?;
        let plugin = if wanted.plugin.is_empty() { &volume.plugin_id } else { &wanted.plugin };
        let controller = self.supporting(plugin, "SupportsCreateDeleteSnapshot").map_err(|why| match why {
            None => invalid(format!("no such plugin {plugin:?}")),
            Some(error) => error,
        });
        let Some(controller) = controller? else {
            return Err(invalid(format!("plugin {plugin:?} does not support snapshot")));
        };
        let client = self.client(&controller).await?;
        let given = secrets(&volume, &wanted.secrets);
        let taken = client.create_snapshot(volume.remote_id(), &wanted.name, &wanted.parameters, &given).await;
        taken.map_err(|error| invalid(format!("could not create snapshot: {}", chain(&error))))
    }

    /// The plugin's id if its controller can do that. The error is `None` where there is no such plugin.
    fn supporting(&self, plugin: &str, what: &str) -> Result<Option<String>, Option<CommandError>> {
        let view = self.core.state.read().map_err(|error| Some(error.into()))?;
        let node = view.node().map_err(|error| Some(error.into()))?;
        let (controllers, nodes) = node.map(|node| (node.csi_controllers, node.csi_nodes)).unwrap_or_default();
        match controllers.get(plugin) {
            Some(controller) => Ok(controller.supports(what).then(|| plugin.to_owned())),
            None if nodes.contains_key(plugin) => Ok(None),
            None => Err(None),
        }
    }

    /// The controller of a plugin.
    async fn client(&self, plugin: &str) -> Result<Client, CommandError> {
        let found = self.core.engine.csi_plugins().controller(plugin).await;
        found.map(|(client, _)| client).map_err(|error| failed(&error))
    }

    /// The controller of a plugin that can do something, or Nomad's text for one that cannot.
    async fn able(&self, plugin: &str, what: &str, text: &str) -> Result<Client, CommandError> {
        match self.supporting(plugin, what) {
            Ok(Some(plugin)) => self.client(&plugin).await,
            Ok(None) => Err(invalid(text)),
            Err(error) => Err(error.unwrap_or_else(|| invalid("no such plugin"))),
        }
    }

    /// Has a plugin delete a snapshot.
    ///
    /// # Errors
    /// [`CommandError`]: no such plugin, or why it failed.
    pub async fn delete_csi_snapshot(
        &self,
        plugin: &str,
        id: &str,
        given: &BTreeMap<String, Secret>,
    ) -> Result<(), CommandError> {
        let text = "plugin does not support snapshot";
        let deleted = match self.able(plugin, "SupportsCreateDeleteSnapshot", text).await {
            Ok(client) => {
                let given = secrets(&CsiVolume::default(), given);
                let deleted = client.delete_snapshot(id, &given).await;
                deleted.map_err(|error| format!("could not delete {id:?}: {}", chain(&error)))
            }
            Err(error) => Err(chain(&error)),
        };
        deleted.map_err(|why| invalid(listed(&[why])))
    }

    /// A page of the snapshots that a plugin has.
    ///
    /// # Errors
    /// As [`Commands::delete_csi_snapshot`].
    pub async fn csi_snapshots(
        &self,
        plugin: &str,
        (most, token): (u16, &str),
        given: &BTreeMap<String, Secret>,
    ) -> Result<Page<Snapshot>, CommandError> {
        let client = self.able(plugin, "SupportsListSnapshots", "plugin does not support listing snapshots").await?;
        let given = secrets(&CsiVolume::default(), given);
        client.list_snapshots(most, token, &given).await.map_err(|error| failed(&error))
    }

    /// A page of the volumes that a plugin has, registered or not.
    ///
    /// # Errors
    /// As [`Commands::delete_csi_snapshot`].
    pub async fn external_csi_volumes(
        &self,
        plugin: &str,
        (most, token): (u16, &str),
    ) -> Result<Page<VolumeEntry>, CommandError> {
        let client = self.able(plugin, "SupportsListVolumes", "unimplemented for this plugin").await?;
        client.list_volumes(most, token).await.map_err(|error| failed(&error))
    }
}

fn in_use(view: &View, volume: &CsiVolume) -> Result<(), CommandError> {
    let key = (volume.namespace.clone(), volume.id.clone());
    if view.csi_claims()?.contains_key(&key) {
        return Err(CommandError::Conflict(format!("volume in use: {}", volume.id)));
    }
    Ok(())
}

fn in_namespace(view: &View, of: &CsiVolume) -> Result<(), CommandError> {
    match view.namespace(&of.namespace)? {
        Some(_) => Ok(()),
        None => Err(invalid(format!("volume {} is in nonexistent namespace {}", of.id, of.namespace))),
    }
}

/// A size as Nomad's messages have it.
fn size(bytes: i64) -> String {
    let (mut value, mut unit) = (bytes.max(0) as f64, "B");
    for next in ["kB", "MB", "GB", "TB", "PB", "EB"] {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    let value = (value * 10.0 + 0.5).floor() / 10.0;
    if value < 10.0 && unit != "B" { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

fn keep(change: &mut Change<'_>, mut volume: Box<CsiVolume>) -> Result<CsiVolume, CommandError> {
    in_namespace(change, &volume)?;
    let old = change.csi_volume(&volume.namespace, &volume.id)?;
    volume.create_time = old.map_or_else(now, |old| old.create_time);
    volume.modify_time = now();
    Ok(change.put_csi_volume(*volume)?)
}

fn forget(change: &mut Change<'_>, volume: &CsiVolume) -> Result<(), CommandError> {
    find(change, &volume.namespace, &volume.id)?;
    in_use(change, volume)?;
    Ok(change.delete_csi_volume(&volume.namespace, &volume.id)?)
}
