//! How much the evaluation of one job file may cost. A file of ten lines can ask for more than any machine has, so that
//! everything that grows is counted before it is made; the limits are far above what people write.
//!
//! | what | limit |
//! |---|---|
//! | a job or variable file, and what `file` reads | 8 MiB, a regular file |
//! | marks of syntax in a file, which bound its tree | 400,000 |
//! | words and strings beside each other | 16 |
//! | keys of objects, arguments of blocks: comparisons with those before them, and sizes | 32,000,000 |
//! | bytes of heredocs that are read again | 16 MiB |
//! | bytes in brackets after operators, twice for each such bracket around them | 1 MiB |
//! | steps: expressions evaluated, elements looked at | 3,000,000 |
//! | values made on the way | 192 MiB |
//! | values kept: variables, locals, the job, times its `count` | 32 MiB |
//! | nesting of blocks and expressions; of values | 64; 200 |
//! | texts, actions and words of a template; a delimiter | 400,000; 64 bytes |

use std::cell::{Cell, RefCell};

use super::diag::{Diagnostic, Result, Source};
use super::value::Value;
use crate::spec::collections::BTreeMap;
use crate::spec::{LONGEST_PATTERN, Pos};

/// Steps of one file with its variables.
pub(super) const MOST_STEPS: u64 = 3_000_000;
/// Bytes of all values that are made, whether they are kept or not.
pub(super) const MOST_MADE: u64 = 192 << 20;
/// Bytes of all values that are kept.
pub(super) const MOST_KEPT: u64 = 32 << 20;
/// Bytes of one file.
pub(super) const LARGEST_FILE: usize = 8 << 20;
/// Marks that can begin another expression or block.
pub(super) const MOST_MARKS: usize = 400_000;
/// What compiling a pattern is worth, and each of its bytes: three of them can stand for a large part of Unicode.
const COMPILE_STEPS: u64 = 4000;
const STEPS_PER_PATTERN_BYTE: u64 = 100;
/// Deepest nesting of a value.
pub(super) const DEEPEST_VALUE: usize = 200;

/// What a value takes beside its text; an object's first nodes.
const NODE: u64 = 64;
const OBJECT: u64 = 640;
/// What a step of copying or looking at a value is worth.
const BYTES_PER_STEP: u64 = 64;
/// Names that are compared with a misspelt one, and how often in one file.
const HINTS: u32 = 100;

/// What has been spent, and by whom.
#[derive(Debug, Default)]
pub(super) struct Budget {
    steps: Cell<u64>,
    made: Cell<u64>,
    kept: Cell<u64>,
    hints: Cell<u32>,
    /// Inside `try` or `can`, where nobody reads a message.
    unread: Cell<u32>,
    /// The expression that has cost most, in millionths of the limits.
    dearest: RefCell<Option<(u64, Pos)>>,
    spent: RefCell<Option<Diagnostic>>,
}

impl Budget {
    /// Why nothing more is evaluated.
    pub fn spent(&self) -> Option<Diagnostic> {
        self.spent.borrow().clone()
    }

    fn check(&self) -> Result<()> {
        self.spent().map_or(Ok(()), Err)
    }

    fn count(
        &self,
        counter: &Cell<u64>,
        amount: u64,
        limit: u64,
        what: impl FnOnce() -> String,
        pos: &Pos,
    ) -> Result<()> {
        counter.set(counter.get().saturating_add(amount));
        if counter.get() <= limit && self.spent.borrow().is_none() {
            return Ok(());
        }
        if self.spent.borrow().is_none() {
            let message = format!("evaluating the job file takes more than {}; this is where most of it went", what());
            *self.spent.borrow_mut() = Some(Diagnostic::new(pos, message));
        }
        self.check()
    }

    /// Counts work that is about to be done.
    pub fn step(&self, steps: u64, pos: &Pos) -> Result<()> {
        self.count(&self.steps, steps, MOST_STEPS, || format!("{MOST_STEPS} steps"), pos)
    }

    /// Counts bytes that are about to be made, and the work that it takes.
    pub fn make(&self, bytes: u64, pos: &Pos) -> Result<()> {
        self.count(&self.made, bytes, MOST_MADE, || format!("{} MiB", MOST_MADE >> 20), pos)?;
        self.step(bytes / BYTES_PER_STEP, pos)
    }

    /// Whether this much could still be made; said of what is not known before it is made.
    pub fn fit(&self, bytes: u64, pos: &Pos) -> Result<()> {
        if bytes > MOST_MADE.saturating_sub(self.made.get()) { self.make(bytes, pos) } else { Ok(()) }
    }

    /// Counts bytes that stay.
    pub fn keep(&self, bytes: u64, pos: &Pos) -> Result<()> {
        let what = || format!("{} MiB for what is kept of it", MOST_KEPT >> 20);
        self.count(&self.kept, bytes, MOST_KEPT, what, pos)
    }

