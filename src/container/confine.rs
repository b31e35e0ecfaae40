//! Restricts a process of agentbin that parses untrusted input, before it reads the first byte. The process never becomes a task.

use std::os::fd::BorrowedFd;
use std::path::Path;

use caps::{CapSet, CapsHashSet};
use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, make_bitflags,
};
use rustix::process::{Gid, Resource, Rlimit, Uid, setrlimit};

use super::config::{Failure, Step as _};
use super::seccomp::{self, SetId};
use crate::spec::Seccomp;
use crate::sys::{self, mutant, prctl};

/// What the process keeps.
#[derive(Debug)]
pub struct Confinement<'a> {
    /// User and group to switch to, without supplementary groups; only root can switch.
    pub becomes: Option<(u32, u32)>,
    /// The directory in which it may make files, directories and links.
    pub writable: BorrowedFd<'a>,
    /// Paths that it may read and execute, if they exist.
    pub readable: &'a [&'a Path],
    /// Further paths that it may read and write, if they exist: devices.
    pub devices: &'a [&'a Path],
    /// Longest file that it may write, in bytes.
    pub file_bytes: u64,
    /// Memory that it may allocate (`RLIMIT_DATA`), in bytes.
    pub memory_bytes: u64,
}

/// Open files of each of its processes; it needs few.
const MOST_FILES: u64 = 512;
/// Processes and threads; only set when no other process runs as its user.
const MOST_PROCESSES: u64 = 256;

/// Restricts this process and all that it starts: another user, no capability and no way to get one, limits, files by Landlock
/// (where the kernel has it), system calls by the default filter, and not dumpable, so that other processes of its user cannot
/// inspect it. From here on the kernel kills it when its parent ends. The process must have no threads.
///
/// # Errors
/// The step that failed.
pub fn confine(confinement: &Confinement<'_>) -> Result<(), Failure> {
    let Confinement { becomes, writable, readable, devices, file_bytes, memory_bytes } = confinement;
    let limit = |resource, most: u64| {
        let limits = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, limits).step(|| format!("set the limit of {resource:?}"))
    };
    limit(Resource::Core, 0)?;
    // A write beyond the limit fails with EFBIG instead of killing the process with SIGXFSZ.
    prctl::ignore_signal(rustix::process::Signal::XFSZ);
    limit(Resource::Fsize, *file_bytes)?;
    limit(Resource::Data, *memory_bytes)?;
    let allowed = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(MOST_FILES);
    limit(Resource::Nofile, allowed.min(MOST_FILES))?;
    let privileged = rustix::process::geteuid().is_root();
    if privileged && caps::read(None, CapSet::Permitted).is_ok_and(|held| held.contains(&caps::Capability::CAP_SETPCAP))
    {
        caps::clear(None, CapSet::Bounding).step(|| "give up capabilities".to_owned())?;
    }
    if let Some((uid, gid)) = *becomes {
        limit(Resource::Nproc, MOST_PROCESSES)?;
        let step = || format!("become user {uid}");
        rustix::thread::set_thread_groups(&[]).step(step)?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid).step(step)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid).step(step)?;
    }
    // Also drops those that an unprivileged user has in a user namespace made for this process.
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set).step(|| "give up capabilities".to_owned())?;
    }
    prctl::set_no_new_privs().step(|| "set no_new_privs".to_owned())?;
    // The change of user has reset both.
    prctl::set_undumpable().step(|| "forbid looks into this process".to_owned())?;
    prctl::set_parent_death_signal(rustix::process::Signal::KILL).step(|| "bind to the parent's life".to_owned())?;
    if !mutant::on("d101") {
        restrict_files(*writable, readable, devices).step(|| "restrict the files".to_owned())?;
    }
    if !seccomp::is_known_here() {
        return Ok(());
    }
    match seccomp::program(&Seccomp::Default, &CapsHashSet::new(), SetId::Refused)? {
        Some(program) => sys::seccomp::install(&program).step(|| "install the seccomp filter".to_owned()),
        None => Ok(()),
    }
}

fn restrict_files(
    writable: BorrowedFd<'_>,
    readable: &[&Path],
    devices: &[&Path],
) -> Result<(), landlock::RulesetError> {
    let read: BitFlags<AccessFs> = make_bitflags!(AccessFs::{Execute | ReadDir | ReadFile});
    let device: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | WriteFile});
    let special: BitFlags<AccessFs> = make_bitflags!(AccessFs::{MakeBlock | MakeChar | MakeFifo | IoctlDev});
    let all = AccessFs::from_all(ABI::V5);
    // Access rights that the kernel does not support are left out: Landlock is only the outermost of several layers.
    let mut rules = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(all)?.create()?;
    for (paths, access) in [(readable, read), (devices, device)] {
        for path in paths {
            let Ok(place) = PathFd::new(path) else { continue };
            let is_file = !path.is_dir();
            let access = if is_file { access & AccessFs::from_file(ABI::V5) } else { access };
            rules = rules.add_rule(PathBeneath::new(place, access))?;
        }
    }
    rules.add_rule(PathBeneath::new(writable, all & !special))?.restrict_self()?;
    Ok(())
}
