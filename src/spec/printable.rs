//! Text of others on a terminal: nothing in it moves the cursor, hides or reorders what stands beside it, or fills the screen.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Longest error message or event, in bytes.
pub const LONGEST_MESSAGE: usize = 4096;

/// Whether a terminal may do something else with `c` than show it: C0, DEL and C1 controls, line separators, characters
/// that change the direction of text (U+061C, U+200E, U+202A to U+202E, U+2066 to U+2069), and those without width.
#[must_use]
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' |
            '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// The text with everything that [`is_unprintable`] as `\n`, `\t`, `\x1b` or `\u{202e}`.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    escaped_but(text, |_| false)
}

/// The same for a text of several lines, whose ends stay.
#[must_use]
pub fn escaped_lines(text: &str) -> Cow<'_, str> {
    escaped_but(text, |c| c == '\n')
}

fn escaped_but(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_wrong = |c: char| is_unprintable(c) && !stays(c);
    if !text.contains(is_wrong) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !is_wrong(c) => out.push(c),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if u32::from(c) < 0x100 => _ = write!(out, "\\x{:02x}", u32::from(c)),
            c => _ = write!(out, "\\u{{{:x}}}", u32::from(c)),
        }
    }
    Cow::Owned(out)
}

/// The text if it has at most `most` bytes; else its beginning and how much is missing.
#[must_use]
pub fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most {
        return Cow::Borrowed(text);
    }
    let cut = text.floor_char_boundary(most);
    Cow::Owned(format!("{} [{} more bytes]", &text[..cut], text.len() - cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        for (text, shown) in [
            ("plain ä 日本", "plain ä 日本"),
            ("\x1b[2Jx\x07", "\\x1b[2Jx\\x07"),
            ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
            ("\u{7f}\u{9b}31m", "\\x7f\\x9b31m"),
            ("a\u{202e}txt\u{2066}\u{200b}\u{2028}", "a\\u{202e}txt\\u{2066}\\u{200b}\\u{2028}"),
        ] {
            assert_eq!(escaped(text), shown);
            assert!(!escaped(text).contains(is_unprintable));
        }
        assert_eq!(escaped_lines("a\nb\x1b\n"), "a\nb\\x1b\n");
        assert!(matches!(escaped("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shortened("äää", 6), "äää");
        assert_eq!(shortened("äää", 3), "ä [4 more bytes]");
        assert_eq!(shortened(&"x".repeat(1 << 20), 4).len(), 4 + " [1048572 more bytes]".len());
    }
}
