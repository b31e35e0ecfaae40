//! From the read end of a pipe or FIFO into a [`Rotator`].

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::Interest;
use tokio::sync::watch;
use tokio::time::Instant;

use super::buffer::{self, Lease, PIPE_SIZE};
use super::journal::{self, Journal};
use super::rotator::{Change, Counters, LiveCounters, Rotator, RotatorError};

/// A read that brings less than this is followed by a pause, so that many small writes cost one wakeup.
const SMALL_READ: usize = 64 * 1024;

/// The runtime's timer rounds this up to the next millisecond.
const PAUSE: Duration = Duration::from_micros(200);

/// If less than this arrives during a pause, the pause was too short: the next one is twice as long, up to [`LONGEST_PAUSE`]. If
/// more than a small read arrives, the next one is the shortest again.
const LITTLE: usize = 4 * 1024;

/// Too short to be noticed by a follower, or to delay a writer much that becomes fast in the middle of it.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

/// How often a pipe is polled that cannot be watched.
const UNWATCHED_PAUSE: Duration = Duration::from_millis(20);

/// Why a pump ended.
#[derive(Debug)]
pub enum End {
    /// All writers closed, and everything they wrote was read.
    Eof,
    /// It was asked to finish while a process still held the write end. What was there at the deadline was read.
    Deadline,
    /// The pipe could not be read.
    Failed(io::Error),
}

/// The result of a pump.
#[derive(Debug)]
pub struct Finished {
    /// The final counts of its rotator.
    pub counters: Counters,
    /// Why it ended.
    pub end: End,
}

/// Whether the files can be written.
#[derive(Debug, Clone, Default)]
pub(super) struct Health {
    /// How often that has changed.
    pub(super) changes: u64,
    /// The error, if they cannot be written.
    pub(super) failing: Option<Arc<str>>,
}

impl Health {
    fn change(&mut self, failing: Option<&RotatorError>) {
        self.changes += 1;
        self.failing = failing.map(|error| format!("{error}: {}", super::cause(error)).into());
    }
}

/// Copies one stream until it ends. Wakes up only for data: an idle stream costs no CPU and no buffer.
#[derive(Debug)]
pub struct Pump {
    source: Arc<OwnedFd>,
    rotator: Rotator,
    /// Keeps data that was read but not written when this process is killed.
    journal: Option<Journal>,
    wishes: watch::Receiver<Wish>,
    /// The number of the last request that was completed.
    met: watch::Sender<u64>,
    health: watch::Sender<Health>,
    capacity: usize,
    pace: Pace,
}

/// How fast data arrives, measured by the size of the read after a pause. Pauses are for slow writers: a fast one fills the pipe
/// before the pause is over, and would have to wait.
#[derive(Debug)]
struct Pace {
    /// How long the next pause is.
    pause: Duration,
    /// The last action was a pause.
    paused: bool,
    /// Less than a buffer arrived during a pause: if the pipe is empty, pause again instead of releasing the buffer.
    slow_writer: bool,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { pause: PAUSE, paused: false, slow_writer: false }
    }
}

/// A handle on a running pump. When it is dropped, the pump reads what is in the pipe and ends.
#[derive(Debug)]
pub struct PumpHandle {
    source: Arc<OwnedFd>,
    wishes: watch::Sender<Wish>,
    met: watch::Receiver<u64>,
    health: watch::Receiver<Health>,
    counters: LiveCounters,
}

/// A request to read what is in the pipe now, whether or not the reactor has noticed it.
#[derive(Debug, Clone, Copy, Default)]
struct Wish {
    number: u64,
    /// If set, the pump ends by then.
    deadline: Option<Instant>,
}

/// What woke the pump.
enum Wake {
    Readable,
    Wished(Wish),
    Late,
    /// It is time for the rotator's background work.
    Chore,
    Failed(io::Error),
}

/// How a round of reading ended.
enum Round {
    /// The pipe is empty.
    Drained,
    /// There may be more.
    More,
    Over(End),
}

