//! Regular expressions as Go has them: on bytes, `\d`, `\w`, `\s` and `\b` for ASCII only.

use regex::bytes::{Regex, RegexBuilder};

/// Bytes that one compiled expression may take.
const LARGEST: usize = 1 << 20;

/// Compiles `pattern`.
pub(super) fn compile(pattern: &[u8]) -> Result<Regex, String> {
    let pattern = std::str::from_utf8(pattern).map_err(|_| "a regular expression has to be UTF-8".to_owned())?;
    let built = RegexBuilder::new(&ascii_classes(pattern)).size_limit(LARGEST).dfa_size_limit(LARGEST).build();
    built.map_err(|e| format!("the regular expression {pattern:?} is wrong: {e}"))
}

/// The Perl classes as Go means them.
fn ascii_classes(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars();
    let mut inside = false;
    while let Some(c) = chars.next() {
        match c {
            '[' if !inside => inside = true,
            ']' => inside = false,
            '\\' => {
                let Some(next) = chars.next() else {
                    out.push('\\');
                    break;
                };
                match (next, inside) {
                    ('d', false) => out.push_str("[0-9]"),
                    ('D', false) => out.push_str("[^0-9]"),
                    ('w', false) => out.push_str("[0-9A-Za-z_]"),
                    ('W', false) => out.push_str("[^0-9A-Za-z_]"),
                    ('s', false) => out.push_str("[\\t\\n\\f\\r ]"),
                    ('S', false) => out.push_str("[^\\t\\n\\f\\r ]"),
                    ('b', false) => out.push_str("(?-u:\\b)"),
                    ('B', false) => out.push_str("(?-u:\\B)"),
                    ('d', true) => out.push_str("0-9"),
                    ('w', true) => out.push_str("0-9A-Za-z_"),
                    ('s', true) => out.push_str("\\t\\n\\f\\r "),
                    ('Q', false) => {
                        // Up to \E everything stands for itself.
                        let rest = chars.as_str();
                        let end = rest.find("\\E").unwrap_or(rest.len());
                        out.push_str(&regex::escape(&rest[..end]));
                        chars = rest[(end + 2).min(rest.len())..].chars();
                    }
                    (next, _) => {
                        out.push('\\');
                        out.push(next);
                    }
                }
                continue;
            }
            _ => {}
        }
        out.push(c);
    }
    out
}

/// Every match replaced; `$1` and `${name}` in `by` stand for groups, unless it is taken `literal`ly.
pub(super) fn replace_all(
    pattern: &Regex,
    text: &[u8],
    by: &[u8],
    literal: bool,
    out: &mut crate::template::verbs::Out,
) -> Result<(), String> {
    let mut at = 0;
    let mut expanded = Vec::new();
    for found in pattern.captures_iter(text) {
        let Some(whole) = found.get(0) else { continue };
        out.put(&text[at..whole.start()])?;
        if literal {
            out.put(by)?;
        } else {
            expanded.clear();
            found.expand(by, &mut expanded);
            out.put(&expanded)?;
        }
        at = whole.end();
    }
    out.put(&text[at..])
}
