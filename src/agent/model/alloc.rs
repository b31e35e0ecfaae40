//! An allocation as it is wanted, and as it is.

use serde::{Deserialize, Serialize};

use super::{Nanos, Stamp};
use crate::spec::collections::BTreeMap;
use crate::spec::{Lifecycle, LifecycleHook};

/// What is wanted of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum DesiredStatus {
    Run,
    Stop,
    Evict,
}

/// What an allocation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum ClientStatus {
    Pending,
    Running,
    Complete,
    Failed,
    Lost,
    Unknown,
}

impl ClientStatus {
    /// It does nothing any more.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, ClientStatus::Complete | ClientStatus::Failed | ClientStatus::Lost)
    }
}

/// What somebody asked of an allocation, for the next evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DesiredTransition {
    /// The node is drained of it.
    pub migrate: Option<bool>,
    /// It is to be replaced (`job restart -reschedule`, `alloc stop`).
    pub reschedule: Option<bool>,
    /// It is replaced although its policy says no.
    pub force_reschedule: Option<bool>,
    /// It is stopped without its `shutdown_delay`.
    pub no_shutdown_delay: Option<bool>,
    /// It is only stopped where it would be moved: a drain's deadline ends a batch job.
    #[serde(default)]
    pub migrate_disable_placement: Option<bool>,
}

/// A task's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum TaskStateName {
    #[default]
    Pending,
    Running,
    Dead,
}

/// Something that happened to a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TaskEvent {
    /// Nomad's type of it.
    #[serde(rename = "Type")]
    pub kind: String,
    /// When.
    pub time: Nanos,
    /// What the command line shows.
    pub display_message: String,
    /// Machine-readable details, Nomad's keys.
    pub details: BTreeMap<String, String>,
}

/// A task of an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TaskState {
    /// See [`TaskStateName`].
    pub state: TaskStateName,
    /// It ended badly, and that is final.
    pub failed: bool,
    /// How often it was restarted.
    pub restarts: u64,
    /// When last.
    pub last_restart: Stamp,
    /// When it ran first.
    pub started_at: Stamp,
    /// When it ended.
    pub finished_at: Stamp,
    /// The last ten.
    pub events: Vec<TaskEvent>,
}

/// Whether an allocation of a deployment is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DeploymentHealth {
    /// `None`: not known yet.
    pub healthy: Option<bool>,
    /// Since when that is known.
    pub timestamp: Stamp,
    /// It is a canary.
    pub canary: bool,
    /// Index of the last change.
    pub modify_index: u64,
}

/// One replacement of an allocation by another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RescheduleEvent {
    /// When.
    pub reschedule_time: Nanos,
    /// Which was replaced.
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: String,
    /// On which node.
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: String,
    /// After which delay.
    pub delay: Nanos,
}

/// The replacements that led to an allocation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct RescheduleTracker {
    /// The oldest first.
    pub events: Vec<RescheduleEvent>,
}

/// A port that an allocation has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AllocatedPort {
    /// Its name.
    pub label: String,
    /// The host's port.
    pub value: u16,
    /// The one inside; 0 is the same.
    pub to: u16,
    /// The host's address.
    #[serde(rename = "HostIP")]
    pub host_ip: String,
}

/// What a task has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AllocatedTask {
    /// MHz.
    pub cpu_shares: u64,
    /// Numbers of the cores that it has alone.
    pub reserved_cores: Vec<u16>,
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// MiB; 0 none, -1 unlimited.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
    /// When it runs; `None` for a main task.
    #[serde(default)]
    pub lifecycle: Option<Lifecycle>,
}

/// What the tasks of an allocation share.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AllocatedShared {
    /// MiB.
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    /// Its ports.
    pub ports: Vec<AllocatedPort>,
    /// It has one of the ports of the built-in bridge.
    #[serde(default)]
    pub on_bridge: bool,
}

/// What an allocation has; an answer gives it Nomad's nesting.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AllocatedResources {
    /// By task.
    pub tasks: BTreeMap<String, AllocatedTask>,
    /// Beside that.
    pub shared: AllocatedShared,
}

impl AllocatedResources {
    /// The most CPU, in MHz, and memory, in MiB, that its tasks have at once: prestart tasks end before main tasks start, and
    /// poststop tasks start after their end. The CPU of reserved cores is always taken. Values are as requested, so sums saturate.
    pub(in super::super) fn most(&self) -> (i64, i64) {
        // Before, during and after the main tasks.
        let (mut cpu, mut memory, mut reserved) = ([0_i64; 3], [0_i64; 3], 0_i64);
        for task in self.tasks.values() {
            let phases = match task.lifecycle {
                Some(Lifecycle { hook: LifecycleHook::Prestart, sidecar: false }) => 0..1,
                Some(Lifecycle { hook: LifecycleHook::Prestart, sidecar: true }) => 0..2,
                Some(Lifecycle { hook: LifecycleHook::Poststop, .. }) => 2..3,
                _ => 1..2,
            };
            let mhz = i64::try_from(task.cpu_shares).unwrap_or(i64::MAX);
            let is_shared = task.reserved_cores.is_empty();
            if !is_shared {
                reserved = reserved.saturating_add(mhz);
            }
            for phase in phases {
                cpu[phase] = cpu[phase].saturating_add(if is_shared { mhz } else { 0 });
                memory[phase] = memory[phase].saturating_add(task.memory_mb.max(0));
            }
        }
        let highest = |phases: [i64; 3]| phases.into_iter().fold(0, i64::max);
        (reserved.saturating_add(highest(cpu)), highest(memory))
    }
}

