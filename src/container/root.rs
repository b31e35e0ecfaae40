//! The task's root: its own directory with everything else mounted into it, and no access to the host's root.
//!
//! All sources are cloned as detached trees before anything is attached, and each target is opened inside the root by a descriptor,
//! so that no name is looked up twice: a link that an earlier run of the task planted in its directory cannot lead out of the root,
//! or the start is refused.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use procfs::process::{MountOptFields, Process};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat};
use rustix::mount::{MountAttrFlags, UnmountFlags};

use super::config::{Bind, DeviceNode, Failure, RootConfig, Step as _};
use super::lookup::Trusted;
use super::places::Places;
use super::{etc, filled};
use crate::spec::{Masks, Propagation};
use crate::sys::mount::{attach, clone_tree, new_filesystem, set_attributes};
use crate::sys::mutant;
use crate::sys::path::{Root, mount_of, open_resolved};

const NOSUID: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID;
const NODEV: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NODEV;
const NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOEXEC;
const RDONLY: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY;

/// Hidden from the task: kernel memory, keys, timers and interrupt counts of the whole machine, firmware tables.
const MASKED: [&str; 12] = [
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/timer_list",
    "proc/timer_stats",
    "proc/sched_debug",
    "proc/interrupts",
    "proc/acpi",
    "proc/scsi",
    "proc/asound",
    "sys/firmware",
    "sys/devices/virtual/powercap",
];

/// The ones among these that Nomad hides.
const MASKED_BY_NOMAD: [&str; 2] = ["proc/kcore", "sys/firmware"];

/// Visible, but writing there would change the whole machine.
const READ_ONLY: [&str; 5] = ["proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus", "proc/fs"];

/// Of these, what Nomad leaves writable.
const READ_ONLY_BUT_FOR_NOMAD: &str = "proc/fs";

/// The character devices that every task with a root of its own has in `/dev`: name, major and minor number.
pub const DEVICES: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// The file systems that every root has, created and populated, but not attached yet.
pub(super) struct Parts {
    proc: OwnedFd,
    dev: OwnedFd,
    pts: OwnedFd,
    shm: OwnedFd,
    mqueue: OwnedFd,
}

impl Parts {
    /// Makes the file systems, which needs only the namespaces in which this process was born. The umask must be 0.
    pub(super) fn make(rootless: bool) -> Result<Parts, Failure> {
        let proc = filesystem(c"proc", &[], NOSUID | NODEV | NOEXEC, "proc")?;
        let dev = make_dev(rootless)?;
        // The tty group has no id in a user namespace that maps only one.
        let pts_options: &[(&str, Option<&str>)] =
            &[("ptmxmode", Some("0666")), ("mode", Some("0620")), ("gid", Some("5"))][..if rootless { 2 } else { 3 }];
        let pts = filesystem(c"devpts", pts_options, NOSUID | NOEXEC, "dev/pts")?;
        let shm_options = [("mode", Some("1777")), ("size", Some("65536k"))];
        let shm = filesystem(c"tmpfs", &shm_options, NOSUID | NODEV | NOEXEC, "dev/shm")?;
        let mqueue = filesystem(c"mqueue", &[], NOSUID | NODEV | NOEXEC, "dev/mqueue")?;
        Ok(Parts { proc, dev, pts, shm, mqueue })
    }
}

