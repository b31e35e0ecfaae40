//! Log sinks of `agentbin run`: the real binary, real receivers.

#![expect(clippy::disallowed_methods, reason = "what other processes do is looked for until a deadline")]

#[path = "support/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use world::{World, batch, seconds, wait_for_text};

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}

/// `seq 1 N`, as lines.
fn counted(to: u32) -> Vec<String> {
    (1..=to).map(|n| n.to_string()).collect()
}

fn time_of(event: &Value) -> SystemTime {
    humantime::parse_rfc3339(event["time"].as_str().unwrap()).unwrap()
}

#[test]
fn a_file_gets_all_and_a_dead_sink_holds_nobody_up() {
    let world = World::new();
    let out = world.path("out.json");
    let (file, dead) = (format!("file:{}", out.display()), "syslog:tcp://127.0.0.1:1");
    let job = batch("raw_exec", "/bin/sh", r#"["-c", "seq 1 20000; echo oops >&2"]"#);
    let ran = world.run_text(&job, &["--json", "--log-sink", &file, "--log-sink", dead]);
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    let objects = json_lines(&std::fs::read_to_string(&out).unwrap());
    let of = |stream: &str| -> Vec<String> {
        let lines = objects.iter().filter(|object| object["stream"] == stream);
        lines.map(|object| object["line"].as_str().unwrap().to_owned()).collect()
    };
    assert!(of("stdout") == counted(20_000) && of("stderr") == ["oops"]);
    let labels = ["job", "group", "task"].map(|key| objects[0][key].as_str().unwrap());
    assert_eq!((labels, objects[0]["alloc"].as_str().unwrap().len()), (["test", "g", "t"], 36));

    // The task ended before anybody was patient with the sink.
    let events = json_lines(&ran.stdout);
    let event = |kind: &str| time_of(events.iter().find(|event| event["type"] == kind).unwrap());
    let life = event("Terminated").duration_since(event("Started")).unwrap();
    assert!(life < seconds(4), "{life:?}");
    assert_eq!(ran.stderr.matches("takes nothing").count(), 1, "{}", ran.stderr);
    for lost in ["did not get 20000 lines (108894 bytes) of t's stdout", "did not get 1 lines (5 bytes) of t's stderr"]
    {
        assert!(ran.stderr.contains(lost), "{}", ran.stderr);
    }
    world.assert_clean();
}

#[test]
fn a_sink_that_is_none_is_refused_without_its_secrets() {
    let world = World::new();
    let job = batch("raw_exec", "/bin/true", "[]");
    let ran = world.run_text(&job, &["--log-sink", "otlp:https://user:hunter2@host"]);
    assert_eq!(ran.status, 125);
    assert!(ran.stderr.contains("for TLS run a collector") && !ran.stderr.contains("hunter2"), "{}", ran.stderr);
    let named = job.replace("config {", "config {\n log_sinks = [\"syslog:nowhere\"]");
    let ran = world.run_text(&named, &[]);
    assert!(ran.status == 125 && ran.stderr.contains("syslog:unix:"), "{}", ran.stderr);
    world.assert_clean();
}

/// A syslog receiver that lives as long as the test.
struct Receiver {
    messages: Arc<Mutex<Vec<String>>>,
    thread: Option<std::thread::JoinHandle<()>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Receiver {
    fn bind(path: &std::path::Path) -> Receiver {
        let socket = UnixDatagram::bind(path).unwrap();
        // To look whether the test has ended.
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let (messages, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
        let (into, stopped) = (Arc::clone(&messages), Arc::<std::sync::atomic::AtomicBool>::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut space = vec![0; 65536];
            while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
                if let Ok(n) = socket.recv(&mut space) {
                    into.lock().unwrap().push(String::from_utf8(space[..n].to_vec()).unwrap());
                }
            }
        });
        Receiver { messages, thread: Some(thread), stop }
    }

    fn count(&self) -> usize {
        self.messages.lock().unwrap().len()
    }

    fn wait_for(&self, count: usize) {
        let deadline = Instant::now() + seconds(60);
        while self.count() < count {
            assert!(Instant::now() < deadline, "{} of {count} messages", self.count());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The lines of stdout in the order of their places, each once, and how many messages there were.
    fn lines(&self) -> (Vec<String>, usize) {
        let messages = self.messages.lock().unwrap();
        let stdout = messages.iter().filter(|message| message.contains(" stream=\"stdout\""));
        let mut lines = BTreeMap::new();
        for message in stdout.clone() {
            let param = |name: &str| -> u64 {
                let (_, rest) = message.split_once(&format!(" {name}=\"")).unwrap();
                rest[..rest.find('"').unwrap()].parse().unwrap()
            };
            let line = message.split_once("] ").unwrap().1.to_owned();
            let earlier = lines.insert((param("file"), param("offset")), line.clone());
            assert!(earlier.is_none_or(|earlier| earlier == line), "one place, one line");
        }
        (lines.into_values().collect(), stdout.count())
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has told what went wrong.
            let _ = thread.join();
        }
    }
}

/// Runs a job, kills the run when `until` says so, and has `agentbin gc` ship the rest.
fn killed(world: &World, script: &str, until: impl FnOnce(&mut world::Running)) {
    let job = batch("raw_exec", "/bin/sh", &format!("[\"-c\", \"{script}\"]"));
    let file = world.file("job.nomad.hcl", &job);
    let sink = format!("syslog:unix:{}", world.path("log").display());
    let mut run = world.start(&["--log-sink", &sink, file.to_str().unwrap()]);
    until(&mut run);
    run.child.kill().unwrap();
    run.finish();
}

#[test]
fn n5_what_a_killed_run_did_not_ship_is_shipped_by_gc() {
    let world = World::new();
    killed(&world, "seq 1 5000; sleep 300", |run| wait_for_text(&run.stdout, "\n5000\n"));
    let receiver = Receiver::bind(&world.path("log"));
    let gc = world.agentbin(&["gc"]);
    assert!(gc.status == 0 && gc.stdout.contains("removed"), "{gc:?}");
    receiver.wait_for(5000);
    let (lines, messages) = receiver.lines();
    assert!(lines == counted(5000) && messages == 5000, "{messages}");
    drop(receiver);
    world.assert_clean();
}

#[test]
fn n5_a_run_killed_while_it_ships_loses_nothing() {
    let world = World::new();
    let receiver = Receiver::bind(&world.path("log"));
    let script = "for n in $(seq 1 3000); do echo $n; done; seq 3001 20000; sleep 300";
    killed(&world, script, |_| receiver.wait_for(2000));
    // The task and its executor live on: all of it reaches the files.
    let deadline = Instant::now() + seconds(60);
    let written = || {
        let allocs = std::fs::read_dir(world.data_dir().join("alloc")).unwrap().flatten();
        let mut logs = allocs.map(|alloc| std::fs::read_to_string(alloc.path().join("alloc/logs/t.stdout.0")));
        logs.any(|log| log.is_ok_and(|text| text.ends_with("\n20000\n")))
    };
    while !written() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = receiver.count();
    assert_eq!(world.agentbin(&["gc"]).status, 0);
    let deadline = Instant::now() + seconds(60);
    while receiver.lines().0.len() < 20_000 {
        assert!(Instant::now() < deadline, "{} lines", receiver.lines().0.len());
        std::thread::sleep(Duration::from_millis(20));
    }
    let (lines, messages) = receiver.lines();
    println!("{before} messages before the kill, {messages} in all");
    assert!(lines == counted(20_000));
    drop(receiver);
    world.assert_clean();
}
