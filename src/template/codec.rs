//! JSON, YAML and TOML, read and written as consul-template's libraries do.

use std::cmp::Ordering;

use saphyr_parser::{Event, Parser, ScalarStyle};

use super::number::{format_float, integer};
use super::text::runes;
use super::value::{Key, Keyed, Kind, Value};
use super::verbs::Out;
use crate::spec::collections::BTreeMap;

/// Deepest values that are read or written.
const DEEPEST: usize = 500;

fn too_deep(depth: usize) -> Result<(), String> {
    if depth > DEEPEST { Err(format!("the value nests deeper than {DEEPEST}")) } else { Ok(()) }
}

fn key_text(key: &Key) -> Vec<u8> {
    match key {
        Key::Int(n) => n.to_string().into_bytes(),
        Key::Text(text) => text.to_vec(),
    }
}

/// What JSON text says.
pub(super) fn parse_json(text: &[u8]) -> Result<Value, String> {
    // Go takes bytes that are no UTF-8 for U+FFFD within a string.
    let text = String::from_utf8_lossy(text);
    let json = serde_json::from_str(&text).map_err(|e| format!("this is not JSON: {e}"))?;
    Ok(Value::of_json(&json).bare())
}

/// How JSON is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Json<'a> {
    /// What a level is indented by; `None` for one line.
    pub(super) indent: Option<&'a str>,
    /// `<`, `>` and `&` as escapes.
    pub(super) html: bool,
}

/// Writes `value` as JSON.
pub(super) fn write_json(out: &mut Out, value: &Value, how: Json<'_>, depth: usize) -> Result<(), String> {
    too_deep(depth)?;
    let line = |out: &mut Out, depth: usize| {
        if let Some(indent) = how.indent {
            out.put(b"\n")?;
            for _ in 0..depth {
                out.put(indent.as_bytes())?;
            }
        }
        Ok::<(), String>(())
    };
    match value {
        Value::Nil | Value::NilAny | Value::NilPointer(_) => out.put(b"null"),
        Value::Bool(b) => out.put(b.to_string().as_bytes()),
        Value::Int(n) | Value::Int64(n) => out.put(n.to_string().as_bytes()),
        Value::Uint64(n) => out.put(n.to_string().as_bytes()),
        Value::Byte(n) => out.put(n.to_string().as_bytes()),
        Value::Float(f) => out.put(json_float(*f)?.as_bytes()),
        Value::Text(text) => json_string(out, text, how.html),
        Value::List(list) if list.items.is_empty() => out.put(b"[]"),
        Value::List(list) => {
            out.put(b"[")?;
            for (i, item) in list.items.iter().enumerate() {
                if i > 0 {
                    out.put(b",")?;
                }
                line(out, depth + 1)?;
                write_json(out, item, how, depth + 1)?;
            }
            line(out, depth)?;
            out.put(b"]")
        }
        Value::Map(map) if map.keyed == Keyed::Any => {
            Err("JSON cannot hold a map of YAML (map[interface {}]interface {}), as in Nomad; parseJSON gives one that it can".to_owned())
        }
        Value::Map(_) | Value::Object(_) => {
            let members: Vec<(Vec<u8>, Value)> = match value {
                Value::Map(map) => map.pairs().into_iter().map(|(k, v)| (key_text(&k), v)).collect(),
                Value::Object(object) => match &object.shown {
                    Some(shown) if object.type_name == "NomadVarItem" => {
                        return out.put(&super::quote::quote(shown));
                    }
                    _ => object.fields.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.clone())).collect(),
                },
                _ => Vec::new(),
            };
            if members.is_empty() {
                return out.put(b"{}");
            }
            out.put(b"{")?;
            for (i, (key, item)) in members.iter().enumerate() {
                if i > 0 {
                    out.put(b",")?;
                }
                line(out, depth + 1)?;
                json_string(out, key, how.html)?;
                out.put(if how.indent.is_some() { b": " } else { b":" })?;
                write_json(out, item, how, depth + 1)?;
            }
            line(out, depth)?;
            out.put(b"}")
        }
        Value::Loop(..) | Value::Scratch => Err(format!("a value of type {} is not JSON", value.type_name())),
    }
}

