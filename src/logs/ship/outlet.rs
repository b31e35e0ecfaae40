//! One sink of this process: its connection, which all streams share, and its retries.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::entry::Batch;
use super::file::{self, FileSink};
use super::journald::Journald;
use super::otlp::{Collector, Rejected};
use super::sink::Target;
use super::syslog::{self, Queue};
use super::{Labels, Report, Reporter, Sink, Stream};
use crate::spec::collections::BTreeMap;
use crate::sys::lock::lock;

/// Timeout of connecting.
const CONNECT: Duration = Duration::from_secs(5);
/// Pauses between attempts at a sink that is down: the first, doubled until the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// The sinks of this process, by their URLs.
pub struct Outlets {
    report: Reporter,
    open: Mutex<BTreeMap<Sink, Weak<Outlet>>>,
}

impl std::fmt::Debug for Outlets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlets").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Outlets {
    /// Without sinks yet. Problems of sinks are passed to `report`.
    #[must_use]
    pub fn new(report: Reporter) -> Outlets {
        Outlets { report, open: Mutex::default() }
    }

    pub(super) fn report(&self) -> &Reporter {
        &self.report
    }

    /// The outlet of `sink`; streams with the same sink share it.
    pub(super) fn get(&self, sink: &Sink) -> Arc<Outlet> {
        let mut open = lock(&self.open);
        open.retain(|_, outlet| outlet.strong_count() > 0);
        if let Some(outlet) = open.get(sink).and_then(Weak::upgrade) {
            return outlet;
        }
        let outlet = Arc::new(Outlet {
            sink: sink.clone(),
            report: Arc::clone(&self.report),
            down: AtomicBool::new(false),
            arrived: AtomicU64::new(0),
            state: tokio::sync::Mutex::default(),
        });
        open.insert(sink.clone(), Arc::downgrade(&outlet));
        outlet
    }
}

pub(super) struct Outlet {
    sink: Sink,
    report: Reporter,
    /// It was reported as down, and not yet as up again.
    down: AtomicBool,
    /// As of the last look at the queue.
    arrived: AtomicU64,
    state: tokio::sync::Mutex<State>,
}

impl std::fmt::Debug for Outlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").field("sink", &self.sink).field("down", &self.down).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Something is being sent, or was when the future was dropped.
    is_sending: bool,
    queue: Queue,
    /// Failed attempts since the last successful one.
    failures: u32,
    /// The earliest time of the next attempt.
    next_attempt: Option<tokio::time::Instant>,
}

enum Connection {
    File(Arc<FileSink>),
    Journald(Journald),
    Syslog(syslog::Connection),
    Otlp(Collector),
}

impl Connection {
    async fn open(target: &Target) -> io::Result<Connection> {
        let open = async {
            Ok(match target {
                Target::File { path, max_bytes, max_files } => {
                    Connection::File(Arc::new(FileSink::new(path, *max_bytes, *max_files)))
                }
                Target::Journald(path) => Connection::Journald(Journald::connect(path)?),
                Target::Syslog(to) => Connection::Syslog(syslog::Connection::open(to).await?),
                Target::Otlp(to) => Connection::Otlp(Collector::connect(to).await?),
            })
        };
        tokio::time::timeout(CONNECT, open).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    async fn send(
        &mut self,
        labels: &Labels,
        stream: Stream,
        batch: &Batch,
        done: &mut usize,
        queue: &mut Queue,
    ) -> io::Result<Option<Rejected>> {
        match self {
            Connection::File(file) => {
                let (file, lines) = (Arc::clone(file), file::encode(labels, stream, batch, *done));
                crate::sys::task::spawn_blocking(move || file.append(&lines)).await.map_err(io::Error::other)??;
                *done = batch.entries.len();
            }
            Connection::Journald(journald) => journald.send(labels, stream, batch, done).await?,
            Connection::Syslog(syslog) => syslog.send(labels, stream, batch, done, queue).await?,
            Connection::Otlp(collector) => return collector.send(labels, stream, batch, done).await,
        }
        Ok(None)
    }
}

impl Outlet {
    pub(super) fn sink(&self) -> &Sink {
        &self.sink
    }

    pub(super) fn is_down(&self) -> bool {
        self.down.load(Ordering::Relaxed)
    }

    /// Batches up to this number have arrived, as far as is known: over TCP, sinks acknowledge later what was sent.
    pub(super) fn arrived(&self) -> u64 {
        if let Ok(mut state) = self.state.try_lock() {
            let State { connection, queue, .. } = &mut *state;
            if let Some(Connection::Syslog(syslog)) = connection {
                syslog.look(queue);
            }
            self.arrived.store(queue.arrived(), Ordering::Relaxed);
        }
        self.arrived.load(Ordering::Relaxed)
    }

    /// Delivers the entries of `batch` from `done` on, and advances `done`, however long that takes; without entries, what has not
    /// arrived yet is sent again if the connection has broken. Returns the entries that the sink has rejected, and the number of
    /// the batch. If the future is dropped, `done` stays correct.
    pub(super) async fn send(
        &self,
        labels: &Labels,
        stream: Stream,
        batch: &Batch,
        done: &mut usize,
    ) -> (Option<Rejected>, u64) {
        let mut state = self.state.lock().await;
        let state = &mut *state;
        // Where a future was dropped halfway through a message, only syslog connections can continue.
        if state.is_sending && !matches!(state.connection, Some(Connection::Syslog(_))) {
            state.connection = None;
        }
        state.is_sending = true;
        let rejected = loop {
            if *done == batch.entries.len() && state.queue.is_empty() {
                break None;
            }
            if let Some(at) = state.next_attempt {
                tokio::time::sleep_until(at).await;
                state.next_attempt = None;
            }
            let (connection, fresh) = match &mut state.connection {
                Some(connection) => (connection, false),
                None => match Connection::open(self.sink.target()).await {
                    Ok(connection) => (state.connection.insert(connection), true),
                    Err(error) => {
                        self.failed(state, &error);
                        continue;
                    }
                },
            };
            let sent = connection.send(labels, stream, batch, done, &mut state.queue).await;
            match sent {
                Ok(rejected) => {
                    state.failures = 0;
                    if self.down.swap(false, Ordering::Relaxed) {
                        (self.report)(Report::Up { sink: self.sink.to_string() });
                    }
                    break rejected;
                }
                Err(error) => {
                    if let Connection::Syslog(syslog) = connection {
                        syslog.leave(&mut state.queue).await;
                    }
                    state.connection = None;
                    self.arrived.store(state.queue.arrived(), Ordering::Relaxed);
                    // A connection that was used before may just have been closed by the other side.
                    if fresh {
                        self.failed(state, &error);
                    }
                }
            }
        };
        state.is_sending = false;
        self.arrived.store(state.queue.arrived(), Ordering::Relaxed);
        (rejected, state.queue.given)
    }

    fn failed(&self, state: &mut State, error: &io::Error) {
        let pause = FIRST_PAUSE.saturating_mul(1 << state.failures.min(16)).min(LAST_PAUSE);
        state.failures = state.failures.saturating_add(1);
        state.next_attempt = Some(tokio::time::Instant::now() + pause);
        if !self.down.swap(true, Ordering::Relaxed) {
            (self.report)(Report::Down { sink: self.sink.to_string(), error: error.to_string() });
        }
    }
}
