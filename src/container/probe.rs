//! The isolation table: what a process cannot do, measured from inside, one row at a time.
//!
//! Every row is tried in a separate child, so that its effects end with the child, and in a form that is harmless where nothing
//! prevents it: the table can be measured on a bare host.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags};
use rustix::mount::{FsOpenFlags, OpenTreeFlags};
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::sys::{probe, processes};

/// A row of the isolation table.
pub struct Row {
    /// `I01` to `I72`.
    pub id: &'static str,
    /// The property that holds when the row passes.
    pub name: &'static str,
    check: fn(&Host) -> Seen,
}

/// The result of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The property holds.
    pub pass: bool,
    /// The measured value.
    pub value: String,
}

/// All rows by their ids.
pub type Report = BTreeMap<String, Seen>;

/// The environment in which the probe was started, to compare with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// Inode numbers of its namespaces by kind (`mnt`, `pid`, ...).
    pub namespaces: BTreeMap<String, u64>,
    /// A process that runs there while the probe runs.
    pub pid: i32,
    /// When that process was started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl Host {
    /// This process and its namespaces.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn here() -> io::Result<Host> {
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let start_ticks = processes::stat(pid)?.map_or(0, |s| s.start_ticks);
        let kinds = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
        let namespaces = kinds.iter().filter_map(|kind| Some(((*kind).to_owned(), namespace(kind).ok()?))).into_map();
        Ok(Host { namespaces, pid, start_ticks })
    }
}

/// How many rows of a report pass.
#[must_use]
pub fn score(report: &Report) -> usize {
    report.values().filter(|seen| seen.pass).count()
}

/// Measures all rows.
///
/// The caller must have no other thread: each row is tried in a forked child.
///
/// # Errors
/// When no child can be made.
pub fn measure(host: &Host) -> io::Result<Report> {
    let mut report = Report::new();
    for row in &ROWS {
        let words = probe::in_child(&mut || {
            let seen = (row.check)(host);
            [&[b'0' + u8::from(seen.pass)], seen.value.as_bytes()].concat()
        })?;
        let seen = match (words.signal, words.text.split_first()) {
            (None, Some((pass, value))) => {
                Seen { pass: *pass == b'1', value: String::from_utf8_lossy(value).into_owned() }
            }
            (Some(libc::SIGALRM), _) => Seen { pass: false, value: "no answer in time".to_owned() },
            // Killed by a filter, or by a processor exception.
            (Some(signal), _) => Seen { pass: true, value: format!("killed by signal {signal}") },
            (None, None) => Seen { pass: false, value: "no answer".to_owned() },
        };
        report.insert(row.id.to_owned(), seen);
    }
    Ok(report)
}

const fn row(id: &'static str, name: &'static str, check: fn(&Host) -> Seen) -> Row {
    Row { id, name, check }
}

