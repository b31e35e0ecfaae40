//! `--plugin-dir`: external driver plugins besides the built-in drivers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use super::complain;
use super::config::{Config, Plugin};
use super::drivers::{self, unknown_driver};
use super::shown::Texts;
use crate::alloc::chain;
use crate::alloc::machine::{self, Drivers};
use crate::driver::catalog::{self, CatalogError, Found, Log, Version, prefers_external};
use crate::driver::hclspec::{Body, driver_config};
use crate::driver::{Driver, ExternalDriver, Settings};
use crate::jobspec::{Diagnostic, Parsed};
use crate::plugin::{HclogLine, Level};
use crate::spec::collections::{BTreeMap, BTreeSet};
use crate::spec::{DriverConfig, LONGEST_MESSAGE, shortened};

/// The directory of plugins, and their configuration.
pub(super) struct Given<'a> {
    /// `None`: there are no plugins.
    pub(super) dir: Option<&'a Path>,
    pub(super) config: &'a Config,
    /// Prints no warnings.
    pub(super) quiet: bool,
    /// Whether their tasks outlive this process.
    pub(super) outlive: bool,
}

/// Which plugins are started.
#[derive(Debug)]
pub(super) enum Wanted {
    All,
    These(BTreeSet<String>),
}

impl Wanted {
    fn has(&self, name: &str) -> bool {
        matches!(self, Wanted::All) || self.names(name)
    }

    /// Whether this driver is wanted by name.
    fn names(&self, name: &str) -> bool {
        matches!(self, Wanted::These(names) if names.contains(name))
    }
}

/// What the next supervisor of a run needs to know of its plugins.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Blocks {
    dir: Option<PathBuf>,
    /// By the names of their programs.
    blocks: BTreeMap<String, Block>,
}

#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
struct Block {
    driver: String,
    args: Vec<OsString>,
    config: DriverConfig,
}

impl Blocks {
    /// Starts the same plugins again.
    ///
    /// # Errors
    /// As [`Plugins::start`].
    pub(super) async fn start(&self, settings: &Settings, drivers: &mut Drivers) -> anyhow::Result<Plugins> {
        let mut config = Config::default();
        for (name, Block { args, config: body, .. }) in &self.blocks {
            let (keys, args, pos) = (Vec::new(), args.clone(), body.pos.clone());
            config.plugins.insert(name.clone(), Plugin { body: Body::of(body, true)?, keys, args, pos });
        }
        let given = Given { dir: self.dir.as_deref(), config: &config, quiet: true, outlive: true };
        Plugins::start(
            &given,
            &Wanted::These(self.blocks.values().map(|block| block.driver.clone()).collect()),
            settings,
            drivers,
        )
        .await
    }
}

/// The running plugins.
#[derive(Debug, Default)]
pub(super) struct Plugins {
    running: Vec<(String, Arc<ExternalDriver>)>,
    /// The names of all programs and drivers in the directory: a block may use either.
    pub(super) names: BTreeSet<String>,
}

impl Plugins {
    /// Asks each program of the directory for its info, and starts those whose drivers are `wanted`. They are added to the drivers.
    /// A program that cannot be used is reported, and left out.
    ///
    /// # Errors
    /// A directory or program that others may write to; a plugin that cannot be used although it is wanted or named by a block.
    pub(super) async fn start(
        given: &Given<'_>,
        wanted: &Wanted,
        settings: &Settings,
        drivers: &mut Drivers,
    ) -> anyhow::Result<Plugins> {
        let mut plugins = Plugins::default();
        match plugins.start_each(given, wanted, settings, drivers).await {
            Ok(()) => Ok(plugins),
            Err(error) => {
                plugins.end().await;
                Err(error)
            }
        }
    }

    async fn start_each(
        &mut self,
        given: &Given<'_>,
        wanted: &Wanted,
        settings: &Settings,
        drivers: &mut Drivers,
    ) -> anyhow::Result<()> {
        let Some(dir) = given.dir else { return Ok(()) };
        let log = log(given.quiet);
        for (file, path) in catalog::programs(dir).context("--plugin-dir")? {
            self.names.insert(file.clone());
            let block = given.config.plugins.get(&file);
            let args = block.map(|block| block.args.clone()).unwrap_or_default();
            let found = match catalog::examine(&file, &path, &args, &log).await {
                Ok(found) => found,
                Err(error) if block.is_some() || wanted.names(&file) => return Err(failed(&error, &path)),
                Err(error) => {
                    if !given.quiet {
                        complain(&format!("warning: {} is left out: {}", path.display(), chain(&error)));
                    }
                    continue;
                }
            };
            let name = found.info.name.clone();
            self.names.insert(name.clone());
            if !wanted.has(&name) || !is_chosen(&found, &path, drivers, given.quiet)? {
                continue;
            }
            let config = block.or_else(|| given.config.plugins.get(&name)).map(|block| &block.body);
            let started = async {
                let config = found.check(config, &log).await?;
                ExternalDriver::start(found, config, settings.clone(), given.outlive, Arc::clone(&log)).await
            };
            let driver = Arc::new(started.await.map_err(|error| failed(&error, &path))?);
            drivers.insert(name, Arc::clone(&driver) as Arc<dyn Driver>);
            self.running.push((file, driver));
        }
        Ok(())
    }

