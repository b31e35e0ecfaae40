//! The driver plugins of an agent: finds them in a directory, compares versions, configures and starts them, restarts them when
//! they die, and lets a later process reattach to them.
//!
//! The program of a plugin is started three times, as Nomad does: to query its info and schema ([`examine`]), to validate its
//! configuration ([`Found::check`]), and to serve tasks ([`Found::start`]).

use std::cmp::Ordering;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use super::hclspec::{Body, Schema};
use super::{Driver as _, DriverClient, DriverError, NodeConfig, PluginClient, PluginInfo};
use crate::plugin::{Client, HclogLine, HostError, Launch, Program, Reattach};
use crate::spec::collections::BTreeMap;
use crate::spec::{PLUGIN_MARK, json};
use crate::sys::mutant;
use crate::sys::owned::{self, OwnDir};
use crate::sys::task::JoinHandle;

/// The only version of the driver interface.
pub const API_VERSION: &str = "v0.1.0";
/// Timeout of a plugin's answers to questions about itself and its configuration.
const ANSWER_PATIENCE: Duration = Duration::from_mins(1);
/// First and longest pause before a plugin is restarted.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(5), Duration::from_mins(2));
/// The format of [`Record`] that this program writes.
const RECORD_VERSION: u32 = 1;
/// Limit of programs in a plugin directory, because each of them is started.
const MOST_PROGRAMS: usize = 100;

/// For a plugin that is started only to be queried: no later process has to find it.
const BRIEF: Bond = Bond { dies_with_us: true, sockets: None };

/// Gets the log lines of a plugin, with its name.
pub type Log = Arc<dyn Fn(&str, HclogLine) + Send + Sync>;

/// Why a plugin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The directory of plugins cannot be read.
    #[error("cannot look for plugins in {}", dir.display())]
    Scan {
        /// Which directory.
        dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The plugin does not start, or cannot be reached.
    #[error("plugin {name}")]
    Host {
        /// Which plugin.
        name: String,
        /// Why not.
        source: HostError,
    },
    /// A call failed.
    #[error("plugin {name}: {what}")]
    Call {
        /// Which plugin.
        name: String,
        /// Which call.
        what: &'static str,
        /// Why it failed.
        source: DriverError,
    },
    /// The program is not a driver plugin, or speaks another version of the interface.
    #[error("plugin {name} cannot be used: {reason}")]
    Unfit {
        /// Which plugin.
        name: String,
        /// Why not, and the fix.
        reason: String,
    },
}

/// The operator's `plugin` block for one plugin.
#[derive(Debug, Clone, Default)]
pub struct Block {
    /// Arguments of its program.
    pub args: Vec<OsString>,
    /// Its configuration; `None` is an empty one.
    pub config: Option<Body>,
}

/// How the process of a serving plugin is bound to this one.
#[derive(Debug, Clone, Default)]
pub struct Bond {
    /// The kernel kills it when the thread that starts it ends.
    pub dies_with_us: bool,
    /// Directory of its sockets. The plugin and the helpers that it starts carry this path as [`PLUGIN_MARK`] in their
    /// environment, which identifies them later. `None` uses the temporary directory, without a mark.
    pub sockets: Option<PathBuf>,
}

impl Bond {
    /// The environment variable that marks processes as belonging to a plugin of this owner.
    pub(super) fn mark(&self) -> Option<(OsString, OsString)> {
        self.sockets.as_ref().map(|sockets| (PLUGIN_MARK.into(), sockets.into()))
    }
}

/// The programs in `dir`: regular files with an execute bit, by name and sorted by name. Symbolic links are followed.
///
/// # Errors
/// [`CatalogError::Scan`] when the directory cannot be read, or when a user other than this one and root could change it, a
/// directory above it, or one of the programs.
pub fn programs(dir: &Path) -> Result<Vec<(String, PathBuf)>, CatalogError> {
    let failed = |source| CatalogError::Scan { dir: dir.to_owned(), source };
    let own = owned::resolve(dir).and_then(|dir| OwnDir::open(&dir)).map_err(failed)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(own.path()).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        // A dangling link, or a file that was just removed, is not a program.
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
            continue;
        }
        if found.len() == MOST_PROGRAMS {
            return Err(failed(io::Error::other(format!("it has more than {MOST_PROGRAMS} programs"))));
        }
        let path = owned::resolve(&entry.path()).map_err(failed)?;
        owned::check_at(&path).map_err(failed)?;
        found.push((name, path));
    }
    found.sort();
    Ok(found)
}

