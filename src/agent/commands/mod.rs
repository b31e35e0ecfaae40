//! The commands that change the agent's state: one function each, which returns the result or the reason of a refusal.

mod allocs;
mod csi;
mod deployments;
mod error;
mod jobs;
mod nodes;
mod register;
mod rules;
mod snapshot;
mod types;
mod volumes;

use std::any::Any;
use std::sync::Arc;

use super::core::Core;
use super::model::{Evaluation, JobKey, JobVersion};
use super::state::{Change, StateError, View};

pub use csi::NewSnapshot;
pub use error::{CommandError, listed};
pub use types::{
    DeploymentChanged, Deregister, Dispatch, Dispatched, Drain, Evaluated, NodeChanged, Planned, Register, Registered,
    Scale, Validated,
};

/// A change whose result can have any type.
type Untyped = dyn FnOnce(&Core, &mut Change<'_>) -> Result<Box<dyn Any + Send>, CommandError> + Send;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub struct Commands {
    core: Arc<Core>,
}

impl Commands {
    pub(super) fn new(core: Arc<Core>) -> Commands {
        Commands { core }
    }

    /// Makes a change that may be refused; a refused one changes nothing.
    async fn change<T: Send + 'static>(
        &self,
        make: impl FnOnce(&Core, &mut Change<'_>) -> Result<T, CommandError> + Send + 'static,
    ) -> Result<(u64, T), CommandError> {
        let (index, value) =
            self.change_untyped(Box::new(move |core, change| Ok(Box::new(make(core, change)?)))).await?;
        Ok((index, *value.downcast().map_err(|_| StateError::Lost)?))
    }

    /// The same for all types of results: one copy of its code in the executable.
    async fn change_untyped(&self, make: Box<Untyped>) -> Result<(u64, Box<dyn Any + Send>), CommandError> {
        let core = Arc::clone(&self.core);
        let (refused, heard) = std::sync::mpsc::sync_channel(1);
        let made = self.core.state.change_untyped(Box::new(move |change| {
            make(&core, change).map_err(|error| {
                // An error rolls back the change; the original error is sent through the channel.
                let _ = refused.try_send(error);
                StateError::Invalid("the command is refused".to_owned())
            })
        }));
        match made.await {
            Ok(made) => Ok(made),
            Err(error) => Err(heard.try_recv().unwrap_or_else(|_| error.into())),
        }
    }

    /// Applies the scheduler's configuration.
    pub(super) fn follow_settings(&self) -> Result<(), StateError> {
        self.core.follow_settings()
    }

    /// Queues an evaluation.
    fn decide(&self, eval: &Evaluation) {
        self.core.broker.put(eval);
    }
}

/// Looks up a job that must exist.
fn job(view: &View, key: &JobKey) -> Result<JobVersion, CommandError> {
    view.job(key)?.ok_or_else(|| CommandError::NotFound("job not found".to_owned()))
}
