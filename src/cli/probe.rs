//! The probe of `agentbin doctor`: a task of our own drivers that measures the isolation table from inside.
//!
//! Each probe is an allocation with a record, so that `agentbin gc` finds its leftovers if this process is killed.

use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::{Mode, OFlags};
use tokio::time::timeout;

use super::signals::Signals;
use super::{complain, tell};
use crate::alloc::machine::{self, CgroupPlace};
use crate::alloc::{self, AllocDir, Handle, Machine, Record, chain};
use crate::container::probe::{Host, Report};
use crate::csi::Secrets;
use crate::driver::{Driver, TaskConfig};
use crate::spec::IntoMap as _;
use crate::spec::json;
use crate::spec::{AllocId, DriverConfig, LogCollection, Role, Signal};
use crate::sys;
use crate::sys::path::Root;

/// How long one probe may take; usually it takes less than a second.
const PATIENCE: Duration = Duration::from_mins(1);
/// More than any report has.
const REPORT_SIZE: u64 = 1 << 20;
/// Name of the job, the group and the task.
const PROBE: &str = Role::IsolationProbe.name();

/// How a task is isolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Level {
    /// The driver `raw_exec`: not isolated
    #[value(name = "raw_exec")]
    RawExec,
    /// As Nomad's own exec driver
    Nomad,
    /// The driver exec
    Default,
    /// All that there is
    Strict,
}

impl Level {
    pub(super) const ALL: [Level; 4] = [Level::RawExec, Level::Nomad, Level::Default, Level::Strict];

    pub(super) fn name(self) -> &'static str {
        match self {
            Level::RawExec => "raw_exec",
            Level::Nomad => "nomad",
            Level::Default => "default",
            Level::Strict => "strict",
        }
    }
}

/// The result of the probe at a level.
pub(super) type Outcome = (Level, anyhow::Result<Report>);

/// Why there is no table at all.
enum Stopped {
    By(Signal),
}

/// Starts a probe at each level, one after the other, and removes every trace of it.
pub(super) fn run(
    levels: &[Level],
    data_dir: Option<&Path>,
    cgroup_parent: Option<&Path>,
) -> anyhow::Result<Vec<Outcome>> {
    let data_dir = machine::data_dir(data_dir)?;
    let sockets = machine::socket_dir(&data_dir)?;
    alloc::sweep(&data_dir, &tell(), &|_, _| Secrets::default())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    crate::sys::task::block_on(&runtime, async {
        let mut signals = Signals::catch().context("cannot catch signals")?;
        let place = CgroupPlace::find(cgroup_parent)?.enter()?;
        let machine = machine::machine(&data_dir, sockets.path(), &place)?;
        let mut outcomes = Vec::new();
        for level in levels {
            match probe(&machine, *level, &mut signals).await {
                Ok(report) => outcomes.push((*level, report)),
                Err(Stopped::By(signal)) => bail!("interrupted by {signal}"),
            }
        }
        Ok(outcomes)
    })
}

async fn probe(machine: &Machine, level: Level, signals: &mut Signals) -> Result<anyhow::Result<Report>, Stopped> {
    let id = AllocId::new(uuid::Uuid::new_v4());
    let dir = AllocDir::new(&machine.data_dir, &id);
    let hold = match alloc::hold(&machine.data_dir) {
        Ok(hold) => hold,
        Err(error) => return Ok(Err(error.into())),
    };
    let report = match allocate(machine, level, &id, &dir) {
        Ok((driver, task)) => {
            // Cancelling a start halfway would leave an executor that is recorded nowhere.
            let report = match start(machine, driver, &task).await {
                Ok(()) => tokio::select! {
                    report = report(driver, &task) => Ok(report),
                    signal = signals.next() => Err(Stopped::By(signal)),
                },
                Err(error) => Ok(Err(error)),
            };
            // A task that was never started is unknown to the driver.
            let _ = driver.destroy_task(&task.id, true).await;
            report
        }
        Err(error) => Ok(Err(error)),
    };
    let errors = dir.destroy();
    for error in &errors {
        complain(&chain(error));
    }
    // If anything remains, the next clean-up needs the record to find it.
    if errors.is_empty()
        && let Err(error) = machine.records.remove(&id)
    {
        complain(&chain(&error));
    }
    drop(hold);
    if let Err(error) = alloc::release(&machine.data_dir) {
        complain(&chain(&error));
    }
    report
}

