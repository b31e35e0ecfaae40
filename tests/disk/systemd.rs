//! The shipped units, and those of `agentbin systemd`, with a systemd that is the machine's first process, and across reboots.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::machine::{Api, boot, boot_id, need_disk, property, reboot, reset, sh, until, write};

const API: Api = Api::Unix("/run/agentbin/agentbin.sock");
const UNIT: &str = "agentbin.service";
/// What was so before the machine went down.
const KEPT: &str = "/var/lib/disk-test.json";

/// Each start of a task adds a line to a file of its own, as tasks have different users.
const STARTED: &str =
    "echo $NOMAD_TASK_NAME $(cat /proc/sys/kernel/random/boot_id) >> $NOMAD_ALLOC_DIR/data/starts-$NOMAD_TASK_NAME";

fn task(name: &str, driver: &str, script: &str) -> Value {
    json!({ "Name": name, "Driver": driver, "Config": { "command": "/bin/sh", "args": ["-c", format!("{STARTED}; {script}")] },
        "Resources": { "CPU": 100, "MemoryMB": 64 } })
}

fn job(name: &str, kind: &str, tasks: &[Value]) -> Value {
    json!({ "ID": name, "Name": name, "Type": kind, "Datacenters": ["*"], "TaskGroups": [{ "Name": "g", "Count": 1, "Tasks": tasks,
        "RestartPolicy": { "Attempts": 0, "Mode": "fail" }, "ReschedulePolicy": { "Attempts": 0, "Unlimited": false } }] })
}

/// Installs the shipped units, and starts them.
pub fn install() {
    let shipped = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/systemd");
    for unit in [UNIT, "agentbin.socket"] {
        std::fs::copy(shipped.join(unit), format!("/etc/systemd/system/{unit}")).unwrap();
    }
    write("/etc/agentbin.hcl", "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n");
    // As docs/agent.md tells an operator.
    write(
        "/etc/systemd/system/agentbin.service.d/override.conf",
        "[Service]\nExecStart=\nExecStart=/usr/local/bin/agentbin agent --config /etc/agentbin.hcl\n",
    );
    sh("systemctl daemon-reload; systemctl enable --now agentbin.socket agentbin.service");
}

