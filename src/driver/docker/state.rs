//! What is kept of a task beyond this process: Nomad's form, with a part of ours that Go passes over.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::collect::Target;
use crate::driver::{DriverNetwork, TaskConfig};
use crate::plugin::ReattachConfig;
use crate::spec::{LogCollection, LogKeeping};
use crate::wire::msgpack;

/// How the name of a cursor's file ends.
pub(super) const BOOKMARK: &str = "-docker.cursor";

/// The state in a task's handle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct State {
    /// Only in what our own driver keeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agentbin: Option<Own>,
    /// The process that collects the output; none with ours.
    pub(super) reattach_config: Option<ReattachConfig>,
    /// The container.
    #[serde(rename = "ContainerID")]
    pub(super) container: String,
    /// What agents announce.
    pub(super) driver_network: Option<Network>,
}

/// A network, as Go has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Network {
    /// Host ports by label.
    pub(super) port_map: Option<BTreeMap<String, u16>>,
    /// The container's address.
    #[serde(rename = "IP")]
    pub(super) ip: String,
    /// Services are announced at it.
    pub(super) auto_advertise: bool,
}

impl From<&DriverNetwork> for Network {
    fn from(network: &DriverNetwork) -> Network {
        let DriverNetwork { port_map, ip, auto_advertise } = network.clone();
        Network { port_map: Some(port_map).filter(|map| !map.is_empty()), ip, auto_advertise }
    }
}

impl From<Network> for DriverNetwork {
    fn from(network: Network) -> DriverNetwork {
        let Network { port_map, ip, auto_advertise } = network;
        DriverNetwork { port_map: port_map.unwrap_or_default(), ip, auto_advertise }
    }
}

/// What the engine does not say of a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Own {
    /// Its name.
    pub(super) name: String,
    /// Its output is a terminal's.
    pub(super) tty: bool,
    /// Id of its image.
    pub(super) image: String,
    /// Where it is in the tree of cgroups.
    pub(super) cgroup: String,
    /// Where its own cgroup's parent is, when that was made for it; to be removed with it.
    pub(super) cgroup_parent: String,
    /// Directory of its log files; empty where it has none.
    pub(super) log_dir: String,
    /// File names or FIFOs of its output; empty collects none.
    pub(super) stdout: String,
    /// The same.
    pub(super) stderr: String,
    /// Limits of the files.
    pub(super) max_files: u32,
    /// In bytes.
    pub(super) max_file_size: u64,
    /// Full files are compressed.
    pub(super) compress: bool,
    /// Seconds until full files are deleted; 0 for never.
    pub(super) max_age: u64,
}

impl Own {
    pub(super) fn set_target(&mut self, target: Option<&Target>) {
        match target {
            None => {}
            Some(Target::Fifos(stdout, stderr)) => {
                (self.stdout, self.stderr) = (stdout.display().to_string(), stderr.display().to_string());
            }
            Some(Target::Files(logs)) => {
                self.log_dir = logs.dir.display().to_string();
                (self.stdout, self.stderr) = (logs.stdout_file.clone(), logs.stderr_file.clone());
                (self.max_files, self.max_file_size) = (logs.max_files, logs.max_file_size_bytes);
                self.compress = logs.keeping.compress;
                self.max_age = logs.keeping.max_age.map_or(0, |age| age.as_secs());
            }
        }
    }

    pub(super) fn target(&self) -> Option<Target> {
        if self.stdout.is_empty() {
            return None;
        }
        if self.log_dir.is_empty() {
            return Some(Target::Fifos(PathBuf::from(&self.stdout), PathBuf::from(&self.stderr)));
        }
        Some(Target::Files(LogCollection {
            dir: PathBuf::from(&self.log_dir),
            stdout_file: self.stdout.clone(),
            stderr_file: self.stderr.clone(),
            max_files: self.max_files,
            max_file_size_bytes: self.max_file_size,
            keeping: LogKeeping {
                compress: self.compress,
                max_age: (self.max_age > 0).then(|| Duration::from_secs(self.max_age)),
            },
        }))
    }
}

impl State {
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<State, msgpack::Error> {
        msgpack::from_slice(bytes)
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, msgpack::Error> {
        msgpack::to_vec(self)
    }
}

/// Where the cursor of a task's output is kept: beside the task's directory, where no task can put anything in its place.
pub(super) fn bookmark(task: &TaskConfig) -> PathBuf {
    task.alloc_dir.join(format!("{}{BOOKMARK}", task.name.replace('/', "_")))
}
