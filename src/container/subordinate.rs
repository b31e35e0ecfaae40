//! The subordinate ids of a plain user (`subuid(5)`), and the host's programs that map them into a user namespace.
//!
//! Such a namespace maps the user's own id to 0, and the contiguous ranges of 65,536 ids that are assigned to the user to the
//! numbers from 65536 on: in it they look as the ranges of allocations do on the host. The order of `/etc/subuid` and `/etc/subgid`
//! defines which range gets which number.
//!
//! Only a set-user-ID program may write such a map. It runs with a deadline, and its error output is reported.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::config::{Rootless, SubordinateIds};
use super::host_ids::HostIdRegistry;
use crate::spec::json;
use crate::spec::{HostIdSpace, HostIds, Role};
use crate::sys::lock::lock;
use crate::sys::{self, children, mutant, prctl, process};

/// Where distributions install the programs. PATH is not searched.
const DIRS: [&str; 2] = ["/usr/bin", "/bin"];
const PROGRAMS: [&str; 2] = ["newuidmap", "newgidmap"];
const FILES: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
/// Time limit for each of the programs, and for our helper process to enter its namespace.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of a database that are read.
const LONGEST: u64 = 8 << 20;
/// Most bytes of a program's error output that are kept.
const MOST_SAID: usize = 4096;
/// Most bytes of our helper process's answer.
const MOST_ANSWERED: u64 = 1 << 20;
/// Most ranges of a user that are used: the kernel takes 340 lines of a map.
const MOST_RANGES: usize = 256;
/// How often a step is tried if its process was killed: a run that lost an executor kills all processes that it finds below itself.
const TRIES: u32 = 3;
/// The first id that `useradd` assigns.
const FIRST_SUGGESTED: u32 = 100_000;

/// The subordinate ids of the user of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subordinate {
    own: [u32; 2],
    home: Option<PathBuf>,
    /// First ids of the ranges, of users and of groups; both lists have the same length.
    firsts: [Vec<u32>; 2],
}

/// Why a plain user's tasks have only the user's own id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSubordinate {
    /// A program that may write the maps is missing.
    #[error("{0} is not there; install it (the package uidmap on Debian, shadow-utils on Fedora)")]
    NoProgram(&'static str),
    /// The user has none.
    #[error(
        "{file} gives {user} no 65536 ids in a row; as root: usermod --add-subuids {first}-{last} --add-subgids {first}-{last} \
         {user}"
    )]
    NoRange {
        /// `/etc/subuid` or `/etc/subgid`.
        file: &'static str,
        /// The user's name, or its number if it has no name.
        user: String,
        /// The first free id.
        first: u32,
        /// 65535 more.
        last: u32,
    },
    /// The attempt failed.
    #[error("{0}")]
    Refused(String),
}

impl Subordinate {
    /// The ids that the files of this machine assign to the user of this process.
    ///
    /// # Errors
    /// [`NoSubordinate`]: also where the programs that map them are missing.
    pub fn of_this_user() -> Result<Subordinate, NoSubordinate> {
        for name in PROGRAMS {
            program(name).ok_or(NoSubordinate::NoProgram(name))?;
        }
        let own = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
        let texts = FILES.map(database);
        Subordinate::of(own, &database("/etc/passwd"), [&texts[0], &texts[1]])
    }

    fn of(own: [u32; 2], passwd: &str, texts: [&str; 2]) -> Result<Subordinate, NoSubordinate> {
        let (name, home) = user(passwd, own[0]);
        let firsts = texts.map(|text| ranges(text, name, own[0]));
        if let Some(at) = firsts.iter().position(Vec::is_empty) {
            let first =
                texts.iter().flat_map(|text| entries(text)).map(|(_, first, count)| first.saturating_add(count));
            let first = first.max().unwrap_or_default().max(FIRST_SUGGESTED);
            let last = first.saturating_add(HostIds::COUNT - 1);
            let user = name.map_or_else(|| own[0].to_string(), str::to_owned);
            return Err(NoSubordinate::NoRange { file: FILES[at], user, first, last });
        }
        let least = firsts[0].len().min(firsts[1].len());
        let firsts = firsts.map(|mut firsts| {
            firsts.truncate(least);
            firsts
        });
        Ok(Subordinate { own, home: home.map(PathBuf::from), firsts })
    }

