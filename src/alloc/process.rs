//! Processes by their unambiguous identity: (pid, start time, boot id).

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::driver::EXECUTOR_LOG;
use crate::net;
use crate::spec::{AllocId, PLUGIN_MARK, ProcessId, Role, Signal};
use crate::sys::processes::{self, Stat};
use crate::sys::{self, mutant, time};

/// How many processes are killed before their ends are waited for.
const AT_ONCE: usize = 128;
/// Pause between two checks whether a process has stopped.
const GLANCE: Duration = Duration::from_millis(1);
/// How long one process is waited for before all processes are listed again.
const ROUND: Duration = Duration::from_secs(1);

/// Stops exactly this process, until it is killed, and returns when it has finished its current system call; a process that is
/// gone is not an error.
///
/// # Errors
/// What the kernel says, or `TimedOut`.
pub fn stop(process: &ProcessId, patience: Duration) -> io::Result<()> {
    if process.boot_id != time::boot_id()? {
        return Ok(());
    }
    let deadline = Instant::now() + patience;
    match open(process.pid, process.start_ticks)? {
        Some(pidfd) => stop_opened(process.pid, &pidfd, deadline),
        None => Ok(()),
    }
}

fn stop_opened(pid: i32, pidfd: &OwnedFd, deadline: Instant) -> io::Result<()> {
    send(pidfd, Signal::STOP)?;
    loop {
        // Only its parent is notified of a stop; its end can be seen through the pidfd.
        if processes::stat(pid)?.is_none_or(|s| s.stopped || s.ended) || ended(pidfd, Instant::now() + GLANCE)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Kills a helper that inherits the orphans of its task, and everything below it. The helper is stopped first, so that it reaps
/// no process, and does not pass orphans on, while its descendants are killed.
///
/// # Errors
/// What the kernel says, or `TimedOut`.
pub fn kill_tree(process: &ProcessId, patience: Duration) -> io::Result<()> {
    if process.boot_id != time::boot_id()? {
        return Ok(());
    }
    let Some(pidfd) = open(process.pid, process.start_ticks)? else { return Ok(()) };
    let deadline = Instant::now() + patience;
    let stopped = stop_opened(process.pid, &pidfd, deadline);
    let below = kill_all(deadline, |all| processes::descendants(all, process.pid));
    end(&pidfd, deadline).and(below).and(stopped)
}

/// Opens the process with this pid and this start time. The pidfd is opened before the start time is checked: once it is open,
/// reuse of the pid is detected.
fn open(pid: i32, start_ticks: u64) -> io::Result<Option<OwnedFd>> {
    let pidfd = match sys::process::open_pidfd(pid) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        other => other?,
    };
    let same = processes::stat(pid)?.is_some_and(|s| s.start_ticks == start_ticks && !s.ended);
    Ok(same.then_some(pidfd))
}

/// Sends a signal; a process that has just ended is not an error.
fn send(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    match sys::process::send_signal(pidfd.as_fd(), signal) {
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other,
    }
}

fn end(pidfd: &OwnedFd, deadline: Instant) -> io::Result<()> {
    send(pidfd, Signal::KILL)?;
    if ended(pidfd, deadline)? { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

/// Waits for the end of a process; `false` at the deadline.
fn ended(pidfd: &OwnedFd, deadline: Instant) -> io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec::try_from(left).map_err(io::Error::other)?;
        match rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            Ok(0) if left.is_zero() => return Ok(false),
            Ok(0) => {}
            other => return Ok(other.map(|_| true)?),
        }
    }
}

/// Kills the processes that `find` selects among all, repeatedly until it selects none. Children of this process are reaped.
fn kill_all(deadline: Instant, find: impl Fn(&[Stat]) -> Vec<Stat>) -> io::Result<()> {
    loop {
        let found = find(&processes::all()?);
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let pids = found.iter().map(|s| s.pid.to_string()).collect::<Vec<_>>().join(", ");
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("processes survive: {pids}")));
        }
        strike(&found, deadline)?;
    }
}

/// Kills these processes. Children of this process are reaped.
fn strike(found: &[Stat], deadline: Instant) -> io::Result<()> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    for some in found.chunks(AT_ONCE) {
        let mut killed = Vec::new();
        for stat in some {
            if let Some(pidfd) = open(stat.pid, stat.start_ticks)? {
                send(&pidfd, Signal::KILL)?;
                killed.push((stat, pidfd));
            }
        }
        for (stat, pidfd) in killed {
            // A process that hangs in the kernel must not delay the others; the next round tries it again.
            if ended(&pidfd, deadline.min(Instant::now() + ROUND))? && stat.parent == own {
                sys::process::reap(stat.pid);
            }
        }
    }
    Ok(())
}

