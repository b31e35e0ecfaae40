//! Builds the process that becomes a task: the parent side, the child side (the shim), and what they say to each other.
//! Never uses threads or an event loop, and never outlives the start of the task.
//!
//! ```text
//! executor                      shim (fresh process, this executable)
//! --------                      ------------------------------------
//! prepare: clone3 ─────────────▶ pid 1 of its namespaces, born in its v2 cgroup or joining its v1 cgroups
//!                                wait to be told what to become
//! Prepared::start ── message ──▶ assemble the root from detached mounts
//!                                identity, working directory, command, limits on itself
//! outcome: end of file ◀──────── execve closes the pipe: the task runs
//! outcome: a Failure   ◀──────── a step failed: which, and why
//! ```
//!
//! The first half needs no more than the task's cgroup, so an executor that knows it does it before the launch is asked
//! for: cloning, executing and, on v1, a wait of several milliseconds for the kernel are over by then.

mod config;
mod identity;
mod parent;
mod root;
mod shim;

pub use config::{Bind, Config, DeviceNode, Failure, FailureKind, Ids, RootConfig, Rootless};
pub use identity::lookup_user;
pub use parent::{Prepare, Prepared, StartError, Starting, prepare};
pub use shim::shim;
