//! Regular expressions of job files: of bounded size, and in the syntax that they are written in for Nomad, which is Go's.

use std::borrow::Cow;
use std::fmt::Write as _;

use regex::{Regex, RegexBuilder};

/// Bytes of the longest pattern that is compiled.
pub const LONGEST_PATTERN: usize = 4096;
/// Most bytes of what one is compiled to.
const PATTERN_BYTES: usize = 256 * 1024;
/// Most that Go takes in braces.
const MOST_REPEATED: u32 = 1000;

/// A regular expression of bounded size, which bounds the time for each byte of the text.
///
/// # Errors
/// What is wrong with the pattern.
pub fn regex(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > LONGEST_PATTERN {
        return Err(format!("the pattern has more than {LONGEST_PATTERN} bytes"));
    }
    let built = RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).dfa_size_limit(8 * PATTERN_BYTES).build();
    built.map_err(|e| format!("invalid regular expression: {e}"))
}

/// The same for a pattern in Go's syntax.
///
/// # Errors
/// What is wrong with the pattern.
pub fn go_regex(pattern: &str) -> Result<Regex, String> {
    let translated = if pattern.len() > LONGEST_PATTERN { Cow::Borrowed(pattern) } else { translated(pattern)?.into() };
    regex(&translated).map_err(|problem| match problem.rsplit_once("error: ") {
        // The crate shows the pattern in lines of its own; it would be the translated one.
        Some((_, why)) => format!("\"{pattern}\" is not a regular expression: {}", why.trim_end()),
        None => problem,
    })
}

/// What is written otherwise, or means something else, in the two syntaxes: classes of ASCII, quoted text, braces that repeat
/// nothing, sets in sets, and the flags.
fn translated(pattern: &str) -> Result<String, String> {
    let wrong = |what: &str| format!("\"{pattern}\" is not a regular expression: {what}");
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    let mut repeated = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let was_repeated = std::mem::replace(&mut repeated, false);
        match c {
            '\\' => rest = escape(after, false, &mut out).ok_or_else(|| wrong("a backslash escapes nothing"))?,
            '[' => rest = class(after, &mut out).ok_or_else(|| wrong("[ is not closed, or there is no such range"))?,
            '(' if after.starts_with('?') => {
                let flags = &after[1..];
                let end = flags.find([':', ')']).unwrap_or(flags.len());
                if !flags.starts_with("P<")
                    && !flags.starts_with('<')
                    && let Some(flag) = flags[..end].chars().find(|c| !"imsU-".contains(*c))
                {
                    return Err(wrong(&format!("(?{flag} is not known")));
                }
                out.push(c);
                rest = after;
            }
            '{' if repetition(after).is_none() => {
                out.push_str("\\{");
                rest = after;
            }
            '*' | '+' | '?' | '{' => {
                let end = if c == '{' { repetition(after).unwrap_or(0) } else { 0 };
                let lazy = usize::from(after[end..].starts_with('?'));
                if was_repeated {
                    return Err(wrong("what is repeated cannot be repeated again"));
                }
                let counts = after[..end].split([',', '}']).filter(|count| !count.is_empty());
                if counts.map(str::parse::<u32>).any(|count| !count.is_ok_and(|count| count <= MOST_REPEATED)) {
                    return Err(wrong(&format!("nothing is repeated more than {MOST_REPEATED} times")));
                }
                out.push(c);
                out.push_str(&after[..end + lazy]);
                rest = &after[end + lazy..];
                repeated = true;
            }
            other => {
                out.push(other);
                rest = after;
            }
        }
    }
    Ok(out)
}

/// The length of `n}`, `n,}` or `n,m}`.
fn repetition(text: &str) -> Option<usize> {
    let end = text.find('}')?;
    let (least, most) = text[..end].split_once(',').unwrap_or((&text[..end], ""));
    let is_number = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    (!least.is_empty() && is_number(least) && is_number(most)).then_some(end + 1)
}

/// What follows a backslash; gives what is left.
fn escape<'a>(text: &'a str, in_class: bool, out: &mut String) -> Option<&'a str> {
    let c = text.chars().next()?;
    let after = &text[c.len_utf8()..];
    if c == 'Q' && !in_class {
        let (quoted, rest) = after.split_once("\\E").unwrap_or((after, ""));
        out.push_str(&regex::escape(quoted));
        return Some(rest);
    }
    match c {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        's' => out.push_str("[\\t\\n\\f\\r ]"),
        'S' => out.push_str("[^\\t\\n\\f\\r ]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        'b' if !in_class && !after.starts_with('{') => out.push_str("(?-u:\\b)"),
        'B' if !in_class && !after.starts_with('{') => out.push_str("(?-u:\\B)"),
        'A' | 'z' if !in_class => out.extend(['\\', c]),
        'x' | 'p' | 'P' => {
            let braces = if after.starts_with('{') { after.find('}')? + 1 } else { 0 };
            out.extend(['\\', c]);
            out.push_str(&after[..braces]);
            return Some(&after[braces..]);
        }
        'a' | 'f' | 'n' | 'r' | 't' | 'v' => out.extend(['\\', c]),
        '0'..='7' => {
            let digits = text.bytes().take(3).take_while(|b| (b'0'..b'8').contains(b)).count();
            // One digit but zero would refer to a group, which neither syntax has.
            if c != '0' && digits < 2 {
                return None;
            }
            let number = u32::from_str_radix(&text[..digits], 8).ok()?;
            _ = write!(out, "\\x{{{number:x}}}");
            return Some(&text[digits..]);
        }
        c if c.is_ascii_alphanumeric() || !c.is_ascii() => return None,
        '<' | '>' => out.push(c),
        other => out.extend(['\\', other]),
    }
    Some(after)
}

/// What follows the bracket of a class; gives what is left behind its end.
fn class<'a>(text: &'a str, out: &mut String) -> Option<&'a str> {
    out.push('[');
    let mut rest = text;
    if let Some(after) = rest.strip_prefix('^') {
        out.push('^');
        rest = after;
    }
    let mut is_first = true;
    loop {
        let c = rest.chars().next()?;
        let after = &rest[c.len_utf8()..];
        match c {
            ']' if !is_first => {
                out.push(']');
                return Some(after);
            }
            '\\' => rest = escape(after, true, out)?,
            '[' if after.starts_with(':') && after.contains(":]") => {
                let end = after.find(":]")? + 2;
                out.push('[');
                out.push_str(&after[..end]);
                rest = &after[end..];
            }
            '[' | ']' | '&' | '~' => {
                out.extend(['\\', c]);
                rest = after;
            }
            // A range that ends with a dash is one; one from here to a dash is not.
            '-' if !is_first && after.starts_with('-') && !after.starts_with("-]") => return None,
            '-' if is_first || after.starts_with(']') => {
                out.push_str("\\-");
                rest = after;
            }
            other => {
                out.push(other);
                rest = after;
            }
        }
        is_first = false;
    }
}
