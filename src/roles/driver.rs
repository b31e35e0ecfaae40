//! The roles `exec`, `raw_exec`, `java` and `docker`: a driver as a plugin of a Nomad agent.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;

use crate::cgroup::CgroupFs;
use crate::driver::{
    self, DockerDriver, Driver, ExecDriver, Host, JavaDriver, OnExecutor, Plan, RawExecDriver, Settings,
};
use crate::plugin::{Level, Server, start_logging};
use crate::sys;
use crate::sys::mutant;
use crate::sys::owned::OwnDir;

/// The drivers in this program.
pub(super) const NAMES: [&str; 4] = ["exec", "raw_exec", "java", "docker"];

/// Runs as a Nomad task driver for the agent that started this process.
pub(super) fn run(name: &str) -> i32 {
    let make: fn(Settings) -> Arc<dyn Driver> = match name {
        "exec" => |settings| Arc::new(ExecDriver::new(settings)),
        "raw_exec" => |settings| Arc::new(RawExecDriver::disabled(settings)),
        "java" => |settings| Arc::new(JavaDriver::new(settings)),
        "docker" => |settings| Arc::new(DockerDriver::new(settings)),
        _ => {
            eprintln!("agentbin: there is no driver {name:?}; the drivers are {}", NAMES.join(", "));
            return 1;
        }
    };
    serve_driver(make)
}

/// The `main` function for a driver that is a [`Plan`]: the roles of this crate, then [`serve_driver`].
#[must_use]
pub fn driver_main<P: Plan>() -> ExitCode {
    super::init();
    let status = serve_driver(|settings| Arc::new(OnExecutor::<P>::new(settings)));
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}

/// Serves the driver from `make` as a Nomad plugin, until the agent that started this process ends it, and returns the exit status:
/// 0, or 1 when it could not be served. Started manually, it prints an explanation to stderr and returns 1.
///
/// Call it in `main`, after [`init`](crate::init). Log lines (`tracing`) go to the agent's log. Executors listen in
/// `/run/agentbin/driver` (without root in `$XDG_RUNTIME_DIR/agentbin/driver`), so that a later process can find them.
pub fn serve_driver(make: impl FnOnce(Settings) -> Arc<dyn Driver>) -> i32 {
    let server = match Server::from_env() {
        Ok(server) => server,
        Err(error) => {
            eprintln!("{error}");
            eprintln!(
                "This is a Nomad task driver: copy it into the agent's plugin_dir and name it in a plugin block."
            );
            eprintln!("To call it by hand: agentbin plugin launch BINARY.");
            return 1;
        }
    };
    sys::prctl::set_name("agentbin-driver");
    start_logging("agentbin", Level::Trace, std::io::stderr());
    let served = super::runtime().map_err(anyhow::Error::from).and_then(|runtime| {
        crate::sys::task::block_on(&runtime, async {
            let driver = make(settings()?);
            Ok(driver::serve(server, driver).await?)
        })
    });
    match served {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "driver ends");
            1
        }
    }
}

/// Settings that a driver determines itself; the agent sends the others.
fn settings() -> anyhow::Result<Settings> {
    Ok(Settings {
        cgroups: CgroupFs::detect(Path::new("/sys/fs/cgroup")).context("look at the cgroups")?,
        compute: crate::alloc::compute(),
        socket_dir: socket_dir()?,
        host: Host::NOMAD,
    })
}

/// Only its owner may enter the directory: a process that can connect to an executor controls its task. Every directory on the way
/// that we create must be ours: if another user had created one, that user could replace our directory in it.
fn socket_dir() -> anyhow::Result<PathBuf> {
    let own = rustix::process::geteuid();
    let (base, top) = match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        _ if own.is_root() => (PathBuf::from("/run"), None),
        Some(dir) => (PathBuf::from(dir), None),
        None => (std::env::temp_dir(), Some(format!("agentbin-{}", own.as_raw()))),
    };
    let below: Vec<&str> = top.as_deref().into_iter().chain(["agentbin", "driver"]).collect();
    let path = base.join(below.join("/"));
    let error = || {
        let how = if own.is_root() { "" } else { " (XDG_RUNTIME_DIR names another place)" };
        format!("make the directory of the executors' sockets {}{how}", path.display())
    };
    DirBuilder::new().recursive(true).mode(0o700).create(&base).with_context(error)?;
    if mutant::on("d65") {
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
    } else {
        let mut dir = OwnDir::open_shared(&base).with_context(error)?;
        for name in below {
            dir = dir.make(name.as_ref(), 0o700).with_context(error)?;
        }
    }
    let metadata = std::fs::symlink_metadata(&path).with_context(error)?;
    anyhow::ensure!(
        metadata.is_dir() && metadata.uid() == own.as_raw() && metadata.mode() & 0o777 == 0o700,
        "{} must be a directory that only user {} may enter; remove it, or fix its owner and mode",
        path.display(),
        own.as_raw()
    );
    Ok(path)
}