    /// As [`Subordinate::of_this_user`], after testing that a namespace with them can really be made. The result is cached per
    /// process.
    ///
    /// # Errors
    /// [`NoSubordinate`].
    pub fn usable() -> Result<Subordinate, NoSubordinate> {
        static FOUND: Mutex<Option<Result<Subordinate, NoSubordinate>>> = Mutex::new(None);
        let mut found = lock(&FOUND);
        let find = || {
            let subordinate = Subordinate::of_this_user()?;
            let tried = subordinate.work(&Work::Nothing).map_err(|error| NoSubordinate::Refused(error.to_string()));
            tried.map(|_| subordinate)
        };
        found.get_or_insert_with(find).clone()
    }

    /// How many ranges there are.
    #[must_use]
    pub fn ranges(&self) -> usize {
        self.firsts[0].len()
    }

    /// The ranges, by their numbers in a namespace.
    #[must_use]
    pub fn space(&self) -> HostIdSpace {
        HostIdSpace::first_ranges(u32::try_from(self.ranges()).unwrap_or(u32::MAX))
    }

    /// The registry that records which range belongs to which allocation of the user, in all data directories; `None` for a user
    /// without a home.
    #[must_use]
    pub fn registry(&self) -> Option<HostIdRegistry> {
        let home = self.home.as_ref().filter(|home| home.is_absolute())?;
        Some(HostIdRegistry::of_namespace(home.join(".local/state/agentbin/host-ids")))
    }

    /// The host ids of a range.
    #[must_use]
    pub fn ids(&self, inside: HostIds) -> Option<SubordinateIds> {
        let at = usize::try_from(inside.base() / HostIds::COUNT).ok()?.checked_sub(1)?;
        let first = |which: usize| self.firsts[which].get(at).copied();
        Some(SubordinateIds { inside, first_uid: first(0)?, first_gid: first(1)? })
    }

    fn all(&self) -> Vec<SubordinateIds> {
        self.space().after(None).filter_map(|inside| self.ids(inside)).collect()
    }

    /// Maps all of them into the user namespace of the process `pid`, which has none yet, with the user's own id as number 0.
    ///
    /// # Errors
    /// What the host's programs say.
    pub fn map(&self, pid: i32) -> io::Result<()> {
        write_maps(pid, self.own, &self.all())
    }

    /// The lines of a map of all of them into a user namespace inside that one, in which the user's own id has its usual number.
    #[must_use]
    pub fn nested(&self) -> Vec<[u32; 3]> {
        let all = self.space().after(None);
        all.map(|inside| [nested_first(self.own, inside), inside.base(), HostIds::COUNT]).collect()
    }

    /// Starts a helper process, which is root over the user's own and all subordinate ids, that removes a directory with its
    /// content. Returns the errors.
    ///
    /// # Errors
    /// When it could not be started, was killed, or could not be given its ids.
    pub fn remove(&self, dir: &Path) -> io::Result<Vec<String>> {
        let answer = self.work(&Work::Remove(dir.to_owned()))?;
        Ok(json::from_slice(&answer)?)
    }

