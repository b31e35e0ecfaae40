//! Evaluations.

use serde_json::{Map, Value};

use super::Call;
use super::answer::{Answer, Refusal, with_meta};
use super::call::uuid;
use super::filter::Filter;
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::model::Evaluation;
use crate::agent::state::{StateError, Table, View};
use crate::spec::Order as _;
use crate::spec::collections::BTreeSet;
use crate::spec::json::{self, json};

/// Limit of related evaluations shown with one.
const RELATED: usize = 100;
/// Limit of the ids of a deletion: Nomad's.
const MOST: usize = 7281;

/// The value that a filter is applied to.
#[expect(clippy::unnecessary_wraps, reason = "as a list asks for it")]
pub(super) fn whole(eval: &Evaluation) -> Result<Value, StateError> {
    Ok(shape::evaluation(eval))
}

/// Those that a query asks for, the oldest first.
fn wanted(call: &Call, view: &View) -> Result<Vec<Evaluation>, StateError> {
    let job = call.query.text("job");
    let status = call.query.text("status");
    let mut found = Vec::new();
    for eval in view.evals(call.prefix()) {
        let eval = eval?;
        let has_status = status.is_none_or(|status| json::to_value(&eval.status).is_ok_and(|is| is == status));
        if call.wants(&eval.namespace) && job.is_none_or(|job| job == eval.job_id) && has_status {
            found.push(eval);
        }
    }
    found.order_by(|a, b| (a.create_index, &a.id).cmp(&(b.create_index, &b.id)));
    Ok(found)
}

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Evals], |view| {
        let (rows, next_token) = page.rows(
            wanted(&call, view)?.into_iter().map(Ok),
            |eval| Token::index(eval.create_index, &eval.id),
            whole,
            |eval| Ok(shape::evaluation(eval)),
        )?;
        Ok(Found { index: view.table_index(Table::Evals)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn count(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Evals], |view| {
        let none = |_: &Evaluation| Ok(Value::Null);
        let place = |eval: &Evaluation| Token::index(eval.create_index, &eval.id);
        let (rows, _) = page.rows(wanted(&call, view)?.into_iter().map(Ok), place, whole, none)?;
        let index = view.table_index(Table::Evals)?;
        let mut answer = Map::new();
        answer.insert("Count".to_owned(), rows.len().into());
        with_meta(&mut answer, index);
        Ok(Found::new(index, answer.into()))
    })
    .await
}

/// Deletes those with the given ids, of which each has to be one that is not needed, or those of a filter that are not needed.
pub(super) async fn delete(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let (mut ids, filter) = (input.list("EvalIDs")?, input.text("Filter")?);
    match (ids.len(), filter.is_empty()) {
        (0, true) => return Err(Refusal::bad("evals must be deleted by either ID or filter")),
        (1.., false) => return Err(Refusal::bad("evals cannot be deleted by both ID and filter")),
        (given, _) if given > MOST => {
            return Err(Refusal::bad(format!("request includes {given} evaluation IDs, must be {MOST} or fewer")));
        }
        _ => {}
    }
    if !filter.is_empty() {
        let filter = Filter::new(&filter).map_err(|e| Refusal::failed(e.to_string()))?;
        let view = call.api.state.read()?;
        for eval in view.evals("") {
            let eval = eval?;
            if filter.fits(&shape::evaluation(&eval)).unwrap_or(false) && view.may_delete(&eval)? {
                ids.push(eval.id);
            }
        }
    }
    let count = ids.len();
    let index = call.api.commands.delete_evals(ids).await?;
    Ok(Answer::written(index, json!({"Count": count})))
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "failed to lookup eval: eval")?;
    let related = call.switch("related")?;
    lists::read(&call, &[Table::Evals], |view| {
        let Some(eval) = view.eval(call.id())? else {
            return Ok(Found::missing(view.table_index(Table::Evals)?, "eval not found"));
        };
        let mut value = shape::evaluation(&eval);
        if related {
            value["RelatedEvals"] = others(view, &eval)?.into();
        }
        Ok(Found::new(eval.modify_index, value))
    })
    .await
}

/// The evaluations before and after one.
fn others(view: &View, of: &Evaluation) -> Result<Vec<Value>, StateError> {
    let next = |eval: &Evaluation| [eval.previous_eval.clone(), eval.next_eval.clone(), eval.blocked_eval.clone()];
    let mut seen = BTreeSet::from([of.id.clone(), String::new()]);
    let mut ahead: Vec<String> = next(of).to_vec();
    let mut found = Vec::new();
    while let Some(id) = ahead.pop() {
        if found.len() == RELATED || !seen.insert(id.clone()) {
            continue;
        }
        if let Some(eval) = view.eval(&id)? {
            ahead.extend(next(&eval));
            found.push(shape::evaluation_stub(&eval));
        }
    }
    Ok(found)
}

pub(super) async fn allocations(call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "eval")?;
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Allocs], |view| {
        let allocs = view.allocs_of_eval(call.id())?;
        super::allocations::rows(view, &page, allocs.into_iter().map(Ok), false, true)
    })
    .await
}
