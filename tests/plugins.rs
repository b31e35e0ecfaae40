//! N1, A6, H1, N7: the driver plugins as an agent sees them: other processes, reached over go-plugin, killed and found
//! again. The agent's side is spoken with the bare messages here, so that nothing of ours hides what is on the wire.

#[path = "support/harness.rs"]
mod harness;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agentbin::driver::state::GoDriverState;
use agentbin::plugin::{Client, Launch, Program, role_environment};
use agentbin::spec::collections::BTreeMap;
use agentbin::wire::Channel;
use agentbin::wire::base::base_plugin_client::BasePluginClient;
use agentbin::wire::cty::{self, Value};
use agentbin::wire::drivers::driver_client::DriverClient;
use agentbin::wire::drivers::{self as wire, driver_capabilities as caps, fingerprint_response as print};
use agentbin::wire::{base, hclspec};
use harness::{block_on, eventually, is_alive, run, tests};
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

fn main() -> ExitCode {
    agentbin::init();
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.first().is_some_and(|arg| arg == ON_OLD_KERNEL) {
        return on_old_kernel(&args[1..]);
    }
    if !rustix::process::geteuid().is_root() {
        return harness::skip("plugins", "needs root for cgroups, users and mounts");
    }
    run(tests![
        a6_info_schema_and_capabilities,
        a6_fingerprints_say_what_is_missing,
        a6_an_old_kernel_is_named,
        n1_a_task_lives_in_each_driver,
        h1_commands_and_sessions_go_through_the_plugin,
        h1_a_session_ends_with_a_status_whatever_its_command,
        n2_logs_are_collected_unless_switched_off,
        n5_log_sinks_get_what_tasks_print_across_a_kill,
        n3_the_agents_folder_stays_empty,
        n1_tasks_inherit_the_agents_environment_less_its_denylist,
        a6_errors_are_those_that_agents_know,
        a6_configurations_of_go_hosts_are_read,
        a6_the_folder_names_the_cgroup,
        n5_a_killed_plugin_finds_its_tasks_again,
        n5_a_plugin_killed_while_it_starts_a_task,
        n5_a_task_of_another_driver_is_taken_over,
        n5_a_stale_handle_is_gone_and_nobody_is_signalled,
        n7_the_example_is_a_driver,
    ])
}

const AGENTBIN: &str = env!("CARGO_BIN_EXE_agentbin");

/// The first argument of this program when it becomes agentbin on a kernel before 5.12.
const ON_OLD_KERNEL: &str = "on-an-old-kernel";

fn on_old_kernel(args: &[OsString]) -> ExitCode {
    let instruction = |code: u32, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let number = u32::try_from(libc::SYS_mount_setattr).unwrap();
    let filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    agentbin::sys::seccomp::install(&filter).unwrap();
    let error = std::process::Command::new(AGENTBIN).args(args).exec();
    eprintln!("execute {AGENTBIN}: {error}");
    ExitCode::FAILURE
}

/// The directory of an agent, with one allocation.
struct World {
    dir: TempDir,
    alloc: String,
}

/// A plugin as its agent has it.
struct Plugin {
    client: Client,
    driver: DriverClient<Channel>,
    base: BasePluginClient<Channel>,
}

fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn texts(items: &[&str]) -> Value {
    Value::List(items.iter().map(|item| text(item)).collect())
}

fn object(pairs: &[(&str, Value)]) -> Vec<u8> {
    cty::encode(&Value::Map(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()))
}

impl World {
    fn new() -> World {
        let dir = tempfile::Builder::new().prefix("agentbin-plugins-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let world = World { dir, alloc: uuid::Uuid::new_v4().to_string() };
        for folder in ["alloc/logs", "alloc/data", "web/local", "web/secrets", "web/tmp"] {
            let path = world.alloc_dir().join(folder);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        world
    }

    fn alloc_dir(&self) -> PathBuf {
        self.dir.path().join(&self.alloc)
    }

    fn task(&self, config: &[(&str, Value)]) -> wire::TaskConfig {
        let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let scope = format!("/sys/fs/cgroup/nomad.slice/share.slice/{}.web.scope", self.alloc);
        wire::TaskConfig {
            id: format!("{}/web/{}", self.alloc, &uuid::Uuid::new_v4().simple().to_string()[..8]),
            name: "web".into(),
            alloc_id: self.alloc.clone(),
            msgpack_driver_config: object(config),
            env: [("PATH", "/usr/bin:/bin"), ("GREETING", "hello")].map(|(k, v)| (k.into(), v.into())).into(),
            alloc_dir: self.alloc_dir().display().to_string(),
            // An agent names its FIFOs also to a driver that collects the output itself, and does not make them.
            stdout_path: self.alloc_dir().join("alloc/logs/.web.stdout.fifo").display().to_string(),
            stderr_path: self.alloc_dir().join("alloc/logs/.web.stderr.fifo").display().to_string(),
            resources: Some(wire::Resources {
                allocated_resources: Some(wire::AllocatedTaskResources {
                    cpu: Some(wire::AllocatedCpuResources { cpu_shares: 100 }),
                    memory: Some(wire::AllocatedMemoryResources { memory_mb: 64, memory_max_mb: 0 }),
                    networks: Vec::new(),
                }),
                linux_resources: Some(wire::LinuxResources {
                    cpu_shares: 100,
                    memory_limit_bytes: 64 << 20,
                    cpuset_cgroup: if v2 { scope } else { String::new() },
                    ..Default::default()
                }),
                ports: Vec::new(),
            }),
            ..Default::default()
        }
    }

    fn script(&self, script: &str) -> wire::TaskConfig {
        self.task(&[("command", text("/bin/sh")), ("args", texts(&["-c", script])), ("work_dir", Value::Null)])
    }

    fn log(&self, stream: &str) -> String {
        std::fs::read_to_string(self.alloc_dir().join(format!("alloc/logs/web.{stream}.0"))).unwrap_or_default()
    }

    fn cgroups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in walkdir(Path::new("/sys/fs/cgroup"), 4) {
            if entry.file_name().is_some_and(|n| n.to_string_lossy().contains(&self.alloc)) {
                found.push(entry);
            }
        }
        found
    }
}

fn walkdir(dir: &Path, depth: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path());
    dirs.flat_map(|d| if depth == 0 { vec![d] } else { [vec![d.clone()], walkdir(&d, depth - 1)].concat() }).collect()
}

impl Plugin {
    async fn start(program: &Path, args: &[&str]) -> Plugin {
        Plugin::start_with(program, args, &[]).await
    }

