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
mod functions;
mod job;
mod json;
mod json_body;
mod native;
mod network;
mod placement;
mod regular;
mod scan;
mod schema;
mod section;
mod task;
mod template;
#[cfg(test)]
mod tests;
mod types;
mod value;
mod variables;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

pub use diag::Diagnostic;
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
    /// Folder of the job file, where relative paths of functions and artifacts start.
    pub base_dir: &'a Path,
    /// Functions and artifacts read nothing but what lies below that folder, and follow no symbolic link.
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
    let sink = Sink::default();
    let source = Source::new(input.file, input.text);
    let body = read(&source, &sink)?;

    let budget = Budget::default();
    let base = Base { dir: input.base_dir, alone: input.stays_in_base_dir };
    let nothing = Globals {
        vars: BTreeMap::new(),
        locals: BTreeMap::new(),
        base_dir: Some(base),
        is_config: false,
        budget: &budget,
    };
    let file_pos = source.pos(0);
    let blocks = top_level(&body, &Scope::new(&nothing), &file_pos, &sink);
    let failed = |sink: &Sink| {
        // What it costs is told whatever else became of it, and alone: the rest follows from it.
        if let Some(spent) = budget.spent() {
            return Err(spent.into());
        }
        sink.take_errors().map_or(Ok(()), |diagnostics| Err(Error { diagnostics }))
    };
    failed(&sink)?;

    let vars = variables::evaluate(input, &blocks, &budget, &sink);
    failed(&sink)?;
    let locals: Vec<_> = blocks.iter().filter(|b| b.kind == "locals").flat_map(|b| &b.body.attrs).collect();
    let globals = variables::evaluate_locals(Globals { vars, ..nothing.clone() }, &locals, &sink);
    failed(&sink)?;

    let mut jobs = blocks.iter().filter(|b| b.kind == "job");
    let Some(first) = jobs.next() else {
        return Err(Diagnostic::new(&file_pos, "the file has no job; add job \"name\" { ... }").into());
    };
    for further in jobs {
        sink.error(further.pos, format!("the file has more than one job; the first stands in line {}", first.pos.line));
    }
    let block = Expanded { scope: Scope::new(&globals), ..first.clone() };
    let job = job::decode(&block, base, &sink);
    failed(&sink)?;
    let warnings = sink.take_warnings().iter().map(ToString::to_string).collect();
    match job {
        Some(job) => Ok(Parsed { job, warnings, refusals: sink.take_refusals() }),
        None => Err(Diagnostic::new(first.pos, "the job has no name; write job \"name\" { ... }").into()),
    }
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
    String::from_utf8(regular::read_own(path)?).map_err(|_| std::io::Error::other("it is no UTF-8 text"))
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

/// A text is JSON when its first character that is no blank opens an object.
fn is_json(text: &str) -> bool {
    text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']).starts_with('{')
}

fn read(source: &Source<'_>, sink: &Sink) -> diag::Result<Body> {
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
