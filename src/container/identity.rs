//! The task's identity: users and groups from passwd files, capabilities.

use std::io::{IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::str::FromStr as _;

use caps::{CapSet, Capability, CapsHashSet};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Gid, Uid};

use super::config::{Config, Failure, Ids, Namespace, Rootless, Step as _};
use super::namespaces;
use crate::spec::HostIds;
use crate::spec::Order as _;
use crate::spec::collections::BTreeSet;
use crate::sys::path::Root;
use crate::sys::process::Child;
use crate::sys::{self, mutant};

/// Most groups that the kernel allows for a process (`NGROUPS_MAX`): a user with more counts as unknown.
const MOST_GROUPS: usize = 1 << 16;
/// What [`enter_namespace_of`] returns for a user that the user namespace of this process does not map: EINVAL has other causes,
/// too.
const NO_SUCH_USER: i32 = libc::EOVERFLOW;
/// `PROC_SUPER_MAGIC` of `statfs(2)`.
const PROC: rustix::fs::FsWord = 0x9fa0;

/// Looks a user up by name in the text of a passwd and a group file.
///
/// A number is not accepted as a name, as in Nomad. The program is static and asks no other database, so it never loads a name
/// service library that a hostile root provides.
#[must_use]
pub fn lookup_user(passwd: &str, group: &str, name: &str) -> Option<Ids> {
    let user = passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [found, _, uid, gid, _, home, ..] = fields.as_slice() else { return None };
        let same = *found == name || (mutant::on("b11") && name.split(':').next() == Some(found));
        same.then(|| Some((uid.parse().ok()?, gid.parse().ok()?, (*home).to_owned())))?
    });
    let (uid, gid, home) = user?;
    // The kernel takes this number as "do not change": a process that asks to become that user stays root.
    if [uid, gid].contains(&u32::MAX) {
        return None;
    }
    let mut groups: Vec<u32> = vec![gid];
    let mut known = BTreeSet::from([gid]);
    for line in group.lines() {
        let mut fields = line.split(':');
        let (Some(id), Some(members)) = (fields.nth(2), fields.next()) else { continue };
        if members.split(',').any(|member| member == name)
            && let Ok(id) = id.parse()
            && id != u32::MAX
            && known.insert(id)
        {
            groups.push(id);
        }
    }
    if groups.len() > MOST_GROUPS {
        return None;
    }
    Some(Ids { uid, gid, groups, home })
}

/// A user namespace for the task. With a range of host ids it maps all of that range, to the numbers from 0 on, and its user must
/// be among them; without one it maps only the task's user and groups, to the numbers that they have outside.
///
/// Only a process outside the namespace may write such a map, so a child enters the new namespace first; the namespace stays alive
/// through its descriptor.
pub(super) fn make_user_namespace(ids: Option<&Ids>, range: Option<HostIds>) -> Result<OwnedFd, Failure> {
    let Some(ids) = ids else {
        return Err(Failure::invalid("make a user namespace", "user_namespace needs a task with a user"));
    };
    let step = || format!("make a user namespace for uid {}", ids.uid);
    let [uid_map, gid_map] = match range.filter(|_| !mutant::on("d20")) {
        Some(range) => id_range_maps(ids, range)?,
        None => one_to_one_maps(ids),
    };
    let lacking = |range: HostIds, error: &std::io::Error| {
        let fix = "this process runs in a user namespace that lacks them; map them there";
        Failure::new(format!("{}: give it the host ids {range}", step()), format!("{error} ({fix})"))
    };
    let why = |error: std::io::Error| match (error.raw_os_error(), range) {
        (Some(libc::EAGAIN), _) => {
            Failure::new(step(), format!("{error} (pids_limit must leave room for two processes)"))
        }
        (Some(libc::ENOSPC), _) => Failure::new(step(), format!("{error} (see sysctl user.max_user_namespaces)")),
        (Some(NO_SUCH_USER), Some(range)) => lacking(range, &error),
        (Some(libc::EINVAL | libc::EPERM | libc::ENOSYS), _) => {
            let fix = "this kernel gives none to this process; user_namespace = false does without one";
            Failure::new(step(), format!("{error} ({fix})"))
        }
        _ => Failure::new(step(), error),
    };
    let owner = range.filter(|_| rustix::process::geteuid().is_root() && !mutant::on("d84"));
    let (child, end, opened) = if let Some(range) = owner {
        let (child, end, namespace) = spawn_for(range).map_err(why)?;
        (child, end, Some(namespace))
    } else {
        let (child, end) = sys::process::spawn_in_user_namespace().map_err(why)?;
        (child, end, None)
    };
    let map = |name: &str, text: &str| {
        write_of_process(child.pid, name, text).map_err(|error| match (error.raw_os_error(), range) {
            (Some(libc::EPERM), Some(range)) => lacking(range, &error),
            _ => Failure::new(format!("{}: write {name}", step()), error),
        })
    };
    let made = map("gid_map", &gid_map).and_then(|()| map("uid_map", &uid_map)).and_then(|()| match opened {
        Some(namespace) => Ok(namespace),
        None => namespaces::open(child.pid, Namespace::User).step(step),
    });
    drop(end);
    sys::process::wait(child.pidfd.as_fd()).step(step)?;
    made
}

