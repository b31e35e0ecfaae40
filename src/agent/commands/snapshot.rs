//! The command that replaces the whole state by a snapshot.

use std::fs::File;

use super::{CommandError, Commands};
use crate::agent::model::Allocation;
use crate::agent::state::{Change, StateError, View};
use crate::agent::{node, volumes};

impl Commands {
    /// Replaces the state by a snapshot and continues from it: allocations that the snapshot does not contain are stopped and
    /// removed, those that have ended since stay ended, and those that it wants are started. Returns the index.
    ///
    /// # Errors
    /// [`CommandError`]: an archive that is not usable; then nothing is changed.
    pub async fn restore_snapshot(&self, archive: File) -> Result<u64, CommandError> {
        let core = &self.core;
        let before = core.state.read()?;
        let volumes = before.volumes().all()?;
        core.state.restore_snapshot(archive).await?;
        let (_, unknown) = core.state.change(move |change| settle(change, &before)).await?;
        for id in &unknown {
            core.engine.stop(id, false).await;
        }
        let engine = std::sync::Arc::clone(&core.engine);
        // In the background, as stopping them may take up to their kill timeouts.
        crate::sys::task::spawn(async move {
            for id in unknown {
                engine.destroy(&id).await;
            }
        });
        for volume in volumes {
            core.engine.volume_plugins().withdraw(&volume.name);
        }
        volumes::restore(core).await?;
        node::look(core, None).await?;
        core.begin_anew().await?;
        for watcher in [&core.deployments, &core.drain, &core.periodic] {
            watcher.notify_one();
        }
        Ok(core.state.index())
    }
}

/// Keeps ended allocations ended. Returns the ids of allocations that the snapshot does not contain.
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
