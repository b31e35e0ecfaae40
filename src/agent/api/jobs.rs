//! `/v1/jobs`: lists, and registering.

use std::cell::{Cell, RefCell};

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal};
use super::input::Input;
use super::lists::{self, Found, Page, Token};
use super::{limits, shape};
use crate::agent::commands::Register;
use crate::agent::model::{DeploymentStatus, JobKey, JobVersion, Submission};
use crate::agent::state::{StateError, Table, View};
use crate::spec::Order as _;
use crate::spec::collections::BTreeSet;
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

/// What the index page of a user interface asks: what changed last comes first.
pub(super) async fn statuses(mut call: Call) -> Result<Answer, Refusal> {
    const TABLES: [Table; 3] = [Table::Jobs, Table::Allocs, Table::Deployments];
    let mut page = Page::of(&call)?.newest_first();
    let mut with_children = call.switch("include_children")?;
    let body = call.bytes().await?;
    let asked = (!body.is_empty()).then(|| wanted(&body)).transpose()?;
    let (mut namespace, mut wanted) = (call.namespace().map(str::to_owned), None);
    if let Some((jobs, children)) = asked {
        with_children |= children;
        page = page.of_at_most(jobs.len());
        // Each job says its own.
        let is_mixed = jobs.iter().any(|job| job.namespace != jobs[0].namespace);
        namespace = namespace.filter(|namespace| is_mixed && namespace != "default");
        wanted = Some(jobs);
    }
    let is_asked = move |job: &JobVersion| {
        let is_named = wanted.as_ref().is_none_or(|wanted| wanted.contains(&job.key));
        is_named && (with_children || job.parent_id.is_empty())
    };
    let before = RefCell::new(BTreeSet::new());
    let call = &call;
    lists::read(call, &TABLES, move |view| {
        let mut jobs = Vec::new();
        for job in view.jobs(namespace.as_deref(), call.prefix()) {
            let job = job?;
            if is_asked(&job) {
                jobs.push(job);
            }
        }
        jobs.order_by(|a, b| (a.modify_index, &a.key).cmp(&(b.modify_index, &b.key)));
        let (newest, shown) = (Cell::new(0), RefCell::new(BTreeSet::new()));
        let (rows, next_token) = page.rows(
            jobs.into_iter().map(Ok),
            |job| Token::index(job.modify_index, ""),
            |job| Ok(Value::Object(shape::job(job))),
            |job| {
                let (value, index) = status(view, job)?;
                newest.set(newest.get().max(index));
                shown.borrow_mut().insert(job.key.clone());
                Ok(value)
            },
        )?;
        // A change of a job on another page wakes nobody; that a job is gone from this one has no index of its own.
        let shown = shown.into_inner();
        let known = before.replace(shown.clone());
        let index = if known.is_empty() || known == shown { newest.get() } else { view.table_index(Table::Jobs)? };
        Ok(Found { index, value: Ok(rows.into()), next_token })
    })
    .await
}

/// The jobs that a body names, and whether those that they made are to be shown as well.
fn wanted(body: &[u8]) -> Result<(Vec<JobKey>, bool), Refusal> {
    let read = || -> Result<(Vec<JobKey>, bool), Refusal> {
        let input = Input::new(body, false)?;
        let one = |job: &Input| {
            let namespace = job.text("Namespace")?;
            let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
            Ok(JobKey { namespace, id: job.text("ID")? })
        };
        let jobs = input.objects("Jobs")?.iter().map(one).collect::<Result<Vec<_>, Refusal>>()?;
        Ok((jobs, input.switch("IncludeChildren")?))
    };
    let wrong = |why: Refusal| Refusal { text: format!("error decoding request: {}", why.text), ..why };
    let (jobs, children) = read().map_err(wrong)?;
    if jobs.is_empty() { Err(Refusal::bad("no jobs in request")) } else { Ok((jobs, children)) }
}

/// A job as the page shows it, and the highest index of what is shown of it.
fn status(view: &View, job: &JobVersion) -> Result<(Value, u64), StateError> {
    let spec = |key: &str| job.spec.get(key).cloned().unwrap_or_default();
    let mut newest = job.modify_index;
    let (mut allocs, mut children, mut latest) = (Vec::new(), Vec::new(), None);
    // A job that makes others has no allocations of its own.
    let is_parent = job.is_template();
    if is_parent {
        for child in view.children(&job.key) {
            let Some(child) = view.job(&child?)? else { continue };
            newest = newest.max(child.modify_index);
            children.push(json!(child.status));
        }
    } else {
        for alloc in view.allocs_of_job(&job.key)? {
            newest = newest.max(alloc.modify_index);
            let health = alloc.deployment_status.as_ref();
            allocs.push(json!({
                "ID": alloc.id,
                "Group": alloc.task_group,
                "ClientStatus": alloc.client_status,
                "NodeID": alloc.node_id,
                "JobVersion": alloc.job_version,
                "FollowupEvalID": alloc.followup_eval_id,
                "HasPausedTask": false,
                "DeploymentStatus": {
                    "Canary": health.is_some_and(|health| health.canary),
                    "Healthy": health.and_then(|health| health.healthy),
                },
            }));
        }
        latest = view.deployments_of_job(&job.key)?.pop();
        newest = newest.max(latest.as_ref().map_or(0, |latest| latest.modify_index));
    }
    let counts = spec("TaskGroups");
    let counts = counts.as_array().into_iter().flatten().filter_map(|group| group.get("Count")?.as_i64());
    let value = json!({
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
        "IsPack": job.spec.get("Meta").is_some_and(|meta| meta.get("pack.name").is_some()),
        "GroupCountSum": counts.sum::<i64>(),
        "Allocs": shape::null_if_empty(allocs.into()),
        "ChildStatuses": if is_parent { children.into() } else { Value::Null },
        "LatestDeployment": latest.map(|deployment| {
            let is_running = deployment.status == DeploymentStatus::Running;
            let tried = || deployment.task_groups.values().filter(|group| group.desired_canaries > 0);
            json!({
                "ID": deployment.id,
                "IsActive": !deployment.status.is_terminal(),
                "JobVersion": deployment.job_version,
                "Status": deployment.status,
                "StatusDescription": deployment.status_description,
                "AllAutoPromote": is_running && tried().all(|group| group.auto_promote),
                "RequiresPromotion": is_running && tried().any(|group| !group.promoted),
            })
        }),
    });
    Ok((value, newest))
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

/// The job of a body, which has an ID, in canonical form.
pub(super) fn job_of(call: &Call, input: &Input) -> Result<Map<String, Value>, Refusal> {
    let spec = given(call, input)?;
    if spec.get("ID").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(Refusal::bad("Job ID hasn't been provided"));
    }
    Ok(spec)
}

/// The job of a body, in canonical form: the one place where a job comes in. One that names no namespace is of the request's.
pub(super) fn given(call: &Call, input: &Input) -> Result<Map<String, Value>, Refusal> {
    let mut job = input.get("Job").cloned().ok_or_else(|| Refusal::bad("Job must be specified"))?;
    let Some(given) = job.as_object_mut() else { return Err(Refusal::bad("Job must be an object")) };
    place(call, input, given)?;
    let now = crate::agent::model::Nanos::of(std::time::SystemTime::now());
    crate::jobspec::canonicalize(&job, now.0).map_err(|e| Refusal::bad(e.to_string()))
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
