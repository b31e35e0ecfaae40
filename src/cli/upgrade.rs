//! An upgrade of the agent without an outage: the file at the path that the agent was started from is tried on the configuration
//! and a copy of the state, and then executed in place of this process, with the sockets on which the agent listens left open.
//! Never ends anything itself.
//!
//! ```text
//! agentbin agent upgrade ─▶ PUT /v1/agentbin/upgrade ─▶ FILE agent ... --check --check-state COPY
//!      ◀── why not ───────────────────────────────────────┘ failed, or the file is not a program
//!      ◀── 200 ── streams end, tasks are left ─▶ execve FILE agent ... --inherit 7,9      the same process id
//! ```

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;

use crate::agent::state::State;
use crate::alloc::machine::OF_SERVICE_MANAGER;
use crate::alloc::{chain, remove_tree};
use crate::http::listener::Listener;
use crate::spec::escaped_lines;
use crate::sys::{self, owned};

/// How long the new program may take to check configuration and state.
const TRIAL: Duration = Duration::from_mins(1);
/// Bytes of what it says that are told.
const LONGEST: u64 = 8 << 10;
/// The directory of the copy, in the data directory.
const COPY: &str = "upgrade";
/// The flag that names the sockets; one word with its value, so that the next upgrade can leave it out.
const INHERIT: &str = "--inherit=";
/// The file that this process was started from, whatever is at its path now.
const OWN: &str = "/proc/self/exe";

/// The program of this agent, as it was started.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// `None` for one that was started by a descriptor.
    path: Option<PathBuf>,
    /// The program's name first.
    args: Vec<OsString>,
}

/// Which file is at a path: another one differs in something.
type Identity = (u64, u64, i64, i64, u64);

fn identity(path: &Path) -> io::Result<Identity> {
    let found = std::fs::metadata(path)?;
    Ok((found.dev(), found.ino(), found.ctime(), found.ctime_nsec(), found.len()))
}

impl Program {
    /// To be called at the start, before the working directory or the file can be another one.
    pub(super) fn own() -> Program {
        let by_descriptor = |path: &Path| path.starts_with("/proc") || path.starts_with("/dev/fd");
        let args: Vec<OsString> =
            std::env::args_os().filter(|arg| !arg.as_bytes().starts_with(INHERIT.as_bytes())).collect();
        let executed = sys::auxv::executed_path().map(PathBuf::from).filter(|path| !by_descriptor(path));
        // One that was kept after a failed upgrade is executed by a descriptor, under its first name.
        let named = || args.first().map(PathBuf::from).filter(|path| path.is_absolute());
        let path = executed.or_else(named).and_then(|path| std::path::absolute(path).ok());
        Program { path, args }
    }

    /// Tries the file that is at the path now. `addresses` are those that were not given on the command line.
    ///
    /// # Errors
    /// Why it cannot take over.
    pub(super) async fn try_new(
        self,
        data_dir: PathBuf,
        state: State,
        addresses: Vec<SocketAddr>,
    ) -> anyhow::Result<()> {
        let path =
            self.path.context("this agent was started by a descriptor, so there is no path to look at: restart it")?;
        let copy = data_dir.join(COPY);
        forget(&copy)?;
        let tried = async {
            state.copy(&copy).await.context("cannot copy the state, on which the new program is to be tried")?;
            let before = identity(&path).with_context(|| format!("cannot examine {}", path.display()))?;
            let mut command = Command::new(&path);
            command.args(self.args.iter().skip(1)).arg("--check").arg("--check-state").arg(&copy);
            for address in addresses {
                command.arg("--listen").arg(format!("tcp://{address}"));
            }
            let said = copy.join("said");
            let told = said.clone();
            let status = sys::task::spawn_blocking(move || trial(command, &told))
                .await
                .context("the trial failed unexpectedly")?;
            let status = status.with_context(|| format!("cannot try {}", path.display()))?;
            if !status.success() {
                let text = File::open(&said).and_then(|file| owned::bounded(file, LONGEST)).unwrap_or_default();
                let text = escaped_lines(String::from_utf8_lossy(&text).trim()).into_owned();
                bail!("{} cannot take over ({status}): {text}", path.display());
            }
            if identity(&path).ok() != Some(before) {
                bail!("{} was replaced while it was tried: upgrade once more", path.display());
            }
            Ok(())
        };
        let tried = tried.await;
        // It has secrets in it.
        forget(&copy).and(tried)
    }