    async fn start_with(program: &Path, args: &[&str], env: &[(&str, &str)]) -> Plugin {
        let agents = env.iter().map(|(key, value)| ((*key).into(), (*value).into()));
        let launch = Launch {
            args: &args.iter().map(OsString::from).collect::<Vec<_>>(),
            env: std::env::vars_os().filter(|(k, _)| k == "PATH").chain(role_environment()).chain(agents).collect(),
            log: Box::new(|line| println!("plugin: {}", line.message)),
            ..Launch::new(Program::Path(program))
        };
        let client = launch.start().await.unwrap();
        let (driver, base) = (DriverClient::new(client.channel()), BasePluginClient::new(client.channel()));
        Plugin { client, driver, base }
    }

    /// A driver of ours, configured.
    async fn driver(name: &str, config: &[(&str, Value)]) -> Plugin {
        let mut plugin = Plugin::start(Path::new(AGENTBIN), &["driver", name]).await;
        let mut config = config.to_vec();
        if name == "raw_exec" {
            config.push(("enabled", Value::Bool(true)));
        }
        plugin.set_config(&config).await.unwrap();
        plugin
    }

    async fn set_config(&mut self, config: &[(&str, Value)]) -> Result<(), Status> {
        let core = |id| base::ClientTopologyCore { core_id: id, base_speed: 2000, ..Default::default() };
        let topology = base::ClientTopology { cores: vec![core(0), core(1)], ..Default::default() };
        let driver = base::NomadDriverConfig { topology: Some(topology), ..Default::default() };
        let request = base::SetConfigRequest {
            msgpack_config: object(config),
            nomad_config: Some(base::NomadConfig { driver: Some(driver) }),
            plugin_api_version: "v0.1.0".into(),
        };
        self.base.set_config(request).await.map(drop)
    }

    async fn start_task(&mut self, task: &wire::TaskConfig) -> Result<wire::TaskHandle, Status> {
        let request = wire::StartTaskRequest { task: Some(task.clone()) };
        let handle = self.driver.start_task(request).await?.into_inner().handle.unwrap();
        assert_eq!((handle.version, handle.config.as_ref()), (1, Some(task)), "the agent keeps what comes back");
        Ok(handle)
    }

    async fn wait(&mut self, id: &str) -> wire::WaitTaskResponse {
        self.driver.wait_task(wire::WaitTaskRequest { task_id: id.into() }).await.unwrap().into_inner()
    }

    async fn inspect(&mut self, id: &str) -> wire::InspectTaskResponse {
        self.driver.inspect_task(wire::InspectTaskRequest { task_id: id.into() }).await.unwrap().into_inner()
    }

    async fn destroy(&mut self, id: &str, force: bool) -> Result<(), Status> {
        self.driver.destroy_task(wire::DestroyTaskRequest { task_id: id.into(), force }).await.map(drop)
    }

    async fn stop(&mut self, id: &str, signal: &str, seconds: i64) -> Result<(), Status> {
        let timeout = Some(prost_types::Duration { seconds, nanos: 0 });
        self.driver.stop_task(wire::StopTaskRequest { task_id: id.into(), timeout, signal: signal.into() }).await?;
        Ok(())
    }

    async fn recover(&mut self, handle: &wire::TaskHandle) -> Result<(), Status> {
        let mut handle = handle.clone();
        // What an agent has kept after a restart.
        handle.config.as_mut().unwrap().msgpack_driver_config.clear();
        self.driver.recover_task(wire::RecoverTaskRequest { task_id: String::new(), handle: Some(handle) }).await?;
        Ok(())
    }

    async fn fingerprint(&mut self) -> wire::FingerprintResponse {
        let mut stream = self.driver.fingerprint(wire::FingerprintRequest {}).await.unwrap().into_inner();
        stream.next().await.unwrap().unwrap()
    }

    async fn capabilities(&mut self) -> wire::DriverCapabilities {
        self.driver.capabilities(wire::CapabilitiesRequest {}).await.unwrap().into_inner().capabilities.unwrap()
    }
}

fn pid_of(status: &wire::InspectTaskResponse) -> i32 {
    status.driver.as_ref().unwrap().attributes["pid"].parse().unwrap()
}

