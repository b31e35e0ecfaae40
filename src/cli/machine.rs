//! This machine: where things are kept, which drivers there are, how a task's cgroup is called.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::alloc::{Machine, Node, Orphans, PortPool, Records, SocketDir, compute};
use crate::cgroup::{self, CgroupFs, Cpusets, Delegated, Regime, TaskCgroup};
use crate::driver::{DockerDriver, Driver, ExecDriver, Fingerprint, JavaDriver, RawExecDriver, Settings};
use crate::spec::AllocId;
use crate::sys::mutant;
use crate::sys::owned::{self, OwnDir};

/// Where cgroups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";
/// How long the processes in an abandoned cgroup may resist.
const PATIENCE: Duration = Duration::from_secs(10);

/// The data directory, made where it is missing, under its canonical name.
pub(super) fn data_dir(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let dir = usual_data_dir(given)?;
    let make = || {
        // Nothing is made behind what is somebody else's.
        let there = dir.ancestors().find(|dir| dir.symlink_metadata().is_ok()).unwrap_or(Path::new("."));
        if there != dir {
            if !mutant::on("d72") {
                owned::resolve_parent(there)?;
            }
            std::fs::DirBuilder::new().recursive(true).mode(0o711).create(&dir)?;
        }
        resolve(&dir)
    };
    // What stands in it says which processes to end and what to remove.
    let own = make().and_then(|dir| OwnDir::open(&dir).map(|_| dir));
    own.with_context(|| format!("cannot use the data directory {}; give another --data-dir", dir.display()))
}

/// Where it is, or would be.
fn usual_data_dir(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    let env = |key: &str| std::env::var_os(key).map(PathBuf::from).filter(|p| p.is_absolute());
    Ok(match given {
        Some(dir) => dir.to_owned(),
        None if rustix::process::geteuid().is_root() => PathBuf::from("/var/lib/agentbin"),
        None => env("XDG_STATE_HOME")
            .or_else(|| env("HOME").map(|home| home.join(".local/state")))
            .context("there is no data directory: neither XDG_STATE_HOME nor HOME is set; give --data-dir")?
            .join("agentbin"),
    })
}

/// The same directory under its canonical name, when nobody else can put another one in its place.
fn resolve(dir: &Path) -> std::io::Result<PathBuf> {
    if mutant::on("d72") { dir.canonicalize() } else { owned::resolve(dir) }
}

/// Where the logs of allocations are that have ended.
pub(super) fn kept_logs(data_dir: &Path) -> PathBuf {
    data_dir.join("logs")
}

/// Where the folders of sockets are. A socket's path has to be short, so it is not far down.
pub(super) fn socket_base(data_dir: &Path) -> PathBuf {
    if rustix::process::geteuid().is_root() {
        PathBuf::from("/run/agentbin")
    } else {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_dir());
        runtime.map_or_else(|| data_dir.join("run"), |dir| dir.join("agentbin"))
    }
}

/// Where all processes of this user find the lock of what they share, and the registry of their ports, whatever their data
/// directories are, and nobody else can hold it; `None` for a plain user without such a directory.
fn lock_dir() -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Some(PathBuf::from("/run/agentbin"));
    }
    // By its usual name: the variable may be set in one shell, and not in another.
    let runtime = PathBuf::from(format!("/run/user/{}", user.as_raw()));
    OwnDir::open(&runtime).is_ok().then(|| runtime.join("agentbin"))
}

/// Where the executors of this process listen.
pub(super) fn socket_dir(data_dir: &Path) -> anyhow::Result<SocketDir> {
    let base = socket_base(data_dir);
    SocketDir::create(&base).with_context(|| format!("cannot make a folder of sockets in {}", base.display()))
}

/// The cgroups of this machine.
fn cgroups() -> anyhow::Result<CgroupFs> {
    CgroupFs::detect(Path::new(CGROUPS)).context("cannot find out about cgroups")
}

/// How tasks of this process are limited: as the machine is set up for root, and else below a cgroup that was delegated.
pub(super) struct Place {
    /// What is mounted.
    pub cgroups: CgroupFs,
    /// Off where this process cannot make cgroups.
    pub regime: Regime,
    /// The cgroup above those of all tasks, relative to each hierarchy's root.
    parent: Option<PathBuf>,
    delegated: Option<Delegated>,
}

