//! Volumes of groups, and where tasks mount them.

use std::path::Path;
use std::time::Duration;

use super::diag::did_you_mean;
use super::name::{LONGEST_NAME, check_name};
use super::schema::{CSI_PLUGIN, MOUNT_OPTIONS, UPDATE, VOLUME, VOLUME_MOUNT};
use super::section::{Expanded, Section};
use crate::spec::IntoSet as _;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{
    CsiKind, CsiPlugin, CsiUse, IntoMap as _, JobType, MountOptions, Overlap, Pos, Propagation, Task, Volume,
    VolumeMount, names, no_destination, overlaps,
};

/// What a host volume's `access_mode` may say; one machine has one node.
const HOST_ACCESS: [&str; 4] =
    ["single-node-reader-only", "single-node-writer", "single-node-single-writer", "single-node-multi-writer"];

/// Longest path, in bytes: the kernel takes no longer one.
const LONGEST_PATH: usize = 4095;

/// The volumes of a group.
pub(super) fn of_group(group: &Section<'_>, kind: JobType) -> Vec<Volume> {
    let mut seen: BTreeMap<&str, &Pos> = BTreeMap::new();
    let mut volumes = Vec::new();
    for block in group.blocks_of("volume") {
        let Some(name) = block.labels.first() else { continue };
        if let Some(first) = seen.insert(name, block.pos) {
            let message = format!("duplicate volume \"{name}\"; it stands in line {} already", first.line);
            group.error(block.pos, message);
        }
        check_name(group, block.pos, "volume", name, LONGEST_NAME);
        volumes.extend(volume(group, block, name, kind));
    }
    volumes
}

fn volume(group: &Section<'_>, block: &Expanded<'_>, name: &str, kind: JobType) -> Option<Volume> {
    let called = format!("volume \"{name}\" of {}", group.name);
    let section = Section::unchecked(called.clone(), block, group.sink);
    let is_csi = match section.string("type").as_deref() {
        Some("host") => false,
        Some("csi") => true,
        other => {
            let section = Section::open(called, block, &VOLUME, group.sink);
            let found = other.map_or_else(String::new, |other| format!(", not \"{other}\""));
            let message = format!("\"type\" in {} must be \"host\" or \"csi\"{found}", section.name);
            section.error(section.pos_of("type"), message);
            return None;
        }
    };
    let section = Section::open(called, block, &VOLUME, group.sink);
    let source = section.string("source").unwrap_or_default();
    if source.is_empty() {
        let of = if is_csi { "the volume of the plugin" } else { "the volume of the host" };
        let message = format!("{} has no source; name {of}, source = \"...\"", section.name);
        section.error(section.pos_of("source"), message);
    }
    check_name(&section, section.pos_of("source"), "source of the volume", &source, LONGEST_NAME);
    let read_only = section.bool("read_only").unwrap_or(false);
    let csi = if is_csi {
        Some(csi_use(&section))
    } else {
        check_host(&section, read_only);
        None
    };
    let per_alloc = section.bool("per_alloc").unwrap_or(false);
    if per_alloc {
        let pos = section.pos_of("per_alloc");
        let canaries = || {
            let update = group.blocks_of("update").next()?;
            Section::open(format!("update of {}", group.name), update, &UPDATE, group.sink).int::<u64>("canary", 0)
        };
        if matches!(kind, JobType::System | JobType::Sysbatch) {
            let message = format!("per_alloc in {} cannot be had in a {} job; remove it", section.name, kind.as_str());
            section.error(pos, message);
        } else if section.bool("sticky") == Some(true) {
            section.error(pos, format!("per_alloc in {} cannot be had with sticky; keep one of them", section.name));
        } else if canaries().is_some_and(|canaries| canaries > 0) {
            section.error(pos, format!("per_alloc in {} cannot be had with canaries; keep one of them", section.name));
        }
    }
    let mode = |key: &str| section.string(key).filter(|_| !is_csi).unwrap_or_default();
    let (access_mode, attachment_mode) = (mode("access_mode"), mode("attachment_mode"));
    let (name, pos) = (name.to_owned(), block.pos.clone());
    Some(Volume { name, source, read_only, per_alloc, csi, access_mode, attachment_mode, pos })
}

/// How a volume of a plugin is used. What the words mean is known where the volume is. Job files for Nomad 1.0 have no modes,
/// which servers of today refuse: such a file is valid, and does not run.
fn csi_use(section: &Section<'_>) -> CsiUse {
    let mode = |key: &str, example: &str| {
        let mode = section.string(key).unwrap_or_default();
        if mode.is_empty() {
            let message = format!("{} is a CSI volume without {key}; write {key} = \"{example}\"", section.name);
            section.refuse(section.pos_of(key), message);
        }
        mode
    };
    let attachment_mode = mode("attachment_mode", "file-system");
    let access_mode = mode("access_mode", "single-node-writer");
    let mut options = MountOptions::default();
    if let Some(block) = section.blocks_of("mount_options").next() {
        if attachment_mode == "block-device" {
            let message = format!("{} is a raw device, which has no mount options; remove mount_options", section.name);
            section.error(block.pos, message);
        }
        let block = Section::open(format!("mount_options of {}", section.name), block, &MOUNT_OPTIONS, section.sink);
        options.fs_type = block.string("fs_type").unwrap_or_default();
        options.flags = block.texts("mount_flags").unwrap_or_default();
    }
    if section.bool("sticky") == Some(true) {
        let message = format!("{} is a CSI volume, which cannot be sticky; remove sticky", section.name);
        section.error(section.pos_of("sticky"), message);
    }
    CsiUse { access_mode, attachment_mode, options }
}

