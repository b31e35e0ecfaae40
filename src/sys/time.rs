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
    let stat = super::processes::stat(pid)?.ok_or(io::ErrorKind::NotFound)?;
    Ok(ProcessId { pid, start_ticks: stat.start_ticks, boot_id: boot_id()? })
}

/// Whether exactly this process still runs; a zombie does not. What cannot be read is an error and not a death.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn is_alive(process: &ProcessId) -> io::Result<bool> {
    if process.boot_id != boot_id()? {
        return Ok(false);
    }
    let stat = super::processes::stat(process.pid)?;
    Ok(stat.is_some_and(|s| s.start_ticks == process.start_ticks && !s.ended))
}
