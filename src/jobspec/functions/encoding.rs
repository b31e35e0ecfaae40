//! Functions of the job file that encode and decode: Base64, CSV, JSON, URL, YAML.

use std::fmt::Write;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use saphyr_parser::{Event, Parser, ScanError};

use super::{Outcome, text};
use crate::jobspec::diag::Source;
use crate::jobspec::json;
use crate::jobspec::value::{Number, Value};
use crate::spec::IntoMap as _;
use crate::spec::collections::BTreeMap;

pub(super) fn base64encode(args: &[Value]) -> Outcome {
    Ok(Value::String(STANDARD.encode(text(args, 0)?)))
}

pub(super) fn base64decode(args: &[Value]) -> Outcome {
    let bytes = STANDARD.decode(text(args, 0)?).map_err(|e| format!("invalid base64: {e}"))?;
    String::from_utf8(bytes).map(Value::String).map_err(|_| "the decoded bytes are no UTF-8 text".to_owned())
}

/// A list of one map per row, by the names in the first row.
pub(super) fn csvdecode(args: &[Value]) -> Outcome {
    let written = text(args, 0)?;
    let mut reader = csv::Reader::from_reader(written.as_bytes());
    let names = reader.headers().map_err(|e| e.to_string())?.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|e| e.to_string())?;
        let row: BTreeMap<_, _> = names.iter().zip(&record).map(|(k, v)| (k.to_owned(), Value::string(v))).into_map();
        if row.len() != names.len() {
            return Err("two columns have the same name".to_owned());
        }
        rows.push(Value::Object(row));
    }
    Ok(Value::List(rows))
}

pub(super) fn jsondecode(args: &[Value]) -> Outcome {
    let written = text(args, 0)?;
    let node = json::read(&Source::new(Path::new(""), &written)).map_err(|d| d.message)?;
    Ok(node.into_value())
}

#[expect(clippy::unnecessary_wraps, reason = "a row of the table of functions")]
pub(super) fn jsonencode(args: &[Value]) -> Outcome {
    let mut out = String::new();
    write_json(&args[0], &mut out);
    Ok(Value::String(out))
}

fn write_json(value: &Value, out: &mut String) {
    let list = |items: &[Value], out: &mut String| {
        out.push('[');
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { "," } else { "" });
            write_json(item, out);
        }
        out.push(']');
    };
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => out.push_str(&n.to_string()),
        Value::String(s) => out.push_str(&json_string(s)),
        Value::List(items) | Value::Set(items) => list(items, out),
        Value::Object(map) => {
            out.push('{');
            for (i, (key, item)) in map.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                out.push_str(&json_string(key));
                out.push(':');
                write_json(item, out);
            }
            out.push('}');
        }
    }
}

/// As Go's encoder writes a string, which also escapes what is special in HTML.
fn json_string(s: &str) -> String {
    let mut out = serde_json::Value::from(s).to_string();
    for (special, escape) in
        [("<", "\\u003c"), (">", "\\u003e"), ("&", "\\u0026"), ("\u{2028}", "\\u2028"), ("\u{2029}", "\\u2029")]
    {
        out = out.replace(special, escape);
    }
    out
}

pub(super) fn urlencode(args: &[Value]) -> Outcome {
    let mut out = String::new();
    for byte in text(args, 0)?.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    Ok(Value::String(out))
}

/// Deepest nesting of a YAML text, the same as of a job file.
const YAML_DEPTH: usize = 64;

/// Most bytes that a YAML text may stand for. An alias is a copy, and a copy may have copies in it.
const MOST_EXPANDED: u64 = 32 << 20;

/// About what a YAML text takes when each alias is replaced by what it stands for.
fn expanded_size(text: &str) -> Result<u64, ScanError> {
    const NODE: u64 = 64;
    let mut anchors: BTreeMap<usize, u64> = BTreeMap::new();
    // Anchor and size so far of each list and map that is open; the document itself has none.
    let mut open: Vec<(usize, u64)> = vec![(0, 0)];
    for event in Parser::new_from_str(text) {
        let (anchor, size) = match event?.0 {
            Event::Scalar(text, _, anchor, _) => (anchor, NODE + text.len() as u64),
            Event::Alias(anchor) => (0, anchors.get(&anchor).copied().unwrap_or(NODE)),
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                open.push((anchor, NODE));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd if open.len() > 1 => open.pop().unwrap_or_default(),
            _ => continue,
        };
        if anchor != 0 {
            anchors.insert(anchor, size);
        }
        if let Some((_, sum)) = open.last_mut() {
            *sum = sum.saturating_add(size);
        }
    }
    Ok(open.first().map_or(0, |(_, size)| *size))
}