/// The table.
pub static ROWS: [Row; 72] = [
    row("I01", "uid is not 0", |_| ids([rustix::process::getuid().as_raw(), rustix::process::geteuid().as_raw()])),
    row("I02", "gid is not 0", |_| ids([rustix::process::getgid().as_raw(), rustix::process::getegid().as_raw()])),
    row("I03", "no further groups", |_| groups()),
    row("I04", "no inheritable capabilities", |_| status("CapInh", NOTHING)),
    row("I05", "no permitted capabilities", |_| status("CapPrm", NOTHING)),
    row("I06", "no effective capabilities", |_| status("CapEff", NOTHING)),
    row("I07", "empty capability bounding set", |_| status("CapBnd", NOTHING)),
    row("I08", "no ambient capabilities", |_| status("CapAmb", NOTHING)),
    row("I09", "no_new_privs", |_| Seen::is(probe::has_no_new_privs(), "no_new_privs")),
    row("I10", "system call filter", |_| status("Seccomp", "2")),
    row("I11", "own mount namespace", |host| own(host, "mnt")),
    row("I12", "own pid namespace", |host| own(host, "pid")),
    row("I13", "own ipc namespace", |host| own(host, "ipc")),
    row("I14", "own uts namespace", |host| own(host, "uts")),
    row("I15", "own network namespace", |host| own(host, "net")),
    row("I16", "own cgroup namespace", |host| own(host, "cgroup")),
    row("I17", "own user namespace", |host| own(host, "user")),
    row("I18", "no inherited descriptor above 2", |_| {
        let fds = probe::lasting_descriptors(3, 4096);
        Seen { pass: fds.is_empty(), value: format!("{fds:?}") }
    }),
    row("I19", "sees no process of the host", host_process),
    row("I20", "cannot read /proc/kcore", |_| unreadable("/proc/kcore", Look::Read)),
    row("I21", "cannot read /proc/keys", |_| unreadable("/proc/keys", Look::Read)),
    row("I22", "cannot read /proc/timer_list", |_| unreadable("/proc/timer_list", Look::Read)),
    row("I23", "cannot read /proc/interrupts", |_| unreadable("/proc/interrupts", Look::Read)),
    // Reading would consume lines that are meant for other readers, or touch memory.
    row("I24", "cannot read /proc/kmsg", |_| unreadable("/proc/kmsg", Look::Open)),
    row("I25", "cannot read /dev/kmsg", |_| unreadable("/dev/kmsg", Look::Open)),
    row("I26", "cannot read /dev/mem", |_| unreadable("/dev/mem", Look::Open)),
    row("I27", "cannot read /etc/shadow", |_| unreadable("/etc/shadow", Look::Read)),
    row("I28", "/sys/firmware hidden", |_| hidden("/sys/firmware")),
    row("I29", "/proc/acpi hidden", |_| hidden("/proc/acpi")),
    row("I30", "cannot write /proc/sysrq-trigger", |_| unwritable("/proc/sysrq-trigger")),
    row("I31", "cannot write /proc/sys/kernel/core_pattern", |_| unwritable("/proc/sys/kernel/core_pattern")),
    row("I32", "cannot write /proc/sys/vm/drop_caches", |_| unwritable("/proc/sys/vm/drop_caches")),
    row("I33", "cannot write /proc/irq/default_smp_affinity", |_| unwritable("/proc/irq/default_smp_affinity")),
    row("I34", "cannot write /sys/kernel/mm/transparent_hugepage/enabled", |_| {
        unwritable("/sys/kernel/mm/transparent_hugepage/enabled")
    }),
    row("I35", "cannot write /sys/power/state", |_| unwritable("/sys/power/state")),
    row("I36", "cgroup tree not writable", |_| cgroup_tree()),
    row("I37", "cannot lower oom_score_adj", |_| lower_oom_score()),
    row("I38", "mount denied", |_| Seen::denied(mount_nothing())),
    row("I39", "remounting /proc/sys denied", |_| remount_proc_sys()),
    row("I40", "pivot_root denied", |_| {
        let nowhere = "/agentbin-no-such-folder";
        Seen::denied(rustix::process::pivot_root(nowhere, nowhere))
    }),
    row("I41", "chroot denied", |_| Seen::denied(rustix::process::chroot("/"))),
    row("I42", "fsopen denied", |_| Seen::denied(rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC))),
    row("I43", "open_tree(OPEN_TREE_CLONE) denied", |_| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        Seen::denied(rustix::mount::open_tree(CWD, "/", flags))
    }),
    row("I44", "unshare(CLONE_NEWUSER) denied", |_| Seen::denied(probe::unshare(libc::CLONE_NEWUSER))),
    row("I45", "mount in a new user namespace denied", |_| {
        match probe::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) {
            Ok(()) => Seen::denied(mount_nothing()),
            Err(error) => Seen::denied::<(), _>(Err(error)),
        }
    }),
    row("I46", "unshare(CLONE_NEWNS) denied", |_| Seen::denied(probe::unshare(libc::CLONE_NEWNS))),
    row("I47", "unshare(CLONE_NEWNET) denied", |_| Seen::denied(probe::unshare(libc::CLONE_NEWNET))),
    row("I48", "setns denied", |_| match rustix::fs::open("/proc/self/ns/uts", OFlags::CLOEXEC, Mode::empty()) {
        Ok(namespace) => Seen::denied(probe::enter_again(&namespace)),
        Err(error) => Seen::denied::<(), _>(Err(error)),
    }),
    row("I49", "clone3 filtered", |_| Seen::denied(probe::clone3_of_nothing())),
    row("I50", "keyctl denied", |_| Seen::denied(probe::session_keyring())),
    row("I51", "add_key denied", |_| Seen::denied(probe::add_no_key())),
    row("I52", "bpf denied", |_| Seen::denied(probe::bpf_map())),
    row("I53", "perf_event_open denied", |_| Seen::denied(probe::perf_counter())),
    row("I54", "userfaultfd denied", |_| Seen::denied(probe::page_fault_handler())),
    row("I55", "io_uring_setup denied", |_| Seen::denied(probe::no_io_uring())),
    row("I56", "open_by_handle_at denied", |_| Seen::denied(probe::open_by_handle())),
    row("I57", "init_module denied", |_| Seen::denied(probe::load_no_module())),
    row("I58", "kexec_load denied", |_| Seen::denied(probe::load_no_kernel())),
    row("I59", "reboot denied", |_| Seen::denied(probe::no_reboot())),
    row("I60", "settimeofday denied", |_| Seen::denied(probe::set_no_time())),
    row("I61", "sethostname denied", |_| Seen::denied(probe::set_no_hostname())),
    row("I62", "making the device 1:1 denied", |_| make_memory_device()),
    row("I63", "packet socket denied", |_| socket(libc::AF_PACKET, SocketType::RAW, 0)),
    row("I64", "raw ICMP socket denied", |_| socket(libc::AF_INET, SocketType::RAW, libc::IPPROTO_ICMP)),
    row("I65", "vsock socket denied", |_| socket(libc::AF_VSOCK, SocketType::STREAM, 0)),
    row("I66", "crypto socket (AF_ALG) denied", |_| socket(libc::AF_ALG, SocketType::SEQPACKET, 0)),
    row("I67", "32-bit system calls blocked", |_| Seen::denied(probe::i386_getpid())),
    row("I68", "setuid(0) denied", |_| Seen::failed(probe::become_user(0))),
    row("I69", "setgroups denied", |_| Seen::denied(probe::drop_groups())),
    row("I70", "personality(ADDR_NO_RANDOMIZE) denied", |_| Seen::denied(probe::odd_personality())),
    row("I71", "syslog denied", |_| Seen::denied(probe::read_kernel_log())),
    row("I72", "quotactl denied", |_| Seen::denied(probe::quota_of_nothing())),
];

