//! `agentbin plugin launch`: calls the rpcs of a driver plugin by hand.

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value as Json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::output::json_text;
use super::signals::Signals;
use super::{PluginLaunchArgs, args, complain};
use crate::container::host_user;
use crate::driver::catalog::{self, CatalogError};
use crate::driver::hclspec::{Body, Schema};
use crate::driver::{
    Attribute, DriverError, Fingerprint, FsIsolation, Health, NetworkIsolation, NetworkMode, NodeConfig, PluginClient,
    TaskConfig, TaskState, TaskStatus, fingerprint_of, stats_of, wire_task,
};
use crate::plugin::{Client, HclogLine, Launch, Program};
use crate::spec::collections::BTreeMap;
use crate::spec::json::json;
use crate::spec::{
    AllocId, ExitResult, IntoMap as _, LONGEST_MESSAGE, MemoryLimits, Pressure, Resources, Signal, Stall, TaskStats,
    escaped, shortened,
};
use crate::sys::acl::{Acl, EXECUTE, READ, WRITE, Who};
use crate::sys::mutant;
use crate::sys::owned::OwnDir;
use crate::wire::cty;
use crate::wire::drivers as wire;
use crate::wire::hclspec::{Spec, spec};
use crate::wire::schema::{Literal, attr, block, block_attrs, object, with_default};

/// A command of a script failed.
const FAILED: i32 = 1;
/// Timeout of commands in a task that name none.
const EXEC_PATIENCE: Duration = Duration::from_secs(30);
/// How long the plugin may take to destroy the remaining tasks.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// The range that the agent's configuration gives to Nomad's executors.
const PORTS: (u32, u32) = (14000, 14512);

const HELP: &str = "\
info                                   what the plugin is
schema                                 what configuration it takes
task-schema                            what configuration its tasks take
capabilities                           what the driver can do
set-config FILE                        give it another configuration
fingerprint [COUNT]                    its health; with COUNT that many, as they come
start FILE                             start a task (HCL or JSON, see below)
wait ID                                wait for its end
stop ID [TIMEOUT [SIGNAL]]             stop it; 5s unless said otherwise
destroy ID [force]                     forget it
inspect ID                             what is known of it
stats ID [COUNT [INTERVAL]]            its resource use
events [COUNT]                         what happens to tasks, as it comes
signal ID SIGNAL                       send it a signal, such as SIGHUP
exec ID COMMAND...                     run a command inside it
exec-streaming ID COMMAND...           the same as a session, without input
recover ID                             find it again by the handle of its start
create-network ALLOC [HOSTNAME]        make an allocation's network
destroy-network ALLOC                  remove it
quit                                   end the plugin; tasks that are left are destroyed

The ID - is the task that was started last.
A task file has: config { ... } for the driver, and if you like id, name, user, alloc_dir, stdout_path, stderr_path,
cpuset_cgroup, env { NAME = \"value\" }, resources { cpu = 100  memory = 64  memory_max = 0 }. Words with blanks go in quotes.
";

/// Starts the plugin and executes commands until the input ends.
pub(super) fn launch(arguments: &PluginLaunchArgs) -> anyhow::Result<i32> {
    let config = arguments.config.as_deref().map(read_body).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the event loop")?;
    let status = crate::sys::task::block_on(&runtime, async {
        let mut signals = Signals::catch().context("catch signals")?;
        let mut session = tokio::select! {
            session = Session::start(arguments, config) => session?,
            // The plugin is killed together with its processes: nothing remains of an incomplete start.
            signal = signals.next() => bail!("interrupted by {signal}"),
        };
        let status = session.serve(&mut signals).await;
        session.end().await;
        Ok(status)
    });
    // A thread may still wait for a line of input that is no longer needed.
    runtime.shutdown_background();
    status
}

fn read_body(path: &Path) -> anyhow::Result<Body> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Body::parse(path, &text)?)
}

/// A running plugin, with everything that its calls made.
struct Session {
    client: Client,
    calls: PluginClient,
    api_version: String,
    schema: Option<Schema>,
    tasks: BTreeMap<String, wire::TaskHandle>,
    /// The id of the most recently started task.
    last: Option<String>,
    networks: BTreeMap<String, NetworkIsolation>,
    /// Directories that this program made for tasks.
    folders: Vec<PathBuf>,
}

