//! What an executor needs to launch a task: command, mounts, devices, namespaces, limits.

use std::path::PathBuf;
use std::time::Duration;

use super::{HostIds, Masks, OwnNamespaces, ResourceLimit, Resources, Seccomp, Unveil};
use crate::spec::collections::BTreeMap;

/// How mounts made later travel between the host and a task's bind mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub enum Propagation {
    /// Neither side sees later mounts of the other (`rprivate`).
    #[default]
    Private,
    /// Later host mounts appear in the task (`rslave`).
    HostToTask,
    /// Later mounts of either side appear in the other (`rshared`).
    Bidirectional,
}

impl Propagation {
    /// Reads Nomad's `propagation_mode`; empty (tasks stored by old agents) is private.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Propagation> {
        match name {
            "" | "private" => Some(Propagation::Private),
            "host-to-task" => Some(Propagation::HostToTask),
            "bidirectional" => Some(Propagation::Bidirectional),
            _ => None,
        }
    }

    /// Nomad's `propagation_mode`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Propagation::Private => "private",
            Propagation::HostToTask => "host-to-task",
            Propagation::Bidirectional => "bidirectional",
        }
    }
}

/// A host path that is bound into the task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mount {
    /// Where the task sees it.
    pub task_path: String,
    /// What is bound.
    pub host_path: PathBuf,
    /// Writes fail with EROFS, in every mount below too.
    pub readonly: bool,
    /// See [`Propagation`].
    pub propagation: Propagation,
    /// `z` or `Z`: docker gives the files `SELinux`'s label of its containers, of all or of this one. Empty leaves them alone;
    /// the other drivers have no such labels.
    pub selinux_label: String,
    /// Device and inode of what the path led to when it was resolved: a path without links, at which nothing else is bound.
    /// `None` where whoever gave the path has not looked.
    pub identity: Option<(u64, u64)>,
}

/// A host device that appears in the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Where the task sees it.
    pub task_path: String,
    /// The host's device node, from which type and numbers are read.
    pub host_path: PathBuf,
    /// What the task may do with it: letters of `rwm` (read, write, make a node), empty for all three. Enforced by the
    /// task's cgroup.
    pub cgroup_permissions: String,
}

/// Whether a namespace is the task's own or the host's (`pid_mode`, `ipc_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NamespaceMode {
    /// The task has its own.
    #[default]
    Private,
    /// The task shares the host's.
    Host,
}

impl NamespaceMode {
    /// Reads `private` or `host`; empty means private.
    #[must_use]
    pub fn from_name(name: &str) -> Option<NamespaceMode> {
        match name {
            "" | "private" => Some(NamespaceMode::Private),
            "host" => Some(NamespaceMode::Host),
            _ => None,
        }
    }

    /// `private` or `host`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            NamespaceMode::Private => "private",
            NamespaceMode::Host => "host",
        }
    }
}

/// What becomes of rotated files before their number is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct LogKeeping {
    /// Compress them (zstd) under another name. Whoever reads plain files, as `nomad alloc logs` does, then sees the
    /// newest only.
    pub compress: bool,
    /// Delete those that were last written longer ago than this.
    pub max_age: Option<Duration>,
}

/// Where an executor that collects its task's output writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogCollection {
    /// Existing directory of the rotated files.
    pub dir: PathBuf,
    /// Base name of the stdout files, `<task>.stdout`.
    pub stdout_file: String,
    /// Base name of the stderr files, `<task>.stderr`.
    pub stderr_file: String,
    /// Files kept per stream, at least 1.
    pub max_files: u32,
    /// Size at which a file is rotated, in bytes, at least 1.
    pub max_file_size_bytes: u64,
    /// What becomes of rotated files.
    pub keeping: LogKeeping,
}

/// Who else than root and the task's own user writes below the directory of its allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize)]
pub enum Neighbours {
    /// Nobody who is let in.
    #[default]
    None,
    /// An isolated task of another user, in the directory that the tasks share.
    Shared,
    /// A task of another user that sees the host's files.
    Everywhere,
}

