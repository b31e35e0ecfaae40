//! Forgets records that ended long ago, and removes the directories of ended allocations when there are too many.

use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, now};
use super::state::{Age, StateError};
use crate::spec::Order as _;

/// Interval between two runs.
const AGAIN: Duration = Duration::from_mins(5);
/// Directories of allocations that have ended, at most; the oldest go first.
const DIRECTORIES: usize = 50;

/// Runs forever.
pub(super) async fn run(core: Arc<Core>) {
    loop {
        tokio::time::sleep(AGAIN).await;
        if let Err(error) = collect(&core, false).await {
            tracing::error!(error = crate::alloc::chain(&error), "cannot forget what has ended");
        }
    }
}

/// Forgets what is old enough; with `force` everything that has ended.
///
/// # Errors
/// [`StateError`].
pub(super) async fn collect(core: &Arc<Core>, force: bool) -> Result<(), StateError> {
    let remove = |ids: Vec<String>| async move {
        for id in ids {
            core.engine.destroy(&id).await;
        }
    };
    core.state.collect(Age { now: now(), force }, remove).await?;
    directories(core).await
}

/// Removes the oldest directories of allocations that have ended where there are too many.
async fn directories(core: &Arc<Core>) -> Result<(), StateError> {
    let mut ended = Vec::new();
    for alloc in core.state.read()?.allocs("") {
        let alloc = alloc?;
        if alloc.client_status.is_terminal() && core.engine.alloc_dir(&alloc.id).is_some() {
            ended.push((alloc.modify_time, alloc.id));
        }
    }
    ended.order_by(Ord::cmp);
    for (_, id) in ended.iter().take(ended.len().saturating_sub(DIRECTORIES)) {
        core.engine.destroy(id).await;
    }
    Ok(())
}
