//! The driver `java`: a JVM in a root of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use tokio::process::{Child, Command};
use tokio::sync::Mutex;

use super::config::Reader;
use super::failed;
use super::host_env::HostEnv;
use super::isolated::IsolatedConfig;
use super::on_executor::{Common, OnExecutor, Plan};
use super::{Attribute, Capabilities, DriverError, Fingerprint, Health, TaskConfig};
use crate::cgroup::Regime;
use crate::executor::Isolation;
use crate::spec::{DriverConfig, HostIdSpace, LaunchSpec};
use crate::sys::children;
use crate::wire::hclspec::Spec;
use crate::wire::schema;

const OWN_TASK_KEYS: [&str; 5] = ["class", "class_path", "jar_path", "jvm_options", "args"];
/// Timeout for asking a JVM for its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(20);

/// The `java` driver: the `exec` driver with a JVM as its command.
pub type JavaDriver = OnExecutor<Java>;

/// The part of `OnExecutor` that is specific to `java`.
#[derive(Debug)]
pub struct Java;

/// Plugin configuration.
#[derive(Debug, Default)]
pub struct Config(IsolatedConfig);

/// The version information of a JVM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Version {
    version: String,
    runtime: String,
    vm: String,
}

impl Version {
    /// Parses the output of `java -version`: three lines. Shorter output is ignored.
    fn parse(output: &str) -> Version {
        let mut lines: Vec<&str> = output.trim().lines().map(str::trim).collect();
        if lines.first().is_some_and(|line| line.contains("Picked up _JAVA_OPTIONS")) {
            lines.remove(0);
        }
        let [first, runtime, vm, ..] = lines[..] else { return Version::default() };
        let number = |c: char| c.is_ascii_digit() || c == '.' || c == '_';
        let version = first.split(|c| !number(c)).find(|run| run.contains(|c: char| c.is_ascii_digit()));
        Version { version: version.unwrap_or_default().to_owned(), runtime: runtime.to_owned(), vm: vm.to_owned() }
    }
}

/// The JVM on this process's PATH with links resolved: that is its path inside the task, too.
fn find_java() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join("java")).find(|java| is_executable(java));
    found?.canonicalize().ok()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The version of the JVM at a path, cached while the file does not change: it is asked every 30 s, and a JVM is slow to start. Who
/// asks meanwhile waits for the one that was started.
static KNOWN: Mutex<Option<(PathBuf, SystemTime, Version)>> = Mutex::const_new(None);

async fn version(java: &Path) -> Result<Version, String> {
    let changed = std::fs::metadata(java).and_then(|m| m.modified()).map_err(|e| format!("{}: {e}", java.display()))?;
    let mut known = KNOWN.lock().await;
    if let Some((path, time, version)) = &*known
        && path == java
        && *time == changed
    {
        return Ok(version.clone());
    }
    let version = ask_version(java).await?;
    *known = Some((java.to_owned(), changed, version.clone()));
    Ok(version)
}

async fn ask_version(java: &Path) -> Result<Version, String> {
    let mut command = Command::new(java);
    command.arg("-version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let asking = async {
        let (child, _listed) = children::list(|| command.spawn(), Child::id)?;
        child.wait_with_output().await
    };
    let output = match tokio::time::timeout(VERSION_PATIENCE, asking).await {
        Err(_) => return Err(format!("{} -version did not end within {VERSION_PATIENCE:?}", java.display())),
        Ok(output) => output.map_err(|e| format!("cannot run {}: {e}", java.display()))?,
    };
    if !output.status.success() {
        return Err(format!("{} -version failed: {}", java.display(), output.status));
    }
    Ok(Version::parse(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat())))
}

