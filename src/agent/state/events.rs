//! The feed of `/v1/event/stream`: changes in Nomad's topics and types.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::change::{Before, Change};
use super::error::StateError;
use super::table::Table;
use super::view::{damaged, decode};
use crate::agent::model::{Allocation, Deployment, Evaluation, JobVersion, Node, ServiceRegistration, Token};
use crate::sys::lock::lock;

/// Changes that are kept for later subscribers.
const KEPT: usize = 100;
/// Limit of their records, in bytes; the last change is kept whatever its size.
const BYTES: usize = 256 << 10;

/// The kind of object that an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "Nomad's topics")]
pub enum Topic {
    Job,
    Evaluation,
    Allocation,
    Deployment,
    Node,
    Service,
    AclToken,
}

impl Topic {
    /// Nomad's name of it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Topic::Job => "Job",
            Topic::Evaluation => "Evaluation",
            Topic::Allocation => "Allocation",
            Topic::Deployment => "Deployment",
            Topic::Node => "Node",
            Topic::Service => "Service",
            Topic::AclToken => "ACLToken",
        }
    }
}

/// The record that an event is about, as it was after the change, or before it when it was removed.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Object {
    Job(Box<JobVersion>),
    Evaluation(Box<Evaluation>),
    Allocation(Box<Allocation>),
    Deployment(Box<Deployment>),
    Node(Box<Node>),
    Service(Box<ServiceRegistration>),
    Token(Box<Token>),
}

/// An event.
#[derive(Debug, Clone)]
pub struct Event {
    /// See [`Topic`].
    pub topic: Topic,
    /// Nomad's type: `JobRegistered`. All events of one change have the same.
    pub kind: &'static str,
    /// The object's id.
    pub key: String,
    /// Its namespace; empty for none.
    pub namespace: String,
    /// Other ids that filters match.
    pub filter_keys: Vec<String>,
    /// Whether the object was removed.
    pub deleted: bool,
    record: Arc<[u8]>,
}

impl Event {
    /// The object.
    ///
    /// # Errors
    /// [`StateError::Damaged`].
    pub fn object(&self) -> Result<Object, StateError> {
        let (key, record) = (self.key.as_bytes(), &*self.record);
        Ok(match self.topic {
            Topic::Job => Object::Job(decode(Table::Jobs.name(), key, record)?),
            Topic::Evaluation => Object::Evaluation(decode(Table::Evals.name(), key, record)?),
            Topic::Allocation => Object::Allocation(decode(Table::Allocs.name(), key, record)?),
            Topic::Deployment => Object::Deployment(decode(Table::Deployments.name(), key, record)?),
            Topic::Node => Object::Node(decode(Table::Nodes.name(), key, record)?),
            Topic::Service => Object::Service(decode(Table::Services.name(), key, record)?),
            Topic::AclToken => Object::Token(decode(Table::Tokens.name(), key, record)?),
        })
    }
}

/// The events of one change.
#[derive(Debug, Clone)]
pub struct EventBatch {
    /// Its index.
    pub index: u64,
    /// At least one, in the order in which the records were written.
    pub events: Vec<Event>,
}

impl EventBatch {
    fn bytes(&self) -> usize {
        self.events.iter().map(|event| event.record.len() + event.key.len()).sum()
    }
}

/// The subscriber was too slow: events that it has not read were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("events were lost: the reader was too slow; subscribe again")]
pub struct Behind;

/// The stored changes, and the notification of subscribers.
#[derive(Debug)]
pub(super) struct Feed {
    ring: Mutex<Ring>,
    /// The number of the next change.
    next: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    batches: VecDeque<Arc<EventBatch>>,
    bytes: usize,
    /// The number of the first one.
    first: u64,
}

impl Feed {
    pub(super) fn new() -> Feed {
        Feed { ring: Mutex::default(), next: watch::Sender::new(0) }
    }

    pub(super) fn push(&self, batch: EventBatch) {
        if batch.events.is_empty() {
            return;
        }
        let mut ring = lock(&self.ring);
        ring.bytes += batch.bytes();
        ring.batches.push_back(Arc::new(batch));
        while ring.batches.len() > KEPT || (ring.bytes > BYTES && ring.batches.len() > 1) {
            let Some(old) = ring.batches.pop_front() else { break };
            ring.bytes -= old.bytes();
            ring.first += 1;
        }
        let next = ring.first + ring.batches.len() as u64;
        drop(ring);
        self.next.send_replace(next);
    }

