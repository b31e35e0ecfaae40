//! The network of a plain user's allocation: a network namespace in a user namespace, which processes hold (`keeper`) and pasta
//! connects. The kernel gives a plain user no file that a namespace could be kept by, so the file of the namespace names the
//! processes instead.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::Access;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::thread::{ThreadNameSpaceType, move_into_thread_name_spaces};
use serde::{Deserialize, Serialize};

use super::keeper::{Answer, Keeper, PROGRAM};
use super::lock::own_dir;
use super::program::is_ready;
use super::{Error, Kind, Mapping, Networks, Status, Subnet, Wish, replaced};
use crate::spec::json;
use crate::spec::{ProcessId, Role, Signal};
use crate::sys::owned::OwnDir;
use crate::sys::{self, children, mutant, process, processes, time};

/// The package of pasta.
const PACKAGE: &str = "passt";
/// The device by which it makes an interface.
const TUN: &str = "/dev/net/tun";
/// The interface in the namespace.
const INTERFACE: &str = "eth0";
/// How long a network may take to come up, with pasta, and its processes to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Most bytes of an answer, and of the file of a namespace.
const LONGEST: u64 = 16 << 10;

/// How a plain user's network is connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Users {
    /// `None` for a network that leads nowhere.
    pub(super) pasta: Option<Pasta>,
}

/// What pasta is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pasta {
    program: PathBuf,
    /// The network that the namespace believes to be in: the addresses are those of no machine.
    subnet: Subnet,
    pub(super) mappings: Vec<Mapping>,
}

/// Ids beside the user's own that an allocation's user namespace has.
pub struct MoreIds<'a> {
    /// In lines of a map: the first number in the allocation's user namespace, the first one in the namespace around it, how many.
    pub ranges: Vec<[u32; 3]>,
    /// Maps them into the namespace around it, of the process with this pid, with the user's own id as number 0.
    pub map: &'a dyn Fn(i32) -> io::Result<()>,
}

/// The content of the file of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    /// The process whose end is the network's.
    keeper: ProcessId,
    /// The process in the namespaces, once it is there.
    pause: Option<ProcessId>,
}

/// Checks whether a plain user can have this network.
pub(super) fn plan(networks: &Networks, wish: &Wish<'_>) -> Result<Users, Error> {
    let subnet = match (wish.kind, wish.driver) {
        (Kind::Cni(_), _) => return Err(Error::NeedsRoot),
        (_, Some(driver)) => return Err(Error::DriverNeedsRoot { driver: driver.to_owned() }),
        (Kind::None, None) => return Ok(Users { pasta: None }),
        (Kind::Bridge, None) => networks.subnets.v4,
    };
    let of_ipv6 = wish.mappings.iter().map(|mapping| mapping.ip).find(IpAddr::is_ipv6);
    if of_ipv6.is_some() || networks.subnets.v6.is_some() {
        return Err(Error::UsersIpv6 { address: of_ipv6 });
    }
    let program = find().ok_or(Error::NoProgram { program: PROGRAM, package: PACKAGE })?;
    if let Err(source) = rustix::fs::access(TUN, Access::READ_OK | Access::WRITE_OK) {
        return Err(Error::NoTunnels { path: TUN, source: source.into() });
    }
    Ok(Users { pasta: Some(Pasta { program, subnet, mappings: wish.mappings.clone() }) })
}

/// The program, in the directories of PATH: it runs with the user's rights.
pub(super) fn find() -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&dirs).filter(|dir| dir.is_absolute()).map(|dir| dir.join(PROGRAM));
    paths.find(|path| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok())
}

impl Pasta {
    /// Its arguments, except for the namespaces. All that it would do by itself is turned off: forwarding every port that somebody
    /// listens on, in both directions, and leading the gateway's address to the host's loopback.
    fn words(&self) -> Vec<String> {
        let [address, gateway] = [2, 1].map(|number| self.subnet.at(number).to_string());
        let prefix = self.subnet.prefix.to_string();
        let fixed = "--config-net --quiet --ipv4-only --no-map-gw --no-dhcp --no-dhcpv6 --no-ndp --no-ra --no-netns-quit \
                     --dns none --search none --tcp-ns none --udp-ns none --ns-ifname";
        let fixed = fixed.split_whitespace().chain([INTERFACE, "--address", &address, "--netmask", &prefix]);
        let mut words: Vec<String> = fixed.chain(["--gateway", &gateway]).map(str::to_owned).collect();
        for (protocol, option) in [("tcp", "--tcp-ports"), ("udp", "--udp-ports")] {
            let own = self.mappings.iter().filter(|mapping| mapping.protocol == protocol);
            let mut ports: Vec<String> = own.map(|m| format!("{}/{}:{}", m.ip, m.host, m.inside)).collect();
            if ports.is_empty() {
                ports.push("none".to_owned());
            }
            words.extend(ports.into_iter().flat_map(|ports| [option.to_owned(), ports]));
        }
        words
    }
}

