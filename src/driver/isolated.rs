//! Common code of drivers that isolate their tasks: `exec`, `java`, and drivers of other authors.

use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::config::Reader;
use super::failed;
use super::host_env::{self, HostEnv};
use super::host_ids::{self, HostIdsConfig};
use super::on_executor::{self, Common};
use super::policy::{Minimum, PIDS, devices};
use super::{
    Capabilities, Dns, DriverError, Fingerprint, FsIsolation, Health, NetworkMode, TaskConfig, capabilities, restrict,
};
use crate::cgroup::Regime;
use crate::container::{Subordinate, check_seccomp};
use crate::net::host_resolv_conf;
use crate::spec::collections::BTreeMap;
use crate::spec::{
    IntoMap as _, LaunchSpec, LimitedResource, Masks, Mount, NamespaceMode, Order as _, OwnNamespaces, ResourceLimit,
    Seccomp, Unveil,
};
use crate::sys::features::{self, Support};
use crate::sys::mutant;
use crate::sys::path::Root;
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

/// Host directories that every task sees, read-only. Those that do not exist on this host are left out.
const HOST_FOLDERS: [&str; 9] =
    ["/bin", "/etc", "/lib", "/lib32", "/lib64", "/run/resolvconf", "/sbin", "/usr", "/run/systemd/resolve"];
/// The default user of tasks, which owns no files.
const DEFAULT_USER: &str = "nobody";
const RESOLV_CONF: &str = "resolv.conf";

/// Largest seccomp profile, in bytes.
const PROFILE_MAX: u64 = 1 << 20;

/// An isolation level. Each of its values can also be set on its own, with a separate key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Level {
    /// Withholds everything that was not asked for, as far as jobs do not notice.
    #[default]
    Default,
    /// In addition: no capabilities over the host's user namespace, no network that was not asked for, and only hard limits.
    Strict,
    /// As Nomad's own drivers.
    Nomad,
}

/// The settings of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    /// Whether tasks start with Nomad's capabilities.
    nomad_capabilities: bool,
    seccomp: Filter,
    no_new_privs: bool,
    pids_max: Option<u64>,
    pids_max_is_a_wish: bool,
    /// Whether core files are disabled.
    no_core: bool,
    user_namespace: bool,
    own: OwnNamespaces,
    masks: Masks,
}

impl Level {
    fn read(reader: &Reader<'_>) -> Result<Option<Level>, DriverError> {
        match reader.string("isolation")?.as_deref() {
            None | Some("") => Ok(None),
            Some("default") => Ok(Some(Level::Default)),
            Some("strict") => Ok(Some(Level::Strict)),
            Some("nomad") => Ok(Some(Level::Nomad)),
            Some(other) => {
                let text = format!("isolation must be \"default\", \"strict\" or \"nomad\", got {other:?}");
                Err(reader.error("isolation", &text))
            }
        }
    }

    const fn held(self) -> Held {
        let tight = !matches!(self, Level::Nomad);
        let strict = matches!(self, Level::Strict);
        Held {
            nomad_capabilities: !tight,
            seccomp: if tight { Filter::Default } else { Filter::Unconfined },
            no_new_privs: tight,
            pids_max: if tight { Some(PIDS) } else { None },
            pids_max_is_a_wish: tight && !strict,
            no_core: tight,
            user_namespace: strict,
            own: OwnNamespaces { uts: tight, cgroup: tight, network: strict },
            masks: if tight { Masks::All } else { Masks::Nomad },
        }
    }
}

/// The key `seccomp`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    Default,
    Unconfined,
    File(PathBuf),
}

impl Filter {
    fn read(reader: &Reader<'_>) -> Result<Option<Filter>, DriverError> {
        Ok(match reader.string("seccomp")?.as_deref() {
            None | Some("") => None,
            Some("default") => Some(Filter::Default),
            Some("unconfined") => Some(Filter::Unconfined),
            Some(path) => Some(Filter::File(path.into())),
        })
    }

    /// Reads the profile again for each start. A relative path is resolved in the task's directory, without following links out
    /// of it.
    fn load(&self, reader: &Reader<'_>, task_dir: &Path) -> Result<Seccomp, DriverError> {
        let path = match self {
            Filter::Default => return Ok(Seccomp::Default),
            Filter::Unconfined => return Ok(Seccomp::Unconfined),
            Filter::File(path) => path,
        };
        let error = |problem: &str| {
            let text = format!(
                "seccomp must be \"default\", \"unconfined\" or a profile's path; {}: {problem}",
                path.display()
            );
            reader.error("seccomp", &text)
        };
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = if path.is_absolute() {
            rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map_err(std::io::Error::from)
        } else {
            Root::open(task_dir).and_then(|root| root.open_beneath(path, flags, Mode::empty()))
        };
        file.and_then(profile).map(Seccomp::Profile).map_err(|e| error(&e.to_string()))
    }
}

