//! Strings and characters in quotes, as Go writes and reads them.

use super::text::{first, push, runes};

/// The bytes that a quoted string stands for; `None` for what Go does not read.
pub(super) fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    let (quote, rest) = text.split_first()?;
    let (end, mut rest) = rest.split_last()?;
    if quote != end {
        return None;
    }
    let mut out = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        match character(rest, *quote)? {
            (Unquoted::Byte(byte), width) => {
                out.push(byte);
                rest = &rest[width..];
            }
            (Unquoted::Char(c), width) => {
                push(&mut out, c);
                rest = &rest[width..];
            }
        }
    }
    Some(out)
}

/// The character in single quotes.
pub(super) fn unquote_char(text: &[u8]) -> Option<u32> {
    let inner = text.strip_prefix(b"'")?.strip_suffix(b"'")?;
    let (value, width) = character(inner, b'\'')?;
    let value = match value {
        Unquoted::Byte(byte) => u32::from(byte),
        Unquoted::Char(c) => u32::from(c),
    };
    (width == inner.len()).then_some(value)
}

enum Unquoted {
    Byte(u8),
    Char(char),
}

fn character(text: &[u8], quote: u8) -> Option<(Unquoted, usize)> {
    let digits = |from: usize, count: usize, radix: u32| {
        let text = std::str::from_utf8(text.get(from..from + count)?).ok()?;
        let fits = text.chars().all(|c| c.is_digit(radix));
        if fits { u32::from_str_radix(text, radix).ok() } else { None }
    };
    let rune = first(text)?;
    match text[0] {
        b'\\' => {}
        b'\n' => return None,
        byte if byte == quote => return None,
        // A byte that is not UTF-8 becomes U+FFFD, as in Go; only \x makes one.
        _ if rune.char.is_none() => return Some((Unquoted::Char(char::REPLACEMENT_CHARACTER), 1)),
        _ => return Some((Unquoted::Char(rune.or_replacement()), rune.width)),
    }
    let (value, width) = match *text.get(1)? {
        b'a' => (Unquoted::Byte(7), 2),
        b'b' => (Unquoted::Byte(8), 2),
        b'f' => (Unquoted::Byte(12), 2),
        b'n' => (Unquoted::Byte(b'\n'), 2),
        b'r' => (Unquoted::Byte(b'\r'), 2),
        b't' => (Unquoted::Byte(b'\t'), 2),
        b'v' => (Unquoted::Byte(11), 2),
        b'\\' => (Unquoted::Byte(b'\\'), 2),
        b'x' => (Unquoted::Byte(digits(2, 2, 16)? as u8), 4),
        b'u' => (Unquoted::Char(char::from_u32(digits(2, 4, 16)?)?), 6),
        b'U' => (Unquoted::Char(char::from_u32(digits(2, 8, 16)?)?), 10),
        b'0'..=b'7' => (Unquoted::Byte(u8::try_from(digits(1, 3, 8)?).ok()?), 4),
        byte if byte == quote => (Unquoted::Byte(quote), 2),
        _ => return None,
    };
    Some((value, width))
}

/// What stands as it is between quotes.
fn printable(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_graphic() || c == ' ';
    }
    // The escapes of Debug are those of what cannot be printed; a combining mark Go prints.
    !c.is_control() && !c.is_whitespace() && (c.escape_debug().len() == 1 || c.is_alphanumeric())
}

/// Appends `text` between `quote`s. `ascii` escapes all that is beyond.
pub(super) fn quote_into(out: &mut Vec<u8>, text: &[u8], quote: u8, ascii: bool) {
    out.push(quote);
    let mut at = 0;
    for rune in runes(text) {
        let byte = text[at];
        at += rune.width;
        match rune.char {
            None => out.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
            Some(c) if c == char::from(quote) || c == '\\' => out.extend_from_slice(&[b'\\', c as u8]),
            Some(c) if printable(c) && (c.is_ascii() || !ascii) => push(out, c),
            Some('\x07') => out.extend_from_slice(b"\\a"),
            Some('\x08') => out.extend_from_slice(b"\\b"),
            Some('\x0c') => out.extend_from_slice(b"\\f"),
            Some('\n') => out.extend_from_slice(b"\\n"),
            Some('\r') => out.extend_from_slice(b"\\r"),
            Some('\t') => out.extend_from_slice(b"\\t"),
            Some('\x0b') => out.extend_from_slice(b"\\v"),
            Some(c) if c < ' ' || c == '\x7f' => out.extend_from_slice(format!("\\x{:02x}", c as u32).as_bytes()),
            Some(c) if (c as u32) < 0x10000 => out.extend_from_slice(format!("\\u{:04x}", c as u32).as_bytes()),
            Some(c) => out.extend_from_slice(format!("\\U{:08x}", c as u32).as_bytes()),
        }
    }
    out.push(quote);
}

/// `text` between double quotes.
pub(super) fn quote(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len() + 2);
    quote_into(&mut out, text, b'"', false);
    out
}
