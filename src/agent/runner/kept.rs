//! What was decided about an allocation, next to its record: from it a state that was lost is made again.

use serde::{Deserialize, Serialize};

use super::Runner;
use crate::agent::engine::Wanted;
use crate::agent::model::{Allocation, JobVersion};
use crate::agent::state::Adoptable;
use crate::alloc::chain;
use crate::spec::{AllocId, json};
use crate::sys::lock::lock;

/// The format.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct ToKeep<'a> {
    version: u32,
    alloc: &'a Allocation,
    job: &'a JobVersion,
}

#[derive(Deserialize)]
struct Kept {
    version: u32,
    alloc: Allocation,
    job: JobVersion,
}

impl Runner {
    /// Keeps the decision about an allocation as it is now. Without it the allocation runs as well.
    pub(super) fn keep(&self, id: &AllocId, wanted: &Wanted) {
        let bytes = json::to_vec(&ToKeep { version: VERSION, alloc: &wanted.alloc, job: &wanted.version });
        let kept = bytes.map_err(|error| error.to_string());
        let kept = kept.and_then(|bytes| self.machine.records.keep(id, &bytes).map_err(|error| chain(&error)));
        if let Err(why) = kept {
            tracing::warn!(alloc = %id, why, "if the state is lost, this allocation cannot be adopted");
        }
    }

    /// The allocations that an earlier process left, with what was decided about them: for a state that has lost them. One about
    /// which that is not known is reported in the log.
    #[must_use]
    pub fn adoptable(&self) -> Vec<Adoptable> {
        let mut found = Vec::new();
        for record in lock(&self.records).values() {
            let Some(id) = record.id() else { continue };
            let read = match self.machine.records.kept(&id) {
                Ok(Some(bytes)) => json::from_slice::<Kept>(&bytes).map_err(|error| error.to_string()),
                Ok(None) => Err("an agent without --adopt-records started it".to_owned()),
                Err(error) => Err(chain(&error)),
            };
            match read {
                Ok(kept) if kept.version == VERSION && kept.alloc.id == record.alloc_id => {
                    found.push(Adoptable { alloc: kept.alloc, job: kept.job, is_stopped: record.is_stopped() });
                }
                Ok(_) => tracing::error!(alloc = %id, "what is kept of an allocation is not of this version, or not of it"),
                Err(why) => tracing::error!(alloc = %id, why, "it is not known what was decided about an allocation"),
            }
        }
        found
    }
}
