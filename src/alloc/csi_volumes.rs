//! The CSI volumes of this machine, by the names under which groups find them.

use std::path::Path;
use std::sync::Arc;

use crate::csi::{Capability, Plugins, Secrets, VolumeId};
use crate::spec::collections::BTreeMap;
use crate::spec::{MountOptions, Volume};

/// The namespace of volumes from the command line. All runs have the same one: a volume that two of them use is staged once.
const NAMESPACE: &str = "default";

/// A volume of a plugin, as the operator gives it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CsiVolume {
    /// The plugin's id.
    pub plugin: String,
    /// The plugin's id of the volume.
    pub id: String,
    /// No task writes to it.
    pub read_only: bool,
    /// What is registered of it besides, if it is.
    #[serde(skip)]
    pub registered: Option<Registered>,
}

/// What an agent knows of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The namespace in which it is registered.
    pub namespace: String,
    /// What the plugin wants to be given with it.
    pub context: BTreeMap<String, String>,
    /// For the plugin.
    pub secrets: Secrets,
    /// Mount options, which those of a group take precedence over.
    pub options: MountOptions,
}

impl CsiVolume {
    /// In the form for its plugin.
    pub(super) fn volume(&self) -> crate::csi::Volume {
        let id = |namespace: &str| VolumeId { namespace: namespace.to_owned(), id: self.id.clone() };
        match &self.registered {
            None => crate::csi::Volume { id: id(NAMESPACE), context: BTreeMap::new(), secrets: Secrets::default() },
            Some(Registered { namespace, context, secrets, .. }) => {
                crate::csi::Volume { id: id(namespace), context: context.clone(), secrets: secrets.clone() }
            }
        }
    }
}

/// The CSI volumes of this machine, by the name that groups use as their source, and their plugins.
#[derive(Debug, Clone)]
pub struct CsiVolumes {
    /// The plugins.
    pub plugins: Arc<Plugins>,
    given: BTreeMap<String, CsiVolume>,
}

impl CsiVolumes {
    /// The plugins of a data directory; no volumes yet.
    #[must_use]
    pub fn new(data_dir: &Path) -> CsiVolumes {
        CsiVolumes { plugins: Arc::new(Plugins::new(data_dir)), given: BTreeMap::new() }
    }

    /// Adds a volume, replacing one of the same name.
    pub fn add(&mut self, name: String, volume: CsiVolume) {
        self.given.insert(name, volume);
    }

    /// Finds the volume for allocation number `index` of the group that declares `volume`, and how it is to be used.
    ///
    /// # Errors
    /// The reason and the fix.
    pub fn find(&self, volume: &Volume, index: u32) -> Result<(&CsiVolume, Capability), String> {
        self.find_for(None, volume, index)
    }

    /// The same; volumes that were given to the allocation itself take precedence.
    pub(super) fn find_for<'a>(
        &'a self,
        given: Option<&'a BTreeMap<String, CsiVolume>>,
        volume: &Volume,
        index: u32,
    ) -> Result<(&'a CsiVolume, Capability), String> {
        let source = volume.source_of(index);
        let mut wanted = volume.csi.clone().unwrap_or_default();
        let own = given.and_then(|given| given.get(&source));
        let found = own.or_else(|| self.given.get(&source));
        if let Some(Registered { options, .. }) = found.and_then(|found| found.registered.as_ref()) {
            wanted.options = options.clone().with(&wanted.options);
        }
        let capability = Capability::from_words(&wanted.access_mode, &wanted.attachment_mode, wanted.options);
        let capability = capability.map_err(|error| error.to_string())?;
        if capability.access.is_reader_only() && !volume.read_only {
            return Err(format!("access_mode \"{}\" is for readers; add read_only = true", capability.access));
        }
        let found = found.ok_or_else(|| {
            format!(
                "there is no CSI volume \"{source}\" here; say which one it is with --csi-volume {source}=PLUGIN:ID, and where its \
                 plugin listens with --csi-plugin PLUGIN=SOCKET"
            )
        })?;
        if found.read_only && !volume.read_only {
            return Err(format!(
                "CSI volume \"{source}\" is read-only, and this volume is not; add read_only = true, or give the volume as a writable \
                 one"
            ));
        }
        Ok((found, capability))
    }
}
