//! Endpoints for operators of a cluster.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Map;

use super::Call;
use super::agent::{SERVER, server_id};
use super::answer::{Answer, Refusal, with_meta};
use super::files;
use super::lists::{self, Found};
use super::nodes::require_own;
use crate::agent::settings;
use crate::agent::state::{Saved, Table, nameless};
use crate::http::stream::stream;
use crate::http::{HeaderName, HeaderValue, Response};
use crate::spec::json::json;

/// Size of the chunks of a snapshot, in bytes.
const PIECE: usize = 64 << 10;

pub(super) async fn gc(call: Call) -> Result<Answer, Refusal> {
    require_own(&call, call.query.get("node_id").unwrap_or_default())?;
    call.api.commands.gc().await?;
    Ok(Answer::Empty)
}

pub(super) async fn reconcile(call: Call) -> Result<Answer, Refusal> {
    let counted = call.api.state.change(|change| {
        change.reconcile_summaries()?;
        Ok(())
    });
    counted.await?;
    Ok(Answer::Empty)
}

/// The snapshot archive, with its checksum in a header, by which the command line verifies that it is complete.
pub(super) async fn save(call: Call) -> Result<Answer, Refusal> {
    let (state, dir) = (call.api.state.clone(), call.api.about.data_dir.clone());
    let saved = crate::sys::task::spawn_blocking(move || state.save_snapshot(&dir)).await;
    let Saved { file, sha256, index, .. } = saved.map_err(|e| Refusal::failed(e.to_string()))??;
    let body = stream(move |out| async move {
        let mut file = file;
        loop {
            match files::read(file, PIECE).await {
                Ok((_, data)) if data.is_empty() => return,
                Ok((same, data)) => {
                    file = same;
                    if out.send(data).await.is_err() {
                        return;
                    }
                }
                Err(e) => return out.fail(e).await,
            }
        }
    });
    let mut response = Response::new(body);
    for (name, value) in [
        ("content-type", "application/x-gzip".to_owned()),
        ("digest", format!("sha-256={}", STANDARD.encode(sha256))),
        ("x-nomad-index", index.to_string()),
        ("x-nomad-lastcontact", "0".to_owned()),
        ("x-nomad-knownleader", "true".to_owned()),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(name), value);
        }
    }
    Ok(Answer::Raw(response))
}

pub(super) async fn restore(mut call: Call) -> Result<Answer, Refusal> {
    let kept = nameless(&call.api.about.data_dir).map_err(|e| Refusal::failed(format!("cannot keep the body: {e}")))?;
    let archive = call.file(kept).await?;
    let index = call.api.commands.restore_snapshot(archive).await?;
    Ok(Answer::written(index, json!({})))
}

pub(super) async fn scheduler(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Settings], |view| {
        let index = view.table_index(Table::Settings)?;
        let config = settings::scheduler(view)?;
        let mut answer = Map::new();
        answer.insert("SchedulerConfig".to_owned(), config);
        with_meta(&mut answer, index);
        Ok(Found::new(index, answer.into()))
    })
    .await
}

pub(super) async fn set_scheduler(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let algorithm = input.text("SchedulerAlgorithm")?;
    if !matches!(algorithm.as_str(), "" | "binpack" | "spread") {
        return Err(Refusal::bad(format!("invalid scheduler algorithm: {algorithm}")));
    }
    // What is left out is off, as in Nomad: whoever changes one of them sends all.
    let mut new = Map::new();
    new.insert("SchedulerAlgorithm".to_owned(), algorithm.into());
    for name in [settings::MEMORY, settings::REJECT, settings::PAUSE] {
        new.insert(name.to_owned(), input.switch(name)?.into());
    }
    let (given, mut preemption) = (input.object("PreemptionConfig")?.unwrap_or_default(), Map::new());
    for kind in ["System", "SysBatch", "Batch", "Service"] {
        let name = format!("{kind}SchedulerEnabled");
        let is_on = given.switch(&name)?;
        preemption.insert(name, is_on.into());
    }
    new.insert("PreemptionConfig".to_owned(), preemption.into());
    let cas: Option<u64> = if call.query.has("cas") { call.number("cas")? } else { None };
    let changed = call.api.state.change(move |change| {
        let old = settings::scheduler(change)?;
        if cas.is_some() && cas != old["ModifyIndex"].as_u64() {
            return Ok(false);
        }
        new.insert("CreateIndex".to_owned(), old["CreateIndex"].clone());
        new.insert("ModifyIndex".to_owned(), change.next_index().into());
        change.put_setting(settings::SCHEDULER, &new.into())?;
        Ok(true)
    });
    let (index, updated) = changed.await?;
    call.api.commands.follow_settings()?;
    Ok(Answer::written(index, json!({"Updated": updated})))
}

pub(super) async fn raft(call: Call) -> Result<Answer, Refusal> {
    let node = format!("{}.{}", call.api.about.name, call.api.about.region);
    let id = server_id(&call.api);
    let server = json!({"ID": id, "Node": node, "Address": SERVER, "Leader": true, "Voter": true, "RaftProtocol": "3"});
    Ok(Answer::of(json!({"Index": 0, "Servers": [server]})))
}

pub(super) async fn autopilot(_: Call) -> Result<Answer, Refusal> {
    Ok(Answer::of(json!({
        "CleanupDeadServers": true, "LastContactThreshold": "200ms", "MaxTrailingLogs": 250, "MinQuorum": 0, "ServerStabilizationTime": "10s",
        "EnableRedundancyZones": false, "DisableUpgradeMigration": false, "EnableCustomUpgrades": false, "CreateIndex": 1, "ModifyIndex": 1,
    })))
}

pub(super) async fn autopilot_health(call: Call) -> Result<Answer, Refusal> {
    let about = &call.api.about;
    let id = server_id(&call.api);
    let server = json!({
        "ID": id, "Name": format!("{}.{}", about.name, about.region), "Address": SERVER, "SerfStatus": "alive", "Version": about.nomad_version,
        "Leader": true, "LastContact": "0s", "LastTerm": 1, "LastIndex": call.api.state.index(), "Healthy": true, "Voter": true,
        "StableSince": humantime::format_rfc3339_seconds(about.started).to_string(),
    });
    Ok(Answer::of(json!({"Healthy": true, "FailureTolerance": 0, "Leader": id, "Voters": [id], "Servers": [server]})))
}
