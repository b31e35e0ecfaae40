//! The processes that hold a plain user's network. Run as a role of this executable, never in the process that asked for them.
//!
//! ```text
//! starter ─▶ keeper: pid 1 of a pid namespace, root of a user namespace, in the host's network
//!               ├─▶ pause: in a user namespace below that one, where the user is nobody special, and in the network namespace
//!               └─▶ pasta: copies packets between the sockets of the host and an interface of the network namespace
//! ```
//!
//! All of them end with the keeper, as it is the first process of their pid namespace: killing it removes the network. Tasks enter
//! the namespaces of the pause process, and have no rights over the keeper or pasta.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::poll;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::WaitOptions;
use serde::{Deserialize, Serialize};

use super::program::{self, is_ready};
use crate::spec::Role;
use crate::spec::json;
use crate::sys::process::{self, Child, flags};
use crate::sys::{children, net, prctl};

/// The program that connects namespaces.
pub(super) const PROGRAM: &str = "pasta";
/// How long pasta may take to get ready.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most bytes of its messages that are kept.
const MOST_SAID: u64 = 4096;
/// The pause before pasta is started again, which doubles with each failure up to the second one.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// What a keeper holds: the argument of its role, in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeper {
    /// The file of the namespace, by which the process is found.
    pub(super) file: PathBuf,
    /// The user's own ids.
    pub(super) own: [u32; 2],
    /// Further ids: first number in the inner user namespace, first number in the outer one, how many. If there are none, the
    /// starter writes the maps of the outer one, else the process that asked for the network does.
    pub(super) ranges: Vec<[u32; 3]>,
    /// The program pasta and its arguments, except for the namespaces; `None` for a network that leads nowhere.
    pub(super) pasta: Option<(PathBuf, Vec<String>)>,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The network is there, and this is the pause process.
    Made(i32),
    /// What failed, and why.
    Failed(String),
}

fn at(step: &'static str) -> impl Fn(io::Error) -> String {
    move |error| format!("{step}: {error}")
}

impl Keeper {
    /// The starter: starts the keeper in its namespaces, prints its pid, lets it go when it is told to on stdin, and ends. The
    /// process must have no threads.
    #[must_use]
    pub fn run(&self) -> i32 {
        match self.start() {
            Ok(()) => 0,
            Err(why) => {
                answer(&Answer::Failed(why));
                1
            }
        }
    }

    fn start(&self) -> Result<(), String> {
        // A terminal's signals are for the process that asked.
        rustix::process::setsid().map_err(|e| at("start a session")(e.into()))?;
        prctl::reset_signals().map_err(at("reset signals"))?;
        let (gate, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| at("make a pipe")(e.into()))?;
        let body = || self.keep(gate);
        let (child, ours) = process::spawn_copy(flags::NEW_USER | flags::NEW_PID, None, ours, body)
            .map_err(at("make a user and a pid namespace (agentbin doctor says how to allow that)"))?;
        if self.ranges.is_empty() {
            let [uid, gid] = self.own;
            let write = || {
                process::write_proc_file(child.pid, "setgroups", "deny")?;
                write_maps(child.pid, [&format!("0 {uid} 1"), &format!("0 {gid} 1")])
            };
            write().map_err(at("map the user into a user namespace"))?;
        }
        let told = writeln!(io::stdout(), "{}", child.pid).and_then(|()| io::stdin().read_exact(&mut [0]));
        // Whoever asked has noted the keeper by now. If he has ended, the keeper ends, as its gate is closed.
        told.and_then(|()| Ok(rustix::io::write(&ours, &[0])?)).map_err(at("hear from who asked")).map(drop)
    }

    /// The keeper.
    fn keep(&self, gate: OwnedFd) {
        if is_let_go(gate) {
            prctl::set_name(Role::NetworkKeeper.name());
            let made = self.make();
            answer(&made.as_ref().map_or_else(|why| Answer::Failed(why.clone()), |(_, pid)| Answer::Made(*pid)));
            if let Ok((pause, pid)) = made
                && become_silent().is_ok()
            {
                self.watch(&pause, pid);
            }
        }
    }

