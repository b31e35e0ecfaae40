//! Background runs whose supervisors were killed: their tasks go on, and the next command starts a supervisor again.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::complain;
use crate::alloc::machine;
use crate::alloc::{KeptSockets, Owner, OwnerLock, RunFile, RunId};
use crate::spec::collections::BTreeSet;
use crate::sys;

/// How long a supervisor may take to restore its tasks; then it is not waited for any longer.
const PATIENCE: Duration = Duration::from_mins(1);
/// Most bytes of the line that reports this.
const LONGEST_LINE: u64 = 64 << 20;

/// Starts a supervisor for each run that has lost its own: those of this data directory and, unless it was `given`, all runs
/// with sockets here. Errors are reported.
pub(super) async fn revive(data_dir: Option<&Path>, given: bool) {
    let mut starting = JoinSet::new();
    for (data_dir, id) in lost(data_dir, given) {
        starting.spawn_blocking(move || {
            let (name, started) = (id.as_str().to_owned(), start(&data_dir, &id));
            started.with_context(|| format!("cannot start a supervisor for run {name} in {}", data_dir.display()))
        });
    }
    let all = async {
        while let Some(started) = starting.join_next().await {
            if let Ok(Err(error)) = started {
                complain(&format!("{error:#}"));
            }
        }
    };
    if tokio::time::timeout(PATIENCE, all).await.is_err() {
        complain(&format!("a run whose supervisor was killed has not been recovered after {PATIENCE:?}"));
        // The threads that wait for the supervisors' lines may be abandoned.
        starting.detach_all();
    }
}

/// Whether there is a run that [`revive`] would start a supervisor for.
pub(super) fn is_any_lost(data_dir: Option<&Path>, given: bool) -> bool {
    !lost(data_dir, given).is_empty()
}

/// The runs that are to go on, and whose supervisors are dead.
fn lost(data_dir: Option<&Path>, given: bool) -> Vec<(PathBuf, RunId)> {
    let mut candidates = BTreeSet::new();
    if let Some(data_dir) = data_dir {
        match RunFile::all(data_dir) {
            Ok(ids) => candidates.extend(ids.into_iter().map(|id| (data_dir.to_owned(), id))),
            Err(error) => complain(&format!("cannot look for runs in {}: {error}", data_dir.display())),
        }
    }
    if !given {
        for base in machine::socket_bases(data_dir) {
            // Errors are reported when the runs are queried.
            candidates.extend(KeptSockets::all(&base).unwrap_or_default().iter().filter_map(KeptSockets::run));
        }
    }
    let is_lost = |run: &(PathBuf, RunId)| {
        let owner = Owner::Run { background: Some(run.1.clone()) };
        OwnerLock::is_held(&run.0, &owner).is_ok_and(|held| !held) && is_announced(run)
    };
    candidates.into_iter().filter(is_lost).collect()
}

/// Whether a run is to go on if its supervisor is killed. A file that is not understood is left to a newer version.
pub(super) fn is_announced((data_dir, id): &(PathBuf, RunId)) -> bool {
    RunFile::read(data_dir, id).is_ok_and(|file| file.is_some_and(|file| file.announced))
}

/// Starts the supervisor, and waits until it has restored the tasks, or has ended.
fn start(data_dir: &Path, id: &RunId) -> anyhow::Result<()> {
    let exe = sys::exe::own().context("cannot find this program")?;
    let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
    command.arg0(env!("CARGO_PKG_NAME")).arg("supervise").arg(data_dir).arg(id.as_str());
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().context("it has no output")?;
    let status = child.wait()?;
    let mut line = String::new();
    BufReader::new(stdout.take(LONGEST_LINE)).read_line(&mut line)?;
    if !status.success() {
        anyhow::bail!("{status}");
    }
    Ok(())
}
