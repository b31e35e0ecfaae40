//! The command that puts a snapshot in the place of all that is kept.

use std::fs::File;

use super::{CommandError, Commands};
use crate::agent::model::Allocation;
use crate::agent::node;
use crate::agent::state::{Change, StateError, View};

impl Commands {
    /// Puts a snapshot in the place of all that is kept, and goes on with that: allocations that it does not know are stopped and
    /// removed, those that have ended since stay ended, and what it wants is started. Returns the index.
    ///
    /// # Errors
    /// [`CommandError`]: an archive that cannot be used; then nothing is changed.
    pub async fn restore_snapshot(&self, archive: File) -> Result<u64, CommandError> {
        let core = &self.core;
        let before = core.state.read()?;
        core.state.restore_snapshot(archive).await?;
        let (_, unknown) = core.state.change(move |change| settle(change, &before)).await?;
        for id in &unknown {
            core.engine.stop(id, false).await;
        }
        let engine = std::sync::Arc::clone(&core.engine);
        // Their ends may take as long as they may take to stop.
        crate::sys::task::spawn(async move {
            for id in unknown {
                engine.destroy(&id).await;
            }
        });
        node::look(core).await?;
        core.begin_anew().await?;
        for watcher in [&core.deployments, &core.drain, &core.periodic] {
            watcher.notify_one();
        }
        Ok(core.state.index())
    }
}

/// What has ended stays ended. Answers the allocations that nobody knows any more.
fn settle(change: &mut Change<'_>, before: &View) -> Result<Vec<String>, StateError> {
    let mut unknown = Vec::new();
    for old in before.allocs("") {
        let old = old?;
        match change.alloc(&old.id)? {
            None => unknown.push(old.id),
            Some(new) if old.client_status.is_terminal() && !new.client_status.is_terminal() => {
                change.put_alloc(Allocation {
                    client_status: old.client_status,
                    client_description: old.client_description,
                    task_states: old.task_states,
                    network_status: old.network_status,
                    modify_time: old.modify_time,
                    ..new
                })?;
            }
            Some(_) => {}
        }
    }
    Ok(unknown)
}
