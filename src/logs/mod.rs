//! One task's output: from its pipe or FIFO into rotated files, and back out to readers that follow it. Never
//! knows allocations.

mod buffer;
pub mod client;
pub mod collector;
mod dir;
pub mod fifo;
pub mod follower;
pub mod framer;
pub mod journal;
pub mod keep;
pub mod logmon;
pub mod notices;
mod pack;
pub mod place;
pub mod pump;
pub mod rotator;
pub mod service;
pub mod ship;

use crate::spec::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use self::fifo::FifoError;
use self::rotator::RotatorError;

/// The number of a rotated file in its name.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn rotation_index(base: &str, name: &[u8]) -> Option<u64> {
    dir::parse_index(base, name)
}

/// The tasks whose output files, plain or compressed, are in a directory. The directory must not be a symlink.
///
/// # Errors
/// When it cannot be listed.
pub fn tasks(dir: &Path) -> io::Result<BTreeSet<String>> {
    Ok(dir::names(dir)?.iter().filter_map(|name| task_of(name.to_str()?)).collect())
}

/// The task of `<task>.stdout.<n>` and similar names.
fn task_of(name: &str) -> Option<String> {
    let name = name.strip_suffix(".zst").and_then(|name| name.rsplit_once('-')).or_else(|| name.rsplit_once('.'))?.0;
    let task = name.strip_suffix(".stdout").or_else(|| name.strip_suffix(".stderr"))?;
    (!task.starts_with('.')).then(|| task.to_owned())
}

/// What a logmon is to collect: the `StartRequest` as values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StartConfig {
    /// Existing directory of the rotated files.
    pub log_dir: PathBuf,
    /// Base name of the stdout files, `<task>.stdout`.
    pub stdout_file: String,
    /// Base name of the stderr files, `<task>.stderr`.
    pub stderr_file: String,
    /// Files kept per stream; 0 counts as 1.
    pub max_files: u32,
    /// Size of a file in units of 1024 * 1024 bytes; 0 counts as 1 byte.
    pub max_file_size_mb: u32,
    /// FIFO that the task's stdout is written to; created when missing.
    pub stdout_fifo: PathBuf,
    /// The same for stderr.
    pub stderr_fifo: PathBuf,
}

/// Errors of a logmon. The texts are the same as Nomad's.
#[derive(Debug, thiserror::Error)]
pub enum LogMonError {
    /// No file can be opened to write a stream to.
    #[error("failed to create {stream} logfile for {base:?}: {source}: {}", cause(source))]
    File {
        /// `stdout` or `stderr`.
        stream: &'static str,
        /// Base name of its files.
        base: String,
        /// The error of the files.
        source: RotatorError,
    },
    /// No FIFO can be opened to read a stream from.
    #[error("failed to create fifo for extracting logs: {source}: {}", cause(source))]
    Fifo {
        /// The error of the FIFO.
        source: FifoError,
    },
    /// The other process did not answer, or returned an error.
    #[error("{0}")]
    Rpc(#[source] Box<tonic::Status>),
}

/// The text of the error's source, because this text crosses a process boundary, where `source()` is lost.
fn cause(error: &dyn std::error::Error) -> String {
    let Some(source) = error.source() else { return "refused".to_owned() };
    source.downcast_ref::<io::Error>().map_or_else(|| source.to_string(), words_of_go)
}

/// An error of the system in the words of Go, for which hosts look: `no such file or directory`, without a number.
pub(crate) fn words_of_go(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(number) = error.raw_os_error()
        && let Some(words) = text.strip_suffix(&format!(" (os error {number})"))
    {
        let mut chars = words.chars();
        text = chars.next().map(|first| first.to_ascii_lowercase()).into_iter().chain(chars).collect();
    }
    text
}

/// Collects one task's two FIFOs into rotated files, here ([`logmon::LogMon`]) or in another process ([`client::Client`]).
pub trait LogMonitor: Send + Sync + 'static {
    /// Begins to collect and returns at once, whether or not there is a writer.
    ///
    /// While both streams run this does nothing. When one has ended (the task restarted) both begin again, including what was
    /// written
    /// in between.
    ///
    /// # Errors
    /// When a file cannot be opened or a FIFO cannot be created; then nothing new runs.
    fn start(&self, config: StartConfig) -> impl Future<Output = Result<(), LogMonError>> + Send;

    /// Reads the streams to their ends, for at most 2 seconds, and closes them. Without streams it does nothing.
    ///
    /// # Errors
    /// Only when the other process does not answer.
    fn stop(&self) -> impl Future<Output = Result<(), LogMonError>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_known_by_their_files() {
        for (name, task) in [
            ("web.stdout.0", Some("web")),
            ("my.web-1.stderr.12", Some("my.web-1")),
            ("web.stdout-3.zst", Some("web")),
            (".web.stdout.fifo", None),
            ("web.out", None),
        ] {
            assert_eq!(task_of(name).as_deref(), task, "{name}");
        }
    }

    #[test]
    fn errors_of_the_system_are_told_in_gos_words() {
        for (number, words) in [
            (libc::ENOENT, "no such file or directory"),
            (libc::EACCES, "permission denied"),
            (libc::EEXIST, "file exists"),
            (libc::EROFS, "read-only file system"),
        ] {
            assert_eq!(words_of_go(&io::Error::from_raw_os_error(number)), words);
        }
        let ours = "Neither a FIFO nor a file";
        assert_eq!(words_of_go(&io::Error::other(ours)), ours);
        let source = RotatorError::OpenDir { path: "/none".into(), source: io::Error::from_raw_os_error(libc::ENOENT) };
        let error = LogMonError::File { stream: "stdout", base: "web.stdout".into(), source }.to_string();
        assert!(error.ends_with("cannot open log directory /none: no such file or directory"), "{error}");
        let exists = LogMonError::Fifo { source: FifoError::Exists("/fifo".into()) }.to_string();
        assert!(exists.ends_with("/fifo: file exists: refused"), "{exists}");
    }
}
