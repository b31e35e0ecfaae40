//! A Docker Engine of the test program's own, and a proxy in front of it that loses answers.
#![allow(dead_code, reason = "every test program uses a part")]
#![expect(clippy::disallowed_methods, reason = "an engine comes up and goes until a deadline; there is no event")]

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use agentbin::docker::{Deadlines, Endpoint, Engine};
use tempfile::TempDir;

/// The image that all tests use: a busybox.
pub const IMAGE: &str = "busybox:test";
const COMMANDS: [&str; 16] = [
    "sh", "sleep", "echo", "cat", "true", "false", "id", "env", "ls", "seq", "kill", "stty", "tr", "head", "mount",
    "yes",
];

fn slower() -> u32 {
    std::env::var("AGENTBIN_TEST_SLOWER").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// A dockerd with directories of its own.
pub struct TestEngine {
    dir: TempDir,
    child: Mutex<Child>,
    options: Vec<String>,
}

impl TestEngine {
    /// Starts it and waits until it answers; the reason why there is none here.
    pub fn start() -> Result<TestEngine, String> {
        TestEngine::with(&[])
    }

    /// With more options on its command line; and those of `AGENTBIN_DOCKERD`, for machines that need some.
    pub fn with(options: &[&str]) -> Result<TestEngine, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root".to_owned());
        }
        if Command::new("dockerd").arg("--version").output().is_err() {
            return Err("needs dockerd and root: scripts/setup installs docker.io".to_owned());
        }
        let dir = tempfile::Builder::new().prefix("agentbin-docker-").tempdir().unwrap();
        let machine = std::env::var("AGENTBIN_DOCKERD").unwrap_or_default();
        let options = options.iter().copied().chain(machine.split_whitespace());
        let options: Vec<String> = options.map(str::to_owned).collect();
        let child = Mutex::new(spawn(dir.path(), &options));
        let engine = TestEngine { dir, child, options };
        engine.wait_until_it_answers()?;
        engine.import(IMAGE, &[]);
        engine.import("pause:test", &["-c", "ENTRYPOINT [\"/bin/sleep\", \"1000000\"]"]);
        Ok(engine)
    }

    fn wait_until_it_answers(&self) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_mins(2) * slower();
        while !ping(&self.socket()) {
            let ended = self.child.lock().unwrap().try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                return Err(format!("dockerd does not come up: {tail:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn api(&self) -> Engine {
        Engine::new(&Endpoint::Unix(self.socket()), Deadlines::default()).unwrap()
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.lock().unwrap().id()).unwrap()
    }

    /// The command line of docker, on this engine.
    pub fn docker(&self, args: &[&str]) -> String {
        let out = Command::new("docker").arg("-H").arg(self.endpoint()).args(args).output().unwrap();
        assert!(out.status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().trim().to_owned()
    }

    fn import(&self, name: &str, options: &[&str]) {
        let tar = self.dir.path().join("image.tar");
        std::fs::write(&tar, busybox()).unwrap();
        self.docker(&[&["import"], options, &[tar.to_str().unwrap(), name]].concat());
        std::fs::remove_file(tar).unwrap();
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).unwrap();
    }

    /// Kills the engine, as a crash would, and starts it anew.
    pub fn crash_and_restart(&self) {
        self.restart(nix::sys::signal::Signal::SIGKILL);
    }

    /// Ends it with a signal and starts it anew.
    pub fn restart(&self, signal: nix::sys::signal::Signal) {
        let mut child = self.child.lock().unwrap();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        child.wait().unwrap();
        // What it started dies with it.
        let pid_file = self.dir.path().join("exec/containerd/containerd.pid");
        let _gone_already = std::fs::remove_file(self.dir.path().join("pid"));
        let deadline = Instant::now() + Duration::from_mins(1) * slower();
        while let Some(pid) = std::fs::read_to_string(&pid_file).ok().and_then(|pid| pid.trim().parse::<i32>().ok()) {
            if !Path::new(&format!("/proc/{pid}")).exists() || Instant::now() > deadline {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        *child = spawn(self.dir.path(), &self.options);
        drop(child);
        self.wait_until_it_answers().unwrap();
    }

    /// Ids of all containers, whatever their state, that have the label.
    pub async fn containers(&self, label: &str) -> Vec<String> {
        self.api().list(Some(label), true).await.unwrap().into_iter().map(|container| container.id).collect()
    }
}

/// A root with a busybox, as tar.
pub fn busybox() -> Vec<u8> {
    let root = tempfile::tempdir().unwrap();
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "root"] {
        std::fs::create_dir(root.path().join(folder)).unwrap();
    }
    std::fs::write(root.path().join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    std::fs::copy(busybox.expect("busybox-static is installed"), root.path().join("bin/busybox")).unwrap();
    for command in COMMANDS {
        std::os::unix::fs::symlink("busybox", root.path().join("bin").join(command)).unwrap();
    }
    let made = Command::new("tar").arg("-C").arg(root.path()).args(["-cf", "-", "."]).output().unwrap();
    assert!(made.status.success());
    made.stdout
}

fn spawn(dir: &Path, options: &[String]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("log")).unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "TERM", "dockerd", "--bridge=none", "--iptables=false", "--ip6tables=false"])
        .args(["--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
        .args(["--host", &format!("unix://{}", path("sock")), "--max-concurrent-downloads", "2"])
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::from(log.try_clone().unwrap()))
        .stderr(Stdio::from(log));
    // It goes when this program is killed, which to the kernel is the thread that started it: one that stays.
    let (sender, child) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        sender.send(command.spawn().unwrap()).unwrap();
        loop {
            std::thread::park();
        }
    });
    child.recv().unwrap()
}

