//! `--volume`, `--csi-volume`, `--csi-plugin`: volumes and plugins, as the command line and configurations write them.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::alloc::{CsiVolume, CsiVolumes};
use crate::csi::{Client, Instance};
use crate::spec::{CsiKind, Volume};

/// A volume as the operator gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// Its name in job files.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) read_only: bool,
    /// Where it was configured.
    pub(super) origin: String,
}

/// Parses `NAME=PATH` or `NAME=PATH:ro`.
pub(super) fn given(text: &str) -> Result<Given, String> {
    let (path, read_only) = match text.strip_suffix(":ro") {
        Some(path) => (path, true),
        None => (text, false),
    };
    match path.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            let path = std::path::absolute(Path::new(path)).map_err(|error| error.to_string())?;
            Ok(Given { name: name.to_owned(), path, read_only, origin: format!("--volume {text}") })
        }
        _ => Err("write it as NAME=PATH or NAME=PATH:ro".to_owned()),
    }
}

/// A CSI plugin that the operator runs.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct GivenPlugin {
    /// Its id in job files.
    pub(super) id: String,
    pub(super) socket: PathBuf,
}

/// Parses `ID=SOCKET`.
pub(super) fn given_plugin(text: &str) -> Result<GivenPlugin, String> {
    match text.split_once('=') {
        Some((id, socket)) if !id.is_empty() && !socket.is_empty() => {
            let socket = std::path::absolute(Path::new(socket)).map_err(|error| error.to_string())?;
            Ok(GivenPlugin { id: id.to_owned(), socket })
        }
        _ => Err("write it as ID=SOCKET".to_owned()),
    }
}

/// A volume of a CSI plugin.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct GivenCsi {
    /// Its name in job files.
    pub(super) name: String,
    pub(super) volume: CsiVolume,
}

/// Parses `NAME=PLUGIN:ID` or `NAME=PLUGIN:ID:ro`.
pub(super) fn given_csi(text: &str) -> Result<GivenCsi, String> {
    let (rest, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    let parts = rest.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(':')?)));
    match parts {
        Some((name, (plugin, id))) if !name.is_empty() && !plugin.is_empty() && !id.is_empty() => {
            let volume = CsiVolume { plugin: plugin.to_owned(), id: id.to_owned(), read_only, registered: None };
            Ok(GivenCsi { name: name.to_owned(), volume })
        }
        _ => Err("write it as NAME=PLUGIN:ID or NAME=PLUGIN:ID:ro".to_owned()),
    }
}

// The CSI plugins and volumes of a command line. A documentation comment would replace that of the commands.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, serde::Serialize, serde::Deserialize)]
pub(super) struct CsiArgs {
    /// Say where a CSI plugin listens that this machine runs; may be repeated
    #[arg(long, value_name = "ID=SOCKET", value_parser = given_plugin)]
    pub(super) csi_plugin: Vec<GivenPlugin>,
    /// Say which volume of a CSI plugin a volume of the job file is; with `:ro` no task writes to it; may be repeated
    #[arg(long, value_name = "NAME=PLUGIN:ID[:ro]", value_parser = given_csi)]
    pub(super) csi_volume: Vec<GivenCsi>,
}

impl CsiArgs {
    /// Adds the volumes, and registers the plugins, so that later processes find them, too.
    ///
    /// # Errors
    /// A socket that is none; when the registration cannot be written.
    pub(super) fn apply(&self, volumes: &mut CsiVolumes) -> anyhow::Result<()> {
        for GivenPlugin { id, socket } in &self.csi_plugin {
            let told = || format!("--csi-plugin {id}={}: cannot use it as the socket of a plugin", socket.display());
            let root = volumes.plugins.root(id);
            let instance = Instance {
                id: id.clone(),
                kind: CsiKind::Monolith,
                owner: String::new(),
                // A link is the operator's here, and is followed once.
                socket: socket.canonicalize().with_context(told)?,
                host: root.clone(),
                plugin: root,
                provider: String::new(),
                version: String::new(),
                since: std::time::SystemTime::now(),
            };
            volumes.plugins.register(&instance).with_context(told)?;
        }
        for GivenCsi { name, volume } in &self.csi_volume {
            volumes.add(name.clone(), volume.clone());
        }
        Ok(())
    }

    /// Why a CSI volume of a job file cannot be had.
    pub(super) fn refuse(&self, volumes: &CsiVolumes, volume: &Volume, index: u32) -> Option<String> {
        let (found, _) = match volumes.find(volume, index) {
            Ok(found) => found,
            Err(why) => return Some(why),
        };
        let Some(given) = self.csi_plugin.iter().find(|given| given.id == found.plugin) else {
            let id = &found.plugin;
            let is_there = volumes.plugins.list().is_ok_and(|all| all.iter().any(|one| one.id == *id));
            let why = || {
                format!(
                    "no CSI plugin \"{id}\" runs here; say where it listens with --csi-plugin {id}=SOCKET, or run its job first"
                )
            };
            return (!is_there).then(why);
        };
        let told = format!("--csi-plugin {}={}", given.id, given.socket.display());
        if let Err(error) = Client::check_path(&given.socket) {
            return Some(format!("{told}: {error}"));
        }
        match std::fs::metadata(&given.socket) {
            Ok(found) if found.file_type().is_socket() => None,
            Ok(_) => Some(format!("{told}: this is not a socket; name the one that the plugin listens on")),
            Err(error) => Some(format!("{told}: {error}; start the plugin, or name the socket that it listens on")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f1_csi_volumes_are_a_name_a_plugin_and_its_id() {
        let given = given_csi("data=disk:vol-1:a=b:ro").unwrap();
        let CsiVolume { plugin, id, read_only, .. } = given.volume;
        assert_eq!((&*given.name, &*plugin, &*id, read_only), ("data", "disk", "vol-1:a=b", true));
        assert_eq!(given_csi("own[0]=disk:ro:ro").unwrap().volume.id, "ro");
        for wrong in ["data", "data=disk", "data=disk:", "data=:v", "=disk:v", "data=disk:ro"] {
            assert!(given_csi(wrong).is_err(), "{wrong}");
        }
        let plugin = given_plugin("disk=run/s=1").unwrap();
        assert!(plugin.id == "disk" && plugin.socket.is_absolute() && plugin.socket.ends_with("run/s=1"));
        assert!(given_plugin("disk=").is_err() && given_plugin("=s").is_err());
    }
}
