//! The functions that Go's `text/template` has itself.

use std::cmp::Ordering;
use std::rc::Rc;

use super::{Function, Reflect, many, row};
use crate::template::text::runes;
use crate::template::types::Exec;
use crate::template::value::{Key, Keyed, Value};
use crate::template::verbs::{self, Out};

type Outcome = Result<Value, String>;

pub(super) const TABLE: &[Function] = &[
    many(
        "and",
        &[Reflect, Reflect],
        and_or,
        "the first value that is false or empty, else the last; the others are not looked at",
    ),
    many(
        "or",
        &[Reflect, Reflect],
        and_or,
        "the first value that is neither false nor empty, else the last; the others are not looked at",
    ),
    row("not", &[Reflect], |_, a| Ok(Value::Bool(!a[0].is_true())), "whether the value is false or empty"),
    many("eq", &[Reflect, Reflect], eq, "whether the first value equals one of the others"),
    row("ne", &[Reflect, Reflect], |x, a| eq(x, a).map(|v| Value::Bool(!v.is_true())), "whether two values differ"),
    row(
        "lt",
        &[Reflect, Reflect],
        |_, a| Ok(Value::Bool(order(a)? == Ordering::Less)),
        "whether the first is less than the second",
    ),
    row(
        "le",
        &[Reflect, Reflect],
        |_, a| Ok(Value::Bool(matches!(order(a)?, Ordering::Less | Ordering::Equal))),
        "whether the first is at most the second",
    ),
    row(
        "gt",
        &[Reflect, Reflect],
        |_, a| Ok(Value::Bool(order(a)? == Ordering::Greater)),
        "whether the first is greater than the second",
    ),
    row(
        "ge",
        &[Reflect, Reflect],
        |_, a| Ok(Value::Bool(matches!(order(a)?, Ordering::Greater | Ordering::Equal))),
        "whether the first is at least the second",
    ),
    row("len", &[Reflect], len, "how many bytes, elements or keys"),
    many("index", &[Reflect, Reflect], index, "the element of a list or map; further indexes go on in what was found"),
    many("slice", &[Reflect, Reflect], slice, "a part of a string or a list"),
    many("print", &[super::Any], print, "values as text"),
    many("println", &[super::Any], println, "values as text, with a line end"),
    many("printf", &[super::Text, super::Any], printf, "values in a format, with the verbs of Go's `fmt`"),
    many("html", &[super::Any], html, "text with the characters of HTML as entities"),
    many("js", &[super::Any], js, "text with escapes for a string of JavaScript"),
    many("urlquery", &[super::Any], urlquery, "text with escapes for the query of an address"),
    many("call", &[Reflect, Reflect], call, "the value of a function; no value of a template is one"),
];

/// The renderer does these itself, as not all arguments are looked at.
fn and_or(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    Ok(arguments.last().cloned().unwrap_or(Value::Nil))
}

