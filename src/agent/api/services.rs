//! Services as they are registered.

use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::model::ServiceRegistration;
use crate::agent::state::{StateError, Table};
use crate::spec::Order as _;
use crate::spec::collections::BTreeMap;
use crate::spec::collections::BTreeSet;
use crate::spec::json::json;

fn shown(service: &ServiceRegistration) -> Value {
    let mut value = shape::kept(service);
    if let Some(tags) = value.get_mut("Tags") {
        *tags = shape::null_if_empty(tags.take());
    }
    value.into()
}

/// The names of services with all their tags, by namespace.
pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Services], |view| {
        let mut namespaces: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for service in view.services(call.namespace(), call.prefix()) {
            let service = service?;
            namespaces
                .entry(service.namespace)
                .or_default()
                .entry(service.service_name)
                .or_default()
                .extend(service.tags);
        }
        let of_namespace = |(namespace, services): (String, BTreeMap<String, BTreeSet<String>>)| {
            let services: Vec<Value> =
                services.into_iter().map(|(name, tags)| json!({"ServiceName": name, "Tags": tags})).collect();
            json!({"Namespace": namespace, "Services": services})
        };
        let all: Vec<Value> = namespaces.into_iter().map(of_namespace).collect();
        Ok(Found::new(view.table_index(Table::Services)?, all.into()))
    })
    .await
}

/// The instances of one service; with `choose=n|key` the same n of them for the same key, as templates ask.
pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    let choose = match call.query.text("choose") {
        None => None,
        Some(text) => {
            let (count, key) =
                text.split_once('|').ok_or_else(|| Refusal::bad("the choose parameter must be N|KEY"))?;
            let count = count.parse::<usize>().map_err(|_| Refusal::bad("the choose parameter must be N|KEY"))?;
            Some((count, key.to_owned()))
        }
    };
    lists::read(&call, &[Table::Services], |view| {
        let mut found = view.service_named(call.one_namespace(), call.id())?;
        found.order_by(|a, b| a.id.cmp(&b.id));
        // Who chooses gets the first choice first.
        if let Some((count, key)) = &choose {
            found.order_by_cached_key(|service| {
                uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, format!("{key}\0{}", service.id).as_bytes())
            });
            found.truncate(*count);
        }
        rows(view.table_index(Table::Services)?, &page, found)
    })
    .await
}

fn rows(index: u64, page: &Page, found: Vec<ServiceRegistration>) -> Result<Found, Refusal> {
    let whole = |service: &ServiceRegistration| Ok::<_, StateError>(shown(service));
    let (rows, next_token) =
        page.rows(found.into_iter().map(Ok), |service| Token::name(service.id.clone()), whole, whole)?;
    Ok(Found { index, value: Ok(rows.into()), next_token })
}

pub(super) async fn of_job(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Services], |view| {
        if view.job(&call.job())?.is_none() {
            return Ok(Found::missing(view.table_index(Table::Services)?, "job not found"));
        }
        let mut found = view.services(Some(call.one_namespace()), "").all()?;
        found.retain(|service| service.job_id == call.id());
        rows(view.table_index(Table::Services)?, &page, found)
    })
    .await
}

pub(super) async fn of_alloc(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Services], |view| {
        if view.alloc(call.id())?.is_none() {
            return Ok(Found::missing(view.table_index(Table::Services)?, "allocation not found"));
        }
        let mut found = view.services(None, "").all()?;
        found.retain(|service| service.alloc_id == call.id());
        rows(view.table_index(Table::Services)?, &page, found)
    })
    .await
}

pub(super) async fn delete(call: Call) -> Result<Answer, Refusal> {
    let (name, id, namespace) = (call.id().to_owned(), call.second().to_owned(), call.one_namespace().to_owned());
    let removed = call.api.state.change(move |change| {
        let is_it = |found: &ServiceRegistration| found.service_name == name && found.namespace == namespace;
        if change.service(&id)?.as_ref().is_some_and(is_it) { change.delete_service(&id) } else { Ok(false) }
    });
    let (index, removed) = removed.await?;
    if removed { Ok(Answer::written(index, json!({}))) } else { Err(Refusal::failed("service registration not found")) }
}
