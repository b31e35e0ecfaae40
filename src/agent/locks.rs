//! Releases locks of variables that their holders did not renew in time.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::clock::now;
use super::core::Core;
use super::state::{StateError, Table};

/// Delay before a failed release is retried.
const AGAIN: Duration = Duration::from_secs(10);
/// Interval between checks while there are no locks.
const LONG: Duration = Duration::from_hours(24);

/// Runs forever.
pub(super) async fn run(core: Arc<Core>) {
    loop {
        // Taken before the check, so that no new lock is missed.
        let index = core.state.wait(&[Table::Variables], 0, Instant::now()).await;
        let next = expire(&core).await.unwrap_or_else(|error| {
            tracing::error!(error = crate::alloc::chain(&error), "cannot take the locks of silent holders");
            Some(Instant::now() + AGAIN)
        });
        let until = next.unwrap_or_else(|| Instant::now() + LONG);
        core.state.wait(&[Table::Variables], index, until).await;
    }
}

/// Releases expired locks; returns the time of the next expiry.
async fn expire(core: &Core) -> Result<Option<Instant>, StateError> {
    Ok(core.state.change(|change| change.expire_locks(Instant::now(), now())).await?.1)
}
