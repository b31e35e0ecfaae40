//! Driver plugins from the host's side: `agentbin plugin launch` as a program, the client's answers when a plugin dies,
//! and the catalog. The plugin is our own `raw_exec`; the Go plugins are in `tests/interop.rs`.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use agentbin::driver::catalog::{self, Block, Found, Log, Record};
use agentbin::driver::hclspec::Body;
use agentbin::driver::{Driver, DriverClient, DriverError, Health, NodeConfig, TaskConfig};
use agentbin::spec::DriverConfig;
use agentbin::spec::collections::BTreeMap;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const AGENTBIN: &str = env!("CARGO_BIN_EXE_agentbin");

/// The program, fed with lines.
fn launch(args: &[&str], script: &str) -> Output {
    let mut child = Command::new(AGENTBIN)
        .args(["plugin", "launch"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that fails at once reads nothing.
    let _ = child.stdin.take().unwrap().write_all(script.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory with a configuration and a task.
fn files() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let (config, task) = (dir.path().join("config.hcl"), dir.path().join("task.hcl"));
    std::fs::write(&config, "enabled = true\n").unwrap();
    let body = "id = \"x/web/1\"\nname = \"web\"\nenv {\n  PATH = \"/usr/bin:/bin\"\n  GREETING = \"hello\"\n}\n\
                config {\n  command = \"/bin/sh\"\n  args = [\"-c\", \"echo $GREETING; exec sleep 1000\"]\n}\n";
    std::fs::write(&task, body).unwrap();
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    (dir, path(config), path(task))
}

#[test]
fn a5_every_call_by_hand() {
    let (_dir, config, task) = files();
    let script = format!(
        "# a comment\ninfo\ntask-schema\nschema\ncapabilities\nfingerprint\nset-config {config}\nstart {task}\n\
         inspect x/web/1\nstats x/web/1 2 10ms\nexec x/web/1 /bin/echo 'a b'\n\
         exec-streaming x/web/1 /bin/sh -c 'echo out; exit 3'\nsignal x/web/1 SIGTERM\nwait x/web/1\nstop x/web/1 1s\n\
         recover x/web/1\ndestroy x/web/1\n"
    );
    let out = launch(&[AGENTBIN, "driver", "raw_exec", "--config", &config], &script);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{said}");
    let answers: Vec<Value> = text(&out.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers[0]["type"], "driver");
    assert_eq!(answers[0]["name"], "raw_exec");
    assert_eq!(answers[1]["command"], json!({"attribute": "command", "type": "string", "required": true}));
    assert!(answers[2]["enabled"].is_object(), "{}", answers[2]);
    assert_eq!(answers[3]["send_signals"], true);
    assert_eq!(answers[4]["health"], "healthy");
    assert_eq!(answers[5], json!({}));
    assert_eq!(answers[6]["id"], "x/web/1");
    assert_eq!(answers[7]["state"], "running");
    assert!(answers[8]["memory"].is_object() && answers[9]["memory"].is_object());
    assert_eq!(answers[10]["stdout"], "a b\n");
    let frames = &answers[11..answers.len() - 5];
    assert!(frames.contains(&json!({"stream": "stdout", "data": "out\n"})), "{frames:?}");
    assert_eq!(frames.last().unwrap()["result"]["exit_code"], 3);
    let wait = &answers[answers.len() - 4];
    assert_eq!((&wait["exit_code"], &wait["signal"]), (&json!(143), &json!(15)));
    assert!(!Path::new(answers[6]["stdout_path"].as_str().unwrap()).exists(), "the task's folder is left");
}

#[test]
fn a5_what_is_wrong_is_said_with_its_place() {
    let (dir, config, task) = files();
    let wrong = dir.path().join("wrong.hcl");
    std::fs::write(&wrong, "enabled = true\nno_cgruops = true\nenabled_too {\n}\n").unwrap();
    let out = launch(&[AGENTBIN, "driver", "raw_exec", "--config", wrong.to_str().unwrap()], "");
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(125), "{said}");
    assert!(said.contains("wrong.hcl:2") && said.contains("there is no \"no_cgruops\"; known here are "), "{said}");
    assert!(said.contains("wrong.hcl:3"), "{said}");

    std::fs::write(&wrong, "config {\n  args = \"-c\"\n}\n").unwrap();
    let script = format!("start {}\nnonsense\nstop\nwait 'x\ninspect nobody\nstart {task}\n", wrong.display());
    let out = launch(&[AGENTBIN, "driver", "raw_exec", "--config", &config], &script);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    for expected in [
        "wrong.hcl:1: \"command\" is missing; set command = ...",
        "wrong.hcl:2: \"args\" must be of the type list(string): it is a string",
        "nonsense: there is no such command",
        "usage: stop ID [TIMEOUT [SIGNAL]]",
        "the quote ' is not closed",
        "inspect: task not found for given id",
    ] {
        assert!(said.contains(expected), "{expected:?} is missing in:\n{said}");
    }
    // The task that was still running is gone with its directory.
    let started: Value = serde_json::from_str(text(&out.stdout).trim()).unwrap();
    assert!(!Path::new(started["stdout_path"].as_str().unwrap()).exists());

    for (binary, expected) in [("/bin/true", "exited before it could be reached"), ("/no/such/plugin", "cannot start")]
    {
        let out = launch(&[binary], "info\n");
        assert_eq!(out.status.code(), Some(125));
        assert!(text(&out.stderr).contains(expected), "{}", text(&out.stderr));
    }
}

#[test]
fn a5_a_plugin_that_dies_ends_the_session() {
    let (_dir, config, _task) = files();
    let mut child = Command::new(AGENTBIN)
        .args(["plugin", "launch", AGENTBIN, "driver", "raw_exec", "--config", &config])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    // Its last line before the first command.
    while !line.contains("help lists the commands") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended before it was ready");
    }
    let launcher = i32::try_from(child.id()).unwrap();
    let all = procfs::process::all_processes().unwrap().flatten().filter_map(|p| p.stat().ok());
    let plugin = all.filter(|s| s.ppid == launcher).map(|s| s.pid).next().unwrap();
    kill(Pid::from_raw(plugin), Signal::SIGKILL).unwrap();
    line.clear();
    said.read_to_string(&mut line).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{line}");
    assert!(line.contains("plugin is shut down"), "{line}");
}

#[test]
fn a5_a_signal_ends_it_and_what_it_started() {
    let (_dir, config, task) = files();
    let mut child = Command::new(AGENTBIN)
        .args(["plugin", "launch", AGENTBIN, "driver", "raw_exec", "--config", &config])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(format!("start {task}\ninspect x/web/1\nwait x/web/1\n").as_bytes()).unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let started: Value = serde_json::from_str(&said.next().unwrap()).unwrap();
    let inspected: Value = serde_json::from_str(&said.next().unwrap()).unwrap();
    let pid: i32 = inspected["attributes"]["pid"].as_str().unwrap().parse().unwrap();
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert!(kill(Pid::from_raw(pid), None).is_err(), "the task is left");
    assert!(!Path::new(started["stdout_path"].as_str().unwrap()).exists(), "its folder is left");
}

fn block_on<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
}

