//! The server side: a run or the agent answers requests of its own user and of root.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use prost::Message as _;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::wire::{self, Answer, Kind, ProcessUse, Request, RunView, StatsView, timestamp};
use super::{Control, OrderError};
use crate::alloc::Stop;
use crate::alloc::chain::chain;
use crate::alloc::sockets::CONTROL;
use crate::spec::json;
use crate::spec::json::json;
use crate::spec::{AllocId, IntoMap as _, Signal, TaskStats, Usage};
use crate::sys::lock::lock;
use crate::sys::task::boxed;
use crate::wire::drivers::{ExecTaskStreamingRequest, exec_task_streaming_request};

/// How many connections are served at once; further ones wait.
const CONNECTIONS: usize = 256;
/// How long a request may take to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a run's status, without the few of the frame.
const MOST_TOLD: usize = wire::LONGEST as usize - 1024;
/// Messages of a session that may wait.
const QUEUE: usize = 16;

/// Why a run cannot be controlled.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the control socket {}", path.display())]
pub struct ServeError {
    /// The socket.
    path: PathBuf,
    source: io::Error,
}

/// The allocations that a run or the agent supervises, for requests.
#[derive(Debug)]
pub struct Served {
    job: String,
    data_dir: PathBuf,
    detached: bool,
    began: SystemTime,
    allocs: Mutex<Vec<Arc<Control>>>,
    /// `None` for the agent, whose allocations stop when its scheduler says so.
    stop: Option<watch::Sender<Stop>>,
}

impl Served {
    /// A run without allocations yet, which began at that time; `stop` stops all of it.
    #[must_use]
    pub fn new(
        job: &str,
        data_dir: &Path,
        detached: bool,
        began: SystemTime,
        stop: watch::Sender<Stop>,
    ) -> Arc<Served> {
        let (job, data_dir) = (job.to_owned(), data_dir.to_owned());
        Arc::new(Served { job, data_dir, detached, began, allocs: Mutex::default(), stop: Some(stop) })
    }

    /// The agent, without allocations yet. It refuses to stop allocations, which would be replaced at once.
    #[must_use]
    pub fn by_agent(data_dir: &Path) -> Arc<Served> {
        let (job, data_dir, began) = (String::new(), data_dir.to_owned(), SystemTime::now());
        Arc::new(Served { job, data_dir, detached: true, began, allocs: Mutex::default(), stop: None })
    }

    /// Adds an allocation to the run.
    pub fn add(&self, alloc: Arc<Control>) {
        lock(&self.allocs).push(alloc);
    }

    /// Removes an allocation from the run.
    pub fn remove(&self, id: &AllocId) {
        lock(&self.allocs).retain(|alloc| alloc.id() != id);
    }

    /// Its allocations.
    #[must_use]
    pub fn allocs(&self) -> Vec<Arc<Control>> {
        lock(&self.allocs).clone()
    }

    /// The status of the run.
    #[must_use]
    pub fn view(&self) -> RunView {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        // The agent keeps what has ended until it is collected.
        let supervisor = |control: &Control| Some(pid).filter(|_| self.stop.is_some() || !control.has_ended());
        let alloc = |control: Arc<Control>| wire::AllocView { run: supervisor(&control), ..control.view() };
        RunView {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid,
            job: self.job.clone(),
            data_dir: self.data_dir.clone(),
            detached: self.detached,
            agent: self.stop.is_none(),
            began_at: timestamp(self.began),
            allocs: self.allocs().into_iter().map(alloc).collect(),
        }
    }

    /// The status as far as it fits into one answer: with very many tasks, without their events and the output of their checks.
    fn told(&self) -> RunView {
        let mut view = self.view();
        if json::to_vec(&view).is_ok_and(|bytes| bytes.len() > MOST_TOLD) {
            view.allocs.iter_mut().flat_map(|alloc| &mut alloc.tasks).for_each(|task| task.events.clear());
            let checks = view.allocs.iter_mut().flat_map(|alloc| &mut alloc.services).flat_map(|s| &mut s.checks);
            checks.for_each(|check| check.output.clear());
        }
        view
    }

    fn find(&self, id: &str) -> Result<Arc<Control>, String> {
        let found = self.allocs().into_iter().find(|alloc| alloc.id().as_str() == id);
        found.ok_or_else(|| format!("this run has no allocation {id}"))
    }
}

