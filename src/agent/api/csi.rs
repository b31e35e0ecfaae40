//! CSI volumes, their snapshots, and plugins.

use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::input::Input;
use super::lists::{self, Found, Page, Token};
use super::shape::{self, Plugin};
use crate::agent::commands::NewSnapshot;
use crate::agent::model::{CsiClaim, CsiTopologies, CsiTopology, CsiVolume, JobVersion, Secret, VolumeCapability};
use crate::agent::state::{CsiClaims, StateError, Table, View};
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;

/// What the answers about volumes and plugins depend on.
const TABLES: [Table; 4] = [Table::CsiVolumes, Table::Allocs, Table::Nodes, Table::Jobs];
/// The header for secrets of a command.
const SECRETS: &str = "X-Nomad-CSI-Secrets";

fn index(view: &View) -> Result<u64, StateError> {
    let all = TABLES.iter().map(|table| view.table_index(*table)).collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().max().unwrap_or(1))
}

fn plugins(view: &View) -> Result<BTreeMap<String, Plugin>, StateError> {
    let expected = |job: &JobVersion, group: &Value| {
        if job.spec.get("Type").and_then(Value::as_str) != Some("system") {
            return Ok(group["Count"].as_u64().unwrap_or(1));
        }
        let summary = view.summary(&job.key)?;
        let name = group["Name"].as_str().unwrap_or_default();
        let counts = summary.and_then(|mut summary| summary.summary.remove(name)).unwrap_or_default();
        Ok(u64::from(counts.running + counts.queued + counts.starting))
    };
    Plugin::all(view.node()?, view.jobs(None, ""), &expected)
}

fn users_of<'a>(claims: &'a CsiClaims, volume: &CsiVolume) -> &'a [CsiClaim] {
    claims.get(&(volume.namespace.clone(), volume.id.clone())).map_or(&[], Vec::as_slice)
}

fn whole(view: &View, volume: &CsiVolume) -> Result<Value, StateError> {
    let (claims, plugins) = (view.csi_claims()?, plugins(view)?);
    let users = users_of(&claims, volume);
    let allocs = stubs(view, users.iter().map(|user| &*user.alloc_id))?;
    Ok(shape::csi_volume(volume, plugins.get(&volume.plugin_id), users, &allocs))
}

