//! CSI volumes of the agent (F5, F7): the real `nomad` command, the real binary, and a real driver (`tests/csi`) as a task.

#[path = "support/agent.rs"]
mod agent;
#[path = "support/csi_driver.rs"]
mod csi_driver;
#[path = "support/world.rs"]
mod world;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use agent::{Agent, nomad, nomad_says, own_command, own_memory};
use csi_driver::{Driver, SHARED, SINGLE, binary, job, of_a_job, plugin_job};
use world::secrets::{self, SECRET, Watch};
use world::{World, need_root};

/// The parts of the agent's tests: the agent, the `nomad` command, and the driver as a task of a job.
struct Cluster<'a> {
    agent: Option<Agent<'a>>,
    driver: &'a Driver,
    nomad: PathBuf,
}

impl<'a> Cluster<'a> {
    /// An agent on which the driver runs as the plugin `disk`.
    fn start(test: &str, driver: &'a Driver, binary: &Path, more: &str) -> Option<Cluster<'a>> {
        let Some(nomad) = nomad() else {
            println!("SKIP: {test}: nomad is not installed; scripts/nomad builds it");
            return None;
        };
        let cluster = Cluster { agent: Some(Agent::start(&driver.world)), driver, nomad };
        let at = |name: &str| driver.path(name).display().to_string();
        let args = format!("\"--state\", \"{}\", \"--log\", \"{}\"{more}", at("state"), at("calls"));
        let text = plugin_job("raw_exec", binary.to_str().unwrap(), &args, "");
        cluster.run_job("plugin.hcl", &text);
        cluster.until("the plugin is healthy", &["plugin", "status", "disk"], "Nodes Healthy        = 1");
        Some(cluster)
    }

    fn agent(&self) -> &Agent<'a> {
        self.agent.as_ref().unwrap()
    }

    /// Another agent process takes the place of one that is killed.
    fn kill_and_restart(&mut self) {
        self.agent.take().unwrap().end(rustix::process::Signal::KILL);
        self.agent = Some(Agent::start(&self.driver.world));
    }

    fn says(&self, args: &[&str]) -> (bool, String) {
        nomad_says(&self.nomad, &self.driver.world, args)
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let (fine, text) = self.says(args);
        assert!(fine, "nomad {args:?}: {text}\n{}", self.agent().log());
        text
    }

    #[track_caller]
    fn refused(&self, args: &[&str], expected: &str) {
        let (fine, text) = self.says(args);
        assert!(!fine && text.contains(expected), "nomad {args:?} should say {expected:?}: {text}");
    }

    /// Waits until a command says something.
    #[track_caller]
    fn until(&self, what: &str, args: &[&str], expected: &str) -> String {
        self.agent().until(what, || {
            let (_, text) = self.says(args);
            text.contains(expected).then_some(text)
        })
    }

    fn run_job(&self, name: &str, text: &str) {
        let file = self.driver.world.file(name, text);
        self.run(&["job", "run", "-detach", file.to_str().unwrap()]);
    }

    fn file(&self, name: &str, text: &str) -> String {
        self.driver.world.file(name, text).display().to_string()
    }
}

/// The specification of a volume of the plugin `disk`.
fn volume_file(id: &str, capacity: &str, access: &str, more: &str) -> String {
    format!(
        "type = \"csi\"\nid = \"{id}\"\nname = \"volume-{id}\"\nplugin_id = \"disk\"\ncapacity_min = \"{capacity}\"\n\
         capability {{\n access_mode = \"{access}\"\n attachment_mode = \"file-system\"\n}}\n\
         secrets {{\n token = \"{SECRET}\"\n}}\nmount_options {{\n mount_flags = [\"password=fl4g-{SECRET}\"]\n}}\n{more}"
    )
}

