//! Volumes of a job and mount options, CSI included.

use std::fmt;
use std::time::Duration;

use super::{Pos, Propagation};
use crate::spec::collections::BTreeMap;

/// Replaces a secret in output.
pub const REDACTED: &str = "[REDACTED]";

/// How a file system is mounted. As flags may be passwords, `Debug` and `Display` only show whether there are any.
#[derive(Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct MountOptions {
    /// Such as `ext4`; empty leaves the choice to the plugin.
    pub fs_type: String,
    /// As in `mount(8)` after `-o`.
    pub flags: Vec<String>,
}

impl MountOptions {
    /// These options of a volume, overridden by a job's: the file system if it names one, and all flags if it has any.
    #[must_use]
    pub fn with(mut self, wanted: &MountOptions) -> MountOptions {
        if !wanted.fs_type.is_empty() {
            self.fs_type.clone_from(&wanted.fs_type);
        }
        if !wanted.flags.is_empty() {
            self.flags.clone_from(&wanted.flags);
        }
        self
    }

    /// A copy for display, without the flags' values.
    #[must_use]
    pub fn redacted(&self) -> MountOptions {
        let flags = if self.flags.is_empty() { Vec::new() } else { vec![REDACTED.to_owned()] };
        MountOptions { fs_type: self.fs_type.clone(), flags }
    }
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = if self.flags.is_empty() { "nil" } else { REDACTED };
        write!(f, "csi.CSIOptions(FSType: {}, MountFlags: {flags})", self.fs_type)
    }
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The services of a CSI plugin's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CsiKind {
    /// Attaches, creates and deletes volumes.
    Controller,
    /// Mounts volumes on its node.
    Node,
    /// Both.
    Monolith,
}

impl CsiKind {
    /// Whether it mounts volumes.
    #[must_use]
    pub const fn is_node(self) -> bool {
        !matches!(self, CsiKind::Controller)
    }

    /// Whether it attaches volumes.
    #[must_use]
    pub const fn is_controller(self) -> bool {
        !matches!(self, CsiKind::Node)
    }
}

/// A `csi_plugin` of a task.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct CsiPlugin {
    /// Its id, which volumes refer to.
    pub id: String,
    /// Its services.
    pub kind: CsiKind,
    /// The task's directory in which it listens on `csi.sock`.
    pub mount_dir: String,
    /// The task's directory in which it stages and publishes volumes.
    pub stage_publish_base_dir: String,
    /// How long it may take to become healthy.
    pub health_timeout: Duration,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// How a group uses a volume of a CSI plugin, in the words of the job file.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct CsiUse {
    /// Such as `single-node-writer`.
    pub access_mode: String,
    /// `file-system` or `block-device`.
    pub attachment_mode: String,
    /// For a file system.
    pub options: MountOptions,
}

/// A `volume` of a group: which directory of the host, or which volume of a CSI plugin, its tasks may mount.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Volume {
    /// Its name in the group, which mounts refer to.
    pub name: String,
    /// The host's name of the volume, without the suffix of [`Volume::per_alloc`].
    pub source: String,
    /// No task writes to it.
    pub read_only: bool,
    /// Each allocation has a volume of its own: `source[0]`, `source[1]`.
    pub per_alloc: bool,
    /// Set for a volume of type `csi`; otherwise it is a directory of the host.
    #[serde(default)]
    pub csi: Option<CsiUse>,
    /// How a dynamic volume of the host is used, such as `single-node-writer`; empty for the usual way.
    #[serde(default)]
    pub access_mode: String,
    /// `file-system` or `block-device`, of such a volume; empty for the usual one.
    #[serde(default)]
    pub attachment_mode: String,
    /// Where it stands in the job file.
    pub pos: Pos,
}

impl Volume {
    /// The host's name of the volume for allocation number `index` of the group.
    #[must_use]
    pub fn source_of(&self, index: u32) -> String {
        if self.per_alloc { format!("{}[{index}]", self.source) } else { self.source.clone() }
    }
}

/// A `volume_mount` of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct VolumeMount {
    /// The group's name of the volume, not yet interpolated.
    pub volume: String,
    /// Where the task sees it, not yet interpolated.
    pub destination: String,
    /// The task does not write to it.
    pub read_only: bool,
    /// See [`Propagation`].
    pub propagation: Propagation,
    /// See [`Mount::selinux_label`](super::Mount::selinux_label).
    pub selinux_label: String,
    /// Where it stands in the job file.
    pub pos: Pos,
}

/// The names on the way of a path, without those that mean nothing.
#[must_use]
pub fn names(path: &str) -> Vec<&str> {
    path.split('/').filter(|name| !matches!(*name, "" | ".")).collect()
}

/// Why nothing is mounted at a destination, whatever the task's root looks like; `None` where something is.
#[must_use]
pub fn no_destination(path: &str) -> Option<&'static str> {
    let names = names(path);
    if names.is_empty() {
        return Some("would cover the task's whole root; choose a directory in it");
    }
    // Where it leads depends on links, and it is compared with other destinations by its names.
    names.contains(&"..").then_some("holds \"..\"; write the path that it leads to")
}

/// Why two mounts of a task cannot be had together. Both are numbers in the order that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// The first one is at the place of the second one.
    Same(usize, usize),
    /// The first one lies in the second one, and one of them is bidirectional: what is mounted in a bidirectional volume is
    /// mounted on the host, too, and stays there.
    Leaks(usize, usize),
}

/// Looks for such pairs among mounts at these destinations.
#[must_use]
pub fn overlaps(mounts: &[(&str, Propagation)]) -> Vec<Overlap> {
    let mut places: BTreeMap<Vec<&str>, usize> = BTreeMap::new();
    let mut found = Vec::new();
    for (number, (destination, _)) in mounts.iter().enumerate() {
        let place = names(destination);
        if let Some(other) = places.get(&place) {
            found.push(Overlap::Same(number, *other));
        } else {
            places.insert(place, number);
        }
    }
    for (place, number) in &places {
        let Some(above) = (1..place.len()).find_map(|length| places.get(&place[..length])) else { continue };
        if [*number, *above].iter().any(|number| mounts[*number].1 == Propagation::Bidirectional) {
            found.push(Overlap::Leaks(*number, *above));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_in_each_others_way_at_one_place_or_where_the_inner_one_would_leak() {
        let (private, shared) = (Propagation::Private, Propagation::Bidirectional);
        let found = |mounts: &[(&str, Propagation)]| overlaps(mounts);
        assert_eq!(found(&[("/a", private), ("/b", shared), ("/ab", private)]), []);
        assert_eq!(found(&[("/a/", private), ("//a/.", private)]), [Overlap::Same(1, 0)]);
        assert_eq!(found(&[("/a/b/c", private), ("/a", private)]), []);
        assert_eq!(found(&[("/a/b/c", private), ("/a", shared)]), [Overlap::Leaks(0, 1)]);
        assert_eq!(found(&[("/a", private), ("/a/b", shared)]), [Overlap::Leaks(1, 0)]);
    }
}