fn a6_info_schema_and_capabilities() {
    block_on(async {
        for (name, fs, mounts) in [
            ("exec", caps::FsIsolation::Image, caps::MountConfigs::UnknownMounts),
            ("java", caps::FsIsolation::Image, caps::MountConfigs::UnknownMounts),
            ("raw_exec", caps::FsIsolation::None, caps::MountConfigs::NoMounts),
        ] {
            let mut plugin = Plugin::start(Path::new(AGENTBIN), &["driver", name]).await;
            let info = plugin.base.plugin_info(base::PluginInfoRequest {}).await.unwrap().into_inner();
            assert_eq!((info.name.as_str(), info.r#type()), (name, base::PluginType::Driver));
            assert_eq!(info.plugin_api_versions, ["v0.1.0"]);
            assert_eq!(info.plugin_version, env!("CARGO_PKG_VERSION"));
            let schema = plugin.base.config_schema(base::ConfigSchemaRequest {}).await.unwrap().into_inner();
            let Some(hclspec::spec::Block::Object(schema)) = schema.spec.unwrap().block else { panic!("{name}") };
            assert!(schema.attributes.contains_key("collect_logs"), "{schema:?}");
            // Agents try a configuration out, twice, without telling of themselves.
            for _ in 0..2 {
                let request = base::SetConfigRequest { msgpack_config: object(&[]), ..Default::default() };
                plugin.base.set_config(request).await.unwrap();
            }
            let refused = plugin.set_config(&[("no_such_key", Value::Bool(true))]).await.unwrap_err();
            assert!(refused.message().contains("unsupported key \"no_such_key\""), "{refused:?}");

            let found = plugin.capabilities().await;
            assert!(found.send_signals && found.exec && found.disable_log_collection && !found.must_create_network);
            assert_eq!((found.fs_isolation(), found.mount_configs()), (fs, mounts), "{name}");
            assert_eq!(found.network_isolation_modes, [0, 1]);
            plugin.set_config(&[("collect_logs", Value::Bool(false))]).await.unwrap();
            assert!(!plugin.capabilities().await.disable_log_collection);
            if name != "raw_exec" {
                plugin.set_config(&[("fs_isolation", text("chroot"))]).await.unwrap();
                assert_eq!(plugin.capabilities().await.fs_isolation(), caps::FsIsolation::Chroot);
            }
            plugin.driver.init(wire::InitRequest {}).await.unwrap();
            let status = plugin.driver.create_network(wire::CreateNetworkRequest::default()).await.unwrap_err();
            assert_eq!(status.message(), "CreateNetwork RPC not supported by driver");
            plugin.driver.shutdown(wire::ShutdownRequest {}).await.unwrap();
            plugin.client.kill().await;
        }
    });
}

fn a6_fingerprints_say_what_is_missing() {
    block_on(async {
        let mut raw = Plugin::start(Path::new(AGENTBIN), &["driver", "raw_exec"]).await;
        // Without a configuration, and with an empty one.
        for configured in [false, true] {
            if configured {
                raw.set_config(&[]).await.unwrap();
            }
            let found = raw.fingerprint().await;
            let state = (found.health(), found.health_description.as_str());
            assert_eq!(state, (print::HealthState::Undetected, "disabled"));
            let refused = raw.start_task(&World::new().script("true")).await.unwrap_err();
            assert_eq!(refused.message(), "raw_exec is disabled");
        }
        raw.set_config(&[("enabled", Value::Bool(true))]).await.unwrap();
        let found = raw.fingerprint().await;
        assert_eq!((found.health(), found.health_description.as_str()), (print::HealthState::Healthy, "Healthy"));
        assert!(found.attributes.contains_key("driver.raw_exec"));
        raw.client.kill().await;
        let mut exec = Plugin::driver("exec", &[]).await;
        let found = exec.fingerprint().await;
        assert_eq!(found.health(), print::HealthState::Healthy);
        assert!(found.attributes.contains_key("driver.exec"));
        exec.client.kill().await;
    });
}

/// Drivers that need Linux 5.12 say so, and `raw_exec` does without.
fn a6_an_old_kernel_is_named() {
    block_on(async {
        let own = std::fs::read_link("/proc/self/exe").unwrap();
        for (name, healthy) in [("exec", false), ("java", false), ("raw_exec", true)] {
            let mut plugin = Plugin::start(&own, &[ON_OLD_KERNEL, "driver", name]).await;
            let config = [("enabled", Value::Bool(true))];
            plugin.set_config(if healthy { &config } else { &[] }).await.unwrap();
            let found = plugin.fingerprint().await;
            let said = &found.health_description;
            if healthy {
                assert_eq!(found.health(), print::HealthState::Healthy, "{name}: {said}");
            } else {
                assert_eq!(found.health(), print::HealthState::Unhealthy, "{name}: {said}");
                assert!(said.contains("Linux 5.12 or newer"), "{name}: {said}");
            }
            plugin.client.kill().await;
        }
    });
}

fn n1_a_task_lives_in_each_driver() {
    block_on(async {
        for name in ["exec", "raw_exec"] {
            let world = World::new();
            let mut plugin = Plugin::driver(name, &[]).await;
            let task =
                world.script("trap 'echo usr1' USR1; echo $GREETING; echo oops >&2; while :; do sleep 0.05; done");
            let handle = plugin.start_task(&task).await.unwrap();
            assert!(!handle.driver_state.is_empty());
            eventually("the greeting", || world.log("stdout").contains("hello")).await;
            let twice = plugin.start_task(&task).await.unwrap_err();
            assert!(twice.message().contains("already started"), "{twice:?}");

            let status = plugin.inspect(&task.id).await;
            let found = status.task.clone().unwrap();
            assert_eq!((found.id.as_str(), found.name.as_str()), (task.id.as_str(), "web"));
            assert_eq!(found.state(), wire::TaskState::Running);
            assert!(found.started_at.unwrap().seconds > 1_700_000_000 && found.result.is_some());
            assert_eq!(found.completed_at.unwrap().seconds, -62_135_596_800, "Go's zero time");
            assert!(is_alive(pid_of(&status)));

            let interval = Some(prost_types::Duration { seconds: 0, nanos: 50_000_000 });
            let request = wire::TaskStatsRequest { task_id: task.id.clone(), collection_interval: interval };
            let mut samples = plugin.driver.task_stats(request).await.unwrap().into_inner();
            // The kernel adds memory up now and then only.
            let (mut measured, deadline) = (0, Instant::now() + Duration::from_mins(2));
            while measured < 3 {
                assert!(Instant::now() < deadline, "no memory is measured");
                let stats = samples.next().await.unwrap().unwrap().stats.unwrap();
                assert!(stats.timestamp.is_some());
                measured += u32::from(stats.agg_resource_usage.unwrap().memory.unwrap().rss > 0);
            }
            drop(samples);

            let signal = wire::SignalTaskRequest { task_id: task.id.clone(), signal: "SIGUSR1".into() };
            plugin.driver.signal_task(signal).await.unwrap();
            eventually("the signal", || world.log("stdout").contains("usr1")).await;
            eventually("the other stream", || !world.log("stderr").is_empty()).await;
            assert_eq!(world.log("stderr"), "oops\n");

            assert!(
                plugin.destroy(&task.id, false).await.unwrap_err().message().contains("cannot destroy running task")
            );
            plugin.stop(&task.id, "SIGKILL", 1).await.unwrap();
            let ended = plugin.wait(&task.id).await;
            assert_eq!((ended.result.unwrap().signal, ended.err.as_str()), (9, ""));
            plugin.stop(&task.id, "", 0).await.unwrap();
            let status = plugin.inspect(&task.id).await.task.unwrap();
            assert_eq!((status.state(), status.result.unwrap().signal), (wire::TaskState::Exited, 9));
            assert!(status.completed_at.unwrap().seconds > 1_700_000_000);
            plugin.destroy(&task.id, false).await.unwrap();
            assert_eq!(world.cgroups(), Vec::<PathBuf>::new());
            plugin.client.kill().await;
        }
    });
}

fn h1_commands_and_sessions_go_through_the_plugin() {
    block_on(async {
        for name in ["exec", "raw_exec"] {
            let world = World::new();
            let mut plugin = Plugin::driver(name, &[]).await;
            let task = world.script("sleep 1000");
            plugin.start_task(&task).await.unwrap();
            let command = |script: &str| ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
            let request = |command: Vec<String>, seconds| wire::ExecTaskRequest {
                task_id: task.id.clone(),
                command,
                timeout: Some(prost_types::Duration { seconds, nanos: 0 }),
            };
            let script = request(command("echo $GREETING; echo oops >&2; exit 5"), 300);
            let done = plugin.driver.exec_task(script).await.unwrap().into_inner();
            assert_eq!(done.result.unwrap().exit_code, 5);
            assert_eq!(String::from_utf8(done.stdout).unwrap(), "hello\noops\n");
            let empty = plugin.driver.exec_task(request(Vec::new(), 10)).await.unwrap_err();
            assert_eq!(empty.message(), "error cmd must have at least one value");

            let setup = wire::exec_task_streaming_request::Setup {
                task_id: task.id.clone(),
                command: command("tr a-z A-Z; echo $GREETING >&2; exit 6"),
                tty: false,
            };
            let stdin = |data: &str, close| {
                let stdin = Some(wire::ExecTaskStreamingIoOperation { data: data.into(), close });
                wire::ExecTaskStreamingRequest { stdin, ..Default::default() }
            };
            let first = wire::ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() };
            // As a Go host does it: it never closes its half of the stream.
            let messages = tokio_stream::iter([first.clone(), stdin("shout", false), stdin("", true)]);
            let answers = plugin.driver.exec_task_streaming(messages.chain(tokio_stream::pending())).await.unwrap();
            let answers: Vec<_> = answers.into_inner().map(Result::unwrap).collect().await;
            let text = |pick: fn(&wire::ExecTaskStreamingResponse) -> Option<&wire::ExecTaskStreamingIoOperation>| {
                String::from_utf8(answers.iter().filter_map(pick).flat_map(|o| o.data.clone()).collect()).unwrap()
            };
            assert_eq!((text(|a| a.stdout.as_ref()), text(|a| a.stderr.as_ref())), ("SHOUT".into(), "hello\n".into()));
            let last = answers.last().unwrap();
            assert!(last.exited && last.result.unwrap().exit_code == 6);
            let messages = tokio_stream::iter([stdin("x", false)]);
            let status = plugin.driver.exec_task_streaming(messages).await.unwrap_err();
            assert_eq!(status.message(), "first message should always be setup");

            plugin.destroy(&task.id, true).await.unwrap();
            let messages = tokio_stream::iter([first]);
            let status = plugin.driver.exec_task_streaming(messages).await.unwrap_err();
            assert_eq!(status.message(), "task not found for given id");
            plugin.client.kill().await;
        }
    });
}

/// A command that is not there ends its session with 127 and one that cannot be executed with 126, each with a reason in the
/// place of output; an error of the call would reach a person as `unexpected EOF`. The status is the last message, behind
/// all output.
fn h1_a_session_ends_with_a_status_whatever_its_command() {
    block_on(async {
        for name in ["exec", "raw_exec"] {
            let world = World::new();
            let mut plugin = Plugin::driver(name, &[]).await;
            let task = world.script(": > local/plain; mkdir local/folder; echo ready > local/ready; sleep 1000");
            plugin.start_task(&task).await.unwrap();
            let local = world.alloc_dir().join("web/local");
            eventually("the task's files", || local.join("ready").exists()).await;
            let mut driver = plugin.driver.clone();
            let mut session = async |command: &[&str], tty: bool| {
                let command = command.iter().map(|&word| word.to_owned()).collect();
                let setup = wire::exec_task_streaming_request::Setup { task_id: task.id.clone(), command, tty };
                let first = wire::ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() };
                let messages = tokio_stream::iter([first]).chain(tokio_stream::pending());
                let answers = driver.exec_task_streaming(messages).await.unwrap().into_inner();
                let mut answers: Vec<_> = answers.map(Result::unwrap).collect().await;
                let last = answers.pop().unwrap();
                assert!(last.exited && last.stdout.is_none() && last.stderr.is_none(), "{last:?}");
                let (mut texts, mut ends) = ([Vec::new(), Vec::new()], [0, 0]);
                for answer in answers {
                    assert!(!answer.exited && answer.result.is_none());
                    for (at, operation) in [answer.stdout, answer.stderr].into_iter().enumerate() {
                        let Some(operation) = operation else { continue };
                        assert_eq!(ends[at], 0, "output behind its end");
                        ends[at] += u32::from(operation.close);
                        texts[at].extend(operation.data);
                    }
                }
                assert_eq!(ends, [1, u32::from(!tty)]);
                let [out, err] = texts.map(|text| String::from_utf8(text).unwrap());
                (out, err, last.result.unwrap().exit_code)
            };
            for (command, code, words) in [
                ("no-such-program", 127, "command not found"),
                ("/no/such/program", 127, "command not found"),
                ("no\u{1b}[31m\nsuch", 127, "command not found"),
                ("/usr", 126, "cannot be executed"),
                ("/local/folder", 126, "cannot be executed"),
                ("/etc/passwd", 126, "cannot be executed"),
            ] {
                // The host's root has no such directory.
                if name == "raw_exec" && command.starts_with("/local") {
                    continue;
                }
                for tty in [false, true] {
                    let (out, err, status) = session(&[command], tty).await;
                    assert_eq!(status, code, "{name} {command:?} {tty}: {out:?} {err:?}");
                    let (told, nothing) = if tty { (out, err) } else { (err, out) };
                    let line = told.strip_suffix(if tty { "\r\n" } else { "\n" }).unwrap();
                    assert!(line.contains(words) && !line.contains(char::is_control), "{line:?}");
                    assert!(line.contains(command) || command.contains('\u{1b}'), "{line:?}");
                    assert_eq!(nothing, "");
                }
            }
            for round in 0..20 {
                let script = format!("printf one; printf two; printf '<{round}>'; exit {round}");
                for tty in [false, true] {
                    let ended = session(&["/bin/sh", "-c", &script], tty).await;
                    assert_eq!(ended, (format!("onetwo<{round}>"), String::new(), round));
                }
            }
            plugin.destroy(&task.id, true).await.unwrap();
            plugin.client.kill().await;
        }
    });
}