/// The programs in `dir` for which there is a block: regular files with an execute bit whose file name is the block's name,
/// sorted by name. A directory that does not exist has none.
///
/// # Errors
/// [`CatalogError::Scan`].
pub fn scan(dir: &Path, blocks: &BTreeMap<String, Block>) -> Result<Vec<(String, PathBuf)>, CatalogError> {
    let failed = |source| CatalogError::Scan { dir: dir.to_owned(), source };
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let skipped = |why| tracing::debug!(path = %path.display(), why, "skipped in the directory of plugins");
        // Symbolic links are followed.
        let Ok(metadata) = std::fs::metadata(&path) else {
            skipped("it cannot be looked at");
            continue;
        };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if !metadata.is_file() {
            skipped("no file");
        } else if metadata.permissions().mode() & 0o111 == 0 {
            skipped("not executable");
        } else if !blocks.contains_key(&name) {
            skipped("no plugin block has its name");
        } else {
            found.push((name, path));
        }
    }
    if mutant::on("b21") {
        found = blocks.keys().map(|name| (name.clone(), dir.join(name))).filter(|(_, path)| path.exists()).collect();
    }
    found.sort();
    Ok(found)
}

/// A version as plugins write them: `1.2.3`, `v0.9`, `2.0.0-beta.1+build`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    numbers: Vec<u64>,
    /// The part after `-`: such a version is earlier than the same one without it.
    pre: Vec<String>,
    text: String,
}

impl Version {
    /// Reads a version; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Version> {
        let bare = text.trim().strip_prefix('v').unwrap_or(text.trim());
        let (bare, _build) = bare.split_once('+').unwrap_or((bare, ""));
        let (numbers, pre) = match bare.split_once('-') {
            Some((_, "")) => return None,
            Some((numbers, pre)) => (numbers, pre.split('.').map(str::to_owned).collect()),
            None => (bare, Vec::new()),
        };
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok()).flatten();
        let mut numbers = numbers.split('.').map(digits).collect::<Option<Vec<u64>>>()?;
        while numbers.len() > 1 && numbers.last() == Some(&0) {
            numbers.pop();
        }
        Some(Version { numbers, pre, text: text.to_owned() })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Version {
    /// Which one is newer. The part after `+` is ignored.
    #[must_use]
    pub fn compare(&self, other: &Version) -> Ordering {
        let part = |a: &String, b: &String| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.as_slice(), other.pre.as_slice()) {
            ([], []) => Ordering::Equal,
            ([], _) => Ordering::Greater,
            (_, []) => Ordering::Less,
            (a, b) => {
                let different = a.iter().zip(b).map(|(a, b)| part(a, b)).find(|order| order.is_ne());
                different.unwrap_or_else(|| a.len().cmp(&b.len()))
            }
        })
    }
}

/// Whether the external plugin replaces the internal driver of the same name: yes unless it is older.
#[must_use]
pub fn prefers_external(internal: &Version, external: &Version) -> bool {
    external.compare(internal).is_ge()
}

/// A plugin that has answered the queries about itself.
#[derive(Debug, Clone)]
pub struct Found {
    path: PathBuf,
    args: Vec<OsString>,
    /// Its answer to `PluginInfo`.
    pub info: PluginInfo,
    /// Its version.
    pub version: Version,
    /// The interface version that both sides speak, as the plugin spells it.
    pub api_version: String,
    /// The schema of its configuration; `None` for a plugin that takes none.
    pub schema: Option<Schema>,
    bond: Bond,
}

/// Starts the program at `path`.
async fn launch(
    name: &str,
    path: &Path,
    args: &[OsString],
    bond: &Bond,
    log: &Log,
) -> Result<(Client, PluginClient), CatalogError> {
    let (log, owner) = (Arc::clone(log), name.to_owned());
    let launch = Launch {
        args,
        // Third-party drivers read variables that the operator exports: DOCKER_HOST, JAVA_HOME, proxies.
        env: std::env::vars_os().chain(bond.mark()).collect(),
        new_session: true,
        dies_with_us: bond.dies_with_us,
        socket_dir: bond.sockets.as_deref(),
        log: Box::new(move |line| log(&owner, line)),
        ..Launch::new(Program::Path(path))
    };
    let client = launch.start().await.map_err(|source| CatalogError::Host { name: name.to_owned(), source })?;
    let calls = PluginClient::new(client.channel(), client.life());
    Ok((client, calls))
}

