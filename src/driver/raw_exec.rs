//! The driver `raw_exec`: a command on the host's files, in a cgroup of its own.

use super::config::Reader;
use super::glob::matches;
use super::ids::DeniedIds;
use super::on_executor::{self, Common, OnExecutor, Plan};
use super::{Capabilities, DriverError, Fingerprint, FsIsolation, Health, NetworkMode, Settings, TaskConfig};
use crate::cgroup::Regime;
use crate::executor::Isolation;
use crate::spec::{DriverConfig, IntoMap as _, LaunchSpec};
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

const KEYS: [&str; 5] = ["enabled", "no_cgroups", "denied_host_uids", "denied_host_gids", "denied_envvars"];
const TASK_KEYS: [&str; 7] =
    ["command", "args", "cgroup_v1_override", "cgroup_v2_override", "oom_score_adj", "work_dir", "denied_envvars"];

/// The `raw_exec` driver: a task on the host's files as the agent's user, in a cgroup and group of its own.
pub type RawExecDriver = OnExecutor<RawExec>;

impl RawExecDriver {
    /// A driver that runs nothing until a configuration enables it: the default is meant for `agentbin run`, and an agent may not
    /// have sent one yet.
    pub(crate) fn disabled(settings: Settings) -> RawExecDriver {
        RawExecDriver::new(settings).with_config(Config { enabled: false, ..Config::default() })
    }
}

/// The part of `OnExecutor` that is specific to `raw_exec`.
#[derive(Debug)]
pub struct RawExec;

/// Plugin configuration.
#[derive(Debug)]
pub struct Config {
    common: Common,
    enabled: bool,
    no_cgroups: bool,
    denied: DeniedIds,
    denied_envvars: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        let (common, denied) = (Common::default(), DeniedIds::default());
        Config { common, enabled: true, no_cgroups: false, denied, denied_envvars: Vec::new() }
    }
}

/// A task's `config` block.
struct Task {
    command: String,
    args: Vec<String>,
    cgroup_v1_override: Vec<(String, String)>,
    cgroup_v2_override: String,
    oom_score_adj: i32,
    work_dir: String,
    denied_envvars: Vec<String>,
}

fn read(config: &DriverConfig) -> Result<Task, DriverError> {
    let reader = Reader::new(RawExec::NAME, config, &[&TASK_KEYS[..], &on_executor::TASK_KEYS].concat())?;
    let v1 = reader.pairs("cgroup_v1_override")?;
    let v2 = reader.string("cgroup_v2_override")?.unwrap_or_default();
    if !v1.is_empty() && !v2.is_empty() {
        let text = "only one of cgroups_v1_override and cgroups_v2_override may be set";
        return Err(reader.error("cgroup_v2_override", text));
    }
    let oom_score_adj = reader.integer("oom_score_adj")?.unwrap_or(0);
    if oom_score_adj < 0 {
        return Err(reader.error("oom_score_adj", "oom_score_adj must not be negative"));
    }
    let oom_score_adj = i32::try_from(oom_score_adj)
        .ok()
        .filter(|score| *score <= 1000)
        .ok_or_else(|| reader.error("oom_score_adj", "oom_score_adj must be at most 1000"))?;
    // Before the command: hosts look for the first mistake that Nomad's driver finds.
    let work_dir = reader.absolute_path("work_dir")?;
    Ok(Task {
        command: reader.required("command")?,
        args: reader.strings("args")?,
        cgroup_v1_override: v1,
        cgroup_v2_override: v2,
        oom_score_adj,
        work_dir,
        denied_envvars: reader.strings("denied_envvars")?,
    })
}

#[tonic::async_trait]
impl Plan for RawExec {
    const NAME: &'static str = "raw_exec";
    const ISOLATION: Isolation = Isolation::Universal;
    type Config = Config;

    fn config_schema() -> Spec {
        let flag = |name| (name, schema::with_default(schema::attr(name, "bool", false), Literal::bool(false)));
        let mut attributes = Common::schema().to_vec();
        attributes.extend([flag("enabled"), flag("no_cgroups")]);
        attributes
            .extend(["denied_host_uids", "denied_host_gids"].map(|name| (name, schema::attr(name, "string", false))));
        attributes.push(("denied_envvars", schema::attr("denied_envvars", "list(string)", false)));
        schema::object(attributes)
    }

