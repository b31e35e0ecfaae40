//! The Docker Engine API: calls with deadlines, and raw streams. Never decides about retries.
//!
//! Calls and connections are implemented here (`call`, `endpoint`); the description of a container uses the types of the crate
//! `bollard-stubs`, which are generated from the engine's own API description.

mod ask;
mod call;
#[cfg(test)]
mod endless;
mod endpoint;
mod error;
mod exec;
mod image;
pub mod logs;
mod meter;

use crate::spec::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

pub use bollard_stubs::models;
pub use endpoint::{Endpoint, Tls};
pub use error::EngineError;
pub use exec::{Exec, ExecCommand, ExecState};
pub use image::{Credentials, Progress, Pulling};

use self::ask::Ask;
use self::call::escaped;
use self::endpoint::Connector;
use crate::spec::IntoMap as _;
use crate::spec::Order as _;
use crate::spec::Signal;
use crate::spec::json;
use crate::spec::json::json;

/// Deadlines of calls. A call that takes longer fails with [`EngineError::Timeout`]; whether the engine executed it is not
/// known then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Calls that change something: create, start, remove. For a stop the grace period is added.
    pub change: Duration,
    /// Calls that only query.
    pub ask: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { change: Duration::from_mins(2), ask: Duration::from_secs(30) }
    }
}

/// The engine's description of a container.
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
    /// Whether it has been started at least once.
    pub was_started: bool,
    /// Why it could not be started; empty for no error.
    pub error: String,
    /// Exit status of its last run.
    pub exit_code: i32,
    /// Whether the engine noticed an OOM kill.
    pub oom_killed: bool,
    /// Its first process on the host; 0 while it does not run.
    pub pid: i32,
    /// The signal by which it is stopped; `None` for one whose name is not known here.
    pub stop_signal: Option<Signal>,
    /// When it was started last.
    pub started_at: Option<SystemTime>,
    /// When it ended last.
    pub finished_at: Option<SystemTime>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Name and addresses (v4, v6) of each network that it is in.
    pub networks: Vec<(String, String, String)>,
    /// The path of its network namespace.
    pub sandbox: String,
    /// Id of its image.
    pub image: String,
    /// Bytes of memory that are reserved for it; 0 or less is none.
    pub memory_reservation: i64,
}

/// An entry of the engine's list of containers.
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

/// The engine's description of itself.
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

/// A Docker Engine. Cheap to clone; each call makes a connection.
#[derive(Debug, Clone)]
pub struct Engine {
    connector: Arc<Connector>,
    deadlines: Deadlines,
}

impl Engine {
    /// A client for an engine; does not connect yet.
    ///
    /// # Errors
    /// The certificates are not usable.
    pub fn new(endpoint: &Endpoint, deadlines: Deadlines) -> Result<Engine, EngineError> {
        let connector = Arc::new(Connector::new(endpoint)?);
        Ok(Engine { connector, deadlines })
    }

    /// Negotiates the API version again, as an engine that was replaced may have another.
    pub fn renegotiate(&self) {
        self.connector.forget_version();
    }

    /// The engine's description of itself.
    ///
    /// # Errors
    /// See [`EngineError`], as for all calls.
    pub async fn info(&self) -> Result<Info, EngineError> {
        let info = self.ask("ask the engine for information", self.deadlines.ask, Ask::get("/info")).await?;
        let runtimes = info.get("Runtimes").and_then(Value::as_object);
        let mut runtimes: Vec<String> = runtimes.into_iter().flatten().map(|(name, _)| name.clone()).collect();
        runtimes.sort();
        Ok(Info {
            version: call::text(&info, "/ServerVersion"),
            os_type: call::text(&info, "/OSType"),
            runtimes,
            cgroup_driver: call::text(&info, "/CgroupDriver"),
            cgroup_version: call::text(&info, "/CgroupVersion"),
        })
    }