const NOTHING: &str = "0000000000000000";

impl Seen {
    fn is(pass: bool, value: &str) -> Seen {
        Seen { pass, value: format!("{value} = {}", u8::from(pass)) }
    }

    fn pass(value: impl Into<String>) -> Seen {
        Seen { pass: true, value: value.into() }
    }

    fn fail(value: impl Into<String>) -> Seen {
        Seen { pass: false, value: value.into() }
    }

    /// A privilege check, a filter, or a kernel without the call refused it. Any other error comes after those checks.
    fn denied<T, E: Into<io::Error>>(result: Result<T, E>) -> Seen {
        let Err(error) = result.map_err(Into::into) else { return Seen::fail("allowed") };
        match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => Seen::pass(name_of(&error)),
            _ => Seen::fail(format!("allowed: {}", name_of(&error))),
        }
    }

    /// It failed, for any reason.
    fn failed<T, E: Into<io::Error>>(result: Result<T, E>) -> Seen {
        result.map_or_else(|error| Seen::pass(name_of(&error.into())), |_| Seen::fail("allowed"))
    }
}

/// The errno's name, such as `EPERM`.
fn name_of(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| format!("{:?}", Errno::from_raw(number)))
}

fn ids(ids: [u32; 2]) -> Seen {
    Seen { pass: !ids.contains(&0), value: ids[1].to_string() }
}