/// Starts a plugin, queries its info and its configuration schema, and ends it.
///
/// # Errors
/// See [`CatalogError`]. The plugin is gone either way.
pub async fn examine(name: &str, path: &Path, args: &[OsString], log: &Log) -> Result<Found, CatalogError> {
    let (client, calls) = launch(name, path, args, &BRIEF, log).await?;
    let answers = ask(name, &calls).await;
    client.kill().await;
    let (info, version, api_version, schema) = answers?;
    let (path, args, bond) = (path.to_owned(), args.to_vec(), Bond::default());
    Ok(Found { path, args, info, version, api_version, schema, bond })
}

/// Applies a timeout to a call.
async fn in_time<T>(
    name: &str,
    what: &'static str,
    call: impl Future<Output = Result<T, DriverError>>,
) -> Result<T, CatalogError> {
    let late = DriverError::Failed { message: format!("no answer within {ANSWER_PATIENCE:?}"), recoverable: true };
    let answer = tokio::time::timeout(ANSWER_PATIENCE, call).await.unwrap_or(Err(late));
    answer.map_err(|source| CatalogError::Call { name: name.to_owned(), what, source })
}

type Answers = (PluginInfo, Version, String, Option<Schema>);

/// Queries a running plugin about itself and checks the answers.
///
/// # Errors
/// [`CatalogError::Call`] and [`CatalogError::Unfit`].
pub async fn ask(name: &str, calls: &PluginClient) -> Result<Answers, CatalogError> {
    let unfit = |reason| CatalogError::Unfit { name: name.to_owned(), reason };
    let info = in_time(name, "PluginInfo", calls.info()).await?;
    if info.kind != "driver" {
        return Err(unfit(format!("it is a plugin of the type {}, a driver is needed", info.kind)));
    }
    let version = Version::parse(&info.version)
        .ok_or_else(|| unfit(format!("its version {:?} is none; it must be such as 1.2.3", info.version)))?;
    let ours = Version::parse(API_VERSION);
    let api_version = info
        .api_versions
        .iter()
        .find(|text| Version::parse(text).is_some_and(|v| ours.as_ref().is_some_and(|o| o.compare(&v).is_eq())))
        .cloned();
    let spoken = info.api_versions.join(", ");
    let api_version = api_version.ok_or_else(|| unfit(format!("it speaks {spoken}, not {API_VERSION}")))?;
    let schema = in_time(name, "ConfigSchema", calls.config_schema()).await?;
    let schema = schema.as_ref().map(Schema::new).transpose();
    let schema = schema.map_err(|source| CatalogError::Call { name: name.to_owned(), what: "ConfigSchema", source })?;
    Ok((info, version, api_version, schema))
}

/// The configuration of a plugin, checked by the plugin itself.
#[derive(Debug, Clone, Default)]
pub struct Config(Vec<u8>);

/// The bytes of a configuration for a plugin.
///
/// # Errors
/// [`DriverError::Config`]: a mistake in it, with its place.
pub fn encode(schema: Option<&Schema>, config: Option<&Body>) -> Result<Vec<u8>, DriverError> {
    match (schema, config) {
        (None, None) => Ok(Vec::new()),
        (None, Some(_)) => Err(DriverError::Config("the plugin takes no configuration; remove it".to_owned())),
        (Some(schema), config) => schema.encode(&config.cloned().unwrap_or_else(Body::empty), &serde_json::Map::new()),
    }
}

impl Found {
    fn call(&self, what: &'static str) -> impl FnOnce(DriverError) -> CatalogError {
        let name = self.info.name.clone();
        move |source| CatalogError::Call { name, what, source }
    }

    /// The same plugin with this bond for its serving processes.
    #[must_use]
    pub fn bound(mut self, bond: Bond) -> Found {
        self.bond = bond;
        self
    }

    /// Checks a configuration: against the schema, and by sending it twice, without the node's part, to a temporary instance.
    ///
    /// # Errors
    /// See [`CatalogError`].
    pub async fn check(&self, config: Option<&Body>, log: &Log) -> Result<Config, CatalogError> {
        let bytes = encode(self.schema.as_ref(), config).map_err(self.call("its configuration"))?;
        if self.schema.is_none() {
            return Ok(Config(bytes));
        }
        let (client, calls) = launch(&self.info.name, &self.path, &self.args, &BRIEF, log).await?;
        let twice = async {
            calls.set_config(bytes.clone(), None, &self.api_version).await?;
            calls.set_config(bytes.clone(), None, &self.api_version).await
        };
        let set = in_time(&self.info.name, "SetConfig", twice).await;
        client.kill().await;
        set?;
        Ok(Config(bytes))
    }

