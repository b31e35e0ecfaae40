//! The implementation of a logmon.
//!
//! ```text
//!            start                  last writer closes
//!  (nothing) -----> [copying] --------------------------> [ended, FIFO still open]
//!     ^               |   ^                                  |        |
//!     |  stop (<= 2s) |   |  start: open anew, then close    |        |
//!     +---------------+   +----------------------------------+        |
//!     +------------------------------ stop ----------------------------+
//! ```
//!
//! At its end a stream stays open for reading, without being read: a restarted task can open its FIFO and write before the next
//! `Start`, and the kernel keeps that data. `Start` opens the FIFO a second time before it closes the first descriptor, so that
//! the pipe is never without an open descriptor. There is no spare write end: by the end of the stream, `Start` distinguishes a
//! restart from a
//! repeated call.
//!
//! If it is killed, nothing is lost: the pipe is kept open by the process that started the task ([`super::collector::Keeper`]),
//! and the data taken from it is in its [`Journal`].

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::collector::Stream;
use super::fifo::{self, FifoError};
use super::journal::{self, Journal};
use super::pump::{End, Finished};
use super::rotator::{Limits, Rotator};
use super::{LogMonError, LogMonitor, StartConfig};
use crate::spec::LogKeeping;

/// How long a stop waits for writers to close.
const DRAIN: Duration = Duration::from_secs(2);

/// Collects in this process. Works on a current-thread runtime, and adds no thread.
#[derive(Debug, Default)]
pub struct LogMon {
    journals: Option<PathBuf>,
    streams: Mutex<Option<Streams>>,
}

#[derive(Debug)]
struct Streams {
    stdout: Stream,
    stderr: Stream,
}

impl LogMon {
    /// A logmon that keeps journals in a directory of its user's own, which is created if it is missing; best on a file system in
    /// memory. Without journals (`default()`), data that is read but not written is lost when it is killed.
    #[must_use]
    pub fn new(journals: PathBuf) -> LogMon {
        LogMon { journals: Some(journals), streams: Mutex::default() }
    }
}

/// The journal of a FIFO; if it cannot be opened, collection goes on without it.
async fn open_journal(dir: Option<&Path>, reader: &OwnedFd, fifo: &Path) -> Option<Journal> {
    static SWEPT: Once = Once::new();
    let dir = dir?;
    SWEPT.call_once(|| journal::sweep(dir));
    match Journal::open(dir, reader, fifo).await {
        Ok(journal) => Some(journal),
        Err(error) => {
            tracing::warn!(%error, fifo = %fifo.display(), "no journal: what is being copied is lost when logmon is killed");
            None
        }
    }
}

impl Streams {
    async fn open(config: &StartConfig, journals: Option<&Path>) -> Result<Streams, LogMonError> {
        let limits = Limits {
            max_files: config.max_files,
            max_file_size_bytes: u64::from(config.max_file_size_mb) * 1024 * 1024,
            // Clients of a logmon read plain files, and the protocol has no field for other settings.
            keeping: LogKeeping::default(),
        };
        let open = |stream, base: &str, fifo: &Path| -> Result<_, LogMonError> {
            let file_failed = |source| LogMonError::File { stream, base: base.to_owned(), source };
            let rotator = Rotator::open(&config.log_dir, base, limits).map_err(file_failed)?;
            let reader = open_or_create(fifo).map_err(|source| LogMonError::Fifo { source })?;
            Ok((rotator, reader.into_fd()))
        };
        let stdout = open("stdout", &config.stdout_file, &config.stdout_fifo)?;
        let stderr = open("stderr", &config.stderr_file, &config.stderr_fifo)?;
        let spawn = async |(rotator, reader): (Rotator, Arc<OwnedFd>), base: &str, fifo: &Path| {
            let journal = open_journal(journals, &reader, fifo).await;
            // The previous reader may have begun another file while it was dying.
            let rotator = match journal.as_ref().map(|_| Rotator::open(&config.log_dir, base, limits)) {
                Some(Ok(later)) => later,
                Some(Err(_)) | None => rotator,
            };
            Stream::spawn(reader, rotator, journal)
        };
        Ok(Streams {
            stdout: spawn(stdout, &config.stdout_file, &config.stdout_fifo).await,
            stderr: spawn(stderr, &config.stderr_file, &config.stderr_fifo).await,
        })
    }

    /// Whether both still copy: checked directly, because the notification of an end may not have arrived yet.
    fn run(&self) -> bool {
        !self.stdout.ended() && !self.stderr.ended()
    }

    /// Ends both copies by the deadline; the FIFOs stay open.
    async fn finish_by(&mut self, deadline: Instant) -> [Finished; 2] {
        self.stdout.finish_by(deadline);
        self.stderr.finish_by(deadline);
        [self.stdout.finished().await, self.stderr.finished().await]
    }
}

