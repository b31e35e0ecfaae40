//! Commands for allocations.

use super::{CommandError, Commands, Evaluated};
use crate::agent::core::key;
use crate::agent::model::{Allocation, Evaluation, Trigger};
use crate::agent::state::View;
use crate::agent::versions::put_eval;

/// An allocation that has to be there.
fn alloc(view: &View, id: &str) -> Result<Allocation, CommandError> {
    view.alloc(id)?.ok_or_else(|| CommandError::NotFound("alloc not found".to_owned()))
}

impl Commands {
    /// Stops an allocation; a replacement is placed if its job wants one. With `reschedule` one of a batch job is replaced as its
    /// policy says.
    ///
    /// # Errors
    /// [`CommandError::NotFound`].
    pub async fn alloc_stop(
        &self,
        id: &str,
        no_shutdown_delay: bool,
        reschedule: bool,
    ) -> Result<Evaluated, CommandError> {
        let id = id.to_owned();
        let made = self.change(move |core, change| {
            let mut alloc = alloc(change, &id)?;
            let waits = no_shutdown_delay && alloc.is_ending();
            let job = change.job(&key(&alloc.namespace, &alloc.job_id))?;
            alloc.desired_transition.migrate = Some(true);
            // Set in every case, as in Nomad.
            alloc.desired_transition.no_shutdown_delay = Some(no_shutdown_delay);
            alloc.desired_transition.reschedule = Some(reschedule);
            let (index, (namespace, of)) = (alloc.job_version, (alloc.namespace.clone(), alloc.job_id.clone()));
            change.put_alloc(alloc)?;
            let eval = match job {
                Some(job) => core.evaluation_of(&job, Trigger::AllocStop),
                // Its job was purged: the evaluation ends its remaining allocations.
                None => Evaluation {
                    job_modify_index: index,
                    ..crate::agent::core::evaluation(
                        crate::agent::core::new_id(),
                        (&namespace, &of),
                        crate::spec::JobType::Service,
                        Trigger::AllocStop,
                    )
                },
            };
            let waiting: Vec<String> = waits.then_some(id).into_iter().collect();
            Ok((put_eval(change, eval)?, waiting))
        });
        let (index, (eval, waiting)) = made.await?;
        self.decide(&eval);
        self.hurry(waiting).await;
        Ok(Evaluated {
            eval_create_index: eval.create_index,
            job_modify_index: eval.job_modify_index,
            eval_id: eval.id,
            index,
        })
    }

    /// Ends the shutdown delays of allocations that are being stopped already; no evaluation stops them again.
    pub(super) async fn hurry(&self, waiting: Vec<String>) {
        for id in waiting {
            self.core.engine.stop(&id, true).await;
        }
    }

    /// Removes the remains of an ended allocation: its directory with its logs.
    ///
    /// # Errors
    /// [`CommandError::NotFound`], also for one that is still running.
    pub async fn gc_alloc(&self, id: &str) -> Result<(), CommandError> {
        let ended = self.core.state.read()?.alloc(id)?.is_some_and(|alloc| alloc.client_status.is_terminal());
        if !ended || self.core.engine.alloc_dir(id).is_none() {
            let why = "No such allocation on client, or allocation not eligible for GC";
            return Err(CommandError::NotFound(why.to_owned()));
        }
        self.core.engine.destroy(id).await;
        Ok(())
    }
}
