//! What is wrong with a template, and where.

/// Longest part of a line that is shown, in bytes.
const LONGEST_LINE: usize = 160;

/// Why a template cannot be parsed or rendered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    /// Line within the template's data, from 1.
    pub line: u32,
    /// Byte within that line, from 1; 0 where only the line is known.
    pub column: u32,
    /// What is wrong there, with the fix where one is known.
    pub message: String,
    /// That line of the template, shortened.
    pub text: String,
}

impl std::error::Error for TemplateError {}

impl std::fmt::Display for TemplateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)?;
        if self.column == 0 || self.text.is_empty() {
            return Ok(());
        }
        let blank = |c: char| if c == '\t' { '\t' } else { ' ' };
        let before = self.text.chars().take(self.text.len().min(self.column as usize - 1)).map(blank);
        write!(f, "\n    {}\n    {}^", self.text, before.collect::<String>())
    }
}

impl TemplateError {
    /// A mistake at the byte `at` of `source`.
    pub(super) fn new(source: &[u8], at: usize, message: impl Into<String>) -> TemplateError {
        let at = at.min(source.len());
        let start = memchr::memrchr(b'\n', &source[..at]).map_or(0, |i| i + 1);
        let end = memchr::memchr(b'\n', &source[at..]).map_or(source.len(), |i| at + i);
        let line = u32::try_from(memchr::memchr_iter(b'\n', &source[..at]).count() + 1).unwrap_or(u32::MAX);
        let (shown, column) = excerpt(&source[start..end], at - start);
        TemplateError { line, column, message: message.into(), text: shown }
    }

    /// A mistake of which only the line is known.
    pub fn at_line(line: u32, message: impl Into<String>) -> TemplateError {
        TemplateError { line, column: 0, message: message.into(), text: String::new() }
    }
}

/// The part of a line around `at`, and the character (from 1) that `at` is in it.
fn excerpt(line: &[u8], at: usize) -> (String, u32) {
    let from = if line.len() > LONGEST_LINE { at.saturating_sub(LONGEST_LINE / 2) } else { 0 };
    let until = line.len().min(from + LONGEST_LINE);
    let shown = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}")
    };
    let before = shown(&line[from..at.min(until)]).chars().count();
    let (start, end) = (if from > 0 { "..." } else { "" }, if until < line.len() { "..." } else { "" });
    let column = start.len() + before + 1;
    (format!("{start}{}{end}", shown(&line[from..until])), u32::try_from(column).unwrap_or(u32::MAX))
}

/// Names among `known` that somebody who wrote `word` may have meant: at most three.
pub(super) fn meant<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = (word.len() / 3).clamp(1, 3);
    let lower = word.to_ascii_lowercase();
    let mut near: Vec<(usize, &str)> = known
        .filter_map(|name| {
            let other = name.to_ascii_lowercase();
            let away = if other == lower || other.strip_prefix("sprig_") == Some(&lower) {
                0
            } else if word.len() > 64 {
                return None;
            } else {
                distance(&lower, &other)
            };
            (away <= limit).then_some((away, name))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// How many letters are to be changed, added or taken out.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}
