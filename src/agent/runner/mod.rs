//! The engine over `alloc`: one async task for each allocation, from its setup until its remains are removed.
//!
//! ```text
//! start ─▶ set_up or restore ─▶ run ─▶ finish ─▶ (destroy) ─▶ gone
//!             └─ failed ─────────────▲      leave: run returns, and everything stays for the next process
//! ```

mod described;
mod kept;
mod offered;
#[cfg(test)]
mod tests;
mod told;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};

use super::engine::{CheckState, Described, Engine, OrderError, REPORTS, Report, Wanted};
use super::model::{Allocation, Nanos, ServiceRegistration};
use crate::spec::collections::{BTreeMap, BTreeSet};
pub use described::Advertised;

use crate::alloc::control::{Control, Served};
use crate::alloc::{
    Alloc, AllocPort, Assignment, CleanupError, Machine, Means, Node, Record, RestoreError, SetupError, Stop,
    VolumePlugins, chain, machine,
};
use crate::csi::{Plugins, SecretsOf};
use crate::driver::KeptOutput;
use crate::executor::{ExecRequests, ExecResponses};
use crate::logs::ship::Stream;
use crate::spec::{AllocId, Job, Signal, TaskStats};
use crate::sys::lock::lock;

/// The first and the longest pause before CSI volumes that could not be released are released again.
const FIRST_RELEASE: Duration = Duration::from_millis(500);
const LAST_RELEASE: Duration = Duration::from_secs(30);

/// The allocations of this machine.
pub struct Runner {
    machine: Arc<Machine>,
    advertised: Advertised,
    /// What allocations that start now get to know of the machine, shared by them.
    node: Mutex<Arc<Node>>,
    volumes: Arc<VolumePlugins>,
    secrets: Arc<SecretsOf<'static>>,
    reports: mpsc::Sender<Report>,
    allocs: Mutex<HashMap<String, Entry>>,
    /// The same for the commands that ask runs.
    served: Arc<Served>,
    /// Records that an earlier process left, by id.
    records: Mutex<HashMap<String, Record>>,
    /// The allocations among these that have ended.
    ended: Mutex<Arc<BTreeSet<String>>>,
    /// Set when this process ends and leaves the tasks running.
    leaving: watch::Sender<bool>,
    /// Number of allocations that this process manages.
    alive: watch::Sender<usize>,
}

/// An allocation, for orders to it.
#[derive(Clone)]
struct Entry {
    control: Arc<Control>,
    dir: PathBuf,
    /// Whether its tasks have ended, or were never started.
    ended: Arc<watch::Sender<bool>>,
    /// Set when its remains are to be removed.
    destroy: Arc<watch::Sender<bool>>,
    /// One of its tasks is a CSI plugin.
    is_csi_plugin: bool,
}

impl Runner {
    /// An engine for this machine on behalf of the agent; its reports arrive at the receiver. An allocation of an earlier agent
    /// process continues when it is started.
    ///
    /// # Errors
    /// The records in the data directory cannot be listed.
    pub fn new(
        machine: Arc<Machine>,
        advertised: Advertised,
        volumes: Arc<VolumePlugins>,
        secrets: Arc<SecretsOf<'static>>,
    ) -> std::io::Result<(Arc<Runner>, mpsc::Receiver<Report>)> {
        let mut records = HashMap::new();
        for record in machine.records.owned_by_agent()? {
            match record {
                Ok(record) => _ = records.insert(record.alloc_id.clone(), record),
                Err(error) => tracing::error!(error = chain(&error), "the record of an allocation is left alone"),
            }
        }
        let (reports, receiver) = mpsc::channel(REPORTS);
        let runner = Runner {
            served: Served::by_agent(&machine.data_dir),
            node: Mutex::new(Arc::clone(&machine.node)),
            machine,
            advertised,
            volumes,
            secrets,
            reports,
            allocs: Mutex::default(),
            records: Mutex::new(records),
            ended: Mutex::default(),
            leaving: watch::Sender::new(false),
            alive: watch::Sender::new(0),
        };
        Ok((Arc::new(runner), receiver))
    }

