//! The side of the requesting process: makes a staging directory, starts the fetcher's process, and reads its messages.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid};

use super::{Done, FetchError, Limits, Message, Request, Setting};
use crate::container::{HostIdRegistry, HostIdsError};
use crate::spec::collections::BTreeMap;
use crate::spec::json;
use crate::spec::{ArtifactMode, HostIdSpace, Role, Source};
use crate::sys::children::{self, Own};
use crate::sys::path::Root;
use crate::sys::{self, mutant, process};

/// How long to wait for a message of the fetcher before checking again whether the artifact is still wanted.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
/// How long the fetcher may take to read the request.
const LISTENS: Duration = Duration::from_secs(30);
/// Longest line from the fetcher, in bytes.
const LONGEST_LINE: usize = 64 * 1024;
/// Most bytes that are read from the stderr of a fetcher that has failed.
const LAST_WORDS: u64 = 4096;
/// Longest list of certificates, or of known hosts, that is read, in bytes.
const LONGEST_LIST: u64 = 4 << 20;
/// The user and the group `nobody`, used if this process has no other ids to assign.
const NOBODY: u32 = 65_534;
/// The fetcher's uid in its range of ids.
const FETCHER: u32 = 1000;

/// Where distributions keep the certificates of authorities.
const CERTIFICATES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// A request for an artifact.
pub struct Order {
    /// The source; all values are interpolated.
    pub source: Source,
    /// See [`ArtifactMode`].
    pub mode: ArtifactMode,
    /// Headers of each http request.
    pub headers: BTreeMap<String, String>,
    /// Server certificates are not verified.
    pub insecure: bool,
    /// The limits of the download.
    pub limits: Limits,
    /// The open file, if the source is a local file.
    pub file: Option<File>,
}

impl fmt::Debug for Order {
    /// Omits the headers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").field("source", &self.source).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// The part of the environment of this process that is used.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// `SSL_CERT_FILE`: certificates of authorities instead of the machine's.
    pub certificates: Option<PathBuf>,
    /// `HOME`, for `.ssh/known_hosts`.
    pub home: Option<PathBuf>,
}

impl Surroundings {
    /// The surroundings of this process.
    #[must_use]
    pub fn of_this_process() -> Surroundings {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        Surroundings { certificates: path("SSL_CERT_FILE"), home: path("HOME") }
    }
}

/// The certificates of authorities that downloads trust, as text, and the path of the file.
///
/// # Errors
/// When there are none.
pub fn certificates(surroundings: &Surroundings) -> io::Result<(PathBuf, String)> {
    let own = surroundings.certificates.clone();
    let found = own.or_else(|| CERTIFICATES.into_iter().map(PathBuf::from).find(|path| path.is_file()));
    let path = found.ok_or(io::ErrorKind::NotFound)?;
    let text = text_of(&path)?;
    Ok((path, text))
}

