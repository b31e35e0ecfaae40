//! The agent itself: what it is, whether it works, what it says.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;
use tracing::Level;

use super::Call;
use super::answer::{Answer, Refusal};
use super::{Api, LogLine, files};
use crate::agent::model::ClientStatus;
use crate::http::stream::stream;
use crate::spec::json::json;
use crate::sys::lock::lock;

/// The address reported for the single server. Nothing listens there, because there is no second server to talk to.
pub(super) const SERVER: &str = "127.0.0.1:4647";
/// Interval of heartbeats on a monitor stream.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The agent as the only member of a cluster. Tags are strings; from `port` the command line recognises the leader.
fn member(api: &Api) -> Value {
    json!({
        "Name": format!("{}.{}", api.about.name, api.about.region),
        "Addr": "127.0.0.1",
        "Port": 4648,
        "Tags": {
            "role": "nomad", "region": api.about.region, "dc": api.about.datacenter, "build": api.about.nomad_version, "port": "4647",
            "vsn": "1", "raft_vsn": "3", "id": server_id(api), "rpc_addr": "127.0.0.1", "bootstrap": "1", "expect": "1", "revision": "",
        },
        "Status": "alive",
        "ProtocolMin": 1, "ProtocolMax": 5, "ProtocolCur": 2, "DelegateMin": 2, "DelegateMax": 5, "DelegateCur": 4,
    })
}

/// The same id at each start.
pub(super) fn server_id(api: &Api) -> String {
    let name = format!("server {}", api.about.data_dir.display());
    uuid::Uuid::new_v5(&uuid::Uuid::NAMESPACE_OID, name.as_bytes()).to_string()
}

pub(super) async fn own(call: Call) -> Result<Answer, Refusal> {
    let api = &call.api;
    let (node, running) = {
        let view = api.state.read()?;
        let mut running = 0;
        for alloc in view.allocs("") {
            running += u64::from(alloc?.client_status == ClientStatus::Running);
        }
        (view.node()?, running)
    };
    let about = &api.about;
    let mut config: Map<String, Value> = about.config.as_object().cloned().unwrap_or_default();
    let over = json!({
        "Name": about.name,
        "Region": about.region,
        "Datacenter": about.datacenter,
        "DataDir": about.data_dir,
        "NodeName": about.name,
        "Server": {"Enabled": true, "BootstrapExpect": 1, "DataDir": about.data_dir.join("server")},
        "Version": {
            "Version": about.nomad_version, "VersionPrerelease": "", "VersionMetadata": "agentbin", "Revision": about.version, "BuildDate": "0001-01-01T00:00:00Z",
        },
        // Otherwise each command prints a link to web pages that do not exist here.
        "UI": {"Enabled": false, "ShowCLIHints": false},
        "ACL": {"Enabled": false},
    });
    super::shape::lay(&mut config, over);
    if let Some(node) = &node {
        let client = json!({
            "Enabled": true, "AllocDir": about.data_dir.join("alloc"), "NodeClass": node.node_class, "NodePool": node.node_pool,
            "Meta": node.static_meta, "MinDynamicPort": node.resources.min_dynamic_port,
            "MaxDynamicPort": node.resources.max_dynamic_port, "NomadServiceDiscovery": true,
        });
        config.insert("Client".to_owned(), client);
    }
    let started = about.started.elapsed().unwrap_or_default();
    let stats = json!({
        "client": {
            "node_id": node.map(|node| node.id).unwrap_or_default(),
            "known_servers": SERVER,
            "num_allocations": running.to_string(),
            "last_heartbeat": "0s",
            "heartbeat_ttl": "0s",
        },
        "nomad": {"server": "true", "leader": "true", "leader_addr": SERVER, "bootstrap": "true", "known_regions": "1"},
        "raft": {"last_log_index": api.state.index().to_string(), "state": "Leader"},
        "runtime": {
            "arch": std::env::consts::ARCH, "kernel.name": std::env::consts::OS, "version": about.version, "uptime": format!("{}s", started.as_secs()),
        },
        "serf": {"members": "1", "health_score": "0"},
        "vault": {},
    });
    Ok(Answer::of(json!({"config": config, "member": member(api), "stats": stats})))
}

pub(super) async fn members(call: Call) -> Result<Answer, Refusal> {
    let about = &call.api.about;
    Ok(Answer::of(json!({
        "ServerName": about.name, "ServerRegion": about.region, "ServerDC": about.datacenter, "Members": [member(&call.api)],
    })))
}

