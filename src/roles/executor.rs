//! The role `executor`: owns one task for a host.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags};
use serde::Deserialize;
use tokio::io::Interest;
use tonic::service::Routes;

use crate::cgroup::CgroupFs;
use crate::executor::{Compute, ExecutorService, Isolation, LocalExecutor};
use crate::logs::notices::Notices;
use crate::plugin::{Level, Ringer, ServeError, Server, Stop, start_logging};
use crate::spec::json;
use crate::spec::{HostIds, Role};
use crate::sys;
use crate::sys::path::Root;
use crate::sys::signals::Signals;
use crate::sys::task::boxed;

/// How long the end of the task may delay that of the server.
const TASK_ENDS: Duration = Duration::from_secs(5);

/// The configuration that a host passes on the command line; keys are Go's field names.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct ExecutorConfig {
    log_file: PathBuf,
    log_level: String,
    #[serde(rename = "FSIsolation")]
    fs_isolation: bool,
    compute: ComputeConfig,
    /// Our extension: a plain user's network that this process is to enter while it has one thread.
    network: Option<PathBuf>,
    /// Our extension: the descriptors of counters for notices of stdout and stderr.
    notices: Option<[i32; 2]>,
    /// Our extension: what the task's launch will need, so that it can be prepared in advance.
    prepare: Option<PrepareConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct PrepareConfig {
    cgroup: PathBuf,
    cpuset: PathBuf,
    cores: String,
    cgroup_namespace: bool,
    /// The first id of the range; 0 for none.
    host_ids: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ComputeConfig {
    #[serde(rename = "tc")]
    total_mhz: u64,
    #[serde(rename = "nc")]
    cores: u32,
}

/// Owns one task for a host. Checks in Nomad's order: arguments, log file, and only then the cookie.
pub(super) fn run(args: &[OsString]) -> i32 {
    let [json] = args else {
        return super::explain(Role::Executor, "expected exactly one argument, a JSON configuration");
    };
    let config: ExecutorConfig = match json::from_slice(json.as_encoded_bytes()) {
        Ok(config) => config,
        Err(error) => return super::explain(Role::Executor, &format!("cannot read the configuration: {error}")),
    };
    let log = match open_log(&config.log_file) {
        Ok(log) => log,
        Err(error) => {
            let text = format!("cannot open log file {}: {error}", config.log_file.display());
            return super::explain(Role::Executor, &text);
        }
    };
    let server = match Server::from_env() {
        Ok(server) => server,
        Err(error) => return super::explain(Role::Executor, &error.to_string()),
    };
    let isolation = if config.fs_isolation { Isolation::Isolated } else { Isolation::Universal };
    log_to(&config, isolation, log);
    sys::prctl::set_name(Role::Executor.name());
    // Its memory holds data of tasks, and a core file may be in a directory that they can read. Not without root, as an undumpable
    // process could not write the id maps of its children then.
    if rustix::process::geteuid().is_root()
        && !sys::mutant::on("c12")
        && let Err(error) = sys::prctl::set_undumpable()
    {
        tracing::warn!(%error, "a crash may leave a core");
    }
    match serve(server, &config, isolation) {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(%error, "executor ends");
            1
        }
    }
}

/// With a Nomad host the log is in the task's directory: a link that the task planted there is not followed, and a FIFO does not
/// block this process.
fn open_log(path: &Path) -> io::Result<File> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NONBLOCK;
    // The log quotes commands, so only its owner may read it.
    let root = Root::open(dir)?;
    let open = |flags| root.open_beneath(Path::new(name), flags, Mode::from_raw_mode(0o600)).map(File::from);
    let mut file = open(flags)?;
    let mut metadata = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if metadata.is_file() && metadata.uid() != own && metadata.uid() != 0 && !sys::mutant::on("d76") {
        // The user who created it can read it.
        rustix::fs::unlinkat(&root, name, AtFlags::empty())?;
        file = open(flags | OFlags::EXCL)?;
        metadata = file.metadata()?;
    }
    let plain = metadata.is_file() && metadata.nlink() == 1;
    let error = || Err(io::Error::other("not a plain file with one name"));
    if plain || is_null_device(&metadata) { Ok(file) } else { error() }
}

/// The file that a host names if it wants no log.
fn is_null_device(metadata: &std::fs::Metadata) -> bool {
    metadata.file_type().is_char_device() && metadata.rdev() == rustix::fs::makedev(1, 3)
}

fn log_to(config: &ExecutorConfig, isolation: Isolation, log: File) {
    let module = match isolation {
        Isolation::Universal => "executor",
        Isolation::Isolated => "isolated_executor",
    };
    let least = Level::from_name(&config.log_level).unwrap_or(Level::Debug);
    start_logging(module, least, log);
}