fn open_or_create(path: &Path) -> Result<fifo::Reader, FifoError> {
    match fifo::create_and_read(path) {
        Err(FifoError::Exists(_)) => fifo::open_reader(path),
        other => other,
    }
}

impl LogMonitor for LogMon {
    async fn start(&self, config: StartConfig) -> Result<(), LogMonError> {
        let mut streams = self.streams.lock().await;
        if streams.as_ref().is_some_and(Streams::run) {
            return Ok(());
        }
        // A stream that still runs beside an ended one writes what it has read to the old files before the new ones are opened at
        // their
        // end; the rest waits in its FIFO.
        let mut old = streams.take();
        if let Some(old) = &mut old {
            old.finish_by(Instant::now()).await;
        }
        match Streams::open(&config, self.journals.as_deref()).await {
            Ok(new) => {
                *streams = Some(new);
                Ok(())
            }
            Err(error) => {
                // The FIFOs, and the data in them, are kept for the next attempt.
                *streams = old;
                Err(error)
            }
        }
    }

    async fn stop(&self) -> Result<(), LogMonError> {
        let Some(mut streams) = self.streams.lock().await.take() else { return Ok(()) };
        for finished in streams.finish_by(Instant::now() + DRAIN).await {
            match finished.end {
                End::Eof => {}
                End::Deadline => {
                    tracing::warn!("timed out waiting for read-side of process output pipe to close");
                }
                End::Failed(error) => tracing::warn!(%error, "error reading process output pipe"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use tempfile::TempDir;

    use super::*;

    fn config(dir: &TempDir) -> StartConfig {
        StartConfig {
            log_dir: dir.path().to_owned(),
            stdout_file: "stdout".into(),
            stderr_file: "stderr".into(),
            max_files: 2,
            max_file_size_mb: 1,
            stdout_fifo: dir.path().join(".t.stdout.fifo"),
            stderr_fifo: dir.path().join(".t.stderr.fifo"),
        }
    }

    /// A writer as a task has it: blocking, and opened at once because logmon holds the other end.
    fn writer(path: &Path) -> File {
        File::options().write(true).open(path).unwrap()
    }

    fn text(dir: &TempDir, name: &str) -> String {
        std::fs::read_to_string(dir.path().join(name)).unwrap_or_default()
    }

    async fn until(what: &str, mut ready: impl FnMut() -> bool) {
        let wait = async {
            while !ready() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    async fn ended(logmon: &LogMon) {
        until("both streams end", || {
            let streams = logmon.streams.try_lock().unwrap();
            let streams = streams.as_ref().unwrap();
            streams.stdout.stopped() && streams.stderr.stopped()
        })
        .await;
    }

    #[tokio::test]
    async fn d1_start_rotate() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        let logmon = LogMon::default();
        logmon.start(config.clone()).await.unwrap();
        let mut out = writer(&config.stdout_fifo);
        let data: Vec<u8> = pseudo_random(1).take(1 << 20).collect();
        let write = std::thread::spawn({
            let data = data.clone();
            move || out.write_all(&data).unwrap()
        });
        until("the writer is done", || write.is_finished()).await;
        logmon.stop().await.unwrap();
        let files = ["stdout.0", "stdout.1"].map(|f| std::fs::read(dir.path().join(f)).unwrap());
        assert!(!files[1].is_empty() && files.concat() == data);
        assert!(!dir.path().join("stdout.2").exists());
        logmon.stop().await.unwrap();
    }

    /// Bytes that end inside a line.
    fn pseudo_random(seed: u64) -> impl Iterator<Item = u8> {
        let mut state = seed;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
    }

    #[tokio::test]
    async fn d1_start_restart() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        let logmon = LogMon::default();
        logmon.start(config.clone()).await.unwrap();
        let (mut out, err) = (writer(&config.stdout_fifo), writer(&config.stderr_fifo));
        out.write_all(b"test\n").unwrap();
        until("the first line", || text(&dir, "stdout.0") == "test\n").await;

        // Again while both run: nothing happens.
        logmon.start(config.clone()).await.unwrap();
        out.write_all(b"more\n").unwrap();
        until("the second line", || text(&dir, "stdout.0") == "test\nmore\n").await;

        drop((out, err));
        ended(&logmon).await;
        logmon.start(config.clone()).await.unwrap();
        let (mut out, mut err) = (writer(&config.stdout_fifo), writer(&config.stderr_fifo));
        out.write_all(b"after\n").unwrap();
        err.write_all(b"error\n").unwrap();
        until("the lines of the restarted task", || {
            text(&dir, "stdout.0") == "test\nmore\nafter\n" && text(&dir, "stderr.0") == "error\n"
        })
        .await;
        drop((out, err));
        logmon.stop().await.unwrap();
    }

    #[tokio::test]
    async fn d1_one_dead_stream_is_enough_to_restart() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        let logmon = LogMon::default();
        logmon.start(config.clone()).await.unwrap();
        let (mut out, err) = (writer(&config.stdout_fifo), writer(&config.stderr_fifo));
        out.write_all(b"be").unwrap();
        drop(err);
        until("stderr ends", || logmon.streams.try_lock().unwrap().as_ref().unwrap().stderr.stopped()).await;
        logmon.start(config.clone()).await.unwrap();
        out.write_all(b"fore\n").unwrap();
        let mut err = writer(&config.stderr_fifo);
        err.write_all(b"e\n").unwrap();
        until("both", || text(&dir, "stdout.0") == "before\n" && text(&dir, "stderr.0") == "e\n").await;
        drop((out, err));
        logmon.stop().await.unwrap();
    }

    #[tokio::test]
    async fn d1_start_restart_flusheslogs() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        let logmon = LogMon::default();
        logmon.start(config.clone()).await.unwrap();
        let (mut out, err) = (writer(&config.stdout_fifo), writer(&config.stderr_fifo));
        out.write_all(b"test\n").unwrap();
        until("the first line", || text(&dir, "stdout.0") == "test\n").await;
        drop((out, err));
        ended(&logmon).await;

        // A reader still has it open, so that opening does not block; but it does not read.
        let (mut out, err) = (writer(&config.stdout_fifo), writer(&config.stderr_fifo));
        out.write_all(b"te").unwrap();
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(text(&dir, "stdout.0"), "test\n");

        logmon.start(config.clone()).await.unwrap();
        out.write_all(b"st\n").unwrap();
        until("both lines", || text(&dir, "stdout.0") == "test\ntest\n").await;
        drop((out, err));
        logmon.stop().await.unwrap();
    }

    #[tokio::test]
    async fn d1_what_a_short_run_left_is_flushed() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        let logmon = LogMon::default();
        logmon.start(config.clone()).await.unwrap();
        drop((writer(&config.stdout_fifo), writer(&config.stderr_fifo)));
        ended(&logmon).await;
        // The whole life of a task between two starts.
        writer(&config.stdout_fifo).write_all(b"brief\n").unwrap();
        logmon.start(config.clone()).await.unwrap();
        until("the line", || text(&dir, "stdout.0") == "brief\n").await;
        logmon.stop().await.unwrap();
    }

    #[tokio::test]
    async fn d1_a_restarted_logmon_goes_on_with_the_fifos_that_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        let first = LogMon::default();
        first.start(config.clone()).await.unwrap();
        let sink = super::super::collector::open_sink(&config.stdout_fifo).unwrap();
        let mut task = File::from(sink.child_end);
        task.write_all(b"one\n").unwrap();
        until("the first line", || text(&dir, "stdout.0") == "one\n").await;
        drop(first);
        task.write_all(b"two\n").unwrap();
        let second = LogMon::default();
        second.start(config).await.unwrap();
        task.write_all(b"three\n").unwrap();
        until("all lines", || text(&dir, "stdout.0") == "one\ntwo\nthree\n").await;
        drop((task, sink.keeper));
        second.stop().await.unwrap();
    }