fn json_float(f: f64) -> Result<String, String> {
    if !f.is_finite() {
        return Err("JSON has no such number".to_owned());
    }
    let magnitude = f.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format_float(f, 'e', None);
        // 1e-09 is written 1e-9.
        return Ok(text.replace("e-0", "e-"));
    }
    Ok(format_float(f, 'f', None))
}

fn json_string(out: &mut Out, text: &[u8], html: bool) -> Result<(), String> {
    out.put(b"\"")?;
    let mut at = 0;
    for rune in runes(text) {
        let bytes = &text[at..at + rune.width];
        at += rune.width;
        match rune.char {
            None => out.put(b"\\ufffd")?,
            Some('"') => out.put(b"\\\"")?,
            Some('\\') => out.put(b"\\\\")?,
            Some('\n') => out.put(b"\\n")?,
            Some('\r') => out.put(b"\\r")?,
            Some('\t') => out.put(b"\\t")?,
            Some('\x08') => out.put(b"\\b")?,
            Some('\x0c') => out.put(b"\\f")?,
            Some(c) if c < ' ' || (html && matches!(c, '<' | '>' | '&')) || matches!(c, '\u{2028}' | '\u{2029}') => {
                out.put(format!("\\u{:04x}", c as u32).as_bytes())?;
            }
            Some(_) => out.put(bytes)?,
        }
    }
    out.put(b"\"")
}

/// What YAML text says, by the rules of YAML 1.1, where `yes` is true and 010 is eight.
pub(super) fn parse_yaml(text: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(text).map_err(|_| "YAML has to be UTF-8".to_owned())?;
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|e| format!("this is not YAML: {e}"))?;
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain;
                let tag = tag.map(|tag| tag.suffix.clone());
                builder.value(yaml_scalar(&text, plain, tag.as_deref())?, anchor)?;
            }
            Event::SequenceStart(anchor, _) => builder.open(Frame::List(Vec::new()), anchor)?,
            Event::MappingStart(anchor, _) => builder.open(Frame::Map(BTreeMap::new(), Vec::new(), None), anchor)?,
            Event::SequenceEnd | Event::MappingEnd => builder.close()?,
            Event::Alias(anchor) => {
                let value = builder.anchors.get(&anchor).cloned().ok_or("an alias stands before its anchor")?;
                builder.value(value, 0)?;
            }
            Event::DocumentEnd => break,
            _ => {}
        }
    }
    Ok(builder.done.unwrap_or(Value::NilAny).bare())
}

/// A list or map that is being read.
enum Frame {
    List(Vec<Value>),
    /// Entries, maps that are merged into them, and the key whose value comes next.
    Map(BTreeMap<Key, Value>, Vec<Value>, Option<Key>),
}

#[derive(Default)]
struct Builder {
    frames: Vec<(Frame, usize)>,
    anchors: BTreeMap<usize, Value>,
    done: Option<Value>,
}

impl Builder {
    fn open(&mut self, frame: Frame, anchor: usize) -> Result<(), String> {
        too_deep(self.frames.len())?;
        self.frames.push((frame, anchor));
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        let Some((frame, anchor)) = self.frames.pop() else { return Ok(()) };
        let value = match frame {
            Frame::List(items) => Value::list(Kind::Any, items),
            Frame::Map(mut entries, merged, _) => {
                for map in merged {
                    let Value::Map(map) = map else { return Err("only a map can be merged (<<)".to_owned()) };
                    for (key, value) in map.pairs() {
                        entries.entry(key).or_insert(value);
                    }
                }
                Value::map_keyed(Keyed::Any, Kind::Any, entries)
            }
        };
        self.value(value, anchor)
    }

