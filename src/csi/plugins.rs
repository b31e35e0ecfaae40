//! The plugins of this machine and the managers of their volumes. A plugin may have several instances, such as a node service and a
//! controller, or an old and a new one during an update; each is described by a file, so that all processes that use the directory
//! see it, and a later process can undo what an earlier one did. Never starts a plugin.
//!
//! ```text
//!   plugins/ID,OWNER.json   the instances
//!   volumes/ID/             the records of the plugin's volumes
//!   mounts/ID/              where it stages and publishes them
//! ```

use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use tokio::sync::watch;

use super::capability::{Capability, Secrets};
use super::client::Client;
use super::error::CsiError;
use super::fingerprint::{ControllerFlags, Health};
use super::ledger::Files;
use super::manager::{Join, Ledger as _, Manager};
use super::node::{Places, Plugin, VolumeId, safe};
use super::usage::{Phase, VolumeUse};
use crate::spec::collections::BTreeMap;
use crate::spec::{CsiKind, IntoMap as _, MountOptions, Order as _};
use crate::store::write_atomically;
use crate::sys::lock::lock;
use crate::sys::owned::OwnDir;
use crate::sys::time::boot_id;

/// Version of the format; files of a newer one are not touched.
const VERSION: u32 = 1;
/// Limit of a file, in bytes.
const LONGEST: u64 = 1 << 20;
const SUFFIX: &str = ".json";
/// How long an instance of a plugin is waited for.
const WAIT: Duration = Duration::from_mins(1);
const FIRST_LOOK: Duration = Duration::from_millis(200);
const LAST_LOOK: Duration = Duration::from_secs(5);
/// How long a plugin may take to describe itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// One process of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Instance {
    /// The plugin's id in job files.
    pub id: String,
    /// Its services.
    pub kind: CsiKind,
    /// The allocation that runs it; empty for one that the operator runs.
    pub owner: String,
    /// Where it listens.
    pub socket: PathBuf,
    /// The directory for its volumes on the host.
    pub host: PathBuf,
    /// The same directory in its view.
    pub plugin: PathBuf,
    /// Its name, as it says itself; empty if it was not asked.
    pub provider: String,
    /// Its version, likewise.
    pub version: String,
    /// When it was registered; the newest one is used.
    pub since: SystemTime,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Record {
    version: u32,
    instance: Instance,
    /// The boot in which its owner runs it; empty for one that the operator runs.
    #[serde(default)]
    boot_id: String,
}

/// Returns the secrets of a plugin's volume, for steps that its user does not undo itself.
pub type SecretsOf<'a> = dyn Fn(&str, &VolumeId) -> Secrets + Send + Sync + 'a;

/// See the top of the file.
#[derive(Debug)]
pub struct Plugins {
    dir: PathBuf,
    managers: Mutex<BTreeMap<String, Arc<Manager>>>,
    /// By the names of the files.
    health: Mutex<BTreeMap<String, Health>>,
    changes: watch::Sender<u64>,
}