type Answer = anyhow::Result<()>;

impl Session {
    async fn start(arguments: &PluginLaunchArgs, config: Option<Body>) -> anyhow::Result<Session> {
        // A name without a slash would be searched for in PATH.
        let path = match arguments.binary.components().count() {
            1 => Path::new(".").join(&arguments.binary),
            _ => arguments.binary.clone(),
        };
        let launch = Launch {
            args: &arguments.args,
            env: std::env::vars_os().collect(),
            new_session: true,
            // If this program is killed, it cannot stop the plugin any more.
            dies_with_us: true,
            log: Box::new(|line| print_log(&line)),
            ..Launch::new(Program::Path(&path))
        };
        let client = launch.start().await?;
        let calls = PluginClient::new(client.channel(), client.life());
        match configure(&calls, config.as_ref()).await {
            Ok((api_version, schema)) => {
                let (tasks, last, networks, folders) = Default::default();
                Ok(Session { client, calls, api_version, schema, tasks, last, networks, folders })
            }
            Err(error) => {
                client.kill().await;
                Err(error)
            }
        }
    }

    async fn serve(&mut self, signals: &mut Signals) -> i32 {
        let is_script = !std::io::stdin().is_terminal();
        let mut lines = read_lines();
        let mut status = 0;
        loop {
            if !is_script {
                prompt();
            }
            let line = tokio::select! {
                line = lines.recv() => line,
                () = self.client.exited() => {
                    complain(&DriverError::PluginShutdown.to_string());
                    return FAILED;
                }
                signal = signals.next() => return 128 + signal.number(),
            };
            let Some(line) = line else { return status };
            let words = match words(&line) {
                Ok(words) if words.is_empty() || words[0].starts_with('#') => continue,
                Ok(words) => words,
                Err(error) => {
                    complain(&error);
                    status = FAILED;
                    continue;
                }
            };
            if matches!(words[0].as_str(), "quit" | "exit") {
                return status;
            }
            let done = tokio::select! {
                done = self.command(&words) => done,
                signal = signals.next() => {
                    if is_script || signal != Signal::INT {
                        return 128 + signal.number();
                    }
                    Err(anyhow!("interrupted"))
                }
            };
            if let Err(error) = done {
                complain(&format!("{}: {error:#}", words[0]));
                status = FAILED;
            }
        }
    }

    async fn command(&mut self, words: &[String]) -> Answer {
        let mut rest: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let last = self.last.clone();
        if let Some(id) = rest.first_mut().filter(|word| **word == "-") {
            *id = last.as_deref().context("no task has been started")?;
        }
        let calls = self.calls.clone();
        match (words[0].as_str(), rest.as_slice()) {
            ("help", _) => write_out(HELP),
            ("info", []) => {
                let info = calls.info().await?;
                let api = &info.api_versions;
                say(&json!({"type": info.kind, "name": info.name, "version": info.version, "api_versions": api}))
            }
            ("schema", []) => say(&calls.config_schema().await?.as_ref().map_or(Json::Null, schema_json)),
            ("task-schema", []) => say(&schema_json(&calls.task_config_schema().await?)),
            ("capabilities", []) => self.capabilities().await,
            ("set-config", [file]) => {
                let config = catalog::encode(self.schema.as_ref(), Some(&read_body(Path::new(file))?))?;
                calls.set_config(config, Some(&node()), &self.api_version).await?;
                say(&json!({}))
            }
            ("fingerprint", []) => fingerprints(&calls, 1).await,
            ("fingerprint", [count]) => fingerprints(&calls, number(count)?).await,
            ("start", [file]) => self.start_task(Path::new(file)).await,
            ("wait", [id]) => say(&exit_json(&calls.wait_task(id).await?)),
            ("stop", [id]) => self.stop(id, "5s", "").await,
            ("stop", [id, timeout]) => self.stop(id, timeout, "").await,
            ("stop", [id, timeout, signal]) => self.stop(id, timeout, signal).await,
            ("destroy", [id]) => self.destroy(id, false).await,
            ("destroy", [id, "force"]) => self.destroy(id, true).await,
            ("inspect", [id]) => say(&status_json(&calls.inspect_task(id).await?)),
            ("stats", [id]) => stats(&calls, id, 1, "1s").await,
            ("stats", [id, count]) => stats(&calls, id, number(count)?, "1s").await,
            ("stats", [id, count, interval]) => stats(&calls, id, number(count)?, interval).await,
            ("events", []) => events(&calls, 1).await,
            ("events", [count]) => events(&calls, number(count)?).await,
            ("signal", [id, signal]) => {
                calls.signal_task(id, signal).await?;
                say(&json!({}))
            }
            ("exec", [id, _, ..]) => {
                let result = calls.exec_task(id, &words[2..], EXEC_PATIENCE).await?;
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let (stdout, stderr) = (text(&result.stdout), text(&result.stderr));
                say(&json!({"stdout": stdout, "stderr": stderr, "result": exit_json(&result.exit)}))
            }
            ("exec-streaming", [id, _, ..]) => exec_streaming(&calls, id, &words[2..]).await,
            ("recover", [id]) => {
                let handle = self.tasks.get(*id).cloned().context("this program started no task of that id")?;
                calls.recover_task(handle).await?;
                say(&json!({}))
            }
            ("create-network", [alloc]) => self.create_network(alloc, "").await,
            ("create-network", [alloc, hostname]) => self.create_network(alloc, hostname).await,
            ("destroy-network", [alloc]) => {
                let network = self.networks.get(*alloc).cloned().unwrap_or_default();
                calls.destroy_network(alloc, network).await?;
                self.networks.remove(*alloc);
                say(&json!({}))
            }
            (name, _) if HELP.lines().any(|line| line.split(' ').next() == Some(name)) => {
                let usage = HELP.lines().find(|line| line.split(' ').next() == Some(name)).unwrap_or_default();
                Err(anyhow!("wrong number of words; usage: {}", usage.split("  ").next().unwrap_or_default()))
            }
            _ => Err(anyhow!("there is no such command; help lists them")),
        }
    }

