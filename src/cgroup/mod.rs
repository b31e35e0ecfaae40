//! Manages cgroups through their files: creates a task's cgroup, limits it, kills and measures its processes, removes it. Never
//! finds its own root: [`CgroupFs`] is built by the caller.
//!
//! ```text
//! CgroupFs::detect("/sys/fs/cgroup")           once per process
//!    TaskCgroup::create(fs, path, resources)   before the task starts: limits are there before any process
//!       v2  dir_fd()      -> clone3(CLONE_INTO_CGROUP)
//!       v1  join_self()   -> in the one process that then starts the task, early
//!    stats(), pids(), oom_killed()
//!    kill_all(deadline), remove(deadline)      both may be repeated, also by another process after a crash
//! ```

mod controllers;
mod cpuset;
mod delegated;
mod devices;
mod error;
mod facts;
mod fs;
mod io;
mod kill;
mod limits;
mod member;
mod regime;
mod stats;
pub mod systemd;
mod task;

pub use cpuset::{Cores, Cpusets};
pub use delegated::Delegated;
pub use devices::{DeviceAccess, DeviceKind, DeviceRule};
pub use error::{Error, Result};
pub use facts::{Facts, facts};
pub use fs::CgroupFs;
pub use member::TaskCgroup;
pub use regime::{Hierarchy, Mounts, Regime, scan};
pub use stats::Sampler;