fn groups() -> Seen {
    match rustix::process::getgroups() {
        Ok(groups) => {
            let own = rustix::process::getegid();
            let further: Vec<u32> =
                groups.into_iter().filter(|g| *g != own).map(rustix::process::Gid::as_raw).collect();
            Seen { pass: further.is_empty(), value: format!("{further:?}") }
        }
        Err(error) => Seen::fail(error.to_string()),
    }
}

/// A line of `/proc/self/status`.
fn status(key: &str, wanted: &str) -> Seen {
    let text = match std::fs::read_to_string("/proc/self/status") {
        Ok(text) => text,
        Err(error) => return Seen::fail(format!("/proc/self/status: {error}")),
    };
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).unwrap_or("").trim();
    Seen { pass: value == wanted, value: value.to_owned() }
}

fn namespace(kind: &str) -> io::Result<u64> {
    Ok(rustix::fs::stat(format!("/proc/self/ns/{kind}"))?.st_ino)
}

fn own(host: &Host, kind: &str) -> Seen {
    match (namespace(kind), host.namespaces.get(kind)) {
        (Ok(own), Some(theirs)) if own == *theirs => Seen::fail("the host's"),
        (Ok(_), Some(_)) => Seen::pass("its own"),
        (Ok(_), None) => Seen::fail("the host's is not known"),
        (Err(error), _) => Seen::fail(format!("/proc/self/ns/{kind}: {error}")),
    }
}

fn host_process(host: &Host) -> Seen {
    if host.pid == 0 {
        return Seen::fail("no process of the host is known");
    }
    match processes::stat(host.pid) {
        Ok(Some(stat)) if stat.start_ticks == host.start_ticks => Seen::fail(format!("sees process {}", host.pid)),
        Ok(_) => Seen::pass("no"),
        Err(_) if rustix::fs::stat("/proc/self").is_err() => Seen::pass("no /proc"),
        // The process exists, though its files cannot be read.
        Err(error) => Seen::fail(format!("sees process {}: {error}", host.pid)),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    Open,
    Read,
}

/// Whether the file is a mask: `/dev/null`, or below `/proc` a file or directory of another file system.
fn is_mask(file: &rustix::fd::OwnedFd, path: &str) -> bool {
    const PROC_SUPER_MAGIC: libc::c_long = 0x9fa0;
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == NULL_DEVICE;
    let real = rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type == PROC_SUPER_MAGIC);
    null || path.starts_with("/proc/") && !real
}

/// 1:3 as `stat(2)` has it.
const NULL_DEVICE: u64 = 0x103;

fn unreadable(path: &str, look: Look) -> Seen {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file,
        Err(error) => return Seen::pass(name_of(&error.into())),
    };
    if is_mask(&file, path) {
        return Seen::pass("masked");
    }
    if look == Look::Open {
        return Seen::fail("opens");
    }
    let mut buffer = [0; 16];
    match rustix::io::read(&file, &mut buffer) {
        Err(error) => Seen::pass(format!("read: {}", name_of(&error.into()))),
        Ok(0) => Seen::pass("empty"),
        Ok(_) => Seen::fail("readable"),
    }
}

fn hidden(path: &str) -> Seen {
    match std::fs::read_dir(path) {
        Err(error) => Seen::pass(name_of(&error)),
        Ok(entries) => {
            let count = entries.count();
            if count == 0 { Seen::pass("empty") } else { Seen::fail(format!("{count} entries")) }
        }
    }
}

fn unwritable(path: &str) -> Seen {
    match rustix::fs::open(path, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) if is_mask(&file, path) => Seen::pass("masked"),
        Ok(_) => Seen::fail("opens for writing"),
        Err(error) => Seen::pass(name_of(&error.into())),
    }
}