/// The executors of the allocations in `data_dir` that this user started, found by their arguments: including those that their
/// owner had not recorded before it died. The second value is the allocation's id.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn executors(data_dir: &Path, user: u32) -> io::Result<Vec<(Stat, String)>> {
    let mut found = Vec::new();
    for stat in processes::all()?.into_iter().filter(|s| !s.ended) {
        // The arguments of other users' processes are not even read.
        if processes::user(stat.pid)? != Some(user) && !mutant::on("d71") {
            continue;
        }
        if let Some(id) = executor_of(&processes::arguments(stat.pid)?, data_dir) {
            found.push((stat, id));
        }
    }
    Ok(found)
}

/// The executors of one task of the allocation in `alloc_dir`, found by their arguments.
///
/// # Errors
/// When `/proc` cannot be read.
pub(super) fn executors_of(alloc_dir: &Path, task: &str) -> io::Result<Vec<ProcessId>> {
    let (user, boot_id) = (rustix::process::geteuid().as_raw(), time::boot_id()?);
    let wanted = alloc_dir.join(format!("{task}{EXECUTOR_LOG}"));
    let mut found = Vec::new();
    for stat in processes::all()?.into_iter().filter(|s| !s.ended) {
        if processes::user(stat.pid)? == Some(user)
            && log_of_executor(&processes::arguments(stat.pid)?).is_some_and(|log| log == wanted)
        {
            found.push(ProcessId { pid: stat.pid, start_ticks: stat.start_ticks, boot_id: boot_id.clone() });
        }
    }
    Ok(found)
}

/// The log file of the executor with these arguments.
fn log_of_executor(arguments: &[Vec<u8>]) -> Option<PathBuf> {
    let [_, role, json] = arguments else { return None };
    if role != Role::Executor.name().as_bytes() {
        return None;
    }
    let config: serde_json::Value = serde_json::from_slice(json).ok()?;
    Some(config.get("LogFile")?.as_str()?.into())
}

/// The allocation of the executor with these arguments: `PROGRAM executor {"LogFile":"<data>/alloc/<id>/<task>-executor.out",...}`.
fn executor_of(arguments: &[Vec<u8>], data_dir: &Path) -> Option<String> {
    let log = log_of_executor(arguments)?;
    let log = log.strip_prefix(data_dir.join("alloc")).ok()?;
    let mut names = log.iter();
    let (id, file) = (names.next()?.to_str()?, names.next()?.to_str()?);
    (names.next().is_none() && file.ends_with(EXECUTOR_LOG)).then(|| AllocId::parse(id).map(|id| id.to_string()))?
}

/// Kills the processes that have the allocation's id in their environment: those that remain of its tasks when their executors
/// were killed. Spares this process and its ancestors.
///
/// With `must_end`, processes of users other than that one are killed once, and not waited for: any user can put the
/// allocation's id into an environment, and start such processes faster than they are killed.
///
/// # Errors
/// As [`kill_tree`].
pub fn kill_by_environment(id: &AllocId, must_end: Option<u32>, patience: Duration) -> io::Result<()> {
    let wanted = format!("NOMAD_ALLOC_ID={id}").into_bytes();
    let deadline = Instant::now() + patience;
    let marked = |all: &[Stat], of: Option<u32>, until: Option<Instant>| -> Vec<Stat> {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let above: Vec<i32> = std::iter::successors(Some(own), |pid| {
            all.iter().find(|s| s.pid == *pid).map(|s| s.parent).filter(|p| *p > 0)
        })
        .collect();
        let is_marked = |s: &&Stat| {
            let of_user = || of.is_none() || processes::user(s.pid).is_ok_and(|user| user == of);
            // Another user's environment cannot be read; that user's processes are not ours.
            let named = || processes::has_variable(s.pid, &wanted).is_ok_and(|named| named);
            let in_time = || until.is_none_or(|until| Instant::now() < until);
            !s.ended && !above.contains(&s.pid) && of_user() && in_time() && named()
        };
        all.iter().filter(is_marked).copied().collect()
    };
    let must_end = must_end.filter(|_| !mutant::on("d71-mark"));
    if must_end.is_some() {
        let once = deadline.min(Instant::now() + ROUND);
        strike(&marked(&processes::all()?, None, Some(once)), once)?;
    }
    kill_all(deadline, |all| marked(all, must_end, None))
}

