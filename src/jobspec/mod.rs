//! Turns a job file (Nomad's HCL2, its JSON form or the API's JSON) and the values of its variables into a [`spec::Job`](crate::spec::Job).
//! Never starts, schedules or fetches anything: the only files it opens are those that the job file's own
//! filesystem functions name.

mod api;
mod ast;
mod base;
mod budget;
pub(crate) mod config;
mod diag;
mod duration;
mod eval;
mod files;
mod form;
mod functions;
mod job;
mod json;
mod json_body;
mod name;
mod native;
mod network;
mod operators;
mod placement;
mod regular;
mod restart;
mod scan;
mod scheduling;
mod schema;
mod section;
mod service;
mod task;
#[cfg(test)]
mod tests;
mod types;
mod value;
mod variables;
mod volume;

use crate::spec::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use diag::Diagnostic;
pub(crate) use diag::did_you_mean;
pub use form::{
    DiffType, FieldDiff, GroupChange, GroupDiff, JobDiff, ObjectDiff, PlannedUpdates, TaskDiff, canonicalize, diff,
    from_api, group_change, is_changed, parse_sent, to_api, with_defaults,
};
pub use section::MOST_SAID;
pub(crate) use value::{Number, Value};

use ast::Body;
use base::Base;
use budget::Budget;
use diag::Source;
use eval::{Globals, Scope};
use section::{Expanded, Section, Sink};

/// A job file with everything that decides about its variables.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The file as it was named on the command line.
    pub file: &'a Path,
    /// Its contents.
    pub text: &'a str,
    /// Values of `--var name=value`, in order; they win over all others.
    pub vars: &'a [(String, String)],
    /// Names and contents of `--var-file`, in order; later ones win.
    pub var_files: &'a [(PathBuf, String)],
    /// The process's environment, of which `NOMAD_VAR_<name>` counts.
    pub env: &'a [(String, String)],
    /// Directory of the job file, where relative paths of functions and artifacts start.
    pub base_dir: &'a Path,
    /// Functions and artifacts read nothing but what lies below that directory, and follow no symbolic link.
    pub stays_in_base_dir: bool,
}

/// A job and what its file contains in vain.
#[derive(Debug, Clone, PartialEq)]
pub struct Parsed {
    /// The job.
    pub job: crate::spec::Job,
    /// One line each, `file:line: text`.
    pub warnings: Vec<String>,
    /// What Nomad knows and a run here would not do, each with the fix. A job with any of them must not be started: what it
    /// asks for there is missing in `job`.
    pub refusals: Vec<Diagnostic>,
}

/// Everything that is wrong with a job file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    /// At least one, in the order of the file.
    pub diagnostics: Vec<Diagnostic>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.diagnostics.iter().enumerate() {
            write!(f, "{}{diagnostic}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<Diagnostic> for Error {
    fn from(diagnostic: Diagnostic) -> Error {
        Error { diagnostics: vec![diagnostic] }
    }
}

/// Reads a job file.
///
/// # Errors
/// Everything that is wrong with the file or with the values of its variables, as far as it can be told at once.
pub fn parse(input: &Input<'_>) -> Result<Parsed, Error> {
    let (job, sink) = with_job(input, Origin::Here, job::decode)?;
    let warnings = sink.take_warnings().iter().map(ToString::to_string).collect();
    Ok(Parsed { job, warnings, refusals: sink.take_refusals() })
}

/// Where a text is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A file here, whose functions may read others.
    Here,
    /// Somebody else, who gets to read nothing.
    Sent,
}

/// Calls `read` with the job block of a file, and with what becomes of its expressions.
fn with_job<T>(
    input: &Input<'_>,
    origin: Origin,
    read: impl FnOnce(&Expanded<'_>, Base<'_>, &Sink) -> Option<T>,
) -> Result<(T, Sink), Error> {
    let sink = Sink::default();
    let source = Source::new(input.file, input.text);
    let body = body_of(&source, &sink)?;
    let done = in_body(input, origin, &body, &source.pos(0), &sink, read)?;
    Ok((done, sink))
}

