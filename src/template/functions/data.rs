//! JSON, YAML and TOML.

use super::{Any, Function, Text, row, text};
use crate::template::codec::{self, Json};
use crate::template::types::Exec;
use crate::template::value::{Kind, Value};
use crate::template::verbs::Out;

type Outcome = Result<Value, String>;

pub(super) const TABLE: &[Function] = &[
    row("parseJSON", &[Text], parse_json, "what JSON says"),
    row("parseYAML", &[Text], parse_yaml, "what YAML says"),
    row("toJSON", &[Any], |x, a| json(x, &a[0], None, true), "JSON in one line"),
    row("toJSONPretty", &[Any], |x, a| json(x, &a[0], Some("  "), true), "JSON in lines"),
    row(
        "toUnescapedJSON",
        &[Any],
        |x, a| json(x, &a[0], None, false),
        "JSON in one line, `<`, `>` and `&` as they are",
    ),
    row(
        "toUnescapedJSONPretty",
        &[Any],
        |x, a| json(x, &a[0], Some("  "), false),
        "JSON in lines, `<`, `>` and `&` as they are",
    ),
    row("toYAML", &[Any], to_yaml, "YAML"),
    row("toTOML", &[Any], to_toml, "TOML, of a map"),
];

/// Of nothing there is an empty map.
fn empty() -> Value {
    Value::map(Kind::Any, crate::spec::collections::BTreeMap::new())
}

fn parse_json(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let text = text(arguments, 0);
    if text.is_empty() {
        return Ok(empty());
    }
    // A value takes more room than its text.
    exec.spend(text.len().saturating_mul(4))?;
    codec::parse_json(text)
}

fn parse_yaml(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let text = text(arguments, 0);
    if text.is_empty() {
        return Ok(empty());
    }
    exec.spend(text.len().saturating_mul(4))?;
    codec::parse_yaml(text)
}

pub(super) fn json(exec: &mut Exec<'_>, value: &Value, indent: Option<&str>, html: bool) -> Outcome {
    let mut out = Out::new(exec.room());
    codec::write_json(&mut out, value, Json { indent, html }, 0)?;
    Ok(Value::text(out.into_bytes()))
}

fn to_yaml(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut out = Out::new(exec.room());
    codec::write_yaml(&mut out, &arguments[0], 0, 0)?;
    Ok(Value::text(out.bytes().trim_ascii()))
}

fn to_toml(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut out = Out::new(exec.room());
    codec::write_toml(&mut out, &arguments[0])?;
    Ok(Value::text(out.bytes().trim_ascii()))
}
