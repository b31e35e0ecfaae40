//! The machine that the tests run in: its shell, its systemd, its boots, and what processes there are.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Leaves a test that does not run in the machine of `scripts/guest --disk`.
macro_rules! need_disk {
    () => {
        if crate::machine::boot() == 0 {
            let name = std::thread::current().name().unwrap_or("disk").to_owned();
            println!("SKIP: {name}: runs in the machine of scripts/guest --disk");
            return;
        }
    };
}
pub(crate) use need_disk;

/// The number of this boot, from 1; 0 on any other machine.
pub fn boot() -> u32 {
    std::env::var("AGENTBIN_GUEST_BOOT").ok().and_then(|boot| boot.parse().ok()).unwrap_or(0)
}

/// The id of this boot.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// What a shell's script printed, and whether it succeeded.
pub fn try_sh(script: &str) -> (bool, String) {
    let out = Command::new("bash").args(["-c", script]).stdin(Stdio::null()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out.status.success(), text.trim().to_owned())
}

/// The same of one that succeeds.
pub fn sh(script: &str) -> String {
    let (well, text) = try_sh(script);
    assert!(well, "{script}: {text}");
    text
}

/// Waits until something is there.
pub fn until<T>(what: &str, is: impl FnMut() -> Option<T>) -> T {
    in_time(is).unwrap_or_else(|| late(what))
}

/// Waits until a shell's script finds nothing any more.
pub fn until_none(what: &str, script: &str) {
    let mut left = String::new();
    let none = in_time(|| {
        left = sh(script);
        left.is_empty().then_some(())
    });
    none.unwrap_or_else(|| late(&format!("{what} is left, but there is\n{left}\n")));
}

fn in_time<T>(mut is: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_mins(8);
    loop {
        let found = is();
        if found.is_some() || Instant::now() > deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn late(what: &str) -> ! {
    let log = try_sh("systemctl --no-pager --failed; journalctl --no-pager --lines 60 --output cat").1;
    panic!("{what}: not in time\n{log}")
}

/// A property of a unit.
pub fn property(unit: &str, name: &str) -> String {
    sh(&format!("systemctl show --value -p {name} {unit}"))
}

/// Writes a file, with the directories above it.
pub fn write(path: &str, text: &str) {
    std::fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Goes down as `systemctl reboot` does. The test begins again with the next boot.
pub fn reboot() -> ! {
    sh("systemctl reboot");
    wait_for_the_end()
}

/// Goes down as a loss of power does: nothing is written that is not on the disk.
pub fn reset() -> ! {
    std::fs::write("/proc/sysrq-trigger", "b").unwrap();
    wait_for_the_end()
}

fn wait_for_the_end() -> ! {
    loop {
        std::thread::sleep(Duration::from_mins(1));
    }
}

/// An HTTP API.
pub enum Api {
    /// Behind a socket.
    Unix(&'static str),
    /// On a port of loopback.
    Tcp(u16),
}

trait Stream: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> Stream for T {}

impl Api {
    fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let patience = Some(Duration::from_mins(2));
        Ok(match self {
            Api::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(patience)?;
                Box::new(stream)
            }
            Api::Tcp(port) => {
                let stream = TcpStream::connect(("127.0.0.1", *port))?;
                stream.set_read_timeout(patience)?;
                Box::new(stream)
            }
        })
    }

    /// The answer to a request, or why there is none.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, String> {
        let ask = || {
            let mut stream = self.connect()?;
            let body = if body.is_null() { String::new() } else { body.to_string() };
            // HTTP/1.0 has no chunks, and the connection ends with the answer.
            let length = body.len();
            let head = format!("{method} {path} HTTP/1.0\r\nHost: agent\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all((head + &body).as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = ask().map_err(|error| format!("{method} {path}: {error}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{method} {path}: {answer}"))?;
        if !head.contains(" 200 ") {
            return Err(format!("{method} {path}: {answer}"));
        }
        serde_json::from_str(body).map_err(|error| format!("{method} {path}: {error}: {answer}"))
    }

    /// What is there.
    pub fn get(&self, path: &str) -> Value {
        self.ask("GET", path, &Value::Null).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Registers a job.
    pub fn register(&self, job: &Value) {
        self.ask("PUT", "/v1/jobs", &serde_json::json!({ "Job": job })).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The allocations of a job; none while nobody answers.
    pub fn allocs(&self, job: &str) -> Vec<Value> {
        let all = self.ask("GET", &format!("/v1/job/{job}/allocations?all=true"), &Value::Null);
        all.ok().and_then(|all| all.as_array().cloned()).unwrap_or_default()
    }

    /// Waits until a job has one allocation with this status, and returns that.
    pub fn alloc(&self, job: &str, status: &str) -> Value {
        until(&format!("{job} is {status}; it is {:#?}", self.allocs(job)), || {
            self.allocs(job).into_iter().find(|alloc| alloc["ClientStatus"] == status)
        })
    }
}

/// A process: its number, and the path of its cgroup.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: u32,
    pub cgroup: String,
    pub cores: String,
}

/// The processes whose command line has a text in it.
pub fn processes(of: &str) -> Vec<Process> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    let mut found: Vec<Process> = pids
        .filter(|pid| *pid != own)
        .filter_map(|pid: u32| {
            let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).ok();
            let text = |name: &str| Some(String::from_utf8_lossy(&read(name)?).into_owned());
            let command = text("cmdline")?.replace('\0', " ");
            let cgroup = text("cgroup")?.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))?;
            let status = text("status")?;
            let cores = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned();
            command.contains(of).then_some(Process { pid, cgroup, cores })
        })
        .collect();
    found.sort();
    found
}
