//! Versions of a job: listing, differences, tags, and reverting.

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal, with_meta};
use super::job::same_job;
use super::lists::{self, Found};
use super::{limits, shape};
use crate::agent::model::{JobVersion, Nanos, VersionTag};
use crate::agent::state::{StateError, Table, View};
use crate::spec::json;
use crate::spec::json::json;

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let diffs = call.switch("diffs")?;
    let (tag, version) = (call.query.text("diff_tag").map(str::to_owned), call.number::<u64>("diff_version")?);
    lists::read(&call, &[Table::Jobs], |view| {
        let key = call.job();
        let versions = view.versions(&key)?;
        let Some(newest) = versions.first() else {
            return Ok(Found::missing(view.table_index(Table::Jobs)?, "job versions not found"));
        };
        let index = newest.modify_index;
        let against = match (&tag, version) {
            _ if !diffs => None,
            (Some(tag), _) => Some(view.tagged(&key, tag)?.ok_or_else(|| unknown_tag(tag))?),
            (None, Some(version)) => {
                let unknown = || Refusal::failed(format!("version {version} not found"));
                Some(view.version(&key, version)?.ok_or_else(unknown)?)
            }
            (None, None) => None,
        };
        let mut answer = Map::new();
        let shown: Vec<Value> = versions.iter().map(|version| shape::job(version).into()).collect();
        answer.insert("Versions".to_owned(), shown.into());
        let made = if diffs { differences(&versions, against.as_ref()) } else { Vec::new() };
        answer.insert("Diffs".to_owned(), shape::null_if_empty(made.into()));
        with_meta(&mut answer, index);
        Ok(Found::new(index, answer.into()))
    })
    .await
}

fn unknown_tag(tag: &str) -> Refusal {
    Refusal::failed(format!("tag {tag:?} not found"))
}

/// What each version changed, newest first: compared with the one before it, or with one version given for all.
fn differences(versions: &[JobVersion], against: Option<&JobVersion>) -> Vec<Value> {
    let one = |old: &JobVersion, new: &JobVersion| {
        json::to_value(&crate::jobspec::diff(Some(&old.spec), Some(&new.spec), true)).unwrap_or_default()
    };
    match against {
        Some(against) => versions.iter().map(|version| one(against, version)).collect(),
        None => versions.windows(2).map(|pair| one(&pair[1], &pair[0])).collect(),
    }
}

pub(super) async fn submission(call: Call) -> Result<Answer, Refusal> {
    let version = call.query.text("version").and_then(|text| text.parse::<u64>().ok());
    let version = version.ok_or_else(|| Refusal::bad("Unable to parse job submission version parameter"))?;
    lists::read(&call, &[Table::Jobs], |view| {
        let key = call.job();
        let found = view.submission(&key, version)?;
        let Some((found, job)) = found.zip(view.version(&key, version)?) else {
            return Ok(Found::missing(view.table_index(Table::Jobs)?, "job source not found"));
        };
        let value = json!({
            "Source": found.source,
            "Format": found.format,
            "VariableFlags": shape::null_if_empty(json!(found.variable_flags)),
            "Variables": found.variables,
            "Namespace": key.namespace,
            "JobID": key.id,
            "Version": version,
            "JobModifyIndex": job.job_modify_index,
        });
        Ok(Found::new(job.job_modify_index, value))
    })
    .await
}

pub(super) async fn revert(mut call: Call) -> Result<Answer, Refusal> {
    limits::may_register(&call)?;
    let input = call.input().await?;
    same_job(&call, &input)?;
    let key = call.job();
    let tag = input.text("TaggedVersion")?;
    let version = if tag.is_empty() {
        input.natural("JobVersion")?.ok_or_else(|| Refusal::bad("JobVersion must be specified"))?
    } else {
        let found = call.api.state.read()?.tagged(&key, &tag)?;
        found.ok_or_else(|| unknown_tag(&tag))?.version
    };
    let view = call.api.state.read()?;
    if view.job(&key)?.is_none() {
        return Err(Refusal::failed(format!("job {:?} not found", key.id)));
    }
    limits::admit_again(&call, view.version(&key, version)?.as_ref())?;
    drop(view);
    let done = call.api.commands.revert(&key, version, input.natural("EnforcePriorVersion")?).await?;
    let value = json!({
        "EvalID": done.eval_id,
        "EvalCreateIndex": done.eval_create_index,
        "JobModifyIndex": done.job_modify_index,
        "Warnings": done.warnings,
    });
    Ok(Answer::written(done.index, value))
}

pub(super) async fn stable(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    same_job(&call, &input)?;
    let version = input.natural("JobVersion")?.ok_or_else(|| Refusal::bad("JobVersion must be specified"))?;
    let key = call.job();
    let done = call.api.commands.stable(&key, version, input.switch("Stable")?).await;
    let text = || format!("job {:?} in namespace {:?} at version {version} not found", key.id, key.namespace);
    let index = done.map_err(|error| Refusal::unfound(error, text()))?;
    Ok(Answer::written(index, json!({})))
}

pub(super) async fn tag(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.optional_input().await?;
    let (key, name) = (call.job(), call.second().to_owned());
    let newest = |view: &View| -> Result<Option<u64>, StateError> { Ok(view.job(&key)?.map(|job| job.version)) };
    let version = match input.natural("Version")? {
        Some(version) => version,
        None => newest(&call.api.state.read()?)?.ok_or_else(|| Refusal::missing("job not found"))?,
    };
    let now = Nanos::of(std::time::SystemTime::now());
    let tag = VersionTag { name: name.clone(), description: input.text("Description")?, tagged_time: now };
    let done = call.api.commands.tag(&key, version, Some(tag)).await;
    let text = || format!("job {:?} version {version} not found", key.id);
    let index = done.map_err(|error| Refusal::unfound(error, text()))?;
    let value = json!({
        "Name": name, "Description": input.text("Description")?, "TaggedTime": now,
    });
    Ok(Answer::written(index, value))
}

pub(super) async fn untag(call: Call) -> Result<Answer, Refusal> {
    let key = call.job();
    let found = call.api.state.read()?.tagged(&key, call.second())?;
    let text = || format!("tag {:?} not found on job {:?}", call.second(), key.id);
    let version = found.ok_or_else(|| Refusal::failed(text()))?.version;
    let index = call.api.commands.tag(&key, version, None).await?;
    Ok(Answer::written(index, json!({})))
}