    /// The gateway of the default bridge; empty where there is none.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn bridge_gateway(&self) -> Result<String, EngineError> {
        match self.ask("inspect the network bridge", self.deadlines.ask, Ask::get("/networks/bridge")).await {
            Ok(network) => {
                let mut gateways = call::list(&network, "/IPAM/Config").iter().filter_map(|one| one.get("Gateway"));
                Ok(gateways.find_map(Value::as_str).unwrap_or_default().to_owned())
            }
            Err(error) if error.is_not_found() => Ok(String::new()),
            Err(error) => Err(error),
        }
    }

    /// Makes a container and returns its id.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn create(&self, name: &str, body: &models::ContainerCreateBody) -> Result<String, EngineError> {
        const WHAT: &str = "create the container";
        let mut body = json::to_value(body).map_err(|e| EngineError::Endpoint(format!("{WHAT}: {e}")))?;
        // Engines before 25 (API 1.44) read the MAC address here and not in the network's settings; newer ones accept both.
        let networks = body.pointer("/NetworkingConfig/EndpointsConfig").and_then(Value::as_object);
        let mac = networks.into_iter().flatten().find_map(|(_, network)| network.get("MacAddress").cloned());
        if let (Some(mac), Value::Object(body)) = (mac, &mut body) {
            body.insert("MacAddress".to_owned(), mac);
        }
        let ask = Ask::post("/containers/create").with("name", name).json(&body);
        call::id(WHAT, &self.ask(WHAT, self.deadlines.change, ask).await?)
    }

    /// Starts it; one that runs already is not an error.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn start(&self, id: &str) -> Result<(), EngineError> {
        let ask = Ask::post(format!("/containers/{}/start", escaped(id)));
        unless_not_modified(self.ask("start the container", self.deadlines.change, ask).await)
    }

    /// Sends its stop signal, waits up to `grace`, in whole seconds and not less, and kills it; one that has ended is not an error.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn stop(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        let seconds = i32::try_from(grace.as_millis().div_ceil(1000)).unwrap_or(i32::MAX);
        let ask = Ask::post(format!("/containers/{}/stop", escaped(id))).with("t", &seconds.to_string());
        let deadline = grace.saturating_add(self.deadlines.change);
        unless_not_modified(self.ask("stop the container", deadline, ask).await)
    }

    /// Sends a signal (a number) to its first process.
    ///
    /// # Errors
    /// See [`EngineError`]; a conflict when it does not run.
    pub async fn kill(&self, id: &str, signal: i32) -> Result<(), EngineError> {
        let ask = Ask::post(format!("/containers/{}/kill", escaped(id))).with("signal", &signal.to_string());
        self.ask("signal the container", self.deadlines.change, ask).await.map(drop)
    }

    /// Kills and removes it, with its anonymous volumes.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn remove(&self, id: &str) -> Result<(), EngineError> {
        let ask = Ask::delete(format!("/containers/{}", escaped(id))).with("v", "true").with("force", "true");
        self.ask("remove the container", self.deadlines.change, ask).await.map(drop)
    }

    /// Gives a running container the limits in `limits`, members of the engine's host configuration; others stay.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn update(&self, id: &str, limits: &Value) -> Result<(), EngineError> {
        let ask = Ask::post(format!("/containers/{}/update", escaped(id))).json(limits);
        self.ask("change the container's limits", self.deadlines.change, ask).await.map(drop)
    }

    /// The container with this id or name; `None` when there is none.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn inspect(&self, id: &str) -> Result<Option<Container>, EngineError> {
        const WHAT: &str = "inspect the container";
        let ask = Ask::get(format!("/containers/{}/json", escaped(id)));
        match self.ask(WHAT, self.deadlines.ask, ask).await {
            Ok(answer) if answer.is_object() => Ok(Some(container(&answer))),
            Ok(_) => {
                Err(EngineError::Broken { what: WHAT, problem: "the engine's answer is not a container".to_owned() })
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All containers that have the label; stopped ones too when `all`.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn list(&self, label: Option<&str>, all: bool) -> Result<Vec<Listed>, EngineError> {
        const WHAT: &str = "list the containers";
        let mut ask = Ask::get("/containers/json").with("all", if all { "true" } else { "false" });
        if let Some(label) = label {
            ask = ask.with("filters", &json!({ "label": [label] }).to_string());
        }
        match self.ask(WHAT, self.deadlines.ask, ask).await? {
            Value::Array(containers) => Ok(containers.iter().map(listed).collect()),
            _ => Err(EngineError::Broken { what: WHAT, problem: "the engine's answer is not a list".to_owned() }),
        }
    }

    /// Returns when the container does not run, for any reason; repeating the call is up to the caller. No deadline.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn wait(&self, id: &str) -> Result<(), EngineError> {
        const WHAT: &str = "wait for the container";
        let ask = Ask::post(format!("/containers/{}/wait", escaped(id))).with("condition", "not-running");
        match self.ask_forever(WHAT, ask).await? {
            // The engine ended before the container did.
            Value::Null => Err(EngineError::Broken { what: WHAT, problem: "no answer".to_owned() }),
            _ => Ok(()),
        }
    }

    /// Whether the engine has noticed, or notices before `until`, that a process of the container was killed for lack of memory. Both
    /// times are of the engine's clock. It may notice this after the end of the container.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub async fn notices_oom(&self, id: &str, since: SystemTime, until: SystemTime) -> Result<bool, EngineError> {
        const WHAT: &str = "ask for the events of the container";
        let at = |time: SystemTime| {
            let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
        };
        let filters = json!({ "container": [id], "event": ["oom"] });
        let ask = Ask::get("/events")
            .with("since", &at(since))
            .with("until", &at(until))
            .with("filters", &filters.to_string());
        let mut events = self.ask_for_lines(WHAT, ask);
        let after = self.deadlines.ask;
        match tokio::time::timeout(after, events.next()).await {
            Ok(event) => event.transpose().map(|event| event.is_some()),
            Err(_) => Err(EngineError::Timeout { what: WHAT, after }),
        }
    }
}