fn serve(mut server: Server, config: &ExecutorConfig, isolation: Isolation) -> anyhow::Result<()> {
    // Orphans of the task become children of this process instead of init's, so that they are found and killed.
    sys::prctl::become_subreaper()?;
    let cgroups = CgroupFs::detect(Path::new("/sys/fs/cgroup"))?;
    let compute = Compute { total_mhz: config.compute.total_mhz, cores: config.compute.cores };
    let notices = config.notices.and_then(Notices::inherited);
    let executor = Arc::new(LocalExecutor::new(isolation, compute, cgroups).telling(notices));
    server.announce()?;
    // If that fails, the launch fails the same way and reports it.
    if let Some(Err(error)) = config.network.as_deref().map(|path| executor.enter_network(path)) {
        tracing::warn!(%error, "could not enter the network");
    }
    // A host that sends `prepare` is one of ours, and has already read the program ahead.
    let ready = match &config.prepare {
        Some(PrepareConfig { cgroup, cpuset, cores, cgroup_namespace, host_ids }) => {
            let host_ids = HostIds::new(*host_ids);
            executor.prepare(cgroup, cpuset, cores, *cgroup_namespace, host_ids).map_err(anyhow::Error::from)
        }
        None => sys::exe::read_ahead().map_err(anyhow::Error::from),
    };
    if let Err(error) = ready {
        tracing::warn!(%error, "could not prepare the launch");
    }
    let runtime = super::runtime()?;
    crate::sys::task::block_on(&runtime, async {
        let signals = Signals::catch(&[libc::SIGCHLD, libc::SIGTERM])?;
        crate::sys::task::spawn(hear(signals, server.stop_handle(), Arc::clone(&executor)));
        crate::sys::task::spawn(stop_without_host(server.stop_handle(), Arc::clone(&executor)));
        let routes = Routes::new(ExecutorService::server(Arc::clone(&executor)));
        let told = Arc::clone(&executor);
        let ringer: Ringer = Arc::new(move |known| {
            let executor = Arc::clone(&told);
            boxed(async move { executor.changed(known).await })
        });
        let served: Result<(), ServeError> = server.serve_ringing(routes, ringer).await;
        executor.close().await;
        Ok(served?)
    })
}

/// If a host dies before its launch request, no later process knows of this executor. Its end of our stdout is closed then.
async fn stop_without_host(stop: Stop, executor: Arc<LocalExecutor>) {
    let watched = rustix::io::fcntl_dupfd_cloexec(std::io::stdout(), 3).map_err(io::Error::from);
    let watched = watched.and_then(|stdout| sys::watch::register(Arc::new(stdout), Interest::ERROR));
    // If stdout is not a pipe, it has no other end to watch.
    let Ok(watched) = watched else { return };
    // A launch that comes after all would be ended with the executor, and with it a task that it has taken over.
    if watched.ready(Interest::ERROR).await.is_ok() && executor.retire() {
        tracing::warn!("the host is gone before it launched a task");
        stop.stop();
    }
}

/// Ends the task first, then the server: calls that wait for the task are answered.
async fn end(stop: Stop, executor: Arc<LocalExecutor>) {
    if tokio::time::timeout(TASK_ENDS, executor.close()).await.is_err() {
        tracing::warn!("the task does not end in time");
    }
    stop.stop();
}

/// SIGTERM ends the task and the server. Orphans of the task that have ended are reaped here; the main process and those of
/// sessions are reaped by the code that waits for them. The kernel reports one ended child at a time, so one of those hides the
/// children behind it until it has been reaped.
async fn hear(mut signals: Signals, stop: Stop, executor: Arc<LocalExecutor>) {
    loop {
        tokio::select! {
            signal = signals.next() => if signal == libc::SIGTERM {
                crate::sys::task::spawn(end(stop.clone(), Arc::clone(&executor)));
            },
            () = executor.reaped() => {}
        }
        while let Some(pid) = sys::process::peek_ended_child() {
            if executor.owns(pid) {
                break;
            }
            sys::process::reap(pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TestExecutor_Shutdown_Exit`: a host that wants no log names the null device.
    #[test]
    fn logs_go_to_a_file_or_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open_log(&dir.path().join("executor.out")).is_ok());
        assert!(open_log(Path::new("/dev/null")).is_ok());
        std::os::unix::fs::symlink("executor.out", dir.path().join("link")).unwrap();
        for bad in [dir.path().join("link"), dir.path().to_owned(), "/dev/zero".into()] {
            assert!(open_log(&bad).is_err(), "{}", bad.display());
        }
    }
}
