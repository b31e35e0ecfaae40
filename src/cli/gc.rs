//! `agentbin gc`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;

use super::{GcArgs, complain, print, tell};
use crate::alloc::{
    self, Finding, Owner, Record, RunFile, abandoned_networks, abandoned_sockets, findings, machine, remove_ended_runs,
    remove_network, remove_sockets,
};
use crate::spec::{AllocId, Order as _, escaped_lines};
use crate::sys::owned::OwnDir;

/// Some leftovers could not be removed.
const LEFTOVERS: i32 = 1;

pub(super) fn run(args: &GcArgs) -> anyhow::Result<i32> {
    let data_dir = machine::data_dir(args.data_dir.as_deref())?;
    let (mut text, mut status) = (String::new(), 0);
    let remove = if args.dry_run { "would remove" } else { "removed" };
    let mut clean = |finding: &Finding| {
        let errors = if args.dry_run { Vec::new() } else { alloc::remove(&data_dir, finding, &tell()) };
        for error in &errors {
            complain(error);
        }
        if !errors.is_empty() {
            status = LEFTOVERS;
        }
        errors.is_empty()
    };
    for finding in findings(&data_dir)? {
        let _ = match &finding {
            Finding::InUse(record) => writeln!(text, "in use         {}", describe(record)),
            Finding::Elsewhere(record) => writeln!(text, "left alone     {} (another pid namespace)", describe(record)),
            Finding::Unrecorded(path) => writeln!(text, "left alone     {} (no record of it)", path.display()),
            Finding::Unreadable(error) => writeln!(text, "left alone     {}", alloc::chain(error)),
            Finding::Wanted(record) if !args.abandoned => {
                writeln!(text, "kept           {} {}", describe(record), kept(&data_dir, record))
            }
            Finding::Abandoned(record) | Finding::Wanted(record) if clean(&finding) => {
                writeln!(text, "{remove:<14} {}", describe(record))
            }
            Finding::HalfWritten(path) if clean(&finding) => writeln!(text, "{remove:<14} {}", path.display()),
            Finding::Abandoned(_) | Finding::Wanted(_) | Finding::HalfWritten(_) => Ok(()),
        };
    }
    for noted in abandoned_networks(&data_dir)? {
        let errors = if args.dry_run { Vec::new() } else { remove_network(&noted) };
        for error in &errors {
            complain(error);
        }
        if errors.is_empty() {
            let _ = writeln!(text, "{remove:<14} network of {} (no record of it)", noted.id());
        } else {
            status = LEFTOVERS;
        }
    }
    for path in abandoned_sockets(&data_dir)? {
        match if args.dry_run { Ok(()) } else { remove_sockets(&path) } {
            Ok(()) => _ = writeln!(text, "{remove:<14} {}", path.display()),
            Err(e) => {
                complain(&format!("cannot remove {}: {e}", path.display()));
                status = LEFTOVERS;
            }
        }
    }
    let (removed, failed) = remove_ended_runs(&data_dir, args.dry_run)?;
    for what in removed {
        let _ = writeln!(text, "{remove:<14} {what}");
    }
    for error in failed {
        complain(&error);
        status = LEFTOVERS;
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
    // A process that still works there unmounts it when it is done.
    if !args.dry_run
        && let Err(e) = alloc::release(&data_dir)
    {
        complain(&alloc::chain(&e));
        status = LEFTOVERS;
    }
    print(escaped_lines(&text).as_bytes())?;
    Ok(status)
}

/// The logs of one allocation that `run --keep-logs` kept.
struct KeptLogs {
    dir: PathBuf,
    /// The total size of its files.
    bytes: u64,
    /// The time since the last of them was written.
    age: Duration,
}

/// All kept logs, in the order of their names. Only directories of this user that have the name of an allocation: everything
/// else is not ours.
fn kept_logs(data_dir: &Path) -> anyhow::Result<Vec<KeptLogs>> {
    let base = machine::kept_logs(data_dir);
    let failed = || format!("cannot look for kept logs in {}", base.display());
    let own = match OwnDir::open(&base) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        own => own.with_context(failed)?,
    };
    let entries = std::fs::read_dir(&base).with_context(failed)?;
    let mut found = Vec::new();
    // A supervisor writes its messages among the logs of its first allocation, which may have ended before the others.
    let runs = RunFile::all(data_dir).with_context(failed)?;
    let runs: Vec<RunFile> = runs.iter().filter_map(|id| RunFile::read(data_dir, id).ok().flatten()).collect();
    let in_use = |name: &String| runs.iter().any(|run| run.announced && run.allocs.first() == Some(name));
    for entry in entries {
        let entry = entry.with_context(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The messages of a background job are there from its start on.
        let is_ours = AllocId::parse(&name).is_some() && !data_dir.join(format!("alloc/{name}.json")).exists();
        if !is_ours || in_use(&name) || !entry.file_type().with_context(failed)?.is_dir() {
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
    found.order_by(|one, other| one.dir.cmp(&other.dir));
    Ok(found)
}

/// Rounded down to seconds, for people.
fn in_seconds(age: Duration) -> Duration {
    Duration::from_secs(age.as_secs())
}

/// The process that takes it over again.
fn kept(data_dir: &Path, record: &Record) -> &'static str {
    match record.owned_by() {
        Owner::Run { background: Some(id) } if RunFile::read(data_dir, &id).is_err() => {
            "(this version cannot take it up again; gc --abandoned ends it)"
        }
        Owner::Agent => "(agentbin agent takes it up again; gc --abandoned ends it)",
        Owner::Run { .. } => "(agentbin ps takes it up again; gc --abandoned ends it)",
    }
}

fn describe(record: &Record) -> String {
    let Record { alloc_id, job, group, owner, handles, cgroups, .. } = record;
    let (processes, cgroups) = (handles.len(), cgroups.len());
    format!("{alloc_id} of {job}.{group}: run {}, helpers {processes}, cgroups {cgroups}", owner.pid)
}
