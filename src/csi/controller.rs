//! Calls of a controller except attaching: create, delete, expand and list volumes and snapshots. Requests that are invalid by
//! themselves are not sent.

use std::time::SystemTime;

use super::capability::{Capability, Secrets};
use super::client::Client;
use super::error::CsiError;
use crate::spec::collections::BTreeMap;
use crate::wire::csi as wire;
use crate::wire::csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};

/// A location by the plugin's topology: domains with their values.
pub type Segments = BTreeMap<String, String>;

/// A volume to create.
#[derive(Debug, Clone, Default)]
pub struct NewVolume {
    /// A unique name.
    pub name: String,
    /// Size in bytes: minimum, and maximum if that is not 0.
    pub capacity: (i64, i64),
    /// How it will be used.
    pub capabilities: Vec<Capability>,
    /// Parameters from the plugin's manual.
    pub parameters: BTreeMap<String, String>,
    /// The secrets that the plugin requires.
    pub secrets: Secrets,
    /// The snapshot to restore.
    pub snapshot: String,
    /// The volume to copy.
    pub clone: String,
    /// Required and preferred locations.
    pub topology: (Vec<Segments>, Vec<Segments>),
}

/// A volume that the plugin created.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Created {
    /// The plugin's id.
    pub id: String,
    /// Bytes.
    pub capacity: i64,
    /// Data that the plugin needs in later calls.
    pub context: BTreeMap<String, String>,
    /// Locations from which it is accessible; empty means everywhere.
    pub topology: Vec<Segments>,
}

/// A volume in a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeEntry {
    /// The volume.
    pub volume: Created,
    /// The nodes that it is attached to, by the plugin's ids.
    pub nodes: Vec<String>,
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The plugin's id.
    pub id: String,
    /// The volume that it was taken from.
    pub volume: String,
    /// Bytes.
    pub size: i64,
    /// When it was made, if the plugin says so.
    pub made: Option<SystemTime>,
    /// Whether it can be used.
    pub is_ready: bool,
}

/// A part of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page<T> {
    /// The entries, no more than were asked for.
    pub entries: Vec<T>,
    /// The token of the next part; empty for none.
    pub next: String,
}

fn needed(what: &str, value: &str) -> Result<(), CsiError> {
    if value.is_empty() { Err(CsiError::invalid(format!("{what} is missing"))) } else { Ok(()) }
}

fn range((required_bytes, limit_bytes): (i64, i64)) -> Result<Option<wire::CapacityRange>, CsiError> {
    if required_bytes < 0 || limit_bytes < 0 || limit_bytes != 0 && limit_bytes < required_bytes {
        let text = format!("the largest capacity, {limit_bytes}, is below the smallest one, {required_bytes}");
        return Err(CsiError::invalid(text));
    }
    Ok((required_bytes != 0 || limit_bytes != 0).then_some(wire::CapacityRange { required_bytes, limit_bytes }))
}

fn topologies(all: &[Segments]) -> Vec<wire::Topology> {
    all.iter().map(|segments| wire::Topology { segments: segments.clone().into_iter().collect() }).collect()
}

fn created(volume: Option<wire::Volume>) -> Created {
    let volume = volume.unwrap_or_default();
    Created {
        id: volume.volume_id,
        capacity: volume.capacity_bytes,
        context: volume.volume_context.into_iter().collect(),
        topology: volume.accessible_topology.into_iter().map(|one| one.segments.into_iter().collect()).collect(),
    }
}

fn snapshot(found: Option<wire::Snapshot>) -> Snapshot {
    let found = found.unwrap_or_default();
    Snapshot {
        id: found.snapshot_id,
        volume: found.source_volume_id,
        size: found.size_bytes,
        made: found.creation_time.and_then(|time| time.try_into().ok()),
        is_ready: found.ready_to_use,
    }
}

impl NewVolume {
    fn request(&self) -> Result<wire::CreateVolumeRequest, CsiError> {
        needed("the volume's name", &self.name)?;
        if self.capabilities.is_empty() {
            let text = format!("volume {}: no capability is given; add a capability block", self.name);
            return Err(CsiError::invalid(text));
        }
        let source = match (&*self.snapshot, &*self.clone) {
            ("", "") => None,
            (id, "") => Some(Source::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })),
            ("", id) => Some(Source::Volume(VolumeSource { volume_id: id.to_owned() })),
            _ => {
                let text = format!("volume {}: it begins with a snapshot or as a clone, not both", self.name);
                return Err(CsiError::invalid(text));
            }
        };
        let (requisite, preferred) = (topologies(&self.topology.0), topologies(&self.topology.1));
        let wanted = !requisite.is_empty() || !preferred.is_empty();
        Ok(wire::CreateVolumeRequest {
            name: self.name.clone(),
            capacity_range: range(self.capacity)?,
            volume_capabilities: self.capabilities.iter().map(Capability::wire).collect(),
            parameters: self.parameters.clone().into_iter().collect(),
            secrets: self.secrets.wire(),
            volume_content_source: source.map(|source| wire::VolumeContentSource { r#type: Some(source) }),
            accessibility_requirements: wanted.then_some(wire::TopologyRequirement { requisite, preferred }),
            ..wire::CreateVolumeRequest::default()
        })
    }
}

