//! This machine: its directories, its drivers, the names of tasks' cgroups. Builds what the allocations of one process share,
//! for each kind of owner.

use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::csi;
use super::csi_volumes::CsiVolumes;
use super::kept_sockets::KeptSockets;
use super::machine_error::Doing as _;
pub use super::machine_error::MachineError;
use super::node::{Node, compute};
use super::owner::{Owner, RunFile};
use super::place::Machine;
use super::ports::PortPool;
use super::process::Orphans;
use super::record::{Record, Records};
use super::service_registry::Services;
use super::sockets::SocketDir;
use super::values::ValuesFile;
use super::volumes::HostVolumes;
use crate::cgroup::systemd::Systemd;
use crate::cgroup::{self, CgroupFs, Cpusets, Delegated, Regime, TaskCgroup};
use crate::csi::SecretsOf;
use crate::driver::{
    DockerDriver, Driver, ExecDriver, Fingerprint, HOST_ENV_DENYLIST, Health, Host, JavaDriver, RawExecDriver, Settings,
};
use crate::net::Networks;
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{AllocId, IntoMap as _};
use crate::sys::mutant;
use crate::sys::owned::{self, OwnDir};

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// How long the user's systemd may take to make a scope.
const SCOPE: Duration = Duration::from_secs(5);
/// How long killing the processes in an abandoned cgroup may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Drivers by their names.
pub type Drivers = BTreeMap<String, Arc<dyn Driver>>;

/// The canonical path of the data directory, which is created if it is missing.
///
/// # Errors
/// When there is none, and when another user could write to it.
pub fn data_dir(given: Option<&Path>) -> Result<PathBuf, MachineError> {
    let dir = usual_data_dir(given)?;
    let make = || {
        // Nothing is created below a directory that another user controls.
        let there = dir.ancestors().find(|dir| dir.symlink_metadata().is_ok()).unwrap_or(Path::new("."));
        if there != dir {
            if !mutant::on("d72") {
                owned::resolve_parent(there)?;
            }
            std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&dir)?;
        }
        resolve(&dir)
    };
    // Files in it name the processes to kill and the files to remove.
    let own = make().and_then(|dir| OwnDir::open(&dir).map(|_| dir));
    own.doing_with(|| format!("cannot use the data directory {}; give another --data-dir", dir.display()))
}

/// The canonical path of the data directory if it exists; nothing is created.
///
/// # Errors
/// As [`data_dir`].
pub fn existing_data_dir(given: Option<&Path>) -> Result<Option<PathBuf>, MachineError> {
    match (usual_data_dir(given), given) {
        (Ok(dir), _) if dir.exists() => data_dir(Some(&dir)).map(Some),
        (Err(error), Some(_)) => Err(error),
        _ => Ok(None),
    }
}

/// The path of the data directory, whether it exists or not.
fn usual_data_dir(given: Option<&Path>) -> Result<PathBuf, MachineError> {
    let env = |key: &str| std::env::var_os(key).map(PathBuf::from).filter(|p| p.is_absolute());
    Ok(match given {
        Some(dir) => dir.to_owned(),
        None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib/agentbin"),
        None => env("XDG_STATE_HOME")
            .or_else(|| env("HOME").map(|home| home.join(".local/state")))
            .ok_or_else(|| {
                let doing = "there is no data directory: neither XDG_STATE_HOME nor HOME is set; give --data-dir";
                MachineError { doing: doing.to_owned(), source: None }
            })?
            .join("agentbin"),
    })
}

/// The canonical path of a directory, unless another user can replace it by another one.
fn resolve(dir: &Path) -> std::io::Result<PathBuf> {
    if mutant::on("d72") { dir.canonicalize() } else { owned::resolve(dir) }
}