fn stubs<'a>(view: &View, ids: impl Iterator<Item = &'a str>) -> Result<Vec<Value>, StateError> {
    let mut stubs = Vec::new();
    for id in ids.filter(|id| !id.is_empty()) {
        if let Some(alloc) = view.alloc(id)? {
            stubs.push(shape::alloc_stub(&alloc, view.version_of(&alloc)?.as_ref(), false, true));
        }
    }
    Ok(stubs)
}

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &TABLES, |view| {
        let (claims, plugins) = (view.csi_claims()?, plugins(view)?);
        let node = view.node()?.map(|node| node.id).unwrap_or_default();
        let mut found = view.csi_volumes(call.namespace(), call.prefix()).all()?;
        found.retain(|volume| {
            let is_on_node = |id: &str| id == node && !users_of(&claims, volume).is_empty();
            call.query.text("plugin_id").is_none_or(|plugin| plugin == volume.plugin_id)
                && call.query.text("node_id").is_none_or(is_on_node)
        });
        let of = |volume: &CsiVolume| (plugins.get(&volume.plugin_id), users_of(&claims, volume));
        let (rows, next_token) = page.rows(
            found.into_iter().map(Ok),
            |volume| Token::name(format!("{}.{}", volume.namespace, volume.id)),
            |volume| {
                let (plugin, users) = of(volume);
                Ok(shape::csi_volume(volume, plugin, users, &[]))
            },
            |volume| {
                let (plugin, users) = of(volume);
                Ok(shape::csi_volume_stub(volume, plugin, users))
            },
        )?;
        Ok(Found { index: index(view)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &TABLES, |view| {
        Ok(match view.csi_volume(call.one_namespace(), call.id())? {
            Some(volume) => Found::new(index(view)?, whole(view, &volume)?),
            None => Found::missing(index(view)?, "volume not found"),
        })
    })
    .await
}

fn hidden(of: BTreeMap<String, String>) -> BTreeMap<String, Secret> {
    of.into_iter().map(|(key, value)| (key, Secret::new(value))).into_map()
}

fn topologies(of: &Input, key: &str) -> Result<Vec<CsiTopology>, Refusal> {
    let one = |of: Input| Ok(CsiTopology { segments: of.texts("Segments")? });
    of.objects(key)?.into_iter().map(one).collect()
}

fn capability(of: &Input) -> Result<VolumeCapability, Refusal> {
    let mut made = VolumeCapability::default();
    for (key, to) in [("AttachmentMode", &mut made.attachment_mode), ("AccessMode", &mut made.access_mode)] {
        *to = of.text(key)?;
    }
    Ok(made)
}

fn volume(call: &Call, of: &Input) -> Result<CsiVolume, Refusal> {
    let mut volume = CsiVolume::default();
    for (key, to) in [
        ("Namespace", &mut volume.namespace),
        ("ID", &mut volume.id),
        ("Name", &mut volume.name),
        ("ExternalID", &mut volume.external_id),
        ("PluginID", &mut volume.plugin_id),
        ("CloneID", &mut volume.clone_id),
        ("SnapshotID", &mut volume.snapshot_id),
    ] {
        *to = of.text(key)?;
    }
    if volume.namespace.is_empty() {
        call.one_namespace().clone_into(&mut volume.namespace);
    }
    for (key, to) in [
        ("Capacity", &mut volume.capacity),
        ("RequestedCapacityMin", &mut volume.requested_capacity_min),
        ("RequestedCapacityMax", &mut volume.requested_capacity_max),
    ] {
        *to = of.number(key)?.unwrap_or(0);
    }
    for (key, to) in [("Parameters", &mut volume.parameters), ("Context", &mut volume.context)] {
        *to = of.texts(key)?;
    }
    if let Some(wanted) = of.object("RequestedTopologies")? {
        let to = volume.requested_topologies.insert(CsiTopologies::default());
        for (key, to) in [("Required", &mut to.required), ("Preferred", &mut to.preferred)] {
            *to = topologies(&wanted, key)?;
        }
    }
    volume.topologies = topologies(of, "Topologies")?;
    for one in of.objects("RequestedCapabilities")? {
        volume.requested_capabilities.push(capability(&one)?);
    }
    volume.hidden.secrets = hidden(of.texts("Secrets")?);
    if let Some(options) = of.object("MountOptions")? {
        volume.fs_type = options.text("FSType")?;
        volume.hidden.mount_flags = options.list("MountFlags")?.into_iter().map(Secret::new).collect();
    }
    Ok(volume)
}

async fn put(mut call: Call, create: bool) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let given = input.objects("Volumes")?.iter().map(|of| volume(&call, of)).collect::<Result<Vec<_>, _>>()?;
    let (index, stored) = call.api.commands.put_csi_volumes(given, create).await?;
    let view = call.api.state.read()?;
    let shown = stored.iter().map(|volume| whole(&view, volume)).collect::<Result<Vec<_>, _>>()?;
    Ok(Answer::written(index, json!({"Volumes": shown, "Warnings": ""})))
}

pub(super) async fn register(call: Call) -> Result<Answer, Refusal> {
    put(call, false).await
}

pub(super) async fn create(call: Call) -> Result<Answer, Refusal> {
    put(call, true).await
}

pub(super) async fn deregister(call: Call) -> Result<Answer, Refusal> {
    let force = call.query.switch("force").map_err(|_| Refusal::bad("invalid force value"))?.unwrap_or(false);
    let index = call.api.commands.deregister_csi_volume(call.one_namespace(), call.id(), force).await;
    Ok(Answer::written(index.map_err(unfound)?, json!({})))
}

/// Nomad's message names the volume.
fn unfound(error: crate::agent::commands::CommandError) -> Refusal {
    let text = error.to_string();
    Refusal::unfound(error, text)
}

/// The secrets in the header of a request; what is not a pair is ignored.
fn secrets(call: &Call) -> BTreeMap<String, Secret> {
    let given = call.parts.headers.get(SECRETS).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let pairs = given.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), Secret::new(value))).into_map()
}

pub(super) async fn delete(call: Call) -> Result<Answer, Refusal> {
    let index = call.api.commands.delete_csi_volume(call.one_namespace(), call.id(), &secrets(&call)).await;
    Ok(Answer::written(index.map_err(unfound)?, json!({})))
}

