//! What was decided about an allocation, next to its record: from it a state that was lost is made again.

use serde::{Deserialize, Serialize};

use super::Runner;
use crate::agent::engine::Wanted;
use crate::agent::model::{Allocation, DesiredStatus, JobVersion};
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
        self.write(id, &wanted.alloc, &wanted.version);
    }

    /// Keeps that an allocation is to be stopped.
    pub(super) fn keep_stop(&self, id: &AllocId) {
        match self.kept(id) {
            Ok(Kept { alloc, job, .. }) if alloc.desired_status == DesiredStatus::Run => {
                self.write(id, &Allocation { desired_status: DesiredStatus::Stop, ..alloc }, &job);
            }
            // It says so already, or it was said that nothing could be kept.
            _ => {}
        }
    }

    fn write(&self, id: &AllocId, alloc: &Allocation, job: &JobVersion) {
        let bytes = json::to_vec(&ToKeep { version: VERSION, alloc, job }).map_err(|error| error.to_string());
        let kept = bytes.and_then(|bytes| self.machine.records.keep(id, &bytes).map_err(|error| chain(&error)));
        if let Err(why) = kept {
            tracing::warn!(alloc = %id, why, "if the state is lost, this allocation cannot be adopted");
        }
    }

    fn kept(&self, id: &AllocId) -> Result<Kept, String> {
        let bytes = self.machine.records.kept(id).map_err(|error| chain(&error))?;
        let bytes = bytes.ok_or("an older release started it, which kept nothing for an adoption")?;
        let kept: Kept = json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if kept.version != VERSION || kept.alloc.id != id.as_str() {
            return Err(format!("version {} of a decision about {:?}", kept.version, kept.alloc.id));
        }
        Ok(kept)
    }

    /// The allocations that an earlier process left, with what was decided about them: for a state that has lost them. One about
    /// which that is not known is reported in the log.
    #[must_use]
    pub fn adoptable(&self) -> Vec<Adoptable> {
        let mut found = Vec::new();
        for record in lock(&self.records).values() {
            let Some(id) = record.id() else { continue };
            match self.kept(&id) {
                Ok(Kept { alloc, job, .. }) => {
                    let is_stopped = record.is_stopped() || alloc.desired_status != DesiredStatus::Run;
                    found.push(Adoptable { alloc, job, is_stopped });
                }
                Err(why) => tracing::error!(alloc = %id, why, "it is not known what was decided about an allocation"),
            }
        }
        found
    }
}
