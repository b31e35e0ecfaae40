//! What a driver has that isolates its tasks: `exec`, `java`, and whatever somebody else builds.

use std::collections::BTreeMap;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use super::config::Reader;
use super::handle::failed;
use super::on_executor::{self, Common};
use super::{Capabilities, Dns, DriverError, Fingerprint, FsIsolation, Health, NetworkMode, TaskConfig, capabilities};
use crate::cgroup::Regime;
use crate::spec::{LaunchSpec, Mount, NamespaceMode, Propagation};
use crate::sys::path::Root;
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

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
    common: Common,
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
    /// The keys that it reads.
    pub const KEYS: [&'static str; 7] = [
        Common::KEYS[0],
        "default_pid_mode",
        "default_ipc_mode",
        "allow_caps",
        "isolation",
        "fs_isolation",
        "chroot_env",
    ];

    /// Their schema.
    pub fn schema() -> Vec<(&'static str, Spec)> {
        let text =
            |name, default| (name, schema::with_default(schema::attr(name, "string", false), Literal::string(default)));
        let mut schema = Common::schema().to_vec();
        schema.extend([
            text("default_pid_mode", "private"),
            text("default_ipc_mode", "private"),
            (
                "allow_caps",
                schema::with_default(schema::attr("allow_caps", "list(string)", false), capabilities::nomad_defaults()),
            ),
            text("isolation", "default"),
            text("fs_isolation", "image"),
            // Twice the same thing: as a block, and as a map in parentheses.
            ("chroot_env", schema::block_attrs("chroot_env", "string", false)),
        ]);
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

    /// The part that drivers have which do not isolate.
    #[must_use]
    pub fn common(&self) -> &Common {
        &self.common
    }

    /// What such a driver can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
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
    #[must_use]
    pub fn obstacle(cgroups: Regime) -> Option<Fingerprint> {
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
                let mut folders: Vec<_> = self.folders.iter().filter(|(from, _)| Path::new(from).exists()).collect();
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

    /// Fills in what is isolated: user, capabilities, namespaces, root.
    ///
    /// # Errors
    /// [`DriverError::Config`], and `Failed` when the task's resolver configuration cannot be written.
    pub fn plan(&self, reader: &Reader<'_>, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError> {
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
        if !self.chroot {
            // Agents from 2.0 on unmount this folder at the end, and complain of one that is not there.
            let made = Root::open(&spec.task_dir)
                .and_then(|root| root.create_dir_all(Path::new("alloc/logs"), Mode::from_raw_mode(0o755)));
            made.map_err(|e| failed(format!("failed to make {}/alloc/logs: {e}", spec.task_dir.display()), true))?;
        }
        if let Some(dns) = &task.dns {
            spec.mounts.push(resolv_conf(dns, &spec.task_dir)?);
        }
        Ok(())
    }

    /// Checks a task's configuration for what can be said without the task.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub fn validate(&self, reader: &Reader<'_>) -> Result<(), DriverError> {
        reader.namespace_mode("pid_mode")?;
        reader.namespace_mode("ipc_mode")?;
        reader.absolute_path("work_dir")?;
        self.allow_caps.resolve(reader, Level::read(reader)? == Some(Level::Nomad), false).map(drop)
    }
}

/// Keys of a task's configuration.
const OWN_TASK_KEYS: [&str; 6] = ["pid_mode", "ipc_mode", "cap_add", "cap_drop", "work_dir", "isolation"];

impl IsolatedConfig {
    /// The keys of a task's configuration that it reads.
    pub const TASK_KEYS: [&'static str; 8] = [
        OWN_TASK_KEYS[0],
        OWN_TASK_KEYS[1],
        OWN_TASK_KEYS[2],
        OWN_TASK_KEYS[3],
        OWN_TASK_KEYS[4],
        OWN_TASK_KEYS[5],
        on_executor::TASK_KEYS[0],
        on_executor::TASK_KEYS[1],
    ];

    /// Their schema.
    pub fn task_schema() -> Vec<(&'static str, Spec)> {
        let mut schema: Vec<_> = OWN_TASK_KEYS
            .iter()
            .map(|name| {
                let kind = if name.starts_with("cap_") { "list(string)" } else { "string" };
                (*name, schema::attr(name, kind, false))
            })
            .collect();
        schema.extend(on_executor::task_schema());
        schema
    }
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
        let full =
            Dns { servers: list(&["1.1.1.1", "::1"]), searches: list(&["x"]), options: list(&["ndots:2", "rotate"]) };
        let text = "nameserver 1.1.1.1\nnameserver ::1\nsearch x\noptions ndots:2 rotate\n";
        assert_eq!(resolv_conf_text(&full, host), text);
        assert_eq!(resolv_conf_text(&servers, ""), "nameserver 8.8.8.8\n");
    }
}
