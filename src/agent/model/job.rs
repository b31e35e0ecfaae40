//! A job with its versions.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{JobKey, Nanos};

/// Nomad's status of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "Nomad's words")]
pub enum JobStatus {
    Pending,
    Running,
    Dead,
}

/// The name that somebody gave to a version, which is then kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct VersionTag {
    /// The name.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub description: String,
    /// When it was given.
    pub tagged_time: Nanos,
}

/// One version of a job. What stands in it beside the specification is laid over `spec` in an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct JobVersion {
    /// Which job.
    pub key: JobKey,
    /// From 0.
    pub version: u64,
    /// The specification as it was submitted, in API form with all defaults (`jobspec::canonicalize`); unknown keys are kept.
    pub spec: Map<String, Value>,
    /// Somebody stopped it.
    pub stop: bool,
    /// A deployment of it was successful.
    pub stable: bool,
    /// What all its allocations and evaluations say.
    pub status: JobStatus,
    /// Why.
    #[serde(default)]
    pub status_description: String,
    /// The job that dispatched it, or that a clock starts again and again; empty for none.
    #[serde(default)]
    pub parent_id: String,
    /// It was dispatched.
    #[serde(default)]
    pub dispatched: bool,
    /// What a dispatched job was given, base64.
    #[serde(default)]
    pub payload: String,
    /// The token of the dispatch, which is done once.
    #[serde(default)]
    pub dispatch_idempotency_token: String,
    /// When this version was submitted.
    pub submit_time: Nanos,
    /// Its name, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version_tag: Option<VersionTag>,
    /// Index at which the job came to be.
    pub create_index: u64,
    /// Index of the last change, also of its status.
    pub modify_index: u64,
    /// Index of the last change of the specification.
    pub job_modify_index: u64,
}

impl JobVersion {
    /// The names of its groups.
    pub fn group_names(&self) -> impl Iterator<Item = &str> {
        let groups = self.spec.get("TaskGroups").and_then(Value::as_array).into_iter().flatten();
        groups.filter_map(|group| group.get("Name")?.as_str())
    }

    /// It never runs itself: it is started by a clock, or dispatched.
    #[must_use]
    pub fn is_template(&self) -> bool {
        let has = |key: &str| self.spec.get(key).is_some_and(|value| !value.is_null());
        has("Periodic") || has("ParameterizedJob") && !self.dispatched
    }
}

/// The text that a version was made from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Submission {
    /// The job file.
    pub source: String,
    /// `hcl2`, `hcl1` or `json`.
    pub format: String,
    /// `-var` of the command line.
    #[serde(default)]
    pub variable_flags: crate::spec::collections::BTreeMap<String, String>,
    /// The text of `-var-file`s.
    #[serde(default)]
    pub variables: String,
}

/// That somebody changed how many allocations a group has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ScalingEvent {
    /// When.
    pub time: Nanos,
    /// How many from then on; `None` where only something was said.
    pub count: Option<i64>,
    /// How many before.
    pub previous_count: i64,
    /// Why.
    #[serde(default)]
    pub message: String,
    /// It says that something failed.
    #[serde(default)]
    pub error: bool,
    /// What was said beside that.
    #[serde(default)]
    pub meta: Option<Map<String, Value>>,
    /// What had to be decided.
    #[serde(rename = "EvalID")]
    pub eval_id: Option<String>,
    /// Index at which it came to be.
    pub create_index: u64,
}