async fn start(machine: &Machine, driver: &dyn Driver, task: &TaskConfig) -> anyhow::Result<()> {
    driver.validate(&task.config)?;
    let started = driver.start_task(task).await?;
    if let Some(executor) = started.executor {
        let handle = Handle { task_id: task.id.clone(), process: executor.process, socket: executor.socket };
        machine.records.process_started(handle)?;
    }
    Ok(())
}

async fn report(driver: &dyn Driver, task: &TaskConfig) -> anyhow::Result<Report> {
    let exit = timeout(PATIENCE, driver.wait_task(&task.id)).await.context("the probe did not end")??;
    let read = |stream: &str| read_bounded(&task.alloc_dir, &format!("alloc/logs/{PROBE}.{stream}.0"));
    if !exit.successful() {
        bail!("the probe failed: {exit:?}: {}", read("stderr").unwrap_or_default().trim());
    }
    let text = read("stdout").context("cannot read what the probe said")?;
    json::from_str(&text).context("cannot understand what the probe said")
}

/// The task wrote the file, so its content is untrusted.
fn read_bounded(alloc_dir: &Path, name: &str) -> io::Result<String> {
    let mut text = String::new();
    let file =
        Root::open(alloc_dir)?.open_beneath(Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    io::Read::read_to_string(&mut io::Read::take(std::fs::File::from(file), REPORT_SIZE), &mut text)?;
    Ok(text)
}

/// A new allocation with the probe's program in the task's directory.
fn allocate<'a>(
    machine: &'a Machine,
    level: Level,
    id: &AllocId,
    dir: &AllocDir,
) -> anyhow::Result<(&'a dyn Driver, TaskConfig)> {
    let name = if level == Level::RawExec { "raw_exec" } else { "exec" };
    let driver = machine.drivers.get(name).ok_or_else(|| anyhow!("there is no driver {name}"))?;
    let cgroup = (machine.cgroup)(id, PROBE);
    let mut record = Record::new(id, PROBE, level.name()).context("cannot look at this process")?;
    record.cgroups = Some(cgroup.clone()).into_iter().filter(|c| !c.as_os_str().is_empty()).collect();
    machine.records.create(record)?;
    dir.build()?;
    dir.build_task(PROBE)?;
    let program = dir.path().join(PROBE).join("local/agentbin");
    copy_own_program(&program).with_context(|| format!("cannot write {}", program.display()))?;
    let command = if level == Level::RawExec { program } else { PathBuf::from("/local/agentbin") };
    let mut config = DriverConfig::default();
    config.values.insert("command".to_owned(), command.to_string_lossy().into());
    let host = json::to_string(&Host::here().context("cannot look at this process")?)?;
    config.values.insert("args".to_owned(), vec![PROBE.to_owned(), host].into());
    if level != Level::RawExec {
        config.values.insert("isolation".to_owned(), level.name().into());
    }
    let env = [("PATH", "/usr/bin:/bin"), ("NOMAD_ALLOC_ID", id.as_str())];
    let logs = LogCollection {
        dir: dir.logs(),
        stdout_file: format!("{PROBE}.stdout"),
        stderr_file: format!("{PROBE}.stderr"),
        max_files: 1,
        max_file_size_bytes: REPORT_SIZE,
        ..LogCollection::default()
    };
    let task = TaskConfig {
        id: format!("{id}/{PROBE}/{:08x}", std::process::id()),
        name: PROBE.to_owned(),
        alloc_id: id.to_string(),
        config,
        env: env.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().into_map(),
        cgroup,
        alloc_dir: dir.path().to_owned(),
        logs: Some(logs),
        ..TaskConfig::default()
    };
    Ok((driver.as_ref(), task))
}

fn copy_own_program(to: &Path) -> io::Result<()> {
    let own = std::fs::File::open(format!("/proc/self/fd/{}", sys::exe::own()?.as_raw_fd()))?;
    let mut copy = std::fs::File::create_new(to)?;
    io::copy(&mut &own, &mut copy)?;
    copy.set_permissions(std::fs::Permissions::from_mode(0o755))
}
