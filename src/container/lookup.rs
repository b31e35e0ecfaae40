//! Whether a program in a place that tasks can write to may be executed: only root and the task's own user may be able to change
//! what its path leads to.
//!
//! The path is walked as the kernel walks it, one component after the other, by descriptors. Places below the allocation's
//! directory, or on a writable mount of the task's root, are inspected; all others belong to the host and are left to the kernel's
//! own checks. `docs/isolation.md` has the rule. The program is then executed by its path, so that a script keeps its `$0`; no
//! untrusted user can change that path any more.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, StatVfsMountFlags};

use super::config::{Guard, Ids, RootConfig};
use crate::spec::{HostIds, Neighbours};
use crate::sys::acl::{Acl, EXECUTE, WRITE, Who};
use crate::sys::mutant;
use crate::sys::path::{Root, mount_of};

/// As many symbolic links as the kernel follows in one path.
const MAX_LINKS: usize = 40;

/// Opens a component itself, of any type.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The users and groups that are allowed to have write access to a program.
#[derive(Debug, Clone)]
pub struct Trusted {
    uids: Vec<u32>,
    gids: Vec<u32>,
}

impl Trusted {
    /// Root, the user of this process, and the task's user with its own group. Where the allocation has a range of ids, by their
    /// host ids, together with root inside the namespace, to which the allocation's files are chowned.
    #[must_use]
    pub fn of(ids: Option<&Ids>, range: Option<HostIds>) -> Trusted {
        let on_host = |id| HostIds::on_host(range, id);
        let (own_uid, own_gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Trusted {
            uids: [0, own_uid, on_host(0)].into_iter().chain(ids.map(|ids| on_host(ids.uid))).collect(),
            gids: [0, own_gid, on_host(0)].into_iter().chain(ids.map(|ids| on_host(ids.gid))).collect(),
        }
    }
}

impl Trusted {
    /// Whether this user, by its host id, is trusted.
    pub(super) fn has(&self, uid: u32) -> bool {
        self.uids.contains(&uid)
    }
}

/// Device and inode.
type Identity = (u64, u64);

impl Guard {
    /// Inspects the directory above `task_dir`, and its ancestors. If that fails, everything counts as reachable and its content as
    /// unknown: a task that sees the host's files then executes nothing. A task without a directory, which hosts other than our
    /// own driver may have, has no files in one.
    #[must_use]
    pub fn look(task_dir: &Path, trusted: &Trusted, neighbours: Neighbours) -> Guard {
        let Some(top) = task_dir.parent() else { return Guard::open() };
        let neighbours = if mutant::on("d04") { Neighbours::None } else { neighbours };
        Guard::try_look(top, trusted, neighbours).unwrap_or_else(|error| {
            let unseen = format!("cannot examine {}, the allocation's directory: {error}", top.display());
            Guard { unseen: Some(unseen), ..Guard::open() }
        })
    }

    /// Whether others can reach the directories of its tasks.
    pub(super) fn lets_others_in(&self) -> bool {
        self.tasks
    }

    /// A guard with which everything counts as reachable.
    pub(super) fn open() -> Guard {
        Guard { tasks: true, shared: true, ..Guard::default() }
    }

    fn try_look(top: &Path, trusted: &Trusted, neighbours: Neighbours) -> io::Result<Guard> {
        let dir = Root::open(top)?;
        let stat = rustix::fs::fstat(&dir)?;
        // A plain user may lack access to some ancestors: then it is unknown whether they keep others out.
        let reached = !is_closed_above(dir.as_fd(), trusted).unwrap_or(false);
        let seen = inspect(top, &stat, reached, trusted, || reopen_dir(dir.as_fd()));
        let tasks = seen.open || neighbours == Neighbours::Everywhere;
        Ok(Guard {
            top: Some(identity(&stat)),
            tasks,
            shared: tasks || neighbours == Neighbours::Shared,
            problem: seen.problem,
            unseen: None,
        })
    }
}

/// Whether an ancestor of this directory denies search permission to all untrusted users.
fn is_closed_above(dir: BorrowedFd<'_>, trusted: &Trusted) -> io::Result<bool> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::openat(dir, "..", flags, Mode::empty())?;
    let mut below = identity(&rustix::fs::fstat(dir)?);
    loop {
        let stat = rustix::fs::fstat(&here)?;
        if identity(&stat) == below {
            return Ok(false);
        }
        let keeps_out =
            trusted.uids.contains(&stat.st_uid) && !others_may(EXECUTE, &stat, trusted, || reopen_dir(here.as_fd()));
        if keeps_out {
            return Ok(true);
        }
        below = identity(&stat);
        here = rustix::fs::openat(&here, "..", flags, Mode::empty())?;
    }
}

fn identity(stat: &Stat) -> Identity {
    (stat.st_dev, stat.st_ino)
}

fn reopen_dir(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, ".", flags, Mode::empty())?)
}