    /// Starts the plugin for serving: `SetConfig` with the configuration and the node's part, then Init.
    ///
    /// # Errors
    /// See [`CatalogError`]. The plugin is gone when this fails.
    pub async fn start(&self, config: &Config, node: &NodeConfig, log: &Log) -> Result<Instance, CatalogError> {
        let (client, calls) = launch(&self.info.name, &self.path, &self.args, &self.bond, log).await?;
        let set = calls.set_config(config.0.clone(), Some(node), &self.api_version);
        match in_time(&self.info.name, "SetConfig", set).await {
            Ok(()) => self.begin(client, calls).await,
            Err(error) => {
                client.kill().await;
                Err(error)
            }
        }
    }

    /// Reattaches to the plugin that an earlier process of this program started. The plugin keeps its configuration.
    ///
    /// # Errors
    /// [`CatalogError::Host`] when it is gone; otherwise as [`Found::start`], and then it is ended.
    pub async fn reattach(&self, kept: &Reattach) -> Result<Instance, CatalogError> {
        let name = self.info.name.clone();
        let client = Client::reattach(kept.clone()).await.map_err(|source| CatalogError::Host { name, source })?;
        let calls = PluginClient::new(client.channel(), client.life());
        match in_time(&self.info.name, "PluginInfo", calls.info()).await {
            Ok(_) => self.begin(client, calls).await,
            Err(error) => {
                client.kill().await;
                Err(error)
            }
        }
    }

    async fn begin(&self, client: Client, calls: PluginClient) -> Result<Instance, CatalogError> {
        let begun = async {
            in_time(&self.info.name, "Init", calls.init()).await?;
            in_time(&self.info.name, "its description", DriverClient::connect(calls)).await
        };
        match begun.await {
            Ok(driver) => Ok(Instance { client, driver: Arc::new(driver) }),
            Err(error) => {
                client.kill().await;
                Err(error)
            }
        }
    }

    /// Keeps the plugin running: begins with `first` and starts a new process when it dies, after a pause of 5 s at first and 2
    /// min at most.
    pub fn keep(self, first: Instance, config: Config, node: NodeConfig, log: Log) -> Kept {
        let (current, latest) = watch::channel(Some(Arc::clone(&first.driver)));
        let (records, record) = watch::channel(first.client.reattach_config().ok());
        let (stop, stopped) = oneshot::channel();
        let keeper = Keeper { found: self, config, node, log, current, records };
        Kept { latest, record, stop, keeper: crate::sys::task::spawn(keeper.run(first, stopped)) }
    }
}

/// A plugin that serves.
#[derive(Debug)]
#[must_use = "a plugin that is not ended runs on"]
pub struct Instance {
    client: Client,
    driver: Arc<DriverClient>,
}

impl Instance {
    /// Its driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<DriverClient> {
        &self.driver
    }

    /// What a later process needs for [`Found::reattach`]; `None` where that is not possible.
    #[must_use]
    pub fn reattach_config(&self) -> Option<Reattach> {
        self.client.reattach_config().ok()
    }

    /// Waits for the end of its process.
    pub async fn exited(&self) {
        self.client.exited().await;
    }

    /// Ends it with Shutdown; its tasks continue to run.
    pub async fn end(self) {
        self.driver.shutdown().await;
        self.client.kill().await;
    }
}

/// A plugin that is restarted when it dies.
#[derive(Debug)]
#[must_use = "a plugin that is not ended runs on"]
pub struct Kept {
    latest: watch::Receiver<Option<Arc<DriverClient>>>,
    record: watch::Receiver<Option<Reattach>>,
    stop: oneshot::Sender<bool>,
    keeper: JoinHandle<()>,
}

impl Kept {
    /// The current driver; `None` between two processes. Its tasks have to be recovered in each new process.
    #[must_use]
    pub fn driver(&self) -> watch::Receiver<Option<Arc<DriverClient>>> {
        self.latest.clone()
    }

    /// What a later process needs to reattach; changes with each process.
    #[must_use]
    pub fn record(&self) -> watch::Receiver<Option<Reattach>> {
        self.record.clone()
    }