    fn work(&self, work: &Work) -> io::Result<Vec<u8>> {
        let mut tries = 1;
        loop {
            match self.try_work(work) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted && tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    fn try_work(&self, work: &Work) -> io::Result<Vec<u8>> {
        let exe = sys::exe::own()?;
        let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
        // A descriptor has no file name, so argv[0] decides: it is not the name of a role, and the role follows as an argument.
        command.arg0(env!("CARGO_PKG_NAME")).arg(Role::Subordinate.name()).arg(json::to_string(work)?);
        let environment = mutant::environment();
        command.env_clear().envs(environment.iter().filter_map(|entry| entry.split_once('='))).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut own = children::spawn(&mut command)?;
        let child = &mut own.0;
        let answer = self.talk(child);
        if answer.is_err() {
            // The process may have ended meanwhile.
            let _ = child.kill();
        }
        // Its output has ended, so it is about to exit; or it was killed.
        let status = child.wait()?;
        let answer = answer?;
        match status.signal() {
            _ if status.success() => Ok(answer),
            Some(_) => Err(killed()),
            None => Err(io::Error::other(format!("its process ended: {status}"))),
        }
    }

    fn talk(&self, child: &mut Child) -> io::Result<Vec<u8>> {
        let (Some(mut stdin), Some(mut stdout), Some(mut stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let deadline = Instant::now() + DEADLINE;
        let mut ready = [0];
        readable(stdout.as_fd(), deadline)?;
        if stdout.read(&mut ready)? == 0 {
            let mut why = String::new();
            readable(stderr.as_fd(), deadline)?;
            (&mut stderr).take(MOST_SAID as u64).read_to_string(&mut why)?;
            return Err(if why.is_empty() { killed() } else { io::Error::other(why.trim().to_owned()) });
        }
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        write_maps(pid, self.own, &self.all())?;
        stdin.write_all(&[0])?;
        let mut answer = Vec::new();
        stdout.take(MOST_ANSWERED).read_to_end(&mut answer)?;
        Ok(answer)
    }
}

/// Another process killed it: the step is worth another try.
fn killed() -> io::Error {
    io::Error::new(io::ErrorKind::Interrupted, "the process of ours that has the ids was killed")
}

/// What a helper process does as root of a user namespace with all ids of its user. Its first argument, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Tests whether the namespace can be made.
    Nothing,
    /// Removes a directory.
    Remove(PathBuf),
}

/// Brings this process into a user namespace in which it is root over the ids that its parent maps there: it writes to stdout when
/// it is in the namespace, and waits on stdin until the maps are written. The process must have no threads.
///
/// # Errors
/// Where there are no user namespaces; when the parent has ended, or could not write the maps.
pub fn become_mapped_root() -> io::Result<()> {
    process::unshare(process::flags::NEW_USER)
        .map_err(|error| io::Error::other(format!("make a user namespace: {error}")))?;
    prctl::set_parent_death_signal(Signal::KILL)?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&[0])?;
    stdout.flush()?;
    io::stdin().lock().read_exact(&mut [0])
}

/// Runs the host's programs to write the id maps of the process `pid`, which waits in a new user namespace.
fn write_maps(pid: i32, own: [u32; 2], ids: &[SubordinateIds]) -> io::Result<()> {
    let firsts = [|ids: &SubordinateIds| ids.first_uid, |ids: &SubordinateIds| ids.first_gid];
    // Groups first: they are of no use without users.
    for which in [1, 0] {
        let name = PROGRAMS[which];
        let program = program(name).ok_or_else(|| io::Error::other(NoSubordinate::NoProgram(name)))?;
        let lines = std::iter::once([0, own[which], 1]);
        let lines = lines.chain(ids.iter().map(|ids| [ids.inside.base(), firsts[which](ids), HostIds::COUNT]));
        let arguments: Vec<String> = lines.flatten().map(|number| number.to_string()).collect();
        run(&program, pid, &arguments)?;
    }
    Ok(())
}

/// The maps of the shim `pid` of a plain user. In the user namespace of an allocation's network ([`Subordinate::nested`]) the host's
/// programs have no rights, and this process needs none of them, as it has all capabilities there.
pub(super) fn map_shim(pid: i32, rootless: Rootless, ids: SubordinateIds, is_nested: bool) -> io::Result<()> {
    let own = [rootless.uid, rootless.gid];
    if !is_nested {
        return write_maps(pid, own, &[ids]);
    }
    let (base, first) = (ids.inside.base(), nested_first(own, ids.inside));
    for (file, own) in [("gid_map", own[1]), ("uid_map", own[0])] {
        let map = format!("0 {own} 1\n{base} {first} {}\n", HostIds::COUNT);
        let about = |error: io::Error| io::Error::new(error.kind(), format!("write {file}: {error}"));
        process::write_proc_file(pid, file, &map).map_err(about)?;
    }
    Ok(())
}

/// The number of a range in the user namespace of an allocation's network, where the user's own ids have their usual numbers: the
/// range's own number plus the first step with which no range meets them.
fn nested_first(own: [u32; 2], inside: HostIds) -> u32 {
    let last = (MOST_RANGES as u32 + 1) * HostIds::COUNT;
    let is_free = |step: &u32| own.iter().all(|id| !(step + HostIds::COUNT..step + last).contains(id));
    let step = [0, 1 << 29, 1 << 30].into_iter().find(is_free).unwrap_or_default();
    step + inside.base()
}

fn program(name: &str) -> Option<PathBuf> {
    DIRS.into_iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// Runs one of the programs. The error is the last line that it wrote.
fn run(program: &Path, pid: i32, arguments: &[String]) -> io::Result<()> {
    let deadline = Instant::now() + DEADLINE;
    let mut command = Command::new(program);
    command.arg(pid.to_string()).args(arguments).env_clear().env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut own = children::spawn(&mut command)?;
    let child = &mut own.0;
    let said = child.stderr.take().map_or(Ok(Vec::new()), |mut stderr| said(&mut stderr, deadline));
    let ended = process::open_pidfd(child.id().cast_signed()).and_then(|pidfd| readable(pidfd.as_fd(), deadline));
    if said.is_err() || ended.is_err() {
        // The process may have ended meanwhile. Its user may kill it, as it was started with that user's id.
        let _ = child.kill();
    }
    let status = child.wait()?;
    let about = |text: &str| format!("{}: {text}", program.display());
    let said =
        said.and_then(|said| ended.map(|()| said)).map_err(|e| io::Error::new(e.kind(), about(&e.to_string())))?;
    if status.success() {
        return Ok(());
    }
    if status.signal().is_some() {
        return Err(io::Error::new(io::ErrorKind::Interrupted, about("it was killed")));
    }
    let said = String::from_utf8_lossy(&said).into_owned();
    let last = said.lines().last().map(str::trim).filter(|line| !line.is_empty());
    let own = program.file_name().map(|name| format!("{}: ", name.display())).unwrap_or_default();
    let why = last.map(|line| line.strip_prefix(own.as_str()).unwrap_or(line).to_owned());
    Err(io::Error::other(about(&why.unwrap_or_else(|| status.to_string()))))
}

/// Reads until the other end is closed, and returns the beginning.
fn said(from: &mut (impl io::Read + AsFd), deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut text, mut piece) = (Vec::new(), [0; MOST_SAID]);
    loop {
        readable(from.as_fd(), deadline)?;
        let length = from.read(&mut piece)?;
        if length == 0 {
            return Ok(text);
        }
        let room = MOST_SAID - text.len();
        text.extend_from_slice(&piece[..length.min(room)]);
    }
}

fn readable(fd: BorrowedFd<'_>, deadline: Instant) -> io::Result<()> {
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).unwrap_or_default();
        match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            other => return Ok(other.map(drop)?),
        }
    }
}

