//! The node.

use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::call::uuid;
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::commands::{Drain, NodeChanged};
use crate::agent::model::{DrainSpec, Eligibility, Nanos, Node};
use crate::agent::state::{Table, View};
use crate::spec::json::json;

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Nodes], |view| rows(&call, view, &page)).await
}

fn rows(call: &Call, view: &View, page: &Page) -> Result<Found, Refusal> {
    let (os, resources) = (call.switch("os")?, call.switch("resources")?);
    let node = view.node()?.filter(|node| node.id.starts_with(call.prefix()));
    let (rows, next_token) = page.rows(
        node.into_iter().map(Ok),
        |node: &Node| Token::name(node.id.clone()),
        |node| Ok(shape::node(node)),
        |node| Ok(shape::node_stub(node, os, resources)),
    )?;
    Ok(Found { index: view.table_index(Table::Nodes)?, value: Ok(rows.into()), next_token })
}

pub(super) async fn of_pool(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Nodes], |view| {
        let own = view.node()?.map(|node| node.node_pool).unwrap_or_default();
        if call.id() == "all" || call.id() == own {
            return rows(&call, view, &page);
        }
        Ok(Found::new(view.table_index(Table::Nodes)?, json!([])))
    })
    .await
}

/// The node, if the path names it.
fn own(call: &Call, view: &View) -> Result<Option<Node>, Refusal> {
    uuid(call.id(), "node")?;
    Ok(view.node()?.filter(|node| node.id == call.id()))
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Nodes], |view| {
        Ok(match own(&call, view)? {
            Some(node) => Found::new(node.modify_index, shape::node(&node)),
            None => Found::missing(view.table_index(Table::Nodes)?, "node not found"),
        })
    })
    .await
}

/// All allocations, each whole.
pub(super) async fn allocations(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Allocs], |view| {
        let index = view.table_index(Table::Allocs)?;
        if own(&call, view)?.is_none() {
            return Ok(Found::new(index, json!([])));
        }
        let mut all: Vec<Value> = Vec::new();
        for alloc in view.allocs("") {
            let alloc = alloc?;
            // For this endpoint, a query without a namespace means all namespaces.
            if call.query.text("namespace").is_none() || call.wants(&alloc.namespace) {
                all.push(shape::allocation(&alloc, view.version_of(&alloc)?.as_ref()));
            }
        }
        Ok(Found::new(index, all.into()))
    })
    .await
}

fn require(call: &Call) -> Result<(), Refusal> {
    let view = call.api.state.read()?;
    own(call, &view)?.map(|_| ()).ok_or_else(|| Refusal::failed("node not found"))
}

fn changed(done: &NodeChanged) -> Answer {
    let value = json!({
        "EvalIDs": shape::null_if_empty(json!(done.eval_ids)),
        "EvalCreateIndex": done.eval_create_index,
        "NodeModifyIndex": done.node_modify_index,
    });
    Answer::written(done.index, value)
}

pub(super) async fn drain(mut call: Call) -> Result<Answer, Refusal> {
    require(&call)?;
    let input = call.input().await?;
    let spec = match input.object("DrainSpec")? {
        None => None,
        Some(spec) => Some(DrainSpec {
            deadline: Nanos(spec.number("Deadline")?.unwrap_or(0)),
            ignore_system_jobs: spec.switch("IgnoreSystemJobs")?,
        }),
    };
    let accessor = &call.caller.accessor;
    let accessor = if accessor.is_empty() { String::new() } else { format!("token:{accessor}") };
    let given = Drain { spec, mark_eligible: input.switch("MarkEligible")?, meta: input.texts("Meta")?, accessor };
    Ok(changed(&call.api.commands.drain(given).await?))
}

pub(super) async fn eligibility(mut call: Call) -> Result<Answer, Refusal> {
    require(&call)?;
    let eligibility = match call.input().await?.text("Eligibility")?.as_str() {
        "eligible" => Eligibility::Eligible,
        "ineligible" => Eligibility::Ineligible,
        other => return Err(Refusal::failed(format!("invalid scheduling eligibility {other:?}"))),
    };
    Ok(changed(&call.api.commands.eligibility(eligibility).await?))
}

pub(super) async fn evaluate(call: Call) -> Result<Answer, Refusal> {
    require(&call)?;
    Ok(changed(&call.api.commands.evaluate_node().await?))
}

pub(super) async fn purge(call: Call) -> Result<Answer, Refusal> {
    require(&call)?;
    Ok(changed(&call.api.commands.purge_node()?))
}

/// The node's metadata: effective, changed over the API, and configured.
fn shown_metadata(node: &Node) -> Value {
    json!({"Meta": node.meta, "Dynamic": node.dynamic_meta, "Static": node.static_meta})
}

/// The node that a request refers to: this one, by its id or the beginning of it.
pub(super) fn require_own(call: &Call, id: &str) -> Result<Node, Refusal> {
    let node = call.api.state.read()?.node()?.filter(|node| node.id.starts_with(id));
    node.ok_or_else(|| Refusal::missing(format!("Unknown node {id:?}")))
}

pub(super) async fn metadata(call: Call) -> Result<Answer, Refusal> {
    let node = require_own(&call, call.query.get("node_id").unwrap_or_default())?;
    Ok(Answer::of(shown_metadata(&node)))
}

pub(super) async fn change_metadata(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    require_own(&call, &input.text("NodeID")?)?;
    let Some(given) = input.object("Meta")? else { return Err(Refusal::bad("missing required Meta object")) };
    let pair = |(key, value): (String, Value)| match value {
        Value::String(text) => Ok((key, Some(text))),
        Value::Null => Ok((key, None)),
        _ => Err(Refusal::bad(format!("the metadata {key:?} must be a string, or null"))),
    };
    let changes = given.members().into_iter().map(pair).collect::<Result<Vec<_>, Refusal>>()?;
    let (index, node) = call.api.commands.metadata(changes).await?;
    Ok(Answer::at(index, shown_metadata(&node)))
}
