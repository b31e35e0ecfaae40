//! Variables, with compare-and-set and locks.

use std::time::SystemTime;

use serde_json::Value;
use tokio::time::Instant;

use super::Call;
use super::answer::{Answer, Meta, Refusal};
use super::input::Input;
use super::lists::{self, Found, Page, Token};
use crate::agent::model::{Nanos, Secret, Variable, VariableMeta};
use crate::agent::state::{Condition, StateError, Table, Written};
use crate::http::{StatusCode, query};
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;

fn meta(meta: &VariableMeta) -> Value {
    let mut value = json!({
        "Namespace": meta.namespace,
        "Path": meta.path,
        "CreateIndex": meta.create_index,
        "ModifyIndex": meta.modify_index,
        "CreateTime": meta.create_time,
        "ModifyTime": meta.modify_time,
    });
    if meta.locked {
        // The lock's holder is not shown.
        value["Lock"] = json!({});
    }
    value
}

fn shown(variable: &Variable, with_lock: bool) -> Value {
    let mut value = meta(&variable.meta);
    let items: serde_json::Map<String, Value> =
        variable.items.iter().map(|(key, secret)| (key.clone(), secret.expose().into())).collect();
    value["Items"] = items.into();
    if let Some(lock) = variable.lock.as_ref().filter(|_| with_lock) {
        let text = |nanos: Nanos| format!("{}s", nanos.duration().as_secs());
        value["Lock"] = json!({"ID": lock.id.expose(), "TTL": text(lock.ttl), "LockDelay": text(lock.lock_delay)});
    }
    value
}

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Variables], |view| {
        let (rows, next_token) = page.rows(
            view.variables(call.namespace(), call.prefix()),
            |variable| Token::name(format!("{}.{}", variable.namespace, variable.path)),
            |variable| Ok(meta(variable)),
            |variable| Ok(meta(variable)),
        )?;
        Ok(Found { index: view.table_index(Table::Variables)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Variables], |view| {
        Ok(match view.variable(call.one_namespace(), call.id())? {
            Some(found) => Found::new(found.meta.modify_index, shown(&found, false)),
            None => Found::missing(view.table_index(Table::Variables)?, "variable not found"),
        })
    })
    .await
}

/// The new items of a variable; `None` if the body does not set them.
fn items(input: &Input) -> Result<Option<BTreeMap<String, Secret>>, Refusal> {
    if input.get("Items").is_none() {
        return Ok(None);
    }
    Ok(Some(input.texts("Items")?.into_iter().map(|(key, text)| (key, Secret::new(text))).into_map()))
}

/// The lock in the body.
struct Lock {
    id: Option<Secret>,
    ttl: Nanos,
    delay: Nanos,
}

fn lock(input: &Input) -> Result<Lock, Refusal> {
    let Some(lock) = input.object("Lock")? else { return Ok(Lock { id: None, ttl: Nanos(0), delay: Nanos(0) }) };
    let time = |key: &str| {
        let text = lock.text(key)?;
        let read = if text.is_empty() { Some(std::time::Duration::ZERO) } else { query::duration(&text) };
        read.map(Nanos::long).ok_or_else(|| Refusal::bad(format!("{key} must be a duration")))
    };
    let id = lock.text("ID")?;
    Ok(Lock { id: (!id.is_empty()).then(|| Secret::new(id)), ttl: time("TTL")?, delay: time("LockDelay")? })
}

pub(super) async fn put(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let (namespace, path) = (call.one_namespace().to_owned(), call.id().to_owned());
    let named = input.text("Path")?;
    if !named.is_empty() && named != path {
        return Err(Refusal::bad("variable path does not match request path"));
    }
    let (items, lock) = (items(&input)?, lock(&input)?);
    let cas = call.number("cas")?;
    let asked = |key: &str| call.query.has(key);
    let (clock, now) = (Instant::now(), Nanos::of(SystemTime::now()));
    let how = if asked("lock-acquire") {
        How::Acquire
    } else if asked("lock-renew") {
        How::Renew
    } else if asked("lock-release") {
        How::Release
    } else {
        How::Write
    };
    if how == How::Write && items.as_ref().is_none_or(BTreeMap::is_empty) {
        return Err(Refusal::bad("variable missing required Items object"));
    }
    let Lock { id, ttl, delay } = lock;
    let written = call.api.state.change(move |change| match (how, id) {
        (How::Acquire, id) => change.acquire_lock(&namespace, &path, items, ttl, delay, id.as_ref(), (clock, now)),
        (How::Renew, Some(id)) => change.renew_lock(&namespace, &path, &id, clock),
        (How::Release, Some(id)) => change.release_lock(&namespace, &path, &id, now),
        (How::Renew | How::Release, None) => Err(StateError::Invalid("the request has no lock ID".to_owned())),
        (How::Write, lock) => {
            change.put_variable(&namespace, &path, items.unwrap_or_default(), &Condition { cas, lock }, now)
        }
    });
    let (index, written) = written.await.map_err(|error| match error {
        // Nomad reports it as an RPC error between servers.
        StateError::Invalid(why) => Refusal::bad(format!("RPC Error:: 400,{why}")),
        error => error.into(),
    })?;
    Ok(match written {
        Written::Done(variable) => {
            // Only this answer contains the lock's id, for its holder.
            Answer::at(index, shown(&variable, matches!(how, How::Acquire | How::Renew)))
        }
        Written::Conflict(variable) => conflict(index, variable.as_deref(), &call),
    })
}

/// The operation on a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Write,
    Acquire,
    Renew,
    Release,
}

/// Another client has changed the variable: answers with its current value, which every client that may write it may see.
fn conflict(index: u64, variable: Option<&Variable>, call: &Call) -> Answer {
    let value = variable.map_or_else(
        || json!({"Namespace": call.one_namespace(), "Path": call.id(), "CreateIndex": 0, "ModifyIndex": 0, "Items": null}),
        |variable| shown(variable, false),
    );
    Answer::Other(StatusCode::CONFLICT, value, Meta { index, next_token: None })
}

pub(super) async fn delete(call: Call) -> Result<Answer, Refusal> {
    let (namespace, path) = (call.one_namespace().to_owned(), call.id().to_owned());
    let condition = Condition { cas: call.number("cas")?, lock: None };
    let removed = call.api.state.change(move |change| change.delete_variable(&namespace, &path, &condition));
    let (index, removed) = removed.await?;
    Ok(match removed {
        Written::Done(()) => Answer::written(index, json!({})),
        Written::Conflict(variable) => conflict(index, variable.as_deref(), &call),
    })
}