/// Reads a seccomp profile named by a job: a regular file of at most 1 MiB.
pub(super) fn profile(file: OwnedFd) -> std::io::Result<String> {
    let file = std::fs::File::from(file);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a plain file"));
    }
    let mut text = String::new();
    file.take(PROFILE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > PROFILE_MAX {
        return Err(std::io::Error::other("longer than 1 MiB"));
    }
    Ok(text)
}

/// Plugin configuration of a driver that isolates. [`OnExecutor`](super::OnExecutor) enforces `isolation_minimum`.
#[derive(Debug, Clone, Default)]
pub struct IsolatedConfig {
    common: Common,
    pid_mode: NamespaceMode,
    ipc_mode: NamespaceMode,
    allow_caps: capabilities::Allowed,
    level: Level,
    seccomp: Option<Filter>,
    /// 0 means no limit.
    pids_max: Option<u64>,
    host_ids: HostIdsConfig,
    /// Whether the agent copies the host's programs into the task's directory.
    chroot: bool,
    /// Host path to path in the task; empty means the standard set.
    folders: BTreeMap<String, String>,
    host_env: HostEnv,
}

impl IsolatedConfig {
    /// The keys that it reads.
    pub const KEYS: [&'static str; 22] = [
        Common::KEYS[0],
        Common::KEYS[1],
        Common::KEYS[2],
        Common::KEYS[3],
        Common::KEYS[4],
        Common::KEYS[5],
        Common::KEYS[6],
        Common::KEYS[7],
        "default_pid_mode",
        "default_ipc_mode",
        "allow_pid_modes",
        "allow_ipc_modes",
        "allow_caps",
        "isolation",
        "seccomp",
        "pids_limit",
        "fs_isolation",
        "chroot_env",
        host_env::KEY,
        host_ids::KEYS[0],
        host_ids::KEYS[1],
        devices::KEY,
    ];

    /// Their schema.
    pub fn schema() -> Vec<(&'static str, Spec)> {
        let text =
            |name, default| (name, schema::with_default(schema::attr(name, "string", false), Literal::string(default)));
        let mut schema = Common::schema().to_vec();
        schema.extend([
            text("default_pid_mode", "private"),
            text("default_ipc_mode", "private"),
            ("allow_pid_modes", schema::attr("allow_pid_modes", "list(string)", false)),
            ("allow_ipc_modes", schema::attr("allow_ipc_modes", "list(string)", false)),
            (
                "allow_caps",
                schema::with_default(schema::attr("allow_caps", "list(string)", false), capabilities::nomad_defaults()),
            ),
            text("isolation", "default"),
            ("seccomp", schema::attr("seccomp", "string", false)),
            ("pids_limit", schema::attr("pids_limit", "number", false)),
            text("fs_isolation", "image"),
            // Accepted in two forms: as a block, and as a map in parentheses.
            ("chroot_env", schema::block_attrs("chroot_env", "string", false)),
            HostEnv::schema(),
            devices::schema(),
        ]);
        schema.extend(HostIdsConfig::schema());
        schema
    }

