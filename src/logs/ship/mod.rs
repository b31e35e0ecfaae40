//! Ships a task's output to sinks, read from its rotated files: a slow or dead sink does not affect the task. Never reads what
//! the task writes before it is in its files.
//!
//! ```text
//!   rotated files ──follower──▶ lines ──▶ batch ──▶ outlet (one for each sink of this process) ──▶ sink
//!        ▲                                  │            └ dead: again and again, with growing pauses up to 5 s
//!        │                                  └ delivered: the cursor moves; written down within 200 ms
//!        └──second follower, only while the first is behind: counts what it will miss when files are rotated away
//! ```
//!
//! A line is delivered at least once, and in order. It is delivered twice if its delivery is unknown: after a kill within those
//! 200 ms, or when an answer was lost. File and offset, which each sink gets, identify a line uniquely.

mod entry;
mod file;
mod journald;
mod otlp;
mod outlet;
mod record;
mod shipper;
mod sink;
mod syslog;
mod tally;
#[cfg(test)]
mod tests;

pub use outlet::Outlets;
pub use record::{Account, RecordError, Shipped};
pub use shipper::{Shipment, resume};
pub use sink::{Sink, SinkError};

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The directory of the records of an allocation's shipments: inside its directory, where its tasks cannot write.
#[must_use]
pub fn records(alloc_dir: &Path) -> PathBuf {
    alloc_dir.join(".agentbin-ship")
}

/// The origin of the output, as each line has it.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct Labels {
    /// Job id.
    pub job: String,
    /// Group name.
    pub group: String,
    /// Task name; the base of its files.
    pub task: String,
    /// Allocation id.
    pub alloc: String,
}

/// `stdout` or `stderr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// Both.
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// `stdout` or `stderr`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

/// Output that a sink did not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Lost {
    /// Lines.
    pub lines: u64,
    /// Bytes, line ends too.
    pub bytes: u64,
    /// Files that were gone before they could be read: their lines and bytes are in neither of the others.
    pub files: u64,
}

impl Lost {
    /// Nothing was lost.
    #[must_use]
    pub fn is_nothing(self) -> bool {
        self == Lost::default()
    }
}

impl std::ops::AddAssign for Lost {
    fn add_assign(&mut self, other: Lost) {
        self.lines += other.lines;
        self.bytes += other.bytes;
        self.files += other.files;
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.files == 0 || self.bytes > 0 {
            write!(f, "{} lines ({} bytes)", self.lines, self.bytes)?;
        }
        match (self.files, self.bytes) {
            (0, _) => Ok(()),
            (files, 0) => write!(f, "{files} log files of unknown content"),
            (files, _) => write!(f, " and {files} log files of unknown content"),
        }
    }
}

/// Reports about a shipment. Each is made once: a sink that stays down is not reported again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A sink is down.
    Down {
        /// Without its secrets.
        sink: String,
        /// Why.
        error: String,
    },
    /// It takes lines again.
    Up {
        /// Without its secrets.
        sink: String,
    },
    /// Files were rotated away, or the task's files were removed, before they were delivered.
    Lost {
        /// Without its secrets.
        sink: String,
        /// Whose output.
        labels: Arc<Labels>,
        /// Which output.
        stream: Stream,
        /// How much since the last such report.
        lost: Lost,
    },
    /// The sink has rejected lines.
    Rejected {
        /// Without its secrets.
        sink: String,
        /// Whose output.
        labels: Arc<Labels>,
        /// Which output.
        stream: Stream,
        /// How many.
        lines: u64,
        /// The error of the sink.
        error: String,
    },
    /// The files, or the record of the progress, cannot be read or written. Unreadable files end the shipment.
    Broken {
        /// Whose output.
        labels: Arc<Labels>,
        /// Which output.
        stream: Stream,
        /// The action that failed, and why.
        error: String,
    },
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Report::Down { sink, error } => write!(f, "log sink {sink} takes nothing: {error}"),
            Report::Up { sink } => write!(f, "log sink {sink} takes lines again"),
            Report::Lost { sink, labels, stream, lost } => {
                write!(f, "log sink {sink} did not get {lost} of {}'s {}", labels.task, stream.name())
            }
            Report::Rejected { sink, labels, stream, lines, error } => {
                write!(f, "log sink {sink} refused {lines} lines of {}'s {}: {error}", labels.task, stream.name())
            }
            Report::Broken { labels, stream, error } => {
                write!(f, "shipping {}'s {}: {error}", labels.task, stream.name())
            }
        }
    }
}

/// Takes reports; must not block.
pub type Reporter = Arc<dyn Fn(Report) + Send + Sync>;

/// A record that can be parsed is the same after it is serialized and parsed again.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_record(bytes: &[u8]) {
    if let Ok(record) = record::Record::parse(bytes) {
        assert_eq!(record::Record::parse(&record.to_bytes()), Ok(record));
    }
}

/// However a stream is split into pieces, the bytes and their positions are the same. Each piece has its length before it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_lines(mut data: &[u8], time: std::time::SystemTime) {
    use super::follower::Cursor;

    let (mut lines, mut got, mut whole) = (entry::Lines::default(), Vec::new(), Vec::new());
    let at = |offset: usize| Cursor { index: 0, inode: 0, offset: offset as u64 };
    let mut take = |batch: Option<entry::Batch>| {
        let Some(batch) = batch else { return };
        for entry in &batch.entries {
            assert_eq!(entry.at.offset, got.len() as u64);
            got.extend_from_slice(batch.text(entry));
            got.extend((!entry.partial).then_some(b'\n'));
        }
        assert_eq!(batch.resume.offset, got.len() as u64);
    };
    while let Some((length, rest)) = data.split_first() {
        let (piece, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        whole.extend_from_slice(piece);
        take(lines.feed(piece, at(whole.len()), time));
        data = rest;
    }
    take(lines.cut(at(whole.len()), time));
    assert!(got == whole);
}