/// The directory of the logs of allocations that have ended.
#[must_use]
pub fn kept_logs(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// The parent of all socket directories. A socket's path is limited in length, so this path is short.
#[must_use]
pub fn socket_base(data_dir: &Path) -> PathBuf {
    if rustix::process::geteuid().is_root() {
        PathBuf::from("/run/agentbin")
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_dir());
        runtime.map_or_else(|| data_dir.join("run"), |dir| dir.join("agentbin"))
    }
}

/// The parents of the socket directories of this user's runs: [`socket_base`], and those of runs in the background that were
/// started in another environment.
#[must_use]
pub fn socket_bases(data_dir: Option<&Path>) -> Vec<PathBuf> {
    let mut bases = vec![socket_base(data_dir.unwrap_or(Path::new("/")))];
    let Some(data_dir) = data_dir else { return bases };
    // Errors are reported by those who look for the runs.
    for id in RunFile::all(data_dir).unwrap_or_default() {
        if let Ok(Some(file)) = RunFile::read(data_dir, &id)
            && let Some(base) = file.sockets.parent()
            && !bases.iter().any(|known| known == base)
            && OwnDir::open(base).is_ok()
        {
            bases.push(base.to_owned());
        }
    }
    bases
}

/// The directory with the lock of what all processes of this user share, and with the registry of their ports: the same for all
/// of their data directories, and no other user can hold the lock. `None` for a user other than root who has no such directory.
fn lock_dir() -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Some(PathBuf::from("/run/agentbin"));
    }
    // By its usual path: the variable may be set in one shell and not in another.
    let runtime = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    OwnDir::open(&runtime).is_ok().then(|| runtime.join("agentbin"))
}

/// Whether this user's systemd can be asked for a scope.
#[must_use]
pub fn offers_scope() -> bool {
    Systemd::of_user(&runtime_dir()).is_offered()
}

/// Where the user's systemd listens.
fn runtime_dir() -> PathBuf {
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute());
    named.unwrap_or_else(|| PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw())))
}

/// The services of this user that are registered on this machine.
#[must_use]
pub fn services(data_dir: &Path) -> Services {
    Services::of_machine(lock_dir().unwrap_or_else(|| data_dir.join("run")).join("services"))
}

/// The directory of the networks' records; see [`Networks::run_dir`].
pub(super) fn network_dir(data_dir: &Path) -> PathBuf {
    lock_dir().unwrap_or_else(|| data_dir.join("run")).join("network")
}

/// The socket directory of an owner that returns: the same one each time. `None` for an owner that does not return; see
/// [`socket_dir`].
///
/// # Errors
/// As [`socket_dir`].
pub fn kept_socket_dir(data_dir: &Path, owner: &Owner) -> Result<Option<KeptSockets>, MachineError> {
    let base = socket_base(data_dir);
    KeptSockets::open(&base, data_dir, owner)
        .doing_with(|| format!("cannot make a directory of sockets in {}", base.display()))
}

/// The socket directory of this process.
///
/// # Errors
/// What the file system says, and when another user may write to the directory.
pub fn socket_dir(data_dir: &Path) -> Result<SocketDir, MachineError> {
    let base = socket_base(data_dir);
    SocketDir::create(&base).doing_with(|| format!("cannot make a directory of sockets in {}", base.display()))
}

/// The cgroups of this machine.
fn cgroups() -> Result<CgroupFs, MachineError> {
    CgroupFs::detect(Path::new(CGROUPS)).doing("cannot find out about cgroups")
}

/// How tasks of this process are limited: for root by the machine's cgroups, otherwise below a delegated cgroup.
#[derive(Debug)]
pub struct CgroupPlace {
    /// The mounted hierarchies.
    pub cgroups: CgroupFs,
    /// `Off` if this process cannot create cgroups.
    pub regime: Regime,
    /// The cgroup above those of all tasks, relative to each hierarchy's root.
    parent: Option<PathBuf>,
    given: Option<PathBuf>,
    /// Why the user's systemd made no scope, if it was asked.
    refused: Option<std::io::Error>,
    delegated: Option<Delegated>,
}

