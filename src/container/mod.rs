//! Builds the process that becomes a task: the parent side, the child side (the shim), and what they say to each other.
//! Never uses threads or an event loop, and never outlives the start of the task.
//!
//! ```text
//! executor                      shim (fresh process, this executable)
//! --------                      ------------------------------------
//! start: clone3 ───────────────▶ pid 1 of its namespaces, born in its v2 cgroup
//! join v1 cgroups ║ in parallel  assemble the root from detached mounts
//! Starting::go   ───── byte ───▶ wait for it
//!                                identity, working directory, command, limits on itself
//! outcome: end of file ◀──────── execve closes the pipe: the task runs
//! outcome: a Failure   ◀──────── a step failed: which, and why
//! ```

mod config;
mod identity;
mod parent;
mod root;
mod shim;

pub use config::{Bind, Config, DeviceNode, Failure, FailureKind, Ids, RootConfig, Rootless};
pub use identity::lookup_user;
pub use parent::{Start, StartError, Starting, start};
pub use shim::shim;
