//! `/v1/jobs`: lists, and registering.

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal};
use super::input::Input;
use super::lists::{self, Found, Page, Token};
use super::{limits, shape};
use crate::agent::commands::Register;
use crate::agent::model::{DeploymentStatus, JobVersion, Submission};
use crate::agent::state::{StateError, Table, View};
use crate::spec::json::json;

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    let with_meta = call.switch("meta")?;
    lists::read(&call, &[Table::Jobs, Table::Summaries], |view| {
        let index = view.table_index(Table::Jobs)?.max(view.table_index(Table::Summaries)?);
        let (rows, next_token) = rows(&call, view, &page, with_meta)?;
        Ok(Found { index, value: Ok(rows.into()), next_token })
    })
    .await
}

fn rows(call: &Call, view: &View, page: &Page, with_meta: bool) -> Result<(Vec<Value>, Option<String>), Refusal> {
    page.rows(
        view.jobs(call.namespace(), call.prefix()),
        |job| Token::name(format!("{}.{}", job.key.namespace, job.key.id)),
        |job| Ok(Value::Object(shape::job(job))),
        |job| Ok(shape::job_stub(job, view.summary(&job.key)?, with_meta)),
    )
}

/// The jobs of a node pool: all of them are in the pool of the node.
pub(super) async fn of_pool(call: Call) -> Result<Answer, Refusal> {
    let pool = call.id().to_owned();
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Jobs, Table::Summaries], |view| {
        let index = view.table_index(Table::Jobs)?;
        let (rows, next_token) = rows(&call, view, &page, false)?;
        let rows: Vec<Value> =
            rows.into_iter().filter(|job| pool == "all" || job["NodePool"].as_str() == Some(pool.as_str())).collect();
        Ok(Found { index, value: Ok(rows.into()), next_token })
    })
    .await
}

/// What the index page of a user interface asks.
pub(super) async fn statuses(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.optional_input().await?;
    let wanted = wanted(&input)?;
    let with_children = input.switch("IncludeChildren")? || call.switch("include_children")? || wanted.is_some();
    let page = Page::of(&call)?;
    let tables = [Table::Jobs, Table::Allocs, Table::Deployments];
    lists::read(&call, &tables, |view| {
        let index = tables.iter().map(|table| view.table_index(*table)).collect::<Result<Vec<_>, _>>()?;
        let jobs = view.jobs(call.namespace(), call.prefix()).filter(|job| {
            job.as_ref().is_ok_and(|job| {
                let asked = wanted.as_ref().is_none_or(|wanted| {
                    wanted.iter().any(|(namespace, id)| *namespace == job.key.namespace && *id == job.key.id)
                });
                asked && (with_children || job.parent_id.is_empty())
            })
        });
        let (rows, next_token) = page.rows(
            jobs,
            |job| Token::name(format!("{}.{}", job.key.namespace, job.key.id)),
            |job| Ok(Value::Object(shape::job(job))),
            |job| status(view, job),
        )?;
        Ok(Found { index: index.into_iter().max().unwrap_or(1), value: Ok(rows.into()), next_token })
    })
    .await
}

/// The jobs that a body names; `None` for all.
fn wanted(input: &Input) -> Result<Option<Vec<(String, String)>>, Refusal> {
    let Some(list) = input.get("Jobs") else { return Ok(None) };
    let wrong = || Refusal::bad("Jobs must be a list of objects with ID and Namespace");
    let list = list.as_array().ok_or_else(wrong)?;
    let one = |job: &Value| {
        let text = |key: &str| job.get(key).or_else(|| job.get(key.to_ascii_lowercase())).and_then(Value::as_str);
        let id = text("ID").ok_or_else(wrong)?;
        Ok((text("Namespace").unwrap_or("default").to_owned(), id.to_owned()))
    };
    let all: Vec<_> = list.iter().map(one).collect::<Result<_, Refusal>>()?;
    Ok(if all.is_empty() { None } else { Some(all) })
}