/// Whether mode or access control list grant this permission to an untrusted user. Ownership is checked elsewhere. A list that
/// cannot be read counts as granting it.
fn others_may(what: u16, stat: &Stat, trusted: &Trusted, reopen: impl FnOnce() -> io::Result<OwnedFd>) -> bool {
    let (others, group) = (u32::from(what), u32::from(what) << 3);
    if stat.st_mode & others != 0 {
        return true;
    }
    // With a list these bits are its mask: the maximum that any entry grants.
    if stat.st_mode & group == 0 {
        return false;
    }
    let Ok(list) = reopen().and_then(Acl::of) else { return true };
    let group_is_trusted = trusted.gids.contains(&stat.st_gid);
    let Some(Acl(entries)) = list else { return !group_is_trusted };
    entries.iter().filter(|(_, may)| may & what != 0).any(|(who, _)| match who {
        Who::User(uid) => !trusted.uids.contains(uid),
        Who::Group(gid) => !trusted.gids.contains(gid),
        Who::OwningGroup => !group_is_trusted,
        Who::Owner | Who::Mask | Who::Others => false,
    })
}

/// The result for one file or directory.
struct Inspected {
    problem: Option<String>,
    /// Others can reach its content.
    open: bool,
}

/// nobody, to which a Nomad agent that runs as root chowns the directories of its tasks: accepted as owner where untrusted users
/// cannot reach.
const AGENTS: u32 = 65534;

/// `reached`: others can reach it.
fn inspect(
    path: &Path,
    stat: &Stat,
    reached: bool,
    trusted: &Trusted,
    reopen: impl Fn() -> io::Result<OwnedFd>,
) -> Inspected {
    let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    // Another hard link to the file may be in a place that others can reach.
    let named_twice = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink > 1;
    let may = |what| (reached || named_twice) && others_may(what, stat, trusted, &reopen);
    let open = is_dir && may(EXECUTE);
    let shown =
        || format!("{} (uid {}, gid {}, mode {:04o})", path.display(), stat.st_uid, stat.st_gid, stat.st_mode & 0o7777);
    let of_agent = is_dir && !reached && stat.st_uid == AGENTS;
    let problem = if !trusted.uids.contains(&stat.st_uid) && !of_agent {
        Some(format!("{} belongs to another user than root and the task's", shown()))
    } else if may(WRITE) && (open || !is_dir) {
        Some(format!("{} can be written to by others than root and the task's user", shown()))
    } else {
        None
    };
    Inspected { problem, open }
}

/// The kind of place that a walk has come to, among those that tasks can write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zone {
    /// The allocation's directory itself, which the guard has inspected.
    Top,
    /// The directory of a task.
    Task,
    /// The directory that the tasks of the allocation share.
    Shared,
    /// A writable mount; who else writes there is unknown.
    Volume,
}

/// Whether nothing exists at a path, or this caller may not open it: not a failure of the machine.
#[must_use]
pub fn leads_nowhere(error: &io::Error) -> bool {
    let errno = error.raw_os_error().unwrap_or_default();
    [libc::ENOENT, libc::ENOTDIR, libc::ELOOP, libc::EACCES, libc::ENAMETOOLONG].contains(&errno)
        || error.kind() == io::ErrorKind::NotFound
}

/// Why a program is not to be executed.
#[derive(Debug)]
pub enum Refusal {
    /// An untrusted user could change it: which file or directory, and how to go on.
    Writable(String),
    /// It is unknown who could change it: what could not be inspected.
    Unseen(String),
    /// Its path cannot be walked.
    Failed(io::Error),
    /// Its path leads to another file than the one that was found.
    Elsewhere,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Writable(problem) => write!(
                f,
                "{problem}, and a task executes no such program; close it to them, or allow it: agentbin run \
                 --allow-writable-programs, under a Nomad agent allow_writable_programs = true in the configuration of the \
                 driver's plugin"
            ),
            Refusal::Unseen(what) => write!(
                f,
                "{what}; who can write to programs there is not known, and a task executes none then; make it a directory \
                 that the executor's user can open, or under a Nomad agent set allow_writable_programs = true in the \
                 configuration of the driver's plugin"
            ),
            Refusal::Failed(error) => write!(f, "who can write to it cannot be found out: {error}"),
            Refusal::Elsewhere => f.write_str("the path leads to another file than was found, or changed meanwhile"),
        }
    }
}

/// Where a program was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Below the allocation's directory or on a writable mount, at its end or on the way.
    pub inside: bool,
    /// Through a symbolic link there.
    pub linked: bool,
}

