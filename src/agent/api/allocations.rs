//! Allocations.

use super::Call;
use super::answer::{Answer, Refusal};
use super::call::uuid;
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::commands::CommandError;
use crate::agent::model::Allocation;
use crate::agent::state::{StateError, Table, View};
use crate::spec::Order as _;
use crate::spec::json::json;

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    let resources = call.switch("resources")?;
    let states = call.query.switch("task_states").ok().flatten().unwrap_or(true);
    lists::read(&call, &[Table::Allocs], |view| {
        let mut allocs = Vec::new();
        for alloc in view.allocs(call.prefix()) {
            let alloc = alloc?;
            if call.wants(&alloc.namespace) {
                allocs.push(alloc);
            }
        }
        allocs.order_by(|a, b| (a.create_index, &a.id).cmp(&(b.create_index, &b.id)));
        rows(view, &page, allocs.into_iter().map(Ok), resources, states)
    })
    .await
}

/// Allocations as a list shows them.
pub(super) fn rows(
    view: &View,
    page: &Page,
    allocs: impl Iterator<Item = Result<Allocation, StateError>>,
    resources: bool,
    states: bool,
) -> Result<Found, Refusal> {
    let (rows, next_token) = page.rows(
        allocs,
        |alloc| Token::index(alloc.create_index, &alloc.id),
        |alloc| Ok(shape::allocation(alloc, view.version_of(alloc)?.as_ref())),
        |alloc| Ok(shape::alloc_stub(alloc, view.version_of(alloc)?.as_ref(), resources, states)),
    )?;
    Ok(Found { index: view.table_index(Table::Allocs)?, value: Ok(rows.into()), next_token })
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "alloc")?;
    lists::read(&call, &[Table::Allocs], |view| {
        Ok(match view.alloc(call.id())? {
            Some(alloc) => Found::new(alloc.modify_index, shape::allocation(&alloc, view.version_of(&alloc)?.as_ref())),
            None => Found::missing(view.table_index(Table::Allocs)?, "alloc not found"),
        })
    })
    .await
}

pub(super) async fn stop(call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "alloc")?;
    let (at_once, reschedule) = (call.switch("no_shutdown_delay")?, call.switch("reschedule")?);
    let done = call.api.commands.alloc_stop(call.id(), at_once, reschedule).await;
    let done = done.map_err(|error| match error {
        CommandError::NotFound(_) => Refusal::missing("allocation not found"),
        error => error.into(),
    })?;
    Ok(Answer::written(done.index, json!({"EvalID": done.eval_id})))
}
