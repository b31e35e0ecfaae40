//! The plugin's configuration: Nomad's keys and agentbin's own. Never calls the engine.

use std::path::PathBuf;
use std::time::Duration;

use super::NAME;
use crate::docker::{Deadlines, Endpoint, Tls};
use crate::driver::capabilities::{self, Allowed};
use crate::driver::glob::matches;
use crate::driver::policy::{self, Policy, devices};
use crate::driver::{DriverError, Reader};
use crate::jobspec;
use crate::spec::collections::BTreeMap;
use crate::spec::{DriverConfig, IntoMap as _};
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

const KEYS: [&str; 27] = [
    "endpoint",
    "auth",
    "tls",
    "extra_labels",
    "logging",
    "gc",
    "volumes",
    "allow_privileged",
    "allow_caps",
    "allow_runtimes",
    "nvidia_runtime",
    "infra_image",
    "infra_image_pull_timeout",
    "image_pull_timeout",
    "pull_activity_timeout",
    "container_exists_attempts",
    "pids_limit",
    "oom_score_adj",
    "disable_log_collection",
    "windows_allow_insecure_container_admin",
    "allowed_modes",
    "collect_logs",
    "api_timeout",
    "cgroup_parent",
    policy::KEYS[0],
    policy::KEYS[1],
    devices::KEY,
];
/// Smallest creation grace of a dangling container, and smallest activity timeout of a pull.
const MINUTE: Duration = Duration::from_mins(1);

/// Settings for the removal of dangling containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dangling {
    pub(super) enabled: bool,
    pub(super) period: Duration,
    pub(super) creation_grace: Duration,
    pub(super) dry_run: bool,
}

/// Host namespaces that an unprivileged task may ask for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AllowedModes {
    pub(super) pid: Vec<String>,
    pub(super) ipc: Vec<String>,
    pub(super) userns: Vec<String>,
    pub(super) uts: Vec<String>,
}

/// The plugin's configuration.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) endpoint: Endpoint,
    pub(super) deadlines: Deadlines,
    /// A docker `config.json`.
    pub(super) auth_file: Option<PathBuf>,
    /// Suffix of the name of a credential helper.
    pub(super) auth_helper: String,
    pub(super) extra_labels: Vec<String>,
    pub(super) log_driver: String,
    pub(super) log_options: BTreeMap<String, String>,
    pub(super) gc_image: bool,
    pub(super) image_delay: Duration,
    pub(super) gc_container: bool,
    pub(super) dangling: Dangling,
    pub(super) volumes: bool,
    pub(super) selinux_label: String,
    pub(super) allow_privileged: bool,
    pub(super) allow_caps: Allowed,
    pub(super) allow_runtimes: Vec<String>,
    pub(super) nvidia_runtime: String,
    pub(super) infra_image: String,
    pub(super) infra_image_pull_timeout: Duration,
    pub(super) image_pull_timeout: Duration,
    pub(super) pull_activity_timeout: Duration,
    pub(super) container_exists_attempts: u32,
    pub(super) pids_limit: i64,
    pub(super) oom_score_adj: i64,
    pub(super) disable_log_collection: bool,
    pub(super) collect_logs: bool,
    pub(super) allowed_modes: AllowedModes,
    /// Cgroup parent of containers; empty leaves the choice to the driver.
    pub(super) cgroup_parent: String,
    /// What tasks must not ask for.
    pub(super) policy: Policy,
}

/// Nomad's default infrastructure image for this machine's architecture.
pub(super) fn infra_image() -> String {
    let arch = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    format!("registry.k8s.io/pause-{arch}:3.3")
}

impl Default for Config {
    /// The configuration of `agentbin run`, which has no plugin block: all defaults, and volumes allowed, because root can
    /// mount anything anyway.
    fn default() -> Config {
        Config {
            endpoint: Endpoint::from_env(|name| std::env::var(name).ok()).unwrap_or_default(),
            deadlines: Deadlines::default(),
            auth_file: None,
            auth_helper: String::new(),
            extra_labels: Vec::new(),
            log_driver: "json-file".to_owned(),
            log_options: log_options(),
            gc_image: true,
            image_delay: Duration::from_mins(3),
            gc_container: true,
            dangling: Dangling {
                enabled: true,
                period: Duration::from_mins(5),
                creation_grace: Duration::from_mins(5),
                dry_run: false,
            },
            volumes: false,
            selinux_label: String::new(),
            allow_privileged: false,
            allow_caps: Allowed::default(),
            allow_runtimes: vec!["runc".to_owned(), "nvidia".to_owned()],
            nvidia_runtime: "nvidia".to_owned(),
            infra_image: infra_image(),
            infra_image_pull_timeout: Duration::from_mins(5),
            image_pull_timeout: Duration::from_mins(5),
            pull_activity_timeout: Duration::from_mins(2),
            container_exists_attempts: 5,
            pids_limit: 0,
            oom_score_adj: 0,
            disable_log_collection: false,
            collect_logs: true,
            allowed_modes: AllowedModes::default(),
            cgroup_parent: String::new(),
            policy: Policy::default(),
        }
    }
}