    async fn capabilities(&self) -> Answer {
        let capabilities = self.calls.capabilities().await?;
        let fs = match capabilities.fs_isolation {
            FsIsolation::None => "none",
            FsIsolation::Chroot => "chroot",
            FsIsolation::Image => "image",
            FsIsolation::Unveil => "unveil",
        };
        let modes: Vec<&str> = capabilities.network_modes.iter().map(|mode| mode_name(*mode)).collect();
        say(&json!({
            "send_signals": capabilities.send_signals,
            "exec": capabilities.exec,
            "fs_isolation": fs,
            "network_isolation_modes": modes,
            "must_create_network": capabilities.must_create_network,
            "mount_configs": if capabilities.no_mounts { "none" } else { "any" },
            "disable_log_collection": capabilities.disable_log_collection,
            "dynamic_workload_users": capabilities.dynamic_workload_users,
        }))
    }

    async fn start_task(&mut self, file: &Path) -> Answer {
        let body = read_body(file)?;
        let schema = Schema::new(&task_file(self.calls.task_config_schema().await?))?;
        let cty::Value::Map(mut written) = schema.decode(&body, &serde_json::Map::new())? else {
            bail!("{}: a task file is needed; help shows one", file.display());
        };
        let config = written.remove("config").unwrap_or(cty::Value::Null);
        let task = self.task(&cty::Value::Map(written).to_json())?;
        let (handle, network) = self.calls.start_task(wire_task(&task, cty::encode(&config))).await?;
        let network = network.map(|n| json!({"ip": n.ip, "ports": n.port_map, "auto_advertise": n.auto_advertise}));
        let answer = json!({
            "id": task.id,
            "version": handle.version,
            "driver_state_bytes": handle.driver_state.len(),
            "network": network,
            "stdout_path": task.stdout_path,
            "stderr_path": task.stderr_path,
        });
        self.last = Some(task.id.clone());
        self.tasks.insert(task.id, handle);
        say(&answer)
    }

