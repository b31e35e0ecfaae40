//! The tables, their keys, and the schema's number.

use crate::agent::model::{Allocation, JobKey, VolumeClaim};
use crate::store::{Schema, TableName};

/// The number of what is written here. A record that older programs cannot read is a new number and a step from the one before
/// in [`SCHEMA`]; a field with a default is none.
const VERSION: u32 = 3;

/// What has an index of its own: who waits for one of them is not woken by the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Table {
    Jobs,
    Summaries,
    Evals,
    Allocs,
    Deployments,
    Nodes,
    Services,
    Variables,
    Namespaces,
    Tokens,
    Launches,
    Scaling,
    Settings,
    Volumes,
    Claims,
    CsiVolumes,
}

impl Table {
    /// All of them.
    pub const ALL: [Table; 16] = [
        Table::Jobs,
        Table::Summaries,
        Table::Evals,
        Table::Allocs,
        Table::Deployments,
        Table::Nodes,
        Table::Services,
        Table::Variables,
        Table::Namespaces,
        Table::Tokens,
        Table::Launches,
        Table::Scaling,
        Table::Settings,
        Table::Volumes,
        Table::Claims,
        Table::CsiVolumes,
    ];

    /// The table of its records.
    #[must_use]
    pub const fn name(self) -> TableName {
        match self {
            Table::Jobs => "jobs",
            Table::Summaries => "job_summaries",
            Table::Evals => "evals",
            Table::Allocs => "allocs",
            Table::Deployments => "deployments",
            Table::Nodes => "nodes",
            Table::Services => "services",
            Table::Variables => "variables",
            Table::Namespaces => "namespaces",
            Table::Tokens => "tokens",
            Table::Launches => "launches",
            Table::Scaling => "scaling_events",
            Table::Settings => "settings",
            Table::Volumes => "host_volumes",
            Table::Claims => "host_volume_claims",
            Table::CsiVolumes => "csi_volumes",
        }
    }
}

/// Older versions of jobs: namespace, id, index at which the job came to be, version.
pub(super) const VERSIONS: TableName = "job_versions";
/// What versions were made from, by the same key.
pub(super) const SUBMISSIONS: TableName = "job_submissions";
/// Children of periodic and parameterized jobs: namespace, parent, child.
pub(super) const CHILDREN: TableName = "jobs_by_parent";
/// Allocations by the version of their job: the key of the version, then the allocation's id.
pub(super) const ALLOCS_BY_JOB: TableName = "allocs_by_job";
/// Evaluation, allocation.
pub(super) const ALLOCS_BY_EVAL: TableName = "allocs_by_eval";
/// Deployment, allocation.
pub(super) const ALLOCS_BY_DEPLOYMENT: TableName = "allocs_by_deployment";
/// Namespace, job, evaluation.
pub(super) const EVALS_BY_JOB: TableName = "evals_by_job";
/// Namespace, job, deployment.
pub(super) const DEPLOYMENTS_BY_JOB: TableName = "deployments_by_job";
/// Namespace, job, allocation that may still run.
pub(super) const ALLOCS_LIVE: TableName = "allocs_live";
/// Namespace, job, evaluation that is not decided.
pub(super) const EVALS_OPEN: TableName = "evals_open";
/// Namespace, service, registration.
pub(super) const SERVICES_BY_NAME: TableName = "services_by_name";
/// The keyed hash of a token's secret, to its accessor.
pub(super) const TOKENS_BY_SECRET: TableName = "tokens_by_secret";
/// The index of each table by its name, and the last of all.
pub(super) const INDEXES: TableName = "indexes";
/// The key of the last index of all in [`INDEXES`].
pub(super) const LAST: &[u8] = b"";

/// Tables without an index of their own.
pub(super) const OTHERS: [TableName; 13] = [
    VERSIONS,
    SUBMISSIONS,
    CHILDREN,
    ALLOCS_BY_JOB,
    ALLOCS_BY_EVAL,
    ALLOCS_BY_DEPLOYMENT,
    EVALS_BY_JOB,
    DEPLOYMENTS_BY_JOB,
    ALLOCS_LIVE,
    EVALS_OPEN,
    SERVICES_BY_NAME,
    TOKENS_BY_SECRET,
    INDEXES,
];

/// All tables.
pub(super) const TABLES: [TableName; 29] = {
    let mut all = [""; 29];
    let mut at = 0;
    while at < Table::ALL.len() {
        all[at] = Table::ALL[at].name();
        at += 1;
    }
    let mut other = 0;
    while other < OTHERS.len() {
        all[at + other] = OTHERS[other];
        other += 1;
    }
    all
};

/// What the database holds. Version 2 has the tables of host volumes and their claims, version 3 that of CSI volumes; an upgrade
/// creates them.
pub(super) const SCHEMA: Schema =
    Schema { version: VERSION, tables: &TABLES, upgrades: &[(1, |_| Ok(())), (2, |_| Ok(()))] };

/// The key of texts: each with a NUL behind it but the last, so that they sort one after the other and `a/b` is not below `a`.
pub(super) fn key(parts: &[&str]) -> Vec<u8> {
    parts.join("\0").into_bytes()
}

/// What the keys begin with that have these texts before another one.
pub(super) fn below(parts: &[&str]) -> Vec<u8> {
    let mut key = key(parts);
    key.push(0);
    key
}

/// A job's key.
pub(super) fn job(key_of: &JobKey) -> Vec<u8> {
    key(&[&key_of.namespace, &key_of.id])
}

/// What the keys of a job's versions begin with, of all jobs that ever had this id.
pub(super) fn of_job(key_of: &JobKey) -> Vec<u8> {
    below(&[&key_of.namespace, &key_of.id])
}

/// What the keys of the versions of one job begin with.
pub(super) fn of_incarnation(key_of: &JobKey, create_index: u64) -> Vec<u8> {
    let mut key = of_job(key_of);
    key.extend(create_index.to_be_bytes());
    key
}

/// A version's key.
pub(super) fn version(key_of: &JobKey, create_index: u64, version: u64) -> Vec<u8> {
    let mut key = of_incarnation(key_of, create_index);
    key.extend(version.to_be_bytes());
    key
}

/// An allocation's key in [`ALLOCS_BY_JOB`].
pub(super) fn alloc_of_version(alloc: &Allocation) -> Vec<u8> {
    let owner = JobKey { namespace: alloc.namespace.clone(), id: alloc.job_id.clone() };
    let mut key = version(&owner, alloc.job_create_index, alloc.job_version);
    key.extend(alloc.id.as_bytes());
    key
}

/// The key of a claim: one per volume of a group.
pub(super) fn claim(of: &VolumeClaim) -> Vec<u8> {
    key(&[&of.namespace, &of.job_id, &of.task_group_name, &of.volume_id])
}

/// A key for people.
pub(super) fn readable(key: &[u8]) -> String {
    String::from_utf8_lossy(key).replace('\0', " ")
}