fn log_options() -> BTreeMap<String, String> {
    [("max-file", "2"), ("max-size", "2m")].into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).into_map()
}

pub(super) fn schema() -> Spec {
    let attr = |name: &str, kind: &str| schema::attr(name, kind, false);
    let text = |name: &str, value: &str| schema::with_default(attr(name, "string"), Literal::string(value));
    let flag = |name: &str, value: bool| schema::with_default(attr(name, "bool"), Literal::bool(value));
    let number = |name: &str, value: i64| schema::with_default(attr(name, "number"), Literal::number(value));
    let list = |name: &str| attr(name, "list(string)");
    let strings = |names: &[&str]| schema::object(names.iter().map(|name| (*name, attr(name, "string"))));
    let dangling = schema::object([
        ("enabled", flag("enabled", true)),
        ("period", text("period", "5m")),
        ("creation_grace", text("creation_grace", "5m")),
        ("dry_run", flag("dry_run", false)),
    ]);
    let dangling_default = r#"{ enabled = true, period = "5m", creation_grace = "5m", dry_run = false }"#;
    let dangling = schema::with_default(
        schema::block("dangling_containers", false, dangling),
        Literal::expression(dangling_default),
    );
    let gc = schema::object([
        ("image", flag("image", true)),
        ("image_delay", text("image_delay", "3m")),
        ("container", flag("container", true)),
        ("dangling_containers", dangling),
    ]);
    let gc_default = format!(
        r#"{{ image = true, image_delay = "3m", container = true, dangling_containers = {dangling_default} }}"#
    );
    let modes = ["pid", "ipc", "userns", "uts"].map(|name| (name, list(name)));
    let [minimum, allow_drivers] = policy::schema();
    schema::object([
        ("endpoint", attr("endpoint", "string")),
        ("auth", schema::block("auth", false, strings(&["config", "helper"]))),
        ("tls", schema::block("tls", false, strings(&["cert", "key", "ca"]))),
        ("extra_labels", list("extra_labels")),
        (
            "logging",
            schema::block(
                "logging",
                false,
                schema::object([
                    ("type", attr("type", "string")),
                    ("config", schema::block_attrs("config", "string", false)),
                ]),
            ),
        ),
        ("gc", schema::with_default(schema::block("gc", false, gc), Literal::expression(&gc_default))),
        (
            "volumes",
            schema::with_default(
                schema::block(
                    "volumes",
                    false,
                    schema::object([
                        ("enabled", flag("enabled", false)),
                        ("selinuxlabel", attr("selinuxlabel", "string")),
                    ]),
                ),
                Literal::expression("{ enabled = false }"),
            ),
        ),
        ("allow_privileged", attr("allow_privileged", "bool")),
        ("allow_caps", schema::with_default(list("allow_caps"), capabilities::nomad_defaults())),
        ("allow_runtimes", schema::with_default(list("allow_runtimes"), Literal::strings(&["runc", "nvidia"]))),
        ("nvidia_runtime", text("nvidia_runtime", "nvidia")),
        ("infra_image", text("infra_image", &infra_image())),
        ("infra_image_pull_timeout", text("infra_image_pull_timeout", "5m")),
        ("image_pull_timeout", text("image_pull_timeout", "5m")),
        ("pull_activity_timeout", text("pull_activity_timeout", "2m")),
        ("container_exists_attempts", number("container_exists_attempts", 5)),
        ("pids_limit", attr("pids_limit", "number")),
        ("oom_score_adj", number("oom_score_adj", 0)),
        ("disable_log_collection", flag("disable_log_collection", false)),
        ("windows_allow_insecure_container_admin", flag("windows_allow_insecure_container_admin", false)),
        ("allowed_modes", schema::block("allowed_modes", false, schema::object(modes))),
        ("collect_logs", flag("collect_logs", true)),
        ("api_timeout", text("api_timeout", "2m")),
        ("cgroup_parent", attr("cgroup_parent", "string")),
        minimum,
        allow_drivers,
        devices::schema(),
    ])
}