/// Assembles the root and makes it `/`, with `/etc` closed if `close_etc` is set. Only users in `trusted` can change which
/// directories the task sees at the mounted places. The process must be alone in its own mount namespace.
pub(super) fn enter(
    config: &RootConfig,
    trusted: Trusted,
    rootless: bool,
    others: bool,
    close_etc: bool,
    parts: Parts,
) -> Result<(), Failure> {
    // Clones the sources of the binds, while these mounts still belong to the host's peer groups.
    let alloc_dir = AllocDir::of(&config.task_dir)?;
    // A sibling task without a root of its own may execute files of the allocation, so set-user-ID bits and device nodes have no
    // effect there.
    let plain = if config.masks == Masks::All && !mutant::on("d12") { NOSUID | NODEV } else { MountAttrFlags::empty() };
    let clone = |bind| clone_bind(bind, alloc_dir.as_ref(), plain);
    let binds = config.binds.iter().map(clone).collect::<Result<Vec<_>, _>>()?;
    let closed = if close_etc { etc::close(&config.binds, &binds, parts.proc.as_fd())? } else { Vec::new() };
    let devices = config.devices.iter().map(clone_device).collect::<Result<Vec<_>, _>>()?;
    let task_dir =
        rustix::fs::openat(CWD, &config.task_dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .step(|| format!("open the task's directory {}", config.task_dir.display()))?;
    let tree = clone_tree(task_dir.as_fd(), Path::new("")).step(|| "copy the task directory's mount".to_owned())?;

    // From here on mounts in this namespace do not propagate to the host.
    let slash = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .step(|| "open /".to_owned())?;
    set_attributes(slash.as_fd(), MountAttrFlags::empty(), libc::MS_SLAVE, true)
        .step(|| "make the host's mounts slaves (needs Linux 5.12)".to_owned())?;

    // NODEV disables device nodes in the task's directory; the real ones are on separate mounts. Mounts below the directory still
    // belong to the host's peer groups.
    set_attributes(tree.as_fd(), MountAttrFlags::empty(), libc::MS_SLAVE, true)
        .and_then(|()| set_attributes(tree.as_fd(), NODEV, libc::MS_PRIVATE, false))
        .step(|| "make the root private".to_owned())?;
    if !plain.is_empty() {
        set_attributes(tree.as_fd(), plain, 0, true).step(|| "make the root nosuid".to_owned())?;
    }
    attach(tree.as_fd(), task_dir.as_fd()).step(|| "attach the root".to_owned())?;
    rustix::process::fchdir(&tree).step(|| "enter the root".to_owned())?;
    let root = Root::from_fd(tree);
    if config.filled {
        filled::open_places(&root)?;
    }
    let tight = config.masks == Masks::All && !rootless && others;
    let places = if tight { Places::closed(&root, trusted)? } else { Places::open() };
    ["proc", "dev", "sys"].iter().try_for_each(|name| places.secure(&root, Path::new(name), true))?;

    let Parts { proc, dev, pts, shm, mqueue } = parts;
    attach_plain(&root, &proc, "proc").step(|| "mount /proc".to_owned())?;
    let proc = Root::from_fd(proc);
    let named_null = (mutant::on("b02") || mutant::on("b02-race") && is_null_by_name(&root))
        .then(|| rustix::fs::openat(&root, "dev/null", OFlags::PATH, Mode::empty()));
    let dev = attach_dev(&root, rootless, dev, [(pts, "pts"), (shm, "shm"), (mqueue, "mqueue")])?;
    let kernel = Kernel { proc, sys: mount_sys(&root, rootless)? };
    let mut closed = closed.into_iter().peekable();
    let mut outward = Outward::default();
    for (at, (bind, tree)) in config.binds.iter().zip(&binds).enumerate() {
        attach_inside(&root, &kernel, &places, outward, tree, &bind.target)?;
        outward.any |= bind.propagation == Propagation::Bidirectional;
        // Before further binds, which a job may have below this one.
        if let Some(part) = closed.next_if(|part| part.bind == at) {
            part.finish(tree, &dev)?;
        }
    }
    for (device, tree) in config.devices.iter().zip(&devices) {
        attach_inside(&root, &kernel, &places, outward, tree, &device.target)?;
    }
    hide_machine(&kernel, &dev, outward, config.masks, named_null.and_then(Result::ok))?;
    if config.filled {
        filled::close(&root)?;
    }
    switch_root(config.no_pivot_root)?;
    kernel.is_in_place()
}

/// The task's `/proc` and `/sys`, by their mounts: another user who shares the directory may have moved the mount points in the
/// meantime.
struct Kernel {
    proc: Root,
    sys: Root,
}

impl Kernel {
    /// The mount that contains `path`, which begins with `proc` or `sys`, and the rest of the path.
    fn split<'a>(&self, path: &'a Path) -> (&Root, &'a Path) {
        match path.strip_prefix("proc") {
            Ok(rest) => (&self.proc, rest),
            Err(_) => (&self.sys, path.strip_prefix("sys").unwrap_or(path)),
        }
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<Option<OwnedFd>> {
        let (root, rest) = self.split(Path::new(path));
        let opened = if mutant::on("b04-race") {
            rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from)
        } else {
            root.open_beneath(rest, flags, Mode::empty())
        };
        match opened {
            Ok(fd) => Ok(Some(fd)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Fails unless `/proc` and `/sys` of the new root are these mounts.
    fn is_in_place(&self) -> Result<(), Failure> {
        for (name, mount) in [("/proc", &self.proc), ("/sys", &self.sys)] {
            let step = || format!("find {name} in the new root");
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let found = rustix::fs::openat(CWD, name, flags, Mode::empty()).step(step)?;
            let stat = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).step(step);
            if !is_same(&stat(found.as_fd())?, &stat(mount.as_fd())?) {
                return Err(Failure::invalid(step(), "somebody has moved it"));
            }
        }
        Ok(())
    }
}

/// Mounts that propagate to others: those of bidirectional volumes. A mount below one also appears on the host, and stays there.
#[derive(Debug, Clone, Copy, Default)]
struct Outward {
    /// There is at least one such mount.
    any: bool,
}

impl Outward {
    /// Refuses a place in one of them. Checks the place itself, no matter which names or links led to it.
    fn refuse(self, place: BorrowedFd<'_>) -> io::Result<()> {
        if !self.any || mutant::on("d100") {
            return Ok(());
        }
        let mount = mount_of(place)?;
        // This is the host's procfs, as this process has not entered its root yet.
        let mounts = Process::myself().and_then(|own| own.mountinfo()).map_err(io::Error::other)?;
        let found = mounts.into_iter().find(|found| u64::try_from(found.mnt_id) == Ok(mount));
        let found = found.ok_or_else(|| io::Error::other("its mount is not in the list of mounts"))?;
        if found.opt_fields.iter().any(|field| matches!(field, MountOptFields::Shared(_))) {
            let text = "it lies in a bidirectional volume, and would be mounted on the host, too, and stay there; choose \
                        another destination";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(())
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// The directory of the task's allocation: a task may have put files there.
struct AllocDir<'a> {
    path: &'a Path,
    root: Root,
}

impl AllocDir<'_> {
    fn of(task_dir: &Path) -> Result<Option<AllocDir<'_>>, Failure> {
        let Some(path) = task_dir.parent().filter(|path| path.parent().is_some()) else { return Ok(None) };
        let root = Root::open(path).step(|| format!("open the allocation's directory {}", path.display()))?;
        Ok(Some(AllocDir { path, root }))
    }

    /// Opens `source` if it is in this directory, following no link out of it.
    fn find(&self, source: &Path) -> Option<std::io::Result<OwnedFd>> {
        let relative = source.strip_prefix(self.path).ok()?;
        let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
        Some(self.root.open_beneath(relative, OFlags::PATH, Mode::empty()))
    }
}

/// Clones the source of a bind; `plain` are the attributes for sources in the allocation.
fn clone_bind(bind: &Bind, alloc_dir: Option<&AllocDir<'_>>, plain: MountAttrFlags) -> Result<OwnedFd, Failure> {
    let step = || format!("bind {} to {}", bind.source.display(), bind.target.display());
    if bind.readonly && bind.propagation == Propagation::Bidirectional {
        return Err(Failure::invalid(step(), "a bidirectional mount must be writable, and this one is read-only"));
    }
    let found = alloc_dir.filter(|_| !mutant::on("b01")).and_then(|dir| dir.find(&bind.source));
    let plain = if found.is_some() { plain } else { MountAttrFlags::empty() };
    let tree = match found {
        None if bind.identity.is_some() && !mutant::on("d96") => clone_resolved(bind)?,
        Some(found) if mutant::on("b01-race") => {
            found.step(step)?;
            mutant::linger();
            clone_tree(CWD, &bind.source)
        }
        Some(found) => clone_tree(found.step(step)?.as_fd(), Path::new("")),
        None => clone_tree(CWD, &bind.source),
    };
    let tree = tree.step(step)?;
    let attributes = if bind.readonly && !mutant::on("b09") { RDONLY } else { MountAttrFlags::empty() };
    let propagation = match bind.propagation {
        Propagation::Private if mutant::on("b08") => libc::MS_SHARED,
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::HostToTask => libc::MS_SLAVE,
        Propagation::Bidirectional => libc::MS_SHARED,
    };
    set_attributes(tree.as_fd(), attributes | plain, propagation, !mutant::on("b07")).step(step)?;
    Ok(tree)
}

/// Clones the directory only if it is the one that was found at this path when it was resolved: a user who can write to a directory
/// of the path may have replaced it since.
fn clone_resolved(bind: &Bind) -> Result<io::Result<OwnedFd>, Failure> {
    let step = || format!("bind {} to {}", bind.source.display(), bind.target.display());
    let found = open_resolved(&bind.source).step(step)?;
    let stat = rustix::fs::fstat(&found).step(step)?;
    if bind.identity != Some((stat.st_dev, stat.st_ino)) {
        return Err(Failure::invalid(step(), "it is another one than was given: somebody has put it there"));
    }
    Ok(clone_tree(found.as_fd(), Path::new("")))
}

fn clone_device(device: &DeviceNode) -> Result<OwnedFd, Failure> {
    let step = || format!("make device out for {}", device.source.display());
    let tree = clone_tree(CWD, &device.source).step(step)?;
    let stat = rustix::fs::fstat(&tree).step(step)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice | FileType::BlockDevice => Ok(tree),
        _ => Err(Failure::invalid(step(), format!("{} is not a device", device.source.display()))),
    }
}

/// A `/dev` that is populated before it is attached, so that no other process can put anything at its names.
fn make_dev(rootless: bool) -> Result<OwnedFd, Failure> {
    let dev = filesystem(c"tmpfs", &[("mode", Some("755")), ("size", Some("65536k"))], NOSUID, "dev")?;
    for (name, major, minor) in DEVICES {
        make_device(&dev, name, major, minor, rootless).step(|| format!("create /dev/{name}"))?;
    }
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, &dev, name).step(|| format!("create /dev/{name}"))?;
    }
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(&dev, name, Mode::from_raw_mode(0o755)).step(|| format!("create /dev/{name}"))?;
    }
    Ok(dev)
}

