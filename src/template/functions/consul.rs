//! Functions on strings, numbers and lists, as consul-template has them.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use hmac::{KeyInit as _, Mac as _};
use sha2::Digest as _;

use super::builtin::same_float;
use super::{Any, AnyMap, Anys, Function, Int, Text, Texts, Type, int, many, name, regular, row, text};
use crate::spec::collections::BTreeMap;
use crate::template::calendar;
use crate::template::number::{float, integer};
use crate::template::text as bytes;
use crate::template::types::Exec;
use crate::template::value::{Key, Keyed, Kind, Value, sorted};
use crate::template::verbs::Out;

type Outcome = Result<Value, String>;

#[rustfmt::skip]
pub(super) const TABLE: &[Function] = &[
    row("base64Decode", &[Text], |_, a| decode(text(a, 0), false), "the bytes that Base64 stands for"),
    row("base64Encode", &[Text], |_, a| Ok(Value::text(STANDARD.encode(text(a, 0)))), "Base64"),
    row("base64URLDecode", &[Text], |_, a| decode(text(a, 0), true), "the bytes that Base64 for addresses stands for"),
    row("base64URLEncode", &[Text], |_, a| Ok(Value::text(URL_SAFE.encode(text(a, 0)))), "Base64 for addresses"),
    row("contains", &[Any, Any], |_, a| Ok(Value::Bool(is_in(&a[1], &a[0]))), "whether the list or string behind has the value"),
    row("containsAll", &[Anys, Any], |_, a| contains_some(a, true, true), "whether a list has all of the values"),
    row("containsAny", &[Anys, Any], |_, a| contains_some(a, false, false), "whether a list has one of the values"),
    row("containsNone", &[Anys, Any], |_, a| contains_some(a, true, false), "whether a list has none of the values"),
    row("containsNotAll", &[Anys, Any], |_, a| contains_some(a, false, true), "whether a list lacks one of the values"),
    row("in", &[Any, Any], |_, a| Ok(Value::Bool(is_in(&a[0], &a[1]))), "whether a list or string has a value"),
    row("indent", &[Int, Text], indent, "each line indented by that many blanks"),
    row("join", &[Text, Texts], join, "the strings with the separator between them"),
    many("loop", &[Any], numbers, "the numbers from 0 or the first argument up to before the last, for `range`"),
    row("split", &[Text, Text], split, "the parts between the separators"),
    row("splitToMap", &[Text, Text, Text], split_to_map, "pairs, separated by the first, cut at the second separator"),
    row("trim", &[Text, Text], |_, a| Ok(Value::text(trim_set(text(a, 1), text(a, 0)))), "without the first argument's characters at both ends"),
    row("trimPrefix", &[Text, Text], |_, a| Ok(Value::text(text(a, 1).strip_prefix(text(a, 0)).unwrap_or(text(a, 1)))), "without that beginning"),
    row("trimSuffix", &[Text, Text], |_, a| Ok(Value::text(text(a, 1).strip_suffix(text(a, 0)).unwrap_or(text(a, 1)))), "without that end"),
    row("trimSpace", &[Text], |_, a| Ok(Value::text(bytes::trim_space(text(a, 0)))), "without white space at both ends"),
    row("toLower", &[Text], |_, a| Ok(Value::text(bytes::map(text(a, 0), bytes::lower))), "in lower case"),
    row("toUpper", &[Text], |_, a| Ok(Value::text(bytes::map(text(a, 0), bytes::upper))), "in upper case"),
    row("toTitle", &[Text], |_, a| Ok(Value::text(title(text(a, 0)))), "each word's first letter in upper case"),
    row("replaceAll", &[Text, Text, Text], |x, a| replace(x, text(a, 2), text(a, 0), text(a, 1)), "each occurrence of the first replaced by the second"),
    row("regexMatch", &[Text, Text], |_, a| Ok(Value::Bool(regular::compile(text(a, 0))?.is_match(text(a, 1)))), "whether a regular expression matches"),
    row("regexReplaceAll", &[Text, Text, Text], regex_replace, "each match replaced; `$1` stands for a group"),
    row("parseBool", &[Text], parse_bool, "true or false, as it is written"),
    row("parseFloat", &[Text], parse_float, "a floating point number"),
    row("parseInt", &[Text], parse_int, "a number"),
    row("parseUint", &[Text], parse_uint, "a number that is not negative"),
    row("add", &[Any, Any], |_, a| math("add", a), "the sum"),
    row("subtract", &[Any, Any], |_, a| math("subtract", a), "the second less the first"),
    row("multiply", &[Any, Any], |_, a| math("multiply", a), "the product"),
    row("divide", &[Any, Any], |_, a| math("divide", a), "the second divided by the first"),
    row("modulo", &[Any, Any], |_, a| math("modulo", a), "what is left of the second when divided by the first"),
    row("minimum", &[Any, Any], |_, a| math("minimum", a), "the smaller one"),
    row("maximum", &[Any, Any], |_, a| math("maximum", a), "the greater one"),
    row("md5sum", &[Text], |_, a| Ok(hex(&md5::Md5::digest(text(a, 0)))), "MD5, as hexadecimal digits"),
    row("sha256Hex", &[Text], |_, a| Ok(hex(&sha2::Sha256::digest(text(a, 0)))), "SHA-256, as hexadecimal digits"),
    row("hmacSHA256Hex", &[Text, Text], |_, a| Ok(hex(hmac(text(a, 1), text(a, 0))?.as_ref())), "HMAC with SHA-256 of a message by a key, as hexadecimal digits"),
    many("timestamp", &[Text], timestamp, "the time in UTC; in a format of Go's, or `unix` for seconds since 1970"),
    row("explode", &[Type::Pairs], explode, "pairs as nested maps, cut at the slashes"),
    row("explodeMap", &[AnyMap], explode_map, "a map as nested maps, cut at the slashes of its keys"),
    row("mergeMap", &[AnyMap, AnyMap], |_, a| merge(&a[0], &a[1], false, 0), "both maps in one; the first one counts"),
    row("mergeMapWithOverride", &[AnyMap, AnyMap], |_, a| merge(&a[0], &a[1], true, 0), "both maps in one; the second one counts"),
    many("executeTemplate", &[Text, Any], execute, "what a defined template renders to"),
    many("plugin", &[Text, Text], denied, "refused, as Nomad's default is: it would execute a program of the host"),
    many("writeToFile", &[Text, Text], denied, "refused, as Nomad's default is: it would write a file of the host"),
    many("sockaddr", &[Text], sockaddr, "refused: addresses of the host; `env \"NOMAD_IP_<label>\"` is the task's"),
    many("spew_dump", &[Any], denied, "refused: it shows how Go holds a value"),
    many("spew_sdump", &[Any], denied, "refused: it shows how Go holds a value"),
    many("spew_printf", &[Text, Any], denied, "refused: it shows how Go holds a value"),
    many("spew_sprintf", &[Text, Any], denied, "refused: it shows how Go holds a value"),
];

