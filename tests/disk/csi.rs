//! F7: volumes of a CSI plugin that is a job of the agent, across reboots of the machine: fifty allocations on one, and a database.
//! `AGENTBIN_TEST_CSI` names the CSI driver of `tests/csi`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::machine::{Api, boot, boot_id, need_disk, reboot, reset, sh, try_sh, until, write};
use crate::systemd::install;

const API: Api = Api::Unix("/run/agentbin/agentbin.sock");
/// The numbers that the database has said to be committed, a line each.
const COMMITTED: &str = "/var/lib/committed";
/// The allocations of the first boot.
const KEPT: &str = "/var/lib/disk-csi.json";
const PORT: u16 = 15432;
/// Every second reboot is a loss of power.
const REBOOTS: u32 = 5;
const COUNT: usize = 50;

/// A group's block of restarts that is never used up.
const ALWAYS: &str = "restart {\n attempts = 1000\n interval = \"1h\"\n delay = \"1s\"\n mode = \"delay\"\n }";

const PLUGIN: &str = r#"
job "plugin" {
  group "g" {
    ALWAYS
    task "p" {
      driver = "raw_exec"
      user   = "root"
      csi_plugin {
        id             = "disk"
        type           = "monolith"
        health_timeout = "5m"
      }
      config {
        command = "/usr/local/bin/csi-driver"
        args    = ["--state", "/var/lib/csi/state", "--log", "/var/lib/csi/calls", "--attach"]
      }
      resources {
        cpu    = 20
        memory = 64
      }
    }
  }
}
"#;

/// Each start adds a line with the boot's id to a file of the volume, and looks whether it stays.
const MANY: &str = r#"
job "many" {
  group "g" {
    count = COUNT
    ALWAYS
    ephemeral_disk {
      size = 10
    }
    volume "v" {
      type            = "csi"
      source          = "shared"
      access_mode     = "multi-node-multi-writer"
      attachment_mode = "file-system"
    }
    task "t" {
      driver       = "exec"
      user         = "root"
      kill_timeout = "5s"
      volume_mount {
        volume      = "v"
        destination = "/data"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<EOT
trap 'exit 0' INT TERM
own=/data/starts-$NOMAD_ALLOC_INDEX
cat /proc/sys/kernel/random/boot_id >> $own
while [ -e $own ]; do sleep 5 & wait $!; done
touch /data/lost
EOT
        ]
      }
      logs {
        max_files     = 1
        max_file_size = 1
      }
      resources {
        cpu    = 10
        memory = 16
      }
    }
  }
}
"#;

