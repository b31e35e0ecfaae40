//! The only writer: a thread that executes changes in the order of their arrival, and commits those together that are waiting
//! at the same time.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::bulk::Bulk;
use super::database::Base;
use super::draft::{Draft, Open};
use super::error::StoreError;
use crate::sys::lock::lock;

/// Limit of waiting changes; further submitters wait for a place.
const WAITING: usize = 256;
/// Limit of changes per commit.
const TOGETHER: usize = 64;
/// How long a change that is not urgent waits for others.
const COMPANY: Duration = Duration::from_millis(4);
/// Stack size of the thread: a change decodes records, none of which is nested deeply.
const STACK: usize = 512 << 10;

/// Callback with the result of the commit.
pub type Done = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The decision about a change.
pub enum Verdict {
    /// Commit it, then call back.
    Keep(Done),
    /// Drop it with its writes. The callback runs once the data that it has read is committed.
    Drop(Done),
}

impl std::fmt::Debug for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Keep(_) => "Keep",
            Verdict::Drop(_) => "Drop",
        })
    }
}

pub(super) type Work = Box<dyn FnOnce(Result<&Arc<Draft>, StoreError>) -> Verdict + Send>;
pub(super) type BulkWork = Box<dyn FnOnce(Result<&Bulk, StoreError>) -> Verdict + Send>;

enum Task {
    Change(Work),
    Bulk(BulkWork),
}

struct Job {
    task: Task,
    /// It may wait for others.
    soon: bool,
    _room: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    /// A reader found that the database has to be reopened.
    nudged: bool,
    closed: bool,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    come: Condvar,
}

/// The thread and its queue.
pub(super) struct Writer {
    queue: Arc<Queue>,
    room: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
    id: ThreadId,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    pub(super) fn start(base: &Arc<Base>) -> Result<Writer, StoreError> {
        let queue = Arc::new(Queue::default());
        let (of_thread, base) = (Arc::clone(&queue), Arc::clone(base));
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .stack_size(STACK)
            .spawn(move || run(&of_thread, &base))
            .map_err(StoreError::io("start the thread that writes the database"))?;
        let id = thread.thread().id();
        Ok(Writer { queue, room: Arc::new(Semaphore::new(WAITING)), thread: Mutex::new(Some(thread)), id })
    }

    pub(super) async fn submit(&self, soon: bool, work: Work) {
        self.push(soon, Task::Change(work)).await;
    }

    pub(super) async fn submit_bulk(&self, work: BulkWork) {
        self.push(false, Task::Bulk(work)).await;
    }

    /// Returns whether there was a free place.
    pub(super) fn submit_now(&self, work: Work) -> bool {
        let room = Arc::clone(&self.room).try_acquire_owned();
        room.map(|room| self.add(false, Task::Change(work), room)).is_ok()
    }

    async fn push(&self, soon: bool, task: Task) {
        // Never closed: the semaphore lives as long as the writer, which outlives this call.
        if let Ok(room) = Arc::clone(&self.room).acquire_owned().await {
            self.add(soon, task, room);
        }
    }

    fn add(&self, soon: bool, task: Task, room: OwnedSemaphorePermit) {
        lock(&self.queue.waiting).jobs.push_back(Job { task, soon, _room: room });
        self.queue.come.notify_one();
    }

    /// Makes the thread reopen the database if that is necessary.
    pub(super) fn nudge(&self) {
        lock(&self.queue.waiting).nudged = true;
        self.queue.come.notify_one();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.queue.waiting).closed = true;
        self.queue.come.notify_one();
        // A change may hold the last clone of the store.
        if std::thread::current().id() == self.id {
            return;
        }
        if let Some(thread) = lock(&self.thread).take() {
            // Panics of changes were reported to their submitters.
            let _ = thread.join();
        }
    }
}

