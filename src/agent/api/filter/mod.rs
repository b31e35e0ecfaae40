//! The language of `filter`, which is go-bexpr's, over JSON values.
//!
//! ```text
//!   not (Status == "running" or Name matches "^web") and "v" in Meta.k and Meta["a.b"] is not empty
//!   any TaskGroups as g { g.Count != 0 }          "/Meta/a.b" contains "x"
//! ```
//!
//! As in the Go package: a value is a word, a number or a string; what it is compared with says what it is read as; a member
//! of a map that is missing is equal to nothing, holds nothing, is empty and is nil; a first word that is missing is an
//! error. Two things differ. `null` is Go's empty list or map: it is empty, and holds nothing. A string that begins with a
//! slash keeps it; the Go package reads such a value as a path and drops it.

mod eval;
mod parse;

use serde_json::Value;

/// A syntax error or a comparison that is not possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The expression is not valid.
    #[error("failed to read filter expression: 1:{} ({at}): {why}", at + 1)]
    Syntax {
        /// Byte at which it goes wrong.
        at: usize,
        /// What was expected there.
        why: String,
    },
    /// The expression does not apply to the value.
    #[error("{0}")]
    Value(String),
}

/// An expression that was read.
#[derive(Debug, Clone)]
pub struct Filter(Expression);

impl Filter {
    /// Reads an expression.
    ///
    /// # Errors
    /// [`FilterError::Syntax`].
    pub fn new(text: &str) -> Result<Filter, FilterError> {
        parse::parse(text).map(Filter)
    }

    /// Whether a value fits.
    ///
    /// # Errors
    /// [`FilterError::Value`] when a comparison makes no sense for it.
    pub fn fits(&self, value: &Value) -> Result<bool, FilterError> {
        eval::evaluate(&self.0, value, &mut Vec::new(), &mut eval::STEPS.clone()).map_err(FilterError::Value)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Expression {
    Or(Vec<Expression>),
    And(Vec<Expression>),
    Not(Box<Expression>),
    Match { path: Vec<String>, negated: bool, test: Test },
    Each { all: bool, path: Vec<String>, names: Names, inner: Box<Expression> },
}

#[derive(Debug, Clone)]
enum Test {
    Equal(String),
    Contains(String),
    Matches(regex::Regex),
    Empty,
    Nil,
}

impl PartialEq for Test {
    fn eq(&self, other: &Test) -> bool {
        match (self, other) {
            (Test::Equal(a), Test::Equal(b)) | (Test::Contains(a), Test::Contains(b)) => a == b,
            (Test::Matches(a), Test::Matches(b)) => a.as_str() == b.as_str(),
            (Test::Empty, Test::Empty) | (Test::Nil, Test::Nil) => true,
            _ => false,
        }
    }
}

/// What the places of a list or a map are called in the braces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Names {
    /// The key of a map, the value of a list.
    default: Option<String>,
    /// The key or the number.
    index: Option<String>,
    /// The value.
    value: Option<String>,
}

#[cfg(test)]
mod tests;