    /// The task that a file describes, with its directories.
    fn task(&mut self, written: &Json) -> anyhow::Result<TaskConfig> {
        let text = |key: &str| written[key].as_str().unwrap_or_default().to_owned();
        let alloc_id = AllocId::new(crate::sys::random::uuid()).to_string();
        let name = text("name");
        let id = match text("id") {
            id if id.is_empty() => format!("{alloc_id}/{name}/{}", &alloc_id[..8]),
            id => id,
        };
        let alloc_dir = match text("alloc_dir") {
            dir if dir.is_empty() => {
                let dir = std::env::temp_dir().join(format!("agentbin-plugin-{alloc_id}"));
                make_closed(&dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
                self.folders.push(dir.clone());
                let user = text("user");
                let_in(&dir, &user).with_context(|| format!("cannot let user {user} into {}", dir.display()))?;
                dir
            }
            dir => PathBuf::from(dir),
        };
        for folder in ["alloc/logs", "alloc/data", "alloc/tmp"] {
            make_folder(&alloc_dir.join(folder))?;
        }
        for folder in ["local", "secrets", "tmp"] {
            make_folder(&alloc_dir.join(&name).join(folder))?;
        }
        let output = |key: &str, stream: &str| match text(key) {
            path if path.is_empty() => alloc_dir.join(format!("alloc/logs/{name}.{stream}.0")).display().to_string(),
            path => path,
        };
        let (stdout_path, stderr_path) = (output("stdout_path", "stdout"), output("stderr_path", "stderr"));
        for path in [&stdout_path, &stderr_path] {
            // A driver opens an existing path, such as the FIFOs of an agent.
            let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
            opened.with_context(|| format!("cannot write the task's output to {path}"))?;
        }
        let resources = &written["resources"];
        let figure = |key: &str, default: i64| resources[key].as_i64().unwrap_or(default);
        let env = written["env"].as_object().into_iter().flatten();
        Ok(TaskConfig {
            id,
            group: name.clone(),
            job_id: name.clone(),
            job_name: name.clone(),
            namespace: "default".to_owned(),
            env: env.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).into_map(),
            user: text("user"),
            resources: Resources {
                cpu_shares: u64::try_from(figure("cpu", 100)).unwrap_or_default(),
                memory: MemoryLimits::from_mib(figure("memory", 64), figure("memory_max", 0)),
                ..Resources::default()
            },
            cpuset_cgroup: text("cpuset_cgroup").into(),
            name,
            alloc_id,
            alloc_dir,
            stdout_path,
            stderr_path,
            ..TaskConfig::default()
        })
    }

    async fn stop(&self, id: &str, timeout: &str, signal: &str) -> Answer {
        let grace = args::duration(timeout).map_err(|e| anyhow!("{timeout:?} is not a time: {e}"))?;
        self.calls.stop_task(id, grace, signal).await?;
        say(&json!({}))
    }

    async fn destroy(&mut self, id: &str, force: bool) -> Answer {
        self.calls.destroy_task(id, force).await?;
        self.tasks.remove(id);
        say(&json!({}))
    }

    async fn create_network(&mut self, alloc: &str, hostname: &str) -> Answer {
        let (network, created) = self.calls.create_network(alloc, hostname).await?;
        let hosts = network.hosts.as_ref().map(|(name, address)| json!({"hostname": name, "address": address}));
        let answer = json!({
            "created": created,
            "mode": mode_name(network.mode),
            "path": network.path,
            "labels": network.labels,
            "hosts": hosts,
        });
        self.networks.insert(alloc.to_owned(), network);
        say(&answer)
    }

    /// Stops everything that was started, the plugin last.
    async fn end(self) {
        for id in self.tasks.keys() {
            match timeout(END_PATIENCE, self.calls.destroy_task(id, true)).await {
                Ok(Ok(()) | Err(DriverError::TaskNotFound | DriverError::PluginShutdown)) => {}
                Ok(Err(error)) => complain(&format!("task {id} is left: {error}")),
                Err(_) => complain(&format!("task {id} is left: the plugin does not answer")),
            }
        }
        for (alloc, network) in self.networks {
            match timeout(END_PATIENCE, self.calls.destroy_network(&alloc, network)).await {
                Ok(Ok(()) | Err(DriverError::PluginShutdown)) => {}
                Ok(Err(error)) => complain(&format!("the network of {alloc} is left: {error}")),
                Err(_) => complain(&format!("the network of {alloc} is left: the plugin does not answer")),
            }
        }
        self.calls.shutdown().await;
        self.client.kill().await;
        for folder in self.folders {
            if let Err(error) = std::fs::remove_dir_all(&folder) {
                complain(&format!("{} is left: {error}", folder.display()));
            }
        }
    }
}

