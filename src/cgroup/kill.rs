//! Kills every process of a task, even if it forks, hides in child cgroups or freezes itself.

use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::error::{Error, Result};
use super::fs::{Backoff, Dir};
use super::member::{Member, TaskCgroup};
use super::regime::Regime;
use super::task::value;
use crate::spec::collections::BTreeSet;

/// How long a freeze may take before the kill continues without it: a process in an uninterruptible call delays it indefinitely.
const FREEZE: Duration = Duration::from_millis(100);
/// Interval after which the kill is repeated: on some kernels a concurrent fork escapes it.
const ROUND: Duration = Duration::from_millis(100);
/// Most pidfds that are held at once.
const AT_ONCE: usize = 128;

impl TaskCgroup {
    /// Kills every process in the cgroup and below, and returns when all are gone (zombies that wait for their parent do not
    /// count). Afterwards the cgroup is thawed and may be used again.
    ///
    /// v2 writes `cgroup.kill`, and signals remaining processes one by one; on kernels before 5.14, and on v1, all processes are
    /// frozen, killed and thawed, repeatedly until the cgroup is empty, so that no fork escapes. On v1 a process that left the
    /// freezer is found in the other hierarchies. A bare pid is never signalled: a pidfd is, after the pid was seen in the cgroup
    /// once more.
    ///
    /// # Errors
    /// Nothing is killed with [`Error::HostGiven`], with [`Error::BadPath`] for a tree's root, and with [`Error::Protected`] when
    /// process 1 or this process is in it. [`Error::Survivors`] at the deadline (the cgroup above may be frozen, or a process hangs
    /// in the kernel). [`Error::Io`], [`Error::Write`].
    pub fn kill_all(&self, deadline: Instant) -> Result<()> {
        if self.is_host_given() {
            return Err(Error::HostGiven(self.path()));
        }
        let (mut dirs, mut found) = (Vec::new(), BTreeSet::new());
        for member in self.members.iter().filter(|m| m.ours) {
            if let Some((dir, pids)) = guarded(member)? {
                dirs.push(dir);
                found.extend(pids);
            }
        }
        if dirs.is_empty() {
            return Ok(());
        }
        match self.regime {
            Regime::V2 if dirs[0].read_if_there("cgroup.events")?.is_some() => kill_v2(&dirs[0], deadline, true),
            Regime::V2 => Ok(()),
            Regime::V1 => {
                let freezer = self.member("freezer").filter(|m| m.ours).map(Member::dir_if_there).transpose()?;
                kill_v1(&dirs, freezer.flatten().as_ref(), found, deadline)
            }
            Regime::Off => Err(Error::Off),
        }
    }
}

/// Opens the directory and lists its processes; fails if killing them would kill process 1 or this process; `None` when the
/// directory is gone.
fn guarded(member: &Member) -> Result<Option<(Dir, Vec<i32>)>> {
    let Some(dir) = member.dir_if_there()? else { return Ok(None) };
    if member.relative.as_os_str().is_empty() || member.tree.is_root(&dir)? {
        return Err(Error::BadPath(dir.path));
    }
    let pids = dir.pids_recursive()?;
    match pids.iter().find(|p| is_protected(**p)) {
        Some(&pid) => Err(Error::Protected { path: dir.path, pid }),
        None => Ok(Some((dir, pids))),
    }
}

fn is_protected(pid: i32) -> bool {
    pid == 1 || pid == rustix::process::getpid().as_raw_nonzero().get()
}

fn survivors(dir: &Dir, pids: Vec<i32>) -> Error {
    Error::Survivors { path: dir.path.clone(), pids }
}

/// With `by_file` false it does not use `cgroup.kill`, as on kernels before 5.14.
fn kill_v2(dir: &Dir, deadline: Instant, by_file: bool) -> Result<()> {
    let mut by_file = by_file;
    // On some kernels a process that is cloned into a cgroup after a kill dies at once: so an empty cgroup, the usual case when a
    // task has ended, is not killed.
    while !wait_event(dir, "populated", 0, Instant::now())? {
        let round = deadline.min(Instant::now() + ROUND);
        by_file = by_file && dir.write_if_there("cgroup.kill", "1")?;
        if !by_file {
            dir.write_if_there("cgroup.freeze", "1")?;
            let killed = wait_event(dir, "frozen", 1, deadline.min(Instant::now() + FREEZE)).and_then(|_| {
                let (mut done, mut running) = (BTreeSet::new(), Vec::new());
                signal_all(dir, &mut done, &mut running)
            });
            dir.write_if_there("cgroup.freeze", "0")?;
            killed?;
        }
        if wait_event(dir, "populated", 0, round)? {
            break;
        }
        if Instant::now() >= deadline {
            return Err(survivors(dir, dir.pids_recursive()?));
        }
        // `cgroup.kill` signals thread group leaders, not processes: a process whose leader has ended while other threads run does
        // not receive it.
        signal_all(dir, &mut BTreeSet::new(), &mut Vec::new())?;
    }
    // Left frozen, it would stop the next task before its first instruction.
    dir.write_if_there("cgroup.freeze", "0")?;
    Ok(())
}

