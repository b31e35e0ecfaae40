//! Deployments.

use super::Call;
use super::answer::{Answer, Refusal};
use super::call::uuid;
use super::lists::{self, Found, Page, Token};
use super::shape;
use crate::agent::commands::DeploymentChanged;
use crate::agent::state::Table;
use crate::spec::Order as _;
use crate::spec::json::json;

pub(super) async fn list(call: Call) -> Result<Answer, Refusal> {
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Deployments], |view| {
        let mut found = Vec::new();
        for deployment in view.deployments(call.prefix()) {
            let deployment = deployment?;
            if call.wants(&deployment.namespace) {
                found.push(deployment);
            }
        }
        found.order_by(|a, b| (a.create_index, &a.id).cmp(&(b.create_index, &b.id)));
        let (rows, next_token) = page.rows(
            found.into_iter().map(Ok),
            |deployment| Token::index(deployment.create_index, &deployment.id),
            |deployment| Ok(shape::deployment(deployment)),
            |deployment| Ok(shape::deployment(deployment)),
        )?;
        Ok(Found { index: view.table_index(Table::Deployments)?, value: Ok(rows.into()), next_token })
    })
    .await
}

pub(super) async fn info(call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "deployment")?;
    lists::read(&call, &[Table::Deployments], |view| {
        Ok(match view.deployment(call.id())? {
            Some(found) => Found::new(found.modify_index, shape::deployment(&found)),
            None => Found::missing(view.table_index(Table::Deployments)?, "deployment not found"),
        })
    })
    .await
}

pub(super) async fn allocations(call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "deployment")?;
    let page = Page::of(&call)?;
    lists::read(&call, &[Table::Allocs], |view| {
        let allocs = view.allocs_of_deployment(call.id())?;
        super::allocations::rows(view, &page, allocs.into_iter().map(Ok), false, true)
    })
    .await
}

fn changed(done: &DeploymentChanged) -> Answer {
    let value = json!({
        "EvalID": done.eval_id,
        "EvalCreateIndex": done.eval_create_index,
        "DeploymentModifyIndex": done.deployment_modify_index,
        "RevertedJobVersion": done.reverted_job_version,
    });
    Answer::written(done.index, value)
}

pub(super) async fn promote(mut call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "deployment")?;
    let input = call.optional_input().await?;
    let groups = input.list("Groups")?;
    let all = input.switch("All")? || groups.is_empty();
    let groups = (!all).then_some(groups);
    Ok(changed(&call.api.commands.promote(call.id(), groups).await?))
}

pub(super) async fn fail(call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "deployment")?;
    Ok(changed(&call.api.commands.fail_deployment(call.id()).await?))
}

pub(super) async fn pause(mut call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "deployment")?;
    let input = call.input().await?;
    Ok(changed(&call.api.commands.pause_deployment(call.id(), input.switch("Pause")?).await?))
}

pub(super) async fn health(mut call: Call) -> Result<Answer, Refusal> {
    uuid(call.id(), "deployment")?;
    let input = call.input().await?;
    let (healthy, unhealthy) = (input.list("HealthyAllocationIDs")?, input.list("UnhealthyAllocationIDs")?);
    if healthy.is_empty() && unhealthy.is_empty() {
        return Err(Refusal::failed("must specify at least one healthy/unhealthy allocation ID"));
    }
    Ok(changed(&call.api.commands.alloc_health(call.id(), healthy, unhealthy).await?))
}
