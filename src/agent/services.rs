//! What allocations have registered, kept as the state's services: those of one that an earlier process left stay until it has
//! been found again and says what it offers by now.

use std::sync::Arc;
use std::time::Duration;

use super::core::Core;
use super::model::ServiceRegistration;
use super::state::StateError;
use crate::spec::collections::BTreeMap;

/// What comes so soon after a change is kept together with it.
const PAUSE: Duration = Duration::from_millis(20);
/// When a change is tried again that could not be kept.
const AGAIN: Duration = Duration::from_secs(5);

/// Follows the engine for ever.
pub(super) async fn run(core: Arc<Core>) {
    let mut changes = core.engine.service_changes();
    loop {
        let pause = match follow(&core).await {
            Ok(()) => PAUSE,
            Err(error) => {
                tracing::error!(error = crate::alloc::chain(&error), "cannot keep what services there are");
                core.services.notify_one();
                AGAIN
            }
        };
        tokio::time::sleep(pause).await;
        tokio::select! {
            // The engine outlives whoever follows it.
            _ = changes.changed() => {}
            () = core.services.notified() => {}
        }
    }
}

/// Writes down what is not known yet, and forgets what is not there any more; writes nothing where all is as it was.
async fn follow(core: &Core) -> Result<(), StateError> {
    let registered = core.engine.services();
    let mut new: BTreeMap<String, ServiceRegistration> =
        registered.into_iter().map(|service| (service.id.clone(), service)).collect();
    let mut gone = Vec::new();
    for known in core.state.read()?.services(None, "") {
        let known = known?;
        let (create_index, modify_index) = (known.create_index, known.modify_index);
        match new.get(&known.id) {
            Some(now) if ServiceRegistration { create_index, modify_index, ..now.clone() } == known => {
                new.remove(&known.id);
            }
            Some(_) => {}
            None if core.engine.runs(&known.alloc_id) && !core.engine.has_announced(&known.alloc_id) => {}
            None => gone.push(known.id),
        }
    }
    if new.is_empty() && gone.is_empty() {
        return Ok(());
    }
    let kept = core.state.change_soon(move |change| {
        for id in gone {
            change.delete_service(&id)?;
        }
        new.into_values().try_for_each(|service| change.put_service(service))
    });
    kept.await?;
    Ok(())
}
