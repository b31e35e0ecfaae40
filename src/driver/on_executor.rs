//! A driver whose tasks each have an executor: what `exec`, `raw_exec` and `java` have in common.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::config::Reader;
use super::handle::{Settings, Tasks};
use super::{
    Capabilities, Driver, DriverError, ExecStreaming, ExecTaskResult, ExecTaskStreamingRaw, Fingerprint, NodeConfig,
    TaskConfig, TaskHandle, TaskStatus,
};
use crate::cgroup::Regime;
use crate::executor::{ExecRequests, ExecResponses, Isolation};
use crate::spec::{DriverConfig, ExitResult, LaunchSpec, LogCollection, Mount, Propagation, Signal, TaskStats};
use crate::sys::lock::lock;
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

/// What makes one driver different from another.
#[tonic::async_trait]
pub trait Plan: Send + Sync + Sized + 'static {
    /// Nomad's name of the driver.
    const NAME: &'static str;
    /// Which executor its tasks have.
    const ISOLATION: Isolation;
    /// What the plugin's configuration says; the default is that of `agentbin run`, which has none.
    type Config: Default + Send + Sync + 'static;

    /// Describes the plugin's configuration.
    fn config_schema() -> Spec;

    /// Reads it.
    fn read_config(config: &DriverConfig) -> Result<Self::Config, DriverError>;

    /// The part of it that all drivers have.
    fn common(config: &Self::Config) -> &Common;

    /// Describes a task's configuration.
    fn task_config_schema() -> Spec;

    /// What the driver can do.
    fn capabilities(config: &Self::Config) -> Capabilities;

    /// Whether tasks can be started.
    async fn fingerprint(config: &Self::Config, cgroups: Regime) -> Fingerprint;

    /// Checks a task's configuration for what can be said without the task.
    fn validate(config: &Self::Config, task: &DriverConfig) -> Result<(), DriverError>;

    /// What to launch. Command, environment, folder, limits and output are in `spec` already.
    fn plan(config: &Self::Config, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError>;
}

/// Plugin configuration that all drivers have.
#[derive(Debug, Clone, Default)]
pub struct Common {
    /// The executor collects the output, instead of the agent's logmon.
    collect_logs: bool,
}