    /// The ids of allocations that an earlier process left and that were not started yet.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        lock(&self.records).keys().cloned().collect()
    }

    /// Releases the CSI volumes of allocations that an earlier process left, and that have ended, as soon as their plugins run.
    pub fn release_ended(self: &Arc<Self>, ended: BTreeSet<String>) {
        let (runner, ended) = (Arc::clone(self), Arc::new(ended));
        *lock(&self.ended) = Arc::clone(&ended);
        crate::sys::task::spawn(async move {
            let mut leaving = runner.leaving.subscribe();
            let is_live = |user: &str| !ended.contains(user);
            let released = async {
                let mut pauses = Pauses::new(&runner);
                while !runner.machine.csi.plugins.settle(&is_live, &*runner.secrets).await.is_empty() {
                    pauses.next().await;
                }
            };
            tokio::select! {
                () = released => {}
                _ = leaving.wait_for(|leaving| *leaving) => {}
            }
        });
    }

    /// The allocations for a control socket.
    #[must_use]
    pub fn served(&self) -> &Arc<Served> {
        &self.served
    }

    /// Returns when the tasks of all started allocations have been recovered or started, or after this time.
    pub async fn settled(&self, patience: Duration) {
        let controls: Vec<Arc<Control>> = lock(&self.allocs).values().map(|entry| Arc::clone(&entry.control)).collect();
        let all = async {
            for control in controls {
                control.settled().await;
            }
        };
        // Slower ones are reported when they are done.
        let _ = tokio::time::timeout(patience, all).await;
    }

    /// Ends this process's part: tasks continue, and their records let the next process recover them. Returns when no operation
    /// is in progress.
    pub async fn leave(&self) {
        self.leaving.send_replace(true);
        for entry in lock(&self.allocs).values() {
            entry.control.leave();
        }
        self.none_alive().await;
    }

    /// Ends this process's part and all tasks. Returns when all allocations have ended.
    pub async fn end(&self) {
        // CSI plugins go last: they unmount the volumes of the others.
        for plugins in [false, true] {
            let mut others = 0;
            for entry in lock(&self.allocs).values() {
                if entry.is_csi_plugin && !plugins {
                    others += 1;
                    continue;
                }
                entry.control.stop(Stop::Gracefully);
                entry.destroy.send_replace(true);
            }
            self.alive_at_most(others).await;
        }
    }

    async fn none_alive(&self) {
        self.alive_at_most(0).await;
    }

    async fn alive_at_most(&self, most: usize) {
        // The sender lives as long as this value.
        let _ = self.alive.subscribe().wait_for(|alive| *alive <= most).await;
    }

    fn entry(&self, id: &str) -> Result<Entry, OrderError> {
        lock(&self.allocs).get(id).cloned().ok_or_else(|| OrderError::UnknownAlloc(id.to_owned()))
    }

    async fn report(&self, report: Report) {
        // Without a receiver the agent is ending.
        let _ = self.reports.send(report).await;
    }

    /// The same in the background, for callers that the receiver of reports may be waiting for.
    fn report_soon(self: &Arc<Self>, report: Report) {
        let runner = Arc::clone(self);
        crate::sys::task::spawn(async move { runner.report(report).await });
    }

    /// The allocation, new or recovered from an earlier process.
    async fn make(&self, wanted: &Wanted) -> Result<Alloc, String> {
        let record = lock(&self.records).remove(&wanted.alloc.id);
        let previous = AllocId::parse(&wanted.alloc.previous_allocation);
        if let Some(record) = record {
            match Alloc::restore_among(&self.machine, record.clone(), &[Arc::clone(&wanted.job)]) {
                Ok(alloc) => {
                    alloc.control().update(&wanted.job);
                    let alloc = alloc.with_payload(&wanted.payload).with_parent(&wanted.version.parent_id);
                    return Ok(alloc.with_node(self.node_of(wanted)).with_csi(wanted.csi.clone()).after(previous));
                }
                Err(RestoreError::NeverMade(_)) => self.clean(record).await,
                Err(error) => {
                    // It will be replaced, so its processes must not continue next to the replacement.
                    self.clean(record).await;
                    return Err(chain(&error));
                }
            }
        }
        let group = &wanted.alloc.task_group;
        let assignment = assignment(&wanted.alloc, &wanted.job);
        let assignment =
            assignment.ok_or_else(|| format!("its assignment does not fit the group {group:?} of its job"))?;
        Ok(Alloc::new(&self.machine, &wanted.job, assignment)
            .with_payload(&wanted.payload)
            .with_parent(&wanted.version.parent_id)
            .with_node(self.node_of(wanted))
            .with_csi(wanted.csi.clone())
            .after(previous))
    }

    fn node_of(&self, wanted: &Wanted) -> Arc<Node> {
        let mut node = lock(&self.node);
        if node.attributes != wanted.attributes || node.meta != wanted.meta {
            let (attributes, meta) = (wanted.attributes.clone(), wanted.meta.clone());
            *node = Arc::new(Node { attributes, meta, ..Node::clone(&node) });
        }
        Arc::clone(&node)
    }

    /// Removes everything that a record lists.
    async fn clean(&self, record: Record) {
        let (machine, id, secrets) = (Arc::clone(&self.machine), record.alloc_id.clone(), Arc::clone(&self.secrets));
        let remove = move || {
            let containers = || machine::remove_containers(&machine.data_dir, &record).map_err(std::io::Error::other);
            let means = Means {
                remove_containers: &containers,
                remove_cgroup: &|path| (machine.remove_cgroup)(path),
                release_volumes: &|| {
                    let released = machine::release_volumes(&machine.data_dir, &record, &*secrets);
                    released.map_err(std::io::Error::other)
                },
                rescue: &|_| {},
            };
            crate::alloc::clean(&machine.data_dir, &record, &means)
        };
        match crate::sys::task::spawn_blocking(remove).await {
            Ok(errors) => warn_of(&id, &errors),
            Err(error) => tracing::error!(alloc = id, %error, "removing an allocation failed unexpectedly"),
        }
    }

    /// Removes everything that the record of an allocation lists. Returns whether nothing of that is left.
    async fn clean_all_of(&self, id: &str) -> bool {
        let records = &self.machine.records;
        if let Ok(Some(record)) = records.read(id) {
            self.clean(record).await;
        }
        matches!(records.read(id), Ok(None))
    }

    /// Called when the task of an allocation panicked: its processes must not continue unsupervised.
    async fn broke_down(&self, control: &Control, why: &str) {
        let id = control.id().to_string();
        tracing::error!(alloc = id, why, "looking after an allocation failed unexpectedly");
        self.clean_all_of(&id).await;
        self.forget(control.id());
        self.report(told::unstarted(control, Some(why))).await;
    }

    fn forget(&self, id: &AllocId) {
        self.served.remove(id);
        lock(&self.allocs).remove(id.as_str());
    }

    /// Whether no started task needs this process, or its successor. One that this process has left alone may have an executor, too.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let has_ended = lock(&self.allocs).values().all(|entry| *entry.ended.borrow());
        has_ended && lock(&self.records).values().all(|record| record.handles.is_empty())
    }
}