/// A child in a new user namespace that is owned by the first host id of `range`, and a descriptor of that namespace. The child
/// waits until the channel is closed; the caller must reap it.
///
/// What the kernel counts per user (`fs.inotify.max_user_instances`, pending signals, further namespaces) it also counts for the
/// owner of the user namespace in which it is used. The owner is the user that made the namespace: if that were root, one task
/// could use up the limits of the host's root.
fn spawn_for(range: HostIds) -> std::io::Result<(Child, OwnedFd, OwnedFd)> {
    let (theirs, ours) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (child, end) = sys::process::spawn_copy(0, None, ours, || {
        // Only the child can open its namespace in all cases: root would need CAP_SYS_PTRACE.
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let made = enter_namespace_of(range.base()).and_then(|()| namespaces::open(own, Namespace::User));
        // The parent may have ended; then there is no reader for the result.
        let _ = send_made(&theirs, &made);
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&theirs, &mut [0; 1]));
    })?;
    match receive_made(&end) {
        Ok(namespace) => Ok((child, end, namespace)),
        Err(error) => {
            drop(end);
            sys::process::wait(child.pidfd.as_fd())?;
            Err(error)
        }
    }
}

/// Becomes the host's user `owner`, with all capabilities, which some kernels require, and makes the namespace.
fn enter_namespace_of(owner: u32) -> std::io::Result<()> {
    sys::prctl::keep_capabilities()?;
    let owner = Uid::from_raw(owner);
    rustix::thread::set_thread_res_uid(owner, owner, owner).map_err(|error| match error {
        rustix::io::Errno::INVAL => std::io::Error::from_raw_os_error(NO_SUCH_USER),
        error => error.into(),
    })?;
    let permitted = caps::read(None, CapSet::Permitted).map_err(std::io::Error::other)?;
    caps::set(None, CapSet::Effective, &permitted).map_err(std::io::Error::other)?;
    sys::process::unshare(sys::process::flags::NEW_USER)
}

