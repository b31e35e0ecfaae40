//! Ships one task's output to its sinks.

use crate::spec::IntoSet as _;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::super::follower::{Cursor, Finisher, Follower, Output, Start};
use super::entry::{Batch, Lines};
use super::otlp::Rejected;
use super::outlet::Outlet;
use super::record::{Account, Record, RecordError, Shipped};
use super::tally::Tally;
use super::{Labels, Lost, Outlets, Report, Reporter, Sink, Stream};
use crate::spec::collections::BTreeSet;
use crate::sys::task::JoinHandle;

/// How long delivered lines may go unrecorded.
const SAVE_EVERY: Duration = Duration::from_millis(200);
/// A sink that needs longer for a batch is considered slow: what it will miss is counted from then on.
const SLOW: Duration = Duration::from_millis(100);
/// If at least this many bytes are read at once, more is assumed to be waiting.
const MORE_WAITS: usize = 32 * 1024;
/// How often to check whether the last batches have arrived: there is no event for it.
const ARRIVAL_LOOK: Duration = Duration::from_millis(5);
/// How long a batch that is being sent may take when the shipment is halted.
const HALT_PATIENCE: Duration = Duration::from_secs(1);

/// The shipment of one task's output to its sinks. Dropping it ends the shipment, and the most recent lines may be delivered
/// twice.
#[derive(Debug)]
#[must_use = "dropping it ends the shipping"]
pub struct Shipment(Vec<Part>);

/// One stream to one sink.
#[derive(Debug)]
struct Part {
    finisher: Finisher,
    halt: watch::Sender<bool>,
    task: JoinHandle<Shipper>,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shipment {
    /// Begins to ship the output of the task of `labels`, whose rotated files are, or will be, in `logs`. Continues where the
    /// records
    /// in `records` say; that directory is created, and must be one to which the task cannot write.
    ///
    /// # Errors
    /// When the logs or a record cannot be read, or a record cannot be written.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn start(
        outlets: &Outlets,
        sinks: &[Sink],
        labels: &Labels,
        logs: &Path,
        records: &Path,
    ) -> Result<Shipment, RecordError> {
        let sinks: BTreeSet<&Sink> = sinks.iter().into_set();
        let mut parts = Vec::new();
        if !sinks.is_empty() {
            Record::make_folder(records)?;
        }
        for sink in sinks {
            for stream in Stream::ALL {
                let record = Record::new(sink, labels, stream);
                let record = record.read_again(records)?.unwrap_or(record);
                record.write(records)?;
                parts.push(Part::start(outlets, record, logs, records)?);
            }
        }
        Ok(Shipment(parts))
    }

    /// As [`start`](Self::start), to the sinks of the task's records, and to `sinks`.
    ///
    /// # Errors
    /// The same.
    pub fn recover(
        outlets: &Outlets,
        sinks: &[Sink],
        labels: &Labels,
        logs: &Path,
        records: &Path,
    ) -> Result<Shipment, RecordError> {
        let mut sinks = sinks.to_vec();
        for record in Record::all(records) {
            let record = record?;
            if record.labels.task == labels.task {
                sinks.push(record.sink);
            }
        }
        Shipment::start(outlets, &sinks, labels, logs, records)
    }

    /// To be called when the task's last byte is in its files.
    pub fn finish(&self) {
        self.0.iter().for_each(|part| part.finisher.finish());
    }

    /// Waits until the sinks have everything, for at most `patience`; what they lack then is counted as lost and reported. Call
    /// [`finish`](Self::finish) first, otherwise it always waits that long.
    pub async fn drain(self, patience: Duration) -> Account {
        let deadline = Instant::now() + patience;
        let mut account = Account::default();
        for part in &self.0 {
            // Closed when the shipper ends; its result is awaited below.
            if tokio::time::timeout_at(deadline, part.halt.closed()).await.is_err() {
                part.halt.send_replace(true);
            }
        }
        for mut part in self.0 {
            // It panicked: its record has its progress.
            let Ok(mut shipper) = (&mut part.task).await else { continue };
            if !shipper.ended {
                shipper.give_up_the_rest().await;
            }
            account += shipper.record.account;
        }
        account
    }

