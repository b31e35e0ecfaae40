//! Processes by the names that stay true: (pid, start time, boot id).

use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::spec::ProcessId;
use crate::sys::time;

/// The name of this process.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn own() -> io::Result<ProcessId> {
    time::process_id(rustix::process::getpid().as_raw_nonzero().get())
}

/// The pid namespace in whose numbers this process speaks.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn pid_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// Whether exactly this process still runs; a zombie does not. What cannot be read is an error and not a death.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn is_alive(process: &ProcessId) -> io::Result<bool> {
    if process.boot_id != time::boot_id()? {
        return Ok(false);
    }
    let path = format!("/proc/{}/stat", process.pid);
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(libc::ESRCH) => return Ok(false),
        Err(e) => return Err(e),
    };
    // The command's name, in parentheses, may contain anything; the state is field 3, the start time field 22.
    let text = String::from_utf8_lossy(&text);
    let mut fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let (state, start) = (fields.next(), fields.nth(18).and_then(|ticks| ticks.parse::<u64>().ok()));
    let (Some(state), Some(start)) = (state, start) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{path} does not read as proc_pid_stat(5) says"),
        ));
    };
    Ok(start == process.start_ticks && !matches!(state, "Z" | "X"))
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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_alive_only_under_its_full_name_and_while_it_is_no_zombie() {
        let me = own().unwrap();
        assert!(is_alive(&me).unwrap());
        assert!(!is_alive(&ProcessId { start_ticks: me.start_ticks + 1, ..me.clone() }).unwrap());
        assert!(!is_alive(&ProcessId { boot_id: "another".to_owned(), ..me.clone() }).unwrap());
        assert!(!is_alive(&ProcessId { pid: i32::MAX, ..me }).unwrap());
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let id = time::process_id(i32::try_from(child.id()).unwrap()).unwrap();
        let pidfd = rustix::process::pidfd_open(Pid::from_raw(id.pid).unwrap(), PidfdFlags::empty()).unwrap();
        drop(child.stdin.take());
        rustix::event::poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
        assert!(!is_alive(&id).unwrap());
        child.wait().unwrap();
    }

    #[test]
    fn only_the_named_process_is_killed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = time::process_id(i32::try_from(child.id()).unwrap()).unwrap();
        kill(&ProcessId { start_ticks: id.start_ticks + 1, ..id.clone() }, Duration::from_secs(5)).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "a process that only has the number lives on");
        kill(&id, Duration::from_secs(5)).unwrap();
        kill(&id, Duration::from_secs(5)).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
