//! CSI volumes, and who uses them. A record is sealed as a whole: it contains secrets of storage systems.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::change::{Change, encode, valid};
use super::error::StateError;
use super::records::Records;
use super::table::{self, Table};
use super::view::{View, damaged, decode};
use crate::agent::model::{Allocation, CsiClaim, CsiHidden, CsiVolume, JobVersion};
use crate::spec::Order as _;
use crate::spec::collections::BTreeMap;

/// The users of CSI volumes, by namespace and id of the volume; the oldest one first.
pub type CsiClaims = BTreeMap<(String, String), Vec<CsiClaim>>;

#[derive(Serialize, Deserialize)]
struct Kept {
    volume: CsiVolume,
    hidden: CsiHidden,
}

/// The CSI volumes that an allocation of this version uses, by their ids.
fn used_by(version: &JobVersion, alloc: &Allocation) -> Vec<(String, CsiClaim)> {
    let groups = version.spec.get("TaskGroups").and_then(Value::as_array);
    let group = groups.into_iter().flatten().find(|group| group["Name"] == *alloc.task_group);
    let volumes = group.and_then(|group| group.get("Volumes")).and_then(Value::as_object);
    let mut used = Vec::new();
    for volume in volumes.into_iter().flat_map(|volumes| volumes.values()).filter(|volume| volume["Type"] == "csi") {
        let text = |key: &str| volume[key].as_str().unwrap_or_default().to_owned();
        let is_on = |key: &str| volume[key].as_bool().unwrap_or(false);
        let id = if is_on("PerAlloc") { format!("{}[{}]", text("Source"), alloc.index()) } else { text("Source") };
        let claim = CsiClaim {
            alloc_id: alloc.id.clone(),
            job_id: alloc.job_id.clone(),
            writes: !is_on("ReadOnly"),
            access_mode: text("AccessMode"),
            attachment_mode: text("AttachmentMode"),
        };
        used.push((id, claim));
    }
    used
}

impl View {
    fn open_csi_volume(&self, key: &[u8], sealed: &[u8]) -> Result<CsiVolume, StateError> {
        let name = Table::CsiVolumes.name();
        let plain = self.keys.open_sealed(name, key, sealed);
        let plain = plain.ok_or_else(|| damaged(name, key, &"it was sealed with another key, or is damaged"))?;
        let Kept { volume, hidden } = decode(name, key, &plain)?;
        Ok(CsiVolume { hidden, ..volume })
    }

    /// A CSI volume.
    ///
    /// # Errors
    /// [`StateError`]; [`StateError::Damaged`] also when it was sealed with another key.
    pub fn csi_volume(&self, namespace: &str, id: &str) -> Result<Option<CsiVolume>, StateError> {
        let key = table::key(&[namespace, id]);
        let found = self.source().get(Table::CsiVolumes.name(), &key)?;
        found.map(|sealed| self.open_csi_volume(&key, &sealed)).transpose()
    }

    /// The CSI volumes of a namespace (`None`: of all) whose ids begin with `prefix`, sorted by namespace and id.
    pub fn csi_volumes<'a>(&'a self, namespace: Option<&str>, prefix: &str) -> Records<'a, CsiVolume> {
        self.in_namespace(Table::CsiVolumes.name(), namespace, prefix, move |key, value| {
            self.open_csi_volume(key, value)
        })
    }

    /// The live allocations that use CSI volumes, whether these are registered or not.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn csi_claims(&self) -> Result<CsiClaims, StateError> {
        let mut found = Vec::new();
        for alloc in self.live_allocs() {
            let alloc = alloc?;
            // Of a version that is not kept any more, nothing is known.
            let Some(version) = self.version_of(&alloc)? else { continue };
            for (id, claim) in used_by(&version, &alloc) {
                found.push((alloc.create_index, (alloc.namespace.clone(), id), claim));
            }
        }
        found.order_by_key(|(index, ..)| *index);
        let mut claims = CsiClaims::new();
        for (_, volume, claim) in found {
            claims.entry(volume).or_default().push(claim);
        }
        Ok(claims)
    }
}

impl Change<'_> {
    /// Stores a CSI volume, new or changed, and returns it as it is stored.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_csi_volume(&mut self, mut volume: CsiVolume) -> Result<CsiVolume, StateError> {
        valid("a volume's id", &volume.id)?;
        let (key, name) = (table::key(&[&volume.namespace, &volume.id]), Table::CsiVolumes.name());
        let index = self.next_index();
        let old = self.csi_volume(&volume.namespace, &volume.id)?;
        volume.create_index = old.map_or(index, |old| old.create_index);
        volume.modify_index = index;
        let kept = Kept { hidden: std::mem::take(&mut volume.hidden), volume };
        let sealed = self.keys.seal(name, &key, encode(&kept)?);
        self.put_bytes(Table::CsiVolumes, &key, sealed)?;
        Ok(CsiVolume { hidden: kept.hidden, ..kept.volume })
    }

    /// Forgets a CSI volume.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_csi_volume(&mut self, namespace: &str, id: &str) -> Result<(), StateError> {
        self.take(Table::CsiVolumes, &table::key(&[namespace, id]))
    }
}
