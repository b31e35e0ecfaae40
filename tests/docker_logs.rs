//! D4: the agent's API on the output of tasks that nobody collects: the real agent, and a Docker Engine of this program's own.
#![expect(
    clippy::disallowed_methods,
    reason = "the agent is another process: what it does is looked for until a deadline"
)]

#[path = "support/engine.rs"]
mod engine;
#[path = "support/world.rs"]
mod world;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine::{IMAGE, TestEngine};
use serde_json::{Value, json};
use world::{World, need_root, seconds};

/// It says a line on each stream, and another one when it finds a file.
const SCRIPT: &str = "echo seen; echo too >&2; while ! [ -e /alloc/go ]; do sleep 0.1; done; echo late; sleep 1000";

struct Agent<'a> {
    world: &'a World,
    child: Child,
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Agent<'_> {
    /// An agent whose docker driver collects nothing if `off`.
    fn start<'w>(world: &'w World, engine: &TestEngine, off: bool) -> Agent<'w> {
        let config = format!(
            "plugin \"docker\" {{\n  config {{\n    endpoint = \"{}\"\n    disable_log_collection = {off}\n  }}\n}}\n\
             plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n",
            engine.endpoint()
        );
        let config = world.file("agent.hcl", &config);
        let log = std::fs::File::options().create(true).append(true).open(world.path("agent.log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
        command.arg("agent").arg("--data-dir").arg(world.data_dir()).arg("--config").arg(config).arg("--listen");
        command.arg(format!("unix://{}", world.path("a.sock").display())).stdin(Stdio::null()).stderr(log);
        let agent = Agent { world, child: command.spawn().unwrap() };
        agent.until("it listens", || UnixStream::connect(agent.socket()).is_ok().then_some(()));
        agent
    }

    fn socket(&self) -> PathBuf {
        self.world.path("a.sock")
    }

    fn until<T>(&self, what: &str, is: impl Fn() -> Option<T>) -> T {
        let deadline = Instant::now() + seconds(90);
        loop {
            if let Some(found) = is() {
                return found;
            }
            let log = std::fs::read_to_string(self.world.path("agent.log"));
            assert!(Instant::now() < deadline, "{what}: {log:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A request that was sent: its answer is read from here.
    fn send(&self, method: &str, path: &str, body: &str) -> UnixStream {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(seconds(60))).unwrap();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.0\r\nHost: agent\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all((head + body).as_bytes()).unwrap();
        stream
    }

    /// Status and body.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(method, path, body).read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{method} {path}: {text:?}"));
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// Registers a job of one task; the id of its allocation, once it runs.
    fn run(&self, id: &str, task: &Value) -> String {
        let job = json!({
            "ID": id, "Name": id, "Type": "service",
            "TaskGroups": [{ "Name": "g", "Count": 1, "Tasks": [task] }],
        });
        let (status, text) = self.ask("PUT", "/v1/jobs", &json!({ "Job": job }).to_string());
        assert_eq!(status, 200, "{text}");
        self.until("its task runs", || {
            let (_, text) = self.ask("GET", &format!("/v1/job/{id}/allocations"), "");
            let allocs: Value = serde_json::from_str(&text).ok()?;
            (allocs[0]["ClientStatus"] == "running").then(|| allocs[0]["ID"].as_str().unwrap().to_owned())
        })
    }

    fn stop(&self, id: &str) {
        self.ask("DELETE", &format!("/v1/job/{id}?purge=true"), "");
        self.until("it is stopped", || {
            let (_, text) = self.ask("GET", "/v1/allocations", "");
            let allocs: Value = serde_json::from_str(&text).ok()?;
            let mut of_it = allocs.as_array()?.iter().filter(|alloc| alloc["JobID"] == id);
            of_it.all(|alloc| alloc["ClientStatus"] == "complete").then_some(())
        });
    }
}

#[test]
fn d4_the_api_reads_on_demand_what_nobody_collects() {
    need_root!();
    let engine = match TestEngine::start() {
        Ok(engine) => engine,
        Err(reason) => {
            println!("SKIP: d4_the_api_reads_on_demand_what_nobody_collects: {reason}");
            return;
        }
    };
    for off in [true, false] {
        let world = World::new();
        let agent = Agent::start(&world, &engine, off);
        let config = json!({ "image": IMAGE, "network_mode": "none", "command": "/bin/sh", "args": ["-c", SCRIPT] });
        // Switched off by the driver's configuration, or by the task's.
        let task = json!({
            "Name": "t", "Driver": "docker", "Config": config, "LogConfig": { "Disabled": !off },
            "KillTimeout": 100_000_000, "Resources": { "CPU": 50, "MemoryMB": 64 },
        });
        let id = agent.run("quiet", &task);
        let logs = |query: &str| agent.ask("GET", &format!("/v1/client/fs/logs/{id}?task=t&{query}"), "");
        agent.until("its first line", || (logs("type=stdout&plain=true").1 == "seen\n").then_some(()));
        for (query, expected) in [
            ("type=stderr&plain=true", "too\n"),
            ("type=stdout&plain=true&offset=2", "en\n"),
            ("type=stdout&plain=true&origin=end&offset=3", "en\n"),
            ("type=stdout&plain=true&origin=end&offset=1000", "seen\n"),
            ("type=stdout&plain=true&origin=end", ""),
        ] {
            assert_eq!(logs(query), (200, expected.to_owned()), "{query}");
        }
        // "seen\n", in a frame.
        let framed = logs("type=stdout").1;
        assert!(framed.contains("\"Data\":\"c2Vlbgo=\"") && framed.contains("t.stdout.0"), "{framed}");

        // Who follows reads what comes.
        let path = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&follow=true&origin=end&offset=2&plain=true");
        let mut following = agent.send("GET", &path, "");
        let dir = world.data_dir().join("alloc").join(&id);
        let mut text = String::new();
        let deadline = Instant::now() + seconds(60);
        let mut read_until = |wanted: &str| {
            while !text.contains(wanted) {
                let mut bytes = [0; 4096];
                let read = following.read(&mut bytes).unwrap();
                text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
                assert!(read > 0 && Instant::now() < deadline, "{text}");
            }
        };
        // What is written before the end is looked for would be before the end.
        read_until("n\n");
        std::fs::write(dir.join("alloc/go"), "").unwrap();
        read_until("late\n");
        assert!(text.contains("n\n") && !text.contains("seen"), "{text}");
        assert!(std::fs::read_dir(dir.join("alloc/logs")).unwrap().next().is_none(), "nothing is collected");

        // A driver that keeps nothing.
        let task = json!({
            "Name": "t", "Driver": "raw_exec", "Config": { "command": "/bin/sleep", "args": ["1000"] },
            "LogConfig": { "Disabled": true }, "KillTimeout": 100_000_000, "Resources": { "CPU": 50, "MemoryMB": 64 },
        });
        let other = agent.run("silent", &task);
        let (status, text) = agent.ask("GET", &format!("/v1/client/fs/logs/{other}?task=t&type=stdout&plain=true"), "");
        assert!(status == 404 && text.contains("not found"), "{status} {text}");
        agent.stop("silent");
        agent.stop("quiet");
        // A stream of a task that has ended ends too.
        let mut rest = String::new();
        following.read_to_string(&mut rest).unwrap();
        drop(agent);
    }
    engine.end();
}
