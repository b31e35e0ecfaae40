//! A small driver for tests: its tasks have a script instead of a process, and all calls are recorded in one log.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::csi_volumes::CsiVolumes;
use super::node::Node;
use super::owner::Owner;
use super::place::Machine;
use super::ports::PortPool;
use super::process::Orphans;
use super::record::Records;
use super::service_registry::Services;
use super::values::ValuesFile;
use super::volumes::HostVolumes;
use crate::driver::{Driver, DriverError, ExecTaskResult, Fingerprint, TaskConfig, TaskHandle, TaskStatus};
use crate::net::Networks;
use crate::plugin::Reattach;
use crate::spec::collections::BTreeMap;
use crate::spec::{
    DriverConfig, ExitResult, Group, GroupScheduling, Job, JobScheduling, JobType, Lifecycle, LifecycleHook, LogConfig,
    LogKeeping, Pos, ProcessId, RestartMode, RestartPolicy, Signal, Task, TaskResources, TaskStats,
};

pub(crate) fn task(name: &str) -> Task {
    Task {
        name: name.to_owned(),
        driver: "fake".to_owned(),
        config: DriverConfig::default(),
        env: BTreeMap::new(),
        user: String::new(),
        resources: TaskResources { cpu_mhz: 100, cores: 0, memory_mib: 300, memory_max_mib: 0, secrets_mib: 0 },
        network: None,
        logs: LogConfig { max_files: 10, max_file_size_mib: 10, disabled: false, keeping: LogKeeping::default() },
        kill_signal: None,
        kill_timeout: Duration::from_secs(5),
        shutdown_delay: Duration::ZERO,
        restart: RestartPolicy {
            attempts: 0,
            interval: Duration::from_mins(30),
            delay: Duration::from_secs(15),
            mode: RestartMode::Fail,
            render_templates: false,
        },
        lifecycle: None,
        leader: false,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        templates: Vec::new(),
        artifacts: Vec::new(),
        volume_mounts: Vec::new(),
        dispatch_payload: None,
        csi_plugin: None,
        services: Vec::new(),
        pos: Pos { file: "job.hcl".into(), line: 7, column: 3 },
    }
}

pub(crate) fn lifecycle_task(name: &str, hook: LifecycleHook, sidecar: bool) -> Task {
    Task { lifecycle: Some(Lifecycle { hook, sidecar }), ..task(name) }
}

pub(crate) fn job(tasks: Vec<Task>) -> Job {
    Job {
        id: "job".to_owned(),
        name: "job".to_owned(),
        kind: JobType::Batch,
        region: "global".to_owned(),
        namespace: "default".to_owned(),
        priority: 50,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        scheduling: JobScheduling::default(),
        groups: vec![Group {
            name: "group".to_owned(),
            count: 1,
            meta: BTreeMap::new(),
            constraints: Vec::new(),
            shutdown_delay: Duration::ZERO,
            network: None,
            volumes: Vec::new(),
            scheduling: GroupScheduling::of(JobType::Batch),
            services: Vec::new(),
            tasks,
            pos: Pos::default(),
        }],
    }
}

pub(crate) fn node() -> Arc<Node> {
    Arc::new(Node {
        id: "00000000-0000-0000-0000-000000000000".to_owned(),
        name: "here".to_owned(),
        datacenter: "dc1".to_owned(),
        region: "global".to_owned(),
        class: String::new(),
        pool: "default".to_owned(),
        attributes: BTreeMap::from([("kernel.name".to_owned(), "linux".to_owned())]),
        meta: BTreeMap::new(),
        ip: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
    })
}

/// A machine with this driver and without cgroups.
pub(crate) fn machine(path: &Path, driver: &Arc<FakeDriver>, owner: Owner) -> Machine {
    Machine {
        data_dir: path.to_owned(),
        node: node(),
        drivers: BTreeMap::from([("fake".to_owned(), Arc::clone(driver) as Arc<dyn Driver>)]),
        host_env: BTreeMap::new(),
        env_denylist: Vec::new(),
        owner,
        records: Arc::new(Records::new(path)),
        ports: PortPool::default(),
        volumes: HostVolumes::default(),
        csi: CsiVolumes::new(path),
        networks: Networks::new(path.join("run")),
        values: ValuesFile::default(),
        services: Services::default(),
        cgroup: Box::new(|_, _| PathBuf::new()),
        remove_cgroup: Arc::new(|_| Ok(())),
        cpusets: None,
        orphans: Arc::new(Orphans::ignore()),
    }
}

