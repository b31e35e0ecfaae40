//! How many allocations groups have: scale status, scaling, policies.

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal};
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::commands::{CommandError, Scale};
use crate::agent::model::{ClientStatus, JobVersion};
use crate::agent::state::{Table, View};
use crate::spec::json::json;
use crate::spec::{IntoMap as _, Order as _};

pub(super) async fn status(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Jobs, Table::Allocs, Table::Scaling], |view| {
        let key = call.job();
        let Some(job) = view.job(&key)? else {
            return Ok(Found::missing(view.table_index(Table::Jobs)?, "job not found"));
        };
        let allocs = view.allocs_of_job(&key)?;
        let events = view.scaling_events(&key)?;
        let mut groups = Map::new();
        for group in job.spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten() {
            let name = group["Name"].as_str().unwrap_or_default();
            let live: Vec<_> = allocs.iter().filter(|alloc| alloc.task_group == name && !alloc.is_terminal()).collect();
            let health = |wanted: bool| {
                let is = |status: Option<bool>| status == Some(wanted);
                live.iter()
                    .filter(|alloc| is(alloc.deployment_status.as_ref().and_then(|status| status.healthy)))
                    .count()
            };
            let value = json!({
                "Desired": if job.stop { json!(0) } else { group["Count"].clone() },
                "Placed": live.len(),
                "Running": live.iter().filter(|alloc| alloc.client_status == ClientStatus::Running).count(),
                "Healthy": health(true),
                "Unhealthy": health(false),
                "Events": shape::null_if_empty(json!(events.get(name))),
            });
            groups.insert(name.to_owned(), value);
        }
        let index = view.table_index(Table::Allocs)?.max(job.modify_index).max(view.table_index(Table::Scaling)?);
        let value = json!({
            "JobID": key.id,
            "Namespace": key.namespace,
            "JobCreateIndex": job.create_index,
            "JobModifyIndex": job.modify_index,
            "JobStopped": job.stop,
            "TaskGroups": groups,
        });
        Ok(Found::new(index, value))
    })
    .await
}

pub(super) async fn scale(mut call: Call) -> Result<Answer, Refusal> {
    super::limits::may_register(&call)?;
    let input = call.input().await?;
    let target = input.texts("Target")?;
    let group = target.get("Group").cloned().unwrap_or_default();
    if group.is_empty() {
        return Err(Refusal::bad("missing task group name for scaling action"));
    }
    if target.get("Job").is_some_and(|job| job != call.id()) {
        return Err(Refusal::bad("job ID in payload did not match URL"));
    }
    let meta = input.object("Meta")?.map(super::input::Input::members).unwrap_or_default();
    let given = Scale {
        group,
        count: input.number("Count")?,
        message: input.text("Message")?,
        error: input.switch("Error")?,
        meta: meta.into_iter().into_map(),
        // Without regard to `EnforceIndex`, as in Nomad.
        enforce_index: input.natural("JobModifyIndex")?.filter(|index| *index > 0),
    };
    if given.count.is_some() {
        super::job::may_start(&call)?;
    }
    let done = call.api.commands.scale(&call.job(), given).await.map_err(|error| match error {
        CommandError::NotFound(_) => Refusal::missing(format!("job {:?} not found", call.id())),
        CommandError::Invalid(text) => Refusal::bad(text),
        error => error.into(),
    })?;
    let value = json!({
        "EvalID": done.eval_id,
        "EvalCreateIndex": done.eval_create_index,
        "JobModifyIndex": done.job_modify_index,
        "Warnings": done.warnings,
    });
    Ok(Answer::written(done.index, value))
}

/// The policy of each group of a job that has one.
fn of_job(job: &JobVersion) -> Vec<Value> {
    let groups = job.spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten();
    let policy = |group: &Value| {
        let scaling = group.get("Scaling")?.as_object()?;
        let name = group["Name"].as_str()?;
        let target = json!({"Namespace": job.key.namespace, "Job": job.key.id, "Group": name});
        let mut policy = scaling.clone();
        let over = json!({
            "ID": shape::policy_id(job, name),
            "Target": target,
            "CreateIndex": job.create_index,
            "ModifyIndex": job.job_modify_index,
        });
        shape::lay(&mut policy, over);
        Some(Value::Object(policy))
    };
    groups.filter_map(policy).collect()
}

/// The policies of a namespace.
pub(super) fn all(call: &Call, view: &View) -> Result<Vec<Value>, Refusal> {
    let mut found = Vec::new();
    for job in view.jobs(call.namespace(), "") {
        let job = job?;
        if !job.stop {
            found.extend(of_job(&job));
        }
    }
    Ok(found)
}

pub(super) async fn policies(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Jobs], |view| {
        let job = call.query.text("job");
        let kind = call.query.text("type").unwrap_or_default();
        let mut found = all(&call, view)?;
        found.retain(|policy| job.is_none_or(|job| policy["Target"]["Job"] == job));
        found.retain(|policy| kind.is_empty() || policy["Type"] == kind);
        found.retain(|policy| policy["ID"].as_str().is_some_and(|id| id.starts_with(call.prefix())));
        found.order_by_key(|policy| policy["ID"].to_string());
        let stub = |policy: &Value| {
            let mut stub = policy.clone();
            for extra in ["Policy", "Min", "Max"] {
                stub.as_object_mut().map(|stub| stub.remove(extra));
            }
            Ok(stub)
        };
        let (rows, next_token) = page.rows(
            found.into_iter().map(Ok),
            |policy| Token::name(policy["ID"].as_str().unwrap_or_default()),
            |policy| Ok(policy.clone()),
            stub,
        )?;
        Ok(Found { index: view.table_index(Table::Jobs)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn policy(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Jobs], |view| {
        let index = view.table_index(Table::Jobs)?;
        let mut everywhere = Vec::new();
        for job in view.jobs(None, "") {
            everywhere.extend(of_job(&job?));
        }
        let found = everywhere.into_iter().find(|policy| policy["ID"] == call.id());
        Ok(found.map_or_else(|| Found::missing(index, "policy not found"), |policy| Found::new(index, policy)))
    })
    .await
}
