//! `agentbin gc`, and the same at the start of every run.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;

use super::machine::{self, Place};
use super::run::{SINKS_PATIENCE, outlets};
use super::{GcArgs, complain, print};
use crate::alloc::{self, Finding, Record, RecordError, SocketDir};
use crate::logs::ship;
use crate::spec::{AllocId, escaped_lines};
use crate::sys::owned::{self, OwnDir};

/// Some of it could not be removed.
const LEFTOVERS: i32 = 1;

pub(super) fn run(args: &GcArgs) -> anyhow::Result<i32> {
    let data_dir = machine::data_dir(args.data_dir.as_deref())?;
    let (mut text, mut status) = (String::new(), 0);
    let remove = if args.dry_run { "would remove" } else { "removed" };
    let mut clean = |finding: &Finding| {
        let errors = if args.dry_run { Vec::new() } else { clean(&data_dir, finding) };
        for error in &errors {
            complain(error);
        }
        if !errors.is_empty() {
            status = LEFTOVERS;
        }
        errors.is_empty()
    };
    for finding in scan(&data_dir)? {
        let _ = match &finding {
            Finding::InUse(record) => writeln!(text, "in use         {}", describe(record)),
            Finding::Elsewhere(record) => writeln!(text, "left alone     {} (another pid namespace)", describe(record)),
            Finding::Unrecorded(path) => writeln!(text, "left alone     {} (no record of it)", path.display()),
            Finding::Unreadable(error) => writeln!(text, "left alone     {}", alloc::chain(error)),
            Finding::Abandoned(record) if clean(&finding) => writeln!(text, "{remove:<14} {}", describe(record)),
            Finding::HalfWritten(path) if clean(&finding) => writeln!(text, "{remove:<14} {}", path.display()),
            Finding::Abandoned(_) | Finding::HalfWritten(_) => Ok(()),
        };
    }
    for path in sockets(&data_dir)? {
        match if args.dry_run { Ok(()) } else { SocketDir::remove(&path) } {
            Ok(()) => _ = writeln!(text, "{remove:<14} {}", path.display()),
            Err(e) => {
                complain(&format!("cannot remove {}: {e}", path.display()));
                status = LEFTOVERS;
            }
        }
    }
    for kept in kept_logs(&data_dir)? {
        let KeptLogs { dir, bytes, age } = &kept;
        let about = format!("{} ({bytes} bytes, {} old)", dir.display(), humantime::format_duration(in_seconds(*age)));
        if args.kept_logs.is_none_or(|most| *age < most) {
            let _ = writeln!(text, "kept logs      {about}");
            continue;
        }
        match if args.dry_run { Ok(()) } else { std::fs::remove_dir_all(dir) } {
            Ok(()) => _ = writeln!(text, "{remove:<14} {about}"),
            Err(e) => {
                complain(&format!("cannot remove {}: {e}", dir.display()));
                status = LEFTOVERS;
            }
        }
    }
    // Where somebody still works there, he does it when he is done.
    if !args.dry_run
        && let Err(e) = alloc::release(&data_dir)
    {
        complain(&alloc::chain(&e));
        status = LEFTOVERS;
    }
    print(escaped_lines(&text).as_bytes())?;
    Ok(status)
}

/// What `run --keep-logs` kept of one allocation.
struct KeptLogs {
    dir: PathBuf,
    /// Of its files.
    bytes: u64,
    /// Since the last of them was written.
    age: Duration,
}

/// All of them, in the order of their names. Only folders of this user's that are called as an allocation is: the rest is not
/// ours.
fn kept_logs(data_dir: &Path) -> anyhow::Result<Vec<KeptLogs>> {
    let base = machine::kept_logs(data_dir);
    let failed = || format!("cannot look for kept logs in {}", base.display());
    let own = match OwnDir::open(&base) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        own => own.with_context(failed)?,
    };
    let entries = std::fs::read_dir(&base).with_context(failed)?;
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.with_context(failed)?;
        let is_ours = AllocId::parse(&entry.file_name().to_string_lossy()).is_some();
        if !is_ours || !entry.file_type().with_context(failed)?.is_dir() {
            continue;
        }
        if let Err(e) = own.enter(&entry.file_name()) {
            complain(&format!("left alone: {e}"));
            continue;
        }
        let dir = entry.path();
        let (mut bytes, mut written) = (0, None);
        let files = std::fs::read_dir(&dir).with_context(failed)?.flatten().filter_map(|file| file.metadata().ok());
        for meta in files {
            bytes += meta.len();
            written = written.max(meta.modified().ok());
        }
        let written = written.or_else(|| entry.metadata().ok()?.modified().ok());
        let age = written.and_then(|time| SystemTime::now().duration_since(time).ok()).unwrap_or_default();
        found.push(KeptLogs { dir, bytes, age });
    }
    found.sort_by(|one, other| one.dir.cmp(&other.dir));
    Ok(found)
}