/// Asks for the plugin's info, and configures it.
async fn configure(calls: &PluginClient, config: Option<&Body>) -> anyhow::Result<(String, Option<Schema>)> {
    let (info, version, api_version, schema) = catalog::ask("", calls).await.map_err(without_name)?;
    let bytes = catalog::encode(schema.as_ref(), config)?;
    if schema.is_some() {
        calls.set_config(bytes, Some(&node()), &api_version).await?;
    }
    calls.init().await.context("Init")?;
    let text = format!("{} {version}, {}; help lists the commands\n", info.name, info.api_versions.join(" "));
    std::io::stderr().write_all(text.as_bytes()).context("cannot write to standard error")?;
    Ok((api_version, schema))
}

/// Omits the plugin's name: there is only one plugin here.
fn without_name(error: CatalogError) -> anyhow::Error {
    match error {
        CatalogError::Call { what, source, .. } => anyhow::Error::from(source).context(what),
        CatalogError::Unfit { reason, .. } => anyhow!("the plugin cannot be used: {reason}"),
        other => other.into(),
    }
}

fn node() -> NodeConfig {
    NodeConfig { compute: Some(crate::alloc::compute()), ports: PORTS }
}

/// Accessible to this user only, because every user can list its parent directory.
fn make_closed(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(if mutant::on("d74") { 0o711 } else { 0o700 }).create(dir)
}

/// Lets the task's user pass through the directory if that is another user: by an entry of the access control list, or on a file
/// system without ACLs by its group.
fn let_in(dir: &Path, user: &str) -> std::io::Result<()> {
    let Some(ids) = host_user(user).filter(|ids| ids.uid != 0 && rustix::process::geteuid().is_root()) else {
        return Ok(());
    };
    let dir = OwnDir::open(dir)?;
    let owner = READ | WRITE | EXECUTE;
    let list = Acl(vec![
        (Who::Owner, owner),
        (Who::User(ids.uid), EXECUTE),
        (Who::OwningGroup, 0),
        (Who::Mask, EXECUTE),
        (Who::Others, 0),
    ]);
    match list.set(&dir) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            rustix::fs::fchown(&dir, None, Some(rustix::fs::Gid::from_raw(ids.gid)))?;
            Ok(rustix::fs::fchmod(&dir, rustix::fs::Mode::from_raw_mode(0o710))?)
        }
        other => other,
    }
}

fn make_folder(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the directory {}", path.display()))
}

/// The schema of a task file; `config` is the driver's.
fn task_file(config: Spec) -> Spec {
    let text = |name: &str| attr(name, "string", false);
    let number = |name: &str| attr(name, "number", false);
    object([
        ("id", text("id")),
        ("name", with_default(text("name"), Literal::string("task"))),
        ("user", text("user")),
        ("alloc_dir", text("alloc_dir")),
        ("stdout_path", text("stdout_path")),
        ("stderr_path", text("stderr_path")),
        ("cpuset_cgroup", text("cpuset_cgroup")),
        ("env", block_attrs("env", "string", false)),
        (
            "resources",
            block("resources", false, object(["cpu", "memory", "memory_max"].map(|name| (name, number(name))))),
        ),
        ("config", block("config", true, config)),
    ])
}

async fn fingerprints(calls: &PluginClient, count: usize) -> Answer {
    let mut answers = calls.fingerprints().await?;
    for _ in 0..count {
        let Some(answer) = answers.next().await? else { bail!("the plugin has ended the stream") };
        say(&fingerprint_json(&fingerprint_of(answer)))?;
    }
    Ok(())
}

async fn stats(calls: &PluginClient, id: &str, count: usize, interval: &str) -> Answer {
    let interval = args::duration(interval).map_err(|e| anyhow!("{interval:?} is not a time: {e}"))?;
    let mut answers = calls.task_stats(id, interval).await?;
    for _ in 0..count {
        let Some(answer) = answers.next().await? else { bail!("the plugin has ended the stream") };
        say(&stats_json(&stats_of(answer)?))?;
    }
    Ok(())
}

async fn events(calls: &PluginClient, count: usize) -> Answer {
    let mut answers = calls.task_events().await?;
    for _ in 0..count {
        let Some(event) = answers.next().await? else { bail!("the plugin has ended the stream") };
        let annotations = event.annotations.into_iter().into_map();
        say(&json!({
            "task_id": event.task_id, "alloc_id": event.alloc_id, "task": event.task_name,
            "message": event.message, "annotations": annotations,
        }))?;
    }
    Ok(())
}

