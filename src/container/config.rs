//! The configuration that the parent sends to the shim.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::{HostIds, Masks, Neighbours, OwnNamespaces, Propagation, ResourceLimit, Seccomp, Unveil};

/// Everything that the shim needs to become the task. Sent as JSON; parent and shim are the same executable, so there is no version
/// to negotiate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The command. Isolated: as the job names it, looked up inside the root. Plain: the program's path.
    pub command: String,
    /// Arguments after the command.
    pub args: Vec<String>,
    /// Complete environment, `KEY=value`.
    pub env: Vec<String>,
    /// User by name; empty keeps the executor's own.
    pub user: String,
    /// What the host's user database says about `user`, if it knows it.
    pub host_ids: Option<Ids>,
    /// Which other tasks or users write below the allocation's directory; `None` executes a program no matter who can write to it.
    pub neighbours: Option<Neighbours>,
    /// The shim stays as pid 1 of its pid namespace, and the command is its child.
    pub init: bool,
    /// `host_ids` is the task's user, no matter what a passwd file in its root says.
    pub host_users: bool,
    /// Which directories untrusted users can reach, for a command that the shim looks up. `None` where that does not matter.
    pub guard: Option<Guard>,
    /// Working directory; inside the root when isolated, empty for its top.
    pub work_dir: PathBuf,
    /// The task's own root; `None` shares the host's files.
    pub root: Option<RootConfig>,
    /// Capabilities (`CAP_` names) that the task ends up with.
    pub capabilities: Vec<String>,
    /// See `prctl(PR_SET_NO_NEW_PRIVS)`.
    pub no_new_privs: bool,
    /// System calls that the task may make.
    pub seccomp: Seccomp,
    /// Resource limits of each process.
    pub limits: Vec<ResourceLimit>,
    /// Namespaces to make beside those in which the shim was born. A further process of the task enters them instead.
    pub own: OwnNamespaces,
    /// Make a user namespace that maps only the task's user and groups, each to its own number.
    pub user_namespace: bool,
    /// The host ids that the user namespace maps; all of them are mapped then. Without root, their numbers in the first user
    /// namespace. `host_ids`, like every other id here, is a number inside.
    pub id_range: Option<HostIds>,
    /// All that the task may do with files; empty allows all that its user may do.
    pub unveil: Vec<Unveil>,
    /// The task's `oom_score_adj`.
    pub oom_score_adj: i32,
    /// Network namespace to join; `None` keeps the executor's.
    pub network_namespace: Option<PathBuf>,
    /// Set when the executor is not root and works through a user namespace.
    pub rootless: Option<Rootless>,
    /// The command keeps running when the executor is killed.
    pub outlives: bool,
    /// Set for a further process of a running task. Its `host_ids` are those of the task and are not checked again.
    pub session: Option<SessionConfig>,
}

impl Config {
    /// The host's id for a uid of the task.
    #[must_use]
    pub fn on_host(&self, uid: u32) -> u32 {
        HostIds::on_host(self.id_range, uid)
    }

    /// Whether the task can run as another user than the executor does: with root, or with subordinate ids.
    #[must_use]
    pub fn has_users(&self) -> bool {
        self.rootless.is_none_or(|rootless| rootless.ids.is_some())
    }
}

/// What the shim does before it receives its configuration. This is its command line argument.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Birth {
    /// v1: `tasks` files of the root cgroups of the hierarchies, when the shim makes a cgroup namespace there.
    pub cgroup_roots: Option<Vec<PathBuf>>,
    /// v1: `tasks` files of the cgroups that the shim joins after that.
    pub join: Vec<PathBuf>,
    /// The shim will get its own root.
    pub root: bool,
    /// The executor is not root.
    pub rootless: bool,
}

/// Settings of a further process of a running task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionConfig {
    /// It leads a session on a terminal: one from the task's own devpts if the task has a root, else the one that it gets as stdin.
    pub tty: bool,
    /// Namespaces to enter, in this order; their descriptors are sent along.
    pub namespaces: Vec<Namespace>,
}

/// A namespace of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Namespace {
    /// The user namespace that owns the task's other namespaces.
    Owner,
    /// Its IPC namespace.
    Ipc,
    /// Its pid namespace.
    Pid,
    /// Its mount namespace.
    Mount,
    /// Its UTS namespace.
    Uts,
    /// Its cgroup namespace.
    Cgroup,
    /// Its network namespace, unless it joined one that was named in its configuration.
    Network,
    /// The user namespace in which its processes run. Entered last, as it only takes privileges away.
    User,
}