/// Checks that the confirmed capabilities cover the requested ones. A plugin may leave out what it does not check.
fn compare(wanted: &[Capability], confirmed: &[wire::VolumeCapability]) -> Result<(), String> {
    let found: Vec<Capability> = confirmed.iter().filter_map(Capability::from_wire).collect();
    let fits = |one: &Capability| {
        found.iter().any(|found| {
            let (options, said) = (&one.options, &found.options);
            (found.access, found.attachment) == (one.access, one.attachment)
                && (said.fs_type.is_empty() || said.fs_type == options.fs_type)
                && (said.flags.is_empty() || said.flags == options.flags)
        })
    };
    match wanted.iter().find(|one| !found.is_empty() && !fits(one)) {
        // Flags may be secrets, so the error only says that they differ.
        Some(one) => Err(format!("{} {} with these mount options is not confirmed", one.access, one.attachment)),
        None => Ok(()),
    }
}

impl Client {
    /// Creates a volume, or returns the one that was created with this name.
    ///
    /// # Errors
    /// See [`CsiError`]; the same holds for all other calls.
    pub async fn create_volume(&self, new: &NewVolume) -> Result<Created, CsiError> {
        let request = new.request()?;
        let said = self.ask(&new.name, request).await?;
        let created = created(said.volume);
        needed(&format!("the id of volume {} in the plugin's answer", new.name), &created.id)?;
        Ok(created)
    }

    /// Deletes a volume; succeeds if it does not exist.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn delete_volume(&self, id: &str, secrets: &Secrets) -> Result<(), CsiError> {
        needed("the volume's id", id)?;
        let request = wire::DeleteVolumeRequest { volume_id: id.to_owned(), secrets: secrets.wire() };
        self.ask(id, request).await.map(drop)
    }

    /// Checks that a volume exists and supports this use.
    ///
    /// # Errors
    /// Also fails when the plugin does not confirm the use.
    pub async fn validate(&self, id: &str, wanted: &[Capability], secrets: &Secrets) -> Result<(), CsiError> {
        needed("the volume's id", id)?;
        let request = wire::ValidateVolumeCapabilitiesRequest {
            volume_id: id.to_owned(),
            volume_capabilities: wanted.iter().map(Capability::wire).collect(),
            secrets: secrets.wire(),
            ..wire::ValidateVolumeCapabilitiesRequest::default()
        };
        let call = "ValidateVolumeCapabilities";
        let said = self.ask(id, request).await?;
        let refused = |why: &str| CsiError::invalid(format!("{call} of {id}: {why}"));
        match said.confirmed {
            Some(confirmed) => compare(wanted, &confirmed.volume_capabilities).map_err(|why| refused(&why)),
            // Old plugins send an empty answer if the volume is fine.
            None if said.message.is_empty() => Ok(()),
            None => Err(refused(&said.message)),
        }
    }

    /// Expands a volume, as far as the controller does it. Returns its size in bytes, and whether the node has to expand it,
    /// too.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn expand_volume(
        &self,
        id: &str,
        capacity: (i64, i64),
        capability: Option<&Capability>,
        secrets: &Secrets,
    ) -> Result<(i64, bool), CsiError> {
        needed("the volume's id", id)?;
        let capacity_range = range(capacity)?;
        if capacity_range.is_none() {
            return Err(CsiError::invalid(format!("volume {id}: no capacity is given that it should have")));
        }
        let request = wire::ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range,
            secrets: secrets.wire(),
            volume_capability: capability.map(Capability::wire),
        };
        let said = self.ask(id, request).await?;
        Ok((said.capacity_bytes, said.node_expansion_required))
    }

    /// Expands the file system of a volume on the node where it is mounted at these paths, in the plugin's view.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn expand_on_node(
        &self,
        id: &str,
        (target, staging): (&str, &str),
        capacity: (i64, i64),
        capability: &Capability,
    ) -> Result<i64, CsiError> {
        needed("the volume's id", id)?;
        needed("the volume's path", target)?;
        let request = wire::NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: target.to_owned(),
            capacity_range: range(capacity)?,
            staging_target_path: staging.to_owned(),
            volume_capability: Some(capability.wire()),
            ..wire::NodeExpandVolumeRequest::default()
        };
        Ok(self.ask(id, request).await?.capacity_bytes)
    }

    /// The usage of a volume at a path in the plugin's view: available, total and used bytes.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn usage(&self, id: &str, path: &str) -> Result<Option<(i64, i64, i64)>, CsiError> {
        needed("the volume's id", id)?;
        needed("the volume's path", path)?;
        let request = wire::NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: path.to_owned(),
            staging_target_path: String::new(),
        };
        let said = self.ask(id, request).await?;
        let bytes = said.usage.iter().find(|one| one.unit() == wire::volume_usage::Unit::Bytes);
        Ok(bytes.map(|bytes| (bytes.available, bytes.total, bytes.used)))
    }

    /// A part of the list of volumes: at most `most` entries (0: the plugin's choice), from the token of the previous part.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn list_volumes(&self, most: u16, token: &str) -> Result<Page<VolumeEntry>, CsiError> {
        let request = wire::ListVolumesRequest { max_entries: most.into(), starting_token: token.to_owned() };
        let said = self.ask("the plugin", request).await?;
        let entry = |entry: wire::list_volumes_response::Entry| VolumeEntry {
            volume: created(entry.volume),
            nodes: entry.status.unwrap_or_default().published_node_ids,
        };
        Ok(page(said.entries, most, entry, said.next_token))
    }

    /// Takes a snapshot of a volume, or returns the one that was taken with this name.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn create_snapshot(
        &self,
        volume: &str,
        name: &str,
        parameters: &BTreeMap<String, String>,
        secrets: &Secrets,
    ) -> Result<Snapshot, CsiError> {
        needed("the id of the snapshot's volume", volume)?;
        needed("the snapshot's name", name)?;
        let request = wire::CreateSnapshotRequest {
            source_volume_id: volume.to_owned(),
            name: name.to_owned(),
            secrets: secrets.wire(),
            parameters: parameters.clone().into_iter().collect(),
            accessibility_requirements: None,
        };
        Ok(snapshot(self.ask(name, request).await?.snapshot))
    }

    /// Deletes a snapshot; succeeds if it does not exist.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn delete_snapshot(&self, id: &str, secrets: &Secrets) -> Result<(), CsiError> {
        needed("the snapshot's id", id)?;
        let request = wire::DeleteSnapshotRequest { snapshot_id: id.to_owned(), secrets: secrets.wire() };
        self.ask(id, request).await.map(drop)
    }

    /// As [`Client::list_volumes`], of snapshots.
    ///
    /// # Errors
    /// See [`CsiError`].
    pub async fn list_snapshots(&self, most: u16, token: &str, secrets: &Secrets) -> Result<Page<Snapshot>, CsiError> {
        let request = wire::ListSnapshotsRequest {
            max_entries: most.into(),
            starting_token: token.to_owned(),
            secrets: secrets.wire(),
            ..wire::ListSnapshotsRequest::default()
        };
        let said = self.ask("the plugin", request).await?;
        Ok(page(said.entries, most, |entry| snapshot(entry.snapshot), said.next_token))
    }
}

