//! Processes by the names that stay true: (pid, start time, boot id).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::spec::ProcessId;

/// The name of the process that has the number `pid` now; `None` when there is none or it is a zombie.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn identify(pid: i32) -> io::Result<Option<ProcessId>> {
    let stat = match procfs::process::Process::new(pid).and_then(|p| p.stat()) {
        Ok(stat) => stat,
        Err(procfs::ProcError::NotFound(_)) => return Ok(None),
        Err(procfs::ProcError::Io(e, _)) if e.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(e) => return Err(io::Error::other(e)),
    };
    if matches!(stat.state, 'Z' | 'X' | 'x') {
        return Ok(None);
    }
    Ok(Some(ProcessId { pid, start_ticks: stat.starttime, boot_id: boot_id()? }))
}

/// The name of this process.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn own() -> io::Result<ProcessId> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    identify(pid)?.ok_or_else(|| io::Error::other("/proc does not show this process"))
}

/// The pid namespace in whose numbers this process speaks.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn pid_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Whether exactly this process still runs.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn is_alive(process: &ProcessId) -> io::Result<bool> {
    Ok(identify(process.pid)?.is_some_and(|now| now == *process))
}

/// Kills exactly this process and waits for its end; one that is gone already is no error.
///
/// # Errors
/// What the kernel says, or `TimedOut`.
pub fn kill(process: &ProcessId, patience: Duration) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Err(Errno::INVAL.into()) };
    // The descriptor comes first: once it is open the number cannot pass to another process unnoticed.
    let fd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => return Ok(()),
        other => other?,
    };
    if !is_alive(process)? {
        return Ok(());
    }
    match rustix::process::pidfd_send_signal(&fd, Signal::KILL) {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(e) => return Err(e.into()),
    }
    let patience = rustix::event::Timespec::try_from(patience).map_err(io::Error::other)?;
    match rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(()),
    }
}

fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_alive_only_under_its_full_name() {
        let me = own().unwrap();
        assert!(is_alive(&me).unwrap());
        assert!(!is_alive(&ProcessId { start_ticks: me.start_ticks + 1, ..me.clone() }).unwrap());
        assert!(!is_alive(&ProcessId { boot_id: "another".to_owned(), ..me.clone() }).unwrap());
        assert!(!is_alive(&ProcessId { pid: i32::MAX, ..me }).unwrap());
    }

    #[test]
    fn only_the_named_process_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = identify(i32::try_from(child.id()).unwrap()).unwrap().unwrap();
        kill(&ProcessId { start_ticks: id.start_ticks + 1, ..id.clone() }, Duration::from_secs(5)).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "a process that only has the number lives on");
        kill(&id, Duration::from_secs(5)).unwrap();
        kill(&id, Duration::from_secs(5)).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