    /// Stops at the current position; a later shipment continues from there.
    pub async fn halt(self) {
        for part in &self.0 {
            part.halt.send_replace(true);
        }
        for mut part in self.0 {
            // It panicked, or has saved its record.
            let _ = (&mut part.task).await;
        }
    }
}

/// Ships the remaining output of the tasks whose records are in `records`, now that all of their output is in `logs`, for at most
/// `patience`; what cannot be shipped is counted as lost and reported. Returns the counts since the beginning, and the records
/// that could not be used.
pub async fn resume(outlets: &Outlets, logs: &Path, records: &Path, patience: Duration) -> (Account, Vec<RecordError>) {
    let (mut parts, mut errors) = (Vec::new(), Vec::new());
    for record in Record::all(records) {
        match record.and_then(|record| Part::start(outlets, record, logs, records)) {
            Ok(part) => parts.push(part),
            Err(error) => errors.push(error),
        }
    }
    let shipment = Shipment(parts);
    shipment.finish();
    (shipment.drain(patience).await, errors)
}

impl Part {
    fn start(outlets: &Outlets, record: Record, logs: &Path, records: &Path) -> Result<Part, RecordError> {
        let base = format!("{}.{}", record.labels.task, record.stream.name());
        let follower = Follower::open(logs, &base, record.cursor.map_or(Start::Beginning, Start::At));
        let follower = follower.map_err(|source| RecordError::Io { action: "read", path: logs.to_owned(), source })?;
        let finisher = follower.finisher();
        let (halt, halted) = watch::channel(false);
        let shipper = Shipper {
            labels: Arc::new(record.labels.clone()),
            outlet: outlets.get(&record.sink),
            report: Arc::clone(outlets.report()),
            position: record.cursor,
            follower,
            logs: logs.to_owned(),
            base,
            records: records.to_owned(),
            record,
            lines: Lines::default(),
            batch: None,
            done: 0,
            in_flight: VecDeque::new(),
            tally: None,
            save_by: None,
            ended: false,
        };
        Ok(Part { finisher, halt, task: crate::sys::task::spawn(shipper.run(halted)) })
    }
}

/// Waits until it has to halt.
async fn told(halt: &mut watch::Receiver<bool>) {
    // Without a sender, no caller is left that could ask for the result.
    let _ = halt.wait_for(|halt| *halt).await;
}

impl std::fmt::Debug for Shipper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shipper").field("record", &self.record).field("done", &self.done).finish_non_exhaustive()
    }
}

/// A batch that was sent, and may not have arrived.
struct InFlight {
    /// See [`Outlet::arrived`].
    number: u64,
    resume: Cursor,
    shipped: Shipped,
}

/// One stream on its way to one sink.
struct Shipper {
    labels: Arc<Labels>,
    outlet: Arc<Outlet>,
    report: Reporter,
    follower: Follower,
    logs: PathBuf,
    base: String,
    records: PathBuf,
    record: Record,
    lines: Lines,
    /// The batch that is being sent.
    batch: Option<Batch>,
    /// How many of its entries are delivered.
    done: usize,
    in_flight: VecDeque<InFlight>,
    /// Everything before this position is delivered.
    position: Option<Cursor>,
    tally: Option<Tally>,
    save_by: Option<Instant>,
    /// There is nothing more to ship.
    ended: bool,
}

