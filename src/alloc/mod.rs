//! The life of one allocation: a group's tasks from the first directory to the last process, set up in order and undone in
//! reverse. Never knows how a step does its work.
//!
//! ```text
//! Alloc::set_up ─▶ mount, ports, record, directories, network   undone at once when one fails
//! Alloc::run    ─▶ one TaskRunner for each task   gates opened by the lifecycle coordinator
//!                    task_dir, artifacts, templates ─▶ driver.start ─▶ wait ─▶ restart policy ─┐
//!                    ▲──────────────────────────────────────────────────────────────────────┘
//! Alloc::restore, set_up, run ─▶ the same for an allocation of an earlier process: steps that are done are restored, not repeated
//! Control::leave ─▶ run returns, and everything stays for the next owner
//! Alloc::destroy ─▶ cgroups, network, directories, record, ports   after the readers of the tasks' output are done
//! ```

mod artifact;
mod assignment;
mod atomic;
mod chain;
mod check;
pub mod control;
mod csi;
mod csi_plugin;
mod csi_volumes;
mod dir;
mod download;
mod env;
mod error;
mod facts;
#[cfg(test)]
pub(crate) mod fake;
mod forwarded;
mod gc;
mod health;
mod hook;
mod kept_sockets;
mod kill;
mod lifecycle;
pub mod machine;
mod machine_error;
mod network;
mod node;
mod nosuid;
mod output;
mod owner;
mod place;
mod port_registry;
mod ports;
mod prestart;
mod process;
mod record;
mod recover;
mod rerender;
mod restart;
mod restore;
mod run;
mod service;
mod service_registry;
mod setup;
mod shared;
mod sockets;
mod state;
mod steps;
mod supervise;
mod sweep;
mod task;
mod template;
mod text;
mod users;
mod values;
mod volume_plugins;
mod volumes;

pub use crate::template::TemplateError;
pub use assignment::Assignment;
pub use chain::{chain, chain_within};
pub use csi_volumes::{CsiVolume, CsiVolumes, Registered};
pub use dir::{AllocDir, is_task_name, remove_tree};
pub use error::{CleanupError, NetworkError, SetupError};
pub use gc::{Finding, Means, clean, clean_half_written, scan};
pub use health::Health;
pub use kept_sockets::KeptSockets;
pub use node::{Node, compute};
pub use nosuid::{Hold, Release, hold, release};
pub use output::{Messages, SINKS_TIMEOUT, ended};
pub use owner::{Owner, OwnerError, OwnerLock, RunFile, RunId};
pub use place::{CgroupPath, Machine, RemoveCgroup};
pub use ports::{AllocPort, DYNAMIC as DYNAMIC_PORTS, HostNetworks, PortError, PortPool, UnknownNetwork};
pub use process::Orphans;
pub use record::{Handle, Record, RecordError, Records, Restore};
pub use restart::{End, Tracker, Verdict, restarts_on_success};
pub use restore::RestoreError;
pub use run::Alloc;
pub use service_registry::{CheckReport, Listed, Registration, Services};
pub use sockets::SocketDir;
pub use supervise::{AllocResult, AllocStatus, Failure};
pub use sweep::{
    Tell, abandoned_networks, abandoned_sockets, ended_runs, findings, remove, remove_ended_runs, remove_network,
    remove_sockets, sweep,
};
pub use task::{Outcome, TaskError, TaskErrorKind, TaskResult};
pub use text::go_duration;
pub use values::{Values, ValuesFile, Variables};
pub use volume_plugins::{MKDIR, Provided, Provision, VolumeError, VolumePlugins};
pub use volumes::{HostVolume, HostVolumes, no_mounts};

use crate::spec::{AllocId, TaskEvent};

/// How urgently an allocation has to stop.
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

/// An event of a task of an allocation.
#[derive(Debug, Clone, PartialEq)]
pub struct AllocEvent {
    /// The allocation.
    pub alloc: AllocId,
    /// Its group.
    pub group: String,
    /// Its index in the group, from 0.
    pub index: u32,
    /// What happened.
    pub event: TaskEvent,
}
