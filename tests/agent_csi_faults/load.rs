//! Volumes that are used all the time: by fifty allocations at once, and by a database.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::csi_driver::{SHARED, SINGLE, binary, of_a_job};
use crate::place::{Job, Kind, Place, RETRIED, id_of, nap};
use crate::random::Random;
use crate::world::{World, need_root};

/// Kills the process of the plugin that runs.
fn kill_plugin(place: &Place<'_>) {
    let last = place.driver.entries().last().and_then(|entry| entry["pid"].as_i64());
    // It may be dead, and its number nobody's: the next one has not called yet.
    if let Some(pid) = last.and_then(|pid| Pid::from_raw(pid.try_into().ok()?)) {
        let _gone = kill_process(pid, Signal::KILL);
    }
}

/// Fifty allocations have one volume, over the ends of the agent and of the plugin: it is staged once, and stays below them.
#[test]
fn f7_fifty_allocations_keep_their_volume() {
    need_root!();
    let test = "f7_fifty_allocations_keep_their_volume";
    let Some(binary) = binary(test) else { return };
    let driver = of_a_job(World::new());
    let place = Place::start(&driver, Kind::RawExec, binary, None);
    let script = "trap 'exit 0' INT TERM; echo here > /data/here; echo up; \
                  while :; do [ -e /data/here ] || echo LOST; sleep 1 & wait $!; done";
    let group = format!("count = 50\n ephemeral_disk {{\n size = 110\n }}\n {RETRIED}");
    let volumes = [("data", SHARED)];
    place.run(&Job { id: "many", kind: "service", volumes: &volumes, group: &group, script, ..Job::default() });
    let running = || {
        let mut all = place.allocs("many");
        all.retain(|alloc| alloc["ClientStatus"] == "running");
        let mut ids: Vec<String> = all.iter().map(id_of).collect();
        ids.sort();
        ids
    };
    let count = |call: &str| {
        let entries = driver.entries();
        entries.iter().filter(|entry| entry["call"] == call && entry["phase"] == "begin").count()
    };
    place.until("fifty run", || (running().len() == 50).then_some(()));
    let before = running();
    for round in 0..3 {
        place.next_agent(if round == 1 { Signal::TERM } else { Signal::KILL });
        place.restart_plugin();
        place.plugin_is_healthy();
        kill_plugin(&place);
        place.plugin_is_healthy();
        place.until("the same fifty run", || (running() == before).then_some(()));
        assert_eq!(["NodeStageVolume", "NodeUnpublishVolume", "NodeUnstageVolume"].map(count), [1, 0, 0]);
    }
    for id in &before {
        let text = place.output(id, "t");
        assert!(text.contains("up") && !text.contains("LOST"), "{id}: {text}");
    }
    place.stop("many");
    place.end();
    let calls = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(calls.map(count), [1, 50, 50, 1]);
}

/// The programs of a database server, as Debian has them.
fn postgres() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let mut found: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    found.sort();
    found.into_iter().rfind(|bin| bin.join("initdb").exists() && bin.join("psql").exists())
}

/// A server on a volume, which its first start gives to its user.
fn server(id: &str, bin: &Path) -> String {
    let bin = bin.display();
    let script = format!(
        "cd /data && {{ [ -d db ] || {{ rm -rf new && {bin}/initdb -D new -A trust -E UTF8 --no-locale > /dev/null && mv new db; }}; }} || exit 1\n\
         echo port $NOMAD_PORT_db\n\
         exec {bin}/postgres -D db -p $NOMAD_PORT_db -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
         -c shared_buffers=16MB -c dynamic_shared_memory_type=mmap"
    );
    let group = format!(
        "{}\n network {{\n port \"db\" {{}}\n }}",
        RETRIED.replace("attempts = 1\n", "attempts = 1000\n").replace("\"fail\"", "\"delay\"")
    );
    let text =
        Job { id, kind: "service", volumes: &[("one", SINGLE)], group: &group, script: &script, ..Job::default() };
    let owner = "task \"owner\" {\n driver = \"exec\"\n user = \"root\"\n lifecycle {\n hook = \"prestart\"\n }\n \
                 volume_mount {\n volume = \"v0\"\n destination = \"/data\"\n }\n \
                 config {\n command = \"/bin/chown\"\n args = [\"postgres\", \"/data\"]\n }\n \
                 resources {\n cpu = 20\n memory = 32\n }\n }\n task \"t\" {";
    let text = text.text().replace("task \"t\" {", owner);
    let (before, server) = text.split_once("task \"t\"").unwrap();
    let server =
        server.replacen("user = \"root\"", "user = \"postgres\"", 1).replacen("memory = 32", "memory = 256", 1);
    format!("{before}task \"t\"{server}")
}

