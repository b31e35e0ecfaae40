//! Information on processes from `/proc`. A read failure is an error, and does not mean that the process has ended.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};

use super::mutant;

/// Most bytes that are read of a process's arguments or environment: more than `execve(2)` accepts on any machine. A process can
/// make the kernel show other parts of its memory (`PR_SET_MM_MAP`), of any length.
const LONGEST: u64 = 8 << 20;

/// How often the lists of children are read again when a thread ended meanwhile.
const CHILDREN: u32 = 3;

/// The fields of `proc_pid_stat(5)` that identify a process and its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Process id.
    pub pid: i32,
    /// The pid of its parent, 0 for a parent that is not visible here.
    pub parent: i32,
    /// It has ended and was not reaped yet.
    pub ended: bool,
    /// It is stopped, by a signal or a tracer.
    pub stopped: bool,
    /// Clock ticks between boot and its start.
    pub start_ticks: u64,
}

/// The process with this pid; `None` when there is none.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn stat(pid: i32) -> io::Result<Option<Stat>> {
    let path = format!("/proc/{pid}/stat");
    let Some(text) = if_there(std::fs::read(&path))? else { return Ok(None) };
    let parsed = parse(pid, &String::from_utf8_lossy(&text));
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("{path} does not read as its man page says"));
    parsed.map(Some).ok_or_else(malformed)
}

/// The command's name, in parentheses, may contain anything; after it come the state (field 3), the parent (4) and the
/// start time (22).
fn parse(pid: i32, text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let start_ticks = fields.nth(17)?.parse().ok()?;
    let (ended, stopped) = (matches!(state, "Z" | "X"), matches!(state, "T" | "t"));
    Some(Stat { pid, parent, ended, stopped, start_ticks })
}

/// The exit status of a process that was not reaped yet, as `wait4(2)` returns it: field 52 of `proc_pid_stat(5)`, which the kernel
/// shows as 0 to processes without permission. `None` when the process is gone, or runs.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn raw_status_of_ended(pid: i32, start_ticks: u64) -> io::Result<Option<i32>> {
    let Some(text) = if_there(std::fs::read(format!("/proc/{pid}/stat")))? else { return Ok(None) };
    let text = String::from_utf8_lossy(&text);
    let same = parse(pid, &text).is_some_and(|stat| stat.ended && stat.start_ticks == start_ticks);
    let status = text.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(49)?.parse().ok());
    Ok(status.filter(|_| same))
}

/// Every process that is visible here. The kernel keeps no snapshot: one that appears meanwhile may be missed.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn all() -> io::Result<Vec<Stat>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        if let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) {
            found.extend(stat(pid)?);
        }
    }
    Ok(found)
}

/// Whether a process is in this pid namespace (its inode); for another user's process only root can determine that.
#[must_use]
pub fn is_in_pid_namespace(pid: i32, namespace: u64) -> bool {
    let found = std::fs::metadata(format!("/proc/{pid}/ns/pid"));
    found.is_ok_and(|found| std::os::unix::fs::MetadataExt::ino(&found) == namespace)
}

