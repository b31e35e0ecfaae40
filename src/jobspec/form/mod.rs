//! The job in the API's form: out of a job file, with the defaults of client and server, and the difference of two.
//! Never decides whether a job makes sense or can run.

mod change;
mod decode;
mod defaults;
mod diff;
mod free;
mod shapes;
mod stored;
pub(super) mod types;
mod written;

pub use change::{GroupChange, group_change, is_changed};
pub use diff::{DiffType, FieldDiff, GroupDiff, JobDiff, ObjectDiff, PlannedUpdates, TaskDiff, diff};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value as Json};

use super::json::{Member, Node, NodeKind};
use super::value::{Number, Value};
use super::{Diagnostic, Error, Input, Origin, Parsed, Sink, api, in_body, job, with_job};
use crate::spec::Pos;
use crate::spec::json::json;

/// A job file as the JSON that `nomad job run -output` prints: `{"Job": {...}}`, in which a key that the file does not have is null.
///
/// # Errors
/// What keeps the file from being read as a job. Whether a server would take the job is not asked.
pub fn to_api(input: &Input<'_>) -> Result<Json, Error> {
    if let Some(given) = api_form(input.text) {
        return Ok(json!({ "Job": decode::job(&given).map_err(|message| wrong(input.file, &message))? }));
    }
    let native = !super::is_json(input.text);
    let (job, _) = with_job(input, Origin::Here, |block, _, sink| Some(written::job(block, native, sink)))?;
    Ok(json!({ "Job": job }))
}

/// A job file and values for its variables that somebody sent, as `/v1/jobs/parse` answers without `Canonicalize`: its functions read
/// no files, and values for variables that it does not have are passed over.
///
/// # Errors
/// What keeps the text from being read as a job; it is called `input.hcl` then.
pub fn parse_sent(text: &str, variables: &str) -> Result<Map<String, Json>, Error> {
    let files = [(PathBuf::from("input.vars"), variables.to_owned())];
    let input = Input {
        file: Path::new("input.hcl"),
        text,
        vars: &[],
        var_files: if variables.trim().is_empty() { &[] } else { &files },
        env: &[],
        base_dir: Path::new("/"),
        stays_in_base_dir: true,
    };
    let native = !super::is_json(text);
    with_job(&input, Origin::Sent, |block, _, sink| Some(written::job(block, native, sink))).map(|(job, _)| job)
}

/// A submitted job with the defaults of the API's client, as `/v1/jobs/parse` answers where `Canonicalize` is set.
///
/// # Errors
/// A value that cannot stand where it stands, by its path.
pub fn with_defaults(given: &Json) -> Result<Map<String, Json>, Error> {
    let mut job = decode::job(given).map_err(|message| wrong(Path::new("job"), &message))?;
    defaults::fill(&mut job);
    Ok(job)
}

/// A submitted job, alone or as the member `Job`, as a server keeps it: member names in any case, unknown members left out, all
/// defaults filled in. What comes out goes in again without a change but that of `SubmitTime`.
///
/// `now` is in nanoseconds since 1970.
///
/// # Errors
/// A value that cannot stand where it stands, by its path.
pub fn canonicalize(given: &Json, now: i64) -> Result<Map<String, Json>, Error> {
    let mut job = with_defaults(given)?;
    stored::fill(&mut job, now);
    Ok(job)
}

/// Reads a job in the API's form, as [`canonicalize`] makes it, into the values that a run needs. What a dispatch will give is not
/// missing in it. Relative artifact sources start from
/// `base_dir`.
///
/// # Errors
/// Everything that is wrong with the job.
pub fn from_api(given: &Map<String, Json>, base_dir: &Path) -> Result<Parsed, Error> {
    let sink = Sink::default();
    let input = Input {
        file: Path::new("job"),
        text: "",
        vars: &[],
        var_files: &[],
        env: &[],
        base_dir,
        stays_in_base_dir: false,
    };
    let pos = Pos { file: Arc::from("job"), line: 0, column: 0 };
    let members = members(given, &pos);
    let body = api::body(&pos, &members, &sink)?;
    let job = in_body(&input, Origin::Sent, &body, &pos, &sink, job::decode)?;
    let warnings = sink.take_warnings().iter().map(ToString::to_string).collect();
    Ok(Parsed { job, warnings, refusals: sink.take_refusals() })
}

/// The JSON of a text, if it is a job in the API's form.
fn api_form(text: &str) -> Option<Json> {
    if !super::is_json(text) {
        return None;
    }
    let given: Json = serde_json::from_str(text).ok()?;
    let members = given.as_object()?;
    let has = |name: &str| members.contains_key(name);
    (has("Job") || has("ID") || has("TaskGroups")).then_some(given)
}

fn wrong(file: &Path, message: &str) -> Error {
    let pos = Pos { file: Arc::from(file.to_string_lossy().as_ref()), line: 0, column: 0 };
    Diagnostic::new(&pos, message).into()
}

fn members(object: &Map<String, Json>, pos: &Pos) -> Vec<Member> {
    let member =
        |(name, value): (&String, &Json)| Member { name: name.clone(), pos: pos.clone(), node: node(value, pos) };
    object.iter().map(member).collect()
}

fn node(value: &Json, pos: &Pos) -> Node {
    let kind = match value {
        Json::Null => NodeKind::Scalar(Value::Null),
        Json::Bool(b) => NodeKind::Scalar(Value::Bool(*b)),
        Json::Number(n) => NodeKind::Scalar(number(n)),
        Json::String(s) => NodeKind::Scalar(Value::String(s.clone())),
        Json::Array(items) => NodeKind::List(items.iter().map(|item| node(item, pos)).collect()),
        Json::Object(inner) => NodeKind::Object(members(inner, pos)),
    };
    Node { pos: pos.clone(), kind }
}

fn number(number: &serde_json::Number) -> Value {
    let int = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    let float = || number.as_f64().and_then(Number::from_f64);
    int.map(Number::Int).or_else(float).map_or(Value::Null, Value::Number)
}