/// The allocation in the form that `alloc` uses; `None` if the job has no such group.
fn assignment(alloc: &Allocation, job: &Job) -> Option<Assignment> {
    let port = |port: &super::model::AllocatedPort| {
        Some(AllocPort {
            label: port.label.clone(),
            value: port.value,
            to: (port.to > 0).then_some(port.to),
            ip: port.host_ip.parse().ok()?,
            task: None,
        })
    };
    Some(Assignment {
        id: AllocId::parse(&alloc.id)?,
        group: job.groups.iter().position(|group| group.name == alloc.task_group)?,
        index: alloc.index(),
        name: alloc.name.clone(),
        ports: Some(alloc.allocated_resources.shared.ports.iter().map(port).collect::<Option<_>>()?),
    })
}

/// Counts an allocation while this process manages it.
struct Alive(Arc<Runner>);

impl Alive {
    fn new(runner: &Arc<Runner>) -> Alive {
        runner.alive.send_modify(|alive| *alive += 1);
        Alive(Arc::clone(runner))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.send_modify(|alive| *alive -= 1);
    }
}

/// Manages one allocation until its remains are removed, or this process leaves it.
async fn life(
    mut alloc: Box<Alloc>,
    alive: Alive,
    ended: Arc<watch::Sender<bool>>,
    mut destroy: watch::Receiver<bool>,
) {
    let runner = &Arc::clone(&alive.0);
    let (control, id) = (alloc.control(), alloc.id().to_string());
    let mut leaving = runner.leaving.subscribe();
    // What follows each other is boxed, so that it takes memory only while it runs.
    match alloc.set_up().await {
        Ok(()) => {
            if Box::pin(run(&mut alloc, runner)).await {
                return;
            }
            // Before the end is reported: then its resources must be free.
            warn_of(&id, &alloc.finish().await);
            ended.send_replace(true);
            runner.report(told::ended(&control, alloc.network(), limit(&alloc))).await;
        }
        Err((error, leftovers)) => {
            warn_of(&id, &leftovers);
            if alloc.is_restored() {
                Box::pin(give_up(&mut alloc, runner)).await;
            }
            ended.send_replace(true);
            let stopped = matches!(error, SetupError::Stopped);
            runner.report(told::unstarted(&control, (!stopped).then(|| chain(&error)).as_deref())).await;
        }
    }
    let was_left = alloc.is_anything_left();
    tokio::select! {
        () = Box::pin(async {
            release_volumes(&mut alloc, runner).await;
            std::future::pending::<()>().await;
        }) => {}
        // The sender lives in the entry, which only this function removes.
        _ = destroy.wait_for(|wanted| *wanted) => {}
        _ = leaving.wait_for(|leaving| *leaving) => return,
    }
    if alloc.has_volumes_left() {
        let tried = tokio::time::timeout(LAST_RELEASE, Box::pin(alloc.release_again())).await;
        warn_of(&id, &tried.unwrap_or_default());
    }
    if alloc.has_volumes_left() {
        // Nobody waits for a plugin that may never be back: what is left is in the records of the volumes.
        tracing::warn!(alloc = id, "an allocation is removed, and its CSI volumes when their plugin is back");
        warn_of(&id, &alloc.leave_volumes().await);
        runner.forget(control.id());
        drop((alive, destroy));
        tokio::select! {
            () = Box::pin(release_volumes(&mut alloc, runner)) => {}
            _ = leaving.wait_for(|leaving| *leaving) => {}
        }
        return;
    }
    warn_of(&id, &Box::pin(alloc.destroy()).await);
    if was_left {
        // It has kept its record: by that the rest is removed.
        Box::pin(runner.clean_all_of(&id)).await;
    }
    runner.forget(control.id());
}

