//! A place in a job file.

use std::fmt;
use std::sync::Arc;

/// A place in a job file.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(from = "(String, u32, u32)", into = "(String, u32, u32)")]
pub struct Pos {
    /// The file as it was named on the command line.
    pub file: Arc<str>,
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

impl From<(String, u32, u32)> for Pos {
    fn from((file, line, column): (String, u32, u32)) -> Pos {
        Pos { file: file.into(), line, column }
    }
}

impl From<Pos> for (String, u32, u32) {
    fn from(Pos { file, line, column }: Pos) -> (String, u32, u32) {
        (file.to_string(), line, column)
    }
}

impl fmt::Display for Pos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}
