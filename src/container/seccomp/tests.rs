//! Tests of seccomp filters, which are run without a kernel.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use caps::{Capability, CapsHashSet};
use libc::sock_filter;
use proptest::prelude::*;
use serde_json::json;

use super::filter::{Action, Arch};
use super::{Machine, SetId, kernel_version, profile, program, standard};
use crate::spec::Seccomp;

const KERNEL: (u32, u32) = (6, 1);
const I386: u32 = 0x4000_0003;
const ARM: u32 = 0x4000_0028;
const X32: u32 = 0x4000_0000;
const BOTH: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

// ---------------------------------------------------------------------------------------------------------------
// A filter's answer without a kernel.

/// What the kernel would do with the call, and how many instructions that takes.
fn run(filter: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> (Action, usize) {
    let mut data = Vec::with_capacity(64);
    data.extend(number.to_le_bytes());
    data.extend(arch.to_le_bytes());
    data.extend(0_u64.to_le_bytes());
    data.extend(args.iter().flat_map(|arg| arg.to_le_bytes()));
    let (mut at, mut loaded) = (0, 0_u32);
    for steps in 1.. {
        let sock_filter { code, jt, jf, k } = filter[at];
        let jump = |condition: bool| at + 1 + usize::from(if condition { jt } else { jf });
        at = match code {
            0x20 => {
                assert_eq!(k % 4, 0, "the kernel refuses this load");
                loaded = u32::from_le_bytes(data[k as usize..][..4].try_into().unwrap());
                at + 1
            }
            0x54 => {
                loaded &= k;
                at + 1
            }
            0x05 => at + 1 + k as usize,
            0x15 => jump(loaded == k),
            0x25 => jump(loaded > k),
            0x35 => jump(loaded >= k),
            0x06 => return (Action(k), steps),
            other => panic!("no such instruction: {other:#x}"),
        };
    }
    unreachable!("a program of finite length that only jumps ahead")
}

fn word(action: Action) -> String {
    match action {
        Action::ALLOW => "allow".to_owned(),
        Action::EPERM => "EPERM".to_owned(),
        Action::ENOSYS => "ENOSYS".to_owned(),
        other if other == Action::error(libc::EAFNOSUPPORT as u16) => "EAFNOSUPPORT".to_owned(),
        other => format!("{:#x}", other.0),
    }
}

fn standard_filter(arch: Arch, held: &CapsHashSet) -> Vec<sock_filter> {
    standard::policy(&Machine { arch, kernel: KERNEL, held, set_id: SetId::Allowed }).compile(arch).unwrap()
}

fn number_of(arch: Arch, name: &str) -> u32 {
    (0..arch.end()).find(|number| arch.name_of(*number) == Some(name)).unwrap_or_else(|| panic!("{name}")) as u32
}

/// Calls for which the arguments matter: name of the call, arguments, description.
const CASES: &[(&str, [u64; 3], &str)] = &[
    ("clone", [0x11, 0, 0], "SIGCHLD"),
    ("clone", [0x003d_0f00, 0, 0], "a thread of glibc"),
    ("clone", [0x4111, 0, 0], "vfork"),
    ("clone", [0x1000_0011, 0, 0], "NEWUSER"),
    ("clone", [0x0002_0011, 0, 0], "NEWNS"),
    ("clone", [0x0200_0011, 0, 0], "NEWCGROUP"),
    ("clone", [0x0400_0011, 0, 0], "NEWUTS"),
    ("clone", [0x0800_0011, 0, 0], "NEWIPC"),
    ("clone", [0x2000_0011, 0, 0], "NEWPID"),
    ("clone", [0x4000_0011, 0, 0], "NEWNET"),
    ("clone", [0x1_1000_0011, 0, 0], "NEWUSER with a high bit"),
    ("clone", [0x1_0000_0011, 0, 0], "SIGCHLD with a high bit"),
    ("personality", [0, 0, 0], "PER_LINUX"),
    ("personality", [8, 0, 0], "PER_LINUX32"),
    ("personality", [0x2_0000, 0, 0], "UNAME26"),
    ("personality", [0xffff_ffff, 0, 0], "the question"),
    ("personality", [0xffff_ffff_ffff_ffff, 0, 0], "the question, signed"),
    ("personality", [0x4_0000, 0, 0], "ADDR_NO_RANDOMIZE"),
    ("personality", [0x1_0004_0000, 0, 0], "ADDR_NO_RANDOMIZE with a high bit"),
    ("personality", [0x40_0000, 0, 0], "READ_IMPLIES_EXEC"),
    ("socket", [1, 1, 0], "AF_UNIX"),
    ("socket", [2, 1, 0], "AF_INET"),
    ("socket", [10, 1, 0], "AF_INET6"),
    ("socket", [16, 3, 0], "AF_NETLINK"),
    ("socket", [15, 3, 2], "AF_KEY"),
    ("socket", [17, 3, 0], "AF_PACKET"),
    ("socket", [21, 5, 0], "AF_RDS"),
    ("socket", [29, 3, 1], "AF_CAN"),
    ("socket", [30, 1, 0], "AF_TIPC"),
    ("socket", [31, 3, 1], "AF_BLUETOOTH"),
    ("socket", [33, 2, 2], "AF_RXRPC"),
    ("socket", [38, 5, 0], "AF_ALG"),
    ("socket", [0x1_0000_0026, 5, 0], "AF_ALG with a high bit"),
    ("socket", [0xffff_ffff_0000_0026, 5, 0], "AF_ALG with all high bits"),
    ("socket", [40, 1, 0], "AF_VSOCK"),
    ("socket", [0x8000_0000_0000_0028, 1, 0], "AF_VSOCK with the highest bit"),
    ("socket", [44, 3, 0], "AF_XDP"),
    ("socketpair", [1, 1, 0], "AF_UNIX"),
    ("socketpair", [30, 1, 0], "AF_TIPC"),
    ("ioctl", [0, 0x5401, 0], "TCGETS"),
    ("ioctl", [0, 0x5412, 0], "TIOCSTI"),
    ("ioctl", [0, 0x1_0000_5412, 0], "TIOCSTI with a high bit"),
    ("ioctl", [0, 0xffff_ffff_0000_5412, 0], "TIOCSTI with all high bits"),
    ("ioctl", [0x5412, 0x541b, 0x5412], "FIONREAD of descriptor 0x5412"),
    ("ioctl", [0, 0x541c, 0], "TIOCLINUX"),
    ("ioctl", [0, 0x8000_0000_0000_541c, 0], "TIOCLINUX with the highest bit"),
];

fn pad(args: [u64; 3]) -> [u64; 6] {
    [args[0], args[1], args[2], 0, 0, 0]
}

/// C05, C06, C08: what the default filter says about every number and about the arguments that matter, without
/// capabilities, with `CAP_SYS_ADMIN` and with all of them.
#[test]
fn n6_default_filter_is_the_golden_table() {
    let none = CapsHashSet::new();
    let admin = CapsHashSet::from([Capability::CAP_SYS_ADMIN]);
    let all = caps::all();
    let mut table = String::new();
    for arch in BOTH {
        let filters = [&none, &admin, &all].map(|held| standard_filter(arch, held));
        let words = |number: u32, args: [u64; 6]| {
            filters.each_ref().map(|filter| word(run(filter, arch.audit(), number, args).0))
        };
        writeln!(table, "# {arch:?}: number, name, without capabilities, with CAP_SYS_ADMIN, with all").unwrap();
        for number in 0..=600 {
            let [none, admin, all] = words(number, [0; 6]);
            let name = arch.name_of(number as usize).unwrap_or("-");
            if CASES.iter().any(|(case, ..)| *case == name) {
                continue;
            }
            writeln!(table, "{number} {name} {none} {admin} {all}").unwrap();
        }
        writeln!(table, "# {arch:?}: by argument").unwrap();
        for (name, args, what) in CASES {
            let [none, admin, all] = words(number_of(arch, name), pad(*args));
            writeln!(table, "{name} {what}: {none} {admin} {all}").unwrap();
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/container/testdata/seccomp.txt");
    if std::env::var_os("AGENTBIN_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(golden.parent().unwrap()).unwrap();
        std::fs::write(&golden, &table).unwrap();
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    for (ours, theirs) in table.lines().zip(expected.lines()) {
        assert_eq!(ours, theirs, "if it is meant, AGENTBIN_WRITE_GOLDEN=1 writes {}", golden.display());
    }
    assert_eq!(table.lines().count(), expected.lines().count());
}

/// D11: a task that is the host's root changes modes as usual, but sets no set-id bit; the parts of the argument that the kernel
/// does not read do not matter.
#[test]
fn set_id_bits_are_refused_in_every_form() {
    for arch in BOTH {
        let none = CapsHashSet::new();
        let machine = Machine { arch, kernel: KERNEL, held: &none, set_id: SetId::Refused };
        let filter = standard::policy(&machine).compile(arch).unwrap();
        for (name, at) in [("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2)] {
            if name == "chmod" && arch == Arch::Aarch64 {
                continue;
            }
            for (mode, expected) in [
                (0o755, Action::ALLOW),
                (0o1777, Action::ALLOW),
                (0x1_0000_01ed, Action::ALLOW),
                (0o4755, Action::EPERM),
                (0o2755, Action::EPERM),
                (0o6000, Action::EPERM),
                (0o104_755, Action::EPERM),
                (0x1_0000_09ed, Action::EPERM),
                (u64::MAX, Action::EPERM),
            ] {
                let mut args = [0; 6];
                args[at] = mode;
                let seen = run(&filter, arch.audit(), number_of(arch, name), args).0;
                assert_eq!(word(seen), word(expected), "{arch:?} {name} {mode:o}");
            }
        }
    }
}

/// D80: such a task creates no file with the set-group-ID bit, which an access control list could make effective afterwards.
/// Arguments that the kernel does not read do not matter here either: a mode counts only where a file is created.
#[test]
fn set_gid_files_are_not_made() {
    let none = CapsHashSet::new();
    for (arch, set_id) in BOTH.into_iter().flat_map(|arch| [(arch, SetId::Refused), (arch, SetId::Allowed)]) {
        let filter = standard::policy(&Machine { arch, kernel: KERNEL, held: &none, set_id }).compile(arch).unwrap();
        let seen = |name: &str, args: [u64; 6]| word(run(&filter, arch.audit(), number_of(arch, name), args).0);
        let refused = if set_id == SetId::Refused { "EPERM" } else { "allow" };
        let calls: [(&str, Option<usize>, usize); 5] = [
            ("openat", Some(2), 3),
            ("open", Some(1), 2),
            ("creat", None, 1),
            ("mknod", None, 1),
            ("mknodat", None, 2),
        ];
        for (name, flags, mode) in calls {
            if arch == Arch::Aarch64 && !["openat", "mknodat"].contains(&name) {
                continue;
            }
            let call = |flag: u64, value: u64| {
                let mut args = [0; 6];
                args[mode] = value;
                if let Some(at) = flags {
                    args[at] = flag;
                }
                seen(name, args)
            };
            for flag in [0o101, 0o20_200_002, 0x1_0000_0042] {
                for mode in [0o2705, 0o2755, 0o6755, 0o102_644, u64::MAX] {
                    assert_eq!(call(flag, mode), refused, "{arch:?} {name} {flag:o} {mode:o}");
                }
                for mode in [0o644, 0o4755, 0o1777, 0o100_644] {
                    assert_eq!(call(flag, mode), "allow", "{arch:?} {name} {flag:o} {mode:o}");
                }
            }
            if flags.is_some() {
                assert_eq!(call(0o2, u64::MAX), "allow", "{arch:?} {name}: what lies in the register of no mode");
            }
        }
        assert_eq!(seen("openat2", [0; 6]), if set_id == SetId::Refused { "ENOSYS" } else { "allow" });
    }
}

/// C06: numbers of another architecture have other meanings, and no filter lets them through.
#[test]
fn c06_foreign_architectures_do_not_exist() {
    let everything = r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]}"#;
    for arch in BOTH {
        let none = CapsHashSet::new();
        let machine = Machine { arch, kernel: KERNEL, held: &none, set_id: SetId::Allowed };
        let all = caps::all();
        let open = profile::policy(everything, &machine).unwrap().compile(arch).unwrap();
        for filter in [standard_filter(arch, &none), standard_filter(arch, &all), open] {
            for foreign in [Arch::X86_64.audit(), Arch::Aarch64.audit(), I386, ARM, 0, u32::MAX] {
                for number in (0..=600).filter(|_| foreign != arch.audit()) {
                    assert_eq!(run(&filter, foreign, number, [0; 6]).0, Action::ENOSYS, "{foreign:#x} {number}");
                }
            }
            if arch == Arch::X86_64 {
                for number in (0..=600).flat_map(|number| [X32 | number, 0x8000_0000 | number, u32::MAX - number]) {
                    assert_eq!(run(&filter, arch.audit(), number, [0; 6]).0, Action::ENOSYS, "{number:#x}");
                }
            }
        }
    }
}

#[test]
fn every_known_call_is_decided_upon_once() {
    for arch in BOTH {
        let mut seen = vec![0; arch.end()];
        standard::groups(arch).flat_map(|(_, calls)| *calls).for_each(|call| seen[usize::from(*call)] += 1);
        for (number, times) in seen.into_iter().enumerate() {
            let name = arch.name_of(number);
            assert_eq!(times, i32::from(name.is_some()), "{arch:?} {number} {name:?}");
        }
    }
}

#[test]
fn a_common_call_takes_few_steps() {
    for arch in BOTH {
        let filter = standard_filter(arch, &CapsHashSet::new());
        let steps = |name: &str| run(&filter, arch.audit(), number_of(arch, name), [0; 6]).1;
        // Two loads, the architecture, the return; the other instructions are the search.
        for name in ["read", "write", "openat", "futex", "epoll_pwait", "mmap", "clock_gettime", "sendto"] {
            assert!(steps(name) <= 4 + 8, "{arch:?} {name}: {}", steps(name));
        }
        assert!(filter.len() < 300, "{}", filter.len());
    }
}

#[test]
fn tracing_waits_for_a_kernel_that_looks_twice() {
    let none = CapsHashSet::new();
    let tracer = CapsHashSet::from([Capability::CAP_SYS_PTRACE]);
    for (kernel, held, expected) in
        [((4, 7), &none, Action::EPERM), ((4, 7), &tracer, Action::ALLOW), ((4, 8), &none, Action::ALLOW)]
    {
        let arch = Arch::X86_64;
        let filter = standard::policy(&Machine { arch, kernel, held, set_id: SetId::Allowed }).compile(arch).unwrap();
        assert_eq!(run(&filter, arch.audit(), number_of(arch, "ptrace"), [0; 6]).0, expected, "{kernel:?}");
    }
}

// ---------------------------------------------------------------------------------------------------------------
// Profiles.

fn compiled(text: &str, machine: &Machine<'_>) -> Result<Vec<sock_filter>, String> {
    profile::policy(text, machine)?.compile(machine.arch)
}

/// The format that Docker and OCI share, with all of its fields.
#[test]
fn n6_profiles_say_what_the_filter_does() {
    let profile = json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 13,
        "archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]}],
        "syscalls": [
            {"names": ["read", "write", "no_such_call", "newfstatat"], "action": "SCMP_ACT_ALLOW", "comment": "files",
             "args": [], "includes": {}, "excludes": {}},
            {"name": "close", "action": "SCMP_ACT_LOG"},
            {"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38, "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
            {"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
            {"names": ["kcmp"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "6.2"}},
            {"names": ["kill"], "action": "SCMP_ACT_ALLOW", "excludes": {"minKernel": "6.2"}},
            {"names": ["tkill"], "action": "SCMP_ACT_ALLOW", "excludes": {"minKernel": "6.0"}},
            {"names": ["lseek"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["arm64", "s390x"]}},
            {"names": ["fsync"], "action": "SCMP_ACT_ALLOW", "excludes": {"arches": ["amd64"]}},
            {"names": ["reboot"], "action": "SCMP_ACT_KILL"},
            {"names": ["kexec_load"], "action": "SCMP_ACT_KILL_PROCESS"},
            {"names": ["acct"], "action": "SCMP_ACT_TRAP"},
            {"names": ["bpf"], "action": "SCMP_ACT_ALLOW"},
            {"names": ["bpf"], "action": "SCMP_ACT_KILL_THREAD", "args": [{"index": 0, "value": 5, "op": "SCMP_CMP_EQ"}]},
            {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": [
                {"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": 0, "value": 2, "op": "SCMP_CMP_EQ"}]},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": [
                {"index": 0, "value": 2_114_060_288_u64, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["prlimit64"], "action": "SCMP_ACT_ALLOW", "args": [
                {"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}, {"index": 2, "value": 0, "op": "SCMP_CMP_EQ"}]},
        ],
    })
    .to_string();
    let arch = Arch::X86_64;
    let none = CapsHashSet::new();
    let admin = CapsHashSet::from([Capability::CAP_SYS_ADMIN]);
    let filter = compiled(&profile, &Machine { arch, kernel: KERNEL, held: &none, set_id: SetId::Allowed }).unwrap();
    let with_admin =
        compiled(&profile, &Machine { arch, kernel: KERNEL, held: &admin, set_id: SetId::Allowed }).unwrap();
    let on_arm =
        compiled(&profile, &Machine { arch: Arch::Aarch64, kernel: KERNEL, held: &none, set_id: SetId::Allowed })
            .unwrap();
    let denied = Action::error(13);
    for (name, args, expected) in [
        ("read", [0, 0, 0], Action::ALLOW),
        ("newfstatat", [0, 0, 0], Action::ALLOW),
        ("open", [0, 0, 0], denied),
        ("close", [0, 0, 0], Action::LOG),
        ("mount", [0, 0, 0], Action::ENOSYS),
        ("ptrace", [0, 0, 0], Action::ALLOW),
        ("kcmp", [0, 0, 0], denied),
        ("kill", [0, 0, 0], Action::ALLOW),
        ("tkill", [0, 0, 0], denied),
        ("lseek", [0, 0, 0], denied),
        ("fsync", [0, 0, 0], denied),
        ("reboot", [0, 0, 0], Action::KILL_THREAD),
        ("kexec_load", [0, 0, 0], Action::KILL_PROCESS),
        ("acct", [0, 0, 0], Action::TRAP),
        ("bpf", [5, 0, 0], Action::KILL_THREAD),
        ("bpf", [6, 0, 0], Action::ALLOW),
        ("bpf", [0x1_0000_0005, 0, 0], Action::ALLOW),
        ("socket", [1, 0, 0], Action::ALLOW),
        ("socket", [2, 0, 0], Action::ALLOW),
        ("socket", [3, 0, 0], denied),
        ("clone", [0x11, 0, 0], Action::ALLOW),
        ("clone", [0x1000_0011, 0, 0], denied),
        ("prlimit64", [0, 9, 0], Action::ALLOW),
        ("prlimit64", [0, 9, 1], denied),
        ("prlimit64", [1, 9, 0], denied),
    ] {
        assert_eq!(run(&filter, arch.audit(), number_of(arch, name), pad(args)).0, expected, "{name} {args:x?}");
    }
    assert_eq!(run(&with_admin, arch.audit(), number_of(arch, "mount"), [0; 6]).0, Action::ALLOW);
    for name in ["lseek", "fsync", "newfstatat"] {
        let number = number_of(Arch::Aarch64, name);
        assert_eq!(run(&on_arm, Arch::Aarch64.audit(), number, [0; 6]).0, Action::ALLOW, "{name}");
    }
    // Newer than the newest call that is named.
    for number in [number_of(arch, "bpf") + 20, 469, 470, 600] {
        assert_eq!(run(&filter, arch.audit(), number, [0; 6]).0, Action::ENOSYS, "{number}");
    }
}

/// Any file of the host may be given as a profile, and the author of the job sees the error.
#[test]
fn n6_no_word_of_a_profile_is_in_an_error() {
    const WORD: &str = "hunter2, expected nothing";
    let none = CapsHashSet::new();
    let machine = || Machine { arch: Arch::X86_64, kernel: KERNEL, held: &none, set_id: SetId::Allowed };
    let rule = |rule: serde_json::Value| json!({ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule] });
    let arg = |arg: serde_json::Value| rule(json!({ "names": [WORD], "action": "SCMP_ACT_ERRNO", "args": [arg] }));
    let condition = |key: &str, condition: serde_json::Value| {
        rule(json!({ "names": ["open"], "action": "SCMP_ACT_ERRNO", key: condition }))
    };
    let mut texts: Vec<String> = [
        json!(WORD),
        json!([WORD]),
        json!({ WORD: 1 }),
        json!({ "defaultAction": WORD }),
        json!({ "defaultAction": { WORD: WORD } }),
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrno": WORD }),
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": WORD }),
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 7_734_001 }),
        json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 77.34 }),
        json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": [WORD] }),
        json!({ "defaultAction": "SCMP_ACT_ALLOW", "architectures": WORD }),
        json!({ "defaultAction": "SCMP_ACT_ALLOW", "archMap": [{ "architecture": WORD }] }),
        json!({ "defaultAction": "SCMP_ACT_ALLOW", "archMap": [{ WORD: WORD }] }),
        json!({ "defaultAction": "SCMP_ACT_ALLOW", "flags": [WORD] }),
        json!({ "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": WORD }),
        rule(json!({ "names": ["open"], "action": WORD })),
        rule(json!({ "names": [WORD], "action": "SCMP_ACT_TRACE" })),
        rule(json!({ "names": WORD, "action": "SCMP_ACT_LOG" })),
        rule(json!({ "names": [WORD], "action": "SCMP_ACT_ERRNO", "errno": WORD })),
        rule(json!({ "names": [WORD], WORD: 1, "action": "SCMP_ACT_LOG" })),
        arg(json!({ "index": 7_734_001, "op": "SCMP_CMP_EQ" })),
        arg(json!({ "index": 0, "op": WORD })),
        arg(json!({ "index": 0, "op": 7_734_001 })),
        arg(json!({ "index": 0, "value": -7_734_001, "op": "SCMP_CMP_EQ" })),
        arg(json!({ "index": 0, "value": 8, "valueTwo": 7_734_001, "op": "SCMP_CMP_MASKED_EQ" })),
        arg(json!({ "index": 0, "op": "SCMP_CMP_EQ", WORD: WORD })),
        condition("includes", json!({ "caps": [WORD] })),
        condition("includes", json!({ "minKernel": WORD })),
        condition("excludes", json!({ "caps": [WORD] })),
        condition("excludes", json!({ WORD: WORD })),
    ]
    .iter()
    .map(ToString::to_string)
    .collect();
    let files =
        ["root:hunter2:19000:0:99999:7:::\n", "hunter2", "{ \"hunter2\"", "[hunter2]", "\"hunter2", "{\"a\": hunter2}"];
    texts.extend(files.map(str::to_owned));
    for text in texts {
        let error = compiled(&text, &machine()).unwrap_err();
        let said =
            ["hunter2", "nothing", "7734001", "75f6d1", "760371", "77.34"].iter().find(|word| error.contains(**word));
        assert_eq!(said, None, "{text}: {error}");
    }
}

