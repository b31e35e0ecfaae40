//! The docker driver on a real engine of this program's own, through a proxy that loses answers where that is the subject.

#![expect(clippy::needless_pass_by_value, reason = "a configuration is written down where it is used")]

#[path = "support/engine.rs"]
mod engine;
#[path = "support/harness.rs"]
mod harness;
#[path = "support/registry.rs"]
mod registry;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use agentbin::cgroup::CgroupFs;
use agentbin::driver::{
    DockerDriver, Driver, DriverError, ExecOptions, ExecStreaming, Health, Host, NetworkIsolation, Port, Settings,
    TaskConfig, TaskHandle, TaskState, TerminalSize,
};
use agentbin::executor::{Compute, CpuQuota, NewLimits};
use agentbin::logs::ship::Stream;
use agentbin::spec::collections::BTreeMap;
use agentbin::spec::{DriverConfig, ExitResult, LogCollection, MemoryLimits, Mount, Propagation, Resources, Signal};
use engine::{FAULTS, Fault, IMAGE, Proxy, ROUTES, Route, TestEngine};
use harness::{block_on, eventually, run, tests};
use registry::{Pace, Registry};
use serde_json::{Value, json};
use tempfile::TempDir;

static ENGINE: OnceLock<TestEngine> = OnceLock::new();
/// Where it listens with TLS, and the directory of certificates.
static TLS: OnceLock<(String, PathBuf)> = OnceLock::new();

fn main() -> ExitCode {
    agentbin::init();
    let certificates = tempfile::tempdir().unwrap();
    registry::certificates(certificates.path(), &["engine", "client"]);
    // Somebody else may take the port in between.
    let mut started = Err(String::new());
    for _ in 0..3 {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let host = format!("tcp://127.0.0.1:{port}");
        let file = |name: &str| certificates.path().join(name).display().to_string();
        let (ca, cert, key) = (file("ca.pem"), file("engine.pem"), file("engine-key.pem"));
        let tls = ["--tlsverify", "--tlscacert", &ca, "--tlscert", &cert, "--tlskey", &key, "--host", &host];
        started = TestEngine::with(&tls);
        if started.is_ok() {
            assert!(TLS.set((host, certificates.path().to_owned())).is_ok());
            break;
        }
    }
    match started {
        Ok(engine) => assert!(ENGINE.set(engine).is_ok()),
        Err(reason) => return harness::skip("docker", &reason),
    }
    let result = run(tests![
        e1_a_task_from_start_to_end,
        e1_exit_status_signals_and_stop,
        e1_a_stop_gives_the_time_that_it_has_and_then_kills,
        e1_a_signal_of_an_unknown_name_is_refused,
        e1_a_signal_that_pid_1_drops_is_told_of,
        c2_a_container_that_lacks_memory_says_so,
        c2_an_engine_notices_late_that_memory_was_lacking,
        e1_commands_and_sessions_inside,
        e1_a_session_whose_command_cannot_start,
        e1_no_terminal_session_is_short,
        e1_a_command_goes_with_its_caller,
        e2_a_stop_that_the_engine_cannot_do,
        c3_shared_cores_follow_the_agent,
        e1_a_task_is_found_again,
        e1_what_is_asked_for_is_what_the_container_has,
        e1_starts_that_fail_leave_nothing,
        e1_fingerprint_says_what_there_is,
        e1_an_engine_behind_tls,
        e1_an_image_is_fetched_once_and_removed_after_the_last_task,
        e1_registries_ask_for_credentials,
        e1_a_pull_that_stalls,
        e5_volumes_are_split_and_stay_below_the_allocation,
        n2_sizes_that_nobody_goes_by_are_told_of,
        b10_hostile_configurations_reach_no_engine,
        b10_what_a_task_left_in_its_folder_is_not_followed,
        d38_a_minimum_wins_over_what_the_plugin_allows,
        d39_a_container_at_a_minimum_is_held,
        f2_mounts_propagate_as_asked,
        e2_create_converges_with_what_is_there,
        e3_starting_twice_is_starting_once,
        e2_lost_answers_leave_one_container_and_then_none,
        e2_an_engine_that_stands_still_or_crashes,
        e4_exactly_the_dangling_ones_go,
        d3_output_is_complete_with_and_without_a_terminal,
        d3_long_lines_come_once_when_the_engine_rotates_its_log,
        d3_every_line_once_whoever_restarts,
        d3_docker_logger_goes_on_where_it_was_killed,
        d3_a_log_that_cannot_be_read_is_given_up_at_once,
        e1_a_run_with_containers_and_one_that_is_killed,
        e1_the_driver_is_a_plugin,
        d4_switched_off_collects_nothing_and_reads_on_demand,
        g2_a_group_has_its_network_from_a_container,
        e1_stats_come_from_the_cgroup,
        b1_limits_of_a_running_container_change,
        b1_limits_that_cannot_be_are_refused_and_nothing_changes,
    ]);
    // A static is never dropped.
    engine().end();
    result
}

fn engine() -> &'static TestEngine {
    ENGINE.get().expect("main has started it")
}

fn full() -> bool {
    std::env::var("AGENTBIN_FULL").is_ok_and(|full| full == "1")
}

static NEXT: AtomicU32 = AtomicU32::new(0);

/// An allocation of its own, and a driver.
struct World {
    dir: TempDir,
    alloc: String,
    driver: DockerDriver,
}

fn settings(host: Host, dir: &Path) -> Settings {
    Settings {
        cgroups: CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap(),
        compute: Compute { total_mhz: 4000, cores: 2 },
        socket_dir: dir.to_owned(),
        host,
    }
}

fn driver(endpoint: &str, more: Value, dir: &Path) -> DockerDriver {
    let driver = DockerDriver::new(settings(Host::OWN, dir));
    set_config(&driver, endpoint, more);
    driver
}

fn set_config(driver: &DockerDriver, endpoint: &str, more: Value) {
    let mut values = json!({ "endpoint": endpoint, "infra_image": "pause:test", "gc": { "image": false } });
    values.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let values = values.as_object().unwrap().clone();
    driver.set_config(&DriverConfig { values, ..DriverConfig::default() }, None).unwrap();
}

impl World {
    fn new() -> World {
        World::with(&engine().endpoint(), json!({}))
    }

    fn with(endpoint: &str, config: Value) -> World {
        let dir = tempfile::Builder::new().prefix("agentbin-dockertest-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let alloc = format!("0a1b2c3d-0000-4000-8000-{:04x}{number:08x}", std::process::id() % 0xffff);
        for folder in ["alloc/logs", "alloc/data", "web/local", "web/secrets", "web/tmp"] {
            std::fs::create_dir_all(dir.path().join(&alloc).join(folder)).unwrap();
        }
        let driver = driver(endpoint, config, dir.path());
        World { dir, alloc, driver }
    }

    fn alloc_dir(&self) -> PathBuf {
        self.dir.path().join(&self.alloc)
    }

    fn label(&self) -> String {
        format!("com.hashicorp.nomad.alloc_id={}", self.alloc)
    }

    fn name(&self) -> String {
        format!("web-{}", self.alloc)
    }

    fn task(&self, config: Value) -> TaskConfig {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut values = json!({ "image": IMAGE, "network_mode": "none" });
        values.as_object_mut().unwrap().extend(config.as_object().unwrap().clone());
        TaskConfig {
            id: format!("{}/web/{number:08x}", self.alloc),
            name: "web".to_owned(),
            alloc_id: self.alloc.clone(),
            node_id: "node-1".to_owned(),
            config: DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() },
            env: BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]),
            resources: Resources {
                cpu_shares: 100,
                memory: MemoryLimits { hard_bytes: Some(64 << 20), soft_bytes: None },
                ..Resources::default()
            },
            cgroup: PathBuf::from(format!("nomad/{}-web", self.alloc)),
            alloc_dir: self.alloc_dir(),
            logs: Some(LogCollection {
                dir: self.alloc_dir().join("alloc/logs"),
                stdout_file: "web.stdout".to_owned(),
                stderr_file: "web.stderr".to_owned(),
                max_files: 100,
                max_file_size_bytes: 10 << 20,
                ..LogCollection::default()
            }),
            ..TaskConfig::default()
        }
    }

    fn script(&self, script: &str) -> TaskConfig {
        self.task(json!({ "command": "/bin/sh", "args": ["-c", script] }))
    }

    fn log(&self, stream: &str) -> String {
        let mut text = String::new();
        for index in 0.. {
            let path = self.alloc_dir().join(format!("alloc/logs/web.{stream}.{index}"));
            match std::fs::read_to_string(path) {
                Ok(more) => text += &more,
                Err(_) => break,
            }
        }
        text
    }

    async fn start(&self, task: &TaskConfig) -> TaskHandle {
        self.driver.start_task(task).await.unwrap()
    }

    async fn wait(&self, task: &TaskConfig) -> ExitResult {
        let patience = Duration::from_mins(2);
        tokio::time::timeout(patience, self.driver.wait_task(&task.id)).await.expect("it ends").unwrap()
    }

    /// Runs it to its end and removes it.
    async fn run(&self, task: &TaskConfig) -> ExitResult {
        self.start(task).await;
        let exit = self.wait(task).await;
        self.driver.destroy_task(&task.id, false).await.unwrap();
        exit
    }

    /// The parent of its container's, where its processes are listed.
    fn cgroup(&self) -> PathBuf {
        let root = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new).into_iter().find(|root| root.exists());
        root.unwrap().join(format!("nomad/{}-web", self.alloc))
    }

    async fn assert_nothing_left(&self) {
        assert_eq!(engine().containers(&self.label()).await, Vec::<String>::new());
        assert!(!self.cgroup().exists(), "{} is left", self.cgroup().display());
        assert_no_cgroups_of(&self.alloc);
    }
}

/// In any tree, the unified one of a hybrid machine among them.
fn assert_no_cgroups_of(alloc: &str) {
    let trees = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|tree| tree.path().join("nomad"));
    let folders = trees.flat_map(|parent| std::fs::read_dir(parent).into_iter().flatten().flatten());
    let left: Vec<_> =
        folders.filter(|f| f.file_name().to_string_lossy().starts_with(alloc)).map(|f| f.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

fn e1_a_task_from_start_to_end() {
    block_on(async {
        let world = World::new();
        let task = world
            .script("echo $GREETING; id -u; echo error >&2; echo mine > /local/file; ls -d /alloc /secrets; exit 3");
        world.start(&task).await;
        let again = world.driver.start_task(&task).await.unwrap_err().to_string();
        assert_eq!(again, format!("task with ID {:?} already started", task.id));
        let waiters = [world.driver.wait_task(&task.id), world.driver.wait_task(&task.id)];
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap(), ExitResult { exit_code: 3, ..ExitResult::default() });
        }
        let status = world.driver.inspect_task(&task.id).await.unwrap();
        assert_eq!((status.state, status.exit.unwrap().exit_code), (TaskState::Exited, 3));
        assert!(status.completed_at.unwrap() >= status.started_at.unwrap());
        assert_eq!(status.attributes["container_id"].len(), 64);
        // All output is there when the end is told.
        assert_eq!(world.log("stdout"), "hello\n0\n/alloc\n/secrets\n");
        assert_eq!(world.log("stderr"), "error\n");
        assert_eq!(std::fs::read_to_string(world.alloc_dir().join("web/local/file")).unwrap(), "mine\n");
        world.driver.destroy_task(&task.id, false).await.unwrap();
        assert!(matches!(world.driver.inspect_task(&task.id).await, Err(DriverError::TaskNotFound)));
        world.assert_nothing_left().await;
    });
}

