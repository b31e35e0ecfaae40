//! F5 to F7: our side of the Container Storage Interface beside a driver on the official types (`tests/csi`), which mounts nothing
//! here, keeps a log of its calls, and fails as a script says.

#[path = "support/csi_binary.rs"]
mod csi_binary;
#[path = "support/secrets.rs"]
#[allow(dead_code, reason = "every test program uses a part")]
mod secrets;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use agentbin::csi::{
    Capability, Client, CsiError, Files, Join, Manager, NewVolume, Places, Plugin, Secrets, Volume, VolumeId,
};
use agentbin::spec::MountOptions;
use agentbin::spec::collections::BTreeMap;
use agentbin::sys::owned::OwnDir;
use serde_json::{Value, json};

use csi_binary::binary as driver;
use secrets::SECRET;

/// A driver that runs, and where it keeps what.
struct Running {
    dir: tempfile::TempDir,
    binary: &'static Path,
    more: Vec<String>,
    child: Child,
}

impl Running {
    fn new(binary: &'static Path, faults: &[Value], more: &[&str]) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
        std::fs::write(dir.path().join("faults"), lines.join("\n")).unwrap();
        let more: Vec<String> = more.iter().map(|&one| one.to_owned()).collect();
        let child = start(binary, dir.path(), &more);
        Running { dir, binary, more, child }
    }

    fn client(&self) -> Client {
        Client::new(&self.dir.path().join("s")).unwrap()
    }

    /// The calls that the driver has begun, in their order.
    fn calls(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap();
        let entries = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        entries
            .filter(|entry| entry["phase"] == "begin")
            .map(|entry| entry["call"].as_str().unwrap().to_owned())
            .collect()
    }

    fn node_calls(&self) -> Vec<String> {
        let is_step = |call: &String| call.ends_with("tageVolume") || call.ends_with("ublishVolume");
        self.calls().into_iter().filter(is_step).collect()
    }

    async fn manager(&self) -> Arc<Manager> {
        let client = self.client();
        let (fingerprint, is_ready) = client.fingerprint(true, true).await.unwrap();
        assert!(is_ready);
        let root = self.dir.path().join("root");
        let plugin = Plugin::new(client, fingerprint, Places::new(&root, &root).unwrap());
        let above = OwnDir::open(self.dir.path()).unwrap();
        let records = Files::open(&above, "records").unwrap();
        Manager::open(Arc::new(plugin), Arc::new(records))
    }

    /// Whether nothing is left of any volume: no record, no directory.
    fn is_clean(&self) -> bool {
        let is_empty = |name: &str| std::fs::read_dir(self.dir.path().join(name)).map_or(true, |all| all.count() == 0);
        is_empty("records") && is_empty("root/staging") && is_empty("root/per-alloc") && is_empty("state/dry")
    }
}

