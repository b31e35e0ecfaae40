//! The destinations of a task's stdout and stderr: pipes that this process collects, or files that a host prepared.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::pipe::PipeFlags;
use tokio::sync::watch;
use tokio::time::Instant;

use super::journal::Journal;
use super::notices::{Notice, Notices};
use super::pump::{self, End, Finished, Health, Pump, PumpHandle};
use super::rotator::{Limits, LiveCounters, Rotator};
use super::{dir, fifo};
use crate::spec::{LogCollection, OutputHealth, StreamHealth, TaskOutput};
use crate::sys::task::JoinHandle;

/// What the task gets as descriptors 1 and 2: blocking, write-only, and in this process still close-on-exec.
#[derive(Debug)]
pub struct ChildEnds {
    /// The task's stdout.
    pub stdout: OwnedFd,
    /// The task's stderr.
    pub stderr: OwnedFd,
}

/// The results of both streams.
#[derive(Debug)]
pub struct Collected {
    /// Of stdout.
    pub stdout: Finished,
    /// Of stderr.
    pub stderr: Finished,
}

/// Collects one task's output into rotated files, in the background, from the moment it is made.
///
/// Dropping it reads what is in the pipes at that moment, and ends; [`Collector::finish`] is the orderly way.
#[derive(Debug)]
#[must_use = "dropping it ends collection"]
pub struct Collector {
    stdout: Stream,
    stderr: Stream,
}

/// A pump in the background.
#[derive(Debug)]
pub(super) struct Stream {
    handle: PumpHandle,
    task: JoinHandle<Finished>,
}

impl Stream {
    pub(super) fn spawn(
        source: impl Into<std::sync::Arc<OwnedFd>>,
        rotator: Rotator,
        journal: Option<Journal>,
    ) -> Stream {
        let (pump, handle) = Pump::with_journal(source, rotator, journal);
        Stream { handle, task: crate::sys::task::spawn(pump.run()) }
    }

    /// The copy has ended, or is about to because all writers have closed.
    pub(super) fn ended(&self) -> bool {
        self.stopped() || self.handle.hung_up()
    }

    /// The copy has ended: the pipe is not read any more.
    pub(super) fn stopped(&self) -> bool {
        self.task.is_finished()
    }

    pub(super) fn finish_by(&self, deadline: Instant) {
        self.handle.finish_by(deadline);
    }

    /// Waits for the end; the read end stays open until `self` is dropped.
    pub(super) async fn finished(&mut self) -> Finished {
        match (&mut self.task).await {
            Ok(finished) => finished,
            Err(panic) => Finished { counters: self.handle.counters(), end: End::Failed(io::Error::other(panic)) },
        }
    }
}