fn call(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    match arguments.first() {
        None | Some(Value::Nil | Value::NilAny) => Err("there is no function to call".to_owned()),
        Some(value) => Err(format!("a value of type {} is not a function", value.type_name())),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Basic {
    Bool,
    Int,
    Uint,
    Float,
    Text,
    None,
}

fn basic(value: &Value) -> Basic {
    match value {
        Value::Bool(_) => Basic::Bool,
        Value::Int(_) | Value::Int64(_) => Basic::Int,
        Value::Uint64(_) | Value::Byte(_) => Basic::Uint,
        Value::Float(_) => Basic::Float,
        Value::Text(_) => Basic::Text,
        _ => Basic::None,
    }
}

fn eq(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let Some((first, others)) = arguments.split_first() else { return Ok(Value::Bool(false)) };
    if others.is_empty() {
        return Err("there is nothing to compare with".to_owned());
    }
    for other in others {
        if equal(first, other)? {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn equal(a: &Value, b: &Value) -> Result<bool, String> {
    let invalid = |v: &Value| matches!(v, Value::Nil | Value::NilAny);
    let (x, y) = (basic(a), basic(b));
    match (a, b) {
        _ if x != y => match (a.signed(), b.unsigned(), a.unsigned(), b.signed()) {
            (Some(signed), Some(unsigned), ..) | (_, _, Some(unsigned), Some(signed)) => {
                Ok(u64::try_from(signed).is_ok_and(|number| number == unsigned))
            }
            _ if invalid(a) || invalid(b) => Ok(false),
            _ => Err(format!("incompatible types for comparison: {} and {}", a.type_name(), b.type_name())),
        },
        (Value::Bool(one), Value::Bool(other)) => Ok(one == other),
        (Value::Float(one), Value::Float(other)) => Ok(same_float(*one, *other)),
        (Value::Text(one), Value::Text(other)) => Ok(one == other),
        _ if x == Basic::Int => Ok(a.signed() == b.signed()),
        _ if x == Basic::Uint => Ok(a.unsigned() == b.unsigned()),
        _ if a.is_nil() || b.is_nil() => Ok(a.is_nil() && b.is_nil()),
        (Value::Object(one), Value::Object(other)) => Ok(one.is_same(other)),
        _ => Err(format!("values of the types {} and {} cannot be compared", a.type_name(), b.type_name())),
    }
}

/// Equal as Go's `==` is.
#[expect(clippy::float_cmp, reason = "Go compares floating-point numbers exactly, too")]
pub(super) fn same_float(one: f64, other: f64) -> bool {
    one == other
}

fn order(arguments: &[Value]) -> Result<Ordering, String> {
    let (a, b) = (&arguments[0], &arguments[1]);
    let (x, y) = (basic(a), basic(b));
    if x == Basic::None || y == Basic::None {
        return Err("invalid type for comparison".to_owned());
    }
    if x != y {
        return match (a.signed(), b.unsigned(), a.unsigned(), b.signed()) {
            (Some(left), Some(right), ..) => Ok(i128::from(left).cmp(&i128::from(right))),
            (_, _, Some(left), Some(right)) => Ok(i128::from(left).cmp(&i128::from(right))),
            _ => Err(format!("incompatible types for comparison: {} and {}", a.type_name(), b.type_name())),
        };
    }
    match (a, b) {
        (Value::Text(one), Value::Text(other)) => Ok(one.cmp(other)),
        (Value::Float(one), Value::Float(other)) => Ok(one.partial_cmp(other).unwrap_or(Ordering::Greater)),
        (Value::Bool(_), _) => Err("invalid type for comparison".to_owned()),
        _ if x == Basic::Int => Ok(a.signed().cmp(&b.signed())),
        _ => Ok(a.unsigned().cmp(&b.unsigned())),
    }
}

fn len(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let length = match &arguments[0] {
        Value::Text(text) => text.len(),
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.entries.borrow().len(),
        Value::Loop(..) => 0,
        Value::NilPointer(_) => return Err("len of nil pointer".to_owned()),
        other => return Err(format!("len of type {}", other.type_name())),
    };
    Ok(Value::Int(length as i64))
}

fn place(value: &Value, most: usize) -> Result<usize, String> {
    let number = match value {
        Value::Nil | Value::NilAny => return Err("cannot index slice/array with nil".to_owned()),
        value => value.signed().or(value.unsigned().map(|n| n as i64)),
    };
    let number = number.ok_or_else(|| format!("cannot index slice/array with type {}", value.type_name()))?;
    let found = usize::try_from(number).ok().filter(|n| *n <= most);
    found.ok_or_else(|| format!("index out of range: {number}"))
}

fn index(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let Some((item, indexes)) = arguments.split_first() else { return Ok(Value::Nil) };
    if matches!(item, Value::Nil | Value::NilAny) {
        return Err("index of untyped nil".to_owned());
    }
    let mut item = item.clone();
    for index in indexes {
        let beyond = |n: usize| format!("index out of range: {n}");
        item = match &item {
            Value::Text(text) => {
                let n = place(index, text.len())?;
                text.get(n).map(|b| Value::Byte(*b)).ok_or_else(|| beyond(n))?
            }
            Value::List(list) => {
                let n = place(index, list.items.len())?;
                list.items.get(n).cloned().ok_or_else(|| beyond(n))?
            }
            Value::Map(map) => {
                let key = match (map.keyed, index) {
                    (Keyed::Text | Keyed::Any, Value::Text(text)) => Key::Text(Rc::clone(text)),
                    (Keyed::Int, index) if let Some(n) = index.signed() => Key::Int(n),
                    (Keyed::Any, Value::Int(n)) => Key::Int(*n),
                    (Keyed::Any, _) => return Ok(Value::NilAny),
                    (_, Value::Nil | Value::NilAny) => {
                        return Err(format!("value is nil; should be of type {}", map.keyed.name()));
                    }
                    (_, index) => {
                        let (given, wanted) = (index.type_name(), map.keyed.name());
                        return Err(format!("value has type {given}; should be {wanted}"));
                    }
                };
                map.get(&key).unwrap_or_else(|| map.kind.zero())
            }
            Value::NilAny | Value::Nil | Value::NilPointer(_) => return Err("index of nil pointer".to_owned()),
            other => return Err(format!("can't index item of type {}", other.type_name())),
        };
    }
    Ok(item)
}

fn slice(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let Some((item, indexes)) = arguments.split_first() else { return Ok(Value::Nil) };
    let length = match item {
        Value::Nil | Value::NilAny => return Err("slice of untyped nil".to_owned()),
        Value::Text(_) if indexes.len() == 3 => return Err("cannot 3-index slice a string".to_owned()),
        Value::Text(text) => text.len(),
        Value::List(list) => list.items.len(),
        other => return Err(format!("can't slice item of type {}", other.type_name())),
    };
    if indexes.len() > 3 {
        return Err(format!("too many slice indexes: {}", indexes.len()));
    }
    let mut bounds = [0, length, length];
    for (bound, index) in bounds.iter_mut().zip(indexes) {
        *bound = place(index, length)?;
    }
    let [from, to, most] = bounds;
    if from > to || (indexes.len() == 3 && to > most) {
        return Err(format!("invalid slice index: {from} > {to}"));
    }
    Ok(match item {
        Value::Text(text) => Value::text(&text[from..to]),
        Value::List(list) => Value::list(list.kind, list.items[from..to].to_vec()),
        _ => Value::Nil,
    })
}

fn print(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut out = Out::new(exec.room());
    verbs::print(&mut out, arguments)?;
    Ok(Value::text(out.into_bytes()))
}

fn println(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut out = Out::new(exec.room());
    verbs::println(&mut out, arguments)?;
    Ok(Value::text(out.into_bytes()))
}

fn printf(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut out = Out::new(exec.room());
    verbs::printf(&mut out, super::text(arguments, 0), arguments.get(1..).unwrap_or_default())?;
    Ok(Value::text(out.into_bytes()))
}

/// What `html`, `js` and `urlquery` work on: one text as it is, all else as `print` has it.
fn argument_text(exec: &Exec<'_>, arguments: &[Value]) -> Result<Vec<u8>, String> {
    if let [Value::Text(text)] = arguments {
        return Ok(text.to_vec());
    }
    let mut out = Out::new(exec.room());
    let shown: Vec<Value> = arguments.to_vec();
    let nothing = Value::text(b"<no value>");
    let shown: Vec<Value> = shown.into_iter().map(|v| if v.is_nil() { nothing.clone() } else { v }).collect();
    verbs::print(&mut out, &shown)?;
    Ok(out.into_bytes())
}

fn html(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let text = argument_text(exec, arguments)?;
    let mut out = Out::new(exec.room());
    for byte in text {
        match byte {
            0 => out.put("\u{fffd}".as_bytes())?,
            b'"' => out.put(b"&#34;")?,
            b'\'' => out.put(b"&#39;")?,
            b'&' => out.put(b"&amp;")?,
            b'<' => out.put(b"&lt;")?,
            b'>' => out.put(b"&gt;")?,
            byte => out.put(&[byte])?,
        }
    }
    Ok(Value::text(out.into_bytes()))
}

fn js(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let text = argument_text(exec, arguments)?;
    let mut out = Out::new(exec.room());
    let mut at = 0;
    for rune in runes(&text) {
        let bytes = &text[at..at + rune.width];
        at += rune.width;
        match bytes {
            b"\\" => out.put(b"\\\\")?,
            b"'" => out.put(b"\\'")?,
            b"\"" => out.put(b"\\\"")?,
            b"<" => out.put(b"\\u003C")?,
            b">" => out.put(b"\\u003E")?,
            b"&" => out.put(b"\\u0026")?,
            b"=" => out.put(b"\\u003D")?,
            [byte @ 0..=31] => out.put(format!("\\u{byte:04X}").as_bytes())?,
            bytes => match rune.char {
                Some(c) if !c.is_ascii() && (c.is_control() || c.is_whitespace()) => {
                    out.put(format!("\\u{:04X}", c as u32).as_bytes())?;
                }
                None => out.put("\u{fffd}".as_bytes())?,
                _ => out.put(bytes)?,
            },
        }
    }
    Ok(Value::text(out.into_bytes()))
}

fn urlquery(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let text = argument_text(exec, arguments)?;
    let mut out = Out::new(exec.room());
    for byte in text {
        match byte {
            b' ' => out.put(b"+")?,
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.put(&[byte])?,
            byte => out.put(format!("%{byte:02X}").as_bytes())?,
        }
    }
    Ok(Value::text(out.into_bytes()))
}