/// What one start of a task does.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Ends by itself.
    Exit(Duration, i32),
    /// Runs until it is stopped, then ends with this status.
    UntilStopped(i32),
    /// Runs until SIGKILL.
    Stubborn,
    /// Runs for ever; its driver cannot stop it.
    Unstoppable,
    /// Does not start.
    NoStart(fn() -> DriverError),
    /// Starts, and its executor is lost.
    Lost(Duration),
    /// Starts, writes this to its stdout, and ends well.
    Print(&'static [u8]),
}

pub(crate) struct FakeDriver {
    scripts: Mutex<BTreeMap<String, VecDeque<Act>>>,
    running: Mutex<BTreeMap<String, Running>>,
    log: Arc<Mutex<Vec<String>>>,
    configs: Mutex<Vec<TaskConfig>>,
    /// It says what it is only while this is set.
    pub(crate) answers: watch::Sender<bool>,
}

struct Running {
    act: Act,
    since: Instant,
    signal: watch::Sender<Option<Signal>>,
}

impl FakeDriver {
    /// Each task performs its acts one after the other, one per start; the last one is repeated.
    pub(crate) fn new(scripts: &[(&str, &[Act])]) -> Arc<FakeDriver> {
        let scripts = scripts.iter().map(|(n, acts)| ((*n).to_owned(), acts.iter().cloned().collect())).collect();
        Arc::new(FakeDriver {
            scripts: Mutex::new(scripts),
            running: Mutex::default(),
            log: Arc::default(),
            configs: Mutex::default(),
            answers: watch::Sender::new(true),
        })
    }

