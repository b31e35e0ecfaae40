//! This agent's tokens: each has a role. The secret is shown once, when the token is created.

use std::time::SystemTime;

use serde_json::Value;

use super::Call;
use super::answer::{Answer, Refusal};
use super::shape;
use crate::agent::model::{Nanos, Role, Secret, Token};
use crate::http::query;
use crate::spec::json::json;
use crate::sys::random;

fn shown(token: &Token) -> Value {
    json!({
        "AccessorID": token.accessor_id,
        "Name": token.name,
        "Role": token.role,
        "CreateTime": shape::instant(token.create_time),
        "ExpirationTime": if token.expiration_time.0 == 0 { Value::Null } else { shape::instant(token.expiration_time) },
        "CreateIndex": token.create_index,
        "ModifyIndex": token.modify_index,
    })
}

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let view = call.api.state.read()?;
    let tokens = view.tokens().all()?;
    Ok(Answer::at(view.table_index(crate::agent::state::Table::Tokens)?, tokens.iter().map(shown).collect()))
}

pub(super) async fn create(mut call: Call) -> Result<Answer, Refusal> {
    let input = call.input().await?;
    let role = input.text("Role")?;
    let role = Role::parse(&role).ok_or_else(|| Refusal::bad("Role must be read, submit or manage"))?;
    let lives = input.text("ExpirationTTL")?;
    let now = Nanos::of(SystemTime::now());
    let expiration_time = match lives.as_str() {
        "" => Nanos(0),
        text => now.plus(query::duration(text).ok_or_else(|| Refusal::bad("ExpirationTTL must be a duration"))?),
    };
    let token = Token {
        accessor_id: random::uuid().to_string(),
        name: input.text("Name")?,
        role,
        create_time: now,
        expiration_time,
        create_index: 0,
        modify_index: 0,
    };
    let secret = Secret::new(random::uuid().to_string());
    let (made, known) = (token.clone(), secret.clone());
    let (index, ()) = call.api.state.change(move |change| change.put_token(made, Some(&known))).await?;
    let mut value = shown(&Token { create_index: index, modify_index: index, ..token });
    value["SecretID"] = secret.expose().into();
    Ok(Answer::at(index, value))
}

pub(super) async fn revoke(call: Call) -> Result<Answer, Refusal> {
    let accessor = call.id().to_owned();
    let (index, removed) = call.api.state.change(move |change| change.delete_token(&accessor)).await?;
    if removed { Ok(Answer::written(index, json!({}))) } else { Err(Refusal::missing("token not found")) }
}
