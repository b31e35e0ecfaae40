//! The filter for a task's system calls, as a classic BPF program for the kernel.
//!
//! A policy has a decision for every number: one action, or rules about arguments. The program loads the number once and finds the
//! decision by binary search; adjacent numbers with the same decision share an entry, so about seven comparisons are needed.
//! Kernels from 5.11 on cache decisions that depend on the number only, and do not run the filter for them again.
//!
//! Calls of another architecture (on `x86_64` those by `int 0x80` and those of the x32 ABI) fail with ENOSYS under every filter, as
//! on a kernel that was built without them: their numbers have other meanings, and policies do not cover them.

mod filter;
mod metadata;
mod profile;
mod standard;
#[cfg(test)]
mod tests;

use caps::CapsHashSet;

use super::config::{Failure, Step as _};
use crate::spec::Seccomp;
use filter::Arch;

/// Longest text of a profile, in bytes.
const LONGEST_PROFILE: usize = 1 << 20;

/// The machine that a policy is made for.
struct Machine<'a> {
    arch: Arch,
    /// The kernel's version, major and minor.
    kernel: (u32, u32),
    /// Capabilities that the task has.
    held: &'a CapsHashSet,
    /// Whether it may give set-user-ID and set-group-ID bits to its files.
    set_id: SetId,
}

/// Whether a task may give set-user-ID and set-group-ID bits to files that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetId {
    /// As the kernel permits: for its own files.
    Allowed,
    /// No: the task is the host's root, and other users see its files.
    Refused,
}

/// The filter that a task with these capabilities gets; `None` when it gets none.
///
/// # Errors
/// A profile that says something unknown or impossible, and what about it; a machine for which there is no filter.
pub(crate) fn program(
    policy: &Seccomp,
    held: &CapsHashSet,
    set_id: SetId,
) -> Result<Option<Vec<libc::sock_filter>>, Failure> {
    if *policy == Seccomp::Unconfined {
        return Ok(None);
    }
    make(policy, held, set_id, false).map(Some)
}

/// Whether there are filters for this machine's architecture at all.
pub(super) const fn is_known_here() -> bool {
    Arch::NATIVE.is_some()
}

/// As [`program`], for a task that may not change files: also denies the calls that change file metadata.
///
/// # Errors
/// As of [`program`].
pub(super) fn without_metadata(
    policy: &Seccomp,
    held: &CapsHashSet,
    set_id: SetId,
) -> Result<Vec<libc::sock_filter>, Failure> {
    make(policy, held, set_id, true)
}

fn make(
    policy: &Seccomp,
    held: &CapsHashSet,
    set_id: SetId,
    deny_metadata: bool,
) -> Result<Vec<libc::sock_filter>, Failure> {
    let step = "make the seccomp filter";
    let Some(arch) = Arch::NATIVE else {
        let mend = "no seccomp filter for this machine's architecture; say seccomp = \"unconfined\"";
        return Err(Failure::invalid(step, mend));
    };
    let kernel =
        kernel_version(rustix::system::uname().release().to_bytes()).step(|| "read the kernel's version".to_owned())?;
    let machine = Machine { arch, kernel, held, set_id };
    let mut policy = match policy {
        Seccomp::Unconfined => metadata::unconfined(arch),
        Seccomp::Profile(text) if text.len() > LONGEST_PROFILE => {
            let message = format!("seccomp profile: it has {} bytes, at most {LONGEST_PROFILE} are read", text.len());
            return Err(Failure::invalid(step, message));
        }
        Seccomp::Profile(text) => profile::policy(text, &machine)
            .map_err(|error| Failure::invalid(step, format!("seccomp profile: {error}")))?,
        Seccomp::Default => standard::policy(&machine),
    };
    if deny_metadata {
        metadata::deny(&mut policy, arch);
    }
    policy.compile(arch).map_err(|error| Failure::invalid(step, format!("seccomp profile: {error}")))
}

/// Whether a task with these capabilities (names) can have this filter, for checks before a start.
///
/// # Errors
/// What a start would say.
pub fn check(policy: &Seccomp, capabilities: &[String]) -> Result<(), Failure> {
    program(policy, &super::identity::parse_capabilities(capabilities)?, SetId::Allowed).map(drop)
}

/// `6.1.0-13-amd64` is 6.1.
fn kernel_version(release: &[u8]) -> Result<(u32, u32), String> {
    let text = String::from_utf8_lossy(release);
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(format!("{text:?} is not a version")),
    }
}