    /// Reads them.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn read(reader: &Reader<'_>) -> Result<IsolatedConfig, DriverError> {
        let chroot = match reader.string("fs_isolation")?.as_deref() {
            None | Some("" | "image") => false,
            Some("chroot") => true,
            Some(other) => {
                let text = format!("fs_isolation must be \"image\" or \"chroot\", got {other:?}");
                return Err(reader.error("fs_isolation", &text));
            }
        };
        let folders: BTreeMap<String, String> = reader.pairs("chroot_env")?.into_iter().into_map();
        let relative = folders.iter().find(|(from, to)| !from.starts_with('/') || !to.starts_with('/'));
        if let Some((from, to)) = relative {
            let text = format!("chroot_env maps absolute host paths to absolute task paths, got {from:?} = {to:?}");
            return Err(reader.error("chroot_env", &text));
        }
        let seccomp = Filter::read(reader)?;
        if let Some(Filter::File(path)) = &seccomp
            && !path.is_absolute()
        {
            return Err(
                reader.error("seccomp", &format!("seccomp of all tasks must be absolute, got {}", path.display()))
            );
        }
        let mut config = IsolatedConfig {
            common: Common::read(reader)?,
            pid_mode: reader.namespace_mode("default_pid_mode")?.unwrap_or_default(),
            ipc_mode: reader.namespace_mode("default_ipc_mode")?.unwrap_or_default(),
            allow_caps: capabilities::Allowed::read(reader)?,
            level: Level::read(reader)?.unwrap_or_default(),
            seccomp,
            pids_max: restrict::pids_limit(reader)?,
            host_ids: HostIdsConfig::read(reader)?,
            chroot,
            folders,
            host_env: HostEnv::read(reader)?,
        };
        config.read_policy(reader)?;
        Ok(config)
    }

    /// Reads what tasks may ask for; the configuration's own defaults have to comply with it.
    fn read_policy(&mut self, reader: &Reader<'_>) -> Result<(), DriverError> {
        let minimum = self.common.policy.minimum;
        self.common.policy.allow_devices = devices::read(reader)?;
        for (key, allow, default_key, default) in [
            ("pid_mode", "allow_pid_modes", "default_pid_mode", self.pid_mode),
            ("ipc_mode", "allow_ipc_modes", "default_ipc_mode", self.ipc_mode),
        ] {
            let listed = reader.strings(allow)?;
            if let Some(mode) = listed.iter().find(|mode| !["private", "host"].contains(&mode.as_str())) {
                let text = format!("{allow} lists \"private\" and \"host\", got {mode:?}");
                return Err(reader.error(allow, &text));
            }
            let named = reader.has(allow);
            if (named || minimum.is_some())
                && default == NamespaceMode::Host
                && !listed.iter().any(|mode| mode == "host")
            {
                let text = format!("{default_key} = \"host\" is not allowed; list it in {allow}, or write \"private\"");
                return Err(reader.error(default_key, &text));
            }
            if named {
                self.common.policy.modes.insert(key, listed);
            }
        }
        let Some(minimum) = minimum else { return Ok(()) };
        if (self.level, minimum) == (Level::Default, Minimum::Strict) {
            self.level = Level::Strict;
        }
        self.common.policy.seccomp = reader.string("seccomp")?.filter(|text| !text.is_empty());
        // With a minimum set, "no limit" cannot be chosen: the level's limit applies.
        self.pids_max = self.pids_max.filter(|most| *most > 0);
        self.common.policy.pids_max = self.pids_max;
        Ok(())
    }

    /// The pid and ipc namespaces of the task: from its own keys, else the plugin's.
    ///
    /// # Errors
    /// [`DriverError::Config`]: the operator's lists do not contain the mode, or the task is strict, which never allows the
    /// host's namespaces: in them it could read the environment of other tasks, and signal its own executor.
    fn modes(&self, reader: &Reader<'_>) -> Result<(NamespaceMode, NamespaceMode), DriverError> {
        let strict = Level::read(reader)?.unwrap_or(self.level) == Level::Strict && !mutant::on("d30");
        let mode = |key: &'static str, default: NamespaceMode| {
            let asked = reader.namespace_mode(key)?;
            let mode = asked.unwrap_or(default);
            if strict && mode == NamespaceMode::Host {
                let said =
                    if asked.is_some() { String::new() } else { format!(", as default_{key} of the plugin says,") };
                let text = format!(
                    "{key} = \"host\"{said} cannot be had with isolation = \"strict\"; write {key} = \"private\""
                );
                return Err(reader.error(key, &text));
            }
            let listed = self.common.policy.modes.get(key).filter(|_| !mutant::on("d35"));
            // Private namespaces are always allowed.
            let host = asked == Some(NamespaceMode::Host);
            if host && listed.is_some_and(|list| !list.iter().any(|name| name == "host")) {
                let (driver, allow) = (reader.driver(), key.replace("_mode", "_modes"));
                let text = format!(
                    "{key} = \"host\" is not listed in allow_{allow} of plugin {driver:?}; leave {key} out, or have the \
                     operator list it"
                );
                return Err(reader.error(key, &text));
            }
            Ok(mode)
        };
        Ok((mode("pid_mode", self.pid_mode)?, mode("ipc_mode", self.ipc_mode)?))
    }

    /// The part that non-isolating drivers have as well.
    #[must_use]
    pub fn common(&self) -> &Common {
        &self.common
    }

    /// What tasks inherit from the agent's environment. `None` with a chroot, where the agent itself passes it on.
    #[must_use]
    pub fn host_env(&self) -> Option<&HostEnv> {
        (!self.chroot).then_some(&self.host_env)
    }

    /// How the users of tasks map to host ids.
    #[must_use]
    pub fn host_ids(&self) -> HostIdsConfig {
        self.host_ids
    }

    /// Whether the users of a task have host ids assigned to their allocation; true where the configuration cannot be read.
    #[must_use]
    pub fn has_own_ids(&self, task: &Reader<'_>) -> bool {
        let level = Level::read(task).map(|level| level.unwrap_or(self.level).held().user_namespace);
        let asked = task.flag("user_namespace").and_then(|flag| flag.map_or(level, Ok));
        let given = || rustix::process::geteuid().is_root() || Subordinate::usable().is_ok();
        self.host_ids.own && asked.unwrap_or(true) && given()
    }

    /// The driver's capabilities.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        Capabilities {
            send_signals: true,
            exec: true,
            fs_isolation: if self.chroot { FsIsolation::Chroot } else { FsIsolation::Image },
            network_modes: vec![NetworkMode::Host, NetworkMode::Group],
            must_create_network: false,
            no_mounts: false,
            disable_log_collection: self.common.needs_no_logmon(),
            dynamic_workload_users: false,
        }
    }

    /// What prevents isolation on this machine. `agents` is the cgroup regime of an agent; a run without an agent can also
    /// isolate without root and without cgroups.
    #[must_use]
    pub fn obstacle(agents: Option<Regime>) -> Option<Fingerprint> {
        if agents.is_some() && !rustix::process::geteuid().is_root() {
            return Some(Fingerprint::without(Health::Undetected, "Driver must run as root"));
        }
        if agents == Some(Regime::Off) {
            return Some(Fingerprint::without(Health::Unhealthy, "Failed to discover cgroup mount point"));
        }
        (features::mount_setattr() == Support::No).then(|| {
            let kernel = features::release();
            let text = format!(
                "Linux {kernel} has no mount_setattr(2), without which no task can be isolated: it needs Linux 5.12 or newer, or \
                 Nomad's own driver (remove this one from the agent's plugin_dir)"
            );
            Fingerprint::without(Health::Unhealthy, &text)
        })
    }

    /// The mounts of a task, and how many of them, counted from the first, are the host directories that every task has.
    fn mounts(&self, task: &TaskConfig) -> (Vec<Mount>, u32) {
        let mount = |host_path: &Path, task_path: &str, readonly| Mount {
            task_path: task_path.to_owned(),
            host_path: host_path.to_owned(),
            readonly,
            ..Mount::default()
        };
        let mut mounts = Vec::new();
        let mut of_host = 0;
        if !self.chroot {
            if self.folders.is_empty() {
                let folders = HOST_FOLDERS.iter().filter(|path| Path::new(path).is_dir());
                mounts.extend(folders.map(|path| mount(Path::new(path), path, true)));
            } else {
                // Parents before their children, independent of the names.
                let mut folders: Vec<_> = self.folders.iter().filter(|(from, _)| Path::new(from).exists()).collect();
                folders.order_by_key(|(_, to)| to.split('/').count());
                mounts.extend(folders.into_iter().map(|(from, to)| mount(Path::new(from), to, true)));
            }
            of_host = u32::try_from(mounts.len()).unwrap_or(u32::MAX);
            let shared = task.alloc_dir.join("alloc");
            mounts.push(mount(&shared, "/alloc", false));
            // A task reads its logs but cannot forge them.
            mounts.push(mount(&shared.join("logs"), "/alloc/logs", true));
        }
        mounts.extend(task.mounts.iter().cloned());
        (mounts, of_host)
    }

    /// Fills in what is isolated: user, capabilities, namespaces, root.
    ///
    /// # Errors
    /// [`DriverError::Config`], and `Failed` when the task's resolver configuration cannot be written.
    pub fn plan(&self, reader: &Reader<'_>, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError> {
        if spec.user.is_empty() {
            DEFAULT_USER.clone_into(&mut spec.user);
        }
        self.hold(reader, spec)?;
        (spec.pid_mode, spec.ipc_mode) = self.modes(reader)?;
        spec.init = init(reader, spec.pid_mode)?;
        spec.work_dir = reader.absolute_path("work_dir")?;
        spec.devices.clone_from(&task.devices);
        (spec.mounts, spec.host_mounts) = self.mounts(task);
        spec.filled_root = self.chroot;
        if !self.chroot {
            // Agents from 2.0 on unmount this directory at the end, and log an error if it does not exist.
            let made = Root::open(&spec.task_dir)
                .and_then(|root| root.create_dir_all(Path::new("alloc/logs"), Mode::from_raw_mode(0o755)));
            made.map_err(|e| failed(format!("failed to make {}/alloc/logs: {e}", spec.task_dir.display()), true))?;
        }
        if let Some(dns) = &task.dns {
            spec.mounts.push(resolv_conf(dns, &spec.task_dir)?);
        }
        Ok(())
    }

    /// Applies the restrictions: those of the task's keys, else the plugin's, else the level's.
    fn hold(&self, reader: &Reader<'_>, spec: &mut LaunchSpec) -> Result<(), DriverError> {
        let held = Level::read(reader)?.unwrap_or(self.level).held();
        spec.capabilities = self.allow_caps.resolve(reader, held.nomad_capabilities, spec.user == "root")?;
        let filter = Filter::read(reader)?.or_else(|| self.seccomp.clone()).unwrap_or(held.seccomp);
        spec.seccomp = filter.load(reader, &spec.task_dir)?;
        if let Seccomp::Profile(_) = &spec.seccomp {
            // Checked here because the error can name the position in the job file.
            check_seccomp(&spec.seccomp, &spec.capabilities).map_err(|e| reader.error("seccomp", &e.to_string()))?;
        }
        spec.no_new_privs = reader.flag("no_new_privs")?.unwrap_or(held.no_new_privs);
        let asked = restrict::pids_limit(reader)?.or(self.pids_max);
        spec.resources.pids_max = asked.or(held.pids_max).filter(|most| *most > 0);
        spec.resources.pids_max_is_a_wish = asked.is_none() && held.pids_max_is_a_wish;
        if held.no_core && !spec.limits.iter().any(|limit| limit.resource == LimitedResource::Core) {
            spec.limits.push(ResourceLimit { resource: LimitedResource::Core, soft: Some(0), hard: Some(0) });
        }
        spec.user_namespace = reader.flag("user_namespace")?.unwrap_or(held.user_namespace);
        spec.own = held.own;
        spec.unveil = unveil(reader)?;
        spec.masks = held.masks;
        Ok(())
    }

    /// Checks the parts of a task's configuration that do not depend on the task, in the order of Nomad's drivers: hosts look for
    /// the first mistake.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn validate(&self, reader: &Reader<'_>) -> Result<(), DriverError> {
        let (pid_mode, _) = self.modes(reader)?;
        let held = Level::read(reader)?.unwrap_or(self.level).held();
        self.allow_caps.resolve(reader, held.nomad_capabilities, false)?;
        reader.absolute_path("work_dir")?;
        init(reader, pid_mode)?;
        reader.flag("user_namespace")?;
        Filter::read(reader)?;
        unveil(reader).map(drop)
    }
}