/// A service that keeps its volume until it is stopped.
fn holder(id: &str, access: &str, script: &str) -> String {
    let waits = format!("trap 'exit 0' INT TERM; {script}; echo up; while :; do sleep 1 & wait $!; done");
    let text = job(access, "", "", &waits).replace("job \"csi\"", &format!("job \"{id}\""));
    text.replace("type = \"batch\"", "type = \"service\"")
}

#[test]
fn f7_the_real_command_makes_uses_expands_and_deletes_a_volume() {
    need_root!();
    let test = "f7_the_real_command_makes_uses_expands_and_deletes_a_volume";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start(test, &driver, binary, ", \"--attach\"") else { return };
    let file = cluster.file("data.hcl", &volume_file("data", "1MiB", SINGLE, ""));
    let other = cluster.file("other.hcl", &volume_file("data", "1MiB", SINGLE, "").replace("\"disk\"", "\"none\""));
    assert!(cluster.run(&["volume", "status", "-type", "csi"]).contains("No CSI volumes"));
    cluster.refused(&["volume", "create", &other], "no CSI plugin named: none could be found");
    let created = cluster.run(&["volume", "create", &file]);
    assert!(created.contains("Created external volume") && created.contains("with ID data"), "{created}");
    let shown = cluster.run(&["volume", "status", "-type", "csi", "data"]);
    for line in
        ["Schedulable          = true", "Nodes Expected       = 1", "Capacity             = 1.0 MiB", "[REDACTED]"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }

    // One writes, the other one waits for the end of that, and the plugin is asked once for each step.
    let steps = ["ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"];
    cluster.run_job("one.hcl", &holder("one", SINGLE, "echo kept > /data/file"));
    let one = cluster.agent().alloc("one", "running", "");
    assert_eq!(driver.calls(), steps);
    let short = &one["ID"].as_str().unwrap()[..8];
    let shown = cluster.run(&["volume", "status", "-type", "csi", "data"]);
    assert!(shown.contains(short) && shown.contains("Access Mode          = single-node-writer"), "{shown}");
    let listed = cluster.run(&["volume", "status", "-type", "csi"]);
    assert!(listed.contains("single-node-writer") && listed.contains("disk"), "{listed}");
    cluster.refused(&["volume", "deregister", "data"], "volume in use: data");
    let forced = cluster.agent().ask("DELETE", "/v1/volume/csi/data?force=true", "");
    assert_eq!(forced, (500, "volume in use: data".to_owned()));
    cluster.refused(&["volume", "delete", "data"], "volume in use: data");
    cluster.run_job("two.hcl", &holder("two", SINGLE, "cat /data/file"));
    let blocked = "CSI volume data has exhausted its available writer claims";
    cluster.until("the second job waits", &["job", "status", "two"], blocked);
    cluster.kill_and_restart();
    cluster.agent().alloc("one", "running", "");
    assert_eq!(driver.calls(), steps, "the volume stays where it is");
    cluster.run(&["job", "stop", "-detach", "one"]);
    let two = cluster.agent().alloc("two", "running", "");
    cluster.agent().until("the second job reads what the first one wrote", || {
        cluster.agent().output(&two, "t").contains("kept").then_some(())
    });
    let undone = ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"];
    assert_eq!(driver.calls(), [&steps[..], &undone, &steps].concat());

    // It grows while it is used, is copied, and is deleted when nobody uses it.
    let larger = cluster.file("data.hcl", &volume_file("data", "2MiB", SINGLE, ""));
    cluster.run(&["volume", "create", &larger]);
    assert!(cluster.run(&["volume", "status", "-type", "csi", "data"]).contains("= 2.0 MiB"));
    let count = |call: &str| driver.entries().iter().filter(|e| e["call"] == call && e["phase"] == "begin").count();
    assert_eq!((count("ControllerExpandVolume"), count("NodeExpandVolume")), (1, 0), "a directory has no file system");
    let renamed = cluster.file("renamed.hcl", &volume_file("data", "2MiB", SINGLE, "").replace("volume-data", "x"));
    cluster.refused(&["volume", "register", &renamed], "volume name cannot be updated");
    let taken = cluster.run(&["volume", "snapshot", "create", "data", "snap"]);
    let snapshot = taken.lines().nth(1).and_then(|line| line.split_whitespace().next()).unwrap().to_owned();
    let list = cluster.run(&["volume", "snapshot", "list", "-plugin", "disk"]);
    assert!(list.contains(&snapshot), "{list} {taken}");
    let copy =
        cluster.file("copy.hcl", &volume_file("copy", "2MiB", SINGLE, &format!("snapshot_id = \"{snapshot}\"\n")));
    cluster.run(&["volume", "create", &copy]);
    cluster.run(&["volume", "delete", "copy"]);
    cluster.run(&["volume", "snapshot", "delete", "disk", &snapshot]);
    cluster.refused(&["volume", "snapshot", "delete", "none", &snapshot], "no such plugin");
    let verbose = cluster.run(&["volume", "status", "-type", "csi", "-verbose"]);
    assert!(verbose.contains("external volumes") || verbose.contains("External ID"), "{verbose}");
    cluster.run(&["job", "stop", "-detach", "two"]);
    cluster.until("nobody uses it", &["volume", "status", "-type", "csi", "data"], "Access Mode          = <none>");
    let node = cluster.agent().get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    cluster.run(&["volume", "detach", "data", &node[..8]]);
    cluster.run(&["volume", "delete", "data"]);
    cluster.refused(&["volume", "delete", "data"], "data");
    assert_eq!(std::fs::read_dir(driver.path("state/volumes")).unwrap().count(), 0);
    assert_eq!(driver.left(), Vec::<String>::new());

    let events = cluster.agent().events();
    assert!(events.contains("volume-data") || events.contains("\"data\""), "{events}");
    assert!(!events.contains(SECRET), "{events}");
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}