/// Removes what is left of an allocation that could not be restored: its replacement needs its ports and volumes, and its processes
/// must not continue next to the replacement.
async fn give_up(alloc: &mut Alloc, runner: &Runner) {
    let id = alloc.id().to_string();
    let is_gone = runner.clean_all_of(&id).await;
    warn_of(&id, &alloc.cleaned(is_gone).await);
}

/// The pauses before CSI volumes are released again: each ends when a plugin is registered.
struct Pauses {
    changes: watch::Receiver<u64>,
    next: Duration,
}

impl Pauses {
    fn new(runner: &Runner) -> Pauses {
        Pauses { changes: runner.machine.csi.plugins.changes(), next: FIRST_RELEASE }
    }

    async fn next(&mut self) {
        tokio::select! {
            // The sender lives as long as the runner's machine.
            _ = self.changes.changed() => {}
            () = tokio::time::sleep(self.next) => self.next = (self.next * 2).min(LAST_RELEASE),
        }
    }
}

/// Retries the release of the CSI volumes of an allocation that has ended, until it succeeds.
async fn release_volumes(alloc: &mut Alloc, runner: &Runner) {
    let mut pauses = Pauses::new(runner);
    while alloc.has_volumes_left() {
        pauses.next().await;
        // One that could not be restored has not run, and its record lists more than volumes, as long as there is one.
        if alloc.control().has_ended() || matches!(runner.machine.records.read(alloc.id().as_str()), Ok(None)) {
            alloc.release_again().await;
        } else {
            give_up(alloc, runner).await;
        }
        if !alloc.has_volumes_left() {
            tracing::info!(alloc = %alloc.id(), "its CSI volumes are released");
        }
    }
}

