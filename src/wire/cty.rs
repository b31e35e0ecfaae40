//! Msgpack as hosts send configuration: values of cty (HCL's types), in `SetConfig` and in a task's driver configuration.
//!
//! A plugin calls [`decode`]; a host builds a [`Value`] and calls [`encode`], which writes what go-cty writes, byte for
//! byte.

use std::fmt;

use super::msgpack::Error;
use super::msgpack::MAX_DEPTH;
use super::msgpack::token::{self, Reader, Token};
use crate::spec::collections::BTreeMap;

/// A type of cty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// True or false.
    Bool,
    /// A decimal number of any size.
    Number,
    /// Text.
    String,
    /// Any type; the value brings its own.
    Dynamic,
    /// Values of one type.
    List(Box<Type>),
    /// Different values of one type.
    Set(Box<Type>),
    /// Values of one type by key.
    Map(Box<Type>),
    /// Named values, each with its type.
    Object(BTreeMap<String, Type>),
    /// Values in order, each with its type.
    Tuple(Vec<Type>),
}

impl Type {
    /// The JSON form that goes with a value of a dynamic type.
    #[must_use]
    pub fn to_json(&self) -> String {
        self.json().to_string()
    }

    fn json(&self) -> serde_json::Value {
        use crate::spec::json::json;
        use serde_json::Value as Json;
        match self {
            Type::Bool => json!("bool"),
            Type::Number => json!("number"),
            Type::String => json!("string"),
            Type::Dynamic => json!("dynamic"),
            Type::List(of) => json!(["list", of.json()]),
            Type::Set(of) => json!(["set", of.json()]),
            Type::Map(of) => json!(["map", of.json()]),
            Type::Object(members) => {
                let members: serde_json::Map<_, _> = members.iter().map(|(k, t)| (k.clone(), t.json())).collect();
                json!(["object", Json::Object(members)])
            }
            Type::Tuple(items) => json!(["tuple", items.iter().map(Type::json).collect::<Vec<_>>()]),
        }
    }
}

impl fmt::Display for Type {
    /// As it is written in a specification.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Bool => f.write_str("bool"),
            Type::Number => f.write_str("number"),
            Type::String => f.write_str("string"),
            Type::Dynamic => f.write_str("any"),
            Type::List(of) => write!(f, "list({of})"),
            Type::Set(of) => write!(f, "set({of})"),
            Type::Map(of) => write!(f, "map({of})"),
            Type::Object(members) => {
                let members: Vec<_> = members.iter().map(|(k, t)| format!("{k}={t}")).collect();
                write!(f, "object({{{}}})", members.join(","))
            }
            Type::Tuple(items) => {
                let items: Vec<_> = items.iter().map(ToString::to_string).collect();
                write!(f, "tuple([{}])", items.join(","))
            }
        }
    }
}

/// A decimal number without loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Number(Repr);

#[derive(Debug, Clone, PartialEq)]
enum Repr {
    Int(i64),
    /// Exactly this binary fraction, not whole.
    Float(f64),
    /// Any other number as a plain decimal: sign, digits, fraction without trailing zeros.
    Decimal(String),
}

/// No number of a configuration has more digits; an exponent could ask for any number of them.
const MAX_DIGITS: usize = 4096;