fn attach_dev(root: &Root, rootless: bool, dev: OwnedFd, inside: [(OwnedFd, &str); 3]) -> Result<Root, Failure> {
    if mutant::on("b05") {
        let named = rustix::fs::openat(root, "dev", OFlags::PATH | OFlags::DIRECTORY, Mode::empty());
        for (name, target) in DEVICE_LINKS {
            let _ = named.as_ref().map(|dev| rustix::fs::symlinkat(target, dev, name));
        }
    }
    attach_plain(root, &dev, "dev").step(|| "mount /dev".to_owned())?;
    if rootless {
        bind_host_devices(&dev)?;
    }
    let dev = Root::from_fd(dev);
    for (mount, name) in inside {
        attach_plain(&dev, &mount, name).step(|| format!("mount /dev/{name}"))?;
    }
    Ok(dev)
}

fn filesystem(
    fs_type: &CStr,
    options: &[(&str, Option<&str>)],
    attributes: MountAttrFlags,
    target: &str,
) -> Result<OwnedFd, Failure> {
    new_filesystem(fs_type, options, attributes).step(|| format!("mount /{target}"))
}

/// A device node; or, without the right to make one, an empty file as mount point for the host's node.
fn make_device(dev: &OwnedFd, name: &str, major: u32, minor: u32, rootless: bool) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    let (kind, number) = if rootless {
        (FileType::RegularFile, 0)
    } else {
        (FileType::CharacterDevice, rustix::fs::makedev(major, minor))
    };
    Ok(rustix::fs::mknodat(dev, name, kind, mode, number)?)
}