fn n2_logs_are_collected_unless_switched_off() {
    block_on(async {
        for name in ["exec", "raw_exec"] {
            let world = World::new();
            let mut plugin = Plugin::driver(name, &[]).await;
            // Rotated by the task's own block, which no agent hands over.
            let logs = BTreeMap::from([
                ("max_files".to_owned(), Value::Number(cty::Number::parse("2").unwrap())),
                ("max_file_size".to_owned(), Value::Number(cty::Number::parse("1").unwrap())),
            ]);
            let script = "seq 1 400000";
            let config = [("command", text("/bin/sh")), ("args", texts(&["-c", script])), ("logs", Value::Map(logs))];
            let task = world.task(&config);
            plugin.start_task(&task).await.unwrap();
            assert_eq!(plugin.wait(&task.id).await.result.unwrap().exit_code, 0);
            plugin.destroy(&task.id, false).await.unwrap();
            let files: Vec<_> = std::fs::read_dir(world.alloc_dir().join("alloc/logs")).unwrap().flatten().collect();
            assert_eq!(files.len(), 3, "two of stdout, one of stderr: {files:?}");
            plugin.client.kill().await;

            // Switched off, the agent's FIFOs are used.
            let world = World::new();
            let mut plugin = Plugin::driver(name, &[("collect_logs", Value::Bool(false))]).await;
            let mut task = world.script("echo through the fifo");
            let fifo = world.dir.path().join("fifo");
            rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            task.stdout_path = fifo.display().to_string();
            task.stderr_path = "/dev/null".into();
            let reader = std::thread::spawn(move || std::fs::read_to_string(fifo).unwrap());
            plugin.start_task(&task).await.unwrap();
            plugin.wait(&task.id).await;
            plugin.destroy(&task.id, false).await.unwrap();
            assert_eq!(reader.join().unwrap(), "through the fifo\n");
            plugin.client.kill().await;

            // An agent that reads its FIFOs although it was told not to gets them; FIFOs that nobody reads are left alone.
            let mut plugin = Plugin::driver(name, &[]).await;
            let fifo = PathBuf::from(&task.stdout_path);
            task.id.push('2');
            let reader = std::thread::spawn(move || std::fs::read_to_string(fifo).unwrap());
            eventually("the reader", reads_fifo).await;
            plugin.start_task(&task).await.unwrap();
            plugin.wait(&task.id).await;
            plugin.destroy(&task.id, false).await.unwrap();
            assert_eq!(reader.join().unwrap(), "through the fifo\n");
            assert_eq!(world.log("stdout"), "");
            task.id.push('3');
            task.stderr_path.clone_from(&task.stdout_path);
            plugin.start_task(&task).await.unwrap();
            plugin.wait(&task.id).await;
            plugin.destroy(&task.id, false).await.unwrap();
            assert_eq!(world.log("stdout"), "through the fifo\n");

            // A job that wants no logs.
            task.id.push('4');
            task.stdout_path = "/dev/null".into();
            plugin.start_task(&task).await.unwrap();
            plugin.wait(&task.id).await;
            plugin.destroy(&task.id, false).await.unwrap();
            assert_eq!(world.log("stdout"), "through the fifo\n", "nothing was added");
            plugin.client.kill().await;

            // D4: a plugin that is to collect nothing. Nothing lies between the task and /dev/null.
            let world = World::new();
            let mut plugin = Plugin::driver(name, &[("disable_log_collection", Value::Bool(true))]).await;
            assert!(plugin.capabilities().await.disable_log_collection);
            let task = world.script("echo unheard; exec sleep 300");
            plugin.start_task(&task).await.unwrap();
            let pid = pid_of(&plugin.inspect(&task.id).await);
            for fd in [1, 2] {
                assert_eq!(std::fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap(), Path::new("/dev/null"));
            }
            plugin.destroy(&task.id, true).await.unwrap();
            let files: Vec<_> = std::fs::read_dir(world.alloc_dir().join("alloc/logs")).unwrap().flatten().collect();
            assert!(files.is_empty(), "{files:?}");
            plugin.client.kill().await;
        }
    });
}