/// Listens in the directory `sockets`, which only this user may use and which is removed with its owner, as long as the runtime
/// lives: so the end of a connection means that the run's process has nothing left to do.
///
/// # Errors
/// What the file system says.
pub fn serve(sockets: &Path, served: &Arc<Served>) -> Result<(), ServeError> {
    let path = sockets.join(CONTROL);
    let listen = || {
        // A socket of a supervisor that was killed; we hold its lock.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    };
    let listener = listen().map_err(|source| ServeError { path: path.clone(), source })?;
    let served = Arc::clone(served);
    crate::sys::task::spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                    Ok((stream, _)) => _ = connections.spawn(boxed(answer(stream, Arc::clone(&served)))),
                    // Most likely out of descriptors; the client waits in the backlog until one is free again.
                    Err(error) => {
                        tracing::debug!(%error, "control socket");
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    });
    Ok(())
}

/// Whether a user may control the run: the directory keeps others out, and this check does too, should the directory ever be
/// opened.
pub(super) fn may_order(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user == 0
}

async fn answer(mut stream: UnixStream, served: Arc<Served>) {
    if let Err(error) = attend(&mut stream, &served).await {
        tracing::debug!(%error, "control connection");
    }
}

async fn attend(stream: &mut UnixStream, served: &Served) -> io::Result<()> {
    if !may_order(stream.peer_cred()?.uid()) {
        return say(stream, &Answer::Error("another user's runs take no orders from you".to_owned())).await;
    }
    let request = tokio::time::timeout(REQUEST_TIMEOUT, wire::read(stream, wire::LONGEST_REQUEST)).await??;
    let Some((Kind::Json, request)) = request else { return Ok(()) };
    let request: Request = match json::from_slice(&request) {
        Ok(request) => request,
        Err(error) => return say(stream, &Answer::Error(format!("the run does not understand this: {error}"))).await,
    };
    if let Request::Exec { alloc, task } = &request {
        return match served.find(alloc) {
            Ok(control) => session(stream, &control, task.as_deref()).await,
            Err(error) => say(stream, &Answer::Error(error)).await,
        };
    }
    let stops_run = matches!(request, Request::Stop { alloc: None, .. });
    let done = {
        let (mut reader, _) = stream.split();
        // A client that has disconnected needs no answer.
        tokio::select! {
            biased;
            done = perform(served, request) => done,
            _ = reader.read_u8() => return Ok(()),
        }
    };
    say(stream, &done.map_or_else(Answer::Error, Answer::Ok)).await?;
    if stops_run {
        // The connection ends when this process exits, or when the client disconnects.
        let _ = stream.read_u8().await;
    }
    Ok(())
}

async fn say(stream: &mut UnixStream, answer: &Answer) -> io::Result<()> {
    let mut bytes = json::to_vec(answer)?;
    if bytes.len() > wire::LONGEST as usize {
        bytes = json::to_vec(&Answer::Error("what this run has to say is too long for one answer".to_owned()))?;
    }
    wire::write(stream, Kind::Json, &bytes).await
}

async fn perform(served: &Served, request: Request) -> Result<serde_json::Value, String> {
    let told = |error: OrderError| chain(&error);
    let value = |value: serde_json::Result<serde_json::Value>| value.map_err(|e| e.to_string());
    match request {
        Request::Status => value(json::to_value(&served.told())),
        Request::Stop { alloc, now } => {
            let Some(run) = &served.stop else {
                return Err("the agent stops allocations with their job: agentbin job stop JOB".to_owned());
            };
            let urgency = if now { Stop::Now } else { Stop::Gracefully };
            if let Some(id) = alloc {
                let control = served.find(&id)?;
                control.stop(urgency);
                control.gone().await;
            } else {
                run.send_modify(|stop| *stop = urgency.max(*stop));
            }
            Ok(json!({}))
        }
        Request::Restart { alloc, task } => {
            Ok(json!(served.find(&alloc)?.restart(task.as_deref()).await.map_err(told)?))
        }
        Request::Signal { alloc, task, signal } => {
            let signal = Signal::from_number(signal).ok_or_else(|| format!("there is no signal {signal}"))?;
            Ok(json!(served.find(&alloc)?.signal(task.as_deref(), signal).await.map_err(told)?))
        }
        Request::Update { alloc, task, limits } => {
            Ok(json!(served.find(&alloc)?.limit(task.as_deref(), &limits).await.map_err(told)?))
        }
        Request::Stats { alloc, task } => {
            let samples = served.find(&alloc)?.stats(task.as_deref()).await.map_err(told)?;
            let views: Vec<StatsView> = samples.iter().map(|(task, sample)| stats(&alloc, task, sample)).collect();
            value(json::to_value(&views))
        }
        Request::Exec { .. } => Err("a session has a connection of its own".to_owned()),
    }
}