impl Collector {
    /// Opens the files, creates the pipes and begins to collect; `notices` are given of what is written. Close the [`ChildEnds`] once
    /// the task has them, otherwise the streams never end.
    ///
    /// The pipes belong to the user of this process; use `fchown(2)` on the ends if the task runs as another user and must be able
    /// to open `/dev/stdout` again.
    ///
    /// # Errors
    /// A [`super::rotator::RotatorError`] inside, or what `pipe2(2)` says.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn new(logs: &LogCollection, notices: Option<&Notices>) -> io::Result<(Collector, ChildEnds)> {
        let limits = Limits::from(logs);
        let collect = |base: &str, notice| collect(Rotator::open(&logs.dir, base, limits)?.telling(notice));
        let [out, err] = each(notices);
        let (stdout, stdout_end) = collect(&logs.stdout_file, out)?;
        let (stderr, stderr_end) = collect(&logs.stderr_file, err)?;
        Ok((Collector { stdout, stderr }, ChildEnds { stdout: stdout_end, stderr: stderr_end }))
    }

    /// Continues the collection of another collector, which is gone: `pipes` are non-blocking read ends of its pipes. A pipe that
    /// no
    /// process has open any more has no further output.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn take_over(
        logs: &LogCollection,
        pipes: [Option<OwnedFd>; 2],
        notices: Option<&Notices>,
    ) -> io::Result<Collector> {
        let limits = Limits::from(logs);
        let ([stdout, stderr], [out, err]) = (pipes, each(notices));
        let stream = |base: &str, pipe: Option<OwnedFd>, notice| {
            let rotator = Rotator::open(&logs.dir, base, limits)?.telling(notice);
            let ended = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map(|(read, _)| read);
            Ok::<_, io::Error>(Stream::spawn(pipe.map_or_else(ended, Ok)?, rotator, None))
        };
        let stdout = stream(&logs.stdout_file, stdout, out)?;
        Ok(Collector { stdout, stderr: stream(&logs.stderr_file, stderr, err)? })
    }

    /// The current counts.
    #[must_use]
    pub fn counters(&self) -> TaskOutput {
        TaskOutput { stdout: self.stdout.handle.counters(), stderr: self.stderr.handle.counters() }
    }

    /// Tells whether the files can be written, also after the collection has ended.
    #[must_use]
    pub fn health(&self) -> HealthWatch {
        let of = |stream: &Stream| {
            let (told, counters) = stream.handle.health();
            StreamWatch { told, counters, over: false }
        };
        HealthWatch { stdout: of(&self.stdout), stderr: of(&self.stderr) }
    }

    /// Reads what is in the pipes now and goes on collecting: afterwards everything that an ended process wrote is in the files,
    /// even while other processes still write.
    pub async fn settle(&mut self) {
        tokio::join!(self.stdout.handle.settle(), self.stderr.handle.settle());
    }

    /// After the task's exit: reads both streams to their ends, or for at most `grace` if a process that the task left behind still
    /// holds one open. What is in the pipes then is read, and that process gets EPIPE from then on.
    pub async fn finish(mut self, grace: Duration) -> Collected {
        let deadline = Instant::now() + grace;
        self.stdout.finish_by(deadline);
        self.stderr.finish_by(deadline);
        Collected { stdout: self.stdout.finished().await, stderr: self.stderr.finished().await }
    }
}

/// Whether the files of both streams can be written.
#[derive(Debug, Clone)]
pub struct HealthWatch {
    stdout: StreamWatch,
    stderr: StreamWatch,
}

#[derive(Debug, Clone)]
struct StreamWatch {
    told: watch::Receiver<Health>,
    counters: LiveCounters,
    /// Its pump has ended.
    over: bool,
}

impl StreamWatch {
    fn now(&mut self) -> (u64, StreamHealth) {
        let Health { changes, failing } = self.told.borrow_and_update().clone();
        (changes, StreamHealth { failing: failing.map(|text| text.to_string()), counts: self.counters.get() })
    }

    async fn changed(&mut self) {
        if self.over {
            std::future::pending::<()>().await;
        } else {
            self.over = self.told.changed().await.is_err();
        }
    }
}

impl HealthWatch {
    /// The health, for a caller that knows of `known` changes: at once if the number differs, else when it grows; `None` when
    /// nothing
    /// can change any more.
    pub async fn changed(&mut self, known: u64) -> Option<OutputHealth> {
        loop {
            let ((out, stdout), (err, stderr)) = (self.stdout.now(), self.stderr.now());
            if out + err != known {
                return Some(OutputHealth { changes: out + err, stdout, stderr });
            }
            if self.stdout.over && self.stderr.over {
                return None;
            }
            tokio::select! {
                () = self.stdout.changed() => {}
                () = self.stderr.changed() => {}
            }
        }
    }
}

fn each(notices: Option<&Notices>) -> [Option<Notice>; 2] {
    [notices.map(|notices| notices.stdout.clone()), notices.map(|notices| notices.stderr.clone())]
}

fn collect(rotator: Rotator) -> io::Result<(Stream, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    // Only our end: the task expects a stdout that blocks.
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((Stream::spawn(read, rotator, None), write))
}

