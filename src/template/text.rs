//! Byte strings that are mostly UTF-8, read as Go reads them: each byte that belongs to no character is one of its own.

/// One character of a byte string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rune {
    /// `None` for a byte that is not UTF-8.
    pub(super) char: Option<char>,
    /// How many bytes it has.
    pub(super) width: usize,
}

impl Rune {
    /// As Go has it: U+FFFD for a byte that is not UTF-8.
    pub(super) fn or_replacement(self) -> char {
        self.char.unwrap_or(char::REPLACEMENT_CHARACTER)
    }
}

/// The first character of `bytes`.
pub(super) fn first(bytes: &[u8]) -> Option<Rune> {
    let lead = *bytes.first()?;
    let width = match lead {
        0..=0x7f => return Some(Rune { char: Some(char::from(lead)), width: 1 }),
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return Some(Rune { char: None, width: 1 }),
    };
    let char = bytes.get(..width).and_then(|b| std::str::from_utf8(b).ok()).and_then(|s| s.chars().next());
    Some(Rune { char, width: if char.is_some() { width } else { 1 } })
}

/// All characters of `bytes`.
pub(super) fn runes(bytes: &[u8]) -> impl Iterator<Item = Rune> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let rune = first(rest)?;
        rest = &rest[rune.width..];
        Some(rune)
    })
}

/// Appends a character.
pub(super) fn push(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// What Go calls white space in `strings.TrimSpace` and `unicode.IsSpace`.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace()
}

/// `bytes` without what `drop` takes at both ends.
pub(super) fn trim(bytes: &[u8], drop: impl Fn(Rune) -> bool, start: bool, end: bool) -> &[u8] {
    let mut rest = bytes;
    while start
        && let Some(rune) = first(rest)
        && drop(rune)
    {
        rest = &rest[rune.width..];
    }
    while end
        && let Some(rune) = last(rest)
        && drop(rune)
    {
        rest = &rest[..rest.len() - rune.width];
    }
    rest
}

/// The last character of `bytes`.
fn last(bytes: &[u8]) -> Option<Rune> {
    let len = bytes.len();
    let whole = (1..=len.min(4)).find_map(|n| first(&bytes[len - n..]).filter(|r| r.width == n && r.char.is_some()));
    if len == 0 { None } else { Some(whole.unwrap_or(Rune { char: None, width: 1 })) }
}

/// `bytes` without white space at both ends.
pub(super) fn trim_space(bytes: &[u8]) -> &[u8] {
    trim(bytes, |r| r.char.is_some_and(is_space), true, true)
}

/// Each character changed by `change`; bytes that are no UTF-8 become U+FFFD, as in Go.
pub(super) fn map(bytes: &[u8], change: impl Fn(char) -> char) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for rune in runes(bytes) {
        push(&mut out, change(rune.or_replacement()));
    }
    out
}

/// The one upper case letter of a letter, where it is one.
pub(super) fn upper(c: char) -> char {
    let mut all = c.to_uppercase();
    match (all.next(), all.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

/// The one lower case letter of a letter.
pub(super) fn lower(c: char) -> char {
    c.to_lowercase().next().unwrap_or(c)
}

/// Where `needle` stands in `text`, which is not empty.
pub(super) fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, needle)
}

/// The parts of `text` between the `separator`s; each character where that is empty. At most `most` where it is given.
pub(super) fn split<'a>(text: &'a [u8], separator: &[u8], most: Option<usize>) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    let mut rest = text;
    let full = |parts: &Vec<&[u8]>| most.is_some_and(|most| parts.len() + 1 >= most);
    if separator.is_empty() {
        while !full(&parts)
            && let Some(rune) = first(rest)
        {
            parts.push(&rest[..rune.width]);
            rest = &rest[rune.width..];
        }
        if !rest.is_empty() {
            parts.push(rest);
        }
        return parts;
    }
    let finder = memchr::memmem::Finder::new(separator);
    while !full(&parts)
        && let Some(at) = finder.find(rest)
    {
        parts.push(&rest[..at]);
        rest = &rest[at + separator.len()..];
    }
    parts.push(rest);
    parts
}
