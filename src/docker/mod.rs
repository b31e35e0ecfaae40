//! The Docker Engine API: calls with deadlines, and raw streams. Never decides what to try again.
//!
//! Calls and their values are those of the crate `bollard`; its connections are ours (`endpoint`), because it names no
//! API version and takes the bytes of a terminal for frames.

#[cfg(test)]
mod endless;
mod endpoint;
mod error;
mod exec;
mod image;
pub mod logs;
mod meter;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bollard::Docker;
use bollard::query_parameters::{
    CreateContainerOptions, InspectContainerOptions, KillContainerOptions, ListContainersOptions,
    RemoveContainerOptions, StartContainerOptions, StopContainerOptions, WaitContainerOptions,
};
use tokio_stream::StreamExt as _;

pub use bollard::auth::DockerCredentials as Credentials;
pub use bollard::models;
pub use endpoint::{Endpoint, Tls};
pub use error::EngineError;
pub use exec::{Exec, ExecCommand, ExecState};
pub use image::Progress;

use self::endpoint::Connector;

/// How long the engine may take. A call that takes longer fails with [`EngineError::Timeout`]; whether it was done is not
/// known then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Calls that change something: create, start, remove. A stop has its grace in addition.
    pub change: Duration,
    /// Calls that only ask.
    pub ask: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { change: Duration::from_mins(2), ask: Duration::from_secs(30) }
    }
}

/// What the engine says of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Container {
    /// Its id, 64 hex digits.
    pub id: String,
    /// Its name, without the leading slash.
    pub name: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// It runs (or is paused).
    pub running: bool,
    /// It has been started at least once.
    pub was_started: bool,
    /// Why it could not be started; empty when nothing failed.
    pub error: String,
    /// Exit status of its last run.
    pub exit_code: i32,
    /// The engine saw a kill for memory.
    pub oom_killed: bool,
    /// Its first process on the host; 0 while it does not run.
    pub pid: i32,
    /// When it was started last.
    pub started_at: Option<SystemTime>,
    /// When it ended last.
    pub finished_at: Option<SystemTime>,
    /// Its output is a terminal's.
    pub tty: bool,
    /// Name and addresses (v4, v6) of each network that it is in.
    pub networks: Vec<(String, String, String)>,
    /// The file of its network namespace.
    pub sandbox: String,
    /// Id of its image.
    pub image: String,
}

/// A line of the engine's list of containers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listed {
    /// Its id.
    pub id: String,
    /// Its names, without the leading slashes.
    pub names: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// `running`, `created`, `exited`...
    pub state: String,
    /// Source and target of its mounts.
    pub mounts: Vec<(String, String)>,
}

/// What the engine says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Info {
    /// Its version.
    pub version: String,
    /// `linux` or `windows`.
    pub os_type: String,
    /// Names of the runtimes, sorted.
    pub runtimes: Vec<String>,
    /// `cgroupfs` or `systemd`.
    pub cgroup_driver: String,
    /// `1` or `2`.
    pub cgroup_version: String,
}

/// A Docker Engine. Cheap to clone; a connection per call.
#[derive(Debug, Clone)]
pub struct Engine {
    connector: Arc<Connector>,
    client: Docker,
    deadlines: Deadlines,
}

impl Engine {
    /// An engine that nobody has spoken to yet.
    ///
    /// # Errors
    /// Certificates that cannot be used.
    pub fn new(endpoint: &Endpoint, deadlines: Deadlines) -> Result<Engine, EngineError> {
        let connector = Arc::new(Connector::new(endpoint)?);
        let client = connector.client(None)?;
        Ok(Engine { connector, client, deadlines })
    }

    /// Asks anew which version of the API is spoken: after the engine was replaced it may be another.
    pub fn renegotiate(&self) {
        self.connector.forget_version();
    }

    async fn within<T>(
        &self,
        what: &'static str,
        deadline: Duration,
        call: impl Future<Output = Result<T, bollard::errors::Error>>,
    ) -> Result<T, EngineError> {
        match tokio::time::timeout(deadline, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(EngineError::of(what, error)),
            Err(_) => Err(EngineError::Timeout { what, after: deadline }),
        }
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// See [`EngineError`], as for all calls.
    pub async fn info(&self) -> Result<Info, EngineError> {
        let info = self.within("ask the engine for information", self.deadlines.ask, self.client.info()).await?;
        let mut runtimes: Vec<String> = info.runtimes.unwrap_or_default().into_keys().collect();
        runtimes.sort_unstable();
        Ok(Info {
            version: info.server_version.unwrap_or_default(),
            os_type: info.os_type.unwrap_or_default(),
            runtimes,
            cgroup_driver: info.cgroup_driver.map(|d| d.to_string()).unwrap_or_default(),
            cgroup_version: info.cgroup_version.map(|v| v.to_string()).unwrap_or_default(),
        })
    }

    /// The gateway of the default bridge; empty where there is none.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn bridge_gateway(&self) -> Result<String, EngineError> {
        let call = self.client.inspect_network("bridge", None);
        match self.within("inspect the network bridge", self.deadlines.ask, call).await {
            Ok(network) => {
                let configs = network.ipam.and_then(|ipam| ipam.config).unwrap_or_default();
                Ok(configs.into_iter().find_map(|config| config.gateway).unwrap_or_default())
            }
            Err(error) if error.is_not_found() => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Makes a container and returns its id.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn create(&self, name: &str, body: models::ContainerCreateBody) -> Result<String, EngineError> {
        let options = CreateContainerOptions { name: Some(name.to_owned()), platform: String::new() };
        let call = self.client.create_container(Some(options), body);
        Ok(self.within("create the container", self.deadlines.change, call).await?.id)
    }

    /// Starts it; one that runs already is no error.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn start(&self, id: &str) -> Result<(), EngineError> {
        let call = self.client.start_container(id, None::<StartContainerOptions>);
        unless_not_modified(self.within("start the container", self.deadlines.change, call).await)
    }

    /// Sends its stop signal, waits up to `grace`, kills it; one that has ended is no error.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn stop(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX);
        let options = StopContainerOptions { signal: None, t: Some(seconds) };
        let call = self.client.stop_container(id, Some(options));
        let deadline = grace.saturating_add(self.deadlines.change);
        unless_not_modified(self.within("stop the container", deadline, call).await)
    }

