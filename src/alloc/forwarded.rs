//! Looks after the packets of the bridge while this process has allocations there: see [`FirewallWatch`].

use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;

use super::chain::chain;
use crate::net::{FirewallWatch, Networks};
use crate::sys::task;
use crate::sys::watch::register;

/// How long other programs may go on to change their rules: one that starts makes many, one after the other.
const SETTLED: Duration = Duration::from_millis(200);

/// Begins to look after them, unless this process does so already. `has_changed`: rules may have changed while nobody looked.
pub(super) fn watch(networks: &Networks, has_changed: bool) {
    if let Some(watch) = networks.watch() {
        task::spawn(keep_accepted(Arc::new(watch), has_changed));
    }
}

async fn keep_accepted(watch: Arc<FirewallWatch>, mut has_changed: bool) {
    let Ok(changes) = register(watch.socket(), Interest::READABLE) else { return };
    loop {
        if has_changed {
            let of_thread = Arc::clone(&watch);
            if let Ok(Err(error)) = task::spawn_blocking(move || of_thread.accept()).await {
                let error = chain(&error);
                tracing::warn!(
                    error,
                    "packets of the bridge may be dropped by another program's rules until the next allocation"
                );
            }
        }
        let Ok(mut ready) = changes.readable().await else { return };
        has_changed = watch.has_changed();
        ready.clear_ready();
        if has_changed {
            tokio::time::sleep(SETTLED).await;
        }
    }
}
