//! What everything that decides shares: the state, the engine, the queue of evaluations, the jobs as they were read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::sync::Notify;

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
use super::state::{State, StateError, View};
use crate::spec::JobType;
use crate::sys::lock::lock;

/// So many allocations may wait in a row for one that has not ended.
const LONGEST_WAIT: usize = 64;

/// See the module.
pub(super) struct Core {
    pub(super) state: State,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) broker: Broker,
    pub(super) jobs: Jobs,
    /// When ports were given back.
    pub(super) ports: Mutex<PortHistory>,
    /// Something came that a deployment may go on with.
    pub(super) deployments: Notify,
    /// Something came that a drain may go on with.
    pub(super) drain: Notify,
    /// Jobs came or went that a clock starts.
    pub(super) periodic: Notify,
    /// An allocation may have ended, or said what it offers.
    pub(super) services: Notify,
    /// Allocations that wait for the end of another one whose place they take: by their ids, with its.
    waiting: Mutex<HashMap<String, (String, Wanted)>>,
}

/// A new id.
pub(super) fn new_id() -> String {
    crate::sys::random::uuid().hyphenated().to_string()
}

/// A job's key as an allocation or evaluation has it.
pub(super) fn key(namespace: &str, job: &str) -> JobKey {
    JobKey { namespace: namespace.to_owned(), id: job.to_owned() }
}

/// A pending evaluation with nothing special about it.
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
        failed: std::collections::BTreeMap::new(),
        plan_annotations: std::collections::BTreeMap::new(),
        queued_allocations: std::collections::BTreeMap::new(),
        snapshot_index: 0,
        create_index: 0,
        modify_index: 0,
        create_time: now,
        modify_time: now,
    }
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
            waiting: Mutex::default(),
        })
    }

    /// An evaluation of a job as it is now.
    pub(super) fn evaluation_of(&self, job: &JobVersion, why: Trigger) -> Evaluation {
        let (priority, kind) = self.jobs.of(job).map_or((50, JobType::Service), |job| (job.priority, job.kind));
        Evaluation {
            priority,
            job_modify_index: job.job_modify_index,
            ..evaluation(new_id(), (&job.key.namespace, &job.key.id), kind, why)
        }
    }

    /// Has the engine do what is wanted of these allocations by now; what it did before it goes on with.
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

    /// Has the engine take up what an earlier process left, whatever is wanted of it by now.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) async fn take_up(&self, allocs: Vec<Allocation>) -> Result<(), StateError> {
        let (wanted, ending): (Vec<_>, Vec<_>) =
            allocs.into_iter().partition(|alloc| alloc.desired_status == DesiredStatus::Run);
        // Those that end first: others may wait for them.
        for alloc in ending {
            if self.engine.runs(&alloc.id) {
                self.begin(alloc.clone()).await?;
            }
            self.end(alloc).await?;
        }
        self.carry_out(wanted).await
    }

    async fn begin(&self, alloc: Allocation) -> Result<(), StateError> {
        let (version, previous, meta) = {
            let view = self.state.read()?;
            let meta = view.node()?.map(|node| node.meta).unwrap_or_default();
            (view.version_of(&alloc)?, self.still_there(&view, &alloc)?, meta)
        };
        let job = version.as_ref().and_then(|version| self.jobs.of(version).ok());
        let Some(job) = job else {
            // It was registered once, so that this is an older agent's job that this one does not understand. Nobody would look
            // after what runs of it.
            if self.engine.runs(&alloc.id) {
                self.engine.destroy(&alloc.id).await;
            }
            return self.give_up(alloc, "the job of this allocation cannot be read any more").await;
        };
        let payload = version.map(|version| version.payload).unwrap_or_default();
        let Ok(payload) = STANDARD.decode(payload) else {
            return self.give_up(alloc, "the payload of this job cannot be read").await;
        };
        let wanted = Wanted { alloc, job, payload, meta };
        match previous.filter(|_| !self.engine.runs(&wanted.alloc.id)) {
            Some(previous) => {
                lock(&self.waiting).insert(wanted.alloc.id.clone(), (previous, wanted));
            }
            None => self.engine.start(wanted).await,
        }
        Ok(())
    }

    /// The one before it that has not ended: the one whose place it takes or, where that waited itself, whose place that takes.
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

    /// Goes on with what is kept: nothing that was decided, waits or runs is known before.
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
        self.broker.forget();
        lock(&self.waiting).clear();
        self.catch_up().await?;
        // Before those who wait are known: none of them heard of what came.
        self.unblock_all();
        for eval in self.state.read()?.open_evals() {
            self.broker.put(&eval?);
        }
        Ok(())
    }

    /// Has the engine do all that is wanted by now, also what it may not have heard of.
    ///
    /// # Errors
    /// [`StateError`].
    pub(super) async fn catch_up(&self) -> Result<(), StateError> {
        let live = self.state.read()?.live_allocs().all()?;
        self.take_up(live).await
    }

    /// Those that waited for something may have missed that it came.
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

    /// An allocation that the engine does not have and will not get has ended; with a reason it has failed.
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

    /// Those that waited for this one's end.
    pub(super) fn successors(&self, ended: &str) -> Vec<Wanted> {
        lock(&self.waiting).extract_if(|_, (previous, _)| previous == ended).map(|(_, (_, wanted))| wanted).collect()
    }
}

/// Returns when somebody says that something has changed, at the latest at `until`, and sometimes before.
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