fn bind_host_devices(dev: &OwnedFd) -> Result<(), Failure> {
    for (name, major, minor) in DEVICES {
        let step = || format!("bind the host's /dev/{name}");
        let tree = clone_tree(CWD, &Path::new("/dev").join(name)).step(step)?;
        if !is_device(&rustix::fs::fstat(&tree).step(step)?, major, minor) {
            return Err(Failure::new(step(), "it is another device"));
        }
        let target = rustix::fs::openat(dev, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
        attach(tree.as_fd(), target.step(step)?.as_fd()).step(step)?;
    }
    Ok(())
}

/// For a mutation test: the name may lead to another file the next time.
fn is_null_by_name(root: &Root) -> bool {
    let stat = rustix::fs::statat(root, "dev/null", rustix::fs::AtFlags::SYMLINK_NOFOLLOW);
    mutant::linger();
    stat.is_ok_and(|stat| is_device(&stat, 1, 3))
}

fn is_device(stat: &Stat, major: u32, minor: u32) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == rustix::fs::makedev(major, minor)
}

fn mount_sys(root: &Root, rootless: bool) -> Result<Root, Failure> {
    let step = || "mount /sys".to_owned();
    let sys = if rootless {
        // A new sysfs mount needs ownership of the network namespace, which here belongs to the host.
        let sys = clone_tree(CWD, Path::new("/sys")).step(step)?;
        set_attributes(sys.as_fd(), NOSUID | NODEV | NOEXEC | RDONLY, libc::MS_PRIVATE, true).step(step)?;
        sys
    } else {
        new_filesystem(c"sysfs", &[], NOSUID | NODEV | NOEXEC | RDONLY).step(step)?
    };
    let sys = if mutant::on("b12") { clone_tree(CWD, Path::new("/sys")).step(step)? } else { sys };
    attach_plain(root, &sys, "sys").step(step)?;
    Ok(Root::from_fd(sys))
}