/// The next batch: changes, or a request to reopen the database. `None` when the queue is closed.
fn next(queue: &Queue) -> Option<Vec<Job>> {
    let mut waiting = lock(&queue.waiting);
    while waiting.jobs.is_empty() && !waiting.nudged {
        if waiting.closed {
            return None;
        }
        waiting = queue.come.wait(waiting).unwrap_or_else(PoisonError::into_inner);
    }
    let until = Instant::now() + COMPANY;
    while !waiting.closed && waiting.jobs.len() < TOGETHER && waiting.jobs.iter().all(|job| job.soon) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || waiting.jobs.is_empty() {
            break;
        }
        waiting = queue.come.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    waiting.nudged = false;
    let bulk = waiting.jobs.iter().position(|job| matches!(job.task, Task::Bulk(_)));
    let most = waiting.jobs.len().min(TOGETHER);
    // A bulk change is executed alone.
    let count = bulk.map_or(most, |at| at.clamp(usize::from(most > 0), most));
    Some(waiting.jobs.drain(..count).collect())
}

fn run(queue: &Queue, base: &Base) {
    let mut broken = false;
    while let Some(jobs) = next(queue) {
        if jobs.is_empty() || broken {
            // What it says is said to the next who wants something.
            broken = base.snapshot().is_err() && base.reopen().is_err();
            if jobs.is_empty() {
                continue;
            }
        }
        let mut dones = Vec::with_capacity(jobs.len());
        let result = catch_unwind(AssertUnwindSafe(|| batch(base, jobs, &mut dones)));
        let result = result.unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
        if result.is_err() {
            // The library has given up; readers go on as soon as the disk does.
            broken = catch_unwind(AssertUnwindSafe(|| base.reopen())).map_or(true, |opened| opened.is_err());
        }
        for done in dones {
            done(result.clone());
        }
    }
}

/// Makes the changes and commits them; whom to tell is put into `dones`.
fn batch(base: &Base, jobs: Vec<Job>, dones: &mut Vec<Done>) -> Result<(), StoreError> {
    let open = match base.begin() {
        Ok(open) => open,
        Err(error) => {
            let refuse = |job: Job| match job.task {
                Task::Change(work) => work(Err(error.clone())),
                Task::Bulk(work) => work(Err(error.clone())),
            };
            dones.extend(jobs.into_iter().map(refuse).map(|(Verdict::Keep(done) | Verdict::Drop(done))| done));
            return Err(error);
        }
    };
    let mut keep = false;
    let mut failure = None;
    for job in jobs {
        let (kept, done) = match job.task {
            Task::Change(work) => change(&open, work, &mut failure),
            Task::Bulk(work) => bulk(&open, work),
        };
        keep |= kept;
        dones.extend(done);
    }
    match failure {
        Some(failure) => {
            // The error before says more than what this one could.
            let _ = open.finish(false);
            Err(failure)
        }
        None => open.finish(keep),
    }
}

fn change(open: &Open, work: Work, failure: &mut Option<StoreError>) -> (bool, Option<Done>) {
    let draft = Arc::new(Draft::new(open.clone()));
    let offered = failure.as_ref().map_or(Ok(&draft), |failure| Err(failure.clone()));
    // Whoever panicked is told by the end of what he waits for; the others' changes are whole.
    match catch_unwind(AssertUnwindSafe(|| work(offered))) {
        Ok(Verdict::Keep(done)) => {
            if failure.is_none() {
                *failure = draft.apply().err();
            }
            (true, Some(done))
        }
        Ok(Verdict::Drop(done)) => (false, Some(done)),
        Err(_) => (false, None),
    }
}

fn bulk(open: &Open, work: BulkWork) -> (bool, Option<Done>) {
    let bulk = Bulk { open: open.clone() };
    match catch_unwind(AssertUnwindSafe(|| work(Ok(&bulk)))) {
        Ok(Verdict::Keep(done)) => (true, Some(done)),
        Ok(Verdict::Drop(done)) => (false, Some(done)),
        Err(_) => (false, None),
    }
}

fn panicked(panic: &(dyn Any + Send)) -> StoreError {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    StoreError::Panicked(text.unwrap_or("no reason was given").to_owned())
}
