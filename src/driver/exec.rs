//! The driver `exec`: a command in a root of its own.

use super::config::Reader;
use super::host_env::HostEnv;
use super::ids::DeniedIds;
use super::isolated::IsolatedConfig;
use super::on_executor::{Common, OnExecutor, Plan};
use super::{Capabilities, DriverError, Fingerprint, TaskConfig};
use crate::cgroup::Regime;
use crate::executor::Isolation;
use crate::spec::{DriverConfig, HostIdSpace, LaunchSpec};
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

const OWN_KEYS: [&str; 3] = ["no_pivot_root", "denied_host_uids", "denied_host_gids"];
const OWN_TASK_KEYS: [&str; 2] = ["command", "args"];

/// The `exec` driver: a task with its own root, assembled from read-only binds of the host's directories.
pub type ExecDriver = OnExecutor<Exec>;

/// The part of `OnExecutor` that is specific to `exec`.
#[derive(Debug)]
pub struct Exec;

/// Plugin configuration.
#[derive(Debug, Default)]
pub struct Config {
    isolated: IsolatedConfig,
    no_pivot_root: bool,
    denied: DeniedIds,
}

fn reader(task: &DriverConfig) -> Result<Reader<'_>, DriverError> {
    Reader::new(Exec::NAME, task, &[&OWN_TASK_KEYS[..], &IsolatedConfig::TASK_KEYS].concat())
}

#[tonic::async_trait]
impl Plan for Exec {
    const NAME: &'static str = "exec";
    const ISOLATION: Isolation = Isolation::Isolated;
    type Config = Config;

    fn config_schema() -> Spec {
        let mut attributes = IsolatedConfig::schema();
        let off = Literal::bool(false);
        attributes.push(("no_pivot_root", schema::with_default(schema::attr("no_pivot_root", "bool", false), off)));
        attributes.extend(OWN_KEYS[1..].iter().map(|name| (*name, schema::attr(name, "string", false))));
        schema::object(attributes)
    }

    fn read_config(config: &DriverConfig) -> Result<Config, DriverError> {
        let reader = Reader::new(Exec::NAME, config, &[&OWN_KEYS[..], &IsolatedConfig::KEYS].concat())?;
        Ok(Config {
            isolated: IsolatedConfig::read(&reader)?,
            no_pivot_root: reader.flag("no_pivot_root")?.unwrap_or(false),
            denied: DeniedIds::read(&reader)?,
        })
    }

    fn common(config: &Config) -> &Common {
        config.isolated.common()
    }

    fn host_ids(config: &Config) -> Option<HostIdSpace> {
        config.isolated.host_ids().given()
    }

    fn has_own_ids(config: &Config, task: &DriverConfig) -> bool {
        config.isolated.has_own_ids(&Reader::any(Exec::NAME, task))
    }

    fn task_config_schema() -> Spec {
        let mut attributes = IsolatedConfig::task_schema();
        attributes.push(("command", schema::attr("command", "string", true)));
        attributes.push(("args", schema::attr("args", "list(string)", false)));
        schema::object(attributes)
    }

    fn host_env(config: &Config) -> Option<&HostEnv> {
        config.isolated.host_env()
    }

    fn capabilities(config: &Config) -> Capabilities {
        config.isolated.capabilities()
    }

    async fn fingerprint(_: &Config, agents: Option<Regime>) -> Fingerprint {
        IsolatedConfig::obstacle(agents).unwrap_or_else(|| Fingerprint::healthy(Exec::NAME))
    }

    fn validate(config: &Config, task: &DriverConfig) -> Result<(), DriverError> {
        let reader = reader(task)?;
        config.isolated.validate(&reader)?;
        reader.required("command")?;
        reader.strings("args").map(drop)
    }

    fn plan(config: &Config, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError> {
        let reader = reader(&task.config)?;
        config.isolated.validate(&reader)?;
        spec.command = reader.required("command")?;
        spec.args = reader.strings("args")?;
        spec.no_pivot_root = config.no_pivot_root;
        spec.host_users = config.denied.is_any();
        config.isolated.plan(&reader, task, spec)?;
        config.denied.check(&spec.user)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_missing_command_is_the_last_mistake_that_is_told() {
        let wrong = |values: serde_json::Value| {
            let config = DriverConfig { values: values.as_object().unwrap().clone(), ..DriverConfig::default() };
            let validated = Exec::validate(&Config::default(), &config).unwrap_err().to_string();
            let task = TaskConfig { config, ..TaskConfig::default() };
            let planned = Exec::plan(&Config::default(), &task, &mut LaunchSpec::default()).unwrap_err().to_string();
            assert_eq!(validated, planned);
            planned
        };
        let mut values = json!({});
        for (key, value, expected) in [
            ("args", json!([]), "command is missing; it names the program to run"),
            ("work_dir", "local".into(), "work_dir must be absolute but got relative path \"local\""),
            ("cap_add", json!(["fly"]), "cap_add configured with capabilities not supported by system: fly"),
            ("ipc_mode", "none".into(), "ipc_mode must be \"private\" or \"host\", got \"none\""),
            ("pid_mode", "none".into(), "pid_mode must be \"private\" or \"host\", got \"none\""),
        ] {
            values[key] = value;
            assert_eq!(wrong(values.clone()), format!("config of driver exec: {expected}"));
        }
    }
}
