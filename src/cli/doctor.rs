//! `agentbin doctor`: what this machine supports, what a missing feature costs, and how it is fixed.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;
use serde_json::Value as Json;

use super::probe::{self, Level, Outcome};
use super::{DoctorArgs, complain, print};
use crate::alloc::{DYNAMIC_PORTS, chain, machine};
use crate::cgroup::{self, Facts, Regime};
use crate::container::probe::{ROWS, score};
use crate::container::{self, Closed, HostIdRegistry, HostIdsUse, NoSubordinate, Subordinate};
use crate::net::{self, Finding, Kind, Networks, Wish};
use crate::spec::json::json;
use crate::spec::{HostIdSpace, escaped};
use crate::sys::features::{self, Support};

/// Something is missing without which no task can be isolated, or a probe did not run.
const CANNOT_ISOLATE: i32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    /// Tasks run, with less isolation.
    Warn,
    /// Without it no task can be isolated.
    Missing,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Missing => "missing",
        }
    }
}

/// A line of the report.
struct Check {
    group: &'static str,
    name: String,
    state: State,
    value: String,
    /// What a missing feature means for tasks.
    cost: String,
    mend: String,
}

/// What a missing feature leads to.
struct Lack<'a> {
    state: State,
    cost: &'a str,
    mend: &'a str,
}

#[derive(Default)]
struct Checks(Vec<Check>);

impl Checks {
    fn add(&mut self, group: &'static str, name: impl Into<String>, value: impl Into<String>, lack: Option<Lack<'_>>) {
        let (name, value) = (name.into(), escaped(&value.into()).into_owned());
        let (state, cost, mend) = lack.map_or((State::Ok, "", ""), |l| (l.state, l.cost, l.mend));
        self.0.push(Check { group, name, state, value, cost: cost.to_owned(), mend: mend.to_owned() });
    }

    /// A system call or feature of the kernel.
    fn feature(&mut self, name: &str, support: Support, lack: Lack<'_>) {
        let value = match support {
            Support::Yes => "yes",
            Support::No => "no",
            Support::Refused => "refused by a filter of system calls",
        };
        self.add(KERNEL, name, value, (support != Support::Yes).then_some(lack));
    }

    fn can_isolate(&self) -> bool {
        self.0.iter().all(|check| check.state != State::Missing)
    }
}

const KERNEL: &str = "kernel";
const NAMESPACES: &str = "namespaces";
const CGROUPS: &str = "cgroups";
const LIMITS: &str = "limits";
const SETTINGS: &str = "settings";
const FILES: &str = "files";
const TOOLS: &str = "tools";

pub(super) fn run(args: &DoctorArgs) -> anyhow::Result<i32> {
    // Examined before there is an event loop: some answers come from child processes.
    let checks = examine();
    let outcomes = if args.probe {
        let levels = args.level.map_or_else(|| Level::ALL.to_vec(), |level| vec![level]);
        probe::run(&levels, args.data_dir.as_deref(), args.cgroup_parent.as_deref())?
    } else {
        Vec::new()
    };
    if args.json {
        print(format!("{}\n", to_json(&checks, &outcomes)).as_bytes())?;
    } else {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|t| t == "dumb");
        let colour = std::io::stdout().is_terminal() && !refused && !dumb;
        print(text(&checks, &outcomes, colour).as_bytes())?;
    }
    let failed = outcomes.iter().any(|(_, report)| report.is_err());
    if failed && args.json {
        complain("a probe did not run");
    }
    Ok(if checks.can_isolate() && !failed { 0 } else { CANNOT_ISOLATE })
}

