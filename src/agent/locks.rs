//! Takes the locks of variables whose holders fell silent.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::clock::{nap, now};
use super::core::Core;
use super::model::Nanos;
use super::state::{StateError, Table};

/// When it is tried again what could not be done.
const AGAIN: Duration = Duration::from_secs(10);
/// How long nobody has to look where there is no lock.
const LONG: Duration = Duration::from_hours(24);

/// Looks for ever.
pub(super) async fn run(core: Arc<Core>) {
    loop {
        // Before it is looked, so that no lock is missed.
        let index = core.state.wait(&[Table::Variables], 0, Instant::now()).await;
        let next = expire(&core).await.unwrap_or_else(|error| {
            tracing::error!(error = crate::alloc::chain(&error), "cannot take the locks of silent holders");
            Some(now().plus(AGAIN))
        });
        let until = Instant::now() + next.map_or(LONG, nap);
        core.state.wait(&[Table::Variables], index, until).await;
    }
}

/// Takes what is due; answers when the next one is.
async fn expire(core: &Core) -> Result<Option<Nanos>, StateError> {
    Ok(core.state.change(|change| change.expire_locks(now())).await?.1)
}