impl Pump {
    /// Takes the read end, which must be non-blocking, and raises its capacity to 1 MiB where the kernel lets us.
    pub fn new(source: impl Into<Arc<OwnedFd>>, rotator: Rotator) -> (Pump, PumpHandle) {
        Pump::with_journal(source, rotator, None)
    }

    /// The same for a FIFO that outlives this process, with its journal. Data that an earlier reader had taken is written to the
    /// files first.
    pub fn with_journal(
        source: impl Into<Arc<OwnedFd>>,
        mut rotator: Rotator,
        journal: Option<Journal>,
    ) -> (Pump, PumpHandle) {
        let (health, told) = watch::channel(Health::default());
        if let Some(journal) = &journal {
            let change = rotator.take_over(journal);
            report(rotator.base(), change, &health);
        }
        let source = source.into();
        let capacity = enlarge(&source);
        let (wishing, wishes) = watch::channel(Wish::default());
        let (met, met_wishes) = watch::channel(0);
        let counters = rotator.live_counters();
        let handle = PumpHandle { source: source.clone(), wishes: wishing, met: met_wishes, health: told, counters };
        (Pump { source, rotator, journal, wishes, met, health, capacity, pace: Pace::default() }, handle)
    }

    /// Copies until the end of the stream, or until asked to finish. A FIFO without a writer is waited for; it has not ended. Each
    /// change between writing and dropping is logged once (`warn`, `info`).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn run(mut self) -> Finished {
        let mut deadline = None;
        let mut deserted = false;
        // Held while data flows.
        let mut lease = None;
        let end = loop {
            let wake = if lease.is_none() {
                self.wait(deadline, deserted).await
            } else {
                tokio::task::yield_now().await;
                self.look(deadline, deserted)
            };
            let lent = lease.get_or_insert_with(Lease::new);
            let round = match wake {
                Wake::Readable => self.gather(lent, deserted).await,
                Wake::Wished(wish) => {
                    deserted = self.wishes.has_changed().is_err();
                    deadline = if deserted { Some(Instant::now()) } else { wish.deadline };
                    let round = self.read_all(lent);
                    self.met.send_replace(wish.number);
                    round
                }
                Wake::Late => match self.read_all(lent) {
                    Round::Over(end) => Round::Over(end),
                    Round::Drained | Round::More => Round::Over(End::Deadline),
                },
                Wake::Failed(error) => Round::Over(End::Failed(error)),
                Wake::Chore => {
                    self.rotator.do_chore();
                    Round::Drained
                }
            };
            match round {
                Round::Drained => {
                    lease = None;
                    if let Some(journal) = &mut self.journal {
                        journal.rest();
                    }
                }
                Round::More => {}
                Round::Over(end) => break end,
            }
        };
        let live = self.rotator.live_counters();
        drop(self.rotator);
        Finished { counters: live.get(), end }
    }

    /// Waits for something to do. `deserted`: all handles are dropped, so no further requests can come.
    ///
    /// The pipe is registered only during the wait. It is watched edge-triggered, and each write to a pipe is an edge: if it stayed
    /// registered, a writer of short lines would wake this thread for each, pause or not.
    async fn wait(&mut self, deadline: Option<Instant>, deserted: bool) -> Wake {
        let registered = crate::sys::watch::register(self.source.clone(), Interest::READABLE);
        let source = match &registered {
            Ok(source) => Some(source),
            Err(error) => {
                tracing::debug!(%error, "output is looked for now and then: it cannot be waited for");
                None
            }
        };
        let readable = async {
            match source {
                Some(source) => source.readable().await.map_or_else(Wake::Failed, |_| Wake::Readable),
                // No memory, or no more watches for this user: temporary problems.
                None => loop {
                    tokio::time::sleep(UNWATCHED_PAUSE).await;
                    let mut fds = [PollFd::new(&self.source, PollFlags::IN)];
                    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                    match rustix::event::poll(&mut fds, Some(&now)) {
                        Ok(0) | Err(_) => {}
                        Ok(_) => break Wake::Readable,
                    }
                },
            }
        };
        let late = async {
            match deadline {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let chore = async {
            match self.rotator.chore_at().map(Instant::from_std) {
                // The event loop checks the pipe first.
                Some(at) if at <= Instant::now() => tokio::task::yield_now().await,
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.wishes.changed(), if !deserted => Wake::Wished(*self.wishes.borrow_and_update()),
            () = late => Wake::Late,
            wake = readable => wake,
            () = chore => Wake::Chore,
        }
    }

    /// The same without waiting, if the pipe may hold more.
    fn look(&mut self, deadline: Option<Instant>, deserted: bool) -> Wake {
        if !deserted && self.wishes.has_changed().unwrap_or(true) {
            Wake::Wished(*self.wishes.borrow_and_update())
        } else if deadline.is_some_and(|at| Instant::now() >= at) {
            Wake::Late
        } else {
            Wake::Readable
        }
    }

    /// Reads once, and after a small read waits briefly for more.
    async fn gather(&mut self, lease: &mut Lease, deserted: bool) -> Round {
        let paused = std::mem::take(&mut self.pace.paused);
        let most = if self.journal.is_some() { journal::SIZE } else { buffer::SIZE };
        let pause = match self.read_once(lease, false) {
            Ok(0) => return Round::Over(End::Eof),
            Ok(n) => {
                if paused {
                    self.pace.slow_writer = n < most;
                    self.pace.pause = match n {
                        ..LITTLE => LONGEST_PAUSE.min(self.pace.pause * 2),
                        SMALL_READ.. => PAUSE,
                        _ => self.pace.pause,
                    };
                }
                n < SMALL_READ
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if paused || !self.pace.slow_writer {
                    self.pace = Pace::default();
                    return Round::Drained;
                }
                true
            }
            Err(e) => return Round::Over(End::Failed(e)),
        };
        // With a smaller pipe the writer would have to wait for the end of the pause.
        if pause && self.capacity >= PIPE_SIZE {
            self.pace.paused = true;
            let mut wishes = self.wishes.clone();
            tokio::select! {
                biased;
                _ = wishes.changed(), if !deserted => {}
                () = tokio::time::sleep(self.pace.pause) => {}
            }
        }
        Round::More
    }

    /// Reads what the pipe holds now, but does not follow a continuous writer for ever. A FIFO that no process has open for writing
    /// counts as ended here, even if there never was a writer.
    fn read_all(&mut self, lease: &mut Lease) -> Round {
        let mut left = self.capacity;
        while left > 0 {
            match self.read_once(lease, true) {
                Ok(0) => return Round::Over(End::Eof),
                Ok(n) => left = left.saturating_sub(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Round::Drained,
                Err(e) => return Round::Over(End::Failed(e)),
            }
        }
        Round::More
    }
}

impl Pump {
    /// One read, and the write to the files. `Ok(0)` is the end of the stream; with `last` also if there never was a writer.
    fn read_once(&mut self, lease: &mut Lease, last: bool) -> io::Result<usize> {
        let Pump { source, rotator, journal, health, .. } = self;
        let (n, change) = match journal {
            Some(journal) => {
                let n = journal.take(source, last)?;
                (n, rotator.write(journal.data(n)))
            }
            None => lease.with(|buffer| {
                let n = rustix::io::retry_on_intr(|| rustix::io::read(&*source, &mut *buffer))?;
                Ok::<_, io::Error>((n, rotator.write(&buffer[..n])))
            })?,
        };
        report(rotator.base(), change, health);
        Ok(n)
    }
}

impl PumpHandle {
    /// Asks the pump to end when the stream does, but no later than `deadline`. A FIFO that no process has open for writing counts
    /// as
    /// ended. A later call replaces the deadline.
    pub fn finish_by(&self, deadline: Instant) {
        self.wish(|wish| wish.deadline = Some(deadline));
    }

    /// Waits until the pump has read what is in the pipe now, or has ended. A FIFO that no process has open for writing ends.
    pub async fn settle(&self) {
        let number = self.wish(|_| ());
        let _ = self.met.clone().wait_for(|&met| met >= number).await;
    }

    fn wish(&self, change: impl FnOnce(&mut Wish)) -> u64 {
        let mut number = 0;
        self.wishes.send_modify(|wish| {
            wish.number += 1;
            number = wish.number;
            change(wish);
        });
        number
    }

    /// The current counts.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// Whether the files can be written; updated until the pump ends.
    pub(super) fn health(&self) -> (watch::Receiver<Health>, LiveCounters) {
        (self.health.clone(), self.counters.clone())
    }

    /// Whether all writers have closed: the pump has ended, or will when it has read what they left.
    #[must_use]
    pub fn hung_up(&self) -> bool {
        let mut fds = [PollFd::new(&self.source, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
    }
}

/// Reports that writing failed, or works again.
fn report(stream: &str, change: Option<Change>, health: &watch::Sender<Health>) {
    match change {
        None => {}
        Some(Change::Failed(error)) => {
            health.send_modify(|health| health.change(Some(&error)));
            let error = &error as &(dyn std::error::Error + 'static);
            tracing::warn!(stream, error, "error writing to log file; output is being dropped");
        }
        Some(Change::Healed { dropped_bytes, dropped_lines }) => {
            health.send_modify(|health| health.change(None));
            tracing::info!(stream, dropped_bytes, dropped_lines, "log file is written again");
        }
    }
}

/// Raises the capacity and returns the actual one. Refused without privileges beyond a limit per user.
pub(super) fn enlarge(pipe: &OwnedFd) -> usize {
    rustix::pipe::fcntl_setpipe_size(pipe, PIPE_SIZE)
        .or_else(|_| rustix::pipe::fcntl_getpipe_size(pipe))
        .unwrap_or(buffer::SIZE)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use nix::sys::resource::UsageWho;

    use super::super::rotator::Limits;
    use super::*;
    use crate::spec::LogKeeping;

    const LIMITS: Limits =
        Limits { max_files: 10, max_file_size_bytes: 1 << 20, keeping: LogKeeping { compress: false, max_age: None } };

    fn pipe() -> (OwnedFd, File) {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        rustix::io::ioctl_fionbio(&read, true).unwrap();
        (read, File::from(write))
    }

    fn start(dir: &std::path::Path, name: &str) -> (crate::sys::task::JoinHandle<Finished>, PumpHandle, File) {
        let (read, write) = pipe();
        let (pump, handle) = Pump::new(read, Rotator::open(dir, name, LIMITS).unwrap());
        (crate::sys::task::spawn(pump.run()), handle, write)
    }

    #[tokio::test]
    async fn d2_two_pumps_keep_their_streams_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (out, _out_handle, mut out_end) = start(dir.path(), "t.stdout");
        let (err, _err_handle, mut err_end) = start(dir.path(), "t.stderr");
        let writer = |end: &mut File, byte: u8| {
            for n in 0..2000_usize {
                let mut line = vec![byte; n % 97];
                line.push(b'\n');
                end.write_all(&line).unwrap();
            }
        };
        let threads = [
            std::thread::spawn(move || writer(&mut out_end, b'o')),
            std::thread::spawn(move || writer(&mut err_end, b'e')),
        ];
        let (out, err) = (out.await.unwrap(), err.await.unwrap());
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(matches!((&out.end, &err.end), (End::Eof, End::Eof)));
        assert_eq!((out.counters.lines, err.counters.lines), (2000, 2000));
        let text = std::fs::read_to_string(dir.path().join("t.stdout.0")).unwrap();
        assert!(text.len() as u64 == out.counters.bytes && text.bytes().all(|b| b == b'o' || b == b'\n'));
    }

    #[tokio::test]
    async fn d2_output_is_on_disk_while_the_stream_is_open() {
        let dir = tempfile::tempdir().unwrap();
        let (pump, handle, mut end) = start(dir.path(), "t.stdout");
        end.write_all(b"first\n").unwrap();
        while handle.counters().lines == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("t.stdout.0")).unwrap(), "first\n");
        drop(end);
        assert!(matches!(pump.await.unwrap().end, End::Eof));
    }

    #[tokio::test]
    async fn d2_asked_to_finish_it_reads_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (pump, handle, mut end) = start(dir.path(), "t.stdout");
        end.write_all(&vec![b'x'; 50_000]).unwrap();
        handle.finish_by(Instant::now());
        let finished = pump.await.unwrap();
        assert!(matches!(finished.end, End::Deadline));
        assert_eq!(finished.counters.bytes, 50_000);
    }

    #[tokio::test]
    async fn d2_a_writer_that_never_stops_does_not_move_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let (pump, handle, mut end) = start(dir.path(), "t.stdout");
        let writer = std::thread::spawn(move || while end.write_all(&[b'x'; 4096]).is_ok() {});
        handle.finish_by(Instant::now() + Duration::from_millis(50));
        let finished = tokio::time::timeout(Duration::from_secs(5), pump).await.unwrap().unwrap();
        assert!(matches!(finished.end, End::Deadline));
        drop(handle);
        writer.join().unwrap();
    }

    #[tokio::test]
    async fn d2_asked_in_the_middle_of_a_flood_it_listens() {
        let dir = tempfile::tempdir().unwrap();
        let (pump, handle, mut end) = start(dir.path(), "t.stdout");
        let writer = std::thread::spawn(move || while end.write_all(&vec![b'x'; 65536]).is_ok() {});
        while handle.counters().bytes < 10_000_000 {
            tokio::task::yield_now().await;
        }
        tokio::time::timeout(Duration::from_secs(5), handle.settle()).await.unwrap();
        handle.finish_by(Instant::now());
        let finished = tokio::time::timeout(Duration::from_secs(5), pump).await.unwrap().unwrap();
        assert!(matches!(finished.end, End::Deadline));
        drop(handle);
        writer.join().unwrap();
    }

    #[tokio::test]
    async fn d2_settled_means_that_it_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (pump, handle, mut end) = start(dir.path(), "t.stdout");
        for n in 1..=100 {
            end.write_all(b"line\n").unwrap();
            handle.settle().await;
            assert_eq!(std::fs::metadata(dir.path().join("t.stdout.0")).unwrap().len(), n * 5);
        }
        drop(end);
        pump.await.unwrap();
        handle.settle().await;
    }

    #[tokio::test]
    async fn d2_a_dropped_handle_ends_the_pump() {
        let dir = tempfile::tempdir().unwrap();
        let (pump, handle, mut end) = start(dir.path(), "t.stdout");
        end.write_all(b"last words").unwrap();
        drop(handle);
        let finished = tokio::time::timeout(Duration::from_secs(5), pump).await.unwrap().unwrap();
        assert_eq!(finished.counters.bytes, 10);
    }

    #[tokio::test]
    async fn d2_an_idle_stream_wakes_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (mut pump, handle, mut end) = start(dir.path(), "t.stdout");
        end.write_all(b"line\n").unwrap();
        handle.settle().await;
        // Waits for the end of the pause after that line.
        assert!(tokio::time::timeout(Duration::from_millis(50), &mut pump).await.is_err());
        let switches = || nix::sys::resource::getrusage(UsageWho::RUSAGE_THREAD).unwrap().voluntary_context_switches();
        let before = switches();
        assert!(tokio::time::timeout(Duration::from_millis(300), &mut pump).await.is_err());
        let wakeups = switches() - before;
        assert!(wakeups <= 2, "{wakeups}: the test's own timer, and no more");
    }

    #[tokio::test]
    async fn d2_a_small_pipe_works_too() {
        let dir = tempfile::tempdir().unwrap();
        let (read, mut write) = pipe();
        let (mut pump, _handle) = Pump::new(read, Rotator::open(dir.path(), "t", LIMITS).unwrap());
        rustix::pipe::fcntl_setpipe_size(&pump.source, 4096).unwrap();
        pump.capacity = 4096;
        let writer = std::thread::spawn(move || write.write_all(&vec![b'x'; 1_000_000]).unwrap());
        assert_eq!(pump.run().await.counters.bytes, 1_000_000);
        writer.join().unwrap();
    }

    /// What the kernel charges this process for memory of its own, in KiB.
    fn private_kib() -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = smaps.lines().find(|l| l.starts_with("Anonymous:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Measurements for `targets.md`: `cargo test --release --lib logs::pump -- --ignored --nocapture`.
    #[test]
    #[ignore = "a measurement"]
    fn measure() {
        let dir = tempfile::tempdir().unwrap();
        for (block, total) in [(64 * 1024, 1_usize << 30), (100, 256 << 20)] {
            let ours = measure_ours(dir.path(), block, total);
            let cat = measure_cat(dir.path(), block, total);
            let show = |name: &str, (wall, cpu): (f64, f64)| {
                let gb = total as f64 / 1e9;
                println!("{block:>6}-byte writes, {name}: {:6.0} MB/s, pump CPU {:.2} s/GB", gb * 1e3 / wall, cpu / gb);
            };
            show("ours", ours);
            show("cat ", cat);
        }
    }

    fn cpu_seconds(who: UsageWho) -> f64 {
        let usage = nix::sys::resource::getrusage(who).unwrap();
        let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
        seconds(usage.user_time()) + seconds(usage.system_time())
    }

    fn writer(mut end: File, block: usize, total: usize) -> impl FnOnce() {
        move || {
            let mut data = vec![b'x'; block];
            for line in data.chunks_mut(100) {
                *line.last_mut().unwrap() = b'\n';
            }
            for _ in 0..total / block {
                end.write_all(&data).unwrap();
            }
        }
    }

    fn measure_ours(dir: &std::path::Path, block: usize, total: usize) -> (f64, f64) {
        let limits = Limits { max_files: 3, max_file_size_bytes: 10 << 20, ..LIMITS };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (read, write) = pipe();
        let rotator = Rotator::open(dir, "ours", limits).unwrap();
        let before = private_kib();
        let (began, cpu) = (Instant::now(), cpu_seconds(UsageWho::RUSAGE_THREAD));
        let thread = std::thread::spawn(writer(write, block, total));
        let (pump, _handle) = Pump::new(read, rotator);
        let finished = runtime.block_on(pump.run());
        let figures = (began.elapsed().as_secs_f64(), cpu_seconds(UsageWho::RUSAGE_THREAD) - cpu);
        thread.join().unwrap();
        assert_eq!(finished.counters.bytes as usize, total / block * block);
        println!("private memory before {before} KiB, after {} KiB", private_kib());
        figures
    }

    fn measure_cat(dir: &std::path::Path, block: usize, total: usize) -> (f64, f64) {
        let (read, write) = pipe();
        rustix::io::ioctl_fionbio(&read, false).unwrap();
        let file = dir.join("cat");
        let began = Instant::now();
        let before = cpu_seconds(UsageWho::RUSAGE_CHILDREN);
        let out = File::create(&file).unwrap();
        let mut cat = std::process::Command::new("cat").stdin(read).stdout(out).spawn().unwrap();
        writer(write, block, total)();
        cat.wait().unwrap();
        let wall = began.elapsed().as_secs_f64();
        std::fs::remove_file(file).unwrap();
        (wall, cpu_seconds(UsageWho::RUSAGE_CHILDREN) - before)
    }
}