/// Whether a thread of this process waits in the opening of a FIFO.
fn reads_fifo() -> bool {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    threads.map(|t| std::fs::read_to_string(t.path().join("wchan")).unwrap_or_default()).any(|w| w.contains("partner"))
}

fn n5_log_sinks_get_what_tasks_print_across_a_kill() {
    block_on(async {
        let world = World::new();
        let (all, own) = (world.dir.path().join("all.json"), world.dir.path().join("own.json"));
        let sink = |path: &Path| format!("file:{}", path.display());
        let sinks = ("log_sinks", texts(&[&sink(&all)]));
        let lines = |path: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let objects = whole.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            objects.map(|object| object["line"].as_str().unwrap().to_owned()).collect()
        };
        let counted = |to: u32| (1..=to).map(|n| n.to_string()).collect::<Vec<_>>();

        let mut plugin = Plugin::driver("raw_exec", std::slice::from_ref(&sinks)).await;
        let go = world.dir.path().join("go");
        let script = format!("seq 1 500; while ! [ -e {} ]; do sleep 0.05; done; seq 501 1000", go.display());
        let named = |script: &str| {
            let args = texts(&["-c", script]);
            world.task(&[("command", text("/bin/sh")), ("args", args), ("log_sinks", texts(&[&sink(&own)]))])
        };
        let refused = plugin.start_task(&named("true")).await.unwrap_err();
        assert!(refused.message().contains("task_log_sinks lists no \"file\""), "{refused:?}");
        plugin.client.kill().await;

        let config = [sinks, ("task_log_sinks", texts(&["file"]))];
        let mut plugin = Plugin::driver("raw_exec", &config).await;
        let task = named(&script);
        let handle = plugin.start_task(&task).await.unwrap();
        for path in [&all, &own] {
            eventually("what the task printed first", || lines(path) == counted(500)).await;
        }
        // Within that time it is noted that they have it.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        kill(plugin.client.reattach_config().unwrap().process.pid);
        plugin.client.exited().await;
        std::fs::write(&go, "").unwrap();
        let mut plugin = Plugin::driver("raw_exec", &config).await;
        plugin.recover(&handle).await.unwrap();
        assert_eq!(plugin.wait(&task.id).await.result.unwrap().exit_code, 0);
        plugin.destroy(&task.id, false).await.unwrap();
        for path in [&all, &own] {
            eventually("the rest", || lines(path).len() >= 1000).await;
            assert!(lines(path) == counted(1000), "{} lines", lines(path).len());
        }

        // The next start of the task goes on behind them.
        let mut again = named("seq 1001 1500");
        again.id.push('2');
        plugin.start_task(&again).await.unwrap();
        plugin.wait(&again.id).await;
        plugin.destroy(&again.id, false).await.unwrap();
        for path in [&all, &own] {
            eventually("what the second start printed", || lines(path).len() >= 1500).await;
            assert!(lines(path) == counted(1500), "{} lines", lines(path).len());
        }
        plugin.client.kill().await;
    });
}

