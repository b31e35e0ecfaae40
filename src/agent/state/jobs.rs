//! Jobs: their versions, and what is kept of them.

use super::change::{Change, valid};
use super::error::StateError;
use super::table::{self, Table};
use super::view::{TRACKED_EVENTS, TRACKED_VERSIONS, View};
use crate::agent::model::{
    Allocation, JobKey, JobStatus, JobSummary, JobVersion, ScalingEvent, Submission, VersionTag,
};
use crate::spec::collections::BTreeMap;

impl Change<'_> {
    /// Stores a job, new or as its next version. Sets its version, status and indexes; stopping a job creates a new version,
    /// too. Returns the stored job.
    ///
    /// # Errors
    /// [`StateError`], here and below.
    pub fn put_job(&mut self, mut job: JobVersion, submission: Option<Submission>) -> Result<JobVersion, StateError> {
        valid("a namespace", &job.key.namespace)?;
        valid("a job's id", &job.key.id)?;
        let index = self.next_index();
        let old = self.job(&job.key)?;
        job.create_index = old.as_ref().map_or(index, |old| old.create_index);
        job.version = old.as_ref().map_or(0, |old| old.version + 1);
        job.status = JobStatus::Pending;
        // A tag belongs to the version that it was given to.
        job.version_tag = None;
        job.modify_index = index;
        job.job_modify_index = index;
        if let Some(old) = &old {
            let key = table::version(&job.key, old.create_index, old.version);
            self.link(table::VERSIONS, &key, super::change::encode(old)?);
        }
        self.summarize(&job)?;
        if let Some(old) = old.as_ref().filter(|old| old.parent_id != job.parent_id) {
            self.unlink(table::CHILDREN, &table::key(&[&old.key.namespace, &old.parent_id, &old.key.id]));
        }
        if !job.parent_id.is_empty() {
            let key = table::key(&[&job.key.namespace, &job.parent_id, &job.key.id]);
            self.link(table::CHILDREN, &key, job.key.id.clone().into_bytes());
        }
        if let Some(submission) = submission {
            let key = table::version(&job.key, job.create_index, job.version);
            self.link(table::SUBMISSIONS, &key, super::change::encode(&submission)?);
        }
        self.put(Table::Jobs, &table::job(&job.key), &job)?;
        self.affected.insert(job.key.clone());
        self.prune_versions(&job.key)?;
        Ok(job)
    }

    /// Sets whether a version is stable.
    ///
    /// # Errors
    /// [`StateError::NotFound`].
    pub fn set_stable(&mut self, key: &JobKey, version: u64, stable: bool) -> Result<(), StateError> {
        self.edit_version(key, version, |job| job.stable = stable)?;
        self.prune_versions(key)
    }

    /// Sets or removes the tag of a version. A tag is unique in its job.
    ///
    /// # Errors
    /// [`StateError::NotFound`]; [`StateError::Conflict`] for a name that another version has.
    pub fn set_tag(&mut self, key: &JobKey, version: u64, tag: Option<VersionTag>) -> Result<(), StateError> {
        if let Some(tag) = &tag
            && let Some(other) = self.tagged(key, &tag.name)?.filter(|other| other.version != version)
        {
            let (name, number) = (&tag.name, other.version);
            return Err(StateError::Conflict(format!(
                "tag {name:?} already exists on a different version of job {:?} (version {number})",
                key.id
            )));
        }
        self.edit_version(key, version, |job| job.version_tag = tag)?;
        self.prune_versions(key)
    }

    fn edit_version(
        &mut self,
        key: &JobKey,
        number: u64,
        edit: impl FnOnce(&mut JobVersion),
    ) -> Result<(), StateError> {
        let missing = || StateError::NotFound { kind: "job version", id: format!("{} version {number}", key.id) };
        let mut job = self.job(key)?.ok_or_else(missing)?;
        let mut version = self.version(key, number)?.ok_or_else(missing)?;
        let old = version.clone();
        edit(&mut version);
        if version == old {
            return Ok(());
        }
        version.modify_index = self.next_index();
        if job.version == number {
            return self.put(Table::Jobs, &table::job(key), &version);
        }
        let at = table::version(key, job.create_index, number);
        self.link(table::VERSIONS, &at, super::change::encode(&version)?);
        // Blocking queries on the job's versions wait for the job's record.
        job.modify_index = self.next_index();
        self.put(Table::Jobs, &table::job(key), &job)
    }

    /// Forgets a job with its versions and deployments, as Nomad does; versions of existing allocations are kept until those are
    /// forgotten.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_job(&mut self, key: &JobKey) -> Result<(), StateError> {
        let Some(job) = self.job(key)? else { return Ok(()) };
        let prefix = table::of_incarnation(key, job.create_index);
        let current = table::version(key, job.create_index, job.version);
        self.link(table::VERSIONS, &current, super::change::encode(&job)?);
        for table in [table::VERSIONS, table::SUBMISSIONS] {
            for at in self.keys(table, prefix.clone())? {
                if table == table::SUBMISSIONS || !self.has(table::ALLOCS_BY_JOB, &at)? {
                    self.unlink(table, &at);
                }
            }
        }
        if !job.parent_id.is_empty() {
            self.unlink(table::CHILDREN, &table::key(&[&key.namespace, &job.parent_id, &key.id]));
            self.child_gone(&job)?;
        }
        for deployment in self.deployments_of_job(key)? {
            self.delete_deployment(&deployment.id)?;
        }
        let at = table::job(key);
        for table in [Table::Summaries, Table::Launches, Table::Scaling] {
            if self.view().source().get(table.name(), &at)?.is_some() {
                self.take(table, &at)?;
            }
        }
        self.drop_claims_of(key)?;
        self.affected.remove(key);
        self.counts.remove(key);
        self.take(Table::Jobs, &at)
    }

    /// A child that is forgotten before it is dead is counted as dead; dead ones stay counted.
    fn child_gone(&mut self, job: &JobVersion) -> Result<(), StateError> {
        let parent = JobKey { namespace: job.key.namespace.clone(), id: job.parent_id.clone() };
        if job.status == JobStatus::Dead {
            return Ok(());
        }
        self.count_child(&parent, Some(job.status), JobStatus::Dead)
    }

    /// Counts a child of a job.
    pub(super) fn count_child(
        &mut self,
        parent: &JobKey,
        was: Option<JobStatus>,
        is: JobStatus,
    ) -> Result<(), StateError> {
        let Some(mut summary) = self.summary(parent)? else { return Ok(()) };
        let children = &mut summary.children;
        if let Some(was) = was {
            let count = child(children, was);
            *count = count.saturating_sub(1);
        }
        *child(children, is) += 1;
        self.put_summary(&summary)
    }

    /// Adds each group of a job to its summary.
    fn summarize(&mut self, job: &JobVersion) -> Result<(), StateError> {
        let old = self.summary(&job.key)?;
        let mut summary = old.clone().unwrap_or_else(|| JobSummary {
            job_id: job.key.id.clone(),
            namespace: job.key.namespace.clone(),
            create_index: job.create_index,
            ..JobSummary::default()
        });
        for group in job.group_names() {
            summary.summary.entry(group.to_owned()).or_default();
        }
        if old.as_ref() == Some(&summary) { Ok(()) } else { self.put_summary(&summary) }
    }

    /// Keeps a summary.
    pub(super) fn put_summary(&mut self, summary: &JobSummary) -> Result<(), StateError> {
        let summary = JobSummary { modify_index: self.next_index(), ..summary.clone() };
        let key = table::key(&[&summary.namespace, &summary.job_id]);
        self.put(Table::Summaries, &key, &summary)
    }

    /// Records a change of a group's count.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_scaling_event(&mut self, key: &JobKey, group: &str, mut event: ScalingEvent) -> Result<(), StateError> {
        event.create_index = self.next_index();
        let mut all: BTreeMap<String, Vec<ScalingEvent>> = self.scaling_events(key)?;
        let events = all.entry(group.to_owned()).or_default();
        events.insert(0, event);
        events.truncate(TRACKED_EVENTS);
        self.put(Table::Scaling, &table::job(key), &all)
    }

    /// Forgets the version of an allocation's job if nothing refers to it any more.
    pub(super) fn release_version(&mut self, alloc: &Allocation) -> Result<(), StateError> {
        let key = JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() };
        let at = table::version(&key, alloc.job_create_index, alloc.job_version);
        if self.has(table::ALLOCS_BY_JOB, &at)? {
            return Ok(());
        }
        let listed = self.versions(&key)?;
        let is_listed =
            |job: &JobVersion| job.version == alloc.job_version && job.create_index == alloc.job_create_index;
        if !listed.iter().any(is_listed) {
            self.unlink(table::VERSIONS, &at);
        }
        Ok(())
    }

    /// Forgets the versions that are neither listed nor used by an allocation, and their submissions.
    fn prune_versions(&self, key: &JobKey) -> Result<(), StateError> {
        let Some(job) = self.job(key)? else { return Ok(()) };
        let prefix = table::of_incarnation(key, job.create_index);
        let stored = self.keys(table::VERSIONS, prefix.clone())?;
        if stored.len() < TRACKED_VERSIONS {
            return Ok(());
        }
        let kept: Vec<Vec<u8>> = self
            .versions(key)?
            .iter()
            .map(|version| table::version(key, version.create_index, version.version))
            .collect();
        for at in stored {
            if !kept.contains(&at) && !self.has(table::ALLOCS_BY_JOB, &at)? {
                self.unlink(table::VERSIONS, &at);
            }
        }
        for at in self.keys(table::SUBMISSIONS, prefix)? {
            if !kept.contains(&at) {
                self.unlink(table::SUBMISSIONS, &at);
            }
        }
        Ok(())
    }
}

/// The count of children of this status.
fn child(children: &mut crate::agent::model::ChildrenSummary, status: JobStatus) -> &mut u64 {
    match status {
        JobStatus::Pending => &mut children.pending,
        JobStatus::Running => &mut children.running,
        JobStatus::Dead => &mut children.dead,
    }
}

impl View {
    /// The keys of a table that begin with `prefix`.
    fn keys(&self, table: crate::store::TableName, prefix: Vec<u8>) -> Result<Vec<Vec<u8>>, StateError> {
        super::records::Records::new(self.source(), table, prefix, |key, _| Ok(Some(key.to_vec()))).all()
    }
}
