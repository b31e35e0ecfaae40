//! Recovery without the database: jobs and allocations are recreated from the records of the allocations.

use serde_json::{Map, Value};

use super::change::{Change, encode};
use super::error::StateError;
use super::table::{self, Table};
use crate::agent::model::{
    AllocMetric, AllocatedResources, Allocation, ClientStatus, DesiredStatus, DesiredTransition, EvalStatus,
    Evaluation, JobKey, JobStatus, JobVersion, Nanos, NetworkStatus, TaskState, Trigger,
};
use crate::spec::JobType;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::sys::random;

/// An allocation that was found, from its record.
#[derive(Debug, Clone)]
pub struct Adoptable {
    /// Its id.
    pub id: String,
    /// Its job.
    pub job: JobKey,
    /// The version of its job.
    pub job_version: u64,
    /// That version's specification in API form; empty if it is not known.
    pub spec: Map<String, Value>,
    /// Its group.
    pub group: String,
    /// Its number among the group's.
    pub index: u32,
    /// The node's id.
    pub node_id: String,
    /// The node's name.
    pub node_name: String,
    /// What it has.
    pub resources: AllocatedResources,
    /// What it does.
    pub client_status: ClientStatus,
    /// By task.
    pub task_states: BTreeMap<String, TaskState>,
    /// Its network.
    pub network_status: Option<NetworkStatus>,
    /// When it came to be.
    pub create_time: Nanos,
}

/// The result of an adoption.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Adoption {
    /// Jobs that were recreated.
    pub jobs: Vec<JobKey>,
    /// Allocations that were recreated.
    pub allocs: Vec<String>,
    /// Allocations that the state contained already.
    pub known: Vec<String>,
    /// Allocations that continue without a job, and so without decisions about them, because their job is not known.
    pub without_job: Vec<String>,
}

impl Change<'_> {
    /// Recreates the jobs and allocations of these records, in their versions. Existing ones are not changed, and nothing is
    /// stopped.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn adopt_records(&mut self, found: Vec<Adoptable>, now: Nanos) -> Result<Adoption, StateError> {
        let mut adoption = Adoption::default();
        let mut by_job: BTreeMap<JobKey, Vec<Adoptable>> = BTreeMap::new();
        for record in found {
            if self.alloc(&record.id)?.is_some() {
                adoption.known.push(record.id);
            } else {
                by_job.entry(record.job.clone()).or_default().push(record);
            }
        }
        for (key, records) in by_job {
            let versions = self.adopt_versions(&key, &records, now, &mut adoption)?;
            let (with, without): (Vec<_>, Vec<_>) =
                records.into_iter().partition(|record| versions.contains(&record.job_version));
            adoption.without_job.extend(without.into_iter().map(|record| record.id));
            if with.is_empty() {
                continue;
            }
            let Some(job) = self.job(&key)? else { continue };
            let eval = decided(&job, now);
            for record in with {
                adoption.allocs.push(record.id.clone());
                self.put_alloc(adopted(record, &job, &eval.id, now))?;
            }
            self.put_eval(eval)?;
        }
        Ok(adoption)
    }

    /// Stores the versions of a job in the records. Returns all versions that exist afterwards.
    fn adopt_versions(
        &mut self,
        key: &JobKey,
        records: &[Adoptable],
        now: Nanos,
        adoption: &mut Adoption,
    ) -> Result<BTreeSet<u64>, StateError> {
        if self.namespace(&key.namespace)?.is_none() {
            self.put_namespace(crate::agent::model::Namespace { name: key.namespace.clone(), ..Default::default() })?;
        }
        let known = self.job(key)?;
        let create_index = known.as_ref().map_or(self.next_index(), |job| job.create_index);
        let mut specs: BTreeMap<u64, &Adoptable> = BTreeMap::new();
        for record in records.iter().filter(|record| !record.spec.is_empty()) {
            specs.entry(record.job_version).or_insert(record);
        }
        let mut versions: BTreeSet<u64> = specs.keys().copied().collect();
        let newest = known.as_ref().map(|job| job.version).max(versions.last().copied());
        for (version, record) in specs {
            if self.version(key, version)?.is_some() {
                continue;
            }
            let text = |name: &str| record.spec.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
            let job = JobVersion {
                key: key.clone(),
                version,
                spec: record.spec.clone(),
                stop: false,
                stable: false,
                status: JobStatus::Pending,
                status_description: String::new(),
                parent_id: text("ParentID"),
                dispatched: record.spec.get("Dispatched").and_then(Value::as_bool).unwrap_or_default(),
                payload: text("Payload"),
                dispatch_idempotency_token: text("DispatchIdempotencyToken"),
                submit_time: now,
                version_tag: None,
                create_index,
                modify_index: self.next_index(),
                job_modify_index: self.next_index(),
            };
            if Some(version) == newest {
                self.put_known_job(&job)?;
                adoption.jobs.push(key.clone());
            } else {
                self.link(table::VERSIONS, &table::version(key, create_index, version), encode(&job)?);
            }
        }
        versions.extend(known.map(|job| job.version));
        Ok(versions)
    }

    /// Stores a job with its version number unchanged.
    fn put_known_job(&mut self, job: &JobVersion) -> Result<(), StateError> {
        let next = JobVersion { version: job.version, ..self.put_job(job.clone(), None)? };
        self.put(Table::Jobs, &table::job(&job.key), &next)
    }
}