/// The root of the cgroup tree, the hierarchies in it, and in each of them the own cgroup with its ancestors.
fn cgroup_tree() -> Seen {
    let top = Path::new("/sys/fs/cgroup");
    let mut folders: Vec<PathBuf> = vec![top.to_owned()];
    let entries = std::fs::read_dir(top).into_iter().flatten().flatten();
    folders.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let hierarchy = top.join(controllers.strip_prefix("name=").unwrap_or(controllers));
        let path = Path::new(path.trim_start_matches('/'));
        folders.extend(path.ancestors().filter(|p| !p.as_os_str().is_empty()).map(|p| hierarchy.join(p)));
    }
    let writable = folders.into_iter().find(|folder| {
        [folder.clone(), folder.join("cgroup.procs")]
            .iter()
            .any(|path| rustix::fs::accessat(CWD, path, Access::WRITE_OK, AtFlags::empty()).is_ok())
    });
    writable.map_or_else(|| Seen::pass("no"), |path| Seen::fail(format!("{} is writable", path.display())))
}

fn lower_oom_score() -> Seen {
    let path = "/proc/self/oom_score_adj";
    let now = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    let Some(now) = now else { return Seen::pass("no oom_score_adj") };
    Seen::failed(std::fs::write(path, (now - 1).max(-1000).to_string()))
}

/// A mount with an invalid option, which the kernel checks after the privilege.
fn mount_nothing() -> nix::Result<()> {
    mount(None::<&str>, "/", Some("tmpfs"), MsFlags::empty(), Some("agentbin_no_such_option"))
}

fn remount_proc_sys() -> Seen {
    let remount = |flags| {
        mount(None::<&str>, "/proc/sys", None::<&str>, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags, None::<&str>)
    };
    // If the unshare works, only a copy of the mount is changed; if not, the privilege is missing and nothing is changed.
    let copied = probe::unshare(libc::CLONE_NEWNS).is_ok();
    let done = remount(MsFlags::empty());
    if done.is_ok() && !copied {
        // The result stands even if the mount cannot be restored.
        let _ = remount(MsFlags::MS_RDONLY);
    }
    Seen::denied(done)
}

/// Tries all directories that this process may write to.
fn make_memory_device() -> Seen {
    let mut answer = Seen::pass("no writable directory");
    for folder in ["/tmp", "/dev/shm", "/local", "/dev", "/var/tmp", "."] {
        let path = format!("{folder}/agentbin-probe-{}", std::process::id());
        let device = rustix::fs::makedev(1, 1);
        match rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::RUSR, device) {
            Ok(()) => {
                // The probe created it in a directory of its own.
                let _ = rustix::fs::unlink(&path);
                return Seen::fail(format!("made in {folder}"));
            }
            Err(rustix::io::Errno::PERM) => answer = Seen::pass("EPERM"),
            Err(_) => {}
        }
    }
    answer
}

fn socket(family: i32, kind: SocketType, protocol: i32) -> Seen {
    let family = AddressFamily::from_raw(family as u16);
    let protocol = std::num::NonZeroU32::new(protocol as u32).map(Protocol::from_raw);
    match rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, protocol) {
        // A filter returns another errno.
        Err(rustix::io::Errno::AFNOSUPPORT) => Seen::pass("EAFNOSUPPORT: not in this kernel"),
        result => Seen::failed(result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N9: 72 rows, in order, each with a unique name.
    #[test]
    fn the_table_is_complete() {
        for (number, row) in ROWS.iter().enumerate() {
            assert_eq!(row.id, format!("I{:02}", number + 1));
        }
        let names: crate::spec::collections::BTreeSet<_> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
    }

    #[test]
    fn only_a_refusal_counts_as_denied() {
        let denied = |number| Seen::denied::<(), _>(Err(io::Error::from_raw_os_error(number)));
        assert_eq!(denied(libc::EPERM), Seen::pass("EPERM"));
        assert_eq!(denied(libc::ENOSYS), Seen::pass("ENOSYS"));
        assert_eq!(denied(libc::EINVAL), Seen::fail("allowed: EINVAL"));
        assert!(!Seen::denied::<_, io::Error>(Ok(())).pass);
    }
}
