//! What becomes of the output of `agentbin run`: log sinks, `agentbin logs`, logs that are kept, lost or not wanted. The real
//! binary, real receivers.

#![expect(clippy::disallowed_methods, reason = "what other processes do is looked for until a deadline")]

#[path = "support/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use world::{Out, Running, World, batch, seconds, wait_for_text};

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
    fn bind(path: &Path) -> Receiver {
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

/// `agentbin logs` of what a run in `world` has, or kept.
fn logs(world: &World, args: &[&str]) -> Out {
    let data_dir = world.data_dir();
    world.agentbin(&[&["logs", "--data-dir", data_dir.to_str().unwrap()], args].concat())
}

fn follow(world: &World, args: &[&str]) -> Running {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_agentbin"));
    command.args(["logs", "-f", "--data-dir"]).arg(world.data_dir()).args(args).stdin(std::process::Stdio::null());
    World::start_command(command)
}

/// The directories of allocations in a directory.
fn allocs(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// A script as a job, in the words of HCL.
fn script(text: &str) -> String {
    batch("raw_exec", "/bin/sh", &format!("[\"-c\", \"{text}\"]"))
}

#[test]
fn d5_kept_logs_are_read_listed_and_removed() {
    let world = World::new();
    assert_eq!(world.run_text(&script("seq 1 5000; echo oops >&2"), &["--keep-logs", "--quiet"]).status, 0);
    world.assert_clean();
    let kept = allocs(&world.data_dir().join("logs"));
    let [dir] = &kept[..] else { panic!("{kept:?}") };
    let id = name_of(dir);
    let of = |from: u32| (from..=5000).fold(String::new(), |text, n| text + &n.to_string() + "\n");
    for (args, expected) in [
        (&["t"][..], of(1)),
        (&["--task", "t", "--stdout"], of(1)),
        (&["--tail"], of(4991)),
        (&["-n", "3"], of(4998)),
        (&["--lines", "1", "t"], of(5000)),
        (&["-n", "0"], String::new()),
        (&["-n", "9999"], of(1)),
        (&["-c", "7"], "9\n5000\n".to_owned()),
        (&["--tail", "--bytes", "5"], of(5000)),
        (&["-c", "0"], String::new()),
    ] {
        let out = logs(&world, &[&[&id[..8]][..], args].concat());
        assert!(out.status == 0 && out.stdout == expected && out.stderr.is_empty(), "{args:?}: {out:?}");
    }
    let out = logs(&world, &[&id, "--stderr"]);
    assert!(out.status == 0 && out.stdout.is_empty() && out.stderr == "oops\n", "{out:?}");
    let out = logs(&world, &[&id, "--stdout", "--stderr", "-n", "1"]);
    assert!(out.stdout == "5000\n" && out.stderr == "oops\n", "{out:?}");
    let out = follow(&world, &[&id, "-n", "1"]).finish();
    assert!(out.status == 0 && out.stdout == "5000\n" && out.stderr == "oops\n", "it has ended: {out:?}");
    let out = logs(&world, &[&id, "other"]);
    assert!(out.status == 125 && out.stderr.contains("it has those of t"), "{out:?}");
    let out = logs(&world, &["ffffffff"]);
    assert!(out.status == 125 && out.stderr.contains("--keep-logs"), "{out:?}");

    let stranger = world.data_dir().join("logs/not-an-allocation");
    std::fs::create_dir(&stranger).unwrap();
    for (args, word, stays) in [
        (&["gc"][..], "kept logs", true),
        (&["gc", "--kept-logs", "7d"], "kept logs", true),
        (&["gc", "--kept-logs", "0", "--dry-run"], "would remove", true),
        (&["gc", "--kept-logs", "0"], "removed", false),
    ] {
        let out = world.agentbin(args);
        let told = out.stdout.lines().any(|line| line.starts_with(word) && line.contains(&id));
        assert!(out.status == 0 && told && dir.exists() == stays, "{args:?}: {out:?}");
    }
    assert_eq!(world.agentbin(&["gc"]).stdout, "");
    assert!(stranger.exists());
}

#[test]
fn d5_followers_read_along_and_end_with_the_allocation() {
    let world = World::new();
    let (more, last) = (world.path("more"), world.path("last"));
    let wait = |file: &Path| format!("while [ ! -e {} ]; do sleep 0.05; done", file.display());
    let text = format!("seq 1 3000; {}; seq 3001 6000; echo end >&2; {}", wait(&more), wait(&last));
    let file = world.file("job.nomad.hcl", &script(&text));
    let mut run = world.start(&[file.to_str().unwrap()]);
    wait_for_text(&run.stdout, "\n3000\n");
    let id = name_of(&allocs(&world.data_dir().join("alloc"))[0]);
    let mut followers = [&["t"][..], &["--stdout", "-n", "2"], &["-c", "5"], &["--stderr"]]
        .map(|args| follow(&world, &[&[id.as_str()][..], args].concat()));
    for (follower, wanted) in followers.iter().zip(["\n3000\n", "2999\n3000\n", "3000\n"]) {
        wait_for_text(&follower.stdout, wanted);
    }
    let once = logs(&world, &[&id]);
    assert!(once.stdout.ends_with("\n3000\n") && once.stdout.lines().eq(counted(3000)), "{once:?}");
    std::fs::write(&more, "").unwrap();
    for follower in &followers[..3] {
        wait_for_text(&follower.stdout, "\n6000\n");
    }
    wait_for_text(&followers[0].stderr, "end\n");
    wait_for_text(&followers[3].stderr, "end\n");
    std::fs::write(&last, "").unwrap();
    assert_eq!(run.finish().status, 0);
    let ended = followers.each_mut().map(Running::finish);
    let all = counted(6000);
    for (out, from, stderr) in [(&ended[0], 0, "end\n"), (&ended[1], 2998, ""), (&ended[2], 2999, "end\n")] {
        assert_eq!((out.status, out.stderr.as_str()), (0, stderr));
        assert!(out.stdout.lines().eq(&all[from..]), "{:?}", &out.stdout[..out.stdout.len().min(100)]);
    }
    assert_eq!((ended[3].stdout.as_str(), ended[3].stderr.as_str()), ("", "end\n"));
    world.assert_clean();
}

#[test]
fn d4_logs_that_are_not_wanted_cost_nothing() {
    let world = World::new();
    let out = world.path("out");
    let text = "echo unheard; found=$(readlink /proc/$$/fd/1 /proc/$$/fd/2); echo $found";
    let job = script(&format!("{text} >{}", out.display()));
    let job = job.replace("driver =", "logs {\n disabled = true\n }\n driver =");
    let ran = world.run_text(&job, &["--keep-logs"]);
    assert!(ran.status == 0 && !ran.stdout.contains("unheard"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "/dev/null /dev/null\n");
    for dir in allocs(&world.data_dir().join("logs")) {
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
    }
    world.assert_clean();
}

#[test]
fn d2_output_that_is_lost_is_told_as_events() {
    let world = World::new();
    let stop = world.path("stop");
    let text = format!("while [ ! -e {} ]; do echo line; sleep 0.02; done", stop.display());
    let file = world.file("job.nomad.hcl", &script(&text));
    let mut run = world.start(&["--json", file.to_str().unwrap()]);
    wait_for_text(&run.stdout, "\"type\":\"Output\"");
    let folder = allocs(&world.data_dir().join("alloc"))[0].join("alloc/logs");
    std::fs::remove_dir_all(&folder).unwrap();
    wait_for_text(&run.stdout, "Output is being dropped");
    std::fs::create_dir(&folder).unwrap();
    wait_for_text(&run.stdout, "Output is written again");
    std::fs::write(&stop, "").unwrap();
    let out = run.finish();
    assert_eq!(out.status, 0, "{}", out.stderr);
    let events = json_lines(&out.stdout);
    let events: Vec<_> = events.iter().filter(|event| event["type"] == "Driver").collect();
    let [failed, healed] = &events[..] else { panic!("{events:?}") };
    let message = |event: &Value| event["message"].as_str().unwrap().to_owned();
    assert!(
        message(failed).starts_with("Output is being dropped: stdout: cannot open log file t.stdout.0: no such file")
    );
    let detail = |key: &str| healed["details"][key].as_str().unwrap().to_owned();
    let dropped = (detail("dropped_lines"), detail("dropped_bytes"));
    assert_eq!(dropped.0.parse::<u64>().unwrap() * 5, dropped.1.parse::<u64>().unwrap());
    let told = format!("Output is written again: stdout: {} lines ({} bytes) were dropped", dropped.0, dropped.1);
    assert_eq!((message(healed), detail("stream").as_str(), detail("rotations").as_str()), (told, "stdout", "0"));
    world.assert_clean();
}