/// An evaluation that marks the job as decided.
fn decided(job: &JobVersion, now: Nanos) -> Evaluation {
    let kind = job.spec.get("Type").and_then(Value::as_str).unwrap_or("service");
    let all = [JobType::Service, JobType::Batch, JobType::System, JobType::Sysbatch];
    Evaluation {
        id: random::uuid().to_string(),
        namespace: job.key.namespace.clone(),
        priority: job.spec.get("Priority").and_then(Value::as_i64).unwrap_or(50),
        kind: all.into_iter().find(|known| known.as_str() == kind).unwrap_or(JobType::Service),
        triggered_by: Trigger::JobRegister,
        job_id: job.key.id.clone(),
        job_modify_index: job.job_modify_index,
        node_id: String::new(),
        deployment_id: String::new(),
        status: EvalStatus::Complete,
        status_description: "made again from the records of its allocations".to_owned(),
        wait: Nanos(0),
        wait_until_nanos: Nanos(0),
        next_eval: String::new(),
        previous_eval: String::new(),
        blocked_eval: String::new(),
        failed: BTreeMap::new(),
        plan_annotations: BTreeMap::new(),
        queued_allocations: BTreeMap::new(),
        snapshot_index: 0,
        create_index: 0,
        modify_index: 0,
        create_time: now,
        modify_time: now,
    }
}

fn adopted(record: Adoptable, job: &JobVersion, eval: &str, now: Nanos) -> Allocation {
    Allocation {
        name: format!("{}.{}[{}]", job.key.id, record.group, record.index),
        id: record.id,
        namespace: job.key.namespace.clone(),
        eval_id: eval.to_owned(),
        node_id: record.node_id,
        node_name: record.node_name,
        job_id: job.key.id.clone(),
        job_version: record.job_version,
        job_create_index: job.create_index,
        task_group: record.group,
        allocated_resources: record.resources,
        metrics: AllocMetric::default(),
        desired_status: DesiredStatus::Run,
        desired_description: String::new(),
        desired_transition: DesiredTransition::default(),
        client_status: record.client_status,
        client_description: String::new(),
        task_states: record.task_states,
        deployment_id: String::new(),
        deployment_status: None,
        followup_eval_id: String::new(),
        previous_allocation: String::new(),
        next_allocation: String::new(),
        reschedule_tracker: None,
        network_status: record.network_status,
        create_index: 0,
        modify_index: 0,
        alloc_modify_index: 0,
        create_time: record.create_time,
        modify_time: now,
    }
}
