//! Plugins that create and delete the directories of dynamic host volumes: the built-in `mkdir`, and programs of the operator.
//! Never knows who uses a volume.
//!
//! A create is repeated when the agent starts, and both operations when it was killed: each plugin returns the same result again.

mod mkdir;
mod program;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::volumes::{HostVolume, HostVolumes};
use crate::spec::collections::BTreeMap;
use crate::sys::lock::lock;

/// The name of the built-in plugin.
pub const MKDIR: &str = "mkdir";
/// Its version, that of Nomad's.
const MKDIR_VERSION: &str = "0.0.1";

/// A volume as its plugin needs to know it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provision {
    /// UUID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its plugin.
    pub plugin: String,
    /// The node's id.
    pub node_id: String,
    /// The node's pool.
    pub node_pool: String,
    /// Its smallest and largest size, in bytes; 0 is any.
    pub capacity: (i64, i64),
    /// What its author gives to the plugin.
    pub parameters: BTreeMap<String, String>,
    /// The path that the plugin told when it created the volume, or at which it was registered.
    pub path: PathBuf,
}

/// What a plugin created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provided {
    /// The directory that tasks mount.
    pub path: PathBuf,
    /// Its size in bytes; 0 where the plugin does not limit it.
    pub bytes: i64,
}

/// Why a plugin could not do something.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// There is no such plugin.
    #[error("there is no host volume plugin {name:?} here; use mkdir, or put the plugin's program into {}", dir.display())]
    NoPlugin {
        /// Its name.
        name: String,
        /// Where it would be.
        dir: PathBuf,
    },
    /// A parameter is wrong.
    #[error("host volume plugin mkdir: {0}")]
    Parameter(String),
    /// A plugin failed.
    #[error("host volume plugin {plugin:?} failed to {operation} volume {id}: {why}")]
    Failed {
        /// Its name.
        plugin: String,
        /// `create` or `delete`.
        operation: &'static str,
        /// The volume.
        id: String,
        /// How it ended, and what it told.
        why: String,
    },
    /// The work of a plugin panicked.
    #[error("the work on a volume failed unexpectedly: {0}")]
    BrokeDown(String),
    /// The directory of a volume cannot be used.
    #[error("cannot use the directory {} of volume {name:?}", path.display())]
    Directory {
        /// The volume's name.
        name: String,
        /// Its directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A program that was asked for its version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    /// When it is the same, so is the file.
    stamp: (u64, u64, i64, i64),
    /// `None` where it did not tell.
    version: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub struct VolumePlugins {
    /// Where plugins put volumes.
    volumes_dir: PathBuf,
    /// Where programs are.
    plugin_dir: PathBuf,
    /// For locks.
    own_dir: PathBuf,
    volumes: HostVolumes,
    /// The programs that were asked for their versions.
    found: Mutex<BTreeMap<String, Found>>,
}

impl VolumePlugins {
    /// The plugins of a machine; what they create becomes one of its `volumes`. Directories that are not given are in the data
    /// directory.
    #[must_use]
    pub fn new(
        data_dir: &Path,
        volumes_dir: Option<PathBuf>,
        plugin_dir: Option<PathBuf>,
        volumes: HostVolumes,
    ) -> Arc<VolumePlugins> {
        Arc::new(VolumePlugins {
            volumes_dir: volumes_dir.unwrap_or_else(|| data_dir.join("host_volumes")),
            plugin_dir: plugin_dir.unwrap_or_else(|| data_dir.join("host_volume_plugins")),
            own_dir: data_dir.join("volume_plugins"),
            volumes,
            found: Mutex::default(),
        })
    }

    /// The versions of all plugins, by name. A program is asked again only when its file has changed.
    pub async fn versions(self: &Arc<Self>) -> BTreeMap<String, String> {
        let own = Arc::clone(self);
        let told = crate::sys::task::spawn_blocking(move || {
            let found = own.look(&lock(&own.found).clone());
            lock(&own.found).clone_from(&found);
            found
        });
        let mut versions = BTreeMap::from([(MKDIR.to_owned(), MKDIR_VERSION.to_owned())]);
        for (name, Found { version, .. }) in told.await.unwrap_or_default() {
            if let Some(version) = version.filter(|_| name != MKDIR) {
                versions.insert(name, version);
            }
        }
        versions
    }

    /// Creates a volume, or finds it created, and lets tasks mount it.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub async fn create(self: &Arc<Self>, wanted: Provision) -> Result<Provided, VolumeError> {
        self.in_background(move |own| {
            let provided = if wanted.plugin == MKDIR { own.make(&wanted)? } else { own.ask_to_create(&wanted)? };
            own.mount_point(&wanted.name, &provided.path)?;
            Ok(provided)
        })
        .await
    }

    /// Lets tasks mount an existing directory.
    ///
    /// # Errors
    /// [`VolumeError::Directory`].
    pub async fn register(self: &Arc<Self>, name: String, path: PathBuf) -> Result<(), VolumeError> {
        self.in_background(move |own| own.mount_point(&name, &path)).await
    }

    /// Deletes a volume that nobody uses, or finds it deleted.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub async fn delete(self: &Arc<Self>, wanted: Provision) -> Result<(), VolumeError> {
        // Its descriptor would keep a file system mounted.
        self.withdraw(&wanted.name);
        self.in_background(
            move |own| if wanted.plugin == MKDIR { own.remove(&wanted) } else { own.ask_to_delete(&wanted) },
        )
        .await
    }

    /// From now on no task can mount the volume of this name.
    pub fn withdraw(&self, name: &str) {
        self.volumes.withdraw(name);
    }

    fn mount_point(&self, name: &str, path: &Path) -> Result<(), VolumeError> {
        let source = |source| VolumeError::Directory { name: name.to_owned(), path: path.to_owned(), source };
        if !path.is_absolute() {
            return Err(source(io::Error::new(io::ErrorKind::InvalidInput, "it must be an absolute path")));
        }
        self.volumes.offer(name, HostVolume::open(path, false).map_err(source)?);
        Ok(())
    }

    async fn in_background<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&VolumePlugins) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let own = Arc::clone(self);
        let done = crate::sys::task::spawn_blocking(move || work(&own)).await;
        done.unwrap_or_else(|error| Err(VolumeError::BrokeDown(error.to_string())))
    }
}

#[cfg(test)]
mod tests;