fn check_host(section: &Section<'_>, read_only: bool) {
    for (key, why) in
        [("access_mode", ": it must be one of a host volume; one machine has one node"), ("attachment_mode", "")]
    {
        if section.string(key).is_some() {
            section.sink.warn(section.pos_of(key), format!("{key} has no effect with agentbin run{why}"));
        }
    }
    match section.string("access_mode").as_deref() {
        None | Some("") => {}
        Some("single-node-reader-only") if !read_only => {
            let message = format!("access_mode \"single-node-reader-only\" in {} needs read_only = true", section.name);
            section.error(section.pos_of("access_mode"), message);
        }
        Some(mode) if HOST_ACCESS.contains(&mode) => {}
        Some(mode) => {
            let message = format!(
                "access_mode \"{mode}\" in {} is none of a host volume; use {}, or remove it",
                section.name,
                HOST_ACCESS.join(", ")
            );
            section.error(section.pos_of("access_mode"), message);
        }
    }
    if let Some(options) = section.blocks_of("mount_options").next() {
        let message = format!("{} is a host volume, which has no mount options; remove mount_options", section.name);
        section.error(options.pos, message);
    }
}

/// A task that is a CSI plugin.
pub(super) fn plugin(task: &Section<'_>) -> Option<CsiPlugin> {
    let section = task.child("csi_plugin", &CSI_PLUGIN)?;
    let text = |name: &str| section.string(name).unwrap_or_default();
    let path =
        |name: &str, usual: &str| section.string(name).filter(|path| !path.is_empty()).unwrap_or(usual.to_owned());
    let id = text("id");
    if id.is_empty() {
        section.error(section.pos_of("id"), format!("{} has no id; write id = \"NAME\"", section.name));
    }
    check_name(&section, section.pos_of("id"), "id of the CSI plugin", &id, LONGEST_NAME);
    let kind = match text("type").as_str() {
        "controller" => CsiKind::Controller,
        "node" => CsiKind::Node,
        "monolith" => CsiKind::Monolith,
        other => {
            let message = format!(
                "\"type\" in {} must be \"node\", \"controller\" or \"monolith\", not \"{other}\"",
                section.name
            );
            section.error(section.pos_of("type"), message);
            CsiKind::Monolith
        }
    };
    let (mount_dir, base_dir) = (path("mount_dir", "/csi"), path("stage_publish_base_dir", "/local/csi"));
    for (name, path) in [("mount_dir", &mount_dir), ("stage_publish_base_dir", &base_dir)] {
        if let Some(reason) = no_destination(path) {
            section.error(section.pos_of(name), format!("{name} \"{path}\" in {} {reason}", section.name));
        } else if !Path::new(path).is_absolute() {
            section.error(section.pos_of(name), format!("{name} in {} must begin with a slash", section.name));
        }
    }
    // Component by component: `/csi-data` does not lie in `/csi`.
    if !names(&mount_dir).is_empty() && names(&base_dir).starts_with(&names(&mount_dir)) {
        let message = format!(
            "stage_publish_base_dir \"{base_dir}\" in {} lies in mount_dir \"{mount_dir}\"; choose a directory beside it",
            section.name
        );
        section.error(section.pos_of("stage_publish_base_dir"), message);
    }
    let health_timeout = section.duration("health_timeout").unwrap_or(Duration::from_secs(30));
    let pos = section.pos.clone();
    Some(CsiPlugin { id, kind, mount_dir, stage_publish_base_dir: base_dir, health_timeout, pos })
}

/// Where a task mounts volumes.
pub(super) fn mounts(task: &Section<'_>) -> Vec<VolumeMount> {
    task.blocks_of("volume_mount").map(|block| mount(task, block)).collect()
}