impl Place {
    /// Looks, and changes nothing. `given` is the cgroup above those of all tasks, if it is not the usual one.
    pub(super) fn find(given: Option<&Path>) -> anyhow::Result<Place> {
        let cgroups = cgroups()?;
        let is_root = rustix::process::geteuid().is_root();
        let delegated =
            if is_root { None } else { Delegated::find(&cgroups).context("cannot find out about cgroups")? };
        let regime = if is_root || delegated.is_some() { cgroups.regime() } else { Regime::Off };
        let base = delegated.as_ref().map_or(Path::new(""), Delegated::relative);
        let parent = parent(regime).map(|usual| match given {
            Some(given) => parent_at(&cgroups, base, given),
            None => Ok(base.join(usual)),
        });
        Ok(Place { cgroups, regime, parent: parent.transpose()?, delegated })
    }

    /// Makes room for tasks, where this process is in the way. To be called before it starts others; undone in the end.
    pub(super) fn enter(mut self) -> anyhow::Result<Place> {
        if let Some(delegated) = &mut self.delegated {
            delegated.enter().context("cannot use the cgroup that is delegated to this user")?;
        }
        Ok(self)
    }

    /// The cores of the tasks of all agentbin processes, where they can be divided.
    pub(super) fn cpusets(&self) -> Option<Cpusets> {
        self.cpusets_of(self.parent.as_deref()?)
    }

    fn cpusets_of(&self, parent: &Path) -> Option<Cpusets> {
        let cpusets = Cpusets::open(&self.cgroups, parent, is_task).ok()?;
        Some(match lock_dir() {
            Some(dir) if !mutant::on("d70") => cpusets.locked_in(dir),
            _ => cpusets,
        })
    }

    /// Divides the cores anew among the tasks that are beside these cgroups, wherever their runs put them.
    pub(super) fn settle_beside(&self, cgroups: &[PathBuf]) -> Result<(), cgroup::Error> {
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

/// A cgroup that somebody names: as a folder of a mounted tree, or relative to each tree's root, also with a slash in front,
/// as Nomad writes it; for a plain user relative to `base`, which was delegated to him.
fn parent_at(cgroups: &CgroupFs, base: &Path, given: &Path) -> anyhow::Result<PathBuf> {
    let parent = if given.starts_with(CGROUPS) {
        cgroups.relative(given)
    } else {
        cgroups.relative(&base.join(given.strip_prefix("/").unwrap_or(given)))
    };
    let parent = parent.with_context(|| format!("--cgroup-parent {}", given.display()))?;
    let is_file = |name: &OsStr| cgroups.hierarchies().any(|tree| tree.mount_point.join(base).join(name).is_file());
    if let Some(name) = parent.iter().find(|name| is_file(name)) {
        let (given, name) = (given.display(), name.display());
        anyhow::bail!("--cgroup-parent {given}: {name} is a file in every cgroup; give the cgroup another name");
    }
    Ok(parent)
}

/// Whether a cgroup is that of a task of ours: the allocation's id, a dash, the task's name.
fn is_task(name: &str) -> bool {
    name.split_at_checked(36).is_some_and(|(id, rest)| AllocId::parse(id).is_some() && rest.starts_with('-'))
}

/// Kills what is in an abandoned cgroup and removes it.
pub(super) fn remove_cgroup(cgroups: &CgroupFs, relative: &Path) -> std::io::Result<()> {
    if cgroups.regime() == Regime::Off {
        return Ok(());
    }
    TaskCgroup::destroy_at(cgroups, relative, Instant::now() + PATIENCE).map_err(std::io::Error::other)
}

/// Removes the containers of an abandoned allocation, where it may have some.
pub(super) fn remove_containers(data_dir: &Path, alloc_id: &str) -> anyhow::Result<()> {
    if AllocId::parse(alloc_id).is_none() || !DockerDriver::may_have_containers(&data_dir.join("alloc").join(alloc_id))?
    {
        return Ok(());
    }
    let settings =
        Settings { cgroups: cgroups()?, compute: compute(), socket_dir: socket_base(data_dir), under_agent: false };
    let alloc_id = alloc_id.to_owned();
    // On a thread of its own: whoever asks may be inside a runtime.
    let removing = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok::<_, anyhow::Error>(runtime.block_on(DockerDriver::new(settings).remove_allocation(&alloc_id))?)
    });
    removing.join().map_err(|_| anyhow::anyhow!("the thread that does it panicked"))?
}

