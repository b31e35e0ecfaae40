//! Namespaces.

use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::commands::listed;
use crate::agent::model::Namespace;
use crate::agent::state::Table;
use crate::spec::json::json;

/// Longest description, in bytes.
const LONGEST_DESCRIPTION: usize = 256;

fn shown(namespace: &Namespace) -> Value {
    json!({
        "Name": namespace.name,
        "Description": namespace.description,
        "Meta": shape::null_if_empty(json!(namespace.meta)),
        "Quota": "",
        "Capabilities": null,
        "NodePoolConfiguration": null,
        "VaultConfiguration": null,
        "ConsulConfiguration": null,
        "Hash": "",
        "CreateIndex": namespace.create_index,
        "ModifyIndex": namespace.modify_index,
    })
}

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Namespaces], |view| {
        let (rows, next_token) = page.rows(
            view.namespaces(call.prefix()),
            |namespace| Token::name(namespace.name.clone()),
            |namespace| Ok(shown(namespace)),
            |namespace| Ok(shown(namespace)),
        )?;
        Ok(Found { index: view.table_index(Table::Namespaces)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    lists::read(&call, &[Table::Namespaces], |view| {
        Ok(match view.namespace(call.id())? {
            Some(found) => Found::new(found.modify_index.max(1), shown(&found)),
            None => Found::missing(view.table_index(Table::Namespaces)?, "Namespace not found"),
        })
    })
    .await
}

pub(super) async fn apply(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let named = input.text("Name")?;
    let name = if named.is_empty() { call.id().to_owned() } else { named };
    if !call.id().is_empty() && call.id() != name {
        return Err(Refusal::bad("Namespace name does not match request path"));
    }
    let description = input.text("Description")?;
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut wrong = Vec::new();
    if name.is_empty() || name.len() > 128 || !name.chars().all(fits) {
        wrong.push(format!("invalid name {name:?}. Must match regex ^[a-zA-Z0-9-]{{1,128}}$"));
    }
    if description.len() > LONGEST_DESCRIPTION {
        wrong.push(format!("description longer than {LONGEST_DESCRIPTION}"));
    }
    if !wrong.is_empty() {
        return Err(Refusal::failed(format!("Invalid namespace {name:?}: {}", listed(&wrong))));
    }
    let namespace = Namespace { name, description, meta: input.texts("Meta")?, ..Namespace::default() };
    let (index, ()) = call.api.state.change(move |change| change.put_namespace(namespace)).await?;
    Ok(Answer::written(index, json!({})))
}

pub(super) async fn delete(call: Call) -> Result<Answer, Refusal> {
    let name = call.id().to_owned();
    if name == "default" {
        return Err(Refusal::failed("can not delete default namespace"));
    }
    let (index, ()) = call.api.state.change(move |change| change.delete_namespace(&name)).await?;
    Ok(Answer::written(index, json!({})))
}