/// Whether this process has a child, running or not, an inherited one included. One system call.
///
/// # Errors
/// What the kernel says.
pub fn has_children() -> io::Result<bool> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    // Also those whose end is told by another signal than SIGCHLD, or by none.
    let every = WaitIdOptions::from_bits_retain(libc::__WALL.cast_unsigned());
    match waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT | every) {
        Ok(_) => Ok(true),
        Err(rustix::io::Errno::CHILD) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The children of this process, including inherited ones.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn own_children() -> io::Result<Vec<i32>> {
    for _ in 0..CHILDREN {
        if let Some(found) = children_of_threads()? {
            return Ok(found);
        }
    }
    // A kernel without these lists (CONFIG_PROC_CHILDREN): read the parent of every process.
    let own = rustix::process::getpid().as_raw_nonzero().get();
    Ok(all()?.iter().filter(|s| s.parent == own).map(|s| s.pid).collect())
}

/// `None` if a thread has no list: it has just ended and passed its children to another one, which may have been read before.
fn children_of_threads() -> io::Result<Option<Vec<i32>>> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir("/proc/self/task")? {
        let Some(children) = if_there(std::fs::read_to_string(thread?.path().join("children")))? else {
            return Ok(None);
        };
        found.extend(children.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Ok(Some(found))
}

/// The processes of `all` that descend from `of`, by parent links, without those that have ended.
#[must_use]
pub fn descendants(all: &[Stat], of: i32) -> Vec<Stat> {
    let mut children: HashMap<i32, Vec<Stat>> = HashMap::new();
    for stat in all.iter().filter(|s| !s.ended) {
        children.entry(stat.parent).or_default().push(*stat);
    }
    let mut found = children.remove(&of).unwrap_or_default();
    let mut next = 0;
    while let Some(stat) = found.get(next) {
        let below = children.remove(&stat.pid).unwrap_or_default();
        found.extend(below);
        next += 1;
    }
    found
}

/// The arguments of the process, its name first; empty for one that has ended.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn arguments(pid: i32) -> io::Result<Vec<Vec<u8>>> {
    Ok(strings(&if_there(read(&format!("/proc/{pid}/cmdline")))?.unwrap_or_default()))
}

/// The environment that the process was started with; empty for one that has ended.
///
/// # Errors
/// EACCES for another user's process; when `/proc` cannot be read.
pub fn environment(pid: i32) -> io::Result<Vec<Vec<u8>>> {
    Ok(strings(&if_there(read(&format!("/proc/{pid}/environ")))?.unwrap_or_default()))
}

/// Whether the process was started with this variable, `NAME=value`; not for one that has ended.
///
/// # Errors
/// As [`environment`].
pub fn has_variable(pid: i32, variable: &[u8]) -> io::Result<bool> {
    let text = if_there(read(&format!("/proc/{pid}/environ")))?.unwrap_or_default();
    Ok(text.split(|byte| *byte == 0).any(|entry| entry == variable))
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(if mutant::on("d71") { u64::MAX } else { LONGEST }).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The user who started the process (its real user ID); `None` when there is no such process. The owner of its directory in `/proc`
/// is the effective one: root for a set-user-ID program, which any user can execute with any arguments.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn user(pid: i32) -> io::Result<Option<u32>> {
    let path = format!("/proc/{pid}/status");
    let Some(text) = if_there(read(&path))? else { return Ok(None) };
    // The name comes first, with its newlines escaped.
    let text = String::from_utf8_lossy(&text);
    let ids = text.lines().find_map(|line| line.strip_prefix("Uid:"));
    let real = ids.and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok());
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, format!("{path} does not read as its man page says"));
    real.map(Some).ok_or_else(malformed)
}

