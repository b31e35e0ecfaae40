//! Mistakes of a file as people see them: with the line, a caret below it, and the position.

use std::fmt::Write as _;

use anyhow::anyhow;

use crate::jobspec::{self, Diagnostic};
use crate::spec::collections::BTreeMap;
use crate::spec::{Pos, escaped, is_unprintable};

/// Most mistakes that are shown at once.
pub(super) const SHOWN: usize = 20;
/// Characters of a line that are shown, and how many of them before the position.
const WIDTH: usize = 100;
const BEFORE: usize = 60;
/// Longest line that is shown at all, in bytes: its characters are counted for each mistake.
const LONGEST_LINE: usize = 64 << 10;

/// The text of a job's files, by the names that messages use.
#[derive(Debug, Clone, Default)]
pub(super) struct Texts(BTreeMap<String, String>);

impl Texts {
    pub(super) fn add(&mut self, file: &std::path::Path, text: &str) {
        self.0.insert(file.to_string_lossy().into_owned(), text.to_owned());
    }

    /// The text of a file; that of standard input for `-`.
    pub(super) fn of(&self, file: &std::path::Path) -> Option<&str> {
        let name = if file == std::path::Path::new("-") { "<stdin>".into() } else { file.to_string_lossy() };
        self.0.get(&*name).map(String::as_str)
    }

    /// A mistake with its line.
    pub(super) fn show(&self, diagnostic: &Diagnostic) -> String {
        let excerpt = self.0.get(&*diagnostic.pos.file).and_then(|text| excerpt(text, &diagnostic.pos));
        match excerpt {
            Some(excerpt) => format!("{diagnostic}\n{excerpt}"),
            None => diagnostic.to_string(),
        }
    }

    /// The first mistakes, and how many more there are.
    pub(super) fn show_all(&self, diagnostics: &[Diagnostic]) -> String {
        let mut shown: Vec<String> = diagnostics.iter().take(SHOWN).map(|diagnostic| self.show(diagnostic)).collect();
        let more = diagnostics.len().min(jobspec::MOST_SAID).saturating_sub(SHOWN);
        if diagnostics.len() > jobspec::MOST_SAID {
            // The last diagnostic says that no more were counted.
            shown.push(format!("more than {more} others are not shown"));
        } else if more > 0 {
            shown.push(format!("{more} more mistakes are not shown"));
        }
        shown.join("\n")
    }

    /// An error of reading a job file, with its lines.
    pub(super) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        match error.downcast::<jobspec::Error>() {
            Ok(error) => anyhow!("{}", self.show_all(&error.diagnostics)),
            Err(error) => error,
        }
    }

    /// A driver's message about its block: each line of it may begin with a position, and quotes the word that it is about.
    pub(super) fn explain_lines(&self, text: &str) -> String {
        let mut shown = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if number == SHOWN {
                shown.push(format!("{} more lines are not shown", text.lines().count() - SHOWN));
                break;
            }
            shown.push(line.to_owned());
            shown.extend(self.place(line).and_then(|(text, pos)| excerpt(text, &pos)));
        }
        shown.join("\n")
    }

    /// A driver's message about its block as diagnostics, one for each line: at the position that the line begins with, or else at `pos`.
    pub(super) fn diagnostics(&self, text: &str, pos: &Pos) -> Vec<Diagnostic> {
        let diagnostic = |line: &str| match self.place(line) {
            Some((_, pos)) => {
                let prefix = format!("{pos}: ");
                Diagnostic::new(&pos, line.strip_prefix(&prefix).unwrap_or(line))
            }
            None => Diagnostic::new(pos, line),
        };
        text.lines().take(SHOWN).map(diagnostic).collect()
    }

    /// The position at the beginning of a line; its column is that of the first quoted word that occurs there.
    fn place(&self, line: &str) -> Option<(&str, Pos)> {
        let (file, text) =
            self.0.iter().find(|(file, _)| line.strip_prefix(&***file).is_some_and(|r| r.starts_with(':')))?;
        let (number, rest) = line[file.len() + 1..].split_once(": ")?;
        let number: u32 = number.parse().ok()?;
        let found = text.split('\n').nth(usize::try_from(number).ok()?.checked_sub(1)?)?;
        let mut quoted = rest.split('"').skip(1).step_by(2).filter(|word| !word.is_empty());
        let at = quoted.find_map(|word| found.find(word)).unwrap_or_else(|| found.len() - found.trim_start().len());
        let column = u32::try_from(found[..at].chars().count() + 1).ok()?;
        Some((text.as_str(), Pos { file: file.as_str().into(), line: number, column }))
    }
}