pub(super) async fn servers(_: Call) -> Result<Answer, Refusal> {
    Ok(Answer::of(json!([SERVER])))
}

pub(super) async fn leader(_: Call) -> Result<Answer, Refusal> {
    Ok(Answer::of(json!(SERVER)))
}

pub(super) async fn regions(call: Call) -> Result<Answer, Refusal> {
    Ok(Answer::of(json!([call.api.about.region])))
}

/// Healthy when the state can be read.
pub(super) async fn health(call: Call) -> Result<Answer, Refusal> {
    call.api.state.read()?.index()?;
    let ok = json!({"ok": true, "message": "ok"});
    let wants = |kind: &str| call.query.text("type").is_none_or(|wanted| wanted == kind);
    let mut value = Map::new();
    for kind in ["client", "server"] {
        if wants(kind) {
            value.insert(kind.to_owned(), ok.clone());
        }
    }
    Ok(Answer::of(value.into()))
}

/// The machine, for a debug report. Without the environment, which may contain secrets.
pub(super) async fn host(call: Call) -> Result<Answer, Refusal> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let name = read("/proc/sys/kernel/hostname");
    let value = json!({
        "AgentID": server_id(&call.api),
        "HostData": {
            "OS": read("/proc/sys/kernel/osrelease"),
            "Network": [],
            "ResolvConf": read("/etc/resolv.conf"),
            "Hosts": read("/etc/hosts"),
            "Environment": {"HOSTNAME": name},
            "Disk": {},
        },
    });
    Ok(Answer::of(value))
}

/// The levels of those who follow the log.
static FOLLOWED: Mutex<Vec<Level>> = Mutex::new(Vec::new());

/// The most verbose level of those who follow the log: such lines are needed although the agent itself does not write them.
pub(crate) fn followed_level() -> Option<Level> {
    lock(&FOLLOWED).iter().max().copied()
}

/// Somebody follows the log at this level.
struct Follower(Level);

impl Follower {
    fn begin(level: Level) -> Follower {
        lock(&FOLLOWED).push(level);
        // What was not enabled before is asked again.
        tracing::callsite::rebuild_interest_cache();
        Follower(level)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut all = lock(&FOLLOWED);
        if let Some(at) = all.iter().position(|level| *level == self.0) {
            all.swap_remove(at);
        }
        drop(all);
        tracing::callsite::rebuild_interest_cache();
    }
}

/// The agent's log from now on: frames, or lines where `plain` says so.
pub(super) async fn monitor(call: Call) -> Result<Answer, Refusal> {
    let wanted = call.query.text("log_level").unwrap_or("info").to_ascii_lowercase();
    let level = match wanted.as_str() {
        "trace" => Level::TRACE,
        "debug" => Level::DEBUG,
        "info" => Level::INFO,
        "warn" => Level::WARN,
        "error" => Level::ERROR,
        _ => return Err(Refusal::bad(format!("Unknown log level: {wanted}"))),
    };
    let (json_lines, plain) = (call.switch("log_json")?, call.switch("plain")?);
    let (mut lines, process) = (call.api.log.subscribe(), call.api.process.clone());
    let follower = Follower::begin(level);
    let body = stream(move |out| async move {
        let _follower = follower;
        // Also while there are lines, of which none is of that level.
        let mut heartbeat = tokio::time::interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        loop {
            let next = tokio::select! {
                biased;
                next = lines.recv() => Some(next),
                () = process.clone().ends() => Some(Err(RecvError::Closed)),
                _ = heartbeat.tick() => None,
            };
            let text = match next {
                None if plain => continue,
                None => {
                    if out.send("{}").await.is_err() {
                        return;
                    }
                    continue;
                }
                Some(Ok(line)) if line.level <= level => shown(&line, json_lines),
                Some(Ok(_)) => continue,
                Some(Err(RecvError::Lagged(lost))) => {
                    format!("[WARN] monitor: {lost} lines were dropped: the reader was too slow\n")
                }
                Some(Err(RecvError::Closed)) => return,
            };
            let piece =
                if plain { text.into_bytes() } else { json!({"Data": STANDARD.encode(text)}).to_string().into_bytes() };
            if out.send(piece).await.is_err() {
                return;
            }
        }
    });
    Ok(files::raw(if plain { "text/plain" } else { "application/json" }, body))
}

fn shown(line: &LogLine, as_json: bool) -> String {
    if !as_json {
        return line.text.to_string();
    }
    let now = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    let level = line.level.as_str().to_ascii_lowercase();
    format!("{}\n", json!({"@level": level, "@message": line.text.trim_end(), "@timestamp": now}))
}
