//! An engine for tests: it runs nothing, reports what it is told to, and keeps a list of the orders.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::core::now;
use super::engine::{CheckState, Described, Engine, OrderError, REPORTS, Report, Wanted};
use super::model::{
    ClientStatus, DriverInfo, Eligibility, Nanos, Node, NodeResources, NodeStatus, ServiceRegistration, Stamp,
    TaskState, TaskStateName,
};
use crate::alloc::{HostVolumes, VolumePlugins};
use crate::csi::Plugins;
use crate::executor::{ExecRequests, ExecResponses};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Job, Signal, TaskStats};
use crate::sys::lock::lock;

/// See the module.
pub(crate) struct FakeEngine {
    reports: mpsc::Sender<Report>,
    services: watch::Sender<u64>,
    /// Drivers that do not answer before this is empty.
    slow: watch::Sender<BTreeSet<String>>,
    seen: Mutex<Seen>,
    volumes: Arc<VolumePlugins>,
    csi: Arc<Plugins>,
    /// Where the volumes are.
    pub(crate) dir: tempfile::TempDir,
}

#[derive(Default)]
struct Seen {
    log: Vec<String>,
    running: BTreeMap<String, Wanted>,
    services: Vec<ServiceRegistration>,
    /// Those whose services are known.
    announced: BTreeSet<String>,
    /// Jobs whose tasks fail as soon as they are started.
    failing: BTreeSet<String>,
    /// What is to stop goes on until a test ends it.
    is_slow: bool,
}

impl FakeEngine {
    pub(crate) fn new() -> (Arc<FakeEngine>, mpsc::Receiver<Report>) {
        FakeEngine::with_slow(&[])
    }

    /// The same, where these drivers do not answer before [`FakeEngine::answer`].
    pub(crate) fn with_slow(drivers: &[&str]) -> (Arc<FakeEngine>, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORTS);
        let dir = tempfile::tempdir().unwrap();
        let volumes = VolumePlugins::new(&dir.path().canonicalize().unwrap(), None, None, HostVolumes::default());
        let (services, seen) = (watch::Sender::default(), Mutex::default());
        let csi = Arc::new(Plugins::new(dir.path()));
        let slow = watch::Sender::new(drivers.iter().map(|name| (*name).to_owned()).collect());
        (Arc::new(FakeEngine { reports, services, slow, seen, volumes, csi, dir }), receiver)
    }

    /// All drivers have answered.
    pub(crate) fn answer(&self) {
        self.slow.send_replace(BTreeSet::new());
    }

    /// The node's attributes that an allocation was started with.
    pub(crate) fn attributes(&self, id: &str) -> Option<BTreeMap<String, String>> {
        Some(lock(&self.seen).running.get(id)?.attributes.clone())
    }

    /// The orders by now, in the words `start web[0]`.
    pub(crate) fn log(&self) -> Vec<String> {
        lock(&self.seen).log.clone()
    }

    /// Tasks of this job fail from now on, or do not any more.
    pub(crate) fn fail(&self, job: &str, fails: bool) {
        let failing = &mut lock(&self.seen).failing;
        if fails {
            failing.insert(job.to_owned())
        } else {
            failing.remove(job)
        };
    }

    /// What is to stop takes until a test ends it.
    pub(crate) fn stop_slowly(&self) {
        lock(&self.seen).is_slow = true;
    }

    /// What an allocation runs, as it was started.
    pub(crate) fn command(&self, id: &str) -> Option<String> {
        let seen = lock(&self.seen);
        let task = seen.running.get(id)?.job.groups.first()?.tasks.first()?;
        Some(task.config.values.get("command")?.as_str()?.to_owned())
    }

    /// Whether it was a canary when it was last started.
    pub(crate) fn is_canary(&self, id: &str) -> Option<bool> {
        Some(lock(&self.seen).running.get(id)?.alloc.deployment_status.as_ref()?.canary)
    }

    /// The `memory_max` of what an allocation runs.
    pub(crate) fn memory_max(&self, id: &str) -> Option<i64> {
        let seen = lock(&self.seen);
        Some(seen.running.get(id)?.job.groups.first()?.tasks.first()?.resources.memory_max_mib)
    }

    /// The node's metadata that an allocation was started with.
    pub(crate) fn meta(&self, id: &str) -> Option<BTreeMap<String, String>> {
        Some(lock(&self.seen).running.get(id)?.meta.clone())
    }

    /// This is registered from now on, and these allocations register nothing else.
    pub(crate) fn register(&self, services: Vec<ServiceRegistration>, announced: &[&str]) {
        let seen = &mut *lock(&self.seen);
        (seen.services, seen.announced) = (services, announced.iter().map(|id| (*id).to_owned()).collect());
        self.services.send_modify(|count| *count += 1);
    }

    /// The tasks of this allocation end so.
    pub(crate) async fn end(&self, id: &str, failed: bool) {
        let wanted = lock(&self.seen).running.remove(id);
        if let Some(wanted) = wanted {
            self.report(&wanted, if failed { ClientStatus::Failed } else { ClientStatus::Complete }).await;
        }
    }

    async fn report(&self, wanted: &Wanted, status: ClientStatus) {
        let group = wanted.job.groups.iter().find(|group| group.name == wanted.alloc.task_group);
        let ended = status.is_terminal();
        let state = TaskState {
            state: if ended { TaskStateName::Dead } else { TaskStateName::Running },
            failed: status == ClientStatus::Failed,
            started_at: Stamp(Some(now())),
            finished_at: Stamp(ended.then(now)),
            ..TaskState::default()
        };
        let tasks = group.into_iter().flat_map(|group| &group.tasks);
        let report = Report {
            id: wanted.alloc.id.clone(),
            client_status: status,
            client_description: String::new(),
            task_states: tasks.map(|task| (task.name.clone(), state.clone())).collect(),
            network_status: None,
        };
        let _ = self.reports.send(report).await;
    }
}