/// The task's command line after `java`.
fn arguments(reader: &Reader<'_>) -> Result<Vec<String>, DriverError> {
    let mut arguments = reader.strings("jvm_options")?;
    let class = reader.string("class")?.unwrap_or_default();
    let jar_path = reader.string("jar_path")?.unwrap_or_default();
    if class.is_empty() && jar_path.is_empty() {
        return Err(reader.error("jar_path", "jar_path or class must be specified"));
    }
    let mut class_path = reader.string("class_path")?.unwrap_or_default();
    let mut jar = jar_path;
    // Relative paths mean the task's root, where its directories are, also when it starts elsewhere.
    if !reader.absolute_path("work_dir")?.is_empty() {
        class_path = from_root_too(&class_path);
        if !jar.is_empty() && !jar.starts_with('/') {
            jar.insert(0, '/');
        }
    }
    for (option, value) in [("-cp", class_path), ("-jar", jar)] {
        if !value.is_empty() {
            arguments.extend([option.to_owned(), value]);
        }
    }
    arguments.extend(Some(class).filter(|class| !class.is_empty()));
    arguments.extend(reader.strings("args")?);
    Ok(arguments)
}

/// A class path whose relative entries are looked for in the working directory, then in the task's root. A JVM passes over entries
/// that do not exist; an empty entry is the working directory.
fn from_root_too(class_path: &str) -> String {
    let entries = class_path.split(':').map(|entry| match entry {
        "" => String::new(),
        entry if entry.starts_with('/') => entry.to_owned(),
        entry => format!("{entry}:/{entry}"),
    });
    entries.collect::<Vec<_>>().join(":")
}

fn reader(task: &DriverConfig) -> Result<Reader<'_>, DriverError> {
    Reader::new(Java::NAME, task, &[&OWN_TASK_KEYS[..], &IsolatedConfig::TASK_KEYS].concat())
}

#[tonic::async_trait]
impl Plan for Java {
    const NAME: &'static str = "java";
    const ISOLATION: Isolation = Isolation::Isolated;
    type Config = Config;

    fn config_schema() -> Spec {
        schema::object(IsolatedConfig::schema())
    }

    fn read_config(config: &DriverConfig) -> Result<Config, DriverError> {
        let reader = Reader::new(Java::NAME, config, &IsolatedConfig::KEYS)?;
        Ok(Config(IsolatedConfig::read(&reader)?))
    }

    fn common(config: &Config) -> &Common {
        config.0.common()
    }

    fn host_ids(config: &Config) -> Option<HostIdSpace> {
        config.0.host_ids().given()
    }

    fn has_own_ids(config: &Config, task: &DriverConfig) -> bool {
        config.0.has_own_ids(&Reader::any(Java::NAME, task))
    }

    fn task_config_schema() -> Spec {
        let mut attributes = IsolatedConfig::task_schema();
        attributes.extend(OWN_TASK_KEYS.map(|name| {
            let kind = if matches!(name, "jvm_options" | "args") { "list(string)" } else { "string" };
            (name, schema::attr(name, kind, false))
        }));
        schema::object(attributes)
    }

    fn host_env(config: &Config) -> Option<&HostEnv> {
        config.0.host_env()
    }

    fn capabilities(config: &Config) -> Capabilities {
        config.0.capabilities()
    }

    async fn fingerprint(_: &Config, agents: Option<Regime>) -> Fingerprint {
        if let Some(obstacle) = IsolatedConfig::obstacle(agents) {
            return obstacle;
        }
        let Some(java) = find_java() else { return Fingerprint::without(Health::Undetected, "") };
        let Version { version, runtime, vm } = match version(&java).await {
            Ok(version) => version,
            Err(problem) => return Fingerprint::without(Health::Undetected, &problem),
        };
        let mut fingerprint = Fingerprint::healthy(Java::NAME);
        for (name, value) in [("version", version), ("runtime", runtime), ("vm", vm)] {
            fingerprint.attributes.insert(format!("driver.java.{name}"), Attribute::String(value));
        }
        fingerprint
    }

    fn validate(config: &Config, task: &DriverConfig) -> Result<(), DriverError> {
        let reader = reader(task)?;
        config.0.validate(&reader)?;
        arguments(&reader).map(drop)
    }