impl CgroupPlace {
    /// Detects the cgroups without changing anything. `given` is the parent cgroup of all tasks, if it is not the usual one.
    ///
    /// # Errors
    /// When the mounts cannot be read, and when `given` cannot be a cgroup.
    pub fn find(given: Option<&Path>) -> Result<CgroupPlace, MachineError> {
        let cgroups = cgroups()?;
        let is_root = rustix::process::geteuid().is_root();
        let delegated =
            if is_root { None } else { Delegated::find(&cgroups).doing("cannot find out about cgroups")? };
        let regime = if is_root || delegated.is_some() { cgroups.regime() } else { Regime::Off };
        let base = delegated.as_ref().map_or(Path::new(""), Delegated::relative);
        let parent = parent(regime).map(|usual| match given {
            Some(given) => parent_at(&cgroups, base, given),
            None => Ok(base.join(usual)),
        });
        let (parent, given) = (parent.transpose()?, given.map(Path::to_owned));
        Ok(CgroupPlace { cgroups, regime, parent, given, refused: None, delegated })
    }

    /// Moves this process out of the delegated cgroup, so that tasks can get cgroups there. To be called before it starts other
    /// processes; undone in the end.
    ///
    /// A plain user's process to which nothing is delegated first asks the user's systemd for a scope. Without one tasks have no
    /// cgroups, as on a system without systemd.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn enter(mut self) -> Result<CgroupPlace, MachineError> {
        if self.may_have_scope() {
            let unit = format!("agentbin-{}.scope", crate::sys::random::uuid().simple());
            match Systemd::of_user(&runtime_dir()).enter_scope(&unit, SCOPE) {
                Ok(()) => self = CgroupPlace::find(self.given.as_deref())?,
                Err(error) => self.refused = Some(error),
            }
        }
        if let Some(delegated) = &mut self.delegated {
            delegated.enter().doing("cannot use the cgroup that is delegated to this user")?;
        }
        Ok(self)
    }

    /// Only a scope of v2 is delegated with its controllers.
    fn may_have_scope(&self) -> bool {
        self.regime == Regime::Off && self.cgroups.regime() == Regime::V2 && offers_scope()
    }

    /// Why the regime is [`Regime::Off`].
    #[must_use]
    pub fn why_off(&self) -> String {
        match &self.refused {
            _ if rustix::process::geteuid().is_root() => "no cgroups are mounted".to_owned(),
            Some(error) => format!("you are not root, and your systemd gives this run no cgroup ({error})"),
            None => "you are not root".to_owned(),
        }
    }

    /// The cores of the tasks of all agentbin processes, if cpusets are available.
    #[must_use]
    pub fn cpusets(&self) -> Option<Cpusets> {
        self.cpusets_of(self.parent.as_deref()?)
    }

    fn cpusets_of(&self, parent: &Path) -> Option<Cpusets> {
        let cpusets = Cpusets::open(&self.cgroups, parent, is_task).ok()?;
        Some(match lock_dir() {
            Some(dir) if !mutant::on("d70") => cpusets.locked_in(dir),
            _ => cpusets,
        })
    }

    /// Divides the cores again among the tasks whose cgroups are siblings of these, whichever run created them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn settle_beside(&self, cgroups: &[PathBuf]) -> Result<(), cgroup::Error> {
        let parents: BTreeSet<&Path> = cgroups.iter().filter_map(|cgroup| cgroup.parent()).collect();
        let cpusets = parents.into_iter().filter_map(|parent| self.cpusets_of(parent));
        cpusets.map(|cpusets| cpusets.settle()).fold(Ok(()), Result::and)
    }
}

const fn parent(regime: Regime) -> Option<&'static str> {
    match regime {
        Regime::V2 => Some("nomad.slice"),
        Regime::V1 => Some("nomad"),
        Regime::Off => None,
    }
}