fn examine() -> Checks {
    let mut checks = Checks::default();
    kernel(&mut checks);
    namespaces(&mut checks);
    match cgroup::facts(Path::new("/sys/fs/cgroup")) {
        Ok(facts) => cgroups(&mut checks, &facts),
        Err(error) => {
            let lack = Lack { state: State::Warn, cost: NO_LIMITS, mend: "look at what is mounted at /sys/fs/cgroup" };
            checks.add(CGROUPS, "regime", error.to_string(), Some(lack));
        }
    }
    limits(&mut checks);
    settings(&mut checks);
    host_ids(&mut checks);
    files(&mut checks);
    let java = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|dir| dir.join("java"))
            .find(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
    });
    let lack =
        Lack { state: State::Warn, cost: "the driver java runs no task", mend: "install a JRE and put it into PATH" };
    match java {
        Some(path) => checks.add(TOOLS, "java", path.display().to_string(), None),
        None => checks.add(TOOLS, "java", "not in PATH", Some(lack)),
    }
    network(&mut checks);
    checks
}

/// The network of mode `bridge`, checked as `run` does before anything is made.
fn network(checks: &mut Checks) {
    let wish = Wish {
        id: "",
        kind: Kind::Bridge,
        driver: None,
        mappings: Vec::new(),
        args: Vec::new(),
        record: PathBuf::new(),
    };
    let networks = machine::networks(Path::new("/"));
    if !rustix::process::geteuid().is_root() {
        return users_network(checks, networks.plan(wish).err());
    }
    let Err(error) = networks.plan(wish) else {
        for Finding { what, value, problem } in networks.examine() {
            let lack = problem.as_ref().map(|(cost, mend)| Lack { state: State::Warn, cost, mend });
            checks.add(TOOLS, what, value, lack);
        }
        return guard(checks);
    };
    let (value, mend) = match error {
        net::Error::NoProgram { program, .. } => {
            (format!("no {program}"), "install iptables, which the CNI plugins call")
        }
        net::Error::NoTables => (
            "the kernel has no nf_tables".to_owned(),
            "modprobe nf_tables (CONFIG_NF_TABLES), or install iptables and the CNI plugins",
        ),
        other => (chain(&other), "agentbin run --bridge-network-subnet; agentbin(8), NETWORKS"),
    };
    let cost = "groups with network mode bridge cannot be started";
    checks.add(TOOLS, "network mode bridge", value, Some(Lack { state: State::Warn, cost, mend }));
}

/// The network of mode `bridge` without root: a program connects it, in namespaces of the user.
fn users_network(checks: &mut Checks, lack: Option<net::Error>) {
    let refused = features::user_namespace_without_root().err();
    let (value, mend) = match (lack, refused) {
        (Some(net::Error::NoProgram { program, package }), _) => {
            (format!("no {program} in PATH"), format!("install the package {package}"))
        }
        (Some(error @ net::Error::NoTunnels { path, .. }), _) => {
            (chain(&error), format!("as root: modprobe tun; chmod 666 {path}"))
        }
        (Some(error), _) => (chain(&error), "run as root".to_owned()),
        (None, Some(error)) => {
            (format!("no user namespace: {error}"), "see the line \"user, without root\"".to_owned())
        }
        (None, None) => {
            let value = "by pasta, in namespaces of this user; IPv4 only";
            return checks.add(TOOLS, "network mode bridge", value, None);
        }
    };
    let cost = "groups with network mode bridge cannot be started without root";
    checks.add(TOOLS, "network mode bridge", value, Some(Lack { state: State::Warn, cost, mend: &mend }));
}

/// What prevents tasks on the bridge from sending with the addresses of others, and from reaching the host's loopback.
fn guard(checks: &mut Checks) {
    let cost = "tasks with CAP_NET_RAW or CAP_NET_ADMIN send with the addresses of others on the bridge";
    let (value, mend) = Networks::cannot_guard().map_or(("yes".to_owned(), None), |(why, mend)| (why, Some(mend)));
    let lack = mend.map(|mend| Lack { state: State::Warn, cost, mend });
    checks.add(TOOLS, "network rules (netdev)", value, lack);
}

