//! Owners of containers that are killed in the middle of a start, beside runs in the same data directory and on the same engine (E2,
//! E4): what the interrupted start left goes, and the runs' containers stay.

#[path = "support/agent.rs"]
mod agent;
#[path = "support/engine.rs"]
mod engine;
#[path = "support/harness.rs"]
mod harness;
#[path = "support/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use agent::Agent;
use agentbin::cgroup::CgroupFs;
use agentbin::driver::catalog::{self, Instance, Log};
use agentbin::driver::hclspec::Body;
use agentbin::driver::{DockerDriver, Driver as _, Host, NodeConfig, Settings, TaskConfig};
use agentbin::executor::Compute;
use agentbin::spec::DriverConfig;
use engine::{Fault, IMAGE, Proxy, Route, TestEngine};
use harness::{block_on, eventually, run, tests};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use world::{Running, World};

const AGENTBIN: &str = env!("CARGO_BIN_EXE_agentbin");
const ALLOC_LABEL: &str = "com.hashicorp.nomad.alloc_id";

static ENGINE: OnceLock<TestEngine> = OnceLock::new();

fn main() -> ExitCode {
    agentbin::init();
    match TestEngine::start() {
        Ok(engine) => assert!(ENGINE.set(engine).is_ok()),
        Err(reason) => return harness::skip("docker_owners", &reason),
    }
    let result = run(tests![
        e4_the_reconciler_beside_two_runs_removes_what_a_killed_owner_left,
        e2_an_agent_killed_in_a_start_leaves_one_container_beside_two_runs,
    ]);
    // A static is never dropped.
    engine().end();
    result
}

fn engine() -> &'static TestEngine {
    ENGINE.get().expect("main has started it")
}

/// All containers, whatever their state: the id with the allocation's.
fn containers() -> BTreeMap<String, String> {
    let format = format!("{{{{.ID}}}} {{{{.Label \"{ALLOC_LABEL}\"}}}}");
    let listed = engine().docker(&["ps", "-a", "--no-trunc", "--format", &format]);
    let pairs = listed.lines().filter_map(|line| line.split_once(' '));
    pairs.map(|(id, alloc)| (id.to_owned(), alloc.to_owned())).collect()
}

fn of_alloc(alloc: &str) -> Vec<String> {
    containers().into_iter().filter(|(_, of)| of == alloc).map(|(id, _)| id).collect()
}

/// What must not change about a container that stays.
fn state(ids: &[String]) -> String {
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let format = "{{.Id}} {{.State.Status}} {{.State.Pid}} {{.State.StartedAt}} {{.RestartCount}}";
    engine().docker(&[&["inspect", "-f", format][..], &ids].concat())
}

/// A run in the foreground and one in the background, each with a container.
struct Runs {
    foreground: Running,
    containers: Vec<String>,
    before: String,
}

impl Runs {
    fn start(world: &World) -> Runs {
        let file = |name: &str| {
            let task = format!(
                "task \"web\" {{\n driver = \"docker\"\n config {{\n  image = \"{IMAGE}\"\n  network_mode = \"none\"\n  \
                 command = \"/bin/sleep\"\n  args = [\"1000\"]\n }}\n kill_timeout = \"1s\"\n resources {{\n  cpu = 20\n  \
                 memory = 32\n }}\n}}"
            );
            world.file(
                &format!("{name}.nomad.hcl"),
                &format!("job \"{name}\" {{\n type = \"service\"\n group \"g\" {{\n{task}\n }}\n}}\n"),
            )
        };
        let mut command = world.command(&[]);
        command.arg(file("near")).env("DOCKER_HOST", engine().endpoint());
        let foreground = World::start_command(command);
        let mut command = world.command(&["--detach"]);
        let out = command.arg(file("far")).env("DOCKER_HOST", engine().endpoint()).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        let running = || engine().docker(&["ps", "-q", "--no-trunc"]).lines().map(str::to_owned).collect::<Vec<_>>();
        block_on(eventually("both containers run", || running().len() == 2));
        let containers = running();
        let before = state(&containers);
        Runs { foreground, containers, before }
    }

    fn assert_untouched(&self) {
        assert_eq!(state(&self.containers), self.before);
    }

    fn end(mut self, world: &World) {
        self.assert_untouched();
        world.done(&["stop", "far"]);
        world.done(&["stop", "near"]);
        self.foreground.finish();
        let left = containers();
        assert!(self.containers.iter().all(|id| !left.contains_key(id)), "{left:?}");
    }
}

fn log() -> Log {
    Arc::new(|_, _| {})
}

fn body(endpoint: &str) -> Body {
    let text = format!("endpoint = \"{endpoint}\"\ngc {{\n  image = false\n}}\n");
    Body::parse(Path::new("agent.hcl"), &text).unwrap()
}

/// The driver as a process of its own, as an agent starts it.
async fn plugin(endpoint: &str) -> Instance {
    let args: Vec<OsString> = ["driver", "docker"].map(OsString::from).to_vec();
    let found = catalog::examine("docker", Path::new(AGENTBIN), &args, &log()).await.unwrap();
    let config = found.check(Some(&body(endpoint)), &log()).await.unwrap();
    found.start(&config, &NodeConfig::default(), &log()).await.unwrap()
}

/// The driver as in such a process. Its reconciler looks when it is asked to, as the period and the grace of a plugin are a minute at
/// least.
fn driver(world: &World) -> DockerDriver {
    let driver = DockerDriver::new(Settings {
        cgroups: CgroupFs::detect(Path::new("/sys/fs/cgroup")).unwrap(),
        compute: Compute { total_mhz: 4000, cores: 2 },
        socket_dir: world.path(""),
        host: Host::NOMAD,
    });
    let values = json!({ "endpoint": engine().endpoint(), "gc": { "image": false } });
    let values = values.as_object().unwrap().clone();
    driver.set_config(&DriverConfig { values, ..DriverConfig::default() }, None).unwrap();
    driver
}

