//! Finds and removes the leftovers of killed owners, and nothing else.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;

use super::atomic::{remove_temporary, temporary};
use super::chain::chain;
use super::dir::AllocDir;
use super::error::CleanupError;
use super::owner::{Owner, OwnerLock, RunFile};
use super::process;
use super::record::{Record, RecordError, remove_record};
use crate::net::{self, Network};
use crate::spec::{AllocId, ProcessId};
use crate::sys::owned::{self, OwnDir};
use crate::sys::time;

/// How long a killed helper may take to disappear.
const PATIENCE: Duration = Duration::from_secs(10);

/// One allocation in a data directory.
#[derive(Debug)]
pub enum Finding {
    /// Its owner lives.
    InUse(Record),
    /// Its owner is dead, so it can be removed.
    Abandoned(Record),
    /// Its owner is dead, and its next process will take it over.
    Wanted(Record),
    /// Its owner's process id belongs to another pid namespace, where the owner may be alive.
    Elsewhere(Record),
    /// The record is not understood, or another user may have written it; nothing of the allocation is touched.
    Unreadable(RecordError),
    /// A directory without a record: not known to be ours.
    Unrecorded(PathBuf),
    /// A record whose writer died before it was complete; nothing had been made yet.
    HalfWritten(PathBuf),
}

/// Looks at everything below `data_dir`.
///
/// # Errors
/// When the directory or `/proc` cannot be read, or when a user other than this one and root owns the directory or may write to
/// it; a missing directory counts as empty.
pub fn scan(data_dir: &Path) -> io::Result<Vec<Finding>> {
    let own = data_dir.canonicalize().and_then(|path| OwnDir::open(&path)?.enter("alloc".as_ref()));
    let own = match own {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let dir = data_dir.join("alloc");
    let entries = std::fs::read_dir(&dir)?;
    let mut paths = entries.map(|e| Ok(e?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    let namespace = time::pid_namespace()?;
    let mut findings = Vec::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(record_name) = name.strip_prefix('.').and_then(|n| n.strip_suffix(".tmp")) {
            if !dir.join(record_name).exists() {
                findings.extend(match own.file(name.as_ref().as_ref()) {
                    Ok(_) => Some(Finding::HalfWritten(path)),
                    Err(source) if source.kind() == io::ErrorKind::NotFound => None,
                    Err(source) => Some(Finding::Unreadable(RecordError::Read { path, source })),
                });
            }
        } else if name.ends_with(".json") {
            match Record::read(&path) {
                Ok(record) => match own.enter(record.alloc_id.as_ref()) {
                    Err(source) if source.kind() != io::ErrorKind::NotFound => {
                        let path = dir.join(&record.alloc_id);
                        findings.push(Finding::Unreadable(RecordError::Read { path, source }));
                    }
                    _ => findings.push(judge(data_dir, record, namespace)?),
                },
                // Its owner has just removed it.
                Err(RecordError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => findings.push(Finding::Unreadable(error)),
            }
        } else if AllocId::parse(&name).is_some() && !path.with_extension("json").exists() && path.exists() {
            findings.push(Finding::Unrecorded(path));
        }
    }
    Ok(findings)
}

fn judge(data_dir: &Path, record: Record, namespace: u64) -> io::Result<Finding> {
    let owner = record.owned_by();
    if owner.returns() {
        return Ok(if OwnerLock::is_held(data_dir, &owner)? {
            Finding::InUse(record)
        } else if record.is_elsewhere()? {
            Finding::Elsewhere(record)
        } else if is_wanted(data_dir, &owner)? {
            Finding::Wanted(record)
        } else {
            Finding::Abandoned(record)
        });
    }
    let boot = time::boot_id()?;
    Ok(if record.owner.boot_id != boot {
        Finding::Abandoned(record)
    } else if record.pid_namespace != namespace {
        Finding::Elsewhere(record)
    } else if time::is_alive(&record.owner)? {
        Finding::InUse(record)
    } else {
        Finding::Abandoned(record)
    })
}

/// Whether a dead owner returns for its allocations. A run that died before it reported that its tasks had been started does
/// not.
fn is_wanted(data_dir: &Path, owner: &Owner) -> io::Result<bool> {
    match owner {
        Owner::Run { background: None } => Ok(false),
        Owner::Run { background: Some(id) } => RunFile::is_wanted(data_dir, id),
        Owner::Agent => Ok(true),
    }
}

/// Callbacks that removing an allocation needs.
pub struct Means<'a> {
    /// Removes the allocation's containers, if it has any. Called first, because a container is more than its cgroup, and the
    /// allocation's directory tells whether there may be one.
    pub remove_containers: &'a dyn Fn() -> io::Result<()>,
    /// Kills the processes in a cgroup and removes it; a missing cgroup counts as removed.
    pub remove_cgroup: &'a dyn Fn(&Path) -> io::Result<()>,
    /// Releases the allocation's CSI volumes, once its processes are gone.
    pub release_volumes: &'a dyn Fn() -> io::Result<()>,
    /// Called with the allocation's directory once its processes are gone, to save useful files.
    pub rescue: &'a dyn Fn(&Path),
}

impl std::fmt::Debug for Means<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Means")
    }
}

