//! Identifies the boot and processes.

use std::io;
use std::os::unix::fs::MetadataExt as _;

use crate::spec::ProcessId;

/// The id of the running boot.
///
/// # Errors
/// When `/proc/sys/kernel/random/boot_id` cannot be read.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// Identifies a live process so that it cannot be confused with a later one.
///
/// # Errors
/// `NotFound` when there is no such process.
pub fn process_id(pid: i32) -> io::Result<ProcessId> {
    let stat = super::processes::stat(pid)?.ok_or(io::ErrorKind::NotFound)?;
    Ok(ProcessId { pid, start_ticks: stat.start_ticks, boot_id: boot_id()? })
}

/// The identity of this process.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn own() -> io::Result<ProcessId> {
    process_id(rustix::process::getpid().as_raw_nonzero().get())
}

/// The pid namespace (its inode) to which the pids that this process sees belong.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn pid_namespace() -> io::Result<u64> {
    Ok(std::fs::metadata("/proc/self/ns/pid")?.ino())
}

/// The first pid namespace of every boot (`PROC_PID_INIT_INO` of the kernel).
const FIRST_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether a pid namespace (its inode) certainly exists: the first one of the machine, or that of a process that is visible from
/// here.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn is_namespace_seen(namespace: u64) -> io::Result<bool> {
    let is_in = |pid| super::processes::is_in_pid_namespace(pid, namespace);
    Ok(namespace == FIRST_NAMESPACE || super::processes::all()?.iter().any(|process| is_in(process.pid)))
}

/// Whether exactly this process still runs; a zombie does not. A read failure is an error, and does not mean that it has ended.
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
