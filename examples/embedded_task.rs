//! A program that runs tasks of its own: they run in the executor that it was compiled with.
//!
//! `cargo run --example embedded_task -- /bin/echo hello` runs a command isolated when root, plainly otherwise, prints
//! what it wrote and ends with its status.

use std::path::Path;
use std::process::ExitCode;

use agentbin::cgroup::CgroupFs;
use agentbin::driver::{Driver, ExecDriver, Host, RawExecDriver, Settings, TaskConfig};
use agentbin::executor::Compute;
use agentbin::spec::collections::BTreeMap;
use agentbin::spec::{DriverConfig, LogCollection};

fn main() -> anyhow::Result<ExitCode> {
    // From here on this program is also an executor, a shim and a logmon.
    agentbin::init();

    let mut command = std::env::args().skip(1);
    let program = command.next().unwrap_or_else(|| "/bin/echo".to_owned());
    let args: Vec<String> = command.collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(program, args))
}

async fn run(program: String, args: Vec<String>) -> anyhow::Result<ExitCode> {
    // An allocation's directory, as an agent would have made it.
    let dir = tempfile::tempdir()?;
    let alloc_dir = dir.path().join("alloc");
    for folder in ["alloc/logs", "task/local"] {
        std::fs::create_dir_all(alloc_dir.join(folder))?;
    }
    let root = rustix::process::geteuid().is_root();
    let settings = Settings {
        cgroups: CgroupFs::detect(Path::new("/sys/fs/cgroup"))?,
        compute: Compute { total_mhz: 1000, cores: 1 },
        socket_dir: dir.path().to_owned(),
        host: Host::OWN,
    };
    let driver: Box<dyn Driver> =
        if root { Box::new(ExecDriver::new(settings)) } else { Box::new(RawExecDriver::new(settings)) };

    let mut config = DriverConfig::default();
    config.values.insert("command".into(), program.into());
    config.values.insert("args".into(), args.into());
    let task = TaskConfig {
        id: "external/task/1".to_owned(),
        name: "task".to_owned(),
        alloc_id: "external".to_owned(),
        config,
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        cgroup: if root { format!("nomad/external-{}", std::process::id()).into() } else { "".into() },
        alloc_dir: alloc_dir.clone(),
        logs: Some(LogCollection {
            dir: alloc_dir.join("alloc/logs"),
            stdout_file: "task.stdout".to_owned(),
            stderr_file: "task.stderr".to_owned(),
            max_files: 1,
            max_file_size_bytes: 1 << 20,
            ..LogCollection::default()
        }),
        ..TaskConfig::default()
    };
    driver.start_task(&task).await?;
    let exit = driver.wait_task(&task.id).await?;
    driver.destroy_task(&task.id, true).await?;
    print!("{}", std::fs::read_to_string(alloc_dir.join("alloc/logs/task.stdout.0"))?);
    eprint!("{}", std::fs::read_to_string(alloc_dir.join("alloc/logs/task.stderr.0"))?);
    Ok(ExitCode::from(u8::try_from(exit.exit_code).unwrap_or(1)))
}
