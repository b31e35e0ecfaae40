//! What can go wrong around a task, before it runs and after.

use std::io;
use std::path::PathBuf;

use super::network::NetworkError;
use super::ports::PortError;
use super::record::RecordError;
use crate::spec::{LONGEST_MESSAGE, Pos, shortened};
use crate::template::TemplateError;

/// Why an allocation or a task could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A directory or mount of the allocation.
    #[error("cannot {action} {}", path.display())]
    Dir {
        /// What was being done.
        action: &'static str,
        /// To what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The record, without which nothing could be cleaned up after a crash.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The group's ports.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The network that its tasks share.
    #[error("{pos}: network mode {mode:?}")]
    Network {
        /// Its mode.
        mode: String,
        /// Where it stands.
        pos: Pos,
        /// Why there is none.
        source: Box<NetworkError>,
    },
    /// Somebody, or the time, wanted its end.
    #[error("it was to end before it was set up")]
    Stopped,
    /// A name that would not be one directory below the allocation's.
    #[error("{pos}: {name:?} cannot name a task: it must be a plain file name and not \"alloc\"")]
    TaskName {
        /// The name.
        name: String,
        /// Where it stands.
        pos: Pos,
    },
    /// No driver has this name.
    #[error("{pos}: unknown driver {driver:?}; known are {known}")]
    UnknownDriver {
        /// The name.
        driver: String,
        /// The names that exist.
        known: String,
        /// Where the task stands.
        pos: Pos,
    },
    /// An artifact.
    #[error("{pos}: artifact {source_path:?}: {action}")]
    Artifact {
        /// Where it stands.
        pos: Pos,
        /// Its source.
        source_path: String,
        /// What was being done.
        action: String,
        /// Why not.
        source: io::Error,
        /// It may go well the next time.
        recoverable: bool,
    },
    /// A volume.
    #[error("{pos}: volume_mount of volume {volume:?}: {problem}")]
    Volume {
        /// Where the mount stands.
        pos: Pos,
        /// The group's name of the volume.
        volume: String,
        /// What is wrong, and the fix.
        problem: String,
    },
    /// A template's text.
    #[error("{pos}: template {destination:?}")]
    Template {
        /// Where it stands.
        pos: Pos,
        /// Its destination.
        destination: String,
        /// Why not.
        source: TemplateError,
    },
    /// The file that has a template's text.
    #[error("{pos}: template source {path:?}, which is looked for below the task's directory, cannot be read")]
    TemplateSource {
        /// Where the template stands.
        pos: Pos,
        /// What was given.
        path: String,
        /// EXDEV when it leaves the task's directory.
        source: io::Error,
    },
    /// The file of `--kv`.
    #[error("{0}")]
    Values(String),
    /// A template's file.
    #[error("{pos}: template {destination:?} cannot be written")]
    TemplateFile {
        /// Where it stands.
        pos: Pos,
        /// Its destination.
        destination: String,
        /// EXDEV when the destination leaves the task's directory.
        source: io::Error,
    },
}

/// Part of a clean-up that did not work; the other parts were still done.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {subject}")]
pub struct CleanupError {
    /// What was being done.
    pub action: &'static str,
    /// To what.
    pub subject: String,
    /// Why not.
    pub source: io::Error,
}

/// An error with its causes, on one line, each told once and none longer than anybody reads.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    chain_within(error, LONGEST_MESSAGE)
}

/// The same with at most about `most` bytes.
#[must_use]
pub fn chain_within(error: &dyn std::error::Error, most: usize) -> String {
    let mut told = String::new();
    for cause in std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string) {
        // Some messages of libraries end with their cause.
        if told.is_empty() {
            told = cause;
        } else if !told.ends_with(&cause) {
            told = format!("{told}: {cause}");
        }
        if told.len() > most {
            break;
        }
    }
    shortened(&told, most).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Failed(&'static str, #[source] Option<Box<Failed>>);

    #[test]
    fn a_cause_is_told_once_and_no_message_is_endless() {
        let of = |texts: &[&'static str]| {
            texts.iter().rev().fold(None, |inner, text| Some(Box::new(Failed(text, inner)))).unwrap()
        };
        assert_eq!(chain(&*of(&["cannot start", "no space"])), "cannot start: no space");
        assert_eq!(chain(&*of(&["cannot start: no space", "no space"])), "cannot start: no space");
        assert_eq!(chain(&*of(&["a: b: c", "b: c", "c"])), "a: b: c");
        let long: &'static str = Box::leak("x".repeat(1 << 20).into_boxed_str());
        assert!(chain(&*of(&["a", long, "b"])).len() < LONGEST_MESSAGE + 32);
    }
}