impl Plugins {
    /// The plugins that are registered below a data directory; nothing is created.
    #[must_use]
    pub fn new(data_dir: &Path) -> Plugins {
        Plugins {
            dir: data_dir.join("csi"),
            managers: Mutex::default(),
            health: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Changes when this process registers an instance or removes one.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The directory for the volumes of a plugin.
    #[must_use]
    pub fn root(&self, id: &str) -> PathBuf {
        self.dir.join("mounts").join(safe(id))
    }

    /// The directory in which the plugin of an owner listens.
    #[must_use]
    pub fn socket_dir(&self, owner: &str) -> PathBuf {
        self.dir.join("sockets").join(safe(owner))
    }

    /// Makes the directories of a plugin that an owner runs; returns that for its volumes.
    ///
    /// # Errors
    /// What `mkdir(2)` says, and when another user may write to one of them.
    pub fn make_dirs(&self, id: &str, owner: &str) -> io::Result<PathBuf> {
        self.make("sockets")?.make(safe(owner).as_ref(), 0o700)?;
        Ok(self.make("mounts")?.make(safe(id).as_ref(), 0o700)?.path().to_owned())
    }

    /// Removes what an owner's plugin has left under this name in the directory of its socket, if anything.
    ///
    /// # Errors
    /// What `unlink(2)` says.
    pub fn remove_socket(&self, owner: &str, name: &str) -> io::Result<()> {
        let Some(sockets) = self.there("sockets")? else { return Ok(()) };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let removed = rustix::fs::openat(&sockets, safe(owner), flags, Mode::empty())
            .and_then(|dir| rustix::fs::unlinkat(&dir, name, rustix::fs::AtFlags::empty()));
        match removed {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The owners that have a directory for the socket of a plugin.
    ///
    /// # Errors
    /// What `readdir(2)` says.
    pub fn owners(&self) -> io::Result<Vec<String>> {
        let Some(dir) = self.there("sockets")? else { return Ok(Vec::new()) };
        let mut owners = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            owners.extend(entry.file_name().to_str().ok().filter(|name| !name.starts_with('.')).map(str::to_owned));
        }
        Ok(owners)
    }

    fn make(&self, name: &str) -> io::Result<OwnDir> {
        let above = OwnDir::open(self.dir.parent().unwrap_or(&self.dir))?;
        above.make("csi".as_ref(), 0o700)?.make(name.as_ref(), 0o700)
    }

    fn there(&self, name: &str) -> io::Result<Option<OwnDir>> {
        match OwnDir::open(&self.dir).and_then(|dir| dir.enter(name.as_ref())) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }

    /// Registers an instance; one of the same owner is replaced.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn register(&self, instance: &Instance) -> io::Result<()> {
        let boot_id = if instance.owner.is_empty() { String::new() } else { boot_id()? };
        let record = Record { version: VERSION, instance: instance.clone(), boot_id };
        let file = file_of(&instance.id, &instance.owner);
        write_atomically(&self.make("plugins")?, &file, &serde_json::to_vec(&record)?)?;
        self.changes.send_modify(|number| *number += 1);
        Ok(())
    }

    /// Removes the instance of an owner, if there is one; those of other owners stay.
    ///
    /// # Errors
    /// What `unlink(2)` says.
    pub fn deregister(&self, id: &str, owner: &str) -> io::Result<()> {
        let Some(dir) = self.there("plugins")? else { return Ok(()) };
        match rustix::fs::unlinkat(&dir, file_of(id, owner), rustix::fs::AtFlags::empty()) {
            Ok(()) => self.changes.send_modify(|number| *number += 1),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Asks all instances what they are and whether they are ready, at the same time; the newest instance first.
    ///
    /// # Errors
    /// As [`Plugins::list`].
    pub async fn look(&self) -> io::Result<Vec<(Instance, Health)>> {
        let all = self.list()?;
        let mut asked = Vec::new();
        for one in all {
            let kind = one.kind;
            let client = Client::new(&one.socket);
            asked.push((
                one,
                crate::sys::task::spawn(async move {
                    let client = client?;
                    // A client waits for a plugin that does not listen; who describes the node does not.
                    let reached =
                        tokio::time::timeout(PATIENCE, tokio::net::UnixStream::connect(client.socket())).await;
                    if let Ok(Err(error)) = reached {
                        let socket = client.socket().display();
                        return Err(CsiError::invalid(format!("the plugin is not reached at {socket}: {error}")));
                    }
                    let round =
                        tokio::time::timeout(PATIENCE, client.fingerprint(kind.is_node(), kind.is_controller()));
                    round.await.unwrap_or_else(|_| {
                        let socket = client.socket().display();
                        Err(CsiError::invalid(format!("no answer at {socket} within {PATIENCE:?}")))
                    })
                }),
            ));
        }
        let mut seen = Vec::new();
        for (one, asked) in asked {
            let round = asked.await.unwrap_or_else(|error| Err(CsiError::invalid(error.to_string())));
            let file = file_of(&one.id, &one.owner);
            let before = lock(&self.health).remove(&file).unwrap_or_default();
            seen.push((file, one, before.after(round.as_ref().map(Clone::clone))));
        }
        *lock(&self.health) = seen.iter().map(|(file, _, health)| (file.clone(), health.clone())).into_map();
        Ok(seen.into_iter().map(|(_, one, health)| (one, health)).collect())
    }

    /// The controller of a plugin, and its capabilities.
    ///
    /// # Errors
    /// None runs here, or it does not answer.
    pub async fn controller(&self, plugin: &str) -> Result<(Client, ControllerFlags), CsiError> {
        let all = self.list().map_err(unreadable)?;
        let found = all.iter().find(|one| one.id == plugin && one.kind.is_controller());
        let found =
            found.ok_or_else(|| CsiError::invalid(format!("no controller of CSI plugin {plugin:?} runs here")))?;
        let client = Client::new(&found.socket)?;
        let flags = client.controller_flags().await?;
        Ok((client, flags))
    }

    /// Makes a volume larger, and the file systems of its users; returns its capacity. No step of the volume is executed
    /// meanwhile.
    ///
    /// # Errors
    /// [`CsiError`]; the volume may be larger already.
    pub async fn expand(
        &self,
        plugin: &str,
        id: &VolumeId,
        capacity: (i64, i64),
        options: &MountOptions,
        secrets: &Secrets,
    ) -> Result<i64, CsiError> {
        let (controller, flags) = self.controller(plugin).await?;
        if !flags.expand {
            return Err(CsiError::invalid("expand is not implemented by this controller plugin".to_owned()));
        }
        // A plugin with its controller only has no users here.
        let Ok((node, _)) = self.instances(plugin) else {
            return Ok(controller.expand_volume(&id.id, capacity, None, secrets).await?.0);
        };
        let (manager, places) = self.manager(plugin, Duration::ZERO).await?;
        let held = manager.hold(id).await?;
        let capability = held.volume().usage.as_ref().map(|usage| Capability {
            access: usage.access,
            attachment: usage.attachment,
            options: options.clone(),
        });
        let (bytes, on_node) = controller.expand_volume(&id.id, capacity, capability.as_ref(), secrets).await?;
        if let (true, Some(usage), Some(capability)) = (on_node, &held.volume().usage, &capability) {
            let client = Client::new(&node.socket)?;
            for (user, of) in &held.volume().users {
                if of.published == Some(Phase::Done) {
                    let (target, staging) = places.shown_to_plugin(user, id, usage, of.read_only);
                    client.expand_on_node(&id.id, (&target, &staging), capacity, capability).await?;
                }
            }
        }
        Ok(bytes)
    }

    /// Undoes what users have left of one volume that do not exist any more, or do not use it any more.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn detach(
        &self,
        plugin: &str,
        id: &VolumeId,
        secrets: &Secrets,
        is_live: &(dyn Fn(&str) -> bool + Send + Sync),
    ) -> Result<(), CsiError> {
        let (volume, mut done) = (self.volume(plugin, id).map_err(unreadable)?, Ok(()));
        for (user, _) in volume.users.iter().filter(|(user, of)| of.leaves || !is_live(user)) {
            let (manager, _) = self.manager(plugin, Duration::ZERO).await?;
            done = done.and(manager.leave(user, id, secrets, std::future::pending()).await);
        }
        done
    }

    /// The users of a volume by its record, including those that are leaving.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn users(&self, plugin: &str, id: &VolumeId) -> io::Result<Vec<String>> {
        Ok(self.volume(plugin, id)?.users.into_keys().collect())
    }

    fn volume(&self, plugin: &str, id: &VolumeId) -> io::Result<VolumeUse> {
        let Some(dir) = self.there("volumes")? else { return Ok(VolumeUse::default()) };
        let records = Files::open(&dir, plugin)?.load()?;
        let found = records.into_iter().find(|(known, _)| known == id);
        Ok(found.map(|(_, volume)| volume).unwrap_or_default())
    }

    /// All instances, the newest one first; not those that an earlier boot has ended.
    ///
    /// # Errors
    /// A file cannot be read, or a newer program wrote it.
    pub fn list(&self) -> io::Result<Vec<Instance>> {
        let (boot, records) = (boot_id()?, self.records()?);
        let current = records.into_iter().filter(|record| record.boot_id.is_empty() || record.boot_id == boot);
        let mut all: Vec<Instance> = current.map(|record| record.instance).collect();
        all.order_by(|one, other| other.since.cmp(&one.since));
        Ok(all)
    }

    fn records(&self) -> io::Result<Vec<Record>> {
        let Some(dir) = self.there("plugins")? else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| name.ends_with(SUFFIX)) else { continue };
            let wrong = |why: String| {
                let text = format!("{}: {why}", dir.path().join(name).display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            };
            let bytes = match dir.read(name.as_ref(), LONGEST) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let record: Record = crate::spec::json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
            if record.version != VERSION {
                return Err(wrong(format!("version {}, which is none of this program", record.version)));
            }
            all.push(record);
        }
        Ok(all)
    }

    /// Gives a user a volume, and returns its path. Waits for the plugin.
    ///
    /// # Errors
    /// See [`CsiError`] and [`Manager::join`].
    pub async fn join(&self, plugin: &str, join: Join, cancel: impl Future<Output = ()>) -> Result<PathBuf, CsiError> {
        let mut cancel = std::pin::pin!(cancel);
        let (manager, places) = tokio::select! {
            biased;
            () = &mut cancel => return Err(CsiError::Cancelled(join.volume.id.id)),
            found = self.manager(plugin, WAIT) => found?,
        };
        let (id, usage) = (join.volume.id.clone(), join.capability.usage());
        let target = places.target(&join.user, &id, &usage, join.read_only);
        manager.join(join, cancel).await?;
        Ok(target)
    }

    /// The path of a user's volume, if it is still mounted there; the plugin is not needed for that.
    pub async fn kept(&self, plugin: &str, join: &Join) -> Option<PathBuf> {
        let root = self.root(plugin);
        let places = Places::new(&root, &root).ok()?;
        let (id, usage) = (&join.volume.id, join.capability.usage());
        let is_there = places.has(&join.user, id, &usage, join.read_only).await.ok()?;
        is_there.then(|| places.target(&join.user, id, &usage, join.read_only))
    }

    /// Ends a user's use of all volumes, whose secrets `secrets` knows. Returns the errors of those that could not be undone.
    pub async fn release(&self, user: &str, secrets: &SecretsOf<'_>) -> Vec<CsiError> {
        let ledgers = match self.ledgers() {
            Ok(ledgers) => ledgers,
            Err(error) => return vec![unreadable(error)],
        };
        let mut errors = Vec::new();
        for (plugin, files) in ledgers {
            let records = match files.load() {
                Ok(records) => records,
                Err(error) => {
                    errors.push(unreadable(error));
                    continue;
                }
            };
            for (id, _) in records.into_iter().filter(|(_, volume)| volume.users.contains_key(user)) {
                let left = async {
                    let (manager, _) = self.manager(&plugin, Duration::ZERO).await?;
                    manager.leave(user, &id, &secrets(&plugin, &id), std::future::pending()).await
                };
                errors.extend(left.await.err());
            }
        }
        if !errors.is_empty() {
            errors.extend(self.leave(user).map_err(unreadable).err());
        }
        errors
    }

    /// Records that a user does not use its volumes any more: what it has of them is undone when their plugins run.
    ///
    /// # Errors
    /// The records cannot be read or written.
    pub fn leave(&self, user: &str) -> io::Result<()> {
        for (_, files, ids) in self.used_by(user)? {
            for id in ids {
                // If another process works at the volume, its plugin runs.
                if let Some(mut locked) = files.lock(&id, false)? {
                    locked.volume.leave(user);
                    files.save(&id, &locked.volume)?;
                }
            }
        }
        Ok(())
    }

    /// Undoes what users have left that do not exist any more, of volumes whose secrets `secrets` knows.
    pub async fn settle(
        &self,
        is_live: &(dyn Fn(&str) -> bool + Send + Sync),
        secrets: &SecretsOf<'_>,
    ) -> Vec<CsiError> {
        let mut errors = Vec::new();
        match self.pending(is_live) {
            Ok(plugins) => {
                for plugin in plugins {
                    match self.manager(&plugin, Duration::ZERO).await {
                        Ok((manager, _)) => {
                            let secrets = |id: &VolumeId| secrets(&plugin, id);
                            errors.extend(manager.settle(is_live, &secrets).await);
                        }
                        Err(error) => errors.push(error),
                    }
                }
            }
            Err(error) => errors.push(unreadable(error)),
        }
        errors
    }

    /// The plugins with volumes of users that do not exist any more.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn pending(&self, is_live: &dyn Fn(&str) -> bool) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for (plugin, files) in self.ledgers()? {
            if files.load()?.iter().any(|(_, volume)| volume.needs_clearing(is_live)) {
                found.push(plugin);
            }
        }
        Ok(found)
    }

    /// The plugins with volumes that a user has, or has left.
    ///
    /// # Errors
    /// The records cannot be read.
    pub(crate) fn of_user(&self, user: &str) -> io::Result<Vec<String>> {
        Ok(self.used_by(user)?.into_iter().map(|(plugin, ..)| plugin).collect())
    }

    /// The same, with the records and the ids of these volumes.
    fn used_by(&self, user: &str) -> io::Result<Vec<(String, Files, Vec<VolumeId>)>> {
        let mut found = Vec::new();
        for (plugin, files) in self.ledgers()? {
            let used = files.load()?.into_iter().filter(|(_, volume)| volume.users.contains_key(user));
            let ids: Vec<VolumeId> = used.map(|(id, _)| id).collect();
            if !ids.is_empty() {
                found.push((plugin, files, ids));
            }
        }
        Ok(found)
    }

    /// Removes the registrations of owners that do not exist any more.
    ///
    /// # Errors
    /// As [`Plugins::list`] and [`Plugins::deregister`].
    pub fn forget(&self, is_live: &dyn Fn(&str) -> bool) -> io::Result<()> {
        let gone = |one: &Instance| !one.owner.is_empty() && !is_live(&one.owner);
        let records = self.records()?;
        let mut all = records.iter().map(|record| &record.instance);
        all.try_for_each(|one| if gone(one) { self.deregister(&one.id, &one.owner) } else { Ok(()) })
    }

    /// Checks that the node service of a plugin accepts connections.
    ///
    /// # Errors
    /// Where it was expected, and what to do.
    pub fn reach(&self, plugin: &str) -> Result<(), CsiError> {
        let (node, _) = self.instances(plugin)?;
        match UnixStream::connect(&node.socket) {
            Ok(_) => Ok(()),
            Err(error) => Err(CsiError::invalid(format!(
                "CSI plugin {plugin:?} does not listen at {}: {error}; start it again, then run agentbin gc",
                node.socket.display()
            ))),
        }
    }

    /// The records of volumes, by their plugins.
    fn ledgers(&self) -> io::Result<Vec<(String, Files)>> {
        let Some(dir) = self.there("volumes")? else { return Ok(Vec::new()) };
        let known = self.records()?;
        let mut all = Vec::new();
        for entry in rustix::fs::Dir::read_from(&dir)? {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().ok().filter(|name| !name.starts_with('.')) else { continue };
            // A plugin without an instance, even of an earlier boot, is named by its directory.
            let id = known.iter().find(|one| safe(&one.instance.id) == name).map_or(name, |one| &one.instance.id);
            all.push((id.to_owned(), Files::open(&dir, id)?));
        }
        Ok(all)
    }

    /// The newest node service of a plugin, and its newest controller.
    fn instances(&self, plugin: &str) -> Result<(Instance, Option<Instance>), CsiError> {
        let all = self.list().map_err(unreadable)?;
        let of = |has: fn(CsiKind) -> bool| all.iter().find(|one| one.id == plugin && has(one.kind)).cloned();
        let node = of(CsiKind::is_node).ok_or_else(|| {
            CsiError::invalid(format!(
                "no CSI plugin {plugin:?} runs here; say where it listens with --csi-plugin {plugin}=SOCKET, or run its job, whose \
                 task has csi_plugin {{ id = \"{plugin}\" }}"
            ))
        })?;
        Ok((node, of(CsiKind::is_controller)))
    }

    /// The manager of a plugin's volumes, with the instance that runs now.
    async fn manager(&self, plugin: &str, wait: Duration) -> Result<(Arc<Manager>, Places), CsiError> {
        let until = tokio::time::Instant::now() + wait;
        let mut pause = FIRST_LOOK;
        let mut changes = self.changes();
        let (node, controller) = loop {
            match self.instances(plugin) {
                Ok(found) => break found,
                Err(error) if tokio::time::Instant::now() >= until => return Err(error),
                Err(_) => {}
            }
            tokio::select! {
                // The sender lives as long as this value.
                _ = changes.changed() => {}
                // It may be registered by another process.
                () = tokio::time::sleep(pause.min(until.saturating_duration_since(tokio::time::Instant::now()))) => {}
            }
            pause = (pause * 2).min(LAST_LOOK);
        };
        let client = Client::new(&node.socket)?;
        let (mut fingerprint, is_ready) = client.fingerprint(true, node.kind.is_controller()).await?;
        if !is_ready {
            let text = format!("CSI plugin {plugin:?} says that it is not ready; see its logs");
            return Err(CsiError::invalid(text));
        }
        let mut calls_controller = None;
        if fingerprint.info.needs_controller && !node.kind.is_controller() {
            let controller = controller.ok_or_else(|| {
                CsiError::invalid(format!(
                    "CSI plugin {plugin:?} needs a controller, and none runs here; run its job of type controller, too"
                ))
            })?;
            let client = Client::new(&controller.socket)?;
            fingerprint.controller = Some(client.controller_flags().await?);
            calls_controller = Some(client);
        }
        let broken = |source| CsiError::Record { volume: format!("all of plugin {plugin}"), source };
        let places = Places::new(&node.host, &node.plugin).map_err(broken)?;
        let mut calls = Plugin::new(client, fingerprint, places.clone());
        if let Some(controller) = calls_controller {
            calls = calls.with_controller(controller);
        }
        let calls = Arc::new(calls);
        let mut managers = lock(&self.managers);
        let manager = if let Some(manager) = managers.get(plugin) {
            manager.replace(calls);
            Arc::clone(manager)
        } else {
            let files = self.make("volumes").and_then(|dir| Files::open(&dir, plugin)).map_err(broken)?;
            let manager = Manager::open(calls, Arc::new(files));
            managers.insert(plugin.to_owned(), Arc::clone(&manager));
            manager
        };
        Ok((manager, places))
    }
}

