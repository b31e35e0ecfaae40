//! Places in files and what is said about them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::spec::{Pos, escaped, shortened};

/// Longest message about one place, in bytes.
const LONGEST: usize = 1000;
/// A longer word is not a misspelt name, and most names that a word is compared with.
const LONGEST_NAME: usize = 64;
const MOST_NAMES: usize = 1000;

/// A sentence about one place of a job or variable file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// Where.
    pub pos: Pos,
    /// What is wrong and, after a semicolon, how to fix it.
    pub message: String,
}

impl Diagnostic {
    /// What the message quotes may be anything of any length.
    pub(crate) fn new(pos: &Pos, message: impl Into<String>) -> Diagnostic {
        let message = message.into();
        Diagnostic { pos: pos.clone(), message: escaped(&shortened(&message, LONGEST)).into_owned() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Line 0 is a flag or a variable of the environment, which stands in no file.
        match self.pos.line {
            0 => write!(f, "{}: {}", self.pos.file, self.message),
            _ => write!(f, "{}: {}", self.pos, self.message),
        }
    }
}

/// Result of anything that fails at one place.
pub(super) type Result<T> = std::result::Result<T, Diagnostic>;

/// A text with its name, which turns byte offsets into places.
#[derive(Debug)]
pub(super) struct Source<'t> {
    pub text: &'t str,
    file: Arc<str>,
    line_starts: Vec<usize>,
    /// Characters before each [`STRIDE`] bytes: a file may be one very long line, which is not counted from its start each
    /// time that somebody asks for a place in it.
    counted: Vec<usize>,
}

impl<'t> Source<'t> {
    pub fn new(file: &Path, text: &'t str) -> Source<'t> {
        let mut characters = 0;
        let counted = text.as_bytes().chunks(STRIDE).map(|part| {
            let before = characters;
            characters += characters_of(part);
            before
        });
        let counted = counted.collect();
        let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
        Source {
            text,
            file: Arc::from(file.to_string_lossy().as_ref()),
            line_starts: std::iter::once(0).chain(starts).collect(),
            counted,
        }
    }

    pub fn pos(&self, offset: usize) -> Pos {
        let offset = offset.min(self.text.len());
        let line = self.line_starts.partition_point(|start| *start <= offset).max(1);
        let start = self.line_starts[line - 1];
        let column = 1 + self.characters_before(offset) - self.characters_before(start);
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Pos { file: self.file.clone(), line: clamp(line), column: clamp(column) }
    }

    fn characters_before(&self, offset: usize) -> usize {
        let part = offset / STRIDE;
        let rest = self.text.as_bytes().get(part * STRIDE..offset).unwrap_or_default();
        // The end of a text of whole parts is in none of them.
        match self.counted.get(part) {
            Some(before) => before + characters_of(rest),
            None => part.checked_sub(1).map_or(0, |last| {
                let whole = self.text.as_bytes().get(last * STRIDE..).unwrap_or_default();
                self.counted.get(last).map_or(0, |before| before + characters_of(whole))
            }),
        }
    }
}

/// Bytes between two places whose characters were counted.
const STRIDE: usize = 1024;

/// Characters that begin in these bytes.
fn characters_of(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| (**byte & 0xc0) != 0x80).count()
}

/// The known word nearest to a misspelt one, as ` (did you mean "x"?)`, or nothing.
pub(crate) fn did_you_mean<'a>(wrong: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    if wrong.len() > LONGEST_NAME {
        return String::new();
    }
    let limit = (wrong.chars().count() / 3).min(3);
    known
        .into_iter()
        .take(MOST_NAMES)
        .filter(|k| k.len().abs_diff(wrong.len()) <= limit)
        .map(|k| (edit_distance(wrong, k), k))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map_or_else(String::new, |(_, k)| format!(" (did you mean \"{k}\"?)"))
}

/// Edits (insert, delete, change, swap of neighbours) between two words.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_become_lines_and_columns_in_characters() {
        let source = Source::new(Path::new("f.hcl"), "a\näb\n\nc");
        let at = |offset| {
            let pos = source.pos(offset);
            (pos.line, pos.column)
        };
        assert_eq!(at(0), (1, 1));
        assert_eq!(at(1), (1, 2));
        assert_eq!(at(2), (2, 1));
        assert_eq!(at(4), (2, 2));
        assert_eq!(at(6), (3, 1));
        assert_eq!(at(7), (4, 1));
        assert_eq!(at(99), (4, 2));
        assert_eq!(at(1), (1, 2));
        assert_eq!(at(5), (2, 3));
        let long = "ä".repeat(2048) + "\n" + &"b".repeat(4095);
        let source = Source::new(Path::new("f.hcl"), &long);
        let at = |offset| (source.pos(offset).line, source.pos(offset).column);
        for (offset, place) in
            [(4094, (1, 2048)), (4096, (1, 2049)), (2, (1, 2)), (5121, (2, 1025)), (8191, (2, 4095)), (8192, (2, 4096))]
        {
            assert_eq!(at(offset), place, "{offset}");
        }
    }

    #[test]
    fn only_near_words_are_suggested() {
        assert_eq!(did_you_mean("comand", ["command", "args"]), " (did you mean \"command\"?)");
        assert_eq!(did_you_mean("uesr", ["user", "env"]), " (did you mean \"user\"?)");
        assert_eq!(did_you_mean("zebra", ["user", "env"]), "");
    }
}
