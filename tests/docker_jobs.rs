//! Job files with containers, run to an end by the real binary on a Docker Engine of this program's own (J1, J3): the `docker-*`
//! files of `tests/jobs`. The images are made here: busybox, which answers as redis would where that is asked for.

#[path = "support/engine.rs"]
mod engine;
#[path = "support/job_files.rs"]
mod job_files;
#[path = "support/world.rs"]
mod world;

use std::process::Command;
use std::sync::OnceLock;

use engine::TestEngine;
use job_files::{all, run_all};
use world::need_root;

/// How many run at once.
const AT_ONCE: usize = 3;

/// Answers a PING on redis's port, and says so once it can.
const REDIS: &str = "trap 'exit 0' INT TERM; \
    busybox nc -ll -p 6379 -e /bin/sh -c 'read line; printf \"+PONG\\r\\n\"' & \
    until echo PING | busybox nc 127.0.0.1 6379 | grep -q PONG; do busybox sleep 0.1; done; echo answers PONG; wait";

/// The namespace of the thread that started the engine is that of all that it starts.
fn enter_network() {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
    for words in [
        "link set lo up",
        "address add 198.51.100.7/32 dev lo",
        // Where the node's own address is looked for; nothing is sent there.
        "route add 192.0.2.1/32 dev lo src 198.51.100.7",
    ] {
        assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "ip {words}");
    }
}

/// The network namespace with the engine's bridge.
static NETWORK: OnceLock<std::fs::File> = OnceLock::new();

fn enter() {
    let network = NETWORK.get().unwrap();
    nix::sched::setns(network, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
}

#[test]
fn j1_job_files_with_containers_show_their_effects() {
    need_root!();
    enter_network();
    NETWORK.set(std::fs::File::open("/proc/thread-self/ns/net").unwrap()).unwrap();
    let options = ["--bridge=", "--bip", "10.213.9.1/24", "--ip-forward=false", "--ip-masq=false"];
    let engine = match TestEngine::with(&options) {
        Ok(engine) => engine,
        Err(why) => {
            assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "{why}");
            println!("SKIP: j1_job_files_with_containers_show_their_effects: {why}");
            return;
        }
    };
    let tar = engine.path().join("busybox.tar");
    std::fs::write(&tar, engine::busybox()).unwrap();
    let tar = tar.to_str().unwrap();
    engine.docker(&["import", tar, "busybox:1"]);
    let redis = format!("CMD {}", serde_json::json!(["/bin/sh", "-c", REDIS]));
    engine.docker(&["import", "-c", &redis, tar, "redis:7"]);
    let mut files = all();
    files.retain(|file| file.drivers.contains(&"docker".to_owned()));
    assert!(files.len() >= 10, "{}", files.len());
    if let Ok(only) = std::env::var("AGENTBIN_JOB_FILE") {
        files.retain(|file| file.name.contains(&only));
    }
    run_all(files, AT_ONCE, enter, &[("DOCKER_HOST", engine.endpoint())]);
    assert_eq!(engine.docker(&["ps", "-aq"]), "");
}