fn unless_not_modified(result: Result<Value, EngineError>) -> Result<(), EngineError> {
    match result {
        Err(error) if error.status() == Some(304) => Ok(()),
        other => other.map(drop),
    }
}

/// Go's zero time is "never".
fn time(answer: &Value, pointer: &str) -> Option<SystemTime> {
    let text = answer.pointer(pointer).and_then(Value::as_str).filter(|text| !text.starts_with("0001-"))?;
    humantime::parse_rfc3339(text).ok()
}

fn labels(answer: &Value, pointer: &str) -> BTreeMap<String, String> {
    let labels = answer.pointer(pointer).and_then(Value::as_object);
    labels.into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).into_map()
}

/// Reads a name or a number; without any, containers are stopped by SIGTERM.
fn stop_signal(text: &str) -> Option<Signal> {
    match (text, text.parse()) {
        ("", _) => Some(Signal::TERM),
        (_, Ok(number)) => Signal::from_number(number),
        (name, Err(_)) => Signal::from_name(name),
    }
}

fn container(answer: &Value) -> Container {
    let networks = answer.pointer("/NetworkSettings/Networks").and_then(Value::as_object);
    let network = |(name, at): (&String, &Value)| {
        (name.clone(), call::text(at, "/IPAddress"), call::text(at, "/GlobalIPv6Address"))
    };
    let mut networks: Vec<(String, String, String)> = networks.into_iter().flatten().map(network).collect();
    networks.order_by(Ord::cmp);
    let started_at = time(answer, "/State/StartedAt");
    Container {
        id: call::text(answer, "/Id"),
        name: call::text(answer, "/Name").trim_start_matches('/').to_owned(),
        labels: labels(answer, "/Config/Labels"),
        running: call::flag(answer, "/State/Running") || call::flag(answer, "/State/Restarting"),
        was_started: started_at.is_some(),
        error: call::text(answer, "/State/Error"),
        exit_code: call::number(answer, "/State/ExitCode").unwrap_or(-1),
        oom_killed: call::flag(answer, "/State/OOMKilled"),
        pid: call::number(answer, "/State/Pid").unwrap_or(0),
        stop_signal: stop_signal(&call::text(answer, "/Config/StopSignal")),
        started_at,
        finished_at: time(answer, "/State/FinishedAt"),
        tty: call::flag(answer, "/Config/Tty"),
        networks,
        sandbox: call::text(answer, "/NetworkSettings/SandboxKey"),
        image: call::text(answer, "/Image"),
        memory_reservation: call::number(answer, "/HostConfig/MemoryReservation").unwrap_or(0),
    }
}

fn listed(summary: &Value) -> Listed {
    let names = call::list(summary, "/Names").iter().filter_map(Value::as_str);
    let mounts = call::list(summary, "/Mounts").iter();
    Listed {
        id: call::text(summary, "/Id"),
        names: names.map(|name| name.trim_start_matches('/').to_owned()).collect(),
        labels: labels(summary, "/Labels"),
        created: call::number(summary, "/Created").unwrap_or(0),
        state: call::text(summary, "/State"),
        mounts: mounts.map(|mount| (call::text(mount, "/Source"), call::text(mount, "/Destination"))).collect(),
    }
}