impl Shipper {
    async fn run(mut self, mut halt: watch::Receiver<bool>) -> Shipper {
        loop {
            if self.batch.is_none() {
                tokio::select! {
                    biased;
                    () = told(&mut halt) => break,
                    more = self.collect() => if !more {
                        self.ended = true;
                        break;
                    },
                }
            } else {
                let mut delivery = pin!(self.deliver());
                tokio::select! {
                    biased;
                    () = &mut delivery => {}
                    () = told(&mut halt) => {
                        // Lines that are not delivered by then may be delivered twice.
                        let _ = tokio::time::timeout(HALT_PATIENCE, delivery).await;
                        break;
                    }
                }
            }
        }
        if !self.ended && self.batch.is_none() {
            // As above.
            let _ = tokio::time::timeout(HALT_PATIENCE, self.arrive()).await;
        }
        self.save();
        self
    }

    /// Waits for a batch; `false` if there will be none.
    async fn collect(&mut self) -> bool {
        while self.batch.is_none() {
            let due = self.save_by;
            let save = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let before = self.follower.cursor();
            let read = tokio::select! {
                biased;
                read = self.follower.next() => read,
                () = save => {
                    self.save();
                    continue;
                }
            };
            let now = SystemTime::now();
            let at = self.follower.cursor();
            match (read, at) {
                (Ok(Some(Output::Data(data))), Some(at)) => {
                    self.look_behind(data.len() >= MORE_WAITS, at);
                    self.batch = self.lines.feed(&data, at, now);
                }
                (Ok(Some(Output::Gap { missing_files })), Some(at)) => {
                    self.batch = self.lines.cut(at, now);
                    self.lost(before.or(self.position), at, missing_files).await;
                }
                (Ok(None), at) => {
                    let resume = at.or(self.position).unwrap_or(Cursor { index: 0, inode: 0, offset: 0 });
                    self.batch = self.lines.cut(resume, now);
                    if self.batch.is_none() {
                        self.arrive().await;
                    }
                    return self.batch.is_some();
                }
                (Ok(Some(_)), None) => {}
                (Err(error), _) => {
                    self.broken(format!("cannot read the files: {error}"));
                    return false;
                }
            }
        }
        true
    }

    /// Begins to count when there is more to read than is being sent, and stops when there is not.
    fn look_behind(&mut self, more_waits: bool, at: Cursor) {
        if more_waits || self.outlet.is_down() {
            self.count_ahead();
        } else if self.tally.as_ref().is_some_and(|tally| tally.is_at(Some(at))) {
            self.tally = None;
        }
    }

    fn count_ahead(&mut self) {
        if self.tally.is_none() {
            // Without a tally, files that are rotated away are counted as files.
            self.tally = Tally::start(&self.logs, &self.base, self.follower.cursor()).ok();
        }
    }

    /// Files after `from` and before `to` are gone.
    async fn lost(&mut self, from: Option<Cursor>, to: Cursor, missing_files: u64) {
        let lost = match &self.tally {
            Some(tally) => tally.between(from.map(|from| from.index), to.index, missing_files).await,
            None => Lost { files: missing_files, ..Lost::default() },
        };
        self.tell_lost(lost);
        match self.in_flight.back_mut() {
            _ if self.batch.is_some() => {}
            Some(last) => last.resume = to,
            None => self.position = Some(to),
        }
        self.save_by = self.save_by.or(Some(Instant::now()));
    }

    fn tell_lost(&mut self, lost: Lost) {
        if lost.is_nothing() {
            return;
        }
        self.record.account.lost += lost;
        (self.report)(Report::Lost {
            sink: self.outlet.sink().to_string(),
            labels: Arc::clone(&self.labels),
            stream: self.record.stream,
            lost,
        });
    }

    fn broken(&self, error: String) {
        (self.report)(Report::Broken { labels: Arc::clone(&self.labels), stream: self.record.stream, error });
    }

