//! What tasks inherit from the agent's environment where the agent itself passes nothing on.
//!
//! An agent merges its own environment, without the variables in `env.denylist`, into that of tasks whose driver has no image
//! isolation; the task's variables take precedence. `exec` and `java` report image isolation, so that nothing is copied into
//! the task's directory, and so get nothing. Programs that call others by name still need `PATH`, so the driver merges the
//! environment that it inherited from the agent.

use super::DriverError;
use super::config::Reader;
use crate::plugin::COOKIE_KEY;
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;
use crate::wire::hclspec::Spec;
use crate::wire::schema::{self, Literal};

/// Name of the plugin's key.
pub(super) const KEY: &str = "host_env_denylist";

/// Nomad's default of `env.denylist`, as its documentation of the client's configuration lists it.
pub const DENIED: [&str; 8] = [
    "CONSUL_TOKEN",
    "CONSUL_HTTP_TOKEN",
    "VAULT_TOKEN",
    "NOMAD_LICENSE",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// Variables that a go-plugin host sets for a plugin. They are not part of the agent's environment.
const OF_GO_PLUGIN: [&str; 8] = [
    COOKIE_KEY,
    "PLUGIN_CLIENT_CERT",
    "PLUGIN_MAX_PORT",
    "PLUGIN_MIN_PORT",
    "PLUGIN_MULTIPLEX_GRPC",
    "PLUGIN_PROTOCOL_VERSIONS",
    "PLUGIN_UNIX_SOCKET_DIR",
    "PLUGIN_UNIX_SOCKET_GROUP",
];

/// The names of inherited variables that tasks do not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEnv {
    denied: Vec<String>,
}

impl Default for HostEnv {
    fn default() -> HostEnv {
        HostEnv { denied: DENIED.map(str::to_owned).to_vec() }
    }
}

impl HostEnv {
    /// The key's schema.
    pub(super) fn schema() -> (&'static str, Spec) {
        (KEY, schema::with_default(schema::attr(KEY, "list(string)", false), Literal::strings(&DENIED)))
    }

    /// Reads the key; without it Nomad's list applies.
    ///
    /// # Errors
    /// [`DriverError::Config`].
    pub(super) fn read(reader: &Reader<'_>) -> Result<HostEnv, DriverError> {
        Ok(if reader.has(KEY) { HostEnv { denied: reader.strings(KEY)? } } else { HostEnv::default() })
    }

    /// The environment of a task; its own variables `task` take precedence, including denied names.
    pub(super) fn below(
        &self,
        inherited: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>,
        task: &BTreeMap<String, String>,
    ) -> BTreeMap<String, String> {
        let handed_on = |key: &str| !OF_GO_PLUGIN.contains(&key) && !self.denied.iter().any(|denied| denied == key);
        // Non-UTF-8 values cannot be sent in a launch request, and agents do not pass them on either.
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        let mut env: BTreeMap<String, String> = inherited.filter_map(text).filter(|(key, _)| handed_on(key)).into_map();
        env.extend(task.iter().map(|(key, value)| (key.clone(), value.clone())));
        env
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_task_inherits_what_is_neither_denied_nor_go_plugins() {
        let mut inherited: Vec<(std::ffi::OsString, std::ffi::OsString)> =
            OF_GO_PLUGIN.iter().chain(&DENIED).map(|key| (key.into(), "x".into())).collect();
        inherited.extend(
            [("PATH", "/bin"), ("LANG", "C"), ("PLUGIN_OF_MINE", "1"), ("MINE", "no")]
                .map(|(k, v)| (k.into(), v.into())),
        );
        inherited.push(("RAW".into(), std::ffi::OsString::from_vec(vec![0xff])));
        let task = env(&[("LANG", "C.UTF-8"), ("VAULT_TOKEN", "the job's own")]);
        let merged = |of: &HostEnv| of.below(inherited.clone().into_iter(), &task);

        let expected =
            [("PATH", "/bin"), ("LANG", "C.UTF-8"), ("PLUGIN_OF_MINE", "1"), ("VAULT_TOKEN", "the job's own")];
        let mut by_default = env(&expected);
        by_default.insert("MINE".to_owned(), "no".to_owned());
        assert_eq!(merged(&HostEnv::default()), by_default);

        let own = merged(&HostEnv { denied: vec!["MINE".to_owned()] });
        assert_eq!(own.get("MINE"), None);
        assert_eq!(
            own.get("NOMAD_LICENSE").map(String::as_str),
            Some("x"),
            "a list of the operator's is the whole list"
        );
        assert_eq!(own.get("NOMAD_PLUGIN_MAGIC_COOKIE"), None, "what go-plugin set is nobody's to hand on");
    }
}