impl Number {
    /// Reads a decimal number, with optional fraction and exponent. `None` for anything else, and for numbers of more than
    /// 4096 digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Number> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = match mantissa.split_once('.') {
            Some((_, "")) => return None,
            Some(parts) => parts,
            None => (mantissa, ""),
        };
        let digits_only = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || !digits_only(whole) || !digits_only(fraction) {
            return None;
        }
        let digits = format!("{whole}{fraction}");
        // Where the point stands in `digits`; outside of them for large and small exponents.
        let point = i64::try_from(whole.len()).ok()? + i64::from(exponent);
        if digits.bytes().all(|b| b == b'0') {
            return Some(Number::from(0));
        }
        let before = usize::try_from(point.max(0)).ok()?;
        let leading = usize::try_from((-point).max(0)).ok()?;
        if before.max(leading).saturating_add(digits.len()) > MAX_DIGITS {
            return None;
        }
        let padded = format!("{digits:0<before$}");
        let (whole, fraction) = padded.split_at(before);
        let fraction = format!("{}{fraction}", "0".repeat(leading));
        let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
        let sign = if negative { "-" } else { "" };
        let whole = if whole.is_empty() { "0" } else { whole };
        if fraction.is_empty() {
            let text = format!("{sign}{whole}");
            return Some(Number(text.parse().map_or(Repr::Decimal(text), Repr::Int)));
        }
        let text = format!("{sign}{whole}.{fraction}");
        let float = text.parse::<f64>().ok()?;
        // The longest exact expansion of a float has 1074 digits after the point.
        let exact = format!("{float:.1074}");
        let exact = exact.trim_end_matches('0');
        Some(Number(if exact == text { Repr::Float(float) } else { Repr::Decimal(text) }))
    }

    /// The number that the shortest decimal of `float` names: 0.1 is one tenth. `None` unless it is finite.
    #[must_use]
    pub fn from_f64(float: f64) -> Option<Number> {
        if float.is_finite() { Number::parse(&float.to_string()) } else { None }
    }

    /// As a whole number within 64 bits.
    #[must_use]
    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            Repr::Int(int) => Some(int),
            Repr::Float(_) | Repr::Decimal(_) => None,
        }
    }

    /// By value.
    #[must_use]
    pub fn compare(&self, other: &Number) -> std::cmp::Ordering {
        if let (Repr::Int(a), Repr::Int(b)) = (&self.0, &other.0) {
            return a.cmp(b);
        }
        let (a, b) = (self.to_string(), other.to_string());
        let parts = |text: &str| {
            let unsigned = text.trim_start_matches('-');
            let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
            (whole.len(), whole.to_owned(), fraction.to_owned())
        };
        match (a.starts_with('-'), b.starts_with('-')) {
            (true, false) => std::cmp::Ordering::Less,
            (false, true) => std::cmp::Ordering::Greater,
            (false, false) => parts(&a).cmp(&parts(&b)),
            (true, true) => parts(&b).cmp(&parts(&a)),
        }
    }
}

impl From<i64> for Number {
    fn from(int: i64) -> Number {
        Number(Repr::Int(int))
    }
}

impl fmt::Display for Number {
    /// As a plain decimal, without exponent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Int(int) => int.fmt(f),
            Repr::Float(float) => float.fmt(f),
            Repr::Decimal(text) => f.write_str(text),
        }
    }
}

/// A value of cty, as far as its bytes depend on it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value, of whatever type.
    Null,
    /// True or false.
    Bool(bool),
    /// A number.
    Number(Number),
    /// Text.
    String(String),
    /// A list, set (in its order) or tuple.
    List(Vec<Value>),
    /// A map or object.
    Map(BTreeMap<String, Value>),
    /// A value where the surrounding type says "any": it goes with its own type.
    Dynamic(Type, Box<Value>),
}

impl Value {
    /// As JSON, with numbers that no 64 bits hold as decimal text, as [`decode`] gives them.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match self {
            Value::Null => Json::Null,
            Value::Bool(flag) => Json::Bool(*flag),
            Value::Number(Number(Repr::Int(int))) => Json::from(*int),
            Value::Number(Number(Repr::Float(float))) => Json::from(*float),
            Value::Number(Number(Repr::Decimal(text))) => Json::String(text.clone()),
            Value::String(text) => Json::String(text.clone()),
            Value::List(items) => Json::Array(items.iter().map(Value::to_json).collect()),
            Value::Map(map) => Json::Object(map.iter().map(|(k, v)| (k.clone(), v.to_json())).collect()),
            Value::Dynamic(_, value) => value.to_json(),
        }
    }
}

impl From<serde_json::Value> for Value {
    /// A fraction becomes the number that its shortest decimal names.
    fn from(json: serde_json::Value) -> Value {
        use serde_json::Value as Json;
        match json {
            Json::Null => Value::Null,
            Json::Bool(flag) => Value::Bool(flag),
            Json::Number(number) => Number::parse(&number.to_string()).map_or(Value::Null, Value::Number),
            Json::String(text) => Value::String(text),
            Json::Array(items) => Value::List(items.into_iter().map(Value::from).collect()),
            Json::Object(members) => Value::Map(members.into_iter().map(|(k, v)| (k, Value::from(v))).collect()),
        }
    }
}

/// The bytes that go-cty writes for `value`.
#[must_use]
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, value);
    out
}

fn write(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => out.push(token::NIL),
        Value::Bool(flag) => token::bool(out, *flag),
        Value::Number(Number(Repr::Int(int))) => match u64::try_from(*int) {
            Ok(unsigned) => token::unsigned(out, unsigned),
            Err(_) => token::signed(out, *int),
        },
        Value::Number(Number(Repr::Float(float))) => token::float(out, *float),
        Value::Number(Number(Repr::Decimal(text))) | Value::String(text) => token::text(out, text),
        Value::List(items) => {
            token::array(out, items.len());
            for item in items {
                write(out, item);
            }
        }
        Value::Map(map) => {
            token::map(out, map.len());
            for (key, value) in map {
                token::text(out, key);
                write(out, value);
            }
        }
        Value::Dynamic(kind, value) => {
            token::array(out, 2);
            token::bin(out, kind.to_json().as_bytes());
            write(out, value);
        }
    }
}

