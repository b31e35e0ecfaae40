//! Executes the steps of a volume on this node as calls of its plugin, and manages the directories that they need.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::capability::{AttachmentMode, Capability, Secrets, Usage};
use super::client::Client;
use super::error::CsiError;
use super::fingerprint::Fingerprint;
use super::usage::{Needs, Step};
use crate::spec::collections::BTreeMap;
use crate::sys::path::Root;
use crate::wire::csi as wire;

/// Longest name that is used unhashed in a path, in bytes.
const LONGEST_NAME: usize = 180;

/// Which volume: the namespace that it was registered in, and the plugin's id of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct VolumeId {
    /// Its namespace.
    pub namespace: String,
    /// The plugin's id of the volume.
    pub id: String,
}

/// A volume, with the data that its plugin needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Which one.
    pub id: VolumeId,
    /// The context that the plugin returned when the volume was created.
    pub context: BTreeMap<String, String>,
    /// The secrets that the plugin requires.
    pub secrets: Secrets,
}

/// The parameters of a step.
#[derive(Debug, Clone)]
pub struct Work {
    /// The volume.
    pub volume: Volume,
    /// How it is used, as recorded.
    pub usage: Usage,
    /// How it is used; `None` for steps that only undo something.
    pub capability: Option<Capability>,
    /// The context that the controller returned when it attached the volume.
    pub context: BTreeMap<String, String>,
    /// Whether the user of the step only reads.
    pub read_only: bool,
}

/// Executes steps. Each step may be requested twice, and one that fails may have been executed.
#[tonic::async_trait]
pub trait Calls: Send + Sync {
    /// The steps that the plugin needs.
    fn needs(&self) -> Needs;

    /// Executes a step. Attach returns the controller's context, every other step an empty map.
    async fn make(&self, step: &Step, work: &Work) -> Result<BTreeMap<String, String>, CsiError>;

    /// Whether the volume is still mounted at the user's path.
    async fn has(&self, user: &str, work: &Work) -> Result<bool, CsiError>;
}

/// The directory for the volumes of one plugin, by its path in this process and in the plugin.
#[derive(Debug, Clone)]
pub struct Places {
    host: PathBuf,
    plugin: PathBuf,
}

impl Places {
    /// Creates the directory (0700) if it is missing.
    ///
    /// # Errors
    /// The error of `mkdir(2)`.
    pub fn new(host: &Path, plugin: &Path) -> io::Result<Places> {
        DirBuilder::new().recursive(true).mode(0o700).create(host)?;
        Ok(Places { host: host.to_owned(), plugin: plugin.to_owned() })
    }

    /// The path of a user's volume on the host.
    #[must_use]
    pub fn target(&self, user: &str, volume: &VolumeId, usage: &Usage, read_only: bool) -> PathBuf {
        self.host.join(target(user, volume, usage, read_only))
    }

    /// Whether the volume is mounted at the user's path.
    ///
    /// # Errors
    /// When the path cannot be looked at.
    pub async fn has(&self, user: &str, id: &VolumeId, usage: &Usage, read_only: bool) -> Result<bool, CsiError> {
        let below = target(user, id, usage, read_only);
        // A driver may put a plain directory there, or a device without a mount.
        if usage.attachment == AttachmentMode::BlockDevice {
            return self.at(below, is_there).await;
        }
        self.at(below, is_mounted).await
    }

    /// Removes a user's path that was unpublished, if the plugin's answer allows that.
    async fn unpublished(&self, done: Result<(), CsiError>, target: PathBuf) -> Result<(), CsiError> {
        // Of a path that is gone, plugins say so.
        let says_gone = done.as_ref().is_err_and(CsiError::says_no_mount_point);
        if !says_gone || self.at(target.clone(), is_there).await? {
            ignored(done)?;
        }
        self.at(target, remove).await
    }

    /// A path in the plugin's view.
    /// The paths of a user's volume, and of where it is staged, as the plugin sees them.
    pub(super) fn shown_to_plugin(
        &self,
        user: &str,
        id: &VolumeId,
        usage: &Usage,
        read_only: bool,
    ) -> (String, String) {
        (self.shown(&target(user, id, usage, read_only)), self.shown(&staging(id, usage)))
    }