    /// Sends a signal (a number) to its first process.
    ///
    /// # Errors
    /// See [`EngineError`]; a conflict when it does not run.
    pub async fn kill(&self, id: &str, signal: i32) -> Result<(), EngineError> {
        let options = KillContainerOptions { signal: signal.to_string() };
        self.within("signal the container", self.deadlines.change, self.client.kill_container(id, Some(options))).await
    }

    /// Kills and removes it, with its anonymous volumes.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn remove(&self, id: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions { v: true, force: true, link: false };
        let call = self.client.remove_container(id, Some(options));
        self.within("remove the container", self.deadlines.change, call).await
    }

    /// Sets the cores that a running container may use.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn set_cores(&self, id: &str, cores: &str) -> Result<(), EngineError> {
        let body = models::ContainerUpdateBody { cpuset_cpus: Some(cores.to_owned()), ..Default::default() };
        self.within("set the container's cores", self.deadlines.change, self.client.update_container(id, body)).await
    }

    /// What it knows of the container with this id or name; `None` when there is none.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn inspect(&self, id: &str) -> Result<Option<Container>, EngineError> {
        let call = self.client.inspect_container(id, None::<InspectContainerOptions>);
        match self.within("inspect the container", self.deadlines.ask, call).await {
            Ok(answer) => Ok(Some(container(answer))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All containers that have the label; stopped ones too when `all`.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn list(&self, label: Option<&str>, all: bool) -> Result<Vec<Listed>, EngineError> {
        let filters = label.map(|label| HashMap::from([("label".to_owned(), vec![label.to_owned()])]));
        let options = ListContainersOptions { all, filters, ..ListContainersOptions::default() };
        let call = self.client.list_containers(Some(options));
        let list = self.within("list the containers", self.deadlines.ask, call).await?;
        Ok(list.into_iter().map(listed).collect())
    }

    /// Returns when the container does not run, for whatever reason; asking it again is up to the caller. No deadline.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn wait(&self, id: &str) -> Result<(), EngineError> {
        let options = WaitContainerOptions { condition: "not-running".to_owned() };
        let mut answers = std::pin::pin!(self.client.wait_container(id, Some(options)));
        match answers.next().await {
            Some(Ok(_) | Err(bollard::errors::Error::DockerContainerWaitError { .. })) => Ok(()),
            Some(Err(error)) => Err(EngineError::of("wait for the container", error)),
            None => Err(EngineError::Broken { what: "wait for the container", problem: "no answer".to_owned() }),
        }
    }
}

fn unless_not_modified(result: Result<(), EngineError>) -> Result<(), EngineError> {
    match result {
        Err(error) if error.status() == Some(304) => Ok(()),
        other => other,
    }
}

/// Go's zero time is "never".
fn time(text: Option<&String>) -> Option<SystemTime> {
    let text = text.filter(|text| !text.starts_with("0001-"))?;
    humantime::parse_rfc3339(text).ok()
}

fn container(answer: models::ContainerInspectResponse) -> Container {
    let state = answer.state.unwrap_or_default();
    let config = answer.config.unwrap_or_default();
    let settings = answer.network_settings.unwrap_or_default();
    let mut networks: Vec<(String, String, String)> = settings
        .networks
        .unwrap_or_default()
        .into_iter()
        .map(|(name, at)| (name, at.ip_address.unwrap_or_default(), at.global_ipv6_address.unwrap_or_default()))
        .collect();
    networks.sort_unstable();
    Container {
        id: answer.id.unwrap_or_default(),
        name: answer.name.unwrap_or_default().trim_start_matches('/').to_owned(),
        labels: config.labels.unwrap_or_default().into_iter().collect(),
        running: state.running.unwrap_or(false) || state.restarting.unwrap_or(false),
        was_started: time(state.started_at.as_ref()).is_some(),
        error: state.error.unwrap_or_default(),
        exit_code: state.exit_code.and_then(|code| i32::try_from(code).ok()).unwrap_or(-1),
        oom_killed: state.oom_killed.unwrap_or(false),
        pid: state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
        started_at: time(state.started_at.as_ref()),
        finished_at: time(state.finished_at.as_ref()),
        tty: config.tty.unwrap_or(false),
        networks,
        sandbox: settings.sandbox_key.unwrap_or_default(),
        image: answer.image.unwrap_or_default(),
    }
}

fn listed(summary: models::ContainerSummary) -> Listed {
    let names = summary.names.unwrap_or_default();
    let mounts = summary.mounts.unwrap_or_default();
    Listed {
        id: summary.id.unwrap_or_default(),
        names: names.iter().map(|name| name.trim_start_matches('/').to_owned()).collect(),
        labels: summary.labels.unwrap_or_default().into_iter().collect(),
        created: summary.created.unwrap_or(0),
        state: summary.state.map(|state| state.to_string()).unwrap_or_default(),
        mounts: mounts
            .into_iter()
            .map(|mount| (mount.source.unwrap_or_default(), mount.destination.unwrap_or_default()))
            .collect(),
    }
}
