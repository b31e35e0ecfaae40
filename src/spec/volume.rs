use super::{Pos, Propagation};
use crate::spec::collections::BTreeMap;

/// A `volume` of a group: which directory of the host its tasks may mount.
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