fn file_of(id: &str, owner: &str) -> String {
    // Neither part contains a comma.
    format!("{}{SUFFIX}", safe(&format!("{},{}", safe(id), safe(owner))))
}

fn unreadable(source: io::Error) -> CsiError {
    CsiError::Record { volume: "all".to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::User;

    fn instance(id: &str, kind: CsiKind, owner: &str, age: u64) -> Instance {
        Instance {
            id: id.to_owned(),
            kind,
            owner: owner.to_owned(),
            socket: format!("/run/{owner}").into(),
            host: "/mounts".into(),
            plugin: "/local/csi".into(),
            provider: "p".to_owned(),
            version: "1".to_owned(),
            since: SystemTime::UNIX_EPOCH + Duration::from_secs(1000 - age),
        }
    }

    #[test]
    fn f4_the_newest_instance_is_used_and_each_owner_removes_its_own() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let plugins = Plugins::new(dir.path());
        assert!(plugins.list().unwrap().is_empty() && plugins.instances("p/0").is_err());
        let (old, new) = (instance("p/0", CsiKind::Monolith, "a", 9), instance("p/0", CsiKind::Monolith, "b", 1));
        for one in [&old, &new, &instance("other", CsiKind::Node, "a", 0)] {
            plugins.register(one).unwrap();
        }
        // Another process sees them.
        let plugins = Plugins::new(dir.path());
        assert_eq!(plugins.instances("p/0").unwrap(), (new.clone(), Some(new.clone())));
        plugins.deregister("p/0", "none").unwrap();
        plugins.deregister("p/0", "a").unwrap();
        assert_eq!(plugins.instances("p/0").unwrap().0, new, "what goes is the old one");
        // Node service and controller apart.
        plugins.register(&instance("p/0", CsiKind::Controller, "c", 0)).unwrap();
        let (node, controller) = plugins.instances("p/0").unwrap();
        assert_eq!((&*node.owner, &*controller.unwrap().owner), ("b", "c"));
        plugins.forget(&|owner| owner == "c").unwrap();
        let error = plugins.instances("p/0").unwrap_err().to_string();
        assert!(error.contains("--csi-plugin p/0=SOCKET"), "{error}");
        assert_eq!(plugins.list().unwrap().len(), 1);
    }

    #[test]
    fn f4_an_instance_of_an_earlier_boot_is_none_and_one_of_the_operator_stays() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let plugins = Plugins::new(dir.path());
        for one in [&instance("disk", CsiKind::Node, "a", 0), &instance("other", CsiKind::Node, "", 1)] {
            plugins.register(one).unwrap();
        }
        let files = || std::fs::read_dir(dir.path().join("csi/plugins")).unwrap().map(|file| file.unwrap().path());
        for path in files() {
            let text = std::fs::read_to_string(&path).unwrap().replace(&boot_id().unwrap(), "an earlier one");
            std::fs::write(path, text).unwrap();
        }
        let listed: Vec<String> = plugins.list().unwrap().into_iter().map(|one| one.id).collect();
        assert_eq!(listed, ["other"]);
        plugins.forget(&|_| false).unwrap();
        assert_eq!(files().count(), 1);
        plugins.register(&instance("disk", CsiKind::Node, "a", 0)).unwrap();
        assert_eq!(plugins.instances("disk").unwrap().0.owner, "a");
    }

    #[tokio::test]
    async fn f7_without_a_plugin_its_records_say_who_uses_a_volume_no_more() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let plugins = Plugins::new(dir.path());
        let files = Files::open(&plugins.make("volumes").unwrap(), "disk").unwrap();
        let id = VolumeId { namespace: "default".to_owned(), id: "v".to_owned() };
        let user = || User { read_only: false, leaves: false, published: Some(Phase::Done) };
        let users = ["a", "b"].map(|name| (name.to_owned(), user()));
        files.save(&id, &VolumeUse { users: users.into(), ..VolumeUse::default() }).unwrap();
        let errors = plugins.release("a", &|_, _| Secrets::default()).await;
        assert!(errors.len() == 1 && errors[0].to_string().contains("no CSI plugin \"disk\" runs here"), "{errors:?}");
        let leaves = |name: &str| plugins.volume("disk", &id).unwrap().users[name].leaves;
        assert_eq!((leaves("a"), leaves("b")), (true, false));
        // Although somebody takes it for alive.
        assert!(plugins.detach("disk", &id, &Secrets::default(), &|_| true).await.is_err());
        assert_eq!(plugins.pending(&|_| true).unwrap(), ["disk"]);
        assert_eq!((plugins.of_user("b").unwrap(), plugins.of_user("c").unwrap()), (vec!["disk".to_owned()], vec![]));
        plugins.leave("b").unwrap();
        assert!(leaves("b"));
    }
}