    /// Drops all changes, because the events of one are not known. Subscribers get an error.
    pub(super) fn lose(&self) {
        let mut ring = lock(&self.ring);
        let next = ring.first + ring.batches.len() as u64 + 1;
        *ring = Ring { first: next, ..Ring::default() };
        drop(ring);
        self.next.send_replace(next);
    }
}

/// A subscription. It does not block the feed: a subscriber that is too slow gets an error.
#[derive(Debug)]
pub struct Events {
    feed: Arc<Feed>,
    next: u64,
    changed: watch::Receiver<u64>,
}

impl Events {
    /// Begins at the first stored change with at least this index; 0 begins at the oldest.
    pub(super) fn new(feed: &Arc<Feed>, from: u64) -> Events {
        let changed = feed.next.subscribe();
        let next = {
            let ring = lock(&feed.ring);
            let before = ring.batches.partition_point(|batch| batch.index < from);
            ring.first + before as u64
        };
        Events { feed: Arc::clone(feed), next, changed }
    }

    /// The events of the next change. Can be dropped and called again.
    ///
    /// # Errors
    /// [`Behind`]; the next call continues with the oldest stored change.
    pub async fn next(&mut self) -> Result<Arc<EventBatch>, Behind> {
        loop {
            self.changed.borrow_and_update();
            {
                let ring = lock(&self.feed.ring);
                if self.next < ring.first {
                    self.next = ring.first;
                    return Err(Behind);
                }
                if let Some(batch) = usize::try_from(self.next - ring.first).ok().and_then(|at| ring.batches.get(at)) {
                    self.next += 1;
                    return Ok(Arc::clone(batch));
                }
            }
            if self.changed.changed().await.is_err() {
                // Its sender lives in the feed, which lives here.
                return std::future::pending().await;
            }
        }
    }
}

/// The events of a change, in Nomad's types.
pub(super) fn of(change: &Change<'_>) -> Result<EventBatch, StateError> {
    let mut events = Vec::new();
    let mut kind = Kind::default();
    for before in change.before() {
        let after = change.source().get(before.table.name(), &before.key)?;
        if after == before.value {
            continue;
        }
        kind.see(before, after.as_deref())?;
        let deleted = after.is_none();
        let Some(record) = after.as_deref().or(before.value.as_deref()) else { continue };
        events.extend(event(change, before, record, deleted)?);
    }
    let kind = kind.name();
    for event in &mut events {
        event.kind = kind;
    }
    Ok(EventBatch { index: change.next_index(), events })
}

fn event(change: &Change<'_>, before: &Before, record: &[u8], deleted: bool) -> Result<Option<Event>, StateError> {
    let table = before.table.name();
    let open = |record: &[u8]| {
        let plain = change.keys.open_sealed(table, &before.key, record);
        plain.ok_or_else(|| damaged(table, &before.key, &"it was sealed with another key"))
    };
    let (topic, key, namespace, filter_keys, record) = match before.table {
        Table::Jobs => {
            let job: JobVersion = decode(table, &before.key, record)?;
            let parent = Some(job.parent_id).filter(|parent| !parent.is_empty());
            (Topic::Job, job.key.id, job.key.namespace, parent.into_iter().collect(), Arc::from(record))
        }
        Table::Evals => {
            let eval: Evaluation = decode(table, &before.key, record)?;
            // Nomad has the deployment's id here even if it is empty.
            (Topic::Evaluation, eval.id, eval.namespace, vec![eval.job_id, eval.deployment_id], Arc::from(record))
        }
        Table::Allocs => {
            let alloc: Allocation = decode(table, &before.key, record)?;
            (Topic::Allocation, alloc.id, alloc.namespace, vec![alloc.job_id, alloc.deployment_id], Arc::from(record))
        }
        Table::Deployments => {
            let deployment: Deployment = decode(table, &before.key, record)?;
            (Topic::Deployment, deployment.id, deployment.namespace, vec![deployment.job_id], Arc::from(record))
        }
        Table::Nodes => {
            let node: Node = decode(table, &before.key, record)?;
            (Topic::Node, node.id, String::new(), Vec::new(), Arc::from(record))
        }
        Table::Services => {
            let service: ServiceRegistration = decode(table, &before.key, record)?;
            let keys = vec![service.job_id, service.service_name];
            (Topic::Service, service.id, service.namespace, keys, Arc::from(record))
        }
        Table::Tokens => {
            let plain = open(record)?;
            let token: Token = decode(table, &before.key, &plain)?;
            (Topic::AclToken, token.accessor_id, String::new(), Vec::new(), Arc::from(plain))
        }
        Table::Summaries
        | Table::Variables
        | Table::Namespaces
        | Table::Launches
        | Table::Scaling
        | Table::Settings
        | Table::Volumes
        | Table::Claims
        | Table::CsiVolumes => return Ok(None),
    };
    Ok(Some(Event { topic, kind: "", key, namespace, filter_keys, deleted, record }))
}