/// The value of this line in an opened `/proc/PID/status`; `None` where there is no such line or the file cannot be read.
pub fn said(status: File, name: &str) -> Option<String> {
    let mut text = Vec::new();
    status.take(LONGEST).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// What a process that is pid 1 of its own pid namespace does with a signal from outside.
///
/// The kernel drops what such a process neither handles nor blocks, except for SIGKILL and SIGSTOP: there is no default action.
/// See `pid_namespaces(7)`. `true` for a signal that another process would not survive or stop by; `None` for a process that is no
/// such pid 1, and for what cannot be found out.
#[must_use]
pub fn drops_as_pid_1(pid: i32, signal: i32) -> Option<bool> {
    use libc::{SIGCHLD, SIGCONT, SIGKILL, SIGSTOP, SIGURG, SIGWINCH};
    if [SIGKILL, SIGSTOP, SIGCHLD, SIGCONT, SIGURG, SIGWINCH].contains(&signal) {
        return Some(false);
    }
    let text = if_there(read(&format!("/proc/{pid}/status"))).ok()??;
    let text = String::from_utf8_lossy(&text);
    let dropped = drops(&text, signal)?;
    Some(dropped && !waits_for_signals(pid))
}

/// Whether a process is in a cgroup whose path contains `name`, in any hierarchy.
#[must_use]
pub fn is_in_cgroup(pid: i32, name: &str) -> bool {
    let text = read(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    String::from_utf8_lossy(&text).lines().any(|line| line.contains(name))
}

/// Whether a process is in sigwait(3), as inits are: while it waits, `/proc/PID/status` does not show the signals that it has
/// blocked.
fn waits_for_signals(pid: i32) -> bool {
    let call = read(&format!("/proc/{pid}/syscall")).unwrap_or_default();
    let text = String::from_utf8_lossy(&call);
    let number = text.split_ascii_whitespace().next().and_then(|number| number.parse::<libc::c_long>().ok());
    number == Some(libc::SYS_rt_sigtimedwait)
}

fn drops(status: &str, signal: i32) -> Option<bool> {
    let line = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let mut numbers = line("NSpid:")?.split_ascii_whitespace();
    let is_inner = numbers.next().is_some() && numbers.next_back() == Some("1");
    let has = |name| -> Option<bool> {
        let set = u64::from_str_radix(line(name)?.trim(), 16).ok()?;
        Some(set >> (signal - 1) & 1 == 1)
    };
    // A blocked signal is kept: sigwait(3) and signalfd(2) get it. An ignored one would be no different with an init.
    let kept = has("SigCgt:")? || has("SigIgn:")? || has("SigBlk:")?;
    is_inner.then_some(!kept)
}

fn strings(text: &[u8]) -> Vec<Vec<u8>> {
    let text = text.strip_suffix(&[0]).unwrap_or(text);
    if text.is_empty() { Vec::new() } else { text.split(|b| *b == 0).map(<[u8]>::to_vec).collect() }
}

/// A process that ends while its files are read counts as missing.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_1_without_a_handler_drops_a_signal() {
        // SIGHUP is blocked, SIGINT ignored, SIGTERM handled.
        let status = |pids| {
            format!(
                "Name:\tx\nNSpid:\t{pids}\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000000002\nSigCgt:\t8000000000004000\n"
            )
        };
        let inner = status("4711\t1");
        for (signal, dropped) in [(1, false), (2, false), (15, false), (64, false), (10, true), (63, true)] {
            assert_eq!(drops(&inner, signal), Some(dropped), "{signal}");
        }
        assert_eq!(drops(&status("9\t4711\t1"), 10), Some(true));
        for other in ["1", "4711", "4711\t7"] {
            assert_eq!(drops(&status(other), 10), None, "{other}");
        }
        assert_eq!(drops("Name:\tx\n", 10), None);
        assert_eq!((drops_as_pid_1(i32::MAX, 10), drops_as_pid_1(1, libc::SIGKILL)), (None, Some(false)));
    }

    #[test]
    fn children_are_found_while_threads_end() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        for _ in 0..200 {
            let ends = std::thread::spawn(|| {});
            assert!(own_children().unwrap().contains(&pid));
            ends.join().unwrap();
        }
        assert!(has_children().unwrap());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!own_children().unwrap().contains(&pid));
    }

    #[test]
    fn a_line_of_a_status_is_found_by_its_whole_name() {
        let own = |name| said(File::open("/proc/self/status").unwrap(), name);
        assert_eq!(own("Pid"), Some(std::process::id().to_string()));
        assert!(u64::from_str_radix(&own("SigIgn").unwrap(), 16).is_ok());
        assert!(own("VmSwap").unwrap().ends_with(" kB"));
        assert_eq!((own("Pi"), own("")), (None, None));
    }

    #[test]
    fn a_name_may_contain_anything() {
        let rest = "1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        for name in ["cat", "a) S 9 (b", "Z) Z 1 ("] {
            let stat = parse(9, &format!("9 ({name}) R {rest}")).unwrap();
            assert_eq!(stat, Stat { pid: 9, parent: 1, ended: false, stopped: false, start_ticks: 12345 });
        }
        assert!(parse(9, &format!("9 (cat) Z {rest}")).unwrap().ended);
        assert!(parse(9, &format!("9 (cat) T {rest}")).unwrap().stopped);
        assert_eq!(parse(9, "9 (cat) R 1"), None);
    }

    #[test]
    fn descent_is_by_parent_links_and_ends_at_the_dead() {
        let stat = |pid, parent, ended| Stat { pid, parent, ended, stopped: false, start_ticks: 0 };
        let all = [stat(2, 1, false), stat(3, 2, false), stat(4, 3, false), stat(5, 2, true), stat(6, 9, false)];
        let pids = |of| descendants(&all, of).iter().map(|s| s.pid).collect::<Vec<_>>();
        assert_eq!(pids(1), [2, 3, 4]);
        assert_eq!(pids(3), [4]);
        assert_eq!(pids(4), [0; 0]);
    }

    #[test]
    fn this_very_process_is_seen() {
        let own = i32::try_from(std::process::id()).unwrap();
        let me = stat(own).unwrap().unwrap();
        assert!(all().unwrap().contains(&me) && !me.ended);
        assert!(!arguments(own).unwrap().is_empty() && stat(i32::MAX).unwrap().is_none());
        let environment = environment(own).unwrap();
        let path = environment.iter().find(|e| e.starts_with(b"PATH=")).unwrap();
        assert!(has_variable(own, path).unwrap() && !has_variable(own, &path[..path.len() - 1]).unwrap());
        assert_eq!(user(own).unwrap(), Some(rustix::process::geteuid().as_raw()));
        assert_eq!((user(i32::MAX).unwrap(), arguments(i32::MAX).unwrap().len()), (None, 0));
    }
}