/// The mode with which a file in the task's directory is executed: executable by everybody if the task's user owns it, else by
/// those who may read it. An untrusted user with write access to that directory may have moved a file there that only its owner may
/// read, and making it executable for everybody would expose its content.
#[must_use]
pub fn executable_mode(stat: &Stat, user: u32) -> u32 {
    let may_read = stat.st_mode & 0o444;
    stat.st_mode | if stat.st_uid == user { 0o555 } else { may_read >> 2 }
}

/// Walks paths of one task.
#[derive(Debug)]
pub struct Lookup<'a> {
    guard: &'a Guard,
    trusted: Trusted,
    /// The zone of `/`.
    start: Option<Zone>,
    /// Where other zones begin; earlier entries take precedence, and later mounts come first. `None` where the host's files begin.
    zones: Vec<(Identity, Option<Zone>)>,
    /// Read-only mounts that are not in `zones` may hold the task's own files.
    filled: bool,
}

/// One component of the walk, with the result of its inspection.
struct Place {
    fd: OwnedFd,
    path: PathBuf,
    mount: u64,
    zone: Option<Zone>,
    problem: Option<String>,
    open: bool,
}

/// What a walk has found on paths that it left again through a link or `..`.
#[derive(Default)]
struct Left {
    inside: bool,
    linked: bool,
    problem: Option<String>,
}