fn log() -> Log {
    Arc::new(|_, _| {})
}

async fn found() -> Found {
    let args: Vec<OsString> = ["driver", "raw_exec"].map(OsString::from).to_vec();
    catalog::examine("raw_exec", Path::new(AGENTBIN), &args, &log()).await.unwrap()
}

fn body(text: &str) -> Body {
    Body::parse(Path::new("agent.hcl"), text).unwrap()
}

/// A task that runs until it is killed, in a directory of its own.
fn task(dir: &Path) -> TaskConfig {
    let values = json!({"command": "/bin/sleep", "args": ["1000"]});
    std::fs::create_dir_all(dir.join("alloc/logs")).unwrap();
    std::fs::create_dir_all(dir.join("web/tmp")).unwrap();
    TaskConfig {
        id: "a/web/1".into(),
        name: "web".into(),
        alloc_id: "a".into(),
        alloc_dir: dir.to_owned(),
        config: DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() },
        ..TaskConfig::default()
    }
}

/// Every call on a plugin that died, the stream that was open included.
async fn assert_all_say_shutdown(driver: &DriverClient, dir: &Path) {
    let calls = driver.plugin();
    let shutdown = |what: &str, result: Result<(), DriverError>| {
        assert!(matches!(result, Err(DriverError::PluginShutdown)), "{what}: {result:?}");
    };
    shutdown("info", calls.info().await.map(drop));
    shutdown("config_schema", calls.config_schema().await.map(drop));
    shutdown("set_config", calls.set_config(Vec::new(), None, "v0.1.0").await);
    shutdown("init", driver.init().await);
    shutdown("task_config_schema", calls.task_config_schema().await.map(drop));
    shutdown("capabilities", calls.capabilities().await.map(drop));
    shutdown("fingerprints", calls.fingerprints().await.map(drop));
    shutdown("task_events", calls.task_events().await.map(drop));
    shutdown("start_task", driver.start_task(&task(dir)).await.map(drop));
    shutdown("recover_task", driver.recover_task(&task(dir), &[]).await);
    shutdown("wait_task", driver.wait_task("x").await.map(drop));
    shutdown("stop_task", driver.stop_task("x", Duration::ZERO, None).await);
    shutdown("destroy_task", driver.destroy_task("x", true).await);
    shutdown("inspect_task", driver.inspect_task("x").await.map(drop));
    shutdown("task_stats", driver.task_stats("x").await.map(drop));
    shutdown("signal_task", driver.signal_task("x", agentbin::spec::Signal::INT).await);
    shutdown("exec_task", driver.exec_task("x", &["true".into()], Duration::from_secs(1)).await.map(drop));
    let no_requests = Box::pin(tokio_stream::empty());
    shutdown("exec_task_streaming", calls.exec_task_streaming("x", no_requests).await.map(drop));
    shutdown("create_network", driver.create_network("x", "").await.map(drop));
    shutdown("destroy_network", driver.destroy_network("x", &agentbin::driver::NetworkIsolation::default()).await);
    assert_eq!(driver.fingerprint().await.health, Health::Unhealthy);
}