fn n3_the_agents_folder_stays_empty() {
    block_on(async {
        let world = World::new();
        let mut plugin = Plugin::driver("exec", &[]).await;
        let script = "echo data > /alloc/data/out && echo local > /local/out && ls / && ! touch /alloc/logs/x 2>/dev/null \
                      && ! touch /usr/x 2>/dev/null && id -un && cat /proc/1/comm";
        let task = world.script(script);
        plugin.start_task(&task).await.unwrap();
        let ended = plugin.wait(&task.id).await;
        assert_eq!(ended.result.unwrap().exit_code, 0, "{} {}", world.log("stdout"), world.log("stderr"));
        assert!(world.log("stdout").ends_with("nobody\nsh\n"), "{}", world.log("stdout"));
        plugin.destroy(&task.id, false).await.unwrap();
        assert_eq!(std::fs::read_to_string(world.alloc_dir().join("alloc/data/out")).unwrap(), "data\n");
        assert_eq!(std::fs::read_to_string(world.alloc_dir().join("web/local/out")).unwrap(), "local\n");
        // Mount points at most: not a byte of the host's programs.
        let bytes: u64 = walk_files(&world.alloc_dir().join("web")).iter().map(|f| f.metadata().unwrap().len()).sum();
        let log = std::fs::metadata(world.alloc_dir().join("web/executor.out")).unwrap().len();
        assert_eq!(bytes, log + "local\n".len() as u64);
        plugin.client.kill().await;

        // A root of the operator's own making.
        let world = World::new();
        let folders = BTreeMap::from(["/bin", "/lib", "/lib64", "/usr"].map(|p| (p.to_owned(), text(p))));
        let mut plugin = Plugin::driver("exec", &[("chroot_env", Value::Map(folders))]).await;
        let mut task = world.script("ls -d /etc/passwd; true");
        task.user = "root".into();
        plugin.start_task(&task).await.unwrap();
        plugin.wait(&task.id).await;
        assert!(world.log("stderr").contains("No such file"), "{}", world.log("stderr"));
        plugin.destroy(&task.id, false).await.unwrap();
        plugin.client.kill().await;
    });
}

/// What an agent merges below the environment of tasks without image isolation, our driver merges itself: programs that call
/// others by name need `PATH`. What go-plugin put there is not the agent's.
fn n1_tasks_inherit_the_agents_environment_less_its_denylist() {
    block_on(async {
        for (config, hidden, seen) in
            [(vec![], "VAULT_TOKEN", "MINE"), (vec![("host_env_denylist", texts(&["MINE"]))], "MINE", "VAULT_TOKEN")]
        {
            let world = World::new();
            let agents = [
                ("LANG", "C.UTF-8"),
                ("TERM", "linux"),
                ("MINE", "m"),
                ("VAULT_TOKEN", "v"),
                ("GREETING", "the agent's"),
                ("NOMAD_LICENSE", "l"),
            ];
            let mut plugin = Plugin::start_with(Path::new(AGENTBIN), &["driver", "exec"], &agents).await;
            plugin.set_config(&config).await.unwrap();
            let mut task = world.script("env");
            // A job's own variable stays, whatever its name.
            task.env =
                [("GREETING", "hello"), ("NOMAD_LICENSE", "the job's")].map(|(k, v)| (k.into(), v.into())).into();
            plugin.start_task(&task).await.unwrap();
            plugin.wait(&task.id).await;
            plugin.destroy(&task.id, false).await.unwrap();
            plugin.client.kill().await;

            let log = world.log("stdout");
            let found: BTreeMap<&str, &str> = log.lines().filter_map(|line| line.split_once('=')).collect();
            assert_eq!(found.get("PATH").copied(), std::env::var("PATH").ok().as_deref(), "{log}");
            for (key, value) in
                [("LANG", "C.UTF-8"), ("TERM", "linux"), ("GREETING", "hello"), ("NOMAD_LICENSE", "the job's")]
            {
                assert_eq!(found.get(key), Some(&value), "{log}");
            }
            assert_eq!(found.get(hidden), None, "{log}");
            assert!(found.contains_key(seen), "{log}");
            let of_go_plugin: Vec<_> =
                found.keys().filter(|key| key.starts_with("PLUGIN_") || key.contains("COOKIE")).collect();
            assert!(of_go_plugin.is_empty(), "{of_go_plugin:?}");
        }

        // With a chroot the agent hands its environment on itself, less its own list.
        let world = World::new();
        let mut plugin = Plugin::start_with(Path::new(AGENTBIN), &["driver", "exec"], &[("MINE", "m")]).await;
        plugin.set_config(&[("fs_isolation", text("chroot"))]).await.unwrap();
        let shell = world.alloc_dir().join("web/bin");
        std::fs::create_dir_all(&shell).unwrap();
        std::fs::copy("/bin/busybox", shell.join("busybox")).unwrap();
        let task = world.task(&[("command", text("/bin/busybox")), ("args", texts(&["env"]))]);
        plugin.start_task(&task).await.unwrap();
        plugin.wait(&task.id).await;
        plugin.destroy(&task.id, false).await.unwrap();
        plugin.client.kill().await;
        assert!(world.log("stdout").contains("GREETING=hello"), "{}", world.log("stderr"));
        assert!(!world.log("stdout").contains("MINE"), "{}", world.log("stdout"));
    });
}

fn walk_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(walk_files(&entry.path())),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

