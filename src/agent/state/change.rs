//! Changes: the writes of one change, with its index.

use std::ops::Deref;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use tokio::time::Instant;

use super::error::StateError;
use super::table::{self, Table};
use super::view::View;
use crate::agent::model::{
    Allocation, ClientStatus, Deployment, Evaluation, JobKey, JobStatus, Namespace, Nanos, Node, ServiceRegistration,
};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::json;
use crate::store::{Draft, TableName};

/// Until when the locks of variables hold, by the keys of these.
pub(super) type Locks = Mutex<BTreeMap<Vec<u8>, Instant>>;

/// A change in progress: it reads as a [`View`] does, including its own writes. Its writes are committed as a whole or, when it
/// ends with an error, not at all.
#[derive(Debug)]
pub struct Change<'a> {
    view: View,
    draft: &'a Draft,
    pub(super) locks: &'a Locks,
    index: u64,
    /// The written records in order, with their content before.
    before: Vec<Before>,
    seen: BTreeSet<(Table, Vec<u8>)>,
    /// Tables that were written.
    pub(super) touched: BTreeSet<Table>,
    /// Jobs whose status has to be computed again.
    pub(super) affected: BTreeSet<JobKey>,
    /// Updates to the counters of summaries, by job.
    pub(super) counts: BTreeMap<JobKey, Vec<Count>>,
}