/// A duration; the default when it is not set.
pub(super) fn duration(reader: &Reader<'_>, key: &str, default: Duration) -> Result<Duration, DriverError> {
    match reader.string(key)?.filter(|text| !text.is_empty()) {
        None => Ok(default),
        Some(text) => {
            jobspec::duration(&text).map_err(|e| reader.error(key, &format!("failed to parse '{key}' duration: {e}")))
        }
    }
}

impl Config {
    pub(super) fn read(config: &DriverConfig) -> Result<Config, DriverError> {
        let default = Config::default();
        let reader = Reader::new(NAME, config, &KEYS)?;
        let text = |reader: &Reader<'_>, key: &str| reader.string(key).map(Option::unwrap_or_default);
        let auth = reader.block("auth")?;
        let auth = Reader::new(NAME, &auth, &["config", "helper"])?;
        let files = reader.block("tls")?;
        let files = Reader::new(NAME, &files, &["cert", "key", "ca"])?;
        let tls = Tls {
            cert: text(&files, "cert")?.into(),
            key: text(&files, "key")?.into(),
            ca: text(&files, "ca")?.into(),
        };
        let tls = (tls != Tls::default()).then_some(tls);
        let endpoint = match text(&reader, "endpoint")? {
            endpoint if endpoint.is_empty() => Endpoint::from_env(|name| std::env::var(name).ok()),
            endpoint => Endpoint::parse(&endpoint, tls),
        };
        let logging = reader.block("logging")?;
        let logging = Reader::new(NAME, &logging, &["type", "config"])?;
        let log_driver = text(&logging, "type")?;
        let options: BTreeMap<String, String> = logging.pairs("config")?.into_iter().into_map();
        let unset = log_driver.is_empty() && options.is_empty();
        let gc = reader.block("gc")?;
        let gc = Reader::new(NAME, &gc, &["image", "image_delay", "container", "dangling_containers"])?;
        let dangling = gc.block("dangling_containers")?;
        let dangling = Reader::new(NAME, &dangling, &["enabled", "period", "creation_grace", "dry_run"])?;
        let dangling = Dangling {
            enabled: dangling.flag("enabled")?.unwrap_or(true),
            period: duration(&dangling, "period", default.dangling.period)?,
            creation_grace: duration(&dangling, "creation_grace", default.dangling.creation_grace)?,
            dry_run: dangling.flag("dry_run")?.unwrap_or(false),
        };
        if dangling.creation_grace < MINUTE {
            return Err(gc.error("dangling_containers", "creation_grace is less than minimum, 1m0s"));
        }
        let pull_activity_timeout = duration(&reader, "pull_activity_timeout", default.pull_activity_timeout)?;
        if pull_activity_timeout < MINUTE {
            return Err(reader.error("pull_activity_timeout", "pull_activity_timeout is less than minimum, 1m0s"));
        }
        let volumes = reader.block("volumes")?;
        let volumes = Reader::new(NAME, &volumes, &["enabled", "selinuxlabel"])?;
        let change = duration(&reader, "api_timeout", default.deadlines.change)?;
        let strings_or =
            |key: &str, or: Vec<String>| reader.strings(key).map(|list| if reader.has(key) { list } else { or });
        let infra_image = text(&reader, "infra_image")?;
        let infra_image = infra_image.strip_prefix("https://").unwrap_or(&infra_image).to_owned();
        let attempts = reader.integer("container_exists_attempts")?.unwrap_or(5);
        let (allowed_modes, pids_limit) = (AllowedModes::read(&reader)?, reader.integer("pids_limit")?.unwrap_or(0));
        Ok(Config {
            endpoint: endpoint.map_err(|e| reader.error("endpoint", &e.to_string()))?,
            deadlines: Deadlines { change, ask: default.deadlines.ask.min(change) },
            auth_file: Some(text(&auth, "config")?).filter(|path| !path.is_empty()).map(PathBuf::from),
            auth_helper: text(&auth, "helper")?,
            extra_labels: reader.strings("extra_labels")?,
            log_driver: if log_driver.is_empty() { default.log_driver } else { log_driver },
            log_options: if unset { default.log_options } else { options },
            gc_image: gc.flag("image")?.unwrap_or(true),
            image_delay: duration(&gc, "image_delay", default.image_delay)?,
            gc_container: gc.flag("container")?.unwrap_or(true),
            dangling,
            volumes: volumes.flag("enabled")?.unwrap_or(false),
            selinux_label: text(&volumes, "selinuxlabel")?,
            allow_privileged: reader.flag("allow_privileged")?.unwrap_or(false),
            allow_caps: Allowed::read(&reader)?,
            allow_runtimes: strings_or("allow_runtimes", default.allow_runtimes)?,
            nvidia_runtime: reader.string("nvidia_runtime")?.unwrap_or(default.nvidia_runtime),
            infra_image: if infra_image.is_empty() { default.infra_image } else { infra_image },
            infra_image_pull_timeout: duration(&reader, "infra_image_pull_timeout", default.infra_image_pull_timeout)?,
            image_pull_timeout: duration(&reader, "image_pull_timeout", default.image_pull_timeout)?,
            pull_activity_timeout,
            container_exists_attempts: u32::try_from(attempts).unwrap_or(5).max(1),
            pids_limit,
            oom_score_adj: reader.integer("oom_score_adj")?.unwrap_or(0),
            disable_log_collection: reader.flag("disable_log_collection")?.unwrap_or(false),
            collect_logs: reader.flag("collect_logs")?.unwrap_or(true),
            policy: allowed_modes.policy(&reader, pids_limit)?,
            allowed_modes,
            cgroup_parent: text(&reader, "cgroup_parent")?,
        })
    }
}