fn ping(socket: &Path) -> bool {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<bool, std::io::Error>(answer.contains(" 200 "))
    };
    ask().unwrap_or(false)
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        self.end();
    }
}

impl TestEngine {
    /// Removes all containers and ends the engine; what a static needs, which nobody drops.
    pub fn end(&self) {
        use nix::sys::signal::Signal;
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), Signal::SIGCONT);
        if ping(&self.socket()) {
            let list = Command::new("docker").arg("-H").arg(self.endpoint()).args(["ps", "-aq"]).output();
            let ids = list.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
            let ids: Vec<&str> = ids.split_whitespace().collect();
            if !ids.is_empty() {
                let _ = Command::new("docker").arg("-H").arg(self.endpoint()).args(["rm", "-f"]).args(ids).output();
            }
        }
        let mut child = self.child.lock().unwrap();
        if child.try_wait().unwrap().is_some() {
            return;
        }
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let _ended = nix::sys::signal::kill(pid, Signal::SIGTERM);
        let deadline = Instant::now() + Duration::from_mins(1);
        while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ended = child.kill();
        let _ended = child.wait();
        // What a killed engine leaves: mounts below its directories.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let dir = self.dir.path().display().to_string();
        for mount in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)).filter(|m| m.starts_with(&dir)) {
            let _ = nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH);
        }
        let _left = std::fs::remove_dir_all(self.dir.path());
    }
}

/// Which call is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Create,
    Start,
    Stop,
    Remove,
    Inspect,
}

pub const ROUTES: [Route; 5] = [Route::Create, Route::Start, Route::Stop, Route::Remove, Route::Inspect];

/// What happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is done, and the connection ends without an answer.
    DropAnswer,
    /// It is not done; 500.
    Error,
    /// It is done; 500.
    ErrorAfter,
    /// It is done, and nothing is answered.
    Hang,
    /// It is not done, and nothing is answered.
    HangBefore,
    /// It is done, and half of the answer comes.
    Truncate,
    /// It is not done, and the connection ends.
    Disconnect,
    /// It is not done; 400, which nobody tries again.
    Refuse,
    /// It is done, and the answer does not say yet that the container lacked memory.
    NotYetOom,
}

pub const FAULTS: [Fault; 7] = [
    Fault::DropAnswer,
    Fault::Error,
    Fault::ErrorAfter,
    Fault::Hang,
    Fault::HangBefore,
    Fault::Truncate,
    Fault::Disconnect,
];

/// Stands between a driver and an engine. One call, the `nth` of its kind, goes wrong; for 0 each of its kind.
pub struct Proxy {
    dir: TempDir,
    script: Arc<Mutex<Script>>,
}

#[derive(Debug, Default)]
struct Script {
    plan: Option<(Route, Fault, u32)>,
    seen: u32,
    hit: bool,
    log: Vec<String>,
    creates: Vec<serde_json::Value>,
    ended: bool,
}