/// A task of an agent with this data directory.
fn task(world: &World, node: &str, alloc: &str) -> TaskConfig {
    let alloc_dir = world.data_dir().join("alloc").join(alloc);
    for folder in ["alloc/logs", "alloc/data", "web/local", "web/secrets", "web/tmp"] {
        std::fs::create_dir_all(alloc_dir.join(folder)).unwrap();
    }
    let path = |stream: &str| alloc_dir.join(format!("alloc/logs/.web.{stream}.fifo")).display().to_string();
    let values = json!({ "image": IMAGE, "network_mode": "none", "command": "/bin/sleep", "args": ["1000"] });
    TaskConfig {
        id: format!("{alloc}/web/1"),
        name: "web".to_owned(),
        alloc_id: alloc.to_owned(),
        node_id: node.to_owned(),
        config: DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() },
        stdout_path: path("stdout"),
        stderr_path: path("stderr"),
        alloc_dir,
        ..TaskConfig::default()
    }
}

/// The driver of an agent is killed after the engine has made a container and before the answer came: its reconciler removes that
/// container. The runs have the agent's data directory, and so its node ID.
fn e4_the_reconciler_beside_two_runs_removes_what_a_killed_owner_left() {
    let world = World::new();
    let runs = Runs::start(&world);
    let node = std::fs::read_to_string(world.data_dir().join("client-id")).unwrap();
    let lost = task(&world, node.trim(), "0a1b2c3d-0000-4000-8000-00000000000a");
    let later = task(&world, node.trim(), "0a1b2c3d-0000-4000-8000-00000000000b");
    block_on(async {
        let proxy = Proxy::new(engine(), Some((Route::Create, Fault::Hang, 1)));
        let killed = plugin(&proxy.endpoint()).await;
        let starting = {
            let (driver, task) = (Arc::clone(killed.driver()), lost.clone());
            tokio::spawn(async move { driver.start_task(&task).await })
        };
        eventually("the engine has made it", || !of_alloc(&lost.alloc_id).is_empty()).await;
        let orphan = of_alloc(&lost.alloc_id);
        kill(Pid::from_raw(killed.reattach_config().unwrap().process.pid), Signal::SIGKILL).unwrap();
        starting.await.unwrap().unwrap_err();
        killed.end().await;
        assert_eq!(of_alloc(&lost.alloc_id), orphan, "nobody has removed it yet");

        let owner = driver(&world);
        owner.start_task(&later).await.unwrap();
        let tracked = of_alloc(&later.alloc_id);
        let all = containers();
        let grace = Duration::from_secs(1);
        // All of them are old enough then.
        tokio::time::sleep(grace * 3).await;
        assert_eq!(owner.reconcile_now(grace).await.unwrap(), orphan);
        assert_eq!(owner.reconcile_now(grace).await.unwrap(), Vec::<String>::new());
        assert_eq!(containers().len(), all.len() - 1);
        assert_eq!(of_alloc(&later.alloc_id), tracked);
        runs.assert_untouched();
        owner.destroy_task(&later.id, true).await.unwrap();
    });
    // As the agent does, whose they are.
    for task in [lost, later] {
        std::fs::remove_dir_all(task.alloc_dir).unwrap();
        for tree in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let _is_none_here = std::fs::remove_dir(tree.path().join(format!("nomad/{}.web", task.alloc_id)));
        }
    }
    runs.end(&world);
    assert_eq!(containers(), BTreeMap::new());
    world.assert_clean();
}

/// The same with an agent of ours, which has no reconciler: it knows its allocations, starts the task again in the same one, and
/// removes what the first start left.
fn e2_an_agent_killed_in_a_start_leaves_one_container_beside_two_runs() {
    let world = World::new();
    let runs = Runs::start(&world);
    let proxy = Proxy::new(engine(), Some((Route::Create, Fault::Hang, 1)));
    let config = world.file(
        "docker.hcl",
        &format!("plugin \"docker\" {{\n  config {{\n    endpoint = \"{}\"\n  }}\n}}\n", proxy.endpoint()),
    );
    let command = || {
        let mut command = agent::command(&world);
        command.arg("--config").arg(&config);
        command
    };
    let mut first = Agent::start_command(&world, &mut command());
    let mut job = agent::job("web", "service", "", json!({}));
    let task = &mut job["TaskGroups"][0]["Tasks"][0];
    task["Driver"] = json!("docker");
    task["Config"] = json!({ "image": IMAGE, "network_mode": "none", "command": "/bin/sleep", "args": ["1000"] });
    first.register(&job);
    let orphan = || containers().into_iter().find(|(id, _)| !runs.containers.contains(id));
    block_on(eventually("the engine has made it", || orphan().is_some()));
    let (orphan, alloc) = orphan().unwrap();
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    drop(first);
    runs.assert_untouched();

    let second = Agent::start_command(&world, &mut command());
    let running = second.alloc("web", "running", "");
    assert_eq!(running["ID"], json!(alloc), "it is the same allocation");
    let now = of_alloc(&alloc);
    assert_eq!(now.len(), 1, "{orphan}: {now:?}");
    assert!(state(&now).contains(" running "), "{orphan}: {now:?}");
    assert_eq!(containers().len(), 3);
    runs.assert_untouched();
    second.json("DELETE", "/v1/job/web?purge=true", &json!(null));
    block_on(eventually("its container is gone", || of_alloc(&alloc).is_empty()));
    runs.assert_untouched();
    runs.end(&world);
    second.wind_up();
    assert_eq!(containers(), BTreeMap::new());
}