/// A Go host that has a configuration as a struct encodes it in the older dialect: texts without a type, every key there,
/// absent ones empty.
fn a6_configurations_of_go_hosts_are_read() {
    fn raw(text: &str) -> Vec<u8> {
        [&[0xa0 | u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
    }
    block_on(async {
        let mut plugin = Plugin::start(Path::new(AGENTBIN), &["driver", "raw_exec"]).await;
        let config = |users: &str| {
            let pairs = [
                ("enabled", vec![0xc3]),
                ("denied_host_uids", raw(users)),
                ("denied_host_gids", raw("")),
                ("denied_envvars", vec![0xc0]),
            ];
            let bytes = pairs.into_iter().flat_map(|(key, value)| [raw(key), value].concat());
            let msgpack_config = std::iter::once(0x84).chain(bytes).collect();
            base::SetConfigRequest { msgpack_config, ..Default::default() }
        };
        plugin.base.set_config(config("")).await.unwrap();
        let bad = plugin.base.set_config(config("100-1")).await.unwrap_err();
        let wanted = "invalid range deniedHostUIDs \"100-1\": lower bound cannot be greater than upper bound";
        assert!(bad.message().contains(wanted), "{bad:?}");
        // Nothing runs on a configuration that the operator has wanted to replace.
        assert_eq!(plugin.fingerprint().await.health(), print::HealthState::Undetected);
        plugin.base.set_config(config("")).await.unwrap();
        assert_eq!(plugin.fingerprint().await.health(), print::HealthState::Healthy);
        // The java driver's struct of 1.x has a field without a name for the wire.
        let world = World::new();
        let task = world.task(&[("command", text("/bin/pwd")), ("WorkDir", text("/usr"))]);
        plugin.start_task(&task).await.unwrap();
        plugin.wait(&task.id).await;
        assert_eq!(world.log("stdout"), "/usr\n");
        plugin.destroy(&task.id, false).await.unwrap();
        plugin.client.kill().await;
    });
}

/// Tasks of two allocations whose host leaves their ids out do not meet in one cgroup.
fn a6_the_folder_names_the_cgroup() {
    block_on(async {
        let (one, other) = (World::new(), World::new());
        let mut plugin = Plugin::driver("exec", &[]).await;
        let tasks = [&one, &other].map(|world| {
            let task = world.script("sleep 1000");
            wire::TaskConfig { alloc_id: String::new(), ..task }
        });
        for (task, world) in tasks.iter().zip([&one, &other]) {
            plugin.start_task(task).await.unwrap();
            assert_ne!(world.cgroups(), Vec::<PathBuf>::new());
        }
        for task in &tasks {
            let running = plugin.inspect(&task.id).await;
            assert!(is_alive(pid_of(&running)), "{running:?}");
            plugin.destroy(&task.id, true).await.unwrap();
        }
        plugin.client.kill().await;
    });
}

fn a6_errors_are_those_that_agents_know() {
    block_on(async {
        let world = World::new();
        let mut plugin = Plugin::driver("exec", &[]).await;
        let missing = plugin.start_task(&world.task(&[("command", text("no-such-program"))])).await.unwrap_err();
        assert!(missing.message().contains("no-such-program"), "{missing:?}");
        assert_eq!(missing.code(), Code::Unknown, "another try would not help");
        assert_eq!(world.cgroups(), Vec::<PathBuf>::new());
        let mut task = world.script("true");
        task.user = "alice-who-is-not".into();
        let unknown = plugin.start_task(&task).await.unwrap_err();
        assert!(unknown.message().contains("user alice-who-is-not"), "{unknown:?}");
        let bad =
            plugin.start_task(&world.task(&[("command", text("true")), ("work_dir", text("x"))])).await.unwrap_err();
        assert!(bad.message().contains("work_dir must be absolute but got relative path \"x\""), "{bad:?}");

        let unknown = wire::WaitTaskRequest { task_id: "x/y/z".into() };
        for status in [
            plugin.driver.wait_task(unknown).await.unwrap_err(),
            plugin.destroy("x/y/z", true).await.unwrap_err(),
            plugin.stop("x/y/z", "", 1).await.unwrap_err(),
            plugin.driver.inspect_task(wire::InspectTaskRequest { task_id: "x".into() }).await.unwrap_err(),
        ] {
            assert_eq!((status.code(), status.message()), (Code::Unknown, "task not found for given id"));
        }
        let handle = wire::RecoverTaskRequest::default();
        let status = plugin.driver.recover_task(handle).await.unwrap_err();
        assert_eq!(status.message(), "handle cannot be nil");

        // The executor of a running task is killed: the task is lost, and that is not success.
        let task = world.script("echo up; sleep 1000");
        plugin.start_task(&task).await.unwrap();
        eventually("the task", || world.log("stdout").contains("up")).await;
        let task_pid = pid_of(&plugin.inspect(&task.id).await);
        let executor = procfs::process::Process::new(task_pid).unwrap().stat().unwrap().ppid;
        kill(executor);
        let ended = plugin.wait(&task.id).await;
        let result = ended.result.unwrap();
        assert_eq!((result.exit_code, result.oom_killed), (-1, false));
        assert!(ended.err.contains("executor: error waiting on process"), "{}", ended.err);
        plugin.destroy(&task.id, true).await.unwrap();
        eventually("the task is gone", || !is_alive(task_pid)).await;
        plugin.client.kill().await;
    });
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

fn n5_a_killed_plugin_finds_its_tasks_again() {
    block_on(async {
        for name in ["exec", "raw_exec"] {
            let world = World::new();
            let mut plugin = Plugin::driver(name, &[]).await;
            let script = "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.02; done";
            let task = world.script(script);
            let handle = plugin.start_task(&task).await.unwrap();
            let before = plugin.inspect(&task.id).await;
            eventually("the first line", || world.log("stdout").contains("line 1\n")).await;
            for round in 0..3 {
                if round == 1 {
                    // In good order this time: the task runs on all the same.
                    plugin.client.kill().await;
                } else {
                    kill(plugin.client.reattach_config().unwrap().process.pid);
                    plugin.client.exited().await;
                }
                plugin = Plugin::driver(name, &[]).await;
                plugin.recover(&handle).await.unwrap();
                plugin.recover(&handle).await.unwrap();
                assert_eq!(plugin.inspect(&task.id).await, before);
                let seen = world.log("stdout").lines().count();
                eventually("lines go on", || world.log("stdout").lines().count() > seen + 2).await;
                let interval = Some(prost_types::Duration { seconds: 1, nanos: 0 });
                let request = wire::TaskStatsRequest { task_id: task.id.clone(), collection_interval: interval };
                let mut samples = plugin.driver.task_stats(request).await.unwrap().into_inner();
                assert!(samples.next().await.unwrap().unwrap().stats.is_some());
            }
            let signal = wire::SignalTaskRequest { task_id: task.id.clone(), signal: "SIGKILL".into() };
            plugin.driver.signal_task(signal).await.unwrap();
            assert_eq!(plugin.wait(&task.id).await.result.unwrap().signal, 9);
            plugin.destroy(&task.id, false).await.unwrap();
            // Numbered lines: none lost, none doubled, whatever was killed.
            let log = world.log("stdout");
            for (at, line) in log.lines().enumerate() {
                assert_eq!(line, format!("line {}", at + 1));
            }
            assert_eq!(world.cgroups(), Vec::<PathBuf>::new());
            plugin.client.kill().await;
        }
    });
}

/// The executors of this allocation, wherever they were started.
fn executors(world: &World) -> Vec<i32> {
    let all = procfs::process::all_processes().unwrap();
    let ours = |p: &procfs::process::Process| {
        p.cmdline().is_ok_and(|c| c.iter().any(|a| a == "executor") && c.iter().any(|a| a.contains(&world.alloc)))
    };
    all.flatten().filter(|p| ours(p) && is_alive(p.pid)).map(|p| p.pid).collect()
}

/// The plugin is killed at any moment of a start, whose answer is lost with it. The agent asks another one for the same
/// task: there is one afterwards, with one executor, and nothing is left when it is destroyed.
fn n5_a_plugin_killed_while_it_starts_a_task() {
    block_on(async {
        for name in ["exec", "raw_exec"] {
            // The emulated guest lets every third moment do.
            let stride = if std::env::var_os("AGENTBIN_TEST_SLOWER").is_some() { 3 } else { 1 };
            for step in (0..12).step_by(stride) {
                let world = World::new();
                let mut plugin = Plugin::driver(name, &[]).await;
                let mut task = world.script("echo up; exec sleep 1000");
                let pid = plugin.client.process().pid;
                let killer = tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(step * 3)).await;
                    kill(pid);
                });
                let answer = plugin.start_task(&task).await;
                killer.await.unwrap();
                plugin.client.exited().await;
                let mut plugin = Plugin::driver(name, &[]).await;
                if let Ok(handle) = answer {
                    // It was answered in time: the agent knows the task.
                    plugin.recover(&handle).await.unwrap();
                } else {
                    task.id.push('x');
                    plugin.start_task(&task).await.unwrap();
                }
                eventually("one executor", || executors(&world).len() == 1).await;
                plugin.destroy(&task.id, true).await.unwrap();
                eventually("no executor", || executors(&world).is_empty()).await;
                assert_eq!(world.cgroups(), Vec::<PathBuf>::new(), "{name}, step {step}");
                let notes = std::fs::read_dir("/run/agentbin/driver").unwrap().flatten();
                let ours = notes.filter(|n| n.file_name().to_string_lossy().contains(&world.alloc));
                assert_eq!(ours.count(), 0, "a note is gone with its task");
                plugin.client.kill().await;
            }
        }
    });
}

