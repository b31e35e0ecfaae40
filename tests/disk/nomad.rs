//! Jobs of a real Nomad agent on cgroup v2, which is a service of systemd and restarted. `NOMAD` names the agent's program, and
//! `AGENTBIN_TEST_CLASSES` a directory with the class of `tests/nomad/testdata/App.java`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::docker::{IMAGE, digit, forked, place, start_engine};
use crate::machine::{Api, need_disk, processes, property, sh, until, until_none, write};
use crate::trace::Trace;

const API: Api = Api::Tcp(4646);
/// Where an artifact is fetched from.
const FILES: &str = "127.0.0.1:8099";
const UNIT: &str = "nomad.service";

fn start_agent() {
    let nomad = std::env::var("NOMAD").expect("NOMAD names the agent's program: scripts/test guest-disk sets it");
    sh(&format!("mkdir -p /opt/nomad/plugins && ln -sf {nomad} /usr/local/bin/nomad"));
    for driver in ["exec", "raw_exec", "java", "docker"] {
        sh(&format!("ln -sf $(readlink -f $(command -v agentbin)) /opt/nomad/plugins/{driver}"));
    }
    write(
        "/etc/nomad.hcl",
        r#"
data_dir   = "/opt/nomad/data"
plugin_dir = "/opt/nomad/plugins"
bind_addr  = "127.0.0.1"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
disable_update_check = true
server {
  enabled          = true
  bootstrap_expect = 1
  # A slow machine is none that is lost.
  heartbeat_grace = "5m"
}
client {
  enabled           = true
  servers           = ["127.0.0.1:4647"]
  network_interface = "br0"
  cni_path          = "/usr/lib/cni"
  gc_disk_usage_threshold  = 100
  gc_inode_usage_threshold = 100
  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,cloud,consul,vault"
  }
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "docker" {
  config {
    infra_image = "pause:test"
    gc {
      image = false
    }
  }
}
"#,
    );
    write(
        "/etc/systemd/system/nomad.service",
        "[Service]\nExecStart=/usr/local/bin/nomad agent -config /etc/nomad.hcl\nKillMode=process\nKillSignal=SIGINT\nDelegate=yes\n\
         LimitNOFILE=65536\nTasksMax=infinity\nRestart=always\nRestartSec=1\n",
    );
    let classes = std::env::var("AGENTBIN_TEST_CLASSES")
        .expect("the class of tests/nomad/testdata/App.java: scripts/test guest-disk");
    sh(&format!(
        "systemctl is-active files || systemd-run --quiet --unit files busybox httpd -f -p {FILES} -h {classes}"
    ));
    sh("systemctl daemon-reload; systemctl start nomad.service");
    ready();
}

/// Waits until the node can run tasks of each driver.
fn ready() {
    until("the node is ready, with four drivers", || {
        let nodes = API.ask("GET", "/v1/nodes", &Value::Null).ok()?;
        let node = nodes.as_array()?.first()?.clone();
        let healthy = |driver: &str| node["Drivers"][driver]["Healthy"] == true;
        let all = ["exec", "raw_exec", "java", "docker"].into_iter().all(healthy);
        (node["Status"] == "ready" && all).then_some(())
    });
}

struct Job {
    id: &'static str,
    kind: &'static str,
    ends: &'static str,
    tasks: Vec<Value>,
    network: Value,
    attempts: u32,
}

fn task(name: &str, driver: &str, config: &Value, resources: &Value) -> Value {
    let mut all = json!({ "CPU": 100, "MemoryMB": 64 });
    for (key, value) in resources.as_object().unwrap() {
        all[key.as_str()] = value.clone();
    }
    if all.get("Cores").is_some() {
        all.as_object_mut().unwrap().remove("CPU");
    }
    json!({ "Name": name, "Driver": driver, "Config": config, "Resources": all, "LogConfig": { "MaxFiles": 2, "MaxFileSizeMB": 2 } })
}

