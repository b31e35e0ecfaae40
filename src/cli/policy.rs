//! `--isolation-minimum` and `--allow-driver`: what whoever runs a job lets it ask for.

use anyhow::bail;

use super::RunArgs;
use crate::alloc::Machine;
use crate::driver::policy::{self, Minimum};
use crate::spec::{DriverConfig, Job};

/// What `--isolation-minimum` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Level {
    /// As `isolation = "default"`
    Default,
    /// As `isolation = "strict"`
    Strict,
}

/// Tells the drivers of the job what no task may ask for; refuses tasks of drivers that do not hold a task so.
///
/// # Errors
/// Each such task, with its place in the job file.
pub(super) fn demand(args: &RunArgs, job: &Job, machine: &Machine) -> anyhow::Result<()> {
    let minimum = match args.isolation_minimum {
        None => return Ok(()),
        Some(Level::Default) => Minimum::Default,
        Some(Level::Strict) => Minimum::Strict,
    };
    let mut problems = Vec::new();
    for task in job.groups.iter().flat_map(|group| &group.tasks) {
        // One that is not there is another problem.
        let Some(driver) = machine.drivers.get(&task.driver) else { continue };
        if let Err(problem) = policy::admit(&task.driver, minimum, &args.allow_driver) {
            problems.push(format!("{}: task {:?}: {problem}", task.pos, task.name));
        } else if policy::is_ours(&task.driver) {
            driver.set_config(&config(&task.driver, minimum, &args.allow_driver), None)?;
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(())
}

/// What an operator would write into the plugin's configuration; all else is as without one.
fn config(driver: &str, minimum: Minimum, allowed: &[String]) -> DriverConfig {
    let mut config = DriverConfig::default();
    config.values.insert("isolation_minimum".to_owned(), minimum.name().into());
    config.values.insert("allow_drivers".to_owned(), allowed.into());
    if driver == "raw_exec" {
        config.values.insert("enabled".to_owned(), true.into());
    }
    config
}
