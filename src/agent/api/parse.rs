//! Jobs that are checked and not registered: parse, validate, plan.

use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use super::Call;
use super::answer::{Answer, Refusal};
use super::jobs::{given, job_of};
use super::{limits, shape};
use crate::agent::model::{DesiredUpdates, JobVersion, Role};
use crate::jobspec::{self, PlannedUpdates};
use crate::spec::IntoMap as _;
use crate::spec::json;
use crate::spec::json::json;

/// Limits concurrent evaluations of job files: each may take a second of CPU time, also when its client has gone.
static PARSES: Semaphore = Semaphore::const_new(2);

/// `PUT /v1/jobs/parse`: the submitted text cannot read this machine's files or environment.
pub(super) async fn parse(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let text = input.text("JobHCL")?;
    if text.is_empty() {
        return Err(Refusal::bad("Job spec is empty"));
    }
    if input.switch("HCLv1")? {
        return Err(Refusal::bad("HCLv1 job files are not read; write them as HCL2"));
    }
    let (variables, canonicalize) = (input.text("Variables")?, input.switch("Canonicalize")?);
    let place = PARSES.acquire().await.map_err(|e| Refusal::failed(e.to_string()))?;
    let parsed = crate::sys::task::spawn_blocking(move || {
        let _place = place;
        let job = jobspec::parse_sent(&text, &variables).map(Value::Object)?;
        if canonicalize { jobspec::with_defaults(&job).map(Value::Object) } else { Ok(job) }
    });
    let parsed = parsed.await.map_err(|e| Refusal::failed(e.to_string()))?;
    parsed.map(Answer::of).map_err(|e: jobspec::Error| Refusal::bad(format!("Failed to parse job: {e}")))
}

/// `PUT /v1/validate/job`: what is wrong is told in the answer, also that there is no ID.
pub(super) async fn validate(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let spec = given(&call, &input)?;
    let found = call.api.commands.validate(spec);
    Ok(Answer::of(json!({
        "DriverConfigValidated": true,
        "ValidationErrors": shape::null_if_empty(json!(found.errors)),
        "Error": crate::agent::commands::listed(&found.errors),
        "Warnings": found.warnings,
    })))
}

/// `PUT /v1/job/:id/plan`.
pub(super) async fn plan(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let spec = job_of(&call, &input)?;
    if spec.get("ID").and_then(Value::as_str) != Some(call.id()) {
        return Err(Refusal::bad("Job ID does not match"));
    }
    // With the changes that registering it would make.
    let spec = if call.caller.role == Role::Submit { limits::admit(&call, spec)? } else { spec };
    let wants_diff = input.switch("Diff")?;
    let planned = call.api.commands.plan(spec).await?;
    let diff = if wants_diff { diff(planned.old.as_ref(), &planned.new, &planned.desired) } else { Value::Null };
    let desired: Map<String, Value> = planned.desired.iter().map(|(group, of)| (group.clone(), json!(of))).collect();
    let failed: Map<String, Value> =
        planned.failed.iter().map(|(group, of)| (group.clone(), shape::metric(of, ""))).collect();
    let created: Vec<Value> = planned.created.iter().map(shape::evaluation).collect();
    let value = json!({
        "Annotations": {"DesiredTGUpdates": desired, "PreemptedAllocs": null},
        "FailedTGAllocs": shape::null_if_empty(failed.into()),
        "JobModifyIndex": planned.job_modify_index,
        "CreatedEvals": shape::null_if_empty(created.into()),
        "Diff": diff,
        "NextPeriodicLaunch": planned.next_periodic_launch.map_or(Value::Null, shape::instant),
        "Warnings": planned.warnings,
    });
    Ok(Answer::written(planned.index, value))
}

fn diff(
    old: Option<&JobVersion>,
    new: &Map<String, Value>,
    desired: &crate::spec::collections::BTreeMap<String, DesiredUpdates>,
) -> Value {
    let old = old.map(|old| {
        let mut spec = old.spec.clone();
        spec.insert("Stop".to_owned(), old.stop.into());
        spec
    });
    let mut diff = jobspec::diff(old.as_ref(), Some(new), true);
    let planned = desired.iter().map(|(group, of)| {
        let updates = PlannedUpdates {
            ignore: of.ignore,
            place: of.place,
            migrate: of.migrate,
            stop: of.stop,
            in_place: of.in_place_update,
            destructive: of.destructive_update,
            canary: of.canary,
            preemptions: of.preemptions,
        };
        (group.clone(), updates)
    });
    diff.annotate(&planned.into_map());
    json::to_value(&diff).unwrap_or_default()
}