    #[tokio::test]
    async fn d1_new_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(&dir);
        config.log_dir = "/nonexistent/logs".into();
        let logmon = LogMon::default();
        let error = logmon.start(config.clone()).await.unwrap_err();
        assert!(error.to_string().starts_with("failed to create stdout logfile for \"stdout\""), "{error}");
        assert!(!config.stdout_fifo.exists());
        config.log_dir = dir.path().to_owned();
        config.stdout_fifo = "/nonexistent/fifo".into();
        let error = logmon.start(config).await.unwrap_err();
        assert!(error.to_string().starts_with("failed to create fifo for extracting logs"), "{error}");
        logmon.stop().await.unwrap();
    }

    #[tokio::test]
    async fn d1_stop_does_not_wait_for_a_writer_that_never_came() {
        let dir = tempfile::tempdir().unwrap();
        let logmon = LogMon::default();
        logmon.start(config(&dir)).await.unwrap();
        tokio::time::timeout(Duration::from_secs(1), logmon.stop()).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn d1_a_planted_link_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(&dir);
        std::fs::write(dir.path().join("secret"), "of the host").unwrap();
        std::os::unix::fs::symlink("secret", &config.stdout_fifo).unwrap();
        let error = LogMon::default().start(config).await.unwrap_err();
        assert!(matches!(error, LogMonError::Fifo { source: FifoError::NotAFifo(_) }), "{error}");
    }
}
