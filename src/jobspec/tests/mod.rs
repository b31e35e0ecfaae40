//! Tests of the whole module: job files in, jobs or diagnostics out.

mod api_form;
mod constraints;
mod docs;
mod expressions;
mod forms;
mod functions;
mod hostile;
mod keys;
mod ports;
mod refusals;
mod runtime;
mod services;
mod values;
mod variables;
mod volumes;

use std::path::{Path, PathBuf};

use super::{Error, Input, Parsed, parse};
use crate::spec::{Job, Task};

/// A parse with everything that can be given beside the text.
#[derive(Default)]
struct Given<'a> {
    vars: Vec<(String, String)>,
    files: Vec<(PathBuf, String)>,
    env: Vec<(String, String)>,
    dir: Option<&'a Path>,
}

impl<'a> Given<'a> {
    fn var(mut self, name: &str, value: &str) -> Self {
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }

    fn file(mut self, name: &str, contents: &str) -> Self {
        self.files.push((PathBuf::from(name), contents.to_owned()));
        self
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    fn dir(mut self, dir: &'a Path) -> Self {
        self.dir = Some(dir);
        self
    }

    fn parse(&self, text: &str) -> Result<Parsed, Error> {
        parse(&Input {
            file: Path::new("job.hcl"),
            text,
            vars: &self.vars,
            var_files: &self.files,
            env: &self.env,
            base_dir: self.dir.unwrap_or(Path::new("/nonexistent")),
            stays_in_base_dir: false,
        })
    }

    fn job(&self, text: &str) -> Job {
        match self.parse(text) {
            Ok(parsed) => parsed.job,
            Err(e) => panic!("{e}\nin:\n{text}"),
        }
    }

    /// Why the text is not a job, or one that must not be run.
    fn errors(&self, text: &str) -> Vec<String> {
        match self.parse(text) {
            Ok(parsed) if !parsed.refusals.is_empty() => parsed.refusals.iter().map(ToString::to_string).collect(),
            Ok(parsed) => panic!("parsed, but should not have: {parsed:#?}\nfrom:\n{text}"),
            Err(e) => e.to_string().lines().map(str::to_owned).collect(),
        }
    }
}

fn job(text: &str) -> Job {
    Given::default().job(text)
}

fn errors(text: &str) -> Vec<String> {
    Given::default().errors(text)
}

/// A whole job around the inside of its only task, which starts in line 4.
fn around_task(inside: &str) -> String {
    format!("job \"j\" {{\ngroup \"g\" {{\ntask \"t\" {{\n{inside}\ndriver = \"exec\"\n}}\n}}\n}}\n")
}

/// A whole job around the inside of its only group, which starts in line 3.
fn around_group(inside: &str) -> String {
    format!("job \"j\" {{\ngroup \"g\" {{\n{inside}\ntask \"t\" {{ driver = \"exec\" }}\n}}\n}}\n")
}

fn task_of(inside: &str) -> Task {
    job(&around_task(inside)).groups.remove(0).tasks.remove(0)
}

/// What an expression evaluates to as a value of a driver's config, in JSON.
fn value_of(given: &Given<'_>, expression: &str) -> Result<serde_json::Value, String> {
    let text = around_task(&format!("config {{\nx = {{ v = {expression} }}\n}}"));
    match given.parse(&text) {
        Ok(mut parsed) => {
            let config = &mut parsed.job.groups[0].tasks[0].config.values;
            Ok(config["x"][0]["v"].take())
        }
        Err(e) => Err(e.to_string()),
    }
}