fn denied(_: &mut Exec<'_>, _: &[Value]) -> Outcome {
    Err("function is disabled".to_owned())
}

fn sockaddr(_: &mut Exec<'_>, _: &[Value]) -> Outcome {
    Err("this asks for addresses of the host and is not supported; take env \"NOMAD_IP_<label>\" or \
         env \"NOMAD_ADDR_<label>\" of a port"
        .to_owned())
}

fn decode(text: &[u8], url: bool) -> Outcome {
    // Line ends are not looked at, as in Go.
    let text: Vec<u8> = text.iter().copied().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    let bytes = if url { URL_SAFE.decode(text) } else { STANDARD.decode(text) };
    bytes.map(Value::text).map_err(|e| format!("this is not Base64: {e}"))
}

pub(super) fn is_in(list: &Value, wanted: &Value) -> bool {
    match list {
        Value::List(list) => list.items.iter().any(|item| match (item, wanted) {
            (Value::Text(a), Value::Text(b)) => a == b,
            (Value::Float(a), Value::Float(b)) => same_float(*a, *b),
            (a, b) => a.signed().is_some() && a.signed() == b.signed(),
        }),
        Value::Text(text) => wanted.as_text().is_some_and(|w| w.is_empty() || bytes::find(text, w).is_some()),
        _ => false,
    }
}

fn contains_some(arguments: &[Value], at_end: bool, invert: bool) -> Outcome {
    let Value::List(wanted) = &arguments[0] else { return Ok(Value::Bool(at_end)) };
    let found = wanted.items.iter().any(|item| is_in(&arguments[1], item) != invert);
    Ok(Value::Bool(found != at_end))
}