    fn plan(config: &Config, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError> {
        let reader = reader(&task.config)?;
        config.0.validate(&reader)?;
        spec.args = arguments(&reader)?;
        let java =
            find_java().ok_or_else(|| failed("failed to find java binary: no java on the PATH".to_owned(), false))?;
        spec.command = java.display().to_string();
        config.0.plan(&reader, task, spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TestDriver_parseJavaVersionOutput`: the output of JVMs of different vendors.
    #[test]
    fn versions_are_read() {
        for (output, version, runtime, vm) in [
            (
                "openjdk version \"11.0.1\" 2018-10-16\nOpenJDK Runtime Environment 18.9 (build 11.0.1+13)\nOpenJDK 64-Bit \
                 Server VM 18.9 (build 11.0.1+13, mixed mode)",
                "11.0.1",
                "OpenJDK Runtime Environment 18.9 (build 11.0.1+13)",
                "OpenJDK 64-Bit Server VM 18.9 (build 11.0.1+13, mixed mode)",
            ),
            ("java version \"1.7.0_80\"\n  A\n B \n", "1.7.0_80", "A", "B"),
            ("Picked up _JAVA_OPTIONS: -Xmx512m -Xms64m\njava version \"1.8.0_66\"\nA\nB", "1.8.0_66", "A", "B"),
            ("openjdk version \"17\" 2021-09-14\nA\nB\nC", "17", "A", "B"),
            ("java version \"1.6.0_36\"\nA", "", "", ""),
            ("", "", "", ""),
        ] {
            let expected = Version { version: version.into(), runtime: runtime.into(), vm: vm.into() };
            assert_eq!(Version::parse(output), expected, "{output}");
        }
    }

    #[test]
    fn missing_arguments_are_the_last_mistake_that_is_told() {
        for (values, expected) in [
            (serde_json::json!({}), "jar_path or class must be specified"),
            (serde_json::json!({ "work_dir": "local" }), "work_dir must be an absolute path: local"),
            (serde_json::json!({ "work_dir": "local", "ipc_mode": "none" }), "got \"none\""),
        ] {
            let config = DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() };
            let validated = Java::validate(&Config::default(), &config).unwrap_err().to_string();
            assert!(validated.ends_with(expected), "{validated}");
            let task = TaskConfig { config, ..TaskConfig::default() };
            let planned = Java::plan(&Config::default(), &task, &mut LaunchSpec::default()).unwrap_err().to_string();
            assert_eq!(planned, validated);
        }
    }

    /// `TestJavaCmdArgs`.
    #[test]
    fn command_lines_are_put_together() {
        let line = |values: serde_json::Value| {
            let values = values.as_object().unwrap().clone();
            let config = DriverConfig { values, ..DriverConfig::default() };
            arguments(&reader(&config).unwrap()).map(|a| a.join(" ")).map_err(|e| e.to_string())
        };
        let json = serde_json::json!({ "jar_path": "j.jar", "jvm_options": ["-Xmx1g"], "args": ["a", "b"] });
        assert_eq!(line(json).unwrap(), "-Xmx1g -jar j.jar a b");
        let json = serde_json::json!({ "class": "Main", "class_path": "x:y", "args": ["a"], "jar_path": null });
        assert_eq!(line(json).unwrap(), "-cp x:y Main a");
        // Jobs name jars by their place in the task's root, wherever the task starts.
        let json = serde_json::json!({ "class": "Main", "class_path": "x/*::/y:z.jar", "work_dir": "/tmp" });
        assert_eq!(line(json).unwrap(), "-cp x/*:/x/*::/y:z.jar:/z.jar Main");
        for (jar_path, jar) in [("local/j.jar", "/local/j.jar"), ("/j.jar", "/j.jar")] {
            let json = serde_json::json!({ "jar_path": jar_path, "work_dir": "/tmp" });
            assert_eq!(line(json).unwrap(), format!("-jar {jar}"));
        }
        assert!(line(serde_json::json!({})).unwrap_err().ends_with("jar_path or class must be specified"));
    }
}
