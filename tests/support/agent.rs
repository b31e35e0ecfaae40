//! The agent as another process, its API over its socket, and the real `nomad` command against it.
#![allow(dead_code, reason = "every test program uses a part")]
#![allow(
    clippy::disallowed_methods,
    reason = "the agent is another process: what it does is looked for until a deadline"
)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::world::secrets::SECRET;
use crate::world::{Out, World, seconds};

/// An agent, killed at the end of its test if it still lives then.
pub struct Agent<'a> {
    pub world: &'a World,
    pub child: Child,
}

pub fn socket(world: &World) -> PathBuf {
    world.path("a.sock")
}

pub const CONFIG: &str = "plugin \"raw_exec\" {\n  config {\n    enabled = true\n  }\n}\n";

pub fn command(world: &World) -> Command {
    command_of(Path::new(env!("CARGO_BIN_EXE_agentbin")), world)
}

pub fn command_of(program: &Path, world: &World) -> Command {
    let config = world.file("agent.hcl", CONFIG);
    let mut command = Command::new(program);
    command.arg("agent").arg("--data-dir").arg(world.data_dir()).arg("--config").arg(config);
    command.arg("--listen").arg(format!("unix://{}", socket(world).display())).stdin(Stdio::null());
    command
}

impl Agent<'_> {
    pub fn start(world: &World) -> Agent<'_> {
        Agent::start_with(world, &[])
    }

    pub fn start_with<'w>(world: &'w World, args: &[&str]) -> Agent<'w> {
        Agent::start_command(world, command(world).args(args))
    }

    pub fn start_command<'w>(world: &'w World, command: &mut Command) -> Agent<'w> {
        let log = std::fs::File::options().create(true).append(true).open(world.path("agent.log")).unwrap();
        let child = command.stderr(log).spawn().unwrap();
        let mut agent = Agent { world, child };
        let deadline = Instant::now() + seconds(60);
        // A connect may reach the socket of an agent that was killed, as long as a process that it has just forked holds it.
        while try_ask(world, "GET", "/v1/status/leader", "").is_err() {
            if let Some(status) = agent.child.try_wait().unwrap() {
                panic!("the agent ended with {status}: {}", agent.log());
            }
            assert!(Instant::now() < deadline, "the agent does not listen: {}", agent.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        agent
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.world.path("agent.log")).unwrap_or_default()
    }

    pub fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        try_ask(self.world, method, path, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// All events that there are, and those of a second more.
    pub fn events(&self) -> String {
        let mut stream = UnixStream::connect(socket(self.world)).unwrap();
        stream.write_all(b"GET /v1/event/stream?index=0 HTTP/1.1\r\nHost: agent\r\n\r\n").unwrap();
        let (mut text, deadline) = (Vec::new(), Instant::now() + seconds(1));
        let mut bytes = vec![0; 1 << 16];
        while let Some(left) = deadline.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            stream.set_read_timeout(Some(left)).unwrap();
            match stream.read(&mut bytes) {
                Ok(0) => panic!("the stream of events has ended: {}", String::from_utf8_lossy(&text)),
                Ok(length) => text.extend_from_slice(&bytes[..length]),
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    pub fn json(&self, method: &str, path: &str, body: &Value) -> Value {
        let (status, text) = self.ask(method, path, &body.to_string());
        assert_eq!(status, 200, "{method} {path}: {text}\n{}", self.log());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{method} {path}: {error}: {text}"))
    }

    pub fn get(&self, path: &str) -> Value {
        self.json("GET", path, &Value::Null)
    }

    pub fn register(&self, job: &Value) -> Value {
        self.json("PUT", "/v1/jobs", &json!({ "Job": job }))
    }

    /// Waits until something is so.
    pub fn until<T>(&self, what: &str, mut is: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + seconds(90);
        loop {
            if let Some(found) = is() {
                return found;
            }
            assert!(Instant::now() < deadline, "{what}: {:#}\n{}", self.get("/v1/allocations"), self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn allocs(&self, job: &str) -> Vec<Value> {
        let Value::Array(all) = self.get(&format!("/v1/job/{job}/allocations?all=true")) else { panic!() };
        all
    }

    /// Waits for an allocation of a job that is so.
    pub fn alloc(&self, job: &str, status: &str, but: &str) -> Value {
        self.until(&format!("an allocation of {job} is {status}"), || {
            self.allocs(job).into_iter().find(|alloc| alloc["ClientStatus"] == status && alloc["ID"] != but)
        })
    }

    pub fn output(&self, alloc: &Value, task: &str) -> String {
        let id = alloc["ID"].as_str().unwrap();
        let path = format!("/v1/client/fs/logs/{id}?task={task}&type=stdout&plain=true&follow=false");
        let (status, text) = self.ask("GET", &path, "");
        assert_eq!(status, 200, "{text}");
        text
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id().try_into().unwrap()).unwrap(), signal).unwrap();
    }

    /// Its jobs were stopped: waits for the end of what runs, ends it, and looks that nothing is left.
    pub fn wind_up(self) {
        self.until("nothing runs", || {
            let ended = |a: &Value| !matches!(a["ClientStatus"].as_str(), Some("pending" | "running"));
            self.get("/v1/allocations?namespace=*").as_array().unwrap().iter().all(ended).then_some(())
        });
        assert_eq!(self.ask("PUT", "/v1/system/gc", "").0, 200);
        let world = self.world;
        let _status = self.end(Signal::TERM);
        world.assert_clean();
    }

    /// Ends it with a signal and waits for that.
    pub fn end(mut self, signal: Signal) -> std::process::ExitStatus {
        self.signal(signal);
        self.child.wait().unwrap()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// One request to the agent of this world, which may be killed meanwhile.
pub fn try_ask(world: &World, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(socket(world))?;
    stream.set_read_timeout(Some(seconds(60)))?;
    let length = body.len();
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    // At once: who is answered before all of its request was read may be cut off.
    stream.write_all((head + body).as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let broken = || std::io::Error::other(format!("broken off: {text:?}"));
    assert!(!text.contains(SECRET), "{method} {path} shows a secret: {text}");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Ok((status, if chunked { unchunked(body).ok_or_else(broken)? } else { body.to_owned() }))
}

/// The text of chunks, unless they are broken off.
fn unchunked(body: &str) -> Option<String> {
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        text += after.get(..size)?;
        rest = after.get(size..)?.trim_start_matches("\r\n");
    }
    Some(text)
}

pub fn job(id: &str, kind: &str, script: &str, group: Value) -> Value {
    let mut all = json!({
        "Name": "g", "Count": 1,
        "Tasks": [{
            "Name": "t", "Driver": "raw_exec", "Config": { "command": "/bin/sh", "args": ["-c", script] },
            "Resources": { "CPU": 20, "MemoryMB": 32 }, "KillTimeout": 2_000_000_000_i64,
        }],
        "RestartPolicy": { "Attempts": 0, "Mode": "fail", "Interval": 1_800_000_000_000_i64, "Delay": 0 },
    });
    let Value::Object(group) = group else { panic!() };
    all.as_object_mut().unwrap().extend(group);
    json!({ "ID": id, "Name": id, "Type": kind, "Datacenters": ["*"], "TaskGroups": [all] })
}

/// The agent's own memory, in KiB: without the pages of its file, of which a build for tests has many.
pub fn own_memory(agent: &Agent<'_>) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", agent.child.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

pub const WAITS: &str = "trap 'exit 0' INT TERM; echo up; while :; do sleep 1 & wait $!; done";

pub fn pid_of(agent: &Agent<'_>, alloc: &Value, task: &str) -> String {
    agent.until("the task has said its pid", || {
        let text = agent.output(alloc, task);
        Some(text.lines().find_map(|line| line.strip_prefix("pid "))?.to_owned())
    })
}

pub fn lives(pid: &str) -> bool {
    // Who is dead and not yet waited for does not live.
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

/// A command of our own about this agent.
pub fn own_command(world: &World, args: &[&str], input: &str) -> Out {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentbin"));
    command.args(args).arg("-socket").arg(socket(world)).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // Who does not read it may have ended.
    let _ended = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap().into()
}

/// What `scripts/nomad` has built, if it has.
pub fn nomad() -> Option<PathBuf> {
    let given = std::env::var_os("NOMAD").and_then(|all| std::env::split_paths(&all).next());
    let built = || {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/nomad");
        let mut found: Vec<_> =
            std::fs::read_dir(dir).ok()?.filter_map(|e| Some(e.ok()?.path().join("nomad"))).collect();
        found.sort();
        found.into_iter().rfind(|path| path.is_file())
    };
    given.or_else(built)
}

/// The `nomad` command against this agent: whether it succeeded, and all that it says.
pub fn nomad_says(nomad: &Path, world: &World, args: &[&str]) -> (bool, String) {
    let mut command = Command::new(nomad);
    command.args(args).env("NOMAD_ADDR", format!("unix://{}", socket(world).display())).stdin(Stdio::null());
    let out = command.env_remove("NOMAD_TOKEN").output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(!text.contains(SECRET), "nomad {args:?} shows a secret: {text}");
    (out.status.success(), text)
}
