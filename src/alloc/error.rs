//! Errors around a task, before it runs and after.

use std::io;
use std::path::PathBuf;

use super::ports::PortError;
use super::record::RecordError;
use crate::csi::CsiError;
use crate::driver::DriverError;
use crate::net;
use crate::spec::Pos;
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
    #[error("it was stopped before it was set up")]
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
    #[error("{pos}: failed to download artifact {source_path:?}: {action}")]
    Artifact {
        /// Its position in the job file.
        pos: Pos,
        /// Its source.
        source_path: String,
        /// The action that failed.
        action: String,
        /// Why not.
        source: io::Error,
    },
    /// A service of a task has a name that no service can have.
    #[error(
        "{pos}: service ({name}) failed validation: its name must be valid per RFC 1123; use letters, digits, and dashes between \
         them, 63 at most"
    )]
    Service {
        /// Its position in the job file.
        pos: Pos,
        /// Its name, with its references replaced.
        name: String,
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
        /// Why not.
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
        /// Why not.
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

/// Why the tasks of a group have no network of their own.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// It cannot be made or connected.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// The driver that has to make it cannot.
    #[error("driver {driver:?} cannot make it")]
    Driver {
        /// The driver.
        driver: String,
        /// Why not.
        source: DriverError,
    },
    /// A driver cannot put its tasks into a shared network.
    #[error("task {task:?} cannot have it: driver {driver:?} puts no task into a group's network")]
    NotInGroup {
        /// The task.
        task: String,
        /// Its driver.
        driver: String,
    },
    /// A driver's tasks cannot enter the network of an unprivileged user.
    #[error(
        "task {task:?} cannot have it: driver {driver:?} cannot enter a network in a user's own namespaces; run agentbin as root, or \
         use mode \"host\""
    )]
    NotInUsers {
        /// The task.
        task: String,
        /// Its driver.
        driver: String,
    },
    /// Two drivers would each have to make the network.
    #[error("tasks {0:?} and {1:?} cannot share it: each one's driver must make it; put them into two groups")]
    TwoMakers(String, String),
    /// Only some drivers can set a host name.
    #[error("hostname {0:?} needs a task with driver \"docker\" in the group; remove it")]
    NoHostname(String),
    /// The host name is invalid.
    #[error("hostname {0:?} is not a name of a host: use letters, digits and dashes, with dots in between")]
    BadHostname(String),
    /// The thread that makes it has panicked.
    #[error("making it failed unexpectedly")]
    Broken(#[source] tokio::task::JoinError),
}