/// The time until which it may run.
fn limit(alloc: &Alloc) -> Option<SystemTime> {
    alloc.control().created().checked_add(alloc.group().scheduling.max_run_duration?)
}

/// Runs its tasks and reports their states; `true` when this process has left them.
async fn run(alloc: &mut Alloc, runner: &Runner) -> bool {
    let (control, network) = (alloc.control(), alloc.network().cloned());
    let (mut changes, mut health) = (control.subscribe(), control.health());
    let stop = watch::Sender::new(Stop::No);
    let telling = async {
        loop {
            runner.report(told::of(&control, network.as_ref())).await;
            // The senders outlive this loop.
            tokio::select! {
                _ = changes.next() => {}
                _ = health.changed() => {}
            }
        }
    };
    let (limit, limited) = (limit(alloc), alloc.control());
    let timer = async {
        if let Some(limit) = limit {
            tokio::time::sleep(limit.duration_since(SystemTime::now()).unwrap_or_default()).await;
            limited.stop(Stop::Gracefully);
        }
        std::future::pending().await
    };
    let result = tokio::select! {
        biased;
        // Reports contain the events.
        result = alloc.run(stop.subscribe(), None) => result,
        never = telling => never,
        never = timer => never,
    };
    for left in result.tasks.iter().flat_map(|task| &task.leftovers) {
        tracing::warn!(alloc = %alloc.id(), left, "something of a task is left");
    }
    result.left
}

fn warn_of(id: &str, errors: &[CleanupError]) {
    for error in errors {
        tracing::warn!(alloc = id, error = chain(error), "something of an allocation is left");
    }
}

#[tonic::async_trait]
impl Engine for Arc<Runner> {
    async fn start(&self, wanted: Wanted) {
        let is_canary = wanted.alloc.deployment_status.as_ref().is_some_and(|health| health.canary);
        if let Ok(entry) = self.entry(&wanted.alloc.id) {
            if !*entry.destroy.borrow() {
                self.keep(entry.control.id(), &wanted);
            }
            entry.control.set_canary(is_canary);
            return entry.control.update(&wanted.job);
        }
        if *self.leaving.borrow() {
            return;
        }
        let alloc = match self.make(&wanted).await {
            Ok(alloc) => alloc,
            Err(why) => return self.report_soon(told::refused(&wanted.alloc, &wanted.job, &why)),
        };
        let (destroy, destroyed) = watch::channel(false);
        let ended = Arc::new(watch::Sender::new(false));
        let (control, dir) = (alloc.control(), alloc.dir().to_owned());
        control.set_canary(is_canary);
        self.keep(control.id(), &wanted);
        let group = wanted.job.groups.iter().find(|group| group.name == wanted.alloc.task_group);
        let entry = Entry {
            control: Arc::clone(&control),
            dir,
            ended: Arc::clone(&ended),
            destroy: Arc::new(destroy),
            is_csi_plugin: group.is_some_and(|group| group.tasks.iter().any(|task| task.csi_plugin.is_some())),
        };
        lock(&self.allocs).insert(wanted.alloc.id, entry);
        self.served.add(Arc::clone(&control));
        let life = crate::sys::task::spawn(life(Box::new(alloc), Alive::new(self), ended, destroyed));
        let runner = Arc::clone(self);
        crate::sys::task::spawn(async move {
            if let Err(error) = life.await {
                Box::pin(runner.broke_down(&control, &error.to_string())).await;
            }
        });
    }

