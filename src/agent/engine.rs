//! What runs allocations, as the agent sees it: orders go down, reports come up. The real one stands over `alloc`; tests have a
//! small one of their own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::model::{Allocation, ClientStatus, Nanos, NetworkStatus, Node, ServiceRegistration, TaskState};
use crate::alloc::control;
use crate::executor::{ExecRequests, ExecResponses};
use crate::spec::{Job, Signal, TaskStats};

/// Reports that may wait for whoever takes them.
pub const REPORTS: usize = 256;

/// An allocation that is to run: what was decided of it, and the version of the job that it is of.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// With its ports and its number.
    pub alloc: Allocation,
    /// The version `alloc.job_version`.
    pub job: Arc<Job>,
    /// What the job was dispatched with; empty for none.
    pub payload: Vec<u8>,
    /// The node's metadata at this moment.
    pub meta: BTreeMap<String, String>,
}

/// A check of a service, as it went last.
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
    /// Of HTTP: the answer's status.
    pub status_code: u16,
    /// What it said.
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

/// How an allocation is now. A later one replaces an earlier one of the same allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The allocation.
    pub id: String,
    /// What it does.
    pub client_status: ClientStatus,
    /// Nomad's words for that.
    pub client_description: String,
    /// All of its tasks.
    pub task_states: BTreeMap<String, TaskState>,
    /// Once it has got a network of its own.
    pub network_status: Option<NetworkStatus>,
}

/// Why an order was not followed.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// There is no such allocation here, or nothing of it any more.
    #[error("Unknown allocation {0:?}")]
    UnknownAlloc(String),
    /// The allocation.
    #[error(transparent)]
    Refused(#[from] control::OrderError),
}

/// What runs allocations. Orders for one that is unknown are errors, or, where they only want its end, done.
#[tonic::async_trait]
pub trait Engine: Send + Sync {
    /// Sets it up and runs it; one that is here already goes on, as one of this version of its job. What comes of it is reported.
    async fn start(&self, wanted: Wanted);

    /// It is here, or was left here by an earlier process, and has not ended.
    fn runs(&self, id: &str) -> bool;

    /// Its tasks are to end, with their kill signals and timeouts. Returns at once; its end is reported.
    async fn stop(&self, id: &str, no_shutdown_delay: bool);

    /// Restarts one task; without one all that run, or with `all` also those that have ended. Returns when they run again.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn restart(&self, id: &str, task: Option<&str>, all: bool) -> Result<(), OrderError>;

    /// Sends a signal to one task, or to all that run.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn signal(&self, id: &str, task: Option<&str>, signal: Signal) -> Result<(), OrderError>;

    /// Holds a session inside a task; the first request is its setup. It ends when the answers are dropped.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn exec(&self, id: &str, task: &str, requests: ExecRequests) -> Result<ExecResponses, OrderError>;

    /// One sample of one task, or of all that run; with it the task's name.
    ///
    /// # Errors
    /// [`OrderError`].
    async fn stats(&self, id: &str, task: Option<&str>) -> Result<Vec<(String, TaskStats)>, OrderError>;

    /// Its checks by id; `None` for one that is not here.
    fn checks(&self, id: &str) -> Option<BTreeMap<String, CheckState>>;

    /// Since when all checks of its services that its health depends on have passed without a break; `None` while one has not,
    /// and of one that is not here.
    fn checks_pass_since(&self, id: &str) -> Option<Nanos>;

    /// Changes whenever [`Engine::services`] may.
    fn service_changes(&self) -> watch::Receiver<u64>;

    /// What its allocations have registered.
    fn services(&self) -> Vec<ServiceRegistration>;

    /// All that this allocation offers is among [`Engine::services`]: not yet where it was only just found again.
    fn has_announced(&self, id: &str) -> bool;

    /// Who, that is none of its allocations, has this port of the host.
    fn port_holder(&self, port: u16) -> Option<String>;

    /// What the drivers say against the configuration of the job's tasks.
    fn validate(&self, job: &Job) -> Vec<String>;

    /// The machine as it is now. What an operator decides of it (drain, eligibility), its events and its indexes are empty.
    async fn node(&self) -> Node;

    /// Its directory, while there is one.
    fn alloc_dir(&self, id: &str) -> Option<PathBuf>;

    /// Removes what is left of one that has ended: directories, networks, record. Returns when that is done.
    async fn destroy(&self, id: &str);
}
