//! For a task that may not change files: Landlock restricts access to their content and names, but not to their metadata.

use super::filter::{Action, Arch, Check, Decision, Policy, Rule};

/// The calls that change mode, owner, times or attributes of a file, and the one that could make such calls indirectly.
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

/// Requests of `ioctl(2)` that change a file which is only open for reading, when the caller owns it: its attributes, project and
/// generation, and whether it can ever be written to again (`FS_IOC_SETFLAGS` with its 32-bit form, `FS_IOC_FSSETXATTR`,
/// `FS_IOC_SETVERSION` with its 32-bit form, ext4's own, `FS_IOC_ENABLE_VERITY`, `FS_IOC_SET_ENCRYPTION_POLICY`).
const REQUESTS: [u32; 8] =
    [0x4008_6602, 0x4004_6602, 0x401c_5820, 0x4008_7602, 0x4004_7602, 0x4008_6604, 0x4080_6685, 0x800c_6613];

/// Everything is allowed.
pub(super) fn unconfined(arch: Arch) -> Policy {
    Policy::new(arch.end(), Action::ALLOW, Action::ALLOW)
}

/// Makes the calls fail with EPERM.
pub(super) fn deny(policy: &mut Policy, arch: Arch) {
    let denied = policy.intern(Decision::always(Action::EPERM));
    for number in 0..arch.end() {
        if arch.name_of(number).is_some_and(|name| CALLS.contains(&name)) {
            policy.decide(number, denied);
        }
    }
    let refused = REQUESTS.map(|request| Rule { checks: vec![Check::low(1, request)], action: Action::EPERM });
    let ioctl = (0..arch.end()).find(|number| arch.name_of(*number) == Some("ioctl"));
    if let Some(number) = ioctl {
        policy.add(number, &refused);
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
