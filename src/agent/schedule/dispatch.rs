//! Jobs that are started by `job dispatch`: what they have to be given, and what is started.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use crate::agent::model::{JobKey, JobStatus, JobVersion, Nanos};
use crate::spec::Job;
use crate::spec::collections::BTreeMap;

/// What a dispatch gives.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a> {
    /// The payload; empty for none.
    pub payload: &'a [u8],
    /// Metadata over the job's.
    pub meta: &'a BTreeMap<String, String>,
    /// What the child's id is to contain; empty for nothing.
    pub id_prefix: &'a str,
    /// The child's priority; 0 is the parent's.
    pub priority: i64,
    /// A dispatch with the same token is the same dispatch; empty for none. Whether there is one already is the caller's to see.
    pub idempotency_token: &'a str,
}

/// The job that a dispatch starts: as its parent, which reads as `read`, with what it was given. It keeps `ParameterizedJob`, as in
/// Nomad; that it was dispatched says that it runs. `random` makes its id its own.
///
/// # Errors
/// Nomad's words of what the dispatch lacks, or gives although the job does not take it.
pub fn child(
    parent: &JobVersion,
    read: &Job,
    parameters: &Parameters<'_>,
    now: Nanos,
    random: u32,
) -> Result<JobVersion, String> {
    let rules = read.scheduling.parameterized.as_ref().filter(|_| !parent.dispatched);
    let rules = rules.ok_or_else(|| format!("Specified job {:?} is not a parameterized job", parent.key.id))?;
    rules.check(parameters.payload, parameters.meta).map_err(|error| error.to_string())?;
    if parameters.priority != 0 && !(1..=100).contains(&parameters.priority) {
        return Err("dispatch job priority must be between [1, 100]".to_owned());
    }
    let id = id(&parent.key.id, parameters.id_prefix, now, random);
    let mut spec = parent.spec.clone();
    for key in ["ID", "Name"] {
        spec.insert(key.to_owned(), Value::from(id.as_str()));
    }
    if !parameters.meta.is_empty() {
        let mut meta = match spec.remove("Meta") {
            Some(Value::Object(meta)) => meta,
            _ => Map::new(),
        };
        meta.extend(parameters.meta.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str()))));
        spec.insert("Meta".to_owned(), Value::Object(meta));
    }
    if parameters.priority > 0 {
        spec.insert("Priority".to_owned(), Value::from(parameters.priority));
    }
    Ok(JobVersion {
        key: JobKey { namespace: parent.key.namespace.clone(), id },
        version: 0,
        spec,
        stop: false,
        stable: false,
        status: JobStatus::Pending,
        status_description: String::new(),
        parent_id: parent.key.id.clone(),
        dispatched: true,
        payload: BASE64.encode(parameters.payload),
        dispatch_idempotency_token: parameters.idempotency_token.to_owned(),
        submit_time: now,
        version_tag: None,
        create_index: 0,
        modify_index: 0,
        job_modify_index: 0,
    })
}

/// `<parent>/dispatch-<seconds>-<8 digits>`, with the prefix before the seconds.
fn id(parent: &str, prefix: &str, now: Nanos, random: u32) -> String {
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}-") };
    format!("{parent}/dispatch-{prefix}{}-{random:08x}", now.0.div_euclid(1_000_000_000))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{job, version};
    use super::*;
    use crate::spec::{Parameterized, PayloadRule};

    fn parent() -> (JobVersion, Job) {
        let mut job = job(1);
        job.scheduling.parameterized = Some(Parameterized {
            payload: PayloadRule::Required,
            meta_required: ["a", "b"].map(str::to_owned).into(),
            meta_optional: ["c".to_owned()].into(),
            ..Parameterized::default()
        });
        let mut parent = version(0);
        parent.spec = serde_json::json!({"ID": "web", "Name": "web", "Meta": {"a": "0", "k": "v"}, "X": 1})
            .as_object()
            .cloned()
            .unwrap();
        (parent, job)
    }

    fn dispatched(payload: &[u8], meta: &[(&str, &str)]) -> Result<JobVersion, String> {
        let (parent, job) = parent();
        let meta = meta.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let given = Parameters { payload, meta: &meta, id_prefix: "", priority: 0, idempotency_token: "t" };
        child(&parent, &job, &given, Nanos(1_795_439_407_500_000_000), 0x2e1a_63ae)
    }

    #[test]
    fn a_dispatch_is_a_job_of_its_own_with_what_it_was_given() {
        let child = dispatched(b"x\n", &[("a", "1"), ("b", "2")]).unwrap();
        assert_eq!(child.key.id, "web/dispatch-1795439407-2e1a63ae");
        let seen = (child.parent_id.as_str(), child.dispatched, child.payload.as_str(), child.version);
        assert_eq!(seen, ("web", true, "eAo=", 0));
        assert_eq!(child.spec["Meta"], serde_json::json!({"a": "1", "b": "2", "k": "v"}));
        assert_eq!((&child.spec["Name"], &child.spec["X"]), (&Value::from(child.key.id.as_str()), &Value::from(1)));
        assert_eq!(id("a/b", "foo", Nanos(2_999_999_999), 1), "a/b/dispatch-foo-2-00000001");
    }

    /// J7: the words are those of a real agent.
    #[test]
    fn what_a_job_does_not_take_is_refused() {
        let long = vec![0; 20_000];
        for (payload, meta, expected) in [
            (&b""[..], &[][..], "Payload is not provided but required by parameterized job"),
            (b"x", &[], "Dispatch did not provide required meta keys: [a b]"),
            (b"x", &[("a", ""), ("z", ""), ("y", "")], "Dispatch request included unpermitted metadata keys: [y z]"),
            (&long, &[("a", ""), ("b", "")], "Payload exceeds maximum size; 20000 > 16384"),
        ] {
            assert_eq!(dispatched(payload, meta).unwrap_err(), expected);
        }
        let (parent, mut job) = parent();
        let meta = BTreeMap::new();
        let given = Parameters { payload: b"x", meta: &meta, id_prefix: "", priority: 0, idempotency_token: "" };
        job.scheduling.parameterized =
            Some(Parameterized { payload: PayloadRule::Forbidden, ..Parameterized::default() });
        let refused = child(&parent, &job, &given, Nanos(0), 0).unwrap_err();
        assert_eq!(refused, "Payload provided but forbidden by parameterized job");
        job.scheduling.parameterized = Some(Parameterized::default());
        for (priority, expected) in [(-1, false), (0, true), (1, true), (100, true), (101, false)] {
            let given = Parameters { payload: b"", priority, ..given };
            let refused = child(&parent, &job, &given, Nanos(0), 0).err();
            let told = (!expected).then(|| "dispatch job priority must be between [1, 100]".to_owned());
            assert_eq!(refused, told, "{priority}");
        }
        let again = JobVersion { dispatched: true, ..parent };
        let refused = child(&again, &job, &given, Nanos(0), 0).unwrap_err();
        assert_eq!(refused, "Specified job \"web\" is not a parameterized job");
    }
}
