//! Removes the leftovers of killed runs that their records list, with containers, cgroups and sockets; ships unsent output.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::chain::chain;
use super::csi;
use super::gc::{self, Finding};
use super::kept_sockets::KeptSockets;
use super::machine::{self, CgroupPlace};
use super::machine_error::{Doing as _, MachineError};
use super::output::SINKS_TIMEOUT;
use super::owner::{Owner, OwnerLock, RunFile, RunId};
use super::process;
use super::record::{RecordError, Records, record_path};
use super::sockets::SocketDir;
use crate::csi::{Secrets, SecretsOf};
use crate::logs::ship::{self, Outlets, Report};
use crate::net::{self, Noted};
use crate::sys::owned;

/// How long killing the leftovers of driver plugins may take.
const PLUGINS_TIMEOUT: Duration = Duration::from_secs(10);

/// Reports to the user of this process what could not be done.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// Removes the leftovers of earlier runs, and reports only errors. `secrets` knows those of CSI volumes.
///
/// # Errors
/// When the data directory or `/proc` cannot be read.
pub fn sweep(data_dir: &Path, tell: &Tell, secrets: &SecretsOf<'_>) -> Result<(), MachineError> {
    for finding in findings(data_dir)? {
        if matches!(finding, Finding::Abandoned(_) | Finding::HalfWritten(_)) {
            for error in remove(data_dir, &finding, tell) {
                tell(&format!("left by an earlier run: {error}"));
            }
        }
        if let Finding::Unreadable(error @ RecordError::Read { source, .. }) = &finding
            && owned::is_untrusted(source)
        {
            tell(&format!("left alone: {}", chain(error)));
        }
    }
    if let Err(e) = csi::settle_volumes(data_dir, secrets) {
        tell(&format!("left by an earlier run: {}", chain(&e)));
    }
    for noted in abandoned_networks(data_dir)? {
        for error in remove_network(&noted) {
            tell(&format!("left by an earlier run: {error}"));
        }
    }
    for path in abandoned_sockets(data_dir)? {
        if let Err(e) = remove_sockets(&path) {
            tell(&format!("left by an earlier run: cannot remove {}: {e}", path.display()));
        }
    }
    for told in remove_ended_runs(data_dir, false)?.1 {
        tell(&format!("left by an earlier run: {told}"));
    }
    Ok(())
}

/// The background runs to which no supervisor will return: their supervisors are dead, and they have no allocations any more, or
/// their start was never reported.
///
/// # Errors
/// When the data directory cannot be read.
pub fn ended_runs(data_dir: &Path) -> Result<Vec<RunId>, MachineError> {
    let look = || {
        let mut ended = Vec::new();
        for id in RunFile::all(data_dir)? {
            let owner = Owner::Run { background: Some(id.clone()) };
            if OwnerLock::is_held(data_dir, &owner)? {
                continue;
            }
            // A file that is not understood is left to a newer version.
            let Ok(file) = RunFile::read(data_dir, &id) else { continue };
            let allocs = file.map(|file| file.allocs).unwrap_or_default();
            // The record of an allocation that another process is removing exists until the removal is complete.
            let has_allocs = allocs.iter().any(|id| record_path(data_dir, id).exists());
            ended.extend((!has_allocs).then_some(id));
        }
        std::io::Result::Ok(ended)
    };
    look().doing_with(|| format!("cannot look for runs in {}", data_dir.display()))
}

/// Removes these runs, and socket directories without an owner. Returns what was removed, or would be with `dry`, and what could
/// not be removed.
///
/// # Errors
/// When the data directory, or the parent of the socket directories, cannot be read.
pub fn remove_ended_runs(data_dir: &Path, dry: bool) -> Result<(Vec<String>, Vec<String>), MachineError> {
    let (mut removed, mut failed) = (Vec::new(), Vec::new());
    for id in ended_runs(data_dir)? {
        let what = format!("run {}", id.as_str());
        match if dry { Ok(true) } else { RunFile::remove_ended(data_dir, &id) } {
            Ok(true) => removed.push(what),
            // The run is just beginning.
            Ok(false) => {}
            Err(e) => failed.push(format!("cannot remove the file of {what}: {e}")),
        }
    }
    let base = machine::socket_base(data_dir);
    let kept = KeptSockets::all(&base).doing_with(|| format!("cannot look for leftovers in {}", base.display()))?;
    for sockets in kept {
        let path = sockets.path.display();
        match sockets.is_abandoned() {
            Ok(false) => {}
            Ok(true) => match if dry { Ok(()) } else { sockets.remove() } {
                Ok(()) => removed.push(path.to_string()),
                Err(e) => failed.push(format!("cannot remove {path}: {e}")),
            },
            Err(e) => failed.push(format!("cannot determine the owner of {path}: {e}")),
        }
    }
    Ok((removed, failed))
}

/// The directories of sockets whose owners are dead.
///
/// # Errors
/// When their parent directory cannot be read.
pub fn abandoned_sockets(data_dir: &Path) -> Result<Vec<PathBuf>, MachineError> {
    let base = machine::socket_base(data_dir);
    SocketDir::abandoned(&base).doing_with(|| format!("cannot look for leftovers in {}", base.display()))
}

/// Removes such a directory, and kills the remaining processes of its owner's driver plugins.
///
/// # Errors
/// What the file system says; when one of these processes does not end.
pub fn remove_sockets(path: &Path) -> std::io::Result<()> {
    process::kill_plugins_of(path, PLUGINS_TIMEOUT)?;
    SocketDir::remove(path)
}

