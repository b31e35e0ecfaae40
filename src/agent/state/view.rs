//! Reading: what was kept at one moment, or what a change sees.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::error::StateError;
use super::records::Records;
use super::secret::Keys;
use super::table::{self, Table};
use crate::agent::model::{
    Allocation, Deployment, Evaluation, JobKey, JobSummary, JobVersion, Namespace, Nanos, Node, ScalingEvent,
    ServiceRegistration, Submission,
};
use crate::spec::Order as _;
use crate::spec::json;
use crate::store::{Draft, Snapshot, Source, TableName};

/// Versions of a job that are kept beside the tagged ones.
pub const TRACKED_VERSIONS: usize = 6;
/// Scaling events of a group that are kept.
pub(super) const TRACKED_EVENTS: usize = 20;

/// Where it is read from.
#[derive(Debug)]
enum Origin {
    Snapshot(Snapshot),
    Draft(Arc<Draft>),
}

/// What was kept at one moment.
#[derive(Debug)]
pub struct View {
    from: Origin,
    pub(super) keys: Arc<Keys>,
}

/// Reads a record.
pub(super) fn decode<T: DeserializeOwned>(table: TableName, key: &[u8], value: &[u8]) -> Result<T, StateError> {
    json::from_slice(value).map_err(|error| damaged(table, key, &error))
}

pub(super) fn damaged(table: TableName, key: &[u8], reason: &dyn std::fmt::Display) -> StateError {
    StateError::Damaged { table, key: table::readable(key), reason: reason.to_string() }
}

impl View {
    pub(super) fn of_snapshot(snapshot: Snapshot, keys: Arc<Keys>) -> View {
        View { from: Origin::Snapshot(snapshot), keys }
    }

    pub(super) fn of_draft(draft: Arc<Draft>, keys: Arc<Keys>) -> View {
        View { from: Origin::Draft(draft), keys }
    }

    pub(super) fn source(&self) -> &dyn Source {
        match &self.from {
            Origin::Snapshot(snapshot) => snapshot,
            Origin::Draft(draft) => draft.as_ref(),
        }
    }

    pub(super) fn get<T: DeserializeOwned>(&self, table: TableName, key: &[u8]) -> Result<Option<T>, StateError> {
        let found = self.source().get(table, key)?;
        found.map(|value| decode(table, key, &value)).transpose()
    }