pub(super) async fn detach(call: Call) -> Result<Answer, Refusal> {
    let node = call.query.text("node").ok_or_else(|| Refusal::bad("detach requires node ID"))?;
    let index = call.api.commands.detach_csi_volume(call.one_namespace(), call.id(), node).await;
    Ok(Answer::written(index.map_err(unfound)?, json!({})))
}

/// The page of a plugin's list.
fn external_page(call: &Call) -> Result<(u16, &str), Refusal> {
    let most = call.number::<i32>("per_page")?.unwrap_or(0);
    let most = u16::try_from(most.max(0)).unwrap_or(u16::MAX);
    Ok((most, call.query.text("next_token").unwrap_or_default()))
}

pub(super) async fn external(call: Call) -> Result<Answer, Refusal> {
    let plugin = call.query.text("plugin_id").unwrap_or_default();
    let found = call.api.commands.external_csi_volumes(plugin, external_page(&call)?).await?;
    let rows: Vec<Value> = found.entries.iter().map(shape::csi_external).collect();
    Ok(external_list("Volumes", &rows, &found.next))
}

/// Never null: the command line's client reads members of it without a check.
fn external_list(name: &str, rows: &[Value], next: &str) -> Answer {
    let mut answer = Answer::written(1, json!({name: rows}));
    if let Answer::Json(value, _) = &mut answer {
        value["NextToken"] = next.into();
    }
    answer
}

pub(super) async fn snapshots(call: Call) -> Result<Answer, Refusal> {
    let plugin = call.query.text("plugin_id").unwrap_or_default();
    let found = call.api.commands.csi_snapshots(plugin, external_page(&call)?, &secrets(&call)).await?;
    let rows: Vec<Value> = found.entries.iter().map(shape::csi_snapshot).collect();
    Ok(external_list("Snapshots", &rows, &found.next))
}

pub(super) async fn create_snapshots(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let one = |of: Input| {
        Ok(NewSnapshot {
            volume: of.text("SourceVolumeID")?,
            plugin: of.text("PluginID")?,
            name: of.text("Name")?,
            secrets: hidden(of.texts("Secrets")?),
            parameters: of.texts("Parameters")?,
        })
    };
    let wanted = input.objects("Snapshots")?.into_iter().map(one).collect::<Result<Vec<_>, Refusal>>()?;
    let taken = call.api.commands.create_csi_snapshots(call.one_namespace(), wanted).await?;
    Ok(Answer::written(1, json!({"Snapshots": taken.iter().map(shape::csi_snapshot).collect::<Vec<_>>()})))
}

pub(super) async fn delete_snapshot(call: Call) -> Result<Answer, Refusal> {
    let of = |key: &str| call.query.text(key).unwrap_or_default();
    call.api.commands.delete_csi_snapshot(of("plugin_id"), of("snapshot_id"), &secrets(&call)).await?;
    Ok(Answer::written(1, json!({})))
}

pub(super) async fn list_plugins(call: Call) -> Result<Answer, Refusal> {
    match call.query.get("type") {
        None => return Ok(Answer::at(1, json!([]))),
        Some("csi") => {}
        Some(_) => return Err(Refusal::missing("resource not found")),
    }
    lists::read(&call, &TABLES, |view| {
        let index = index(view)?;
        let all = plugins(view)?;
        let wanted = all.iter().filter(|(id, _)| id.starts_with(call.prefix()));
        Ok(Found::new(index, wanted.map(|(id, plugin)| plugin.stub(id, index)).collect()))
    })
    .await
}

pub(super) async fn plugin(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &TABLES, |view| {
        let index = index(view)?;
        let Some(plugin) = plugins(view)?.remove(call.id()) else {
            return Ok(Found::missing(index, "plugin not found"));
        };
        let node = view.node()?.map(|node| node.id).unwrap_or_default();
        let allocs = stubs(view, plugin.allocs().into_iter())?;
        Ok(Found::new(index, plugin.whole(call.id(), &node, index, allocs)))
    })
    .await
}

/// The ids of plugins that begin with a prefix.
pub(super) fn plugin_ids(view: &View, prefix: &str) -> Result<Vec<String>, StateError> {
    Ok(plugins(view)?.keys().filter(|id| id.starts_with(prefix)).cloned().collect())
}
