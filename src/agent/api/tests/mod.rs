//! The API as a client sees it: over sockets, with a real state and commands, and an engine that runs nothing.

mod conventions;
mod docs;
mod hostile;
mod live;
mod security;
mod shapes;
mod volumes;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{Semaphore, broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;

use super::{About, Allowed, Api, Process, Security, Upgrade};
use crate::agent::engine::{CheckState, Described, Engine, OrderError, Wanted};
use crate::agent::fake::FakeEngine;
use crate::agent::model::{Nanos, Role, Secret, Token};
use crate::agent::state::State;
use crate::agent::{Agent, Working};
use crate::executor::{ExecRequests, ExecResponses};
use crate::http::listener::Listener;
use crate::http::serve::{Limits, serve};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{Job, Signal, TaskStats};
use crate::wire::drivers::{ExecTaskStreamingIoOperation, ExecTaskStreamingResponse, ExitResult};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// The fake, with directories, and with sessions that shout.
struct Wired {
    fake: Arc<FakeEngine>,
    dir: PathBuf,
}

#[tonic::async_trait]
impl Engine for Wired {
    async fn start(&self, wanted: Wanted) {
        self.fake.start(wanted).await;
    }
    fn runs(&self, id: &str) -> bool {
        self.fake.runs(id)
    }
    async fn stop(&self, id: &str, no_shutdown_delay: bool) {
        self.fake.stop(id, no_shutdown_delay).await;
    }
    async fn restart(&self, id: &str, task: Option<&str>, all: bool) -> Result<(), OrderError> {
        self.fake.restart(id, task, all).await
    }
    async fn signal(&self, id: &str, task: Option<&str>, signal: Signal) -> Result<(), OrderError> {
        self.fake.signal(id, task, signal).await
    }
    async fn exec(&self, _: &str, _: &str, mut requests: ExecRequests) -> Result<ExecResponses, OrderError> {
        let (answers, heard) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            let mut input = Vec::new();
            let setup = requests.next().await.and_then(Result::ok).and_then(|first| first.setup);
            if setup.is_some_and(|setup| setup.command == ["stall"]) {
                // The session's other end is all that ends it.
                return answers.closed().await;
            }
            while let Some(Ok(request)) = requests.next().await {
                let Some(stdin) = request.stdin else { continue };
                input.extend_from_slice(&stdin.data);
                if stdin.close {
                    break;
                }
            }
            let stdout = ExecTaskStreamingIoOperation { data: input.to_ascii_uppercase(), close: true };
            let out = ExecTaskStreamingResponse { stdout: Some(stdout), ..ExecTaskStreamingResponse::default() };
            let result = Some(ExitResult { exit_code: 3, ..ExitResult::default() });
            let end = ExecTaskStreamingResponse { exited: true, result, ..ExecTaskStreamingResponse::default() };
            for answer in [out, end] {
                let _ = answers.send(Ok(answer)).await;
            }
        });
        Ok(Box::pin(tokio_stream::wrappers::ReceiverStream::new(heard)))
    }
    async fn stats(&self, id: &str, task: Option<&str>) -> Result<Vec<(String, TaskStats)>, OrderError> {
        self.fake.stats(id, task).await
    }
    fn checks(&self, id: &str) -> Option<BTreeMap<String, CheckState>> {
        self.fake.checks(id)
    }
    fn checks_pass_since(&self, id: &str) -> Option<crate::agent::model::Nanos> {
        self.fake.checks_pass_since(id)
    }
    fn service_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.fake.service_changes()
    }
    fn services(&self) -> Vec<crate::agent::model::ServiceRegistration> {
        self.fake.services()
    }
    fn has_announced(&self, id: &str) -> bool {
        self.fake.has_announced(id)
    }
    fn port_holder(&self, port: u16) -> Option<String> {
        self.fake.port_holder(port)
    }
    fn validate(&self, job: &Job) -> Vec<String> {
        self.fake.validate(job)
    }
    async fn describe(&self, patience: Option<Duration>) -> Described {
        self.fake.describe(patience).await
    }
    fn csi_plugins(&self) -> Arc<crate::csi::Plugins> {
        self.fake.csi_plugins()
    }
    fn volume_plugins(&self) -> Arc<crate::alloc::VolumePlugins> {
        self.fake.volume_plugins()
    }
    fn alloc_dir(&self, _: &str) -> Option<PathBuf> {
        Some(self.dir.clone())
    }
    async fn destroy(&self, id: &str) {
        self.fake.destroy(id).await;
    }
}

/// An agent that listens on a unix socket and on TCP.
struct World {
    dir: tempfile::TempDir,
    fake: Arc<FakeEngine>,
    agent: Agent,
    tcp: std::net::SocketAddr,
    stop: watch::Sender<bool>,
    replaced: mpsc::Receiver<Upgrade>,
    _serving: JoinSet<()>,
    _working: Working,
}

impl World {
    async fn new() -> World {
        World::with(Limits::default()).await
    }