impl Common {
    pub(super) const KEYS: [&'static str; 1] = ["collect_logs"];

    pub(super) fn schema() -> [(&'static str, Spec); 1] {
        [("collect_logs", schema::with_default(schema::attr("collect_logs", "bool", false), Literal::bool(true)))]
    }

    pub(super) fn read(reader: &Reader<'_>) -> Result<Common, DriverError> {
        Ok(Common { collect_logs: reader.flag("collect_logs")?.unwrap_or(true) })
    }

    /// For the driver's capabilities.
    pub(super) fn collects_logs(&self) -> bool {
        self.collect_logs
    }
}

/// Keys of a task's configuration that all drivers have.
pub(super) const TASK_KEYS: [&str; 2] = ["pids_limit", "logs"];

/// Their schema.
pub(super) fn task_schema() -> [(&'static str, Spec); 2] {
    let number = |name: &str| schema::attr(name, "number", false);
    let logs = schema::object([
        ("max_files", number("max_files")),
        ("max_file_size", number("max_file_size")),
        ("disabled", schema::attr("disabled", "bool", false)),
    ]);
    [("pids_limit", number("pids_limit")), ("logs", schema::block("logs", false, logs))]
}

/// The keys of `parts` in one list.
pub(super) fn keys(parts: &[&[&'static str]]) -> Vec<&'static str> {
    parts.concat()
}

/// Nomad's defaults of a task's `logs` block.
const LOG_FILES: u32 = 10;
const LOG_FILE_MIB: u64 = 10;

/// How a task's output is collected under an agent, which does not hand over the task's `logs` block.
fn agent_logs(task: &TaskConfig, reader: &Reader<'_>) -> Result<Option<LogCollection>, DriverError> {
    let logs = reader.block("logs")?;
    let logs = Reader::new(reader.driver(), &logs, &["max_files", "max_file_size", "disabled"])?;
    if logs.flag("disabled")? == Some(true) {
        return Ok(None);
    }
    let max_files = logs.limit("max_files")?.map_or(Ok(LOG_FILES), u32::try_from);
    let max_files = max_files.map_err(|_| logs.error("max_files", "max_files is too large"))?;
    let mib = logs.limit("max_file_size")?.unwrap_or(LOG_FILE_MIB);
    Ok(Some(LogCollection {
        dir: task.alloc_dir.join("alloc/logs"),
        stdout_file: format!("{}.stdout", task.name),
        stderr_file: format!("{}.stderr", task.name),
        max_files,
        max_file_size_bytes: mib.saturating_mul(1024 * 1024),
    }))
}

/// A driver whose tasks each have an executor.
#[derive(Debug)]
pub struct OnExecutor<P: Plan> {
    tasks: Tasks,
    config: Mutex<Arc<P::Config>>,
}

impl<P: Plan> OnExecutor<P> {
    /// A driver without tasks.
    #[must_use]
    pub fn new(settings: Settings) -> OnExecutor<P> {
        OnExecutor { tasks: Tasks::new(P::ISOLATION, settings), config: Mutex::default() }
    }

    fn config(&self) -> Arc<P::Config> {
        Arc::clone(&lock(&self.config))
    }

    /// Where the task's own `logs` block is known, it is the only one.
    fn check_logs(&self, reader: &Reader<'_>) -> Result<(), DriverError> {
        if reader.has("logs") && !self.tasks.settings().under_agent {
            return Err(reader.error("logs", "logs belongs into the task, beside its config, and not into it"));
        }
        Ok(())
    }

    fn launch_spec(&self, task: &TaskConfig, config: &P::Config) -> Result<LaunchSpec, DriverError> {
        let reader = Reader::any(P::NAME, &task.config);
        let under_agent = self.tasks.settings().under_agent;
        self.check_logs(&reader)?;
        let cgroup = if under_agent { self.tasks.agents_cgroup(task) } else { task.cgroup.clone() };
        // An agent of before 1.6 opens FIFOs whatever a driver says.
        let no_fifo = matches!(task.stdout_path.as_str(), "" | "/dev/null");
        let collects = under_agent && P::common(config).collect_logs && no_fifo;
        let mut spec = LaunchSpec {
            env: task.env.iter().map(|(key, value)| format!("{key}={value}")).collect(),
            user: task.user.clone(),
            task_dir: task.alloc_dir.join(&task.name),
            resources: task.resources.clone(),
            resource_limits: !cgroup.as_os_str().is_empty(),
            cgroup,
            cpuset_cgroup: task.cpuset_cgroup.clone(),
            stdout_path: task.stdout_path.clone(),
            stderr_path: task.stderr_path.clone(),
            logs: if collects { agent_logs(task, &reader)? } else { task.logs.clone() },
            network_namespace: task.network.as_ref().map(|network| network.path.clone()).unwrap_or_default(),
            ..LaunchSpec::default()
        };
        spec.resources.pids_max = reader.limit("pids_limit")?;
        P::plan(config, task, &mut spec)?;
        Ok(spec)
    }
}

#[tonic::async_trait]
impl<P: Plan> Driver for OnExecutor<P> {
    fn name(&self) -> &str {
        P::NAME
    }

    fn config_schema(&self) -> Option<Spec> {
        Some(P::config_schema())
    }

    fn set_config(&self, config: &DriverConfig, node: Option<&NodeConfig>) -> Result<(), DriverError> {
        let read = P::read_config(config)?;
        *lock(&self.config) = Arc::new(read);
        if let Some(compute) = node.and_then(|node| node.compute) {
            self.tasks.set_compute(compute);
        }
        Ok(())
    }

    fn task_config_schema(&self) -> Spec {
        P::task_config_schema()
    }

    fn capabilities(&self) -> Capabilities {
        P::capabilities(&self.config())
    }

    async fn fingerprint(&self) -> Fingerprint {
        P::fingerprint(&self.config(), self.tasks.settings().cgroups.regime()).await
    }

    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        self.check_logs(&Reader::any(P::NAME, config))?;
        P::validate(&self.config(), config)
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        let spec = self.launch_spec(task, &self.config())?;
        self.tasks.start(task, spec).await
    }

    async fn recover_task(&self, task: &TaskConfig, driver_state: &[u8]) -> Result<(), DriverError> {
        self.tasks.recover(task, driver_state).await
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        self.tasks.wait(id).await
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        self.tasks.stop(id, timeout, signal).await
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        self.tasks.destroy(id, force).await
    }

    async fn inspect_task(&self, id: &str) -> Result<TaskStatus, DriverError> {
        self.tasks.inspect(id)
    }

    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        self.tasks.stats(id).await
    }

    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        self.tasks.signal(id, signal).await
    }

    async fn exec_task(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecTaskResult, DriverError> {
        self.tasks.exec(id, command, timeout).await
    }

    fn exec_streaming(&self) -> ExecStreaming<'_> {
        ExecStreaming::Raw(self)
    }
}

#[tonic::async_trait]
impl<P: Plan> ExecTaskStreamingRaw for OnExecutor<P> {
    async fn exec_task_streaming(&self, id: &str, requests: ExecRequests) -> Result<ExecResponses, DriverError> {
        self.tasks.exec_streaming(id, requests).await
    }
}

/// What a driver needs that isolates: for `exec` and `java`.
pub(super) mod isolated {
    use std::collections::BTreeMap;

    use rustix::fs::{Mode, OFlags};

    use super::super::handle::failed;
    use super::super::{Dns, FsIsolation, Health, NetworkMode, capabilities};
    use super::*;
    use crate::spec::NamespaceMode;
    use crate::sys::path::Root;

    /// Host folders that every task sees, read-only. One that this host lacks is left out.
    const HOST_FOLDERS: [&str; 9] =
        ["/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/sbin", "/usr", "/run/systemd/resolve"];
    /// The user whom nothing belongs to.
    const DEFAULT_USER: &str = "nobody";
    const RESOLV_CONF: &str = "resolv.conf";

    /// How much tighter than Nomad's own drivers a task is held.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    enum Level {
        /// No capability that was not asked for, and none to be gained.
        #[default]
        Default,
        /// As Nomad's own drivers do it.
        Nomad,
    }

    impl Level {
        fn read(reader: &Reader<'_>) -> Result<Option<Level>, DriverError> {
            match reader.string("isolation")?.as_deref() {
                None | Some("") => Ok(None),
                Some("default") => Ok(Some(Level::Default)),
                Some("nomad") => Ok(Some(Level::Nomad)),
                Some(other) => {
                    let text = format!("isolation must be \"default\" or \"nomad\", got {other:?}");
                    Err(reader.error("isolation", &text))
                }
            }
        }
    }

    /// Plugin configuration of a driver that isolates.
    #[derive(Debug, Clone, Default)]
    pub struct IsolatedConfig {
        pub(crate) common: Common,
        pid_mode: NamespaceMode,
        ipc_mode: NamespaceMode,
        allow_caps: capabilities::Allowed,
        level: Level,
        /// The agent copies the host's programs into the task's folder.
        chroot: bool,
        /// Host path to path in the task; empty is the standard set.
        folders: BTreeMap<String, String>,
    }

    impl IsolatedConfig {
        pub(in super::super) const KEYS: [&'static str; 6] =
            ["default_pid_mode", "default_ipc_mode", "allow_caps", "isolation", "fs_isolation", "chroot_env"];

        pub(in super::super) fn schema() -> Vec<(&'static str, Spec)> {
            let text = |name, default| {
                (name, schema::with_default(schema::attr(name, "string", false), Literal::string(default)))
            };
            let mut schema = Common::schema().to_vec();
            schema.extend([
                text("default_pid_mode", "private"),
                text("default_ipc_mode", "private"),
                (
                    "allow_caps",
                    schema::with_default(
                        schema::attr("allow_caps", "list(string)", false),
                        capabilities::nomad_defaults(),
                    ),
                ),
                text("isolation", "default"),
                text("fs_isolation", "image"),
                // Twice the same thing: as a block, and as a map in parentheses.
                ("chroot_env", schema::block_attrs("chroot_env", "string", false)),
            ]);
            schema
        }

        pub(in super::super) fn read(reader: &Reader<'_>) -> Result<IsolatedConfig, DriverError> {
            let chroot = match reader.string("fs_isolation")?.as_deref() {
                None | Some("" | "image") => false,
                Some("chroot") => true,
                Some(other) => {
                    let text = format!("fs_isolation must be \"image\" or \"chroot\", got {other:?}");
                    return Err(reader.error("fs_isolation", &text));
                }
            };
            let folders: BTreeMap<String, String> = reader.pairs("chroot_env")?.into_iter().collect();
            let relative = folders.iter().find(|(from, to)| !from.starts_with('/') || !to.starts_with('/'));
            if let Some((from, to)) = relative {
                let text = format!("chroot_env maps absolute host paths to absolute task paths, got {from:?} = {to:?}");
                return Err(reader.error("chroot_env", &text));
            }
            Ok(IsolatedConfig {
                common: Common::read(reader)?,
                pid_mode: reader.namespace_mode("default_pid_mode")?.unwrap_or_default(),
                ipc_mode: reader.namespace_mode("default_ipc_mode")?.unwrap_or_default(),
                allow_caps: capabilities::Allowed::read(reader)?,
                level: Level::read(reader)?.unwrap_or_default(),
                chroot,
                folders,
            })
        }

        pub(in super::super) fn capabilities(&self) -> Capabilities {
            Capabilities {
                send_signals: true,
                exec: true,
                fs_isolation: if self.chroot { FsIsolation::Chroot } else { FsIsolation::Image },
                network_modes: vec![NetworkMode::Host, NetworkMode::Group],
                must_create_network: false,
                no_mounts: false,
                disable_log_collection: self.common.collects_logs(),
                dynamic_workload_users: false,
            }
        }

        /// What keeps tasks from being isolated on this machine.
        pub(in super::super) fn obstacle(cgroups: Regime) -> Option<Fingerprint> {
            if !rustix::process::geteuid().is_root() {
                return Some(Fingerprint::without(Health::Undetected, "Driver must run as root"));
            }
            (cgroups == Regime::Off)
                .then(|| Fingerprint::without(Health::Unhealthy, "Failed to discover cgroup mount point"))
        }

        fn mounts(&self, task: &TaskConfig) -> Vec<Mount> {
            let mount = |host_path: &Path, task_path: &str, readonly| Mount {
                task_path: task_path.to_owned(),
                host_path: host_path.to_owned(),
                readonly,
                propagation: Propagation::Private,
            };
            let mut mounts = Vec::new();
            if !self.chroot {
                if self.folders.is_empty() {
                    let folders = HOST_FOLDERS.iter().filter(|path| Path::new(path).is_dir());
                    mounts.extend(folders.map(|path| mount(Path::new(path), path, true)));
                } else {
                    // Parents first, whatever their names.
                    let mut folders: Vec<_> =
                        self.folders.iter().filter(|(from, _)| Path::new(from).exists()).collect();
                    folders.sort_by_key(|(_, to)| to.split('/').count());
                    mounts.extend(folders.into_iter().map(|(from, to)| mount(Path::new(from), to, true)));
                }
                let shared = task.alloc_dir.join("alloc");
                mounts.push(mount(&shared, "/alloc", false));
                // A task reads its logs but cannot forge them.
                mounts.push(mount(&shared.join("logs"), "/alloc/logs", true));
            }
            mounts.extend(task.mounts.iter().cloned());
            mounts
        }

        /// Fills in what is isolated. A folder of the task that the agent has not made is made by nobody here.
        pub(in super::super) fn plan(
            &self,
            reader: &Reader<'_>,
            task: &TaskConfig,
            spec: &mut LaunchSpec,
        ) -> Result<(), DriverError> {
            if spec.user.is_empty() {
                DEFAULT_USER.clone_into(&mut spec.user);
            }
            let level = Level::read(reader)?.unwrap_or(self.level);
            spec.capabilities = self.allow_caps.resolve(reader, level == Level::Nomad, spec.user == "root")?;
            spec.no_new_privs = level == Level::Default;
            spec.pid_mode = reader.namespace_mode("pid_mode")?.unwrap_or(self.pid_mode);
            spec.ipc_mode = reader.namespace_mode("ipc_mode")?.unwrap_or(self.ipc_mode);
            spec.work_dir = reader.absolute_path("work_dir")?;
            spec.devices.clone_from(&task.devices);
            spec.mounts = self.mounts(task);
            if let Some(dns) = &task.dns {
                spec.mounts.push(resolv_conf(dns, &spec.task_dir)?);
            }
            Ok(())
        }

        /// What can be said of a task's configuration without the task.
        pub(in super::super) fn validate(&self, reader: &Reader<'_>) -> Result<(), DriverError> {
            reader.namespace_mode("pid_mode")?;
            reader.namespace_mode("ipc_mode")?;
            reader.absolute_path("work_dir")?;
            self.allow_caps.resolve(reader, Level::read(reader)? == Some(Level::Nomad), false).map(drop)
        }
    }

    /// Keys of a task's configuration.
    pub(in super::super) const TASK_KEYS: [&str; 6] =
        ["pid_mode", "ipc_mode", "cap_add", "cap_drop", "work_dir", "isolation"];

    /// Their schema.
    pub(in super::super) fn task_schema() -> Vec<(&'static str, Spec)> {
        let mut schema: Vec<_> = TASK_KEYS
            .iter()
            .map(|name| {
                let kind = if name.starts_with("cap_") { "list(string)" } else { "string" };
                (*name, schema::attr(name, kind, false))
            })
            .collect();
        schema.extend(super::task_schema());
        schema
    }

    /// Writes the task's resolver configuration; what `dns` leaves out is the host's.
    fn resolv_conf(dns: &Dns, task_dir: &Path) -> Result<Mount, DriverError> {
        let host = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        let text = resolv_conf_text(dns, &host);
        let path = task_dir.join(RESOLV_CONF);
        let error = |e: std::io::Error| failed(format!("failed to write {}: {e}", path.display()), true);
        // The task may have put something else there when it ran before.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let root = Root::open(task_dir).map_err(error)?;
        let file = root.open_beneath(Path::new(RESOLV_CONF), flags, Mode::from_raw_mode(0o644)).map_err(error)?;
        let mut file = std::fs::File::from(file);
        if !file.metadata().map_err(error)?.is_file() {
            return Err(error(std::io::Error::other("not a plain file")));
        }
        file.set_len(0).map_err(error)?;
        std::io::Write::write_all(&mut file, text.as_bytes()).map_err(error)?;
        Ok(Mount {
            task_path: "/etc/resolv.conf".to_owned(),
            host_path: path,
            readonly: true,
            propagation: Propagation::Private,
        })
    }

    fn resolv_conf_text(dns: &Dns, host: &str) -> String {
        let of_host = |key: &str| -> Vec<String> {
            let lines = host.lines().filter_map(|line| line.split_once(char::is_whitespace).filter(|(k, _)| *k == key));
            lines.flat_map(|(_, values)| values.split_whitespace()).map(str::to_owned).collect()
        };
        let or_host = |given: &[String], key: &str| if given.is_empty() { of_host(key) } else { given.to_vec() };
        let mut text = String::new();
        for server in or_host(&dns.servers, "nameserver") {
            text.push_str(&format!("nameserver {server}\n"));
        }
        for (key, given) in [("search", &dns.searches), ("options", &dns.options)] {
            let values = or_host(given, key);
            if !values.is_empty() {
                text.push_str(&format!("{key} {}\n", values.join(" ")));
            }
        }
        text
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// `Test_dnsConfig`, `Test_copySystemDNS`: what is missing is the host's.
        #[test]
        fn resolver_configurations_are_written() {
            let host = "# by hand\nnameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch a b\noptions edns0 trust-ad\n";
            let list = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            let all = "nameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch a b\noptions edns0 trust-ad\n";
            assert_eq!(resolv_conf_text(&Dns::default(), host), all);
            let servers = Dns { servers: list(&["8.8.8.8"]), ..Dns::default() };
            assert_eq!(resolv_conf_text(&servers, host), "nameserver 8.8.8.8\nsearch a b\noptions edns0 trust-ad\n");
            let full = Dns {
                servers: list(&["1.1.1.1", "::1"]),
                searches: list(&["x"]),
                options: list(&["ndots:2", "rotate"]),
            };
            let text = "nameserver 1.1.1.1\nnameserver ::1\nsearch x\noptions ndots:2 rotate\n";
            assert_eq!(resolv_conf_text(&full, host), text);
            assert_eq!(resolv_conf_text(&servers, ""), "nameserver 8.8.8.8\n");
        }
    }
}