/// Kills the remaining driver plugins that this user started for the owner with this socket directory, and the helpers that they
/// have started.
///
/// # Errors
/// As [`kill_tree`].
pub fn kill_plugins_of(sockets: &Path, patience: Duration) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let mark = [PLUGIN_MARK.as_bytes(), b"=", sockets.as_os_str().as_bytes()].concat();
    kill_all(Instant::now() + patience, |all| {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let is_marked = |s: &&Stat| {
            let of_user = || processes::user(s.pid).is_ok_and(|owner| owner == Some(user));
            !s.ended && s.pid != own && of_user() && processes::has_variable(s.pid, &mark).is_ok_and(|marked| marked)
        };
        all.iter().filter(is_marked).copied().collect()
    })
}

/// Orphans of killed executors: executors inherit the orphans of their tasks, and this process inherits those of executors.
#[derive(Debug)]
pub struct Orphans {
    /// `None`: this process inherits no orphans.
    data_dir: Option<PathBuf>,
    /// The directory of the networks' records.
    networks: PathBuf,
    /// This process had children before, so not every orphan belongs to a task.
    careful: bool,
}

impl Orphans {
    /// This process inherits no orphans and kills none.
    #[must_use]
    pub const fn ignore() -> Orphans {
        Orphans { data_dir: None, networks: PathBuf::new(), careful: true }
    }

    /// This process inherits orphans from now on. To be called before it starts any process.
    ///
    /// # Errors
    /// What the kernel says; when `/proc` cannot be read.
    pub fn inherit(data_dir: &Path, networks: &Path) -> io::Result<Orphans> {
        sys::prctl::become_subreaper()?;
        let own = rustix::process::getpid().as_raw_nonzero().get();
        // A script may have started processes before it exec'ed this program, and pid 1 inherits orphans of others.
        let careful = own == 1 || processes::has_children()?;
        Ok(Orphans { data_dir: Some(data_dir.to_owned()), networks: networks.to_owned(), careful })
    }