/// Attaches at a directory directly below `root` that must be a real directory; created when it is missing.
fn attach_plain(root: &Root, mount: &OwnedFd, name: &str) -> io::Result<()> {
    let target = root.create_dir_all(Path::new(name), Mode::from_raw_mode(0o755))?;
    attach(mount.as_fd(), target.as_fd())
}

/// Attaches at any place inside the root; symlinks are followed, but never out of it. A missing place is created.
fn attach_inside(
    root: &Root,
    kernel: &Kernel,
    places: &Places,
    outward: Outward,
    mount: &OwnedFd,
    target: &Path,
) -> Result<(), Failure> {
    let step = || format!("mount {}", target.display());
    let stat = rustix::fs::fstat(mount).step(step)?;
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if mutant::on("b06") || mutant::on("b06-race") {
        let relative = target.strip_prefix("/").unwrap_or(target);
        let mut above: Vec<&Path> = relative.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()).collect();
        while let Some(path) = above.pop() {
            let parent = Path::new(".").join(path.parent().unwrap_or(path));
            if mutant::on("b06") || root.open_beneath(&parent, OFlags::PATH, Mode::empty()).is_ok() {
                mutant::linger();
                let _ = rustix::fs::mkdirat(root, path, Mode::from_raw_mode(0o755));
            }
        }
    }
    places.secure(root, target, is_dir)?;
    let place = open_or_create(root, outward, target, is_dir).map_err(|error| refused(step(), error))?;
    if !mutant::on("b04") {
        leave_kernel_files(kernel, &place, target)?;
    }
    attach(mount.as_fd(), place.as_fd()).step(step)
}

/// The task, and the tools that set it up, must find the kernel's own `/proc` and `/sys`. Binds may cover single files directly
/// below `/proc` (such as `cpuinfo` with the numbers of a smaller machine), and paths below `/sys`, but nothing else of the two.
fn leave_kernel_files(kernel: &Kernel, place: &OwnedFd, target: &Path) -> Result<(), Failure> {
    let step = || format!("mount {}", target.display());
    let stat_of = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).step(step);
    let stat = stat_of(place.as_fd())?;
    if is_same(&stat, &stat_of(kernel.sys.as_fd())?) {
        return Err(Failure::invalid(step(), "/sys is the kernel's; mount at another place, or below it"));
    }
    if stat.st_dev != stat_of(kernel.proc.as_fd())?.st_dev {
        return Ok(());
    }
    let plain = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let named = |name| kernel.proc.open_beneath(Path::new(name), OFlags::PATH, Mode::empty()).ok();
    if let Some(top) = target.file_name().filter(|_| plain).and_then(named)
        && is_same(&stat, &stat_of(top.as_fd())?)
    {
        return Ok(());
    }
    let why =
        "/proc is the kernel's; of it, only plain files directly below it, such as /proc/cpuinfo, can be mounted over";
    Err(Failure::invalid(step(), why))
}

/// An impossible place is an error of the job or caller that asked for it.
fn refused(step: String, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::InvalidInput if error.raw_os_error().is_none() => Failure::invalid(step, error.to_string()),
        _ => Failure::new(step, error),
    }
}