/// Whether pid 1 is an init. In the host's pid namespace it could be nobody's.
fn init(reader: &Reader<'_>, pid_mode: NamespaceMode) -> Result<bool, DriverError> {
    let init = reader.flag(INIT)?.unwrap_or(false);
    if init && pid_mode == NamespaceMode::Host {
        let text = "init = true cannot be had with pid_mode = \"host\", where pid 1 is the host's; write pid_mode = \"private\"";
        return Err(reader.error(INIT, text));
    }
    Ok(init)
}

/// The task's complete file access rules.
fn unveil(reader: &Reader<'_>) -> Result<Vec<Unveil>, DriverError> {
    let parse = |text: String| {
        Unveil::parse(&text).ok_or_else(|| {
            let text = format!("unveil is a list of \"mode:/path\" with letters of rwxc as mode, got {text:?}");
            reader.error("unveil", &text)
        })
    };
    reader.strings("unveil")?.into_iter().map(parse).collect()
}

/// The key that puts an init above the command.
const INIT: &str = "init";

/// Keys of a task's configuration.
const OWN_TASK_KEYS: [&str; 10] = [
    "pid_mode",
    "ipc_mode",
    "cap_add",
    "cap_drop",
    "work_dir",
    "isolation",
    "seccomp",
    "user_namespace",
    "unveil",
    INIT,
];

