//! What a job says of how its allocations are placed, replaced, updated and repeated. The defaults are Nomad's.

use std::time::Duration;

use super::Pos;
use crate::spec::collections::{BTreeMap, BTreeSet};

/// What kind of work a job is; decides restart defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's job types")]
pub enum JobType {
    Service,
    Batch,
    System,
    Sysbatch,
}

impl JobType {
    /// `batch` and `sysbatch` run to an end; a service is restarted when it succeeds, too.
    #[must_use]
    pub const fn runs_to_completion(self) -> bool {
        matches!(self, JobType::Batch | JobType::Sysbatch)
    }

    /// Nomad's word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            JobType::Service => "service",
            JobType::Batch => "batch",
            JobType::System => "system",
            JobType::Sysbatch => "sysbatch",
        }
    }
}

/// What a job says to whoever schedules it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct JobScheduling {
    /// Patterns of data centers; `["*"]` unless given.
    pub datacenters: Vec<String>,
    /// `default` unless given; empty is the namespace's.
    pub node_pool: String,
    /// All of its allocations are placed, or none.
    pub all_at_once: bool,
    /// It is started by a clock.
    pub periodic: Option<Periodic>,
    /// It is started by `job dispatch`.
    pub parameterized: Option<Parameterized>,
}

impl Default for JobScheduling {
    fn default() -> JobScheduling {
        JobScheduling {
            datacenters: vec!["*".to_owned()],
            node_pool: "default".to_owned(),
            all_at_once: false,
            periodic: None,
            parameterized: None,
        }
    }
}

/// What a group says to whoever schedules its job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct GroupScheduling {
    /// How a new version replaces an old one; `None` where all are replaced at once (batch jobs, or `max_parallel = 0`).
    pub update: Option<Update>,
    /// What becomes of an allocation that failed; `None` for jobs of the system kinds.
    pub reschedule: Option<Reschedule>,
    /// The allocation's own disk.
    pub disk: EphemeralDisk,
    /// The longest time that an allocation may run; `None` is not a limit.
    pub max_run_duration: Option<Duration>,
}

impl GroupScheduling {
    /// Nomad's defaults for a job of this kind.
    #[must_use]
    pub fn of(kind: JobType) -> GroupScheduling {
        GroupScheduling {
            update: (kind == JobType::Service).then(Update::default),
            reschedule: Reschedule::of(kind),
            disk: EphemeralDisk::default(),
            max_run_duration: None,
        }
    }
}

/// How an allocation of an update is found healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum HealthCheck {
    /// Its tasks run and its checks pass.
    #[default]
    Checks,
    /// Its tasks run.
    TaskStates,
    /// Somebody says so.
    Manual,
}

/// An `update` block.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Update {
    /// Wait between two batches of a job of a system kind.
    pub stagger: Duration,
    /// Allocations that are replaced at the same time; at least 1.
    pub max_parallel: u32,
    /// See [`HealthCheck`].
    pub health_check: HealthCheck,
    /// How long it must be healthy without a break.
    pub min_healthy_time: Duration,
    /// It is unhealthy when it is not healthy after this time.
    pub healthy_deadline: Duration,
    /// The deployment fails when none becomes healthy in this time; zero: when the first one is unhealthy.
    pub progress_deadline: Duration,
    /// A deployment that failed brings the last stable version back.
    pub auto_revert: bool,
    /// Canaries are promoted when all of them are healthy.
    pub auto_promote: bool,
    /// Canaries that are placed before an old allocation is stopped.
    pub canary: u32,
}

impl Default for Update {
    fn default() -> Update {
        Update {
            stagger: Duration::from_secs(30),
            max_parallel: 1,
            health_check: HealthCheck::Checks,
            min_healthy_time: Duration::from_secs(10),
            healthy_deadline: Duration::from_mins(5),
            progress_deadline: Duration::from_mins(10),
            auto_revert: false,
            auto_promote: false,
            canary: 0,
        }
    }
}

/// How the delay between reschedules grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's delay functions")]
pub enum DelayFunction {
    Constant,
    Exponential,
    Fibonacci,
}

/// A `reschedule` block.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reschedule {
    /// Tries in one interval; of no meaning when `unlimited`.
    pub attempts: u32,
    /// The interval of `attempts`.
    pub interval: Duration,
    /// Wait before the first try.
    pub delay: Duration,
    /// How it grows.
    pub delay_function: DelayFunction,
    /// The longest wait; of no meaning for a constant one.
    pub max_delay: Duration,
    /// No limit of tries.
    pub unlimited: bool,
}