/// Reads a root-owned file of the host, if it is a regular one; a file that is too long is not used.
fn database(path: &str) -> String {
    let read = || {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let plain = file.metadata()?.is_file();
        let mut text = String::new();
        let length = file.take(LONGEST + 1).read_to_string(&mut text)? as u64;
        Ok::<_, io::Error>(if plain && length <= LONGEST { text } else { String::new() })
    };
    read().unwrap_or_default()
}

/// Name and home of the user with this uid.
fn user(passwd: &str, uid: u32) -> (Option<&str>, Option<&str>) {
    let found = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        let number = fields.get(2).and_then(|number| number.parse::<u32>().ok());
        number == Some(uid) && !fields[0].is_empty()
    });
    found.map_or((None, None), |fields| (Some(fields[0]), fields.get(5).copied()))
}

/// Owner, first id and number of ids, of each valid line.
fn entries(text: &str) -> impl Iterator<Item = (&str, u32, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.trim().split(':');
        let (owner, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((owner, first, count))
    })
}

/// The first ids of all ranges that the user has by name or number, in the file's order and without duplicates.
fn ranges(text: &str, name: Option<&str>, uid: u32) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    for (owner, first, count) in entries(text) {
        let is_users = name == Some(owner) || owner.parse() == Ok(uid);
        // The last id of all means "no change", and id 0, root's, cannot be assigned.
        let end = u64::from(first) + u64::from(count);
        if !is_users || first == 0 || end > u64::from(u32::MAX) {
            continue;
        }
        for number in 0..count / HostIds::COUNT {
            let first = first + number * HostIds::COUNT;
            let is_new = found.iter().all(|other| other.abs_diff(first) >= HostIds::COUNT);
            let is_another = !(first..=first + (HostIds::COUNT - 1)).contains(&uid);
            if found.len() == MOST_RANGES {
                return found;
            }
            if is_new && is_another {
                found.push(first);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbob:x:1001:1001::/home/bob:/bin/sh\n";

    fn of(subuid: &str, subgid: &str) -> Result<Subordinate, NoSubordinate> {
        Subordinate::of([1000, 1000], PASSWD, [subuid, subgid])
    }

    #[test]
    fn ranges_are_read_by_name_and_by_number() {
        let found = of("bob:100000:65536\nann:200000:65536\n", "1000:300000:65536").unwrap();
        assert_eq!((found.ranges(), found.space().to_string()), (1, "65536-131071".to_owned()));
        let inside = found.space().after(None).next().unwrap();
        assert_eq!(found.ids(inside), Some(SubordinateIds { inside, first_uid: 200_000, first_gid: 300_000 }));
        assert_eq!(found.ids(HostIds::new(131_072).unwrap()), None);
        assert_eq!(found.registry().unwrap().path(), Path::new("/home/ann/.local/state/agentbin/host-ids"));
        let found =
            of("ann:200000:131072\n1000:200000:65536\nann:500000:70000\n", "ann:1:1000\nann:400000:200000").unwrap();
        assert_eq!(found.firsts, [vec![200_000, 265_536, 500_000], vec![400_000, 465_536, 531_072]]);
        let many = of("ann:100000:4000000000", "ann:100000:4000000000").unwrap();
        assert_eq!((many.ranges(), many.all().len()), (256, 256));
    }

    #[test]
    fn who_has_none_is_told_what_to_do() {
        for (subuid, subgid, file, first) in [
            ("", "", "/etc/subuid", 100_000),
            ("ann:100000:65535", "ann:100000:65536", "/etc/subuid", 165_536),
            ("ann:100000:65536", "bob:165536:65536", "/etc/subgid", 231_072),
            ("ann:0:65536\nann:4294901760:65536\nann:900:65536\nann:x:65536\nann", "", "/etc/subuid", u32::MAX),
        ] {
            let error = of(subuid, subgid).unwrap_err();
            let NoSubordinate::NoRange { file: found, user, first: suggested, .. } = &error else { panic!("{error}") };
            assert_eq!((*found, user.as_str(), *suggested), (file, "ann", first), "{subuid:?} {subgid:?}");
            assert!(error.to_string().contains(&format!("usermod --add-subuids {first}-")), "{error}");
        }
    }

    #[test]
    fn a_program_that_hangs_or_fails_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let script = |text: &str| {
            let path = dir.path().join("newuidmap");
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "printf '%s' \"$1\" > \"$2\"; chmod 755 \"$2\"", "sh", text]).arg(&path);
            assert!(command.status().unwrap().success());
            run(&path, 1, &["0".to_owned()])
        };
        assert!(script("#!/bin/sh\nexit 0\n").is_ok());
        let error = script("#!/bin/sh\necho first >&2; echo 'newuidmap: no range' >&2; exit 1\n").unwrap_err();
        assert!(error.to_string().ends_with("/newuidmap: no range"), "{error}");
        let error = script("#!/bin/sh\nhead -c 100000 /dev/zero >&2; kill -9 $$\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Interrupted, "{error}");
        assert!(script("#!/bin/sh\nexit 3\n").unwrap_err().to_string().contains("status: 3"));
    }
}
