//! Values that the kernel passed to this process at its start.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// The path by which this process was executed (`AT_EXECFN`, `getauxval(3)`), before symlinks were resolved.
///
/// `None` where the kernel gave none. An exec by descriptor leaves `/dev/fd/N` here, one through procfs its
/// `/proc/...` path.
#[must_use]
pub fn executed_path() -> Option<OsString> {
    // SAFETY: getauxval only reads the vector that the kernel placed on the initial stack; 0 means "no such entry".
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    if address == 0 {
        return None;
    }
    // SAFETY: a non-zero AT_EXECFN is the address of a NUL-terminated string above the initial stack; the kernel
    // wrote it before the first instruction and it stays mapped as long as the process.
    let text = unsafe { CStr::from_ptr(address as *const libc::c_char) };
    Some(OsStr::from_bytes(text.to_bytes()).to_owned())
}