/// Resolves a cgroup that the user has given: a directory of a mounted hierarchy, or a path relative to each hierarchy's root,
/// also with a leading slash, as Nomad writes it; without root it is relative to the delegated `base`.
fn parent_at(cgroups: &CgroupFs, base: &Path, given: &Path) -> Result<PathBuf, MachineError> {
    let parent = if given.starts_with(CGROUPS) {
        cgroups.relative(given)
    } else {
        cgroups.relative(&base.join(given.strip_prefix("/").unwrap_or(given)))
    };
    let parent = parent.doing_with(|| format!("--cgroup-parent {}", given.display()))?;
    let is_file = |name: &OsStr| cgroups.hierarchies().any(|tree| tree.mount_point.join(base).join(name).is_file());
    if let Some(name) = parent.iter().find(|name| is_file(name)) {
        let (given, name) = (given.display(), name.display());
        let doing = format!("--cgroup-parent {given}: {name} is a file in every cgroup; give the cgroup another name");
        return Err(MachineError { doing, source: None });
    }
    Ok(parent)
}

/// Whether a cgroup belongs to a task of ours: its name is the allocation's id, a dash and the task's name.
fn is_task(name: &str) -> bool {
    name.split_at_checked(36).is_some_and(|(id, rest)| AllocId::parse(id).is_some() && rest.starts_with('-'))
}

/// Kills the processes in an abandoned cgroup and removes it.
///
/// # Errors
/// What the kernel says, or that its processes did not end in time.
pub fn remove_cgroup(cgroups: &CgroupFs, relative: &Path) -> std::io::Result<()> {
    if cgroups.regime() == Regime::Off {
        return Ok(());
    }
    TaskCgroup::destroy_at(cgroups, relative, Instant::now() + PATIENCE).map_err(std::io::Error::other)
}

/// Removes the containers of an abandoned allocation, if it may have some.
///
/// # Errors
/// What the engine says.
pub fn remove_containers(data_dir: &Path, record: &Record) -> Result<(), MachineError> {
    let Some(alloc_id) = record.id() else { return Ok(()) };
    // The network of a group is a container too, and exists before any task's container.
    let has_network = record.network.as_ref().is_some_and(|network| network.driver().is_some());
    let dir = data_dir.join("alloc").join(alloc_id.as_str());
    if !has_network && !DockerDriver::may_have_containers(&dir).doing("cannot look whether it has containers")? {
        return Ok(());
    }
    let settings =
        Settings { cgroups: cgroups()?, compute: compute(), socket_dir: socket_base(data_dir), host: Host::OWN };
    // On a thread of its own, because the caller may be inside a runtime.
    let removing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let alloc_id = alloc_id.as_str();
        crate::sys::task::block_on(&runtime, DockerDriver::new(settings).remove_allocation(alloc_id))
            .map_err(std::io::Error::other)
    });
    let removed = removing.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread that does it panicked")));
    removed.doing("cannot remove its containers")
}

/// Releases the CSI volumes of an abandoned allocation, whose processes are gone.
///
/// # Errors
/// What plugins say, or that one does not run.
pub fn release_volumes(data_dir: &Path, record: &Record, secrets: &SecretsOf<'_>) -> Result<(), MachineError> {
    csi::release_volumes(data_dir, &record.alloc_id, secrets)
}

/// Everything that the allocations of this process share.
///
/// # Errors
/// When the data directory or `/proc` cannot be used.
pub fn machine(data_dir: &Path, sockets: &Path, place: &CgroupPlace) -> Result<Machine, MachineError> {
    machine_of(Owner::default(), data_dir, sockets, place)
}

