//! A task that was started: its main process, its cgroup, its output.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::stats::ProcessSampler;
use super::{ExecutorError, NewLimits, adopt, sweep};
use crate::cgroup::{Sampler, TaskCgroup};
use crate::container::{self, Namespaces};
use crate::logs::collector::{Collector, HealthWatch, Keeper};
use crate::spec::{Resources, Signal};
use crate::sys;
use crate::sys::lock::lock;

/// How long SIGKILL may take before the task counts as stuck.
pub(super) const KILL_PATIENCE: Duration = Duration::from_secs(15);
/// How long to wait for output pipes that a process left behind by the task still holds open.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(2);

/// Which kind of process an executor starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// The host's files; cgroup and process group only.
    Universal,
    /// Own root, namespaces and devices.
    Isolated,
}

/// A task that was started.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) pid: i32,
    pub(super) pidfd: Arc<OwnedFd>,
    /// All of the task's processes die with its main process, which is pid 1 of a namespace.
    pub(super) dies_as_one: bool,
    pub(super) isolation: Isolation,
    pub(super) cgroup: Option<TaskCgroup>,
    /// The configuration sent to the shim, with the identity that it took.
    pub(super) config: container::Config,
    pub(super) task_dir: PathBuf,
    /// Inodes of its stdout and stderr.
    pub(super) outputs: Option<[u64; 2]>,
    /// Dropped when the main process has ended, so that they do not outlive the task.
    pub(super) namespaces: Mutex<Option<Namespaces>>,
    /// Processes of sessions that the kernel killed for lack of memory.
    pub(super) session_oom_kills: AtomicU64,
    pub(super) output: Mutex<Option<Output>>,
    /// Health of the collected output.
    pub(super) output_health: Option<HealthWatch>,
    /// Set for a task that outlives its executor.
    pub(super) record: Mutex<Option<adopt::Held>>,
    /// Its shutdown kills what it has left: no command may start in it any more.
    pub(super) closed: AtomicBool,
    /// Set for a task that another executor started, which is not a child of this process.
    pub(super) adopted: Option<u64>,
    /// It has ended, and its exit status is unknown.
    pub(super) status_lost: AtomicBool,
    pub(super) samplers: Mutex<(Sampler, ProcessSampler)>,
    /// The limits that were last written to its cgroup.
    pub(super) limits: Mutex<Resources>,
}

/// Collects the task's output, or keeps its FIFOs open while their readers are away.
#[derive(Debug)]
pub(super) enum Output {
    Collected(Collector),
    Sunk { _keepers: [Option<Keeper>; 2] },
}

impl Output {
    pub(super) fn health(&self) -> Option<HealthWatch> {
        match self {
            Output::Collected(collector) => Some(collector.health()),
            Output::Sunk { .. } => None,
        }
    }
}

impl Running {
    /// Refuses a command once the shutdown may have killed for the last time. The caller must clone the command's process before
    /// the event loop turns again: it is then among those that the shutdown kills.
    pub(super) fn check_open(&self) -> Result<(), ExecutorError> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(ExecutorError::Invalid("the task has ended".to_owned()));
        }
        Ok(())
    }

    /// OOM kills in the task, without those of session processes.
    pub(super) fn unclaimed_oom_kills(&self) -> u64 {
        let Some(cgroup) = &self.cgroup else { return 0 };
        let known = cgroup.oom_baseline() + self.session_oom_kills.load(Ordering::Relaxed);
        cgroup.oom_kills().unwrap_or(0).saturating_sub(known)
    }

    /// Adds new limits to the record, so that the next executor knows them.
    pub(super) fn record_limits(&self, new: &NewLimits) {
        if let Some(Err(error)) = lock(&self.record).as_mut().map(|record| record.add_limits(new)) {
            tracing::warn!(%error, "the next executor of the task would not know its new limits");
        }
    }

    /// Writes the record that the next executor needs if this one is killed.
    pub(super) fn record_at(&self, path: &Path) -> std::io::Result<()> {
        let namespaces = lock(&self.namespaces).as_ref().map(Namespaces::identities).transpose()?.unwrap_or_default();
        let mut record = adopt::Record::new(self.pid)?;
        record.host_ids.clone_from(&self.config.host_ids);
        record.id_range = self.config.id_range;
        record.oom_baseline = self.cgroup.as_ref().map_or(0, TaskCgroup::oom_baseline);
        record.namespaces = namespaces;
        if let Some(Output::Collected(_)) = &*lock(&self.output) {
            record.pipes = self.outputs;
        }
        *lock(&self.record) = Some(record.write(path)?);
        Ok(())
    }

    pub(super) fn send(&self, signal: Signal) -> Result<(), ExecutorError> {
        match sys::process::send_signal(self.pidfd.as_fd(), signal) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                Err(ExecutorError::System("the task's process has ended".to_owned()))
            }
            other => other.map_err(|e| ExecutorError::System(format!("send {signal} to pid {}: {e}", self.pid))),
        }
    }

    /// Kills everything that the task started: by its cgroup, else by descent from this process, which inherits orphans.
    pub(super) async fn kill_leftovers(&self) {
        let deadline = Instant::now() + KILL_PATIENCE;
        if let Some(cgroup) = self.cgroup.as_ref().filter(|c| !c.is_host_given()) {
            while let Err(error) = cgroup.kill_all(deadline) {
                if !error.is_shortage() || Instant::now() > deadline {
                    tracing::error!(%error, "processes of the task survived");
                    return;
                }
                // No free descriptor to read the cgroup with: others will be closed.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            return;
        }
        if let Err(error) = sweep::kill_descendants(deadline).await {
            tracing::error!(%error, "processes of the task survived");
        }
    }

    /// Waits until all that the main process wrote is in the files.
    pub(super) async fn settle_output(&self) {
        let output = lock(&self.output).take();
        if let Some(Output::Collected(mut collector)) = output {
            // Bounded: processes left behind by the task may write faster than the collector reads.
            let _ = tokio::time::timeout(OUTPUT_PATIENCE, collector.settle()).await;
            *lock(&self.output) = Some(Output::Collected(collector));
        }
    }

    /// Ends collection.
    pub(super) async fn close_output(&self) {
        let output = lock(&self.output).take();
        if let Some(Output::Collected(collector)) = output {
            let collected = collector.finish(OUTPUT_PATIENCE).await;
            let dropped = collected.stdout.counters.dropped_bytes + collected.stderr.counters.dropped_bytes;
            if dropped > 0 {
                tracing::warn!(dropped, "bytes of output could not be written");
            }
        }
    }
}