    /// Forgets the running tasks, like a driver whose executors were killed.
    pub(crate) fn lose_all(&self) {
        self.running.lock().unwrap().clear();
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn configs(&self) -> Vec<TaskConfig> {
        self.configs.lock().unwrap().clone()
    }

    fn note(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    fn reaches(&self, id: &str) -> Result<(), DriverError> {
        match self.running.lock().unwrap().get(id) {
            Some(Running { act: Act::Unstoppable, .. }) => {
                Err(DriverError::Failed { message: "no answer".to_owned(), recoverable: true })
            }
            _ => Ok(()),
        }
    }

    fn name_of(id: &str) -> &str {
        id.split('/').nth(1).unwrap_or(id)
    }
}

#[tonic::async_trait]
impl Driver for FakeDriver {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn fingerprint(&self) -> Fingerprint {
        self.answers.subscribe().wait_for(|answers| *answers).await.unwrap();
        Fingerprint::healthy(self.name())
    }

    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        let bad = config.values.keys().find(|k| *k == "bad");
        bad.map_or(Ok(()), |k| Err(DriverError::Config(format!("{}: {k} is not wanted", config.pos))))
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        self.configs.lock().unwrap().push(task.clone());
        let act = {
            let mut scripts = self.scripts.lock().unwrap();
            let script = scripts.get_mut(&task.name).unwrap_or_else(|| panic!("no script for {}", task.name));
            if script.len() > 1 { script.pop_front() } else { script.front().cloned() }.unwrap()
        };
        if let Act::NoStart(error) = act {
            self.note(format!("no start {}", task.name));
            return Err(error());
        }
        self.note(format!("start {}", task.name));
        if let Act::Print(bytes) = act {
            let logs = task.logs.as_ref().unwrap();
            std::fs::write(logs.dir.join(format!("{}.0", logs.stdout_file)), bytes).unwrap();
        }
        let running = Running { act, since: Instant::now(), signal: watch::Sender::new(None) };
        self.running.lock().unwrap().insert(task.id.clone(), running);
        // The id of a process that ended long ago, so that the clean-up of a task never kills the test process.
        let process = ProcessId { pid: i32::MAX, start_ticks: 1, boot_id: String::new() };
        let executor = Some(Reattach { process, socket: PathBuf::new() });
        Ok(TaskHandle { executor, driver_state: task.id.clone().into_bytes(), ..TaskHandle::default() })
    }

    async fn recover_task(&self, task: &TaskConfig, state: &[u8]) -> Result<(), DriverError> {
        assert_eq!(state, task.id.as_bytes(), "it gets what it gave");
        if !self.running.lock().unwrap().contains_key(&task.id) {
            self.note(format!("no trace of {}", task.name));
            return Err(DriverError::Failed { message: "no executor".to_owned(), recoverable: false });
        }
        self.note(format!("recover {}", task.name));
        Ok(())
    }

    async fn inspect_task(&self, _id: &str) -> Result<TaskStatus, DriverError> {
        Err(DriverError::TaskNotFound)
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        let (act, since, mut signal) = {
            let running = self.running.lock().unwrap();
            let running = running.get(id).ok_or(DriverError::TaskNotFound)?;
            (running.act.clone(), running.since, running.signal.subscribe())
        };
        let (mut stubborn, mut lost) = (false, false);
        let own_end = match act {
            Act::Exit(after, code) => Some((after, code)),
            Act::Print(_) => Some((Duration::ZERO, 0)),
            Act::Lost(after) => {
                lost = true;
                Some((after, 0))
            }
            Act::Stubborn => {
                stubborn = true;
                None
            }
            Act::UntilStopped(_) | Act::Unstoppable | Act::NoStart(_) => None,
        };
        let ends = async {
            match own_end {
                Some((after, code)) => {
                    tokio::time::sleep_until(since + after).await;
                    code
                }
                None => std::future::pending().await,
            }
        };
        let wanted = |s: &Option<Signal>| s.is_some_and(|s| !stubborn || s == Signal::KILL);
        let exit = tokio::select! {
            code = ends => ExitResult { exit_code: code, ..ExitResult::default() },
            signal = signal.wait_for(wanted) => match (&act, *signal.unwrap()) {
                (Act::UntilStopped(code), Some(s)) if s != Signal::KILL =>
                    ExitResult { exit_code: *code, ..ExitResult::default() },
                (_, signal) => ExitResult::from_wait(None, signal.map(Signal::number)),
            },
        };
        if lost {
            return Err(DriverError::Failed { message: "executor lost".to_owned(), recoverable: true });
        }
        self.note(format!("exit {} {}", FakeDriver::name_of(id), exit.exit_code));
        Ok(exit)
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        let signal = signal.unwrap_or(Signal::INT);
        self.note(format!("stop {} {signal} {timeout:?}", FakeDriver::name_of(id)));
        self.reaches(id)?;
        let send = |signal| {
            let running = self.running.lock().unwrap();
            let running = running.get(id).ok_or(DriverError::TaskNotFound)?;
            running.signal.send_replace(Some(signal));
            Ok::<(), DriverError>(())
        };
        send(signal)?;
        if matches!(self.running.lock().unwrap().get(id), Some(Running { act: Act::Stubborn, .. })) {
            tokio::time::sleep(timeout).await;
            send(Signal::KILL)?;
        }
        Ok(())
    }

    /// Every signal arrives but for SIGSTOP.
    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        self.note(format!("signal {} {signal}", FakeDriver::name_of(id)));
        if signal == Signal::STOP {
            return Err(DriverError::Failed { message: "not this one".to_owned(), recoverable: false });
        }
        Ok(())
    }

    /// A command `slow` takes all its time, and a command `bad` fails.
    async fn exec_task(&self, id: &str, command: &[String], timeout: Duration) -> Result<ExecTaskResult, DriverError> {
        self.note(format!("exec {} {}", FakeDriver::name_of(id), command.join(" ")));
        if command[0] == "slow" {
            tokio::time::sleep(timeout).await;
        }
        let exit = ExitResult { exit_code: i32::from(command[0] == "bad"), ..ExitResult::default() };
        Ok(ExecTaskResult { stdout: Vec::new(), stderr: Vec::new(), exit })
    }

    async fn task_stats(&self, _id: &str) -> Result<TaskStats, DriverError> {
        Err(DriverError::TaskNotFound)
    }

    async fn destroy_task(&self, id: &str, _force: bool) -> Result<(), DriverError> {
        self.reaches(id)?;
        self.running.lock().unwrap().remove(id).map(drop).ok_or(DriverError::TaskNotFound)
    }
}