impl Users {
    pub(super) fn status(&self) -> Status {
        self.pasta.as_ref().map_or_else(Status::default, |pasta| Status {
            interface: INTERFACE.to_owned(),
            address: Some(pasta.subnet.at(2)),
            ..Status::default()
        })
    }

    /// Makes the namespaces and connects them. The file must not exist.
    pub(super) fn make(&self, path: &Path, more: Option<MoreIds<'_>>) -> Result<(), Error> {
        let dir = path.parent().unwrap_or(path);
        own_dir(dir).map_err(Error::system("make the directory", dir))?;
        let made = self.start(path, more);
        made.inspect_err(|_| {
            if let Err(left) = end(path) {
                tracing::debug!(error = &left as &dyn std::error::Error, "what is left of a network");
            }
        })
    }

    fn start(&self, path: &Path, more: Option<MoreIds<'_>>) -> Result<(), Error> {
        let failed = || Error::system("make a network of", path);
        let own = [rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()];
        let ranges = more.as_ref().map(|more| more.ranges.clone()).unwrap_or_default();
        let pasta = self.pasta.as_ref().map(|pasta| (pasta.program.clone(), pasta.words()));
        let keeper = Keeper { file: path.to_owned(), own, ranges, pasta };
        let mut command = command(&keeper).map_err(failed())?;
        let mut starter = children::spawn(&mut command).map_err(failed())?;
        let answer = talk(&mut starter.0, path, more);
        if answer.is_err() {
            // It may have ended meanwhile.
            let _ = starter.0.kill();
        }
        let ended = starter.0.wait();
        match answer.and_then(|answer| ended.map(|_| answer)).map_err(failed())? {
            Answer::Made(_) => Ok(()),
            Answer::Failed(reason) => Err(Error::Users(reason)),
        }
    }
}

