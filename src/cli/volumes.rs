//! `--volume`, `--csi-volume`, `--csi-plugin`: directories of this machine, and volumes of CSI plugins, that job files name and only
//! the operator can configure.

use std::path::Path;

use anyhow::Context as _;

use super::given_volumes::{CsiArgs, Given, GivenCsi};
use super::level::Level;
use crate::alloc::machine;
use crate::alloc::{CsiVolumes, HostVolume, HostVolumes, no_mounts};
use crate::driver::policy;
use crate::jobspec::{Diagnostic, Parsed};
use crate::spec::{Group, Mount, Order as _, Propagation, VolumeMount};

/// Most refusals of one job that are about volumes.
const MOST_SAID: usize = 50;
/// The driver whose tasks have no file system of their own.
const UNISOLATED: &str = "raw_exec";

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
/// The one that does not exist, or is not a directory.
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
    use super::super::given_volumes::given;
    use super::*;

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
