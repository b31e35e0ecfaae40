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
    let how = how(&call)?;
    let input = call.input().await?;
    // A renewal is of the request's namespace. The path of a body says nothing, as in Nomad.
    let named = if how == How::Renew { String::new() } else { input.text("Namespace")? };
    let namespace = if named.is_empty() { call.query.text("namespace").unwrap_or("default") } else { &named };
    if namespace == "*" {
        return Err(refused("can not target wildcard (\"*\")namespace"));
    }
    let (namespace, path) = (namespace.to_owned(), call.id().to_owned());
    let (items, lock) = (items(&input)?, lock(&input)?);
    let cas = call.number("cas")?;
    let (clock, now) = (Instant::now(), Nanos::of(SystemTime::now()));
    match how {
        How::Write if items.as_ref().is_none_or(BTreeMap::is_empty) => {
            return Err(Refusal::bad("variable missing required Items object"));
        }
        How::Write if lock.ttl.0 != 0 || lock.delay.0 != 0 => {
            return Err(refused("RPC Error:: 400,variable should not contain lock definition"));
        }
        How::Release if lock.id.is_none() => return Err(refused("missing lock information")),
        How::Release if items.is_some() => {
            return Err(refused("lock release operation doesn't take variable items"));
        }
        _ => {}
    }
    let Lock { id, ttl, delay } = lock;
    let of = namespace.clone();
    let written = call.api.state.change(move |change| match (how, id) {
        (How::Acquire, id) => change.acquire_lock(&of, &path, items, ttl, delay, id.as_ref(), (clock, now)),
        (How::Renew, Some(id)) => change.renew_lock(&of, &path, &id, clock),
        (How::Release, Some(id)) => change.release_lock(&of, &path, &id, now),
        (How::Renew | How::Release, None) => Err(StateError::Invalid("the request has no lock ID".to_owned())),
        (How::Write, lock) => change.put_variable(&of, &path, items.unwrap_or_default(), &Condition { cas, lock }, now),
    });
    let (index, written) = written.await.map_err(|error| match error {
        StateError::Invalid(why) => refused(&why),
        error => error.into(),
    })?;
    Ok(match written {
        Written::Done(variable) => {
            // Only this answer contains the lock's id, for its holder.
            let mut value = shown(&variable, matches!(how, How::Acquire | How::Renew));
            if let Some(value) = value.as_object_mut().filter(|_| how == How::Release) {
                value.remove("Items");
            }
            Answer::at(index, value)
        }
        Written::Conflict(variable) => conflict(index, variable.as_deref(), &namespace, call.id()),
    })
}

/// What Nomad reports as an RPC error between servers.
fn refused(why: &str) -> Refusal {
    Refusal::bad(format!("RPC Error:: 400,{why}"))
}

/// The operation on a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Write,
    Acquire,
    Renew,
    Release,
}

/// The operation that a query asks for.
fn how(call: &Call) -> Result<How, Refusal> {
    let all = [("lock-acquire", How::Acquire), ("lock-renew", How::Renew), ("lock-release", How::Release)];
    let mut asked = all.into_iter().filter(|(key, _)| call.query.has(key));
    match (asked.next(), asked.next()) {
        (None, _) => Ok(How::Write),
        (Some(_), Some(_)) => Err(Refusal::bad("multiple lock operations")),
        (Some(_), None) if call.query.text("cas").is_some() => {
            Err(Refusal::bad("CAS can't be used with lock operations"))
        }
        (Some((_, how)), None) => Ok(how),
    }
}

/// Another client has changed the variable: answers with its current value, which every client that may write it may see.
fn conflict(index: u64, variable: Option<&Variable>, namespace: &str, path: &str) -> Answer {
    let value = variable.map_or_else(
        || json!({"Namespace": namespace, "Path": path, "CreateIndex": 0, "ModifyIndex": 0, "Items": null}),
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
        Written::Done(()) => Answer::Gone(index),
        Written::Conflict(variable) => conflict(index, variable.as_deref(), call.one_namespace(), call.id()),
    })
}