fn page<E, T>(entries: Vec<E>, most: u16, entry: impl Fn(E) -> T, next: String) -> Page<T> {
    let most = if most == 0 { usize::MAX } else { most.into() };
    Page { entries: entries.into_iter().take(most).map(entry).collect(), next }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::MountOptions;

    fn capability(access: &str, flags: &[&str]) -> Capability {
        let flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        Capability::from_words(access, "file-system", MountOptions { fs_type: "ext4".to_owned(), flags }).unwrap()
    }

    #[test]
    fn f7_what_is_plainly_wrong_is_not_asked() {
        let new = NewVolume {
            name: "v".to_owned(),
            capabilities: vec![capability("single-node-writer", &[])],
            ..NewVolume::default()
        };
        let request = new.request().ok().unwrap();
        assert!(request.capacity_range.is_none() && request.accessibility_requirements.is_none());
        let wrong = |new: NewVolume| new.request().err().unwrap().to_string();
        assert!(wrong(NewVolume { name: String::new(), ..new.clone() }).contains("name is missing"));
        assert!(wrong(NewVolume { capabilities: Vec::new(), ..new.clone() }).contains("no capability"));
        assert!(wrong(NewVolume { capacity: (2, 1), ..new.clone() }).contains("is below the smallest"));
        let both = NewVolume { snapshot: "s".to_owned(), clone: "c".to_owned(), ..new.clone() };
        assert!(wrong(both).contains("not both"));
        let zone: BTreeMap<_, _> = [("zone".to_owned(), "a".to_owned())].into();
        let request = NewVolume { topology: (vec![zone], Vec::new()), ..new }.request().ok().unwrap();
        assert_eq!(request.accessibility_requirements.unwrap().requisite.len(), 1);
    }

    #[test]
    fn f6_what_a_plugin_confirms_may_be_less_but_not_other() {
        let wanted = [capability("single-node-writer", &["password=s3cret"])];
        let mut said = wanted[0].wire();
        assert_eq!(compare(&wanted, &[]), Ok(()));
        assert_eq!(compare(&wanted, &[said.clone()]), Ok(()));
        assert_eq!(compare(&wanted, &[capability("single-node-writer", &[]).wire()]), Ok(()));
        let error = compare(&wanted, &[capability("single-node-writer", &["other"]).wire()]).unwrap_err();
        assert!(!error.contains("s3cret") && !error.contains("other"), "{error}");
        said.access_mode = capability("multi-node-multi-writer", &[]).wire().access_mode;
        assert!(compare(&wanted, &[said]).is_err());
    }
}