#[test]
fn n6_unusable_profiles_are_refused_with_the_reason() {
    let none = CapsHashSet::new();
    let arch = Arch::X86_64;
    let rule = |more: &str| {
        format!(r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{{"names": ["open", "mount"], {more}}}]}}"#)
    };
    let arg = |more: &str| rule(&format!(r#""action": "SCMP_ACT_ERRNO", "args": [{{{more}}}]"#));
    for (text, reason) in [
        (String::new(), "EOF"),
        ("[]".to_owned(), "expected struct Profile"),
        ("{}".to_owned(), "defaultAction"),
        (r#"{"defaultAction": "ALLOW"}"#.to_owned(), r#"unknown "defaultAction"; known are"#),
        (r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#.to_owned(), "SCMP_ACT_NOTIFY: there is nobody here to ask"),
        (
            r#"{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 4096}"#.to_owned(),
            r#""defaultErrnoRet" is not between"#,
        ),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "flags": ["SECCOMP_X"]}"#.to_owned(), "flags[0]: unknown"),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"}"#.to_owned(), "listenerPath"),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["amd64"]}"#.to_owned(), "architectures[0]: unknown"),
        (rule(r#""action": "SCMP_ACT_TRACE""#), r#"syscalls[0]: "action" SCMP_ACT_TRACE"#),
        (rule(r#""action": "SCMP_ACT_DENY""#), r#"syscalls[0]: unknown "action"; known are"#),
        (rule(r#""action": "SCMP_ACT_ERRNO", "errnoRet": -1"#), r#""errnoRet" is not between 0 and 4095"#),
        (rule(r#""action": "SCMP_ACT_KILL", "errnoRet": 1"#), "goes with SCMP_ACT_ERRNO"),
        (rule(r#""action": "SCMP_ACT_ERRNO", "errno": "EIO""#), r#"an errno without "errnoRet""#),
        (rule(r#""action": "SCMP_ACT_ERRNO", "arg": []"#), "expected one of `name`, `names`, `action`"),
        (
            rule(r#""action": "SCMP_ACT_ERRNO", "includes": {"capabilities": []}"#),
            "expected one of `caps`, `arches`, `minKernel`",
        ),
        (
            rule(r#""action": "SCMP_ACT_ERRNO", "includes": {"caps": ["CAP_FLY"]}"#),
            r#"syscalls[0]: "caps": unknown capability"#,
        ),
        (rule(r#""action": "SCMP_ACT_ERRNO", "includes": {"minKernel": "new"}"#), r#""minKernel" is not a version"#),
        (arg(r#""index": 6, "value": 1, "op": "SCMP_CMP_EQ""#), r#"syscalls[0]: args[0]: "index" is"#),
        (arg(r#""index": 0, "value": 1, "op": "EQ""#), r#"unknown "op"; known are"#),
        (arg(r#""index": 0, "value": -1, "op": "SCMP_CMP_EQ""#), "expected u64"),
        (arg(r#""index": 0, "value": 1, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ""#), r#""valueTwo" has bits"#),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_LOG"}]}"#.to_owned(), "neither"),
    ] {
        let error =
            compiled(&text, &Machine { arch, kernel: KERNEL, held: &none, set_id: SetId::Allowed }).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }

    let many = |count: u64| {
        let rules: Vec<_> = (0..count)
            .map(|value| {
                let args = [json!({"index": 0, "value": value, "op": "SCMP_CMP_EQ"})];
                json!({"names": ["mount"], "action": "SCMP_ACT_ERRNO", "args": args})
            })
            .collect();
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}).to_string()
    };
    // Four instructions each.
    let long = program(&Seccomp::Profile(many(1000)), &none, SetId::Allowed).unwrap().unwrap();
    let native = Arch::NATIVE.unwrap();
    for (value, expected) in [(0, Action::EPERM), (500, Action::EPERM), (999, Action::EPERM), (1000, Action::ALLOW)] {
        let number = number_of(native, "mount");
        assert_eq!(run(&long, native.audit(), number, [value, 0, 0, 0, 0, 0]).0, expected, "{value}");
    }
    let error = program(&Seccomp::Profile(many(1100)), &none, SetId::Allowed).unwrap_err().to_string();
    assert!(error.contains("4096 instructions"), "{error}");
    // A short profile that expands a lot: many names times many alternatives.
    let names = vec!["mount"; 1000];
    let args = vec![json!({"index": 0, "value": 1, "op": "SCMP_CMP_EQ"}); 100];
    let rule = json!({"names": names, "action": "SCMP_ACT_ERRNO", "args": args});
    let text = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]}).to_string();
    let error = program(&Seccomp::Profile(text), &none, SetId::Allowed).unwrap_err().to_string();
    assert!(error.contains("65536 rules"), "{error}");
    let error = program(&Seccomp::Profile(" ".repeat((1 << 20) + 1)), &none, SetId::Allowed).unwrap_err().to_string();
    assert!(error.contains("1048577 bytes"), "{error}");
    assert!(program(&Seccomp::Unconfined, &none, SetId::Allowed).unwrap().is_none());
}

#[test]
fn kernel_versions() {
    assert_eq!(kernel_version(b"6.1.0-13-amd64"), Ok((6, 1)));
    assert_eq!(kernel_version(b"4.8"), Ok((4, 8)));
    for bad in [&b""[..], b"6", b"six.one", b".1"] {
        assert!(kernel_version(bad).is_err(), "{bad:?}");
    }
}

/// A rule that the property test generates: names, action with its errno, conditions (argument, operator, value, second value).
type Made = (Vec<usize>, (usize, u16), Vec<(usize, usize, u64, u64)>);

const NAMES: [&str; 6] = ["read", "write", "clone", "socket", "openat", "bpf"];
const OPERATORS: [&str; 7] = ["EQ", "NE", "LT", "LE", "GT", "GE", "MASKED_EQ"];
/// From the strictest to the most permissive.
const ACTIONS: [&str; 6] = ["KILL_PROCESS", "KILL_THREAD", "TRAP", "ERRNO", "LOG", "ALLOW"];

fn returned((action, errno): (usize, u16)) -> Action {
    match ACTIONS[action] {
        "KILL_PROCESS" => Action::KILL_PROCESS,
        "KILL_THREAD" => Action::KILL_THREAD,
        "TRAP" => Action::TRAP,
        "ERRNO" => Action::error(errno),
        "LOG" => Action::LOG,
        _ => Action::ALLOW,
    }
}

fn holds(operator: usize, arg: u64, value: u64, second: u64) -> bool {
    match OPERATORS[operator] {
        "EQ" => arg == value,
        "NE" => arg != value,
        "LT" => arg < value,
        "LE" => arg <= value,
        "GT" => arg > value,
        "GE" => arg >= value,
        _ => arg & value == second & value,
    }
}

/// The meaning of a profile, evaluated naively.
fn naive(rules: &[Made], default: (usize, u16), name: usize, args: [u64; 6]) -> Action {
    let mut best: Option<(usize, u16)> = None;
    for (names, action, conditions) in rules {
        let met =
            |&(index, operator, value, second): &(usize, usize, u64, u64)| holds(operator, args[index], value, second);
        let twice = (0..6).any(|index| conditions.iter().filter(|c| c.0 == index).count() > 1);
        let applies = if twice { conditions.iter().any(met) } else { conditions.iter().all(met) };
        if names.contains(&name) && applies && best.is_none_or(|best| action.0 < best.0) {
            best = Some(*action);
        }
    }
    returned(best.unwrap_or(default))
}

/// Numbers around the boundaries of the two 32-bit halves.
fn interesting() -> impl Strategy<Value = u64> {
    let half = prop_oneof![Just(0_u64), Just(1), Just(2), Just(0x7fff_ffff), Just(0x8000_0000), Just(0xffff_ffff)];
    (half.clone(), half).prop_map(|(high, low)| high << 32 | low)
}

fn made() -> impl Strategy<Value = Made> {
    let names = proptest::collection::vec(0..NAMES.len(), 1..4);
    let conditions = proptest::collection::vec((0..6_usize, 0..OPERATORS.len(), interesting(), interesting()), 0..4);
    (names, (0..ACTIONS.len(), 1..100_u16), conditions)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn n6_filters_agree_with_their_profiles(
        rules in proptest::collection::vec(made(), 0..24),
        default in (0..ACTIONS.len(), 1..100_u16),
        calls in proptest::collection::vec((0..NAMES.len(), proptest::array::uniform6(interesting())), 40),
    ) {
        let with_errno = |field: &str, (action, errno): (usize, u16), mut value: serde_json::Value| {
            if ACTIONS[action] == "ERRNO" {
                value[field] = errno.into();
            }
            value
        };
        let syscalls: Vec<_> = rules
            .iter()
            .map(|(names, action, conditions)| {
                let names: Vec<_> = names.iter().map(|name| NAMES[*name]).collect();
                let args: Vec<_> = conditions
                    .iter()
                    .map(|(index, operator, value, second)| {
                        let second = if OPERATORS[*operator] == "MASKED_EQ" { second & value } else { *second };
                        let op = format!("SCMP_CMP_{}", OPERATORS[*operator]);
                        json!({"index": index, "op": op, "value": value, "valueTwo": second})
                    })
                    .collect();
                let action_name = format!("SCMP_ACT_{}", ACTIONS[action.0]);
                with_errno("errnoRet", *action, json!({"names": names, "action": action_name, "args": args}))
            })
            .collect();
        let action_name = format!("SCMP_ACT_{}", ACTIONS[default.0]);
        let profile = json!({"defaultAction": action_name, "syscalls": syscalls});
        let profile = with_errno("defaultErrnoRet", default, profile).to_string();
        let none = CapsHashSet::new();
        for arch in BOTH {
            let filter = compiled(&profile, &Machine { arch, kernel: KERNEL, held: &none, set_id: SetId::Allowed }).unwrap();
            let newest =
                rules.iter().flat_map(|rule| &rule.0).map(|name| number_of(arch, NAMES[*name])).max().map_or(0, |n| n + 1);
            for (name, args) in &calls {
                let number = number_of(arch, NAMES[*name]);
                let expected = if number >= newest && !returned(default).is_permissive() {
                    Action::ENOSYS
                } else {
                    naive(&rules, default, *name, *args)
                };
                prop_assert_eq!(run(&filter, arch.audit(), number, *args).0, expected, "{} {:x?}", NAMES[*name], args);
            }
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The kernel, and programs.

/// The output of the command when this process executes it, with the default filter of a task without capabilities or without a
/// filter. It follows what libtest prints.
fn become_command(command: &[&str], filtered: bool) -> Output {
    Command::new("/proc/self/exe")
        .args(["--exact", "container::seccomp::tests::becomes_a_command", "--ignored", "--nocapture"])
        .env("AGENTBIN_TEST_COMMAND", serde_json::to_string(command).unwrap())
        .env("AGENTBIN_TEST_FILTER", if filtered { "default" } else { "" })
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// A filter cannot be removed, so it is installed in a separate process. It applies to this thread only, until exec ends the
/// others.
#[test]
#[ignore = "run by n6_programs_run_under_the_default_filter"]
fn becomes_a_command() {
    let command: Vec<String> = serde_json::from_str(&std::env::var("AGENTBIN_TEST_COMMAND").unwrap()).unwrap();
    if std::env::var("AGENTBIN_TEST_FILTER").unwrap() == "default" {
        let filter = program(&Seccomp::Default, &CapsHashSet::new(), SetId::Allowed).unwrap().unwrap();
        crate::sys::prctl::set_no_new_privs().unwrap();
        crate::sys::seccomp::install(&filter).unwrap();
    }
    let error = Command::new(&command[0]).args(&command[1..]).env_remove("AGENTBIN_TEST_COMMAND").exec();
    panic!("{}: {error}", command[0]);
}

fn skip(name: &str, reason: &str) {
    println!("SKIP: {name}: {reason}");
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// C05, C08, I44 to I72: errno of each call, with and without the filter, to show that every row depends on it.
#[test]
fn n6_the_kernel_denies_what_the_table_says() {
    if !has("perl") {
        return skip("n6_the_kernel_denies_what_the_table_says", "no perl to make calls by number");
    }
    let arch = Arch::NATIVE.unwrap();
    // Each in a separate process, as some of them succeed without the filter.
    let mut script = "$| = 1; sub try { my ($name, @call) = @_; my $pid = fork;\n\
        if ($pid) { waitpid $pid, 0; return } my $own = $$; my $r = syscall($call[0], @call[1..$#call]);\n\
        printf \"%s %d\\n\", $name, $r == -1 ? $! + 0 : 0 if $own == $$; exit 0 }\n"
        .to_owned();
    let rows: &[(&str, &str, &str, i32)] = &[
        ("clone3", "clone3", "0, 0", libc::ENOSYS),
        ("unshare-user", "unshare", "0x10000000", libc::EPERM),
        ("unshare-mount", "unshare", "0x00020000", libc::EPERM),
        ("setns", "setns", "-1, 0", libc::EPERM),
        ("clone-user", "clone", "0x10000011, 0, 0, 0, 0", libc::EPERM),
        ("mount", "mount", "0, 0, 0, 0, 0", libc::EPERM),
        ("fsopen", "fsopen", "0, 0", libc::EPERM),
        ("open_tree", "open_tree", "-1, 0, 0", libc::EPERM),
        ("keyctl", "keyctl", "0, -3, 0", libc::EPERM),
        ("add_key", "add_key", "0, 0, 0, 0, 0", libc::EPERM),
        ("bpf", "bpf", "0, 0, 0", libc::EPERM),
        ("perf_event_open", "perf_event_open", "0, 0, 0, 0, 0", libc::EPERM),
        ("userfaultfd", "userfaultfd", "-1", libc::EPERM),
        ("io_uring_setup", "io_uring_setup", "1, 0", libc::EPERM),
        ("open_by_handle_at", "open_by_handle_at", "-1, 0, 0", libc::EPERM),
        ("quotactl", "quotactl", "-1, 0, 0, 0", libc::EPERM),
        ("settimeofday", "settimeofday", "0, 0", libc::EPERM),
        ("alg", "socket", "38, 5, 0", libc::EPERM),
        ("alg-high", "socket", "38 + (1 << 32), 5, 0", libc::EPERM),
        ("vsock", "socket", "40, 1, 0", libc::EPERM),
        ("sti", "ioctl", "0, 0x5412, \"x\"", libc::EPERM),
        ("sti-high", "ioctl", "0, 0x5412 + (1 << 32), \"x\"", libc::EPERM),
        ("linux-high", "ioctl", "0, 0x541c + (1 << 63), \"x\"", libc::EPERM),
        ("no-randomize", "personality", "0x40000", libc::EPERM),
    ];
    for (name, call, args, _) in rows {
        writeln!(script, "try('{name}', {}, {args});", number_of(arch, call)).unwrap();
    }
    for (name, call, args) in
        [("inet", "socket", "2, 1, 0"), ("asks", "personality", "0xffffffff"), ("pid", "getpid", "")]
    {
        writeln!(script, "try('{name}', {}, {args});", number_of(arch, call)).unwrap();
    }
    let run = |filtered| {
        let output = become_command(&["perl", "-e", &script], filtered);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let (with, without) = (run(true), run(false));
    let errno = |text: &str, name: &str| -> i32 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name}: {text}")).parse().unwrap()
    };
    for (name, _, _, expected) in rows {
        assert_eq!(errno(&with, name), *expected, "{name} with the filter");
        let before = errno(&without, name);
        if before == *expected {
            println!("{name}: this kernel, or the lack of privileges, denies it without a filter, too");
        }
    }
    assert!(rows.iter().filter(|(name, _, _, expected)| errno(&without, name) != *expected).count() > 10, "{without}");
    for name in ["inet", "asks", "pid"] {
        assert_eq!((errno(&with, name), errno(&without, name)), (0, 0), "{name}");
    }
}

/// C06, I67: a 64-bit program that makes a 32-bit system call.
#[test]
#[cfg(target_arch = "x86_64")]
fn c06_int_0x80_finds_nothing() {
    let code = [
        0xbb, 0xff, 0xff, 0xff, 0xff, // mov ebx, -1
        0xb8, 0x06, 0x00, 0x00, 0x00, // mov eax, 6: close
        0xcd, 0x80, // int 0x80
        0x89, 0xc7, 0xf7, 0xdf, // mov edi, eax; neg edi
        0xb8, 0x3c, 0x00, 0x00, 0x00, // mov eax, 60: exit
        0x0f, 0x05, // syscall
    ];
    let dir = tempfile::tempdir().unwrap();
    let program = write_executable(dir.path(), "int80", &tiny_elf(&code));
    let run = |filtered| become_command(&[program.to_str().unwrap()], filtered).status;
    assert_eq!(run(true).code(), Some(libc::ENOSYS));
    match run(false).code() {
        Some(libc::EBADF) => {}
        other => println!("SKIP: c06_int_0x80_finds_nothing: this kernel has no 32-bit calls: {other:?}"),
    }
}

/// A static program with one segment.
#[cfg(target_arch = "x86_64")]
fn tiny_elf(code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    let size = 120 + code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    for half in [2_u16, 62] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1_u32.to_le_bytes());
    for word in [BASE + 120, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    for word in [1_u32, 5] {
        elf.extend(word.to_le_bytes());
    }
    for word in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(code);
    elf
}

/// Written by another process: a descriptor that a concurrent test inherits would keep the file from being executed.
fn write_executable(dir: &Path, name: &str, content: &[u8]) -> PathBuf {
    let path = dir.join(name);
    let mut child = Command::new("sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\"", path.to_str().unwrap()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(content).unwrap();
    assert!(child.wait().unwrap().success());
    path
}

const C_PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <fcntl.h>
static void *thread(void *arg) { return (void *)((long)arg * 2); }
int main(void) {
    long sum = 0;
    for (long i = 0; i < 8; i++) {
        pthread_t t; void *r;
        if (pthread_create(&t, NULL, thread, (void *)i)) return 1;
        pthread_join(t, &r); sum += (long)r;
    }
    printf("threads %ld\n", sum);
    void *m = dlopen("libm.so.6", RTLD_NOW);
    double (*cosine)(double) = m ? (double (*)(double))dlsym(m, "cos") : NULL;
    printf("dlopen %.1f\n", cosine ? cosine(0) : -1);
    int ep = epoll_create1(EPOLL_CLOEXEC), ev = eventfd(1, EFD_CLOEXEC);
    struct epoll_event e = { .events = EPOLLIN }, out;
    epoll_ctl(ep, EPOLL_CTL_ADD, ev, &e);
    printf("epoll %d\n", epoll_wait(ep, &out, 1, 1000));
    char dir[] = "/tmp/inotifyXXXXXX", path[64], buffer[512];
    mkdtemp(dir); snprintf(path, sizeof path, "%s/f", dir);
    int in = inotify_init1(0); inotify_add_watch(in, dir, IN_CREATE);
    close(creat(path, 0600));
    printf("inotify %d\n", read(in, buffer, sizeof buffer) > 0);
    struct stat st; printf("chmod %d", chmod(path, 0640)); stat(path, &st); printf(" %o\n", st.st_mode & 0777);
    unlink(path); rmdir(dir);
    int t = timerfd_create(CLOCK_MONOTONIC, 0); struct itimerspec spec = { .it_value = { .tv_nsec = 1000 } };
    timerfd_settime(t, 0, &spec, NULL); unsigned long long n;
    printf("timerfd %d\n", read(t, &n, 8) == 8);
    int mem = memfd_create("x", 0); printf("memfd %d\n", ftruncate(mem, 4096));
    fflush(stdout);
    pid_t pid = fork(); if (!pid) { execl("/bin/echo", "echo", "child", NULL); _exit(1); }
    int status; waitpid(pid, &status, 0); printf("status %d\n", status);
    FILE *p = popen("echo popen", "r"); printf("%s", fgets(buffer, sizeof buffer, p)); pclose(p);
    return system("exit 3") == 3 << 8 ? 0 : 1;
}
"#;

const PYTHON_PROGRAM: &str = r"
import ctypes, http.server, multiprocessing, os, select, socket, sqlite3, subprocess, tempfile, threading, urllib.request
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(urllib.request.urlopen('http://127.0.0.1:%d/' % server.server_port).status)
with multiprocessing.Pool(2) as pool: print(pool.map(abs, [-1, 2, -3]))
poll = select.epoll(); a, b = socket.socketpair(); poll.register(a, select.EPOLLIN); b.send(b'x'); print(len(poll.poll(5)))
print(sqlite3.connect(':memory:').execute('select 1 + 1').fetchone(), ctypes.CDLL(None).getpid() == os.getpid())
with tempfile.TemporaryDirectory() as d: open(d + '/f', 'w').write('x'); os.chmod(d + '/f', 0o600); print(os.listdir(d))
print(subprocess.run(['sh', '-c', 'echo sub; exit 4'], capture_output=True), socket.getaddrinfo('localhost', 80)[0][1])
";

const GO_PROGRAM: &str = r#"
package main

import ("fmt"; "io"; "net"; "net/http"; "os"; "os/exec"; "sync")

func main() {
	var wg sync.WaitGroup
	results := make([]int, 64)
	for i := range results { wg.Add(1); go func(i int) { defer wg.Done(); results[i] = i * i }(i) }
	wg.Wait()
	sum := 0
	for _, r := range results { sum += r }
	fmt.Println("goroutines", sum)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil { panic(err) }
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	response, err := http.Get("http://" + listener.Addr().String())
	if err != nil { panic(err) }
	body, _ := io.ReadAll(response.Body)
	fmt.Println("http", string(body))
	out, err := exec.Command("echo", "child").CombinedOutput()
	fmt.Print(string(out), err, "\n")
	_, err = os.Stat("/proc/self/status")
	fmt.Println(err)
}
"#;

const JAVA_PROGRAM: &str = r#"
import java.net.*;
import java.util.concurrent.*;
public class Hello {
    public static void main(String[] args) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        Future<Integer> f = pool.submit(() -> 6 * 7);
        System.out.println("pool " + f.get());
        ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
        Socket client = new Socket(server.getInetAddress(), server.getLocalPort());
        Socket accepted = server.accept();
        client.getOutputStream().write(65);
        System.out.println("socket " + accepted.getInputStream().read());
        Process p = new ProcessBuilder("echo", "child").start();
        System.out.println(new String(p.getInputStream().readAllBytes()).trim() + " " + p.waitFor());
        pool.shutdown();
    }
}
"#;

/// C05: typical programs of tasks, with the same output and exit status as without the filter.
#[test]
fn n6_programs_run_under_the_default_filter() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let c = write("program.c", C_PROGRAM);
    let c_binary = dir.path().join("program").to_str().unwrap().to_owned();
    let compile_and_run = format!("gcc -o {c_binary} {c} -pthread -ldl && {c_binary}");
    let python = write("program.py", PYTHON_PROGRAM);
    let go = write("program.go", GO_PROGRAM);
    let java = write("Hello.java", JAVA_PROGRAM);
    let programs: &[(&str, &[&str])] = &[
        ("sh", &["sh", "-c", "echo a | cat; (exit 3); echo $?; ulimit -n; cd /tmp && pwd; id -u; ls / | head -n 3"]),
        (
            "bash",
            &["bash", "-c", "cat <(echo sub) <<< here; shopt -s extglob; sleep 0.01 & wait $!; echo $?; kill -0 $$"],
        ),
        ("awk", &["awk", "BEGIN { print 6 * 7; system(\"echo sub\"); while ((\"echo x\" | getline l) > 0) print l }"]),
        (
            "perl",
            &["perl", "-e", "print join(',', map { $_ ** 2 } 1..5), `echo sub`; fork || exit; wait; print $?, \"\\n\""],
        ),
        (
            "tar",
            &[
                "sh",
                "-c",
                "tar cf - /etc/passwd 2>/dev/null | tar tf -; find /etc -maxdepth 1 -name passwd; stat -c %s /etc/passwd",
            ],
        ),
        ("gcc", &["sh", "-c", &compile_and_run]),
        ("python3", &["python3", &python]),
        ("go", &["go", "run", &go]),
        ("java", &["java", &java]),
        (
            "node",
            &[
                "node",
                "-e",
                "const h = require('http'); const s = h.createServer((q, r) => r.end('hello')).listen(0, '127.0.0.1', \
            () => h.get({port: s.address().port, host: '127.0.0.1'}, r => r.on('data', d => console.log(String(d))).on('end', \
            () => { s.close(); new (require('worker_threads').Worker)('console.log(6 * 7)', {eval: true}) })))",
            ],
        ),
    ];
    let mut ran = 0;
    for (name, command) in programs {
        if !has(name) {
            skip("n6_programs_run_under_the_default_filter", &format!("{name} is not installed"));
            continue;
        }
        let without = become_command(command, false);
        if !without.status.success() {
            let text = String::from_utf8_lossy(&without.stderr);
            skip("n6_programs_run_under_the_default_filter", &format!("{name} does not work here: {}", text.trim()));
            continue;
        }
        let with = become_command(command, true);
        let text = |output: &Output| {
            let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            format!("{}\n{out}", output.status) + if output.status.success() { "" } else { &err }
        };
        assert_eq!(text(&with), text(&without), "{name}: {}", String::from_utf8_lossy(&with.stderr));
        ran += 1;
    }
    assert!(ran >= 3, "only {ran} programs found");
}