fn start(binary: &Path, dir: &Path, more: &[String]) -> Child {
    let at = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new(binary);
    command.args(["--dry", "--attach", "--topology", "zone=a", "--endpoint", &format!("unix://{}", at("s"))]);
    command.args(["--state", &at("state"), "--log", &at("log"), "--faults", &at("faults")]).args(more);
    command.stdout(Stdio::null()).spawn().unwrap()
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn capability() -> Capability {
    let options = MountOptions { fs_type: String::new(), flags: vec![format!("password=fl4g-{SECRET}")] };
    Capability::from_words("multi-node-multi-writer", "file-system", options).unwrap()
}

fn secrets() -> Secrets {
    Secrets([("password".to_owned(), SECRET.to_owned())].into())
}

async fn created(client: &Client, name: &str) -> Volume {
    let new = NewVolume {
        name: name.to_owned(),
        capacity: (1 << 20, 0),
        capabilities: vec![capability()],
        secrets: secrets(),
        ..NewVolume::default()
    };
    let made = client.create_volume(&new).await.unwrap();
    assert_eq!(made.capacity, 1 << 20);
    let id = VolumeId { namespace: "default".to_owned(), id: made.id };
    Volume { id, context: made.context, secrets: secrets() }
}

fn join(user: &str, volume: &Volume) -> Join {
    Join { user: user.to_owned(), volume: volume.clone(), capability: capability(), read_only: false }
}

async fn never() {
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn f5_a_plugin_says_what_it_is_and_can() {
    let Some(binary) = driver("f5_a_plugin_says_what_it_is_and_can") else { return };
    let running = Running::new(binary, &[], &["--most", "0"]);
    let (found, is_ready) = running.client().fingerprint(true, true).await.unwrap();
    let (info, node) = (found.info, found.node.unwrap());
    assert!(is_ready && info.needs_controller && info.has_topology);
    assert_eq!((&*info.provider, &*info.version), ("csi.agentbin.test", "1.0.0"));
    assert_eq!((&*node.id, node.max_volumes), ("node-0", i64::MAX));
    assert_eq!(node.topology, BTreeMap::from([("zone".to_owned(), "a".to_owned())]));
    assert!(node.flags.stage && node.flags.stats && node.flags.expand && node.flags.multi_writer);
    let controller = found.controller.unwrap();
    assert!(controller.attach_detach && controller.create_delete && controller.list_nodes && controller.expand);
    // Its parts can be apart.
    let alone = Running::new(binary, &[], &["--services", "node", "--name", ""]);
    let error = alone.client().fingerprint(true, true).await.unwrap_err().to_string();
    assert!(error.contains("has no name"), "{error}");
}

#[tokio::test]
async fn f7_one_stage_one_publish_for_each_and_all_undone_in_reverse() {
    let Some(binary) = driver("f7_one_stage_one_publish_for_each_and_all_undone_in_reverse") else { return };
    let running = Running::new(binary, &[], &["--secret", &secrets::asked("password", SECRET)]);
    let volume = created(&running.client(), "one").await;
    let manager = running.manager().await;
    manager.join(join("a", &volume), never()).await.unwrap();
    manager.join(join("b", &volume), never()).await.unwrap();
    let records = running.dir.path().join("records");
    let entries = std::fs::read_dir(records).unwrap().map(|entry| entry.unwrap().path());
    // Beside each there is its lock.
    for path in entries.filter(|path| path.extension().is_some_and(|end| end == "json")) {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(!text.contains(SECRET) && text.contains("multi-node-multi-writer"), "{text}");
    }
    // Whoever comes after a restart knows of both.
    drop(manager);
    let manager = running.manager().await;
    manager.leave("a", &volume.id, &secrets(), never()).await.unwrap();
    manager.leave("b", &volume.id, &secrets(), never()).await.unwrap();
    let expected = [
        "ControllerPublishVolume",
        "NodeStageVolume",
        "NodePublishVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "NodeUnpublishVolume",
        "NodeUnstageVolume",
        "ControllerUnpublishVolume",
    ];
    assert_eq!(running.node_calls(), expected);
    assert!(running.is_clean());
    running.client().delete_volume(&volume.id.id, &secrets()).await.unwrap();
    // Without the secret nothing is done, and it is told without it.
    let new = NewVolume {
        name: "two".to_owned(),
        capabilities: vec![capability()],
        secrets: Secrets([("password".to_owned(), format!("wr0ng-{SECRET}"))].into()),
        ..NewVolume::default()
    };
    let error = running.client().create_volume(&new).await.unwrap_err();
    assert!(error.to_string().contains("the secrets of the volume are missing or wrong"), "{error}");
    let shown = format!("{error} {error:?} {new:?} {volume:?} {:?}", join("a", &volume));
    assert!(!shown.contains(SECRET), "{shown}");
}

/// Every step of a volume's life, and what happens at it.
#[tokio::test]
async fn f7_a_step_that_is_lost_or_killed_is_done_again() {
    let Some(binary) = driver("f7_a_step_that_is_lost_or_killed_is_done_again") else { return };
    let steps = [
        ("ControllerPublishVolume", "end"),
        ("NodeStageVolume", "noted"),
        ("NodeStageVolume", "mounted"),
        ("NodeStageVolume", "end"),
        ("NodePublishVolume", "noted"),
        ("NodePublishVolume", "mounted"),
        ("NodePublishVolume", "end"),
        ("NodeUnpublishVolume", "unmounted"),
        ("NodeUnpublishVolume", "end"),
        ("NodeUnstageVolume", "unmounted"),
        ("NodeUnstageVolume", "end"),
        ("ControllerUnpublishVolume", "end"),
    ];
    for (call, step) in steps {
        for act in ["lose", "die"] {
            let fault = json!({"call": call, "step": step, "do": act});
            let mut running = Running::new(binary, &[fault], &[]);
            let volume = created(&running.client(), "one").await;
            let manager = running.manager().await;
            let life = async {
                manager.join(join("a", &volume), never()).await?;
                manager.leave("a", &volume.id, &secrets(), never()).await
            };
            let done = if act == "die" {
                let (binary, dir) = (running.binary, running.dir.path().to_owned());
                let more = running.more.clone();
                // Its place is taken by the next one when it has ended.
                let mut first = std::mem::replace(&mut running.child, Command::new("true").spawn().unwrap());
                let next = tokio::task::spawn_blocking(move || {
                    first.wait().unwrap();
                    start(binary, &dir, &more)
                });
                let done = life.await;
                running.child.wait().unwrap();
                running.child = next.await.unwrap();
                done
            } else {
                life.await
            };
            let told = |error: CsiError| panic!("{act} at {step} of {call}: {error}");
            done.unwrap_or_else(told);
            assert!(running.is_clean(), "{act} at {step} of {call}: something is left");
            assert_eq!(running.calls().iter().filter(|found| **found == call).count(), 2, "{act} at {step} of {call}");
            running.client().delete_volume(&volume.id.id, &secrets()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn f7_a_final_answer_is_told_and_what_was_done_is_undone() {
    let Some(binary) = driver("f7_a_final_answer_is_told_and_what_was_done_is_undone") else { return };
    let fault = json!({"call": "NodePublishVolume", "step": "mounted", "do": "code", "code": "FAILED_PRECONDITION"});
    let running = Running::new(binary, &[fault], &[]);
    let volume = created(&running.client(), "one").await;
    let manager = running.manager().await;
    let error = manager.join(join("a", &volume), never()).await.unwrap_err().to_string();
    assert!(error.contains("NodePublishVolume") && error.contains("FailedPrecondition"), "{error}");
    assert!(running.is_clean());
    let calls = running.node_calls();
    assert_eq!(
        calls[2..],
        ["NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"]
    );
    manager.join(join("a", &volume), never()).await.unwrap();
    manager.leave("a", &volume.id, &secrets(), never()).await.unwrap();
    assert!(running.is_clean());
}

#[tokio::test]
async fn f7_the_controller_makes_expands_lists_and_deletes() {
    let Some(binary) = driver("f7_the_controller_makes_expands_lists_and_deletes") else { return };
    let running = Running::new(binary, &[], &[]);
    let client = running.client();
    let volume = created(&client, "one").await;
    let id = &volume.id.id;
    assert_eq!(created(&client, "one").await.id, volume.id, "a name is one volume");
    client.validate(id, &[capability()], &secrets()).await.unwrap();
    assert!(client.validate("none", &[capability()], &secrets()).await.is_err());
    let block = Capability::from_words("single-node-writer", "block-device", MountOptions::default()).unwrap();
    let error = client.validate(id, &[block], &secrets()).await.unwrap_err().to_string();
    assert!(error.contains("other access type"), "{error}");
    assert_eq!(client.expand_volume(id, (2 << 20, 0), None, &secrets()).await.unwrap(), (2 << 20, false));
    assert!(client.expand_volume(id, (1 << 50, 0), None, &secrets()).await.is_err());
    let other = created(&client, "two").await;
    let first = client.list_volumes(1, "").await.unwrap();
    assert_eq!((first.entries.len(), &first.entries[0].volume.id), (1, id));
    let second = client.list_volumes(1, &first.next).await.unwrap();
    assert_eq!((&second.entries[0].volume.id, &*second.next), (&other.id.id, ""));
    let error = client.list_volumes(1, "x").await.unwrap_err();
    assert!(error.to_string().contains("the starting token is invalid"), "{error}");
    let snapshot = client.create_snapshot(id, "s", &BTreeMap::new(), &secrets()).await.unwrap();
    assert!(snapshot.is_ready && snapshot.volume == *id && snapshot.made.is_some());
    assert_eq!(client.list_snapshots(0, "", &secrets()).await.unwrap().entries, std::slice::from_ref(&snapshot));
    let copy = NewVolume {
        name: "copy".to_owned(),
        capabilities: vec![capability()],
        snapshot: snapshot.id.clone(),
        ..NewVolume::default()
    };
    assert_eq!(client.create_volume(&copy).await.unwrap().capacity, 2 << 20);
    client.delete_snapshot(&snapshot.id, &secrets()).await.unwrap();
    client.delete_volume(id, &secrets()).await.unwrap();
    client.delete_volume(id, &secrets()).await.unwrap();
}