/// The networks on this machine whose runs are dead and which no record lists any more: a data directory was removed, or another
/// version of this program did not know them.
///
/// # Errors
/// When the directory of networks, or `/proc`, cannot be read.
pub fn abandoned_networks(data_dir: &Path) -> Result<Vec<Noted>, MachineError> {
    let dir = machine::network_dir(data_dir);
    let look = || {
        let mut found = Vec::new();
        for noted in net::noted(&dir)? {
            if noted.is_abandoned()? {
                found.push(noted);
            }
        }
        std::io::Result::Ok(found)
    };
    look().doing_with(|| format!("cannot look for leftovers in {}", dir.display()))
}

/// Removes such a network. Returns what could not be removed.
#[must_use]
pub fn remove_network(noted: &Noted) -> Vec<String> {
    noted.remove().iter().map(|e| format!("cannot remove the network of {}: {}", noted.id(), chain(e))).collect()
}

/// The allocations below `data_dir`, by their records.
///
/// # Errors
/// When they, or `/proc`, cannot be read.
pub fn findings(data_dir: &Path) -> Result<Vec<Finding>, MachineError> {
    gc::scan(data_dir).doing_with(|| format!("cannot look for leftovers in {}", data_dir.display()))
}

/// Removes a finding that is abandoned, or one that its owner would take over again: a caller that wants to keep the latter does
/// not call this. Everything else stays. Returns what could not be removed.
pub fn remove(data_dir: &Path, finding: &Finding, tell: &Tell) -> Vec<String> {
    match finding {
        Finding::Abandoned(record) | Finding::Wanted(record) => {
            // The lock keeps its owner from returning during the removal.
            let _lock = match OwnerLock::take(data_dir, &record.owned_by()) {
                Ok(lock) => lock,
                Err(e) => return vec![format!("allocation {}: {}", record.alloc_id, chain(&e))],
            };
            // The record is read again: the owner may have returned meanwhile, and died again.
            let record = &match Records::new(data_dir).read(&record.alloc_id) {
                Ok(None) => return Vec::new(),
                Ok(Some(record)) => record,
                Err(e) => return vec![chain(&e)],
            };
            let place = match CgroupPlace::find(None) {
                Ok(place) => place,
                Err(e) => return vec![chain(&e)],
            };
            let means = gc::Means {
                remove_containers: &|| machine::remove_containers(data_dir, record).map_err(std::io::Error::other),
                remove_cgroup: &|path| machine::remove_cgroup(&place.cgroups, path),
                release_volumes: &|| {
                    // The volumes of runs have none.
                    let released = machine::release_volumes(data_dir, record, &|_, _| Secrets::default());
                    released.map_err(std::io::Error::other)
                },
                rescue: &|alloc_dir| ship_the_rest(alloc_dir, tell),
            };
            let errors = gc::clean(data_dir, record, &means);
            let mut errors: Vec<_> =
                errors.iter().map(|e| format!("allocation {}: {}", record.alloc_id, chain(e))).collect();
            if let Err(e) = place.settle_beside(&record.cgroups) {
                errors.push(format!("cannot divide the cores among the tasks: {}", chain(&e)));
            }
            errors
        }
        Finding::HalfWritten(path) => match gc::clean_half_written(path) {
            Ok(_) => Vec::new(),
            Err(e) => vec![format!("cannot remove {}: {e}", path.display())],
        },
        _ => Vec::new(),
    }
}

/// Ships the output of a killed run that its log sinks have not received.
fn ship_the_rest(alloc_dir: &Path, tell: &Tell) {
    let (logs, records) = (alloc_dir.join("alloc/logs"), ship::records(alloc_dir));
    let told = Arc::clone(tell);
    let outlets = Outlets::new(Arc::new(move |report: Report| told(&report.to_string())));
    let ship = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let errors = crate::sys::task::block_on(&runtime, async {
            ship::resume(&outlets, &logs, &records, SINKS_TIMEOUT).await.1
        });
        runtime.shutdown_background();
        for error in &errors {
            tell(&error.to_string());
        }
        std::io::Result::Ok(())
    };
    // On a thread of its own, because the caller may be inside a runtime.
    let done = std::thread::scope(|scope| scope.spawn(ship).join());
    if let Ok(Err(error)) = done {
        tell(&format!("cannot ship what a killed run left: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::alloc::record::{Handle, Record, Restore};
    use crate::spec::AllocId;
    use crate::sys::time;

    /// A finding is outdated if another process took the allocation over and was killed again: the current leftovers are removed.
    #[test]
    fn what_is_removed_is_what_there_is_under_the_lock() {
        let data = tempfile::tempdir().unwrap();
        let id = AllocId::new(uuid::Uuid::new_v4());
        let records = Records::new(data.path());
        records.create(Record::new(&id, "job", "group").unwrap().restorable(Restore::of_agent(Vec::new()))).unwrap();
        let Some(Finding::Wanted(seen)) = gc::scan(data.path()).unwrap().pop() else { panic!() };
        let mut helper = Command::new("sleep").arg("60").spawn().unwrap();
        let process = time::process_id(i32::try_from(helper.id()).unwrap()).unwrap();
        records.process_started(Handle { task_id: format!("{id}/web/0"), process, socket: PathBuf::new() }).unwrap();
        let tell: Tell = Arc::new(|_: &str| {});
        let gone = || remove(data.path(), &Finding::Wanted(seen.clone()), &tell);
        assert_eq!(gone(), [""; 0]);
        assert!(!helper.wait().unwrap().success(), "killed, although nothing was known of it");
        assert!(gc::scan(data.path()).unwrap().is_empty());
        assert_eq!(gone(), [""; 0], "somebody else has removed it");
    }
}