/// Settings of the host's networks that affect the networks of tasks.
fn network_settings(checks: &mut Checks) {
    if let Some(value) = features::setting("net/ipv4/conf/all/route_localnet") {
        let cost = "every interface leads to the host's loopback, not only those with a rule against it";
        let lack = Lack { state: State::Warn, cost, mend: "sysctl -w net.ipv4.conf.all.route_localnet=0" };
        let is_open = value != "0";
        checks.add(SETTINGS, "net.ipv4.conf.all.route_localnet", value, is_open.then_some(lack));
    }
    if let Some(value) = features::setting("net/ipv4/ip_forward") {
        let can_set = rustix::fs::access("/proc/sys/net/ipv4/ip_forward", rustix::fs::Access::WRITE_OK).is_ok();
        let cost = "allocations on the bridge reach no other machine, and none reaches them";
        let lack = Lack { state: State::Warn, cost, mend: "sysctl -w net.ipv4.ip_forward=1, outside of the container" };
        let is_off = value == "0" && rustix::process::geteuid().is_root();
        let value = if is_off && can_set { "0; the first allocation on the bridge sets it".to_owned() } else { value };
        checks.add(SETTINGS, "net.ipv4.ip_forward", value, (is_off && !can_set).then_some(lack));
    }
    if let Some(value) = features::setting("net/bridge/bridge-nf-call-iptables") {
        let what =
            if value == "1" { "1; packets between allocations pass the rules for forwarded ones" } else { &value };
        checks.add(SETTINGS, "net.bridge.bridge-nf-call-iptables", what, None);
    }
    let Some(value) = features::setting("net/ipv4/ip_local_port_range") else { return };
    let (first, last) = (*DYNAMIC_PORTS.start(), *DYNAMIC_PORTS.end());
    let ends: Vec<u16> = value.split_whitespace().filter_map(|end| end.parse().ok()).collect();
    let meets = matches!(ends[..], [low, high] if low <= last && first <= high);
    let cost = format!("a connection of the host can have the port, of {first}-{last}, that a task is to get");
    let mend = "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\", or agentbin run --dynamic-ports";
    let lack = Lack { state: State::Warn, cost: &cost, mend };
    checks.add(SETTINGS, "net.ipv4.ip_local_port_range", value, meets.then_some(lack));
}

fn kernel(checks: &mut Checks) {
    let essential = |mend| Lack { state: State::Missing, cost: "no isolated task can be started", mend };
    checks.feature("mount API", features::mount_api(), essential("Linux 5.2 or newer"));
    checks.feature("mount_setattr", features::mount_setattr(), essential("Linux 5.12 or newer"));
    checks.feature("pidfd", features::pidfd(), essential("Linux 5.3 or newer"));
    let container = "Linux 5.3 or newer; in a container, a seccomp profile that allows clone3";
    checks.feature("clone3", features::clone3(), essential(container));
    checks.feature("clone3 into a cgroup", features::clone_into_cgroup(), essential("Linux 5.7 or newer"));
    checks.feature("close_range", features::close_range(), essential("Linux 5.11 or newer"));
    let slow = "paths in tasks' directories are opened step by step, which is slower";
    let lack = Lack {
        state: State::Warn,
        cost: slow,
        mend: "Linux 5.6 or newer; in a container, a seccomp profile that allows it",
    };
    checks.feature("openat2", features::openat2(), lack);
    let lack = Lack {
        state: State::Missing,
        cost: "tasks have no filter of system calls, which all levels but nomad want",
        mend: "a kernel with CONFIG_SECCOMP_FILTER",
    };
    checks.feature("seccomp filters", features::seccomp(), lack);
    match features::landlock() {
        Ok(version) => checks.add(KERNEL, "Landlock", format!("version {version}"), None),
        Err(error) => {
            let mend = if error.raw_os_error() == Some(libc::EOPNOTSUPP) {
                "add landlock to the boot option lsm="
            } else {
                "Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK"
            };
            let lack = Lack { state: State::Warn, cost: "a task cannot be given `unveil` paths", mend };
            checks.add(KERNEL, "Landlock", "no", Some(lack));
        }
    }
    let lack = Lack {
        state: State::Warn,
        cost: "the root of a task cannot be pivoted to",
        mend: "no_pivot_root = true in the plugin's configuration; better: boot from another root",
    };
    let initramfs = features::root_is_initramfs().unwrap_or(false);
    checks.add(KERNEL, "root", if initramfs { "an initramfs" } else { "a file system" }, initramfs.then_some(lack));
}