    /// Executes the file at the path in place of this process, or else the file that this process was started from. Returns only
    /// when neither works.
    pub(super) fn take_over(self, sockets: &[OwnedFd]) -> anyhow::Error {
        let mut argv: Vec<CString> =
            self.args.into_iter().filter_map(|arg| CString::new(arg.into_vec()).ok()).collect();
        for socket in sockets {
            // Only now: a helper that was started meanwhile would have kept the socket open.
            if let Err(error) = rustix::io::fcntl_setfd(socket, FdFlags::empty()) {
                return anyhow::Error::from(error).context("cannot pass a socket to the new program");
            }
        }
        let numbers: Vec<String> = sockets.iter().map(|socket| socket.as_raw_fd().to_string()).collect();
        argv.extend(CString::new(format!("{INHERIT}{}", numbers.join(","))));
        // The sockets that a service manager has passed are among these.
        let envp: Vec<CString> = std::env::vars_os()
            .filter(|(name, _)| !name.as_bytes().starts_with(b"LISTEN_"))
            .filter_map(|(name, value)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok())
            .collect();
        let new = self.path.and_then(|path| CString::new(path.into_os_string().into_vec()).ok());
        if let Some(new) = new {
            let error = sys::process::execute(&new, &argv, &envp);
            tracing::error!("cannot execute {}: {error}; this agent stays", new.to_string_lossy());
        }
        let own = CString::new(OWN).unwrap_or_default();
        anyhow::Error::from(sys::process::execute(&own, &argv, &envp)).context("cannot execute the new program")
    }
}

/// Removes the copy of an upgrade, if there is one.
pub(super) fn forget(copy: &Path) -> anyhow::Result<()> {
    match remove_tree(copy).first() {
        Some(error) if copy.exists() => bail!("cannot remove {}: {}", copy.display(), chain(error)),
        _ => Ok(()),
    }
}

/// Removes what an agent that was killed during an upgrade left.
pub(super) fn forget_killed(data_dir: &Path) -> anyhow::Result<()> {
    forget(&data_dir.join(COPY))
}

/// Runs the command with its messages in a file.
fn trial(mut command: Command, said: &Path) -> io::Result<ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(said)?);
    for name in OF_SERVICE_MANAGER {
        command.env_remove(name);
    }
    sys::process::die_with_parent(&mut command);
    let mut own = sys::children::spawn(&mut command)?;
    let child = &mut own.0;
    let waited = sys::process::open_pidfd(child.id().cast_signed()).and_then(|pidfd| {
        let limit = Timespec { tv_sec: TRIAL.as_secs().cast_signed(), tv_nsec: 0 };
        Ok(rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)))?)
    });
    if !matches!(waited, Ok(1)) {
        // It may have ended meanwhile.
        let _ = child.kill();
    }
    let status = child.wait()?;
    match waited? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, format!("its check has not ended within {TRIAL:?}"))),
        _ => Ok(status),
    }
}

/// The sockets that the program before this one left open, from the value of the flag.
///
/// # Errors
/// A number that is not a listening socket.
pub(super) fn inherited(
    numbers: &str,
    listener: impl Fn(OwnedFd) -> anyhow::Result<Listener>,
) -> anyhow::Result<Vec<Listener>> {
    let one = |number: &str| {
        let parsed = number.parse().ok().filter(|number| *number > 2);
        let fd = parsed
            .and_then(sys::process::inherited_fd)
            .with_context(|| format!("there is no descriptor {number:?}"))?;
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        listener(fd)
    };
    // What ended while this process was replaced.
    while let Some(pid) = sys::process::peek_ended_child() {
        sys::process::reap(pid);
    }
    numbers.split(',').map(one).collect::<anyhow::Result<_>>().with_context(|| format!("{INHERIT}{numbers}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N8, as the next one.
    #[test]
    fn another_file_at_a_path_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let (path, next) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::write(&path, "x").unwrap();
        std::fs::write(&next, "x").unwrap();
        let first = identity(&path).unwrap();
        assert_eq!(identity(&path).unwrap(), first);
        std::fs::rename(&next, &path).unwrap();
        assert_ne!(identity(&path).unwrap(), first);
    }

    #[test]
    fn a_trial_ends_with_its_status_and_words() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo no room >&2; exit 3"]);
        assert_eq!(trial(command, &said).unwrap().code(), Some(3));
        assert_eq!(std::fs::read_to_string(&said).unwrap(), "no room\n");
        let error = trial(Command::new(dir.path().join("none")), &said).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
