//! What the tasks of an allocation have in common.

use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, watch};

use super::chain::chain;
use super::control::Control;
use super::dir::AllocDir;
use super::place::RemoveCgroup;
use super::ports::AllocPort;
use super::process::Orphans;
use super::record::Records;
use super::service::Offers;
use super::values::ValuesFile;
use super::volumes::AllocVolumes;
use super::{AllocEvent, Stop};
use crate::cgroup::Cpusets;
use crate::csi::Plugins;
use crate::driver::{Dns, NetworkIsolation};
use crate::logs::notices::Notices;
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::spec::{AllocId, EventKind, JobType, TaskEvent};

/// What the tasks of an allocation have in common.
pub(super) struct Shared {
    pub(super) alloc: AllocId,
    pub(super) group: String,
    pub(super) index: u32,
    pub(super) kind: JobType,
    pub(super) dir: AllocDir,
    pub(super) records: Arc<Records>,
    pub(super) orphans: Arc<Orphans>,
    pub(super) cpusets: Option<Cpusets>,
    pub(super) remove_cgroup: Arc<RemoveCgroup>,
    pub(super) ports: Vec<AllocPort>,
    /// Ports are mapped into a network namespace.
    pub(super) maps_ports: bool,
    pub(super) volumes: AllocVolumes,
    /// The CSI plugins of the machine.
    pub(super) plugins: Arc<Plugins>,
    /// The network that the group's tasks share; `None` is the host's.
    pub(super) network: Option<NetworkIsolation>,
    /// The name servers of its tasks.
    pub(super) dns: Option<Dns>,
    /// Of the tasks whose output somebody follows.
    pub(super) notices: BTreeMap<String, Notices>,
    /// The values that templates may read.
    pub(super) values: ValuesFile,
    /// The payload that the job was dispatched with.
    pub(super) payload: Arc<[u8]>,
    /// The services of group and tasks.
    pub(super) offers: Arc<Offers>,
    /// `None` if nobody hears them besides its [`Control`].
    pub(super) events: Option<mpsc::UnboundedSender<AllocEvent>>,
    pub(super) control: Arc<Control>,
    /// Its owner returns for it after it was killed.
    pub(super) returns: bool,
    /// Another process has started the allocation.
    pub(super) restored: bool,
}

impl Shared {
    pub(super) fn event(&self, task: &str, kind: EventKind, message: impl Into<String>, details: &[(&str, String)]) {
        let details = details.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).into_map();
        let event =
            TaskEvent { kind, time: SystemTime::now(), task: task.to_owned(), message: message.into(), details };
        self.control.note(&event);
        let Some(events) = &self.events else { return };
        let (alloc, group, index) = (self.alloc.clone(), self.group.clone(), self.index);
        // The receiver may be gone; the task goes on without it.
        let _ = events.send(AllocEvent { alloc, group, index, event });
    }

    /// Saves what its owner needs, if the owner returns. If that fails, it is written with the next change.
    pub(super) fn save(&self) {
        if self.returns
            && let Err(error) = self.records.save(&self.alloc, |restore| restore.tasks = self.control.states())
        {
            tracing::warn!(error = chain(&error), "a task's state is not noted");
        }
    }
}

/// Waits for a stop of at least this urgency; for ever if the sender is gone.
pub(super) async fn stop_at_least(stop: &mut watch::Receiver<Stop>, urgency: Stop) {
    if stop.wait_for(|s| *s >= urgency).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the owner exits; for ever if the sender is gone.
pub(super) async fn leaving(leave: &mut watch::Receiver<bool>) {
    if leave.wait_for(|leave| *leave).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// A random number, uniformly distributed between 0 and 1.
pub(super) fn random() -> f64 {
    let bytes = crate::sys::random::uuid().into_bytes();
    f64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])) / f64::from(u32::MAX)
}
