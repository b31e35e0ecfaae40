//! The state of a task that outlives this process: Nomad's format, with an agentbin part that Go ignores.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::collect::Target;
use crate::driver::{DriverNetwork, TaskConfig};
use crate::plugin::ReattachConfig;
use crate::spec::collections::BTreeMap;
use crate::spec::{LogCollection, LogKeeping};
use crate::wire::msgpack;

/// Suffix of a cursor's file name.
pub(super) const BOOKMARK: &str = "-docker.cursor";

/// The state in a task's handle.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct State {
    /// Only in the state of agentbin's own driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) agentbin: Option<Own>,
    /// The process that collects the output; `None` with agentbin's driver.
    pub(super) reattach_config: Option<ReattachConfig>,
    /// The container.
    #[serde(rename = "ContainerID")]
    pub(super) container: String,
    /// The network that agents announce.
    pub(super) driver_network: Option<Network>,
}

/// A network in Go's format.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Network {
    /// Host ports by label.
    pub(super) port_map: Option<BTreeMap<String, u16>>,
    /// The container's address.
    #[serde(rename = "IP")]
    pub(super) ip: String,
    /// Whether services are announced at it.
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

/// Properties of a container that the engine does not report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Own {
    /// Its name.
    pub(super) name: String,
    /// Whether it has a terminal.
    pub(super) tty: bool,
    /// Id of its image.
    pub(super) image: String,
    /// Its path in the cgroup hierarchy.
    pub(super) cgroup: String,
    /// Path of the parent of its cgroup, if that was created for it; it has to be removed with it.
    pub(super) cgroup_parent: String,
    /// The slice that its cgroup is in, if that was created for it; it has to be stopped with it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) slice: String,
    /// OOM kills that were counted there before this container.
    #[serde(rename = "OOMKills")]
    pub(super) oom_kills: u64,
    /// Directory of its log files; empty for none.
    pub(super) log_dir: String,
    /// File name or FIFO of its stdout; empty for an output that is not collected.
    pub(super) stdout: String,
    /// The same for its stderr.
    pub(super) stderr: String,
    /// Largest number of log files.
    pub(super) max_files: u32,
    /// Largest size of a log file, in bytes.
    pub(super) max_file_size: u64,
    /// Whether full files are compressed.
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

/// Path of the cursor of a task's output: next to the task's directory, where the task cannot replace it.
pub(super) fn bookmark(task: &TaskConfig) -> PathBuf {
    task.alloc_dir.join(format!("{}{BOOKMARK}", task.name.replace('/', "_")))
}