impl IsolatedConfig {
    /// The keys of a task's configuration that it reads.
    pub const TASK_KEYS: [&'static str; 17] = [
        OWN_TASK_KEYS[0],
        OWN_TASK_KEYS[1],
        OWN_TASK_KEYS[2],
        OWN_TASK_KEYS[3],
        OWN_TASK_KEYS[4],
        OWN_TASK_KEYS[5],
        OWN_TASK_KEYS[6],
        OWN_TASK_KEYS[7],
        OWN_TASK_KEYS[8],
        OWN_TASK_KEYS[9],
        on_executor::TASK_KEYS[0],
        on_executor::TASK_KEYS[1],
        on_executor::TASK_KEYS[2],
        on_executor::TASK_KEYS[3],
        on_executor::TASK_KEYS[4],
        on_executor::TASK_KEYS[5],
        on_executor::TASK_KEYS[6],
    ];

    /// Their schema.
    pub fn task_schema() -> Vec<(&'static str, Spec)> {
        let mut schema: Vec<_> = OWN_TASK_KEYS
            .iter()
            .map(|name| {
                let kind = match *name {
                    "cap_add" | "cap_drop" | "unveil" => "list(string)",
                    "user_namespace" | INIT => "bool",
                    _ => "string",
                };
                (*name, schema::attr(name, kind, false))
            })
            .collect();
        schema.extend(on_executor::task_schema());
        schema
    }
}