fn open_or_create(root: &Root, outward: Outward, target: &Path, is_dir: bool) -> io::Result<OwnedFd> {
    let relative: PathBuf =
        target.components().filter(|c| matches!(c, Component::Normal(_) | Component::ParentDir)).collect();
    if relative.as_os_str().is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a mount over the whole root"));
    }
    match root.open_in_root(&relative, OFlags::PATH, Mode::empty()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => {
            let found = other?;
            outward.refuse(found.as_fd())?;
            return Ok(found);
        }
    }
    let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let parent = if parent.as_os_str().is_empty() {
        root.open_in_root(Path::new("."), OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?
    } else {
        open_or_create(root, outward, parent, true)?
    };
    // Nothing is created there either.
    outward.refuse(parent.as_fd())?;
    if is_dir {
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(0o755))?;
    } else {
        rustix::fs::mknodat(&parent, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)?;
    }
    Ok(rustix::fs::openat(&parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
}

fn hide_machine(
    kernel: &Kernel,
    dev: &Root,
    outward: Outward,
    masks: Masks,
    named_null: Option<OwnedFd>,
) -> Result<(), Failure> {
    let null = match named_null {
        Some(null) => null,
        None => {
            dev.open_beneath(Path::new("null"), OFlags::PATH, Mode::empty()).step(|| "open /dev/null".to_owned())?
        }
    };
    let named = mutant::on("b02") || mutant::on("b02-race");
    if !named && !is_device(&rustix::fs::fstat(&null).step(|| "open /dev/null".to_owned())?, 1, 3) {
        return Err(Failure::invalid("open /dev/null", "/dev/null in the task's root is not the null device"));
    }
    let masked: Vec<String> = match masks {
        Masks::Nomad => MASKED_BY_NOMAD.map(str::to_owned).to_vec(),
        Masks::All => MASKED.iter().map(|path| (*path).to_owned()).chain(thermal_throttles(kernel)?).collect(),
    };
    let mut empty: Option<OwnedFd> = None;
    for path in masked.iter().filter(|_| !mutant::on("c11-masks")) {
        let step = || format!("mask /{path}");
        let Some(place) = kernel.open(path, OFlags::PATH).step(step)? else { continue };
        outward.refuse(place.as_fd()).map_err(|error| refused(step(), error))?;
        let stat = rustix::fs::fstat(&place).step(step)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            attach(etc::mask(null.as_fd()).step(step)?.as_fd(), place.as_fd()).step(step)?;
        } else if let Some(empty) = &empty {
            attach(clone_tree(empty.as_fd(), Path::new("")).step(step)?.as_fd(), place.as_fd()).step(step)?;
        } else {
            let tmpfs =
                new_filesystem(c"tmpfs", &[("size", Some("4k"))], NOSUID | NODEV | NOEXEC | RDONLY).step(step)?;
            attach(tmpfs.as_fd(), place.as_fd()).step(step)?;
            empty = Some(tmpfs);
        }
    }
    for path in READ_ONLY.into_iter().filter(|path| masks == Masks::All || *path != READ_ONLY_BUT_FOR_NOMAD) {
        let step = || format!("make /{path} read-only");
        let Some(place) = kernel.open(path, OFlags::PATH).step(step)? else { continue };
        outward.refuse(place.as_fd()).map_err(|error| refused(step(), error))?;
        let copy = clone_tree(place.as_fd(), Path::new("")).step(step)?;
        let read_only = if mutant::on("c11") { MountAttrFlags::empty() } else { RDONLY };
        set_attributes(copy.as_fd(), read_only | NOSUID | NODEV | NOEXEC, 0, true).step(step)?;
        attach(copy.as_fd(), place.as_fd()).step(step)?;
    }
    Ok(())
}

/// Each CPU's thermal throttle counters: a side channel on the activity of other tasks.
fn thermal_throttles(kernel: &Kernel) -> Result<Vec<String>, Failure> {
    const CPUS: &str = "sys/devices/system/cpu";
    let step = || format!("look for what to mask in /{CPUS}");
    let Some(cpus) = kernel.open(CPUS, OFlags::RDONLY | OFlags::DIRECTORY).step(step)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in rustix::fs::Dir::new(cpus).step(step)? {
        let entry = entry.step(step)?;
        let name = entry.file_name().to_string_lossy();
        if name.strip_prefix("cpu").is_some_and(|number| number.parse::<u32>().is_ok()) {
            found.push(format!("{CPUS}/{name}/thermal_throttle"));
        }
    }
    Ok(found)
}

/// Makes the current directory `/` and detaches the host's root.
fn switch_root(no_pivot_root: bool) -> Result<(), Failure> {
    if no_pivot_root {
        let here = rustix::fs::openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .step(|| "open the root".to_owned())?;
        let slash = rustix::fs::openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .step(|| "open /".to_owned())?;
        rustix::mount::move_mount(
            here.as_fd(),
            "",
            slash.as_fd(),
            "",
            rustix::mount::MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH
                | rustix::mount::MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH,
        )
        .step(|| "move the root onto /".to_owned())?;
        rustix::process::chroot(".").step(|| "change the root".to_owned())?;
    } else {
        // Stacks old and new root on the same place: the old one ends up on top and is unmounted by name.
        rustix::process::pivot_root(".", ".")
            .step(|| "pivot_root (no_pivot_root = true where the host's root is an initramfs)".to_owned())?;
        rustix::mount::unmount(".", UnmountFlags::DETACH).step(|| "detach the host's root".to_owned())?;
    }
    rustix::process::chdir("/").step(|| "enter /".to_owned())
}