fn sh_of(driver: &str, name: &str, script: &str, resources: &Value) -> Value {
    let mut config = json!({ "command": "/bin/sh", "args": ["-c", script] });
    if driver == "docker" {
        config["image"] = json!(IMAGE);
        config["network_mode"] = json!("none");
    }
    task(name, driver, &config, resources)
}

fn java(name: &str, args: &[&str], resources: &Value) -> Value {
    let mut task = task(
        name,
        "java",
        &json!({ "class": "App", "class_path": "local", "args": args, "jvm_options": ["-Xmx64m", "-Xshare:auto", "-XX:TieredStopAtLevel=1"] }),
        resources,
    );
    task["Artifacts"] = json!([{ "GetterSource": format!("http://{FILES}/App.class"), "RelativeDest": "local/App.class", "GetterMode": "file" }]);
    task
}

fn forks(name: &str, resources: &Value) -> Value {
    let config = json!({ "image": IMAGE, "network_mode": "none", "command": "/forks", "args": [name, "x"] });
    task(name, "docker", &config, resources)
}

fn job(id: &'static str, kind: &'static str, ends: &'static str, tasks: Vec<Value>) -> Job {
    Job { id, kind, ends, tasks, network: Value::Null, attempts: 0 }
}

fn register(job: &Job) {
    let mut group = json!({ "Name": "g", "Count": 1, "Tasks": job.tasks,
        "RestartPolicy": { "Attempts": job.attempts, "Mode": "fail", "Delay": 1_000_000_000_u64, "Interval": 3_600_000_000_000_u64 },
        "EphemeralDisk": { "SizeMB": 20 } });
    if job.kind != "system" {
        group["ReschedulePolicy"] = json!({ "Attempts": 0, "Unlimited": false });
    }
    if !job.network.is_null() {
        group["Networks"] = json!([job.network]);
    }
    API.register(
        &json!({ "ID": job.id, "Name": job.id, "Type": job.kind, "Datacenters": ["*"], "TaskGroups": [group] }),
    );
}

fn details(alloc: &Value) -> Value {
    API.get(&format!("/v1/allocation/{}", alloc["ID"].as_str().unwrap()))
}

fn log(alloc: &Value, task: &str) -> String {
    let id = alloc["ID"].as_str().unwrap();
    std::fs::read_to_string(format!("/opt/nomad/data/alloc/{id}/alloc/logs/{task}.stdout.0")).unwrap_or_default()
}

/// Where the processes are that stay.
type Places = BTreeMap<String, Vec<crate::machine::Process>>;

fn jobs() -> Vec<Job> {
    let none = &json!({});
    let memory = &json!({ "MemoryMB": 32, "MemoryMaxMB": 64 });
    let jvm = &json!({ "MemoryMB": 256 });
    let eats = "x=$(yes | head -c 200m); echo had it";
    let serves = "until wget -q -O /tmp/a http://127.0.0.1:8082/; do sleep 1; done; echo java says $(cat /tmp/a); \
                  readlink /proc/self/ns/net; sleep 100010";
    let mut container = sh_of("docker", "container", serves, none);
    container["Config"].as_object_mut().unwrap().remove("network_mode");
    let mut shared = job(
        "shared",
        "service",
        "running",
        vec![
            container,
            sh_of("exec", "isolated", "readlink /proc/self/ns/net; exec sleep 100011", none),
            java("java", &["serve", "8082", "8083"], jvm),
        ],
    );
    shared.network = json!({ "Mode": "bridge" });
    let mut again = job("again", "batch", "failed", vec![sh_of("docker", "t", "echo once; exit 4", none)]);
    again.attempts = 1;
    vec![
        job("before", "service", "running", vec![forks("before", none)]),
        job("exec-batch", "batch", "complete", vec![sh_of("exec", "t", "echo hello", none)]),
        job("raw-batch", "batch", "failed", vec![sh_of("raw_exec", "t", "echo hello; exit 3", none)]),
        job("java-batch", "batch", "complete", vec![java("t", &["hello"], jvm)]),
        job("docker-batch", "batch", "complete", vec![sh_of("docker", "t", "echo hello", none)]),
        again,
        job("docker-cores", "service", "running", vec![forks("cores", &json!({ "Cores": 1, "MemoryMB": 32 }))]),
        job("docker-forks", "service", "running", vec![forks("forks", memory)]),
        job("docker-memory", "batch", "failed", vec![sh_of("docker", "t", eats, memory)]),
        job("exec-service", "service", "running", vec![sh_of("exec", "t", "exec sleep 100012", none)]),
        job("raw-service", "service", "running", vec![sh_of("raw_exec", "t", "exec sleep 100013", none)]),
        job("system", "system", "running", vec![sh_of("docker", "t", "exec sleep 100014", none)]),
        shared,
    ]
}