impl AllowedModes {
    fn read(reader: &Reader<'_>) -> Result<AllowedModes, DriverError> {
        let block = reader.block("allowed_modes")?;
        let modes = Reader::new(NAME, &block, &["pid", "ipc", "userns", "uts"])?;
        let read = |key: &str| {
            let globs = modes.strings(key)?;
            match globs.iter().find(|glob| !can_be(key, glob)) {
                None => Ok(globs),
                Some(glob) => {
                    let text = format!("cannot apply allowed_modes configuration, {glob:?} is not a valid {key}_mode");
                    Err(reader.error("allowed_modes", &text))
                }
            }
        };
        Ok(AllowedModes { pid: read("pid")?, ipc: read("ipc")?, userns: read("userns")?, uts: read("uts")? })
    }

    /// What tasks must not ask for. At minimum `default`, the modes listed here are allowed all the same.
    fn policy(&self, reader: &Reader<'_>, pids_limit: i64) -> Result<Policy, DriverError> {
        let modes =
            [("pid_mode", &self.pid), ("ipc_mode", &self.ipc), ("userns_mode", &self.userns), ("uts_mode", &self.uts)];
        Ok(Policy {
            modes: modes.map(|(key, globs)| (key, globs.clone())).into(),
            pids_max: u64::try_from(pids_limit).ok().filter(|most| *most > 0),
            allow_devices: devices::read(reader)?,
            ..Policy::read(reader)?
        })
    }
}