    pub(super) fn list<T: DeserializeOwned>(&self, table: TableName, prefix: Vec<u8>) -> Records<'_, T> {
        Records::new(self.source(), table, prefix, move |key, value| decode(table, key, value).map(Some))
    }

    /// What a table of `to` has of the ids that are values in `table`.
    fn linked<T: DeserializeOwned>(&self, table: TableName, prefix: Vec<u8>, to: TableName) -> Records<'_, T> {
        Records::new(self.source(), table, prefix, move |_, id| self.get(to, id))
    }

    pub(super) fn number(&self, table: TableName, key: &[u8]) -> Result<u64, StateError> {
        let Some(bytes) = self.source().get(table, key)? else { return Ok(0) };
        let bytes = bytes.try_into().map_err(|_| damaged(table, key, &"it is not a number"))?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// The index of the last change.
    ///
    /// # Errors
    /// [`StateError`], here and below: the database cannot be read, or a record of it.
    pub fn index(&self) -> Result<u64, StateError> {
        self.number(table::INDEXES, table::LAST)
    }

    /// The index of the last change of a table; at least 1, as clients take 0 for none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn table_index(&self, of: Table) -> Result<u64, StateError> {
        Ok(self.number(table::INDEXES, of.name().as_bytes())?.max(1))
    }

    /// A job as it is now.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn job(&self, key: &JobKey) -> Result<Option<JobVersion>, StateError> {
        self.get(Table::Jobs.name(), &table::job(key))
    }

    /// The jobs of a namespace (`None`: of all) whose ids begin with `prefix`, sorted by namespace and id.
    pub fn jobs<'a>(&'a self, namespace: Option<&str>, prefix: &str) -> Records<'a, JobVersion> {
        let jobs = Table::Jobs.name();
        self.in_namespace(jobs, namespace, prefix, move |key, value| decode(jobs, key, value))
    }

    /// The keys of the same jobs.
    pub fn job_keys<'a>(&'a self, namespace: Option<&str>, prefix: &str) -> Records<'a, JobKey> {
        self.in_namespace(Table::Jobs.name(), namespace, prefix, move |key, _| Ok(job_key(key)))
    }

    /// Records by namespace and name.
    pub(super) fn in_namespace<'a, T>(
        &'a self,
        table: TableName,
        namespace: Option<&str>,
        prefix: &str,
        read: impl Fn(&[u8], &[u8]) -> Result<T, StateError> + Send + 'a,
    ) -> Records<'a, T> {
        let from = namespace.map_or_else(Vec::new, |namespace| table::key(&[namespace, prefix]));
        let prefix = prefix.as_bytes().to_vec();
        Records::new(self.source(), table, from, move |key, value| {
            let name = key.iter().position(|byte| *byte == 0).map_or(key, |at| &key[at + 1..]);
            name.starts_with(&prefix).then(|| read(key, value)).transpose()
        })
    }

    /// A version of a job, as it is now or as it was when a newer one came; also one that is kept only because an allocation
    /// has it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn version(&self, key: &JobKey, version: u64) -> Result<Option<JobVersion>, StateError> {
        let Some(job) = self.job(key)? else { return Ok(None) };
        if job.version == version {
            return Ok(Some(job));
        }
        self.get(table::VERSIONS, &table::version(key, job.create_index, version))
    }

    /// The version that an allocation was made from, also of a job that was purged since.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn version_of(&self, alloc: &Allocation) -> Result<Option<JobVersion>, StateError> {
        let key = JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() };
        if let Some(job) = self.job(&key)?
            && job.version == alloc.job_version
            && job.create_index == alloc.job_create_index
        {
            return Ok(Some(job));
        }
        self.get(table::VERSIONS, &table::version(&key, alloc.job_create_index, alloc.job_version))
    }

    /// The versions of a job that are kept, the newest first: six, the last stable one among them, and the tagged ones.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn versions(&self, key: &JobKey) -> Result<Vec<JobVersion>, StateError> {
        let Some(job) = self.job(key)? else { return Ok(Vec::new()) };
        let prefix = table::of_incarnation(key, job.create_index);
        let mut versions: Vec<JobVersion> = self.list(table::VERSIONS, prefix).collect::<Result<_, _>>()?;
        versions.push(job);
        versions.reverse();
        let is_stable = |version: &&JobVersion| version.stable && version.version_tag.is_none();
        let stable = versions.iter().find(is_stable).map(|version| version.version);
        let mut places = TRACKED_VERSIONS - usize::from(stable.is_some());
        versions.retain(|version| {
            if version.version_tag.is_some() || stable == Some(version.version) {
                return true;
            }
            let has_place = places > 0;
            places -= usize::from(has_place);
            has_place
        });
        Ok(versions)
    }

    /// The version with this tag.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn tagged(&self, key: &JobKey, tag: &str) -> Result<Option<JobVersion>, StateError> {
        let named = |version: &JobVersion| version.version_tag.as_ref().is_some_and(|found| found.name == tag);
        Ok(self.versions(key)?.into_iter().find(named))
    }

    /// What a version was made from.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn submission(&self, key: &JobKey, version: u64) -> Result<Option<Submission>, StateError> {
        let Some(job) = self.job(key)? else { return Ok(None) };
        self.get(table::SUBMISSIONS, &table::version(key, job.create_index, version))
    }

    /// The keys of the jobs that a periodic or parameterized one made.
    pub fn children<'a>(&'a self, parent: &JobKey) -> Records<'a, JobKey> {
        let namespace = parent.namespace.clone();
        Records::new(self.source(), table::CHILDREN, table::of_job(parent), move |_, child| {
            Ok(Some(JobKey { namespace: namespace.clone(), id: String::from_utf8_lossy(child).into_owned() }))
        })
    }

    /// A job's summary.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn summary(&self, key: &JobKey) -> Result<Option<JobSummary>, StateError> {
        self.get(Table::Summaries.name(), &table::job(key))
    }

    /// When a periodic job started one last.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn last_launch(&self, key: &JobKey) -> Result<Option<Nanos>, StateError> {
        self.get(Table::Launches.name(), &table::job(key))
    }

    /// The scaling events of a job by group, the newest first.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn scaling_events(
        &self,
        key: &JobKey,
    ) -> Result<crate::spec::collections::BTreeMap<String, Vec<ScalingEvent>>, StateError> {
        Ok(self.get(Table::Scaling.name(), &table::job(key))?.unwrap_or_default())
    }

    /// An evaluation.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn eval(&self, id: &str) -> Result<Option<Evaluation>, StateError> {
        self.get(Table::Evals.name(), id.as_bytes())
    }

    /// The evaluations whose ids begin with `prefix`, sorted by id.
    pub fn evals(&self, prefix: &str) -> Records<'_, Evaluation> {
        self.list(Table::Evals.name(), prefix.as_bytes().to_vec())
    }

    /// A job's evaluations.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn evals_of_job(&self, key: &JobKey) -> Result<Vec<Evaluation>, StateError> {
        self.linked(table::EVALS_BY_JOB, table::of_job(key), Table::Evals.name()).all()
    }

    /// An allocation.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn alloc(&self, id: &str) -> Result<Option<Allocation>, StateError> {
        self.get(Table::Allocs.name(), id.as_bytes())
    }

    /// The allocations whose ids begin with `prefix`, sorted by id.
    pub fn allocs(&self, prefix: &str) -> Records<'_, Allocation> {
        self.list(Table::Allocs.name(), prefix.as_bytes().to_vec())
    }

    /// The allocations of a job, of all its versions, and of those that had its id before.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn allocs_of_job(&self, key: &JobKey) -> Result<Vec<Allocation>, StateError> {
        self.linked(table::ALLOCS_BY_JOB, table::of_job(key), Table::Allocs.name()).all()
    }

    /// The allocations that an evaluation placed or changed last.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn allocs_of_eval(&self, id: &str) -> Result<Vec<Allocation>, StateError> {
        self.linked(table::ALLOCS_BY_EVAL, table::below(&[id]), Table::Allocs.name()).all()
    }

    /// The allocations of a deployment.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn allocs_of_deployment(&self, id: &str) -> Result<Vec<Allocation>, StateError> {
        self.linked(table::ALLOCS_BY_DEPLOYMENT, table::below(&[id]), Table::Allocs.name()).all()
    }

    /// The allocations that may still run, of all jobs: those whose client has not said that they ended.
    pub fn live_allocs(&self) -> Records<'_, Allocation> {
        self.linked(table::ALLOCS_LIVE, Vec::new(), Table::Allocs.name())
    }

    /// Those of one job.
    pub fn live_allocs_of_job(&self, key: &JobKey) -> Records<'_, Allocation> {
        self.linked(table::ALLOCS_LIVE, table::of_job(key), Table::Allocs.name())
    }

    /// The evaluations that are not decided, of all jobs: pending and blocked ones.
    pub fn open_evals(&self) -> Records<'_, Evaluation> {
        self.linked(table::EVALS_OPEN, Vec::new(), Table::Evals.name())
    }

    /// Whether a table has a key that begins like this.
    pub(super) fn has(&self, table: TableName, prefix: &[u8]) -> Result<bool, StateError> {
        Ok(!self.source().page(table, prefix, None, 1)?.records.is_empty())
    }

    /// A deployment.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn deployment(&self, id: &str) -> Result<Option<Deployment>, StateError> {
        self.get(Table::Deployments.name(), id.as_bytes())
    }

    /// The deployments whose ids begin with `prefix`, sorted by id.
    pub fn deployments(&self, prefix: &str) -> Records<'_, Deployment> {
        self.list(Table::Deployments.name(), prefix.as_bytes().to_vec())
    }

    /// A job's deployments, the newest last.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn deployments_of_job(&self, key: &JobKey) -> Result<Vec<Deployment>, StateError> {
        let mut all: Vec<Deployment> =
            self.linked(table::DEPLOYMENTS_BY_JOB, table::of_job(key), Table::Deployments.name()).all()?;
        all.order_by_key(|deployment| deployment.create_index);
        Ok(all)
    }

    /// The node, once it has been described.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn node(&self) -> Result<Option<Node>, StateError> {
        self.list(Table::Nodes.name(), Vec::new()).next().transpose()
    }

    /// The namespaces, sorted by name.
    pub fn namespaces(&self, prefix: &str) -> Records<'_, Namespace> {
        self.list(Table::Namespaces.name(), prefix.as_bytes().to_vec())
    }

    /// A namespace.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn namespace(&self, name: &str) -> Result<Option<Namespace>, StateError> {
        self.get(Table::Namespaces.name(), name.as_bytes())
    }

    /// A registration of a service.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn service(&self, id: &str) -> Result<Option<ServiceRegistration>, StateError> {
        self.get(Table::Services.name(), id.as_bytes())
    }

    /// The registrations of a namespace (`None`: of all) whose service's name begins with `prefix`, sorted by namespace and
    /// name.
    pub fn services<'a>(&'a self, namespace: Option<&str>, prefix: &str) -> Records<'a, ServiceRegistration> {
        let from = namespace.map_or_else(Vec::new, |namespace| table::key(&[namespace, prefix]));
        let prefix = prefix.to_owned();
        Records::new(self.source(), table::SERVICES_BY_NAME, from, move |_, id| {
            let found: Option<ServiceRegistration> = self.get(Table::Services.name(), id)?;
            Ok(found.filter(|found| found.service_name.starts_with(&prefix)))
        })
    }

    /// The registrations of one service.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn service_named(&self, namespace: &str, name: &str) -> Result<Vec<ServiceRegistration>, StateError> {
        self.linked(table::SERVICES_BY_NAME, table::below(&[namespace, name]), Table::Services.name()).all()
    }

    /// A setting of the operator, such as the scheduler's configuration, as JSON.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn setting(&self, name: &str) -> Result<Option<serde_json::Value>, StateError> {
        self.get(Table::Settings.name(), name.as_bytes())
    }
}

/// The job that a key of the table of jobs names.
pub(super) fn job_key(key: &[u8]) -> JobKey {
    let at = key.iter().position(|byte| *byte == 0).unwrap_or(key.len());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    JobKey { namespace: text(&key[..at]), id: text(key.get(at + 1..).unwrap_or_default()) }
}