pub(super) fn indent(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let blanks = usize::try_from(int(arguments, 0)).map_err(|_| "indent value must be a positive integer")?;
    let mut out = Out::new(exec.room());
    let mut start = true;
    for byte in text(arguments, 1) {
        if start && *byte != b'\n' {
            out.fill(b' ', blanks)?;
        }
        out.put(&[*byte])?;
        start = *byte == b'\n';
    }
    Ok(Value::text(out.into_bytes()))
}

fn join(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut out = Out::new(exec.room());
    if let Value::List(list) = &arguments[1] {
        for (i, item) in list.items.iter().enumerate() {
            if i > 0 {
                out.put(text(arguments, 0))?;
            }
            out.put(item.as_text().map_or(&[], |t| &t[..]))?;
        }
    }
    Ok(Value::text(out.into_bytes()))
}

fn numbers(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let number = |value: &Value| match value {
        Value::Text(text) => {
            parse_signed(text).map_err(|()| format!("{:?} is not a number", String::from_utf8_lossy(text)))
        }
        value => {
            let number = value.signed().or(value.unsigned().map(|n| n as i64));
            number.ok_or_else(|| format!("bad argument type: {}", value.type_name()))
        }
    };
    match arguments {
        [to] => Ok(Value::Loop(0, number(to)?)),
        [from, to] => Ok(Value::Loop(number(from)?, number(to)?)),
        other => Err(format!("wrong number of arguments, expected 1 or 2, but got {}", other.len())),
    }
}

fn split(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let trimmed = bytes::trim_space(text(arguments, 1));
    if trimmed.is_empty() {
        return Ok(Value::list(Kind::Text, Vec::new()));
    }
    let parts = bytes::split(trimmed, text(arguments, 0), None);
    exec.spend(parts.len() * 32)?;
    Ok(Value::texts(parts))
}

fn split_to_map(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let trimmed = bytes::trim_space(text(arguments, 2));
    let mut entries = BTreeMap::new();
    if !trimmed.is_empty() {
        let parts = bytes::split(trimmed, text(arguments, 0), None);
        exec.spend(parts.len() * 64)?;
        let between = text(arguments, 1);
        for part in parts {
            let at = if between.is_empty() { Some(0) } else { bytes::find(part, between) };
            if let Some(at) = at {
                entries.insert(Key::text(&part[..at]), Value::text(&part[at + between.len()..]));
            }
        }
    }
    Ok(Value::map(Kind::Text, entries))
}

pub(super) fn trim_set<'a>(text: &'a [u8], set: &[u8]) -> &'a [u8] {
    let all: Vec<char> = bytes::runes(set).map(bytes::Rune::or_replacement).collect();
    bytes::trim(text, |r| all.contains(&r.or_replacement()), true, true)
}

/// Letters that begin a word in upper case, the others as they are.
fn title(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut inside = false;
    for rune in bytes::runes(text) {
        let c = rune.or_replacement();
        bytes::push(&mut out, if inside { c } else { bytes::upper(c) });
        inside = c.is_alphanumeric() || c == '_' || (inside && matches!(c, '\'' | '.' | ':' | '\u{2019}'));
    }
    out
}

pub(super) fn replace(exec: &mut Exec<'_>, whole: &[u8], from: &[u8], to: &[u8]) -> Outcome {
    let mut out = Out::new(exec.room());
    if from.is_empty() {
        out.put(to)?;
        for rune in bytes::split(whole, b"", None) {
            out.put(rune)?;
            out.put(to)?;
        }
        return Ok(Value::text(out.into_bytes()));
    }
    for (i, part) in bytes::split(whole, from, None).into_iter().enumerate() {
        if i > 0 {
            out.put(to)?;
        }
        out.put(part)?;
    }
    Ok(Value::text(out.into_bytes()))
}

fn regex_replace(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let pattern = regular::compile(text(arguments, 0))?;
    let mut out = Out::new(exec.room());
    regular::replace_all(&pattern, text(arguments, 2), text(arguments, 1), false, &mut out)?;
    Ok(Value::text(out.into_bytes()))
}

fn parse_bool(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    match text(arguments, 0) {
        b"" | b"0" | b"f" | b"F" | b"false" | b"False" | b"FALSE" => Ok(Value::Bool(false)),
        b"1" | b"t" | b"T" | b"true" | b"True" | b"TRUE" => Ok(Value::Bool(true)),
        _ => Err(format!("{:?} is neither true nor false", name(arguments, 0))),
    }
}

