//! What a run in the background keeps for its next supervisor, in case this one is killed.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::plugins::Blocks;
use super::{RunArgs, complain, given_volumes};
use crate::alloc::{
    HostVolume, KeptSockets, Machine, Owner, OwnerError, OwnerLock, RunFile, RunId, ValuesFile, machine,
};
use crate::logs::ship::Sink;
use crate::net::{Networks, Subnet, Subnets};
use crate::spec::DriverConfig;
use crate::spec::collections::BTreeMap;
use crate::spec::json;

/// What a supervisor needs of the command line, and of the files as they were read then.
#[derive(serde::Serialize, serde::Deserialize)]
pub(super) struct Settings {
    /// The environment that tasks without isolation inherit: that of the process that started the run.
    pub(super) host_env: BTreeMap<String, String>,
    /// What of it they do not inherit; missing in files of earlier versions.
    #[serde(default)]
    env_denylist: Option<Vec<String>>,
    pub(super) cgroup_parent: Option<PathBuf>,
    /// When `--timeout` expires.
    deadline: Option<SystemTime>,
    /// The URLs of log sinks, with passwords.
    log_sinks: Vec<String>,
    kv: Option<PathBuf>,
    volumes: Vec<Volume>,
    /// CSI plugins and volumes; missing in files of earlier versions.
    #[serde(default)]
    csi: given_volumes::CsiArgs,
    meta: BTreeMap<String, String>,
    /// The configuration of drivers, by name.
    drivers: BTreeMap<String, DriverConfig>,
    cni_config_dir: PathBuf,
    cni_path: Vec<PathBuf>,
    subnet: Subnet,
    /// Missing in files of earlier versions.
    #[serde(default)]
    subnet_ipv6: Option<Subnet>,
    pub(super) quiet: bool,
    /// The job's payload for `dispatch_payload`, in base64; missing in files of earlier versions.
    #[serde(default)]
    payload: String,
    /// Driver plugins; missing in files of earlier versions.
    #[serde(default)]
    pub(super) plugins: Blocks,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Volume {
    name: String,
    path: PathBuf,
    read_only: bool,
}

impl Settings {
    /// The settings of this command line, with the volumes and the configuration of drivers that follow from it.
    pub(super) fn of(
        args: &RunArgs,
        machine: &Machine,
        volumes: &[given_volumes::Given],
        meta: &BTreeMap<String, String>,
        drivers: BTreeMap<String, DriverConfig>,
        sinks: &[Sink],
        plugins: Blocks,
    ) -> anyhow::Result<Settings> {
        let absolute = |path: &Path| {
            std::path::absolute(path).with_context(|| format!("cannot find out where {} is", path.display()))
        };
        let volume = |given: &given_volumes::Given| Volume {
            name: given.name.clone(),
            path: given.path.clone(),
            read_only: given.read_only,
        };
        let Networks { config_dir, plugin_dirs, subnets, .. } = &machine.networks;
        Ok(Settings {
            host_env: machine.host_env.clone(),
            env_denylist: Some(machine.env_denylist.clone()),
            cgroup_parent: args.cgroup_parent.clone(),
            deadline: args.timeout.and_then(|timeout| SystemTime::now().checked_add(timeout)),
            log_sinks: sinks.iter().map(|sink| sink.secret_text().to_owned()).collect(),
            kv: args.kv.as_deref().map(absolute).transpose()?,
            volumes: volumes.iter().map(volume).collect(),
            csi: args.csi.clone(),
            meta: meta.clone(),
            drivers,
            cni_config_dir: absolute(config_dir)?,
            cni_path: plugin_dirs.clone(),
            subnet: subnets.v4,
            subnet_ipv6: subnets.v6,
            quiet: args.quiet,
            payload: String::new(),
            plugins,
        })
    }

    /// The same, for a job with a payload.
    pub(super) fn with_payload(mut self, payload: &[u8]) -> Settings {
        self.payload = BASE64.encode(payload);
        self
    }

    /// The settings of a run.
    ///
    /// # Errors
    /// When they cannot be parsed.
    pub(super) fn of_file(file: &RunFile) -> anyhow::Result<Settings> {
        let read = json::from_value(&file.settings);
        read.with_context(|| format!("the settings of run {} are not understood", file.id.as_str()))
    }

    /// Sets up a machine as the first supervisor did. What no longer exists is reported: running tasks do without it.
    ///
    /// # Errors
    /// When a driver refuses its configuration.
    pub(super) fn apply(&self, machine: &mut Machine) -> anyhow::Result<()> {
        machine.host_env.clone_from(&self.host_env);
        if let Some(denylist) = &self.env_denylist {
            machine.env_denylist.clone_from(denylist);
        }
        Arc::make_mut(&mut machine.node).meta.extend(self.meta.clone());
        for Volume { name, path, read_only } in &self.volumes {
            match HostVolume::open(path, *read_only) {
                Ok(volume) => machine.volumes.add(name.clone(), volume),
                Err(e) => complain(&format!("volume {name:?} cannot be used any more: {}: {e}", path.display())),
            }
        }
        if let Err(e) = self.csi.apply(&mut machine.csi) {
            complain(&format!("{e:#}"));
        }
        if let Some(file) = &self.kv {
            machine.values = ValuesFile::later(file).with_services(&machine.services);
            if let Err(e) = machine.values.read() {
                complain(&format!("--kv: {e}"));
            }
        }
        machine.networks.config_dir.clone_from(&self.cni_config_dir);
        machine.networks.plugin_dirs.clone_from(&self.cni_path);
        machine.networks.subnets = Subnets { v4: self.subnet, v6: self.subnet_ipv6 };
        for (name, config) in &self.drivers {
            if let Some(driver) = machine.drivers.get(name) {
                driver.set_config(config, None)?;
            }
        }
        Ok(())
    }