/// Everything an executor needs to start a task: the executor service's `LaunchRequest` as values.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LaunchSpec {
    /// Command as the job names it; looked up in the task's directory or root.
    pub command: String,
    /// Arguments after the command.
    pub args: Vec<String>,
    /// Complete environment, `KEY=value`; nothing is added but the user's own variables.
    pub env: Vec<String>,
    /// User name; empty is the executor's own user.
    pub user: String,
    /// The task's directory; the isolated executor makes it the root.
    pub task_dir: PathBuf,
    /// Working directory; empty is the task's directory, or `/` when isolated.
    pub work_dir: String,
    /// Limits; ignored unless `resource_limits`.
    pub resources: Resources,
    /// Create the cgroup and write limits.
    pub resource_limits: bool,
    /// Where stdout goes when the executor does not collect it: a FIFO or file, empty or `/dev/null` discards.
    pub stdout_path: String,
    /// The same for stderr.
    pub stderr_path: String,
    /// Bind mounts, in order (isolated only).
    pub mounts: Vec<Mount>,
    /// How many of them, from the first, are directories of the host that every task of the driver sees, and that no job
    /// asked for. What they show of `/etc` is closed for a task that is root.
    pub host_mounts: u32,
    /// An agent has filled the task's directory, with hard links to the host's files among others: of the root only `/alloc`,
    /// `/local`, `/secrets` and `/tmp` can be written to, and in these no file that has a name elsewhere (isolated only).
    pub filled_root: bool,
    /// Devices beside the default ones (isolated only).
    pub devices: Vec<Device>,
    /// Path of a network namespace to join; empty keeps the executor's.
    pub network_namespace: PathBuf,
    /// Move the root instead of pivoting (agent on an initramfs).
    pub no_pivot_root: bool,
    /// Pid namespace (isolated only).
    pub pid_mode: NamespaceMode,
    /// IPC namespace (isolated only).
    pub ipc_mode: NamespaceMode,
    /// Capabilities that the task has, `CAP_` names; a user other than root gets them as ambient.
    pub capabilities: Vec<String>,
    /// Host-given v1 cgroups, controller to path.
    pub cgroup_v1_override: BTreeMap<String, String>,
    /// Host-given v2 cgroup.
    pub cgroup_v2_override: String,
    /// Cgroup of the task relative to each hierarchy's root; empty means none.
    pub cgroup: PathBuf,
    /// The cgroup that a Nomad host made for the task: v2 its scope, v1 the cpuset that it shares.
    pub cpuset_cgroup: PathBuf,
    /// The task's `oom_score_adj`.
    pub oom_score_adj: i32,
    /// No program that the task executes gains privileges (setuid bits, file capabilities).
    pub no_new_privs: bool,
    /// System calls that the task may make.
    pub seccomp: Seccomp,
    /// What each process may have; the others are the executor's own.
    pub limits: Vec<ResourceLimit>,
    /// Further namespaces of its own (isolated only).
    pub own: OwnNamespaces,
    /// A user namespace in which the task's user and groups have the numbers that they have outside, and nobody else is
    /// there (isolated only). Capabilities hold in it alone.
    pub user_namespace: bool,
    /// In its user namespace the ids 0 to 65535 are these of the host, and no other is there. `None` is the map above, in
    /// which a user is the same one on the host.
    pub host_ids: Option<HostIds>,
    /// All that the task may do with files (isolated only); empty for whatever its user may.
    pub unveil: Vec<Unveil>,
    /// What it does not see of `/proc` and `/sys` (isolated only).
    pub masks: Masks,
    /// Who else may write to a program that lies below the allocation's directory.
    pub neighbours: Neighbours,
    /// A program is executed whoever may write to it.
    pub allow_writable_programs: bool,
    /// Pid 1 is an init that passes signals on to the command and reaps orphans; else the command itself (isolated, with its own
    /// pid namespace only).
    pub init: bool,
    /// Its user is the host's of that name, whatever a passwd file in its root says (isolated only).
    pub host_users: bool,
    /// Collect the output here instead of writing to `stdout_path` and `stderr_path`.
    pub logs: Option<LogCollection>,
    /// The task goes on when its executor is killed; `None` has the kernel kill it too. Needs a cgroup of the task's own.
    pub outlive: Option<Outlive>,
}

/// How a task outlives its executor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outlive {
    /// What the next executor must know of it, in a directory that only its owner can enter.
    pub record: PathBuf,
    /// Nothing is started: the task of which the record tells is taken over.
    pub adopt: bool,
}