fn status(view: &View, job: &JobVersion) -> Result<Value, StateError> {
    let spec = |key: &str| job.spec.get(key).cloned().unwrap_or_default();
    let allocs: Vec<Value> = view
        .allocs_of_job(&job.key)?
        .iter()
        .map(|alloc| {
            json!({
                "ID": alloc.id,
                "Group": alloc.task_group,
                "ClientStatus": alloc.client_status,
                "NodeID": alloc.node_id,
                "JobVersion": alloc.job_version,
                "FollowupEvalID": alloc.followup_eval_id,
                "HasPausedTask": false,
                "DeploymentStatus": alloc.deployment_status.as_ref().map(|s| json!({"Canary": s.canary, "Healthy": s.healthy})),
            })
        })
        .collect();
    let latest = view.deployments_of_job(&job.key)?.pop();
    let mut children = Vec::new();
    for child in view.children(&job.key) {
        children.extend(view.job(&child?)?.map(|child| json!(child.status)));
    }
    let is_parent = !spec("Periodic").is_null() || (!spec("ParameterizedJob").is_null() && !job.dispatched);
    let counts = spec("TaskGroups");
    let counts = counts.as_array().into_iter().flatten().filter_map(|group| group.get("Count")?.as_i64());
    Ok(json!({
        "ID": job.key.id,
        "Name": spec("Name"),
        "Namespace": job.key.namespace,
        "ParentID": job.parent_id,
        "Type": spec("Type"),
        "NodePool": spec("NodePool"),
        "Datacenters": spec("Datacenters"),
        "Priority": spec("Priority"),
        "Version": job.version,
        "Status": job.status,
        "Stop": job.stop,
        "SubmitTime": job.submit_time,
        "ModifyIndex": job.modify_index,
        "IsPack": false,
        "GroupCountSum": counts.sum::<i64>(),
        "Allocs": shape::null_if_empty(allocs.into()),
        "ChildStatuses": if is_parent { children.into() } else { Value::Null },
        "LatestDeployment": latest.map(|deployment| {
            let canaries = |promoted: bool| {
                deployment.task_groups.values().any(|group| group.desired_canaries > 0 && group.promoted == promoted)
            };
            json!({
                "ID": deployment.id,
                "IsActive": !deployment.status.is_terminal(),
                "JobVersion": deployment.job_version,
                "Status": deployment.status,
                "StatusDescription": deployment.status_description,
                "AllAutoPromote": deployment.task_groups.values().all(|group| group.auto_promote),
                "RequiresPromotion": deployment.status == DeploymentStatus::Running && canaries(false),
            })
        }),
    }))
}

/// `PUT /v1/jobs`, and `PUT /v1/job/:id`.
pub(super) async fn register(mut call: Call) -> Result<Answer, Refusal> {
    limits::may_register(&call)?;
    let input = call.input().await?;
    let spec = job_of(&call, &input)?;
    if let Some(id) = call.ids.first()
        && spec.get("ID").and_then(Value::as_str) != Some(id)
    {
        return Err(Refusal::bad("Job ID does not match name"));
    }
    let spec = limits::admit(&call, spec)?;
    let enforced = input.switch("EnforceIndex")?;
    let given = Register {
        spec,
        submission: submission(&input)?,
        enforce_index: if enforced { Some(input.natural("JobModifyIndex")?.unwrap_or(0)) } else { None },
        preserve_counts: input.switch("PreserveCounts")?,
        preserve_resources: input.switch("PreserveResources")?,
        eval_priority: match input.number("EvalPriority")? {
            None | Some(0) => 0,
            Some(given) => eval_priority(given)?,
        },
    };
    let done = call.api.commands.register(given).await?;
    let value = json!({
        "EvalID": done.eval_id,
        "EvalCreateIndex": done.eval_create_index,
        "JobModifyIndex": done.job_modify_index,
        "Warnings": done.warnings,
    });
    Ok(Answer::written(done.index, value))
}

/// The priority that a client wants for an evaluation, instead of the job's.
pub(super) fn eval_priority(given: i64) -> Result<i64, Refusal> {
    if (1..=100).contains(&given) {
        Ok(given)
    } else {
        Err(Refusal::bad("Eval priority must be between 1 and 100 inclusively"))
    }
}

/// Sets the namespace and the region of a job. What the query says goes before the body, and the body before the job.
fn place(call: &Call, input: &Input, job: &mut Map<String, Value>) -> Result<(), Refusal> {
    let own = call.api.about.region.as_str();
    for (key, usual) in [("Namespace", "default"), ("Region", own)] {
        let is_it = |name: &str| name.eq_ignore_ascii_case(key);
        let of_job = match job.iter().find(|(name, _)| is_it(name)) {
            None | Some((_, Value::Null)) => "",
            Some((_, Value::String(text))) => text,
            // It is refused where the job is read.
            Some(_) => continue,
        };
        let of_body = input.text(key)?;
        let of_query = call.query.text(&key.to_ascii_lowercase()).unwrap_or_default();
        let said = [of_query, &of_body, of_job].into_iter().find(|text| !text.is_empty()).unwrap_or(usual);
        if key == "Region" && said != own && said != "global" {
            return Err(Refusal::failed("No path to region"));
        }
        let said = Value::from(if key == "Region" { own } else { said });
        job.retain(|name, _| !is_it(name));
        job.insert(key.to_owned(), said);
    }
    Ok(())
}

/// The job of a body, in canonical form: the one place where a job comes in.
pub(super) fn job_of(call: &Call, input: &Input) -> Result<Map<String, Value>, Refusal> {
    let mut job = input.get("Job").cloned().ok_or_else(|| Refusal::bad("Job must be specified"))?;
    let Some(given) = job.as_object_mut() else { return Err(Refusal::bad("Job must be an object")) };
    place(call, input, given)?;
    let now = crate::agent::model::Nanos::of(std::time::SystemTime::now());
    let spec = crate::jobspec::canonicalize(&job, now.0).map_err(|e| Refusal::bad(e.to_string()))?;
    if spec.get("ID").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(Refusal::bad("Job ID hasn't been provided"));
    }
    Ok(spec)
}

fn submission(input: &Input) -> Result<Option<Submission>, Refusal> {
    let Some(given) = input.object("Submission")? else { return Ok(None) };
    Ok(Some(Submission {
        source: given.text("Source")?,
        format: given.text("Format")?,
        variable_flags: given.texts("VariableFlags")?,
        variables: given.text("Variables")?,
    }))
}
