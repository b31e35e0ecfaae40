//! `--isolation-minimum`, `--allow-driver` and `--allow-writable-programs`: what the operator of a run lets its job ask for.

use std::sync::Arc;

use anyhow::bail;

use super::RunArgs;
use super::config::{Config, Plugin};
use super::level::Level;
use super::plugins::Plugins;
use crate::driver::hclspec::driver_config;
use crate::driver::policy::{self, Minimum};
use crate::driver::{Driver, DriverError};
use crate::spec::collections::BTreeMap;
use crate::spec::{DriverConfig, Job};

/// Configures the drivers of the job with the minimum and the exceptions; refuses tasks of drivers that do not isolate a task at
/// that level.
///
/// # Errors
/// Each such task, with its position in the job file; and an invalid configuration of a driver.
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
        // A missing driver is reported elsewhere.
        let Some(driver) = drivers.get(&task.driver) else { continue };
        if let Some(minimum) = minimum
            && let Err(problem) = policy::admit(&task.driver, !driver.is_external(), minimum, &args.allow_driver)
        {
            problems.push(format!("{}: task {:?}: {problem}", task.pos, task.name));
        } else if driver.is_external() {
            // A plugin got its configuration when it was started.
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

/// The exceptions that are allowed.
struct Allowed<'a> {
    /// Drivers that isolate tasks less than the minimum.
    drivers: &'a [String],
    /// Programs in directories that others can write to.
    writable_programs: bool,
    /// Tasks of `raw_exec`, unless the operator's configuration says otherwise.
    raw_exec: bool,
}

/// Configures all drivers as the operator says; `raw_exec` runs tasks if the operator enables it, or if `raw_exec` is true.
///
/// # Errors
/// The configuration of a driver that does not exist, or an invalid one.
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

/// The operator's configuration of a plugin, merged with the command line. `None` if there is nothing to configure.
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
        // A stricter minimum in the plugin's own configuration stays.
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
    // In a run it is enabled unless the operator says otherwise; in an agent only if the operator enables it.
    if name == "raw_exec" && !is_written("enabled") {
        config.values.insert("enabled".to_owned(), allowed.raw_exec.into());
    }
    Ok(Some(config))
}
