//! `--isolation-minimum`, `--allow-driver` and `--allow-writable-programs`: what whoever runs a job lets it ask for.

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

/// Tells the drivers of the job what no task may ask for, and what is let through; refuses tasks of drivers that do not hold
/// a task so.
///
/// # Errors
/// Each such task, with its place in the job file.
pub(super) fn demand(args: &RunArgs, job: &Job, machine: &Machine) -> anyhow::Result<()> {
    let minimum = args.isolation_minimum.map(|level| match level {
        Level::Default => Minimum::Default,
        Level::Strict => Minimum::Strict,
    });
    let mut problems = Vec::new();
    for task in job.groups.iter().flat_map(|group| &group.tasks) {
        // One that is not there is another problem.
        let Some(driver) = machine.drivers.get(&task.driver) else { continue };
        if let Some(minimum) = minimum
            && let Err(problem) = policy::admit(&task.driver, minimum, &args.allow_driver)
        {
            problems.push(format!("{}: task {:?}: {problem}", task.pos, task.name));
        } else if let Some(config) = config(&task.driver, minimum, args) {
            driver.set_config(&config, None)?;
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(())
}

/// What an operator would write into the plugin's configuration; all else is as without one. `None` where nothing is to be
/// said.
fn config(driver: &str, minimum: Option<Minimum>, args: &RunArgs) -> Option<DriverConfig> {
    let mut config = DriverConfig::default();
    if let Some(minimum) = minimum.filter(|_| policy::is_ours(driver)) {
        config.values.insert("isolation_minimum".to_owned(), minimum.name().into());
        config.values.insert("allow_drivers".to_owned(), args.allow_driver.clone().into());
    }
    if args.allow_writable_programs && matches!(driver, "exec" | "java" | "raw_exec") {
        config.values.insert("allow_writable_programs".to_owned(), true.into());
    }
    if config.values.is_empty() {
        return None;
    }
    if driver == "raw_exec" {
        config.values.insert("enabled".to_owned(), true.into());
    }
    Some(config)
}
