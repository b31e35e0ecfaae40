//! Evaluates a filter on a value.

use serde_json::Value;

use super::{Expression, Test};

/// Limit of comparisons for one value, because nested braces multiply them.
pub(super) const STEPS: u32 = 5000;

/// A name bound by an enclosing brace, with its meaning.
pub(super) enum Local<'a> {
    /// A key or a number.
    Key(&'a str, Value),
    /// A path in the value.
    Path(&'a str, Vec<String>),
}

impl Local<'_> {
    fn name(&self) -> &str {
        match self {
            Local::Key(name, _) | Local::Path(name, _) => name,
        }
    }
}

pub(super) fn evaluate<'a>(
    expression: &'a Expression,
    value: &Value,
    locals: &mut Vec<Local<'a>>,
    left: &mut u32,
) -> Result<bool, String> {
    *left = left.checked_sub(1).ok_or_else(|| format!("the filter needs more than {STEPS} comparisons"))?;
    match expression {
        Expression::Or(all) | Expression::And(all) => {
            let decides = matches!(expression, Expression::Or(_));
            for one in all {
                if evaluate(one, value, locals, left)? == decides {
                    return Ok(decides);
                }
            }
            Ok(!decides)
        }
        Expression::Not(inner) => Ok(!evaluate(inner, value, locals, left)?),
        Expression::Match { path, negated, test } => {
            let found = find(value, path, locals)?;
            let fits = match found.get() {
                None => matches!(test, Test::Empty | Test::Nil),
                Some(found) => fits(test, found).map_err(|why| format!("{why} for selector: {:?}", path.join(".")))?,
            };
            Ok(fits != *negated)
        }
        Expression::Each { .. } => each(expression, value, locals, left),
    }
}

/// The value at a path.
enum Found<'v> {
    Absent,
    There(&'v Value),
    Own(Value),
}

impl Found<'_> {
    fn get(&self) -> Option<&Value> {
        match self {
            Found::Absent => None,
            Found::There(value) => Some(value),
            Found::Own(value) => Some(value),
        }
    }
}

/// Replaces names that enclosing braces have bound by their paths, the innermost first and as often as they occur.
fn resolve(path: &[String], locals: &[Local<'_>]) -> Result<Result<Vec<String>, Value>, String> {
    let mut path = path.to_vec();
    for local in locals.iter().rev() {
        if path.first().is_none_or(|first| first != local.name()) {
            continue;
        }
        match local {
            Local::Key(name, _) if path.len() > 1 => {
                return Err(format!("/{name} references a key so /{} is invalid", path.join("/")));
            }
            Local::Key(_, key) => return Ok(Err(key.clone())),
            Local::Path(_, place) => {
                path = place.iter().cloned().chain(path.drain(1..)).collect();
            }
        }
    }
    Ok(Ok(path))
}

fn find<'v>(value: &'v Value, path: &[String], locals: &[Local<'_>]) -> Result<Found<'v>, String> {
    let path = match resolve(path, locals)? {
        Ok(path) => path,
        Err(key) => return Ok(Found::Own(key)),
    };
    let mut at = value;
    for (n, part) in path.iter().enumerate() {
        let wrong = |why: &str| format!("error finding value in datum: /{} at part {n}: {why}", path.join("/"));
        at = match at {
            Value::Object(map) => match map.get(part) {
                Some(next) => next,
                // The last part of a longer path: a map's key that is not there.
                None if n > 0 && n + 1 == path.len() => return Ok(Found::Absent),
                None => return Err(wrong(&format!("couldn't find key: struct field with name {part:?}"))),
            },
            Value::Array(list) => {
                let index: usize =
                    part.parse().map_err(|_| wrong(&format!("couldn't convert index {part:?} to a number")))?;
                list.get(index)
                    .ok_or_else(|| wrong(&format!("index {index} is out of range (length = {})", list.len())))?
            }
            // Go's nil map has no keys.
            Value::Null if n + 1 == path.len() => return Ok(Found::Absent),
            other => return Err(wrong(&format!("invalid value kind: {}", kind(other)))),
        };
    }
    Ok(Found::There(at))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "map",
    }
}

fn fits(test: &Test, value: &Value) -> Result<bool, String> {
    match test {
        Test::Equal(raw) => match equal(raw, value) {
            Ok(equal) => Ok(equal),
            Err(Compare::NoValue) => Err(format!("cannot perform == operations on type {}", kind(value))),
            Err(Compare::Wrong(why)) => Err(format!("error getting match value in expression: {why}")),
        },
        Test::Contains(raw) => contains(raw, value),
        Test::Matches(regex) => match value {
            Value::String(text) => Ok(regex.is_match(text)),
            other => Err(format!("value of type {} is not convertible to []byte", kind(other))),
        },
        Test::Empty => match value {
            Value::Null => Ok(true),
            Value::Array(list) => Ok(list.is_empty()),
            Value::Object(map) => Ok(map.is_empty()),
            Value::String(text) => Ok(text.is_empty()),
            other => Err(format!("cannot perform is-empty operations on type {}", kind(other))),
        },
        Test::Nil => match value {
            Value::Null => Ok(true),
            Value::Array(_) | Value::Object(_) => Ok(false),
            other => Err(format!("cannot perform is-nil operations on type {}", kind(other))),
        },
    }
}

enum Compare {
    /// A list, a map or nothing.
    NoValue,
    /// The raw value cannot be read as what it is compared with.
    Wrong(String),
}

#[expect(clippy::float_cmp, reason = "as the Go package compares")]
fn equal(raw: &str, value: &Value) -> Result<bool, Compare> {
    let wrong = || Compare::Wrong(format!("{raw:?} is no {}", kind(value)));
    match value {
        Value::String(text) => Ok(text == raw),
        Value::Bool(is) => match raw {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(*is),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(!*is),
            _ => Err(wrong()),
        },
        Value::Number(number) => match number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)) {
            Some(number) => integer(raw).map(|raw| raw == number).ok_or_else(wrong),
            None => Ok(fraction(raw).ok_or_else(wrong)? == number.as_f64().unwrap_or(f64::NAN)),
        },
        _ => Err(Compare::NoValue),
    }
}

