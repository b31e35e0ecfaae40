//! State shared by all components that decide: the database, the engine, the evaluation queues, the parsed jobs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::broker::Broker;
use super::clock::nap;
pub(super) use super::clock::now;
use super::engine::{Engine, Wanted};
use super::jobs::Jobs;
use super::model::{
    Allocation, ClientStatus, DesiredStatus, EvalStatus, Evaluation, JobKey, JobVersion, Nanos, TaskState,
    TaskStateName, Trigger,
};
use super::schedule::{self, PortHistory};
use super::settings;
use super::state::{State, StateError, View};
use crate::spec::collections::BTreeSet;
use crate::spec::{Job, JobType, Task};
use crate::sys::lock::lock;

/// How long after the start decisions wait for drivers that are still being asked.
const HEARING: Duration = Duration::from_secs(1);
/// Longest chain of allocations that wait for their predecessors.
const LONGEST_WAIT: usize = 64;

/// See the module.
pub(super) struct Core {
    pub(super) state: State,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) broker: Broker,
    pub(super) jobs: Jobs,
    /// When ports were released.
    pub(super) ports: Mutex<PortHistory>,
    /// Notified when deployments have to be checked.
    pub(super) deployments: Notify,
    /// Notified when a drain has to be checked.
    pub(super) drain: Notify,
    /// Notified when periodic jobs were added or removed.
    pub(super) periodic: Notify,
    /// Notified when an allocation may have ended or registered services.
    pub(super) services: Notify,
    /// The drivers that have not said yet what they are.
    pub(super) late: watch::Sender<BTreeSet<String>>,
    begun: Instant,
    /// Names of the volumes that a plugin works at.
    pub(super) volumes: Mutex<BTreeSet<String>>,
    /// Allocations that wait for the end of the allocation that they replace: by their ids, with the id of the other one.
    waiting: Mutex<HashMap<String, (String, Wanted)>>,
}

/// A new id.
pub(super) fn new_id() -> String {
    crate::sys::random::uuid().hyphenated().to_string()
}

/// The job key for an allocation or evaluation.
pub(super) fn key(namespace: &str, job: &str) -> JobKey {
    JobKey { namespace: namespace.to_owned(), id: job.to_owned() }
}

/// A pending evaluation with defaults.
pub(super) fn evaluation(id: String, (namespace, job): (&str, &str), kind: JobType, why: Trigger) -> Evaluation {
    let now = now();
    Evaluation {
        id,
        namespace: namespace.to_owned(),
        priority: 50,
        kind,
        triggered_by: why,
        job_id: job.to_owned(),
        job_modify_index: 0,
        node_id: String::new(),
        deployment_id: String::new(),
        status: EvalStatus::Pending,
        status_description: String::new(),
        wait: Nanos(0),
        wait_until_nanos: Nanos(0),
        next_eval: String::new(),
        previous_eval: String::new(),
        blocked_eval: String::new(),
        failed: crate::spec::collections::BTreeMap::new(),
        plan_annotations: crate::spec::collections::BTreeMap::new(),
        queued_allocations: crate::spec::collections::BTreeMap::new(),
        snapshot_index: 0,
        create_index: 0,
        modify_index: 0,
        create_time: now,
        modify_time: now,
    }
}

/// The job as an allocation runs it: without `memory_max` if that had no effect when the allocation was placed.
fn as_placed(mut job: Arc<Job>, alloc: &Allocation) -> Arc<Job> {
    let has = &alloc.allocated_resources.tasks;
    let is_ignored = |task: &Task| {
        task.resources.memory_max_mib != 0 && has.get(&task.name).is_some_and(|has| has.memory_max_mb == 0)
    };
    if job.groups.iter().flat_map(|group| &group.tasks).any(is_ignored) {
        for task in Arc::make_mut(&mut job).groups.iter_mut().flat_map(|group| &mut group.tasks) {
            if is_ignored(task) {
                task.resources.memory_max_mib = 0;
            }
        }
    }
    job
}