fn places() -> Places {
    let sleeps = ["100010", "100011", "100012", "100013", "100014"];
    let mut all: Places =
        sleeps.iter().map(|sleep| ((*sleep).to_owned(), processes(&format!("sleep {sleep} ")))).collect();
    for name in ["before", "cores", "forks"] {
        all.insert(name.to_owned(), forked(name));
    }
    all
}

/// N1, C2, C3: thirteen jobs, and the agent's restarts.
fn jobs_of_an_agent(driver: &str) {
    start_engine(driver);
    start_agent();
    // What `memory_max` needs.
    API.ask("PUT", "/v1/operator/scheduler/configuration", &json!({ "MemoryOversubscriptionEnabled": true })).unwrap();
    let trace = Trace::start();
    let jobs = jobs();
    let mut allocs = BTreeMap::new();
    for job in &jobs {
        register(job);
        if job.id == "before" {
            // It is there when cores are reserved.
            API.alloc(job.id, job.ends);
            assert_eq!(digit(&place(&forked("before")).1), "7");
        }
    }
    for job in &jobs {
        allocs.insert(job.id, API.alloc(job.id, job.ends));
    }
    let event = |job: &str, task: &str, kind: &str| {
        let details = details(&allocs[job]);
        let events = details["TaskStates"][task]["Events"].as_array().unwrap().clone();
        events.into_iter().rev().find(|event| event["Type"] == kind).unwrap_or_else(|| panic!("{job}: {details:#}"))
    };
    for (job, code) in
        [("exec-batch", "0"), ("raw-batch", "3"), ("java-batch", "0"), ("docker-batch", "0"), ("again", "4")]
    {
        assert_eq!(event(job, "t", "Terminated")["Details"]["exit_code"], code, "{job}");
    }
    assert_eq!(log(&allocs["docker-batch"], "t"), "hello\n");
    assert_eq!(log(&allocs["java-batch"], "t"), "hello from java t\n");
    assert_eq!(log(&allocs["again"], "t"), "once\nonce\n");
    let killed = event("docker-memory", "t", "Terminated");
    assert_eq!(killed["Details"]["oom_killed"], "true", "{killed:#}");
    assert_eq!(log(&allocs["docker-memory"], "t"), "");

    // One network for three drivers, which is not the machine's.
    let network = |task: &str| {
        // It is the last that each says.
        until(&format!("{task} tells its network"), || {
            log(&allocs["shared"], task).lines().find(|line| line.starts_with("net:")).map(str::to_owned)
        })
    };
    assert_eq!(network("container"), network("isolated"));
    assert!(log(&allocs["shared"], "container").contains("java says"));
    assert_ne!(network("container"), sh("readlink /proc/self/ns/net"));

    let reserved =
        details(&allocs["docker-cores"])["AllocatedResources"]["Tasks"]["cores"]["Cpu"]["ReservedCores"][0].to_string();
    let others = (7 - digit(&reserved).parse::<u32>().unwrap()).to_string();
    let holds = |what: &str| {
        assert_eq!(digit(&place(&forked("cores")).1), digit(&reserved), "{what}: cores");
        for name in ["before", "forks"] {
            until(&format!("{what}: {name} is off core {reserved}: {:?}", place(&forked(name))), || {
                (digit(&place(&forked(name)).1) == others).then_some(())
            });
        }
        for (sleep, found) in places().iter().filter(|(name, _)| name.starts_with("1000")) {
            assert_eq!(found.len(), 1, "{what}: {found:#?}");
            let is_ours =
                |cgroup: &str| cgroup.starts_with("/nomad.slice/") || cgroup.starts_with("/agentbin.slice/agentbin-");
            let held = found.iter().all(|process| digit(&process.cores) == others && is_ours(&process.cgroup));
            assert!(held, "{what}: sleep {sleep} is not off core {reserved}, or not in its cgroup: {found:#?}");
        }
        let cgroup = place(&forked("forks")).0;
        let limit = std::fs::read_to_string(format!("/sys/fs/cgroup{cgroup}/memory.max")).unwrap();
        assert_eq!(limit.trim(), (64_u64 << 20).to_string(), "{what}: {cgroup}");
    };
    holds("at first");
    for (task, mask) in [("cores", digit(&reserved)), ("forks", others.clone())] {
        let text = log(&allocs[format!("docker-{task}").as_str()], task);
        assert_eq!(text, format!("{mask}\n").repeat(8), "{task}, from its first instruction on");
    }
    // Each was born in its container's cgroup, and nobody was moved.
    let born = trace.born_in("/forks");
    let expected = ["before", "cores", "forks"].map(|name| place(&forked(name)).0);
    assert_eq!(born, expected.into_iter().collect());

    let numbers = |places: &Places| places.values().flatten().map(|p| (p.pid, p.cgroup.clone())).collect::<Vec<_>>();
    let first = numbers(&places());
    for how in ["systemctl restart nomad.service", "systemctl kill --kill-who=main -s KILL nomad.service"] {
        let pid = property(UNIT, "MainPID");
        sh(how);
        until("there is another agent", || {
            let now = property(UNIT, "MainPID");
            (now != pid && now != "0").then_some(())
        });
        ready();
        for job in jobs.iter().filter(|job| job.ends == "running") {
            assert_eq!(API.alloc(job.id, "running")["ID"], allocs[job.id]["ID"], "{how}: {}", job.id);
        }
        sh("systemctl daemon-reload");
        assert_eq!(numbers(&places()), first, "{how}");
        holds(how);
    }
    // A command in a container is in its cgroup, too.
    let id = allocs["docker-cores"]["ID"].as_str().unwrap();
    let said = sh(&format!(
        "nomad alloc exec -i=false -t=false {id} /bin/sh -c 'while read a b; do if [ $a = Cpus_allowed_list: ]; then echo $b; fi; done < /proc/self/status'"
    ));
    assert_eq!(said, reserved);

    for job in &jobs {
        API.ask("DELETE", &format!("/v1/job/{}?purge=true", job.id), &Value::Null).unwrap();
    }
    until_none("no container", "docker ps -aq");
    // The agent itself makes one for a task that it restores, also beside that of reserved cores, and leaves it there: nothing runs
    // in it.
    let own = format!("-path '*/share.slice/{id}.cores.scope' -exec grep -qx 'populated 0' '{{}}/cgroup.events' ';'");
    until_none(
        "no cgroup of a task",
        &format!("find /sys/fs/cgroup \\( -name '*-*-*-*-*.scope' -o -name 'docker-*.scope' \\) ! \\( {own} \\)"),
    );
    until_none("no slice of a container", "systemctl list-units --all --plain --no-legend 'agentbin-*.slice'");
    sh("systemctl stop nomad.service");
}

#[test]
fn n1_jobs_of_an_agent_on_an_engine_with_systemd_cgroups() {
    need_disk!();
    jobs_of_an_agent("systemd");
}

#[test]
fn n1_jobs_of_an_agent_on_an_engine_with_its_own_cgroups() {
    need_disk!();
    jobs_of_an_agent("cgroupfs");
}
