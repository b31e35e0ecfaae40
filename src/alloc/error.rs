//! Errors around a task, before it runs and after.

use std::io;
use std::path::PathBuf;

use super::network::NetworkError;
use super::ports::PortError;
use super::record::RecordError;
use crate::csi::CsiError;
use crate::spec::{LONGEST_MESSAGE, Pos, shortened};
use crate::template::TemplateError;

/// Why an allocation or a task could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A directory or mount of the allocation cannot be made.
    #[error("cannot {action} {}", path.display())]
    Dir {
        /// The action that failed.
        action: &'static str,
        /// Its path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The record cannot be written; without it nothing could be cleaned up after a crash.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The group's ports cannot be allocated.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The network that the group's tasks share cannot be set up.
    #[error("{pos}: network mode {mode:?}")]
    Network {
        /// Its mode.
        mode: String,
        /// Its position in the job file.
        pos: Pos,
        /// Why not.
        source: Box<NetworkError>,
    },
    /// A stop, or a timeout, ended the setup.
    #[error("it was to end before it was set up")]
    Stopped,
    /// A task name that is not a single directory name.
    #[error("{pos}: {name:?} cannot name a task: it must be a plain file name and not \"alloc\"")]
    TaskName {
        /// The name.
        name: String,
        /// Its position in the job file.
        pos: Pos,
    },
    /// No driver has this name.
    #[error("{pos}: unknown driver {driver:?}; known are {known}")]
    UnknownDriver {
        /// The name.
        driver: String,
        /// The known drivers.
        known: String,
        /// The task's position in the job file.
        pos: Pos,
    },
    /// An artifact cannot be fetched.
    #[error("{pos}: artifact {source_path:?}: {action}")]
    Artifact {
        /// Its position in the job file.
        pos: Pos,
        /// Its source.
        source_path: String,
        /// The action that failed.
        action: String,
        /// Why not.
        source: io::Error,
        /// Whether a retry may succeed.
        recoverable: bool,
    },
    /// A volume cannot be mounted.
    #[error("{pos}: volume_mount of volume {volume:?}: {problem}")]
    Volume {
        /// The mount's position in the job file.
        pos: Pos,
        /// The group's name of the volume.
        volume: String,
        /// What is wrong, and the fix.
        problem: String,
    },
    /// A task cannot be the CSI plugin that it is meant to be.
    #[error("{pos}: csi_plugin {id:?}: {problem}")]
    CsiPlugin {
        /// Its position in the job file.
        pos: Pos,
        /// The plugin's id.
        id: String,
        /// What is wrong, and the fix.
        problem: String,
    },
    /// A volume of a CSI plugin cannot be mounted.
    #[error("{pos}: volume {volume:?}")]
    Csi {
        /// Its position in the job file.
        pos: Pos,
        /// The group's name of the volume.
        volume: String,
        /// Why not.
        source: Box<CsiError>,
    },
    /// A template cannot be rendered.
    #[error("{pos}: template {destination:?}")]
    Template {
        /// Its position in the job file.
        pos: Pos,
        /// Its destination.
        destination: String,
        /// Why not.
        source: TemplateError,
    },
    /// The file with a template's text cannot be read.
    #[error("{pos}: template source {path:?}, which is looked for below the task's directory, cannot be read")]
    TemplateSource {
        /// The template's position in the job file.
        pos: Pos,
        /// Its path as given.
        path: String,
        /// EXDEV when it leaves the task's directory.
        source: io::Error,
    },
    /// The file of `--kv` cannot be used.
    #[error("{0}")]
    Values(String),
    /// A template's file cannot be written.
    #[error("{pos}: template {destination:?} cannot be written")]
    TemplateFile {
        /// Its position in the job file.
        pos: Pos,
        /// Its destination.
        destination: String,
        /// EXDEV when the destination leaves the task's directory.
        source: io::Error,
    },
}

/// A part of a clean-up that failed; the other parts were still done.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {subject}")]
pub struct CleanupError {
    /// The action that failed.
    pub action: &'static str,
    /// Its subject.
    pub subject: String,
    /// Why not.
    pub source: io::Error,
}

/// An error with its causes on one line, each cause once, and the whole line limited in length.
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
