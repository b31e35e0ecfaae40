//! What follows from a change: the status of its jobs, and their summaries.

use super::change::{Change, Count};
use super::error::StateError;
use super::table::{self, Table};
use super::view::decode;
use crate::agent::model::{ClientStatus, GroupSummary, JobKey, JobStatus, JobSummary, JobVersion};

/// Brings what follows from the change up to date.
pub(super) fn follow(change: &mut Change<'_>) -> Result<(), StateError> {
    for (key, counts) in std::mem::take(&mut change.counts) {
        count(change, &key, &counts)?;
    }
    for key in std::mem::take(&mut change.affected) {
        settle(change, &key)?;
    }
    Ok(())
}

/// Gives a job the status that its allocations and evaluations say.
fn settle(change: &mut Change<'_>, key: &JobKey) -> Result<(), StateError> {
    let Some(mut job) = change.job(key)? else { return Ok(()) };
    let status = status(change, &job)?;
    let at = table::job(key);
    let was = match change.before().iter().find(|old| old.table == Table::Jobs && old.key == at) {
        Some(old) => old.value.as_deref().map(|old| decode::<JobVersion>(Table::Jobs.name(), &at, old)).transpose()?,
        None => Some(job.clone()),
    };
    let was = was.map(|job| job.status);
    if job.status != status {
        job.status = status;
        job.modify_index = change.next_index();
        change.put(Table::Jobs, &at, &job)?;
    }
    if !job.parent_id.is_empty() && was != Some(status) {
        let parent = JobKey { namespace: key.namespace.clone(), id: job.parent_id };
        change.count_child(&parent, was, status)?;
    }
    Ok(())
}

/// As Nomad has it: a job of the kind `system` and one that makes others runs until it is stopped; another one runs while an
/// allocation of it may run, waits while something is to be decided of it, and is dead when all of that is over.
fn status(change: &Change<'_>, job: &JobVersion) -> Result<JobStatus, StateError> {
    let is_system = job.spec.get("Type").is_some_and(|kind| kind == "system");
    if is_system || job.is_template() {
        return Ok(if job.stop { JobStatus::Dead } else { JobStatus::Running });
    }
    let prefix = table::of_job(&job.key);
    Ok(if change.has(table::ALLOCS_LIVE, &prefix)? {
        JobStatus::Running
    } else if change.has(table::EVALS_OPEN, &prefix)? {
        JobStatus::Pending
    } else if job.stop || change.has(table::EVALS_BY_JOB, &prefix)? || change.has(table::ALLOCS_BY_JOB, &prefix)? {
        JobStatus::Dead
    } else if job.status == JobStatus::Dead {
        // What it ran is no longer kept.
        JobStatus::Dead
    } else {
        JobStatus::Pending
    })
}

/// Counts what happened to a job's allocations.
fn count(change: &mut Change<'_>, key: &JobKey, counts: &[Count]) -> Result<(), StateError> {
    let (Some(job), Some(old)) = (change.job(key)?, change.summary(key)?) else { return Ok(()) };
    let mut summary = old.clone();
    for count in counts {
        match count {
            Count::Alloc { create_index, group, was, is } if *create_index == job.create_index => {
                let group = summary.summary.entry(group.clone()).or_default();
                match was {
                    Some(was) => leave(group, *was),
                    None => group.queued = group.queued.saturating_sub(1),
                }
                *counter(group, *is) += 1;
            }
            // Of a job that had this id before.
            Count::Alloc { .. } => {}
            Count::Queued(queued) => {
                for (group, queued) in queued {
                    summary.summary.entry(group.clone()).or_default().queued = *queued;
                }
            }
        }
    }
    if job.stop {
        summary.summary.values_mut().for_each(|group| group.queued = 0);
    }
    if summary == old { Ok(()) } else { change.put_summary(&summary) }
}

/// Those that ended stay counted.
fn leave(group: &mut GroupSummary, was: ClientStatus) {
    if !matches!(was, ClientStatus::Complete | ClientStatus::Failed) {
        let count = counter(group, was);
        *count = count.saturating_sub(1);
    }
}

fn counter(group: &mut GroupSummary, status: ClientStatus) -> &mut u32 {
    match status {
        ClientStatus::Pending => &mut group.starting,
        ClientStatus::Running => &mut group.running,
        ClientStatus::Complete => &mut group.complete,
        ClientStatus::Failed => &mut group.failed,
        ClientStatus::Lost => &mut group.lost,
        ClientStatus::Unknown => &mut group.unknown,
    }
}

impl Change<'_> {
    /// Counts all summaries anew from what is kept (`system reconcile summaries`).
    ///
    /// # Errors
    /// [`StateError`].
    pub fn reconcile_summaries(&mut self) -> Result<(), StateError> {
        for key in self.job_keys(None, "").all()? {
            let Some(job) = self.job(&key)? else { continue };
            let Some(old) = self.summary(&key)? else { continue };
            let mut summary = JobSummary { summary: crate::spec::collections::BTreeMap::new(), ..old.clone() };
            for group in job.group_names() {
                let queued = old.summary.get(group).map_or(0, |group| group.queued);
                summary.summary.insert(group.to_owned(), GroupSummary { queued, ..GroupSummary::default() });
            }
            for alloc in self.allocs_of_job(&key)? {
                if alloc.job_create_index == job.create_index {
                    *counter(summary.summary.entry(alloc.task_group).or_default(), alloc.client_status) += 1;
                }
            }
            if summary != old {
                self.put_summary(&summary)?;
            }
        }
        Ok(())
    }
}