fn text_of(path: &Path) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(LONGEST_LIST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A directory that only one fetcher can reach. The process that makes it also removes it.
#[derive(Debug)]
pub struct Staging {
    path: PathBuf,
    root: Root,
    becomes: Option<(u32, u32)>,
}

impl Staging {
    /// Before a random UUID in its name.
    pub(crate) const PREFIX: &str = ".fetch-";

    /// Makes the directory below `parent`, to which only this user may write, and allocates a user for it: one of a range of host
    /// ids
    /// that no other process uses while the directory exists. Without root, the fetcher runs as this user.
    ///
    /// # Errors
    /// The action that failed, and the cause.
    pub fn new(parent: &Path) -> Result<Staging, (String, io::Error)> {
        let path = parent.join(format!("{}{}", Staging::PREFIX, sys::random::uuid().simple()));
        let failed = |action: &str| {
            let text = format!("cannot {action} {}", path.display());
            move |error: io::Error| (text, error)
        };
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(failed("create"))?;
        Staging::prepared(&path).inspect_err(|_| {
            // It is empty yet; if it cannot be removed here, it is removed with its parent directory.
            let name = path.file_name().unwrap_or_default();
            let _ = Root::open(parent).map(|parent| rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR));
        })
    }

    fn prepared(path: &Path) -> Result<Staging, (String, io::Error)> {
        let failed = |action: &str| {
            let text = format!("cannot {action} {}", path.display());
            move |error: io::Error| (text, error)
        };
        let root = Root::open(path).map_err(failed("open"))?;
        let mut staging = Staging { path: path.to_owned(), root, becomes: None };
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = match HostIdRegistry::machine().take(path, HostIdSpace::DEFAULT) {
                Ok(ids) => {
                    let own = ids.outside(FETCHER).unwrap_or_else(|| ids.base());
                    (own, own)
                }
                Err(HostIdsError::NotMapped(_)) => (NOBODY, NOBODY),
                Err(error) => return Err(("no user for the fetcher".to_owned(), io::Error::other(error.to_string()))),
            };
            let dir = staging.open().map_err(failed("open"))?;
            rustix::fs::fchown(&dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
                .map_err(|error| failed("give away")(error.into()))?;
            staging.becomes = Some((uid, gid));
        }
        Ok(staging)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open(&self) -> io::Result<OwnedFd> {
        self.root.open_beneath(Path::new("."), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    /// The uid that owns the fetcher's files.
    pub(super) fn user(&self) -> u32 {
        self.becomes.map_or_else(|| rustix::process::geteuid().as_raw(), |(uid, _)| uid)
    }
}

/// The content of a staging directory. No process of the fetcher is alive any more.
#[derive(Debug)]
pub struct Fetched<'a> {
    pub(super) staging: &'a Staging,
    pub(super) done: Done,
    pub(super) limits: Limits,
}

impl Order {
    /// Fetches into the staging directory. Setting `cancel` ends it within some 20 ms, with all its processes; `progress` is called
    /// with the bytes so far and, if known, the total. The thread must live as long as this takes.
    ///
    /// # Errors
    /// [`FetchError`]; `Ok(None)` when it was cancelled.
    pub fn fetch<'a>(
        self,
        staging: &'a Staging,
        surroundings: &Surroundings,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<Option<Fetched<'a>>, FetchError> {
        let Order { source, mode, headers, insecure, limits, file } = self;
        let network = source.is_remote();
        let (mut own_certificates, mut text, mut known_hosts) = (false, String::new(), String::new());
        if network {
            own_certificates = surroundings.certificates.is_some();
            text = match certificates(surroundings) {
                Ok((_, text)) => text,
                Err(error) if own_certificates => {
                    return Err(FetchError::lasting(format!("cannot read the file that SSL_CERT_FILE names: {error}")));
                }
                // Only https sources need the certificates, and report that they are missing.
                Err(_) => String::new(),
            };
            let hosts = surroundings.home.as_ref().map(|home| home.join(".ssh/known_hosts"));
            known_hosts = hosts.and_then(|path| text_of(&path).ok()).unwrap_or_default();
        }
        let request =
            Request { source, mode, headers, insecure, limits, certificates: text, own_certificates, known_hosts };
        let setting =
            Setting { staging: staging.path.clone(), becomes: staging.becomes, network, limits, inside: None };
        let failed = |error: io::Error| FetchError::lasting(format!("cannot start the artifact fetcher: {error}"));
        let (child, stream) = start(&setting, file).map_err(failed)?;
        let mut running = Running { child, stream };
        let outcome = running.converse(&request, cancel, progress);
        let last_words = running.end().map_err(failed)?;
        match outcome {
            Ok(Some(Message::Done(done))) => Ok(Some(Fetched { staging, done, limits })),
            Ok(Some(Message::Failed(error))) => Err(error),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Ok(_) | Err(_) => {
                let said = if last_words.is_empty() { "it ended without a word".to_owned() } else { last_words };
                Err(FetchError::passing(format!("the artifact fetcher: {said}")))
            }
        }
    }
}

fn start(setting: &Setting, file: Option<File>) -> io::Result<(Own, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let exe = sys::exe::own()?;
    let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
    // A file descriptor has no name, so argv[0] decides: it is a name that is not a role's, and the role is the first argument.
    command.arg0(env!("CARGO_PKG_NAME")).arg(Role::ArtifactFetcher.name()).arg(json::to_string(setting)?);
    let environment = mutant::environment();
    command.env_clear().envs(environment.iter().filter_map(|entry| entry.split_once('='))).current_dir("/");
    command.stdin(file.map_or_else(Stdio::null, Stdio::from)).stdout(OwnedFd::from(theirs)).stderr(Stdio::piped());
    // Signals of the terminal are for this process only.
    command.process_group(0);
    process::die_with_parent(&mut command);
    Ok((children::spawn(&mut command)?, ours))
}

struct Running {
    child: Own,
    stream: UnixStream,
}

impl Running {
    /// Sends the request, and reads messages until the end.
    fn converse(
        &mut self,
        request: &Request,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> io::Result<Option<Message>> {
        let text = json::to_vec(request)?;
        self.stream.set_write_timeout(Some(LISTENS))?;
        self.stream.write_all(&(text.len() as u64).to_ne_bytes())?;
        self.stream.write_all(&text)?;
        let mut line = Vec::new();
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut fds = [PollFd::new(&self.stream, PollFlags::IN)];
            match poll(&mut fds, Some(&LOOK)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let mut piece = [0; 4096];
            let read = self.stream.read(&mut piece)?;
            if read == 0 {
                return Ok(None);
            }
            for byte in &piece[..read] {
                if *byte != b'\n' {
                    line.push(*byte);
                    if line.len() > LONGEST_LINE {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    continue;
                }
                match json::from_slice(&line)? {
                    Message::Progress { bytes, total } => progress(bytes, total),
                    last => return Ok(Some(last)),
                }
                line.clear();
            }
        }
    }

    /// Ends the fetcher, and waits for all of its processes. Returns what they wrote to stderr.
    fn end(mut self) -> io::Result<String> {
        // The outer process then kills the inner one; the connection may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
        drop(self.stream);
        let mut text = Vec::new();
        if let Some(stderr) = self.child.0.stderr.take() {
            // All of its processes have ended when it has.
            let flags = rustix::fs::fcntl_getfl(&stderr)?;
            self.child.0.wait()?;
            rustix::fs::fcntl_setfl(stderr.as_fd(), flags | OFlags::NONBLOCK)?;
            // End of file, or `WouldBlock` if another process holds the other end open.
            let _ = stderr.take(LAST_WORDS).read_to_end(&mut text);
        }
        Ok(String::from_utf8_lossy(&text).trim().to_owned())
    }
}