    fn value(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.frames.last_mut() {
            None => self.done = Some(value),
            Some((Frame::List(items), _)) => items.push(value),
            Some((Frame::Map(entries, merged, key), _)) => match key.take() {
                None => {
                    *key = Some(match value {
                        Value::Text(text) => Key::Text(text),
                        Value::Int(n) => Key::Int(n),
                        // `y: 1` has the key true.
                        Value::Bool(b) => Key::text(b.to_string().as_bytes()),
                        other => return Err(format!("a key of YAML cannot be of type {}", other.type_name())),
                    });
                }
                Some(key) if key == Key::text(b"<<") => match value {
                    Value::List(list) => merged.extend(list.items.iter().cloned()),
                    value => merged.push(value),
                },
                Some(key) => {
                    if entries.insert(key.clone(), value).is_some() {
                        let name = String::from_utf8_lossy(&key_text(&key)).into_owned();
                        return Err(format!("the key {name:?} stands twice in a map of the YAML"));
                    }
                }
            },
        }
        Ok(())
    }
}

fn yaml_scalar(text: &str, plain: bool, tag: Option<&str>) -> Result<Value, String> {
    match tag {
        Some("str") => return Ok(Value::text(text)),
        Some("binary") => {
            let text: String = text.split_ascii_whitespace().collect();
            let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text);
            return bytes.map(Value::text).map_err(|e| format!("!!binary: {e}"));
        }
        _ => {}
    }
    if !plain && !matches!(tag, Some("int" | "float" | "bool" | "null")) {
        return Ok(Value::text(text));
    }
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::NilAny,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Value::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Value::Float(f64::NEG_INFINITY),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => {
            let digits = text.replace('_', "");
            let shape = digits.trim_start_matches(['+', '-']);
            let is_float = shape.contains(|c: char| c.is_ascii_digit())
                && shape.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b));
            match integer(&digits) {
                Some(n) if let Ok(n) = i64::try_from(n) => Value::Int(n),
                Some(n) if let Ok(n) = u64::try_from(n) => Value::Uint64(n),
                _ if is_float => digits.parse().map_or_else(|_| Value::text(text), Value::Float),
                _ => Value::text(text),
            }
        }
        _ => Value::text(text),
    })
}

/// Whether YAML takes a plain word for something else than a string.
fn is_yaml_word(text: &str) -> bool {
    const WORDS: &[&str] = &[
        "", "~", "null", "Null", "NULL", "true", "True", "TRUE", "false", "False", "FALSE", "y", "Y", "yes", "Yes",
        "YES", "on", "On", "ON", "n", "N", "no", "No", "NO", "off", "Off", "OFF", "<<", "=", ".nan", ".NaN", ".NAN",
        ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF",
    ];
    if WORDS.contains(&text) {
        return true;
    }
    let plain = text.replace('_', "");
    let digits = plain.trim_start_matches(['+', '-']);
    let number = digits.starts_with(|c: char| c.is_ascii_digit())
        || digits.strip_prefix('.').is_some_and(|d| d.starts_with(|c: char| c.is_ascii_digit()));
    let date = || {
        let bytes = text.as_bytes();
        bytes.len() >= 8
            && bytes[..4].iter().all(u8::is_ascii_digit)
            && bytes[4] == b'-'
            && bytes.iter().all(|b| b.is_ascii_digit() || b"-:TtZz+. ".contains(b))
    };
    number
        && (integer(&plain).is_some()
            || plain.parse::<f64>().is_ok()
            || date()
            || text.split(':').all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit())) && text.contains(':'))
}

