//! `--volume`, `--csi-volume`, `--csi-plugin`: directories of this machine, and volumes of CSI plugins, that job files name and only
//! the operator can configure.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::policy::Level;
use crate::alloc::machine;
use crate::alloc::{CsiVolume, CsiVolumes, HostVolume, HostVolumes, no_mounts};
use crate::csi::{Client, Instance};
use crate::driver::policy;
use crate::jobspec::{Diagnostic, Parsed};
use crate::spec::{CsiKind, Group, Mount, Order as _, Propagation, Volume, VolumeMount};

/// Most refusals of one job that are about volumes.
const MOST_SAID: usize = 50;
/// The driver whose tasks have no file system of their own.
const UNISOLATED: &str = "raw_exec";

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

/// The CSI plugins and volumes of a command line.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args, serde::Serialize, serde::Deserialize)]
pub(super) struct CsiArgs {
    /// Say where a CSI plugin listens that this machine runs; may be repeated
    #[arg(long, value_name = "ID=SOCKET", value_parser = given_plugin)]
    csi_plugin: Vec<GivenPlugin>,
    /// Say which volume of a CSI plugin a volume of the job file is; with `:ro` no task writes to it; may be repeated
    #[arg(long, value_name = "NAME=PLUGIN:ID[:ro]", value_parser = given_csi)]
    csi_volume: Vec<GivenCsi>,
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
    fn refuse(&self, volumes: &CsiVolumes, volume: &Volume, index: u32) -> Option<String> {
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
            Ok(_) => Some(format!("{told}: this is no socket; name the one that the plugin listens on")),
            Err(error) => Some(format!("{told}: {error}; start the plugin, or name the socket that it listens on")),
        }
    }
}

/// The volumes of CSI plugins that a command line names; nothing is created.
pub(super) fn csi_volumes(data_dir: Option<&Path>, args: &CsiArgs) -> CsiVolumes {
    let there = machine::existing_data_dir(data_dir).ok().flatten();
    let mut volumes = CsiVolumes::new(there.as_deref().unwrap_or(Path::new("/nonexistent")));
    for GivenCsi { name, volume } in &args.csi_volume {
        volumes.add(name.clone(), volume.clone());
    }
    volumes
}

/// Opens the directories; later ones override earlier ones of the same name.
///
/// # Errors
/// The one that does not exist, or is no directory.
pub(super) fn open(given: &[Given]) -> anyhow::Result<HostVolumes> {
    let mut volumes = HostVolumes::default();
    for Given { name, path, read_only, origin } in given {
        let volume = HostVolume::open(path, *read_only).with_context(|| {
            format!("{origin}: cannot use {} as a volume; name a directory that exists", path.display())
        })?;
        volumes.add(name.clone(), volume);
    }
    Ok(volumes)
}

/// Refuses volumes of a job file that do not exist here, or that the minimum forbids.
pub(super) fn check(
    parsed: &mut Parsed,
    volumes: &HostVolumes,
    (args, csi): (&CsiArgs, &CsiVolumes),
    minimum: Option<Level>,
) {
    let mut refusals = Vec::new();
    for group in &parsed.job.groups {
        for volume in &group.volumes {
            let indices = if volume.per_alloc { 0..group.count } else { 0..group.count.min(1) };
            let missing = indices.into_iter().find_map(|index| match volume.csi {
                Some(_) => args.refuse(csi, volume, index),
                None => volumes.find(volume, index).err(),
            });
            refusals
                .extend(missing.map(|why| Diagnostic::new(&volume.pos, format!("volume \"{}\": {why}", volume.name))));
        }
        for task in &group.tasks {
            if let (Some(plugin), Some(minimum)) = (&task.csi_plugin, minimum.map(Level::minimum)) {
                let propagation = Propagation::Bidirectional;
                let mount = Mount { task_path: plugin.mount_dir.clone(), propagation, ..Mount::default() };
                let loose = policy::admit_mount(&task.driver, minimum, &mount).err();
                refusals.extend(loose.map(|why| Diagnostic::new(&plugin.pos, format!("csi_plugin: {why}"))));
            }
            if task.driver == UNISOLATED {
                let mount = task.volume_mounts.first();
                let why = |mount: &VolumeMount| {
                    let is_csi = group.volumes.iter().any(|one| one.name == mount.volume && one.csi.is_some());
                    let what = if is_csi { "CSI volumes" } else { "host volumes" };
                    format!("volume_mount of task \"{}\": {}", task.name, no_mounts(&task.driver, what))
                };
                refusals.extend(mount.map(|mount| Diagnostic::new(&mount.pos, why(mount))));
            } else if let Some(minimum) = minimum.map(Level::minimum) {
                for mount in task.volume_mounts.iter().take(MOST_SAID) {
                    let planned = planned(group, mount, volumes);
                    let loose = policy::admit_mount(&task.driver, minimum, &planned).err();
                    refusals.extend(loose.map(|why| Diagnostic::new(&mount.pos, why)));
                }
            }
        }
        if refusals.len() >= MOST_SAID {
            break;
        }
    }
    refusals.truncate(MOST_SAID);
    parsed.refusals.extend(refusals);
    parsed.refusals.order_by_key(|refusal| (refusal.pos.line, refusal.pos.column));
}

/// A mount as far as it is known before the start.
fn planned(group: &Group, mount: &VolumeMount, volumes: &HostVolumes) -> Mount {
    let volume = group.volumes.iter().find(|volume| volume.name == mount.volume);
    let host = volume.filter(|volume| volume.csi.is_none()).and_then(|volume| volumes.find(volume, 0).ok());
    let read_only = host.is_some_and(|host| host.is_read_only()) || volume.is_some_and(|volume| volume.read_only);
    Mount {
        task_path: mount.destination.clone(),
        readonly: read_only || mount.read_only,
        propagation: mount.propagation,
        ..Mount::default()
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

    #[test]
    fn volumes_are_a_name_and_a_directory() {
        let volume = given("data=/srv/a=b:ro").unwrap();
        assert_eq!((&*volume.name, &*volume.path, volume.read_only), ("data", Path::new("/srv/a=b"), true));
        let volume = given("own[0]=srv").unwrap();
        assert!(volume.path.is_absolute() && volume.path.ends_with("srv") && !volume.read_only);
        for wrong in ["data", "=/srv", "data=", "data=:ro", ""] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
        let error = format!("{:#}", open(&[given("data=/no/such/directory").unwrap()]).unwrap_err());
        assert!(
            error.contains("--volume data=/no/such/directory: cannot use") && error.contains("No such file"),
            "{error}"
        );
        assert!(open(&[given("data=/etc/passwd").unwrap()]).is_err());
    }
}