    fn runs(&self, id: &str) -> bool {
        let known = self.entry(id).map(|entry| !*entry.ended.borrow());
        known.unwrap_or_else(|_| lock(&self.records).contains_key(id) && !lock(&self.ended).contains(id))
    }

    async fn stop(&self, id: &str, no_shutdown_delay: bool) {
        let Ok(entry) = self.entry(id) else { return };
        self.keep_stop(entry.control.id());
        if no_shutdown_delay {
            entry.control.stop_without_delay();
        } else {
            entry.control.stop(Stop::Gracefully);
        }
    }

    async fn restart(&self, id: &str, task: Option<&str>, all: bool) -> Result<(), OrderError> {
        let control = self.entry(id)?.control;
        if all {
            control.restart_all().await?;
        } else {
            control.restart(task).await?;
        }
        Ok(())
    }

    async fn signal(&self, id: &str, task: Option<&str>, signal: Signal) -> Result<(), OrderError> {
        self.entry(id)?.control.signal(task, signal).await?;
        Ok(())
    }

    async fn exec(&self, id: &str, task: &str, requests: ExecRequests) -> Result<ExecResponses, OrderError> {
        Ok(self.entry(id)?.control.exec(Some(task), requests).await?)
    }

    async fn stats(&self, id: &str, task: Option<&str>) -> Result<Vec<(String, TaskStats)>, OrderError> {
        Ok(self.entry(id)?.control.stats(task).await?)
    }

    async fn kept_output(
        &self,
        id: &str,
        task: &str,
        stream: Stream,
        follow: bool,
    ) -> Result<Option<KeptOutput>, OrderError> {
        Ok(self.entry(id)?.control.kept_output(task, stream, follow).await?)
    }

    fn checks(&self, id: &str) -> Option<BTreeMap<String, CheckState>> {
        self.entry(id).ok().map(|entry| offered::checks(&entry.control))
    }

    fn checks_pass_since(&self, id: &str) -> Option<Nanos> {
        offered::pass_since(&self.entry(id).ok()?.control)
    }

    fn service_changes(&self) -> watch::Receiver<u64> {
        self.machine.services.own_changes()
    }

    fn services(&self) -> Vec<ServiceRegistration> {
        self.machine.services.own().into_iter().map(offered::service).collect()
    }

    fn has_announced(&self, id: &str) -> bool {
        self.entry(id).is_ok_and(|entry| entry.control.has_announced())
    }

    fn port_holder(&self, port: u16) -> Option<String> {
        self.machine.ports.holder(port)
    }

    fn validate(&self, job: &Job) -> Vec<String> {
        let tasks = job.groups.iter().flat_map(|group| &group.tasks);
        let wrong = |task: &crate::spec::Task| {
            let driver = self.machine.drivers.get(&task.driver)?;
            driver.validate(&task.config).err().map(|error| format!("task {:?}: {}", task.name, chain(&error)))
        };
        tasks.filter_map(wrong).collect()
    }

    async fn describe(&self, patience: Option<Duration>) -> Described {
        described::machine(&self.machine, &self.advertised, &self.volumes, patience).await
    }

    fn volume_plugins(&self) -> Arc<VolumePlugins> {
        Arc::clone(&self.volumes)
    }

    fn csi_plugins(&self) -> Arc<Plugins> {
        Arc::clone(&self.machine.csi.plugins)
    }

    fn alloc_dir(&self, id: &str) -> Option<PathBuf> {
        if let Ok(entry) = self.entry(id) {
            return Some(entry.dir);
        }
        // An allocation that had ended before this process started.
        let dir = self.machine.data_dir.join("alloc").join(AllocId::parse(id)?.as_str());
        dir.is_dir().then_some(dir)
    }

    async fn destroy(&self, id: &str) {
        if let Ok(entry) = self.entry(id) {
            entry.control.stop(Stop::Gracefully);
            entry.destroy.send_replace(true);
            // The allocation's async task holds the receiver.
            return entry.destroy.closed().await;
        }
        let record = lock(&self.records).remove(id);
        if let Some(record) = record {
            self.clean(record).await;
        }
    }
}