/// A string as YAML: plain where that is read as the same string.
fn yaml_string(out: &mut Out, text: &[u8], indent: usize) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(text) else {
        // As the library has it.
        out.put(b"!!binary ")?;
        return out.put(base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text).as_bytes());
    };
    let special = |c: char| c.is_control() && c != '\n' && c != '\t' || c == '\u{feff}' || c == '\u{85}';
    if text.contains('\n') && !text.contains(special) && !text.starts_with([' ', '\n']) && !text.contains(" \n") {
        let keep = match (text.ends_with('\n'), text.ends_with("\n\n")) {
            (false, _) => "|-",
            (_, true) => "|+",
            _ => "|",
        };
        out.put(keep.as_bytes())?;
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            out.put(b"\n")?;
            if !line.is_empty() {
                out.fill(b' ', indent)?;
                out.put(line.as_bytes())?;
            }
        }
        return Ok(());
    }
    let first_bad = text.starts_with(|c: char| "-?:,[]{}#&*!|>'\"%@`".contains(c));
    let first_ok = text.len() > 1 && text.starts_with(['-', '?', ':']) && !text[1..].starts_with([' ', '\t']);
    let unplain = (first_bad && !first_ok)
        || text.starts_with([' ', '\t'])
        || text.ends_with([' ', '\t', ':'])
        || text.contains(": ")
        || text.contains(":\t")
        || text.contains(" #")
        || text.contains("\t#")
        || text.starts_with("---")
        || text.starts_with("...")
        || text.contains('\n');
    if text.contains(special) || text.contains('\n') || is_yaml_word(text) {
        return yaml_quoted(out, text);
    }
    if unplain || text.contains('\t') {
        out.put(b"'")?;
        out.put(text.replace('\'', "''").as_bytes())?;
        return out.put(b"'");
    }
    out.put(text.as_bytes())
}

fn yaml_quoted(out: &mut Out, text: &str) -> Result<(), String> {
    out.put(b"\"")?;
    for c in text.chars() {
        match c {
            '"' => out.put(b"\\\"")?,
            '\\' => out.put(b"\\\\")?,
            '\0' => out.put(b"\\0")?,
            '\x07' => out.put(b"\\a")?,
            '\x08' => out.put(b"\\b")?,
            '\t' => out.put(b"\\t")?,
            '\n' => out.put(b"\\n")?,
            '\x0b' => out.put(b"\\v")?,
            '\x0c' => out.put(b"\\f")?,
            '\r' => out.put(b"\\r")?,
            '\x1b' => out.put(b"\\e")?,
            '\u{85}' => out.put(b"\\N")?,
            c if c.is_control() => out.put(format!("\\x{:02X}", c as u32).as_bytes())?,
            c => out.put(c.encode_utf8(&mut [0; 4]).as_bytes())?,
        }
    }
    out.put(b"\"")
}

/// Writes `value` as a YAML document, without the last line end.
pub(super) fn write_yaml(out: &mut Out, value: &Value, indent: usize, depth: usize) -> Result<(), String> {
    too_deep(depth)?;
    let line = |out: &mut Out, first: bool, indent: usize| {
        if first {
            return Ok(());
        }
        out.put(b"\n")?;
        out.fill(b' ', indent)
    };
    match value {
        Value::Nil | Value::NilAny | Value::NilPointer(_) => out.put(b"null"),
        Value::Bool(b) => out.put(b.to_string().as_bytes()),
        Value::Int(n) | Value::Int64(n) => out.put(n.to_string().as_bytes()),
        Value::Uint64(n) => out.put(n.to_string().as_bytes()),
        Value::Byte(n) => out.put(n.to_string().as_bytes()),
        Value::Float(f) if f.is_nan() => out.put(b".nan"),
        Value::Float(f) if f.is_infinite() => out.put(if *f > 0.0 { b".inf" } else { b"-.inf" }),
        Value::Float(f) => out.put(format_float(*f, 'g', None).as_bytes()),
        Value::Text(text) => yaml_string(out, text, indent.max(2)),
        Value::List(list) if list.items.is_empty() => out.put(b"[]"),
        Value::List(list) => {
            for (i, item) in list.items.iter().enumerate() {
                line(out, i == 0, indent)?;
                out.put(b"- ")?;
                write_yaml(out, item, indent + 2, depth + 1)?;
            }
            Ok(())
        }
        Value::Map(_) | Value::Object(_) => {
            let members: Vec<(Vec<u8>, Value)> = match value {
                Value::Map(map) => map.pairs().into_iter().map(|(k, v)| (key_text(&k), v)).collect(),
                Value::Object(object) => {
                    object.fields.iter().map(|(k, v)| (k.to_ascii_lowercase().into_bytes(), v.clone())).collect()
                }
                _ => Vec::new(),
            };
            if members.is_empty() {
                return out.put(b"{}");
            }
            let members = match value {
                Value::Map(_) => in_natural_order(members),
                _ => members,
            };
            for (i, (key, item)) in members.iter().enumerate() {
                line(out, i == 0, indent)?;
                yaml_string(out, key, indent + 2)?;
                out.put(b":")?;
                let inner = match item {
                    Value::List(list) if !list.items.is_empty() => Some(indent),
                    Value::Map(map) if !map.entries.borrow().is_empty() => Some(indent + 2),
                    Value::Object(_) => Some(indent + 2),
                    _ => None,
                };
                match inner {
                    Some(inner) => line(out, false, inner)?,
                    None => out.put(b" ")?,
                }
                write_yaml(out, item, inner.unwrap_or(indent + 2), depth + 1)?;
            }
            Ok(())
        }
        Value::Loop(..) | Value::Scratch => Err(format!("a value of type {} is not YAML", value.type_name())),
    }
}