impl Core {
    pub(super) fn new(state: State, engine: Arc<dyn Engine>) -> Arc<Core> {
        Arc::new(Core {
            state,
            engine,
            broker: Broker::default(),
            jobs: Jobs::default(),
            ports: Mutex::default(),
            deployments: Notify::new(),
            drain: Notify::new(),
            periodic: Notify::new(),
            services: Notify::new(),
            late: watch::Sender::default(),
            begun: Instant::now(),
            volumes: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    /// Waits until these drivers have said what they are, if the agent began only just now.
    pub(super) async fn hear(&self, is_needed: impl Fn(&str) -> bool) {
        let mut late = self.late.subscribe();
        // The sender lives as long as this.
        let heard = late.wait_for(|late| !late.iter().any(|driver| is_needed(driver)));
        let _ = tokio::time::timeout_at(self.begun + HEARING, heard).await;
    }

    /// An evaluation of a job by its current record.
    pub(super) fn evaluation_of(&self, job: &JobVersion, why: Trigger) -> Evaluation {
        let (priority, kind) = self.jobs.of(job).map_or((50, JobType::Service), |job| (job.priority, job.kind));
        Evaluation {
            priority,
            job_modify_index: job.job_modify_index,
            ..evaluation(new_id(), (&job.key.namespace, &job.key.id), kind, why)
        }
    }

    /// Makes the engine apply the desired status of these allocations; it continues what it is doing for them already.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) async fn carry_out(&self, allocs: Vec<Allocation>) -> Result<(), StateError> {
        for alloc in allocs {
            if alloc.client_status.is_terminal() {
                continue;
            }
            if alloc.desired_status == DesiredStatus::Run {
                self.begin(alloc).await?;
            } else {
                self.end(alloc).await?;
            }
        }
        Ok(())
    }

    /// Makes the engine recover allocations that an earlier process left, whatever their desired status is now.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) async fn take_up(&self, allocs: Vec<Allocation>) -> Result<(), StateError> {
        let (wanted, ending): (Vec<_>, Vec<_>) =
            allocs.into_iter().partition(|alloc| alloc.desired_status == DesiredStatus::Run);
        // Allocations that are ending come first: others may wait for them.
        for alloc in ending {
            if self.engine.runs(&alloc.id) {
                self.begin(alloc.clone()).await?;
            }
            self.end(alloc).await?;
        }
        self.carry_out(wanted).await
    }

    async fn begin(&self, alloc: Allocation) -> Result<(), StateError> {
        let (version, previous, node) = {
            let view = self.state.read()?;
            let node = view.node()?.map(|node| (node.attributes, node.meta)).unwrap_or_default();
            (view.version_of(&alloc)?, self.still_there(&view, &alloc)?, node)
        };
        let known = version.and_then(|version| Some((self.jobs.of(&version).ok()?, version)));
        let Some((job, version)) = known else {
            // It was registered once, so it is an older agent's job that this one does not understand. Its running tasks would
            // not be supervised.
            if self.engine.runs(&alloc.id) {
                self.engine.destroy(&alloc.id).await;
            }
            return self.give_up(alloc, "the job of this allocation cannot be read any more").await;
        };
        let Ok(payload) = STANDARD.decode(&version.payload) else {
            return self.give_up(alloc, "the payload of this job cannot be read").await;
        };
        let csi = super::csi::given(&self.state.read()?, &job, &alloc)?;
        let job = as_placed(job, &alloc);
        let (attributes, meta) = node;
        let wanted = Wanted { alloc, job, version, payload, attributes, meta, csi };
        match previous.filter(|_| !self.engine.runs(&wanted.alloc.id)) {
            Some(previous) => {
                lock(&self.waiting).insert(wanted.alloc.id.clone(), (previous, wanted));
            }
            None => self.engine.start(wanted).await,
        }
        Ok(())
    }

    /// A predecessor that has not ended: the allocation that it replaces or, if that one was waiting itself, the one that that
    /// one replaces.
    fn still_there(&self, view: &View, alloc: &Allocation) -> Result<Option<String>, StateError> {
        let mut id = alloc.previous_allocation.clone();
        for _ in 0..LONGEST_WAIT {
            let Some(previous) = (if id.is_empty() { None } else { view.alloc(&id)? }) else { break };
            if !previous.client_status.is_terminal() && self.engine.runs(&id) {
                return Ok(Some(id));
            }
            if !previous.task_states.is_empty() {
                break;
            }
            id = previous.previous_allocation;
        }
        Ok(None)
    }

    /// Starts from the stored state, with empty queues and caches.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) async fn begin_anew(&self) -> Result<(), StateError> {
        let mut ports = PortHistory::default();
        for alloc in self.state.read()?.allocs("") {
            ports.add(&alloc?);
        }
        *lock(&self.ports) = ports;
        self.jobs.forget();
        self.follow_settings()?;
        self.broker.forget();
        lock(&self.waiting).clear();
        self.catch_up().await?;
        // Before the waiting evaluations are queued, so that each of them sees these changes as possibly missed.
        self.unblock_all();
        for eval in self.state.read()?.open_evals() {
            self.broker.put(&eval?);
        }
        Ok(())
    }