/// Reads what a host sent. No bytes at all are null: "no configuration".
///
/// A fraction that no float holds exactly (0.1) and a whole number beyond 64 bits travel as decimal text, which nothing
/// tells from a string: they stay strings here. The pair of a type and a value, as sent for the type "any", becomes the
/// value.
///
/// # Errors
/// [`Error::Unknown`] names the place of a value that the host did not know yet. The others are no msgpack of this kind.
pub fn decode(bytes: &[u8]) -> Result<serde_json::Value, Error> {
    if bytes.is_empty() {
        return Ok(serde_json::Value::Null);
    }
    let mut reader = Reader::new(bytes);
    let value = read(&mut reader, &mut Vec::new())?;
    if reader.rest() > 0 {
        return Err(Error::Trailing(reader.rest()));
    }
    Ok(value)
}

/// One level of the way to a value, for messages.
enum Step {
    Key(String),
    Index(usize),
    /// The pair of a type and a value, which nobody wrote.
    Type,
}

fn place(path: &[Step]) -> String {
    let steps = path.iter().map(|step| match step {
        Step::Key(key) => format!(".{key}"),
        Step::Index(index) => format!("[{index}]"),
        Step::Type => String::new(),
    });
    let text = steps.collect::<String>();
    if text.is_empty() { "the configuration".to_owned() } else { text.trim_start_matches('.').to_owned() }
}

fn read(reader: &mut Reader<'_>, path: &mut Vec<Step>) -> Result<serde_json::Value, Error> {
    use serde_json::Value as Json;
    if path.len() >= MAX_DEPTH {
        return Err(Error::TooDeep);
    }
    Ok(match reader.next()? {
        Token::Nil => Json::Null,
        Token::Bool(flag) => Json::Bool(flag),
        Token::Signed(int) => Json::from(int),
        Token::Unsigned(int) => Json::from(int),
        // Infinities have no decimal; nothing but arithmetic in a configuration makes them.
        Token::Float(float) => serde_json::Number::from_f64(float)
            .map(Json::Number)
            .ok_or_else(|| Error::Message(format!("{}: {float} is not a number that can be used", place(path))))?,
        Token::Raw(bytes) | Token::Bin(bytes) => Json::String(text(bytes)?.to_owned()),
        Token::Array(2) if matches!(reader.peek()?, Token::Bin(_)) => {
            reader.next()?;
            path.push(Step::Type);
            let value = read(reader, path)?;
            path.pop();
            value
        }
        Token::Array(n) => {
            let mut items = Vec::new();
            for index in 0..n {
                path.push(Step::Index(index));
                items.push(read(reader, path)?);
                path.pop();
            }
            Json::Array(items)
        }
        Token::Map(n) => {
            let mut members = serde_json::Map::new();
            for _ in 0..n {
                let (Token::Raw(key) | Token::Bin(key)) = reader.next()? else { return Err(Error::KeyNotText) };
                let key = text(key)?;
                path.push(Step::Key(key.to_owned()));
                members.insert(key.to_owned(), read(reader, path)?);
                path.pop();
            }
            Json::Object(members)
        }
        // 0 is unknown, 12 is unknown with what is known about it.
        Token::Ext(0 | 12, _) => return Err(Error::Unknown(place(path))),
        Token::Ext(other, _) => return Err(Error::Extension(other)),
    })
}