fn namespaces(checks: &mut Checks) {
    let root = rustix::process::geteuid().is_root();
    let have = features::namespaces();
    for kind in ["mnt", "pid", "ipc", "uts", "net", "cgroup", "user"] {
        let limit = features::setting(&format!("user/max_{kind}_namespaces"));
        let state = if matches!(kind, "mnt" | "pid" | "ipc") { State::Missing } else { State::Warn };
        let cost = match kind {
            "mnt" | "pid" | "ipc" => "no isolated task can be started",
            "net" => "groups with a network mode other than host cannot be started",
            "user" => "no tasks of level strict, and none that are isolated without root",
            _ => "tasks share it with the host",
        };
        if !have.contains(&kind) {
            checks.add(NAMESPACES, kind, "no", Some(Lack { state, cost, mend: "a kernel that has it" }));
        } else if limit.as_deref() == Some("0") {
            let mend = format!("sysctl -w user.max_{kind}_namespaces=1024");
            checks.add(NAMESPACES, kind, "at most 0", Some(Lack { state, cost, mend: &mend }));
        } else {
            checks.add(NAMESPACES, kind, limit.map_or("yes".to_owned(), |n| format!("at most {n}")), None);
        }
    }
    let answer = features::user_namespace_without_root();
    let knob = if features::setting("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        "sysctl -w kernel.unprivileged_userns_clone=1"
    } else if features::setting("kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for agentbin"
    } else {
        "sysctl -w user.max_user_namespaces=1024; in a container, a seccomp profile that allows unshare"
    };
    let state = if root { State::Warn } else { State::Missing };
    let lack = Lack { state, cost: "without root no isolated task can be started", mend: knob };
    match answer {
        Ok(()) => checks.add(NAMESPACES, "user, without root", "yes", None),
        Err(error) => checks.add(NAMESPACES, "user, without root", error.to_string(), Some(lack)),
    }
}

const NO_LIMITS: &str = "memory, cpu and process limits of tasks are not enforced";

fn cgroups(checks: &mut Checks, facts: &Facts) {
    let root = rustix::process::geteuid().is_root();
    let unified = "boot with systemd.unified_cgroup_hierarchy=1";
    match facts.regime {
        Regime::V2 => checks.add(CGROUPS, "regime", "v2", None),
        Regime::V1 => {
            let value = if facts.hybrid { "v1, and v2 beside it" } else { "v1" };
            let cost = "tasks in a frozen or delegated cgroup die later; kernel and systemd have given it up";
            checks.add(CGROUPS, "regime", value, Some(Lack { state: State::Warn, cost, mend: unified }));
        }
        Regime::Off => {
            let mend = "mount -t cgroup2 none /sys/fs/cgroup";
            checks.add(CGROUPS, "regime", "none", Some(Lack { state: State::Warn, cost: NO_LIMITS, mend }));
            return;
        }
    }
    if facts.missing.is_empty() {
        checks.add(CGROUPS, "controllers", "cpu, memory, pids, cpuset, io", None);
    } else {
        let missing = facts.missing.join(", ");
        let cost = format!("limits of {missing} are not enforced");
        let mend = if facts.missing.contains(&"memory") {
            "boot with cgroup_enable=memory; on v2 remove v1 mounts of these controllers"
        } else {
            "a kernel with them; on v2 remove v1 mounts of these controllers"
        };
        checks.add(
            CGROUPS,
            "controllers",
            format!("without {missing}"),
            Some(Lack { state: State::Warn, cost: &cost, mend }),
        );
    }
    if facts.regime == Regime::V2 {
        let cost = "a task is killed process by process";
        let lack = Lack { state: State::Warn, cost, mend: "Linux 5.14 or newer" };
        checks.add(
            CGROUPS,
            "cgroup.kill",
            if facts.kills_at_once { "yes" } else { "no" },
            (!facts.kills_at_once).then_some(lack),
        );
    }
    if !root {
        let mend = match facts.regime {
            Regime::V2 => "run as root, or where your systemd runs (systemctl --user status), or in a delegated cgroup",
            _ => "run as root",
        };
        let lack = Lack { state: State::Warn, cost: NO_LIMITS, mend };
        match &facts.delegated {
            Some(path) => checks.add(CGROUPS, "without root", path.display().to_string(), None),
            None if facts.regime == Regime::V2 && machine::offers_scope() => {
                checks.add(CGROUPS, "without root", "a scope of your systemd for each run", None);
            }
            None => checks.add(CGROUPS, "without root", "no cgroup is delegated", Some(lack)),
        }
    }
}