/// What people want to read.
fn in_seconds(age: Duration) -> Duration {
    Duration::from_secs(age.as_secs())
}

/// Removes what earlier runs left, and says only what went wrong.
pub(super) fn sweep(data_dir: &Path) -> anyhow::Result<()> {
    for finding in scan(data_dir)? {
        if matches!(finding, Finding::Abandoned(_) | Finding::HalfWritten(_)) {
            for error in clean(data_dir, &finding) {
                complain(&format!("left by an earlier run: {error}"));
            }
        }
        if let Finding::Unreadable(error @ RecordError::Read { source, .. }) = &finding
            && owned::is_untrusted(source)
        {
            complain(&format!("left alone: {}", alloc::chain(error)));
        }
    }
    for path in sockets(data_dir)? {
        if let Err(e) = SocketDir::remove(&path) {
            complain(&format!("left by an earlier run: cannot remove {}: {e}", path.display()));
        }
    }
    Ok(())
}

fn sockets(data_dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let base = machine::socket_base(data_dir);
    SocketDir::abandoned(&base).with_context(|| format!("cannot look for leftovers in {}", base.display()))
}

fn scan(data_dir: &Path) -> anyhow::Result<Vec<Finding>> {
    alloc::scan(data_dir).with_context(|| format!("cannot look for leftovers in {}", data_dir.display()))
}

fn clean(data_dir: &Path, finding: &Finding) -> Vec<String> {
    match finding {
        Finding::Abandoned(record) => {
            let place = match Place::find(None) {
                Ok(place) => place,
                Err(e) => return vec![format!("{e:#}")],
            };
            // First, as a container is more than its cgroup, and its folder says that it may be there.
            if let Err(e) = machine::remove_containers(data_dir, &record.alloc_id) {
                return vec![format!("allocation {}: remove its containers: {e:#}", record.alloc_id)];
            }
            let remove_cgroup = |path: &Path| machine::remove_cgroup(&place.cgroups, path);
            let errors = alloc::clean(data_dir, record, &remove_cgroup, &ship_the_rest);
            if let Err(e) = place.settle_beside(&record.cgroups) {
                return vec![format!("cannot divide the cores among the tasks: {}", alloc::chain(&e))];
            }
            errors.iter().map(|e| format!("allocation {}: {}", record.alloc_id, alloc::chain(e))).collect()
        }
        Finding::HalfWritten(path) => match alloc::clean_half_written(path) {
            Ok(_) => Vec::new(),
            Err(e) => vec![format!("cannot remove {}: {e}", path.display())],
        },
        _ => Vec::new(),
    }
}

/// Hands the log sinks of a killed run what they did not get.
fn ship_the_rest(alloc_dir: &Path) {
    let (logs, records) = (alloc_dir.join("alloc/logs"), ship::records(alloc_dir));
    let ship = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let errors = runtime.block_on(async { ship::resume(&outlets(false), &logs, &records, SINKS_PATIENCE).await.1 });
        runtime.shutdown_background();
        for error in &errors {
            complain(&error.to_string());
        }
        std::io::Result::Ok(())
    };
    // A thread of its own, as the caller's may have a runtime of its own.
    let done = std::thread::scope(|scope| scope.spawn(ship).join());
    if let Ok(Err(error)) = done {
        complain(&format!("cannot ship what a killed run left: {error}"));
    }
}

fn describe(record: &Record) -> String {
    let Record { alloc_id, job, group, owner, handles, cgroups, .. } = record;
    let (processes, cgroups) = (handles.len(), cgroups.len());
    format!("{alloc_id} of {job}.{group}: run {}, helpers {processes}, cgroups {cgroups}", owner.pid)
}
