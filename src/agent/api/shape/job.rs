//! Jobs.

use serde_json::{Map, Value};

use super::{kept, lay, null_if_empty};
use crate::agent::model::{JobSummary, JobVersion};
use crate::spec::json::json;

/// A version of a job: its specification, overlaid with the fields that a server adds.
pub(in super::super) fn job(version: &JobVersion) -> Map<String, Value> {
    let mut job = version.spec.clone();
    let over = json!({
        "ID": version.key.id,
        "Namespace": version.key.namespace,
        "Version": version.version,
        "Stop": version.stop,
        "Stable": version.stable,
        "Status": version.status,
        "StatusDescription": version.status_description,
        "ParentID": version.parent_id,
        "Dispatched": version.dispatched,
        "Payload": null_if_empty(version.payload.clone().into()),
        "DispatchIdempotencyToken": version.dispatch_idempotency_token,
        "SubmitTime": version.submit_time,
        "VersionTag": version.version_tag,
        "CreateIndex": version.create_index,
        "ModifyIndex": version.modify_index,
        "JobModifyIndex": version.job_modify_index,
        "NomadTokenID": "",
    });
    lay(&mut job, over);
    for group in job.get_mut("TaskGroups").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = group["Name"].as_str().unwrap_or_default().to_owned();
        if let Some(policy) = group.get_mut("Scaling").and_then(Value::as_object_mut) {
            policy.insert("ID".to_owned(), policy_id(version, &name).into());
        }
    }
    job
}

/// The id of a group's scaling policy: the same for the same group of the same job, whenever it is asked.
pub(in super::super) fn policy_id(job: &JobVersion, group: &str) -> String {
    let name = format!("{}\0{}\0{}\0{group}", job.key.namespace, job.key.id, job.create_index);
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, name.as_bytes()).to_string()
}

/// A job in a list.
pub(in super::super) fn stub(version: &JobVersion, summary: Option<JobSummary>, with_meta: bool) -> Value {
    let spec = |key: &str| version.spec.get(key).cloned().unwrap_or_default();
    let is_there = |key: &str| version.spec.get(key).is_some_and(|value| !value.is_null());
    let summary = summary.unwrap_or_else(|| JobSummary {
        job_id: version.key.id.clone(),
        namespace: version.key.namespace.clone(),
        ..JobSummary::default()
    });
    let mut stub = json!({
        "ID": version.key.id,
        "ParentID": version.parent_id,
        "Name": spec("Name"),
        "Namespace": version.key.namespace,
        "Datacenters": spec("Datacenters"),
        "NodePool": spec("NodePool"),
        "Multiregion": spec("Multiregion"),
        "Type": spec("Type"),
        "Priority": spec("Priority"),
        "Periodic": is_there("Periodic"),
        "ParameterizedJob": is_there("ParameterizedJob") && !version.dispatched,
        "Stop": version.stop,
        "Status": version.status,
        "StatusDescription": version.status_description,
        "JobSummary": kept(&summary),
        "CreateIndex": version.create_index,
        "ModifyIndex": version.modify_index,
        "JobModifyIndex": version.job_modify_index,
        "SubmitTime": version.submit_time,
    });
    if with_meta {
        stub["Meta"] = version.spec.get("Meta").filter(|meta| meta.is_object()).cloned().unwrap_or_else(|| json!({}));
    }
    stub
}

/// A job's summary.
pub(in super::super) fn summary(summary: &JobSummary) -> Value {
    Value::Object(kept(summary))
}