/// Waits until `key` in `cgroup.events` is `wanted`; true also when the cgroup is gone, false at `until`.
fn wait_event(dir: &Dir, key: &str, wanted: u64, until: Instant) -> Result<bool> {
    let failed = |e: std::io::Error| Error::io("read", &dir.path.join("cgroup.events"), e);
    let file = match dir.watch("cgroup.events") {
        Err(e) if e.is_gone() => return Ok(true),
        result => result?,
    };
    loop {
        let mut buffer = [0; 256];
        let text = match file.read_at(&mut buffer, 0) {
            Err(e) if e.raw_os_error() == Some(libc::ENODEV) => return Ok(true),
            length => String::from_utf8_lossy(&buffer[..length.map_err(failed)?]).into_owned(),
        };
        // Kernels before 5.2 have no v2 freezer, so there is nothing to wait for.
        if value(&text, key).is_none_or(|v| v == wanted) {
            return Ok(true);
        }
        if !poll_until(&mut [PollFd::new(&file, PollFlags::PRI)], until).map_err(|e| failed(e.into()))? {
            return Ok(false);
        }
    }
}

/// Waits for an event on one of `fds`; false at `until`.
fn poll_until(fds: &mut [PollFd<'_>], until: Instant) -> rustix::io::Result<bool> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match rustix::event::poll(fds, Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) => {}
            result => return result.map(|_| true),
        }
    }
}

/// `left` are the processes that were last seen in it.
fn kill_v1(dirs: &[Dir], freezer: Option<&Dir>, mut left: BTreeSet<i32>, deadline: Instant) -> Result<()> {
    let mut backoff = Backoff::until(deadline);
    loop {
        if left.is_empty() {
            return freezer.map_or(Ok(()), thaw);
        }
        if backoff.expired() {
            return Err(survivors(freezer.unwrap_or(&dirs[0]), left.into_iter().collect()));
        }
        let frozen = freezer.map_or(Ok(()), |f| freeze(f, deadline.min(Instant::now() + FREEZE)));
        let (mut done, mut running) = (BTreeSet::new(), Vec::new());
        let killed = frozen.and_then(|()| dirs.iter().try_for_each(|d| signal_all(d, &mut done, &mut running)));
        // Thaws in any case: SIGKILL only takes effect on thawed processes, and a frozen leftover would stay for ever.
        freezer.map_or(Ok(()), thaw)?;
        killed?;
        if running.is_empty() {
            // All remaining processes have no pid in our namespace, or are just exiting.
            backoff.wait();
        }
        wait_exit(&running, deadline.min(Instant::now() + ROUND))?;
        left.clear();
        for dir in dirs {
            left.extend(dir.pids_recursive()?);
        }
    }
}

/// The state is FREEZING until the last process has stopped, and only a read of it updates it: there is no event.
fn freeze(freezer: &Dir, until: Instant) -> Result<()> {
    if !freezer.write_if_there("freezer.state", "FROZEN")? {
        return Ok(());
    }
    let mut backoff = Backoff::until(until);
    loop {
        match freezer.read_if_there("freezer.state")? {
            Some(state) if state.trim() != "FROZEN" && backoff.wait() => {}
            _ => return Ok(()),
        }
    }
}

/// Also thaws child cgroups, which the task may have frozen itself.
fn thaw(freezer: &Dir) -> Result<()> {
    freezer.collect(|dir| dir.write_if_there("freezer.state", "THAWED")).map(drop)
}

/// Sends SIGKILL to every process in `dir` and below that is not in `done`, and keeps some of their descriptors.
fn signal_all(dir: &Dir, done: &mut BTreeSet<i32>, running: &mut Vec<OwnedFd>) -> Result<()> {
    let failed = |e: Errno| Error::io("kill the processes in", &dir.path, e);
    let mut pids = dir.pids_recursive()?;
    pids.retain(|p| !done.contains(p) && !is_protected(*p));
    for chunk in pids.chunks(AT_ONCE) {
        let mut opened = Vec::with_capacity(chunk.len());
        for (number, pid) in chunk.iter().filter_map(|n| Some((*n, Pid::from_raw(*n)?))) {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(fd) => opened.push((number, fd)),
                // The process has ended, or it is a thread of a process that is itself listed.
                Err(Errno::SRCH | Errno::INVAL) => {}
                Err(Errno::MFILE | Errno::NFILE) if !opened.is_empty() => break,
                Err(e) => return Err(failed(e)),
            }
        }
        // Between listing and opening, the pid may have been reused by an unrelated process. If the pid is listed now, the pidfd
        // refers either to that process or to one that has ended.
        let listed = dir.pids_recursive()?;
        for (pid, fd) in opened.into_iter().filter(|(pid, _)| listed.binary_search(pid).is_ok()) {
            match pidfd_send_signal(&fd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => return Err(failed(e)),
            }
            done.insert(pid);
            if running.len() < AT_ONCE {
                running.push(fd);
            }
        }
    }
    Ok(())
}