fn limits(checks: &mut Checks) {
    /// For an agent with a thousand tasks.
    const FILES: u64 = 8192;
    let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |n| n.to_string());
    let (soft, hard) = features::open_files();
    let few = hard.is_some_and(|n| n < FILES);
    let lack = Lack {
        state: State::Warn,
        cost: "hundreds of tasks at a time need more",
        mend: "LimitNOFILE=65536 in the service, or ulimit -n",
    };
    checks.add(LIMITS, "open files", format!("{}, at most {}", number(soft), number(hard)), few.then_some(lack));
    if let Some(pids) = features::setting("kernel/pid_max") {
        let few = pids.parse::<u64>().is_ok_and(|n| n <= 32768);
        let cost = "eight tasks at their limit of 4096 processes use up all process numbers";
        let lack = Lack { state: State::Warn, cost, mend: "sysctl -w kernel.pid_max=4194304" };
        checks.add(LIMITS, "processes", pids, few.then_some(lack));
    }
    if rustix::process::geteuid().is_root() {
        let may = features::may_raise_limits();
        let cost = "limits above this process's own, and a negative oom_score_adj, are refused";
        let lack = Lack { state: State::Warn, cost, mend: "start it with CAP_SYS_RESOURCE" };
        checks.add(LIMITS, "CAP_SYS_RESOURCE", if may { "yes" } else { "no" }, (!may).then_some(lack));
    }
    let number = |name: &str| features::setting(name).and_then(|text| text.parse::<u64>().ok());
    let cost = "a task that writes much waits more often for its log";
    if let Some(size) = number("fs/pipe-max-size") {
        let lack = Lack { state: State::Warn, cost, mend: "sysctl -w fs.pipe-max-size=1048576" };
        checks.add(LIMITS, "pipe size", format!("at most {size} bytes"), (size < 1 << 20).then_some(lack));
    }
    if let Some(pages) = number("fs/pipe-user-pages-soft") {
        let lack = Lack { state: State::Warn, cost, mend: "sysctl -w fs.pipe-user-pages-soft=16384" };
        let few = pages != 0 && pages < 16384;
        checks.add(
            LIMITS,
            "pipe pages of a user",
            if pages == 0 { "unlimited".to_owned() } else { pages.to_string() },
            few.then_some(lack),
        );
    }
    let pressure = features::pressure();
    let lack = Lack {
        state: State::Warn,
        cost: "there are no pressure metrics (PSI) for memory, cpu and disks",
        mend: "boot with psi=1",
    };
    checks.add(LIMITS, "pressure (PSI)", if pressure { "yes" } else { "no" }, (!pressure).then_some(lack));
}

