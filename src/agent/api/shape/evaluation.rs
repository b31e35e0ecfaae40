//! Evaluations and deployments.

use serde_json::{Map, Value};

use super::metric::metric;
use super::{instant, kept, null_if_empty};
use crate::agent::model::{Deployment, Evaluation};
use crate::spec::json::json;

/// An evaluation. Empty members are left out, as in Nomad, except for those that a client reads without a check.
pub(in super::super) fn evaluation(eval: &Evaluation) -> Value {
    let mut value = kept(eval);
    let failed: Map<String, Value> = eval.failed.iter().map(|(group, of)| (group.clone(), metric(of, ""))).collect();
    value.remove("FailedTGAllocs");
    if !failed.is_empty() {
        value.insert("FailedTGAllocs".to_owned(), failed.into());
    }
    if let Some(annotations) = value.remove("PlanAnnotations").filter(|_| !eval.plan_annotations.is_empty()) {
        let annotations = json!({"DesiredTGUpdates": annotations, "PreemptedAllocs": null});
        value.insert("PlanAnnotations".to_owned(), annotations);
    }
    value.remove("WaitUntilNanos");
    if eval.wait_until_nanos.0 != 0 {
        value.insert("WaitUntil".to_owned(), instant(eval.wait_until_nanos));
    }
    Value::Object(value)
}

/// An evaluation that another one names.
pub(in super::super) fn evaluation_stub(eval: &Evaluation) -> Value {
    let mut value = json!({
        "ID": eval.id,
        "Priority": eval.priority,
        "TriggeredBy": eval.triggered_by,
        "Namespace": eval.namespace,
        "JobID": eval.job_id,
        "NodeID": eval.node_id,
        "DeploymentID": eval.deployment_id,
        "Status": eval.status,
        "StatusDescription": eval.status_description,
        "WaitUntil": instant(eval.wait_until_nanos),
        "NextEval": eval.next_eval,
        "PreviousEval": eval.previous_eval,
        "BlockedEval": eval.blocked_eval,
        "CreateIndex": eval.create_index,
        "ModifyIndex": eval.modify_index,
        "CreateTime": eval.create_time,
        "ModifyTime": eval.modify_time,
    });
    value["Type"] = eval.kind.as_str().into();
    value
}

/// A deployment.
pub(in super::super) fn deployment(deployment: &Deployment) -> Value {
    let mut value = kept(deployment);
    value.insert("IsMultiregion".to_owned(), false.into());
    for (_, group) in value.get_mut("TaskGroups").and_then(Value::as_object_mut).into_iter().flatten() {
        if let Some(canaries) = group.get_mut("PlacedCanaries") {
            *canaries = null_if_empty(canaries.take());
        }
        let by = group.get_mut("RequireProgressBy");
        if let Some(by) = by.filter(|by| by.as_str().is_some_and(|by| by.starts_with("0001-"))) {
            *by = Value::Null;
        }
    }
    Value::Object(value)
}