impl Proxy {
    pub fn new(engine: &TestEngine, plan: Option<(Route, Fault, u32)>) -> Proxy {
        let dir = tempfile::Builder::new().prefix("agentbin-proxy-").tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("sock")).unwrap();
        let script = Arc::new(Mutex::new(Script { plan, ..Script::default() }));
        let (upstream, shared) = (engine.socket(), Arc::clone(&script));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.lock().unwrap().ended {
                    return;
                }
                let (upstream, shared) = (upstream.clone(), Arc::clone(&shared));
                std::thread::spawn(move || serve(client, &upstream, &shared));
            }
        });
        Proxy { dir, script }
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.dir.path().join("sock").display())
    }

    /// Whether the call came.
    pub fn was_hit(&self) -> bool {
        self.script.lock().unwrap().hit
    }

    /// All calls, in order.
    pub fn log(&self) -> Vec<String> {
        self.script.lock().unwrap().log.clone()
    }

    /// What containers were asked for since the last time.
    pub fn creates(&self) -> Vec<serde_json::Value> {
        std::mem::take(&mut self.script.lock().unwrap().creates)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.script.lock().unwrap().ended = true;
        let _ = UnixStream::connect(self.dir.path().join("sock"));
    }
}

fn route(head: &str) -> Option<Route> {
    let mut words = head.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let path = path.split('?').next()?;
    match method {
        "POST" if path.ends_with("/containers/create") => Some(Route::Create),
        "POST" if path.contains("/containers/") && path.ends_with("/start") => Some(Route::Start),
        "POST" if path.ends_with("/stop") || path.ends_with("/kill") => Some(Route::Stop),
        "DELETE" if path.contains("/containers/") => Some(Route::Remove),
        "GET" if path.contains("/containers/") && path.ends_with("/json") && !path.ends_with("containers/json") => {
            Some(Route::Inspect)
        }
        _ => None,
    }
}

fn serve(mut client: UnixStream, upstream: &Path, script: &Mutex<Script>) {
    let mut request = Vec::new();
    let mut buffer = [0; 16 * 1024];
    let head_end = loop {
        match client.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => request.extend_from_slice(&buffer[..length]),
        }
        if let Some(at) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let head = String::from_utf8_lossy(&request[..head_end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    while request.len() < head_end + length.unwrap_or(0) {
        match client.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => request.extend_from_slice(&buffer[..length]),
        }
    }
    let fault = {
        let mut script = script.lock().unwrap();
        script.log.push(head.lines().next().unwrap_or_default().to_owned());
        if route(&head) == Some(Route::Create) {
            script.creates.push(serde_json::from_slice(&request[head_end..]).unwrap_or_default());
        }
        match script.plan {
            Some((wanted, fault, nth)) if route(&head) == Some(wanted) => {
                script.seen += 1;
                let now = script.seen == nth || nth == 0;
                script.hit |= now;
                now.then_some(fault)
            }
            _ => None,
        }
    };
    let error = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\
                  Connection: close\r\n\r\n{\"message\":\"broken\"}";
    // Until the caller has had enough.
    let hold = |mut client: UnixStream| while matches!(client.read(&mut [0; 16]), Ok(1..)) {};
    match fault {
        Some(Fault::Disconnect) => return,
        Some(Fault::HangBefore) => return hold(client),
        Some(Fault::Error) => return drop(client.write_all(error)),
        Some(Fault::Refuse) => {
            let refusal = String::from_utf8_lossy(error).replacen("500 Internal Server Error", "400 Bad Request", 1);
            return drop(client.write_all(refusal.as_bytes()));
        }
        _ => {}
    }
    let Ok(mut engine) = UnixStream::connect(upstream) else { return };
    if fault.is_none() {
        if engine.write_all(&request).is_err() {
            return;
        }
        let (Ok(mut from_client), Ok(mut to_engine)) = (client.try_clone(), engine.try_clone()) else { return };
        std::thread::spawn(move || {
            let _ended = std::io::copy(&mut from_client, &mut to_engine);
            let _ended = to_engine.shutdown(std::net::Shutdown::Write);
        });
        let _ended = std::io::copy(&mut engine, &mut client);
        let _ended = client.shutdown(std::net::Shutdown::Both);
        return;
    }
    // The whole answer, before any of it is lost.
    let closing = head.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    let mut answer = Vec::new();
    let asked = engine.write_all(closing.as_bytes()).and_then(|()| engine.write_all(&request[head_end..]));
    let _ended = asked.and_then(|()| engine.read_to_end(&mut answer));
    match fault {
        Some(Fault::ErrorAfter) => drop(client.write_all(error)),
        Some(Fault::Hang) => hold(client),
        Some(Fault::Truncate) => drop(client.write_all(&answer[..answer.len() / 2])),
        Some(Fault::NotYetOom) => {
            // Of the same length.
            let answer = String::from_utf8_lossy(&answer).replace("\"OOMKilled\":true", "\"NotYetOom\":true");
            drop(client.write_all(answer.as_bytes()));
        }
        _ => {}
    }
}
