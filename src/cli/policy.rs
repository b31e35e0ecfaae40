//! `--isolation-minimum`, `--allow-driver` and `--allow-writable-programs`: what whoever runs a job lets it ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::bail;

use super::RunArgs;
use super::config::{Config, Plugin};
use super::plugins::Plugins;
use crate::driver::hclspec::driver_config;
use crate::driver::policy::{self, Minimum};
use crate::driver::{Driver, DriverError};
use crate::spec::{DriverConfig, Job};

/// What `--isolation-minimum` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Level {
    /// As `isolation = "default"`
    Default,
    /// As `isolation = "strict"`
    Strict,
}

impl Level {
    pub(super) const fn minimum(self) -> Minimum {
        match self {
            Level::Default => Minimum::Default,
            Level::Strict => Minimum::Strict,
        }
    }

    /// The one that lets tasks ask for less.
    pub(super) fn stricter(one: Option<Level>, other: Option<Level>) -> Option<Level> {
        match (one, other) {
            (Some(Level::Strict), _) | (_, Some(Level::Strict)) => Some(Level::Strict),
            (Some(Level::Default), _) | (_, Some(Level::Default)) => Some(Level::Default),
            (None, None) => None,
        }
    }
}

/// Tells the drivers of the job what no task may ask for, and what is let through; refuses tasks of drivers that do not hold
/// a task so.
///
/// # Errors
/// Each such task, with its place in the job file; and what is wrong with the configuration of a driver.
pub(super) fn demand(
    args: &RunArgs,
    operator: &Config,
    job: &Job,
    drivers: &BTreeMap<String, Arc<dyn Driver>>,
    plugins: &Plugins,
) -> anyhow::Result<BTreeMap<String, DriverConfig>> {
    let mut told = BTreeMap::new();
    let minimum = args.isolation_minimum.map(Level::minimum);
    let allowed =
        Allowed { drivers: &args.allow_driver, writable_programs: args.allow_writable_programs, raw_exec: true };
    let mut problems = Vec::new();
    for (name, Plugin { pos, .. }) in &operator.plugins {
        if !drivers.contains_key(name) && !plugins.names.contains(name) {
            let known = drivers.keys().cloned().collect::<Vec<_>>().join(", ");
            problems.push(format!("{pos}: plugin {name:?}: there is no such driver; known are {known}"));
        }
    }
    for task in job.groups.iter().flat_map(|group| &group.tasks) {
        // One that is not there is another problem.
        let Some(driver) = drivers.get(&task.driver) else { continue };
        if let Some(minimum) = minimum
            && let Err(problem) = policy::admit(&task.driver, !driver.is_external(), minimum, &args.allow_driver)
        {
            problems.push(format!("{}: task {:?}: {problem}", task.pos, task.name));
        } else if driver.is_external() {
            // It got its configuration when it was started.
        } else if let Some(config) = config(&**driver, operator.plugins.get(&task.driver), minimum, &allowed)? {
            driver.set_config(&config, None)?;
            told.insert(task.driver.clone(), config);
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    Ok(told)
}

/// What is let through besides.
struct Allowed<'a> {
    /// Drivers that hold tasks less than the minimum.
    drivers: &'a [String],
    /// Programs in directories that others can write to.
    writable_programs: bool,
    /// Tasks of `raw_exec`, unless the operator says otherwise.
    raw_exec: bool,
}

/// Tells all drivers what the operator says of them; `raw_exec` runs tasks where he says so, or `raw_exec` is true.
///
/// # Errors
/// The configuration of a driver that there is not, or that is wrong.
pub(super) fn configure(
    operator: &Config,
    drivers: &BTreeMap<String, Arc<dyn Driver>>,
    plugins: &Plugins,
    raw_exec: bool,
) -> anyhow::Result<()> {
    let is_unknown = |name: &str| !drivers.contains_key(name) && !plugins.names.contains(name);
    if let Some((name, Plugin { pos, .. })) = operator.plugins.iter().find(|(name, _)| is_unknown(name)) {
        let known = drivers.keys().cloned().collect::<Vec<_>>().join(", ");
        bail!("{pos}: plugin {name:?}: there is no such driver; known are {known}");
    }
    let minimum = operator.isolation_minimum.map(Level::minimum);
    for (name, driver) in drivers.iter().filter(|(_, driver)| !driver.is_external()) {
        let plugin = operator.plugins.get(name);
        let allowed = Allowed { drivers: &[], writable_programs: false, raw_exec };
        let mut config = config(&**driver, plugin, minimum, &allowed)?.unwrap_or_default();
        if name == "raw_exec" && !config.values.contains_key("enabled") {
            config.values.insert("enabled".to_owned(), raw_exec.into());
        }
        if !config.values.is_empty() {
            driver.set_config(&config, None)?;
        }
    }
    Ok(())
}

/// What the operator has written into the plugin's configuration, with what the command line says besides. `None` where
/// nothing is to be said.
fn config(
    driver: &dyn Driver,
    plugin: Option<&Plugin>,
    minimum: Option<Minimum>,
    allowed: &Allowed<'_>,
) -> Result<Option<DriverConfig>, DriverError> {
    let mut config = match (plugin, driver.config_schema()) {
        (Some(plugin), Some(schema)) => driver_config(&schema, &plugin.body)?,
        _ => DriverConfig::default(),
    };
    let name = driver.name();
    let is_written = |key: &str| plugin.is_some_and(|plugin| plugin.keys.iter().any(|written| written == key));
    if let Some(minimum) = minimum.filter(|_| policy::is_ours(name)) {
        // A stricter one of the plugin's own stays.
        let own = config.values.get("isolation_minimum").and_then(|own| own.as_str());
        if own != Some(Minimum::Strict.name()) {
            config.values.insert("isolation_minimum".to_owned(), minimum.name().into());
        }
        if !is_written("allow_drivers") || !allowed.drivers.is_empty() {
            config.values.insert("allow_drivers".to_owned(), allowed.drivers.to_vec().into());
        }
    }
    if allowed.writable_programs && matches!(name, "exec" | "java" | "raw_exec") {
        config.values.insert("allow_writable_programs".to_owned(), true.into());
    }
    if config.values.is_empty() {
        return Ok(None);
    }
    // A run has it unless the operator says otherwise; an agent has it only where he says so.
    if name == "raw_exec" && !is_written("enabled") {
        config.values.insert("enabled".to_owned(), allowed.raw_exec.into());
    }
    Ok(Some(config))
}