/// Waits until all of them have ended, or until `until`.
fn wait_exit(running: &[OwnedFd], until: Instant) -> Result<()> {
    let failed = |e: Errno| Error::io("wait for", std::path::Path::new("pidfd"), e);
    for fd in running {
        if !poll_until(&mut [PollFd::new(fd, PollFlags::IN)], until).map_err(failed)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::CgroupFs;
    use crate::spec::Resources;
    use std::path::Path;
    use std::process::{Command, Stdio};

    /// The v2 tree: the root itself, or the one beside the v1 hierarchies of a hybrid machine.
    fn unified() -> Option<CgroupFs> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
        let root = roots.into_iter().find(|r| r.join("cgroup.controllers").exists());
        match root {
            Some(root) if rustix::process::geteuid().is_root() => Some(CgroupFs::v2(root).unwrap()),
            _ => {
                assert!(std::env::var_os("CI").is_none_or(|v| v != "true"), "cannot test: no cgroup2, or not root");
                let test = std::thread::current();
                println!("SKIP: {}: no cgroup2, or not root", test.name().unwrap_or("cgroup"));
                None
            }
        }
    }

    #[test]
    fn b6_without_cgroup_kill_everything_is_frozen_killed_and_thawed() {
        let Some(fs) = unified() else { return };
        let path = format!("agentbin-test-{}-legacy/t", std::process::id());
        for by_file in [false, true] {
            let task = TaskCgroup::create(&fs, Path::new(&path), &Resources::default()).unwrap();
            let inner = TaskCgroup::create(&fs, &Path::new(&path).join("inner"), &Resources::default()).unwrap();
            let script = "read go; for i in 1 2 3 4 5 6 7 8; do (while :; do /bin/true & wait; done) & done; wait";
            let mut shell = Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
            inner.join(Pid::from_child(&shell)).unwrap();
            std::io::Write::write_all(&mut shell.stdin.take().unwrap(), b"\n").unwrap();
            while task.pids().unwrap().len() < 9 {
                std::thread::yield_now();
            }
            inner.members[0].dir().unwrap().write("cgroup.freeze", "1").unwrap();
            let dir = task.members[0].dir().unwrap();
            kill_v2(&dir, Instant::now() + Duration::from_secs(10), by_file).unwrap();
            assert!(task.pids().unwrap().is_empty());
            assert_eq!(dir.read("cgroup.freeze").unwrap().trim(), "0");
            shell.wait().unwrap();
            task.remove(Instant::now() + Duration::from_secs(5)).unwrap();
            assert!(!task.exists());
        }
    }

    #[test]
    fn b6_an_empty_cgroup_is_thawed_and_not_killed() {
        // Uses plain files: what is written to the kernel's files cannot be read back.
        let root = tempfile::tempdir().unwrap();
        let file = |name: &str| root.path().join("t").join(name);
        std::fs::create_dir(root.path().join("t")).unwrap();
        for (name, text) in [("events", "populated 0\nfrozen 1\n"), ("kill", ""), ("freeze", "1")] {
            std::fs::write(file(&format!("cgroup.{name}")), text).unwrap();
        }
        let task = TaskCgroup::open(&CgroupFs::v2(root.path()).unwrap(), Path::new("t")).unwrap();
        kill_v2(&task.members[0].dir().unwrap(), Instant::now() + Duration::from_secs(10), true).unwrap();
        let read = |name: &str| std::fs::read_to_string(file(name)).unwrap();
        assert_eq!([read("cgroup.kill"), read("cgroup.freeze")], ["", "0"]);
    }

    #[test]
    fn an_event_that_does_not_come_ends_at_the_deadline() {
        let Some(fs) = unified() else { return };
        let path = format!("agentbin-test-{}-event/t", std::process::id());
        let task = TaskCgroup::create(&fs, Path::new(&path), &Resources::default()).unwrap();
        let dir = task.members[0].dir().unwrap();
        let start = Instant::now();
        assert!(!wait_event(&dir, "populated", 1, start + Duration::from_millis(30)).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(30));
        task.remove(Instant::now() + Duration::from_secs(5)).unwrap();
        assert!(wait_event(&dir, "populated", 0, start).unwrap(), "gone is empty");
    }
}