fn in_body<T>(
    input: &Input<'_>,
    origin: Origin,
    body: &Body,
    file_pos: &crate::spec::Pos,
    sink: &Sink,
    read: impl FnOnce(&Expanded<'_>, Base<'_>, &Sink) -> Option<T>,
) -> Result<T, Error> {
    let budget = Budget::default();
    let base = Base { dir: input.base_dir, alone: input.stays_in_base_dir };
    let nothing = Globals {
        vars: BTreeMap::new(),
        locals: BTreeMap::new(),
        base_dir: (origin == Origin::Here).then_some(base),
        is_config: false,
        budget: &budget,
    };
    let blocks = top_level(body, &Scope::new(&nothing), file_pos, sink);
    let failed = |sink: &Sink| {
        // What it costs is told whatever else became of it, and alone: the rest follows from it.
        if let Some(spent) = budget.spent() {
            return Err(spent.into());
        }
        sink.take_errors().map_or(Ok(()), |diagnostics| Err(Error { diagnostics }))
    };
    failed(sink)?;

    let vars = variables::evaluate(input, origin, &blocks, &budget, sink);
    failed(sink)?;
    let locals: Vec<_> = blocks.iter().filter(|b| b.kind == "locals").flat_map(|b| &b.body.attrs).collect();
    let globals = variables::evaluate_locals(Globals { vars, ..nothing.clone() }, &locals, sink);
    failed(sink)?;

    let mut jobs = blocks.iter().filter(|b| b.kind == "job");
    let Some(first) = jobs.next() else {
        return Err(Diagnostic::new(file_pos, "the file has no job; add job \"name\" { ... }").into());
    };
    for further in jobs {
        sink.error(further.pos, format!("the file has more than one job; the first stands in line {}", first.pos.line));
    }
    let block = Expanded { scope: Scope::new(&globals), ..first.clone() };
    let done = read(&block, base, sink);
    failed(sink)?;
    done.ok_or_else(|| Diagnostic::new(first.pos, "the job has no name; write job \"name\" { ... }").into())
}

/// Reads a duration as Go writes it: `5m`, `1h30m`.
///
/// # Errors
/// Another text, or a negative one; the message quotes it.
pub fn duration(text: &str) -> Result<std::time::Duration, String> {
    let nanoseconds = duration::parse_signed(text)?;
    u64::try_from(nanoseconds).map(std::time::Duration::from_nanos).map_err(|_| format!("\"{text}\" is negative"))
}

/// Everything that is in a file of job or variables: a regular one, or a pipe, of at most 8 MiB.
///
/// # Errors
/// When it is none of these, no UTF-8 text, or cannot be read.
pub fn read_file(path: &Path) -> std::io::Result<String> {
    String::from_utf8(regular::read_own(path)?).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
}

/// As [`read_file`], for a file that need not be text.
///
/// # Errors
/// When it is none of these, or cannot be read.
pub fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    regular::read_own(path)
}

/// A file of values by their paths, in JSON or HCL: `"app/port" = "8080"`.
///
/// # Errors
/// A text with the line and what is wrong there.
pub fn paths(path: &Path, text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    let json =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).map_err(|e| format!("{}: {e}", path.display()));
    let value = if is_json(text) {
        json(text)?
    } else {
        let budget = Budget::default();
        // The members of one object, as their names may be in quotes.
        let whole = format!("{{{text}\n}}");
        let source = Source::new(path, &whole);
        let evaluated = budget::check_source(&source)
            .and_then(|()| {
                native::parse_expression(
                    &whole,
                    &crate::spec::Pos { file: path.display().to_string().into(), line: 1, column: 1 },
                )
            })
            .and_then(|expression| variables::constant(&expression, &budget));
        evaluated.map_err(|d| format!("{}:{}: {}", path.display(), d.pos.line, d.message))?
    };
    match value {
        serde_json::Value::Object(members) => Ok(members),
        _ => Err(format!(
            "{}: expected an object of paths and values, such as {{\"app/port\": \"8080\"}}",
            path.display()
        )),
    }
}

/// Largest job file, in bytes.
pub const LARGEST_FILE: usize = budget::LARGEST_FILE;

/// Checks what stands at the top level of the file.
fn top_level<'a>(body: &'a Body, scope: &Scope<'a>, pos: &'a crate::spec::Pos, sink: &'a Sink) -> Vec<Expanded<'a>> {
    let whole = Expanded { kind: "file", pos, labels: Vec::new(), body, scope: scope.clone() };
    let blocks = Section::open("the job file".to_owned(), &whole, &schema::FILE, sink).blocks().to_vec();
    for block in blocks.iter().filter(|b| matches!(b.kind, "locals" | "variables")) {
        for inner in &block.body.blocks {
            let message = format!("unsupported block \"{}\" in {}; write name = value", inner.kind, block.kind);
            sink.error(&inner.pos, message);
        }
    }
    blocks
}

/// A text is JSON when its first character that is not a blank opens an object.
pub(crate) fn is_json(text: &str) -> bool {
    text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']).starts_with('{')
}

fn body_of(source: &Source<'_>, sink: &Sink) -> diag::Result<Body> {
    budget::check_source(source)?;
    if !is_json(source.text) {
        return native::parse_body(source);
    }
    let node = json::read(source)?;
    match api::job_of(&node) {
        Some((pos, members)) => api::body(pos, members, sink),
        None => json_body::body(&node, &schema::FILE),
    }
}