    /// The payload for the file of a task that is started from the beginning.
    ///
    /// # Errors
    /// When it cannot be decoded.
    pub(super) fn payload(&self) -> anyhow::Result<Vec<u8>> {
        BASE64.decode(&self.payload).context("the payload of the run is not understood")
    }

    /// The log sinks.
    pub(super) fn sinks(&self) -> Vec<Sink> {
        let parse =
            |text: &String| text.parse().map_err(|e| complain(&format!("a log sink is not used any more: {e}")));
        self.log_sinks.iter().filter_map(|text| parse(text).ok()).collect()
    }

    /// The remaining time of `--timeout`.
    pub(super) fn timeout(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.duration_since(SystemTime::now()).unwrap_or_default())
    }
}

/// A run in the background, as its supervisor sees it. When this is dropped, the run's files are removed, unless another
/// supervisor is to take the run over.
#[derive(Debug)]
pub(super) struct Background {
    data_dir: PathBuf,
    file: Mutex<RunFile>,
    sockets: KeptSockets,
    lock: Option<OwnerLock>,
    stays: AtomicBool,
}

impl Background {
    /// A new run.
    pub(super) fn begin(data_dir: &Path, job: &str) -> anyhow::Result<Background> {
        let id = RunId::random();
        let owner = Owner::Run { background: Some(id.clone()) };
        let lock = OwnerLock::take(data_dir, &owner)?;
        let sockets = machine::kept_socket_dir(data_dir, &owner)?.context("a run in the background has no sockets")?;
        let file = Mutex::new(RunFile::new(id, job, &sockets.path, serde_json::Value::Null));
        let data_dir = data_dir.to_owned();
        Ok(Background { data_dir, file, sockets, lock, stays: AtomicBool::new(false) })
    }

    /// A run whose supervisor was killed; `None` if it does not exist, or another process has taken it over.
    pub(super) fn resume(data_dir: &Path, id: &RunId) -> anyhow::Result<Option<Background>> {
        let owner = Owner::Run { background: Some(id.clone()) };
        let lock = match OwnerLock::take(data_dir, &owner) {
            Err(OwnerError::Held { .. }) => return Ok(None),
            lock => lock?,
        };
        let Some(file) = RunFile::read(data_dir, id)?.filter(|file| file.announced) else { return Ok(None) };
        let base = file.sockets.parent().context("the run's sockets are nowhere")?;
        let sockets = KeptSockets::open(base, data_dir, &owner);
        let sockets = sockets.with_context(|| format!("cannot use {}", file.sockets.display()))?;
        let sockets = sockets.context("a run in the background has no sockets")?;
        let (data_dir, file) = (data_dir.to_owned(), Mutex::new(file));
        Ok(Some(Background { data_dir, file, sockets, lock, stays: AtomicBool::new(true) }))
    }

    /// The owner of its allocations.
    pub(super) fn owner(&self) -> Owner {
        self.file().owner()
    }

    /// Where its executors and its control socket listen.
    pub(super) fn sockets(&self) -> &Path {
        &self.sockets.path
    }

    /// The content of its file.
    pub(super) fn file(&self) -> RunFile {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes what its next supervisor needs, before anything is made.
    pub(super) fn keep(&self, settings: &Settings, allocs: Vec<String>) -> anyhow::Result<()> {
        let settings = json::to_value(settings).context("cannot note the run's settings")?;
        self.write(|file| (file.settings, file.allocs) = (settings, allocs))
    }

    /// From now on the next supervisor takes the run over if this one is killed.
    pub(super) fn announce(&self) -> anyhow::Result<()> {
        self.write(|file| file.announced = true)
    }

    fn write(&self, change: impl FnOnce(&mut RunFile)) -> anyhow::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut file);
        file.write(&self.data_dir).context("cannot note what the run's next supervisor needs")
    }

    /// Sets whether another supervisor is to take over what this one leaves.
    pub(super) fn stays(&self, stays: bool) {
        self.stays.store(stays, Ordering::Relaxed);
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // A supervisor that panicked is treated like one that was killed.
        if self.stays.load(Ordering::Relaxed) || std::thread::panicking() {
            return;
        }
        let id = self.file().id;
        if let Err(error) = RunFile::remove(&self.data_dir, &id).and_then(|()| self.sockets.remove()) {
            complain(&format!("what is kept of a run that has ended is left to agentbin gc: {error}"));
        }
        if let Some(lock) = self.lock.take() {
            lock.remove();
        }
    }
}