/// Settings that separate the tasks of a machine, and its other users: name, lowest safe value, cost of a lower one.
const SAFE: [(&str, u32, &str); 6] = [
    ("fs/protected_symlinks", 1, "links in shared directories mislead programs of the host"),
    ("fs/protected_hardlinks", 1, "whoever shares a file system with others can keep their files by links"),
    ("fs/protected_fifos", 1, "FIFOs in shared directories mislead programs of the host"),
    ("fs/protected_regular", 1, "files in shared directories mislead programs of the host"),
    ("kernel/dmesg_restrict", 1, "tasks of level nomad read the kernel's log"),
    ("kernel/unprivileged_bpf_disabled", 1, "tasks of level nomad load BPF programs"),
];

fn settings(checks: &mut Checks) {
    for (name, least, cost) in SAFE {
        let Some(value) = features::setting(name) else { continue };
        let unsafe_value = value.parse::<u32>().is_ok_and(|value| value < least);
        let dotted = name.replace('/', ".");
        let mend = format!("sysctl -w {dotted}={least}");
        let lack = Lack { state: State::Warn, cost, mend: &mend };
        checks.add(SETTINGS, dotted, value, unsafe_value.then_some(lack));
    }
    network_settings(checks);
}

/// The host ids of tasks in user namespaces; a user other than root has subordinate ids, or only the own id.
fn host_ids(checks: &mut Checks) {
    if !rustix::process::geteuid().is_root() {
        let cost = "tasks of level strict have your own id on the host";
        match Subordinate::usable() {
            Ok(found) => checks.add(LIMITS, "subordinate ids", format!("ranges of 65536: {}", found.ranges()), None),
            Err(error) => {
                let mend = match &error {
                    NoSubordinate::NoRange { user, first, last, .. } => {
                        format!("as root: usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {user}")
                    }
                    NoSubordinate::NoProgram(_) => "install the package uidmap, or shadow-utils".to_owned(),
                    NoSubordinate::Refused(_) => {
                        "newuidmap and newgidmap must be set-user-ID root, or have cap_setuid and cap_setgid; both files must \
                         name you"
                            .to_owned()
                    }
                };
                let lack = Lack { state: State::Warn, cost, mend: &mend };
                checks.add(LIMITS, "subordinate ids", error.to_string(), Some(lack));
            }
        }
        return;
    }
    let (registry, ranges) = (HostIdRegistry::machine(), HostIdSpace::DEFAULT.ranges());
    let place = registry.path().display().to_string();
    let cost = "no task of level strict, and none with user_namespace = true, can be started";
    match registry.usage() {
        Ok(HostIdsUse { used, unreadable }) => {
            let value = format!("{used} of {ranges} ranges used ({place})");
            let full = Lack { state: State::Warn, cost, mend: "end allocations, or agentbin gc" };
            let mend = format!("remove those in {place} that are no JSON, when nobody has their ids");
            let odd = Lack { state: State::Warn, cost: "ranges whose entries cannot be read stay taken", mend: &mend };
            let lack = if used >= ranges { Some(full) } else { (unreadable > 0).then_some(odd) };
            checks.add(LIMITS, "host ids", value, lack);
        }
        Err(error) => {
            let mend = format!("chown root {place}; chmod 700 {place}");
            checks.add(LIMITS, "host ids", chain(&error), Some(Lack { state: State::Warn, cost, mend: &mend }));
        }
    }
}

/// The usual `alloc_dir` of an agent, according to its packages and the examples in its documentation.
const ALLOC_DIRS: [&str; 5] = [
    "/opt/nomad/data/alloc",
    "/opt/nomad/alloc",
    "/var/lib/nomad/alloc",
    "/var/lib/nomad/data/alloc",
    "/var/nomad/alloc",
];