/// F6: what looks for secrets in every test of volumes finds them.
#[test]
fn f6_a_secret_that_is_shown_is_found() {
    const SHOWN: &str = "s3cret-that-is-shown";
    let dir = tempfile::tempdir().unwrap();
    let mut watch = Watch::for_secret(SHOWN, &[dir.path()]);
    assert_eq!(watch.end(), std::collections::BTreeSet::new());
    let mut watch = Watch::for_secret(SHOWN, &[dir.path()]);
    let mut child = Command::new("sleep").arg("60").env("X", format!("in an environment: {SHOWN}")).spawn().unwrap();
    let mut other = Command::new("sh").args(["-c", "read x", SHOWN]).stdin(Stdio::piped()).spawn().unwrap();
    // Deleted before the watch ends.
    std::fs::create_dir(dir.path().join("database")).unwrap();
    let file = dir.path().join("database/file");
    std::fs::write(&file, [b"\xff\0", SHOWN.as_bytes(), b"\0"].concat()).unwrap();
    std::fs::write(dir.path().join("of-the-test.hcl"), SHOWN).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the watch has its own interval")]
    std::thread::sleep(std::time::Duration::from_millis(2500));
    std::fs::remove_file(&file).unwrap();
    std::fs::write(dir.path().join(format!("named-{SHOWN}")), "").unwrap();
    let found = watch.end();
    for one in [&mut child, &mut other] {
        one.kill().unwrap();
        one.wait().unwrap();
    }
    for wanted in ["environ of a process", "cmdline of a process", "database/file", "a name"] {
        assert!(found.iter().any(|one| one.contains(wanted)), "{wanted}: {found:#?}");
    }
    assert!(!found.iter().any(|one| one.contains("of-the-test")), "{found:#?}");
}