/// `members` by [`natural`], which is not a total order: "10" < "1a" < "9" < "10". A sort of the standard library may
/// panic at such an order; merging gives some order, always the same one.
fn in_natural_order(mut members: Vec<(Vec<u8>, Value)>) -> Vec<(Vec<u8>, Value)> {
    if members.len() < 2 {
        return members;
    }
    let right = in_natural_order(members.split_off(members.len() / 2));
    let (mut left, mut right) = (in_natural_order(members).into_iter().peekable(), right.into_iter().peekable());
    let mut merged = Vec::with_capacity(left.len() + right.len());
    while let (Some(one), Some(other)) = (left.peek(), right.peek()) {
        let next = if natural(&one.0, &other.0).is_gt() { right.next() } else { left.next() };
        merged.extend(next);
    }
    merged.extend(left);
    merged.extend(right);
    merged
}

/// The order of keys in YAML: letters after all else, numbers by their value. The first difference decides.
fn natural(one: &[u8], other: &[u8]) -> Ordering {
    let chars = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().collect::<Vec<char>>();
    let (one, other) = (chars(one), chars(other));
    let Some(at) = one.iter().zip(&other).position(|(left, right)| left != right) else {
        return one.len().cmp(&other.len());
    };
    match (one[at].is_alphabetic(), other[at].is_alphabetic()) {
        (true, true) => one[at].cmp(&other[at]),
        (false, false) => {
            leading_number(&one[at..]).cmp(&leading_number(&other[at..])).then_with(|| one[at].cmp(&other[at]))
        }
        (left, right) => left.cmp(&right),
    }
}

/// The value of the digits that `text` begins with, and how many there are.
fn leading_number(text: &[char]) -> (u64, usize) {
    let digits: String = text.iter().take_while(|c| c.is_ascii_digit()).collect();
    (digits.parse().unwrap_or(0), digits.len())
}

/// Writes `value`, which is a map, as TOML.
pub(super) fn write_toml(out: &mut Out, value: &Value) -> Result<(), String> {
    match value {
        Value::Map(_) | Value::Object(_) => toml_table(out, value, &mut Vec::new()),
        other => toml_value(out, other, 0),
    }
}

fn members(value: &Value) -> Vec<(Vec<u8>, Value)> {
    match value {
        Value::Map(map) => map.pairs().into_iter().map(|(k, v)| (key_text(&k), v)).collect(),
        Value::Object(object) => object.fields.iter().map(|(k, v)| (k.as_bytes().to_vec(), v.clone())).collect(),
        _ => Vec::new(),
    }
}

/// A list of nothing but tables is written table by table.
fn is_tables(value: &Value) -> bool {
    match value {
        Value::List(list) => {
            !list.items.is_empty() && list.items.iter().all(|i| matches!(i, Value::Map(_) | Value::Object(_)))
        }
        _ => false,
    }
}