#[test]
fn a6_every_call_on_a_dead_plugin_says_plugin_shutdown() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let found = found().await;
        let config = found.check(Some(&body("enabled = true")), &log()).await.unwrap();
        let instance = found.start(&config, &NodeConfig::default(), &log()).await.unwrap();
        let driver = Arc::clone(instance.driver());
        assert!(driver.capabilities().exec && driver.capabilities().send_signals);
        assert_eq!(driver.fingerprint().await.health, Health::Healthy);
        let handle = driver.start_task(&task(dir.path())).await.unwrap();
        driver.recover_task(&task(dir.path()), &handle.driver_state).await.unwrap();
        assert!(matches!(driver.task_stats("nobody").await, Err(DriverError::TaskNotFound)));
        let mut samples = driver.plugin().task_stats("a/web/1", Duration::from_millis(10)).await.unwrap();
        samples.next().await.unwrap().unwrap();
        let waiting = {
            let driver = Arc::clone(&driver);
            tokio::spawn(async move { driver.wait_task("a/web/1").await })
        };
        // The task itself must not outlive the test.
        let pid: i32 = driver.inspect_task("a/web/1").await.unwrap().attributes["pid"].parse().unwrap();
        let plugin = instance.reattach_config().unwrap().process.pid;
        kill(Pid::from_raw(plugin), Signal::SIGKILL).unwrap();
        let end = loop {
            match samples.next().await {
                Ok(Some(_)) => {}
                end => break end,
            }
        };
        assert!(matches!(end, Err(DriverError::PluginShutdown)), "the open stream: {end:?}");
        assert!(matches!(waiting.await.unwrap(), Err(DriverError::PluginShutdown)));
        assert_all_say_shutdown(&driver, dir.path()).await;
        instance.end().await;

        // A new plugin finds the task by its handle, and ends it.
        let again = found.start(&config, &NodeConfig::default(), &log()).await.unwrap();
        again.driver().recover_task(&task(dir.path()), &handle.driver_state).await.unwrap();
        assert_eq!(again.driver().inspect_task("a/web/1").await.unwrap().attributes["pid"], pid.to_string());
        again.driver().destroy_task("a/web/1", true).await.unwrap();
        again.end().await;
        assert!(kill(Pid::from_raw(pid), None).is_err(), "the task is left");
    });
}

#[test]
fn a4_a_plugin_is_found_tried_kept_running_and_found_again() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["raw_exec", "not_configured"] {
        std::os::unix::fs::symlink(AGENTBIN, folder.path().join(name)).unwrap();
    }
    block_on(async {
        let blocks = BTreeMap::from([("raw_exec".to_owned(), Block::default())]);
        let programs = catalog::scan(folder.path(), &blocks).unwrap();
        let [(name, path)] = programs.as_slice() else { panic!("{programs:?}") };
        let found = catalog::examine(name, path, &blocks[name].args, &log()).await.unwrap();
        assert_eq!((found.info.name.as_str(), found.api_version.as_str()), ("raw_exec", "v0.1.0"));

        let wrong = found.check(Some(&body("enabled = 3\nno_cgruops = 1")), &log()).await.unwrap_err();
        let said = std::error::Error::source(&wrong).unwrap().to_string();
        assert!(said.contains("agent.hcl:1") && said.contains("\"enabled\" must be of the type bool"), "{said}");
        assert!(said.contains("agent.hcl:2"), "{said}");

        let config = found.check(Some(&body("enabled = true")), &log()).await.unwrap();
        let first = found.start(&config, &NodeConfig::default(), &log()).await.unwrap();
        let record = Record::new(BTreeMap::from([(name.clone(), first.reattach_config().unwrap())]));
        // This process is replaced: nobody ends the plugin.
        drop(first);
        let record = Record::parse(&record.to_json()).unwrap();
        let again = found.reattach(&record.plugins[name]).await.unwrap();
        assert_eq!(again.reattach_config().as_ref(), Some(&record.plugins[name]));
        assert_eq!(again.driver().fingerprint().await.health, Health::Healthy);

        let kept = found.clone().keep(again, config, NodeConfig::default(), log());
        let (mut driver, mut known) = (kept.driver(), kept.record());
        kill(Pid::from_raw(record.plugins[name].process.pid), Signal::SIGKILL).unwrap();
        tokio::time::timeout(Duration::from_mins(1), async {
            driver.wait_for(Option::is_none).await.unwrap();
            driver.wait_for(Option::is_some).await.unwrap();
        })
        .await
        .expect("it is started again");
        let new = known.wait_for(Option::is_some).await.unwrap().clone().unwrap();
        assert_ne!(new.process, record.plugins[name].process);
        let latest = driver.borrow().clone().unwrap();
        assert_eq!(latest.fingerprint().await.health, Health::Healthy);
        kept.end().await;
        assert!(kill(Pid::from_raw(new.process.pid), None).is_err(), "the plugin is left");
        found.reattach(&record.plugins[name]).await.unwrap_err();
    });
}
