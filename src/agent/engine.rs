//! The interface to the code that runs allocations: orders go to it, reports come from it. The real engine is built on `alloc`;
//! tests use a fake one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::model::{Allocation, ClientStatus, JobVersion, Nanos, NetworkStatus, Node, ServiceRegistration, TaskState};
use crate::alloc::{CsiVolume, VolumePlugins, control};
use crate::csi::Plugins;
use crate::driver::KeptOutput;
use crate::executor::{ExecRequests, ExecResponses};
use crate::logs::ship::Stream;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Job, Signal, TaskStats};

/// Capacity of the report queue.
pub const REPORTS: usize = 256;

/// An allocation to run: the decision about it, and its version of the job.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Includes its ports and its index.
    pub alloc: Allocation,
    /// The version `alloc.job_version`.
    pub job: Arc<Job>,
    /// The same as it is stored.
    pub version: JobVersion,
    /// The payload of the dispatch; empty for none.
    pub payload: Vec<u8>,
    /// The node's current attributes.
    pub attributes: BTreeMap<String, String>,
    /// The node's current metadata.
    pub meta: BTreeMap<String, String>,
    /// Its CSI volumes, by their ids.
    pub csi: BTreeMap<String, CsiVolume>,
}

/// The machine as it is now.
#[derive(Debug)]
pub struct Described {
    /// The operator's settings (drain, eligibility), events and indexes are empty.
    pub node: Node,
    /// The drivers of which nothing is known yet: they have not answered in time, and `node` is without them.
    pub late: BTreeSet<String>,
}

/// The last result of a service check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CheckState {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// `healthiness` or `readiness`.
    pub mode: String,
    /// `success`, `failure` or `pending`.
    pub status: String,
    /// HTTP status of the answer, for an HTTP check.
    pub status_code: u16,
    /// Its output.
    pub output: String,
    /// Seconds since 1970.
    pub timestamp: i64,
    /// `<job>.<group>[<index>]`.
    pub group: String,
    /// Its task; empty for the group's.
    pub task: String,
    /// Its service.
    pub service: String,
    /// Its name.
    pub check: String,
}

/// The state of an allocation. A report replaces earlier ones for the same allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The allocation.
    pub id: String,
    /// Its status.
    pub client_status: ClientStatus,
    /// Nomad's text for that status.
    pub client_description: String,
    /// All of its tasks.
    pub task_states: BTreeMap<String, TaskState>,
    /// Set once it has a network of its own.
    pub network_status: Option<NetworkStatus>,
}

/// Why an order was refused.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The allocation does not exist here, or its remains were removed.
    #[error("Unknown allocation {0:?}")]
    UnknownAlloc(String),
    /// The allocation refused it.
    #[error(transparent)]
    Refused(#[from] control::OrderError),
}

/// Runs allocations. An order for an unknown allocation is an error, except that orders to end it succeed.
#[tonic::async_trait]
pub trait Engine: Send + Sync {
    /// Sets up and runs an allocation; one that is already here continues, with this version of its job. Its state is reported.
    async fn start(&self, wanted: Wanted);

    /// Whether it is here, or was left by an earlier process, and has not ended.
    fn runs(&self, id: &str) -> bool;

    /// Ends its tasks with their kill signals and timeouts. Returns at once; the end is reported.
    async fn stop(&self, id: &str, no_shutdown_delay: bool);

    /// Restarts one task; without a task, all running ones, or with `all` also those that have ended. Returns when they run
    /// again.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn restart(&self, id: &str, task: Option<&str>, all: bool) -> Result<(), OrderError>;

    /// Sends a signal to one task, or to all that run.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn signal(&self, id: &str, task: Option<&str>, signal: Signal) -> Result<(), OrderError>;

    /// Runs a session inside a task; the first request is its setup. It ends when the answers are dropped.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn exec(&self, id: &str, task: &str, requests: ExecRequests) -> Result<ExecResponses, OrderError>;

    /// One sample of one task, or of all running ones, with the task's name.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn stats(&self, id: &str, task: Option<&str>) -> Result<Vec<(String, TaskStats)>, OrderError>;

    /// What the driver of a running task keeps of its output, where nobody collects that; `None` where it keeps nothing.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn kept_output(
        &self,
        _id: &str,
        _task: &str,
        _stream: Stream,
        _follow: bool,
    ) -> Result<Option<KeptOutput>, OrderError> {
        Ok(None)
    }

    /// Its checks by id; `None` if the allocation is not here.
    fn checks(&self, id: &str) -> Option<BTreeMap<String, CheckState>>;

    /// Since when all checks that its health depends on have passed without interruption; `None` while one fails, and if the
    /// allocation is not here.
    fn checks_pass_since(&self, id: &str) -> Option<Nanos>;

    /// Changes whenever [`Engine::services`] may have changed.
    fn service_changes(&self) -> watch::Receiver<u64>;

    /// The services that its allocations have registered.
    fn services(&self) -> Vec<ServiceRegistration>;

    /// Whether [`Engine::services`] contains all services of this allocation: not yet if it was only just recovered.
    fn has_announced(&self, id: &str) -> bool;

    /// The holder of this host port if it is not one of this engine's allocations.
    fn port_holder(&self, port: u16) -> Option<String>;

    /// The drivers' errors about the configuration of the job's tasks.
    fn validate(&self, job: &Job) -> Vec<String>;

    /// The current state of the machine. With a patience, drivers that take longer are left out and go on being asked.
    async fn describe(&self, patience: Option<Duration>) -> Described;

    /// The plugins for dynamic host volumes.
    fn volume_plugins(&self) -> Arc<VolumePlugins>;

    /// The CSI plugins.
    fn csi_plugins(&self) -> Arc<Plugins>;

    /// Its directory, if it exists.
    fn alloc_dir(&self, id: &str) -> Option<PathBuf>;

    /// Removes the remains of an ended allocation: directories, networks, record. Returns when that is done.
    async fn destroy(&self, id: &str);
}