    fn read_config(config: &DriverConfig) -> Result<Config, DriverError> {
        let reader = Reader::new(RawExec::NAME, config, &[&KEYS[..], &Common::KEYS].concat())?;
        Ok(Config {
            common: Common::read(&reader)?,
            enabled: reader.flag("enabled")?.unwrap_or(false),
            no_cgroups: reader.flag("no_cgroups")?.unwrap_or(false),
            denied: DeniedIds::read(&reader)?,
            denied_envvars: reader.strings("denied_envvars")?,
        })
    }

    fn common(config: &Config) -> &Common {
        &config.common
    }

    fn task_config_schema() -> Spec {
        let attribute = |name: &'static str, kind, required| (name, schema::attr(name, kind, required));
        let mut attributes = on_executor::task_schema();
        attributes.extend([
            attribute("command", "string", true),
            attribute("args", "list(string)", false),
            attribute("cgroup_v2_override", "string", false),
            attribute("cgroup_v1_override", "list(map(string))", false),
            attribute("oom_score_adj", "number", false),
            attribute("work_dir", "string", false),
            attribute("denied_envvars", "list(string)", false),
        ]);
        schema::object(attributes)
    }

    fn capabilities(config: &Config) -> Capabilities {
        Capabilities {
            send_signals: true,
            exec: true,
            fs_isolation: FsIsolation::None,
            network_modes: vec![NetworkMode::Host, NetworkMode::Group],
            must_create_network: false,
            no_mounts: true,
            disable_log_collection: config.common.needs_no_logmon(),
            dynamic_workload_users: false,
        }
    }

    async fn fingerprint(config: &Config, _: Option<Regime>) -> Fingerprint {
        if config.enabled {
            Fingerprint::healthy(RawExec::NAME)
        } else {
            Fingerprint::without(Health::Undetected, "disabled")
        }
    }

    fn validate(_: &Config, task: &DriverConfig) -> Result<(), DriverError> {
        read(task).map(drop)
    }

    fn plan(config: &Config, task: &TaskConfig, spec: &mut LaunchSpec) -> Result<(), DriverError> {
        if !config.enabled && !crate::sys::mutant::on("c04-off") {
            return Err(DriverError::Unsupported("raw_exec is disabled".to_owned()));
        }
        let read = read(&task.config)?;
        config.denied.check(&task.user)?;
        let denied: Vec<&String> = config.denied_envvars.iter().chain(&read.denied_envvars).collect();
        spec.env.retain(|entry| {
            let name = entry.split('=').next().unwrap_or_default();
            !denied.iter().any(|pattern| matches(pattern, name))
        });
        spec.command = read.command;
        spec.args = read.args;
        spec.work_dir = read.work_dir;
        spec.cgroup_v1_override = read.cgroup_v1_override.into_iter().into_map();
        spec.cgroup_v2_override = read.cgroup_v2_override;
        spec.oom_score_adj = read.oom_score_adj;
        if config.no_cgroups {
            spec.resource_limits = false;
            spec.cgroup.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `TestRawExecDriver_validate`: error texts that hosts and users know.
    #[test]
    fn configs_are_checked() {
        let error = |pairs: &[(&str, serde_json::Value)]| {
            let mut config = DriverConfig::default();
            config.values.insert("command".into(), "true".into());
            config.values.extend(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())));
            read(&config).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert_eq!(error(&[]), "");
        assert!(error(&[("work_dir", "x".into())]).contains("work_dir must be an absolute path"));
        assert!(error(&[("command", "".into())]).contains("command is missing"));
        assert!(error(&[("command", "".into()), ("work_dir", "x".into())]).contains("work_dir must be"));
        assert!(error(&[("oom_score_adj", (-1).into())]).contains("oom_score_adj must not be negative"));
        let both = [("cgroup_v2_override", "x".into()), ("cgroup_v1_override", serde_json::json!([{"pids": "/x"}]))];
        assert!(error(&both).contains("only one of cgroups_v1_override and cgroups_v2_override may be set"));
        assert!(error(&[("comand", "x".into())]).contains("unsupported key \"comand\""));
    }
}
