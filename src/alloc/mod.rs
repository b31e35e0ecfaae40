//! The life of one allocation: a group's tasks from the first folder to the last process, set up in order and undone in
//! reverse. Never knows how a step does its work.
//!
//! ```text
//! Alloc::set_up ─▶ mount, record, folders, ports undone at once when one fails
//! Alloc::run    ─▶ one TaskRunner for each task   gates opened by the lifecycle coordinator
//!                    task_dir, artifacts, templates ─▶ driver.start ─▶ wait ─▶ restart policy ─┐
//!                    ▲──────────────────────────────────────────────────────────────────────┘
//! Alloc::destroy ─▶ ports, cgroups, folders, record   after whoever reads the tasks' output is done
//! ```

mod artifact;
mod dir;
mod env;
mod error;
mod facts;
#[cfg(test)]
pub(crate) mod fake;
mod gc;
mod hook;
mod lifecycle;
mod node;
mod nosuid;
mod port_registry;
mod ports;
mod process;
mod record;
mod restart;
mod run;
mod sockets;
mod task;
mod template;
mod text;
mod users;

pub use dir::{AllocDir, is_task_name, remove_tree};
pub use error::{CleanupError, SetupError, chain, chain_within};
pub use gc::{Finding, clean, clean_half_written, scan};
pub use node::{Node, compute};
pub use nosuid::{Hold, Release, hold, release};
pub use ports::{AllocPort, DYNAMIC as DYNAMIC_PORTS, HostNetworks, PortError, PortPool, UnknownNetwork};
pub use process::Orphans;
pub use record::{Handle, Record, RecordError, Records};
pub use restart::{End, Tracker, Verdict, restarts_on_success};
pub use run::{Alloc, AllocResult, AllocStatus, CgroupPath, Failure, Machine, RemoveCgroup};
pub use sockets::SocketDir;
pub use task::{Outcome, TaskError, TaskErrorKind, TaskResult};
pub use template::TemplateError;
pub use text::go_duration;

use crate::spec::{AllocId, TaskEvent};

/// How urgently an allocation has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Stop {
    /// Not at all.
    #[default]
    No,
    /// With its tasks' kill signals and timeouts; poststop tasks still run.
    Gracefully,
    /// Everything is killed.
    Now,
}

/// Something that happened to a task of an allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocEvent {
    /// The allocation.
    pub alloc: AllocId,
    /// Its group.
    pub group: String,
    /// Its number among the group's, from 0.
    pub index: u32,
    /// What happened.
    pub event: TaskEvent,
}