/// A record before this change.
#[derive(Debug)]
pub(super) struct Before {
    pub(super) table: Table,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

/// A change of an allocation or an evaluation, for its job's summary.
#[derive(Debug)]
pub(super) enum Count {
    /// Its client status before and after.
    Alloc {
        /// Create index of its job.
        create_index: u64,
        group: String,
        was: Option<ClientStatus>,
        is: ClientStatus,
    },
    /// By group, how many wait.
    Queued(BTreeMap<String, u32>),
}

impl Deref for Change<'_> {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl<'a> Change<'a> {
    pub(super) fn new(
        draft: &'a Arc<Draft>,
        keys: &Arc<super::secret::Keys>,
        locks: &'a Locks,
    ) -> Result<Change<'a>, StateError> {
        let view = View::of_draft(Arc::clone(draft), Arc::clone(keys));
        let index = view.index()? + 1;
        Ok(Change {
            view,
            draft,
            locks,
            index,
            before: Vec::new(),
            seen: BTreeSet::new(),
            touched: BTreeSet::new(),
            affected: BTreeSet::new(),
            counts: BTreeMap::new(),
        })
    }

    /// The index that this change gets when it is committed.
    #[must_use]
    pub fn next_index(&self) -> u64 {
        self.index
    }

    /// The same as a view, for who asks for one.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    pub(super) fn before(&self) -> &[Before] {
        &self.before
    }

    /// Writes a record of a table that has an index.
    pub(super) fn put<T: Serialize>(&mut self, table: Table, key: &[u8], value: &T) -> Result<(), StateError> {
        let bytes = encode(value)?;
        self.put_bytes(table, key, bytes)
    }

    pub(super) fn put_bytes(&mut self, table: Table, key: &[u8], bytes: Vec<u8>) -> Result<(), StateError> {
        self.remember(table, key)?;
        self.draft.put(table.name(), key, bytes);
        Ok(())
    }

    /// Removes a record of a table that has an index.
    pub(super) fn take(&mut self, table: Table, key: &[u8]) -> Result<(), StateError> {
        self.remember(table, key)?;
        self.draft.remove(table.name(), key);
        Ok(())
    }

    fn remember(&mut self, table: Table, key: &[u8]) -> Result<(), StateError> {
        self.touched.insert(table);
        if self.seen.insert((table, key.to_vec())) {
            let value = self.view.source().get(table.name(), key)?;
            self.before.push(Before { table, key: key.to_vec(), value });
        }
        Ok(())
    }

    /// Writes a record of a table without an index.
    pub(super) fn link(&self, table: TableName, key: &[u8], value: Vec<u8>) {
        self.draft.put(table, key, value);
    }

    /// Removes one.
    pub(super) fn unlink(&self, table: TableName, key: &[u8]) {
        self.draft.remove(table, key);
    }

    /// Stores an evaluation, new or changed.
    ///
    /// # Errors
    /// [`StateError`], here and below: [`StateError::Invalid`] for what cannot be kept, or the database.
    pub fn put_eval(&mut self, mut eval: Evaluation) -> Result<(), StateError> {
        valid("an evaluation's id", &eval.id)?;
        let old = self.eval(&eval.id)?;
        let same = old.as_ref().map(|old| (old.create_index, old.modify_index));
        (eval.create_index, eval.modify_index) = same.unwrap_or((self.index, self.index));
        if old.as_ref() == Some(&eval) {
            return Ok(());
        }
        eval.modify_index = self.index;
        let owner = JobKey { namespace: eval.namespace.clone(), id: eval.job_id.clone() };
        let key = table::key(&[&eval.namespace, &eval.job_id, &eval.id]);
        if old.is_none() {
            self.link(table::EVALS_BY_JOB, &key, eval.id.clone().into_bytes());
        }
        if eval.status.is_terminal() {
            self.unlink(table::EVALS_OPEN, &key);
        } else {
            self.link(table::EVALS_OPEN, &key, eval.id.clone().into_bytes());
        }
        if !eval.queued_allocations.is_empty() {
            let counts = self.counts.entry(owner.clone()).or_default();
            counts.push(Count::Queued(eval.queued_allocations.clone()));
        }
        self.affected.insert(owner);
        self.put(Table::Evals, eval.id.as_bytes(), &eval)
    }

    /// Forgets an evaluation.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_eval(&mut self, id: &str) -> Result<(), StateError> {
        let Some(eval) = self.eval(id)? else { return Ok(()) };
        let key = table::key(&[&eval.namespace, &eval.job_id, id]);
        self.unlink(table::EVALS_BY_JOB, &key);
        self.unlink(table::EVALS_OPEN, &key);
        self.affected.insert(JobKey { namespace: eval.namespace, id: eval.job_id });
        self.take(Table::Evals, id.as_bytes())
    }

    /// Stores an allocation, new or changed. A new one belongs to the job that has its id now, unless it names another.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_alloc(&mut self, mut alloc: Allocation) -> Result<(), StateError> {
        valid("an allocation's id", &alloc.id)?;
        let owner = JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() };
        let old = self.alloc(&alloc.id)?;
        if alloc.job_create_index == 0 {
            let of_job = self.job(&owner)?.map_or(0, |job| job.create_index);
            alloc.job_create_index = old.as_ref().map_or(of_job, |old| old.job_create_index);
        }
        if let Some(old) = &old {
            alloc.create_index = old.create_index;
            alloc.modify_index = old.modify_index;
            alloc.alloc_modify_index = old.alloc_modify_index;
            if *old == alloc {
                return Ok(());
            }
        } else {
            alloc.create_index = self.index;
        }
        if old.as_ref().is_none_or(|old| is_wanted_otherwise(old, &alloc)) {
            alloc.alloc_modify_index = self.index;
        }
        if let Some(health) = &mut alloc.deployment_status
            && old.as_ref().and_then(|old| old.deployment_status.as_ref()) != Some(health)
        {
            health.modify_index = self.index;
        }
        alloc.modify_index = self.index;
        if let Some(old) = &old {
            self.unlink_alloc(old);
        }
        let id = alloc.id.clone().into_bytes();
        self.link(table::ALLOCS_BY_JOB, &table::alloc_of_version(&alloc), id.clone());
        self.link(table::ALLOCS_BY_EVAL, &table::key(&[&alloc.eval_id, &alloc.id]), id.clone());
        if !alloc.deployment_id.is_empty() {
            self.link(table::ALLOCS_BY_DEPLOYMENT, &table::key(&[&alloc.deployment_id, &alloc.id]), id.clone());
        }
        if !alloc.client_status.is_terminal() {
            self.link(table::ALLOCS_LIVE, &table::key(&[&alloc.namespace, &alloc.job_id, &alloc.id]), id);
        }
        let was = old.as_ref().map(|old| old.client_status);
        if was != Some(alloc.client_status) {
            let (create_index, group) = (alloc.job_create_index, alloc.task_group.clone());
            let count = Count::Alloc { create_index, group, was, is: alloc.client_status };
            self.counts.entry(owner.clone()).or_default().push(count);
        }
        self.affected.insert(owner);
        self.put(Table::Allocs, alloc.id.as_bytes(), &alloc)?;
        // An allocation that changed its version may have been the last one of the old version.
        old.map_or(Ok(()), |old| self.release_version(&old))
    }

    fn unlink_alloc(&self, alloc: &Allocation) {
        self.unlink(table::ALLOCS_BY_JOB, &table::alloc_of_version(alloc));
        self.unlink(table::ALLOCS_BY_EVAL, &table::key(&[&alloc.eval_id, &alloc.id]));
        self.unlink(table::ALLOCS_BY_DEPLOYMENT, &table::key(&[&alloc.deployment_id, &alloc.id]));
        self.unlink(table::ALLOCS_LIVE, &table::key(&[&alloc.namespace, &alloc.job_id, &alloc.id]));
    }

    /// Forgets an allocation, and the version of its job if no other allocation has it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_alloc(&mut self, id: &str) -> Result<(), StateError> {
        let Some(alloc) = self.alloc(id)? else { return Ok(()) };
        self.unlink_alloc(&alloc);
        self.take(Table::Allocs, id.as_bytes())?;
        self.affected.insert(JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() });
        self.release_version(&alloc)
    }

    /// Stores a deployment, new or changed.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_deployment(&mut self, mut deployment: Deployment) -> Result<(), StateError> {
        valid("a deployment's id", &deployment.id)?;
        let old = self.deployment(&deployment.id)?;
        let same = old.as_ref().map(|old| (old.create_index, old.modify_index));
        (deployment.create_index, deployment.modify_index) = same.unwrap_or((self.index, self.index));
        if old.as_ref() == Some(&deployment) {
            return Ok(());
        }
        deployment.modify_index = self.index;
        if old.is_none() {
            let key = table::key(&[&deployment.namespace, &deployment.job_id, &deployment.id]);
            self.link(table::DEPLOYMENTS_BY_JOB, &key, deployment.id.clone().into_bytes());
        }
        self.put(Table::Deployments, deployment.id.as_bytes(), &deployment)
    }

    /// Forgets a deployment.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_deployment(&mut self, id: &str) -> Result<(), StateError> {
        let Some(deployment) = self.deployment(id)? else { return Ok(()) };
        self.unlink(table::DEPLOYMENTS_BY_JOB, &table::key(&[&deployment.namespace, &deployment.job_id, id]));
        self.take(Table::Deployments, id.as_bytes())
    }

    /// Stores the node. There is only one.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_node(&mut self, mut node: Node) -> Result<(), StateError> {
        valid("the node's id", &node.id)?;
        let old = self.node()?;
        if let Some(other) = old.as_ref().filter(|old| old.id != node.id) {
            self.take(Table::Nodes, other.id.as_bytes())?;
        }
        let old = old.filter(|old| old.id == node.id);
        let same = old.as_ref().map(|old| (old.create_index, old.modify_index));
        (node.create_index, node.modify_index) = same.unwrap_or((self.index, self.index));
        let index = self.index;
        for event in node.events.iter_mut().filter(|event| event.create_index == 0) {
            event.create_index = index;
        }
        if old.as_ref() == Some(&node) {
            return Ok(());
        }
        node.modify_index = index;
        self.put(Table::Nodes, node.id.as_bytes(), &node)
    }

    /// Stores a namespace.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_namespace(&mut self, mut namespace: Namespace) -> Result<(), StateError> {
        let good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if namespace.name.is_empty() || namespace.name.len() > 128 || !namespace.name.chars().all(good) {
            let name = &namespace.name;
            return Err(StateError::Invalid(format!(
                "invalid name {name:?}: a namespace has at most 128 letters, digits and dashes"
            )));
        }
        let old = self.namespace(&namespace.name)?;
        let same = old.as_ref().map(|old| (old.create_index, old.modify_index));
        (namespace.create_index, namespace.modify_index) = same.unwrap_or((self.index, self.index));
        if old.as_ref() == Some(&namespace) {
            return Ok(());
        }
        namespace.modify_index = self.index;
        self.put(Table::Namespaces, namespace.name.as_bytes(), &namespace)
    }

    /// Forgets a namespace without running jobs, variables and volumes.
    ///
    /// # Errors
    /// [`StateError::Conflict`] for one in use, and for `default`; [`StateError::NotFound`].
    pub fn delete_namespace(&mut self, name: &str) -> Result<(), StateError> {
        if name == "default" {
            return Err(StateError::Conflict("the namespace \"default\" cannot be deleted".to_owned()));
        }
        if self.namespace(name)?.is_none() {
            return Err(StateError::NotFound { kind: "namespace", id: name.to_owned() });
        }
        for job in self.jobs(Some(name), "") {
            let job = job?;
            if job.status != JobStatus::Dead {
                let id = job.key.id;
                return Err(StateError::Conflict(format!(
                    "the namespace {name:?} has the job {id:?}, which is not dead"
                )));
            }
        }
        if let Some(variable) = self.variables(Some(name), "").next() {
            let path = variable?.path;
            return Err(StateError::Conflict(format!("the namespace {name:?} has the variable {path:?}")));
        }
        for volume in self.volumes() {
            let volume = volume?;
            if volume.namespace == name {
                let volume = volume.name;
                return Err(StateError::Conflict(format!("the namespace {name:?} has the volume {volume:?}")));
            }
        }
        self.take(Table::Namespaces, name.as_bytes())
    }

    /// Stores a registration of a service.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_service(&mut self, mut service: ServiceRegistration) -> Result<(), StateError> {
        valid("a registration's id", &service.id)?;
        valid("a service's name", &service.service_name)?;
        let old = self.service(&service.id)?;
        let same = old.as_ref().map(|old| (old.create_index, old.modify_index));
        (service.create_index, service.modify_index) = same.unwrap_or((self.index, self.index));
        if old.as_ref() == Some(&service) {
            return Ok(());
        }
        service.modify_index = self.index;
        if let Some(old) = old {
            self.unlink(table::SERVICES_BY_NAME, &table::key(&[&old.namespace, &old.service_name, &old.id]));
        }
        let key = table::key(&[&service.namespace, &service.service_name, &service.id]);
        self.link(table::SERVICES_BY_NAME, &key, service.id.clone().into_bytes());
        self.put(Table::Services, service.id.as_bytes(), &service)
    }

    /// Forgets a registration of a service; returns whether it existed.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn delete_service(&mut self, id: &str) -> Result<bool, StateError> {
        let Some(old) = self.service(id)? else { return Ok(false) };
        self.unlink(table::SERVICES_BY_NAME, &table::key(&[&old.namespace, &old.service_name, id]));
        self.take(Table::Services, id.as_bytes())?;
        Ok(true)
    }

    /// Records the last launch of a periodic job, before the launch.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_launch(&mut self, key: &JobKey, at: Nanos) -> Result<(), StateError> {
        self.put(Table::Launches, &table::job(key), &at)
    }

    /// Stores an operator's setting.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn put_setting(&mut self, name: &str, value: &serde_json::Value) -> Result<(), StateError> {
        valid("a setting's name", name)?;
        self.put(Table::Settings, name.as_bytes(), value)
    }
}

/// The bytes that are written to the database.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, StateError> {
    json::to_vec(value).map_err(|error| StateError::Invalid(format!("it cannot be written as JSON: {error}")))
}

/// Checks that a text can be a part of a key.
pub(super) fn valid(what: &str, text: &str) -> Result<(), StateError> {
    if text.is_empty() || text.contains('\0') || text.len() > 1024 {
        return Err(StateError::Invalid(format!("{what} is 1 to 1024 bytes without NUL, not {text:?}")));
    }
    Ok(())
}

/// Whether the change concerns more than the fields that the client reports.
fn is_wanted_otherwise(old: &Allocation, new: &Allocation) -> bool {
    let mut as_told = new.clone();
    as_told.client_status = old.client_status;
    as_told.client_description.clone_from(&old.client_description);
    as_told.task_states.clone_from(&old.task_states);
    as_told.network_status.clone_from(&old.network_status);
    as_told.deployment_status.clone_from(&old.deployment_status);
    as_told.modify_time = old.modify_time;
    as_told != *old
}