    /// Sends the batch, however long that takes. If the future is dropped, undelivered entries are kept.
    async fn deliver(&mut self) {
        let Some((rejected, number)) = self.send().await else { return };
        let Some(batch) = self.batch.take() else { return };
        let rejected_lines = rejected.as_ref().map_or(0, |rejected| rejected.lines);
        let lines = batch.entries.iter().filter(|entry| !entry.partial).count() as u64;
        let shipped = Shipped { lines: lines.saturating_sub(rejected_lines), bytes: batch.size() };
        self.in_flight.push_back(InFlight { number, resume: batch.resume, shipped });
        self.settle();
        self.record.account.rejected += rejected_lines;
        if let Some(rejected) = rejected {
            (self.report)(Report::Rejected {
                sink: self.outlet.sink().to_string(),
                labels: Arc::clone(&self.labels),
                stream: self.record.stream,
                lines: rejected.lines,
                error: rejected.error,
            });
        }
        self.done = 0;
        self.save_by = self.save_by.or_else(|| Some(Instant::now() + SAVE_EVERY));
        if self.save_by.is_some_and(|due| due <= Instant::now()) {
            self.save();
        }
    }

    async fn send(&mut self) -> Option<(Option<Rejected>, u64)> {
        let batch = self.batch.as_ref()?;
        let mut sending = pin!(self.outlet.send(&self.labels, self.record.stream, batch, &mut self.done));
        if let Ok(sent) = tokio::time::timeout(SLOW, &mut sending).await {
            return Some(sent);
        }
        if self.tally.is_none() {
            self.tally = Tally::start(&self.logs, &self.base, self.follower.cursor()).ok();
        }
        Some(sending.await)
    }

    /// Counts what has arrived.
    fn settle(&mut self) {
        let arrived = self.outlet.arrived();
        while self.in_flight.front().is_some_and(|sent| sent.number <= arrived) {
            let Some(InFlight { resume, shipped, .. }) = self.in_flight.pop_front() else { return };
            self.position = Some(resume);
            self.record.account += Account { shipped, ..Account::default() };
        }
    }

    /// Waits until all that was sent has arrived.
    async fn arrive(&mut self) {
        loop {
            self.settle();
            if self.in_flight.is_empty() {
                return;
            }
            self.outlet.send(&self.labels, self.record.stream, &Batch::empty(), &mut 0).await;
            tokio::time::sleep(ARRIVAL_LOOK).await;
        }
    }

    /// The position at which another shipment would continue.
    fn resume_at(&self) -> Option<Cursor> {
        if !self.in_flight.is_empty() {
            return self.position;
        }
        let undelivered = self.batch.as_ref().map(|batch| batch.entries.get(self.done).map_or(batch.resume, |e| e.at));
        undelivered.or(self.position)
    }

    fn save(&mut self) {
        self.settle();
        let cursor = self.resume_at();
        // Once more for what has not arrived yet, unless nothing does.
        let again = !self.in_flight.is_empty() && cursor != self.record.cursor;
        self.save_by = again.then(|| Instant::now() + SAVE_EVERY);
        self.record.cursor = cursor;
        if let Err(error) = self.record.write(&self.records) {
            self.broken(error.to_string());
        }
    }

    /// Counts the rest as lost.
    async fn give_up_the_rest(&mut self) {
        self.settle();
        let rest = async {
            let start = self.resume_at().map_or(Start::Beginning, Start::At);
            let mut follower = Follower::open(&self.logs, &self.base, start)?;
            follower.finisher().finish();
            let (mut lost, mut unended) = (Lost::default(), false);
            while let Some(output) = follower.next().await? {
                match output {
                    Output::Data(data) => {
                        lost.lines += memchr::memchr_iter(b'\n', &data).count() as u64;
                        lost.bytes += data.len() as u64;
                        unended = data.last() != Some(&b'\n');
                    }
                    Output::Gap { missing_files } => lost.files += missing_files,
                }
            }
            lost.lines += u64::from(unended);
            io::Result::Ok((lost, follower.cursor()))
        };
        match rest.await {
            Ok((lost, end)) => {
                self.tell_lost(lost);
                self.batch = None;
                self.in_flight.clear();
                self.position = end.or(self.position);
                self.save();
            }
            Err(error) => self.broken(format!("cannot count what was not shipped: {error}")),
        }
    }
}
