//! One job.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::evaluations::whole;
use super::jobs::eval_priority;
use super::lists::{self, Found, Page, Token};
use super::{limits, shape};
use crate::agent::commands::{Deregister, Dispatch, Evaluated};
use crate::agent::model::Deployment;
use crate::agent::state::{StateError, Table, View};
use crate::spec::Order as _;
use crate::spec::json::json;

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Jobs], |view| {
        Ok(match view.job(&call.job())? {
            Some(job) => Found::new(job.modify_index, shape::job(&job).into()),
            None => Found::missing(view.table_index(Table::Jobs)?, "job not found"),
        })
    })
    .await
}

pub(super) async fn stop(call: Call) -> Result<Answer, Refusal> {
    let how = Deregister {
        purge: call.switch("purge")?,
        eval_priority: match call.number::<i64>("eval_priority")? {
            Some(given) if given > 0 => eval_priority(given)?,
            _ => 0,
        },
        no_shutdown_delay: call.switch("no_shutdown_delay")?,
    };
    let key = call.job();
    let known = call.api.state.read()?.job(&key)?.is_some();
    // A job that does not exist is stopped already.
    let done = if known { call.api.commands.deregister(&key, how).await? } else { Evaluated::default() };
    let value = json!({
        "EvalID": done.eval_id,
        "EvalCreateIndex": done.eval_create_index,
        "JobModifyIndex": done.job_modify_index,
        "VolumeEvalID": "",
        "VolumeEvalIndex": 0,
    });
    Ok(Answer::written(done.index, value))
}

/// All allocations of a job id, or only those of the job that has the id now.
pub(super) async fn allocations(call: Call) -> Result<Answer, Refusal> {
    let all = call.switch("all")?;
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Allocs], |view| {
        let key = call.job();
        let created = view.job(&key)?.map(|job| job.create_index);
        let mut allocs = view.allocs_of_job(&key)?;
        allocs.retain(|alloc| all || created.is_none_or(|created| alloc.job_create_index == created));
        allocs.order_by(|a, b| (a.create_index, &a.id).cmp(&(b.create_index, &b.id)));
        super::allocations::rows(view, &page, allocs.into_iter().map(Ok), false, true)
    })
    .await
}

pub(super) async fn evaluations(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Evals], |view| {
        let mut evals = view.evals_of_job(&call.job())?;
        // The newest first, as the command line shows them.
        evals.order_by(|a, b| (b.create_index, &b.id).cmp(&(a.create_index, &a.id)));
        let last = u64::MAX;
        let (rows, next_token) = page.rows(
            evals.into_iter().map(Ok),
            |eval| Token::index(last - eval.create_index, &eval.id),
            whole,
            |eval| Ok(shape::evaluation(eval)),
        )?;
        Ok(Found { index: view.table_index(Table::Evals)?, value: Ok(rows.into()), next_token })
    })
    .await
}

/// The deployments of the job that has the id now, newest first; with `all`, of every job that had it.
fn deployments_of(call: &Call, view: &View) -> Result<Vec<Deployment>, StateError> {
    let key = call.job();
    let all = call.query.switch("all").ok().flatten().unwrap_or(false);
    let created = view.job(&key)?.map(|job| job.create_index);
    let mut found = view.deployments_of_job(&key)?;
    found.retain(|deployment| all || created.is_none_or(|created| deployment.job_create_index == created));
    found.reverse();
    Ok(found)
}

pub(super) async fn deployments(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Deployments], |view| {
        let all: Vec<Value> = deployments_of(&call, view)?.iter().map(shape::deployment).collect();
        Ok(Found::new(view.table_index(Table::Deployments)?, all.into()))
    })
    .await
}

pub(super) async fn deployment(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Deployments], |view| {
        let latest = deployments_of(&call, view)?.into_iter().next();
        let index = match &latest {
            Some(latest) => latest.modify_index,
            None => view.table_index(Table::Deployments)?,
        };
        Ok(Found::new(index, latest.as_ref().map_or(Value::Null, shape::deployment)))
    })
    .await
}

pub(super) async fn summary(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Summaries], |view| {
        Ok(match view.summary(&call.job())? {
            Some(summary) => Found::new(summary.modify_index, shape::job_summary(&summary)),
            None => Found::missing(view.table_index(Table::Summaries)?, "job not found"),
        })
    })
    .await
}

