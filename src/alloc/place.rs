//! What the steps of allocations work on: the machine that all allocations of a process share, and one allocation on it.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::control::Control;
use super::csi_volumes::{CsiVolume, CsiVolumes};
use super::dir::AllocDir;
use super::error::CleanupError;
use super::node::Node;
use super::nosuid::Hold;
use super::owner::Owner;
use super::ports::{AllocPort, PortPool};
use super::process::Orphans;
use super::record::{Record, Records};
use super::service_registry::Services;
use super::values::ValuesFile;
use super::volumes::{AllocVolumes, HostVolumes};
use crate::cgroup::Cpusets;
use crate::driver::{Dns, Driver, NetworkIsolation};
use crate::logs::notices::Notices;
use crate::net::{Network, Networks, Status};
use crate::spec::collections::BTreeMap;
use crate::spec::{AllocId, Group, Job, Task};

/// Returns the cgroup of a task, relative to each hierarchy's root; empty if there is none.
pub type CgroupPath = dyn Fn(&AllocId, &str) -> PathBuf + Send + Sync;

/// Kills the processes in a cgroup, relative to each hierarchy's root, and removes it; a missing cgroup counts as removed.
pub type RemoveCgroup = dyn Fn(&Path) -> io::Result<()> + Send + Sync;

/// What the allocations of one process share.
pub struct Machine {
    /// Canonical, because mount tables contain canonical paths.
    pub data_dir: PathBuf,
    /// The attributes that job files may refer to.
    pub node: Arc<Node>,
    /// By name.
    pub drivers: BTreeMap<String, Arc<dyn Driver>>,
    /// The environment that tasks without isolation inherit.
    pub host_env: BTreeMap<String, String>,
    /// The names in it that they do not inherit: the `env.denylist` of an agent's configuration.
    pub env_denylist: Vec<String>,
    /// The records of its allocations, in which drivers also note their helpers.
    pub records: Arc<Records>,
    /// The owner of its allocations.
    pub owner: Owner,
    /// The allocated ports.
    pub ports: PortPool,
    /// Directories that tasks may mount.
    pub volumes: HostVolumes,
    /// The CSI volumes that tasks may mount.
    pub csi: CsiVolumes,
    /// How the networks of groups are made.
    pub networks: Networks,
    /// The values that templates may read besides their task's own.
    pub values: ValuesFile,
    /// The services registered by tasks.
    pub services: Services,
    /// See [`CgroupPath`].
    pub cgroup: Box<CgroupPath>,
    /// See [`RemoveCgroup`]: for cgroups that an executor did not remove, because it was killed or failed.
    pub remove_cgroup: Arc<RemoveCgroup>,
    /// The cores of tasks; `None` if cpusets are not available.
    pub cpusets: Option<Cpusets>,
    /// Orphans of killed executors, inherited by this process.
    pub orphans: Arc<Orphans>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drivers: Vec<_> = self.drivers.keys().collect();
        f.debug_struct("Machine").field("data_dir", &self.data_dir).field("drivers", &drivers).finish_non_exhaustive()
    }
}

/// The network of an allocation, while it exists.
#[derive(Debug)]
pub(super) struct Isolated {
    /// Everything that may exist of it.
    pub(super) network: Network,
    /// The network as the drivers of its tasks get it.
    pub(super) isolation: NetworkIsolation,
    /// The addresses and names that its tasks get to know.
    pub(super) status: Status,
}

/// What an earlier process has left of an allocation.
#[derive(Debug)]
pub(super) struct Restored {
    /// Its record as the earlier process wrote it.
    pub(super) record: Record,
    /// The machine was rebooted meanwhile, so none of its processes runs.
    pub(super) rebooted: bool,
    /// Not all of its steps were done, so none of its tasks was started.
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
    /// The node attributes of its job file: the machine's, with the current metadata.
    pub(super) node: Arc<Node>,
    pub(super) dir: AllocDir,
    /// The ports that its owner chose for it.
    pub(super) assigned: Option<Vec<AllocPort>>,
    pub(super) ports: Vec<AllocPort>,
    /// The network that its tasks share; `None` is the host's.
    pub(super) network: Option<Isolated>,
    /// The name servers of its tasks.
    pub(super) dns: Option<Dns>,
    /// Of the tasks whose output somebody follows.
    pub(super) notices: BTreeMap<String, Notices>,
    /// CSI volumes that its owner gave it, by their names.
    pub(super) given_csi: BTreeMap<String, CsiVolume>,
    /// Its CSI volumes that are mounted, by the group's names.
    pub(super) csi: HostVolumes,
    /// Its processes may not all have ended: what they use must not be given to others.
    pub(super) processes_are_left: bool,
    /// Something else that only the record can identify could not be removed.
    pub(super) recorded_is_left: bool,
    /// A CSI volume could not be released; that can be retried.
    pub(super) volumes_are_left: bool,
    /// Errors from undoing a step that failed.
    pub(super) untold: Vec<CleanupError>,
    /// Keeps the mount of its directory from being unmounted.
    pub(super) hold: Option<Hold>,
    /// The payload that its job was dispatched with; may be empty.
    pub(super) payload: Arc<[u8]>,
    /// The job that started its job; empty for none.
    pub(super) parent: String,
    /// The allocation that it replaces.
    pub(super) previous: Option<AllocId>,
    /// Receives its stop.
    pub(super) control: Arc<Control>,
    /// Set if an earlier process made it.
    pub(super) restored: Option<Restored>,
}

impl Place {
    /// Whether the record is still needed, for the next clean-up.
    pub(super) const fn is_anything_left(&self) -> bool {
        self.processes_are_left || self.recorded_is_left || self.volumes_are_left
    }

    pub(super) fn group(&self) -> &Group {
        &self.job.groups[self.group]
    }

    /// Whether ports are mapped into a network namespace: the group's, or one that the driver of its tasks makes for each task.
    pub(super) fn maps_ports(&self) -> bool {
        if self.network.is_some() {
            return true;
        }
        let drivers = self.group().tasks.iter().filter_map(|task| self.machine.drivers.get(&task.driver));
        drivers.into_iter().any(|driver| driver.capabilities().must_create_network)
    }

    /// Whether its owner returns for it after it was killed.
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

impl AllocVolumes {
    pub(super) fn new(place: &Place) -> AllocVolumes {
        let (volumes, index) = (place.group().volumes.clone(), place.index);
        AllocVolumes { volumes, host: place.machine.volumes.clone(), csi: place.csi.clone(), index }
    }
}

/// The cgroup that keeps a task's cores reserved between two runs of the task.
pub(super) fn keeper(cgroup: &Path) -> Option<PathBuf> {
    let name = cgroup.file_name().and_then(OsStr::to_str)?;
    Some(cgroup.with_file_name(Cpusets::keeper(name)))
}
