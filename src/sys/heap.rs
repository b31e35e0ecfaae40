//! The heap of a process that runs for weeks and has to stay small.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use super::{auxv, exe, process};

/// What glibc reads settings of its heap from, once, before `main`: `NAME=VALUE:NAME=VALUE`.
const TUNABLES: &str = "GLIBC_TUNABLES";
/// No chunk is kept for a thread; of a name that is there twice, the last counts.
const NO_CACHES: &str = "glibc.malloc.tcache_count=0";
/// Marks a process that has these settings because it wanted them. What it contains is the settings before.
const ONCE: &str = "AGENTBIN_HEAP";

/// Lets this process allocate with as few pages as the C library can, for one whose threads work one at a time: all from one heap, where
/// each further one would keep pages of its own for what little its threads leave, and without a cache of freed chunks per thread, since
/// those lie where they were last used, and have the living ones scattered over half a MiB that never becomes free.
///
/// The caches can only be switched off before a program starts. So this process executes its own file once more, with the same arguments,
/// descriptors and process id, and the setting in its environment, from which it is removed again: nothing that is started later inherits
/// it. Where that is impossible, because the file is not at its path any more or the process has rights that the kernel protects from its
/// environment, the caches stay.
///
/// To be called before there are threads or values whose destructors matter. `mallopt(3)`; `GLIBC_TUNABLES` in the manual of glibc;
/// another C library is left as it is.
pub(crate) fn keep_small() {
    // SAFETY: takes numbers; glibc locks its own state.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    if cfg!(target_env = "gnu") {
        without_caches();
    }
}

/// Executes this program once more, without caches. Returns in the process that has none, and in one where that is impossible.
fn without_caches() {
    if let Some(before) = std::env::var_os(ONCE) {
        put_back(&before);
        return;
    }
    // SAFETY: getauxval only reads the vector that the kernel placed on the initial stack.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let Some(path) = auxv::executed_path().filter(|path| !is_secure && is_own(Path::new(path))) else { return };
    let entry = |name: &OsStr, value: &OsStr| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok();
    let before = std::env::var_os(TUNABLES).unwrap_or_default();
    let envp = std::env::vars_os()
        .filter(|(name, _)| name != TUNABLES)
        .chain([(ONCE.into(), before.clone()), (TUNABLES.into(), extended(before))])
        .filter_map(|(name, value)| entry(&name, &value))
        .collect::<Vec<_>>();
    let argv = std::env::args_os().filter_map(|arg| CString::new(arg.into_vec()).ok()).collect::<Vec<_>>();
    if let Ok(path) = CString::new(path.into_vec()) {
        // The caches stay if it returns.
        let _ = process::execute(&path, &argv, &envp);
    }
}

/// These settings and that there are no caches.
fn extended(mut settings: OsString) -> OsString {
    if !settings.is_empty() {
        settings.push(":");
    }
    settings.push(NO_CACHES);
    settings
}

/// Whether the file at this path is the one that this process was started from.
fn is_own(path: &Path) -> bool {
    let identity = |path: &Path| rustix::fs::stat(path).map(|file| (file.st_dev, file.st_ino)).ok();
    identity(path).is_some_and(|file| identity(Path::new(exe::PATH)) == Some(file))
}

/// Gives this process the environment that it was first started with.
#[expect(clippy::disallowed_methods, reason = "before there are threads, and nobody has read the variables")]
fn put_back(before: &OsStr) {
    // SAFETY: the caller promises that there is no other thread.
    unsafe { std::env::remove_var(ONCE) };
    if before.is_empty() {
        // SAFETY: as above.
        unsafe { std::env::remove_var(TUNABLES) };
    } else {
        // SAFETY: as above.
        unsafe { std::env::set_var(TUNABLES, before) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_added_to_those_of_the_user() {
        assert_eq!(extended(OsString::new()), NO_CACHES);
        assert_eq!(extended("glibc.malloc.check=3".into()), "glibc.malloc.check=3:glibc.malloc.tcache_count=0");
    }

    #[test]
    fn only_the_own_file_is_executed_again() {
        assert!(is_own(Path::new(exe::PATH)));
        assert!(is_own(&std::fs::read_link(exe::PATH).unwrap()));
        assert!(!is_own(Path::new("/bin/sh")));
        assert!(!is_own(Path::new("/missing")));
    }
}
