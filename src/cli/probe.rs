//! The probe of `agentbin doctor`: a task of our own drivers that measures the isolation table from inside.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::fs::{Mode, OFlags};
use tokio::time::timeout;

use super::machine;
use super::signals::Signals;
use crate::alloc::compute;
use crate::cgroup::Regime;
use crate::container::probe::{Host, Report};
use crate::driver::{Driver, ExecDriver, RawExecDriver, Settings, TaskConfig};
use crate::spec::{DriverConfig, LogCollection, Role};
use crate::sys::path::Root;
use crate::sys::{self, processes};

/// How long one probe may take; it takes less than a second.
const PATIENCE: Duration = Duration::from_secs(60);
/// More than a report has.
const REPORT_SIZE: u64 = 1 << 20;
/// Folders of probes in the data directory: this, and the number of the process that made it.
const FOLDER: &str = "doctor-";
const TASK: &str = "probe";

/// How a task is held.
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

/// What came of the probe at a level.
pub(super) type Outcome = (Level, anyhow::Result<Report>);

/// Starts a probe at each level, one after the other, and removes every trace of it.
pub(super) fn run(levels: &[Level], data_dir: Option<&Path>) -> anyhow::Result<Vec<Outcome>> {
    let data_dir = machine::data_dir(data_dir)?;
    let folder = Folder::create(&data_dir)?;
    let sockets = machine::socket_dir(&data_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
    runtime.block_on(async {
        let mut signals = Signals::catch().context("cannot catch signals")?;
        let cgroups = machine::cgroups()?;
        let regime = machine::regime(&cgroups);
        let settings =
            Settings { cgroups, compute: compute(), socket_dir: sockets.path().to_owned(), under_agent: false };
        let (exec, raw_exec) = (ExecDriver::new(settings.clone()), RawExecDriver::new(settings));
        let mut outcomes = Vec::new();
        for level in levels {
            let driver: &dyn Driver = if *level == Level::RawExec { &raw_exec } else { &exec };
            let task = task(*level, &folder.0, regime)?;
            let report = tokio::select! {
                report = measure(driver, &task) => report,
                signal = signals.next() => Err(anyhow::anyhow!("interrupted by {signal}")),
            };
            let interrupted = report.as_ref().is_err_and(|e| e.to_string().starts_with("interrupted"));
            // One that was never started is not known.
            let _ = driver.destroy_task(&task.id, true).await;
            if interrupted {
                return report.map(|_| Vec::new());
            }
            outcomes.push((*level, report));
        }
        Ok(outcomes)
    })
}

async fn measure(driver: &dyn Driver, task: &TaskConfig) -> anyhow::Result<Report> {
    driver.validate(&task.config)?;
    driver.start_task(task).await?;
    let exit = timeout(PATIENCE, driver.wait_task(&task.id)).await.context("the probe did not end")??;
    let read = |stream: &str| read_bounded(&task.alloc_dir, &format!("alloc/logs/{TASK}.{stream}.0"));
    if !exit.successful() {
        bail!("the probe failed: {exit:?}: {}", read("stderr").unwrap_or_default().trim());
    }
    let text = read("stdout").context("cannot read what the probe said")?;
    serde_json::from_str(&text).context("cannot understand what the probe said")
}

/// The task wrote what is in the file, so nothing is taken for granted.
fn read_bounded(alloc_dir: &Path, name: &str) -> io::Result<String> {
    let mut text = String::new();
    let file =
        Root::open(alloc_dir)?.open_beneath(Path::new(name), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())?;
    io::Read::read_to_string(&mut io::Read::take(std::fs::File::from(file), REPORT_SIZE), &mut text)?;
    Ok(text)
}

/// A fresh allocation with the probe's program in the task's folder.
fn task(level: Level, folder: &Path, regime: Regime) -> anyhow::Result<TaskConfig> {
    let alloc_dir = folder.join(level.name());
    let error = || format!("cannot fill {}", alloc_dir.display());
    let make = |path: &str, mode| -> io::Result<()> {
        let path = alloc_dir.join(path);
        std::fs::create_dir_all(&path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    };
    make("", 0o755).with_context(error)?;
    for path in ["alloc", "alloc/logs", "alloc/data", "alloc/tmp", "probe", "probe/local", "probe/tmp"] {
        make(path, 0o777).with_context(error)?;
    }
    for path in ["probe/secrets", "probe/private"] {
        make(path, 0o700).with_context(error)?;
    }
    let program = alloc_dir.join("probe/local/agentbin");
    copy_own_program(&program).with_context(error)?;
    let command = if level == Level::RawExec { program } else { PathBuf::from("/local/agentbin") };
    let mut config = DriverConfig::default();
    config.values.insert("command".to_owned(), command.to_string_lossy().into());
    let host = serde_json::to_string(&Host::here().context("cannot look at this process")?)?;
    config.values.insert("args".to_owned(), vec![Role::IsolationProbe.name().to_owned(), host].into());
    if matches!(level, Level::Nomad | Level::Strict) {
        config.values.insert("isolation".to_owned(), level.name().into());
    }
    let name = format!("agentbin-doctor-{}-{}", std::process::id(), level.name());
    let cgroup = match regime {
        Regime::V2 => PathBuf::from(format!("nomad.slice/{name}.scope")),
        Regime::V1 => PathBuf::from(format!("nomad/{name}")),
        Regime::Off => PathBuf::new(),
    };
    let logs = LogCollection {
        dir: alloc_dir.join("alloc/logs"),
        stdout_file: format!("{TASK}.stdout"),
        stderr_file: format!("{TASK}.stderr"),
        max_files: 1,
        max_file_size_bytes: REPORT_SIZE,
    };
    Ok(TaskConfig {
        id: format!("{name}/{TASK}"),
        name: TASK.to_owned(),
        alloc_id: name,
        config,
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cgroup,
        alloc_dir,
        logs: Some(logs),
        ..TaskConfig::default()
    })
}

fn copy_own_program(to: &Path) -> io::Result<()> {
    let own = std::fs::File::open(format!("/proc/self/fd/{}", sys::exe::own()?.as_raw_fd()))?;
    let mut copy = std::fs::File::create_new(to)?;
    io::copy(&mut &own, &mut copy)?;
    copy.set_permissions(std::fs::Permissions::from_mode(0o755))
}

/// The folder of this process's probes; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn create(data_dir: &Path) -> anyhow::Result<Folder> {
        for entry in std::fs::read_dir(data_dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|n| n.strip_prefix(FOLDER)?.parse::<i32>().ok());
            if owner.is_some_and(|pid| matches!(processes::stat(pid), Ok(None))) {
                // Left by one that was killed; what cannot be removed now is tried again the next time.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        let path = data_dir.join(format!("{FOLDER}{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o711).create(&path);
        made.with_context(|| format!("cannot make {}; give another --data-dir", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The next one tries again.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
