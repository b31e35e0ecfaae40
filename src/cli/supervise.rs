//! `agentbin supervise`: the next supervisor of a background run whose last one was killed. Started by other commands; see
//! `src/cli/revive.rs`.
//!
//! ```text
//! agentbin ps ─▶ agentbin supervise DIR ID ─▶ agentbin supervise --here DIR ID      in a session of its own, reparented
//!      ◀── its stdout: one line of JSON when the tasks have been taken up, or its end
//! ```

use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::background::{Background, Settings};
use super::output::{Style, Writer};
use super::run::{self, Restored, Run};
use super::signals::Signals;
use super::{SuperviseArgs, complain, messages, placement};
use crate::alloc::machine::{self, CgroupPlace};
use crate::alloc::{Alloc, Machine, Record, RunFile, RunId, chain};
use crate::spec::Job;
use crate::spec::collections::BTreeMap;
use crate::sys;

/// How long drivers may take to report the attributes that the job refers to; references to missing ones are not replaced.
const ASKING: Duration = Duration::from_secs(10);

pub(super) fn run(args: &SuperviseArgs) -> anyhow::Result<i32> {
    let id = RunId::parse(&args.run).with_context(|| format!("{:?} is not an id of a run", args.run))?;
    if !args.here {
        return start(args);
    }
    let data_dir = machine::data_dir(Some(&args.data_dir))?;
    let Some(background) = Background::resume(&data_dir, &id)? else { return Ok(0) };
    let file = background.file();
    let settings = Settings::of_file(&file)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    let status = crate::sys::task::block_on(&runtime, async {
        let signals = Signals::catch().context("cannot catch signals")?;
        let place = CgroupPlace::find(settings.cgroup_parent.as_deref())?.enter()?;
        let mut machine = machine::machine_of(background.owner(), &data_dir, background.sockets(), &place)?;
        let of_plugins = machine::settings(&place.cgroups, background.sockets());
        let plugins = settings.plugins.start(&of_plugins, &mut machine.drivers).await?;
        settings.apply(&mut machine)?;
        let (records, is_all) = records(&machine, &background, &file.allocs)?;
        let Some(first) = records.first() else {
            // The run had just ended.
            background.stays(!is_all);
            return Ok(0);
        };
        let job = Arc::new(first.job(&data_dir)?);
        let told = tokio::time::timeout(ASKING, placement::ask_drivers(&job, &machine)).await;
        Arc::make_mut(&mut machine.node).add_drivers(&told.unwrap_or_default());
        let machine = Arc::new(machine);
        let payload = settings.payload()?;
        let allocs = restored(&machine, &job, &payload, records, is_all);
        let writer = Writer::new(std::io::stdout(), std::io::stderr(), false).context("cannot start")?;
        let orphans = Arc::clone(&machine.orphans);
        let run = Run {
            style: Style::new(false, true),
            timeout: settings.timeout(),
            kept_logs: Some(machine::kept_logs(&data_dir)),
            sinks: settings.sinks(),
            outlets: run::outlets(settings.quiet),
            socket_dir: Some(background.sockets().to_owned()),
            supervised: true,
            background: Some(background),
            restored: Some(allocs),
            payload,
            settings: None,
            job,
            machine,
        };
        let status = Box::pin(run.execute(writer, signals)).await;
        plugins.end().await;
        orphans.sweep(true, run::LEFTOVERS_PATIENCE).context("cannot make sure that what the job started has ended")?;
        messages::tidy();
        Ok(status)
    });
    runtime.shutdown_background();
    status
}

/// Starts it in a session of its own, and not as a child of the caller: a child would be taken for one of the caller's processes.
fn start(args: &SuperviseArgs) -> anyhow::Result<i32> {
    let exe = sys::exe::own().context("cannot find this program")?;
    let mut command = Command::new(format!("/proc/self/fd/{}", exe.as_raw_fd()));
    let data_dir = std::path::absolute(&args.data_dir).context("cannot find out where this is")?;
    command.arg0(env!("CARGO_PKG_NAME")).arg("supervise").arg("--here").arg(data_dir).arg(&args.run);
    // A task that the supervisor restarts must not depend on the directory and environment of the command that started the
    // supervisor: the address of a container engine, for example, is in the environment.
    let id = RunId::parse(&args.run).with_context(|| format!("{:?} is not an id of a run", args.run))?;
    let Some(file) = RunFile::read(&args.data_dir, &id)? else { return Ok(0) };
    command.current_dir("/").env_clear().envs(Settings::of_file(&file)?.host_env);
    sys::process::close_on_exec_from(3).context("cannot close what is not for the supervisor")?;
    sys::process::spawn_in_session(&mut command).context("cannot start the supervisor")?;
    Ok(0)
}

/// The records of the run, in the order of its allocations, and whether these are all. A record that is not understood is
/// reported, and stays.
fn records(machine: &Machine, background: &Background, order: &[String]) -> anyhow::Result<(Vec<Record>, bool)> {
    let mut found = BTreeMap::new();
    for record in machine.records.owned_by(&background.owner()).context("cannot look for the run's allocations")? {
        match record {
            Ok(record) => _ = found.insert(record.alloc_id.clone(), record),
            // Its allocation is known by the file's name.
            Err(error) => tracing::debug!(error = chain(&error), "a record is left alone"),
        }
    }
    let (mut records, mut is_all) = (Vec::new(), true);
    for id in order {
        if let Some(record) = found.remove(id) {
            records.push(record);
        } else if let Err(error) = machine.records.read(id) {
            complain(&chain(&error));
            is_all = false;
        }
    }
    Ok((records, is_all))
}

/// The allocations that can be restored, sharing one job.
fn restored(machine: &Arc<Machine>, job: &Arc<Job>, payload: &[u8], records: Vec<Record>, is_all: bool) -> Restored {
    let known = [Arc::clone(job)];
    let mut restored = Restored { allocs: Vec::new(), is_all };
    for record in records {
        match Alloc::restore_among(machine, record, &known) {
            Ok(alloc) => restored.allocs.push(alloc.with_payload(payload)),
            Err(error) => {
                complain(&chain(&error));
                restored.is_all = false;
            }
        }
    }
    restored
}
