//! Values as text: what an action writes, `print` and its relatives, and `printf` with its verbs, as Go's `fmt` has them.

use super::number::format_float;
use super::quote::quote_into;
use super::text::{first, push, runes};
use super::value::{Key, Value};

/// Deepest values that are written.
const DEEPEST: usize = 1_000;
/// Widest field and highest precision that Go's `fmt` takes.
const WIDEST: i64 = 1_000_000;

/// Bytes that grow up to a limit.
pub(super) struct Out {
    bytes: Vec<u8>,
    most: usize,
}

impl Out {
    pub(super) fn new(most: usize) -> Out {
        Out { bytes: Vec::new(), most }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// When it becomes too large.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(format!("the result has more than {} bytes, which is all that is left", self.most));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends `count` times the same byte.
    pub(super) fn fill(&mut self, byte: u8, count: usize) -> Result<(), String> {
        if self.bytes.len().saturating_add(count) > self.most {
            return Err(format!("the result has more than {} bytes, which is all that is left", self.most));
        }
        self.bytes.resize(self.bytes.len() + count, byte);
        Ok(())
    }
}

/// What an action writes.
pub(super) fn print_result(out: &mut Out, value: &Value) -> Result<(), String> {
    match value {
        Value::Nil | Value::NilAny => out.put(b"<no value>"),
        Value::NilPointer(_) => out.put(b"<nil>"),
        Value::Loop(..) | Value::Scratch => Err(format!("a value of type {} cannot be written", value.type_name())),
        value => write_plain(out, value, 0),
    }
}

/// As `%v`.
pub(super) fn write_plain(out: &mut Out, value: &Value, depth: usize) -> Result<(), String> {
    write_verb(out, value, &Spec { verb: 'v', ..Spec::default() }, depth)
}

/// As `fmt.Sprint`: a space stands between two values of which neither is a string.
pub(super) fn print(out: &mut Out, values: &[Value]) -> Result<(), String> {
    let is_text = |value: &Value| matches!(value, Value::Text(_));
    for (i, value) in values.iter().enumerate() {
        if i > 0 && !is_text(value) && !is_text(&values[i - 1]) {
            out.put(b" ")?;
        }
        write_plain(out, value, 0)?;
    }
    Ok(())
}

/// As `fmt.Sprintln`.
pub(super) fn println(out: &mut Out, values: &[Value]) -> Result<(), String> {
    for (i, value) in values.iter().enumerate() {
        if i > 0 {
            out.put(b" ")?;
        }
        write_plain(out, value, 0)?;
    }
    out.put(b"\n")
}

/// One verb with its flags.
#[derive(Debug, Clone, Copy, Default)]
struct Spec {
    plus: bool,
    minus: bool,
    sharp: bool,
    space: bool,
    zero: bool,
    width: Option<usize>,
    precision: Option<usize>,
    verb: char,
    /// The verb is `v` with a sharp or a plus, which then mean other things.
    sharp_v: bool,
    plus_v: bool,
}

/// As `fmt.Sprintf`.
pub(super) fn printf(out: &mut Out, format: &[u8], values: &[Value]) -> Result<(), String> {
    let mut at = 0;
    let mut next = 0;
    let mut reordered = false;
    while at < format.len() {
        let until = memchr::memchr(b'%', &format[at..]).map_or(format.len(), |i| at + i);
        out.put(&format[at..until])?;
        at = until + 1;
        if until == format.len() {
            break;
        }
        let mut spec = Spec::default();
        let mut after_index = false;
        let mut bad_index = false;
        while let Some(byte) = format.get(at) {
            match byte {
                b'#' => spec.sharp = true,
                b'0' => spec.zero = true,
                b'+' => spec.plus = true,
                b'-' => spec.minus = true,
                b' ' => spec.space = true,
                _ => break,
            }
            at += 1;
        }
        let index = |at: &mut usize, next: &mut usize, after: &mut bool, bad: &mut bool, seen: &mut bool| {
            if format.get(*at) != Some(&b'[') {
                return;
            }
            *seen = true;
            let Some(end) = memchr::memchr(b']', &format[*at..]) else {
                (*bad, *at) = (true, *at + 1);
                return;
            };
            let inside = &format[*at + 1..*at + end];
            *at += end + 1;
            *after = true;
            match std::str::from_utf8(inside).ok().and_then(|t| t.parse::<usize>().ok()) {
                Some(n) if n >= 1 && n <= values.len() => *next = n - 1,
                _ => *bad = true,
            }
        };
        index(&mut at, &mut next, &mut after_index, &mut bad_index, &mut reordered);
        let star = |at: &mut usize, next: &mut usize| -> Option<Option<i64>> {
            if format.get(*at) != Some(&b'*') {
                return None;
            }
            *at += 1;
            let given = values.get(*next).and_then(|v| v.signed().or(v.unsigned().and_then(|n| i64::try_from(n).ok())));
            *next += usize::from(*next < values.len());
            Some(given.filter(|n| n.abs() <= WIDEST))
        };
        match star(&mut at, &mut next) {
            Some(Some(width)) => {
                spec.minus |= width < 0;
                spec.zero &= width >= 0;
                spec.width = Some(width.unsigned_abs() as usize);
                after_index = false;
            }
            Some(None) => {
                out.put(b"%!(BADWIDTH)")?;
                after_index = false;
            }
            None => {
                let (number, found) = digits(format, &mut at);
                if found && after_index {
                    bad_index = true;
                }
                spec.width = number;
            }
        }
        if format.get(at) == Some(&b'.') {
            at += 1;
            if after_index {
                bad_index = true;
            }
            index(&mut at, &mut next, &mut after_index, &mut bad_index, &mut reordered);
            match star(&mut at, &mut next) {
                Some(Some(n)) if n >= 0 => {
                    spec.precision = Some(n as usize);
                    after_index = false;
                }
                Some(Some(_)) => after_index = false,
                Some(None) => {
                    out.put(b"%!(BADPREC)")?;
                    after_index = false;
                }
                None => spec.precision = Some(digits(format, &mut at).0.unwrap_or(0)),
            }
        }
        if !after_index {
            index(&mut at, &mut next, &mut after_index, &mut bad_index, &mut reordered);
        }
        let Some(rune) = first(&format[at..]) else {
            out.put(b"%!(NOVERB)")?;
            break;
        };
        at += rune.width;
        spec.verb = rune.or_replacement();
        if spec.verb == '%' {
            out.put(b"%")?;
            continue;
        }
        let shown = spec.verb.to_string();
        if bad_index {
            out.put(format!("%!{shown}(BADINDEX)").as_bytes())?;
            continue;
        }
        let Some(value) = values.get(next) else {
            out.put(format!("%!{shown}(MISSING)").as_bytes())?;
            continue;
        };
        next += 1;
        if spec.verb == 'w' {
            bad_verb(out, value, 'w', 0)?;
            continue;
        }
        if spec.verb == 'v' {
            spec.sharp_v = std::mem::take(&mut spec.sharp);
            spec.plus_v = std::mem::take(&mut spec.plus);
        }
        if spec.minus {
            spec.zero = false;
        }
        write_verb(out, value, &spec, 0)?;
    }
    if !reordered && next < values.len() {
        out.put(b"%!(EXTRA ")?;
        for (i, value) in values[next..].iter().enumerate() {
            if i > 0 {
                out.put(b", ")?;
            }
            if value.is_nil() {
                out.put(b"<nil>")?;
            } else {
                out.put(value.type_name().as_bytes())?;
                out.put(b"=")?;
                write_plain(out, value, 0)?;
            }
        }
        out.put(b")")?;
    }
    Ok(())
}

/// A width or a precision; one that is too large is none.
fn digits(format: &[u8], at: &mut usize) -> (Option<usize>, bool) {
    let start = *at;
    while format.get(*at).is_some_and(u8::is_ascii_digit) {
        *at += 1;
    }
    let text = std::str::from_utf8(&format[start..*at]).unwrap_or("");
    (text.parse().ok().filter(|n| *n <= WIDEST as usize), *at > start)
}

/// Fills `text` up to the width.
fn pad(out: &mut Out, text: &[u8], spec: &Spec, zeros: bool) -> Result<(), String> {
    let width = runes(text).count();
    let fill = spec.width.unwrap_or(0).saturating_sub(width);
    if spec.minus {
        out.put(text)?;
        return out.fill(b' ', fill);
    }
    if zeros && spec.zero {
        let sign = usize::from(text.first().is_some_and(|b| matches!(b, b'+' | b'-' | b' ')));
        out.put(&text[..sign])?;
        out.fill(b'0', fill)?;
        return out.put(&text[sign..]);
    }
    out.fill(b' ', fill)?;
    out.put(text)
}

fn bad_verb(out: &mut Out, value: &Value, verb: char, depth: usize) -> Result<(), String> {
    let mut shown = [0; 4];
    out.put(b"%!")?;
    out.put(verb.encode_utf8(&mut shown).as_bytes())?;
    out.put(b"(")?;
    if value.is_nil() {
        out.put(b"<nil>")?;
    } else {
        out.put(value.type_name().as_bytes())?;
        out.put(b"=")?;
        write_plain(out, value, depth + 1)?;
    }
    out.put(b")")
}

fn write_verb(out: &mut Out, value: &Value, spec: &Spec, depth: usize) -> Result<(), String> {
    if depth > DEEPEST {
        return Err(format!("the value nests deeper than {DEEPEST}"));
    }
    if spec.verb == 'T' {
        return pad(out, value.type_name().as_bytes(), spec, false);
    }
    match value {
        Value::Nil | Value::NilAny if spec.verb == 'v' => pad(out, b"<nil>", spec, false),
        Value::Nil | Value::NilAny => {
            let mut shown = [0; 4];
            out.put(b"%!")?;
            out.put(spec.verb.encode_utf8(&mut shown).as_bytes())?;
            out.put(b"(<nil>)")
        }
        Value::NilPointer(name) if spec.sharp_v => out.put(format!("({name})(nil)").as_bytes()),
        Value::NilPointer(_) => pad(out, b"<nil>", spec, false),
        Value::Bool(b) => match spec.verb {
            'v' | 't' => pad(out, if *b { b"true" } else { b"false" }, spec, false),
            verb => bad_verb(out, value, verb, depth),
        },
        Value::Int(n) | Value::Int64(n) => integer(out, value, i128::from(*n), spec, depth),
        Value::Uint64(n) => unsigned(out, value, *n, spec, depth),
        Value::Byte(n) => unsigned(out, value, u64::from(*n), spec, depth),
        Value::Float(f) => float(out, value, *f, spec, depth),
        Value::Text(text) => string(out, value, text, spec, depth),
        Value::List(list) => {
            if spec.sharp_v {
                out.put(value.type_name().as_bytes())?;
            }
            let (open, between, close) =
                if spec.sharp_v { (&b"{"[..], &b", "[..], &b"}"[..]) } else { (&b"["[..], &b" "[..], &b"]"[..]) };
            out.put(open)?;
            for (i, item) in list.items.iter().enumerate() {
                if i > 0 {
                    out.put(between)?;
                }
                element(out, item, spec, depth)?;
            }
            out.put(close)
        }
        Value::Map(map) => {
            let (open, between, close) =
                if spec.sharp_v { (&b"{"[..], &b", "[..], &b"}"[..]) } else { (&b"map["[..], &b" "[..], &b"]"[..]) };
            if spec.sharp_v {
                out.put(value.type_name().as_bytes())?;
            } else if map.owner.is_some() && depth == 0 && spec.verb != 'v' {
                out.put(b"&")?;
            }
            out.put(open)?;
            for (i, (key, item)) in map.pairs().iter().enumerate() {
                if i > 0 {
                    out.put(between)?;
                }
                match key {
                    Key::Int(_) | Key::Text(_) => write_verb(out, &key.value(), spec, depth + 1)?,
                }
                out.put(b":")?;
                element(out, item, spec, depth)?;
            }
            out.put(close)
        }
        Value::Object(object) => {
            if let Some(shown) = &object.shown {
                return string(out, value, shown, spec, depth);
            }
            let named = spec.sharp_v && object.is_plain();
            if named {
                out.put(object.type_name.as_bytes())?;
            }
            out.put(b"{")?;
            for (i, (name, field)) in object.fields.iter().enumerate() {
                if i > 0 {
                    out.put(if named { b", " } else { b" " })?;
                }
                if spec.plus_v || named {
                    out.put(name.as_bytes())?;
                    out.put(b":")?;
                }
                element(out, field, spec, depth)?;
            }
            out.put(b"}")
        }
        Value::Loop(..) | Value::Scratch => bad_verb(out, &Value::text(value.type_name()), spec.verb, depth),
    }
}

fn element(out: &mut Out, value: &Value, spec: &Spec, depth: usize) -> Result<(), String> {
    match value {
        Value::Nil | Value::NilAny if spec.sharp_v => out.put(b"interface {}(nil)"),
        Value::Nil | Value::NilAny if spec.verb == 'v' => pad(out, b"<nil>", spec, false),
        value => write_verb(out, value, spec, depth + 1),
    }
}

fn sign(negative: bool, spec: &Spec) -> &'static str {
    match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn unsigned(out: &mut Out, value: &Value, n: u64, spec: &Spec, depth: usize) -> Result<(), String> {
    if spec.verb == 'v' && spec.sharp_v {
        return out.put(format!("{n:#x}").as_bytes());
    }
    integer(out, value, i128::from(n), spec, depth)
}

fn integer(out: &mut Out, value: &Value, n: i128, spec: &Spec, depth: usize) -> Result<(), String> {
    let magnitude = n.unsigned_abs();
    let (mut digits, prefix) = match spec.verb {
        'v' | 'd' => (magnitude.to_string(), ""),
        'b' => (format!("{magnitude:b}"), if spec.sharp { "0b" } else { "" }),
        'o' => (format!("{magnitude:o}"), if spec.sharp { "0" } else { "" }),
        'O' => (format!("{magnitude:o}"), "0o"),
        'x' => (format!("{magnitude:x}"), if spec.sharp { "0x" } else { "" }),
        'X' => (format!("{magnitude:X}"), if spec.sharp { "0X" } else { "" }),
        'c' | 'q' | 'U' => {
            let c = u32::try_from(n).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
            let mut text = Vec::new();
            match spec.verb {
                'c' => push(&mut text, c),
                'q' => quote_into(&mut text, c.to_string().as_bytes(), b'\'', spec.plus),
                _ => text.extend_from_slice(format!("U+{magnitude:04X}").as_bytes()),
            }
            return pad(out, &text, &Spec { zero: false, ..*spec }, false);
        }
        verb => return bad_verb(out, value, verb, depth),
    };
    let sign = sign(n < 0, spec);
    if let Some(precision) = spec.precision {
        if precision == 0 && n == 0 {
            return out.fill(b' ', spec.width.unwrap_or(0));
        }
        let fill = precision.saturating_sub(digits.len());
        digits.insert_str(0, &"0".repeat(fill));
    } else if spec.zero && !spec.minus {
        let fill = spec.width.unwrap_or(0).saturating_sub(digits.len() + sign.len());
        digits.insert_str(0, &"0".repeat(fill));
    }
    let prefix = if prefix == "0" && digits.starts_with('0') { "" } else { prefix };
    let text = format!("{sign}{prefix}{digits}");
    pad(out, text.as_bytes(), &Spec { zero: false, ..*spec }, false)
}

fn float(out: &mut Out, value: &Value, f: f64, spec: &Spec, depth: usize) -> Result<(), String> {
    let text = match spec.verb {
        'v' => format_float(f, 'g', spec.precision),
        'e' | 'E' | 'f' | 'F' => format_float(f, spec.verb, Some(spec.precision.unwrap_or(6))),
        'g' | 'G' => format_float(f, spec.verb, spec.precision),
        verb => return bad_verb(out, value, verb, depth),
    };
    let bare = text.trim_start_matches(['+', '-']);
    let text = format!("{}{bare}", if text == "+Inf" && spec.plus { "+" } else { sign(text.starts_with('-'), spec) });
    let text = if bare == "Inf" && !text.starts_with(['-', ' ']) { "+Inf".to_owned() } else { text };
    pad(out, text.as_bytes(), spec, f.is_finite())
}

fn string(out: &mut Out, value: &Value, text: &[u8], spec: &Spec, depth: usize) -> Result<(), String> {
    let cut = |text: &[u8]| -> Vec<u8> {
        let Some(most) = spec.precision else { return text.to_vec() };
        let length: usize = runes(text).take(most).map(|r| r.width).sum();
        text[..length].to_vec()
    };
    match spec.verb {
        'v' if !spec.sharp_v => pad(out, &cut(text), spec, true),
        's' => pad(out, &cut(text), spec, true),
        'v' | 'q' => {
            let text = cut(text);
            // An escape takes up to four bytes.
            if text.len() > out.most / 4 {
                return Err(format!("%q takes at most {} bytes here, not {}", out.most / 4, text.len()));
            }
            let mut quoted = Vec::with_capacity(text.len() + 2);
            let raw = spec.sharp
                && std::str::from_utf8(&text)
                    .is_ok_and(|t| !t.chars().any(|c| c == '`' || c == '\u{feff}' || (c.is_control() && c != '\t')));
            if raw {
                quoted.push(b'`');
                quoted.extend_from_slice(&text);
                quoted.push(b'`');
            } else {
                quote_into(&mut quoted, &text, b'"', spec.plus);
            }
            pad(out, &quoted, spec, true)
        }
        'x' | 'X' => {
            let text = &text[..text.len().min(spec.precision.unwrap_or(usize::MAX))];
            let mut hex = Vec::new();
            for (i, byte) in text.iter().enumerate() {
                if hex.len() > out.most {
                    break;
                }
                if i > 0 && spec.space {
                    hex.push(b' ');
                }
                let prefix = if spec.sharp && (i == 0 || spec.space) { "0x" } else { "" };
                let digits = format!("{prefix}{byte:02x}");
                let digits = if spec.verb == 'X' { digits.to_ascii_uppercase() } else { digits };
                hex.extend_from_slice(digits.as_bytes());
            }
            pad(out, &hex, spec, true)
        }
        verb => bad_verb(out, value, verb, depth),
    }
}