/// The type of all events of a change: that of its most significant record.
#[derive(Debug, Default)]
struct Kind(Option<(u8, &'static str)>);

impl Kind {
    fn name(&self) -> &'static str {
        self.0.map_or("PlanResult", |(_, name)| name)
    }

    fn say(&mut self, rank: u8, name: &'static str) {
        if self.0.is_none_or(|(best, _)| rank < best) {
            self.0 = Some((rank, name));
        }
    }

    fn see(&mut self, before: &Before, after: Option<&[u8]>) -> Result<(), StateError> {
        let table = before.table.name();
        match (before.table, &before.value, after) {
            (Table::Jobs, _, None) => self.say(0, "JobDeregistered"),
            (Table::Jobs, old, Some(new)) => {
                let new: JobVersion = decode(table, &before.key, new)?;
                let old: Option<JobVersion> = old.as_deref().map(|old| decode(table, &before.key, old)).transpose()?;
                // A change of the status alone takes the type of the change that caused it.
                if old.is_none_or(|old| old.version != new.version) {
                    self.say(0, if new.stop { "JobDeregistered" } else { "JobRegistered" });
                }
            }
            (Table::Allocs, Some(old), Some(new)) => {
                let old: Allocation = decode(table, &before.key, old)?;
                let new: Allocation = decode(table, &before.key, new)?;
                if old.desired_transition != new.desired_transition {
                    self.say(3, "AllocationUpdateDesiredStatus");
                } else if old.alloc_modify_index != new.alloc_modify_index {
                    self.say(2, "PlanResult");
                } else {
                    self.say(4, "AllocationUpdated");
                }
            }
            (Table::Deployments, Some(old), Some(new)) => {
                let old: Deployment = decode(table, &before.key, old)?;
                let new: Deployment = decode(table, &before.key, new)?;
                let promoted = |of: &Deployment| of.task_groups.values().filter(|group| group.promoted).count();
                if old.status != new.status {
                    self.say(3, "DeploymentStatusUpdate");
                } else if promoted(&old) != promoted(&new) {
                    self.say(1, "DeploymentPromotion");
                } else {
                    self.say(5, "DeploymentAllocHealth");
                }
            }
            (Table::Allocs | Table::Deployments, _, _) => self.say(2, "PlanResult"),
            (Table::Evals, _, _) => self.say(6, "EvaluationUpdated"),
            (Table::Nodes, None, _) => self.say(1, "NodeRegistration"),
            (Table::Nodes, Some(_), None) => self.say(1, "NodeDeregistration"),
            (Table::Nodes, Some(old), Some(new)) => {
                let old: Node = decode(table, &before.key, old)?;
                let new: Node = decode(table, &before.key, new)?;
                if old.drain_strategy != new.drain_strategy {
                    self.say(1, "NodeDrain");
                } else if old.scheduling_eligibility != new.scheduling_eligibility {
                    self.say(1, "NodeEligibility");
                } else {
                    self.say(7, "NodeEvent");
                }
            }
            (Table::Services, _, Some(_)) => self.say(8, "ServiceRegistration"),
            (Table::Services, _, None) => self.say(8, "ServiceDeregistration"),
            (Table::Tokens, _, Some(_)) => self.say(8, "ACLTokenUpserted"),
            (Table::Tokens, _, None) => self.say(8, "ACLTokenDeleted"),
            _ => {}
        }
        Ok(())
    }
}