    /// Pauses the broker, or resumes it, as the scheduler's configuration says.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) fn follow_settings(&self) -> Result<(), StateError> {
        self.broker.pause(settings::is_on(&self.state.read()?, settings::PAUSE)?);
        Ok(())
    }

    /// Makes the engine apply the desired status of all live allocations, including changes that it may have missed.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) async fn catch_up(&self) -> Result<(), StateError> {
        let live = self.state.read()?.live_allocs().all()?;
        self.take_up(live).await
    }

    /// Retries evaluations that may have missed the change that they wait for.
    pub(super) fn unblock_all(&self) {
        use schedule::Change::{AllocEnded, NodeChanged, NodeEligible, PortFreed};
        for change in [AllocEnded, NodeEligible, NodeChanged, PortFreed] {
            self.broker.unblock(change, self.state.index());
        }
    }

    async fn end(&self, alloc: Allocation) -> Result<(), StateError> {
        let is_waiting = lock(&self.waiting).remove(&alloc.id).is_some();
        if is_waiting || !self.engine.runs(&alloc.id) {
            return self.give_up(alloc, "").await;
        }
        let at_once = alloc.desired_transition.no_shutdown_delay == Some(true);
        self.engine.stop(&alloc.id, at_once).await;
        Ok(())
    }

    /// Marks an allocation that the engine does not have, and will not get, as ended; with a reason, as failed.
    async fn give_up(&self, alloc: Allocation, why: &str) -> Result<(), StateError> {
        let id = alloc.id;
        let (status, text) = if why.is_empty() {
            (ClientStatus::Complete, "All tasks have completed".to_owned())
        } else {
            (ClientStatus::Failed, why.to_owned())
        };
        let ended = move |change: &mut super::state::Change<'_>| {
            let Some(mut alloc) = change.alloc(&id)? else { return Ok(()) };
            if alloc.client_status.is_terminal() {
                return Ok(());
            }
            (alloc.client_status, alloc.client_description) = (status, text);
            for TaskState { state, .. } in alloc.task_states.values_mut() {
                *state = TaskStateName::Dead;
            }
            alloc.modify_time = now();
            change.put_alloc(alloc)
        };
        let (index, ()) = self.state.change(ended).await?;
        self.broker.unblock(schedule::Change::AllocEnded, index);
        Ok(())
    }

    /// Removes and returns the allocations that waited for this one's end.
    pub(super) fn successors(&self, ended: &str) -> Vec<Wanted> {
        lock(&self.waiting).extract_if(|_, (previous, _)| previous == ended).map(|(_, (_, wanted))| wanted).collect()
    }
}

/// Returns after a notification, at `until` at the latest, and sometimes earlier.
pub(super) async fn wait(changed: &Notify, until: Option<Nanos>) {
    let time = async {
        match until {
            Some(until) => tokio::time::sleep(nap(until)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = changed.notified() => {}
        () = time => {}
    }
}