/// Removes an abandoned allocation: containers, cgroups and helper processes, including those that the owner had not recorded
/// before it died; the network; then mounts and files, and finally the record if nothing remains.
///
/// Every step is tried; errors are returned, and the record stays for the next attempt. An allocation that another process is
/// removing is skipped.
pub fn clean(data_dir: &Path, record: &Record, means: &Means<'_>) -> Vec<CleanupError> {
    let error = |action, subject: String, source| CleanupError { action, subject, source };
    let path = data_dir.join("alloc").join(format!("{}.json", record.alloc_id));
    let Some(id) = record.id() else {
        return vec![error("use the record", path.display().to_string(), io::ErrorKind::InvalidData.into())];
    };
    let lock = owned::open(&path).and_then(|f| {
        rustix::fs::flock(&f, FlockOperation::NonBlockingLockExclusive)?;
        Ok(f)
    });
    let _lock = match lock {
        Ok(lock) => lock,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock) => return Vec::new(),
        Err(e) => return vec![error("lock", path.display().to_string(), e)],
    };
    let mut before = Vec::new();
    let of_network =
        |e: &net::Error| error("remove the network of", record.alloc_id.clone(), io::Error::other(chain(e)));
    // While the container that has its namespace exists: some plugins find what they made by the namespace.
    let by_driver = record.network.as_ref().filter(|network| network.driver().is_some());
    if let Some(Err(e)) = by_driver.map(Network::disconnect) {
        before.push(of_network(&e));
    }
    if let Err(e) = (means.remove_containers)() {
        before.push(error("remove the containers of", record.alloc_id.clone(), e));
    }
    let mut errors = Vec::new();
    let mut helpers: Vec<ProcessId> = record.handles.iter().map(|h| h.process.clone()).collect();
    loop {
        match strays(data_dir, record, &path) {
            Ok(strays) => helpers.extend(strays),
            Err(e) => errors.push(error("look for the processes of", record.alloc_id.clone(), e)),
        }
        // A stopped helper starts nothing new, and still inherits the orphans of its task.
        for helper in &helpers {
            if let Err(e) = process::stop(helper, PATIENCE) {
                errors.push(error("stop process", helper.pid.to_string(), e));
            }
        }
        for cgroup in &record.cgroups {
            if let Err(e) = (means.remove_cgroup)(cgroup) {
                errors.push(error("remove cgroup", cgroup.display().to_string(), e));
            }
        }
        for helper in &helpers {
            if let Err(e) = process::kill_tree(helper, PATIENCE) {
                errors.push(error("kill process", helper.pid.to_string(), e));
            }
        }
        // An executor that was being started when the owner died has its arguments only now, so the search is repeated.
        if helpers.is_empty() || !errors.is_empty() {
            break;
        }
        helpers.clear();
    }
    // The cgroups are empty now; a process that left them needed root to do so. If there are no cgroups, processes of any task user
    // may remain.
    let must_end = (rustix::process::geteuid().is_root() && !record.cgroups.is_empty()).then_some(0);
    if let Err(e) = process::kill_by_environment(&id, must_end, PATIENCE) {
        errors.push(error("kill the processes of", record.alloc_id.clone(), e));
    }
    if let Some(network) = record.network.as_ref().filter(|network| network.driver().is_none()) {
        let steps = [network.disconnect(), network.remove_namespace()];
        errors.extend(steps.iter().filter_map(|step| step.as_ref().err()).map(of_network));
    }
    errors.extend(before);
    for socket in record.handles.iter().map(|h| &h.socket) {
        if let Err(e) = remove_socket(socket) {
            errors.push(error("remove socket", socket.display().to_string(), e));
        }
    }
    // A volume is not released while a process of the allocation may use it.
    if errors.is_empty()
        && let Err(e) = (means.release_volumes)()
    {
        errors.push(error("release the CSI volumes of", record.alloc_id.clone(), e));
    }
    // Files are not removed while a process of the allocation may be alive.
    if errors.is_empty() {
        let dir = AllocDir::new(data_dir, &id);
        (means.rescue)(dir.path());
        errors = dir.destroy();
    }
    if errors.is_empty() {
        // The owner may have died while it rewrote the record. The temporary file goes first, because without the record it belongs
        // to
        // no allocation.
        if let Err(e) = clean_half_written(&temporary(&path)) {
            errors.push(error("remove", temporary(&path).display().to_string(), e));
        } else if let Err(e) = remove_record(&path) {
            errors.push(error("remove the record:", chain(&e), io::Error::other("it stays")));
        }
    }
    errors
}