/// One message: zero and the namespace, or the errno.
fn send_made(channel: &OwnedFd, made: &std::io::Result<OwnedFd>) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let errno = made.as_ref().map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |_| 0);
    let fds = made.as_ref().map(|namespace| [namespace.as_fd()]);
    if let Ok(fds) = &fds {
        ancillary.push(SendAncillaryMessage::ScmRights(fds));
    }
    sendmsg(channel, &[IoSlice::new(&errno.to_ne_bytes())], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive_made(channel: &OwnedFd) -> std::io::Result<OwnedFd> {
    let mut errno = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let buffer = &mut [IoSliceMut::new(&mut errno)];
    let received = rustix::io::retry_on_intr(|| recvmsg(channel, buffer, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    let namespace = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    match (received.bytes, namespace) {
        (4, Some(namespace)) => Ok(namespace),
        (4, None) => Err(std::io::Error::from_raw_os_error(i32::from_ne_bytes(errno))),
        // The child was killed.
        _ => Err(std::io::ErrorKind::BrokenPipe.into()),
    }
}

/// The text of `uid_map` and `gid_map`: all ids of the range, and no other host id.
fn id_range_maps(ids: &Ids, range: HostIds) -> Result<[String; 2], Failure> {
    let groups = ids.groups.iter().chain([&ids.gid]).map(|gid| ("gid", *gid));
    let missing = [("uid", ids.uid)].into_iter().chain(groups).find(|(_, id)| range.outside(*id).is_none());
    if let Some((kind, id)) = missing {
        let most = HostIds::COUNT - 1;
        let text = format!(
            "the task's user has the {kind} {id}, and a user namespace with host ids of its own has 0 to {most}: take a \
             user below that, user_namespace = false, or host_ids = \"shared\" in the plugin's configuration"
        );
        return Err(Failure::invalid("make a user namespace", text));
    }
    let map = format!("0 {} {}\n", range.base(), HostIds::COUNT);
    Ok([map.clone(), map])
}

/// The text of `uid_map` and `gid_map`: the user and its groups, with the same ids inside and outside.
fn one_to_one_maps(ids: &Ids) -> [String; 2] {
    let mut groups = ids.groups.clone();
    groups.push(ids.gid);
    groups.order_by(Ord::cmp);
    groups.dedup();
    let lines = |numbers: &[u32]| numbers.iter().map(|number| format!("{number} {number} 1\n")).collect::<Vec<_>>();
    [lines(&[ids.uid]).concat(), lines(&groups).concat()]
}

/// Writes to a file of a process; fails if `/proc` is not procfs or another file is mounted over it.
fn write_of_process(pid: i32, name: &str, text: &str) -> std::io::Result<()> {
    let proc = Root::open(Path::new("/proc"))?;
    if rustix::fs::fstatfs(&proc)?.f_type != PROC {
        return Err(std::io::Error::other("/proc is not the kernel's"));
    }
    let file = proc.open_same_mount(&Path::new(&pid.to_string()).join(name), OFlags::WRONLY, Mode::empty())?;
    std::fs::File::from(file).write_all(text.as_bytes())
}

/// Enters the user namespace in which the task's processes run: `namespace` if there is one; or without root one that maps a single
/// id, to the number of the requested user.
pub(super) fn enter_user_namespace(
    config: &Config,
    ids: Option<&Ids>,
    namespace: Option<&OwnedFd>,
) -> Result<(), Failure> {
    if let Some(namespace) = namespace {
        return namespaces::enter(Namespace::User, namespace);
    }
    match (config.rootless, ids) {
        (Some(rootless), Some(ids)) if config.root.is_some() && !config.has_users() && ids.uid != 0 => {
            nested_user_namespace(rootless, ids)
        }
        _ => Ok(()),
    }
}

/// Becomes the user with exactly these capabilities. The order matters: the bounding set while `CAP_SETPCAP` is there,
/// groups before the user, the other sets when the user has changed.
///
/// `privileged` is whether this process was root before it entered a user namespace. `last` runs as the user, but with the
/// capabilities that are still held.
pub(super) fn become_user(
    config: &Config,
    ids: Option<&Ids>,
    wanted: &CapsHashSet,
    privileged: bool,
    last: Option<&dyn Fn() -> Result<(), Failure>>,
) -> Result<(), Failure> {
    if privileged {
        have(wanted)?;
        limit_bounding_set(wanted)?;
    }
    let root = ids.map_or(privileged, |ids| ids.uid == 0);
    if let Some(ids) = ids {
        if !root && (!wanted.is_empty() || last.is_some()) {
            sys::prctl::keep_capabilities().step(|| "keep capabilities".to_owned())?;
        }
        if config.has_users() {
            switch_ids(&config.user, ids, privileged)?;
        }
    }
    if let Some(last) = last {
        if privileged {
            let step = || "take capabilities up again".to_owned();
            let kept = caps::read(None, CapSet::Permitted).step(step)?;
            caps::set(None, CapSet::Effective, &kept).step(step)?;
        }
        last()?;
    }
    if privileged {
        set_capabilities(wanted, root)?;
    }
    Ok(())
}

/// Parses capability names; upper or lower case, with or without prefix. A list of all capabilities asks for all that this process
/// has; a single capability that this process lacks becomes an error later.
pub(super) fn parse_capabilities(names: &[String]) -> Result<CapsHashSet, Failure> {
    let wanted: CapsHashSet = names
        .iter()
        .map(|name| {
            let upper = name.to_ascii_uppercase();
            let full = if upper.starts_with("CAP_") { upper } else { format!("CAP_{upper}") };
            Capability::from_str(&full)
                .map_err(|_| Failure::invalid("read capabilities", format!("unknown capability {name:?}")))
        })
        .collect::<Result<_, Failure>>()?;
    if wanted.len() < caps::all().len() {
        return Ok(wanted);
    }
    let own = caps::read(None, CapSet::Permitted).step(|| "read the own capabilities".to_owned())?;
    Ok(wanted.intersection(&own).copied().collect())
}

/// Fails if this process lacks one of the wanted capabilities.
fn have(wanted: &CapsHashSet) -> Result<(), Failure> {
    let step = "set capabilities";
    let own = caps::read(None, CapSet::Permitted).step(|| step.to_owned())?;
    let mut missing: Vec<String> = wanted.difference(&own).map(ToString::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    missing.order_by(Ord::cmp);
    let missing = missing.join(", ");
    Err(Failure::new(step, format!("the executor itself lacks {missing}; give them to the agent, or do without")))
}

fn limit_bounding_set(wanted: &CapsHashSet) -> Result<(), Failure> {
    if mutant::on("c01-bounding") {
        return Ok(());
    }
    for capability in caps::all().into_iter().filter(|capability| !wanted.contains(capability)) {
        match caps::drop(None, CapSet::Bounding, capability) {
            // The kernel does not know this capability, so no process has it; asking first would double the number of calls.
            Err(_) if !caps::has_cap(None, CapSet::Bounding, capability).unwrap_or(false) => {}
            result => result.step(|| format!("drop {capability} from the bounding set"))?,
        }
    }
    Ok(())
}

fn switch_ids(user: &str, ids: &Ids, privileged: bool) -> Result<(), Failure> {
    let step = || format!("become user {user}");
    if !privileged {
        if rustix::process::geteuid().as_raw() == ids.uid {
            return Ok(());
        }
        return Err(Failure::new(step(), "only root may change the user; run agentbin as root or drop the user"));
    }
    let groups: Vec<Gid> = ids.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    if !mutant::on("c02") {
        rustix::thread::set_thread_groups(&groups).step(step)?;
    }
    let gid = Gid::from_raw(ids.gid);
    rustix::thread::set_thread_res_gid(gid, gid, gid).step(step)?;
    let uid = Uid::from_raw(ids.uid);
    rustix::thread::set_thread_res_uid(uid, uid, uid).step(step)
}

/// Without root, the shim is uid 0 of a user namespace that owns its mounts. The task gets a second one in which that
/// very id has the number of the asked user: it sees itself as that user and has no power over the mounts.
fn nested_user_namespace(rootless: Rootless, ids: &Ids) -> Result<(), Failure> {
    let step = || format!("enter a user namespace as uid {} (host uid {})", ids.uid, rootless.uid);
    sys::process::unshare(sys::process::flags::NEW_USER).step(step)?;
    std::fs::write("/proc/self/uid_map", format!("{} 0 1\n", ids.uid)).step(step)?;
    std::fs::write("/proc/self/gid_map", format!("{} 0 1\n", ids.gid)).step(step)
}

/// Permitted and effective (and, for a user other than root, inheritable and ambient, without which they would be lost
/// at exec) are exactly `wanted`; root keeps nothing inheritable.
fn set_capabilities(wanted: &CapsHashSet, root: bool) -> Result<(), Failure> {
    let step = || "set capabilities".to_owned();
    let none = CapsHashSet::new();
    caps::set(None, CapSet::Effective, wanted).step(step)?;
    caps::set(None, CapSet::Permitted, wanted).step(step)?;
    caps::set(None, CapSet::Inheritable, if root && !mutant::on("c01-inheritable") { &none } else { wanted })
        .step(step)?;
    caps::clear(None, CapSet::Ambient).step(step)?;
    if !root {
        for capability in wanted {
            caps::raise(None, CapSet::Ambient, *capability).step(step)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use caps::CapSet;

    use super::{lookup_user, parse_capabilities};

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n\
        web:x:33:33::/var/www:/bin/sh\nbroken:x:abc:1::/:\nshort:x:1\n";
    const GROUP: &str = "root:x:0:\naudio:x:29:web,other\nwww:x:33:web\nadm:x:4:other,web\nodd\n";

    /// B2, D2: primary group first, then the groups that list the user, and no stray zeros.
    #[test]
    fn users_come_with_their_groups() {
        let ids = lookup_user(PASSWD, GROUP, "web").unwrap();
        assert_eq!((ids.uid, ids.gid, ids.groups.as_slice()), (33, 33, [33, 29, 4].as_slice()));
        assert_eq!(ids.home, "/var/www");
        assert_eq!(lookup_user(PASSWD, GROUP, "nobody").unwrap().groups, [65534]);
        let passwd = format!("{PASSWD}same:x:4294967295:1::/:\nkept:x:1:4294967295::/:\n");
        for name in ["same", "kept"] {
            assert_eq!(lookup_user(&passwd, GROUP, name), None, "{name}: the number that changes nothing");
        }
        for name in ["alice", "33", "", "broken", "short", "web,other"] {
            assert_eq!(lookup_user(PASSWD, GROUP, name), None, "{name:?}");
        }
        let many = (0..200_000).map(|id| format!("g{id}:x:{id}:web")).collect::<Vec<_>>().join("\n");
        assert_eq!(lookup_user(PASSWD, &many, "web"), None, "more groups than there can be");
    }

    /// `cap_add = ["all"]` gives all capabilities that this process has; it is not an error where an agent has fewer.
    #[test]
    fn b3_all_capabilities_are_those_that_this_process_has() {
        let named = |names: &[&str]| parse_capabilities(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        let all: Vec<String> = caps::all().iter().map(ToString::to_string).collect();
        let own = caps::read(None, CapSet::Permitted).unwrap();
        assert_eq!(parse_capabilities(&all).unwrap(), own);
        // A single name is parsed whether or not this process has the capability.
        for name in &all {
            assert_eq!(named(&[name]).unwrap().len(), 1, "{name}");
            assert_eq!(named(&[&name["CAP_".len()..].to_lowercase()]).unwrap(), named(&[name]).unwrap());
        }
        let error = named(&["net_bind_service", "fly"]).unwrap_err().to_string();
        assert_eq!(error, "unknown capability \"fly\"");
    }
}