/// A database on a volume: what its clients were told to be committed is there, whoever is killed meanwhile, also for the next
/// allocation.
#[test]
fn f7_a_database_loses_nothing() {
    need_root!();
    let test = "f7_a_database_loses_nothing";
    let Some(binary) = binary(test) else { return };
    let Some(bin) = postgres() else {
        assert_ne!(std::env::var("CI").as_deref(), Ok("true"), "scripts/setup installs postgresql-15");
        println!("SKIP: {test}: PostgreSQL is not installed");
        return;
    };
    let driver = of_a_job(World::new());
    let place = Place::start(&driver, Kind::RawExec, binary, None);
    let says = |job: &str, words: &str| -> Option<String> {
        let all = place.allocs(job);
        let alloc = all.iter().find(|alloc| alloc["ClientStatus"] == "running")?;
        let text = place.output(&id_of(alloc), "t");
        let port = text.lines().rev().find_map(|line| line.strip_prefix("port "))?.to_owned();
        let out = Command::new(bin.join("psql"))
            .args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-X", "-q", "-A", "-t", "-c", words])
            .env("PGCONNECT_TIMEOUT", "5")
            .output()
            .unwrap();
        out.status.success().then(|| String::from_utf8(out.stdout).unwrap())
    };
    place.run_text(&server("db", &bin));
    place.until("there is a table", || says("db", "CREATE TABLE IF NOT EXISTS t (n bigint PRIMARY KEY)"));

    let committed = Mutex::new(Vec::<u64>::new());
    let so_many = || committed.lock().unwrap_or_else(PoisonError::into_inner).len();
    let is_over = AtomicBool::new(false);
    let mut random = Random::new(test);
    let kills = if std::env::var_os("AGENTBIN_FULL").is_some() { 100 } else { 5 };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                match says("db", &format!("INSERT INTO t VALUES ({number})")) {
                    Some(_) => committed.lock().unwrap().push(number),
                    None => nap(),
                }
            }
        });
        let swept = catch_unwind(AssertUnwindSafe(|| {
            for kill in 0..kills {
                let victim = random.below(4);
                let until = Instant::now() + random.moment(Duration::from_millis(500));
                while Instant::now() < until {
                    nap();
                }
                match victim {
                    0 => place.next_agent(Signal::KILL),
                    1 => place.restart_plugin(),
                    2 => kill_plugin(&place),
                    _ => place.kill_executors(random.below(2) == 0),
                }
                let before = so_many();
                place.until(&format!("it goes on after kill {kill}, of {victim}"), || {
                    (so_many() > before + 2).then_some(())
                });
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = swept {
            resume_unwind(panic);
        }
    });
    place.stop("db");
    place.run_text(&server("next", &bin));
    let found = place.until("the next allocation has it", || says("next", "SELECT n FROM t ORDER BY n"));
    let found: Vec<u64> = found.lines().map(|line| line.parse().unwrap()).collect();
    let committed = committed.into_inner().unwrap();
    let lost: Vec<&u64> = committed.iter().filter(|number| found.binary_search(number).is_err()).collect();
    assert!(lost.is_empty(), "lost of {}: {lost:?}", committed.len());
    println!("{test}: {kills} kills, {} transactions", committed.len());
    place.stop("next");
    place.end();
}
