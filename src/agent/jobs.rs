//! A cache of parsed jobs, which are kept while they are in use.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, Weak};

use serde_json::{Map, Value};

use super::model::{JobKey, JobVersion, Nanos};
use crate::jobspec::{self, Diagnostic};
use crate::spec::Job;
use crate::sys::lock::lock;

/// Number of jobs kept after their last use, because a job is often requested again soon.
const RECENT: usize = 16;

/// A job, its create index (ids are reused after a purge), a version of it, and its submit time (numbers are reused if the change of
/// a version could not be committed).
type Key = (JobKey, u64, u64, Nanos);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    known: HashMap<Key, Weak<Job>>,
    recent: VecDeque<Arc<Job>>,
}

/// The parser's warning about a key that `agentbin run` ignores.
const PASSED_OVER: &str = " has no effect with agentbin run";
/// Keys that `agentbin run` ignores and this agent supports.
const DECIDED: [&str; 15] = [
    "SubmitTime",
    "action",
    "all_at_once",
    "datacenters",
    "ephemeral_disk",
    "migrate",
    "node_pool",
    "parameterized",
    "periodic",
    "priority",
    "reschedule",
    "scaling",
    "sticky",
    "type",
    "update",
];

/// Features that `agentbin run` refuses and this agent supports.
const DONE: [&str; 2] = ["dispatch_payload in ", "max_run_duration in "];

/// The warnings that also apply to an agent, without positions: an API job has no lines.
fn warnings(of_run: &[String]) -> Vec<String> {
    let text = |warning: &String| warning.split_once(": ").map_or(warning.as_str(), |(_, text)| text).to_owned();
    let holds = |text: &String| {
        let key = text.split_once(PASSED_OVER).map(|(key, _)| key);
        key.is_none_or(|key| !DECIDED.contains(&key.split(' ').next().unwrap_or_default()))
    };
    of_run
        .iter()
        .map(text)
        .filter(holds)
        .map(|text| text.replace(PASSED_OVER, " has no effect with agentbin"))
        .collect()
}

/// A parsed specification.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) job: Job,
    /// Warnings about it.
    pub(super) warnings: Vec<String>,
}

/// Parses a specification in the form that `jobspec::canonicalize` produces.
///
/// # Errors
/// Its errors, and the features that it uses and this agent lacks; one line each.
pub(super) fn read(spec: &Map<String, Value>) -> Result<Read, Vec<String>> {
    let mut parsed = jobspec::from_api(spec, Path::new("/")).map_err(|error| lines(&error.diagnostics))?;
    parsed.refusals.retain(|refusal| !DONE.iter().any(|key| refusal.message.starts_with(key)));
    if parsed.refusals.is_empty() {
        Ok(Read { job: parsed.job, warnings: warnings(&parsed.warnings) })
    } else {
        Err(lines(&parsed.refusals))
    }
}

/// Without positions: an API job has no lines.
fn lines(diagnostics: &[Diagnostic]) -> Vec<String> {
    diagnostics.iter().map(|diagnostic| diagnostic.message.clone()).collect()
}

impl Jobs {
    /// Empties the cache: other jobs may have these ids and versions from now on.
    pub(super) fn forget(&self) {
        *lock(&self.cache) = Cache::default();
    }

    /// The parsed job of a version.
    ///
    /// # Errors
    /// As [`read`].
    pub(super) fn of(&self, version: &JobVersion) -> Result<Arc<Job>, Vec<String>> {
        let key = (version.key.clone(), version.create_index, version.version, version.submit_time);
        if let Some(job) = lock(&self.cache).known.get(&key).and_then(Weak::upgrade) {
            return Ok(job);
        }
        let job = Arc::new(read(&version.spec)?.job);
        let mut cache = lock(&self.cache);
        cache.known.retain(|_, job| job.strong_count() > 0);
        cache.known.insert(key, Arc::downgrade(&job));
        if cache.recent.len() >= RECENT {
            cache.recent.pop_front();
        }
        cache.recent.push_back(Arc::clone(&job));
        Ok(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_with_the_same_number_is_parsed_anew() {
        let jobs = Jobs::default();
        let priority = |submit_time: Nanos, priority: i64| {
            let task = serde_json::json!({ "Name": "t", "Driver": "raw_exec", "Config": { "command": "/bin/true" } });
            let spec = jobspec::canonicalize(
                &serde_json::json!({
                    "ID": "web", "Name": "web", "Type": "batch", "Priority": priority, "Datacenters": ["dc1"],
                    "TaskGroups": [{ "Name": "g", "Count": 1, "Tasks": [task] }],
                }),
                0,
            );
            let key = JobKey { namespace: "default".to_owned(), id: "web".to_owned() };
            let version = crate::agent::versions::version(key, spec.unwrap());
            jobs.of(&JobVersion { submit_time, ..version }).unwrap().priority
        };
        assert_eq!((priority(Nanos(1), 50), priority(Nanos(2), 60)), (50, 60));
    }

    #[test]
    fn a_csi_volume_without_modes_is_not_taken() {
        let task = serde_json::json!({ "Name": "t", "Driver": "exec", "Config": { "command": "/bin/true" } });
        let volume = serde_json::json!({ "Name": "data", "Type": "csi", "Source": "data" });
        let group = serde_json::json!({ "Name": "g", "Tasks": [task], "Volumes": { "data": volume } });
        let job = serde_json::json!({ "ID": "web", "Type": "batch", "Datacenters": ["dc1"], "TaskGroups": [group] });
        let told = read(&jobspec::canonicalize(&job, 0).unwrap()).unwrap_err();
        assert!(told.len() == 2 && told[0].contains("without attachment_mode"), "{told:?}");
    }

    #[test]
    fn what_an_agent_decides_is_no_warning() {
        let of_run = [
            "job: update has no effect with agentbin run",
            "job: action has no effect with agentbin run",
            "job: scaling has no effect with agentbin run",
            "job: type system has no effect with agentbin run: the job is started once, here",
            "job: affinity has no effect with agentbin run",
            "job: the artifact is odd",
        ]
        .map(str::to_owned);
        assert_eq!(warnings(&of_run), ["affinity has no effect with agentbin", "the artifact is odd"]);
    }
}
