//! The scheduler's configuration, which operators change.

use serde_json::Value;

use super::state::{StateError, View};
use crate::spec::json::json;

/// Its name in the state.
pub(super) const SCHEDULER: &str = "scheduler";
/// The switch for `memory_max`.
pub(super) const MEMORY: &str = "MemoryOversubscriptionEnabled";
/// Jobs are registered for the role `manage` only.
pub(super) const REJECT: &str = "RejectJobRegistration";
/// Evaluations wait.
pub(super) const PAUSE: &str = "PauseEvalBroker";

/// The configuration. Its defaults are Nomad's, except that `memory_max` has an effect, as in `agentbin run`.
pub(super) fn scheduler(view: &View) -> Result<Value, StateError> {
    let defaults = || {
        json!({
            "SchedulerAlgorithm": "binpack",
            "MemoryOversubscriptionEnabled": true,
            "RejectJobRegistration": false,
            "PauseEvalBroker": false,
            "PreemptionConfig": {
                "SystemSchedulerEnabled": true, "SysBatchSchedulerEnabled": false, "BatchSchedulerEnabled": false,
                "ServiceSchedulerEnabled": false,
            },
            "CreateIndex": 1,
            "ModifyIndex": 1,
        })
    };
    Ok(view.setting(SCHEDULER)?.unwrap_or_else(defaults))
}

/// Whether one of its switches is on.
pub(super) fn is_on(view: &View, switch: &str) -> Result<bool, StateError> {
    Ok(scheduler(view)?[switch] == true)
}
