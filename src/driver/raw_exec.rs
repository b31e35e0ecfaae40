use std::time::Duration;

use super::config::Reader;
use super::handle::{Settings, Tasks, launch_spec};
use super::{Driver, DriverError, FsIsolation, TaskConfig, TaskHandle};
use crate::executor::Isolation;
use crate::spec::{DriverConfig, ExitResult, Signal, TaskStats};

const NAME: &str = "raw_exec";
const KEYS: [&str; 8] = [
    "command",
    "args",
    "cgroup_v1_override",
    "cgroup_v2_override",
    "oom_score_adj",
    "work_dir",
    "denied_envvars",
    "pids_limit",
];

/// The `raw_exec` driver: a task on the host's files as the agent's user, in a cgroup and group of its own.
#[derive(Debug)]
pub struct RawExecDriver {
    tasks: Tasks,
}

/// A task's `config` block.
struct RawExecConfig {
    command: String,
    args: Vec<String>,
    cgroup_v1_override: Vec<(String, String)>,
    cgroup_v2_override: String,
    oom_score_adj: i32,
    work_dir: String,
    pids_limit: Option<u64>,
    denied_envvars: Vec<String>,
}

impl RawExecDriver {
    /// A driver without tasks.
    #[must_use]
    pub fn new(settings: Settings) -> RawExecDriver {
        RawExecDriver { tasks: Tasks::new(Isolation::Universal, settings) }
    }
}

fn read(config: &DriverConfig) -> Result<RawExecConfig, DriverError> {
    let reader = Reader::new(NAME, config, &KEYS)?;
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
    Ok(RawExecConfig {
        command: reader.required("command")?,
        args: reader.strings("args")?,
        cgroup_v1_override: v1,
        cgroup_v2_override: v2,
        oom_score_adj,
        work_dir: reader.absolute_path("work_dir")?,
        pids_limit: reader.limit("pids_limit")?,
        denied_envvars: reader.strings("denied_envvars")?,
    })
}

/// Whether a name matches a pattern in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[tonic::async_trait]
impl Driver for RawExecDriver {
    fn name(&self) -> &'static str {
        NAME
    }

    fn fs_isolation(&self) -> FsIsolation {
        FsIsolation::None
    }

    fn validate(&self, config: &DriverConfig) -> Result<(), DriverError> {
        read(config).map(drop)
    }

    async fn start_task(&self, task: &TaskConfig) -> Result<TaskHandle, DriverError> {
        let config = read(&task.config)?;
        let mut spec = launch_spec(task, config.command, config.args);
        spec.env.retain(|entry| {
            let name = entry.split('=').next().unwrap_or_default();
            !config.denied_envvars.iter().any(|pattern| matches(pattern, name))
        });
        spec.resources.pids_max = config.pids_limit;
        spec.user.clone_from(&task.user);
        spec.work_dir = config.work_dir;
        spec.cgroup_v1_override = config.cgroup_v1_override.into_iter().collect();
        spec.cgroup_v2_override = config.cgroup_v2_override;
        spec.oom_score_adj = config.oom_score_adj;
        self.tasks.start(task, spec).await
    }

    async fn wait_task(&self, id: &str) -> Result<ExitResult, DriverError> {
        self.tasks.wait(id).await
    }

    async fn stop_task(&self, id: &str, timeout: Duration, signal: Option<Signal>) -> Result<(), DriverError> {
        self.tasks.stop(id, timeout, signal).await
    }

    async fn signal_task(&self, id: &str, signal: Signal) -> Result<(), DriverError> {
        self.tasks.signal(id, signal).await
    }

    async fn task_stats(&self, id: &str) -> Result<TaskStats, DriverError> {
        self.tasks.stats(id).await
    }

    async fn destroy_task(&self, id: &str, force: bool) -> Result<(), DriverError> {
        self.tasks.destroy(id, force).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_names_are_globs() {
        for (pattern, name, expected) in [
            ("AWS_*", "AWS_SECRET", true),
            ("AWS_*", "MY_AWS_SECRET", false),
            ("*TOKEN", "NOMAD_TOKEN", true),
            ("*_X_*", "A_X_B", true),
            ("*_X_*", "A_X", false),
            ("HOME", "HOME", true),
            ("HOME", "HOMES", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    /// `TestRawExecDriver_validate`: texts that hosts and people know.
    #[test]
    fn configs_are_checked() {
        let error = |pairs: &[(&str, serde_json::Value)]| {
            let mut config = DriverConfig::default();
            config.values.insert("command".into(), "true".into());
            config.values.extend(pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())));
            read(&config).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert_eq!(error(&[]), "");
        assert!(error(&[("work_dir", "x".into())]).contains("work_dir must be absolute"));
        assert!(error(&[("oom_score_adj", (-1).into())]).contains("oom_score_adj must not be negative"));
        let both = [("cgroup_v2_override", "x".into()), ("cgroup_v1_override", serde_json::json!([{"pids": "/x"}]))];
        assert!(error(&both).contains("only one of cgroups_v1_override and cgroups_v2_override may be set"));
        assert!(error(&[("comand", "x".into())]).contains("unsupported key \"comand\""));
    }
}