/// The same for this owner, whose process holds the owner's lock ([`OwnerLock::take`](super::OwnerLock::take)). If the owner
/// returns, its tasks also outlive their executors, where the driver supports it.
///
/// # Errors
/// As [`machine`].
pub fn machine_of(owner: Owner, data_dir: &Path, sockets: &Path, place: &CgroupPlace) -> Result<Machine, MachineError> {
    let CgroupPlace { cgroups, regime, parent, .. } = place;
    let (regime, parent) = (*regime, parent.clone());
    let cpusets = place.cpusets();
    let reservable = cpusets.as_ref().and_then(|cpusets| cpusets.reservable().ok()).map(|cores| cores.len());
    let node = Arc::new(Node::detect(data_dir, regime, reservable).doing_with(|| {
        format!("cannot keep the node's id in the data directory {}; give another --data-dir", data_dir.display())
    })?);
    let remove_from = cgroups.clone();
    let services = services(data_dir);
    Ok(Machine {
        data_dir: data_dir.to_owned(),
        drivers: drivers(cgroups, sockets, &owner),
        owner,
        host_env: host_env(),
        env_denylist: HOST_ENV_DENYLIST.map(str::to_owned).into(),
        records: Arc::new(Records::new(data_dir)),
        ports: PortPool::of_machine(lock_dir().unwrap_or_else(|| data_dir.join("run")).join("ports")),
        volumes: HostVolumes::default(),
        csi: CsiVolumes::new(data_dir),
        networks: networks(data_dir),
        values: ValuesFile::default().with_services(&services),
        services,
        cgroup: Box::new(move |id, task| {
            let unit = if regime == Regime::V2 { ".scope" } else { "" };
            parent.as_ref().map_or_else(PathBuf::new, |parent| parent.join(format!("{id}-{task}{unit}")))
        }),
        remove_cgroup: Arc::new(move |path| remove_cgroup(&remove_from, path)),
        cpusets,
        orphans: Arc::new(
            Orphans::inherit(data_dir, &network_dir(data_dir)).doing("cannot examine the processes in /proc")?,
        ),
        node,
    })
}

/// The settings of drivers on this machine; their helpers listen in `sockets`.
#[must_use]
pub fn settings(cgroups: &CgroupFs, sockets: &Path) -> Settings {
    Settings { cgroups: cgroups.clone(), compute: compute(), socket_dir: sockets.to_owned(), host: Host::OWN }
}

/// The built-in drivers, by name.
fn drivers(cgroups: &CgroupFs, sockets: &Path, owner: &Owner) -> BTreeMap<String, Arc<dyn Driver>> {
    let (settings, outlive) = (settings(cgroups, sockets), owner.returns());
    // An agent may be there before the engine, and tries again by the restart policy.
    let host = Host { waits_for_engine: *owner == Owner::Agent, ..settings.host };
    let settings = Settings { host, ..settings };
    let drivers: [Arc<dyn Driver>; 4] = [
        Arc::new(ExecDriver::new(settings.clone()).tasks_outlive(outlive)),
        Arc::new(RawExecDriver::new(settings.clone()).tasks_outlive(outlive)),
        Arc::new(JavaDriver::new(settings.clone()).tasks_outlive(outlive)),
        Arc::new(DockerDriver::new(settings)),
    ];
    drivers.into_iter().map(|driver| (driver.name().to_owned(), driver)).into_map()
}

/// This machine as job files see it; nothing is created or changed.
///
/// # Errors
/// When the mounts cannot be read, and when `cgroup_parent` cannot be a cgroup.
pub fn look(data_dir: Option<&Path>, cgroup_parent: Option<&Path>) -> Result<Node, MachineError> {
    let data_dir = usual_data_dir(data_dir).ok();
    let place = CgroupPlace::find(cgroup_parent)?;
    let reservable = place.cpusets().and_then(|cpusets| cpusets.reservable().ok()).map(|cores| cores.len());
    Ok(Node::look(data_dir.as_deref(), place.regime, reservable))
}

/// What can be found out about this machine before a run.
#[derive(Clone)]
pub struct Seen {
    /// The directory that its allocations would have.
    pub data_dir: PathBuf,
    /// As job files see it.
    pub node: Node,
    /// By name.
    pub drivers: BTreeMap<String, Arc<dyn Driver>>,
    /// The settings of these drivers, which plugins get too.
    pub settings: Settings,
}