/// A whole number as Go's `ParseInt` with base 0 reads it: with a prefix for its base, and underscores between digits.
fn integer(raw: &str) -> Option<i128> {
    let (negative, digits) = match raw.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, raw.strip_prefix('+').unwrap_or(raw)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, body) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    let prefixed = body.len() != lower.len();
    let misplaced = body.ends_with('_') || body.contains("__") || (body.starts_with('_') && !prefixed);
    if misplaced || body.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(&body.replace('_', ""), radix).ok()?;
    let number = if negative { -number } else { number };
    (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(&number).then_some(number)
}

/// A number with a fraction, perhaps with underscores between digits.
fn fraction(raw: &str) -> Option<f64> {
    let bytes = raw.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let well_placed = |at: usize| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1));
    let fits = (0..bytes.len()).all(|at| bytes[at] != b'_' || well_placed(at));
    if fits { raw.replace('_', "").parse().ok() } else { None }
}

fn contains(raw: &str, value: &Value) -> Result<bool, String> {
    match value {
        Value::Null => Ok(false),
        Value::String(text) => Ok(text.contains(raw)),
        Value::Object(map) => Ok(map.contains_key(raw)),
        Value::Array(list) => {
            for item in list {
                match equal(raw, item) {
                    Ok(true) => return Ok(true),
                    Ok(false) | Err(Compare::Wrong(_)) => {}
                    Err(Compare::NoValue) => {
                        return Err(format!("cannot perform in/contains operations on a list of type {}", kind(item)));
                    }
                }
            }
            Ok(false)
        }
        other => Err(format!("cannot perform in/contains operations on type {}", kind(other))),
    }
}

fn each<'a>(
    expression: &'a Expression,
    value: &Value,
    locals: &mut Vec<Local<'a>>,
    left: &mut u32,
) -> Result<bool, String> {
    let Expression::Each { all, path, names, inner } = expression else { return Ok(false) };
    let all = *all;
    let found = find(value, path, locals)?;
    let Some(found) = found.get() else { return Ok(all) };
    let (keys, is_map): (Vec<Value>, bool) = match found {
        Value::Null => (Vec::new(), false),
        Value::Array(list) => ((0..list.len()).map(Value::from).collect(), false),
        Value::Object(map) => (map.keys().map(|key| Value::from(key.as_str())).collect(), true),
        _ => return Err(format!("{} is not a list or a map", path.join("."))),
    };
    for key in keys {
        if names.index.is_some() && names.index == names.value {
            let name = names.index.as_deref().unwrap_or_default();
            return Err(format!("{name:?} cannot be used as a placeholder for both the index and the value"));
        }
        let before = locals.len();
        let part = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
        let place: Vec<String> = path.iter().cloned().chain([part]).collect();
        if let Some(name) = &names.default {
            locals.push(if is_map { Local::Key(name, key.clone()) } else { Local::Path(name, place.clone()) });
        }
        if let Some(name) = &names.index {
            locals.push(Local::Key(name, key));
        }
        if let Some(name) = &names.value {
            locals.push(Local::Path(name, place));
        }
        let fits = evaluate(inner, value, locals, left);
        locals.truncate(before);
        if fits? != all {
            return Ok(!all);
        }
    }
    Ok(all)
}
