//! Commands for deployments.

use super::{CommandError, Commands, DeploymentChanged};
use crate::agent::deployments::{Followed, keep, with_input};
use crate::agent::model::Deployment;
use crate::agent::schedule::{
    DeploymentInput, DeploymentStep, fail_deployment, health_step, pause_deployment, promote_deployment, set_health,
};
use crate::agent::state::View;

/// A deployment that has to be there.
fn deployment(view: &View, id: &str) -> Result<Deployment, CommandError> {
    view.deployment(id)?.ok_or_else(|| CommandError::NotFound("deployment not found".to_owned()))
}

impl Commands {
    /// Promotes the canaries of these groups, or of all groups.
    ///
    /// # Errors
    /// [`CommandError`]: no such deployment, nothing to promote, canaries that are not healthy.
    pub async fn promote(&self, id: &str, groups: Option<Vec<String>>) -> Result<DeploymentChanged, CommandError> {
        self.decided(id, move |input| promote_deployment(input, groups.as_deref())).await
    }

    /// Marks a deployment as failed.
    ///
    /// # Errors
    /// [`CommandError`]: no such deployment, or one that has ended.
    pub async fn fail_deployment(&self, id: &str) -> Result<DeploymentChanged, CommandError> {
        self.decided(id, fail_deployment).await
    }

    /// Pauses or resumes a deployment.
    ///
    /// # Errors
    /// [`CommandError`]: no such deployment, or one that has ended.
    pub async fn pause_deployment(&self, id: &str, pause: bool) -> Result<DeploymentChanged, CommandError> {
        self.decided(id, move |input| pause_deployment(input, pause)).await
    }

    /// Sets which allocations of a deployment are healthy, and which are not: these fail the deployment.
    ///
    /// # Errors
    /// [`CommandError`]: no such deployment, one that has ended, or allocations that are unknown or of another one.
    pub async fn alloc_health(
        &self,
        id: &str,
        healthy: Vec<String>,
        unhealthy: Vec<String>,
    ) -> Result<DeploymentChanged, CommandError> {
        let id = id.to_owned();
        let made = self.change(move |core, change| {
            let known = deployment(change, &id)?;
            for id in healthy.iter().chain(&unhealthy).filter(|_| !known.status.is_terminal()) {
                if change.alloc(id)?.is_none() {
                    return Err(CommandError::Invalid(format!("unknown alloc {id:?}")));
                }
            }
            let said = with_input(core, change, &known, |input| set_health(input, &healthy, &unhealthy))?;
            for alloc in said.map_err(CommandError::Invalid)? {
                change.put_alloc(alloc)?;
            }
            let step = with_input(core, change, &known, |input| health_step(input, &unhealthy))?;
            Ok(keep(core, change, &known, step)?)
        });
        self.answer(made.await?).await
    }

    async fn decided(
        &self,
        id: &str,
        decide: impl FnOnce(&DeploymentInput<'_>) -> Result<DeploymentStep, String> + Send + 'static,
    ) -> Result<DeploymentChanged, CommandError> {
        let id = id.to_owned();
        let made = self.change(move |core, change| {
            let known = deployment(change, &id)?;
            let step = with_input(core, change, &known, decide)?.map_err(CommandError::Invalid)?;
            Ok(keep(core, change, &known, step)?)
        });
        self.answer(made.await?).await
    }

    async fn answer(
        &self,
        (index, (evals, reverted_job_version, allocs)): (u64, Followed<u64>),
    ) -> Result<DeploymentChanged, CommandError> {
        let told = self.core.carry_out(allocs).await;
        for eval in &evals {
            self.decide(eval);
        }
        self.core.deployments.notify_one();
        told?;
        Ok(DeploymentChanged {
            eval_id: evals.first().map(|eval| eval.id.clone()).unwrap_or_default(),
            eval_create_index: evals.first().map_or(0, |eval| eval.create_index),
            deployment_modify_index: index,
            reverted_job_version,
            index,
        })
    }
}