/// The helpers whose arguments show that they belong to the allocation.
fn strays(data_dir: &Path, record: &Record, path: &Path) -> io::Result<Vec<ProcessId>> {
    let (owner, boot_id) = (std::fs::metadata(path)?.uid(), time::boot_id()?);
    let mut found = Vec::new();
    for (stat, alloc_id) in process::executors(data_dir, owner)? {
        if alloc_id == record.alloc_id {
            found.push(ProcessId { pid: stat.pid, start_ticks: stat.start_ticks, boot_id: boot_id.clone() });
        }
    }
    Ok(found)
}

/// Removes a dead helper's socket, and only if it is a socket.
fn remove_socket(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(metadata) if metadata.file_type().is_socket() => std::fs::remove_file(path),
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// Removes a half-written record, unless a process is writing it.
///
/// # Errors
/// What the file system says.
pub fn clean_half_written(path: &Path) -> io::Result<bool> {
    match remove_temporary(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::alloc::record::{Handle, Records};

    /// A data directory with one allocation whose record `change` has modified.
    fn data(change: impl FnOnce(&mut Record)) -> (tempfile::TempDir, AllocDir) {
        let data = tempfile::tempdir().unwrap();
        let id = AllocId::new(uuid::Uuid::new_v4());
        let mut record = Record::new(&id, "job", "group").unwrap();
        change(&mut record);
        Records::new(data.path()).create(record).unwrap();
        let dir = AllocDir::new(data.path(), &id);
        dir.build().unwrap();
        dir.build_task("web").unwrap();
        (data, dir)
    }

    fn with(remove_cgroup: &dyn Fn(&Path) -> io::Result<()>) -> Means<'_> {
        Means { remove_containers: &|| Ok(()), remove_cgroup, release_volumes: &|| Ok(()), rescue: &|_| {} }
    }

    fn dead(record: &mut Record) {
        record.owner.start_ticks += 1;
    }

    #[test]
    fn only_the_dead_are_abandoned() {
        let kind = |change: fn(&mut Record)| {
            let (data, dir) = data(change);
            let found = scan(data.path()).unwrap();
            dir.destroy();
            assert_eq!(found.len(), 1, "{found:?}");
            match &found[0] {
                Finding::InUse(_) => "in use",
                Finding::Abandoned(_) => "abandoned",
                Finding::Elsewhere(_) => "elsewhere",
                Finding::Wanted(_) => "wanted",
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(kind(|_| {}), "in use");
        assert_eq!(kind(dead), "abandoned");
        assert_eq!(kind(|r| r.owner.boot_id = "an earlier one".to_owned()), "abandoned");
        assert_eq!(kind(|r| r.pid_namespace += 1), "elsewhere");
    }

    /// A record as the first release wrote it.
    #[test]
    fn a_record_of_the_first_version_is_read() {
        let data = tempfile::tempdir().unwrap();
        let id = "0f2c1f7e-0000-4000-8000-000000000000";
        std::fs::create_dir(data.path().join("alloc")).unwrap();
        let text = format!(
            r#"{{"version":1,"alloc_id":"{id}","job":"job","group":"group",
            "owner":{{"pid":4242,"start_ticks":17,"boot_id":"an earlier one"}},"pid_namespace":4026531836,
            "handles":[{{"task_id":"{id}/web/01234567","process":{{"pid":4243,"start_ticks":18,"boot_id":"an earlier one"}}}}],
            "cgroups":["nomad.slice/x.scope"]}}"#
        );
        std::fs::write(data.path().join(format!("alloc/{id}.json")), text).unwrap();
        let Finding::Abandoned(record) = scan(data.path()).unwrap().remove(0) else { panic!() };
        assert_eq!((record.handles.len(), record.restore.is_none()), (1, true));
        assert_eq!(clean(data.path(), &record, &with(&|_| Ok(()))).len(), 0);
        assert!(scan(data.path()).unwrap().is_empty());
    }

    #[test]
    fn everything_recorded_goes_and_nothing_else() {
        let sockets = tempfile::tempdir().unwrap();
        let socket = sockets.path().join("x.sock");
        drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
        let mut helper = Command::new("sleep").arg("60").spawn().unwrap();
        let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
        let identify = |pid: u32| time::process_id(i32::try_from(pid).unwrap()).unwrap();
        let (data, dir) = data(|record| {
            dead(record);
            let mut reused = identify(bystander.id());
            reused.start_ticks -= 1;
            for process in [identify(helper.id()), reused] {
                let task_id = format!("{}/web/01234567", record.alloc_id);
                record.handles.push(Handle { task_id, process, socket: socket.clone() });
            }
            record.cgroups.push(PathBuf::from("nomad.slice/x.scope"));
        });
        let stranger = data.path().join("alloc").join(uuid::Uuid::new_v4().to_string());
        std::fs::create_dir(&stranger).unwrap();
        let garbage = data.path().join("alloc").join(format!("{}.json", uuid::Uuid::new_v4()));
        std::fs::write(&garbage, "{").unwrap();
        let half = data.path().join("alloc").join(format!(".{}.json.tmp", uuid::Uuid::new_v4()));
        std::fs::write(&half, "{").unwrap();
        let rewritten = temporary(&dir.path().with_extension("json"));
        std::fs::write(&rewritten, "{").unwrap();

        let cgroups = RefCell::new(Vec::new());
        let remove = |path: &Path| {
            cgroups.borrow_mut().push(path.to_owned());
            Ok(())
        };
        let (mut unreadable, mut unrecorded) = (0, 0);
        for finding in scan(data.path()).unwrap() {
            match finding {
                Finding::Abandoned(record) => assert_eq!(clean(data.path(), &record, &with(&remove)).len(), 0),
                Finding::HalfWritten(path) => assert!(clean_half_written(&path).unwrap()),
                Finding::Unreadable(_) => unreadable += 1,
                Finding::Unrecorded(path) => {
                    assert_eq!(path, stranger);
                    unrecorded += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((unreadable, unrecorded), (1, 1));
        assert_eq!(helper.wait().unwrap().signal(), Some(9));
        assert!(bystander.try_wait().unwrap().is_none(), "it only has a number that was once ours");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
        assert!(cgroups.borrow().iter().all(|c| c == Path::new("nomad.slice/x.scope")) && !cgroups.borrow().is_empty());
        assert!(!socket.exists(), "a killed helper cannot remove its socket");
        assert!(!rewritten.exists());
        assert!(!dir.path().exists() && stranger.exists() && garbage.exists() && !half.exists());
    }

    #[test]
    fn what_failed_is_reported_and_tried_again_next_time() {
        let (data, dir) = data(|record| {
            dead(record);
            record.cgroups.push(PathBuf::from("nomad/x"));
        });
        let Finding::Abandoned(record) = scan(data.path()).unwrap().remove(0) else { panic!() };
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let asked = RefCell::new(0);
        let remove_cgroup = |_: &Path| {
            *asked.borrow_mut() += 1;
            Err(denied())
        };
        let remove_containers = || Err(denied());
        let means = Means {
            remove_containers: &remove_containers,
            remove_cgroup: &remove_cgroup,
            release_volumes: &|| panic!(),
            rescue: &|_| panic!(),
        };
        let errors = clean(data.path(), &record, &means);
        assert_eq!(errors.iter().map(|e| e.action).collect::<Vec<_>>(), ["remove cgroup", "remove the containers of"]);
        assert_eq!(*asked.borrow(), 1, "containers that stay keep no other process alive");
        let means = Means {
            remove_containers: &remove_containers,
            remove_cgroup: &|_| Ok(()),
            release_volumes: &|| panic!(),
            rescue: &|_| panic!(),
        };
        assert_eq!(clean(data.path(), &record, &means).len(), 1);
        assert!(dir.path().exists());
        let Finding::Abandoned(record) = scan(data.path()).unwrap().remove(0) else { panic!() };
        assert_eq!(clean(data.path(), &record, &with(&|_| Ok(()))).len(), 0);
        assert!(scan(data.path()).unwrap().is_empty());
    }
}
