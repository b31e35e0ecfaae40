//! What allocations work on: the machine that all of one process share, and the place of one allocation on it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::control::Control;
use super::dir::AllocDir;
use super::error::CleanupError;
use super::network::Isolated;
use super::node::Node;
use super::nosuid::Hold;
use super::owner::Owner;
use super::ports::{AllocPort, PortPool};
use super::process::Orphans;
use super::record::{Record, Records};
use super::service_registry::Services;
use super::values::ValuesFile;
use super::volumes::HostVolumes;
use crate::cgroup::Cpusets;
use crate::driver::{Dns, Driver};
use crate::net::Networks;
use crate::spec::{AllocId, Group, Job, Task};

/// Names the cgroup of a task, relative to each hierarchy's root; empty where there is none.
pub type CgroupPath = dyn Fn(&AllocId, &str) -> PathBuf + Send + Sync;

/// Kills what is in a cgroup, relative to each hierarchy's root, and removes it; takes one that is not there for removed.
pub type RemoveCgroup = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

/// What the allocations of one process share.
pub struct Machine {
    /// Canonical, so that mount tables name it in the same way.
    pub data_dir: PathBuf,
    /// What job files may refer to.
    pub node: Arc<Node>,
    /// By name.
    pub drivers: BTreeMap<String, Arc<dyn Driver>>,
    /// The environment that tasks without isolation inherit.
    pub host_env: BTreeMap<String, String>,
    /// Where drivers note their helpers, too.
    pub records: Arc<Records>,
    /// Who looks after its allocations.
    pub owner: Owner,
    /// Ports given away.
    pub ports: PortPool,
    /// Directories that tasks may mount.
    pub volumes: HostVolumes,
    /// How the networks of groups are made.
    pub networks: Networks,
    /// What templates ask for besides their task's own.
    pub values: ValuesFile,
    /// What tasks offer to each other.
    pub services: Services,
    /// See [`CgroupPath`].
    pub cgroup: Box<CgroupPath>,
    /// See [`RemoveCgroup`]: for those that an executor did not live, or was not able, to remove.
    pub remove_cgroup: Arc<RemoveCgroup>,
    /// The cores of tasks; `None` where they cannot be divided.
    pub cpusets: Option<Cpusets>,
    /// What killed executors leave to this process.
    pub orphans: Arc<Orphans>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drivers: Vec<_> = self.drivers.keys().collect();
        f.debug_struct("Machine").field("data_dir", &self.data_dir).field("drivers", &drivers).finish_non_exhaustive()
    }
}

/// What an earlier process has left of an allocation.
#[derive(Debug)]
pub(super) struct Restored {
    /// Its record, as it was.
    pub(super) record: Record,
    /// Nothing of it runs: the machine was restarted meanwhile.
    pub(super) rebooted: bool,
    /// Not all of its steps were done, so that none of its tasks was started.
    pub(super) is_unfinished: bool,
}

/// What the steps of an allocation work on.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) id: AllocId,
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) job: Arc<Job>,
    pub(super) group: usize,
    pub(super) machine: Arc<Machine>,
    /// What its job file may refer to: the machine's, with the metadata of the moment.
    pub(super) node: Arc<Node>,
    pub(super) dir: AllocDir,
    /// The ports that somebody chose for it.
    pub(super) assigned: Option<Vec<AllocPort>>,
    pub(super) ports: Vec<AllocPort>,
    /// The network that its tasks share; `None` is the host's.
    pub(super) network: Option<Isolated>,
    /// Where its tasks ask for names.
    pub(super) dns: Option<Dns>,
    /// Something that only the record tells of could not be removed.
    pub(super) recorded_is_left: bool,
    /// What a step that failed could not undo.
    pub(super) untold: Vec<CleanupError>,
    /// Keeps the mount that its directory lies on.
    pub(super) hold: Option<Hold>,
    /// What its job was dispatched with; empty for nothing.
    pub(super) payload: Arc<[u8]>,
    /// The allocation whose place it takes.
    pub(super) previous: Option<AllocId>,
    /// Where it hears that it is to end.
    pub(super) control: Arc<Control>,
    /// It was made by an earlier process.
    pub(super) restored: Option<Restored>,
}

impl Place {
    pub(super) fn group(&self) -> &Group {
        &self.job.groups[self.group]
    }

    /// Whether ports lead to those of a network inside: the group's, or one that a driver of its tasks makes for each.
    pub(super) fn maps_ports(&self) -> bool {
        if self.network.is_some() {
            return true;
        }
        let drivers = self.group().tasks.iter().filter_map(|task| self.machine.drivers.get(&task.driver));
        drivers.into_iter().any(|driver| driver.capabilities().must_create_network)
    }

    /// Whether its owner comes back for it.
    pub(super) fn returns(&self) -> bool {
        self.machine.owner.returns()
    }

    /// The cgroups that its tasks may have.
    pub(super) fn cgroups(&self) -> Vec<PathBuf> {
        let of = |task: &Task| {
            let own = (self.machine.cgroup)(&self.id, &task.name);
            let keeper = (task.resources.cores > 0).then(|| keeper(&own)).flatten();
            let driver = self.machine.drivers.get(&task.driver).filter(|_| !own.as_os_str().is_empty());
            let of_driver = driver.and_then(|driver| driver.own_cgroup(self.id.as_str(), &task.name));
            [own].into_iter().chain(keeper).chain(of_driver)
        };
        let mut all: Vec<PathBuf> = self.restored.iter().flat_map(|restored| restored.record.cgroups.clone()).collect();
        for cgroup in self.group().tasks.iter().flat_map(of).filter(|cgroup| !cgroup.as_os_str().is_empty()) {
            if !all.contains(&cgroup) {
                all.push(cgroup);
            }
        }
        all
    }
}

/// Where the cores of a task with this cgroup stay its own between two runs.
pub(super) fn keeper(cgroup: &Path) -> Option<PathBuf> {
    let name = cgroup.file_name().and_then(OsStr::to_str)?;
    Some(cgroup.with_file_name(Cpusets::keeper(name)))
}