    pub fn kept(&self) -> u64 {
        self.kept.get()
    }

    /// Evaluates what one place of the file asks for, and takes note of what it costs: when the budget is spent, whoever has
    /// cost most is named, not whoever came last.
    pub fn whole<T>(&self, pos: &Pos, evaluate: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check()?;
        let share = |spent: &Cell<u64>, limit: u64| spent.get().saturating_mul(1_000_000) / limit;
        let shares = || {
            let [steps, made] = [share(&self.steps, MOST_STEPS), share(&self.made, MOST_MADE)];
            steps.max(made).max(share(&self.kept, MOST_KEPT))
        };
        let before = shares();
        let result = evaluate();
        let cost = shares().saturating_sub(before);
        let mut dearest = self.dearest.borrow_mut();
        if dearest.as_ref().is_none_or(|(most, _)| cost > *most) {
            *dearest = Some((cost, pos.clone()));
        }
        if let (Some(spent), Some((_, pos))) = (self.spent.borrow_mut().as_mut(), dearest.as_ref()) {
            spent.pos = pos.clone();
        }
        drop(dearest);
        // Also where a `try` has swallowed it.
        self.check()?;
        result
    }

    /// Evaluates something whose failure is an answer.
    pub fn unread<T>(&self, evaluate: impl FnOnce() -> T) -> T {
        self.unread.set(self.unread.get() + 1);
        let result = evaluate();
        self.unread.set(self.unread.get() - 1);
        result
    }

    /// Whether it is worth looking for the word that was meant.
    pub fn may_hint(&self) -> bool {
        if self.unread.get() > 0 || self.hints.get() >= HINTS {
            return false;
        }
        self.hints.set(self.hints.get() + 1);
        true
    }
}

/// About the bytes that a value takes.
pub(super) fn size(value: &Value) -> u64 {
    let all = |items: &[Value]| items.iter().fold(NODE, |sum, item| sum.saturating_add(size(item)));
    match value {
        Value::String(text) => NODE + text.len() as u64,
        Value::List(items) | Value::Set(items) => all(items),
        Value::Object(map) => size_of_members(map),
        Value::Null | Value::Bool(_) | Value::Number(_) => NODE,
    }
}

pub(super) fn size_of_members(map: &BTreeMap<String, Value>) -> u64 {
    map.iter().fold(OBJECT, |sum, (key, item)| sum.saturating_add(key.len() as u64 + NODE + size(item)))
}

/// Whether a value nests deeper than one may.
pub(super) fn is_too_deep(value: &Value) -> bool {
    fn below(value: &Value, depth: usize) -> bool {
        depth > DEEPEST_VALUE
            || match value {
                Value::List(items) | Value::Set(items) => items.iter().any(|item| below(item, depth + 1)),
                Value::Object(map) => map.values().any(|item| below(item, depth + 1)),
                _ => false,
            }
    }
    below(value, 0)
}

/// Refuses a text whose tree would be too large, before there is one.
pub(super) fn check_source(source: &Source<'_>) -> Result<()> {
    if source.text.len() > LARGEST_FILE {
        let message = format!("the file has more than {} MiB", LARGEST_FILE >> 20);
        return Err(Diagnostic::new(&source.pos(0), message));
    }
    match too_many_marks(source.text) {
        None => Ok(()),
        Some(at) => {
            let message = format!("the file has more than {MOST_MARKS} expressions and blocks; split the job");
            Err(Diagnostic::new(&source.pos(at), message))
        }
    }
}

/// Where a text has more marks than it may.
fn too_many_marks(text: &str) -> Option<usize> {
    text.bytes().enumerate().filter(|(_, b)| is_mark(*b)).map(|(at, _)| at).nth(MOST_MARKS)
}

/// The marks of a text.
pub(super) fn marks(text: &str) -> usize {
    text.bytes().filter(|b| is_mark(*b)).count()
}

fn is_mark(b: u8) -> bool {
    matches!(
        b,
        b',' | b'\n'
            | b'='
            | b'{'
            | b'['
            | b'('
            | b'$'
            | b'.'
            | b'?'
            | b'!'
            | b'<'
            | b'>'
            | b'+'
            | b'-'
            | b'*'
            | b'/'
            | b'%'
            | b'&'
            | b'|'
            | b';'
            | b':'
    )
}

/// Steps of compiling a pattern. A longer one than is compiled costs no more than the longest.
pub(super) fn steps_of_pattern(pattern: &str) -> u64 {
    COMPILE_STEPS + STEPS_PER_PATTERN_BYTE * pattern.len().min(LONGEST_PATTERN) as u64
}