/// Runs a session without input, and prints every frame as a line.
async fn exec_streaming(calls: &PluginClient, id: &str, command: &[String]) -> Answer {
    let setup =
        wire::exec_task_streaming_request::Setup { task_id: id.to_owned(), command: command.to_vec(), tty: false };
    let close = wire::ExecTaskStreamingIoOperation { data: Vec::new(), close: true };
    let requests = [
        wire::ExecTaskStreamingRequest { setup: Some(setup), ..Default::default() },
        wire::ExecTaskStreamingRequest { stdin: Some(close), ..Default::default() },
    ];
    // Nomad clients never close their half of the stream.
    let requests = tokio_stream::StreamExt::chain(
        tokio_stream::iter(requests.map(Ok)),
        tokio_stream::pending::<Result<wire::ExecTaskStreamingRequest, tonic::Status>>(),
    );
    let mut answers = calls.exec_task_streaming(id, Box::pin(requests)).await?;
    while let Some(answer) = answers.next().await? {
        for (stream, operation) in [("stdout", answer.stdout), ("stderr", answer.stderr)] {
            if let Some(operation) = operation {
                let data = String::from_utf8_lossy(&operation.data).into_owned();
                let close = operation.close;
                say(&if close {
                    json!({"stream": stream, "close": true})
                } else {
                    json!({"stream": stream, "data": data})
                })?;
            }
        }
        if answer.exited {
            let exit = answer.result.map(|r| json!({"exit_code": r.exit_code, "signal": r.signal}));
            say(&json!({"exited": true, "result": exit}))?;
        }
    }
    Ok(())
}

fn number(text: &str) -> anyhow::Result<usize> {
    text.parse().map_err(|_| anyhow!("{text:?} is not a count"))
}

fn say(answer: &Json) -> Answer {
    write_out(&(json_text(answer) + "\n"))
}

fn write_out(text: &str) -> Answer {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to standard output")
}

fn prompt() {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(b"> ").and_then(|()| err.flush());
}

fn print_log(line: &HclogLine) {
    let pairs = line.pairs.iter().flat_map(|(key, value)| [" ", key.as_str(), "=", value.as_str()]);
    let pairs: String = pairs.collect();
    let text = format!("{}{pairs}", line.message);
    let text = format!("[{}] {}\n", line.level.as_str(), escaped(&shortened(&text, LONGEST_MESSAGE)));
    // If stderr is closed, there is no way to report it.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The lines of standard input, read by a thread: making a terminal non-blocking would change it for every process that uses it.
fn read_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(1);
    let sender = Arc::new(sender);
    crate::sys::task::spawn_blocking(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Splits a line into words; quotes and backslashes as in a shell, nothing else.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\\' => word.get_or_insert_default().extend(chars.next()),
            quote @ ('"' | '\'') => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some(c) if c == quote => break,
                        Some('\\') if quote == '"' => word.extend(chars.next()),
                        Some(c) => word.push(c),
                        None => return Err(format!("the quote {quote} is not closed")),
                    }
                }
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

const fn mode_name(mode: NetworkMode) -> &'static str {
    match mode {
        NetworkMode::Host => "host",
        NetworkMode::Group => "group",
        NetworkMode::Task => "task",
        NetworkMode::None => "none",
    }
}

fn exit_json(exit: &ExitResult) -> Json {
    json!({"exit_code": exit.exit_code, "signal": exit.signal, "oom_killed": exit.oom_killed, "core_dumped": exit.core_dumped})
}

fn time_json(time: Option<std::time::SystemTime>) -> Json {
    time.map_or(Json::Null, |time| json!(humantime::format_rfc3339_millis(time).to_string()))
}

fn status_json(status: &TaskStatus) -> Json {
    let state = match status.state {
        TaskState::Unknown => "unknown",
        TaskState::Running => "running",
        TaskState::Exited => "exited",
    };
    json!({
        "id": status.id,
        "name": status.name,
        "state": state,
        "started_at": time_json(status.started_at),
        "completed_at": time_json(status.completed_at),
        "result": status.exit.as_ref().map(exit_json),
        "attributes": status.attributes,
    })
}