    /// Kills what ended executors left behind; with `all` also processes whose arguments claim that they are executors, and driver
    /// plugins of other owners with their helpers, because no executor runs then. Processes left by CNI plugins, and those that hold
    /// networks (`networks` is the directory of their records), are spared.
    ///
    /// To be called only on the thread that starts executors: a child that has not yet exec'ed the executor would be taken for an
    /// orphan.
    ///
    /// # Errors
    /// When `/proc` cannot be read, or something does not die in time.
    pub fn sweep(&self, all: bool, patience: Duration) -> io::Result<()> {
        let Some(data_dir) = &self.data_dir else { return Ok(()) };
        // The common case, and a hundred times cheaper than reading every process of the machine.
        if !processes::has_children()? {
            return Ok(());
        }
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let below = [data_dir.as_os_str().as_bytes(), b"/alloc/"].concat();
        // A driver plugin's own tasks may outlive it when it is killed, and the next instance finds them again.
        let mark = format!("{PLUGIN_MARK}=").into_bytes();
        let of_driver_plugin =
            |s: &Stat| processes::environment(s.pid).is_ok_and(|e| e.iter().any(|entry| entry.starts_with(&mark)));
        let ours = |s: &Stat| {
            let in_environment = |entry: &Vec<u8>| memchr::memmem::find(entry, &below).is_some();
            !self.careful
                || of_driver_plugin(s)
                || processes::environment(s.pid).is_ok_and(|e| e.iter().any(in_environment))
        };
        // A CNI plugin's process serves allocations of other runs too. A task that is root on the host needs no such disguise.
        let is_plugins = |s: &Stat| {
            let of_plugin = |entry: &Vec<u8>| entry.starts_with(b"CNI_COMMAND=");
            processes::user(s.pid).is_ok_and(|user| user == Some(0))
                && processes::environment(s.pid).is_ok_and(|e| e.iter().any(of_plugin))
        };
        let holds_network = |s: &Stat| net::is_keeper(&self.networks, s.pid, s.start_ticks);
        let executes =
            |s: &Stat| processes::arguments(s.pid).is_ok_and(|arguments| executor_of(&arguments, data_dir).is_some());
        kill_all(Instant::now() + patience, |processes_now| {
            let adopted = processes_now.iter().filter(|s| s.parent == own && !s.ended);
            let is_orphan =
                |s: &&Stat| (all || !executes(s) && !of_driver_plugin(s)) && ours(s) && !sys::children::is_own(s.pid);
            let tops = adopted.filter(is_orphan).filter(|s| !is_plugins(s) && !holds_network(s));
            tops.flat_map(|s| [vec![*s], processes::descendants(processes_now, s.pid)].concat()).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_alive_only_under_its_full_name_and_while_it_is_no_zombie() {
        let me = time::own().unwrap();
        assert!(time::is_alive(&me).unwrap());
        assert!(!time::is_alive(&ProcessId { start_ticks: me.start_ticks + 1, ..me.clone() }).unwrap());
        assert!(!time::is_alive(&ProcessId { boot_id: "another".to_owned(), ..me.clone() }).unwrap());
        assert!(!time::is_alive(&ProcessId { pid: i32::MAX, ..me }).unwrap());
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let id = time::process_id(i32::try_from(child.id()).unwrap()).unwrap();
        let pidfd = sys::process::open_pidfd(id.pid).unwrap();
        drop(child.stdin.take());
        rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
        assert!(!time::is_alive(&id).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn executors_are_known_by_their_arguments() {
        let id = uuid::Uuid::new_v4().to_string();
        let of = |arguments: &[&str]| {
            let arguments: Vec<Vec<u8>> = arguments.iter().map(|a| a.as_bytes().to_vec()).collect();
            executor_of(&arguments, Path::new("/data"))
        };
        let json = |path: String| format!("{{\"LogFile\":\"{path}\",\"LogLevel\":\"debug\"}}");
        let good = json(format!("/data/alloc/{id}/web-executor.out"));
        assert_eq!(of(&["agentbin", "executor", &good]), Some(id.clone()));
        for bad in [
            json(format!("/data2/alloc/{id}/web-executor.out")),
            json(format!("/data/alloc/{id}/web/web-executor.out")),
            json(format!("/data/alloc/{id}/web.out")),
            json("/data/alloc/x/web-executor.out".to_owned()),
            "{}".to_owned(),
            good.replace('{', ""),
        ] {
            assert_eq!(of(&["agentbin", "executor", &bad]), None, "{bad}");
        }
        assert_eq!(of(&["agentbin", "run", &good]), None);
        assert_eq!(of(&["vi", &good]), None);
    }

    #[test]
    fn a_tree_is_killed_with_what_left_its_session() {
        let script = "setsid sh -c 'sleep 61 & echo ready; sleep 61' & wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 5];
        io::Read::read_exact(shell.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let id = time::process_id(i32::try_from(shell.id()).unwrap()).unwrap();
        let below = processes::descendants(&processes::all().unwrap(), id.pid);
        assert!(below.len() >= 2, "{below:?}");
        kill_tree(&id, Duration::from_secs(5)).unwrap();
        assert_eq!(shell.wait().unwrap().signal(), Some(9));
        assert!(below.iter().all(|s| open(s.pid, s.start_ticks).unwrap().is_none()));
    }

    #[test]
    fn what_carries_the_allocation_in_its_environment_is_killed() {
        let id = AllocId::new(uuid::Uuid::new_v4());
        let spawn = |id: &AllocId| Command::new("sleep").arg("61").env("NOMAD_ALLOC_ID", id.as_str()).spawn().unwrap();
        let (mut ours, mut other) = (spawn(&id), spawn(&AllocId::new(uuid::Uuid::new_v4())));
        let own = rustix::process::getuid().as_raw();
        kill_by_environment(&id, Some(own), Duration::from_secs(5)).unwrap();
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        let _reaped_already = ours.wait();
        // A process of a user other than `must_end` is not waited for, but still killed.
        let mut ours = spawn(&id);
        kill_by_environment(&id, Some(own + 1), Duration::from_secs(5)).unwrap();
        let _reaped_already = ours.wait();
    }

    /// Between listing all processes and a signal, a process may be reaped; some kernels then report that its number belongs to a
    /// thread.
    #[test]
    fn a_number_that_is_no_process_is_one_that_has_gone() {
        let (to, from) = std::sync::mpsc::channel();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            to.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = wait.recv();
        });
        assert!(open(from.recv().unwrap(), 0).unwrap().is_none());
        drop(end);
        thread.join().unwrap();
    }

    #[test]
    fn only_the_named_process_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = time::process_id(i32::try_from(child.id()).unwrap()).unwrap();
        kill_tree(&ProcessId { start_ticks: id.start_ticks + 1, ..id.clone() }, Duration::from_secs(5)).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "a process that only has the number lives on");
        kill_tree(&id, Duration::from_secs(5)).unwrap();
        kill_tree(&id, Duration::from_secs(5)).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
