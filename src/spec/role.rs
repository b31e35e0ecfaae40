//! The names of the roles of this executable.

/// A program that this executable can be besides a command line tool.
///
/// The names are Nomad's: a host sends them as `argv[1]`, and a symlink of that name selects the role too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Owns the processes of one task and serves the executor service over go-plugin.
    Executor,
    /// Becomes the task: builds its root, drops its privileges, executes it. Started by the executor only.
    Shim,
    /// Copies a task's two FIFOs into rotated files and serves the logmon service over go-plugin.
    Logmon,
    /// Copies a container's output into a task's two FIFOs and serves the `docker_logger` service over go-plugin.
    DockerLogger,
    /// Says what it can do where it was started. `agentbin doctor --probe` starts it inside a task.
    IsolationProbe,
    /// Works as root over the subordinate ids of a plain user.
    Subordinate,
    /// Holds the network of a plain user's allocation.
    NetworkKeeper,
    /// Downloads and unpacks one artifact, with as few rights as that needs.
    ArtifactFetcher,
}

impl Role {
    /// Every role, in the order in which help texts name them.
    pub const ALL: [Role; 8] = [
        Role::Executor,
        Role::Shim,
        Role::Logmon,
        Role::DockerLogger,
        Role::IsolationProbe,
        Role::Subordinate,
        Role::NetworkKeeper,
        Role::ArtifactFetcher,
    ];

    /// The exact name on a command line and as a symlink.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::Executor => "executor",
            Role::Shim => "libcontainer-shim",
            Role::Logmon => "logmon",
            Role::DockerLogger => "docker_logger",
            Role::IsolationProbe => "isolation-probe",
            Role::Subordinate => "subordinate",
            Role::NetworkKeeper => "network-keeper",
            Role::ArtifactFetcher => "artifact-fetcher",
        }
    }

    /// The role with exactly this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|r| r.name() == name)
    }
}

/// The environment variable in which the processes of a driver plugin that is not ours, and the helpers that they start, carry
/// the directory of sockets of whoever runs the plugin: so they are found when he was killed.
pub const PLUGIN_MARK: &str = "AGENTBIN_PLUGIN_OF";
