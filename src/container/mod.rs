//! Builds the process that becomes a task: the parent side, the child side (the shim), and the messages between them. Never uses
//! threads or an event loop, and ends when the task has started.
//!
//! ```text
//! executor                      shim (fresh process, this executable)
//! --------                      ------------------------------------
//! prepare: clone3 ─────────────▶ pid 1 of its namespaces, born in its v2 cgroup or joining its v1 cgroups
//!                                make /proc and /dev, wait for the configuration
//! Prepared::tell ── message ───▶ assemble the root from detached mounts
//! limits, collection of output
//! Told::go ── message ─────────▶ identity, working directory, command, limits on itself
//! outcome: end of file ◀──────── execve closes the pipe: the task runs
//! outcome: a Failure   ◀──────── a step failed: which, and why
//! ```
//!
//! The first half needs only the task's cgroup. An executor that knows the cgroup early runs it before the launch request arrives,
//! so the clone and the exec of the shim are done by then.
//!
//! A further process of a running task (a session) is made by the same steps, with two differences. The root is entered and not
//! assembled. And a shim with full privileges is never visible in the task's pid namespace, where a task that may trace processes
//! could attach to it: the shim drops its privileges first and then starts a sibling, born in that namespace, that only has to
//! execute the command.
//!
//! With `init` the shim of a task does not become the command: it starts it as its child, closes its descriptors, releases its
//! memory, and stays as pid 1.

mod config;
mod confine;
mod etc;
mod filled;
mod host_ids;
mod host_users;
mod identity;
mod init;
mod lookup;
mod namespaces;
mod owners;
mod parent;
mod places;
pub mod probe;
mod rlimits;
mod root;
mod seccomp;
mod shim;
mod subordinate;
mod terminal;
mod unveil;

pub use config::{
    Bind, Config, DeviceNode, Failure, FailureKind, Guard, Ids, Namespace, RootConfig, Rootless, SessionConfig,
    SubordinateIds,
};
pub use confine::{Confinement, confine};
pub use etc::{Closed, closes as closes_etc};
pub use host_ids::{HostIdRegistry, HostIdsError, HostIdsUse};
pub use host_users::host_user;
pub use identity::lookup_user;
pub use lookup::{Lookup, Refusal, Seen, Trusted, executable_mode, leads_nowhere};
pub use namespaces::Namespaces;
pub use owners::{Heir, Owned};
pub use parent::{Prepare, Prepared, StartError, Started, Starting, Told, prepare};
pub use root::DEVICES;
pub use seccomp::check as check_seccomp;
pub use shim::shim;
pub use subordinate::{NoSubordinate, Subordinate, Work, become_mapped_root};
pub use terminal::{Terminal, open_terminal};