/// Everything that the allocations of this process share.
pub(super) fn machine(data_dir: &Path, sockets: &Path, place: &Place) -> anyhow::Result<Machine> {
    let Place { cgroups, regime, parent, .. } = place;
    let (regime, parent) = (*regime, parent.clone());
    let cpusets = place.cpusets();
    let reservable = cpusets.as_ref().and_then(|cpusets| cpusets.reservable().ok()).map(|cores| cores.len());
    let node = Arc::new(Node::detect(data_dir, regime, reservable).with_context(|| {
        format!("cannot keep the node's id in the data directory {}; give another --data-dir", data_dir.display())
    })?);
    let remove_from = cgroups.clone();
    Ok(Machine {
        data_dir: data_dir.to_owned(),
        drivers: drivers(cgroups, sockets),
        host_env: host_env(),
        records: Arc::new(Records::new(data_dir)),
        ports: PortPool::of_machine(lock_dir().unwrap_or_else(|| data_dir.join("run")).join("ports")),
        cgroup: Box::new(move |id, task| {
            let unit = if regime == Regime::V2 { ".scope" } else { "" };
            parent.as_ref().map_or_else(PathBuf::new, |parent| parent.join(format!("{id}-{task}{unit}")))
        }),
        remove_cgroup: Arc::new(move |path| remove_cgroup(&remove_from, path)),
        cpusets,
        orphans: Arc::new(Orphans::inherit(data_dir).context("cannot look at processes in /proc")?),
        node,
    })
}

/// Those of this program, by name.
fn drivers(cgroups: &CgroupFs, sockets: &Path) -> BTreeMap<String, Arc<dyn Driver>> {
    let settings =
        Settings { cgroups: cgroups.clone(), compute: compute(), socket_dir: sockets.to_owned(), under_agent: false };
    let drivers: [Arc<dyn Driver>; 4] = [
        Arc::new(ExecDriver::new(settings.clone())),
        Arc::new(RawExecDriver::new(settings.clone())),
        Arc::new(JavaDriver::new(settings.clone())),
        Arc::new(DockerDriver::new(settings)),
    ];
    drivers.into_iter().map(|driver| (driver.name().to_owned(), driver)).collect()
}

/// This machine as job files see it, with these of its drivers; nothing is made or changed.
pub(super) fn look(
    data_dir: Option<&Path>,
    cgroup_parent: Option<&Path>,
    wanted: &BTreeSet<String>,
) -> anyhow::Result<Node> {
    let data_dir = usual_data_dir(data_dir).ok();
    let place = Place::find(cgroup_parent)?;
    let reservable = place.cpusets().and_then(|cpusets| cpusets.reservable().ok()).map(|cores| cores.len());
    let mut node = Node::look(data_dir.as_deref(), place.regime, reservable);
    if !wanted.is_empty() {
        let sockets = socket_base(data_dir.as_deref().unwrap_or(Path::new("/")));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        node.add_drivers(&runtime.block_on(fingerprints(&drivers(&place.cgroups, &sockets), wanted)));
    }
    Ok(node)
}

/// What these drivers tell of themselves.
pub(super) async fn fingerprints(
    drivers: &BTreeMap<String, Arc<dyn Driver>>,
    wanted: &BTreeSet<String>,
) -> BTreeMap<String, Fingerprint> {
    let mut told = BTreeMap::new();
    for (name, driver) in drivers.iter().filter(|(name, _)| wanted.contains(*name)) {
        told.insert(name.clone(), driver.fingerprint().await);
    }
    told
}

/// Variables that are no text cannot be handed on through a job's interpolation and are left out.
fn host_env() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
}
