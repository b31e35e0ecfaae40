//! Recovery without the database: jobs and allocations are recreated from what lies beside the records of the allocations.

use serde_json::Value;

use super::change::{Change, encode};
use super::error::StateError;
use super::table::{self, Table};
use crate::agent::model::{
    Allocation, ClientStatus, DesiredStatus, DesiredTransition, EvalStatus, Evaluation, JobKey, JobStatus, JobVersion,
    Namespace, Nanos, Trigger,
};
use crate::spec::JobType;
use crate::spec::collections::BTreeMap;
use crate::sys::random;

/// An allocation that was found without a state that knows it.
#[derive(Debug, Clone)]
pub struct Adoptable {
    /// It as it was when the engine last got it.
    pub alloc: Allocation,
    /// Its version of the job.
    pub job: JobVersion,
    /// Whether its tasks were stopped.
    pub is_stopped: bool,
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
    /// Allocations of another job than the one that has the name now, in the state or in newer records: nothing decides about
    /// them.
    pub left: Vec<String>,
}

impl Change<'_> {
    /// Recreates the jobs and allocations of these records, in their versions, on the node with this id and name. Existing ones are not changed, and nothing is
    /// stopped: a job all of whose allocations were stopped is a stopped one, and a stopped allocation is wanted no more. How an
    /// allocation is, the engine reports when it gets it.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn adopt_records(
        &mut self,
        found: Vec<Adoptable>,
        (node_id, node_name): (&str, &str),
        now: Nanos,
    ) -> Result<Adoption, StateError> {
        let mut adoption = Adoption::default();
        let mut by_job: BTreeMap<JobKey, Vec<Adoptable>> = BTreeMap::new();
        let mut replaced: BTreeMap<String, String> = BTreeMap::new();
        for record in found {
            if self.alloc(&record.alloc.id)?.is_some() {
                adoption.known.push(record.alloc.id);
                continue;
            }
            if !record.alloc.previous_allocation.is_empty() {
                replaced.insert(record.alloc.previous_allocation.clone(), record.alloc.id.clone());
            }
            by_job.entry(record.job.key.clone()).or_default().push(record);
        }
        for (key, mut records) in by_job {
            let newest = match self.job(&key)? {
                Some(_) => None,
                None => records.iter().map(|record| record.job.create_index).max(),
            };
            records.retain(|record| {
                let is_of_it = Some(record.job.create_index) == newest;
                if !is_of_it {
                    adoption.left.push(record.alloc.id.clone());
                }
                is_of_it
            });
            if records.is_empty() {
                continue;
            }
            self.adopt_versions(&key, &records)?;
            adoption.jobs.push(key.clone());
            let Some(job) = self.job(&key)? else { continue };
            let eval = decided(&job, now);
            for Adoptable { alloc, is_stopped, .. } in records {
                adoption.allocs.push(alloc.id.clone());
                self.put_alloc(Allocation {
                    eval_id: eval.id.clone(),
                    node_id: node_id.to_owned(),
                    node_name: node_name.to_owned(),
                    job_create_index: job.create_index,
                    desired_status: if is_stopped { DesiredStatus::Stop } else { DesiredStatus::Run },
                    desired_transition: DesiredTransition::default(),
                    client_status: ClientStatus::Pending,
                    client_description: String::new(),
                    task_states: BTreeMap::new(),
                    // Deployments are not recreated.
                    deployment_id: String::new(),
                    deployment_status: None,
                    followup_eval_id: String::new(),
                    // Otherwise it would be replaced again.
                    next_allocation: replaced.remove(&alloc.id).unwrap_or_default(),
                    network_status: None,
                    modify_time: now,
                    ..alloc
                })?;
            }
            self.put_eval(eval)?;
        }
        Ok(adoption)
    }

    /// Stores a job that is not there yet, in the versions that the records have.
    fn adopt_versions(&mut self, key: &JobKey, records: &[Adoptable]) -> Result<(), StateError> {
        if self.namespace(&key.namespace)?.is_none() {
            self.put_namespace(Namespace { name: key.namespace.clone(), ..Namespace::default() })?;
        }
        let versions: BTreeMap<u64, &JobVersion> =
            records.iter().map(|record| (record.job.version, &record.job)).collect();
        let newest = versions.last_key_value().map(|(version, _)| *version);
        let stop = records.iter().all(|record| record.is_stopped);
        let index = self.next_index();
        for (version, found) in versions {
            let is_newest = Some(version) == newest;
            let job = JobVersion {
                stop: stop && is_newest,
                status: JobStatus::Pending,
                status_description: String::new(),
                create_index: index,
                modify_index: index,
                job_modify_index: index,
                ..found.clone()
            };
            if is_newest {
                self.put_known_job(&job)?;
            } else {
                self.link(table::VERSIONS, &table::version(key, index, version), encode(&job)?);
            }
        }
        Ok(())
    }

    /// Stores a job with its version number and tag unchanged.
    fn put_known_job(&mut self, job: &JobVersion) -> Result<(), StateError> {
        let stored = self.put_job(job.clone(), None)?;
        let next = JobVersion { version: job.version, version_tag: job.version_tag.clone(), ..stored };
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