    /// Starts the pause process and pasta. Also returns the pid that the pause process has outside.
    fn make(&self) -> Result<(Child, i32), String> {
        let (gate, ours) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| at("make a pipe")(e.into()))?;
        let (heard, says) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| at("make a pipe")(e.into()))?;
        let spawned = process::spawn_copy(flags::NEW_USER | flags::NEW_NET, None, ours, || pause(gate, says.into()));
        let (pause, ours) = spawned.map_err(at("make a network namespace"))?;
        let mut heard = File::from(heard);
        let mut number = [0; 4];
        heard.read_exact(&mut number).map_err(at("hear from the process in the network namespace"))?;
        let pid = i32::from_ne_bytes(number);
        let lines = |own: u32| {
            let own = format!("{own} 0 1\n");
            self.ranges.iter().fold(own, |all, [inside, outside, count]| format!("{all}{inside} {outside} {count}\n"))
        };
        let maps = self.own.map(lines);
        write_maps(pid, [&maps[0], &maps[1]]).map_err(at("map the user into the inner user namespace"))?;
        let let_go = rustix::io::write(&ours, &[0]).map_err(io::Error::from);
        let_go.and_then(|_| heard.read_exact(&mut [0])).map_err(at("bring the interface lo up"))?;
        self.connect(pid).map_err(|why| format!("{PROGRAM}: {why}"))?;
        Ok((pause, pid))
    }

    /// Starts pasta, which goes on in the background when it is ready.
    fn connect(&self, pause: i32) -> Result<(), String> {
        let Some((program, words)) = &self.pasta else { return Ok(()) };
        let mut command = Command::new(program);
        command.args(words);
        for (option, name) in [("--userns", "user"), ("--netns", "net")] {
            command.arg(option).arg(format!("/proc/{pause}/ns/{name}"));
        }
        command.env_clear().env("PATH", program::PATH).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut own = children::spawn(&mut command).map_err(|error| format!("{}: {error}", program.display()))?;
        let child = &mut own.0;
        let deadline = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        let ended = process::open_pidfd(child.id().cast_signed()).and_then(|pidfd| {
            let in_time = is_ready(&pidfd, deadline)?;
            // What it has said is in the pipe. A process in the background may still have it open.
            if let Some(stderr) = &mut child.stderr
                && in_time
                && is_ready(&*stderr, deadline)?
            {
                let mut piece = [0; MOST_SAID as usize];
                let length = stderr.read(&mut piece)?;
                said.extend_from_slice(&piece[..length]);
            }
            Ok(in_time)
        });
        if !matches!(ended, Ok(true)) {
            // It may have ended meanwhile.
            let _ = child.kill();
        }
        let status = child.wait().map_err(at("wait for pasta"))?;
        let said = String::from_utf8_lossy(&said);
        // It also says that there is no system log.
        let said: Vec<&str> = said.lines().filter(|line| !line.contains("syslog")).map(str::trim).collect();
        match ended {
            Ok(true) if status.success() => Ok(()),
            Ok(true) if !said.is_empty() => Err(said.join("; ")),
            Ok(true) => Err(match status.signal() {
                Some(signal) => format!("it was killed by signal {signal}"),
                None => format!("it ended with {status}"),
            }),
            Ok(false) => Err(format!("it was killed because it was not ready after {} s", PATIENCE.as_secs())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Starts pasta again when it has ended, and returns when the pause process has.
    fn watch(&self, pause: &Child, pid: i32) {
        loop {
            match rustix::process::wait(WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(Some((ended, _))) if ended.as_raw_nonzero().get() != pause.pid => {}
                _ => return,
            }
            let mut delay = AGAIN.0;
            loop {
                if is_ready(&pause.pidfd, Instant::now() + delay).unwrap_or(true) {
                    return;
                }
                if self.connect(pid).is_ok() {
                    break;
                }
                delay = (delay * 2).min(AGAIN.1);
            }
        }
    }
}

/// The process in the network namespace. Says which pid it has outside, as `/proc` shows it; waits for its ids to be mapped; and
/// exists.
fn pause(gate: OwnedFd, mut says: File) {
    prctl::set_name("network-pause");
    let outside = std::fs::read_link("/proc/self").ok().and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    let Some(pid) = outside else { return };
    let made = says.write_all(&pid.to_ne_bytes()).is_ok() && is_let_go(gate) && net::loopback_up().is_ok();
    if made && says.write_all(&[0]).is_ok() && process::close_all().is_ok() {
        // It has nothing to wait for: it is killed with its pid namespace.
        while matches!(poll(&mut [], None), Ok(_) | Err(rustix::io::Errno::INTR)) {}
    }
}

/// Whether a byte comes before the other end is closed.
fn is_let_go(gate: OwnedFd) -> bool {
    File::from(gate).read_exact(&mut [0]).is_ok()
}

/// The maps of users and of groups. Groups first: they are of no use without users.
fn write_maps(pid: i32, [users, groups]: [&str; 2]) -> io::Result<()> {
    process::write_proc_file(pid, "gid_map", groups)?;
    process::write_proc_file(pid, "uid_map", users)
}

fn answer(answer: &Answer) {
    // If whoever asked has ended, nobody hears it.
    let _ = json::to_string(answer).map(|text| writeln!(io::stdout(), "{text}"));
}

/// Closes stdin, stdout and stderr for whoever is at their other ends.
fn become_silent() -> io::Result<()> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}