fn stats(alloc: &str, task: &str, sample: &TaskStats) -> StatsView {
    let of = |Usage { cpu, memory }: &Usage| ProcessUse {
        cpu_percent: cpu.percent,
        cpu_mhz: cpu.total_ticks,
        memory_rss: memory.rss,
        memory_usage: memory.usage,
        memory_max_usage: memory.max_usage,
        swap: memory.swap,
        throttled_periods: cpu.throttled_periods,
    };
    StatsView {
        alloc_id: alloc.to_owned(),
        task: task.to_owned(),
        time: timestamp(sample.time),
        total: of(&sample.total),
        by_pid: sample.by_pid.iter().map(|(pid, usage)| (*pid, of(usage))).into_map(),
        memory_limit: sample.total.memory.limit,
    }
}

/// Forwards the messages of a session in both directions. It ends when either side ends: the command of a client that has
/// disconnected is killed.
async fn session(stream: &mut UnixStream, control: &Control, task: Option<&str>) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let (sender, receiver) = mpsc::channel::<Result<ExecTaskStreamingRequest, tonic::Status>>(QUEUE);
    let input = async {
        loop {
            let Some((Kind::Exec, bytes)) = wire::read(&mut reader, wire::LONGEST_REQUEST).await? else {
                return io::Result::Ok(());
            };
            let request = ExecTaskStreamingRequest::decode(&bytes[..]).map_err(io::Error::other)?;
            if sender.send(Ok(request)).await.is_err() {
                // The session has ended and accepts no more input; its last answers are still being sent.
                std::future::pending::<()>().await;
            }
        }
    };
    let output = async {
        let mut responses = match control.exec(task, Box::pin(ReceiverStream::new(receiver))).await {
            Ok(responses) => responses,
            Err(error) => {
                let answer = json::to_vec(&Answer::Error(chain(&error)))?;
                return wire::write(&mut writer, Kind::Json, &answer).await;
            }
        };
        while let Some(response) = responses.next().await {
            match response {
                Ok(response) => wire::write(&mut writer, Kind::Exec, &response.encode_to_vec()).await?,
                Err(status) => {
                    let answer = json::to_vec(&Answer::Error(status.message().to_owned()))?;
                    return wire::write(&mut writer, Kind::Json, &answer).await;
                }
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = input => ended,
        ended = output => ended,
    }
}

/// The first message of a session.
pub(super) fn setup(command: Vec<String>, tty: bool) -> ExecTaskStreamingRequest {
    let setup = exec_task_streaming_request::Setup { task_id: String::new(), command, tty };
    ExecTaskStreamingRequest { setup: Some(setup), ..ExecTaskStreamingRequest::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::control::{Names, Told};
    use crate::alloc::state::State;
    use crate::spec::{EventKind, TaskEvent};

    #[test]
    fn very_many_tasks_are_told_of_without_their_events() {
        let served = Served::new("job", Path::new("/data"), true, SystemTime::now(), watch::Sender::new(Stop::No));
        let add = |count: usize| {
            let tasks = (0..count).map(|number| Told {
                name: format!("t{number}"),
                driver_name: "fake".to_owned(),
                driver: None,
                is_late: false,
                state: State::default(),
            });
            let names = Names {
                id: crate::spec::AllocId::parse("0f2c1f7e-0000-4000-8000-000000000000").unwrap(),
                name: String::new(),
                namespace: String::new(),
                job: String::new(),
                group: String::new(),
                index: 0,
                dir: PathBuf::new(),
                logs: PathBuf::new(),
            };
            let control = Control::new(names, SystemTime::now(), false, tasks);
            let message = "\u{1}".repeat(2000);
            for number in 0..count {
                for _ in 0..10 {
                    let (kind, time, task) = (EventKind::DriverFailure, SystemTime::now(), format!("t{number}"));
                    control.note(&TaskEvent { kind, time, task, message: message.clone(), details: [].into() });
                }
            }
            served.add(Arc::new(control));
        };
        add(10);
        assert_eq!(served.told(), served.view());
        add(200);
        let told = served.told();
        assert!(told.allocs.len() == 2 && told.allocs[1].tasks.len() == 200, "all of them");
        assert!(serde_json::to_vec(&told).unwrap().len() < wire::LONGEST as usize);
    }
}