    /// Ends it with Shutdown; its tasks continue to run.
    pub async fn end(self) {
        let _keeper_is_there = self.stop.send(true);
        let _ended = self.keeper.await;
    }

    /// Leaves it running for a later process.
    pub async fn leave(self) {
        let _keeper_is_there = self.stop.send(false);
        let _left = self.keeper.await;
    }
}

struct Keeper {
    found: Found,
    config: Config,
    node: NodeConfig,
    log: Log,
    current: watch::Sender<Option<Arc<DriverClient>>>,
    records: watch::Sender<Option<Reattach>>,
}

impl Keeper {
    async fn run(self, first: Instance, mut stopped: oneshot::Receiver<bool>) {
        let mut instance = first;
        loop {
            tokio::select! {
                () = instance.exited() => {}
                end = &mut stopped => {
                    // A sender that was dropped without a value does not ask for the plugin's end.
                    if end.unwrap_or(false) {
                        instance.end().await;
                    }
                    return;
                }
            }
            self.current.send_replace(None);
            self.records.send_replace(None);
            let name = &self.found.info.name;
            tracing::warn!(plugin = name, "the plugin has ended; it is started again");
            let mut wait = BACK_OFF.0;
            instance = loop {
                tokio::select! {
                    () = tokio::time::sleep(wait) => {}
                    _ = &mut stopped => return,
                }
                match self.found.start(&self.config, &self.node, &self.log).await {
                    Ok(instance) => break instance,
                    Err(error) => {
                        tracing::warn!(plugin = name, error = chain(&error), "the plugin does not start");
                        wait = (wait * 2).min(BACK_OFF.1);
                    }
                }
            };
            self.records.send_replace(instance.reattach_config());
            self.current.send_replace(Some(Arc::clone(&instance.driver)));
        }
    }
}

/// The text of an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The plugins that a process of this program left running, for the next one. It has to be written atomically.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// By name.
    pub plugins: BTreeMap<String, Reattach>,
}

impl Record {
    /// A record of these plugins.
    #[must_use]
    pub fn new(plugins: BTreeMap<String, Reattach>) -> Record {
        Record { version: RECORD_VERSION, plugins }
    }

    /// Reads a record.
    ///
    /// # Errors
    /// The text is not a record, or was written by a newer version of this program and must not be changed.
    pub fn parse(text: &str) -> Result<Record, String> {
        let record: Record = json::from_str(text).map_err(|e| format!("no record of plugins: {e}"))?;
        if record.version != RECORD_VERSION {
            return Err(format!("a record of version {}; this program knows {RECORD_VERSION}", record.version));
        }
        Ok(record)
    }

    /// The text to be written.
    #[must_use]
    pub fn to_json(&self) -> String {
        crate::spec::json::json!(self).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a4_the_newer_plugin_is_chosen_and_the_external_one_of_two_equals() {
        let older_first = ["0.9", "1.0.0-beta.2", "1.0.0-beta.10", "1.0.0-rc", "1", "1.0.1", "v1.10.0"];
        let version = |text: &str| Version::parse(text).unwrap();
        for pair in older_first.windows(2) {
            assert!(!prefers_external(&version(pair[1]), &version(pair[0])), "{pair:?}");
            assert!(prefers_external(&version(pair[0]), &version(pair[1])), "{pair:?}");
        }
        assert!(prefers_external(&version("1.0.0"), &version("v1+build")));
        for wrong in ["", "1.", "x", "1.x", "1-", "-1"] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a4_only_executable_files_with_a_block_are_plugins() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        file("mine", 0o750);
        file("others", 0o755);
        file("data", 0o644);
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("mine", dir.path().join("linked")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("broken")).unwrap();
        let named = ["mine", "data", "folder", "linked", "broken", "missing"];
        let blocks = named.into_iter().map(|name| (name.to_owned(), Block::default())).collect();
        let found: Vec<String> = scan(dir.path(), &blocks).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, ["linked", "mine"]);
        assert!(scan(&dir.path().join("nowhere"), &blocks).unwrap().is_empty());
        scan(&dir.path().join("mine"), &blocks).unwrap_err();
    }

    #[test]
    fn a4_a_record_of_a_newer_program_is_left_alone() {
        let record = Record::new(BTreeMap::new());
        assert_eq!(Record::parse(&record.to_json()), Ok(record));
        Record::parse("{\"version\": 2, \"plugins\": {}}").unwrap_err();
        Record::parse("").unwrap_err();
    }
}