/// Files of the host that a task that is root in its jail could read or leave behind.
fn files(checks: &mut Checks) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let known = "tasks of root read files in /etc that not everybody may read, but for those with a known name";
    let part = "tasks of root read such files in what is mounted below /etc, but for those with a known name";
    let fix = "Linux 5.12 or newer, and /etc on ext4, xfs or btrfs; on overlayfs it cannot be";
    let (value, cost) = match container::closes_etc() {
        Ok(Closed::Whole) => ("yes".to_owned(), None),
        Ok(Closed::Top) => ("not what is mounted below it".to_owned(), Some(part)),
        Ok(Closed::No) => ("no".to_owned(), Some(known)),
        Err(error) => (error.to_string(), Some(known)),
    };
    checks.add(FILES, "/etc without owners", value, cost.map(|cost| Lack { state: State::Warn, cost, mend: fix }));
    for dir in ALLOC_DIRS {
        let Ok(stat) = rustix::fs::statvfs(dir) else { continue };
        let wanted = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV;
        let closed = stat.f_flag.contains(wanted);
        let cost =
            "a set-user-ID file that a task of root leaves in a shared directory makes root of whoever executes it";
        let mend = format!("put Nomad's alloc_dir on a file system with the mount options nosuid,nodev (now {dir})");
        let lack = Lack { state: State::Warn, cost, mend: &mend };
        checks.add(FILES, dir, if closed { "nosuid,nodev" } else { "not nosuid,nodev" }, (!closed).then_some(lack));
    }
}

/// A word for people, in colour if wanted.
fn paint(state: State, colour: bool) -> String {
    let word = format!("{:<8}", state.name());
    let code = match state {
        _ if !colour => return word,
        State::Ok => "32",
        State::Warn => "33",
        State::Missing => "31",
    };
    format!("\x1b[{code}m{word}\x1b[0m")
}

fn text(checks: &Checks, outcomes: &[Outcome], colour: bool) -> String {
    let who = if rustix::process::geteuid().is_root() { "root" } else { "a plain user" };
    let mut text = format!("agentbin {} on Linux {}, as {who}\n", env!("CARGO_PKG_VERSION"), features::release());
    let width = checks.0.iter().map(|check| check.name.len()).max().unwrap_or(0);
    let mut group = "";
    for check in &checks.0 {
        if check.group != group {
            group = check.group;
            let _ = writeln!(text, "\n{group}");
        }
        let _ = writeln!(text, "  {}{:<width$}  {}", paint(check.state, colour), check.name, check.value);
        if check.state != State::Ok {
            let _ = writeln!(text, "  {:8}{:width$}  costs: {}", "", "", check.cost);
            let _ = writeln!(text, "  {:8}{:width$}  mend:  {}", "", "", check.mend);
        }
    }
    let verdict =
        if checks.can_isolate() { "Tasks can be isolated." } else { "Tasks cannot be isolated: see what is missing." };
    let _ = writeln!(text, "\n{verdict}");
    if !outcomes.is_empty() {
        table(&mut text, outcomes);
    }
    text
}

/// The isolation table: a row for each check, a column for each level.
fn table(text: &mut String, outcomes: &[Outcome]) {
    let width = ROWS.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let _ = write!(text, "\nisolation, measured by a task of each level (yes: it holds)\n  {:3}  {:width$}", "", "");
    for (level, _) in outcomes {
        let _ = write!(text, "  {:>8}", level.name());
    }
    text.push('\n');
    for row in &ROWS {
        let _ = write!(text, "  {}  {:width$}", row.id, row.name);
        for (_, report) in outcomes {
            let cell = match report.as_ref().ok().and_then(|report| report.get(row.id)) {
                Some(seen) if seen.pass => "yes",
                Some(_) => "NO",
                None => "-",
            };
            let _ = write!(text, "  {cell:>8}");
        }
        text.push('\n');
    }
    let _ = write!(text, "  {:3}  {:width$}", "", format!("holds, of {}", ROWS.len()));
    for (_, report) in outcomes {
        let cell = report.as_ref().map_or("-".to_owned(), |report| score(report).to_string());
        let _ = write!(text, "  {cell:>8}");
    }
    text.push('\n');
    for (level, report) in outcomes {
        match report {
            Err(error) => _ = writeln!(text, "\n{}: {}", level.name(), escaped(&chain(error.as_ref()))),
            // With this level everything is open by design.
            Ok(_) if *level == Level::RawExec && outcomes.len() > 1 => {}
            Ok(report) => {
                let failing = ROWS.iter().filter_map(|row| Some((row, report.get(row.id).filter(|seen| !seen.pass)?)));
                let lines: Vec<String> = failing
                    .map(|(row, seen)| format!("  {}  {:width$}  {}", row.id, row.name, escaped(&seen.value)))
                    .collect();
                if !lines.is_empty() {
                    let _ = writeln!(
                        text,
                        "\nwhat does not hold at level {}, and what was seen\n{}",
                        level.name(),
                        lines.join("\n")
                    );
                }
            }
        }
    }
}

