//! Task events and their types.

use std::time::SystemTime;

use crate::spec::collections::BTreeMap;

/// Type of a task event; the texts are Nomad's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[expect(missing_docs, reason = "the names are Nomad's event types, but for `Restored`, which is ours")]
pub enum EventKind {
    Received,
    TaskSetup,
    BuildingTaskDirectory,
    DownloadingArtifacts,
    FailedArtifactDownload,
    SetupFailure,
    Driver,
    DriverFailure,
    Started,
    Terminated,
    Restarting,
    NotRestarting,
    RestartSignaled,
    Signaling,
    Killing,
    Killed,
    WaitingForShutdownDelay,
    SkippingShutdownDelay,
    SiblingTaskFailed,
    LeaderTaskDead,
    MainTasksDead,
    Template,
    HookMessage,
    HookFailed,
    FailedRestore,
    Restored,
    PluginHealthy,
    PluginUnhealthy,
}

impl EventKind {
    /// Nomad's `Type` of the event.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            EventKind::Received => "Received",
            EventKind::TaskSetup => "Task Setup",
            EventKind::BuildingTaskDirectory => "Building Task Directory",
            EventKind::DownloadingArtifacts => "Downloading Artifacts",
            EventKind::FailedArtifactDownload => "Failed Artifact Download",
            EventKind::SetupFailure => "Setup Failure",
            EventKind::Driver => "Driver",
            EventKind::DriverFailure => "Driver Failure",
            EventKind::Started => "Started",
            EventKind::Terminated => "Terminated",
            EventKind::Restarting => "Restarting",
            EventKind::NotRestarting => "Not Restarting",
            EventKind::RestartSignaled => "Restart Signaled",
            EventKind::Signaling => "Signaling",
            EventKind::Killing => "Killing",
            EventKind::Killed => "Killed",
            EventKind::WaitingForShutdownDelay => "Waiting for shutdown delay",
            EventKind::SkippingShutdownDelay => "Skipping shutdown delay",
            EventKind::SiblingTaskFailed => "Sibling Task Failed",
            EventKind::LeaderTaskDead => "Leader Task Dead",
            EventKind::MainTasksDead => "Main Tasks Dead",
            EventKind::Template => "Template",
            EventKind::HookMessage => "Task hook message",
            EventKind::HookFailed => "Task hook failed",
            EventKind::FailedRestore => "Failed Restoring Task",
            EventKind::Restored => "Restored",
            EventKind::PluginHealthy => "Plugin became healthy",
            EventKind::PluginUnhealthy => "Plugin became unhealthy",
        }
    }
}

/// Something that happened to a task, for people and for `--json`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct TaskEvent {
    /// What kind of thing.
    pub kind: EventKind,
    /// When.
    pub time: SystemTime,
    /// To which task; empty for the allocation itself.
    pub task: String,
    /// Nomad's display message.
    pub message: String,
    /// Machine-readable details (`exit_code`, `signal`, ...), Nomad's keys.
    pub details: BTreeMap<String, String>,
}