/// What the shim reports to the executor just before it executes its command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Became {
    /// The user that it became; `None` keeps the executor's user.
    pub ids: Option<Ids>,
    /// Pid of the process that executes the command, if it is not the shim. Its pidfd is sent along.
    pub pid: Option<i32>,
    /// Master and slave of the session's terminal are sent along.
    pub terminal: bool,
    /// Namespaces that it made. Their descriptors are sent along.
    pub namespaces: Vec<Namespace>,
}

/// The root of an isolated task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootConfig {
    /// The task's directory, which becomes `/`.
    pub task_dir: PathBuf,
    /// Host paths that are bound in, in order.
    pub binds: Vec<Bind>,
    /// Devices beside the default ones.
    pub devices: Vec<DeviceNode>,
    /// Move the root onto `/` instead of pivoting, for an agent on an initramfs.
    pub no_pivot_root: bool,
    /// What is hidden of `/proc` and `/sys`.
    pub masks: Masks,
    /// An agent has filled the task's directory, see [`LaunchSpec::filled_root`](crate::spec::LaunchSpec::filled_root).
    pub filled: bool,
}

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    /// Place inside the root.
    pub target: PathBuf,
    /// Host path.
    pub source: PathBuf,
    /// The whole tree is read-only.
    pub readonly: bool,
    /// See [`Propagation`].
    pub propagation: Propagation,
    /// Every task of the driver gets this mount; it was not requested by a job.
    pub of_host: bool,
    /// See [`Mount::identity`](crate::spec::Mount::identity).
    pub identity: Option<(u64, u64)>,
}

/// A device in the task's root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Place inside the root.
    pub target: PathBuf,
    /// The host's node.
    pub source: PathBuf,
}

/// Numeric identity of a user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ids {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups, without duplicates.
    pub groups: Vec<u32>,
    /// Home directory; may be empty.
    pub home: String,
}

/// How an executor that is not root isolates: uid and gid 0 of the first user namespace are its own ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rootless {
    /// The executor's effective user id.
    pub uid: u32,
    /// The executor's effective group id.
    pub gid: u32,
    /// Further ids in the first user namespace. The second one, made for the task, maps only these.
    pub ids: Option<SubordinateIds>,
}

/// Host ids that a plain user's shim has in addition to the user's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubordinateIds {
    /// Their numbers in the shim's user namespace.
    pub inside: HostIds,
    /// The host's first user id of them.
    pub first_uid: u32,
    /// The host's first group id of them.
    pub first_gid: u32,
}

/// Which parts of an allocation's directory an untrusted user can reach. Determined from the host, before the task's root is
/// entered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    /// Device and inode of the allocation's directory; `None` where it cannot be opened.
    pub(super) top: Option<(u64, u64)>,
    /// Others can reach the directories of its tasks.
    pub(super) tasks: bool,
    /// Others can reach the directory that its tasks share.
    pub(super) shared: bool,
    /// What is wrong with the allocation's directory itself.
    pub(super) problem: Option<String>,
    /// Why it could not be inspected.
    pub(super) unseen: Option<String>,
}

/// What kind of failure it is, for callers that branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    /// The command does not exist.
    CommandNotFound,
    /// The command is there but cannot be executed.
    NotExecutable,
    /// The job asks for something impossible: no such user, a path that leaves the root.
    Invalid,
    /// The task's cgroup was removed before the shim was in it.
    CgroupGone,
    /// The kernel or the privileges do not allow it.
    System,
}

/// A step of the shim that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Failure {
    /// What was being done, to what: `mount /proc`.
    pub step: String,
    /// See [`FailureKind`].
    pub kind: FailureKind,
    /// The cause.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            // These messages are complete sentences, in the wording that hosts expect.
            FailureKind::CommandNotFound | FailureKind::Invalid => f.write_str(&self.message),
            FailureKind::NotExecutable | FailureKind::CgroupGone | FailureKind::System => {
                write!(f, "{}: {}", self.step, self.message)
            }
        }
    }
}

impl Failure {
    pub(super) fn new(step: impl Into<String>, cause: impl fmt::Display) -> Failure {
        Failure { step: step.into(), kind: FailureKind::System, message: cause.to_string() }
    }

    pub(super) fn invalid(step: impl Into<String>, message: impl Into<String>) -> Failure {
        Failure { step: step.into(), kind: FailureKind::Invalid, message: message.into() }
    }
}

/// Names the step at which an operation failed.
pub(super) trait Step<T> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Step<T> for Result<T, E> {
    fn step(self, step: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|cause| Failure::new(step(), cause))
    }
}