fn e1_exit_status_signals_and_stop() {
    block_on(async {
        let world = World::new();
        // A signal of the caller's, then death.
        let task = world
            .script("trap 'echo usr1' USR1; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.1; done");
        world.start(&task).await;
        eventually("it is ready", || world.log("stdout").contains("ready")).await;
        world.driver.signal_task(&task.id, Signal::from_name("SIGUSR1").unwrap()).await.unwrap();
        eventually("it has the signal", || world.log("stdout").contains("usr1")).await;
        assert_eq!(world.driver.inspect_task(&task.id).await.unwrap().state, TaskState::Running);
        let refused = world.driver.destroy_task(&task.id, false).await.unwrap_err().to_string();
        assert!(refused.contains("must call StopTask"), "{refused}");
        world.driver.stop_task(&task.id, Duration::from_secs(30), None).await.unwrap();
        assert_eq!(world.wait(&task).await.exit_code, 7);
        assert!(world.log("stdout").ends_with("term\n"));
        world.driver.stop_task(&task.id, Duration::ZERO, None).await.unwrap();
        world.driver.destroy_task(&task.id, false).await.unwrap();

        // One that does not listen is killed; the signal first.
        let task = world.script("trap 'echo int' INT; echo ready; while :; do sleep 0.1; done");
        world.start(&task).await;
        eventually("it is ready", || world.log("stdout").contains("ready")).await;
        world.driver.stop_task(&task.id, Duration::from_secs(2), Some(Signal::INT)).await.unwrap();
        assert_eq!(world.wait(&task).await.exit_code, 137);
        assert!(world.log("stdout").contains("int"));
        // Forced, without a stop.
        world.driver.destroy_task(&task.id, true).await.unwrap();
        let task = world.script("sleep 1000");
        world.start(&task).await;
        world.driver.destroy_task(&task.id, true).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// After `kill_signal` and its time a task is killed: it gets no stop signal, which it could handle. Without one the stop signal has
/// its time also when the engine is away at first, and a stop whose answer is lost is not repeated before the time has passed.
fn e1_a_stop_gives_the_time_that_it_has_and_then_kills() {
    block_on(async {
        let handles = "trap 'echo int' INT; trap 'echo term; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
        let seconds = Duration::from_secs;
        let proxy = Proxy::new(engine(), None);
        let world = World::with(&proxy.endpoint(), json!({}));
        let task = world.script(handles);
        world.start(&task).await;
        eventually("it is ready", || world.log("stdout").contains("ready")).await;
        world.driver.stop_task(&task.id, seconds(1), Some(Signal::INT)).await.unwrap();
        assert_eq!(world.wait(&task).await.exit_code, 137);
        assert_eq!(world.log("stdout"), "ready\nint\n");
        let calls = proxy.log();
        let asked = |what: &str| calls.iter().filter(|call| call.contains(what)).count();
        assert_eq!((asked("/kill?signal=2 "), asked("/kill?signal=9 "), asked("/stop?")), (1, 1, 0), "{calls:?}");
        world.driver.destroy_task(&task.id, false).await.unwrap();

        // An engine that is away while the stop begins.
        let task = world.script(handles);
        world.start(&task).await;
        eventually("it is ready", || world.log("stdout").matches("ready").count() == 2).await;
        let socket = PathBuf::from(proxy.endpoint().trim_start_matches("unix://"));
        std::fs::rename(&socket, socket.with_extension("away")).unwrap();
        let back = async {
            tokio::time::sleep(seconds(1)).await;
            std::fs::rename(socket.with_extension("away"), &socket).unwrap();
        };
        let (stopped, ()) = tokio::join!(world.driver.stop_task(&task.id, seconds(20), None), back);
        stopped.unwrap();
        assert_eq!(world.wait(&task).await.exit_code, 7, "it was told");
        world.driver.destroy_task(&task.id, false).await.unwrap();
        world.assert_nothing_left().await;

        // One that has not done it, or has, and says neither.
        for (fault, status) in
            [(Fault::Error, 137), (Fault::Disconnect, 137), (Fault::DropAnswer, 7), (Fault::ErrorAfter, 7)]
        {
            let proxy = Proxy::new(engine(), Some((Route::Stop, fault, 1)));
            let world = World::with(&proxy.endpoint(), json!({}));
            let task = world.script(handles);
            world.start(&task).await;
            eventually("it is ready", || world.log("stdout").contains("ready")).await;
            let began = Instant::now();
            world.driver.stop_task(&task.id, seconds(2), None).await.unwrap();
            assert!(status == 7 || began.elapsed() >= seconds(2), "{fault:?}: killed after {:?}", began.elapsed());
            assert_eq!(world.wait(&task).await.exit_code, status, "{fault:?}");
            assert!(proxy.was_hit());
            world.driver.destroy_task(&task.id, false).await.unwrap();
            world.assert_nothing_left().await;
        }
    });
}

/// As Nomad's driver does; others send SIGINT. Over gRPC, as an agent asks, where the end of a task has a message, too.
fn e1_a_signal_of_an_unknown_name_is_refused() {
    use agentbin::driver::DriverService;
    use agentbin::wire::drivers::driver_client::DriverClient;
    use agentbin::wire::drivers::{SignalTaskRequest, WaitTaskRequest};
    block_on(async {
        let world = World::new();
        let task = world.script("trap 'echo int' INT; trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done");
        world.start(&task).await;
        eventually("it is ready", || world.log("stdout").contains("ready")).await;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let routes = DriverService::routes(Arc::new(world.driver.clone()));
        let server = tonic::transport::Server::builder().add_routes(routes);
        tokio::spawn(server.serve_with_incoming(tonic::transport::server::TcpIncoming::from(listener)));
        let mut driver = DriverClient::connect(address).await.unwrap();
        let mut sender = driver.clone();
        let mut signal = async |name: &str| {
            let request = SignalTaskRequest { task_id: task.id.clone(), signal: name.to_owned() };
            sender.signal_task(request).await
        };
        let refused = signal("SIGNOPE").await.unwrap_err();
        assert!(
            refused.message().starts_with("no signal is named \"SIGNOPE\"; the names are SIGHUP, SIGINT"),
            "{refused}"
        );
        signal("SIGUSR1").await.unwrap();
        let end = driver.wait_task(WaitTaskRequest { task_id: task.id.clone() }).await.unwrap().into_inner();
        assert_eq!(end.result.unwrap().exit_code, 3);
        assert_eq!(end.err, "Docker container exited with non-zero exit code: 3");
        assert_eq!(world.log("stdout"), "ready\n");
        world.driver.destroy_task(&task.id, false).await.unwrap();
    });
}

/// A program that is pid 1 without a handler; not below docker's init, with a handler, or when the task is killed at once.
fn e1_a_signal_that_pid_1_drops_is_told_of() {
    block_on(async {
        let world = World::new();
        let drops = "echo ready; exec sleep 1000";
        let handles = "trap 'exit 0' TERM USR1; echo ready; while :; do sleep 0.05; done";
        let cases = [(drops, false, true), (handles, false, false), (drops, true, false)];
        for (before, (script, init, told)) in cases.into_iter().enumerate() {
            let mut events = world.driver.task_events().unwrap();
            let mut task = world.script(script);
            task.config.values.insert("init".to_owned(), json!(init));
            world.start(&task).await;
            eventually("it is ready", || world.log("stdout").matches("ready").count() == before + 1).await;
            let pid = engine().docker(&["inspect", "-f", "{{.State.Pid}}", &world.name()]);
            let runs =
                |name: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
            // The shell has gone, and with it what it handled.
            eventually("it executes", || init || !told || runs("sleep")).await;
            if told {
                world.driver.signal_task(&task.id, Signal::from_name("SIGUSR1").unwrap()).await.unwrap();
            }
            world.driver.stop_task(&task.id, Duration::from_secs(1), told.then_some(Signal::INT)).await.unwrap();
            world.wait(&task).await;
            world.driver.destroy_task(&task.id, false).await.unwrap();
            let mut said = Vec::new();
            while let Ok(event) = events.try_recv() {
                assert_eq!((&event.task_id, &event.alloc_id), (&task.id, &world.alloc));
                said.push(event.message);
            }
            let expected: &[&str] = if told { &["SIGUSR1 has no effect: ", "SIGINT has no effect: "] } else { &[] };
            assert_eq!(said.len(), expected.len(), "{script}, init {init}: {said:?}");
            for (said, expected) in said.iter().zip(expected) {
                assert!(said.starts_with(expected) && said.contains("init = true in the task's config"), "{said}");
            }
        }
        // The stop signal of the image, or of the engine, when the job names none.
        let mut events = world.driver.task_events().unwrap();
        let task = world.script(drops);
        world.start(&task).await;
        eventually("it is ready", || world.log("stdout").matches("ready").count() == 4).await;
        world.driver.stop_task(&task.id, Duration::from_secs(1), None).await.unwrap();
        assert_eq!(world.wait(&task).await.exit_code, 137);
        assert!(events.try_recv().unwrap().message.starts_with("SIGTERM has no effect: "));
        world.driver.destroy_task(&task.id, false).await.unwrap();
        // Nothing is sent that could be handled.
        let task = world.script(drops);
        world.start(&task).await;
        world.driver.stop_task(&task.id, Duration::ZERO, Some(Signal::INT)).await.unwrap();
        world.driver.destroy_task(&task.id, true).await.unwrap();
        assert!(events.try_recv().is_err());
        world.assert_nothing_left().await;
    });
}

/// An engine may report the end of a container before it has noticed why the kernel killed it: its events are asked for the rest.
fn c2_an_engine_notices_late_that_memory_was_lacking() {
    block_on(async {
        let proxy = Proxy::new(engine(), Some((Route::Inspect, Fault::NotYetOom, 0)));
        let world = World::with(&proxy.endpoint(), json!({}));
        let fill = "x=0123456789abcdef; n=0; while [ $n -lt 24 ]; do x=$x$x; n=$((n+1)); done; exit 0";
        // An exit of this status that is not a kill is not taken for one.
        for (script, status, killed) in [(fill, 137, true), ("exit 137", 137, false)] {
            let mut task = world.script(script);
            task.resources.memory = MemoryLimits { hard_bytes: Some(16 << 20), soft_bytes: None };
            world.start(&task).await;
            let exit = world.wait(&task).await;
            assert_eq!((exit.exit_code, exit.oom_killed), (status, killed), "{script}");
            world.driver.destroy_task(&task.id, false).await.unwrap();
        }
        assert!(proxy.was_hit());
        let asked = proxy.log().iter().filter(|call| call.contains("/events?")).count();
        assert!((1..=2).contains(&asked), "{:?}", proxy.log());
        world.assert_nothing_left().await;
    });
}

/// Whichever process was killed, and whatever the status of the first one; not after another task's in the same cgroup.
fn c2_a_container_that_lacks_memory_says_so() {
    block_on(async {
        let world = World::new();
        // Where systemd makes the cgroup it is below no parent of the task's own, and what was counted is what the engine noticed.
        let systemd = engine().docker(&["info", "-f", "{{.CgroupDriver}}"]) == "systemd";
        let then = if systemd { "sleep 1; exit 5" } else { "exit 5" };
        let fill = "x=0123456789abcdef; n=0; while [ $n -lt 24 ]; do x=$x$x; n=$((n+1)); done; exit 0";
        let mut started = Vec::new();
        for (script, status, killed) in [
            (fill.to_owned(), 137, true),
            (format!("sh -c '{fill}'; {then}"), 5, true),
            ("exit 5".to_owned(), 5, false),
        ] {
            // The container of the start before is removed by this one, the cgroup above both stays.
            let mut task = world.script(&script);
            task.resources.memory = MemoryLimits { hard_bytes: Some(16 << 20), soft_bytes: None };
            world.start(&task).await;
            let exit = world.wait(&task).await;
            assert_eq!((exit.exit_code, exit.oom_killed), (status, killed), "{script}");
            let said = world.driver.exit_message(&exit).unwrap();
            let plain = format!("Docker container exited with non-zero exit code: {status}");
            assert_eq!(said, if killed { "OOM Killed".to_owned() } else { plain });
            started.push(task.id);
        }
        for id in started {
            world.driver.destroy_task(&id, false).await.unwrap();
        }
        world.assert_nothing_left().await;
        assert_eq!(world.driver.exit_message(&ExitResult::default()), None);
    });
}

/// A session's output and status.
async fn session(world: &World, task: &TaskConfig, command: &[&str], tty: bool, input: &str) -> (String, String, i32) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let ExecStreaming::HighLevel(streaming) = world.driver.exec_streaming() else { panic!("no sessions") };
    let ((mut to, stdin), (stdout, mut from), (stderr, mut errors)) =
        (tokio::io::duplex(1 << 16), tokio::io::duplex(1 << 16), tokio::io::duplex(1 << 16));
    let (sizes, resize) = tokio::sync::watch::channel(TerminalSize { height: 33, width: 77 });
    let options = ExecOptions {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        tty,
        stdin: Box::pin(stdin),
        stdout: Box::pin(stdout),
        stderr: Box::pin(stderr),
        resize,
    };
    let (mut out, mut err) = (String::new(), String::new());
    let input = async {
        to.write_all(input.as_bytes()).await.unwrap();
        to.shutdown().await.unwrap();
    };
    let (exit, (), out_read, err_read) = tokio::join!(
        streaming.exec_task_streaming(&task.id, options),
        input,
        from.read_to_string(&mut out),
        errors.read_to_string(&mut err)
    );
    out_read.unwrap();
    err_read.unwrap();
    drop(sizes);
    (out, err, exit.unwrap().exit_code)
}

fn e1_commands_and_sessions_inside() {
    block_on(async {
        let world = World::new();
        let task = world.script("sleep 1000");
        world.start(&task).await;
        let exec = async |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            world.driver.exec_task(&task.id, &words, Duration::from_mins(1)).await
        };
        let result = exec(&["/bin/sh", "-c", "echo out; echo err >&2; exit 5"]).await.unwrap();
        assert_eq!((result.stdout, result.stderr, result.exit.exit_code), (b"out\n".to_vec(), b"err\n".to_vec(), 5));
        let long = exec(&["/bin/sh", "-c", "seq 1 5000"]).await.unwrap();
        assert_eq!(long.stdout.len(), 4096);
        assert!(long.stdout.ends_with(b"5000\n"));
        assert_eq!(exec(&[]).await.unwrap_err().to_string(), "cmd is required, but was empty");

        let (out, err, status) =
            session(&world, &task, &["/bin/sh", "-c", "cat; echo e >&2; exit 4"], false, "in\n").await;
        assert_eq!((out.as_str(), err.as_str(), status), ("in\n", "e\n", 4));
        let big = "x".repeat(300_000);
        let (out, _, status) = session(&world, &task, &["/bin/cat"], false, &big).await;
        assert_eq!((out.len(), status), (300_000, 0), "the tail is there");
        // A terminal: one stream, bytes as they are, and its size.
        let script = "printf '\\001\\000\\000\\000x'; while [ \"$(stty size)\" != '33 77' ]; do sleep 0.05; done; stty size; exit 6";
        let (out, err, status) = session(&world, &task, &["/bin/sh", "-c", script], true, "").await;
        assert!(out.starts_with("\u{1}\u{0}\u{0}\u{0}x") && out.contains("33 77"), "{out:?}");
        assert_eq!((err.as_str(), status), ("", 6));
        // Also for a command that was typed before the terminal was there.
        for _ in 0..10 {
            let (out, _, status) = session(&world, &task, &["/bin/sh"], true, "stty size; exit 6\n").await;
            assert!(out.contains("\n33 77\r\n") && status == 6, "{status}: {out:?}");
        }
        world.driver.destroy_task(&task.id, true).await.unwrap();
    });
}

/// 127 for what is not there and 126 for what cannot be executed, each with a reason, as from the other drivers.
fn e1_a_session_whose_command_cannot_start() {
    block_on(async {
        let world = World::new();
        let task = world.script("sleep 1000");
        world.start(&task).await;
        for (command, expected) in
            [("no-such-program", 127), ("/no/such/program", 127), ("/etc/passwd", 126), ("/etc", 126)]
        {
            for tty in [false, true] {
                let (out, err, status) = session(&world, &task, &[command], tty, "").await;
                assert_eq!(status, expected, "{command}, terminal: {tty}: {out:?} {err:?}");
                let (told, nothing) = if tty { (&out, &err) } else { (&err, &out) };
                let words = if expected == 127 { "command not found" } else { "cannot be executed" };
                assert!(told.contains(command) && told.contains(words) && nothing.is_empty(), "{out:?} {err:?}");
                assert!(told.ends_with(if tty { "\r\n" } else { "\n" }) && told.lines().count() == 1, "{told:?}");
            }
        }
        // What says so itself has said it.
        let (out, err, status) = session(&world, &task, &["sh", "-c", "echo mine >&2; exit 127"], false, "").await;
        assert_eq!((out.as_str(), err.as_str(), status), ("", "mine\n", 127));
        world.driver.destroy_task(&task.id, true).await.unwrap();
    });
}

/// Sessions on terminals that end directly behind their last words.
fn e1_no_terminal_session_is_short() {
    let count = std::env::var("AGENTBIN_FULL").ok().and_then(|n| n.parse().ok()).unwrap_or(0usize);
    let count = match count {
        0 => 10,
        1 => 500,
        other => other,
    };
    block_on(async {
        let world = World::new();
        let task = world.script("sleep 1000");
        world.start(&task).await;
        for number in 0..count {
            let script = format!("echo {number}; echo two; sleep 1000 & printf 'the end'; exit 7");
            let (out, err, status) = session(&world, &task, &["/bin/sh", "-c", &script], true, "").await;
            assert_eq!((out, err.as_str(), status), (format!("{number}\r\ntwo\r\nthe end"), "", 7));
        }
        world.driver.destroy_task(&task.id, true).await.unwrap();
    });
}

/// Processes of the container, by their command lines.
fn processes(world: &World) -> Vec<String> {
    let id = engine().docker(&["inspect", "-f", "{{.Id}}", &world.name()]);
    let procs = world.cgroup().join(id).join("cgroup.procs");
    let pids = std::fs::read_to_string(procs).unwrap();
    let command = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    pids.lines().map(|pid| command(pid).trim_end_matches('\0').replace('\0', " ")).collect()
}

fn e1_a_command_goes_with_its_caller() {
    block_on(async {
        let world = World::new();
        let task = world.script("sleep 1000; true");
        world.start(&task).await;
        let has = |what: &str| processes(&world).iter().any(|command| command.contains(what));
        // One that does not end in time, with what it has started.
        let words = ["/bin/sh", "-c", "sleep 2001 & sleep 2002; true"].map(str::to_owned);
        let late = world.driver.exec_task(&task.id, &words, Duration::from_secs(1)).await.unwrap_err().to_string();
        assert!(late.contains("did not end within"), "{late}");
        eventually("the command is gone", || !has("2001") && !has("2002")).await;
        // A session whose caller hangs up, with and without a terminal.
        for tty in [false, true] {
            let words = ["/bin/sh", "-c", "sleep 2003 & echo begun; sleep 2004; true"];
            let gone = tokio::time::timeout(Duration::from_secs(1), session(&world, &task, &words, tty, "")).await;
            assert!(gone.is_err());
            eventually("the session is gone", || !has("2003") && !has("2004")).await;
        }
        assert!(has("sleep 1000"), "the task goes on: {:?}", processes(&world));
        world.driver.destroy_task(&task.id, true).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// An engine that stands still: the stop ends all the same, by the container's own cgroup, and nobody else's.
fn e2_a_stop_that_the_engine_cannot_do() {
    use nix::sys::signal::Signal as Unix;
    block_on(async {
        let world = World::with(&engine().endpoint(), json!({ "api_timeout": "2s" }));
        let (task, other) = (world.script("sleep 1000; true"), World::new());
        world.start(&task).await;
        let others = other.script("sleep 1000; true");
        other.start(&others).await;
        let id = engine().docker(&["run", "-d", "--network", "none", IMAGE, "sleep", "1000"]);
        engine().signal(Unix::SIGSTOP);
        let began = Instant::now();
        let stopped = world.driver.stop_task(&task.id, Duration::from_secs(1), None).await;
        let ended = tokio::time::timeout(Duration::from_mins(1), world.driver.wait_task(&task.id)).await;
        let took = began.elapsed();
        let destroyed = world.driver.destroy_task(&task.id, false);
        let destroyed = tokio::time::timeout(Duration::from_secs(1), destroyed).await;
        engine().signal(Unix::SIGCONT);
        stopped.unwrap();
        assert_eq!(ended.expect("it is dead, whatever the engine knows").unwrap().exit_code, 137);
        assert!(!matches!(destroyed, Ok(Ok(()))), "nobody knows that it is removed");
        println!("stopped without its engine in {took:?}");
        for id in [id.clone(), other.name()] {
            assert_eq!(engine().docker(&["inspect", "-f", "{{.State.Running}}", &id]), "true");
        }
        world.driver.destroy_task(&task.id, true).await.unwrap();
        other.driver.destroy_task(&others.id, true).await.unwrap();
        engine().docker(&["rm", "-f", &id]);
        world.assert_nothing_left().await;
        other.assert_nothing_left().await;
    });
}

/// On v1, under an agent: the cores that it leaves to its tasks are those of their containers, at any time.
fn c3_shared_cores_follow_the_agent() {
    block_on(async {
        let cpuset = Path::new("/sys/fs/cgroup/cpuset");
        let cores = std::thread::available_parallelism().unwrap().get();
        if !cpuset.join("cpuset.cpus").exists() || cores < 2 {
            println!("SKIP: c3_shared_cores_follow_the_agent: needs cgroup v1 and two cores");
            return;
        }
        let share = Cgroup(cpuset.join(format!("agentbin-share-{}", std::process::id())));
        std::fs::create_dir(&share.0).unwrap();
        let root = |file: &str| std::fs::read_to_string(cpuset.join(file)).unwrap();
        std::fs::write(share.0.join("cpuset.mems"), root("cpuset.mems")).unwrap();
        let all = root("cpuset.cpus").trim().to_owned();
        let one = all.split(['-', ',']).next().unwrap().to_owned();
        let give = |cores: &str| std::fs::write(share.0.join("cpuset.cpus"), cores).unwrap();
        let world = World::new();
        let agents = || {
            let driver = DockerDriver::new(settings(Host::NOMAD, world.dir.path()));
            set_config(&driver, &engine().endpoint(), json!({}));
            driver
        };
        let start = async |driver: &DockerDriver, cores: &str| {
            let mut task = world.script("sleep 1000");
            task.cpuset_cgroup = share.0.clone();
            cores.clone_into(&mut task.resources.cpuset_cpus);
            "/dev/null".clone_into(&mut task.stdout_path);
            "/dev/null".clone_into(&mut task.stderr_path);
            let handle = driver.start_task(&task).await.unwrap();
            (task, handle)
        };
        let of = || engine().docker(&["inspect", "-f", "{{.HostConfig.CpusetCpus}}", &world.name()]);
        give(&one);
        let driver = agents();
        let (task, handle) = start(&driver, "").await;
        assert_eq!(of(), one);
        let id = engine().docker(&["inspect", "-f", "{{.Id}}", &world.name()]);
        give(&all);
        eventually("all cores", || of() == all).await;
        let file = cpuset.join(format!("nomad/{}.web/{id}/cpuset.cpus", world.alloc));
        // The engine shows what was asked for before it is done.
        eventually("the kernel knows", || std::fs::read_to_string(&file).unwrap().trim() == all).await;
        // What changes while the driver is away is seen by the next one.
        drop(driver);
        give(&one);
        let driver = agents();
        driver.recover_task(&task, &handle.driver_state).await.unwrap();
        eventually("one core again", || of() == one).await;
        driver.destroy_task(&task.id, true).await.unwrap();
        // Cores of its own stay.
        let (task, _) = start(&driver, &one).await;
        give(&all);
        let (second, _) = {
            let other = World::new();
            let mut task = other.script("sleep 1000");
            task.cpuset_cgroup = share.0.clone();
            "/dev/null".clone_into(&mut task.stdout_path);
            "/dev/null".clone_into(&mut task.stderr_path);
            driver.start_task(&task).await.unwrap();
            give(&one);
            let shown = || engine().docker(&["inspect", "-f", "{{.HostConfig.CpusetCpus}}", &other.name()]);
            eventually("the sharing one follows", || shown() == one).await;
            (task, other)
        };
        give(&all);
        assert_eq!(of(), one);
        driver.destroy_task(&second.id, true).await.unwrap();
        driver.destroy_task(&task.id, true).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// Removed when the test is over, however it ends.
struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn e1_a_task_is_found_again() {
    block_on(async {
        let world = World::new();
        let task = world.script("echo begin; while [ ! -e /local/go ]; do sleep 0.05; done; echo end; exit 9");
        let handle = world.start(&task).await;
        eventually("it has begun", || world.log("stdout").contains("begin")).await;
        // Another process of the driver, which gets the task without its configuration.
        let World { dir, alloc, driver: first } = world;
        drop(first);
        let world = World { driver: driver(&engine().endpoint(), json!({}), dir.path()), dir, alloc };
        let kept = TaskConfig { config: DriverConfig::default(), logs: None, ..task.clone() };
        world.driver.recover_task(&kept, &handle.driver_state).await.unwrap();
        world.driver.recover_task(&kept, &handle.driver_state).await.unwrap();
        assert_eq!(world.driver.inspect_task(&task.id).await.unwrap().state, TaskState::Running);
        std::fs::write(world.alloc_dir().join("web/local/go"), "").unwrap();
        assert_eq!(world.wait(&task).await.exit_code, 9);
        assert_eq!(world.log("stdout"), "begin\nend\n", "nothing twice, nothing lost");
        world.driver.destroy_task(&task.id, false).await.unwrap();
        // What is gone is gone.
        let gone = world.driver.recover_task(&kept, &handle.driver_state).await.unwrap_err().to_string();
        assert!(gone.contains("failed to inspect container"), "{gone}");
        let bad = world.driver.recover_task(&kept, b"rubbish").await.unwrap_err().to_string();
        assert!(bad.contains("failed to decode task state from handle"), "{bad}");
        // An engine that does not answer is not a reason to think the task dead.
        let silent = driver("unix:///nonexistent/docker.sock", json!({}), world.dir.path());
        silent.recover_task(&kept, &handle.driver_state).await.unwrap();
        let waiting = tokio::time::timeout(Duration::from_secs(1), silent.wait_task(&task.id)).await;
        assert!(waiting.is_err(), "unknown is not dead");
        assert_eq!(silent.inspect_task(&task.id).await.unwrap().state, TaskState::Unknown);
        world.assert_nothing_left().await;
    });
}

fn e1_what_is_asked_for_is_what_the_container_has() {
    block_on(async {
        let config = json!({
            "allow_caps": ["chown", "net_raw", "net_bind_service"], "extra_labels": ["job_*", "node_id"],
            "volumes": { "enabled": true }, "pids_limit": 200,
        });
        let world = World::with(&engine().endpoint(), config);
        let mut task = world.task(json!({
            "command": "sleep", "args": ["1000"], "hostname": "host-1", "work_dir": "/tmp", "init": true,
            "labels": [{ "colour": "blue", "com.hashicorp.nomad.alloc_id": "forged" }], "readonly_rootfs": true,
            "cap_add": ["net_raw"], "cap_drop": ["chown"], "ulimit": [{ "nofile": "100:200" }],
            "sysctl": [{ "net.core.somaxconn": "300" }], "pids_limit": 50, "shm_size": 1_048_576, "group_add": ["7"],
            "cpu_hard_limit": true, "security_opt": ["no-new-privileges"], "healthchecks": [{ "disable": true }],
            "devices": [{ "host_path": "/dev/zero", "container_path": "/dev/nought" }],
            "mount": [{ "type": "tmpfs", "target": "/scratch", "tmpfs_options": [{ "size": 65536 }] }],
            "logging": [{ "type": "json-file", "config": [{ "max-size": "1m" }] }],
            "port_map": [{ "http": 80 }], "dns_servers": ["dns.example", "192.0.2.53"],
        }));
        // A task's own network, as jobs without networks of groups have it.
        let port = |label: &str, value| Port { label: label.into(), value, to: 0, host_ip: "127.0.0.1".parse().ok() };
        task.task_ports = vec![port("http", 8123), port("admin", 8124)];
        "the job".clone_into(&mut task.job_name);
        "job-id".clone_into(&mut task.job_id);
        task.percent_ticks = 0.25;
        task.resources.memory = MemoryLimits { hard_bytes: Some(64 << 20), soft_bytes: Some(32 << 20) };
        let mut events = world.driver.task_events().unwrap();
        world.start(&task).await;
        let told = events.try_recv().unwrap().message;
        assert_eq!(told, "dns_servers: \"dns.example\" is left out, as it is not an IP address");
        let seen: Value = serde_json::from_str(&engine().docker(&["inspect", &world.name()])).unwrap();
        let seen = &seen[0];
        let host = &seen["HostConfig"];
        for (pointer, expected) in [
            ("/Config/Image", json!(IMAGE)),
            ("/Config/Hostname", json!("host-1")),
            ("/Config/WorkingDir", json!("/tmp")),
            ("/Config/Cmd", json!(["sleep", "1000"])),
            ("/Config/Labels/colour", json!("blue")),
            ("/Config/Labels/com.hashicorp.nomad.alloc_id", json!(world.alloc)),
            ("/Config/Labels/com.hashicorp.nomad.job_id", json!("job-id")),
            ("/Config/Labels/com.hashicorp.nomad.node_id", json!("node-1")),
            ("/Config/Labels/agentbin.node", json!("node-1")),
            ("/Config/Labels/agentbin.removed-by", json!("owner")),
            ("/Config/Healthcheck/Test", json!(["NONE"])),
            ("/HostConfig/Memory", json!(64 << 20)),
            ("/HostConfig/MemoryReservation", json!(32 << 20)),
            ("/HostConfig/MemorySwap", json!(64 << 20)),
            ("/HostConfig/CpuShares", json!(100)),
            ("/HostConfig/CpuQuota", json!(50_000)),
            ("/HostConfig/PidsLimit", json!(50)),
            ("/HostConfig/CapAdd", json!(["CAP_NET_RAW"])),
            // The engine's own fourteen without those that the plugin allows, and what the task drops.
            ("/HostConfig/CapDrop/1", json!("CAP_CHOWN")),
            ("/HostConfig/CapDrop/11", json!("CAP_SYS_CHROOT")),
            ("/HostConfig/PortBindings/80~1tcp", json!([{ "HostIp": "127.0.0.1", "HostPort": "8123" }])),
            ("/HostConfig/PortBindings/8124~1udp", json!([{ "HostIp": "127.0.0.1", "HostPort": "8124" }])),
            ("/HostConfig/Dns", json!(["192.0.2.53"])),
            ("/HostConfig/Init", json!(true)),
            ("/HostConfig/ReadonlyRootfs", json!(true)),
            ("/HostConfig/GroupAdd", json!(["7"])),
            ("/HostConfig/ShmSize", json!(1_048_576)),
            ("/HostConfig/NetworkMode", json!("none")),
            ("/HostConfig/SecurityOpt", json!(["no-new-privileges"])),
            ("/HostConfig/LogConfig/Config/max-size", json!("1m")),
            ("/HostConfig/Ulimits/0/Hard", json!(200)),
            ("/HostConfig/Sysctls/net.core.somaxconn", json!("300")),
            ("/HostConfig/Devices/0/PathInContainer", json!("/dev/nought")),
            ("/HostConfig/Mounts/0/TmpfsOptions/SizeBytes", json!(65_536)),
        ] {
            assert_eq!(seen.pointer(pointer), Some(&expected), "{pointer}");
        }
        let env = seen["Config"]["Env"].as_array().unwrap();
        assert!(env.contains(&json!("NOMAD_PORT_http=80")), "{env:?}");
        let binds: Vec<&str> = host["Binds"].as_array().unwrap().iter().map(|bind| bind.as_str().unwrap()).collect();
        let dir = world.alloc_dir();
        let shared = dir.join("alloc").display().to_string();
        assert!(binds.contains(&format!("{shared}:/alloc").as_str()), "{binds:?}");
        assert!(binds.contains(&format!("{shared}/logs:/alloc/logs:ro").as_str()), "{binds:?}");
        assert!(!seen["Config"]["Labels"].as_object().unwrap().contains_key("com.hashicorp.nomad.task_name"));
        // Born where it stays: never moved.
        let pid = seen["State"]["Pid"].as_i64().unwrap();
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        let wanted = format!("/nomad/{}-web/", world.alloc);
        assert!(cgroups.lines().any(|line| line.contains(&wanted)), "{cgroups}");
        world.driver.destroy_task(&task.id, true).await.unwrap();
        world.assert_nothing_left().await;
    });
}

fn e1_starts_that_fail_leave_nothing() {
    block_on(async {
        let world = World::new();
        let fails = async |config: Value| world.driver.start_task(&world.task(config)).await.unwrap_err();
        for (config, expected) in [
            (json!({ "privileged": true }), "Docker privileged mode is disabled on this Nomad agent"),
            (json!({ "pid_mode": "host" }), "cannot apply \"pid_mode\" configuration"),
            (json!({ "runtime": "kata" }), "requested runtime \"kata\" is not allowed"),
            (json!({ "cap_add": ["sys_admin"] }), "driver does not allow the following capabilities: sys_admin"),
            (json!({ "security_opt": ["what"] }), "invalid security_opt: \"what\""),
            (json!({ "ulimit": [{ "nofile": "a" }] }), "Malformed soft ulimit nofile"),
            (json!({ "ports": ["http"], "network_mode": "bridge" }), "Port \"http\" not found, check network block"),
            (json!({ "command": " sleep" }), "command contains extra white space"),
            (json!({ "volumes": ["/etc"] }), "not <src>:<destination> format"),
            (json!({ "mount": [{ "type": "bend" }] }), "invalid mount type"),
            (json!({ "load": "missing.tar", "image": "nothing:1" }), "unable to load image from archive"),
            (json!({ "image": "127.0.0.1:1/nothing:1" }), "Failed to pull `127.0.0.1:1/nothing:1`"),
            (json!({ "image": "nothing:" }), "the image name \"nothing:\" is not valid"),
            (json!({ "imgae": "x" }), "unsupported key \"imgae\""),
        ] {
            let error = fails(config).await.to_string();
            assert!(error.contains(expected), "{error}");
        }
        let missing = fails(json!({ "command": "/bin/nothing" })).await;
        assert!(matches!(missing, DriverError::CommandNotFound(_)), "{missing:?}");
        // An engine that says why it cannot start a container is not asked again.
        let proxy = Proxy::new(engine(), None);
        set_config(&world.driver, &proxy.endpoint(), json!({}));
        let device = fails(json!({ "devices": [{ "host_path": "/dev/nothing" }] })).await;
        assert!(matches!(device, DriverError::Failed { recoverable: false, .. }), "{device:?}");
        assert_eq!(proxy.creates().len(), 1, "{:?}", proxy.log());
        set_config(&world.driver, &engine().endpoint(), json!({}));
        // An event names the image with its tag.
        let mut events = world.driver.task_events().unwrap();
        fails(json!({ "image": "127.0.0.1:1/nothing" })).await;
        let event = events.try_recv().unwrap();
        let image = event.annotations["image"].as_str();
        assert_eq!((event.message.as_str(), image), ("Downloading image", "127.0.0.1:1/nothing:latest"));
        // Where no registry answers, an image that is here will do, unless it has to be pulled.
        engine().docker(&["tag", IMAGE, "127.0.0.1:1/here:latest"]);
        let here = |force: bool| json!({ "image": "127.0.0.1:1/here", "force_pull": force, "command": "true" });
        assert_eq!(world.run(&world.task(here(false))).await.exit_code, 0);
        let forced = fails(here(true)).await.to_string();
        assert!(forced.contains("Failed to pull `127.0.0.1:1/here:latest`"), "{forced}");
        engine().docker(&["rmi", "127.0.0.1:1/here:latest"]);
        world.assert_nothing_left().await;

        // An archive in the task's directory is an image, too.
        let archive = world.alloc_dir().join("web/local/image.tar");
        engine().docker(&["tag", IMAGE, "loaded:1"]);
        engine().docker(&["save", "-o", archive.to_str().unwrap(), "loaded:1"]);
        engine().docker(&["rmi", "loaded:1"]);
        let task = world.task(json!({ "image": "loaded:1", "load": "image.tar", "command": "true" }));
        assert_eq!(world.run(&task).await.exit_code, 0);
        // No registry has it: with `load`, nothing is pulled, whatever `force_pull` says.
        let both = json!({ "image": "loaded:1", "load": "image.tar", "force_pull": true, "command": "true" });
        for _ in 0..2 {
            assert_eq!(world.run(&world.task(both.clone())).await.exit_code, 0);
        }
        engine().docker(&["rmi", "loaded:1"]);
    });
}

fn e1_fingerprint_says_what_there_is() {
    block_on(async {
        let world = World::with(&engine().endpoint(), json!({ "volumes": { "enabled": true } }));
        let found = world.driver.fingerprint().await;
        assert_eq!((found.health, found.description.as_str()), (Health::Healthy, "Healthy"));
        for key in ["driver.docker", "driver.docker.version", "driver.docker.volumes.enabled", "driver.docker.runtimes"]
        {
            assert!(found.attributes.contains_key(key), "{key}");
        }
        assert!(!found.attributes.contains_key("driver.docker.privileged.enabled"));
        set_config(&world.driver, "unix:///nonexistent/docker.sock", json!({}));
        let lost = world.driver.fingerprint().await;
        assert_eq!(lost.health, Health::Unhealthy, "it was there before");
        assert_eq!(lost.description, "Failed to connect to docker daemon");
        let never = driver("unix:///nonexistent/docker.sock", json!({}), world.dir.path());
        assert_eq!(never.fingerprint().await.health, Health::Undetected);
    });
}

fn e1_an_engine_behind_tls() {
    use agentbin::spec::Role;
    use agentbin::wire::docker_logger::StartRequest;
    use agentbin::wire::docker_logger::docker_logger_client::DockerLoggerClient;
    block_on(async {
        let (host, dir) = TLS.get().unwrap();
        let file = |name: &str| dir.join(name).display().to_string();
        let tls = |cert: &str, ca: &str| {
            let key = if cert.is_empty() { String::new() } else { file(&format!("{cert}-key.pem")) };
            let cert = if cert.is_empty() { String::new() } else { file(&format!("{cert}.pem")) };
            json!({ "tls": { "cert": cert, "key": key, "ca": file(ca) } })
        };
        let world = World::with(host, tls("client", "ca.pem"));
        assert_eq!(world.driver.fingerprint().await.health, Health::Healthy);
        let task = world.script("echo over TLS; exit 3");
        world.start(&task).await;
        assert_eq!(world.wait(&task).await.exit_code, 3);
        assert_eq!(world.log("stdout"), "over TLS\n");
        world.driver.destroy_task(&task.id, false).await.unwrap();
        // Sessions have a connection of their own.
        let task = world.script("sleep 1000");
        world.start(&task).await;
        let (out, _, status) = session(&world, &task, &["/bin/cat"], false, "in\n").await;
        assert_eq!((out.as_str(), status), ("in\n", 0));
        world.driver.destroy_task(&task.id, true).await.unwrap();
        // No certificate, and an authority that did not sign the engine's.
        let strange = tempfile::tempdir().unwrap();
        registry::certificates(strange.path(), &["client"]);
        std::fs::copy(strange.path().join("ca.pem"), dir.join("strange.pem")).unwrap();
        for (cert, ca) in [("", "ca.pem"), ("client", "strange.pem")] {
            set_config(&world.driver, host, tls(cert, ca));
            assert_ne!(world.driver.fingerprint().await.health, Health::Healthy, "{cert} {ca}");
        }
        set_config(&world.driver, host, tls("client", "missing.pem"));
        let said = world.driver.fingerprint().await.description;
        assert!(said.contains("Failed to initialize docker client") && said.contains("missing.pem"), "{said}");
        // And the logger that an agent starts.
        let name = world.name();
        let id = engine().docker(&["run", "-d", "--network", "none", "--name", &name, IMAGE, "echo", "copied"]);
        let behind = Behind::another(&world);
        let logger = launch(Role::DockerLogger).await;
        let request = StartRequest {
            endpoint: host.clone(),
            container_id: id,
            stdout_fifo: logs_path(&world, ".web.stdout.fifo"),
            stderr_fifo: logs_path(&world, ".web.stderr.fifo"),
            tls_cert: file("client.pem"),
            tls_key: file("client-key.pem"),
            tls_ca: file("ca.pem"),
            ..StartRequest::default()
        };
        DockerLoggerClient::new(logger.channel()).start(request).await.unwrap();
        eventually("the logger copies", || world.log("stdout").ends_with("copied\n")).await;
        logger.kill().await;
        behind.end();
        engine().docker(&["rm", "-f", &name]);
        world.assert_nothing_left().await;
    });
}

/// Whether the engine has an image of this name.
async fn has_image(name: &str) -> bool {
    engine().api().image(name).await.unwrap().is_some()
}

/// `TestDockerCoordinator_ConcurrentPulls`, `…_Pull_Remove`, `…_Remove_Cancel`, `…_No_Cleanup`.
fn e1_an_image_is_fetched_once_and_removed_after_the_last_task() {
    block_on(async {
        let registry =
            Registry::start(engine::busybox(), "of the registry", None, Pace::Tenths(Duration::from_millis(50)));
        let (name, proxy) = (registry.name("test/busybox:1"), Proxy::new(engine(), None));
        let world = World::with(&proxy.endpoint(), json!({ "gc": { "image": true, "image_delay": "1s" } }));
        let starts = if full() { 20 } else { 8 };
        let mut tasks: Vec<TaskConfig> = (0..starts).map(|_| world.task(json!({ "image": name.as_str() }))).collect();
        for (number, task) in tasks.iter_mut().enumerate() {
            task.name = format!("t{number}");
            task.cgroup = PathBuf::from(format!("nomad/{}-{}", world.alloc, task.name));
            task.logs.as_mut().unwrap().stdout_file = format!("{}.stdout", task.name);
            task.logs.as_mut().unwrap().stderr_file = format!("{}.stderr", task.name);
            for folder in ["local", "secrets", "tmp"] {
                std::fs::create_dir_all(world.alloc_dir().join(&task.name).join(folder)).unwrap();
            }
        }
        let mut events = world.driver.task_events().unwrap();
        let starting: Vec<_> = tasks
            .iter()
            .map(|task| {
                let (driver, task) = (world.driver.clone(), task.clone());
                tokio::spawn(async move { driver.start_task(&task).await })
            })
            .collect();
        for start in starting {
            start.await.unwrap().unwrap();
        }
        let asked = || proxy.log().iter().filter(|call| call.contains("/images/create")).count();
        assert_eq!((asked(), registry.counts().1), (1, 1), "{starts} starts, one pull");
        // Each that waited for it says so; none for an image that is there.
        let downloads = |events: &mut tokio::sync::broadcast::Receiver<agentbin::driver::TaskEvent>| {
            let events =
                std::iter::from_fn(|| events.try_recv().ok()).filter(|event| event.message == "Downloading image");
            events.inspect(|event| assert!(event.annotations["image"].contains("test/busybox"), "{event:?}")).count()
        };
        assert_eq!(downloads(&mut events), starts);
        for task in &tasks {
            assert_eq!(world.wait(task).await.exit_code, 0);
        }
        let said = std::fs::read_to_string(world.alloc_dir().join("alloc/logs/t7.stdout.0")).unwrap();
        assert_eq!(said, "of the registry\n", "the image's own command");
        let (last, others) = tasks.split_last().unwrap();
        for task in others {
            world.driver.destroy_task(&task.id, false).await.unwrap();
        }
        // While one uses it, and while somebody comes back within the delay, it stays.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(has_image(&name).await, "the last task has it");
        world.driver.destroy_task(&last.id, false).await.unwrap();
        world.start(last).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(has_image(&name).await, "it is used again");
        world.wait(last).await;
        world.driver.destroy_task(&last.id, false).await.unwrap();
        let deadline = Instant::now() + Duration::from_mins(1);
        while has_image(&name).await {
            assert!(Instant::now() < deadline, "{name} stays");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // By digest; not a second time when it is there, but when it is forced; and it stays without `gc`.
        let keeping = World::with(&proxy.endpoint(), json!({ "gc": { "image": false, "image_delay": "0s" } }));
        let by_digest = registry.name(&format!("test/busybox@{}", registry.digest()));
        let before = asked();
        for (config, pulls) in [
            (json!({ "image": by_digest }), 1),
            (json!({ "image": by_digest }), 1),
            (json!({ "image": by_digest, "force_pull": true }), 2),
        ] {
            let task = keeping.task(config);
            let mut events = keeping.driver.task_events().unwrap();
            let already = asked() - before;
            assert_eq!(keeping.run(&task).await.exit_code, 0);
            assert_eq!((asked() - before, downloads(&mut events)), (pulls, pulls - already));
        }
        assert!(has_image(&by_digest).await);
        engine().docker(&["rmi", &by_digest]);
        world.assert_nothing_left().await;
        keeping.assert_nothing_left().await;
    });
}

/// `TestDockerDriver_AuthFromTaskConfig`, `…_AuthConfiguration`, `…_authFromHelper`.
fn e1_registries_ask_for_credentials() {
    use std::process::{Command, Stdio};
    block_on(async {
        let registry = Registry::start(engine::busybox(), "secret", Some("me:word"), Pace::AtOnce);
        let (dir, host) = (tempfile::tempdir().unwrap(), registry.host().to_owned());
        let image = registry.name("private:1");
        let file = dir.path().join("config.json");
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, "me:word");
        std::fs::write(&file, json!({ "auths": { host.as_str(): { "auth": encoded } } }).to_string()).unwrap();
        let world = World::new();
        let run = async |config: Value| {
            let task = world.task(config);
            let started = world.driver.start_task(&task).await.map(|_| ());
            if started.is_ok() {
                assert_eq!(world.wait(&task).await.exit_code, 0);
                world.driver.destroy_task(&task.id, false).await.unwrap();
                engine().docker(&["rmi", "-f", &image]);
            }
            started
        };
        let nobody = run(json!({ "image": image })).await.unwrap_err().to_string();
        assert!(nobody.contains("Failed to pull") && !nobody.contains("word"), "{nobody}");
        let wrong = json!({ "image": image, "auth": { "username": "me", "password": "wrong-one" } });
        let wrong = run(wrong).await.unwrap_err().to_string();
        assert!(wrong.contains("Failed to pull") && !wrong.contains("wrong-one"), "{wrong}");
        let right = json!({ "username": "me", "password": "word", "server_address": host, "email": "ignored" });
        run(json!({ "image": image, "auth": right })).await.unwrap();
        set_config(&world.driver, &engine().endpoint(), json!({ "auth": { "config": file.display().to_string() } }));
        run(json!({ "image": image })).await.unwrap();
        // A file that is not there fails the start, unless that is to be passed over.
        set_config(&world.driver, &engine().endpoint(), json!({ "auth": { "config": "/nonexistent/config.json" } }));
        let missing = run(json!({ "image": image })).await.unwrap_err().to_string();
        assert!(missing.contains("Failed to find docker auth for repo"), "{missing}");
        let soft = run(json!({ "image": image, "auth_soft_fail": true })).await.unwrap_err().to_string();
        assert!(soft.contains("Failed to pull"), "{soft}");

        // A helper is a program in PATH, so this is a process of its own.
        let text = "#!/bin/sh\n[ \"$1\" = get ] || exit 1\nread -r host || true\n\
                    case $0 in *-none) echo credentials not found in native keychain; exit 1;; esac\n\
                    echo \"{\\\"ServerURL\\\":\\\"$host\\\",\\\"Username\\\":\\\"me\\\",\\\"Secret\\\":\\\"word\\\"}\"\n";
        for name in ["tests", "none"] {
            let helper = dir.path().join(format!("docker-credential-{name}"));
            std::fs::write(&helper, text).unwrap();
            std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let (config, task) = (dir.path().join("plugin.hcl"), dir.path().join("task.hcl"));
        let id = format!("{}/web/helped", world.alloc);
        let alloc_dir = world.alloc_dir().display().to_string();
        let text = format!(
            "id = \"{id}\"\nname = \"web\"\nalloc_dir = \"{alloc_dir}\"\nconfig {{\n  image = \"{image}\"\n  \
             network_mode = \"none\"\n}}\n"
        );
        std::fs::write(&task, text).unwrap();
        let agentbin = env!("CARGO_BIN_EXE_agentbin");
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let script = dir.path().join("script");
        let steps = format!("start {}\nwait {id}\ndestroy {id}\n", task.display());
        std::fs::write(&script, steps).unwrap();
        let named_in = |name: &str, content: Value| {
            let path = dir.path().join(name);
            std::fs::write(&path, content.to_string()).unwrap();
            format!("config = \"{}\"", path.display())
        };
        let host = host.as_str();
        // By the plugin's configuration; by the file for this registry, beside the empty entry that a login leaves; by the file for
        // all registries.
        for auth in [
            "helper = \"tests\"".to_owned(),
            named_in("one", json!({ "auths": { host: {} }, "credHelpers": { host: "tests" }, "credsStore": "other" })),
            named_in("all", json!({ "credHelpers": { host: "none", "other.io": "other" }, "credsStore": "tests" })),
        ] {
            let plugin = format!("endpoint = \"{}\"\nauth {{\n  {auth}\n}}\n", engine().endpoint());
            std::fs::write(&config, plugin).unwrap();
            let out = Command::new(agentbin)
                .args(["plugin", "launch", agentbin, "driver", "docker", "--config", config.to_str().unwrap()])
                .env("PATH", &path)
                .stdin(Stdio::from(std::fs::File::open(&script).unwrap()))
                .output()
                .unwrap();
            let said = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            assert!(out.status.success() && said.contains("\"exit_code\":0"), "{auth}: {said}");
            engine().docker(&["rmi", "-f", &image]);
        }
        world.assert_nothing_left().await;
    });
}

/// `TestDockerDriver_PullImage_Timeouts`. Silence and progress are told after a minute and two: at full length only.
fn e1_a_pull_that_stalls() {
    block_on(async {
        let layer = engine::busybox();
        let registry = Registry::start(layer.clone(), "late", None, Pace::Never);
        let world =
            World::with(&engine().endpoint(), json!({ "image_pull_timeout": "90s", "pull_activity_timeout": "60s" }));
        let task = world.task(json!({ "image": registry.name("stalls:1"), "image_pull_timeout": "2s" }));
        let late = world.driver.start_task(&task).await.unwrap_err();
        assert!(matches!(late, DriverError::Failed { recoverable: true, .. }), "{late:?}");
        assert!(late.to_string().ends_with("not done within 2s"), "{late}");
        // The next one begins anew, and this time it comes.
        registry.go_on();
        let task = world.task(json!({ "image": registry.name("stalls:1") }));
        assert_eq!(world.run(&task).await.exit_code, 0);
        engine().docker(&["rmi", &registry.name("stalls:1")]);
        if full() {
            let silent = Registry::start(layer.clone(), "silent", None, Pace::Never);
            let task = world.task(json!({ "image": silent.name("silent:1") }));
            let error = world.driver.start_task(&task).await.unwrap_err().to_string();
            assert!(error.contains("nothing received for 60s"), "{error}");
            let slow = Registry::start(layer, "slow", None, Pace::Tenths(Duration::from_secs(15)));
            set_config(&world.driver, &engine().endpoint(), json!({}));
            let mut events = world.driver.task_events().unwrap();
            let task = world.task(json!({ "image": slow.name("slow:1") }));
            assert_eq!(world.run(&task).await.exit_code, 0);
            let mut said = Vec::new();
            while let Ok(event) = events.try_recv() {
                said.push(event.message);
            }
            let told = said.iter().find(|message| message.starts_with("Docker image pull progress: Pulled 0/1 ("));
            println!("{}", told.expect("a pull of two minutes tells how far it is"));
            engine().docker(&["rmi", &slow.name("slow:1")]);
        }
        world.assert_nothing_left().await;
    });
}

/// Whoever writes a task's logs goes by other sizes than those of its `config`, and an event says so.
fn n2_sizes_that_nobody_goes_by_are_told_of() {
    block_on(async {
        let world = World::new();
        let driver = DockerDriver::new(settings(Host::NOMAD, world.dir.path()));
        for (collect, told) in [(false, true), (true, false)] {
            set_config(&driver, &engine().endpoint(), json!({ "collect_logs": collect }));
            let mut events = driver.task_events().unwrap();
            let mut task = world.task(json!({ "command": "true", "logs": { "max_files": 3 } }));
            task.logs = None;
            driver.start_task(&task).await.unwrap();
            driver.wait_task(&task.id).await.unwrap();
            driver.destroy_task(&task.id, true).await.unwrap();
            let mut of_logs = false;
            while let Ok(event) = events.try_recv() {
                of_logs |= event.message.contains("logs block in this task's config");
            }
            assert_eq!(of_logs, told, "collect_logs = {collect}");
        }
        world.assert_nothing_left().await;
    });
}

fn e5_volumes_are_split_and_stay_below_the_allocation() {
    block_on(async {
        let world = World::new();
        std::fs::write(world.alloc_dir().join("web/local/file"), "inside\n").unwrap();
        // What the parts mean is the engine's business.
        let task = world.task(json!({
            "command": "sh", "args": ["-c", "cat /in/file; echo x > /in/file2 || echo read-only"],
            "volumes": ["local:/in:ro", "../alloc/data:/data"],
        }));
        assert_eq!(world.run(&task).await.exit_code, 0);
        assert_eq!(world.log("stdout"), "inside\nread-only\n");
        std::os::unix::fs::symlink("/etc", world.alloc_dir().join("web/local/link")).unwrap();
        for source in ["/etc", "../../..", "local/link", "local/link/passwd"] {
            let task = world.task(json!({ "command": "true", "volumes": [format!("{source}:/x")] }));
            let error = world.driver.start_task(&task).await.unwrap_err().to_string();
            assert!(error.contains("volumes are not enabled; cannot mount host path"), "{source}: {error}");
            let mount = json!([{ "type": "bind", "source": source, "target": "/x" }]);
            let task = world.task(json!({ "command": "true", "mount": mount }));
            let error = world.driver.start_task(&task).await.unwrap_err().to_string();
            assert!(error.contains("volumes are not enabled"), "{source}: {error}");
        }
        // A bad mode is for the engine to say, and leaves nothing.
        let task = world.task(json!({ "command": "true", "volumes": ["local:/x:nonsense"] }));
        let error = world.driver.start_task(&task).await.unwrap_err().to_string();
        assert!(error.contains("Failed to create container"), "{error}");
        set_config(&world.driver, &engine().endpoint(), json!({ "volumes": { "enabled": true } }));
        let task = world.task(json!({ "command": "ls", "args": ["/x/passwd"], "volumes": ["/etc:/x:ro"] }));
        assert_eq!(world.run(&task).await.exit_code, 0);
        world.assert_nothing_left().await;
    });
}

/// What of a container would be the host's, and not the allocation's.
fn of_the_host(body: &Value, alloc_dir: &Path) -> Vec<String> {
    let host = &body["HostConfig"];
    let list = |key: &str| host[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    let binds = list("Binds").into_iter().map(|bind| text(&bind).split(':').next().unwrap_or_default().to_owned());
    let mounts = list("Mounts").into_iter().filter(|mount| mount["Type"] == "bind").map(|mount| text(&mount["Source"]));
    for source in binds.chain(mounts) {
        // A link to nowhere leads to what the engine makes there.
        let leads = std::fs::canonicalize(&source)
            .or_else(|error| if Path::new(&source).is_symlink() { Err(error) } else { Ok(PathBuf::from(&source)) });
        if !leads.is_ok_and(|path| path.starts_with(alloc_dir)) {
            found.push(source);
        }
    }
    found.extend(list("Mounts").iter().filter(|mount| mount["Type"] == "volume").map(ToString::to_string));
    for key in ["PidMode", "IpcMode", "UTSMode", "UsernsMode", "VolumeDriver", "Runtime", "CgroupParent"] {
        let ours = key == "CgroupParent" && text(&host[key]).starts_with("/nomad");
        if !text(&host[key]).is_empty() && !ours {
            found.push(format!("{key}: {}", host[key]));
        }
    }
    found.extend((host["Privileged"] == json!(true)).then(|| "Privileged".to_owned()));
    found.extend(list("CapAdd").iter().map(|capability| format!("CapAdd: {capability}")));
    found
}

/// B10: nothing of the host's is in a container's description unless the plugin's options say so.
fn b10_hostile_configurations_reach_no_engine() {
    let options = json!({
        "allow_privileged": true, "volumes": { "enabled": true }, "allow_runtimes": ["kata", "/bin/sh"],
        "allow_caps": ["all"],
    });
    block_on(async {
        let proxy = Proxy::new(engine(), Some((Route::Create, Fault::Refuse, 0)));
        let (closed, open) =
            (World::with(&proxy.endpoint(), json!({})), World::with(&proxy.endpoint(), options.clone()));
        let mut configs = Vec::new();
        let sources = [
            "/",
            "/etc",
            "//etc",
            "/etc/../etc/.",
            "/etc/",
            "/proc/1/root",
            "/proc/self/cwd",
            "/dev",
            "/run/docker.sock",
            "..//../..",
            "../../../../../../../etc",
            "./../../.",
            "local/../../../..",
            "local/link",
            "local/link/",
            "local/link/.",
            "local/link/passwd",
            "local/chain/passwd",
            "local/dangling",
            "secrets/../local/link",
        ];
        for source in sources {
            configs.push(json!({ "volumes": [format!("{source}:/x")] }));
            configs.push(json!({ "volumes": [format!("{source}:/x:ro,rshared")] }));
            let bind = json!({ "propagation": "rshared" });
            configs.push(
                json!({ "mount": [{ "type": "bind", "source": source, "target": "/x", "bind_options": [bind] }] }),
            );
        }
        let device = json!({ "name": "local", "options": [{ "type": "none", "o": "bind", "device": "/" }] });
        configs.extend([
            json!({ "mount": [{ "source": "v", "target": "/x", "volume_options": [{ "driver_config": [device] }] }] }),
            json!({ "mount": [{ "type": "volume", "source": "", "target": "/x" }] }),
            json!({ "mounts": [{ "type": "volume", "source": "/etc", "target": "/x" }] }),
            json!({ "volumes": ["v:/x"], "volume_driver": "local" }),
            json!({ "privileged": true }),
            json!({ "pid_mode": "host" }),
            json!({ "pid_mode": "container:x" }),
            json!({ "ipc_mode": "host" }),
            json!({ "ipc_mode": "container:x" }),
            json!({ "uts_mode": "host" }),
            json!({ "userns_mode": "host" }),
            json!({ "runtime": "kata" }),
            json!({ "runtime": "/bin/sh" }),
            json!({ "cap_add": ["sys_admin"] }),
            json!({ "cap_add": ["all"] }),
            json!({ "cap_add": ["CAP_SYS_PTRACE"] }),
        ]);
        for world in [&closed, &open] {
            let local = world.alloc_dir().join("web/local");
            for (name, target) in [("link", "/etc"), ("chain", "link"), ("dangling", "/nowhere-at-all")] {
                std::os::unix::fs::symlink(target, local.join(name)).unwrap();
            }
        }
        let starts = async |world: &World, config: &Value| {
            let error = world.driver.start_task(&world.task(config.clone())).await.unwrap_err().to_string();
            (error, proxy.creates())
        };
        for config in &configs {
            let (error, creates) = starts(&closed, config).await;
            assert!(creates.is_empty(), "{config}: {error}: {creates:?}");
            // That it is dangerous is seen where the options allow it.
            let (error, creates) = starts(&open, config).await;
            let seen: Vec<_> = creates.iter().flat_map(|body| of_the_host(body, &open.alloc_dir())).collect();
            assert!(!seen.is_empty(), "{config}: {error}: {creates:?}");
        }
        // What no option allows.
        let fifo = closed.alloc_dir().join("web/local/fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for config in [
            json!({ "cgroup_parent": "/" }),
            json!({ "volumes_from": ["x"] }),
            json!({ "image": "none:1", "load": "../../../../../../etc/passwd" }),
            json!({ "image": "none:1", "load": "link/passwd" }),
            json!({ "security_opt": ["seccomp=/etc/shadow"] }),
            json!({ "security_opt": ["seccomp=/dev/zero"] }),
            json!({ "security_opt": [format!("seccomp={}", fifo.display())] }),
        ] {
            let (error, creates) = starts(&closed, &config).await;
            assert!(creates.is_empty() && !error.contains("root:"), "{config}: {error}: {creates:?}");
        }
        // A harmless one does reach it, and nothing else was missing.
        let (_, creates) = starts(&closed, &json!({ "volumes": ["local/.:/x"], "command": "true" })).await;
        let seen: Vec<_> = creates.iter().flat_map(|body| of_the_host(body, &closed.alloc_dir())).collect();
        assert!(creates.len() == 1 && seen.is_empty(), "{creates:?}: {seen:?}");
        closed.assert_nothing_left().await;
    });
}

/// B10: a container that had its task's directory as a volume has put something in the place of what the next one is given.
fn b10_what_a_task_left_in_its_folder_is_not_followed() {
    block_on(async {
        let proxy = Proxy::new(engine(), Some((Route::Create, Fault::Refuse, 0)));
        for volumes in [false, true] {
            let config = json!({ "volumes": { "enabled": volumes } });
            for place in ["alloc", "alloc/logs", "web/local", "web/secrets"] {
                let world = World::with(&proxy.endpoint(), config.clone());
                std::fs::remove_dir_all(world.alloc_dir().join(place)).unwrap();
                std::os::unix::fs::symlink("/etc", world.alloc_dir().join(place)).unwrap();
                let error = world.driver.start_task(&world.task(json!({}))).await.unwrap_err().to_string();
                assert!(error.contains("it is a link"), "{place}: {error}");
            }
            for what in ["link", "second name", "fifo"] {
                let world = World::with(&proxy.endpoint(), config.clone());
                let (hosts, victim) = (world.alloc_dir().join("web/hosts"), world.alloc_dir().join("victim"));
                std::fs::write(&victim, "whole").unwrap();
                match what {
                    "link" => std::os::unix::fs::symlink(&victim, &hosts).unwrap(),
                    "second name" => std::fs::hard_link(&victim, &hosts).unwrap(),
                    _ => nix::unistd::mkfifo(&hosts, nix::sys::stat::Mode::S_IRWXU).unwrap(),
                }
                // Of a container in the group's network, which has the group's file.
                let mut task = world.task(json!({ "network_mode": "" }));
                task.network = Some(NetworkIsolation {
                    hosts: Some(("name".to_owned(), "10.0.0.2".to_owned())),
                    ..NetworkIsolation::default()
                });
                let started = tokio::time::timeout(Duration::from_mins(1), world.driver.start_task(&task)).await;
                let error = started.expect("nobody waits for a reader").unwrap_err().to_string();
                assert!(error.contains("failed to write"), "{what}: {error}");
                assert_eq!(std::fs::read_to_string(&victim).unwrap(), "whole", "{what}");
            }
        }
        assert_eq!(proxy.creates(), Vec::<Value>::new());
    });
}

/// D38: what other keys of the plugin allow reaches the engine without a minimum, and not with one.
fn d38_a_minimum_wins_over_what_the_plugin_allows() {
    let with = |minimum: Option<&str>| {
        let mut options = json!({
            "allow_privileged": true, "volumes": { "enabled": true }, "allow_runtimes": ["nvidia", "runc"],
            "allow_caps": ["all"], "allow_drivers": ["docker"],
        });
        if let Some(minimum) = minimum {
            options.as_object_mut().unwrap().insert("isolation_minimum".into(), minimum.into());
        }
        options
    };
    block_on(async {
        let proxy = Proxy::new(engine(), Some((Route::Create, Fault::Refuse, 0)));
        let world = |minimum| World::with(&proxy.endpoint(), with(minimum));
        let (free, at_default, at_strict) = (world(None), world(Some("default")), world(Some("strict")));
        for world in [&free, &at_default, &at_strict] {
            let local = world.alloc_dir().join("web/local");
            std::os::unix::fs::symlink("/etc", local.join("link")).unwrap();
            std::os::unix::fs::symlink("../../other/secrets", local.join("sibling")).unwrap();
            std::fs::create_dir_all(world.alloc_dir().join("other/secrets")).unwrap();
        }
        let starts = async |world: &World, task: TaskConfig| {
            let error = world.driver.start_task(&task).await.unwrap_err().to_string();
            (error, proxy.creates())
        };
        let device = json!({ "name": "local", "options": [{ "type": "none", "o": "bind", "device": "/" }] });
        for config in [
            json!({ "volumes": ["/etc:/x"] }),
            json!({ "volumes": ["local/link:/x"] }),
            json!({ "volumes": ["local/sibling:/x"] }),
            json!({ "volumes": ["../other/secrets:/x"] }),
            json!({ "mount": [{ "type": "bind", "source": "local/link/ssl", "target": "/x" }] }),
            json!({ "mount": [{ "source": "v", "target": "/x", "volume_options": [{ "driver_config": [device] }] }] }),
            json!({ "mount": [{ "type": "volume", "source": "of-another-job", "target": "/x" }] }),
            json!({ "volumes": ["v:/x"], "volume_driver": "local" }),
            json!({ "privileged": true }),
            json!({ "network_mode": "host" }),
            json!({ "network_mode": "container:x" }),
            json!({ "pid_mode": "host" }),
            json!({ "ipc_mode": "host" }),
            json!({ "uts_mode": "host" }),
            json!({ "userns_mode": "host" }),
            json!({ "cgroupns": "host" }),
            json!({ "devices": [{ "host_path": "/dev/null" }] }),
            json!({ "cap_add": ["sys_admin"] }),
            json!({ "security_opt": ["seccomp=unconfined"] }),
            json!({ "security_opt": ["apparmor=unconfined"] }),
            json!({ "security_opt": ["no-new-privileges:false"] }),
            json!({ "group_add": ["0"] }),
            json!({ "oom_score_adj": -500 }),
            json!({ "pids_limit": -1 }),
            json!({ "ulimit": [{ "core": "-1" }] }),
            json!({ "runtime": "nvidia" }),
            json!({ "logging": [{ "type": "syslog" }] }),
        ] {
            for (world, minimum) in [(&at_default, "default"), (&at_strict, "strict")] {
                let (error, creates) = starts(world, world.task(config.clone())).await;
                // By the rule of its key, or because a link is in the way.
                let named = error.contains(&format!("--isolation-minimum {minimum}")) || error.contains("cannot mount");
                assert!(creates.is_empty() && named, "{config} at {minimum}: {error}: {creates:?}");
            }
            let (error, creates) = starts(&free, free.task(config.clone())).await;
            assert!(!creates.is_empty(), "{config} is not an attack: {error}");
        }
        // What an agent hands over beside the configuration.
        let volume = |readonly, propagation| Mount {
            task_path: "/v".to_owned(),
            host_path: PathBuf::from("/usr"),
            readonly,
            propagation,
            ..Mount::default()
        };
        for (world, mount, refused) in [
            (&free, volume(false, Propagation::Bidirectional), false),
            (&at_default, volume(false, Propagation::Bidirectional), true),
            (&at_default, volume(false, Propagation::Private), false),
            (&at_strict, volume(false, Propagation::Private), true),
            (&at_strict, volume(true, Propagation::Private), false),
        ] {
            let task = TaskConfig { mounts: vec![mount.clone()], ..world.task(json!({})) };
            let (error, creates) = starts(world, task).await;
            assert_eq!(creates.is_empty(), refused, "{mount:?}: {error}");
        }
        // What the engine is asked for beside.
        for (world, network, drop) in
            [(&free, "default", None), (&at_default, "default", Some("CAP_MKNOD")), (&at_strict, "none", Some("ALL"))]
        {
            let task = world.task(json!({ "network_mode": "", "security_opt": ["no-new-privileges=true"] }));
            let (error, creates) = starts(world, task).await;
            let host = &creates.first().unwrap_or_else(|| panic!("{error}"))["HostConfig"];
            let drops = |name: &str| host["CapDrop"].as_array().is_some_and(|drops| drops.contains(&json!(name)));
            assert_eq!((host["NetworkMode"].as_str(), drop.is_none_or(drops)), (Some(network), true), "{host}");
            let held = drop.is_some();
            assert_eq!(host["PidsLimit"], json!(if held { 4096 } else { -1 }));
            let core = json!([{ "Name": "core", "Soft": 0, "Hard": 0 }]);
            assert_eq!(host["Ulimits"], if held { core } else { Value::Null });
            let option = if held { "no-new-privileges" } else { "no-new-privileges=true" };
            assert_eq!(host["SecurityOpt"], json!([option]));
        }
        // Strict, and not named.
        let mut unnamed = with(Some("strict"));
        unnamed.as_object_mut().unwrap().remove("allow_drivers");
        let unnamed = World::with(&proxy.endpoint(), unnamed);
        let (error, creates) = starts(&unnamed, unnamed.task(json!({}))).await;
        assert!(creates.is_empty() && error.contains("--allow-driver docker"), "{error}: {creates:?}");
        let fingerprint = unnamed.driver.fingerprint().await;
        assert_eq!(fingerprint.health, Health::Undetected, "an agent sends it no tasks");
    });
}

/// D39: seen from inside a container of a real engine.
fn d39_a_container_at_a_minimum_is_held() {
    block_on(async {
        for (minimum, capabilities) in [("default", None), ("strict", Some("0000000000000000"))] {
            let config = json!({ "isolation_minimum": minimum, "allow_drivers": ["docker"] });
            let world = World::with(&engine().endpoint(), config);
            let task = world.script("cat /proc/self/status /proc/self/limits; echo links: $(ls /sys/class/net); mknod /tmp/n c 1 3 && echo made");
            world.start(&task).await;
            let exit = world.driver.wait_task(&task.id).await.unwrap();
            assert_ne!(exit.exit_code, 0, "mknod");
            eventually("its output", || world.log("stdout").contains("links:")).await;
            let said = world.log("stdout");
            let field = |name: &str| {
                let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{said}"));
                line.trim().to_owned()
            };
            assert_eq!(field("NoNewPrivs:"), "1");
            assert!(capabilities.is_none_or(|none| field("CapBnd:") == none), "{said}");
            // D93: FSETID, NET_RAW, MKNOD and SETFCAP, which an engine gives by itself.
            let held = u64::from_str_radix(&field("CapBnd:"), 16).unwrap();
            assert_eq!(held & (1 << 4 | 1 << 13 | 1 << 27 | 1 << 31), 0, "{said}");
            assert!(field("Max core file size").starts_with("0 "), "{said}");
            assert_eq!((field("links:").as_str(), said.contains("made")), ("lo", false), "{said}");
            world.driver.destroy_task(&task.id, false).await.unwrap();
            world.assert_nothing_left().await;
        }
    });
}

fn f2_mounts_propagate_as_asked() {
    block_on(async {
        let world = World::new();
        let dir = world.dir.path().join("volume");
        std::fs::create_dir(&dir).unwrap();
        for (propagation, expected) in [
            (Propagation::Private, "rprivate"),
            (Propagation::HostToTask, "rslave"),
            (Propagation::Bidirectional, "rshared"),
        ] {
            let mut task = world.task(json!({ "command": "sleep", "args": ["1000"] }));
            task.mounts = vec![Mount {
                task_path: "/volume".to_owned(),
                host_path: PathBuf::from("/dev/shm"),
                readonly: false,
                propagation,
                ..Mount::default()
            }];
            match world.driver.start_task(&task).await {
                Ok(_) => {
                    let format = "{{range .Mounts}}{{if eq .Destination \"/volume\"}}{{.Propagation}}{{end}}{{end}}";
                    assert_eq!(engine().docker(&["inspect", "-f", format, &world.name()]), expected);
                    world.driver.destroy_task(&task.id, true).await.unwrap();
                }
                // The engine sees what the host does not share.
                Err(error) => {
                    assert!(
                        expected != "rprivate" && error.to_string().contains("not a shared"),
                        "{expected}: {error}"
                    );
                }
            }
        }
        world.assert_nothing_left().await;
    });
}

/// `TestDockerDriver_CreationIdempotent`, `…_ContainerAlreadyExists`.
fn e2_create_converges_with_what_is_there() {
    block_on(async {
        let world = World::new();
        // One of an earlier start that has ended goes.
        let first = world.script("exit 0");
        world.start(&first).await;
        world.wait(&first).await;
        let second = world.script("sleep 1000");
        world.start(&second).await;
        assert_eq!(engine().containers(&world.label()).await.len(), 1);
        // One that runs with the same configuration is adopted.
        let before = world.driver.inspect_task(&second.id).await.unwrap().attributes["container_id"].clone();
        let third = world.script("sleep 1000");
        world.start(&third).await;
        assert_eq!(world.driver.inspect_task(&third.id).await.unwrap().attributes["container_id"], before);
        // With another one it is replaced.
        let fourth = world.script("sleep 1001");
        world.start(&fourth).await;
        assert_eq!(engine().containers(&world.label()).await.len(), 1);
        assert_ne!(world.driver.inspect_task(&fourth.id).await.unwrap().attributes["container_id"], before);
        world.driver.destroy_task(&fourth.id, true).await.unwrap();
        // Somebody else's is not touched.
        let id = engine().docker(&["create", "--name", &world.name(), IMAGE, "true"]);
        let error = world.driver.start_task(&world.script("true")).await.unwrap_err().to_string();
        assert!(error.contains("is taken by a container that is not this allocation's"), "{error}");
        assert_eq!(engine().docker(&["inspect", "-f", "{{.Id}}", &world.name()]), id);
        engine().docker(&["rm", &id]);
        // Removed behind our back: destroy succeeds.
        let task = world.script("sleep 1000");
        world.start(&task).await;
        engine().docker(&["rm", "-f", &world.name()]);
        let lost = world.driver.wait_task(&task.id).await.unwrap_err().to_string();
        assert!(lost.contains("removed by somebody else"), "{lost}");
        world.driver.destroy_task(&task.id, false).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// E3: a 500, or nothing, after which the container runs is a success, and it was started once.
fn e3_starting_twice_is_starting_once() {
    block_on(async {
        for fault in [Fault::ErrorAfter, Fault::DropAnswer, Fault::Truncate] {
            let proxy = Proxy::new(engine(), Some((Route::Start, fault, 1)));
            let world = World::with(&proxy.endpoint(), json!({ "api_timeout": "10s" }));
            let task = world.script("echo once; sleep 1000");
            world.start(&task).await;
            assert!(proxy.was_hit());
            eventually("it runs", || world.log("stdout") == "once\n").await;
            assert_eq!(engine().docker(&["inspect", "-f", "{{.RestartCount}}", &world.name()]), "0");
            world.driver.destroy_task(&task.id, true).await.unwrap();
            world.assert_nothing_left().await;
        }
    });
}

/// A whole life in which one call goes wrong: exactly one container while it runs, none after it.
async fn life(route: Route, fault: Fault, nth: u32) {
    let what = format!("{route:?} {fault:?} {nth}");
    let proxy = Proxy::new(engine(), Some((route, fault, nth)));
    let world = World::with(&proxy.endpoint(), json!({ "api_timeout": "3s" }));
    let task = world.script("echo line; sleep 1000");
    let mut started = world.driver.start_task(&task).await;
    for _ in 0..3 {
        // What is recoverable is tried again by the restart policy.
        if matches!(started, Err(DriverError::Failed { recoverable: true, .. })) {
            started = world.driver.start_task(&task).await;
        }
    }
    started.unwrap_or_else(|error| panic!("{what}: {error}\n{:?}", proxy.log()));
    let containers = engine().containers(&world.label()).await;
    assert_eq!(containers.len(), 1, "{what}: {:?}", proxy.log());
    let seen = engine().api().inspect(&containers[0]).await.unwrap().unwrap();
    assert!(seen.running, "{what}");
    world.driver.stop_task(&task.id, Duration::from_secs(1), Some(Signal::KILL)).await.unwrap();
    let exit = world.wait(&task).await;
    assert_eq!(exit.exit_code, 137, "{what}");
    // It may have been killed before it said anything.
    assert_eq!(world.log("stdout"), kept(engine(), &containers[0], false).await.0, "{what}");
    let mut destroyed = world.driver.destroy_task(&task.id, false).await;
    for _ in 0..3 {
        if destroyed.is_err() {
            destroyed = world.driver.destroy_task(&task.id, true).await;
        }
    }
    destroyed.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(engine().containers(&world.label()).await, Vec::<String>::new(), "{what}: {:?}", proxy.log());
    assert!(proxy.was_hit() || nth > 1, "{what}: the call never came: {:?}", proxy.log());
}

fn e2_lost_answers_leave_one_container_and_then_none() {
    block_on(async {
        let all = ROUTES.into_iter().flat_map(|route| FAULTS.into_iter().map(move |fault| (route, fault)));
        let mut lives: Vec<(Route, Fault, u32)> = all.map(|(route, fault)| (route, fault, 1)).collect();
        if full() {
            let once = lives.clone();
            lives = (0..500u32).map(|n| once[n as usize % once.len()]).collect();
            for (n, life) in lives.iter_mut().enumerate() {
                life.2 = 1 + u32::try_from(n / 35 % 3).unwrap();
            }
        } else {
            // Each fault and each call, not each pair.
            lives = lives.into_iter().enumerate().filter(|(n, _)| n % 2 == 0).map(|(_, life)| life).collect();
        }
        let (total, begun) = (lives.len(), Instant::now());
        let queue = Arc::new(std::sync::Mutex::new(lives));
        let workers: Vec<_> = (0..6)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move {
                    loop {
                        let next = queue.lock().unwrap().pop();
                        let Some((route, fault, nth)) = next else { return };
                        life(route, fault, nth).await;
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await.unwrap();
        }
        println!("{total} lives with a lost answer in {:?}: one container each, none left", begun.elapsed());
    });
}

fn e2_an_engine_that_stands_still_or_crashes() {
    use nix::sys::signal::Signal as Unix;
    block_on(async {
        let (tasks, pause, crashes) = if full() { (20, 60, 50) } else { (3, 4, 1) };
        let worlds: Vec<World> =
            (0..tasks).map(|_| World::with(&engine().endpoint(), json!({ "api_timeout": "2s" }))).collect();
        let mut running = Vec::new();
        for world in &worlds {
            let task = world.script("echo up; sleep 1000");
            world.start(&task).await;
            running.push(task);
        }
        engine().signal(Unix::SIGSTOP);
        // A start against an engine that stands still fails, or comes about; it never doubles.
        let late = World::with(&engine().endpoint(), json!({ "api_timeout": "1s" }));
        let late_task = late.script("sleep 1000");
        let starting = async { late.driver.start_task(&late_task).await };
        let standing = async {
            tokio::time::sleep(Duration::from_secs(pause)).await;
            for (world, task) in worlds.iter().zip(&running) {
                let ended = tokio::time::timeout(Duration::ZERO, world.driver.wait_task(&task.id)).await;
                assert!(ended.is_err(), "unknown is not dead");
            }
            engine().signal(Unix::SIGCONT);
        };
        let (started, ()) = tokio::join!(starting, standing);
        for (world, task) in worlds.iter().zip(&running) {
            assert_eq!(engine().containers(&world.label()).await.len(), 1);
            assert_eq!(world.driver.inspect_task(&task.id).await.unwrap().exit, None);
            world.driver.destroy_task(&task.id, true).await.unwrap();
            world.assert_nothing_left().await;
        }
        let there = engine().containers(&late.label()).await.len();
        assert_eq!(there, usize::from(started.is_ok()), "{started:?}");
        if started.is_ok() {
            late.driver.destroy_task(&late_task.id, true).await.unwrap();
        }
        for round in 0..crashes {
            let world = World::with(&engine().endpoint(), json!({ "api_timeout": "5s" }));
            assert_eq!(world.driver.fingerprint().await.health, Health::Healthy);
            let task = world.script("sleep 1000");
            let crash = tokio::task::spawn_blocking(move || {
                // At another moment of the creation each time.
                #[expect(clippy::disallowed_methods, reason = "the moment is the subject; there is no event")]
                std::thread::sleep(Duration::from_millis(round * 17 % 400));
                engine().crash_and_restart();
            });
            let mut started = world.driver.start_task(&task).await;
            crash.await.unwrap();
            if matches!(started, Err(DriverError::Failed { recoverable: true, .. })) {
                started = world.driver.start_task(&task).await;
            }
            started.unwrap();
            assert_eq!(engine().containers(&world.label()).await.len(), 1, "round {round}");
            world.driver.destroy_task(&task.id, true).await.unwrap();
            world.assert_nothing_left().await;
        }
    });
}

fn e4_exactly_the_dangling_ones_go() {
    block_on(async {
        let world = World::new();
        let ours = world.script("sleep 1000");
        world.start(&ours).await;
        let grace = Duration::from_secs(1);
        let dir = world.alloc_dir().display().to_string();
        let run = |name: &str, options: &[&str]| {
            let base = ["run", "-d", "--network", "none", "--name", name];
            engine().docker(&[&base[..], options, &[IMAGE, "sleep", "1000"]].concat())
        };
        let alloc_label = world.label();
        let own = ["--label", "agentbin.node=node-1", "--label", &alloc_label];
        let mounts = |dir: &str| {
            [("alloc", "/alloc"), ("web/local", "/local"), ("web/secrets", "/secrets")]
                .map(|(from, to)| ["-v".to_owned(), format!("{dir}/{from}:{to}")])
                .concat()
        };
        let (real, foreign) = (mounts(&dir), mounts("/tmp/agentbin-nobody/0a1b2c3d-0000-4000-8000-00000000beef"));
        let (real, foreign): (Vec<&str>, Vec<&str>) =
            (real.iter().map(String::as_str).collect(), foreign.iter().map(String::as_str).collect());
        let suffix = &world.alloc;
        let mut dangling = vec![
            run("dangling", &own),
            run(&format!("go-{suffix}"), &real),
            engine().docker(&["create", "--name", "never-started", "--label", "agentbin.node=node-1", IMAGE, "true"]),
        ];
        let stays = [
            run("another-agents", &["--label", "agentbin.node=node-2", "--label", &alloc_label]),
            run("of-another-nomad", &["--label", &alloc_label]),
            run("look-alike-0a1b2c3d-0000-4000-8000-00000000beef", &foreign),
            run("by-hand", &[]),
            run(&format!("mytest-image-{suffix}"), &[]),
        ];
        let there = async || {
            let listed = engine().api().list(None, true).await.unwrap();
            listed.into_iter().map(|container| container.id).collect::<std::collections::BTreeSet<_>>()
        };
        let before = there().await;
        // Too young, then a dry run, then disabled: nothing happens.
        assert_eq!(world.driver.reconcile_now(Duration::from_mins(10)).await.unwrap(), Vec::<String>::new());
        tokio::time::sleep(grace * 2).await;
        let config = |enabled: bool, dry_run: bool| json!({ "gc": { "image": false, "dangling_containers": { "enabled": enabled, "dry_run": dry_run } } });
        set_config(&world.driver, &engine().endpoint(), config(true, true));
        let mut said = world.driver.reconcile_now(grace).await.unwrap();
        said.sort();
        dangling.sort();
        assert_eq!(said, dangling);
        set_config(&world.driver, &engine().endpoint(), config(false, false));
        assert_eq!(world.driver.reconcile_now(grace).await.unwrap(), Vec::<String>::new());
        assert_eq!(there().await, before);
        // Another agent on the same engine has nothing to remove but its own.
        set_config(&world.driver, &engine().endpoint(), config(true, false));
        let mut removed = world.driver.reconcile_now(grace).await.unwrap();
        removed.sort();
        assert_eq!(removed, dangling);
        let left = there().await;
        assert!(stays.iter().all(|id| left.contains(id)), "{left:?}");
        assert_eq!(left.len(), before.len() - dangling.len());
        assert_eq!(world.driver.inspect_task(&ours.id).await.unwrap().state, TaskState::Running);
        for id in &stays {
            engine().docker(&["rm", "-f", id]);
        }
        world.driver.destroy_task(&ours.id, true).await.unwrap();
        let _ = std::fs::remove_dir_all("/tmp/agentbin-nobody");
    });
}

/// N2: by the driver itself, without a process per task.
fn d3_output_is_complete_with_and_without_a_terminal() {
    block_on(async {
        let world = World::new();
        let long = "x".repeat(40_000);
        let task = world.script("seq 1 3000; seq 1 3000 >&2; head -c 40000 /dev/zero | tr '\\0' x; echo; printf tail");
        assert_eq!(world.run(&task).await.exit_code, 0);
        let numbers = (1..=3000).map(|n| format!("{n}\n")).collect::<Vec<_>>().concat();
        // The engine ends the last line itself.
        let expected = format!("{numbers}{long}\ntail");
        assert_eq!(world.log("stdout").trim_end(), expected, "long lines are whole again");
        assert_eq!(world.log("stderr"), numbers);

        let world = World::new();
        let script = "printf '\\001\\000\\000\\000\\000\\000\\000\\005abc\\n123\\n'; seq 1 500; head -c 40000 /dev/zero | tr '\\0' x; echo";
        let task = world.task(json!({ "command": "/bin/sh", "args": ["-c", script], "tty": true }));
        assert_eq!(world.run(&task).await.exit_code, 0);
        let numbers = (1..=500).map(|n| format!("{n}\r\n")).collect::<Vec<_>>().concat();
        let expected = format!("\u{1}\0\0\0\0\0\0\u{5}abc\r\n123\r\n{numbers}{long}\r\n");
        assert!(world.log("stdout") == expected, "{:?}", &world.log("stdout")[..60]);
        assert_eq!(world.log("stderr"), "");
    });
}

/// Who copies a chatty container's output.
enum Copied {
    /// The driver, into files; a killed one is followed by another.
    Driver(TaskHandle),
    /// A `docker_logger` into FIFOs, and who reads them.
    Logger(Box<agentbin::plugin::Client>, Behind),
}

/// Who reads the FIFOs of a `docker_logger`.
enum Behind {
    Logmon(Box<agentbin::plugin::Client>),
    /// Another's, which writes what it has every 100 ms.
    Another(Arc<std::sync::atomic::AtomicBool>, Vec<std::thread::JoinHandle<()>>),
}

async fn launch(role: agentbin::spec::Role) -> agentbin::plugin::Client {
    use agentbin::plugin::{Launch, Program};
    Launch { new_session: true, ..Launch::new(Program::Own(role)) }.start().await.unwrap()
}

fn logs_path(world: &World, name: &str) -> String {
    world.alloc_dir().join("alloc/logs").join(name).display().to_string()
}

impl Behind {
    fn another(world: &World) -> Behind {
        let end = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let readers = ["web.stdout", "web.stderr"].map(|base| {
            let (fifo, file) = (logs_path(world, &format!(".{base}.fifo")), logs_path(world, &format!("{base}.0")));
            nix::unistd::mkfifo(fifo.as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
            let end = Arc::clone(&end);
            std::thread::spawn(move || buffered(&fifo, &file, &end))
        });
        Behind::Another(end, readers.into())
    }

    /// Reads what is left, and ends.
    fn end(self) {
        let Behind::Another(end, readers) = self else { return };
        end.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    }

    /// As an agent does that finds both again; a logmon whose writer has gone begins anew.
    async fn go_on(&self, world: &World) {
        use agentbin::wire::logmon::{StartRequest, log_mon_client::LogMonClient};
        let Behind::Logmon(host) = self else { return };
        let request = StartRequest {
            log_dir: logs_path(world, ""),
            stdout_file_name: "web.stdout".to_owned(),
            stderr_file_name: "web.stderr".to_owned(),
            max_files: 10,
            max_file_size_mb: 10,
            stdout_fifo: logs_path(world, ".web.stdout.fifo"),
            stderr_fifo: logs_path(world, ".web.stderr.fifo"),
        };
        LogMonClient::new(host.channel()).start(request).await.unwrap();
    }
}

/// Copies a FIFO into a file, with what came within 100 ms in its own memory.
fn buffered(fifo: &str, file: &str, end: &std::sync::atomic::AtomicBool) {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut options = std::fs::OpenOptions::new();
    // Open for writing, too: its writers come and go.
    let mut pipe = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(fifo).unwrap();
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(file).unwrap();
    let (mut held, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            if let Ok(length) = pipe.read(&mut buffer) {
                held.extend_from_slice(&buffer[..length]);
            } else {
                let mut fds = [rustix::event::PollFd::new(&pipe, rustix::event::PollFlags::IN)];
                let left = rustix::event::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                rustix::event::poll(&mut fds, Some(&left)).unwrap();
            }
        }
        out.write_all(&held).unwrap();
        if held.is_empty() && end.load(Ordering::Relaxed) {
            return;
        }
        held.clear();
    }
}

/// What an engine keeps of a container's output: standard output and standard error.
async fn kept(engine: &TestEngine, id: &str, tty: bool) -> (String, String) {
    use agentbin::docker::logs::{Channel, Decoder};
    let mut stream = engine.api().logs(id, 0, false).await.unwrap();
    let (mut decoder, mut texts) = (Decoder::new(tty), [Vec::new(), Vec::new()]);
    while let Some(bytes) = stream.next().await.unwrap() {
        decoder.push(&bytes);
        while let Some(message) = decoder.next_message().unwrap() {
            texts[usize::from(message.channel == Channel::Stderr)].extend(message.data);
        }
    }
    texts[0].extend(decoder.finish().into_iter().flat_map(|message| message.data));
    let [stdout, stderr] = texts.map(|text| String::from_utf8(text).unwrap());
    (stdout, stderr)
}

/// Docker 20.10 sends again what is in the new file of a log that it rotates, to those who follow; from pieces of a long line on, too.
fn d3_long_lines_come_once_when_the_engine_rotates_its_log() {
    let containers = if full() { 100 } else { 6 };
    // More than the two files of 2 MiB that the engine keeps would be lost by the engine itself.
    let script = "n=0; while [ $n -lt 10 ]; do head -c 200000 /dev/zero | tr '\\0' x; echo \" $n\"; seq 1 20; \
                  seq 1 17000 | tr '\\n' ' ' >&2; echo \" $n\" >&2; n=$((n+1)); done";
    block_on(async {
        let one = async || {
            let world = World::new();
            let task = world.script(script);
            world.start(&task).await;
            assert_eq!(world.wait(&task).await.exit_code, 0);
            let id = world.driver.inspect_task(&task.id).await.unwrap().attributes["container_id"].clone();
            let (stdout, stderr) = kept(engine(), &id, false).await;
            world.driver.destroy_task(&task.id, false).await.unwrap();
            assert!(stdout.len() > 2_000_000 && stderr.len() > 900_000, "{} {}", stdout.len(), stderr.len());
            for (name, kept) in [("stdout", stdout), ("stderr", stderr)] {
                let seen = world.log(name);
                let at = seen.bytes().zip(kept.bytes()).position(|(a, b)| a != b);
                assert!(seen == kept, "{name}: {} bytes of {}, others from {at:?} on", seen.len(), kept.len());
            }
        };
        // Several at a time: on a busy machine the engine does it more often.
        for _ in 0..containers / 6 {
            tokio::join!(one(), one(), one(), one(), one(), one());
        }
    });
}

/// Numbered lines of chatty containers, while drivers and `docker_logger`s are killed and the engine is, too: each line that
/// the engine kept exactly once, in order.
fn d3_every_line_once_whoever_restarts() {
    use agentbin::spec::Role;
    use agentbin::wire::docker_logger::StartRequest;
    use agentbin::wire::docker_logger::docker_logger_client::DockerLoggerClient;
    use nix::sys::signal::Signal as Unix;
    block_on(async {
        let (containers, lines, rounds, engine_every) = if full() { (100, 3000, 40, 8) } else { (6, 600, 4, 4) };
        // Containers go on without it.
        let engine = Arc::new(TestEngine::with(&["--live-restore"]).unwrap());
        let mut all = Vec::new();
        for number in 0..containers {
            let world = World::with(&engine.endpoint(), json!({}));
            let tty = number % 4 == 3;
            let script = format!(
                "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo out $i; echo err $i >&2; \
                 [ $((i % 50)) = 0 ] && sleep 0.2; done; exit 0"
            );
            let mut task = world.script(&script);
            task.config.values.insert("tty".to_owned(), json!(tty));
            let (id, copied) = if number % 2 == 0 {
                let handle = world.start(&task).await;
                let id = world.driver.inspect_task(&task.id).await.unwrap().attributes["container_id"].clone();
                (id, Copied::Driver(handle))
            } else {
                let behind = if number % 3 == 0 {
                    Behind::another(&world)
                } else {
                    Behind::Logmon(Box::new(launch(Role::Logmon).await))
                };
                behind.go_on(&world).await;
                let name = world.name();
                let mut args = vec!["run", "-d", "--network", "none", "--name", &name];
                args.extend(tty.then_some("-t"));
                let id = engine.docker(&[&args[..], &[IMAGE, "sh", "-c", &script]].concat());
                (id, Copied::Logger(Box::new(launch(Role::DockerLogger).await), behind))
            };
            all.push((world, task, id, tty, copied));
        }
        let request = |world: &World, id: &str, tty: bool| StartRequest {
            endpoint: engine.endpoint(),
            container_id: id.to_owned(),
            stdout_fifo: logs_path(world, ".web.stdout.fifo"),
            stderr_fifo: logs_path(world, ".web.stderr.fifo"),
            tty,
            ..StartRequest::default()
        };
        for (world, _, id, tty, copied) in &all {
            if let Copied::Logger(host, _) = copied {
                DockerLoggerClient::new(host.channel()).start(request(world, id, *tty)).await.unwrap();
            }
        }
        let (mut kills, mut crashes) = (0, 0);
        for round in 1..=rounds {
            tokio::time::sleep(Duration::from_millis(130 + 70 * (round % 3))).await;
            let crash = (round % engine_every == 0).then(|| {
                crashes += 1;
                let (engine, signal) =
                    (Arc::clone(&engine), if crashes % 2 == 1 { Unix::SIGKILL } else { Unix::SIGTERM });
                tokio::task::spawn_blocking(move || engine.restart(signal))
            });
            for (number, (world, task, id, tty, copied)) in all.iter_mut().enumerate() {
                match copied {
                    // As a kill would: what the old one had in hand is lost.
                    Copied::Driver(handle) => {
                        world.driver = driver(&engine.endpoint(), json!({}), world.dir.path());
                        let kept = TaskConfig { config: DriverConfig::default(), logs: None, ..task.clone() };
                        world.driver.recover_task(&kept, &handle.driver_state).await.unwrap();
                    }
                    // Not all at once: starting a process takes longer than these lines.
                    Copied::Logger(host, behind) if (number + round as usize) % 4 < 2 => {
                        let pid = nix::unistd::Pid::from_raw(host.process().pid);
                        nix::sys::signal::kill(pid, Unix::SIGKILL).unwrap();
                        let dead = std::mem::replace(host, Box::new(launch(Role::DockerLogger).await));
                        dead.kill().await;
                        kills += 1;
                        DockerLoggerClient::new(host.channel()).start(request(world, id, *tty)).await.unwrap();
                        behind.go_on(world).await;
                    }
                    Copied::Logger(_, behind) => behind.go_on(world).await,
                }
            }
            if let Some(crash) = crash {
                crash.await.unwrap();
            }
        }
        let (mut told, mut lost) = (0, 0);
        for (world, task, id, tty, copied) in all {
            let seen = |text: &(String, String)| world.log("stdout") == text.0 && world.log("stderr") == text.1;
            let deadline = Instant::now() + Duration::from_mins(3);
            while engine.api().inspect(&id).await.unwrap().is_some_and(|container| container.running) {
                assert!(Instant::now() < deadline, "{id} does not end");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let text = kept(&engine, &id, tty).await;
            let deadline = Instant::now() + Duration::from_mins(1);
            while !seen(&text) && Instant::now() < deadline {
                if let Copied::Logger(_, behind) = &copied {
                    behind.go_on(&world).await;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            let ours = (world.log("stdout"), world.log("stderr"));
            if ours != text {
                for (name, a, b) in [("stdout", &ours.0, &text.0), ("stderr", &ours.1, &text.1)] {
                    let (a, b): (Vec<&str>, Vec<&str>) = (a.lines().collect(), b.lines().collect());
                    let at = a.iter().zip(&b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
                    let near = |lines: &[&str]| lines[at.saturating_sub(2)..(at + 4).min(lines.len())].join("|");
                    println!(
                        "{id:.12} {name}: {} lines, {} kept; ours {} kept {}",
                        a.len(),
                        b.len(),
                        near(&a),
                        near(&b)
                    );
                }
                let way = match &copied {
                    Copied::Driver(_) => "driver",
                    Copied::Logger(_, Behind::Logmon(_)) => "docker_logger and logmon",
                    Copied::Logger(..) => "docker_logger and another's logmon",
                };
                panic!("{way}, terminal {tty}: not what the engine kept");
            }
            let count = text.0.lines().count() + text.1.lines().count();
            told += count;
            lost += 2 * lines - count;
            match copied {
                Copied::Driver(_) => {
                    world.wait(&task).await;
                    world.driver.destroy_task(&task.id, false).await.unwrap();
                }
                Copied::Logger(host, behind) => {
                    host.kill().await;
                    match behind {
                        Behind::Logmon(logmon) => logmon.kill().await,
                        another @ Behind::Another(..) => another.end(),
                    }
                }
            }
        }
        println!(
            "{containers} containers: {told} lines that the engine kept, each once ({lost} it lost itself); {rounds} rounds, \
             {kills} loggers and {crashes} engines killed"
        );
        assert!(told > 0 && kills > 0 && crashes > 0);
        engine.end();
    });
}

/// The role as a process of a host's, killed again and again while it writes without a pause: each line is in the files once.
fn d3_docker_logger_goes_on_where_it_was_killed() {
    use agentbin::spec::Role;
    use agentbin::wire::docker_logger::docker_logger_client::DockerLoggerClient;
    use agentbin::wire::docker_logger::{StartRequest, StopRequest};
    block_on(async {
        let kills = if full() { 200 } else { 6 };
        let lines = 400 * kills;
        let world = World::new();
        let name = world.name();
        let script = format!(
            "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo out $i; echo err $i >&2; [ $((i % 100)) = 0 ] && sleep 0.05; done"
        );
        let id = engine().docker(&["run", "-d", "--network", "none", "--name", &name, IMAGE, "sh", "-c", &script]);
        let behind = Behind::another(&world);
        let request = StartRequest {
            endpoint: engine().endpoint(),
            container_id: id,
            stdout_fifo: logs_path(&world, ".web.stdout.fifo"),
            stderr_fifo: logs_path(&world, ".web.stderr.fifo"),
            ..StartRequest::default()
        };
        let all = |word: &str| (1..=lines).map(|n| format!("{word} {n}\n")).collect::<Vec<_>>().concat();
        let (out, err) = (all("out"), all("err"));
        for kill in 0..=kills {
            let host = launch(Role::DockerLogger).await;
            let mut logger = DockerLoggerClient::new(host.channel());
            logger.start(request.clone()).await.unwrap();
            if kill < kills {
                tokio::time::sleep(Duration::from_millis(40 + 37 * (kill % 5))).await;
                let pid = nix::unistd::Pid::from_raw(host.process().pid);
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
            } else {
                let patience = Instant::now() + Duration::from_mins(3);
                while world.log("stdout").len() < out.len() || world.log("stderr").len() < err.len() {
                    assert!(Instant::now() < patience, "not all is read");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                logger.stop(StopRequest {}).await.unwrap();
            }
            host.kill().await;
        }
        behind.end();
        for (stream, expected) in [("stdout", out), ("stderr", err)] {
            let seen = world.log(stream);
            let (seen, expected): (Vec<&str>, Vec<&str>) = (seen.lines().collect(), expected.lines().collect());
            let at = seen.iter().zip(&expected).position(|(a, b)| a != b);
            assert!(seen == expected, "{stream}: {} lines instead of {lines}, from {at:?} on others", seen.len());
        }
        println!("{kills} kills of docker_logger: {} lines, each once", 2 * lines);
        engine().docker(&["rm", "-f", &name]);
    });
}

/// N8: `agentbin run`, and the next one, or `gc`, after one that was killed.
fn e1_a_run_with_containers_and_one_that_is_killed() {
    use std::process::Command;
    let dir = tempfile::tempdir().unwrap();
    let job = |script: &str| {
        let path = dir.path().join("job.nomad.hcl");
        let text = format!(
            "job \"j\" {{\n  type = \"batch\"\n  group \"g\" {{\n    restart {{\n      attempts = 0\n      \
             mode = \"fail\"\n    }}\n    task \"web\" {{\n      driver = \"docker\"\n      config {{\n        \
             image = \"{IMAGE}\"\n        network_mode = \"none\"\n        command = \"/bin/sh\"\n        \
             cpu_hard_limit = true\n        args = [\"-c\", \"{script}\"]\n      }}\n      resources {{\n        cpu = 500\n        \
             memory = 64\n      }}\n    }}\n  }}\n}}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    };
    let agentbin = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.args(args).env("DOCKER_HOST", engine().endpoint()).stdin(std::process::Stdio::null());
        command
    };
    let data = dir.path().join("data").display().to_string();
    let file = job("echo from a container; exit 4").display().to_string();
    let out = agentbin(&["run", "--data-dir", &data, &file]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(4), "{said}");
    assert!(said.contains("from a container"), "{said}");
    let ours = || engine().docker(&["ps", "-aq", "--filter", "label=com.hashicorp.nomad.alloc_id"]);
    assert_eq!(ours(), "");

    let file = job("echo up; sleep 1000").display().to_string();
    let mut run = agentbin(&["run", "--data-dir", &data, &file]).stdout(std::process::Stdio::null()).spawn().unwrap();
    block_on(eventually("the container runs", || !ours().is_empty()));
    // Its part of the time of all cores, as of their speed.
    let quota: f64 = engine().docker(&["inspect", "-f", "{{.HostConfig.CpuQuota}}", &ours()]).parse().unwrap();
    let Compute { total_mhz, cores } = agentbin::alloc::compute();
    let expected = (500.0 / total_mhz as f64).min(1.0) * 100_000.0 * f64::from(cores);
    assert!((quota / expected - 1.0).abs() < 0.1, "{quota} {expected}");
    run.kill().unwrap();
    run.wait().unwrap();
    let allocs = || std::fs::read_dir(dir.path().join("data/alloc")).unwrap().flatten().map(|e| e.path());
    let ended = allocs().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect::<Vec<_>>();
    assert!(!ended.is_empty(), "what was killed has removed nothing");
    let out = agentbin(&["gc", "--data-dir", &data]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(ours(), "");
    assert_eq!(allocs().collect::<Vec<_>>(), Vec::<PathBuf>::new());
    for alloc in &ended {
        assert_no_cgroups_of(alloc);
    }
}

/// N1: the same driver, as the process that an agent starts.
fn e1_the_driver_is_a_plugin() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let world = World::new();
    let (config, task) = (world.dir.path().join("plugin.hcl"), world.dir.path().join("task.hcl"));
    std::fs::write(&config, format!("endpoint = \"{}\"\n", engine().endpoint())).unwrap();
    let text = format!(
        "id = \"{alloc}/web/1\"\nname = \"web\"\nalloc_dir = \"{dir}\"\nconfig {{\n  image = \"{IMAGE}\"\n  network_mode = \"none\"\n  \
         command = \"/bin/sh\"\n  args = [\"-c\", \"echo from a plugin; exit 6\"]\n}}\n",
        alloc = world.alloc,
        dir = world.alloc_dir().display()
    );
    std::fs::write(&task, text).unwrap();
    let agentbin = env!("CARGO_BIN_EXE_agentbin");
    let mut child = Command::new(agentbin)
        .args(["plugin", "launch", agentbin, "driver", "docker", "--config", config.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = format!("{}/web/1", world.alloc);
    let script =
        format!("capabilities\nfingerprint\nstart {}\nwait {id}\ninspect {id}\ndestroy {id}\n", task.display());
    let _read_no_further = child.stdin.take().unwrap().write_all(script.as_bytes());
    let out = child.wait_with_output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}{errors}");
    for expected in
        ["\"must_create_network\":true", "\"health\":\"healthy\"", "driver.docker.version", "\"exit_code\":6"]
    {
        assert!(said.contains(expected), "{expected}: {said}{errors}");
    }
    block_on(world.assert_nothing_left());
}

/// `TestDockerLogger_LoggingNotSupported`.
fn d3_a_log_that_cannot_be_read_is_given_up_at_once() {
    block_on(async {
        let proxy = Proxy::new(engine(), None);
        let world = World::with(&proxy.endpoint(), json!({}));
        let task = world.task(json!({
            "command": "sh", "args": ["-c", "echo x; sleep 2"], "logging": [{ "type": "none" }],
        }));
        assert_eq!(world.run(&task).await.exit_code, 0);
        assert_eq!(world.log("stdout"), "");
        let asked = proxy.log().iter().filter(|call| call.contains("/logs?")).count();
        assert_eq!(asked, 1, "{:?}", proxy.log());
    });
}

/// What the driver says that the engine keeps, up to now.
async fn on_demand(world: &World, task: &TaskConfig, stream: Stream) -> Vec<u8> {
    let mut output = world.driver.kept_output(&task.id, stream, false).await.unwrap().unwrap();
    let mut all = Vec::new();
    while let Some(piece) = output.next().await.unwrap() {
        all.extend(piece);
    }
    all
}

fn d4_switched_off_collects_nothing_and_reads_on_demand() {
    block_on(async {
        let proxy = Proxy::new(engine(), None);
        let world = World::with(&proxy.endpoint(), json!({ "disable_log_collection": true }));
        assert!(world.driver.capabilities().disable_log_collection);
        let task = world.script("echo seen; echo too >&2; sleep 1000");
        world.start(&task).await;
        // Nobody follows; whoever asks is told.
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            let (stdout, stderr) =
                (on_demand(&world, &task, Stream::Stdout).await, on_demand(&world, &task, Stream::Stderr).await);
            if (stdout.as_slice(), stderr.as_slice()) == (b"seen\n", b"too\n") {
                break;
            }
            assert!(Instant::now() < deadline, "{stdout:?} {stderr:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!proxy.log().iter().any(|call| call.contains("follow=1")));
        // Who follows is told of the end.
        let mut output = world.driver.kept_output(&task.id, Stream::Stderr, true).await.unwrap().unwrap();
        assert_eq!(output.next().await.unwrap().unwrap(), b"too\n");
        world.driver.stop_task(&task.id, Duration::ZERO, None).await.unwrap();
        assert_eq!(output.next().await.unwrap(), None);
        world.driver.destroy_task(&task.id, true).await.unwrap();
        assert!(std::fs::read_dir(world.alloc_dir().join("alloc/logs")).unwrap().next().is_none());
    });
}

fn g2_a_group_has_its_network_from_a_container() {
    block_on(async {
        let world = World::new();
        assert!(world.driver.capabilities().must_create_network);
        let (network, created) = world.driver.create_network(&world.alloc, "the-host").await.unwrap();
        assert!(created && network.path.starts_with(engine().path()), "{network:?}");
        assert_eq!(network.labels["docker_sandbox_hostname"], "the-host");
        let pause = &network.labels["docker_sandbox_container_id"];
        assert_eq!(engine().docker(&["inspect", "-f", "{{.Config.Image}}", pause]), "pause:test");
        let (again, created) = world.driver.create_network(&world.alloc, "the-host").await.unwrap();
        assert!(!created);
        assert_eq!(again, network);
        let mut task = world.task(json!({ "command": "sh", "args": ["-c", "ls -l /proc/self/ns/net"] }));
        task.config.values.remove("network_mode");
        task.network = Some(network.clone());
        let own = |id: &str| engine().docker(&["inspect", "-f", "{{.State.Pid}}", id]);
        let pid = own(&network.labels["docker_sandbox_container_id"]);
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_eq!(world.run(&task).await.exit_code, 0);
        assert!(world.log("stdout").contains(namespace.to_str().unwrap()), "{}", world.log("stdout"));
        // It is known, so it does not dangle.
        assert_eq!(world.driver.reconcile_now(Duration::ZERO).await.unwrap(), Vec::<String>::new());
        world.driver.destroy_network(&world.alloc, &network).await.unwrap();
        world.driver.destroy_network(&world.alloc, &network).await.unwrap();
        world.assert_nothing_left().await;
    });
}

fn e1_stats_come_from_the_cgroup() {
    block_on(async {
        let proxy = Proxy::new(engine(), None);
        let world = World::with(&proxy.endpoint(), json!({}));
        let task = world.script("while :; do :; done");
        world.start(&task).await;
        world.driver.task_stats(&task.id).await.unwrap();
        let calls = proxy.log().len();
        let deadline = Instant::now() + Duration::from_mins(1);
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let stats = world.driver.task_stats(&task.id).await.unwrap();
            if stats.total.cpu.percent > 5.0 && stats.total.memory.usage > 0 {
                break;
            }
            assert!(Instant::now() < deadline, "{stats:?}");
        }
        let asked = proxy.log()[calls..].iter().filter(|call| call.contains("stats")).count();
        assert_eq!(asked, 0, "the engine has nothing to do with it");
        world.driver.destroy_task(&task.id, true).await.unwrap();
        world.assert_nothing_left().await;
    });
}

/// A file of the container's own cgroup; `v1` and `v2` are its names.
fn limit(world: &World, v1: &str, v2: &str) -> String {
    let id = engine().docker(&["inspect", "-f", "{{.Id}}", &world.name()]);
    let own = format!("nomad/{}-web/{id}", world.alloc);
    let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let controller = Path::new("/sys/fs/cgroup").join(if is_v2 { "" } else { v1.split('.').next().unwrap() });
    let path = controller.join(own).join(if is_v2 { v2 } else { v1 });
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
}

/// Memory, reservation, CPU, CPU time, processes and cores.
fn limits(world: &World) -> [String; 6] {
    [
        limit(world, "memory.limit_in_bytes", "memory.max"),
        limit(world, "memory.soft_limit_in_bytes", "memory.low"),
        limit(world, "cpu.shares", "cpu.weight"),
        limit(world, "cpu.cfs_quota_us", "cpu.max"),
        limit(world, "pids.max", "pids.max"),
        limit(world, "cpuset.cpus", "cpuset.cpus"),
    ]
}

fn b1_limits_of_a_running_container_change() {
    block_on(async {
        let is_v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let of = |v1: &str, v2: &str| if is_v2 { v2 } else { v1 }.to_owned();
        let mib = |n: u64| (n << 20).to_string();
        let world = World::new();
        let mut task = world.script("sleep 1000");
        task.resources.memory = MemoryLimits { hard_bytes: Some(128 << 20), soft_bytes: Some(64 << 20) };
        let handle = world.start(&task).await;
        let [memory, low, cpu, quota, pids, cores] = limits(&world);
        assert_eq!((memory, low, cpu), (mib(128), mib(64), of("100", "17")));
        assert_eq!((quota, pids), (of("-1", "max 100000"), "max".to_owned()));

        let new = NewLimits {
            cpu_shares: Some(1000),
            cpu_quota: Some(CpuQuota::Limited { quota_us: 50_000, period_us: 100_000 }),
            memory: Some(MemoryLimits { hard_bytes: Some(256 << 20), soft_bytes: Some(32 << 20) }),
            cpuset_cpus: Some("0".to_owned()),
            pids_max: Some(77),
        };
        let expected =
            [mib(256), mib(32), of("1000", "99"), of("50000", "50000 100000"), "77".to_owned(), "0".to_owned()];
        for _ in 0..2 {
            world.driver.update_task(&task.id, new.clone()).await.unwrap();
            assert_eq!(limits(&world), expected, "before: {cores}");
        }
        // Another driver finds the container; what it does not say stays.
        let driver = driver(&engine().endpoint(), json!({}), world.dir.path());
        driver.recover_task(&task, &handle.driver_state).await.unwrap();
        let change = async |limits: NewLimits| driver.update_task(&task.id, limits).await.unwrap();
        change(NewLimits {
            memory: Some(MemoryLimits { hard_bytes: Some(96 << 20), soft_bytes: None }),
            ..NewLimits::default()
        })
        .await;
        let now = limits(&world);
        let unreserved = if is_v2 { mib(6) } else { limit(&world, "memory.soft_limit_in_bytes", "memory.low") };
        assert_eq!((&now[0], &now[1], &now[2..]), (&mib(96), &unreserved, &expected[2..]));
        assert!(is_v2 || unreserved.parse::<u64>().unwrap() > 1 << 60, "{unreserved}");
        // The limits are lifted.
        change(NewLimits {
            cpu_shares: Some(0),
            cpu_quota: Some(CpuQuota::Unlimited),
            memory: Some(MemoryLimits::default()),
            cpuset_cpus: None,
            pids_max: Some(0),
        })
        .await;
        let now = limits(&world);
        assert!(now[0] == "max" || now[0].parse::<u64>().unwrap() > 1 << 60, "{now:?}");
        let lifted = [of("1024", "100"), of("-1", "max 100000"), "max".to_owned(), "0".to_owned()];
        assert_eq!(now[2..], lifted);
        driver.destroy_task(&task.id, true).await.unwrap();
        world.assert_nothing_left().await;
    });
}

fn b1_limits_that_cannot_be_are_refused_and_nothing_changes() {
    block_on(async {
        let world = World::with(&engine().endpoint(), json!({ "pids_limit": 100 }));
        let mut task = world.script("x=$(head -c 24000000 /dev/zero | tr '\\0' x); echo full; sleep 1000; echo $x");
        task.resources.memory = MemoryLimits { hard_bytes: Some(256 << 20), soft_bytes: None };
        world.start(&task).await;
        eventually("the task is full", || world.log("stdout").contains("full")).await;
        let before = limits(&world);
        let hard = |mib: u64| Some(MemoryLimits { hard_bytes: Some(mib << 20), soft_bytes: None });
        let none = NewLimits::default;
        for (new, why) in [
            (NewLimits { cpu_shares: Some(7), memory: hard(16), ..none() }, "it holds"),
            (NewLimits { cpu_shares: Some(7), memory: hard(1 << 42), ..none() }, "is not a limit"),
            (
                NewLimits {
                    memory: Some(MemoryLimits { hard_bytes: Some(64 << 20), soft_bytes: Some(65 << 20) }),
                    ..none()
                },
                "is below the 65 MiB",
            ),
            (
                NewLimits { cpu_quota: Some(CpuQuota::Limited { quota_us: 10, period_us: 100_000 }), ..none() },
                "is not a limit",
            ),
            (NewLimits { cpuset_cpus: Some("x".to_owned()), ..none() }, "list of processors"),
            // The engine's own refusal.
            (NewLimits { cpu_shares: Some(7), cpuset_cpus: Some("4095".to_owned()), ..none() }, "4095"),
            (NewLimits { pids_max: Some(101), ..none() }, "pids_limit is 100"),
            (NewLimits { pids_max: Some(0), ..none() }, "pids_limit is 100"),
        ] {
            let error = world.driver.update_task(&task.id, new.clone()).await.unwrap_err();
            assert!(error.to_string().contains(why), "{new:?}: {error}");
            assert_eq!(limits(&world), before, "{error}");
        }
        world.driver.stop_task(&task.id, Duration::ZERO, None).await.unwrap();
        world.wait(&task).await;
        let late = world.driver.update_task(&task.id, NewLimits { cpu_shares: Some(7), ..none() }).await;
        assert!(late.unwrap_err().to_string().contains("it has ended"));
        world.driver.destroy_task(&task.id, false).await.unwrap();
        let gone = world.driver.update_task(&task.id, none()).await;
        assert!(matches!(gone, Err(DriverError::TaskNotFound)));
        world.assert_nothing_left().await;
    });
}