fn fingerprint_json(fingerprint: &Fingerprint) -> Json {
    let health = match fingerprint.health {
        Health::Undetected => "undetected",
        Health::Unhealthy => "unhealthy",
        Health::Healthy => "healthy",
    };
    let value = |attribute: &Attribute| match attribute {
        Attribute::String(text) => json!(text),
        Attribute::Bool(flag) => json!(flag),
        Attribute::Int(number, unit) if unit.is_empty() => json!(number),
        Attribute::Int(number, unit) => json!(format!("{number}{unit}")),
        Attribute::Float(number, unit) if unit.is_empty() => json!(number),
        Attribute::Float(number, unit) => json!(format!("{number}{unit}")),
    };
    let attributes: BTreeMap<&String, Json> = fingerprint.attributes.iter().map(|(k, v)| (k, value(v))).into_map();
    json!({
        "health": health,
        "description": fingerprint.description,
        "error": fingerprint.error,
        "attributes": attributes,
    })
}

fn stats_json(stats: &TaskStats) -> Json {
    let (cpu, memory) = (&stats.total.cpu, &stats.total.memory);
    json!({
        "time": time_json(Some(stats.time)),
        "cpu": {"percent": cpu.percent, "system": cpu.system_mode, "user": cpu.user_mode, "ticks": cpu.total_ticks},
        "memory": {"rss": memory.rss, "cache": memory.cache, "usage": memory.usage, "swap": memory.swap},
        "pressure": {
            "cpu": stats.pressure.cpu.map(|p| pressure_json(&p)),
            "memory": stats.pressure.memory.map(|p| pressure_json(&p)),
            "io": stats.pressure.io.map(|p| pressure_json(&p)),
        },
        "pids": stats.by_pid.keys().collect::<Vec<_>>(),
    })
}

/// Percent of the last 10, 60 and 300 seconds, and total microseconds; null if not measured.
fn pressure_json(pressure: &Pressure) -> Json {
    let stall = |s: &Stall| json!({"avg10": s.avg10, "avg60": s.avg60, "avg300": s.avg300, "total_us": s.total_us});
    json!({"some": stall(&pressure.some), "full": pressure.full.as_ref().map(stall)})
}

/// A schema as JSON for people.
fn schema_json(spec: &Spec) -> Json {
    let nested = |spec: &Option<Box<Spec>>| spec.as_deref().map_or(Json::Null, schema_json);
    match &spec.block {
        None => Json::Null,
        Some(spec::Block::Object(o)) => {
            let sorted: BTreeMap<&String, Json> = o.attributes.iter().map(|(k, s)| (k, schema_json(s))).into_map();
            json!(sorted)
        }
        Some(spec::Block::Array(a)) => a.values.iter().map(schema_json).collect(),
        Some(spec::Block::Attr(a)) => json!({"attribute": a.name, "type": a.r#type, "required": a.required}),
        Some(spec::Block::BlockValue(b)) => {
            json!({"block": b.name, "required": b.required, "contents": nested(&b.nested)})
        }
        Some(spec::Block::BlockAttrs(b)) => {
            json!({"block": b.name, "required": b.required, "free attributes": b.r#type})
        }
        Some(spec::Block::BlockList(b)) => {
            json!({"blocks": b.name, "min": b.min_items, "max": b.max_items, "contents": nested(&b.nested)})
        }
        Some(spec::Block::BlockSet(b)) => {
            json!({"set of blocks": b.name, "min": b.min_items, "max": b.max_items, "contents": nested(&b.nested)})
        }
        Some(spec::Block::BlockMap(b)) => {
            json!({"labeled blocks": b.name, "labels": b.labels, "contents": nested(&b.nested)})
        }
        Some(spec::Block::Default(d)) => {
            json!({"default": nested(&d.default), "of": nested(&d.primary)})
        }
        Some(spec::Block::Literal(l)) => json!(l.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a5_lines_are_split_like_a_shells() {
        let split = |line: &str| words(line).map(|w| w.join("|"));
        assert_eq!(split("  exec id  sh -c 'echo \"a b\"' "), Ok("exec|id|sh|-c|echo \"a b\"".to_owned()));
        assert_eq!(split(r#"a\ b "c\"d" '' e"f"g"#), Ok("a b|c\"d||efg".to_owned()));
        assert_eq!(split(""), Ok(String::new()));
        assert!(split("'a").is_err());
    }
}