fn parse_float(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    if text(arguments, 0).is_empty() {
        return Ok(Value::Float(0.0));
    }
    let written = name(arguments, 0);
    let underscore = written.contains('_') && !written.to_ascii_lowercase().contains("0x");
    let number = float(&written).filter(|_| !underscore);
    number.map(Value::Float).ok_or_else(|| format!("{written:?} is not a number"))
}

fn parse_signed(text: &[u8]) -> Result<i64, ()> {
    if text.is_empty() {
        return Ok(0);
    }
    std::str::from_utf8(text).ok().and_then(|t| t.parse().ok()).ok_or(())
}

fn parse_int(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let number = parse_signed(text(arguments, 0));
    number.map(Value::Int64).map_err(|()| format!("{:?} is not a number that fits 64 bits", name(arguments, 0)))
}

fn parse_uint(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let written = name(arguments, 0);
    if written.is_empty() {
        return Ok(Value::Uint64(0));
    }
    let number = if written.starts_with('+') { None } else { written.parse().ok() };
    number.map(Value::Uint64).ok_or_else(|| format!("{written:?} is not a number without a sign that fits 64 bits"))
}

/// A number for arithmetic.
#[derive(Clone, Copy)]
enum Number {
    Int(i64),
    Uint(u64),
    Float(f64),
}

impl Number {
    fn of(value: &Value) -> Result<Number, String> {
        match value {
            Value::Float(f) => Ok(Number::Float(*f)),
            value => {
                let number = value.signed().map(Number::Int).or(value.unsigned().map(Number::Uint));
                number.ok_or_else(|| format!("a value of type {} is not a number", value.type_name()))
            }
        }
    }

    fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Uint(n) => n as f64,
            Number::Float(f) => f,
        }
    }

    fn value(self) -> Value {
        match self {
            Number::Int(n) => Value::Int64(n),
            Number::Uint(n) => Value::Uint64(n),
            Number::Float(f) => Value::Float(f),
        }
    }
}

fn math(what: &str, arguments: &[Value]) -> Outcome {
    // The argument behind a pipe, which is the last one, is what is worked on.
    let (b, a) = (Number::of(&arguments[0])?, Number::of(&arguments[1])?);
    if matches!(what, "minimum" | "maximum") {
        let less = match (a, b) {
            (Number::Int(x), Number::Int(y)) => x.cmp(&y),
            (Number::Uint(x), Number::Uint(y)) => x.cmp(&y),
            (Number::Int(x), Number::Uint(y)) => x.cmp(&(y as i64)),
            (Number::Uint(x), Number::Int(y)) => (x as i64).cmp(&y),
            _ => a.float().partial_cmp(&b.float()).unwrap_or(std::cmp::Ordering::Equal),
        };
        let wanted = if what == "minimum" { std::cmp::Ordering::Less } else { std::cmp::Ordering::Greater };
        return Ok(if less == wanted { a.value() } else { b.value() });
    }
    let by_zero = || "integer divide by zero".to_owned();
    Ok(match (a, b) {
        (Number::Uint(x), Number::Uint(y)) => Value::Uint64(match what {
            "add" => x.wrapping_add(y),
            "subtract" => x.wrapping_sub(y),
            "multiply" => x.wrapping_mul(y),
            "divide" => x.checked_div(y).ok_or_else(by_zero)?,
            _ => x.checked_rem(y).ok_or_else(by_zero)?,
        }),
        (Number::Float(_), _) | (_, Number::Float(_)) => {
            let (x, y) = (a.float(), b.float());
            Value::Float(match what {
                "add" => x + y,
                "subtract" => x - y,
                "multiply" => x * y,
                "divide" => x / y,
                _ => return Err("there is no modulo of floating point numbers".to_owned()),
            })
        }
        _ => {
            let int = |n: Number| match n {
                Number::Int(n) => n,
                Number::Uint(n) => n as i64,
                Number::Float(f) => f as i64,
            };
            let (x, y) = (int(a), int(b));
            Value::Int64(match what {
                "add" => x.wrapping_add(y),
                "subtract" => x.wrapping_sub(y),
                "multiply" => x.wrapping_mul(y),
                "divide" if y == 0 => return Err(by_zero()),
                "divide" => x.wrapping_div(y),
                _ if y == 0 => return Err(by_zero()),
                _ => x.wrapping_rem(y),
            })
        }
    })
}