fn toml_table(out: &mut Out, value: &Value, path: &mut Vec<Vec<u8>>) -> Result<(), String> {
    too_deep(path.len())?;
    let members = members(value);
    let inner = path.len() * 2;
    let nests = |v: &Value| matches!(v, Value::Map(_) | Value::Object(_)) || is_tables(v);
    for (key, item) in members.iter().filter(|(_, v)| !nests(v)) {
        if item.is_nil() {
            continue;
        }
        out.fill(b' ', inner)?;
        toml_key(out, key)?;
        out.put(b" = ")?;
        toml_value(out, item, 0)?;
        out.put(b"\n")?;
    }
    for (key, item) in members.iter().filter(|(_, v)| nests(v)) {
        path.push(key.clone());
        let header = |out: &mut Out, path: &[Vec<u8>], open: &[u8], close: &[u8]| {
            // A table within a table follows it at once.
            if !out.bytes().is_empty() && (path.len() == 1 || open == b"[[") {
                out.put(b"\n")?;
            }
            out.fill(b' ', (path.len() - 1) * 2)?;
            out.put(open)?;
            for (i, part) in path.iter().enumerate() {
                if i > 0 {
                    out.put(b".")?;
                }
                toml_key(out, part)?;
            }
            out.put(close)?;
            out.put(b"\n")
        };
        if let Value::List(list) = item {
            for table in &list.items {
                header(out, path, b"[[", b"]]")?;
                toml_table(out, table, path)?;
            }
        } else {
            header(out, path, b"[", b"]")?;
            toml_table(out, item, path)?;
        }
        path.pop();
    }
    Ok(())
}

fn toml_key(out: &mut Out, key: &[u8]) -> Result<(), String> {
    let bare = !key.is_empty() && key.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if bare { out.put(key) } else { toml_string(out, key) }
}

fn toml_string(out: &mut Out, text: &[u8]) -> Result<(), String> {
    out.put(b"\"")?;
    for byte in text {
        match byte {
            b'"' => out.put(b"\\\"")?,
            b'\\' => out.put(b"\\\\")?,
            8 => out.put(b"\\b")?,
            b'\t' => out.put(b"\\t")?,
            b'\n' => out.put(b"\\n")?,
            12 => out.put(b"\\f")?,
            b'\r' => out.put(b"\\r")?,
            0..=31 | 127 => out.put(format!("\\u{byte:04x}").as_bytes())?,
            byte => out.put(&[*byte])?,
        }
    }
    out.put(b"\"")
}

fn toml_value(out: &mut Out, value: &Value, depth: usize) -> Result<(), String> {
    too_deep(depth)?;
    match value {
        Value::Bool(b) => out.put(b.to_string().as_bytes()),
        Value::Int(n) | Value::Int64(n) => out.put(n.to_string().as_bytes()),
        Value::Uint64(n) => out.put(n.to_string().as_bytes()),
        Value::Byte(n) => out.put(n.to_string().as_bytes()),
        Value::Float(f) if f.is_nan() => out.put(b"nan"),
        Value::Float(f) if f.is_infinite() => out.put(if *f > 0.0 { b"inf" } else { b"-inf" }),
        Value::Float(f) => {
            let text = format_float(*f, 'f', None);
            out.put(text.as_bytes())?;
            if text.contains('.') { Ok(()) } else { out.put(b".0") }
        }
        Value::Text(text) => toml_string(out, text),
        Value::List(list) => {
            out.put(b"[")?;
            for (i, item) in list.items.iter().enumerate() {
                if i > 0 {
                    out.put(b", ")?;
                }
                toml_value(out, item, depth + 1)?;
            }
            out.put(b"]")
        }
        Value::Map(_) | Value::Object(_) => {
            out.put(b"{")?;
            for (i, (key, item)) in members(value).iter().enumerate() {
                if i > 0 {
                    out.put(b", ")?;
                }
                toml_key(out, key)?;
                out.put(b" = ")?;
                toml_value(out, item, depth + 1)?;
            }
            out.put(b"}")
        }
        other => Err(format!("TOML has no value of type {}", other.type_name())),
    }
}