    async fn with(limits: Limits) -> World {
        let dir = tempfile::tempdir().unwrap();
        let (fake, reports) = FakeEngine::new();
        let allocs = dir.path().join("alloc");
        std::fs::create_dir(&allocs).unwrap();
        let engine: Arc<dyn Engine> = Arc::new(Wired { fake: Arc::clone(&fake), dir: allocs });
        let state = State::open(&dir.path().join("server")).unwrap();
        let (agent, working) = Agent::start(state, engine, reports).await.unwrap();
        let about = About {
            name: "here".to_owned(),
            region: "global".to_owned(),
            datacenter: "dc1".to_owned(),
            nomad_version: "1.11.3".to_owned(),
            version: "0.0.0".to_owned(),
            data_dir: dir.path().to_owned(),
            config: json!({}),
            started: SystemTime::now(),
        };
        let security = Security {
            own_uid: own_uid(),
            socket_role: Role::Submit,
            submit: Allowed::default(),
            names: BTreeSet::new(),
        };
        let (log, _) = broadcast::channel(16);
        let (stop, stopped) = watch::channel(false);
        let (replacing, replaced) = mpsc::channel(1);
        let sessions = Arc::new(Semaphore::new(Process::SESSIONS));
        let process = Process { ending: stopped.clone(), sessions, replacing };
        let handler = Api::new(agent.clone(), about, security, log, process);
        let unix = Listener::unix(&dir.path().join("sock"), None).unwrap();
        let tcp = Listener::tcp("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let address = tcp.address().unwrap();
        let mut serving = JoinSet::new();
        for listener in [unix, tcp] {
            serving.spawn(serve(listener, Arc::clone(&handler), limits, stopped.clone()));
        }
        World { dir, fake, agent, tcp: address, stop, replaced, _serving: serving, _working: working }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    /// Asks over the unix socket.
    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let stream = UnixStream::connect(self.socket()).await.unwrap();
        let body = body.map(Value::to_string).unwrap_or_default();
        exchange(stream, &request(method, path, &[], &body)).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, None).await
    }

    /// An answer that has to be JSON with status 200.
    async fn json(&self, path: &str) -> Value {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    async fn put(&self, path: &str, body: Value) -> Value {
        let answer = self.ask("PUT", path, Some(&body)).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// Asks over TCP with these headers.
    async fn over_tcp(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let stream = TcpStream::connect(self.tcp).await.unwrap();
        exchange(stream, &request(method, path, headers, body)).await
    }

    /// Waits until a job's deployment has been successful.
    async fn deployed(&self, id: &str) {
        let path = format!("/v1/job/{id}/deployment");
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.get(&path).await;
            if answer.json()["Status"] == "successful" {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{}", answer.text());
            let index = &answer.headers["x-nomad-index"];
            self.get(&format!("{path}?index={index}&wait=2s")).await;
        }
    }

    /// A token's secret.
    async fn token(&self, role: Role) -> String {
        let secret = crate::sys::random::uuid().to_string();
        let token = Token {
            accessor_id: crate::sys::random::uuid().to_string(),
            name: role.as_str().to_owned(),
            role,
            create_time: Nanos(1),
            expiration_time: Nanos(0),
            create_index: 0,
            modify_index: 0,
        };
        let known = Secret::new(secret.clone());
        self.agent.state.change(move |change| change.put_token(token, Some(&known))).await.unwrap();
        secret
    }

    /// Registers a job and waits until its allocations run.
    async fn run(&self, id: &str) -> Vec<Value> {
        self.put("/v1/jobs", json!({"Job": job(id)})).await;
        let path = format!("/v1/job/{}/allocations", id.replace('/', "%2F"));
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let answer = self.get(&path).await;
            let allocs = answer.json();
            let allocs = allocs.as_array().unwrap();
            if !allocs.is_empty() && allocs.iter().all(|alloc| alloc["ClientStatus"] == "running") {
                return allocs.clone();
            }
            assert!(tokio::time::Instant::now() < deadline, "{allocs:?}");
            let index = &answer.headers["x-nomad-index"];
            // Returns as soon as one of them changes.
            self.get(&format!("{path}?index={index}&wait=2s")).await;
        }
    }
}

fn own_uid() -> u32 {
    rustix::process::getuid().as_raw()
}

fn job(id: &str) -> Value {
    json!({
        "ID": id, "Name": id, "Type": "service", "Meta": {"k": "v"},
        "TaskGroups": [{
            "Name": "g", "Count": 1,
            "Update": {
                "MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 1_000_000, "HealthyDeadline": 30_000_000_000_i64,
                "ProgressDeadline": 60_000_000_000_i64,
            },
            "Networks": [{"DynamicPorts": [{"Label": "http"}]}],
            "Tasks": [{"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}, "Resources": {"CPU": 50, "MemoryMB": 32}}],
        }],
    })
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> String {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("Host: 127.0.0.1\r\n");
    }
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    text.push_str("\r\n");
    text.push_str(body);
    text
}

/// What came back.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }
}

async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, request: &str) -> Answer {
    // A server that refuses early may close before all is written.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut all = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all)).await.expect("the answer did not end");
    let end = all.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| panic!("no answer: {read:?}"));
    let head = String::from_utf8_lossy(&all[..end]).into_owned();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> =
        lines.filter_map(|l| l.split_once(": ")).map(|(k, v)| (k.to_ascii_lowercase(), v.to_owned())).collect();
    let mut body = all.split_off(end + 4);
    if headers.get("transfer-encoding").is_some_and(|v| v == "chunked") {
        body = unchunked(&body);
    }
    Answer { status, headers, body }
}

fn unchunked(mut body: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = body.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&body[..end]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        all.extend_from_slice(&body[end + 2..end + 2 + size]);
        body = &body[end + 4 + size..];
    }
    all
}

/// A path of a route with something in each of its places.
fn filled(pattern: &str) -> String {
    let place = |part: &str| {
        if part.starts_with('{') { "11111111-2222-3333-4444-555555555555".to_owned() } else { part.to_owned() }
    };
    pattern.split('/').map(place).collect::<Vec<_>>().join("/")
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