pub(super) fn hex(bytes: &[u8]) -> Value {
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(digits, "{byte:02x}");
    }
    Value::text(digits)
}

fn hmac(key: &[u8], message: &[u8]) -> Result<impl AsRef<[u8]>, String> {
    let mut mac = hmac::Hmac::<sha2::Sha256>::new_from_slice(key).map_err(|e| e.to_string())?;
    mac.update(message);
    Ok(mac.finalize().into_bytes())
}

fn timestamp(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let (seconds, nanoseconds) = exec.host.now();
    let format = match arguments.len() {
        0 => b"2006-01-02T15:04:05Z07:00".to_vec(),
        1 if text(arguments, 0) == b"unix" => return Ok(Value::text(seconds.to_string())),
        1 => text(arguments, 0).to_vec(),
        n => return Err(format!("wrong number of arguments, expected 0 or 1, but got {n}")),
    };
    Ok(Value::text(time_text(&format, seconds, nanoseconds)))
}

/// A time in UTC in the way in which the format shows the second of January 2006, 15:04:05.
fn time_text(format: &[u8], seconds: i64, nanoseconds: u32) -> Vec<u8> {
    let days = seconds.div_euclid(86_400);
    let (hour, minute, second) =
        (seconds.rem_euclid(86_400) / 3600, seconds.rem_euclid(3600) / 60, seconds.rem_euclid(60));
    let (year, month, day) = calendar::date(days);
    let day_of_year = days - calendar::days(year, 1, 1) + 1;
    let (month_name, day_name) = (calendar::MONTHS[month as usize - 1], calendar::weekday(days));
    let half = if hour % 12 == 0 { 12 } else { hour % 12 };
    let pieces: [(&str, String); 30] = [
        ("January", month_name.to_owned()),
        ("Jan", month_name[..3].to_owned()),
        ("Monday", day_name.to_owned()),
        ("Mon", day_name[..3].to_owned()),
        ("MST", "UTC".to_owned()),
        ("002", format!("{day_of_year:03}")),
        ("01", format!("{month:02}")),
        ("02", format!("{day:02}")),
        ("03", format!("{half:02}")),
        ("04", format!("{minute:02}")),
        ("05", format!("{second:02}")),
        ("06", format!("{:02}", year % 100)),
        ("2006", format!("{year:04}")),
        ("15", format!("{hour:02}")),
        ("-07:00:00", "+00:00:00".to_owned()),
        ("-070000", "+000000".to_owned()),
        ("-07:00", "+00:00".to_owned()),
        ("-0700", "+0000".to_owned()),
        ("-07", "+00".to_owned()),
        ("Z07:00:00", "Z".to_owned()),
        ("Z070000", "Z".to_owned()),
        ("Z07:00", "Z".to_owned()),
        ("Z0700", "Z".to_owned()),
        ("Z07", "Z".to_owned()),
        ("PM", if hour >= 12 { "PM" } else { "AM" }.to_owned()),
        ("pm", if hour >= 12 { "pm" } else { "am" }.to_owned()),
        ("__2", format!("{day_of_year:3}")),
        ("_2", format!("{day:2}")),
        ("1", month.to_string()),
        ("2", day.to_string()),
    ];
    let more: [(&str, String); 3] = [("3", half.to_string()), ("4", minute.to_string()), ("5", second.to_string())];
    let mut out = Vec::new();
    let mut rest = format;
    'next: while !rest.is_empty() {
        // A fraction of a second: .000 with zeros, .999 without those at the end.
        if let [mark @ (b'.' | b','), digit @ (b'0' | b'9'), ..] = rest {
            let run = rest[1..].iter().take_while(|b| *b == digit).count();
            if run <= 9 && !rest.get(1 + run).is_some_and(u8::is_ascii_digit) {
                let digits = format!("{nanoseconds:09}");
                let shown = &digits[..run];
                let shown = if *digit == b'9' { shown.trim_end_matches('0') } else { shown };
                if !shown.is_empty() {
                    out.push(*mark);
                    out.extend_from_slice(shown.as_bytes());
                }
                rest = &rest[1 + run..];
                continue;
            }
        }
        for (piece, shown) in pieces.iter().chain(&more) {
            if let Some(after) = rest.strip_prefix(piece.as_bytes()) {
                let letters = matches!(*piece, "Jan" | "Mon");
                if letters && after.first().is_some_and(u8::is_ascii_lowercase) {
                    continue;
                }
                if *piece == "_2" && rest.starts_with(b"_2006") {
                    continue;
                }
                out.extend_from_slice(shown.as_bytes());
                rest = after;
                continue 'next;
            }
        }
        out.push(rest[0]);
        rest = &rest[1..];
    }
    out
}