    /// What the next supervisor needs to start them again.
    ///
    /// # Errors
    /// When the path of the directory cannot be determined.
    pub(super) fn blocks(&self, given: &Given<'_>) -> anyhow::Result<Blocks> {
        let mut blocks = BTreeMap::new();
        for (file, driver) in &self.running {
            let block = given.config.plugins.get(file).or_else(|| given.config.plugins.get(driver.name()));
            let config = match (block, driver.config_schema()) {
                (Some(block), Some(schema)) => driver_config(&schema, &block.body)?,
                _ => DriverConfig::default(),
            };
            let args = block.map(|block| block.args.clone()).unwrap_or_default();
            blocks.insert(file.clone(), Block { driver: driver.name().to_owned(), args, config });
        }
        let absolute = |dir: &Path| std::path::absolute(dir).context("--plugin-dir: cannot find out where it is");
        Ok(Blocks { dir: given.dir.map(absolute).transpose()?, blocks })
    }

    /// Stops the plugins.
    pub(super) async fn end(&self) {
        for (_, driver) in &self.running {
            driver.end().await;
        }
    }
}

/// Whether a plugin replaces the existing driver of the same name.
fn is_chosen(found: &Found, path: &Path, drivers: &Drivers, quiet: bool) -> anyhow::Result<bool> {
    let name = &found.info.name;
    let Some(there) = drivers.get(name) else { return Ok(true) };
    if there.is_external() {
        anyhow::bail!(
            "--plugin-dir: {} is a second plugin of the driver {name}; remove one of the two",
            path.display()
        );
    }
    let is_newer = Version::parse(there.version()).is_none_or(|own| prefers_external(&own, &found.version));
    if !quiet {
        let (path, version, own) = (path.display(), &found.version, there.version());
        complain(&if is_newer {
            format!(
                "driver {name}: the plugin {path}, version {version}, takes the place of the built-in one, version {own}"
            )
        } else {
            format!(
                "driver {name}: the plugin {path} is not used: its version {version} is older than {own} of the built-in one"
            )
        });
    }
    Ok(is_newer)
}

fn failed(error: &CatalogError, path: &Path) -> anyhow::Error {
    anyhow::anyhow!("{}: {}", path.display(), chain(error))
}

/// Prints warnings and errors of a plugin.
fn log(quiet: bool) -> Log {
    Arc::new(move |name: &str, line: HclogLine| {
        if line.level >= Level::Warn && !quiet {
            let pairs = line.pairs.iter().flat_map(|(key, value)| [" ", key.as_str(), "=", value.as_str()]);
            let text = format!("plugin {name}: {}{}", line.message, pairs.collect::<String>());
            complain(&shortened(&text, LONGEST_MESSAGE));
        }
    })
}

/// Plugins that are only queried before a run, without a task, and an event loop for them.
pub(super) struct Asked {
    runtime: tokio::runtime::Runtime,
    pub(super) plugins: Plugins,
    /// These plugins' drivers, and those that were given.
    pub(super) drivers: Drivers,
}

impl Asked {
    /// As [`Plugins::start`], blocking this thread.
    ///
    /// # Errors
    /// As [`Plugins::start`].
    pub(super) fn start(
        given: &Given<'_>,
        wanted: &Wanted,
        settings: &Settings,
        mut drivers: Drivers,
    ) -> anyhow::Result<Asked> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start")?;
        let plugins = crate::sys::task::block_on(&runtime, Plugins::start(given, wanted, settings, &mut drivers))?;
        Ok(Asked { runtime, plugins, drivers })
    }

    /// Runs a future to its end.
    pub(super) fn hear<T>(&self, asking: impl Future<Output = T>) -> T {
        crate::sys::task::block_on(&self.runtime, asking)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        crate::sys::task::block_on(&self.runtime, self.plugins.end());
    }
}

/// The directory of plugins: of the command line, or else of the configuration.
pub(super) fn dir(given: Option<&Path>, config: &Config) -> Option<PathBuf> {
    given.map(Path::to_owned).or_else(|| config.plugin_dir.clone())
}

/// Refuses drivers that do not exist, and tasks whose configuration their driver refuses.
///
/// # Errors
/// As [`Asked::start`].
pub(super) fn check(parsed: &mut Parsed, given: &Given<'_>, texts: &Texts) -> anyhow::Result<()> {
    let (drivers, settings) = machine::drivers_to_ask(None)?;
    let asked = Asked::start(given, &Wanted::These(drivers::drivers(&parsed.job)), &settings, drivers)?;
    for task in parsed.job.groups.iter().flat_map(|group| &group.tasks) {
        match asked.drivers.get(&task.driver) {
            None => {
                parsed.refusals.push(Diagnostic::new(&task.pos, unknown_driver(&task.driver, &asked.drivers)));
            }
            Some(driver) => {
                let wrong = driver.validate(&task.config).err();
                let wrong = wrong.map(|error| texts.diagnostics(&chain(&error), &task.config.pos));
                parsed.refusals.extend(wrong.into_iter().flatten());
            }
        }
    }
    Ok(())
}
