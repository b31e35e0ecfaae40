//! Filters on system calls: `seccomp(2)`.

use std::io;

/// Installs a filter on the calling thread permanently: its children and the programs that it executes have it, too.
///
/// # Errors
/// What `seccomp(2)` says: EACCES without `no_new_privs` and without `CAP_SYS_ADMIN`, EINVAL for a program that is empty, longer
/// than 4096 instructions or not a valid filter, ENOMEM when all filters together are too long, ENOSYS and EINVAL on a kernel
/// without them.
pub fn install(program: &[libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut() };
    // SAFETY: `filter` names `len` instructions that outlive the call; the kernel copies them and writes nothing. No flag asks
    // for another result than 0 or -1.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