/// The line at a position with a caret below; `None` if there is no such line.
fn excerpt(text: &str, pos: &Pos) -> Option<String> {
    let line = text.split('\n').nth(usize::try_from(pos.line).ok()?.checked_sub(1)?)?;
    if line.len() > LONGEST_LINE {
        return Some(format!(" --> {}:{}:{}", escaped(&pos.file), pos.line, pos.column));
    }
    let line: Vec<char> = line.trim_end_matches('\r').chars().collect();
    let at = usize::try_from(pos.column).ok()?.checked_sub(1)?.min(line.len());
    let start = if line.len() <= WIDTH { 0 } else { at.saturating_sub(BEFORE) };
    let end = line.len().min(start + WIDTH);
    // One column per character, so that the caret is below the position.
    let plain = |c: &char| match *c {
        c if c.is_whitespace() => ' ',
        c if is_unprintable(c) => '?',
        c => c,
    };
    let (before, after) = (if start > 0 { "…" } else { "" }, if end < line.len() { "…" } else { "" });
    let shown: String = line[start..end].iter().map(plain).collect();
    let marked = marked(&line[at..end]);
    let number = pos.line.to_string();
    let margin = " ".repeat(number.len());
    let indent = " ".repeat(at - start + before.chars().count());
    let mut out = format!("{margin}--> {}:{number}:{}\n", escaped(&pos.file), pos.column);
    let shown = format!("{number} | {before}{shown}{after}");
    let _ = writeln!(out, "{margin} |\n{}", shown.trim_end());
    let _ = write!(out, "{margin} | {indent}{}", "^".repeat(marked));
    Some(out)
}

/// How many characters are marked: a word, a string, or one.
fn marked(rest: &[char]) -> usize {
    let is_word = |c: &char| c.is_alphanumeric() || matches!(c, '_' | '-');
    match rest.first() {
        Some('"') => rest.iter().skip(1).position(|c| *c == '"').map_or(rest.len(), |end| end + 2),
        Some(first) if is_word(first) => rest.iter().take_while(|c| is_word(c)).count(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, line: u32, column: u32) -> String {
        let mut texts = Texts::default();
        texts.add(std::path::Path::new("f.hcl"), text);
        let pos = Pos { file: "f.hcl".into(), line, column };
        texts.show(&Diagnostic::new(&pos, "wrong"))
    }

    #[test]
    fn a_caret_stands_below_the_place() {
        let text = "a = 1\n\tcomand = \"x y\"\r\nlast";
        assert_eq!(shown(text, 2, 2), "f.hcl:2: wrong\n --> f.hcl:2:2\n  |\n2 |  comand = \"x y\"\n  |  ^^^^^^");
        assert!(shown(text, 2, 11).ends_with("\n  |           ^^^^^"));
        assert!(shown(text, 1, 3).ends_with("\n  |   ^"));
        assert!(shown(text, 3, 99).ends_with("\n3 | last\n  |     ^"));
        assert_eq!(shown(text, 0, 0), "f.hcl: wrong");
        assert_eq!(shown(text, 9, 1), "f.hcl:9: wrong");
        let long = format!("{}x = 1 {}", "é".repeat(500), "y".repeat(500));
        let lines = shown(&long, 1, 501);
        let lines: Vec<&str> = lines.lines().collect();
        let (line, caret) = (lines[3], lines[4]);
        let at = caret.chars().position(|c| c == '^').unwrap();
        assert_eq!(line.chars().nth(at), Some('x'));
        assert!(line.chars().count() < WIDTH + 10 && line.contains('…'), "{line}");
        assert!(!shown("a\u{1b}[2J = 1", 1, 1).contains('\u{1b}'));
    }

    #[test]
    fn what_a_driver_says_has_its_line_too() {
        let mut texts = Texts::default();
        texts.add(std::path::Path::new("f.hcl"), "config {\n  comand = \"x\"\n}");
        let told =
            texts.explain_lines("f.hcl:2: config of driver exec: unsupported key \"comand\"\nf.hcl:9: x\nother: y");
        assert!(
            told.contains(
                "unsupported key \"comand\"\n --> f.hcl:2:3\n  |\n2 |   comand = \"x\"\n  |   ^^^^^^\nf.hcl:9: x"
            ),
            "{told}"
        );
        assert!(told.ends_with("\nother: y"));
    }

    #[test]
    fn no_more_than_twenty_are_shown() {
        let pos = Pos { file: "f.hcl".into(), line: 1, column: 1 };
        let many: Vec<Diagnostic> = (0..25).map(|n| Diagnostic::new(&pos, format!("wrong {n}"))).collect();
        let told = Texts::default().show_all(&many);
        assert!(told.lines().count() == 21 && told.ends_with("\n5 more mistakes are not shown"), "{told}");
    }
}