impl<'a> Lookup<'a> {
    /// For a task that shares the host's files.
    #[must_use]
    pub fn on_host(guard: &'a Guard, trusted: Trusted) -> Lookup<'a> {
        let zones = guard.top.map(|top| (top, Some(Zone::Top))).into_iter().collect();
        Lookup { guard, trusted, start: None, zones, filled: false }
    }

    /// For a task that is in this root.
    pub(super) fn in_root(guard: &'a Guard, trusted: Trusted, root: &Root, config: &RootConfig) -> Lookup<'a> {
        let top = config.task_dir.parent();
        let zone_of = |bind: &super::config::Bind| match top.and_then(|top| bind.source.strip_prefix(top).ok()) {
            Some(below) if below.starts_with("alloc") => Some(Zone::Shared),
            Some(_) => Some(Zone::Task),
            None => (!bind.readonly).then_some(Zone::Volume),
        };
        let begin = |bind: &super::config::Bind| {
            let place =
                root.open_in_root(bind.target.strip_prefix("/").unwrap_or(&bind.target), OFlags::PATH, Mode::empty());
            Some((identity(&rustix::fs::fstat(place.ok()?).ok()?), zone_of(bind)))
        };
        let zones = config.binds.iter().rev().filter_map(begin).collect();
        Lookup { guard, trusted, start: Some(Zone::Task), zones, filled: config.filled }
    }

    /// Whether the absolute `path`, at which `file` was found, may be executed.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn check(&self, path: &Path, file: &OwnedFd) -> Result<Seen, Refusal> {
        // With a root of its own, the binds define what belongs to the allocation; without one, only the guard does.
        if let (None, Some(what)) = (self.start, &self.guard.unseen)
            && !mutant::on("d41")
        {
            return Err(Refusal::Unseen(what.clone()));
        }
        let (stack, left) = match self.walk(path) {
            Ok(walked) => walked,
            Err(error) if leads_nowhere(&error) => return Err(Refusal::Elsewhere),
            Err(error) => return Err(Refusal::Failed(error)),
        };
        let same = |fd: &OwnedFd| Ok::<_, rustix::io::Errno>(identity(&rustix::fs::fstat(fd)?));
        match (stack.last().map(|place| same(&place.fd)), same(file)) {
            (Some(Ok(walked)), Ok(found)) if walked == found => {}
            _ => return Err(Refusal::Elsewhere),
        }
        let Left { inside, linked, problem } = left.and(&stack);
        let problem = problem.or_else(|| self.guard.problem.clone().filter(|_| inside));
        match problem {
            Some(problem) if !mutant::on("d03") => Err(Refusal::Writable(problem)),
            _ => Ok(Seen { inside, linked }),
        }
    }

    /// Whether `path` leads to `file` through directories of the allocation only, without a link, and no untrusted user owns the
    /// file or can reach and write to it. Such a file belongs to the task and may be made executable.
    pub(super) fn is_tasks(&self, path: &Path, file: &OwnedFd) -> bool {
        let Ok((stack, left)) = self.walk(path) else { return false };
        let of_allocation = |place: &Place| matches!(place.zone, Some(Zone::Top | Zone::Task | Zone::Shared));
        let same = |place: &Place| match (rustix::fs::fstat(&place.fd), rustix::fs::fstat(file)) {
            (Ok(walked), Ok(found)) => identity(&walked) == identity(&found),
            _ => false,
        };
        let trusted = |place: &Place| place.problem.is_none() || mutant::on("d43");
        let last = stack.last().is_some_and(|place| same(place) && trusted(place));
        last && !left.linked && stack.iter().all(of_allocation)
    }

    /// The components that lead to `path`, its last one and the `/` included.
    fn walk(&self, path: &Path) -> io::Result<(Vec<Place>, Left)> {
        let slash = rustix::fs::openat(CWD, "/", LOOK, Mode::empty())?;
        let mut stack = vec![self.start(slash)?];
        let mut left = Left::default();
        let mut pending = components(path);
        let mut links = 0;
        while let Some(name) = pending.pop() {
            let Some(here) = stack.last() else { return Err(io::ErrorKind::NotFound.into()) };
            if name == "." {
                continue;
            }
            if name == ".." {
                left = left.and(&stack);
                if stack.len() > 1 {
                    stack.pop();
                }
                continue;
            }
            let found = rustix::fs::openat(&here.fd, &name, LOOK, Mode::empty())?;
            let stat = rustix::fs::fstat(&found)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
                let place = self.place(here, &name, found, &stat)?;
                stack.push(place);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = rustix::fs::readlinkat(&found, c"", Vec::new())?;
            if here.zone.is_some() {
                left = left.and(&stack);
                left.linked = true;
                // The owner of a link in a directory with the sticky bit can replace it.
                let seen =
                    inspect(&here.path.join(&name), &stat, false, &self.trusted, || Err(io::ErrorKind::Other.into()));
                left.problem = left.problem.or(seen.problem);
            }
            let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
            if target.has_root() {
                stack.truncate(1);
            }
            pending.extend(components(&target));
        }
        Ok((stack, left))
    }

    fn start(&self, slash: OwnedFd) -> io::Result<Place> {
        let stat = rustix::fs::fstat(&slash)?;
        let path = PathBuf::from("/");
        let seen =
            self.start.map(|_| inspect(&path, &stat, self.guard.tasks, &self.trusted, || reopen_dir(slash.as_fd())));
        let (problem, open) = seen.map_or((None, false), |seen| (seen.problem, seen.open));
        Ok(Place { mount: mount_of(slash.as_fd())?, fd: slash, path, zone: self.start, problem, open })
    }

    /// The component `name` of `here`.
    fn place(&self, here: &Place, name: &OsStr, fd: OwnedFd, stat: &Stat) -> io::Result<Place> {
        let mount = mount_of(fd.as_fd())?;
        let begins = self.zones.iter().find(|(place, _)| *place == identity(stat)).map(|(_, zone)| *zone);
        let zone = match (begins, here.zone) {
            (Some(zone), _) => zone,
            (None, Some(Zone::Top)) => Some(if name == "alloc" { Zone::Shared } else { Zone::Task }),
            // A read-only mount of the host's programs.
            (None, Some(_)) if !self.filled && mount != here.mount && is_read_only(&fd)? => None,
            (None, zone) => zone,
        };
        let reached = match zone {
            _ if begins.is_none() && zone == here.zone => here.open,
            Some(Zone::Task) => self.guard.tasks,
            Some(Zone::Shared) => self.guard.shared,
            Some(Zone::Volume) => true,
            Some(Zone::Top) | None => false,
        };
        let path = here.path.join(name);
        let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        let reopen = || if is_dir { reopen_dir(fd.as_fd()) } else { reopen_file(here, name, stat) };
        // Problems of the top are in the guard.
        let inspected = zone.filter(|zone| *zone != Zone::Top);
        let seen = inspected.map(|_| inspect(&path, stat, reached, &self.trusted, reopen));
        let (problem, open) = seen.map_or((None, false), |seen| (seen.problem, seen.open));
        Ok(Place { fd, path, mount, zone, problem, open })
    }
}

impl Left {
    /// Adds problems of the components since the walk last left the host's files.
    fn and(self, stack: &[Place]) -> Left {
        let outside = stack.iter().rposition(|place| place.zone.is_none()).map_or(0, |last| last + 1);
        let run = &stack[outside..];
        let problem = || run.iter().find_map(|place| place.problem.clone());
        Left { inside: self.inside || !run.is_empty(), linked: self.linked, problem: self.problem.or_else(problem) }
    }
}

/// The components of a path, the first one last. A path that ends in a slash ends in a directory.
fn components(path: &Path) -> Vec<OsString> {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.ends_with(b"/").then(|| OsString::from("."));
    let names = bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let names: Vec<OsString> = names.map(|name| OsString::from_vec(name.to_vec())).chain(end).collect();
    names.into_iter().rev().collect()
}

fn is_read_only(fd: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatvfs(fd)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Opens a regular file to read its access control list.
fn reopen_file(here: &Place, name: &OsStr, stat: &Stat) -> io::Result<OwnedFd> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&here.fd, name, flags, Mode::empty())?;
    if identity(&rustix::fs::fstat(&file)?) == identity(stat) { Ok(file) } else { Err(io::ErrorKind::NotFound.into()) }
}