    fn shown(&self, below: &Path) -> String {
        self.plugin.join(below).to_string_lossy().into_owned()
    }

    async fn at<T: Send + 'static>(
        &self,
        below: PathBuf,
        look: fn(&Root, &Path) -> io::Result<T>,
    ) -> Result<T, CsiError> {
        // On another thread, as a file system that does not answer must not block the event loop.
        let host = self.host.clone();
        let shown = self.host.join(&below).display().to_string();
        let done = crate::sys::task::spawn_blocking(move || look(&Root::open(&host)?, &below)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(|error| CsiError::invalid(format!("cannot prepare {shown}: {error}")))
    }
}

fn staging(volume: &VolumeId, usage: &Usage) -> PathBuf {
    let names = ["staging".to_owned(), safe(&volume.namespace), safe(&volume.id), usage.dir_name(false)];
    names.iter().collect()
}

fn target(user: &str, volume: &VolumeId, usage: &Usage, read_only: bool) -> PathBuf {
    // Includes the namespace: ids are chosen by the plugin, and two namespaces may have the same one.
    let names =
        ["per-alloc".to_owned(), safe(user), safe(&volume.namespace), safe(&volume.id), usage.dir_name(read_only)];
    names.iter().collect()
}

/// Escapes a name to a unique path component.
pub(super) fn safe(name: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for (number, byte) in name.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || byte == b'.' && number > 0 {
            text.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    if text.is_empty() {
        return "%".to_owned();
    }
    if text.len() > LONGEST_NAME {
        use sha2::Digest as _;
        let digest = sha2::Sha256::digest(name);
        return digest.iter().fold("%%".to_owned(), |text, byte| format!("{text}{byte:02x}"));
    }
    text
}

fn make_dirs(root: &Root, below: &Path) -> io::Result<()> {
    root.create_dir_all(below, Mode::RWXU).map(drop)
}

fn make_parent(root: &Root, below: &Path) -> io::Result<()> {
    make_dirs(root, below.parent().unwrap_or(Path::new(".")))
}

fn parent(root: &Root, below: &Path) -> io::Result<std::os::fd::OwnedFd> {
    root.open_beneath(below.parent().unwrap_or(Path::new(".")), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())
}

fn is_there(root: &Root, below: &Path) -> io::Result<bool> {
    match root.open_beneath(below, OFlags::PATH, Mode::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other.map(|_| true),
    }
}

fn is_mounted(root: &Root, below: &Path) -> io::Result<bool> {
    let dir = match parent(root, below) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    match rustix::fs::statx(dir, below.file_name().unwrap_or_default(), flags, StatxFlags::empty()) {
        Ok(found) => Ok(found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Removes an empty directory or file and its parent directories as far as they are empty. Mount points are kept.
fn remove(root: &Root, below: &Path) -> io::Result<()> {
    for path in below.ancestors().take_while(|path| path.components().count() > 1) {
        let dir = match parent(root, path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let name = path.file_name().unwrap_or_default();
        let removed = match rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) if path == below => rustix::fs::unlinkat(&dir, name, AtFlags::empty()),
            other => other,
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => {}
            // It belongs to another user, or to another use.
            Err(Errno::NOTEMPTY | Errno::EXIST) if path != below => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// A plugin whose node service runs here, with its controller if it has one.
#[derive(Debug)]
pub struct Plugin {
    client: Client,
    controller: Client,
    fingerprint: Fingerprint,
    places: Places,
}

impl Plugin {
    /// A plugin with this fingerprint.
    #[must_use]
    pub fn new(client: Client, fingerprint: Fingerprint, places: Places) -> Plugin {
        Plugin { controller: client.clone(), client, fingerprint, places }
    }

    /// The same, with a controller that is another process.
    #[must_use]
    pub fn with_controller(mut self, controller: Client) -> Plugin {
        self.controller = controller;
        self
    }

    fn node_id(&self) -> String {
        self.fingerprint.node.as_ref().map(|node| node.id.clone()).unwrap_or_default()
    }

    fn staging(&self, work: &Work) -> String {
        if !self.needs().stage {
            return String::new();
        }
        self.places.shown(&staging(&work.volume.id, &work.usage))
    }

    async fn attach(&self, work: &Work) -> Result<BTreeMap<String, String>, CsiError> {
        let (volume, wanted) = (&work.volume, wanted(work)?);
        let request = wire::ControllerPublishVolumeRequest {
            volume_id: volume.id.id.clone(),
            node_id: self.node_id(),
            volume_capability: Some(wanted.wire()),
            // Users that write may join later.
            readonly: wanted.access.is_reader_only() && self.fingerprint.controller.is_some_and(|c| c.read_only_attach),
            secrets: volume.secrets.wire(),
            volume_context: map(&volume.context),
        };
        let (client, id) = (&self.controller, &volume.id.id);
        let said = client.ask(id, request).await?;
        Ok(said.publish_context.into_iter().collect())
    }

    async fn detach(&self, work: &Work) -> Result<(), CsiError> {
        let (client, id) = (&self.controller, &work.volume.id.id);
        let request = wire::ControllerUnpublishVolumeRequest {
            volume_id: id.clone(),
            node_id: self.node_id(),
            secrets: work.volume.secrets.wire(),
        };
        client.ask(id, request).await.map(drop)
    }

    async fn stage(&self, work: &Work) -> Result<(), CsiError> {
        let volume = &work.volume;
        self.places.at(staging(&volume.id, &work.usage), make_dirs).await?;
        let (client, id) = (&self.client, &volume.id.id);
        let request = wire::NodeStageVolumeRequest {
            volume_id: id.clone(),
            publish_context: map(&work.context),
            staging_target_path: self.staging(work),
            volume_capability: Some(wanted(work)?.wire()),
            secrets: volume.secrets.wire(),
            volume_context: map(&volume.context),
        };
        client.ask(id, request).await.map(drop)
    }

    async fn unstage(&self, work: &Work) -> Result<(), CsiError> {
        let (client, id) = (&self.client, &work.volume.id.id);
        let request = wire::NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: self.staging(work) };
        let done = client.ask(id, request).await.map(drop);
        ignored(done)?;
        self.places.at(staging(&work.volume.id, &work.usage), remove).await
    }

    async fn publish(&self, user: &str, work: &Work) -> Result<(), CsiError> {
        let volume = &work.volume;
        let target = target(user, &volume.id, &work.usage, work.read_only);
        self.places.at(target.clone(), make_parent).await?;
        let (client, id) = (&self.client, &volume.id.id);
        let request = wire::NodePublishVolumeRequest {
            volume_id: id.clone(),
            publish_context: map(&work.context),
            staging_target_path: self.staging(work),
            target_path: self.places.shown(&target),
            volume_capability: Some(wanted(work)?.wire()),
            readonly: work.read_only,
            secrets: volume.secrets.wire(),
            volume_context: map(&volume.context),
        };
        client.ask(id, request).await.map(drop)
    }

    async fn unpublish(&self, user: &str, work: &Work) -> Result<(), CsiError> {
        let (client, id) = (&self.client, &work.volume.id.id);
        let target = target(user, &work.volume.id, &work.usage, work.read_only);
        let request =
            wire::NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: self.places.shown(&target) };
        let done = client.ask(id, request).await.map(drop);
        self.places.unpublished(done, target).await
    }
}

/// Undoing a step succeeds if its result does not exist any more.
fn ignored(done: Result<(), CsiError>) -> Result<(), CsiError> {
    done.or_else(|error| if error.is_ignorable() { Ok(()) } else { Err(error) })
}

fn map(context: &BTreeMap<String, String>) -> std::collections::HashMap<String, String> {
    context.clone().into_iter().collect()
}

fn wanted(work: &Work) -> Result<&Capability, CsiError> {
    let missing = || CsiError::invalid(format!("volume {}: nobody says how it is to be used", work.volume.id.id));
    work.capability.as_ref().ok_or_else(missing)
}

#[tonic::async_trait]
impl Calls for Plugin {
    fn needs(&self) -> Needs {
        Needs {
            attach: self.fingerprint.controller.is_some_and(|controller| controller.attach_detach),
            stage: self.fingerprint.node.as_ref().is_some_and(|node| node.flags.stage),
        }
    }

    async fn make(&self, step: &Step, work: &Work) -> Result<BTreeMap<String, String>, CsiError> {
        let tells_writers_apart = self.fingerprint.node.as_ref().is_some_and(|node| node.flags.multi_writer);
        if let Some(capability) = &work.capability
            && capability.access.needs_multi_writer()
            && !tells_writers_apart
        {
            let (access, plugin) = (capability.access, &self.fingerprint.info.provider);
            return Err(CsiError::invalid(format!(
                "plugin {plugin} does not know access mode {access}; use single-node-writer"
            )));
        }
        match step {
            Step::Attach => return self.attach(work).await,
            Step::Stage => self.stage(work).await,
            Step::Publish(user) => self.publish(user, work).await,
            Step::Unpublish(user) => self.unpublish(user, work).await,
            Step::Unstage => self.unstage(work).await,
            Step::Detach => ignored(self.detach(work).await),
        }?;
        Ok(BTreeMap::new())
    }

    async fn has(&self, user: &str, work: &Work) -> Result<bool, CsiError> {
        self.places.has(user, &work.volume.id, &work.usage, work.read_only).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f7_a_volume_has_a_place_of_its_own_whatever_its_id_is() {
        let names = ["a/b", "a%2fb", "..", ".", "", "a", &"x".repeat(300), &"x".repeat(301), "vol-1.2_3"];
        let safe: Vec<String> = names.iter().map(|name| super::safe(name)).collect();
        for (number, name) in safe.iter().enumerate() {
            assert!(!name.is_empty() && !name.contains('/') && name.len() <= 255 && !name.starts_with('.'), "{name}");
            assert_eq!(safe.iter().position(|other| other == name), Some(number), "{name}");
        }
        assert_eq!(safe[8], "vol-1.2_3");
    }

    #[tokio::test]
    async fn f7_what_is_gone_is_unpublished_whatever_the_plugin_says_of_its_mount() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path(), dir.path()).unwrap();
        let failed = |message: &str| {
            Err(CsiError::answer("NodeUnpublishVolume", "v", &tonic::Status::internal(message.to_owned())))
        };
        let target = PathBuf::from("per-alloc/a/v/rw");
        let no_mount = || failed("umount failed: no mount point specified");
        places.unpublished(no_mount(), target.clone()).await.unwrap();
        assert!(places.unpublished(failed("busy"), target.clone()).await.is_err());
        make_dirs(&Root::open(dir.path()).unwrap(), &target).unwrap();
        assert!(places.unpublished(no_mount(), target.clone()).await.is_err());
        assert!(dir.path().join(&target).exists());
        places.unpublished(Ok(()), target.clone()).await.unwrap();
        assert!(!dir.path().join(&target).exists());
    }

    #[test]
    fn f7_directories_are_made_and_removed_as_far_as_they_are_empty() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::open(dir.path()).unwrap();
        let (one, other) = (Path::new("per-alloc/a/v/rw"), Path::new("per-alloc/a/w/rw"));
        make_dirs(&root, one).unwrap();
        make_parent(&root, other).unwrap();
        std::fs::write(dir.path().join(other), "device").unwrap();
        assert!(!is_mounted(&root, one).unwrap() && !is_mounted(&root, Path::new("no/such/one")).unwrap());
        std::fs::write(dir.path().join(one).join("data"), "kept").unwrap();
        assert!(remove(&root, one).is_err(), "data is never removed");
        std::fs::remove_file(dir.path().join(one).join("data")).unwrap();
        remove(&root, one).unwrap();
        remove(&root, one).unwrap();
        assert!(!dir.path().join("per-alloc/a/v").exists() && dir.path().join(other).exists());
        remove(&root, other).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("per-alloc")).unwrap().count(), 0);
    }
}