/// The same steps by commands of our own, which need no `nomad`. (P1)
#[test]
fn f7_our_own_commands_make_show_and_delete_a_volume() {
    need_root!();
    let test = "f7_our_own_commands_make_show_and_delete_a_volume";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start(test, &driver, binary, ", \"--attach\"") else { return };
    let done = |args: &[&str]| -> String {
        let out = own_command(&driver.world, args, "");
        assert_eq!(out.status, 0, "{args:?}: {out:?}");
        out.stdout
    };
    let refused = |args: &[&str], why: &str| {
        let out = own_command(&driver.world, args, "");
        assert!(out.status == 1 && out.stderr.contains(why) && out.stdout.is_empty(), "{args:?}: {out:?}");
    };
    assert!(done(&["plugin", "status"]).contains("disk"));
    assert!(done(&["plugin", "status", "disk"]).contains("Nodes Healthy         1"));
    refused(&["plugin", "status", "none"], "plugin not found");
    let file = cluster.file("data.hcl", &volume_file("data", "1MiB", SINGLE, ""));
    assert_eq!(done(&["volume", "create", &file]), "data\n");
    let listed = done(&["volume", "status"]);
    assert!(listed.contains("csi") && listed.contains("schedulable") && listed.contains("volume-data"), "{listed}");
    cluster.run_job("one.hcl", &holder("one", SINGLE, "echo kept > /data/file"));
    let one = cluster.agent().alloc("one", "running", "");
    let shown = done(&["volume", "status", "da"]);
    let short = &one["ID"].as_str().unwrap()[..8];
    assert!(shown.contains("single-node-writer") && shown.contains("1048576") && shown.contains(short), "{shown}");
    refused(&["volume", "deregister", "data"], "volume in use: data");
    refused(&["volume", "delete", "data"], "volume in use: data");
    done(&["job", "stop", "one"]);
    cluster.until("nobody uses it", &["volume", "status", "-type", "csi", "data"], "Access Mode          = <none>");
    refused(&["volume", "detach", "data", "other"], "the agent's node is");
    done(&["volume", "detach", "data"]);
    let external = cluster.agent().get("/v1/volume/csi/data")["ExternalID"].as_str().unwrap().to_owned();
    done(&["volume", "deregister", "data"]);
    assert_eq!(done(&["volume", "status"]).lines().count(), 1);
    refused(&["volume", "register", &file], "data");
    let there = volume_file("data", "1MiB", SINGLE, &format!("external_id = \"{external}\"\n"));
    assert_eq!(done(&["volume", "register", &cluster.file("there.hcl", &there)]), "data\n");
    done(&["volume", "delete", "-type", "csi", "data"]);
    refused(&["volume", "delete", "data"], "no volume \"data\"");
    assert_eq!(std::fs::read_dir(driver.path("state/volumes")).unwrap().count(), 0);
    done(&["job", "stop", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}

#[test]
fn f7_plugins_end_last() {
    need_root!();
    let Some(binary) = binary("f7_plugins_end_last") else { return };
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start("f7_plugins_end_last", &driver, binary, "") else { return };
    let file = cluster.file("data.hcl", &volume_file("data", "1MiB", SHARED, ""));
    cluster.run(&["volume", "create", &file]);
    for id in ["one", "two"] {
        cluster.run_job(&format!("{id}.hcl"), &holder(id, SHARED, "true"));
        cluster.agent().alloc(id, "running", "");
    }
    let node = cluster.agent().get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    cluster.run(&["node", "drain", "-enable", "-yes", "-deadline", "60s", &node]);
    assert_eq!(driver.left(), Vec::<String>::new());
    let calls = driver.calls();
    let count = |name: &str| calls.iter().filter(|call| *call == name).count();
    let counts = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"].map(count);
    assert_eq!(counts, [1, 2, 2, 1], "{calls:?}");
    for id in ["one", "two", "plugin"] {
        cluster.run(&["job", "stop", "-detach", id]);
    }
    cluster.run(&["volume", "deregister", "data"]);
    cluster.agent.take().unwrap().wind_up();
}

#[test]
fn f7_a_volume_is_released_when_its_plugin_is_back() {
    need_root!();
    released_late("f7_a_volume_is_released_when_its_plugin_is_back", |_| {});
}

#[test]
fn f7_a_volume_without_its_plugin_does_not_stop_garbage_collection() {
    need_root!();
    released_late("f7_a_volume_without_its_plugin_does_not_stop_garbage_collection", |cluster| {
        cluster.agent().until("the job is forgotten", || {
            cluster.run(&["system", "gc"]);
            (cluster.agent().get("/v1/jobs?prefix=one") == json!([])).then_some(())
        });
    });
}

/// An allocation ends while its plugin does not run: its volume is released when the plugin is back, without a command.
fn released_late(test: &str, meanwhile: impl FnOnce(&Cluster<'_>)) {
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start(test, &driver, binary, ", \"--attach\"") else { return };
    let file = cluster.file("data.hcl", &volume_file("data", "1MiB", SINGLE, ""));
    cluster.run(&["volume", "create", &file]);
    cluster.run_job("one.hcl", &holder("one", SINGLE, "true"));
    cluster.agent().alloc("one", "running", "");
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.run(&["job", "stop", "-detach", "one"]);
    cluster.agent().alloc("one", "complete", "");
    assert_ne!(driver.mounts(), Vec::<String>::new(), "nobody can unmount it");
    assert_eq!(driver.calls().len(), 3);
    meanwhile(&cluster);
    let plugin = driver.world.path("plugin.hcl");
    cluster.run(&["job", "run", "-detach", plugin.to_str().unwrap()]);
    cluster.agent().until("the volume is released", || driver.left().is_empty().then_some(()));
    assert_eq!(driver.calls()[3..], ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"]);
    cluster.until("nobody uses it", &["volume", "status", "-type", "csi", "data"], "Access Mode          = <none>");
    cluster.run(&["volume", "delete", "data"]);
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}

/// The same when the agent is killed meanwhile: detach says that a volume is not released, and the next agent releases it, with its
/// secrets.
#[test]
fn f7_a_volume_is_released_by_the_next_agent() {
    need_root!();
    let test = "f7_a_volume_is_released_by_the_next_agent";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let more = format!(", \"--attach\", \"--secret\", \"{}\"", secrets::asked("token", SECRET));
    let Some(mut cluster) = Cluster::start(test, &driver, binary, &more) else { return };
    let file = cluster.file("data.hcl", &volume_file("data", "1MiB", SINGLE, ""));
    cluster.run(&["volume", "create", &file]);
    cluster.run_job("one.hcl", &holder("one", SINGLE, "true"));
    cluster.agent().alloc("one", "running", "");
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.run(&["job", "stop", "-detach", "one"]);
    cluster.agent().alloc("one", "complete", "");
    cluster.kill_and_restart();
    assert_ne!(driver.mounts(), Vec::<String>::new(), "nobody can unmount it");
    let node = cluster.agent().get("/v1/nodes")[0]["ID"].as_str().unwrap().to_owned();
    cluster.refused(&["volume", "detach", "data", &node[..8]], "could not detach from node: no CSI plugin");
    let plugin = driver.world.path("plugin.hcl");
    cluster.run(&["job", "run", "-detach", plugin.to_str().unwrap()]);
    cluster.agent().until("the volume is released", || driver.left().is_empty().then_some(()));
    assert_eq!(driver.calls()[3..], ["NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"]);
    cluster.run(&["volume", "detach", "data", &node[..8]]);
    cluster.run(&["volume", "delete", "data"]);
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}

#[test]
fn f7_the_file_system_of_a_volume_grows_below_its_task() {
    need_root!();
    let test = "f7_the_file_system_of_a_volume_grows_below_its_task";
    let Some(binary) = binary(test) else { return };
    if !Path::new("/dev/loop-control").exists() {
        assert!(std::env::var_os("CI").is_none(), "needs loop devices");
        println!("SKIP: {test}: needs loop devices");
        return;
    }
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start(test, &driver, binary, "") else { return };
    let spec = |size: &str| {
        volume_file("data", size, SINGLE, "parameters {\n backend = \"loop\"\n}\n")
            .replace("mount_flags", "fs_type = \"ext4\"\n mount_flags")
            .replace(&format!("password=fl4g-{SECRET}"), "noatime")
    };
    let file = cluster.file("data.hcl", &spec("16MiB"));
    cluster.run(&["volume", "create", &file]);
    cluster.run_job("one.hcl", &holder("one", SINGLE, "stat -f -c 'blocks %b' /data"));
    let one = cluster.agent().alloc("one", "running", "");
    let file = cluster.file("data.hcl", &spec("32MiB"));
    // The kernel grows a mounted file system only for who has this capability.
    let may_grow = caps::has_cap(None, caps::CapSet::Effective, caps::Capability::CAP_SYS_RESOURCE).unwrap();
    if may_grow {
        cluster.run(&["volume", "create", &file]);
    } else {
        cluster.refused(&["volume", "create", &file], "unable to expand volume: NodeExpandVolume of ");
    }
    let count = |call: &str| driver.entries().iter().filter(|e| e["call"] == call && e["phase"] == "begin").count();
    assert_eq!((count("ControllerExpandVolume"), count("NodeExpandVolume")), (1, 1));
    let id = one["ID"].as_str().unwrap();
    let larger = cluster.run(&["alloc", "exec", "-task", "t", id, "stat", "-f", "-c", "blocks %b", "/data"]);
    let blocks = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("blocks "));
        line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_else(|| panic!("{text}"))
    };
    let before = blocks(&cluster.agent().output(&one, "t"));
    assert_eq!(blocks(&larger) > before * 3 / 2, may_grow, "{before} {larger}");
    cluster.run(&["job", "stop", "-detach", "one"]);
    cluster.until("nobody uses it", &["volume", "status", "-type", "csi", "data"], "Access Mode          = <none>");
    cluster.run(&["volume", "delete", "data"]);
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}

/// At most 3 MiB more for 100 volumes.
#[test]
fn f7_a_hundred_volumes_take_little_of_the_agent() {
    need_root!();
    let test = "f7_a_hundred_volumes_take_little_of_the_agent";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let Some(mut cluster) = Cluster::start(test, &driver, binary, ", \"--attach\"") else { return };
    let agent = cluster.agent();
    let put = |id: &str| {
        let volume = json!({
            "ID": id, "Name": id, "PluginID": "disk", "RequestedCapacityMin": 1 << 20,
            "RequestedCapabilities": [{ "AccessMode": SINGLE, "AttachmentMode": "file-system" }],
            "Secrets": { "token": SECRET }, "Parameters": { "kind": "slow" },
        });
        agent.json("PUT", &format!("/v1/volume/csi/{id}/create"), &json!({ "Volumes": [volume] }));
    };
    // What the first one and the first answers cost is not the volumes'.
    put("first");
    agent.get("/v1/volumes?type=csi");
    let before = own_memory(agent);
    let ids: Vec<String> = (0..100).map(|number| format!("v{number}")).collect();
    for id in &ids {
        put(id);
    }
    assert_eq!(agent.get("/v1/volumes?type=csi").as_array().unwrap().len(), 101);
    let after = own_memory(agent);
    println!("100 volumes: {before} KiB before, {after} KiB after");
    assert!(after < before + 3072, "100 volumes take {} KiB", after - before);
    for id in ids.iter().map(String::as_str).chain(["first"]) {
        agent.json("DELETE", &format!("/v1/volume/csi/{id}/delete"), &Value::Null);
    }
    cluster.run(&["job", "stop", "-detach", "plugin"]);
    cluster.until("the plugin is gone", &["plugin", "status"], "No CSI plugins");
    cluster.agent.take().unwrap().wind_up();
}