/// A task whose handle a Go driver wrote: the executor is known by pid and socket only.
fn n5_a_task_of_another_driver_is_taken_over() {
    block_on(async {
        let world = World::new();
        let mut plugin = Plugin::driver("exec", &[]).await;
        let task = world.script("sleep 1000");
        let handle = plugin.start_task(&task).await.unwrap();
        let before = plugin.inspect(&task.id).await;
        plugin.client.kill().await;
        let mut state = GoDriverState::from_bytes(&handle.driver_state).unwrap();
        state.agentbin = None;
        let handle = wire::TaskHandle { driver_state: state.to_bytes().unwrap(), ..handle };
        let mut plugin = Plugin::driver("exec", &[]).await;
        plugin.recover(&handle).await.unwrap();
        assert_eq!(plugin.inspect(&task.id).await, before);
        plugin.stop(&task.id, "SIGKILL", 1).await.unwrap();
        assert_eq!(plugin.wait(&task.id).await.result.unwrap().signal, 9);
        plugin.destroy(&task.id, false).await.unwrap();
        assert_eq!(world.cgroups(), Vec::<PathBuf>::new());
        plugin.client.kill().await;
    });
}

fn n5_a_stale_handle_is_gone_and_nobody_is_signalled() {
    block_on(async {
        let world = World::new();
        let mut plugin = Plugin::driver("raw_exec", &[]).await;
        let task = world.script("sleep 1000");
        let handle = plugin.start_task(&task).await.unwrap();
        let pid = pid_of(&plugin.inspect(&task.id).await);
        plugin.destroy(&task.id, true).await.unwrap();
        eventually("the task's end", || !is_alive(pid)).await;
        // The same handle, its numbers now somebody else's: this very process. As if from before the last boot. And as if
        // from one of Go's drivers, which know their executor by its pid alone.
        let changed = |change: fn(&mut GoDriverState)| {
            let mut state = GoDriverState::from_bytes(&handle.driver_state).unwrap();
            change(&mut state);
            wire::TaskHandle { driver_state: state.to_bytes().unwrap(), ..handle.clone() }
        };
        let reused = changed(|state| state.reattach_config.as_mut().unwrap().pid = std::process::id().cast_signed());
        let earlier = changed(|state| state.agentbin.as_mut().unwrap().boot_id = "an earlier one".into());
        let gos = changed(|state| state.agentbin = None);
        let gos_reused = changed(|state| {
            state.agentbin = None;
            state.reattach_config.as_mut().unwrap().pid = std::process::id().cast_signed();
        });
        for stale in [handle.clone(), reused, earlier, gos, gos_reused] {
            let status = plugin.recover(&stale).await.unwrap_err();
            assert!(status.message().contains("failed to reattach to executor"), "{status:?}");
            let unknown = plugin.destroy(&task.id, true).await.unwrap_err();
            assert_eq!(unknown.message(), "task not found for given id");
        }
        let garbage = wire::TaskHandle { driver_state: b"garbage".to_vec(), ..handle };
        let status = plugin.recover(&garbage).await.unwrap_err();
        assert!(status.message().contains("failed to decode task state from handle"), "{status:?}");
        plugin.client.kill().await;
    });
}

fn n7_the_example_is_a_driver() {
    let example = Path::new(AGENTBIN).with_file_name("examples").join("external_driver");
    if !example.exists() {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{} is missing", example.display());
        println!("SKIP: n7_the_example_is_a_driver: the example is not built: cargo build --examples");
        return;
    }
    block_on(async {
        let world = World::new();
        let mut plugin = Plugin::start(&example, &[]).await;
        plugin.set_config(&[("interpreter", text("/bin/bash"))]).await.unwrap();
        let found = plugin.fingerprint().await;
        assert_eq!(found.health(), print::HealthState::Healthy);
        assert!(found.attributes.contains_key("driver.script.interpreter"));
        let task = world.task(&[("text", text("echo $BASH_VERSION $1; id -un; exit 4")), ("args", texts(&["arg"]))]);
        let handle = plugin.start_task(&task).await.unwrap();
        kill(plugin.client.reattach_config().unwrap().process.pid);
        plugin.client.exited().await;
        let mut plugin = Plugin::start(&example, &[]).await;
        plugin.set_config(&[]).await.unwrap();
        plugin.recover(&handle).await.unwrap();
        assert_eq!(plugin.wait(&task.id).await.result.unwrap().exit_code, 4);
        plugin.destroy(&task.id, false).await.unwrap();
        let log = world.log("stdout");
        assert!(log.contains(" arg\nnobody\n") && !log.starts_with(' '), "{log:?}");
        plugin.client.kill().await;
    });
}
