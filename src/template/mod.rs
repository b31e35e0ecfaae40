//! J4: the language of `template` blocks: Go's `text/template` with the functions of consul-template, on byte strings.
//!
//! A [`Template`] is parsed first, which finds every mistake of syntax and every unknown name, and rendered as often as
//! wanted. What it asks for (variables, files, keys, services) comes through a [`Host`]. Never: know tasks or
//! allocations, read a file or a clock itself.
//!
//! What a template may cost is limited ([`Limits`]), whatever it does; see `exec.rs`.

mod asked;
pub(crate) mod calendar;
mod codec;
mod exec;
mod functions;
mod host;
mod lexer;
mod number;
mod parser;
mod pki;
mod quote;
mod show;
mod text;
mod types;
mod value;
mod verbs;

use crate::spec::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

pub use asked::Asked;
pub use functions::{page, refused};
pub use host::{Found, Host, Service, Tree, Variable};
pub use show::TemplateError;

/// Deepest nesting of blocks, and of parentheses.
pub const DEEPEST: usize = 100;
/// Most texts, actions and words of one template: what it is cut into takes far more room than the template.
pub const MOST_PARTS: usize = 400_000;
/// Bytes of stack that rendering needs at its deepest.
const STACK: usize = 256 << 20;

/// What rendering one template may cost.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most bytes that it renders to.
    pub rendered: usize,
    /// Most bytes of the values that it makes on the way.
    pub made: usize,
    /// Most nodes and rounds of a loop that are gone through.
    pub steps: u64,
    /// Deepest nesting of blocks, templates and values while it is rendered.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { rendered: 16 << 20, made: 64 << 20, steps: 20_000_000, depth: 2_000 }
    }
}

/// A template that was parsed.
#[derive(Debug)]
pub struct Template {
    /// The text of each template by name; the one without a name is the file's.
    defined: BTreeMap<Vec<u8>, Vec<types::Node>>,
    /// What it was parsed from.
    source: Vec<u8>,
}

/// What a template became.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Its bytes; worth something only when nothing is missing.
    pub output: Vec<u8>,
    /// What it asked for and is not there, under consul-template's names, each once.
    pub missing: Vec<String>,
    /// What it asked for, and what the answers were.
    pub asked: Asked,
}

impl Template {
    /// Reads `source`, whose actions stand between `left` and `right`.
    ///
    /// # Errors
    /// [`TemplateError`] for the first mistake: of syntax, or a name that nothing has.
    pub fn parse(
        source: impl Into<Vec<u8>>,
        left: &str,
        right: &str,
        cancel: &AtomicBool,
    ) -> Result<Template, TemplateError> {
        let source = source.into();
        let defined = parser::parse(&source, left, right, cancel)?;
        Ok(Template { defined, source })
    }

    /// Renders it. `strict` makes a key that a map has not an error instead of `<no value>`.
    ///
    /// # Errors
    /// [`TemplateError`] for what a function refuses, for what is too large, and when `cancel` is set.
    pub fn render(
        &self,
        host: &dyn Host,
        strict: bool,
        limits: Limits,
        cancel: &AtomicBool,
    ) -> Result<Rendered, TemplateError> {
        // Templates may nest and recurse; the caller's stack is not a measure of how deep.
        let host = OnThread(host);
        std::thread::scope(|scope| {
            let work = || {
                let host = &host;
                exec::run(&self.defined, &self.source, host.0, strict, limits, cancel)
            };
            let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK);
            let failed = |what: String| TemplateError::new(&self.source, 0, what);
            match thread.spawn_scoped(scope, work) {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(failed("the renderer panicked".to_owned()))),
                Err(e) => Err(failed(format!("it has no thread to be rendered on: {e}"))),
            }
        })
    }
}

/// What hosts promise: see [`Host`].
struct OnThread<'a>(&'a dyn Host);