/// Whether the pattern can match any mode that the engine knows.
fn can_be(key: &str, glob: &str) -> bool {
    let known: &[&str] = match key {
        "pid" => &["host", "container:"],
        "ipc" => &["host", "none", "private", "shareable", "container:"],
        _ => &["host"],
    };
    known.iter().any(|mode| {
        if mode.ends_with(':') { glob.starts_with(mode) || matches(glob, mode) } else { matches(glob, mode) }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(values: &serde_json::Value) -> Result<Config, String> {
        let values = values.as_object().unwrap().clone();
        Config::read(&DriverConfig { values, ..DriverConfig::default() }).map_err(|e| e.to_string())
    }

    /// `TestConfig_DriverConfig_GC` and others: defaults hold when a block is absent, empty or partly filled.
    #[test]
    fn e1_defaults_hold_where_nothing_is_said() {
        for values in [
            json!({}),
            json!({"gc": {}}),
            json!({"gc": {"dangling_containers": {}}}),
            json!({"gc": {"dangling_containers": {"enabled": null}}, "logging": {}, "volumes": null}),
        ] {
            let config = read(&values).unwrap();
            assert!(config.gc_image && config.gc_container && config.dangling.enabled && !config.dangling.dry_run);
            assert_eq!(config.image_delay, Duration::from_mins(3));
            assert_eq!(config.dangling.creation_grace, Duration::from_mins(5));
            assert_eq!((config.log_driver.as_str(), config.log_options["max-size"].as_str()), ("json-file", "2m"));
            assert!(!config.volumes && !config.allow_privileged && config.pids_limit == 0);
        }
        let config = read(&json!({"gc": {"image": false, "dangling_containers": {"period": "10m"}}})).unwrap();
        assert!(!config.gc_image && config.dangling.enabled);
        assert_eq!(config.dangling.period, Duration::from_mins(10));
        let config = read(&json!({"logging": {"type": "syslog"}})).unwrap();
        assert!(config.log_options.is_empty(), "another log driver does not know json-file's options");
    }

    #[test]
    fn e1_wrong_configurations_are_refused_in_the_words_of_nomad() {
        for (values, expected) in [
            (json!({"gc": {"image_delay": "3 min"}}), "failed to parse 'image_delay' duration"),
            (
                json!({"gc": {"dangling_containers": {"creation_grace": "10s"}}}),
                "creation_grace is less than minimum, 1m0s",
            ),
            (json!({"pull_activity_timeout": "5s"}), "pull_activity_timeout is less than minimum, 1m0s"),
            (json!({"endpoint": "ssh://x"}), "the endpoint \"ssh://x\" cannot be used"),
            (
                json!({"allowed_modes": {"pid": ["hist"]}}),
                "cannot apply allowed_modes configuration, \"hist\" is not a valid pid_mode",
            ),
        ] {
            let error = read(&values).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(read(&json!({"allowed_modes": {"ipc": ["*"]}})).unwrap().allowed_modes.ipc, ["*"]);
    }

    #[test]
    fn e1_every_key_of_the_plugin_is_read_and_told() {
        let Some(crate::wire::hclspec::spec::Block::Object(object)) = schema().block else { panic!("no object") };
        let told: crate::spec::collections::BTreeSet<&str> = object.attributes.keys().map(String::as_str).collect();
        assert_eq!(told, KEYS.into_iter().collect());
        let config = read(&json!({
            "endpoint": "tcp://h:1", "tls": { "cert": "c", "key": "k", "ca": "a" },
            "auth": { "config": "/f", "helper": "h" }, "extra_labels": ["x"], "logging": { "config": { "o": "p" } },
            "gc": { "image": false, "image_delay": "1m", "container": false,
                    "dangling_containers": { "enabled": false, "period": "2m", "creation_grace": "3m", "dry_run": true } },
            "volumes": { "enabled": true, "selinuxlabel": "z" }, "allow_privileged": true, "allow_caps": ["chown"],
            "allow_runtimes": [], "nvidia_runtime": "n", "infra_image": "https://pause:1",
            "infra_image_pull_timeout": "4m", "image_pull_timeout": "5m", "pull_activity_timeout": "6m",
            "container_exists_attempts": 7, "pids_limit": 8, "oom_score_adj": 9, "disable_log_collection": true,
            "windows_allow_insecure_container_admin": true, "collect_logs": false, "api_timeout": "10s",
            "allowed_modes": { "pid": ["host"], "ipc": ["none"], "userns": ["host"], "uts": ["host"] },
            "cgroup_parent": "/p",
        }));
        let config = config.unwrap();
        let tls = Tls { cert: "c".into(), key: "k".into(), ca: "a".into() };
        assert_eq!(config.endpoint, Endpoint::Tcp("h:1".to_owned(), Some(tls)));
        assert_eq!((config.auth_file, config.auth_helper.as_str()), (Some(PathBuf::from("/f")), "h"));
        assert_eq!((config.extra_labels, &*config.log_driver), (vec!["x".to_owned()], "json-file"));
        assert_eq!(config.log_options, BTreeMap::from([("o".to_owned(), "p".to_owned())]));
        assert!(!config.gc_image && !config.gc_container && config.volumes && config.allow_privileged);
        let minutes = |n| Duration::from_mins(n);
        assert_eq!(config.image_delay, minutes(1));
        let dangling = Dangling { enabled: false, period: minutes(2), creation_grace: minutes(3), dry_run: true };
        assert_eq!(config.dangling, dangling);
        assert_eq!((config.selinux_label.as_str(), config.nvidia_runtime.as_str()), ("z", "n"));
        assert!(config.allow_runtimes.is_empty(), "an empty list is not a default");
        assert_eq!(config.infra_image, "pause:1");
        let timeouts = (config.infra_image_pull_timeout, config.image_pull_timeout, config.pull_activity_timeout);
        assert_eq!(timeouts, (minutes(4), minutes(5), minutes(6)));
        assert_eq!((config.container_exists_attempts, config.pids_limit, config.oom_score_adj), (7, 8, 9));
        assert!(config.disable_log_collection && !config.collect_logs);
        let ten = Duration::from_secs(10);
        assert_eq!(config.deadlines, Deadlines { change: ten, ask: ten });
        let list = |text: &str| vec![text.to_owned()];
        let modes = AllowedModes { pid: list("host"), ipc: list("none"), userns: list("host"), uts: list("host") };
        assert_eq!((config.allowed_modes, config.cgroup_parent.as_str()), (modes, "/p"));
        for key in ["infra_image_pull_timeout", "image_pull_timeout", "pull_activity_timeout"] {
            let error = read(&json!({ key: "x" })).unwrap_err();
            assert!(error.contains(&format!("failed to parse '{key}' duration")), "{error}");
        }
    }
}