/// Puts `value` where the slashes of `key` lead to.
fn put_nested(map: &mut BTreeMap<Key, Value>, key: &[u8], value: Value, depth: usize) -> Result<(), String> {
    if depth > 100 {
        return Err("a key has more than 100 parts".to_owned());
    }
    let Some(at) = memchr::memchr(b'/', key) else {
        if !key.is_empty() {
            map.insert(Key::text(key), value);
        }
        return Ok(());
    };
    let top = Key::text(&key[..at]);
    let below = map.entry(top).or_insert_with(|| Value::map(Kind::Any, BTreeMap::new()));
    let Value::Map(below) = below else {
        let name = String::from_utf8_lossy(&key[..at]).into_owned();
        return Err(format!("{name:?} has a value already, and is not a map"));
    };
    let mut entries = below.entries.borrow_mut();
    put_nested(&mut entries, &key[at + 1..], value, depth + 1)
}

fn explode(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut map = BTreeMap::new();
    if let Value::List(list) = &arguments[0] {
        for pair in &list.items {
            if let Value::Object(pair) = pair
                && let (Some(Value::Text(key)), Some(value)) = (pair.field("Key"), pair.field("Value"))
            {
                put_nested(&mut map, &key, value, 0)?;
            }
        }
    }
    Ok(Value::map(Kind::Any, map))
}

fn explode_map(_: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    let mut map = BTreeMap::new();
    if let Value::Map(given) = &arguments[0] {
        for (key, value) in given.pairs() {
            if let Key::Text(key) = key {
                put_nested(&mut map, &key, value, 0)?;
            }
        }
    }
    Ok(Value::map(Kind::Any, map))
}

/// A new map of both; maps within are merged too.
pub(super) fn merge(first: &Value, second: &Value, second_counts: bool, depth: usize) -> Outcome {
    if depth > 100 {
        return Err("the maps nest deeper than 100".to_owned());
    }
    let (Value::Map(a), Value::Map(b)) = (first, second) else {
        return Ok(if first.is_nil() { second.clone() } else { first.clone() });
    };
    let mut entries = sorted(a.pairs());
    for (key, value) in b.pairs() {
        let merged = match (entries.get(&key), &value) {
            (Some(old @ Value::Map(_)), Value::Map(_)) => merge(old, &value, second_counts, depth + 1)?,
            (Some(old), _) if old.is_true() && !(second_counts && value.is_true()) => old.clone(),
            _ => value,
        };
        entries.insert(key, merged);
    }
    Ok(Value::map_keyed(Keyed::Text, Kind::Any, entries))
}

fn execute(exec: &mut Exec<'_>, arguments: &[Value]) -> Outcome {
    if arguments.len() > 2 {
        return Err(format!("wrong number of arguments, expected 1 or 2, but got {}", arguments.len()));
    }
    let dot = arguments.get(1).cloned().unwrap_or(Value::Nil);
    exec.execute(text(arguments, 0), &dot).map(Value::text)
}

/// Where other tables need numbers as text has them.
pub(super) fn number_of(text: &str) -> Option<i64> {
    integer(text).and_then(|n| i64::try_from(n).ok())
}

#[cfg(test)]
mod tests {
    use super::time_text;

    #[test]
    fn times_are_written_in_gos_formats() {
        for (format, expected) in [
            ("2006-01-02T15:04:05Z07:00", "2024-02-29T13:04:09Z"),
            ("Mon Jan _2 3:04PM 2006 MST -0700 .000 002", "Thu Feb 29 1:04PM 2024 UTC +0000 .250 060"),
            ("January 2, 06 15h05.999s", "February 29, 24 13h09.25s"),
        ] {
            let shown = time_text(format.as_bytes(), 1_709_211_849, 250_000_000);
            assert_eq!(String::from_utf8(shown).unwrap(), expected, "{format}");
        }
    }
}