/// The actions of all tasks.
pub(super) async fn actions(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Jobs], |view| {
        let Some(job) = view.job(&call.job())? else {
            return Err(Refusal::failed(format!("Unknown job {:?}", call.id())));
        };
        let mut found = Vec::new();
        for group in job.spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten() {
            for task in group["Tasks"].as_array().into_iter().flatten() {
                for action in task["Actions"].as_array().into_iter().flatten() {
                    found.push(json!({
                        "Name": action["Name"], "Command": action["Command"], "Args": action["Args"],
                        "TaskName": task["Name"], "TaskGroupName": group["Name"],
                    }));
                }
            }
        }
        Ok(Found::new(job.modify_index, found.into()))
    })
    .await
}

pub(super) async fn evaluate(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.optional_input().await?;
    same_job(&call, &input)?;
    let options = input.object("EvalOptions")?.unwrap_or_default();
    let done = call.api.commands.evaluate(&call.job(), options.switch("ForceReschedule")?).await?;
    let value = json!({
        "EvalID": done.eval_id,
        "EvalCreateIndex": done.eval_create_index,
        "JobModifyIndex": done.job_modify_index,
        "Warnings": "",
    });
    Ok(Answer::written(done.index, value))
}

/// Checks that a job named in the body is the one in the path.
pub(super) fn same_job(call: &Call, input: &super::input::Input) -> Result<(), Refusal> {
    let named = input.text("JobID")?;
    if named.is_empty() || named == call.id() { Ok(()) } else { Err(Refusal::bad("Job ID does not match")) }
}

pub(super) async fn dispatch(mut call: Call) -> Result<Answer, Refusal> {
    limits::may_register(&call)?;
    let input = call.optional_input().await?;
    same_job(&call, &input)?;
    let payload = input.text("Payload")?;
    let payload_bytes = STANDARD.decode(&payload).map_err(|_| Refusal::bad("Payload must be base64"))?.len();
    // The Python library sends the token in the body.
    let token = call.query.text("idempotency_token").map(str::to_owned);
    let given = Dispatch {
        payload,
        payload_bytes,
        meta: input.texts("Meta")?,
        id_prefix: input.text("IdPrefixTemplate")?,
        priority: input.number("Priority")?.filter(|priority| *priority != 0),
        idempotency_token: token.map_or_else(|| input.text("idempotency_token"), Ok)?,
    };
    dispatched(&call, given).await
}

/// `PUT /v1/job/:id/dispatch/payload`: the body is the payload, and nothing else is given.
pub(super) async fn dispatch_payload(mut call: Call) -> Result<Answer, Refusal> {
    limits::may_register(&call)?;
    let payload = call.bytes().await?;
    let given = Dispatch {
        payload: STANDARD.encode(&payload),
        payload_bytes: payload.len(),
        idempotency_token: call.query.text("idempotency_token").unwrap_or_default().to_owned(),
        ..Dispatch::default()
    };
    dispatched(&call, given).await
}

async fn dispatched(call: &Call, given: Dispatch) -> Result<Answer, Refusal> {
    may_start(call)?;
    let done = call.api.commands.dispatch(&call.job(), given).await;
    let done = done.map_err(|error| Refusal::unfound(error, "parameterized job not found"))?;
    let value = json!({
        "DispatchedJobID": done.job_id,
        "JobCreateIndex": done.job_create_index,
        "EvalID": done.eval_id,
        "EvalCreateIndex": done.eval_create_index,
    });
    Ok(Answer::written(done.index, value))
}

/// Checks that the sender may start tasks of the job.
pub(super) fn may_start(call: &Call) -> Result<(), Refusal> {
    limits::admit_again(call, call.api.state.read()?.job(&call.job())?.as_ref())
}

pub(super) async fn periodic_force(call: Call) -> Result<Answer, Refusal> {
    may_start(&call)?;
    let done = call.api.commands.periodic_force(&call.job()).await?;
    Ok(Answer::written(done.index, json!({"EvalID": done.eval_id, "EvalCreateIndex": done.eval_create_index})))
}