/// A node with enough of everything.
pub(crate) fn node() -> Node {
    let driver = DriverInfo { detected: true, healthy: true, ..DriverInfo::default() };
    let attribute = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    Node {
        id: "11111111-2222-3333-4444-555555555555".to_owned(),
        name: "here".to_owned(),
        datacenter: "dc1".to_owned(),
        node_class: String::new(),
        node_pool: "default".to_owned(),
        http_addr: String::new(),
        tls_enabled: false,
        attributes: [("kernel.name", "linux"), ("driver.raw_exec", "1")].map(attribute).into(),
        meta: BTreeMap::new(),
        static_meta: BTreeMap::new(),
        dynamic_meta: BTreeMap::new(),
        resources: NodeResources {
            cpu_mhz: 100_000,
            cores: 8,
            reservable_cores: (0..8).collect(),
            memory_mb: 100_000,
            disk_mb: 1_000_000,
            min_dynamic_port: 20_000,
            max_dynamic_port: 32_000,
            ..NodeResources::default()
        },
        drivers: BTreeMap::from([("raw_exec".to_owned(), driver)]),
        host_volumes: BTreeMap::new(),
        csi_controllers: BTreeMap::new(),
        csi_nodes: BTreeMap::new(),
        dynamic_volumes: BTreeMap::new(),
        configured_networks: Vec::new(),
        host_networks: BTreeMap::from([("default".to_owned(), "127.0.0.1".to_owned())]),
        networks: Vec::new(),
        drain_strategy: None,
        last_drain: None,
        scheduling_eligibility: Eligibility::Eligible,
        status: NodeStatus::Ready,
        status_description: String::new(),
        status_updated_at: 0,
        events: Vec::new(),
        create_index: 0,
        modify_index: 0,
    }
}

#[tonic::async_trait]
impl Engine for FakeEngine {
    async fn start(&self, wanted: Wanted) {
        let fails = {
            let mut seen = lock(&self.seen);
            let (_, name) = wanted.alloc.name.rsplit_once('.').unwrap_or_default();
            seen.log.push(format!("start {name} v{}", wanted.alloc.job_version));
            let fails = seen.failing.contains(&wanted.alloc.job_id);
            if !fails {
                seen.running.insert(wanted.alloc.id.clone(), wanted.clone());
            }
            fails
        };
        self.report(&wanted, if fails { ClientStatus::Failed } else { ClientStatus::Running }).await;
    }

    fn runs(&self, id: &str) -> bool {
        lock(&self.seen).running.contains_key(id)
    }

    async fn stop(&self, id: &str, _no_shutdown_delay: bool) {
        if lock(&self.seen).is_slow {
            return;
        }
        let wanted = lock(&self.seen).running.remove(id);
        if let Some(wanted) = wanted {
            let (_, name) = wanted.alloc.name.rsplit_once('.').unwrap_or_default();
            lock(&self.seen).log.push(format!("stop {name} v{}", wanted.alloc.job_version));
            self.report(&wanted, ClientStatus::Complete).await;
        }
    }

    async fn restart(&self, id: &str, _task: Option<&str>, _all: bool) -> Result<(), OrderError> {
        if self.runs(id) { Ok(()) } else { Err(OrderError::UnknownAlloc(id.to_owned())) }
    }

    async fn signal(&self, id: &str, _task: Option<&str>, _signal: Signal) -> Result<(), OrderError> {
        if self.runs(id) { Ok(()) } else { Err(OrderError::UnknownAlloc(id.to_owned())) }
    }

    async fn exec(&self, id: &str, _task: &str, _requests: ExecRequests) -> Result<ExecResponses, OrderError> {
        Err(OrderError::UnknownAlloc(id.to_owned()))
    }

    async fn stats(&self, id: &str, _task: Option<&str>) -> Result<Vec<(String, TaskStats)>, OrderError> {
        if self.runs(id) { Ok(Vec::new()) } else { Err(OrderError::UnknownAlloc(id.to_owned())) }
    }

    fn checks(&self, id: &str) -> Option<BTreeMap<String, CheckState>> {
        self.runs(id).then(BTreeMap::new)
    }

    fn checks_pass_since(&self, id: &str) -> Option<Nanos> {
        self.runs(id).then_some(Nanos(0))
    }

    fn service_changes(&self) -> watch::Receiver<u64> {
        self.services.subscribe()
    }

    fn services(&self) -> Vec<ServiceRegistration> {
        lock(&self.seen).services.clone()
    }

    fn has_announced(&self, id: &str) -> bool {
        lock(&self.seen).announced.contains(id)
    }

    fn port_holder(&self, _port: u16) -> Option<String> {
        None
    }

    fn validate(&self, _job: &Job) -> Vec<String> {
        Vec::new()
    }

    async fn describe(&self, patience: Option<Duration>) -> Described {
        let mut slow = self.slow.subscribe();
        if patience.is_none() {
            slow.wait_for(BTreeSet::is_empty).await.unwrap();
        }
        let (mut node, late) = (node(), slow.borrow().clone());
        for driver in &late {
            node.drivers.remove(driver);
            node.attributes.remove(&format!("driver.{driver}"));
        }
        Described { node, late }
    }

    fn volume_plugins(&self) -> Arc<VolumePlugins> {
        Arc::clone(&self.volumes)
    }

    fn csi_plugins(&self) -> Arc<Plugins> {
        Arc::clone(&self.csi)
    }

    fn alloc_dir(&self, _id: &str) -> Option<PathBuf> {
        None
    }

    async fn destroy(&self, id: &str) {
        self.end(id, false).await;
    }
}
