//! Changes that unblock evaluations.

use super::feasible::VOLUMES;
use crate::agent::model::{EvalStatus, Evaluation};
use crate::spec::JobType;

/// A change that may provide what a blocked evaluation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// An allocation ended, or is to stop: there is CPU, memory, a port again; its job's groups are apart again, and a volume has
    /// no writer.
    AllocEnded,
    /// The node became eligible, or its drain ended.
    NodeEligible,
    /// Drivers, attributes, metadata, volumes, networks or resources of the node changed.
    NodeChanged,
    /// A program that is not an allocation may have released a port; the host gives no notification.
    PortFreed,
}

/// Whether a change may provide what a blocked evaluation waits for.
#[must_use]
pub fn unblocks(eval: &Evaluation, change: Change) -> bool {
    if eval.status != EvalStatus::Blocked {
        return false;
    }
    eval.failed.is_empty()
        || eval.failed.values().any(|metric| {
            let is_full = metric.nodes_exhausted > 0;
            // A volume may have one writer at a time.
            let waits = |why: &String| {
                why.starts_with("distinct_")
                    || why == VOLUMES
                    || why.starts_with("CSI volume ")
                    || why.starts_with("CSI plugin ")
            };
            let is_apart = metric.constraint_filtered.keys().any(waits);
            match change {
                Change::AllocEnded => is_full || is_apart,
                Change::NodeEligible => metric.nodes_evaluated == 0,
                // Also one that is full: there may be more memory now.
                Change::NodeChanged => true,
                Change::PortFreed => metric.dimension_exhausted.keys().any(|what| what.starts_with("network: ")),
            }
        })
}

/// Whether a job without a blocked evaluation has to be evaluated (`node-update`): system jobs do not wait for a node that
/// cannot run them. Sysbatch jobs run where they can when somebody registers them, and nowhere later.
#[must_use]
pub fn is_evaluated(kind: JobType, change: Change) -> bool {
    kind == JobType::System && matches!(change, Change::NodeEligible | Change::NodeChanged)
}
