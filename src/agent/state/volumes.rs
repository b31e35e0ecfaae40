//! Dynamic host volumes, who uses them, and the claims of groups on them.

use serde_json::Value;

use super::change::{Change, valid};
use super::error::StateError;
use super::records::Records;
use super::table::{self, Table};
use super::view::View;
use crate::agent::model::{Allocation, DynamicVolume, JobKey, JobVersion, VolumeClaim};

/// A group's use of a host volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeUse {
    /// It writes to it.
    pub writes: bool,
    /// Its allocations keep it.
    pub sticky: bool,
}

/// How an allocation of this version uses the host volume of this name, if it does.
fn use_of(version: &JobVersion, alloc: &Allocation, name: &str) -> Option<VolumeUse> {
    let groups = version.spec.get("TaskGroups").and_then(Value::as_array)?;
    let group = groups.iter().find(|group| group["Name"] == *alloc.task_group)?;
    let is_on = |volume: &Value, key: &str| volume[key].as_bool().unwrap_or(false);
    let mut found: Option<VolumeUse> = None;
    for volume in group.get("Volumes").and_then(Value::as_object)?.values() {
        let source = volume["Source"].as_str().unwrap_or_default();
        let of_alloc = || name.strip_prefix(source) == Some(&*format!("[{}]", alloc.index()));
        let is_it = if is_on(volume, "PerAlloc") { of_alloc() } else { source == name };
        if volume["Type"] == "host" && is_it {
            let other = found.unwrap_or_default();
            let (writes, sticky) = (!is_on(volume, "ReadOnly"), is_on(volume, "Sticky"));
            found = Some(VolumeUse { writes: other.writes || writes, sticky: other.sticky || sticky });
        }
    }
    found
}

impl View {
    /// The dynamic volumes, sorted by id.
    pub fn volumes(&self) -> Records<'_, DynamicVolume> {
        self.list(Table::Volumes.name(), Vec::new())
    }

    /// One of them.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn volume(&self, id: &str) -> Result<Option<DynamicVolume>, StateError> {
        self.get(Table::Volumes.name(), id.as_bytes())
    }

    /// How an allocation uses the host volume of this name, if it does. A version that is not kept any more uses none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn use_of_volume(&self, alloc: &Allocation, name: &str) -> Result<Option<VolumeUse>, StateError> {
        Ok(self.version_of(alloc)?.and_then(|version| use_of(&version, alloc, name)))
    }

    /// The allocations whose tasks may still have a volume mounted.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn users_of_volume(&self, volume: &DynamicVolume) -> Result<Vec<(Allocation, VolumeUse)>, StateError> {
        let mut users = Vec::new();
        for alloc in self.live_allocs() {
            let alloc = alloc?;
            if alloc.namespace == volume.namespace
                && let Some(how) = self.use_of_volume(&alloc, &volume.name)?
            {
                users.push((alloc, how));
            }
        }
        Ok(users)
    }

    /// The claims of a namespace (`None`: of all), sorted by job, group and volume.
    pub fn claims<'a>(&'a self, namespace: Option<&str>) -> Records<'a, VolumeClaim> {
        self.list(Table::Claims.name(), namespace.map_or_else(Vec::new, |namespace| table::below(&[namespace])))
    }
}

impl Change<'_> {
    /// Stores a volume, new or changed.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_volume(&mut self, mut volume: DynamicVolume) -> Result<DynamicVolume, StateError> {
        valid("a volume's id", &volume.id)?;
        let old = self.volume(&volume.id)?;
        let index = self.next_index();
        let same = old.as_ref().map(|old| (old.create_index, old.modify_index));
        (volume.create_index, volume.modify_index) = same.unwrap_or((index, index));
        if old.as_ref() == Some(&volume) {
            return Ok(volume);
        }
        volume.modify_index = index;
        self.put(Table::Volumes, volume.id.as_bytes(), &volume)?;
        Ok(volume)
    }

    /// Forgets a volume, and the claims on it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_volume(&mut self, id: &str) -> Result<(), StateError> {
        if self.volume(id)?.is_some() {
            self.take(Table::Volumes, id.as_bytes())?;
            self.drop_claims(|claim| claim.volume_id == id)?;
        }
        Ok(())
    }

    /// Stores a claim; one of the same group on the same volume keeps its id.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) fn put_claim(&mut self, mut claim: VolumeClaim) -> Result<(), StateError> {
        let key = table::claim(&claim);
        let index = self.next_index();
        (claim.create_index, claim.modify_index) = (index, index);
        let old: Option<VolumeClaim> = self.get(Table::Claims.name(), &key)?;
        if let Some(old) = old {
            if old.alloc_id == claim.alloc_id {
                return Ok(());
            }
            (claim.id, claim.create_index) = (old.id, old.create_index);
        }
        self.put(Table::Claims, &key, &claim)
    }

    /// Has the group of an allocation claim its sticky volumes.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn claim_volumes(&mut self, alloc: &str) -> Result<(), StateError> {
        let Some(alloc) = self.alloc(alloc)?.filter(|alloc| !alloc.is_terminal()) else { return Ok(()) };
        let mut volumes = self.volumes().all()?;
        volumes.retain(|volume| volume.namespace == alloc.namespace);
        let version = if volumes.is_empty() { None } else { self.version_of(&alloc)? };
        let Some(version) = version else { return Ok(()) };
        for volume in volumes {
            if use_of(&version, &alloc, &volume.name).is_some_and(|how| how.sticky) {
                self.put_claim(VolumeClaim {
                    id: crate::sys::random::uuid().hyphenated().to_string(),
                    namespace: alloc.namespace.clone(),
                    job_id: alloc.job_id.clone(),
                    task_group_name: alloc.task_group.clone(),
                    alloc_id: alloc.id.clone(),
                    volume_id: volume.id,
                    volume_name: volume.name,
                    ..VolumeClaim::default()
                })?;
            }
        }
        Ok(())
    }

    /// Forgets a claim.
    ///
    /// # Errors
    /// [`StateError::NotFound`].
    pub fn delete_claim(&mut self, id: &str) -> Result<(), StateError> {
        if self.drop_claims(|claim| claim.id == id)? == 0 {
            return Err(StateError::NotFound { kind: "volume claim", id: id.to_owned() });
        }
        Ok(())
    }

    /// Forgets the claims of a job.
    pub(super) fn drop_claims_of(&mut self, job: &JobKey) -> Result<(), StateError> {
        self.drop_claims(|claim| claim.namespace == job.namespace && claim.job_id == job.id).map(drop)
    }

    fn drop_claims(&mut self, is_it: impl Fn(&VolumeClaim) -> bool) -> Result<usize, StateError> {
        let mut all = self.claims(None).all()?;
        all.retain(is_it);
        for claim in &all {
            self.take(Table::Claims, &table::claim(claim))?;
        }
        Ok(all.len())
    }
}
