//! Dynamic host volumes, and the claims of groups on them.

use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::input::Input;
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::model::{DynamicVolume, VolumeCapability, VolumeClaim, VolumeConstraint};
use crate::agent::state::{StateError, Table, View};
use crate::spec::Order as _;
use crate::spec::json::json;

/// A volume without who uses it.
fn shown(volume: &DynamicVolume) -> Value {
    let mut value = shape::kept(volume);
    for own in ["Deleting", "Registered"] {
        value.remove(own);
    }
    // Nomad leaves them out where there are none.
    if volume.constraints.is_empty() {
        value.remove("Constraints");
    }
    if volume.parameters.is_empty() {
        value.remove("Parameters");
    }
    if volume.deleting {
        value.insert("State".to_owned(), "unavailable".into());
    }
    value.into()
}

/// A volume in a list.
fn stub(volume: &DynamicVolume) -> Value {
    let mut value = shown(volume);
    if let Value::Object(map) = &mut value {
        for whole in ["Constraints", "HostPath", "Parameters", "RequestedCapabilities"] {
            map.remove(whole);
        }
        map.retain(|key, _| !key.starts_with("RequestedCapacity"));
    }
    value
}

fn whole(view: &View, volume: &DynamicVolume) -> Result<Value, StateError> {
    let mut value = shown(volume);
    let mut allocs: Vec<Value> = Vec::new();
    for (alloc, _) in view.users_of_volume(volume)? {
        allocs.push(shape::alloc_stub(&alloc, view.version_of(&alloc)?.as_ref(), false, true));
    }
    value["Allocations"] = allocs.into();
    Ok(value)
}

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    match call.query.get("type").unwrap_or_default() {
        "host" => {}
        "" | "csi" => return super::csi::list(call).await,
        _ => return Err(Refusal::missing("resource not found")),
    }
    let page = Page::of(&call)?;
    let is_named = |key: &str, value: &str| call.query.text(key).is_none_or(|wanted| wanted == value);
    lists::read(&call, &[Table::Volumes], |view| {
        let mut found = view.volumes().all()?;
        found.retain(|volume| {
            let begins = [&volume.name, &volume.id].into_iter().any(|text| text.starts_with(call.prefix()));
            begins
                && call.wants(&volume.namespace)
                && is_named("node_id", &volume.node_id)
                && is_named("node_pool", &volume.node_pool)
        });
        found.order_by(|a, b| (&a.namespace, &a.id).cmp(&(&b.namespace, &b.id)));
        let (rows, next_token) = page.rows(
            found.into_iter().map(Ok),
            |volume| Token::name(format!("{}.{}", volume.namespace, volume.id)),
            |volume| Ok(shown(volume)),
            |volume| Ok(stub(volume)),
        )?;
        Ok(Found { index: view.table_index(Table::Volumes)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Volumes], |view| {
        Ok(match view.volume(call.id())?.filter(|volume| call.wants(&volume.namespace)) {
            Some(volume) => Found::new(volume.modify_index, whole(view, &volume)?),
            None => Found::missing(view.table_index(Table::Volumes)?, "volume not found"),
        })
    })
    .await
}

/// The volume of a request.
async fn given(call: &mut Call) -> Result<DynamicVolume, Refusal> {
    let input = call.input().await?;
    let Some(of) = input.object("Volume")? else { return Err(Refusal::failed("missing volume definition")) };
    let namespace = of.text("Namespace")?;
    let capability = |of: Input| {
        Ok(VolumeCapability { attachment_mode: of.text("AttachmentMode")?, access_mode: of.text("AccessMode")? })
    };
    let constraint = |of: Input| {
        Ok(VolumeConstraint { left: of.text("LTarget")?, right: of.text("RTarget")?, operand: of.text("Operand")? })
    };
    let number = |key: &str| Ok::<_, Refusal>(of.number(key)?.unwrap_or(0));
    Ok(DynamicVolume {
        namespace: if namespace.is_empty() { call.one_namespace().to_owned() } else { namespace },
        id: of.text("ID")?,
        name: of.text("Name")?,
        plugin_id: of.text("PluginID")?,
        node_pool: of.text("NodePool")?,
        node_id: of.text("NodeID")?,
        constraints: of.objects("Constraints")?.into_iter().map(constraint).collect::<Result<_, Refusal>>()?,
        requested_capacity_min_bytes: number("RequestedCapacityMinBytes")?,
        requested_capacity_max_bytes: number("RequestedCapacityMaxBytes")?,
        capacity_bytes: number("CapacityBytes")?,
        requested_capabilities: of
            .objects("RequestedCapabilities")?
            .into_iter()
            .map(capability)
            .collect::<Result<_, Refusal>>()?,
        parameters: of.texts("Parameters")?,
        host_path: of.text("HostPath")?,
        ..DynamicVolume::default()
    })
}

fn made(call: &Call, index: u64, volume: &DynamicVolume) -> Result<Answer, Refusal> {
    let view = call.api.state.read()?;
    Ok(Answer::written(index, json!({"Volume": whole(&view, volume)?, "Warnings": ""})))
}

pub(super) async fn create(mut call: Call) -> Result<Answer, Refusal> {
    let volume = given(&mut call).await?;
    let (index, volume) = call.api.commands.create_volume(volume).await?;
    made(&call, index, &volume)
}

pub(super) async fn register(mut call: Call) -> Result<Answer, Refusal> {
    let volume = given(&mut call).await?;
    let (index, volume) = call.api.commands.register_volume(volume).await?;
    made(&call, index, &volume)
}

pub(super) async fn delete(call: Call) -> Result<Answer, Refusal> {
    let force = call.query.switch("force").map_err(|_| Refusal::bad("invalid force value"))?.unwrap_or(false);
    let index = call.api.commands.delete_volume(call.one_namespace(), call.id(), force).await?;
    Ok(Answer::written(index, json!({})))
}

pub(super) async fn claims(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    let is_named = |key: &str, value: &str| call.query.text(key).is_none_or(|wanted| wanted == value);
    lists::read(&call, &[Table::Claims], |view| {
        let mut found = view.claims(call.namespace()).all()?;
        found.retain(|claim: &VolumeClaim| {
            claim.id.starts_with(call.prefix())
                && is_named("job_id", &claim.job_id)
                && is_named("task_group", &claim.task_group_name)
                && is_named("volume_name", &claim.volume_name)
        });
        found.order_by(|a, b| (&a.namespace, &a.id).cmp(&(&b.namespace, &b.id)));
        let claim = |claim: &VolumeClaim| Ok(shape::kept(claim).into());
        let token = |claim: &VolumeClaim| Token::name(format!("{}.{}", claim.namespace, claim.id));
        let (rows, next_token) = page.rows(found.into_iter().map(Ok), token, claim, claim)?;
        Ok(Found { index: view.table_index(Table::Claims)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn delete_claim(call: Call) -> Result<Answer, Refusal> {
    let index = call.api.commands.delete_claim(call.id()).await?;
    Ok(Answer::written(index, json!({})))
}