/// Writes the task's resolver configuration; settings that `dns` lacks are taken from the host.
pub(super) fn resolv_conf(dns: &Dns, task_dir: &Path) -> Result<Mount, DriverError> {
    let text = resolv_conf_text(dns, &host_resolv_conf());
    let path = task_dir.join(RESOLV_CONF);
    write_beneath(task_dir, RESOLV_CONF, &text)
        .map_err(|e| failed(format!("failed to write {}: {e}", path.display()), true))?;
    Ok(Mount { task_path: "/etc/resolv.conf".to_owned(), host_path: path, readonly: true, ..Mount::default() })
}

/// Writes a file into the task's directory, where the task may have put something else during an earlier run.
pub(super) fn write_beneath(task_dir: &Path, name: &str, text: &str) -> std::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = Root::open(task_dir)?.open_beneath(Path::new(name), flags, Mode::from_raw_mode(0o644))?;
    let mut file = std::fs::File::from(file);
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Err(std::io::Error::other("not a plain file with one name"));
    }
    file.set_len(0)?;
    std::io::Write::write_all(&mut file, text.as_bytes())
}

fn resolv_conf_text(dns: &Dns, host: &str) -> String {
    if *dns == Dns::default() {
        return host.to_owned();
    }
    let of_host = |key: &str| -> Vec<String> {
        let lines = host.lines().filter_map(|line| line.split_once(char::is_whitespace).filter(|(k, _)| *k == key));
        lines.flat_map(|(_, values)| values.split_whitespace()).map(str::to_owned).collect()
    };
    let or_host = |given: &[String], key: &str| if given.is_empty() { of_host(key) } else { given.to_vec() };
    let mut text = String::new();
    for server in or_host(&dns.servers, "nameserver") {
        text.extend(["nameserver ", &server, "\n"]);
    }
    for (key, given) in [("search", &dns.searches), ("options", &dns.options)] {
        let values = or_host(given, key);
        if !values.is_empty() {
            text.extend([key, " ", &values.join(" "), "\n"]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::driver::restrict::Restrictions;
    use crate::spec::{DriverConfig, Resources};

    fn planned(plugin: &serde_json::Value, task: &serde_json::Value) -> Result<LaunchSpec, String> {
        let config = |values: &serde_json::Value| DriverConfig {
            values: values.as_object().unwrap().clone(),
            ..DriverConfig::default()
        };
        let (plugin, task) = (config(plugin), config(task));
        let reader = Reader::new("exec", &task, &IsolatedConfig::TASK_KEYS).map_err(|e| e.to_string())?;
        let plan = || -> Result<LaunchSpec, DriverError> {
            let isolated = IsolatedConfig::read(&Reader::new("exec", &plugin, &IsolatedConfig::KEYS)?)?;
            let mut spec = LaunchSpec::default();
            Restrictions::read(&reader)?.apply(&mut spec);
            isolated.validate(&reader)?;
            isolated.hold(&reader, &mut spec)?;
            Ok(spec)
        };
        plan().map_err(|e| e.to_string())
    }

    /// N6: what each level means, in one table.
    #[test]
    fn n6_levels_are_values() {
        let core = ResourceLimit { resource: LimitedResource::Core, soft: Some(0), hard: Some(0) };
        let own = |uts, cgroup, network| OwnNamespaces { uts, cgroup, network };
        let nomad = LaunchSpec {
            capabilities: planned(&json!({}), &json!({ "isolation": "nomad" })).unwrap().capabilities,
            masks: Masks::Nomad,
            ..LaunchSpec::default()
        };
        let default = LaunchSpec {
            seccomp: Seccomp::Default,
            no_new_privs: true,
            resources: Resources { pids_max: Some(4096), pids_max_is_a_wish: true, ..Resources::default() },
            limits: vec![core],
            own: own(true, true, false),
            ..LaunchSpec::default()
        };
        let strict = LaunchSpec {
            user_namespace: true,
            own: own(true, true, true),
            resources: Resources { pids_max_is_a_wish: false, ..default.resources.clone() },
            ..default.clone()
        };
        assert_eq!(nomad.capabilities.len(), 13);
        for (plugin, task, expected) in [
            (json!({}), json!({}), &default),
            (json!({ "isolation": "nomad" }), json!({}), &nomad),
            (json!({ "isolation": "nomad" }), json!({ "isolation": "strict" }), &strict),
            (json!({ "isolation": "strict" }), json!({ "isolation": "default" }), &default),
            (json!({ "isolation": "strict" }), json!({ "isolation": "" }), &strict),
        ] {
            assert_eq!(planned(&plugin, &task), Ok(expected.clone()));
        }
    }

    /// N6: a key for a single value takes precedence over the level, and the task's key over the plugin's.
    #[test]
    fn n6_each_value_has_a_key() {
        let spec = |plugin, task| planned(&plugin, &task).unwrap();
        let loose = spec(
            json!({ "seccomp": "default", "pids_limit": 5 }),
            json!({
                "seccomp": "unconfined", "no_new_privs": false, "pids_limit": 0, "ulimit": { "core": -1 },
                "user_namespace": false, "isolation": "strict", "unveil": ["r:/usr"],
            }),
        );
        assert_eq!((&loose.seccomp, loose.no_new_privs, loose.user_namespace), (&Seccomp::Unconfined, false, false));
        assert_eq!((loose.resources.pids_max, loose.limits.len(), loose.limits[0].soft), (None, 1, None));
        assert_eq!(loose.unveil[0].to_string(), "r:/usr");
        let tight = spec(
            json!({ "isolation": "nomad", "pids_limit": 5, "seccomp": "default" }),
            json!({ "no_new_privs": true, "user_namespace": true, "ulimit": { "nofile": 9 } }),
        );
        assert_eq!((&tight.seccomp, tight.no_new_privs, tight.user_namespace), (&Seccomp::Default, true, true));
        assert_eq!((tight.resources.pids_max, tight.resources.pids_max_is_a_wish), (Some(5), false));
        assert_eq!((tight.limits.len(), tight.masks), (1, Masks::Nomad));
        for (task, why) in [
            (json!({ "isolation": "docker" }), "isolation must be \"default\", \"strict\" or \"nomad\""),
            (json!({ "unveil": ["/usr"] }), "unveil is a list of \"mode:/path\""),
            (json!({ "user_namespace": "host" }), "user_namespace must be true or false"),
        ] {
            let error = planned(&json!({}), &task).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let error = planned(&json!({ "seccomp": "local/x.json" }), &json!({})).unwrap_err();
        assert!(error.contains("seccomp of all tasks must be absolute"), "{error}");
    }

    /// Point 4 of issue 14: the effect of a minimum and of the lists of modes on the plugin's own keys.
    #[test]
    fn d31_a_plugin_agrees_with_its_minimum() {
        let strict = planned(&json!({ "isolation_minimum": "strict" }), &json!({})).unwrap();
        assert_eq!(strict, planned(&json!({ "isolation": "strict" }), &json!({})).unwrap(), "a task that says nothing");
        assert!(strict.user_namespace && strict.own.network);
        for (plugin, task, why) in [
            (json!({ "isolation_minimum": "nomad" }), json!({}), "isolation_minimum must be \"default\" or \"strict\""),
            (
                json!({ "isolation_minimum": "default", "isolation": "nomad" }),
                json!({}),
                "isolation = \"nomad\" is overridden by isolation_minimum; remove one of the two",
            ),
            // D99: a root task was able to read the copies of /etc/shadow and of private keys.
            (
                json!({ "isolation_minimum": "default", "fs_isolation": "chroot" }),
                json!({}),
                "fs_isolation = \"chroot\" is overridden by isolation_minimum; remove one of the two",
            ),
            (
                json!({ "isolation_minimum": "strict", "seccomp": "unconfined" }),
                json!({}),
                "seccomp = \"unconfined\" is overridden by isolation_minimum",
            ),
            (
                json!({ "isolation_minimum": "default", "default_ipc_mode": "host" }),
                json!({}),
                "default_ipc_mode = \"host\" is not allowed; list it in allow_ipc_modes",
            ),
            (
                json!({ "allow_pid_modes": ["private"], "default_pid_mode": "host" }),
                json!({}),
                "default_pid_mode = \"host\" is not allowed; list it in allow_pid_modes",
            ),
            (json!({ "allow_pid_modes": ["hist"] }), json!({}), "allow_pid_modes lists \"private\" and \"host\""),
            (
                json!({ "default_pid_mode": "host" }),
                json!({ "isolation": "strict" }),
                "pid_mode = \"host\", as default_pid_mode of the plugin says, cannot be had with isolation = \"strict\"",
            ),
            (
                json!({ "allow_ipc_modes": ["host"], "isolation": "strict" }),
                json!({ "ipc_mode": "host" }),
                "ipc_mode = \"host\" cannot be had with isolation = \"strict\"; write ipc_mode = \"private\"",
            ),
        ] {
            let error = planned(&plugin, &task).unwrap_err();
            assert!(error.contains(why), "{plugin} {task}: {error}");
        }
        let listed = json!({ "isolation_minimum": "default", "allow_pid_modes": ["host"], "default_pid_mode": "host" });
        assert!(planned(&listed, &json!({})).is_ok(), "what the operator lists, the operator may make the default");
        let private = json!({ "default_pid_mode": "host", "isolation": "strict" });
        assert!(planned(&private, &json!({ "pid_mode": "private" })).is_ok());
    }

    /// N6: a profile is a regular file of bounded size, and a relative path is resolved in the task's directory.
    #[test]
    fn n6_profiles_are_read_from_plain_files() {
        let (task, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let load = |name: &str| {
            let config = DriverConfig::default();
            let loaded = Filter::File(name.into()).load(&Reader::any("exec", &config), task.path());
            loaded.map_err(|e| e.to_string())
        };
        let inside = |name: &str| task.path().join(name);
        let absolute = host.path().join("p.json");
        std::fs::write(&absolute, "host").unwrap();
        std::fs::write(inside("p.json"), "task").unwrap();
        assert_eq!(load("p.json"), Ok(Seccomp::Profile("task".into())));
        assert_eq!(load(absolute.to_str().unwrap()), Ok(Seccomp::Profile("host".into())));
        std::os::unix::fs::symlink(&absolute, inside("link")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, inside("fifo"), Mode::from_raw_mode(0o600)).unwrap();
        std::fs::File::create(inside("long")).unwrap().set_len(PROFILE_MAX + 1).unwrap();
        for (name, why) in [
            ("link", "symbolic links"),
            ("../p.json", "ross-device"),
            ("fifo", "not a plain file"),
            (".", "not a plain file"),
            ("missing", "No such file"),
            ("long", "longer than 1 MiB"),
        ] {
            let error = load(name).unwrap_err();
            assert!(error.contains(why) && error.contains(name), "{name}: {error}");
        }
    }

    /// `Test_dnsConfig`, `Test_copySystemDNS`: missing settings are taken from the host.
    #[test]
    fn resolver_configurations_are_written() {
        let host = "# by hand\nnameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch a b\noptions edns0 trust-ad\n";
        let list = |items: &[&str]| items.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(resolv_conf_text(&Dns::default(), host), host, "nothing is asked for: the file as it is");
        let options = Dns { options: list(&["rotate"]), ..Dns::default() };
        let all = "nameserver 10.0.0.1\nnameserver 10.0.0.2\nsearch a b\noptions rotate\n";
        assert_eq!(resolv_conf_text(&options, host), all);
        let servers = Dns { servers: list(&["8.8.8.8"]), ..Dns::default() };
        assert_eq!(resolv_conf_text(&servers, host), "nameserver 8.8.8.8\nsearch a b\noptions edns0 trust-ad\n");
        let full =
            Dns { servers: list(&["1.1.1.1", "::1"]), searches: list(&["x"]), options: list(&["ndots:2", "rotate"]) };
        let text = "nameserver 1.1.1.1\nnameserver ::1\nsearch x\noptions ndots:2 rotate\n";
        assert_eq!(resolv_conf_text(&full, host), text);
        assert_eq!(resolv_conf_text(&servers, ""), "nameserver 8.8.8.8\n");
    }
}