/// Lines that the tasks of an allocation have written, one for each start.
fn starts(alloc: &Value) -> Vec<String> {
    let id = alloc["ID"].as_str().unwrap();
    let of = |task: &str| {
        let file = format!("/var/lib/agentbin/alloc/{id}/alloc/data/starts-{task}");
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    ["prepare", "raw", "own", "t"].into_iter().flat_map(of).collect()
}

fn ids() -> Value {
    let mut all: Vec<Value> = ["steady", "done", "broken"]
        .iter()
        .flat_map(|job| API.allocs(job))
        .map(|alloc| json!([alloc["JobID"], alloc["ID"], alloc["ClientStatus"]]))
        .collect();
    all.sort_by_key(Value::to_string);
    Value::Array(all)
}

/// P2, N8: the agent's units from their installation to reboots. Tasks outlive the agent and not the machine; what had not ended
/// begins again in the same allocation, what had ended stays so.
#[test]
fn p2_units_of_the_agent_and_of_a_job_across_reboots() {
    need_disk!();
    if boot() == 1 {
        before();
        reboot();
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(KEPT).unwrap()).unwrap();
    after(&kept);
    if boot() == 2 {
        // What the tasks of this boot have written is not a subject.
        sh("sync");
        reset();
    }
    API.ask("DELETE", "/v1/job/steady", &Value::Null).unwrap();
    API.alloc("steady", "complete");
    sh("systemctl stop agentbin.socket agentbin.service unit.service");
    assert_eq!(property("unit.service", "ActiveState"), "inactive", "a stop that was asked for is not a failure");
    // No process of any task is left.
    assert_eq!(sh("find /sys/fs/cgroup -name '*-*-*-*-*.scope'; pgrep -x sleep || true"), "");
}

fn before() {
    install();
    assert_eq!(property(UNIT, "ActiveState"), "active", "started means that it answers");
    let mut prepare = task("prepare", "raw_exec", "true");
    prepare["Lifecycle"] = json!({ "Hook": "prestart", "Sidecar": false });
    API.register(&job(
        "steady",
        "service",
        &[prepare, task("raw", "raw_exec", "exec sleep 100001"), task("own", "exec", "exec sleep 100002")],
    ));
    API.register(&job("done", "batch", &[task("t", "exec", "exit 0")]));
    API.register(&job("broken", "batch", &[task("t", "raw_exec", "exit 3")]));
    let alloc = API.alloc("steady", "running");
    API.alloc("done", "complete");
    API.alloc("broken", "failed");
    until("all have started", || (starts(&alloc).len() == 3).then_some(()));
    let sleeps = || sh("pgrep -f 'sleep 10000[12]' | sort | tr '\\n' ' '");
    let first = sleeps();
    assert_eq!(first.split_whitespace().count(), 2, "{first}");
    let goes_on = |what: &str| {
        until(&format!("{what}: the agent is up"), || (property(UNIT, "SubState") == "running").then_some(()));
        let now = API.alloc("steady", "running");
        assert_eq!((&now["ID"], sleeps(), starts(&now).len()), (&alloc["ID"], first.clone(), 3), "{what}");
    };
    sh("systemctl restart agentbin.service");
    goes_on("restart");
    sh("systemctl reload agentbin.service");
    goes_on("reload");
    sh("systemctl stop agentbin.service");
    assert_eq!((property(UNIT, "ActiveState"), sleeps()), ("inactive".to_owned(), first.clone()));
    // Whoever connects starts it.
    API.get("/v1/agent/members");
    goes_on("socket");
    let restarts = property(UNIT, "NRestarts");
    sh("systemctl kill --kill-who=main -s STOP agentbin.service");
    until("the watchdog has seen it", || (property(UNIT, "NRestarts") != restarts).then_some(()));
    goes_on("watchdog");

    write(
        "/root/unit.nomad.hcl",
        &format!(
            "job \"unit\" {{\n type = \"service\"\n group \"g\" {{\n task \"t\" {{\n driver = \"raw_exec\"\n config {{\n \
             command = \"/bin/sh\"\n args = [\"-c\", \"{}; exec sleep 100003\"]\n }}\n }}\n }}\n}}\n",
            "cat /proc/sys/kernel/random/boot_id >> /root/unit-starts"
        ),
    );
    sh("cd /root && agentbin systemd unit.nomad.hcl > /etc/systemd/system/unit.service && systemctl daemon-reload");
    sh("systemctl enable --now unit.service");
    until("the job of the unit runs", || std::fs::read_to_string("/root/unit-starts").ok());
    let kept = json!({ "ids": ids(), "boot": boot_id(), "done": starts(&API.allocs("done")[0]) });
    write(KEPT, &kept.to_string());
    sh("sync");
}

fn after(kept: &Value) {
    let this = boot_id();
    assert_ne!(kept["boot"], this.as_str());
    until("the agent is up by itself", || API.ask("GET", "/v1/agent/members", &Value::Null).ok());
    let boots = usize::try_from(boot()).unwrap();
    let alloc = API.alloc("steady", "running");
    // In the same allocation; the task that had prepared it has ended, and stays so.
    until(&format!("both have started again, {:?}", starts(&alloc)), || {
        (starts(&alloc).len() == 1 + 2 * boots).then_some(())
    });
    for name in ["raw", "own"] {
        let all: Vec<String> = starts(&alloc).into_iter().filter(|line| line.starts_with(name)).collect();
        assert_eq!((all.len(), all.last()), (boots, Some(&format!("{name} {this}"))), "{all:?}");
    }
    assert_eq!(ids(), kept["ids"], "the same allocations, and what had ended has ended");
    let details = API.get(&format!("/v1/allocation/{}", alloc["ID"].as_str().unwrap()));
    for name in ["raw", "own"] {
        let state = &details["TaskStates"][name];
        assert_eq!((&state["State"], &state["Restarts"]), (&json!("running"), &json!(0)), "{state:#}");
        let told = state["Events"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|event| event.to_string().contains("machine was restarted"));
        assert_eq!(told.count(), boots - 1, "{state:#}");
    }
    assert_eq!(json!(starts(&API.allocs("done")[0])), kept["done"], "what had ended was not started again");
    until("the job of the unit runs again", || {
        let started = std::fs::read_to_string("/root/unit-starts").unwrap();
        (started.lines().count() == boots && started.lines().last() == Some(&this)).then_some(())
    });
    assert_eq!(property("unit.service", "ActiveState"), "active");
}