/// A server on a volume, which its first start gives to its user.
const DATABASE: &str = r#"
job "NAME" {
  group "g" {
    ALWAYS
    volume "v" {
      type            = "csi"
      source          = "one"
      access_mode     = "single-node-writer"
      attachment_mode = "file-system"
    }
    task "owner" {
      driver = "exec"
      user   = "root"
      lifecycle {
        hook = "prestart"
      }
      volume_mount {
        volume      = "v"
        destination = "/data"
      }
      config {
        command  = "/bin/chown"
        args     = ["postgres", "/data"]
        cap_add  = ["chown"]
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
    task "t" {
      driver       = "exec"
      user         = "postgres"
      kill_timeout = "20s"
      volume_mount {
        volume      = "v"
        destination = "/data"
      }
      config {
        command = "/bin/sh"
        args    = ["-c", <<EOT
cd /data
[ -d db ] || { rm -rf new && BIN/initdb -D new -A trust -E UTF8 --no-locale > /dev/null && mv new db; } || exit 1
exec BIN/postgres -D db -p PORT -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c shared_buffers=16MB -c dynamic_shared_memory_type=mmap
EOT
        ]
      }
      resources {
        cpu    = 100
        memory = 256
      }
    }
  }
}
"#;

fn run(text: &str) {
    let text = text
        .replace("ALWAYS", ALWAYS)
        .replace("COUNT", &COUNT.to_string())
        .replace("PORT", &PORT.to_string())
        .replace("BIN", &sh("echo /usr/lib/postgresql/*/bin"));
    let body = json!({ "JobHCL": text, "Canonicalize": true });
    let job = API.ask("PUT", "/v1/jobs/parse", &body).unwrap_or_else(|error| panic!("{error}"));
    API.register(&job);
}

fn database(name: &str) {
    run(&DATABASE.replace("NAME", name));
}

/// What the database answers; `None` while it cannot be reached.
fn says(words: &str) -> Option<String> {
    let (well, text) = try_sh(&format!(
        "PGCONNECT_TIMEOUT=60 /usr/lib/postgresql/*/bin/psql -h 127.0.0.1 -p {PORT} -U postgres -X -q -A -t -c '{words}'"
    ));
    well.then_some(text)
}

/// Adds rows, and notes each that is committed.
fn add(numbers: impl IntoIterator<Item = u32>) {
    let mut file = std::fs::File::options().create(true).append(true).open(COMMITTED).unwrap();
    for number in numbers {
        if says(&format!("INSERT INTO t VALUES ({number})")).is_some() {
            writeln!(file, "{number}").unwrap();
            file.sync_all().unwrap();
        }
    }
}

fn nothing_is_lost(what: &str) {
    let found = until(&format!("{what}: the database answers"), || says("SELECT n FROM t"));
    let found: Vec<&str> = found.lines().collect();
    let committed = std::fs::read_to_string(COMMITTED).unwrap();
    let lost: Vec<&str> = committed.lines().filter(|number| !found.contains(number)).collect();
    assert!(lost.is_empty(), "{what}: lost of {}: {lost:?}", committed.lines().count());
    println!("{what}: {} transactions, none lost", committed.lines().count());
}

/// How often the driver has begun each call on a volume.
fn calls(volume: &str) -> BTreeMap<String, usize> {
    let mut calls = BTreeMap::new();
    let log = std::fs::read_to_string("/var/lib/csi/calls").unwrap_or_default();
    for entry in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let id = entry["volume"].as_str().unwrap_or_default();
        if entry["phase"] == "begin" && !id.is_empty() && id == external(volume) {
            *calls.entry(entry["call"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    calls
}

/// The id that the plugin has given to a volume.
fn external(volume: &str) -> String {
    API.get(&format!("/v1/volume/csi/{volume}"))["ExternalID"].as_str().unwrap().to_owned()
}

/// The ids of the allocations that run.
fn running() -> Vec<String> {
    let mut all: Vec<String> = API
        .allocs("many")
        .iter()
        .filter(|alloc| alloc["ClientStatus"] == "running")
        .map(|alloc| alloc["ID"].as_str().unwrap().to_owned())
        .collect();
    all.sort();
    all
}

/// Waits until all run, as long as there are more and more of them.
fn all_run() -> Vec<String> {
    for number in 1..=COUNT {
        let states: Vec<String> =
            API.allocs("many").iter().map(|a| format!("{} {}", a["ClientStatus"], a["TaskStates"])).collect();
        let states = states.join("\n");
        until(&format!("{number} of {COUNT} run; a moment before:\n{states}"), || {
            // An answer about all of them takes a while here.
            std::thread::sleep(Duration::from_secs(1));
            (running().len() >= number).then_some(())
        });
    }
    println!("boot {}: {COUNT} run after {} s", boot(), sh("cut -d. -f1 /proc/uptime"));
    running()
}

/// The directory in which the plugin has the contents of the shared volume, as soon as somebody has written there.
fn contents() -> Option<PathBuf> {
    let (_, found) = try_sh("find /var/lib/csi/state -name starts-0");
    Some(PathBuf::from(found.lines().next()?).parent()?.to_owned())
}

fn mounts() -> String {
    sh("grep -c ' /var/lib/agentbin/csi/' /proc/self/mountinfo || true")
}

fn before() {
    let driver =
        std::env::var("AGENTBIN_TEST_CSI").expect("AGENTBIN_TEST_CSI names the driver: scripts/test guest-disk");
    sh(&format!("install -m 755 {driver} /usr/local/bin/csi-driver; mkdir -m 700 -p /var/lib/csi"));
    install();
    run(PLUGIN);
    plugin_is_healthy();
    for (id, access) in [("shared", "multi-node-multi-writer"), ("one", "single-node-writer")] {
        let volume = json!({
            "ID": id, "Name": id, "PluginID": "disk", "RequestedCapacityMin": 16 << 20,
            "RequestedCapabilities": [{ "AccessMode": access, "AttachmentMode": "file-system" }],
        });
        let body = json!({ "Volumes": [volume] });
        API.ask("PUT", &format!("/v1/volume/csi/{id}/create"), &body).unwrap_or_else(|error| panic!("{error}"));
    }
    run(MANY);
    database("db");
    write(KEPT, &json!(all_run()).to_string());
    sh(&format!("sync {KEPT}"));
    until("there is a table", || says("CREATE TABLE IF NOT EXISTS t (n bigint PRIMARY KEY)"));
    add([0]);
}

fn plugin_is_healthy() {
    let path = "/v1/plugin/csi/disk";
    until("the plugin is healthy", || {
        let plugin = API.ask("GET", path, &Value::Null).ok()?;
        (plugin["NodesHealthy"] == 1 && plugin["ControllersHealthy"] == 1).then_some(())
    });
}

#[test]
fn f7_volumes_across_reboots() {
    need_disk!();
    if boot() == 1 {
        before();
    }
    until("the agent is up by itself", || API.ask("GET", "/v1/agent/members", &Value::Null).ok());
    plugin_is_healthy();
    let kept: Vec<String> = serde_json::from_str(&std::fs::read_to_string(KEPT).unwrap()).unwrap();
    assert_eq!(all_run(), kept, "the same allocations");
    let this = boot_id();
    until("all have started in this boot", || {
        let (_, lines) = try_sh(&format!("cat {}/starts-* | grep -c {this}", contents()?.display()));
        (lines == COUNT.to_string()).then_some(())
    });
    let what = format!("boot {}", boot());
    nothing_is_lost(&what);
    let boots = usize::try_from(boot()).unwrap();
    let made = calls("shared");
    let count = |call: &str| made.get(call).copied().unwrap_or(0);
    assert_eq!((count("NodeStageVolume"), count("NodePublishVolume")), (boots, boots * COUNT), "{what}: {made:?}");
    assert_eq!((count("NodeUnpublishVolume"), count("NodeUnstageVolume")), (0, 0), "{what}: {made:?}");
    if boot() <= REBOOTS {
        let first = boot() * 1000;
        add(first..first + 10);
        // The machine goes down while it writes.
        let writer = std::thread::spawn(move || add(first + 10..first + 1000));
        until("it writes", || {
            let text = std::fs::read_to_string(COMMITTED).unwrap();
            text.contains(&format!("\n{}\n", first + 12)).then_some(())
        });
        assert!(!writer.is_finished());
        if boot().is_multiple_of(2) {
            reset();
        }
        reboot();
    }

    API.ask("DELETE", "/v1/job/db", &Value::Null).unwrap();
    API.alloc("db", "complete");
    database("next");
    API.alloc("next", "running");
    nothing_is_lost("the next allocation");
    assert!(!contents().unwrap().join("lost").exists(), "a volume went below an allocation");
    for job in ["next", "many"] {
        API.ask("DELETE", &format!("/v1/job/{job}"), &Value::Null).unwrap();
    }
    until("no volume is mounted", || (mounts() == "0").then_some(()));
    let made = calls("shared");
    assert_eq!(made.get("NodeUnpublishVolume"), Some(&COUNT), "those of this boot: {made:?}");
    assert_eq!(made.get("NodeUnstageVolume"), Some(&1), "{made:?}");
}