fn command(keeper: &Keeper) -> io::Result<Command> {
    let exe = sys::exe::own()?;
    let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
    // A descriptor has no file name, so argv[0] decides: it is not the name of a role, and the role follows as an argument.
    command.arg0(env!("CARGO_PKG_NAME")).arg(Role::NetworkKeeper.name()).arg(json::to_string(keeper)?);
    let environment = mutant::environment();
    command.env_clear().envs(environment.iter().filter_map(|entry| entry.split_once('='))).current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

/// Has the starter of a keeper say which process that is, notes it, and lets it go: a keeper that nobody knows ends.
fn talk(starter: &mut Child, path: &Path, more: Option<MoreIds<'_>>) -> io::Result<Answer> {
    let (Some(mut stdin), Some(stdout)) = (starter.stdin.take(), starter.stdout.take()) else {
        return Err(io::ErrorKind::BrokenPipe.into());
    };
    let mut stdout = Lines { from: stdout.as_fd().try_clone_to_owned()?.into(), deadline: Instant::now() + PATIENCE };
    let first = stdout.next()?;
    let Ok(pid) = first.parse::<i32>() else { return Ok(json::from_str(&first)?) };
    let mut held = Held { keeper: time::process_id(pid)?, pause: None };
    held.write(path)?;
    if let Some(more) = more.filter(|more| !more.ranges.is_empty()) {
        (more.map)(pid)?;
    }
    stdin.write_all(&[0])?;
    let answer = json::from_str(&stdout.next()?)?;
    if let Answer::Made(pause) = answer {
        held.pause = Some(time::process_id(pause)?);
        held.write(path)?;
    }
    Ok(answer)
}

/// Reads lines until a deadline.
struct Lines {
    from: File,
    deadline: Instant,
}

impl Lines {
    fn next(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        loop {
            if !is_ready(&self.from, self.deadline)? {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut byte = [0];
            match self.from.read(&mut byte)? {
                1 if byte[0] == b'\n' => return String::from_utf8(line).map_err(io::Error::other),
                1 if line.len() as u64 <= LONGEST => line.push(byte[0]),
                _ => return Err(io::Error::other("the process that makes it has ended")),
            }
        }
    }
}

impl Held {
    /// Writes the file.
    fn write(&self, path: &Path) -> io::Result<()> {
        let (dir, name) = split(path)?;
        replaced::replace(dir, name, &json::to_vec(self)?)
    }

    fn read(path: &Path) -> io::Result<Held> {
        let (dir, name) = split(path)?;
        Ok(json::from_slice(&OwnDir::open(dir)?.read(name.as_ref(), LONGEST)?)?)
    }
}

fn split(path: &Path) -> io::Result<(&Path, &str)> {
    let name = path.file_name().and_then(|name| name.to_str());
    path.parent().zip(name).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The process in the namespaces, by a descriptor that is certainly its own.
fn pause(path: &Path) -> io::Result<OwnedFd> {
    let gone =
        || io::Error::new(io::ErrorKind::NotFound, "the processes that held the allocation's network have ended");
    let pause = Held::read(path)?.pause.ok_or_else(gone)?;
    let pidfd = process::open_pidfd(pause.pid).map_err(|_| gone())?;
    // Checked after the descriptor is open, when the pid can no longer become another process's.
    if time::is_alive(&pause)? { Ok(pidfd) } else { Err(gone()) }
}

/// Moves this process, which must have no other thread, into the user namespace and the network of a plain user's allocation. It
/// keeps its user, and has all capabilities there.
///
/// # Errors
/// `NotFound` when they are gone; what `setns(2)` says.
pub fn join(path: &Path) -> io::Result<()> {
    Ok(move_into_thread_name_spaces(pause(path)?.as_fd(), NAMESPACES)?)
}

const NAMESPACES: ThreadNameSpaceType = ThreadNameSpaceType::USER.union(ThreadNameSpaceType::NETWORK);

/// As [`socket_in`](super::socket_in).
pub(super) fn socket(path: &Path, family: AddressFamily) -> io::Result<OwnedFd> {
    let (pidfd, flags) = (pause(path)?, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
    let mut made = Err(rustix::io::Errno::CHILD);
    // Not on a thread: a process with threads enters no user namespace.
    process::apart(&mut || {
        made = move_into_thread_name_spaces(pidfd.as_fd(), NAMESPACES)
            .and_then(|()| rustix::net::socket_with(family, SocketType::STREAM, flags, None));
    })?;
    Ok(made?)
}

/// Ends the processes of a network, and removes its file; what is gone counts as removed.
pub(super) fn end(path: &Path) -> Result<(), Error> {
    let all = match Held::read(path) {
        Ok(held) => Ok(vec![held.keeper]),
        // The user's systemd removes the directory when the user has logged out.
        Err(error) if error.kind() == io::ErrorKind::NotFound => keepers(|file| file == path),
        Err(error) => Err(error),
    };
    let end = || {
        for keeper in all? {
            kill(&keeper)?;
        }
        let (dir, name) = split(path)?;
        replaced::remove(dir, name)
    };
    end().map_err(Error::system("end the processes of the network", path))
}

fn kill(keeper: &ProcessId) -> io::Result<()> {
    let pidfd = match process::open_pidfd(keeper.pid) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
        other => other?,
    };
    // Checked after the descriptor is open, when the pid can no longer become another process's.
    let stat = processes::stat(keeper.pid)?.filter(|stat| stat.start_ticks == keeper.start_ticks);
    if stat.is_none() || keeper.boot_id != time::boot_id()? {
        return Ok(());
    }
    match process::send_signal(pidfd.as_fd(), Signal::KILL) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
        other => other?,
    }
    // It ends when all processes of its pid namespace have.
    if !is_ready(&pidfd, Instant::now() + PATIENCE)? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    // This process may have inherited it.
    process::reap(keeper.pid);
    Ok(())
}

/// The keepers of this user whose files are the wanted ones, found by their arguments, which the pause processes have as well.
fn keepers(is_wanted: impl Fn(&Path) -> bool) -> io::Result<Vec<ProcessId>> {
    let (user, boot_id) = (rustix::process::geteuid().as_raw(), time::boot_id()?);
    let mut found = Vec::new();
    for stat in processes::all()?.into_iter().filter(|stat| !stat.ended) {
        if processes::user(stat.pid)? != Some(user) {
            continue;
        }
        let arguments = processes::arguments(stat.pid)?;
        let [_, role, keeper] = &arguments[..] else { continue };
        if role != Role::NetworkKeeper.name().as_bytes() {
            continue;
        }
        if json::from_slice::<Keeper>(keeper).is_ok_and(|keeper| is_wanted(&keeper.file)) {
            found.push(ProcessId { pid: stat.pid, start_ticks: stat.start_ticks, boot_id: boot_id.clone() });
        }
    }
    Ok(found)
}

/// Whether a process holds a plain user's network that is noted in this directory; see [`Networks::run_dir`].
#[must_use]
pub fn is_keeper(run_dir: &Path, pid: i32, start_ticks: u64) -> bool {
    let arguments = processes::arguments(pid).unwrap_or_default();
    let [_, role, keeper] = &arguments[..] else { return false };
    let file = json::from_slice::<Keeper>(keeper).map(|keeper| keeper.file).unwrap_or_default();
    // Every process can have such arguments; only a keeper is named by the file, which is where no task can write.
    role == Role::NetworkKeeper.name().as_bytes()
        && file.starts_with(run_dir)
        && !file.components().any(|part| part == Component::ParentDir)
        && Held::read(&file).is_ok_and(|held| held.keeper.pid == pid && held.keeper.start_ticks == start_ticks)
}
