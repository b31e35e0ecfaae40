//! For a task that may change no file: Landlock, which holds it back from their content and names, knows nothing of what
//! is kept about them.

use super::filter::{Action, Arch, Decision, Policy};

/// The calls that change mode, owner, times or attributes of a file, and the one that would make others for them.
const CALLS: [&str; 22] = [
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
    "file_setattr",
    "io_uring_setup",
];

/// Everything is allowed.
pub(super) fn unconfined(arch: Arch) -> Policy {
    Policy::new(arch.end(), Action::ALLOW, Action::ALLOW)
}

/// From here on the calls end with EPERM.
pub(super) fn deny(policy: &mut Policy, arch: Arch) {
    let denied = policy.intern(Decision::always(Action::EPERM));
    for number in 0..arch.end() {
        if arch.name_of(number).is_some_and(|name| CALLS.contains(&name)) {
            policy.decide(number, denied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calls_are_known() {
        let names: Vec<_> = (0..Arch::X86_64.end()).filter_map(|number| Arch::X86_64.name_of(number)).collect();
        let missing: Vec<_> = CALLS.iter().filter(|name| !names.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