fn text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn number(text: &str) -> Value {
        Value::Number(Number::parse(text).unwrap_or_else(|| panic!("{text}")))
    }

    /// Bytes from the real encoder; `tests/interop` compares many more.
    #[test]
    fn a7_values_are_written_as_go_cty_writes_them() {
        for (value, bytes) in [
            (number("200"), vec![0xcc, 200]),
            (number("-33"), vec![0xd0, 0xdf]),
            (number("2e2"), vec![0xcc, 200]),
            (number("0.5"), vec![0xcb, 0x3f, 0xe0, 0, 0, 0, 0, 0, 0]),
            (number("0.1"), b"\xa30.1".to_vec()),
            (number("18446744073709551615"), b"\xb418446744073709551615".to_vec()),
            (
                Value::Dynamic(Type::String, Box::new(Value::String("x".into()))),
                b"\x92\xc4\x08\"string\"\xa1x".to_vec(),
            ),
            (Value::String("a".repeat(32)), [b"\xd9\x20".as_slice(), &[b'a'; 32]].concat()),
        ] {
            assert_eq!(encode(&value), bytes, "{value:?}");
        }
    }

    #[test]
    fn a7_every_form_of_a_value_is_read() {
        for (bytes, expected) in [
            (b"".as_slice(), json!(null)),
            (b"\xc0", json!(null)),
            (b"\xd1\x00\xff", json!(255)),
            (b"\xcc\xc8", json!(200)),
            (b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", json!(u64::MAX)),
            (b"\xda\x00\x01a", json!("a")),
            (b"\x92\xc4\x08\"string\"\xa1x", json!("x")),
            (b"\x82\xa1a\x92\xc4\x0f[\"list\",\"bool\"]\x91\xc3\xa1b\xc0", json!({"a": [true], "b": null})),
            (b"\xcb\x3f\xe0\0\0\0\0\0\0", json!(0.5)),
        ] {
            assert_eq!(decode(bytes), Ok(expected), "{bytes:?}");
        }
    }

    #[test]
    fn a7_what_is_no_value_is_refused_by_name() {
        for (bytes, expected) in [
            (b"\x81\xa1a\x92\xa1x\xd4\0\0".as_slice(), Error::Unknown("a[1]".into())),
            (b"\xd4\0\0", Error::Unknown("the configuration".into())),
            (b"\xc7\x03\x0c\x80\x80\x80", Error::Unknown("the configuration".into())),
            (b"\x92\xc0", Error::Truncated),
            (b"\xdd\xff\xff\xff\xff", Error::Truncated),
            (b"\xc0\xc0", Error::Trailing(1)),
            (b"\x81\x01\x01", Error::KeyNotText),
            (b"\xa1\xff", Error::NotText),
            (b"\xc1", Error::Reserved),
            (b"\xd6\xff\0\0\0\0", Error::Extension(-1)),
            ([0x91; 4096].as_slice(), Error::TooDeep),
        ] {
            assert_eq!(decode(bytes), Err(expected), "{bytes:?}");
        }
    }

    #[test]
    fn a7_numbers_lose_nothing() {
        let text = |t: &str| Number::parse(t).map(|n| n.to_string());
        for (written, expected) in [
            ("007", Some("7")),
            ("-0", Some("0")),
            ("0.10", Some("0.1")),
            ("1.5e1", Some("15")),
            ("15e-1", Some("1.5")),
            ("1e-7", Some("0.0000001")),
            ("1e20", Some("100000000000000000000")),
            ("0.1000000000000000055511151231257827", Some("0.1000000000000000055511151231257827")),
            ("0.1000000000000000055511151231257827021181583404541015625", Some("0.1")),
            ("1e5000", None),
            ("1e-2147483648", None),
            ("0e2147483647", Some("0")),
            ("", None),
            (".5", None),
            ("5.", None),
            ("+5", None),
            ("1_0", None),
            ("NaN", None),
        ] {
            assert_eq!(text(written).as_deref(), expected, "{written}");
        }
        let sorted = ["-10.5", "-10.25", "-2", "0", "0.05", "0.5", "3", "20", "18446744073709551615"];
        for pair in sorted.windows(2) {
            let (a, b) = (Number::parse(pair[0]).unwrap(), Number::parse(pair[1]).unwrap());
            assert_eq!(
                (a.compare(&b), b.compare(&a)),
                (std::cmp::Ordering::Less, std::cmp::Ordering::Greater),
                "{pair:?}"
            );
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(|b| json!(b)),
            any::<i64>().prop_map(|i| json!(i)),
            // Halves are exact, so they come back as numbers.
            any::<i32>().prop_map(|i| json!(f64::from(i) + 0.5)),
            ".{0,40}".prop_map(|s| json!(s)),
        ];
        leaf.prop_recursive(3, 32, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(|items| json!(items)),
                proptest::collection::btree_map(".{0,4}", inner, 0..4).prop_map(|map| json!(map)),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a7_what_is_sent_is_read(json in json()) {
            prop_assert_eq!(decode(&encode(&Value::from(json.clone()))), Ok(json));
        }

        #[test]
        fn a7_a_decimal_is_its_own_text(text in "-?[1-9][0-9]{0,30}(\\.[0-9]{0,30}[1-9])?") {
            prop_assert_eq!(Number::parse(&text).unwrap().to_string(), text);
        }
    }
}