/// The network that an allocation got.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct NetworkStatus {
    /// The interface inside.
    pub interface_name: String,
    /// IPv4.
    pub address: String,
    /// IPv6.
    #[serde(rename = "AddressIPv6")]
    pub address_ipv6: String,
}

/// How well the node suited an allocation, of 1; Nomad's names.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Scores {
    /// How full it is then: what is full is filled first.
    pub binpack: f64,
    /// Less the more of the group there are.
    pub job_anti_affinity: f64,
    /// Always 0: there is no other node to like better.
    pub node_affinity: f64,
    /// -1 where what it replaces failed here.
    pub node_reschedule_penalty: f64,
}

/// Why a group could not be placed, or how it was.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct AllocMetric {
    /// 1, or 0 when the node was not eligible.
    pub nodes_evaluated: u32,
    /// Nodes that a constraint, a driver or a volume ruled out.
    pub nodes_filtered: u32,
    /// By data center.
    pub nodes_available: BTreeMap<String, u32>,
    /// By the constraint's text.
    pub constraint_filtered: BTreeMap<String, u32>,
    /// Nodes that were full.
    pub nodes_exhausted: u32,
    /// By what was used up (`memory`, `cpu`, `network: port collision ...`).
    pub dimension_exhausted: BTreeMap<String, u32>,
    /// By task, what it asked for of CPU or memory where that was used up.
    #[serde(default)]
    pub resources_exhausted: BTreeMap<String, AllocatedTask>,
    /// Of one that was placed.
    #[serde(default)]
    pub scores: Option<Scores>,
    /// Further allocations of the group with the same reasons.
    pub coalesced_failures: u32,
    /// The reasons in words, by name: `port 8080 is held by job web, task nginx`. Nomad has none.
    #[serde(default)]
    pub reasons: Vec<String>,
}

/// One allocation. Its job is the version `job_version` of `job_id`, which an answer adds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Allocation {
    /// UUID.
    #[serde(rename = "ID")]
    pub id: String,
    /// The job's namespace.
    pub namespace: String,
    /// Who decided it.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// `<job>.<group>[<index>]`.
    pub name: String,
    /// The node.
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// Its name.
    pub node_name: String,
    /// The job.
    #[serde(rename = "JobID")]
    pub job_id: String,
    /// Its version.
    pub job_version: u64,
    /// Index at which that job came to be: after a purge another job may have the same id, and its versions count anew.
    #[serde(default)]
    pub job_create_index: u64,
    /// The group.
    pub task_group: String,
    /// What it has.
    pub allocated_resources: AllocatedResources,
    /// How it was placed.
    pub metrics: AllocMetric,
    /// What is wanted.
    pub desired_status: DesiredStatus,
    /// Why.
    pub desired_description: String,
    /// What somebody asked for.
    #[serde(default)]
    pub desired_transition: DesiredTransition,
    /// What it does.
    pub client_status: ClientStatus,
    /// Why.
    pub client_description: String,
    /// By task.
    pub task_states: BTreeMap<String, TaskState>,
    /// Empty for none.
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// `None` without a deployment.
    pub deployment_status: Option<DeploymentHealth>,
    /// The evaluation that will replace it.
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: String,
    /// What it replaces.
    pub previous_allocation: String,
    /// What replaces it.
    pub next_allocation: String,
    /// How it came to be.
    pub reschedule_tracker: Option<RescheduleTracker>,
    /// Once there is one.
    pub network_status: Option<NetworkStatus>,
    /// Index at which it came to be.
    pub create_index: u64,
    /// Index of its last change.
    pub modify_index: u64,
    /// Index of the last change of what is wanted.
    pub alloc_modify_index: u64,
    /// When it came to be.
    pub create_time: Nanos,
    /// When it changed last.
    pub modify_time: Nanos,
}

impl Allocation {
    /// Its number among its group's.
    #[must_use]
    pub fn index(&self) -> u32 {
        let number = self.name.rsplit_once('[').and_then(|(_, rest)| rest.strip_suffix(']')?.parse().ok());
        number.unwrap_or(0)
    }

    /// Is being stopped, and has not ended yet.
    pub(crate) fn is_ending(&self) -> bool {
        !self.client_status.is_terminal() && self.desired_status != DesiredStatus::Run
    }

    /// Neither runs any more nor is wanted to.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.client_status.is_terminal() || self.desired_status != DesiredStatus::Run
    }
}