/// An output that another process collects, or that is discarded.
#[derive(Debug)]
pub struct Sink {
    /// What the task gets: blocking, write-only, close-on-exec in this process. Close it once the task has it.
    pub child_end: OwnedFd,
    /// Has to be kept until the task has ended, and dropped then. See [`open_sink`].
    pub keeper: Option<Keeper>,
}

/// Keeps a FIFO alive while it has no reader.
#[derive(Debug)]
#[must_use = "without it the task dies of SIGPIPE when logmon does"]
pub struct Keeper {
    _both_ends: OwnedFd,
}

/// Opens what a host gave as stdout or stderr path: an empty path and `/dev/null` discard the output, a FIFO is written to, a
/// plain file appended to. The name is resolved beneath its directory, and no symlink is followed. Never blocks.
///
/// A FIFO's other end is logmon, which may not have opened it yet, and may die and be restarted while the task runs. Opening the
/// FIFO write-only would block until logmon opens it (and this process has one thread), and the task would get SIGPIPE when
/// logmon dies. So the FIFO is first opened for both reading and writing, which never waits on Linux; this [`Keeper`] stays with
/// the executor, so that the task always has a reader and the kernel keeps what it wrote for the next logmon. The task's own
/// descriptor is a second, write-only one. The FIFO gets the capacity that logmon would give it. The price: logmon sees the end
/// of the stream only when the keeper is dropped.
///
/// # Errors
/// ELOOP for a symlink, `InvalidInput` for anything but a FIFO and a plain file with one name, `PermissionDenied` for a FIFO that
/// neither this user nor root made, else what the system says.
pub fn open_sink(path: &Path) -> io::Result<Sink> {
    let null = Path::new("/dev/null");
    if path.as_os_str().is_empty() || path == null {
        let child_end = rustix::fs::open(null, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        return Ok(Sink { child_end, keeper: None });
    }
    let (root, name) = dir::open_parent(path)?;
    let node = root.open_beneath(Path::new(&name), OFlags::PATH, Mode::empty())?;
    let stat = rustix::fs::fstat(&node)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo if fifo::is_foreign(&stat) => {
            let text =
                format!("{} belongs to user {}, who could read the output: remove it", path.display(), stat.st_uid);
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
        FileType::Fifo => {
            let both_ends = fifo::reopen(&node, OFlags::RDWR)?;
            let child_end = fifo::reopen(&node, OFlags::WRONLY)?;
            // Space for what the task writes before its reader opens the FIFO, or opens it again.
            pump::enlarge(&both_ends);
            Ok(Sink { child_end, keeper: Some(Keeper { _both_ends: both_ends }) })
        }
        FileType::RegularFile if stat.st_nlink == 1 => {
            Ok(Sink { child_end: fifo::reopen(&node, OFlags::WRONLY | OFlags::APPEND)?, keeper: None })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a FIFO nor a plain file with one name")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    fn collection(dir: &Path) -> LogCollection {
        LogCollection {
            dir: dir.to_owned(),
            stdout_file: "web.stdout".into(),
            stderr_file: "web.stderr".into(),
            max_files: 3,
            max_file_size_bytes: 1 << 20,
            ..LogCollection::default()
        }
    }

    fn read(dir: &Path, name: &str) -> String {
        std::fs::read_to_string(dir.join(name)).unwrap()
    }

    #[tokio::test]
    async fn d2_a_task_is_collected() {
        let dir = tempfile::tempdir().unwrap();
        let (collector, ends) = Collector::new(&collection(dir.path()), None).unwrap();
        let mut task = Command::new("sh")
            .args(["-c", "echo out; echo err >&2; printf tail"])
            .stdout(ends.stdout)
            .stderr(ends.stderr)
            .spawn()
            .unwrap();
        task.wait().unwrap();
        let collected = collector.finish(Duration::from_secs(5)).await;
        assert!(matches!((&collected.stdout.end, &collected.stderr.end), (End::Eof, End::Eof)), "{collected:?}");
        assert_eq!(collected.stdout.counters.bytes, 8);
        assert_eq!(read(dir.path(), "web.stdout.0"), "out\ntail");
        assert_eq!(read(dir.path(), "web.stderr.0"), "err\n");
    }

    #[tokio::test]
    async fn d2_a_background_child_does_not_hold_the_end_up() {
        let dir = tempfile::tempdir().unwrap();
        let (collector, ends) = Collector::new(&collection(dir.path()), None).unwrap();
        // `read` ends when the test closes its stdin.
        let mut task = Command::new("sh")
            .args(["-c", "echo before; read line"])
            .stdin(Stdio::piped())
            .stdout(ends.stdout)
            .stderr(ends.stderr)
            .spawn()
            .unwrap();
        while collector.counters().stdout.lines == 0 {
            tokio::task::yield_now().await;
        }
        let collected = collector.finish(Duration::from_millis(20)).await;
        assert!(matches!(collected.stdout.end, End::Deadline));
        assert_eq!(read(dir.path(), "web.stdout.0"), "before\n");
        drop(task.stdin.take());
        task.wait().unwrap();
    }

    #[tokio::test]
    async fn d2_who_asks_hears_of_outages_once() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        let (collector, ends) = Collector::new(&collection(&logs), None).unwrap();
        let mut health = collector.health();
        let mut task = File::from(ends.stdout);
        drop(ends.stderr);
        let asked = health.changed(u64::MAX).await.unwrap();
        assert_eq!(asked, OutputHealth::default());
        let mut hear = async |known: u64| {
            // The next attempt to write comes with a later line.
            loop {
                task.write_all(b"line\n").unwrap();
                let heard = tokio::time::timeout(Duration::from_millis(20), health.changed(known)).await;
                if let Ok(heard) = heard {
                    return heard.unwrap();
                }
            }
        };
        std::fs::remove_dir_all(&logs).unwrap();
        let failed = hear(0).await;
        let reason = failed.stdout.failing.unwrap();
        assert!(reason.contains("web.stdout.0") && reason.contains("no such file"), "{reason}");
        assert_eq!((failed.changes, failed.stderr.failing), (1, None));
        std::fs::create_dir(&logs).unwrap();
        let healed = hear(1).await;
        assert!(healed.changes == 2 && healed.stdout.failing.is_none(), "{healed:?}");
        assert!(healed.stdout.counts.dropped_lines > 0);
        drop(task);
        let _ = collector.finish(Duration::from_secs(5)).await;
        assert_eq!(health.changed(2).await, None);
        assert_eq!(health.changed(1).await.unwrap().changes, 2, "who comes late hears it all the same");
    }

    #[tokio::test]
    async fn a_missing_directory_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let error = Collector::new(&collection(&dir.path().join("none")), None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn d1_a_sink_survives_the_death_of_its_reader() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let Sink { child_end, keeper } = open_sink(&path).unwrap();
        let mut task = File::from(child_end);
        let mut first = File::open(&path).unwrap();
        task.write_all(b"one\n").unwrap();
        let mut buffer = [0; 4];
        first.read_exact(&mut buffer).unwrap();
        drop(first);
        task.write_all(b"two\n").unwrap();
        let mut second = File::open(&path).unwrap();
        drop((task, keeper));
        let mut rest = String::new();
        second.read_to_string(&mut rest).unwrap();
        assert_eq!((&buffer, rest.as_str()), (b"one\n", "two\n"));
    }

    #[test]
    fn sinks_discard_append_or_refuse() {
        let dir = tempfile::tempdir().unwrap();
        for null in ["", "/dev/null"] {
            let sink = open_sink(Path::new(null)).unwrap();
            assert!(sink.keeper.is_none());
            File::from(sink.child_end).write_all(b"gone").unwrap();
        }
        let file = dir.path().join("file");
        std::fs::write(&file, "old ").unwrap();
        File::from(open_sink(&file).unwrap().child_end).write_all(b"new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "old new");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(open_sink(&link).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        std::fs::hard_link(&file, dir.path().join("second")).unwrap();
        assert_eq!(open_sink(&file).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(open_sink(dir.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(open_sink(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