fn to_json(checks: &Checks, outcomes: &[Outcome]) -> Json {
    let lines = checks.0.iter().map(|check| {
        json!({
            "group": check.group,
            "name": check.name,
            "state": check.state.name(),
            "value": check.value,
            "cost": check.cost,
            "mend": check.mend,
        })
    });
    let mut object = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "kernel": features::release(),
        "root": rustix::process::geteuid().is_root(),
        "can_isolate": checks.can_isolate(),
        "checks": lines.collect::<Vec<_>>(),
    });
    if !outcomes.is_empty() {
        let names = ROWS.iter().map(|row| json!({ "id": row.id, "name": row.name }));
        let levels = outcomes.iter().map(|(level, report)| {
            let value = match report {
                Ok(report) => json!({ "score": score(report), "of": ROWS.len(), "rows": report }),
                Err(error) => json!({ "error": format!("{error:#}") }),
            };
            (level.name().to_owned(), value)
        });
        object["isolation"] = json!({ "rows": names.collect::<Vec<_>>(), "levels": Json::Object(levels.collect()) });
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N9: missing features decide, warnings do not; each line says what it costs and how it is fixed.
    #[test]
    fn what_is_missing_decides() {
        let mut checks = Checks::default();
        let lack = |state| Lack { state, cost: "it costs", mend: "mend it so" };
        checks.feature("a", Support::Yes, lack(State::Missing));
        checks.feature("b", Support::Refused, lack(State::Warn));
        assert!(checks.can_isolate());
        let lines = text(&checks, &[], false);
        assert!(lines.contains("  ok      a  yes\n  warn    b  refused by"), "{lines}");
        assert!(lines.contains("costs: it costs") && lines.contains("mend:  mend it so") && !lines.contains('\x1b'));
        assert!(text(&checks, &[], true).contains("\x1b[33mwarn"));
        checks.feature("c", Support::No, lack(State::Missing));
        assert!(!checks.can_isolate() && text(&checks, &[], false).contains("cannot be isolated"));
        let json = to_json(&checks, &[]);
        assert_eq!((&json["can_isolate"], &json["checks"][2]["state"]), (&json!(false), &json!("missing")));
    }

    /// N9: the table has every row, names the checks that fail, and counts them.
    #[test]
    fn the_table_names_what_does_not_hold() {
        let report = |fails: &'static str| {
            let seen = |id: &str| crate::container::probe::Seen { pass: id != fails, value: "0".to_owned() };
            ROWS.iter().map(|row| (row.id.to_owned(), seen(row.id))).collect()
        };
        let outcomes = [
            (Level::Default, Ok(report("I02"))),
            (Level::Strict, Ok(report(""))),
            (Level::Nomad, Err(anyhow::anyhow!("no such level"))),
        ];
        let text = text(&Checks::default(), &outcomes, false);
        assert!(
            text.contains("\nwhat does not hold at level default, and what was seen\n  I02  gid is not 0"),
            "{text}"
        );
        assert!(!text.contains("at level strict") && text.contains("nomad: no such level"));
        let scores = text.lines().find(|line| line.contains("holds, of 72")).unwrap();
        assert_eq!(scores.split_whitespace().skip(3).collect::<Vec<_>>(), ["71", "72", "-"]);
    }
}
