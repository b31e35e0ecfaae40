use std::path::Path;
use std::time::Duration;

use super::config::Reader;
use super::handle::{Settings, Tasks, launch_spec};
use super::{Driver, DriverError, FsIsolation, TaskConfig, TaskHandle, capabilities};
use crate::executor::Isolation;
use crate::spec::{DriverConfig, ExitResult, LaunchSpec, Mount, NamespaceMode, Propagation, Signal, TaskStats};

const NAME: &str = "exec";
const KEYS: [&str; 8] = ["command", "args", "pid_mode", "ipc_mode", "cap_add", "cap_drop", "work_dir", "pids_limit"];

/// Host folders that every task sees, read-only. One that this host lacks is left out.
const HOST_FOLDERS: [&str; 9] =
    ["/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/sbin", "/usr", "/run/systemd/resolve"];

/// The user whom nothing belongs to.
const DEFAULT_USER: &str = "nobody";

/// The `exec` driver: a task with its own root, assembled from read-only binds of the host's folders.
#[derive(Debug)]
pub struct ExecDriver {
    tasks: Tasks,
}

/// A task's `config` block.
struct ExecConfig {
    command: String,
    args: Vec<String>,
    pid_mode: NamespaceMode,
    ipc_mode: NamespaceMode,
    capabilities: Vec<String>,
    work_dir: String,
    pids_limit: Option<u64>,
}

impl ExecDriver {
    /// A driver without tasks.
    #[must_use]
    pub fn new(settings: Settings) -> ExecDriver {
        ExecDriver { tasks: Tasks::new(Isolation::Isolated, settings) }
    }
}

fn read(config: &DriverConfig, user: &str) -> Result<ExecConfig, DriverError> {
    let reader = Reader::new(NAME, config, &KEYS)?;
    Ok(ExecConfig {
        command: reader.required("command")?,
        args: reader.strings("args")?,
        pid_mode: reader.namespace_mode("pid_mode")?,
        ipc_mode: reader.namespace_mode("ipc_mode")?,
        capabilities: capabilities::resolve(&reader, user == "root")?,
        work_dir: reader.absolute_path("work_dir")?,
        pids_limit: reader.limit("pids_limit")?,
    })
}

fn mounts(task: &TaskConfig) -> Vec<Mount> {
    let mount = |host_path: &Path, task_path: &str, readonly| Mount {
        task_path: task_path.to_owned(),
        host_path: host_path.to_owned(),
        readonly,
        propagation: Propagation::Private,
    };
    let folders = HOST_FOLDERS.iter().filter(|path| Path::new(path).is_dir());
    let mut mounts: Vec<Mount> = folders.map(|path| mount(Path::new(path), path, true)).collect();
    let shared = task.alloc_dir.join("alloc");
    mounts.push(mount(&shared, "/alloc", false));
    // A task reads its logs but cannot forge them.
    mounts.push(mount(&shared.join("logs"), "/alloc/logs", true));
    mounts.extend(task.mounts.iter().cloned());
    mounts
}

#[tonic::async_trait]
impl Driver for ExecDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn fs_isolation(&self) -> FsIsolation {
        FsIsolation::Image
    }

    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        read(config, "").map(drop)
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        let user = if task.user.is_empty() { DEFAULT_USER } else { &task.user };
        let config = read(&task.config, user)?;
        let mut common = launch_spec(task, config.command, config.args);
        common.resources.pids_max = config.pids_limit;
        let spec = LaunchSpec {
            user: user.to_owned(),
            work_dir: config.work_dir,
            mounts: mounts(task),
            devices: task.devices.clone(),
            pid_mode: config.pid_mode,
            ipc_mode: config.ipc_mode,
            capabilities: config.capabilities,
            no_new_privs: true,
            ..common
        };
        self.tasks.start(task, spec).await
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        self.tasks.wait(id).await
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        self.tasks.stop(id, timeout, signal).await
    }

    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        self.tasks.signal(id, signal).await
    }

    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        self.tasks.stats(id).await
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        self.tasks.destroy(id, force).await
    }
}