impl Reschedule {
    /// Nomad's default for a job of this kind.
    #[must_use]
    pub fn of(kind: JobType) -> Option<Reschedule> {
        match kind {
            JobType::Service => Some(Reschedule {
                attempts: 0,
                interval: Duration::ZERO,
                delay: Duration::from_secs(30),
                delay_function: DelayFunction::Exponential,
                max_delay: Duration::from_hours(1),
                unlimited: true,
            }),
            JobType::Batch => Some(Reschedule {
                attempts: 1,
                interval: Duration::from_hours(24),
                delay: Duration::from_secs(5),
                delay_function: DelayFunction::Constant,
                max_delay: Duration::ZERO,
                unlimited: false,
            }),
            JobType::System | JobType::Sysbatch => None,
        }
    }
}

/// An `ephemeral_disk` block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct EphemeralDisk {
    /// The next allocation of the same name takes the data over.
    pub sticky: bool,
    /// The data goes along to another node.
    pub migrate: bool,
    /// MiB.
    pub size_mib: u64,
}

impl Default for EphemeralDisk {
    fn default() -> EphemeralDisk {
        EphemeralDisk { sticky: false, migrate: false, size_mib: 300 }
    }
}

/// A `periodic` block.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Periodic {
    /// It starts jobs.
    pub enabled: bool,
    /// Cron expressions; at least one.
    pub specs: Vec<String>,
    /// It starts none while one that it started runs.
    pub prohibit_overlap: bool,
    /// Name of a time zone; `UTC` unless given.
    pub time_zone: String,
    /// Where the expressions stand.
    #[serde(default)]
    pub pos: Pos,
    /// Where the name of the time zone stands.
    #[serde(default)]
    pub time_zone_pos: Pos,
}

/// Whether a dispatched job has a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum PayloadRule {
    #[default]
    Optional,
    Required,
    Forbidden,
}

/// A `parameterized` block.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Parameterized {
    /// See [`PayloadRule`].
    pub payload: PayloadRule,
    /// Keys of metadata that a dispatch must give.
    pub meta_required: BTreeSet<String>,
    /// Keys of metadata that a dispatch may give.
    pub meta_optional: BTreeSet<String>,
    /// Where the block begins.
    #[serde(default)]
    pub pos: Pos,
}

/// Bytes of the longest payload of a dispatch.
pub const LONGEST_PAYLOAD: usize = 16 * 1024;

/// Why a job cannot be dispatched with what is given, in Nomad's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each is its own text")]
pub enum DispatchError {
    #[error("Payload is not provided but required by parameterized job")]
    NoPayload,
    #[error("Payload provided but forbidden by parameterized job")]
    ForbiddenPayload,
    #[error("Payload exceeds maximum size; {0} > {LONGEST_PAYLOAD}")]
    LongPayload(usize),
    #[error("Dispatch request included unpermitted metadata keys: [{}]", .0.join(" "))]
    UnknownMeta(Vec<String>),
    #[error("Dispatch did not provide required meta keys: [{}]", .0.join(" "))]
    NoMeta(Vec<String>),
}

impl Parameterized {
    /// Whether a dispatch may give that: the payload, empty for none, and metadata.
    ///
    /// # Errors
    /// What it lacks, or gives although the job does not take it.
    pub fn check(&self, payload: &[u8], meta: &BTreeMap<String, String>) -> Result<(), DispatchError> {
        match self.payload {
            PayloadRule::Required if payload.is_empty() => return Err(DispatchError::NoPayload),
            PayloadRule::Forbidden if !payload.is_empty() => return Err(DispatchError::ForbiddenPayload),
            _ => {}
        }
        if payload.len() > LONGEST_PAYLOAD {
            return Err(DispatchError::LongPayload(payload.len()));
        }
        let is_allowed = |key: &&String| self.meta_required.contains(*key) || self.meta_optional.contains(*key);
        let unknown: Vec<String> = meta.keys().filter(|key| !is_allowed(key)).cloned().collect();
        if !unknown.is_empty() {
            return Err(DispatchError::UnknownMeta(unknown));
        }
        let is_missing = |key: &&String| !meta.contains_key(*key);
        let missing: Vec<String> = self.meta_required.iter().filter(is_missing).cloned().collect();
        if missing.is_empty() { Ok(()) } else { Err(DispatchError::NoMeta(missing)) }
    }
}