fn mount(task: &Section<'_>, block: &Expanded<'_>) -> VolumeMount {
    let section = Section::open(format!("volume_mount of {}", task.name), block, &VOLUME_MOUNT, task.sink);
    let text = |name: &str| section.string(name).unwrap_or_default();
    let (volume, destination, selinux_label) = (text("volume"), text("destination"), text("selinux_label"));
    if volume.is_empty() {
        let message = format!("{} names no volume; write volume = \"NAME\" as the group calls it", section.name);
        section.error(section.pos_of("volume"), message);
    }
    if destination.is_empty() {
        let message = format!("{} has no destination; write destination = \"/PATH\"", section.name);
        section.refuse(section.pos_of("destination"), message);
    } else if destination.len() > LONGEST_PATH {
        let message =
            format!("destination in {} is longer than {LONGEST_PATH} bytes; choose a shorter one", section.name);
        section.refuse(section.pos_of("destination"), message);
    } else if let Some(reason) = no_destination(&destination) {
        let message = format!("{}: destination \"{destination}\" {reason}", section.name);
        section.refuse(section.pos_of("destination"), message);
    }
    let mode = text("propagation_mode");
    let propagation = Propagation::from_name(&mode);
    if propagation.is_none() {
        let message = format!(
            "propagation_mode \"{mode}\" in {} is not known{}; use private, host-to-task or bidirectional",
            section.name,
            did_you_mean(&mode, ["private", "host-to-task", "bidirectional"])
        );
        section.error(section.pos_of("propagation_mode"), message);
    }
    if !matches!(selinux_label.as_str(), "" | "z" | "Z") {
        let message = format!("selinux_label \"{selinux_label}\" in {} must be \"z\" or \"Z\"", section.name);
        section.error(section.pos_of("selinux_label"), message);
    }
    VolumeMount {
        volume,
        destination: if destination.len() > LONGEST_PATH { String::new() } else { destination },
        read_only: section.bool("read_only").unwrap_or(false),
        propagation: propagation.unwrap_or_default(),
        selinux_label,
        pos: block.pos.clone(),
    }
}

/// That what tasks mount is there, writable where it has to be, and not in each other's way.
pub(super) fn check(group: &Section<'_>, volumes: &[Volume], tasks: &[Task]) {
    let called: BTreeSet<&str> =
        group.blocks_of("volume").filter_map(|b| b.labels.first()).map(String::as_str).into_set();
    let known: BTreeMap<&str, &Volume> = volumes.iter().map(|volume| (&*volume.name, volume)).into_map();
    for task in tasks {
        let mut placed = Vec::new();
        for mount in &task.volume_mounts {
            if group.sink.is_full() {
                return;
            }
            check_volume(group, &called, &known, task, mount);
            // What refers to the task's environment is known when it starts.
            let destination = &mount.destination;
            if destination.contains("${") || no_destination(destination).is_some() {
                continue;
            }
            if task.driver == "docker" && !Path::new(destination).is_absolute() {
                let message = format!(
                    "volume_mount of task \"{}\": docker mounts nothing at the relative destination \"{destination}\"; \
                     write \"/{destination}\"",
                    task.name
                );
                group.refuse(&mount.pos, message);
            }
            placed.push(mount);
        }
        let mounts: Vec<_> = placed.iter().map(|mount| (&*mount.destination, mount.propagation)).collect();
        for overlap in overlaps(&mounts) {
            let (number, problem) = match overlap {
                Overlap::Same(number, other) => {
                    let VolumeMount { volume, pos, .. } = placed[other];
                    let line = pos.line;
                    (
                        number,
                        format!(
                            "volume \"{volume}\" is mounted there already (line {line}); choose another destination"
                        ),
                    )
                }
                Overlap::Leaks(number, other) => {
                    let problem = format!(
                        "it lies in volume \"{}\", and one of the two is bidirectional: it would be mounted on the host, too, \
                         and stay there; choose another destination, or propagation_mode = \"host-to-task\"",
                        placed[other].volume
                    );
                    (number, problem)
                }
            };
            let VolumeMount { destination, pos, .. } = placed[number];
            group.refuse(pos, format!("volume_mount of task \"{}\" at \"{destination}\": {problem}", task.name));
        }
    }
}

fn check_volume(
    group: &Section<'_>,
    called: &BTreeSet<&str>,
    known: &BTreeMap<&str, &Volume>,
    task: &Task,
    mount: &VolumeMount,
) {
    let VolumeMount { volume, pos, .. } = mount;
    if !volume.is_empty() && !volume.contains("${") && !called.contains(&**volume) {
        let hint = did_you_mean(volume, called.iter().copied());
        let fix = if hint.is_empty() { format!("; add volume \"{volume}\" {{ ... }} to the group") } else { hint };
        let message = format!("volume_mount of task \"{}\": {} has no volume \"{volume}\"{fix}", task.name, group.name);
        group.error(pos, message);
    }
    let is_read_only = known.get(&**volume).is_some_and(|volume| volume.read_only);
    if mount.propagation == Propagation::Bidirectional && (mount.read_only || is_read_only) {
        let which = if mount.read_only { "the volume_mount" } else { "the volume" };
        let message = format!(
            "volume_mount of task \"{}\": volume \"{volume}\" cannot be mounted with propagation_mode \"bidirectional\", \
             because {which} is read-only; remove read_only, or use host-to-task",
            task.name
        );
        group.refuse(pos, message);
    }
}
