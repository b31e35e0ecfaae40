//! What the steps before the start of a task work on.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Stop;
use super::dir::Owner;
use super::env::TaskEnv;
use super::shared::Shared;
use super::state::Rendered;
use super::template::Files;
use crate::spec::{Mount, Task};

/// What the steps before a start work on.
pub(super) struct Setup {
    pub(super) shared: Arc<Shared>,
    pub(super) task: Arc<Task>,
    pub(super) env: TaskEnv,
    /// The user that has to pass through the allocation's directory to reach its files.
    pub(super) enters: Option<Owner>,
    /// Its driver can mount directories of the host.
    pub(super) driver_mounts: bool,
    /// Its mounts.
    pub(super) mounts: Vec<Mount>,
    pub(super) cancel: Arc<AtomicBool>,
    /// The environment without the variables of templates.
    pub(super) bare_env: TaskEnv,
    /// The numbers of the artifacts that are fetched: another attempt fetches the others.
    pub(super) fetched: Vec<usize>,
    /// The rendered templates.
    pub(super) files: Arc<Files>,
    /// The rendered templates, for the record.
    pub(super) rendered: Rendered,
    /// The templates that have changed while the task runs, and whose `change_mode` is still to be performed.
    pub(super) pending: Vec<usize>,
    /// They were rendered for the next start: scripts that run on the first rendering are to run.
    pub(super) is_first_render: bool,
    /// Until then services that templates read may be missing, because the processes that register them were killed and have to
    /// register them again.
    pub(super) services_return_by: Option<Instant>,
    pub(super) stop: watch::Receiver<Stop>,
    /// Becomes true when its owner exits.
    pub(super) leave: watch::Receiver<bool>,
}
