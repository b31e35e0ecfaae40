//! Which boot and which process this is.

use std::io;

use crate::spec::ProcessId;

/// The id of the running boot.
///
/// # Errors
/// When `/proc/sys/kernel/random/boot_id` cannot be read.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Names a live process so that it cannot be mistaken for a later one.
///
/// # Errors
/// `NotFound` when there is no such process.
pub fn process_id(pid: i32) -> io::Result<ProcessId> {
    let stat = procfs::process::Process::new(pid).and_then(|p| p.stat()).map_err(proc_error)?;
    Ok(ProcessId { pid, start_ticks: stat.starttime, boot_id: boot_id()? })
}

/// Whether exactly this process still exists (a zombie does not count).
#[must_use]
pub fn is_alive(process: &ProcessId) -> bool {
    let Ok(stat) = procfs::process::Process::new(process.pid).and_then(|p| p.stat()) else { return false };
    stat.starttime == process.start_ticks && stat.state != 'Z' && boot_id().is_ok_and(|boot| boot == process.boot_id)
}

fn proc_error(error: procfs::ProcError) -> io::Error {
    match error {
        procfs::ProcError::NotFound(_) => io::ErrorKind::NotFound.into(),
        procfs::ProcError::PermissionDenied(_) => io::ErrorKind::PermissionDenied.into(),
        other => io::Error::other(other.to_string()),
    }
}