/// Drivers that are only queried, and the settings for plugins; nothing is created or changed.
///
/// # Errors
/// As [`look`].
pub fn drivers_to_ask(cgroup_parent: Option<&Path>) -> Result<(Drivers, Settings), MachineError> {
    let settings = settings(&CgroupPlace::find(cgroup_parent)?.cgroups, &std::env::temp_dir());
    Ok((drivers(&settings.cgroups, &settings.socket_dir, &Owner::default()), settings))
}

/// How the networks of groups are made here by default.
#[must_use]
pub fn networks(data_dir: &Path) -> Networks {
    Networks::new(network_dir(data_dir))
}

/// This machine with its drivers; nothing is created or changed.
///
/// # Errors
/// When there is no data directory, and as [`look`].
pub fn peek(data_dir: Option<&Path>, cgroup_parent: Option<&Path>) -> Result<Seen, MachineError> {
    let data_dir = usual_data_dir(data_dir)?;
    let node = look(Some(&data_dir), cgroup_parent)?;
    let (drivers, settings) = drivers_to_ask(cgroup_parent)?;
    Ok(Seen { data_dir, node, drivers, settings })
}

/// The fingerprints of the wanted drivers, which are asked all at once; with a patience, of those that answer in time. The others
/// are not stopped, so that what is slow the first time, such as starting a JVM, is done when they are asked again.
pub async fn fingerprints(
    drivers: &Drivers,
    wanted: &BTreeSet<String>,
    patience: Option<Duration>,
) -> BTreeMap<String, Fingerprint> {
    let ask = |(name, driver): (&String, &Arc<dyn Driver>)| {
        let driver = Arc::clone(driver);
        (name.clone(), crate::sys::task::spawn(async move { driver.fingerprint().await }))
    };
    let asked: Vec<_> = drivers.iter().filter(|(name, _)| wanted.contains(*name)).map(ask).collect();
    let end = patience.map(|patience| tokio::time::Instant::now() + patience);
    let mut told = BTreeMap::new();
    for (name, asked) in asked {
        let answer = match end {
            Some(end) => tokio::time::timeout_at(end, asked).await.ok(),
            None => Some(asked.await),
        };
        match answer {
            Some(Ok(fingerprint)) => _ = told.insert(name, fingerprint),
            Some(Err(error)) => {
                let why = format!("asking the driver failed unexpectedly: {error}");
                told.insert(name, Fingerprint::without(Health::Undetected, &why));
            }
            None => {}
        }
    }
    told
}

/// Variables that a service manager sets for this process alone: `sd_notify(3)`, `sd_listen_fds(3)`.
pub const OF_SERVICE_MANAGER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Variables that are not UTF-8 cannot pass through a job's interpolation and are left out.
fn host_env() -> BTreeMap<String, String> {
    let handed_on = |key: &str| !OF_SERVICE_MANAGER.contains(&key);
    let text = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    text.filter(|(key, _)| handed_on(key)).into_map()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::owner::RunId;

    #[test]
    fn runs_are_looked_for_where_their_files_say_that_they_listen() {
        let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let usual = socket_base(data.path());
        assert_eq!(socket_bases(Some(data.path())), std::slice::from_ref(&usual));
        let missing = other.path().join("missing");
        for base in [other.path(), other.path(), usual.as_path(), missing.as_path()] {
            let id = RunId::random();
            let sockets = base.join(format!("run-{}", id.as_str()));
            RunFile::new(id, "job", &sockets, serde_json::Value::Null).write(data.path()).unwrap();
        }
        assert_eq!(socket_bases(Some(data.path())), [usual.clone(), other.path().to_owned()]);
        std::fs::set_permissions(other.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(socket_bases(Some(data.path())), [usual], "another user may have made what listens there");
    }
}