pub(super) fn yamldecode(args: &[Value]) -> Outcome {
    let written = text(args, 0)?;
    if nests_too_deep(&written) {
        return Err(format!("the text nests deeper than {YAML_DEPTH} levels"));
    }
    let wrong = |e| format!("invalid YAML: {e}");
    if expanded_size(&written).map_err(wrong)? > MOST_EXPANDED {
        return Err(format!("the text has more than {} MiB when its aliases are replaced", MOST_EXPANDED >> 20));
    }
    let documents = Yaml::load_from_str(&written).map_err(wrong)?;
    match documents.as_slice() {
        [] => Err("the text is empty".to_owned()),
        [one] => from_yaml(one, 0),
        _ => Err("the text has more than one document".to_owned()),
    }
}

/// The loaded tree is dropped by recursion, so depth is judged before: by open brackets, and by what can open a level
/// of its own at the head of a line.
fn nests_too_deep(text: &str) -> bool {
    let mut open = 0usize;
    let flow = text.bytes().any(|b| {
        match b {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        open > YAML_DEPTH
    });
    let mut indents: Vec<usize> = Vec::new();
    flow || text.lines().any(|line| {
        let indent = line.len() - line.trim_start_matches(' ').len();
        if indent == line.len() {
            return false;
        }
        while indents.last().is_some_and(|last| *last >= indent) {
            indents.pop();
        }
        indents.push(indent);
        let inline = line.split(' ').take_while(|w| matches!(*w, "" | "-" | "?" | ":")).filter(|w| !w.is_empty());
        indents.len() + inline.count() > YAML_DEPTH
    })
}

fn from_yaml(yaml: &Yaml<'_>, depth: usize) -> Outcome {
    if depth > YAML_DEPTH {
        return Err(format!("the text nests deeper than {YAML_DEPTH} levels"));
    }
    match yaml {
        Yaml::Value(scalar) => from_scalar(scalar),
        Yaml::Sequence(items) => {
            items.iter().map(|y| from_yaml(y, depth + 1)).collect::<Result<_, _>>().map(Value::List)
        }
        Yaml::Mapping(map) => {
            let mut out = BTreeMap::new();
            for (key, value) in map {
                let key = from_yaml(key, depth + 1)?.to_text().ok_or("a key must be a string")?;
                out.insert(key, from_yaml(value, depth + 1)?);
            }
            Ok(Value::Object(out))
        }
        Yaml::Tagged(tag, _) => Err(format!("the tag {tag} is not supported")),
        Yaml::Alias(_) | Yaml::BadValue | Yaml::Representation(..) => {
            Err("an alias or value cannot be resolved".to_owned())
        }
    }
}

fn from_scalar(scalar: &Scalar<'_>) -> Outcome {
    Ok(match scalar {
        Scalar::Null => Value::Null,
        Scalar::Boolean(b) => Value::Bool(*b),
        Scalar::Integer(i) => Value::int(*i),
        Scalar::FloatingPoint(f) => Value::Number(Number::from_f64(f.into_inner()).ok_or("a number must be finite")?),
        Scalar::String(s) => Value::string(s.as_ref()),
    })
}

/// Block style with every key and string in double quotes.
#[expect(clippy::unnecessary_wraps, reason = "a row of the table of functions")]
pub(super) fn yamlencode(args: &[Value]) -> Outcome {
    let mut out = String::new();
    write_yaml(&args[0], 0, &mut out);
    if !out.ends_with('\n') {
        out.push('\n');
    }
    Ok(Value::String(out))
}

fn write_yaml(value: &Value, indent: usize, out: &mut String) {
    let pad = "  ".repeat(indent);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (i, (key, item)) in map.iter().enumerate() {
                let pad = if i == 0 { "" } else { &pad };
                let _ = write!(out, "{pad}{}:", serde_json::Value::from(key.as_str()));
                match item {
                    Value::Object(inner) if !inner.is_empty() => {
                        let _ = write!(out, "\n{}", "  ".repeat(indent + 1));
                        write_yaml(item, indent + 1, out);
                    }
                    Value::List(inner) | Value::Set(inner) if !inner.is_empty() => {
                        let _ = write!(out, "\n{}", "  ".repeat(indent));
                        write_yaml(item, indent, out);
                    }
                    _ => {
                        out.push(' ');
                        write_yaml(item, indent, out);
                        out.push('\n');
                    }
                }
            }
        }
        Value::List(items) | Value::Set(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { &pad });
                out.push_str("- ");
                write_yaml(item, indent + 1, out);
                if !out.ends_with('\n') {
                    out.push('\n');
                }
            }
        }
        scalar => write_json(scalar, out),
    }
}
